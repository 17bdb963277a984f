import { and, asc, eq, inArray, isNull, ne, sql } from 'drizzle-orm'
import { sealedJson } from '../db/columns.ts'
import type { Db } from '../db/database.ts'
import { encryption_keys, keyColumns, organizations, projects, re_encryptions, secret_versions, secrets } from '../db/tables.ts'
import type { KeyRow } from './encryption-keys.ts'
import type { KeyState } from './projects.ts'

// Versions under older keys, and their way onto the active one.

/** A version under an older key, with the key. */
export interface OldVersion {
  id: number
  secret_id: string
  level_id: string
  revision: number
  key_version: number
  size_bytes: number
  sealed: Buffer
  key: KeyRow
}

/** How far a re-encryption is. */
export interface Progress { total: number, moved: number, started_at: Date, finished_at: Date | null }

/**
 * What waits in a project: versions under an older key of whoever holds the active one. What a plan's retention has
 * locked is not given out, so it does not wait for a client (`retentionDays`); the server moves it like all the rest.
 */
const waiting = (project: KeyState, retentionDays: number | null) => and(
  eq(secrets.project_id, project.id),
  ne(secret_versions.key_version, project.key_version),
  eq(encryption_keys.managed, project.encryption_type),
  retentionDays === null ? undefined : sql`${secret_versions.created_at} >= now() - make_interval(days => ${retentionDays}::int)`
)
const itsSecret = eq(secrets.id, secret_versions.secret_id)
const itsKey = and(eq(encryption_keys.project_id, secrets.project_id), eq(encryption_keys.version, secret_versions.key_version))

export async function countWaiting (db: Db, project: KeyState, retentionDays: number | null): Promise<number> {
  const [row] = await db.select({ count: sql<number>`count(*)::int` }).from(secret_versions)
    .innerJoin(secrets, itsSecret).innerJoin(encryption_keys, itsKey).where(waiting(project, retentionDays))
  return row!.count
}

/** A place among the versions of a project: of which secret, behind which version. */
export interface Cursor { secret_id: string, id: number }

export const START: Cursor = { secret_id: '', id: 0 }

type Listed = { secret_id: string, id: number, size_bytes: number }

/**
 * Ids and sizes of what waits for the server behind a place, secret by secret. Each secret's versions are looked up by
 * themselves: a list over the whole organization would read through every version of its other projects, again and again.
 */
export async function listWaiting (db: Db, project: KeyState, after: Cursor, limit: number): Promise<Listed[]> {
  return numbered(await db.execute(sql`
    SELECT s.id AS secret_id, v.id, v.size_bytes
    FROM secrets s CROSS JOIN LATERAL (
      SELECT v.id, v.size_bytes FROM secret_versions v
      JOIN encryption_keys k ON k.project_id = s.project_id AND k.version = v.key_version
      WHERE v.secret_id = s.id AND v.id > CASE WHEN s.id = ${after.secret_id} THEN ${after.id}::bigint ELSE 0 END
        AND v.key_version <> ${project.key_version} AND k.managed = 'server'
      ORDER BY v.id LIMIT ${limit}
    ) v
    WHERE s.project_id = ${project.id} AND s.id >= ${after.secret_id}
    ORDER BY s.id, v.id LIMIT ${limit}`))
}

/** Ids and sizes of what waits for the client, oldest first; not what the plan's retention has locked. */
export async function listOldestWaiting (
  db: Db, project: KeyState, { limit, after, retentionDays }: { limit: number, after: number, retentionDays: number | null }
): Promise<Listed[]> {
  return numbered(await db.execute(sql`
    SELECT s.id AS secret_id, v.id, v.size_bytes
    FROM secrets s CROSS JOIN LATERAL (
      SELECT v.id, v.size_bytes FROM secret_versions v
      JOIN encryption_keys k ON k.project_id = s.project_id AND k.version = v.key_version
      WHERE v.secret_id = s.id AND v.id > ${after}::bigint AND v.key_version <> ${project.key_version} AND k.managed = 'client'
        AND (${retentionDays}::int IS NULL OR v.created_at >= now() - make_interval(days => ${retentionDays}::int))
      ORDER BY v.id LIMIT ${limit}
    ) v
    WHERE s.project_id = ${project.id} ORDER BY v.id LIMIT ${limit}`))
}

