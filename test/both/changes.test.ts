import t from 'tap'
import { makeLevel, startApp, type Answer, type Caller } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'

const test = await startApp(t)
const owner = await test.organization()
const org = owner.organization
const MERGE = 'application/merge-patch+json'

const pathOf = ({ project, target, environment }: Record<string, string | undefined>) =>
  [project, target, environment].filter((slug) => slug !== undefined).join('/')
const store = (at: object, plaintext: string, more: object = {}) =>
  owner.call('POST', `/${org}/secrets/store`, { ...at, plaintext, ...more })
const change = (at: object, body: unknown, headers: Record<string, string> = {}, caller: Caller = owner) =>
  caller.call('PATCH', `/${org}/${pathOf(at as Record<string, string>)}/secrets`, body, headers)
const textOf = async (at: { project: string, target: string, environment: string }) =>
  (await owner.call('GET', `/${org}/${pathOf(at)}/secrets?decrypt=true`)).body.data.attributes.levels.environment?.content
const versionsOf = async (at: object) =>
  (await owner.call('POST', `/${org}/secrets/versions`, at)).body.meta.total as number
const is = (t: { equal: Function }, { status, body, text }: Answer, expected: number, code: string) => {
  t.equal(status, expected, text)
  t.equal(body.error, code)
}

t.test('a change of names keeps all other bytes, records one version and answers with names only', async (t) => {
  const at = await makeLevel(owner, { slug: 'bytes' })
  await store(at, '# head\r\nA="1"  # kept\r\n\r\nB=2\r\nC=3')
  const answer = await change(at, { set: { B: 'two', D: '4' }, unset: ['C', 'none'] })
  t.match(answer.body.data, { version: '2', unchanged: false, added: ['D'], changed: ['B'], removed: ['C'] })
  t.equal(await textOf(at), '# head\r\nA="1"  # kept\r\n\r\nB=two\r\nD=4', 'the missing final line ending stays missing')
  t.equal(await versionsOf(at), 2)
  const again = await change(at, { A: '9', B: null }, { 'content-type': MERGE, 'if-match': String(answer.headers.etag) })
  t.match(again.body.data, { version: '3', added: [], changed: ['A'], removed: ['B'] })
  is(t, await change(at, { set: { A: '1' } }, { 'if-match': String(answer.headers.etag) }), 412, 'precondition_failed')
})

t.test('names change at each level and in each format, and all other bytes stay', async (t) => {
  const documents = {
    env: ['export A=1 # one\nB="x\ny"\n', 'export A=2 # one\nB="x\ny"\nC=3\n'],
    json: ['{ "A": "1",\t"n": {"deep": [1.0]}\n}\n', '{ "A": "2",\t"n": {"deep": [1.0]},\t"C": "3"\n}\n'],
    yaml: ['# top\nA: one # kept\nlist: [007, 1.0]\n', "# top\nA: '2' # kept\nlist: [007, 1.0]\nC: '3'\n"]
  } as const
  for (const [secret_format, [before, after]] of Object.entries(documents)) {
    const at = await makeLevel(owner, { slug: `each-${secret_format}`, secret_format })
    const { project, target } = at
    const places = { project: { project }, target: { project, target }, environment: at }
    for (const [level, place] of Object.entries(places)) {
      await store(place, before)
      const answer = await change(place, { set: { A: '2', C: '3' } })
      const read = await owner.call('GET', `/${org}/${pathOf(place)}/secrets?decrypt=true`)
      t.match(answer.body.data, { level, source: Object.values(place).at(-1), added: ['C'], changed: ['A'], removed: [] })
      t.equal(read.body.data.attributes.levels[level].content, after)
    }
  }
})

t.test('a name whose value has an alias is not changed, because the alias would have the new value, too', async (t) => {
  const at = await makeLevel(owner, { slug: 'aliases', secret_format: 'yaml' })
  await store(at, '# top\nA: &a one\nB: *a\n')
  const answer = await change(at, { set: { A: '2' } })
  is(t, answer, 422, 'validation_failed')
  t.match(answer.body.errors['set.A'], [/alias/])
  const { body } = await owner.call('GET', `/${owner.organization}/audit-events?per_page=1`)
  t.match(body.data[0].attributes, { action: 'secret.decrypt' }, 'a refusal that depends on the value is a read')
  t.equal((await change(at, { set: { B: '2' } })).status, 200)
  t.equal(await textOf(at), "# top\nA: &a one\nB: '2'\n")
})

