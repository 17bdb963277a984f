import type { FastifyRequest } from 'fastify'
import type { Role } from '../../../schemas/users.ts'
import type { Db } from '../../db/database.ts'
import type { Counter } from '../../db/rows/counter.ts'
import { findFull, type Counted } from '../../repositories/billing/plans.ts'
import type { Principal } from '../../repositories/people/principals.ts'
import { fail } from '../../rules/api-error.ts'
import { holdsRole } from '../../rules/roles.ts'

/**
 * Ends a request without `"confirmed": true` with 422 `confirmation_required`. Use this as a `preValidation` hook,
 * because the validation of the schema fails with `validation_failed`. Ignores bodies that are not objects.
 */
export async function requireConfirmation ({ body }: FastifyRequest) {
  const isObject = typeof body === 'object' && body !== null && !Array.isArray(body)
  if (body === undefined || (isObject && (body as { confirmed?: unknown }).confirmed !== true)) {
    fail('confirmation_required')
  }
}

/** Ends the request with 422 `role_not_held` unless the caller has every permission of the role. */
export function requireRole (principal: Principal, role: Role) {
  if (!holdsRole(principal, role)) fail('role_not_held', { role })
}

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
