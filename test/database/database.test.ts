// runs: no database; 180 s
import { type ChildProcess, spawn } from 'node:child_process'
import { EventEmitter, once } from 'node:events'
import fs from 'node:fs'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { eq, sql } from 'drizzle-orm'
import { integer, jsonb, pgTable } from 'drizzle-orm/pg-core'
import postgres from 'postgres'
import t, { type Test } from 'tap'
import { bytea, moment } from '../../src/db/columns.ts'
import {
  requestCopy, connect, type Database, databaseError, type Db, DatabaseUnavailable, isAway, isForeignKeyViolation,
  isUndone, isUniqueViolation, prepared, preparedSql
} from '../../src/db/database.ts'
import { transaction } from '../../src/changes/transaction.ts'
import { unpackCluster } from '../../src/db/embedded/cluster.ts'
import { lockDirectory } from '../../src/db/embedded/lock.ts'
import { serveRequests } from '../../src/db/embedded/requests.ts'
import { copyCluster, type Copying } from '../../src/db/embedded/copy-cluster.ts'
import { TEMPLATE } from '../../src/db/embedded/embedded.ts'
import { DEADLINE, inTime, MAX_WAIT, MAX_WAITING } from '../../src/db/postgres/guard.ts'
import { migrateSchema } from '../../src/db/migrate.ts'
import { createWatchdog } from '../../src/db/embedded/watchdog.ts'
import { LONG } from '../helpers/long.ts'
import { hasPostgres, startPostgres } from '../helpers/postgres.ts'
import { until } from '../helpers/until.ts'
import { openWay } from '../helpers/way.ts'

const CANARY = 'canary-5f1c0e'
const things = pgTable('things', { id: integer().primaryKey(), body: bytea(), at: moment(), extra: jsonb() })

interface Thing { id: number, body: Buffer | null, at: Date | null, extra: unknown }
const insert = prepared<Thing, unknown>('test_insert', db => db.insert(things).values({
  id: sql.placeholder('id'), body: sql.placeholder('body'), at: sql.placeholder('at'), extra: sql.placeholder('extra')
}))
const find = prepared<{ id: number }, Thing[]>('test_find', db =>
  db.select().from(things).where(eq(things.id, sql.placeholder('id'))))
const raw = preparedSql<{
  body: Buffer
  at: string
  same: Buffer
}, { id: number, at: Date, same: Buffer }>('test_raw', value => sql`
  select body, at, ${value('same')}::bytea as same from things where id = ${value('id')} and at <= ${value('at')}::timestamptz`)

// Each outage lasts as long as the deadline that ends it.
t.setTimeout(LONG ? 480_000 : 180_000)

const uncaught: unknown[] = []
process.on('uncaughtExceptionMonitor', error => uncaught.push(error))

const scratch = fs.mkdtempSync(path.join(os.tmpdir(), 'strongroom-database-'))
t.teardown(() => fs.rmSync(scratch, { recursive: true, force: true }))

const makeThings = async ({ db }: Database) => {
  await db.execute(
    sql`create table if not exists things (id int primary key, body bytea, at timestamptz(3), extra jsonb)`
  )
}
const row = (id: number): Thing => ({ id, body: null, at: null, extra: null })

// Settings of a role with write access that change meanings: another clock for `now()`, and an interval unit that turns
// days into months.
const OTHER_MEANING = `
  create schema if not exists evil;
  create or replace function evil.now() returns timestamptz language sql stable as $$ select timestamptz '2020-01-01 00:00:00+00' $$;
  alter role current_user set search_path = evil, pg_catalog, public;
  alter role current_user set datestyle = 'SQL, DMY';
  alter role current_user set timezone = 'Asia/Tokyo'`

/** Checks that every handle uses the clock of the database, and reads and writes timestamps in one format. */
async function meansTheSame (
  t: Test, { db, reads, lists, pages, longTransactions, maintain }: Database
) {
  const look = async (db: Db) => (await db.execute(sql`
    select now() > pg_catalog.now() - interval '1 minute' as is_now, current_schema()::text as schema,
      '03/04/2026 00:00:00+00'::timestamptz::text as moment, current_setting('TimeZone') as zone`) as unknown as unknown[])[0]
  const wanted = { is_now: true, schema: 'public', moment: '2026-03-04 00:00:00+00', zone: 'UTC' }
  for (const [name, handle] of Object.entries({ db, reads, lists, pages, longTransactions })) {
    t.strictSame(await look(handle), wanted, name)
  }
  t.strictSame(await maintain(look), wanted, 'maintain')
}

