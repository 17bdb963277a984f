import type { Keyring } from '../crypto/keyring.ts'
import { databaseError, type Db } from '../db/database.ts'
import { listReEncryptions } from '../repositories/histories.ts'
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
      try {
        for (const { project_id, organization } of await listReEncryptions(db)) await reEncrypt(organization, project_id)
      } catch (error) {
        // The next look goes on with it.
        log.warn({ err: databaseError(error) }, 'the re-encryption of a history was interrupted')
      }
    }
  }

  async function reEncrypt (organization: { id: string, storage_key: Buffer }, projectId: string) {
    const of = { organization: organization.id, project: projectId }
    const unreadable = new Set<number>()
    let moved = 0
    let reported = Date.now()
    for (let after = 0, end = false; !end;) {
      if (stopped) return
      const began = performance.now()
      const batch = await moveBatch({ db, keyring }, organization, projectId, after)
      for (const id of batch.unreadable) unreadable.add(id)
      moved += batch.moved
      ;({ last: after, end } = batch)
      if (Date.now() - reported >= REPORT_EVERY) {
        reported = Date.now()
        log.info({ ...of, moved }, 'history is being re-encrypted')
      }
      await rest(performance.now() - began)
    }
    // Otherwise another instance is at the rest, and whoever looks next will end it.
    const done = await endReEncryption({ db, keyring }, organization, projectId, unreadable.size)
    if (done !== undefined) log.info({ ...of, moved: done.moved, unreadable: unreadable.size }, 'history re-encrypted')
    for (const version of unreadable) log.warn({ ...of, version }, 'a version does not open and stays under its old key')
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
