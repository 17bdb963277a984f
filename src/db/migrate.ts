import { setTimeout as pause } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { sql } from 'drizzle-orm'
import { readMigrationFiles, type MigrationMeta } from 'drizzle-orm/migrator'
import type { Sql } from 'postgres'
import { codeOf, LOCK_TIMEOUT } from './errors.ts'
import type { Db } from './handle.ts'

const FOLDER = fileURLToPath(new URL('../../drizzle', import.meta.url))
const LOCK = 0x57_52_4f_4e // a number of our own among the database's advisory locks

// As Drizzle's tools know it.
const LEDGER = [
  'create schema if not exists drizzle',
  `create table if not exists drizzle.__drizzle_migrations (
    id serial primary key, hash text not null, created_at bigint)`
]

// Milliseconds. Who waits for a table holds up whoever comes after, which gives up after 1.2 s (`SESSION`): so a
// migration steps back long before that, and tries again.
const LOCK_WAIT = 500
const STEP_BACK = 500
// A dump or a session that was forgotten may hold a table for hours: somebody has to be told.
const PATIENCE = 60_000
const TURN = 100

/**
 * Brings the database to this build's schema, while instances of the release before may be serving on it (0047). Each
 * migration is a transaction, which waits for no lock long, so whoever is ended in the middle is followed by another
 * start. Indexes that are built concurrently, which no transaction can, are dropped first and so made anew. Several
 * starters at once migrate once: the others wait for the first.
 *
 * @param client a client with one connection, used for nothing else meanwhile
 * @throws when the database was migrated by a newer build, or a lock is not to be had
 */
export async function migrateSchema (client: Sql, migrationsFolder = FOLDER): Promise<void> {
  const migrations = readMigrationFiles({ migrationsFolder })
  await lock(client)
  try {
    const [table] = await client`select to_regclass('drizzle.__drizzle_migrations') is not null as found`
    const rows = table?.found ? await client`select hash from drizzle.__drizzle_migrations` : []
    const applied = new Set(rows.map(row => row.hash as string))
    const known = new Set(migrations.map(({ hash }) => hash))
    if (![...applied].every(hash => known.has(hash))) {
      throw new Error(
        'The database has migrations that this build does not know: start the newer build, or restore a backup'
      )
    }
    // A role that may not make tables can start on a schema that is up to date.
    if (applied.size === known.size) return
    for (const statement of LEDGER) await client.unsafe(statement)
    for (const migration of migrations) if (!applied.has(migration.hash)) await apply(client, migration)
  } finally {
    await client`select pg_advisory_unlock(${LOCK})`.catch(() => {})
  }
}

// Asked for in turns: an index that is built concurrently waits for every statement that is under way, one that waits
// for this lock too.
async function lock (client: Sql) {
  for (;;) {
    const [row] = await client`select pg_try_advisory_lock(${LOCK}) as locked`
    if (row!.locked) return
    await pause(TURN)
  }
}

async function apply (client: Sql, { sql, hash, folderMillis }: MigrationMeta) {
  const note = (client: Sql) => client`
    insert into drizzle.__drizzle_migrations (hash, created_at) values (${hash}, ${folderMillis})`
  if (sql.some(isConcurrent)) {
    for (const statement of sql) await client.unsafe(statement)
    await note(client)
    return
  }
  for (const began = performance.now(); ;) {
    try {
      await client.begin(async tx => {
        await tx`select set_config('lock_timeout', ${String(LOCK_WAIT)}, true)`
        for (const statement of sql) await tx.unsafe(statement)
        await note(tx as unknown as Sql)
      })
      return
    } catch (error) {
      if (codeOf(error) !== LOCK_TIMEOUT) throw error
      if (performance.now() - began > PATIENCE) {
        throw new Error(
          'The schema cannot be changed: somebody holds a table for long, as a dump or a forgotten session does. End that, and start again'
        )
      }
    }
    await pause(STEP_BACK * (0.5 + Math.random()))
  }
}

const isConcurrent = (statement: string) =>
  /^\s*(?:create (?:unique )?|drop )index concurrently\b/i.test(statement.replace(/^\s*--.*$/gm, ''))

/** The migrations that made the schema as it is, by their hashes, in their order; none of a database without one. */
export async function listMigrations (db: Db): Promise<string[]> {
  const [table] = await db.execute(sql`SELECT to_regclass('drizzle.__drizzle_migrations') IS NOT NULL AS found`) as
    unknown as [{ found: boolean }]
  if (!table.found) return []
  const rows = await db.execute(sql`SELECT hash FROM drizzle.__drizzle_migrations ORDER BY created_at, id`)
  return (rows as unknown as { hash: string }[]).map(({ hash }) => hash)
}

/** Until the end of the transaction nobody else changes the schema, or starts on it. */
export async function lockSchema (db: Db): Promise<void> {
  await db.execute(sql`SELECT pg_advisory_xact_lock(${LOCK}::bigint)`)
}

/** Whether these are the first migrations that this build knows, so that it can make their schema. */
export const canMakeSchema = (
  hashes: readonly string[], known: readonly MigrationMeta[] = readMigrationFiles({ migrationsFolder: FOLDER })
): boolean => hashes.length > 0 && hashes.every((hash, i) => known[i]?.hash === hash)

/**
 * Makes an empty database what these migrations made of another one, in the caller's transaction. False where this
 * build cannot: then nothing is done.
 */
export async function makeSchema (db: Db, hashes: readonly string[]): Promise<boolean> {
  const known = readMigrationFiles({ migrationsFolder: FOLDER })
  if (!canMakeSchema(hashes, known)) return false
  for (const statement of LEDGER) await db.execute(sql.raw(statement))
  for (const { hash, folderMillis, sql: statements } of known.slice(0, hashes.length)) {
    for (const statement of statements) await db.execute(sql.raw(inTransaction(statement)))
    await db.execute(
      sql`INSERT INTO drizzle.__drizzle_migrations (hash, created_at) VALUES (${hash}, ${folderMillis}::bigint)`
    )
  }
  return true
}

// Nobody waits for an index of a table that is empty, and that nobody else sees.
const inTransaction = (statement: string) =>
  isConcurrent(statement) ? statement.replace(/\bindex concurrently\b/i, 'index') : statement
