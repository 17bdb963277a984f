// runs: one database; 30 s
import Fastify, { type FastifyInstance } from 'fastify'
import { once } from 'node:events'
import { get } from 'node:http'
import { createServer, type AddressInfo } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { ERRORS } from '../../schemas/errors.ts'
import { buildApp } from '../../src/app.ts'
import { loadConfig } from '../../src/config.ts'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { createCounters, type Counting } from '../../src/http/limits/counters.ts'
import { installLimits, LIMITS, type LimitGroup } from '../../src/http/limits/limits.ts'
import { countInRedis } from '../../src/http/limits/redis.ts'
import type { ApiError } from '../../src/rules/api-error.ts'
import { createMetrics, render } from '../../src/telemetry/metrics.ts'
import { freshDatabase, makeLevel, startIsolatedApp, type TestApp } from '../helpers/app.ts'
import { LONG } from '../helpers/long.ts'
import { samplesOf, valueOf } from '../helpers/metrics.ts'
import { startServer } from '../helpers/process.ts'
import { hasRedis, startRedis, type TestRedis } from '../helpers/redis.ts'
import { until } from '../helpers/until.ts'
import { openWay } from '../helpers/way.ts'

// Two instances that count their limits in one Redis. Each instance counts alone while Redis is unavailable.

const LIMIT = 100
const FLAPS = LONG ? 20 : 3
const skip = !hasRedis() && 'Redis is not installed (Debian: redis-server)'

const ALONE = 'Redis cannot count: each instance counts its limits by itself'
const TOGETHER = 'limits are counted over all instances again, in Redis'

interface Instance { app: FastifyInstance, logs: string[] }
interface Line { msg: string, level: number, reason?: string }

const linesOf = ({ logs }: Instance): Line[] => logs.map((line) => JSON.parse(line) as Line)
const changesOf = (instance: Instance) =>
  linesOf(instance).map(({ msg }) => msg).filter((msg) => msg === ALONE || msg === TOGETHER)

async function instancesOn (t: Test, env: Record<string, string>) {
  // This test has its own database, because it ends services, and counts the statements of each.
  const service = await startIsolatedApp(t, env)
  const logs: string[] = []
  const { config, database, keyring, app: { costs } } = service
  const app = await buildApp({ config, database, keyring, costs, logStream: { write: (line) => logs.push(line) } })
  t.teardown(() => app.close())
  await app.ready()
  return { service, instances: [service, { app, logs }] as [TestApp, Instance] }
}

interface Heard { status: number, remaining: number, reset: number, retryAfter: number | undefined }

/** A request without a token from an address. It counts only for the address, and needs no database. */
async function ask ({ app }: Instance, remoteAddress: string, authorization?: string): Promise<Heard> {
  const { statusCode, headers } = await app.inject({
    url: '/api/v1/organization', remoteAddress, headers: { ...authorization !== undefined && { authorization } }
  })
  return {
    status: statusCode,
    remaining: Number(headers['x-ratelimit-remaining']),
    reset: Number(headers['x-ratelimit-reset']),
    retryAfter: headers['retry-after'] === undefined ? undefined : Number(headers['retry-after'])
  }
}

/** Options of `until`: an instance notices the state of Redis only when it counts a request. */
const askingOn = (instance: Instance) => ({ every: 20, again: () => ask(instance, '203.0.113.250') })

/** Sends requests until the log of the instance contains the message this number of times. */
async function untilSaid (instance: Instance, what: string, times = 1) {
  await until(() => changesOf(instance).filter((msg) => msg === what).length >= times, askingOn(instance))
}

/** Waits until the last change in the log is `what`. */
async function untilLast (instance: Instance, what: string) {
  await until(() => changesOf(instance).at(-1) === what, askingOn(instance))
}

/**
 * Repeats a round until no instance counted alone during it, which can happen on a busy machine. Returns the result of
 * the round.
 */
async function together<T> (instances: readonly Instance[], round: (number: number) => Promise<T>): Promise<T> {
  for (let number = 1; number <= 20; number++) {
    const before = instances.flatMap(changesOf).length
    const found = await round(number)
    const isAlone = instances.some((instance) => changesOf(instance).at(-1) === ALONE)
    if (!isAlone && instances.flatMap(changesOf).length === before) return found
    await pause(100)
  }
  throw new Error('some instance was by itself in each of twenty rounds')
}

