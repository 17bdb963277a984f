/** Key rows: background re-encryption of a history, rotations, and the effect of key derivations on other requests. */
import { setTimeout as pause } from 'node:timers/promises'
import type { Sql } from 'postgres'
import { quantile, total, type Outcome, type Request, type startLoad } from './load.ts'
import { startService, type Running } from './processes.ts'
import { fillDocuments, fillProjects, getting, posting, send, storing, type Tenant } from './seed.ts'
import { compare, median, type Line } from './table.ts'

export interface Bench {
  dir: string
  env: Record<string, string>
  sql: Sql
  load: ReturnType<typeof startLoad>
  /** The first tenant is measured; each tenant has a document in `orbit/backend/live`. */
  tenants: Tenant[]
  connections: number
  rounds: number
  seconds: number
  lines: Line[]
  wanted (row: string): boolean
}

/** The result of some load, and the latencies of `/healthz` during the load in milliseconds. */
interface Probed { outcome: Outcome, times: number[] }

interface Progress {
  state: 'running' | 'done'
  total: number
  moved: number
  started_at: string
  finished_at: string | null
}

const MOVING = { documents: 20, versions: 500 }
const ROTATED = [100, 1000]
const COLD = 100
// Bursts until V8 has compiled the code in a new process; later bursts take the same time.
const WARMING = 30
const CREATIONS = 40

// Maximum latency of an unrelated request, and of 100 concurrent reads, in milliseconds (CR-16).
const HEALTH_BAR = 100
const WARM_BAR = 50

// Maximum latency of a write to another project during a rotation: 99th percentile in milliseconds.
const WRITERS_BAR = 120

// Seconds; longer than any rotation may take.
const LONGEST = 70

export async function measureKeys (bench: Bench): Promise<void> {
  await measureReEncryption(bench)
  await measureRotations(bench)
  await measureCold(bench)
  await measureCreations(bench)
}

/** Each round reads without other load, and then while the service re-encrypts all versions after a rotation. */
async function measureReEncryption (bench: Bench): Promise<void> {
  const { env, sql, rounds, seconds, lines } = bench
  const versions = (MOVING.documents * MOVING.versions).toLocaleString('en')
  const row = `read while ${versions} versions re-encrypt: p99`
  if (!bench.wanted(row)) return
  const tenant = bench.tenants[0]!
  const service = await startService(bench.dir, env)
  try {
    const environments = await fillDocuments(service.url, tenant, 'moving', MOVING.documents, MOVING.versions)
    await sql`ANALYZE`
    const reads = [getting(tenant.token, `/api/v1/${tenant.id}/moving/backend/${environments[0]}/secrets`)]
    const read = () => fire(bench, service, reads, { seconds })
    await read()
    const idle: Outcome[] = []
    const busy: Outcome[] = []
    const speeds: number[] = []
    const durations: number[] = []
    let early = 0
    for (let round = 0; round < rounds; round++) {
      idle.push(await read())
      await rotate(service, tenant, 'moving', 're_encrypt')
      const begun = performance.now()
      busy.push(await read())
      const progress = await progressOf(service, tenant)
      if (progress.state !== 'running') early++
      speeds.push(progress.moved / (performance.now() - begun) * 1000)
      durations.push(secondsOf(await finished(service, tenant)))
    }
    await rotate(service, tenant, 'moving', 're_encrypt')
    const alone = await finished(service, tenant)

    const [own, other] = [busy, idle].map((outcomes) => median(outcomes.map(({ p99 }) => p99))) as [number, number]
    const ratio = median(busy.map(({ p99 }, round) => p99 / idle[round]!.p99))
    const note = total([...idle, ...busy]) +
      (early === 0 ? '' : `; in ${early} of ${rounds} windows all had moved before the end`)
    lines.push({
      row, reference: 'the same, nothing under way', ...compare(own, other, ' ms', 1), ratio, bar: { most: 2 }, note
    })
    lines.push({
      row: `re-encrypt ${versions} versions among those reads`,
      reference: 'the same, without reads',
      ...compare(median(speeds), alone.moved / secondsOf(alone), '/s', 0)
    })
    console.log(`${row}: ${own.toFixed(1)} ms; reads ${rate(busy)}/s, idle ${rate(idle)}/s; ` +
      `${alone.moved} versions in ${secondsOf(alone).toFixed(1)} s without reads, in ${median(durations).toFixed(1)} s with ${seconds} s of reads`)
  } finally {
    await service.stop()
  }
}

