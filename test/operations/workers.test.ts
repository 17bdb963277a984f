// runs: PostgreSQL; 15 s
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import { Agent, request } from 'node:http'
import { connect as connectSocket, createServer, type AddressInfo } from 'node:net'
import t from 'tap'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import {
  commonCounters, countAtSupervisor, createCounters, shareCounters, workerCounters, type Counted
} from '../../src/http/limits/counters.ts'
import { createChannel, type Channel } from '../../src/telemetry/channel.ts'
import { standardLog } from '../../src/http/observability/log.ts'
import { freshDatabase } from '../helpers/app.ts'
import { IN_PROOFS, LONG } from '../helpers/long.ts'
import { namesOf, OF_WORKERS, samplesOf, valueOf } from '../helpers/metrics.ts'
import { beginServer, command, startServer, type Server } from '../helpers/process.ts'
import { until } from '../helpers/until.ts'
import { openWay } from '../helpers/way.ts'

// Several processes share a port. The test stops all other processes to find out which process responds.

const LIMIT = 30
const METRICS_TOKEN = 'a-token-for-the-metrics-alone'

const { database, url, drop } = await freshDatabase()
t.teardown(async () => {
  await database.close()
  await drop()
})
const onServer = { skip: url === undefined && 'runs on PostgreSQL' }
const env = { DATABASE_URL: url ?? '', MASTER_KEY: generateMasterKey().text, WORKERS: '2', DATABASE_POOL: '4' }

const workersOf = ({ child }: Pick<Server, 'child'>) =>
  spawnSync('ps', ['-o', 'pid=', '--ppid', String(child.pid)]).stdout.toString().split('\n').map(Number).filter(Boolean)
// Ignores an incomplete last line.
const linesOf = (server: Server) =>
  server.stdout().split('\n').slice(0, -1).filter((line) => line.startsWith('{')).map((line) => JSON.parse(line))

interface Heard { status: number | undefined, headers: Record<string, unknown> }

/** Sends a request on a new connection, or through an agent. */
function ask (server: Server, path: string, agent: Agent | false = false): Promise<Heard> {
  return new Promise((resolve, reject) => {
    request(server.address + path, { agent }, (answer) => {
      answer.resume().on('end', () =>
        resolve({ status: answer.statusCode, headers: answer.headers })).on('error', reject)
    }).on('error', reject).end()
  })
}

/** Starts a request whose headers are sent and whose body is not. */
async function halfway (server: Server) {
  const { port, hostname } = new URL(server.address)
  const socket = connectSocket(Number(port), hostname)
  let said = ''
  socket.setEncoding('utf8').on('data', (text: string) => { said += text }).on('error', () => {})
  const closed = once(socket, 'close')
  const body = JSON.stringify({ name: 'Orbit' })
  socket.write(`POST /api/v1/${server.first!.organization}/projects HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${server.first!.token}\r\n` +
    `Content-Type: application/json\r\nContent-Length: ${body.length}\r\nExpect: 100-continue\r\n\r\n`)
  await until(() => said.includes('100 Continue'))
  return {
    finish: async () => {
      socket.write(body)
      await closed
      return said
    }
  }
}

async function haveGone (pids: number[]) {
  const isThere = (pid: number) => {
    try {
      return process.kill(pid, 0)
    } catch {
      return false
    }
  }
  await until(() => !pids.some(isThere), { every: 20 })
}

