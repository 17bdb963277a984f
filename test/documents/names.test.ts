// runs: one database, embedded
import { execFileSync } from 'node:child_process'
import t, { type Test } from 'tap'
import { parse } from 'yaml'
import { READ_TYPE } from '../../schemas/secrets.ts'
import { DETAILS, makeLevel, startApp, type Answer, type Caller } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'

// Reads of names and values: the data that a process or a person needs from the documents of a level.

const test = await startApp(t)
const owner = await test.organization()
const org = owner.organization

const DOCUMENTS = {
  project: 'A=project\nB=project\nC=project\n',
  target: 'B=target\nC=target\n',
  environment: '# own\nC=environment\nD="it\'s $HOME\\nand more"\n'
}
const D = "it's $HOME\nand more"
const MERGED = { A: 'project', B: 'target', C: 'environment', D }
const [SHELL, YAML] = ['text/plain; charset=utf-8', 'application/yaml; charset=utf-8']
const ETAG = /^"[A-Za-z0-9_-]{22}"$/

t.test('values are the merged names and values alone, always of the type that the document names', async (t) => {
  await storeAll(await makeLevel(owner, { slug: 'values' }))
  await makeLevel(owner, { slug: 'no-values' })
  for (const [path, expected] of [
    ['/values', { A: 'project', B: 'project', C: 'project' }],
    ['/values/backend', { A: 'project', B: 'target', C: 'target' }],
    ['/values/backend/live', MERGED],
    ['/no-values/backend/live', {}]
  ] as const) {
    const answer = await values(path)
    t.strictSame([answer.status, answer.headers['content-type'], answer.body], [200, READ_TYPE, expected], path)
    t.match(answer.headers, { etag: ETAG, 'cache-control': 'no-store', vary: /\bAccept\b/ })
    const head = await owner.call('HEAD', `/${org}${path}/secrets/values`)
    t.match(head, { status: 200, text: '', headers: { etag: answer.headers.etag } })
    t.equal(head.headers['content-length'], String(Buffer.byteLength(answer.text)))
  }
  for (const path of ['/values/backend/none', '/values/none', '/none', '/values/none/live']) {
    refused(t, await values(path), 404, 'not_found')
  }
})

t.test('text/plain is a text that a shell can source, and application/yaml a mapping of strings', async (t) => {
  await storeAll(await makeLevel(owner, { slug: 'texts' }))
  const shell = await values('/texts/backend/live', { accept: 'text/plain' })
  t.equal(shell.headers['content-type'], SHELL)
  const script = `${shell.text}printf '%s|' "$A" "$B" "$C" "$D"`
  t.equal(execFileSync('/bin/sh', ['-euc', script], { encoding: 'utf8' }), `${Object.values(MERGED).join('|')}|`)
  const yaml = await values('/texts/backend/live', { accept: 'application/yaml' })
  t.equal(yaml.headers['content-type'], YAML)
  t.same(parse(yaml.text), MERGED)

  for (const [format, text, expected] of [
    ['json', '{"N":70,"M":1.50,"O":{"a":[1]},"Z":null}', { N: '70', M: '1.50', O: '{"a":[1]}', Z: '' }],
    ['yaml', 'N: 007\nM: "no"\nT: true\n', { N: '007', M: 'no', T: 'true' }]
  ] as const) {
    const at = await makeLevel(owner, { slug: `texts-${format}`, secret_format: format })
    t.equal((await store({ ...at, plaintext: text })).status, 200)
    const path = `/texts-${format}/backend/live`
    t.strictSame((await values(path)).body, expected)
    t.same(parse((await values(path, { accept: 'application/yaml' })).text), expected, 'each value is a string in YAML')
    const lines = Object.entries(expected).map(([name, value]) => `${name}='${value}'\n`).join('')
    t.equal((await values(path, { accept: 'text/plain' })).text, lines)
  }
})

t.test('Accept chooses the representation by its weights; JSON if it names none', async (t) => {
  await storeAll(await makeLevel(owner, { slug: 'accepts' }))
  for (const [accept, type] of [
    ['*/*', READ_TYPE], ['application/json', READ_TYPE], ['application/*', READ_TYPE], ['text/html', READ_TYPE],
    ['', READ_TYPE], ['application/json, text/plain, */*', READ_TYPE], ['text/plain;q=0', READ_TYPE],
    ['text/plain;q=0.5, application/json;q=0.4', SHELL], ['text/*', SHELL], ['text/plain, */*', SHELL],
    ['TEXT/PLAIN; charset=utf-8', SHELL], ['text/plain;q=x, application/yaml;q=0.1', YAML],
    ['application/yaml, */*;q=0.8', YAML], ['application/json;q=0.1, application/yaml', YAML],
    ['application/json;q=0, */*', SHELL]
  ] as const) {
    t.equal((await values('/accepts/backend/live', { accept })).headers['content-type'], type, accept)
  }
})

