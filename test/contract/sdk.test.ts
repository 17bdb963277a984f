// runs: one database
import { createSecretKey } from 'node:crypto'
import t, { type Test } from 'tap'
import { sealBlob, openBlob } from '../../src/crypto/blob.ts'
import { deriveDataKey } from '../../src/crypto/key-proof.ts'
import { startApp, type Caller } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'
import { readDoc } from '../helpers/docs.ts'
import { authorize, CALLBACK, makePerson } from '../helpers/people.ts'

// Replays the requests of the Go SDK `dotenv-go-sdk`, which the command line tool `dotenv-cli` uses: with the same
// paths, headers and bodies. Reads the responses into the same structs as the SDK, where a field of another type is an
// error. Every step succeeds, except the steps that docs/go-sdk.md lists.

const service = await startApp(t)
await service.listen()
const owner = await service.organization()
const o = owner.organization

interface Sent { status: number, headers: Headers, body: any, read: (shape: Shape) => any }

/** Refused requests that should have succeeded. The list must be empty at the end. */
const refusals: string[] = []

/** Sends a step of the SDK, which must succeed. */
async function send (...step: Parameters<typeof attempt>): Promise<Sent> {
  const sent = await attempt(...step)
  if (sent.status >= 400) refusals.push(`${step[0]} ${step[1]}: ${sent.status} ${JSON.stringify(sent.body)}`)
  return sent
}

/** Sends a request like the SDK: a line feed ends the body, and a request without a body has no content type. */
async function attempt (
  method: string, path: string, body?: unknown, token: string | null = owner.token, agent = 'dotenv-go-sdk/1.0.0'
): Promise<Sent> {
  const answer = await fetch(`${service.app.listeningOrigin}${path}`, {
    method,
    headers: {
      accept: 'application/json',
      'user-agent': agent,
      'x-api-version': '1',
      ...(token !== null && { authorization: `Bearer ${token}` }),
      ...(body !== undefined && { 'content-type': 'application/json' })
    },
    ...(body !== undefined && { body: `${JSON.stringify(body)}\n` })
  })
  const text = await answer.text()
  const known = text === '' ? undefined : JSON.parse(text)
  return { status: answer.status, headers: answer.headers, body: known, read: (shape) => read(known, shape) }
}

/** The type of a value. `?` is a pointer. An array and `*` (a Go map) contain the type of their elements. */
type Shape = 'string' | 'string?' | 'int' | 'bool' | 'time' | 'time?' | 'any' | [Shape] | { '*': Shape } | { [member: string]: Shape }

/** Reads a value like `encoding/json`: a missing field gets the zero value, and another type is an error. */
function read (value: any, shape: Shape, at = ''): any {
  const fail = () => { throw new Error(`json: cannot unmarshal ${JSON.stringify(value)} into ${at} of ${String(shape)}`) }
  if (shape === 'any') return value
  if (Array.isArray(shape)) {
    if (value === null || value === undefined) return []
    return Array.isArray(value) ? value.map((element, i) => read(element, shape[0], `${at}[${i}]`)) : fail()
  }
  if (typeof shape === 'object') {
    if (value !== null && value !== undefined && (typeof value !== 'object' || Array.isArray(value))) fail()
    const readFields = (fields: string[], shapeOf: (field: string) => Shape) => Object.fromEntries(fields.map((field) =>
      [field, read(value?.[field], shapeOf(field), `${at}.${field}`)]))
    const { '*': each } = shape as { '*'?: Shape }
    if (each !== undefined) return readFields(Object.keys(value ?? {}), () => each)
    return readFields(Object.keys(shape), (field) => (shape as Record<string, Shape>)[field]!)
  }
  // Null becomes the zero value, also for a pointer.
  if (value === null || value === undefined) {
    return { string: '', int: 0, bool: false }[shape as string]
  }
  const [type] = shape.split('?')
  if (type === 'int' ? !Number.isSafeInteger(value) : type === 'bool' ? typeof value !== 'boolean' : typeof value !== 'string') {
    fail()
  }
  if (type === 'time' && !/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/.test(value)) fail()
  return value
}

