import path from 'node:path'
import { drizzle } from 'drizzle-orm/postgres-js'
import postgres, { type Options, type Sql } from 'postgres'
import { findAuthority, setAuthority, type RowAuthority } from './authority.ts'
import { openEmbedded } from './embedded.ts'
import { codeOf, databaseError, DatabaseUnavailable } from './errors.ts'
import { createPool, guard, type Pool } from './guard.ts'
import type { Db } from './handle.ts'
import { migrateSchema } from './migrate.ts'
import { BY_INDEX, MEANING, WALKING } from './session.ts'
import { tlsOf } from './tls.ts'
import { areWaitsPaused } from './wait-clock.ts'

export {
  codeOf, databaseError, DatabaseError, DatabaseUnavailable, isAway, isAwayForAll, isForeignKeyViolation, isLockTimeout,
  isUndone, isUniqueViolation, LOCK_TIMEOUT, neverSent
} from './errors.ts'
export type { Pool } from './guard.ts'
export type { Db } from './handle.ts'
export { askForCopy, tellHolder } from './copies.ts'
export { hasCluster, NoRoom } from './embedded.ts'
export { DirectoryLocked, lockDirectory, removeUnheld } from './lock.ts'
export {
  authorityOf, findAuthority, isAuthentic, lookupHash, macOf, readNow, requireAuthentic, setAuthority, tampered,
  TamperedRow, updateAuthentic, verifies, type Authenticated, type RowAuthority, type Violation, type ViolationLog
} from './authority.ts'
export { isKeyOf, isOneOf, isOneOfOrganization, lookUp, rowsOf } from './lists.ts'
export { prepared, preparedSql, withMoments, type Raw, type Value } from './prepared.ts'
export { TlsError, tlsOf } from './tls.ts'
export { transaction, type Answering, type Asking } from './transaction.ts'

/** An open database. */
export interface Database {
  /** For writes, transactions and everything that may take long. */
  db: Db
  /** For short prepared reads of one statement, which share few connections. */
  reads: Db
  /**
   * For lists and counts, which somebody with much data can make long: on connections of their own, which walk indexes.
   */
  lists: Db
  /**
   * For pages that an index bounds: short, so that several at once share a connection, which nothing long is sent on.
   */
  pages: Db
  /** For what nobody waits for: each statement is planned for its values. */
  background: Db
  /**
   * For the few transactions that grow with a project: two at a time, one where there is one connection for writes, and
   * a minute long at most. Each statement stays short.
   */
  longTransactions: Db
  kind: 'postgres' | 'embedded'
  /** Where it is, for the operator: servers and name, or a directory; who connects, and how, is never in it. */
  where: string
  /** Who uses each handle, and who waits for it. */
  pools: Readonly<Record<string, Pool>>
  /** Gives all handles what makes and checks the MACs of rows. */
  authenticate (authority: RowAuthority): void
  /** A transaction of any length, for what is done once, before the service serves; `what` the database does then. */
  maintain<T> (fn: (db: Db) => Promise<T>, what?: string): Promise<T>
  /** The same to read alone: all of it sees the database as it is at its first statement but locks. */
  snapshot<T> (fn: (db: Db) => Promise<T>): Promise<T>
  /** Brings the schema to this build's version; what waits for others is ended by the signal, with its reason. */
  migrate (signal?: AbortSignal): Promise<void>
  /** Answers when the database does, or throws DatabaseUnavailable after about two seconds. */
  ping (): Promise<void>
  close (): Promise<void>
}

/** Where the database is. */
export interface ConnectOptions {
  /** A PostgreSQL URL. Without it the embedded database is used. */
  url?: string | undefined
  /** The embedded database's directory. */
  dir?: string | undefined
  /** Connections to PostgreSQL in all, two at least. */
  pool: number
  /** False for an embedded database that nobody misses after a power cut: it never waits for the disk. */
  durable?: boolean | undefined
  /** Called when only a restart of the process can help. */
  onFatal?: ((error: Error) => void) | undefined
  /** Called with a line that says what is waited for, when a database takes long to open or to migrate. */
  onWait?: ((line: string) => void) | undefined
  /** Called with the JSON that another process tells who has the embedded database open. */
  onTold?: ((told: string) => Promise<void>) | undefined
}

