// runs: one database
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import t from 'tap'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { buildApp } from '../../src/app.ts'
import { transaction } from '../../src/changes/transaction.ts'
import { DETAILS, ON_CITUS, startApp, makeLevel, type Answer, type Caller } from '../helpers/app.ts'
import { isGivenByTeams, OPERATIONS, prepare, publishedPaths, READS, send, settle } from '../helpers/operations.ts'
import { issuePair, makePerson, makeTeam } from '../helpers/people.ts'
import { postAndLeave } from '../helpers/sockets.ts'
import { startBeside } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

// Repeated requests with the same `Idempotency-Key`, on every route that accepts the header.

const service = await startApp(t)

/** Operations without a caller. Their standards have no such header, or they have no effect. */
const WITHOUT_CALLER = ['getAccessToken', 'revokeToken', 'sendTelemetry']
/** Operations whose response contains a value that is shown only once. */
const SHOWN_ONCE = ['createApiToken', 'rotateApiToken']

const keyed = (key: string) => ({ 'idempotency-key': key })
const isReplay = ({ headers }: Answer) => headers['idempotent-replayed'] === 'true'
/** The number of events, without `key.retrieve`, because a repeat that shows a key string records such an event. */
const eventsOf = async (caller: Caller) => Number((await service.sql(
  `SELECT count(*) FROM audit_events WHERE organization_id = '${caller.organization}' AND action <> 'key.retrieve'`
))[0]!.count)
const retrievalsOf = (caller: Caller) => service.sql(`SELECT actor_id, resource_type, resource_id, ${DETAILS}
  FROM audit_events WHERE organization_id = '${caller.organization}' AND action = 'key.retrieve' ORDER BY seq`)
const answersOf = (caller: Caller) =>
  service.sql(`SELECT * FROM idempotency_keys WHERE organization_id = '${caller.organization}'`)

t.test('every POST and change of names or billing takes an Idempotency-Key, and a repeat acts only once', async (t) => {
  const { caller, ids, person } = await settle(service, 'repeated')
  const owned = async () => Number((await service.sql(
    `SELECT count(*) FROM members WHERE user_id = ${person.id}`
  ))[0]!.count)
  const paths = publishedPaths(service)
  const needsBilling = ({ security }: Record<string, unknown>) => JSON.stringify(security).includes('"billing:write"')
  const isChangeOfNames = (id: string) => /^change\w+Secrets$/.test(id)
  const all = Object.values(paths).flatMap((methods) => Object.entries<Record<string, unknown>>(methods))
  const expected = all.filter(([method, operation]) =>
    method === 'post' || needsBilling(operation) ||
    isChangeOfNames(String(operation.operationId))).map(([, { operationId }]) => operationId)
  const repeated: string[] = []
  for (const [id, row] of Object.entries(OPERATIONS)) {
    const [method, path] = row.at.split(' ') as [string, string]
    const { parameters = [] } = paths[path]![method.toLowerCase()]
    const takesKey = (parameters as { name: string }[]).some(({ name }) => name === 'idempotency-key')
    const bearer = row.byPerson ? person.access : caller.token
    await prepare(service, row, ids)
    const isChange = method === 'POST' || row.access === 'billing:write' || isChangeOfNames(id)
    if (!isChange || READS.includes(id) || WITHOUT_CALLER.includes(id)) {
      t.notOk(takesKey, `${id}: takes none`)
      if (row.access !== 'public') await send(service, row, ids, bearer)
      continue
    }
    repeated.push(id)
    t.ok(takesKey, `${id}: the document says so`)
    const first = await send(service, row, ids, bearer, keyed(`key-of-${id}`))
    t.ok(first.status < 300 && !isReplay(first), `${id}: ${first.status} ${first.text.slice(0, 200)}`)
    const before = [await eventsOf(caller), await owned()]
    const again = await send(service, row, ids, bearer, keyed(`key-of-${id}`))
    t.strictSame([await eventsOf(caller), await owned()], before, `${id}: nothing is done twice`)
    if (SHOWN_ONCE.includes(id)) {
      t.match(again, {
        status: 409, body: { error: 'idempotent_secret_unavailable', details: { id: first.body.api_key.id } }
      }, id)
    } else {
      t.strictSame([again.status, again.text, isReplay(again)], [first.status, first.text, true], id)
      t.equal(again.headers.etag, first.headers.etag, `${id}: with its ETag`)
      t.equal(again.headers['content-type'], first.headers['content-type'], id)
    }
  }
  t.strictSame(
    [...repeated, ...READS, ...WITHOUT_CALLER].sort(), expected.sort(), 'each of them is one of these'
  )
})