t.test('workers share counters, know which caller is past a limit, and count alone if there is no reply', async (t) => {
  const seats: Channel[] = []
  const common = commonCounters(() => seats)
  const changes: boolean[] = []
  let isSilent = false
  let messages = 0
  const member = () => {
    const seat: Channel = createChannel((message) => {
      if (!isSilent) setImmediate(() => channel.receive(message))
      return true
    }, common)
    seats.push(seat)
    const own = createCounters()
    const channel: Channel = createChannel((message) => {
      if ('request' in message) messages++
      seat.receive(message)
      return true
    }, workerCounters(own))
    return shareCounters(countAtSupervisor(channel), {
      at: 'supervisor', timeout: 1_000, metrics: undefined, own, onChange: (reason) => changes.push(reason !== undefined)
    })
  }
  const members = [member(), member()]
  const count = (who: number, key = 'ip:a', most = 3): Promise<Counted> => members[who]!.count(['api', key, 60_000, most])
  const counted = await Promise.all([count(0), count(1), count(0)])
  t.same(counted.map(([count]) => count).sort(), [1, 2, 3])
  t.equal(new Set(counted.map(([, end]) => end)).size, 1, 'one window has one end')
  t.equal(messages, 2, 'what one of them counts in a turn is one message')
  const isPast = (who: number) => members[who]!.pastUntil('api', 'ip:a') > 0
  t.same([isPast(0), isPast(1)], [false, false])
  t.equal((await count(0))[0], 4)
  await until(() => isPast(1))
  t.same([isPast(0), isPast(1)], [true, true], 'the other one was told')
  t.equal((await count(1, 'ip:b'))[0], 1)

  const giveBack = (who: number, key: string, end: number) => members[who]!.count(['api', key, 60_000, 3, end])
  const [, end] = await count(1, 'ip:e')
  await count(0, 'ip:e')
  await giveBack(1, 'ip:e', end)
  t.strictSame(await count(0, 'ip:e'), [2, end], 'what one gives back is there for the other')
  await giveBack(0, 'ip:e', end + 1)
  t.strictSame(await count(1, 'ip:e'), [3, end], 'in its own window only')

  t.equal((await count(0, 'ip:d'))[0], 1)
  isSilent = true
  t.same((await Promise.all([count(0), count(0)])).map(([count]) => count > 3), [true, true], 'by itself, and still past')
  t.equal((await count(0, 'ip:d'))[0], 2, 'from what it heard last')
  t.same(changes, [true], 'said once')
  await giveBack(0, 'ip:d', (await count(0, 'ip:d'))[1])
  t.equal((await count(0, 'ip:d'))[0], 3, 'and gives back by itself')
  isSilent = false
  await until(() => changes.length >= 2, { every: 50, again: () => count(0, 'ip:c') })
  await giveBack(0, 'ip:f', 0)
  t.equal((await count(0))[0], 5 + 2, 'together again, with what was sent and not answered')
})

t.test('when processes share a log, each write is of whole lines and no larger than a pipe takes atomically', async (t) => {
  const { write } = fs
  const { isTTY } = process.stdout
  const pieces: string[] = []
  const lines = Array.from({ length: 500 }, (_, i) => `${JSON.stringify({ i, text: 'ü'.repeat(i % 300) })}\n`)
  process.stdout.isTTY = false
  fs.write = ((fd: number, text: string, ...more: unknown[]) => {
    if (fd !== 1) return (write as (...all: unknown[]) => void)(fd, text, ...more)
    pieces.push(text)
    const done = more.at(-1) as (error: null, bytes: number) => void
    setImmediate(done, null, Buffer.byteLength(text))
  }) as typeof fs.write
  try {
    const log = standardLog(true)
    for (const line of lines) log.write(line)
    await until(() => pieces.join('').length >= lines.join('').length)
  } finally {
    fs.write = write
    process.stdout.isTTY = isTTY
  }
  t.equal(pieces.join(''), lines.join(''))
  t.same(pieces.filter((piece) => !piece.endsWith('\n') || Buffer.byteLength(piece) > 4096), [])
  t.ok(pieces.length < lines.length / 4, 'lines leave together')
})

