import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { join } from 'node:path'
import { sql } from 'drizzle-orm'
import t from 'tap'
import { buildApp } from '../src/app.ts'
import { initialize } from '../src/commands/initialize.ts'
import { open } from '../src/commands/open.ts'
import { loadConfig } from '../src/config.ts'
import { sealBlob } from '../src/crypto/blob.ts'
import { generateMasterKey } from '../src/crypto/keyring.ts'
import type { Background } from '../src/vault/background.ts'
import { createRemovalWorker, PIECE } from '../src/vault/removals.ts'
import { freshDatabase, makeLevel, startApp, type Caller } from './helpers/app.ts'
import { clientKey } from './helpers/client.ts'
import { QUICK } from './helpers/costs.ts'
import { hasPostgres } from './helpers/postgres.ts'
import { scratchDirectory, startServer } from './helpers/process.ts'
import { beside } from './helpers/statements.ts'
import { miscounted } from './helpers/traffic.ts'

// A purge or delete of more than a request takes away: it holds at once, and the worker removes the rows afterwards.

const COPIES = 2 * PIECE + 400
/** What is recorded of a level that `fill` filled: its two writes, their copies and a rotation. */
const VERSIONS = COPIES + 3

const service = await startApp(t)
const { database, config, keyring } = service
// Only the workers that a test starts are at work.
const stopWorker = () => (service.app.removals as Background).stop()
await stopWorker()

const oldKey = await clientKey('first battery staple')
const newKey = await clientKey('second battery staple')

/** Makes a history long: so many copies of a version, as if each were a write of its own. */
async function copy (query: (text: string) => Promise<unknown>, organization: string, version: string, copies: number) {
  await query(`
    INSERT INTO secret_versions (organization_id, id, history_id, action, revision, key_version, sealed, size_bytes)
    SELECT organization_id, id + n, history_id, action, revision, key_version, sealed, size_bytes
    FROM secret_versions, generate_series(1, ${copies}) n WHERE organization_id = '${organization}' AND id = ${version}`)
  const bytes = `${copies} * (SELECT size_bytes FROM secret_versions
    WHERE organization_id = '${organization}' AND id = ${version})`
  await query(`UPDATE secrets SET version_count = version_count + ${copies}, version_bytes = version_bytes + ${bytes}
    WHERE organization_id = '${organization}' AND history_id = (SELECT history_id FROM secret_versions
      WHERE organization_id = '${organization}' AND id = ${version})`)
  await query(`UPDATE organization_counters SET next_version = next_version + ${copies},
    stored_bytes = stored_bytes + ${bytes} WHERE organization_id = '${organization}'`)
}

/**
 * A level of a client's whose history is long and waits under an older key; what a purge or delete of it is sent to.
 */
async function fill (project: string) {
  const owner = await service.organization()
  const call = (method: string, path: string, body?: unknown) =>
    owner.call(method, `/${owner.organization}${path}`, body)
  const at = await makeLevel(owner, { slug: project, ...oldKey.registration })
  const store = (key = oldKey) =>
    call('POST', '/secrets/store', { ...at, content: sealBlob(key.dataKey, 'A=1'), key_proof: key.proof })
  const first = (await store()).body.data.version as string
  await copy(service.sql, owner.organization, first, COPIES)
  const last = (await store()).body.data.version as string
  const [{ id }] = await service.sql(
    `SELECT id FROM secrets WHERE organization_id = '${owner.organization}'`
  ) as [{ id: string }]
  const { storage_mode: _, ...triple } = newKey.registration
  const rotated = await call(
    'POST', `/${project}/secrets/rotate-client-keys`,
    { secrets: [{ id, content: sealBlob(newKey.dataKey, 'A=1') }], ...triple }
  )
  if (rotated.status !== 200) throw new Error(rotated.text)
  return {
    owner,
    at,
    call,
    last,
    storeAgain: () => store(newKey),
    total: async () => (await call('POST', '/secrets/versions', at)).body.meta.total as number,
    pending: async () =>
      (await call('POST', `/${project}/secrets/re-encrypt-history/pending`)).body.meta.remaining as number,
    purge: async () =>
      (await call('POST', '/secrets/versions/purge', { ...at, confirmed: true })).body.data.purged_count as number
  }
}

