import { fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import type { Level } from './traffic.ts'

/** A load for `startStorm`. Each client sends the next request as soon as it gets a response. */
export interface Order {
  address: string
  organization: string
  token: string
  /** Levels that the requests use in turn. */
  levels: Level[]
  clients: number
  seconds: number
  /** The share of stores, from 0 to 1; the rest are reads. */
  stores: number
  /** Milliseconds after which a client closes its connection. */
  patience: number
  seed: number
}

/** A request and its result. Times are milliseconds since the Unix epoch, so that processes can compare them. */
export interface Asked {
  request: string
  level: Level
  /** The plaintext of a store. */
  plaintext?: string
  sent: number
  answered: number
  /** Whether the request opened a new connection, so that its time includes the wait for the connection. */
  isFirst: boolean
  /** 0 without a response. */
  status: number
  version?: string | undefined
}

export interface Storm {
  begun: number
  asked: Asked[]
  /** One response for each method and error status, and one of many successful responses. */
  answers: { method: string, path: string, text: string }[]
}

/** Starts a child process for the clients, so that their CPU time does not affect the measurements. */
export function startStorm (t: { teardown (fn: () => unknown): void }): (order: Order) => Promise<Storm> {
  const file = fileURLToPath(new URL('storm-process.js', import.meta.url))
  const child = fork(file, { execArgv: [], serialization: 'advanced' })
  t.teardown(() => { child.kill('SIGKILL') })
  return async (order) => {
    const answered = once(child, 'message')
    child.send(order)
    return (await answered)[0] as Storm
  }
}
