// runs: one database; 25 s
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { join } from 'node:path'
import { sql } from 'drizzle-orm'
import t from 'tap'
import { TOKEN_LIMITS } from '../../schemas/tokens.ts'
import { buildApp } from '../../src/app.ts'
import { addClient, switchClient } from '../../src/commands/people/clients.ts'
import { initialize } from '../../src/commands/people/initialize.ts'
import { open } from '../../src/commands/common/open.ts'
import { addToken } from '../../src/commands/people/tokens.ts'
import { switchUser } from '../../src/commands/people/users.ts'
import { loadConfig } from '../../src/config.ts'
import { sealBlob } from '../../src/crypto/blob.ts'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { PIECE } from '../../src/db/callers/expired.ts'
import type { Background } from '../../src/jobs/background.ts'
import { createRemovalWorker } from '../../src/jobs/cleanup.ts'
import { DETAILS, freshDatabase, makeLevel, startIsolatedApp, type Caller } from '../helpers/app.ts'
import { onEachNode } from '../helpers/citus.ts'
import { clientKey } from '../helpers/client.ts'
import { QUICK } from '../helpers/costs.ts'
import { issuePair, makePerson } from '../helpers/people.ts'
import { LONG } from '../helpers/long.ts'
import { hasPostgres } from '../helpers/postgres.ts'
import { scratchDirectory, startServer } from '../helpers/process.ts'
import { beside } from '../helpers/statements.ts'
import { miscounted } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'
import { formIn, visitor } from '../helpers/visitor.ts'

// A purge or deletion of more rows than one request removes. It takes effect at once, and the worker removes the rows
// later.

const COPIES = 2 * PIECE + 400
/** The number of versions of a level after `fill`: two writes, their copies and a rotation. */
const VERSIONS = COPIES + 3

// This file has its own database, because it stops and starts the background workers, which work on all organizations.
const service = await startIsolatedApp(t)
const { database, config, keyring } = service
const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
// Only workers that a test starts may run.
const stopWorker = () => (service.app.removals as Background).stop()
await stopWorker()

const oldKey = await clientKey('first battery staple')
const newKey = await clientKey('second battery staple')

/** Makes a history long by copying a version many times, as if each copy were a separate write. */
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
 * Creates a client-managed level whose long history still has an older key. Returns the target of a purge or deletion.
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

/** The number of versions that are deleted but not removed yet. */
async function left ({ organization }: Caller): Promise<number> {
  const [row] = await service.sql(`
    SELECT count(*)::int AS count FROM secret_versions v JOIN histories h ON h.organization_id = v.organization_id AND h.id = v.history_id
    WHERE v.organization_id = '${organization}' AND h.removed_at IS NOT NULL`)
  return row!.count as number
}

async function allGone () {
  const removed = () => service.sql('SELECT id FROM histories WHERE removed_at IS NOT NULL LIMIT 1')
  await until(async () => (await removed()).length === 0, { every: 20, within: 120_000 })
}

const warnings: string[] = []
const worker = () => createRemovalWorker({
  db: database.db,
  log: {
    info: () => {},
    warn: (_details, message) => { warnings.push(message) }
  }
})

