import { fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

export interface Request { method: 'GET' | 'POST', path: string, headers?: Record<string, string>, body?: string }

/** What to send, for how long, and the one status that counts as an answer. */
export interface Shot { url: string, requests: Request[], expect: number, seconds: number, connections: number }

/** Requests a second that were answered as expected, milliseconds, and how many were answered otherwise or not at all. */
export interface Outcome { rate: number, p50: number, p99: number, unexpected: number }

/** A second process that sends load, so that the server under test shares no event loop with it. */
export function startLoad () {
  const child = fork(fileURLToPath(new URL('cannon.js', import.meta.url)), { execArgv: [] })
  return {
    async fire (shot: Shot): Promise<Outcome> {
      const answered = once(child, 'message')
      child.send(shot)
      return (await answered)[0] as Outcome
    },
    close: () => { child.disconnect() }
  }
}
