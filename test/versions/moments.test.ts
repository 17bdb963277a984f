// runs: one database
import { setTimeout as pause } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { sealBlob } from '../../src/crypto/blob.ts'
import { transaction } from '../../src/changes/transaction.ts'
import { findLevel } from '../../src/repositories/levels/levels.ts'
import { findDocumentsAt, listChangedLevels } from '../../src/repositories/secrets/point-in-time.ts'
import { lockProject } from '../../src/repositories/levels/projects.ts'
import { DETAILS, ACTIVITY, makeLevel, startApp, type Answer, type Caller } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'
import { random } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

const test = await startApp(t)
const owner = await test.organization()

interface At { project: string, target: string, environment: string }
const HOUR = 3_600_000

const org = ({ organization }: Caller, path: string) => `/${organization}${path}`
const levelsOf = ({ project, target, environment }: At) =>
  [{ project }, { project, target }, { project, target, environment }]
const read = (at: At | string, query: Record<string, string>, caller = owner, headers = {}) => {
  const path = typeof at === 'string' ? at : `${at.project}/${at.target}/${at.environment}`
  return caller.call('GET', org(caller, `/${path}/secrets?${new URLSearchParams(query).toString()}`), undefined, headers)
}
const store = async (level: object, more: object, caller = owner) => {
  const answer = await caller.call('POST', org(caller, '/secrets/store'), { ...level, ...more })
  if (answer.status !== 200) throw new Error(answer.text)
  return answer.body.data as { secret_id: string, version: string }
}
const put = (level: object, plaintext: string, caller = owner) => store(level, { plaintext }, caller)
const remove = (level: object, more: object = {}) =>
  owner.call('POST', org(owner, '/secrets/delete'), { ...level, ...more })
const purge = (level: object) =>
  owner.call('POST', org(owner, '/secrets/versions/purge'), { ...level, scope: 'project', confirmed: true })
const rotate = (at: At, body?: object) =>
  owner.call('POST', org(owner, `/${at.project}/encryption-key/rotate`), body)
const restoreTo = (project: string, at: string, caller = owner, headers = {}) =>
  caller.call('POST', org(caller, `/${project}/restore-to`), { at, confirmed: true }, headers)
const history = async (level: { target?: string, environment?: string }, caller = owner) => {
  const name = level.environment !== undefined ? 'environment' : level.target !== undefined ? 'target' : 'project'
  const { body } = await caller.call('POST', org(caller, '/secrets/versions'), { ...level, level: name, per_page: 100 })
  return body.data as { id: string, attributes: { action: string, created_at: string, metadata: object } }[]
}
const timeOf = async (version: string, caller = owner) => {
  const { body } = await caller.call('GET', org(caller, `/secrets/versions/${version}`))
  return body.data.attributes.created_at as string
}
const shift = (time: string, by: number) => new Date(new Date(time).getTime() + by).toISOString()
const merged = async (at: At, time: string, caller = owner) =>
  (await read(at, { at: time, decrypt: 'true', merge: 'true' }, caller)).body.data.attributes.merged as object
const contentsOf = ({ data }: Answer['body']) =>
  Object.fromEntries(Object.entries(data.attributes.levels as Record<string, { content: string }>)
    .map(([level, { content }]) => [level, content]))
const contents = async (at: At, query: Record<string, string> = {}, caller = owner) =>
  contentsOf((await read(at, { decrypt: 'true', ...query }, caller)).body)
const lastEvent = async (caller = owner) => (await test.sql(
  `SELECT action, resource_type, resource_id, ${DETAILS} FROM audit_events WHERE organization_id = '${caller.organization}' ORDER BY seq DESC LIMIT 1`
))[0] as { action: string, resource_type: string, resource_id: string, details: Record<string, unknown> }

/** A time of the database's clock at which no write took place. */
async function now (): Promise<string> {
  await pause(2)
  const [row] = await test.sql('SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::text AS ms')
  await pause(2)
  return new Date(Number(row!.ms)).toISOString()
}

/** All rows of a project, to check that none of them has changed. */
async function stateOf ({ project }: At, { organization } = owner): Promise<string> {
  const its = `p.organization_id = '${organization}' AND p.slug = '${project}'`
  const queries = [
    `SELECT p::text, c::text FROM projects p JOIN project_counts c ON c.organization_id = p.organization_id AND c.project_id = p.id WHERE ${its}`,
    `SELECT s::text FROM secrets s JOIN projects p ON p.organization_id = s.organization_id AND p.id = s.project_id WHERE ${its} ORDER BY s.id`,
    `SELECT v::text FROM secret_versions v JOIN secrets s ON s.organization_id = v.organization_id AND s.history_id = v.history_id JOIN projects p ON p.organization_id = s.organization_id AND p.id = s.project_id WHERE ${its} ORDER BY v.id`,
    `SELECT next_version, stored_bytes FROM organization_counters WHERE organization_id = '${organization}'`
  ]
  return JSON.stringify(await Promise.all(queries.map((query) => test.sql(query))))
}

async function refused (t: Test, at: At, answer: () => Promise<Answer>, body: object, caller = owner) {
  const before = await stateOf(at, caller)
  t.match((await answer()).body, body)
  t.equal(await stateOf(at, caller), before, `${JSON.stringify(body)}: nothing changed`)
}

