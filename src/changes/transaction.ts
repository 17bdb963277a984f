import {
  databaseError, DatabaseUnavailable, isLockTimeout, isLostTransaction, LOCK_TIMEOUT
} from '../db/postgres/database-errors.ts'
import { DEADLINE, spending } from '../db/postgres/guard.ts'
import type { Db } from '../db/postgres/handle.ts'
import { pauseFor, waitNow } from '../db/postgres/wait-clock.ts'
import { findAuthority, setAuthority } from '../db/rows/authority.ts'
import { countersOf, type Counter } from '../db/rows/counter.ts'
import { RowLocked } from './callers.ts'
import { rememberEnds } from './reads.ts'

const ATTEMPTS = 4

// Milliseconds before a change with a locked row is retried.
const PAUSE = 20

/**
 * Runs `fn` in a transaction, for rows that belong to no organization, such as sessions and codes. Changes of an
 * organization take `change`. Runs `fn` again if the transaction is lost or meets a locked row (RowLocked).
 *
 * One deadline covers the time `waited`, which the request has already waited for the database, and all attempts.
 * Throws DatabaseUnavailable after the deadline. Errors contain no values of statements, so they may be logged.
 */
export async function transaction<T> (
  db: Db, fn: (db: Db) => Promise<T>, { waited = 0 }: { waited?: number | undefined } = {}
): Promise<T> {
  const began = waitNow() - waited
  for (let lost = 0; ;) {
    try {
      return await transactionOnce(db, fn, waitNow() - began)
    } catch (error) {
      if (error instanceof RowLocked) await pauseUntil(began + DEADLINE)
      else if (!isLostTransaction(error) || ++lost === ATTEMPTS) throw databaseError(error)
    }
  }
}

/** Runs a transaction once. `spent` milliseconds of the deadline have already passed. */
export async function transactionOnce<T> (db: Db, fn: (db: Db) => Promise<T>, spent: number): Promise<T> {
  let counters: readonly Counter[] = []
  const result = await spending(spent, () => db.transaction(async (tx) => {
    setAuthority(tx, findAuthority(db))
    counters = countersOf(tx)
    try {
      return await fn(tx)
    } catch (error) {
      throw counters.length > 0 && isLockTimeout(error) ? new RowLocked() : error
    }
  }))
  if (counters.length > 0) rememberEnds(db, counters)
  return result
}

/** Waits 20 ms before a retry. Throws DatabaseUnavailable if the deadline would pass. */
export async function pauseUntil (until: number): Promise<void> {
  if (waitNow() + PAUSE >= until) {
    throw new DatabaseUnavailable('A row that the change needs was locked for too long', LOCK_TIMEOUT)
  }
  await pauseFor(PAUSE)
}