const PING_DEADLINE = 2_000
// Milliseconds that a long transaction takes at most, and waits for its turn.
const LONG_DEADLINE = 60_000
// Requests that wait for the only connection while a long transaction has it.
const MAX_WAITING_FOR_ALL = 2_000
const CLOSE_SECONDS = 5
// Seconds that one statement may take in work without a deadline, so that a hanging server or network ends it: reading
// a page, and migrating or restoring.
const READING = 120
const CHANGING = 3600

// Milliseconds. A statement ends before its caller's deadline, so that giving up leaves nothing running on the server.
// Waiting for a lock ends after the server has looked for a deadlock (deadlock_timeout, 1 s), which would be tried
// again
const SESSION = {
  ...BY_INDEX,
  default_transaction_isolation: 'read committed',
  statement_timeout: 3000,
  lock_timeout: 1200,
  idle_in_transaction_session_timeout: 5000
}
const SNAPSHOT = { isolationLevel: 'repeatable read', accessMode: 'read only' } as const
const FOR_LISTS = { ...SESSION, ...WALKING }

// fetch_types would run a statement of its own on each new connection, for arrays only.
// The driver's own pause between attempts grows to 20 s, long after the database is back.
const COMMON = {
  fetch_types: false, max_lifetime: null, keep_alive: 10, backoff: () => 0.05 + Math.random() / 5, onnotice: () => {}
}

/**
 * Connects to PostgreSQL, or opens the embedded database.
 *
 * @throws DirectoryLocked when another process has the embedded database's directory
 */
export async function connect (options: ConnectOptions): Promise<Database> {
  return options.url ? connectPostgres(options.url, options) : await connectEmbedded(options)
}

function connectPostgres (databaseUrl: string, { pool, onWait }: ConnectOptions): Database {
  const { url, ssl } = tlsOf(databaseUrl)
  const client = (max: number, more: object = {}, session: object = SESSION) => postgres(url, {
    ...COMMON,
    ssl,
    max,
    connect_timeout: 3,
    silence_timeout: 4,
    ...more,
    connection: { application_name: 'strongroom', ...MEANING, ...session }
  } as Options<{}>)
  // A quarter each, three at most. Of two connections, what is long may wait for what is long: lists share that of the
  // writes
  const some = Math.max(1, Math.min(3, Math.floor(pool / 4)))
  const shared = pool < 3
  const paged = some > 1
  const forWrites = Math.max(1, pool - (shared ? 1 : 2) * some - (paged ? 1 : 0))
  const writes = client(forWrites, {}, shared ? FOR_LISTS : SESSION)
  const reads = client(some)
  const lists = shared ? writes : client(some, {}, FOR_LISTS)
  const pages = paged ? client(1, {}, FOR_LISTS) : lists

  // On a connection of its own, without a deadline, as long as no statement takes longer than this.
  async function alone<T> (silence: number, work: (client: Sql) => Promise<T>): Promise<T> {
    const own = client(1, { silence_timeout: silence }, {})
    try {
      return await work(own)
    } catch (error) {
      throw databaseError(error)
    } finally {
      await own.end({ timeout: CLOSE_SECONDS })
    }
  }

  const { host, port, database } = writes.options
  const isAlone = forWrites === 1
  const maxWaiting = isAlone ? MAX_WAITING_FOR_ALL : undefined
  const pools = {
    db: createPool(forWrites, maxWaiting),
    // Reads are pipelined: several at once on one connection
    reads: createPool(some * 50),
    lists: createPool(some),
    // So are pages, a few: each waits for those before it
    pages: createPool(paged ? 16 : some),
    background: createPool(Math.min(2, forWrites)),
    longTransactions: createPool(isAlone ? 1 : Math.min(2, forWrites - 1))
  }
  const handles = {
    db: handle(guard(writes, { pool: pools.db, prepare: true })),
    reads: handle(guard(reads, { pool: pools.reads, prepare: true })),
    lists: handle(guard(lists, { pool: pools.lists, prepare: true })),
    pages: handle(guard(pages, { pool: pools.pages, prepare: true })),
    background: handle(guard(writes, { pool: pools.background, prepare: false })),
    longTransactions: handle(guard(writes, {
      pool: pools.longTransactions, deadline: LONG_DEADLINE, patience: LONG_DEADLINE, isAlone, prepare: false
    }))
  }
  return {
    ...handles,
    kind: 'postgres',
    where: `${host.map((name, i) => `${name}:${port[i]}`).join(',')}/${database}`,
    pools,
    authenticate: authority => authenticate(handles, authority),
    maintain: fn => alone(CHANGING, client => handle(client).transaction(async tx => await fn(tx))),
    snapshot: fn => alone(READING, client => handle(client).transaction(async tx => await fn(tx), SNAPSHOT)),
    migrate: signal => alone(CHANGING, client => migrateSchema(client, { onWait, signal })),
    ping: () => ping(reads),
    close: async () => {
      await findAuthority(handles.db)?.settled()
      await Promise.all([...new Set([writes, reads, lists, pages])].map(client =>
        client.end({ timeout: CLOSE_SECONDS })))
    }
  }
}

