import { and, asc, eq, gt, inArray, lte, or, sql } from 'drizzle-orm'
import type { Db } from '../../db/database.ts'
import { organization_counters, subscriptions } from '../../db/tables.ts'

export type Subscription = typeof subscriptions.$inferSelect

const its = (organizationId: string) => eq(subscriptions.organization_id, organizationId)
const itsEnded = (organizationId: string) => and(its(organizationId), lte(subscriptions.period_end, sql`now()`))

export async function findSubscription (db: Db, organizationId: string): Promise<Subscription | undefined> {
  const [row] = await db.select().from(subscriptions).where(its(organizationId))
  return row
}

export async function createSubscription (
  db: Db, subscription: Omit<Subscription, 'created_at' | 'updated_at' | 'cancel_at_period_end'>
): Promise<Subscription> {
  const [row] = await db.insert(subscriptions).values(subscription).returning()
  return row!
}

/** Changes a subscription. The caller has locked the organization. */
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

/**
 * A page of all organizations with an ended subscription period that must be closed: active and cancelled
 * organizations, and those whose subscription ends with the period. Suspended and locked organizations get a new period
 * when they are active again (`restartPeriods`).
 */
export async function listDue (db: Db, after: string): Promise<string[]> {
  const { organization_id: id, period_end, cancel_at_period_end } = subscriptions
  const rows = await db.select({ id }).from(subscriptions)
    .innerJoin(organization_counters, eq(organization_counters.organization_id, id))
    .where(and(
      lte(period_end, sql`now()`), gt(id, after),
      or(cancel_at_period_end, inArray(organization_counters.status, ['active', 'cancelled']))
    )).orderBy(asc(id)).limit(AT_ONCE)
  return rows.map((row) => row.id)
}

/** The subscription of an organization if the period has ended by the database's clock; otherwise undefined. */
export async function findDue (db: Db, organizationId: string): Promise<Subscription | undefined> {
  const [row] = await db.select().from(subscriptions).where(itsEnded(organizationId))
  return row
}

/** Moves the end of an ended period to now: inactive time is not billed. The caller has locked the organization. */
export async function restartPeriods (db: Db, organizationId: string): Promise<void> {
  // `periods` counts the completed periods. Closing the ended period increments the count from -1 to 0.
  const now = sql`now()`
  await db.update(subscriptions).set({ anchor: now, periods: -1, period_end: now, updated_at: now })
    .where(itsEnded(organizationId))
}
