// runs: one database
import { once } from 'node:events'
import { request as httpRequest } from 'node:http'
import { connect, createServer, type AddressInfo } from 'node:net'
import t from 'tap'
import { SCOPE_NAMES, type Ability, type Scope } from '../../schemas/scopes.ts'
import { switchClient } from '../../src/commands/people/clients.ts'
import { mintApiToken, mintCredential } from '../../src/crypto/bearer.ts'
import { revokeGrant } from '../../src/repositories/people/oauth.ts'
import { setDisabled } from '../../src/repositories/people/users.ts'
import { makeLevel, startApp, type TestApp } from '../helpers/app.ts'
import {
  authorizationUrl, authorize, issuePair, makePerson, pkce, post, tokensFor, type Person
} from '../helpers/people.ts'
import { formIn, visitor } from '../helpers/visitor.ts'

// The API as a protected resource (RFC 6750, RFC 9728), and the metadata that a client discovers (RFC 8414).

const service = await startApp(t)
const address = await service.listen()
const nimbus = await service.organization()
const o = nimbus.organization
await makeLevel(nimbus, { slug: 'orbit' })
const rosa = await makePerson(service, { [o]: 'owner' })

const WITHOUT_TOKEN =
  '{"error":"unauthenticated","message":"The request has no `Authorization` header. Send one header `Authorization: Bearer TOKEN`.","details":{"reason":"no_header"}}'
const UNAUTHENTICATED =
  '{"error":"unauthenticated","message":"Send the header `Authorization: Bearer TOKEN` with a token that is complete, not expired and not revoked."}'
const PLAIN = `Bearer realm="strongroom", resource_metadata="${address}/.well-known/oauth-protected-resource"`
const INVALID = `${PLAIN}, error="invalid_token", error_description="The token is not valid"`

const issue = (
  person: Person, scopes: readonly Scope[] = SCOPE_NAMES, on: Pick<TestApp, 'database'> = service
) => issuePair(on, person, scopes)

const get = (url: string, headers: Record<string, string> = {}) => service.inject({ url, headers })
const as = (token: string) => ({ authorization: `Bearer ${token}` })

/** Every operation with a guard in the OpenAPI document, with its scopes; one of them is enough. */
async function guarded (): Promise<{ id: string, method: string, url: string, scopes: Ability[] }[]> {
  const document = (await get('/openapi.json')).body
  const values: Record<string, string> = {
    organization: o, project: 'orbit', target: 'backend', environment: 'live', id: '1', version: '1', token: '1'
  }
  return Object.entries(document.paths as Record<string, Record<string, any>>).flatMap(([
    path, methods
  ]) => Object.entries(methods)
    .filter(([method, { security = [] }]) =>
      ['get', 'post', 'put', 'patch', 'delete'].includes(method) && security.length > 0)
    .map(([method, { operationId, security }]) => ({
      id: operationId,
      method: method.toUpperCase(),
      url: path.replace(/\{(\w+)\}/g, (_, name: string) => values[name] ?? '1'),
      scopes: [...new Set<Ability>(security.flatMap((one: { oauth?: Ability[] }) => one.oauth ?? []))]
    })))
}
const operations = await guarded()
const call = ({ method, url }: { method: string, url: string }, headers: Record<string, string>) => service.inject({
  method: method as 'GET', url, headers, ...(!['GET', 'DELETE'].includes(method) && { payload: {} })
})

t.test('OA-80: without credentials every guarded route answers 401 and says where to get some, with no error', async (t) => {
  t.ok(operations.length > 40, `${operations.length} operations`)
  for (const operation of operations) {
    const { status, text, headers } = await call(operation, {})
    t.strictSame(
      [status, text, headers['www-authenticate'], headers['cache-control']], [401, WITHOUT_TOKEN, PLAIN, 'no-store'],
      operation.id
    )
  }
  const [, url = ''] = /resource_metadata="([^"]+)"/.exec(PLAIN) ?? []
  const found = await fetch(url)
  t.equal((await found.json() as { resource: string }).resource, address, 'and what it names is there')
})

