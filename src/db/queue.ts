import { databaseError, DatabaseUnavailable, isAwayForAll, neverSent } from './errors.ts'
import { slotsOf, type Db } from './handle.ts'
import { atWaitTime, waitNow } from './wait-clock.ts'

// Changes that wait in this process at most, and their bytes: of one organization, and of all.
const MOST = { entries: 1_000, bytes: 64 * 1024 * 1024 }
const MOST_OF_ALL = { entries: 10_000, bytes: 256 * 1024 * 1024 }
// Changes that one transaction takes at most, and their bytes.
const TOGETHER = { entries: 100, bytes: 512 * 1024 }

/** Runs changes of several organizations together. Rejects only when all of them failed. */
export type Serve<E> = (db: Db, entries: E[]) => Promise<void>

/** A change that waits for its turn. */
export interface Entry {
  readonly organizationId: string
  /** When the change waits no longer, by `waitNow`. */
  readonly until: number
  readonly bytes: number
  /** Whether the change goes with no change of another organization. */
  isApart?: boolean
  reject (error: unknown): void
}

/** The result of a transaction, which can be known before the transaction is over. */
export interface Started<T> { result: Promise<T>, over: Promise<unknown> }

interface Waiting {
  entry: Entry
  serve: Serve<never>
  since: number
  stop: () => void
}

/** The changes of one organization. */
interface Line { organizationId: string, waiting: Waiting[], bytes: number, isRunning: boolean }

/** What the queues of a handle have done, for the metrics. */
export interface QueueFigures { waiting: number, transactions: number, entries: number, waited: number }

/**
 * The changes that wait in this process, in one line for each organization. Of an organization one transaction runs at
 * a time, since each transaction locks the organization's counter row first. Changes that have the same `serve` are
 * taken into one transaction, also those of several organizations.
 *
 * A change that waits longer than its deadline is refused (DatabaseUnavailable). When the database is away, all that
 * wait are refused, so that each of them does not find out by a deadline of its own.
 */
export class Queue {
  /**
   * How many changes wait now; and in all, how many transactions took how many changes, and how many milliseconds these
   * waited.
   */
  readonly figures: QueueFigures = { waiting: 0, transactions: 0, entries: 0, waited: 0 }
  readonly #db: Db
  readonly #lines = new Map<string, Line>()
  // Lines that wait and have no transaction, the one that has waited longest first.
  readonly #ready = new Set<Line>()
  // Transactions with changes of several organizations that may begin.
  #free: number
  #isDue = false
  #bytes = 0

  constructor (db: Db) {
    this.#db = db
    this.#free = slotsOf(db)
  }

