import type { FastifyInstance } from 'fastify'
import { databaseError, type Db } from '../../db/database.ts'
import { recordCalls } from '../../repositories/billing/usage.ts'

// The interval of writes in milliseconds. A killed process loses the counts since the last write.
const RECORD_EVERY = 10_000

/**
 * Counts the authenticated requests of each organization, except those with 429, in memory. `record`, `stop` and a
 * timer add the counts to the database, where each organization has a count per month.
 */
export function countCalls (app: FastifyInstance, db: Db) {
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

  // One write at a time. Counts that cannot be written are kept for the next write.
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
      app.log.warn({ err: databaseError(error) }, 'recording API calls failed; will retry')
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
