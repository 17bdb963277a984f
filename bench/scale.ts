/**
 * Size rows: reads, writes and lists in a database with very many levels and versions, compared with an almost empty
 * database. Each database has its own PostgreSQL server; both have the same measured tenants.
 */
import postgres from 'postgres'
import { open } from '../src/commands/common/open.ts'
import { loadConfig } from '../src/config.ts'
import { startPostgres } from '../test/helpers/postgres.ts'
import { levelsOf, makeProject, type Shape } from './bulk.ts'
import type { Bench } from './keys.ts'
import { total, type Outcome, type Request } from './load.ts'
import { startService } from './processes.ts'
import { fillHistory, fillTenants, getting, LEVEL, makeTenants, posting, several, storing, type Tenant } from './seed.ts'
import { compare, median } from './table.ts'

const TENANTS = 20
const HISTORY = 1000
const PROJECTS = 25

// The project, each of the nine targets and each of their ten environments has a document. The measured tenant has a
// tenth of all levels; each of the other organizations has ten such projects.
const PROJECT = { targets: 9, environments: 10 }
const OF_PROJECT = levelsOf({ ...PROJECT, slug: '', versions: 1 })
const OF_ORGANIZATION = 10 * OF_PROJECT
const SHARE = 10
const VERSIONS = 10

/** `--levels` must be a multiple of this number. */
export const CHUNK = SHARE * OF_ORGANIZATION
// Concurrent transactions; each uses a PostgreSQL process.
const AT_ONCE = 2

// Large lists of one project, in both databases.
const WIDE = { full: { targets: 99, environments: 100 }, empty: { targets: 1, environments: 1 } }
const LONG = { full: 100_000, empty: HISTORY }

/** The size of the data set. */
export interface Size { organizations: number, levels: number, versions: number }

/** The number of projects per organization. Throws if the levels cannot be distributed evenly. */
export function projectsOf ({ organizations, levels, versions }: Size): number {
  const projects = levels / OF_PROJECT / organizations
  if (![organizations, projects, versions].every((count) => Number.isInteger(count) && count > 0)) {
    throw new Error(`--levels must be a multiple of ${OF_PROJECT} times --organizations; all counts must be at least 1`)
  }
  return projects
}

/**
 * Fills a database with organizations that have equally many levels, and prints the duration and the size. Returns a
 * token of the first organization. Throws before any change if the database already has organizations.
 */
export async function fillDatabase (env: Record<string, string>, size: Size): Promise<string> {
  const { organizations, levels, versions } = size
  const projects = projectsOf(size)
  if (await hasOrganizations(env.DATABASE_URL!)) throw new Error('The database has organizations; use an empty database')
  const tenants = await makeTenants(env, organizations)
  const said = await fill(env, tenants.flatMap(({ id }) => Array.from({ length: projects }, (_, i) =>
    ({ id, shape: { ...PROJECT, slug: `filled-${i}`, versions } }))))
  console.log(`${organizations} organizations, ${levels} levels, ${levels * versions} versions: ${said}`)
  return tenants[0]!.token
}

async function hasOrganizations (url: string): Promise<boolean> {
  const sql = postgres(url, { max: 1, onnotice: () => {} })
  try {
    const [there] = await sql`SELECT to_regclass('public.organizations') IS NOT NULL AS is`
    return there!.is === true && (await sql`SELECT 1 FROM public.organizations LIMIT 1`).length > 0
  } finally {
    await sql.end()
  }
}

/** Creates projects, interleaved over the organizations, and then updates the planner's statistics. */
async function fill (env: Record<string, string>, projects: { id: string, shape: Shape }[]): Promise<string> {
  const opened = await open(loadConfig(env), { creates: true })
  const sql = postgres(env.DATABASE_URL!, { max: 1, onnotice: () => {} })
  const begun = performance.now()
  try {
    const rows = await sql<{ id: string, storage_key: Buffer }[]>`SELECT id, storage_key FROM organizations`
    const organizations = new Map(rows.map((row) => [row.id, row]))
    // The stride has no common divisor with the number of projects, so each project is created once.
    const stride = strideOf(projects.length)
    await several(projects.length, async (i) => {
      const { id, shape } = projects[i * stride % projects.length]!
      await makeProject(opened, organizations.get(id)!, shape)
    }, AT_ONCE)
    await sql`VACUUM ANALYZE`
    await sql`CHECKPOINT`
    const [size] = await sql`SELECT pg_database_size(current_database()) AS bytes`
    const seconds = (performance.now() - begun) / 1000
    return `${(Number(size!.bytes) / 2 ** 30).toFixed(1)} GiB, filled in ${seconds.toFixed(0)} s`
  } finally {
    await sql.end()
    await opened.database.close()
  }
}

function strideOf (count: number): number {
  const common = (a: number, b: number): number => b === 0 ? a : common(b, a % b)
  let stride = Math.ceil(count * 0.618)
  while (common(stride, count) !== 1) stride++
  return stride
}

