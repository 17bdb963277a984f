// runs: one database; fault; 150 s
import { setTimeout as pause } from 'node:timers/promises'
import t from 'tap'
import { cycles, RECOVERED, recovers } from '../helpers/faults.ts'
import { fullConcurrency, judge, noLoad, SLOW, startPair, underLoad, untilMore, type Load, type Pair } from '../helpers/pair.ts'
import { hasPostgres, startPostgres, type TestPostgres } from '../helpers/postgres.ts'
import { random, times } from '../helpers/traffic.ts'
import type { Trouble } from '../helpers/way.ts'

// PostgreSQL stops, freezes or becomes unreachable, while two instances serve requests under load.

const POOL = 6
const SEED = Math.floor(Math.random() * 2 ** 32)

interface Fault {
  begin (): Promise<unknown> | unknown
  /** Ends the fault. The service must recover from this time on. */
  end (): Promise<unknown> | unknown
  /** The service during the fault: unavailable, unaffected, or slow. */
  meanwhile: 'away' | 'serves' | 'slow'
  /** The index of the affected server; undefined if both are affected. */
  server?: number
}

function faultsOf (database: TestPostgres, { ways }: Pair): Record<string, [times: number, Fault]> {
  const stop = (mode: 'fast' | 'immediate'): Fault =>
    ({ begin: () => database.stop(mode), end: () => database.start(), meanwhile: 'away' })
  const along = (trouble: Trouble, meanwhile: Fault['meanwhile'] = 'away', server?: number): Fault => {
    const tell = (what: Trouble) => ways.forEach((way, i) => { if (i === (server ?? i)) way.trouble(what) })
    return { begin: () => tell(trouble), end: () => tell({}), meanwhile, ...(server !== undefined && { server }) }
  }
  return {
    'stopped (fast)': [4, stop('fast')],
    'stopped (immediate)': [4, stop('immediate')],
    frozen: [3, { begin: () => database.freeze(), end: () => database.thaw(), meanwhile: 'away' }],
    'held both ways': [2, along({ held: 'both' })],
    'held on the way there': [1, along({ held: 'there' })],
    'held on the way back': [1, along({ held: 'back' })],
    'held from one of two': [1, along({ held: 'both' }, 'away', 1)],
    reset: [2, { begin: () => ways.forEach((way) => way.reset()), end: () => {}, meanwhile: 'serves' }],
    'late by 500 ms': [1, along({ delay: 250 }, 'slow')],
    'one byte a second': [1, along({ rate: 1 })]
  }
}

t.test('RL-05 RL-07 RL-08 PostgreSQL goes away and comes back under load: 503 meanwhile, and nothing is lost', {
  skip: !hasPostgres() && 'PostgreSQL is not installed'
}, async (t) => {
  const database = await startPostgres()
  t.teardown(database.close)
  const pair = await startPair(t, database.url, { DATABASE_POOL: String(POOL) })
  const { sends, servers, beacon } = pair
  t.comment(`seed ${SEED}`)
  const next = random(SEED)
  const health = async (server: number) => Promise.all(['//healthz', '//readyz'].map(async (path) =>
    (await sends[server]!('GET', path)).status))
  const worst: Record<string, number> = {}

  const through = async (name: string, { begin, end, meanwhile, server }: Fault, load: Load) => {
    await untilMore(load.read)
    await untilMore(load.written, { by: 3 })
    await begin()
    if (meanwhile === 'away') {
      await untilMore(load.refused, { ...(server !== undefined && { server }) })
      for (const i of servers.keys()) {
        const isAway = server === undefined || server === i
        t.same(await health(i), [200, isAway ? 503 : 200], `${name}: alive, ${isAway ? 'not ready' : 'ready'}`)
        if (!isAway) await untilMore(load.written, { server: i })
      }
    }
    await pause(200 + next() * 800)
    await end()
    worst[name] = Math.max(worst[name] ?? 0, await recovers(sends, beacon))
    for (const i of servers.keys()) t.same(await health(i), [200, 200], `${name}: ready again`)
  }

  const all = Object.entries(faultsOf(database, pair)).flatMap(([name, [count, fault]]) =>
    times(cycles(count), () => [name, fault] as const))
    .map((one) => [next(), one] as const).sort(([a], [b]) => a - b).map(([, one]) => one)
  const loads: Load[] = []
  for (const [name, fault] of all) {
    const load = noLoad(name, fault.meanwhile === 'slow' ? SLOW : RECOVERED)
    loads.push(await underLoad(pair, (load) => through(name, fault, load), { load }))
  }
  await fullConcurrency(pair, database.url)
  await judge(t, database.url, pair, loads, {
    fault: 'PostgreSQL away',
    cycles: all.length,
    recovery: Math.max(...Object.values(worst)),
    note: Object.entries(worst).map(([name, ms]) => `${name} ${Math.round(ms)}`).join(', ')
  })
})
