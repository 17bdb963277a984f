/**
 * `npm run bench [-- --rounds 5 --seconds 3 --minutes 10 --levels 1000000 --only WORD]`: measures each row alternately
 * with a reference, because machines differ and are noisy. A ratio is the median of the rounds' ratios. Prints a
 * Markdown table. A missed bar is not a failure. `--minutes` is the duration of long measurements. `--levels` is the
 * size of the large database, which has ten versions per level. With 0, these rows are skipped.
 */
import { randomBytes } from 'node:crypto'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import postgres from 'postgres'
import { startPostgres } from '../test/helpers/postgres.ts'
import { measureAudit, measureAuditLists } from './audit.ts'
import { measureFairness } from './fairness.ts'
import { measureKeys } from './keys.ts'
import { startLoad, total, type Outcome, type Request } from './load.ts'
import { measureMatrix } from './matrix.ts'
import { measureMerges } from './merges.ts'
import { measureNameHistories } from './name-histories.ts'
import { measureNames } from './names.ts'
import { roundsOf } from './places.ts'
import { makeTables, preparePlainTx } from './plain-tx.ts'
import { cpuOfPostgres, startBare, startService, type Running } from './processes.ts'
import { measureRestrictions } from './restrictions.ts'
import { CHUNK, measureScale } from './scale.ts'
import {
  fillHistory, fillLayers, fillProjects, fillTenants, getting, makeTenants, posting, storing, type Tenant
} from './seed.ts'
import { measureSteps } from './steps.ts'
import { compare, median, probeDisk, renderTable, type Line } from './table.ts'
import { measureWorkloads } from './workloads.ts'

const CONNECTIONS = 32
const TENANTS = 20
const VERSIONS = 1000
const PROJECTS = 25

const { values } = parseArgs({
  options: {
    rounds: { type: 'string', default: '5' },
    seconds: { type: 'string', default: '3' },
    minutes: { type: 'string', default: '0' },
    levels: { type: 'string', default: '0' },
    only: { type: 'string', default: '' }
  }
})
const { rounds, seconds } = roundsOf(values)
const minutes = Number(values.minutes)
const levels = Number(values.levels)
if (!(Number.isInteger(minutes) && minutes >= 0)) throw new Error('--minutes is a whole number')
if (!(Number.isInteger(levels / CHUNK) && levels >= 0)) throw new Error(`--levels is a multiple of ${CHUNK}`)
const wanted = (row: string) => row.includes(values.only)

type Reference = 'static' | 'one-query' | 'plain-tx'
/** `bar`: the minimum rate, or the maximum median latency, as a ratio to the reference; undefined without a bar. */
interface Load {
  row: string
  reference: Reference
  bar?: number | { most: number }
  requests: Request[]
  expect?: number
  tail?: true
  connections?: number
}

const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'strongroom-bench-'))
const load = startLoad()
const disk: string[] = []
const lines: Line[] = []

const server = await startPostgres()
const sql = postgres(server.url, { max: 1, onnotice: () => {} })
const [version] = await sql`SHOW server_version`
// Ctrl-C ends the server, too, and prints the rows that were measured.
process.once('SIGINT', () => {
  printTable()
  process.exit(130)
})
try {
  await makeTables(sql)
  const env = {
    DATABASE_URL: server.url, DATABASE_POOL: '10', MASTER_KEY: `bench:${randomBytes(32).toString('base64')}`
  }
  const tenants = await makeTenants(env, TENANTS)
  await measureSteps(lines, rounds, wanted)
  await measureStarts(env)
  await measureEmbeddedStarts()
  const figures = await measureLoads(env, tenants)
  await measureWorkers(env, tenants)
  await measureMemory(env, tenants)
  const bench = { dir, env, sql, load, tenants, connections: CONNECTIONS, rounds, seconds, lines, wanted }
  await measureKeys(bench)
  await measureAudit(bench)
  await measureAuditLists(bench)
  await measureFairness(bench)
  await measureRestrictions(bench)
  await measureMerges(bench)
  await measureNames(bench)
  await measureWorkloads(bench)
  await measureNameHistories(bench)
  await measureMatrix(bench)
  await measureScale(bench, levels)
  await measureEmbedded(figures)
} finally {
  printTable()
  load.close()
  await sql.end()
  await server.close()
  fs.rmSync(dir, { recursive: true, force: true })
}

