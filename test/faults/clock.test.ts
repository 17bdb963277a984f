// runs: one database; fault; 100 s
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { cycles, misread, recovers, report, watched } from '../helpers/faults.ts'
import { judge, noLoad, startPair, underLoad, untilMore } from '../helpers/pair.ts'
import { hasPostgres, startPostgres } from '../helpers/postgres.ts'
import { command, scratchDirectory, startServer } from '../helpers/process.ts'
import { client, makeLevels, openQueries, replay, store, type Replayed, type Send } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

// The clocks of two instances jump under load, one alone or both together. Only the time of the database must count.

const HOUR = 3_600
const DAY = 24 * HOUR
/** The clock errors of the two instances in seconds, one pair for each jump. */
const JUMPS: [number, number][] = [
  [HOUR, HOUR], [-HOUR, -HOUR], [-DAY, -DAY], [0, 300], [300, 0], [-DAY, HOUR], [8 * DAY, -8 * DAY], [0, 0]
]
const LIFE = 3_000

const libraryOf = (folder: string) => join('/usr/lib', folder, 'faketime', 'libfaketime.so.1')
const library = readdirSync('/usr/lib').map(libraryOf).find(existsSync)

/** A clock that the test sets while another process uses it. Timers use the monotonic clock, which stays unchanged. */
function makeClock (t: Pick<Test, 'teardown'>) {
  const file = join(scratchDirectory(t), 'clock')
  const set = (seconds: number) => {
    writeFileSync(`${file}.next`, `${seconds < 0 ? '' : '+'}${seconds}`)
    renameSync(`${file}.next`, file)
  }
  set(0)
  return {
    set,
    env: {
      LD_PRELOAD: library!,
      FAKETIME_TIMESTAMP_FILE: file,
      FAKETIME_NO_CACHE: '1',
      FAKETIME_DONT_FAKE_MONOTONIC: '1',
      DONT_FAKE_MONOTONIC: '1'
    }
  }
}

function canSetClocks (): boolean {
  if (library === undefined) return false
  const after: (() => unknown)[] = []
  const { set, env } = makeClock({ teardown: (fn) => after.push(fn) })
  set(-DAY)
  const { stdout } = spawnSync(process.execPath, ['-p', 'Date.now()'], { env })
  for (const one of after) one()
  return Math.abs(Date.now() - DAY * 1_000 - Number(stdout)) < HOUR * 1_000
}

const leftOut = !canSetClocks() && 'libfaketime is not installed (Debian: faketime), or does not reach Node.js'

