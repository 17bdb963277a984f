import { and, eq, sql } from 'drizzle-orm'
import type { Managed } from '../../schemas/projects.ts'
import type { Level } from '../../schemas/secrets.ts'
import type { VersionAction } from '../../schemas/versions.ts'
import { authenticatedColumns } from '../db/authenticated.ts'
import { lookUp, prepared, preparedSql, requireAuthentic, tampered, type Db, type Value } from '../db/database.ts'
import { byQuestion, gather } from '../db/gather.ts'
import { encryption_keys, keyColumns, secret_versions, secrets } from '../db/tables.ts'
import { offsetOf, type PageRequest } from '../rules/pagination.ts'
import type { Place } from '../rules/slices.ts'
import type { KeyRow } from './encryption-keys.ts'
import type { LevelState, SecretRow } from './levels.ts'

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
  locked:
    sql<boolean>`coalesce(${secret_versions.created_at} < now() - make_interval(days => asked.retention_days), false)`
}

const itsSecret = and(
  eq(secrets.organization_id, secret_versions.organization_id), eq(secrets.history_id, secret_versions.history_id)
)
const itsKey = and(
  eq(encryption_keys.organization_id, secret_versions.organization_id),
  eq(encryption_keys.project_id, secrets.project_id),
  eq(encryption_keys.version, secret_versions.key_version)
)

type Page = Omit<VersionRow, 'id' | 'revision' | 'restored_from' | 'created_by_id' | 'created_at' | 'level'> &
  Record<'id' | 'revision' | 'created_at', string> & Record<'restored_from' | 'created_by_id', string | null>

// Nearly all are under the key that the level's project has now, which is known.
const listed = ($: Value) => sql`
  SELECT v.id, v.action, v.revision, v.key_version, v.size_bytes, v.restored_from, v.created_by_id, v.created_by_name,
    v.created_at,
    CASE WHEN v.key_version = ${$('key_version')}::int THEN ${$('managed')}::varchar ELSE (SELECT k.managed
      FROM encryption_keys k
      WHERE k.organization_id = v.organization_id AND k.project_id = ${$('project_id')}::char(26)
        AND k.version = v.key_version) END AS managed,
    coalesce(v.created_at < now() - make_interval(days => ${$('retention_days')}::int), false) AS locked`
const itsHistory = ($: Value) =>
  sql`organization_id = ${$('organization_id')}::char(26) AND history_id = ${$('history_id')}::char(26)`
const part = ($: Value) => sql`LIMIT ${$('limit')}::int OFFSET ${$('offset')}::bigint`
const ORDER = { newest: sql`ORDER BY id DESC`, oldest: sql`ORDER BY id` }

// So many rows before a page, at most, are read with it.
const NEAR = 100
// What was written since the look would push as much out at the other end.
const near = (
  from: keyof typeof ORDER
) => preparedSql<Page, Record<string, unknown>>(`versions_from_${from}`, ($) => sql`
  ${listed($)} FROM secret_versions v WHERE ${itsHistory($)} AND revision <= ${$('revision')}::bigint
    ${ORDER[from]} ${part($)}`)

// Where between the ends of a history no revision is missing, a page is known by its revisions, and found by halves:
// between two versions are as many ids as revisions, at least. Where some are missing nothing is found, for how many of
// these are before a page only counting tells. What was removed since the look at the old end moves none of the others;
// where the newest that it saw is gone, the history may have become whole by that alone.
const whole = preparedSql<Page, Record<string, unknown>>('versions_by_revision', ($) => sql`
  WITH RECURSIVE ends AS (
    SELECT oldest.id AS oldest, oldest.revision AS since, newest.id AS newest, newest.revision AS until
    FROM secrets s
    CROSS JOIN LATERAL (SELECT id, revision FROM secret_versions WHERE ${itsHistory($)} ORDER BY id LIMIT 1) AS oldest
    CROSS JOIN LATERAL (
      SELECT id, revision FROM secret_versions WHERE ${itsHistory($)} ORDER BY id DESC LIMIT 1
    ) AS newest
    WHERE s.organization_id = ${$('organization_id')}::char(26) AND s.id = ${$('secret_id')}::char(26)
      AND s.history_id = ${$('history_id')}::char(26) AND newest.revision - oldest.revision + 1 = s.version_count
      AND newest.revision >= ${$('seen')}::bigint
  ), halves AS (
    SELECT oldest + (${$('first')}::bigint - since) AS low, newest - (until - ${$('first')}::bigint) AS high
    FROM ends WHERE ${$('first')}::bigint BETWEEN since AND until
    UNION ALL
    SELECT CASE WHEN v.revision > ${$('first')}::bigint THEN low
        ELSE v.id + (${$('first')}::bigint - v.revision) END,
      CASE WHEN v.revision > ${$('first')}::bigint
        THEN least((low + high) / 2 - 1, v.id - (v.revision - ${$('first')}::bigint))
        WHEN v.revision = ${$('first')}::bigint THEN v.id ELSE high END
    FROM halves CROSS JOIN LATERAL (
      SELECT id, revision FROM secret_versions WHERE ${itsHistory($)} AND id >= (low + high) / 2 ORDER BY id LIMIT 1
    ) AS v WHERE low < high
  )
  ${listed($)} FROM (SELECT low FROM halves WHERE low >= high) AS page CROSS JOIN LATERAL (
    SELECT * FROM secret_versions WHERE ${itsHistory($)} AND id >= page.low ORDER BY id LIMIT ${$('limit')}::int
  ) AS v ORDER BY v.id DESC`)

