import { chmodSync, existsSync, mkdirSync, mkdtempSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { ConfigError, readKeyFile, type Config } from '../../config.ts'
import {
  createKeyring, generateMasterKey, MasterKeyMissing, openCanary, type Keyring, type MasterKey
} from '../../crypto/keyring.ts'
import {
  askForCopy, connect, databaseError, DatabaseError, DatabaseUnavailable, DirectoryLocked, hasCluster, lockDirectory,
  removeUnheld, tellHolder,
  type Database
} from '../../db/database.ts'
import { refuseUnreleased } from '../../db/migrate.ts'
import { noteBackup, type Backup } from '../../repositories/operations/backups.ts'
import { listCanaries, wrapsNothing } from '../../repositories/keys/master-keys.ts'
import { openRows } from '../../vault/audit/row-authentication.ts'
import { makeDirectoryDurably, syncWithName, writeDurably } from './durable.ts'
import { execProvider, isWrapped, masterKeyOf, type KeyProvider } from './key-provider.ts'
import { retry } from './retry.ts'
import { makeScratch } from './scratch.ts'

/** A reason to stop that the operator can act on: one line, exit 1. */
export class StartError extends Error {
  override name = 'StartError'
}

/** A signal ended the start, of which nothing was done but to wait for a command that unwraps, or for the database. */
export class StartEnded extends Error {
  override name = 'StartEnded'
}

/** Why a command failed, in one line for the operator. */
export function lineOf (error: unknown): string {
  const shown = databaseError(error)
  const what = shown instanceof DatabaseUnavailable || shown instanceof DatabaseError
    ? 'The database cannot be used: '
    : ''
  return `${what}${shown.message.split('\n', 1)[0]}`
}

export interface Opened { database: Database, keyring: Keyring }

/** What the start of a service does beside that of a command. */
export interface Opening {
  /** Called when only a restart of the process can help. */
  onFatal?: (error: Error) => void
  /** Who unwraps master keys; by default, the command of the configuration. */
  provider?: KeyProvider | undefined
  /**
   * A database that is not there yet is waited for, until this ends it; it ends a command of the provider, and a
   * migration that waits for others, too.
   */
  waits?: AbortSignal
}

// Milliseconds. Nobody looks away for longer from a database that comes.
const FIRST_PAUSE = 100
const LONGEST_PAUSE = 1_000

/**
 * Opens the database and the master keys, brings the schema up to date, and proves that every master key that ever
 * wrapped something is there and right, and so is the key that authenticates rows. A wrong or missing key ends the
 * start before anything is changed or listened to.
 *
 * @throws StartEnded when `waits` ended it
 */
export async function open (
  config: Config, { onFatal, waits, provider = execProvider(config.keyCommands, waits) }: Opening = {}
): Promise<Opened> {
  // Who cannot open the keys leaves the database alone.
  const given = await readKeyring(config, provider)
  const database = await openDatabase(config, { onFatal, waits })
  try {
    const keyring = given ?? await makeKeyring(config, await makeMasterKey(config, database), provider)
    await checkKeys(database, keyring)
    await database.migrate(waits).catch((error) => { throw error === waits?.reason ? new StartEnded() : error })
    await openRows(database, keyring)
    return { database, keyring }
  } catch (error) {
    await database.close()
    throw error
  }
}

// An error of the password, a name or a certificate is reported at once.
async function untilThere (database: Database, seconds: number, waits: AbortSignal): Promise<void> {
  const until = performance.now() + seconds * 1_000
  await retry(() => waits.aborted ? Promise.reject(new StartEnded()) : database.ping(), (error, attempt) => {
    const isAway = error instanceof DatabaseUnavailable && !/^ERR_(SSL|TLS)/.test(error.code ?? '')
    if (!isAway || performance.now() >= until) throw error
    if (attempt === 1) say(`Waiting up to ${seconds} s for the database: ${lineOf(error)}`)
    return Math.min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE)
  }, waits)
}

/** Brings the schema up to date. Needs no key. */
export async function migrate (config: Config): Promise<void> {
  const database = await openDatabase(config)
  try {
    await database.migrate()
  } finally {
    await database.close()
  }
}

// What the folder of a copy of the embedded database begins with, and what is in it.
const COPY = 'copy-'
const COPIED = 'postgres'

/** What was opened to read alone, and how to keep that a backup was made of it. */
export interface OpenedToRead extends Opened { note (backup: Backup): Promise<void> }

/**
 * Opens the database and the master keys as they are, to read alone, and proves that these are right. Makes nothing
 * where there is none. An embedded database that a service has open is copied first, and the copy is gone with the
 * close.
 */
export async function openToRead (config: Config): Promise<OpenedToRead> {
  if (config.databaseUrl === undefined && !hasCluster(directoryOf(config))) {
    throw new StartError(`No database in ${resolve(config.dataDir)} (DATA_DIR): set DATA_DIR or DATABASE_URL`)
  }
  const keyring = await openKeyring(config)
  let note: OpenedToRead['note'] = (backup) => noteBackup(database.db, backup)
  const database = await openDatabase(config).catch((error: unknown) => {
    if (!(error instanceof DirectoryLocked)) throw error
    // The copy is nobody's: who has the database open keeps it.
    note = (backup) => tellHolder(directoryOf(config), backup)
    return openCopy(config, error)
  })
  try {
    // Of a copy, too.
    await refuseUnreleased(database.db)
    await checkKeys(database, keyring)
    return { database, keyring, note }
  } catch (error) {
    await database.close()
    throw error
  }
}

