import { and, asc, desc, eq, gt, isNull, or, sql, type SQL } from 'drizzle-orm'
import type { PgColumn, PgSelect } from 'drizzle-orm/pg-core'
import { CONSOLE_CLIENT } from '../../../schemas/console.ts'
import type { Plan } from '../../../schemas/organizations.ts'
import type { Ability, Scope } from '../../../schemas/scopes.ts'
import { LIFETIMES, MAX_GRANTS } from '../../../schemas/oauth.ts'
import type { Role } from '../../../schemas/users.ts'
import { authenticatedColumns, fromJson, shownColumns, type AuthenticatedRow } from '../../db/rows/authenticated.ts'
import { USED } from '../../db/callers/console-tokens.ts'
import { CallerEnded } from '../../db/rows/caller.ts'
import { STATEMENT_TIME } from '../../db/columns.ts'
import { waitUnlessCounter } from '../../db/rows/counter.ts'
import { batchLoad, groupByQuery } from '../../db/postgres/batch-load.ts'
import {
  isAuthentic, isForeignKeyViolation, isOneOf, lookUp, macOf, prepared, preparedSql, readNow, updateAuthentic,
  type Authenticated, type Db
} from '../../db/database.ts'
import { deleteExpired, keepNewest, PIECE } from '../../db/callers/expired.ts'
import { lockGrantsTable, revokeGrants, revokeSomeGrants, type EndedTokens } from '../../db/callers/grants.ts'
import { engineOf, perEngine, withNow, type OfOrganization } from '../../db/postgres/engine.ts'
import { makeId } from '../../db/rows/ids.ts'
import { readerOf } from '../../db/rows/joined.ts'
import { authenticRow, matching } from '../../db/rows/query.ts'
import { authenticTeamRoles, rolesInTeams, teamRoles, type TeamQuery, type TeamRoleFound } from '../../db/callers/memberships.ts'
import {
  api_tokens, columnsOf, counterColumns, members, oauth_clients, oauth_codes, oauth_grants, oauth_requests,
  oauth_tokens, organization_counters, organizationColumns, organizations, plans, users
} from '../../db/tables.ts'
import { heldFrom, heldPage, type HeldPage } from '../../rules/pagination.ts'
import type { TeamPowers } from '../../rules/roles.ts'
import type { Organization } from './principals.ts'
import type { User } from './users.ts'

export type Client = AuthenticatedRow<'oauth_clients'>

const SECOND = 1000
const DAY = 24 * 60 * 60 * SECOND

/** An enabled client. Returns undefined for ids that are too long, and for ids that PostgreSQL rejects. */
export async function findClient (db: Db, id: string): Promise<Client | undefined> {
  if (id.length > 64 || id.includes('\0')) return undefined
  const [row] = await db.select(authenticatedColumns('oauth_clients')).from(oauth_clients)
    .where(and(eq(oauth_clients.id, id), isNull(oauth_clients.disabled_at)))
  return authenticRow(db, 'oauth_clients', row)
}

export async function listClients (db: Db): Promise<Client[]> {
  return db.select(authenticatedColumns('oauth_clients')).from(oauth_clients).orderBy(asc(oauth_clients.id)).limit(1000)
}

/** Returns false if another client has the id. */
export async function createClient (
  db: Db, client: { id: string, name: string, redirect_uris: string[] }
): Promise<boolean> {
  const row = { ...client, is_first_party: false, disabled_at: null }
  const made = await db.insert(oauth_clients).values({ ...row, mac: macOf(db, 'oauth_clients', row) })
    .onConflictDoNothing().returning({ id: oauth_clients.id })
  return made.length === 1
}

/** Disables or enables a client; false if the client does not exist. */
export async function setClientDisabled (db: Db, id: string, disabled: boolean): Promise<boolean> {
  const changed = await updateAuthentic(db, 'oauth_clients', eq(oauth_clients.id, id), (now) =>
    ({ disabled_at: disabled ? now : null }))
  return changed !== undefined
}

