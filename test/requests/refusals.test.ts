// runs: one database
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import type { FastifyInstance, RouteOptions } from 'fastify'
import t from 'tap'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { startIsolatedApp, type Answer } from '../helpers/app.ts'
import { OPERATIONS, publishedPaths, requestOf, settle, type Row } from '../helpers/operations.ts'
import { issuePair, makePerson, makeTeam } from '../helpers/people.ts'

// The messages of refusals, for every operation. The code contains each message only once.

interface Schema {
  $ref?: string
  enum?: unknown[]
  pattern?: string
  format?: string
  type?: string | string[]
  properties?: Record<string, Schema>
  items?: Schema
  anyOf?: Schema[]
  oneOf?: Schema[]
}
interface Operation {
  operationId: string
  deprecated?: boolean
  parameters?: { name: string, in: string, schema: Schema }[]
  requestBody?: { content: Record<string, { schema: Schema }> }
}

const routes: { method: string, url: string }[] = []
const listen = (message: unknown) =>
  (message as { fastify: FastifyInstance }).fastify.addHook('onRoute', ({ method, url, config }: RouteOptions) => {
    if (config?.responseFormat !== 'html') for (const one of [method].flat()) routes.push({ method: one, url })
  })
subscribe('fastify.initialization', listen)
// This file has its own database, because it lists the routes while its service starts.
const service = await startIsolatedApp(t)
unsubscribe('fastify.initialization', listen)
const world = await settle(service, 'refusals')
const { ids } = world
const o = ids.organization!

const { schemas } = (service.app.swagger() as unknown as { components: { schemas: Record<string, Schema> } }).components
const follow = (schema: Schema): Schema => schema.$ref === undefined ? schema : follow(schemas[schema.$ref.split('/').at(-1)!]!)
const operations = Object.values(publishedPaths(service)).flatMap((item) => Object.values(item) as Operation[])
  // OAuth has its own errors, which are tested below.
  .filter(({ operationId }) => !['getAccessToken', 'revokeToken'].includes(operationId))

const bearer = (token: string) => ({ authorization: `Bearer ${token}` })

/** An enumeration, a pattern or a time in the OpenAPI document, and a function that sends a value there. */
interface Rule { at: string, schema: Schema, send: (value: string) => Promise<Answer> }

function rulesOf (operation: Operation): Rule[] {
  const { operationId } = operation
  const row = OPERATIONS[operationId]!
  const { method, url, payload } = requestOf(row, ids)
  const access = row.byPerson ? world.person.access : world.caller.token
  const request = (more: object): Promise<Answer> =>
    service.inject({ method: method as 'GET', url, headers: bearer(access), ...payload && { payload }, ...more })
  const parameters = (operation.parameters ?? []).filter((one) => one.in !== 'path').flatMap((one) =>
    leavesOf(one.schema).map(({ schema }) => ({
      at: `${operationId} ${one.name}`,
      schema,
      send: (value: string) => one.in === 'header'
        ? request({ headers: { ...bearer(access), [one.name]: value } })
        : request({ url: urlWith(url, one.name, value) })
    })))
  const bodies = Object.values(operation.requestBody?.content ?? {}).flatMap(({ schema }) =>
    leavesOf(schema).map(({ path, schema }) => ({
      at: `${operationId} body ${path.join('.')}`,
      schema,
      send: (value: string) => request({ payload: withValue(payload ?? {}, path, value) })
    })))
  return [...parameters, ...bodies]
}

function urlWith (url: string, name: string, value: string): string {
  const [path, query] = url.split('?')
  const parameters = new URLSearchParams(query)
  parameters.set(name, value)
  return `${path}?${parameters}`
}

