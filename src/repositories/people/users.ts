import { and, asc, eq, gt, isNull, ne, sql, type SQL } from 'drizzle-orm'
import { MAX_OWNED } from '../../../schemas/organizations.ts'
import type { Role } from '../../../schemas/users.ts'
import { STATEMENT_TIME } from '../../db/columns.ts'
import { authenticatedColumns, shownColumns, type ShownRow } from '../../db/rows/authenticated.ts'
import { waitUnlessCounter } from '../../db/rows/counter.ts'
import { isAuthentic, macOf, readNow, updateAuthentic, type Db } from '../../db/database.ts'
import { deleteExpired, deleteInPieces } from '../../db/callers/expired.ts'
import { andRowsAlone, engineOf } from '../../db/postgres/engine.ts'
import { authenticRow, matching } from '../../db/rows/query.ts'
import { makeId } from '../../db/rows/ids.ts'
import { endTokensWithoutGrant, lockGrantsTable, revokeGrants, type EndedTokens } from '../../db/callers/grants.ts'
import {
  former_slugs, members, oauth_grants, organization_counters, organizations, password_links, password_resets, sessions,
  second_factors, sign_in_devices, sign_in_steps, users
} from '../../db/tables.ts'
import { canonicalEmail } from '../../rules/formats/emails.ts'

export type User = ShownRow<'users'>

export interface Membership { id: string, name: string, slug: string, role: Role, joined_at: Date }

const NOW = { updated_at: sql`now()` }

/** Creates an account; undefined if the address already has an account. */
export async function createUser (
  db: Db, user: { email: string, name: string, password_hash: string | null }
): Promise<number | undefined> {
  const row = {
    id: makeId(),
    ...user,
    email_normalized: canonicalEmail(user.email),
    is_verified: user.password_hash !== null,
    disabled_at: null,
    second_factor_id: null
  }
  const [made] = await db.insert(users).overridingSystemValue().values({ ...row, mac: macOf(db, 'users', row) })
    .onConflictDoNothing().returning({ id: users.id })
  return made?.id
}

type WithPassword = User & { password_hash: string | null }

export async function findUserByEmail (db: Db, email: string): Promise<WithPassword | undefined> {
  return readUser(db, isOf(email))
}

/** The account of an address, also if the account has a wrong MAC, so that a manipulated account can be closed. */
export async function findAccount (db: Db, email: string): Promise<number | undefined> {
  const [found] = await db.select({ id: users.id }).from(users).where(isOf(email))
  return found?.id
}

export async function findUser (db: Db, id: number): Promise<WithPassword | undefined> {
  return readUser(db, eq(users.id, id))
}

async function readUser (db: Db, where: SQL): Promise<WithPassword | undefined> {
  const columns = { ...shownColumns('users'), ...authenticatedColumns('users') }
  const [found] = await db.select(columns).from(users).where(where)
  return authenticRow(db, 'users', found)
}

const isOf = (email: string): SQL => eq(users.email_normalized, canonicalEmail(email))

/** At most 100 accounts after a given id, in creation order. */
export async function listUsers (db: Db, after: number): Promise<(User & { has_password: boolean })[]> {
  return db.select({
    ...shownColumns('users'), has_password: sql<boolean>`${users.password_hash} IS NOT NULL`
  }).from(users).where(gt(users.id, after)).orderBy(asc(users.id)).limit(100)
}

/** Replaces the hash of an unchanged password; the sessions stay. False if the stored hash is no longer `from`. */
export async function updatePasswordHash (db: Db, id: number, from: string, password_hash: string): Promise<boolean> {
  const its = matching(users, { id, password_hash: from })
  return await updateAuthentic(db, 'users', its, { password_hash }) !== undefined
}

/**
 * Locks an account. A transaction that ends sessions, grants or tokens of the account must take this lock first, to
 * prevent deadlocks. A transaction that has locked a counter row is retried instead of waiting (`waitUnlessCounter`).
 */
export async function lockUser (db: Db, id: number): Promise<void> {
  await db.select({ id: users.id }).from(users).where(sql`${eq(users.id, id)}${andRowsAlone}`)
    .for('no key update', waitUnlessCounter(db))
}

