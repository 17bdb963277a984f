// runs: no database
import { setTimeout as pause } from 'node:timers/promises'
import postgres from 'postgres'
import t from 'tap'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { LONG } from '../helpers/long.ts'
import { hasPostgres, startPostgres } from '../helpers/postgres.ts'
import { startServer } from '../helpers/process.ts'
import { client, makeLevels, type Reply, type Send } from '../helpers/traffic.ts'

// The write queues of two instances on one PostgreSQL. No queue may block or starve the other.

t.setTimeout(120_000)

// The number of clients for each instance.
const CLIENTS = LONG ? 16 : 4

const skip = !hasPostgres() && 'PostgreSQL is not installed'
if (skip) {
  t.pass(skip)
  t.end()
} else {
  const database = await startPostgres()
  t.teardown(database.close)
  const sql = postgres(database.url, { max: 1, onnotice () {} })
  t.teardown(() => sql.end())
  const env = {
    DATABASE_URL: database.url,
    MASTER_KEY: generateMasterKey().text,
    RATE_LIMIT_API: '0',
    RATE_LIMIT_KEY_ROTATION: '0',
    RATE_LIMIT_LONG_OPERATIONS: '0',
    LOG_LEVEL: 'error'
  }
  const first = await startServer(t, env)
  const second = await startServer(t, env)
  const caller = first.first!
  const sends = [first, second].map(({ address }) => client(address, caller)) as [Send, Send]
  const levels = await makeLevels(sends[0], 'orbit', ['live', 'beta', 'local'])
  let stored = 0
  const store = (send: Send): Promise<Reply> =>
    send('POST', '/secrets/store', { ...levels[++stored % levels.length], plaintext: `A=${stored}` })

  /** Stores from several clients until the work is done. Returns the number of responses for each status. */
  async function whileStoring (send: Send, clients: number, work: () => Promise<unknown>) {
    const statuses: Record<string, number> = {}
    const state = { isOver: false }
    const loads = Array.from({ length: clients }, async () => {
      while (!state.isOver) {
        const { status } = await store(send)
        statuses[status] = (statuses[status] ?? 0) + 1
      }
    })
    await work()
    state.isOver = true
    await Promise.all(loads)
    return statuses
  }

  t.test('a process that stops inside of a transaction holds up its organization for a short time', async (t) => {
    const statuses = await whileStoring(sends[0], 8, async () => {
      let isInside = false
      for (let tries = 0; !isInside && tries < 500; tries++) {
        await pause(20)
        first.child.kill('SIGSTOP')
        // PostgreSQL first executes the statements that it has received.
        await pause(20)
        const [{ many }] = await sql`
          SELECT count(*)::int AS many FROM pg_stat_activity WHERE state = 'idle in transaction'` as unknown as [{ many: number }]
        isInside = many > 0
        if (!isInside) first.child.kill('SIGCONT')
      }
      t.ok(isInside, 'the process stopped between the two round trips of a transaction')
      const began = performance.now()
      t.equal((await store(sends[1])).status, 200)
      t.ok(performance.now() - began < 3_000, `${performance.now() - began} ms`)
      first.child.kill('SIGCONT')
      await pause(200)
    })
    const { 200: good = 0, 503: refused = 0, ...others } = statuses
    t.ok(good > 0)
    t.same(others, {}, 'a write whose transaction was ended is refused with 503, or was not affected')
    t.equal((await store(sends[0])).status, 200, 'the process goes on')
    t.ok(refused <= 8)
  })

  t.test('two instances that write into one organization both make progress', async (t) => {
    let other: Record<string, number> = {}
    const one = await whileStoring(sends[0], CLIENTS, async () => {
      other = await whileStoring(sends[1], CLIENTS, () => pause(LONG ? 2_000 : 400))
    })
    t.same([Object.keys(one), Object.keys(other)], [['200'], ['200']])
    const [less, more] = [one['200']!, other['200']!].sort((a, b) => a - b) as [number, number]
    t.ok(less * 5 > more, `${less} and ${more}`)
  })

  t.test('a long operation gets the lock of its project while two instances write to that project', async (t) => {
    const times: number[] = []
    const rotate = async () => {
      for (let n = 0; n < (LONG ? 6 : 2); n++) {
        const began = performance.now()
        const { status, body } = await sends[n % 2]!('POST', '/orbit/encryption-key/rotate', {})
        t.equal(status, 200, JSON.stringify(body))
        times.push(performance.now() - began)
      }
    }
    let other: Record<string, number> = {}
    const one = await whileStoring(sends[0], CLIENTS, async () => {
      other = await whileStoring(sends[1], CLIENTS, rotate)
    })
    t.ok(Math.max(...times) < 4_000, `${times.map(Math.round).join(', ')} ms, the re-encryption of three documents included`)
    t.same([Object.keys(one), Object.keys(other)], [['200'], ['200']])
  })
}
