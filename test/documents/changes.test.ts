// runs: one database, embedded
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

t.test('S-1.3 a missing or empty body changes nothing, because all its fields are optional', async (t) => {
  const at = await makeLevel(owner, { slug: 'bodiless' })
  await store(at, 'A=1')
  const authorization = `Bearer ${owner.token}`
  for (const more of [{}, { payload: '' }, { payload: '{}' }, { payload: 'null' }, { payload: '{}', type: MERGE }]) {
    const { payload, type = 'application/json' } = more as { payload?: string, type?: string }
    const answer = await test.inject({
      method: 'PATCH',
      url: `/api/v1/${org}/${pathOf(at)}/secrets`,
      headers: { authorization, ...(payload !== undefined && { 'content-type': type }) },
      ...(payload !== undefined && { payload })
    })
    t.match(answer, { status: 200, body: { data: { version: null, unchanged: true } } }, JSON.stringify(more))
  }
  t.equal(await versionsOf(at), 1)
})

t.test('415 names the media types that the path accepts, in the message and in Accept-Patch', async (t) => {
  const at = await makeLevel(owner, { slug: 'media' })
  for (const type of ['text/plain', 'application/json-patch+json', 'application/json; charset=latin1']) {
    const { status, body, headers } = await change(at, '{}', { 'content-type': type })
    t.strictSame([status, body, headers['accept-patch']], [415, {
      error: 'unsupported_media_type',
      message: `Send JSON: Content-Type application/json or ${MERGE} in UTF-8, not compressed.`,
      details: { accepted: ['application/json', MERGE] }
    }, `application/json, ${MERGE}`], type)
  }
  const other = await owner.call('PATCH', `/${org}/media`, '{}', { 'content-type': MERGE })
  t.match(other, { status: 415, headers: { 'accept-patch': 'application/json' }, body: { details: { accepted: ['application/json'] } } })
  const post = await owner.call('POST', `/${org}/projects`, '{}', { 'content-type': 'text/plain' })
  t.match(post, { status: 415, body: { message: 'Send JSON: Content-Type application/json in UTF-8, not compressed.' } })
  t.equal(post.headers['accept-patch'], undefined)
})

t.test('a name has at most 512 characters where it is changed or traced; a longer one stays in its document', async (t) => {
  const at = await makeLevel(owner, { slug: 'long-names', secret_format: 'json' })
  const [longest, long] = ['é'.repeat(512), 'x'.repeat(513)]
  await store(at, JSON.stringify({ [longest]: '1', [long]: '2' }))
  for (const [body, more] of [
    [{ set: { A: '1', [long]: '1' } }, {}], [{ unset: [long] }, {}], [{ [long]: '1' }, { 'content-type': MERGE }],
    [{ [long]: null }, { 'content-type': MERGE }]
  ] as const) {
    const refused = await change(at, body, more)
    is(t, refused, 422, 'validation_failed')
    t.match(refused.body.message, /512/)
  }
  t.match((await change(at, { set: { [longest]: '3' } })).body.data, { changed: [longest] })
  const history = (name: string) =>
    owner.call('GET', `/${org}/${pathOf(at)}/secrets/names/history?name=${encodeURIComponent(name)}`)
  t.equal((await history(longest)).body.data.length, 2)
  is(t, await history(long), 422, 'validation_failed')
  t.strictSame(JSON.parse(String(await textOf(at))), { [longest]: '3', [long]: '2' })
})

t.test('names with escape sequences are the names that were sent, whatever another client sent before', async (t) => {
  const at = await makeLevel(owner, { slug: 'escaped', secret_format: 'json' })
  const names = ['\\\\', '\\"', '\\u00e9', '\\n']
  for (const type of ['application/json', MERGE]) {
    for (const name of names) {
      const members = `{"${name}":"${type} ${name}"}`
      const answer = await change(at, type === MERGE ? members : `{"set":${members}}`, { 'content-type': type })
      t.equal(answer.status, 200, answer.text)
    }
    const values = await owner.call('GET', `/${org}/${pathOf(at)}/secrets/values`)
    t.strictSame(Object.entries(values.body).sort(), ['\\', '"', 'é', '\n'].map((name) => [name, `${type} ${name}`]).sort())
  }
})

