import { and, desc, eq, gt, isNull, ne, or, sql, type SQL } from 'drizzle-orm'
import type { Ability } from '../../../schemas/scopes.ts'
import { TOKEN_LIMITS, type ApiToken, type Restriction } from '../../../schemas/tokens.ts'
import { authenticatedColumns, fromJson } from '../../db/rows/authenticated.ts'
import { changedAt } from '../../db/columns.ts'
import { PIECE } from '../../db/callers/expired.ts'
import { makeId } from '../../db/rows/ids.ts'
import {
  isAuthentic, isOneOfOrganization, macOf, readNow, requireAuthentic, updateAuthentic, type Authenticated, type Db
} from '../../db/database.ts'
import { matching } from '../../db/rows/matching.ts'
import { findSlugs } from '../../db/rows/slugs.ts'
import {
  api_tokens, environments, former_token_hashes, organizations, projects, targets
} from '../../db/tables.ts'
import { heldFrom, heldPage, readPage, type HeldPage, type PageRequest } from '../../rules/pagination.ts'
import { pathOf, type Slice } from '../../rules/slices.ts'
import type { Principal } from './principals.ts'

export interface NewToken {
  organization_id: string
  name: string
  token_hash: Buffer
  token_prefix: string
  abilities: Ability[]
  slices: Slice[]
  expires_at: Date | null
  /** Who makes it; an operator, when it is left out. */
  made_by?: Pick<Principal, 'type' | 'id' | 'name' | 'person'>
}

const { last_used_at, created_at, updated_at } = api_tokens
const columns = { ...authenticatedColumns('api_tokens'), last_used_at, created_at, updated_at }
const isLive = or(isNull(api_tokens.expires_at), gt(api_tokens.expires_at, sql`now()`))!

export async function createToken (db: Db, { made_by: maker, slices, ...token }: NewToken): Promise<ApiToken> {
  const row = { id: makeId(), ...token, slices: slices.length === 0 ? null : slices, ...madeBy(maker) }
  const rows = await db.insert(api_tokens).overridingSystemValue().values({
    ...row, mac: macOf(db, 'api_tokens', row)
  }).returning(columns)
  return (await withRestrictions(db, token.organization_id, rows))[0]!
}

const madeBy = (maker: NewToken['made_by']) => ({
  created_by_type: maker?.type ?? null,
  created_by_id: maker?.id ?? null,
  created_by_name: maker?.name ?? null,
  // What a token makes belongs to whomever the token belongs to.
  user_id: maker?.person?.user_id ?? null,
  grant_id: maker?.person?.grant_id ?? null
})

/**
 * Makes room for one API token more: answers the limit that those of an organization, or of one person in it, have
 * reached, as far as they have not expired; undefined when there is room. What has expired is shown for a while, but of
 * no more than that either. A token that is there already and becomes the person's, or is given another life, is one
 * more of theirs; of the organization's it is one more only if it had expired. The caller holds the organization, so
 * that of two who take what is left the second counts what the first made.
 */
