import { fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

export interface Request {
  method: 'GET' | 'POST' | 'PATCH'
  path: string
  headers?: Record<string, string>
  body?: string
  /** Each request has an `Idempotency-Key` of its own. */
  isKeyed?: boolean
}

/** A load: sends `amount` requests, or for `seconds`, at `rate` requests per second at most. */
export interface Shot {
  url: string
  requests: Request[]
  expect: number
  seconds: number
  amount?: number
  rate?: number
  connections: number
}

/**
 * The rate of responses with the expected status per second, latencies in milliseconds, and the number of other
 * responses by status (`none`: no response within 10 s).
 */
export interface Outcome { rate: number, p50: number, p99: number, unexpected: Record<string, number> }

/** A second process that sends load, so that the server under test shares no event loop with it. */
export function startLoad () {
  const child = fork(fileURLToPath(new URL('cannon.js', import.meta.url)), { execArgv: [] })
  return {
    async fire (shot: Shot): Promise<Outcome> {
      const answered = once(child, 'message')
      child.send(shot)
      return (await answered)[0] as Outcome
    },
    /** Aborts the current load. */
    cease: () => { child.send('cease') },
    close: () => { child.disconnect() }
  }
}

/** The unexpected responses of all outcomes as text: `0`, or the count of each status. */
export function total (outcomes: Pick<Outcome, 'unexpected'>[]): string {
  const sums: Record<string, number> = {}
  for (const { unexpected } of outcomes) {
    for (const [status, count] of Object.entries(unexpected)) sums[status] = (sums[status] ?? 0) + count
  }
  return Object.entries(sums).map(([status, count]) => `${count} × ${status}`).join(', ') || '0'
}

/** The percentile of the values; NaN without values. */
export function quantile (values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.floor(sorted.length * share)] ?? NaN
}
