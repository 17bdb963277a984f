import { sql, type SQL } from 'drizzle-orm'
import { MATRIX_LIMITS } from '../../../schemas/matrix.ts'
import { LEVELS, type Level, type LevelNames } from '../../../schemas/secrets.ts'
import { lookUp, preparedSql, requireAuthentic, tampered, type Authenticated, type Db } from '../../db/database.ts'
import { authenticatedColumns } from '../../db/rows/authenticated.ts'
import { joined } from '../../db/rows/joined.ts'
import { batchLoad, groupByQuery } from '../../db/postgres/batch-load.ts'
import { andOwn, findByOrganization, groups, type OfOrganization } from '../../db/postgres/engine.ts'
import { numberOf } from '../../db/rows/query.ts'
import { isInsideSlices } from '../../db/rows/slices.ts'
import { columnsOf, encryption_keys, environments, keyColumns, projects, secrets, targets } from '../../db/tables.ts'
import { slicesIn, type Place, type Slice } from '../../rules/slices.ts'
import type { KeyRow } from '../keys/encryption-keys.ts'

export interface SecretRow extends Authenticated<'secrets'>, Pick<typeof secrets.$inferSelect,
  'version' | 'history_id' | 'version_count'> {
  /** False when the secret is deleted. */
  is_stored: boolean
  /** Null when the secret is deleted, or when the query does not load the content (`FLAGS`). */
  sealed: Buffer | null
  /** The revision of the newest recorded version of the secret; null if the secret has no versions. */
  recorded_revision: number | null
}

/** Maximum number of levels in a page of `listLevels`. */
const LEVELS_OF_PAGE = MATRIX_LIMITS.levels

/** The MAC of a level does not cover its name. */
interface Named { name: string }

/** A level (project, target or environment) with its ancestors and the requested rows, loaded by one statement. */
export interface LevelState {
  organization_id: string
  project: Authenticated<'projects'> & Named
  /** The active key of the project; null if the query does not load the key. */
  key: KeyRow | null
  target: (Authenticated<'targets'> & Named) | null
  environment: (Authenticated<'environments'> & Named) | null
  /** The kind of the level: the deepest of `environment`, `target` and `project` that is not null. */
  level: Level
  level_id: string
  slug: string
  /** The document rows of the level and of its ancestors; for a write only of the level. Empty if not requested. */
  secrets: SecretRow[]
}

/** What to load with a level: a name in `FLAGS`, which says whether to load documents, content and the active key. */
export type Include = keyof typeof FLAGS

const FLAGS = {
  place: { documents: false, content: false, key: false },
  key: { documents: false, content: false, key: true },
  revisions: { documents: true, content: false, key: false },
  documents: { documents: true, content: true, key: false },
  readable: { documents: true, content: true, key: true },
  storable: { documents: true, content: false, key: true }
}

/** A statement returns a row for each document, or one row if there is none. */
interface Row extends Readonly<Record<string, unknown>> {
  query_index: number
  /** Only for writes: false if a long operation has locked the project. */
  is_free?: boolean
  key_is_newest: boolean
  is_stored: boolean
  recorded_revision: string | null
}

const PROJECT = joined('p', { ...authenticatedColumns('projects'), ...columnsOf(projects, 'name') })
const TARGET = joined('g', { ...authenticatedColumns('targets'), ...columnsOf(targets, 'name') })
const ENVIRONMENT = joined('e', { ...authenticatedColumns('environments'), ...columnsOf(environments, 'name') })
const KEY = joined('k', keyColumns, { when: sql`queries.key` })
const SECRET = joined('s', {
  ...authenticatedColumns('secrets'), ...columnsOf(secrets, 'version', 'history_id', 'version_count')
}, { instead: { sealed: sql`CASE WHEN queries.content THEN s.sealed END` } })

const FLAG_COLUMNS = sql`documents boolean, content boolean, key boolean`

// Locks the project row until the end of the transaction. `free.id` is null if a long operation has locked the row.
const FREE = {
  column: sql`free.id IS NOT NULL AS is_free,`,
  join: sql`LEFT JOIN LATERAL (
    SELECT id FROM projects WHERE organization_id = p.organization_id AND id = p.id${andOwn(sql`organization_id`)}
      FOR SHARE SKIP LOCKED
  ) AS free ON true`
}
const NO_LOCK = { column: sql``, join: sql`` }

// The look-ups of the statements below, each with the columns that these statements use.
const projectBy = (key: SQL) => lookUp('p', projects, key, PROJECT.names)
const targetBy = (key: SQL) => lookUp('g', targets, key, TARGET.names)
const environmentBy = (key: SQL) => lookUp('e', environments, key, ENVIRONMENT.names)
const keyBy = (key: SQL) => lookUp('k', encryption_keys, key, KEY.names)
const secretBy = (alias: string, key: SQL) => lookUp(alias, secrets, key, SECRET.names)

