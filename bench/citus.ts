/**
 * `npm run bench:citus [-- --rounds 5 --seconds 3 --only WORD]`: the service on a Citus cluster of a coordinator and
 * two workers, alternately with the service on one PostgreSQL on the same machine. A ratio is the median of the rounds'
 * ratios. `--only`: the rows whose names contain WORD. Prints a Markdown table. A missed bar is not a failure.
 */
import { randomBytes } from 'node:crypto'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { createOnCitus, missingForCitus, startCitus } from '../test/helpers/citus.ts'
import { startPostgres } from '../test/helpers/postgres.ts'
import { startLoad, total, type Outcome, type Request } from './load.ts'
import { startService } from './processes.ts'
import { fillProjects, fillTenants, getting, makeTenants, storing, type Tenant } from './seed.ts'
import { compare, median, renderTable, type Line } from './table.ts'

const CONNECTIONS = 32
const TENANTS = 20
const PROJECTS = 25

const { values } = parseArgs({
  options: {
    rounds: { type: 'string', default: '5' }, seconds: { type: 'string', default: '3' }, only: { type: 'string', default: '' }
  }
})
const [rounds, seconds] = [Number(values.rounds), Number(values.seconds)]
if (!(Number.isInteger(rounds) && rounds > 0 && Number.isInteger(seconds) && seconds > 0)) {
  throw new Error('--rounds and --seconds are whole numbers from 1')
}
const missing = missingForCitus()
if (missing !== undefined) throw new Error(`The measurement on Citus needs ${missing}`)

/** `bar`: the minimum rate, or the maximum median latency, as a ratio to one PostgreSQL. */
interface Row {
  row: string
  requests: (tenants: Tenant[]) => Request[]
  bar?: number | { most: number }
  connections?: number
}

const level = ({ id }: Tenant) => `/api/v1/${id}/orbit/backend/live/secrets`
const reads = (more: string) => (tenants: Tenant[]) =>
  tenants.map((tenant) => getting(tenant.token, level(tenant) + more))
const lists = (tenants: Tenant[]) => tenants.slice(1, 2).map(({ id, token }) =>
  getting(token, `/api/v1/${id}/projects?page=1&per_page=${PROJECTS}`))
const stores = (tenants: Tenant[]) => tenants.map((tenant) => storing(tenant))
const one = (requests: Row['requests']): Row['requests'] => (tenants) => requests(tenants).slice(0, 1)

const ROWS: Row[] = [
  { row: 'read, one organization', requests: one(reads('')), bar: 0.5 },
  { row: 'decrypted read, one organization', requests: one(reads('?decrypt=true')), bar: 0.5 },
  { row: 'store, one organization', requests: one(stores), bar: 0.5 },
  { row: `read, ${TENANTS} organizations`, requests: reads('') },
  { row: `decrypted read, ${TENANTS} organizations`, requests: reads('?decrypt=true') },
  { row: `store, ${TENANTS} organizations`, requests: stores },
  { row: `list of ${PROJECTS} projects`, requests: lists },
  { row: 'read, 1 connection: p50', requests: one(reads('')), connections: 1 },
  { row: 'store, 1 connection: p50', requests: one(stores), connections: 1, bar: { most: 2.5 } },
  { row: 'list, 1 connection: p50', requests: lists, connections: 1 }
]

const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'strongroom-bench-'))
const load = startLoad()
const [postgres, citus] = await Promise.all([startPostgres(), startCitus({}, { durable: true })])
try {
  const nodes = citus.nodes.map(({ url }) => url)
  const places = await Promise.all([postgres.url, await createOnCitus(nodes, 'strongroom')].map(prepare))
  const lines: Line[] = []
  for (const row of ROWS.filter(({ row }) => row.includes(values.only))) {
    lines.push(await measure(row, places[1]!, places[0]!))
  }
  await Promise.all(places.map(({ stop }) => stop()))
  console.log(`\n${os.cpus().length} cores, Node.js ${process.version}, ${CONNECTIONS} connections, medians of ${rounds} rounds of ${seconds} s.\n`)
  console.log(renderTable(lines))
} finally {
  load.close()
  await Promise.all([postgres.close(), citus.close()])
  fs.rmSync(dir, { recursive: true, force: true })
}

interface Place { url: string, tenants: Tenant[], stop: () => Promise<void> }

async function prepare (url: string): Promise<Place> {
  const env = { DATABASE_URL: url, DATABASE_POOL: '10', MASTER_KEY: `bench:${randomBytes(32).toString('base64')}` }
  const tenants = await makeTenants(env, TENANTS)
  const service = await startService(dir, env)
  await fillTenants(service.url, tenants)
  await fillProjects(service.url, tenants[1]!, 'listed', PROJECTS)
  return { url: service.url, tenants, stop: () => service.stop() }
}

async function measure (
  { row, requests, bar, connections = CONNECTIONS }: Row, own: Place, other: Place
): Promise<Line> {
  const fire = ({ url, tenants }: Place, seconds: number): Promise<Outcome> =>
    load.fire({ url, requests: requests(tenants), expect: 200, seconds, connections })
  const pairs: [own: Outcome, other: Outcome][] = []
  for (const place of [own, other]) await fire(place, 1)
  for (let round = 0; round < rounds; round++) pairs.push([await fire(own, seconds), await fire(other, seconds)])
  const isLatency = connections === 1
  const figure = ({ rate, p50 }: Outcome) => isLatency ? p50 : rate
  const [mine, its] = [pairs.map(([one]) => one), pairs.map(([, one]) => one)]
  return {
    row,
    reference: 'one PostgreSQL',
    ...compare(median(mine.map(figure)), median(its.map(figure)), isLatency ? ' ms' : '/s', isLatency ? 2 : 0),
    ratio: median(pairs.map(([own, other]) => figure(own) / figure(other))),
    ...bar !== undefined && { bar: typeof bar === 'number' ? { least: bar } : bar },
    latency: `${median(mine.map(({ p50 }) => p50)).toFixed(2)} / ${median(mine.map(({ p99 }) => p99)).toFixed(2)} ms`,
    note: total([...mine, ...its])
  }
}
