import { LRUCache } from 'lru-cache'
import { and, getTableColumns, isNull, lt, or, sql, type SQL } from 'drizzle-orm'
import type { Plan } from '../../../schemas/organizations.ts'
import type { Ability } from '../../../schemas/scopes.ts'
import type { Role } from '../../../schemas/users.ts'
import { STATEMENT_TIME } from '../../db/columns.ts'
import { authenticatedColumns, fromJson, type AuthenticatedRow } from '../../db/rows/authenticated.ts'
import type { Caller } from '../../db/rows/caller.ts'
import { joined } from '../../db/rows/joined.ts'
import { matching } from '../../db/rows/query.ts'
import {
  authenticTeamRoles, rolesInTeams, teamRoles, type TeamQuery, type TeamRoleFound
} from '../../db/callers/memberships.ts'
import {
  authorityOf, isAuthentic, isOneOfOrganization, lookUp, preparedSql, type Authenticated, type Db
} from '../../db/database.ts'
import { CLOCK } from '../../db/events.ts'
import { andOwn, type OfOrganization } from '../../db/postgres/engine.ts'
import { batchLoad, groupByQuery } from '../../db/postgres/batch-load.ts'
import {
  api_tokens, counterColumns, members, oauth_clients, oauth_grants, organization_counters, organizationColumns,
  organization_restores, organizations, plans, users, workload_rules
} from '../../db/tables.ts'
import { effectiveScopes, isOfFactor, type Powers, type TeamPowers } from '../../rules/roles.ts'
import type { Slice } from '../../rules/slices.ts'

/** The organization of a request, as authorization loads it. */
export type Organization = Pick<typeof organizations.$inferSelect, keyof typeof organizationColumns> &
  Pick<typeof organization_counters.$inferSelect, keyof typeof counterColumns> & { plan: Plan }

/** A person, and the OAuth grant that authorized the request or the creation of the API token. */
export interface Person { user_id: number, grant_id: number | null, has_second_factor: boolean }

/**
 * The authorized caller in an organization: an API token, a member who uses an application, or a workload by its rule.
 * The token of a person has at most the powers that the person has now.
 */
export interface Principal extends Powers {
  type: 'api_token' | 'user' | 'workload'
  id: number
  name: string
  /** The name of the application with which a user signed in. */
  application?: string
  /** The roles in teams that the query requested (`TeamQuery`). */
  teams: TeamPowers
  /** Restrictions of the token; empty if the token is for the whole organization. */
  slices: readonly Slice[]
  expires_at: Date | null
  /** Names the rows of the caller that every change checks under the lock of the organization. */
  caller: Caller
  /** The person for whom an application acts, or who owns the token; null for a token without an owner. */
  person: Person | null
  organization: Organization
}

// The value of a query as a hash, and the parts of a statement that also find a token by its former value, during the
// overlap after a rotation.
const HASH = sql`decode(queries.hash, 'hex')`
const BY_FORMER_VALUE = {
  hash: sql`coalesce((
      SELECT t.token_hash FROM former_token_hashes f
      JOIN api_tokens t ON t.organization_id = f.organization_id AND t.id = f.token_id
      WHERE f.organization_id = queries.organization_id AND f.token_hash = ${HASH}
        AND f.expires_at > ${STATEMENT_TIME}${andOwn(sql`f.organization_id`)}
    ), ${HASH})`,
  former: sql`CASE WHEN api_tokens.token_hash <> ${HASH} THEN (
      SELECT to_jsonb(f) FROM former_token_hashes f WHERE f.organization_id = api_tokens.organization_id
        AND f.token_hash = ${HASH}${andOwn(sql`f.organization_id`)}) END`
}

const TOKEN = joined('api_tokens', authenticatedColumns('api_tokens'))
const ORGANIZATION = joined('o', organizationColumns)
const COUNTER = joined('counter', counterColumns)
const PLAN = joined('p', getTableColumns(plans))

// Builds a statement that finds API tokens by their hashes. `former` is the row of a former value.
const tokens = (
  name: string,
  { hash, former, support, joins, isValid }: Record<'hash' | 'former' | 'support' | 'joins' | 'isValid', SQL>
) => preparedSql<TokenFound, OfOrganization & { queries: string }>(name, ($) => sql`
  SELECT queries.query_index, ${TOKEN.selected}, ${ORGANIZATION.selected}, ${COUNTER.selected}, ${PLAN.selected},
    ${support} AS support, ${former} AS former
  FROM jsonb_to_recordset(${$('queries')}::jsonb)
    AS queries (query_index int, organization_id char(26), hash text, project varchar, anywhere boolean)
  CROSS JOIN ${lookUp('api_tokens', api_tokens, sql`organization_id = queries.organization_id AND token_hash = ${hash}`)}
  CROSS JOIN ${lookUp('o', organizations, sql`id = api_tokens.organization_id`)}
  CROSS JOIN ${lookUp('counter', organization_counters, sql`organization_id = api_tokens.organization_id`)}
  CROSS JOIN ${lookUp('p', plans, sql`name = counter.plan`)}
  ${joins}
  WHERE (api_tokens.expires_at IS NULL OR api_tokens.expires_at > ${STATEMENT_TIME}) AND ${isValid}`)

