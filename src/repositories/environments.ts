import { and, asc, eq, sql } from 'drizzle-orm'
import type { EnvironmentAttributes } from '../../schemas/environments.ts'
import type { Db } from '../db/database.ts'
import { environments, projects, targets } from '../db/tables.ts'
import { offsetOf, type PageRequest } from '../rules/pagination.ts'

const columns = {
  id: environments.id,
  project_id: environments.project_id,
  target_id: environments.target_id,
  name: environments.name,
  slug: environments.slug,
  description: environments.description,
  status: environments.status,
  is_production: environments.is_production,
  created_at: environments.created_at,
  updated_at: environments.updated_at
}
export type EnvironmentRow = EnvironmentAttributes & { id: string }

export async function findEnvironment (db: Db, organizationId: string, project: string, target: string, slug: string): Promise<EnvironmentRow | undefined> {
  const [row] = await db.select(columns).from(environments)
    .innerJoin(targets, eq(targets.id, environments.target_id))
    .innerJoin(projects, eq(projects.id, environments.project_id))
    .where(and(eq(projects.organization_id, organizationId), eq(projects.slug, project), eq(targets.slug, target), eq(environments.slug, slug)))
  return row
}

export async function listEnvironments (db: Db, targetId: string, page: PageRequest): Promise<{ rows: EnvironmentRow[], total: number }> {
  const own = eq(environments.target_id, targetId)
  const rows = await db.select(columns).from(environments).where(own).orderBy(asc(environments.slug)).limit(page.per_page).offset(offsetOf(page))
  return { rows, total: await db.$count(environments, own) }
}

export interface NewEnvironment {
  id: string
  organization_id: string
  project_id: string
  target_id: string
  name: string
  slug: string
  description: string | null
  status: string
  is_production: boolean
}

/** A taken slug is a unique violation. */
export async function createEnvironment (db: Db, environment: NewEnvironment): Promise<void> {
  await db.insert(environments).values(environment)
}

export type EnvironmentChanges = Partial<Pick<NewEnvironment, 'name' | 'slug' | 'description' | 'status' | 'is_production'>>

export async function updateEnvironment (db: Db, id: string, changes: EnvironmentChanges): Promise<void> {
  await db.update(environments).set({ ...changes, updated_at: sql`now()` }).where(eq(environments.id, id))
}

/** Deletes an environment with its document and history. */
export async function deleteEnvironment (db: Db, id: string): Promise<void> {
  await db.delete(environments).where(eq(environments.id, id))
}
