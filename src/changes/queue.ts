import { engineOf } from '../db/postgres/engine.ts'
import { databaseError, DatabaseUnavailable, isAwayForAll, neverSent } from '../db/postgres/database-errors.ts'
import { connectionsOf, slotsOf, type Db } from '../db/postgres/handle.ts'
import { atWaitTime, waitNow } from '../db/postgres/wait-clock.ts'
import type { QueueFigures } from '../telemetry/metrics.ts'

// Limits for waiting changes (per organization and in this process), and for one transaction.
const MAX_OF_ORGANIZATION = { entries: 1_000, bytes: 64 * 1024 * 1024 }
const MAX_WAITING = { entries: 10_000, bytes: 256 * 1024 * 1024 }
const MAX_BATCH = { entries: 100, bytes: 512 * 1024 }
/**
 * A change begins no transaction in its last second: one that meets a locked row takes up to 1.5 s to fail, and the
 * response is sent one second after the deadline at the latest.
 */
export const LAST_SECOND_MS = 1_000

/** A change that waits for a transaction. */
export interface Entry {
  readonly organizationId: string
  /** The deadline, by `waitNow`. */
  readonly until: number
  readonly bytes: number
  /** Whether the transaction must not contain changes of other organizations. It may then wait for locks. */
  isApart?: boolean
  /** Runs a transaction for entries that have the same `run` function. Rejects only if all these entries failed. */
  run: (db: Db, entries: never[]) => Promise<unknown>
  reject (error: unknown): void
}

interface Waiting { since: number, stopTimer: () => void }

/** The changes of one organization, in order. */
interface OrganizationQueue { organizationId: string, waiting: Map<Entry, Waiting>, bytes: number, isRunning: boolean }

interface Batch { entries: Entry[], queues: OrganizationQueue[], bytes: number }

const emptyBatch = (): Batch => ({ entries: [], queues: [], bytes: 0 })

/**
 * Queues the changes of this process, and runs them in transactions. An organization has one transaction at a time.
 * Changes with the same `run` function share a transaction, even if they are of different organizations.
 *
 * Rejects a change with DatabaseUnavailable if no transaction has taken it a second before its deadline. If a
 * transaction fails because the database is down, rejects all waiting changes of its organizations, too.
 */
export class Queue {
  readonly figures: QueueFigures = { waiting: 0, transactions: 0, entries: 0, waited: 0 }
  readonly #db: Db
  // Organizations with waiting or running changes. After a transaction, its organizations move to the end.
  readonly #queues = new Map<string, OrganizationQueue>()
  // Free slots for transactions. `isApart` changes have separate slots, because they may wait for locks.
  readonly #free: { shared: number, apart: number }
  #isScheduled = false
  #bytes = 0

  // On Citus, a batch has changes of one organization only, whose rows are on one node. Each connection is a slot, so
  // that small batches of many organizations run at once.
  readonly #isOfOne: boolean

  constructor (db: Db) {
    this.#db = db
    this.#isOfOne = engineOf(db) === 'citus'
    this.#free = { shared: this.#isOfOne ? connectionsOf(db) : slotsOf(db), apart: connectionsOf(db) }
  }