t.test('a change that changes nothing records no version; a level without a document gets one', async (t) => {
  const at = await makeLevel(owner, { slug: 'empty' })
  t.match((await change(at, { unset: ['A'] })).body.data, { version: null, unchanged: true, secret_id: null })
  t.equal(await textOf(at), undefined)
  t.match((await change(at, { set: { A: '1' } })).body.data, { version: /^\d+$/, unchanged: false, added: ['A'] })
  const same = await change(at, { set: { A: '1' } })
  t.match(same.body.data, { version: null, unchanged: true, added: [], changed: [], removed: [] })
  t.type(same.headers.etag, 'string')
  t.equal(await versionsOf(at), 1)
})

t.test('a change is bounded: by its names and characters, and by the work on a large document', async (t) => {
  const at = await makeLevel(owner, { slug: 'bounded' })
  const many = Object.fromEntries(Array.from({ length: 1001 }, (_, i) => [`N${i}`, '1']))
  is(t, await change(at, { set: many }), 422, 'validation_failed')
  is(t, await change(at, { unset: Object.keys(many) }), 422, 'validation_failed')
  const half = 'x'.repeat(128 * 1024)
  is(t, await change(at, { set: { A: half, B: half } }), 422, 'validation_failed')
  // Each further way to write these names would read the whole document again.
  const lines = Array.from({ length: 9_500 }, (_, i) => `L${i}='a b'`)
  await store(at, lines.join('\n'))
  const odd = Object.fromEntries(Array.from({ length: 1000 }, (_, i) => [`Q${i}`, `'"\`${i}\\`]))
  const refused = await change(at, { set: odd })
  is(t, refused, 422, 'validation_failed')
  t.match(Object.values(refused.body.errors).flat(), [/would exceed its limits/])
  t.equal((await change(at, { set: { A: half } })).status, 200, 'one large value')
})

t.test('a byte order mark, CRLF, duplicate names and names of objects are kept or changed as others', async (t) => {
  const at = await makeLevel(owner, { slug: 'odd' })
  await store(at, '\uFEFFA=1\r\nA=2\r\n__proto__=x')
  const answer = await change(at, { set: { A: '3', constructor: 'c' } })
  t.match(answer.body.data, { added: ['constructor'], changed: ['A'] })
  t.equal(await textOf(at), '\uFEFFA=1\r\nA=3\r\n__proto__=x\r\nconstructor=c')
  t.match((await change(at, { unset: ['A', '__proto__'] })).body.data, { removed: ['A', '__proto__'] })
  t.equal(await textOf(at), '\uFEFFconstructor=c')
})

t.test('a value that a shell would run is quoted; an empty stored JSON text is unreadable', async (t) => {
  const at = await makeLevel(owner, { slug: 'quoted' })
  await store(at, 'A=1\nB="2"\n')
  await change(at, { set: { A: '$(id) b', B: '$(id)' } })
  t.equal(await textOf(at), "A='$(id) b'\nB='$(id)'\n")
  const json = await makeLevel(owner, { slug: 'empty-json', secret_format: 'json' })
  for (const empty of ['', '\uFEFF']) {
    await store(json, empty, { unchecked: true })
    is(t, await change(json, { set: { A: '1' } }), 422, 'document_unreadable')
  }
})

t.test('a name or value with a NUL character is changed and removed where the format can hold it', async (t) => {
  for (const secret_format of ['json', 'yaml']) {
    const at = await makeLevel(owner, { slug: `nul-${secret_format}`, secret_format })
    await store(at, '{"a\\u0000": "1", "b": "2"}')
    const key = { 'idempotency-key': secret_format }
    const answer = await change(at, { set: { 'a\0': 'x\0', '\0': '3' } }, key)
    t.match(answer.body.data, { added: ['\0'], changed: ['a\0'] }, answer.text)
    t.equal((await change(at, { set: { 'a\0': 'x\0', '\0': '3' } }, key)).text, answer.text)
    t.equal(await textOf(at), '{"a\\u0000": "x\\u0000", "b": "2", "\\u0000": "3"}')
    t.match((await change(at, { unset: ['\0'] })).body.data, { removed: ['\0'] })
    t.match((await change(at, { 'a\0': null }, { 'content-type': MERGE })).body.data, { removed: ['a\0'] })
    t.strictSame(JSON.parse(String(await textOf(at))), { b: '2' })
  }
  const at = await makeLevel(owner, { slug: 'nul-env' })
  t.ok('set.a\0' in (await change(at, { set: { 'a\0': '1' } })).body.errors)
  t.ok('set.A' in (await change(at, { set: { A: 'x\0' } })).body.errors)
})