// Builds a statement that loads levels. A query without the flag `documents` reads no document row. Every query joins
// the active key, because `toState` verifies that the active key is the newest.
const levels = (
  name: string, place: SQL, documents: SQL, lock = NO_LOCK
) => preparedSql<Row, OfOrganization & { queries: string }>(name, ($) => sql`
  SELECT queries.query_index, ${lock.column} ${PROJECT.selected},
    k.version = p.key_version AND NOT EXISTS (
      SELECT FROM encryption_keys newer WHERE newer.organization_id = p.organization_id AND newer.project_id = p.id
        AND newer.version > p.key_version${andOwn(sql`newer.organization_id`)}) AS key_is_newest,
    ${KEY.selected}, ${TARGET.selected}, ${ENVIRONMENT.selected}, ${SECRET.selected}, s.sealed IS NOT NULL AS is_stored,
    (SELECT v.revision FROM secret_versions v
      WHERE v.organization_id = s.organization_id AND v.history_id = s.history_id${andOwn(sql`v.organization_id`)}
      ORDER BY v.id DESC LIMIT 1) AS recorded_revision
  FROM jsonb_to_recordset(${$('queries')}::jsonb) AS queries (query_index int, organization_id char(26), ${place}
  ${lock.join}
  CROSS JOIN ${keyBy(sql`organization_id = p.organization_id AND project_id = p.id AND is_active`)}
  LEFT JOIN LATERAL (
    SELECT s.* FROM unnest(${documents}) AS its (id)
    CROSS JOIN ${secretBy('s', sql`queries.documents AND organization_id = p.organization_id AND level_id = its.id`)}
  ) AS s ON true`)

const NAMED = sql`project varchar, target varchar, environment varchar, ${FLAG_COLUMNS})
  CROSS JOIN ${projectBy(sql`organization_id = queries.organization_id AND slug = queries.project`)}
  LEFT JOIN ${targetBy(sql`organization_id = p.organization_id AND project_id = p.id AND slug = queries.target`)} ON true
  LEFT JOIN ${environmentBy(
    sql`organization_id = p.organization_id AND target_id = g.id AND slug = queries.environment`)} ON true`
const ON_THE_WAY = sql`ARRAY[p.id, g.id, e.id]`
const bySlugs = levels('levels_by_slugs', NAMED, ON_THE_WAY)
const freeBySlugs = levels('free_levels_by_slugs', NAMED, sql`ARRAY[coalesce(e.id, g.id, p.id)]`, FREE)

const OF_SECRET = sql`secret_id char(26), ${FLAG_COLUMNS})
  CROSS JOIN ${secretBy('own', sql`organization_id = queries.organization_id AND id = queries.secret_id`)}
  CROSS JOIN ${projectBy(sql`organization_id = own.organization_id AND id = own.project_id`)}
  LEFT JOIN ${targetBy(sql`organization_id = own.organization_id AND id = own.target_id`)} ON true
  LEFT JOIN ${environmentBy(sql`organization_id = own.organization_id AND id = own.environment_id`)} ON true`
const bySecret = levels('levels_by_secret', OF_SECRET, sql`ARRAY[own.level_id]`)
const freeBySecret = levels('free_levels_by_secret', OF_SECRET, sql`ARRAY[own.level_id]`, FREE)

// The levels of a project in the order of `listLevels`: the project, then each target, followed by its environments.
// The collation is explicit, so that the order does not depend on the locale of the database.
const OF_PROJECT = sql`project_id char(26), after_target varchar, after_environment varchar, only_level varchar,
    slices jsonb, ${FLAG_COLUMNS})
  CROSS JOIN ${projectBy(sql`organization_id = queries.organization_id AND id = queries.project_id`)}
  CROSS JOIN LATERAL (
    SELECT l.target_id, l.environment_id FROM (
      SELECT 'project' AS level, NULL::char(26) AS target_id, NULL::char(26) AS environment_id, NULL AS status,
        '' AS target, '' AS environment
      UNION ALL
      SELECT 'target', g.id, NULL, NULL, g.slug, '' FROM targets g
      WHERE g.organization_id = p.organization_id AND g.project_id = p.id${andOwn(sql`g.organization_id`)}
      UNION ALL
      SELECT 'environment', g.id, e.id, e.status, g.slug, e.slug
      FROM environments e JOIN targets g ON g.organization_id = e.organization_id AND g.id = e.target_id${
        andOwn(sql`g.organization_id`)}
      WHERE e.organization_id = p.organization_id AND e.project_id = p.id${andOwn(sql`e.organization_id`)}
    ) l
    WHERE (queries.only_level IS NULL OR l.level = queries.only_level)
      AND (queries.after_target IS NULL OR (l.target COLLATE "C", l.environment COLLATE "C")
        > (queries.after_target COLLATE "C", queries.after_environment COLLATE "C"))
      AND (queries.slices IS NULL OR ${isInsideSlices(sql`queries.slices`, {
        target_id: sql`l.target_id`,
        environment_id: sql`l.environment_id`,
        hasOtherStatus: sql`l.status <> slice.except_status`
      })})
    ORDER BY l.target COLLATE "C", l.environment COLLATE "C" LIMIT ${sql.raw(String(LEVELS_OF_PAGE + 1))}
  ) AS its
  LEFT JOIN ${targetBy(sql`organization_id = p.organization_id AND id = its.target_id`)} ON true
  LEFT JOIN ${environmentBy(sql`organization_id = p.organization_id AND id = its.environment_id`)} ON true`
