// runs: one database
import { request as httpRequest, Agent, type IncomingMessage } from 'node:http'
import { json } from 'node:stream/consumers'
import t from 'tap'
import { ulid } from 'ulidx'
import type { MissingToken } from '../../schemas/errors.ts'
import { mintApiToken } from '../../src/crypto/bearer.ts'
import { updateOrganization } from '../../src/repositories/levels/organizations.ts'
import { RESERVED } from '../../src/rules/formats/slugs.ts'
import { makeLevel, startApp, startIsolatedApp, type Answer, type Caller, type TestApp } from '../helpers/app.ts'

const service = await startApp(t)
const LEVEL = { project: 'orbit', target: 'backend', environment: 'live' }
const failing = (answer: Answer) => [answer.status, answer.body?.error, Object.keys(answer.body?.errors ?? {})]
const store = (caller: Caller, plaintext: string) =>
  caller.call('POST', `/${caller.organization}/secrets/store`, { ...LEVEL, plaintext })

/** Creates an organization with a level that contains `plaintext`. */
async function settle (plaintext = 'A=1', on: TestApp = service): Promise<Caller> {
  const caller = await on.organization()
  await makeLevel(caller, { slug: 'orbit' })
  const { status, text } = await store(caller, plaintext)
  if (status !== 200) throw new Error(text)
  return caller
}

// Only this service counts requests. It also has its own database, because it has two organizations with fixed slugs.
const limited = await startIsolatedApp(t, { RATE_LIMIT_API: '200' })

const owner = await settle('OWNER=mine')
const stranger = await settle('STRANGER=theirs')
const o = owner.organization

// No test measures the time of the two responses. The guard refuses both after the same single statement, which looks
// up the credential, and before any other look-up.
t.test('TI-01: a foreign and a missing organization return the same bytes for any scope, method and body', async (t) => {
  const none = ulid()
  const callers = [stranger, await service.token(stranger.organization, ['billing:read'])]
  const requests: [method: string, path: string, body?: object][] = [
    ['GET', '/organizations/{o}'],
    ['GET', '/{o}/projects'],
    ['POST', '/{o}/projects', { name: 5 }],
    ['GET', '/{o}/orbit'],
    ['PATCH', '/{o}/orbit', { nmae: 'x' }],
    ['DELETE', '/{o}/orbit'],
    ['GET', '/{o}/orbit/backend/live/secrets'],
    ['POST', '/{o}/secrets/store', { ...LEVEL, plaintext: 'A=2' }],
    ['POST', '/{o}/secrets/versions', LEVEL],
    ['GET', '/{o}/secrets/versions/1'],
    ['DELETE', '/{o}/secrets/versions/1'],
    ['GET', '/organizations/{o}/api-keys'],
    ['POST', '/organizations/{o}/api-keys', { name: 'x', abilities: ['*'] }]
  ]
  const [{ slug }] = await service.sql(`SELECT slug FROM organizations WHERE id = '${o}'`) as [{ slug: string }]
  for (const caller of callers) {
    for (const [method, path, body] of requests) {
      const answers = []
      for (const id of [o, o.toLowerCase(), slug, none, 'no-such-organization']) {
        answers.push(await caller.call(method, path.replace('{o}', id), body))
      }
      const shown = answers.map(({ status, text, headers: { 'x-request-id': _, date: __, ...headers } }) =>
        JSON.stringify([status, text, headers]))
      t.equal(new Set(shown).size, 1, `${method} ${path}`)
      t.match(answers[0], { status: 404, text: '{"error":"not_found","message":"There is no such resource."}' })
    }
  }
})

t.test('TI-02: without the scope nothing is learnt about what exists', async (t) => {
  const blind = await service.token(o, ['billing:read'])
  const pairs: [method: string, there: string, missing: string][] = [
    ['GET', '/orbit', '/none'], ['DELETE', '/orbit', '/none'], ['GET', '/orbit/backend', '/orbit/none'], [
      'GET', '/orbit/backend/live', '/none/none/none'
    ],
    [
      'GET', '/orbit/backend/live/secrets', '/orbit/backend/none/secrets'
    ], ['GET', '/secrets/versions/1', '/secrets/versions/99999'],
    ['DELETE', '/secrets/versions/1', '/secrets/versions/x'], [
      'POST', '/secrets/versions/1/restore', '/secrets/versions/0/restore'
    ],
    ['GET', '/orbit/encryption-key', '/none/encryption-key'], ['PATCH', '/orbit/backend', '/orbit/none']
  ]
  for (const [method, there, missing] of pairs) {
    const [one, two] = [await blind.call(method, `/${o}${there}`), await blind.call(method, `/${o}${missing}`)]
    t.strictSame([one.status, one.text], [403, two.text], `${method} ${there}`)
    t.equal(one.body.error, 'insufficient_permissions')
  }
})