/** Rotates a project without other writes, and while all organizations write to their project `orbit`. */
async function measureRotations (bench: Bench): Promise<void> {
  const rows = ROTATED.map((documents) => ({
    documents, row: `rotate a project of ${documents} documents among writers to others`
  })).filter(({ row }) => bench.wanted(row))
  if (rows.length === 0) return
  const tenant = bench.tenants[0]!
  const service = await startService(bench.dir, bench.env)
  try {
    const writes = bench.tenants.map((tenant) => storing(tenant))
    // A new process compiles its code during the first writes; those are not measured.
    await fire(bench, service, writes, { seconds: bench.seconds })
    for (const { documents, row } of rows) {
      const project = `rotated-${documents}`
      await fillDocuments(service.url, tenant, project, documents, 1)
      await bench.sql`ANALYZE`
      const alone: number[] = []
      const among: number[] = []
      const writers: Outcome[] = []
      for (let round = 0; round < bench.rounds; round++) {
        alone.push(await timed(() => rotate(service, tenant, project, 'keep')))
        const writing = fire(bench, service, writes, { seconds: LONGEST })
        await pause(500)
        among.push(await timed(() => rotate(service, tenant, project, 'keep')))
        await pause(500)
        bench.load.cease()
        writers.push(await writing)
      }
      bench.lines.push({
        row,
        reference: 'the same, without writers',
        ...compare(median(among), median(alone), ' ms', 0),
        note: total(writers)
      })
      bench.lines.push({
        row: `store while ${documents} documents of another project rotate: p99`,
        ...within(median(writers.map(({ p99 }) => p99)), WRITERS_BAR),
        note: total(writers)
      })
      console.log(
        `${row}: ${Math.round(median(among))} ms; the writers’ p99 ${median(writers.map(({ p99 }) => p99)).toFixed(0)} ms, answered otherwise: ${total(writers)}`
      )
    }
  } finally {
    await service.stop()
  }
}

/**
 * Each round reads the decrypted documents of 100 projects at once from a new process. The reference reads the same
 * documents encrypted from another new process, which shows the cost of the start and of the machine. After a warm-up,
 * each round reads 100 other documents, whose keys are not cached, and then reads these documents again.
 */
async function measureCold (bench: Bench): Promise<void> {
  const row = `decrypt ${COLD} projects at once`
  const unrelated = `/healthz while ${COLD} cold projects are decrypted: p99`
  if (!bench.wanted(`${row}, warm`) && !bench.wanted(unrelated)) return
  const { id, token } = bench.tenants[0]!
  let service = await startService(bench.dir, bench.env)
  try {
    const [common, cold] = [
      await fillProjects(service.url, bench.tenants[0]!, 'common', COLD),
      await fillProjects(service.url, bench.tenants[0]!, 'cold', COLD)
    ]
    await bench.sql`ANALYZE`
    const burst = (projects: string[], query: string) => () => fire(
      bench, service, projects.map((project) => getting(token, `/api/v1/${id}/${project}/secrets${query}`)),
      { connections: COLD, amount: COLD }
    )
    const decrypted = burst(common, '?decrypt=true')
    const decryptedCold = burst(cold, '?decrypt=true')
    // Warms up the process that sends the load.
    await decrypted()
    const figures = { encrypted: [] as Probed[], first: [] as Probed[], cold: [] as Probed[], warm: [] as Outcome[] }
    for (let round = 0; round < bench.rounds; round++) {
      for (const [into, work] of [[figures.encrypted, burst(common, '')], [figures.first, decrypted]] as const) {
        await service.stop()
        service = await startService(bench.dir, bench.env)
        into.push(await probing(service, work))
      }
      for (let i = 0; i < WARMING; i++) await decrypted()
      figures.cold.push(await probing(service, decryptedCold))
      figures.warm.push(await decryptedCold())
    }
    const p50 = (outcomes: Outcome[]) => median(outcomes.map(({ p50 }) => p50))
    const p99 = (outcomes: Outcome[]) => median(outcomes.map(({ p99 }) => p99))
    const { warm } = figures
    const [first, encrypted] = [figures.first, figures.encrypted].map((probed) =>
      probed.map(({ outcome }) => outcome)) as [Outcome[], Outcome[]]
    const healthOf = (probed: Probed[]) => quantile(probed.flatMap(({ times }) => times), 0.99)
    const reference = 'the same, encrypted'
    bench.lines.push({
      row: `${row}, just started: p50`, reference, ...compare(p50(first), p50(encrypted), ' ms', 1), note: total(first)
    })
    bench.lines.push({
      row: `${row}, just started: p99`, reference, ...compare(p99(first), p99(encrypted), ' ms', 1), note: total(first)
    })
    bench.lines.push({ row: `${row}, warm: p99`, ...within(p99(warm), WARM_BAR), note: total(warm) })
    bench.lines.push({ row: unrelated, ...within(healthOf(figures.cold), HEALTH_BAR) })
    console.log(`${row}: just started p50 ${p50(first).toFixed(1)} ms, p99 ${p99(first).toFixed(1)} ms, ` +
      `/healthz meanwhile p99 ${healthOf(figures.first).toFixed(1)} ms; warm p50 ${p50(warm).toFixed(1)} ms, p99 ${p99(warm).toFixed(1)} ms`)
  } finally {
    await service.stop()
  }
}