t.test('OA-81: a token that is not good is told from another in no way, on every kind of route', async (t) => {
  const [expired, retired, revoked, ended, unlinked] = [
    await issue(rosa), await issue(rosa), await issue(rosa), await issue(rosa), await issue(rosa)
  ]
  await service.write(
    `UPDATE oauth_tokens SET access_expires_at = now() - interval '1 second' WHERE grant_id = ${expired.grant}`
  )
  await service.write(`UPDATE oauth_tokens SET used_at = now() WHERE grant_id = ${retired.grant}`)
  await revokeGrant(service.database.db, revoked.grant)
  await service.write(`UPDATE oauth_grants SET expires_at = now() - interval '1 second' WHERE id = ${ended.grant}`)
  await service.sql(`DELETE FROM oauth_grants WHERE id = ${unlinked.grant}`)
  const gone = await makePerson(service, { [o]: 'owner' })
  const ofGone = await issue(gone)
  t.equal((await get('/api/v1/user', as(ofGone.access))).status, 200)
  await setDisabled(service.database.db, gone.id, true)
  const live = await issue(rosa)
  const { code } = await authorize(address, rosa)
  const tokens: Record<string, string> = {
    malformed: 'garbage',
    unknown: mintCredential('at'),
    'with a wrong checksum': `${live.access.slice(0, -1)}${live.access.endsWith('0') ? '1' : '0'}`,
    'in other letters': live.access.toUpperCase(),
    expired: expired.access,
    'exchanged for the next': retired.access,
    revoked: revoked.access,
    'of a grant that ended': ended.access,
    'of a grant that is gone': unlinked.access,
    'of a person with a disabled account': ofGone.access,
    'a refresh token': live.refresh,
    'a code': code,
    'a refresh token that calls itself an access token': live.refresh.replace('_rt_', '_at_'),
    'an unknown API token': mintApiToken(o),
    'an expired API token': (await service.token(o, ['*'], { expires_at: new Date(Date.now() - 1000) })).token
  }
  const routes = [
    '/api/v1/user', '/api/v1/organizations', '/api/v1/organization', `/api/v1/organizations/${o}`,
    `/api/v1/${o}/projects`, `/api/v1/${o}/orbit/backend/live/secrets`, '/api/v1/nobody/projects'
  ]
  for (const [name, token] of Object.entries(tokens)) {
    for (const url of routes) {
      const { status, text, headers } = await get(url, as(token))
      t.strictSame([status, text, headers['www-authenticate']], [401, UNAUTHENTICATED, INVALID], `${name} on ${url}`)
    }
  }
  t.equal((await get('/api/v1/user', as(live.access))).status, 200, 'the good one beside them is good')
  t.equal((await post(
    address, '/api/oauth/token', { grant_type: 'refresh_token', refresh_token: live.access, client_id: 'dotenv-cli' }
  )).status, 400, 'and no refresh token')
})

t.test('OA-81: a client that is shut out takes its tokens with it', async (t) => {
  const { access } = await issue(rosa)
  await switchClient(service.database, 'dotenv-cli', true)
  const shut = await get('/api/v1/user', as(access))
  await switchClient(service.database, 'dotenv-cli', false)
  t.strictSame([shut.status, shut.headers['www-authenticate']], [401, INVALID])
  t.equal((await get('/api/v1/user', as(access))).status, 401, 'for good')
})

// contract.test.ts tests the scopes of all routes. Here the scope depends on the requested action.
t.test('OA-82: what is retrieved refuses the one token that lacks nothing but its scope, and names it', async (t) => {
  const { url } = operations.find(({ id }) => id === 'retrieveSecrets')!
  const level = { project: 'orbit', target: 'backend', environment: 'live' }
  for (const [action, scope] of [['decrypt', 'secret:decrypt'], ['key:retrieve', 'key:retrieve']] as const) {
    const { access } = await issue(rosa, SCOPE_NAMES.filter((one) => one !== scope))
    const answer = await service.inject({
      method: 'POST',
      url,
      headers: as(access),
      payload: { ...(action === 'decrypt' ? level : { project: 'orbit' }), action }
    })
    t.strictSame([answer.status, answer.body.details.required_scope], [403, scope], action)
  }
})