t.test('TI-03: an organization’s ULID is accepted in either letter case only, and both use one bucket', async (t) => {
  const id = '01ARZ3NDEKTSV4RRFFQ69G5F10'
  const caller = await limited.organization({ slug: 'nimbus' })
  await limited.sql(
    `INSERT INTO organizations (id, slug, storage_key) SELECT '${id}', 'cirrus', storage_key FROM organizations`
  )
  await limited.sql(`INSERT INTO organization_counters (organization_id, name, plan) VALUES ('${id}', 'Cirrus', 'self-hosted')`)
  const own = await limited.token(id, ['organization:read'])
  const left = async (spelling: string) =>
    Number((await own.call('GET', `/organizations/${spelling}`)).headers['x-ratelimit-remaining'])
  const first = await left(id)
  t.strictSame(
    [await left(id.toLowerCase()), await left('cirrus'), await left('01arz3ndekTSV4RRFFQ69G5F10')],
    [first - 1, first - 2, first - 3]
  )
  for (const alias of [
    id.replace('10', 'I0'), id.replace('10', 'L0'), id.replace('10', '1O'), id.replace('01', 'O1'),
    id.replace('V', 'U'), `${id}0`, id.slice(1), 'CIRRUS', 'nimbus', `%20${id}`
  ]) {
    t.equal((await own.call('GET', `/organizations/${alias}`)).status, 404, alias)
  }
  t.equal(
    (await caller.call('GET', '/organization')).headers['x-ratelimit-remaining'], '199',
    'another organization’s bucket is its own'
  )
})