/** Checks the contract of every database engine. */
async function keepsTheContract (t: Test, database: Database) {
  await makeThings(database)
  const { db, reads } = database
  await database.ping()

  await t.test('keeps bytes, moments and nulls, in builder statements and in templates', async t => {
    const at = new Date()
    await insert(db, { id: 1, body: Buffer.from([0, 255, 92]), at, extra: { a: [1] } })
    t.strictSame(await find(reads, { id: 1 }), [{ id: 1, body: Buffer.from([0, 255, 92]), at, extra: { a: [1] } }])
    const [got] = await raw(reads, { id: 1, at: new Date(Date.now() + 60_000), same: Buffer.from([7, 0]) })
    t.same(got && { ...got, at: new Date(got.at) }, { body: Buffer.from([0, 255, 92]), at, same: Buffer.from([7, 0]) })
    await insert(db, row(2))
    t.same(await db.execute(sql`select id from things where at is null and extra is null`), [{ id: 2 }])
  })

  await t.test('prepares statements on the server, in transactions too', async t => {
    const statements = await transaction(db, async db => {
      await find(db, { id: 1 })
      await raw(db, { id: 1, at: new Date(), same: Buffer.from('') })
      return (await db.execute(sql`select statement from pg_prepared_statements`)) as unknown as { statement: string }[]
    })
    for (const part of ['from "things" where "things"."id" = $1', '::bytea as same']) {
      t.ok(statements.some(({ statement }) => statement.includes(part)), part)
    }
  })

  await t.test('a failed transaction leaves nothing, a failed savepoint only its own', async t => {
    await t.rejects(transaction(db, async db => {
      await insert(db, row(10))
      throw new Error('mine')
    }), { message: 'mine' })
    await transaction(db, async db => {
      await insert(db, row(11))
      await db.transaction(async db => { await insert(db, row(12)); throw new Error('inner') }).catch(() => {})
    })
    t.equal((await find(db, { id: 10 })).length, 0)
    t.equal((await find(db, { id: 11 })).length, 1)
    t.equal((await find(db, { id: 12 })).length, 0)
  })

  await t.test('an error carries no parameter (canary)', async t => {
    const caught: unknown[] = []
    const attempts = [
      () => db.insert(things).values({ ...row(1), extra: CANARY }),
      () => insert(db, { ...row(1), extra: CANARY, body: Buffer.from(CANARY) }),
      () => db.execute(sql`select ${CANARY}::int`),
      () => db.execute(sql`select ${CANARY}::timestamptz`),
      () => db.execute(sql`select * from nowhere where x = ${CANARY}`),
      () => raw(db, { id: CANARY as unknown as number, at: new Date(), same: Buffer.from('') }),
      () => insert(db, { ...row(1), body: { [CANARY]: 1 } as unknown as Buffer }),
      () => transaction(db, async db => await db.execute(sql`select ${CANARY}::int`))
    ]
    for (const attempt of attempts) {
      await attempt().then(() => t.fail('no error'), (error: unknown) => caught.push(databaseError(error)))
    }
    const { inspect } = await import('node:util')
    for (const error of caught) {
      const all = inspect(error, { depth: 9, showHidden: true }) +
        JSON.stringify(error, Object.getOwnPropertyNames(error))
      t.notMatch(all, new RegExp(`${CANARY}|${Buffer.from(CANARY).toString('hex')}`))
    }
    t.equal(await db.insert(things).values(row(1)).then(() => false, isUniqueViolation), true)
    t.equal(isForeignKeyViolation(caught[0]), false)
  })

  await t.test('a transaction that lasts too long is rolled back, and its handle is dead', async t => {
    let goOn = () => {}
    const givenUp = new Promise<void>(resolve => { goOn = resolve })
    let late: Promise<unknown> | undefined
    await t.rejects(transaction(db, async db => {
      await insert(db, row(20))
      await (late = givenUp.then(() => insert(db, row(21))))
    }), DatabaseUnavailable)
    goOn()
    await t.rejects(late!)
    t.equal((await find(db, { id: 20 })).length + (await find(db, { id: 21 })).length, 0)
  })
}

