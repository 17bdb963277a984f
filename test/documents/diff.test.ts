// runs: one database, embedded
import { setTimeout as pause } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { sealBlob } from '../../src/crypto/blob.ts'
import { DETAILS, earlier, makeLevel, startApp, type Answer, type Caller } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'

// Comparisons of two versions, two levels or two times.

const test = await startApp(t)
const owner = await test.organization()
const org = owner.organization
const SCOPES = ['secret:read', 'secret:decrypt'] as const

t.test('two levels are compared by the names of their own documents, or of the merged ones', async (t) => {
  const at = await makeLevel(owner, { slug: 'levels' })
  await addEnvironment('levels', 'backend', 'Test')
  await owner.call('POST', `/${org}/levels/targets`, { name: 'Frontend' })
  await addEnvironment('levels', 'frontend', 'Live')
  await store({ project: 'levels' }, 'A=1\nB=1\n')
  await store({ project: 'levels', target: 'backend' }, 'B=2\nC=2\n')
  await store(at, 'C=3\nD=3\n')
  await store({ ...at, environment: 'test' }, 'C=3\nD=4\nE=4\n')
  await store({ ...at, target: 'frontend' }, 'D=3\n')

  for (const [path, query, added, removed, changed] of [
    ['/backend/live', { from: 'environment', to: 'environment:test' }, 'E', '', 'D'],
    ['/backend/live', { from: 'environment:test', to: 'environment' }, '', 'E', 'D'],
    ['/backend/live', { from: 'environment:live', to: 'environment:backend/live' }, '', '', ''],
    ['/backend/live', { from: 'target', to: 'environment' }, 'D', 'B', 'C'],
    ['/backend/live', { from: 'project', to: 'environment' }, 'C D', 'A B', ''],
    ['/backend/live', { from: 'project', to: 'environment', merge: 'true' }, 'C D', '', 'B'],
    ['/backend/live', { from: 'environment', to: 'environment:frontend/live' }, '', 'C', ''],
    ['/backend/live', { from: 'environment', to: 'environment:frontend/live', merge: 'true' }, '', 'C', 'B'],
    ['/backend', { from: 'target', to: 'target:frontend' }, '', 'B C', ''],
    ['/backend', { from: 'target', to: 'target:frontend', merge: 'true' }, '', 'C', 'B'],
    ['/backend', { from: 'environment:live', to: 'environment:test' }, 'E', '', 'D'],
    ['', { from: 'project', to: 'target:backend' }, 'C', 'A', 'B'],
    ['', { from: 'environment:backend/live', to: 'environment:frontend/live' }, '', 'C', '']
  ] as const) {
    const answer = await diff(`/levels${path}`, query)
    const text = `${path} ${JSON.stringify(query)}: ${answer.text}`
    t.strictSame([answer.status, answer.headers['content-type']], [200, 'application/json'], text)
    const lists = [added, removed, changed].map((list) => list.split(' ').filter(Boolean))
    const [expectedAdded, expectedRemoved, expectedChanged] = lists
    t.strictSame(answer.body, {
      data: {
        type: 'secret-differences',
        attributes: { added: expectedAdded, removed: expectedRemoved, changed: expectedChanged }
      }
    }, text)
  }
  for (const query of [
    { from: 'project', to: 'target:none' }, { from: 'environment:none', to: 'project' },
    { from: 'project', to: 'environment:none/live' }, { from: 'environment:frontend/test', to: 'project' }
  ]) refused(t, await diff('/levels/backend/live', query), 404, 'not_found', JSON.stringify(query))
  for (const [to, resource] of [
    ['target:none', 'target'], ['environment:none/live', 'target'], ['environment:backend/none', 'environment']
  ] as const) {
    const { body } = await diff('/levels/backend/live', { from: 'project', to })
    t.match(body, { message: `There is no such ${resource}.`, details: { resource, side: 'to' } }, to)
  }
  for (const path of ['/levels/none', '/none', '/levels/backend/none']) {
    refused(t, await diff(path, { from: 'project', to: 'project' }), 404, 'not_found', path)
  }
  const head = await owner.call('HEAD', `/${org}/levels/backend/live/secrets/diff?from=project&to=environment`)
  t.match(head, { status: 200, text: '' })
})

