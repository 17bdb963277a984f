// runs: one database; fault
import t from 'tap'
import { lost, outsideContract, recovers, shortcomings, watched, type Outcome } from '../helpers/faults.ts'
import {
  makeLevels, patient, random, mix, rotate, startInstances, store, type Level, type Reply
} from '../helpers/traffic.ts'

// Tests the criteria of the fault tests. They must accept correct behaviour of the service, and detect errors.

const { service, addresses, organization } = await startInstances(t)
const caller = { organization, token: (await service.token(organization, ['*'])).token }
const beside = `organization_id = '${organization}'`

t.test('a service without a fault loses nothing and answers by its contract', async (t) => {
  const watch = watched(addresses, caller)
  const send = patient(watch.send)
  const levels = await makeLevels(send, 'orbit', ['live', 'test'])
  const next = random(7)
  const seen: number[] = []
  for (let i = 0; i < 60; i++) {
    const { reply } = await mix(send, levels, next, seen)
    const version = reply?.body?.data?.version
    if (version) seen.push(Number(version))
  }
  await rotate(send, levels[0]!, 'keep')
  for (const [method, path, body] of [
    ['GET', '//healthz'], ['GET', '//readyz'], ['GET', '/projects'], ['PATCH', '/orbit', { description: 'x' }],
    ['GET', '/nothing'], ['POST', '/projects', { name: 'Orbit', slug: 'orbit' }], ['POST', '/projects', {}],
    ['PUT', '/secrets/store', {}], ['GET', '//api/v1/organizations'], ['GET', `/${'x'.repeat(9000)}`]
  ] as const) await send(method, path, body)
  t.same(watch.outside, [])
  t.ok(watch.acknowledged() > 30, `${watch.acknowledged()} of ${watch.operations.length}`)
  t.same(await lost(service.sql, organization, watch), [])
})

t.test('what was acknowledged and is not there, or is there otherwise, is found', async (t) => {
  const watch = watched(addresses, caller)
  const send = patient(watch.send)
  const [level] = await makeLevels(send, 'ledger', ['kept']) as [Level]
  for (const text of ['A=1', 'A=2', 'A=3']) await store(send, level, text)
  const all = async () => (await lost(service.sql, organization, watch)).join('\n')
  const [kept] = watch.operations
  watch.operations.push({ ...kept!, request: 'never-sent' })
  t.match(await all(), /never-sent was acknowledged and has 0 events/)
  watch.operations.pop()
  kept!.plaintext = 'A=0'
  t.match(await all(), /ledger\/backend\/kept: version \d+ does not hold what was written/)
  kept!.plaintext = 'A=1'
  watch.operations.at(-1)!.plaintext = 'A=4'
  t.match(await all(), /the document is not what was stored last/)
  watch.operations.at(-1)!.plaintext = 'A=3'
  const last = watch.operations.at(-1)!.reply!.body.data.version
  await service.sql(`DELETE FROM secret_versions WHERE ${beside} AND id = ${last}`)
  t.match(await all(), /version \d+ is not listed/)
})

t.test('an answer that is not documented is found', async (t) => {
  const watch = watched(addresses, caller)
  const read = await watch.send('GET', '/projects')
  const refused = await watch.send('POST', '/projects', {})
  const away = { error: 'service_unavailable', message: 'x' }
  t.same(watch.outside, [])
  const alter = (reply: Reply, more: Partial<Reply>, headers: Record<string, string> = {}): Reply =>
    ({ ...reply, ...more, headers: new Headers({ ...Object.fromEntries(reply.headers), ...headers }) })
  const nameless = alter(read, {})
  nameless.headers.delete('x-request-id')
  const unknown = { error: 'no_such_error', message: 'x' }
  const wrong: Record<string, [Reply, RegExp]> = {
    'a status': [alter(read, { status: 418 }), /418: no such status/],
    'a status of another operation': [alter(read, { status: 201 }), /201: no such status/],
    'a failure inside': [alter(refused, { status: 500, body: { error: 'internal_error', message: 'x' } }), /something failed/],
    'a body without a member': [alter(read, { body: {} }), /required property 'data'/],
    'a body with another member': [alter(read, { body: { ...read.body, more: 1 } }), /must NOT have additional properties/],
    'an error that is none': [alter(refused, { body: unknown }), /no_such_error/],
    'an error of another operation': [alter(refused, { body: { error: 'last_owner', message: 'x' } }), /last_owner is not documented/],
    'an error of another status': [alter(refused, { status: 503 }), /validation_failed is not documented/],
    'a type': [alter(read, {}, { 'content-type': 'text/html' }), /text\/html content/],
    'a request without an id': [nameless, /no X-Request-Id/],
    'Retry-After where it does not go': [alter(refused, { status: 503, body: away }, { 'retry-after': '1' }), /Retry-After is 1/]
  }
  for (const [name, [reply, expected]] of Object.entries(wrong)) {
    const method = reply.status < 300 || reply.status === 418 ? 'GET' : 'POST'
    t.match(outsideContract(method, '/projects', reply).join('\n'), expected, name)
  }
  t.same(outsideContract('POST', '/projects', alter(refused, { status: 503, body: away })), [])
  for (const [path, details, expected] of [
    ['/projects', { allowed: 'GET' }, /allowed must be array/], ['/projects', undefined, /required property 'details'/],
    ['/projects', { allowed: ['GET'], more: 1 }, /must NOT have additional/], ['/nothing/here', { resource: 1 }, /resource must be string/]
  ] as const) {
    const reply = await watch.send('PUT', path)
    t.same(outsideContract('PUT', path, reply), [], `${path} ${reply.status}`)
    const { body } = reply
    t.match(outsideContract('PUT', path, alter(reply, { body: { ...body, details } })).join('\n'), expected)
  }
})

t.test('a service that stays away, a process that ended and a late recovery are found', async (t) => {
  const { send } = watched(addresses, caller)
  const [level] = await makeLevels(send, 'again', ['live']) as [Level]
  const good: Outcome = { fault: 'none', cycles: 1, acknowledged: 1, lost: 0, outside: [], exits: 0, recovery: await recovers(send, level) }
  t.same(shortcomings(good), [])
  const late = await recovers(send, level, performance.now() - 6_000)
  const bad: [Partial<Outcome>, RegExp][] = [
    [{ recovery: late }, /^it took 6\d\d\d ms/], [{ exits: 1 }, /1 processes ended/],
    [{ lost: 2 }, /2 of 1 acknowledged/], [{ outside: ['GET /x 418'] }, /GET \/x 418/],
    [{ acknowledged: 0 }, /nothing was acknowledged/]
  ]
  for (const [more, expected] of bad) t.match(shortcomings({ ...good, ...more }), [expected])
})
