import { sql } from 'drizzle-orm'
import { macOf, type Db } from '../../db/database.ts'
import { preparedChanges } from '../../db/postgres/changes-together.ts'
import { andOwn, rowsIn } from '../../db/postgres/engine.ts'
import { credentialOf } from '../../db/rows/author.ts'
import type { secret_versions } from '../../db/tables.ts'
import type { Actor } from '../audit/audit.ts'
import type { SecretRow } from '../levels/levels.ts'

export interface SecretWrite {
  /** Whether the level had a document before. */
  wasStored: boolean
  /** The new row without its MAC, with the next revision. `sealed` is null for a delete. */
  secret: SecretRow
  /** The version to record; null if the request has `no_backup`. */
  version: Pick<typeof secret_versions.$inferSelect, 'id' | 'action' | 'sealed' | 'size_bytes' | 'restored_from'> | null
  actor: Pick<Actor, 'type' | 'id' | 'name' | 'application'>
  /** The time of the change (`Counter.at`). */
  at: Date
}

const write = preparedChanges<{ levels: string, versions: string }>('write_secrets', ($) => ({
  lists: {
    level: rowsIn($('levels'), sql`id char(26), project_id char(26), target_id char(26), environment_id char(26),
    level varchar, level_id char(26), revision bigint, key_version int, sealed text, size_bytes int, version bigint,
    history_id char(26), is_first boolean, versions int, version_bytes bigint, newest bigint, gained int, mac text,
    at timestamptz`)
  },
  changes: (from) => [
    ['counted', sql`
      UPDATE project_counts SET secret_count = secret_count + its.gained,
        last_version = greatest(last_version, its.newest)
      FROM (SELECT organization_id, project_id, sum(gained) AS gained, max(newest) AS newest FROM ${from.level}
        WHERE gained <> 0 OR newest IS NOT NULL GROUP BY 1, 2) AS its
      WHERE project_counts.organization_id = its.organization_id
        AND project_counts.project_id = its.project_id${andOwn(sql`project_counts.organization_id`)}`],
    ['target_counted', sql`
      UPDATE targets SET secret_count = secret_count + its.gained
      FROM (SELECT organization_id, target_id, sum(gained) AS gained FROM ${from.level} WHERE gained <> 0 GROUP BY 1, 2)
        AS its
      WHERE targets.organization_id = its.organization_id AND targets.id = its.target_id${
        andOwn(sql`targets.organization_id`)}`],
    ['history', sql`
      INSERT INTO histories (organization_id, id)
      SELECT organization_id, history_id FROM ${from.level} WHERE is_first`],
    ['written', sql`
      INSERT INTO secrets (
        organization_id, id, project_id, target_id, environment_id, level, level_id, revision, key_version, sealed,
        size_bytes, version, history_id, version_count, version_bytes, mac, created_at, updated_at
      )
      SELECT organization_id, id, project_id, target_id, environment_id, level, level_id, revision,
        key_version, decode(sealed, 'base64'), size_bytes, version, history_id, versions, version_bytes,
        decode(mac, 'hex'), at, at
      FROM ${from.level}
      ON CONFLICT (organization_id, id) DO UPDATE SET revision = excluded.revision, key_version = excluded.key_version,
        sealed = excluded.sealed, size_bytes = excluded.size_bytes, version = excluded.version, mac = excluded.mac,
        version_count = secrets.version_count + excluded.version_count,
        version_bytes = secrets.version_bytes + excluded.version_bytes, updated_at = excluded.updated_at`],
    ['versions', sql`
      INSERT INTO secret_versions (
        organization_id, id, history_id, action, revision, key_version, sealed, size_bytes, restored_from,
        created_by_id, created_by_name, created_at, created_through, application_name
      )
      SELECT organization_id, id, history_id, action, revision, key_version, decode(sealed, 'base64'), size_bytes,
        restored_from, actor_id, actor_name, at, created_through, application_name
      FROM (${rowsIn($('versions'), sql`id bigint, history_id char(26), action varchar, revision bigint,
        key_version int, sealed text, size_bytes int, restored_from bigint, actor_id bigint, actor_name varchar,
        at timestamptz, created_through varchar, application_name varchar`)})
        AS version`]
  ]
}))

/**
 * Writes documents, records their versions, and updates the document counts of projects and targets and the newest
 * version of each project. If several writes change the same level, the last write determines the document. The caller
 * has locked the counter rows of the organizations, and the projects.
 */
export async function writeSecrets (db: Db, writes: readonly SecretWrite[]): Promise<void> {
  const levels = new Map<string, SecretWrite[]>()
  for (const write of writes) levels.set(write.secret.id, [...levels.get(write.secret.id) ?? [], write])
  const rows = [...levels.values()].map((own) => {
    const [first, last] = [own[0]!, own.at(-1)!]
    const { sealed, version_count: _, recorded_revision: __, is_stored, ...row } = last.secret
    const versions = own.flatMap(({ version }) => version ?? [])
    return {
      ...row,
      sealed: sealed?.toString('base64') ?? null,
      mac: macOf(db, 'secrets', last.secret).toString('hex'),
      at: last.at,
      is_first: first.secret.revision === 1,
      versions: versions.length,
      version_bytes: versions.reduce((sum, { size_bytes }) => sum + size_bytes, 0),
      newest: versions.at(-1)?.id ?? null,
      gained: Number(is_stored) - Number(first.wasStored)
    }
  })
  const unneeded = [
    ...rows.some(({ gained, newest }) => gained !== 0 || newest !== null) ? [] : ['counted'],
    ...rows.some(({ gained }) => gained !== 0) ? [] : ['target_counted'],
    ...rows.some(({ is_first }) => is_first) ? [] : ['history']
  ]
  await write(db, {
    organization_id: writes[0]!.secret.organization_id,
    levels: JSON.stringify(rows),
    versions: JSON.stringify(writes.flatMap(({ secret, version, actor, at }) => {
      if (version === null) return []
      const { organization_id, history_id, revision, key_version } = secret
      const { sealed, ...row } = version
      return {
        ...row,
        sealed: sealed.toString('base64'),
        organization_id,
        history_id,
        revision,
        key_version,
        actor_id: actor.id,
        actor_name: actor.name,
        at,
        ...credentialOf(actor)
      }
    }))
  }, unneeded)
}