// Finds tokens with the owner's user, membership and grant. For a token without an owner, these joins cost nothing on
// PostgreSQL, because their keys are null.
const principalsByHash = tokens('principals_by_hash', {
  ...BY_FORMER_VALUE,
  support: sql`CASE WHEN api_tokens.user_id IS NOT NULL OR api_tokens.grant_id IS NOT NULL
      THEN jsonb_build_object('users', to_jsonb(u), 'oauth_grants', to_jsonb(g), 'oauth_clients', to_jsonb(c),
        'members', to_jsonb(m),
        'in_project', CASE WHEN queries.project IS NOT NULL THEN ${teamRoles(sql`m`, sql`slug = queries.project`)} END,
        'anywhere', CASE WHEN queries.anywhere THEN ${rolesInTeams(sql`m`)} END) END`,
  joins: sql`LEFT JOIN ${lookUp('u', users, sql`id = api_tokens.user_id`)} ON true
  LEFT JOIN ${lookUp('m', members,
    sql`organization_id = api_tokens.organization_id AND user_id = api_tokens.user_id`)} ON true
  LEFT JOIN ${lookUp('g', oauth_grants, sql`id = api_tokens.grant_id`)} ON true
  LEFT JOIN ${lookUp('c', oauth_clients, sql`id = g.client_id`)} ON true`,
  isValid: sql`u.disabled_at IS NULL AND c.disabled_at IS NULL AND g.revoked_at IS NULL
    AND (api_tokens.grant_id IS NULL OR g.expires_at > ${STATEMENT_TIME})`
})

// Finds only tokens without an owner, by their current values. The other statement takes more than twice the time of
// PostgreSQL, because it prepares joins that these tokens do not need; Citus also plans it again at each execution.
const principalsWithoutOwner = tokens('principals_without_owner', {
  hash: HASH,
  former: sql`NULL::jsonb`,
  support: sql`NULL::jsonb`,
  joins: sql``,
  isValid: sql`api_tokens.user_id IS NULL AND api_tokens.grant_id IS NULL`
})

interface TokenFound extends Readonly<Record<string, unknown>> {
  query_index: number
  support: Support | null
  former: Record<string, unknown> | null
}

type Support = Record<'users' | 'oauth_grants' | 'oauth_clients' | 'members', Record<string, unknown> | null> & {
  in_project: TeamRoleFound[] | null
  anywhere: Role[] | null
}

/** Hashes of tokens that the short statement did not find: those of persons, and former values. */
const needsJoins = new LRUCache<string, true>({ max: 10_000 })

async function findTokens (db: Db, batch: readonly TokenQuery[], organization_id: string): Promise<TokenFound[][]> {
  const numbered = batch.map(({ organizationId: organization_id, hash, teams }, query_index) =>
    ({ query_index, organization_id, hash: hash.toString('hex'), ...teams }))
  const find = async (statement: typeof principalsByHash, queries: typeof numbered) =>
    queries.length === 0 ? [] : statement(db, { organization_id, queries: JSON.stringify(queries) })
  const first = await find(principalsWithoutOwner, numbered.filter(({ hash }) => !needsJoins.has(hash)))
  const left = numbered.filter(({ query_index }) => !first.some((row) => row.query_index === query_index))
  const others = await find(principalsByHash, left)
  for (const { query_index } of others) needsJoins.set(numbered[query_index]!.hash, true)
  return groupByQuery([...first, ...others], batch.length)
}

const findPrincipals = batchLoad({
  keyOf: ({ hash, teams: { project, anywhere } }: TokenQuery) =>
    hash.toString('latin1') + (project === undefined ? anywhere ? '*' : '' : `/${project}`),
  organizationOf: ({ organizationId }) => organizationId,
  find: findTokens,
  read: (db, [row]) => row && principalOf(db, row)
})

/** The key of an API token: the id of the organization in the token, and the SHA-256 hash of the token. */
export interface TokenKey { organizationId: string, hash: Buffer }

interface TokenQuery extends TokenKey { teams: TeamQuery }

/** The principal of an API token that is valid by the database's clock. Not cached: a revocation applies at once. */
export async function findPrincipal (db: Db, token: TokenKey, teams: TeamQuery = {}): Promise<Principal | undefined> {
  return findPrincipals(db, { ...token, teams })
}