t.test('PostgreSQL', { skip: hasPostgres() ? false : 'PostgreSQL is not installed' }, async t => {
  const server = await startPostgres()
  const database = await connect({ url: server.url, pool: 6 })
  t.teardown(async () => {
    await database.close()
    await server.close()
  })
  await keepsTheContract(t, database)
  const slots = 4

  // Checks that no connection of the pool was lost: all connections run a transaction at the same time.
  async function fullConcurrency () {
    const seen = { begun: 0 }
    await Promise.all(Array.from({ length: slots }, () => transaction(database.db, async db => {
      await db.execute(sql`select 1`)
      seen.begun++
      await until(() => seen.begun === slots, { every: 5 })
    })))
  }

  await t.test('RL-05 survives repeated stops under load, loses nothing acknowledged, and recovers fully', async t => {
    let next = 1000
    const load = { running: true }
    let slowest = 0
    const acknowledged: number[] = []
    let refused = 0
    const timed = async (use: Promise<unknown>) => {
      const started = Date.now()
      try {
        await use
        return true
      } catch (error) {
        if (!(error instanceof DatabaseUnavailable)) t.fail('another error', { error })
        refused++
        await sleep(5)
        return false
      } finally {
        slowest = Math.max(slowest, Date.now() - started)
      }
    }
    const clients = LONG ? 12 : 6
    const writers = Array.from({ length: clients }, async () => {
      while (load.running) {
        const id = next++
        if (await timed(transaction(database.db, async db => { await find(db, { id }); await insert(db, row(id)) }))) {
          acknowledged.push(id)
        }
      }
    })
    const readers = Array.from({ length: clients }, async () => {
      while (load.running) {
        await timed(find(database.reads, { id: 1 }))
      }
    })
    const more = async (by: number, count: () => number) => {
      const enough = count() + by
      await until(() => count() >= enough, { every: 5, within: 120_000 })
    }
    for (let cycle = 0; cycle < (LONG ? 6 : 2); cycle++) {
      await more(40, () => acknowledged.length)
      await server.stop(cycle % 2 ? 'fast' : 'immediate')
      // The outage is longer in each cycle: at least one refusal for each client, and then more.
      await more(2 * clients * (cycle + 1), () => refused)
      await server.start()
      await until(async () => await timed(find(database.reads, { id: 1 })) &&
        await timed(transaction(database.db, db => find(db, { id: 1 }))), { every: 0, within: 120_000 })
    }
    await more(40, () => acknowledged.length)
    load.running = false
    await Promise.all([...writers, ...readers])
    await fullConcurrency()
    const stored = new Set((await database.db.select({ id: things.id }).from(things)).map(({ id }) => id))
    t.same(acknowledged.filter(id => !stored.has(id)), [], `of ${acknowledged.length}; the slowest took ${slowest} ms`)
    t.same(uncaught, [])
  })

  await t.test('RL-05 after every connection was reset, none waits for an answer to what was never sent', async t => {
    const way = await openWay(server.url)
    const along = await connect({ url: way.url, pool: 6 })
    t.teardown(async () => {
      await along.close()
      await way.close()
    })
    const reasons = new Map<string, number>()
    const load = { running: true, served: 0 }
    const use = async (work: () => Promise<unknown>) => {
      while (load.running) {
        await work().then(() => { load.served++ }, ({ message }: Error) => {
          reasons.set(message, (reasons.get(message) ?? 0) + 1)
        })
      }
    }
    const uses = Array.from({ length: 8 }, () => [
      use(() => find(along.reads, { id: 1 })),
      use(() => transaction(along.db, async db => {
        await find(db, { id: 1 })
        await find(db, { id: 2 })
      }))
    ]).flat()
    for (let resets = 0; resets < (LONG ? 10 : 3); resets++) {
      const enough = load.served + 100
      await until(() => load.served >= enough, { every: 5 })
      way.reset()
    }
    load.running = false
    await Promise.all(uses)
    t.ok(reasons.size, 'what was under way failed')
    t.same([...reasons].filter(([reason]) => !/^(ECONNRESET|EPIPE|CONNECTION_CLOSED)$/.test(reason)), [])
    t.same(uncaught, [])
  })

  await t.test('RL-05 of several hosts one is enough, and what none of them has is refused and over', async t => {
    const [way, gone] = [await openWay(server.url), await openWay(server.url)]
    await gone.close()
    const [host, other] = [way, gone].map(({ url }) => new URL(url).host)
    const along = await connect({ url: way.url.replace(host!, `${other},${host}`), pool: 6 })
    t.teardown(async () => {
      await along.close()
      await way.close()
    })
    // The first query of each connection.
    const sleeping = [along.reads, along.db].map(db =>
      db.execute(sql`select pg_sleep(20)`).then(() => 'answered', error => databaseError(error).message))
    const asleep = sql`select 1 from pg_stat_activity where query = 'select pg_sleep(20)'`
    await until(async () => (await database.db.execute(asleep) as unknown as unknown[]).length >= sleeping.length)
    way.reset()
    for (const reason of await Promise.all(sleeping)) t.match(reason, /^(ECONNRESET|CONNECTION_CLOSED)$/)
    t.same(Object.values(along.pools).filter(({ running }) => running > 0), [], 'each has its place again')
    await find(along.reads, { id: 1 })
    way.cut()
    const uses: Promise<unknown>[] = [
      along.migrate(), along.maintain(async () => {}), transaction(along.db, async () => {})
    ]
    await Promise.all(uses.map(use =>
      t.rejects(use, { message: /^(ECONNREFUSED|ECONNRESET|CONNECTION_CLOSED)$/ })))
    t.same(uncaught, [])
  })

  await t.test('RL-06 an exhausted pool answers in bounded time and recovers', async t => {
    let release = () => {}
    const released = new Promise<void>(resolve => { release = resolve })
    const seen = { held: 0 }
    const holders = Array.from({ length: slots }, () => transaction(database.db, async () => {
      seen.held++
      await released
    }))
    await until(() => seen.held === slots, { every: 5 })
    const ended: number[] = []
    const waiting = Array.from({ length: 260 }, (_, place) => find(database.db, { id: 1 }).then(() => 'served', error => {
      ended.push(place)
      return error instanceof DatabaseUnavailable ? 'unavailable' : 'other'
    }))
    await Promise.all(waiting.slice(200))
    t.ok(ended.every(place => place >= 200), 'beyond 200 waiting queries no query waits')
    // The test releases no connection until all queries have failed.
    t.same([...new Set(await Promise.all(waiting))], ['unavailable'])
    await find(database.reads, { id: 1 })
    release()
    await Promise.all(holders)
    await fullConcurrency()
  })

  await t.test('an error says whether what was asked for certainly did not happen', async t => {
    const said = async (attempt: () => Promise<unknown>) => attempt().then(() => 'no error', isUndone)
    t.equal(await said(() => database.db.execute(sql`select 1/0`)), true, 'the server refused it')
    t.equal(await said(() => database.db.execute(sql`select pg_terminate_backend(pg_backend_pid())`)), false, 'the connection ended')
    await fullConcurrency()
    // Errors of a connection that ends during a statement. The driver passes them on unchanged.
    for (const code of ['ECONNRESET', 'EPIPE', 'EPROTO', 'ERR_SSL_DECRYPTION_FAILED_OR_BAD_RECORD_MAC', 'CONNECTION_CLOSED']) {
      const error = databaseError(Object.assign(new Error('lost'), { code, parameters: [] }))
      t.ok(error instanceof DatabaseUnavailable, code)
      t.equal(isUndone(error), false, code)
    }
    t.equal(isUndone(new TypeError('while an answer was read')), false)
    const late = await inTime(performance.now(), new Promise<never>(() => {})).catch((error: unknown) => error)
    t.ok(late instanceof DatabaseUnavailable && !isAway(late), 'the time of one request is over, not that of who waits behind it')
  })

  await t.test('a COMMIT that the server answers by ROLLBACK is an error, and the connection goes on', async t => {
    const { hostname, port } = new URL(server.url)
    // The proxy replaces each response to COMMIT by the response after a failed transaction.
    const answer = (tag: string) => Buffer.concat([Buffer.from('C'), Buffer.of(0, 0, 0, tag.length + 5), Buffer.from(`${tag}\0`)])
    const between = net.createServer(own => {
      const other = net.connect(Number(port), hostname)
      own.pipe(other)
      other.on('data', data => {
        const at = data.indexOf(answer('COMMIT'))
        own.write(at < 0
          ? data
          : Buffer.concat([data.subarray(0, at), answer('ROLLBACK'), data.subarray(at + answer('COMMIT').length)]))
      })
      for (const [one, another] of [[own, other], [other, own]] as const) one.on('error', () => {}).on('close', () => another.destroy())
    }).listen(0, '127.0.0.1')
    await once(between, 'listening')
    const url = new URL(server.url)
    url.host = `127.0.0.1:${(between.address() as net.AddressInfo).port}`
    const through = await connect({ url: url.href, pool: 2 })
    await t.rejects(transaction(through.db, db => db.execute(sql`select 1`)), { message: /rolled back/ })
    t.equal((await through.db.execute(sql`select 1 as one`) as unknown as { one: number }[])[0]!.one, 1)
    await through.close()
    between.close()
  })

  await t.test('RL-08 a lock held elsewhere and a slow statement end in bounded time', async t => {
    const other = postgres(server.url, { max: 1 })
    await other`begin`
    await other`select * from things where id = 1 for update`
    await t.rejects(transaction(database.db, db =>
      db.execute(sql`update things set at = now() where id = 1`)), { code: '55P03' })
    await other`rollback`
    await other.end()
    await t.rejects(transaction(database.db, db => db.execute(sql`select pg_sleep(20)`)), { code: '57014' })
    await fullConcurrency()
  })

  await t.test('RL-07 a frozen server answers in bounded time, and is served again when it thaws', async t => {
    // Runs only in the long form, because a read of all data has a deadline of minutes.
    if (LONG) {
      await t.rejects(database.snapshot(async db => {
        await db.execute(sql`select 1`)
        server.freeze()
        await db.execute(sql`select 2`)
      }), DatabaseUnavailable)
    }
    server.freeze()
    const outcomes = await Promise.all([
      ...Array.from({ length: 10 }, () => find(database.reads, { id: 1 })),
      ...Array.from({ length: 10 }, () => transaction(database.db, db => insert(db, row(next++)))),
      database.ping()
    ].map(use =>
      use.then(() => 'served', error => error instanceof DatabaseUnavailable ? 'unavailable' : String(error))))
    t.same([...new Set(outcomes)], ['unavailable'])
    // The server is still frozen. New connections must also fail in bounded time.
    t.equal(await find(database.reads, { id: 1 }).then(() => 'served', error => error.name), 'DatabaseUnavailable')
    server.thaw()
    await until(() => database.ping().then(() => true, () => false), { every: 0 })
    await fullConcurrency()
    t.same(uncaught, [])
  })
  let next = 500

  await t.test('RL-05 RL-06 RL-07 every wait ends: each deadline is shorter than the deadline that depends on it', async t => {
    const { db, reads, lists, pages } = database
    const milliseconds = async (handle: Db, name: string) => {
      const rows = await handle.execute(sql`SELECT setting::int FROM pg_settings WHERE name = ${name}`)
      return (rows as unknown as { setting: number }[])[0]!.setting
    }
    for (const handle of new Set([db, reads, lists, pages])) {
      const lock = await milliseconds(handle, 'lock_timeout')
      const statement = await milliseconds(handle, 'statement_timeout')
      const idle = await milliseconds(handle, 'idle_in_transaction_session_timeout')
      t.ok(lock > 0 && lock < statement && statement < DEADLINE, `${lock} ms for a lock, ${statement} ms in all`)
      t.ok(idle > 0 && idle <= 5_000, `${idle} ms without a statement`)
    }
    t.ok(MAX_WAIT <= 2_000 && DEADLINE <= 4_000 && MAX_WAITING <= 200, 'an answer within five seconds')
  })

  await t.test('what its role was set to changes neither names nor moments, nor where tables are made', async t => {
    const admin = postgres(server.url, { max: 1, onnotice: () => {} })
    await admin.unsafe('create database fooled')
    const url = new URL(server.url)
    url.pathname = '/fooled'
    const there = postgres(url.href, { max: 1, onnotice: () => {} })
    await there.unsafe(`${OTHER_MEANING}; alter database fooled set search_path = evil`)
    const fooled = await connect({ url: url.href, pool: 4 })
    t.teardown(async () => {
      await fooled.close()
      for (const name of ['search_path', 'datestyle', 'timezone']) {
        await admin.unsafe(`alter role current_user reset ${name}`)
      }
      await Promise.all([there, admin].map(client => client.end()))
    })
    await meansTheSame(t, fooled)
    await fooled.migrate()
    const made = await there`select schemaname from pg_tables where schemaname in ('evil', 'public') group by 1`
    t.same(made.map(({ schemaname }) => schemaname), ['public'])
  })

  await t.test('three migrators at once migrate once, and a newer schema is refused', async t => {
    const folder = path.join(scratch, 'migrations')
    fs.mkdirSync(path.join(folder, 'meta'), { recursive: true })
    const write = (names: string[]) => {
      names.forEach((name, i) => fs.writeFileSync(
        path.join(folder, `${name}.sql`),
        `create table ${name} (n int);\n--> statement-breakpoint\ninsert into ${name} values (${i})`
      ))
      const entries = names.map((tag, idx) => ({ idx, version: '7', when: 1000 + idx, tag, breakpoints: true }))
      fs.writeFileSync(
        path.join(folder, 'meta/_journal.json'), JSON.stringify({ version: '7', dialect: 'postgresql', entries })
      )
    }
    write(['first', 'second'])
    const clients = [1, 2, 3].map(() => postgres(server.url, { max: 1, fetch_types: false, onnotice: () => {} }))
    await Promise.all(clients.map(client => migrateSchema(client, { folder })))
    t.equal((await clients[0]!`select * from second`).length, 1)
    t.equal((await clients[0]!`select * from drizzle.__drizzle_migrations`).length, 2)
    write(['first'])
    await t.rejects(migrateSchema(clients[1]!, { folder }), /does not know/)
    await Promise.all(clients.map(client => client.end()))
  })
})