/** Revokes one batch of a client's grants. `revoked` is the number of revoked grants: 0 if no grants were left. */
export async function revokeGrantsOfClient (db: Db, id: string): Promise<{ revoked: number, ended: EndedTokens[] }> {
  return revokeSomeGrants(db, eq(oauth_grants.client_id, id))
}

// Pending authorization requests

export type PendingRequest = Pick<AuthenticatedRow<'oauth_requests'>,
  'client_id' | 'redirect_uri' | 'state' | 'code_challenge' | 'scopes'>

const MAX_REQUESTS = 20

/** Stores a request; false if the session has ended. Keeps the 20 newest, so the end of a session deletes few rows. */
export async function createRequest (
  db: Db, id_hash: Buffer, session_hash: Buffer, request: PendingRequest
): Promise<boolean> {
  await deleteExpired(db, oauth_requests.id_hash, sql`${oauth_requests.expires_at} < now()`)
  const row = { ...request, id_hash, session_hash, expires_at: new Date(await readNow(db) + 600 * SECOND) }
  try {
    await db.insert(oauth_requests).values({ ...row, mac: macOf(db, 'oauth_requests', row) })
  } catch (error) {
    if (isForeignKeyViolation(error)) return false
    throw error
  }
  await keepNewest(
    db, oauth_requests.id_hash, eq(oauth_requests.session_hash, session_hash),
    { by: oauth_requests.expires_at, most: MAX_REQUESTS }
  )
  return true
}

const pending = (id_hash: Buffer, session_hash: Buffer) =>
  and(matching(oauth_requests, { id_hash, session_hash }), gt(oauth_requests.expires_at, STATEMENT_TIME))

export async function findRequest (
  db: Db, id_hash: Buffer, session_hash: Buffer, userId: number
): Promise<PendingRequest | undefined> {
  const [row] = await db.select(authenticatedColumns('oauth_requests')).from(oauth_requests)
    .where(pending(id_hash, session_hash))
  return authenticRow(db, 'oauth_requests', row, { user_id: userId })
}

/** Deletes and returns a request of this session, so that of two concurrent decisions only the first takes effect. */
export async function takeRequest (
  db: Db, id_hash: Buffer, session_hash: Buffer, userId: number
): Promise<PendingRequest | undefined> {
  const [row] = await db.delete(oauth_requests).where(pending(id_hash, session_hash))
    .returning(authenticatedColumns('oauth_requests'))
  return authenticRow(db, 'oauth_requests', row, { user_id: userId })
}

// Grants and codes

// Expired and revoked grants are kept for a day with their codes and tokens, to detect the reuse of these.
const YESTERDAY = sql`now() - interval '1 day'`
const IS_OVER = sql`(${oauth_grants.expires_at} < ${YESTERDAY} OR ${oauth_grants.revoked_at} < ${YESTERDAY})`

interface GrantOwner { user_id: number, client_id: string }

/** The ids of revoked grants, and the API tokens that became invalid with them. */
export interface RevokedGrants { revoked: number[], ended: EndedTokens[] }

/** Revokes a person's oldest grants to a client to leave room for one more. The caller has locked the account. */
export async function revokeExcessGrants (db: Db, { user_id, client_id }: GrantOwner): Promise<RevokedGrants> {
  const { id } = oauth_grants
  // Revokes at most one batch: a person may have very many grants from a time when there was no limit.
  const oldest = await db.select({ id }).from(oauth_grants)
    .where(and(matching(oauth_grants, { user_id, client_id }), isActiveGrant))
    .orderBy(desc(id)).offset(MAX_GRANTS - 1).limit(PIECE)
  if (oldest.length === 0) return { revoked: [], ended: [] }
  const { grants, ended } = await revokeGrants(db, isOneOf(id, oldest.map((grant) => grant.id)))
  return { revoked: grants.map((grant) => grant.id), ended }
}