t.test('values are returned with values=true only, as a list of names with the value of each side', async (t) => {
  const at = await makeLevel(owner, { slug: 'values', secret_format: 'json' })
  const odd = '{"__proto__":"1","":"1","ä b":"1","10":"1","9":"1","same":"value-same"}'
  const { version: first } = await store(at, odd)
  const { version: second } = await store(at, '{"__proto__":"2","":"1","x\\ny":"value-new","9":{"a":[1]},"same":"value-same"}')
  const query = { from: first, to: second }
  const plain = await diff('/values/backend/live', query)
  t.strictSame(attributes(plain), { added: ['x\ny'], removed: ['10', 'ä b'], changed: ['9', '__proto__'] })
  t.notMatch(plain.text, 'value-')
  const { body } = await diff('/values/backend/live', { ...query, values: 'true' })
  t.strictSame(body.data.attributes, {
    ...attributes(plain),
    values: [
      { name: '10', from: '1' }, { name: '9', from: '1', to: '{"a":[1]}' }, { name: '__proto__', from: '1', to: '2' },
      { name: 'x\ny', to: 'value-new' }, { name: 'ä b', from: '1' }
    ]
  })
  const same = await diff('/values/backend/live', { from: first, to: first, values: 'true' })
  t.strictSame(attributes(same), { added: [], removed: [], changed: [], values: [] })
})

t.test('a level without a document counts as empty, as do deleted ones', async (t) => {
  const at = await makeLevel(owner, { slug: 'empty' })
  await store(at, 'A=1')
  t.strictSame(attributes(await diff('/empty/backend/live', { from: 'project', to: 'environment' })).added, ['A'])
  await owner.call('POST', `/${org}/secrets/delete`, at)
  t.strictSame(attributes(await diff('/empty/backend/live', { from: 'project', to: 'environment', merge: 'true' })), {
    added: [], removed: [], changed: []
  })
  const late = await now()
  const versions = await owner.call('POST', `/${org}/secrets/versions`, at)
  const [deletion, creation] = versions.body.data
  t.strictSame(
    attributes(await diff('/empty/backend/live', { from: creation.id, to: deletion.id })),
    { added: [], removed: [], changed: [] }, 'the restore snapshot has the deleted document'
  )
  t.strictSame(attributes(await diff('/empty/backend/live', {
    from: creation.attributes.created_at, to: late
  })).removed, ['A'])
})

t.test('two versions are compared as documents of the level, also under older keys; others are 404', async (t) => {
  const at = await makeLevel(owner, { slug: 'versions' })
  const { version: first } = await store(at, 'A=1\nB=1\n')
  await owner.call('POST', `/${org}/versions/encryption-key/rotate`, {})
  const { version: second } = await store(at, 'A=2\nC=1\n')
  const { version: above } = await store({ project: 'versions' }, 'A=9\n')
  t.strictSame(attributes(await diff('/versions/backend/live', { from: first, to: second })), {
    added: ['C'], removed: ['B'], changed: ['A']
  })
  t.strictSame(attributes(await diff('/versions', { from: above, to: above })).changed, [])
  for (const version of [above, '0', '01', '999999', '9'.repeat(100)]) {
    refused(t, await diff('/versions/backend/live', { from: first, to: version }), 404, 'not_found', version)
    refused(t, await diff('/versions/backend/live', { from: version, to: first }), 404, 'not_found', version)
  }
  await owner.call('DELETE', `/${org}/secrets/versions/${first}`)
  refused(t, await diff('/versions/backend/live', { from: first, to: second }), 404, 'not_found')
  const other = await test.organization()
  refused(t, await other.call('GET', `/${org}/versions/secrets/diff?from=${above}&to=${above}`), 404, 'not_found')
})

