import { and, asc, eq, isNotNull, sql } from 'drizzle-orm'
import { authenticatedColumns } from '../db/authenticated.ts'
import {
  isOneOfOrganization, macOf, rowsOf, verifies, tampered, type Authenticated, type Db
} from '../db/database.ts'
import { organization_counters, secrets } from '../db/tables.ts'
import type { Actor } from './audit.ts'
import type { KeyState } from './encryption-keys.ts'

// What a rotation does to the documents of a project. The caller holds the project's row for itself, so nothing else
// writes below it; documents come and go in pieces, so that a large project does not have to fit into memory.

/** A current document of a project. */
export interface Document extends Authenticated<'secrets'> {
  sealed: Buffer
  recorded_revision: number | null
}

/** The ids and sizes of all current documents, locked, in one order for everybody. */
export async function lockDocuments (db: Db, project: KeyState): Promise<{ id: string, size_bytes: number }[]> {
  return db.select({ id: secrets.id, size_bytes: secrets.size_bytes }).from(secrets)
    .where(and(
      eq(secrets.organization_id, project.organization_id), eq(secrets.project_id, project.id),
      isNotNull(secrets.sealed)
    )).orderBy(asc(secrets.id)).for('update')
}

export async function findDocuments (db: Db, organizationId: string, ids: readonly string[]): Promise<Document[]> {
  // Spelt out: of a single table, Drizzle names a column without its table, which in here would be that of the version.
  const recorded_revision =
    sql<
      number | null>`(SELECT v.revision FROM secret_versions v WHERE v.organization_id = secrets.organization_id AND v.history_id = secrets.history_id ORDER BY v.id DESC LIMIT 1)`.mapWith(
        secrets.revision
      )
  const rows = await db.select({ ...authenticatedColumns('secrets'), recorded_revision }).from(secrets)
    .where(isOneOfOrganization(secrets, organizationId, ids)).orderBy(asc(secrets.id))
  if (!rows.every((row) => verifies(db, 'secrets', row))) tampered()
  return rows.flatMap((row) => row.sealed === null ? [] : { ...row, sealed: row.sealed })
}

/** Replaces documents by their re-encrypted form: the next revision of each, under the new key. */
export async function replaceDocuments (
  db: Db, project: KeyState, documents: readonly { document: Document, sealed: Buffer, size_bytes: number }[]
): Promise<void> {
  const rows = documents.map(({ document, sealed, size_bytes }) => {
    const next = { ...document, revision: document.revision + 1, key_version: project.key_version, sealed, size_bytes }
    return { id: document.id, sealed, size_bytes, mac: macOf(db, 'secrets', next) }
  })
  await db.execute(sql`
    UPDATE secrets s
    SET revision = s.revision + 1, key_version = ${project.key_version}, sealed = decode(r.sealed, 'base64'),
      size_bytes = r.size_bytes,
      mac = decode(r.mac, 'base64'), updated_at = now()
    FROM ${rowsOf(project.organization_id, rows, sql`id char(26), sealed text, size_bytes int, mac text`)} r
    WHERE s.organization_id = r.organization_id AND s.id = r.id`)
}

/**
 * Takes the counter of the organization, and so many version ids: the first of them, and how many bytes it stores. From
 * here to the commit, no other write of it comes between.
 */
export async function takeCounter (
  db: Db, organizationId: string, versions: number
): Promise<{ first_version: number, stored_bytes: number }> {
  const { next_version, stored_bytes } = organization_counters
  const [row] = await db.update(organization_counters).set({ next_version: sql`${next_version} + ${versions}` })
    .where(eq(organization_counters.organization_id, organizationId)).returning({ next_version, stored_bytes })
  return { first_version: row!.next_version - versions, stored_bytes: row!.stored_bytes }
}

/** A `rotate` version of each document, which is the document's newest. */
export async function recordRotations (
  db: Db, actor: Actor, versions: readonly { id: number, document: Document, sealed: Buffer, size_bytes: number }[]
): Promise<void> {
  const rows = versions.map(({ id, document, sealed, size_bytes }) => {
    const { id: secret_id, revision, key_version } = document
    return { id, secret_id, revision, key_version, sealed, size_bytes }
  })
  await db.execute(sql`
    WITH r AS (
      SELECT * FROM ${rowsOf(actor.organization_id, rows,
        sql`id bigint, secret_id char(26), revision bigint, key_version int, sealed text, size_bytes int`)} r
    ), recorded AS (
      INSERT INTO secret_versions (organization_id, id, history_id, action, revision, key_version, sealed, size_bytes,
        created_by_id, created_by_name)
      SELECT s.organization_id, r.id, s.history_id, 'rotate', r.revision, r.key_version, decode(r.sealed, 'base64'),
        r.size_bytes, ${actor.id}::bigint, ${actor.name}
      FROM r JOIN secrets s ON s.organization_id = r.organization_id AND s.id = r.secret_id
    )
    UPDATE secrets s SET version = r.id, version_count = s.version_count + 1,
      version_bytes = s.version_bytes + r.size_bytes
    FROM r WHERE s.organization_id = r.organization_id AND s.id = r.secret_id`)
}