t.test('a repeat is checked like any request: without the permission or the resource there is no replay', async (t) => {
  const { caller, ids } = await settle(service, 'judged')
  const o = caller.organization
  // Rosa has the permissions by her role, Ben by the role of a team.
  const [rosa, ben] = [await makePerson(service, { [o]: 'owner' }), await makePerson(service, { [o]: 'auditor' })]
  const projects = ['judged-project', 'judged-other', 'judged-client']
  const team = await makeTeam(service, o, [ben], Object.fromEntries(projects.map((slug) => [slug, 'owner' as const])))
  // Both keep another project, so that the guard still accepts them and only the level decides.
  await caller.call('POST', `/${o}/projects`, { name: 'Comet', slug: 'judged-comet' })
  await makeTeam(service, o, [ben], { 'judged-comet': 'owner' })
  const [byRole, byTeam] = await Promise.all([rosa, ben].map(async (person) =>
    (await issuePair(service, person, SCOPE_NAMES)).access))
  const change = (table: string, set: string, person: { id: number }) =>
    service.write(`UPDATE ${table} SET ${set} WHERE organization_id = '${o}' AND user_id = ${person.id}`)
  const rows = Object.entries(OPERATIONS).filter(([id, row]) =>
    row.at.startsWith('POST ') && row.access !== 'public' && !row.byPerson && !READS.includes(id))
  // The purge uses another level, so that the version for the restore stays.
  const beside = { ...ids, environment: 'judged-other' }
  const ask = (id: string, row: (typeof rows)[number][1]) =>
    send(service, row, id === 'purgeVersions' ? beside : ids, isGivenByTeams(row) ? byTeam : byRole, keyed(`key-of-${id}`))
  const first = new Map<string, Answer>()
  for (const [id, row] of rows) {
    await prepare(service, row, ids)
    const answer = await ask(id, row)
    t.ok(answer.status < 300, `${id}: ${answer.text}`)
    first.set(id, answer)
  }
  const refused = async (when: string, [id, row]: (typeof rows)[number]) => {
    const { status, headers, text } = await ask(id, row)
    t.ok([403, 404].includes(status), `${id} ${when}: ${status} ${text}`)
    t.notOk('idempotent-replayed' in headers, `${id} ${when}`)
  }

  await change('members', "role = 'api_user'", rosa)
  await service.sql(`DELETE FROM team_projects WHERE organization_id = '${o}' AND team_id = '${team}'`)
  for (const row of rows) await refused('without the role', row)
  for (const person of [rosa, ben]) await change('members', "role = 'owner'", person)
  for (const [id, row] of rows) {
    if (SHOWN_ONCE.includes(id)) continue
    const { text, headers } = await ask(id, row)
    t.strictSame([text, headers['idempotent-replayed']], [first.get(id)!.text, 'true'], `${id}: with it again`)
  }
  for (const slug of projects) t.equal((await caller.call('DELETE', `/${o}/${slug}`)).status, 204)
  const inProject = rows.filter(([, { depth }]) => depth !== 'organization')
  t.ok(inProject.some(([id]) => id === 'restoreVersion'), `${inProject.length} of them are about a project`)
  for (const row of inProject) await refused('without its project', row)
  t.equal((await caller.call('DELETE', `/organizations/${o}`, { confirmed: true })).status, 204)
  for (const row of rows) await refused('without its organization', row)
})