t.test('OA-83: a token comes in one Authorization header, and from nowhere else', async (t) => {
  const { access } = await issue(rosa)
  const url = `/api/v1/${o}/projects`
  for (const scheme of ['Bearer', 'bearer', 'BEARER', 'bEaReR', 'Bearer ', 'Bearer   ']) {
    t.equal((await get(url, { authorization: `${scheme} ${access}` })).status, 200, scheme)
  }
  const wrong = [
    `Bearer\t${access}`, `Bearer \t${access}`, `Bearer ${access} x`, `Bearer ${access}, Bearer ${access}`,
    `Bearer "${access}"`, `Bearer ${access}é`, `Bearer ${access}=`, `Bearer ${'a'.repeat(8192)}`,
    `Bearer ${access}${'0'.repeat(600)}`
  ]
  for (const authorization of wrong) {
    const { status, text, headers } = await get(url, { authorization })
    t.strictSame(
      [status, text, headers['www-authenticate']], [401, UNAUTHENTICATED, INVALID], authorization.slice(0, 40)
    )
  }
  const schemes = [
    access, `Bearer${access}`, `Bearer=${access}`, `Bearer: ${access}`,
    `Basic ${Buffer.from(`${access}:`).toString('base64')}`, `DPoP ${access}`,
    `Token ${access}`, 'Bearer', 'Bearer ', ''
  ]
  for (const authorization of schemes) {
    const { status, headers } = await get(url, { authorization })
    t.strictSame([status, headers['www-authenticate']], [401, PLAIN], `no token: ${authorization.slice(0, 10)}`)
  }
  for (const sent of [`Bearer ${access}`, 'Bearer x']) {
    const [status, challenge] = await new Promise<[number, string]>((resolve, reject) => {
      const request = httpRequest(`${address}${url}`)
      request.setHeader('authorization', [`Bearer ${access}`, sent])
      request.on('response', (response) => {
        const { statusCode = 0, headers } = response.resume()
        resolve([statusCode, headers['www-authenticate'] ?? ''])
      }).on('error', reject).end()
    })
    t.strictSame([status, challenge], [401, PLAIN], 'two headers are none')
  }
  const elsewhere = [
    await get(`${url}?access_token=${access}`),
    await get(url, { cookie: `access_token=${access}; session=${access}; authorization=Bearer ${access}` }),
    await get(url, {
      'proxy-authorization': `Bearer ${access}`, 'x-access-token': access, 'x-authorization': `Bearer ${access}`
    }),
    await service.inject({
      method: 'POST',
      url,
      headers: { 'content-type': 'application/x-www-form-urlencoded' },
      payload: `access_token=${access}`
    })
  ]
  for (const { status, headers } of elsewhere) {
    t.strictSame([status, headers['www-authenticate']], [401, PLAIN], 'as if nothing was sent')
  }
  t.equal(
    (await get(`${url}?access_token=${mintCredential('at')}`, as(access))).status, 422,
    'what the query says counts for nothing beside the header either'
  )
  t.notMatch(service.logs.join(''), access, 'nothing of it is in the log')
})

t.test('OA-84: a challenge is made of constants: nothing that was sent comes back in it', async (t) => {
  const { access } = await issue(rosa, ['secret:read'])
  const nasty = ['"', '%22', '%0d%0aX-Evil:%201', '", error="x', '%22%2c%20scope=%22*', 'évil']
  for (const text of nasty) {
    const path = encodeURI(text).replaceAll('%25', '%')
    const plain = await get(`/api/v1/${path}/projects?scope=${path}`)
    t.strictSame(
      [plain.status, plain.headers['www-authenticate'], plain.headers['x-evil']], [401, PLAIN, undefined], text
    )
    const invalid = await get(
      `/api/v1/${o}/projects?scope=${path}`,
      { authorization: `Bearer ${text}`, 'user-agent': text, host: 'evil.example' }
    )
    t.strictSame([invalid.status, invalid.headers['www-authenticate']], [401, INVALID], text)
    const lacking = await get(
      `/api/v1/${o}/projects?scope=${path}&error=${path}`, { ...as(access), 'x-request-id': text }
    )
    t.strictSame(
      [lacking.status, lacking.headers['www-authenticate']],
      [403, 'Bearer realm="strongroom", error="insufficient_scope", scope="project:read"'], text
    )
  }
  for (const path of ['%00', `${o}%00`, '%00%00', 'a%00b', '%ff', '%c0%80', 'a'.repeat(129)]) {
    t.equal(
      (await get(`/api/v1/${path}/projects`, as(access))).status, 404,
      `an organization called ${path.slice(0, 20)} is none`
    )
  }
})

