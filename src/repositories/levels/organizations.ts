import { and, asc, eq, gt, or, sql } from 'drizzle-orm'
import { unionAll } from 'drizzle-orm/pg-core'
import { FORMER_SLUG_DAYS, MAX_FORMER_SLUGS } from '../../../schemas/organizations.ts'
import { authenticatedColumns } from '../../db/rows/authenticated.ts'
import { changedAt } from '../../db/columns.ts'
import { type Db, isAuthentic, isOneOf } from '../../db/database.ts'
import { deleteExpired } from '../../db/callers/expired.ts'
import { andRowsAlone } from '../../db/postgres/engine.ts'
import { matching, queryRow } from '../../db/rows/query.ts'
import {
  api_tokens, counterColumns, former_slugs, members, organization_counters, organization_removals, organizationColumns,
  organizations, plans
} from '../../db/tables.ts'
import { offsetOf, type PageRequest } from '../../rules/pagination.ts'
import type { Organization } from '../people/principals.ts'

export interface NewOrganization { id: string, name: string, slug: string, plan: string, storage_key: Buffer }

/** Creates an organization and its counter row. Throws SlugRefused if another organization has reserved the slug. */
export async function createOrganization (db: Db, organization: NewOrganization): Promise<void> {
  const { plan, name, ...its } = organization
  await db.insert(organizations).values(its)
  await claimSlug(db, organization.id, organization.slug)
  await db.insert(organization_counters).values({ organization_id: organization.id, name, plan })
}

/** Prevents other transactions from creating an organization, so that concurrent first starts create only one. */
export async function lockOrganizations (db: Db): Promise<void> {
  await db.execute(sql`LOCK TABLE organizations IN EXCLUSIVE MODE`)
}

export async function countOrganizations (db: Db): Promise<number> {
  return db.$count(organizations)
}

export type ShownOrganization = Omit<Organization, 'storage_key'>

const { storage_key: _, ...columns } = organizationColumns
const selectOrganizations = (db: Db) => db.select({ ...columns, ...counterColumns, plan: plans }).from(organizations)
  .innerJoin(organization_counters, eq(organization_counters.organization_id, organizations.id))
  .innerJoin(plans, eq(plans.name, organization_counters.plan))

/** A page of the organizations in which the user is an active member, sorted by name. */
export async function listOrganizations (
  db: Db, userId: number, page: PageRequest
): Promise<{ rows: ShownOrganization[], total: number }> {
  const all = await db.select(authenticatedColumns('members')).from(members).where(eq(members.user_id, userId))
  const own = all.filter((row) => row.status === 'active' && isAuthentic(db, 'members', row))
  const { id } = organizations
  const rows = await selectOrganizations(db).where(isOneOf(id, own.map(({ organization_id }) => organization_id)))
    .orderBy(asc(organization_counters.name), asc(id)).limit(page.per_page).offset(offsetOf(page))
  return { rows, total: own.length }
}

export async function readOrganization (db: Db, id: string): Promise<ShownOrganization | undefined> {
  const [row] = await selectOrganizations(db).where(eq(organizations.id, id))
  return row
}

export async function findStorageKey (db: Db, id: string): Promise<Buffer | undefined> {
  const [row] = await db.select({ storage_key: organizations.storage_key }).from(organizations)
    .where(eq(organizations.id, id))
  return row?.storage_key
}

/** A page of all organizations after an id, sorted by id. */
export async function listAllOrganizations (db: Db, after: string): Promise<ShownOrganization[]> {
  const { id } = organizations
  return selectOrganizations(db).where(gt(id, after)).orderBy(asc(id)).limit(500)
}

/** Returns those of `slugs` that an organization has now, or that are reserved for a former owner of the slug. */
export async function listTakenOrganizations (db: Db, slugs: readonly string[]): Promise<Set<string>> {
  const current = db.select({ slug: organizations.slug }).from(organizations).where(isOneOf(organizations.slug, slugs))
  const reserved = db.select({ slug: former_slugs.slug }).from(former_slugs)
    .where(and(isOneOf(former_slugs.slug, slugs), isReservedNow))
  return new Set((await unionAll(current, reserved)).map(({ slug }) => slug))
}

/** The slug is `reserved` for another organization, or the `limit` of former slugs is reached. Callers roll back. */
export class SlugRefused extends Error {
  override readonly name = 'SlugRefused'
  readonly reason: 'reserved' | 'limit'

  constructor (reason: 'reserved' | 'limit') {
    super(`the slug is refused: ${reason}`)
    this.reason = reason
  }
}

const isReservedNow = gt(former_slugs.reserved_until, sql`now()`)

/**
 * Throws SlugRefused if a slug is reserved for another organization. Deletes a reservation for this organization. Call
 * this after the statement that sets the slug: if another organization gives up the slug at the same time, the unique
 * index makes that statement wait for the other commit, so this function sees the new reservation.
 */
async function claimSlug (db: Db, id: string, slug: string): Promise<void> {
  const owner = await findFormerSlug(db, slug)
  if (owner === undefined) return
  if (owner !== id) throw new SlugRefused('reserved')
  await db.delete(former_slugs).where(matching(former_slugs, { organization_id: id, slug }))
}

