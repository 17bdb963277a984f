import { getTableColumns, sql, type SQL } from 'drizzle-orm'
import type { EnvironmentAttributes, ListedEnvironment } from '../../../schemas/environments.ts'
import type { ListedTarget, TargetAttributes } from '../../../schemas/targets.ts'
import { changedAt } from '../../db/columns.ts'
import {
  macOf, preparedSql, requireAuthentic, tampered, updateAuthentic, type Db
} from '../../db/database.ts'
import {
  LAST_CHANGE, lastChangeOf, lastVersionOfLevel, renewLastVersion, type LastChangeFound
} from '../../db/rows/last-version.ts'
import { shownOf } from '../../db/rows/authenticated.ts'
import { joined } from '../../db/rows/joined.ts'
import { matching } from '../../db/rows/query.ts'
import { environments, project_counts, targets } from '../../db/tables.ts'
import { andSelected, isFiltered, named, orderOf, patternsOf, perSelection } from '../../db/rows/selection.ts'
import { readPage, type NamedPageRequest } from '../../rules/pagination.ts'

/** Targets and environments are the places below a project. */
export type PlaceKind = 'target' | 'environment'
export type Place = (TargetAttributes | EnvironmentAttributes) & { id: string }
export type ListedPlace = (ListedTarget | ListedEnvironment) & { id: string }

type Columns = typeof environments.$inferSelect

/** The columns of a new place. Only environments have the optional columns. */
export type NewPlace = Pick<Columns, 'id' | 'organization_id' | 'project_id' | 'name' | 'slug' | 'description'> &
  Partial<Pick<Columns, 'target_id' | 'status' | 'is_production'>>
type Changes = { [C in 'name' | 'slug' | 'description' | 'status' | 'is_production']?: NewPlace[C] | undefined }

type Row = Readonly<Record<string, unknown>>
type ListedRow = Row & LastChangeFound & { total: number }

const TABLES = { target: targets, environment: environments }
const COLUMNS = {
  target: joined('p', getTableColumns(targets)), environment: joined('p', getTableColumns(environments))
}
const NAMES = { target: 'targets', environment: 'environments' } as const

// `parent` joins the row `c` of the parent, whose stored count is the `total` of a list without filters.
function statements (
  kind: PlaceKind, { total, parent, key }: Record<'total' | 'parent' | 'key', SQL>
) {
  const columns = COLUMNS[kind].selected
  const one = preparedSql<Row, { organization_id: string, id: string }>(kind, ($) => sql`
    SELECT ${columns} FROM ${TABLES[kind]} p
    WHERE p.organization_id = ${$('organization_id')}::char(26) AND p.id = ${$('id')}::char(26)`)
  const P = named(sql`p`)
  const list = perSelection((selection) =>
    preparedSql<ListedRow, Record<string, unknown>>(NAMES[kind], ($) => {
      const which = sql`p.organization_id = ${$('organization_id')}::char(26) AND ${key} = ${$('parent')}::char(26)${
        andSelected(selection, P, $)}`
      const count = sql`(SELECT count(*)::int FROM ${TABLES[kind]} p WHERE ${which})`
      const order = sql`ORDER BY ${orderOf(selection, P, sql`p.slug`)}`
      // Selects the page in a subquery, so that the query looks up the last version only for rows of the page.
      return sql`
        SELECT p.total, ${columns}, ${LAST_CHANGE} FROM (
          SELECT ${isFiltered(selection) ? count : total} AS total, p.* FROM ${TABLES[kind]} p JOIN ${parent}
          WHERE ${which} ${order} LIMIT ${$('limit')}::int OFFSET ${$('offset')}::bigint
        ) p ${lastVersionOfLevel} ${order}`
    }))
  return { one, list }
}

const STATEMENTS = {
  target: statements('target', {
    total: sql`c.target_count`,
    parent: sql`project_counts c ON c.organization_id = p.organization_id AND c.project_id = p.project_id`,
    key: sql`p.project_id`
  }),
  environment: statements('environment', {
    total: sql`c.environment_count`,
    parent: sql`targets c ON c.organization_id = p.organization_id AND c.id = p.target_id`,
    key: sql`p.target_id`
  })
}

