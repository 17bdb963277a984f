import type { FastifyInstance } from 'fastify'
import { databaseError, type Db } from '../../db/database.ts'
import { recordCalls } from '../../repositories/billing/usage.ts'

/** Counts the calls of each organization, without a write for each. */
export interface CallCounter {
  /** Records what was counted since the last time. What cannot be recorded now is kept for the next. */
  record (): Promise<void>
  start (): void
  stop (): Promise<void>
}

// Milliseconds. What was counted since is lost when the process is killed.
const RECORD_EVERY = 10_000

/**
 * Counts every request that an organization let in: whoever is past its rate limit is none. The counts are in memory,
 * and added to the organization's month every ten seconds and at the end.
 */
export function countCalls (app: FastifyInstance, db: Db): CallCounter {
  let counts = new Map<string, number>()
  let underWay = Promise.resolve()
  let timer: NodeJS.Timeout | undefined

  app.addHook('onResponse', ({ principal }, { statusCode }, done) => {
    if (principal !== null && statusCode !== 429) add(principal.organization.id, 1)
    done()
  })

  function add (id: string, calls: number) {
    counts.set(id, (counts.get(id) ?? 0) + calls)
  }

  // One at a time: what came meanwhile is recorded by the next.
  async function record () {
    underWay = underWay.then(recordCounted)
    await underWay
  }

  async function recordCounted () {
    if (counts.size === 0) return
    const recording = counts
    counts = new Map()
    try {
      await recordCalls(db, recording)
    } catch (error) {
      for (const [id, calls] of recording) add(id, calls)
      app.log.warn({ err: databaseError(error) }, 'calls were not recorded: they are, with the next ones')
    }
  }

  return {
    record,
    start () {
      timer = setInterval(() => { record() }, RECORD_EVERY)
      timer.unref()
    },
    async stop () {
      clearInterval(timer)
      await record()
    }
  }
}
