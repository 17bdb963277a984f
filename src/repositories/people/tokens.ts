import { and, asc, desc, eq, getTableColumns, gt, isNotNull, isNull, lte, ne, or, sql, type SQL } from 'drizzle-orm'
import type { Level } from '../../../schemas/secrets.ts'
import {
  ENDING_DAYS, TOKEN_LIMITS, type ApiToken, type ListTokensQuery, type Restriction
} from '../../../schemas/tokens.ts'
import { STATEMENT_TIME } from '../../db/columns.ts'
import {
  authenticatedColumns, fromJson, shownOf, type AuthenticatedRow, type NewRow, type RowChanges, type ShownRow
} from '../../db/rows/authenticated.ts'
import { changedAt } from '../../db/columns.ts'
import { creatorOf, shownCreator, type Maker } from '../../db/rows/creator.ts'
import { PIECE } from '../../db/callers/expired.ts'
import { waitUnlessCounter } from '../../db/rows/counter.ts'
import { makeId } from '../../db/rows/ids.ts'
import {
  isAuthentic, isOneOf, isOneOfOrganization, macOf, readNow, requireAuthentic, updateAuthentic, type Db
} from '../../db/database.ts'
import { andOwn, engineOf } from '../../db/postgres/engine.ts'
import { authenticRow, matching, queryRows } from '../../db/rows/query.ts'
import { namesNoLevel } from '../../db/rows/slices.ts'
import { findSlugs, idsOf } from '../../db/rows/slugs.ts'
import { api_tokens, environments, former_token_hashes, organization_counters, organizations, projects, targets } from '../../db/tables.ts'
import { andSelected, named, orderOf } from '../../db/rows/selection.ts'
import { heldFrom, heldPage, readPage, type HeldPage, type NamedPageRequest } from '../../rules/pagination.ts'
import {
  includesAllAbove, pathOf, restrictionOf, shownRestrictions, type LevelsById, type Slice
} from '../../rules/slices.ts'
import type { Principal } from './principals.ts'

export type NewToken = Omit<NewRow<'api_tokens'>, 'id' | 'slices' | keyof ReturnType<typeof madeBy>> &
  { slices: Slice[], made_by?: Maker }

const columns = getTableColumns(api_tokens)
const isLive = or(isNull(api_tokens.expires_at), gt(api_tokens.expires_at, STATEMENT_TIME))!

export async function createToken (db: Db, { made_by: maker, slices, ...token }: NewToken): Promise<ApiToken> {
  const row = { id: makeId(), ...token, slices: slices.length === 0 ? null : slices, ...madeBy(maker) }
  const [made] = await db.insert(api_tokens).overridingSystemValue()
    .values({ ...row, mac: macOf(db, 'api_tokens', row) }).returning(columns)
  return showToken(db, made!)
}

const madeBy = (maker: Maker) => ({ ...creatorOf(maker), grant_id: maker?.person?.grant_id ?? null })

/**
 * Returns the reached limit of live API tokens, of the organization or of the person. Undefined if a token can be
 * created, renewed or transferred. If the organization has as many expired tokens as its limit, deletes the oldest of
 * them. `held` is an existing token that gets a new owner or expiry. The person's limit counts `held` as a new token.
 * The organization's limit counts it as a new token only if it had expired. The caller has locked the organization, so
 * that requests run one after the other.
 */
export async function findReachedTokenLimit (
  db: Db, organizationId: string, userId: number | null, held?: Pick<LockedToken, 'id' | 'is_live'>
): Promise<number | undefined> {
  const { organization, person } = TOKEN_LIMITS
  const besideId = held?.id ?? 0
  const its = eq(api_tokens.organization_id, organizationId)
  const newest = db.select({ user_id: api_tokens.user_id, is_live: sql<boolean>`${isLive}`.as('is_live') })
    .from(api_tokens).where(and(its, ne(api_tokens.id, besideId))).orderBy(desc(api_tokens.id)).limit(2 * organization)
    .as('newest')
  const [row] = await db.select({
    all: sql<number>`count(*) FILTER (WHERE is_live)::int`,
    own: sql<number>`count(*) FILTER (WHERE is_live AND ${newest.user_id} = ${userId}::bigint)::int`,
    over: sql<number>`count(*) FILTER (WHERE NOT is_live)::int`
  }).from(newest)
  if (row!.over >= organization) await deleteOldestExpired(db, organizationId, besideId)
  if (row!.all >= organization && held?.is_live !== true) return organization
  return row!.own >= person ? person : undefined
}

