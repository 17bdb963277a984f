import { and, asc, eq, lte, sql } from 'drizzle-orm'
import type { Db } from '../db/database.ts'
import { subscriptions } from '../db/tables.ts'

export type Subscription = typeof subscriptions.$inferSelect
export type NewSubscription = Omit<Subscription, 'created_at' | 'updated_at' | 'cancel_at_period_end'>

const its = (organizationId: string) => eq(subscriptions.organization_id, organizationId)

export async function findSubscription (db: Db, organizationId: string): Promise<Subscription | undefined> {
  const [row] = await db.select().from(subscriptions).where(its(organizationId))
  return row
}

export async function createSubscription (db: Db, subscription: NewSubscription): Promise<Subscription> {
  const [row] = await db.insert(subscriptions).values(subscription).returning()
  return row!
}

/** Changes a subscription. The caller holds the organization. */
export async function updateSubscription (
  db: Db, organizationId: string, changes: Partial<Omit<Subscription, 'organization_id' | 'id' | 'created_at'>>
): Promise<Subscription> {
  const [row] = await db.update(subscriptions).set({ ...changes, updated_at: sql`now()` })
    .where(its(organizationId)).returning()
  return row!
}

export async function deleteSubscription (db: Db, organizationId: string): Promise<void> {
  await db.delete(subscriptions).where(its(organizationId))
}

const AT_ONCE = 100

/** Organizations whose period is over, the longest first: the system's own list. */
export async function listDue (db: Db): Promise<string[]> {
  const rows = await db.select({ id: subscriptions.organization_id }).from(subscriptions)
    .where(lte(subscriptions.period_end, sql`now()`)).orderBy(asc(subscriptions.period_end)).limit(AT_ONCE)
  return rows.map(({ id }) => id)
}

/** The subscription of an organization, if its period is over by the database's clock. */
export async function findDue (db: Db, organizationId: string): Promise<Subscription | undefined> {
  const [row] = await db.select().from(subscriptions)
    .where(and(its(organizationId), lte(subscriptions.period_end, sql`now()`)))
  return row
}
