// runs: one database, embedded
import t from 'tap'
import { deriveKey, makeEtag } from '../../src/crypto/primitives.ts'
import { storageKeyOf } from '../../src/vault/keys/keys.ts'
import { makeLevel, startApp } from '../helpers/app.ts'

const test = await startApp(t)
const owner = await test.organization()
const org = owner.organization

type At = Awaited<ReturnType<typeof makeLevel>>
const path = ({ project, target, environment }: At) => `/${org}/${project}/${target}/${environment}/secrets`
const store = (at: At, plaintext: string, more: object = {}, query = '') =>
  owner.call('POST', `/${org}/secrets/store${query}`, { ...at, plaintext, ...more })
const change = (at: At, body: object, query = '') => owner.call('PATCH', path(at) + query, body)
const get = (at: At, rest: string, headers: Record<string, string> = {}) =>
  owner.call('GET', path(at) + rest, undefined, headers)

t.test('a store and its dry run warn of lines that other programs read differently, without a value', async (t) => {
  const at = await makeLevel(owner, { slug: 'warned' })
  const text = '\uFEFF# 😀\r\nA=hunter#2\r\nB="x\\ty" # c\r\nC=\'a\\\'b\'\r\nD="😀 $HOME"\r\nE=`e`\r\nF=1\r\nF=2\r\nG=#\r\nOK="a\\nb"\r\n'
  const expected = [
    { line: 2, column: 9, name: 'A', reason: 'comment_without_blank' },
    { line: 3, column: 5, name: 'B', reason: 'escape_in_double_quotes' },
    { line: 4, column: 5, name: 'C', reason: 'quote_in_single_quotes' },
    { line: 5, column: 6, name: 'D', reason: 'expansion' },
    { line: 6, column: 3, name: 'E', reason: 'backticks' },
    { line: 8, column: 1, name: 'F', reason: 'duplicate_name' },
    { line: 9, column: 3, name: 'G', reason: 'comment_without_blank' }
  ]
  for (const query of ['?dry_run=true', '']) {
    const { status, body } = await store(at, text, {}, query)
    t.equal(status, 200)
    t.strictSame(body.warnings, expected)
    t.notOk('warning' in body || 'warnings_more' in body)
  }
  t.notOk('warnings' in (await store(at, 'A=1\nB="two words"\nC=\'$x\'\nD="a\\nb"\nE=x # c\n')).body)

  const many = await store(at, Array.from({ length: 30 }, (_, i) => `N${i}=$X\n`).join(''))
  t.equal(many.body.warnings.length, 20)
  t.equal(many.body.warnings_more, 10)
  const json = await makeLevel(owner, { slug: 'warned-json', secret_format: 'json' })
  t.notOk('warnings' in (await store(json, '{"A": "$HOME `x`", "A": 1}')).body)
})

t.test('a value is empty before a comment, and a shell runs what is in backticks: both are warned of', async (t) => {
  const at = await makeLevel(owner, { slug: 'warned-more' })
  const { body } = await store(at, 'A= # c\nexport B = \t#c\nC=x`y`\nD="it\'s `y`"\nE=\'`y`\'\nF=\nG="" # c\nH=x # c\nI=\n# c\n')
  t.strictSame(body.warnings, [
    { line: 1, column: 3, name: 'A', reason: 'empty_before_comment' },
    { line: 2, column: 11, name: 'B', reason: 'empty_before_comment' },
    { line: 3, column: 4, name: 'C', reason: 'backticks' },
    { line: 4, column: 9, name: 'D', reason: 'backticks' }
  ])
  const changed = await change(at, { set: { A: "it's `y`", F: '`y`' } })
  t.strictSame(changed.body.warnings, [{ line: 1, column: 9, name: 'A', reason: 'backticks' }])
})

t.test('numbers and special parameters of shells are expansions, and a separator on the next line is refused', async (t) => {
  const at = await makeLevel(owner, { slug: 'warned-shells' })
  const { body } = await store(at, 'A="pa$1w"\nB=pa$?\nC="a$!"\nD=a$\nE="$."\nF=\'$1\'\n')
  t.strictSame(body.warnings, ['A', 'B', 'C'].map((name, i) =>
    ({ line: i + 1, column: [6, 5, 5][i], name, reason: 'expansion' })))
  t.strictSame((await change(at, { set: { F: "it's $1" } })).body.warnings,
    [{ line: 6, column: 9, name: 'F', reason: 'expansion' }])
  const refused = await store(at, 'A\n=x\n')
  t.match(refused, { status: 422, body: { error: 'document_unreadable', details: { reason: 'value_on_next_line', line: 2 } } })
  t.equal((await store(at, 'A\n=x\n', { unchecked: true })).status, 200)
})