async function deleteOldestExpired (db: Db, organizationId: string, besideId: number): Promise<void> {
  await db.execute(sql`
    WITH oldest AS MATERIALIZED (
      SELECT t.organization_id, t.id FROM api_tokens t
      WHERE t.organization_id = ${organizationId} AND t.expires_at <= now() AND t.id <> ${besideId}::bigint
      ORDER BY t.id LIMIT ${PIECE} FOR UPDATE SKIP LOCKED
    )
    DELETE FROM api_tokens t USING oldest WHERE t.organization_id = oldest.organization_id
      AND t.id = oldest.id${andOwn(sql`t.organization_id`, organizationId)}`)
}

/** Whether the token made tokens that are live and have `inherited` in their restrictions. */
export async function hasMadeInherited (db: Db, { organization_id, id }: Pick<TokenRow, 'organization_id' | 'id'>) {
  const { slices } = api_tokens
  const made = and(
    eq(api_tokens.organization_id, organization_id), eq(api_tokens.created_by_type, 'api_token'),
    eq(api_tokens.created_by_id, id), isLive, sql`${slices} @> '[{"inherited": true}]'`
  )
  return (await db.select({ id: api_tokens.id }).from(api_tokens).where(made).limit(1)).length > 0
}

const SELECTABLE = named(sql`${api_tokens}`, ['name'])

// Stored bytes of restrictions, which are often compressed: those of about 20 tokens with 100 restrictions each.
const MANY_RESTRICTIONS = 64 * 1024

/** Whether the tokens of an organization have so many restrictions that a list of all tokens takes long. */
export async function areManyRestricted (db: Db, organizationId: string): Promise<boolean> {
  const [row] = await db.select({ bytes: sql<number>`coalesce(sum(pg_column_size(${api_tokens.slices})), 0)::int` })
    .from(api_tokens).where(eq(api_tokens.organization_id, organizationId))
  return row!.bytes > MANY_RESTRICTIONS
}

/** Filters of a list of tokens. */
type TokenFilter = Pick<ListTokensQuery, 'owner' | 'created_by' | 'ending'>

const isEnding = and(
  gt(api_tokens.expires_at, sql`now()`), lte(api_tokens.expires_at, sql.raw(`now() + interval '${ENDING_DAYS} days'`))
)

function isMatching ({ owner, created_by, ending = false }: TokenFilter): SQL | undefined {
  const [type, id] = created_by?.split(':') ?? []
  return and(
    owner === undefined ? undefined : owner === 'user' ? isNotNull(api_tokens.user_id) : isNull(api_tokens.user_id),
    type === undefined ? undefined : sql`${api_tokens.created_by_type} = ${type}`,
    id === undefined ? undefined : eq(api_tokens.created_by_id, Number(id)),
    ending ? isEnding : undefined
  )
}

/**
 * A page of tokens within the caller's restrictions, by default newest first. Omits rows with a wrong MAC, but counts
 * them in `total`. With `pace`, works in steps, and calls it after each of them.
 */
export async function listTokens (
  db: Db, organizationId: string, slices: readonly Slice[], filter: TokenFilter, page: NamedPageRequest, pace?: Pace
): Promise<{ rows: ApiToken[], total: number }> {
  const its = and(eq(api_tokens.organization_id, organizationId), isMatching(filter))
  const asked = sql`${its}${andSelected(page, SELECTABLE)}`
  const covered = pace && slices.length > 0 && await findCovered(db, organizationId, slices, asked, pace)
  const isCovered = slices.length === 0
    ? undefined
    : covered ? isOneOf(api_tokens.id, covered) : isCoveredBy(slices)
  const own = and(asked, isCovered)
  const total = sql<number>`(SELECT count(*)::int FROM ${api_tokens} WHERE ${own})`
  const { rows, total: all } = await readPage(page, async ({ limit, offset }) =>
    db.select({ ...columns, total }).from(api_tokens).where(own)
      .orderBy(orderOf(page, SELECTABLE, desc(api_tokens.id))).limit(limit).offset(offset))
  const genuine: typeof rows = []
  for (const some of piecesOf(rows)) {
    const began = performance.now()
    genuine.push(...some.filter((row) => isAuthentic(db, 'api_tokens', row)))
    await pace?.(began)
  }
  return { rows: await withRestrictions(db, organizationId, genuine, pace), total: all }
}

