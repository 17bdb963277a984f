import { and, asc, eq, inArray, is, isNull, lte, sql, SQL } from 'drizzle-orm'
import type { AnyPgColumn } from 'drizzle-orm/pg-core'
import { PIECE } from './expired.ts'
import type { Db } from '../postgres/handle.ts'
import { andRowsAlone, engineOf } from '../postgres/engine.ts'
import { isOneOf } from '../rows/lists.ts'
import { matching } from '../rows/query.ts'
import { api_tokens, oauth_grants, token_removals } from '../tables.ts'

/** The number and first ids of an organization's API tokens that ended with a membership or grant. */
export interface EndedTokens { organization_id: string, count: number, ids: number[] }

/** API tokens to delete. Tokens with ids up to `last` are locked. `areAll`: whether all tokens are locked. */
export interface EndingTokens { ended: EndedTokens[], last: number, areAll: boolean }

interface RevokedGrant { id: number, user_id: number, client_id: string }

const MAX_NAMED = 50

/** The first 50 ids, for an event. */
export const namesOf = (ids: readonly number[]): string => ids.slice(0, MAX_NAMED).join(' ')

/**
 * Revokes the matching grants, whose tokens become invalid. Call it after all other changes of the user or client in
 * the transaction. Deletes the first 1,000 API tokens; a background job deletes the others. Sets the MAC to null, so
 * that clearing `revoked_at` in the database does not revive a grant. Returns the ended API tokens (see `endingOf`).
 */
export async function revokeGrants (db: Db, which: SQL): Promise<{ grants: RevokedGrant[], ended: EndedTokens[] }> {
  const grants: RevokedGrant[] = []
  for (let areAll = false; !areAll;) {
    const some = await markRevoked(db, which)
    grants.push(...some)
    areAll = some.length < PIECE
  }
  // Includes grants that were revoked before, because their API tokens may still exist.
  const all = db.select({ id: oauth_grants.id }).from(oauth_grants).where(which)
  return { grants, ended: await endTokensOf(db, inArray(api_tokens.grant_id, all)) }
}

/** Like `revokeGrants`, but revokes at most 1,000 grants. Returns the number of revoked grants. */
export async function revokeSomeGrants (db: Db, which: SQL): Promise<{ revoked: number, ended: EndedTokens[] }> {
  const grants = await markRevoked(db, which)
  const ended = grants.length === 0 ? [] : await endTokensOf(db, isOneOf(api_tokens.grant_id, idsOf(grants)))
  return { revoked: grants.length, ended }
}

/**
 * On Citus, locks the table `oauth_grants`, as each change of a grant does. The lock order is: the row of the account,
 * this table, rows of grants, changes of accounts. The insert of a grant also locks the table `users` (foreign key). So
 * with another order, two transactions would wait for each other until a timeout.
 */
export async function lockGrantsTable (db: Db): Promise<void> {
  if (engineOf(db) !== 'citus') return
  await db.update(oauth_grants).set({ revoked_at: oauth_grants.revoked_at }).where(eq(oauth_grants.id, 0))
}

// Locks in the order of ids, so that concurrent revocations do not deadlock.
async function markRevoked (db: Db, which: SQL): Promise<RevokedGrant[]> {
  await lockGrantsTable(db)
  const live = await db.select({ id: oauth_grants.id }).from(oauth_grants)
    .where(sql`${and(which, isNull(oauth_grants.revoked_at))}${andRowsAlone}`).orderBy(asc(oauth_grants.id)).limit(PIECE)
    .for('no key update')
  if (live.length === 0) return []
  return db.update(oauth_grants).set({ revoked_at: sql`now()`, mac: null }).where(isOneOf(oauth_grants.id, idsOf(live)))
    .returning({ id: oauth_grants.id, user_id: oauth_grants.user_id, client_id: oauth_grants.client_id })
}

// A transaction that creates a token locks the token's grant in share mode. Here the grants are locked, so all their
// tokens are visible. Omits tokens in the work list `token_removals`, because their end was reported before.
async function endTokensOf (db: Db, made: SQL): Promise<EndedTokens[]> {
  const which = and(made, sql`NOT EXISTS (SELECT FROM ${token_removals} WHERE ${isTokenRemoval({
    organization_id: api_tokens.organization_id, ended: 'grant', ended_id: api_tokens.grant_id
  })})`)!
  const locked = await lockTokens(db, which)
  await deleteLocked(db, which, locked)
  if (!locked.areAll) {
    const { organization_id, grant_id } = api_tokens
    const removals = db.selectDistinct({ organization_id, ended: sql`'grant'`.as('ended'), ended_id: grant_id })
      .from(api_tokens).where(which)
    await createTokenRemovals(db, removals.getSQL())
  }
  return locked.ended
}

const idsOf = (rows: readonly { id: number }[]): number[] => rows.map(({ id }) => id)

// Locks the first 1,000 matching API tokens, in the order of ids; on Citus by organization, because Citus locks rows of
// only one organization in a statement.
async function lockSome (db: Db, which: SQL): Promise<{ organization_id: string, id: number }[]> {
  const { organization_id, id } = api_tokens
  const some = (where: SQL) =>
    db.select({ organization_id, id }).from(api_tokens).where(where).orderBy(asc(id)).limit(PIECE)
  if (engineOf(db) !== 'citus') return some(which).for('update')
  const tokens = await some(which)
  const organizations = [...new Set(tokens.map((token) => token.organization_id))].sort()
  const locked: typeof tokens = []
  for (const organization of organizations) {
    locked.push(...await some(and(eq(organization_id, organization), lte(id, tokens.at(-1)!.id), which)!).for('update'))
  }
  return locked.sort((a, b) => a.id - b.id)
}

