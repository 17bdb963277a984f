import { sql, type SQL } from 'drizzle-orm'
import type { Managed } from '../../../schemas/projects.ts'
import { LEVELS } from '../../../schemas/secrets.ts'
import { preparedSql, requireAuthentic, tampered, type Authenticated, type Db } from '../../db/database.ts'
import { andOwn } from '../../db/postgres/engine.ts'
import { authenticatedColumns } from '../../db/rows/authenticated.ts'
import { joined } from '../../db/rows/joined.ts'
import { numberOf, queryRow, queryRows } from '../../db/rows/query.ts'
import { findSlugs } from '../../db/rows/slugs.ts'
import type { KeyRow, KeyState } from '../keys/encryption-keys.ts'
import type { LevelState, SecretRow } from '../levels/levels.ts'

// Reconstructs the documents that existed at a moment. Version ids and times grow in commit order. So a binary search
// over the organization's version ids finds the last version before the moment, and the index of each history finds the
// version of each level. Therefore even long histories need no index by time.

/**
 * The source of a level's document at a moment. `none`: the level had no document. `current`: the current row.
 * `version`: a recorded version. `unknown`: a write recorded no version, or the version was deleted.
 */
type PastState = 'none' | 'current' | 'version' | 'unknown'

// The moment, rounded to the precision of stored times. `at` is a number of milliseconds, because PostgreSQL cannot
// parse the text of every year.
const momentOf = (organizationId: SQL, at: SQL) => sql`moment AS (
    SELECT ${organizationId}::char(26) AS organization_id, to_timestamp(${at}::float8 / 1000)::timestamptz(3) AS at
  )`

// Returns a condition that restricts a column to the organization, as Citus requires (`andOwn`).
type Own = (column: SQL) => SQL
const OF_TABLE = sql`organization_id`

// A binary search over version ids. Version `seen` is not later than the moment, and all versions from id `behind` on
// are later. If a clock was set back, times do not always grow with ids; the search then finds one of several such
// boundaries.
const halves = (own: Own) => sql`halves AS (
    SELECT 0::bigint AS seen, c.next_version AS behind
    FROM moment JOIN organization_counters c ON c.organization_id = moment.organization_id${own(sql`c.organization_id`)}
    UNION ALL
    SELECT CASE WHEN v.created_at <= moment.at THEN v.id ELSE halves.seen END,
      CASE WHEN v.created_at <= moment.at THEN halves.behind ELSE (halves.seen + halves.behind) / 2 END
    FROM moment CROSS JOIN halves LEFT JOIN LATERAL (
      SELECT id, created_at FROM secret_versions
      WHERE organization_id = moment.organization_id AND id >= (halves.seen + halves.behind) / 2 AND id < halves.behind${
        own(OF_TABLE)}
      ORDER BY id LIMIT 1
    ) AS v ON true
    WHERE halves.behind - halves.seen > 1
  ), cut AS (SELECT behind FROM halves WHERE behind - seen <= 1)`

// Joins two versions of a secret `s`: `v` is the last version up to the moment, and `n` is the next version. Both are
// null if no write changed the secret after the moment.
const versions = (own: Own) => sql`LEFT JOIN LATERAL (
    SELECT * FROM secret_versions
    WHERE s.updated_at > moment.at AND organization_id = s.organization_id AND history_id = s.history_id
      AND id < cut.behind AND created_at <= moment.at${own(OF_TABLE)}
    ORDER BY id DESC LIMIT 1
  ) AS v ON true LEFT JOIN LATERAL (
    SELECT revision FROM secret_versions
    WHERE s.updated_at > moment.at AND organization_id = s.organization_id AND history_id = s.history_id
      AND id > coalesce(v.id, 0)${own(OF_TABLE)}
    ORDER BY id LIMIT 1
  ) AS n ON true`

// A version holds the document until the next write. If the next recorded revision is not `v.revision + 1`, a version
// is missing. The missing version may be from before the moment, so the document is unknown.
const HELD = sql`CASE
    WHEN s.created_at > moment.at THEN 'none'
    WHEN s.updated_at <= moment.at THEN CASE WHEN s.sealed IS NULL THEN 'none' ELSE 'current' END
    WHEN v.id IS NULL OR coalesce(n.revision, s.revision) <> v.revision + 1 THEN 'unknown'
    WHEN v.action = 'delete' THEN 'none'
    ELSE 'version' END`

const isLocked = (retentionDays: SQL) =>
  sql`coalesce(v.created_at < now() - make_interval(days => ${retentionDays}::int), false)`

const IS_FUTURE = sql`moment.at > clock_timestamp()`

/** A level's document at a moment, from a version or from the current row. `sealed` is null if `held` is `unknown`. */
export interface PastDocument extends Pick<SecretRow,
  'id' | 'level' | 'level_id' | 'revision' | 'key_version' | 'version' | 'sealed' | 'recorded_revision'> {
  held: Exclude<PastState, 'none'>
  /** The slugs from the project down to the level, with slashes between them. */
  path: string
  /** Whether the version is older than the plan's retention allows, by the database's clock. */
  locked: boolean
  /** Null if the content is not from a version. */
  version_created_at: Date | null
  key: Pick<KeyRow, 'organization_id' | 'project_id' | 'version' | 'data_key' | 'managed'>
}