// On Citus, a change of an account or grant locks the whole table. So such a change first locks the account, then the
// table of grants, always in this order to prevent deadlocks.
async function lockAccountAndGrants (db: Db, id: number): Promise<void> {
  if (engineOf(db) !== 'citus') return
  await lockUser(db, id)
  await lockGrantsTable(db)
}

/**
 * Sets a new password. Ends all sessions, grants and links of the user (OA-63), and returns the API tokens that became
 * invalid. Undefined without changes if the account was closed, or if the password hash is no longer `from`. An invited
 * user also sets the name (`name`). With `keepsSessions`, the sessions stay.
 */
export async function changePassword (
  db: Db, id: number, password_hash: string, from?: string, name?: string, { keepsSessions = false } = {}
): Promise<EndedTokens[] | undefined> {
  const where = and(
    eq(users.id, id), isNull(users.disabled_at), from === undefined ? undefined : eq(users.password_hash, from)
  )
  await lockAccountAndGrants(db, id)
  const changed = await updateAuthentic(db, 'users', where, { password_hash, is_verified: true, name, ...NOW })
  return changed && endEverything(db, id, { keepsSessions })
}

/**
 * Closes or reopens an account. Ends all sessions, grants and tokens of the account, including those that were created
 * while the account was being closed. Returns the API tokens that became invalid. Undefined if an account to reopen has
 * a wrong MAC.
 */
export async function setDisabled (db: Db, id: number, disabled: boolean): Promise<EndedTokens[] | undefined> {
  await lockAccountAndGrants(db, id)
  const marked = await updateAuthentic(db, 'users', eq(users.id, id), (now) =>
    ({ disabled_at: disabled ? now : null, ...NOW })) !== undefined
  if (!marked && disabled) {
    await db.update(users).set({ disabled_at: sql`now()`, mac: null, ...NOW }).where(eq(users.id, id))
  }
  const ended = await endEverything(db, id)
  return marked || disabled ? ended : undefined
}

// Deletes a second factor that is in setup, and not an active one. The caller has locked the account.
async function deletePendingFactor (db: Db, user_id: number): Promise<void> {
  const [account] = await db.select({ active: users.second_factor_id }).from(users).where(eq(users.id, user_id))
  await db.delete(second_factors)
    .where(and(eq(second_factors.user_id, user_id), ne(second_factors.id, account?.active ?? 0)))
}

/**
 * Ends all sessions, remembered browsers, grants and links of a user, and the setup of a second factor. With
 * `keepsSessions`, the sessions stay. Returns the API tokens that became invalid.
 */
export async function endEverything (
  db: Db, id: number, { keepsSessions = false } = {}
): Promise<EndedTokens[]> {
  await lockUser(db, id)
  if (!keepsSessions) await deleteInPieces(db, sessions.token_hash, eq(sessions.user_id, id))
  await deletePendingFactor(db, id)
  await deleteInPieces(db, sign_in_steps.token_hash, eq(sign_in_steps.user_id, id))
  await db.delete(sign_in_devices).where(eq(sign_in_devices.user_id, id))
  await db.delete(password_links).where(eq(password_links.user_id, id))
  await db.delete(password_resets).where(eq(password_resets.user_id, id))
  const { ended } = await revokeGrants(db, eq(oauth_grants.user_id, id))
  return [...ended, ...await endTokensWithoutGrant(db, id)]
}

/** The maximum number of memberships of a person, and of organizations that a person owns. */
export const MEMBERSHIP_LIMITS = { joined: 1000, owned: MAX_OWNED } as const

/** The numbers of memberships and of owned organizations. A deleted organization counts until its slug is free. */
export interface Memberships { joined: number, owned: number }

/**
 * Locks an account until the commit, so that concurrent transactions cannot exceed a limit together. Returns the
 * numbers for the limits. If the account is being closed, a transaction that has locked a counter row is retried
 * instead of waiting (`waitUnlessCounter`).
 */