t.test('a change of names and its dry run warn of the names they set, and of values that few readers read', async (t) => {
  const at = await makeLevel(owner, { slug: 'warned-names' })
  await store(at, 'A=$X\nB=1#\nC=1\nC=2\n')
  for (const query of ['?dry_run=true', '']) {
    const { body } = await change(at, { set: { C: '3', D: '{"k": "it\'s"}', E: '"it\'s"', F: "it's $X" } }, query)
    t.strictSame(body.warnings, [
      { line: 4, column: 1, name: 'C', reason: 'duplicate_name' },
      { line: 5, column: 3, name: 'D', reason: 'unquoted' },
      { line: 6, column: 3, name: 'E', reason: 'backticks' },
      { line: 7, column: 9, name: 'F', reason: 'expansion' }
    ])
  }
  t.notOk('warnings' in (await change(at, { set: { OK: 'a b' }, unset: ['C'] })).body)
  t.strictSame((await change(at, { set: { A: '$X' } })).body.warnings, [{ line: 1, column: 3, name: 'A', reason: 'expansion' }])
})

t.test('a change warns as a store of the changed document does, also with several byte order marks', async (t) => {
  const at = await makeLevel(owner, { slug: 'warned-marks' })
  const set = { B: "it's $X", C: 'x' }
  for (const text of ['B=1\n', '\ufeffB=1\n', '\ufeff\ufeffB=1\n', '\ufeff\ufeffA=1\nB=1\n', '\ufeffA=1\n\ufeffB=1\n', '\ufeff\ufeff\ufeff\n']) {
    await store(at, text)
    const { body: { warnings } } = await change(at, { set, unset: ['A'] })
    const { body } = await owner.call('GET', `/${org}/warned-marks/backend/live/secrets?decrypt=true`)
    const { content } = body.data.attributes.levels.environment
    t.match(warnings, [{ name: 'B', reason: 'expansion' }], JSON.stringify(text))
    t.strictSame(warnings, (await store(at, content)).body.warnings, JSON.stringify(content))
  }
})

t.test('text that other readers read differently is refused at a store as a whole, and nowhere else', async (t) => {
  const refused: Record<string, readonly [reason: string, line: number, name?: null]> = {
    'A="x" B="y"\n': ['text_after_quote', 1],
    'OK=1\nA="a"b\n': ['text_after_quote', 2],
    "A='it'\\''s'\n": ['text_after_quote', 1],
    'A=\n"x"\n': ['value_on_next_line', 2],
    'A:\n  b\n': ['value_on_next_line', 2],
    'A: x\r\r\nB: y\r\r\n': ['carriage_return', 1, null],
    'A: x # c\rB: 2\n': ['carriage_return', 1, null],
    'A: 1\r\nC: "x\ry"\r\n': ['carriage_return', 2, null],
    'A: 1\nB: 2\r\r\n': ['carriage_return', 2, null],
    'A: 1\nP:\n  K: |\n  \t\n': ['tab', 4, null],
    'A: 1\n? B\n- x\n': ['syntax', 3, null],
    'A: 1\nB: "x\\"': ['quote_not_closed', 2, null]
  }
  for (const [i, [text, [reason, line, name = 'A']]] of Object.entries(refused).entries()) {
    const at = await makeLevel(owner, { slug: `refused-${i}`, secret_format: name === null ? 'yaml' : 'env' })
    for (const query of ['?dry_run=true', '']) {
      const { status, body } = await store(at, text, {}, query)
      t.equal(status, 422, text)
      t.match(body, { error: 'document_unreadable', details: { level: 'environment', line, reason } })
      t.notOk(/B=|"a"b|'it'\\/.test(body.message), body.message)
    }
    const stored = await store(at, text, { unchecked: true })
    t.match(stored.body, { warnings: [{ name, reason }] })
    t.notOk('warning' in stored.body, 'it parses')
    const { version } = stored.body.data
    // Such a document can exist from an earlier release, or by another kind of store. All requests must still work.
    for (const rest of ['/values', '/names', '?decrypt=true&merge=true', '?decrypt=true&raw=true', '/names/history?name=A',
      `?decrypt=true&at=${encodeURIComponent(new Date(Date.now() - 1).toISOString())}`]) {
      t.equal((await get(at, rest)).status, 200, rest)
    }
    t.equal((await change(at, { set: { Z: '1' } })).status, 200)
    t.equal((await get(at, `/diff?from=${version}&to=${Number(version) + 1}`)).status, 200)
    const restored = await owner.call('POST', `/${org}/secrets/versions/${version}/restore`, {})
    t.equal(restored.status, 200)
    t.notOk('warnings' in restored.body)
    const { body: { data: { attributes } } } = await get(at, '')
    const { content } = attributes.levels.environment
    t.match(await owner.call('POST', `/${org}/secrets/store`, { ...at, content }), { status: 200, body: { warnings: [{ reason }] } })
  }
  const fine = await makeLevel(owner, { slug: 'fine' })
  for (const text of ['A="a" # b\n', 'A="a"  \nB=\n\nC=c\n', "A='a\nb'\n", 'A=\nB=c\n', 'A= # c\nB="c"\n']) {
    t.equal((await store(fine, text)).status, 200, text)
  }
  const yaml = await makeLevel(owner, { slug: 'fine-yaml', secret_format: 'yaml' })
  for (const text of ['A: 1\r\nB: "x\\ry"\r\n', '\ufeff# c\r\nA: |\r\n  x\r\n\r\n', '\r\n\r\n']) {
    t.strictSame((await store(yaml, text)).body.warnings, undefined, JSON.stringify(text))
  }
})