const API_KEY = {
  id: 'string',
  name: 'string',
  token_prefix: 'string',
  abilities: ['string'],
  expires_at: 'time?',
  last_used_at: 'time?',
  created_at: 'time',
  updated_at: 'time'
} as const satisfies Shape
const CREATED = {
  token: { name: 'string', token: 'string', abilities: ['string'], expires_at: 'time?' }, message: 'string'
} as const satisfies Shape
const META = {
  current_page: 'int', from: 'int', last_page: 'int', per_page: 'int', to: 'int', total: 'int'
} as const satisfies Shape
const VERSION = {
  action: 'string',
  size_bytes: 'int',
  is_client_encrypted: 'bool',
  encryption_key_version: 'string',
  key_version: 'string',
  created_at: 'string',
  created_by: { id: 'int', name: 'string' },
  metadata: { '*': 'any' }
} as const satisfies Shape
const KEY_VERSION = {
  version: 'string',
  managed: 'string',
  key_check: 'string',
  key_check_salt: 'string',
  key_check_iterations: 'int',
  is_active: 'bool',
  created_at: 'string',
  rotated_at: 'string'
} as const satisfies Shape
const VERSIONS = { data: [{ id: 'string', attributes: VERSION }], meta: META } as const satisfies Shape
const ONE_VERSION = {
  data: { id: 'string', attributes: VERSION, content: 'string', key: KEY_VERSION }
} as const satisfies Shape
const HIERARCHY = {
  data: {
    type: 'string',
    attributes: {
      encrypted: 'bool',
      format: 'string',
      levels: { '*': { encrypted: 'bool', content: 'string', source: 'string' } }
    }
  },
  meta: {
    api_path: 'string',
    format: 'string',
    merged: 'string',
    timestamp: 'string',
    hierarchy: { project: 'string', target: 'string?', environment: 'string?' },
    action: 'string'
  }
} as const satisfies Shape
const resource = (attributes: Record<string, Shape>) => ({ type: 'string', id: 'string', attributes } as const)
const NAMED = { name: 'string', slug: 'string', description: 'string', created_at: 'time', updated_at: 'time' } as const
const ORGANIZATION = resource({
  ulid: 'string',
  name: 'string',
  slug: 'string',
  status: 'string',
  plan_name: 'string',
  created_at: 'time',
  updated_at: 'time'
})
const PROJECT = resource({
  ...NAMED,
  ulid: 'string',
  organization_id: 'string',
  secret_format: 'string',
  encryption_type: 'string',
  has_secrets: 'bool',
  secret_count: 'int',
  environment_count: 'int',
  target_count: 'int'
})
const TARGET = resource({ ...NAMED, project_id: 'string', environment_count: 'int', secret_count: 'int' })
const ENVIRONMENT = resource({ ...NAMED, project_id: 'string', target_id: 'string', status: 'string' })

const ok = (t: Test, answer: Sent, status = 200) =>
  t.equal(answer.status, status, `${status}: ${JSON.stringify(answer.body)?.slice(0, 200)}`)

/** Creates a project with one target and one environment, like the tool. */
async function makeProject (slug: string, more: object = {}) {
  await send('POST', `/api/v1/${o}/projects`, { name: slug, ...more })
  await send('POST', `/api/v1/${o}/${slug}/targets`, { name: 'backend' })
  await send('POST', `/api/v1/${o}/${slug}/backend/environments`, { name: 'live' })
  return { project: slug, target: 'backend', environment: 'live' }
}

/** Reads the key from the JSON text in `content`, like `GetEncryptionKey`. */
async function keyOf (project: string) {
  const { data } = (await send('GET', `/api/v1/${o}/${project}/encryption-key`)).read({
    data: { id: 'string', attributes: { content: 'string' } }
  })
  return read(JSON.parse(data.attributes.content), {
    key: {
      managed: 'string',
      key: 'string',
      key_check_salt: 'string',
      key_check_iterations: 'int',
      version: 'int',
      created_at: 'time'
    }
  }).key
}