// The driver reads a bigint as text.
const numbered = (rows: unknown) => (rows as Listed[]).map((row) => ({ ...row, id: Number(row.id) }))

/**
 * Those of the versions that wait, with their content. `lock` takes their rows until the end of the transaction:
 * `skip` leaves out what another instance or a restore is at.
 */
export async function findWaiting (
  db: Db, project: KeyState, ids: readonly number[], retentionDays: number | null, lock?: 'wait' | 'skip'
): Promise<OldVersion[]> {
  if (ids.length === 0) return []
  const { id, secret_id, revision, key_version, size_bytes, sealed } = secret_versions
  const query = db.select({ id, secret_id, revision, key_version, size_bytes, sealed, level_id: secrets.level_id, key: keyColumns }).from(secret_versions)
    .innerJoin(secrets, itsSecret).innerJoin(encryption_keys, itsKey)
    .where(and(eq(secret_versions.organization_id, project.organization_id), inArray(secret_versions.id, [...ids]), waiting(project, retentionDays)))
    .orderBy(asc(secret_versions.id))
  if (lock === undefined) return query
  return lock === 'skip' ? query.for('update', { of: secret_versions, skipLocked: true }) : query.for('update', { of: secret_versions })
}

/** Puts versions under the active key; their ids, revisions and times stay. */
export async function moveVersions (db: Db, project: KeyState, versions: readonly { id: number, sealed: Buffer, size_bytes: number }[]): Promise<void> {
  await db.execute(sql`
    UPDATE secret_versions v SET key_version = ${project.key_version}, sealed = decode(r.sealed, 'base64'), size_bytes = r.size_bytes
    FROM jsonb_to_recordset(${sealedJson(versions)}::jsonb) AS r (id bigint, sealed text, size_bytes int)
    WHERE v.organization_id = ${project.organization_id} AND v.id = r.id`)
  await db.update(re_encryptions).set({ moved: sql`${re_encryptions.moved} + ${versions.length}` })
    .where(and(eq(re_encryptions.project_id, project.id), isNull(re_encryptions.finished_at)))
}

/** Writes down that the history of a locked project is to move. One that is under way goes on, onto the newest key. */
export async function startReEncryption (db: Db, project: KeyState, total: number): Promise<void> {
  await db.insert(re_encryptions).values({ project_id: project.id, organization_id: project.organization_id, total }).onConflictDoUpdate({
    target: re_encryptions.project_id,
    set: {
      total: sql`CASE WHEN ${re_encryptions.finished_at} IS NULL THEN ${re_encryptions.moved} ELSE 0 END + ${total}`,
      moved: sql`CASE WHEN ${re_encryptions.finished_at} IS NULL THEN ${re_encryptions.moved} ELSE 0 END`,
      started_at: sql`CASE WHEN ${re_encryptions.finished_at} IS NULL THEN ${re_encryptions.started_at} ELSE now() END`,
      finished_at: null
    }
  })
}

/** The re-encryption that was asked for last. */
export async function findReEncryption (db: Db, projectId: string): Promise<Progress | undefined> {
  const { total, moved, started_at, finished_at } = re_encryptions
  const [row] = await db.select({ total, moved, started_at, finished_at }).from(re_encryptions).where(eq(re_encryptions.project_id, projectId))
  return row
}

/** Marks it as finished; undefined when somebody else has. */
export async function finishReEncryption (db: Db, projectId: string): Promise<Progress | undefined> {
  const { total, moved, started_at, finished_at } = re_encryptions
  const [row] = await db.update(re_encryptions).set({ finished_at: sql`now()` })
    .where(and(eq(re_encryptions.project_id, projectId), isNull(re_encryptions.finished_at))).returning({ total, moved, started_at, finished_at })
  return row
}

/** Server-managed projects whose history is still to move, some of them, in any order: the system's own list, across organizations. */
export async function listReEncryptions (db: Db): Promise<{ project_id: string, organization: { id: string, storage_key: Buffer } }[]> {
  return db.select({ project_id: re_encryptions.project_id, organization: { id: organizations.id, storage_key: organizations.storage_key } }).from(re_encryptions)
    .innerJoin(projects, eq(projects.id, re_encryptions.project_id)).innerJoin(organizations, eq(organizations.id, projects.organization_id))
    .where(and(isNull(re_encryptions.finished_at), eq(projects.encryption_type, 'server'))).orderBy(sql`random()`).limit(100)
}