async function connectEmbedded (
  { dir, durable, onFatal = () => {}, onWait, onTold }: ConnectOptions
): Promise<Database> {
  if (!dir) throw new Error('A database URL or a directory is needed')
  let opened = false
  const embedded = await openEmbedded({
    dir, durable, onWait, onTold, onFatal: error => { if (opened) onFatal(error) }
  })
  const client = postgres({
    ...COMMON,
    socket: embedded.socket,
    max: 1,
    connect_timeout: 60,
    // The worker is watched instead
    silence_timeout: null,
    host: 'embedded',
    user: 'postgres',
    database: 'postgres',
    connection: { application_name: 'strongroom' }
  } as Options<{}>)

  // After it was refused space once, this PostgreSQL does not answer any more. A restart finds all that was
  // acknowledged
  const full = (error: unknown) => { if (/^(53100|58030)$/.test(codeOf(error) ?? '')) onFatal(databaseError(error)) }
  const pools = {
    db: createPool(1, MAX_WAITING_FOR_ALL), background: createPool(1), longTransactions: createPool(1)
  }
  const db = handle(guard(client, { pool: pools.db, onError: full, prepare: true }))

  async function close () {
    await findAuthority(db)?.settled()
    await client.end({ timeout: CLOSE_SECONDS })
    await embedded.close()
  }

  try {
    await client`select 1`
  } catch (error) {
    await close()
    throw error
  }
  opened = true
  const background = handle(guard(client, { pool: pools.background, onError: full, prepare: false }))
  const longTransactions = handle(guard(client, {
    pool: pools.longTransactions,
    onError: full,
    deadline: LONG_DEADLINE,
    patience: LONG_DEADLINE,
    isAlone: true,
    prepare: false
  }))
  const handles = { db, reads: db, lists: db, pages: db, background, longTransactions }
  return {
    ...handles,
    kind: 'embedded',
    where: path.resolve(dir),
    pools,
    authenticate: authority => authenticate(handles, authority),
    maintain: (fn, what = 'authenticates its rows') => embedded.patiently(what, () =>
      handle(client).transaction(async tx => await fn(tx)))
      .catch(error => { throw databaseError(error) }),
    snapshot: fn => embedded.patiently('is read', () =>
      handle(client).transaction(async tx => await fn(tx), SNAPSHOT))
      .catch(error => { throw databaseError(error) }),
    migrate: () => embedded.patiently('changes the schema', () => migrateSchema(client)).catch(error => {
      throw databaseError(error)
    }),
    ping: () => ping(client),
    close
  }
}

function authenticate (
  handles: Pick<Database, 'db' | 'reads' | 'lists' | 'pages' | 'background' | 'longTransactions'>, authority: RowAuthority
) {
  for (const db of Object.values(handles)) setAuthority(db, authority)
}

function handle (client: Sql): Db {
  return drizzle({ client }) as unknown as Db
}

async function ping (client: Sql) {
  // A long transaction has the only connection: the database answers that transaction, which ends within a minute.
  if (areWaitsPaused()) return
  const query = client`select 1`
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<void>((resolve, reject) => {
    timer = setTimeout(() => {
      if ((query as { state?: unknown }).state === null) query.cancel()
      if (areWaitsPaused()) resolve()
      else reject(new DatabaseUnavailable('The database does not answer'))
    }, PING_DEADLINE)
  })
  try {
    await Promise.race([query, late])
  } catch (error) {
    throw databaseError(error)
  } finally {
    clearTimeout(timer)
  }
}
