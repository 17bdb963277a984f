/**
 * `node dist/bench/reads.js [-- --seconds 10 --only WORD]`, after `npm run build`: the CPU time of the most expensive
 * pages of reads that open many documents, and the median time of another organization's read meanwhile, on PostgreSQL
 * and on the embedded database. Prints Markdown tables. The CPU time is that of the process, with the embedded database
 * and without PostgreSQL, so it depends little on the load of the machine; the ratios need an idle machine.
 */
import { randomBytes } from 'node:crypto'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { ulid } from 'ulidx'
import { startPostgres } from '../test/helpers/postgres.ts'
import { DOCUMENTS, FORMATS, type Kind } from './documents.ts'
import { withServiceHere } from './event-loop.ts'
import { startLoad, type Request } from './load.ts'
import { startService } from './processes.ts'
import { fillTenants, getting, LEVEL, makeTenants, posting, send, several, type Tenant } from './seed.ts'
import { median } from './table.ts'

const { values } = parseArgs({
  options: { seconds: { type: 'string', default: '10' }, only: { type: 'string', default: '' } }
})
const seconds = Number(values.seconds)
const BARS = { cpu: 300, ratio: 2.5 }
/** Levels of the projects with many levels: the project, one target, environments. */
const ENVIRONMENTS = 198
const ROUNDS = 5

/** More versions of one document; others have 12. */
const VERSIONS: Partial<Record<Kind, number>> = { yaml: 40, small: 600 }
const KINDS = Object.keys(DOCUMENTS) as Kind[]

interface Case { name: string, request: Request }

const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'strongroom-reads-'))
const load = startLoad()
const server = await startPostgres()
try {
  const MASTER_KEY = `bench:${randomBytes(32).toString('base64')}`
  await measure('PostgreSQL', { DATABASE_URL: server.url, DATABASE_POOL: '10', MASTER_KEY })
  await measure('embedded', { DATA_DIR: path.join(dir, 'data'), MASTER_KEY })
} finally {
  load.close()
  await server.close()
  fs.rmSync(dir, { recursive: true, force: true })
}

async function measure (database: string, env: Record<string, string>) {
  const [busy, other] = await makeTenants(env, 2) as [Tenant, Tenant]
  let cases: Case[] = []
  const cpu: string[] = []
  await withServiceHere(env, async (url) => {
    await fillTenants(url, [other])
    cases = (await fill(url, busy)).filter(({ name }) => name.includes(values.only))
    for (const { name, request } of cases) {
      const times: number[] = []
      for (let round = 0; round <= ROUNDS; round++) {
        await pause(50)
        const began = process.cpuUsage()
        const { unexpected } = await load.fire({
          url, requests: [request], expect: 200, connections: 1, amount: 1, seconds: 60
        })
        const { user, system } = process.cpuUsage(began)
        if (Object.keys(unexpected).length > 0) throw new Error(`${name}: ${JSON.stringify(unexpected)}`)
        if (round > 0) times.push((user + system) / 1000)
      }
      cpu.push(`| ${name} | ${median(times).toFixed(0)} ms | ≤ ${BARS.cpu} ms |`)
    }
  })
  console.log(`\n${database}:\n\n| Page | CPU time | Bar |\n|---|---|---|\n${cpu.join('\n')}\n`)

  const service = await startService(dir, env)
  try {
    console.log('| Another organization reads an encrypted document | p50 alone | p50 meanwhile | Ratio | Bar |\n|---|---|---|---|---|')
    const reading = getting(other.token, `/api/v1/${other.id}/${LEVEL.project}/${LEVEL.target}/${LEVEL.environment}/secrets`)
    const p50 = async () => (await load.fire({
      url: service.url, requests: [reading], expect: 200, connections: 1, seconds, rate: 50
    })).p50
    await p50()
    for (const [name, connections, every] of [
      ['100 pages a minute, one after the other', 1, 600], ['8 pages at once, without a limit', 8, 0]
    ] as const) {
      const alone = await p50()
      const stop = attack(service.url, cases, connections, every)
      await pause(1_000)
      const meanwhile = await p50()
      await stop()
      console.log(`| ${name} | ${alone.toFixed(2)} ms | ${meanwhile.toFixed(2)} ms | ${(meanwhile / alone).toFixed(2)} | ≤ ${BARS.ratio} |`)
    }
  } finally {
    await service.stop()
  }
}