t.test('the template of the embedded database', async t => {
  const empty = (name: string) => {
    const dir = path.join(scratch, name)
    fs.mkdirSync(dir, { mode: 0o700 })
    return dir
  }

  await t.test('is unpacked for its owner only', async t => {
    const cluster = path.join(empty('modes'), 'cluster')
    unpackCluster(TEMPLATE, cluster, { durable: false })
    const modes = fs.readdirSync(cluster, { recursive: true }).map(name => {
      const stats = fs.statSync(path.join(cluster, String(name)))
      return [stats.isDirectory(), (stats.mode & 0o777).toString(8)]
    })
    t.ok(modes.length > 500)
    t.same([...new Set(modes.map(String))].sort(), ['false,600', 'true,700'])
    t.equal(fs.statSync(cluster).mode & 0o777, 0o700)
  })

  await t.test('a first start that was ended in the middle leaves nothing that a later one opens', async t => {
    const dir = empty('halfway')
    const cluster = path.join(dir, 'cluster')
    let files = 0
    t.throws(() => unpackCluster(TEMPLATE, cluster, {
      onProgress: () => {
        if (++files === 50) {
          throw new Error('ended')
        }
      }
    }), /ended/)
    t.notOk(fs.existsSync(cluster))
    const database = await connect({ dir, pool: 1, durable: false })
    await database.ping()
    await database.close()
    t.same(
      fs.readdirSync(dir).filter(name => name.startsWith('cluster')), ['cluster'], 'what was left beside it is gone'
    )
  })

  await t.test('nothing that is there is written over, and the error names the reason', async t => {
    const dir = empty('taken')
    fs.mkdirSync(path.join(dir, 'cluster'))
    fs.writeFileSync(path.join(dir, 'cluster', 'mine'), 'kept')
    const error = await connect({ dir, pool: 1 }).then(() => undefined, databaseError)
    t.match(error, { name: 'DatabaseUnavailable', message: /^The embedded database does not open: (ENOTEMPTY|EEXIST)/ })
    t.equal(fs.readFileSync(path.join(dir, 'cluster', 'mine'), 'utf8'), 'kept')
    const cut = path.join(scratch, 'cut.tar.gz')
    fs.writeFileSync(cut, fs.readFileSync(TEMPLATE).subarray(0, -1000))
    t.throws(() => unpackCluster(cut, path.join(dir, 'other')))
    t.notOk(fs.existsSync(path.join(dir, 'other')))
  })
})

