// runs: one database
import t, { type Test } from 'tap'
import { makeLevel, startApp, type Answer } from '../helpers/app.ts'
import { OPERATIONS, publishedPaths, requestOf, settle } from '../helpers/operations.ts'

const service = await startApp(t)
const world = await settle(service, 'faults')
const owner = await service.organization()
await makeLevel(owner)
const own = (path = '') => `/${owner.organization}${path}`
const keys = `/organizations/${owner.organization}/api-keys`
const members = ({ body }: Answer) => Object.keys(body.errors ?? {})
const count = ({ body }: Answer) => Object.values<string[]>(body.errors).flat().length
const SECRET = 'hunter2-Zq8vT3'

/** Asserts status 422, exactly these members in `errors`, and the first member in the message. */
function names (t: Test, answer: Answer, expected: string[], what: string, error = 'validation_failed') {
  t.match([answer.status, answer.body.error], [422, error], `${what}: ${answer.text}`)
  t.strictSame(members(answer).sort(), [...expected].sort(), what)
  t.ok(answer.body.message.includes(` ${expected[0]}: ${answer.body.errors[expected[0]!]?.[0]}.`), `${what}: ${answer.text}`)
  t.notOk(answer.text.includes(SECRET), `${what} repeats no value`)
}

t.test('a request with faults in its body, query and headers names all, and the message has the first', async (t) => {
  const call = async (method: string, path: string, body?: unknown, headers?: Record<string, string>) =>
    owner.call(method, path, body, headers)
  for (const [path, body, expected] of [
    [`${keys}?x=1`, { abilities: ['secret:reed'] }, ['name', 'x', 'abilities.0']],
    [keys, { abilities: ['secret:reed', 5, 'secret:read', SECRET], expires_at: 5 },
      ['name', 'abilities.1', 'expires_at', 'abilities.0', 'abilities.3']],
    [keys, { name: 'CI', abilities: ['a', 'a'] }, ['abilities', 'abilities.0', 'abilities.1']],
    [keys, { name: '', abilities: [], restrictions: [{ project: 'orbit', environment: 'live' }, { environment: 'live' }, 5] },
      ['name', 'abilities', 'restrictions.1.project', 'restrictions.2', 'restrictions.0.target']],
    [keys, { abilities: ['*'], restrictions: [{ project: 'orbit', inherited: true }] }, ['name', 'restrictions.0.inherited']],
    [own('/projects?page=1'), undefined, ['name', 'page']],
    [own('/projects?page=1'), {}, ['name', 'page']],
    [own('/projects?page=1'), [], ['body', 'page']],
    [own('/projects?page=1'), { name: `a${SECRET}\0` }, ['name', 'page']],
    [own('/projects?1=1'), { slug: 'secrets' }, ['name', '1', 'slug']],
    [own('/projects'), { name: 5, description: 5, secret_format: SECRET, nmae: SECRET, slug: 'secrets' },
      ['nmae', 'name', 'description', 'secret_format', 'slug']],
    [own('/projects'), { storage_mode: 'client', encryption_key: SECRET, slug: 'projects' },
      ['name', 'encryption_key', 'slug', 'key_check', 'key_check_salt', 'key_check_iterations']],
    [own('/orbit/backend/environments'), { slug: 'rotate', status: 'A' }, ['name', 'status', 'slug']],
    [own('/secrets/store'), { environment: 'live' }, ['project', 'content', 'target']],
    [own('/secrets/store?dry_run=yes'), { project: 'orbit', content: 5, plaintext: SECRET, environment: 'live' },
      ['content', 'dry_run', 'target']],
    [own('/secrets/retrieve'), { project: 'Orbit', merge: SECRET, environment: 'live', raw: true },
      ['project', 'merge', 'target', 'raw']],
    [own('/secrets/versions'), { project: 'orbit', page: 0, environment: 5 }, ['environment', 'page', 'target']],
    [own('/secrets/versions/purge'), { confirmed: true, level: 'project', target: 'backend', environment: 'live' },
      ['project', 'target', 'environment']],
    [`/organizations/${owner.organization}/members`, { email: SECRET, role: 'amdin' }, ['role', 'email']]
  ] as const) {
    const answer = await call('POST', path, body)
    const what = `${path} ${JSON.stringify(body)}`
    t.match([answer.status, answer.body.error], [422, 'validation_failed'], `${what}: ${answer.text}`)
    t.strictSame(members(answer).sort(), [...expected].sort(), what)
    t.notOk(answer.text.includes(SECRET), `${what} repeats no value`)
    t.ok(answer.body.message.includes(` ${expected[0]}: ${answer.body.errors[expected[0]][0]}.`), `${what}: ${answer.text}`)
  }
  names(t, await call('POST', `${keys}?x=1`, { abilities: ['x'] }, { 'idempotency-key': 'a b', 'if-match': '*' }),
    ['name', 'x', 'idempotency-key', 'if-match', 'abilities.0'], 'headers')
  names(t, await call('PATCH', own('/orbit?x=1'), { slug: 'secrets', key_proof: 'x' }, { 'if-match': SECRET }),
    ['x', 'if-match', 'slug', 'key_proof'], 'a precondition')
  names(t, await call('PATCH', own('/orbit/secrets?x=1'), { set: { A: '1' }, unset: ['A', 'B'], replace: ['C'] }),
    ['x', 'unset.A', 'replace.C'], 'a change of names')
  names(t, await call('PATCH', own('/orbit/secrets?x=1'), { ['a'.repeat(5000)]: 'b' }, { 'content-type': 'application/merge-patch+json' }),
    ['x', 'a'.repeat(200)], 'a merge patch')
})

