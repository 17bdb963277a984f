import { and, eq, getTableColumns, type SQL } from 'drizzle-orm'
import type { PgColumn, PgTable } from 'drizzle-orm/pg-core'
import type { Db } from '../postgres/handle.ts'
import type { AuthenticatedTable } from './authenticated.ts'
import { isAuthentic, type About, type Authenticated } from './authority.ts'

/** As with `preparedSql`, timestamps, bigint and numeric in the rows are text. */
export async function queryRows<Row> (db: Db, statement: SQL): Promise<Row[]> {
  return await db.execute(statement) as unknown as Row[]
}

/** The row of an SQL statement that always returns exactly one row. */
export async function queryRow<Row> (db: Db, statement: SQL): Promise<Row> {
  return (await queryRows<Row>(db, statement))[0]!
}

/** Converts a bigint or numeric, which the driver returns as text. */
export const numberOf = (text: string | null): number | null => text === null ? null : Number(text)

/** Returns the row if its MAC verifies. Otherwise reports the row, and returns undefined. */
export function authenticRow<N extends AuthenticatedTable, Row extends Authenticated<N>> (
  db: Db, table: N, row: Row | undefined, about?: About
): Row | undefined {
  return row !== undefined && isAuthentic(db, table, row, about) ? row : undefined
}

/** A condition: columns of a table equal these values, or these columns of another table. */
export function matching<T extends PgTable> (
  table: T, values: { [C in keyof T['$inferSelect']]?: NonNullable<T['$inferSelect'][C]> | PgColumn | SQL }
): SQL {
  const columns = getTableColumns(table) as Record<string, PgColumn>
  return and(...Object.entries(values).map(([name, value]) => eq(columns[name]!, value)))!
}
