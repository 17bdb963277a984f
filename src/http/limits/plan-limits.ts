import type { Counter } from '../../db/rows/counter.ts'
import type { Db } from '../../db/database.ts'
import { findFull, type Counted } from '../../repositories/billing/plans.ts'
import { fail } from '../../rules/errors.ts'

/**
 * Ends the request with 422 `plan_limit_reached` if the plan's limit is reached. The counter row is locked, so
 * that concurrent requests neither exceed the limit nor change the plan.
 */
export async function requirePlanQuota (
  db: Db, { organization_id, plan }: Counter, what: Counted
): Promise<void> {
  const full = await findFull(db, organization_id, plan, what)
  if (full !== undefined) fail('plan_limit_reached', { ...full })
}
