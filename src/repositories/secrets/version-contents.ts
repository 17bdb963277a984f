import { sql } from 'drizzle-orm'
import { lookUp, preparedSql, tampered, type Db } from '../../db/database.ts'
import type { Author } from '../../db/rows/author.ts'
import { joined } from '../../db/rows/joined.ts'
import { numberOf } from '../../db/rows/query.ts'
import { columnsOf, encryption_keys, secret_versions } from '../../db/tables.ts'
import type { KeyRow } from '../keys/encryption-keys.ts'
import type { LevelState, SecretRow } from '../levels/levels.ts'
import type { VersionRow } from './versions.ts'

/** A version with its content and its key. */
export interface VersionContent extends Pick<VersionRow,
  'id' | 'action' | 'revision' | 'key_version' | 'size_bytes' | 'created_at' | keyof Author> {
  /** Null if the key is client-managed. */
  sealed: Buffer | null
  key: Pick<KeyRow, 'organization_id' | 'project_id' | 'version' | 'data_key' | 'managed'>
  /** The revision of the next older version; null for the oldest version. */
  older_revision: number | null
}

/** The value of `before` for the first page, which starts with the newest version. */
export const NEWEST = Number.MAX_SAFE_INTEGER

/** The maximum versions and bytes of a page. The last version may exceed the bytes, so no page is empty. */
export interface PageLimit { versions: number, bytes: number }

/**
 * A page of versions, newest first. `isEnd`: the caller can read no older version. `lostAfter`, `lostBefore`: the
 * number of writes without a version: of the first page, after the newest version; of the last page, before the oldest
 * version.
 */
export interface VersionContents { rows: VersionContent[], isEnd: boolean, lostAfter: number, lostBefore: number }

type Row = Readonly<Record<string, unknown>> & Pick<KeyRow, 'data_key'> &
  { older_revision: string | null, managed: KeyRow['managed'] | null, locked: boolean }

const VERSION = joined('v', columnsOf(
  secret_versions, 'id', 'action', 'revision', 'key_version', 'size_bytes', 'created_by_id', 'created_by_name',
  'created_at', 'created_through', 'application_name', 'sealed'
), { instead: { sealed: sql`CASE WHEN k.managed = 'server' AND NOT retention.locked THEN v.sealed END` } })

// The inner queries select the versions by their sizes, so that the outer query reads only the contents of the page.
// The innermost query reads one version more than the page, for `older_revision`.
const newest = preparedSql<Row, Record<string, unknown>>('version_contents', ($) => sql`
  SELECT ${VERSION.selected}, page.older_revision, k.managed, k.data_key, retention.locked
  FROM (
    SELECT organization_id, id, lead(revision) OVER older AS older_revision, row_number() OVER older AS place,
      sum(size_bytes) OVER older - size_bytes AS bytes_before
    FROM (
      SELECT organization_id, id, revision, size_bytes FROM secret_versions
      WHERE organization_id = ${$('organization_id')}::char(26) AND history_id = ${$('history_id')}::char(26)
        AND id < ${$('before')}::bigint
      ORDER BY id DESC LIMIT ${$('versions')}::int + 1
    ) AS part WINDOW older AS (ORDER BY id DESC)
  ) AS page
  CROSS JOIN ${lookUp('v', secret_versions, sql`organization_id = page.organization_id AND id = page.id`)}
  LEFT JOIN ${lookUp('k', encryption_keys, sql`organization_id = v.organization_id
    AND project_id = ${$('project_id')}::char(26) AND version = v.key_version`)} ON true
  CROSS JOIN LATERAL (
    SELECT coalesce(v.created_at < now() - make_interval(days => ${$('retention_days')}::int), false) AS locked
  ) AS retention
  WHERE page.place <= ${$('versions')}::int AND page.bytes_before < ${$('bytes')}::bigint
  ORDER BY v.id DESC`)

/**
 * A page of the versions of a secret that are older than `before`, with their contents. The page ends before the first
 * version that is outside the plan's retention.
 */
export async function listVersionContents (
  db: Db, { organization_id, project }: LevelState, { history_id, revision }: SecretRow, retentionDays: number | null,
  before: number, { versions, bytes }: PageLimit
): Promise<VersionContents> {
  const found = await newest(db, {
    organization_id, history_id, project_id: project.id, before, versions, bytes, retention_days: retentionDays
  })
  const locked = found.findIndex((row) => row.locked)
  const kept = locked === -1 ? found : found.slice(0, locked)
  const rows = kept.map((row): VersionContent => {
    const version = VERSION.read(row)!
    const { data_key } = row
    // The row is manipulated, because the project has no key with the version that the row names.
    const managed = row.managed ?? tampered()
    const key = { organization_id, project_id: project.id, version: version.key_version, data_key, managed }
    return Object.assign(version, { older_revision: numberOf(row.older_revision), key })
  })
  const isEnd = locked !== -1 || (found.at(-1)?.older_revision ?? null) === null
  // Each write of a document increments its revision, so the writes after the newest version are those with
  // `no_backup`. A concurrent write can have created a version with a higher revision than the loaded document; `max`
  // then gives 0.
  const lostAfter = before === NEWEST ? Math.max(0, revision - Number(found[0]?.v_revision ?? 0)) : 0
  const oldest = rows.at(-1)
  const lostBefore = isEnd && locked === -1 && oldest !== undefined ? oldest.revision - 1 : 0
  return { rows, isEnd, lostAfter, lostBefore }
}