t.test('what takes long is waited for as long as it makes progress, and then the reason is named', async t => {
  let [clock, moved] = [0, 0]
  const said: string[] = []
  const stalls: string[] = []
  const dog = createWatchdog({
    silence: 8000,
    patience: 60_000,
    progress: () => moved,
    now: () => clock,
    onWait: line => said.push(line),
    onStall: reason => stalls.push(reason)
  })
  const seconds = (count: number, each: () => void = () => {}) => {
    for (let i = 0; i < count; i++) {
      clock += 1000
      each()
      dog.look()
    }
  }
  seconds(100)
  t.same(stalls, [], 'nothing is under way')
  dog.begin()
  const done = dog.patiently('starts')
  seconds(600, () => moved++)
  t.same(stalls, [], 'ten minutes with progress')
  t.equal(said.length, 60)
  t.equal(said[2], 'Waiting for the embedded database, which starts (30 s)')
  seconds(60)
  t.same(stalls, [])
  seconds(1)
  t.same(stalls, ['no sign of life for 60 s while it starts'])
  done()
  dog.heard()
  stalls.length = 0
  seconds(8, () => moved++)
  t.same(stalls, [])
  seconds(1, () => moved++)
  t.same(stalls, ['no sign of life for 8 s'], 'a statement has to be answered, whatever it does meanwhile')
  dog.end()
})

