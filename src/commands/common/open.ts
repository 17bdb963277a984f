import { chmodSync, existsSync, mkdirSync, mkdtempSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { ConfigError, readKeyFile, type Config } from '../../config.ts'
import {
  createKeyring, generateMasterKey, MasterKeyMissing, openCanary, type Keyring, type MasterKey
} from '../../crypto/keyring.ts'
import {
  requestCopy, connect, DatabaseUnavailable, DirectoryLocked, hasCluster, lockDirectory, removeUnlocked, sendToOwner,
  type Database
} from '../../db/database.ts'
import { refuseUnreleased } from '../../db/migrate.ts'
import { noteBackup, type Backup } from '../../repositories/operations/backups.ts'
import { listCanaries, wrapsNothing } from '../../repositories/keys/master-keys.ts'
import { openRows } from '../../vault/audit/row-authentication.ts'
import { makeDirectoryDurably, syncWithName, writeDurably } from './durable.ts'
import { lineOf, refuse, StartEnded } from './errors.ts'
import { execProvider, isWrapped, masterKeyOf, type KeyProvider } from './key-provider.ts'
import { retry } from './retry.ts'
import { makeScratch } from './scratch.ts'
import { warn } from './stdio.ts'

export interface Opened { database: Database, keyring: Keyring }

/** Options for `serve`; other commands use the defaults. */
export interface Opening {
  /** Called when the database has failed and the process has to restart. */
  onFatal?: (error: Error) => void
  /** Unwraps master keys. By default, this runs the configured command. */
  provider?: KeyProvider | undefined
  /**
   * If set, the start waits for an unavailable PostgreSQL. An abort ends the waits for PostgreSQL, the unwrap command
   * and the migration lock.
   */
  waits?: AbortSignal
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
  config: Config, { onFatal, waits, provider = execProvider(config.keyCommands, waits) }: Opening = {}
): Promise<Opened> {
  // Read the keys first, so that the database is not opened without them.
  const given = await readKeyring(config, provider)
  const database = await openDatabase(config, { onFatal, waits })
  return orClose(database, async () => {
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
    const isAway = error instanceof DatabaseUnavailable && !/^ERR_(SSL|TLS)/.test(error.code ?? '')
    if (!isAway || performance.now() >= until) throw error
    if (attempt === 1) warn(`Waiting up to ${seconds} s for the database: ${lineOf(error)}`)
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
  if (config.databaseUrl === undefined && !hasCluster(directoryOf(config))) {
    refuse(`No database in ${resolve(config.dataDir)} (DATA_DIR): set DATA_DIR or DATABASE_URL`)
  }
  const keyring = await openKeyring(config)
  let note: OpenedToRead['note'] = (backup) => noteBackup(database.db, backup)
  const database = await openDatabase(config).catch((error: unknown) => {
    if (!(error instanceof DirectoryLocked)) throw error
    // The copy will be deleted, so the process that has the database open records the backup.
    note = (backup) => sendToOwner(directoryOf(config), backup)
    return openCopy(config, error)
  })
  return orClose(database, async () => {
    // `openCopy` does not check this.
    await refuseUnreleased(database.db)
    await checkKeys(database, keyring)
    return { database, keyring, note }
  })
}

async function openCopy (config: Config, locked: DirectoryLocked): Promise<Database> {
  // In the data directory, so that the same permissions protect the copy.
  const dir = mkdtempSync(join(config.dataDir, COPY))
  const remove = makeScratch(dir)
  const unlock = await lockDirectory(dir)
  const clear = () => {
    unlock()
    remove()
  }
  try {
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
 * Opens the database without master keys. Throws UnreleasedDatabase for a database of an unreleased build.
 *
 * @throws StartEnded when `waits` is aborted
 */
export async function openDatabase (
  config: Config, { onFatal, waits }: Pick<Opening, 'onFatal' | 'waits'> = {}
): Promise<Database> {
  const database = await connectTo(config, onFatal)
  return orClose(database, async () => {
    if (waits !== undefined && database.kind === 'postgres') await untilThere(database, config.databaseWait, waits)
    await refuseUnreleased(database.db)
    return database
  })
}

async function connectTo (config: Config, onFatal: Opening['onFatal']): Promise<Database> {
  const { databaseUrl: url, dataDir, databasePool } = config
  if (url !== undefined) return connect({ url, pool: databasePool, onFatal, onWait: warn })
  if (!existsSync(dataDir)) {
    makeDirectoryDurably(dataDir, 0o700)
    chmodSync(dataDir, 0o700)
  }
  await removeUnlocked(dataDir, COPY, COPIED)
  const database: Database = await connect({
    dir: directoryOf(config),
    pool: 1,
    onFatal,
    onWait: warn,
    onMessage: (message) => noteBackup(database.db, JSON.parse(message) as Backup)
  })
  return database
}

/** Opens the master keys without a database. */
export const openKeyring = async (config: Config): Promise<Keyring> =>
  await readKeyring(config) ?? refuse('The master key is needed: set MASTER_KEY or MASTER_KEY_FILE')

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
  if (config.masterKeyFile !== undefined) return readKeyFile(config.masterKeyFile)
  const file = keyFileOf(config)
  if (!existsSync(file)) return undefined
  const text = readKeyFile(file, 'The key file')
  // Sync the file, because an operator or an interrupted process may have written it without a sync.
  syncWithName(file)
  return text
}

// Creates a key only if the database has no wrapped keys, because a new key could not unwrap them.
async function makeMasterKey (config: Config, { db }: Database): Promise<string> {
  const file = keyFileOf(config)
  if (!await wrapsNothing(db)) refuse(`${file} is missing: restore the master key of this database, or set MASTER_KEY`)
  writeDurably(file, `${generateMasterKey().text}\n`, 0o600)
  return readKeyFile(file, 'The key file')
}

const keyFileOf = ({ dataDir }: Config) => join(dataDir, 'master.key')

const directoryOf = ({ dataDir }: Config) => join(dataDir, 'postgres')

/** Throws a StartError if a master key that wraps keys in the database is missing or wrong. */
export async function checkKeys ({ db }: Pick<Database, 'db'>, keyring: Keyring): Promise<void> {
  for (const { key_id, canary } of await listCanaries(db)) {
    try {
      openCanary(keyring, canary)
    } catch (error) {
      refuse(error instanceof MasterKeyMissing
        ? `Master key ${key_id} is missing: it wraps keys in the database. Set it in MASTER_KEY or MASTER_KEYS_PREVIOUS`
        : `Master key ${key_id} is wrong: it cannot unwrap keys stored under this id`)
    }
  }
}