t.test('two times are compared as a read at each time answers them', async (t) => {
  const at = await makeLevel(owner, { slug: 'times' })
  await store({ project: 'times' }, 'A=1\nP=1\n')
  await store(at, 'A=2\n')
  const first = await now()
  await store({ project: 'times' }, 'A=1\nP=2\n')
  await store(at, 'A=3\nB=1\n')
  const second = await now()
  const path = '/times/backend/live'
  t.strictSame(attributes(await diff(path, { from: first, to: second })), { added: ['B'], removed: [], changed: ['A'] })
  t.strictSame(attributes(await diff(path, { from: second, to: first, merge: 'true', values: 'true' })), {
    added: [],
    removed: ['B'],
    changed: ['A', 'P'],
    values: [{ name: 'A', from: '3', to: '2' }, { name: 'B', from: '1' }, { name: 'P', from: '2', to: '1' }]
  })
  const offset = `${first.slice(0, -1)}+00:00`
  t.strictSame(attributes(await diff(path, { from: offset, to: first })), { added: [], removed: [], changed: [] })

  const future = new Date(Date.now() + 3_600_000).toISOString()
  const late = await diff(path, { from: first, to: future })
  refused(t, late, 422, 'validation_failed')
  t.strictSame(late.body.errors, { to: ['Lies in the future'] })
  refused(t, await diff(path, { from: '2020-01-01T00:00:00Z', to: first }), 404, 'not_found', 'no level yet')

  await owner.call('POST', `/${org}/secrets/versions/purge`, { ...at, confirmed: true })
  const gone = await diff(path, { from: first, to: second })
  refused(t, gone, 422, 'version_gone')
  t.equal(gone.body.details.level, 'times/backend/live')
  t.strictSame(
    attributes(await diff('/times', { from: first, to: second })).changed, ['P'], 'another level is still known'
  )
})

t.test('a version or a time outside the retention window is version_locked, as on a fetch', async (t) => {
  const caller = await test.organization({ plan: 'free' })
  const o = caller.organization
  const at = await makeLevel(caller, { slug: 'locked' })
  const ask = (query: Record<string, string>, path = '/locked/backend/live') =>
    caller.call('GET', `/${o}${path}/secrets/diff?${new URLSearchParams(query).toString()}`)
  const { version: first } = await store({ project: 'locked' }, 'A=0', caller)
  const { version: old } = await store(at, 'A=1', caller)
  const its = `WHERE organization_id = '${o}'`
  for (const table of ['projects', 'targets', 'environments']) {
    await test.sql(`UPDATE ${table} SET ${earlier('created_at', '30 days')} ${its}`)
  }
  await test.sql(`UPDATE secret_versions SET ${earlier('created_at', '20 days')} ${its}`)
  await test.sql(`UPDATE secrets SET ${earlier('created_at', '20 days')}, ${earlier('updated_at', '20 days')} ${its}`)
  const { version: current } = await store(at, 'A=2', caller)
  const past = new Date(Date.now() - 15 * 86_400_000).toISOString()
  for (const query of [{ from: old, to: current }, { from: current, to: old }, { from: past, to: await now() }]) {
    const answer = await ask(query)
    refused(t, answer, 403, 'version_locked', JSON.stringify(query))
    t.match(answer.body.details, { retention_days: 7, version_created_at: /Z$/ })
  }
  refused(t, await ask({ from: first, to: first }, '/locked'), 403, 'version_locked')
  t.equal((await ask({ from: past, to: await now() }, '/locked')).status, 200, 'nothing replaced this document')
})

t.test('from and to are required, of one kind, and name a level that the path has', async (t) => {
  const at = await makeLevel(owner, { slug: 'wrong' })
  const { version } = await store(at, 'A=1')
  const time = await now()
  const path = '/wrong/backend/live'
  for (const [query, member] of [
    ['from=project', 'to'], ['to=project', 'from'], ['', 'from'], ['from=&to=project', 'from'],
    ['from=project&to=other', 'to'], ['from=-1&to=1', 'from'], ['from=project:a&to=project', 'from'],
    ['from=target:a/b&to=project', 'from'], ['from=environment:a/b/c&to=project', 'from'],
    ['from=target:A&to=project', 'from'], ['from=2026-02-30T00:00:00Z&to=2026-02-28T00:00:00Z', 'from'],
    ['from=target:&to=project', 'from'], ['from=project&from=target&to=project', 'from'],
    [`from=${'1'.repeat(142)}&to=1`, 'from'], ['from=project&to=project&values=yes', 'values'],
    ['from=project&to=project&merge=both', 'merge']
  ] as const) {
    const answer = await owner.call('GET', `/${org}${path}/secrets/diff?${query}`)
    refused(t, answer, 422, 'validation_failed', query)
    t.ok(member in answer.body.errors, `${query}: ${answer.text}`)
  }
  for (const [of, query, member] of [
    [path, { from: version, to: 'project' }, 'to'], [path, { from: time, to: version }, 'to'],
    [path, { from: 'environment', to: time }, 'to'], [path, { from: version, to: version, merge: 'true' }, 'merge'],
    ['/wrong', { from: 'project', to: 'target' }, 'to'], ['/wrong', { from: 'environment', to: 'project' }, 'from'],
    ['/wrong', { from: 'environment:live', to: 'project' }, 'from'],
    ['/wrong/backend', { from: 'target', to: 'environment' }, 'to']
  ] as const) {
    const answer = await diff(of, query)
    refused(t, answer, 422, 'invalid_parameter_combination', JSON.stringify(query))
    t.ok(member in answer.body.errors, answer.text)
  }
  for (const [of, from, message] of [
    ['/wrong', 'target', 'The path has no target: use `target:SLUG`'],
    ['/wrong', 'environment:live', 'The path has no target: use `environment:TARGET/SLUG`'],
    ['/wrong/backend', 'environment', 'The path has no environment: use `environment:TARGET/SLUG`']
  ] as const) {
    t.strictSame((await diff(of, { from, to: 'project' })).body.errors, { from: [message] })
  }
})

