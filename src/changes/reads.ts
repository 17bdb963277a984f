import type { SynchronousCommit } from '../db/changes/chain.ts'
import { appendToKnownEnds } from '../db/changes/known-ends.ts'
import { codeOf, isAwayForAll, isUndone, type Db } from '../db/database.ts'
import { inTime, lateOf } from '../db/postgres/guard.ts'
import { waitNow } from '../db/postgres/wait-clock.ts'
import type { Request } from './steps.ts'

const NONE: ReadonlySet<string> = new Set()

/**
 * Records events in one statement if all requests only read. Returns the organizations whose events are recorded; the
 * events of other organizations need a transaction. `left`: milliseconds until the deadline.
 */
export async function recordReads (
  db: Db, requests: readonly Request[], commit: SynchronousCommit, left: number
): Promise<ReadonlySet<string>> {
  const rows = requests.flatMap((request) => 'row' in request ? [request.row] : [])
  if (rows.length < requests.length) return NONE
  try {
    return await inTime(waitNow() + left, appendToKnownEnds(db, rows, commit), lateOf(left))
  } catch (error) {
    // After an error of the statement, the transaction tells which event is at fault.
    if (isUndone(error) && codeOf(error) !== undefined && !isAwayForAll(error)) return NONE
    throw error
  }
}
