import { asc, eq, getTableColumns, sql } from 'drizzle-orm'
import type { Interval, PlanPrice } from '../../../schemas/billing.ts'
import type { Plan } from '../../../schemas/organizations.ts'
import type { Db } from '../../db/database.ts'
import { matching } from '../../db/rows/query.ts'
import { invitations, members, organization_counters, plan_prices, plans, projects } from '../../db/tables.ts'

const TABLES = { projects, members }

/** The resources for which plans have a limit. */
export type Counted = keyof typeof TABLES

/** The number of projects or members of an organization. Open invitations count as members. */
export async function countOf (db: Db, organizationId: string, what: Counted): Promise<number> {
  const table = TABLES[what]
  const invited = sql`(SELECT count(*) FROM ${invitations}
    WHERE ${invitations.organization_id} = ${organizationId} AND ${invitations.expires_at} > now())`
  const [row] = await db.select({ count: sql<number>`(count(*) + ${what === 'members' ? invited : 0})::int` })
    .from(table).where(eq(table.organization_id, organizationId))
  return row!.count
}

/** The plan's limit that `more` projects or members would exceed, if any. The caller has locked the plan. */
export async function findFull (
  db: Db, organizationId: string, plan: Plan, what: Counted, more = 1
): Promise<{ limit: number, used: number, plan: string } | undefined> {
  const limit = plan[`max_${what}`]
  if (limit === null) return undefined
  const used = await countOf(db, organizationId, what)
  return used + more <= limit ? undefined : { limit, used, plan: plan.name }
}

/** The stored bytes of an organization. Other writes can change the number unless the caller locks the counter row. */
export async function findStoredBytes (db: Db, organizationId: string): Promise<number> {
  const { stored_bytes } = organization_counters
  const [row] = await db.select({ stored_bytes }).from(organization_counters)
    .where(eq(organization_counters.organization_id, organizationId))
  return row!.stored_bytes
}

/** All plans with their prices, sorted by their limits. */
export async function listPlans (db: Db): Promise<(Plan & { prices: PlanPrice[] })[]> {
  const prices = sql<PlanPrice[]>`coalesce((
    SELECT jsonb_agg(jsonb_build_object('interval', p.interval, 'currency', p.currency, 'amount', p.amount)
      ORDER BY p.currency, p.interval)
    FROM plan_prices p WHERE p.plan = ${plans.name}), '[]'::jsonb)`
  return db.select({ ...getTableColumns(plans), prices }).from(plans)
    .orderBy(sql`${plans.max_projects} NULLS LAST`, sql`${plans.max_members} NULLS LAST`, asc(plans.name))
}

/** A plan with its price; undefined if the plan has no price for this interval and currency. */
export async function findOffer (
  db: Db, name: string, interval: Interval, currency: string
): Promise<{ plan: Plan, amount: number } | undefined> {
  const [row] = await db.select({ plan: plans, amount: plan_prices.amount }).from(plan_prices)
    .innerJoin(plans, eq(plans.name, plan_prices.plan))
    .where(matching(plan_prices, { plan: name, interval, currency }))
  return row
}

/** Changes the plan of an organization. Its limits apply from the commit on. The caller has locked the organization. */
export async function updatePlan (db: Db, organizationId: string, plan: string): Promise<void> {
  await db.update(organization_counters).set({ plan, updated_at: sql`now()` })
    .where(eq(organization_counters.organization_id, organizationId))
}

/** Sets the price of a plan, or deletes the price if `amount` is null. False if the plan or price does not exist. */
export async function updatePrice (
  db: Db, { plan, interval, currency, amount }: Omit<PlanPrice, 'amount'> & { plan: string, amount: number | null }
): Promise<boolean> {
  const its = matching(plan_prices, { plan, interval, currency })
  if (amount === null) return (await db.delete(plan_prices).where(its).returning({ plan: plan_prices.plan })).length > 0
  const [known] = await db.select({ name: plans.name }).from(plans).where(eq(plans.name, plan))
  if (known === undefined) return false
  await db.insert(plan_prices).values({ plan, interval, currency, amount })
    .onConflictDoUpdate({ target: [plan_prices.plan, plan_prices.interval, plan_prices.currency], set: { amount } })
  return true
}