t.test('the scopes are those of names, and secret:history for versions and times', async (t) => {
  const at = await makeLevel(owner, { slug: 'scopes' })
  const { version } = await store(at, 'A=1')
  const time = await now()
  const path = '/scopes/backend/live'
  const levels = { from: 'project', to: 'environment' }
  for (const [has, needs] of [['secret:read', 'secret:decrypt'], ['secret:decrypt', 'secret:read']] as const) {
    const answer = await diff(path, levels, await test.token(org, [has, 'secret:history']))
    refused(t, answer, 403, 'insufficient_permissions')
    t.equal(answer.body.details.required_scope, needs)
  }
  const reader = await test.token(org, [...SCOPES])
  t.equal((await diff(path, { ...levels, values: 'true' }, reader)).status, 200)
  const past = [{ from: version, to: version }, { from: time, to: time }]
  for (const query of [...past, { from: 'project', to: version }, { from: time, to: 'what' }]) {
    const answer = await diff(path, query, reader)
    refused(t, answer, 403, 'insufficient_permissions', JSON.stringify(query))
    t.equal(answer.body.details.required_scope, 'secret:history')
  }
  const historian = await test.token(org, [...SCOPES, 'secret:history'])
  for (const query of past) t.equal((await diff(path, query, historian)).status, 200)
})

t.test('a restricted caller compares only levels that it can read, and merged documents without the others', async (t) => {
  const at = await makeLevel(owner, { slug: 'narrow' })
  await addEnvironment('narrow', 'backend', 'Test')
  const { version: above } = await store({ project: 'narrow' }, 'A=1\n')
  const { version: first } = await store(at, 'A=2\nB=1\n')
  const { version: second } = await store(at, 'A=3\n')
  const { version: sibling } = await store({ ...at, environment: 'test' }, 'C=1\n')
  const time = await now()
  await store({ project: 'narrow' }, 'A=9\nZ=1\n')
  const [place] = await test.sql(`SELECT e.project_id, e.target_id, e.id AS environment_id FROM environments e
    JOIN projects p ON p.organization_id = e.organization_id AND p.id = e.project_id
    WHERE p.organization_id = '${org}' AND p.slug = 'narrow' AND e.slug = 'live'`)
  const narrow = await test.token(org, [...SCOPES, 'secret:history'], { slices: [place as any] })
  const path = '/narrow/backend/live'
  for (const query of [
    { from: 'project', to: 'environment' }, { from: 'environment', to: 'target' },
    { from: 'environment', to: 'environment:test' }, { from: 'environment', to: 'environment:none' },
    { from: first, to: above }, { from: sibling, to: first }
  ]) {
    const answer = await diff(path, query, narrow)
    refused(t, answer, 404, 'not_found', JSON.stringify(query))
    const [side, value] = ['project', 'target', 'environment:test', 'environment:none', above, sibling].includes(query.from)
      ? ['from', query.from] as const
      : ['to', query.to] as const
    t.strictSame(answer.body.details, { side })
    const unknown = { ...query, [side]: /^\d+$/.test(value) ? '999999' : 'environment:none' }
    t.equal(answer.text, (await diff(path, unknown, narrow)).text, 'the same bytes as for an unknown level or version')
  }
  refused(t, await diff('/narrow', { from: above, to: above }, narrow), 404, 'not_found')
  t.strictSame(attributes(await diff(path, { from: first, to: second }, narrow)), {
    added: [], removed: ['B'], changed: ['A']
  })
  const merged = { from: time, to: await now(), merge: 'true' }
  t.strictSame(attributes(await diff(path, merged, narrow)), { added: [], removed: [], changed: [] })
  t.strictSame(attributes(await diff(path, merged)).added, ['Z'], 'an unrestricted caller sees the project change')
  const own = { from: 'environment', to: 'environment', merge: 'true' }
  t.equal((await diff(path, own, narrow)).status, 200)
})

