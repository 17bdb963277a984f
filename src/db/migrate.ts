import { setTimeout as pause } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { sql } from 'drizzle-orm'
import { readMigrationFiles, type MigrationMeta } from 'drizzle-orm/migrator'
import { drizzle } from 'drizzle-orm/postgres-js'
import type { Sql } from 'postgres'
import { mergePlaced, NOTHING_PLACED, requireCoordinator, runStatements, type Placed } from './citus/placement.ts'
import { codeOf, LOCK_TIMEOUT } from './postgres/database-errors.ts'
import type { Db } from './postgres/handle.ts'

const FOLDER = fileURLToPath(new URL('../../drizzle', import.meta.url))
const SCHEMA_LOCK = 0x57_52_4f_4e

const JOURNAL = [
  'CREATE SCHEMA IF NOT EXISTS drizzle',
  `CREATE TABLE IF NOT EXISTS drizzle.__drizzle_migrations (
    id serial PRIMARY KEY, hash text NOT NULL, created_at bigint)`
]

// Short, because statements of running instances queue behind a waiting migration, and fail after 1.2 s (`SESSION`).
const TABLE_LOCK_TIMEOUT_MS = 500
const RETRY_MS = 500
// Give up after a minute, because a dump or a forgotten session may hold a table lock for hours.
const RETRY_TIMEOUT_MS = 60_000
const SCHEMA_LOCK_POLL_MS = 100
const WAIT_MESSAGES_PER_TIMEOUT = 6

/** Observes a migration; numbers start at 1. */
export interface MigrationSteps {
  onMigration (number: number, total: number, statements: number): void
  onStatement (): void
}

export interface MigrateOptions {
  folder?: string
  /** Called from time to time with a progress message while the migration waits. */
  onWait?: ((line: string) => void) | undefined
  /** Ends the wait for a lock, and the build of an index. */
  signal?: AbortSignal | undefined
  /** Observes migrations and their statements. An error that it throws rolls back the migration. */
  steps?: MigrationSteps | undefined
  /** Maximum wait for a table lock in milliseconds. */
  timeout?: number
}

/** The database was created by an unreleased build, and cannot be migrated. */
export class UnreleasedDatabase extends Error {
  override name = 'UnreleasedDatabase'

  constructor () {
    super('This database was made by an unreleased build of Strongroom and cannot be upgraded. ' +
      'Start with an empty database.')
  }
}

/**
 * Migrates the database to this build's schema. Instances of the previous release may run meanwhile (decision 0047).
 * Each migration is one transaction, or builds indexes concurrently and can be repeated, so the next start continues
 * after an interruption. If several instances start at once, one migrates and the others wait.
 *
 * @param client a client with a single connection, which nothing else uses during the migration
 * @throws UnreleasedDatabase; an Error if a newer build has migrated the database, or if the wait for a table lock
 *   times out; `signal.reason` if the signal is aborted during a wait; CitusError
 * @returns what was done on the nodes of a Citus cluster
 */
export async function migrateSchema (client: Sql, options: MigrateOptions = {}): Promise<Placed> {
  const { folder = FOLDER, onWait = () => {}, signal, steps, timeout = RETRY_TIMEOUT_MS } = options
  const how = { onWait, signal, steps, timeout }
  const known = readMigrationFiles({ migrationsFolder: folder })
  await lock(client, how)
  try {
    const db = drizzle({ client }) as unknown as Db
    const applied = await readJournal(db, known)
    if (applied.some((hash) => !known.some((migration) => migration.hash === hash))) {
      throw new Error(
        'The database has migrations that this build does not know: start the newer build, or restore a backup'
      )
    }
    // Returns before any DDL, so that a role without CREATE privileges can start on an up-to-date schema.
    if (applied.length === known.length) return NOTHING_PLACED
    await requireCoordinator(db)
    for (const statement of JOURNAL) await client.unsafe(statement)
    let placed = NOTHING_PLACED
    const due = known.filter(({ hash }) => !applied.includes(hash))
    for (const [i, migration] of due.entries()) {
      steps?.onMigration(i + 1, due.length, migration.sql.length)
      if (isConcurrent(migration)) await applyConcurrently(client, db, migration, how)
      else placed = mergePlaced(placed, await apply(db, migration, how))
    }
    return placed
  } finally {
    await client`SELECT pg_advisory_unlock(${SCHEMA_LOCK})`.catch(() => {})
  }
}

