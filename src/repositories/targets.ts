import { and, asc, eq, sql } from 'drizzle-orm'
import type { TargetAttributes } from '../../schemas/targets.ts'
import { counted } from '../db/columns.ts'
import type { Db } from '../db/database.ts'
import { environments, projects, secrets, targets } from '../db/tables.ts'
import { offsetOf, type PageRequest } from '../rules/pagination.ts'

const columns = {
  id: targets.id,
  project_id: targets.project_id,
  name: targets.name,
  slug: targets.slug,
  description: targets.description,
  environment_count: counted(sql`(SELECT count(*)::int FROM ${environments} WHERE ${environments.target_id} = ${targets.id})`),
  secret_count: counted(sql`(SELECT count(*)::int FROM ${secrets} WHERE ${secrets.target_id} = ${targets.id} AND ${secrets.sealed} IS NOT NULL)`),
  created_at: targets.created_at,
  updated_at: targets.updated_at
}
export type TargetRow = TargetAttributes & { id: string }

export async function findTarget (db: Db, organizationId: string, project: string, slug: string): Promise<TargetRow | undefined> {
  const [row] = await db.select(columns).from(targets).innerJoin(projects, eq(projects.id, targets.project_id))
    .where(and(eq(projects.organization_id, organizationId), eq(projects.slug, project), eq(targets.slug, slug)))
  return row
}

export async function listTargets (db: Db, projectId: string, page: PageRequest): Promise<{ rows: TargetRow[], total: number }> {
  const own = eq(targets.project_id, projectId)
  const rows = await db.select(columns).from(targets).where(own).orderBy(asc(targets.slug)).limit(page.per_page).offset(offsetOf(page))
  return { rows, total: await db.$count(targets, own) }
}

export interface NewTarget { id: string, organization_id: string, project_id: string, name: string, slug: string, description: string | null }

/** A taken slug is a unique violation. */
export async function createTarget (db: Db, target: NewTarget): Promise<void> {
  await db.insert(targets).values(target)
}

export async function updateTarget (db: Db, id: string, changes: Partial<Pick<NewTarget, 'name' | 'slug' | 'description'>>): Promise<void> {
  await db.update(targets).set({ ...changes, updated_at: sql`now()` }).where(eq(targets.id, id))
}

/** Deletes a target with its environments, documents and history. */
export async function deleteTarget (db: Db, id: string): Promise<void> {
  await db.delete(targets).where(eq(targets.id, id))
}
