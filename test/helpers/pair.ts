import { setTimeout as pause } from 'node:timers/promises'
import postgres from 'postgres'
import type { Test } from 'tap'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { lockCounters, makeChangers } from './changers.ts'
import { lost, RECOVERED, report, watched, type Outcome, type Watched } from './faults.ts'
import { command, startServer, type Server } from './process.ts'
import {
  makeLevels, mix, openQueries, random, times, type Level, type Reply, type Send
} from './traffic.ts'
import { until } from './until.ts'
import { openWay, type Way } from './way.ts'

// Two servers under load on one PostgreSQL, each with its own proxy to the database, and the final checks of both.

type Env = Record<string, string>

export interface Pair {
  servers: Server[]
  ways: Way[]
  /** One client per server; all clients record in `watch`. */
  sends: Send[]
  watch: Watched
  organization: string
  levels: Level[]
  /** Clients of other organizations, for each server: enough to occupy all its connections for writes. */
  changers: Send[][]
  /** A level of another project, used only to check whether the service is available. */
  beacon: Level
  env: Env
}

/**
 * Starts two servers and creates a project with levels.
 *
 * @param each further environment variables of one server
 */
export async function startPair (
  t: Test, url: string, more: Env = {}, each: (server: number) => { env?: Env } = () => ({})
): Promise<Pair> {
  const env = {
    MASTER_KEY: generateMasterKey().text,
    RATE_LIMIT_API: '0',
    RATE_LIMIT_KEY_ROTATION: '0',
    RATE_LIMIT_LONG_OPERATIONS: '0',
    LOG_LEVEL: 'error',
    DATABASE_URL: url,
    ...more
  }
  const servers: Server[] = []
  const ways: Way[] = []
  for (let i = 0; i < 2; i++) {
    const way = await openWay(url)
    t.teardown(way.close)
    ways.push(way)
    servers.push(await startServer(t, { ...env, DATABASE_URL: way.url, ...each(i).env }))
  }
  const caller = servers[0]!.first!
  const watch = watched(servers[0]!.address, caller)
  const sends = [watch.send, watched(servers[1]!.address, caller, watch).send]
  const levels = await makeLevels(watch.send, 'orbit', ['live', 'beta'])
  const [beacon] = await makeLevels(watch.send, 'beacon', ['live']) as [Level]
  const changers = await makeChangers(env, servers.map(({ address }) => address))
  return { servers, ways, sends, watch, organization: caller.organization, levels, changers, beacon, env }
}

/** The results of the load so far; arrays have one number per server. */
export interface Load {
  /** The fault during the load. */
  name: string
  /** Reads and writes with a 2xx response. */
  read: number[]
  written: number[]
  /** Responses with 503. */
  refused: number[]
  /** The slowest response, and the maximum latency in milliseconds (`bound`). */
  slowest: { ms: number, of: string }
  bound: number
  unanswered: string[]
}

/** Maximum latency with a slow database in milliseconds: each step of a request can be slow. */
export const SLOW = 8_000

export const noLoad = (name = 'load', bound = RECOVERED): Load =>
  ({ name, read: [0, 0], written: [0, 0], refused: [0, 0], slowest: { ms: 0, of: 'nothing' }, bound, unanswered: [] })

/** Sends random writes and reads to both servers until `work` ends. */
export async function underLoad (
  { sends, levels }: Pick<Pair, 'sends' | 'levels'>, work: (load: Load) => Promise<void>,
  { writers = 3, readers = 2, seed = Math.floor(Math.random() * 2 ** 32), load = noLoad(), change = mix } = {}
): Promise<Load> {
  const running = new AbortController()
  const seen: number[] = []
  const clients = sends.flatMap((send, server) => {
    const timed: Send = async (...request) => {
      const began = performance.now()
      let status: number | undefined
      try {
        const reply = await send(...request)
        status = reply.status
        return reply
      } catch (error) {
        load.unanswered.push(`${request[0]} ${request[1]}: ${String((error as Error).cause ?? error)}`)
        throw error
      } finally {
        const ms = performance.now() - began
        // Rotations of one organization wait for each other, for up to eight seconds, so they do not count.
        if (ms > load.slowest.ms && !request[1].endsWith('/rotate')) load.slowest = { ms, of: `${request[0]} ${request[1]} ${status}` }
      }
    }
    const loop = async (into: number[], ask: () => Promise<Reply | undefined>) => {
      while (!running.signal.aborted) {
        const reply = await ask()
        if (reply !== undefined && reply.status < 300) into[server]!++
        else {
          if (reply?.status === 503) load.refused[server]!++
          await pause(10)
        }
      }
    }
    return [
      ...times(writers, (writer) => {
        const next = random(seed + server * writers + writer)
        return loop(load.written, async () => {
          const { reply } = await change(timed, levels, next, seen)
          const { version } = reply?.body?.data ?? {}
          if (typeof version === 'string') seen.push(Number(version))
          return reply
        })
      }),
      ...times(readers, (reader) => {
        const [level] = levels
        const path = `/${Object.values(level!).join('/')}/secrets?decrypt=true`
        return loop(load.read, () => (reader === 0
          ? timed('POST', '/secrets/versions', { ...level })
          : timed('GET', path)).catch(() => undefined))
      })
    ]
  })
  try {
    await work(load)
  } finally {
    running.abort()
    await Promise.all(clients)
  }
  return load
}

