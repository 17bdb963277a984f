// runs: one database, embedded
import t, { type Test } from 'tap'
import { RAW_TYPE, READ_TYPE } from '../../schemas/secrets.ts'
import { openBlob, sealBlob } from '../../src/crypto/blob.ts'
import { deriveDataKey } from '../../src/crypto/key-proof.ts'
import { random, secretKey } from '../../src/crypto/primitives.ts'
import { writeInSteps } from '../../src/http/responses/large-responses.ts'
import type { DocumentFormat } from '../../src/rules/documents/entries.ts'
import { documentError } from '../../src/rules/documents/read.ts'
import { DETAILS, isUnchanged, makeLevel, startIsolatedApp, type Answer, type Caller } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'

// This file has its own database, because it removes a constraint of a table.
const test = await startIsolatedApp(t)
const owner = await test.organization()
const org = owner.organization
const MERGED = { A: 'project', B: 'target', C: 'environment', D: 'a b' }
const DOCUMENTS = {
  project: 'A=project\nB=project\nC=project\n',
  target: 'B=target\nC=target\n',
  environment: '# own\nC=environment\nD="a b"\n'
}
const ETAG = /^"[A-Za-z0-9_-]{22}"$/

t.test('reads the documents on the way to a level, and only those that there are', async (t) => {
  const at = await makeLevel(owner, { slug: 'reads' })
  const paths = { project: '/reads', target: '/reads/backend', environment: '/reads/backend/live' }
  for (const path of Object.values(paths)) {
    const { body, text } = await read(path)
    t.match(text, '"levels":{}', 'levels is an empty object without documents, never an array')
    t.same(body.data.attributes, { encrypted: true, format: 'env', levels: {} })
    t.same((await read(`${path}?decrypt=true&raw=true&merge=true`)).body, {})
    t.same((await read(`${path}?decrypt=true&merge=true`)).body.data.attributes.merged, {})
  }
  const stored = await storeAll(at)

  const { body, headers } = await read(paths.environment)
  t.match(headers, { etag: ETAG, 'cache-control': 'no-store', 'content-type': READ_TYPE })
  t.same(Object.keys(body), ['data', 'meta'])
  t.same(Object.keys(body.data), ['type', 'attributes'])
  const { timestamp, ...meta } = body.meta
  t.match(timestamp, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
  t.same(meta, {
    api_path: `/api/v1/${org}/reads/backend/live/secrets`,
    format: 'hierarchical',
    merged: 'false',
    hierarchy: { project: 'reads', target: 'backend', environment: 'live' },
    action: 'read'
  })
  t.type(body.meta.merged, 'string')
  const { levels } = body.data.attributes
  t.same(Object.keys(levels).sort(), ['environment', 'project', 'target'])
  for (const [name, source] of [['project', 'reads'], ['target', 'backend'], ['environment', 'live']] as const) {
    const { content, ...level } = levels[name]
    t.strictSame(level, {
      id: stored[name].data.secret_id,
      encrypted: true,
      source,
      version: stored[name].data.version,
      key_version: '1',
      etag: stored[name].etag
    })
    t.match(content, /^[A-Za-z0-9+/]+={0,2}$/)
    t.equal(Buffer.from(content, 'base64').length, stored[name].data.bytes)
  }

  const above = [
    { path: paths.project, has: ['project'], hierarchy: { project: 'reads', target: null, environment: null } },
    {
      path: paths.target,
      has: ['project', 'target'],
      hierarchy: { project: 'reads', target: 'backend', environment: null }
    }
  ]
  for (const { path, has, hierarchy } of above) {
    const { body } = await read(path)
    t.same(Object.keys(body.data.attributes.levels).sort(), has)
    t.same(body.meta.hierarchy, hierarchy)
  }

  const plain = (await read(`${paths.environment}?decrypt=true`)).body
  t.equal(plain.data.attributes.encrypted, false)
  t.equal(plain.meta.action, 'decrypt')
  for (const [name, document] of Object.entries(DOCUMENTS)) {
    t.match(plain.data.attributes.levels[name], { encrypted: false, content: document })
  }
  for (const path of ['/reads/backend/none', '/reads/none', '/none', '/reads/none/live']) {
    refused(t, await read(path), 404, 'not_found')
  }
})

t.test('every combination of decrypt, merge and raw answers its shape or invalid_parameter_combination', async (t) => {
  await storeAll(await makeLevel(owner, { slug: 'combinations' }))
  const sent = (name: string, value: string | undefined) => value === undefined ? [] : [`${name}=${value}`]
  for (const decrypt of [undefined, 'false', 'true']) {
    for (const merge of [undefined, 'false', 'true', 'both']) {
      for (const raw of [undefined, 'false', 'true']) {
        const query = [...sent('decrypt', decrypt), ...sent('merge', merge), ...sent('raw', raw)].join('&')
        const answer = await read(`/combinations/backend/live?${query}`)
        const open = decrypt === 'true'
        const merges = merge === 'true' || merge === 'both'
        if ((!open && (merges || raw === 'true')) || (raw === 'true' && merge === 'both')) {
          refused(t, answer, 422, 'invalid_parameter_combination', query)
        } else if (raw === 'true') {
          t.strictSame(answer.body, merges ? MERGED : { C: 'environment', D: 'a b' }, query)
          t.equal(answer.headers['content-type'], RAW_TYPE, 'another shape has another media type')
        } else {
          t.equal(answer.status, 200, query)
          t.equal(answer.headers['content-type'], READ_TYPE, 'as it is documented, to the letter')
          t.strictSame(answer.body.meta.merged, merge ?? 'false', query)
          const { attributes } = answer.body.data
          t.equal('levels' in attributes, merge !== 'true', query)
          t.strictSame(attributes.merged, merges ? MERGED : undefined, query)
          t.equal(attributes.encrypted, !open, query)
          t.notOk('secrets' in answer.body.data, query)
        }
      }
    }
  }
  for (const query of ['decrypt=maybe', 'merge=yes', 'merge=', 'raw=2', 'decrypt=true&decrypt=true']) {
    refused(t, await read(`/combinations/backend/live?${query}`), 422, 'validation_failed', query)
  }
  t.same(
    (await read('/combinations/backend?decrypt=true&merge=true')).body.data.attributes.merged,
    { A: 'project', B: 'target', C: 'target' }
  )
  t.same(
    (await read('/combinations?decrypt=true&merge=true&raw=true')).body,
    { A: 'project', B: 'project', C: 'project' }
  )
})

t.test('decrypt=true needs secret:decrypt beside secret:read', async (t) => {
  await storeAll(await makeLevel(owner, { slug: 'scopes' }))
  const reader = await test.token(org, ['secret:read'])
  const opener = await test.token(org, ['secret:decrypt'])
  const keeper = await test.token(org, ['key:retrieve'])
  t.equal((await read('/scopes/backend/live', reader)).status, 200)
  forbidden(t, await read('/scopes/backend/live?decrypt=true', reader), 'secret:decrypt')
  forbidden(t, await read('/scopes/backend/live?decrypt=true', opener), 'secret:read')

  const body = { project: 'scopes', target: 'backend', environment: 'live' }
  const needs = { read: 'secret:read', decrypt: 'secret:decrypt', 'key:retrieve': 'key:retrieve' }
  for (const [action, scope] of Object.entries(needs)) {
    for (const caller of [reader, opener, keeper]) {
      const answer = await retrieve({ ...body, action }, caller)
      const holds = { 'secret:read': reader, 'secret:decrypt': opener, 'key:retrieve': keeper }[scope] === caller
      if (holds) t.equal(answer.status, 200, action)
      else forbidden(t, answer, scope)
    }
  }
  forbidden(t, await retrieve(body, keeper), 'secret:read')
  forbidden(t, await retrieve({ action: 'decrypt', nonsense: 1 }, reader), 'secret:decrypt')
})

t.test('retrieve answers as the paths do, and the values when decrypted', async (t) => {
  const at = await makeLevel(owner, { slug: 'retrieves' })
  await storeAll(at)
  const plain = await retrieve(at)
  t.equal(plain.body.meta.action, 'read')
  t.equal(plain.body.meta.api_path, `/api/v1/${org}/secrets/retrieve`)
  t.notOk('secrets' in plain.body.data)
  t.same(plain.body.data.attributes, (await read('/retrieves/backend/live')).body.data.attributes)
  t.same((await retrieve({ ...at, action: 'read', merge: false, raw: false })).body.data, plain.body.data)
  t.same(Object.keys((await retrieve({ project: at.project })).body.data.attributes.levels), ['project'])

  const action = 'decrypt'
  for (const merge of [true, 'true']) {
    const { body } = await retrieve({ ...at, action, merge })
    t.strictSame(
      body.data, { type: 'secrets', attributes: { encrypted: false, format: 'env', merged: MERGED }, secrets: MERGED }
    )
    t.strictSame(body.meta.merged, 'true')
  }
  for (const merge of [undefined, false, 'false', 'both']) {
    const { body } = await retrieve({ ...at, action, merge })
    t.equal(body.data.attributes.levels.environment.content, DOCUMENTS.environment)
    t.same(body.data.secrets, MERGED)
    t.same(body.data.attributes.merged, merge === 'both' ? MERGED : undefined)
  }
  t.same((await retrieve({ ...at, action, raw: true })).body, { C: 'environment', D: 'a b' })
  t.same((await retrieve({ ...at, action, raw: true, merge: true })).body, MERGED)

  const filtered = [
    [{}, MERGED], [{ names: [] }, MERGED], [
      { names: ['A', 'D', 'X'] }, { A: 'project', D: 'a b' }
    ], [{ search: 'c' }, { C: 'environment' }],
    [
      { names: ['A', 'C'], search: 'C' }, { C: 'environment' }
    ], [{ search: 'environment' }, {}], [{ tags: ['x'] }, {}], [{ tags: [] }, MERGED]
  ] as const
  for (const [filters, expected] of filtered) {
    t.same((await retrieve({ ...at, action, filters })).body.data.secrets, expected, JSON.stringify(filters))
    t.same(
      (await retrieve({ ...at, action, filters, merge: true, raw: true })).body, expected,
      `raw ${JSON.stringify(filters)}`
    )
  }

  const key = await retrieve({ project: at.project, action: 'key:retrieve' })
  t.same(key.body, (await owner.call('GET', `/${org}/retrieves/encryption-key`)).body)

  const unmerged = await retrieve(at)
  for (const merge of [true, 'true', 'both', false]) {
    const { status, body } = await retrieve({ ...at, merge })
    t.strictSame([status, body.data, body.meta.merged], [200, unmerged.body.data, 'false'], `merge ${merge} without decrypt`)
  }
  const combinations = [
    { raw: true }, { filters: { names: ['A'] } }, {
      action, raw: true, merge: 'both'
    }
  ]
  for (const more of combinations) {
    refused(t, await retrieve({ ...at, ...more }), 422, 'invalid_parameter_combination', JSON.stringify(more))
  }
  const wrong = [
    { merge: 'yes' }, { merge: 1 }, { merge: null }, { raw: 'true' }, { action: 'write' }, { action: 1 }, {
      filters: { names: 'A' }
    },
    { filters: { other: [] } }, { filters: [] }, { extra: 1 }, { project: 1 }, {
      project: 'No Slug'
    }, { project: undefined }, { target: undefined }
  ]
  for (const more of wrong) {
    refused(t, await retrieve({ ...at, ...more }), 422, 'validation_failed', JSON.stringify(more))
  }
  for (const action of ['read', 'decrypt', 'key:retrieve']) {
    refused(t, await retrieve({ project: 'nothing', action }), 404, 'not_found', action)
  }
  refused(t, await retrieve({ ...at, environment: 'none' }), 404, 'not_found')
})

t.test('documents are read as env, json, yaml or one opaque text', async (t) => {
  const formats = [
    {
      secret_format: 'env',
      reported: 'env',
      document: 'export A=1\nB="two\nlines"\n',
      values: { A: '1', B: 'two\nlines' },
      broken: 'no assignment here\n'
    },
    {
      secret_format: 'json',
      reported: 'json',
      document: '{"A": 1, "B": {"x": [1, null]}, "__proto__": "p"}',
      values: JSON.parse('{"A":"1","B":"{\\"x\\":[1,null]}","__proto__":"p"}'),
      broken: '{"A":'
    },
    {
      secret_format: 'yaml',
      reported: 'env',
      document: 'A: 1\nB: two words\n',
      values: { A: '1', B: 'two words' },
      broken: '- a\n- list\n'
    }
  ]
  for (const { secret_format, reported, document, values, broken } of formats) {
    const at = await makeLevel(owner, { slug: `format-${secret_format}`, secret_format })
    const path = `/format-${secret_format}/backend/live?decrypt=true`
    await store({ ...at, plaintext: document })
    const { attributes } = (await read(`${path}&merge=both`)).body.data
    t.equal(attributes.format, reported)
    t.equal(attributes.levels.environment.content, document)
    t.same(Object.entries(attributes.merged), Object.entries(values), secret_format)
    t.same(Object.entries((await read(`${path}&raw=true`)).body), Object.entries(values), secret_format)

    await store({ project: at.project, target: at.target, plaintext: broken, unchecked: true })
    for (const query of ['&merge=true', '&merge=both', '&merge=true&raw=true']) {
      const answer = await read(path + query)
      refused(t, answer, 422, 'document_unreadable', query)
      const { limit, ...error } = documentError(secret_format as DocumentFormat, broken)!
      t.same(answer.body.details, { level: 'target', ...error }, 'a read says why')
      t.equal(limit, undefined)
    }
    t.equal((await read(`${path}&raw=true`)).status, 200, 'the own document alone is readable')
    t.equal((await read(path)).body.data.attributes.levels.target.content, broken, 'unmerged it is returned as it is')
    const retrieved = await retrieve({ ...at, action: 'decrypt' })
    t.equal(retrieved.status, 200)
    t.notOk('secrets' in retrieved.body.data)
  }

  const at = await makeLevel(owner, { slug: 'format-text', secret_format: 'text' })
  await store({ ...at, plaintext: 'A=1' })
  const { attributes } = (await read('/format-text/backend/live?decrypt=true')).body.data
  t.equal(attributes.format, 'env')
  t.equal(attributes.levels.environment.content, 'A=1')
  for (const query of ['&merge=true', '&merge=both', '&raw=true']) {
    refused(
      t, await read(`/format-text/backend/live?decrypt=true${query}`), 422, 'invalid_parameter_combination', query
    )
  }
})

t.test('a plaintext that does not parse is 422 with line and column, and not stored; `unchecked` stores it', async (t) => {
  const broken = [
    { secret_format: 'env', document: 'A=1\n\nno assignment\n', line: 3, column: 1 },
    { secret_format: 'env', document: 'A=1\r\nB="two\r\n', line: 2, column: 1 },
    {
      secret_format: 'env',
      document: Array.from({ length: 10_001 }, (_, i) => `A${i}=1`).join('\n'),
      line: 10_001,
      column: 1,
      limit: '10,000 names'
    },
    { secret_format: 'json', document: '{\n  "A": "1",\n  "B": é\n}', line: 3, column: 8 },
    { secret_format: 'json', document: '', line: 1, column: 1 },
    { secret_format: 'yaml', document: 'A: 1\nB: [1\n' },
    { secret_format: 'yaml', document: '- a\n- list\n', line: 1, column: 1 }
  ]
  for (const [i, { secret_format, document, line, column, limit }] of broken.entries()) {
    const at = await makeLevel(owner, { slug: `unreadable-${i}`, secret_format })
    const path = `/unreadable-${i}/backend/live?decrypt=true`
    await unchanged(t, async () => {
      for (const more of [{}, { unchecked: false }]) {
        const answer = await store({ ...at, plaintext: document, ...more })
        refused(t, answer, 422, 'document_unreadable', `${secret_format} ${i}`)
        t.match(answer.body.details, { level: 'environment', line: line ?? Number, column: column ?? Number })
      }
    })
    const stored = await store({ ...at, plaintext: document, unchecked: true })
    t.equal(stored.status, 200)
    t.match(stored.body.warning, limit === undefined
      ? new RegExp(`as ${secret_format} at line \\d+, column \\d+`)
      : `has more than ${limit}.`)
    t.equal((await read(path)).body.data.attributes.levels.environment.content, document)
    refused(t, await read(`${path}&merge=true`), 422, 'document_unreadable')

    const restored = await owner.call('POST', `/${org}/secrets/versions/${stored.body.data.version}/restore`)
    t.equal(restored.status, 200, 'a restore of it succeeds')
    t.equal(restored.body.warning, stored.body.warning)
  }
})

t.test('content that does not parse is stored with a warning; readable and text documents have no warning', async (t) => {
  const at = await makeLevel(owner, { slug: 'warnings' })
  const { key, key_check_salt, key_check_iterations } =
    (await owner.call('GET', `/${org}/warnings/encryption-key`)).body.data.attributes
  const dataKey = await deriveDataKey(key, Buffer.from(key_check_salt, 'base64'), key_check_iterations)
  const bad = await store({ ...at, content: sealBlob(dataKey, 'A=1\nwhat\n') })
  t.match(bad, { status: 200, body: { warning: /line 2, column 1/ } })
  t.equal((await read('/warnings/backend/live?decrypt=true')).body.data.attributes.levels.environment.content, 'A=1\nwhat\n')
  const good = await store({ ...at, content: sealBlob(dataKey, 'A=1\n') })
  const unchecked = await store({ ...at, plaintext: 'A=2\n', unchecked: true })
  const restored = await owner.call('POST', `/${org}/secrets/versions/${good.body.data.version}/restore`)
  for (const answer of [good, unchecked, await store({ ...at, plaintext: 'A=3' }), restored]) {
    t.equal(answer.status, 200)
    t.notOk('warning' in answer.body)
  }
  t.match(await owner.call('POST', `/${org}/secrets/versions/${bad.body.data.version}/restore`), {
    status: 200, body: { warning: /line 2, column 1/ }
  })

  const text = await makeLevel(owner, { slug: 'warnings-text', secret_format: 'text' })
  const answer = await store({ ...text, plaintext: '{ anything' })
  t.equal(answer.status, 200)
  t.notOk('warning' in answer.body)
})

t.test('a store and a restore of bytes that are not UTF-8 warn that reads cannot give them, in each format', async (t) => {
  for (const [format, bytes] of [['env', 'A=1\nB=\xe9\n'], ['json', '{"A":1,\n"B":"\xe9"}'], ['yaml', 'A: 1\nB: \xff\n'], ['text', '1\n\xff\xfe\0']]) {
    const slug = `bytes-${format!}`
    const at = await makeLevel(owner, { slug, secret_format: format })
    const { key, key_check_salt, key_check_iterations } =
      (await owner.call('GET', `/${org}/${slug}/encryption-key`)).body.data.attributes
    const dataKey = await deriveDataKey(key, Buffer.from(key_check_salt, 'base64'), key_check_iterations)
    const content = sealBlob(dataKey, Buffer.from(bytes!, 'latin1'))
    const stored = await store({ ...at, content })
    t.match(stored.body, { warning: /^The document is not valid UTF-8 at line 2, .*U\+FFFD/, warnings: [{ line: 2, reason: 'unreadable' }] })
    const since = new Date().toISOString()
    t.match((await read(`/${slug}/backend/live?decrypt=true`)).body.data.attributes.levels.environment.content, '\ufffd')
    t.notOk('warning' in (await store({ ...at, plaintext: format === 'json' ? '{"B": "\ufffd"}' : '# \ufffd' })).body)
    const restored = await owner.call('POST', `/${org}/secrets/versions/${stored.body.data.version}/restore`)
    t.match(restored, { status: 200, body: { warning: stored.body.warning } })
    const { levels } = (await read(`/${slug}/backend/live`)).body.data.attributes
    t.strictSame(openBlob(dataKey, levels.environment.content), Buffer.from(bytes!, 'latin1'), 'a restore keeps the bytes')
    await store({ ...at, plaintext: format === 'json' ? '{}' : '# 1' })
    const back = await owner.call('POST', `/${org}/${slug}/restore-to`, { at: since, confirmed: true })
    t.match(back.body.warning, format === 'text' ? /^Are not UTF-8, .*: 1 document\.$/ : /^Do not parse as .*: 1 document\.$/)
  }
})

t.test('entity tags are strong, keyed and change with every write; If-None-Match answers 304', async (t) => {
  const at = await makeLevel(owner, { slug: 'etags' })
  const path = '/etags/backend/live'
  const first = await store({ ...at, plaintext: 'A=1' })
  const seen = await read(path)
  const etag = String(seen.headers.etag)
  for (const header of [etag, `"other", ${etag}`, `W/${etag}`, '*']) {
    const again = await read(path, owner, { 'if-none-match': header })
    t.equal(again.status, 304, header)
    t.equal(again.text, '')
    t.equal(again.headers.etag, etag)
  }
  const retrieved = await retrieve(at, owner, { 'if-none-match': '*' })
  t.equal(retrieved.status, 200, '304 is for GET and HEAD')
  t.not(retrieved.headers.etag, etag)
  for (const header of ['"other"', etag.slice(1, -1), '']) {
    t.equal((await read(path, owner, { 'if-none-match': header })).status, 200, header)
  }
  const variants = ['?decrypt=true', '?decrypt=true&merge=true', '?decrypt=true&merge=both', '?decrypt=true&raw=true']
  const tags = new Set([etag])
  for (const variant of variants) {
    tags.add(String((await read(path + variant, owner, { 'if-none-match': etag })).headers.etag))
  }
  t.equal(tags.size, 5, 'each shape has its own tag')

  const second = await store({ ...at, plaintext: 'A=1' })
  t.match(second.headers.etag, ETAG)
  t.not(second.headers.etag, first.headers.etag, 'it is made from the writes and not from the document')
  t.equal((await read(path, owner, { 'if-none-match': etag })).status, 200)
  const elsewhere = await makeLevel(owner, { slug: 'etags-too' })
  t.not(
    (await store({ ...elsewhere, plaintext: 'A=1' })).headers.etag, first.headers.etag, 'equal documents do not show'
  )
  // A write to a higher level changes the response to a read of a lower level.
  const before = String((await read(path)).headers.etag)
  await store({ project: at.project, plaintext: 'P=1' })
  t.equal((await read(path, owner, { 'if-none-match': before })).status, 200)
})

t.test('If-Match and If-None-Match guard a write: 412 and nothing stored when the level has moved on', async (t) => {
  const at = await makeLevel(owner, { slug: 'preconditions' })
  await unchanged(t, async () => {
    for (const header of ['*', '"AAAAAAAAAAAAAAAAAAAAAA"']) {
      refused(
        t, await store({ ...at, plaintext: 'A=1' }, owner, { 'if-match': header }), 412, 'precondition_failed',
        `If-Match: ${header}`
      )
    }
  })
  const first = await store({ ...at, plaintext: 'A=1' }, owner, { 'if-none-match': '*' })
  t.equal(first.status, 200)
  const stale = String(first.headers.etag)
  const second = await store({ ...at, plaintext: 'A=2' }, owner, { 'if-match': `"x", ${stale}` })
  t.equal(second.status, 200)
  const current = String(second.headers.etag)
  t.equal((await read('/preconditions/backend/live')).body.data.attributes.levels.environment.etag, current)
  await unchanged(t, async () => {
    refused(t, await store({ ...at, plaintext: 'A=3' }, owner, { 'if-match': stale }), 412, 'precondition_failed')
    refused(t, await store({ ...at, plaintext: 'A=3' }, owner, { 'if-none-match': '*' }), 412, 'precondition_failed')
    refused(
      t, await store({ ...at, plaintext: 'A=3' }, owner, { 'if-none-match': current }), 412, 'precondition_failed'
    )
    refused(t, await remove(at, owner, { 'if-match': stale }), 412, 'precondition_failed')
    refused(
      t, await remove({ ...at, no_backup: true, confirmed: true }, owner, { 'if-match': stale }), 412,
      'precondition_failed'
    )
  })
  t.equal((await store({ ...at, plaintext: 'A=3' }, owner, { 'if-match': '*', 'if-none-match': stale })).status, 200)
  const last = (await read('/preconditions/backend/live')).body.data.attributes.levels.environment.etag
  t.equal((await remove(at, owner, { 'if-match': last })).status, 204)
  refused(
    t, await store({ ...at, plaintext: 'A=4' }, owner, { 'if-match': last }), 412, 'precondition_failed',
    'a deleted document has no tag'
  )
  t.equal(
    (await store({ ...at, plaintext: 'A=4' }, owner, { 'if-none-match': '*' })).status, 200,
    'a deleted document is none'
  )
})

t.test('two writers with the same If-Match: exactly one wins', async (t) => {
  const at = await makeLevel(owner, { slug: 'race' })
  const { headers } = await store({ ...at, plaintext: 'A=0' })
  const answers = await Promise.all(Array.from({ length: 8 }, (_, i) =>
    store({ ...at, plaintext: `A=${i}` }, owner, { 'if-match': String(headers.etag) })))
  t.same(answers.map(({ status }) => status).sort(), [200, ...Array<number>(7).fill(412)])
})

t.test('store takes the document itself or a blob under the current key, at any level', async (t) => {
  const at = await makeLevel(owner, { slug: 'stores' })
  const places = [{ project: 'stores' }, { project: 'stores', target: 'backend' }, at]
  for (const [i, place] of places.entries()) {
    const level = (['project', 'target', 'environment'] as const)[i]!
    const { status, body, headers } = await store({ ...place, plaintext: 'KEY=é' })
    t.equal(status, 200)
    t.strictSame(body, {
      data: {
        type: 'secrets',
        level,
        source: Object.values(place)[i],
        bytes: 6 + 28,
        secret_id: body.data.secret_id,
        version: body.data.version
      },
      message: `Stored as version ${body.data.version}.`
    })
    t.match(body.data.secret_id, /^[0-9A-HJKMNP-TV-Z]{26}$/)
    t.match(body.data.version, /^[1-9]\d*$/)
    t.match(headers.etag, ETAG)
  }
  const quiet = await store({ ...at, plaintext: 'KEY=2', no_backup: true })
  t.equal(quiet.body.data.version, null)
  const { environment } = (await read('/stores/backend/live?decrypt=true')).body.data.attributes.levels
  t.match(environment, { content: 'KEY=2', version: null })

  const {
    key, key_check_salt, key_check_iterations
  } = (await owner.call('GET', `/${org}/stores/encryption-key`)).body.data.attributes
  const dataKey = await deriveDataKey(key, Buffer.from(key_check_salt, 'base64'), key_check_iterations)
  const content = sealBlob(dataKey, 'KEY=33')
  t.equal((await store({ ...at, content })).status, 200)
  t.equal((await read('/stores/backend/live')).body.data.attributes.levels.environment.content, content)
  t.equal((await read('/stores/backend/live?decrypt=true')).body.data.attributes.levels.environment.content, 'KEY=33')
  t.equal((await store({ ...at, plaintext: '' })).body.data.bytes, 28)

  await unchanged(t, async () => {
    const flipped = Buffer.from(content, 'base64')
    flipped[20]! ^= 1
    for (const bad of [
      sealBlob(secretKey(random(32)), 'KEY=4'), flipped.toString('base64'), content.replace(/=+$/, ''),
      random(28).toString('base64')
    ]) {
      refused(t, await store({ ...at, content: bad }), 422, 'content_not_decryptable')
    }
  })
})

t.test('a store that does not match its schema is refused and stores nothing', async (t) => {
  const at = await makeLevel(owner, { slug: 'bad-stores' })
  await store({ ...at, plaintext: 'A=1' })
  const content = random(40).toString('base64')
  const bad = [
    {}, {
      content, plaintext: 'A=1'
    }, { content: 'no base64!' }, { content: random(26).toString('base64') }, { content: 1 }, { content: null },
    { content: content.replace('=', '-') }, { plaintext: 1 }, { plaintext: ['A=1'] }, {
      plaintext: 'A=1', no_backup: 'true'
    },
    { plaintext: 'A=1', no_backup: 1 }, { plaintext: 'A=1', unchecked: 'true' }, { plaintext: 'A=1', backup: true }, {
      plaintext: 'A=1', key_proof: ''
    }, { plaintext: 'A=1', key_proof: 1 },
    { plaintext: 'A=1', project: undefined }, { plaintext: 'A=1', target: undefined }, {
      plaintext: 'A=1', environment: 'No Slug'
    },
    { plaintext: 'a'.repeat(1024 * 1024 - 27) }, { plaintext: 'é'.repeat(512 * 1024) }, {
      content: Buffer.alloc(1024 * 1024 + 3).toString('base64')
    }
  ]
  await unchanged(t, async () => {
    for (const [i, more] of bad.entries()) {
      const answer = await store({ ...at, ...more })
      refused(t, answer, 422, 'validation_failed', `case ${i}`)
      t.type(answer.body.errors, 'object', `case ${i} names the member`)
    }
    for (const gone of [{ project: 'none' }, { target: 'none' }, { environment: 'none' }]) {
      refused(t, await store({ ...at, plaintext: 'A=1', ...gone }), 404, 'not_found')
    }
    forbidden(t, await store(
      { ...at, plaintext: 'A=1' }, await test.token(org, ['secret:read', 'secret:decrypt', 'secret:purge'])
    ), 'secret:write')
  })
  t.equal(
    (await store({ ...at, plaintext: 'a'.repeat(1024 * 1024 - 28), unchecked: true })).body.data.bytes, 1024 * 1024,
    'the largest document'
  )
})

t.test('CR-20 CR-24: a client-managed store needs the right proof; every refusal stores nothing', async (t) => {
  const key = await clientKey('correct horse battery staple')
  const at = await makeLevel(owner, { slug: 'client', ...key.registration })
  const content = sealBlob(key.dataKey, 'A=1')
  const other = await clientKey('another key string')

  const attempt = async () => {
    refused(t, await store({ ...at, plaintext: 'A=1', key_proof: key.proof }), 422, 'client_managed_encryption')
    refused(t, await store({ ...at, plaintext: 'A=1' }), 422, 'client_managed_encryption')
    const proofs = [
      undefined, other.proof, random(32).toString('base64'), key.proof.slice(0, -1), ` ${key.proof}`,
      Buffer.from(key.proof, 'base64').toString('hex'), 'x'
    ]
    for (const key_proof of proofs) {
      refused(t, await store({ ...at, content, key_proof }), 422, 'key_proof_mismatch', String(key_proof))
    }
    forbidden(
      t, await store({ ...at, content, key_proof: key.proof }, await test.token(org, ['secret:read'])), 'secret:write'
    )
  }
  await unchanged(t, attempt)
  const stored = await store({ ...at, content, key_proof: key.proof })
  t.match(stored.body.data, { level: 'environment', bytes: 3 + 28, version: /^\d+$/ })
  await unchanged(t, attempt)
  t.equal((await read('/client/backend/live')).body.data.attributes.levels.environment.content, content)
  t.equal((await store({ ...at, content, key_proof: key.proof, no_backup: true })).body.data.version, null)

  for (const query of ['decrypt=true', 'decrypt=true&merge=true', 'decrypt=true&raw=true']) {
    refused(t, await read(`/client/backend/live?${query}`), 422, 'client_managed_encryption', query)
  }
  refused(t, await retrieve({ ...at, action: 'decrypt' }), 422, 'client_managed_encryption')
  t.equal((await remove(at)).status, 204, 'a delete needs no proof')
})

t.test('CR-24: a proof that opens the content is refused, for key strings of 32 bytes alone', async (t) => {
  for (const bytes of [31, 32, 33]) {
    const key = await clientKey('k'.repeat(bytes))
    const at = await makeLevel(owner, { slug: `length-${bytes}`, ...key.registration })
    const body = { ...at, content: sealBlob(key.dataKey, 'A=1'), key_proof: key.proof }
    if (bytes !== 32) {
      t.equal((await store(body)).status, 200, `${bytes} bytes`)
      continue
    }
    await unchanged(t, async () => {
      for (const content of [body.content, body.content.replace(/=+$/, '')]) {
        refused(t, await store({ ...body, content }), 422, 'key_proof_reveals_key')
      }
    })
    const { message } = (await store(body)).body
    t.match(message, /32 bytes/)
    t.equal(
      (await store({ ...body, content: sealBlob(secretKey(random(32)), 'A=1') })).status, 200,
      'what the proof does not open is opaque'
    )
  }
})

t.test('CR-24: ALLOW_REVEALING_KEY_PROOF=1 lets it through and audits it', async (t) => {
  const lenient = await startIsolatedApp(t, { ALLOW_REVEALING_KEY_PROOF: '1' })
  const caller = await lenient.organization()
  const key = await clientKey('k'.repeat(32))
  const at = await makeLevel(caller, key.registration)
  const events = () =>
    lenient.sql("SELECT action, resource_type FROM audit_events WHERE details ->> 'key_proof_reveals_key' = 'true'")
  const send = (content: string, key_proof = key.proof) =>
    caller.call('POST', `/${caller.organization}/secrets/store`, { ...at, content, key_proof })
  t.equal((await send(sealBlob(secretKey(random(32)), 'A=0'))).status, 200)
  t.same(await events(), [])
  t.equal((await send(sealBlob(key.dataKey, 'A=1'))).status, 200)
  t.same(await events(), [{ action: 'secret.store', resource_type: 'secret' }])
  refused(t, await send(sealBlob(key.dataKey, 'A=1'), random(32).toString('base64')), 422, 'key_proof_mismatch')
  const restored = await caller.call(
    'POST', `/${caller.organization}/secrets/versions/1/restore`,
    { content: sealBlob(key.dataKey, 'A=2'), key_proof: key.proof }
  )
  t.equal(restored.status, 200)
  t.equal((await events()).length, 2)
})

t.test('delete keeps a restore snapshot; the level has no document any more', async (t) => {
  const at = await makeLevel(owner, { slug: 'deletes' })
  refused(t, await remove(at), 404, 'not_found', 'nothing to delete')
  refused(t, await remove({ ...at, no_backup: true, confirmed: true }), 404, 'not_found')
  await storeAll(at)
  const answer = await remove(at)
  t.equal(answer.status, 204)
  t.equal(answer.text, '')
  t.notOk('content-type' in answer.headers)
  refused(t, await remove(at), 404, 'not_found', 'deleted already')
  t.same(Object.keys((await read('/deletes/backend/live')).body.data.attributes.levels).sort(), ['project', 'target'])
  const { data } = (await owner.call('POST', `/${org}/secrets/versions`, at)).body
  t.same(data.map((version: any) => version.attributes.action), ['delete', 'create'])

  const stored = await store({ ...at, plaintext: 'A=2' })
  t.equal(stored.status, 200)
  t.equal((await read('/deletes/backend/live?decrypt=true')).body.data.attributes.levels.environment.content, 'A=2')
  t.equal((await remove({ project: at.project, target: at.target })).status, 204)
  t.equal((await remove({ project: at.project })).status, 204)
  t.same(
    Object.keys((await read('/deletes/backend/live')).body.data.attributes.levels), ['environment'],
    'levels are deleted one by one'
  )
})

t.test('TI-38: delete with no_backup needs confirmed true and secret:purge, and takes the history along', async (t) => {
  const at = await makeLevel(owner, { slug: 'deletes-all' })
  await store({ ...at, plaintext: 'A=1' })
  await store({ ...at, plaintext: 'A=2' })
  await store({ project: at.project, plaintext: 'P=1' })
  const writer = await test.token(org, ['secret:write'])
  await unchanged(t, async () => {
    for (const confirmed of [undefined, false, 'true', 1, [true], {}, null]) {
      refused(
        t, await remove({ ...at, no_backup: true, confirmed }), 422, 'confirmation_required', JSON.stringify(confirmed)
      )
    }
    for (const more of [
      { no_backup: 'true', confirmed: true }, { no_backup: 1 }, { extra: 1 }, { target: undefined },
      { project: undefined }
    ]) {
      refused(t, await remove({ ...at, ...more }), 422, 'validation_failed', JSON.stringify(more))
    }
    forbidden(t, await remove({ ...at, no_backup: true, confirmed: true }, writer), 'secret:purge')
    forbidden(t, await remove({ ...at, no_backup: true }, writer), 'secret:purge')
    forbidden(t, await remove(at, await test.token(org, ['secret:purge'])), 'secret:write')
    refused(t, await remove({ ...at, environment: 'none' }), 404, 'not_found')
  })
  t.equal((await remove(
    { ...at, no_backup: true, confirmed: true }, await test.token(org, ['secret:write', 'secret:purge'])
  )).status, 204)
  t.same((await owner.call('POST', `/${org}/secrets/versions`, at)).body.data, [])
  t.same(
    Object.keys((await read('/deletes-all/backend/live')).body.data.attributes.levels), ['project'],
    'another level keeps its document'
  )
  const [event] = await test.sql(
    `SELECT ${DETAILS} FROM audit_events WHERE action = 'secret.delete' AND details->>'purged' IS NOT NULL`
  )
  t.same(event?.details, { level: 'environment', purged: 2 })
  await store({ ...at, plaintext: 'A=3' })
  const { data } = (await owner.call('POST', `/${org}/secrets/versions`, at)).body
  t.same(data.map((version: any) => version.attributes.action), ['create'], 'the level starts anew')
  t.equal((await remove({ ...at, no_backup: false })).status, 204)
})

t.test('large documents are answered whole, in the form of small ones, however they are read', async (t) => {
  const at = await makeLevel(owner, { slug: 'large' })
  const { project, target } = at
  const NAMES = 3_000
  const values = (level: string) => Object.fromEntries(
    Array.from({ length: NAMES }, (_, i) => [`${level}_${i}`, `ä "€" 😀 ${'x'.repeat(80)}`]))
  const own: Record<string, Record<string, string>> = {
    project: { ...values('project'), SHARED: 'project', ['__proto__']: 'a' },
    target: { ...values('target'), SHARED: 'target' },
    environment: { ...values('environment'), SHARED: 'environment' }
  }
  const textOf = (level: string) => Object.entries(own[level]!).map(([name, value]) => `${name}=${value}`).join('\n')
  const [levels, merged] = [Object.keys(own), Object.assign(Object.create(null), ...Object.values(own)) as object]
  for (const [level, place] of Object.entries({ project: { project }, target: { project, target }, environment: at })) {
    t.equal((await store({ ...place, plaintext: textOf(level) })).status, 200)
  }
  const answers: [string, Answer][] = await Promise.all(['', '&merge=true', '&merge=both', '&merge=true&raw=true'].map(
    async (query): Promise<[string, Answer]> => [query, await read(`/large/backend/live?decrypt=true${query}`)]))
  for (const [query, { status, headers, text, body }] of answers) {
    t.equal(status, 200)
    t.equal(text, JSON.stringify(JSON.parse(text)), `${query}: written as JSON.stringify writes it`)
    t.equal(headers['content-length'], String(Buffer.byteLength(text)))
    t.equal(headers['content-type'], query.includes('raw') ? RAW_TYPE : READ_TYPE)
    const shown = query.includes('raw') ? { merged: body } : body.data.attributes
    if (query !== '') t.equal(JSON.stringify(shown.merged), JSON.stringify(merged), `${query}: every name once`)
    if (query === '' || query === '&merge=both') {
      t.strictSame(Object.keys(shown.levels), levels)
      for (const level of levels) t.ok(shown.levels[level].content === textOf(level), `${query}: ${level} is whole`)
    }
  }
  const search = 'ARGET_29'
  const { body } = await retrieve({ ...at, action: 'decrypt', merge: 'both', filters: { search } })
  const wanted = Object.entries(merged).filter(([name]) => name.toUpperCase().includes(search))
  t.ok(wanted.length > 100)
  t.equal(JSON.stringify(body.data.secrets), JSON.stringify(Object.fromEntries(wanted)), 'the filtered values')
  t.equal(JSON.stringify(body.data.attributes.merged), JSON.stringify(merged), 'a filter leaves the merged values')
  const head = await owner.call('HEAD', `/${org}/large/backend/live/secrets?decrypt=true&merge=true`)
  t.match(head, { status: 200, text: '', headers: { 'content-length': answers[1]![1].headers['content-length'] } })
})

t.test('writing a large response lets other work run between its parts, and equals JSON.stringify', async (t) => {
  const odd = {
    nothing: undefined,
    empty: {},
    none: null,
    list: [1, 'a', null, { b: undefined }],
    at: new Date(0),
    ['__proto__']: 'own',
    'a "name"': '\ud800 \u2028 😀 \n',
    nested: { toJSON: 'a name like any other', deeper: { first: undefined, last: true } },
    bare: Object.assign(Object.create(null), { constructor: '1' })
  }
  t.equal(String(await writeInSteps(odd)), JSON.stringify(odd))
  t.equal(String(await writeInSteps({})), '{}')

  const large = Object.fromEntries(Array.from({ length: 20_000 }, (_, i) => [`NAME_${i}`, 'x'.repeat(100)]))
  let turns = 0
  let isDone = false
  const count = () => {
    turns++
    if (!isDone) setImmediate(count)
  }
  setImmediate(count)
  const text = String(await writeInSteps({ large, last: 1 }))
  isDone = true
  t.ok(text === JSON.stringify({ large, last: 1 }))
  t.ok(turns >= Math.floor(text.length / (512 * 1024)), `${turns} turns of the event loop`)
})

t.test('a client-managed project without a check of its key answers key_proof_required', async (t) => {
  const key = await clientKey('correct horse battery staple')
  const at = await makeLevel(owner, { slug: 'unchecked', ...key.registration })
  // No route creates such a row, and the schema refuses it. This check is the last line of defence.
  await test.sql('ALTER TABLE encryption_keys DROP CONSTRAINT encryption_keys_custody')
  await test.sql(
    "UPDATE encryption_keys SET key_check = NULL, key_check_hash = NULL WHERE project_id = (SELECT id FROM projects WHERE slug = 'unchecked')"
  )
  await unchanged(t, async () => {
    refused(
      t, await store({ ...at, content: sealBlob(key.dataKey, 'A=1'), key_proof: key.proof }), 422, 'key_proof_required'
    )
  })
})

function read (path: string, caller: Caller = owner, headers: Record<string, string> = {}) {
  const [place, query] = path.split('?')
  return caller.call('GET', `/${org}${place}/secrets${query === undefined ? '' : `?${query}`}`, undefined, headers)
}

function retrieve (body: unknown, caller: Caller = owner, headers: Record<string, string> = {}) {
  return caller.call('POST', `/${org}/secrets/retrieve`, body, headers)
}

function store (body: unknown, caller: Caller = owner, headers: Record<string, string> = {}) {
  return caller.call('POST', `/${org}/secrets/store`, body, headers)
}

function remove (body: unknown, caller: Caller = owner, headers: Record<string, string> = {}) {
  return caller.call('POST', `/${org}/secrets/delete`, body, headers)
}

/** Stores DOCUMENTS at the level and above it. */
async function storeAll ({ project, target, environment }: { project: string, target: string, environment: string }) {
  const at = { project: { project }, target: { project, target }, environment: { project, target, environment } }
  const stored: Record<string, { data: any, etag: unknown }> = {}
  for (const level of ['project', 'target', 'environment'] as const) {
    const { status, body, headers, text } = await store({ ...at[level], plaintext: DOCUMENTS[level] })
    if (status !== 200) throw new Error(text)
    stored[level] = { data: body.data, etag: headers.etag }
  }
  return stored as Record<'project' | 'target' | 'environment', { data: any, etag: unknown }>
}

function refused (t: Test, answer: Answer, status: number, code: string, message = code) {
  t.equal(answer.status, status, `${message}: ${answer.text}`)
  t.equal(answer.body?.error, code, message)
  t.type(answer.body?.message, 'string', message)
}

function forbidden (t: Test, answer: Answer, scope: string) {
  refused(t, answer, 403, 'insufficient_permissions', scope)
  t.equal(answer.body.details?.required_scope, scope)
}

const unchanged = (t: Test, work: () => Promise<unknown>) => isUnchanged(t, test, work)