t.test('two workers behind one port', onServer, async (t) => {
  const server = await startServer(t, { ...env, LOG_LEVEL: 'info', RATE_LIMIT_API: String(LIMIT), METRICS_TOKEN })
  t.equal(server.stdout().split('This is printed once').length, 2)

  await t.test('requests reach both', async (t) => {
    const [one, other] = workersOf(server) as [number, number]
    process.kill(one, 'SIGSTOP')
    const asked = Array.from({ length: 4 }, () => ask(server, '/readyz'))
    const answered: Heard[] = []
    const all = Promise.all(asked.map(async (answer) => answered.push(await answer)))
    await until(() => answered.length >= 3)
    // One of the four requests waits for the stopped process.
    process.kill(other, 'SIGSTOP')
    process.kill(one, 'SIGCONT')
    await all
    t.same(answered.map(({ status }) => status), [200, 200, 200, 200])
    process.kill(other, 'SIGCONT')
  })

  await t.test(`a limit of ${LIMIT} is ${LIMIT} over both, in one window`, async (t) => {
    const answers = await Promise.all(Array.from({ length: LIMIT + 10 }, () => ask(server, '/api/v1/organization')))
    const of = (name: string) => answers.map(({ headers }) => Number(headers[name]))
    t.equal(answers.filter(({ status }) => status === 401).length, LIMIT)
    t.equal(answers.filter(({ status }) => status === 429).length, 10)
    t.same(
      of('x-ratelimit-remaining').sort((a, b) => b - a).slice(0, LIMIT),
      Array.from({ length: LIMIT }, (_, i) => LIMIT - 1 - i)
    )
    t.equal(new Set(of('x-ratelimit-reset')).size, 1)
  })

  await t.test('a worker that is killed is replaced, and meanwhile the other one answers', async (t) => {
    const [killed, other] = workersOf(server) as [number, number]
    const listening = () => server.stdout().split('Server listening').length - 1
    const over = new AbortController()
    let cut = 0
    t.teardown(() => over.abort())
    const load = Promise.all(Array.from({ length: 4 }, async () => {
      const answers = []
      while (!over.signal.aborted) answers.push(await ask(server, '/readyz').catch(() => { cut++ }))
      return answers
    }))
    process.kill(killed, 'SIGKILL')
    await until(() => listening() >= 3, { every: 20, within: 120_000 })
    over.abort()
    const answers = (await load).flat()
    t.ok(answers.length > 4)
    t.same(answers.filter((answer) => answer !== undefined && answer.status !== 200), [])
    t.ok(cut <= 4, 'nothing is lost but what the killed one had')
    t.match(
      linesOf(server).filter(({ msg }) => msg === 'worker ended'),
      [{ level: 50, worker: killed, signal: 'SIGKILL', replaced_in: 0 }]
    )

    process.kill(other, 'SIGSTOP')
    const asked = Array.from({ length: 2 }, () => ask(server, '/readyz'))
    t.equal((await Promise.race(asked)).status, 200, 'the new one answers')
    process.kill(other, 'SIGCONT')
    await Promise.all(asked)
  })

  await t.test('whichever worker is asked tells of all, and of the one that ended', async (t) => {
    const scrape = async () => {
      const answer = await fetch(`${server.address}/metrics`, { headers: { authorization: `Bearer ${METRICS_TOKEN}` } })
      const text = await answer.text()
      t.equal(answer.status, 200, text.slice(0, 100))
      t.same(OF_WORKERS.filter((name) => !namesOf(text).includes(name)), [])
      return samplesOf(text)
    }
    const ready = { route: '/readyz', status: '200' }
    const before = await scrape()
    await Promise.all(Array.from({ length: 6 }, () => ask(server, '/readyz')))
    // The service logs and counts a request after it has sent the response.
    let now = await scrape()
    const grown = () => valueOf(now, 'strongroom_requests_total', ready) -
      valueOf(before, 'strongroom_requests_total', ready)
    await until(() => grown() >= 6, { every: 0, again: async () => { now = await scrape() } })
    t.equal(grown(), 6)
    t.same(['1', '2'].map((worker) => valueOf(now, 'strongroom_worker_up', { worker })), [1, 1])
    t.ok(['1', '2', 'supervisor'].every((worker) => valueOf(now, 'process_resident_memory_bytes', { worker }) > 0))
    t.equal(valueOf(now, 'strongroom_worker_ends_total', {}), 1)
    t.equal(now.filter(({ name }) => name === 'strongroom_late_events').length, 1, 'the database is asked once')
  })

  await t.test('a supervisor that hangs holds up no request, and the log says so once', async (t) => {
    const agent = new Agent({ keepAlive: true, maxSockets: 1 })
    t.teardown(() => agent.destroy())
    const limited = async () => (await ask(server, '/api/v1/organization', agent)).status
    const pastLimit = () => until(async () => await limited() === 429, { every: 0 })
    await pastLimit()
    process.kill(server.child.pid!, 'SIGSTOP')
    t.equal(await limited(), 429, 'counted by the worker itself, which knows who was past the limit')
    t.equal(await limited(), 429)
    process.kill(server.child.pid!, 'SIGCONT')
    await until(() => server.stdout().includes('across all workers again'), { every: 50, again: limited })
    await pastLimit()
    t.equal(linesOf(server).filter(({ msg }) => msg.startsWith('supervisor not responding')).length, 1)
  })

  await t.test('a signal to the whole group: what is under way is answered, all end, exit 0', async (t) => {
    const underWay = await Promise.all([halfway(server), halfway(server)])
    const workers = workersOf(server)
    for (const pid of [...workers, server.child.pid!]) process.kill(pid, 'SIGINT')
    await server.said('"msg":"stopping"')
    for (const { finish } of underWay) t.match(await finish(), /^HTTP\/1\.1 201 /m)
    t.equal((await server.ended).code, 0)
    await haveGone(workers)
    await t.rejects(ask(server, '/healthz'), { code: 'ECONNREFUSED' })
    t.equal(linesOf(server).filter(({ msg }) => msg === 'stopping').length, 1)
    t.equal(server.stderr(), '')
  })
})