/** Waits until the counts of all servers, or of one server, have grown by `by`. */
export async function untilMore (counts: number[], { by = 10, server }: { by?: number, server?: number } = {}) {
  const before = [...counts]
  await until(() => counts.every((now, i) => (server !== undefined && server !== i) || now >= before[i]! + by), {
    within: 120_000
  })
}

/** Proves that no server has lost a connection: all connections for writes wait for a lock at the same time. */
export async function fullConcurrency ({ changers }: Pick<Pair, 'changers'>, url: string): Promise<void> {
  const { waiting, release } = await lockCounters(url)
  const running = new AbortController()
  // A request that waits too long is refused; the loop then sends the next request.
  const clients = changers.flat().map(async (send) => {
    while (!running.signal.aborted) await send('PATCH', '/orbit', { description: 'together' })
  })
  await until(async () => await waiting() >= clients.length, { every: 20, within: 120_000 })
  running.abort()
  await release()
  await Promise.all(clients)
}

/** The number of transactions that the service has left open. */
async function openTransactions (url: string): Promise<number> {
  const outside = postgres(url, { max: 1, onnotice: () => {} })
  const [row] = await outside`SELECT count(*)::int AS count FROM pg_stat_activity
    WHERE application_name = 'strongroom' AND state LIKE 'idle in transaction%'`
  await outside.end()
  return row!.count as number
}

/** Milliseconds after which PostgreSQL has ended an abandoned statement or transaction. */
const LEFT_ALONE = 6_000

/**
 * Checks both servers after the fault and the load: no process has ended, no internal error was logged, no transaction
 * is open, no change is lost, the audit log is valid. Then stops the servers and checks their exit.
 */
export async function judge (
  t: Test, url: string, { servers, watch, organization, env }: Pair, loads: Load[],
  outcome: Pick<Outcome, 'fault' | 'cycles' | 'recovery' | 'note'>
): Promise<void> {
  const ended = servers.filter(({ child }) => child.exitCode !== null || child.signalCode !== null)
  for (const until = performance.now() + LEFT_ALONE; await openTransactions(url) > 0 && performance.now() < until;) {
    await pause(100)
  }
  t.equal(await openTransactions(url), 0, 'no transaction is left open')
  t.same(loads.flatMap(({ unanswered }) => unanswered), [], 'every request was answered')
  const slow = loads.filter(({ slowest, bound }) => slowest.ms >= bound)
    .map(({ name, slowest: { ms, of }, bound }) => `${name}: ${Math.round(ms)} ms of ${bound}: ${of}`)
  t.same(slow, [], 'every request was answered in time')
  const slowest = Math.max(...loads.map(({ slowest: { ms } }) => ms))
  // After a 503, the result is unknown, because the service may not know the result of a commit.
  const operations = watch.operations.map(({ reply, ...operation }) =>
    ({ ...operation, ...(reply !== undefined && reply.status !== 503 && { reply }) }))
  const problems = await lost(await openQueries(t, { url }), organization, { send: watch.send, operations })
  t.same(problems, [])
  t.match(await command(['audit', 'verify'], env), { code: 0 })
  for (const { stdout, stderr } of servers) {
    t.equal(stderr(), '')
    const lines = stdout().split('\n').filter((line) => line.startsWith('{')).map((line) => JSON.parse(line))
    t.same(lines.filter(({ level, error_code }) => level >= 60 || error_code === 'internal_error'), [])
  }
  for (const server of servers) if (!ended.includes(server)) t.equal((await server.stop()).code, 0)
  report(t, {
    ...outcome,
    acknowledged: watch.acknowledged(),
    lost: problems.length,
    outside: watch.outside,
    exits: ended.length,
    note: [`slowest answer ${Math.round(slowest)} ms`, ...outcome.note === undefined ? [] : [outcome.note]].join('; ')
  })
}
