import { LRUCache } from 'lru-cache'
import type { Metrics } from '../../telemetry/metrics.ts'

// Maximum keys per group. The least recently used keys are evicted first.
const MAX_KEYS = 20_000

/** A request to count. `length` is the duration of the window in milliseconds; `limit` is in requests per window. */
export type Counting = [group: string, key: string, length: number, limit: number]
/** The requests in the window, including the counted request, and the end of the window (Unix time in milliseconds). */
export type Counted = [count: number, end: number]
type Done = (...counted: Counted) => void

/** Counts requests in fixed windows. A window begins with its first request. */
export interface Counters {
  count (counting: Counting, done: Done): void
  /**
   * Removes a counted request from the window that ends at `end`; does nothing if that window is over. A count above
   * the limit becomes `limit - 1`, so that one more request is allowed.
   */
  giveBack (counting: Counting, end: number, done: () => void): void
  /** Whether the key has exceeded its limit in the current window. Counts nothing. */
  isPast (group: string, key: string): boolean
}

/** Counters of one process. They count without other processes while the shared counters do not respond. */
export interface OwnCounters extends Counters {
  /** The end of the current window if the key has exceeded its limit in it; otherwise 0. */
  pastUntil (group: string, key: string): number
  /** Stores a shared count, unless the own count is higher. */
  learn (counting: Counting, ...counted: Counted): void
}

/** Adds metrics of whether this process counts by itself. Call the returned function when this begins and ends. */
export function measureAlone (
  metrics: Metrics | undefined, without: 'redis' | 'supervisor'
): (isAlone: boolean) => void {
  const name = `strongroom_limits_without_${without}`
  const times = metrics?.counter(`${name}_total`, 'How often each process began to count limits for itself')
  let alone = 0
  metrics?.watch('gauge', name, 'Whether each process counts limits for itself', () => alone)
  return (isAlone) => {
    alone = Number(isAlone)
    times?.inc(alone)
  }
}

/**
 * Milliseconds. `redis.ts` corrects its clock offset only if the offset is wrong by more than this, so that all
 * requests of a window get the same end.
 */
export const CLOCK_TOLERANCE = 1_000

interface Window { count: number, end: number, length: number, limit: number }

// If the remaining time is longer than the window, the clock was set back since the window began.
const isOpen = ({ end, length }: Window) => {
  const remaining = end - Date.now()
  return remaining > 0 && remaining <= length + CLOCK_TOLERANCE
}

export function createCounters (): OwnCounters {
  const groups = new Map<string, LRUCache<string, Window>>()
  const windowsOf = (group: string) => {
    let windows = groups.get(group)
    if (windows === undefined) groups.set(group, windows = new LRUCache({ max: MAX_KEYS }))
    return windows
  }
  const find = (group: string, key: string) => {
    const found = windowsOf(group).get(key)
    return found !== undefined && isOpen(found) ? found : undefined
  }
  const pastUntil = (group: string, key: string) => {
    const found = find(group, key)
    return found !== undefined && found.count > found.limit ? found.end : 0
  }
  const learn = ([group, key, length, limit]: Counting, ...[count, end]: Counted) => {
    const found = find(group, key)
    if (found === undefined) windowsOf(group).set(key, { count, end, length, limit })
    // A shared count below the own count is ignored: it does not include the requests that this process counted alone.
    else if (count > found.count) Object.assign(found, { count, end, limit })
  }

  return {
    pastUntil,
    learn,
    isPast: (group, key) => pastUntil(group, key) > 0,
    count (counting, done) {
      const [group, key, length] = counting
      const { count, end } = find(group, key) ?? { count: 0, end: Date.now() + length }
      learn(counting, count + 1, end)
      done(count + 1, end)
    },
    giveBack ([group, key, , limit], end, done) {
      const found = windowsOf(group).peek(key)
      if (found?.end === end) found.count = Math.max(0, Math.min(found.count, limit) - 1)
      done()
    }
  }
}

/**
 * A message of a member: requests to count (`of`), or a request to remove (`back`). `counting` is the number of the
 * query; its result has the same number as `counted`.
 */
export interface Query { counting: number, of: Counting[], back?: GivenBack }
export type GivenBack = [counting: Counting, end: number]
export interface Result { counted: number, are: Counted[] }
/** Tells the other members which keys have just exceeded their limits, and when the windows of these keys end. */
interface Notice { past: GivenBack[] }

