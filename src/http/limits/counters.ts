import { LRUCache } from 'lru-cache'
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { Channel } from '../../telemetry/channel.ts'
import type { Metrics } from '../../telemetry/metrics.ts'

// Maximum keys per group. The least recently used keys are evicted first.
const MAX_KEYS = 20_000

/**
 * A request to count. `length` is the duration of the window in milliseconds; `limit` is in requests per window. With
 * `end`, the counted request is instead removed from the window that ends then, unless that window is over. A count
 * above the limit becomes `limit - 1`, so that one more request is allowed.
 */
export type Counting = [group: string, key: string, length: number, limit: number, end?: number]
/** The requests in the window, including the counted request, and the end of the window (Unix time in milliseconds). */
export type Counted = [count: number, end: number]

/** Counts requests in fixed windows. A window begins with its first request. */
export interface Counters {
  count (counting: Counting): Counted | Promise<Counted>
  /** The end of the current window if the key has exceeded its limit in it; otherwise 0. Counts nothing. */
  pastUntil (group: string, key: string): number
  /** Stores a shared count, unless the own count is higher. */
  learn (counting: Counting, ...counted: Counted): void
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

/** Counters of one process. They count without other processes while the shared counters do not respond. */
export function createCounters () {
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
  const learn = ([group, key, length, limit]: Counting, ...[count, end]: Counted) => {
    const found = find(group, key)
    if (found === undefined) windowsOf(group).set(key, { count, end, length, limit })
    // A shared count below the own count is ignored: it does not include the requests that this process counted alone.
    else if (count > found.count) Object.assign(found, { count, end, limit })
  }

  return {
    learn,
    pastUntil (group: string, key: string) {
      const found = find(group, key)
      return found !== undefined && found.count > found.limit ? found.end : 0
    },
    count (counting: Counting): Counted {
      const [group, key, length, limit, toGiveBack] = counting
      const found = find(group, key)
      if (toGiveBack !== undefined) {
        if (found?.end === toGiveBack) found.count = Math.max(0, Math.min(found.count, limit) - 1)
        return [found?.count ?? 0, found?.end ?? 0]
      }
      const { count, end } = found ?? { count: 0, end: Date.now() + length }
      learn(counting, count + 1, end)
      return [count + 1, end]
    }
  }
}

const COUNT = 'countRequests'
const LEARN = 'learnCounts'

/** The supervisor's end of the channels: counts the requests of all workers together. */
export function commonCounters (workers: () => Iterable<Channel>) {
  const counters = createCounters()
  return {
    [COUNT] (of: Counting[]): Counted[] {
      const counted = of.map(counters.count)
      const past = of.map((counting, i) => [counting, ...counted[i]!] as const)
        .filter(([[, , , limit], count]) => count === limit + 1)
      // Tells all workers which keys have just exceeded their limits.
      if (past.length > 0) for (const worker of workers()) worker.request(LEARN, past).catch(() => {})
      return counted
    }
  }
}

/** A worker's end of the channel. */
export const workerCounters = ({ learn }: Counters) => ({
  [LEARN]: (past: Parameters<typeof learn>[]) => { for (const counted of past) learn(...counted) }
})

export const countAtSupervisor = (channel: Channel) => (of: Counting[]) => channel.request<Counted[]>(COUNT, of)

// Counted to find out whether the shared counters respond. A full Redis answers PING, but does not count.
const PROBE: Counting = ['probe', '', 1_000, Number.MAX_SAFE_INTEGER]
// The minimum time between two queries of a process that counts alone.
const RETRY_INTERVAL_MS = 1_000

interface Sharing {
  /** The name of the shared counters, for metrics. */
  at: 'redis' | 'supervisor'
  /** Called when the process begins to count alone, with the reason, and when it stops, without. */
  onChange: (reason?: Error) => void
  metrics: Metrics | undefined
  /** Milliseconds to wait for the shared counters. */
  timeout: number
  /** The counters of a process that counts alone. */
  own: Counters
}

/**
 * Counts with other processes: `count` counts all requests of one turn of the event loop together. If it fails or is
 * late, the process counts alone, starting from the last shared counts, until `count` succeeds in time.
 */
export function shareCounters (
  count: (of: Counting[]) => Promise<Counted[]>,
  { at, onChange, metrics, timeout, own }: Sharing
) {
  const name = `strongroom_limits_without_${at}`
  const times = metrics?.counter(`${name}_total`, 'How often each process began to count limits for itself')
  metrics?.watch('gauge', name, 'Whether each process counts limits for itself', () => Number(isAlone))
  let isAlone = false
  let askedAt = 0
  let answered = 0
  const turn: Counting[] = []
  let shared: Promise<Counted[] | undefined>

  function set (to: boolean, reason?: Error) {
    if (isAlone === to) return
    isAlone = to
    times?.inc(Number(to))
    onChange(reason)
  }

  // Returns undefined if the shared counters fail or are late. Ignores a late result, because it shows that the shared
  // counters are slow: with these counters, each request waits for the timeout.
  async function ask (of = [PROBE]): Promise<Counted[] | undefined> {
    const began = askedAt = performance.now()
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_resolve, reject) => {
      // `setImmediate` runs after messages are read, so a result that arrived while the event loop was blocked is in
      // time.
      timer = setTimeout(() => { setImmediate(reject, new Error('no response in time')) }, timeout).unref()
    })
    try {
      const counted = await Promise.race([count(of), late])
      answered = Math.max(answered, began)
      set(false)
      return counted
    } catch (error) {
      // A later query may have succeeded.
      if (began >= answered) set(true, error as Error)
      return undefined
    } finally {
      clearTimeout(timer)
    }
  }

  return {
    ...own,
    /** Finds out whether the shared counters respond. */
    ask: () => ask(),
    async count (counting: Counting): Promise<Counted> {
      const [group, key, , limit, toGiveBack] = counting
      const givenBack = toGiveBack === undefined ? undefined : own.count(counting)
      if (!isAlone) {
        const place = turn.push(counting) - 1
        if (place === 0) shared = nextTurn().then(() => ask(turn.splice(0)))
        const counted = (await shared)?.[place]
        if (counted !== undefined) {
          if (givenBack === undefined) own.learn(counting, ...counted)
          return counted
        }
      } else if (performance.now() - askedAt > RETRY_INTERVAL_MS) ask()
      if (givenBack !== undefined) return givenBack
      // `own` may count in another process, which does not know the shared counts.
      const end = own.pastUntil(group, key)
      return end > 0 ? [limit + 1, end] : own.count(counting)
    }
  }
}