/** Versions that are out of reach and still there. */
async function left ({ organization }: Caller): Promise<number> {
  const [row] = await service.sql(`
    SELECT count(*)::int AS count FROM secret_versions v JOIN histories h ON h.organization_id = v.organization_id AND h.id = v.history_id
    WHERE v.organization_id = '${organization}' AND h.removed_at IS NOT NULL`)
  return row!.count as number
}

async function allGone () {
  while ((await service.sql('SELECT id FROM histories WHERE removed_at IS NOT NULL LIMIT 1')).length > 0) {
    await new Promise((resolve) => { setTimeout(resolve, 20) })
  }
}

const warnings: string[] = []
const worker = () => createRemovalWorker({
  db: database.db,
  log: {
    info: () => {},
    warn: (_details, message) => { warnings.push(message) }
  }
})

/** Runs a worker of its own until nothing is left to remove. */
async function removeAll () {
  const one = worker()
  one.wake()
  await allGone()
  await one.stop()
}

const ways = {
  'a purge of a level': { path: '/secrets/versions/purge', body: { confirmed: true }, again: [] },
  'a purge of a project': { path: '/secrets/versions/purge', body: { confirmed: true, scope: 'project' }, again: [] },
  'a delete of an environment': {
    path: '/orbit/backend/live', again: [['/orbit/backend/environments', { name: 'Live' }]]
  },
  'a delete of a target': {
    path: '/orbit/backend',
    again: [['/orbit/targets', { name: 'Backend' }], ['/orbit/backend/environments', { name: 'Live' }]]
  },
  'a delete of a project': {
    path: '/orbit',
    again: [
      ['/projects', { name: 'Orbit', slug: 'orbit', ...newKey.registration }], ['/orbit/targets', { name: 'Backend' }],
      ['/orbit/backend/environments', { name: 'Live' }]
    ]
  }
} satisfies Record<string, { path: string, body?: object, again: [string, object][] }>

for (const [name, way] of Object.entries(ways)) {
  t.test(`${name} with more versions than a request removes holds at once, and its rows go afterwards`, async (t) => {
    const { owner, at, call, last, total, pending, storeAgain } = await fill('orbit')
    t.equal(await total(), VERSIONS)
    t.equal(await pending(), VERSIONS - 1, 'all but what the rotation recorded')
    t.equal((await call('GET', `/secrets/versions/${last}`)).status, 200)

    const isPurge = 'body' in way
    const answer = isPurge ? await call('POST', way.path, { ...at, ...way.body }) : await call('DELETE', way.path)
    t.equal(answer.status, isPurge ? 200 : 204, answer.text)
    if (isPurge) t.strictSame(answer.body.data, { purged_count: VERSIONS })
    const [event] = await service.sql(
      `SELECT details FROM audit_events WHERE organization_id = '${owner.organization}' ORDER BY seq DESC LIMIT 1`
    )
    t.match(event!.details, isPurge ? { purged_count: VERSIONS } : { documents: 1, versions: VERSIONS })
    t.equal(await left(owner), VERSIONS - PIECE, 'the rest is still in the table')
    t.equal((await service.sql(
      `SELECT id FROM secret_versions WHERE organization_id = '${owner.organization}' AND id = ${last}`
    )).length, 1, 'this one too')

    const unreachable = async () => {
      for (const [method, body] of [
        ['GET', undefined], ['POST', { content: sealBlob(newKey.dataKey, 'A=1'), key_proof: newKey.proof }],
        ['DELETE', { force: true }]
      ] as const) {
        const path = `/secrets/versions/${last}${method === 'POST' ? '/restore' : ''}`
        t.match(await call(method, path, body), { status: 404, body: { error: 'not_found' } }, `${method} ${path}`)
      }
    }
    await unreachable()
    // What has its name may be made again at once, and begins with nothing.
    for (const [path, body] of way.again) t.equal((await call('POST', path, body)).status, 201, path)
    t.equal(await total(), 0)
    t.equal(await pending(), 0)
    await unreachable()
    t.equal((await storeAgain()).status, 200)
    t.equal(await total(), 1)
    t.same(await miscounted(service.sql), [])

    await removeAll()
    t.equal(await left(owner), 0)
    t.equal(
      (await service.sql(`SELECT id FROM secret_versions WHERE organization_id = '${owner.organization}'`)).length, 1,
      'what was stored since stays'
    )
    t.equal(await total(), 1)
    t.same(await miscounted(service.sql), [])
  })
}

