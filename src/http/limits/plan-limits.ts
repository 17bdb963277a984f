import type { Db } from '../../db/database.ts'
import { findFull, lockPlan, type Counted } from '../../repositories/billing/plans.ts'
import { fail } from '../../rules/errors.ts'

/**
 * Ends the request with 422 `plan_limit_reached` where the plan of an organization has no room for one more. What has
 * room finds the organization held until the end of the transaction: nobody else takes the last place, and nobody
 * changes the plan.
 */
export async function requireRoom (db: Db, organizationId: string, what: Counted): Promise<void> {
  const plan = await lockPlan(db, organizationId) ?? fail('not_found')
  const full = await findFull(db, organizationId, plan, what)
  if (full !== undefined) fail('plan_limit_reached', { ...full })
}
