// runs: one database, embedded; 15 s
import t, { type Test } from 'tap'
import { sealBlob } from '../../src/crypto/blob.ts'
import { random } from '../../src/crypto/primitives.ts'
import { MAX_OPENED_VERSIONS } from '../../schemas/names.ts'
import { emptyEntries } from '../../src/rules/documents/entries.ts'
import { readClosely } from '../../src/rules/documents/read.ts'
import { DETAILS, earlier, makeLevel, startApp, type Answer, type Caller } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'

// The versions of a document that changed a certain name.

const test = await startApp(t)
const owner = await test.organization()
const org = owner.organization

interface Place { project: string, target?: string, environment?: string }

t.test('the history of a name lists versions that changed it, newest first, with time, author and action', async (t) => {
  const at = await makeLevel(owner, { slug: 'traced' })
  t.strictSame((await history(at, 'A')).body, { data: [], meta: { unreadable: 0, missing: 0, next: null } })
  const ids: string[] = []
  for (const plaintext of ['A=1', 'A=1\nB=1', 'A=2\nB=1', 'B=1', 'A=3\nB=1']) ids.push(await store(at, plaintext))
  await owner.call('POST', `/${org}/secrets/delete`, at)
  t.equal((await owner.call('POST', `/${org}/secrets/versions/${ids[0]!}/restore`, {})).status, 200)
  await store(at, 'A=1\nC=1')
  const versions = (await owner.call('POST', `/${org}/secrets/versions`, at)).body.data
  t.strictSame(await changes(at, 'A'), [
    'restore added 1', 'delete removed null', 'update added 3', 'update removed null', 'update changed 2', 'create added 1'
  ])
  t.strictSame(await changes(at, 'B'), ['delete removed null', 'update added 1'])
  t.strictSame(await changes(at, 'NONE'), [])

  const { status, body, text, headers } = await history(at, 'A')
  t.equal(status, 200)
  t.equal(headers['cache-control'], 'no-store')
  t.notMatch(text, '"value"')
  t.strictSame(body.meta, { unreadable: 0, missing: 0, next: null })
  for (const { type, id, attributes: { change: _, ...attributes } } of body.data) {
    t.equal(type, 'secret-name-changes')
    const version = versions.find((version: any) => version.id === id).attributes
    const { action, created_at, created_by, created_through } = version
    t.strictSame(attributes, { action, created_at, created_by, created_through }, 'as in the list of versions')
  }
  t.equal((await owner.call('HEAD', `/${org}/traced/backend/live/secrets/names/history?name=A`)).status, 200)
})

t.test('the history is that of the own document of a project, a target or an environment', async (t) => {
  const at = await makeLevel(owner, { slug: 'levels' })
  const { project, target } = at
  await store({ project }, 'A=project')
  await store({ project, target }, 'A=target')
  await store(at, 'B=1')
  t.strictSame(await changes({ project }, 'A'), ['create added project'])
  t.strictSame(await changes({ project, target }, 'A'), ['create added target'])
  t.strictSame(await changes(at, 'A'), [])
  for (const place of [{ project, target: 'none' }, { project: 'none' }, { ...at, environment: 'none' }]) {
    refused(t, await history(place, 'A'), 404, 'not_found')
  }
})

t.test('a name can have any character, and can be empty', async (t) => {
  const odd = ['', ' ', 'a b', 'ä€😀', '__proto__', 'toString', 'a=b&c', '%41', 'x/y?z#', '"', '\\', '\n', '\0', '+', 'null']
  for (const format of ['json', 'yaml']) {
    const at = await makeLevel(owner, { slug: `odd-${format}`, secret_format: format })
    for (const value of ['1', '2']) {
      const members = odd.map((name) => `${JSON.stringify(name)}: ${JSON.stringify(value)}`)
      // JSON is also valid YAML.
      await store(at, `{${members.join(', ')}}`)
    }
    for (const name of odd) {
      t.strictSame(await changes(at, name), ['update changed 2', 'create added 1'], `${format} ${JSON.stringify(name)}`)
    }
    t.strictSame(await changes(at, 'A'), [])
    t.strictSame(await changes(at, 'valueOf'), [])
  }
  const at = { project: 'odd-json', target: 'backend', environment: 'live' }
  const path = '/odd-json/backend/live/secrets/names/history'
  for (const query of [
    '', '?', '?values=true', '?name=a&name=b', `?name=${'x'.repeat(4097)}`, '?name=A&values=x', '?name=A&after=0', '?name=A&after=x',
    '?name=A&after=01', `?name=A&after=${'9'.repeat(17)}`
  ]) refused(t, await owner.call('GET', `/${org}${path}${query}`), 422, 'validation_failed')
  t.strictSame((await history(at, 'A', `&after=${'9'.repeat(16)}`)).status, 200)
  t.strictSame((await history(at, 'A', '&after=abc')).body.errors, {
    after: ['must be `meta.next` of the previous response, such as 42']
  })
})