t.test('a repeat is refused after the owner became an administrator, or the version was locked', async (t) => {
  const owner = await service.organization({ plan: 'free' })
  const o = owner.organization
  const person = await makePerson(service, { [o]: 'owner' })
  const { access } = await issuePair(service, person, SCOPE_NAMES)
  const ask = (path: string, body: object, key: string) => owner.call('POST', path, body, {
    ...keyed(key), authorization: `Bearer ${access}`
  })
  const add = () => ask(`/organizations/${o}/members`, { email: 'added@example.com', role: 'owner' }, 'add')
  const become = (role: string) =>
    service.write(`UPDATE members SET role = '${role}' WHERE organization_id = '${o}' AND user_id = ${person.id}`)
  const first = await add()
  t.equal(first.status, 201, first.text)
  await become('administrator')
  t.match(await add(), { status: 422, body: { error: 'role_not_held', details: { role: 'owner' } } })
  await become('owner')
  const again = await add()
  t.strictSame([again.text, isReplay(again)], [first.text, true], 'with the role again')

  const at = await makeLevel(owner)
  const stored = await owner.call('POST', `/${o}/secrets/store`, { ...at, plaintext: 'A=1' })
  t.ok(stored.status < 300, stored.text)
  const { body: { data: [{ id }] } } = await owner.call('POST', `/${o}/secrets/versions`, at)
  const restore = () => ask(`/${o}/secrets/versions/${id}/restore`, {}, 'restore')
  t.equal((await restore()).status, 200)
  await service.sql(`UPDATE secret_versions SET created_at = now() - interval '1 year'
    WHERE organization_id = '${o}' AND id = ${id}`)
  t.match(await restore(), { status: 403, body: { error: 'version_locked' } })
})

t.test('a route that gives its first answer again, and bounds itself in its handler, does not boot', async (t) => {
  const app = await buildApp({
    config: service.config,
    database: service.database,
    keyring: service.keyring,
    costs: service.app.costs,
    logStream: { write: () => {} }
  })
  t.teardown(() => app.close())
  const route = (more: object) =>
    app.post('/x', { config: { access: 'secret:write', filtersInHandler: true, audit: 'none', ...more } }, async () => 'x')
  t.throws(() => route({}), /cannot be repeatable and declare config\.filtersInHandler/)
  t.doesNotThrow(() => route({ repeatable: false }))
})

t.test('a key with another request is 422, also outside an organization, and each caller has its own keys', async (t) => {
  const caller = await service.organization()
  const o = caller.organization
  const create = (who: Caller, path: string, name: string) => who.call('POST', `/${o}/${path}`, { name }, keyed('one'))
  t.equal((await create(caller, 'projects', 'Orbit')).status, 201)
  t.equal((await create(caller, 'projects', 'Comet')).body.error, 'idempotency_key_reused', 'another body')
  t.equal((await create(caller, 'orbit/targets', 'Orbit')).body.error, 'idempotency_key_reused', 'another path')
  t.equal((await create(await service.token(o, ['*']), 'projects', 'Comet')).status, 201, 'another token')
  for (const bad of ['', 'x'.repeat(256), 'a b']) {
    const answer = await caller.call('POST', `/${o}/projects`, { name: 'Bad' }, keyed(bad))
    t.match(answer, { status: 422, body: { error: 'validation_failed' } })
  }

  const found = async (bearer: string, name: string, key = 'one') => service.inject({
    method: 'POST',
    url: '/api/v1/organizations',
    payload: { name },
    headers: { authorization: `Bearer ${bearer}`, ...keyed(key) }
  })
  const [rosa, ben] = await Promise.all([1, 2].map(async () =>
    (await issuePair(service, await makePerson(service), ['organization:create', 'project:create'])).access))
  const first = await found(rosa!, 'Nimbus')
  t.equal(first.status, 201)
  t.strictSame((await found(rosa!, 'Nimbus')).body, first.body)
  t.equal((await found(rosa!, 'Stratus')).body.error, 'idempotency_key_reused')
  t.notSame((await found(ben!, 'Nimbus')).body.data.id, first.body.data.id)
  const inside = await service.inject({
    method: 'POST',
    url: `/api/v1/${first.body.data.id}/projects`,
    payload: { name: 'Orbit' },
    headers: { authorization: `Bearer ${rosa}`, ...keyed('one') }
  })
  t.equal(inside.status, 201, 'a key in an organization is another one')
})