export async function lockMemberships (db: Db, userId: number): Promise<Memberships> {
  await lockUser(db, userId)
  const [[own], [former]] = await Promise.all([
    db.select({
      joined: sql<number>`count(*)::int`, owned: sql<number>`count(*) FILTER (WHERE ${members.role} = 'owner')::int`
    }).from(members).where(eq(members.user_id, userId)),
    db.select({ owned: sql<number>`count(DISTINCT ${former_slugs.organization_id})::int` }).from(former_slugs)
      .where(and(eq(former_slugs.owner_id, userId), gt(former_slugs.reserved_until, sql`now()`)))
  ])
  return { joined: own!.joined, owned: own!.owned + former!.owned }
}

/** The limit that another membership with this role would exceed; undefined if the membership is within the limits. */
export function reachedLimit ({ joined, owned }: Memberships, role: Role): number | undefined {
  if (joined >= MEMBERSHIP_LIMITS.joined) return MEMBERSHIP_LIMITS.joined
  return role === 'owner' && owned >= MEMBERSHIP_LIMITS.owned ? MEMBERSHIP_LIMITS.owned : undefined
}

/**
 * Makes a person a member. If the person has reached the maximum number of memberships or of owned organizations,
 * returns the limit without changes. API tokens of an earlier membership stay invalid (`endTokensOfBefore`).
 */
export async function createMember (
  db: Db, member: { organization_id: string, user_id: number, role: Role }
): Promise<{ limit: number } | undefined> {
  const limit = reachedLimit(await lockMemberships(db, member.user_id), member.role)
  if (limit !== undefined) return { limit }
  const row = { ...member, status: 'active' as const }
  await db.insert(members).values({ ...row, mac: macOf(db, 'members', row) })
  return undefined
}

/** The active memberships of a user, sorted by the name of the organization. */
export async function listMemberships (db: Db, userId: number): Promise<Membership[]> {
  const { id, slug } = organizations
  const { name } = organization_counters
  const membership = { id, name, slug, role: members.role, joined_at: members.joined_at }
  const rows = await db.select({ membership, row: authenticatedColumns('members') })
    .from(members).innerJoin(organizations, eq(organizations.id, members.organization_id))
    .innerJoin(organization_counters, eq(organization_counters.organization_id, members.organization_id))
    .where(matching(members, { user_id: userId, status: 'active' }))
    .orderBy(asc(name), asc(id)).limit(1000)
  return rows.filter(({ row }) => isAuthentic(db, 'members', row)).map(({ membership }) => membership)
}

const DAY = 24 * 60 * 60 * 1000

/** Creates a link that sets the password once within three days. Deletes the earlier link of the user. */
export async function createPasswordLink (db: Db, token_hash: Buffer, userId: number): Promise<void> {
  // The lock makes concurrent calls run one after the other, so that only the last link is valid.
  await lockUser(db, userId)
  await db.delete(password_links).where(eq(password_links.user_id, userId))
  await deleteExpired(db, password_links.token_hash, sql`${password_links.expires_at} < now()`)
  const row = { token_hash, user_id: userId, expires_at: new Date(await readNow(db) + 3 * DAY) }
  await db.insert(password_links).values({ ...row, mac: macOf(db, 'password_links', row) })
}

export async function findPasswordLink (db: Db, token_hash: Buffer): Promise<User | undefined> {
  const [found] = await db.select({
    user: shownColumns('users'), link: authenticatedColumns('password_links'), row: authenticatedColumns('users')
  })
    .from(password_links).innerJoin(users, eq(users.id, password_links.user_id))
    .where(and(isValidLink(token_hash), isNull(users.disabled_at)))
  return authenticRow(db, 'password_links', found?.link) && authenticRow(db, 'users', found?.row) && found?.user
}

/** Deletes a link and returns the id of its user. Of two concurrent calls, only one gets the id. */
export async function takePasswordLink (db: Db, token_hash: Buffer): Promise<number | undefined> {
  const [row] = await db.delete(password_links).where(isValidLink(token_hash))
    .returning(authenticatedColumns('password_links'))
  return authenticRow(db, 'password_links', row)?.user_id
}

const isValidLink = (token_hash: Buffer) =>
  and(eq(password_links.token_hash, token_hash), gt(password_links.expires_at, STATEMENT_TIME))