t.test('a copy of the embedded database is whole, or not there', async t => {
  const from = path.join(scratch, 'files')
  const to = path.join(scratch, 'copy')
  fs.mkdirSync(path.join(from, 'a', 'b'), { recursive: true })
  for (const name of ['one', 'a/two', 'a/b/three']) fs.writeFileSync(path.join(from, name), name, { mode: 0o600 })
  const files = () => fs.readdirSync(scratch, { recursive: true }).map(String).filter(name => /^copy/.test(name)).sort()
  const copy = (more: Partial<Copying> = {}) =>
    copyCluster(from, to, { onProgress: () => {}, isCancelled: () => false, ...more })

  t.throws(() => copy({ freeBytesBeside: () => 64 * 2 ** 20 }), {
    message: 'a copy needs 65 MiB of free disk space, but only 64 MiB are free'
  })
  t.strictSame(files(), [], 'nothing is begun that the disk would be full of')
  const seen: string[][] = []
  t.throws(() => copy({ isCancelled: () => seen.push(files()) > 4 }), { message: 'the client has disconnected' })
  t.ok(seen.at(-1)!.length > 2)
  t.strictSame(files(), [], 'nothing is left of a part')
  const server = net.createServer().listen(path.join(from, 'no-file'))
  await once(server, 'listening')
  t.throws(() => copy(), /no-file/)
  t.strictSame(files(), [])
  server.close()
  await once(server, 'close')
  copy()
  t.strictSame(files(), ['copy', 'copy/a', 'copy/a/b', 'copy/a/b/three', 'copy/a/two', 'copy/one'])
  t.equal(fs.readFileSync(path.join(to, 'a', 'b', 'three'), 'utf8'), 'a/b/three')
  t.throws(() => copy(), { code: 'EEXIST' })
  t.strictSame(files(), ['copy', 'copy/a', 'copy/a/b', 'copy/a/b/three', 'copy/a/two', 'copy/one'], 'what was there stays')
  const others = { 'copy-empty': () => fs.mkdirSync(`${to}-empty`), 'copy-file': () => fs.writeFileSync(`${to}-file`, 'x'), 'copy-link': () => fs.symlinkSync(from, `${to}-link`) }
  for (const [name, make] of Object.entries(others)) {
    make()
    const at = path.join(scratch, name)
    t.throws(() => copyCluster(from, at, { onProgress: () => {}, isCancelled: () => false }), { code: 'EEXIST' })
    t.ok(fs.lstatSync(at), name)
  }
  t.equal(fs.readFileSync(path.join(from, 'one'), 'utf8'), 'one')
  t.throws(() => copyCluster(from, path.join(scratch, 'nowhere', 'copy'), {
    onProgress: () => {}, isCancelled: () => false, freeBytesBeside: () => Infinity
  }), { code: 'ENOENT' })
})

