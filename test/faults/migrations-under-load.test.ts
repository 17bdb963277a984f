// runs: one database; fault; 120 s
import { readdirSync } from 'node:fs'
import { setTimeout as pause } from 'node:timers/promises'
import postgres from 'postgres'
import t, { type Test } from 'tap'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { migrateSchema } from '../../src/db/migrate.ts'
import { cycles, recovers, report, watched } from '../helpers/faults.ts'
import { copyOfMigrations, EXPANSIONS, HOT } from '../helpers/migrations.ts'
import { judge, noLoad, startPair, underLoad, untilMore } from '../helpers/pair.ts'
import { hasPostgres, startPostgres } from '../helpers/postgres.ts'
import { beginServer, startServer } from '../helpers/process.ts'
import { makeLevels, random, store, times } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

// Migrates the schema under load. Several processes start at the same time, and the test kills some of them during the
// migration.

const LOCKED = 1_000
const LOOK = 5
// The milliseconds between the first connection of a start and the end of its migrations, with a margin.
const MIGRATING = 500
const ALL = readdirSync('drizzle').filter((name) => name.endsWith('.sql')).length
const SEED = Math.floor(Math.random() * 2 ** 32)
const skip = !hasPostgres() && 'PostgreSQL is not installed'

function clientOf (t: Test, url: string) {
  const client = postgres(url, { max: 1, fetch_types: false, onnotice: () => {} })
  t.teardown(() => client.end({ timeout: 1 }))
  return client
}

/** Polls for tables with a lock that excludes all reads. Returns the longest time of such a lock, and its table. */
function watchLocks (t: Test, url: string) {
  const client = clientOf(t, url)
  const longest = { ms: 0, table: 'none' }
  const held = new Map<string, number>()
  const over = new AbortController()
  const look = async () => {
    while (!over.signal.aborted) {
      const now = performance.now()
      const rows = await client`
        SELECT l.pid || ' ' || l.virtualtransaction || ' ' || l.relation AS lock, c.relname AS table
        FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE l.mode = 'AccessExclusiveLock' AND l.granted AND a.backend_type = 'client backend'
          AND c.relname = ANY (string_to_array(${HOT.join()}, ','))`
      for (const { lock, table } of rows) {
        held.set(lock, held.get(lock) ?? now)
        const ms = performance.now() - held.get(lock)!
        if (ms > longest.ms) Object.assign(longest, { ms, table })
      }
      await pause(LOOK)
    }
    return longest
  }
  const looking = look()
  return async () => {
    over.abort()
    return looking
  }
}

t.test('RL-30 RL-31 starters are killed in the middle of the migrations: the other or the next finishes them', {
  skip
}, async (t) => {
  const database = await startPostgres()
  t.teardown(database.close)
  t.comment(`seed ${SEED}`)
  const next = random(SEED)
  const admin = clientOf(t, database.url)
  const count = cycles(10)
  let recovery = 0
  let acknowledged = 0
  const outside: string[] = []
  const done: number[] = []
  for (let cycle = 0; cycle < count; cycle++) {
    await admin.unsafe(`CREATE DATABASE started_${cycle}`)
    const url = new URL(database.url)
    url.pathname = `/started_${cycle}`
    const env = { DATABASE_URL: url.href, MASTER_KEY: generateMasterKey().text, RATE_LIMIT_API: '0' }
    const looker = clientOf(t, url.href)
    const migrated = async () => {
      const [table] = await looker`SELECT to_regclass('drizzle.__drizzle_migrations') IS NOT NULL AS found`
      return table!.found ? Number((await looker`SELECT count(*) FROM drizzle.__drizzle_migrations`)[0]!.count) : 0
    }
    const starters = times(2, () => beginServer(t, env))
    const isConnected = async () => (await looker`
      SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`).length > 0
    await until(isConnected, { every: 1, within: 120_000 })
    await pause(next() * MIGRATING)
    const killed = cycle % 2 === 0 ? starters : starters.slice(0, 1)
    for (const { child } of killed) child.kill('SIGKILL')
    await Promise.all(killed.map(({ ended }) => ended))
    done.push(await migrated())
    const began = performance.now()
    const server = await startServer(t, env)
    // Only the starter that created the organization printed its credentials.
    const first = server.first
    recovery = Math.max(recovery, performance.now() - began)
    t.equal(await migrated(), ALL)
    const [whole] = await looker`SELECT
      (SELECT count(*)::int FROM pg_index WHERE NOT indisvalid) AS invalid,
      (SELECT count(DISTINCT hash) = count(*) FROM drizzle.__drizzle_migrations) AS once`
    t.same(whole, { invalid: 0, once: true }, `killed after ${done.at(-1)} of ${ALL}`)
    if (first !== undefined) {
      const watch = watched(server.address, first)
      const [level] = await makeLevels(watch.send, 'orbit', ['live'])
      await store(watch.send, level!, 'A=1')
      recovery = Math.max(recovery, await recovers(watch.send, level!))
      acknowledged += watch.acknowledged()
      outside.push(...watch.outside)
    }
    t.equal((await server.stop()).code, 0)
    for (const left of starters.filter((one) => !killed.includes(one))) {
      await left.serves()
      t.match(await left.stop(), { code: 0, stderr: '' })
    }
  }
  report(t, {
    fault: 'Migrations killed', cycles: count, acknowledged, lost: 0, outside, exits: 0, recovery, note: `after ${done.join(', ')} of ${ALL}`
  })
})

t.test('RL-30 a schema upgrade under load on two instances: no failed request, no table locked for a second', {
  skip
}, async (t) => {
  const database = await startPostgres()
  t.teardown(database.close)
  const pair = await startPair(t, database.url)
  const folder = copyOfMigrations(t, EXPANSIONS)
  let locked = ''
  const load = await underLoad(pair, async (load) => {
    await untilMore(load.written)
    const unlock = watchLocks(t, database.url)
    await Promise.all(times(2, () => migrateSchema(clientOf(t, database.url), { folder })))
    await untilMore(load.written)
    const { ms, table } = await unlock()
    t.ok(ms < LOCKED, `${table} was locked for ${Math.round(ms)} ms`)
    locked = `longest exclusive lock ${Math.round(ms)} ms (${table})`
  }, {
    load: noLoad(),
    change: (send, levels, next) => store(send, levels[Math.floor(next() * levels.length)]!, `VALUE=${next()}`)
  })
  t.same(load.refused, [0, 0], 'no request failed')
  const recovery = await recovers(pair.sends, pair.beacon)
  // This build does not know these migrations, and would refuse to start.
  await clientOf(t, database.url)`DELETE FROM drizzle.__drizzle_migrations WHERE id > ${ALL}`
  await judge(t, database.url, pair, [load], { fault: 'Schema grows under load', cycles: 1, recovery, note: locked })
})