/** The key of the window of an address; undefined if an instance that was by itself did not write it. */
const keyOf = async (redis: TestRedis, address: string) =>
  [...(await redis.ends()).keys()].find((key) => key.endsWith(`:ip:${address}`))

const isEverythingTimed = async (t: Test, redis: TestRedis) => {
  const ends = await redis.ends()
  t.ok(ends.size > 0)
  t.strictSame([...ends].filter(([, left]) => left < 0), [], 'every key has an end')
}

t.test('RL-24: of 1,000 calls at once to two instances exactly as many come through as the limit allows', { skip }, async (t) => {
  const redis = await startRedis(t)
  const { service, instances } = await instancesOn(t, { RATE_LIMIT_API: String(LIMIT), REDIS_URL: redis.url })
  for (const good of [401, 200]) {
    // Refusals because of the full database queue come before the count.
    const answers = await together(instances, async (round) => {
      const authorization = good === 200 ? `Bearer ${(await service.organization()).token}` : undefined
      const all = await Promise.all(Array.from({ length: 1000 }, (_, i) =>
        ask(instances[i % 2]!, `10.0.${good - 200}.${round}`, authorization)))
      return all.filter(({ status }) => status !== 503)
    })
    const through = answers.filter(({ status }) => status === good)
    t.equal(through.length, LIMIT)
    t.equal(answers.filter(({ status }) => status === 429).length, answers.length - LIMIT)
    t.strictSame(
      through.map(({ remaining }) => remaining).sort((a, b) => b - a),
      Array.from({ length: LIMIT }, (_, i) => LIMIT - 1 - i),
      'each of them is told another number'
    )
    t.equal(new Set(answers.map(({ reset }) => reset)).size, 1, 'of one window')
    t.ok(answers.every(({ status, retryAfter = 0 }) =>
      status === 429 ? retryAfter >= 1 && retryAfter <= 60 : retryAfter === 0))
  }
  const [first, second] = await together(instances, async (round) =>
    [await ask(instances[0], `203.0.113.${round}`), await ask(instances[1], `203.0.113.${round}`)] as const)
  t.strictSame([first.remaining, second.remaining], [LIMIT - 1, LIMIT - 2])
  await isEverythingTimed(t, redis)
})

t.test('RL-24: every limit is one over all instances', { skip }, async (t) => {
  const redis = await startRedis(t)
  const config = loadConfig({
    REDIS_URL: redis.url, RATE_LIMIT_API: '6', RATE_LIMIT_OAUTH: '3', RATE_LIMIT_KEY_ROTATION: '4', RATE_LIMIT_BILLING: '5'
  })
  const instances = await Promise.all([1, 2].map(async () => {
    const logs: string[] = []
    const app = Fastify({ logger: { level: 'warn', stream: { write: (line) => logs.push(line) } } })
    t.teardown(() => app.close())
    app.decorate('config', config)
    const consume = await installLimits(app, await countInRedis(app, config.redis!, createCounters()))
    app.setErrorHandler(async (error: ApiError, _request, reply) => reply.code(ERRORS[error.code].status).send({}))
    app.get('/:group/:key', async (request, reply) => {
      const { group, key } = request.params as { group: LimitGroup, key: string }
      await consume(group, key, 0, request, reply)
      return {}
    })
    return { app, logs }
  }))
  for (const [group, { setting, window, times = 1 }] of Object.entries(LIMITS)) {
    const limit = config.rateLimits[setting] * times
    const { statuses, round } = await together(instances, async (round) => {
      const statuses: number[] = []
      for (let n = 0; n <= limit; n++) {
        statuses.push((await instances[n % 2]!.app.inject(`/${group}/org:${round}`)).statusCode)
      }
      return { statuses, round }
    })
    t.strictSame(statuses, [...Array<number>(limit).fill(200), 429], group)
    const left = [...await redis.ends()].filter(([key]) => key.endsWith(`:${group}:org:${round}`)).map(([, ms]) => ms)
    t.ok(left.length === 1 && left[0]! > 0 && left[0]! <= window, `${group}: ${left.join()} ms are left of its window`)
  }
})