t.test('a read at a moment answers each level as it was, writes of that very millisecond included', async (t) => {
  const at = await makeLevel(owner, { name: 'Orbit' })
  const [project, target, environment] = levelsOf(at)
  const made = await now()
  const first = await put(project!, 'A=1\nP=1')
  const second = await put(environment!, 'A=2')
  const third = await put(target!, 'A=3\nT=3')
  const fourth = await put(environment!, 'A=4')
  const times = await Promise.all([first, second, third, fourth].map(({ version }) => timeOf(version)))
  for (const [i, expected] of [{ A: '1', P: '1' }, { A: '2', P: '1' }, { A: '2', P: '1', T: '3' }, {
    A: '4', P: '1', T: '3'
  }].entries()) {
    t.strictSame(await merged(at, times[i]!), expected, `at write ${i + 1}`)
  }
  t.strictSame(await merged(at, made), {}, 'before any')
  t.strictSame(await merged(at, shift(times[1]!, -1)), { A: '1', P: '1' }, 'a millisecond before')
  t.strictSame((await read(at.project, { at: times[3]!, decrypt: 'true', raw: 'true' })).body, { A: '1', P: '1' })

  const { body } = await read(at, { at: times[1]! })
  t.match(body, {
    data: {
      attributes: {
        encrypted: true,
        levels: {
          project: { version: first.version }, environment: { version: second.version, source: at.environment }
        }
      }
    },
    meta: { at: times[1], merged: 'false', action: 'read' }
  })
  t.notOk('target' in body.data.attributes.levels)
  t.strictSame(
    (await read(at, { at: times[1]!, decrypt: 'true', merge: 'both' })).body.data.attributes.merged, { A: '2', P: '1' }
  )
  const { content } = (await owner.call('GET', org(owner, `/secrets/versions/${second.version}`))).body.data
  t.equal(body.data.attributes.levels.environment.content, content, 'the very version')
})

t.test('a moment has any time zone and is not in the future; a level that was created later is not there', async (t) => {
  const before = await now()
  const at = await makeLevel(owner, { name: 'Zones' })
  const { version } = await put(at, 'A=1')
  const time = await timeOf(version)
  await put(at, 'A=2')
  const inZone = `${shift(time, 5.5 * HOUR).slice(0, -1)}+05:30`
  t.strictSame(await merged(at, inZone), { A: '1' })
  t.strictSame(await merged(at, `${time.slice(0, -1)}999-00:00`), { A: '1' }, 'cut off to the millisecond')
  for (const later of [shift(time, HOUR), '9999-12-31T23:59:59Z']) {
    t.match(await read(at, { at: later }), { status: 422, body: { error: 'validation_failed', errors: { at: [/future/] } } })
  }
  for (const wrong of ['yesterday', '2026-03-01', '2026-13-01T00:00:00Z']) {
    t.match(await read(at, { at: wrong }), { status: 422, body: { error: 'validation_failed' } }, wrong)
  }
  for (const earlier of [before, '0001-01-01T00:00:00Z']) {
    for (const path of [at, at.project, `${at.project}/${at.target}`]) {
      const resource = ['project', 'target', 'environment'][(typeof path === 'string' ? path : 'a/b/c').split('/').length - 1]
      const time = new Date(earlier).toISOString()
      t.match(await read(path, { at: earlier }), {
        status: 404,
        body: { error: 'not_found', message: `This ${resource} did not exist yet at ${time}.`, details: { resource, at: time } }
      })
    }
  }
  const { body } = await owner.call('POST', org(owner, `/${at.project}/targets`), { name: 'Later' })
  const path = `${at.project}/${body.data.attributes.slug}`
  t.match(await read(path, { at: time }), { status: 404, body: { details: { resource: 'target', at: time } } })
  t.equal((await read(path, { at: await now() })).status, 200)
  // A `+` in a query means a space.
  t.match(
    (await owner.call('GET', org(owner, `/${path}/secrets?at=${time.slice(0, -1)}+00:00`))).body.errors,
    { at: [/such as 2026-03-01T12:00:00Z; in a query, write the \+ of an offset as %2B$/] }
  )
  t.match(
    (await owner.call('GET', org(owner, `/${path}/secrets/diff?from=${time.slice(0, -1)}+00:00&to=${time}`))).body.errors,
    { from: [/write the \+ of an offset as %2B$/] }
  )
})

t.test('a read at a moment needs secret:history and the scopes of a read; a narrowed token sees its part', async (t) => {
  const at = await makeLevel(owner)
  for (const level of levelsOf(at)) await put(level, 'A=1')
  const time = await now()
  const reader = await test.token(owner.organization, ['secret:read', 'secret:decrypt'])
  t.match(await read(at, { at: time }, reader), { status: 403, body: { details: { required_scope: 'secret:history' } } })
  t.match(await read(at, { at: 'never' }, reader), { status: 403 }, 'before it is judged')
  const historian = await test.token(owner.organization, ['secret:history', 'secret:read'])
  t.match(await read(at, { at: time, decrypt: 'true' }, historian), { status: 403, body: { details: { required_scope: 'secret:decrypt' } } })
  t.equal((await read(at, { at: time }, historian)).status, 200)
  const other = await test.organization()
  t.equal((await owner.call('GET', `/${other.organization}/${at.project}/secrets?at=${time}`)).status, 404)
  const state = await findLevel(test.database.reads, owner.organization, at, 'place')
  const { project, target, environment } = state!
  const narrowed = await test.token(owner.organization, ['secret:history', 'secret:read'], {
    slices: [{ project_id: project.id, target_id: target!.id, environment_id: environment!.id }]
  })
  t.strictSame(Object.keys((await read(at, { at: time }, narrowed)).body.data.attributes.levels), ['environment'])
  t.equal((await read(at.project, { at: time }, narrowed)).status, 404)
})