// Deletes old grants that have no tokens, and the codes of these grants.
async function deleteUnusedGrants (db: Db): Promise<void> {
  const isUnused = sql`${IS_OVER}
    AND NOT EXISTS (SELECT FROM ${oauth_tokens} WHERE ${oauth_tokens.grant_id} = ${oauth_grants.id})`
  if (engineOf(db) !== 'citus') {
    await deleteExpired(db, oauth_grants.id, sql`${isUnused}
      AND NOT EXISTS (SELECT FROM ${api_tokens} WHERE ${api_tokens.grant_id} = ${oauth_grants.id})`)
    return
  }
  // Looks up API tokens in another statement, because they are on other nodes than the grants.
  const over = await db.select({ id: oauth_grants.id }).from(oauth_grants).where(isUnused).limit(PIECE)
  if (over.length === 0) return
  const ids = over.map(({ id }) => id)
  const used = await db.selectDistinct({ id: api_tokens.grant_id }).from(api_tokens)
    .where(isOneOf(api_tokens.grant_id, ids))
  const unused = ids.filter((id) => !used.some((grant) => grant.id === id))
  await deleteExpired(db, oauth_grants.id, sql`${isOneOf(oauth_grants.id, unused)} AND ${IS_OVER}`)
}

/** Creates a grant. The id is larger than the second factor's id (`isOfFactor`). The caller has locked the account. */
export async function createGrant (
  db: Db, grant: { user_id: number, client_id: string, scopes: Scope[] }
): Promise<number> {
  await deleteUnusedGrants(db)
  // Deletes grants whose code was never redeemed, because they have no tokens. A grant of the console stays: it has
  // many codes (`renewGrant`).
  await deleteExpired(
    db, oauth_grants.id,
    sql`${oauth_grants.client_id} <> ${CONSOLE_CLIENT} AND ${oauth_grants.id} IN (SELECT ${oauth_codes.grant_id} FROM ${oauth_codes}
      WHERE ${oauth_codes.used_at} IS NULL AND ${oauth_codes.expires_at} < now() - interval '1 day')`
  )
  const now = await readNow(db)
  const id = makeId(await findFactorId(db, grant.user_id))
  const row = { id, ...grant, expires_at: new Date(now + LIFETIMES.grantDays * DAY), revoked_at: null }
  await db.insert(oauth_grants).overridingSystemValue().values({ ...row, mac: macOf(db, 'oauth_grants', row) })
  return id
}

async function findFactorId (db: Db, userId: number): Promise<number | undefined> {
  const [user] = await db.select({ second_factor_id: users.second_factor_id }).from(users).where(eq(users.id, userId))
  return user?.second_factor_id ?? undefined
}

/**
 * Finds an active grant with exactly these scopes that is newer than the person's second factor. Extends the expiry of
 * the grant, and deletes its old codes and tokens. Undefined if there is no such grant. The caller has locked the
 * account.
 */
export async function renewGrant (
  db: Db, { user_id, client_id, scopes }: { user_id: number, client_id: string, scopes: readonly Scope[] }
): Promise<number | undefined> {
  const oldest = await findFactorId(db, user_id) ?? 0
  const rows = await db.select(authenticatedColumns('oauth_grants')).from(oauth_grants)
    .where(and(matching(oauth_grants, { user_id, client_id }), gt(oauth_grants.id, oldest), isActiveGrant))
    .orderBy(desc(oauth_grants.id)).limit(MAX_GRANTS)
  const found = rows.find((row) => row.scopes.join() === scopes.join() && isAuthentic(db, 'oauth_grants', row))
  if (found === undefined) return undefined
  const { id } = found
  const extended = await readNow(db) + LIFETIMES.grantDays * DAY
  // The expiry changes at most once a day.
  if (found.expires_at.getTime() < extended - DAY) {
    await lockGrantsTable(db)
    const change = { expires_at: new Date(extended) }
    if (await updateAuthentic(db, 'oauth_grants', eq(oauth_grants.id, id), change) === undefined) return undefined
  }
  const isOld = (grantId: PgColumn, expiresAt: PgColumn) => sql`${grantId} = ${id} AND ${expiresAt} < ${YESTERDAY}`
  await deleteExpired(db, oauth_codes.code_hash, isOld(oauth_codes.grant_id, oauth_codes.expires_at))
  await deleteExpired(db, oauth_tokens.id, isOld(oauth_tokens.grant_id, oauth_tokens.refresh_expires_at))
  return id
}

