import { and, eq, sql } from 'drizzle-orm'
import type { Managed } from '../../../schemas/projects.ts'
import type { Level } from '../../../schemas/secrets.ts'
import { authenticatedColumns } from '../../db/rows/authenticated.ts'
import { isAuthentic, lookUp, prepared, preparedSql, requireAuthentic, tampered, type Db, type Value } from '../../db/database.ts'
import { batchLoad, groupByQuery } from '../../db/postgres/batch-load.ts'
import { renewLastVersion } from '../../db/rows/last-version.ts'
import { joined } from '../../db/rows/joined.ts'
import { andOwn, findByOrganization, type OfOrganization } from '../../db/postgres/engine.ts'
import { matching } from '../../db/rows/query.ts'
import {
  columnsOf, encryption_keys, environments, keyColumns, organization_counters, plans, projects, secret_versions,
  secrets, targets
} from '../../db/tables.ts'
import { offsetOf, type PageRequest } from '../../rules/pagination.ts'
import type { Place } from '../../rules/slices.ts'
import type { placeDetails } from '../audit/audit.ts'
import type { KeyRow } from '../keys/encryption-keys.ts'
import type { LevelState, SecretRow } from '../levels/levels.ts'

const shown = columnsOf(
  secret_versions, 'id', 'action', 'revision', 'key_version', 'size_bytes', 'restored_from', 'created_by_id',
  'created_by_name', 'created_at', 'created_through', 'application_name'
)

export interface VersionRow extends Pick<typeof secret_versions.$inferSelect, keyof typeof shown> {
  managed: Managed
  level: Level
  /** Whether the version is older than the plan's retention allows, by the database's clock. */
  locked: boolean
}

const columns = {
  ...shown,
  managed: encryption_keys.managed,
  level: secrets.level,
  locked:
    // The retention is that of the organization's current plan.
    sql<boolean>`coalesce(${secret_versions.created_at} < now() - make_interval(days => (
      SELECT p.retention_days FROM ${organization_counters} c JOIN ${plans} p ON p.name = c.plan
      WHERE c.organization_id = queries.organization_id${andOwn(sql`c.organization_id`)})), false)`
}

const { organization_id, history_id } = secret_versions
const itsSecret = matching(secrets, { organization_id, history_id })
type Page = Readonly<Record<string, unknown>> & Pick<VersionRow, 'managed' | 'locked'>

const VERSION = joined('v', shown)

// Most versions are under the project's current key, whose `managed` is a parameter, so few versions need a look-up.
const listed = ($: Value) => sql`
  SELECT ${VERSION.selected},
    CASE WHEN v.key_version = ${$('key_version')}::int THEN ${$('managed')}::varchar ELSE (SELECT k.managed
      FROM encryption_keys k
      WHERE k.organization_id = v.organization_id AND k.project_id = ${$('project_id')}::char(26)
        AND k.version = v.key_version${andOwn(sql`k.organization_id`)}) END AS managed,
    coalesce(v.created_at < now() - make_interval(days => ${$('retention_days')}::int), false) AS locked`
const itsHistory = ($: Value) =>
  sql`organization_id = ${$('organization_id')}::char(26) AND history_id = ${$('history_id')}::char(26)`
const part = ($: Value) => sql`LIMIT ${$('limit')}::int OFFSET ${$('offset')}::bigint`
const ORDER = { newest: sql`ORDER BY id DESC`, oldest: sql`ORDER BY id` }

// A page that skips at most this many rows, counted from the nearer end of the history, is read with OFFSET.
const NEAR = 100
// The condition for `revision` excludes versions that were written after the secret was loaded. Such versions would
// shift the page.
const near = (
  from: keyof typeof ORDER
) => preparedSql<Page, Record<string, unknown>>(`versions_from_${from}`, ($) => sql`
  ${listed($)} FROM secret_versions v WHERE ${itsHistory($)} AND revision <= ${$('revision')}::bigint
    ${ORDER[from]} ${part($)}`)

// Finds a page by a binary search over ids, if no revision is missing in the history (newest revision - oldest revision
// + 1 = `version_count`). The search relies on a rule: between two versions, ids grow at least as much as revisions. If
// a revision is missing, the statement returns no rows. Deletions of the oldest versions after the secret was loaded do
// not shift the page. If the newest version (`seen`) was deleted since the secret was loaded, the statement returns no
// rows, because the history may have had a gap before that version.
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

