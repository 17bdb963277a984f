import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { loadConfig, type Config } from '../../config.ts'
import { authorityOf, connect, DiskFull, setAuthority, type Database } from '../../db/database.ts'
import { counted } from '../../rules/formats/phrases.ts'
import { openEverything, OPENED } from '../../vault/operations/restore-drill.ts'
import { openRows } from '../../jobs/violations.ts'
import { describeVerified, readAnchors, verifyDatabase } from '../audit/audit.ts'
import { DamagedBackup } from './backup-file.ts'
import { describeSummary, openBackup, refuseWithoutRoom, restoreInto, rowsIn, type Source } from './backup.ts'
import { fileCommand, type Noun } from '../common/noun.ts'
import { FolderMissing, requireKeyFolder } from '../common/data-dir.ts'
import { Interrupted, lineOf, StartError } from '../common/command-errors.ts'
import { checkKeys, openKeyring } from '../common/open.ts'
import { withProgress, type Progress } from '../common/progress.ts'
import { makeScratch } from '../common/scratch.ts'
import { warn, write } from '../common/stdio.ts'
import { TEXT } from '../common/words.ts'

export const noun: Noun = {
  help: `  drill FILE [--identity FILE] [--anchors LOG]
                                          test-restore a backup: decrypt everything, verify the audit log
`,

  run: fileCommand('drill', { identity: TEXT, anchors: TEXT }, async (file, { identity, anchors }, env) => {
    // Exit status 1 means a faulty backup. Errors that prevent the drill have exit status 2.
    try {
      const config = loadConfig(env)
      return await withProgress({ left: 'The drill is incomplete. Its temporary database was removed.' }, (progress) =>
        drill(config, { file, identity }, anchors, progress))
    } catch (error) {
      if (error instanceof Interrupted || error instanceof FolderMissing) throw error
      warn(lineOf(error))
      return 2
    }
  })
}

/**
 * Restores a backup into a temporary embedded database, decrypts everything and verifies the audit log. Returns the
 * exit status: 0 without faults, otherwise 1.
 */
async function drill (
  config: Config, source: Source, anchorLog: string | undefined, progress: Progress
): Promise<number> {
  requireKeyFolder(config)
  await refuseWithoutRoom(source, tmpdir())
  const keyring = await openKeyring(config)
  const anchors = await readAnchors(anchorLog)
  let faults = 0
  const fault = (line: string) => {
    faults++
    warn(line)
  }
  try {
    const read = await openBackup(keyring, source, progress)
    await withScratch(async (database) => {
      const restored = await database.maintain((db) => restoreInto(db, keyring, read(), progress), 'takes in a backup')
      await write(`Restored ${describeSummary(restored)}\n`)
      if (rowsIn(restored, 'organizations') === 0) fault('The backup contains no organization: check that it is from the right database')
      await database.migrate()
      await checkKeys(database, keyring)
      await openRows(database, keyring)
      progress.begin('Opening', 'rows', OPENED.reduce((sum, table) => sum + rowsIn(restored, table), 0))
      const { versions, documents, of_clients, removed, keys, rows } = await database.maintain(async (db) => {
        setAuthority(db, authorityOf(database.db))
        return openEverything(db, keyring, fault, () => progress.advance())
      }, 'is opened')
      await write(`Opened ${counted(versions, 'version')}, ${counted(documents, 'document')} and ${counted(keys, 'key')} ` +
        `(client-encrypted: ${of_clients}; queued for removal: ${removed}); authentic rows: ${rows}\n`)
      for await (const verified of verifyDatabase({ database, keyring }, {}, anchors, progress)) {
        if (verified.broken === null) await write(`${describeVerified(verified)}\n`)
        else fault(describeVerified(verified))
      }
    })
  } catch (error) {
    if (!(error instanceof DamagedBackup)) throw error
    fault(error.message)
  }
  await write(`The drill found ${faults === 0 ? 'nothing wrong' : counted(faults, 'fault')}.\n`)
  return faults === 0 ? 0 : 1
}

async function withScratch (act: (database: Database) => Promise<void>): Promise<void> {
  const { path: dir, remove } = makeScratch(() => mkdtempSync(join(tmpdir(), 'strongroom-drill-')))
  try {
    const database = await connect({ dir, pool: 1, durable: false })
    try {
      await act(database)
    } finally {
      await database.close()
    }
  } catch (error) {
    throw error instanceof DiskFull ? new StartError(`No space is left in ${tmpdir()} (TMPDIR)`) : error
  } finally {
    remove()
  }
}