t.test('on all instances a rotation counts in one group: its own if it takes effect, else the general one', { skip }, async (t) => {
  const redis = await startRedis(t)
  const env = { RATE_LIMIT_API: '50', RATE_LIMIT_KEY_ROTATION: '3', REDIS_URL: redis.url }
  const { service, instances } = await instancesOn(t, env)
  const [one, other] = instances
  const seen = await together(instances, async () => {
    const caller = await service.organization()
    const { project } = await makeLevel(caller)
    const call = async ({ app }: Instance, method: 'GET' | 'POST', url: string) => {
      const { statusCode, headers } = await app.inject({
        method, url: `/api/v1${url}`, headers: { authorization: `Bearer ${caller.token}` }
      })
      return [statusCode, ...['limit', 'remaining'].map((name) => Number(headers[`x-ratelimit-${name}`]))]
    }
    const rotate = (instance: Instance, which = project) =>
      call(instance, 'POST', `/${caller.organization}/${which}/encryption-key/rotate`)
    const look = (instance: Instance) => call(instance, 'GET', '/organization')
    const [, , before = 0] = await look(one)
    const answers = [
      await rotate(one), await look(other), await rotate(other), await look(one), await rotate(other, 'nowhere'),
      await rotate(one), await rotate(other), await look(one)
    ]
    return answers.map(([status, limit, remaining = 0]) =>
      [status, limit, limit === 50 ? remaining - before : remaining])
  })
  t.strictSame(seen, [
    [200, 3, 2], [200, 50, -1], [200, 3, 1], [200, 50, -2], [404, 50, -3], [200, 3, 0], [429, 3, 0], [200, 50, -5]
  ])
  await isEverythingTimed(t, redis)
})

t.test('in Redis a request is given back in its window only, never below zero; a refused one uses nothing up', { skip }, async (t) => {
  const redis = await startRedis(t)
  const logs: string[] = []
  const app = Fastify({ logger: { stream: { write: (line) => logs.push(line) } } })
  t.teardown(() => app.close())
  const counters = await countInRedis(app, loadConfig({ REDIS_URL: redis.url }).redis!, createCounters())
  const found = await together([{ app, logs }], async (round) => {
    const counting = (key: string, window = 60_000): Counting => ['api', `org:${key}:${round}`, window, 3]
    const count = async (one = counting('a')) => counters.count(one)
    const giveBack = async (end: number, [group, key, length, limit] = counting('a')) =>
      counters.count([group, key, length, limit, end])
    const [, end] = await count()
    await giveBack(end)
    await giveBack(end)
    const again = await count()
    for (let n = 2; n <= 6; n++) await count()
    await giveBack(end)
    const [more] = await count()
    const [, former] = await count(counting('b', 50))
    while (Date.now() <= former + 50) await pause(10)
    const [first] = await count(counting('b'))
    await giveBack(former, counting('b'))
    const [second] = await count(counting('b'))
    return { isOneWindow: again[1] === end, counts: [again[0], more, first, second] }
  })
  t.strictSame(found, { isOneWindow: true, counts: [1, 3, 1, 2] })
  await redis.stop()
  await counters.count(['api', 'org:a', 1_000, 3, Date.now()])
})

t.test('RL-26: without Redis each instance counts alone, a caller past a limit stays so; one line says it', { skip }, async (t) => {
  const redis = await startRedis(t)
  const { instances } = await instancesOn(t, { RATE_LIMIT_API: '5', RATE_LIMIT_OAUTH: '2', REDIS_URL: redis.url })
  const [one, other] = instances
  const until429 = async (instance: Instance, address: string) => {
    let through = 0
    for (; (await ask(instance, address)).status !== 429; through++);
    return through
  }
  for (let flap = 1; flap <= FLAPS; flap++) {
    const past = await together(instances, async (round) => {
      const address = `192.0.${round}.${flap}`
      await until429(one, address)
      await until429(other, address)
      return address
    })
    const isFrozen = flap % 3 === 2
    if (isFrozen) redis.freeze()
    else await redis.stop()
    const address = `198.51.100.${10 + flap}`
    for (const instance of instances) t.equal((await ask(instance, past)).status, 429)
    t.same([await until429(one, address), await until429(other, address)], [5, 5], 'each by itself')
    const signIns = []
    for (let n = 0; n < 3; n++) {
      signIns.push((await one.app.inject({ method: 'POST', url: '/api/oauth/token', remoteAddress: address })).statusCode)
    }
    t.same(signIns.slice(-1), [429], 'and never without a limit')
    if (isFrozen) redis.thaw()
    else await redis.start()
    await Promise.all(instances.map((instance) => untilSaid(instance, TOGETHER, flap)))
    t.equal(await together(instances, async (round) => {
      const address = `203.0.${round}.${flap}`
      return await until429(one, address) + await until429(other, address)
    }), 5, 'together again')
  }
  for (const instance of instances) {
    const changes = changesOf(instance)
    t.ok(changes.length >= 2 * FLAPS)
    t.strictSame(changes, changes.map((_, i) => i % 2 === 0 ? ALONE : TOGETHER), 'each change is said once')
    t.strictSame(linesOf(instance).filter(({ level }) => level > 40), [], 'nothing failed')
  }
  await isEverythingTimed(t, redis)
})