t.test('values are those after the change: spelled as in every other read', async (t) => {
  const at = await makeLevel(owner, { slug: 'spelled', secret_format: 'yaml' })
  for (const value of ['007', '7', '"7"', 'null', '~', 'True', '[1, 2]', '"a\\nb"', '*x']) {
    await store(at, `X: &x anchor\nA: ${value}\n`)
  }
  t.strictSame(await changes(at, 'A'), [
    'update changed anchor', 'update changed a\nb', 'update changed [1,2]', 'update changed true', 'update changed ',
    'update changed 7', 'create added 007'
  ])
  const json = await makeLevel(owner, { slug: 'spelled-json', secret_format: 'json' })
  for (const value of ['1.50', '1.5', '"1.5"', 'null', '""', '{"a":[1]}', '"\\u0041"', '"A","A":"B"']) {
    await store(json, `{"A":${value}}`)
  }
  t.strictSame(await changes(json, 'A'), [
    'update changed B', 'update changed A', 'update changed {"a":[1]}', 'update changed ', 'update changed 1.5', 'create added 1.50'
  ])
})

t.test('a name that is set to the JSON of its history has the value again, with its type and digits', async (t) => {
  const values = [
    '5432', '"5432"', 'true', '"true"', 'null', '""', '1.50', '1E+400', '12345678901234567890', '-0', '"\\u0000\\n é"',
    '{"a":[1.0,{"b":null}],"A":"1"}', '[]', '"[]"'
  ]
  for (const [format, document, more] of [
    ['json', (value: string) => `{"X": 1, "A": ${value}, "B": 2}`, ['{"a":1,"a":2.0}', '1,"A":3']],
    ['yaml', (value: string) => `X: &x {a: 1}\nA: ${value}\nB: 2\n`, [
      'text', 'True', '~', '', '2026-01-01', '7 # c', '[1.10, x]', '*x', '|\n  a\n  b', '\n  b: 1.0\n  c: ["2"]'
    ]]
  ] as const) {
    const at = await makeLevel(owner, { slug: `typed-${format}`, secret_format: format })
    const path = `/${org}/typed-${format}/backend/live/secrets`
    const valueIn = async () => {
      const { content } = (await owner.call('GET', `${path}?decrypt=true`)).body.data.attributes.levels.environment
      const typed = emptyEntries()
      t.ok(readClosely(format, content, { typed }), content)
      return typed['A']
    }
    for (const [i, value] of [...values, ...more].entries()) {
      // Versions with values that read the same would not be changes.
      await store(at, document(`"before ${i}"`))
      const version = await store(at, document(value))
      const before = await valueIn()
      const { attributes } = (await history(at, 'A', `&values=true&after=${Number(version) + 1}`)).body.data[0]
      for (const other of ['another', attributes.value]) {
        await ok(owner.call('PATCH', path, { set: { A: other }, replace: ['A'] }))
        const body = `{"set": {"A": ${attributes.json}}, "replace": ["A"]}`
        await ok(owner.call('PATCH', path, body, { 'content-type': 'application/json' }))
        t.equal(await valueIn(), before, `${format} ${value}`)
      }
    }
  }
  const env = await makeLevel(owner, { slug: 'typed-env' })
  for (const plaintext of ['A=5432', 'A="it\'s\\n1"', 'A=', 'B=1']) await store(env, plaintext)
  t.strictSame(await jsonOf(env), [null, '""', '"it\'s\\n1"', '"5432"'])
  const yaml = { project: 'typed-yaml', target: 'backend', environment: 'live' }
  for (const value of ['0x1F', '012', '.5', '+1', '-.inf', '[0x1F]', '{a: 1., b: x}', '012 ', 'x']) await store(yaml, `A: ${value}`)
  t.strictSame((await jsonOf(yaml)).slice(0, 8), ['"x"', null, null, null, null, null, null, null], 'JSON does not spell these numbers')
  t.notMatch((await history(yaml, 'A')).text, '"json"')
})