t.test('a token that rotates itself with a key stays valid for a while, so a repeat returns the new token', async (t) => {
  const owner = await service.organization()
  const own = await service.token(owner.organization, ['*'])
  const path = (id: number | string) => `/organizations/${owner.organization}/api-keys/${id}/rotate`
  const [{ id }] = await service.sql(`SELECT id FROM api_tokens
    WHERE organization_id = '${owner.organization}' ORDER BY id DESC LIMIT 1`) as [{ id: string }]
  for (const body of [{}, { overlap_seconds: 0 }]) {
    t.match(await own.call('POST', path(id), body, keyed('one')), {
      status: 422, body: { error: 'validation_failed', errors: { overlap_seconds: [/at least 1/] } }
    })
  }
  const first = await own.call('POST', path(id), { overlap_seconds: 60 }, keyed('one'))
  t.equal(first.status, 200)
  t.match(await own.call('POST', path(id), { overlap_seconds: 60 }, keyed('one')), {
    status: 409, body: { error: 'idempotent_secret_unavailable', details: { id: String(id) } }
  }, 'the value that it had')
  const second = await own.call('POST', path(id), { overlap_seconds: 60 }, keyed('two'))
  t.equal(second.status, 200, 'which rotates once more')
  const uses = async (token: string) => (await service.inject({
    method: 'GET', url: '/api/v1/user', headers: { authorization: `Bearer ${token}` }
  })).status
  t.strictSame([await uses(first.body.token), await uses(second.body.token)], [401, 200])
  const third = await own.call('POST', path(id), { overlap_seconds: 3600 }, keyed('again'))
  t.strictSame(
    [third.status, await uses(second.body.token), await uses(third.body.token), await uses(own.token)],
    [200, 401, 200, 200], 'as often as answers get lost'
  )
  const [{ left }] = await service.sql(`SELECT extract(epoch FROM expires_at - now()) AS left FROM former_token_hashes
    WHERE organization_id = '${owner.organization}'`) as [{ left: string }]
  t.ok(Number(left) < 61, 'and it makes itself last no longer')
  t.equal((await owner.call('POST', path(id), {}, keyed('three'))).status, 200, 'another one needs no overlap')
  const bare = await service.token(owner.organization, ['*'])
  const [{ id: other }] = await service.sql(`SELECT id FROM api_tokens
    WHERE organization_id = '${owner.organization}' ORDER BY id DESC LIMIT 1`) as [{ id: string }]
  t.equal((await bare.call('POST', path(other), {})).status, 200, 'nor does one without a key')
})

t.test('a repeat may name members in another order; another order of a list is another request', async (t) => {
  const caller = await service.organization()
  const path = `/${caller.organization}/projects`
  const create = (body: object, query = '') => caller.call('POST', path + query, body, keyed('one'))
  const first = await create({ name: 'Orbit', slug: 'orbit' })
  const again = await create({ slug: 'orbit', name: 'Orbit' })
  t.strictSame([again.status, again.text, isReplay(again)], [201, first.text, true])
  t.equal((await create({ name: 'Orbit', slug: 'orbit' }, '?dry=1')).body.error, 'validation_failed')
  const make = (body: object) =>
    caller.call('POST', `/organizations/${caller.organization}/api-keys`, { name: 'CI', ...body }, keyed('two'))
  const abilities = ['secret:read', 'secret:write']
  t.equal((await make({ abilities })).status, 201)
  t.equal((await make({ abilities: [...abilities].reverse() })).body.error, 'idempotency_key_reused')
})