t.test('each representation has its own ETag, which is 304 until a document of the levels changes', async (t) => {
  const at = await makeLevel(owner, { slug: 'tagged' })
  await storeAll(at)
  const path = '/tagged/backend/live'
  const types = ['application/json', 'text/plain', 'application/yaml']
  const etagOf = async (accept: string) => String((await values(path, { accept })).headers.etag)
  const etagsNow = () => Promise.all(types.map(etagOf))
  const etags = await etagsNow()
  const merged = await owner.call('GET', `/${org}${path}/secrets?decrypt=true&merge=true&raw=true`)
  t.equal(new Set([...etags, merged.headers.etag]).size, 4)
  t.strictSame(await etagsNow(), etags, 'the same as long as nothing changed')
  for (const [i, accept] of types.entries()) {
    for (const [j, etag] of etags.entries()) {
      const answer = await values(path, { accept, 'if-none-match': etag })
      const expected = [i === j ? 304 : 200, etags[i]]
      t.strictSame([answer.status, answer.headers.etag], expected, `${accept} with the ETag of ${types[j]}`)
      if (i === j) t.equal(answer.text, '')
    }
  }
  for (const place of [{ project: 'tagged' }, { project: 'tagged', target: 'backend' }, at]) {
    const before = await etagsNow()
    t.equal((await store({ ...place, plaintext: `${Object.keys(place).join('_')}=other\n` })).status, 200)
    for (const [i, accept] of types.entries()) {
      const answer = await values(path, { accept, 'if-none-match': before[i]! })
      t.equal(answer.status, 200)
      t.match(answer.text, 'other')
    }
  }
})

t.test('If-None-Match: * is 304 only if the response without it succeeds', async (t) => {
  const at = await makeLevel(owner, { slug: 'any', secret_format: 'json' })
  const path = '/any/backend/live'
  const any = { 'if-none-match': '*' }
  await store({ ...at, plaintext: '{"api.key":"1"}' })
  refused(t, await values(path, { accept: 'text/plain', ...any }), 422, 'names_not_in_shell')
  for (const accept of ['application/json', 'application/yaml']) {
    const answer = await values(path, { accept, ...any })
    t.strictSame([answer.status, answer.text], [304, ''], accept)
    t.equal(answer.headers.etag, (await values(path, { accept })).headers.etag)
  }
  t.equal((await owner.call('GET', `/${org}${path}/secrets/names`, undefined, any)).status, 304)
  await store({ ...at, plaintext: '{"A":"1"}' })
  t.equal((await values(path, { accept: 'text/plain', ...any })).status, 304)
  await store({ ...at, plaintext: '{', unchecked: true })
  refused(t, await values(path, any), 422, 'document_unreadable')
  refused(t, await owner.call('GET', `/${org}${path}/secrets/names`, undefined, any), 422, 'document_unreadable')
})

t.test('values need secret:read and secret:decrypt, and a document that the server can read', async (t) => {
  const at = await makeLevel(owner, { slug: 'needs' })
  await storeAll(at)
  for (const [has, needs] of [['secret:read', 'secret:decrypt'], ['secret:decrypt', 'secret:read']] as const) {
    const answer = await values('/needs/backend/live', {}, await test.token(org, [has]))
    refused(t, answer, 403, 'insufficient_permissions')
    t.equal(answer.body.details.required_scope, needs)
  }
  const both = await test.token(org, ['secret:read', 'secret:decrypt'])
  t.same((await values('/needs/backend/live', {}, both)).body, MERGED)

  const [place] = await test.sql(`SELECT e.project_id, e.target_id, e.id AS environment_id FROM environments e
    JOIN projects p ON p.organization_id = e.organization_id AND p.id = e.project_id
    WHERE p.organization_id = '${org}' AND p.slug = 'needs'`)
  const narrow = await test.token(org, ['secret:read', 'secret:decrypt'], { slices: [place as any] })
  t.same((await values('/needs/backend/live', {}, narrow)).body, { C: 'environment', D }, 'only documents it may read')
  refused(t, await values('/needs/backend', {}, narrow), 404, 'not_found')

  await makeLevel(owner, { slug: 'of-client', ...(await clientKey('correct horse battery staple')).registration })
  const refusal = await values('/of-client/backend/live')
  refused(t, refusal, 422, 'client_managed_encryption')
  t.match(refusal.body.message, 'the server cannot read')
  await store({ ...await makeLevel(owner, { slug: 'of-text', secret_format: 'text' }), plaintext: 'anything' })
  refused(t, await values('/of-text/backend/live'), 422, 'invalid_parameter_combination')
})

