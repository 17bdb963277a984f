// runs: one database; fault
import { readFileSync } from 'node:fs'
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import t from 'tap'
import { judge, quantile, standBy, startUnderFire, type UnderFire } from '../helpers/bystanders.ts'
import { cycles, outsideContract, RECOVERED } from '../helpers/faults.ts'
import { samplesOf, valueOf } from '../helpers/metrics.ts'
import { hasPostgres } from '../helpers/postgres.ts'
import { heard } from '../helpers/sockets.ts'

// Slow clients, clients that disconnect in the middle, and very many clients, while other clients send normal requests.

const SLOW = cycles(1_000)
const GONE = cycles(10_000)
const HELD = cycles(10_000)
/** The milliseconds within which a request must arrive completely (docs/operations/configure.md). */
const ARRIVED = 15_000
/** The maximum growth of a process in MiB: pools for later requests, and garbage that is not collected yet. */
const LEAKED = 100
const HELD_MEMORY = 150

const skip = !hasPostgres() && 'PostgreSQL is not installed'

t.setTimeout(600_000)
// The hard limit of open files. Node.js raises its own soft limit to it.
const files = Number(/Max open files +\d+ +(\d+)/.exec(readFileSync('/proc/self/limits', 'utf8'))?.[1])

const milliseconds = (latencies: readonly number[]) =>
  `p50 ${quantile(latencies, 0.5).toFixed(1)}, p99 ${quantile(latencies, 0.99).toFixed(1)} ms`

// The maximum latency of 99 % of the normal requests. A busy machine may be a few times slower than before the load.
const mostOf = (before: readonly number[]) => Math.max(200, 3 * quantile(before, 0.99))

async function beforehand ({ watch, level }: UnderFire): Promise<number[]> {
  const { stop, latencies } = standBy(watch, level)
  await pause(3_000)
  await stop()
  return latencies
}

function parts ({ processes: [process], caller, level }: UnderFire) {
  const { hostname, port } = new URL(process!.server.address)
  const head = (method: string, path: string, more = '') =>
    `${method} /api/v1/${caller.organization}${path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${caller.token}\r\n${more}`
  const withBody = (method: string, path: string, body: object) => {
    const text = JSON.stringify(body)
    const type = 'Content-Type: application/json\r\n'
    return { head: head(method, path, `${type}Content-Length: ${text.length}\r\n\r\n`), text }
  }
  return {
    process: process!,
    open () {
      const socket = connect(Number(port), hostname)
      return socket.setNoDelay(true).on('error', () => {})
    },
    read: head('GET', `/${Object.values(level).join('/')}/secrets`, '\r\n'),
    change: withBody('PATCH', `/${level.project}`, { description: 'changed by a client that left' }),
    store: withBody('POST', '/secrets/store', { ...level, plaintext: 'VALUE=never-arrives' })
  }
}

t.test('RL-16 a client that sends a byte a second is dropped in time, and no other client waits for it', { skip }, async (t) => {
  const fire = await startUnderFire(t)
  const { open, read, store } = parts(fire)
  const before = await beforehand(fire)
  const beside = standBy(fire.watch, fire.level)
  const outside: string[] = []
  const lasted = await Promise.all(Array.from({ length: SLOW }, async (_, i) => {
    const [method, path, begun, rest] = ([
      ['GET', '//', read.slice(0, 20), read.slice(20)],
      ['POST', '/secrets/store', store.head + store.text.slice(0, 5), store.text.slice(5)],
      ['POST', '/secrets/store', store.head.replace(/Content-Length: \d+/, 'Transfer-Encoding: chunked'), '1\r\n{\r\n'.repeat(99)]
    ] as const)[i % 3]!
    // Opens the connections one after the other, because this test does not measure the wait for a connection.
    await pause(i)
    const socket = open()
    await once(socket, 'connect')
    const since = performance.now()
    const answers = heard(socket)
    socket.write(begun)
    let at = 0
    const drip = setInterval(() => { socket.write(rest[at++ % rest.length]!) }, 1_000)
    for (const reply of await answers) outside.push(...outsideContract(method, path, reply))
    clearInterval(drip)
    return performance.now() - since
  }))
  await beside.stop()
  const longest = Math.max(...lasted)
  t.ok(longest < ARRIVED + RECOVERED, `the last one was dropped after ${Math.round(longest)} ms`)
  t.strictSame(Object.keys(beside.statuses), ['200'])
  t.ok(quantile(beside.latencies, 0.99) < mostOf(before), `others: ${milliseconds(beside.latencies)}`)
  await judge(t, fire, {
    fault: 'clients of a byte a second (RL-16)',
    cycles: SLOW,
    outside: [...new Set(outside)],
    note: `others ${milliseconds(beside.latencies)}, before ${milliseconds(before)}; ` +
      `dropped after ${(Math.min(...lasted) / 1000).toFixed(1)} to ${(longest / 1000).toFixed(1)} s`
  })
})

