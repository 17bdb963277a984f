// runs: no database; 45 s
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import { setTimeout as pause } from 'node:timers/promises'
import t from 'tap'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { startIsolatedApp } from '../helpers/app.ts'
import { lockCounters, makeChangers, WRITING } from '../helpers/changers.ts'
import { LONG, sample } from '../helpers/long.ts'
import { hasPostgres, startPostgres } from '../helpers/postgres.ts'
import { beginServer, command, startServer } from '../helpers/process.ts'
import { client, look, makeLevels, type Level, type Reply } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'
import { openWay } from '../helpers/way.ts'

// The server process under load, while its PostgreSQL is stopped, restarted, frozen and locked. The tests wait for
// events without their own time limit. The limit for a response is four times that of the security page, because the
// machine can be slow. It distinguishes a bounded response from an endless wait.

const ANSWERED = 30_000
const STOPS: ('immediate' | 'fast')[] = LONG
  ? ['immediate', 'fast', 'immediate', 'fast', 'immediate']
  : ['immediate', 'fast']
const POOL = 6
// The numbers of clients that store, read and change a project.
const [STORING, READING, CHANGING] = LONG ? [8, 8, 4] as const : [2, 1, 1] as const

t.setTimeout(180_000)

t.test('PostgreSQL goes away and comes back under load', {
  skip: !hasPostgres() && 'PostgreSQL is not installed'
}, async (t) => {
  const database = await startPostgres()
  t.teardown(database.close)
  const env = {
    DATABASE_URL: database.url,
    DATABASE_POOL: String(POOL),
    MASTER_KEY: generateMasterKey().text,
    RATE_LIMIT_API: '0',
    LOG_LEVEL: 'error'
  }
  const server = await startServer(t, env)
  const send = client(server.address, server.first!)
  const [level] = await makeLevels(send, 'orbit', ['live']) as [Level]
  const changers = (await makeChangers(env, [server.address])).map(([change]) => change!)
  const health = async () => [(await send('GET', '//healthz')).status, (await send('GET', '//readyz')).status]
  const acknowledged = new Set<string>()
  const strange: unknown[] = []
  let slowest = 0

  /**
   * Sends a request and checks its response. The response must be correct or the refusal for an outage, in bounded
   * time.
   */
  async function judged (request: Promise<Reply>): Promise<Reply | undefined> {
    const started = performance.now()
    const reply = await request.catch((error: unknown) => { strange.push(String(error)) })
    slowest = Math.max(slowest, performance.now() - started)
    if (reply && reply.status !== 200 && !(reply.status === 503 && reply.body.error === 'service_unavailable')) {
      strange.push([reply.status, reply.body])
    }
    return reply ?? undefined
  }

  interface Seen { good: number, written: number, refused: number }

  async function underLoad (work: (seen: Seen) => Promise<void>) {
    const seen = { good: 0, written: 0, refused: 0 }
    const load = { running: true }
    let count = acknowledged.size
    const one = async (make: () => Promise<Reply>) => {
      while (load.running) {
        const reply = await judged(make())
        if (reply?.status === 200) {
          seen.good++
          if (reply.body.data.version) {
            seen.written++
            acknowledged.add(reply.body.data.version)
          }
        } else {
          seen.refused++
          await pause(5)
        }
      }
    }
    const clients = [
      ...Array.from({ length: STORING }, () =>
        one(() => send('POST', '/secrets/store', { ...level, plaintext: `VALUE=${++count}` }))),
      ...Array.from({ length: READING }, () => one(() => send('GET', '/orbit/backend/live/secrets?decrypt=true'))),
      ...Array.from({ length: CHANGING }, () => one(() => send('PATCH', '/orbit', { description: `${++count}` })))
    ]
    try {
      await work(seen)
    } finally {
      load.running = false
      await Promise.all(clients)
    }
  }

  // Proves that no connection for writes was lost: all of them wait for a row at the same time.
  async function fullConcurrency () {
    const { waiting, release } = await lockCounters(database.url)
    const load = { running: true }
    // The service refuses a request that waits too long, and the loop sends the next one.
    const clients = changers.map(async (change) => {
      while (load.running) await judged(change('PATCH', '/orbit', { description: 'together' }))
    })
    await until(async () => await waiting() === WRITING)
    load.running = false
    await release()
    await Promise.all(clients)
  }

  async function served (seen: Seen) {
    const { good, written } = seen
    await until(() => seen.good > good + 20 && seen.written > written + 5)
  }

  async function recovered (seen: Seen) {
    await until(async () => (await health())[1] === 200)
    await served(seen)
  }

  await t.test('RL-05 stopped at once or in good order, and started again: 503 meanwhile, then full service', async (t) => {
    await underLoad(async (seen) => {
      for (const mode of STOPS) {
        await served(seen)
        await database.stop(mode)
        const { refused } = seen
        await until(() => seen.refused > refused + 20)
        t.same(await health(), [200, 503], `${mode}: alive, not ready`)
        await database.start()
        await recovered(seen)
      }
    })
    await fullConcurrency()
    t.same(strange, [], 'every request was served or refused as it should be')
  })

  await t.test('RL-07 frozen: every request is answered with 503, and served again after the thaw', async (t) => {
    await underLoad(async (seen) => {
      await served(seen)
      database.freeze()
      try {
        const { refused } = seen
        await until(() => seen.refused > refused + 20)
        t.same(await health(), [200, 503], 'alive, not ready')
        const replies = await Promise.all(Array.from({ length: 5 }, () => judged(send('GET', '/orbit'))))
        t.same(replies.map((reply) => reply?.status), Array(5).fill(503))
      } finally {
        database.thaw()
      }
      await recovered(seen)
    })
    await fullConcurrency()
    t.same(strange, [])
  })

  await t.test('RL-06 rows locked under every connection of the pool: bounded 503, reads go on, full service after', async (t) => {
    const { waiting, release } = await lockCounters(database.url)
    const writes = Array.from({ length: 40 }, (_, n) =>
      judged(changers[n % changers.length]!('PATCH', '/orbit', { description: 'waiting' })))
    await until(async () => await waiting() === WRITING)
    t.same(await health(), [200, 200], 'alive and ready')
    t.equal((await judged(send('GET', '/orbit/backend/live/secrets')))?.status, 200, 'a read needs no lock')
    const replies = await Promise.all(writes)
    t.same([...new Set(replies.map((reply) => reply?.status))], [503])
    await release()
    await fullConcurrency()
    t.equal((await judged(send('PATCH', '/orbit', { description: 'after' })))?.status, 200)
    t.same(strange, [])
  })

  await t.test('RL-07 what a request waits for one after the other has one deadline', async (t) => {
    // Each response of the database is late, but within the deadline of its statement.
    const way = await openWay(database.url)
    t.teardown(way.close)
    const second = await startServer(t, { ...env, DATABASE_URL: way.url })
    const late = client(second.address, server.first!)
    const read = () => late('GET', '/orbit/backend/live/secrets?decrypt=true')
    const store = (headers = {}, by = late, plaintext = 'A=late') =>
      by('POST', '/secrets/store', { ...level, plaintext }, headers)
    const project = () => late('PATCH', '/orbit', { description: 'late' })
    t.same([(await read()).status, (await store()).status, (await project()).status], [200, 200, 200], 'in time')
    // The level of a write is already looked up, and the write continues.
    way.trouble({ delay: 900 })
    const replies = await Promise.all([store(), store({ 'idempotency-key': 'late' }), project()])
    t.same(replies.map(({ status, body }) => [status, body.error]), Array(3).fill([503, 'service_unavailable']))
    t.equal((await store({}, send, 'A=after')).status, 200)
    way.trouble({})
    t.same([(await read()).status, (await project()).status], [200, 200], 'in time again')
    t.equal((await second.stop()).code, 0)
    t.equal((await look(send, level)).current?.content, 'A=after', 'nothing that was refused came over it')
    t.equal((await store({ 'idempotency-key': 'late' }, send)).status, 200, 'nor was its answer kept')
  })

  await t.test('RL-05 RL-41 the process never ended, logged no unknown error, and lost no acknowledged write', async (t) => {
    t.equal(server.child.exitCode, null)
    t.ok(slowest < ANSWERED, `the slowest answer took ${Math.round(slowest)} ms`)
    const listed = new Set<string>()
    for (let page = 1, last = 1; page <= last; page++) {
      const { body } = await send('POST', '/secrets/versions', { ...level, page, per_page: 100 })
      for (const { id } of body.data) listed.add(id)
      last = body.meta.last_page
    }
    t.same([...acknowledged].filter((id) => !listed.has(id)), [], `of ${acknowledged.size}`)
    t.equal(server.stderr(), '')
    const lines = server.stdout().split('\n').filter((line) => line.startsWith('{')).map((line) => JSON.parse(line))
    t.ok(lines.length > 0)
    t.same(lines.filter(({ level, error_code }) => level >= 60 || error_code === 'internal_error'), [])
    const exit = once(server.child, 'exit')
    server.child.kill('SIGTERM')
    t.same(await exit, [0, null])
  })

  await t.test('RL-42 a start waits for its database and says so; a signal or DATABASE_WAIT ends the wait', async (t) => {
    await database.stop('fast')
    for (const WORKERS of sample(['1', '2'], 2)) {
      const begun = beginServer(t, { ...env, WORKERS })
      await begun.complained('Waiting up to 60 s for the database at ')
      t.match(await begun.stop(), { code: 0, stdout: '' })
    }
    t.match(await command(['serve'], { ...env, PORT: '0', DATABASE_WAIT: '0' }), {
      code: 1, stdout: '', stderr: /^The database at \S+ cannot be used: .*\n$/
    })
    const patient = beginServer(t, env)
    await patient.complained('Waiting up to 60 s')
    await database.start()
    const again = await patient.serves()
    t.equal((await client(again.address, server.first!)('GET', '//readyz')).status, 200)
    t.equal(patient.stderr().trim().split('\n').length, 1, 'it says it once')
    t.match(await command(['serve'], { ...env, PORT: '0', DATABASE_URL: database.url.replace(/postgres$/, 'missing') }), {
      code: 1, stderr: /^The database at \S+ cannot be used: .*does not exist; create this database, or .*\n$/
    }, 'what no waiting mends is said at once')
    t.equal((await again.stop()).code, 0)
  })
})

t.test('RL-08 a process that hangs within a change keeps its embedded database', async (t) => {
  // This test has its own database, because it takes the database away.
  const service = await startIsolatedApp(t)
  const { organization, call } = await service.organization()
  const change = async (name: string) =>
    (await call('POST', `/${organization}/projects`, { name, slug: name })).status

  for (const [milliseconds, status] of [[1_500, 201], [5_500, 503]] as const) {
    // Blocks the event loop while a change has locked the counter.
    const hang = (message: unknown) => {
      const { phase, text } = message as { phase: string, text: string }
      if (phase !== 'after' || !text.includes('idle_in_transaction_session_timeout')) return
      unsubscribe('strongroom:statement', hang)
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, milliseconds)
    }
    t.equal(await change(`before-${milliseconds}`), 201)
    subscribe('strongroom:statement', hang)
    t.equal(await change(`during-${milliseconds}`), status, `after ${milliseconds} ms`)
    t.equal(await change(`after-${milliseconds}`), 201, 'the next change')
  }
  const stored = await service.sql('SELECT slug FROM projects ORDER BY slug')
  t.strictSame(stored.map(({ slug }) => slug), [
    'after-1500', 'after-5500', 'before-1500', 'before-5500', 'during-1500'
  ])
})