/** Runs a separate worker until no work is left. */
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
  t.test(`${name} with too many versions for one request holds at once; its rows go later`, async (t) => {
    const { owner, at, call, last, total, pending, storeAgain } = await fill('orbit')
    t.equal(await total(), VERSIONS)
    t.equal(await pending(), VERSIONS - 1, 'all but what the rotation recorded')
    t.equal((await call('GET', `/secrets/versions/${last}`)).status, 200)

    const isPurge = 'body' in way
    const answer = isPurge ? await call('POST', way.path, { ...at, ...way.body }) : await call('DELETE', way.path)
    t.equal(answer.status, isPurge ? 200 : 204, answer.text)
    if (isPurge) t.strictSame(answer.body.data, { purged_count: VERSIONS })
    const [event] = await service.sql(
      `SELECT ${DETAILS} FROM audit_events WHERE organization_id = '${owner.organization}' ORDER BY seq DESC LIMIT 1`
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
    // The caller can create the same name again at once, and the new resource is empty.
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
  await until(async () => await left(owner) !== VERSIONS - PIECE, { every: 5 })
  await first.stop()
  unsubscribe('strongroom:statement', stopAfterPiece)
  t.equal(await left(owner), VERSIONS - 2 * PIECE, 'one piece was taken')
  t.equal((await storeAgain()).status, 200)

  // Simulates another process, which has only the state in the database.
  const again = await buildApp({ config, database, keyring, costs: QUICK, logStream: { write: () => {} } })
  again.removals.start()
  await allGone()
  await again.close()
  t.equal(await left(owner), 0)
  t.equal(await total(), 1)
  t.same(await miscounted(service.sql), [])
})

t.test('two instances at once remove each row once, and no row of another organization', async (t) => {
  const [mine, other] = [await fill('shared'), await fill('kept')]
  t.equal(await mine.purge(), VERSIONS)
  await onEachNode(service.sql, 'CREATE TABLE taken (organization_id char(26), id bigint)')
  await service.sql(`CREATE FUNCTION note_taken () RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO taken VALUES (OLD.organization_id, OLD.id); RETURN NULL; END'`)
  await service.sql(
    'CREATE TRIGGER note_taken AFTER DELETE ON secret_versions FOR EACH ROW EXECUTE FUNCTION note_taken()'
  )
  const workers = [worker(), worker()]
  for (const one of workers) one.start()
  await allGone()
  await Promise.all(workers.map((one) => one.stop()))
  const rows = await onEachNode(service.sql, 'SELECT organization_id, id FROM taken')
  await service.sql('DROP TRIGGER note_taken ON secret_versions')
  await onEachNode(service.sql, 'DROP TABLE taken')
  const [different, organizations] = [
    new Set(rows.map(({ id }) => id)).size, [...new Set(rows.map(({ organization_id }) => organization_id))]
  ]
  t.same([rows.length, different, organizations], [VERSIONS - PIECE, VERSIONS - PIECE, [mine.owner.organization]])
  t.equal(await other.total(), VERSIONS)
  t.same(warnings, [], 'neither was interrupted')
  t.same(await miscounted(service.sql), [])
})

t.test('what ended with API tokens is looked for at once, also in the middle of a long removal of versions', async (t) => {
  const { purge } = await fill('behind')
  t.equal(await purge(), VERSIONS)
  const one = worker()
  let sent: string[] | undefined
  const watch = (message: unknown) => {
    const { phase, text } = message as { phase: string, text: string }
    const what = text.includes('DELETE FROM secret_versions v USING mine')
      ? 'versions'
      : text.includes('from "token_removals"') ? 'tokens' : undefined
    if (what === undefined) return
    if (phase === 'before') sent?.push(what)
    // The owner removes a member right after the first batch.
    if (phase === 'after' && what === 'versions' && sent === undefined) {
      sent = []
      one.wake()
    }
  }
  subscribe('strongroom:statement', watch)
  one.wake()
  await allGone()
  await one.stop()
  unsubscribe('strongroom:statement', watch)
  t.strictSame(sent?.slice(0, 2), ['tokens', 'versions'])
})

/** More tokens than one statement removes. Each operation that ends tokens removes only one batch of them. */
const TOKENS = LONG ? 20_000 : 2 * PIECE + 500

const asToken = (token: string) => (method: 'GET' | 'POST' | 'DELETE' | 'PUT', path: string, payload?: object) =>
  service.inject({
    method, url: `/api/v1${path}`, headers: { authorization: `Bearer ${token}` }, ...(payload && { payload })
  })

/** Runs a separate worker until `left` returns 0. */
async function removeUntil (left: () => Promise<number>) {
  const one = worker()
  one.wake()
  await until(async () => await left() === 0, { every: 20, within: 120_000, again: () => one.wake() })
  await one.stop()
}

t.test('a project with any number of narrowed tokens can be deleted; each token ends with its own event', async (t) => {
  const owner = await service.organization()
  const o = owner.organization
  const at = await makeLevel(owner)
  const { body: { token } } = await owner.call('POST', `/organizations/${o}/api-keys`, {
    name: 'Narrowed', abilities: ['*'], restrictions: [{ project: at.project }]
  })
  const level = `/${o}/${at.project}/${at.target}/${at.environment}`
  const reaches = async () => {
    const answers = [await asToken(token)('GET', `${level}/secrets`), await asToken(token)('GET', `/${o}/projects`)]
    return [...answers.map(({ status }) => status), answers[1]!.body.data?.length]
  }
  t.strictSame(await reaches(), [200, 200, 1])
  // The ids are smaller than those of the service, so the service removes these tokens first.
  await service.sql(`
    INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, token_suffix, abilities, slices)
    SELECT organization_id, name, sha256((id || '/' || n)::bytea), token_prefix, token_suffix, abilities, slices
    FROM api_tokens, generate_series(1, ${TOKENS}) n WHERE organization_id = '${o}' AND slices IS NOT NULL`)
  const tokens = async () =>
    (await service.sql(`SELECT FROM api_tokens WHERE organization_id = '${o}' AND slices IS NOT NULL`)).length
  const eventsOf = async (action: string) => await service.sql(`SELECT seq::int, actor_type, details FROM audit_events
    WHERE organization_id = '${o}' AND action = '${action}' ORDER BY seq`) as { seq: number, actor_type: string }[]
  t.equal((await owner.call('DELETE', `/${o}/${at.project}`, { confirmed: true })).status, 204)
  t.equal(await tokens(), TOKENS + 1 - PIECE, 'one statement takes a piece of them')
  t.strictSame(await reaches(), [404, 200, 0], 'and what is left reaches nothing')
  const [deleted] = await eventsOf('project.delete')
  const withIt = (await eventsOf('api-token.delete')).map(({ seq }) => seq)
  t.strictSame(withIt, Array.from({ length: PIECE }, (_, i) => deleted!.seq + 1 + i), 'numbered without a gap')

  await removeUntil(async () => (await service.sql(`SELECT FROM token_removals WHERE organization_id = '${o}'`)).length)
  t.equal(await tokens(), 0)
  t.strictSame((await reaches()).slice(0, 2), [401, 401])
  const all = await eventsOf('api-token.delete')
  t.equal(all.length, TOKENS + 1)
  t.match(all.at(-1), { actor_type: 'system', details: { with: 'level' } })
  t.equal((await owner.call('GET', `/${o}/projects`)).status, 200, 'the owner\'s stays')
})

// On the embedded database every start takes seconds, so this runs there only without PostgreSQL.
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
    const opened = await open(loadConfig(env), { creates: true })
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
  // The removal must not depend on requests of clients.
  await until(() => second.stdout().includes('purged and deleted versions removed'), { every: 20, within: 120_000 })
  t.equal((await second.stop()).code, 0)
  t.equal(await versions(), 0)
})