t.test('a read at a moment has an ETag, and one per level: 304 if it is known, 412 once the level changed', async (t) => {
  const at = await makeLevel(owner)
  await put(at, 'A=1')
  const time = await now()
  const { headers, body } = await read(at, { at: time })
  const { etag } = body.data.attributes.levels.environment
  t.equal((await read(at, { at: time }, owner, { 'if-none-match': String(headers.etag) })).status, 304)
  t.not((await read(at, { at: shift(time, 1) })).headers.etag, headers.etag, 'of another moment')
  const write = (plaintext: string) =>
    owner.call('POST', org(owner, '/secrets/store'), { ...at, plaintext }, { 'if-match': etag })
  t.equal((await write('A=2')).status, 200)
  t.equal((await write('A=3')).status, 412)
  t.equal((await read(at, { at: time }, owner, { 'if-none-match': String(headers.etag) })).status, 304, 'the past stays')
  const { environment } = body.data.attributes.levels
  t.strictSame((await read(at, { at: time })).body.data.attributes.levels.environment, environment)
})

t.test('who reads what levels held leaves an event with the moment: of versions, or of their decryption', async (t) => {
  const at = await makeLevel(owner)
  const { secret_id } = await put(at, 'A=1')
  const time = await now()
  await put(at, 'A=2')
  await read(at, { at: time })
  t.match(await lastEvent(), { action: 'version.read', resource_type: 'environment', details: { at: time, secrets: secret_id, revisions: '1' } })
  await read(at, { at: time, decrypt: 'true' })
  t.match(await lastEvent(), { action: 'secret.decrypt', details: { at: time, secrets: secret_id, revisions: '1' } })
})

t.test('while a document was deleted there was none, and before it was', async (t) => {
  const at = await makeLevel(owner)
  await put(at, 'A=1')
  const stored = await now()
  t.equal((await remove(at)).status, 204)
  const deleted = await now()
  t.strictSame(await contents(at, { at: stored }), { environment: 'A=1' })
  t.strictSame(await contents(at, { at: deleted }), {})
  await put(at, 'A=2')
  t.strictSame(await contents(at, { at: deleted }), {})
  t.strictSame(await contents(at, { at: stored }), { environment: 'A=1' })
})

t.test('a moment without its version is version_gone; the current document is still read at its time', async (t) => {
  const at = await makeLevel(owner)
  const { version } = await put(at, 'A=1')
  const first = await now()
  await store(at, { plaintext: 'A=2', no_backup: true })
  const unrecorded = await now()
  t.strictSame(await contents(at, { at: first }), { environment: 'A=1' }, 'one write behind a version')
  t.strictSame(await contents(at, { at: unrecorded }), { environment: 'A=2' }, 'it is the current one')
  const third = await put(at, 'A=3')
  const last = await now()
  const level = `${at.project}/${at.target}/${at.environment}`
  const gone = { status: 422, body: { error: 'version_gone', details: { level } } }
  t.match(await read(at, { at: unrecorded }), gone)
  t.match(await read(at, { at: first }), gone, 'which of the two was there is not known')
  t.strictSame(await contents(at, { at: await timeOf(third.version) }), { environment: 'A=3' })
  const fourth = await put(at, 'A=4')
  await owner.call('DELETE', org(owner, `/secrets/versions/${third.version}`))
  t.match(await read(at, { at: last }), gone, 'deleted')
  t.match(await read(at, { at: last, decrypt: 'true', merge: 'true' }), gone)
  const fourthAt = await timeOf(fourth.version)
  await purge(at)
  t.strictSame(await contents(at, { at: fourthAt }), { environment: 'A=4' }, 'purged, but nothing else was stored')
  await put(at, 'A=5')
  t.match(await read(at, { at: fourthAt }), gone, 'purged')
  t.equal((await owner.call('GET', org(owner, `/secrets/versions/${version}`))).status, 404)
  await refused(t, at, () => restoreTo(at.project, fourthAt), gone.body)
})

t.test('a version overwritten with no_backup is read at its time until the next write, then only by its id', async (t) => {
  const unrecorded = (at: object, plaintext: string) => store(at, { plaintext, no_backup: true })
  const then: Record<string, (at: At) => Promise<unknown>> = {
    'a store': (at) => put(at, 'A=3'),
    'a store with no_backup': (at) => unrecorded(at, 'A=3'),
    'a delete': (at) => remove(at),
    'a rotation': (at) => rotate(at),
    'a restore of the version': async (at) => {
      const [first] = await history(at)
      return owner.call('POST', org(owner, `/secrets/versions/${first!.id}/restore`), {})
    }
  }
  for (const [next, write] of Object.entries(then)) {
    const at = await makeLevel(owner, { name: `Overwritten by ${next}` })
    const level = `${at.project}/${at.target}/${at.environment}`
    const gone = { status: 422, body: { error: 'version_gone', details: { level } } }
    const before = await now()
    const { version } = await put(at, 'A=1')
    const recorded = await timeOf(version)
    const first = await now()
    await unrecorded(at, 'A=2')
    const second = await now()
    t.strictSame(await contents(at, { at: recorded }), { environment: 'A=1' }, `before ${next}: the version`)
    t.strictSame(await contents(at, { at: first }), { environment: 'A=1' }, `before ${next}: until it was overwritten`)
    t.strictSame(await contents(at, { at: second }), { environment: 'A=2' }, `before ${next}: since then`)
    await write(at)
    const third = await now()
    for (const moment of [recorded, first, second]) t.match(await read(at, { at: moment }), gone, `after ${next}`)
    await refused(t, at, () => restoreTo(at.project, first), gone.body)
    t.strictSame(await contents(at, { at: before }), {}, `after ${next}: before the version there was none`)
    t.strictSame(await contents(at, { at: third }), await contents(at), `after ${next}: what it left is told`)
    const { status, body } = await owner.call('GET', org(owner, `/secrets/versions/${version}`))
    t.match([status, body.data?.id], [200, version], `after ${next}: the version has its content by its id`)
  }
  // A first write with `no_backup` replaced no document.
  const at = await makeLevel(owner, { name: 'Unrecorded first' })
  const before = await now()
  await unrecorded(at, 'A=1')
  const first = await now()
  t.strictSame([await contents(at, { at: before }), await contents(at, { at: first })], [{}, { environment: 'A=1' }])
  await put(at, 'A=2')
  t.strictSame(await contents(at, { at: before }), {})
  t.match(await read(at, { at: first }), { status: 422, body: { error: 'version_gone' } })
})