function printTable () {
  console.log(`\n${os.cpus().length} cores, Node.js ${process.version}, PostgreSQL ${version!.server_version} on the same machine, ${CONNECTIONS} connections, ` +
    `medians of ${rounds} rounds of ${seconds} s.\nfdatasync of 8 KiB takes, before each row of writes: ${disk.join('; ')}.\n`)
  console.log(renderTable(lines))
}

/** Fills the tenants and returns the load rows. */
async function loads (url: string, tenants: Tenant[]): Promise<Load[]> {
  const { id, token } = tenants[0]!
  const created = await fillTenants(url, tenants)
  await fillLayers(url, tenants[0]!)
  await fillHistory(url, tenants[0]!, VERSIONS)
  await fillProjects(url, tenants[1]!, 'listed', PROJECTS)
  // Autovacuum would analyze within a minute; without statistics, the planner guesses.
  await sql`ANALYZE`
  const one = `/api/v1/${id}/orbit/backend/live/secrets`
  const fresh = await fetch(url + one, { headers: { authorization: `Bearer ${token}` } })
  const etag = fresh.headers.get('etag')!
  // The last character of a token belongs to the checksum.
  const mistyped = token.slice(0, -1) + (token.endsWith('x') ? 'y' : 'x')
  const level = { project: 'history', target: 'backend', environment: 'live' }
  return [
    {
      row: 'read one level, encrypted, 4 KiB',
      reference: 'one-query',
      bar: 0.5,
      requests: [getting(token, one)],
      tail: true
    },
    {
      row: 'read one level, 1 connection: p50',
      reference: 'one-query',
      bar: { most: 2.2 },
      requests: [getting(token, one)],
      connections: 1
    },
    {
      row: 'read one level, decrypted, with its event, 4 KiB',
      reference: 'one-query',
      bar: 0.4,
      requests: [getting(token, `${one}?decrypt=true`)]
    },
    {
      row: 'read three levels, decrypted and merged',
      reference: 'one-query',
      bar: 0.35,
      requests: [getting(token, `/api/v1/${id}/layers/backend/live/secrets?decrypt=true&merge=true`)]
    },
    {
      row: 'read, If-None-Match → 304',
      reference: 'one-query',
      bar: 0.7,
      requests: [getting(token, one, { 'if-none-match': etag })],
      expect: 304
    },
    { row: '/healthz', reference: 'static', requests: [{ method: 'GET', path: '/healthz' }] },
    {
      row: 'refused token (bad checksum)',
      reference: 'static',
      requests: [getting(mistyped, one)],
      expect: 401
    },
    {
      row: `list versions, pages of 25 of ${VERSIONS}`,
      reference: 'one-query',
      bar: 0.3,
      requests: Array.from(
        { length: VERSIONS / 25 }, (_, i) => posting(token, `/api/v1/${id}/secrets/versions`, { ...level, page: i + 1 })
      )
    },
    {
      row: `list of ${PROJECTS} projects`,
      reference: 'one-query',
      bar: 0.35,
      requests: [getting(tenants[1]!.token, `/api/v1/${tenants[1]!.id}/projects?page=1&per_page=${PROJECTS}`)]
    },
    {
      row: `store 4 KiB, ${TENANTS} organizations`,
      reference: 'plain-tx',
      bar: 0.42,
      requests: tenants.map((tenant) => storing(tenant))
    },
    { row: 'store 4 KiB, one organization', reference: 'plain-tx', bar: 0.9, requests: [storing(tenants[0]!)] },
    {
      row: `restore a version, ${TENANTS} organizations`,
      reference: 'plain-tx',
      bar: 0.42,
      requests: tenants.map((
        { id, token }, i
      ) => posting(token, `/api/v1/${id}/secrets/versions/${created[i]}/restore`, {}))
    }
  ]
}