async function dataKeyOf (project: string) {
  const { key, key_check_salt, key_check_iterations } = await keyOf(project)
  return deriveDataKey(key, Buffer.from(key_check_salt, 'base64'), key_check_iterations)
}

const store = (body: object) => send('POST', `/api/v1/${o}/secrets/store`, body)
const purge = (body: object) => send('POST', `/api/v1/${o}/secrets/versions/purge`, { confirmed: true, ...body })
const list = async (body: object) => {
  const { data } = (await send('POST', `/api/v1/${o}/secrets/versions`, body)).read(VERSIONS)
  return data.map((one: { attributes: { metadata: { level: string } } }) => one.attributes.metadata.level) as string[]
}

t.test('the SDK creates and rotates tokens and receives their values; it reads, renames and revokes tokens', async (t) => {
  const keys = `/api/v1/organizations/${o}/api-keys`
  const expires_at = '2099-01-02T03:04:05Z'
  const made = await send('POST', keys, { name: 'CI', abilities: ['secrets:read'], expires_at })
  ok(t, made, 201)
  const { token, message } = made.read(CREATED)
  t.match(token, { name: 'CI', token: /^dotenv_/, abilities: ['secret:read'], expires_at: /^2099-01-02T03:04:05/ })
  t.ok(message.length > 0)
  ok(t, await send('GET', '/api/v1/user', undefined, token.token))
  t.equal((await send('POST', keys, { name: 'Forever', abilities: ['*'] })).read(CREATED).token.expires_at, undefined)

  const { data } = (await send('GET', keys)).read({ data: [API_KEY] })
  const { id } = data.find(({ name }: { name: string }) => name === 'CI')
  const renamed = await send('PUT', `${keys}/${id}`, { name: 'CI of the website' })
  ok(t, renamed)
  t.equal(renamed.read({ data: API_KEY }).data.name, 'CI of the website')
  t.equal((await send('GET', `${keys}/${id}`)).read({ data: API_KEY }).data.name, 'CI of the website')
  for (const body of [undefined, null]) {
    const rotated = await send('POST', `${keys}/${id}/rotate`, body)
    ok(t, rotated)
    const { token: value, api_key } = rotated.read({ data: { token: 'string', api_key: API_KEY } }).data
    t.equal(api_key.id, id)
    ok(t, await send('GET', '/api/v1/user', undefined, value))
  }
  t.equal((await attempt('GET', '/api/v1/user', undefined, token.token)).status, 401, 'the former value has ended')
  ok(t, await send('DELETE', `${keys}/${id}`), 204)
  t.equal((await attempt('GET', `${keys}/${id}`)).status, 404)
})

t.test("only a User-Agent that begins with dotenv-go-sdk/ gets the SDK's format, and Vary names User-Agent", async (t) => {
  const keys = `/api/v1/organizations/${o}/api-keys`
  const create = (agent: string) => send('POST', keys, { name: 'CI', abilities: ['secret:read'] }, owner.token, agent)
  for (const agent of ['curl/8.5.0', 'dotenv-go-sdk', 'Dotenv-Go-SDK/1.0.0', 'x dotenv-go-sdk/1.0.0', '']) {
    const { body, headers } = await create(agent)
    t.type(body.token, 'string', agent)
    t.match(headers.get('vary'), /User-Agent/)
  }
  for (const agent of ['dotenv-go-sdk/1.0.0', 'dotenv-go-sdk/2.3.4 (linux)']) {
    const { body, headers } = await create(agent)
    t.strictSame(Object.keys(body).sort(), ['api_key', 'message', 'success', 'token'], agent)
    t.strictSame(Object.keys(body.token), ['name', 'token', 'abilities', 'expires_at'])
    t.match(headers.get('vary'), /Authorization, .*User-Agent/)
    t.equal(headers.get('cache-control'), 'no-store')
  }
  const refused = await attempt('POST', keys, { name: 'CI', abilities: ['nothing'] })
  t.match(refused, { status: 422, body: { error: 'validation_failed' } }, 'errors have the same format for all clients')
  t.notMatch((await send('GET', keys)).headers.get('vary'), /User-Agent/, 'other operations do not depend on it')
})