function toPlace (db: Db, kind: PlaceKind, row: Row): Place {
  const place = COLUMNS[kind].read(row)
  requireAuthentic(db, NAMES[kind], place as never)
  return shownOf(NAMES[kind], place as never) as unknown as Place
}

function toListed (db: Db, kind: PlaceKind, listed: ListedRow): ListedPlace {
  return Object.assign(toPlace(db, kind, listed), { last_change: lastChangeOf(listed) })
}

/** Throws TamperedRow. */
export async function findPlace (
  db: Db, kind: PlaceKind, organization_id: string, id: string
): Promise<Place | undefined> {
  const [row] = await STATEMENTS[kind].one(db, { organization_id, id })
  return row && toPlace(db, kind, row)
}

/** A page of the targets of a project or environments of a target, by default sorted by slug. Throws TamperedRow. */
export async function listPlaces (
  db: Db, kind: PlaceKind, organization_id: string, parent: string, page: NamedPageRequest
): Promise<{ rows: ListedPlace[], total: number }> {
  const list = STATEMENTS[kind].list(page)
  const values = { organization_id, parent, ...patternsOf(page) }
  const { rows, total } = await readPage(page, (part) => list(db, { ...values, ...part }))
  return { rows: rows.map((row) => toListed(db, kind, row)), total }
}

/** Throws a unique violation if the slug is taken. */
export async function createPlace (db: Db, kind: PlaceKind, place: NewPlace): Promise<void> {
  await db.insert(TABLES[kind]).values({ ...place, mac: macOf(db, NAMES[kind], place as never) } as never)
  await countBelow(db, kind, place, { places: 1, environments: 0, documents: 0 })
}

export async function updatePlace (
  db: Db, kind: PlaceKind, organization_id: string, id: string, changes: Changes
): Promise<void> {
  const table = TABLES[kind]
  const its = matching(table, { organization_id, id })
  const updated_at = changedAt(table.updated_at, changes)
  await updateAuthentic(db, NAMES[kind], its, { ...changes, updated_at }) ?? tampered()
}

/** Deletes a place and everything below it. Before, the caller locks the project and calls `removeHistories`. */
export async function deletePlace (
  db: Db, kind: PlaceKind, place: Pick<NewPlace, 'id' | 'organization_id' | 'project_id' | 'target_id'>,
  documents: number
): Promise<void> {
  const { organization_id, id } = place
  const below = kind === 'target' ? sql<number>`${targets.environment_count}` : sql<number>`0`
  const table = TABLES[kind]
  const [gone] = await db.delete(table).where(matching(table, { organization_id, id })).returning({ below })
  await countBelow(db, kind, place, { places: -1, environments: -gone!.below, documents: -documents })
  await renewLastVersion(db, organization_id, place.project_id)
}

// Changes the stored counts of the project. For an environment, also changes the counts of its target.
async function countBelow (
  db: Db, kind: PlaceKind,
  { organization_id, project_id, target_id }: Pick<NewPlace, 'organization_id' | 'project_id' | 'target_id'>,
  { places, documents, ...more }: { places: number, environments: number, documents: number }
): Promise<void> {
  if (target_id !== undefined) {
    await db.update(targets).set({
      environment_count: sql`${targets.environment_count} + ${places}`,
      secret_count: sql`${targets.secret_count} + ${documents}`
    }).where(matching(targets, { organization_id, id: target_id }))
  }
  await db.update(project_counts).set({
    target_count: sql`${project_counts.target_count} + ${kind === 'target' ? places : 0}`,
    environment_count: sql`${project_counts.environment_count} + ${kind === 'target' ? more.environments : places}`,
    secret_count: sql`${project_counts.secret_count} + ${documents}`
  }).where(matching(project_counts, { organization_id, project_id }))
}