t.test('OA-86: a session says nothing to the API, and a bearer token nothing to the pages', async (t) => {
  const browser = visitor(address)
  await browser.signIn(await browser.open('/account'), rosa.email, rosa.password)
  t.match((await browser.open('/account')).text, rosa.email)
  for (const path of ['/api/v1/user', '/api/v1/organizations', `/api/v1/${o}/projects`]) {
    const { status, headers } = await browser.open(path)
    t.strictSame([status, headers.get('www-authenticate')], [401, PLAIN], path)
  }
  const session = browser.jar.get('session')!
  t.equal((await get('/api/v1/user', as(session))).status, 401, 'not in the header either')
  const { access } = await issue(rosa)
  for (const token of [access, nimbus.token]) {
    const page = await get('/account', { ...as(token), cookie: `session=${token}` })
    t.notMatch(page.text, rosa.email)
    t.match(page.text, /name="password"/)
    const consent = await get(authorizationUrl(pkce().challenge), as(token))
    t.match(consent.text, /name="password"/)
    t.equal((await service.inject({
      method: 'POST',
      url: '/oauth/authorize/decision',
      headers: { ...as(token), 'sec-fetch-site': 'same-origin', 'content-type': 'application/x-www-form-urlencoded' },
      payload: 'decision=allow'
    })).status, 403)
  }
})

// Discovery

const serverDocument = (issuer: string) => ({
  issuer,
  authorization_endpoint: `${issuer}/oauth/authorize`,
  token_endpoint: `${issuer}/api/oauth/token`,
  revocation_endpoint: `${issuer}/api/oauth/revoke`,
  response_types_supported: ['code'],
  response_modes_supported: ['query'],
  grant_types_supported: [
    'authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:token-exchange',
    'urn:ietf:params:oauth:grant-type:jwt-bearer'
  ],
  code_challenge_methods_supported: ['S256'],
  token_endpoint_auth_methods_supported: ['none'],
  revocation_endpoint_auth_methods_supported: ['none'],
  authorization_response_iss_parameter_supported: true,
  scopes_supported: SCOPE_NAMES,
  service_documentation: `${issuer}/docs`
})
const resourceDocument = (issuer: string) => ({
  resource: issuer,
  authorization_servers: [issuer],
  bearer_methods_supported: ['header'],
  scopes_supported: SCOPE_NAMES,
  resource_name: 'Strongroom',
  resource_documentation: `${issuer}/docs`
})

/** Opens a URL like a client, without following redirects. */
const open = async (url: string, headers: Record<string, string> = {}) => {
  const response = await fetch(url, { redirect: 'manual', headers })
  const text = await response.text()
  return {
    status: response.status, headers: response.headers, text, body: text.startsWith('{') ? JSON.parse(text) : undefined
  }
}

t.test('OA-90 OA-91: every client can read both metadata documents, and all that they say is true', async (t) => {
  const documents: [path: string, expected: object][] = [
    ['/.well-known/oauth-authorization-server', serverDocument(address)],
    ['/.well-known/oauth-protected-resource', resourceDocument(address)]
  ]
  for (const [path, expected] of documents) {
    for (const headers of [
      {}, { accept: 'application/json' }, { origin: 'https://app.example' }, as('garbage'), { cookie: 'session=x' },
      { accept: 'text/html' }
    ] as Record<string, string>[]) {
      const { status, headers: got, body } = await open(`${address}${path}`, headers)
      t.strictSame([status, body], [200, expected], path)
      t.match(got.get('content-type'), /^application\/json\b/)
      t.strictSame(
        [got.get('cache-control'), got.get('access-control-allow-origin'), got.get('access-control-allow-credentials')],
        ['public, max-age=300', '*', null]
      )
      t.equal(got.get('x-ratelimit-limit'), null, 'no limit counts it')
    }
    const head = await fetch(`${address}${path}`, { method: 'HEAD' })
    t.strictSame([head.status, await head.text()], [200, ''])
    t.equal((await fetch(`${address}${path}`, { method: 'POST' })).status, 405)
    t.equal((await open(`${address}${path}/`)).status, 404, 'no other spelling')
    t.equal((await open(`${address}${path}?x=1`)).status, 200)
  }
  for (const path of [
    '/.well-known/openid-configuration', '/.well-known/jwks.json', '/.well-known/oauth-authorization-server/base',
    '/.well-known', '/api/oauth/introspect', '/api/oauth/register', '/oauth/userinfo'
  ]) {
    t.equal((await open(`${address}${path}`)).status, 404, path)
  }
})