t.test('a document that does not parse is one of the warnings of a store and of a restore', async (t) => {
  const at = await makeLevel(owner, { slug: 'unreadable' })
  const unreadable = [{ line: 2, column: 1, name: null, reason: 'unreadable' }]
  const stored = await store(at, 'A=1\nnothing $X\n', { unchecked: true })
  t.match(stored.body.warning, /^The document does not parse as env at line 2, column 1\./)
  t.strictSame(stored.body.warnings, unreadable)
  await store(at, 'A=1\n')
  for (const query of ['?dry_run=true', '']) {
    const restored = await owner.call('POST', `/${org}/secrets/versions/${stored.body.data.version}/restore${query}`, {})
    t.match(restored.body.warning, /does not parse as env/)
    t.strictSame(restored.body.warnings, unreadable)
  }
})

t.test('an error says why a document does not parse, at a store and at a read, and quotes no line', async (t) => {
  const cases = [
    ['env', 'A=1\nB="hunter\n', 'quote_not_closed', 'Line 2: the quote is not closed.'],
    ['env', 'hunter\n', 'no_assignment', /^Line 1: /],
    ['json', '{"A": "hunter\n"}', 'quote_not_closed', 'Line 1: the quote is not closed.'],
    ['json', '["hunter"]', 'not_a_mapping', /^Line 1: /],
    ['yaml', 'A: 1\nB: 2\nC: 3\nD:\n  <<: hunter\n', 'merge_key', 'Line 5: YAML merge keys (<<) are not supported.'],
    ['yaml', 'A: 1\n\nA: hunter\n', 'duplicate_name', 'Line 3: the name "A" occurs twice.'],
    ['yaml', '{hunter: 1, hunter: 2}', 'duplicate_name', 'Line 1: a name occurs twice.'],
    ['yaml', 'A: !hunter 1\n', 'tag', /^Line 1: /],
    ['yaml', 'A: 1\n---\nhunter: 2\n', 'several_documents', /^Line 2: /],
    ['yaml', 'A:\n\tB: hunter\n', 'tab', /^Line 2: /],
    ['yaml', 'A: *hunter\n', 'unknown_alias', /^Line 1: /],
    ['yaml', 'A: {hunter', 'syntax', /^Line 1: /]
  ] as const
  for (const [i, [secret_format, text, reason, message]] of cases.entries()) {
    const at = await makeLevel(owner, { slug: `why-${i}`, secret_format })
    const answers = [await store(at, text)]
    await store(at, text, { unchecked: true })
    answers.push(await change(at, { set: { Z: '1' } }))
    for (const rest of ['/values', '/names', '?decrypt=true&merge=true', '/diff?from=project&to=environment']) answers.push(await get(at, rest))
    for (const { status, body } of answers) {
      t.equal(status, 422, text)
      t.match(body, { error: 'document_unreadable', details: { level: 'environment', reason } })
      t.match(body.message, message)
      t.notOk(JSON.stringify(body).includes('hunter'), JSON.stringify(body))
    }
  }
})

