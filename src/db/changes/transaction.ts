import { findAuthority, setAuthority } from '../rows/authority.ts'
import { RowLocked, type Caller } from '../callers/caller.ts'
import { counterOf, openChange, type Counter } from './chain.ts'
import { rememberEnds } from './known-ends.ts'
import { databaseError, DatabaseUnavailable, isLockTimeout, isLostTransaction, LOCK_TIMEOUT } from '../postgres/errors.ts'
import { DEADLINE, spending } from '../postgres/guard.ts'
import type { Db } from '../postgres/handle.ts'
import { queueOf } from './queue.ts'
import { pauseFor, waitNow } from '../postgres/wait-clock.ts'

const ATTEMPTS = 4

// Milliseconds before a change with a locked row is retried.
const PAUSE = 20

/** Options of a transaction. An `Actor` has the same properties, so it can be passed. */
export interface Asking {
  organization_id?: string | undefined
  /** The credential of the request, which must be valid when the change commits. */
  caller?: Caller | null | undefined
  /** Milliseconds that the request has already waited for the database. */
  waited?: number | undefined
  /** The size of the change in bytes, for the limits of the queue. */
  bytes?: number
}

/**
 * Runs `fn` in a transaction. With `organization_id`, the transaction waits in the organization's queue and first locks
 * the organization's row in `organization_counters`, so no other change of the organization commits while `fn` runs.
 * Long operations omit `organization_id` and lock that row last.
 *
 * One deadline covers the time `waited`, the queue and all attempts.
 *
 * Throws CallerEnded if the credential is no longer valid, and DatabaseUnavailable after the deadline. Errors contain
 * no values of statements, so they may be logged.
 */
export async function transaction<T> (db: Db, fn: (db: Db) => Promise<T>, asking: Asking = {}): Promise<T> {
  const { organization_id, waited = 0, bytes = 0 } = asking
  const began = waitNow() - waited
  const until = began + DEADLINE
  const attempt = () => new Promise<T>((resolve, reject) => {
    const run = async () => { resolve(await spending(waitNow() - began, () => begin(db, fn, asking))) }
    if (organization_id === undefined) run().catch(reject)
    else queueOf(db).join({ organizationId: organization_id, until, bytes, isApart: true, run, reject })
  })
  for (let lost = 0; ;) {
    try {
      return await attempt()
    } catch (error) {
      if (error instanceof RowLocked || (organization_id !== undefined && isLockTimeout(error))) {
        await pauseUntil(until)
        continue
      }
      if (!isLostTransaction(error) || ++lost === ATTEMPTS) throw databaseError(error)
    }
  }
}

/**
 * Runs `fn` in a savepoint of the caller's transaction, which can continue after an error of `fn`. Without a
 * transaction, runs `fn` in a transaction of its own.
 */
export const savepoint = async <T>(db: Db, fn: (db: Db) => Promise<T>): Promise<T> =>
  db.transaction(async (nested) => {
    setAuthority(nested, findAuthority(db))
    return fn(nested)
  })

/** Runs a transaction once, without the queue. `spent` milliseconds of the deadline have already passed. */
export const transactionOnce = async <T>(db: Db, fn: (db: Db) => Promise<T>, spent: number): Promise<T> =>
  spending(spent, () => savepoint(db, fn))

/** Waits 20 ms before a retry. Throws DatabaseUnavailable if the deadline would pass. */
export async function pauseUntil (until: number): Promise<void> {
  if (waitNow() + PAUSE >= until) {
    throw new DatabaseUnavailable('A row that the change needs was locked for too long', LOCK_TIMEOUT)
  }
  await pauseFor(PAUSE)
}

async function begin<T> (
  db: Db, fn: (db: Db) => Promise<T>, { organization_id, caller }: Asking
): Promise<T> {
  let counter: Counter | undefined
  const result = await db.transaction(async (tx) => {
    setAuthority(tx, findAuthority(db))
    try {
      if (organization_id !== undefined) await openChange(tx, { organization_id, caller })
      return await fn(tx)
    } catch (error) {
      throw counterOf(tx) !== undefined && isLockTimeout(error) ? new RowLocked() : error
    } finally {
      counter = counterOf(tx)
    }
  })
  if (counter !== undefined) rememberEnds(db, [counter])
  return result
}