/** Returns the rates by row; they are the references for the embedded database. */
async function measureLoads (env: Record<string, string>, tenants: Tenant[]): Promise<Map<string, number>> {
  const [service, bare] = await Promise.all([startService(dir, env), startBare(dir, server.url)])
  const plainTx = await preparePlainTx(sql, server.url, dir)
  const rates = new Map<string, number>()
  try {
    const references: Record<Reference, (seconds: number, connections?: number) => Promise<Pick<Outcome,
      'rate' | 'p50'>>> = {
        static: async (seconds, connections) =>
          fire(bare, [{ method: 'GET', path: '/static' }], 200, seconds, connections),
        'one-query': async (seconds, connections) =>
          fire(bare, [{ method: 'GET', path: '/one-query/1' }], 200, seconds, connections),
        'plain-tx': async (seconds) => ({ rate: await plainTx(seconds), p50: NaN })
      }
    for (const {
      row, reference, bar, requests, expect = 200, tail, connections
    } of (await loads(service.url, tenants)).filter(({ row }) => wanted(row))) {
      if (reference === 'plain-tx') disk.push(probeDisk(server.dir))
      await fire(service, requests, expect, 1, connections)
      await references[reference](1, connections)
      const own: Outcome[] = []
      const other: Pick<Outcome, 'rate' | 'p50'>[] = []
      const costs: { service: number, postgres: number }[] = []
      for (let round = 0; round < rounds; round++) {
        other.push(await references[reference](seconds, connections))
        const before = { service: service.cpu(), postgres: cpuOfPostgres() }
        const outcome = await fire(service, requests, expect, seconds, connections)
        const each = (used: number) => used * 1000 / (outcome.rate * seconds)
        costs.push({ service: each(service.cpu() - before.service), postgres: each(cpuOfPostgres() - before.postgres) })
        own.push(outcome)
      }
      const single = await fire(service, requests, expect, seconds, 1)
      const rate = median(own.map(({ rate }) => rate))
      rates.set(row, rate)
      const figures = typeof bar !== 'object'
        ? {
            ...compare(rate, median(other.map(({ rate }) => rate)), '/s', 0),
            ratio: median(own.map(({ rate }, round) => rate / other[round]!.rate)),
            ...(bar !== undefined && { bar: { least: bar } })
          }
        : {
            ...compare(median(own.map(({ p50 }) => p50)), median(other.map(({ p50 }) => p50)), ' ms', 2),
            ratio: median(own.map(({ p50 }, round) => p50 / other[round]!.p50)),
            bar
          }
      const cost =
        `${median(costs.map(({ service }) => service)).toFixed(0)} + ${median(costs.map(({ postgres }) => postgres)).toFixed(0)} µs`
      const latency = latencyOf(median(own.map(({ p50 }) => p50)), median(own.map(({ p99 }) => p99)))
      const alone = latencyOf(single.p50, single.p99)
      lines.push({ row, reference, ...figures, cost, latency, alone, note: total([...own, single]) })
      if (tail) {
        const p99 = median(own.map(({ p99 }) => p99))
        const p50 = median(own.map(({ p50 }) => p50))
        lines.push({ row: `${row}: p99`, reference: 'its p50', ...compare(p99, p50, ' ms', 1), bar: { most: 5 } })
      }
      console.log(`${row}: ${Math.round(rate)}/s`)
    }
  } finally {
    await Promise.all([service.stop(), bare.stop()])
  }
  return rates
}