t.test('unreadable, deleted and unrecorded versions are skipped and counted; a newer one has the change', async (t) => {
  const at = await makeLevel(owner, { slug: 'gaps' })
  await store(at, 'A=1')
  await store(at, '{', { unchecked: true })
  await store(at, 'A=1')
  const gone = await store(at, 'A=2')
  await store(at, 'A=3')
  await store(at, 'A=4', { no_backup: true })
  await store(at, 'A=5')
  t.equal((await owner.call('DELETE', `/${org}/secrets/versions/${gone}`)).status, 204)
  t.strictSame(await changes(at, 'A'), ['update changed 5', 'update changed 3', 'create added 1'])
  t.strictSame((await history(at, 'A')).body.meta, { unreadable: 1, missing: 2, next: null })
  await store(at, 'A=6', { no_backup: true })
  t.strictSame((await history(at, 'A')).body.meta, { unreadable: 1, missing: 3, next: null })

  // The oldest remaining version is not a `create`, so its change is unknown.
  for (const { id } of (await owner.call('POST', `/${org}/secrets/versions`, at)).body.data.slice(2)) {
    await owner.call('DELETE', `/${org}/secrets/versions/${id}`)
  }
  t.strictSame(await changes(at, 'A'), ['update changed 5'])

  const { body: { data: { purged_count } } } = await owner.call(
    'POST', `/${org}/secrets/versions/purge`, { ...at, confirmed: true })
  t.equal(purged_count, 2)
  const lost = (await history(at, 'A')).body
  t.strictSame(lost.data, [])
  t.equal(lost.meta.missing, 8, 'all writes')
})

t.test('an unreadable creation or deletion separates two documents, as a readable one does', async (t) => {
  const at = await makeLevel(owner, { slug: 'borders' })
  await store(at, 'A=1')
  await store(at, '{', { unchecked: true })
  await ok(owner.call('POST', `/${org}/secrets/delete`, at))
  await store(at, '{', { unchecked: true })
  await store(at, 'A=1')
  t.strictSame(await changes(at, 'A'), ['update added 1', 'create added 1'])
})

t.test('versions under a client’s key are skipped and counted; those under former server keys are read', async (t) => {
  const first = await clientKey('correct horse battery staple')
  const second = await clientKey('another key string of a client')
  const at = await makeLevel(owner, { slug: 'handed', ...first.registration })
  const { secret_id } = (await owner.call(
    'POST', `/${org}/secrets/store`, { ...at, content: sealBlob(first.dataKey, 'A=1'), key_proof: first.proof }
  )).body.data
  const { storage_mode: _, ...next } = second.registration
  const secrets = [{ id: secret_id, content: sealBlob(second.dataKey, 'A=1') }]
  await ok(owner.call('POST', `/${org}/handed/secrets/rotate-client-keys`, { secrets, ...next }))
  // The service cannot check content that a client has encrypted.
  for (const content of [random(60).toString('base64'), secrets[0]!.content]) {
    await ok(owner.call('POST', `/${org}/secrets/store`, { ...at, content, key_proof: second.proof }))
  }
  refused(t, await history(at, 'A'), 422, 'client_managed_encryption')
  await ok(owner.call('PATCH', `/${org}/handed`, { storage_mode: 'server', encryption_key: 'another key string of a client' }))
  await store(at, 'A=2')
  await ok(owner.call('POST', `/${org}/handed/encryption-key/rotate`, {}))
  await store(at, 'A=3')
  t.strictSame(await changes(at, 'A'), ['update changed 3', 'update changed 2', 'rotate added 1'])
  t.match((await history(at, 'A')).body.meta, { unreadable: 2, missing: 0 })

  await store(await makeLevel(owner, { slug: 'of-text', secret_format: 'text' }), 'anything')
  refused(t, await history({ project: 'of-text', target: 'backend', environment: 'live' }, 'A'), 422, 'invalid_parameter_combination')
})