export async function createCode (
  db: Db,
  { scopes = null, ...code }: {
    code_hash: Buffer, grant_id: number, redirect_uri: string, code_challenge: string, scopes?: Scope[] | null
  }
): Promise<void> {
  const row = { ...code, scopes, used_at: null, expires_at: new Date(await readNow(db) + LIFETIMES.code * SECOND) }
  await db.insert(oauth_codes).values({ ...row, mac: macOf(db, 'oauth_codes', row) })
}

export type LiveGrant = Pick<AuthenticatedRow<'oauth_grants'>, 'id' | 'client_id' | 'user_id' | 'scopes'>

interface Issued { grant: LiveGrant & { is_live: boolean }, is_used: boolean, is_expired: boolean }
export type Code = Issued & Pick<AuthenticatedRow<'oauth_codes'>, 'redirect_uri' | 'code_challenge' | 'scopes'>
export type Pair = Issued & { id: number }

const isActiveGrant = and(isNull(oauth_grants.revoked_at), gt(oauth_grants.expires_at, STATEMENT_TIME))
const isEnabled = and(isNull(users.disabled_at), isNull(oauth_clients.disabled_at))
const grant = {
  ...columnsOf(oauth_grants, 'id', 'client_id', 'user_id', 'scopes'),
  is_live: sql<boolean>`(${isActiveGrant} AND ${isEnabled})`
}

/** The authenticated columns of a grant, its user and its client. */
const support = {
  itsGrant: authenticatedColumns('oauth_grants'),
  itsUser: authenticatedColumns('users'),
  itsClient: authenticatedColumns('oauth_clients')
}
interface Support {
  itsGrant: Authenticated<'oauth_grants'>
  itsUser: Authenticated<'users'>
  itsClient: Authenticated<'oauth_clients'>
}

/** Joins codes or tokens with their grant, its user and its client. */
function withSupport<T extends PgSelect> (issued: T) {
  return issued.innerJoin(users, eq(users.id, oauth_grants.user_id))
    .innerJoin(oauth_clients, eq(oauth_clients.id, oauth_grants.client_id))
}

function isSupported (db: Db, { itsGrant, itsUser, itsClient }: Support): boolean {
  return isAuthentic(db, 'oauth_grants', itsGrant) && isAuthentic(db, 'users', itsUser) &&
    isAuthentic(db, 'oauth_clients', itsClient, { user_id: itsGrant.user_id })
}

/** Locks a code and its grant, so that a concurrent second use sees that the code was used. */
export async function lockCode (db: Db, code_hash: Buffer): Promise<Code | undefined> {
  const [row] = await withSupport(db.select({
    code: authenticatedColumns('oauth_codes'),
    grant,
    ...support,
    redirect_uri: oauth_codes.redirect_uri,
    code_challenge: oauth_codes.code_challenge,
    scopes: oauth_codes.scopes,
    is_used: sql<boolean>`${oauth_codes.used_at} IS NOT NULL`,
    is_expired: sql<boolean>`${oauth_codes.expires_at} <= ${STATEMENT_TIME}`
  }).from(oauth_codes).innerJoin(oauth_grants, eq(oauth_grants.id, oauth_codes.grant_id)).$dynamic())
    .where(eq(oauth_codes.code_hash, code_hash)).for('no key update', { of: [oauth_grants, oauth_codes] })
  if (row === undefined) return undefined
  const { code, itsGrant, itsUser, itsClient, ...found } = row
  if (isOver(found)) return found
  const isValid = isAuthentic(db, 'oauth_codes', code, { user_id: itsGrant.user_id }) && isSupported(db, row)
  return isValid ? found : undefined
}

