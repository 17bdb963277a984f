// runs: one database; fault
import postgres from 'postgres'
import t from 'tap'
import { lockCounters } from '../helpers/changers.ts'
import { cycles, recovers } from '../helpers/faults.ts'
import { fullConcurrency, judge, noLoad, SLOW, startPair, underLoad, untilMore, type Load } from '../helpers/pair.ts'
import { hasPostgres, startPostgres } from '../helpers/postgres.ts'
import { statuses, times, type Reply } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

// All requests wait for the database, because another transaction locks a row or because the database is slow.

const POOL = 6
// More requests than connections and places in the queue.
const CROWD = 260
const skip = !hasPostgres() && 'PostgreSQL is not installed'

t.test('RL-06 all connections wait for locked rows: bounded 503, health and reads go on, full service after', {
  skip
}, async (t) => {
  const database = await startPostgres()
  t.teardown(database.close)
  const pair = await startPair(t, database.url, { DATABASE_POOL: String(POOL) })
  const { sends, changers, beacon } = pair
  const loads: Load[] = []
  let recovery = 0
  let health = 0
  const count = cycles(5)
  for (let cycle = 0; cycle < count; cycle++) {
    const { waiting, release } = await lockCounters(database.url)
    const load = noLoad()
    loads.push(load)
    const ask = async (server: number, n: number): Promise<Reply> => {
      const began = performance.now()
      const reply = await changers[n % changers.length]![server]!('PATCH', '/orbit', { description: 'waiting' })
      const ms = performance.now() - began
      if (ms > load.slowest.ms) load.slowest = { ms, of: `PATCH /orbit ${reply.status}` }
      return reply
    }
    const writes = sends.flatMap((_, server) => times(CROWD / 2, (n) => ask(server, n)))
    await until(async () => await waiting() >= changers.flat().length)
    for (const send of sends) {
      const began = performance.now()
      t.equal((await send('GET', '//healthz')).status, 200)
      health = Math.max(health, performance.now() - began)
      t.equal((await send('GET', '//readyz')).status, 200)
      t.equal((await send('GET', '/orbit/backend/live/secrets')).status, 200, 'a read needs no lock')
    }
    t.same(statuses(await Promise.all(writes)), [503])
    const released = performance.now()
    await release()
    recovery = Math.max(recovery, await recovers(sends, beacon, released))
    for (const send of sends) t.equal((await send('PATCH', '/orbit', { description: 'after' })).status, 200)
  }
  await fullConcurrency(pair, database.url)
  await judge(t, database.url, pair, loads, {
    fault: 'Pool exhausted', cycles: count, recovery, note: `health in ${Math.round(health)} ms`
  })
})

t.test('RL-08 statements that take too long are ended: bounded 503, reads go on, no transaction is left open', {
  skip
}, async (t) => {
  const database = await startPostgres()
  t.teardown(database.close)
  const pair = await startPair(t, database.url, { DATABASE_POOL: String(POOL) })
  const { sends, ways, beacon } = pair
  const outside = postgres(database.url, { max: 1, onnotice: () => {} })
  t.teardown(() => outside.end())
  await outside.unsafe(`CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_sleep(60); RETURN NEW; END'`)
  let recovery = 0
  const count = cycles(3)
  const loads: Load[] = []
  for (let cycle = 0; cycle < count; cycle++) {
    loads.push(await underLoad(pair, async (load) => {
      await untilMore(load.written)
      ways.forEach((way) => way.trouble({ delay: 100 }))
      await untilMore(load.read, { by: 3 })
      ways.forEach((way) => way.trouble({}))
      recovery = Math.max(recovery, await recovers(sends, beacon))
    }, { load: noLoad('slow', SLOW) }))
    await outside.unsafe('CREATE TRIGGER dawdle BEFORE UPDATE ON projects FOR EACH ROW EXECUTE FUNCTION dawdle()')
    const changes = sends.map((send) => send('PATCH', '/orbit', { description: 'slow' }))
    for (const send of sends) t.equal((await send('GET', '/orbit/backend/live/secrets')).status, 200)
    t.same(statuses(await Promise.all(changes)), [503])
    await outside.unsafe('DROP TRIGGER dawdle ON projects')
    recovery = Math.max(recovery, await recovers(sends, beacon))
    for (const send of sends) t.equal((await send('PATCH', '/orbit', { description: 'quick' })).status, 200)
  }
  await outside.unsafe('DROP FUNCTION dawdle()')
  await fullConcurrency(pair, database.url)
  await judge(t, database.url, pair, loads, { fault: 'Slow database', cycles: count, recovery })
})
