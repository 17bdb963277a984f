// runs: PostgreSQL; 15 s
import postgres from 'postgres'
import t, { type Test } from 'tap'
import { migrateSchema } from '../../src/db/migrate.ts'
import { freshDatabase } from '../helpers/app.ts'
import { LONG } from '../helpers/long.ts'
import { copyOfMigrations, EXPANSIONS, HOT } from '../helpers/migrations.ts'
import {
  failedInside, makeLevels, replay, startInstances, statuses, store, times, type Operation, type Reply
} from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'
import { openWay } from '../helpers/way.ts'

// A migration of a later release extends the schema while instances serve requests (0047).

const WRITING = 3
const onServer = { skip: process.env.TEST_DATABASE_URL === undefined && 'runs on PostgreSQL' }

t.setTimeout(540_000)

function clientOf (t: Test, url: string, more: object = {}) {
  const client = postgres(url, { max: 1, fetch_types: false, onnotice: () => {}, ...more })
  t.teardown(() => client.end({ timeout: 1 }))
  return client
}

t.test('RL-30: with two instances under load and a locked table, a schema upgrade loses no request or write', onServer, async (t) => {
  const { service, sendOnce, organization } = await startInstances(t)
  const levels = await makeLevels(sendOnce, 'orbit', ['live', 'beta'])
  const [row] = await service.sql('SELECT current_database() AS name')
  const url = new URL(process.env.TEST_DATABASE_URL!)
  url.pathname = `/${row!.name}`
  const folder = copyOfMigrations(t, EXPANSIONS)

  const operations: Operation[] = []
  const read: Reply[] = []
  const load = { running: true }
  const loop = async (work: () => Promise<unknown>) => { while (load.running) await work() }
  const running = Promise.all([
    ...times(WRITING, (writer) => loop(async () => {
      operations.push(await store(sendOnce, levels[writer % levels.length]!, `N=${operations.length}`))
    })),
    loop(async () => read.push(await sendOnce('GET', '/orbit/backend/live/secrets?decrypt=true'))),
    loop(async () => read.push(await sendOnce('POST', '/secrets/versions', { ...levels[0]! }))),
    loop(async () => read.push(await sendOnce('GET', '/projects')))
  ])
  const after = async (some: number) => {
    const enough = operations.length + some
    await until(() => operations.length >= enough, { every: 5 })
  }

  await after(20)
  const holder = clientOf(t, url.href)
  const watcher = clientOf(t, url.href)
  const isWaiting = async () => {
    const [found] = await watcher`SELECT count(*)::int AS n FROM pg_stat_activity
      WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'ALTER TABLE "secrets"%'`
    return found!.n === 1
  }
  await holder`BEGIN`
  await holder`SELECT FROM secrets LIMIT 1`
  const migrated = migrateSchema(clientOf(t, url.href), { folder })
  // The migration gives up its lock request, and the waiting requests continue. Then the migration tries again.
  for (const waits of [true, false, true]) await until(async () => await isWaiting() === waits, { every: 5 })
  await after(20)
  await holder`COMMIT`
  await migrated
  await after(20)
  load.running = false
  await running

  t.same(statuses(operations.map(({ reply }) => reply)), [200])
  t.same(statuses(read), [200])
  t.same(failedInside(service), [])
  t.same((await replay(service.sql, organization, operations)).problems, [])
  t.equal((await service.sql("SELECT FROM secrets WHERE of_next_release <> 'none'")).length, 0)
})

t.test('RL-30: a migration that is ended anywhere is gone through by the next start', onServer, async (t) => {
  const folder = copyOfMigrations(t, EXPANSIONS)
  let points = Infinity
  for (let n = 1; n <= points; n += LONG ? 1 : 5) {
    const { database, url, drop } = await freshDatabase()
    const way = await openWay(url!)
    let sent = 0
    const cut = clientOf(t, way.url, { debug: () => { if (++sent === n) setImmediate(way.cut) } })
    const ended = await migrateSchema(cut, { folder }).then(() => false, () => true)
    if (!ended) points = sent
    else t.ok(sent >= n, `cut after statement ${n}`)
    const next = clientOf(t, url!)
    await migrateSchema(next, { folder })
    const [found] = await next`SELECT
      (SELECT count(*)::int FROM information_schema.columns WHERE column_name = 'of_next_release') AS columns,
      (SELECT count(DISTINCT hash) = count(*) FROM drizzle.__drizzle_migrations) AS once,
      to_regclass('of_next_release_n') IS NOT NULL AS indexed`
    t.same(found, { columns: HOT.length, once: true, indexed: true })
    await Promise.all([cut.end({ timeout: 0 }), next.end(), database.close(), way.close()])
    await drop()
  }
  t.ok(points < 100, `${points} statements`)
})