t.test('a document deleted for good is version_gone before that, for reads and restores, stored again or not', async (t) => {
  const at = await makeLevel(owner, { name: 'For Good' })
  const [project,, environment] = levelsOf(at)
  const forGood = () => remove(environment!, { no_backup: true, confirmed: true })
  const made = await now()
  await put(environment!, 'A=1')
  const stored = await now()
  t.equal((await forGood()).status, 204)
  const deleted = await now()
  const level = `${at.project}/${at.target}/${at.environment}`
  const gone = { status: 422, body: { error: 'version_gone', details: { level } } }
  t.strictSame(await contents(at, { at: deleted }), {}, 'there is none since')
  t.match((await restoreTo(at.project, deleted)).body.data, { restored: 0, emptied: 0 })
  const rounds = {
    'never stored again': () => put(environment!, 'A=2'),
    'stored again': () => purge(at),
    purged: () => remove(environment!),
    deleted: () => put(environment!, 'A=3'),
    'stored a third time': forGood,
    'deleted for good again': () => put(environment!, 'A=4')
  }
  for (const [round, next] of Object.entries(rounds)) {
    t.match(await read(at, { at: stored, decrypt: 'true' }), gone, round)
    await refused(t, at, () => restoreTo(at.project, stored), gone.body)
    t.strictSame(await contents(at, { at: made }), {}, 'before any')
    await next()
  }
  t.match(await read(at, { at: deleted }), gone, 'until when there was none is not known any more')
  const last = await now()
  await put(project!, 'P=1')
  t.match((await restoreTo(at.project, last)).body.data, { restored: 0, emptied: 1 })
  t.strictSame(await contents(at), { environment: 'A=4' })
})

t.test('outside the retention window a version is locked at every moment, and the current document is not', async (t) => {
  const caller = await test.organization({ plan: 'free' })
  const at = await makeLevel(caller, { name: 'Old' })
  const [project, , environment] = levelsOf(at)
  const { version } = await put(environment!, 'A=1', caller)
  await put(project!, 'P=1', caller)
  const time = await now()
  const ago = (days: number) => `now() - make_interval(days => ${days})`
  const its = `WHERE organization_id = '${caller.organization}'`
  for (const table of ['projects', 'targets', 'environments']) {
    await test.sql(`UPDATE ${table} SET created_at = ${ago(30)} ${its}`)
  }
  await test.sql(`UPDATE secret_versions SET created_at = ${ago(20)} ${its}`)
  await test.sql(`UPDATE secrets SET created_at = ${ago(20)}, updated_at = ${ago(20)} ${its}`)
  t.strictSame(await merged(at, shift(time, -24 * HOUR), caller), { A: '1', P: '1' }, 'it stands there since')
  await put(environment!, 'A=2', caller)
  const locked = { error: 'version_locked', details: { retention_days: 7, version_created_at: /Z$/ } }
  for (const query of [{}, { decrypt: 'true' }, { decrypt: 'true', merge: 'true', raw: 'true' }] as Record<string, string>[]) {
    t.match(await read(at, { ...query, at: shift(time, -24 * HOUR) }, caller), { status: 403, body: locked })
  }
  t.equal((await read(at.project, { at: shift(time, -24 * HOUR) }, caller)).status, 200, 'another level')
  t.equal((await caller.call('GET', org(caller, `/secrets/versions/${version}`))).body.error, 'version_locked', 'as by itself')
  await refused(t, at, () => restoreTo(at.project, shift(time, -24 * HOUR), caller), locked, caller)
  await test.sql(`UPDATE secret_versions SET created_at = ${ago(7)} - interval '1 minute' ${its} AND id = ${version}`)
  t.match(await read(at, { at: shift(time, -24 * HOUR) }, caller), { status: 403, body: locked }, 'just outside')
  await refused(t, at, () => restoreTo(at.project, shift(time, -24 * HOUR), caller), locked, caller)
  await test.sql(`UPDATE secret_versions SET created_at = ${ago(7)} + interval '1 minute' ${its} AND id = ${version}`)
  t.strictSame(await merged(at, shift(time, -24 * HOUR), caller), { A: '1', P: '1' }, 'just inside')
  t.equal((await restoreTo(at.project, shift(time, -24 * HOUR), caller)).body.data.restored, 1)
})

