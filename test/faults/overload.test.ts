// runs: one database; fault; alone
import { get } from 'node:http'
import { setTimeout as pause } from 'node:timers/promises'
import t from 'tap'
import { judge, quantile, startUnderFire, type UnderFire } from '../helpers/bystanders.ts'
import { cycles, outsideContract, RECOVERED } from '../helpers/faults.ts'
import { hasPostgres } from '../helpers/postgres.ts'
import { repliesIn } from '../helpers/sockets.ts'
import { startStorm, type Asked, type Storm } from '../helpers/storm.ts'
import { makeLevels, patient, type Level, type Operation, type Reply } from '../helpers/traffic.ts'

// More clients than the service can serve, in a separate process. Each client sends its next request as soon as it has
// a response, like real clients of secrets. The test uses five times as many clients as keep the service busy, so four
// requests wait for each request that is served. A fixed rate of requests would be the same, because each connection
// has only one request at a time.

const SATURATED = 64
const TIMES = 5
const WARM = 3
const MEASURED = Math.max(3, cycles(10))
const STORM = Math.max(5, cycles(30))
const LEVELS = 20
const GOODPUT = 0.8
/** The maximum milliseconds by which a refusal may be later than a successful response. */
const REFUSED = 100
/** The maximum growth of the process in MiB; the garbage collector runs later. */
const GROWTH = 400

t.setTimeout(600_000)

t.test('RL-25 five times as many clients as it can serve: same throughput, short waits, and a full recovery', {
  skip: !hasPostgres() && 'PostgreSQL is not installed'
}, async (t) => {
  const fire = await startUnderFire(t) as UnderFire & { processes: [UnderFire['processes'][0]] }
  const { processes: [{ server: { address }, memory }], caller: { organization, token }, watch } = fire
  const levels: Level[] = []
  for (let i = 0; i < LEVELS; i++) {
    const [level] = await makeLevels(patient(watch.send), `load-${i}`, ['live']) as [Level]
    await patient(watch.send)('POST', '/secrets/store', { ...level, plaintext: 'VALUE=first' })
    levels.push(level)
  }
  const storm = startStorm(t)
  const outside: string[] = []
  let seed = 1

  async function load (clients: number, seconds: number) {
    const { begun, asked, answers } = await storm({
      address, organization, token, levels, clients, seconds, stores: 0.2, patience: 2 * RECOVERED, seed: seed++
    })
    for (const one of asked) if (one.plaintext !== undefined) watch.operations.push(operationOf(one))
    for (const { method, path, text } of answers) {
      for (const reply of repliesIn(text)) outside.push(...outsideContract(method, path, reply))
    }
    const good = asked.filter(({ status, answered }) => status === 200 && answered < begun + seconds * 1000)
    return { asked, good, rate: good.length / seconds }
  }

  /** Opens ten new connections a second and sends a request on each. Records how long each client waits. */
  function newcomers () {
    const waited: number[] = []
    const state = { isOver: false }
    const path = `/api/v1/${organization}/${Object.values(levels[0]!).join('/')}/secrets`
    const ask = () => new Promise<void>((resolve) => {
      const sent = performance.now()
      const end = (status?: number) => {
        waited.push(status === 200 ? performance.now() - sent : Infinity)
        resolve()
      }
      get(`${address}${path}`, { agent: false, headers: { authorization: `Bearer ${token}` } }, (answer) => {
        answer.resume().on('end', () => end(answer.statusCode))
      }).on('error', () => end())
    })
    const all = (async () => {
      const asked: Promise<void>[] = []
      while (!state.isOver) {
        asked.push(ask())
        await pause(100)
      }
      await Promise.all(asked)
    })()
    return async () => {
      state.isOver = true
      await all
      return waited
    }
  }

  await load(SATURATED, WARM)
  const capacity = await load(SATURATED, MEASURED)
  const before = memory()
  let most = before
  const watching = setInterval(() => { most = Math.max(most, memory()) }, 100)
  t.teardown(() => clearInterval(watching))
  const come = newcomers()
  const { asked, good, rate } = await load(TIMES * SATURATED, STORM)
  const waited = await come()
  clearInterval(watching)

  const share = rate / capacity.rate
  t.ok(share >= GOODPUT, `${rate} a second of ${capacity.rate}`)
  const latencies = good.map(latencyOf)
  const refused = asked.filter(({ status }) => status >= 300)
  t.ok(refused.every(({ status }) => status === 503 || status === 429))
  t.ok(refused.length === 0 || quantile(refused.map(latencyOf), 0.5) < quantile(latencies, 0.5) + REFUSED, 'refusals are quick')
  // Math.max cannot have so many arguments.
  const longest = asked.reduce((most, one) => one.isFirst ? most : Math.max(most, latencyOf(one)), 0)
  t.ok(asked.every(({ status }) => status > 0) && longest < RECOVERED, `the last one was answered after ${longest} ms`)
  // Node.js accepts one connection in each turn of its event loop. The test reports how long new connections wait, but
  // has no limit for that.
  t.ok(waited.every(Number.isFinite), 'and so was who came on a connection of their own')
  t.ok(most - before < GROWTH, `${before} MiB before, ${most} at most`)
  const figures = (all: number[]) => `p50 ${quantile(all, 0.5).toFixed()}, p99 ${quantile(all, 0.99).toFixed()} ms`
  await judge(t, fire, {
    fault: 'five times the clients (RL-25)',
    cycles: asked.length,
    outside: [...new Set(outside)],
    note: `${rate.toFixed()} a second of ${capacity.rate.toFixed()} (${(100 * share).toFixed()} %), ${figures(latencies)}; ` +
      `new connections ${figures(waited)}; ${refused.length} refused; ${(most - before).toFixed()} MiB more at most`
  })
})

const latencyOf = ({ sent, answered }: Storm['asked'][number]) => answered - sent

/** Converts a request to the type that `replay` needs. */
function operationOf ({ request, level, plaintext, sent, answered, status, version }: Asked): Operation {
  const reply: Reply = { status, body: { data: { version } }, headers: new Headers() }
  return {
    request,
    level,
    kind: 'store',
    plaintext: plaintext!,
    sent: sent - performance.timeOrigin,
    answered: answered - performance.timeOrigin,
    ...(status > 0 && { reply })
  }
}