/** Sends concurrent project creations, which each derive a key with 600,000 iterations, and unrelated requests. */
async function measureCreations (bench: Bench): Promise<void> {
  const row = `/healthz during ${CREATIONS} project creations at once: p99`
  if (!bench.wanted(row)) return
  const { id, token } = bench.tenants[0]!
  const service = await startService(bench.dir, bench.env)
  try {
    const created: Outcome[] = []
    const health: number[] = []
    const durations: number[] = []
    for (let round = 0; round < bench.rounds; round++) {
      const requests = Array.from({ length: CREATIONS }, (_, i) =>
        posting(token, `/api/v1/${id}/projects`, { name: `Creation ${round} ${i}` }))
      const begun = performance.now()
      const { outcome, times } = await probing(service, () =>
        fire(bench, service, requests, { connections: CREATIONS, amount: CREATIONS, expect: 201 }))
      durations.push(performance.now() - begun)
      created.push(outcome)
      health.push(...times)
    }
    const p99 = quantile(health, 0.99)
    bench.lines.push({ row, ...within(p99, HEALTH_BAR), note: total(created) })
    console.log(`${row}: ${p99.toFixed(1)} ms of ${health.length}; the creations: p50 ${median(created.map(({ p50 }) => p50)).toFixed(0)} ms, ` +
      `p99 ${median(created.map(({ p99 }) => p99)).toFixed(0)} ms, all in ${median(durations).toFixed(0)} ms, answered otherwise: ${total(created)}`)
  } finally {
    await service.stop()
  }
}

function fire (
  bench: Bench, { url }: Running, requests: Request[],
  shot: { seconds?: number, amount?: number, connections?: number, expect?: number }
): Promise<Outcome> {
  return bench.load.fire({ url, requests, expect: 200, seconds: LONGEST, connections: bench.connections, ...shot })
}

/** Sends a `/healthz` request every few milliseconds during some work, without waiting for responses. */
async function probing ({ url }: Running, work: () => Promise<Outcome>): Promise<Probed> {
  const times: number[] = []
  const asked: Promise<void>[] = []
  const ask = async () => {
    times.push(await timed(async () => { await send(url, { method: 'GET', path: '/healthz' }) }))
  }
  // Opens the connection before the work begins.
  await ask()
  times.length = 0
  const timer = setInterval(() => { asked.push(ask()) }, 5)
  const outcome = await work()
  clearInterval(timer)
  await Promise.all(asked)
  return { outcome, times }
}

async function rotate (
  { url }: Running, { id, token }: Tenant, project: string, history_policy: 'keep' | 're_encrypt'
): Promise<void> {
  await send(url, posting(token, `/api/v1/${id}/${project}/encryption-key/rotate`, { history_policy }))
}

async function progressOf ({ url }: Running, { id, token }: Tenant): Promise<Progress> {
  const { re_encryption } = await send(
    url, getting(token, `/api/v1/${id}/moving/encryption-key/history`)
  ) as { re_encryption: Progress }
  return re_encryption
}

async function finished (service: Running, tenant: Tenant): Promise<Progress> {
  while (true) {
    const progress = await progressOf(service, tenant)
    if (progress.state === 'done') return progress
    await pause(200)
  }
}

const secondsOf = ({ started_at, finished_at }: Progress) => (Date.parse(finished_at!) - Date.parse(started_at)) / 1000

async function timed (work: () => Promise<void>): Promise<number> {
  const begun = performance.now()
  await work()
  return performance.now() - begun
}

/** The figures of a row with an absolute limit in milliseconds, the same on all machines. */
function within (milliseconds: number, bar: number) {
  return { reference: 'what is asked for', ...compare(milliseconds, bar, ' ms', 1), bar: { most: 1 } }
}

const rate = (outcomes: Outcome[]) => Math.round(median(outcomes.map(({ rate }) => rate)))