t.test('a version is read under its own key: decrypted by the server, or as a blob with its key version', async (t) => {
  const at = await makeLevel(owner)
  for (const level of levelsOf(at)) await put(level, 'A=1')
  const time = await now()
  await rotate(at)
  await put(at, 'A=2')
  const { levels } = (await read(at, { at: time })).body.data.attributes
  t.match(levels, { project: { key_version: '1' }, environment: { key_version: '1' } })
  t.strictSame(await contents(at, { at: time }), { project: 'A=1', target: 'A=1', environment: 'A=1' })
  const { etag } = (await read(at, { at: time })).headers
  await rotate(at, { history_policy: 're_encrypt' })
  const ofKeys = () => owner.call('GET', org(owner, `/${at.project}/encryption-key/history`))
  await until(async () => (await ofKeys()).body.re_encryption?.state === 'done', { every: 20, within: 120_000 })
  t.match((await read(at, { at: time })).body.data.attributes.levels, { environment: { key_version: '3' } })
  t.not((await read(at, { at: time })).headers.etag, etag, 'another answer has another ETag')
  t.strictSame(await contents(at, { at: time }), { project: 'A=1', target: 'A=1', environment: 'A=1' })

  const key = await clientKey('correct horse battery staple')
  const clients = await makeLevel(owner, { name: 'Clients', ...key.registration })
  const content = sealBlob(key.dataKey, 'A=1')
  await store(clients, { content, key_proof: key.proof })
  const then = await now()
  await store(clients, { content: sealBlob(key.dataKey, 'A=2'), key_proof: key.proof })
  t.equal((await read(clients, { at: then })).body.data.attributes.levels.environment.content, content)
  t.match(await read(clients, { at: then, decrypt: 'true' }), { status: 422, body: { error: 'client_managed_encryption' } })
  const fresh = await clientKey('another horse battery staple')
  const current = (await read(clients, {})).body.data.attributes.levels.environment
  const { storage_mode: _, ...triple } = fresh.registration
  t.equal((await owner.call('POST', org(owner, `/${clients.project}/secrets/rotate-client-keys`), {
    ...triple, secrets: [{ id: current.id, content: sealBlob(fresh.dataKey, 'A=2') }]
  })).status, 200)
  const rotated = await now()
  await refused(t, clients, () => restoreTo(clients.project, then), { error: 'content_required_for_old_key' })
  t.match((await restoreTo(clients.project, shift(rotated, 0))).body.data, { restored: 0, emptied: 0 })
})

t.test('restore-to restores changed and deleted documents, removes later ones, and loses no version', async (t) => {
  const at = await makeLevel(owner, { name: 'Back' })
  const [project, target, environment] = levelsOf(at)
  await owner.call('POST', org(owner, `/${at.project}/targets`), { name: 'Later', slug: 'later' })
  const unchanged = await put(project!, 'P=1')
  const deleted = await put(target!, 'T=1')
  const changed = await put(environment!, 'E=1')
  const moment = await now()
  await put(environment!, 'E=2')
  await remove(target!)
  const later = { project: at.project, target: 'later' }
  await put(later, 'L=1')
  const before = await now()

  const { status, body } = await restoreTo(at.project, moment)
  const event = await lastEvent()
  t.match({ status, ...body }, {
    status: 200,
    data: { type: 'projects', at: moment, restored: 2, emptied: 1 },
    message: 'Restored 2 documents, deleted 1.'
  })
  t.strictSame(await contents(at), { project: 'P=1', target: 'T=1', environment: 'E=1' })
  t.notOk('target' in (await read(`${at.project}/later`, {})).body.data.attributes.levels)
  t.match(await history(environment!), [
    { attributes: { action: 'restore', metadata: { restored_from: changed.version } } }, { attributes: { action: 'update' } },
    { id: changed.version }
  ], 'history goes on')
  t.match((await history(target!))[0], { attributes: { action: 'restore', metadata: { restored_from: deleted.version } } })
  t.match((await history(later))[0], { attributes: { action: 'delete' } })
  t.match(await history(project!), [{ id: unchanged.version }], 'no version of what is as it was')
  t.match(event, {
    action: 'project.restore',
    resource_type: 'project',
    resource_id: body.data.id,
    details: { at: moment, restored: 2, emptied: 1 }
  })
  const all = [await history(environment!), await history(target!), await history(later)]
  const recorded = all.map(([newest]) => newest!)
  const first = Number(event.details.first_version)
  t.strictSame(recorded.map(({ id }) => Number(id)).sort((a, b) => a - b), [first, first + 1, first + 2])
  t.equal(new Set(recorded.map(({ attributes }) => attributes.created_at)).size, 1, 'one moment')
  const { secret_count, has_secrets } = (await owner.call('GET', org(owner, `/${at.project}`))).body.data.attributes
  t.strictSame({ secret_count, has_secrets }, { secret_count: 3, has_secrets: true })
  const targets = (await owner.call('GET', org(owner, `/${at.project}/targets`))).body.data as { attributes: { slug: string, secret_count: number } }[]
  const counts = Object.fromEntries(targets.map(({ attributes: { slug, secret_count } }) => [slug, secret_count]))
  t.strictSame(counts, { [at.target]: 2, later: 0 })

  t.strictSame(await merged(at, before), { P: '1', E: '2' }, 'what was before can be read')
  t.match((await restoreTo(at.project, before)).body.data, { restored: 2, emptied: 1 }, 'and brought back')
  t.strictSame(await contents(at), { project: 'P=1', environment: 'E=2' })
  t.equal((await read(`${at.project}/later`, { decrypt: 'true' })).body.data.attributes.levels.target.content, 'L=1')
  t.equal((await owner.call('GET', org(owner, `/${at.project}`))).body.data.attributes.secret_count, 3)
  const its = `organization_id = '${owner.organization}'`
  const [sums] = await test.sql(`SELECT stored_bytes::int AS counted,
    (SELECT sum(size_bytes + version_bytes)::int FROM secrets WHERE ${its}) AS kept FROM organization_counters WHERE ${its}`)
  t.equal(sums!.counted, sums!.kept, 'bytes are counted')
})

