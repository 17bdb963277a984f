import { existsSync, mkdirSync, mkdtempSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { ConfigError, readKeyFile, type Config } from '../../config.ts'
import {
  createKeyring, generateMasterKey, MasterKeyMissing, openCanary, type Keyring, type MasterKey
} from '../../crypto/keyring.ts'
import {
  areTriggersOff, codeOf, connect, databaseError, DatabaseError, DatabaseUnavailable, DirectoryLocked,
  findOtherEncoding, lockDirectory, removeUnlocked, requestCopy, sendRequest, type Client, type Database
} from '../../db/database.ts'
import { refuseUnreleased } from '../../db/migrate.ts'
import { noteBackup, type Backup } from '../../repositories/operations/backlog.ts'
import { listCanaries, wrapsNothing } from '../../repositories/keys/master-keys.ts'
import { openRows } from '../../jobs/violations.ts'
import {
  directoryOf, explainFiles, makeDataDir, requireDatabase, requireUnwritable, requireUnwritableKeyFile
} from './data-dir.ts'
import { syncWithName, writeDurably } from './durable.ts'
import { refuse, StartEnded, StartError } from './command-errors.ts'
import { execProvider, isWrapped, masterKeyOf, type KeyProvider } from './key-provider.ts'
import { retry } from './retry.ts'
import { makeScratch } from './scratch.ts'
import { warn } from './stdio.ts'

export interface Opened { database: Database, keyring: Keyring }

/** Options for `serve` and `init`; other commands use the defaults. */
export interface Opening {
  /**
   * Creates the data directory, the embedded database, the schema and the keys if they are missing. By default, a
   * missing or empty database is a StartError.
   */
  creates?: boolean | undefined
  /** Called when the database has failed and the process has to restart. */
  onFatal?: (error: Error) => void
  /** Unwraps master keys. By default, this runs the configured command. */
  provider?: KeyProvider | undefined
  /**
   * If set, the start waits for an unavailable PostgreSQL. An abort ends the waits for PostgreSQL, the unwrap command
   * and the migration lock.
   */
  waits?: AbortSignal
  /** Handles requests of other processes, while this process has the embedded database open (`sendRequest`). */
  onRequest?: ((request: Record<string, unknown>, client: Client) => Promise<unknown>) | undefined
}

// Milliseconds between connection attempts.
const FIRST_PAUSE = 100
const LONGEST_PAUSE = 1_000

/**
 * Opens the database and the master keys, and migrates the schema. Throws before the migration if a master key is wrong
 * or missing, and after the migration if a key for MACs of rows and events is wrong or missing.
 *
 * @throws StartEnded when `waits` is aborted
 */
export async function open (
  config: Config,
  { creates = false, onFatal, waits, onRequest, provider = execProvider(config.keyCommands, waits) }: Opening = {}
): Promise<Opened> {
  if (!creates) requireDatabase(config)
  // Reads the keys first, so that the database is not opened if a key is missing.
  const given = await readKeyring(config, provider)
  const database = await openDatabase(config, { onFatal, waits, onRequest })
  return orClose(database, async () => {
    // An interrupted restore also leaves an empty database. No keys are created in it here, because `init` and
    // `restore` need a database without keys.
    if (!creates && await wrapsNothing(database.db)) {
      refuse(`The database at ${database.where} is empty: start the service, or run \`init\` or \`restore\``)
    }
    const keyring = given ?? await makeKeyring(config, await makeMasterKey(config, database), provider)
    await checkKeys(database, keyring)
    await database.migrate(waits).catch((error) => { throw error === waits?.reason ? new StartEnded() : error })
    await openRows(database, keyring)
    return { database, keyring }
  })
}

async function orClose<T> (database: Database, act: () => Promise<T>): Promise<T> {
  try {
    return await act()
  } catch (error) {
    await database.close()
    throw error
  }
}

// Retries only while the server is unavailable, so wrong passwords, names and certificates fail at once.
async function untilThere (database: Database, seconds: number, waits: AbortSignal): Promise<void> {
  const until = performance.now() + seconds * 1_000
  await retry(() => waits.aborted ? Promise.reject(new StartEnded()) : database.ping(), (error, attempt) => {
    const isAway = error instanceof DatabaseUnavailable && !/^(ERR_(SSL|TLS)|08P01$)/.test(error.code ?? '')
    if (!isAway || performance.now() >= until) throw error
    if (attempt === 1) warn(`Waiting up to ${seconds} s for the database at ${database.where}: ${error.message}`)
    return Math.min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE)
  }, waits)
}

// Prefix of the directory for a copy of the embedded database, and the subdirectory with the copy.
const COPY = 'copy-'
const COPIED = 'postgres'

/** `note` records a completed backup for the metrics. */
export interface OpenedToRead extends Opened { note (backup: Backup): Promise<void> }

