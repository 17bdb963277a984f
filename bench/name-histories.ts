/**
 * Rows about the history of a name over 1,000 versions of 4 KiB: the time of all its requests, and the longest time on
 * the event loop. The service runs in this process, which measures the event loop; another process sends the load.
 */
import { setTimeout as pause } from 'node:timers/promises'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { buildApp } from '../src/app.ts'
import { open } from '../src/commands/common/open.ts'
import { loadConfig } from '../src/config.ts'
import type { Bench } from './keys.ts'
import { getting, posting, send, several, type Tenant } from './seed.ts'
import { compare, median } from './table.ts'

const VERSIONS = 1000
const NAMES = 64
const NAME = 'SETTING_7'
/** Maximum time of all requests, and of the event loop, in milliseconds. */
const BARS = { time: 300, block: 50 }
const RESOLUTION = 1
const UNLIMITED = {
  RATE_LIMIT_API: '0', RATE_LIMIT_OAUTH: '0', RATE_LIMIT_KEY_ROTATION: '0', RATE_LIMIT_LONG_OPERATIONS: '0', LOG_LEVEL: 'error'
}

/** A document of about 4 KiB; each version has another value of one of its names. */
const DOCUMENTS = {
  env: (version: number) => settings(version, (name, value) => `${name}=${value}`).join('\n'),
  json: (version: number) => `{${settings(version, (name, value) => `"${name}":"${value}"`).join()}}`,
  yaml: (version: number) => settings(version, (name, value) => `${name}: ${value}`).join('\n')
}
const settings = (version: number, write: (name: string, value: string) => string) =>
  Array.from({ length: NAMES }, (_, i) => {
    const changedBy = version - (version - i + NAMES) % NAMES
    return write(`SETTING_${i}`, `v${changedBy}`.padEnd(50, 'x'))
  })

const rowOf = (format: string, what: string) => `history of a name over 1,000 ${format} versions of 4 KiB, ${what}`

export async function measureNameHistories ({ env, load, tenants, rounds, lines, wanted }: Bench): Promise<void> {
  const formats = (Object.keys(DOCUMENTS) as (keyof typeof DOCUMENTS)[]).filter((format) =>
    wanted(rowOf(format, 'time')) || wanted(rowOf(format, 'block')))
  if (formats.length === 0) return
  const tenant = tenants[0]!
  const config = loadConfig({ ...env, ...UNLIMITED })
  const opened = await open(config)
  const app = await buildApp({ ...opened, config, logStream: { write: () => {} } })
  const url = await app.listen({ port: 0, host: '127.0.0.1' })
  try {
    for (const format of formats) {
      const requests = await fill(url, tenant, format)
      const times: number[] = []
      const longest: number[] = []
      // The first round warms up.
      for (let round = 0; round <= rounds; round++) {
        const delays = monitorEventLoopDelay({ resolution: RESOLUTION })
        delays.enable()
        // Collect garbage of earlier rounds first.
        await pause(100)
        delays.reset()
        let time = 0
        for (const request of requests) {
          const { p50, unexpected } = await load.fire({
            url, requests: [request], expect: 200, connections: 1, amount: 1, seconds: 60
          })
          if (Object.keys(unexpected).length > 0) throw new Error(`${format}: ${JSON.stringify(unexpected)}`)
          time += p50
        }
        delays.disable()
        times.push(time)
        longest.push(delays.max / 1e6 - RESOLUTION)
      }
      for (const [what, values, bar] of [
        [`${requests.length} requests: time`, times, BARS.time], ['longest time on the event loop', longest, BARS.block]
      ] as const) {
        const row = rowOf(format, what)
        const figure = median(values.slice(1))
        lines.push({ row, reference: 'what is asked for', ...compare(figure, bar, ' ms', 1), bar: { most: 1 } })
        console.log(`${row}: ${figure.toFixed(1)} ms`)
      }
    }
  } finally {
    await app.close()
    await opened.database.close()
  }
}

/** Stores the versions, and returns the requests that read the history of the name. */
async function fill (url: string, { id, token }: Tenant, format: keyof typeof DOCUMENTS) {
  const project = `traced-${format}`
  await send(url, posting(token, `/api/v1/${id}/projects`, { name: project, secret_format: format }))
  await several(VERSIONS, (version) => send(url, posting(token, `/api/v1/${id}/secrets/store`, {
    project, plaintext: DOCUMENTS[format](version)
  })))
  const path = `/api/v1/${id}/${project}/secrets/names/history?name=${NAME}&values=true`
  const requests = [getting(token, path)]
  for (;;) {
    const { meta: { next } } = await send(url, requests.at(-1)!) as { meta: { next: string | null } }
    if (next === null) return requests
    requests.push(getting(token, `${path}&after=${next}`))
  }
}
