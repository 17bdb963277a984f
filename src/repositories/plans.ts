import { count, eq } from 'drizzle-orm'
import type { Plan } from '../../schemas/organizations.ts'
import type { Db } from '../db/database.ts'
import { members, organizations, plans, projects } from '../db/tables.ts'

/**
 * The plan of an organization, whose row is taken until the end of the transaction: of two who each would take what is
 * left, the second counts what the first made, and no plan comes between. No stronger than that: a write that holds the
 * counter may go on to refer to this row (its key is checked by `FOR KEY SHARE`), and whoever holds this row asks for
 * the counter last.
 */
export async function lockPlan (db: Db, organizationId: string): Promise<Plan | undefined> {
  const [row] = await db.select({ plan: plans }).from(organizations)
    .innerJoin(plans, eq(plans.name, organizations.plan))
    .where(eq(organizations.id, organizationId)).for('no key update', { of: organizations })
  return row?.plan
}

/** What plans limit by number. */
export type Counted = 'projects' | 'members'

const TABLES = { projects, members }

/** How many an organization has; of members, those that are invited are among them. */
export async function countOf (db: Db, organizationId: string, what: Counted): Promise<number> {
  const table = TABLES[what]
  const [row] = await db.select({ count: count() }).from(table).where(eq(table.organization_id, organizationId))
  return row!.count
}