t.test('a removal that is stopped in the middle goes on with the next start, and writes go on meanwhile', async (t) => {
  const { owner, total, purge, storeAgain } = await fill('stopped')
  t.equal(await purge(), VERSIONS)
  const first = worker()
  const stopAfterPiece = (message: unknown) => {
    const { phase, text } = message as { phase: string, text: string }
    if (phase === 'after' && text.includes('DELETE FROM secret_versions v USING mine')) first.stop().catch(() => {})
  }
  subscribe('strongroom:statement', stopAfterPiece)
  first.start()
  while (await left(owner) === VERSIONS - PIECE) await new Promise((resolve) => { setTimeout(resolve, 5) })
  await first.stop()
  unsubscribe('strongroom:statement', stopAfterPiece)
  t.equal(await left(owner), VERSIONS - 2 * PIECE, 'one piece was taken')
  t.equal((await storeAgain()).status, 200)

  // As another process would, from what stands in the database.
  const again = await buildApp({ config, database, keyring, costs: QUICK, logStream: { write: () => {} } })
  again.removals.start()
  await allGone()
  await again.close()
  t.equal(await left(owner), 0)
  t.equal(await total(), 1)
  t.same(await miscounted(service.sql), [])
})

t.test('two instances at once remove each row once, and none of anybody else', async (t) => {
  const [mine, other] = [await fill('shared'), await fill('kept')]
  t.equal(await mine.purge(), VERSIONS)
  await service.sql('CREATE TABLE taken (organization_id char(26), id bigint)')
  await service.sql(`CREATE FUNCTION note_taken () RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO taken VALUES (OLD.organization_id, OLD.id); RETURN NULL; END'`)
  await service.sql(
    'CREATE TRIGGER note_taken AFTER DELETE ON secret_versions FOR EACH ROW EXECUTE FUNCTION note_taken()'
  )
  const workers = [worker(), worker()]
  for (const one of workers) one.start()
  await allGone()
  await Promise.all(workers.map((one) => one.stop()))
  const [{ rows, different, organizations }] = await service.sql(`
    SELECT count(*)::int AS rows, count(DISTINCT id)::int AS different, array_to_json(array_agg(DISTINCT organization_id)) AS organizations FROM taken`) as [
    Record<string, unknown>
  ]
  await service.sql('DROP TRIGGER note_taken ON secret_versions')
  t.same([rows, different, organizations], [VERSIONS - PIECE, VERSIONS - PIECE, [mine.owner.organization]])
  t.equal(await other.total(), VERSIONS)
  t.same(warnings, [], 'neither was interrupted')
  t.same(await miscounted(service.sql), [])
})