t.test('characters that no text may have are named with the faults of the other members', async (t) => {
  const lone = `${SECRET}\ud800`
  const live = { project: 'orbit', target: 'backend', environment: 'live' }
  for (const [path, body, expected] of [
    [`${keys}?x=1`, { name: `a${SECRET}\0`, abilities: ['secret:reed', lone], nmae: 1 },
      ['name', 'abilities.1', 'nmae', 'x', 'abilities.0']],
    [keys, { name: lone, abilities: ['x', 'x'], restrictions: [{ project: 'a\0', environment: 'live' }, { ...live, extra: 1 }] },
      ['name', 'restrictions.0.project', 'restrictions.1.extra', 'abilities', 'abilities.0', 'abilities.1']],
    [keys, { [`${SECRET}\0`]: 5, abilities: ['secret:reed'] }, ['body', 'name', 'abilities.0']],
    [own('/projects'), { description: '\0', secret_format: SECRET, slug: 'secrets' },
      ['description', 'name', 'secret_format', 'slug']],
    [own('/secrets/store?dry_run=yes'), { project: 'orbit', content: lone, plaintext: 5, environment: 'live' },
      ['content', 'plaintext', 'dry_run', 'target']],
    [own('/orbit/secrets/rotate-client-keys'), { secrets: [{ id: '\0', content: 5 }, { id: '1', content: lone }], key_check: 1 },
      ['secrets.0.id', 'secrets.1.content', 'secrets.0.content', 'key_check']]
  ] as const) {
    const answer = await owner.call('POST', path, body)
    const what = `${path}: ${answer.text}`
    t.match([answer.status, answer.body.error], [422, 'validation_failed'], what)
    t.equal(answer.body.errors[expected[0]].length, 1, what)
    t.match(answer.body.errors[expected[0]][0], /NUL characters|well-formed Unicode/, what)
    t.ok(answer.body.message.includes(` ${expected[0]}: `), what)
    for (const member of expected) t.ok(member in answer.body.errors, `${member} in ${what}`)
    t.notMatch(answer.text, /\\u0000|\\ud800/, 'no character is repeated')
    t.notOk(answer.text.includes(SECRET), what)
  }
  const only = await owner.call('POST', keys, { name: '\0', abilities: ['secret:read'] })
  t.strictSame(members(only), ['name'], 'a member is named once')
  const many = await owner.call('POST', `${keys}?x=1`, { abilities: Array.from({ length: 100 }, (_, i) => `${i}\0`) })
  t.match([many.status, count(many)], [422, 20])
  for (const [payload, status, fault] of [
    ['{"name":"\\u0000","abilities":', 400, undefined],
    [`{"name":"\\u0000","nmae":${'['.repeat(30)}${']'.repeat(30)}}`, 422, 'body']
  ] as const) {
    const answer = await service.inject({
      method: 'POST',
      url: `/api/v1${keys}`,
      headers: { authorization: `Bearer ${owner.token}`, 'content-type': 'application/json' },
      payload
    })
    t.equal(answer.status, status, payload)
    t.strictSame(members(answer), fault === undefined ? [] : [fault], `${payload} has no other faults`)
  }
})

t.test('a rotation of oneself with an Idempotency-Key names a missing overlap with the other faults', async (t) => {
  const { body: { token, api_key: { id } } } = await owner.call('POST', keys, { name: 'CI', abilities: ['*'] })
  const rotate = async (body?: object, headers: Record<string, string> = {}, query = '', caller = token) => service.inject({
    method: 'POST',
    url: `/api/v1${keys}/${id}/rotate${query}`,
    headers: { authorization: `Bearer ${caller}`, 'content-type': 'application/json', ...headers },
    payload: body ?? ''
  })
  const keyed = { 'idempotency-key': 'once' }
  names(t, await rotate(undefined, keyed, '?x=1'), ['x', 'overlap_seconds'], 'without a body')
  names(t, await rotate({ y: 1 }, { 'idempotency-key': 'a b' }), ['y', 'idempotency-key', 'overlap_seconds'], 'a key')
  names(t, await rotate({ overlap_seconds: 0 }, keyed), ['overlap_seconds'], 'alone')
  names(t, await rotate({ overlap_seconds: -1 }, keyed), ['overlap_seconds'], 'of the schema')
  names(t, await rotate({}, {}, '?x=1'), ['x'], 'without a key')
  names(t, await rotate({}, keyed, '?x=1', owner.token), ['x'], 'of another token')
  t.equal((await rotate({}, keyed, '', owner.token)).status, 200)
})