export async function makeTokenRoom (
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
    DELETE FROM api_tokens t USING oldest WHERE t.organization_id = oldest.organization_id AND t.id = oldest.id`)
}

/**
 * Tokens of the organization, newest first; to a narrowed caller only those that lie inside its part of the hierarchy.
 * A row that the service did not write is none, though the total counts it.
 */
export async function listTokens (
  db: Db, organizationId: string, slices: readonly Slice[], page: PageRequest
): Promise<{ rows: ApiToken[], total: number }> {
  const own = and(eq(api_tokens.organization_id, organizationId), slices.length === 0 ? undefined : isCoveredBy(slices))
  const total = sql<number>`(SELECT count(*)::int FROM ${api_tokens} WHERE ${own})`
  const { rows, total: all } = await readPage(page, async ({ limit, offset }) =>
    db.select({
      ...columns, total
    }).from(api_tokens).where(own).orderBy(desc(api_tokens.id)).limit(limit).offset(offset))
  const genuine = rows.filter((row) => isAuthentic(db, 'api_tokens', row))
  return { rows: await withRestrictions(db, organizationId, genuine), total: all }
}

// `coversAll` as a condition, which the database evaluates without blocking the event loop: the token has slices, and
// each of them, its target or its project is one of the caller's slices. The caller's slices are a query of their own,
// so the database makes a hash table of them once for all tokens. A row whose slices have another form than the service
// writes is left out.
const isCoveredBy = (slices: readonly Slice[]): SQL => {
  const paths = JSON.stringify(slices.map(pathOf))
  const isCovered = (...ids: (keyof Slice)[]) => sql`${
    sql.join(ids.map((id) => sql.raw(`(inside->>'${id}')`)), sql` || '/' || `)
  } IN (SELECT value FROM jsonb_array_elements_text(${paths}::jsonb))`
  return sql`jsonb_typeof(${api_tokens.slices}) = 'array' AND ${api_tokens.slices} <> '[]' AND NOT EXISTS (
    SELECT FROM jsonb_array_elements(
      CASE WHEN jsonb_typeof(${api_tokens.slices}) = 'array' THEN ${api_tokens.slices} ELSE '[]' END) AS inside
    WHERE (${isCovered('project_id', 'target_id', 'environment_id')} OR ${isCovered('project_id', 'target_id')}
      OR ${isCovered('project_id')}) IS NOT TRUE)`
}

/** An API token that a person made, or that one of theirs made, as the person and the operator see it. */
export type OwnToken = Pick<ApiToken,
  'name' | 'token_prefix' | 'abilities' | 'expires_at' | 'last_used_at' | 'created_at'> & {
    id: number
    organization: { id: string, name: string, slug: string }
  }

/**
 * A page of the tokens of a person in all organizations, newest first; those that have expired are over, and a row that
 * the service did not write is none.
 */
export async function listTokensOfPerson (db: Db, userId: number, page = 1): Promise<HeldPage<OwnToken>> {
  const { limit, offset } = heldFrom(page)
  const organization = { id: organizations.id, name: organizations.name, slug: organizations.slug }
  const rows = await db.select({ token: columns, organization })
    .from(api_tokens).innerJoin(organizations, eq(organizations.id, api_tokens.organization_id))
    .where(and(eq(api_tokens.user_id, userId), isLive))
    .orderBy(desc(api_tokens.id)).limit(limit).offset(offset)
  const held = heldPage(rows, page)
  const genuine = held.rows.filter(({ token }) => isAuthentic(db, 'api_tokens', token))
  const shown = genuine.map(({ token, organization }) => {
    const { id, name, token_prefix, abilities, expires_at, last_used_at, created_at } = token
    return {
      id, name, token_prefix, abilities: abilities as Ability[], expires_at, last_used_at, created_at, organization
    }
  })
  return { ...held, rows: shown }
}

/**
 * The organization in which somebody has a token; undefined when there is none of theirs. It stays theirs until the end
 * of the transaction: what becomes somebody else's by a rotation is not theirs to end.
 */
export async function lockOwnToken (db: Db, userId: number, id: number): Promise<string | undefined> {
  const { organization_id } = api_tokens
  const [row] = await db.select({ organization_id }).from(api_tokens)
    .innerJoin(organizations, eq(organizations.id, organization_id))
    .where(matching(api_tokens, { user_id: userId, id })).for('update', { of: api_tokens })
  return row?.organization_id
}

/** The slices of a token of the organization; none when it acts in the whole organization. */
export async function findSlices (db: Db, organizationId: string, id: number): Promise<Slice[] | undefined> {
  const [row] = await db.select({ slices: api_tokens.slices }).from(api_tokens)
    .where(matching(api_tokens, { organization_id: organizationId, id })).for('update')
  return row && (row.slices ?? [])
}

const ofOrganization = (organizationId: string, id: number): SQL | undefined =>
  matching(api_tokens, { organization_id: organizationId, id })

/**
 * Gives a token another value, in place and at once. The one that it had lives on for so many seconds; one from an
 * earlier rotation ends. But one that calls for it itself with an `Idempotency-Key` (`isKeyed`) lives on, as long as it
 * would have, and the one in between ends: its answer may have got lost. Without a key nobody says so, and somebody may
 * be at work with it. The caller holds the token (`lockToken`). Where `rotater` is a person, or a token of theirs, it
 * is then that person's, as if they had made it: it ends with whoever has got the value.
 */
export async function rotateToken (
  db: Db, { organization_id, id, token_hash: former, user_id, grant_id }: TokenRow,
  value: Pick<TokenRow, 'token_hash' | 'token_prefix'>, overlapSeconds: number,
  rotater?: Pick<Principal, 'type' | 'id' | 'name' | 'person' | 'caller'>, isKeyed = false
): Promise<ApiToken | undefined> {
  const { organization_id: of, token_id } = former_token_hashes
  const caller = rotater?.caller
  const isByFormer = caller !== undefined && 'api_token' in caller && caller.api_token === id &&
    caller.hash !== former.toString('hex')
  const staysAsItIs = isKeyed && isByFormer && overlapSeconds > 0
  if (!staysAsItIs) await db.delete(former_token_hashes).where(and(eq(of, organization_id), eq(token_id, id)))
  if (overlapSeconds > 0 && !staysAsItIs) {
    const expires_at = new Date(await readNow(db) + overlapSeconds * 1000)
    const row = { organization_id, token_id: id, token_hash: former, expires_at }
    await db.insert(former_token_hashes).values({ ...row, mac: macOf(db, 'former_token_hashes', row) })
  }
  const changesHands = rotater !== undefined && !endsWith(rotater, { user_id, grant_id })
  return updateToken(db, organization_id, id, { ...value, ...(changesHands && madeBy(rotater)) })
}

/** Whether a token that somebody rotates ends with what they act through anyway, or they act for nobody. */
export const endsWith = (
  { person }: Pick<Principal, 'person'>, { user_id, grant_id }: Pick<TokenRow, 'user_id' | 'grant_id'>
): boolean => person === null || (person.user_id === user_id && person.grant_id === grant_id)

/** Changes a token, and answers it as it is then; undefined when it is not as the service wrote it. */
export async function updateToken (
  db: Db, organizationId: string, id: number,
  changes: Partial<Pick<TokenRow,
    'name' | 'expires_at' | 'token_hash' | 'token_prefix' | keyof ReturnType<typeof madeBy>>>
): Promise<ApiToken | undefined> {
  const where = ofOrganization(organizationId, id)
  if (await updateAuthentic(db, 'api_tokens', where, changes, {
    updated_at: changedAt(api_tokens.updated_at, changes)
  }) === undefined) {
    return undefined
  }
  const row = await findToken(db, organizationId, id)
  return row && showToken(db, row)
}

/** A token of the organization; undefined when there is none, or none that the service wrote. */
export async function findToken (db: Db, organizationId: string, id: number): Promise<TokenRow | undefined> {
  const [row] = await db.select(columns).from(api_tokens).where(ofOrganization(organizationId, id))
  return row && isAuthentic(db, 'api_tokens', row) ? row : undefined
}

/** The same, which stays as it is until the end of the transaction, and whether it has not expired. */
export async function lockToken (db: Db, organizationId: string, id: number): Promise<LockedToken | undefined> {
  const [row] = await db.select({ ...columns, is_live: sql<boolean>`${isLive}` }).from(api_tokens)
    .where(ofOrganization(organizationId, id)).for('update')
  return row && isAuthentic(db, 'api_tokens', row) ? row : undefined
}

/**
 * Shares what a token rests on until the end of the transaction, its person's membership and its grant, and with them
 * those of whoever changes it (`by`): memberships by account, grants by id, before any token (0029). Answers when the
 * token ends at the latest: with its grant, or null where it has none. Undefined when there is no such token, or one of
 * these counts no more: then nothing gives it another value or a longer life. The caller holds the organization, so it
 * becomes nobody else's meanwhile.
 */
export async function holdGround (
  db: Db, organizationId: string, id: number, by: Principal['person']
): Promise<Date | null | undefined> {
  const [row] = await db.execute(sql`
    WITH token AS (
      SELECT t.user_id, t.grant_id FROM api_tokens t
      WHERE t.organization_id = ${organizationId} AND t.id = ${id}::bigint
    ), member AS (
      SELECT m.* FROM members m WHERE m.organization_id = ${organizationId} AND m.status = 'active'
        AND m.user_id = ANY(ARRAY(SELECT user_id FROM token UNION ALL SELECT ${by?.user_id ?? null}::bigint))
      ORDER BY m.user_id FOR SHARE
    ), its_grant AS (
      SELECT g.* FROM oauth_grants g WHERE g.revoked_at IS NULL AND g.expires_at > now()
        AND g.id = ANY(ARRAY(SELECT grant_id FROM token UNION ALL SELECT ${by?.grant_id ?? null}::bigint))
        AND (SELECT count(*) FROM member) >= 0
      ORDER BY g.id FOR SHARE
    )
    SELECT token.user_id IS NOT NULL AS is_somebodys, token.grant_id IS NOT NULL AS has_grant,
      to_jsonb(m) AS member, to_jsonb(g) AS its_grant
    FROM token LEFT JOIN member m ON m.user_id = token.user_id
    LEFT JOIN its_grant g ON g.id = token.grant_id AND g.user_id = token.user_id
      AND EXISTS (SELECT FROM oauth_clients c WHERE c.id = g.client_id AND c.disabled_at IS NULL)`) as unknown as {
    is_somebodys: boolean
    has_grant: boolean
    member: Record<string, unknown> | null
    its_grant: Record<string, unknown> | null
  }[]
  if (row === undefined) return undefined
  const member = fromJson('members', row.member)
  const grant = fromJson('oauth_grants', row.its_grant)
  if (row.is_somebodys && (member === null || !isAuthentic(db, 'members', member))) return undefined
  if (!row.has_grant) return null
  return grant !== null && isAuthentic(db, 'oauth_grants', grant) ? grant.expires_at : undefined
}

/** The organization of a token that an operator names by its id, which is the installation's own. */
export async function findOrganizationOfToken (db: Db, id: number): Promise<string | undefined> {
  const { organization_id } = api_tokens
  const [row] = await db.select({ organization_id }).from(api_tokens)
    .innerJoin(organizations, eq(organizations.id, organization_id)).where(eq(api_tokens.id, id))
  return row?.organization_id
}

/** A token as the API shows it. */
export async function showToken (db: Db, row: TokenRow): Promise<ApiToken> {
  return (await withRestrictions(db, row.organization_id, [row]))[0]!
}

export async function deleteTokens (db: Db, organizationId: string, ids: readonly number[]): Promise<void> {
  if (ids.length === 0) return
  await db.delete(api_tokens).where(isOneOfOrganization(api_tokens, organizationId, ids))
}

/**
 * Takes the tokens of the organization that were narrowed to what is gone now, and nothing else, so many at most, to be
 * deleted: without the slices that held them back they would read as tokens of the whole organization. What slices hold
 * is not verified here: a row that somebody else wrote, in whatever form, fails no deletion.
 */
export async function lockTokensOfNothing (db: Db, organizationId: string, limit: number): Promise<number[]> {
  const rows = await db.execute(sql`
    SELECT t.id FROM api_tokens t WHERE t.organization_id = ${organizationId} AND jsonb_typeof(t.slices) = 'array'
      AND NOT EXISTS (
      SELECT FROM jsonb_array_elements(CASE WHEN jsonb_typeof(t.slices) = 'array' THEN t.slices END) AS slice
      WHERE CASE
        WHEN slice->>'environment_id' IS NOT NULL THEN EXISTS (SELECT FROM environments e
          WHERE e.organization_id = t.organization_id AND e.id = (slice->>'environment_id')::char(26))
        WHEN slice->>'target_id' IS NOT NULL THEN EXISTS (SELECT FROM targets g
          WHERE g.organization_id = t.organization_id AND g.id = (slice->>'target_id')::char(26))
        ELSE EXISTS (SELECT FROM projects p WHERE p.organization_id = t.organization_id
          AND p.id = (slice->>'project_id')::char(26))
      END)
    ORDER BY t.id LIMIT ${limit} FOR UPDATE OF t`) as unknown as { id: string }[]
  return rows.map(({ id }) => Number(id))
}

/**
 * The slice that a restriction names, by ids; undefined when something in it does not exist. Its project stays until
 * the end of the transaction, and whatever is below it: a delete would not see the token that is about to be made.
 */
export async function findSlice (
  db: Db, organizationId: string, { project, target, environment }: Restriction
): Promise<Slice | undefined> {
  const named = matching(projects, { organization_id: organizationId, slug: project })
  // A statement of its own: the next one then sees what a delete took away that this one waited for.
  await db.select({ id: projects.id }).from(projects).where(named).for('key share')
  const [row] = await db
    .select({
      project: authenticatedColumns('projects'),
      target: authenticatedColumns('targets'),
      environment: authenticatedColumns('environments')
    })
    .from(projects)
    .leftJoin(targets, matching(targets, {
      organization_id: projects.organization_id, project_id: projects.id, slug: target ?? ''
    }))
    .leftJoin(environments, matching(environments, {
      organization_id: projects.organization_id, target_id: targets.id, slug: environment ?? ''
    }))
    .where(named)
  if (row === undefined || (target !== undefined && row.target === null)) return undefined
  if (environment !== undefined && row.environment === null) return undefined
  requireAuthentic(db, 'projects', row.project)
  if (row.target !== null) requireAuthentic(db, 'targets', row.target)
  if (row.environment !== null) requireAuthentic(db, 'environments', row.environment)
  return { project_id: row.project.id, target_id: row.target?.id ?? null, environment_id: row.environment?.id ?? null }
}

/** A token with what is authenticated of it. */
export type TokenRow = Authenticated<'api_tokens'> & Pick<typeof api_tokens.$inferSelect,
  'last_used_at' | 'created_at' | 'updated_at'>

/** A token that is held, and whether it has not expired, by the database's clock. */
export type LockedToken = TokenRow & { is_live: boolean }

// Restrictions are stored by id and shown by slug. A restriction to a deleted level covers nothing and is left out; a
// token ends with the last of its restrictions. A level whose row was changed ends the request: without that
// restriction, the token would look like one for the whole organization.
async function withRestrictions (db: Db, organizationId: string, rows: readonly TokenRow[]): Promise<ApiToken[]> {
  const slices = rows.flatMap((row) => row.slices ?? [])
  const slugs = await findSlugs(db, organizationId, slices.flatMap(({ project_id, target_id, environment_id }) =>
    [project_id, target_id, environment_id]))
  return rows.map((row) => {
    const { name, token_prefix, abilities, expires_at, last_used_at, created_at, updated_at } = row
    const { created_by_type: type, created_by_id: by, created_by_name: byName } = row
    return {
      id: String(row.id),
      name,
      token_prefix,
      abilities,
      restrictions: (row.slices ?? []).flatMap((slice) => restrictionOf(slice, slugs)),
      expires_at,
      last_used_at,
      created_by: type === null || by === null ? null : { type, id: by, name: byName ?? '' },
      created_at,
      updated_at
    }
  })
}

function restrictionOf (
  { project_id, target_id, environment_id }: Slice, slugs: ReadonlyMap<string, string>
): Restriction[] {
  const [project, target, environment] = [
    slugs.get(project_id), slugs.get(target_id ?? ''), slugs.get(environment_id ?? '')
  ]
  if (project === undefined || (target_id !== null && target === undefined) ||
    (environment_id !== null && environment === undefined)) {
    return []
  }
  return [{ project, ...(target !== undefined && { target }), ...(environment !== undefined && { environment }) }]
}