t.test('a copy without a waiting client is ended, and the next one is made', async t => {
  const dir = path.join(scratch, 'asked')
  fs.mkdirSync(dir)
  const asked: string[] = []
  const begun = new EventEmitter()
  const end = await serveRequests(dir, async (to, whileWanted) => {
    asked.push(path.basename(to))
    if (asked.length > 1) return
    begun.emit('begun')
    await once(whileWanted, 'abort')
    throw new Error('the client has disconnected')
  }, async () => {})
  const leaves = (name: string) => {
    const socket = net.connect({ path: path.join(dir, 'requests'), allowHalfOpen: true })
    socket.end(JSON.stringify({ copy: name }))
    return socket
  }
  const [first, second] = [leaves('/first'), leaves('/second')]
  await Promise.all([once(begun, 'begun'), once(first, 'data'), once(second, 'data')])
  const third = requestCopy(dir, '/third')
  for (const socket of [second, first]) socket.destroy()
  t.equal(await third, true)
  t.equal(asked[0], 'first')
  t.equal(asked.at(-1), 'third')
  end()
})

t.test('RL-04 a process that was blocked while it looked at the lock of an ended one does not take that one for alive', async t => {
  const dir = path.join(scratch, 'blocked')
  fs.mkdirSync(dir)
  const ended = net.createServer().listen(path.join(dir, 'starting'))
  await once(ended, 'listening')
  fs.linkSync(path.join(dir, 'starting'), path.join(dir, 'lock.1'))
  ended.close()
  await once(ended, 'close')
  // Timers run next, before the error of the connection is handled.
  await new Promise(resolve => setImmediate(resolve))
  const locking = lockDirectory(dir)
  // As on a machine whose other processes need all of its time.
  for (const end = performance.now() + 1_100; performance.now() < end;);
  const unlock = await locking
  await t.rejects(lockDirectory(dir), { message: /in use by process \d+/ })
  unlock()
})

