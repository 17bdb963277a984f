import { and, desc, eq, sql } from 'drizzle-orm'
import type { Managed } from '../../schemas/projects.ts'
import type { Level } from '../../schemas/secrets.ts'
import type { VersionAction } from '../../schemas/versions.ts'
import { prepared, type Db } from '../db/database.ts'
import { encryption_keys, keyColumns, secret_versions, secrets } from '../db/tables.ts'
import { fail } from '../rules/errors.ts'
import { offsetOf, type PageRequest } from '../rules/pagination.ts'
import type { Place } from '../rules/slices.ts'
import type { KeyRow } from './encryption-keys.ts'

export interface VersionRow {
  id: number
  action: VersionAction
  revision: number
  key_version: number
  managed: Managed
  size_bytes: number
  restored_from: number | null
  created_by_id: number | null
  created_by_name: string | null
  created_at: Date
  level: Level
  /** Outside the plan's retention window, by the database's clock. */
  locked: boolean
}

const columns = {
  id: secret_versions.id,
  action: secret_versions.action,
  revision: secret_versions.revision,
  key_version: secret_versions.key_version,
  managed: encryption_keys.managed,
  size_bytes: secret_versions.size_bytes,
  restored_from: secret_versions.restored_from,
  created_by_id: secret_versions.created_by_id,
  created_by_name: secret_versions.created_by_name,
  created_at: secret_versions.created_at,
  level: secrets.level,
  locked: sql<boolean>`coalesce(${secret_versions.created_at} < now() - make_interval(days => ${sql.placeholder('retention_days')}::int), false)`
}

const itsKey = and(eq(encryption_keys.project_id, secrets.project_id), eq(encryption_keys.version, secret_versions.key_version))

// Looked up row by row: as joins these two lead the planner astray on tables without statistics.
const page = prepared('versions_of_secret', (db) => db
  .select({
    ...columns,
    managed: sql<Managed>`(SELECT k.managed FROM encryption_keys k WHERE k.project_id = ${sql.placeholder('project_id')} AND k.version = secret_versions.key_version)`,
    level: sql<Level>`${sql.placeholder('level')}::varchar`
  })
  .from(secret_versions)
  .where(eq(secret_versions.secret_id, sql.placeholder('secret_id')))
  .orderBy(desc(secret_versions.id))
  .limit(sql.placeholder('limit'))
  .offset(sql.placeholder('offset')))

const count = prepared('count_versions', (db) => db
  .select({ count: sql<number>`count(*)::int` })
  .from(secret_versions)
  .where(eq(secret_versions.secret_id, sql.placeholder('secret_id'))))

/** Versions of a secret, newest first; locked ones are listed too. */
export async function listVersions (
  db: Db, of: { project_id: string, id: string, level: Level }, retentionDays: number | null, request: PageRequest
): Promise<{ rows: VersionRow[], total: number }> {
  const [rows, total] = await Promise.all([
    page(db, { project_id: of.project_id, secret_id: of.id, level: of.level, retention_days: retentionDays, limit: request.per_page, offset: offsetOf(request) }),
    countVersions(db, of.id)
  ])
  return { rows, total }
}

export async function countVersions (db: Db, secretId: string): Promise<number> {
  const [counted] = await count(db, { secret_id: secretId })
  return counted!.count
}

/** A version with its sealed content, its key and its place. */
export interface FullVersion {
  version: VersionRow
  sealed: Buffer
  secret: Place & { id: string, level_id: string }
  key: KeyRow
}

const one = prepared('version', (db) => db
  .select({
    version: columns,
    sealed: secret_versions.sealed,
    secret: {
      id: secrets.id,
      project_id: secrets.project_id,
      target_id: secrets.target_id,
      environment_id: secrets.environment_id,
      level_id: secrets.level_id
    },
    key: keyColumns
  })
  .from(secret_versions)
  .innerJoin(secrets, eq(secrets.id, secret_versions.secret_id))
  .leftJoin(encryption_keys, itsKey)
  .where(and(eq(secret_versions.organization_id, sql.placeholder('organization_id')), eq(secret_versions.id, sql.placeholder('id')))))

export async function findVersion (db: Db, organizationId: string, id: number, retentionDays: number | null): Promise<FullVersion | undefined> {
  const [row] = await one(db, { organization_id: organizationId, id, retention_days: retentionDays })
  if (row === undefined) return undefined
  // A version names a key that its project never had.
  const { version, key } = row
  if (key === null || version.managed === null) return fail('integrity_error')
  return { ...row, key, version: { ...version, managed: version.managed } }
}

/**
 * Deletes one version. `protected` when it is the newest one of a deleted secret (its restore snapshot) and `force` is
 * not given. The caller holds the project's row, so no write or other delete comes between.
 */
export async function deleteVersion (db: Db, organizationId: string, id: number, force: boolean): Promise<'deleted' | 'protected' | 'missing'> {
  const [row] = await db
    .select({ snapshot: sql<boolean>`${secrets.sealed} IS NULL AND NOT EXISTS (SELECT FROM secret_versions newer WHERE newer.secret_id = ${secret_versions.secret_id} AND newer.id > ${secret_versions.id})` })
    .from(secret_versions)
    .innerJoin(secrets, eq(secrets.id, secret_versions.secret_id))
    .where(and(eq(secret_versions.organization_id, organizationId), eq(secret_versions.id, id)))
  if (row === undefined) return 'missing'
  if (row.snapshot && !force) return 'protected'
  await db.delete(secret_versions).where(and(eq(secret_versions.organization_id, organizationId), eq(secret_versions.id, id)))
  return 'deleted'
}

/**
 * Purges the history of one secret, or of a whole project, and counts what was removed. Without `force` the restore
 * snapshots of deleted secrets stay. The caller holds the project's row.
 */
export async function purgeVersions (db: Db, of: { secret_id: string } | { project_id: string }, force: boolean): Promise<number> {
  const which = 'secret_id' in of ? sql`s.id = ${of.secret_id}` : sql`s.project_id = ${of.project_id}`
  const [row] = await db.execute(sql`
    WITH purged AS (
      DELETE FROM secret_versions v USING secrets s
      WHERE v.secret_id = s.id AND ${which}
        AND (${force} OR s.sealed IS NOT NULL OR EXISTS (SELECT FROM secret_versions newer WHERE newer.secret_id = v.secret_id AND newer.id > v.id))
      RETURNING 1
    ) SELECT count(*)::int AS count FROM purged`) as unknown as { count: number }[]
  return row!.count
}