/** Yields to the event loop after a step of work that began at this time (`performance.now`). */
type Pace = (began: number) => Promise<void>

// Tokens to verify or to write in a step.
const STEP = 20
const piecesOf = <T>(rows: readonly T[]): T[][] =>
  Array.from({ length: Math.ceil(rows.length / STEP) }, (_, i) => rows.slice(i * STEP, (i + 1) * STEP))

// The rule of `coversAll` as an SQL condition, so that the check does not block the event loop. A token matches if it
// has restrictions, and for each of them the environment, target or project is among the caller's restrictions; for one
// with `inherited`, among those that include the levels above. The caller's restrictions are subqueries, which
// PostgreSQL hashes once for all rows. Malformed restrictions do not match.
const isCoveredBy = (slices: readonly Slice[]): SQL => {
  const isCovered = (by: readonly Slice[]) => {
    const paths = JSON.stringify(by.map(pathOf))
    const isOneOf = (...ids: (keyof Slice)[]) => sql`${
      sql.join(ids.map((id) => sql.raw(`(inside->>'${id}')`)), sql` || '/' || `)
    } IN (SELECT value FROM jsonb_array_elements_text(${paths}::jsonb))`
    return sql`(${isOneOf('project_id', 'target_id', 'environment_id')} OR ${isOneOf('project_id', 'target_id')}
      OR ${isOneOf('project_id')})`
  }
  return sql`jsonb_typeof(${api_tokens.slices}) = 'array' AND ${api_tokens.slices} <> '[]' AND NOT EXISTS (
    SELECT FROM jsonb_array_elements(
      CASE WHEN jsonb_typeof(${api_tokens.slices}) = 'array' THEN ${api_tokens.slices} ELSE '[]' END) AS inside
    WHERE CASE WHEN inside->'inherited' = 'true' THEN ${isCovered(slices.filter(includesAllAbove))}
      ELSE ${isCovered(slices)} END IS NOT TRUE)`
}

// Tokens whose restrictions one statement compares: at most 25,000 restrictions, which take some 15 ms.
const COMPARED = 250

/** The ids of those of the tokens asked for that are within the caller's restrictions. */
async function findCovered (
  db: Db, organizationId: string, slices: readonly Slice[], asked: SQL, pace: Pace
): Promise<number[]> {
  const { organization_id, id } = api_tokens
  const covered: number[] = []
  for (let after = 0; ;) {
    const began = performance.now()
    const some = db.select().from(api_tokens)
      .where(and(eq(organization_id, organizationId), gt(id, after))).orderBy(asc(id)).limit(COMPARED).as('api_tokens')
    const isFound = sql<boolean | null>`CASE WHEN ${asked} THEN ${isCoveredBy(slices)} END`
    const rows = await db.select({ id: some.id, is_found: isFound }).from(some)
    covered.push(...rows.filter((row) => row.is_found).map((row) => row.id))
    await pace(began)
    if (rows.length < COMPARED) return covered
    after = Math.max(...rows.map((row) => row.id))
  }
}

/** A person's API token, as shown to the person and the operator. */
export type OwnToken = ShownRow<'api_tokens'> & { organization: { id: string, name: string, slug: string } }

/** A page of a person's live tokens in all organizations, newest first. Omits rows with a wrong MAC. */
export async function listTokensOfPerson (db: Db, userId: number, page = 1): Promise<HeldPage<OwnToken>> {
  const { limit, offset } = heldFrom(page)
  const organization = { id: organizations.id, name: organization_counters.name, slug: organizations.slug }
  const rows = await db.select({ token: columns, organization })
    .from(api_tokens).innerJoin(organizations, eq(organizations.id, api_tokens.organization_id))
    .innerJoin(organization_counters, eq(organization_counters.organization_id, api_tokens.organization_id))
    .where(and(eq(api_tokens.user_id, userId), isLive))
    .orderBy(desc(api_tokens.id)).limit(limit).offset(offset)
  const held = heldPage(rows, page)
  const genuine = held.rows.filter(({ token }) => isAuthentic(db, 'api_tokens', token))
  return {
    ...held,
    rows: genuine.map(({ token, organization }) => ({ ...shownOf('api_tokens', token), organization }))
  }
}