t.test('embedded', async t => {
  const dir = path.join(scratch, 'embedded')
  const program = (body: string) => spawn(process.execPath, ['--input-type=module', '-e', `
    import { connect } from ${JSON.stringify(new URL('../../src/db/database.js', import.meta.url).href)}
    const database = await connect({ dir: ${JSON.stringify(dir)}, pool: 1 })
    ${body}`], { stdio: ['pipe', 'pipe', 'pipe'] })
  const output = async (child: ChildProcess) => {
    let text = ''
    child.stdout!.on('data', data => { text += data })
    child.stderr!.on('data', data => { text += data })
    await once(child, 'close')
    return text
  }

  await t.test('is made for its owner only, keeps the contract, and can be copied', async t => {
    const database = await connect({ dir, pool: 1 })
    t.equal(fs.statSync(dir).mode & 0o777, 0o700)
    await keepsTheContract(t, database)

    await t.test('RL-04 a second process is refused and told who has it', async t => {
      t.match(await output(program('console.log("opened")')), new RegExp(`in use by process ${process.pid}\\b`))
      await t.rejects(connect({ dir, pool: 1 }), /in use by process/)
      await database.ping()
    })

    await t.test('RL-08 a statement without end is ended, and the database opens again', async t => {
      await t.rejects(transaction(database.db, db => db.execute(sql`select pg_sleep(60)`)), DatabaseUnavailable)
      await until(() => find(database.db, { id: 1 }).then(rows => rows.length === 1, () => false), {
        every: 50, within: 120_000
      })
    })

    await t.test('RL-08 a session that PostgreSQL ends is replaced, and loses nothing acknowledged', async t => {
      await insert(database.db, row(30))
      await t.rejects(transaction(database.db, async db => {
        await insert(db, row(31))
        await db.execute(sql`SET idle_in_transaction_session_timeout = '50ms'`)
        await sleep(500)
        await db.execute(sql`SELECT 1`)
      }), DatabaseUnavailable)
      t.same([(await find(database.db, { id: 30 })).length, (await find(database.db, { id: 31 })).length], [1, 0])
    })

    await database.close()
    fs.cpSync(path.join(dir, 'cluster'), path.join(scratch, 'copied', 'cluster'), { recursive: true })
    fs.chmodSync(path.join(scratch, 'copied'), 0o700)
    const copy = await connect({ dir: path.join(scratch, 'copied'), pool: 1 })
    t.equal((await find(copy.db, { id: 1 })).length, 1)
    for (const one of OTHER_MEANING.split(/;\n/)) await copy.db.execute(sql.raw(one))
    await copy.close()
    const fooled = await connect({ dir: path.join(scratch, 'copied'), pool: 1 })
    await meansTheSame(t, fooled)
    await fooled.close()
  })

  await t.test('of several who ask for a copy at once, each gets one', async t => {
    const database = await connect({ dir, pool: 1 })
    const places = ['one', 'two', 'three'].map(name => path.join(scratch, `for-${name}`))
    t.same(await Promise.all(places.map(to => requestCopy(dir, to))), [true, true, true])
    await database.close()
    t.ok(places.every(to => fs.existsSync(path.join(to, 'PG_VERSION'))))
  })

  await t.test('RL-04 who has it and was held up while others asked goes on', async t => {
    const holder = program(`
      console.log('it is mine')
      process.stdin.once('end', async () => {
        // The stopped process may have lost its connection. It then opens another one.
        while (!await database.ping().then(() => true, () => false));
        console.log('and still is')
        await database.close()
      }).resume()`)
    const said = output(holder)
    await once(holder.stdout!, 'data')
    holder.kill('SIGSTOP')
    await Promise.all([
      t.rejects(connect({ dir, pool: 1 }), /in use by process unknown/),
      t.rejects(requestCopy(dir, path.join(scratch, 'frozen')), {
        message: 'The embedded database cannot be copied: the process that has it open did not respond for 10 s'
      })
    ])
    holder.kill('SIGCONT')
    // This request waits in the queue behind the requests above, which have failed.
    await t.rejects(connect({ dir, pool: 1 }), /in use by process/)
    holder.stdin!.end()
    t.equal(await said, 'it is mine\nand still is\n')
  })

  await t.test('refuses a directory that others may enter', async t => {
    fs.chmodSync(dir, 0o750)
    await t.rejects(connect({ dir, pool: 1 }), /open to other users/)
    fs.chmodSync(dir, 0o700)
  })

  await t.test('RL-02 RL-04 kill -9 loses nothing acknowledged, and the next start needs no cleaning up', async t => {
    const acknowledged: number[] = []
    for (let cycle = 0; cycle < (LONG ? 3 : 1); cycle++) {
      const child = program(`
        import { sql } from ${JSON.stringify(import.meta.resolve('drizzle-orm'))}
        for (let id = ${(cycle + 1) * 1_000_000}; ; id++) {
          await database.db.execute(sql\`insert into things (id) values (\${id})\`)
          process.stdout.write(id + '\\n')
        }`)
      const said = output(child)
      // Waits for a minimum of acknowledged rows, and then kills the process at a random time.
      const enough = 20 + Math.random() * 100
      for (let lines = 0; lines < enough;) {
        const [text] = await Promise.race([once(child.stdout!, 'data'), said.then(text => { throw new Error(text) })])
        lines += String(text).split('\n').length - 1
      }
      await sleep(Math.random() * 5)
      child.kill('SIGKILL')
      acknowledged.push(...(await said).split('\n').slice(0, -1).map(Number))
    }
    const database = await connect({ dir, pool: 1 })
    const stored = new Set((await database.db.select({ id: things.id }).from(things)).map(({ id }) => id))
    t.same(acknowledged.filter(id => !stored.has(id)), [], `of ${acknowledged.length}`)
    await database.close()
  })

  await t.test('RL-04 of several starters at once after a kill exactly one opens', async t => {
    const starters = Array.from({ length: LONG ? 4 : 2 }, () => program(`
      console.log('it is mine')
      process.stdin.resume().once('end', async () => { await database.close() })`))
    const saying = starters.map(output)
    // The process that opened the directory keeps it until the others have ended.
    await new Promise<void>(resolve => {
      let ended = 0
      for (const said of saying) said.then(() => { if (++ended === starters.length - 1) resolve() })
    })
    for (const { stdin } of starters) stdin!.end()
    const said = await Promise.all(saying)
    t.equal(said.filter(text => text.includes('it is mine')).length, 1, said.join('\n'))
    t.equal(said.filter(text => /in use by process|being opened/.test(text)).length, starters.length - 1)
  })

  await t.test('RL-04 of two starters that find each other, the earlier one opens', async t => {
    const later = net.createServer(socket => {
      socket.end('2\n')
      // The later starter has found the earlier one, and gives up.
      later.close()
    })
    const link = fs.linkSync
    t.intercept(fs, 'linkSync', {
      value: (from: string, to: string) => {
        fs.linkSync = link
        link(from, to)
        later.listen(to.replace(/\d+$/, number => String(Number(number) + 1)))
      },
      writable: true
    })
    const database = await connect({ dir, pool: 1 })
    await t.rejects(connect({ dir, pool: 1 }), /in use by process/)
    await database.ping()
    await database.close()
  })
})