t.test('TI-04: no trick in a path leads to another resource: 400, 404, 405, 422, or the plain path’s answer', async (t) => {
  await service.listen()
  const { port } = service.app.server.address() as { port: number }
  const agent = new Agent({ keepAlive: true, maxSockets: 8 })
  t.teardown(() => { agent.destroy() })
  const send = (
    path: string, token: string, headers: Record<string, string> = {}
  ) => new Promise<{ status: number, text: string }>((resolve, reject) => {
    httpRequest({
      host: '127.0.0.1', port, path, agent, headers: { authorization: `Bearer ${token}`, ...headers }
    }, (response) => {
      let text = ''
      response.setEncoding('utf8').on('data', (chunk: string) => { text += chunk }).on('end', () => {
        resolve({ status: response.statusCode ?? 0, text })
      })
    }).on('error', reject).end()
  })
  const canonical = (text: string) => text.replace(/"(?:timestamp|api_path)":"[^"]*"/g, '')
  const inserted = [
    '/', '/./', '/../', '//', '%2f', '%2F', '%5c', '\\', ';x', ';/', '.', '..', '%2e', '%2e%2e', '%2e%2e/', '%00',
    '%09', '%0a', '%20', '%c0%af', '%ff', '%', '%zz', '?', '%3f', '%23', '*', '~', ':', '@', '+', '%252f', '%252e',
    '%e2%80%ae', '%ef%bc%8f'
  ]
  const routes = [
    `/api/v1/${o}/orbit/backend/live/secrets`, `/api/v1/${o}/secrets/versions/1`, `/api/v1/organizations/${o}`
  ]
  let tried = 0
  for (const route of routes) {
    const plain = await send(route, owner.token)
    t.equal(plain.status, 200)
    const segments = route.slice(1).split('/')
    const paths = new Set<string>()
    for (let i = 1; i <= segments.length; i++) {
      const [before, after] = [
        '/' + segments.slice(0, i).join('/'), segments.slice(i).map((segment) => `/${segment}`).join('')
      ]
      for (const trick of inserted) paths.add(before + trick + after)
      paths.add(before.toUpperCase() + after)
      paths.add(before.replace(/([^/])$/, (letter) => `%${letter.charCodeAt(0).toString(16)}`) + after)
    }
    paths.add(`http://127.0.0.1:${port}${route}`)
    paths.add(`//evil.example${route}`)
    paths.add(route.replace(o, `${stranger.organization}/../${o}`))
    paths.add(route.replace(o, `${stranger.organization}%2f..%2f${o}`))
    const answers = await Promise.all([...paths].map(async (path) =>
      ({ path, mine: await send(path, owner.token), theirs: await send(path, stranger.token) })))
    for (const { path, mine, theirs } of answers) {
      const same = mine.status === 200 && canonical(mine.text) === canonical(plain.text)
      // A cut path may be the exact path of a level above in the same organization.
      const above = mine.status === 200 && /\?/.test(path)
      // The rest of a cut path becomes an unknown query parameter, whose name is in the response.
      const [isUnknown, isUnknownToThem] = [mine, theirs].map(({ status }) => status === 422 && /\?/.test(path))
      if (!same && !above && !isUnknown && ![400, 404, 405].includes(mine.status)) {
        t.fail(`${path} answers ${mine.status} ${mine.text}`)
      }
      // A cut path may also be the path of the stranger's own organizations.
      const own = path.startsWith('/api/v1/organizations?') && theirs.status === 200
      const telling = theirs.text.includes('OWNER') || (theirs.text.includes(o) && !isUnknownToThem)
      if ((theirs.status < 400 && !own) || telling) {
        t.fail(`${path} answers a stranger ${theirs.status} ${theirs.text}`)
      }
      tried++
    }
    for (const name of [
      'x-original-url', 'x-rewrite-url', 'x-forwarded-prefix', 'x-http-method-override', 'x-forwarded-host'
    ]) {
      const answer = await send(
        route, owner.token, { [name]: name.includes('method') ? 'DELETE' : `/api/v1/${stranger.organization}/orbit` }
      )
      t.equal(canonical(answer.text), canonical(plain.text), name)
    }
  }
  t.ok(tried >= 500, `${tried} paths were tried`)

  const twice = await new Promise<IncomingMessage>((resolve, reject) => {
    const request = httpRequest({ host: '127.0.0.1', port, path: routes[2], agent })
    request.setHeader('authorization', [`Bearer ${owner.token}`, `Bearer ${owner.token}`])
    request.on('response', resolve).on('error', reject).end()
  })
  t.equal(twice.statusCode, 401, 'two tokens are none')
  t.match(await json(twice), { details: { reason: 'several_headers' } })
})

t.test('tokens that are malformed, unknown, expired or revoked have one body and one challenge', async (t) => {
  const expired = await service.token(o, ['*'], { expires_at: new Date(Date.now() - 1000) })
  const keys = `/organizations/${o}/api-keys`
  const { body: revoked } = await owner.call('POST', keys, { name: 'Revoked', abilities: ['project:read'] })
  t.equal((await owner.call('DELETE', `${keys}/${revoked.api_key.id}`)).status, 204)
  const unknown = mintApiToken(o)
  const wrong = [
    `Bearer\t${owner.token}`, `Bearer ${owner.token} x`, `Bearer ${owner.token},Bearer ${owner.token}`,
    `Bearer "${owner.token}"`, `Bearer ${owner.token.slice(0, -1)}`,
    `Bearer ${unknown}`, `Bearer ${expired.token}`, `Bearer ${revoked.token}`, `Bearer ${owner.token.toLowerCase()}`,
    'Bearer null', 'bearer x', `Bearer ${'a'.repeat(5000)}`
  ]
  for (const authorization of wrong) {
    for (const headers of [{ authorization }, { authorization, 'x-api-key': owner.token }]) {
      const answer = await service.inject({ url: `/api/v1/${o}/projects`, headers })
      t.strictSame([answer.status, answer.text], [
        401,
        '{"error":"unauthenticated","message":"Send the header `Authorization: Bearer TOKEN` with a token that is complete, not expired and not revoked."}'
      ], authorization.slice(0, 60))
      t.match(answer.headers['www-authenticate'], /^Bearer .*, error="invalid_token"/)
    }
  }
  for (const authorization of [`bEaReR ${owner.token}`, `Bearer  ${owner.token}`, `Bearer     ${owner.token}`]) {
    const { status } = await service.inject({ url: `/api/v1/${o}/projects`, headers: { authorization } })
    t.equal(status, 200, 'the case of the scheme and the number of blanks do not matter')
  }
  t.equal(
    (await service.inject({ url: `/api/v1/${o}/projects?access_token=${owner.token}` })).status, 401,
    'a token in the query is none'
  )
  t.notMatch(service.logs.join(''), unknown)
})

