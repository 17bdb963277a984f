import { and, asc, eq, gt, isNull, sql, type SQL } from 'drizzle-orm'
import type { Role } from '../../schemas/users.ts'
import { authenticatedColumns } from '../db/authenticated.ts'
import { isAuthentic, macOf, readNow, updateAuthentic, type Db } from '../db/database.ts'
import { deleteExpired, deleteInPieces } from '../db/expired.ts'
import { lockMemberships, reachedLimit } from '../db/memberships.ts'
import { makeId } from '../db/ids.ts'
import { endTokensWithoutGrant, revokeGrants, type EndedTokens } from '../db/grants.ts'
import {
  members, oauth_grants, organizations, password_links, sessions, sign_in_devices, sign_in_steps,
  userColumns, users
} from '../db/tables.ts'
import { canonicalEmail } from '../rules/emails.ts'

/** A person with an account. */
export interface User {
  id: number
  email: string
  name: string
  is_verified: boolean
  disabled_at: Date | null
  /** What is asked for beside the password; null: nothing is. */
  second_factor_id: number | null
  created_at: Date
  updated_at: Date
}

export interface Membership { id: string, name: string, slug: string, role: Role, joined_at: Date }

const NOW = { updated_at: sql`now()` }

/** Makes an account; undefined when the address has one. */
export async function createUser (
  db: Db, user: { email: string, name: string, password_hash: string | null }
): Promise<number | undefined> {
  const id = makeId()
  const row = {
    id,
    ...user,
    email_normalized: canonicalEmail(user.email),
    is_verified: user.password_hash !== null,
    disabled_at: null,
    second_factor_id: null
  }
  const made = await db.insert(users).overridingSystemValue().values({ ...row, mac: macOf(db, 'users', row) })
    .onConflictDoNothing().returning({ id: users.id })
  return made[0]?.id
}

type WithPassword = User & { password_hash: string | null }

export async function findUserByEmail (db: Db, email: string): Promise<WithPassword | undefined> {
  const [found] = await readUsers(db, isOf(email))
  return authentic(db, found)
}

/** The account of an address, also one that was changed outside the service: to close it. */
export async function findAccount (db: Db, email: string): Promise<number | undefined> {
  const [found] = await db.select({ id: users.id }).from(users).where(isOf(email))
  return found?.id
}

export async function findUser (db: Db, id: number): Promise<WithPassword | undefined> {
  const [found] = await readUsers(db, eq(users.id, id))
  return authentic(db, found)
}

const readUsers = (db: Db, where: SQL) =>
  db.select({ user: userColumns, row: authenticatedColumns('users') }).from(users).where(where)

function authentic (db: Db, found: Awaited<ReturnType<typeof readUsers>>[number] | undefined) {
  if (found === undefined || !isAuthentic(db, 'users', found.row)) return undefined
  return { ...found.user, password_hash: found.row.password_hash }
}

const isOf = (email: string): SQL => eq(users.email_normalized, canonicalEmail(email))

/** Accounts in the order in which they were made: those that come after one, a hundred at most. */
export async function listUsers (db: Db, after: number): Promise<(User & { has_password: boolean })[]> {
  return db.select({
    ...userColumns, has_password: sql<boolean>`${users.password_hash} IS NOT NULL`
  }).from(users).where(gt(users.id, after)).orderBy(asc(users.id)).limit(100)
}

/**
 * Today's parameters for the same password: ends nothing. False, and nothing changed, when another hash is there
 * meanwhile.
 */
export async function updatePasswordHash (db: Db, id: number, from: string, password_hash: string): Promise<boolean> {
  return await updateAuthentic(
    db, 'users', and(eq(users.id, id), eq(users.password_hash, from)), { password_hash }
  ) !== undefined
}

/**
 * The first lock of everything that ends something of a user, so that two of them wait for one another and never both.
 * The caller's transaction holds it.
 */
export async function lockUser (db: Db, id: number): Promise<void> {
  await db.select({ id: users.id }).from(users).where(eq(users.id, id)).for('no key update')
}

/**
 * A new password ends every session, every grant and every link of the user (OA-63); answers the API tokens that ended
 * with them. Undefined, and nothing changed, when the account was closed meanwhile, or when the password that was
 * verified (`from`) is not its password any more. Who was invited says how they are called (`name`).
 */