t.test('the SDK names the level of a history by its deepest slug; other clients send `level`', async (t) => {
  const at = await makeProject('levels')
  const { project, target } = at
  for (const place of [{ project }, { project, target }, at]) {
    for (const plaintext of ['A=1', 'A=2', 'A=3'].slice(0, Object.keys(place).length)) await store({ ...place, plaintext })
  }
  t.same(await list({ project }), ['project'])
  t.same(await list({ project, target }), ['target', 'target'])
  t.same(await list({ ...at, page: 1, per_page: 50 }), ['environment', 'environment', 'environment'])
  const counted = async (body: object) => (await purge(body)).read({ data: { purged_count: 'int' } }).data.purged_count
  t.equal(await counted({ project, target, scope: 'level' }), 2)
  t.equal(await counted({ project, scope: 'level' }), 1)
  t.same(await list(at), ['environment', 'environment', 'environment'], 'purges of the levels above keep these versions')
  t.equal(await counted({ project, scope: 'project' }), 3, 'the scope `project` includes all levels')
  t.same(await list(at), [])

  const others = (body: object) => attempt('POST', `/api/v1/${o}/secrets/versions`, body, owner.token, 'curl/8.5.0')
  t.match(await others({ project, target }), { status: 422, body: { errors: { environment: [String] } } })
  t.match((await others(at)).headers.get('vary'), /User-Agent/)
})

t.test('the SDK stores, reads, restores, deletes and purges documents', async (t) => {
  const at = await makeProject('documents')
  const dataKey = await dataKeyOf('documents')
  ok(t, await store({ ...at, content: sealBlob(dataKey, 'A=1') }))
  ok(t, await store({ ...at, content: sealBlob(dataKey, 'A=2') }))
  ok(t, await store({ ...at, content: sealBlob(dataKey, 'A=3'), no_backup: true }))
  const path = `/api/v1/${o}/documents/backend/live/secrets`
  const { data, meta } = (await send('GET', path)).read(HIERARCHY)
  t.equal(openBlob(dataKey, data.attributes.levels.environment.content)?.toString(), 'A=3')
  t.equal(meta.hierarchy.environment, 'live')
  t.strictSame((await send('GET', `/api/v1/${o}/documents/secrets`)).read(HIERARCHY).data.attributes.levels, {})
  const retrieve = (body: object) => send('POST', `/api/v1/${o}/secrets/retrieve`, { ...at, filters: {}, ...body })
  t.strictSame(
    (await retrieve({ action: 'decrypt', merge: 'true' })).read({ data: { secrets: { '*': 'string' } } }).data.secrets,
    { A: '3' }
  )
  t.strictSame((await retrieve({ action: 'decrypt', raw: true })).read({ '*': 'string' }), { A: '3' })
  const { data: versions } = (await send('POST', `/api/v1/${o}/secrets/versions`, at)).read(VERSIONS)
  const first = versions.at(-1).id
  const version = (await send('GET', `/api/v1/${o}/secrets/versions/${first}`)).read(ONE_VERSION).data
  t.equal(openBlob(dataKey, version.content)?.toString(), 'A=1')
  t.equal(version.key.version, String((await keyOf('documents')).version))
  for (const body of [undefined, null, {}]) {
    ok(t, await send('POST', `/api/v1/${o}/secrets/versions/${first}/restore`, body))
  }
  ok(t, await send('DELETE', `/api/v1/${o}/secrets/versions/${first}`), 204)
  ok(t, await send('POST', `/api/v1/${o}/secrets/delete`, at), 204)
  const purged = await purge({ ...at, scope: 'level' })
  ok(t, purged)
  t.ok(purged.read({ data: { purged_count: 'int' } }).data.purged_count > 0, '`confirmed` alone also purges the snapshot')
  ok(t, await store({ ...at, content: sealBlob(dataKey, 'A=4') }))
  ok(t, await send('POST', `/api/v1/${o}/secrets/delete`, { ...at, no_backup: true, confirmed: true }), 204)
})