t.test('RL-26: a Redis that answers late counts as gone: the log says it once, and no request waits for it', { skip }, async (t) => {
  const redis = await startRedis(t)
  let late = 0
  const answers: number[] = []
  const way = await openWay(redis.url, () => {
    answers.push(late)
    return late
  })
  t.teardown(() => way.close())
  const { instances: [one] } = await instancesOn(t, { RATE_LIMIT_API: '5', REDIS_URL: way.url })
  await together([one], () => ask(one, '198.51.100.1'))
  const times = changesOf(one).length / 2
  late = 300
  await untilSaid(one, ALONE, times + 1)
  const enough = answers.length + 4
  await until(() => answers.length >= enough, askingOn(one))
  t.equal(changesOf(one).length, 2 * times + 1, 'whatever came too late')
  late = 0
  await untilSaid(one, TOGETHER, times + 1)
})

t.test('a service starts without Redis, and is with it when it comes; nothing tells its password', { skip }, async (t) => {
  const redis = await startRedis(t)
  await redis.stop()
  const { instances } = await instancesOn(t, { RATE_LIMIT_API: '5', REDIS_URL: redis.url })
  for (const instance of instances) {
    t.match(linesOf(instance).filter(({ msg }) => msg === ALONE), [{ level: 40, reason: 'ECONNREFUSED' }])
  }
  await redis.start()
  await Promise.all(instances.map((instance) => untilSaid(instance, TOGETHER)))
  t.strictSame(await together(instances, async (round) => {
    const statuses = []
    for (let n = 0; n <= 5; n++) statuses.push((await ask(instances[n % 2]!, `198.51.100.${round}`)).status)
    return statuses
  }), [401, 401, 401, 401, 401, 429])

  const logs: string[] = []
  const app = Fastify({ logger: { stream: { write: (line) => logs.push(line) } } })
  t.teardown(() => app.close())
  const { redis: server } = loadConfig({ REDIS_URL: redis.url.replace('word', 'wrong') })
  const metrics = await createMetrics()
  const counters = await countInRedis(app, server!, createCounters(), metrics)
  const counted = await Promise.all([1, 2].map(async () => counters.count(['api', 'ip:a', 60_000, 5])))
  t.strictSame(counted.map(([count]) => count), [1, 2])
  await until(() => logs.some((line) => line.includes(ALONE)))
  const samples = samplesOf(await render([await metrics.read()]))
  t.strictSame(['', '_total'].map((end) => valueOf(samples, `strongroom_limits_without_redis${end}`, {})), [1, 1])
  for (const line of [...logs, ...instances.flatMap(({ logs }) => logs)]) t.notMatch(line, /p@ss|p%40ss/)
})

t.test('over TLS a Redis with a certificate of an unknown authority counts as gone', { skip }, async (t) => {
  const redis = await startRedis(t)
  const { instances: [one] } = await instancesOn(t, { REDIS_URL: redis.tls.url })
  t.match(linesOf(one).find(({ msg }) => msg === ALONE), { reason: 'DEPTH_ZERO_SELF_SIGNED_CERT' })
})