/** Locks a person's token, because a rotation by another person changes the owner. Returns the token's organization. */
export async function lockOwnToken (db: Db, userId: number, id: number): Promise<string | undefined> {
  const { organization_id } = api_tokens
  const its = matching(api_tokens, { user_id: userId, id })
  const find = (which: SQL) => db.select({ organization_id }).from(api_tokens)
    .innerJoin(organizations, eq(organizations.id, organization_id)).where(which)
  const lock = (which: SQL) => find(which).for('update', { of: api_tokens })
  if (engineOf(db) !== 'citus') return (await lock(its))[0]?.organization_id
  const [found] = await find(its)
  const [row] = found === undefined ? [] : await lock(and(its, eq(organization_id, found.organization_id))!)
  return row?.organization_id
}

/** Locks a token and returns its restrictions. Without restrictions, the token is valid for the whole organization. */
export async function findSlices (db: Db, organizationId: string, id: number): Promise<Slice[] | undefined> {
  const [row] = await db.select({ slices: api_tokens.slices }).from(api_tokens)
    .where(oneOf(organizationId, id)).for('update')
  return row && (row.slices ?? [])
}

const oneOf = (organizationId: string, id: number): SQL => matching(api_tokens, { organization_id: organizationId, id })

/**
 * Replaces the value of a token, and its displayed prefix and suffix. The former value stays valid for
 * `overlapSeconds`; older values become invalid. A rotation is a retry after a lost response if the caller
 * authenticates with the former value and sends an `Idempotency-Key` (`isKeyed`). A retry keeps the former value with
 * its expiry, and invalidates the value of the lost response. Without the header, a client may already use the present
 * value. So this value stays valid for `overlapSeconds`, and the former value becomes invalid.
 *
 * The token then belongs to the person who rotates the token and so knows its value: if that person loses access, the
 * token becomes invalid. If the rotater is a user without `person`, the token stays the organization's, and names the
 * user as its creator. If another token without a person rotates the token, the owner stays, and the creator is that
 * other token, whose holder knows the value. The caller has locked the token (`lockToken`).
 */
export async function rotateToken (
  db: Db, { organization_id, id, token_hash: former, user_id, grant_id }: TokenRow,
  value: Pick<TokenRow, 'token_hash' | 'token_prefix' | 'token_suffix'>, overlapSeconds: number,
  rotater?: NonNullable<Maker> & Pick<Principal, 'caller'>, isKeyed = false
): Promise<ApiToken | undefined> {
  const { organization_id: of, token_id } = former_token_hashes
  const caller = rotater?.caller
  const isByFormer = caller !== undefined && 'api_token' in caller && caller.api_token === id &&
    caller.hash !== former.toString('hex')
  const isRetry = isKeyed && isByFormer && overlapSeconds > 0
  if (!isRetry) await db.delete(former_token_hashes).where(and(eq(of, organization_id), eq(token_id, id)))
  if (overlapSeconds > 0 && !isRetry) {
    const expires_at = new Date(await readNow(db) + overlapSeconds * 1000)
    const row = { organization_id, token_id: id, token_hash: former, expires_at }
    await db.insert(former_token_hashes).values({ ...row, mac: macOf(db, 'former_token_hashes', row) })
  }
  const isUsers = rotater?.type === 'user' && rotater.person === null
  const changesHands = rotater !== undefined && (isUsers || !endsWith(rotater, { user_id, grant_id }))
  const isAnother = rotater?.type === 'api_token' && rotater.id !== id && rotater.person === null
  const maker = changesHands ? madeBy(rotater) : isAnother ? { ...creatorOf(rotater), user_id } : undefined
  return updateToken(db, organization_id, id, { ...value, ...maker })
}

