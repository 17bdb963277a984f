/**
 * Rows about the history of a name over 1,000 versions of 4 KiB: the time of all its requests, and the longest time on
 * the event loop. The service runs in this process, which measures the event loop; another process sends the load.
 */
import { blocksOf, withServiceHere } from './event-loop.ts'
import type { Bench } from './keys.ts'
import { getting, posting, send, several, type Tenant } from './seed.ts'
import { compare, median } from './table.ts'

const VERSIONS = 1000
const NAMES = 64
const NAME = 'SETTING_7'
/** Maximum time of all requests, and of the event loop, in milliseconds. */
const BARS = { time: 300, block: 50 }

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

export async function measureNameHistories (bench: Bench): Promise<void> {
  const { env, tenants, lines, wanted } = bench
  const formats = (Object.keys(DOCUMENTS) as (keyof typeof DOCUMENTS)[]).filter((format) =>
    wanted(rowOf(format, 'time')) || wanted(rowOf(format, 'block')))
  if (formats.length === 0) return
  const tenant = tenants[0]!
  await withServiceHere(env, async (url) => {
    for (const format of formats) {
      const requests = await fill(url, tenant, format)
      const { times, longest } = await blocksOf(bench, url, requests, 1)
      for (const [what, values, bar] of [
        [`${requests.length} requests: time`, times, BARS.time], ['longest time on the event loop', longest, BARS.block]
      ] as const) {
        const row = rowOf(format, what)
        const figure = median(values)
        lines.push({ row, reference: 'what is asked for', ...compare(figure, bar, ' ms', 1), bar: { most: 1 } })
        console.log(`${row}: ${figure.toFixed(1)} ms`)
      }
    }
  })
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
