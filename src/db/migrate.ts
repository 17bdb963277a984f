import { setTimeout as pause } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { sql } from 'drizzle-orm'
import { readMigrationFiles, type MigrationMeta } from 'drizzle-orm/migrator'
import type { Row, Sql } from 'postgres'
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
// How often in that time it is said what is waited for.
const SAYINGS = 6
const TURN = 100

/** How a schema is migrated. */
export interface MigrateOptions {
  folder?: string
  /** Another connection, to look who is waited for, and to end the waiting. */
  beside?: Sql
  /** Called now and then with a line that says what is waited for. */
  onWait?: ((line: string) => void) | undefined
  /** Ends what waits, or builds an index; the next start goes on. */
  signal?: AbortSignal | undefined
  /** Milliseconds for which one transaction of somebody else is waited for. */
  patience?: number
}

/**
 * Brings the database to this build's schema, while instances of the release before may be serving on it (0047). Each
 * migration is a transaction, which waits for no lock long, so whoever is ended in the middle is followed by another
 * start. Indexes that are built concurrently, which no transaction can, are dropped first and so made anew. Several
 * starters at once migrate once: the others wait for the first.
 *
 * @param client a client with one connection, used for nothing else meanwhile
 * @throws when the database was migrated by a newer build, or a lock is not to be had; the reason of the signal
 */
export async function migrateSchema (client: Sql, options: MigrateOptions = {}): Promise<void> {
  const { folder = FOLDER, beside, onWait = () => {}, signal, patience = PATIENCE } = options
  const how = { beside, onWait, signal, patience }
  const migrations = readMigrationFiles({ migrationsFolder: folder })
  await lock(client, how)
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
    for (const migration of migrations) if (!applied.has(migration.hash)) await apply(client, migration, how)
  } finally {
    await client`select pg_advisory_unlock(${LOCK})`.catch(() => {})
  }
}

interface How {
  beside: Sql | undefined
  onWait: (line: string) => void
  signal: AbortSignal | undefined
  patience: number
}

// Asked for in turns: an index that is built concurrently waits for every statement that is under way, one that waits
// for this lock too. Whoever has it waits for nobody for long, but may have much to do.
async function lock (client: Sql, { onWait, signal, patience }: How) {
  const isDue = pacemaker(patience)
  for (;;) {
    const [row] = await client`select pg_try_advisory_lock(${LOCK}) as locked`
    if (row!.locked) return
    signal?.throwIfAborted()
    const waited = isDue()
    if (waited !== undefined) {
      const holders = namesOf(await client`
        select pid, usename, application_name from pg_stat_activity where pid in (
          select pid from pg_locks where locktype = 'advisory' and classid = 0 and objid = ${LOCK} and objsubid = 1
            and granted and database = (select oid from pg_database where datname = current_database()))`)
      onWait(`Waiting for ${holders}, which changes the schema (${waited} s)`)
    }
    await pause(TURN)
  }
}

/** Answers the seconds since it was made, when it is time to say something again. */
function pacemaker (patience: number): () => number | undefined {
  const began = performance.now()
  let said = began
  return () => {
    const now = performance.now()
    if (now - said < patience / SAYINGS) return undefined
    said = now
    return Math.round((now - began) / 1000)
  }
}

const namesOf = (sessions: readonly Row[]): string => sessions.length === 0
  ? 'another session'
  : sessions.map(({ pid, usename, application_name: name }) => `session ${pid} (${[usename, name].join(', ')})`).join(', ')

async function apply (client: Sql, { sql, hash, folderMillis }: MigrationMeta, how: How) {
  const { onWait, signal, patience } = how
  const note = (client: Sql) => client`
    insert into drizzle.__drizzle_migrations (hash, created_at) values (${hash}, ${folderMillis})`
  if (sql.some(isConcurrent)) {
    await applyConcurrently(client, sql, how)
    await note(client)
    return
  }
  const isDue = pacemaker(patience)
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
      signal?.throwIfAborted()
      if (performance.now() - began > patience) {
        throw new Error(
          'The schema cannot be changed: somebody holds a table for long, as a dump or a forgotten session does. End that, and start again'
        )
      }
      const waited = isDue()
      if (waited !== undefined) onWait(`Waiting for a table, which another session holds (${waited} s)`)
    }
    await pause(STEP_BACK * (0.5 + Math.random()))
  }
}

// Building takes as long as it takes. What waits for older transactions holds up nobody, and is not begun anew lightly:
// so it waits for each of them once, as long as the patience is.
async function applyConcurrently (client: Sql, statements: string[], { beside, onWait, signal, patience }: How) {
  const [own] = await client`select pg_backend_pid() as pid, set_config('lock_timeout', ${String(patience)}, false)`
  const { pid } = own!
  let last = namesOf([])
  const ended = new AbortController()
  const watching = beside && watch(beside)
  try {
    for (const statement of statements) {
      signal?.throwIfAborted()
      await client.unsafe(statement)
    }
  } catch (error) {
    signal?.throwIfAborted()
    if (codeOf(error) !== LOCK_TIMEOUT) throw error
    throw new Error(
      `The schema cannot be changed: ${last} has had a transaction open for long, as a dump or a forgotten session does. End that, and start again`
    )
  } finally {
    ended.abort()
    await watching
    await client`reset lock_timeout`.catch(() => {})
  }

  async function watch (beside: Sql) {
    const isDue = pacemaker(patience)
    for (;;) {
      await pause(TURN, undefined, { signal: ended.signal }).catch(() => {})
      if (ended.signal.aborted) return
      try {
        // Again and again: one that comes between two statements ends none.
        if (signal?.aborted) await beside`select pg_cancel_backend(${pid})`
        const waited = isDue()
        if (waited === undefined) continue
        const sessions = await beside`
          select pid, usename, application_name from pg_stat_activity where pid = any(pg_blocking_pids(${pid}))`
        if (sessions.length > 0) last = namesOf(sessions)
        onWait(`Building an index${sessions.length > 0 ? `: waiting for ${last}, which has a transaction open` : ''} (${waited} s)`)
      } catch {
        // What is watched goes on.
      }
    }
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
