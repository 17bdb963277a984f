// runs: one database; fault; 110 s
import { connect } from 'node:net'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { standBy } from '../helpers/bystanders.ts'
import {
  cycles, lostAtRest, outsideContract, RECOVERED, recovers, report, watched, type AtRest, type Outcome
} from '../helpers/faults.ts'
import { hasPostgres, startPostgres } from '../helpers/postgres.ts'
import { beginServer, command, scratchDirectory, startServer, type Server } from '../helpers/process.ts'
import { repliesIn } from '../helpers/sockets.ts'
import { makeLevels, random, type Level, type Operation } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

// Processes that start with a directory in use, start before their database, or stop in the middle of work.

const SEED = 20261123
/** The maximum milliseconds between the signal and the exit of a service. */
const STOPPED = 10_000

t.setTimeout(900_000)

type Place = Pick<AtRest, 'env' | 'database'>

function embedded (t: Test): Place {
  const dir = join(scratchDirectory(t), 'data')
  return { env: { DATA_DIR: dir, RATE_LIMIT_API: '0' }, database: { dir: join(dir, 'postgres') } }
}

async function onPostgres (t: Test): Promise<Place & { server: Awaited<ReturnType<typeof startPostgres>> }> {
  const server = await startPostgres()
  t.teardown(server.close)
  const env = { DATABASE_URL: server.url, MASTER_KEY: generateMasterKey().text, RATE_LIMIT_API: '0' }
  return { env, database: server, server }
}

/** Creates a service with one organization and a level. The test stops and restarts this service. */
async function settle (t: Test, { env, database }: Place) {
  let server = await startServer(t, env)
  const caller = server.first!
  let watch = watched(server.address, caller)
  const [level] = await makeLevels(watch.send, 'orbit', ['live']) as [Level]
  return {
    caller,
    level,
    server: () => server,
    watch: () => watch,
    /** Returns the milliseconds until the service was ready. */
    async serves (starting: Promise<Server>, since: number) {
      server = await starting
      watch = watched(server.address, caller, watch)
      return recovers(watch.send, level, since)
    },
    async reports (
      { outside = [], ...outcome }: Omit<Outcome, 'acknowledged' | 'lost' | 'outside'> & { outside?: string[] }
    ) {
      if (server.child.exitCode === null && server.child.signalCode === null) t.equal((await server.stop()).code, 0)
      const { length: lost } = await lostAtRest(t, { env, database, command, tenants: [{ caller, watch }] })
      report(t, { acknowledged: watch.acknowledged(), lost, outside: [...watch.outside, ...outside], ...outcome })
    }
  }
}

t.test('RL-04: other starts on an embedded directory end, naming its process, which goes on; a kill frees it', async (t) => {
  const place = embedded(t)
  const service = await settle(t, place)
  let exits = 0
  let recovery = 0
  let slowest = 0
  const rounds = cycles(10)
  for (let round = 1; round <= rounds; round++) {
    const { child } = service.server()
    const beside = standBy(service.watch(), service.level)
    const began = performance.now()
    const others = await Promise.all([1, 2].map(() => beginServer(t, place.env).ended))
    slowest = Math.max(slowest, performance.now() - began)
    for (const other of others) {
      t.match(other, { code: 1, stdout: '' })
      t.match(other.stderr, new RegExp(`^[^\\n]*in use by process ${child.pid}\\b[^\\n]*\\n$`))
    }
    await beside.stop()
    t.same(Object.keys(beside.statuses), ['200'], 'no client noticed')
    if (child.exitCode !== null) exits++
    const killed = performance.now()
    await service.server().kill()
    recovery = Math.max(recovery, await service.serves(startServer(t, place.env), killed))
  }
  t.ok(slowest < RECOVERED, `two that started ended within ${Math.round(slowest)} ms`)
  await service.reports({
    fault: 'others start on an embedded directory', cycles: rounds, exits, recovery, note: `refused within ${Math.round(slowest)} ms`
  })
})

t.test('RL-42: a start waits for its database, says so, serves once it is there, or ends after DATABASE_WAIT', {
  skip: !hasPostgres() && 'PostgreSQL is not installed'
}, async (t) => {
  const { server: database, ...place } = await onPostgres(t)
  const service = await settle(t, place)
  const next = random(SEED)
  let recovery = 0
  let exits = 0
  const rounds = cycles(5)
  for (let round = 1; round <= rounds; round++) {
    await service.server().stop()
    await database.stop('fast')
    const begun = beginServer(t, place.env)
    await begun.complained('Waiting up to 60 s for the database')
    await pause(next() * 3_000)
    if (begun.child.exitCode !== null) exits++
    await database.start()
    recovery = Math.max(recovery, await service.serves(begun.serves(), performance.now()))
  }
  await service.server().stop()
  await database.stop('fast')
  const began = performance.now()
  t.match(await beginServer(t, { ...place.env, DATABASE_WAIT: '2' }).ended, {
    code: 1, stdout: '', stderr: /^Waiting up to 2 s for the database at .*\nThe database at .* cannot be used: .*\n$/
  })
  const waited = performance.now() - began
  t.ok(waited > 2_000 && waited < 2_000 + RECOVERED, `it gave up after ${Math.round(waited)} ms`)
  await database.start()
  await service.reports({
    fault: 'a start before the database', cycles: rounds, exits, recovery, note: `gave up 2 s after ${Math.round(waited)} ms`
  })
})

