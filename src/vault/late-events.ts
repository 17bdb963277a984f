import { databaseError, type Db } from '../db/database.ts'
import { listLate, recordLate } from '../repositories/audit.ts'
import { createBackground, type Background } from './background.ts'

interface Log {
  info (details: object, message: string): void
  warn (details: object, message: string): void
}

// Milliseconds between two looks at a counter that somebody holds, at first and at last.
const PAUSE = { first: 10, last: 1_000 }

// Milliseconds until what failed is tried again while others are waited for.
const FAILED_FOR = 30_000

type Outcome = 'recorded' | 'held' | 'failed'

/**
 * Numbers the events that could not wait for their organization's counter, as soon as it is free. Waits for no lock.
 */
export function createLateEventWorker ({ db, log }: { db: Db, log: Log }): Background {
  const interrupted = (error: unknown, of: object = {}) => {
    log.warn({ err: databaseError(error), ...of }, 'the recording of late events was interrupted')
  }

  async function record (organization: string, isStopped: () => boolean): Promise<Outcome> {
    try {
      for (let events: number | undefined; events !== 0 && !isStopped();) {
        events = await recordLate(db, organization)
        if (events === undefined) return 'held'
        if (events > 0) log.info({ organization, events }, 'late events recorded')
      }
    } catch (error) {
      interrupted(error, { organization })
      return 'failed'
    }
    return 'recorded'
  }

  return createBackground(async (isStopped) => {
    try {
      // What fails is left to the next look, and whoever is waited for puts off nobody else: each round lists anew.
      const failed = new Map<string, number>()
      const hasFailed = (organization: string) =>
        performance.now() - (failed.get(organization) ?? -Infinity) < FAILED_FOR
      for (let pause = PAUSE.first; !isStopped(); pause = Math.min(2 * pause, PAUSE.last)) {
        const held: string[] = []
        for (const organization of await listLate(db)) {
          if (isStopped()) return
          if (hasFailed(organization)) continue
          const outcome = await record(organization, isStopped)
          if (outcome === 'held') held.push(organization)
          if (outcome === 'failed') failed.set(organization, performance.now())
        }
        if (held.length === 0) return
        if (pause === PAUSE.last) {
          log.warn({ organizations: held }, 'events wait for the counter of their organization')
        }
        await new Promise((resolve) => { setTimeout(resolve, pause) })
      }
    } catch (error) {
      interrupted(error)
    }
  })
}