/** The same reads with one and with two worker processes. Has no bar on machines with too few cores. */
async function measureWorkers (env: Record<string, string>, tenants: Tenant[]): Promise<void> {
  const row = 'reads with 2 workers'
  if (!wanted(row)) return
  const [one, two] = await Promise.all([startService(dir, env), startService(dir, { ...env, WORKERS: '2' })])
  try {
    const { id, token } = tenants[0]!
    // `measureLoads` has stored this document.
    const requests = [getting(token, `/api/v1/${id}/orbit/backend/live/secrets`)]
    for (const service of [one, two]) await fire(service, requests, 200, 1)
    const own: Outcome[] = []
    const other: number[] = []
    const costs: number[] = []
    for (let round = 0; round < rounds; round++) {
      other.push((await fire(one, requests, 200, seconds)).rate)
      const before = two.cpu()
      const outcome = await fire(two, requests, 200, seconds)
      costs.push((two.cpu() - before) * 1000 / (outcome.rate * seconds))
      own.push(outcome)
    }
    const single = await fire(two, requests, 200, seconds, 1)
    const rate = median(own.map(({ rate }) => rate))
    const ratio = median(own.map(({ rate }, round) => rate / other[round]!))
    // Two cores for the workers, one for PostgreSQL, one for the load.
    const bar = os.availableParallelism() >= 4 ? { bar: { least: 1.6 } } : {}
    lines.push({
      row,
      reference: '1 worker',
      ...compare(rate, median(other), '/s', 0),
      ratio,
      ...bar,
      cost: `${median(costs).toFixed(0)} µs`,
      latency: latencyOf(median(own.map(({ p50 }) => p50)), median(own.map(({ p99 }) => p99))),
      alone: latencyOf(single.p50, single.p99),
      note: total([...own, single])
    })
    console.log(`${row}: ${Math.round(rate)}/s`)
  } finally {
    await Promise.all([one.stop(), two.stop()])
  }
}

/** The memory of the process under moderate load; shows leaks and unbounded caches. */
async function measureMemory (env: Record<string, string>, tenants: Tenant[]): Promise<void> {
  const row = `memory after ${minutes} minutes of load at 70 %`
  if (minutes === 0 || !wanted(row)) return
  const service = await startService(dir, env)
  try {
    const requests = tenants.flatMap((tenant) => [
      storing(tenant), ...['', '?decrypt=true&merge=true'].map((query) =>
        getting(tenant.token, `/api/v1/${tenant.id}/orbit/backend/live/secrets${query}`))
    ])
    const { rate: most } = await fire(service, requests, 200, seconds)
    const atMost = Math.round(most * 0.7)
    const outcomes: Outcome[] = []
    let first = NaN
    for (let minute = 0; minute < minutes; minute++) {
      outcomes.push(await load.fire({
        url: service.url, requests, expect: 200, seconds: 60, connections: CONNECTIONS, rate: atMost
      }))
      if (minute === 0) first = service.memory()
    }
    lines.push({
      row,
      reference: 'after the first minute',
      ...compare(service.memory(), first, ' MiB', 0),
      bar: { most: 1.1 },
      latency: latencyOf(median(outcomes.map(({ p50 }) => p50)), median(outcomes.map(({ p99 }) => p99))),
      note: total(outcomes)
    })
    console.log(`${row}: ${Math.round(service.memory())} MiB`)
  } finally {
    await service.stop()
  }
}

async function measureStarts (env: Record<string, string>): Promise<void> {
  if (!wanted('start') && !wanted('memory')) return
  const own = { start: [] as number[], memory: [] as number[], cpu: [] as number[] }
  const other = { start: [] as number[], memory: [] as number[], cpu: [] as number[] }
  for (let round = 0; round < rounds; round++) {
    for (const [figures, begin] of [
      [other, () => startBare(dir, 'plugins')], [own, () => startService(dir, env)]
    ] as const) {
      const process = await begin()
      figures.start.push(process.startedIn)
      figures.cpu.push(process.cpu())
      // Wait until the start's background work has ended.
      await pause(1_000)
      figures.memory.push(process.memory())
      await process.stop()
    }
  }
  const reference = 'bare Fastify, same plugins'
  lines.push({
    row: 'start to ready, migrated',
    reference,
    ...compare(median(own.start), median(other.start), ' ms', 0),
    bar: { most: 3 },
    cost: `${median(own.cpu).toFixed(0)} ms in all`
  })
  lines.push({
    row: 'idle memory (RSS)',
    reference,
    ...compare(median(own.memory), median(other.memory), ' MiB', 0),
    bar: { most: 2 }
  })
}

