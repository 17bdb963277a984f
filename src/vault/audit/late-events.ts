import { databaseError, type Db } from '../../db/database.ts'
import { listLate, recordLate } from '../../repositories/audit/audit.ts'
import type { Log } from '../../telemetry/log.ts'
import { createBackground, type Background } from '../jobs/background.ts'
import { byTurns } from '../jobs/round-robin.ts'

/**
 * Numbers the events that could not wait for their organization's counter, as soon as it is free. It waits for no
 * lock, and no organization for another: not for one that is held, has very many, or records nothing more.
 *
 * @param putOff milliseconds until an organization of which nothing could be recorded is tried again
 */
export function createLateEventWorker ({ db, log, putOff }: { db: Db, log: Log, putOff?: number }): Background {
  return createBackground(byTurns<string, true>({
    list: (after, limit) => listLate(db, after, limit),
    nameOf: (organization) => organization,
    async take (organization) {
      const events = await recordLate(db, organization)
      if (events === undefined) return 'held'
      if (events === 0) return 'nothing'
      log.info({ organization, events }, 'late events recorded')
      return { more: true }
    },
    interrupted (error, organization) {
      const of = organization === undefined ? {} : { organization }
      log.warn({ err: databaseError(error), ...of }, 'the recording of late events was interrupted')
    },
    waiting (organizations) {
      log.warn({ organizations }, 'events wait for the counter of their organization')
    },
    ...(putOff !== undefined && { putOff })
  }))
}
