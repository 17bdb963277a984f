import type { Keyring } from '../crypto/keyring.ts'
import { databaseError, type Db } from '../db/database.ts'
import { listReEncryptions, START } from '../repositories/histories.ts'
import { endReEncryption, moveBatch } from './history.ts'

interface Log {
  info (details: object, message: string): void
  warn (details: object, message: string): void
}

/** Re-encrypts histories in the background. */
export interface HistoryWorker {
  /** Begins at once, and looks again every half minute for what another instance left. */
  start (): void
  /** Looks now: a rotation has just asked for it. */
  wake (): void
  /** Ends after the batch that is under way. */
  stop (): Promise<void>
}

const LOOK_EVERY = 30_000
const REPORT_EVERY = 5_000
const SHORTEST_REST = 5
// Versions that do not open, which the log names one by one.
const MOST_NAMED = 10

/**
 * The background worker. What it has to do stands in the database alone, so a restart or another instance goes on where
 * it ended; several at once share the work. It rests as long as each batch took: requests come first.
 */
export function createHistoryWorker ({ db, keyring, log }: { db: Db, keyring: Keyring, log: Log }): HistoryWorker {
  let timer: NodeJS.Timeout | undefined
  let running: Promise<void> | undefined
  let again = false
  let stopped = false

  function wake () {
    if (stopped) return
    again = true
    if (running !== undefined) return
    running = work().finally(() => { running = undefined })
  }

  async function work () {
    while (again) {
      again = false
      for (const { project_id, organization } of await listReEncryptions(db).catch(interrupted)) {
        // One that fails does not hold up the others; the next look tries it again.
        await reEncrypt(organization, project_id).catch((error: unknown) => interrupted(error, { organization: organization.id, project: project_id }))
      }
    }
  }

  function interrupted (error: unknown, of: object = {}): [] {
    log.warn({ err: databaseError(error), ...of }, 'the re-encryption of a history was interrupted')
    return []
  }

  async function reEncrypt (organization: { id: string, storage_key: Buffer }, projectId: string) {
    const of = { organization: organization.id, project: projectId }
    let unreadable = 0
    const named: number[] = []
    let moved = 0
    let reported = Date.now()
    for (let after = START, end = false; !end;) {
      if (stopped) return
      const began = performance.now()
      const batch = await moveBatch({ db, keyring }, organization, projectId, after)
      unreadable += batch.unreadable.length
      named.push(...batch.unreadable.slice(0, MOST_NAMED - named.length))
      moved += batch.moved
      ;({ last: after, end } = batch)
      if (Date.now() - reported >= REPORT_EVERY) {
        reported = Date.now()
        log.info({ ...of, moved }, 'history is being re-encrypted')
      }
      await rest(performance.now() - began)
    }
    // Otherwise another instance is at the rest, and whoever looks next will end it.
    const done = await endReEncryption({ db, keyring }, organization, projectId, unreadable)
    if (done !== undefined) log.info({ ...of, moved: done.moved, unreadable }, 'history re-encrypted')
    if (unreadable > 0) log.warn({ ...of, unreadable, versions: named }, 'versions do not open and stay under their old key')
  }

  return {
    start () {
      timer = setInterval(wake, LOOK_EVERY)
      timer.unref()
      wake()
    },
    wake,
    async stop () {
      stopped = true
      again = false
      clearInterval(timer)
      await running
    }
  }
}

const rest = (milliseconds: number) => new Promise((resolve) => { setTimeout(resolve, Math.max(SHORTEST_REST, milliseconds)) })