t.test('RL-12 RL-13 clients that go away in the middle leave no transaction, no connection and no memory', { skip }, async (t) => {
  const fire = await startUnderFire(t)
  const { process, open, read, change, store } = parts(fire)
  const outside: string[] = []
  const written = (socket: Socket, text: string) => new Promise<void>((resolve) => socket.write(text, () => resolve()))
  const ways: ((socket: Socket) => Promise<void>)[] = [
    // Disconnects in the middle of the body.
    async (socket) => {
      await written(socket, store.head + store.text.slice(0, 20))
      socket.resetAndDestroy()
    },
    async (socket) => {
      const answers = heard(socket)
      socket.end(store.head + store.text.slice(0, 20))
      for (const reply of await answers) outside.push(...outsideContract('POST', '/secrets/store', reply))
    },
    // Disconnects before the response.
    async (socket) => {
      await written(socket, change.head + change.text)
      socket.resetAndDestroy()
    },
    async (socket) => {
      const answers = heard(socket)
      socket.end(change.head + change.text)
      for (const reply of await answers) outside.push(...outsideContract('PATCH', '/orbit', reply))
    },
    // Disconnects in the middle of the response, with further requests in the queue.
    async (socket) => {
      socket.write(read + read + read)
      await once(socket, 'data').catch(() => {})
      socket.resetAndDestroy()
    },
    // Disconnects in the middle of the headers.
    async (socket) => {
      await written(socket, read.slice(0, 40))
      socket.destroy()
    }
  ]
  let next = 0
  const goAway = (until: number) => Promise.all(Array.from({ length: 64 }, async () => {
    while (next < until) {
      const way = ways[next++ % ways.length]!
      const socket = open()
      const isThere = await once(socket, 'connect').then(() => true, () => false)
      if (isThere) await way(socket)
    }
  }))
  const settled = async () => {
    const isBusy = async () => valueOf(samplesOf(await process.metrics()), 'strongroom_requests_under_way', {}) > 1
    const begun = performance.now()
    while (await isBusy() && performance.now() - begun < 60_000) await pause(20)
    return { time: performance.now() - begun, memory: process.memory(), handles: process.handles() }
  }
  const beside = standBy(fire.watch, fire.level)
  await goAway(GONE / 4)
  const before = await settled()
  await goAway(GONE)
  const after = await settled()
  await beside.stop()
  t.strictSame(Object.keys(beside.statuses), ['200'])
  const [left] = await fire.query("SELECT count(*)::int FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'")
  t.equal(left!.count, 0, 'no transaction is left')
  t.ok(after.handles <= before.handles + 10, `${before.handles} open files, and then ${after.handles}`)
  t.ok(after.memory <= before.memory + LEAKED, `${before.memory} MiB, and then ${after.memory}`)
  await judge(t, fire, {
    fault: 'clients that go away (RL-12, RL-13)',
    cycles: GONE,
    outside: [...new Set(outside)],
    recovery: after.time,
    note: `${before.memory.toFixed()} MiB after a quarter, ${after.memory.toFixed()} at the end; others ${milliseconds(beside.latencies)}`
  })
})

t.test('RL-22 ten thousand connections are held and used, and no other client waits for them', {
  skip: skip || (files < HELD + 500 && `${HELD} connections need ulimit -Hn ${HELD + 500}, which is ${files}`)
}, async (t) => {
  const fire = await startUnderFire(t)
  const { process, open } = parts(fire)
  const ask = 'GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n'
  const quiet = await beforehand(fire)
  const before = { memory: process.memory(), handles: process.handles() }
  const sockets: Socket[] = []
  t.teardown(() => { for (const socket of sockets) socket.destroy() })
  const answered = async (socket: Socket) => {
    socket.write(ask)
    const [text] = await once(socket, 'data').catch(() => [''])
    return String(text).startsWith('HTTP/1.1 200 ')
  }
  const ofAll = async (some: () => Promise<boolean>[]) => {
    const good = await Promise.all(some())
    return good.filter(Boolean).length
  }
  let held = 0
  while (sockets.length < HELD) {
    const more = Array.from({ length: Math.min(250, HELD - sockets.length) }, () => open())
    sockets.push(...more)
    held += await ofAll(() => more.map(answered))
  }
  t.equal(held, HELD, 'each was answered')
  const memory = process.memory() - before.memory
  const beside = standBy(fire.watch, fire.level)
  await pause(5_000)
  await beside.stop()
  t.strictSame(Object.keys(beside.statuses), ['200'])
  t.ok(memory < HELD_MEMORY, `${memory} MiB for ${HELD} connections`)
  t.ok(quantile(beside.latencies, 0.99) < mostOf(quiet), `others: ${milliseconds(beside.latencies)}`)
  for (let at = 0; at < HELD; at += 250) {
    t.equal(await ofAll(() => sockets.slice(at, at + 250).map(answered)), Math.min(250, HELD - at), 'and each is answered again')
  }
  for (const socket of sockets) socket.destroy()
  const since = performance.now()
  while (process.handles() > before.handles + 10 && performance.now() - since < 60_000) await pause(20)
  await judge(t, fire, {
    fault: 'connections that are held (RL-22)',
    cycles: HELD,
    recovery: performance.now() - since,
    note: `${memory.toFixed()} MiB more; others ${milliseconds(beside.latencies)}, before ${milliseconds(quiet)}`
  })
})
