import type { Keyring } from '../crypto/keyring.ts'
import { databaseError, type Db } from '../db/database.ts'
import { listReEncryptions, START } from '../repositories/histories.ts'
import { createBackground, rest, type Background } from './background.ts'
import { endReEncryption, moveBatch } from './history.ts'

interface Log {
  info (details: object, message: string): void
  warn (details: object, message: string): void
}

const REPORT_EVERY = 5_000
// Between passes over a history, while somebody else is at it.
const LOOK_AGAIN = 100
// Versions that do not open, which the log names one by one.
const MOST_NAMED = 10

/**
 * Re-encrypts histories in the background; several instances at once share the work.
 */
export function createHistoryWorker ({ db, keyring, log }: { db: Db, keyring: Keyring, log: Log }): Background {
  function interrupted (error: unknown, of: object = {}): [] {
    log.warn({ err: databaseError(error), ...of }, 'the re-encryption of a history was interrupted')
    return []
  }

  async function reEncrypt (
    organization: { id: string, storage_key: Buffer }, projectId: string, isStopped: () => boolean
  ) {
    const of = { organization: organization.id, project: projectId }
    let moved = 0
    let reported = Date.now()

    // Moves what waits and ends the re-encryption when nothing is left; whether it has to be gone through again.
    async function pass (): Promise<boolean> {
      const named: number[] = []
      let unreadable = 0
      let met = 0
      for (let after = START, end = false; !end;) {
        if (isStopped()) return false
        const began = performance.now()
        const batch = await moveBatch({ db, keyring }, organization, projectId, after)
        unreadable += batch.unreadable.length
        named.push(...batch.unreadable.slice(0, MOST_NAMED - named.length))
        moved += batch.moved
        met += batch.moved + batch.held
        ;({ last: after, end } = batch)
        if (Date.now() - reported >= REPORT_EVERY) {
          reported = Date.now()
          log.info({ ...of, moved }, 'history is being re-encrypted')
        }
        await rest(began)
      }
      const done = await endReEncryption({ db, keyring }, organization, projectId, unreadable)
      if (done !== undefined) log.info({ ...of, moved: done.moved, unreadable }, 'history re-encrypted')
      // Instances that leave out what the other one holds both find something left. Whoever met anything looks again,
      // until another one has ended it: otherwise the rest would wait until the background's next look.
      else if (met > 0) return true
      if (unreadable > 0) {
        log.warn({ ...of, unreadable, versions: named }, 'versions do not open and stay under their old key')
      }
      return false
    }
    while (await pass()) await rest(performance.now(), LOOK_AGAIN)
  }

  return createBackground(async (isStopped) => {
    for (const { project_id, organization } of await listReEncryptions(db).catch(interrupted)) {
      // One that fails does not hold up the others; the next look tries it again.
      await reEncrypt(organization, project_id, isStopped).catch((error: unknown) =>
        interrupted(error, { organization: organization.id, project: project_id }))
    }
  })
}
