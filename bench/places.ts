/** The same requests to two services in turns: another database, or another build. */
import { randomBytes } from 'node:crypto'
import os from 'node:os'
import { pathToFileURL } from 'node:url'
import postgres from 'postgres'
import { total, type Outcome, type Request, type startLoad } from './load.ts'
import { startService } from './processes.ts'
import { fillProjects, fillTenants, makeTenants, type Tenant } from './seed.ts'
import { compare, median, renderTable, type Line } from './table.ts'

export const CONNECTIONS = 32
export const TENANTS = 20
export const PROJECTS = 25
// V8 optimizes the code of a row during its first 5,000 to 10,000 requests; until then a response costs up to twice as
// much.
const WARM_UP_SECONDS = 5

/** A service with its tenants. `versions`: a version of the document of each tenant, in their order. */
export interface Place {
  url: string
  tenants: Tenant[]
  versions: string[]
  /** CPU time of the service in milliseconds, without PostgreSQL. */
  cpu: () => number
  stop: () => Promise<void>
}

/** `bar`: the minimum rate, or the maximum median latency, as a ratio to the other service. */
export interface PlaceRow {
  row: string
  requests: (place: Place) => Request[]
  bar?: number | { most: number }
  connections?: number
  /** The expected status; 200 if absent. */
  expect?: number
}

/** Starts a service on an empty database and fills the database. `cli`: the command of another build. */
export async function preparePlace (dir: string, database: Record<string, string>, cli?: string): Promise<Place> {
  const env = { ...database, MASTER_KEY: `bench:${randomBytes(32).toString('base64')}` }
  // Each build makes the tables of its own version.
  const seed = cli && await import(new URL('../bench/seed.js', pathToFileURL(cli)).href) as typeof import('./seed.ts')
  const tenants = await (seed ? seed.makeTenants : makeTenants)(env, TENANTS)
  const service = await startService(dir, env, cli)
  const versions = await fillTenants(service.url, tenants)
  await fillProjects(service.url, tenants[1]!, 'listed', PROJECTS)
  return { url: service.url, tenants, versions, cpu: service.cpu, stop: () => service.stop() }
}

/** Creates an empty database. Returns its URL. */
export async function createDatabase (server: string, name: string): Promise<string> {
  const sql = postgres(server, { max: 1, onnotice: () => {} })
  await sql.unsafe(`CREATE DATABASE ${name}`)
  await sql.end()
  const url = new URL(server)
  url.pathname = `/${name}`
  return url.href
}

/** The rounds of a row and the seconds of each round, from the command line. */
export function roundsOf (values: { rounds: string, seconds: string }): { rounds: number, seconds: number } {
  const [rounds, seconds] = [Number(values.rounds), Number(values.seconds)]
  if (!(Number.isInteger(rounds) && rounds > 0 && Number.isInteger(seconds) && seconds > 0)) {
    throw new Error('--rounds and --seconds are whole numbers from 1')
  }
  return { rounds, seconds }
}

/** Measures the rows whose names contain `only`, stops both services, and prints a Markdown table. */
export async function printRows (
  load: ReturnType<typeof startLoad>, rows: readonly PlaceRow[], places: { own: Place, other: Place },
  reference: string, { only, ...options }: { only: string, rounds: number, seconds: number }
): Promise<void> {
  const lines: Line[] = []
  for (const row of rows.filter(({ row }) => row.includes(only))) {
    const line = await measurePlaces(load, row, places, reference, options)
    console.log(`${row.row}: ${line.ratio.toFixed(2)}`)
    lines.push(line)
  }
  await Promise.all([places.own.stop(), places.other.stop()])
  const { rounds, seconds } = options
  console.log(`\n${os.cpus().length} cores, Node.js ${process.version}, ${CONNECTIONS} connections, medians of ${rounds} rounds of ${seconds} s.\n`)
  console.log(renderTable(lines))
}

/** `cost`: the CPU time of an answer in milliseconds, which depends less on the load of the machine than the rate. */
interface Measured extends Outcome { cost: number }

/** Sends the requests of a row to both services in turns. A ratio is the median of the rounds' ratios. */
async function measurePlaces (
  load: ReturnType<typeof startLoad>, { row, requests, bar, connections = CONNECTIONS, expect = 200 }: PlaceRow,
  places: { own: Place, other: Place }, reference: string, { rounds, seconds }: { rounds: number, seconds: number }
): Promise<Line> {
  const fire = async (place: Place, seconds: number): Promise<Measured> => {
    const begun = place.cpu()
    const outcome = await load.fire({ url: place.url, requests: requests(place), expect, seconds, connections })
    return { ...outcome, cost: (place.cpu() - begun) / (outcome.rate * seconds) }
  }
  const pairs: [own: Measured, other: Measured][] = []
  for (const place of [places.own, places.other]) await fire(place, WARM_UP_SECONDS)
  for (let round = 0; round < rounds; round++) {
    // Every second round begins with the other service, because the first one of a round may be at a disadvantage.
    const early = round % 2 === 1 ? await fire(places.other, seconds) : undefined
    const own = await fire(places.own, seconds)
    pairs.push([own, early ?? await fire(places.other, seconds)])
  }
  const isLatency = connections === 1
  const figure = ({ rate, p50 }: Outcome) => isLatency ? p50 : rate
  const [own, other] = [pairs.map(([one]) => one), pairs.map(([, one]) => one)]
  return {
    row,
    reference,
    ...compare(median(own.map(figure)), median(other.map(figure)), isLatency ? ' ms' : '/s', isLatency ? 2 : 0),
    ratio: median(pairs.map(([own, other]) => figure(own) / figure(other))),
    ...bar !== undefined && { bar: typeof bar === 'number' ? { least: bar } : bar },
    cost: `${median(pairs.map(([own, other]) => own.cost / other.cost)).toFixed(2)} of the reference’s`,
    latency: `${median(own.map(({ p50 }) => p50)).toFixed(2)} / ${median(own.map(({ p99 }) => p99)).toFixed(2)} ms`,
    note: total([...own, ...other])
  }
}