t.test('of 50 repeats at once one takes effect: create, store, restore, delete, add a member, rotate', async (t) => {
  const caller = await service.organization()
  const o = caller.organization
  const level = await makeLevel(caller)
  const { version } = (await caller.call('POST', `/${o}/secrets/store`, { ...level, plaintext: 'A=1' })).body.data
  const matching = async () => {
    const stored = await caller.call('POST', `/${o}/secrets/store`, { ...level, plaintext: 'A=0' })
    return { 'if-match': String(stored.headers.etag) }
  }
  for (const [path, body, condition] of [
    [`/${o}/projects`, { name: 'Orbit', slug: 'given' }],
    [`/${o}/secrets/store`, { ...level, plaintext: 'A=2' }],
    [`/${o}/secrets/versions/${version}/restore`, {}],
    [`/${o}/secrets/store`, { ...level, plaintext: 'A=3' }, matching],
    [`/${o}/secrets/versions/${version}/restore`, {}, matching],
    [`/${o}/secrets/delete`, level, matching],
    [`/organizations/${o}/members`, { email: 'rosa@nimbus.example', role: 'member' }],
    [`/${o}/${level.project}/encryption-key/rotate`, {}],
    [`/organizations/${o}/teams`, { name: 'Platform', slug: 'platform' }]
  ] as const) {
    const headers = { ...keyed(`${path}-${condition === undefined}`), ...await condition?.() }
    const before = await eventsOf(caller)
    const answers = await Promise.all(Array.from({ length: 50 }, () => caller.call('POST', path, body, headers)))
    const good = answers.filter(({ status }) => status < 300)
    t.equal(new Set(good.map(({ text }) => text)).size, 1, path)
    t.equal(good.filter((one) => !isReplay(one)).length, 1, path)
    t.same(answers.filter(({ status }) => status >= 300 && status !== 409), [], path)
    t.equal(await eventsOf(caller), before + 1, path)
  }
})

t.test('a repeat of an acceptance gets the first answer, also if the invitation has gone meanwhile', async (t) => {
  const second = await startBeside(t, service)
  // The embedded database has one instance.
  if (second === undefined) return
  const caller = await service.organization()
  const person = await makePerson(service)
  const { access } = await issuePair(service, person, ['organization:create'])
  const invited = await caller.call(
    'POST', `/organizations/${caller.organization}/members`, { email: person.email, role: 'auditor' }
  )
  const { id } = invited.body.data
  const accept = (key: string, app = service.app, invitation = id) => app.inject({
    method: 'POST',
    url: `/api/v1/user/invitations/${invitation}/accept`,
    headers: { authorization: `Bearer ${access}`, ...keyed(key) }
  })
  // The test holds all connections of the second instance until the first instance has accepted.
  let release = () => {}
  const isReleased = new Promise<void>((resolve) => { release = resolve })
  const holders = Array.from({ length: 20 }, () => transaction(second.db, () => isReleased).catch(() => {}))
  const looked = new Promise<void>((resolve) => {
    const listen = (message: unknown) => {
      const { phase, text } = message as { phase: string, text: string }
      if (phase !== 'after' || !/from "members" inner join "idempotency_keys"/.test(text)) return
      unsubscribe('strongroom:statement', listen)
      resolve()
    }
    subscribe('strongroom:statement', listen)
  })
  const repeat = accept('accept', second)
  await looked
  const first = await accept('accept')
  t.strictSame([first.statusCode, first.headers['idempotent-replayed']], [200, undefined])
  release()
  const { statusCode, payload, headers } = await repeat
  t.strictSame([statusCode, payload, headers['idempotent-replayed']], [200, first.payload, 'true'])
  await Promise.all(holders)
  for (const app of [service.app, second]) {
    t.equal((await accept('another', app)).statusCode, 404, 'another key is no repeat')
    const other = id.replace(/.$/, (last: string) => last === '0' ? '1' : '0')
    t.equal((await accept('accept', app, other)).json().error, 'idempotency_key_reused')
  }
})

