import type { Plan } from '../../schemas/organizations.ts'
import { fail } from './errors.ts'

/**
 * Ends the request with 422 `plan_limit_reached` where an organization that stores so many bytes would store more than
 * its plan has room for. What makes it no larger is always allowed, however much is there.
 */
export function requireBytes ({ name, max_bytes }: Plan, stored: number, growth: number): void {
  if (growth <= 0 || max_bytes === null || stored + growth <= max_bytes) return
  fail('plan_limit_reached', { limit: max_bytes, used: stored, plan: name })
}