// Used, expired and revoked rows give no access, so the caller gets these rows without a check of the MAC.
const isOver = ({ grant, is_used, is_expired }: Issued): boolean => is_used || is_expired || !grant.is_live

export async function useCode (db: Db, code_hash: Buffer): Promise<void> {
  await db.update(oauth_codes).set(USED).where(eq(oauth_codes.code_hash, code_hash))
}

/** Counts a wrong PKCE code verifier. After five, the code is invalid. */
export async function countWrongVerifier (db: Db, code_hash: Buffer): Promise<void> {
  const isBurnt = sql`${oauth_codes.wrong_verifiers} + 1 >= 5`
  await db.update(oauth_codes).set({
    wrong_verifiers: sql`${oauth_codes.wrong_verifiers} + 1`,
    expires_at: withNow((now) => sql`CASE WHEN ${isBurnt} THEN least(${oauth_codes.expires_at}, ${now})
      ELSE ${oauth_codes.expires_at} END`),
    mac: sql`CASE WHEN ${isBurnt} THEN NULL ELSE ${oauth_codes.mac} END`
  }).where(eq(oauth_codes.code_hash, code_hash))
}

// Tokens

/**
 * Creates a pair of an access token and a refresh token. `seconds` is the lifetime of the access token. Used pairs are
 * kept as long as their grant, to detect the reuse of refresh tokens. If the pair is not `isRefreshable`, the refresh
 * token expires with the access token.
 */
export async function createPair (
  db: Db, pair: { grant_id: number, access_hash: Buffer, refresh_hash: Buffer, scopes: string[] },
  { seconds = LIFETIMES.access, isRefreshable = true }: { seconds?: number, isRefreshable?: boolean } = {}
): Promise<void> {
  await deleteExpired(
    db, oauth_tokens.id,
    sql`${oauth_tokens.grant_id} = ANY(ARRAY(SELECT ${oauth_grants.id} FROM ${oauth_grants} WHERE ${IS_OVER} LIMIT 200))`
  )
  const now = await readNow(db)
  const access_expires_at = new Date(now + seconds * SECOND)
  const row = {
    id: makeId(),
    ...pair,
    access_expires_at,
    refresh_expires_at: isRefreshable ? new Date(now + LIFETIMES.refreshIdleDays * DAY) : access_expires_at,
    used_at: null
  }
  await db.insert(oauth_tokens).overridingSystemValue().values({ ...row, mac: macOf(db, 'oauth_tokens', row) })
}

/** Locks the token pair of a refresh token, and its grant. */
export async function lockPair (db: Db, refresh_hash: Buffer): Promise<Pair | undefined> {
  const [row] = await withSupport(db.select({
    id: oauth_tokens.id,
    pair: authenticatedColumns('oauth_tokens'),
    grant,
    ...support,
    is_used: sql<boolean>`${oauth_tokens.used_at} IS NOT NULL`,
    is_expired: sql<boolean>`${oauth_tokens.refresh_expires_at} <= ${STATEMENT_TIME}`
  }).from(oauth_tokens).innerJoin(oauth_grants, eq(oauth_grants.id, oauth_tokens.grant_id)).$dynamic())
    .where(eq(oauth_tokens.refresh_hash, refresh_hash)).for('no key update', { of: [oauth_grants, oauth_tokens] })
  if (row === undefined) return undefined
  const { pair, itsGrant, itsUser, itsClient, ...found } = row
  if (isOver(found)) return found
  const isValid = isAuthentic(db, 'oauth_tokens', pair, { user_id: itsGrant.user_id }) && isSupported(db, row)
  return isValid ? found : undefined
}

