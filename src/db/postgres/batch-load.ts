import { is } from 'drizzle-orm'
import { PgTransaction } from 'drizzle-orm/pg-core'
import { engineOf } from './engine.ts'
import { slotsOf, type Db } from './handle.ts'
import { codeOf, neverSent } from './database-errors.ts'
import { MAX_WAIT } from './guard.ts'
import { waitNow } from './wait-clock.ts'

const MAX_BATCH = 100
const MAX_QUEUE = 10_000
interface Queued<Q, A> {
  query: Q
  result: Promise<A>
  resolve: (result: A | Promise<A>) => void
  reject: (error: unknown) => void
  /** When the query was queued, by `waitNow`. */
  queuedAt: number
}

interface Pending<Q, A> {
  organization: string
  queue: Map<string, Queued<Q, A>>
  slots: number
  running: number
  isScheduled: boolean
}

export interface LookUp<Q, R, A> {
  /** The key of a query. Queries with equal keys share one result. */
  keyOf: (query: Q) => string
  /** The organization of a query. On Citus, `find` gets the queries of one organization. */
  organizationOf?: (query: Q) => string
  /** Loads the rows: an array for each query, in the same order. `organizationId` is the first query's organization. */
  find: (db: Db, queries: Q[], organizationId: string) => Promise<R[][]>
  /** The result of a query from its rows. An error rejects this query alone. */
  read: (db: Db, rows: R[], query: Q) => A
}

/**
 * Creates a loader that combines queries into one statement: queries of the same turn of the event loop, and queries
 * that arrive while all slots are in use. Caches nothing, so that a revoked token is refused at once. In a transaction,
 * each query is a separate statement. Rejects a query with DatabaseUnavailable after two seconds in the queue.
 */
export function batchLoad<Q, R, A> (
  { keyOf, organizationOf, find, read }: LookUp<Q, R, A>
): (db: Db, query: Q) => Promise<A> {
  const all = new WeakMap<Db, Map<string, Pending<Q, A>>>()

  const load = (db: Db, queries: Q[]) => find(db, queries, organizationOf?.(queries[0]!) ?? '')
  const alone = async (db: Db, query: Q): Promise<A> => read(db, (await load(db, [query]))[0]!, query)

  function send (db: Db, pending: Pending<Q, A>) {
    while (pending.queue.size > 0 && pending.running < pending.slots) {
      const batch = takeInTime(pending.queue)
      if (batch.length === 0) continue
      pending.running++
      resolveAll(db, batch).finally(() => {
        pending.running--
        send(db, pending)
        if (pending.running === 0 && pending.queue.size === 0) all.get(db)?.delete(pending.organization)
      })
    }
  }

  // On Citus, each organization has its own queue, because a statement is about one organization. The queue has one
  // slot, because Citus plans a statement at each execution: fewer statements with more queries each are faster.
  function pendingFor (db: Db, query: Q): Pending<Q, A> {
    const isOfOne = organizationOf !== undefined && engineOf(db) === 'citus'
    const organization = isOfOne ? organizationOf(query) : ''
    let own = all.get(db)
    if (own === undefined) all.set(db, own = new Map())
    let pending = own.get(organization)
    if (pending === undefined) {
      const slots = isOfOne ? 1 : slotsOf(db)
      pending = { organization, queue: new Map(), slots, running: 0, isScheduled: false }
      own.set(organization, pending)
    }
    return pending
  }

  function takeInTime (queue: Map<string, Queued<Q, A>>): Queued<Q, A>[] {
    const batch: Queued<Q, A>[] = []
    for (const [key, entry] of queue) {
      if (batch.length === MAX_BATCH) break
      queue.delete(key)
      if (waitNow() - entry.queuedAt < MAX_WAIT) batch.push(entry)
      else entry.reject(neverSent('A query waited too long for the database'))
    }
    return batch
  }

  // Never rejects: each query gets its own result.
  async function resolveAll (db: Db, batch: readonly Queued<Q, A>[]) {
    try {
      const rows = await load(db, batch.map(({ query }) => query))
      for (const [i, { query, resolve, reject }] of batch.entries()) {
        try {
          resolve(read(db, rows[i]!, query))
        } catch (error) {
          reject(error)
        }
      }
    } catch (error) {
      // A value of one query is invalid for its type (SQLSTATE class 22): retry the queries one by one.
      const isInvalidValue = batch.length > 1 && codeOf(error)?.startsWith('22')
      for (const { query, resolve, reject } of batch) {
        if (isInvalidValue) resolve(alone(db, query))
        else reject(error)
      }
    }
  }

  return (db, query) => {
    if (is(db, PgTransaction)) return alone(db, query)
    const pending = pendingFor(db, query)
    const key = keyOf(query)
    const duplicate = pending.queue.get(key)
    if (duplicate !== undefined) return duplicate.result
    if (pending.queue.size >= MAX_QUEUE) return Promise.reject(neverSent('Too many queries wait for the database'))
    let settle!: Pick<Queued<Q, A>, 'resolve' | 'reject'>
    const result = new Promise<A>((resolve, reject) => { settle = { resolve, reject } })
    pending.queue.set(key, { query, result, ...settle, queuedAt: waitNow() })
    if (!pending.isScheduled && pending.running < pending.slots) {
      pending.isScheduled = true
      setImmediate(() => {
        pending.isScheduled = false
        send(db, pending)
      })
    }
    return result
  }
}

export function groupByQuery<R extends { query_index: number }> (rows: readonly R[], queries: number): R[][] {
  const all = Array.from({ length: queries }, (): R[] => [])
  for (const row of rows) all[row.query_index]!.push(row)
  return all
}