t.test('the message of an error, which is all that the tool shows, says that content must be encrypted', async (t) => {
  const at = await makeProject('plain')
  const store = (body: object) => attempt('POST', `/api/v1/${o}/secrets/store`, body)
  for (const content of ['A=1\n', '', 'A', 'QT0x', 'not base64 but long enough to be a blob otherwise']) {
    const answer = await store({ ...at, content })
    const { error, message } = answer.read({ error: 'string', message: 'string' })
    t.strictSame([answer.status, error], [422, 'validation_failed'], content)
    t.match(message, "This project's content has to be encrypted, or sent as `plaintext`")
    t.match(answer.body.errors.content, [/encrypted/])
  }
  const { registration, proof } = await clientKey('correct horse battery staple')
  const client = await makeProject('plain-client', registration)
  const answer = await store({ ...client, content: 'A=1\n', key_proof: proof })
  t.match(answer, { status: 422, body: { error: 'validation_failed', errors: { content: [String] } } })
  t.notMatch(answer.body.message, 'plaintext', 'a client-managed project takes no plaintext')
  t.equal((await send('GET', `/api/v1/${o}/plain/backend/live/secrets`)).body.data.attributes.levels.environment, undefined)
})

t.test('the SDK rotates server-managed and client-managed keys, and re-encrypts the history of a client', async (t) => {
  const at = await makeProject('rotates')
  await store({ ...at, content: sealBlob(await dataKeyOf('rotates'), 'A=1') })
  const ROTATED = {
    data: {
      key: {
        id: 'string',
        attributes: {
          id: 'any',
          key: 'string',
          version: 'string',
          managed: 'string',
          is_active: 'bool',
          key_check_salt: 'string',
          key_check_iterations: 'int',
          created_at: 'time'
        }
      }
    }
  } as const satisfies Shape
  for (const [body, version] of [[undefined, '2'], [null, '3'], [{}, '4'], [{ history_policy: 're_encrypt' }, '5']] as const) {
    const rotated = await send('POST', `/api/v1/${o}/rotates/encryption-key/rotate`, body)
    ok(t, rotated)
    t.match(rotated.read(ROTATED).data.key.attributes, { version, managed: 'server', is_active: true })
  }
  t.equal((await keyOf('rotates')).version, 5)
  const history = (await send('GET', `/api/v1/${o}/rotates/encryption-key/history`)).read({ data: [KEY_VERSION] })
  t.same(history.data.map(({ version }: { version: string }) => version), ['5', '4', '3', '2', '1'])

  const [old, next] = [await clientKey('correct horse battery staple'), await clientKey('another key string')]
  const client = await makeProject('client', old.registration)
  t.match(await keyOf('client'), { managed: 'client', key: '', key_check_iterations: 1000 })
  ok(t, await store({ ...client, content: sealBlob(old.dataKey, 'A=1'), key_proof: old.proof }))
  const { levels } = (await send('GET', `/api/v1/${o}/client/backend/live/secrets`)).body.data.attributes
  const { storage_mode, ...proof } = next.registration
  const rotated = await send('POST', `/api/v1/${o}/client/secrets/rotate-client-keys`, {
    secrets: [{ id: levels.environment.id, content: sealBlob(next.dataKey, 'A=1') }],
    ...proof,
    history_policy: 're_encrypt'
  })
  ok(t, rotated)
  const waiting = `/api/v1/${o}/client/secrets/re-encrypt-history`
  const { data, meta } = (await send('POST', `${waiting}/pending`, {})).read({
    data: [{ id: 'int', content: 'string', key_version: 'string' }], meta: { remaining: 'int' }
  })
  t.equal(data.length, meta.remaining)
  const moved = await send('POST', waiting, {
    versions: data.map(({ id, content }: { id: number, content: string }) =>
      ({ id, content: sealBlob(next.dataKey, openBlob(old.dataKey, content)!) })),
    key_proof: next.proof
  })
  t.strictSame(
    moved.read({ data: { updated: 'int', remaining: 'int' } }).data, { updated: data.length, remaining: 0 }
  )
})