t.test('of many levels that were written since, a limited list has the first, and counts the others', async (t) => {
  const at = await makeLevel(owner, { name: 'Many' })
  const moment = await now()
  const made: string[] = []
  for (const level of levelsOf(at)) made.push((await put(level, 'A=1')).secret_id)
  await rotate(at)
  const { project } = (await findLevel(test.database.reads, owner.organization, { project: at.project }, 'place'))!
  const list = async (limit: number | null, time = moment) => {
    const found = await listChangedLevels(test.database.reads, project, new Date(time), null, limit)
    if (typeof found !== 'object') throw new Error(String(found))
    return { ids: found.levels.map(({ id }) => id), unread: found.unread }
  }
  made.sort()
  for (const [limit, some] of [[null, 3], [1, 1], [2, 2], [3, 3], [4, 3]] as const) {
    t.same(await list(limit), { ids: made.slice(0, some), unread: 3 - some }, String(limit))
  }
  await put({ project: at.project }, 'A=2')
  t.same((await list(1, await now())), { ids: [], unread: 0 }, 'nothing was written since')
})

t.test('a level created again under the name of a deleted level has none of its documents', async (t) => {
  const at = await makeLevel(owner, { name: 'Anew' })
  const environments = org(owner, `/${at.project}/${at.target}/environments`)
  await put(at, 'A=1')
  const moment = await now()
  t.equal((await owner.call('DELETE', org(owner, `/${at.project}/${at.target}/${at.environment}`))).status, 204)
  t.equal((await owner.call('POST', environments, { name: 'Live', slug: at.environment })).status, 201)
  await put(at, 'A=2')
  const before = await now()
  t.match(await read(at, { at: moment }), { status: 404, body: { error: 'not_found' } })
  t.match((await restoreTo(at.project, moment)).body.data, { restored: 0, emptied: 1 })
  t.match((await history(at))[0], { attributes: { action: 'delete' } })
  t.match((await restoreTo(at.project, before)).body.data, { restored: 1, emptied: 0 })
  t.strictSame(await contents(at), { environment: 'A=2' })
})

t.test('restore-to restores documents that do not parse, and says so in a warning', async (t) => {
  const at = await makeLevel(owner, { name: 'Unreadable' })
  await store(at, { plaintext: 'A=1\nwhat', unchecked: true })
  const moment = await now()
  await put(at, 'A=2')
  const readable = await now()
  const answer = await restoreTo(at.project, moment)
  t.match(answer.body, { data: { restored: 1 }, warning: 'Do not parse as env, and cannot be merged: 1 document.' })
  t.strictSame(await contents(at), { environment: 'A=1\nwhat' })
  t.notOk('warning' in (await restoreTo(at.project, readable)).body)
})

t.test('content stored with no_backup has no version: restore-to replaces it without one, as a restore does', async (t) => {
  const at = await makeLevel(owner, { name: 'Unkept' })
  const gone = { status: 422, body: { error: 'version_gone' } }
  const { version } = await put(at, 'A=1')
  const first = await now()
  const replacing = {
    'restore-to': () => restoreTo(at.project, first),
    restore: () => owner.call('POST', org(owner, `/secrets/versions/${version}/restore`), {})
  }
  for (const [name, replace] of Object.entries(replacing)) {
    await store(at, { plaintext: 'A=2', no_backup: true })
    const second = await now()
    const { length } = await history(at)
    t.equal((await replace()).status, 200, name)
    t.strictSame(await contents(at), { environment: 'A=1' })
    t.equal((await history(at)).length, length + 1, 'its own version alone')
    t.match(await read(at, { at: second }), gone)
    t.match(await restoreTo(at.project, second), gone)
  }
})

t.test('restore-to makes no version of an equal document, also after a rotation, and says that', async (t) => {
  const at = await makeLevel(owner)
  const { version } = await put(at, 'A=1')
  await put({ project: at.project }, 'P=1')
  const moment = await now()
  const none = { data: { restored: 0, emptied: 0 }, message: 'All documents are already in this state. Nothing was changed.' }
  await refused(t, at, () => restoreTo(at.project, moment), none)
  await rotate(at)
  await refused(t, at, () => restoreTo(at.project, moment), none)
  await put(at, 'A=2')
  await put(at, 'A=1')
  await refused(t, at, () => restoreTo(at.project, moment), none)
  await put(at, 'A=3')
  t.match((await restoreTo(at.project, moment)).body.data, { restored: 1, emptied: 0 })
  t.strictSame(await contents(at), { project: 'P=1', environment: 'A=1' })
  t.match((await history(at))[0], { attributes: { key_version: '2', metadata: { restored_from: version } } })
  await refused(t, at, () => restoreTo(at.project, moment), none)
  t.match(await lastEvent(), { action: 'project.restore', details: { restored: 0, emptied: 0, first_version: null } })
})