t.test('401 says what was sent instead of a token, never repeats it, and the challenge has no error', async (t) => {
  const { token } = owner
  const basic = Buffer.from(`${token}:`).toString('base64')
  const rows: [headers: Record<string, string>, reason: MissingToken, words: RegExp][] = [
    [{}, 'no_header', /no `Authorization` header/],
    [{ cookie: `token=${token}`, 'proxy-authorization': `Bearer ${token}` }, 'no_header', /no `Authorization` header/],
    ...['X-API-Key', 'x-api-key', 'X-Auth-Token', 'X-Access-Token'].map((name): typeof rows[number] =>
      [{ [name]: token }, 'other_header', /`X-API-Key`.* not read/]),
    ...['', ' ', 'Bearer', 'bearer', 'Bearer '].map((authorization): typeof rows[number] =>
      [{ authorization }, 'no_token', /has no token/]),
    ...['', 'Bearer', 'Bearer '].map((authorization): typeof rows[number] =>
      [{ authorization, 'x-api-key': token }, 'other_header', /`X-API-Key`.* not read/]),
    ...[
      token, `Bearer${token}`, 'x', `"${token}"`, `Bearer:${token}`, `Bearer: ${token}`, `Bearer=${token}`, `bearer, ${token}`
    ].map((authorization): typeof rows[number] =>
      [{ authorization }, 'no_scheme', /does not begin with `Bearer`/]),
    ...['Basic', 'basic ', 'Digest', 'DPoP', `Basic ${basic}`, `Token ${token}`, `token\t${token}`, `ApiKey  ${token}`, `${token} x`, `DPoP ${token}`].map(
      (authorization): typeof rows[number] => [{ authorization }, 'other_scheme', /scheme .* is not `Bearer`/]
    ),
    [{ authorization: token, 'x-api-key': token }, 'no_scheme', /does not begin with `Bearer`/]
  ]
  const bodies = new Map<string, string>()
  for (const [headers, reason, words] of rows) {
    for (const url of [`/api/v1/${o}/projects`, '/api/v1/user', '/api/v1/nowhere-at-all/projects']) {
      const answer = await service.inject({ url, headers })
      const label = `${JSON.stringify(headers).slice(0, 60)} on ${url}`
      t.equal(answer.status, 401, label)
      t.match(answer.body, { error: 'unauthenticated', message: words, details: { reason } }, label)
      t.match(answer.body.message, /Send one header `Authorization: Bearer TOKEN`\.$/, label)
      t.equal(answer.text, bodies.get(reason) ?? answer.text, `${label}: one body for each reason`)
      bodies.set(reason, answer.text)
      t.match(answer.headers['www-authenticate'], /^Bearer realm="strongroom", resource_metadata="[^"]+"$/, label)
      for (const secret of [token, basic]) t.notMatch(answer.text + JSON.stringify(answer.headers), secret, label)
    }
  }
  for (const [query, headers, reason] of [
    ['?access_token=x', {}, 'in_query'],
    [`?page=1&access_token=${token}`, {}, 'in_query'],
    ['?access_token=x', { authorization: 'Bearer' }, 'in_query'],
    ['?access_token=x', { 'x-api-key': token }, 'other_header'],
    ['?access_token=x', { authorization: `Basic ${basic}` }, 'other_scheme'],
    ['?page=access_token', {}, 'no_header']
  ] as const) {
    const answer = await service.inject({ url: `/api/v1/${o}/projects${query}`, headers })
    t.match([answer.status, answer.body.details], [401, { reason }], query)
    t.notMatch(answer.text, token, query)
    if (reason === 'in_query') t.match(answer.body.message, /in the query is not read/)
  }
  t.notMatch(service.logs.join(''), token)
  t.notMatch(service.logs.join(''), basic)
})