t.test('RL-15 clocks jump: expiry and retention follow the database; no client is locked out, nothing lost', {
  skip: leftOut || (!hasPostgres() && 'PostgreSQL is not installed')
}, async (t) => {
  const database = await startPostgres()
  t.teardown(database.close)
  const clocks = [makeClock(t), makeClock(t)] as const
  const pair = await startPair(
    t, database.url, { DEFAULT_PLAN: 'free' }, (server) => ({ env: clocks[server]!.env })
  )
  const { servers, sends, watch, organization, levels: [level], beacon } = pair
  const keys = `//api/v1/organizations/${organization}/api-keys`
  const ask = async (server: number) => fetch(`${servers[server]!.address}/api/oauth/token`, {
    method: 'POST', body: new URLSearchParams({ grant_type: 'refresh_token', refresh_token: 'x', client_id: 'dotenv-cli' })
  })
  const jumps = JUMPS.slice(0, cycles(JUMPS.length))
  let wrong = [0, 0]
  let recovery = 0

  const load = await underLoad(pair, async (load) => {
    for (const jump of jumps) {
      const name = `${jump.join(' s and ')} s`
      for (const server of servers.keys()) await until(async () => (await ask(server)).status === 429, { every: 0 })
      clocks.forEach(({ set }, i) => set(jump[i]!))
      recovery = Math.max(recovery, await recovers(sends, beacon))
      for (const server of servers.keys()) {
        if (jump[server] !== wrong[server]) t.equal((await ask(server)).status, 400, `${name}: a window of before is over`)
        const refused = await until(async () => {
          const answer = await ask(server)
          return answer.status === 429 && answer
        }, { every: 0 })
        t.ok(Number(refused.headers.get('retry-after')) <= 60, `${name}: and another one is a minute`)
      }
      wrong = jump

      const ends = Date.now() + LIFE
      const tokens: Send[] = []
      for (const send of sends) {
        const { status, body } = await send('POST', keys, {
          name: 'CI', abilities: ['project:read'], expires_at: new Date(ends).toISOString()
        })
        t.equal(status, 201, `${name}: an expiry lies in the future`)
        for (const { address } of servers) tokens.push(client(address, { organization, token: body.token }))
      }
      const used = async () => [...new Set(await Promise.all(tokens.map(async (send) =>
        (await send('GET', '/projects')).status)))]
      const before = await used()
      if (Date.now() < ends) t.same(before, [200], `${name}: none is refused early`)
      await pause(ends + 1_000 - Date.now())
      t.same(await used(), [401], `${name}: none is let in later than a second after its end`)

      for (const send of sends) {
        const { body } = await send('POST', '/secrets/versions', { ...level, per_page: 5 })
        for (const { id } of body.data) {
          t.equal((await send('GET', `/secrets/versions/${id}`)).status, 200, `${name}: none is past its retention`)
        }
      }
      await untilMore(load.written, { by: 3 })
    }
  }, {
    load: noLoad(),
    change: (send, levels, next) => store(send, levels[Math.floor(next() * levels.length)]!, `VALUE=${next()}`)
  })

  t.same(load.refused, [0, 0], 'nothing was refused')
  const listed: { id: string, attributes: { created_at: string } }[] = []
  for (let page = 1, last = 1; page <= last; page++) {
    const { body } = await watch.send('POST', '/secrets/versions', { ...level, page, per_page: 100 })
    listed.push(...body.data)
    last = body.meta.last_page
  }
  const ids = listed.map(({ id }) => Number(id))
  t.ok(ids.length > jumps.length)
  t.same(ids, [...ids].sort((a, b) => b - a), 'versions come by their ids')
  const made = listed.map(({ attributes }) => attributes.created_at)
  t.same(made, [...made].sort().reverse(), 'and were made in that order, by the time of the database')
  await judge(t, database.url, pair, [load], { fault: 'Clocks of instances', cycles: jumps.length, recovery })
})

t.test('RL-15 the clock jumps under the embedded database too: it serves, and nothing is lost', { skip: leftOut }, async (t) => {
  const dir = join(scratchDirectory(t), 'data')
  const { set, env: its } = makeClock(t)
  const env = { DATA_DIR: dir, LOG_LEVEL: 'error' }
  let server = await startServer(t, { ...env, ...its })
  const caller = server.first!
  const watch = watched(server.address, caller)
  const [level] = await makeLevels(watch.send, 'orbit', ['live'])
  const jumps = JUMPS.map(([jump]) => jump).slice(0, cycles(JUMPS.length))
  let recovery = 0
  for (const jump of jumps) {
    set(jump)
    recovery = Math.max(recovery, await recovers(watch.send, level!))
    for (let i = 0; i < 5; i++) {
      t.equal((await store(watch.send, level!, `VALUE=${jump}-${i}`)).reply?.status, 200, `${jump} s`)
      t.equal((await watch.send('GET', '/orbit/backend/live/secrets?decrypt=true')).status, 200, `${jump} s`)
    }
  }
  t.equal((await server.stop()).code, 0)
  let replayed: Replayed | undefined
  await t.test('what the tables and the audit tell', async (t) => {
    t.match(await command(['audit', 'verify'], env), { code: 0 })
    replayed = await replay(await openQueries(t, { dir: join(dir, 'postgres') }), caller.organization, watch.operations)
  })
  server = await startServer(t, env)
  const wrong = [...replayed!.problems, ...await misread(watched(server.address, caller, watch).send, replayed!)]
  t.same(wrong, [])
  report(t, {
    fault: 'Clock of the embedded database',
    cycles: jumps.length,
    acknowledged: watch.acknowledged(),
    lost: wrong.length,
    outside: watch.outside,
    exits: 0,
    recovery
  })
})