// Otherwise it is walked to. The rows are found in the index alone; what is behind more than so many is no page that is
// surely short.
const FAR = 5_000
const deep = (
  from: keyof typeof ORDER
) => preparedSql<Page, Record<string, unknown>>(`versions_far_from_${from}`, ($) => sql`
  ${listed($)} FROM (SELECT organization_id, id FROM secret_versions
    WHERE ${itsHistory($)} ${ORDER[from]} ${part($)}) AS page
  CROSS JOIN ${lookUp('v', secret_versions, sql`organization_id = page.organization_id AND id = page.id`)}
  ORDER BY v.id ${sql.raw(from === 'newest' ? 'DESC' : 'ASC')}`)
const walks = {
  newest: { near: near('newest'), deep: deep('newest') },
  oldest: { near: near('oldest'), deep: deep('oldest') }
}

// The rows that lie before a page, counted from the end that is nearer.
function startOf ({ version_count }: SecretRow, request: PageRequest) {
  const offset = offsetOf(request)
  const left = Math.max(0, version_count - offset)
  const limit = Math.min(request.per_page, left)
  return offset > left
    ? { from: 'oldest', limit, skipped: left - limit } as const
    : { from: 'newest', limit, skipped: offset } as const
}

/**
 * Versions of a secret as it was seen, newest first; locked ones are listed too. There are fewer than were seen where
 * somebody has removed some since: whoever wants them as they are looks again. Of a page that is walked to from the
 * oldest, what is removed there meanwhile moves it by as many, and nothing tells.
 *
 * @param handles a page that takes long to walk to goes by `lists`, any other by `pages`
 */
export async function listVersions (
  handles: Record<'pages' | 'lists', Db>, state: LevelState, secret: SecretRow, retentionDays: number | null,
  request: PageRequest
): Promise<{ rows: VersionRow[], areFewer: boolean }> {
  const { from, limit, skipped } = startOf(secret, request)
  if (limit === 0) return { rows: [], areFewer: false }
  const its = {
    organization_id: state.organization_id,
    project_id: state.project.id,
    key_version: state.project.key_version,
    managed: state.project.encryption_type,
    history_id: secret.history_id,
    retention_days: retentionDays,
    limit
  }
  const isNear = skipped <= NEAR
  const seen = secret.recorded_revision ?? 0
  const first = seen - offsetOf(request) - limit + 1
  let rows = isNear ? [] : await whole(handles.pages, { ...its, secret_id: secret.id, first, seen })
  if (rows.length === 0) {
    const walk = walks[from][isNear ? 'near' : 'deep']
    const db = skipped > FAR ? handles.lists : handles.pages
    rows = await walk(db, { ...its, revision: secret.revision, offset: skipped })
    if (from === 'oldest') rows.reverse()
  }
  const number = (text: string | null) => text === null ? null : Number(text)
  const found = rows.map((row) => ({
    id: Number(row.id),
    action: row.action,
    revision: Number(row.revision),
    key_version: row.key_version,
    managed: row.managed,
    size_bytes: row.size_bytes,
    restored_from: number(row.restored_from),
    created_by_id: number(row.created_by_id),
    created_by_name: row.created_by_name,
    created_at: new Date(row.created_at),
    level: secret.level,
    locked: row.locked
  }))
  return { rows: found, areFewer: rows.length < limit }
}