t.test('the SDK creates, lists, changes and deletes projects, targets and environments', async (t) => {
  const made = await send('POST', `/api/v1/${o}/projects`, { name: 'Web Shop', description: 'Sells', secret_format: 'env' })
  ok(t, made, 201)
  const { slug } = made.read({ data: PROJECT }).data.attributes
  t.equal(slug, 'web-shop')
  const lists = 'page=1&per_page=100&sort=name&filter%5Bname%5D=web'
  t.ok((await send('GET', `/api/v1/${o}/projects?${lists}`)).read({ data: [PROJECT], meta: META }).data.length > 0)
  t.equal((await send('GET', `/api/v1/${o}/${slug}`)).read({ data: PROJECT }).data.attributes.description, 'Sells')
  t.equal(
    (await send('PATCH', `/api/v1/${o}/${slug}`, { name: 'Shop' })).read({ data: PROJECT }).data.attributes.name, 'Shop'
  )
  const targets = `/api/v1/${o}/${slug}/targets`
  ok(t, await send('POST', targets, { name: 'Backend', description: 'Sells' }), 201)
  t.equal((await send('GET', targets)).read({ data: [TARGET], meta: META }).data.length, 1)
  const target = `/api/v1/${o}/${slug}/backend`
  t.equal((await send('GET', target)).read({ data: TARGET }).data.attributes.slug, 'backend')
  ok(t, await send('PATCH', target, { name: 'Server' }))
  ok(t, await send('POST', `${target}/environments`, { name: 'Live', status: 'production' }), 201)
  t.equal((await send('GET', `${target}/environments`)).read({ data: [ENVIRONMENT], meta: META }).data.length, 1)
  t.equal((await send('GET', `${target}/live`)).read({ data: ENVIRONMENT }).data.attributes.status, 'production')
  ok(t, await send('PATCH', `${target}/live`, { name: 'Production' }))
  for (const path of [`${target}/live`, target, `/api/v1/${o}/${slug}`]) ok(t, await send('DELETE', path), 204)
})

t.test('the SDK signs in, reads its user, and creates, lists and changes organizations', async (t) => {
  const person = await makePerson(service, { [o]: 'owner' })
  const TOKENS = {
    access_token: 'string', token_type: 'string', expires_in: 'int', refresh_token: 'string', scope: 'string'
  } as const satisfies Shape
  const client_id = 'dotenv-cli'
  const { code, verifier: code_verifier } = await authorize(service.app.listeningOrigin, person)
  const exchanged = await send('POST', '/api/oauth/token', {
    grant_type: 'authorization_code', code, redirect_uri: CALLBACK, code_verifier, client_id
  }, null)
  ok(t, exchanged)
  const { refresh_token } = exchanged.read(TOKENS)
  const refreshed = await send('POST', '/api/oauth/token', { grant_type: 'refresh_token', refresh_token, client_id }, null)
  ok(t, refreshed)
  const { access_token } = refreshed.read(TOKENS)
  const { data, included } = (await send('GET', '/api/v1/user', undefined, access_token)).read({
    data: {
      type: 'string',
      id: 'string',
      attributes: {
        name: 'string', email: 'string', created_at: 'time', updated_at: 'time', is_verified: 'bool'
      },
      relationships: { organizations: { data: [{ type: 'string', id: 'string' }] } }
    },
    included: [resource({ ulid: 'string', name: 'string', slug: 'string', role: 'string' })]
  })
  t.equal(data.attributes.email, person.email)
  t.match(included[0].attributes, { ulid: o, role: 'owner' })
  const made = await send('POST', '/api/v1/organizations', { name: 'Nimbus' }, access_token)
  ok(t, made, 201)
  const { id, attributes } = made.read({ data: ORGANIZATION }).data
  t.equal(attributes.ulid, id)
  t.equal((await send('GET', '/api/v1/organizations', undefined, access_token)).read({ data: [ORGANIZATION] }).data.length, 2)
  for (const [i, method] of ['PUT', 'PATCH'].entries()) {
    const changed = await send(method, `/api/v1/organizations/${id}`, { name: `Nimbus ${i}`, slug: `nimbus-${i}` }, access_token)
    ok(t, changed)
    t.match(changed.read({ data: ORGANIZATION }).data.attributes, { name: `Nimbus ${i}`, slug: `nimbus-${i}` })
    t.equal((await send('GET', `/api/v1/organizations/nimbus-${i}`, undefined, access_token)).body.data.id, id)
  }
  const event = { id: '1', name: 'cli.command', properties: {}, context: {}, timestamp: '2026-03-01T12:00:00Z' }
  const sent = await send('POST', '/api/v1/cli/telemetry', { events: [event] }, null)
  t.equal(sent.read({ success: 'bool', message: 'string' }).success, true)
})