t.test('names and values that no shell variable can have are named in a refusal, which is recorded', async (t) => {
  const at = await makeLevel(owner, { slug: 'odd', secret_format: 'json' })
  const document = { 'api.key': '1', '': '2', 'x;reboot': '3', OK: '4', NUL: '\0', É: '5', '1A': '6' }
  t.equal((await store({ ...at, plaintext: JSON.stringify(document) })).status, 200)
  const before = await decryptions()
  const answer = await values('/odd/backend/live', { accept: 'text/plain' })
  refused(t, answer, 422, 'names_not_in_shell')
  t.notOk('etag' in answer.headers, 'a request with the ETag of an error would get 304')
  t.strictSame(answer.body.details, { names: ['', '1A', 'NUL', 'api.key', 'x;reboot', 'É'] })
  t.equal((await decryptions()).length, before.length + 1)
  t.strictSame((await values('/odd/backend/live')).body, document, 'JSON holds them')
  t.same(parse((await values('/odd/backend/live', { accept: 'application/yaml' })).text), document, 'as does YAML')
})

t.test('a read of values is recorded as a decrypting read of its documents; a 304 and a refusal are not', async (t) => {
  const at = await makeLevel(owner, { slug: 'recorded' })
  const ids = await storeAll(at)
  const before = await decryptions()
  const { headers } = await values('/recorded/backend/live')
  const added = (await decryptions()).slice(before.length)
  t.match(added, [{ resource_type: 'environment', details: { secrets: ids.join(' '), revisions: '1 1 1' } }])
  t.equal(added.length, 1)
  t.equal((await values('/recorded/backend/live', { 'if-none-match': String(headers.etag) })).status, 304)
  t.equal((await values('/recorded/backend/none')).status, 404)
  t.equal((await decryptions()).length, before.length + 1)
})

t.test('large values are answered whole in each representation', async (t) => {
  const at = await makeLevel(owner, { slug: 'large' })
  const own = Object.fromEntries(Array.from({ length: 9_000 }, (_, i) => [`NAME_${i}`, `ä "€" 😀 ${'x'.repeat(80)}`]))
  const plaintext = Object.entries(own).map(([name, value]) => `${name}=${value}`).join('\n')
  t.equal((await store({ ...at, plaintext })).status, 200)
  const json = await values('/large/backend/live')
  t.equal(json.text, JSON.stringify(own))
  t.equal(json.headers['content-type'], READ_TYPE)
  const shell = await values('/large/backend/live', { accept: 'text/plain' })
  t.equal(shell.text, Object.entries(own).map(([name, value]) => `${name}='${value}'\n`).join(''))
  t.same(parse((await values('/large/backend/live', { accept: 'application/yaml' })).text), own)
})

t.test('names are of the level, or merged with the level of each and the levels it overrides, without values', async (t) => {
  const at = await makeLevel(owner, { slug: 'names' })
  await storeAll(at)
  const list = async (query: string) => {
    const { status, body, text } = await names('/names/backend/live', query)
    t.equal(status, 200, text)
    t.equal(body.meta.total, body.data.length)
    t.notMatch(text, /HOME/)
    return body.data.map(({ type, attributes: { name, level, overrides } }: any) => {
      t.equal(type, 'secret-names')
      return [name, level, ...overrides].join(' ')
    })
  }
  t.strictSame(await list(''), ['C environment', 'D environment'])
  t.strictSame(await list('?merge=true'), [
    'A project', 'B target project', 'C environment project target', 'D environment'
  ])
  t.strictSame((await names('/names/backend', '?merge=true')).body.data.map(({ attributes }: any) => attributes.level), [
    'project', 'target', 'target'
  ])
  t.strictSame((await names('/names')).body.data.map(({ attributes }: any) => attributes.name), ['A', 'B', 'C'])

  await makeLevel(owner, { slug: 'no-names' })
  t.strictSame((await names('/no-names/backend/live', '?merge=true')).body, { data: [], meta: { total: 0 } })
  for (const path of ['/names/none', '/none', '/names/none/live']) refused(t, await names(path), 404, 'not_found')
})

