import { setTimeout as pause } from 'node:timers/promises'
import postgres from 'postgres'
import type { Test } from 'tap'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { command, startServer } from './process.ts'
import {
  client, makeLevels, mix, random, replay, statuses, times, type Operation, type Reply, type Send
} from './traffic.ts'

const WRITING = 3

interface Exchange {
  /** What else happens while two of the release before serve, and these new ones are to come. */
  meanwhile?: (env: Record<string, string>) => Promise<void>
  /** Sees each answer of a new one. */
  check?: (method: string, path: string, reply: Reply) => void
}

/**
 * Two of the release before serve on an empty database, are joined by two of this one, and leave, one after the other,
 * under load: no request fails, and no write is lost. Answers how many were acknowledged, and the slowest of all.
 */
export async function exchangeReleases (
  t: Test, url: string, older: string, { meanwhile, check = () => {} }: Exchange = {}
): Promise<{ acknowledged: number, slowest: number }> {
  const env = {
    DATABASE_URL: url,
    MASTER_KEY: generateMasterKey().text,
    RATE_LIMIT_API: '0',
    RATE_LIMIT_KEY_ROTATION: '0',
    RATE_LIMIT_LONG_OPERATIONS: '0'
  }
  const old = [await startServer(t, env, older)]
  const first = old[0]!.first!
  old.push(await startServer(t, env, older))

  // As a proxy in front of them does it: who is exchanged is sent nothing more, and then is told to stop.
  let addresses = old.map(({ address }) => address)
  let turn = 0
  let slowest = 0
  const send: Send = async (...request) => {
    const address = addresses[turn++ % addresses.length]!
    const began = performance.now()
    const reply = await client(address, first)(...request)
    slowest = Math.max(slowest, performance.now() - began)
    if (old.every((one) => one.address !== address)) check(request[0], request[1], reply)
    return reply
  }
  const levels = await makeLevels(send, 'orbit', ['live', 'beta'])
  const operations: Operation[] = []
  const read: Reply[] = []
  const load = { running: true }
  const seen: number[] = []
  const running = Promise.all([
    ...times(WRITING, async (writer) => {
      // No rotations, beside which whoever writes may be told to come again, and nothing that is taken for good, of
      // which the release before may leave something else.
      const all = random(writer)
      const next = () => 0.02 + all() * 0.8
      while (load.running) {
        const operation = await mix(send, levels.slice(0, 2), next, seen)
        operations.push(operation)
        const { version } = operation.reply?.body?.data ?? {}
        if (typeof version === 'string') seen.push(Number(version))
      }
    }),
    ...['/orbit/backend/live/secrets?decrypt=true', '/projects', '/organization'].map(async (path) => {
      while (load.running) read.push(await send('GET', path === '/organization' ? '//api/v1/organization' : path))
    })
  ])
  const after = async (some: number) => {
    const enough = operations.length + some
    while (operations.length < enough) await pause(20)
  }

  await after(100)
  await meanwhile?.(env)
  const fresh = []
  for (const leaving of old) {
    fresh.push(await startServer(t, env))
    addresses.push(fresh.at(-1)!.address)
    await after(100)
    addresses = addresses.filter((address) => address !== leaving.address)
    await after(30)
    t.equal((await leaving.stop()).code, 0)
  }
  await after(100)
  load.running = false
  await running

  t.strictSame(operations.filter(({ reply }) => reply === undefined || reply.status >= 500), [])
  t.same(statuses(read), [200])
  const sql = postgres(url, { max: 1, fetch_types: false, onnotice: () => {} })
  t.teardown(() => sql.end({ timeout: 1 }))
  const { problems } = await replay((query) => sql.unsafe(query), first.organization, operations)
  t.same(problems, [])
  for (const { stdout, stderr } of [...old, ...fresh]) t.notMatch(stdout() + stderr(), /"level":[456]0/)
  const [found] = await sql`SELECT count(*)::int AS n FROM audit_events WHERE action = 'integrity.violation'`
  t.equal(found!.n, 0, 'no row of either is a forged one to the other')
  t.match(await command(['audit', 'verify'], env), { code: 0 })
  for (const server of fresh) t.equal((await server.stop()).code, 0)
  return { acknowledged: operations.filter(({ reply }) => reply!.status < 300).length, slowest }
}