/** Counts the requests of all members (worker processes) together. */
export function createCommonCounters () {
  const counters = createCounters()
  const members = new Set<(message: Result | Notice) => void>()
  return {
    /** Adds a member. `send` sends a message to the member; call `receive` with each message of the member. */
    join (send: (message: Result | Notice) => void) {
      members.add(send)
      return {
        receive (message: unknown) {
          const { counting, of, back } = message as Query
          if (back !== undefined) counters.giveBack(...back, () => {})
          const are: Counted[] = []
          const past: GivenBack[] = []
          for (const one of of) {
            const [, , , limit] = one
            counters.count(one, (count, end) => {
              are.push([count, end])
              if (count === limit + 1) past.push([one, end])
            })
          }
          send({ counted: counting, are })
          if (past.length > 0) for (const other of members) if (other !== send) other({ past })
        },
        leave () { members.delete(send) }
      }
    }
  }
}

// The supervisor responds in less than a millisecond, or in a few milliseconds on a busy machine.
const TIMEOUT_MS = 1_000
// The minimum time between two queries of a member that counts alone.
const RETRY_INTERVAL_MS = 1_000

interface Pending { counting: Counting, done: Done }

/**
 * The counters of a member. One message contains all requests of one turn of the event loop. If the message cannot be
 * sent, or its result is late, the member counts alone, starting from the last shared counts, until a later result
 * arrives in time.
 *
 * @param send false if the message cannot be sent
 * @param onChange called when the member begins to count alone (true), and when it stops (false)
 * @param options `timeout`: milliseconds to wait for a result; `own`: the counters of a member that counts alone
 */
export function joinCommonCounters (
  send: (message: Query) => boolean, onChange: (isAlone: boolean) => void,
  { timeout = TIMEOUT_MS, own = createCounters() }: { timeout?: number, own?: OwnCounters } = {}
) {
  const open = new Map<number, { pending: Pending[], timer: NodeJS.Timeout, done: () => void }>()
  let batch: Pending[] = []
  let last = 0
  let isAlone = false
  let askedAt = 0

  return {
    ...own,
    /** Stops waiting for the result of a query, and counts its requests alone. */
    giveUp,
    /** Sends a query without requests, to find out whether the shared counters respond. */
    ask: () => ask([]),
    count (counting: Counting, done: Done) {
      if (isAlone) {
        countAlone({ counting, done })
        if (performance.now() - askedAt > RETRY_INTERVAL_MS) ask([])
      } else if (batch.push({ counting, done }) === 1) {
        setImmediate(() => {
          const pending = batch
          batch = []
          ask(pending)
        })
      }
    },
    giveBack (counting: Counting, end: number, done: () => void) {
      own.giveBack(counting, end, () => {})
      if (isAlone) done()
      else ask([], [counting, end], done)
    },
    receive (message: unknown) {
      const { counted, are, past = [] } = message as Partial<Result & Notice>
      for (const [counting, end] of past) own.learn(counting, counting[3] + 1, end)
      if (counted !== undefined) settle(counted, are!)
    }
  }

  function ask (pending: Pending[], back?: GivenBack, done = () => {}) {
    askedAt = performance.now()
    const number = ++last
    // `setImmediate` runs after messages are read, so a result that arrived while the event loop was blocked is in
    // time.
    const timer = setTimeout(() => { setImmediate(giveUp, number) }, timeout).unref()
    open.set(number, { pending, timer, done })
    const query = { counting: number, of: pending.map(({ counting }) => counting) }
    if (!send(back === undefined ? query : { ...query, back })) giveUp(number)
  }

  function take (number: number) {
    const taken = open.get(number)
    open.delete(number)
    clearTimeout(taken?.timer)
    return taken
  }

  // Ignores a late result, so the member continues to count alone. A late result shows that the shared counters are
  // slow: with these counters, each request waits for the timeout.
  function settle (number: number, are: Counted[]) {
    const taken = take(number)
    if (taken === undefined) return
    if (isAlone) onChange(isAlone = false)
    for (const [i, { counting, done }] of taken.pending.entries()) {
      const counted = are[i]!
      own.learn(counting, ...counted)
      done(...counted)
    }
    taken.done()
  }

  function giveUp (number: number) {
    const taken = take(number)
    if (taken === undefined) return
    if (!isAlone) onChange(isAlone = true)
    taken.pending.forEach(countAlone)
    taken.done()
  }

  // First checks whether the key exceeded its limit in the shared counters: `own` may send the request to counters in
  // another process, which do not know the shared counts.
  function countAlone ({ counting, done }: Pending) {
    const [group, key, , limit] = counting
    const end = own.pastUntil(group, key)
    if (end > 0) done(limit + 1, end)
    else own.count(counting, done)
  }
}
