import { and, asc, eq, gt, or, sql, type SQL } from 'drizzle-orm'
import type { PgColumn, PgTable } from 'drizzle-orm/pg-core'
import { CONSOLE_CLIENT } from '../../../schemas/console.ts'
import {
  AUTHENTICATED, authenticatedColumns, type AuthenticatedRow, type AuthenticatedTable
} from '../../db/rows/authenticated.ts'
import { macOf, verifies, type Db } from '../../db/database.ts'
import { oauth_clients, organizations } from '../../db/tables.ts'

const BATCH = 500

/** The rows that the first migration inserts into tables with MACs. */
const SEEDED_CLIENTS: AuthenticatedRow<'oauth_clients'>[] = [
  {
    id: 'dotenv-cli',
    name: 'Command line',
    redirect_uris: ['http://localhost/callback', 'http://127.0.0.1/callback'],
    is_first_party: true,
    disabled_at: null
  },
  {
    id: 'swagger-ui',
    name: 'API documentation',
    redirect_uris: ['/docs/static/oauth2-redirect.html'],
    is_first_party: true,
    disabled_at: null
  },
  { id: CONSOLE_CLIENT, name: 'Console', redirect_uris: ['/console/'], is_first_party: true, disabled_at: null }
]

/**
 * Stores MACs for the seeded rows of an empty database. Computes the MACs from the constants above, not from the stored
 * rows. Returns false if a stored row differs from its constant, or if there is an organization or another row in a
 * table with MACs. The caller then rolls back.
 */
export async function authenticateSeeds (db: Db): Promise<boolean> {
  for (const client of SEEDED_CLIENTS) {
    await db.update(oauth_clients).set({ mac: macOf(db, 'oauth_clients', client) }).where(eq(oauth_clients.id, client.id))
  }
  const clients = await db.select(authenticatedColumns('oauth_clients')).from(oauth_clients)
  if (clients.length !== SEEDED_CLIENTS.length || !clients.every((client) => verifies(db, 'oauth_clients', client))) {
    return false
  }
  for (const table of [organizations, ...Object.values(AUTHENTICATED).map(({ table }): PgTable => table)]) {
    if (table === oauth_clients) continue
    if ((await db.select({ row: sql`1` }).from(table).limit(1)).length > 0) return false
  }
  return true
}

/**
 * Returns the number of rows with a valid MAC. Calls `onRow` for each row, and `tell` for each row with a wrong MAC.
 */
export async function verifyTable (
  db: Db, name: AuthenticatedTable, tell: (row: Record<string, unknown>) => void, onRow: () => void
): Promise<number> {
  let authentic = 0
  for await (const rows of readAuthenticated(db, name)) {
    for (const row of rows) {
      onRow()
      // Rows that can never be valid again, such as revoked grants, have no MAC.
      if (row.mac === null) continue
      if (verifies(db, name, row as never)) authentic++
      else tell(row)
    }
  }
  return authentic
}

/** Reads the columns that the MAC covers from the rows that match `where`, in batches sorted by the key. */
export async function * readAuthenticated (
  db: Db, name: AuthenticatedTable, where?: SQL
): AsyncGenerator<Record<string, unknown>[]> {
  const { table, key, presence } = AUTHENTICATED[name] as unknown as {
    table: PgTable & Record<string, PgColumn>
    key: string[]
    presence: string[]
  }
  // For a sealed column, the MAC covers only whether the column has a value.
  const present = presence.map((column) => [column, sql<boolean>`${table[column]} IS NOT NULL`])
  const columns = { ...authenticatedColumns(name), ...Object.fromEntries(present) } as Record<string, PgColumn>
  const order = key.map((column) => table[column]!)
  for (let last: Record<string, unknown> | undefined; ;) {
    const rows = await db.select(columns).from(table)
      .where(and(where, last && after(order, key.map((column) => last![column]))))
      .orderBy(...order.map((column) => asc(column))).limit(BATCH) as Record<string, unknown>[]
    last = rows.at(-1)
    if (last === undefined) return
    yield rows
    if (rows.length < BATCH) return
  }
}

// A condition for rows after the row with these key values, in key order.
function after (key: readonly PgColumn[], values: readonly unknown[]): SQL | undefined {
  return key.reduceRight<SQL | undefined>((rest, column, i) =>
    or(gt(column, values[i]), rest && and(eq(column, values[i]), rest)), undefined)
}