t.test('projects whose documents have no readable names are refused, as are documents that do not parse', async (t) => {
  const key = await clientKey('correct horse battery staple')
  await makeLevel(owner, { slug: 'of-client', ...key.registration })
  const refusal = await diff('/of-client/backend/live', { from: 'project', to: 'environment' })
  refused(t, refusal, 422, 'client_managed_encryption')
  const text = await makeLevel(owner, { slug: 'of-text', secret_format: 'text' })
  const { version: opaque } = await store(text, 'anything')
  for (const query of [{ from: 'project', to: 'environment' }, { from: opaque, to: opaque }]) {
    refused(t, await diff('/of-text/backend/live', query), 422, 'invalid_parameter_combination')
  }

  const at = await makeLevel(owner, { slug: 'unreadable' })
  const { version: good } = await store(at, 'A=1')
  const { body } = await owner.call('POST', `/${org}/secrets/store`, { ...at, plaintext: 'A=1\nwhat\n', unchecked: true })
  const time = await now()
  const unreadable: Record<string, string>[] = [
    { from: good, to: body.data.version }, { from: 'project', to: 'environment' },
    { from: time, to: time }, { from: 'environment', to: 'environment', merge: 'true' }
  ]
  for (const query of unreadable) {
    const answer = await diff('/unreadable/backend/live', query)
    refused(t, answer, 422, 'document_unreadable', JSON.stringify(query))
    t.equal(answer.body.details.level, 'environment')
  }
  t.equal((await diff('/unreadable/backend/live', { from: good, to: good })).status, 200)
})

t.test('a version under a former key of a client is client_managed_encryption', async (t) => {
  const [first, second] = [await clientKey('correct horse battery staple'), await clientKey('another horse battery staple')]
  const at = await makeLevel(owner, { slug: 'taken-over', ...first.registration })
  const stored = await owner.call('POST', `/${org}/secrets/store`, {
    ...at, content: sealBlob(first.dataKey, 'A=1'), key_proof: first.proof
  })
  const time = await now()
  const { storage_mode: _, ...triple } = second.registration
  const rotated = await owner.call('POST', `/${org}/taken-over/secrets/rotate-client-keys`, {
    ...triple, secrets: [{ id: stored.body.data.secret_id, content: sealBlob(second.dataKey, 'A=1') }]
  })
  t.equal(rotated.status, 200, rotated.text)
  const taken = await owner.call('PATCH', `/${org}/taken-over`, {
    storage_mode: 'server', encryption_key: 'another horse battery staple'
  })
  t.equal(taken.status, 200, taken.text)
  const { version } = await store(at, 'A=2')
  const path = '/taken-over/backend/live'
  for (const query of [{ from: stored.body.data.version, to: version }, { from: time, to: await now() }]) {
    const answer = await diff(path, query)
    refused(t, answer, 422, 'client_managed_encryption', JSON.stringify(query))
    t.strictSame(answer.body.details, { side: 'from' })
    t.match(answer.body.message, /^The key is managed by the client/, 'also true in a project of the server')
  }
  t.match(
    (await diff(path, { from: version, to: stored.body.data.version })).body,
    { error: 'client_managed_encryption', details: { side: 'to' } }
  )
  t.equal((await diff(path, { from: version, to: version })).status, 200)
})