/** A person with two valid API tokens, which are newer than many other tokens of the same person and grant. */
async function withTokens (many = TOKENS) {
  const owner = await service.organization()
  const o = owner.organization
  const rosa = await makePerson(service, { [o]: 'administrator' })
  const { access, grant } = await issuePair(service, rosa, ['api-token:create', 'api-token:update', 'project:read'])
  const keys = `/organizations/${o}/api-keys`
  const expires_at = new Date(Date.now() + 3_600_000).toISOString()
  const make = () => asToken(access)('POST', keys, { name: 'Theirs', abilities: ['project:read'], expires_at })
  const made = [await make(), await make()].map(({ body }) => body as { token: string, api_key: { id: string } })
  await service.sql(`
    INSERT INTO api_tokens (id, organization_id, name, token_hash, token_prefix, token_suffix, abilities, user_id, grant_id, mac)
    OVERRIDING SYSTEM VALUE
    SELECT id - 1000000000::bigint * n, organization_id, name, sha256((id || '/' || n)::bytea), token_prefix, token_suffix, abilities,
      user_id, grant_id, mac
    FROM api_tokens, generate_series(1, ${many}) n WHERE organization_id = '${o}' AND id = ${made[0]!.api_key.id}`)
  return {
    owner,
    o,
    rosa,
    grant,
    access,
    keys,
    expires_at,
    made,
    make,
    alive: async () => {
      const answers = await Promise.all(made.map(({ token }) => asToken(token)('GET', `/${o}/projects`)))
      return answers.map(({ status }) => status)
    },
    rows: async () => (await service.sql(
      `SELECT count(*)::int AS count FROM api_tokens WHERE organization_id = '${o}' AND user_id = ${rosa.id}`
    ))[0]!.count as number,
    lastEvent: async () => (await service.sql(
      `SELECT action, ${DETAILS} FROM audit_events WHERE organization_id = '${o}' ORDER BY seq DESC LIMIT 1`
    ))[0] as { action: string, details: { tokens: number, token_ids: string } }
  }
}

