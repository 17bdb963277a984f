import { channel } from 'node:diagnostics_channel'
import type { Sql, TransactionSql } from 'postgres'
import { beginPiece } from '../../telemetry/spans.ts'
import { Gate } from '../../gate.ts'
import { DatabaseUnavailable, neverSent, OutOfTime } from './database-errors.ts'
import { afterWait, atWaitTime, pauseWaits, waitNow } from './wait-clock.ts'

/** The deadline in milliseconds for a statement, a transaction, and all of a request's work on the database. */
export const DEADLINE = 4_000
// A transaction that times out counts as a database outage if its deadline was at least this many milliseconds away.
const LEAST_OF_OUTAGE = 3_000
/** The maximum wait for a connection in milliseconds, and the maximum number of waiting requests. */
export const MAX_WAIT = 2_000
export const MAX_WAITING = 200
// Milliseconds between two long transactions on the only connection, in which waiting requests can run.
const PAUSE = { min: 250, max: 1_000 }

/**
 * Publishes each statement, without values, before it is sent and after its response, and the phases `begin` and
 * `begun` of transactions. For debuggers and crash tests; the service does not subscribe.
 */
const statements = channel('strongroom:statement')
const tell = (phase: 'before' | 'after' | 'begin' | 'begun', text: unknown, prepared = false) => {
  if (statements.hasSubscribers) statements.publish({ phase, text, prepared })
}

/** The deadline, by `waitNow`, of a request that has already waited this many milliseconds for the database. */
export const endOfWait = (waited = 0): number => waitNow() + DEADLINE - waited

/** Throws OutOfTime if `work` does not end by `until`. A sent statement continues; its outcome is unknown. */
export const inTime = <T>(until: number, work: Promise<T>, Late = OutOfTime): Promise<T> =>
  within(until, work, () => {}, Late)

/** The error for work that does not end in the milliseconds that it has left. */
export const lateOf = (left: number): typeof OutOfTime => left < LEAST_OF_OUTAGE ? OutOfTime : DatabaseUnavailable

let spentOfNext = 0

/** Calls `begin`, and shortens the deadline of the transaction that `begin` starts by this many milliseconds. */
export function spending<T> (milliseconds: number, begin: () => T): T {
  spentOfNext = milliseconds
  try {
    return begin()
  } finally {
    spentOfNext = 0
  }
}

type Result = Record<string, unknown>[] | unknown[][]
type Run = (shape: 'rows' | 'values') => Promise<Result>

export const createPool = (slots: number, maxWaiting = MAX_WAITING): Gate =>
  new Gate([{ running: slots, waiting: maxWaiting }], {
    refuse: (reason) => neverSent(reason === 'full'
      ? 'Too many are waiting for the database'
      : 'No database connection became free in time'),
    timeout: MAX_WAIT,
    after: afterWait
  })

export interface Bounds {
  /** Limits the operations that the driver gets at once. */
  pool: Gate
  /** Called with every error of a statement. */
  onError?: (error: unknown) => void
  /** Milliseconds after which a statement or transaction fails. */
  deadline?: number
  /** The maximum wait for a free slot in milliseconds. */
  patience?: number
  /**
   * For long transactions on the only connection: other requests do not time out meanwhile. The next long transaction
   * waits as long as the previous one took (0.25 to 1 s), so that other requests get the connection.
   */
  isAlone?: boolean
  /** Whether statements are prepared. The text of such a statement must not depend on a list's length (`isOneOf`). */
  prepare: boolean
}

/**
 * Wraps the driver's client for Drizzle, with deadlines and a limited queue. The driver's own queue has no limit and no
 * timeout, so `pool` limits the operations that the driver gets at once.
 */
