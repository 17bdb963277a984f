import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { authorityOf, connect, DiskFull, setAuthority, type Database } from '../../db/database.ts'
import { counted } from '../../rules/formats/words.ts'
import { openEverything } from '../../vault/jobs/restore-drill.ts'
import { openRows } from '../../vault/audit/row-authentication.ts'
import { describeVerified, readAnchors, verifyDatabase } from '../audit/audit.ts'
import { DamagedBackup } from './backup-file.ts'
import { describeSummary, openBackup, refuseWithoutRoom, restoreInto, rowsIn, type Source } from './backup.ts'
import { checkKeys, openKeyring, StartError } from '../common/open.ts'
import { makeScratch } from '../common/scratch.ts'

/**
 * Restores a backup into a temporary embedded database, decrypts everything and verifies the audit log. Returns the
 * exit status: 0 without faults, otherwise 1.
 */
export async function drill (
  config: Config, { anchors: log, ...source }: Source & { anchors?: string | undefined },
  { say, warn }: { say: (line: string) => Promise<void>, warn: (line: string) => void }
): Promise<number> {
  await refuseWithoutRoom(source, tmpdir())
  const keyring = await openKeyring(config)
  const anchors = await readAnchors(log)
  let faults = 0
  const fault = (line: string) => {
    faults++
    warn(line)
  }
  try {
    const read = await openBackup(keyring, source)
    await withScratch(async (database) => {
      const brought = await database.maintain((db) => restoreInto(db, keyring, read()), 'takes in a backup')
      await say(`Restored ${describeSummary(brought)}`)
      if (rowsIn(brought, 'organizations') === 0) fault('The backup contains no organization: check that it is from the right database\n')
      await database.migrate()
      await checkKeys(database, keyring)
      await openRows(database, keyring)
      const { versions, documents, of_clients, removed, keys, rows } = await database.maintain(async (db) => {
        setAuthority(db, authorityOf(database.db))
        return openEverything(db, keyring, (line) => { fault(`${line}\n`) })
      }, 'is opened')
      await say(`Opened ${versions} versions, ${documents} documents and ${keys} keys ` +
        `(${of_clients} values remain client-encrypted); ` +
        `${removed} versions are queued for removal; ${rows} rows are authentic\n`)
      for await (const verified of verifyDatabase({ database, keyring }, {}, anchors)) {
        if (verified.broken === null) await say(describeVerified(verified))
        else fault(describeVerified(verified))
      }
    })
  } catch (error) {
    if (!(error instanceof DamagedBackup)) throw error
    fault(`${error.message}\n`)
  }
  await say(`The drill found ${faults === 0 ? 'nothing wrong' : counted(faults, 'fault')}.\n`)
  return faults === 0 ? 0 : 1
}

async function withScratch (act: (database: Database) => Promise<void>): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'strongroom-drill-'))
  const remove = makeScratch(dir)
  try {
    const database = await connect({ dir, pool: 1, durable: false })
    try {
      await act(database)
    } finally {
      await database.close()
    }
  } catch (error) {
    throw error instanceof DiskFull ? new StartError(`There is no room left in ${tmpdir()} (TMPDIR)`) : error
  } finally {
    remove()
  }
}