/**
 * Opens an existing database for a backup, without migrating it, and verifies the master keys. If another process has
 * the embedded database open, opens a copy, which `close` deletes.
 */
export async function openToRead (config: Config): Promise<OpenedToRead> {
  requireDatabase(config)
  const keyring = await openKeyring(config)
  let note: OpenedToRead['note'] = (backup) => noteBackup(database.db, backup)
  const database = await openDatabase(config, { isForBackup: true }).catch((error: unknown) => {
    if (!(error instanceof DirectoryLocked)) throw error
    // The copy will be deleted, so the process that has the database open records the backup.
    note = async (backup) => {
      const answer = await sendRequest(directoryOf(config), { backup })
      if (answer?.result !== true) refuse('the process that had the embedded database open did not record it')
    }
    return openCopy(config, error)
  })
  return orClose(database, async () => {
    // `openDatabase` refuses a database of an unreleased build, but `openCopy` does not.
    await refuseUnreleased(database.db)
    await checkKeys(database, keyring)
    return { database, keyring, note }
  })
}

async function openCopy (config: Config, locked: DirectoryLocked): Promise<Database> {
  // The copy is in the data directory, so that the same permissions protect the copy.
  const { path: dir, remove } = makeScratch(() => mkdtempSync(join(config.dataDir, COPY)))
  let unlock = () => {}
  const clear = () => {
    unlock()
    remove()
  }
  try {
    unlock = await lockDirectory(dir)
    const copy = join(dir, COPIED)
    mkdirSync(copy, { mode: 0o700 })
    if (!await requestCopy(directoryOf(config), join(copy, 'cluster'))) throw locked
    const database = await connect({ dir: copy, pool: 1, durable: false, onWait: warn })
    return { ...database, where: resolve(directoryOf(config)), close: () => database.close().finally(clear) }
  } catch (error) {
    clear()
    throw error
  }
}

/**
 * Opens the database without master keys. Creates a missing data directory and embedded database. If they must exist,
 * call `requireDatabase` first. Throws UnreleasedDatabase for a database of an unreleased build, and a StartError for a
 * database that is not UTF8.
 *
 * @param options.isForBackup accepts a database that is not UTF8
 * @throws StartEnded when `waits` is aborted
 */
export async function openDatabase (
  config: Config,
  { onFatal, waits, onRequest, isForBackup = false }: Pick<Opening, 'onFatal' | 'waits' | 'onRequest'> & {
    isForBackup?: boolean
  } = {}
): Promise<Database> {
  const database = await connectTo(config, { onFatal, onRequest })
  return orClose(database, async () => {
    try {
      if (waits !== undefined && database.kind === 'postgres') await untilThere(database, config.databaseWait, waits)
      if (!isForBackup) await requireUtf8(database)
      if (!isForBackup) await requireTriggers(database)
      await refuseUnreleased(database.db)
    } catch (error) {
      throw database.kind === 'postgres' ? explainConnection(database.where, error) : error
    }
    return database
  })
}

// A database keeps its encoding for ever, so the way is a backup, and a restore into another database.
async function requireUtf8 (database: Database): Promise<void> {
  const other = await findOtherEncoding(database)
  if (other === undefined) return
  const where = other.node === undefined ? `The database at ${database.where}` : `The database on the node ${other.node}`
  refuse(`${where} has the encoding ${other.encoding}, but has to have UTF8: ` +
    "make one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0. To keep the data, run `backup` first, and `restore` into the new one")
}

async function requireTriggers (database: Database): Promise<void> {
  if (database.kind === 'embedded' || !await areTriggersOff(database)) return
  refuse(`The database at ${database.where} has session_replication_role = replica, which turns off foreign keys: ` +
    'a superuser has to run ALTER ROLE … RESET session_replication_role, or ALTER DATABASE … RESET, where it is set')
}

/** Advice for the operator, by the SQLSTATE or the error code of the driver. */
const ADVICE: [codes: RegExp, advice: string][] = [
  [/^ECONNREFUSED$/, 'start PostgreSQL there, or correct the host and port in DATABASE_URL'],
  [/^E(NOTFOUND|AI_AGAIN)$/, 'correct the host in DATABASE_URL, or wait until the name resolves'],
  [/^(CONNECT_TIMEOUT|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH)$/, 'check the host and port in DATABASE_URL, and the firewall'],
  [/^28/, 'correct the user and password in DATABASE_URL'],
  [/^3D000$/, 'create this database, or correct its name in DATABASE_URL'],
  [/^42704$/, 'remove the parameter from DATABASE_URL'],
  [/^08P01$/, 'with PgBouncer, add the parameter to ignore_startup_parameters']
]

