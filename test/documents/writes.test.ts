// runs: both databases
import { execFileSync } from 'node:child_process'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import { connect as connectSocket, createServer, type AddressInfo } from 'node:net'
import { sql } from 'drizzle-orm'
import t, { type Test } from 'tap'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { buildApp } from '../../src/app.ts'
import { changeDocument } from '../../src/changes/change.ts'
import { connect } from '../../src/db/database.ts'
import { transaction } from '../../src/changes/transaction.ts'
import { organizations } from '../../src/db/tables.ts'
import { operatorOf } from '../../src/repositories/audit/audit.ts'
import { lockProject, updateProject } from '../../src/repositories/levels/projects.ts'
import { openRows } from '../../src/jobs/violations.ts'
import type { Written } from '../../src/vault/documents/plan-write.ts'
import { storageKeyOf } from '../../src/vault/keys/keys.ts'
import { ON_CITUS, startIsolatedApp, type Answer, type Caller, type TestApp } from '../helpers/app.ts'
import { issuePair, makePerson } from '../helpers/people.ts'
import {
  makeLevels, miscounted, ON_POSTGRES, opener, times, type Level, type Send as SendOverHttp
} from '../helpers/traffic.ts'

// Queued writes of one organization share one statement and one commit, and each write has its own result.

t.setTimeout(120_000)

// This file has its own database, because it compares the counts of all organizations with their rows.
const service = await startIsolatedApp(t)

type Send = (method: string, path: string, body?: unknown, headers?: Record<string, string>) => Promise<Answer>

// The helpers of traffic need only the fields that both kinds of responses have.
const overHttp = (send: Send) => send as unknown as SendOverHttp

/** An organization with levels of a project and the further levels `more`, and a function that sends requests to it. */
async function start (environments: string[], ...more: string[]) {
  const caller = await service.organization()
  const sendAs = ({ call }: Caller): Send => (method, path, body, headers) =>
    call(method, `/${caller.organization}${path}`, body, headers)
  const send = sendAs(caller)
  const levels = await makeLevels(overHttp(send), 'orbit', environments)
  for (const slug of more) await makeLevels(overHttp(send), slug, environments)
  return { caller, organization: caller.organization, send, sendAs, levels }
}

type Started = Awaited<ReturnType<typeof start>>

const store = (send: Send, level: Level, plaintext: string, headers = {}, more = {}) =>
  send('POST', '/secrets/store', { ...level, plaintext, ...more }, headers)

/** Checks the rules that hold after any writes of an organization. Returns the versions of each commit. */
async function agree (t: Test, { organization }: Started): Promise<number[][]> {
  const where = `organization_id = '${organization}'`
  const versions = await service.sql(`SELECT id::int, xmin::text AS by FROM secret_versions WHERE ${where} ORDER BY id`)
  t.same(versions.map(({ id }) => id), versions.map((_, i) => i + 1), 'version ids are consecutive')
  const events = await service.sql(`SELECT seq::int, action, details FROM audit_events WHERE ${where} ORDER BY seq`)
  t.same(events.map(({ seq }) => seq), events.map((_, i) => i + 1), 'events are numbered without a gap')
  const recorded = events.filter(({ action }) => /^secret\./.test(action as string))
    .flatMap(({ details }) => (details as { version: number | null }).version ?? [])
  t.same(recorded, versions.map(({ id }) => id), 'each version has its event, in their order')
  t.same(await miscounted((query) => service.sql(query)), [])
  const commits = new Map<string, number[]>()
  for (const { id, by } of versions) commits.set(by as string, [...commits.get(by as string) ?? [], id as number])
  return [...commits.values()]
}

/** Checks that the versions in the responses have the content that was sent. */
async function holds (t: Test, send: Send, answers: Answer[], content: (index: number) => string) {
  const open = await opener(overHttp(send), 'orbit')
  for (const [i, { status, body }] of answers.entries()) {
    t.equal(status, 200)
    const fetched = await send('GET', `/secrets/versions/${body.data.version}`)
    t.equal(open(fetched.body.data.content), content(i))
  }
}

