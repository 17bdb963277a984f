/**
 * Merge rows: the longest time that a merge of three large documents blocks the event loop. The service runs in this
 * process, which measures the event loop; another process sends the load.
 */
import { blocksOf, withServiceHere } from './event-loop.ts'
import type { Bench } from './keys.ts'
import { getting, posting, send, type Tenant } from './seed.ts'
import { compare, median } from './table.ts'

const BAR = 50
const REQUESTS = 5

/** The largest documents that can be merged, by format. The documents of different levels have different names. */
const DOCUMENTS = {
  env: { names: 10_000, write: (level: string) => lines(10_000, (i) => `${level}_${i}=${'x'.repeat(85)}`).join('\n') },
  json: {
    names: 4_900, write: (level: string) => `{${lines(4_900, (i) => `"${level}_${i}":"${'x'.repeat(190)}"`).join()}}`
  },
  yaml: { names: 450, write: (level: string) => lines(450, (i) => `${level}_${i}: ${'x'.repeat(40)}`).join('\n') }
}
const lines = (count: number, line: (i: number) => string) => Array.from({ length: count }, (_, i) => line(i))

const rowOf = (format: keyof typeof DOCUMENTS, what: string) =>
  `merge of 3 ${format} documents of ${DOCUMENTS[format].names.toLocaleString('en')} names, ${what}: longest time on the event loop`

/** The request for each form of the response. */
const WAYS = {
  'merged alone': (path: string, token: string) => getting(token, `${path}?decrypt=true&merge=true`),
  'raw values': (path: string, token: string) => getting(token, `${path}?decrypt=true&merge=true&raw=true`),
  values: (path: string, token: string) => getting(token, `${path}/values`),
  'values as a shell text': (path: string, token: string) => getting(token, `${path}/values`, { accept: 'text/plain' }),
  'values in YAML': (path: string, token: string) => getting(token, `${path}/values`, { accept: 'application/yaml' }),
  names: (path: string, token: string) => getting(token, `${path}/names?merge=true`),
  'levels, merged and filtered': (path: string, token: string) => {
    const [, , , organization, project, target, environment] = path.split('/')
    return posting(token, `/api/v1/${organization}/secrets/retrieve`, {
      project, target, environment, action: 'decrypt', merge: 'both', filters: { search: '_' }
    })
  }
}

export async function measureMerges (bench: Bench): Promise<void> {
  const { env, tenants, lines, wanted } = bench
  const formats = Object.keys(DOCUMENTS) as (keyof typeof DOCUMENTS)[]
  const rows = formats.flatMap((format) => Object.entries(WAYS).map(([what, request]) =>
    ({ format, request, row: rowOf(format, what) }))).filter(({ row }) => wanted(row))
  if (rows.length === 0) return
  const tenant = tenants[0]!
  await withServiceHere(env, async (url) => {
    for (const format of new Set(rows.map(({ format }) => format))) await fill(url, tenant, format)
    for (const { format, request, row } of rows) {
      const requests = [request(`/api/v1/${tenant.id}/merged-${format}/backend/live/secrets`, tenant.token)]
      const { times, longest } = await blocksOf(bench, url, requests, REQUESTS)
      lines.push({
        row,
        reference: 'what is asked for',
        ...compare(median(longest), BAR, ' ms', 1),
        bar: { most: 1 },
        latency: `${median(times).toFixed(0)} ms`
      })
      console.log(`${row}: ${median(longest).toFixed(1)} ms, a request ${median(times).toFixed(0)} ms`)
    }
  })
}

async function fill (url: string, { id, token }: Tenant, format: keyof typeof DOCUMENTS): Promise<void> {
  const project = `merged-${format}`
  const post = (path: string, body: object) => send(url, posting(token, `/api/v1/${id}/${path}`, body))
  await post('projects', { name: project, secret_format: format })
  await post(`${project}/targets`, { name: 'backend' })
  await post(`${project}/backend/environments`, { name: 'live' })
  const places = { project: {}, target: { target: 'backend' }, environment: { target: 'backend', environment: 'live' } }
  for (const [level, place] of Object.entries(places)) {
    await post('secrets/store', { project, ...place, plaintext: DOCUMENTS[format].write(level) })
  }
}