t.test('a comparison is recorded for each level that it opens: as names, or with values as a decrypting read', async (t) => {
  const at = await makeLevel(owner, { slug: 'recorded' })
  const { secret_id: above } = await store({ project: 'recorded' }, 'A=1')
  const { secret_id: own, version: first } = await store(at, 'A=2')
  const { version: second } = await store(at, 'A=3')
  const time = await now()
  const path = '/recorded/backend/live'
  for (const [values, action] of [['false', 'secret.names'], ['true', 'secret.decrypt']] as const) {
    for (const [query, expected] of [
      [{ from: 'project', to: 'environment' }, [
        { resource_type: 'environment', details: { secrets: own, revisions: '2', from: 'project', to: 'environment:backend/live' } },
        { resource_type: 'project', details: { secrets: above, revisions: '1', from: 'project', to: 'environment:backend/live' } }
      ]],
      [{ from: 'target', to: 'environment:live', merge: 'true' }, [
        { resource_type: 'environment', details: { secrets: `${above} ${own}`, revisions: '1 2' } },
        { resource_type: 'target', details: { secrets: above, revisions: '1', from: 'target:backend' } }
      ]],
      [{ from: first, to: second }, [
        { resource_type: 'environment', details: { secrets: `${own} ${own}`, revisions: '1 2', from: first, to: second } }
      ]],
      [{ from: time, to: time }, [
        { resource_type: 'environment', details: { secrets: `${own} ${own}`, revisions: '2 2', from: time, to: time } }
      ]]
    ] as const) {
      const before = await events()
      t.equal((await diff(path, { ...query, values })).status, 200)
      const added = (await events()).slice(before.length)
      t.match(
        added.sort((a, b) => String(a.resource_type) < String(b.resource_type) ? -1 : 1),
        expected.map((event) => ({ action, ...event })), JSON.stringify(query)
      )
      t.equal(added.length, expected.length)
    }
  }
  const before = await events()
  for (const query of [{ from: 'project', to: 'target:none' }, { from: first, to: '999999' }, { from: first, to: 'project' }]) {
    t.not((await diff(path, query)).status, 200)
  }
  t.equal((await events()).length, before.length, 'a refusal reveals nothing')

  function events () {
    return test.sql(`SELECT action, resource_type, ${DETAILS} FROM audit_events WHERE organization_id = '${org}'
      AND action IN ('secret.names', 'secret.decrypt', 'version.read') ORDER BY seq`)
  }
})

t.test('a version whose content was changed in the database is 500 integrity_error', async (t) => {
  const at = await makeLevel(owner, { slug: 'tampered' })
  const { version: first } = await store(at, 'A=1')
  const { version: second } = await store(at, 'A=2')
  await test.sql(`UPDATE secret_versions SET sealed = (SELECT sealed FROM secret_versions
    WHERE organization_id = '${org}' AND id = ${second}) WHERE organization_id = '${org}' AND id = ${first}`)
  refused(t, await diff('/tampered/backend/live', { from: first, to: second }), 500, 'integrity_error')
})

t.test('large documents are compared and answered whole', async (t) => {
  const at = await makeLevel(owner, { slug: 'large' })
  const names = Array.from({ length: 9_000 }, (_, i) => `NAME_${i}`)
  const text = (value: string) => names.map((name) => `${name}=${value.repeat(80)}`).join('\n')
  const { version: first } = await store(at, text('x'))
  const { version: second } = await store(at, text('y'))
  const { body } = await diff('/large/backend/live', { from: first, to: second, values: 'true' })
  t.strictSame(body.data.attributes.changed, [...names].sort())
  t.strictSame(body.data.attributes.values.at(-1), { name: 'NAME_999', from: 'x'.repeat(80), to: 'y'.repeat(80) })
  t.equal(body.data.attributes.values.length, 9_000)
})

function diff (path: string, query: Record<string, string>, caller: Caller = owner) {
  return caller.call('GET', `/${org}${path}/secrets/diff?${new URLSearchParams(query).toString()}`)
}

function attributes ({ status, text, body }: Answer) {
  if (status !== 200) throw new Error(text)
  return body.data.attributes
}

async function store (level: object, plaintext: string, caller = owner) {
  const { status, text, body } = await caller.call(
    'POST', `/${caller.organization}/secrets/store`, { ...level, plaintext }
  )
  if (status !== 200) throw new Error(text)
  return body.data as { secret_id: string, version: string }
}

async function addEnvironment (project: string, target: string, name: string) {
  const { status, text } = await owner.call('POST', `/${org}/${project}/${target}/environments`, { name })
  if (status !== 201) throw new Error(text)
}

/** A time of the database's clock at which no write took place. */
async function now (): Promise<string> {
  await pause(2)
  const [row] = await test.sql('SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::text AS ms')
  await pause(2)
  return new Date(Number(row!.ms)).toISOString()
}

function refused (t: Test, answer: Answer, status: number, code: string, why = '') {
  t.equal(answer.status, status, `${code} ${why}: ${answer.text}`)
  t.equal(answer.body?.error, code, why)
}