export function guard (
  client: Sql, { pool, onError = () => {}, deadline = DEADLINE, patience = MAX_WAIT, isAlone = false, prepare }: Bounds
): Sql {
  const options = { prepare }

  async function statement (shape: 'rows' | 'values', ...call: Parameters<Sql['unsafe']>) {
    const until = waitNow() + deadline
    const end = beginPiece('statement', call[0])
    const leave = await pool.enter([], patience)
    tell('before', call[0], prepare)
    const query = client.unsafe(call[0], call[1], options)
    const work: Promise<Result> = shape === 'values' ? query.values().execute() : query.execute()
    work.catch(onError).then(leave)
    const result = await within(until, work, () => {
      // A query with state `null` was not sent yet. statement_timeout or silence_timeout ends a sent query.
      if ((query as { state?: unknown }).state === null) query.cancel()
    }).finally(end)
    tell('after', call[0], prepare)
    return result
  }

  async function begin<T> (fn: (tx: TransactionSql) => Promise<T>) {
    const left = deadline - spentOfNext
    const Late = lateOf(left)
    const called = waitNow()
    const done = beginPiece('transaction')
    if (left <= 0) throw neverSent('The deadline was over before there was a connection')
    const leave = await pool.enter([], Math.min(patience, left))
    // With `isAlone`, the deadline is in real time, and starts after the wait for the previous long transaction.
    const until = isAlone ? performance.now() + left : called + left
    const end: { over?: Error, fire: (error: Error) => void } = { fire: () => {} }
    const fired = new Promise<never>((_resolve, reject) => { end.fire = reject })
    fired.catch(() => {})
    tell('begin', 'begin')
    let resume = () => {}
    let began = 0
    const work = client.begin(async tx => {
      tell('begun', 'begin')
      began = performance.now()
      if (isAlone) resume = pauseWaits()
      if (end.over) throw end.over
      const result = await Promise.race([fn(guardTransaction(tx, end, options)), fired])
      // The driver sends COMMIT after this function. An error thrown here causes a rollback.
      if (end.over) throw end.over
      tell('before', 'commit')
      return result
    }) as Promise<T>
    work.catch(onError).then(() => {
      resume()
      if (isAlone) setTimeout(leave, Math.min(Math.max(performance.now() - began, PAUSE.min), PAUSE.max))
      else leave()
    })
    try {
      const result = await within(until, work, error => {
        end.over = error
        end.fire(error)
      }, Late, isAlone)
      tell('after', 'commit')
      return result
    } finally {
      end.over ??= new Error('The transaction is over: a statement was not awaited in it')
      done()
    }
  }

  const unsafe = (...call: Parameters<Sql['unsafe']>) => pending(shape => statement(shape, ...call))
  return { options: client.options, unsafe, begin } as unknown as Sql
}

// After its deadline, a transaction must not use its connection, because another request may already use it.
function guardTransaction (tx: TransactionSql, end: { over?: Error }, options: { prepare: boolean }): TransactionSql {
  const unsafe = (...call: Parameters<Sql['unsafe']>) => pending(async shape => {
    if (end.over) throw end.over
    tell('before', call[0], options.prepare)
    const done = beginPiece('statement', call[0])
    // Sends the statement synchronously, so that statements keep their order.
    const query = tx.unsafe(call[0], call[1], options)
    const result: Result = await (shape === 'values' ? query.values().execute() : query.execute())
    done()
    tell('after', call[0], options.prepare)
    return result
  })
  const savepoint = async (fn: (tx: TransactionSql) => Promise<unknown>) => {
    if (end.over) throw end.over
    return await tx.savepoint(async inner => await fn(guardTransaction(inner, end, options)))
  }
  return { unsafe, savepoint } as unknown as TransactionSql
}

// Drizzle awaits a statement, or calls `.values()` of the statement. Both ways send the statement.
function pending (run: Run) {
  return {
    values: () => run('values'),
    then: (...handlers: Parameters<Promise<Result>['then']>) => run('rows').then(...handlers)
  }
}

async function within<T> (
  until: number, work: Promise<T>, giveUp: (error: Error) => void, Late = DatabaseUnavailable, isRealTime = false
): Promise<T> {
  let cancel = () => {}
  const late = new Promise<never>((_resolve, reject) => {
    const end = () => {
      const error = new Late('The database did not answer in time')
      giveUp(error)
      reject(error)
    }
    if (!isRealTime) cancel = atWaitTime(until, end)
    else {
      const timer = setTimeout(end, until - performance.now())
      cancel = () => { clearTimeout(timer) }
    }
  })
  try {
    return await Promise.race([work, late])
  } finally {
    cancel()
  }
}