// An index-only scan finds all other pages. A scan that skips more than this many rows may be slow.
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

// The number of rows before a page, counted from the nearer end of the history.
function startOf ({ version_count }: SecretRow, request: PageRequest) {
  const offset = offsetOf(request)
  const left = Math.max(0, version_count - offset)
  const limit = Math.min(request.per_page, left)
  return offset > left
    ? { from: 'oldest', limit, skipped: left - limit } as const
    : { from: 'newest', limit, skipped: offset } as const
}

/**
 * A page of the versions that a secret had when it was loaded, newest first, including `locked` versions. `areFewer`:
 * some of these versions were deleted since, so the caller may load the secret again. If the page is counted from the
 * oldest version, deletions of the oldest versions shift the page, and `listVersions` does not detect the shift. Long
 * scans use the handle `lists`.
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
  const found = rows.map((row) =>
    Object.assign(VERSION.read(row)!, { managed: row.managed, level: secret.level, locked: row.locked }))
  return { rows: found, areFewer: rows.length < limit }
}

/** `levels`: the level of the version and those above, for its events. */
export interface FoundVersion {
  version: VersionRow
  secret: Place & { id: string, level_id: string }
  levels: Parameters<typeof placeDetails>[0]
}

export interface FullVersion extends FoundVersion { sealed: Buffer, key: KeyRow }

// LATERAL subqueries look up each row by its key, as `lookUp` does.
const QUERIES = sql`jsonb_to_recordset(${sql.placeholder('queries')}::jsonb)
  AS queries (query_index int, organization_id char(26), id bigint)`
const itsVersion = (db: Db) => db.select().from(secret_versions).where(and(
  eq(secret_versions.organization_id, sql`queries.organization_id`),
  sql`${eq(secret_versions.id, sql`queries.id`)}${andOwn(sql`${secret_versions.organization_id}`)}`
)).limit(1).as('secret_versions')
const itsLevel = (db: Db) => db.select().from(secrets)
  .where(sql`${itsSecret}${andOwn(sql`${secrets.organization_id}`)}`).limit(1).as('secrets')
const itsKey = (db: Db) => db.select().from(encryption_keys).where(sql`${matching(encryption_keys, {
  organization_id, project_id: secrets.project_id, version: secret_versions.key_version
})}${andOwn(sql`${encryption_keys.organization_id}`)}`).limit(1).as('encryption_keys')
const itsProject = (db: Db) => db.select().from(projects).where(sql`${matching(projects, {
  organization_id, id: secrets.project_id
})}${andOwn(sql`${projects.organization_id}`)}`).limit(1).as('projects')
const itsTarget = (db: Db) => db.select().from(targets).where(sql`${matching(targets, {
  organization_id, id: secrets.target_id
})}${andOwn(sql`${targets.organization_id}`)}`).limit(1).as('targets')
const itsEnvironment = (db: Db) => db.select().from(environments).where(sql`${matching(environments, {
  organization_id, id: secrets.environment_id
})}${andOwn(sql`${environments.organization_id}`)}`).limit(1).as('environments')
const place = {
  query_index: sql<number>`queries.query_index`.as('query_index'),
  version: { ...columns, managed: sql<Managed | null>`${encryption_keys.managed}` },
  secret: { ...authenticatedColumns('secrets'), sealed: sql<boolean>`${secrets.sealed} IS NOT NULL` },
  project: authenticatedColumns('projects'),
  target: authenticatedColumns('targets'),
  environment: authenticatedColumns('environments')
}
const byIds = prepared('versions_by_id', (db) => db.select(place).from(QUERIES)
  .innerJoinLateral(itsVersion(db), sql`true`).innerJoinLateral(itsLevel(db), sql`true`)
  .leftJoinLateral(itsKey(db), sql`true`).innerJoinLateral(itsProject(db), sql`true`)
  .leftJoinLateral(itsTarget(db), sql`true`).leftJoinLateral(itsEnvironment(db), sql`true`))
