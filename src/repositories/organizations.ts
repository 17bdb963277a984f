import { asc, eq, or, sql } from 'drizzle-orm'
import type { OrganizationStatus } from '../../schemas/organizations.ts'
import { authenticatedColumns } from '../db/authenticated.ts'
import { type Db, isAuthentic, isOneOf } from '../db/database.ts'
import { members, organization_counters, organizations, plans } from '../db/tables.ts'
import { offsetOf, type PageRequest } from '../rules/pagination.ts'
import type { Organization } from './principals.ts'

export interface NewOrganization { id: string, name: string, slug: string, plan: string, storage_key: Buffer }

/** Creates an organization with its counters at 1. */
export async function createOrganization (db: Db, organization: NewOrganization): Promise<void> {
  await db.insert(organizations).values(organization)
  await db.insert(organization_counters).values({ organization_id: organization.id })
}

/** Until the end of the transaction nobody else creates an organization: of two first starts at once, one does it. */
export async function lockOrganizations (db: Db): Promise<void> {
  await db.execute(sql`LOCK TABLE organizations IN EXCLUSIVE MODE`)
}

export async function countOrganizations (db: Db): Promise<number> {
  return db.$count(organizations)
}

/** Organizations of which the user is an active member, by name. */
export async function listOrganizations (
  db: Db, userId: number, page: PageRequest
): Promise<{ rows: Omit<Organization, 'storage_key'>[], total: number }> {
  const all = await db.select(authenticatedColumns('members')).from(members).where(eq(members.user_id, userId))
  const own = all.filter((row) =>
    row.status === 'active' && isAuthentic(db, 'members', row)).map(({ organization_id }) => organization_id)
  const { id, name, slug, status, require_second_factor, created_at, updated_at } = organizations
  const rows = await db.select({
    organization: { id, name, slug, status, require_second_factor, created_at, updated_at }, plan: plans
  }).from(organizations)
    .innerJoin(plans, eq(plans.name, organizations.plan))
    .where(isOneOf(id, own)).orderBy(asc(name), asc(id)).limit(page.per_page).offset(offsetOf(page))
  return { rows: rows.map(({ organization, plan }) => ({ ...organization, plan })), total: own.length }
}

/** Changes an organization's plan or status; its id, or undefined when there is no such organization. */
export async function updateOrganization (
  db: Db, idOrSlug: string, changes: { plan?: string | undefined, status?: OrganizationStatus | undefined }
): Promise<string | undefined> {
  const [row] = await db.update(organizations).set({ ...changes, updated_at: sql`now()` })
    .where(or(
      eq(organizations.id, idOrSlug.toUpperCase()), eq(organizations.slug, idOrSlug)
    )).returning({ id: organizations.id })
  return row?.id
}

export async function findOrganization (db: Db, idOrSlug: string): Promise<{ id: string, name: string } | undefined> {
  const [row] = await db.select({ id: organizations.id, name: organizations.name }).from(organizations)
    .where(or(eq(organizations.id, idOrSlug.toUpperCase()), eq(organizations.slug, idOrSlug)))
  return row
}

/** Whether writes can be accepted: not on a standby, and with this build's tables. */
export async function isWritable (db: Db): Promise<boolean> {
  const [row] = await db.execute(sql`
    SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off'
      AND to_regclass('audit_events') IS NOT NULL AS writable
  `) as unknown as { writable: boolean }[]
  return row?.writable === true
}

export async function findPlan (db: Db, name: string): Promise<{ name: string } | undefined> {
  const [row] = await db.select({ name: plans.name }).from(plans).where(eq(plans.name, name))
  return row
}
