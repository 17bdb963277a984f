/**
 * `npm run bench:citus [-- --rounds 5 --seconds 3 --only WORD]`: the service on a Citus cluster of a coordinator and
 * two workers, alternately with the service on one PostgreSQL on the same machine. A ratio is the median of the rounds'
 * ratios. `--only`: the rows whose names contain WORD. Prints a Markdown table. A missed bar is not a failure.
 */
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { createOnCitus, missingForCitus, startCitus } from '../test/helpers/citus.ts'
import { startPostgres } from '../test/helpers/postgres.ts'
import { startLoad } from './load.ts'
import { preparePlace, printRows, PROJECTS, roundsOf, TENANTS, type Place, type PlaceRow } from './places.ts'
import { getting, storing, type Tenant } from './seed.ts'

const { values } = parseArgs({
  options: {
    rounds: { type: 'string', default: '5' }, seconds: { type: 'string', default: '3' }, only: { type: 'string', default: '' }
  }
})
const options = { only: values.only, ...roundsOf(values) }
const missing = missingForCitus()
if (missing !== undefined) throw new Error(`The measurement on Citus needs ${missing}`)

const level = ({ id }: Tenant) => `/api/v1/${id}/orbit/backend/live/secrets`
const reads = (more: string) => ({ tenants }: Place) =>
  tenants.map((tenant) => getting(tenant.token, level(tenant) + more))
const lists = ({ tenants }: Place) => tenants.slice(1, 2).map(({ id, token }) =>
  getting(token, `/api/v1/${id}/projects?page=1&per_page=${PROJECTS}`))
const stores = ({ tenants }: Place) => tenants.map((tenant) => storing(tenant))
const one = (requests: PlaceRow['requests']): PlaceRow['requests'] => (place) => requests(place).slice(0, 1)

const ROWS: PlaceRow[] = [
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
  const [other, own] = await Promise.all([postgres.url, await createOnCitus(nodes, 'strongroom')].map((url) =>
    preparePlace(dir, { DATABASE_URL: url, DATABASE_POOL: '10' }))) as [Place, Place]
  await printRows(load, ROWS, { own, other }, 'one PostgreSQL', options)
} finally {
  load.close()
  await Promise.all([postgres.close(), citus.close()])
  fs.rmSync(dir, { recursive: true, force: true })
}
