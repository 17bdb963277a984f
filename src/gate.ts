/** Expensive work was refused (503), because its queue was full or the work waited too long. The client may retry. */
export class WorkOverloaded extends Error {
  override readonly name: string = this.constructor.name
}

/** The maximum number of jobs that run, and of jobs that wait. Without a number, there is no limit. */
export interface Limit { running?: number, waiting?: number }

interface GateOptions {
  /** The kind of work, for the message of WorkOverloaded. */
  work?: string
  /** Makes the error of a job that finds the queue full, or that waits too long. Default: WorkOverloaded. */
  refuse?: (reason: 'full' | 'late') => Error
  /** The maximum wait of a job in milliseconds. Default: eight seconds. */
  timeout?: number
  /** Calls `late` after these milliseconds. The returned function cancels the call. Default: in real time. */
  after?: (milliseconds: number, late: () => void) => () => void
}

/** The jobs whose keys begin with the same keys. A part without jobs is not among its siblings. */
interface Part {
  key: string
  siblings: Map<string, Part>
  limit: Required<Limit>
  running: number
  waiting: number
  /** The starts of the waiting jobs that have no further key. */
  starts: (() => void)[]
  /** By the next key, in the order of their turns. */
  parts: Map<string, Part>
}

const QUEUE_TIMEOUT_MS = 8_000

const inRealTime = (milliseconds: number, late: () => void) => {
  const timer = setTimeout(late, milliseconds)
  return () => { clearTimeout(timer) }
}

const NO_LIMIT = { running: Infinity, waiting: Infinity }

const newPart = (limit = NO_LIMIT, key = '', siblings: Part['parts'] = new Map()): Part =>
  ({ key, siblings, limit, running: 0, waiting: 0, starts: [], parts: new Map() })

const isFull = ({ running, limit }: Part) => running >= limit.running

/**
 * Limits the number of jobs that run at once, and queues the others. A job has keys, for example its organization and
 * its caller. The first limit applies to all jobs, the second to those with the same first key, and so on. Waiting jobs
 * take turns: over the first keys, then over the second keys of each first key. Jobs with equal keys start in order.
 */
export class Gate {
  /** The number of refused jobs by reason. */
  readonly refused = { full: 0, late: 0 }
  readonly #limits: readonly Required<Limit>[]
  readonly #options: Required<Omit<GateOptions, 'work'>>
  readonly #all: Part

  constructor (limits: readonly Limit[], { work = 'jobs', ...options }: GateOptions = {}) {
    const refuse = () => new WorkOverloaded(`too many ${work} are waiting`)
    this.#limits = limits.map((limit) => ({ ...NO_LIMIT, ...limit }))
    this.#options = { timeout: QUEUE_TIMEOUT_MS, after: inRealTime, refuse, ...options }
    this.#all = newPart(this.#limits[0])
  }

  get running () { return this.#all.running }
  get waiting () { return this.#all.waiting }
  get free () { return this.#all.limit.running - this.#all.running }

  /** Runs `work` when its turn comes. Rejects with the error of `work`, or of `refuse`. */
  async run<T> (keys: readonly string[], work: () => Promise<T>, patience?: number): Promise<T> {
    const leave = await this.enter(keys, patience)
    try {
      return await work()
    } finally {
      leave()
    }
  }

  /** Waits for a turn for `patience` milliseconds at most. Returns a function that ends the job. */
  async enter (keys: readonly string[] = [], patience = this.#options.timeout): Promise<() => void> {
    const path = this.#path(keys)
    if (!path.some(isFull)) return begin(path)
    if (path.some(({ waiting, limit }) => waiting >= limit.waiting)) throw this.#refuse('full')
    count(path, 'waiting', 1)
    const { starts } = path.at(-1)!
    return new Promise((resolve, reject) => {
      const start = () => {
        cancel()
        count(path, 'waiting', -1)
        resolve(begin(path))
      }
      const late = () => {
        starts.splice(starts.indexOf(start), 1)
        count(path, 'waiting', -1)
        reject(this.#refuse('late'))
      }
      const cancel = patience === Infinity ? () => {} : this.#options.after(patience, late)
      starts.push(start)
    })
  }

  /** Begins a job at once, if no limit is reached. The returned function ends the job, once. */
  tryEnter (keys: readonly string[] = []): (() => void) | undefined {
    const path = this.#path(keys)
    return path.some(isFull) ? undefined : begin(path)
  }

  #path (keys: readonly string[]): Part[] {
    const path = [this.#all]
    for (const key of keys) {
      const { parts } = path.at(-1)!
      path.push(parts.get(key) ?? newPart(this.#limits[path.length], key, parts))
    }
    return path
  }

  #refuse (reason: 'full' | 'late'): Error {
    this.refused[reason]++
    return this.#options.refuse(reason)
  }
}

function begin (path: readonly Part[]): () => void {
  count(path, 'running', 1)
  let isRunning = true
  return () => {
    if (!isRunning) return
    isRunning = false
    // Only jobs of a full part have waited for the end of this job.
    const full = path.find(isFull)
    count(path, 'running', -1)
    // Starts the next job in the same step, so that a new job cannot overtake it.
    if (full !== undefined) next(full)?.()
  }
}

function next (part: Part): (() => void) | undefined {
  if (isFull(part) || part.waiting === 0) return undefined
  if (part.starts.length > 0) return part.starts.shift()
  for (const inner of part.parts.values()) {
    const start = next(inner)
    if (start !== undefined) return start
  }
  return undefined
}

function count (path: readonly Part[], kind: 'running' | 'waiting', by: 1 | -1) {
  for (const part of path) {
    const { key, siblings } = part
    // A part goes to the end of the turns when it begins to wait, and when a job begins or ends.
    if (kind === 'running' || part.waiting === 0) siblings.delete(key)
    part[kind] += by
    if (part.running + part.waiting > 0) siblings.set(key, part)
    else siblings.delete(key)
  }
}