/** Whether the token has the same person and grant as the principal. Also true if the principal has no person. */
export const endsWith = (
  { person }: Pick<NonNullable<Maker>, 'person'>, { user_id, grant_id }: Pick<TokenRow, 'user_id' | 'grant_id'>
): boolean => person === null || (person.user_id === user_id && person.grant_id === grant_id)

/** Changes a token and returns the new row; undefined if the token has a wrong MAC. */
export async function updateToken (
  db: Db, organizationId: string, id: number, changes: Omit<RowChanges<'api_tokens'>, 'id' | 'organization_id'>
): Promise<ApiToken | undefined> {
  const updated_at = changedAt(api_tokens.updated_at, changes)
  const changed = await updateAuthentic(db, 'api_tokens', oneOf(organizationId, id), { ...changes, updated_at })
  const row = changed && await findToken(db, organizationId, id)
  return row && showToken(db, row)
}

/** A token of the organization; undefined if the token does not exist or has a wrong MAC. */
export async function findToken (db: Db, organizationId: string, id: number): Promise<TokenRow | undefined> {
  const [row] = await db.select(columns).from(api_tokens).where(oneOf(organizationId, id))
  return authenticRow(db, 'api_tokens', row)
}

/** Like `findToken`, but locks the token until the end of the transaction. */
export async function lockToken (db: Db, organizationId: string, id: number): Promise<LockedToken | undefined> {
  const [row] = await db.select({ ...columns, is_live: sql<boolean>`${isLive}` }).from(api_tokens)
    .where(oneOf(organizationId, id)).for('update')
  return authenticRow(db, 'api_tokens', row)
}

/**
 * Locks, until the end of the transaction (FOR SHARE), the membership and grant of a token's person, and those of the
 * person who changes the token (`by`). The lock order is: memberships by account, grants by id, tokens (decision 0029).
 * Returns the expiry of the token's grant; null without a grant. Undefined if the token does not exist, or if its
 * membership or grant is no longer valid, so that the token must not be renewed. The caller has locked the
 * organization, so the token's owner cannot change.
 */
export async function lockTokenSupport (
  db: Db, organizationId: string, id: number, by: Principal['person']
): Promise<Date | null | undefined> {
  const [row] = await queryRows<{
    is_somebodys: boolean
    has_grant: boolean
    member: Record<string, unknown> | null
    its_grant: Record<string, unknown> | null
  }>(db, sql`
    WITH token AS (
      SELECT t.user_id, t.grant_id FROM api_tokens t
      WHERE t.organization_id = ${organizationId} AND t.id = ${id}::bigint
    ), member AS (
      SELECT m.* FROM members m WHERE m.organization_id = ${organizationId} AND m.status = 'active'
        AND m.user_id = ANY(ARRAY(SELECT user_id FROM token UNION ALL SELECT ${by?.user_id ?? null}::bigint))
      ORDER BY m.user_id FOR SHARE
    ), its_grant AS (
      SELECT g.* FROM oauth_grants g WHERE g.revoked_at IS NULL AND g.expires_at > ${STATEMENT_TIME}
        AND g.id = ANY(ARRAY(SELECT grant_id FROM token UNION ALL SELECT ${by?.grant_id ?? null}::bigint))
        AND (SELECT count(*) FROM member) >= 0
      ORDER BY g.id FOR SHARE NOWAIT
    )
    SELECT token.user_id IS NOT NULL AS is_somebodys, token.grant_id IS NOT NULL AS has_grant,
      to_jsonb(m) AS member, to_jsonb(g) AS its_grant
    FROM token LEFT JOIN member m ON m.user_id = token.user_id
    LEFT JOIN its_grant g ON g.id = token.grant_id AND g.user_id = token.user_id
      AND EXISTS (SELECT FROM oauth_clients c WHERE c.id = g.client_id AND c.disabled_at IS NULL)`)
  if (row === undefined) return undefined
  const member = authenticRow(db, 'members', fromJson('members', row.member) ?? undefined)
  if (row.is_somebodys && member === undefined) return undefined
  if (!row.has_grant) return null
  return authenticRow(db, 'oauth_grants', fromJson('oauth_grants', row.its_grant) ?? undefined)?.expires_at
}