/**
 * The status of each URL in a document, as a client would request it. For a redirect, the status of its target if that
 * does not exist.
 */
async function answersOf (document: Record<string, unknown>): Promise<[name: string, status: number][]> {
  const answers: [string, number][] = []
  for (const [name, url] of Object.entries(document)) {
    if (typeof url !== 'string' || !/_endpoint$|_documentation$/.test(name)) continue
    const posts = /token_endpoint|revocation_endpoint/.test(name)
    const first = posts ? await post(url, '', {}) : await open(url)
    const location = first.headers.get('location')
    answers.push([name, location === null ? first.status : (await open(new URL(location, url).href)).status])
  }
  return answers
}

t.test('OA-91: whatever is advertised is there', async (t) => {
  for (const env of [{}, { DOCS_UI: 'off' }] as Record<string, string>[]) {
    const other = await startApp(t, env)
    const at = await other.listen()
    for (const name of ['oauth-authorization-server', 'oauth-protected-resource']) {
      const { body } = await open(`${at}/.well-known/${name}`)
      for (const [endpoint, status] of await answersOf(body)) {
        t.ok(status !== 404 && status < 500, `${endpoint}: ${status}`)
      }
    }
    t.equal((await open(`${at}/oauth/authorize`)).status, 400)
    t.equal((await post(at, '/api/oauth/revoke', { token: 'x' })).status, 200)
  }
})

t.test('OA-90: with CORS_ORIGINS set, discovery stays open to every origin', async (t) => {
  const other = await startApp(t, { CORS_ORIGINS: 'https://app.example' })
  for (const origin of ['https://app.example', 'https://other.example', 'null']) {
    for (const path of ['/.well-known/oauth-authorization-server', '/.well-known/oauth-protected-resource']) {
      const { status, headers } = await other.inject({ url: path, headers: { origin } })
      t.strictSame(
        [status, headers['access-control-allow-origin'], headers['access-control-allow-credentials']],
        [200, '*', undefined], `${path} for ${origin}`
      )
    }
  }
})