t.test('versions outside the retention are neither listed nor compared', async (t) => {
  const caller = await test.organization({ plan: 'free' })
  const at = await makeLevel(caller)
  const ids: string[] = []
  for (const value of [1, 2, 3, 4]) ids.push(await store(at, `A=${value}`, {}, caller))
  for (const [index, age] of ['7 days 2 minutes', '7 days 1 minute', '6 days 23 hours 50 minutes'].entries()) {
    await test.sql(`UPDATE secret_versions SET ${earlier('created_at', age)}
      WHERE organization_id = '${caller.organization}' AND id = ${ids[index]}`)
  }
  t.strictSame(await changes(at, 'A', '', caller), ['update changed 4'])
  t.strictSame((await history(at, 'A', '', caller)).body.meta, { unreadable: 0, missing: 0, next: null })
})

t.test('the history needs secret:read, secret:decrypt and secret:history, at a level that the token may read', async (t) => {
  const at = await makeLevel(owner, { slug: 'scopes' })
  await store(at, 'A=1')
  const scopes = ['secret:read', 'secret:decrypt', 'secret:history'] as const
  for (const missing of scopes) {
    const answer = await history(at, 'A', '', await test.token(org, scopes.filter((scope) => scope !== missing)))
    refused(t, answer, 403, 'insufficient_permissions')
    t.equal(answer.body.details.required_scope, missing)
  }
  t.equal((await history(at, 'A', '&values=true', await test.token(org, [...scopes]))).status, 200)
  const [place] = await test.sql(`SELECT e.project_id, e.target_id, e.id AS environment_id FROM environments e
    JOIN projects p ON p.organization_id = e.organization_id AND p.id = e.project_id
    WHERE p.organization_id = '${org}' AND p.slug = 'scopes'`)
  const narrow = await test.token(org, [...scopes], { slices: [place as any] })
  t.equal((await history(at, 'A', '', narrow)).status, 200)
  for (const outside of [{ project: 'scopes' }, { project: 'scopes', target: 'backend' }, { ...at, project: 'traced' }]) {
    refused(t, await history(outside, 'A', '', narrow), 404, 'not_found')
  }
})

t.test('each request is recorded once, with its versions: as a listing of names, or with values as a read', async (t) => {
  const at = await makeLevel(owner, { slug: 'recorded' })
  const ids = [await store(at, 'A=1'), await store(at, 'A=2')].map(Number)
  const events = () => test.sql(`SELECT action, resource_type, ${DETAILS} FROM audit_events
    WHERE organization_id = '${org}' AND action IN ('secret.names', 'secret.decrypt') ORDER BY seq`)
  const before = await events()
  await history(at, 'A')
  await history(at, 'A', '&values=true')
  await history(at, 'A', `&after=${ids[1]!}`)
  refused(t, await history({ ...at, environment: 'none' }, 'A'), 404, 'not_found')
  const [secret] = await test.sql(`SELECT s.id FROM secrets s JOIN projects p
    ON p.organization_id = s.organization_id AND p.id = s.project_id
    WHERE p.organization_id = '${org}' AND p.slug = 'recorded'`)
  const details = { secrets: secret!.id, versions: 2, first: ids[0], last: ids[1] }
  t.strictSame((await events()).slice(before.length), [
    { action: 'secret.names', resource_type: 'environment', details },
    { action: 'secret.decrypt', resource_type: 'environment', details },
    { action: 'secret.names', resource_type: 'environment', details: { ...details, versions: 1, last: ids[0] } }
  ])
})

