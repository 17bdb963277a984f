import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { loadConfig, type Config } from '../../config.ts'
import { authorityOf, connect, DiskFull, setAuthority, type Database } from '../../db/database.ts'
import { counted } from '../../rules/formats/phrases.ts'
import { openEverything, OPENED } from '../../vault/operations/restore-drill.ts'
import type { Verified } from '../../vault/audit/verification.ts'
import { openRows } from '../../jobs/violations.ts'
import { describeVerified, readAnchors, verifyDatabase } from '../audit/audit.ts'
import { DamagedBackup } from './backup-file.ts'
import { describeSummary, fieldsOf, openBackup, refuseWithoutRoom, restoreInto, rowsIn, type Source } from './backup.ts'
import { fileCommand, type Noun } from '../common/noun.ts'
import { orUndecided, requireKeyFolder } from '../common/data-dir.ts'
import { StartError } from '../common/command-errors.ts'
import { checkKeys, openKeyring } from '../common/open.ts'
import { withProgress } from '../common/progress.ts'
import { makeScratch } from '../common/scratch.ts'
import { warn, write, writeJson, type Progress } from '../common/stdio.ts'
import { FLAG, TEXT } from '../common/words.ts'

export const noun: Noun = {
  help: `  drill FILE [--identity FILE] [--anchors LOG] [--json]
                                          test-restore a backup: decrypt everything, verify the audit log
`,

  run: fileCommand('drill', { identity: TEXT, anchors: TEXT, json: FLAG }, async (file, { identity, anchors, json }, env) => {
    const left = 'The drill is incomplete. Its temporary database was removed.'
    const print = async (line: string) => json ? undefined : write(`${line}\n`)
    return orUndecided(() => withProgress({ json, left }, async (progress) => {
      const report = await drill(loadConfig(env), { file, identity }, anchors, progress, print)
      if (json) await writeJson(report)
      return report.faults.length === 0 ? 0 : 1
    }))
  })
}

/** What a drill found; null or empty: a fault ended the drill before. */
interface Report {
  backup: ReturnType<typeof fieldsOf> | null
  opened: Awaited<ReturnType<typeof openEverything>> | null
  audit: Verified[]
  faults: string[]
}

/**
 * Restores a backup into a temporary embedded database, decrypts everything and verifies the audit log. Prints a line
 * for each step; faults on standard error.
 */
async function drill (
  config: Config, source: Source, anchorLog: string | undefined, progress: Progress,
  print: (line: string) => Promise<void>
): Promise<Report> {
  requireKeyFolder(config)
  await refuseWithoutRoom(source, tmpdir())
  const keyring = await openKeyring(config)
  const anchors = await readAnchors(anchorLog)
  const report: Report = { backup: null, opened: null, audit: [], faults: [] }
  const fault = (line: string) => {
    report.faults.push(line)
    warn(line)
  }
  try {
    const read = await openBackup(keyring, source, progress)
    await withScratch(async (database) => {
      const restored = await database.maintain((db) => restoreInto(db, keyring, read(), progress), 'takes in a backup')
      report.backup = fieldsOf(restored)
      await print(`Restored ${describeSummary(restored)}`)
      if (rowsIn(restored, 'organizations') === 0) fault('The backup contains no organization: check that it is from the right database')
      await database.migrate()
      await checkKeys(database, keyring)
      await openRows(database, keyring)
      progress.begin('Opening', 'rows', OPENED.reduce((sum, table) => sum + rowsIn(restored, table), 0))
      report.opened = await database.maintain(async (db) => {
        setAuthority(db, authorityOf(database.db))
        return openEverything(db, keyring, fault, () => progress.advance())
      }, 'is opened')
      const { versions, documents, of_clients, removed, keys, rows } = report.opened
      await print(`Opened ${counted(versions, 'version')}, ${counted(documents, 'document')} and ${counted(keys, 'key')} ` +
        `(client-encrypted: ${of_clients}; queued for removal: ${removed}); authentic rows: ${rows}`)
      for await (const verified of verifyDatabase({ database, keyring }, {}, anchors, progress)) {
        report.audit.push(verified)
        if (verified.broken === null) await print(describeVerified(verified))
        else fault(describeVerified(verified))
      }
    })
  } catch (error) {
    if (!(error instanceof DamagedBackup)) throw error
    fault(error.message)
  }
  await print(`The drill found ${report.faults.length === 0 ? 'nothing wrong' : counted(report.faults.length, 'fault')}.`)
  return report
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