t.test('the removal of a member ends all their API tokens at once, however many, and none comes back', async (t) => {
  const { owner, o, rosa, alive, rows, lastEvent } = await withTokens()
  const members = `/organizations/${o}/members`
  // Ends the rest of the tokens with two statements.
  const accept = async () => {
    const { access } = await issuePair(service, rosa, ['organization:create'])
    const call = asToken(access)
    const [{ id }] = (await call('GET', '/user/invitations')).body.data
    return (await call('POST', `/user/invitations/${id}/accept`)).status
  }
  t.strictSame(await alive(), [200, 200])
  t.equal((await owner.call('DELETE', `${members}/${rosa.id}`)).status, 204)
  t.strictSame(await alive(), [401, 401])
  const { action, details } = await lastEvent()
  t.strictSame([action, details.tokens, details.token_ids.split(' ').length], ['member.delete', TOKENS + 2, 50])
  t.equal(await rows(), TOKENS + 2 - PIECE, 'one statement takes a piece of them')

  t.equal((await owner.call('POST', members, { email: rosa.email, role: 'administrator' })).status, 201)
  t.equal(await accept(), 409, 'a person does not join while tokens of an earlier membership are left')
  t.strictSame(await alive(), [401, 401])
  await removeUntil(async () => (await service.sql(`SELECT 1 FROM token_removals WHERE organization_id = '${o}'`)).length)
  t.equal(await rows(), 0)
  t.equal(await accept(), 200)
  t.strictSame(await alive(), [401, 401])
})

t.test('no organization waits for the end of what is removed of another, be it versions or API tokens', async (t) => {
  for (const histories of [await fill('one'), await fill('other')]) t.equal(await histories.purge(), VERSIONS)
  for (const { owner, o, rosa } of [await withTokens(3 * PIECE), await withTokens(3 * PIECE)]) {
    t.equal((await owner.call('DELETE', `/organizations/${o}/members/${rosa.id}`)).status, 204)
  }
  await onEachNode(service.sql,
    'CREATE TABLE taken (at timestamptz DEFAULT clock_timestamp(), kind text, organization_id char(26))')
  const tables = ['secret_versions', 'api_tokens']
  await service.sql(`CREATE FUNCTION note_turn () RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO taken (kind, organization_id) VALUES (TG_ARGV[0], OLD.organization_id); RETURN NULL; END'`)
  for (const table of tables) {
    await service.sql(`CREATE TRIGGER note_turn AFTER DELETE ON ${table} FOR EACH ROW
      EXECUTE FUNCTION note_turn('${table}')`)
  }
  await removeUntil(async () => (await service.sql(`SELECT organization_id FROM token_removals
    UNION ALL SELECT organization_id FROM histories WHERE removed_at IS NOT NULL`)).length)
  // On Citus, each organization has its rows on one node.
  const turns = await onEachNode(service.sql, `SELECT kind, extract(epoch FROM min(at))::float8 AS first,
    extract(epoch FROM max(at))::float8 AS last FROM taken
    GROUP BY kind, organization_id`) as { kind: string, first: number, last: number }[]
  for (const table of tables) {
    await service.sql(`DROP TRIGGER note_turn ON ${table}`)
    const [one, other] = turns.filter(({ kind }) => kind === table).sort((a, b) => a.first - b.first)
    t.ok(other!.first < one!.last, `${table}: the second before the end of the first`)
  }
  await onEachNode(service.sql, 'DROP TABLE taken')
})