/** The principals of an organization's API tokens with these ids. Omits tokens that are not valid now. */
export async function listPrincipals (db: Db, organizationId: string, ids: readonly number[]): Promise<Principal[]> {
  if (ids.length === 0) return []
  const tokens = await db.select({ hash: api_tokens.token_hash }).from(api_tokens)
    .where(isOneOfOrganization(api_tokens, organizationId, ids))
  const found = await findTokens(db, tokens.map(({ hash }) => ({ organizationId, hash, teams: {} })), organizationId)
  return found.flatMap(([row]) => (row && principalOf(db, row)) ?? [])
}

function principalOf (db: Db, row: TokenFound): Principal | undefined {
  const token = TOKEN.read(row)!
  const { id, name, slices, expires_at, user_id, grant_id } = token
  const former = fromJson('former_token_hashes', row.former)
  if (former !== null && (former.token_id !== id || !isAuthentic(db, 'former_token_hashes', former))) return undefined
  if (!isAuthentic(db, 'api_tokens', token)) return undefined
  if (row.support !== null && !isSupported(db, row.support, token)) return undefined
  return {
    type: 'api_token',
    id,
    name,
    ...powersOf(db, row.support, token, {
      api_token: id,
      hash: (former ?? token).token_hash.toString('hex'),
      ...(slices?.some(({ inherited }) => inherited) && { slices })
    }),
    slices: slices ?? [],
    expires_at,
    person: user_id === null
      ? null
      : { user_id, grant_id, has_second_factor: row.support?.users?.second_factor_id != null },
    organization: organizationIn(row)
  }
}

const organizationIn = (row: Readonly<Record<string, unknown>>): Organization =>
  ({ ...ORGANIZATION.read(row)!, ...COUNTER.read(row)!, plan: PLAN.read(row)! })

type Owned = Pick<Authenticated<'api_tokens'>, 'organization_id' | 'user_id' | 'grant_id'>

// A token without an owner has its own abilities. A person's token has only those abilities that the person has, too.
// It has `*` only if `*` was granted, and only if the grant is newer than the person's second factor (`isOfFactor`).
function powersOf (
  db: Db, support: Support | null,
  { organization_id, user_id, grant_id, abilities: granted }: Owned & { abilities: Ability[] },
  caller: Extract<Caller, { api_token: number }>
): Powers & Pick<Principal, 'caller' | 'teams'> {
  if (support === null || user_id === null) {
    return { scopes: new Set(granted), granted, teams: { inProject: [], anywhere: [] }, caller }
  }
  const { role } = fromJson('members', support.members)!
  const { second_factor_id } = fromJson('users', support.users)!
  const isAll = granted.includes('*') && isOfFactor(grant_id, second_factor_id)
  return {
    scopes: effectiveScopes(granted, role, isAll),
    granted,
    teams: {
      inProject: authenticTeamRoles(db, { organization_id, user_id }, support.in_project),
      anywhere: support.anywhere ?? []
    },
    caller: { ...caller, user_id, role }
  }
}

// A token with an owner is valid only while the user, the membership, the grant and the client are valid and have valid
// MACs.
function isSupported (db: Db, support: Support, { organization_id, user_id, grant_id }: Owned): boolean {
  const about = { organization_id }
  const user = fromJson('users', support.users)
  const grant = fromJson('oauth_grants', support.oauth_grants)
  const client = fromJson('oauth_clients', support.oauth_clients)
  const member = fromJson('members', support.members)
  if (user_id !== null && (user === null || !isAuthentic(db, 'users', user, about))) return false
  if (user_id !== null && (member?.status !== 'active' || !isAuthentic(db, 'members', member))) return false
  if (grant_id !== null &&
    (grant === null || grant.user_id !== user_id || !isAuthentic(db, 'oauth_grants', grant, about))) {
    return false
  }
  return grant === null || (client !== null && isAuthentic(db, 'oauth_clients', client, about))
}

const RULE = joined('rule', authenticatedColumns('workload_rules'))

const rulesById = preparedSql<RuleFound, OfOrganization & { queries: string }>('workload_rules_by_id', ($) => sql`
  SELECT queries.query_index, ${RULE.selected}, ${ORGANIZATION.selected}, ${COUNTER.selected}, ${PLAN.selected},
    r.restored_at, ${CLOCK} AS clock
  FROM jsonb_to_recordset(${$('queries')}::jsonb) AS queries (query_index int, organization_id char(26), id bigint)
  CROSS JOIN ${lookUp('rule', workload_rules, sql`organization_id = queries.organization_id AND id = queries.id`)}
  CROSS JOIN ${lookUp('o', organizations, sql`id = rule.organization_id`)}
  CROSS JOIN ${lookUp('counter', organization_counters, sql`organization_id = rule.organization_id`)}
  CROSS JOIN ${lookUp('p', plans, sql`name = counter.plan`)}
  LEFT JOIN ${lookUp('r', organization_restores, sql`organization_id = rule.organization_id`)} ON true`)