/** Asks for all pages in turns, until the returned function is called. A page that is refused with 503 is left out. */
function attack (url: string, cases: readonly Case[], connections: number, every: number): () => Promise<void> {
  const stopped = new AbortController()
  let next = 0
  const ended = Promise.all(Array.from({ length: connections }, async () => {
    while (!stopped.signal.aborted) {
      const wait = pause(every)
      const { request: { method, path, headers, body } } = cases[next++ % cases.length]!
      const answer = await fetch(url + path, { method, ...headers && { headers }, ...body !== undefined && { body } })
      await answer.arrayBuffer()
      if (answer.status !== 200 && answer.status !== 503) throw new Error(`${path}: ${answer.status}`)
      await wait
    }
  }))
  ended.catch(() => {})
  return async () => {
    stopped.abort()
    await ended
  }
}

/** Creates the projects. Returns the requests for their most expensive pages. */
async function fill (url: string, tenant: Tenant): Promise<Case[]> {
  const { id, token } = tenant
  const post = async (path: string, body: object) => await send(url, posting(token, `/api/v1/${id}${path}`, body)) as any
  const get = (path: string) => getting(token, `/api/v1/${id}${path}`)
  const environmentOf = (i: number) => ({ target: 'backend', environment: `env-${String(i).padStart(3, '0')}` })
  const cases: Case[] = []

  for (const kind of KINDS) {
    const store = (level: object, part: number) =>
      post('/secrets/store', { project: kind, ...level, plaintext: DOCUMENTS[kind](part) })
    // The search continues after the projects before this one.
    const before = ulid()
    await post('/projects', { name: kind, secret_format: FORMATS[kind] ?? 'env' })
    await post(`/${kind}/targets`, { name: 'backend' })
    // Of `env`, only the last level of the first page has a document, so that the page has 100 columns.
    const large = kind === 'small' ? ENVIRONMENTS : kind === 'env' ? 1 : 8
    const documentAt = (i: number) => environmentOf(kind === 'env' ? 97 : i)
    await several(kind === 'env' || kind === 'small' ? ENVIRONMENTS : large, (i) =>
      post(`/${kind}/backend/environments`, { name: environmentOf(i).environment }), 4)
    // Two versions of each document, so that a dry run of a restore and a comparison of two times read both.
    const moments: string[] = []
    for (const time of [0, 1]) {
      await store({}, 1000 + time)
      await store({ target: 'backend' }, 2000 + time)
      await several(large, (i) => store(documentAt(i), i + 300 * time), 2)
      await pause(50)
      moments.push(new Date().toISOString())
      await pause(50)
    }
    await several(VERSIONS[kind] ?? 12, (i) => store(documentAt(0), i + 600), 2)
    const [first, second] = moments as [string, string]
    const environment = `/${kind}/backend/${documentAt(0).environment}/secrets`
    for (const only of ['', '&only=missing', '&only=different']) {
      cases.push({ name: `${kind}: matrix${only}`, request: get(`/${kind}/secrets/matrix?per_page=100${only}`) })
    }
    cases.push({ name: `${kind}: history of a name`, request: get(`${environment}/names/history?name=A`) })
    cases.push({
      name: `${kind}: comparison of two times`,
      request: get(`${environment}/diff?from=${first}&to=${second}&merge=true&values=true`)
    })
    cases.push({
      name: `${kind}: dry run of restore-to`,
      request: posting(token, `/api/v1/${id}/${kind}/restore-to?dry_run=true`, { at: first, confirmed: true })
    })
    cases.push({ name: `${kind}: search`, request: get(`/secrets/names?search=nothing&after=${before}`) })
  }
  return cases
}