t.test('a start whose connection ends before an index is built leaves no timer', onServer, async (t) => {
  const { database, url, drop } = await freshDatabase()
  const folder = copyOfMigrations(t, EXPANSIONS)
  const way = await openWay(url!)
  const timers = () => process.getActiveResourcesInfo().filter((kind) => kind === 'Timeout').length
  let cuts = 0
  const cut = clientOf(t, way.url, {
    debug: (_connection: number, query: string) => {
      if (!query.includes("set_config('lock_timeout', $1, false)")) return
      cuts++
      setImmediate(way.cut)
    }
  })
  const before = timers()
  await t.rejects(migrateSchema(cut, { folder }))
  t.equal(cuts, 1)
  await Promise.all([cut.end({ timeout: 0 }), database.close(), way.close()])
  await until(() => timers() <= before, { every: 50, within: 10_000 })
  await drop()
})

t.test('RL-30: several starters at once migrate once', onServer, async (t) => {
  const { database, url, drop } = await freshDatabase()
  const folder = copyOfMigrations(t, EXPANSIONS)
  const clients = times(3, () => clientOf(t, url!))
  await Promise.all(clients.map((client) => migrateSchema(client, { folder })))
  const [found] = await clients[0]!`
    SELECT count(DISTINCT hash) = count(*) AS once, to_regclass('of_next_release') IS NOT NULL AS made
    FROM drizzle.__drizzle_migrations`
  t.same(found, { once: true, made: true })
  await Promise.all(clients.map((client) => client.end()))
  await database.close()
  await drop()
})

t.test('RL-30: a start that waits for a table or for another start says so; a signal or the timeout ends it', onServer, async (t) => {
  const { database, url, drop } = await freshDatabase()
  const folder = copyOfMigrations(t, EXPANSIONS)
  const [client, holder] = [clientOf(t, url!), clientOf(t, url!)] as const
  await holder`SET application_name = 'dump'`
  const said: string[] = []
  const migrate = (more: object) => migrateSchema(client, { folder, onWait: (line) => said.push(line), ...more })
  const reason = new Error('SIGTERM')
  const interrupted = async () => {
    const controller = new AbortController()
    const before = said.length
    const ended = migrate({ timeout: 600, signal: controller.signal }).then(() => 'migrated', (error) => error)
    await until(() => said.length > before, { every: 5 })
    controller.abort(reason)
    t.equal(await ended, reason)
    return said.at(-1)
  }
  await holder`BEGIN`
  await holder`SELECT FROM secrets LIMIT 1`
  t.match(await interrupted(), /^Waiting for a table, which another session holds \(\d+ s\)$/)
  await t.rejects(migrate({ timeout: 900 }), {
    message: /^The schema cannot be changed: another session holds a table lock for long/
  })
  await holder`COMMIT`
  await holder`SELECT pg_advisory_lock(${0x57_52_4f_4e}::bigint)`
  t.match(await interrupted(), /^Waiting for session \d+ \(\w+, dump\), which changes the schema \(\d+ s\)$/)
  await holder`SELECT pg_advisory_unlock_all()`
  t.match(await client`SHOW lock_timeout`, [{ lock_timeout: '0' }], 'nothing of it is left to the connection')
  await migrate({})
  t.equal((await client`SELECT FROM pg_class WHERE relname = 'of_next_release'`).length, 1)
  await Promise.all([client.end(), holder.end(), database.close()])
  await drop()
})

t.test('RL-30: an index that waits for an older transaction says so, and is built by a later start', onServer, async (t) => {
  const { database, url, drop } = await freshDatabase()
  const folder = copyOfMigrations(t, EXPANSIONS)
  const [client, holder] = [clientOf(t, url!), clientOf(t, url!)] as const
  const built = async () => (await client`SELECT indisvalid FROM pg_index
    WHERE indexrelid = to_regclass('secret_versions_of_next_release')`).map(({ indisvalid }) => indisvalid)
  await holder`BEGIN ISOLATION LEVEL REPEATABLE READ`
  await holder`SELECT 1`

  const said: string[] = []
  const controller = new AbortController()
  const reason = new Error('SIGTERM')
  const ended = migrateSchema(client, {
    folder, timeout: 20_000, signal: controller.signal, onWait: (line) => said.push(line)
  }).then(() => 'migrated', (error) => error)
  await until(() => said.length > 0, { every: 5 })
  t.match(said, [/^Building an index, or waiting for transactions that began before \(\d+ s\)$/])
  controller.abort(reason)
  t.equal(await ended, reason)
  t.strictSame(await built(), [false], 'the remains')

  await t.rejects(migrateSchema(client, { folder, timeout: 300 }), {
    message: /^An index cannot be built: another session has a transaction open for long/
  })
  t.match(await client`SHOW lock_timeout`, [{ lock_timeout: '0' }], 'nothing of it is left to the connection')
  t.strictSame(await built(), [false])
  await holder`COMMIT`
  await migrateSchema(client, { folder })
  t.strictSame(await built(), [true])
  await Promise.all([client.end(), holder.end(), database.close()])
  await drop()
})
