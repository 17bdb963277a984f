import { accessSync, chmodSync, constants, existsSync } from 'node:fs'
import { join, resolve } from 'node:path'
import type { Config } from '../../config.ts'
import { hasCluster } from '../../db/database.ts'
import { makeDirectoryDurably } from './durable.ts'
import { refuse } from './errors.ts'

/** The directory of the embedded database. */
export const directoryOf = ({ dataDir }: Config) => join(dataDir, 'postgres')

const CHOOSE = 'set DATA_DIR to a directory that this user can write'

/** Creates the data directory if it is missing. Throws a StartError if it cannot be created or used. */
export function makeDataDir ({ dataDir }: Config): void {
  try {
    if (!existsSync(dataDir)) {
      makeDirectoryDurably(dataDir, 0o700)
      chmodSync(dataDir, 0o700)
    }
    // With the dot, a file is ENOTDIR.
    accessSync(`${resolve(dataDir)}/.`, constants.R_OK | constants.W_OK | constants.X_OK)
  } catch (error) {
    explainFiles(dataDir, error)
  }
}

/** Throws a StartError without an embedded database, for commands that do not create one. */
export function requireDatabase (config: Config): void {
  const { databaseUrl, dataDir } = config
  if (databaseUrl !== undefined || hasCluster(directoryOf(config))) return
  const advice = 'set DATA_DIR or DATABASE_URL as for the service'
  refuse(existsSync(dataDir)
    ? `No database in ${resolve(dataDir)} (DATA_DIR): ${advice}`
    : `There is no folder ${resolve(dataDir)} (DATA_DIR): ${advice}`)
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