t.test('a merge patch is an object of strings and nulls: the error names what is wrong', async (t) => {
  const at = await makeLevel(owner, { slug: 'patches' })
  await store(at, 'A=1')
  for (const body of ['null', ' null ', '[]', '[{"A":"2"}]', '"A"', '1', 'true']) {
    const answer = await test.inject({
      method: 'PATCH',
      url: `/api/v1/${org}/${pathOf(at)}/secrets`,
      headers: { authorization: `Bearer ${owner.token}`, 'content-type': MERGE },
      payload: body
    })
    is(t, answer, 422, 'validation_failed')
    t.strictSame(answer.body.errors, { body: ['Expected object'] }, body)
  }
  for (const value of [1, true, {}, { B: '1' }, ['1']]) {
    const answer = await change(at, { OK: '1', A: value }, { 'content-type': MERGE })
    is(t, answer, 422, 'validation_failed')
    t.strictSame(answer.body.errors, { A: ['Expected string, or null'] }, JSON.stringify(value))
  }
  const long = await change(at, { A: 'x'.repeat(256 * 1024 + 1) }, { 'content-type': MERGE })
  t.match(long.body.errors, { A: [/less or equal to 262144/] })
  t.equal(await textOf(at), 'A=1')
})

t.test('concurrent changes of different names all take effect; a repeat with an Idempotency-Key does not', async (t) => {
  const at = await makeLevel(owner, { slug: 'together' })
  const answers = await Promise.all(Array.from({ length: 20 }, (_, i) => change(at, { set: { [`N${i}`]: `${i}` } })))
  t.ok(answers.every(({ status }) => status === 200))
  const names = String(await textOf(at)).trim().split('\n').sort()
  t.same(names, Array.from({ length: 20 }, (_, i) => `N${i}=${i}`).sort())
  const once = () => change(at, { set: { ONCE: '1' } }, { 'idempotency-key': 'one' })
  const [first, second] = [await once(), await once()]
  t.equal(second.headers['idempotent-replayed'], 'true')
  t.equal(second.text, first.text)
  t.equal(await versionsOf(at), 21)
})

t.test('what cannot be changed is 422 and names the name; both scopes are needed', async (t) => {
  const at = await makeLevel(owner, { slug: 'refusals' })
  await store(at, 'A=1')
  const bad = await change(at, { set: { 'A B': '1' } })
  is(t, bad, 422, 'validation_failed')
  t.ok('set.A B' in bad.body.errors)
  t.ok('set.A' in (await change(at, { set: { A: 1 } })).body.errors)
  t.ok('A' in (await change(at, { A: {} }, { 'content-type': MERGE })).body.errors)
  t.ok('unset.A' in (await change(at, { set: { A: '1' }, unset: ['A'] })).body.errors)
  await store(at, 'what', { unchecked: true })
  const unreadable = await change(at, { set: { A: '1' } })
  is(t, unreadable, 422, 'document_unreadable')
  t.same(unreadable.body.details, { level: 'environment', line: 1, column: 1 })
  const text = await makeLevel(owner, { slug: 'plain', secret_format: 'text' })
  is(t, await change(text, { set: { A: '1' } }), 422, 'invalid_parameter_combination')
  const client = await makeLevel(owner, { slug: 'client', ...(await clientKey('correct horse')).registration })
  is(t, await change(client, { set: { A: '1' } }), 422, 'client_managed_encryption')
  for (const scope of ['secret:write', 'secret:decrypt'] as const) {
    is(t, await change(at, { set: {} }, {}, await test.token(org, [scope])), 403, 'insufficient_permissions')
  }
})
