import { sql } from 'drizzle-orm'
import path from 'node:path'
import { drizzle } from 'drizzle-orm/postgres-js'
import postgres, { type Options, type Sql } from 'postgres'
import type { Gate } from '../gate.ts'
import { setEngine, type Engine } from './postgres/engine.ts'
import { findAuthority, setAuthority, type RowAuthority } from './rows/authority.ts'
import { openEmbedded, type EmbeddedOptions } from './embedded/embedded.ts'
import { codeOf, databaseError, DatabaseUnavailable } from './postgres/database-errors.ts'
import { createPool, guard, type Bounds } from './postgres/guard.ts'
import type { Db } from './postgres/handle.ts'
import {
  COLOCATED_WITH, hasCitus, isCoordinator, mergePlaced, onNodesThatRespond, placeTables, REFERENCE, requireMeaning,
  setDefaults, type Placed
} from './citus/placement.ts'
import { migrateSchema, type MigrationSteps } from './migrate.ts'
import { BY_INDEX, MEANING, WALKING } from './postgres/session.ts'
import { tlsOf } from './postgres/tls.ts'
import { areWaitsPaused } from './postgres/wait-clock.ts'
import { queryRow } from './rows/query.ts'

export {
  codeOf, databaseError, DatabaseError, DatabaseUnavailable, isAway, isAwayForAll, isForeignKeyViolation, isLockTimeout,
  isUndone, isUniqueViolation, LOCK_TIMEOUT, neverSent
} from './postgres/database-errors.ts'
export type { Db } from './postgres/handle.ts'
export { makeDirectory } from './embedded/embedded.ts'
export { requestCopy, sendRequest, type Client } from './embedded/requests.ts'
export { hasCluster, DiskFull } from './embedded/embedded.ts'
export { DirectoryLocked, lockDirectory, removeUnlocked } from './embedded/lock.ts'
export {
  authorityOf, findAuthority, isAuthentic, lookupHash, macOf, readNow, requireAuthentic, setAuthority, tampered,
  TamperedRow, updateAuthentic, verifies, type Authenticated, type RowAuthority, type Violation, type ViolationLog
} from './rows/authority.ts'
export { isKeyOf, isOneOf, isOneOfOrganization, lookUp, rowsOf } from './rows/lists.ts'
export { prepared, preparedSql, type Raw, type Value } from './postgres/prepared.ts'
export { tlsOf } from './postgres/tls.ts'
export { UrlError } from './postgres/url.ts'

export interface Database {
  /** For writes, transactions and slow statements. */
  db: Db
  /** For short reads of one prepared statement, which share few connections. */
  reads: Db
  /** For lists and counts, which can be slow for large organizations. Bitmap scans are disabled (`WALKING`). */
  lists: Db
  /** For short pages from an index. Several queries are pipelined on one connection, so none of them may be slow. */
  pages: Db
  /** For background jobs. Statements are not prepared, so PostgreSQL plans each one for its parameter values. */
  background: Db
  /** For transactions whose duration grows with the size of a project: at most two at a time, each for at most 60 s. */
  longTransactions: Db
  kind: 'postgres' | 'embedded'
  /** The location for messages: hosts and database name, or the directory. Contains no credentials or parameters. */
  where: string
  pools: Readonly<Record<string, Gate>>
  /** `citus` if the database has the Citus extension; known after `migrate` or `authenticate`. */
  readonly engine: Engine
  /** Sets the authority that computes and verifies row MACs, for all handles. */
  authenticate (authority: RowAuthority): Promise<void>
  /** Runs a transaction without a deadline, before the service starts. `what`: the work, for progress messages. */
  maintain<T> (fn: (db: Db) => Promise<T>, what?: string): Promise<T>
  /**
   * Runs a read-only REPEATABLE READ transaction. The first query takes the snapshot; SET and LOCK do not. On Citus,
   * each node has its own snapshot. No transaction changes a reference table until all nodes have their snapshots.
   */
  snapshot<T> (fn: (db: Db) => Promise<T>): Promise<T>
  /**
   * Migrates the schema to this build's version. On Citus, also distributes new tables (`placeTables`) and sets the
   * settings of the nodes; with `isThorough` on the coordinator, checks and sets the settings even if no table is new.
   * Otherwise, throws CitusError if a node that responds would read other values.
   * Throws the reason of `signal` if the signal ends a wait. Throws CitusError if a node is missing or has a wrong
   * setting, or if the schema must change and this node is not the coordinator. Returns undefined without Citus.
   */
  migrate (
    signal?: AbortSignal, options?: { isThorough?: boolean, steps?: MigrationSteps }
  ): Promise<Migrated | undefined>
  /** Resolves when the database responds; throws DatabaseUnavailable after about two seconds. */
  ping (): Promise<void>
  close (): Promise<void>
}

