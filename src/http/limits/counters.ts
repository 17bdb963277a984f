import { LRUCache } from 'lru-cache'
import type { Metrics } from '../../telemetry/metrics.ts'

// Per group. The least recently used keys are evicted first.
const MAX_KEYS = 20_000

/** A request to count; `length` of the window in milliseconds, `limit` in requests. */
export type Counting = [group: string, key: string, length: number, limit: number]
/** The number of requests in the window, including this one, and when the window ends (Unix time in milliseconds). */
export type Counted = [count: number, end: number]
type Done = (...counted: Counted) => void

/** Counts requests in fixed windows. A window begins with its first request. */
export interface Counters {
  count (counting: Counting, done: Done): void
  /**
   * Removes a counted request from the window with this `end`, but not from a later window. Afterwards one more request
   * is allowed, however many were refused.
   */
  giveBack (counting: Counting, end: number, done: () => void): void
  /** Whether the last request of this key exceeded its limit, and the window has not ended. Counts nothing. */
  isPast (group: string, key: string): boolean
}

/** Counters of one process, which continue from shared counts while the shared counters do not answer. */
export interface OwnCounters extends Counters {
  /** When the window ends in which this key exceeded its limit; 0 if it did not. */
  pastUntil (group: string, key: string): number
  /** Takes over a shared count. */
  learn (counting: Counting, ...counted: Counted): void
}

/** Measures whether this process counts alone. Call the result at each change. */
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

/** Milliseconds. Clocks that differ by less count as equal, so that a window has one end to the millisecond. */
export const CLOCK_TOLERANCE = 1_000

interface Window { count: number, end: number, length: number, limit: number }

// If the remaining time is more than the length, the clock was set back since the window began.
const isOpen = ({ end, length }: Window) => {
  const remaining = end - Date.now()
  return remaining > 0 && remaining <= length + CLOCK_TOLERANCE
}

/** Counters of this process alone. */
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
    // A lower count lacks the requests that this process counted alone.
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

/** A message of a member: requests to count, or one to give back. The result has the same number. */
export interface Query { counting: number, of: Counting[], back?: GivenBack }
export type GivenBack = [counting: Counting, end: number]
export interface Result { counted: number, are: Counted[] }
/** Tells the other members which keys have just exceeded their limits, and when their windows end. */
interface Notice { past: GivenBack[] }

/** Counts the requests of all members together. */
export function createCommonCounters () {
  const counters = createCounters()
  const members = new Set<(message: Result | Notice) => void>()
  return {
    /** Adds a member, which `send` sends messages to; `receive` takes its messages. */
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

// The supervisor answers in less than a millisecond, and in a few on a busy machine.
const TIMEOUT_MS = 1_000
// Between the queries of a member that counts alone.
const RETRY_INTERVAL_MS = 1_000

interface Pending { counting: Counting, done: Done }

/**
 * The counters of a member. The requests of one turn of the event loop are one message. If it cannot be sent, or its
 * result is late, the member counts alone, from the last shared counts, until a result arrives in time again.
 *
 * @param send false if the message cannot be sent
 * @param onChange called when the member begins to count alone (true), and when that ends (false)
 * @param options milliseconds that a request waits for its result; counters that count while the member is alone
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
    /** Ends the wait for a result. */
    giveUp,
    /** Sends a query without requests, to find out whether the shared counters answer. */
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
    /** Takes a message to this member. */
    receive (message: unknown) {
      const { counted, are, past = [] } = message as Partial<Result & Notice>
      for (const [counting, end] of past) own.learn(counting, counting[3] + 1, end)
      if (counted !== undefined) settle(counted, are!)
    }
  }

  function ask (pending: Pending[], back?: GivenBack, done = () => {}) {
    askedAt = performance.now()
    const number = ++last
    // If this process was blocked, a result that has arrived meanwhile is read before the timeout takes effect.
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

  // A late result does not end counting alone, or every request would wait for the timeout again.
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

  // `own` may count in another process, which does not know the keys that have exceeded their limits.
  function countAlone ({ counting, done }: Pending) {
    const [group, key, , limit] = counting
    const end = own.pastUntil(group, key)
    if (end > 0) done(limit + 1, end)
    else own.count(counting, done)
  }
}