t.test('repeats at once get the first answer or 409 conflict, and do not count in the limit of the effect', async (t) => {
  const limited = await startApp(t, { RATE_LIMIT_KEY_ROTATION: '3', RATE_LIMIT_API: '3' })
  // The test does not count the general requests of this organization.
  await limited.sql("UPDATE plans SET api_per_minute = 1000 WHERE name = 'team'")
  const caller = await limited.organization({ plan: 'team' })
  const o = caller.organization
  t.equal((await caller.call('POST', `/${o}/projects`, { name: 'Orbit' })).status, 201)
  const rotate = (headers = {}) => caller.call('POST', `/${o}/orbit/encryption-key/rotate`, {}, headers)
  const add = (n: number, headers = {}) =>
    caller.call('POST', `/organizations/${o}/members`, { email: `rosa${n}@nimbus.example`, role: 'auditor' }, headers)
  for (const [what, effect] of [
    ['rotation', async (_: number, headers = {}) => rotate(headers)], ['invitation', add]
  ] as const) {
    for (let n = 0; n < 3; n++) {
      const answers = await Promise.all(Array.from({ length: 12 }, () => effect(n, keyed(`${what}-${n}`))))
      const good = answers.filter(({ status }) => status < 300)
      t.equal(good.filter((one) => !isReplay(one)).length, 1)
      t.equal(new Set(good.map(({ text }) => text)).size, 1)
      const others = answers.filter((one) => !good.includes(one))
      t.same(others.filter(({ status, body }) => status !== 409 || body.error !== 'conflict').map(({ text }) => text), [])
    }
    t.equal((await effect(3)).status, 429, 'three of them were done')
  }
})

t.test('a creation whose client has left, alone or with others in its connection, keeps no repeat out', async (t) => {
  const caller = await service.organization()
  const path = `/${caller.organization}/projects`
  const address = await service.listen()
  const taken = { name: 'Taken', slug: 'taken' }
  t.equal((await caller.call('POST', path, taken)).status, 201)
  // Node.js tells only the first request of a connection that the connection is closed. The service carries out all.
  for (const [of, together] of [['alone', 1], ['pipelined', 3]] as const) {
    for (const [what, body] of [['refused', taken], ['made', { name: `Made ${of}` }]] as const) {
      const keys = Array.from({ length: together }, (_, i) => `${of}-${what}-${i}`)
      await postAndLeave(address, keys.map((key) => ({
        path: `/api/v1${path}`,
        headers: { ...keyed(key), 'x-request-id': key, authorization: `Bearer ${caller.token}`, 'content-type': 'application/json' },
        body: JSON.stringify(body)
      })))
      for (const key of keys) {
        await until(() => service.logs.some((line) => line.includes(`"reqId":"${key}"`) && line.includes('"msg":"request"')))
        const again = await caller.call('POST', path, body, keyed(key))
        if (what === 'refused') t.equal(again.body.error, 'slug_taken', key)
        else t.strictSame([again.status, isReplay(again)], [201, true], key)
      }
    }
  }
})

t.test('a change of a key that meets another one, of no such key, is told that, and not that it was repeated', async (t) => {
  const caller = await service.organization()
  const o = caller.organization
  await caller.call('POST', `/${o}/projects`, { name: 'Orbit' })
  const answers = await Promise.all(Array.from({ length: 4 }, (_, n) =>
    caller.call('POST', `/${o}/orbit/encryption-key/rotate`, {}, keyed(`rotation-${n}`))))
  t.strictSame(
    answers.map(({ status, body }) => body.error ?? status).sort(),
    [200, ...Array.from({ length: 3 }, () => 'key_version_conflict')]
  )
})

t.test('a stored answer shows neither key nor content, and has no token value or key string, even sealed', async (t) => {
  const caller = await service.organization()
  const o = caller.organization
  await caller.call('POST', `/${o}/projects`, { name: 'Orbit' }, keyed('order-17'))
  const made = await caller.call(
    'POST', `/organizations/${o}/api-keys`, { name: 'CI', abilities: ['secret:read'] }, keyed('order-18')
  )
  const rotated = await caller.call('POST', `/${o}/orbit/encryption-key/rotate`, {}, keyed('order-19'))
  const keyString = rotated.body.data.key.attributes.key
  t.equal((await answersOf(caller)).length, 3)
  const kept = JSON.stringify(await answersOf(caller))
  t.notMatch(kept, /order-1|orbit/i)
  t.notMatch(kept, made.body.token)
  t.notMatch(kept, keyString)

  const repeat = () => caller.call('POST', `/${o}/orbit/encryption-key/rotate`, {}, keyed('order-19'))
  t.strictSame((await repeat()).text, rotated.text, 'the key string is there for as long as the key is in use')
  await caller.call('POST', `/${o}/orbit/encryption-key/rotate`, {})
  t.match(await repeat(), {
    status: 409, body: { error: 'idempotent_secret_unavailable', details: { id: rotated.body.data.key.id } }
  })

  await service.sql(`UPDATE idempotency_keys SET answer = (SELECT answer FROM idempotency_keys
    WHERE organization_id = '${o}' AND key <> k.key ORDER BY key LIMIT 1)
    FROM (SELECT key FROM idempotency_keys WHERE organization_id = '${o}') k
    WHERE idempotency_keys.organization_id = '${o}' AND idempotency_keys.key = k.key`)
  const moved = await caller.call('POST', `/${o}/projects`, { name: 'Orbit' }, keyed('order-17'))
  t.match(moved, { status: 500, body: { error: 'integrity_error' } }, 'an answer that was moved to another key')
})

