import { and, asc, eq, gt, isNull, ne, sql, type SQL } from 'drizzle-orm'
import type { MemberAttributes } from '../../../schemas/members.ts'
import type { Role } from '../../../schemas/users.ts'
import { authenticatedColumns } from '../../db/rows/authenticated.ts'
import { waitUnlessCounter } from '../../db/rows/counter.ts'
import {
  isAuthentic, isAway, isOneOfOrganization, tampered, updateAuthentic, type Authenticated, type Db
} from '../../db/database.ts'
import { savepoint } from '../../db/rows/authority.ts'
import { engineOf } from '../../db/postgres/engine.ts'
import { authenticRow, matching } from '../../db/rows/query.ts'
import { PIECE } from '../../db/callers/expired.ts'
import { deleteTokensOfMember, type EndingTokens } from '../../db/callers/grants.ts'
import { members, users } from '../../db/tables.ts'
import { canonicalEmail } from '../../rules/formats/emails.ts'
import { andSelected, isFiltered, orderOf } from '../../db/rows/selection.ts'
import { readPage, type NamedPageRequest } from '../../rules/pagination.ts'

const oneOf = (organizationId: string, userId: number) =>
  matching(members, { organization_id: organizationId, user_id: userId })

const columns = {
  row: authenticatedColumns('members'), user: authenticatedColumns('users'), joined_at: members.joined_at
}

const selectMembers = (db: Db, where: SQL | undefined) =>
  db.select(columns).from(members).innerJoin(users, eq(users.id, members.user_id)).where(where)
type Found = Awaited<ReturnType<typeof selectMembers>>[number]

const isVerified = (db: Db, { row, user }: Pick<Found, 'row' | 'user'>): boolean =>
  isAuthentic(db, 'members', row) && isAuthentic(db, 'users', user, { organization_id: row.organization_id })

const toMember = ({ row: { user_id, role, status }, user: { email, name }, joined_at }: Found): MemberAttributes =>
  ({ user_id, email, name, role, status, joined_at })

const SELECTABLE = {
  name: sql`${users.name}`,
  created_at: sql`${members.joined_at}`,
  key: sql`${members.user_id}`,
  searched: [sql`${users.name}`, sql`${users.email}`]
}

/**
 * A page of members, by default in the order of account creation. Omits rows with a wrong MAC, but counts them in
 * `total`.
 */
export async function listMembers (
  db: Db, organizationId: string, page: NamedPageRequest
): Promise<{ rows: MemberAttributes[], total: number }> {
  const own = sql`${eq(members.organization_id, organizationId)}${andSelected(page, SELECTABLE)}`
  const theirs = isFiltered(page) ? sql` JOIN ${users} ON ${eq(users.id, members.user_id)}` : sql``
  const total = sql<number>`(SELECT count(*)::int FROM ${members}${theirs} WHERE ${own})`
  const { rows, total: all } = await readPage(page, async ({ limit, offset }) =>
    db.select({ ...columns, total }).from(members).innerJoin(users, eq(users.id, members.user_id)).where(own)
      .orderBy(orderOf(page, SELECTABLE, asc(members.user_id))).limit(limit).offset(offset))
  return { rows: rows.filter((found) => isVerified(db, found)).map(toMember), total: all }
}

export async function findMember (
  db: Db, organizationId: string, userId: number
): Promise<MemberAttributes | undefined> {
  const [found] = await selectMembers(db, oneOf(organizationId, userId))
  return found && isVerified(db, found) ? toMember(found) : undefined
}

/** The names of those users who are members, by user id. Omits rows with a wrong MAC. */
export async function findMemberNames (
  db: Db, organizationId: string, userIds: readonly number[]
): Promise<Map<number, string>> {
  const found = await selectAmong(db, organizationId, userIds)
  return new Map(found.map(({ user }) => [user.id, user.name || user.email]))
}

async function selectAmong (db: Db, organizationId: string, userIds: readonly number[]): Promise<Found[]> {
  if (userIds.length === 0) return []
  const { organization_id, user_id: id } = members
  const found = await selectMembers(db, isOneOfOrganization({ organization_id, id }, organizationId, userIds))
  return found.filter((one) => isVerified(db, one))
}

