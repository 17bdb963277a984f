import { databaseError, type Db } from '../db/database.ts'
import { listLate, recordLate } from '../repositories/audit.ts'
import { createBackground, type Background } from './background.ts'

interface Log {
  info (details: object, message: string): void
  warn (details: object, message: string): void
}

// Milliseconds between two looks at a counter that somebody holds, at first and at last.
const PAUSE = { first: 10, last: 1_000 }

/**
 * Numbers the events that could not wait for their organization's counter, as soon as it is free. Waits for no lock.
 */
export function createLateEventWorker ({ db, log }: { db: Db, log: Log }): Background {
  const interrupted = (error: unknown, of: object = {}) => {
    log.warn({ err: databaseError(error), ...of }, 'the recording of late events was interrupted')
  }

  /** Whether everything of the organization is recorded, or failed; what failed is left to the next look. */
  async function record (organization: string, isStopped: () => boolean): Promise<boolean> {
    try {
      for (let events: number | undefined; events !== 0 && !isStopped();) {
        events = await recordLate(db, organization)
        if (events === undefined) return false
        if (events > 0) log.info({ organization, events }, 'late events recorded')
      }
    } catch (error) {
      interrupted(error, { organization })
    }
    return true
  }

  return createBackground(async (isStopped) => {
    try {
      let pause = PAUSE.first
      for (let left = await listLate(db); left.length > 0 && !isStopped();) {
        const held: string[] = []
        for (const organization of left) if (!await record(organization, isStopped)) held.push(organization)
        if (held.length > 0) {
          if (pause === PAUSE.last) {
            log.warn({ organizations: held }, 'events wait for the counter of their organization')
          }
          await new Promise((resolve) => { setTimeout(resolve, pause) })
        }
        pause = Math.min(2 * pause, PAUSE.last)
        left = held
      }
    } catch (error) {
      interrupted(error)
    }
  })
}