async function openCopy (config: Config, locked: DirectoryLocked): Promise<Database> {
  // Beside what it is a copy of: as well protected, and on the same file system.
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
    if (!await askForCopy(directoryOf(config), join(copy, 'cluster'))) throw locked
    const database = await connect({ dir: copy, pool: 1, durable: false, onWait: say })
    return { ...database, where: resolve(directoryOf(config)), close: () => database.close().finally(clear) }
  } catch (error) {
    clear()
    throw error
  }
}

/**
 * Connects without keys, and refuses a database of an unreleased build.
 *
 * @throws StartEnded when `waits` ended it
 */
export async function openDatabase (
  config: Config, { onFatal, waits }: Pick<Opening, 'onFatal' | 'waits'> = {}
): Promise<Database> {
  const database = await connectAs(config, onFatal)
  try {
    if (waits !== undefined && database.kind === 'postgres') await untilThere(database, config.databaseWait, waits)
    await refuseUnreleased(database.db)
    return database
  } catch (error) {
    await database.close()
    throw error
  }
}

async function connectAs (config: Config, onFatal?: (error: Error) => void): Promise<Database> {
  if (config.databaseUrl !== undefined) {
    return connect({ url: config.databaseUrl, pool: config.databasePool, onFatal, onWait: say })
  }
  makeDataDirectory(config)
  await removeUnheld(config.dataDir, COPY, COPIED)
  const database: Database = await connect({
    dir: directoryOf(config),
    pool: 1,
    onFatal,
    onWait: say,
    onTold: (told) => noteBackup(database.db, JSON.parse(told) as Backup)
  })
  return database
}

/** The master keys alone, for who needs no database. */
export async function openKeyring (config: Config): Promise<Keyring> {
  const keyring = await readKeyring(config)
  if (keyring === undefined) throw new StartError('The master key is needed: set MASTER_KEY or MASTER_KEY_FILE')
  return keyring
}

// Before there is a log to say it in.
function say (line: string): void {
  process.stderr.write(`${line}\n`)
}

/** The ring of the keys that are given; undefined where the first is still to be made. */
async function readKeyring (config: Config, provider?: KeyProvider): Promise<Keyring | undefined> {
  const newest = readMasterKey(config)
  if (newest !== undefined) return makeKeyring(config, newest, provider)
  if (config.keyCommands === undefined) return undefined
  throw new StartError(`${keyFileOf(config)} is missing. Run \`key new\` to create a wrapped key`)
}

async function makeKeyring (
  config: Config, newest: string, provider = execProvider(config.keyCommands)
): Promise<Keyring> {
  const given = [newest, ...config.masterKeysPrevious]
  // Whoever sets the command believes that no key lies about as it is.
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

// The embedded database comes with a key file. Undefined while there is none; one that is wrong ends the start here,
// before the database is opened.
function readMasterKey (config: Config): string | undefined {
  if (config.masterKey !== undefined) return config.masterKey
  if (config.masterKeyFile !== undefined) return readKeyFile(config.masterKeyFile)
  const file = keyFileOf(config)
  if (!existsSync(file)) return undefined
  const text = readKeyFile(file, 'The key file')
  // Whoever made it may have been interrupted, or may have been a person: before anything is wrapped by it, it is on
  // disk.
  syncWithName(file)
  return text
}

// Made once, for a database in which nothing was ever wrapped: in any other, a new key could open nothing.
async function makeMasterKey (config: Config, { db }: Database): Promise<string> {
  const file = keyFileOf(config)
  if (!await wrapsNothing(db)) {
    throw new StartError(`${file} is missing: restore the master key of this database, or set MASTER_KEY`)
  }
  writeDurably(file, `${generateMasterKey().text}\n`, 0o600)
  return readKeyFile(file, 'The key file')
}

const keyFileOf = ({ dataDir }: Config) => join(dataDir, 'master.key')

const directoryOf = ({ dataDir }: Config) => join(dataDir, 'postgres')

function makeDataDirectory ({ dataDir }: Config): void {
  if (existsSync(dataDir)) return
  makeDirectoryDurably(dataDir, 0o700)
  chmodSync(dataDir, 0o700)
}

/** Throws a StartError when a master key that wraps something in the database is missing, or is another one. */
export async function checkKeys ({ db }: Pick<Database, 'db'>, keyring: Keyring): Promise<void> {
  for (const { key_id, canary } of await listCanaries(db)) {
    try {
      openCanary(keyring, canary)
    } catch (error) {
      throw new StartError(error instanceof MasterKeyMissing
        ? `Master key ${key_id} is missing: it wraps keys in the database. Set it in MASTER_KEY or MASTER_KEYS_PREVIOUS`
        : `Master key ${key_id} is wrong: it cannot unwrap keys stored under this id`)
    }
  }
}