t.test('a removed member can accept a new invitation once their API tokens are gone; new tokens stay', async (t) => {
  const { owner, o, rosa, alive, rows, make } = await withTokens(3 * PIECE)
  const members = `/organizations/${o}/members`
  t.equal((await owner.call('DELETE', `${members}/${rosa.id}`)).status, 204)
  const invited = await owner.call('POST', members, { email: rosa.email, role: 'administrator' })
  t.equal(invited.status, 201)
  const left = await rows()
  t.ok(left > PIECE)
  const browser = visitor(address)
  const account = await browser.signIn(await browser.open('/account'), rosa.email, rosa.password)
  const accept = async () => {
    await browser.send({ ...formIn(account), action: '/account/invitations/accept' }, { id: invited.body.data.id })
    return (await owner.call('GET', `${members}/${rosa.id}`)).status
  }
  t.equal(await accept(), 404)
  t.equal(await rows(), left - PIECE)
  t.strictSame(await alive(), [401, 401])
  t.equal(await accept(), 404)
  t.equal(await accept(), 200)
  t.equal(await rows(), 0)
  t.strictSame(await alive(), [401, 401])

  t.equal((await make()).status, 201)
  const one = worker()
  one.wake()
  await one.stop()
  t.equal(await rows(), 1)
})

t.test('all API tokens of a person end with the account and with the grant, however many', async (t) => {
  const one = await withTokens()
  t.strictSame(await one.alive(), [200, 200])
  await switchUser(database, one.rosa.email, true)
  t.strictSame(await one.alive(), [401, 401])
  const { action, details } = await one.lastEvent()
  t.strictSame([action, details.tokens, details.token_ids.split(' ').length], ['user.disable', TOKENS + 2, 50])
  t.equal(await one.rows(), TOKENS + 2 - PIECE, 'one statement takes a piece of them')
  await switchUser(database, one.rosa.email, false)
  t.strictSame(await one.alive(), [401, 401], 'an account that is opened again has none of them')
  t.match(await one.lastEvent(), { action: 'user.enable', details: null }, 'nor ends them twice')

  const other = await withTokens(PIECE)
  const revoked = await service.inject({
    method: 'POST', url: '/api/oauth/revoke', payload: { token: other.access, client_id: 'dotenv-cli' }
  })
  t.equal(revoked.status, 200)
  t.strictSame(await other.alive(), [401, 401])
  t.match(await other.lastEvent(), { action: 'oauth.revoke', details: { tokens: PIECE + 2 } })
  await removeUntil(async () => await one.rows() + await other.rows())
  // SQL outside the service has removed the grant from these tokens. The removal must end them without a grant.
  const older = await withTokens(PIECE + 1)
  await service.sql(`UPDATE api_tokens SET grant_id = NULL WHERE organization_id = '${older.o}'`)
  await switchUser(database, older.rosa.email, true)
  t.equal(await older.rows(), 0)
  t.match(await older.lastEvent(), { action: 'user.disable', details: { tokens: PIECE + 3 } })

  const keep = await withTokens(1)
  const stays = worker()
  stays.wake()
  await stays.stop()
  t.equal(await keep.rows(), 3, 'what lives stays')
  t.strictSame(await keep.alive(), [200, 200])
})

t.test('a disabled account ends its sessions and pending sign-ins in pieces, however many there are', async (t) => {
  const { organization: o } = await service.organization()
  const rosa = await makePerson(service, { [o]: 'owner' })
  const MANY = 2 * PIECE + 1
  await service.sql(`INSERT INTO sessions (token_hash, user_id, expires_at)
    SELECT sha256(('session/' || n)::bytea), ${rosa.id}, now() + interval '1 day' FROM generate_series(1, ${MANY}) n`)
  await service.sql(`INSERT INTO sign_in_steps (token_hash, user_id, expires_at)
    SELECT sha256(('step/' || n)::bytea), ${rosa.id}, now() + interval '1 day' FROM generate_series(1, ${MANY}) n`)
  const sent: string[] = []
  const watch = (message: unknown) => {
    const { phase, text } = message as { phase: string, text: string }
    const [, table] = /^delete from "(sessions|sign_in_steps)"/.exec(text) ?? []
    if (phase === 'before' && table !== undefined) sent.push(table)
  }
  subscribe('strongroom:statement', watch)
  await switchUser(database, rosa.email, true).finally(() => unsubscribe('strongroom:statement', watch))
  t.strictSame(sent, [...Array(3).fill('sessions'), ...Array(3).fill('sign_in_steps')])
  t.same(await service.sql(`SELECT 1 FROM sessions WHERE user_id = ${rosa.id}
    UNION ALL SELECT 1 FROM sign_in_steps WHERE user_id = ${rosa.id}`), [])
})

