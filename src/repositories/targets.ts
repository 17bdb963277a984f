import { sql } from 'drizzle-orm'
import type { TargetAttributes } from '../../schemas/targets.ts'
import { changedAt } from '../db/columns.ts'
import {
  macOf, preparedSql, requireAuthentic, tampered, updateAuthentic, type Authenticated, type Db, type Raw
} from '../db/database.ts'
import { matching } from '../db/matching.ts'
import { project_counts, targets } from '../db/tables.ts'
import { readPage, type PageRequest } from '../rules/pagination.ts'

export type TargetRow = TargetAttributes & { id: string }
type Row = Raw<TargetRow> & Pick<Authenticated<'targets'>, 'organization_id' | 'mac'>

const columns = sql`t.organization_id, t.mac,
  t.id, t.project_id, t.name, t.slug, t.description, t.environment_count, t.secret_count, t.created_at, t.updated_at`

const byId = preparedSql<Row, { organization_id: string, id: string }>('target', ($) => sql`
  SELECT ${columns} FROM targets t WHERE t.organization_id = ${$('organization_id')}::char(26)
    AND t.id = ${$('id')}::char(26)`)

function toTarget (db: Db, row: Row): TargetRow {
  const { id, organization_id, project_id, name, slug, description, environment_count, secret_count, mac } = row
  requireAuthentic(db, 'targets', { id, organization_id, project_id, slug, mac })
  const [created_at, updated_at] = [new Date(row.created_at), new Date(row.updated_at)]
  return { id, project_id, name, slug, description, environment_count, secret_count, created_at, updated_at }
}

/** A target as the API shows it. Throws TamperedRow. */
export async function findTarget (db: Db, organizationId: string, id: string): Promise<TargetRow | undefined> {
  const [row] = await byId(db, { organization_id: organizationId, id })
  return row && toTarget(db, row)
}

const inProject = preparedSql<Row & { total: number }, Record<string, unknown>>('targets', ($) => sql`
  SELECT c.target_count AS total, ${columns}
  FROM targets t JOIN project_counts c ON c.organization_id = t.organization_id AND c.project_id = t.project_id
  WHERE t.organization_id = ${$('organization_id')}::char(26) AND t.project_id = ${$('project_id')}::char(26)
  ORDER BY t.slug LIMIT ${$('limit')}::int OFFSET ${$('offset')}::bigint`)

/** Targets of a project by slug. Throws TamperedRow. */
export async function listTargets (
  db: Db, organization_id: string, project_id: string, page: PageRequest
): Promise<{ rows: TargetRow[], total: number }> {
  const { rows, total } = await readPage(page, (part) => inProject(db, { organization_id, project_id, ...part }))
  return { rows: rows.map((row) => toTarget(db, row)), total }
}

export interface NewTarget {
  id: string
  organization_id: string
  project_id: string
  name: string
  slug: string
  description: string | null
}

/** A taken slug is a unique violation. */
export async function createTarget (db: Db, target: NewTarget): Promise<void> {
  await db.insert(targets).values({ ...target, mac: macOf(db, 'targets', target) })
  await db.update(project_counts).set({ target_count: sql`${project_counts.target_count} + 1` })
    .where(matching(project_counts, { organization_id: target.organization_id, project_id: target.project_id }))
}

export async function updateTarget (
  db: Db, organizationId: string, id: string, changes: Partial<Pick<NewTarget, 'name' | 'slug' | 'description'>>
): Promise<void> {
  const { slug, ...more } = changes
  const its = matching(targets, { organization_id: organizationId, id })
  await updateAuthentic(db, 'targets', its, { slug }, {
    ...more, updated_at: changedAt(targets.updated_at, changes)
  }) ?? tampered()
}

/**
 * Deletes a target with its environments and documents, whose histories were removed before. The caller holds the
 * project's row.
 */
export async function deleteTarget (
  db: Db, organizationId: string, { id, project_id }: { id: string, project_id: string }
): Promise<void> {
  const [gone] = await db.delete(targets).where(matching(targets, { organization_id: organizationId, id }))
    .returning({ environments: targets.environment_count, secrets: targets.secret_count })
  await db.update(project_counts).set({
    target_count: sql`${project_counts.target_count} - 1`,
    environment_count: sql`${project_counts.environment_count} - ${gone!.environments}`,
    secret_count: sql`${project_counts.secret_count} - ${gone!.secrets}`
  }).where(matching(project_counts, { organization_id: organizationId, project_id }))
}