for (const [name, open] of [['embedded database', embedded], ['PostgreSQL', onPostgres]] as const) {
  t.test(`RL-10: a stop under load (${name}) answers open requests, refuses new ones, exits with 0`, {
    skip: name === 'PostgreSQL' && !hasPostgres() && 'PostgreSQL is not installed'
  }, async (t) => {
    const place = await open(t)
    const service = await settle(t, place)
    let exits = 0
    let recovery = 0
    let slowest = 0
    const outside: string[] = []
    const rounds = cycles(5)
    for (let round = 1; round <= rounds; round++) {
      const { level, caller } = service
      const server = service.server()
      const before = service.watch().operations.length
      const beside = standBy(service.watch(), level, 8, 5)
      const open = () => socketTo(t, server.address)
      const idle = [1, 2, 3].map(open)
      for (const socket of idle) socket.write('GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n')
      for (const socket of idle) await socket.replies(1)
      const asking = [1, 2, 3].map(open)
      for (const socket of asking) socket.write(`GET /api/v1/${caller.organization}/orbit HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${caller.token}\r\n`)
      const long = open()
      const operation: Operation = {
        request: `long-${round}`, level, kind: 'store', plaintext: `LONG=${round}`, sent: performance.now(), answered: Infinity
      }
      const body = JSON.stringify({ ...level, plaintext: operation.plaintext })
      long.write(`POST /api/v1/${caller.organization}/secrets/store HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${caller.token}\r\n` +
        `X-Request-Id: ${operation.request}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\nExpect: 100-continue\r\n\r\n`)
      await long.untilHeard('100 Continue')
      await pause(300)

      const told = performance.now()
      server.child.kill('SIGTERM')
      for (let i = 0; i < 3; i++) {
        await pause(1_000)
        asking[i]!.write('\r\n')
        const [reply] = await asking[i]!.replies(1)
        t.match(reply, { status: 503 }, `what is asked ${i + 1} s later is refused`)
        t.equal(reply!.headers.get('connection'), 'close')
        outside.push(...outsideContract('GET', '/orbit', reply!))
      }
      long.write(body)
      const [stored] = await long.replies(1)
      t.match(stored, { status: 200 }, 'what was under way is done')
      outside.push(...outsideContract('POST', '/secrets/store', stored!))
      service.watch().operations.push({ ...operation, reply: stored!, answered: performance.now() })
      const { code, stderr } = await server.ended
      slowest = Math.max(slowest, performance.now() - told)
      t.same([code, stderr], [0, ''])
      if (code !== 0) exits++
      await beside.stop()
      const unanswered = service.watch().operations.slice(before).filter(({ reply, sent }) =>
        reply === undefined && sent < told - ARRIVED)
      t.same(unanswered, [], 'what was asked before is answered')
      const version = stored!.body.data.version
      recovery = Math.max(recovery, await service.serves(startServer(t, place.env), performance.now()))
      t.equal((await service.watch().send('GET', `/secrets/versions/${version}`)).status, 200)
    }
    t.ok(slowest < STOPPED, `it had ended ${Math.round(slowest)} ms later`)

    const halfway = socketTo(t, service.server().address)
    halfway.write('POST /api/v1/cli/telemetry HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n')
    await halfway.untilHeard('100 Continue')
    service.server().child.kill('SIGTERM')
    await pause(500)
    t.equal(service.server().child.exitCode, null, 'it waits for what is under way')
    const again = performance.now()
    await service.server().stop()
    t.ok(performance.now() - again < 1_000, 'a second signal ends it at once')
    await service.reports({
      fault: `told to stop under load, ${name}`, cycles: rounds, exits, outside, recovery, note: `ended within ${Math.round(slowest)} ms`
    })
  })
}

/** The milliseconds after which the service has read the sent data. */
const ARRIVED = 100

function socketTo (t: Test, address: string) {
  const { port, hostname } = new URL(address)
  const socket = connect(Number(port), hostname).setEncoding('utf8').on('error', () => {})
  t.teardown(() => socket.destroy())
  let heard = ''
  socket.on('data', (text: string) => { heard += text })
  const enough = async (isEnough: () => boolean) => {
    await until(() => isEnough() || socket.closed, { every: 1 })
    if (!isEnough()) throw new Error(`it was closed after ${JSON.stringify(heard)}`)
  }
  return {
    write: (text: string) => { socket.write(text) },
    untilHeard: (text: string) => enough(() => heard.includes(text)),
    async replies (count: number) {
      const all = () => repliesIn(heard.replace(/HTTP\/1.1 100 Continue\r\n\r\n/, ''))
      await enough(() => all().length >= count)
      return all()
    }
  }
}
