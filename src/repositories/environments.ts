import { sql } from 'drizzle-orm'
import type { EnvironmentAttributes } from '../../schemas/environments.ts'
import { changedAt } from '../db/columns.ts'
import {
  macOf, preparedSql, requireAuthentic, tampered, updateAuthentic, type Authenticated, type Db, type Raw
} from '../db/database.ts'
import { matching } from '../db/matching.ts'
import { environments, project_counts, targets } from '../db/tables.ts'
import { readPage, type PageRequest } from '../rules/pagination.ts'

export type EnvironmentRow = EnvironmentAttributes & { id: string }
type Row = Raw<EnvironmentRow> & Pick<Authenticated<'environments'>, 'organization_id' | 'mac'>

const columns = sql`e.organization_id, e.mac,
  e.id, e.project_id, e.target_id, e.name, e.slug, e.description, e.status, e.is_production, e.created_at, e.updated_at`

const byId = preparedSql<Row, { organization_id: string, id: string }>('environment', ($) => sql`
  SELECT ${columns} FROM environments e WHERE e.organization_id = ${$('organization_id')}::char(26)
    AND e.id = ${$('id')}::char(26)`)

function toEnvironment (db: Db, row: Row): EnvironmentRow {
  const { id, organization_id, project_id, target_id, name, slug, description, status, is_production, mac } = row
  requireAuthentic(db, 'environments', {
    id, organization_id, project_id, target_id, slug, status, is_production, mac
  })
  const [created_at, updated_at] = [new Date(row.created_at), new Date(row.updated_at)]
  return { id, project_id, target_id, name, slug, description, status, is_production, created_at, updated_at }
}

/** An environment as the API shows it. Throws TamperedRow. */
export async function findEnvironment (
  db: Db, organizationId: string, id: string
): Promise<EnvironmentRow | undefined> {
  const [row] = await byId(db, { organization_id: organizationId, id })
  return row && toEnvironment(db, row)
}

const inTarget = preparedSql<Row & { total: number }, Record<string, unknown>>('environments', ($) => sql`
  SELECT t.environment_count AS total, ${columns}
  FROM environments e JOIN targets t ON t.organization_id = e.organization_id AND t.id = e.target_id
  WHERE e.organization_id = ${$('organization_id')}::char(26) AND e.target_id = ${$('target_id')}::char(26)
  ORDER BY e.slug LIMIT ${$('limit')}::int OFFSET ${$('offset')}::bigint`)

/** Environments of a target by slug. Throws TamperedRow. */
export async function listEnvironments (
  db: Db, organization_id: string, target_id: string, page: PageRequest
): Promise<{ rows: EnvironmentRow[], total: number }> {
  const { rows, total } = await readPage(page, (part) => inTarget(db, { organization_id, target_id, ...part }))
  return { rows: rows.map((row) => toEnvironment(db, row)), total }
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

export type EnvironmentChanges = Partial<Pick<NewEnvironment,
  'name' | 'slug' | 'description' | 'status' | 'is_production'>>

export async function updateEnvironment (
  db: Db, organizationId: string, id: string, changes: EnvironmentChanges
): Promise<void> {
  const { name, description, ...more } = changes
  const its = matching(environments, { organization_id: organizationId, id })
  await updateAuthentic(db, 'environments', its, more, {
    name, description, updated_at: changedAt(environments.updated_at, changes)
  }) ?? tampered()
}

/** Deletes an environment with its document, whose history was removed before. The caller holds the project's row. */
export async function deleteEnvironment (
  db: Db, organizationId: string, row: Pick<NewEnvironment, 'id' | 'project_id' | 'target_id'>, documents: number
): Promise<void> {
  await db.delete(environments).where(matching(environments, { organization_id: organizationId, id: row.id }))
  await countEnvironments(db, { ...row, organization_id: organizationId }, -1, -documents)
}

// What is below the target and the project, by so many environments and documents more.
async function countEnvironments (
  db: Db, {
    organization_id, project_id, target_id
  }: Pick<NewEnvironment, 'organization_id' | 'project_id' | 'target_id'>, more: number, documents: number
): Promise<void> {
  await db.update(targets)
    .set({
      environment_count: sql`${targets.environment_count} + ${more}`,
      secret_count: sql`${targets.secret_count} + ${documents}`
    })
    .where(matching(targets, { organization_id, id: target_id }))
  await db.update(project_counts)
    .set({
      environment_count: sql`${project_counts.environment_count} + ${more}`,
      secret_count: sql`${project_counts.secret_count} + ${documents}`
    })
    .where(matching(project_counts, { organization_id, project_id }))
}