  /** Runs a transaction by itself when it is its organization's turn. The line goes on when the transaction is over. */
  alone<T> (entry: Omit<Entry, 'reject'>, start: () => Started<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      this.#add({ ...entry, isApart: true, reject }, async () => {
        const { result, over } = start()
        result.then(resolve, reject)
        await over
      })
    })
  }

  /** Has a change served together with others that wait. */
  join<E extends Entry> (entry: E, serve: Serve<E>) {
    this.#add(entry, serve)
  }

  #add (entry: Entry, serve: Serve<never>) {
    const { waiting: { length }, bytes } = this.#lines.get(entry.organizationId) ?? { waiting: [], bytes: 0 }
    const isFull = length >= MOST.entries || bytes + entry.bytes > MOST.bytes ||
      this.figures.waiting >= MOST_OF_ALL.entries || this.#bytes + entry.bytes > MOST_OF_ALL.bytes
    if (isFull) {
      entry.reject(neverSent('Too many changes are waiting'))
      return
    }
    const line = this.#lineOf(entry.organizationId)
    const waiting: Waiting = {
      entry,
      serve,
      since: waitNow(),
      stop: atWaitTime(entry.until, () => {
        this.#remove(line, [waiting])
        entry.reject(new DatabaseUnavailable('Too many changes of the organization came before'))
      })
    }
    line.waiting.push(waiting)
    line.bytes += entry.bytes
    this.#bytes += entry.bytes
    this.figures.waiting++
    if (line.isRunning) return
    this.#ready.add(line)
    if (this.#isDue) return
    this.#isDue = true
    // Changes that come in the same turn of the event loop go together.
    setImmediate(() => {
      this.#isDue = false
      this.#begin()
    })
  }

  #lineOf (organizationId: string): Line {
    let line = this.#lines.get(organizationId)
    if (line === undefined) {
      line = { organizationId, waiting: [], bytes: 0, isRunning: false }
      this.#lines.set(organizationId, line)
    }
    return line
  }

  // Begins as many transactions as can be.
  #begin () {
    let together = new Batch()
    for (const line of this.#ready) {
      if (line.waiting[0]!.entry.isApart) {
        const apart = new Batch()
        apart.take(line)
        this.#run(apart, 0)
      } else if (this.#free > 0 && !together.take(line)) {
        this.#run(together, 1)
        together = new Batch()
        if (this.#free > 0) together.take(line)
      }
    }
    if (together.lines.length > 0) this.#run(together, 1)
  }

  #run (batch: Batch, slots: 0 | 1) {
    this.#free -= slots
    this.#serve(batch).catch(() => {}).then(() => {
      this.#free += slots
      this.#begin()
    })
  }

  // Never rejects.
  async #serve ({ lines, taken }: Batch) {
    const [{ serve }] = taken as [Waiting]
    for (const line of lines) {
      line.isRunning = true
      this.#ready.delete(line)
      this.#remove(line, taken.filter(({ entry }) => entry.organizationId === line.organizationId))
    }
    this.figures.transactions++
    this.figures.entries += taken.length
    for (const { since } of taken) this.figures.waited += waitNow() - since
    try {
      await serve(this.#db, taken.map(({ entry }) => entry) as never[])
    } catch (error) {
      for (const { entry } of taken) entry.reject(error)
      if (isAwayForAll(error)) for (const line of lines) this.#refuse(line, databaseError(error))
    }
    for (const line of lines) {
      line.isRunning = false
      if (line.waiting.length > 0) this.#ready.add(line)
      else this.#lines.delete(line.organizationId)
    }
  }

  #remove (line: Line, some: readonly Waiting[]) {
    const gone = new Set(some)
    line.waiting = line.waiting.filter((one) => !gone.has(one))
    for (const { entry, stop } of some) {
      stop()
      line.bytes -= entry.bytes
      this.#bytes -= entry.bytes
      this.figures.waiting--
    }
    if (line.waiting.length > 0 || line.isRunning) return
    this.#ready.delete(line)
    this.#lines.delete(line.organizationId)
  }

  #refuse (line: Line, error: Error) {
    const all = line.waiting
    this.#remove(line, all)
    for (const { entry } of all) entry.reject(error)
  }
}

/** What one transaction takes. */
class Batch {
  readonly lines: Line[] = []
  readonly taken: Waiting[] = []
  #bytes = 0

  /** Takes what goes together and fits, of one more line; false when that is nothing. */
  take (line: Line): boolean {
    const before = this.taken.length
    for (const waiting of line.waiting) {
      const [first] = this.taken
      const goesWith = first === undefined ||
        (first.serve === waiting.serve && first.entry.isApart === waiting.entry.isApart)
      if (!goesWith) continue
      const fits = this.taken.length < TOGETHER.entries && this.#bytes + waiting.entry.bytes <= TOGETHER.bytes
      if (first !== undefined && !fits) break
      this.taken.push(waiting)
      this.#bytes += waiting.entry.bytes
    }
    if (this.taken.length > before) this.lines.push(line)
    return this.taken.length > before
  }
}

const queues = new WeakMap<Db, Queue>()

/** The queue of a handle of the database. */
export function queueOf (db: Db): Queue {
  let queue = queues.get(db)
  if (queue === undefined) queues.set(db, queue = new Queue(db))
  return queue
}
