import { accessSync, chmodSync, constants, lstatSync, readdirSync, realpathSync, statSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import type { Config } from '../../config.ts'
import { hasCluster } from '../../db/database.ts'
import { makeDirectoryDurably } from './durable.ts'
import { Interrupted, lineOf, refuse, StartError } from './command-errors.ts'
import { warn } from './stdio.ts'

/** The directory of the embedded database. */
export const directoryOf = ({ dataDir }: Config) => join(dataDir, 'postgres')

const CHOOSE = 'set DATA_DIR to a directory that this user can write'

/**
 * Creates the data directory if it is missing. Throws a StartError if it cannot be created or used, or if other users
 * can write it (`requireUnwritable`).
 */
export function makeDataDir ({ dataDir }: Config): void {
  try {
    if (makeDirectoryDurably(dataDir, 0o700)) chmodSync(dataDir, 0o700)
    // With the dot at the end, the path of a file fails with ENOTDIR.
    accessSync(`${resolve(dataDir)}/.`, constants.R_OK | constants.W_OK | constants.X_OK)
    requireUnwritable(dataDir)
  } catch (error) {
    explainFiles(dataDir, error)
  }
}

const WRITABLE_BY_OTHERS = 0o002
const STICKY = 0o1000

/**
 * Throws a StartError if every user can replace the files of a directory: it is writable for others, without the sticky
 * bit. Orchestrators mount empty volumes of mode 0777, so a mount point is accepted if everything in it belongs to this
 * user or to root, and is closed to other users.
 *
 * @param name the variable that names the directory, or a file in it
 */
export function requireUnwritable (directory: string, name = 'DATA_DIR'): void {
  const dir = resolve(directory)
  const { mode } = statSync(dir)
  const me = process.getuid?.()
  if (me === undefined || (mode & WRITABLE_BY_OTHERS) === 0 || (mode & STICKY) !== 0) return
  const open = isMountPoint(dir)
    ? readdirSync(dir).find((entry) => {
      const { mode, uid } = lstatSync(join(dir, entry))
      return (mode & 0o077) !== 0 || (uid !== me && uid !== 0)
    })
    : ''
  if (open === undefined) return
  const bits = (mode & 0o7777).toString(8).padStart(4, '0')
  refuse(`${name}: every user can replace files in ${dir} (mode ${bits}): chmod 700 it` +
    (open === '' ? '' : `, or make ${JSON.stringify(open)} belong to this user only`))
}

/** Like `requireUnwritable`, for the directory of MASTER_KEY_FILE, and that of the target of a symbolic link. */
export function requireUnwritableKeyFile (file: string): void {
  const directories = new Set([dirname(resolve(file)), dirname(realPathOf(file))])
  for (const directory of directories) requireUnwritable(directory, 'MASTER_KEY_FILE')
}

// An open file that was deleted, as /dev/stdin can be, has no path.
function realPathOf (file: string): string {
  try {
    return realpathSync(file)
  } catch {
    return resolve(file)
  }
}

// `..` of a symbolic link is the parent of the link's target. A bind mount within one file system is not recognized.
const isMountPoint = (dir: string) => statSync(dir).dev !== statSync(`${dir}/..`).dev

/** The data directory does not exist. The exit status is 1, also of commands that exit with 2 for other errors. */
class FolderMissing extends StartError {}

/** Runs a check whose exit status 1 means a fault: errors that prevent the check have exit status 2. */
export async function orUndecided (check: () => Promise<number>): Promise<number> {
  try {
    return await check()
  } catch (error) {
    if (error instanceof Interrupted || error instanceof FolderMissing) throw error
    warn(lineOf(error))
    return 2
  }
}

/** Throws a StartError if the embedded database is missing. For commands that do not create a database. */
export function requireDatabase (config: Config): void {
  const { databaseUrl, dataDir } = config
  if (databaseUrl !== undefined) return
  const advice = 'set DATA_DIR or DATABASE_URL as for the service'
  requireFolder(dataDir, advice)
  if (isReadable(directoryOf(config)) && hasCluster(directoryOf(config))) return
  refuse(`No database in ${resolve(dataDir)} (DATA_DIR): ${advice}`)
}

/** Throws a StartError if the folder of the master key is missing. For commands that need no database. */
export function requireKeyFolder ({ masterKey, masterKeyFile, dataDir }: Config): void {
  if (masterKey !== undefined || masterKeyFile !== undefined) return
  requireFolder(dataDir, 'set DATA_DIR, MASTER_KEY or MASTER_KEY_FILE as for the service')
}

function requireFolder (dataDir: string, advice: string): void {
  if (isReadable(dataDir)) return
  throw new FolderMissing(`There is no folder ${resolve(dataDir)} (DATA_DIR): ${advice}`)
}

// Whether a directory exists. Throws a StartError if this user may not read the directory: `existsSync` also returns
// false for a forbidden directory.
function isReadable (dir: string): boolean {
  try {
    accessSync(dir, constants.R_OK | constants.X_OK)
    return statSync(dir).isDirectory()
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code !== 'EACCES' && code !== 'EPERM') return false
    return refuse(`DATA_DIR: this user may not read ${resolve(dir)} (${code}): run the command as the user of the service`)
  }
}

/** Throws errors of the file system as a StartError that names DATA_DIR. */
export function explainFiles (dataDir: string, error: unknown): never {
  const { code, syscall } = error as NodeJS.ErrnoException
  if (code === undefined || syscall === undefined) throw error
  const place = `DATA_DIR: ${resolve(dataDir)}`
  if (code === 'ENOTDIR' || code === 'EEXIST') refuse(`${place} is a file or below a file: ${CHOOSE}`)
  if (code === 'EACCES' || code === 'EPERM' || code === 'EROFS') {
    refuse(`${place} cannot be written (${code}): make the directory writable for this user, or ${CHOOSE}`)
  }
  return refuse(`${place} cannot hold a database (${code}): ${CHOOSE}`)
}