interface RuleFound extends Readonly<Record<string, unknown>> {
  query_index: number
  restored_at: string | null
  clock: number
}

interface RuleKey { organizationId: string, id: number }

/** A rule of workloads in an active organization. */
export interface ActiveRule {
  rule: AuthenticatedRow<'workload_rules'>
  organization: Organization
  /** When the database was restored from a backup. */
  restoredAt: Date | null
  /** The time of the database. */
  now: Date
}

/** A rule, also if it is disabled. Undefined if it has a wrong MAC, or if its organization is not active. */
export const findActiveRule = batchLoad({
  keyOf: ({ organizationId, id }: RuleKey) => `${organizationId} ${id}`,
  organizationOf: ({ organizationId }) => organizationId,
  async find (db, batch: RuleKey[], organization_id) {
    const queries = batch.map(({ organizationId: organization_id, id }, query_index) =>
      ({ query_index, organization_id, id }))
    const rows = await rulesById(db, { organization_id, queries: JSON.stringify(queries) })
    return groupByQuery(rows, batch.length)
  },
  read (db, [row]): ActiveRule | undefined {
    const rule = row && RULE.read(row)
    if (row === undefined || rule == null || !isAuthentic(db, 'workload_rules', rule)) return undefined
    const organization = organizationIn(row)
    if (organization.status !== 'active') return undefined
    const restoredAt = row.restored_at === null ? null : new Date(row.restored_at)
    return { rule, organization, restoredAt, now: new Date(row.clock) }
  }
})

/** The content of a workload's token. `scopes` are indexes in the scopes of this revision of the rule; null: all. */
export interface WorkloadToken extends RuleKey { revision: number, ends: Date, scopes: readonly number[] | null }

/** Makes the token of a workload. It also names the subject and the run, by digests. */
export function makeWorkloadToken (
  db: Db, { organizationId, id, revision, ends, scopes }: WorkloadToken, digests: readonly (string | null)[]
): string {
  return authorityOf(db).sealToken(organizationId, JSON.stringify([id, revision, ends.getTime(), scopes, ...digests]))
}

/** Reads a workload's token, without a look at its rule; undefined for other texts. */
export function readWorkloadToken (db: Db, token: string): WorkloadToken | undefined {
  const opened = authorityOf(db).openToken(token)
  if (opened === undefined) return undefined
  const [id, revision, ends, scopes] = JSON.parse(opened.content) as [number, number, number, number[] | null]
  return { organizationId: opened.organizationId, id, revision, ends: new Date(ends), scopes }
}

/** The principal of a workload's token: valid until its end, while the rule is enabled and has the same revision. */
export async function findWorkloadPrincipal (
  db: Db, { organizationId, id, revision, ends, scopes }: WorkloadToken
): Promise<Principal | undefined> {
  const found = await findActiveRule(db, { organizationId, id })
  if (found === undefined) return undefined
  const { rule, organization, now } = found
  if (!rule.enabled || rule.revision !== revision || ends <= now) return undefined
  const granted = scopes === null ? rule.scopes : scopes.map((index) => rule.scopes[index]!)
  return {
    type: 'workload',
    id,
    name: rule.name,
    scopes: new Set(granted),
    granted,
    teams: { inProject: [], anywhere: [] },
    slices: rule.slices ?? [],
    expires_at: ends,
    caller: { workload: id, revision, ends: ends.toISOString() },
    person: null,
    organization
  }
}

/** The names of rules by id. Omits deleted rules, and rows with a wrong MAC. */
export async function findRuleNames (
  db: Db, organizationId: string, ids: readonly number[]
): Promise<Map<number, string>> {
  if (ids.length === 0) return new Map()
  const rows = await db.select(authenticatedColumns('workload_rules')).from(workload_rules)
    .where(isOneOfOrganization(workload_rules, organizationId, ids))
  return new Map(rows.filter((row) => isAuthentic(db, 'workload_rules', row)).map(({ id, name }) => [id, name]))
}

/** Records the last use of a token, with a resolution of one minute. */
export async function updateTokenUse (db: Db, { id, organization }: Principal): Promise<void> {
  await db.update(api_tokens).set({ last_used_at: sql`now()` })
    .where(and(
      matching(api_tokens, { organization_id: organization.id, id }),
      or(isNull(api_tokens.last_used_at), lt(api_tokens.last_used_at, sql`now() - interval '1 minute'`))
    ))
}