/** Each round measures the empty database first, then the filled database. Skips the rows if `levels` is 0. */
export async function measureScale (bench: Bench, levels: number): Promise<void> {
  const { dir, env, load, rounds, seconds, lines } = bench
  const size = `${levels.toLocaleString('en')} levels, ${(levels * VERSIONS).toLocaleString('en')} versions`
  const rowOf = (what: string, connections: number) =>
    `scale: ${what}, ${size}, ${connections === 1 ? '1 connection' : `${connections} connections`}: p50`
  const rows = WHAT.flatMap((what) => [1, bench.connections].map((connections) =>
    ({ what, connections, row: rowOf(what, connections) }))).filter(({ row }) => bench.wanted(row))
  if (levels === 0 || rows.length === 0) return

  const running: { stop (): Promise<void> }[] = []
  const begin = async (which: 'full' | 'empty') => {
    const server = await startPostgres()
    running.unshift({ stop: server.close })
    const own = { ...env, DATABASE_URL: server.url }
    const tenants = await makeTenants(own, TENANTS)
    const [{ id }] = tenants as [Tenant]
    const filling = await startService(dir, own)
    try {
      await fillTenants(filling.url, tenants)
      await fillHistory(filling.url, tenants[0]!, HISTORY)
    } finally {
      await filling.stop()
    }
    const others = which === 'full'
      ? await makeTenants(own, levels * (1 - 1 / SHARE) / OF_ORGANIZATION, TENANTS + 1)
      : []
    const filled = (id: string, count: number) => Array.from({ length: count }, (_, i) =>
      ({ id, shape: { ...PROJECT, slug: `filled-${i}`, versions: VERSIONS } }))
    const said = await fill(own, [
      ...which === 'full' ? filled(id, levels / SHARE / OF_PROJECT) : [],
      ...others.flatMap((other) => filled(other.id, OF_ORGANIZATION / OF_PROJECT)),
      { id, shape: { ...WIDE[which], slug: 'wide', versions: 1 } },
      { id, shape: { slug: 'long', targets: 0, environments: 0, versions: LONG[which] } },
      ...Array.from({ length: PROJECTS }, (_, i) =>
        ({ id, shape: { slug: `small-${i}`, targets: 0, environments: 0, versions: 1 } }))
    ])
    console.log(`${which}: ${said}`)
    const service = await startService(dir, own)
    running.unshift(service)
    return { url: service.url, requests: await requestsOf(service.url, tenants[0]!, LONG[which]) }
  }
  try {
    const full = await begin('full')
    const empty = await begin('empty')
    for (const { what, connections, row } of rows) {
      const ask = ({ url, requests }: typeof full, seconds: number) => {
        const { expect = 200, all } = requests[what]
        return load.fire({ url, requests: all, expect, seconds, connections })
      }
      for (const one of [empty, full]) await ask(one, 1)
      const own: Outcome[] = []
      const other: Outcome[] = []
      for (let round = 0; round < rounds; round++) {
        other.push(await ask(empty, seconds))
        own.push(await ask(full, seconds))
      }
      const p50 = (outcomes: Outcome[]) => median(outcomes.map(({ p50 }) => p50))
      lines.push({
        row,
        reference: 'empty database',
        ...compare(p50(own), p50(other), ' ms', 2),
        ratio: median(own.map(({ p50 }, round) => p50 / other[round]!.p50)),
        bar: { most: 1.2 },
        note: total([...own, ...other])
      })
      console.log(`${row}: ${p50(own).toFixed(2)} ms, empty ${p50(other).toFixed(2)} ms`)
    }
  } finally {
    for (const one of running) await one.stop()
  }
}

const WHAT = [
  'read', '304', 'store', 'list versions', 'list projects', 'read in a project of 10,000 levels',
  'list the newest of 100,000 versions', 'list what is in the middle of 100,000 versions'
] as const

async function requestsOf (
  url: string, tenant: Tenant, long: number
): Promise<Record<typeof WHAT[number], { expect?: number, all: Request[] }>> {
  const { id, token } = tenant
  const path = `/api/v1/${id}/orbit/backend/live/secrets`
  const answer = await fetch(url + path, { headers: { authorization: `Bearer ${token}` } })
  const pages = (level: object, versions: number) => ({
    all: Array.from({ length: versions / 25 }, (_, i) =>
      posting(token, `/api/v1/${id}/secrets/versions`, { ...level, page: i + 1 }))
  })
  return {
    read: { all: [getting(token, path)] },
    304: { expect: 304, all: [getting(token, path, { 'if-none-match': answer.headers.get('etag')! })] },
    store: { all: [storing(tenant)] },
    'list versions': pages({ ...LEVEL, project: 'history' }, HISTORY),
    'list projects': { all: [getting(token, `/api/v1/${id}/projects?per_page=${PROJECTS}`)] },
    'read in a project of 10,000 levels': {
      all: [getting(token, `/api/v1/${id}/wide/target-0/env-0/secrets`)]
    },
    'list the newest of 100,000 versions': pages({ project: 'long', level: 'project' }, Math.min(long, HISTORY)),
    'list what is in the middle of 100,000 versions': {
      all: [posting(token, `/api/v1/${id}/secrets/versions`, { project: 'long', level: 'project', page: long / 50 })]
    }
  }
}
