import { eq, or, sql } from 'drizzle-orm'
import type { OrganizationStatus } from '../../schemas/organizations.ts'
import type { Db } from '../db/database.ts'
import { members, organization_counters, organizations, plans, users } from '../db/tables.ts'

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

export async function createUser (db: Db, user: { email: string, name: string, password_hash: string }): Promise<number> {
  const [row] = await db.insert(users).values({ ...user, email_normalized: user.email.normalize('NFKC').toLowerCase() }).returning({ id: users.id })
  return row!.id
}

export async function createMember (db: Db, member: { organization_id: string, user_id: number, role: string }): Promise<void> {
  await db.insert(members).values(member)
}

/** Changes an organization's plan or status; its id, or undefined when there is no such organization. */
export async function updateOrganization (db: Db, idOrSlug: string, changes: { plan?: string | undefined, status?: OrganizationStatus | undefined }): Promise<string | undefined> {
  const [row] = await db.update(organizations).set({ ...changes, updated_at: sql`now()` })
    .where(or(eq(organizations.id, idOrSlug.toUpperCase()), eq(organizations.slug, idOrSlug))).returning({ id: organizations.id })
  return row?.id
}

/** Takes the organization's row until the end of the transaction, so that two creations cannot both pass a plan's limit. */
export async function lockOrganization (db: Db, id: string): Promise<void> {
  await db.select({ id: organizations.id }).from(organizations).where(eq(organizations.id, id)).for('update')
}

/** Whether writes can be accepted: not on a standby, and with this build's tables. */
export async function isWritable (db: Db): Promise<boolean> {
  const [row] = await db.execute(sql`
    SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off' AND to_regclass('audit_events') IS NOT NULL AS writable
  `) as unknown as { writable: boolean }[]
  return row?.writable === true
}

export async function findPlan (db: Db, name: string): Promise<{ name: string } | undefined> {
  const [row] = await db.select({ name: plans.name }).from(plans).where(eq(plans.name, name))
  return row
}