t.test('restore-to is all or nothing: without room, confirmation, scope or place nothing changes', async (t) => {
  const caller = await test.organization()
  const at = await makeLevel(caller, { name: 'Whole' })
  const [project, , environment] = levelsOf(at)
  await put(project!, `A=${'1'.repeat(2000)}`, caller)
  await put(environment!, 'E=1', caller)
  const moment = await now()
  for (const level of [project!, environment!]) await put(level, 'B=1', caller)
  const its = `organization_id = '${caller.organization}'`
  await test.sql(`INSERT INTO plans (name, api_per_minute, max_bytes) SELECT 'tight', 100, stored_bytes + 3000 FROM organization_counters WHERE ${its}`)
  await test.sql(`UPDATE organization_counters SET plan = 'tight' WHERE organization_id = '${caller.organization}'`)
  await refused(t, at, () => restoreTo(at.project, moment, caller), { error: 'plan_limit_reached', details: { plan: 'tight' } }, caller)
  await test.sql(`UPDATE organization_counters SET plan = 'self-hosted' WHERE organization_id = '${caller.organization}'`)

  const future = { error: 'validation_failed', errors: { at: [/future/] } }
  await refused(t, at, () => restoreTo(at.project, shift(moment, HOUR), caller), future, caller)
  await refused(t, at, () => restoreTo(at.project, '2001-01-01T00:00:00Z', caller), { error: 'not_found' }, caller)
  for (const body of [undefined, {}, { at: moment }, { at: moment, confirmed: 'true' }]) {
    await refused(t, at, () => caller.call('POST', org(caller, `/${at.project}/restore-to`), body), { error: 'confirmation_required' }, caller)
  }
  for (const missing of ['secret:restore', 'secret:write'] as const) {
    const held = missing === 'secret:write' ? 'secret:restore' : 'secret:write'
    const token = await test.token(caller.organization, [held])
    await refused(t, at, () => restoreTo(at.project, moment, token), {
      error: 'insufficient_permissions', details: { required_scope: missing }
    }, caller)
  }
  const state = await findLevel(test.database.reads, caller.organization, at, 'place')
  const narrowed = await test.token(caller.organization, ['*'], { slices: [{ project_id: state!.project.id, target_id: state!.target!.id, environment_id: null }] })
  await refused(t, at, () => restoreTo(at.project, moment, narrowed), { error: 'not_found' }, caller)
  await refused(t, at, () => owner.call('POST', `/${caller.organization}/${at.project}/restore-to`, { at: moment, confirmed: true }), { error: 'not_found' }, caller)

  const first = await restoreTo(at.project, moment, caller, { 'idempotency-key': 'once' })
  t.match(first, { status: 200, body: { data: { restored: 2, emptied: 0 } } })
  await put(environment!, 'E=2', caller)
  const again = await restoreTo(at.project, moment, caller, { 'idempotency-key': 'once' })
  t.strictSame([again.headers['idempotent-replayed'], again.body], ['true', first.body])
  t.strictSame(await merged(at, await now(), caller), { A: '1'.repeat(2000), E: '2' }, 'a repeat changes nothing')
})

t.test('stores during a restore-to come before or after it: all levels are of one moment, no write is lost', async (t) => {
  const caller = await test.organization()
  const at = await makeLevel(caller, { name: 'Busy' })
  const targets = await Promise.all(Array.from({ length: 8 }, async (_, i) => {
    await caller.call('POST', org(caller, `/${at.project}/targets`), { name: `t${i}` })
    const level = { project: at.project, target: `t${i}` }
    await put(level, 'A=0', caller)
    return level
  }))
  const moment = await now()
  for (const level of targets) await put(level, 'A=1', caller)
  const stored = new Map<string, string>()
  const end = new AbortController()
  const writers = targets.map(async (level, i) => {
    for (let n = 0; !end.signal.aborted; n++) {
      const { version } = await put(level, `A=${i}.${n}`, caller)
      stored.set(version, `A=${i}.${n}`)
    }
  })
  const answers: Answer[] = []
  for (let i = 0; i < 3; i++) {
    const enough = stored.size + 2 * targets.length
    await until(() => stored.size >= enough, { every: 1 })
    answers.push(await restoreTo(at.project, moment, caller))
  }
  end.abort()
  await Promise.all(writers)
  t.strictSame(answers.map(({ status }) => status), [200, 200, 200])
  const events = await test.sql(`SELECT details FROM audit_events WHERE organization_id = '${caller.organization}' AND action = 'project.restore' ORDER BY seq`) as { details: { first_version: number, restored: number } }[]
  const versions = await test.sql(`SELECT id::int, action, created_at::text, restored_from::int FROM secret_versions WHERE organization_id = '${caller.organization}' ORDER BY id`) as { id: number, action: string, created_at: string }[]
  t.equal(versions.length, 8 + 8 + stored.size + events.reduce((sum, { details }) => sum + details.restored, 0), 'each write has its version')
  for (const { details: { first_version, restored } } of events) {
    const own = versions.filter(({ id }) => id >= first_version && id < first_version + restored)
    t.ok(own.every(({ action }) => action === 'restore'), 'one after the other, with nothing between')
    const time = own[0]!.created_at
    t.ok(own.every(({ created_at }) => created_at === time), 'of one moment')
    const iso = new Date(time).toISOString()
    for (const { target } of targets) {
      t.strictSame((await read(`${at.project}/${target}`, { at: iso, decrypt: 'true', raw: 'true' }, caller)).body, { A: '0' })
    }
  }
  const times = versions.map(({ created_at }) => new Date(created_at).getTime())
  t.ok(times.every((time, i) => i === 0 || time >= times[i - 1]!), 'times of versions grow with their ids')
  for (const [version, plaintext] of stored) {
    const iso = await timeOf(version, caller)
    const { status, body } = await caller.call('GET', org(caller, `/secrets/versions/${version}`))
    t.ok(status === 200 && iso === body.data.attributes.created_at, plaintext)
  }
})

t.test('the version of a moment is found whatever was written, deleted and rotated, in every project', async (t) => {
  const caller = await test.organization()
  const levels = [await makeLevel(caller, { name: 'One' }), await makeLevel(caller, { name: 'Two' })]
  for (let i = 0; i < 24; i++) await put(levels[i % 5 === 0 ? 1 : 0]!, `A=${i}`, caller)
  const its = `organization_id = '${caller.organization}'`
  await test.sql(`DELETE FROM secret_versions WHERE ${its} AND id IN (3, 4, 9, 12, 13, 14, 15, 20)`)
  const versions = await test.sql(`SELECT v.id::int, v.history_id, v.revision::int, v.created_at::text FROM secret_versions v WHERE ${its} ORDER BY id`) as { id: number, history_id: string, revision: number, created_at: string }[]
  const moments = versions.flatMap(({ created_at }) => [-1, 0, 1].map((by) => shift(created_at, by)))
  for (const level of levels) {
    const state = await findLevel(test.database.reads, caller.organization, level, 'revisions')
    const { history_id, revision } = state!.secrets[0]!
    const own = versions.filter((version) => version.history_id === history_id)
    for (const moment of moments) {
      const found = await findDocumentsAt(test.database.reads, state!, new Date(moment), null)
      const until = own.filter(({ created_at }) => new Date(created_at) <= new Date(moment))
      const last = until.at(-1)
      const next = own[until.length]?.revision ?? revision + 1
      const expected = last === undefined
        ? own[0]!.revision === 1 ? [] : [undefined]
        : [next === last.revision + 1 ? last.id : undefined]
      t.strictSame((found as { held: string, version: number }[]).map(({ held, version }) => held === 'unknown' ? undefined : version), expected, moment)
    }
  }
})