/** A first start creates the cluster, an organization and the owner; a later start is the reference. */
async function measureEmbeddedStarts (): Promise<void> {
  const rows = { start: 'embedded: first start to ready', memory: 'embedded: idle memory (RSS)' }
  if (!wanted(rows.start) && !wanted(rows.memory)) return
  const first = { start: [] as number[], memory: [] as number[], cpu: [] as number[] }
  const later = { start: [] as number[], memory: [] as number[], cpu: [] as number[] }
  for (let round = 0; round < rounds; round++) {
    const env = { DATA_DIR: path.join(dir, `data-${round}`) }
    for (const figures of [first, later]) {
      const service = await startService(dir, env)
      figures.start.push(service.startedIn)
      figures.cpu.push(service.cpu())
      // Wait for the first start's background work and for V8's compilation.
      await pause(5_000)
      figures.memory.push(service.memory())
      await service.stop()
    }
  }
  lines.push({
    row: rows.start,
    reference: 'a later start',
    ...compare(median(first.start), median(later.start), ' ms', 0),
    bar: { most: 1.5 },
    cost: `${median(first.cpu).toFixed(0)} ms in all`
  })
  for (const [which, { memory }] of [['first', first], ['later', later]] as const) {
    lines.push({
      row: `${rows.memory}, ${which} start`,
      reference: 'what is asked for',
      ...compare(median(memory), 300, ' MiB', 0),
      bar: { most: 1 }
    })
  }
}

async function measureEmbedded (figures: Map<string, number>): Promise<void> {
  if (!wanted('embedded')) return
  const env = { DATA_DIR: path.join(dir, 'data') }
  const tenants = await makeTenants(env, TENANTS)
  const service = await startService(dir, env)
  try {
    await fillTenants(service.url, tenants)
    const { id, token } = tenants[0]!
    const rows = [
      {
        row: 'read one level, encrypted, 4 KiB', requests: [getting(token, `/api/v1/${id}/orbit/backend/live/secrets`)]
      },
      { row: `store 4 KiB, ${TENANTS} organizations`, requests: tenants.map((tenant) => storing(tenant)) }
    ]
    for (const { row, requests } of rows) {
      await fire(service, requests, 200, 1)
      const own: Outcome[] = []
      const before = service.cpu()
      for (let round = 0; round < rounds; round++) own.push(await fire(service, requests, 200, seconds))
      const answered = own.reduce((sum, { rate }) => sum + rate * seconds, 0)
      const cost = `${((service.cpu() - before) * 1000 / answered).toFixed(0)} µs`
      const single = await fire(service, requests, 200, seconds, 1)
      const rate = median(own.map(({ rate }) => rate))
      lines.push({
        row: `embedded: ${row}`,
        reference: 'the same on PostgreSQL',
        ...compare(rate, figures.get(row) ?? NaN, '/s', 0),
        bar: { least: 0.6 },
        cost,
        latency: latencyOf(median(own.map(({ p50 }) => p50)), median(own.map(({ p99 }) => p99))),
        alone: latencyOf(single.p50, single.p99),
        note: total([...own, single])
      })
      console.log(`embedded: ${row}: ${Math.round(rate)}/s`)
    }
  } finally {
    await service.stop()
  }
}

function latencyOf (p50: number, p99: number): string {
  return `${p50.toFixed(1)} / ${p99.toFixed(1)} ms`
}

function fire (
  { url }: Running, requests: Request[], expect: number, seconds: number, connections = CONNECTIONS
): Promise<Outcome> {
  return load.fire({ url, requests, expect, seconds, connections })
}
