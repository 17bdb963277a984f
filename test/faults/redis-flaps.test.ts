// runs: one database; fault
import { request, Agent } from 'node:http'
import t from 'tap'
import { judge, standBy, startUnderFire, type Process } from '../helpers/bystanders.ts'
import { cycles } from '../helpers/faults.ts'
import { samplesOf, valueOf } from '../helpers/metrics.ts'
import { hasPostgres } from '../helpers/postgres.ts'
import { hasRedis, startRedis } from '../helpers/redis.ts'
import { until } from '../helpers/until.ts'

// Two instances under load. The test repeatedly kills or suspends their Redis, and starts it again.

const LIMIT = 400
const CALLS = 1_000
const FLAPS = cycles(20)

const ALONE = 'Redis cannot count: each instance counts its limits by itself'
const TOGETHER = 'limits are counted over all instances again, in Redis'

t.setTimeout(600_000)

t.test('RL-24 RL-26 Redis comes and goes: limits are exact with it, per instance without it; nothing fails', {
  skip: !hasRedis() ? 'Redis is not installed (Debian: redis-server)' : !hasPostgres() && 'PostgreSQL is not installed'
}, async (t) => {
  const redis = await startRedis(t)
  const fire = await startUnderFire(t, {
    instances: 2, env: { REDIS_URL: redis.url, RATE_LIMIT_API: String(LIMIT), TRUST_PROXY: 'loopback' }
  })
  const { processes, watch, level, query } = fire
  const [one, other] = processes as [Process, Process]
  // The background requests must not reach the limits.
  await query("UPDATE plans SET api_per_minute = 1000000 WHERE name = 'self-hosted'")
  const agent = new Agent({ keepAlive: true, maxSockets: 100 })
  t.teardown(() => agent.destroy())
  const strange: string[] = []
  let addresses = 0

  /**
   * The number of requests below the limit. The requests run at the same time and come from an address without a token.
   */
  async function through (count: number, to: Process[], from = `10.0.${addresses >> 8}.${addresses++ & 255}`) {
    const statuses = await Promise.all(Array.from({ length: count }, (_, i) => new Promise<number>((resolve) => {
      const { address } = to[i % to.length]!.server
      request(`${address}/api/v1/organization`, { agent, headers: { 'x-forwarded-for': from } }, (answer) => {
        answer.resume().on('end', () => resolve(answer.statusCode!))
      }).on('error', () => resolve(0)).end()
    })))
    for (const status of statuses) if (status !== 401 && status !== 429) strange.push(`a call was answered with ${status}`)
    return statuses.filter((status) => status === 401).length
  }

  const ofRedis = (metrics: string, end = '') => valueOf(samplesOf(metrics), `strongroom_limits_without_redis${end}`, {})
  const alone = async () => (await Promise.all(processes.map(({ metrics }) => metrics()))).map((text) => ofRedis(text))
  const changes = async () => (await Promise.all(processes.map(({ metrics }) => metrics())))
    .reduce((sum, text) => sum + ofRedis(text, '_total'), 0)

  async function untilAll (state: 0 | 1) {
    const begun = performance.now()
    await until(async () => (await alone()).every((is) => is === state), {
      // An instance notices the state of Redis only when it counts a request.
      again: () => Promise.all(processes.map((process) => through(1, [process], '203.0.113.250')))
    })
    return performance.now() - begun
  }

  /**
   * Repeats a round until all instances counted in Redis during it. On a busy machine, a response of Redis may be late.
   */
  async function together (round: () => Promise<number>): Promise<number> {
    const [found] = await until(async () => {
      await untilAll(0)
      const before = await changes()
      const found = await round()
      return await changes() === before && [found] as const
    }, { every: 0, within: 120_000 })
    return found
  }

  let recovery = 0
  const beside = standBy(watch, level)
  for (let flap = 1; flap <= FLAPS; flap++) {
    t.equal(await together(() => through(CALLS, processes)), LIMIT, 'exact over both')
    const isFrozen = flap % 2 === 0
    if (isFrozen) redis.freeze()
    else await redis.stop()
    await untilAll(1)
    const from = `198.51.${flap}.1`
    t.equal(await through(LIMIT + 20, [one], from), LIMIT, 'by itself')
    t.equal(await through(LIMIT + 20, [other], from), LIMIT, 'and so does the other')
    if (isFrozen) redis.thaw()
    else await redis.start()
    recovery = Math.max(recovery, await untilAll(0))
    const ends = await redis.ends()
    t.ok(ends.size > 0)
    t.same([...ends].filter(([, left]) => left < 0), [], 'every key has an end')
  }
  await beside.stop()
  t.strictSame(Object.keys(beside.statuses), ['200'], 'unrelated clients noticed nothing')
  for (const { server } of processes) {
    const changesSaid = () => server.stdout().split('\n').filter((line) => line.startsWith('{'))
      .map((line) => JSON.parse(line)).filter(({ msg }) => msg === ALONE || msg === TOGETHER)
    // The log line can be written a moment later.
    await until(() => changesSaid().length >= 2 * FLAPS)
    const said = changesSaid()
    t.strictSame(said.map(({ msg }) => msg), said.map((_, i) => i % 2 === 0 ? ALONE : TOGETHER), 'each change is said once')
    t.ok(said.every(({ level }) => level === 40))
  }
  await judge(t, fire, { fault: 'Redis flaps (RL-24, RL-26)', cycles: FLAPS, outside: strange, recovery })
})