/** The roles of those users who are active members with an open account, by user id. Omits rows with a wrong MAC. */
export async function findActiveRoles (
  db: Db, organizationId: string, userIds: readonly number[]
): Promise<Map<number, Role>> {
  const found = await selectAmong(db, organizationId, userIds)
  return new Map(found.filter(({ row, user }) => row.status === 'active' && user.disabled_at === null)
    .map(({ row }) => [row.user_id, row.role]))
}

/** Whether a member has this address. The statement is the same whether or not the address has an account. */
export async function isMemberAddress (db: Db, organizationId: string, email: string): Promise<boolean> {
  const isOf = eq(users.email_normalized, canonicalEmail(email))
  return (await selectMembers(db, and(eq(members.organization_id, organizationId), isOf))).length > 0
}

/** Locks a membership, so that concurrent changes by the member commit first or fail. The organization is locked. */
export async function lockMember (
  db: Db, organizationId: string, userId: number
): Promise<Authenticated<'members'> | undefined> {
  const [row] = await db.select(authenticatedColumns('members')).from(members).where(oneOf(organizationId, userId))
    .for('update')
  return authenticRow(db, 'members', row)
}

const MAX_OWNERS = 100

/**
 * The number of other active owners with an open account and a verified address. With `locks`, also locks the accounts,
 * so that they cannot be closed: if an account is being closed, the transaction is retried instead of waiting
 * (`waitUnlessCounter`). The caller has then locked the organization's counter row.
 */
export async function countOtherOwners (
  db: Db, organizationId: string, userId: number, { locks = false } = {}
): Promise<number> {
  const query = selectMembers(db, and(
    matching(members, { organization_id: organizationId, role: 'owner', status: 'active' }),
    ne(members.user_id, userId), isNull(users.disabled_at)
  )).orderBy(asc(members.user_id)).limit(MAX_OWNERS)
  const rows = await (locks ? query.for('share', { of: users, ...waitUnlessCounter(db) }) : query)
  return rows.filter((found) => found.user.is_verified && isVerified(db, found)).length
}

/** Maximum number of owners that are mailed about their organization. */
const MAX_MAILED = 20

/** Owners who can act, oldest account first, for mails about the organization. */
export async function listOwners (db: Db, organizationId: string): Promise<{ name: string, email: string }[]> {
  const rows = await selectMembers(db, and(
    matching(members, { organization_id: organizationId, role: 'owner', status: 'active' }), isNull(users.disabled_at)
  )).orderBy(asc(members.user_id)).limit(MAX_MAILED)
  return rows.filter((found) => found.user.is_verified && isVerified(db, found))
    .map(({ user: { name, email } }) => ({ name, email }))
}

export async function updateMember (db: Db, organizationId: string, userId: number, role: Role): Promise<void> {
  await updateAuthentic(db, 'members', oneOf(organizationId, userId), { role }) ?? tampered()
}

/**
 * Deletes a membership, and the person's team memberships and API tokens in the organization, so that a later
 * membership does not make them valid again. The caller has locked the tokens (`lockTokensOfMember`).
 */
export async function deleteMember (
  db: Db, organizationId: string, userId: number, tokens: EndingTokens
): Promise<void> {
  await db.delete(members).where(oneOf(organizationId, userId))
  await deleteTokensOfMember(db, organizationId, userId, tokens)
}

/** The ids of all organizations in which a person is an active member. */
export async function listOrganizationsOf (db: Db, userId: number): Promise<string[]> {
  const all: string[] = []
  for (let after = ''; ;) {
    const rows = await db.select(authenticatedColumns('members')).from(members)
      .where(and(matching(members, { user_id: userId, status: 'active' }), gt(members.organization_id, after)))
      .orderBy(asc(members.organization_id)).limit(PIECE)
    all.push(...rows.filter((row) => isAuthentic(db, 'members', row)).map(({ organization_id }) => organization_id))
    if (rows.length < PIECE) return all
    after = rows.at(-1)!.organization_id
  }
}

/**
 * Like `listOrganizationsOf`, but returns undefined if a Citus node does not respond; memberships are on all nodes. In
 * a transaction, uses a savepoint, so that the transaction can continue after this error.
 */
export async function listOrganizationsIfAvailable (db: Db, userId: number): Promise<string[] | undefined> {
  if (engineOf(db) !== 'citus') return listOrganizationsOf(db, userId)
  try {
    return await savepoint(db, (db) => listOrganizationsOf(db, userId))
  } catch (error) {
    if (isAway(error)) return undefined
    throw error
  }
}