t.test('AU-01: a repeat that returns a key string again is audited first, and without the audit it is 503', async (t) => {
  const caller = await service.organization()
  const o = caller.organization
  await caller.call('POST', `/${o}/projects`, { name: 'Orbit' })
  const rotate = (headers = {}) => caller.call('POST', `/${o}/orbit/encryption-key/rotate`, {}, headers)
  const first = await rotate(keyed('one'))
  const { id, key } = first.body.data.key.attributes
  t.strictSame([...await retrievalsOf(caller)], [], 'the rotation itself is its event')
  t.strictSame((await rotate(keyed('one'))).text, first.text)
  const retrieval = { resource_type: 'encryption-key', resource_id: String(id), details: { version: 2 } }
  t.match([...await retrievalsOf(caller)], [retrieval])

  await service.sql(`CREATE FUNCTION refuse_event () RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'not recorded'; END $$`)
  await service.sql(`CREATE TRIGGER refuse_event BEFORE INSERT ON audit_events FOR EACH ROW
    WHEN (NEW.organization_id = '${o}') EXECUTE FUNCTION refuse_event()`)
  const unrecorded = await rotate(keyed('one'))
  await service.sql('DROP TRIGGER refuse_event ON audit_events')
  t.match(unrecorded, { status: 503, body: { error: 'service_unavailable' } })
  t.notMatch(unrecorded.text, key)
  t.strictSame((await rotate(keyed('one'))).text, first.text)
  t.match([...await retrievalsOf(caller)], [retrieval, retrieval])

  await rotate()
  t.equal((await rotate(keyed('one'))).body.error, 'idempotent_secret_unavailable')
  t.equal((await retrievalsOf(caller)).length, 2, 'what shows nothing leaves nothing')
})

t.test('where the answer cannot be kept, nothing was done; what is refused is not kept', async (t) => {
  const caller = await service.organization()
  const o = caller.organization
  const level = await makeLevel(caller)
  const requests: [string, object][] = [
    [`/${o}/projects`, { name: 'Lost', slug: 'lost' }],
    [`/${o}/secrets/store`, { ...level, plaintext: 'A=1' }],
    [`/organizations/${o}/members`, { email: 'ben@nimbus.example', role: 'member' }]
  ]
  await service.sql(`CREATE FUNCTION refuse_answer () RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'not kept'; END $$`)
  await service.sql(`CREATE TRIGGER refuse_answer BEFORE INSERT ON idempotency_keys FOR EACH ROW
    WHEN (NEW.organization_id = '${o}') EXECUTE FUNCTION refuse_answer()`)
  const before = await eventsOf(caller)
  for (const [path, body] of requests) {
    t.equal((await caller.call('POST', path, body, keyed(path))).status, 500, path)
  }
  t.equal(await eventsOf(caller), before)
  await service.sql('DROP TRIGGER refuse_answer ON idempotency_keys')
  for (const [path, body] of requests) {
    const answer = await caller.call('POST', path, body, keyed(path))
    t.ok(answer.status < 300 && !isReplay(answer), `${path}: ${answer.text}`)
  }
  const refused = { name: 'Other', slug: 'lost' }
  t.equal((await caller.call('POST', `/${o}/projects`, refused, keyed('refused'))).body.error, 'slug_taken')
  t.equal((await caller.call('POST', `/${o}/projects`, { name: 'Other' }, keyed('refused'))).status, 201)
})