t.test('workers whose supervisor is killed finish what is under way and end', onServer, async (t) => {
  const { database, url, drop } = await freshDatabase()
  t.teardown(async () => {
    await database.close()
    await drop()
  })
  const server = await startServer(t, { ...env, DATABASE_URL: url! })
  const workers = workersOf(server)
  t.equal(workers.length, 2)
  const { finish } = await halfway(server)
  server.child.kill('SIGKILL')
  await server.said('supervisor disconnected')
  t.match(await finish(), /^HTTP\/1\.1 201 /m)
  await haveGone(workers)
  await server.ended
})

// `keys/key-provider` tests the end of a start whose workers wait for a command.
t.test('RL-42 a signal ends a start whose workers wait for the database', { skip: onServer.skip || IN_PROOFS.skip }, async (t) => {
  // The proxy forwards no response of the database as soon as workers exist.
  let workers: number[] = []
  const way = await openWay(url!, () => {
    if (workers.length === 0) workers = workersOf(begun)
    if (workers.length > 0) way.trouble({ held: 'back' })
    return 0
  })
  t.teardown(() => way.close())
  const begun = beginServer(t, { ...env, DATABASE_URL: way.url, DATABASE_WAIT: '3600' })
  await begun.complained('Waiting up to 3600 s for the database at ')
  way.cut()
  t.match(await begun.stop(), { code: 0, stdout: '' })
  await haveGone(workers)
})

t.test('what no worker can start with ends the whole, as it ends one process', onServer, async (t) => {
  const taken = createServer().listen(0, '127.0.0.1')
  await once(taken, 'listening')
  t.teardown(() => taken.close())
  const PORT = String((taken.address() as AddressInfo).port)
  t.match(
    await command(['serve'], { ...env, PORT }),
    { code: 1, stdout: '', stderr: new RegExp(`^Cannot listen on 127\\.0\\.0\\.1:${PORT} \\(EADDRINUSE\\): [^\\n]+\\n$`) }
  )
  if (LONG) {
    const wrong = await command(['serve'], {
      ...env, MASTER_KEY: env.MASTER_KEY.replace(/:.*/, generateMasterKey().text.replace(/^[^:]*/, '')), PORT
    })
    t.match(wrong, { code: 1, stdout: '', stderr: /^Master key \S+ is wrong: [^\n]+\n$/ })
  }
  const embedded = await command(['serve'], { WORKERS: '2' })
  t.same(embedded, {
    code: 1,
    stdout: '',
    stderr: 'WORKERS is 2, but DATABASE_URL is not set; allowed: 1 with the embedded database, or a DATABASE_URL\n'
  })
})