type How = Required<Pick<MigrateOptions, 'onWait' | 'timeout'>> & Pick<MigrateOptions, 'signal' | 'steps'>

// Takes the migration lock. Polls, so that the signal can end the wait. Waits without a limit, because the lock's owner
// may have many migrations to apply. `timeout` only determines how often `onWait` is called.
async function lock (client: Sql, { onWait, signal, timeout }: How) {
  const isMessageDue = createPacer(timeout)
  for (;;) {
    const [row] = await client`SELECT pg_try_advisory_lock(${SCHEMA_LOCK}) AS locked`
    if (row!.locked) return
    signal?.throwIfAborted()
    const waited = isMessageDue()
    if (waited !== undefined) {
      const holders = await client`
        SELECT pid, usename, application_name AS name FROM pg_stat_activity WHERE pid IN (
          SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = ${SCHEMA_LOCK}
            AND objsubid = 1 AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`
      const names = holders.map(({ pid, usename, name }) => `session ${pid} (${[usename, name].join(', ')})`)
      onWait(`Waiting for ${names.join(', ') || 'another session'}, which changes the schema (${waited} s)`)
    }
    await pause(SCHEMA_LOCK_POLL_MS)
  }
}

/** The returned function returns the elapsed seconds if a message is due, else undefined. */
function createPacer (timeout: number): () => number | undefined {
  const began = performance.now()
  let last = began
  return () => {
    const now = performance.now()
    if (now - last < timeout / WAIT_MESSAGES_PER_TIMEOUT) return undefined
    last = now
    return Math.round((now - began) / 1000)
  }
}

async function apply (db: Db, migration: MigrationMeta, { onWait, signal, steps, timeout }: How): Promise<Placed> {
  const isMessageDue = createPacer(timeout)
  for (const began = performance.now(); ;) {
    try {
      return await db.transaction(async (tx) => {
        await tx.execute(sql`SELECT set_config('lock_timeout', ${String(TABLE_LOCK_TIMEOUT_MS)}, true)`)
        const placed = await runStatements(tx, migration.sql, steps?.onStatement)
        await recordMigration(tx, migration)
        return placed
      })
    } catch (error) {
      if (codeOf(error) !== LOCK_TIMEOUT) throw error
      signal?.throwIfAborted()
      if (performance.now() - began > timeout) {
        throw new Error('The schema cannot be changed: another session holds a table lock for long, ' +
          'as a dump or a forgotten session does. End that session, and start again')
      }
      const waited = isMessageDue()
      if (waited !== undefined) onWait(`Waiting for a table, which another session holds (${waited} s)`)
    }
    await pause(RETRY_MS * (0.5 + Math.random()))
  }
}

const CONCURRENTLY = /^(\s*(?:CREATE(?: UNIQUE)?|DROP) INDEX) CONCURRENTLY\b/i
const isConcurrent = ({ sql }: MigrationMeta) => sql.some((statement) => CONCURRENTLY.test(statement))
const MESSAGE_MS = 1_000

/**
 * Builds indexes without locking their tables, outside of a transaction. The statements first drop what an interrupted
 * build left. A build waits once for each older transaction, at most `timeout`; the build itself has no time limit.
 */
