import { sql, type SQL } from 'drizzle-orm'
import type { Role } from '../../schemas/users.ts'

/** What a request was let in by: an API token, or an access token of a member with this role. */
export type Caller = { api_token: number } | { access_token: number, role: Role }

/** The caller of a change was revoked, expired or lost its role before the change could commit: nothing was changed. */
export class CallerEnded extends Error {
  override readonly name = 'CallerEnded'

  constructor () {
    super('the caller has ended')
  }
}

/** A caller as parameters of `callerCtes`. */
export function callerValues (caller: Caller | null) {
  return {
    api_token: caller !== null && 'api_token' in caller ? caller.api_token : null,
    access_token: caller !== null && 'access_token' in caller ? caller.access_token : null,
    role: caller !== null && 'role' in caller ? caller.role : null
  }
}

/** Parameters of `callerCtes`: values, or placeholders for them. */
type CallerParameters = Record<keyof ReturnType<typeof callerValues> | 'organization_id', unknown>

/**
 * Common table expressions that take the rows which let a caller in, until the end of the transaction: whoever revokes
 * waits for what is under way, and what comes after finds nothing. Closing an account or shutting a client out revokes
 * its grants, so the grant speaks for both, also for an API token that was made through it. `callerLives` says whether they were found.
 */
export const callerCtes = ({ organization_id, api_token, access_token, role }: CallerParameters): SQL => sql`
  api_caller AS (
    SELECT grant_id FROM api_tokens
    WHERE id = ${api_token}::bigint AND organization_id = ${organization_id}::char(26) AND (expires_at IS NULL OR expires_at > now())
    FOR SHARE
  ), api_grant AS (
    SELECT id FROM oauth_grants
    WHERE id = (SELECT grant_id FROM api_caller) AND revoked_at IS NULL AND expires_at > now()
    FOR SHARE
  ), user_caller AS (
    SELECT t.id FROM oauth_tokens t
    JOIN oauth_grants g ON g.id = t.grant_id
    JOIN members m ON m.user_id = g.user_id AND m.organization_id = ${organization_id}::char(26)
    WHERE t.id = ${access_token}::bigint AND t.used_at IS NULL AND t.access_expires_at > now()
      AND g.revoked_at IS NULL AND g.expires_at > now() AND m.status = 'active' AND m.role = ${role}::varchar
    FOR SHARE OF t, g, m
  )`

/** True for whoever needs no caller, too. */
export const callerLives = ({ api_token, access_token }: Omit<CallerParameters, 'organization_id' | 'role'>): SQL => sql`(
  (${api_token}::bigint IS NULL AND ${access_token}::bigint IS NULL)
  OR EXISTS (SELECT FROM api_caller WHERE grant_id IS NULL OR EXISTS (SELECT FROM api_grant)) OR EXISTS (SELECT FROM user_caller))`