t.test('whatever was done to levels, a moment is told and brought back as it was, or as version_gone', async (t) => {
  const caller = await test.organization()
  const at = await makeLevel(caller, { name: 'Model' })
  const levels = levelsOf(at)
  const write = (path: string, body: object) => caller.call('POST', org(caller, `/secrets/${path}`), body)
  const next = random(7)
  let kept: Record<string, string> = {}
  const moments: { moment: string, held: typeof kept }[] = []
  const told = { brought: 0, gone: 0 }
  for (let turn = 0; turn < 36; turn++) {
    const [i, dice] = [Math.floor(next() * 3), next()]
    const [name, level] = [(['project', 'target', 'environment'] as const)[i]!, levels[i]!]
    if (dice < 0.5) {
      kept[name] = `A=${turn}`
      await store(level, { plaintext: kept[name], ...(dice < 0.1 && { no_backup: true }) }, caller)
    } else if (dice < 0.7) {
      await write('delete', { ...level, ...(dice < 0.55 && { no_backup: true, confirmed: true }) })
      delete kept[name]
    } else if (dice < 0.73) await write('versions/purge', { ...level, level: name, confirmed: true })
    else if (dice < 0.76) await caller.call('POST', org(caller, `/${at.project}/encryption-key/rotate`))
    else if (dice < 0.8) {
      const [newest] = await history(level, caller)
      await caller.call('DELETE', org(caller, `/secrets/versions/${newest?.id ?? 1}`), { force: true })
    } else if (moments.length > 0) {
      const { moment, held } = moments[Math.max(0, moments.length - 1 - Math.floor(next() * 8))]!
      const { status, body } = await restoreTo(at.project, moment, caller)
      t.match({ status, body }, status === 200 ? { status } : { status: 422, body: { error: 'version_gone' } })
      if (status === 200) kept = { ...held }
      told[status === 200 ? 'brought' : 'gone']++
    }
    t.strictSame(await contents(at, {}, caller), kept, `after turn ${turn}`)
    moments.push({ moment: await now(), held: { ...kept } })
  }
  t.ok(told.brought > 0 && told.gone > 0)
  const reads = { past: 0, gone: 0 }
  for (const [turn, { moment, held }] of moments.entries()) {
    const { status, body } = await read(at, { at: moment, decrypt: 'true' }, caller)
    if (status === 422) t.equal(body.error, 'version_gone')
    else t.strictSame(contentsOf(body), held, `as it was after turn ${turn}`)
    reads[status === 422 ? 'gone' : 'past']++
  }
  t.ok(reads.past > 0 && reads.gone > 0)
})

t.test('versions with an earlier time than those before them hide no write from before them', async (t) => {
  const caller = await test.organization()
  const [one, two] = [await makeLevel(caller, { name: 'One' }), await makeLevel(caller, { name: 'Two' })]
  await put(two, 'B=0', caller)
  const begun = await now()
  const moment = await now()
  const { version } = await put(two, 'B=1', caller)
  for (let i = 0; i < 12; i++) await put(one, 'A=1', caller)
  await test.sql(`UPDATE secret_versions SET created_at = '${begun}' WHERE organization_id = '${caller.organization}' AND id > ${version}`)
  t.strictSame(await merged(two, moment, caller), { B: '0' })
  t.strictSame(await merged(two, await timeOf(version, caller), caller), { B: '1' })
})

const onServer = { skip: test.database.kind === 'embedded' && 'it has one session: nothing comes between' }

t.test('versions of what waited for its project are not from before what others wrote meanwhile', onServer, async (t) => {
  const caller = await test.organization()
  const [one, two] = [await makeLevel(caller, { name: 'One' }), await makeLevel(caller, { name: 'Two' })]
  await put(one, 'A=1', caller)
  const moment = await now()
  const changes = [
    () => caller.call('POST', org(caller, `/${one.project}/encryption-key/rotate`)),
    () => restoreTo(one.project, moment, caller)
  ]
  const { project } = (await findLevel(test.database.reads, caller.organization, one, 'place'))!
  for (const change of changes) {
    let answer: Answer
    let between: string
    do {
      await put(one, 'A=2', caller)
      const changing = await transaction(test.database.db, async (db) => {
        await lockProject(db, caller.organization, project, 'share')
        const answered = new AbortController()
        const answering = change().finally(() => answered.abort())
        await until(async () => answered.signal.aborted || await isWaiting(), { every: 1 })
        between = (await put(two, 'B=1', caller)).version
        return { answering }
      })
      answer = await changing.answering
      // The rotation waits at most a second, and the other operation may take longer.
    } while (answer.status === 409)
    t.equal(answer.status, 200)
    const [newest] = await history(one, caller)
    t.ok(Number(newest!.id) > Number(between!))
    t.ok(newest!.attributes.created_at >= await timeOf(between!, caller), newest!.attributes.action)
  }
})

const isWaiting = async () => (await test.sql(
  `SELECT 1 FROM ${ACTIVITY} WHERE datname = current_database() AND wait_event_type = 'Lock'`
)).length > 0