/** What `migrate` did on a Citus cluster, and whether it checked the settings of all nodes. */
export interface Migrated extends Placed { isChecked: boolean }

export interface ConnectOptions extends Partial<EmbeddedOptions> {
  /** A PostgreSQL URL. Without a URL, the embedded database in `dir` is used. */
  url?: string | undefined
  /** Total connections to PostgreSQL, at least two. */
  pool: number
}

const PING_DEADLINE = 2_000

const alone = new WeakSet<Db>()

function markAlone (db: Db, isAlone: boolean): Db {
  if (isAlone) alone.add(db)
  return db
}

/** Whether all other requests wait for the only connection while a transaction of this handle lasts. */
export const isOnlyConnection = (longTransactions: Db): boolean => alone.has(longTransactions)

// Limits of a long transaction in milliseconds: its duration, and its wait for a connection.
const LONG = { deadline: 60_000, patience: 60_000, prepare: false }
// Maximum queue length if there is only one connection, which a long transaction may occupy for a minute.
const MAX_WAITING_FOR_ALL = 2_000
const CLOSE_SECONDS = 5
// Timeouts in seconds for a silent server: in snapshots, and in migrations or maintenance.
const READING = 120
const CHANGING = 3600

// Timeouts in milliseconds. statement_timeout is shorter than the deadline of a statement in the service (`DEADLINE`).
// lock_timeout is longer than deadlock_timeout (1 s), so that the server reports a deadlock first, and the transaction
// is retried.
const SESSION = {
  ...BY_INDEX,
  statement_timeout: 3000,
  lock_timeout: 1200,
  idle_in_transaction_session_timeout: 5000
}
const SNAPSHOT = { isolationLevel: 'repeatable read', accessMode: 'read only' } as const
const FOR_LISTS = { ...SESSION, ...WALKING }

// With fetch_types, the driver would query array types on each new connection. The driver's default backoff grows to
// 20 s, far longer than a typical outage.
const COMMON = {
  fetch_types: false, max_lifetime: null, keep_alive: 10, backoff: () => 0.05 + Math.random() / 5, onnotice: () => {}
}

/** Connects to PostgreSQL, or opens the embedded database (throws DirectoryLocked if it is in use). */
export async function connect (options: ConnectOptions): Promise<Database> {
  return options.url ? connectPostgres(options.url, options) : await connectEmbedded(options)
}

