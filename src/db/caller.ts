import { sql, type SQL } from 'drizzle-orm'
import type { Role } from '../../schemas/users.ts'
import type { Db } from './handle.ts'

/** A team's hold on a project, which gave somebody a role in it. */
export interface HeldByTeam { team_id: string, project_id: string, role: Role }

/**
 * What a request was let in by: an API token by the value with this hash, in hex, that of a person with the person's
 * role; or an access token of a member with this role. Whoever needed more than that role gives was let in by teams,
 * too.
 */
export type Caller = ({ api_token: number, hash: string, user_id?: number, role?: Role } |
  { access_token: number, user_id: number, role: Role }) & { teams?: readonly HeldByTeam[] }

/** What becomes of rows that somebody else holds: they are waited for, or count as not there. */
export type Held = '' | 'SKIP LOCKED'

/** The caller of a change was revoked, expired or lost its role before the change could commit: nothing was changed. */
export class CallerEnded extends Error {
  override readonly name = 'CallerEnded'

  constructor () {
    super('the caller has ended')
  }
}

/** Callers as the parameter of `callerCtes`, each once; null needs none. */
export function callersJson (
  callers: readonly Readonly<{ organization_id: string, caller: Caller | null }>[]
): string {
  const distinct = new Set(callers.flatMap(({ organization_id, caller }) =>
    caller === null ? [] : [JSON.stringify({ organization_id, ...caller })]))
  return `[${[...distinct].map((caller, n) => `{"n":${n},${caller.slice(1)}`).join()}]`
}

/**
 * Common table expressions that take the rows which let callers in, until the end of the transaction: whoever revokes
 * waits for what is under way, and what comes after finds nothing. Closing an account or shutting a client out revokes
 * its grants, so the grant speaks for both, also for an API token that was made through it. They are taken in the one
 * order that there is (0029): the membership, the grant, and then what was issued, because whoever ends one of these
 * takes it first, and then what hangs on it. The last of them, `caller_ended`, has the `organization_id` of each caller
 * that was not found, or whose organization was deleted.
 *
 * @param callers as `callersJson` makes them
 * @param held with `SKIP LOCKED`, who is being changed is waited for no more than who is gone, and counts as gone
 */
export const callerCtes = (callers: unknown, held: Held = ''): SQL => sql`
  caller AS (
    SELECT n, organization_id, api_token, decode(hash, 'hex') AS hash, access_token, user_id, role, teams
    FROM jsonb_to_recordset(${callers}::jsonb) AS caller (n int, organization_id char(26), api_token bigint, hash text,
      access_token bigint, user_id bigint, role varchar, teams jsonb)
  ), member_caller AS (
    SELECT caller.n FROM caller CROSS JOIN LATERAL (
      SELECT m.user_id FROM members m
      WHERE m.organization_id = caller.organization_id AND m.user_id = caller.user_id
        AND m.status = 'active' AND m.role = caller.role AND caller.api_token IS NOT NULL
      FOR SHARE ${sql.raw(held)}
    ) AS found
  ), api_grant AS (
    SELECT found.id FROM (
      SELECT DISTINCT t.grant_id FROM caller
      JOIN api_tokens t ON t.organization_id = caller.organization_id AND t.id = caller.api_token
      WHERE caller.n IN (SELECT n FROM member_caller) AND t.grant_id IS NOT NULL
    ) AS its CROSS JOIN LATERAL (
      SELECT id FROM oauth_grants
      WHERE id = its.grant_id AND revoked_at IS NULL AND expires_at > now()
      FOR SHARE ${sql.raw(held)}
    ) AS found
  ), api_token AS (
    SELECT caller.n, caller.organization_id, caller.hash, found.* FROM caller CROSS JOIN LATERAL (
      SELECT token_hash FROM api_tokens
      WHERE id = caller.api_token AND organization_id = caller.organization_id
        AND (expires_at IS NULL OR expires_at > now())
        AND (caller.user_id IS NULL OR caller.n IN (SELECT n FROM member_caller))
        AND (grant_id IS NULL OR grant_id IN (SELECT id FROM api_grant))
      FOR SHARE ${sql.raw(held)}
    ) AS found
  ), former_value AS (
    SELECT api_token.n FROM api_token CROSS JOIN LATERAL (
      SELECT token_hash FROM former_token_hashes
      WHERE organization_id = api_token.organization_id AND token_hash = api_token.hash AND expires_at > now()
      FOR SHARE ${sql.raw(held)}
    ) AS found WHERE api_token.token_hash <> api_token.hash
  ), api_caller AS (
    SELECT n FROM api_token WHERE token_hash = hash OR n IN (SELECT n FROM former_value)
  ), user_caller AS (
    SELECT caller.n FROM caller CROSS JOIN LATERAL (
      SELECT t.id FROM oauth_tokens t
      JOIN oauth_grants g ON g.id = t.grant_id
      JOIN members m ON m.user_id = g.user_id AND m.organization_id = caller.organization_id
      WHERE t.id = caller.access_token AND t.used_at IS NULL AND t.access_expires_at > now()
        AND g.revoked_at IS NULL AND g.expires_at > now() AND m.status = 'active' AND m.role = caller.role
      FOR SHARE OF m, g, t ${sql.raw(held)}
    ) AS found
  ), team_caller AS (
    SELECT caller.n FROM caller
    CROSS JOIN LATERAL jsonb_to_recordset(caller.teams) AS its (team_id char(26), project_id char(26), role varchar)
    CROSS JOIN LATERAL (
      SELECT tm.team_id FROM team_members tm
      JOIN team_projects tp ON tp.organization_id = tm.organization_id AND tp.team_id = tm.team_id
      WHERE tm.organization_id = caller.organization_id AND tm.team_id = its.team_id
        AND tm.user_id = caller.user_id AND tp.project_id = its.project_id AND tp.role = its.role
      FOR SHARE OF tm, tp ${sql.raw(held)}
    ) AS found
  ), caller_ended AS (
    SELECT organization_id FROM caller WHERE NOT (
      n IN (SELECT n FROM api_caller) OR n IN (SELECT n FROM user_caller)
    ) OR EXISTS (
      SELECT FROM organization_counters c WHERE c.organization_id = caller.organization_id AND c.is_closed
    ) OR (SELECT count(*) FROM team_caller WHERE team_caller.n = caller.n) <> coalesce(jsonb_array_length(teams), 0)
  )`

/**
 * Runs a statement with `callerCtes`, and once more where it finds a caller ended: it may have waited for a rotation of
 * the caller's token, and a statement does not see what was written after it began, as the value that lives on.
 */
export async function orAgain<T> (run: () => Promise<T>, isLive: (found: T) => boolean): Promise<T> {
  const found = await run()
  return isLive(found) ? found : run()
}

/**
 * Locks the access token of a change that is in no organization, with its grant, until the end of the transaction.
 * Throws CallerEnded when the token was revoked, used up or expired.
 */
export async function holdAccessToken (db: Db, id: number): Promise<void> {
  const rows = await db.execute(sql`
    SELECT t.id FROM oauth_tokens t JOIN oauth_grants g ON g.id = t.grant_id
    WHERE t.id = ${id}::bigint AND t.used_at IS NULL AND t.access_expires_at > now()
      AND g.revoked_at IS NULL AND g.expires_at > now()
    FOR SHARE OF g, t`) as unknown as object[]
  if (rows.length === 0) throw new CallerEnded()
}

/** True where no caller is needed, too. */
export const callersLive = sql`NOT EXISTS (SELECT FROM caller_ended)`