t.test('OA-92: an issuer with a path works with and without the path being taken away', async (t) => {
  // The service needs its port in the configuration, before it listens.
  const probe = createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const { port } = probe.address() as AddressInfo
  probe.close()
  const issuer = `http://127.0.0.1:${port}/base`
  const root = `http://127.0.0.1:${port}`
  const based = await startApp(t, { PUBLIC_URL: issuer })
  await based.app.listen({ host: '127.0.0.1', port })
  const cirrus = await based.organization()
  const person = await makePerson(based, { [cirrus.organization]: 'owner' })

  for (const [name, expected] of [
    ['oauth-authorization-server', serverDocument(issuer)], ['oauth-protected-resource', resourceDocument(issuer)]
  ] as const) {
    for (const url of [
      `${root}/.well-known/${name}/base`, `${issuer}/.well-known/${name}`, `${root}/.well-known/${name}`
    ]) {
      const { status, body, headers } = await open(url)
      t.strictSame([status, body, headers.get('access-control-allow-origin')], [200, expected, '*'], url)
    }
    for (const [endpoint, status] of await answersOf(expected)) {
      t.ok(status !== 404 && status < 500, `${endpoint}: ${status}`)
    }
    t.equal((await open(`${root}/.well-known/${name}/other`)).status, 404)
  }
  const refused = await open(`${issuer}/api/v1/user`)
  t.equal(
    refused.headers.get('www-authenticate'),
    `Bearer realm="strongroom", resource_metadata="${issuer}/.well-known/oauth-protected-resource"`
  )

  const stripped = await tokensFor(root, person)
  t.equal(
    (await open(`${root}/api/v1/user`, as(stripped.access_token))).body.data.attributes.email, person.email,
    'behind a proxy that takes the path away'
  )
  // A browser that knows only the issuer. All URLs of the flow begin with the issuer.
  const browser = visitor(root)
  const { verifier, challenge } = pkce()
  const signIn = await browser.open(`/base${authorizationUrl(challenge)}`)
  t.equal(signIn.status, 200)
  t.match(formIn(signIn).action, /^\/base\//, 'a form leads below the path')
  const after = await browser.send(formIn(signIn), { email: person.email, password: person.password })
  t.equal(after.status, 303)
  t.match(after.headers.get('location'), /^\/base\/oauth\/authorize\?/, 'a redirect leads below the path')
  const consent = await browser.open(after.headers.get('location')!)
  t.match(formIn(consent).action, /^\/base\//)
  const back = await browser.decide(consent, 'allow')
  t.equal(back.searchParams.get('iss'), issuer)
  const exchange = {
    grant_type: 'authorization_code',
    code: back.searchParams.get('code'),
    code_verifier: verifier,
    client_id: 'dotenv-cli',
    redirect_uri: 'http://127.0.0.1:5555/callback'
  }
  const pair = await post(issuer, '/api/oauth/token', exchange)
  t.equal(pair.status, 200, pair.text)
  t.equal((await open(`${issuer}/api/v1/user`, as(pair.body.access_token))).body.data.attributes.email, person.email)
  const account = await browser.open('/base/account')
  t.match(account.text, /href="\/base\/account\/password"/)
  const out = await browser.send(formIn(account), { where: 'here' })
  t.strictSame([out.status, out.headers.get('location')], [303, '/base/console/?signed-out'])
})

t.test('OA-93: no header of the request changes where anything leads', async (t) => {
  const evil: Record<string, string>[] = [
    {
      'x-forwarded-host': 'evil.example',
      'x-forwarded-proto': 'https',
      'x-forwarded-port': '444',
      'x-forwarded-prefix': '/evil'
    },
    { forwarded: 'for=192.0.2.1;host=evil.example;proto=https' },
    {
      'x-original-host': 'evil.example', 'x-host': 'evil.example', 'x-original-url': '/evil', 'x-rewrite-url': '/evil'
    },
    { host: 'evil.example' },
    { host: 'evil.example:444', 'x-forwarded-host': 'evil.example', forwarded: 'host=evil.example' }
  ]
  // One service trusts the addresses from its proxy, the other does not.
  for (const env of [
    {}, { TRUST_PROXY: 'loopback' }, { PUBLIC_URL: 'https://secrets.example.com', TRUST_PROXY: 'loopback' }
  ] as Record<string, string>[]) {
    const other = await startApp(t, env)
    await other.listen()
    const issuer = other.app.issuer()
    const paths = [
      '/.well-known/oauth-authorization-server', '/.well-known/oauth-protected-resource', '/oauth/authorize',
      authorizationUrl(pkce().challenge), authorizationUrl('short'), '/account', '/account/password', '/api/v1/user',
      '/docs', '/openapi.json'
    ]
    for (const url of paths) {
      const honest = await other.inject({ url })
      for (const headers of evil) {
        const answer = await other.inject({ url, headers })
        t.equal(answer.status, honest.status)
        t.notMatch(JSON.stringify(answer.headers) + answer.text, /evil/, `${url} with ${JSON.stringify(headers)}`)
      }
    }
    for (const headers of evil) {
      t.strictSame(
        (await other.inject({ url: '/.well-known/oauth-authorization-server', headers })).body, serverDocument(issuer)
      )
      const { location } = (await other.inject({ url: authorizationUrl('short'), headers })).headers
      t.equal(new URL(String(location)).searchParams.get('iss'), issuer)
      t.equal(
        (await other.inject({ url: '/api/v1/user', headers })).headers['www-authenticate'],
        PLAIN.replace(address, issuer)
      )
    }
  }
  const raw = await new Promise<string>((resolve, reject) => {
    const socket = connect(Number(new URL(address).port), '127.0.0.1')
    let text = ''
    socket.on('data', (bytes) => { text += String(bytes) }).on('end', () => { resolve(text) }).on('error', reject)
    socket.end(
      'GET http://evil.example/.well-known/oauth-authorization-server HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n'
    )
  })
  t.notMatch(raw, /evil/, 'not in the absolute form of a request either')
})
