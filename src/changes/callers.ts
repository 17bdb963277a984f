import { sql, type SQL } from 'drizzle-orm'
import { STATEMENT_TIME } from '../db/columns.ts'
import { andOwn, engineOf, findByOrganization, perEngine, type OfOrganization } from '../db/postgres/engine.ts'
import type { Db } from '../db/postgres/handle.ts'
import { preparedSql, type Value } from '../db/postgres/prepared.ts'
import type { CallerIn } from '../db/rows/caller.ts'

/**
 * Another transaction has locked a row that the change needs. The change is retried, because a wait would keep the
 * organization's row in `organization_counters` locked, for which other changes wait.
 */
export class RowLocked extends Error {
  override readonly name = 'RowLocked'

  constructor () {
    super('a row that the change needs is locked')
  }
}

/** `live`: credential and role are valid. `locked`: another transaction has locked their rows and may revoke them. */
export type Verdict = 'live' | 'ended' | 'locked'

interface Parameters extends OfOrganization { callers: string }

const callersOf = ($: Value) => sql`caller AS (
    SELECT n, organization_id, api_token, decode(hash, 'hex') AS hash, slices, access_token, user_id, role, teams
    FROM jsonb_to_recordset(${$('callers')}::jsonb) AS caller (n int, organization_id char(26), api_token bigint,
      hash text, slices jsonb, access_token bigint, user_id bigint, role varchar, teams jsonb))`

// Compares the expiry with the start of the statement, because the transaction may have begun before the expiry.
const IS_TOKEN_OF_CALLER = sql`organization_id = caller.organization_id AND id = caller.api_token
        AND (expires_at IS NULL OR expires_at > ${STATEMENT_TIME})${andOwn(sql`organization_id`)}`

// The valid API tokens among the callers, each with its grant. The restrictions of a token change only under the lock
// of the organization.
const apiTokens = sql`
    SELECT caller.n, t.grant_id, t.user_id FROM caller CROSS JOIN LATERAL (
      SELECT token_hash, grant_id, user_id, slices FROM api_tokens WHERE ${IS_TOKEN_OF_CALLER} LIMIT 1
    ) AS t
    WHERE (caller.slices IS NULL OR t.slices = caller.slices) AND (t.token_hash = caller.hash OR EXISTS (
      SELECT FROM former_token_hashes f
      WHERE f.organization_id = caller.organization_id AND f.token_hash = caller.hash
        AND f.token_id = caller.api_token AND f.expires_at > ${STATEMENT_TIME}${andOwn(sql`f.organization_id`)}))`

// Whether a caller still has the membership and the team roles by which the request was authorized, with the same
// restrictions.
const IS_MEMBER = sql`EXISTS (
      SELECT FROM members m
      WHERE m.organization_id = caller.organization_id AND m.user_id = caller.user_id
        AND m.status = 'active' AND m.role = caller.role${andOwn(sql`m.organization_id`)})
    AND (SELECT count(*)
      FROM jsonb_to_recordset(caller.teams) AS needed (team_id char(26), project_id char(26), role varchar,
        slices jsonb)
      JOIN team_members tm ON tm.organization_id = caller.organization_id AND tm.team_id = needed.team_id
        AND tm.user_id = caller.user_id${andOwn(sql`tm.organization_id`)}
      JOIN team_projects tp ON tp.organization_id = tm.organization_id AND tp.team_id = tm.team_id
        AND tp.project_id = needed.project_id AND tp.role = needed.role AND tp.slices IS NOT DISTINCT FROM needed.slices${
          andOwn(sql`tp.organization_id`)}
    ) = coalesce(jsonb_array_length(caller.teams), 0)`

const ownCallers = preparedSql<{ n: number, is_of_person: boolean }, Parameters>('own_callers', ($) => sql`
  WITH ${callersOf($)} SELECT token.n, token.grant_id IS NOT NULL OR token.user_id IS NOT NULL AS is_of_person
  FROM (${apiTokens}) AS token`)

// The rule of a workload changes only under the lock of the organization, so no row is locked here.
const workloadCallers = preparedSql<{ n: number }, Parameters>('workload_callers', ($) => sql`
  SELECT caller.n
  FROM jsonb_to_recordset(${$('callers')}::jsonb) AS caller (n int, organization_id char(26), workload bigint,
    revision bigint, ends timestamptz)
  CROSS JOIN LATERAL (
    SELECT FROM workload_rules WHERE organization_id = caller.organization_id AND id = caller.workload
      AND revision = caller.revision${andOwn(sql`organization_id`)} LIMIT 1
  ) AS rule
  WHERE caller.ends > ${STATEMENT_TIME}`)

// Transactions that revoke a grant, refresh a token or close an account lock the grant and then the token, but no row
// in `organization_counters`. The statements below lock in the same order. SKIP LOCKED omits callers with locked rows.
const LOCK = sql`FOR SHARE SKIP LOCKED`

const liveGrant = (id: SQL, lock: SQL) => sql`LATERAL (
      SELECT id, user_id FROM oauth_grants WHERE id = ${id} AND revoked_at IS NULL AND expires_at > ${STATEMENT_TIME}
      LIMIT 1 ${lock}
    ) AS g`

