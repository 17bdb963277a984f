import { and, eq, sql } from 'drizzle-orm'
import type { VersionAction } from '../../schemas/versions.ts'
import { macOf, preparedSql, type Db } from '../db/database.ts'
import { project_counts, secrets, targets } from '../db/tables.ts'
import type { LevelState, SecretRow } from './levels.ts'

/** A write of a document, as it was decided under the organization's counter. */
export interface SecretWrite {
  /** Whether the level had a document before. */
  wasStored: boolean
  /**
   * The row that the write makes, but for its MAC. The revision is one more than the one before, 1 for a level that
   * never had a document; `sealed` is null where the write deletes the document.
   */
  secret: SecretRow
  /** The snapshot to record; null with `no_backup`. */
  version: {
    id: number
    action: VersionAction
    sealed: Buffer
    size_bytes: number
    restored_from: number | null
  } | null
  actor: { id: number | null, name: string }
}

const write = preparedSql<object, ReturnType<typeof valuesOf>>('write_secrets', ($) => sql`
  WITH bytes AS MATERIALIZED (
    SELECT decode(${$('documents')}::text, 'base64') AS documents, decode(${$('snapshots')}::text, 'base64') AS snapshots
  ), level AS (
    SELECT * FROM jsonb_to_recordset(${$('levels')}::jsonb) AS made (
      organization_id char(26), id char(26), project_id char(26), target_id char(26), environment_id char(26),
      level varchar, level_id char(26), revision bigint, key_version int, start int, bytes int, size_bytes int, version bigint, history_id char(26),
      is_first boolean, versions int, version_bytes bigint, gained int, mac text
    )
  ), counted AS (
    UPDATE project_counts SET secret_count = secret_count + its.gained
    FROM (SELECT organization_id, project_id, sum(gained) AS gained FROM level WHERE gained <> 0 GROUP BY 1, 2) AS its
    WHERE project_counts.organization_id = its.organization_id
      AND project_counts.project_id = its.project_id
  ), target_counted AS (
    UPDATE targets SET secret_count = secret_count + its.gained
    FROM (SELECT organization_id, target_id, sum(gained) AS gained FROM level WHERE gained <> 0 GROUP BY 1, 2) AS its
    WHERE targets.organization_id = its.organization_id AND targets.id = its.target_id
  ), history AS (
    INSERT INTO histories (organization_id, id)
    SELECT organization_id, history_id FROM level WHERE is_first
  ), written AS (
    INSERT INTO secrets (
      organization_id, id, project_id, target_id, environment_id, level, level_id, revision, key_version, sealed,
      size_bytes, version, history_id, version_count, version_bytes, mac, created_at, updated_at
    )
    SELECT organization_id, id, project_id, target_id, environment_id, level, level_id, revision,
      key_version, substring((SELECT documents FROM bytes) FROM start FOR bytes), size_bytes, version, history_id, versions,
      version_bytes, decode(mac, 'hex'), statement_timestamp(), statement_timestamp()
    FROM level
    ON CONFLICT (organization_id, id) DO UPDATE SET revision = excluded.revision, key_version = excluded.key_version,
      sealed = excluded.sealed, size_bytes = excluded.size_bytes, version = excluded.version, mac = excluded.mac,
      version_count = secrets.version_count + excluded.version_count,
      version_bytes = secrets.version_bytes + excluded.version_bytes, updated_at = excluded.updated_at
  )
  INSERT INTO secret_versions (
    organization_id, id, history_id, action, revision, key_version, sealed, size_bytes, restored_from,
    created_by_id, created_by_name, created_at
  )
  SELECT organization_id, id, history_id, action, revision, key_version,
    substring((SELECT snapshots FROM bytes) FROM start FOR bytes), size_bytes, restored_from, actor_id, actor_name,
    statement_timestamp()
  FROM jsonb_to_recordset(${$('versions')}::jsonb) AS version (
    organization_id char(26), id bigint, history_id char(26), action varchar, revision bigint, key_version int,
    start int, bytes int, size_bytes int, restored_from bigint, actor_id bigint, actor_name varchar
  )`)

/**
 * Writes documents with their versions, and counts them, in one statement. The transaction has locked the counters of
 * the organizations, and the projects. Of several writes to one level, in their order, the last one
 * makes the document.
 */
export async function writeSecrets (db: Db, writes: readonly SecretWrite[]): Promise<void> {
  await write(db, valuesOf(db, writes))
}

function valuesOf (db: Db, writes: readonly SecretWrite[]) {
  const levels = new Map<string, SecretWrite[]>()
  for (const write of writes) levels.set(write.secret.id, [...levels.get(write.secret.id) ?? [], write])
  const documents = joinBytes()
  const snapshots = joinBytes()
  return {
    levels: JSON.stringify([...levels.values()].map((own) => {
      const [first, last] = [own[0]!, own.at(-1)!]
      const { sealed, version_count: _, recorded_revision: __, is_stored, ...row } = last.secret
      const versions = own.flatMap(({ version }) => version ?? [])
      return {
        ...row,
        ...documents.add(sealed),
        mac: macOf(db, 'secrets', last.secret).toString('hex'),
        is_first: first.secret.revision === 1,
        versions: versions.length,
        version_bytes: versions.reduce((sum, { size_bytes }) => sum + size_bytes, 0),
        gained: Number(is_stored) - Number(first.wasStored)
      }
    })),
    versions: JSON.stringify(writes.flatMap(({ secret, version, actor }) => {
      if (version === null) return []
      const { organization_id, history_id, revision, key_version } = secret
      const { sealed, ...row } = version
      return {
        ...row,
        ...snapshots.add(sealed),
        organization_id,
        history_id,
        revision,
        key_version,
        actor_id: actor.id,
        actor_name: actor.name
      }
    })),
    documents: documents.all(),
    snapshots: snapshots.all()
  }
}

// Bytes of several rows as one parameter, in base64: the driver would send bytes in hexadecimal. Each row names its
// part, as `substring` counts.
function joinBytes () {
  const parts: Buffer[] = []
  let end = 0
  return {
    add (bytes: Buffer | null) {
      if (bytes === null) return null
      parts.push(bytes)
      const start = end + 1
      end += bytes.length
      return { start, bytes: bytes.length }
    },
    all: () => Buffer.concat(parts).toString('base64')
  }
}

/**
 * Takes the document of a level away for good; its history was purged before. The row stays, a revision further: it
 * tells that there was something which nobody knows any more. The caller holds the project's row.
 */
export async function emptySecret (db: Db, { project, target }: LevelState, secret: SecretRow): Promise<void> {
  const { organization_id, id } = secret
  const emptied = { revision: secret.revision + 1, key_version: project.key_version, sealed: null, size_bytes: 0 }
  await db.update(secrets).set({
    ...emptied,
    version: null,
    mac: macOf(db, 'secrets', { ...secret, ...emptied }),
    // Not of when the transaction began: it has waited for writes that are later than that.
    updated_at: sql`clock_timestamp()`
  }).where(and(eq(secrets.organization_id, organization_id), eq(secrets.id, id)))
  await db.update(project_counts).set({ secret_count: sql`${project_counts.secret_count} - 1` })
    .where(and(eq(project_counts.organization_id, organization_id), eq(project_counts.project_id, project.id)))
  if (target === null) return
  await db.update(targets).set({ secret_count: sql`${targets.secret_count} - 1` })
    .where(and(eq(targets.organization_id, organization_id), eq(targets.id, target.id)))
}
