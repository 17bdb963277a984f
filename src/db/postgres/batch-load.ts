import { is } from 'drizzle-orm'
import { PgTransaction } from 'drizzle-orm/pg-core'
import { slotsOf, type Db } from './handle.ts'
import { codeOf, neverSent } from './errors.ts'
import { MAX_WAIT } from './guard.ts'
import { waitNow } from './wait-clock.ts'

/** Maximum queries in one statement. */
const MOST = 100
/** Maximum queries in the queue of one loader. */
const MOST_WAITING = 10_000
interface Asked<Q, A> {
  question: Q
  answer: Promise<A>
  resolve: (answer: A | Promise<A>) => void
  reject: (error: unknown) => void
  /** The time of the query, by `waitNow`. */
  at: number
}

/** The queue of a loader, and its number of free slots. */
interface Pending<Q, A> {
  asked: Map<string, Asked<Q, A>>
  freeSlots: number
  isScheduled: boolean
}

/** How to load several queries at once. */
export interface LookUp<Q, R, A> {
  /** The key of a query. Queries with equal keys share one result. */
  keyOf: (question: Q) => string
  /** The rows for each of the queries, in their order. */
  find: (db: Db, questions: Q[]) => Promise<R[][]>
  /** The result of a query from its rows. An error rejects this query alone. */
  read: (db: Db, rows: R[], question: Q) => A
}

/**
 * A loader that answers many queries with one statement: all queries of one turn of the event loop, and all queries
 * made while the loader's slots are in use. A statement is sent after its queries were made, and nothing is cached, so
 * a revoked token is refused at once. In a transaction each query is a statement of its own. A query that waits longer
 * than two seconds before it is sent is refused (DatabaseUnavailable).
 */
export function gather<Q, R, A> ({ keyOf, find, read }: LookUp<Q, R, A>): (db: Db, question: Q) => Promise<A> {
  const all = new WeakMap<Db, Pending<Q, A>>()

  const alone = async (db: Db, question: Q): Promise<A> => read(db, (await find(db, [question]))[0]!, question)

  function send (db: Db, pending: Pending<Q, A>) {
    while (pending.asked.size > 0 && pending.freeSlots > 0) {
      const batch = takeInTime(pending.asked)
      if (batch.length === 0) continue
      pending.freeSlots--
      answerAll(db, batch).finally(() => {
        pending.freeSlots++
        send(db, pending)
      })
    }
  }

  function takeInTime (asked: Map<string, Asked<Q, A>>): Asked<Q, A>[] {
    const batch: Asked<Q, A>[] = []
    for (const [key, one] of asked) {
      if (batch.length === MOST) break
      asked.delete(key)
      if (waitNow() - one.at < MAX_WAIT) batch.push(one)
      else one.reject(neverSent('A query waited too long for the database'))
    }
    return batch
  }

  // Never rejects: each query gets its own result.
  async function answerAll (db: Db, asked: readonly Asked<Q, A>[]) {
    try {
      const rows = await find(db, asked.map(({ question }) => question))
      for (const [i, { question, resolve, reject }] of asked.entries()) {
        try {
          resolve(read(db, rows[i]!, question))
        } catch (error) {
          reject(error)
        }
      }
    } catch (error) {
      // A value of one query is invalid for its type (SQLSTATE class 22): retry the queries one by one.
      const isOfOne = asked.length > 1 && codeOf(error)?.startsWith('22')
      for (const { question, resolve, reject } of asked) {
        if (isOfOne) resolve(alone(db, question))
        else reject(error)
      }
    }
  }

  return (db, question) => {
    if (is(db, PgTransaction)) return alone(db, question)
    let pending = all.get(db)
    if (pending === undefined) all.set(db, pending = { asked: new Map(), freeSlots: slotsOf(db), isScheduled: false })
    const key = keyOf(question)
    const same = pending.asked.get(key)
    if (same !== undefined) return same.answer
    if (pending.asked.size >= MOST_WAITING) return Promise.reject(neverSent('Too many queries wait for the database'))
    let settle!: Pick<Asked<Q, A>, 'resolve' | 'reject'>
    const answer = new Promise<A>((resolve, reject) => { settle = { resolve, reject } })
    pending.asked.set(key, { question, answer, ...settle, at: waitNow() })
    if (!pending.isScheduled && pending.freeSlots > 0) {
      pending.isScheduled = true
      setImmediate(() => {
        pending.isScheduled = false
        send(db, pending)
      })
    }
    return answer
  }
}

/** Groups rows by the number of their query, from 0. */
export function byQuestion<R extends { question: number }> (rows: readonly R[], questions: number): R[][] {
  const all = Array.from({ length: questions }, (): R[] => [])
  for (const row of rows) all[row.question]!.push(row)
  return all
}