t.test('a person has at most the 1,000 sessions used last, so an ending has few to delete', async (t) => {
  const { organization: o } = await service.organization()
  const rosa = await makePerson(service, { [o]: 'owner' })
  await service.write(`INSERT INTO sessions (token_hash, user_id, seen_at, expires_at)
    SELECT sha256(('used/' || n)::bytea), ${rosa.id}, now() - interval '1 minute' - n * interval '1 second', now() + interval '1 day'
    FROM generate_series(1, 1500) n`)
  const other = await buildApp({ config, database, keyring, costs: QUICK, logStream: { write: () => {} } })
  try {
    const browser = visitor(await other.listen({ host: '127.0.0.1', port: 0 }))
    await browser.signIn(await browser.open('/account'), rosa.email, rosa.password)
    t.match((await browser.open('/account')).text, rosa.email, 'signed in')
  } finally {
    await other.close()
  }
  t.same(await service.sql(`SELECT count(*)::int AS all, count(*) FILTER (WHERE seen_at > now() - interval '30 minutes')::int
    AS newest FROM sessions WHERE user_id = ${rosa.id}`), [{ all: 1000, newest: 1000 }])
})

t.test('what a person or an application ends leaves its API tokens to a background that looks at once', async (t) => {
  const [byGrant, byAccount] = [await withTokens(PIECE), await withTokens(PIECE)]
  // Only requests can wake the background worker of this instance.
  const other = await buildApp({ config, database, keyring, costs: QUICK, logStream: { write: () => {} } })
  const gone = ({ rows }: typeof byGrant) => until(async () => await rows() === 0, { every: 20, within: 120_000 })
  try {
    const browser = visitor(await other.listen({ host: '127.0.0.1', port: 0 }))
    const revoked = await other.inject({
      method: 'POST', url: '/api/oauth/revoke', payload: { token: byGrant.access, client_id: 'dotenv-cli' }
    })
    t.equal(revoked.statusCode, 200)
    await gone(byGrant)
    const { email, password } = byAccount.rosa
    const account = await browser.signIn(await browser.open('/account'), email, password)
    await browser.send({ ...formIn(account), action: '/account/sign-out' }, { where: 'everywhere' })
    await gone(byAccount)
  } finally {
    await other.close()
  }
})

