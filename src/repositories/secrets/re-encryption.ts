import { and, asc, eq, isNull, lt, sql, type SQL } from 'drizzle-orm'
import type { Counter } from '../../db/rows/counter.ts'
import { isOneOfOrganization, macOf, rowsOf, type Db } from '../../db/database.ts'
import { andOwn } from '../../db/postgres/engine.ts'
import { matching, queryRow, queryRows } from '../../db/rows/query.ts'
import {
  columnsOf, encryption_keys, keyColumns, organizations, project_counts, projects, re_encryptions, secret_versions,
  secrets, targets
} from '../../db/tables.ts'
import { type KeyRow, type KeyState } from '../keys/encryption-keys.ts'
import type { LevelState, SecretRow } from '../levels/levels.ts'

// Finds versions that a former key encrypts, and stores them encrypted under the active key.

type Version = typeof secret_versions.$inferSelect

export type OldVersion = Pick<Version, 'id' | 'revision' | 'key_version' | 'size_bytes' | 'sealed'> &
  { secret_id: string, level_id: string, key: KeyRow }

const progress = columnsOf(re_encryptions, 'total', 'moved', 'started_at', 'finished_at', 'unreadable')

/** The progress of a re-encryption. `unreadable`: the number of versions that could not be decrypted. */
export type Progress = Pick<typeof re_encryptions.$inferSelect, keyof typeof progress>

/**
 * A condition for versions to re-encrypt: versions under a former key, if the same side (server or client) manages the
 * former key and the active key. Clients cannot read versions outside the plan's retention, so `retentionDays` excludes
 * such versions for clients. The server re-encrypts them, too.
 */
const waiting = (project: KeyState, retentionDays: number | null) => and(
  eq(secrets.project_id, project.id),
  lt(secret_versions.key_version, project.key_version),
  eq(encryption_keys.managed, project.encryption_type),
  retentionDays === null
    ? undefined
    : sql`${secret_versions.created_at} >= now() - make_interval(days => ${retentionDays}::int)`
)
const { organization_id, history_id, key_version } = secret_versions
const itsSecret = matching(secrets, { organization_id, history_id })
const itsKey = matching(encryption_keys, { organization_id, project_id: secrets.project_id, version: key_version })

// A condition for the key version as a range, so that the query reads one index range for each secret. The project can
// be handed over to its client only if no version is under a former key (`history_under_old_keys`). So in a
// client-managed project, every former key that still has versions is a key of the client. In a server-managed project,
// the keys after the last client-managed key belong to the server.
const underOldKeys = ({ organization_id, id, key_version, encryption_type }: KeyState) => {
  const lastOfClient = sql`(SELECT coalesce(max(k.version), 0) FROM encryption_keys k
    WHERE k.organization_id = ${organization_id} AND k.project_id = ${id} AND k.managed = 'client'
      AND k.version < ${key_version}${andOwn(sql`k.organization_id`, organization_id)})`
  return sql`v.key_version < ${key_version} AND v.key_version > ${encryption_type === 'client' ? sql`0` : lastOfClient}`
}
const isOpen = (retentionDays: number | null) =>
  sql`(${retentionDays}::int IS NULL OR v.created_at >= now() - make_interval(days => ${retentionDays}::int))`
const isOfProject = ({ organization_id, id }: KeyState) =>
  sql`s.organization_id = ${organization_id} AND s.project_id = ${id}`
const ofSecret = ({ organization_id }: KeyState) => sql`v.organization_id = s.organization_id
  AND v.history_id = s.history_id${andOwn(sql`v.organization_id`, organization_id)}`

/** Counts the versions to re-encrypt, with an index-only scan for each secret. */
export async function countWaiting (db: Db, project: KeyState, retentionDays: number | null): Promise<number> {
  const { count } = await queryRow<{ count: number }>(db, sql`
    SELECT coalesce(sum(v.count), 0)::int AS count
    FROM secrets s CROSS JOIN LATERAL (
      SELECT count(*) AS count FROM secret_versions v WHERE ${ofSecret(project)} AND ${underOldKeys(project)}
        AND ${isOpen(retentionDays)}
    ) v
    WHERE ${isOfProject(project)}`)
  return count
}

/** Whether there are versions to re-encrypt. Makes one index look-up for each secret until a version is found. */
export async function isAnyWaiting (db: Db, project: KeyState, retentionDays: number | null): Promise<boolean> {
  const { found } = await queryRow<{ found: boolean }>(db, sql`
    SELECT EXISTS (
      SELECT FROM secrets s WHERE ${isOfProject(project)}
        AND EXISTS (SELECT FROM secret_versions v WHERE ${ofSecret(project)} AND ${underOldKeys(project)}
          AND ${isOpen(retentionDays)})
    ) AS found`)
  return found
}