/** Marks a pair as used, which makes its access token and its refresh token invalid. */
export async function retirePair (db: Db, id: number): Promise<void> {
  await db.update(oauth_tokens).set(USED).where(eq(oauth_tokens.id, id))
}

/** The person for whom this client has received the access token, which may have expired since. */
export async function findUserOfToken (db: Db, access_hash: Buffer, client_id: string): Promise<number | undefined> {
  const [found] = await db.select({ user_id: oauth_grants.user_id }).from(oauth_tokens)
    .innerJoin(oauth_grants, eq(oauth_grants.id, oauth_tokens.grant_id))
    .where(and(eq(oauth_tokens.access_hash, access_hash), eq(oauth_grants.client_id, client_id)))
  return found?.user_id
}

/** Revokes a grant with its codes and tokens. Returns the API tokens that became invalid. */
export async function revokeGrant (db: Db, id: number): Promise<EndedTokens[]> {
  return (await revokeGrants(db, eq(oauth_grants.id, id))).ended
}

export type Application = Pick<typeof oauth_grants.$inferSelect,
  'id' | 'client_id' | 'scopes' | 'created_at' | 'expires_at'> & { client: string }

/** A page of a person's active grants, newest first. */
export async function listGrants (db: Db, user_id: number, page = 1): Promise<HeldPage<Application>> {
  const { limit, offset } = heldFrom(page)
  const { created_at } = oauth_grants
  const rows = await db.select({
    itsGrant: authenticatedColumns('oauth_grants'), itsClient: authenticatedColumns('oauth_clients'), created_at
  }).from(oauth_grants).innerJoin(oauth_clients, eq(oauth_clients.id, oauth_grants.client_id))
    .where(and(eq(oauth_grants.user_id, user_id), isActiveGrant, isNull(oauth_clients.disabled_at)))
    .orderBy(desc(oauth_grants.id)).limit(limit).offset(offset)
  const held = heldPage(rows, page)
  const shown = held.rows.filter(({ itsGrant, itsClient }) =>
    isAuthentic(db, 'oauth_grants', itsGrant) && isAuthentic(db, 'oauth_clients', itsClient, { user_id }))
    .map(({ itsGrant: { id, client_id, scopes, expires_at }, itsClient, created_at }) =>
      ({ id, client_id, client: itsClient.name, scopes, created_at, expires_at }))
  return { ...held, rows: shown }
}

/** Revokes a grant of this person, with its codes and tokens. Undefined if the person has no such active grant. */
export async function revokeGrantOf (
  db: Db, user_id: number, id: number
): Promise<{ client_id: string, ended: EndedTokens[] } | undefined> {
  const { grants: [revoked], ended } = await revokeGrants(db, matching(oauth_grants, { id, user_id }))
  return revoked && { client_id: revoked.client_id, ended }
}

/** Revokes the grant of an access or refresh token, if the grant belongs to this client. */
export async function revokeByToken (
  db: Db, hash: Buffer, client_id: string
): Promise<{ id: number, user_id: number, ended: EndedTokens[] } | undefined> {
  const { grants: [revoked], ended } = await revokeGrants(db, sql`${eq(oauth_grants.client_id, client_id)}
    AND ${oauth_grants.id} = (
      SELECT t.grant_id FROM oauth_tokens t WHERE t.access_hash = ${hash} OR t.refresh_hash = ${hash})`)
  return revoked && { ...revoked, ended }
}

// Calls with an access token

/** The caller of a request with an access token. `membership` is for the organization in the path, if any. */
export interface UserCall {
  /** The id of the access token. */
  id: number
  grant_id: number
  user: User
  client_id: string
  /** The name of the client. */
  application: string
  granted: Ability[]
  /** The expiry of the grant. After it, all tokens of the grant are invalid. */
  expires_at: Date
  membership: { role: Role, teams: TeamPowers, organization: Organization } | undefined
}

