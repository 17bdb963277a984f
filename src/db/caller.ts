import { sql, type SQL } from 'drizzle-orm'
import type { Role } from '../../schemas/users.ts'
import type { Db } from './handle.ts'
import { preparedSql, type Value } from './prepared.ts'

/** A role in a project that a caller has through a team. */
export interface HeldByTeam { team_id: string, project_id: string, role: Role }

/**
 * The credential that a request was authorized by: an API token by the value with this hash, in hex, that of a person
 * with the person's role; or an access token of a member with this role. `teams` are the roles of teams that the
 * request needed beside that role.
 */
export type Caller = ({ api_token: number, hash: string, user_id?: number, role?: Role } |
  { access_token: number, user_id: number, role: Role }) & { teams?: readonly HeldByTeam[] }

/** A caller, and the organization that the request changes. */
export type CallerIn = Caller & { organization_id: string }

/** The caller of a change was revoked, expired or lost its role before the change could commit: nothing was changed. */
export class CallerEnded extends Error {
  override readonly name = 'CallerEnded'

  constructor () {
    super('the caller has ended')
  }
}

/**
 * A row that a change needs is locked by another transaction, for which the change does not wait while it holds the
 * counter. The change is rolled back and runs again a moment later.
 */
export class RowHeld extends Error {
  override readonly name = 'RowHeld'

  constructor () {
    super('a row that the change needs is locked')
  }
}

/** Whether a caller still has what the request was authorized by; `held` when a transaction under way may end that. */
export type Verdict = 'live' | 'ended' | 'held'

interface Parameters { callers: string }

const callersOf = ($: Value) => sql`caller AS (
    SELECT n, organization_id, api_token, decode(hash, 'hex') AS hash, access_token, user_id, role, teams
    FROM jsonb_to_recordset(${$('callers')}::jsonb) AS caller (n int, organization_id char(26), api_token bigint,
      hash text, access_token bigint, user_id bigint, role varchar, teams jsonb))`

// The API tokens among the callers that live, with the grants that they were made through.
const apiTokens = (lock: SQL) => sql`
    SELECT caller.n, t.grant_id FROM caller CROSS JOIN LATERAL (
      SELECT token_hash, grant_id FROM api_tokens
      WHERE organization_id = caller.organization_id AND id = caller.api_token
        AND (expires_at IS NULL OR expires_at > now())
      LIMIT 1 ${lock}
    ) AS t
    WHERE t.token_hash = caller.hash OR EXISTS (
      SELECT FROM former_token_hashes f
      WHERE f.organization_id = caller.organization_id AND f.token_hash = caller.hash
        AND f.token_id = caller.api_token AND f.expires_at > now())`

const ownCallers = preparedSql<{ n: number }, Parameters>('own_callers', ($) => sql`
  WITH ${callersOf($)} SELECT its.n FROM (${apiTokens(sql``)}) AS its`)

// Rows of a person are changed by transactions that do not hold the counter: revoking a grant, refreshing a token,
// closing an account. A row that such a transaction has locked is skipped.
const personCallers = (name: string, lock: SQL) => preparedSql<{ n: number }, Parameters>(name, ($) => sql`
  WITH ${callersOf($)}, credential AS (${apiTokens(lock)}
    UNION ALL
    SELECT caller.n, t.grant_id FROM caller CROSS JOIN LATERAL (
      SELECT grant_id FROM oauth_tokens
      WHERE id = caller.access_token AND used_at IS NULL AND access_expires_at > now()
      LIMIT 1 ${lock}
    ) AS t
  ), live_grant AS (
    SELECT g.id, g.user_id FROM (SELECT DISTINCT grant_id FROM credential WHERE grant_id IS NOT NULL) AS its
    CROSS JOIN LATERAL (
      SELECT id, user_id FROM oauth_grants
      WHERE id = its.grant_id AND revoked_at IS NULL AND expires_at > now()
      LIMIT 1 ${lock}
    ) AS g
  )
  SELECT caller.n FROM caller JOIN credential ON credential.n = caller.n
  WHERE (credential.grant_id IS NULL
      OR EXISTS (SELECT FROM live_grant g WHERE g.id = credential.grant_id AND g.user_id = caller.user_id))
    AND EXISTS (
      SELECT FROM members m
      WHERE m.organization_id = caller.organization_id AND m.user_id = caller.user_id
        AND m.status = 'active' AND m.role = caller.role)
    AND (SELECT count(*)
      FROM jsonb_to_recordset(caller.teams) AS its (team_id char(26), project_id char(26), role varchar)
      JOIN team_members tm ON tm.organization_id = caller.organization_id AND tm.team_id = its.team_id
        AND tm.user_id = caller.user_id
      JOIN team_projects tp ON tp.organization_id = tm.organization_id AND tp.team_id = tm.team_id
        AND tp.project_id = its.project_id AND tp.role = its.role
    ) = coalesce(jsonb_array_length(caller.teams), 0)`)

const PERSONS = {
  locked: personCallers('person_callers', sql`FOR SHARE SKIP LOCKED`), read: personCallers('persons_read', sql``)
}

/**
 * Judges callers, each in an organization whose counter the transaction has locked, and locks the rows of persons that
 * they rest on until the end of the transaction. So a revoked token or a changed role takes effect before the change or
 * after the commit, never during the change.
 */
export async function judgeCallers (
  db: Db, callers: readonly CallerIn[]
): Promise<Verdict[]> {
  const numbered = callers.map((caller, n) => ({ n, ...caller }))
  const own = numbered.filter(({ user_id }) => user_id === undefined)
  const ofPersons = numbered.filter(({ user_id }) => user_id !== undefined)
  const find = async (statement: typeof ownCallers, some: typeof numbered) => some.length === 0
    ? []
    : statement(db, { callers: JSON.stringify(some) })
  const found = await Promise.all([find(ownCallers, own), find(PERSONS.locked, ofPersons)])
  const live = new Set(found.flat().map(({ n }) => n))
  const rest = ofPersons.filter(({ n }) => !live.has(n))
  const held = new Set((await find(PERSONS.read, rest)).map(({ n }) => n))
  return numbered.map(({ n }) => live.has(n) ? 'live' : held.has(n) ? 'held' : 'ended')
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
