import { and, asc, desc, eq, gt, inArray, isNotNull, lte, not, or, sql, type SQL } from 'drizzle-orm'
import { INVITATION_DAYS, MAX_OPEN_INVITATIONS } from '../../../schemas/invitations.ts'
import type { Restriction, RestrictionNames } from '../../../schemas/tokens.ts'
import { STATEMENT_TIME } from '../../db/columns.ts'
import { authenticatedColumns } from '../../db/rows/authenticated.ts'
import { isAuthentic, isKeyOf, macOf, readNow, updateAuthentic, type Db } from '../../db/database.ts'
import { PIECE } from '../../db/callers/expired.ts'
import { andOwn, findByOrganization } from '../../db/postgres/engine.ts'
import { authenticRow, matching, queryRows } from '../../db/rows/query.ts'
import { findSlugs, idsOf } from '../../db/rows/slugs.ts'
import {
  api_tokens, invitation_mails, invitations, oauth_grants, organization_counters, organizations
} from '../../db/tables.ts'
import { canonicalEmail } from '../../rules/formats/emails.ts'
import { readPage, type PageRequest } from '../../rules/pagination.ts'
import { shownRestrictions } from '../../rules/slices.ts'

/** The person or API token that invites; null stands for the operator. */
export interface Inviter { type: 'user' | 'api_token', id: number, name: string }

export interface NewInvitation extends Pick<typeof invitations.$inferSelect,
  'organization_id' | 'id' | 'email' | 'role' | 'place' | 'place_role'> {
  invited_by: Inviter | null
}

/** An open invitation of an organization. */
export interface Invitation extends NewInvitation { expires_at: Date, created_at: Date }

/** An open invitation as the invited person sees it. */
export interface OwnInvitation extends Invitation { organization: { id: string, name: string, slug: string } }

/** An invitation with the slugs and the names of its place; null without a place, and if it was deleted. */
export type Shown<I extends Invitation> =
  Omit<I, 'place'> & { place: Restriction | null, place_names: RestrictionNames | null }

const DAY = 24 * 60 * 60 * 1000

const isOpen = gt(invitations.expires_at, STATEMENT_TIME)
const oneOf = (organizationId: string, id: string) => matching(invitations, { organization_id: organizationId, id })
const isTo = (email: string, ...more: SQL[]) =>
  and(eq(invitations.email_normalized, canonicalEmail(email)), isOpen, ...more)

const columns = { ...authenticatedColumns('invitations'), created_at: invitations.created_at }
const selectOwn = (db: Db) => db.select({
  row: columns, organization: { id: organizations.id, name: organization_counters.name, slug: organizations.slug }
}).from(invitations).innerJoin(organizations, eq(organizations.id, invitations.organization_id))
  .innerJoin(organization_counters, eq(organization_counters.organization_id, invitations.organization_id))

function toInvitation (
  row: Omit<typeof invitations.$inferSelect, 'mac' | 'email_normalized' | 'token_hash'>
): Invitation {
  const {
    organization_id, id, email, role, place, place_role, invited_by_type, invited_by_id, invited_by_name, expires_at
  } = row
  const invited_by = invited_by_type === null
    ? null
    : { type: invited_by_type, id: invited_by_id ?? 0, name: invited_by_name ?? '' }
  return { organization_id, id, email, role, place, place_role, invited_by, expires_at, created_at: row.created_at }
}

/** Replaces the places of invitations of an organization by their slugs and names. */
export async function showPlaces<I extends Invitation> (
  db: Db, organizationId: string, rows: readonly I[]
): Promise<Shown<I>[]> {
  const slugs = await findSlugs(db, organizationId, idsOf(rows.flatMap(({ place }) => place ?? [])))
  return rows.map((row) => {
    const { restrictions, restriction_names } = shownRestrictions(row.place && [row.place], slugs)
    return { ...row, place: restrictions[0] ?? null, place_names: restriction_names[0] ?? null }
  })
}

/** Like `showPlaces`, for invitations of several organizations. */
export const showOwnPlaces = async (db: Db, rows: readonly OwnInvitation[]): Promise<Shown<OwnInvitation>[]> =>
  (await Promise.all(rows.map(async (row) => showPlaces(db, row.organization_id, [row])))).flat()

const invitedBy = (inviter: Inviter | null) => ({
  invited_by_type: inviter?.type ?? null, invited_by_id: inviter?.id ?? null, invited_by_name: inviter?.name ?? null
})

/** The number of open invitations of an organization, to an address, or both. */
export async function countInvitations (
  db: Db, { organization_id, email }: { organization_id?: string, email?: string }
): Promise<number> {
  const isOf = organization_id === undefined ? undefined : eq(invitations.organization_id, organization_id)
  return db.$count(invitations, and(isOf, email === undefined ? isOpen : isTo(email)))
}

