import type { Role } from '../../../schemas/users.ts'
import type { Principal } from '../../repositories/people/principals.ts'
import { fail } from '../../rules/errors.ts'
import { holdsRole } from '../../rules/roles.ts'

/** Ends the request with 422 `role_not_held` unless the caller has every permission of the role. */
export function requireRole (principal: Principal, role: Role) {
  if (!holdsRole(principal, role)) fail('role_not_held', { role })
}
