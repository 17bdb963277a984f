import { replaceUnlisted, recordLate } from '../changes/late.ts'
import type { Db } from '../db/database.ts'
import { listLate } from '../repositories/audit/audit.ts'
import type { Log } from '../telemetry/log.ts'
import type { Background } from './background.ts'
import { createRoundRobin } from './round-robin.ts'

/**
 * Appends late events (`late_events`) to the audit chains of their organizations when the counter rows are not locked.
 * The worker does not wait for locks, and serves the organizations in turn, so that no organization delays the others.
 * `retryDelay` is in milliseconds.
 */
export function createLateEventWorker (
  { db, log, retryDelay }: { db: Db, log: Log, retryDelay?: number }
): Background {
  return createRoundRobin<string, true>({
    async list (after, limit) {
      if (after === undefined) await replaceUnlisted(db)
      return listLate(db, after, limit)
    },
    nameOf: (organization) => organization,
    async step (organization) {
      const events = await recordLate(db, organization)
      if (events === undefined) return 'locked'
      if (events === 0) return 'nothing'
      log.info({ organization, events }, 'late events recorded')
      return { more: true }
    },
    log,
    failure: 'recording late events failed; will retry',
    about: (organization) => ({ organization }),
    onLocked: (organizations) => { log.warn({ organizations }, 'events wait for the counter of their organization') },
    retryDelay
  })
}
