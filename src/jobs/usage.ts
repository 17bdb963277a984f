import { databaseError, type Db } from '../db/database.ts'
import { recordCalls } from '../repositories/billing/usage.ts'
import type { Log } from '../telemetry/log.ts'
import { createBackground } from './background.ts'

// The interval of writes in milliseconds. A killed process loses the counts since the last write.
const RECORD_EVERY = 10_000

/** Counts API calls of organizations in memory, and adds the counts to the database, also when it stops. */
export function createCallCounter ({ db, log }: { db: Db, log: Log }) {
  let counts = new Map<string, number>()
  const job = createBackground(record, RECORD_EVERY)

  function count (organization: string, calls = 1) {
    counts.set(organization, (counts.get(organization) ?? 0) + calls)
  }

  // Counts that cannot be written are kept for the next write.
  async function record () {
    if (counts.size === 0) return
    const recording = counts
    counts = new Map()
    try {
      await recordCalls(db, recording)
    } catch (error) {
      for (const [organization, calls] of recording) count(organization, calls)
      log.warn({ err: databaseError(error) }, 'recording API calls failed; will retry')
    }
  }

  return {
    ...job,
    count,
    record,
    async stop () {
      await job.stop()
      await record()
    }
  }
}
