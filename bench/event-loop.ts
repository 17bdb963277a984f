/** Measures how long requests block the event loop of the service, which runs in this process. */
import { setTimeout as pause } from 'node:timers/promises'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { buildApp } from '../src/app.ts'
import { open, type Opened } from '../src/commands/common/open.ts'
import { loadConfig } from '../src/config.ts'
import type { Bench } from './keys.ts'
import type { Request } from './load.ts'

const RESOLUTION = 1
const UNLIMITED = {
  RATE_LIMIT_API: '0', RATE_LIMIT_OAUTH: '0', RATE_LIMIT_KEY_ROTATION: '0', RATE_LIMIT_LONG_OPERATIONS: '0', LOG_LEVEL: 'error'
}

/** Runs the service in this process until `work`, which gets its URL and its database, has ended. */
export async function withServiceHere (
  env: Record<string, string>, work: (url: string, opened: Opened) => Promise<void>
): Promise<void> {
  const config = loadConfig({ ...env, ...UNLIMITED })
  const opened = await open(config, { creates: true })
  const app = await buildApp({ ...opened, config, logStream: { write: () => {} } })
  try {
    await work(await app.listen({ port: 0, host: '127.0.0.1' }), opened)
  } finally {
    await app.close()
    await opened.database.close()
  }
}

/**
 * Sends requests one after the other, each `amount` times, from another process. Returns for each round the sum of the
 * requests' median times and the longest time on the event loop, in milliseconds. Leaves out a first round, which warms
 * up.
 */
export async function blocksOf (
  { load, rounds }: Pick<Bench, 'load' | 'rounds'>, url: string, requests: readonly Request[], amount: number
): Promise<{ times: number[], longest: number[] }> {
  const times: number[] = []
  const longest: number[] = []
  for (let round = 0; round <= rounds; round++) {
    const delays = monitorEventLoopDelay({ resolution: RESOLUTION })
    delays.enable()
    // Collect garbage of earlier rounds first.
    await pause(100)
    delays.reset()
    let time = 0
    for (const request of requests) {
      const { p50, unexpected } = await load.fire({
        url, requests: [request], expect: 200, connections: 1, amount, seconds: 60
      })
      if (Object.keys(unexpected).length > 0) throw new Error(`${request.path}: ${JSON.stringify(unexpected)}`)
      time += p50
    }
    delays.disable()
    times.push(time)
    longest.push(delays.max / 1e6 - RESOLUTION)
  }
  return { times: times.slice(1), longest: longest.slice(1) }
}
