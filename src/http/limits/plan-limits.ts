import type { Db } from '../../db/database.ts'
import { findFull, lockPlan, type Counted } from '../../repositories/billing/plans.ts'
import { fail } from '../../rules/errors.ts'

/**
 * Ends the request with 422 `plan_limit_reached` if the plan's limit is reached. Locks the organization until the end
 * of the transaction, so that concurrent requests cannot exceed the limit or change the plan.
 */
export async function requirePlanQuota (db: Db, organizationId: string, what: Counted): Promise<void> {
  const plan = await lockPlan(db, organizationId) ?? fail('not_found')
  const full = await findFull(db, organizationId, plan, what)
  if (full !== undefined) fail('plan_limit_reached', { ...full })
}