function connectPostgres (databaseUrl: string, { pool, onWait }: ConnectOptions): Database {
  const { url, ssl, hosts, database: name } = tlsOf(databaseUrl)
  const client = (max: number, more: object = {}, session: object = SESSION) => postgres(url, {
    ...COMMON,
    // The driver reorders the lists.
    ...structuredClone(hosts),
    ...(name !== undefined && { database: name }),
    ssl,
    max,
    connect_timeout: 3,
    silence_timeout: 4,
    ...more,
    connection: { application_name: 'strongroom', ...MEANING, ...session }
  } as Options<{}>)
  // Reads and lists get a quarter of the connections each, at most three. If there are only two connections, lists use
  // the connection for writes.
  const some = Math.max(1, Math.min(3, Math.floor(pool / 4)))
  const shared = pool < 3
  const paged = some > 1
  const forWrites = Math.max(1, pool - (shared ? 1 : 2) * some - (paged ? 1 : 0))
  const writes = client(forWrites, {}, shared ? FOR_LISTS : SESSION)
  const reads = client(some)
  const lists = shared ? writes : client(some, {}, FOR_LISTS)
  const pages = paged ? client(1, {}, FOR_LISTS) : lists

  let engine: Engine = 'postgres'
  const detect = async (client: Sql) => { engine = await hasCitus(handle(client)) ? 'citus' : 'postgres' }
  const handleOf = (client: Sql) => {
    const db = handle(client)
    setEngine(db, () => engine)
    return db
  }

  const alone: Alone = async (silence, _what, work) => {
    const own = client(1, { silence_timeout: silence }, {})
    try {
      await detect(own)
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
    // Reads are pipelined: up to 50 at once on each connection.
    reads: createPool(some * 50),
    lists: createPool(some),
    // Pages are pipelined, too, but fewer at once, because each page waits for the earlier pages on the connection.
    pages: createPool(paged ? 16 : some),
    background: createPool(Math.min(2, forWrites)),
    longTransactions: createPool(isAlone ? 1 : Math.min(2, forWrites - 1))
  }
  const bounded = (name: keyof typeof pools, client: Sql, more: Partial<Bounds> = {}) =>
    handleOf(guard(client, { pool: pools[name], prepare: true, ...more }))
  const handles = {
    db: bounded('db', writes),
    reads: bounded('reads', reads),
    lists: bounded('lists', lists),
    pages: bounded('pages', pages),
    background: bounded('background', writes, { prepare: false }),
    longTransactions: markAlone(bounded('longTransactions', writes, { ...LONG, isAlone }), isAlone)
  }
  return {
    ...handles,
    ...withoutDeadline(alone, handleOf, () => engine === 'citus', onWait),
    kind: 'postgres',
    get engine () { return engine },
    where: `${host.map((name, i) => `${name.includes(':') ? `[${name}]` : name}:${port[i]}`).join(',')}/${database}`,
    pools,
    authenticate: async authority => {
      await detect(writes)
      authenticate(handles, authority)
    },
    ping: () => ping(reads),
    close: async () => {
      await findAuthority(handles.db)?.settled()
      const clients = [...new Set([writes, reads, lists, pages])]
      await Promise.all(clients.map(client => client.end({ timeout: CLOSE_SECONDS })))
    }
  }
}

async function connectEmbedded (
  { dir, durable, onFatal = () => {}, onWait, onRequest }: ConnectOptions
): Promise<Database> {
  if (!dir) throw new Error('A database URL or a directory is needed')
  let opened = false
  const embedded = await openEmbedded({
    dir, durable, onWait, onRequest, onFatal: error => { if (opened) onFatal(error) }
  })
  const client = postgres({
    ...COMMON,
    socket: embedded.socket,
    max: 1,
    connect_timeout: 60,
    // The watchdog of the worker thread (embedded/watchdog.ts) replaces this timeout.
    silence_timeout: null,
    host: 'embedded',
    user: 'postgres',
    database: 'postgres',
    connection: { application_name: 'strongroom' }
  } as Options<{}>)

  // The embedded PostgreSQL hangs if the disk is full, so this is fatal. A restart recovers all committed data.
  const full = (error: unknown) => { if (/^(53100|58030)$/.test(codeOf(error) ?? '')) onFatal(databaseError(error)) }
  const pools = { db: createPool(1, MAX_WAITING_FOR_ALL), background: createPool(1), longTransactions: createPool(1) }
  const bounded = (name: keyof typeof pools, more: Partial<Bounds> = {}) =>
    handle(guard(client, { pool: pools[name], onError: full, prepare: true, ...more }))
  const db = bounded('db')
  const alone: Alone = (_silence, what, work) =>
    embedded.patiently(what, () => work(client)).catch(error => { throw databaseError(error) })

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
  const background = bounded('background', { prepare: false })
  const longTransactions = markAlone(bounded('longTransactions', { ...LONG, isAlone: true }), true)
  const handles = { db, reads: db, lists: db, pages: db, background, longTransactions }
  return {
    ...handles,
    ...withoutDeadline(alone, handle, () => false),
    kind: 'embedded',
    engine: 'postgres',
    where: path.resolve(dir),
    pools,
    authenticate: async authority => authenticate(handles, authority),
    ping: () => ping(client),
    close
  }
}

// Runs work without a deadline. Fails after `silence` seconds without a response. `what`: as in `maintain`.
type Alone = <T>(silence: number, what: string, work: (client: Sql) => Promise<T>) => Promise<T>

const withoutDeadline = (
  alone: Alone, handle: (client: Sql) => Db, isCitus: () => boolean, onWait?: ConnectOptions['onWait']
): Pick<Database, 'maintain' | 'snapshot' | 'migrate'> => ({
  maintain: (fn, what = 'authenticates its rows') =>
    alone(CHANGING, what, client => handle(client).transaction(async tx => await fn(tx))),
  snapshot: fn => alone(READING, 'is read', client => handle(client).transaction(async tx => {
    if (isCitus()) await alone(READING, 'is locked', async holder => takeSnapshots(tx, handle(holder)))
    return fn(tx)
  }, SNAPSHOT)),
  migrate: (signal, { isThorough = false, steps } = {}) => alone(CHANGING, 'changes the schema', async client => {
    const migrated = await migrateSchema(client, { onWait, signal, steps })
    const db = handle(client)
    if (!await hasCitus(db)) return undefined
    // Places tables even if no migration ran: the extension `citus` may have been added to an existing database.
    const placed = mergePlaced(migrated, await db.transaction(async tx => await placeTables(tx)))
    const isChecked = isThorough && await isCoordinator(db)
    const nodes = isChecked ? await setDefaults(db) : []
    if (!isThorough) await db.transaction(async tx => await requireMeaning(tx))
    return { ...mergePlaced(placed, { tables: 0, nodes }), isChecked }
  })
})

function authenticate (handles: Record<string, Db>, authority: RowAuthority) {
  for (const db of Object.values(handles)) setAuthority(db, authority)
}

function handle (client: Sql): Db {
  return drizzle({ client }) as unknown as Db
}

async function ping (client: Sql) {
  // While a long transaction uses the only connection, `select 1` would wait for up to a minute.
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

/**
 * On Citus, takes the snapshot of a REPEATABLE READ transaction on each node. Call it before the first query of the
 * transaction. The snapshots differ in time, so a change of several organizations can be missing in some snapshots. The
 * rows of one organization are on one node, so these rows are consistent. `holder`, another connection, blocks changes
 * of reference tables until all snapshots are taken, so the users and grants that rows refer to are in the snapshots.
 */
async function takeSnapshots (db: Db, holder: Db): Promise<void> {
  await holder.transaction(async (tx) => {
    // Waits longer for changes of these tables than the service does with its own lock timeout.
    await tx.execute(sql`SET LOCAL lock_timeout = '20s'`)
    await tx.execute(sql.raw(`LOCK TABLE ${REFERENCE.join(', ')} IN SHARE MODE`))
    // Uses one connection to each node, which keeps its snapshot until the end of the transaction.
    await db.execute(sql`SET LOCAL citus.max_adaptive_executor_pool_size = 1`)
    await db.execute(sql`SELECT count(*) FROM ${sql.identifier(COLOCATED_WITH)}`)
  })
}

/** A database that is not UTF8; `node` is set if it is the database of a node of a Citus cluster. */
interface OtherEncoding { encoding: string, node?: string }

const NEEDED = 'UTF8'
const ENCODING = "SELECT current_setting('server_encoding')"

/**
 * Finds a database that is not UTF8, on Citus on any node. Such a database refuses or changes characters that it cannot
 * store. Skips nodes that do not respond.
 */
export async function findOtherEncoding ({ db, maintain }: Database): Promise<OtherEncoding | undefined> {
  const { encoding } = await queryRow<{ encoding: string }>(db, sql`SELECT current_setting('server_encoding') AS encoding`)
  if (encoding !== NEEDED) return { encoding }
  if (!await hasCitus(db)) return undefined
  const nodes = await maintain((db: Db) => onNodesThatRespond(db, ENCODING))
  const other = nodes.find(({ result }) => result !== NEEDED)
  return other && { encoding: other.result, node: other.node }
}

/**
 * Whether new sessions run no triggers (`session_replication_role`), so that foreign keys neither check nor delete, and
 * audit events can be changed. Only a superuser can set this, and no connection of another role can reset it.
 */
export async function areTriggersOff ({ db }: Database): Promise<boolean> {
  const { role } = await queryRow<{ role: string }>(db, sql`SELECT current_setting('session_replication_role') AS role`)
  return role === 'replica'
}