t.test('a Redis that may not be written to is one that cannot count, until it can', { skip }, async (t) => {
  const redis = await startRedis(t)
  const { instances: [one] } = await instancesOn(t, { RATE_LIMIT_API: '5', REDIS_URL: redis.url })
  // On a busy machine, a response can be late before this change or at the same time. Then the log has another reason.
  const isAloneFor = (reason: string) => linesOf(one).some((line) => line.msg === ALONE && line.reason === reason)
  for (let round = 1; round <= 20 && !isAloneFor('OOM'); round++) {
    await redis.tell('CONFIG', 'SET', 'maxmemory', '0')
    await together([one], () => ask(one, '203.0.113.250'))
    await redis.tell('CONFIG', 'SET', 'maxmemory', '1')
    await untilLast(one, ALONE)
  }
  t.ok(isAloneFor('OOM'), 'the log has the reason')
  const before = changesOf(one)
  // The number of probes of Redis. Each probe is for a window that does not exist yet.
  const looks = async () => Number(/cmdstat_evalsha:calls=(\d+)/.exec(String(await redis.tell('INFO', 'commandstats')))![1])
  const enough = await looks() + 3
  await until(async () => await looks() >= enough, askingOn(one))
  t.strictSame(changesOf(one), before, 'full for a new window, too')
  await redis.tell('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes')
  for (let n = 0; n < 6; n++) t.equal((await ask(one, '198.51.100.1')).status, n < 5 ? 401 : 429)
  await redis.tell('CONFIG', 'SET', 'maxmemory', '0')
  await untilLast(one, TOGETHER)
  t.strictSame(changesOf(one).slice(0, before.length + 1), [...before, TOGETHER],
    'asked whether it can count, not whether it is there')
  await redis.tell('ACL', 'SETUSER', 'default', '-hmget')
  for (let n = 0; n < 6; n++) t.equal((await ask(one, '198.51.100.2')).status, n < 5 ? 401 : 429, 'nor read')
})

t.test('a window is counted and ends in time, whatever another program wrote into Redis', { skip }, async (t) => {
  const redis = await startRedis(t)
  const { instances: [one] } = await instancesOn(t, { RATE_LIMIT_API: '5', REDIS_URL: redis.url })
  for (const [i, end] of ['9999999999999', '1', '-1', 'inf', 'nan', 'never'].entries()) {
    const { key, heard } = await together([one], async (round) => {
      const address = `198.51.${i}.${round}`
      await ask(one, address)
      const key = await keyOf(redis, address)
      if (key !== undefined) {
        await redis.tell('HSET', key, 'count', '1000', 'end', end)
        await redis.tell('PERSIST', key)
      }
      return { key: key!, heard: await ask(one, address) }
    })
    t.equal(heard.status, 401, end)
    t.ok(heard.reset - Date.now() / 1000 <= 61, `${end}: of this window`)
    t.ok((await redis.ends()).get(key)! <= 60_000)
  }
  for (const [i, write] of [
    ['SET', 'x'], ['LPUSH', 'x'], ['HSET', 'count', 'x'], ['HSET', 'count', 'inf'], ['HSET', 'count', '-100'],
    ['HSET', 'count', '9223372036854775807'], ['HDEL', 'count']
  ].entries()) {
    const [command, ...values] = write as [string, ...string[]]
    const { key, heard } = await together([one], async (round) => {
      const address = `198.51.${100 + i}.${round}`
      await ask(one, address)
      const key = await keyOf(redis, address)
      if (key !== undefined) {
        if (command === 'SET' || command === 'LPUSH') await redis.tell('DEL', key)
        await redis.tell(command, key, ...values)
      }
      return { key: key!, heard: [await ask(one, address), await ask(one, address)] }
    })
    t.match(heard, [{ status: 401, remaining: 4 }, { status: 401, remaining: 3 }], write.join(' '))
    t.ok((await redis.ends()).get(key)! <= 60_000)
  }
  await isEverythingTimed(t, redis)
})

