import { and, asc, count, eq, gt, or, sql, type SQL } from 'drizzle-orm'
import type { PgColumn, PgTable } from 'drizzle-orm/pg-core'
import { AUTHENTICATED, authenticatedColumns, type AuthenticatedTable } from '../db/authenticated.ts'
import { macOf, type Db } from '../db/database.ts'
import { master_key_canaries, organizations } from '../db/tables.ts'

// How a database from before rows were authenticated is brought along: once, in one transaction.

const BATCH = 500

/** Until the end of the transaction, nobody else brings this database along, or begins to serve from it. */
export async function lockCanaries (db: Db): Promise<void> {
  await db.execute(sql`LOCK TABLE ${master_key_canaries} IN SHARE ROW EXCLUSIVE MODE`)
}

/** Until the end of the transaction, nobody writes an authenticated row: what an older build adds afterwards has no MAC. */
export async function lockAuthenticatedTables (db: Db): Promise<void> {
  const tables = Object.values(AUTHENTICATED).map(({ table }) => sql`${table}`)
  await db.execute(sql`LOCK TABLE ${sql.join(tables, sql`, `)} IN SHARE ROW EXCLUSIVE MODE`)
}

/** Gives every row of a table its MAC, and counts them. */
export async function authenticateTable (db: Db, name: AuthenticatedTable): Promise<number> {
  const { table, key, presence } = AUTHENTICATED[name] as unknown as { table: PgTable & Record<string, PgColumn>, key: string[], presence: string[] }
  // What is sealed stays where it is: that it is there is all that is authenticated.
  const present = presence.map((column) => [column, sql<boolean>`${table[column]} IS NOT NULL`])
  const columns = { ...authenticatedColumns(name), ...Object.fromEntries(present) } as Record<string, PgColumn>
  let done = 0
  for (let last: Record<string, unknown> | undefined; ;) {
    const rows = await db.select(columns).from(table).where(last && behind(key.map((column) => [table[column]!, last![column]])))
      .orderBy(...key.map((column) => asc(table[column]!))).limit(BATCH) as Record<string, unknown>[]
    if (rows.length > 0) await writeMacs(db, name, rows)
    done += rows.length
    last = rows.at(-1)
    if (last === undefined || rows.length < BATCH) return done
  }
}

/** Puts MACs beside rows as they are given. */
async function writeMacs (db: Db, name: AuthenticatedTable, rows: readonly Record<string, unknown>[]): Promise<void> {
  const { table, key } = AUTHENTICATED[name] as unknown as { table: PgTable & Record<string, PgColumn>, key: string[] }
  const typed = (column: PgColumn, value: unknown) => sql`${sql.param(value, column)}::${sql.raw(column.getSQLType())}`
  const values = rows.map((row) => sql`(${sql.join([...key.map((column) => typed(table[column]!, row[column])), sql`${macOf(db, name, row as never)}::bytea`], sql`, `)})`)
  const names = sql.raw([...key, 'mac'].join(', '))
  const same = key.map((column) => sql`t.${sql.raw(column)} = v.${sql.raw(column)}`)
  await db.execute(sql`UPDATE ${table} t SET mac = v.mac FROM (VALUES ${sql.join(values, sql`, `)}) v (${names}) WHERE ${sql.join(same, sql` AND `)}`)
}

// Behind a row in the order of its key: one or two columns.
function behind ([first, second]: [PgColumn, unknown][]): SQL | undefined {
  const [column, value] = first!
  return second === undefined ? gt(column, value) : or(gt(column, value), and(eq(column, value), gt(second[0], second[1])))
}

/** The ids of all organizations. */
export async function listOrganizationIds (db: Db): Promise<string[]> {
  return (await db.select({ id: organizations.id }).from(organizations)).map(({ id }) => id)
}

/** Whether there is an organization yet. */
export async function hasOrganizations (db: Db): Promise<boolean> {
  const [row] = await db.select({ rows: count() }).from(organizations)
  return row!.rows > 0
}
