import { sql, type SQL } from 'drizzle-orm'
import type { PgColumn, PgTable } from 'drizzle-orm/pg-core'
import { AUTHENTICATED, type AuthenticatedTable } from '../../src/db/rows/authenticated.ts'
import { macOf, type Db } from '../../src/db/database.ts'
import { readAuthenticated } from '../../src/repositories/keys/authenticated-rows.ts'

/** Gives rows that a test wrote with SQL valid MACs, as if the service had written the rows. */
export async function authenticateTable (db: Db, name: AuthenticatedTable, where?: SQL): Promise<void> {
  const { table, key } = AUTHENTICATED[name] as unknown as { table: PgTable & Record<string, PgColumn>, key: string[] }
  const typed = (column: PgColumn, value: unknown) => sql`${sql.param(value, column)}::${sql.raw(column.getSQLType())}`
  const names = sql.raw([...key, 'mac'].join(', '))
  const same = key.map((column) => sql`t.${sql.raw(column)} = v.${sql.raw(column)}`)
  for await (const rows of readAuthenticated(db, name, where)) {
    const values = rows.map((row) => sql`(${sql.join([
      ...key.map((column) => typed(table[column]!, row[column])), sql`${macOf(db, name, row as never)}::bytea`
    ], sql`, `)})`)
    await db.execute(sql`UPDATE ${table} t SET mac = v.mac FROM (VALUES ${sql.join(values, sql`, `)}) v (${names})
      WHERE ${sql.join(same, sql` AND `)}`)
  }
}