t.test('however many tokens were narrowed to a project, it is deleted with them, and each has its event', async (t) => {
  const owner = await service.organization()
  const at = await makeLevel(owner)
  const inOrganization = `organization_id = '${owner.organization}'`
  await service.sql(`
    INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, abilities, slices)
    SELECT '${owner.organization}', 'Narrowed', sha256(convert_to('${owner.organization}' || n, 'UTF8')), 'dotenv_', '{*}', jsonb_build_array(jsonb_build_object('project_id', p.id))
    FROM projects p, generate_series(1, 5000) n WHERE p.${inOrganization}`)
  const eventsOf = async (action: string) => (await service.sql(
    `SELECT seq::int FROM audit_events WHERE ${inOrganization} AND action = '${action}' ORDER BY seq`
  )).map(({ seq }) => Number(seq))
  t.equal((await owner.call('DELETE', `/${owner.organization}/${at.project}`, { confirmed: true })).status, 204)
  t.equal((await service.sql(`SELECT FROM api_tokens WHERE ${inOrganization}`)).length, 1, 'the owner\'s is left')
  const [deleted] = await eventsOf('project.delete')
  t.strictSame(
    await eventsOf('api-token.delete'), Array.from({ length: 5_000 }, (_, i) => deleted! + 1 + i),
    'numbered without a gap'
  )
})

// On the embedded database every start costs seconds: only where there is no other.
const elsewhere = process.env.TEST_DATABASE_URL === undefined && hasPostgres() && 'PostgreSQL shows it'

t.test('a server that is killed in the middle of a removal goes on with it when it starts again', {
  skip: elsewhere
}, async (t) => {
  const MANY = 12 * PIECE
  const own = process.env.TEST_DATABASE_URL === undefined ? undefined : await freshDatabase()
  if (own !== undefined) {
    await own.database.close()
    t.teardown(own.drop)
  }
  const where: Record<string, string> = own === undefined
    ? { DATA_DIR: join(scratchDirectory(t), 'data') }
    : { DATABASE_URL: own.url! }
  const env = { ...where, MASTER_KEY: generateMasterKey().text, LOG_LEVEL: 'info' }
  const opening = async <T>(
    work: (
      opened: Awaited<ReturnType<typeof open>>, query: (text: string) => Promise<Record<string, unknown>[]>
    ) => Promise<T>
  ): Promise<T> => {
    const opened = await open(loadConfig(env))
    const query = (text: string) =>
      beside(async () => await opened.database.db.execute(sql.raw(text)) as unknown as Record<string, unknown>[])
    return work(opened, query).finally(() => opened.database.close())
  }
  const versions = async () => opening(async (_opened, query) =>
    (await query('SELECT count(*)::int AS count FROM secret_versions'))[0]!.count as number)

  const { organization, token, at } = await opening(async (opened, query) => {
    const app = await buildApp({ ...opened, config: loadConfig(env), costs: QUICK, logStream: { write: () => {} } })
    const { organization: { id }, token } = (await initialize(
      opened, { organization: 'Nimbus', email: 'rosa@nimbus.example', plan: 'self-hosted' }
    ))!
    const call = async (method: string, path: string, payload?: unknown) => {
      const { statusCode: status, headers, payload: text } = await app.inject({
        method: method as 'GET',
        url: `/api/v1${path}`,
        payload: payload as object,
        headers: { authorization: `Bearer ${token}` }
      })
      return { status, headers, text, body: JSON.parse(text) as any }
    }
    const at = await makeLevel({ organization: id, token, call })
    const stored = await call('POST', `/${id}/secrets/store`, { ...at, plaintext: 'A=1' })
    await copy(query, id, stored.body.data.version as string, MANY)
    await app.close()
    return { organization: id, token, at }
  })

  const first = await startServer(t, env)
  const purged = await fetch(`${first.address}/api/v1/${organization}/secrets/versions/purge`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${token}`, 'content-type': 'application/json'
    },
    body: JSON.stringify({ ...at, confirmed: true })
  })
  await first.kill()
  t.equal(purged.status, 200)
  t.ok(await versions() > 0, 'it had not removed all of them')

  const second = await startServer(t, env)
  // Nobody asks it for anything.
  for (let look = 0; look < 3000 && !second.stdout().includes('purged and deleted versions removed'); look++) {
    await new Promise((resolve) => { setTimeout(resolve, 20) })
  }
  t.equal((await second.stop()).code, 0)
  t.equal(await versions(), 0)
})
