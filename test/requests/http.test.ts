// runs: one database; 25 s
import { once } from 'node:events'
import { connect, type AddressInfo } from 'node:net'
import { setImmediate as nextTurn } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { ERRORS, messageOf, type ErrorCode } from '../../schemas/errors.ts'
import { buildApp } from '../../src/app.ts'
import { loadConfig } from '../../src/config.ts'
import { makeLevel, startIsolatedApp, type Answer, type Caller, type TestApp } from '../helpers/app.ts'
import { answersOf, errorFaults } from '../helpers/contract.ts'
import { OPERATIONS, prepare, publishedPaths, requestOf, settle, type World } from '../helpers/operations.ts'
import { badlyFramed, FORWARDED, PATHOLOGICAL } from '../helpers/hostile.ts'
import { byTurns, LONG } from '../helpers/long.ts'
import { rest } from '../helpers/sockets.ts'
import { until } from '../helpers/until.ts'

const LEAK =
  /FST_|statusCode|node_modules|\bat \w+ \(|SELECT |INSERT |UPDATE |select "|insert into|\/src\/|\.ts:|\.js:|drizzle|postgres/i
const ULID_SHAPE = /^[0-9A-HJKMNP-TV-Z]{26}$/

let service: TestApp
let caller: Caller
const level = { project: 'orbit', target: 'backend', environment: 'live' }

t.before(async () => {
  // This test has its own database, because it renames a table.
  service = await startIsolatedApp(
    { teardown: (fn) => t.teardown(fn) }, { PUBLIC_URL: 'https://secrets.example.com', TRUST_PROXY: '10.0.0.0/8' }
  )
  caller = await service.organization()
  await makeLevel(caller)
  await caller.call('POST', `/${caller.organization}/secrets/store`, { ...level, plaintext: 'HELLO=world\n' })
})

/**
 * Asserts the common form of all errors: an error code that belongs to the status, and a message without internal
 * details.
 */
function isError (test: Test, answer: Answer, code: ErrorCode, name: string = code) {
  test.equal(answer.status, ERRORS[code].status, `${name}: status`)
  test.match(answer.body, { error: code, message: messageOf(code, answer.body.details) }, `${name}: body`)
  test.match(answer.headers['content-type'], 'application/json; charset=utf-8', `${name}: type`)
  test.notMatch(answer.text, LEAK, `${name}: nothing of the inside`)
  test.strictSame(Object.keys(answer.body).filter((key) =>
    !['error', 'message', 'details', 'errors'].includes(key)), [], `${name}: no other member`)
}

function send (method: string, path: string, payload?: string | Buffer, headers: Record<string, string> = {}) {
  return service.inject({
    method: method as 'GET',
    url: path.startsWith('//') ? path.slice(1) : `/api/v1${path}`,
    headers: { authorization: `Bearer ${caller.token}`, ...headers },
    ...(payload !== undefined && { payload })
  })
}

function sendJson (method: string, path: string, payload: string | Buffer, headers: Record<string, string> = {}) {
  return send(method, path, payload, { 'content-type': 'application/json', ...headers })
}

const own = (path: string) => `/${caller.organization}${path}`

t.test('health and readiness ignore unknown query parameters of load balancers; other operations refuse them', async (t) => {
  for (const path of ['/healthz', '/readyz']) {
    for (const query of ['?probe=1', '?a=&b=2&a=3', '?', '?%5B%5D=x']) {
      t.match(await service.app.inject(path + query), { statusCode: 200, body: '{"status":"ok"}' }, path + query)
    }
  }
  t.equal((await caller.call('GET', '/user?probe=1')).status, 422)
})

t.test('a connection stays open as long as the longest operation may wait for the database and take', async (t) => {
  const [wait, operation] = [60_000, 60_000]
  t.ok(service.app.server.timeout > wait + operation, `${service.app.server.timeout} ms`)
})

t.test('HT-01 HT-05 a method that a path does not take is 405 with a sorted Allow, whatever the method is', async (t) => {
  for (const [method, path, allow] of [
    ['POST', '//healthz', 'GET, HEAD, OPTIONS'],
    ['DELETE', '/organization', 'GET, HEAD, OPTIONS'],
    ['PUT', own('/projects'), 'GET, HEAD, OPTIONS, POST'],
    ['TRACE', own('/projects'), 'GET, HEAD, OPTIONS, POST'],
    ['PROPFIND', own('/orbit'), 'DELETE, GET, HEAD, OPTIONS, PATCH, PUT'],
    ['POST', own('/orbit'), 'DELETE, GET, HEAD, OPTIONS, PATCH, PUT'],
    ['GET', own('/secrets/store'), 'OPTIONS, POST'],
    ['PATCH', own('/secrets/versions/1'), 'DELETE, GET, HEAD, OPTIONS'],
    ['GET', own('/secrets/versions/1/restore'), 'OPTIONS, POST'],
    ['GET', own('/secrets/versions'), 'OPTIONS, POST'],
    ['GET', own('/secrets/versions/purge'), 'OPTIONS, POST'],
    ['DELETE', own('/secrets/versions/purge'), 'OPTIONS, POST'],
    ['PUT', own('/secrets/versions/purge'), 'OPTIONS, POST'],
    ['QUERY', own('/orbit'), 'DELETE, GET, HEAD, OPTIONS, PATCH, PUT'],
    ['QUERY', own('/secrets/versions/purge'), 'OPTIONS, POST'],
    ['QUERY', '//healthz', 'GET, HEAD, OPTIONS'],
    ['POST', '/organizations/nimbus/api-keys/1', 'DELETE, GET, HEAD, OPTIONS, PATCH, PUT']
  ] as const) {
    const answer = await send(method, path)
    isError(t, answer, 'method_not_allowed', `${method} ${path}`)
    t.equal(answer.headers.allow, allow, `${method} ${path}: Allow`)
  }
  for (const type of ['', 'application/json', 'text/plain', '/']) {
    const headers: Record<string, string> = type === '' ? {} : { 'content-type': type }
    const answer = await send('QUERY', own('/projects'), '{}', headers)
    isError(t, answer, 'method_not_allowed', `QUERY of '${type}'`)
    t.equal(answer.headers.allow, 'GET, HEAD, OPTIONS, POST')
    isError(t, await send('QUERY', '//nowhere', '{}', headers), 'not_found')
  }
  const there = await send('POST', own('/orbit'))
  const missing = await send('POST', own('/no-such-project'))
  t.equal(missing.text, there.text, 'it does not tell whether a resource exists')
})

t.test('HT-04 OPTIONS is 204 with Allow and no body wherever a path exists, and needs no token', async (t) => {
  for (const [path, allow] of [
    ['/organization', 'GET, HEAD, OPTIONS'], [own('/secrets/store'), 'OPTIONS, POST'],
    [own('/orbit/backend/live'), 'DELETE, GET, HEAD, OPTIONS, PATCH, PUT']
  ] as const) {
    const answer = await service.inject({ method: 'OPTIONS', url: `/api/v1${path}` })
    t.equal(answer.status, 204)
    t.equal(answer.headers.allow, allow)
    t.equal(answer.text, '')
    t.notOk(answer.headers['content-type'])
  }
  isError(t, await service.inject({ method: 'OPTIONS', url: '/nowhere' }), 'not_found')
})

t.test('HT-02 HT-06 HT-07 what is no path is 404: unknown, trailing slash, doubled slash, other case, NUL', async (t) => {
  const paths = [
    '///', '//nowhere', '//api', '//api/v1', '//api/v2/organization', '//API/v1/organization', '//api/v1/Organization', '//api/v1/organization/', '//api/v1//organization',
    '//healthz/', '//readyz/', own('/projects/'), own('/orbit/'), own('//orbit'), own('/orbit/secrets/'), own(
      '/orbit/backend/live/secrets/'
    ), own('/a/b/c/d/e/f'),
    own(`/${'a'.repeat(129)}`), own('/%ff'), own('/%ED%A0%80'), own('/%'), own('/a%00b'), own('/%00'), own(
      '/orbit/%00/live'
    ), own('/orbit/backend/%00/secrets'),
    own('/secrets/versions/%00'), own('/secrets/versions/1%00'), '/a%00b/orbit', own(
      '/..%2f..%2fetc%2fpasswd'
    ), own('/%2e%2e/orbit'), own('/ORBIT'), own('/orbit%20'), own('/%F0%9F%9A%80')
  ]
  for (const path of paths) isError(t, await send('GET', path), 'not_found', `GET ${path}`)
  for (const [method, path] of [
    ['DELETE', own('/a%00b')], ['PATCH', own('/orbit/a%00b')], ['DELETE', own('/secrets/versions/%00')]
  ] as const) {
    isError(t, await sendJson(method, path, '{}'), 'not_found', `${method} ${path}`)
  }
  isError(t, await send('DELETE', `/organizations/${caller.organization}/api-keys/%00`), 'not_found')
})

t.test('HT-03 HEAD answers as GET does, with its status and headers and no body', async (t) => {
  const changing = ['x-request-id', 'date']
  for (const path of [
    '//healthz', '//readyz', '/organization', own('/projects'), own('/orbit'), own('/orbit/backend'),
    own('/orbit/backend/live'), own('/secrets/versions/1'), own('/nope'), '/nobody/projects'
  ]) {
    const get = await send('GET', path)
    const head = await send('HEAD', path)
    t.equal(head.status, get.status, path)
    t.equal(head.text, '', `${path}: no body`)
    const headersOf = ({ headers }: Answer) =>
      Object.fromEntries(Object.entries(headers).filter(([name]) => !changing.includes(name)))
    t.strictSame(headersOf(head), headersOf(get), `${path}: headers`)
  }
  const get = await send('GET', own('/orbit/backend/live/secrets'))
  const head = await send('HEAD', own('/orbit/backend/live/secrets'))
  t.equal(head.headers.etag, get.headers.etag)
  t.equal(head.headers['content-length'], get.headers['content-length'])
  const poor = await service.token(caller.organization, ['target:read'])
  t.equal((await poor.call('HEAD', own('/orbit'))).status, 403, 'it needs the scope that GET needs')
})

t.test('HT-08 whatever Accept says, the answer is JSON', async (t) => {
  for (const accept of [
    'application/json', '*/*', 'application/*', 'text/html', 'application/json;q=0', ';;;', ',', 'a', '*/*;q=abc',
    'x'.repeat(2000)
  ]) {
    const answer = await send('GET', '/organization', undefined, { accept })
    t.equal(answer.status, 200, accept.slice(0, 30))
    t.equal(answer.headers['content-type'], 'application/json; charset=utf-8')
  }
})

t.test('HT-09 HT-10 HT-11 a body that is not plain JSON in UTF-8 is 415', async (t) => {
  const body = JSON.stringify({ name: 'Media types' })
  for (const type of [
    'text/plain', 'text/plain; charset=utf-8', 'multipart/form-data; boundary=x', 'application/xml', 'application/x-www-form-urlencoded', 'application/vnd.api+json',
    'application/jsonx', 'application/json garbage', 'application/json; charset=utf-16', 'application/json; charset=latin1', 'application/json\t; a=b', 'application/json,text/plain', 'json', '/', 'application/json; charset="utf-8', 'application/json;charset=utf-8;charset=utf-16', 'x'.repeat(500)
  ]) {
    isError(
      t, await send('POST', own('/orbit/targets'), body, { 'content-type': type }), 'unsupported_media_type',
      type.slice(0, 60)
    )
  }
  isError(t, await send('POST', own('/orbit/targets'), Buffer.from(body)), 'unsupported_media_type', 'no content type')
  for (const encoding of ['gzip', 'br', 'deflate', 'identity, gzip', 'x']) {
    isError(
      t, await sendJson('POST', own('/orbit/targets'), body, { 'content-encoding': encoding }),
      'unsupported_media_type', encoding
    )
  }
  const before = (await send('GET', own('/orbit/targets'))).body.meta.total
  for (const [i, type] of [
    'application/json', 'APPLICATION/JSON', ' application/json', 'application/json; charset=utf-8',
    'application/json;charset=UTF-8', 'application/json ; charset="utf-8"'
  ].entries()) {
    t.equal((await send('POST', own('/orbit/targets'), body, { 'content-type': type })).status, 201, type)
    isError(
      t, await send('POST', own('/orbit/targets'), '{"name":1}', { 'content-type': type }), 'validation_failed',
      `${type} does not get round the schema`
    )
    t.equal((await send('GET', own('/orbit/targets'))).body.meta.total, before + i + 1)
  }
  t.equal((await sendJson('POST', own('/orbit/targets'), body, { 'content-encoding': 'identity' })).status, 201)
})

t.test('HT-12 an empty body is no body, whatever its content type, and a body where none is taken is ignored', async (t) => {
  const stored = await caller.call('POST', own('/secrets/store'), { ...level, plaintext: 'A=1\n' })
  const { version } = stored.body.data
  const kinds: Record<string, string>[] = [
    {}, { 'content-type': 'application/json' }, {
      'content-type': 'application/json', 'content-length': '0'
    }, { 'content-type': 'text/plain' },
    { 'content-type': 'application/json; charset=utf-8', 'transfer-encoding': 'chunked' }
  ]
  for (const headers of kinds) {
    const answer = await send('POST', own(`/secrets/versions/${version}/restore`), undefined, headers)
    t.equal(answer.status, 200, `restore with ${JSON.stringify(headers)}`)
    const { data } = (await caller.call('POST', own('/secrets/versions'), level)).body
    t.equal(
      (await send('DELETE', own(`/secrets/versions/${data[0].id}`), undefined, headers)).status, 204,
      `delete with ${JSON.stringify(headers)}`
    )
    isError(
      t, await send('POST', own('/orbit/targets'), undefined, headers), 'validation_failed',
      'what has required members misses them'
    )
  }
  t.equal((await sendJson('POST', own(`/secrets/versions/${version}/restore`), '{}')).status, 200)
  for (const [type, body] of [
    ['text/plain', 'whatever'], ['application/json', '{"'], ['garbage', '\xff'],
    ['application/json', '{"unknown": true}']
  ] as const) {
    const made = await caller.call('POST', own('/orbit/targets'), { name: 'Short lived' })
    t.equal(
      (await send('DELETE', own(`/orbit/${made.body.data.attributes.slug}`), body, { 'content-type': type })).status,
      204, `DELETE of a target with ${type} ${body}`
    )
  }
})

t.test('HT-13 invalid UTF-8 is 400, a byte order mark is skipped', async (t) => {
  for (const [name, bytes] of [
    ['FF FE', [0xff, 0xfe]], ['overlong', [0xc0, 0x80]], ['cut short', [0xe2, 0x82]], ['surrogate', [0xed, 0xa0, 0x80]],
    ['beyond Unicode', [0xf4, 0x90, 0x80, 0x80]]
  ] as const) {
    const body = Buffer.concat([Buffer.from('{"name":"'), Buffer.from(bytes), Buffer.from('"}')])
    isError(t, await sendJson('POST', own('/orbit/targets'), body), 'malformed_json', name)
  }
  isError(
    t, await sendJson('POST', own('/orbit/targets'), Buffer.from('{"name":"UTF-16"}', 'utf16le')), 'malformed_json'
  )
  const marked = await sendJson('POST', own('/orbit/targets'), '\ufeff{"name":"Märkte 🚀"}')
  t.equal(marked.status, 201)
  t.equal(marked.body.data.attributes.name, 'Märkte 🚀')
})

t.test('HT-14 malformed JSON is 400', async (t) => {
  for (const text of [
    '{', '{"name":}', "{'name': 'x'}", '{"name":"x"', '{"name":"x"}}', '{"name":"a\u0000b"}', '{"name":"a\nb"}',
    '{"name":"\\x41"}', '{"name":"\\ud8"}', 'NaN', '{"page":01}', '{"a":1,}', 'undefined', ' ', '[', ']',
    '{"name":"x"}{"name":"y"}', '// {}'
  ]) {
    isError(t, await sendJson('POST', own('/projects'), text), 'malformed_json', JSON.stringify(text))
  }
})

t.test('HT-15 a body is an object: arrays, strings, numbers and booleans are 422', async (t) => {
  for (const [method, path] of [
    ['POST', '/projects'], ['PATCH', '/orbit'], ['POST', '/secrets/store'], ['POST', '/secrets/versions/1/restore'],
    ['DELETE', '/secrets/versions/1'], ['POST', '/secrets/delete']
  ] as const) {
    for (const text of ['[]', '[{}]', '["name"]', '"name"', '1', '-0', '1e400', 'true', 'false']) {
      isError(t, await sendJson(method, own(path), text), 'validation_failed', `${method} ${path} ${text}`)
    }
  }
})

t.test('null in the place of a body is none where it may be left out, and 422 where it may not', async (t) => {
  for (const [method, path] of [
    ['POST', '/projects'], ['POST', '/secrets/store'], ['POST', '/secrets/delete'], ['POST', '/secrets/versions'],
    ['POST', '/orbit/secrets/rotate-client-keys'], ['POST', '/orbit/secrets/re-encrypt-history']
  ] as const) {
    for (const text of ['null', ' null\n']) {
      isError(t, await sendJson(method, own(path), text), 'validation_failed', `${method} ${path} ${text}`)
    }
  }
  for (const [method, path, status] of [
    ['PATCH', '/orbit', 200],
    ['POST', '/secrets/versions/1/restore', 200],
    ['POST', '/orbit/encryption-key/rotate', 200],
    ['DELETE', '/secrets/versions/1', 204]
  ] as const) {
    t.equal((await sendJson(method, own(path), 'null\n')).status, status, `${method} ${path}`)
  }
})

t.test('HT-14 each wrong member is named: unknown, missing, wrong type, too long, no slug, reserved, taken', async (t) => {
  const named = async (
    method: string, path: string, body: object, member: string, code: ErrorCode = 'validation_failed'
  ) => {
    const answer = await sendJson(method, own(path), JSON.stringify(body))
    isError(t, answer, code, `${path} ${JSON.stringify(body).slice(0, 60)}`)
    t.ok(
      Object.hasOwn(answer.body.errors ?? {}, member),
      `${path}: ${member} is named, of ${JSON.stringify(answer.body.errors).slice(0, 100)}`
    )
    for (const texts of Object.values<string[]>(answer.body.errors ?? {})) {
      t.ok(texts.length > 0 && texts.every((text) => typeof text === 'string'))
    }
  }
  await named('POST', '/projects', {}, 'name')
  await named('POST', '/projects', { name: 'x', nmae: 'y' }, 'nmae')
  await named('POST', '/projects', { name: 1 }, 'name')
  await named('POST', '/projects', { name: ['x'] }, 'name')
  await named('POST', '/projects', { name: null }, 'name')
  await named('POST', '/projects', { name: '' }, 'name')
  await named('POST', '/projects', { name: '   ' }, 'name')
  await named('POST', '/projects', { name: 'x'.repeat(256) }, 'name')
  await named('POST', '/projects', { name: 'x', description: 'x'.repeat(2001) }, 'description')
  for (const slug of ['', 'A', 'a_b', '-a', 'a-', 'a--b', 'ä', 'a b', 'a/b', 'a'.repeat(65), 1, null, {}]) {
    await named('POST', '/projects', { name: 'x', slug }, 'slug')
  }
  for (const slug of ['projects', 'secrets']) await named('POST', '/projects', { name: 'x', slug }, 'slug')
  await named('PATCH', '/orbit', { slug: 'secrets' }, 'slug')
  await named('POST', '/orbit/targets', { name: 'x', slug: 'encryption-key' }, 'slug')
  await named('POST', '/orbit/backend/environments', { name: 'x', slug: 'rotate' }, 'slug')
  await named('POST', '/projects', { name: 'x', slug: 'orbit' }, 'slug', 'slug_taken')
  await named('POST', '/orbit/targets', { name: 'x', slug: 'backend' }, 'slug', 'slug_taken')
  await named('POST', '/orbit/backend/environments', { name: 'x', slug: 'live' }, 'slug', 'slug_taken')
  await named('POST', '/orbit/backend/environments', { name: 'x', is_production: 'true' }, 'is_production')
  await named('POST', '/projects', { name: 'x', secret_format: 'toml' }, 'secret_format')
  await named('POST', '/secrets/store', { ...level }, 'content')
  await named('POST', '/secrets/store', { ...level, plaintext: 1 }, 'plaintext')
  await named('POST', '/secrets/store', { ...level, plaintext: 'A=1', no_bakcup: true }, 'no_bakcup')
  await named('POST', '/secrets/store', { ...level, plaintext: 'A=1', no_backup: 'true' }, 'no_backup')
  await named('POST', '/secrets/versions', { project: 'orbit' }, 'target')
  for (const page of [0, -1, 1.5, '1', 1e10, null, true, 1e300]) {
    await named('POST', '/secrets/versions', { ...level, page }, 'page')
  }
  for (const per_page of [0, 101, -5, 2.5, '25', [25]]) {
    await named('POST', '/secrets/versions', { ...level, per_page }, 'per_page')
  }
  await named('POST', '/secrets/versions/1/restore', { contents: 'x' }, 'contents')
  await named('POST', '/secrets/retrieve', { ...level, filters: { nmaes: [] } }, 'filters.nmaes')
  await named('POST', '/secrets/versions/purge', { ...level, confirmed: true, really: 1 }, 'really')
})

t.test('HT-14 a page that is out of range or no plain number, and an unknown parameter, are 422', async (t) => {
  for (const query of [
    'page=0', 'page=-1', 'page=1.9', 'page=1e3', 'page=0x1', 'page=%201', 'page=abc', 'page=1&page=2',
    'page=1000000001', 'page=99999999999999999999', 'page=%00', 'per_page=0', 'per_page=101', 'per_page=true',
    'per_page[]=5', 'page=Infinity', 'page=&per_page=', '__proto__=1', 'constructor=2&toString=3', '%00=%00', '='
  ]) {
    isError(t, await send('GET', own(`/projects?${query}`)), 'validation_failed', query)
  }
  for (const query of [
    '', 'page=1', 'per_page=100', 'page=1000000000', '&&&'
  ]) {
    t.equal((await send('GET', own(`/projects?${query}`))).status, 200, query)
  }
  for (const query of [
    'decrypt=', 'decrypt=yes', 'decrypt=2', 'decrypt=true&decrypt=true', 'merge=maybe', 'raw=on'
  ]) {
    isError(t, await send('GET', own(`/orbit/backend/live/secrets?${query}`)), 'validation_failed', query)
  }
  for (const query of ['force=', 'force=yes', 'force=true&force=true']) {
    isError(t, await send('DELETE', own(`/secrets/versions/1?${query}`)), 'validation_failed', query)
  }
})

t.test('HT-14 "confirmed": "true" and 1 are not true: nothing is purged', async (t) => {
  const before = (await caller.call('POST', own('/secrets/versions'), level)).body.meta.total
  t.ok(before > 0)
  for (const confirmed of ['true', 1, 'yes', [], {}, null, false, [true], undefined]) {
    isError(
      t, await caller.call('POST', own('/secrets/versions/purge'), { ...level, confirmed }), 'confirmation_required',
      JSON.stringify(confirmed)
    )
    isError(
      t, await caller.call('POST', own('/secrets/delete'), { ...level, no_backup: true, confirmed }),
      'confirmation_required', JSON.stringify(confirmed)
    )
  }
  for (const force of ['true', 1, [], null]) {
    isError(t, await caller.call('DELETE', own('/secrets/versions/1'), { force }), 'validation_failed')
  }
  t.equal((await caller.call('POST', own('/secrets/versions'), level)).body.meta.total, before)
})

t.test('RL-18 NUL characters and lone surrogates are 422 in every string of every body, and raw ones 400', async (t) => {
  const bodies = Object.entries(
    service.app.swagger().paths ?? {}
  ).flatMap(([path, item]) => Object.entries(item as object).flatMap(([method, operation]) => {
    const example = (operation as any).requestBody?.content['application/json']?.example ??
      (operation as any).requestBody?.content['application/json']?.schema?.examples?.[0]
    const schema = componentOf((operation as any).requestBody?.content['application/json']?.schema)
    // The OAuth endpoints use the error format of RFC 6749 (OA-35).
    return schema === undefined || path.startsWith('/api/oauth/')
      ? []
      : [{ method: method.toUpperCase(), path, example: example ?? {}, schema }]
  }))
  t.ok(bodies.length >= 15, `${bodies.length} operations take a body`)
  for (const { method, path, example, schema } of bodies) {
    const url = path.replace('{organization}', caller.organization).replace('{project}', 'orbit').replace(
      '{target}', 'backend'
    ).replace('{environment}', 'live').replace('{version}', '1')
    for (const [which, member] of [...Object.keys(schema.properties), 'unheard-of'].entries()) {
      for (const [bad, name] of byTurns([
        ['a\\u0000b', 'NUL'], ['\\ud800', 'a high surrogate'], ['x\\uDFFF', 'a low surrogate'],
        ['\\udc00\\ud800', 'a reversed pair']
      ] as const, which, 4)) {
        const body = JSON.stringify({ ...example, [member]: 'BAD' }).replace('BAD', bad)
        const answer = await service.inject({
          method: method as 'POST',
          url,
          headers: {
            authorization: `Bearer ${caller.token}`, 'content-type': 'application/json'
          },
          payload: body
        })
        if (answer.status !== 422 || answer.body.errors[member] === undefined) {
          t.fail(`${name} in ${member} of ${method} ${path}: ${answer.text}`)
        }
      }
    }
  }
  isError(t, await sendJson('POST', own('/orbit/targets'), '{"na\\u0000me":"x"}'), 'validation_failed')
  isError(
    t, await sendJson('POST', own('/secrets/retrieve'), '{"project":"orbit","filters":{"names":["a","\\u0000"]}}'),
    'validation_failed'
  )
  t.equal((await sendJson(
    'POST', own('/orbit/targets'), '{"name":"pair \\ud83d\\ude80 and \\\\u0000 in words"}'
  )).body.data.attributes.name, 'pair 🚀 and \\u0000 in words')
})

t.test('RL-18 pathological JSON is refused quickly and leaves no trace', async (t) => {
  for (const [name, text] of PATHOLOGICAL) {
    const answer = await sendJson('POST', own('/orbit/targets'), text)
    isError(t, answer, 'validation_failed', name)
    t.ok(answer.text.length < 5000, `${name}: the answer is short (${answer.text.length})`)
    t.ok(Object.keys(answer.body.errors).length > 0, `${name}: names something`)
  }
  t.equal(({} as Record<string, unknown>).polluted, undefined)
  t.ok(Object.hasOwn(
    (await sendJson('POST', own('/orbit/targets'), '{"name":"x","__proto__":{}}')).body.errors, '__proto__'
  ), 'the member is named')
  isError(t, await sendJson(
    'POST', own('/secrets/versions'), JSON.stringify({ ...level, page: 0 }).replace('0', '9'.repeat(1_000_000))
  ), 'validation_failed', 'a number of a million digits')
  isError(
    t, await sendJson('POST', own('/orbit/targets'), '"' + '\\u0041'.repeat(300_000) + '"'), 'validation_failed',
    'a long escaped string'
  )
  isError(
    t, await sendJson('POST', own('/orbit/targets'), '{"name":"First","n\\u0061me":"Last"}'), 'malformed_json',
    'a member twice'
  )
})

t.test('HT-16 RL-17 413, 414 and 431 have the flat shape and nothing is read beyond the limit', async (t) => {
  const small = await buildApp({
    config: loadConfig({ LOG_LEVEL: 'silent', BODY_LIMIT: '16KiB' }),
    database: service.database,
    keyring: service.keyring,
    costs: service.app.costs
  })
  t.teardown(() => small.close())
  const post = async (size: number) => {
    const response = await small.inject({
      method: 'POST',
      url: `/api/v1${own('/projects')}`,
      headers: { authorization: `Bearer ${caller.token}` },
      payload: { name: 'x', description: 'y'.repeat(size) }
    })
    return { status: response.statusCode, headers: response.headers, text: response.payload, body: response.json() }
  }
  isError(t, await post(17_000), 'payload_too_large')
  isError(t, await post(16_000), 'validation_failed', 'below the limit the schema judges')
  isError(t, await send('GET', `//api/v1/${'a/'.repeat(4200)}`), 'uri_too_long')
  isError(t, await send('GET', `/organization?${'q'.repeat(8200)}`), 'uri_too_long')
  isError(t, await send('GET', `/organization?${'q'.repeat(8000)}`), 'validation_failed', 'not too long')
  isError(t, await send(
    'GET', '/organization', undefined, Object.fromEntries(Array.from({ length: 101 }, (_, i) => [`x-h-${i}`, '1']))
  ), 'header_fields_too_large')
})

t.test('HT-21 HT-22 HT-23 HT-24 HT-25 HT-26 every answer has the standing headers and no server details', async (t) => {
  const etag = (await send('GET', own('/orbit/backend/live/secrets'))).headers.etag as string
  const made = await caller.call('POST', own('/orbit/targets'), { name: 'To delete' })
  const answers: [string, number, Answer][] = [
    ['200', 200, await send('GET', '/organization')],
    ['201', 201, await caller.call('POST', own('/orbit/targets'), { name: 'Headers' })],
    ['204', 204, await send('DELETE', own(`/orbit/${made.body.data.attributes.slug}`))],
    ['204 of OPTIONS', 204, await send('OPTIONS', '/organization')],
    ['304', 304, await send('GET', own('/orbit/backend/live/secrets'), undefined, { 'if-none-match': etag })],
    ['400', 400, await sendJson('POST', own('/orbit/targets'), '{')],
    ['400 of the version', 400, await send('GET', '/organization', undefined, { 'x-api-version': '2' })],
    ['401', 401, await service.inject({ method: 'GET', url: '/api/v1/organization' })],
    ['403', 403, await (await service.token(caller.organization, ['target:read'])).call('GET', own('/orbit'))],
    ['404', 404, await send('GET', own('/nope'))],
    ['404 of no route', 404, await send('GET', '//api/nowhere')],
    ['404 of an overlong word', 404, await send('GET', own(`/${'a'.repeat(200)}`))],
    ['404 of a path that does not decode', 404, await send('GET', own('/%ff'))],
    ['405', 405, await send('PUT', own('/orbit/targets'))],
    [
      '412', 412,
      await caller.call('POST', own('/secrets/store'), { ...level, plaintext: 'A=1' }, { 'if-match': '"old"' })
    ],
    ['414', 414, await send('GET', `/organization?${'q'.repeat(8200)}`)],
    ['415', 415, await send('POST', own('/orbit/targets'), 'x', { 'content-type': 'text/plain' })],
    ['422', 422, await caller.call('POST', own('/orbit/targets'), {})],
    ['431', 431, await send(
      'GET', '/organization', undefined, Object.fromEntries(Array.from({ length: 101 }, (_, i) => [`x-h-${i}`, '1']))
    )]
  ]
  await service.sql(`UPDATE secrets SET sealed = '\\x00' WHERE organization_id = '${caller.organization}'`)
  const broken = await send('GET', own('/orbit/backend/live/secrets'))
  answers.push(['500', 500, broken])
  isError(t, broken, 'integrity_error')
  for (const [name, status, { headers, text, status: actual }] of answers) {
    t.equal(actual, status, `${name}: status`)
    t.match(headers, {
      'x-api-version': '1',
      'x-content-type-options': 'nosniff',
      'x-frame-options': 'DENY',
      'referrer-policy': 'no-referrer',
      'cross-origin-resource-policy': 'same-origin',
      'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
      'strict-transport-security': 'max-age=31536000; includeSubDomains',
      'cache-control': 'no-store',
      vary: /Authorization.*Accept.*Origin/,
      'x-request-id': ULID_SHAPE
    }, `${name}: standing headers`)
    for (const header of ['server', 'x-powered-by', 'set-cookie', 'access-control-allow-origin', 'retry-after']) {
      t.notOk(headers[header], `${name}: no ${header}`)
    }
    const empty = [204, 304].includes(status)
    t.equal(text === '', empty, `${name}: body`)
    if (empty) {
      t.notOk(headers['content-type'], `${name}: no type`)
      t.notOk(Number(headers['content-length'] ?? 0), `${name}: no length`)
    } else t.equal(headers['content-type'], 'application/json; charset=utf-8', `${name}: type`)
  }
  const plain = await buildApp({
    config: loadConfig({ LOG_LEVEL: 'silent' }),
    database: service.database,
    keyring: service.keyring,
    costs: service.app.costs
  })
  t.teardown(() => plain.close())
  const health = await plain.inject('/healthz')
  t.notOk(health.headers['strict-transport-security'], 'no HSTS without a PUBLIC_URL of https')
  t.equal(health.headers['x-content-type-options'], 'nosniff')
})

t.test('no cache on the way may store an answer, however its target is spelled, unless its route says so', async (t) => {
  const declared: Record<string, string> = {}
  for (const { path, method } of publishedOperations()) {
    const url = path.replace(/{\w+}/g, 'x')
    const { status, headers } = await service.inject({ method: method as 'GET', url })
    if (headers['cache-control'] !== 'no-store') {
      declared[`${method} ${url} ${status}`] = String(headers['cache-control'])
    }
  }
  t.strictSame(declared, {
    'GET /.well-known/oauth-authorization-server 200': 'public, max-age=300',
    'GET /.well-known/oauth-protected-resource 200': 'public, max-age=300'
  })
  for (const url of [
    '/%61pi/v1/organization', 'http://secrets.example.com/api/v1/organization', '/API/v1/organization', '/nowhere',
    '/healthz', '/account', '/oauth/authorize', '/%ff'
  ]) {
    for (const authorization of [`Bearer ${caller.token}`, '']) {
      t.equal(
        (await service.inject({ method: 'GET', url, headers: { authorization } })).headers['cache-control'], 'no-store',
        url
      )
    }
  }
  t.equal(
    (await service.inject({ method: 'POST', url: '/.well-known/oauth-protected-resource' })).headers['cache-control'],
    'no-store', 'what went wrong there neither'
  )
})

t.test('HT-22 HT-40 without CORS_ORIGINS no origin gets a CORS header, and plain http is never redirected', async (t) => {
  for (const origin of ['https://app.example.com', 'null', 'https://secrets.example.com']) {
    const preflight = await service.inject({
      method: 'OPTIONS', url: '/api/v1/organization', headers: { origin, 'access-control-request-method': 'GET' }
    })
    const call = await send('GET', '/organization', undefined, { origin, 'x-forwarded-proto': 'http' })
    t.equal(call.status, 200)
    for (const { headers } of [preflight, call]) {
      t.strictSame(Object.keys(headers).filter((name) => name.startsWith('access-control-')), [])
    }
  }
})

t.test('HT-27 the version of the API is echoed, and any other than 1 is 400 that names what is spoken', async (t) => {
  for (const version of ['2', '0', 'one', '', '1.0', '01', ' 1 x', '1, 1']) {
    const answer = await send('GET', '/organization', undefined, { 'x-api-version': version })
    isError(t, answer, 'unsupported_api_version', version)
    t.strictSame(answer.body.details, { supported: ['1'] })
    t.equal(answer.headers['x-api-version'], '1')
  }
  const answer = await send('GET', '/organization', undefined, { 'x-api-version': '1' })
  t.equal(answer.status, 200)
  t.equal(answer.headers['x-api-version'], '1')
})

t.test('HT-28 the long paths answer as the short ones do, with their deprecation and replacement', async (t) => {
  for (const [old, successor] of [
    ['/projects', '/projects'], ['/projects/orbit', '/orbit'], ['/projects/orbit/targets', '/orbit/targets'], [
      '/projects/orbit/targets/backend', '/orbit/backend'
    ],
    ['/projects/orbit/targets/backend/environments', '/orbit/backend/environments'], [
      '/projects/orbit/targets/backend/environments/live', '/orbit/backend/live'
    ], ['/projects/orbit/secrets', '/orbit/secrets'], [
      '/projects/orbit/targets/backend/secrets', '/orbit/backend/secrets'
    ]
  ] as const) {
    const long = await send('GET', `/organizations/${caller.organization}${old}`)
    t.equal(long.status, 200, old)
    t.match(long.headers.deprecation, /^@\d+$/)
    t.ok(Date.parse(String(long.headers.sunset)) > Date.now())
    t.equal(long.headers.link, `</api/v1${own(successor)}>; rel="successor-version"`)
    const short = await send('GET', own(successor))
    t.strictSame(short.body.data, long.body.data)
    t.notOk(short.headers.deprecation)
  }
})

t.test('HT-30 an unexpected failure is internal_error without details, and its values are not in the log', async (t) => {
  await service.sql('ALTER TABLE targets RENAME TO targets_gone')
  const answer = await caller.call('POST', own('/orbit/targets'), { name: 'canary-9f31', description: 'canary-9f31' })
  await service.sql('ALTER TABLE targets_gone RENAME TO targets')
  isError(t, answer, 'internal_error')
  t.strictSame(Object.keys(answer.body), ['error', 'message'])
  const lines = service.logs.filter((line) => line.includes(String(answer.headers['x-request-id'])))
  t.ok(lines.some((line) => line.includes('request failed')), 'it is in the log, under its request id')
  t.notMatch(service.logs.join(''), 'canary-9f31')
})

t.test('HT-31 a sane request id is taken over, any other is replaced', async (t) => {
  for (const id of ['abc', 'A.b_c-9', 'x'.repeat(64)]) {
    t.equal((await send('GET', '/organization', undefined, { 'x-request-id': id })).headers['x-request-id'], id)
  }
  for (const id of [
    // eslint-disable-next-line no-template-curly-in-string
    '', 'x'.repeat(65), 'a b', 'a\u001b[31m', 'a"b', 'ä', '${jndi}', 'a,b', '../x'
  ]) {
    t.match(
      (await send('GET', '/organization', undefined, { 'x-request-id': id })).headers['x-request-id'], ULID_SHAPE,
      JSON.stringify(id)
    )
  }
  const ids = await Promise.all(Array.from({ length: 50 }, async () =>
    (await send('GET', '//healthz')).headers['x-request-id']))
  t.equal(new Set(ids).size, 50)
})

t.test('HT-31 no caller can write a log line of its own; headers, paths, queries and bodies are not logged', async (t) => {
  const from = service.logs.length
  const evil = 'evil\u001b[31m\r\n{"level":30,"forged":true}\u2028'
  await send(
    'GET', '/organization', undefined,
    { 'user-agent': evil, 'x-request-id': evil, referer: evil, cookie: 'evil', 'x-forwarded-for': evil }
  )
  await send('GET', `/${encodeURIComponent(evil)}/${encodeURIComponent(evil)}?evil=${encodeURIComponent(evil)}`)
  await send('GET', `//${encodeURIComponent(evil)}`)
  await send('GET', own(`/%ff?evil=${encodeURIComponent(evil)}`))
  await caller.call('POST', own('/orbit/targets'), { name: evil, description: evil })
  await caller.call('POST', own('/secrets/store'), { ...level, plaintext: evil, unchecked: true }, { 'user-agent': evil })
  await service.inject({ method: 'GET', url: '/api/v1/organization', headers: { authorization: `Bearer ${evil}` } })
  const lines = service.logs.slice(from)
  t.ok(lines.length >= 6)
  for (const line of lines) {
    t.equal(line.indexOf('\n'), line.length - 1, 'one line')
    t.type(JSON.parse(line), 'object')
    for (const trace of ['evil', 'forged', '\u001b', '\u2028']) t.notOk(line.includes(trace), trace)
    t.notOk(line.includes(caller.token))
  }
})

t.test('LOG_CLIENT_ADDRESS says how much of the client is logged, and what is no address is not', async (t) => {
  for (const [shown, ipv4, ipv6] of [
    ['network', '203.0.113.0/24', '2001:db8:1:2::/64'], ['full', '203.0.113.77', '2001:db8:1:2::77'],
    ['off', undefined, undefined]
  ] as const) {
    const lines: string[] = []
    const config = loadConfig({ TRUST_PROXY: '10.0.0.0/8', LOG_CLIENT_ADDRESS: shown })
    const app = await buildApp({
      config, database: service.database, keyring: service.keyring, logStream: { write: (line) => lines.push(line) }
    })
    t.teardown(() => app.close())
    const clientOf = async (forwarded: string) => {
      lines.length = 0
      await app.inject({ url: '/healthz', remoteAddress: '10.0.0.7', headers: { 'x-forwarded-for': forwarded } })
      return lines.map((line) => (JSON.parse(line) as { client?: string }).client)
    }
    t.strictSame(await clientOf('203.0.113.77'), [ipv4])
    t.strictSame(await clientOf('::ffff:203.0.113.77'), [ipv4])
    t.strictSame(await clientOf('2001:db8:1:2::77'), [ipv6])
    t.strictSame(await clientOf('evil "line"'), [undefined])
  }
})

t.test('HT-41 RL-20 odd forwarding headers neither stop the service nor fail a request that is recorded', async (t) => {
  for (const forwarded of FORWARDED) {
    const answer = await service.inject({
      method: 'POST',
      url: `/api/v1${own('/orbit/targets')}`,
      remoteAddress: '10.0.0.7',
      payload: { name: 'Forwarded' },
      headers: {
        authorization: `Bearer ${caller.token}`,
        'x-forwarded-for': forwarded,
        'x-forwarded-host': forwarded,
        'x-forwarded-proto': forwarded,
        forwarded: `for=${forwarded}`,
        'user-agent': 'ü'.repeat(4000)
      }
    })
    t.equal(answer.status, 201, forwarded.slice(0, 40))
  }
})

t.test('HT-42 health needs no token and tells of nothing but itself', async (t) => {
  for (const path of ['/healthz', '/readyz']) {
    const answer = await service.inject({ method: 'GET', url: path })
    t.equal(answer.status, 200)
    t.strictSame(answer.body, { status: 'ok' })
  }
})

t.test('however many ask at once whether it is ready, the database is looked at once at a time', async (t) => {
  const { reads } = service.database.pools
  const over = new AbortController()
  let most = 0
  const watching = (async () => {
    for (; !over.signal.aborted; await nextTurn()) {
      most = Math.max(most, reads!.running + reads!.waiting)
    }
  })()
  const answers = await Promise.all(Array.from({ length: 600 }, async () => send('GET', '//readyz')))
  over.abort()
  await watching
  t.same(answers.filter(({ status }) => status !== 200), [])
  t.equal(most, 1)
})

t.test('over a real socket', async (t) => {
  const logs: string[] = []
  const app = await buildApp({
    config: loadConfig({ LOG_LEVEL: 'info', BODY_LIMIT: '64KiB' }),
    database: service.database,
    keyring: service.keyring,
    costs: service.app.costs,
    logStream: { write: (line) => logs.push(line) }
  })
  t.equal(app.server.requestTimeout, 15_000, 'RL-12: a request is given 15 seconds to arrive')
  t.equal(app.server.headersTimeout, 10_000, 'RL-16: its headers 10')
  await app.listen({ host: '127.0.0.1', port: 0 })
  t.teardown(() => app.close())
  const { port } = app.server.address() as AddressInfo
  const bearer = `Authorization: Bearer ${caller.token}\r\n`
  const post = `POST /api/v1${own('/orbit/targets')} HTTP/1.1\r\nHost: x\r\n${bearer}Content-Type: application/json\r\n`
  const health = () => exchange(port, 'GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')

  t.test('HT-16 RL-20 bad framing and oversized headers get a flat answer and the connection is closed', async (t) => {
    for (const [name, request, status, code] of badlyFramed(post, app.initialConfig.bodyLimit!)) {
      const { text, answers } = await exchange(port, request)
      t.equal(answers[0]?.status, status, `${name}: ${text.slice(0, 60)}`)
      t.equal(answers.length, 1, `${name}: one answer`)
      t.match(JSON.parse(answers[0]?.body ?? '{}'), { error: code, message: ERRORS[code].message }, name)
      t.match(answers[0]?.head, /x-content-type-options: nosniff/i, name)
      t.match(answers[0]?.head, /x-request-id: \S+/i, name)
      t.match(answers[0]?.head, /connection: close/i, name)
      t.notMatch(answers[0]?.head, /^server:/im, name)
      t.notMatch(text, LEAK, name)
    }
    t.equal((await health()).answers[0]?.status, 200, 'the service goes on')
  })

  t.test('HT-05 TRACE and CONNECT are refused and nothing is echoed', async (t) => {
    const trace = await exchange(
      port, 'TRACE /healthz HTTP/1.1\r\nHost: x\r\nX-Canary: c4n4ry\r\nConnection: close\r\n\r\n'
    )
    t.equal(trace.answers[0]?.status, 405)
    t.notMatch(trace.text, 'c4n4ry')
    const tunnel = await exchange(port, 'CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n')
    t.match(tunnel.answers, { length: 1, 0: { status: 405 } })
    t.match(JSON.parse(tunnel.answers[0]?.body ?? '{}'), { error: 'method_not_allowed' })
    t.match(tunnel.answers[0]?.head, /x-request-id: \S+[\s\S]*cache-control: no-store/i)
    const [, id] = /x-request-id: (\S+)/i.exec(tunnel.text) ?? []
    t.match(
      logs.map((line) => JSON.parse(line)).filter(({ reqId }) => reqId === id),
      { length: 1, 0: { status: 405, error_code: 'method_not_allowed', client: '127.0.0.0/24' } }
    )
  })

  t.test('HT-17 a client that waits for 100 Continue is asked for its body only when the guard has let it in', async (t) => {
    const ask = (authorization: string) =>
      `POST /api/v1${own('/orbit/targets')} HTTP/1.1\r\nHost: x\r\n${authorization}Content-Type: application/json\r\nContent-Length: 2\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n`
    const refused = await exchange(port, ask(''))
    t.strictSame(refused.answers.map(({ status }) => status), [401])
    const socket = connect(port, '127.0.0.1')
    socket.write(ask(bearer))
    const [first] = await once(socket, 'data')
    t.match(String(first), /^HTTP\/1\.1 100 Continue/)
    socket.end('{}')
    t.match(await rest(socket), /422[\s\S]*validation_failed/)
  })

  t.test('HT-17 an unknown expectation, and a request without Host, are handled and logged like all others', async (t) => {
    const linesOf = (id: string) =>
      logs.map((line) => JSON.parse(line)).filter(({ reqId, msg }) => reqId === id && msg === 'request')
    const path = `/api/v1${own('/orbit')}`
    for (const [id, status, code, headers] of [
      ['expects', 200, undefined, `Host: x\r\nExpect: 200-ok\r\n${bearer}`], [
        'expects-unknown', 401, 'unauthenticated', 'Host: x\r\nExpect: 200-ok\r\n'
      ],
      ['no-host', 400, 'malformed_request', bearer]
    ] as const) {
      const { answers } = await exchange(
        port, `GET ${path} HTTP/1.1\r\nX-Request-Id: ${id}\r\n${headers}Connection: close\r\n\r\n`
      )
      t.match(answers, { length: 1, 0: { status } }, id)
      if (code !== undefined) t.match(JSON.parse(answers[0]?.body ?? '{}'), { error: code }, id)
      for (const header of [`x-request-id: ${id}`, 'cache-control: no-store', 'x-ratelimit-remaining: \\d']) {
        t.match(answers[0]?.head, new RegExp(header, 'i'), `${id}: ${header}`)
      }
      t.match(linesOf(id), { length: 1, 0: { status, error_code: code, client: '127.0.0.0/24' } }, id)
    }
    t.equal((await exchange(port, 'GET /healthz HTTP/1.0\r\n\r\n')).answers[0]?.status, 200, 'HTTP/1.0 has no Host')
  })

  t.test('a change that took effect is logged as such, whatever follows it on its connection', async (t) => {
    const linesOf = (id: string) =>
      logs.map((line) => JSON.parse(line)).filter(({ reqId, msg }) => reqId === id && msg === 'request')
    for (let i = 0; i < 5; i++) {
      const before = logs.length
      const id = `then-garbage-${i}`
      await caller.call('POST', `/${caller.organization}/projects`, { name: `Doomed ${i}` })
      await exchange(
        port,
        `DELETE /api/v1${own(`/doomed-${i}`)} HTTP/1.1\r\nHost: x\r\nX-Request-Id: ${id}\r\n${bearer}\r\nx y\r\n\r\n`
      )
      await until(() => linesOf(id).length > 0, { again: health })
      const { status } = await caller.call('GET', `/${caller.organization}/doomed-${i}`)
      const [{ status: logged, principal, error_code }] = linesOf(id)
      t.match(principal, /^api_token:/)
      t.equal(error_code, undefined)
      t.equal(status === 404, logged >= 200 && logged < 300, `${logged}, and then ${status}`)
      t.match(
        logs.slice(before).map((line) => JSON.parse(line)).filter(({ method }) => method === null),
        { length: 1, 0: { status: 400, error_code: 'malformed_request' } }, 'and the garbage by itself'
      )
    }
  })

  t.test('HT-12 a chunked empty body is no body', async (t) => {
    const { answers } = await exchange(port, `${post}Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`)
    t.match(JSON.parse(answers[0]?.body ?? '{}'), { error: 'validation_failed', errors: { name: [String] } })
  })

  t.test('RL-12 RL-13 a client that goes away in the middle costs nothing: no transaction stays open', async (t) => {
    for (let i = 0; i < 20; i++) {
      const socket = connect(port, '127.0.0.1')
      await once(socket, 'connect')
      await new Promise((resolve) => socket.write(`${post}Content-Length: 100\r\n\r\n{"name":`, resolve))
      if (i % 2) socket.resetAndDestroy()
      else socket.destroy()
    }
    for (let i = 0; i < 20; i++) {
      const socket = connect(port, '127.0.0.1')
      await once(socket, 'connect')
      await new Promise((resolve) => socket.write(`${post}Content-Length: 15\r\n\r\n{"name":"Gone"}`, resolve))
      socket.destroy()
    }
    const answer = await exchange(port, `${post}Connection: close\r\nContent-Length: 16\r\n\r\n{"name":"Still"}`)
    t.equal(answer.answers[0]?.status, 201, 'the next one writes')
    t.strictSame(logs.filter((line) => JSON.parse(line).level >= 50), [], 'no request failed')
    t.same(await service.sql(
      "SELECT DISTINCT ip FROM audit_events WHERE action = 'target.create' AND (ip IS NULL OR ip = '')"
    ), [], 'and who did it is known of each that went away')
  })

  t.test('every request leaves exactly one log line, with its client, whenever the client hangs up', async (t) => {
    const named = (id: string, rest: string) => rest.replace('Host: x', `Host: x\r\nX-Request-Id: ${id}`)
    const get = (id: string, path = '/healthz') => named(id, `GET ${path} HTTP/1.1\r\nHost: x\r\n${bearer}\r\n`)
    const body = JSON.stringify({ ...level, plaintext: `A=${'x'.repeat(50_000)}` })
    const hangUp = async (request: string, after = 0) => {
      const socket = connect(port, '127.0.0.1')
      socket.on('error', () => {})
      await new Promise((resolve) => socket.write(request, resolve))
      if (after > 0) await once(socket, 'data')
      socket.resetAndDestroy()
    }
    await exchange(port, named('whole', 'GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'))
    await hangUp(named('before-the-body', `${post}Content-Length: 100\r\n\r\n`))
    await hangUp(named('in-the-body', `${post}Content-Length: 100\r\n\r\n{"name":`))
    await hangUp(named('in-chunks', `${post}Transfer-Encoding: chunked\r\n\r\n5\r\n{"nam`))
    await hangUp(named(
      'after-the-body',
      `${post.replace('/orbit/targets', '/secrets/store')}Content-Length: ${body.length}\r\n\r\n${body}`
    ))
    await hangUp(get('first-in-line', `/api/v1${own('/orbit')}`) + get('second-in-line') +
      get('third-in-line', '/nowhere'))
    await hangUp(get('while-answered', `/api/v1${own('/orbit/backend/live/secrets')}`), 1)
    await exchange(port, named('no-chunk', `${post}Transfer-Encoding: chunked\r\n\r\nzz\r\n`))
    await exchange(port, named('no-path', 'GET /%ff HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'))
    const before = logs.length
    await exchange(port, 'hello\r\n\r\n')
    const lineOf = (line: string) => JSON.parse(line) as Record<string, unknown>
    const ids = [
      'whole', 'before-the-body', 'in-the-body', 'in-chunks', 'after-the-body', 'first-in-line', 'second-in-line',
      'third-in-line', 'while-answered', 'no-chunk', 'no-path'
    ]
    const linesOf = (id: string) => logs.map(lineOf).filter(({ reqId, msg }) => reqId === id && msg === 'request')
    // If a client disconnects, its running request still ends. Waits for the log lines of all requests.
    await until(() => ids.every((id) => linesOf(id).length > 0), { again: health })
    await exchange(port, `GET /api/v1${own('/orbit')} HTTP/1.1\r\nHost: x\r\n${bearer}Connection: close\r\n\r\n`)
    for (const id of ids) t.match(linesOf(id), { length: 1, 0: { client: '127.0.0.0/24' } }, id)
    for (const id of ['before-the-body', 'in-the-body', 'in-chunks']) {
      t.match(linesOf(id), [{ aborted: true, route: '/api/v1/:organization/:project/targets' }], id)
    }
    t.match(linesOf('whole'), [{ status: 200, aborted: undefined }])
    t.match(linesOf('no-chunk'), [{ status: 400, error_code: 'malformed_request' }])
    t.match(linesOf('no-path'), [{ status: 404, error_code: 'not_found' }])
    t.match(
      logs.slice(before).map(lineOf).filter(({ method }) => method === null),
      { length: 1, 0: { msg: 'request', client: '127.0.0.0/24', status: 400, error_code: 'malformed_request' } },
      'what never was a request, too'
    )
  })

  t.test('RL-12 RL-16 a request that does not arrive whole in time is closed, headers or body', async (t) => {
    app.server.requestTimeout = 1_200
    app.server.headersTimeout = 1_000
    // A browser opens connections in advance, and takes what is there already for the response to its first request.
    const silent = exchange(port, '')
    const halves = await Promise.all([
      exchange(port, `${post}Content-Length: 100\r\n\r\n{"name":`),
      exchange(port, 'GET /healthz HTTP/1.1\r\nHost:'),
      exchange(port, `${post}Transfer-Encoding: chunked\r\n\r\n5\r\n{"nam`)
    ])
    for (const { answers } of halves) {
      t.equal(answers.length, 1)
      t.match(JSON.parse(answers[0]?.body ?? '{}'), { error: 'malformed_request' })
    }
    t.strictSame((await silent).answers, [], 'a connection without a request is closed without a response')
    t.equal(
      (await exchange(port, 'GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')).answers[0]?.status, 200
    )
  })
})

t.test('RL-21 no input makes any published operation fail, and every refusal is a documented one', async (t) => {
  const random = generator(20260301)
  const pick = <T>(from: readonly T[]): T => from[Math.floor(random() * from.length)]!
  const chance = (p: number) => random() < p
  const operations = publishedOperations()
  const strange = await service.organization()
  const narrow = await service.token(caller.organization, ['secret:read', 'project:read'])
  const seen = new Map<string, Set<number>>()
  const succeeded = (id: string) => [...seen.get(id) ?? []].some((status) => status < 300)
  let { caller: at, ids } = await freshWorld()

  for (let i = 0; i < (LONG ? 25 : 3) * operations.length; i++) {
    const operation = operations[i % operations.length]!
    const row = OPERATIONS[operation.id]!
    // Operations that delete test data of other operations run rarely after their first success.
    const destructive = /^(?:delete|remove(?!Coupon)|rotateClient)/.test(operation.id)
    const params = row.client ? { ...ids, project: ids.client! } : ids
    const path = operation.path.replace(/{(\w+)}/g, (_, name: string) =>
      encodeURIComponent(chance(destructive && succeeded(operation.id) ? 0.9 : 0.1) ? pick(WORDS) : params[name]!))
    await prepare(service, row, ids)
    const good = requestOf(row, ids).url.split('?')[1]
    const query = chance(0.6)
      ? [good].filter((one) => one !== undefined)
      : operation.query.filter(() => chance(0.4)).map((name) => `${encodeURIComponent(name)}=${pick(QUERY_VALUES)}`)
    if (chance(0.1)) {
      query.push(pick(['x=1', '%00', 'page=1&page=2', '__proto__=1', '%ff=%ff', '===', 'decrypt[]=true']))
    }
    const headers: Record<string, string> = {
      authorization:
      `Bearer ${chance(0.9) ? at.token : pick([strange.token, narrow.token, 'x', `${at.token}x`, '', 'ä'])}`
    }
    if (chance(0.03)) delete headers.authorization
    for (const [name, values] of Object.entries(HEADERS)) if (chance(0.08)) headers[name] = pick(values)
    let payload: string | undefined
    if (operation.body !== undefined ? chance(0.97) : chance(0.1)) {
      payload = bodyText(operation.body, requestOf(row, ids).payload ?? {})
      headers['content-type'] = chance(0.95)
        ? 'application/json'
        : pick(['text/plain', 'application/json; charset=utf-16', 'x', 'application/jsonp', 'multipart/form-data'])
    }
    const request =
      `#${i} ${operation.method} ${path}?${query.join('&')} ${JSON.stringify(headers)} ${payload?.slice(0, 500)}`
    const answer = await service.inject({
      method: operation.method as 'GET',
      url: `${path}?${query.join('&')}`,
      headers,
      remoteAddress: '10.0.0.1',
      ...(payload !== undefined && { payload })
    })
    const { status, body } = answer
    const statuses = seen.get(operation.id) ?? new Set()
    seen.set(operation.id, statuses.add(status))
    // `inject` resolves `..` before it sends a request, so the path can be another one without this method.
    if (status === 405 && path.includes('..')) continue
    if (!operation.answers.has(status)) t.fail(`${status} is not documented: ${request}\n${answer.text}`)
    else if (status >= 400) {
      const sound = operation.answers.get(status)!.has(
        body?.error
      ) && errorFaults(status, body).length === 0 &&
        answer.headers['content-type'] === 'application/json; charset=utf-8' && !LEAK.test(answer.text.replace(
        /"errors":.*/, ''
      ))
      if (!sound || status >= 500) t.fail(`${request}\n${answer.text}`)
    }
    const renamed = operation.method !== 'POST' && payload?.includes('"slug"')
    if ((destructive || renamed) && status < 300) ({ caller: at, ids } = await freshWorld())
  }
  t.equal(seen.size, operations.length, 'every operation was called')
  t.ok(operations.length >= 40, `${operations.length} operations`)
  const missed = operations.map(({ id }) => id).filter((id) => !succeeded(id))
  t.ok(
    missed.length < operations.length * (LONG ? 0.2 : 0.5), `all but ${missed.join()} were reached with something good as well`
  )
  t.equal((await caller.call('GET', '/organization')).status, 200)
  t.equal(({} as Record<string, unknown>).polluted, undefined)

  function freshWorld (): Promise<World> {
    return settle(service, 'orbit')
  }

  function bodyText (schema: Schema | undefined, good: object): string {
    if (schema === undefined || chance(0.05)) return pick(TEXTS)
    const members = Object.entries(schema.properties as Record<string, Schema>)
      .filter(([name]) => (schema.required ?? []).includes(name) || name in good ? chance(0.95) : chance(0.2))
      .map(([name, member]) => [name, chance(0.1) ? pick(JUNK) : valueFor(name, member, good)])
    if (chance(0.08)) {
      members.push([
        pick(['unknown', '__proto__', 'constructor', '', 'näme', 'a/b', 'a.b', '\ud800', '\0']), pick(JUNK)
      ])
    }
    return `{${members.map(([name, value]) => `${JSON.stringify(name)}:${JSON.stringify(value)}`).join(',')}}`
  }

  function valueFor (name: string, schema: Schema, good: object = {}): unknown {
    if (name in good && chance(0.7)) return good[name as keyof typeof good]
    if (name === 'abilities') return [pick(['secret:read', 'projects:read', '*', 'nope'])]
    if (name === 'restrictions') return [{ project: ids.project, ...(chance(0.5) && { target: ids.target }) }]
    if (name === 'expires_at') return pick(['2099-01-01T00:00:00Z', '2000-01-01T00:00:00Z', null])
    if (name === 'name') return pick(['Orbit', '🚀', '---', 'x'.repeat(255), 'Ünï cödé'])
    if (name === 'storage_mode') return 'client'
    if (name === 'confirmed') return pick([true, 'true'])
    const union = schema.anyOf as Schema[] | undefined
    if (union !== undefined) return valueFor('', pick(union))
    if ('const' in schema) return schema.const
    if (schema.enum !== undefined) return pick(schema.enum as unknown[])
    if (schema.type === 'boolean') return chance(0.5)
    if (schema.type === 'integer') return pick([1, 2, 25, 1000, 600_000])
    if (schema.type === 'object') return {}
    if (schema.type === 'string') {
      return pick(['orbit', 'A=1\n', Buffer.alloc(32, 7).toString('base64'), Buffer.alloc(64, 1).toString('base64')])
    }
    return pick(JUNK)
  }
})

// No static route has one of these words in the place of a parameter, because the path would then be another operation.
const WORDS = [
  'nope', 'ORBIT', '0', '-1', '1', '9007199254740993', '1e3', 'null', 'ä', '🚀', '%', "'; DROP TABLE projects; --",
  '..', '../..', 'a b', 'a\0b', '\n', 'x'.repeat(100), 'x'.repeat(128), 'x'.repeat(129), '__proto__', 'constructor',
  '01JQZ6V9T4M8N2K7R5W3X1Y0BC', '*', ':project'
]
const QUERY_VALUES = [
  'true', 'false', 'both', '1', '0', '-1', '100', '101', '', '%00', '%ff', '%', 'a%20b', '1e9', '9'.repeat(30),
  '%F0%9F%9A%80', '[]', '{}', 'null'
]
const JUNK: unknown[] = [
  null, true, false, 0, -1, 1.5, 1e308, 2 ** 53, '', ' ', 'x', 'true', '1', 'a\0b', '\ud800', 'x'.repeat(3000), [], [1],
  [[]], {}, { a: 1 }, ['x'], { __proto__: null, toString: 1 }, '2026-02-30T00:00:00Z', '2026-01-01', '🚀'.repeat(200),
  // eslint-disable-next-line no-template-curly-in-string
  "' OR 1=1 --", '${x}', '%00'
]
const TEXTS = [
  '', '{', '[]', 'null', '"x"', '1', '{"a":1,}', '\ufeff{}', '{}', '{"__proto__":{"polluted":true}}',
  '{"constructor":{"prototype":{"polluted":true}}}', `${'['.repeat(30)}${']'.repeat(30)}`, 'name=x', '\0',
  '{"name":"\\u0000"}'
]
const HEADERS: Record<string, readonly string[]> = {
  accept: ['text/html', '*/*;q=x', ''],
  'x-api-version': ['1', '1', '2', 'x'],
  'if-match': ['*', '"x"', 'W/"x"', 'x', '"', '"'.repeat(999)],
  'if-none-match': ['*', '"x"', '', '"'.repeat(999)],
  'x-request-id': ['ok', 'a b', 'x'.repeat(500)],
  'x-forwarded-for': ['1.1.1.1', 'x', '::1, x', 'x'.repeat(500)],
  'user-agent': ['', 'x'.repeat(4000), '\u00ff\u0001'],
  'content-encoding': ['gzip', 'identity'],
  cookie: ['a=b', ';;;'],
  'accept-encoding': ['gzip'],
  range: ['bytes=0-1'],
  origin: ['null']
}

type Schema = Record<string, unknown> & { required?: string[] }
interface Operation {
  id: string
  method: string
  path: string
  query: string[]
  body: Schema | undefined
  answers: Map<number, Set<string>>
}

/** The query, the body, and the error codes for each status of each operation in the OpenAPI document. */
function publishedOperations (): Operation[] {
  // The OAuth endpoints have other formats, and their own tests.
  const paths = publishedPaths(service)
  const all = Object.values(paths).flatMap((item) => Object.values(item))
  return Object.entries(paths).filter(
    ([path]) => !path.startsWith('/api/oauth/')
  ).flatMap(([path, item]) => Object.entries(item).map(([method, operation]): Operation => ({
    id: operation.operationId,
    method: method.toUpperCase(),
    path,
    query: (operation.parameters ?? []).filter(
      (parameter: any) => parameter.in === 'query'
    ).map((parameter: any) => parameter.name),
    body: componentOf(operation.requestBody?.content['application/json']?.schema),
    answers: answersOf(path, operation, all)
  })))
}

function componentOf (schema: any): any {
  if (schema?.$ref === undefined) return schema
  return (service.app.swagger() as any).components.schemas[schema.$ref.split('/').at(-1)]
}

// mulberry32
function generator (seed: number) {
  return () => {
    seed = seed + 0x6d2b79f5 | 0
    let x = Math.imul(seed ^ seed >>> 15, 1 | seed)
    x = x + Math.imul(x ^ x >>> 7, 61 | x) ^ x
    return ((x ^ x >>> 14) >>> 0) / 4294967296
  }
}

/** Sends raw text and reads until the service closes the connection. */
async function exchange (port: number, request: string) {
  const socket = connect(port, '127.0.0.1')
  socket.write(request, 'latin1')
  const text = await rest(socket)
  const answers = text.split(/(?=HTTP\/1\.1 \d{3} )/).filter((part) => part !== '').map((part) => {
    const [head = '', ...body] = part.split('\r\n\r\n')
    return { status: Number(head.slice(9, 12)), head, body: body.join('\r\n\r\n') }
  })
  return { text, answers }
}
