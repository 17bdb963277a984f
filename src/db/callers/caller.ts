import { sql, type SQL } from 'drizzle-orm'
import type { OrganizationStatus } from '../../../schemas/organizations.ts'
import type { Role } from '../../../schemas/users.ts'
import { STATEMENT_TIME } from '../columns.ts'
import type { Db } from '../postgres/handle.ts'
import { preparedSql, type Value } from '../postgres/prepared.ts'

export interface RoleThroughTeam { team_id: string, project_id: string, role: Role }

/**
 * The credential of a request: the id of an API token or access token. `hash` is the hash of the sent token, in hex.
 * `user_id` and `role` are those of the person, if any. `teams` are the roles from teams that authorized the request.
 */
export type Caller = ({ api_token: number, hash: string, user_id?: number, role?: Role } |
  { access_token: number, user_id: number, role: Role }) & { teams?: readonly RoleThroughTeam[] }

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

/** Another transaction has locked a needed row. The change is retried, since waiting would keep the counter locked. */
export class RowLocked extends Error {
  override readonly name = 'RowLocked'

  constructor () {
    super('a row that the change needs is locked')
  }
}

/** `live`: credential and role are valid. `locked`: another transaction has locked their rows and may revoke them. */
export type Verdict = 'live' | 'ended' | 'locked'

interface Parameters { callers: string }

const callersOf = ($: Value) => sql`caller AS (
    SELECT n, organization_id, api_token, decode(hash, 'hex') AS hash, access_token, user_id, role, teams
    FROM jsonb_to_recordset(${$('callers')}::jsonb) AS caller (n int, organization_id char(26), api_token bigint,
      hash text, access_token bigint, user_id bigint, role varchar, teams jsonb))`

const IS_ITS_TOKEN = sql`organization_id = caller.organization_id AND id = caller.api_token
        AND (expires_at IS NULL OR expires_at > ${STATEMENT_TIME})`

// The valid API tokens among the callers, each with its grant.
const apiTokens = sql`
    SELECT caller.n, t.grant_id, t.user_id FROM caller CROSS JOIN LATERAL (
      SELECT token_hash, grant_id, user_id FROM api_tokens WHERE ${IS_ITS_TOKEN} LIMIT 1
    ) AS t
    WHERE t.token_hash = caller.hash OR EXISTS (
      SELECT FROM former_token_hashes f
      WHERE f.organization_id = caller.organization_id AND f.token_hash = caller.hash
        AND f.token_id = caller.api_token AND f.expires_at > ${STATEMENT_TIME})`

const ownCallers = preparedSql<{ n: number, is_of_person: boolean }, Parameters>('own_callers', ($) => sql`
  WITH ${callersOf($)} SELECT its.n, its.grant_id IS NOT NULL OR its.user_id IS NOT NULL AS is_of_person
  FROM (${apiTokens}) AS its`)

// Transactions that revoke a grant, refresh a token or close an account lock the grant and then the token, but not the
// counter. Locks in the same order; SKIP LOCKED omits callers with such locked rows.
const personCallers = (name: string, lock: SQL) => preparedSql<{ n: number }, Parameters>(name, ($) => sql`
  WITH ${callersOf($)}, credential AS (${apiTokens}
    UNION ALL
    SELECT caller.n, t.grant_id, NULL::bigint FROM caller CROSS JOIN LATERAL (
      SELECT grant_id FROM oauth_tokens WHERE id = caller.access_token LIMIT 1
    ) AS t
  ), live_grant AS (
    SELECT g.id, g.user_id FROM (SELECT DISTINCT grant_id FROM credential WHERE grant_id IS NOT NULL) AS its
    CROSS JOIN LATERAL (
      SELECT id, user_id FROM oauth_grants
      WHERE id = its.grant_id AND revoked_at IS NULL AND expires_at > ${STATEMENT_TIME}
      LIMIT 1 ${lock}
    ) AS g
  ), granted AS (
    SELECT caller.* FROM caller JOIN credential ON credential.n = caller.n
    WHERE credential.grant_id IS NULL
      OR EXISTS (SELECT FROM live_grant g WHERE g.id = credential.grant_id AND g.user_id = caller.user_id)
  ), held AS (
    SELECT caller.n FROM granted AS caller CROSS JOIN LATERAL (
      SELECT FROM api_tokens WHERE ${IS_ITS_TOKEN} LIMIT 1 ${lock}
    ) AS t
    UNION ALL
    SELECT caller.n FROM granted AS caller CROSS JOIN LATERAL (
      SELECT FROM oauth_tokens
      WHERE id = caller.access_token AND used_at IS NULL AND access_expires_at > ${STATEMENT_TIME}
      LIMIT 1 ${lock}
    ) AS t
  )
  SELECT caller.n FROM caller JOIN held ON held.n = caller.n
  WHERE EXISTS (
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

const lockPersonCallers = personCallers('person_callers', sql`FOR SHARE SKIP LOCKED`)
const readPersonCallers = personCallers('persons_read', sql``)

/**
 * Validates the callers of changes whose counters are locked, and locks each person's token and grant until the commit.
 * So a revocation commits before the validation or after the change. Null (operator or service) is always live.
 */
export async function validateCallers (db: Db, callers: readonly (CallerIn | null)[]): Promise<Verdict[]> {
  const keys = callers.map((caller) => JSON.stringify(caller))
  const distinct = [...new Map(callers.map((caller, i) => [keys[i]!, caller]))]
  const numbered = distinct.flatMap(([, caller], n) => caller === null ? [] : [{ n, ...caller }])
  const persons = numbered.filter(({ user_id }) => user_id !== undefined)
  const find = async <R>(statement: (db: Db, values: Parameters) => Promise<R[]>, some: typeof numbered) =>
    some.length === 0 ? [] : statement(db, { callers: JSON.stringify(some) })
  const [own, ofPersons] = await Promise.all([
    find(ownCallers, numbered.filter(({ user_id }) => user_id === undefined)), find(lockPersonCallers, persons)
  ])
  const live = new Set([...own.filter(({ is_of_person }) => !is_of_person), ...ofPersons].map(({ n }) => n))
  const others = await find(readPersonCallers, persons.filter(({ n }) => !live.has(n)))
  // API tokens that belonged to no person, until a person rotated them. The rows of that person are not locked.
  const taken = own.filter(({ is_of_person }) => is_of_person)
  const locked = new Set([...others, ...taken].map(({ n }) => n))
  const verdicts = new Map(distinct.map(([key, caller], n): [string, Verdict] =>
    [key, caller === null || live.has(n) ? 'live' : locked.has(n) ? 'locked' : 'ended']))
  return keys.map((key) => verdicts.get(key)!)
}
