import { and, asc, eq, sql } from 'drizzle-orm'
import type { EnvironmentAttributes } from '../../schemas/environments.ts'
import { authenticatedColumns } from '../db/authenticated.ts'
import { macOf, updateAuthentic, verifies, type Db } from '../db/database.ts'
import { environments, project_counts, projects, targets } from '../db/tables.ts'
import { fail } from '../rules/errors.ts'
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
  const rows = { row: authenticatedColumns('environments'), target: authenticatedColumns('targets'), project: authenticatedColumns('projects') }
  const [found] = await db.select({ environment: columns, ...rows }).from(environments)
    .innerJoin(targets, and(eq(targets.organization_id, environments.organization_id), eq(targets.id, environments.target_id)))
    .innerJoin(projects, and(eq(projects.organization_id, environments.organization_id), eq(projects.id, environments.project_id)))
    .where(and(eq(projects.organization_id, organizationId), eq(projects.slug, project), eq(targets.slug, target), eq(environments.slug, slug)))
  const isRight = found === undefined || (verifies(db, 'environments', found.row) && verifies(db, 'targets', found.target) && verifies(db, 'projects', found.project))
  return isRight ? found?.environment : fail('integrity_error')
}

export async function listEnvironments (
  db: Db, organizationId: string, target: { id: string, environment_count: number }, page: PageRequest
): Promise<{ rows: EnvironmentRow[], total: number }> {
  const own = and(eq(environments.organization_id, organizationId), eq(environments.target_id, target.id))
  const rows = await db.select(columns).from(environments).where(own).orderBy(asc(environments.slug)).limit(page.per_page).offset(offsetOf(page))
  return { rows, total: target.environment_count }
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
  await db.insert(environments).values({ ...environment, mac: macOf(db, 'environments', environment) })
  await countEnvironments(db, environment, 1, 0)
}

export type EnvironmentChanges = Partial<Pick<NewEnvironment, 'name' | 'slug' | 'description' | 'status' | 'is_production'>>

export async function updateEnvironment (db: Db, organizationId: string, id: string, changes: EnvironmentChanges): Promise<void> {
  const { name, description, ...more } = changes
  const its = and(eq(environments.organization_id, organizationId), eq(environments.id, id))
  await updateAuthentic(db, 'environments', its, more, { name, description, updated_at: sql`now()` }) ?? fail('integrity_error')
}

/** Deletes an environment with its document, whose history was removed before. The caller holds the project's row. */
export async function deleteEnvironment (db: Db, organizationId: string, row: EnvironmentRow, documents: number): Promise<void> {
  await db.delete(environments).where(and(eq(environments.organization_id, organizationId), eq(environments.id, row.id)))
  await countEnvironments(db, { ...row, organization_id: organizationId }, -1, -documents)
}

// What is below the target and the project, by so many environments and documents more.
async function countEnvironments (
  db: Db, { organization_id, project_id, target_id }: Pick<NewEnvironment, 'organization_id' | 'project_id' | 'target_id'>, more: number, documents: number
): Promise<void> {
  await db.update(targets)
    .set({ environment_count: sql`${targets.environment_count} + ${more}`, secret_count: sql`${targets.secret_count} + ${documents}` })
    .where(and(eq(targets.organization_id, organization_id), eq(targets.id, target_id)))
  await db.update(project_counts)
    .set({ environment_count: sql`${project_counts.environment_count} + ${more}`, secret_count: sql`${project_counts.secret_count} + ${documents}` })
    .where(and(eq(project_counts.organization_id, organization_id), eq(project_counts.project_id, project_id)))
}
