import { and, asc, isNotNull, sql } from 'drizzle-orm'
import { authenticatedColumns } from '../../db/rows/authenticated.ts'
import type { Counter } from '../../db/rows/counter.ts'
import {
  isOneOfOrganization, macOf, requireAuthentic, rowsOf, type Authenticated, type Db
} from '../../db/database.ts'
import { andOwn } from '../../db/postgres/engine.ts'
import { credentialOf } from '../../db/rows/author.ts'
import { matching } from '../../db/rows/query.ts'
import { secrets, type secret_versions } from '../../db/tables.ts'
import type { Actor } from '../audit/audit.ts'
import type { KeyState } from '../keys/encryption-keys.ts'

// Changes all documents of a project, for key rotations and for restores of a project to a moment. The caller has
// locked the project's row, so no other transaction writes below the project. Documents are processed in batches,
// because the documents of a large project may not fit into memory.

/** A secret of a project; `sealed` is null if the secret has no document. */
export interface Secret extends Authenticated<'secrets'> {
  sealed: Buffer | null
  recorded_revision: number | null
}

export type Document = Secret & { sealed: Buffer }

/** Locks all current documents of a project, in the order of their ids. Returns their ids and sizes. */
export async function lockDocuments (db: Db, project: KeyState): Promise<{ id: string, size_bytes: number }[]> {
  return db.select({ id: secrets.id, size_bytes: secrets.size_bytes }).from(secrets)
    .where(and(
      matching(secrets, { organization_id: project.organization_id, project_id: project.id }), isNotNull(secrets.sealed)
    )).orderBy(asc(secrets.id)).for('update')
}

/** Of the given secrets, returns those that have a document. */
export async function findDocuments (db: Db, organizationId: string, ids: readonly string[]): Promise<Document[]> {
  return (await findSecrets(db, organizationId, ids)).filter(isDocument)
}

export const isDocument = (secret: Secret): secret is Document => secret.sealed !== null

export async function findSecrets (db: Db, organizationId: string, ids: readonly string[]): Promise<Secret[]> {
  // Writes `secrets.` in plain SQL: Drizzle omits the table name in a SELECT from one table, but the subquery reads
  // `secret_versions`, which has columns of the same names.
  const recorded_revision =
    sql<number | null>`(SELECT v.revision FROM secret_versions v WHERE v.organization_id = secrets.organization_id
      AND v.history_id = secrets.history_id${andOwn(sql`v.organization_id`, organizationId)} ORDER BY v.id DESC LIMIT 1)`.mapWith(secrets.revision)
  const rows = await db.select({ ...authenticatedColumns('secrets'), recorded_revision }).from(secrets)
    .where(isOneOfOrganization(secrets, organizationId, ids)).orderBy(asc(secrets.id))
  for (const row of rows) requireAuthentic(db, 'secrets', row)
  return rows
}

/** Replaces or deletes (`sealed` null) documents. Each gets the next revision and the project's key version. */
export async function replaceDocuments (
  db: Db, project: KeyState, documents: readonly { document: Secret, sealed: Buffer | null, size_bytes: number }[]
): Promise<void> {
  const rows = documents.map(({ document, sealed, size_bytes }) => {
    const next = { ...document, revision: document.revision + 1, key_version: project.key_version, sealed, size_bytes }
    return { id: document.id, sealed, size_bytes, mac: macOf(db, 'secrets', next) }
  })
  await db.execute(sql`
    UPDATE secrets s
    SET revision = s.revision + 1, key_version = ${project.key_version}, sealed = decode(r.sealed, 'base64'),
      size_bytes = r.size_bytes, mac = decode(r.mac, 'base64')
    FROM ${rowsOf(project.organization_id, rows, sql`id char(26), sealed text, size_bytes int, mac text`)} r
    WHERE s.organization_id = r.organization_id AND s.id = r.id${
      andOwn(sql`s.organization_id`, project.organization_id)}`)
}

/** The first version id that an operation has reserved, and the time of its versions (`Counter.at`). */
export interface VersionIds { first_version: number, taken_at: Date }

/** Reserves version ids in the locked counter row. The road of changes stores the changed row. */
export function takeVersionIds (counter: Counter, versions: number): VersionIds {
  const first_version = counter.next_version
  counter.next_version += versions
  return { first_version, taken_at: counter.at }
}

export type NewVersion = { document: Secret } &
  Pick<typeof secret_versions.$inferInsert, 'id' | 'revision' | 'sealed' | 'size_bytes' | 'action' | 'restored_from'>

/**
 * Records versions. Each version becomes the newest of its document, and the last version becomes the newest of the
 * project. `at` is the time of the lock of the counter row, not the start of the transaction. So times grow with ids,
 * and no version has an earlier time than a write for which the transaction waited.
 */
export async function recordVersions (
  db: Db, actor: Actor, project: KeyState, at: Date, versions: readonly NewVersion[]
): Promise<void> {
  const rows = versions.map(({ document, ...version }) =>
    ({ ...version, secret_id: document.id, key_version: project.key_version }))
  const own = sql`s.organization_id = r.organization_id AND s.id = r.secret_id${
    andOwn(sql`s.organization_id`, actor.organization_id)}`
  const r = sql`(SELECT * FROM ${rowsOf(actor.organization_id, rows,
    sql`id bigint, secret_id char(26), action varchar, revision bigint, key_version int, sealed text, size_bytes int,
      restored_from bigint`)} r) AS r`
  const taken_at = sql`${at.toISOString()}::timestamptz`
  const { created_through, application_name } = credentialOf(actor)
  await db.execute(sql`
    INSERT INTO secret_versions (organization_id, id, history_id, action, revision, key_version, sealed, size_bytes,
      restored_from, created_by_id, created_by_name, created_at, created_through, application_name)
    SELECT s.organization_id, r.id, s.history_id, r.action, r.revision, r.key_version, decode(r.sealed, 'base64'),
      r.size_bytes, r.restored_from, ${actor.id}::bigint, ${actor.name}, ${taken_at},
      ${created_through}, ${application_name}
    FROM ${r} JOIN secrets s ON ${own}`)
  await db.execute(sql`
    UPDATE secrets s SET version = r.id, version_count = s.version_count + 1,
      version_bytes = s.version_bytes + r.size_bytes, updated_at = ${taken_at}
    FROM ${r} WHERE ${own}`)
  await db.execute(sql`
    UPDATE project_counts c SET last_version = greatest(c.last_version, ${versions.at(-1)?.id ?? null}::bigint)
    WHERE c.organization_id = ${actor.organization_id} AND c.project_id = ${project.id}`)
}

/** Changes the document counts of a project and its targets. */
export async function countDocuments (
  db: Db, project: KeyState, gained: readonly { target_id: string | null, documents: number }[]
): Promise<void> {
  const rows = rowsOf(project.organization_id, gained, sql`target_id char(26), documents int`)
  await db.execute(sql`
    WITH r AS (SELECT * FROM ${rows} r), counted AS (
      UPDATE project_counts SET secret_count = secret_count + its.documents
      FROM (SELECT organization_id, sum(documents) AS documents FROM r GROUP BY 1) its
      WHERE project_counts.organization_id = its.organization_id AND project_counts.project_id = ${project.id}${
        andOwn(sql`project_counts.organization_id`, project.organization_id)}
    )
    UPDATE targets SET secret_count = secret_count + its.documents
    FROM (SELECT organization_id, target_id, sum(documents) AS documents FROM r GROUP BY 1, 2) its
    WHERE targets.organization_id = its.organization_id AND targets.id = its.target_id${
      andOwn(sql`targets.organization_id`, project.organization_id)}`)
}