const SECRET = joined('s', authenticatedColumns('secrets'), { instead: { sealed: sql`s.sealed IS NOT NULL` } })

type Row = Readonly<Record<string, unknown>> & Record<'is_future' | 'was_there' | 'locked', boolean> &
  Record<'version' | 'current_version' | 'recorded_revision' | 'version_revision' | 'created_at', string | null> & {
    held: PastState | null
    version_key: number | null
    content: Buffer | null
    data_key: Buffer | null
    managed: Managed | null
  }

const documents = preparedSql<Row, Record<string, unknown>>('documents_at', ($) => sql`
  WITH RECURSIVE ${momentOf(sql`${$('organization_id')}`, sql`${$('at')}`)}, ${halves(andOwn)}
  SELECT ${IS_FUTURE} AS is_future,
    EXISTS (SELECT FROM projects WHERE organization_id = moment.organization_id
      AND id = ${$('project_id')}::char(26) AND created_at <= moment.at${andOwn(OF_TABLE)})
    AND (${$('target_id')}::char(26) IS NULL OR EXISTS (SELECT FROM targets WHERE organization_id = moment.organization_id
      AND id = ${$('target_id')}::char(26) AND created_at <= moment.at${andOwn(OF_TABLE)}))
    AND (${$('environment_id')}::char(26) IS NULL OR EXISTS (SELECT FROM environments
      WHERE organization_id = moment.organization_id AND id = ${$('environment_id')}::char(26)
        AND created_at <= moment.at${andOwn(OF_TABLE)})) AS was_there,
    its.*, k.managed, k.data_key
  FROM moment CROSS JOIN cut LEFT JOIN LATERAL (
    SELECT ${HELD} AS held, ${SECRET.selected}, s.version AS current_version,
      v.id AS version, v.revision AS version_revision, v.key_version AS version_key, v.created_at,
      ${isLocked(sql`${$('retention_days')}`)} AS locked,
      CASE ${HELD} WHEN 'current' THEN s.sealed WHEN 'version' THEN v.sealed END AS content,
      (SELECT newest.revision FROM secret_versions newest WHERE newest.organization_id = s.organization_id
        AND newest.history_id = s.history_id${andOwn(sql`newest.organization_id`)} ORDER BY newest.id DESC LIMIT 1) AS recorded_revision
    FROM unnest(ARRAY[${$('project_id')}, ${$('target_id')}, ${$('environment_id')}]::char(26)[]) AS place (id)
    CROSS JOIN LATERAL (
      SELECT * FROM secrets
      WHERE organization_id = moment.organization_id AND level_id = place.id${andOwn(OF_TABLE)} LIMIT 1
    ) AS s ${versions(andOwn)}
  ) AS its ON true LEFT JOIN LATERAL (
    SELECT managed, data_key FROM encryption_keys WHERE organization_id = moment.organization_id
      AND project_id = its.s_project_id AND version = coalesce(its.version_key, its.s_key_version)${
        andOwn(OF_TABLE)} LIMIT 1
  ) AS k ON true`)

/**
 * The documents of a level and of its ancestors at a moment, project first. `future` if the moment is later than the
 * database's clock; undefined if the level did not exist at the moment.
 */
export async function findDocumentsAt (
  db: Db, state: LevelState, at: Date, retentionDays: number | null
): Promise<PastDocument[] | 'future' | undefined> {
  const { organization_id, project, target, environment } = state
  const rows = await documents(db, {
    organization_id,
    at: at.getTime(),
    retention_days: retentionDays,
    project_id: project.id,
    target_id: target?.id ?? null,
    environment_id: environment?.id ?? null
  })
  const [first] = rows
  if (first === undefined || first.is_future) return first && 'future'
  if (!first.was_there) return undefined
  return rows.flatMap((row) => toDocument(db, state, row) ?? [])
    .sort((a, b) => LEVELS.indexOf(a.level) - LEVELS.indexOf(b.level))
}

function toDocument (db: Db, { organization_id, ...state }: LevelState, row: Row): PastDocument | undefined {
  const { held } = row
  const secret = SECRET.read(row)
  if (secret === null || held === null) return undefined
  requireAuthentic(db, 'secrets', secret)
  if (held === 'none') return undefined
  const { id, project_id, level, level_id } = secret
  // The row is manipulated, because the project has no key with the version that the row names.
  if (row.managed === null) return tampered()
  // `findLevel` has verified the MACs of the rows with these slugs.
  const slugs = [state.project.slug, state.target?.slug ?? '', state.environment?.slug ?? '']
  const path = slugs.slice(0, 1 + LEVELS.indexOf(level)).join('/')
  const isVersion = held === 'version'
  const key_version = isVersion ? row.version_key! : secret.key_version
  return {
    held,
    path,
    id,
    level,
    level_id,
    revision: isVersion ? Number(row.version_revision) : secret.revision,
    key_version,
    version: numberOf(isVersion ? row.version : row.current_version),
    sealed: row.content,
    recorded_revision: numberOf(row.recorded_revision),
    locked: isVersion && row.locked,
    version_created_at: row.created_at === null ? null : new Date(row.created_at),
    key: { organization_id, project_id, version: key_version, managed: row.managed, data_key: row.data_key }
  }
}