t.test('errors have the code and the status by which the SDK distinguishes them', async (t) => {
  const at = await makeProject('errors')
  const ERROR = { message: 'string', code: 'string', error: 'string', details: 'any' } as const satisfies Shape
  const weak: Caller = await service.token(o, ['project:read'])
  for (const [answer, status, code] of [
    [await attempt('GET', `/api/v1/${o}/errors`, undefined, 'nothing'), 401, 'unauthenticated'],
    [await attempt('GET', `/api/v1/${o}/errors/backend`, undefined, weak.token), 403, 'insufficient_permissions'],
    [await attempt('GET', `/api/v1/${o}/nothing`), 404, 'not_found'],
    [await attempt('POST', `/api/v1/${o}/secrets/delete`, { ...at, environment: 'none' }), 404, 'not_found']
  ] as const) {
    const { message, error } = answer.read(ERROR)
    t.strictSame([answer.status, error], [status, code])
    t.ok(message.length > 0)
  }
})

t.test('docs/go-sdk.md lists every step of the SDK that is refused on purpose, with its error', async (t) => {
  const at = await makeProject('refused')
  await store({ ...at, content: sealBlob(await dataKeyOf('refused'), 'A=1') })
  const padded = createSecretKey(Buffer.from((await keyOf('refused')).key.slice(0, 32)))
  const client = await makeProject('refused-client', (await clientKey('correct horse battery staple')).registration)
  const short = await clientKey('0123456789abcdef0123456789abcdef')
  const revealing = await makeProject('refused-short', short.registration)
  const project = `/api/v1/${o}/refused/secrets`
  const post = (path: string, body?: object) => attempt('POST', `/api/v1/${o}/${path}`, body)
  const steps: Record<string, () => Promise<Sent>> = {
    'Secrets.List with options': () => attempt('GET', `${project}?target=backend&environment=live&decrypt=true&resolve=true`),
    'Secrets.PushSecrets': () => attempt('POST', `${project}/push`, { secrets: { A: '1' } }),
    'Secrets.Get': () => attempt('GET', `${project}/A`),
    'Secrets.Update': () => attempt('PATCH', `${project}/A`, { data: { type: 'secrets', attributes: { value: '2' } } }),
    'Secrets.Delete': () => attempt('DELETE', `${project}/A`),
    'RetrieveSecrets with Raw, without decryption': () => post('secrets/retrieve', { ...at, action: 'read', raw: true }),
    'a store of content that is not encrypted': () => post('secrets/store', { ...at, content: 'A=1\n' }),
    'a store of content under the padded key string': () =>
      post('secrets/store', { ...at, content: sealBlob(padded, 'A=1') }),
    'a store with a key string of 32 bytes': () =>
      post('secrets/store', { ...revealing, content: sealBlob(short.dataKey, 'A=1'), key_proof: short.proof }),
    'RotateClientKeys without a body': () => post(`${client.project}/secrets/rotate-client-keys`),
    'PurgeHistory without Confirmed': () => post('secrets/versions/purge', { ...at, scope: 'level', confirmed: false })
  }
  const listed = readDoc('docs/go-sdk.md').table('| Step | Error | Reason |')
  t.strictSame(listed.map(([step]) => step), Object.keys(steps))
  for (const [step = '', error, reason = ''] of listed) {
    const { status, body } = await steps[step]!()
    t.equal(`${status} ${body.error}`, error, `${step}: ${JSON.stringify(body)}`)
    t.ok(reason.length > 20, step)
  }
  t.equal((await keyOf('refused-client')).version, 1)
})

t.test('no other step was refused', async (t) => t.strictSame(refusals, []))