/** The enumerations, patterns and times in a schema, with their paths; `0` is the first element of an array. */
function leavesOf (schema: Schema, path: string[] = []): { path: string[], schema: Schema }[] {
  const found = follow(schema)
  const own = found.enum !== undefined || found.pattern !== undefined || found.format === 'date-time'
  return [
    ...own ? [{ path, schema: found }] : [],
    ...Object.entries(found.properties ?? {}).flatMap(([name, member]) => leavesOf(member, [...path, name])),
    ...found.items === undefined ? [] : leavesOf(found.items, [...path, '0']),
    ...[...found.anyOf ?? [], ...found.oneOf ?? []].flatMap((one) => leavesOf(one, path))
  ]
}

function withValue (body: unknown, [first, ...rest]: string[], value: unknown): unknown {
  if (first === undefined) return value
  if (first === '0') {
    const [element = {}] = Array.isArray(body) ? body as unknown[] : []
    return [withValue(element, rest, value)]
  }
  const members = typeof body === 'object' && body !== null ? body as Record<string, unknown> : {}
  return { ...members, [first]: withValue(members[first], rest, value) }
}

/** All messages of an error response. */
const messagesOf = ({ body }: Answer) => Object.values(body?.errors ?? {}).flat() as string[]

t.test('a refused enumeration lists its values; a refused pattern or time shows an example that is accepted', async (t) => {
  const kinds = { enum: 0, pattern: 0, time: 0 }
  for (const operation of operations) {
    const wrong: string[] = []
    for (const { at, schema, send } of rulesOf(operation)) {
      if (schema.pattern !== undefined && new RegExp(schema.pattern, 'u').test('\u0001')) continue
      const answer = await send(schema.enum === undefined ? '\u0001' : 'no-such-word')
      const said = messagesOf(answer)
      const fail = (what: string) => wrong.push(`${at}: ${what}: ${answer.status} ${answer.text}`)
      if (at.endsWith('body confirmed')) {
        if (answer.body?.error !== 'confirmation_required') fail('is not asked for')
      } else if (answer.body?.error !== 'validation_failed') {
        fail('is not refused')
      } else if (schema.enum !== undefined) {
        kinds.enum++
        const words = schema.enum.map(String)
        const list = `must be ${words.length > 1 ? 'one of ' : ''}${words.join(', ')}`
        if (!said.some((one) => one.startsWith(list))) fail('does not list the values')
        if (!answer.body.message.includes(list)) fail('the message does not list the values')
      } else {
        kinds[schema.pattern === undefined ? 'time' : 'pattern']++
        const [example = ''] = said.flatMap((one) => /such as `?(\S+?)`?(?:, or null)?$/.exec(one)?.[1] ?? [])
        const accepts = schema.pattern === undefined
          ? !Number.isNaN(Date.parse(example))
          : new RegExp(schema.pattern, 'u').test(example)
        if (example === '' || !accepts) fail('has no example that is accepted')
      }
      if (answer.text.includes('no-such-word')) fail('repeats the value')
      if (/\[\^|\\S|\]\{|\^\(/.test(answer.text)) fail('shows a regular expression')
    }
    t.strictSame(wrong, [], operation.operationId)
  }
  t.ok(kinds.enum > 40 && kinds.pattern > 100 && kinds.time > 10, JSON.stringify(kinds))
})

t.test('a value within two edits of a valid one is suggested, and no other', async (t) => {
  const ask = (method: 'GET' | 'POST', path: string, payload?: object) =>
    world.caller.call(method, path, payload).then((answer) => messagesOf(answer).join(' '))
  const scope = async (ability: string) =>
    ask('POST', `/organizations/${o}/api-keys`, { name: 'x', abilities: [ability] })
  for (const [sent, meant] of [
    ['secret:reed', 'secret:read'], ['secret:rea', 'secret:read'], ['Secret:Read', 'secret:read'],
    ['secrt:wirte', undefined], ['everything', undefined], ['?', undefined], ['api-token:crate', 'api-token:create']
  ] as const) {
    const said = await scope(sent)
    t.ok(said.includes(SCOPE_NAMES.join(', ')), said)
    t.equal(/ \(did you mean (.+)\?\)$/.exec(said)?.[1], meant, sent)
  }
  const actors: [sent: string, meant: string | undefined][] = [
    ['operater', 'operator'], ['System', 'system'], ['users:17', 'user:ID'], ['api-token:7', 'api_token:ID'],
    ['somebody', undefined]
  ]
  for (const [actor, meant] of actors) {
    const said = await ask('GET', `/${o}/audit-events?actor=${actor}`)
    t.match(said, 'must be operator, system, api_token:ID, user:ID or workload:ID, such as user:17', actor)
    t.equal(/ \(did you mean (.+)\?\)$/.exec(said)?.[1], meant, actor)
  }
  for (const slug of ['My-App', 'my_app', '--', 'x'.repeat(65)]) {
    t.equal(
      await ask('POST', `/${o}/projects`, { name: 'x', slug }),
      'must be lower-case letters and digits, with single hyphens between them, at most 64, such as my-project',
      'a slug is not repeated, because it may be a misplaced secret'
    )
  }
  t.match(await ask('POST', `/organizations/${o}/members`, { email: 'ben@nimbus.example', role: 'ower' }), /owner, .*\(did you mean owner\?\)$/)
})

/** The parameters of a path, without the organization. */
const parametersOf = (row: Row) => [...row.at.matchAll(/\{(\w+)\}/g)].map(([, name]) => name!).filter((name) => name !== 'organization')
const RESOURCES: Record<string, string> = { id: 'api-token', payment_method: 'payment-method' }
const NEVER: Record<string, string> = { version: '9007199254740991', id: '9007199254740991', member: '9007199254740991' }
const inOrganization = Object.entries(OPERATIONS).filter(([, { at }]) => at.includes('{organization}'))
const idsWithout = (row: Row, missing: readonly string[]) => ({
  ...ids,
  ...row.client && { project: ids.client! },
  ...Object.fromEntries(missing.map((name) => [name, NEVER[name] ?? 'never']))
})

t.test('a 404 names the first part of the path, or of the level in the body, that does not exist', async (t) => {
  let cells = 0
  for (const [id, row] of inOrganization) {
    const body = JSON.stringify(typeof row.body === 'function' ? row.body(ids) : row.body ?? {})
    const inBody = ['project', 'target', 'environment'].filter((name) => body.includes(`"${name}":"{${name}}"`))
    const parts = [...parametersOf(row), ...inBody]
    for (const [i, part] of parts.entries()) {
      // The part alone is missing, or the part and all parts after it.
      for (const missing of [[part], parts.slice(i)]) {
        cells++
        const all = idsWithout(row, missing)
        const { method, url, payload } = requestOf({ ...row, client: undefined! }, all)
        const { status, body } = await service.inject({
          method: method as 'GET', url, headers: bearer(world.caller.token), ...payload && { payload }
        })
        const resource = RESOURCES[part] ?? part
        t.match({ status, body }, {
          status: 404,
          body: { error: 'not_found', message: `There is no such ${resource === 'api-token' ? 'API token' : resource.replace('-', ' ')}.`, details: { resource } }
        }, `${id} without ${missing.join(', ')}`)
      }
    }
  }
  t.ok(cells > 200, `${cells}`)
  const { caller } = world
  const level = { project: ids.client, target: 'never' }
  t.match(await caller.call('POST', `/${o}/secrets/delete`, level), { status: 404, body: { details: { resource: 'target' } } })
  t.match(await caller.call('DELETE', `/organizations/${o}/billing/coupons`), { status: 404, body: { details: { resource: 'coupon' } } })
})

t.test('a 404 names nothing that a restriction hides: a hidden part and a missing one get the same response', async (t) => {
  const place = world.sliceOf()
  const target = { ...place, environment_id: null }
  const project = { ...target, target_id: null }
  // A caller with a restriction may learn that a part is missing directly below a level that the restriction contains
  // completely.
  for (const [slice, seen] of [[project, ['target', 'environment']], [target, ['environment']], [place, []]] as const) {
    const token = (await service.token(o, ['*'], { slices: [slice] })).token
    for (const [id, row] of inOrganization.filter(([, { depth }]) => depth !== 'organization')) {
      const parts = parametersOf(row)
      if (parts.some((name) => !['project', 'target', 'environment'].includes(name))) continue
      for (const part of parts) {
        const { method, url, payload } = requestOf({ ...row, client: undefined! }, idsWithout(row, [part]))
        const answer = await service.inject({
          method: method as 'GET', url, headers: bearer(token), ...payload && { payload }
        })
        // The client-managed project is outside of the restriction.
        const isSeen = seen.includes(part as never) && !row.client
        t.strictSame(
          [answer.status, answer.body.details], [404, isSeen ? { resource: part } : undefined], `${id} without ${part}`
        )
      }
    }
    const hidden = ['otherProject', 'client'].map((name) => ids[name]!)
    for (const name of [...hidden, 'never']) {
      for (const path of [`/${o}/${name}`, `/${o}/${name}/never`, `/${o}/${name}/secrets?decrypt=true`]) {
        const { status, text } = await service.inject({ method: 'GET', url: `/api/v1${path}`, headers: bearer(token) })
        t.strictSame([status, text], [404, '{"error":"not_found","message":"There is no such resource."}'], path)
      }
    }
    for (const [id, row] of inOrganization.filter(([, row]) => row.narrowed === 404 || row.at.includes('{version}'))) {
      const { method, url, payload } = requestOf(row, { ...ids, version: '9007199254740991' })
      const answer = await service.inject({ method: method as 'GET', url, headers: bearer(token), ...payload && { payload } })
      t.strictSame([answer.status, answer.body.details], [404, undefined], id)
    }
  }
  const person = await makePerson(service, { [o]: 'billing_manager' })
  await makeTeam(service, o, [person], { [ids.otherProject!]: 'owner' })
  const { access } = await issuePair(service, person, SCOPE_NAMES)
  for (const version of [ids.version!, '9007199254740991']) {
    const answer = await service.inject({ method: 'GET', url: `/api/v1/${o}/secrets/versions/${version}`, headers: bearer(access) })
    t.strictSame([answer.status, answer.body.details], [404, undefined], `version ${version} for a member of a team`)
  }
})

t.test('a 404 of an unknown path names the most similar paths, and nothing of the path that was sent', async (t) => {
  const { token } = await service.token(o, ['*'], { slices: [world.sliceOf()] })
  const ask = (path: string, headers = bearer(world.caller.token)) => service.inject({ method: 'GET', url: path, headers })
  const [project, target, environment] = ['/{project}', '/{project}/{target}', '/{project}/{target}/{environment}'].map((path) =>
    `/api/v1/{organization}${path}`)
  for (const [path, similar] of [
    [`/api/v1/${o}/projects/s3cret`, [project]],
    [`/api/v1/${o}/s3cret/targets/api`, [target]],
    [`/api/v1/${o}/projects/s3cret/targets/api`, [target]],
    [`/api/v1/${o}/projects/s3cret/targets`, [`${project}/targets`]],
    [`/api/v1/${o}/projects/s3cret/targets/api/environments/live`, [environment]],
    [`/api/v1/${o}/s3cret/targets/api/environments/live/secrets`, [`${environment}/secrets`]],
    [`/api/v1/organizations/${o}/tokens`, ['/api/v1/organizations/{organization}/api-keys']],
    [`/api/v1/organizations/${o}/member`, ['/api/v1/organizations/{organization}/members']],
    [`/api/v1/organizations/${o}/api-keys/7/rotat`, ['/api/v1/organizations/{organization}/api-keys/{id}/rotate']],
    [`/api/v1/${o}/projects/`, ['/api/v1/{organization}/projects']],
    [`/api/${o}/s3cret`, [project]],
    [`/api/v1/${o}/s3cret/a/b/c/d`, []],
    ['/s3cret.php', []],
    [`/api/v1/${o}${'/projects'.repeat(500)}`, []]
  ] as const) {
    const { status, body, text } = await ask(path)
    const hint = similar.length === 0 ? '' : ` Did you mean ${similar.join(' or ')}?`
    const message = `The API has no such path.${hint} /openapi.json lists all paths.`
    t.strictSame([status, body], [404, { error: 'not_found', message, details: { resource: 'path', paths: similar } }], path.slice(0, 100))
    t.notMatch(text, /s3cret|api\/v1\/01/, 'no part of the path is repeated')
    t.equal((await ask(path, bearer(token))).text, text, 'a restriction makes no difference')
  }
  // For each path of the document, a path with one misspelt word finds it.
  let misspelt = 0
  for (const [template] of Object.entries(publishedPaths(service)).filter(([path]) => path.startsWith('/api/'))) {
    const segments = template.split('/')
    for (const [i, segment] of segments.entries()) {
      if (segment.startsWith('{') || segment.length < 4) continue
      const path = segments.with(i, `${segment}x`).join('/').replace('{organization}', o).replaceAll(/\{\w+\}/g, 'nothing')
      const { body } = await ask(path)
      if (body.details?.resource !== 'path') continue
      misspelt++
      const { deprecated } = Object.values(publishedPaths(service)[template]!)[0] as Operation
      if (!deprecated) t.ok(body.details.paths.includes(template) || body.details.paths.length === 5, `${path}: ${body.message}`)
    }
  }
  t.ok(misspelt > 20, `${misspelt}`)
})

t.test('a 405 names the methods of the path in the message and in details.allowed, at every path', async (t) => {
  const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE'] as const
  const urls = [...new Set(routes.map(({ url }) => url))].filter((url) => !url.includes('*') && !url.startsWith('/docs'))
  let refused = 0
  for (const url of urls) {
    const path = url.replaceAll(/:(\w+)/g, (_, name: string) => ids[name] ?? 'x')
    for (const method of METHODS) {
      if (method === 'HEAD' || routes.some((one) => one.url === url && one.method === method)) continue
      const { status, body, headers } = await service.inject({ method, url: path, headers: bearer(world.caller.token) })
      // Another route has a parameter at this position.
      if (status !== 405) continue
      refused++
      const allowed = String(headers.allow).split(', ')
      t.ok(routes.filter((one) => one.url === url).every((one) => allowed.includes(one.method)), `${method} ${url}: ${allowed.join()}`)
      const said = `This path does not support the method. It supports ${allowed.join(', ')}`
      t.match(body, { error: 'method_not_allowed', message: `${said}.`, details: { allowed } }, `${method} ${url}`)
      if (url.startsWith('/api/oauth/')) t.equal(body.error_description, said)
    }
  }
  t.ok(refused > 100, `${refused}`)
})

t.test('malformed JSON has the line and the column of its first error, at every operation with a body', async (t) => {
  const texts: [text: string, line: number, column: number, name?: string][] = [
    ['{"a":1,}', 1, 8], ['{\n  "a": 1,\n  b: 2\n}', 3, 3], ['{"a":"é😀" x}', 1, 11], ['{"a":[1,2', 1, 10],
    ['{"a":1}}', 1, 8], ['{"a":1,\n "a":2}', 2, 2, 'a'], ["{'a': 1}", 1, 2], ['{"a":"\\x"}', 1, 7]
  ]
  let bodies = 0
  for (const { operationId, requestBody } of operations) {
    const row = OPERATIONS[operationId]!
    for (const type of Object.keys(requestBody?.content ?? {})) {
      bodies++
      const { method, url } = requestOf(row, ids)
      const access = row.byPerson ? world.person.access : world.caller.token
      for (const [text, line, column, name] of texts) {
        const { status, body } = await service.inject({
          method: method as 'GET', url, headers: { ...bearer(access), 'content-type': type }, payload: text
        })
        t.match({ status, body }, {
          status: 400,
          body: {
            error: 'malformed_json',
            message: name === undefined
              ? `The body is not valid JSON: the first error is at line ${line}, column ${column}.`
              : `The name "${name}" occurs twice in an object of the body, again at line ${line}, column ${column}.`,
            details: { line, column, ...(name !== undefined && { name }) }
          }
        }, `${operationId} ${JSON.stringify(text)}`)
      }
    }
  }
  t.ok(bodies > 40, `${bodies}`)
})

t.test('an error of the OAuth endpoints names the parameter', async (t) => {
  const VERIFIER = 'v'.repeat(43)
  const code = { grant_type: 'authorization_code', client_id: 'dotenv-cli', code: 'x', code_verifier: VERIFIER, redirect_uri: 'http://127.0.0.1:1/callback' }
  const refresh = { grant_type: 'refresh_token', client_id: 'dotenv-cli', refresh_token: 'x' }
  const post = async (payload: string, type = 'application/x-www-form-urlencoded', headers = {}) => service.inject({
    method: 'POST', url: '/api/oauth/token', headers: { 'content-type': type, ...headers }, payload
  })
  const form = (parameters: object) => new URLSearchParams(parameters as Record<string, string>).toString()
  const without = (parameters: object, name: string) =>
    form(Object.fromEntries(Object.entries(parameters).filter(([one]) => one !== name)))
  for (const parameters of [code, refresh]) {
    for (const name of Object.keys(parameters)) {
      t.match((await post(without(parameters, name))).body, { error: 'invalid_request', error_description: `${name} is missing` }, name)
      const twice = `${form(parameters)}&${name}=again`
      t.match((await post(twice)).body, { error: 'invalid_request', error_description: `${name} is repeated` }, name)
      t.match(
        (await post(JSON.stringify({ ...parameters, [name]: 1 }), 'application/json')).body,
        { error: 'invalid_request', error_description: `${name} must be a string` }, name
      )
    }
  }
  for (const [payload, error, said] of [
    [form({ ...code, grant_type: 'password' }), 'unsupported_grant_type', /^grant_type must be/],
    [form({ ...code, client_id: 'nobody' }), 'invalid_client', /^client_id /],
    [form({ ...code, client_secret: 's3cret' }), 'invalid_client', /^client_secret /],
    [form({ ...code, code_verifier: 'short' }), 'invalid_grant', /^code_verifier must have 43 to 128/],
    [form(code), 'invalid_grant', /^code is .*redirect_uri or code_verifier/],
    [form(refresh), 'invalid_grant', /^refresh_token is /]
  ] as const) {
    const { status, body, text } = await post(payload)
    t.match({ status, body }, { status: 400, body: { error, error_description: said } })
    t.notMatch(text, /s3cret|short"|nobody/, 'no value is repeated')
  }
  t.match((await post('{"a":1,\n}', 'application/json')).body, { error_description: /line 2, column 1$/ })
  const secretName = `dotenv_rt_${'A1'.repeat(20)}`
  t.match((await post(`${secretName}&${secretName}`)).body, { error_description: 'A parameter is repeated' })

  const request = {
    client_id: 'dotenv-cli',
    redirect_uri: 'http://127.0.0.1:1/callback',
    response_type: 'code',
    code_challenge: 'c'.repeat(43),
    code_challenge_method: 'S256'
  }
  for (const [more, error, said] of [
    [{ response_type: '' }, 'invalid_request', 'response_type is missing'],
    [{ response_type: 'token' }, 'unsupported_response_type', 'response_type must be code'],
    [{ response_mode: 'fragment' }, 'invalid_request', 'response_mode must be query'],
    [{ code_challenge: '' }, 'invalid_request', 'code_challenge is missing'],
    [{ code_challenge: 'short' }, 'invalid_request', /^code_challenge must have 43/],
    [{ code_challenge_method: 'plain' }, 'invalid_request', 'code_challenge_method must be S256'],
    [
      { scope: 'project:read secret:reed' }, 'invalid_scope',
      'secret:reed is not a scope (did you mean secret:read?): scopes_supported in /.well-known/oauth-authorization-server lists all scopes'
    ],
    [{ scope: 'secret:foo' }, 'invalid_scope', /^secret:foo is not a scope: scopes_supported in /],
    // These values could be secrets, and some characters are not allowed in a description.
    [{ scope: 'dotenv_01k_s3cret' }, 'invalid_scope', /^A part of scope is not a scope: /],
    [{ scope: '"secret:read"' }, 'invalid_scope', /^A part of scope is not a scope \(did you mean secret:read\?\): /],
    [{ scope: 'secret:'.padEnd(41, 'x') }, 'invalid_scope', /^A part of scope /],
    [{ request: 'x' }, 'request_not_supported', /^request /],
    [{ request_uri: 'x' }, 'request_uri_not_supported', /^request_uri /],
    [{ prompt: 'none' }, 'consent_required', /^prompt /],
    [{ state: 'x'.repeat(4097) }, 'invalid_request', /^state /]
  ] as const) {
    const { headers } = await service.inject({ method: 'GET', url: `/oauth/authorize?${form({ ...request, ...more })}` })
    const answer = new URL(String(headers.location)).searchParams
    t.equal(answer.get('error'), error)
    t.match(answer.get('error_description'), said)
    t.match(answer.get('error_description'), /^[\x20\x21\x23-\x5b\x5d-\x7e]+$/)
  }
  const repeated = await service.inject({ method: 'GET', url: `/oauth/authorize?${form(request)}&nonce=1&nonce=2` })
  t.equal(new URL(String(repeated.headers.location)).searchParams.get('error_description'), 'nonce is repeated')
  const metadata = await service.inject({ method: 'GET', url: '/.well-known/oauth-authorization-server' })
  t.strictSame(metadata.body.scopes_supported, SCOPE_NAMES, 'the place that the refusal of a scope names')
  for (const [query, said] of [
    [without(request, 'client_id'), 'client_id is missing'],
    [form({ ...request, client_id: '' }), 'client_id is missing'],
    [`${form(request)}&client_id=dotenv-cli`, 'client_id more than once'],
    [form({ ...request, client_id: 'nobody' }), 'No application is registered with this client_id']
  ] as const) {
    const { status, text } = await service.inject({ method: 'GET', url: `/oauth/authorize?${query}` })
    t.match({ status, text }, { status: 400, text: said })
  }
})

t.test('PUT and PATCH both work where one does, except on documents, memberships and trust rules; one is deprecated', async (t) => {
  const changing = Object.entries(publishedPaths(service)).flatMap(([path, item]) =>
    'put' in item || 'patch' in item ? [{ path, item: item as Record<string, Operation> }] : [])
  const single = changing.filter(({ item }) => !('put' in item && 'patch' in item)).map(({ path }) => path)
  t.strictSame(single.sort(), [
    '/api/v1/organizations/{organization}/teams/{team}/members/{member}',
    '/api/v1/organizations/{organization}/workloads/{workload}',
    '/api/v1/{organization}/{project}/secrets', '/api/v1/{organization}/{project}/{target}/secrets',
    '/api/v1/{organization}/{project}/{target}/{environment}/secrets'
  ].sort())
  const isShort = ({ operationId }: Operation) => operationId.endsWith('ShortPath')
  for (const { path, item } of changing.filter(({ path }) => !single.includes(path))) {
    const { put, patch } = item as { put: Operation, patch: Operation }
    const isDuplicate = isShort(put) ? [true, true] : [false, true]
    t.strictSame([put.deprecated ?? false, patch.deprecated ?? false].sort(), isDuplicate, `${path}: one is the duplicate`)
    t.strictSame(put.requestBody, patch.requestBody, `${path}: with the same fields`)
    t.not(put.operationId, patch.operationId)
    for (const { operationId } of [put, patch]) {
      const row = OPERATIONS[operationId]!
      t.match(row.at, new RegExp(`^${operationId === put.operationId ? 'PUT' : 'PATCH'} `))
    }
  }
  t.ok(changing.length - single.length >= 10)
  for (const operation of operations) {
    const isDuplicate = /^(?:put|patch)[A-Z]|(?:Short|Long)Path$/.test(operation.operationId)
    t.equal(operation.deprecated ?? false, isDuplicate, operation.operationId)
  }
})