const ofProject = levels('levels_of_project', OF_PROJECT, ON_THE_WAY)

interface Asked { organization_id: string, names: LevelNames, include: Include }

const findLevels = batchLoad({
  keyOf: ({ organization_id, names: { project, target, environment }, include }: Asked) =>
    JSON.stringify([organization_id, project, target, environment, include]),
  organizationOf: ({ organization_id }) => organization_id,
  find: async (db, batch, organization_id) => {
    const numbered = batch.map(({ organization_id, names: { project, target, environment }, include }, query_index) =>
      ({ query_index, organization_id, project, target, environment, ...FLAGS[include] }))
    return groupByQuery(await bySlugs(db, { organization_id, queries: JSON.stringify(numbered) }), batch.length)
  },
  read: (db, rows, { names }) => stateOf(db, rows, names)
})

/** The level with these slugs; undefined if a slug does not exist. Throws TamperedRow. */
export async function findLevel (
  db: Db, organizationId: string, names: LevelNames, include: Include
): Promise<LevelState | undefined> {
  return findLevels(db, { organization_id: organizationId, names, include })
}

/**
 * Loads the levels of secrets. Each level has the active key and its own document, but no documents of its ancestors.
 * Returns undefined for a secret that does not exist. Throws TamperedRow.
 */
export async function findLevelsOfSecrets (
  db: Db, organization_id: string, secretIds: readonly string[]
): Promise<(LevelState | undefined)[]> {
  const queries = secretIds.map((secret_id, query_index) =>
    ({ query_index, organization_id, secret_id, ...FLAGS.readable }))
  const rows = await bySecret(db, { organization_id, queries: JSON.stringify(queries) })
  return groupByQuery(rows, secretIds.length).map((found) => toState(db, found))
}

/** A position in the order of `listLevels`: the slugs of the target and environment. A missing slug is empty. */
export interface LevelPosition { target: string, environment: string }

/** Filters for the levels of a project: levels after a position, levels of one kind, and levels inside of `slices`. */
export interface LevelSelection {
  after?: LevelPosition | undefined
  level?: Level | undefined
  slices: readonly Slice[]
}

/**
 * A page of the levels of a project: the project, then each target, followed by its environments, sorted by slug. Each
 * level has its own document row and those of its ancestors, without content. `isCut`: the project has more levels.
 * Throws TamperedRow.
 */
export async function listLevels (
  db: Db, { organization_id, id }: Pick<LevelState['project'], 'organization_id' | 'id'>,
  { after, level, slices }: LevelSelection
): Promise<{ levels: LevelState[], isCut: boolean }> {
  const query = {
    query_index: 0,
    organization_id,
    project_id: id,
    after_target: after?.target,
    after_environment: after?.environment,
    only_level: level,
    ...(slices.length > 0 && { slices: slicesIn(slices, id) }),
    ...FLAGS.revisions
  }
  const rows = await ofProject(db, { organization_id, queries: JSON.stringify([query]) })
  const found = groups(rows, ({ g_id, e_id }) => `${g_id ?? ''} ${e_id ?? ''}`)
    .flatMap((rows) => toState(db, rows) ?? [])
    .sort((one, other) => comparePositions(positionOf(one), positionOf(other)))
  return { levels: found.slice(0, LEVELS_OF_PAGE), isCut: found.length > LEVELS_OF_PAGE }
}

export const positionOf = ({ target, environment }: LevelState): LevelPosition =>
  ({ target: target?.slug ?? '', environment: environment?.slug ?? '' })

