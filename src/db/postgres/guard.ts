import { channel } from 'node:diagnostics_channel'
import type { Sql, TransactionSql } from 'postgres'
import { beginPiece } from '../../telemetry/spans.ts'
import { DatabaseUnavailable, neverSent, OutOfTime } from './errors.ts'
import { atWaitTime, pauseWaits, waitNow } from './wait-clock.ts'

/**
 * Milliseconds after which a statement or transaction is given up, the time that it waited included; and all that a
 * request does one after the other.
 */
export const DEADLINE = 4_000
// A transaction that had at least so many milliseconds, and did not end, shows that the database is down.
const LEAST_OF_OUTAGE = 3_000
/** Milliseconds that somebody waits for a connection, and how many wait for one at most. */
export const MAX_WAIT = 2_000
export const MAX_WAITING = 200
// Milliseconds between two long transactions on the only connection: enough for the requests that waited for the first
// one to end, with all their statements, before the second one begins.
const PAUSE = { min: 250, max: 1_000 }

/**
 * Tells its subscribers of every statement, before it is sent and after it was answered: `{ phase, text, prepared }`,
 * never the values; and of a transaction, before its first one (`begin`) and when it has begun (`begun`). Nobody
 * subscribes in the service itself; a debugger or a crash test can.
 */
const statements = channel('strongroom:statement')
const tell = (phase: 'before' | 'after' | 'begin' | 'begun', text: unknown, prepared = false) => {
  if (statements.hasSubscribers) statements.publish({ phase, text, prepared })
}

/** When a request that has waited so many milliseconds for the database waits no longer, by `waitNow`. */
export const endOfWait = (waited = 0): number => waitNow() + DEADLINE - waited

/**
 * Waits for work on the database until then. What was sent goes on to its own deadline: nobody knows its outcome.
 *
 * Throws OutOfTime.
 */
export const inTime = <T>(until: number, work: Promise<T>): Promise<T> => within(until, work, () => {}, OutOfTime)

let spentOfNext = 0

/** Begins a transaction, of whose deadline so many milliseconds are spent already by what came before it. */
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

/** Who uses a client, and who waits for it; kept by its guard. */
export interface Pool {
  /** Uses that are in the driver's hands at once. */
  readonly slots: number
  /** Uses that wait for a slot at most. */
  readonly maxWaiting: number
  free: number
  readonly waiting: (() => void)[]
  /** Uses that waited too long, and those that were refused because too many waited. */
  timeouts: number
  refused: number
}

/** A pool without uses. */
export const createPool = (slots: number, maxWaiting = MAX_WAITING): Pool =>
  ({ slots, maxWaiting, free: slots, waiting: [], timeouts: 0, refused: 0 })

/** Bounds of a client. */
export interface Bounds {
  pool: Pool
  /** Sees every error of a statement. */
  onError?: (error: unknown) => void
  /** Milliseconds after which a statement or transaction is given up. */
  deadline?: number
  /** Milliseconds to wait for a free slot. */
  patience?: number
  /**
   * Of long transactions on the only connection: the waits of all others do not count while one runs, and after it they
   * have the connection for as long as it took, a quarter of a second at least and a second at most.
   */
  isAlone?: boolean
  /**
   * Whether each statement is prepared on its connection, by its text, and planned once for all values: what requests
   * send. So a text does not vary with the length of a list (`isOneOf`).
   */
  prepare: boolean
}

/**
 * The client that Drizzle gets: the driver's, with a bound on everything that can last. The driver queues without limit
 * and waits for ever, so at most the pool's `slots` are in its hands and the rest waits here.
 */
export function guard (
  client: Sql, { pool, onError = () => {}, deadline = DEADLINE, patience = MAX_WAIT, isAlone = false, prepare }: Bounds
): Sql {
  const options = { prepare }

  async function statement (shape: 'rows' | 'values', ...call: Parameters<Sql['unsafe']>) {
    const until = waitNow() + deadline
    const end = beginPiece('statement', call[0])
    const leave = await enterPool(pool, patience)
    tell('before', call[0], prepare)
    const query = client.unsafe(call[0], call[1], options)
    const work: Promise<Result> = shape === 'values' ? query.values().execute() : query.execute()
    work.catch(onError).then(leave)
    const result = await within(until, work, () => {
      // Without a state it was not sent yet. What was sent is ended by statement_timeout or silence_timeout
      if ((query as { state?: unknown }).state === null) query.cancel()
    }).finally(end)
    tell('after', call[0], prepare)
    return result
  }

  async function begin<T> (fn: (tx: TransactionSql) => Promise<T>) {
    const left = deadline - spentOfNext
    const Late = left < LEAST_OF_OUTAGE ? OutOfTime : DatabaseUnavailable
    const called = waitNow()
    const done = beginPiece('transaction')
    const leave = await enterPool(pool, Math.min(patience, left))
    // A long transaction has the only connection from here on. Its deadline counts real time, and not the time that it
    // waited for the long transaction before.
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
      // From here on the commit is sent: thrown before it, this rolls back
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

// A transaction given up must not reach its connection any more, which by then serves somebody else
function guardTransaction (tx: TransactionSql, end: { over?: Error }, options: { prepare: boolean }): TransactionSql {
  const unsafe = (...call: Parameters<Sql['unsafe']>) => pending(async shape => {
    if (end.over) throw end.over
    tell('before', call[0], options.prepare)
    const done = beginPiece('statement', call[0])
    // Sent at once: statements go out in the order in which they are called.
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

// Drizzle either awaits a statement or calls `.values()` on it: it starts when one of the two happens
function pending (run: Run) {
  return {
    values: () => run('values'),
    then: (...handlers: Parameters<Promise<Result>['then']>) => run('rows').then(...handlers)
  }
}

// Waits for a free slot of a pool, and returns a function that leaves the slot. Throws DatabaseUnavailable when too
// many wait, or when no slot became free within so many milliseconds.
async function enterPool (pool: Pool, patience: number): Promise<() => void> {
  const { waiting } = pool
  const leave = () => {
    const next = waiting.shift()
    if (next) next()
    else pool.free++
  }
  if (patience <= 0) throw neverSent('The deadline was over before there was a connection')
  if (pool.free > 0) {
    pool.free--
    return leave
  }
  if (waiting.length >= pool.maxWaiting) {
    pool.refused++
    throw neverSent('Too many are waiting for the database')
  }
  await new Promise<void>((resolve, reject) => {
    const cancel = atWaitTime(waitNow() + patience, () => {
      waiting.splice(waiting.indexOf(go), 1)
      pool.timeouts++
      reject(neverSent('No database connection became free in time'))
    })
    const go = () => {
      cancel()
      resolve()
    }
    waiting.push(go)
  })
  return leave
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