t.test('numbers in YAML lists and mappings keep their digits, so documents that differ in one are different', async (t) => {
  const at = await makeLevel(owner, { slug: 'digits', secret_format: 'yaml' })
  const text = (last: string) => `ids: [0x2000000000000${last}, 1.10, 0x1F]\nkeys:\n  one: 0x${'ab'.repeat(31)}0${last}\n`
  const first = await store(at, text('1'))
  t.strictSame((await get(at, '/values')).body, {
    ids: '["0x20000000000001",1.10,31]', keys: `{"one":"0x${'ab'.repeat(31)}01"}`
  })
  t.strictSame((await store(at, text('3'), {}, '?dry_run=true')).body.dry_run.levels[0].names.changed, ['ids', 'keys'])
  const second = await store(at, text('3'))
  const diff = await get(at, `/diff?from=${first.body.data.version}&to=${second.body.data.version}`)
  t.strictSame(diff.body.data.attributes.changed, ['ids', 'keys'])
  t.equal((await get(at, '/names/history?name=ids')).body.data.length, 2)
})

t.test('values for Docker are lines without quotes, or the names that such lines cannot hold', async (t) => {
  const at = await makeLevel(owner, { slug: 'docker', secret_format: 'json' })
  await store(at, JSON.stringify({ A: 'it\'s "x" $Y', 'b-c.d': ' ', E: '' }))
  const lines = await get(at, '/values?format=docker', { accept: 'application/json' })
  t.equal(lines.text, 'A=it\'s "x" $Y\nb-c.d= \nE=\n')
  t.equal(lines.headers['content-type'], 'text/plain; charset=utf-8')
  const { etag } = lines.headers
  t.equal((await get(at, '/values?format=docker', { 'if-none-match': String(etag) })).status, 304)
  t.equal((await get(at, '/values', { 'if-none-match': String(etag), accept: 'text/plain' })).status, 422, 'another representation')
  t.match(await get(at, '/values?format=podman'), { status: 422, body: { error: 'validation_failed' } })

  await store(at, JSON.stringify({ OK: '1', PEM: 'a\nb', 'a b': '2', '': '3', '#c': '4', 'x=y': '5', BIG: 'x'.repeat(65_533) }))
  t.match(await get(at, '/values?format=docker'), {
    status: 422, body: { error: 'names_not_in_docker', details: { names: ['', '#c', 'BIG', 'PEM', 'a b', 'x=y'] } }
  })
})

t.test('an ETag of values that release 0.1.0 gave is not known any more; the ETag of a document is the same', async (t) => {
  const at = await makeLevel(owner, { slug: 'etags' })
  const stored = await store(at, "A=it's\n")
  const id = stored.body.data.secret_id
  const [{ storage_key }] = await test.sql(`SELECT storage_key FROM organizations WHERE id = '${org}'`) as [{ storage_key: Buffer }]
  const key = deriveKey(storageKeyOf(test.keyring, { id: org, storage_key }), Buffer.from('strongroom etag'), 'etag')
  const before = (...shape: string[]) => makeEtag(key, id, 1, ...shape)
  const place = ['env', at.project, at.target, at.environment]
  for (const [rest, etag, headers] of [
    ['/values', before('values', 'application/json', 'env'), {}],
    ['/values', before('values', 'text/plain', 'env'), { accept: 'text/plain' }],
    ['/names', before('names', 'false', '', '', 'env'), {}],
    ['?decrypt=true&merge=true', before('read', 'true', 'true', 'false', 'null', ...place), {}],
    ['?decrypt=true&raw=true', before('read', 'true', 'false', 'true', 'null', ...place), {}]
  ] as const) {
    const now = await get(at, rest, { ...headers, 'if-none-match': etag })
    t.equal(now.status, 200, rest)
    t.equal((await get(at, rest, { ...headers, 'if-none-match': String(now.headers.etag) })).status, 304)
  }
  t.equal((await get(at, '', { 'if-none-match': before('read', 'false', 'false', 'false', 'null', ...place) })).status, 304, 'an encrypted read')
  t.equal(stored.headers.etag, before())
  t.equal((await get(at, '')).body.data.attributes.levels.environment.etag, before())
})
