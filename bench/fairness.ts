/**
 * Fairness rows: the latency of one organization while another one runs long operations without a pause. In production,
 * hourly limits prevent such a load.
 */
import path from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import type { Bench } from './keys.ts'
import { total, type Outcome, type Request } from './load.ts'
import { startService, type Running } from './processes.ts'
import { fillDocuments, fillTenants, getting, makeTenants, posting, send, storing, type Tenant } from './seed.ts'
import { compare, median } from './table.ts'

const DOCUMENTS = 300
const PROJECTS = 4
const BAR = 2
// Maximum latency divided by the duration of a rotation: a request waits for at most one rotation.
const EMBEDDED_BAR = 1.25
// Milliseconds between two requests of the measured organization on the embedded database.
const BETWEEN = 20

const NAMES = { read: 'read', store: 'store 4 KiB' }
const ofPostgres = (what: string) => `${what}, 1 connection, while another organization rotates keys: p50`
const EMBEDDED = 'embedded: longest read or store while another organization rotates keys'

export async function measureFairness (bench: Bench): Promise<void> {
  await measureOnPostgres(bench)
  await measureOnEmbedded(bench)
}

/** Each round measures one organization without other load, and while another rotates the keys of all its projects. */
async function measureOnPostgres (
  { dir, env, sql, load, tenants, rounds, seconds, lines, wanted }: Bench
): Promise<void> {
  const rows = [
    { row: ofPostgres(NAMES.read), requestOf: reading },
    { row: ofPostgres(NAMES.store), requestOf: storing }
  ].filter(({ row }) => wanted(row))
  if (rows.length === 0) return
  const [busy, measured] = tenants as [Tenant, Tenant]
  const service = await startService(dir, env)
  try {
    const projects = await fill(service, busy)
    await sql`ANALYZE`
    for (const { row, requestOf } of rows) {
      const fire = () => load.fire({
        url: service.url, requests: [requestOf(measured)], expect: 200, seconds, connections: 1
      })
      await fire()
      const idle: Outcome[] = []
      const among: Outcome[] = []
      const times: number[] = []
      for (let round = 0; round < rounds; round++) {
        idle.push(await fire())
        const stop = rotateAll(service, busy, projects)
        await pause(500)
        among.push(await fire())
        times.push(...await stop())
      }
      const p50 = (outcomes: Outcome[]) => median(outcomes.map(({ p50 }) => p50))
      const p99 = (outcomes: Outcome[]) => median(outcomes.map(({ p99 }) => p99))
      lines.push({
        row,
        reference: 'the same, nothing under way',
        ...compare(p50(among), p50(idle), ' ms', 2),
        ratio: median(among.map(({ p50 }, round) => p50 / idle[round]!.p50)),
        bar: { most: BAR },
        note: total([...idle, ...among])
      })
      console.log(`${row}: ${p50(among).toFixed(2)} ms, idle ${p50(idle).toFixed(2)} ms; p99 ${p99(among).toFixed(1)} ms, idle ${p99(idle).toFixed(1)} ms; ` +
        `${times.length} rotations, the median ${median(times).toFixed(0)} ms`)
    }
  } finally {
    await service.stop()
  }
}

/** With one database connection, a request waits for the current rotation, but not for queued rotations. */
async function measureOnEmbedded ({ dir, rounds, seconds, lines, wanted }: Bench): Promise<void> {
  if (!wanted(EMBEDDED)) return
  const env = { DATA_DIR: path.join(dir, 'data-fairness') }
  const tenants = await makeTenants(env, 2)
  const [busy, measured] = tenants as [Tenant, Tenant]
  const service = await startService(dir, env)
  try {
    await fillTenants(service.url, tenants)
    const projects = await fill(service, busy)
    const longest: number[] = []
    const rotations: number[] = []
    let requests = 0
    for (let round = 0; round < rounds; round++) {
      // After a rotation, the next long operation waits for up to a second while other requests use the connection.
      await pause(1_100)
      rotations.push(await timeOf(service, rotating(busy, projects[0]!)))
      const stop = rotateAll(service, busy, projects)
      await pause(500)
      const times: number[] = []
      for (const begun = performance.now(); performance.now() - begun < seconds * 1000;) {
        for (const request of [reading(measured), storing(measured)]) times.push(await timeOf(service, request))
        await pause(BETWEEN)
      }
      requests += times.length
      longest.push(Math.max(...times))
      await stop()
    }
    lines.push({
      row: EMBEDDED,
      reference: 'one rotation, nothing else under way',
      ...compare(median(longest), median(rotations), ' ms', 0),
      ratio: median(longest.map((time, round) => time / rotations[round]!)),
      bar: { most: EMBEDDED_BAR },
      note: '0'
    })
    console.log(`${EMBEDDED}: ${median(longest).toFixed(0)} ms of ${requests} requests; rotations ${median(rotations).toFixed(0)} ms`)
  } finally {
    await service.stop()
  }
}

async function fill ({ url }: Running, tenant: Tenant): Promise<string[]> {
  const projects = Array.from({ length: PROJECTS }, (_, n) => `fairness-${n}`)
  for (const project of projects) await fillDocuments(url, tenant, project, DOCUMENTS, 1)
  return projects
}

/**
 * Rotates all projects of an organization concurrently in a loop. The returned function stops it and returns the
 * durations of the rotations in milliseconds.
 */
function rotateAll (service: Running, tenant: Tenant, projects: readonly string[]): () => Promise<number[]> {
  const stopped = new AbortController()
  const times: number[] = []
  const ended = Promise.all(projects.map(async (project) => {
    while (!stopped.signal.aborted) {
      try {
        times.push(await timeOf(service, rotating(tenant, project)))
      } catch (error) {
        // The organization runs another rotation, so the request is repeated.
        if (!/: (409|503) /.test(String(error))) throw error
        await pause(10)
      }
    }
  }))
  ended.catch(() => {})
  return async () => {
    stopped.abort()
    await ended
    return times
  }
}

async function timeOf ({ url }: Running, request: Request): Promise<number> {
  const begun = performance.now()
  await send(url, request)
  return performance.now() - begun
}

const rotating = ({ id, token }: Tenant, project: string): Request =>
  posting(token, `/api/v1/${id}/${project}/encryption-key/rotate`, {})

const reading = ({ id, token }: Tenant): Request => getting(token, `/api/v1/${id}/orbit/backend/live/secrets`)
