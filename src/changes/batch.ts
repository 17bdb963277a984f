import { codeOf, databaseError, isAwayForAll, isLockTimeout, isUndone, type Db } from '../db/database.ts'
import { isLostTransaction } from '../db/postgres/database-errors.ts'
import { DEADLINE, endOfWait } from '../db/postgres/guard.ts'
import { waitNow } from '../db/postgres/wait-clock.ts'
import { RowLocked } from './callers.ts'
import type { SynchronousCommit } from './counter.ts'
import { LAST_SECOND_MS, queueOf, type Entry } from './queue.ts'
import { recordReads } from './reads.ts'
import { takeSteps, type Made, type Request } from './steps.ts'
import { pauseUntil, transactionOnce } from './transaction.ts'

/** Whether queued requests share a transaction. Without, each request gets a transaction of its own. */
const IS_SHARED = true

type Queued = Entry & Request & {
  commit: SynchronousCommit
  resolve: (answer?: Made | Promise<Made>) => void
}

// Minimum timeout of a transaction: longer than `lock_timeout`, so that a locked counter row gives a lock timeout.
const MIN_TIMEOUT_MS = 1_500

/**
 * Runs a request in a transaction with other requests; with `isApart`, alone. Resolves after the commit with the
 * response of a change. Throws the errors of the steps, and DatabaseUnavailable after the deadline. `waited`: the
 * milliseconds that the HTTP request has already waited for the database.
 */
export const inBatch = (db: Db, request: Request, waited: number | undefined, commit: SynchronousCommit) =>
  new Promise<Made | undefined>((resolve, reject) => {
    const isAlone = !IS_SHARED || request.isApart === true
    const run: Entry['run'] = isAlone ? (db, entries) => runTogether(db, entries) : runTogether
    queueOf(db).join({ ...request, until: endOfWait(waited), commit, run, resolve, reject } as Queued)
  })

async function runTogether (db: Db, queued: readonly Queued[]): Promise<void> {
  const commit = queued.some(({ commit }) => commit === 'on') ? 'on' : 'off'
  const until = Math.min(...queued.map(({ until }) => until))
  const timeLeft = () => Math.max(MIN_TIMEOUT_MS, until - waitNow())
  const recorded = await recordReads(db, queued, commit, timeLeft())
  for (const request of queued) if (recorded.has(request.organizationId)) request.resolve()
  const entries = queued.filter(({ organizationId }) => !recorded.has(organizationId))
  if (entries.length === 0) return
  try {
    const outcomes = await transactionOnce(db, async (db) => takeSteps(db, entries, commit), DEADLINE - timeLeft())
    for (const [i, entry] of entries.entries()) {
      const outcome = outcomes[i]!
      if ('isLeft' in outcome) queueOf(db).join(entry)
      else if ('answer' in outcome) entry.resolve(outcome.answer)
      else if ('dryRun' in outcome) entry.resolve(outcome.dryRun())
      else if (outcome.error instanceof RowLocked) requeue(db, entry)
      else entry.reject(outcome.error)
    }
  } catch (error) {
    const isLocked = error instanceof RowLocked || isLockTimeout(error) || isLostTransaction(error)
    // An error without a code means that no connection was available, so a retry of each request would fail, too.
    const isOfOne = entries.length > 1 && codeOf(error) !== undefined && isUndone(error) && !isAwayForAll(error)
    if (!isLocked && !isOfOne) throw databaseError(error)
    for (const entry of entries) {
      // One of the requests made the transaction fail. Each request gets its own `run` function, because requests with
      // different `run` functions do not share a transaction.
      if (!isLocked) entry.run = (db, entries) => runTogether(db, entries)
      requeue(db, entry)
    }
  }
}

// Queues a request again: the first time immediately, later after a pause.
function requeue (db: Db, entry: Queued) {
  const join = () => { queueOf(db).join(entry) }
  if (entry.isApart) pauseUntil(entry.until - LAST_SECOND_MS).then(join, entry.reject)
  else {
    entry.isApart = true
    join()
  }
}