t.test('403 names the scope that is missing, in the body and in the challenge', async (t) => {
  const caller = await service.token(o, ['secret:read', 'project:read'])
  const { status, body, headers } = await caller.call('DELETE', `/${o}/orbit`)
  t.equal(status, 403)
  t.strictSame(body, {
    error: 'insufficient_permissions',
    message: body.message,
    details: { required_scope: 'project:delete', granted_scopes: ['secret:read', 'project:read'] }
  })
  t.match(headers['www-authenticate'], /^Bearer .*error="insufficient_scope", scope="project:delete"$/)
  const decrypt = await caller.call('GET', `/${o}/orbit/backend/live/secrets?decrypt=true`)
  t.strictSame(
    [decrypt.status, decrypt.body.details.required_scope], [403, 'secret:decrypt'], 'a parameter may need more'
  )
})

t.test('checks run in order: token, organization, limit, status, scope, body, place, retention, key', async (t) => {
  // This test has its own database, because it looks at the only organization of the database.
  const app = await startIsolatedApp(t, { RATE_LIMIT_API: '1' })
  const caller = await settleWithin(app)
  const organization = caller.organization
  const [{ next_version }] = await app.sql(
    'SELECT next_version::int FROM organization_counters'
  ) as [{ next_version: number }]
  const version = next_version - 1
  const blind = await app.token(organization, ['billing:read'])
  const bad = { nmae: 1 }
  const anonymous = (url: string) =>
    app.inject({ method: 'POST', url, payload: 'not json', headers: { 'content-type': 'application/json' } })
  const store = `/${organization}/secrets/store`

  t.equal((await anonymous(`/api/v1/${ulid()}/secrets/store`)).status, 401, 'token before organization and body')
  t.equal((await app.inject({
    method: 'POST',
    url: `/api/v1/${ulid()}/secrets/store`,
    payload: 'not json',
    headers: { authorization: `Bearer ${blind.token}`, 'content-type': 'application/json' }
  })).status, 429,
  'what is not this organization’s counts against the address')
  await app.sql("UPDATE plans SET api_per_minute = 2 WHERE name = 'self-hosted'")
  t.equal(
    (await blind.call('POST', `/${ulid()}/secrets/store`, bad, { 'x-forwarded-for': '192.0.2.7' })).status, 429,
    'no caller chooses the address that is counted'
  )
  // The organization has already sent more requests than this limit.
  t.strictSame(
    failing(await blind.call('POST', store, bad)).slice(0, 2), [429, 'rate_limit_exceeded'],
    'limit before status, scope and body'
  )
  await app.sql("UPDATE plans SET api_per_minute = 100000 WHERE name = 'self-hosted'")

  await updateOrganization(app.database.db, organization, { status: 'suspended' })
  t.equal((await blind.call('POST', store, bad)).body.error, 'organization_inactive', 'status before scope and body')
  await updateOrganization(app.database.db, organization, { status: 'active' })
  t.equal((await blind.call('POST', store, bad)).body.error, 'insufficient_permissions', 'scope before body')
  t.equal((await app.inject({
    method: 'POST',
    url: `/api/v1${store}`,
    payload: 'not json',
    headers: { authorization: `Bearer ${blind.token}`, 'content-type': 'text/plain' }
  })).body.error, 'insufficient_permissions')
  t.equal(
    (await caller.call('POST', `/${organization}/none/targets`, bad)).body.error, 'validation_failed',
    'body before place'
  )

  await app.sql("UPDATE plans SET retention_days = 7 WHERE name = 'self-hosted'")
  await app.sql("UPDATE secret_versions SET created_at = now() - interval '8 days'")
  const [{ id: elsewhere }] = await app.sql("SELECT id FROM targets WHERE slug = 'elsewhere'") as [{ id: string }]
  const [{ id: project_id }] = await app.sql('SELECT id FROM projects') as [{ id: string }]
  const narrow = await app.token(
    organization, ['*'], { slices: [{ project_id, target_id: elsewhere, environment_id: null }] }
  )
  const restore = `/${organization}/secrets/versions/${version}/restore`
  t.equal((await caller.call('POST', restore, { content: 5 })).body.error, 'validation_failed', 'body before retention')
  t.equal((await narrow.call('POST', restore)).body.error, 'not_found', 'place before retention')
  const locked = await caller.call('POST', restore, { content: 'A'.repeat(40), key_proof: 'wrong' })
  t.equal(locked.body.error, 'version_locked', 'retention before key')
  await app.sql('UPDATE secret_versions SET created_at = now()')
  t.equal(
    (await caller.call('POST', restore, { content: 'A'.repeat(40), key_proof: 'wrong' })).body.error,
    'key_proof_mismatch', 'then the key'
  )
})