interface Membership {
  member: Record<string, unknown>
  organization: Record<string, unknown>
  plan: Plan
  in_project: TeamRoleFound[] | null
  anywhere: Role[] | null
}

const COUNTED = sql.raw([...Object.keys(counterColumns), 'plan'].join(', '))
const readCounter = readerOf(counterColumns)

// Selects the active membership of a user as JSON, with the roles in teams that `queries` requests.
const membershipIn = (organization: SQL, user: SQL) => sql`
  SELECT jsonb_build_object('member', to_jsonb(m), 'plan', to_jsonb(p), 'organization', to_jsonb(counter),
    'in_project', CASE WHEN queries.project IS NOT NULL THEN ${teamRoles(sql`m`, sql`slug = queries.project`)} END,
    'anywhere', CASE WHEN queries.anywhere THEN ${rolesInTeams(sql`m`)} END)
  FROM ${lookUp('m', members, sql`organization_id = ${organization} AND user_id = ${user} AND status = 'active'`)}
  CROSS JOIN ${lookUp('counter', organization_counters, sql`organization_id = m.organization_id`, COUNTED)}
  CROSS JOIN ${lookUp('p', plans, sql`name = counter.plan`)}`

const byAccessToken = prepared('users_by_access_token', (db) => db
  .select({
    query_index: sql<number>`queries.query_index`.as('query_index'),
    id: oauth_tokens.id,
    grant_id: oauth_tokens.grant_id,
    user: shownColumns('users'),
    pair: authenticatedColumns('oauth_tokens'),
    ...support,
    organization: organizationColumns,
    membership: sql<Membership | null>`${perEngine({
      postgres: sql`(${membershipIn(sql`${organizations.id}`, sql`${users.id}`)})`, citus: sql`NULL::jsonb`
    })}`.as('membership')
  })
  .from(
    sql`jsonb_to_recordset(${sql.placeholder('queries')}::jsonb)
      AS queries (query_index int, hash text, organization text, project varchar, anywhere boolean)`
  )
  .innerJoin(oauth_tokens, eq(oauth_tokens.access_hash, sql`decode(queries.hash, 'hex')`))
  .innerJoin(oauth_grants, eq(oauth_grants.id, oauth_tokens.grant_id))
  .innerJoin(users, eq(users.id, oauth_grants.user_id))
  .innerJoin(oauth_clients, eq(oauth_clients.id, oauth_grants.client_id))
  .leftJoin(organizations, or(
    eq(organizations.id, sql`upper(queries.organization)::bpchar`), eq(organizations.slug, sql`queries.organization`)
  ))
  .where(and(
    isNull(oauth_tokens.used_at), gt(oauth_tokens.access_expires_at, STATEMENT_TIME), isActiveGrant, isEnabled
  )))

const membershipsOf = preparedSql<
  { query_index: number, membership: Membership }, OfOrganization & { queries: string }
>('memberships_of', ($) => sql`
  SELECT queries.query_index, (${membershipIn(sql`queries.organization_id`, sql`queries.user_id`)}) AS membership
  FROM jsonb_to_recordset(${$('queries')}::jsonb) AS queries (query_index int, organization_id char(26),
    user_id bigint, project varchar, anywhere boolean)`)

interface MembershipQuery { organization_id: string, user_id: number, teams: TeamQuery }

// Loads the active membership of a person; null if the person has none. Used only on Citus, where memberships are not
// on the node of the access token.
const findMembership = batchLoad({
  keyOf: ({ organization_id, user_id, teams: { project, anywhere } }: MembershipQuery) =>
    JSON.stringify([organization_id, user_id, project, anywhere]),
  organizationOf: ({ organization_id }) => organization_id,
  find: async (db, batch, organization_id) => {
    const numbered = batch.map(({ teams, ...query }, query_index) => ({ query_index, ...query, ...teams }))
    return groupByQuery(await membershipsOf(db, { organization_id, queries: JSON.stringify(numbered) }), batch.length)
  },
  read: (_, [row]) => row!.membership
})

