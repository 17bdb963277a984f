/**
 * `npm run bench:beside -- DIR [--rounds 10 --seconds 2 --only WORD --embedded --workers 2]`: this build in turns with
 * another build of the service, whose checkout (with `dist/`) is DIR. Both have a database of their own on one
 * PostgreSQL, or with `--embedded` an embedded one. With `--workers`, each build serves with that many processes. A
 * ratio is the median of the rounds' ratios: a rate above 1, or a time below 1, is better than the other build.
 * `--only`: the rows whose names contain WORD. Prints a Markdown table, and exits with 0 also if a bar is missed.
 */
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { startPostgres } from '../test/helpers/postgres.ts'
import { startLoad, type Request } from './load.ts'
import { createDatabase, preparePlace, printRows, PROJECTS, roundsOf, type Place, type PlaceRow } from './places.ts'
import { fillHistory, fillLayers, getting, LEVEL, makeLevel, posting, send, storing } from './seed.ts'

const VERSIONS = 500
const NAMES = 200
/** The minimum rate and the maximum time, as ratios to the other build. */
const [MIN_RATE, MAX_TIME] = [0.97, 1.03]

const { values, positionals: [checkout] } = parseArgs({
  allowPositionals: true,
  options: {
    rounds: { type: 'string', default: '10' },
    seconds: { type: 'string', default: '2' },
    only: { type: 'string', default: '' },
    embedded: { type: 'boolean', default: false },
    workers: { type: 'string', default: '1' }
  }
})
const options = { only: values.only, ...roundsOf(values) }
const cli = path.join(path.resolve(checkout ?? ''), 'dist/src/cli.js')
if (checkout === undefined || !fs.existsSync(cli)) throw new Error('Give the checkout of the other build, with dist/')

const first = ({ tenants }: Place) => tenants[0]!
const level = (place: Place, project: string) => `/api/v1/${first(place).id}/${project}/backend/live/secrets`
const reading = (more: string, project = 'orbit', headers = {}) => (place: Place): Request[] =>
  [getting(first(place).token, level(place, project) + more, headers)]
const storingAll = ({ tenants }: Place) => tenants.map((tenant) => storing(tenant))
const changing = (place: Place): Request[] => Array.from({ length: 64 }, (_, i): Request => ({
  ...posting(first(place).token, level(place, 'names'), { set: { [`SETTING_${NAMES / 2}`]: String(i).padStart(36, '1') } }),
  method: 'PATCH'
}))
const listing = ({ tenants: [, { id, token } = { id: '', token: '' }] }: Place) =>
  [getting(token, `/api/v1/${id}/projects?page=1&per_page=${PROJECTS}`)]
const versions = (place: Place) => Array.from({ length: VERSIONS / 25 }, (_, i) =>
  posting(first(place).token, `/api/v1/${first(place).id}/secrets/versions`, { ...LEVEL, project: 'history', page: i + 1 }))
const restoring = ({ tenants, versions }: Place) => tenants.map(({ id, token }, i) =>
  posting(token, `/api/v1/${id}/secrets/versions/${versions[i]}/restore`, {}))
const alone = { connections: 1, bar: { most: MAX_TIME } }

const ROWS: PlaceRow[] = [
  { row: 'encrypted read', requests: reading('') },
  { row: 'encrypted read, 1 connection: p50', requests: reading(''), ...alone },
  { row: 'decrypted read', requests: reading('?decrypt=true') },
  { row: 'decrypted read, 1 connection: p50', requests: reading('?decrypt=true'), ...alone },
  { row: 'merged read of three levels', requests: reading('?decrypt=true&merge=true', 'layers') },
  { row: 'values of three levels', requests: reading('/values', 'layers') },
  { row: 'values as a shell text', requests: reading('/values', 'layers', { accept: 'text/plain' }) },
  { row: 'names of three levels', requests: reading('/names?merge=true', 'layers') },
  { row: `versions, pages of 25 of ${VERSIONS}`, requests: versions },
  { row: `list of ${PROJECTS} projects`, requests: listing },
  { row: `change of one name of ${NAMES}`, requests: changing },
  { row: 'store, 20 organizations', requests: storingAll },
  { row: 'store, one organization', requests: (place) => storingAll(place).slice(0, 1) },
  {
    row: 'store with Idempotency-Key, one organization',
    requests: (place) => storingAll(place).slice(0, 1).map((request) => ({ ...request, isKeyed: true }))
  },
  { row: 'store, 1 connection: p50', requests: (place) => storingAll(place).slice(0, 1), ...alone },
  { row: 'restore, 20 organizations', requests: restoring }
]

const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'strongroom-bench-'))
const load = startLoad()
const server = values.embedded ? undefined : await startPostgres()
try {
  const own = await fill(await preparePlace(dir, await database('own')))
  const other = await fill(await preparePlace(dir, await database('other'), cli))
  await printRows(load, ROWS.map((row) => ({ bar: MIN_RATE, ...row })), { own, other }, 'the other build', options)
} finally {
  load.close()
  await server?.close()
  fs.rmSync(dir, { recursive: true, force: true })
}

/** The settings of an empty database for one of the two builds. */
async function database (name: string): Promise<Record<string, string>> {
  if (server === undefined) return { DATA_DIR: path.join(dir, name) }
  return { DATABASE_URL: await createDatabase(server.url, name), DATABASE_POOL: '10', WORKERS: values.workers }
}

async function fill (place: Place): Promise<Place> {
  const tenant = first(place)
  await fillLayers(place.url, tenant)
  await fillHistory(place.url, tenant, VERSIONS)
  await makeLevel(place.url, tenant, 'names')
  const plaintext = Array.from({ length: NAMES }, (_, i) => `SETTING_${i}=${String(i).padStart(36, '0')}`).join('\n')
  await send(place.url, posting(tenant.token, `/api/v1/${tenant.id}/secrets/store`, { ...LEVEL, project: 'names', plaintext }))
  return place
}