/**
 * Creates a client-managed level with one version. Raises the rate limit before, because the limit would refuse the
 * requests.
 */
async function settleWithin (app: TestApp): Promise<Caller> {
  await app.sql("UPDATE plans SET api_per_minute = 100000 WHERE name = 'self-hosted'")
  const caller = await app.organization()
  const key = {
    key_check: Buffer.alloc(32, 3).toString('base64'),
    key_check_salt: Buffer.alloc(16).toString('base64'),
    key_check_iterations: 600_000
  }
  await makeLevel(caller, { slug: 'orbit', storage_mode: 'client', ...key })
  await caller.call('POST', `/${caller.organization}/orbit/targets`, { name: 'Elsewhere' })
  const stored = await caller.call(
    'POST', `/${caller.organization}/secrets/store`,
    { ...LEVEL, content: Buffer.alloc(40, 5).toString('base64'), key_proof: key.key_check }
  )
  if (stored.status !== 200) throw new Error(stored.text)
  return caller
}

t.test('an organization that is suspended, locked or cancelled can be looked at, and nothing else', async (t) => {
  const caller = await settle()
  const id = caller.organization
  const before = await service.sql(`SELECT count(*)::int AS n FROM audit_events WHERE organization_id = '${id}'`)
  for (const status of ['suspended', 'locked', 'cancelled'] as const) {
    await updateOrganization(service.database.db, id, { status })
    for (const path of [`/organizations/${id}`, '/organization']) {
      const answer = await caller.call('GET', path)
      t.strictSame([answer.status, answer.body.data.status, answer.body.data.attributes.status], [200, status, status])
    }
    const requests: [method: string, path: string, body?: object][] = [
      ['GET', `/${id}/projects`], ['GET', `/${id}/orbit`], ['GET', `/${id}/orbit/backend/live/secrets`], [
        'POST', `/${id}/secrets/store`, { ...LEVEL, plaintext: 'A=2' }
      ],
      [
        'POST', `/${id}/secrets/versions`, LEVEL
      ], ['DELETE', `/${id}/orbit`], ['GET', `/${id}/orbit/encryption-key`], ['GET', `/organizations/${id}/api-keys`],
      [
        'POST', `/organizations/${id}/api-keys`, { name: 'x', abilities: ['*'] }
      ], ['GET', `/organizations/${id}/projects`]
    ]
    for (const [method, path, body] of requests) {
      const answer = await caller.call(method, path, body)
      t.strictSame(
        [answer.status, answer.body.error, answer.body.details], [403, 'organization_inactive', { status }],
        `${status} ${method} ${path}`
      )
    }
    t.equal((await stranger.call('GET', `/${id}/projects`)).status, 404, 'others do not learn of it')
  }
  await updateOrganization(service.database.db, id, { status: 'active' })
  t.same(
    [...await service.sql(`SELECT count(*)::int AS n FROM audit_events WHERE organization_id = '${id}'`)], [...before]
  )
  t.equal((await caller.call('GET', `/${id}/orbit/backend/live/secrets`)).status, 200)
})

t.test('TI-12, TI-15: a slug resolves only inside the organization of the path, and can be the same in two', async (t) => {
  const read = async (caller: Caller) =>
    (await caller.call('GET', `/${caller.organization}/orbit/backend/live/secrets?decrypt=true&raw=true`)).body
  t.strictSame([await read(owner), await read(stranger)], [{ OWNER: 'mine' }, { STRANGER: 'theirs' }])
  t.equal((await stranger.call('POST', `/${stranger.organization}/orbit/targets`, { name: 'Their own' })).status, 201)
  t.equal((await owner.call('GET', `/${o}/orbit/their-own`)).status, 404)
  t.equal(
    (await owner.call('POST', `/${o}/secrets/store`, { ...LEVEL, target: 'their-own', plaintext: 'A=1' })).status, 404
  )
  for (const member of ['organization', 'organization_id']) {
    const answer = await owner.call(
      'POST', `/${o}/secrets/store`, { ...LEVEL, plaintext: 'A=1', [member]: stranger.organization }
    )
    t.strictSame(failing(answer), [422, 'validation_failed', [member]], 'a body cannot name another organization')
  }
  t.strictSame(await read(stranger), { STRANGER: 'theirs' })
})

