import { and, asc, eq, gt, isNull, ne, sql, type SQL } from 'drizzle-orm'
import type { MemberAttributes } from '../../schemas/members.ts'
import type { Role } from '../../schemas/users.ts'
import { authenticatedColumns } from '../db/authenticated.ts'
import { isAuthentic, tampered, updateAuthentic, type Authenticated, type Db } from '../db/database.ts'
import { PIECE } from '../db/expired.ts'
import { deleteTokensOfMember, endTokensOfBefore, type HeldTokens } from '../db/grants.ts'
import { holdMemberships, reachedLimit } from '../db/memberships.ts'
import { members, users } from '../db/tables.ts'
import { readPage, type PageRequest } from '../rules/pagination.ts'

const oneOf = (organizationId: string, userId: number) =>
  and(eq(members.organization_id, organizationId), eq(members.user_id, userId))

const columns = {
  row: authenticatedColumns('members'),
  joined_at: members.joined_at,
  email: users.email,
  name: users.name,
  is_verified: users.is_verified
}

/** A member, as everybody in the organization sees them; and whether the address is known to be theirs. */
export type MemberRow = MemberAttributes & { is_verified: boolean }

const read = (db: Db, where: SQL | undefined) =>
  db.select(columns).from(members).innerJoin(users, eq(users.id, members.user_id)).where(where)

// Whoever is only invited has not joined.
function toMember (
  { row: { user_id, role, status }, joined_at, ...user }: Awaited<ReturnType<typeof read>>[number]
): MemberRow {
  return { user_id, ...user, role, status, joined_at: status === 'active' ? joined_at : null }
}

/**
 * Members of an organization, invited ones too, in the order in which their accounts were made. A row that the service
 * did not write is none, though the total counts it.
 */
export async function listMembers (
  db: Db, organizationId: string, page: PageRequest
): Promise<{ rows: MemberRow[], total: number }> {
  const own = eq(members.organization_id, organizationId)
  const total = sql<number>`(SELECT count(*)::int FROM ${members} WHERE ${own})`
  const { rows, total: all } = await readPage(page, async ({ limit, offset }) =>
    db.select({ ...columns, total }).from(members).innerJoin(users, eq(users.id, members.user_id)).where(own)
      .orderBy(asc(members.user_id)).limit(limit).offset(offset))
  return { rows: rows.filter(({ row }) => isAuthentic(db, 'members', row)).map(toMember), total: all }
}

export async function findMember (db: Db, organizationId: string, userId: number): Promise<MemberRow | undefined> {
  const [found] = await read(db, oneOf(organizationId, userId))
  return found !== undefined && isAuthentic(db, 'members', found.row) ? toMember(found) : undefined
}

/**
 * Takes a membership until the end of the transaction: whatever its holder changes is done by then, or comes to
 * nothing. The caller holds the organization.
 */
export async function lockMember (
  db: Db, organizationId: string, userId: number
): Promise<Authenticated<'members'> | undefined> {
  const [row] = await db.select(authenticatedColumns('members')).from(members).where(oneOf(organizationId, userId))
    .for('update')
  return row !== undefined && isAuthentic(db, 'members', row) ? row : undefined
}

/** Owners beside somebody who can act: active, with an account that is open and an address that is theirs. */
export async function countOtherOwners (db: Db, organizationId: string, userId: number): Promise<number> {
  return countOwners(db, await selectOtherOwners(db, organizationId, userId))
}

/**
 * The same, and their accounts stay open until the end of the transaction. The caller holds the organization, and no
 * account or membership.
 */
export async function holdOtherOwners (db: Db, organizationId: string, userId: number): Promise<number> {
  return countOwners(db, await selectOtherOwners(db, organizationId, userId).for('share', { of: users }))
}

const MOST_OWNERS = 100