/** A version with its sealed content, its key and its place. */
export interface FullVersion {
  version: VersionRow
  sealed: Buffer
  secret: Place & { id: string, level_id: string }
  key: KeyRow
}

const ASKED = sql`jsonb_to_recordset(${sql.placeholder('asked')}::jsonb)
  AS asked (question int, organization_id char(26), id bigint, retention_days int)`
const byIds = prepared('versions_by_id', (db) => db
  .select({
    question: sql<number>`asked.question`.as('question'),
    version: columns,
    sealed: secret_versions.sealed,
    secret: { ...authenticatedColumns('secrets'), sealed: sql<boolean>`${secrets.sealed} IS NOT NULL` },
    key: keyColumns
  })
  .from(ASKED)
  .innerJoin(secret_versions, and(
    eq(secret_versions.organization_id, sql`asked.organization_id`), eq(secret_versions.id, sql`asked.id`)
  ))
  .innerJoin(secrets, itsSecret)
  .leftJoin(encryption_keys, itsKey))

interface Asked { organization_id: string, id: number, retention_days: number | null }

async function rowsOf (db: Db, questions: readonly Asked[]) {
  const asked = JSON.stringify(questions.map((one, question) => ({ question, ...one })))
  return byQuestion(await byIds(db, { asked }), questions.length)
}
type Found = Awaited<ReturnType<typeof rowsOf>>[number][number]

function toVersion (db: Db, [row]: readonly Found[]): FullVersion | undefined {
  if (row === undefined) return undefined
  requireAuthentic(db, 'secrets', row.secret)
  // A version names a key that its project never had.
  const { version, key } = row
  if (key === null || version.managed === null) return tampered()
  return { ...row, key, version: { ...version, managed: version.managed } }
}

const findVersions = gather({
  keyOf: ({ organization_id, id, retention_days }: Asked) => `${organization_id} ${id} ${retention_days}`,
  find: rowsOf,
  read: toVersion
})

/** A version of the organization, reached through the secret that has it. */
export async function findVersion (
  db: Db, organizationId: string, id: number, retentionDays: number | null
): Promise<FullVersion | undefined> {
  return findVersions(db, { organization_id: organizationId, id, retention_days: retentionDays })
}

/** Versions of the organization by id, in one statement; undefined for what is none. */
export async function findVersionsTogether (
  db: Db, organizationId: string, ids: readonly number[], retentionDays: number | null
): Promise<(FullVersion | undefined)[]> {
  const rows = await rowsOf(db, ids.map((id) =>
    ({ organization_id: organizationId, id, retention_days: retentionDays })))
  return rows.map((found) => toVersion(db, found))
}

/**
 * Deletes one version. `protected` when it is the newest one of a deleted secret (its restore snapshot) and `force` is
 * not given. Answers the bytes of one that is gone. The caller holds the project's row, so no write or other delete
 * comes between.
 */
export async function deleteVersion (
  db: Db, organizationId: string, id: number, force: boolean
): Promise<{ bytes: number } | 'protected' | 'missing'> {
  const one = and(eq(secret_versions.organization_id, organizationId), eq(secret_versions.id, id))
  const [row] = await db
    .select({
      secret_id: secrets.id,
      bytes: secret_versions.size_bytes,
      snapshot: sql<boolean>`${secrets.sealed} IS NULL AND NOT EXISTS (
        SELECT FROM secret_versions newer
        WHERE newer.organization_id = ${secrets.organization_id} AND newer.history_id = ${secrets.history_id}
          AND newer.id > ${secret_versions.id})`
    })
    .from(secret_versions)
    .innerJoin(secrets, itsSecret)
    .where(one)
  if (row === undefined) return 'missing'
  if (row.snapshot && !force) return 'protected'
  await db.delete(secret_versions).where(one)
  await db.update(secrets)
    .set({
      version_count: sql`${secrets.version_count} - 1`,
      version_bytes: sql`${secrets.version_bytes} - ${row.bytes}::int`,
      version: sql`nullif(${secrets.version}, ${id}::bigint)`
    })
    .where(and(eq(secrets.organization_id, organizationId), eq(secrets.id, row.secret_id)))
  return { bytes: row.bytes }
}