/** Reserves the former slug of an organization, and deletes expired reservations. */
async function reserveSlug (
  db: Db, organization_id: string, slug: string, owner_id: number | null = null
): Promise<void> {
  const reserved_until = sql`now() + make_interval(days => ${FORMER_SLUG_DAYS})`
  await db.insert(former_slugs).values({ organization_id, slug, reserved_until, owner_id })
    .onConflictDoUpdate({
      target: former_slugs.slug, set: { organization_id, reserved_until: sql`excluded.reserved_until`, owner_id }
    })
  await deleteExpired(db, former_slugs.slug, sql`${former_slugs.reserved_until} < now()`)
}

/** The organization for which a slug is reserved. */
export async function findFormerSlug (db: Db, slug: string): Promise<string | undefined> {
  const [row] = await db.select({ organization_id: former_slugs.organization_id }).from(former_slugs)
    .where(and(eq(former_slugs.slug, slug), isReservedNow))
  return row?.organization_id
}

/** Deletes the reservation of a slug for an organization; false without a reservation. */
export async function releaseSlug (db: Db, organization_id: string, slug: string): Promise<boolean> {
  const released = await db.delete(former_slugs)
    .where(and(matching(former_slugs, { organization_id, slug }), isReservedNow)).returning({ slug: former_slugs.slug })
  return released.length > 0
}

type Changed = Pick<typeof organizations.$inferSelect, 'slug'> &
  Pick<typeof organization_counters.$inferSelect, 'name' | 'require_second_factor' | 'plan' | 'status'>

/** Changes an organization. If the slug changes, reserves the former slug. Throws SlugRefused. */
export async function updateOrganization (
  db: Db, id: string, { slug, ...changes }: { [C in keyof Changed]?: Changed[C] | undefined }
): Promise<void> {
  if (slug !== undefined) await updateSlug(db, id, slug)
  const updated_at = changedAt(organization_counters.updated_at, { slug, ...changes })
  await db.update(organization_counters).set({ ...changes, updated_at })
    .where(eq(organization_counters.organization_id, id))
}

async function updateSlug (db: Db, id: string, slug: string): Promise<void> {
  const its = eq(organizations.id, id)
  // Locks the row, so that a concurrent change of the slug waits, and then reads the new slug.
  const [former] = await db.select({ slug: organizations.slug }).from(organizations)
    .where(sql`${its}${andRowsAlone}`).for('update')
  if (former === undefined || former.slug === slug) return
  await db.update(organizations).set({ slug }).where(its)
  await claimSlug(db, id, slug)
  await reserveSlug(db, id, former.slug)
  const reserved = await db.$count(former_slugs, and(eq(former_slugs.organization_id, id), isReservedNow))
  if (reserved > MAX_FORMER_SLUGS) throw new SlugRefused('limit')
}

/** The organization with this id in either letter case, or with this slug. */
export async function findOrganization (db: Db, idOrSlug: string): Promise<{ id: string, name: string } | undefined> {
  const [found] = await db.select({ id: organizations.id }).from(organizations)
    .where(or(eq(organizations.id, idOrSlug.toUpperCase()), eq(organizations.slug, idOrSlug)))
  if (found === undefined) return undefined
  const [row] = await db.select({ name: organization_counters.name }).from(organization_counters)
    .where(eq(organization_counters.organization_id, found.id))
  return row && { ...found, ...row }
}

/**
 * Locks an organization and its memberships until the end of the transaction. The caller has locked the counter row.
 * Returns the numbers of members and tokens.
 */
export async function lockEverybody (db: Db, id: string): Promise<{ members: number, tokens: number }> {
  await db.select({ id: organizations.id }).from(organizations)
    .where(sql`${eq(organizations.id, id)}${andRowsAlone}`).for('update')
  const locked = await db.select({ id: members.user_id }).from(members).where(eq(members.organization_id, id))
    .orderBy(asc(members.user_id)).for('update')
  return { members: locked.length, tokens: await db.$count(api_tokens, eq(api_tokens.organization_id, id)) }
}

/**
 * Deletes an organization with its storage key. Closes the counter row (`is_closed`), so that requests that are already
 * authorized can change nothing any more. A background job later deletes the API tokens and projects. The former slug
 * is reserved; the reservation names the owner `userId`, or another owner. Before, the caller locks the organization
 * (`lockEverybody`) and records the event.
 */
export async function deleteOrganization (db: Db, id: string, userId?: number): Promise<void> {
  const [owner] = await db.select({ id: members.user_id }).from(members)
    .where(matching(members, { organization_id: id, role: 'owner' }))
    .orderBy(sql`${members.user_id} = ${userId ?? 0}::bigint DESC`, asc(members.user_id)).limit(1)
  await db.insert(organization_removals).values({ organization_id: id })
  await db.update(organization_counters).set({ is_closed: true, name: '', stored_bytes: 0 })
    .where(eq(organization_counters.organization_id, id))
  const [deleted] = await db.delete(organizations).where(eq(organizations.id, id))
    .returning({ slug: organizations.slug })
  if (deleted !== undefined) await reserveSlug(db, id, deleted.slug, owner?.id ?? null)
}

/** Whether the database is writable (no standby, not read-only) and has the table `audit_events`. */
export async function isWritable (db: Db): Promise<boolean> {
  const { writable } = await queryRow<{ writable: boolean }>(db, sql`
    SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off'
      AND to_regclass('audit_events') IS NOT NULL AS writable`)
  return writable
}

export async function findPlan (db: Db, name: string): Promise<{ name: string } | undefined> {
  const [row] = await db.select({ name: plans.name }).from(plans).where(eq(plans.name, name))
  return row
}