t.test('TI-14: version ids are counted per organization; what is no id of the caller’s is 404, never 500', async (t) => {
  const caller = await settle()
  const id = caller.organization
  const first = (await caller.call(
    'POST', `/${id}/secrets/versions`, LEVEL
  )).body.data.map((version: { id: string }) => version.id)
  t.strictSame(first, ['1'], 'whatever others have written')
  const vectors = [
    '0', '-1', '+1', '2', '2147483648', '4294967297', '9007199254740992', '9223372036854775807', '9223372036854775808', '1e0', '1e3', '0x1', '1.0', '1,0', '01', '00001', '%201', '1%20', '1%0a',
    '%EF%BC%91', '%D9%A1', '1_0', 'one', 'NaN', 'Infinity', 'null', 'true', "1'--", '1%00', '9'.repeat(100)
  ]
  for (const vector of vectors) {
    const path = `/${id}/secrets/versions/${vector}`
    for (const [method, at] of [
      ['GET', path], ['DELETE', path], ['DELETE', `${path}?force=true`], ['POST', `${path}/restore`]
    ] as const) {
      t.strictSame(failing(await caller.call(method, at)), [404, 'not_found', []], `${method} ${vector}`)
    }
  }
  await store(stranger, 'A=2')
  await store(stranger, 'A=3')
  const theirs = (await stranger.call('POST', `/${stranger.organization}/secrets/versions`, LEVEL)).body.data[0].id
  t.ok(Number(theirs) >= 3)
  t.equal(
    (await caller.call('GET', `/${id}/secrets/versions/${theirs}`)).status, 404,
    'an id that only another organization has'
  )
  t.equal((await caller.call('GET', `/${id}/secrets/versions/1`)).status, 200)
})

t.test('TI-16: requests of strangers and anonymous requests do not use up an organization’s limit', async (t) => {
  const [victim, attacker] = [await limited.organization(), await limited.organization()]
  const left = async (caller: Caller) =>
    Number((await caller.call('GET', '/organization')).headers['x-ratelimit-remaining'])
  const before = [await left(victim), await left(attacker)]
  const statuses = new Set<number>()
  for (let i = 0; i < 150; i++) {
    statuses.add((await attacker.call('GET', `/${victim.organization}/projects`)).status)
    statuses.add((await limited.inject({
      url: `/api/v1/${victim.organization}/projects`, headers: i % 2 === 0 ? {} : { authorization: 'Bearer x' }
    })).status)
  }
  t.strictSame([...statuses].sort(), [401, 404, 429], 'they were counted, against the address')
  t.strictSame([await left(victim), await left(attacker)], before.map((n) => n - 1))
})

/** All rows of an organization, except the times of last use of tokens and the number of events. */
async function snapshot (organization: string): Promise<string> {
  const rows = []
  for (const table of [
    'projects', 'targets', 'environments', 'secrets', 'secret_versions', 'encryption_keys', 'api_tokens',
    'organization_counters'
  ]) {
    rows.push(...await service.sql(
      `SELECT (to_jsonb(t) - 'last_used_at' - 'next_event' - 'event_head' - 'last_at')::text AS row FROM ${table} t WHERE organization_id = '${organization}' ORDER BY 1`
    ))
  }
  return JSON.stringify(rows)
}

t.test('TI-38: what a body says is taken as it is: a string, a number or a list is not true', async (t) => {
  const caller = await settle()
  const id = caller.organization
  const before = await snapshot(id)
  for (const confirmed of [1, 0, 'true', 'yes', '', [true], [], {}, null, false, undefined]) {
    for (const [path, body] of [
      ['secrets/versions/purge', LEVEL], ['secrets/versions/purge', { project: 'orbit', scope: 'project' }],
      ['secrets/delete', { ...LEVEL, no_backup: true }]
    ] as const) {
      const answer = await caller.call('POST', `/${id}/${path}`, { ...body, confirmed })
      t.equal(answer.status, 422, `${path} confirmed ${JSON.stringify(confirmed)}`)
      t.match(answer.body.error, /^(?:confirmation_required|validation_failed)$/)
    }
  }
  const rows: [path: string, body: object, member: string][] = [
    ['secrets/versions', { ...LEVEL, page: '1' }, 'page'],
    ['secrets/versions', { ...LEVEL, per_page: 1.5 }, 'per_page'],
    ['secrets/store', { ...LEVEL, plaintext: 'A=2', no_backup: 'false' }, 'no_backup'],
    ['secrets/store', { ...LEVEL, plaintext: 5 }, 'plaintext'],
    ['secrets/delete', { ...LEVEL, no_backup: 1 }, 'no_backup'],
    ['secrets/versions/purge', { ...LEVEL, confirmed: true, force: 'true' }, 'force'],
    ['orbit/backend/environments', { name: 'x', is_production: 'true' }, 'is_production'],
    ['orbit/targets', { name: 5 }, 'name']
  ]
  for (const [path, body, member] of rows) {
    t.strictSame(
      failing(await caller.call('POST', `/${id}/${path}`, body)), [422, 'validation_failed', [member]],
      `${path} ${member}`
    )
  }
  t.equal(await snapshot(id), before, 'nothing changed')
})

