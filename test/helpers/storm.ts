import { fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import type { Level } from './traffic.ts'

/** What a process of clients is to ask, each of them as soon as it was answered. */
export interface Order {
  address: string
  organization: string
  token: string
  /** By turns. */
  levels: Level[]
  clients: number
  seconds: number
  /** The share of stores, from 0 to 1; the rest are reads. */
  stores: number
  /** Milliseconds after which a client hangs up. */
  patience: number
  seed: number
}

/** A request, and what came of it; times are of the clock that all processes have. */
export interface Asked {
  request: string
  level: Level
  /** What a store sent. */
  plaintext?: string
  sent: number
  answered: number
  /** Whether it came on a connection of its own, which waited to be let in as well. */
  isFirst: boolean
  /** 0 where the answer never came. */
  status: number
  version?: string | undefined
}

export interface Storm {
  begun: number
  asked: Asked[]
  /** One answer of each kind that is none of success, and one of many of the others. */
  answers: { method: string, path: string, text: string }[]
}

/** Clients in a process of their own, so that what they cost is not what is measured. */
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