t.test('prefix and search select names, whatever characters they have, and names are sorted', async (t) => {
  const at = await makeLevel(owner, { slug: 'found', secret_format: 'json' })
  const document = { z: '1', DB_URL: '2', DB_USER: '3', OLD_DB: '4', '': '5', 'ä b': '6', __proto__x: '7', 10: '8' }
  const plaintext = JSON.stringify(document).replace('__proto__x', '__proto__')
  t.equal((await store({ ...at, plaintext })).status, 200)
  for (const [query, expected] of [
    ['', ['', '10', 'DB_URL', 'DB_USER', 'OLD_DB', '__proto__', 'z', 'ä b']],
    ['?prefix=DB_', ['DB_URL', 'DB_USER']], ['?prefix=db_', []], ['?search=db', ['DB_URL', 'DB_USER', 'OLD_DB']],
    ['?search=DB&prefix=O', ['OLD_DB']], [`?search=${encodeURIComponent('Ä B')}`, ['ä b']]
  ] as const) {
    const { body } = await names('/found/backend/live', query)
    t.strictSame(body.data.map(({ attributes }: any) => attributes.name), expected, query)
  }
  for (const query of ['?merge=both', `?prefix=${'x'.repeat(256)}`, '?search=a&search=b', '?search=', '?prefix=']) {
    refused(t, await names('/found/backend/live', query), 422, 'validation_failed')
  }
})

t.test('a listing of names is recorded as one, and decrypts only the documents that it lists', async (t) => {
  const at = await makeLevel(owner, { slug: 'listed' })
  const ids = await storeAll(at)
  const before = await decryptions()
  const own = await names('/listed/backend/live')
  await names('/listed/backend/live', '?merge=true')
  t.match(await listings(), [{ details: { secrets: ids[2] } }, { details: { secrets: ids.join(' ') } }])
  t.equal((await decryptions()).length, before.length, 'no read of values')
  const known = { 'if-none-match': String(own.headers.etag) }
  t.equal((await names('/listed/backend/live', '', owner, known)).status, 304)
  t.equal((await names('/listed/backend/live', '?prefix=C', owner, known)).status, 200, 'another list')
  await store({ project: 'listed', plaintext: 'A=2\n' })
  t.equal((await names('/listed/backend/live', '', owner, known)).status, 304, 'a level above is not listed')
  await store({ ...at, plaintext: 'A=2\n' })
  t.match(await names('/listed/backend/live', '', owner, known), { status: 200, body: { meta: { total: 1 } } })

  for (const [has, needs] of [['secret:read', 'secret:decrypt'], ['secret:decrypt', 'secret:read']] as const) {
    const answer = await names('/listed/backend/live', '', await test.token(org, [has]))
    refused(t, answer, 403, 'insufficient_permissions')
    t.equal(answer.body.details.required_scope, needs)
  }
  refused(t, await names('/of-client/backend/live'), 422, 'client_managed_encryption')
  refused(t, await names('/of-text/backend/live'), 422, 'invalid_parameter_combination')

  async function listings () {
    const [{ id }] = await test.sql(`SELECT e.id FROM environments e JOIN projects p
      ON p.organization_id = e.organization_id AND p.id = e.project_id
      WHERE p.organization_id = '${org}' AND p.slug = 'listed'`) as [{ id: string }]
    return test.sql(`SELECT ${DETAILS} FROM audit_events WHERE organization_id = '${org}' AND action = 'secret.names'
      AND resource_type = 'environment' AND resource_id = '${id}' ORDER BY seq`)
  }
})

function names (path: string, query = '', caller: Caller = owner, headers: Record<string, string> = {}) {
  return caller.call('GET', `/${org}${path}/secrets/names${query}`, undefined, headers)
}

function values (path: string, headers: Record<string, string> = {}, caller: Caller = owner) {
  return caller.call('GET', `/${org}${path}/secrets/values`, undefined, headers)
}

function store (body: object) {
  return owner.call('POST', `/${org}/secrets/store`, body)
}

/** Stores DOCUMENTS at the level and above it, and returns the ids of the secrets from the project down. */
async function storeAll ({ project, target, environment }: { project: string, target: string, environment: string }) {
  const at = { project: { project }, target: { project, target }, environment: { project, target, environment } }
  const ids: string[] = []
  for (const level of ['project', 'target', 'environment'] as const) {
    const { status, body, text } = await store({ ...at[level], plaintext: DOCUMENTS[level] })
    if (status !== 200) throw new Error(text)
    ids.push(body.data.secret_id)
  }
  return ids
}

const decryptions = () => test.sql(`SELECT resource_type, ${DETAILS} FROM audit_events
  WHERE organization_id = '${org}' AND action = 'secret.decrypt' ORDER BY seq`)

function refused (t: Test, answer: Answer, status: number, code: string) {
  t.equal(answer.status, status, `${code}: ${answer.text}`)
  t.equal(answer.body?.error, code)
  t.type(answer.body?.message, 'string')
}
