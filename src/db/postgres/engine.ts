import { getTableColumns, type SQL, sql } from 'drizzle-orm'
import type { PgTable } from 'drizzle-orm/pg-core'
import type { Db } from './handle.ts'

/**
 * The kind of database: `postgres` (also the embedded one), or `citus`, where the tables of organizations are
 * distributed over several machines by the organization's id.
 *
 * Citus runs a statement on one machine if each distributed table is restricted by the same organization as a
 * **parameter**. PostgreSQL plans a list of rows better if each row of the list has its organization as a column: with
 * a parameter and outdated statistics it would read all rows of the organization for each row of the list.
 */
export type Engine = 'postgres' | 'citus'

interface Dialect { sqlToQuery (sql: SQL, ...more: unknown[]): unknown }

const engines = new WeakMap<Dialect, () => Engine>()
const dialectOf = (db: Db) => (db as unknown as { dialect: Dialect }).dialect

// The engine of the statement that is being rendered. Rendering is synchronous.
let current: Engine = 'postgres'

/** Makes a handle render its statements for `engine`, which is called for each statement. */
export function setEngine (db: Db, engine: () => Engine): void {
  const dialect = dialectOf(db)
  const render = dialect.sqlToQuery.bind(dialect)
  engines.set(dialect, engine)
  dialect.sqlToQuery = (...args) => {
    current = engine()
    try {
      return render(...args)
    } finally {
      current = 'postgres'
    }
  }
}

/** The engine of a handle or a transaction. */
export const engineOf = (db: Db): Engine => engines.get(dialectOf(db))?.() ?? 'postgres'

/** SQL that depends on the engine. The form is chosen when the statement is rendered. */
export const perEngine = (forms: Record<Engine, SQL>): SQL =>
  sql`${{ getSQL: () => forms[current], shouldOmitSQLParens: () => true }}`

/** The organization of a statement on Citus. On PostgreSQL, a list can have an organization in each row instead. */
export interface OfOrganization { organization_id: string }

const OWN = sql.placeholder('organization_id')

/** Returns `andOwn` for one organization, as a function of the alias of a table. */
export const ownOf = (organizationId: string) => (alias: SQL): SQL =>
  andOwn(sql`${alias}.organization_id`, organizationId)

/** On Citus, ` AND <column> = <organization>`; the values of the statement need `organization_id`. Empty otherwise. */
export const andOwn = (column: SQL, organization: unknown = OWN): SQL =>
  perEngine({ postgres: sql``, citus: sql` AND ${column} = ${organization}::char(26)` })

/**
 * On Citus, a condition with which a SELECT locks single rows of a reference table, of which each node has a copy. The
 * condition is always true and reads a table of the coordinator, so Citus locks the rows of the coordinator's copy.
 * Without the condition, Citus locks the whole table on all nodes, so that locks and changes of other rows wait, even
 * after FOR SHARE. A SELECT that joins a distributed table or a table of the coordinator does not need the condition.
 * Locks of a row in different copies do not exclude each other; an UPDATE of the row waits for all these locks.
 */
export const andRowsAlone = perEngine({
  postgres: sql``, citus: sql` AND EXISTS (SELECT FROM master_key_canaries HAVING true)`
})

/**
 * A subquery with the rows in a JSON parameter, for an UPDATE or INSERT. The rows have `organization_id` and `columns`.
 * On Citus, the statement's organization replaces the organization in the JSON, and the join with
 * `organization_counters` makes an INSERT run on the organization's node.
 */
export const rowsIn = (json: unknown, columns: SQL): SQL => perEngine({
  postgres: sql`SELECT * FROM jsonb_to_recordset(${json}::jsonb) AS its (organization_id char(26), ${columns})`,
  citus: sql`SELECT own.organization_id, its.* FROM organization_counters AS own
    CROSS JOIN jsonb_to_recordset(${json}::jsonb) AS its (${columns}) WHERE own.organization_id = ${OWN}::char(26)`
})

/** A list in the FROM clause: on PostgreSQL by its name, which the statement has defined; on Citus as a subquery. */
export const fromList = (name: string, list: SQL): SQL =>
  perEngine({ postgres: sql.raw(name), citus: sql`(${list}) AS ${sql.raw(name)}` })

/** A value that contains now(), for an UPDATE: Citus refuses now() in CASE and coalesce, but not in a subquery. */
export const withNow = (value: (now: SQL) => SQL): SQL => sql`(SELECT ${value(sql`its.now`)} FROM (SELECT now()) AS its)`

/** Whether a table has a column `organization_id`. On Citus, such tables are distributed, except `LOCAL`. */
export const hasOrganization = (table: PgTable): boolean => 'organization_id' in getTableColumns(table)

/** Divides rows for statements: on Citus by organization, otherwise one part. Empty without rows. */
export function byOrganization<T extends { organization_id: string }> (db: Db, rows: readonly T[]): T[][] {
  if (rows.length === 0) return []
  if (engineOf(db) !== 'citus') return [[...rows]]
  return groups(rows, ({ organization_id }) => organization_id)
}

/** Runs a query for each part of `byOrganization`, with the part as JSON. Returns all rows that it finds. */
export async function findByOrganization<T extends { organization_id: string }, R> (
  db: Db, rows: readonly T[], find: (organization_id: string, json: string) => Promise<R[]>
): Promise<R[]> {
  const found = await Promise.all(byOrganization(db, rows).map((part) =>
    find(part[0]!.organization_id, JSON.stringify(part))))
  return found.flat()
}

/** The rows with equal keys, in the order of their first rows. */
export function groups<T> (rows: readonly T[], keyOf: (row: T) => string): T[][] {
  const found = new Map<string, T[]>()
  for (const row of rows) {
    const group = found.get(keyOf(row))
    if (group === undefined) found.set(keyOf(row), [row])
    else group.push(row)
  }
  return [...found.values()]
}
