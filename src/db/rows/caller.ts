import type { OrganizationStatus } from '../../../schemas/organizations.ts'
import type { Role } from '../../../schemas/users.ts'
import type { StoredSlice } from '../tables.ts'

export interface RoleThroughTeam {
  team_id: string
  project_id: string
  role: Role
  slices: readonly StoredSlice[] | null
}

/**
 * The credential of a request: the id of an API token or access token. `hash` is the hash of the sent token, in hex.
 * `user_id` and `role` are those of the person, if any. `teams` are the roles from teams that authorized the request.
 * `slices` are the restrictions of an API token that has `inherited`, which can be removed; others are fixed. Of a
 * workload: the id and the revision of its rule, and the end of its token in ISO 8601.
 */
export type Caller = ({
  api_token: number, hash: string, user_id?: number, role?: Role, slices?: readonly StoredSlice[]
} |
  { access_token: number, user_id: number, role: Role } |
  { workload: number, revision: number, ends: string, user_id?: undefined, role?: undefined }) &
  { teams?: readonly RoleThroughTeam[] }

export type CallerIn = Caller & { organization_id: string }

/** The credential was revoked or expired, or the person lost the role, before the commit. Nothing was changed. */
export class CallerEnded extends Error {
  override readonly name = 'CallerEnded'

  constructor () {
    super('the credential was revoked or has expired')
  }
}

/** The organization was suspended, locked or cancelled before the commit. Nothing was changed. */
export class OrganizationInactive extends Error {
  override readonly name = 'OrganizationInactive'
  readonly status: OrganizationStatus

  constructor (status: OrganizationStatus) {
    super(`the organization is ${status}`)
    this.status = status
  }
}
