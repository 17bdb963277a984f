import { join } from 'node:path'
import t, { type Test } from 'tap'
import { generateMasterKey } from '../src/crypto/keyring.ts'
import { LONG } from './helpers/long.ts'
import { hasPostgres, startPostgres } from './helpers/postgres.ts'
import { command, scratchDirectory, startServer, type Server } from './helpers/process.ts'
import {
  client, look, makeLevels, mix, opener, openQueries, random, replay, store, type Level, type Operation, type Send
} from './helpers/traffic.ts'

// The server process itself is killed with SIGKILL while it writes, again and again on the same database. Whatever it
// had acknowledged has to be there; a request that was never answered may have taken effect or not.

const KILLS = LONG ? { postgres: 10, embedded: 10 } : { postgres: 10, embedded: 2 }
const WRITERS = 4

/** What is recorded of each kind of change. */
const ACTIONS: Record<Operation['kind'], string> = {
  store: 'secret.store',
  restore: 'secret.restore',
  delete: 'secret.delete',
  purge: 'version.purge',
  version: 'version.delete',
  rotate: 'key.rotate'
}

t.setTimeout(180_000)

async function killAgainAndAgain (
  t: Test, kills: number, env: Record<string, string>, database: { dir: string } | { url: string }
) {
  const start = () => startServer(t, { RATE_LIMIT_API: '0', ...env })
  let server = await start()
  const owner = server.first!
  let send = client(server.address, owner)
  // The last level is only ever stored to, so that every acknowledged write of it has to be in its history.
  const levels = await makeLevels(send, 'orbit', ['live', 'test'])
  await makeLevels(send, 'ledger', ['kept'])
  const kept: Level = { project: 'ledger', target: 'backend', environment: 'kept' }
  const operations: Operation[] = []
  const acknowledged = new Map<string, string>()
  const next = random(42)
  const open = await opener(send, kept.project)

  for (let kill = 1; kill <= kills; kill++) {
    const before = operations.length
    await writeUntilKilled(server, send, 3 + Math.floor(next() * 25))
    t.ok(operations.length > before, `kill ${kill} came in the middle of writes`)
    server = await start()
    t.equal(server.first, undefined, 'a restart makes nothing anew')
    send = client(server.address, owner)
    await nothingLost()
    t.equal(server.stderr(), '')
  }
  t.ok(operations.some(({ reply }) => reply === undefined), 'some outcomes were unknown')
  t.equal((await server.stop()).code, 0)

  t.match(await command(['audit', 'verify'], env), { code: 0 }, 'the events are a chain')
  const query = await openQueries(t, database)
  const recorded = new Map((await query(`SELECT action, count(*)::int FROM audit_events
    WHERE organization_id = '${owner.organization}' GROUP BY 1`)).map(({ action, count }) => [action, Number(count)]))
  for (const [kind, action] of Object.entries(ACTIONS)) {
    const sent = operations.filter((operation) => operation.kind === kind)
    const changed = sent.filter(({ reply }) => reply !== undefined && reply.status < 300).length
    const unknown = sent.filter(({ reply }) => reply === undefined).length
    const events = recorded.get(action) ?? 0
    t.ok(events >= changed && events <= changed + unknown, `${events} of ${action}: ${changed} answered, ${unknown} not`)
  }
  const { problems } = await replay(query, owner.organization, operations)
  t.same(problems, [], 'the database is what its audit events tell')

  async function writeUntilKilled (server: Server, send: Send, after: number) {
    const seen: number[] = []
    let done = 0
    await Promise.all(Array.from({ length: WRITERS }, async (_, writer) => {
      for (;;) {
        const plaintext = `VALUE=${operations.length}-${writer}`
        const operation = writer === 0 ? await store(send, kept, plaintext) : await mix(send, levels, next, seen)
        operations.push(operation)
        if (operation.reply === undefined) return
        if (operation.reply.status >= 500) throw new Error(`${operation.kind}: ${JSON.stringify(operation.reply.body)}`)
        const version = operation.reply.body?.data?.version
        if (writer === 0) acknowledged.set(version, plaintext)
        else if (version) seen.push(Number(version))
        if (++done === after) server.child.kill('SIGKILL')
      }
    }))
    await server.ended
  }

  async function nothingLost () {
    const { current, history } = await look(send, kept)
    const listed = new Set(history.map(({ id }) => id))
    t.same([...acknowledged.keys()].filter((id) => !listed.has(id)), [], 'no acknowledged write is lost')
    t.equal(current!.version, history[0]!.id, 'the newest version is the current one')
    const [newest] = await Promise.all(history.slice(0, 5).map(async ({ id }) => {
      const { body } = await send('GET', `/secrets/versions/${id}`)
      const content = open(body.data.content)
      if (acknowledged.has(id)) t.equal(content, acknowledged.get(id), `version ${id} holds what was written`)
      return content
    }))
    t.equal(newest, current!.content)
    for (const level of levels) await look(send, level)
  }
}

t.test(`RL-01 RL-02 I1 I2 I9 AU-12 kills (${KILLS.embedded}) in the middle of writes on the embedded database lose nothing`, async (t) => {
  const dir = join(scratchDirectory(t), 'data')
  await killAgainAndAgain(t, KILLS.embedded, { DATA_DIR: dir }, { dir: join(dir, 'postgres') })
})

t.test(`RL-01 I1 I2 I9 AU-12 kills (${KILLS.postgres}) in the middle of writes on PostgreSQL lose nothing`, {
  skip: !hasPostgres() && 'PostgreSQL is not installed'
}, async (t) => {
  const postgres = await startPostgres()
  t.teardown(postgres.close)
  await killAgainAndAgain(
    t, KILLS.postgres, { DATABASE_URL: postgres.url, MASTER_KEY: generateMasterKey().text }, { url: postgres.url }
  )
})