/** A level whose document at the moment differs from the current document, or may differ (`unknown`). */
export interface ChangedLevel extends Pick<Authenticated<'secrets'>, 'id' | 'target_id' | 'size_bytes'> {
  held: Exclude<PastState, 'current'>
  /** The slugs from the project down to the level; set only for the first level that is `unknown`. */
  path: string | null
  is_stored: boolean
  version: number | null
  version_bytes: number | null
  version_created_at: Date | null
  locked: boolean
}

/** The levels of a project that a restore to a moment would change. */
export interface ChangedLevels {
  levels: ChangedLevel[]
  /** The number of levels that were written after the moment and not read, because of the limit. */
  unread: number
}

/**
 * The levels of a project whose documents differ, or may differ, from the documents at a moment, by their ids. Omits
 * levels that only key rotations have changed since the moment. Reads at most `limit` of the levels that were written
 * after the moment; null for all. `future` if the moment is later than the database's clock; undefined if the project
 * did not exist at the moment.
 */
export async function listChangedLevels (
  db: Db, project: KeyState, at: Date, retentionDays: number | null, limit: number | null
): Promise<ChangedLevels | 'future' | undefined> {
  const own: Own = (column) => andOwn(column, project.organization_id)
  const rotated = sql`FROM secret_versions r WHERE r.organization_id = s.organization_id
    AND r.history_id = s.history_id AND r.id > v.id${own(sql`r.organization_id`)}`
  const moment = momentOf(sql`${project.organization_id}`, sql`${at.getTime()}`)
  const written = sql`FROM secrets WHERE organization_id = ${project.organization_id} AND project_id = ${project.id}
    AND updated_at > moment.at`
  const rows = await queryRows<RawLevel>(db, sql`
    WITH RECURSIVE ${moment}, ${halves(own)}
    SELECT ${IS_FUTURE} AS is_future, EXISTS (SELECT FROM projects WHERE organization_id = moment.organization_id
      AND id = ${project.id} AND created_at <= moment.at${own(OF_TABLE)}) AS was_there, its.*
    FROM moment CROSS JOIN cut LEFT JOIN LATERAL (
      SELECT ${HELD} AS held, s.id, s.project_id, s.target_id, s.environment_id, s.size_bytes,
        s.sealed IS NOT NULL AS is_stored, v.id AS version, v.size_bytes AS version_bytes, v.created_at AS version_created_at,
        ${isLocked(sql`${retentionDays}`)} AS locked,
        CASE WHEN v.action <> 'delete' AND NOT EXISTS (SELECT ${rotated} AND r.action <> 'rotate')
          THEN (SELECT count(*) ${rotated}) = s.revision - v.revision ELSE false END AS is_rotated
      FROM (SELECT * ${written} ORDER BY id LIMIT ${limit}::bigint) s ${versions(own)}
    ) AS its ON true
    ORDER BY its.id`)
  const [first] = rows
  if (first === undefined || first.is_future) return first && 'future'
  if (!first.was_there) return undefined
  const changed = rows.filter((row) =>
    row.id !== null && !row.is_rotated && (row.held !== 'none' || row.is_stored))
  const unknown = changed.find(({ held }) => held === 'unknown')
  const path = unknown && await pathTo(db, project.organization_id, unknown)
  const levels = changed.map((row) => ({
    ...row,
    path: row.id === unknown?.id ? path! : null,
    version: numberOf(row.version),
    version_created_at: row.version_created_at === null ? null : new Date(row.version_created_at)
  }))
  if (rows.length !== limit) return { levels, unread: 0 }
  const { count } = await queryRow<{ count: string }>(db, sql`
    WITH ${moment} SELECT (SELECT count(*) ${written}) AS count FROM moment`)
  return { levels, unread: Math.max(Number(count) - rows.length, 0) }
}

async function pathTo (
  db: Db, organizationId: string, { project_id, target_id, environment_id }: RawLevel
): Promise<string> {
  const ids = [project_id, target_id, environment_id]
  const slugs = await findSlugs(db, organizationId, ids)
  return ids.flatMap((id) => slugs.get(id ?? '')?.slug ?? []).join('/')
}

type RawLevel = Omit<ChangedLevel, 'path' | 'version' | 'version_created_at'> &
  Record<'is_future' | 'was_there' | 'is_rotated', boolean> &
  Record<'environment_id' | 'version' | 'version_created_at', string | null> & { project_id: string }