const tokenCallers = (name: string, lock: SQL) => preparedSql<{ n: number }, Parameters>(name, ($) => sql`
  WITH ${callersOf($)}, credential AS (${apiTokens}), live_grant AS (
    SELECT g.id, g.user_id FROM (SELECT DISTINCT grant_id FROM credential WHERE grant_id IS NOT NULL) AS named
    CROSS JOIN ${liveGrant(sql`named.grant_id`, lock)}
  ), granted AS (
    SELECT caller.* FROM caller JOIN credential ON credential.n = caller.n
    WHERE credential.grant_id IS NULL
      OR EXISTS (SELECT FROM live_grant g WHERE g.id = credential.grant_id AND g.user_id = caller.user_id)
  ), locked AS (
    SELECT caller.n FROM granted AS caller CROSS JOIN LATERAL (
      SELECT FROM api_tokens WHERE ${IS_TOKEN_OF_CALLER} LIMIT 1 ${lock}
    ) AS t
  )
  SELECT caller.n FROM caller JOIN locked ON locked.n = caller.n WHERE ${IS_MEMBER}`)

// On Citus, access tokens and memberships are on different nodes, so `memberCallers` checks the memberships.
const accessCallers = (name: string, lock: SQL) => preparedSql<{ n: number }, Parameters>(name, ($) => sql`
  WITH ${callersOf($)}, granted AS (
    SELECT caller.* FROM caller JOIN oauth_tokens t ON t.id = caller.access_token
    CROSS JOIN ${liveGrant(sql`t.grant_id`, lock)} WHERE g.user_id = caller.user_id
  )
  SELECT caller.n FROM granted AS caller CROSS JOIN LATERAL (
    SELECT FROM oauth_tokens
    WHERE id = caller.access_token AND used_at IS NULL AND access_expires_at > ${STATEMENT_TIME}
    LIMIT 1 ${lock}
  ) AS t WHERE ${perEngine({ postgres: IS_MEMBER, citus: sql`true` })}`)
const memberCallers = preparedSql<{ n: number }, Parameters>('member_callers', ($) => sql`
  WITH ${callersOf($)} SELECT caller.n FROM caller WHERE ${IS_MEMBER}`)

const PERSONS = {
  locked: { token: tokenCallers('token_callers', LOCK), access: accessCallers('access_callers', LOCK) },
  read: { token: tokenCallers('token_callers_read', sql``), access: accessCallers('access_callers_read', sql``) }
}

/**
 * Validates the callers of changes, after the rows in `organization_counters` were locked. Locks each person's token
 * and grant until the commit. So a revocation commits before the validation or after the change. A null caller
 * (operator or service) is always live.
 */
export async function lockCallers (db: Db, callers: readonly (CallerIn | null)[]): Promise<Verdict[]> {
  const keys = callers.map((caller) => JSON.stringify(caller))
  const distinct = [...new Map(callers.map((caller, i) => [keys[i]!, caller]))]
  const numbered = distinct.flatMap(([, caller], n) => caller === null ? [] : [{ n, ...caller }])
  const persons = numbered.filter(({ user_id }) => user_id !== undefined)
  const find = async <R>(statement: (db: Db, values: Parameters) => Promise<R[]>, some: typeof numbered) =>
    findByOrganization(db, some, (organization_id, callers) => statement(db, { organization_id, callers }))
  const findPersons = async ({ token, access }: typeof PERSONS[keyof typeof PERSONS], some: typeof numbered) => {
    const withAccess = some.filter((caller) => 'access_token' in caller)
    const [ofTokens, ofAccess, memberships] = await Promise.all([
      find(token, some.filter((caller) => 'api_token' in caller)), find(access, withAccess),
      engineOf(db) === 'citus' ? find(memberCallers, withAccess) : undefined
    ])
    const areMembers = memberships && new Set(memberships.map(({ n }) => n))
    return [...ofTokens, ...ofAccess.filter(({ n }) => areMembers?.has(n) ?? true)]
  }
  const [ofOrganizations, ofPersons, ofWorkloads] = await Promise.all([
    find(ownCallers, numbered.filter((caller) => 'api_token' in caller && caller.user_id === undefined)),
    findPersons(PERSONS.locked, persons),
    find(workloadCallers, numbered.filter((caller) => 'workload' in caller))
  ])
  const live = new Set([
    ...ofOrganizations.filter(({ is_of_person }) => !is_of_person), ...ofPersons, ...ofWorkloads
  ].map(({ n }) => n))
  const others = await findPersons(PERSONS.read, persons.filter(({ n }) => !live.has(n)))
  // API tokens that belonged to no person when the request began. A person has rotated them since, and the rows of that
  // person are not locked.
  const taken = ofOrganizations.filter(({ is_of_person }) => is_of_person)
  const locked = new Set([...others, ...taken].map(({ n }) => n))
  const verdicts = new Map(distinct.map(([key, caller], n): [string, Verdict] =>
    [key, caller === null || live.has(n) ? 'live' : locked.has(n) ? 'locked' : 'ended']))
  return keys.map((key) => verdicts.get(key)!)
}