// Locks the first 1,000 tokens and counts all. The membership or grant is locked, so no token can be created meanwhile.
async function lockTokens (db: Db, which: SQL): Promise<EndingTokens> {
  const locked = await lockSome(db, which)
  const areAll = locked.length < PIECE
  const ended = areAll ? countByOrganization(locked) : await countTokens(db, which)
  return { ended, last: locked.at(-1)?.id ?? 0, areAll }
}

function countByOrganization (locked: readonly { organization_id: string, id: number }[]): EndedTokens[] {
  const counts = new Map<string, EndedTokens>()
  for (const { organization_id, id } of locked) {
    const counted = counts.get(organization_id) ?? { organization_id, count: 0, ids: [] }
    counted.count++
    if (counted.ids.length < MAX_NAMED) counted.ids.push(id)
    counts.set(organization_id, counted)
  }
  return [...counts.values()]
}

async function countTokens (db: Db, which: SQL): Promise<EndedTokens[]> {
  const { organization_id, id } = api_tokens
  return db.select({
    organization_id,
    count: sql<number>`count(*)::int`,
    ids: sql<number[]>`to_jsonb((array_agg(${id} ORDER BY ${id}))[1:${sql.raw(String(MAX_NAMED))}])`
  }).from(api_tokens).where(which).groupBy(organization_id)
}

async function deleteLocked (db: Db, which: SQL, { ended, last }: Pick<EndingTokens, 'ended' | 'last'>): Promise<void> {
  if (ended.length > 0) await db.delete(api_tokens).where(and(which, lte(api_tokens.id, last)))
}

/**
 * Deletes a person's API tokens that reference no grant of that person. Only a change outside the service can create
 * such rows, and `revokeGrants` does not find them.
 */
export async function endTokensWithoutGrant (db: Db, userId: number): Promise<EndedTokens[]> {
  const which = and(eq(api_tokens.user_id, userId), sql`NOT EXISTS (SELECT FROM ${oauth_grants} g
    WHERE g.id = ${api_tokens.grant_id} AND g.user_id = ${userId}::bigint)`)!
  const all: { organization_id: string, id: number }[] = []
  // While `lockSome` waits for a token, this token may create another token. So repeat until no token is left.
  for (let locked = await lockSome(db, which); locked.length > 0; locked = await lockSome(db, which)) {
    await db.delete(api_tokens).where(and(which, lte(api_tokens.id, locked.at(-1)!.id)))
    all.push(...locked)
  }
  return countByOrganization(all)
}

const tokensOf = (organizationId: string, userId: number) =>
  matching(api_tokens, { organization_id: organizationId, user_id: userId })

/** Locks the first 1,000 API tokens of a member, and counts all. The caller has locked organization and membership. */
export async function lockTokensOfMember (db: Db, organizationId: string, userId: number): Promise<EndingTokens> {
  return lockTokens(db, tokensOf(organizationId, userId))
}

/** Deletes the locked tokens; a job deletes the others, or `endTokensOfBefore` when the person joins again. */
export async function deleteTokensOfMember (
  db: Db, organization_id: string, user_id: number, locked: EndingTokens
): Promise<void> {
  await deleteLocked(db, tokensOf(organization_id, user_id), locked)
  if (!locked.areAll) await createTokenRemovals(db, ofMember(organization_id, user_id))
}

const ofMember = (organization_id: string, user_id: number): TokenRemoval =>
  ({ organization_id, ended: 'member', ended_id: user_id })

/** Deletes API tokens of an earlier membership. Returns false if there are too many: the person cannot join yet. */
export async function endTokensOfBefore (db: Db, organization_id: string, user_id: number): Promise<boolean> {
  const locked = await lockTokensOfMember(db, organization_id, user_id)
  await deleteTokensOfMember(db, organization_id, user_id, locked)
  if (!locked.areAll) return false
  // The background job must not delete tokens of the new membership.
  await deleteTokenRemoval(db, ofMember(organization_id, user_id))
  return true
}

/** Details for an event: how many API tokens of the organization ended, and the first 50 ids. Empty without tokens. */
export function endingOf (
  ended: readonly EndedTokens[], organizationId: string
): { tokens?: number, token_ids?: string } {
  const tokens = ended.filter(({ organization_id }) => organization_id === organizationId)
  if (tokens.length === 0) return {}
  return {
    tokens: tokens.reduce((sum, { count }) => sum + count, 0),
    token_ids: namesOf(tokens.flatMap(({ ids }) => ids))
  }
}

/** An entry of the work list: an ended membership, grant or level whose API tokens are not all deleted yet. */
export type TokenRemoval = typeof token_removals.$inferSelect

type OrColumn<T> = { [K in keyof T]: T[K] | AnyPgColumn }

/** A condition for one entry, by values or by columns of an outer query. */
export const isTokenRemoval = ({ organization_id, ended, ended_id }: OrColumn<TokenRemoval>): SQL =>
  matching(token_removals, { organization_id, ended, ended_id })

/** Adds entries for invalid API tokens, which a background job then deletes. */
export async function createTokenRemovals (db: Db, removals: TokenRemoval | SQL): Promise<void> {
  const insert = db.insert(token_removals)
  await (is(removals, SQL) ? insert.select(removals) : insert.values(removals)).onConflictDoNothing()
}

/** Deletes an entry whose tokens are all deleted; with `besides`, only if that condition holds. */
export async function deleteTokenRemoval (db: Db, removal: TokenRemoval, besides?: SQL): Promise<void> {
  await db.delete(token_removals).where(and(isTokenRemoval(removal), besides))
}