t.test('what is no answer to a count is none, and ends nothing', async (t) => {
  const answers = [':5\r\n', '+OK\r\n', '$-1\r\n', '*0\r\n', '*1\r\n:5\r\n', '*3\r\n:5\r\n:1\r\n$3\r\nend\r\n', '*3\r\n:5\r\n*0\r\n:6\r\n']
  let answer = ''
  const strange = createServer((socket) => {
    socket.on('error', () => {}).on('data', (data) => {
      socket.write(answer.repeat(String(data).match(/^\*\d+\r\n/gm)?.length ?? 0))
    })
  }).listen(0, '127.0.0.1')
  t.teardown(() => strange.close())
  await once(strange, 'listening')
  const { redis } = loadConfig({ REDIS_URL: `redis://127.0.0.1:${(strange.address() as AddressInfo).port}/0` })
  for (answer of answers) {
    const logs: string[] = []
    const app = Fastify({ logger: { stream: { write: (line) => logs.push(line) } } })
    const counters = await countInRedis(app, redis!, createCounters())
    await counters.count(['api', 'ip:a', 60_000, 5, Date.now()])
    const counted = await Promise.all([1, 2].map(async () => counters.count(['api', 'ip:a', 60_000, 5])))
    t.same(counted.map(([count]) => count), [1, 2], JSON.stringify(answer))
    t.equal(logs.filter((line) => line.includes(ALONE)).length, 1)
    await app.close()
  }
})

t.test('a window ends by the clock of who is asked, whatever the clock of Redis says', { skip }, async (t) => {
  const redis = await startRedis(t)
  const { now } = Date
  t.teardown(() => { Date.now = now })
  const { instances: [one] } = await instancesOn(t, { RATE_LIMIT_API: '1', REDIS_URL: redis.url })
  for (const [address, wrong] of [['198.51.100.1', 0], ['198.51.100.2', -7_200_000], ['198.51.100.3', 7_200_000]] as const) {
    Date.now = () => now() + wrong
    await ask(one, address)
    const { status, reset, retryAfter } = await ask(one, address)
    t.equal(status, 429)
    t.ok(retryAfter! > 0 && retryAfter! <= 60, `${retryAfter} s`)
    t.ok(Math.abs(reset - Date.now() / 1000 - retryAfter!) <= 1.5, 'Reset is Retry-After away')
  }
})

t.test('workers count in Redis, over TLS; while it is gone, their supervisor counts', {
  skip: skip || (process.env.TEST_DATABASE_URL === undefined && 'runs on PostgreSQL') ||
    (!LONG && 'starts three processes: npm run test:proofs')
}, async (t) => {
  const redis = await startRedis(t)
  const { database, url, drop } = await freshDatabase()
  t.teardown(async () => {
    await database.close()
    await drop()
  })
  const server = await startServer(t, {
    DATABASE_URL: url!,
    MASTER_KEY: generateMasterKey().text,
    WORKERS: '2',
    RATE_LIMIT_API: '30',
    TRUST_PROXY: 'loopback',
    REDIS_URL: redis.tls.url,
    NODE_EXTRA_CA_CERTS: redis.tls.authority
  })
  const linesWith = (msg: string) => server.stdout().split(msg).length - 1
  const said = () => linesWith(ALONE) + linesWith(TOGETHER)
  // Each request uses a new connection, so that both workers get requests.
  const statusOf = (from: string) => new Promise<number>((resolve, reject) => {
    get(`${server.address}/api/v1/organization`, { agent: false, headers: { 'x-forwarded-for': from } }, (answer) => {
      answer.resume().on('end', () => resolve(answer.statusCode!))
    }).on('error', reject)
  })
  const through = async (from: string) => {
    const all = await Promise.all(Array.from({ length: 40 }, () => statusOf(from)))
    return all.filter((status) => status === 401).length
  }
  for (let round = 1, before = -1; before !== said(); round++) {
    before = said()
    const count = await through(`198.51.100.${round}`)
    if (before === said()) t.equal(count, 30, 'over both, in Redis')
  }
  t.ok([...(await redis.ends()).keys()].some((key) => key.includes('ip:198.51.100.')))

  await redis.stop()
  const alone = () => linesWith(ALONE) - linesWith(TOGETHER)
  await until(() => alone() >= 2, { again: () => statusOf('203.0.113.250') })
  t.equal(await through('203.0.113.1'), 30, 'over both, without it')
  t.equal(await through('198.51.100.1'), 0, 'and who was past the limit of both stays so')
  t.equal((await server.stop()).code, 0)
})

t.test('a service that ends leaves no connection to Redis', { skip }, async (t) => {
  const redis = await startRedis(t)
  const { service, instances } = await instancesOn(t, { REDIS_URL: redis.url })
  const connections = async () => String(await redis.tell('CLIENT', 'LIST')).trim().split('\n').length
  t.equal(await connections(), 3, 'one of each instance, and that of the test')
  await instances[1].app.close()
  await service.app.close()
  await until(async () => await connections() === 1)
})