t.test('the faults of a query are named together, and rules about several parameters with them', async (t) => {
  const read = async (query: string, path = '/orbit/backend/live/secrets') => owner.call('GET', own(`${path}?${query}`))
  names(t, await read('merge=both&decrypt=maybe&x=1&at='), ['x', 'at', 'decrypt'], 'faults of each parameter')
  names(t, await read('x=1&merge=both&raw=true'), ['x', 'merge', 'raw'], 'with a combination')
  names(t, await read('merge=both&raw=true'), ['merge', 'raw'], 'only combinations', 'invalid_parameter_combination')
  names(t, await read('from=yesterday&to=tomorrow', '/orbit/secrets/diff'), ['from', 'to'], 'two sides')
  names(t, await read('from=yesterday&merge=2', '/orbit/secrets/diff'), ['to', 'merge', 'from'], 'one side absent')
  names(t, await read('decrypt=false&prefix=A&only=different&page=0', '/orbit/secrets/matrix'), ['page', 'prefix', 'only'], 'a matrix')
  names(t, await read('from=2026-03-02T00:00:00Z&to=2026-03-01T00:00:00Z&x=1', '/audit-events/counts'), ['x', 'from'], 'an interval')
  t.equal((await read('x=1&merge=both&decrypt=true')).body.errors.merge, undefined)
  t.equal((await read('x=1&decrypt=TRUE&raw=1')).body.errors.raw, undefined, 'flags are read as in a valid query')
})

t.test('an error names at most 20 faults, of whichever parts', async (t) => {
  const many = (length: number, value: unknown = 1) => Object.fromEntries(Array.from({ length }, (_, i) => [`x${i}`, value]))
  const query = new URLSearchParams(many(100) as Record<string, string>).toString()
  for (const [path, body] of [
    [keys, many(90)], [`${keys}?${query}`, many(10)], [`${keys}?${query}`, { name: 'CI', abilities: ['secret:read'] }],
    [keys, { name: 'CI', abilities: Array.from({ length: 100 }, (_, i) => `x${i}`) }],
    [keys, { abilities: Array.from({ length: 100 }, () => 5) }],
    [keys, { name: 'CI', abilities: ['secret:read'], restrictions: Array(100).fill({ project: 'orbit', environment: 'live' }) }],
    [own('/orbit/secrets/re-encrypt-history'), { key_proof: 'x', versions: Array.from({ length: 100 }, (_, id) => ({ id, content: 'x' })) }],
    [own('/orbit/secrets/rotate-client-keys'), { secrets: Array(500).fill({}) }],
    [`/organizations/${owner.organization}/billing/charges`, many(15, '4111 1111 1111 1111')]
  ] as const) {
    const answer = await owner.call('POST', path, body)
    t.match([answer.status, answer.body.error], [422, 'validation_failed'], answer.text.slice(0, 200))
    t.ok(count(answer) === 20 || path.includes('billing'), `${path}: ${answer.text.slice(0, 300)}`)
    t.ok(answer.text.length < 20_000, path)
  }
  const unset = Array.from({ length: 500 }, (_, i) => `N${i}`)
  const both = await owner.call('PATCH', own('/orbit/secrets'), { set: Object.fromEntries(unset.map((name) => [name, '1'])), unset })
  t.strictSame([both.status, members(both).length], [422, 20])
  // A body with far more members than the schema allows never reaches the validation.
  const hostile = await service.inject({
    method: 'POST',
    url: `/api/v1${keys}?x=1`,
    headers: { authorization: `Bearer ${owner.token}`, 'content-type': 'application/json' },
    payload: `{"abilities":[${Array(400_000).fill('1').join()}]}`
  })
  t.match(hostile, { status: 422, body: { errors: { body: [/more than \d+ members/], x: ['Unknown parameter'] } } })
})

