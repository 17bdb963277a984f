import { fileURLToPath } from 'node:url'
import { drizzle } from 'drizzle-orm/postgres-js'
import { migrate } from 'drizzle-orm/postgres-js/migrator'
import { readMigrationFiles } from 'drizzle-orm/migrator'
import type { Sql } from 'postgres'

const FOLDER = fileURLToPath(new URL('../../drizzle', import.meta.url))
const LOCK = 0x57_52_4f_4e // a number of our own among the database's advisory locks

/**
 * Brings the database to this build's schema. Several starters at once migrate once: the others wait for the first.
 *
 * @param client a client with one connection, used for nothing else meanwhile
 * @throws when the database was migrated by a newer build
 */
export async function migrateSchema (client: Sql, migrationsFolder = FOLDER): Promise<void> {
  const known = new Set(readMigrationFiles({ migrationsFolder }).map(migration => migration.hash))
  await client`select pg_advisory_lock(${LOCK})`
  try {
    const [table] = await client`select to_regclass('drizzle.__drizzle_migrations') is not null as found`
    const applied = table?.found ? await client`select hash from drizzle.__drizzle_migrations` : []
    if (applied.some(row => !known.has(row.hash as string))) {
      throw new Error(
        'The database has migrations that this build does not know: start the newer build, or restore a backup'
      )
    }
    // A role that may not make tables can start on a schema that is up to date.
    if (applied.length < known.size) await migrate(drizzle({ client }), { migrationsFolder })
  } finally {
    await client`select pg_advisory_unlock(${LOCK})`.catch(() => {})
  }
}