/** Calls `act` once, before the service sends the first statement of this kind. */
async function atFirst<T> (kind: RegExp, act: () => void, work: () => Promise<T>): Promise<T> {
  let isDone = false
  const watch = (message: unknown) => {
    const { phase, text } = message as { phase: string, text: string }
    if (isDone || phase !== 'before' || !kind.test(text)) return
    isDone = true
    act()
  }
  subscribe('strongroom:statement', watch)
  try {
    const result = await work()
    if (!isDone) throw new Error('there was no such statement')
    return result
  } finally {
    unsubscribe('strongroom:statement', watch)
  }
}

// The service is about to look up a level. At this time the guard has accepted the caller.
const LOOK = /AS queries \(query_index int/
// The service is about to lock counters. It then repeats all earlier look-ups.
const LOCK = /FROM organization_counters .*FOR NO KEY UPDATE/s

const RUN = `import postgres from 'postgres'
  const [url, query] = process.argv.slice(1), sql = postgres(url)
  await sql.unsafe(query)
  await sql.end()`

/**
 * Changes the database before the service sends its next statement. Uses another process on a server, and an earlier
 * statement in the only session of the embedded database.
 */
async function changer ({ sql: run }: TestApp): Promise<(query: string) => void> {
  if (!ON_POSTGRES) return (query) => { run(query).catch((error: unknown) => { throw error }) }
  const url = new URL(process.env.TEST_DATABASE_URL!)
  url.pathname = `/${(await run('SELECT current_database() AS name'))[0]!.name}`
  return (query) => { execFileSync(process.execPath, ['--input-type=module', '-e', RUN, url.href, query]) }
}

t.test('40 writers at once into several levels: few commits, consecutive ids, each answered by its own', async (t) => {
  const running = await start(['live', 'test', 'local'])
  const { send, sendAs, organization, levels } = running
  const senders = [send, ...await Promise.all(times(3, async () => sendAs(await service.token(organization, ['*']))))]
  const content = (i: number) => `WRITER=${i}`
  const levelOf = (i: number) => levels[i % levels.length]!
  const answers = await Promise.all(times(40, (i) => store(senders[i % senders.length]!, levelOf(i), content(i))))
  await holds(t, send, answers, content)
  const commits = await agree(t, running)
  t.ok(commits.length <= 10, `${commits.length} commits`)
  t.ok(commits.some((versions) => versions.length >= 10), 'many of them are one')
  for (const level of levels) {
    const { body } = await send('GET', `/${Object.values(level).join('/')}/secrets?decrypt=true`)
    const kind = level.environment !== undefined ? 'environment' : level.target !== undefined ? 'target' : 'project'
    const { content: current, version, etag } = body.data.attributes.levels[kind]
    const last = Math.max(
      ...answers.filter((_, i) => levelOf(i) === level).map(({ body }) => Number(body.data.version))
    )
    t.equal(version, String(last), 'the document is that of the last version')
    t.equal(current, content(answers.findIndex(({ body }) => body.data.version === version)))
    t.equal(etag, answers.find(({ body }) => body.data.version === version)!.headers.etag)
  }
})

t.test('large writes are bounded in what goes together, and are all written', async (t) => {
  const running = await start(['live'])
  const content = (i: number) => `WRITER=${i}\n${'#'.repeat(150_000)}`
  const answers = await Promise.all(times(12, (i) => store(running.send, running.levels[i % 2]!, content(i))))
  await holds(t, running.send, answers, content)
  const commits = await agree(t, running)
  t.ok(Math.max(...commits.map((versions) => versions.length)) <= 2, 'more than 512 KiB do not begin another')
})

t.test('of writers with one ETag, one wins, also with other writers beside them', async (t) => {
  const running = await start(['live', 'test'])
  const { send, levels: [level, other] } = running
  const first = await store(send, level!, 'ROUND=0')
  const headers = { 'if-match': String(first.headers.etag) }
  const answers = await Promise.all(times(20, (i) =>
    i % 2 === 0 ? store(send, level!, `WRITER=${i}`, headers) : store(send, other!, `WRITER=${i}`)))
  t.same(answers.map(({ status }) => status).filter((_, i) => i % 2 === 0).sort(), [200, ...Array(9).fill(412)])
  t.same([...new Set(answers.map(({ status }) => status).filter((_, i) => i % 2 === 1))], [200])
  // The same holds for the first document of a level.
  const fresh = running.levels[3]!
  const created = await Promise.all(times(5, (i) => store(send, fresh, `WRITER=${i}`, { 'if-none-match': '*' })))
  t.same(created.map(({ status }) => status).sort(), [200, 412, 412, 412, 412])
  await agree(t, running)
})

t.test('deletes, stores, restores and writes without a version of one level, together', async (t) => {
  const running = await start(['live'])
  const { send, levels: [level] } = running
  const first = await store(send, level!, 'FIRST=1')
  const id = first.body.data.version as string
  const answers = await Promise.all([
    store(send, level!, 'A=1'),
    send('POST', '/secrets/delete', { ...level }),
    store(send, level!, 'B=1', { 'if-none-match': '*' }),
    store(send, level!, 'C=1', {}, { no_backup: true }),
    send('POST', `/secrets/versions/${id}/restore`, {}),
    send('POST', '/secrets/delete', { ...level }),
    send('POST', '/secrets/delete', { ...level }),
    send('POST', `/secrets/versions/${id}/restore`, {})
  ])
  // The allowed statuses, for every possible order of the queue. Only one of two deletes finds the document, and a
  // conditional store may find a document.
  for (const [i, allowed] of [[200], [204, 404], [200, 412], [200], [200], [204, 404], [204, 404], [200]].entries()) {
    t.ok(allowed.includes(answers[i]!.status), `${i}: ${answers[i]!.status} ${answers[i]!.text}`)
  }
  await agree(t, running)
  const listed = await send('POST', '/secrets/versions', { ...level })
  const actions: string[] = listed.body.data.map(
    ({ attributes }: { attributes: { action: string } }) => attributes.action
  )
  t.equal(actions.filter((action) => action === 'delete').length, answers.filter(({ status }) => status === 204).length)
  t.equal(actions.filter((action) => action === 'restore').length, 2)
  const open = await opener(overHttp(send), 'orbit')
  for (const { id, attributes } of listed.body.data) {
    const { body } = await send('GET', `/secrets/versions/${id}`)
    if (attributes.action === 'restore') t.equal(open(body.data.content), 'FIRST=1')
  }
})

t.test('a caller that is revoked after the guard accepted it gets 401, and no other caller does', async (t) => {
  const running = await start(['live', 'test'])
  const { send, sendAs, organization, levels } = running
  const doomed = sendAs(await service.token(organization, ['*']))
  const [row] = await service.sql(
    `SELECT max(id)::text AS id FROM api_tokens WHERE organization_id = '${organization}'`
  )
  const change = await changer(service)
  const content = (i: number) => `WRITER=${i}`
  const answers = await atFirst(
    LOOK,
    () => change(`DELETE FROM api_tokens WHERE id = ${row!.id} AND organization_id = '${organization}'`),
    () => Promise.all(times(12, (i) => store(i === 5 ? doomed : send, levels[i % 3]!, content(i))))
  )
  t.equal(answers[5]!.status, 401)
  t.equal(answers[5]!.body.error, 'unauthenticated')
  await holds(t, send, answers.filter((_, i) => i !== 5), (i) => content(i < 5 ? i : i + 1))
  t.equal((await agree(t, running)).flat().length, 11)
})

t.test('a level that is removed after it was looked up is 404 for its writers alone', async (t) => {
  const running = await start(['live', 'test'])
  const { send, organization, levels } = running
  const change = await changer(service)
  const answers = await atFirst(
    LOOK,
    () => change(`
      WITH gone AS (
        DELETE FROM environments WHERE slug = 'test' AND organization_id = '${organization}' RETURNING project_id, target_id
      ), target AS (
        UPDATE targets SET environment_count = environment_count - 1 WHERE id IN (SELECT target_id FROM gone)
      )
      UPDATE project_counts SET environment_count = environment_count - 1
      WHERE project_id IN (SELECT project_id FROM gone)`),
    () => Promise.all(times(12, (i) => store(send, levels[i % 3]!, `WRITER=${i}`)))
  )
  t.same(answers.map(({ status }) => status), times(12, (i) => i % 3 === 1 ? 404 : 200))
  await agree(t, running)
})

const ONE_SESSION = !ON_POSTGRES && 'one session: the transaction with the lock uses it'

t.test('a project that a change of its key holds is 503 for its writers alone', { skip: ONE_SESSION }, async (t) => {
  const running = await start(['live'], 'other')
  const { send, organization, levels: [level] } = running
  let answers: Answer[] = []
  await transaction(service.database.longTransactions, async (db) => {
    await db.execute(sql`SELECT id FROM projects WHERE organization_id = ${organization} AND slug = 'other' FOR UPDATE`)
    answers = await Promise.all(times(12, (i) =>
      store(send, { ...level!, project: i % 4 === 1 ? 'other' : 'orbit' }, `WRITER=${i}`)))
  })
  t.same(answers.map(({ status }) => status), times(12, (i) => i % 4 === 1 ? 503 : 200))
  await agree(t, running)
})

t.test('two organizations at once: each has ids and events of its own', async (t) => {
  const [one, other] = [await start(['live']), await start(['live'])]
  const answers = await Promise.all(times(20, (i) =>
    store(i % 2 === 0 ? one.send : other.send, one.levels[0]!, `WRITER=${i}`)))
  t.same([...new Set(answers.map(({ status }) => status))], [200])
  for (const running of [one, other]) t.equal((await agree(t, running)).flat().length, 10)
})

/** Creates organizations, and stores a document in each through the service. */
const several = (count: number) => Promise.all(times(count, async () => {
  const running = await start(['live'])
  await store(running.send, running.levels[0]!, 'FIRST=1')
  return running
}))

const all = (organizations: readonly Started[], content = 'SECOND=2') =>
  Promise.all(organizations.map(({ send, levels: [level] }) => store(send, level!, content)))

t.test('20 organizations at once: few commits, and each has ids and events of its own', async (t) => {
  const organizations = await several(20)
  for (const { status, body } of await all(organizations)) t.match([status, body], [200, { data: { version: '2' } }])
  for (const running of organizations) await agree(t, running)
  // On Citus, a transaction changes only one organization.
  if (ON_CITUS) return
  const ids = organizations.map(({ organization }) => `'${organization}'`).join()
  const commits = await service.sql(`SELECT xmin::text, count(*)::int FROM secret_versions
    WHERE organization_id IN (${ids}) AND id = 2 GROUP BY 1`)
  t.ok(commits.length <= 10, `${commits.length} commits`)
  t.ok(commits.some(({ count }) => Number(count) >= 5), 'many of them are one')
})

t.test('what goes together is bounded across organizations, too', async (t) => {
  const organizations = await several(12)
  const content = `LARGE=${'#'.repeat(70_000)}`
  for (const { status } of await all(organizations, content)) t.equal(status, 200)
  const ids = organizations.map(({ organization }) => `'${organization}'`).join()
  const commits = await service.sql(`SELECT count(*)::int FROM secret_versions
    WHERE organization_id IN (${ids}) AND id = 2 GROUP BY xmin::text`)
  t.ok(Math.max(...commits.map(({ count }) => Number(count))) <= 3, 'with its snapshot each has more than 150 KiB')
  for (const running of organizations) await agree(t, running)
})

t.test('deletes that go together are bounded by the documents that they record', async (t) => {
  const running = await start(['live', 'test', 'local', 'stage', 'beta', 'demo'])
  const { send, organization, levels } = running
  for (const level of levels) {
    t.equal((await send('POST', '/secrets/store', { ...level, plaintext: `LARGE=${'#'.repeat(150_000)}` })).status, 200)
  }
  const deleted = await Promise.all(levels.map((level) => send('POST', '/secrets/delete', { ...level })))
  t.same(deleted.map(({ status }) => status), levels.map(() => 204))
  const commits = await service.sql(`SELECT count(*)::int FROM secret_versions
    WHERE organization_id = '${organization}' AND action = 'delete' GROUP BY xmin::text`)
  t.ok(Math.max(...commits.map(({ count }) => Number(count))) <= 2, JSON.stringify(commits))
})

t.test('what one organization is refused keeps no other from being written', async (t) => {
  const organizations = await several(10)
  const [revoked, removed, faulty, ...others] = organizations as [Started, Started, Started, ...Started[]]
  const doomed = revoked.sendAs(await service.token(revoked.organization, ['*']))
  await service.sql(`CREATE FUNCTION refuse_version() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = 'raise_exception'; END $$`)
  await service.sql(`CREATE TRIGGER refuse_version BEFORE INSERT ON secret_versions FOR EACH ROW
    WHEN (NEW.organization_id = '${faulty.organization}') EXECUTE FUNCTION refuse_version()`)
  t.teardown(() => service.sql('DROP FUNCTION refuse_version CASCADE'))
  const change = await changer(service)
  const answers = await atFirst(
    LOOK,
    () => change(`WITH token AS (
        DELETE FROM api_tokens WHERE organization_id = '${revoked.organization}'
          AND id = (SELECT max(id) FROM api_tokens WHERE organization_id = '${revoked.organization}')
      ), gone AS (
        DELETE FROM environments WHERE slug = 'live' AND organization_id = '${removed.organization}'
        RETURNING project_id, target_id
      ), target AS (
        UPDATE targets SET environment_count = environment_count - 1, secret_count = secret_count - 1
        WHERE id IN (SELECT target_id FROM gone)
      ), counter AS (
        UPDATE organization_counters SET stored_bytes = 0 WHERE organization_id = '${removed.organization}'
      )
      UPDATE project_counts SET environment_count = environment_count - 1, secret_count = secret_count - 1,
        last_version = NULL
      WHERE project_id IN (SELECT project_id FROM gone)`),
    () => all([{ ...revoked, send: doomed }, removed, faulty, ...others])
  )
  t.same(answers.map(({ status }) => status), [401, 404, 500, ...others.map(() => 200)])
  for (const running of others) t.equal((await agree(t, running)).flat().length, 2)
  for (const running of [revoked, faulty]) t.equal((await agree(t, running)).flat().length, 1, 'nothing was written')
})

t.test('a write whose response fails leaves no rows, and the writes beside it commit', async (t) => {
  const running = await start(['live', 'beta'])
  const [first] = await all([running])
  t.equal(first!.status, 200)
  const [organization] = (await service.database.db.select().from(organizations))
    .filter(({ id }) => id === running.organization)
  const storageKey = storageKeyOf(service.keyring, organization!)
  const blob = Buffer.alloc(40).toString('base64')
  const write = (level: Level, answer: (written: Written) => { body: { version: number | null } }) =>
    changeDocument(service.database.db, operatorOf(running.organization), {
      storageKey,
      load: { names: level, include: 'storable' },
      bytes: blob.length,
      decide: () => ({ change: { blob, record: { action: 'update', blob }, event: 'secret.store' }, answer })
    })
  const versionOf = ({ secret: { version } }: Written) => ({ body: { version } })
  const fails = () => { throw new Error('no response') }
  const [live, beta] = running.levels as [Level, Level]
  const before = (await agree(t, running)).flat().length
  const done = await Promise.allSettled([
    write(live, versionOf), write(live, fails), write(beta, fails), write(beta, versionOf)
  ])
  t.match(done, [
    { value: { body: { version: before + 1 } } }, { reason: { message: 'no response' } },
    { reason: { message: 'no response' } }, { value: { body: { version: before + 2 } } }
  ])
  t.same((await agree(t, running)).at(-1), [before + 1, before + 2], 'in one transaction')
})

t.test('what one organization waits for no other waits for', { skip: ONE_SESSION }, async (t) => {
  const organizations = await several(8)
  const [counter, project, ...others] = organizations as [Started, Started, ...Started[]]
  let waiting: Promise<Answer[]> | undefined
  await transaction(service.database.db, async (db) => {
    await db.execute(sql`SELECT FROM organization_counters WHERE organization_id = ${counter.organization} FOR UPDATE`)
    await db.execute(sql`SELECT FROM projects WHERE organization_id = ${project.organization} FOR UPDATE`)
    waiting = all([counter, project])
    t.same((await all(others)).map(({ status }) => status), others.map(() => 200), 'while both are held')
  })
  t.same((await waiting!).map(({ status }) => status), [200, 200], 'and then these, too')
  for (const running of organizations) await agree(t, running)
})

t.test('callers of every kind in one statement: only callers that ended are refused', async (t) => {
  const organizations = await several(6)
  const [o1, o2, o3, o4, o5, o6] = organizations as [Started, Started, Started, Started, Started, Started]
  const rosa = await makePerson(service, { [o3.organization]: 'owner', [o4.organization]: 'owner' })
  const { access } = await issuePair(service, rosa, SCOPE_NAMES)
  const bearer = (running: Started, token: string): Send => (method, path, body, headers) =>
    running.caller.call(method, `/${running.organization}${path}`, body, { ...headers, authorization: `Bearer ${token}` })
  const rotated = await service.token(o1.organization, ['*'])
  await service.rotate(rotated.token, 3600)
  const ended = await service.token(o2.organization, ['*'])
  await service.rotate(ended.token, 3600)
  const change = await changer(service)
  const answers = await atFirst(
    LOOK,
    () => change(`WITH former AS (
        DELETE FROM former_token_hashes WHERE organization_id = '${o2.organization}'
      ) UPDATE members SET role = 'auditor' WHERE organization_id = '${o4.organization}' AND user_id = ${rosa.id}`),
    () => all([
      { ...o1, send: bearer(o1, rotated.token) },
      { ...o2, send: bearer(o2, ended.token) },
      { ...o3, send: bearer(o3, access) },
      { ...o4, send: bearer(o4, access) },
      o5,
      o6
    ])
  )
  // If the guard looks up the caller after the change, the member lacks the scope.
  t.match(answers.map(({ status }) => String(status)), ['200', '401', '200', /^40[14]$/, '200', '200'])
  for (const [i, running] of organizations.entries()) {
    t.equal((await agree(t, running)).flat().length, answers[i]!.status === 200 ? 2 : 1)
  }
})

t.test('a version that was purged meanwhile does not come back, also with other writers beside', {
  skip: ONE_SESSION
}, async (t) => {
  const organizations = await several(5)
  const [purged, ...others] = organizations as [Started, ...Started[]]
  const version = `secret_versions WHERE organization_id = '${purged.organization}' AND id = 1`
  await service.sql(`CREATE TABLE purged_version AS SELECT * FROM ${version}`)
  t.teardown(() => service.sql('DROP TABLE purged_version'))
  const change = await changer(service)
  const answers = await atFirst(
    LOCK,
    () => change(`DELETE FROM ${version}`),
    () => Promise.all([
      purged.send('POST', '/secrets/versions/1/restore', {}), ...others.map(({ send, levels: [level] }) =>
        store(send, level!, 'SECOND=2'))
    ])
  )
  t.same(answers.map(({ status }) => status), [404, ...others.map(() => 200)])
  await service.sql('INSERT INTO secret_versions SELECT * FROM purged_version')
  for (const running of organizations) await agree(t, running)
})

// The minimum bytes of a document and its snapshot. This is more than the text of any statement.
const SENT = 20_000

/** Starts another instance behind a proxy. The proxy can cut the next connection that carries several documents. */
async function behindProxy (t: Test) {
  const [row] = await service.sql('SELECT current_database() AS name')
  const server = new URL(process.env.TEST_DATABASE_URL!)
  let cut: 'before' | 'after' | undefined
  const proxy = createServer((near) => {
    const far = connectSocket(Number(server.port || 5432), server.hostname)
    let isCommitting = false
    let isLost = false
    for (const [socket, other] of [[near, far], [far, near]] as const) {
      socket.on('error', () => other.destroy())
      socket.on('close', () => other.destroy())
    }
    near.on('data', (bytes) => {
      if (cut === 'before' && bytes.length > 1.5 * SENT) near.destroy()
      // A small packet after the rows is the commit. A prepared commit may have no text.
      isLost ||= isCommitting && bytes.length < 200
      isCommitting ||= cut === 'after' && bytes.length > 1.5 * SENT
      if (near.destroyed || isLost) cut = undefined
      far.write(bytes)
    })
    far.on('data', (bytes) => {
      if (!isLost) near.write(bytes)
      // The server is ready for the next query, so the transaction is committed.
      else if (bytes.at(-6) === 'Z'.charCodeAt(0)) near.destroy()
    })
  }).listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  const url = new URL(server)
  url.hostname = '127.0.0.1'
  url.port = String((proxy.address() as AddressInfo).port)
  url.pathname = `/${row!.name}`
  const database = await connect({ url: url.href, pool: 10 })
  await openRows(database, service.keyring)
  const { config, keyring } = service
  const app = await buildApp({ config, database, keyring, costs: service.app.costs, logStream: { write () {} } })
  t.teardown(async () => {
    await app.close()
    await database.close()
    proxy.close()
  })
  const store = async ({ caller: { token }, organization }: Started, level: Level, plaintext: string) =>
    (await app.inject({
      method: 'POST',
      url: `/api/v1/${organization}/secrets/store`,
      headers: { authorization: `Bearer ${token}` },
      payload: { ...level, plaintext }
    })).statusCode
  return { store, cutNext: (when: 'before' | 'after') => { cut = when } }
}

t.test('an answer that is lost is never asked for again: nothing is written twice', { skip: ONE_SESSION }, async (t) => {
  const running = await start(['live', 'test', 'local', 'stage'])
  const through = await behindProxy(t)
  const content = 'x'.repeat(SENT / 2)
  let count = 0
  for (const when of ['before', 'after'] as const) {
    t.equal(await through.store(running, running.levels[0]!, `${when}=1`), 200)
    through.cutNext(when)
    const statuses = await Promise.all(running.levels.map((level) => through.store(running, level, `A=${content}`)))
    const lost = statuses.filter((status) => status === 503).length
    t.ok(lost >= 2, `${lost} were lost together`)
    t.equal(statuses.filter((status) => status === 200).length, statuses.length - lost)
    count += 1 + (when === 'after' ? statuses.length : statuses.length - lost)
    t.equal((await agree(t, running)).flat().length, count, `cut ${when} the commit`)
  }
  t.equal(await through.store(running, running.levels[0]!, 'LAST=1'), 200)
  await agree(t, running)
})

t.test('a row that was put back by SQL is what the next write replaces', async (t) => {
  const started = await start(['live'])
  const { organization, send, levels: [level] } = started
  await store(send, level!, 'A=1')
  await service.sql(`CREATE TABLE put_back AS SELECT * FROM secrets WHERE organization_id = '${organization}'`)
  t.teardown(() => service.sql('DROP TABLE put_back'))
  const second = await store(send, level!, 'A=2')
  await service.sql(`UPDATE secrets s SET revision = b.revision, sealed = b.sealed, size_bytes = b.size_bytes, version = b.version, mac = b.mac
    FROM put_back b WHERE s.organization_id = b.organization_id AND s.id = b.id`)
  await service.sql(
    `DELETE FROM secret_versions WHERE organization_id = '${organization}' AND id = ${second.body.data.version}`
  )
  t.match(await store(send, level!, 'A=3', { 'if-match': '"none"' }), { status: 412 })
  t.match(await store(send, level!, 'A=4'), { status: 200, body: { data: { version: '3' } } })
})

t.test('what is deleted, purged or changed is what its project was held for', {
  skip: !ON_POSTGRES &&
  'needs two sessions'
}, async (t) => {
  const { organization, send, levels: [level] } = await start(['live'], 'other')
  const other = { ...level!, project: 'other' }
  for (const one of [level!, other]) t.equal((await store(send, one, 'A=1')).status, 200)
  const idOf = async (slug: string) => (await service.sql(
    `SELECT id FROM projects WHERE organization_id = '${organization}' AND slug = '${slug}'`
  ))[0]!.id as string
  const [first, second] = [await idOf('orbit'), await idOf('other')]
  const sent = sentNext(/from "projects" .* for no key update/s)
  const renamed = transaction(service.database.db, async (db) => {
    await lockProject(db, organization, { id: first })
    const deleted = send('POST', '/secrets/delete', { ...level!, no_backup: true, confirmed: true })
    await sent.again
    await updateProject(db, organization, first, { slug: 'former' })
    await updateProject(db, organization, second, { slug: 'orbit' })
    return { deleted }
  })
  t.match(await (await renamed).deleted, { status: 404 }, 'another project has that name since')
  t.equal(
    (await service.sql(`SELECT FROM secrets WHERE organization_id = '${organization}' AND sealed IS NOT NULL`)).length,
    2
  )
})

/** Waits until a matching statement is sent for the second time; the test itself sends the first. */
function sentNext (pattern: RegExp) {
  let times = 0
  const again = new Promise<void>((resolve) => {
    const look = (message: unknown) => {
      const { phase, text } = message as { phase: string, text: string }
      if (phase !== 'before' || !pattern.test(text) || ++times < 2) return
      unsubscribe('strongroom:statement', look)
      resolve()
    }
    subscribe('strongroom:statement', look)
  })
  return { again }
}