/** The number of versions left to re-encrypt; `more` for more than `most`. Reads at most `most` + 1 versions. */
export async function findLeft (db: Db, project: KeyState, most: number): Promise<{ left: number } | 'more'> {
  const found = await listWaiting(db, project, START, most + 1)
  return found.length > most ? 'more' : { left: found.length }
}

export interface Cursor { secret_id: string, key_version: number, id: number }

export const START: Cursor = { secret_id: '', key_version: 0, id: 0 }

type Listed = Cursor & { size_bytes: number }

/**
 * The ids and sizes of versions to re-encrypt in a server-managed project. The list is in index order and starts after
 * a cursor, so that no page reads re-encrypted versions again. Reads one index range for each secret, because one range
 * for the organization would read the versions of its other projects for each page.
 */
export async function listWaiting (db: Db, project: KeyState, after: Cursor, limit: number): Promise<Listed[]> {
  const isAfters = sql`s.id = ${after.secret_id}`
  return queryNumbered(db, sql`
    SELECT s.id AS secret_id, v.key_version, v.id, v.size_bytes
    FROM secrets s CROSS JOIN LATERAL (
      SELECT v.key_version, v.id, v.size_bytes FROM secret_versions v WHERE ${ofSecret(project)} AND ${underOldKeys(project)}
        AND (v.key_version, v.id) > (CASE WHEN ${isAfters} THEN ${after.key_version}::int ELSE 0 END,
          CASE WHEN ${isAfters} THEN ${after.id}::bigint ELSE 0 END)
      ORDER BY v.key_version, v.id LIMIT ${limit}
    ) v
    WHERE ${isOfProject(project)} AND s.id >= ${after.secret_id}
    ORDER BY s.id, v.key_version, v.id LIMIT ${limit}`)
}

/**
 * The ids and sizes of versions to re-encrypt in a client-managed project, oldest first. Omits versions outside the
 * plan's retention. Reads as many index entries as `countWaiting`.
 */
export async function listOldestWaiting (
  db: Db, project: KeyState,
  { limit, after, retentionDays }: { limit: number, after: number, retentionDays: number | null }
): Promise<Listed[]> {
  return queryNumbered(db, sql`
    SELECT o.secret_id, v.key_version, v.id, v.size_bytes FROM (
      SELECT s.organization_id, s.id AS secret_id, v.id
      FROM secrets s CROSS JOIN LATERAL (
        SELECT v.id FROM secret_versions v WHERE ${ofSecret(project)} AND ${underOldKeys(project)} AND v.id > ${after}::bigint
          AND ${isOpen(retentionDays)} OFFSET 0
      ) v
      WHERE ${isOfProject(project)} ORDER BY v.id LIMIT ${limit}
    ) o JOIN secret_versions v ON v.organization_id = o.organization_id AND v.id = o.id${
      andOwn(sql`v.organization_id`, project.organization_id)} ORDER BY v.id`)
}

// The driver returns bigint as text.
const queryNumbered = async (db: Db, statement: SQL): Promise<Listed[]> =>
  (await queryRows<Listed>(db, statement)).map((row) => ({ ...row, id: Number(row.id) }))

/**
 * Of the given versions, returns those that still need re-encryption, with their content. `lock` locks the rows of the
 * versions until the end of the transaction. `wait` also locks the rows of their secrets, in the same order as a
 * restore. `skip` omits versions that another transaction has locked.
 */
export async function findWaiting (
  db: Db, project: KeyState, ids: readonly number[], retentionDays: number | null, lock?: 'wait' | 'skip'
): Promise<OldVersion[]> {
  if (ids.length === 0) return []
  const { id, revision, key_version, size_bytes, sealed } = secret_versions
  const query = db.select({
    id, secret_id: secrets.id, revision, key_version, size_bytes, sealed, level_id: secrets.level_id, key: keyColumns
  }).from(secret_versions)
    .innerJoin(secrets, itsSecret).innerJoin(encryption_keys, itsKey)
    .where(and(
      isOneOfOrganization(secret_versions, project.organization_id, ids), waiting(project, retentionDays)
    ))
  switch (lock) {
    case 'skip': return query.orderBy(asc(secret_versions.id)).for('update', { of: secret_versions, skipLocked: true })
    case 'wait':
      return query.orderBy(asc(secrets.id), asc(secret_versions.id)).for('update', { of: [secrets, secret_versions] })
    default: return query.orderBy(asc(secret_versions.id))
  }
}

export type MovedVersion = Pick<Version, 'id' | 'sealed' | 'size_bytes'>