/** The organization of a token. For commands of the operator, which get only the id. */
export async function findOrganizationOfToken (db: Db, id: number): Promise<string | undefined> {
  const { organization_id } = api_tokens
  const [row] = await db.select({ organization_id }).from(api_tokens)
    .innerJoin(organizations, eq(organizations.id, organization_id)).where(eq(api_tokens.id, id))
  return row?.organization_id
}

export async function showToken (db: Db, row: TokenRow): Promise<ApiToken> {
  return (await withRestrictions(db, row.organization_id, [row]))[0]!
}

/** The restrictions of a token, as the token itself may see them. */
export async function showRestrictions (
  db: Db, organizationId: string, slices: readonly Slice[]
): Promise<Restriction[]> {
  if (slices.length === 0) return []
  const slugs = await findSlugs(db, organizationId, idsOf(slices))
  return slices.flatMap((slice) => restrictionOf(slice, slugs))
}

/** The organization's valid tokens that a user created or rotated last, by id. They do not end with the user. */
export async function listLeftTokens (db: Db, organizationId: string, userId: number): Promise<number[]> {
  const isLeft = isMatching({ owner: 'organization', created_by: `user:${userId}` })
  const rows = await db.select({ id: api_tokens.id }).from(api_tokens)
    .where(and(eq(api_tokens.organization_id, organizationId), isLeft, isLive)).orderBy(asc(api_tokens.id))
  return rows.map(({ id }) => id)
}

/** A token that ends soon, of which the owners of its organization do not know yet. */
export interface EndingToken { organization_id: string, id: number, name: string, expires_at: Date }

/**
 * A page of the tokens of all organizations that end soon and whose end is not announced, in the order of their ends
 * and ids. Omits tokens that were made for a shorter time, and rows with a wrong MAC.
 */
export async function listUnannouncedEnds (
  db: Db, after: Pick<EndingToken, 'id' | 'expires_at'> | undefined, limit: number
): Promise<{ found: EndingToken[], last: EndingToken | undefined }> {
  const { id, expires_at, created_at, announced_end } = api_tokens
  const rows = await db.select(columns).from(api_tokens).where(and(
    isEnding, sql`${announced_end} IS DISTINCT FROM ${expires_at}`,
    sql`${expires_at} > ${created_at} + interval '${sql.raw(String(ENDING_DAYS))} days'`,
    after && sql`(${expires_at}, ${id}) > (${after.expires_at.toISOString()}::timestamptz, ${after.id}::bigint)`
  )).orderBy(expires_at, id).limit(limit)
  const ending = (row: typeof rows[number]): EndingToken =>
    ({ organization_id: row.organization_id, id: row.id, name: row.name, expires_at: row.expires_at! })
  const last = rows.length < limit ? undefined : rows.at(-1)
  return { found: rows.filter((row) => isAuthentic(db, 'api_tokens', row)).map(ending), last: last && ending(last) }
}

/** Records that the end of a token is announced. False if another instance announces it, or if the end has changed. */
export async function takeAnnouncement (
  db: Db, { organization_id, id, expires_at }: EndingToken
): Promise<boolean> {
  const taken = await db.update(api_tokens).set({ announced_end: expires_at }).where(and(
    oneOf(organization_id, id), eq(api_tokens.expires_at, expires_at),
    sql`${api_tokens.announced_end} IS DISTINCT FROM ${api_tokens.expires_at}`
  )).returning({ id: api_tokens.id })
  return taken.length === 1
}

/** Records that the mails about this end of a token were not sent, so that the next run sends them. */
export async function returnAnnouncement (db: Db, { organization_id, id, expires_at }: EndingToken): Promise<void> {
  await db.update(api_tokens).set({ announced_end: null })
    .where(and(oneOf(organization_id, id), eq(api_tokens.announced_end, expires_at)))
}

export async function deleteTokens (db: Db, organizationId: string, ids: readonly number[]): Promise<void> {
  if (ids.length === 0) return
  await db.delete(api_tokens).where(isOneOfOrganization(api_tokens, organizationId, ids))
}

/**
 * Locks up to `limit` tokens whose restrictions all name deleted levels, and returns the ids. The caller deletes these
 * tokens: without their restrictions, they would be valid for the whole organization. Does not verify MACs, so that a
 * manipulated row does not block the deletion of a level.
 */