// Adds the address of the server and advice to an error of the driver.
function explainConnection (where: string, error: unknown): unknown {
  const known = databaseError(error)
  if (!(known instanceof DatabaseUnavailable || known instanceof DatabaseError)) return error
  const advice = ADVICE.find(([codes]) => codes.test(codeOf(error) ?? ''))?.[1]
  const [reason = ''] = known.message.split('\n', 1)
  return new StartError(`The database at ${where} cannot be used: ${reason}${advice === undefined ? '' : `; ${advice}`}`)
}

async function connectTo (config: Config, { onFatal, onRequest }: Pick<Opening, 'onFatal' | 'onRequest'>): Promise<Database> {
  const { databaseUrl: url, dataDir, databasePool } = config
  if (url !== undefined) return connect({ url, pool: databasePool, onFatal, onWait: warn })
  makeDataDir(config)
  await removeUnlocked(dataDir, COPY, COPIED)
  const database: Database = await connect({
    dir: directoryOf(config),
    pool: 1,
    onFatal,
    onWait: warn,
    onRequest: async (request, client) => {
      const backup = backupIn(request)
      return backup === undefined ? onRequest?.(request, client) : noteBackup(database.db, backup).then(() => true)
    }
  }).catch((error: unknown) => explainFiles(dataDir, error))
  return database
}

const backupIn = ({ backup }: Record<string, unknown>): Backup | undefined =>
  typeof backup === 'object' && backup !== null ? backup as Backup : undefined

/** Opens the master keys without a database. */
export const openKeyring = async (config: Config): Promise<Keyring> =>
  await readKeyring(config) ?? refuse(
    `The master key is needed: set MASTER_KEY or MASTER_KEY_FILE, or put the key into ${keyFileOf(config)}`
  )

// Returns undefined if no master key is configured and the key file does not exist yet.
async function readKeyring (config: Config, provider?: KeyProvider): Promise<Keyring | undefined> {
  const newest = readMasterKey(config)
  if (newest !== undefined) return makeKeyring(config, newest, provider)
  if (config.keyCommands === undefined) return undefined
  return refuse(`${keyFileOf(config)} is missing. Run \`key new\` to create a wrapped key`)
}

async function makeKeyring (
  config: Config, newest: string, provider = execProvider(config.keyCommands)
): Promise<Keyring> {
  const given = [newest, ...config.masterKeysPrevious]
  // An operator who sets the command expects that the master key is not stored in plain form.
  if (config.keyCommands?.unwrap !== undefined && !given.some(isWrapped)) {
    throw new ConfigError('MASTER_KEY_UNWRAP_COMMAND is set, but no master key is wrapped; allowed: a key <id>:exec:<base64>, or no command')
  }
  const keys: MasterKey[] = []
  for (const key of given) keys.push(await masterKeyOf(key, provider))
  try {
    return createKeyring(keys)
  } catch (error) {
    throw new ConfigError(`MASTER_KEY: ${(error as Error).message}`)
  }
}

function readMasterKey (config: Config): string | undefined {
  if (config.masterKey !== undefined) return config.masterKey
  if (config.masterKeyFile !== undefined) {
    const text = readKeyFile(config.masterKeyFile)
    requireUnwritableKeyFile(config.masterKeyFile)
    return text
  }
  const file = keyFileOf(config)
  if (!existsSync(file)) return undefined
  requireUnwritable(config.dataDir)
  const text = readKeyFile(file, 'The key file')
  // Sync the file, because an operator or an interrupted process may have written it without a sync.
  syncWithName(file)
  return text
}

// Creates a key only if the database has no wrapped keys, because a new key cannot unwrap existing keys.
async function makeMasterKey (config: Config, { db }: Database): Promise<string> {
  const file = keyFileOf(config)
  if (!await wrapsNothing(db)) refuse(`${file} is missing: restore the master key of this database, or set MASTER_KEY`)
  writeDurably(file, `${generateMasterKey().text}\n`, 0o600)
  return readKeyFile(file, 'The key file')
}

const keyFileOf = ({ dataDir }: Config) => join(dataDir, 'master.key')

/** Throws a StartError if a master key that wraps keys in the database is missing or wrong. */
export async function checkKeys ({ db }: Pick<Database, 'db'>, keyring: Keyring): Promise<void> {
  for (const { key_id, canary } of await listCanaries(db)) {
    try {
      openCanary(keyring, canary)
    } catch (error) {
      refuse(error instanceof MasterKeyMissing
        ? `Master key ${key_id} is missing: it wraps keys in the database. Set it in MASTER_KEY or MASTER_KEYS_PREVIOUS`
        : `Master key ${key_id} is wrong: it cannot unwrap keys stored under this id. ` +
          'Set the key that this database was used with: MASTER_KEY, MASTER_KEY_FILE or the file in DATA_DIR')
    }
  }
}