t.test('the API tokens of an organization and of a person are limited; expired tokens do not count', async (t) => {
  const { owner, o, rosa, keys, made, make, access, expires_at } = await withTokens(TOKEN_LIMITS.person - 3)
  const refused = (limit: number) => ({ status: 422, body: { error: 'limit_reached', details: { limit } } })
  t.equal((await make()).status, 201)
  t.match(await make(), refused(TOKEN_LIMITS.person))
  const expire = (which: string) => service.write(
    `UPDATE api_tokens SET expires_at = now() - interval '1 minute' WHERE organization_id = '${o}' AND ${which}`
  )
  const id = made[0]!.api_key.id
  await expire(`id = ${id}`)
  t.equal((await make()).status, 201, 'one that has expired leaves its place')
  const prolonged = await asToken(access)('PUT', `${keys}/${id}`, { expires_at })
  t.match(prolonged, refused(TOKEN_LIMITS.person), 'and has none to come back to')
  const clock = Date.now
  Date.now = () => clock() - 1_800_000
  const behind = await asToken(access)('PUT', `${keys}/${id}`, { expires_at }).finally(() => { Date.now = clock })
  t.match(behind, refused(TOKEN_LIMITS.person), 'whatever time it is for the service')
  const ofOthers = await owner.call('POST', keys, { name: 'CI', abilities: ['project:read'], expires_at })
  t.equal(ofOthers.status, 201, 'others have theirs')
  const rotating = await issuePair(service, rosa, ['api-token:create', 'api-token:delete', 'project:read'])
  const rotate = (which: string) => asToken(rotating.access)('POST', `${keys}/${which}/rotate`, {})
  t.match(await rotate(ofOthers.body.api_key.id), refused(TOKEN_LIMITS.person), 'none becomes theirs')
  t.match(await rotate(made[1]!.api_key.id), { status: 200 }, 'their own stays theirs')
  t.match(await owner.call('POST', `${keys}/${made[1]!.api_key.id}/rotate`, {}), { status: 200 })

  await service.sql(`
    INSERT INTO api_tokens (id, organization_id, name, token_hash, token_prefix, token_suffix, abilities)
    OVERRIDING SYSTEM VALUE
    SELECT id - 5000 - n, organization_id, name, sha256((id || '/of nobody/' || n)::bytea), token_prefix, token_suffix, abilities
    FROM api_tokens, generate_series(1, ${TOKEN_LIMITS.organization}) n WHERE organization_id = '${o}' AND id = ${id}`)
  t.match(await owner.call('POST', keys, { name: 'CI', abilities: ['project:read'] }), refused(TOKEN_LIMITS.organization))
  await t.rejects(
    addToken(database, { organization: o, name: 'CI', abilities: ['*'] }), /has reached its limit of 10000 tokens/
  )
  const oda = await makePerson(service, { [o]: 'administrator' })
  const { access: hers } = await issuePair(service, oda, ['api-token:create', 'api-token:delete', 'project:read'])
  t.match(
    await asToken(hers)('POST', `${keys}/${ofOthers.body.api_key.id}/rotate`, {}), { status: 200 },
    'whose a token is changes nothing for the organization'
  )

  const over = async () => (await service.sql(
    `SELECT FROM api_tokens WHERE organization_id = '${o}' AND expires_at < now()`
  )).length
  await service.sql(`UPDATE api_tokens SET expires_at = now() - interval '1 minute' WHERE organization_id = '${o}'`)
  const before = await over()
  t.ok(before > TOKEN_LIMITS.organization)
  await addToken(database, { organization: o, name: 'CI', abilities: ['*'] })
  t.equal(await over(), before - PIECE, 'and of more than that, the oldest of those go, too')
})

t.test('a client that was granted very much is shut out at once, and its grants end piece by piece', async (t) => {
  const { organization: o } = await service.organization()
  const rosa = await makePerson(service, { [o]: 'owner' })
  await addClient(database, { id: 'much', name: 'Much', redirect_uris: ['https://much.example/back'] })
  const grants = 2 * PIECE + 1
  await service.sql(`INSERT INTO oauth_grants (id, user_id, client_id, scopes, expires_at) OVERRIDING SYSTEM VALUE
    SELECT n, ${rosa.id}, 'much', '{}', now() + interval '1 day' FROM generate_series(1, ${grants}) n`)
  await switchClient(database, 'much', true)
  const [found] = await service.sql(`SELECT count(*) FILTER (WHERE revoked_at IS NOT NULL)::int AS revoked,
    count(DISTINCT g.xmin::text)::int AS pieces, bool_or(g.xmin = c.xmin) AS is_of_mark
    FROM oauth_grants g JOIN oauth_clients c ON c.id = g.client_id WHERE c.id = 'much' AND c.disabled_at IS NOT NULL`)
  t.strictSame(found, { revoked: grants, pieces: 3, is_of_mark: false })
  await service.sql('UPDATE oauth_grants SET revoked_at = NULL WHERE client_id = \'much\'')
  await switchClient(database, 'much', false)
  const live = await service.sql('SELECT 1 FROM oauth_grants WHERE client_id = \'much\' AND revoked_at IS NULL')
  t.equal(live.length, 0, 'what slipped in does not come back')
})