/** Compares in the order of `listLevels`. Slugs are ASCII, so `<` gives the order of the collation "C". */
export function comparePositions (one: LevelPosition, other: LevelPosition): number {
  const [a, b] = one.target === other.target ? [one.environment, other.environment] : [one.target, other.target]
  return a < b ? -1 : Number(a > b)
}

/** The level that a write changes: named by slugs, or for the restore of a version by the id of the secret. */
export type Target = ({ names: LevelNames } | { secret_id: string, version: number }) &
  { include: 'storable' | 'readable' }

/**
 * Loads the levels of writes and locks their projects (FOR SHARE). Each level has its own document row, but not those
 * of its ancestors. `isFree` is false if a long operation has locked the project. Each result is a function that throws
 * TamperedRow, so that a manipulated level fails only its own write.
 */
export async function lockLevelsToWrite (
  db: Db, writes: readonly { organizationId: string, target: Target }[]
): Promise<(() => { state: LevelState, isFree: boolean } | undefined)[]> {
  const named: (OfOrganization & Record<string, unknown>)[] = []
  const secretBy: typeof named = []
  for (const [query_index, { organizationId: organization_id, target }] of writes.entries()) {
    if ('names' in target) named.push({ query_index, organization_id, ...target.names, ...FLAGS[target.include] })
    else secretBy.push({ query_index, organization_id, secret_id: target.secret_id, ...FLAGS[target.include] })
  }
  const find = (statement: typeof freeBySlugs, rows: typeof named) =>
    findByOrganization(db, rows, (organization_id, queries) => statement(db, { organization_id, queries }))
  const rows = await Promise.all([find(freeBySlugs, named), find(freeBySecret, secretBy)])
  return groupByQuery(rows.flat(), writes.length).map((found, i) => () => {
    const { target } = writes[i]!
    const state = 'names' in target ? stateOf(db, found, target.names) : toState(db, found)
    return state && { state, isFree: found[0]!.is_free === true }
  })
}

function stateOf (db: Db, rows: readonly Row[], { target, environment }: LevelNames): LevelState | undefined {
  const state = toState(db, rows)
  if (target !== undefined && state?.target === null) return undefined
  return environment !== undefined && state?.environment === null ? undefined : state
}

// Verifies the rows of a level before their values are used. Every MAC must be valid; the MAC of a level covers the ids
// of its parents. No document may have a lower revision than its newest version. The active key must be the newest key.
function toState (db: Db, rows: readonly Row[]): LevelState | undefined {
  const [first] = rows
  if (first === undefined) return undefined
  const project = PROJECT.read(first)!
  const target = TARGET.read(first)
  const environment = ENVIRONMENT.read(first)
  const secrets = rows.flatMap((row) => toSecret(row) ?? []).sort((a, b) =>
    LEVELS.indexOf(a.level) - LEVELS.indexOf(b.level))
  requireAuthentic(db, 'projects', project)
  if (target !== null) requireAuthentic(db, 'targets', target)
  if (environment !== null) requireAuthentic(db, 'environments', environment)
  for (const secret of secrets) requireAuthentic(db, 'secrets', { ...secret, sealed: secret.is_stored })
  const isNewest = secrets.every(({ recorded_revision, revision }) => (recorded_revision ?? 0) <= revision)
  if (!isNewest || !first.key_is_newest) tampered()
  const [level, deepest] = environment !== null
    ? ['environment', environment] as const
    : target !== null ? ['target', target] as const : ['project', project] as const
  return {
    organization_id: project.organization_id,
    project,
    // `key_is_newest` is verified, so the key has the key version of the project.
    key: KEY.read(first),
    target,
    environment,
    level,
    level_id: deepest.id,
    slug: deepest.slug,
    secrets
  }
}

function toSecret (row: Row): SecretRow | null {
  const { is_stored, recorded_revision } = row
  const secret = SECRET.read(row)
  return secret && Object.assign(secret, { is_stored, recorded_revision: numberOf(recorded_revision) })
}

/** The active key of a level that was loaded with `key`, `readable` or `storable`. */
export function activeKeyOf ({ key }: Pick<LevelState, 'key'>): KeyRow {
  if (key === null) throw new Error('the level was looked up without its key')
  return key
}

/** The document row of the level itself, also of a deleted document; undefined if the level never had a document. */
export function ownSecret (state: LevelState): SecretRow | undefined {
  return state.secrets.find(({ level_id }) => level_id === state.level_id)
}

/** The ids of a level's project, target and environment, down to `level`, and the environment's current status. */
export function placeOf ({ project, target, environment }: LevelState, level: Level = 'environment'): Place {
  return {
    project_id: project.id,
    target_id: level === 'project' ? null : target?.id,
    environment_id: level === 'environment' ? environment?.id : null,
    status: level === 'environment' ? environment?.status : null
  }
}
