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
// Between passes over a history while somebody else is at it, and how many of them find nothing to do at most.
const LOOK_AGAIN = 100
const MOST_IDLE = 50
const NOTHING = { moved: 0, held: 0 }
// Versions that do not open, which the log names one by one.
const MOST_NAMED = 10

type Waiting = Awaited<ReturnType<typeof listReEncryptions>>[number]

/**
 * Re-encrypts histories in the background; several instances at once share the work.
 */
export function createHistoryWorker ({ db, keyring, log }: { db: Db, keyring: Keyring, log: Log }): Background {
  function interrupted (error: unknown, of: object = {}): [] {
    log.warn({ err: databaseError(error), ...of }, 'the re-encryption of a history was interrupted')
    return []
  }

  // Moves what waits of one project, and ends its re-encryption when nothing is left. Answers what it met that it may
  // find changed the next time: versions that it moved, and those that somebody else held.
  async function pass (
    { project_id, organization }: Waiting, isStopped: () => boolean
  ): Promise<{ moved: number, held: number }> {
    const of = { organization: organization.id, project: project_id }
    const met = { moved: 0, held: 0 }
    const named: number[] = []
    let unreadable = 0
    let reported = Date.now()
    for (let after = START, end = false; !end;) {
      if (isStopped()) return NOTHING
      const began = performance.now()
      const batch = await moveBatch({ db, keyring }, organization, project_id, after)
      unreadable += batch.unreadable.length
      named.push(...batch.unreadable.slice(0, MOST_NAMED - named.length))
      met.moved += batch.moved
      met.held += batch.held
      ;({ last: after, end } = batch)
      if (Date.now() - reported >= REPORT_EVERY) {
        reported = Date.now()
        log.info({ ...of, moved: met.moved }, 'history is being re-encrypted')
      }
      await rest(began)
    }
    const done = await endReEncryption({ db, keyring }, organization, project_id, unreadable)
    if (done !== undefined) log.info({ ...of, moved: done.moved, unreadable }, 'history re-encrypted')
    else if (met.moved + met.held > 0) return met
    if (unreadable > 0) {
      log.warn({ ...of, unreadable, versions: named }, 'versions do not open and stay under their old key')
    }
    return NOTHING
  }

  return createBackground(async (isStopped) => {
    // Instances that leave out what the other one holds both find something left. Whoever met anything goes over it
    // again, until another one has ended it: otherwise the rest would wait until the background's next look.
    let left = await listReEncryptions(db).catch(interrupted)
    for (let idle = 0; left.length > 0 && idle < MOST_IDLE;) {
      const again: Waiting[] = []
      let moved = 0
      for (const one of left) {
        // One that fails does not hold up the others; the next look tries it again.
        const met = await pass(one, isStopped).catch((error: unknown) => {
          interrupted(error, { organization: one.organization.id, project: one.project_id })
          return NOTHING
        })
        moved += met.moved
        if (met.moved + met.held > 0) again.push(one)
      }
      idle = moved > 0 ? 0 : idle + 1
      left = again
      if (left.length > 0) await rest(performance.now(), LOOK_AGAIN)
    }
  })
}