t.test('a change is bounded by its names and characters, and by limits of the format, which the error names', async (t) => {
  const at = await makeLevel(owner, { slug: 'bounded' })
  const many = Object.fromEntries(Array.from({ length: 1001 }, (_, i) => [`N${i}`, '1']))
  const tooMany = await change(at, { set: many })
  is(t, tooMany, 422, 'validation_failed')
  t.match(tooMany.body.errors, { set: [/1000/] })
  is(t, await change(at, { unset: Object.keys(many) }), 422, 'validation_failed')
  const half = 'x'.repeat(128 * 1024)
  const tooLong = await change(at, { set: { A: half, B: half } })
  is(t, tooLong, 422, 'validation_failed')
  t.match(tooLong.body.errors, { body: ['More than 262,144 characters in names and values: store the whole document'] })
  await store(at, 'L=1\n'.repeat(9_999))
  const refused = await change(at, { set: { A: '1', B: '2' } })
  is(t, refused, 422, 'validation_failed')
  t.strictSame(refused.body.errors, { body: ['The document would have more than 10,000 names'] })
  t.equal((await change(at, { set: { A: half } })).status, 200, 'one large value')
  const stored = await store(at, 'A=1\n'.repeat(10_001))
  is(t, stored, 422, 'document_unreadable')
  t.match(stored.body, {
    message: 'A document has more than 10,000 names, so its names cannot be read.',
    details: { line: 10_001, limit: '10,000 names' }
  })
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

t.test('a changed or removed .env value leaves nothing of the old one, and its comment stays', async (t) => {
  const at = await makeLevel(owner, { slug: 'left-over' })
  await store(at, "A=hunter#2secret\r\nexport B='x'#old # note\r\nC=x # note\r\nD=#old\r\nE=1#old\r\n")
  await change(at, { set: { A: 'new', B: "it's", C: 'a\nb', D: '' }, unset: ['E'] })
  t.equal(await textOf(at), 'A=new\r\nexport B="it\'s" # note\r\nC="a\\nb" # note\r\nD=\r\n')
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

t.test('a merge patch is an object, of strings and nulls in an env project: the error names what is wrong', async (t) => {
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
    t.strictSame(answer.body.errors, { A: ['A value of an `.env` document is a text'] }, JSON.stringify(value))
    const same = await change(at, { set: { OK: '1', A: value } })
    is(t, same, 422, 'validation_failed')
    t.strictSame(same.body.errors, { 'set.A': ['A value of an `.env` document is a text'] })
  }
  const long = await change(at, { A: 'x'.repeat(256 * 1024 + 1) }, { 'content-type': MERGE })
  t.match(long.body.errors, { body: [/More than 262,144 characters/] })
  t.equal(await textOf(at), 'A=1')
})

t.test('JSON and YAML projects keep types: set replaces by any JSON, a merge patch follows RFC 7396', async (t) => {
  const before = {
    json: '{"n": 1.10, "o": {"a": 1.0, "b": [true, null]},\t"s": "x"}',
    yaml: '# head\nn: 1.10\no: # c\n  a: 1.0 # kept\n  b: [true, null]\ns: x\n'
  }
  for (const secret_format of ['json', 'yaml'] as const) {
    const at = await makeLevel(owner, { slug: `typed-${secret_format}`, secret_format })
    const sent = (type: string, payload: string, headers = {}) => test.inject({
      method: 'PATCH',
      url: `/api/v1/${org}/${pathOf(at)}/secrets`,
      headers: { authorization: `Bearer ${owner.token}`, 'content-type': type, ...headers },
      payload
    })
    const json = (payload: string, headers = {}) => sent('application/json', payload, headers)
    const values = async () => (await owner.call('GET', `/${org}/${pathOf(at)}/secrets/values`)).body
    await store(at, before[secret_format])

    const merged = await sent(MERGE, '{"o": {"b": null, "c": {"d": 12345678901234567890, "e": null}}, "s": null, "t": [1.50, {"x": null}]}')
    t.match(merged.body.data, { unchanged: false, added: ['t'], changed: ['o'], removed: ['s'] })
    t.match(await textOf(at), secret_format === 'json' ? '{"n": 1.10, "o": {"a": 1.0' : /^# head\nn: 1\.10\no: # c\n {2}.*a: 1\.0 # kept\n/s)
    t.strictSame(await values(), secret_format === 'json'
      ? { n: '1.10', o: '{"a":1.0,"c":{"d":12345678901234567890}}', t: '[1.50,{"x":null}]' }
      : { n: '1.10', o: '{"c":{"d":12345678901234567890},"a":1.0}', t: '[1.50,{"x":null}]' })

    const replaced = await json('{"set": {"n": 1.1, "o": [1e3, 0.10], "t": true, "u": null, "w": {"k": {}}}}')
    t.match(replaced.body.data, { added: ['u', 'w'], changed: ['n', 'o', 't'] })
    t.strictSame(await values(), { n: '1.1', o: '[1e3,0.10]', t: 'true', u: '', w: '{"k":{}}' })
    t.match(await json('{"set": {"n": 1.1, "w": {"k": {}}}}'), { body: { data: { unchanged: true } } })
    t.match(await json('{"set": {"n": "1.1", "o": "[1e3,0.10]"}}'), { body: { data: { unchanged: true } } }, 'a text that reads the same')
    t.match(await sent(MERGE, '{"n": "1.1"}'), { body: { data: { changed: ['n'] } } }, 'the type is another one')
    t.match(await textOf(at), /"?n"?: ["']1\.1["']/)

    const refused = await json('{"set": {"ok": 1, "o": "text"}}')
    is(t, refused, 422, 'validation_failed')
    t.match(refused.body.errors, { 'set.o': [/The present value is an object or a list/] })
    t.notOk('ok' in await values(), 'nothing is changed')
    t.match(await json('{"set": {"o": "text"}, "replace": ["o"]}'), { body: { data: { changed: ['o'] } } })
    t.match((await json('{"set": {"o": "1"}, "replace": ["p"]}')).body.errors, { 'replace.p': ['Not in `set`'] })

    const deep = (levels: number) => `{"set": {"deep": ${'['.repeat(levels)}${']'.repeat(levels)}}}`
    t.equal((await json(deep(100))).status, 200)
    t.match((await json(deep(101))).body.errors, { body: ['A value has at most 100 nested levels'] })
    t.match((await json(deep(5000))).body.errors, { body: [/nested deeper than/] })

    const key = { 'idempotency-key': `digits-${secret_format}` }
    t.equal((await json('{"set": {"id": 12345678901234567890}}', key)).status, 200)
    is(t, await json('{"set": {"id": 12345678901234567891}}', key), 422, 'idempotency_key_reused')
    t.equal((await json('{ "set": {"id": 12345678901234567890} }', key)).headers['idempotent-replayed'], 'true')
    t.equal((await values()).id, '12345678901234567890')

    // The spelling of each value belongs to the request. The order of names does not belong to the request.
    const places = { 'idempotency-key': `places-${secret_format}` }
    t.equal((await json('{"set": {"x": 1.0, "y": 1, "z": {"b": 2.50, "c": [{"k": 1.0, "l": 1}]}}}', places)).status, 200)
    for (const other of [
      '{"set": {"x": 1, "y": 1.0, "z": {"b": 2.50, "c": [{"k": 1.0, "l": 1}]}}}',
      '{"set": {"y": 1.0, "x": 1, "z": {"b": 2.50, "c": [{"k": 1.0, "l": 1}]}}}',
      '{"set": {"x": 1.0, "y": 1, "z": {"b": 2.50, "c": [{"l": 1.0, "k": 1}]}}}'
    ]) is(t, await json(other, places), 422, 'idempotency_key_reused')
    const reordered = '{"set": {"z": {"c": [{"k": 1.0, "l": 1}], "b": 2.50}, "y": 1, "x": 1.0}}'
    t.equal((await json(reordered, places)).headers['idempotent-replayed'], 'true')

    // As a merge patch, the same body would set the name `set`.
    const types = { 'idempotency-key': `types-${secret_format}` }
    t.equal((await json('{"set": {"x": 3}}', types)).status, 200)
    is(t, await sent(MERGE, '{"set": {"x": 3}}', types), 422, 'idempotency_key_reused')
    t.equal((await sent('application/json; charset=utf-8', '{"set":{"x":3}}', types)).headers['idempotent-replayed'], 'true')
  }
})

t.test('PATCH is the only method that changes names: PUT and POST would look like a replacement', async (t) => {
  const at = await makeLevel(owner, { slug: 'methods' })
  const { project, target } = at
  for (const place of [{ project }, { project, target }, at]) {
    for (const method of ['PUT', 'POST', 'DELETE'] as const) {
      const answer = await owner.call(method, `/${org}/${pathOf(place)}/secrets`, { set: { A: '1' } })
      is(t, answer, 405, 'method_not_allowed')
      t.equal(answer.headers.allow, 'GET, HEAD, OPTIONS, PATCH')
    }
  }
  t.equal(await versionsOf(at), 0)
})

t.test('If-Match: * needs a document, and If-None-Match: * that there is none', async (t) => {
  const at = await makeLevel(owner, { slug: 'any' })
  is(t, await change(at, { set: { A: '1' } }, { 'if-match': '*' }), 412, 'precondition_failed')
  t.equal((await change(at, { set: { A: '1' } }, { 'if-none-match': '*' })).status, 200)
  is(t, await change(at, { set: { A: '2' } }, { 'if-none-match': '*' }), 412, 'precondition_failed')
  is(t, await change(at, {}, { 'if-match': '"other"' }), 412, 'precondition_failed')
  t.equal((await change(at, { set: { A: '2' } }, { 'if-match': '*' })).status, 200)
  t.equal(await textOf(at), 'A=2\n')
})

t.test('concurrent changes of different names all take effect; a repeat with an Idempotency-Key does not', async (t) => {
  for (const secret_format of ['json', 'yaml', 'env']) {
    const at = await makeLevel(owner, { slug: `all-${secret_format}`, secret_format })
    const answers = await Promise.all(Array.from({ length: 20 }, (_, i) => change(at, { set: { [`N${i}`]: `${i}` } })))
    t.ok(answers.every(({ status }) => status === 200))
    t.equal(new Set(answers.map(({ body }) => body.data.version)).size, 20, 'each has its own version')
    const values = await owner.call('GET', `/${org}/${pathOf(at)}/secrets/values`)
    t.strictSame(values.body, Object.fromEntries(Array.from({ length: 20 }, (_, i) => [`N${i}`, `${i}`])))
  }
  const at = await makeLevel(owner, { slug: 'together' })
  await store(at, 'A=1')
  const once = () => change(at, { set: { ONCE: '1' } }, { 'idempotency-key': 'one' })
  const [first, second] = [await once(), await once()]
  t.equal(second.headers['idempotent-replayed'], 'true')
  t.equal(second.text, first.text)
  t.equal(await versionsOf(at), 2)
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
  t.same(unreadable.body.details, { level: 'environment', line: 1, column: 1, reason: 'no_assignment' })
  const text = await makeLevel(owner, { slug: 'plain', secret_format: 'text' })
  const nameless = await change(text, { set: { A: '1' } })
  is(t, nameless, 422, 'invalid_parameter_combination')
  t.match(nameless.body.message, /project: A `text` project has no names: read and store whole documents\.$/)
  const client = await makeLevel(owner, { slug: 'client', ...(await clientKey('correct horse')).registration })
  is(t, await change(client, { set: { A: '1' } }), 422, 'client_managed_encryption')
  for (const scope of ['secret:write', 'secret:decrypt'] as const) {
    is(t, await change(at, { set: {} }, {}, await test.token(org, [scope])), 403, 'insufficient_permissions')
  }
})