export async function changePassword (
  db: Db, id: number, password_hash: string, from?: string, name?: string
): Promise<EndedTokens[] | undefined> {
  const where = and(
    eq(users.id, id), isNull(users.disabled_at), from === undefined ? undefined : eq(users.password_hash, from)
  )
  const changed = await updateAuthentic(db, 'users', where, { password_hash, is_verified: true, name }, NOW)
  return changed && endEverything(db, id)
}

/**
 * Closes an account, or opens it again. Both end everything of it: what slipped in while it closed does not come back.
 * Answers the API tokens that ended with it. One that was changed outside the service can be closed, but not opened:
 * then the answer is undefined.
 */
export async function setDisabled (db: Db, id: number, disabled: boolean): Promise<EndedTokens[] | undefined> {
  const marked = await updateAuthentic(db, 'users', eq(users.id, id), (now) =>
    ({ disabled_at: disabled ? now : null }), NOW) !== undefined
  if (!marked && disabled) {
    await db.update(users).set({ disabled_at: sql`now()`, mac: null, ...NOW }).where(eq(users.id, id))
  }
  const ended = await endEverything(db, id)
  return marked || disabled ? ended : undefined
}

/**
 * Signs a user out everywhere: browsers, which are strangers from now on, applications and links. Answers the API
 * tokens that ended with them.
 */
export async function endEverything (db: Db, id: number): Promise<EndedTokens[]> {
  await lockUser(db, id)
  await deleteInPieces(db, sessions, sessions.token_hash, eq(sessions.user_id, id))
  await deleteInPieces(db, sign_in_steps, sign_in_steps.token_hash, eq(sign_in_steps.user_id, id))
  await db.delete(sign_in_devices).where(eq(sign_in_devices.user_id, id))
  await db.delete(password_links).where(eq(password_links.user_id, id))
  const { ended } = await revokeGrants(db, eq(oauth_grants.user_id, id))
  return [...ended, ...await endTokensWithoutGrant(db, id)]
}

/**
 * Makes a person a member. Returns the limit where the person is in, or owns, as many organizations as one person can:
 * then nothing was made. API tokens that the person left in the organization are not revived: see `endTokensOfBefore`.
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

/** Organizations of which the user is a member, by name. */
export async function listMemberships (db: Db, userId: number): Promise<Membership[]> {
  const { id, name, slug } = organizations
  const rows = await db.select({
    membership: { id, name, slug, role: members.role, joined_at: members.joined_at },
    row: authenticatedColumns('members')
  })
    .from(members).innerJoin(organizations, eq(organizations.id, members.organization_id))
    .where(and(eq(members.user_id, userId), eq(members.status, 'active')))
    .orderBy(asc(organizations.name), asc(organizations.id)).limit(1000)
  return rows.filter(({ row }) => isAuthentic(db, 'members', row)).map(({ membership }) => membership)
}

const DAY = 24 * 60 * 60 * 1000

/** A link with which the user sets a password once, within three days; an earlier one is void. */
export async function createPasswordLink (db: Db, token_hash: Buffer, userId: number): Promise<void> {
  // Of two that are made at once, the second voids the first.
  await lockUser(db, userId)
  await db.delete(password_links).where(eq(password_links.user_id, userId))
  await deleteExpired(db, password_links, password_links.token_hash, sql`${password_links.expires_at} < now()`)
  const row = { token_hash, user_id: userId, expires_at: new Date(await readNow(db) + 3 * DAY) }
  await db.insert(password_links).values({ ...row, mac: macOf(db, 'password_links', row) })
}

/** Whose link it is, while it can be used. */
export async function findPasswordLink (db: Db, token_hash: Buffer): Promise<User | undefined> {
  const [found] = await db.select({
    user: userColumns, link: authenticatedColumns('password_links'), row: authenticatedColumns('users')
  })
    .from(password_links).innerJoin(users, eq(users.id, password_links.user_id))
    .where(and(
      eq(password_links.token_hash, token_hash), gt(password_links.expires_at, sql`now()`), isNull(users.disabled_at)
    ))
  if (found === undefined || !isAuthentic(db, 'password_links', found.link) || !isAuthentic(db, 'users', found.row)) {
    return undefined
  }
  return found.user
}

/** Uses a link up: of two at once, one gets the user. */
export async function takePasswordLink (db: Db, token_hash: Buffer): Promise<number | undefined> {
  const [row] = await db.delete(password_links).where(and(
    eq(password_links.token_hash, token_hash), gt(password_links.expires_at, sql`now()`)
  )).returning(authenticatedColumns('password_links'))
  return row !== undefined && isAuthentic(db, 'password_links', row) ? row.user_id : undefined
}
