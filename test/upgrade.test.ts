import { execFileSync } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import postgres from 'postgres'
import t, { type Test } from 'tap'
import { migrateSchema } from '../src/db/migrate.ts'
import { freshDatabase } from './helpers/app.ts'
import { LONG } from './helpers/long.ts'
import { copyOfMigrations, EXPANSIONS, HOT } from './helpers/migrations.ts'
import { buildOf, releaseBefore } from './helpers/older.ts'
import { scratchDirectory } from './helpers/process.ts'
import { exchangeReleases } from './helpers/rolling.ts'
import {
  failedInside, makeLevels, replay, startInstances, statuses, store, times, type Operation, type Reply
} from './helpers/traffic.ts'
import { openWay } from './helpers/way.ts'

// The schema changes while instances of the release before serve on it.

const WRITING = 3
const onServer = { skip: process.env.TEST_DATABASE_URL === undefined && 'runs on PostgreSQL' }

t.setTimeout(540_000)

function clientOf (t: Test, url: string, more: object = {}) {
  const client = postgres(url, { max: 1, fetch_types: false, onnotice: () => {}, ...more })
  t.teardown(() => client.end({ timeout: 1 }))
  return client
}

t.test('RL-30: under load on two instances the schema grows, whoever holds a table meanwhile; no request fails, no write is lost', onServer, async (t) => {
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
    while (operations.length < enough) await pause(5)
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
  // It steps back, and those who waited behind it go on; then it comes again.
  for (const waits of [true, false, true]) while (await isWaiting() !== waits) await pause(5)
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
      (SELECT count(*)::int FROM pg_index WHERE NOT indisvalid) AS invalid,
      (SELECT count(DISTINCT hash) = count(*) FROM drizzle.__drizzle_migrations) AS once,
      to_regclass('of_next_release_n') IS NOT NULL AND to_regclass('secret_versions_of_next_release') IS NOT NULL AS indexed`
    t.same(found, { columns: HOT.length, invalid: 0, once: true, indexed: true })
    await Promise.all([cut.end({ timeout: 0 }), next.end(), database.close(), way.close()])
    await drop()
  }
  t.ok(points < 100, `${points} statements`)
})

t.test('RL-30: two starters at once build an index concurrently once, and neither waits for the other for ever', onServer, async (t) => {
  const { database, url, drop } = await freshDatabase()
  const folder = copyOfMigrations(t, EXPANSIONS)
  const clients = times(3, () => clientOf(t, url!))
  await Promise.all(clients.map((client) => migrateSchema(client, { folder })))
  const [found] = await clients[0]!`
    SELECT count(*)::int AS n FROM pg_index WHERE indexrelid = to_regclass('secret_versions_of_next_release') AND indisvalid`
  t.equal(found!.n, 1)
  await Promise.all(clients.map((client) => client.end()))
  await database.close()
  await drop()
})

const SEEN = 'secret_versions_of_next_release'

/** A database with everything but one index, which somebody's open transaction keeps from being made. */
async function held (t: Test) {
  const { database, url, drop } = await freshDatabase()
  const folder = copyOfMigrations(t, { '9011_index': EXPANSIONS['9011_index']! })
  const [client, beside, holder] = [clientOf(t, url!), clientOf(t, url!), clientOf(t, url!)] as const
  await holder`SET application_name = 'dump'`
  await holder`BEGIN ISOLATION LEVEL REPEATABLE READ`
  const [{ pid }] = await holder`SELECT pg_backend_pid() AS pid` as unknown as [{ pid: number }]
  const said: string[] = []
  const migrate = (more: object = {}) =>
    migrateSchema(client, { folder, beside, onWait: (line) => said.push(line), ...more })
  return {
    pid,
    said,
    client,
    holder,
    migrate,
    indexed: async () => (await beside`SELECT FROM pg_index WHERE indexrelid = to_regclass(${SEEN}) AND indisvalid`).length,
    async end () {
      await Promise.all([client.end(), beside.end(), holder.end(), database.close()])
      await drop()
    }
  }
}

t.test('RL-30: an index waits for an older transaction as long as it may, says for whose, and then ends; the next start makes it', onServer, async (t) => {
  const { pid, said, holder, migrate, indexed, end } = await held(t)
  await t.rejects(migrate({ patience: 900 }), {
    message: new RegExp(`^The schema cannot be changed: session ${pid} \\(\\w+, dump\\) has had a transaction open for long`)
  })
  t.match(said[0], new RegExp(`^Building an index: waiting for session ${pid} \\(\\w+, dump\\), which has a transaction open \\(\\d+ s\\)$`))
  t.equal(await indexed(), 0)
  await holder`COMMIT`
  await migrate()
  t.equal(await indexed(), 1)
  await end()
})

t.test('RL-30: a signal ends a start that waits for a transaction or for another start, and says which', onServer, async (t) => {
  const { said, client, holder, migrate, indexed, end } = await held(t)
  const reason = new Error('SIGTERM')
  const interrupted = async (patience: number) => {
    const controller = new AbortController()
    const before = said.length
    const ended = migrate({ patience, signal: controller.signal }).then(() => 'migrated', (error) => error)
    while (said.length === before) await pause(5)
    controller.abort(reason)
    t.equal(await ended, reason)
    return said.at(-1)
  }
  t.match(await interrupted(6_000), /^Building an index: waiting for session \d+ \(\w+, dump\)/)
  await holder`COMMIT`
  await holder`SELECT pg_advisory_lock(${0x57_52_4f_4e}::bigint)`
  t.match(await interrupted(600), /^Waiting for session \d+ \(\w+, dump\), which changes the schema \(\d+ s\)$/)
  await holder`SELECT pg_advisory_unlock_all()`
  t.match(await client`SHOW lock_timeout`, [{ lock_timeout: '0' }], 'nothing of it is left to the connection')
  await migrate()
  t.equal(await indexed(), 1)
  await end()
})

t.test('the release before is never the one that is looked at, whichever commit has a tag', async (t) => {
  const clone = scratchDirectory(t)
  t.equal(releaseBefore(clone), undefined, 'no clone')
  const git = (...args: string[]) => execFileSync('git', [
    '-c', 'user.name=test', '-c', 'user.email=test@example.com', '-c', 'commit.gpgSign=false', ...args
  ], { cwd: clone, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim()
  const commit = (name: string) => {
    mkdirSync(join(clone, 'drizzle'), { recursive: true })
    writeFileSync(join(clone, name), '')
    git('add', '.')
    git('commit', '-q', '-m', name)
    return git('rev-parse', 'HEAD')
  }
  git('init', '-q')
  commit('drizzle/0000_first.sql')
  const first = commit('README.md')
  commit('drizzle/0001_second.sql')
  t.equal(releaseBefore(clone), first, 'before the last migration')
  git('tag', 'v1.0.0')
  t.equal(releaseBefore(clone), first, 'the first release has none before it')
  commit('CHANGELOG.md')
  t.equal(releaseBefore(clone), 'v1.0.0')
  git('tag', 'v1.1.0-rc.1')
  git('tag', 'v1.1.0')
  t.equal(releaseBefore(clone), 'v1.0.0')
})

const before = LONG ? releaseBefore() : undefined

t.test('RL-30: the release before and this one serve beside each other under load, and are exchanged: no request fails, no write is lost', {
  skip: onServer.skip || (!LONG && 'builds another release: npm run test:long') ||
    (before === undefined && 'no release before is known here')
}, async (t) => {
  const admin = clientOf(t, process.env.TEST_DATABASE_URL!)
  const name = `t_rolling_${process.pid}`
  await admin.unsafe(`CREATE DATABASE ${name}`)
  t.teardown(() => admin.unsafe(`DROP DATABASE ${name} WITH (FORCE)`))
  const url = new URL(process.env.TEST_DATABASE_URL!)
  url.pathname = `/${name}`
  await exchangeReleases(t, url.href, buildOf(before!))
})