/** Stores versions that were re-encrypted under the active key. Ids, revisions and times stay the same. */
export async function moveVersions (db: Db, project: KeyState, versions: readonly MovedVersion[]): Promise<void> {
  await db.execute(sql`
    UPDATE secret_versions v SET key_version = ${project.key_version}, sealed = decode(r.sealed, 'base64'),
      size_bytes = r.size_bytes
    FROM ${rowsOf(project.organization_id, versions, sql`id bigint, sealed text, size_bytes int`)} r
    WHERE v.organization_id = r.organization_id AND v.id = r.id${
      andOwn(sql`v.organization_id`, project.organization_id)}`)
  await db.update(re_encryptions).set({ moved: sql`${re_encryptions.moved} + ${versions.length}` })
    .where(and(ofProject(project), isNull(re_encryptions.finished_at)))
}

/** Adds the growth of re-encrypted versions to `version_bytes` of their secrets. The caller has locked the secrets. */
export async function growHistories (
  db: Db, project: KeyState, grown: readonly { secret_id: string, growth: number }[]
): Promise<void> {
  await db.execute(sql`
    UPDATE secrets s SET version_bytes = s.version_bytes + r.growth
    FROM (SELECT organization_id, secret_id, sum(growth) AS growth
      FROM ${rowsOf(project.organization_id, grown, sql`secret_id char(26), growth bigint`)} r GROUP BY 1, 2) r
    WHERE s.organization_id = r.organization_id AND s.id = r.secret_id${
      andOwn(sql`s.organization_id`, project.organization_id)}`)
}

const ofProject = ({ organization_id, id }: KeyState) => matching(re_encryptions, { organization_id, project_id: id })

/** Starts a re-encryption for a locked project. A running re-encryption continues with the newest key. */
export async function startReEncryption (db: Db, project: KeyState, total: number): Promise<void> {
  const { organization_id, project_id, finished_at, started_at } = re_encryptions
  const moved = sql`CASE WHEN ${finished_at} IS NULL THEN ${re_encryptions.moved} ELSE 0 END`
  const row = { organization_id: project.organization_id, project_id: project.id, total }
  await db.insert(re_encryptions).values(row).onConflictDoUpdate({
    target: [organization_id, project_id],
    set: {
      total: sql`${moved} + ${total}`,
      moved,
      started_at: sql`CASE WHEN ${finished_at} IS NULL THEN ${started_at} ELSE excluded.started_at END`,
      finished_at: null,
      unreadable: 0
    }
  })
}

/** The progress of the project's last re-encryption. */
export async function findReEncryption (db: Db, project: KeyState): Promise<Progress | undefined> {
  const [row] = await db.select(progress).from(re_encryptions).where(ofProject(project))
  return row
}

/**
 * Marks a re-encryption as finished and stores the number of unreadable versions; undefined if it is already finished.
 */
export async function finishReEncryption (
  db: Db, project: KeyState, unreadable: number
): Promise<Progress | undefined> {
  const [row] = await db.update(re_encryptions).set({ finished_at: sql`now()`, unreadable })
    .where(and(ofProject(project), isNull(re_encryptions.finished_at))).returning(progress)
  return row
}

/** A project with a running re-encryption. */
export interface Waiting { project_id: string, organization: { id: string, storage_key: Buffer } }

/** A page of the server-managed projects of all organizations that have a running re-encryption. */
export async function listReEncryptions (db: Db, after?: Waiting, limit = 100): Promise<Waiting[]> {
  const { organization_id, project_id } = re_encryptions
  return db.select({
    project_id, organization: { id: organizations.id, storage_key: organizations.storage_key }
  }).from(re_encryptions)
    .innerJoin(projects, matching(projects, { organization_id, id: project_id }))
    .innerJoin(organizations, eq(organizations.id, projects.organization_id))
    .where(and(
      sql`(${organization_id}, ${project_id}) > (${after?.organization.id ?? ''}, ${after?.project_id ?? ''})`,
      isNull(re_encryptions.finished_at), eq(projects.encryption_type, 'server')
    )).orderBy(asc(organization_id), asc(project_id)).limit(limit)
}

/**
 * Removes the document of a secret whose history was purged. The row stays and gets the next revision, so that a read
 * `at` an earlier moment gives the error `version_gone`. The caller has locked the project's row.
 */
export async function emptySecret (
  db: Db, { project, target }: LevelState, secret: SecretRow, { at }: Pick<Counter, 'at'>
): Promise<void> {
  const { organization_id, id } = secret
  const emptied = { revision: secret.revision + 1, key_version: project.key_version, sealed: null, size_bytes: 0 }
  await db.update(secrets).set({
    ...emptied,
    version: null,
    mac: macOf(db, 'secrets', { ...secret, ...emptied }),
    // Not now(), the start of the transaction: the transaction may have waited for writes with a later time.
    updated_at: at
  }).where(matching(secrets, { organization_id, id }))
  await db.update(project_counts).set({ secret_count: sql`${project_counts.secret_count} - 1` })
    .where(matching(project_counts, { organization_id, project_id: project.id }))
  if (target === null) return
  await db.update(targets).set({ secret_count: sql`${targets.secret_count} - 1` })
    .where(matching(targets, { organization_id, id: target.id }))
}