/** A page of open invitations, oldest first. Omits rows with a wrong MAC, but counts them in `total`. */
export async function listInvitations (
  db: Db, organizationId: string, page: PageRequest
): Promise<{ rows: Invitation[], total: number }> {
  const own = and(eq(invitations.organization_id, organizationId), isOpen)
  const total = sql<number>`(SELECT count(*)::int FROM ${invitations} WHERE ${own})`
  const { rows, total: all } = await readPage(page, async ({ limit, offset }) =>
    db.select({ ...columns, total }).from(invitations).where(own).orderBy(asc(invitations.id)).limit(limit)
      .offset(offset))
  return { rows: readRows(db, rows), total: all }
}

/** An open invitation of an organization. With `locks`, locks it; the caller has locked the organization. */
export async function findInvitation (
  db: Db, organizationId: string, id: string, { locks = false } = {}
): Promise<Invitation | undefined> {
  const query = db.select(columns).from(invitations).where(and(oneOf(organizationId, id), isOpen))
  const [found] = await (locks ? query.for('update') : query)
  const row = authenticRow(db, 'invitations', found)
  return row && toInvitation(row)
}

/** The open invitation whose mailed link contains the secret with this SHA-256 hash. */
export async function findInvitationOfLink (
  db: Db, organizationId: string, tokenHash: Buffer
): Promise<OwnInvitation | undefined> {
  const isOfLink = matching(invitations, { organization_id: organizationId, token_hash: tokenHash })
  const [found] = await selectOwn(db).where(and(isOfLink, isOpen))
  const row = authenticRow(db, 'invitations', found?.row)
  return row && { ...toInvitation(row), organization: found!.organization }
}

/** Open invitations to an address, newest first. Omits rows with a wrong MAC, but counts them in `found`. */
export async function listInvitationsTo (
  db: Db, email: string, { limit, offset }: { limit: number, offset: number }
): Promise<{ rows: OwnInvitation[], found: number }> {
  const rows = await selectOwn(db).where(isTo(email))
    .orderBy(desc(invitations.created_at), desc(invitations.id)).limit(limit).offset(offset)
  const genuine = rows.filter(({ row }) => isAuthentic(db, 'invitations', row))
  return {
    rows: genuine.map(({ row, organization }) => ({ ...toInvitation(row), organization })), found: rows.length
  }
}

/** The organization of an open invitation; undefined if the invitation is to another address. */
export async function findInvitingOrganization (db: Db, email: string, id: string): Promise<string | undefined> {
  const [row] = await db.select({ organization_id: invitations.organization_id }).from(invitations)
    .where(isTo(email, eq(invitations.id, id)))
  return row?.organization_id
}

/**
 * Creates an invitation that is open for seven days. The caller has locked the organization, deleted its expired
 * invitations, and checked that the address has no open invitation.
 */
export async function createInvitation (
  db: Db, { organization_id, id, email, role, place, place_role, invited_by }: NewInvitation, tokenHash: Buffer | null
): Promise<Invitation> {
  const row = {
    organization_id,
    id,
    email,
    email_normalized: canonicalEmail(email),
    role,
    ...invitedBy(invited_by),
    token_hash: tokenHash,
    expires_at: new Date(await readNow(db) + INVITATION_DAYS * DAY),
    place,
    place_role
  }
  const [made] = await db.insert(invitations).values({ ...row, mac: macOf(db, 'invitations', row) }).returning()
  return toInvitation(made!)
}

/**
 * Extends an open invitation to seven days from now. From now on, `inviter` gives the invitation. `tokenHash` replaces
 * the link; without it, the link stays valid.
 */
export async function renewInvitation (
  db: Db, organizationId: string, id: string, inviter: Inviter, tokenHash: Buffer | undefined
): Promise<Invitation | undefined> {
  const renewed = await updateAuthentic(db, 'invitations', and(oneOf(organizationId, id), isOpen), (now) => ({
    ...invitedBy(inviter),
    expires_at: new Date(now.getTime() + INVITATION_DAYS * DAY),
    ...(tokenHash && { token_hash: tokenHash })
  }))
  return renewed && findInvitation(db, organizationId, id)
}

const isGiven = isNotNull(invitations.invited_by_type)

/** The open invitations of an organization that a person or an API token gave. Omits rows with a wrong MAC. */
export async function listGivenInvitations (db: Db, organizationId: string): Promise<Invitation[]> {
  const rows = await db.select(columns).from(invitations)
    .where(and(eq(invitations.organization_id, organizationId), isGiven, isOpen)).orderBy(asc(invitations.id))
    .limit(MAX_OPEN_INVITATIONS)
  return readRows(db, rows)
}

/** Maximum invitations that one transaction ends in all organizations together. */
export const MAX_ENDED = 500

/**
 * The open invitations of these organizations that were given by this person, or by an API token that was deleted or
 * whose grant was revoked: at most `MAX_ENDED`. Omits rows with a wrong MAC.
 */