interface CallQuery { hash: Buffer, organization: string | undefined, teams: TeamQuery }

const findCredentials = batchLoad({
  keyOf: ({ hash, organization, teams: { project, anywhere } }: CallQuery) =>
    hash.toString('latin1') + JSON.stringify([organization, project, anywhere]),
  find: async (db, batch) => {
    const numbered = batch.map(({ hash, organization, teams }, query_index) =>
      ({ query_index, hash: hash.toString('hex'), organization, ...teams }))
    return groupByQuery(await byAccessToken(db, { queries: JSON.stringify(numbered) }), batch.length)
  },
  read: (db, rows: Awaited<ReturnType<typeof byAccessToken>>) => {
    const [first] = rows
    if (first === undefined) return undefined
    const isValid = isAuthentic(db, 'oauth_tokens', first.pair, { user_id: first.itsGrant.user_id }) &&
      isSupported(db, first)
    return isValid ? { ...first, rows } : undefined
  }
})

/** The caller with this access token; undefined if the token is not valid now by the database's clock. */
export async function findUserCall (
  db: Db, hash: Buffer, named: string | undefined, teams: TeamQuery = {}
): Promise<UserCall | undefined> {
  const found = await findCredentials(db, { hash, organization: named, teams })
  if (found === undefined) return undefined
  const { id, grant_id, user, pair, itsGrant, itsClient, rows } = found
  // The slug of one organization may equal the id of another. Prefers an organization of which the user is a member. If
  // the user is a member of two, prefers the organization whose id matches.
  const all = await Promise.all(rows.map(async ({ organization, membership }) => {
    if (organization === null) return []
    const its = engineOf(db) === 'citus'
      ? await findMembership(db, { organization_id: organization.id, user_id: user.id, teams })
      : membership
    if (its === null) return []
    const whole = { ...organization, ...readCounter(its.organization), plan: its.plan }
    return [{ ...its, organization: whole, member: fromJson('members', its.member)! }]
  }))
  const mine = all.flat()
  const own = mine.find(({ organization }) => organization.id === named?.toUpperCase()) ?? mine[0]
  const membership = own !== undefined && isAuthentic(db, 'members', own.member)
    ? {
        role: own.member.role,
        teams: { inProject: authenticTeamRoles(db, own.member, own.in_project), anywhere: own.anywhere ?? [] },
        organization: own.organization
      }
    : undefined
  // Ignores scopes of the access token that the grant does not have.
  const granted = (pair.scopes as Ability[]).filter((scope) => itsGrant.scopes.includes(scope))
  const { client_id, expires_at } = itsGrant
  return { id, grant_id, user, client_id, application: itsClient.name, granted, expires_at, membership }
}

/**
 * Locks an access token and its grant. For a change by a person who is not a member of the organization. A transaction
 * that has locked a counter row is retried instead of waiting (`waitUnlessCounter`). Throws CallerEnded.
 */
export async function lockAccessToken (db: Db, id: number): Promise<void> {
  const rows = await db.select({ id: oauth_tokens.id }).from(oauth_tokens)
    .innerJoin(oauth_grants, eq(oauth_grants.id, oauth_tokens.grant_id))
    .where(and(
      eq(oauth_tokens.id, id), isNull(oauth_tokens.used_at), gt(oauth_tokens.access_expires_at, STATEMENT_TIME),
      isActiveGrant
    )).for('share', { of: [oauth_grants, oauth_tokens], ...waitUnlessCounter(db) })
  if (rows.length === 0) throw new CallerEnded()
}