export async function lockTokensOfNothing (
  db: Db, organizationId: string, limit: number, deleted?: Parameters<typeof namesNoLevel>[1]
): Promise<number[]> {
  const rows = await queryRows<{ id: string }>(db, sql`
    SELECT t.id FROM api_tokens t WHERE t.organization_id = ${organizationId} AND ${namesNoLevel(organizationId, deleted)}
    ORDER BY t.id LIMIT ${limit} FOR UPDATE OF t`)
  return rows.map(({ id }) => Number(id))
}

/** The names of API tokens by id. Omits deleted tokens, and rows with a wrong MAC. */
export async function findTokenNames (
  db: Db, organizationId: string, ids: readonly number[]
): Promise<Map<number, string>> {
  if (ids.length === 0) return new Map()
  const rows = await db.select(authenticatedColumns('api_tokens')).from(api_tokens)
    .where(isOneOfOrganization(api_tokens, organizationId, ids))
  return new Map(rows.filter((row) => isAuthentic(db, 'api_tokens', row)).map(({ id, name }) => [id, name]))
}

/**
 * Resolves the slugs of a restriction to ids, and returns the project. If a slug names no level, returns the kind of
 * the first missing level. Locks the project, because a concurrent deletion of a level does not see a token that is not
 * committed yet.
 */
export async function findSlice (
  db: Db, organizationId: string, { project, target, environment }: Restriction
): Promise<{ slice: Slice, project: AuthenticatedRow<'projects'> } | Level> {
  const named = matching(projects, { organization_id: organizationId, slug: project })
  // The lock is a separate statement, so that after a wait for a concurrent deletion the next statement sees its
  // result.
  await db.select({ id: projects.id }).from(projects).where(named).for('key share', waitUnlessCounter(db))
  const { organization_id, id: project_id } = projects
  const [row] = await db
    .select({
      project: authenticatedColumns('projects'),
      target: authenticatedColumns('targets'),
      environment: authenticatedColumns('environments')
    })
    .from(projects)
    .leftJoin(targets, matching(targets, { organization_id, project_id, slug: target ?? '' }))
    .leftJoin(environments, matching(environments, { organization_id, target_id: targets.id, slug: environment ?? '' }))
    .where(named)
  if (row === undefined) return 'project'
  if (target !== undefined && row.target === null) return 'target'
  if (environment !== undefined && row.environment === null) return 'environment'
  requireAuthentic(db, 'projects', row.project)
  if (row.target !== null) requireAuthentic(db, 'targets', row.target)
  if (row.environment !== null) requireAuthentic(db, 'environments', row.environment)
  const [target_id, environment_id] = [row.target?.id ?? null, row.environment?.id ?? null]
  return { slice: { project_id: row.project.id, target_id, environment_id }, project: row.project }
}

export type TokenRow = typeof api_tokens.$inferSelect

/** A locked token. `is_live`: the token has not expired by the database's clock. */
export type LockedToken = TokenRow & { is_live: boolean }

// Restrictions are stored by id and shown by slug. Omits restrictions to deleted levels; a token that has only such
// restrictions is deleted. Throws TamperedRow if a level has a wrong MAC: without this restriction, the token would
// look like a token of the whole organization.
async function withRestrictions (
  db: Db, organizationId: string, rows: readonly TokenRow[], pace?: Pace
): Promise<ApiToken[]> {
  const slugs = await findSlugs(db, organizationId, idsOf(rows.flatMap((row) => row.slices ?? [])), pace)
  const shown: ApiToken[] = []
  for (const some of piecesOf(rows)) {
    const began = performance.now()
    shown.push(...some.map((row) => toToken(row, slugs)))
    await pace?.(began)
  }
  return shown
}

function toToken (row: TokenRow, levels: LevelsById): ApiToken {
  const { slices, created_by_type, created_by_id, created_by_name, ...shown } = shownOf('api_tokens', row)
  return {
    ...shown,
    id: String(row.id),
    ...shownRestrictions(slices, levels),
    owner: row.user_id === null ? 'organization' : 'user',
    created_by: shownCreator({ created_by_type, created_by_id, created_by_name })
  }
}
