import type { SQL } from 'drizzle-orm'
import type { Db } from '../postgres/handle.ts'
import type { AuthenticatedTable } from './authenticated.ts'
import { isAuthentic, type About, type Authenticated } from './authority.ts'

/** The rows of an SQL statement. As with `preparedSql`, timestamps, bigint and numeric are text. */
export async function queryRows<Row> (db: Db, statement: SQL): Promise<Row[]> {
  return await db.execute(statement) as unknown as Row[]
}

/** The row of an SQL statement that always returns one. */
export async function queryRow<Row> (db: Db, statement: SQL): Promise<Row> {
  return (await queryRows<Row>(db, statement))[0]!
}

/** A bigint or numeric, which the driver returns as text. */
export const numberOf = (text: string | null): number | null => text === null ? null : Number(text)

/** The row, unless its MAC does not verify: then it is reported, and treated as missing. */
export function authenticRow<N extends AuthenticatedTable, Row extends Authenticated<N>> (
  db: Db, table: N, row: Row | undefined, about?: About
): Row | undefined {
  return row !== undefined && isAuthentic(db, table, row, about) ? row : undefined
}
