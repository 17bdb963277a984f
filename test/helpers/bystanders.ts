import { readdirSync, readFileSync } from 'node:fs'
import { setTimeout as pause } from 'node:timers/promises'
import postgres from 'postgres'
import type { Test } from 'tap'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { lost, recovers, report, watched, type Watched } from './faults.ts'
import { startPostgres } from './postgres.ts'
import { startServer, type Server } from './process.ts'
import { makeLevels, patient, store, type Level } from './traffic.ts'

const METRICS_TOKEN = 'of-the-tests-alone'

/** A service process with its resource usage. */
export interface Process {
  server: Server
  /** Resident memory in MiB. */
  memory (): number
  /** Open files and connections. */
  handles (): number
  /** CPU time in milliseconds. */
  cpu (): number
  /** The response of /metrics. */
  metrics (): Promise<string>
}

/** Measurements of clients that do not cause the fault. */
export interface Bystanders {
  /** The latency of each request in milliseconds. */
  latencies: number[]
  /** The number of responses by status; `none`: no response. */
  statuses: Record<string, number>
  stop (): Promise<void>
}

/**
 * Starts service processes on their own PostgreSQL (with fsync), and creates an organization with a level that clients
 * write and read while the test causes faults.
 */
export async function startUnderFire (
  t: Test, { instances = 1, env = {} }: { instances?: number, env?: Record<string, string> } = {}
) {
  const database = await startPostgres()
  t.teardown(database.close)
  const settings = {
    DATABASE_URL: database.url, MASTER_KEY: generateMasterKey().text, RATE_LIMIT_API: '0', METRICS_TOKEN, ...env
  }
  const processes: Process[] = []
  for (let i = 0; i < instances; i++) processes.push(processOf(await startServer(t, settings)))
  const [{ server: { first: caller } }] = processes as [Process]
  const watch = watched(processes.map(({ server }) => server.address), caller!)
  const [level] = await makeLevels(watch.send, 'orbit', ['live']) as [Level]
  await store(watch.send, level, 'VALUE=first')
  const sql = postgres(database.url, { max: 1, onnotice: () => {} })
  t.teardown(() => sql.end({ timeout: 1 }))
  const query = async (text: string): Promise<Record<string, any>[]> => await sql.unsafe(text)
  return { processes, settings, caller: caller!, watch, level, query, database }
}

export type UnderFire = Awaited<ReturnType<typeof startUnderFire>>

function processOf (server: Server): Process {
  const of = (what: string) => readFileSync(`/proc/${server.child.pid}/${what}`, 'utf8')
  return {
    server,
    memory: () => Number(/VmRSS:\s+(\d+)/.exec(of('status'))![1]) / 1024,
    handles: () => readdirSync(`/proc/${server.child.pid}/fd`).length,
    cpu () {
      const [user, system] = of('stat').split(') ').at(-1)!.split(' ').slice(11, 13).map(Number)
      return (user! + system!) * 10
    },
    async metrics () {
      const headers = { authorization: `Bearer ${METRICS_TOKEN}` }
      return (await fetch(`${server.address}/metrics`, { headers })).text()
    }
  }
}

/** Starts clients that alternately write and read a level, every `every` milliseconds. */
export function standBy (watch: Watched, level: Level, clients = 4, every = 25): Bystanders {
  const latencies: number[] = []
  const statuses: Record<string, number> = {}
  const load = { isRunning: true }
  const path = `/${Object.values(level).join('/')}/secrets`
  const all = Array.from({ length: clients }, async (_, number) => {
    for (let i = 0; load.isRunning; i++) {
      const sent = performance.now()
      const ask = (i + number) % 2 === 0
        ? watch.send('GET', path)
        : watch.send('POST', '/secrets/store', { ...level, plaintext: `VALUE=${number}-${i}` })
      const status = await ask.then((reply) => reply.status, () => 'none')
      latencies.push(performance.now() - sent)
      statuses[status] = (statuses[status] ?? 0) + 1
      await pause(every)
    }
  })
  return {
    latencies,
    statuses,
    async stop () {
      load.isRunning = false
      await Promise.all(all)
    }
  }
}

/** The quantile of the values; NaN without values. */
export function quantile (values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? NaN
}

/** Checks that the service has recovered and lost nothing, and reports the fault with the bad responses (`outside`). */
export async function judge (
  t: Test, { processes, watch, level, query, caller }: UnderFire,
  { fault, cycles, outside = [], recovery, note }:
  { fault: string, cycles: number, outside?: string[], recovery?: number, note?: string }
): Promise<void> {
  const again = await recovers(processes.map(({ server }) =>
    watched(server.address, caller, watch).send), level)
  const problems = await lost(query, caller.organization, { ...watch, send: patient(watch.send) })
  t.same(problems, [])
  for (const { server } of processes) {
    t.equal(server.stderr(), '')
    t.same(failures(server), [], 'nothing failed inside')
  }
  report(t, {
    fault,
    cycles,
    acknowledged: watch.acknowledged(),
    lost: problems.length,
    outside: [...watch.outside, ...outside],
    exits: processes.filter(({ server: { child } }) => child.exitCode !== null || child.signalCode !== null).length,
    recovery: Math.max(recovery ?? 0, again),
    ...(note !== undefined && { note })
  })
}

/** The error log lines of a process, except those about requests that were refused with 503. */
function failures (server: Server): string[] {
  return server.stdout().split('\n').filter((line) => /^\{.*"level":[56]0/.test(line) &&
    !line.includes('"error_code":"service_unavailable"'))
}