export async function listEndedInvitations (
  db: Db, organizationIds: readonly string[], userId: number | null
): Promise<Invitation[]> {
  if (organizationIds.length === 0) return []
  const { organization_id, id, invited_by_type: type, invited_by_id: by } = invitations
  const isOfOne = isKeyOf(sql`${organization_id}`, sql`
    SELECT value::char(26) FROM jsonb_array_elements_text(${JSON.stringify(organizationIds)}::jsonb)`)
  const isOfToken = sql`EXISTS (SELECT FROM ${api_tokens} LEFT JOIN ${oauth_grants}
    ON ${oauth_grants.id} = ${api_tokens.grant_id}
    WHERE ${api_tokens.organization_id} = ${organization_id} AND ${api_tokens.id} = ${by}
      AND ${oauth_grants.revoked_at} IS NULL)`
  const rows = await db.select(columns).from(invitations).where(and(
    isOfOne, isOpen, or(and(eq(type, 'user'), sql`${by} = ${userId}::bigint`), and(eq(type, 'api_token'), not(isOfToken)))
  )).orderBy(asc(organization_id), asc(id)).limit(MAX_ENDED)
  return readRows(db, rows)
}

type Row = Omit<typeof invitations.$inferSelect, 'email_normalized' | 'token_hash'>
const readRows = <R extends Row>(db: Db, rows: readonly R[]): Invitation[] =>
  rows.filter((row) => isAuthentic(db, 'invitations', row as never)).map(toInvitation)

/**
 * Deletes invitations that still have the same inviter. Leaves out those that another transaction has locked, so that
 * this transaction does not wait. Returns the deleted ones.
 */
export async function deleteInvitations (db: Db, ending: readonly Invitation[]): Promise<Invitation[]> {
  const rows = ending.map((invitation) => ({
    organization_id: invitation.organization_id, id: invitation.id, ...invitedBy(invitation.invited_by)
  }))
  const deleted = await findByOrganization(db, rows, (organizationId, json) => queryRows<{ id: string }>(db, sql`
    WITH ending AS MATERIALIZED (
      SELECT i.organization_id, i.id FROM invitations i
      JOIN jsonb_to_recordset(${json}::jsonb)
        AS given (organization_id char(26), id char(26), invited_by_type varchar, invited_by_id bigint)
        ON i.organization_id = given.organization_id AND i.id = given.id
          AND i.invited_by_type = given.invited_by_type AND i.invited_by_id = given.invited_by_id
      WHERE true${andOwn(sql`i.organization_id`, organizationId)}
      FOR UPDATE OF i SKIP LOCKED
    )
    DELETE FROM invitations i USING ending WHERE i.organization_id = ending.organization_id
      AND i.id = ending.id${andOwn(sql`i.organization_id`, organizationId)}
    RETURNING i.id AS id`))
  const ids = new Set(deleted.map(({ id }) => id))
  return ending.filter(({ id }) => ids.has(id))
}

export async function deleteInvitation (db: Db, organizationId: string, id: string): Promise<void> {
  await db.delete(invitations).where(oneOf(organizationId, id))
}

const isOldMail = sql`${invitation_mails.sent_at} <= now() - interval '24 hours'`

/** Records that a mail is sent to an address. False if the organization has mailed this address within 24 hours. */
export async function takeInvitationMail (db: Db, organizationId: string, email: string): Promise<boolean> {
  await deleteOldMails(db, organizationId)
  const taken = await db.insert(invitation_mails)
    .values({ organization_id: organizationId, email_normalized: canonicalEmail(email) })
    .onConflictDoNothing().returning({ sent_at: invitation_mails.sent_at })
  return taken.length === 1
}

/** Deletes the record of a mail that was not delivered, so that a new mail can be sent at once. */
export async function returnInvitationMail (db: Db, organizationId: string, email: string): Promise<void> {
  await db.delete(invitation_mails).where(and(
    eq(invitation_mails.organization_id, organizationId), eq(invitation_mails.email_normalized, canonicalEmail(email))
  ))
}

async function deleteOldMails (db: Db, organizationId: string): Promise<void> {
  await db.delete(invitation_mails).where(and(eq(invitation_mails.organization_id, organizationId), isOldMail))
}

/** A page of all organizations that have expired invitations or old records of mails. The page starts after an id. */
export async function listExpiredInvitations (db: Db, after: string, limit: number): Promise<string[]> {
  const rows = await queryRows<{ organization_id: string }>(db, sql`
    SELECT organization_id FROM ${invitations} WHERE expires_at <= now() AND organization_id > ${after}
    UNION SELECT organization_id FROM ${invitation_mails} WHERE ${isOldMail} AND organization_id > ${after}
    ORDER BY organization_id LIMIT ${limit}`)
  return rows.map((row) => row.organization_id)
}

/** Deletes up to 1,000 expired invitations, and old records of mails. `expired`: the invitations with a valid MAC. */
export async function deleteExpiredInvitations (
  db: Db, organizationId: string
): Promise<{ deleted: number, expired: { id: string, email: string }[] }> {
  await deleteOldMails(db, organizationId)
  const { id, organization_id, expires_at } = invitations
  const own = eq(organization_id, organizationId)
  const which = db.select({ id }).from(invitations).where(and(own, lte(expires_at, sql`now()`))).limit(PIECE)
    .for('update')
  const rows = await db.delete(invitations).where(and(own, inArray(id, which)))
    .returning(authenticatedColumns('invitations'))
  return { deleted: rows.length, expired: rows.filter((row) => isAuthentic(db, 'invitations', row)) }
}