t.test('each operation names an unknown field, parameter and an invalid Idempotency-Key together', async (t) => {
  let tried = 0
  for (const methods of Object.values(publishedPaths(service))) {
    for (const { operationId, tags, requestBody, parameters = [] } of Object.values(methods)) {
      if (tags[0] === 'oauth' || requestBody === undefined) continue
      tried++
      const row = OPERATIONS[operationId as string]!
      const { method, url, payload } = requestOf(row, world.ids)
      const takesKey = (parameters as { name: string }[]).some(({ name }) => name === 'idempotency-key')
      const isPatchOfNames = JSON.stringify(requestBody).includes('merge-patch')
      const answer = await service.inject({
        method: method as 'POST',
        url: `${url}${url.includes('?') ? '&' : '?'}nowhere=1`,
        headers: {
          authorization: `Bearer ${row.byPerson ? world.person.access : world.caller.token}`,
          ...(takesKey && { 'idempotency-key': 'a b' })
        },
        payload: { ...payload, unheard: SECRET }
      })
      t.match(answer, {
        status: row.access === 'public' && operationId === 'recordTelemetry' ? Number : 422,
        body: { errors: { unheard: ['Unknown field'], nowhere: ['Unknown parameter'], ...(takesKey && { 'idempotency-key': [String] }) } }
      }, `${operationId} ${isPatchOfNames}: ${answer.text}`)
      t.notOk(answer.text.includes(SECRET), operationId)
    }
  }
  t.ok(tried > 30, `${tried}`)
})

t.test('errors that come before the validation are as without other faults', async (t) => {
  const bad = { abilities: ['x'], y: 1 }
  const reader = await service.token(owner.organization, ['secret:read'])
  const stranger = await service.organization()
  const send = async (payload: string, headers: Record<string, string>, url = `/api/v1${keys}?x=1`) =>
    service.inject({ method: 'POST', url, headers: { authorization: `Bearer ${owner.token}`, ...headers }, payload })
  const json = { 'content-type': 'application/json' }
  for (const [what, answer, status, error] of [
    ['no token', await send(JSON.stringify(bad), { ...json, authorization: '' }), 401, 'unauthenticated'],
    ['another organization', await stranger.call('POST', `${keys}?x=1`, bad), 404, 'not_found'],
    ['a scope', await reader.call('POST', `${keys}?x=1`, bad), 403, 'insufficient_permissions'],
    ['a scope of the query', await reader.call('GET', own('/orbit/secrets?decrypt=true&x=1')), 403, 'insufficient_permissions'],
    ['a scope of the body', await reader.call('POST', own('/secrets/retrieve?x=1'), { action: 'decrypt', x: 1 }), 403, 'insufficient_permissions'],
    ['a media type', await send('x', { 'content-type': 'text/plain' }), 415, 'unsupported_media_type'],
    ['malformed JSON', await send('{"name":', json), 400, 'malformed_json'],
    ['a large body', await send(JSON.stringify({ name: 'x'.repeat(4_000_000) }), json), 413, 'payload_too_large'],
    ['confirmed', await owner.call('POST', own('/secrets/versions/purge?x=1'), { y: 1 }), 422, 'confirmation_required']
  ] as const) {
    t.match([answer.status, answer.body.error, answer.body.errors], [status, error, undefined], what)
  }
  const token = await service.inject({ method: 'POST', url: '/api/oauth/token?x=1', headers: json, payload: '{"grant_type":5,"y":1}' })
  t.match(token, { status: 400, body: { error: String, error_description: String } })
  t.equal(token.body.errors, undefined)
})

t.test('a request without other faults is answered as before: one member, and its own code', async (t) => {
  for (const [method, path, body, error, expected] of [
    ['POST', own('/projects'), { name: 'x', slug: 'orbit' }, 'slug_taken', ['slug']],
    ['POST', own('/projects'), { name: 'x', slug: 'secrets' }, 'validation_failed', ['slug']],
    ['POST', keys, { name: 'x', abilities: ['secret:read', '*'] }, 'validation_failed', ['abilities']],
    ['POST', keys, { name: 'x', abilities: ['secret:read'], restrictions: [{ project: 'nowhere' }] }, 'validation_failed', ['restrictions.0.project']],
    ['POST', own('/secrets/store'), { project: 'orbit', content: 'x'.repeat(40), plaintext: 'A=1' }, 'validation_failed', ['content']],
    ['POST', '/organizations', { name: 'x', slug: 'user' }, 'user_required', []],
    ['POST', own('/secrets/versions'), { project: 'orbit', level: 'target' }, 'validation_failed', ['target']]
  ] as const) {
    const answer = await owner.call(method, path, body)
    t.match([answer.status, answer.body.error], [422, error], `${path}: ${answer.text}`)
    t.strictSame(members(answer), expected, path)
  }
  const valid = { name: 'CI', abilities: ['secrets:read'], restrictions: [{ project: 'orbit', target: 'backend', environment: 'live' }] }
  t.equal((await owner.call('POST', keys, valid)).status, 201)
})