  join (entry: Entry) {
    const { organizationId, bytes, until } = entry
    const queue = this.#queues.get(organizationId) ??
      { organizationId, waiting: new Map<Entry, Waiting>(), bytes: 0, isRunning: false }
    const isFull = queue.waiting.size >= MAX_OF_ORGANIZATION.entries ||
      queue.bytes + bytes > MAX_OF_ORGANIZATION.bytes ||
      this.figures.waiting >= MAX_WAITING.entries || this.#bytes + bytes > MAX_WAITING.bytes
    if (isFull) return entry.reject(neverSent('Too many changes are waiting'))
    const latest = until - LAST_SECOND_MS
    if (latest <= waitNow()) return entry.reject(new DatabaseUnavailable('Too little time is left for a transaction'))
    this.#queues.set(organizationId, queue)
    const stopTimer = atWaitTime(latest, () => {
      this.#refuse(queue, entry, new DatabaseUnavailable('Too many changes of the organization came before'))
    })
    queue.waiting.set(entry, { since: waitNow(), stopTimer })
    queue.bytes += bytes
    this.#bytes += bytes
    this.figures.waiting++
    if (queue.isRunning || this.#isScheduled) return
    this.#isScheduled = true
    // Changes that join in one turn of the event loop can share a transaction.
    setImmediate(() => {
      this.#isScheduled = false
      this.#begin()
    })
  }

  #begin () {
    let shared = emptyBatch()
    for (const queue of this.#queues.values()) {
      if (queue.isRunning) continue
      const [first] = queue.waiting.keys()
      if (first!.isApart) {
        if (this.#free.apart === 0) continue
        const apart = emptyBatch()
        this.#take(apart, queue)
        this.#run(apart)
      } else if (this.#free.shared > 0 && !this.#take(shared, queue)) {
        this.#run(shared)
        shared = emptyBatch()
        if (this.#free.shared > 0) this.#take(shared, queue)
      }
    }
    if (shared.entries.length > 0) this.#run(shared)
  }

  // Moves an organization's changes to a batch, as far as they fit. Returns whether it moved a change.
  #take (batch: Batch, queue: OrganizationQueue): boolean {
    const before = batch.entries.length
    if (this.#isOfOne && before > 0) return false
    for (const entry of queue.waiting.keys()) {
      const [first = entry] = batch.entries
      if (entry.run !== first.run || entry.isApart !== first.isApart) continue
      const fits = batch.entries.length < MAX_BATCH.entries && batch.bytes + entry.bytes <= MAX_BATCH.bytes
      if (entry !== first && !fits) break
      batch.entries.push(entry)
      batch.bytes += entry.bytes
    }
    const taken = batch.entries.slice(before)
    if (taken.length === 0) return false
    batch.queues.push(queue)
    queue.isRunning = true
    for (const entry of taken) this.figures.waited += this.#remove(queue, entry)
    return true
  }

  // Never rejects.
  async #run ({ entries, queues }: Batch) {
    const [{ run, isApart }] = entries as [Entry]
    const kind = isApart ? 'apart' : 'shared'
    this.#free[kind]--
    this.figures.transactions++
    this.figures.entries += entries.length
    try {
      await run(this.#db, entries as never[])
    } catch (error) {
      for (const entry of entries) entry.reject(error)
      const isDown = isAwayForAll(error)
      for (const queue of isDown ? queues : []) {
        for (const entry of queue.waiting.keys()) this.#refuse(queue, entry, databaseError(error))
      }
    }
    this.#free[kind]++
    for (const queue of queues) {
      queue.isRunning = false
      this.#queues.delete(queue.organizationId)
      if (queue.waiting.size > 0) this.#queues.set(queue.organizationId, queue)
    }
    this.#begin()
  }

  // Returns how many milliseconds the change has waited.
  #remove (queue: OrganizationQueue, entry: Entry): number {
    const { since, stopTimer } = queue.waiting.get(entry)!
    stopTimer()
    queue.waiting.delete(entry)
    queue.bytes -= entry.bytes
    this.#bytes -= entry.bytes
    this.figures.waiting--
    if (queue.waiting.size === 0 && !queue.isRunning) this.#queues.delete(queue.organizationId)
    return waitNow() - since
  }

  #refuse (queue: OrganizationQueue, entry: Entry, error: Error) {
    this.#remove(queue, entry)
    entry.reject(error)
  }
}

const byHandle = new WeakMap<Db, Queue>()

export function queueOf (db: Db): Queue {
  let queue = byHandle.get(db)
  if (queue === undefined) byHandle.set(db, queue = new Queue(db))
  return queue
}