t.test('20,000 answers to one who calls are kept at once, whatever others repeat', async (t) => {
  const caller = await service.organization()
  const o = caller.organization
  const { id } = (await caller.call('GET', '/user')).body.data
  const fill = async (principal: string) =>
    service.sql(`INSERT INTO idempotency_keys (organization_id, principal, key, request, status, answer)
      SELECT '${o}', '${principal}', n::text, '', 201, '{}' FROM generate_series(1, 20000) n`)
  const create = (name: string, headers = {}) => caller.call('POST', `/${o}/projects`, { name }, headers)
  await fill('api_token:0')
  t.equal((await create('One', keyed('one'))).status, 201)
  await fill(`api_token:${id}`)
  t.match(await create('Two', keyed('two')), { status: 422, body: { error: 'limit_reached', details: { limit: 20_000 } } })
  t.equal((await create('Two')).status, 201, 'without a key it is as ever')
  await service.sql(`UPDATE idempotency_keys SET created_at = now() - interval '25 hours' WHERE organization_id = '${o}'`)
  t.equal((await create('Three', keyed('two'))).status, 201, 'until those are a day old')
})

t.test('a request without a key asks the database nothing about keys', async (t) => {
  const caller = await service.organization()
  const sent: string[] = []
  const look = (message: unknown) => {
    const { text } = message as { text: unknown }
    if (/idempotency_keys|advisory/.test(String(text))) sent.push(String(text))
  }
  subscribe('strongroom:statement', look)
  t.teardown(() => unsubscribe('strongroom:statement', look))
  const create = (name: string, headers = {}) =>
    caller.call('POST', `/${caller.organization}/projects`, { name }, headers)
  t.equal((await create('One')).status, 201)
  t.strictSame(sent, [])
  t.equal((await create('Two', keyed('two'))).status, 201)
  t.not(sent.length, 0, 'with one it does')
})

t.test('a repeat gets the response of the attempt that committed', { skip: ON_CITUS && 'no triggers' }, async (t) => {
  const owner = await service.organization()
  const o = owner.organization
  const person = await makePerson(service)
  const { access } = await issuePair(service, person, SCOPE_NAMES)
  await service.sql('CREATE SEQUENCE attempts')
  await service.sql(`CREATE FUNCTION lose_first_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF nextval('attempts') % 2 = 1 THEN RAISE EXCEPTION 'lost' USING ERRCODE = 'serialization_failure'; END IF;
      RETURN NEW;
    END $$`)
  await service.sql(`CREATE TRIGGER lose_first_attempt BEFORE INSERT ON idempotency_keys FOR EACH ROW
    WHEN (NEW.principal = 'user:${person.id}' OR NEW.organization_id = '${o}') EXECUTE FUNCTION lose_first_attempt()`)
  t.teardown(async () => {
    await service.sql('DROP FUNCTION lose_first_attempt CASCADE')
    await service.sql('DROP SEQUENCE attempts')
  })
  const attempts = async () => Number((await service.sql('SELECT last_value FROM attempts'))[0]!.last_value)
  const at = await makeLevel(owner)
  const invited = await owner.call('POST', `/organizations/${o}/members`, { email: person.email, role: 'developer' })
  const cases: [string, object, Record<string, string>?][] = [
    ['/organizations', { name: 'Second' }, { authorization: `Bearer ${access}` }],
    [`/user/invitations/${invited.body.data.id}/accept`, {}, { authorization: `Bearer ${access}` }],
    [`/${o}/secrets/store`, { ...at, plaintext: 'A=1' }],
    [`/${o}/projects`, { name: 'Comet' }],
    [`/${o}/${at.project}/encryption-key/rotate`, {}]
  ]
  let made = 0
  for (const [path, body, headers] of cases) {
    const ask = () => owner.call('POST', path, body, { ...keyed(`lost ${path}`.replaceAll(/[^a-z]/g, '-')), ...headers })
    const first = await ask()
    t.ok(first.status < 300 && !isReplay(first), `${path}: ${first.text}`)
    t.equal(await attempts(), made += 2, `${path}: two attempts`)
    const again = await ask()
    t.strictSame([again.status, again.text, isReplay(again)], [first.status, first.text, true], path)
  }
})
