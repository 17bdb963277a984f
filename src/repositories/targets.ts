import { and, asc, eq, sql } from 'drizzle-orm'
import type { TargetAttributes } from '../../schemas/targets.ts'
import { authenticatedColumns } from '../db/authenticated.ts'
import { macOf, updateAuthentic, verifies, type Db } from '../db/database.ts'
import { project_counts, projects, targets } from '../db/tables.ts'
import { fail } from '../rules/errors.ts'
import { offsetOf, type PageRequest } from '../rules/pagination.ts'

const columns = {
  id: targets.id,
  project_id: targets.project_id,
  name: targets.name,
  slug: targets.slug,
  description: targets.description,
  environment_count: targets.environment_count,
  secret_count: targets.secret_count,
  created_at: targets.created_at,
  updated_at: targets.updated_at
}
export type TargetRow = TargetAttributes & { id: string }

export async function findTarget (db: Db, organizationId: string, project: string, slug: string): Promise<TargetRow | undefined> {
  const [found] = await db.select({ target: columns, row: authenticatedColumns('targets'), project: authenticatedColumns('projects') }).from(targets)
    .innerJoin(projects, and(eq(projects.organization_id, targets.organization_id), eq(projects.id, targets.project_id)))
    .where(and(eq(projects.organization_id, organizationId), eq(projects.slug, project), eq(targets.slug, slug)))
  if (found !== undefined && !(verifies(db, 'targets', found.row) && verifies(db, 'projects', found.project))) fail('integrity_error')
  return found?.target
}

export async function listTargets (db: Db, organizationId: string, projectId: string, page: PageRequest): Promise<{ rows: TargetRow[], total: number }> {
  const own = and(eq(targets.organization_id, organizationId), eq(targets.project_id, projectId))
  const rows = await db.select(columns).from(targets).where(own).orderBy(asc(targets.slug)).limit(page.per_page).offset(offsetOf(page))
  const [counts] = await db.select({ total: project_counts.target_count }).from(project_counts)
    .where(and(eq(project_counts.organization_id, organizationId), eq(project_counts.project_id, projectId)))
  return { rows, total: counts?.total ?? 0 }
}

export interface NewTarget { id: string, organization_id: string, project_id: string, name: string, slug: string, description: string | null }

/** A taken slug is a unique violation. */
export async function createTarget (db: Db, target: NewTarget): Promise<void> {
  await db.insert(targets).values({ ...target, mac: macOf(db, 'targets', target) })
  await db.update(project_counts).set({ target_count: sql`${project_counts.target_count} + 1` })
    .where(and(eq(project_counts.organization_id, target.organization_id), eq(project_counts.project_id, target.project_id)))
}

export async function updateTarget (db: Db, organizationId: string, id: string, changes: Partial<Pick<NewTarget, 'name' | 'slug' | 'description'>>): Promise<void> {
  const { slug, ...more } = changes
  const its = and(eq(targets.organization_id, organizationId), eq(targets.id, id))
  await updateAuthentic(db, 'targets', its, { slug }, { ...more, updated_at: sql`now()` }) ?? fail('integrity_error')
}

/** Deletes a target with its environments and documents, whose histories were removed before. The caller holds the project's row. */
export async function deleteTarget (db: Db, organizationId: string, { id, project_id }: Pick<TargetRow, 'id' | 'project_id'>): Promise<void> {
  const [gone] = await db.delete(targets).where(and(eq(targets.organization_id, organizationId), eq(targets.id, id)))
    .returning({ environments: targets.environment_count, secrets: targets.secret_count })
  await db.update(project_counts).set({
    target_count: sql`${project_counts.target_count} - 1`,
    environment_count: sql`${project_counts.environment_count} - ${gone!.environments}`,
    secret_count: sql`${project_counts.secret_count} - ${gone!.secrets}`
  }).where(and(eq(project_counts.organization_id, organizationId), eq(project_counts.project_id, project_id)))
}
