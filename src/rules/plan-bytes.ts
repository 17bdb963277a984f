import type { Plan } from '../../schemas/organizations.ts'
import { fail } from './errors.ts'

/**
 * Throws 422 `plan_limit_reached` if `growth` more bytes would exceed the plan's storage quota. Always allows changes
 * that do not grow the storage, even above the quota.
 */
export function requireBytes ({ name, max_bytes }: Plan, stored: number, growth: number): void {
  if (growth <= 0 || max_bytes === null || stored + growth <= max_bytes) return
  fail('plan_limit_reached', { limit: max_bytes, used: stored, plan: name })
}
