import { fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

export interface Request { method: 'GET' | 'POST', path: string, headers?: Record<string, string>, body?: string }

/**
 * What to send and the one status that counts as an answer; for how many seconds, or how many requests in all, and at
 * most how many a second.
 */
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
 * Requests a second that were answered as expected, milliseconds, and how many were answered otherwise: by status, or
 * `none` without an answer in 10 s.
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
    /** Ends the shot that is under way before its time. */
    cease: () => { child.send('cease') },
    close: () => { child.disconnect() }
  }
}

/** The unexpected answers of several outcomes, in words: `0`, or how many there were of which status. */
export function total (outcomes: Pick<Outcome, 'unexpected'>[]): string {
  const sums: Record<string, number> = {}
  for (const { unexpected } of outcomes) {
    for (const [status, count] of Object.entries(unexpected)) sums[status] = (sums[status] ?? 0) + count
  }
  return Object.entries(sums).map(([status, count]) => `${count} × ${status}`).join(', ') || '0'
}

/** The value below which this share of them lies; NaN of none. */
export function quantile (values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.floor(sorted.length * share)] ?? NaN
}