function selectOtherOwners (db: Db, organizationId: string, userId: number) {
  return db.select({ row: authenticatedColumns('members'), user: authenticatedColumns('users') })
    .from(members).innerJoin(users, eq(users.id, members.user_id))
    .where(and(
      eq(members.organization_id, organizationId), eq(members.role, 'owner'), eq(members.status, 'active'),
      ne(members.user_id, userId), isNull(users.disabled_at)
    )).orderBy(asc(members.user_id)).limit(MOST_OWNERS)
}

const countOwners = (db: Db, rows: Awaited<ReturnType<typeof selectOtherOwners>>): number =>
  rows.filter(({ row, user }) =>
    user.is_verified && isAuthentic(db, 'members', row) &&
    isAuthentic(db, 'users', user, { organization_id: row.organization_id })).length

export async function updateMember (db: Db, organizationId: string, userId: number, role: Role): Promise<void> {
  await updateAuthentic(db, 'members', oneOf(organizationId, userId), { role }) ?? tampered()
}

/**
 * Takes somebody out of an organization, with their teams and the API tokens that they made in it, which the caller
 * has taken (`lockTokensOfMember`): a new membership does not bring these back.
 */
export async function deleteMember (
  db: Db, organizationId: string, userId: number, tokens: HeldTokens
): Promise<void> {
  await db.delete(members).where(oneOf(organizationId, userId))
  await deleteTokensOfMember(db, organizationId, userId, tokens)
}

/** The organizations of which somebody is an active member, by their ids: all of them, however many. */
export async function listOrganizationsOf (db: Db, userId: number): Promise<string[]> {
  const all: string[] = []
  for (let after = ''; ;) {
    const rows = await db.select(authenticatedColumns('members')).from(members).where(and(
      eq(members.user_id, userId), eq(members.status, 'active'), gt(members.organization_id, after)
    )).orderBy(asc(members.organization_id)).limit(PIECE)
    all.push(...rows.filter((row) => isAuthentic(db, 'members', row)).map(({ organization_id }) => organization_id))
    if (rows.length < PIECE) return all
    after = rows.at(-1)!.organization_id
  }
}

/** Why somebody stays invited: there is no room, or tokens of theirs from before still have to go. */
export type JoinRefusal = 'memberships_full' | 'tokens_left'

/**
 * Makes somebody, whose address is known to be theirs, a member of those who invited them, as far as others can make
 * them one, or of the one that they name themselves; answers these, and why they stay invited to others.
 */
export async function joinOrganizations (
  db: Db, userId: number, organizationId?: string
): Promise<{ joined: string[], refused: Map<string, JoinRefusal> }> {
  const by = organizationId === undefined ? 'others' : 'oneself'
  const { joined: before, owned } = await holdMemberships(db, userId)
  const now = { joined: before, owned }
  const invited = await db.select({ organization_id: members.organization_id, role: members.role }).from(members)
    .where(and(
      eq(members.user_id, userId), eq(members.status, 'invited'),
      organizationId === undefined ? undefined : eq(members.organization_id, organizationId)
    )).orderBy(asc(members.organization_id)).limit(PIECE).for('update')
  const joined: string[] = []
  const refused = new Map<string, JoinRefusal>()
  for (const { organization_id, role } of invited) {
    const refusal = reachedLimit(now, role, by) !== undefined
      ? 'memberships_full'
      : await endTokensOfBefore(db, organization_id, userId) ? undefined : 'tokens_left'
    if (refusal !== undefined) {
      refused.set(organization_id, refusal)
      continue
    }
    const row = await updateAuthentic(
      db, 'members', and(oneOf(organization_id, userId), eq(members.status, 'invited')), { status: 'active' },
      { joined_at: sql`now()` }
    )
    if (row === undefined) continue
    joined.push(organization_id)
    now.joined++
    if (role === 'owner') now.owned++
  }
  return { joined, refused }
}

/** Turns an invitation down; false when there is none. */
export async function deleteInvitation (db: Db, organizationId: string, userId: number): Promise<boolean> {
  const gone = await db.delete(members).where(and(oneOf(organizationId, userId), eq(members.status, 'invited')))
    .returning({ id: members.user_id })
  return gone.length === 1
}
