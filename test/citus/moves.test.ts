// runs: Citus; 60 s
import { setTimeout as pause } from 'node:timers/promises'
import postgres from 'postgres'
import t from 'tap'
import { startIsolatedApp } from '../helpers/app.ts'
import { useOwnCitus } from '../helpers/citus.ts'
import { lostAtRest, watched } from '../helpers/faults.ts'
import { command } from '../helpers/process.ts'
import { makeLevels, mix, patient, random } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

t.setTimeout(500_000)

const ORGANIZATIONS = 3
const CLIENTS = 4
/** Maximum pause of a client between two requests in milliseconds. */
const REST = 40

/** Repeats a step up to three times if it waited too long for a lock. */
async function insist<T> (work: () => Promise<T>, clean: () => Promise<unknown>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await work()
    } catch (error) {
      if (attempt === 4 || !String(error).includes('lock timeout')) throw error
      await clean()
    }
  }
}

const { nodes } = await useOwnCitus(t)
const workers = nodes.slice(1).map(({ url }) => new URL(url))

t.test('an organization moves to another worker, and shards are rebalanced, under load: nothing is lost', async (t) => {
  // This test has its own database, because it moves all organizations between nodes.
  const service = await startIsolatedApp(t)
  const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
  const url = service.env.DATABASE_URL!
  const admin = postgres(url, { max: 1, onnotice: () => {} })
  t.teardown(() => admin.end({ timeout: 2 }))
  const tenants = await Promise.all(Array.from({ length: ORGANIZATIONS }, async () => {
    const caller = await service.organization()
    const watch = watched(address, caller)
    return { caller, watch, levels: await makeLevels(patient(watch.send), 'orbit', ['live', 'test']) }
  }))

  const over = new AbortController()
  const next = random(27)
  const statuses = new Map<number | undefined, number>()
  const working = Promise.all(tenants.flatMap(({ watch, levels }) => {
    const seen: number[] = []
    return Array.from({ length: CLIENTS }, async () => {
      while (!over.signal.aborted) {
        const { reply } = await mix(watch.send, levels, next, seen)
        statuses.set(reply?.status, (statuses.get(reply?.status) ?? 0) + 1)
        const version = Number(reply?.body?.data?.version)
        if (version > 0) seen.push(version)
        await pause(next() * REST)
      }
    })
  }))
  await pause(500)
  // Citus drops former shards and the shards of a failed move when no transaction uses them any more. The next move can
  // start only after that.
  const clean = () => until(async () => {
    await admin`CALL citus_cleanup_orphaned_resources()`
    const left = await admin`SELECT object_name FROM pg_dist_cleanup`
    return left.length === 0
  }, { every: 200, within: 120_000 })
  const step = async <T>(name: string, work: () => Promise<T>) => {
    const began = performance.now()
    // Repeats a move that waited too long for a lock, like the operator.
    const result = await insist(work, clean).catch((error: unknown) => {
      over.abort()
      throw error
    })
    t.comment(`${name}: ${Math.round(performance.now() - began)} ms`)
    return result
  }

  // Isolates the organization in a separate shard, and then moves this shard to the other worker and back.
  const { organization } = tenants[0]!.caller
  const [isolated] = await step('isolate', () => admin`
    SELECT isolate_tenant_to_new_shard('organization_counters', ${organization}::char(26), 'CASCADE', 'block_writes') AS shard`)
  const portOf = async () => {
    const [row] = await admin`SELECT nodeport FROM pg_dist_placement JOIN pg_dist_node USING (groupid)
      WHERE shardid = ${isolated!.shard}`
    return String(row!.nodeport)
  }
  for (let i = 0; i < 2; i++) {
    const from = await portOf()
    const to = workers.find(({ port }) => port !== from)!.port
    await step('move', () => admin`SELECT citus_move_shard_placement(
      ${isolated!.shard}, '127.0.0.1', ${from}, '127.0.0.1', ${to}, 'force_logical')`)
    t.equal(await portOf(), to, 'the organization moved')
    await step('clean', clean)
  }
  // Moves all shards from one worker to the other, and back.
  const [first] = workers
  await step('drain', () => admin`SELECT citus_drain_node('127.0.0.1', ${first!.port}, 'block_writes')`)
  await step('clean', clean)
  await admin`SELECT citus_set_node_property('127.0.0.1', ${first!.port}, 'shouldhaveshards', true)`
  await step('rebalance', () =>
    admin`SELECT rebalance_table_shards('organization_counters', shard_transfer_mode => 'force_logical')`)
  await pause(500)
  over.abort()
  await working

  t.comment(`statuses: ${JSON.stringify([...statuses])}`)
  for (const { watch } of tenants) {
    t.ok(watch.acknowledged() > 50, `${watch.acknowledged()} changes were acknowledged`)
    t.strictSame(watch.outside, [], 'no response is outside of the contract')
  }
  await lostAtRest(t, { env: service.env, database: { url }, command, tenants })
})