t.test('TI-39: reading changes nothing, and force is true only where it says so', async (t) => {
  const caller = await settle()
  const id = caller.organization
  await caller.call('POST', `/${id}/secrets/versions`, LEVEL)
  const before = await snapshot(id)
  const events = async () => (await service.sql(
    `SELECT action FROM audit_events WHERE organization_id = '${id}' ORDER BY seq`
  )).map(({ action }) => action)
  const eventsBefore = await events()
  for (const path of [
    'projects', 'orbit', 'orbit/targets', 'orbit/backend', 'orbit/backend/environments', 'orbit/backend/live',
    'orbit/backend/live/secrets?decrypt=true', 'secrets/versions/1', 'orbit/encryption-key',
    'orbit/encryption-key/history'
  ]) {
    for (const method of ['GET', 'HEAD']) {
      t.equal((await caller.call(method, `/${id}/${path}`)).status, 200, `${method} ${path}`)
    }
  }
  t.equal(await snapshot(id), before)
  const revealed = ['secret.decrypt', 'version.read', 'key.retrieve', 'key.retrieve'].flatMap((event) => [event, event])
  t.strictSame((await events()).slice(eventsBefore.length), revealed, 'only what reveals something is remembered')

  t.equal((await caller.call('POST', `/${id}/secrets/delete`, LEVEL)).status, 204)
  const [snapshotVersion] = (await caller.call('POST', `/${id}/secrets/versions`, LEVEL)).body.data
  t.equal((await caller.call('DELETE', `/${id}/secrets/versions/1`)).status, 204)
  const path = `/${id}/secrets/versions/${snapshotVersion.id}`
  for (const query of ['', '?force=false', '?force=0', '?force=FALSE']) {
    t.strictSame(failing(await caller.call('DELETE', path + query)).slice(0, 2), [422, 'version_protected'], query)
  }
  for (const body of [{}, { force: false }]) {
    t.equal((await caller.call('DELETE', path, body)).body.error, 'version_protected')
  }
  for (const body of [{ force: 'true' }, { force: 1 }, { force: [true] }, { force: null }]) {
    t.equal((await caller.call('DELETE', path, body)).body.error, 'validation_failed', JSON.stringify(body))
  }
  for (const query of ['?force=', '?force=yes', '?force=2', '?force=true&force=false']) {
    t.equal((await caller.call('DELETE', path + query)).status, 422, query)
  }
  t.equal((await caller.call('GET', path)).status, 200, 'it is still there')
  t.equal((await caller.call('DELETE', `${path}?force=true`)).status, 204)
  t.equal((await caller.call('GET', path)).status, 404)
})

t.test('a reserved word in a path is a route of its own or nothing, never a resource', async (t) => {
  const id = o
  for (const word of ['projects', 'secrets']) {
    t.equal((await owner.call('DELETE', `/${id}/${word}`)).status, word === 'projects' ? 405 : 404, word)
  }
  for (const word of ['targets', 'secrets', 'encryption-key']) {
    // `secrets` after a project is the route that changes single names.
    const status = word === 'secrets' ? 200 : 405
    t.equal((await owner.call('PATCH', `/${id}/orbit/${word}`, {})).status, status, word)
  }
  for (const word of RESERVED.environment.filter((word) => word !== 'secrets')) {
    t.match(
      (await owner.call('PATCH', `/${id}/orbit/backend/${word}`, {})).body.error, /^(?:method_not_allowed|not_found)$/,
      word
    )
  }
  for (const method of ['PUT', 'PATCH', 'DELETE']) {
    t.equal((await owner.call(method, `/organizations/${id}/projects`, {})).status, 405, method)
  }
})