async function applyConcurrently (
  client: Sql, db: Db, migration: MigrationMeta, { onWait, signal, steps, timeout }: How
): Promise<void> {
  const isMessageDue = createPacer(timeout)
  const messages = setInterval(() => {
    const waited = isMessageDue()
    if (waited !== undefined) onWait(`Building an index, or waiting for transactions that began before (${waited} s)`)
  }, MESSAGE_MS)
  try {
    await client`SELECT set_config('lock_timeout', ${String(timeout)}, false)`
    for (const statement of migration.sql) {
      signal?.throwIfAborted()
      const building = client.unsafe(statement)
      const cancel = () => { building.cancel() }
      signal?.addEventListener('abort', cancel)
      try {
        await building
      } finally {
        signal?.removeEventListener('abort', cancel)
      }
      steps?.onStatement()
    }
    await recordMigration(db, migration)
  } catch (error) {
    signal?.throwIfAborted()
    if (codeOf(error) !== LOCK_TIMEOUT) throw error
    throw new Error('An index cannot be built: another session has a transaction open for long, ' +
      'as a dump or a forgotten session does. End that session, and start again')
  } finally {
    clearInterval(messages)
    await client`RESET lock_timeout`.catch(() => {})
  }
}

/** Hashes of the applied migrations, oldest first. Empty if there is no journal. */
export async function listMigrations (db: Db): Promise<string[]> {
  if (!await hasTable(db, 'drizzle.__drizzle_migrations')) return []
  const rows = await db.execute(sql`SELECT hash FROM drizzle.__drizzle_migrations ORDER BY created_at, id`)
  return (rows as unknown as { hash: string }[]).map(({ hash }) => hash)
}

async function hasTable (db: Db, name: string): Promise<boolean> {
  const [row] = await db.execute(sql`SELECT to_regclass(${name}) IS NOT NULL AS found`) as unknown as
    [{ found: boolean }]
  return row.found
}

const readKnown = () => readMigrationFiles({ migrationsFolder: FOLDER })

/** Whether these migrations are from an unreleased build: they do not contain the baseline migration. */
export const areUnreleased = (hashes: readonly string[], [baseline] = readKnown()): boolean =>
  hashes.length > 0 && !hashes.includes(baseline!.hash)

// Checks for a table before it reads the journal. In the other order, another instance could commit its first migration
// between the two queries. The database would then seem to be of an unreleased build, which has tables but no journal.
async function readJournal (db: Db, known: MigrationMeta[]): Promise<string[]> {
  const hasTables = await hasTable(db, 'public.master_key_canaries')
  const applied = await listMigrations(db)
  if (areUnreleased(applied, known) || (hasTables && applied.length === 0)) throw new UnreleasedDatabase()
  return applied
}

/** Throws UnreleasedDatabase for a database of an unreleased build. Changes nothing. */
export async function refuseUnreleased (db: Db): Promise<void> {
  await readJournal(db, readKnown())
}

/** Takes the migration lock until the end of the transaction. */
export async function lockSchema (db: Db): Promise<void> {
  await db.execute(sql`SELECT pg_advisory_xact_lock(${SCHEMA_LOCK}::bigint)`)
}

/** Whether the hashes are the first migrations of this build, so that `makeSchema` can create their schema. */
export const canMakeSchema = (hashes: readonly string[], known = readKnown()): boolean =>
  hashes.length > 0 && hashes.every((hash, i) => known[i]?.hash === hash)

/** Creates the schema of these migrations in an empty database. Returns false if this build does not know them. */
export async function makeSchema (db: Db, hashes: readonly string[]): Promise<boolean> {
  const known = readKnown()
  if (!canMakeSchema(hashes, known)) return false
  for (const statement of JOURNAL) await db.execute(sql.raw(statement))
  for (const migration of known.slice(0, hashes.length)) {
    // No other session uses the new tables, so their indexes need not be built concurrently.
    await runStatements(db, migration.sql.map((statement) => statement.replace(CONCURRENTLY, '$1')))
    await recordMigration(db, migration)
  }
  return true
}

async function recordMigration (db: Db, { hash, folderMillis }: MigrationMeta): Promise<void> {
  await db.execute(
    sql`INSERT INTO drizzle.__drizzle_migrations (hash, created_at) VALUES (${hash}, ${folderMillis}::bigint)`
  )
}