t.test('a request opens at most 500 versions; at the border of two requests no change is lost or repeated', async (t) => {
  const at = await makeLevel(owner, { slug: 'long' })
  const count = 2 * MAX_OPENED_VERSIONS + 10
  const first = Number(await store(at, 'A=0'))
  // The value differs in each version.
  const ids = [first]
  for (let i = 1; i < count; i += 50) {
    const length = Math.min(50, count - i)
    ids.push(...await Promise.all(Array.from({ length }, async (_, j) => Number(await store(at, `A=${i + j}`)))))
  }
  const listed: number[] = []
  const values = new Set<string>()
  const sizes: number[] = []
  for (let after = ''; ;) {
    const { status, body, text } = await history(at, 'A', `&values=true${after}`)
    t.equal(status, 200, text)
    listed.push(...body.data.map(({ id }: any) => Number(id)))
    for (const { attributes } of body.data) values.add(attributes.value)
    sizes.push(body.data.length)
    if (body.meta.next === null) break
    after = `&after=${body.meta.next}`
  }
  t.strictSame(listed, ids.sort((a, b) => b - a))
  t.equal(values.size, count)
  t.strictSame(sizes, [499, 499, 12])
  const events = await test.sql(`SELECT ${DETAILS} FROM audit_events WHERE organization_id = '${org}'
    AND action = 'secret.decrypt' ORDER BY seq DESC LIMIT 3`)
  t.strictSame(events.map(({ details }: any) => details.versions), [12, 500, 500])
  t.match(events[0], { details: { first } })
})

t.test('a request opens fewer versions if their documents are large, and continues over unreadable ones', async (t) => {
  const at = await makeLevel(owner, { slug: 'wide' })
  const large = (value: string) => `A=${value}\nB=${value}${'x'.repeat(700 * 1024)}\n`
  for (let i = 0; i < 15; i++) await store(at, large(String(i)))
  const first = await history(at, 'A', '&values=true')
  t.ok(first.body.data.length >= 6 && first.body.data.length < 10, String(first.body.data.length))
  const second = await history(at, 'A', `&values=true&after=${first.body.meta.next}`)
  const values = [...first.body.data, ...second.body.data].map(({ attributes: { value } }: any) => value)
  t.strictSame(values, Array.from({ length: 15 }, (_, i) => String(14 - i)))
  t.equal(second.body.meta.next, null)
  const long = await history(at, 'B', '&values=true')
  t.equal(long.text, JSON.stringify(long.body), 'also in a large response')

  const broken = await makeLevel(owner, { slug: 'broken' })
  await store(broken, 'A=1')
  for (let i = 0; i < 4; i++) await store(broken, `{${'x'.repeat(1000 * 1024)}`, { unchecked: true })
  await store(broken, 'A=2')
  for (let i = 0; i < 12; i++) await store(broken, `{${'x'.repeat(1000 * 1024)}`, { unchecked: true })
  await store(broken, 'A=3')
  const all: string[] = []
  let unreadable = 0
  for (let after = '', requests = 1; ; requests++) {
    t.ok(requests < 5)
    const { body } = await history(broken, 'A', after)
    all.push(...body.data.map(({ attributes: { change } }: any) => change))
    unreadable += body.meta.unreadable
    if (body.meta.next === null) break
    after = `&after=${body.meta.next}`
  }
  t.strictSame(all, ['changed', 'added'], 'a request did not find a version to compare the newest one with')
  t.equal(unreadable, 16, 'each is counted once')
})

function history (place: Place, name: string, query = '', caller: Caller = owner) {
  const path = [place.project, place.target, place.environment].filter((slug) => slug !== undefined).join('/')
  return caller.call(
    'GET', `/${caller.organization}/${path}/secrets/names/history?name=${encodeURIComponent(name)}${query}`
  )
}

async function changes (place: Place, name: string, query = '', caller: Caller = owner): Promise<string[]> {
  const { body, text } = await history(place, name, `&values=true${query}`, caller)
  if (body.data === undefined) throw new Error(text)
  return body.data.map(({ attributes: { action, change, value } }: any) => `${action} ${change} ${value}`)
}

const jsonOf = async (place: Place): Promise<(string | null)[]> =>
  (await history(place, 'A', '&values=true')).body.data.map(({ attributes: { json } }: any) => json)

async function store (place: Place, plaintext: string, more: object = {}, caller: Caller = owner): Promise<string> {
  return (await ok(caller.call('POST', `/${caller.organization}/secrets/store`, { ...place, plaintext, ...more }))).body.data.version
}

async function ok (answer: Promise<Answer>): Promise<Answer> {
  const { status, text } = await answer
  if (status >= 300) throw new Error(text)
  return answer
}

function refused (t: Test, answer: Answer, status: number, code: string) {
  t.equal(answer.status, status, `${code}: ${answer.text}`)
  t.equal(answer.body?.error, code)
}
