import { and, asc, eq, inArray, sql } from 'drizzle-orm'
import type { HistoryPolicy, Managed, ProjectAttributes, SecretFormat } from '../../schemas/projects.ts'
import { authenticatedColumns } from '../db/authenticated.ts'
import { macOf, updateAuthentic, verifies, type Authenticated, type Db } from '../db/database.ts'
import { encryption_keys, environments, project_counts, projects, targets } from '../db/tables.ts'
import { fail } from '../rules/errors.ts'
import { offsetOf, type PageRequest } from '../rules/pagination.ts'
import type { Slice } from '../rules/slices.ts'
import type { KeyRow } from './encryption-keys.ts'

const attributes = {
  ulid: projects.id,
  organization_id: projects.organization_id,
  name: projects.name,
  slug: projects.slug,
  description: projects.description,
  secret_format: projects.secret_format,
  encryption_type: projects.encryption_type,
  history_policy: projects.history_policy,
  secret_count: project_counts.secret_count,
  environment_count: project_counts.environment_count,
  target_count: project_counts.target_count,
  created_at: projects.created_at,
  updated_at: projects.updated_at
}

const oneOf = (organizationId: string, by: { slug: string } | { id: string }) =>
  and(eq(projects.organization_id, organizationId), 'id' in by ? eq(projects.id, by.id) : eq(projects.slug, by.slug))

const itsCounts = and(eq(project_counts.organization_id, projects.organization_id), eq(project_counts.project_id, projects.id))

const withPresence = (row: Omit<ProjectAttributes, 'has_secrets'>): ProjectAttributes => ({ ...row, has_secrets: row.secret_count > 0 })

export async function countProjects (db: Db, organizationId: string): Promise<number> {
  return db.$count(projects, eq(projects.organization_id, organizationId))
}

export async function findProject (db: Db, organizationId: string, by: { slug: string } | { id: string }): Promise<ProjectAttributes | undefined> {
  const [found] = await db.select({ project: attributes, row: authenticatedColumns('projects') }).from(projects)
    .innerJoin(project_counts, itsCounts).where(oneOf(organizationId, by))
  return found && requireAuthentic(db, found.row) && withPresence(found.project)
}

/** Projects of the organization by slug; with slices, only those that a slice covers whole. */
export async function listProjects (db: Db, organizationId: string, slices: readonly Slice[], page: PageRequest): Promise<{ rows: ProjectAttributes[], total: number }> {
  const whole = slices.filter(({ target_id }) => target_id === null).map(({ project_id }) => project_id)
  const visible = and(eq(projects.organization_id, organizationId), slices.length === 0 ? undefined : inArray(projects.id, whole))
  const rows = await db.select(attributes).from(projects).innerJoin(project_counts, itsCounts).where(visible)
    .orderBy(asc(projects.slug)).limit(page.per_page).offset(offsetOf(page))
  return { rows: rows.map(withPresence), total: await db.$count(projects, visible) }
}

/** A key to be stored: what its owner derives, wrapped. */
export type NewKey = Pick<KeyRow, 'version' | 'managed' | 'key_string' | 'data_key' | 'key_check' | 'salt' | 'iterations'> & { key_check_hash: Buffer | null, hint: string | null }

export interface NewProject {
  id: string
  organization_id: string
  name: string
  slug: string
  description: string | null
  secret_format: SecretFormat
  encryption_type: Managed
  history_policy: HistoryPolicy
}

/** Creates a project with its first, active key. A taken slug is a unique violation. */
export async function createProject (db: Db, project: NewProject, key: NewKey): Promise<void> {
  const row = { ...project, key_version: key.version }
  await db.insert(projects).values({ ...row, mac: macOf(db, 'projects', row) })
  await db.insert(project_counts).values({ organization_id: project.organization_id, project_id: project.id })
  await db.insert(encryption_keys).values({ ...key, organization_id: project.organization_id, project_id: project.id, is_active: true })
}

export type ProjectChanges = Partial<Pick<NewProject, 'name' | 'slug' | 'description' | 'secret_format' | 'history_policy'>>

export async function updateProject (db: Db, organizationId: string, id: string, { name, description, ...changes }: ProjectChanges): Promise<void> {
  await updateAuthentic(db, 'projects', oneOf(organizationId, { id }), changes, { name, description, updated_at: sql`now()` }) ?? fail('integrity_error')
}

/** A project as far as its key goes. */
export interface KeyState { id: string, organization_id: string, encryption_type: Managed, key_version: number, history_policy: HistoryPolicy }

/** What is wrong in a project's row makes everything below it doubtful. True, or the end of the request. */
function requireAuthentic (db: Db, row: Authenticated<'projects'>): true {
  return verifies(db, 'projects', row) || fail('integrity_error')
}

export async function findKeyState (db: Db, organizationId: string, slug: string): Promise<KeyState | undefined> {
  const [row] = await db.select(authenticatedColumns('projects')).from(projects).where(oneOf(organizationId, { slug }))
  return row && requireAuthentic(db, row) && row
}

/**
 * Takes the project's row until the end of the transaction. `update`: rotation, purge, change of custody and deletes
 * exclude every write below it. `share`: no rotation comes between.
 */
export async function lockProject (
  db: Db, organizationId: string, by: { slug: string } | { id: string }, strength: 'update' | 'share' = 'update'
): Promise<KeyState | undefined> {
  const [row] = await db.select(authenticatedColumns('projects')).from(projects).where(oneOf(organizationId, by)).for(strength)
  return row && requireAuthentic(db, row) && row
}

/** Deletes a project with everything below it; the histories of its documents were removed before. */
export async function deleteProject (db: Db, organizationId: string, id: string): Promise<void> {
  await db.delete(projects).where(oneOf(organizationId, { id }))
}

/** Those of the slugs that siblings have. */
export async function listTakenSlugs (
  db: Db, { organization_id, ...among }: { organization_id: string, project_id?: string, target_id?: string }, slugs: readonly string[]
): Promise<Set<string>> {
  const [table, parent] = among.target_id !== undefined
    ? [environments, eq(environments.target_id, among.target_id)] as const
    : among.project_id !== undefined ? [targets, eq(targets.project_id, among.project_id)] as const : [projects, undefined] as const
  const rows = await db.select({ slug: table.slug })
    .from(table).where(and(eq(table.organization_id, organization_id), parent, inArray(table.slug, [...slugs])))
  return new Set(rows.map((row) => row.slug))
}
