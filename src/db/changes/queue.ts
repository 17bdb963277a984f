import { databaseError, DatabaseUnavailable, isAwayForAll, neverSent } from '../postgres/errors.ts'
import { connectionsOf, slotsOf, type Db } from '../postgres/handle.ts'
import { atWaitTime, waitNow } from '../postgres/wait-clock.ts'

// Limits of the changes that wait in this process: of one organization, and of all.
const MAX_OF_ORGANIZATION = { entries: 1_000, bytes: 64 * 1024 * 1024 }
const MAX_WAITING = { entries: 10_000, bytes: 256 * 1024 * 1024 }
const MAX_BATCH = { entries: 100, bytes: 512 * 1024 }

/** A change that waits for a transaction. */
export interface Entry {
  readonly organizationId: string
  /** The deadline, by `waitNow`. */
  readonly until: number
  readonly bytes: number
  /** Whether the transaction carries this organization alone. It may then wait for a lock. */
  isApart?: boolean
  /** Runs a transaction; changes with the same function share one. Rejects only when all of its changes failed. */
  run: (db: Db, entries: never[]) => Promise<unknown>
  reject (error: unknown): void
}

interface Waiting { since: number, stopTimer: () => void }

/** The changes of one organization, in their order. */
interface Line { organizationId: string, waiting: Map<Entry, Waiting>, bytes: number, isRunning: boolean }

/** The changes that one transaction takes, and their lines. */
interface Batch { entries: Entry[], lines: Line[], bytes: number }

const emptyBatch = (): Batch => ({ entries: [], lines: [], bytes: 0 })

/** Metrics: waiting changes; in total, transactions, their changes, and the milliseconds that these waited. */
export interface QueueFigures { waiting: number, transactions: number, entries: number, waited: number }

/**
 * The changes that wait in this process. Each organization has one transaction at a time, which locks its counter row.
 * Changes with the same `run` share a transaction, also those of different organizations.
 *
 * A change that waits until its deadline is refused (DatabaseUnavailable). When the database is down, a failed
 * transaction refuses all changes that wait in its lines.
 */
export class Queue {
  readonly figures: QueueFigures = { waiting: 0, transactions: 0, entries: 0, waited: 0 }
  readonly #db: Db
  // Lines with changes that wait or run. A line moves to the end after each of its transactions.
  readonly #lines = new Map<string, Line>()
  // Transactions that may begin. Those of changes apart may each wait for a lock with a connection.
  readonly #free: { shared: number, apart: number }
  #isScheduled = false
  #bytes = 0

  constructor (db: Db) {
    this.#db = db
    this.#free = { shared: slotsOf(db), apart: connectionsOf(db) }
  }

  join (entry: Entry) {
    const { organizationId, bytes, until } = entry
    const line = this.#lines.get(organizationId) ??
      { organizationId, waiting: new Map<Entry, Waiting>(), bytes: 0, isRunning: false }
    const isFull = line.waiting.size >= MAX_OF_ORGANIZATION.entries || line.bytes + bytes > MAX_OF_ORGANIZATION.bytes ||
      this.figures.waiting >= MAX_WAITING.entries || this.#bytes + bytes > MAX_WAITING.bytes
    if (isFull) return entry.reject(neverSent('Too many changes are waiting'))
    this.#lines.set(organizationId, line)
    const stopTimer = atWaitTime(until, () => {
      this.#refuse(line, entry, new DatabaseUnavailable('Too many changes of the organization came before'))
    })
    line.waiting.set(entry, { since: waitNow(), stopTimer })
    line.bytes += bytes
    this.#bytes += bytes
    this.figures.waiting++
    if (line.isRunning || this.#isScheduled) return
    this.#isScheduled = true
    // Changes of the same turn of the event loop share a transaction.
    setImmediate(() => {
      this.#isScheduled = false
      this.#begin()
    })
  }

  // Begins as many transactions as possible.
  #begin () {
    let shared = emptyBatch()
    for (const line of this.#lines.values()) {
      if (line.isRunning) continue
      const [first] = line.waiting.keys()
      if (first!.isApart) {
        if (this.#free.apart === 0) continue
        const apart = emptyBatch()
        this.#take(apart, line)
        this.#run(apart)
      } else if (this.#free.shared > 0 && !this.#take(shared, line)) {
        this.#run(shared)
        shared = emptyBatch()
        if (this.#free.shared > 0) this.#take(shared, line)
      }
    }
    if (shared.entries.length > 0) this.#run(shared)
  }

  // Moves changes that fit from a line to a batch; returns whether there were any.
  #take (batch: Batch, line: Line): boolean {
    const before = batch.entries.length
    for (const entry of line.waiting.keys()) {
      const [first = entry] = batch.entries
      if (entry.run !== first.run || entry.isApart !== first.isApart) continue
      const fits = batch.entries.length < MAX_BATCH.entries && batch.bytes + entry.bytes <= MAX_BATCH.bytes
      if (entry !== first && !fits) break
      batch.entries.push(entry)
      batch.bytes += entry.bytes
    }
    const taken = batch.entries.slice(before)
    if (taken.length === 0) return false
    batch.lines.push(line)
    line.isRunning = true
    for (const entry of taken) this.figures.waited += this.#remove(line, entry)
    return true
  }

  // Never rejects.
  async #run ({ entries, lines }: Batch) {
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
      for (const line of isDown ? lines : []) {
        for (const entry of line.waiting.keys()) this.#refuse(line, entry, databaseError(error))
      }
    }
    this.#free[kind]++
    for (const line of lines) {
      line.isRunning = false
      this.#lines.delete(line.organizationId)
      if (line.waiting.size > 0) this.#lines.set(line.organizationId, line)
    }
    this.#begin()
  }

  // Returns how many milliseconds the change has waited.
  #remove (line: Line, entry: Entry): number {
    const { since, stopTimer } = line.waiting.get(entry)!
    stopTimer()
    line.waiting.delete(entry)
    line.bytes -= entry.bytes
    this.#bytes -= entry.bytes
    this.figures.waiting--
    if (line.waiting.size === 0 && !line.isRunning) this.#lines.delete(line.organizationId)
    return waitNow() - since
  }

  #refuse (line: Line, entry: Entry, error: Error) {
    this.#remove(line, entry)
    entry.reject(error)
  }
}

const queues = new WeakMap<Db, Queue>()

/** The queue of a database handle. */
export function queueOf (db: Db): Queue {
  let queue = queues.get(db)
  if (queue === undefined) queues.set(db, queue = new Queue(db))
  return queue
}