const fullByIds = prepared('full_versions_by_id', (db) => db
  .select({ ...place, sealed: secret_versions.sealed, key: keyColumns }).from(QUERIES)
  .innerJoinLateral(itsVersion(db), sql`true`).innerJoinLateral(itsLevel(db), sql`true`)
  .leftJoinLateral(itsKey(db), sql`true`).innerJoinLateral(itsProject(db), sql`true`)
  .leftJoinLateral(itsTarget(db), sql`true`).leftJoinLateral(itsEnvironment(db), sql`true`))

interface VersionQuery { organization_id: string, id: number }

const rowsBy = <R extends { query_index: number }>(
  find: (db: Db, values: OfOrganization & { queries: string }) => Promise<R[]>
) =>
    async (db: Db, batch: readonly VersionQuery[]) => {
      const numbered = batch.map((one, query_index) => ({ query_index, ...one }))
      const rows = await findByOrganization(db, numbered, (organization_id, queries) =>
        find(db, { organization_id, queries }))
      return groupByQuery(rows, batch.length)
    }
const rowsOf = rowsBy(byIds)
const fullRowsOf = rowsBy(fullByIds)
type Row = Awaited<ReturnType<typeof byIds>>[number]
type FullRow = Awaited<ReturnType<typeof fullByIds>>[number]

function toVersion (db: Db, [row]: readonly Row[]): FoundVersion | undefined {
  if (row === undefined) return undefined
  requireAuthentic(db, 'secrets', row.secret)
  const { version, secret, project, target, environment } = row
  requireAuthentic(db, 'projects', project)
  if (target !== null) requireAuthentic(db, 'targets', target)
  // The row is manipulated, because the project has no key with the version that the row names.
  if (version.managed === null) return tampered()
  return {
    version: { ...version, managed: version.managed },
    secret: { ...secret, status: statusOf(db, row) },
    levels: { project, target, environment }
  }
}

// The current status of the environment. Without a status, the version is outside of restrictions by status.
function statusOf (db: Db, { environment }: Row): string | undefined {
  return environment !== null && isAuthentic(db, 'environments', environment) ? environment.status : undefined
}

function toFullVersion (db: Db, rows: readonly FullRow[]): FullVersion | undefined {
  const found = toVersion(db, rows)
  if (found === undefined) return undefined
  const { sealed, key } = rows[0]!
  return { ...found, sealed, key: key ?? tampered() }
}

const keyOf = ({ organization_id, id }: VersionQuery) => `${organization_id} ${id}`

/** A version of the organization; undefined if the version does not exist, or if its history was removed. */
export const findVersion = batchLoad({ keyOf, find: rowsOf, read: toVersion })

/** Like `findVersion`, with the encrypted content and the key. */
export const findFullVersion = batchLoad({ keyOf, find: fullRowsOf, read: toFullVersion })

/** Loads versions in one statement. Each result is a function that throws TamperedRow or returns the version. */
export async function findVersionsTogether (
  db: Db, some: readonly VersionQuery[]
): Promise<(() => FullVersion | undefined)[]> {
  return (await fullRowsOf(db, some)).map((found) => () => toFullVersion(db, found))
}

/**
 * Deletes a version; returns its bytes. Without `force`, the newest version of a deleted secret is `protected`, because
 * a restore needs that version. The caller has locked the project's row.
 */
export async function deleteVersion (
  db: Db, organizationId: string, id: number, force: boolean
): Promise<{ bytes: number } | 'protected' | 'missing'> {
  const one = matching(secret_versions, { organization_id: organizationId, id })
  const [row] = await db
    .select({
      secret_id: secrets.id,
      project_id: secrets.project_id,
      bytes: secret_versions.size_bytes,
      snapshot: sql<boolean>`${secrets.sealed} IS NULL AND NOT EXISTS (
        SELECT FROM secret_versions newer
        WHERE newer.organization_id = ${secrets.organization_id} AND newer.history_id = ${secrets.history_id}
          AND newer.id > ${secret_versions.id}${andOwn(sql`newer.organization_id`, organizationId)})`
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
    .where(matching(secrets, { organization_id: organizationId, id: row.secret_id }))
  await renewLastVersion(db, organizationId, row.project_id)
  return { bytes: row.bytes }
}
