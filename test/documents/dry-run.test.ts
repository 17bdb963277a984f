// runs: one database, embedded
import t, { type Test } from 'tap'
import { sealBlob } from '../../src/crypto/blob.ts'
import { DETAILS, isUnchanged, makeLevel, startApp, type Answer, type Caller } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'
import { issuePair, makePerson, makeTeam } from '../helpers/people.ts'

// Changes with `dry_run=true` return what they would change, and change nothing.

const test = await startApp(t)
const CANARY = 'never-in-a-response'
const DRY = { dry_run: 'true' }

t.test('a dry run of a store says which names it would add, change and remove, and stores nothing', async (t) => {
  const owner = await test.organization()
  const at = await makeLevel(owner, { slug: 'stores' })
  const fresh = { ...at, plaintext: `A=${CANARY}\nB=${CANARY}\n` }
  const first = await dry(t, owner, () => store(owner, fresh, DRY))
  t.strictSame(first.body, {
    data: { type: 'secrets', level: 'environment', source: 'live', bytes: fresh.plaintext.length + 28, secret_id: null, version: null },
    message: 'Dry run: nothing was changed. The request would create the document: 2 names added, 0 changed, 0 removed.',
    dry_run: {
      levels: [{
        level: 'environment',
        target: 'backend',
        environment: 'live',
        change: 'create',
        records_version: true,
        etag: null,
        names: { added: ['A', 'B'], changed: [], removed: [] }
      }],
      more: 0
    }
  })
  t.strictSame(await eventsOf(owner), [], 'no document was read')

  const stored = await store(owner, fresh)
  const second = await dry(t, owner, () =>
    store(owner, { ...at, plaintext: `B=${CANARY}\nA=other-${CANARY}\nC=1\n`, no_backup: true }, DRY))
  t.match(second.body.data, { secret_id: stored.body.data.secret_id, version: null })
  const [level] = second.body.dry_run.levels
  t.match(level, { change: 'update', records_version: false, etag: stored.headers.etag })
  t.strictSame(level.names, { added: ['C'], changed: ['A'], removed: [] })
  t.strictSame((await eventsOf(owner)).map(({ action, resource_type, details }) => [action, resource_type, details]), [
    ['secret.decrypt', 'environment', { secrets: stored.body.data.secret_id, revisions: '1', dry_run: 'secret.store' }]
  ], 'it tells whether a value is the sent one, so it counts as a read of values')
  // The real change succeeds with the ETag from the dry run.
  t.equal((await store(owner, { ...at, plaintext: 'C=1\n' }, {}, { 'if-match': level.etag })).status, 200)

  const deleted = await owner.call('POST', `/${owner.organization}/secrets/delete`, at)
  t.equal(deleted.status, 204)
  const again = await dry(t, owner, () => store(owner, { ...at, plaintext: 'A=1\n' }, DRY))
  t.match(again.body, { data: { secret_id: stored.body.data.secret_id }, dry_run: { levels: [{ change: 'create', etag: null }] } })
  for (const word of ['false', '0', 'FALSE']) {
    t.equal((await store(owner, fresh, { dry_run: word })).body.data.version === null, false, word)
  }
})

t.test('a dry run is refused as the change itself is', async (t) => {
  const owner = await test.organization()
  const org = owner.organization
  const at = await makeLevel(owner, { slug: 'refusals' })
  const { headers: { etag }, body: { data: { version } } } = await store(owner, { ...at, plaintext: 'A=1\n' })
  await store(owner, { ...at, plaintext: 'A=2\n' })
  await test.sql(`INSERT INTO plans (name, api_per_minute, max_bytes) VALUES ('${org}', 1000, null)`)
  const path = `/${org}/refusals/backend/live/secrets`
  type Headers = Record<string, string>
  const cases: [code: string, send: (query: string, headers?: Headers) => Promise<Answer>, headers?: Headers][] = [
    ['precondition_failed', (query, headers) => store(owner, { ...at, plaintext: 'B=1\n' }, query, headers), { 'if-match': String(etag) }],
    ['precondition_failed', (query, headers) => store(owner, { ...at, plaintext: 'B=1\n' }, query, headers), { 'if-none-match': '*' }],
    ['document_unreadable', (query) => store(owner, { ...at, plaintext: 'B=1\n=' }, query)],
    ['validation_failed', (query) => store(owner, { ...at, plaintext: 'B=1\n', content: 'x' }, query)],
    ['content_not_decryptable', (query) => store(owner, { ...at, content: Buffer.alloc(40).toString('base64') }, query)],
    ['not_found', (query) => store(owner, { ...at, environment: 'none', plaintext: 'B=1\n' }, query)],
    ['precondition_failed', (query, headers) => owner.call('PATCH', path + query, { set: { B: '1' } }, headers), { 'if-match': String(etag) }],
    ['validation_failed', (query) => owner.call('PATCH', path + query, { set: { 'B C': '1' } })],
    ['precondition_failed', (query, headers) => owner.call('POST', `/${org}/secrets/delete${query}`, at, headers), { 'if-match': String(etag) }],
    ['confirmation_required', (query) => owner.call('POST', `/${org}/secrets/delete${query}`, { ...at, no_backup: true })],
    ['not_found', (query) => owner.call('POST', `/${org}/secrets/delete${query}`, { project: 'refusals' })],
    ['precondition_failed', (query, headers) => owner.call('POST', `/${org}/secrets/versions/${version}/restore${query}`, {}, headers), { 'if-match': String(etag) }],
    ['not_found', (query) => owner.call('POST', `/${org}/secrets/versions/9999/restore${query}`, {})],
    ['confirmation_required', (query) => owner.call('POST', `/${org}/refusals/restore-to${query}`, { at: new Date().toISOString() })],
    ['not_found', (query) => owner.call('POST', `/${org}/refusals/restore-to${query}`, { at: '2020-01-01T00:00:00Z', confirmed: true })],
    ['validation_failed', (query) => owner.call('POST', `/${org}/refusals/restore-to${query}`, { at: '2999-01-01T00:00:00Z', confirmed: true })]
  ]
  await isUnchanged(t, test, async () => {
    for (const [i, [code, send, headers]] of cases.entries()) {
      const [real, planned] = [await send('', headers), await send('?dry_run=true', headers)]
      t.equal(real.body.error, code, `${i}: ${real.text}`)
      t.strictSame([planned.status, planned.body], [real.status, real.body], `${i} ${code}`)
    }
  })
  await test.sql(`UPDATE plans SET max_bytes = 100 WHERE name = '${org}'`)
  await test.sql(`UPDATE organization_counters SET plan = '${org}' WHERE organization_id = '${org}'`)
  await isUnchanged(t, test, async () => {
    for (const send of [
      (query: string) => store(owner, { ...at, plaintext: `B=${'x'.repeat(200)}\n` }, query),
      (query: string) => owner.call('PATCH', path + query, { set: { B: 'x'.repeat(200) } }),
      (query: string) => owner.call('POST', `/${org}/secrets/versions/${version}/restore${query}`, {})
    ]) {
      const [real, planned] = [await send(''), await send('?dry_run=true')]
      t.equal(real.body.error, 'plan_limit_reached', real.text)
      t.strictSame([planned.status, planned.body], [real.status, real.body])
    }
  })
  refused(t, await store(owner, { ...at, plaintext: 'B=1\n' }, { dry_run: 'maybe' }), 422, 'validation_failed')
  refused(t, await owner.call('POST', `/${org}/refusals/targets?dry_run=true`, { name: 'X' }), 422, 'validation_failed', 'other changes have no dry run')
})

t.test('a dry run needs secret:decrypt beside the scopes of the operation, in each spelling', async (t) => {
  const owner = await test.organization()
  const org = owner.organization
  const at = await makeLevel(owner, { slug: 'scopes' })
  const { body: { data: { version } } } = await store(owner, { ...at, plaintext: `A=${CANARY}\n` })
  const scopes = ['secret:write', 'secret:restore', 'secret:purge'] as const
  const [weak, strong] = [await test.token(org, [...scopes]), await test.token(org, [...scopes, 'secret:decrypt'])]
  for (const word of ['true', 'TRUE', '1']) {
    for (const [path, body] of [
      ['/secrets/store', { ...at, plaintext: 'A=1\n' }], ['/secrets/delete', at],
      ['/secrets/delete', { ...at, no_backup: true, confirmed: true }],
      [`/secrets/versions/${version}/restore`, {}],
      ['/scopes/restore-to', { at: new Date().toISOString(), confirmed: true }]
    ] as const) {
      const answer = await weak.call('POST', `/${org}${path}?dry_run=${word}`, body)
      refused(t, answer, 403, 'insufficient_permissions', path)
      t.equal(answer.body.details.required_scope, 'secret:decrypt')
      const planned = await strong.call('POST', `/${org}${path}?dry_run=${word}`, body)
      t.match(planned, { status: 200, body: { dry_run: {} } }, planned.text)
      t.notMatch(planned.text, CANARY)
    }
  }
  for (const lacking of scopes.filter((scope) => scope !== 'secret:purge')) {
    const other = await test.token(org, [...scopes.filter((scope) => scope !== lacking), 'secret:decrypt'])
    const answer = await other.call('POST', `/${org}/scopes/restore-to?dry_run=true`, { at: new Date().toISOString(), confirmed: true })
    t.equal(answer.body.details.required_scope, lacking)
  }

  // Restrictions of tokens and roles of teams apply as for the real change.
  await makeLevel(owner, { slug: 'others' })
  const [slice] = await test.sql(`SELECT id AS project_id, null AS target_id, null AS environment_id FROM projects
    WHERE organization_id = '${org}' AND slug = 'others'`)
  const narrow = await test.token(org, ['*'], { slices: [slice as any] })
  refused(t, await store(narrow, { ...at, plaintext: 'A=1\n' }, DRY), 404, 'not_found')
  refused(t, await narrow.call('POST', `/${org}/secrets/versions/${version}/restore?dry_run=true`, {}), 404, 'not_found')
  const person = await makePerson(test, { [org]: 'billing_manager' })
  await makeTeam(test, org, [person], { others: 'member' })
  const { access } = await issuePair(test, person, ['secret:write', 'secret:decrypt'])
  for (const [project, status] of [['others', 200], ['scopes', 403]] as const) {
    const answer = await test.inject({
      method: 'POST',
      url: `/api/v1/${org}/secrets/store?dry_run=true`,
      headers: { authorization: `Bearer ${access}` },
      payload: { ...at, project, plaintext: 'A=1\n' }
    })
    t.equal(answer.status, status, answer.text)
  }
})

t.test('a dry run of a change of names says what the change would, and changes nothing', async (t) => {
  const owner = await test.organization()
  const org = owner.organization
  const at = await makeLevel(owner, { slug: 'patches' })
  const stored = await store(owner, { ...at, plaintext: `A=${CANARY}\nB=1\n` })
  const path = `/${org}/patches/backend/live/secrets?dry_run=true`
  const answer = await dry(t, owner, () => owner.call('PATCH', path, { set: { A: '2', C: '3' }, unset: ['B', 'D'] }))
  const names = { added: ['C'], changed: ['A'], removed: ['B'] }
  t.match(answer.body, {
    data: { version: null, unchanged: false, secret_id: stored.body.data.secret_id, ...names },
    dry_run: { levels: [{ change: 'update', records_version: true, etag: stored.headers.etag, names }], more: 0 }
  })
  const none = await dry(t, owner, () => owner.call('PATCH', path, { set: { B: '1' } }))
  t.match(none.body, {
    data: { version: null, unchanged: true },
    message: 'Dry run: nothing was changed. The document already is as requested.',
    dry_run: { levels: [{ change: 'none', records_version: false, names: { added: [], changed: [], removed: [] } }] }
  })
  const merge = await dry(t, owner, () => owner.call('PATCH', path, { A: null }, { 'content-type': 'application/merge-patch+json' }))
  t.strictSame(merge.body.dry_run.levels[0].names, { added: [], changed: [], removed: ['A'] })
  t.strictSame((await eventsOf(owner)).map(({ action }) => action), ['secret.decrypt', 'secret.decrypt', 'secret.decrypt'])
  const created = await dry(t, owner, () => owner.call('PATCH', `/${org}/patches/secrets?dry_run=true`, { set: { A: '1' } }))
  t.match(created.body, { data: { secret_id: null, level: 'project' }, dry_run: { levels: [{ change: 'create', etag: null }] } })
})

t.test('a dry run of a deletion says which names would disappear', async (t) => {
  const owner = await test.organization()
  const at = await makeLevel(owner, { slug: 'deletes', secret_format: 'json' })
  const { headers: { etag }, body: { data: { secret_id } } } = await store(owner, {
    ...at, plaintext: `{"b":"${CANARY}","a":"1","__proto__":"2"}`
  })
  for (const [more, records_version] of [[{}, true], [{ no_backup: true, confirmed: true }, false]] as const) {
    const answer = await dry(t, owner, () =>
      owner.call('POST', `/${owner.organization}/secrets/delete?dry_run=true`, { ...at, ...more }, { 'if-match': String(etag) }))
    t.strictSame(answer.body, {
      message: 'Dry run: nothing was changed. The request would delete the document: 0 names added, 0 changed, 3 removed.',
      dry_run: {
        levels: [{
          level: 'environment',
          target: 'backend',
          environment: 'live',
          change: 'delete',
          records_version,
          etag,
          names: { added: [], changed: [], removed: ['__proto__', 'a', 'b'] }
        }],
        more: 0
      }
    })
  }
  const details = { secrets: secret_id, revisions: '1', dry_run: 'secret.delete' }
  t.strictSame((await eventsOf(owner)).map((event) => [event.action, event.details]), [
    ['secret.names', details], ['secret.names', details]
  ])
})

t.test('a dry run of a restore compares the version with the present document', async (t) => {
  const owner = await test.organization()
  const org = owner.organization
  const at = await makeLevel(owner, { slug: 'restores' })
  const first = await store(owner, { ...at, plaintext: `A=${CANARY}\nB=1\n` })
  const second = await store(owner, { ...at, plaintext: 'B=2\nC=1\n' })
  const { version, secret_id } = first.body.data
  const path = `/${org}/secrets/versions/${version}/restore?dry_run=true`
  const answer = await dry(t, owner, () => owner.call('POST', path, {}))
  t.match(answer.body, {
    data: { type: 'secrets', secret_id, restored_from: version },
    dry_run: { levels: [{ change: 'update', records_version: true, etag: second.headers.etag }], more: 0 }
  })
  t.strictSame(answer.body.dry_run.levels[0].names, { added: ['A'], changed: ['B'], removed: ['C'] })
  t.strictSame((await eventsOf(owner)).map((event) => [event.action, event.details]), [
    ['secret.names', { secrets: secret_id, revisions: '2', dry_run: 'secret.restore', version: Number(version) }]
  ])
  await owner.call('POST', `/${org}/secrets/delete`, at)
  const deleted = await dry(t, owner, () => owner.call('POST', path, {}))
  t.match(deleted.body.dry_run.levels, [{ change: 'create', names: { added: ['A', 'B'] } }])
  t.equal((await eventsOf(owner)).length, 2, 'the version was read')
  await owner.call('POST', path.replace('?dry_run=true', ''), {})
  await dry(t, owner, () => owner.call('POST', path, { content: Buffer.alloc(40).toString('base64') }))
  t.match((await eventsOf(owner)).at(-1), { action: 'secret.decrypt', details: { dry_run: 'secret.restore', version: Number(version) } })
  const torn = await store(owner, { ...at, plaintext: '=', unchecked: true })
  await store(owner, { ...at, plaintext: 'A=1\n' })
  const unreadable = await dry(t, owner, () => owner.call('POST', `/${org}/secrets/versions/${torn.body.data.version}/restore?dry_run=true`, {}))
  t.match(unreadable.body, {
    warning: 'The document does not parse', dry_run: { levels: [{ change: 'update', names: null }] }
  })
})

t.test('a dry run of restore-to lists each level that would change', async (t) => {
  const owner = await test.organization()
  const org = owner.organization
  const at = await makeLevel(owner, { slug: 'moments' })
  const [project, target] = [{ project: 'moments' }, { project: 'moments', target: 'backend' }]
  const kept = await store(owner, { ...project, plaintext: 'SAME=1\n' })
  const changed = await store(owner, { ...at, plaintext: `A=${CANARY}\nB=1\n` })
  const [{ now }] = await test.sql('SELECT clock_timestamp() AS now') as [{ now: string }]
  await new Promise((resolve) => { setTimeout(resolve, 5) })
  const added = await store(owner, { ...target, plaintext: `NEW=${CANARY}\n` })
  await store(owner, { ...at, plaintext: 'B=2\nC=1\n' })
  await store(owner, { ...project, plaintext: 'SAME=2\n' })
  await store(owner, { ...project, plaintext: 'SAME=1\n' })
  const body = { at: new Date(now).toISOString(), confirmed: true }
  const path = `/${org}/moments/restore-to`
  const answer = await dry(t, owner, () => owner.call('POST', `${path}?dry_run=true`, body))
  t.match(answer.body, {
    data: { type: 'projects', at: body.at, restored: 1, emptied: 1 },
    message: 'Dry run: nothing was changed. The request would restore 1 document and delete 1.',
    dry_run: { more: 0 }
  })
  t.strictSame(answer.body.dry_run.levels.map(({ etag: _, ...level }: any) => level), [
    {
      level: 'target',
      target: 'backend',
      environment: null,
      change: 'delete',
      records_version: true,
      names: { added: [], changed: [], removed: ['NEW'] }
    }, {
      level: 'environment',
      target: 'backend',
      environment: 'live',
      change: 'update',
      records_version: true,
      names: { added: ['A'], changed: ['B'], removed: ['C'] }
    }
  ])
  t.strictSame(answer.body.dry_run.levels[0].etag, added.headers.etag)
  const [event, ...others] = await eventsOf(owner)
  t.strictSame(others, [])
  t.match(event, { action: 'secret.names', resource_type: 'project', details: { dry_run: 'project.restore', at: body.at } })
  t.strictSame(event!.details.secrets!.split(' ').sort(), [kept, changed, added].map(({ body }) => body.data.secret_id).sort())
  const real = await owner.call('POST', path, body)
  t.match(real.body.data, { restored: 1, emptied: 1 })
  const after = await dry(t, owner, () => owner.call('POST', `${path}?dry_run=true`, body))
  t.match(after.body, { data: { restored: 0, emptied: 0 }, dry_run: { levels: [], more: 0 } })
  // The change creates a deleted document again.
  const [{ later }] = await test.sql('SELECT clock_timestamp() AS later') as [{ later: string }]
  await new Promise((resolve) => { setTimeout(resolve, 5) })
  await owner.call('POST', `/${org}/secrets/delete`, at)
  const created = await dry(t, owner, () =>
    owner.call('POST', `${path}?dry_run=true`, { at: new Date(later).toISOString(), confirmed: true }))
  t.match(created.body.dry_run.levels, [{ change: 'create', etag: null, names: { added: ['A', 'B'] } }])
})

t.test('a dry run of restore-to compares at most 200 levels', async (t) => {
  const owner = await test.organization()
  const org = owner.organization
  await makeLevel(owner, { slug: 'many' })
  const [{ now }] = await test.sql('SELECT clock_timestamp() AS now') as [{ now: string }]
  await new Promise((resolve) => { setTimeout(resolve, 5) })
  for (let i = 0; i < 203; i++) {
    const name = `e-${i}`
    const made = await owner.call('POST', `/${org}/many/backend/environments`, { name, slug: name })
    if (made.status !== 201) throw new Error(made.text)
  }
  await Promise.all(Array.from({ length: 203 }, (_, i) =>
    store(owner, { project: 'many', target: 'backend', environment: `e-${i}`, plaintext: `N${i}=1\n` })))
  const body = { at: new Date(now).toISOString(), confirmed: true }
  const answer = await dry(t, owner, () => owner.call('POST', `/${org}/many/restore-to?dry_run=true`, body))
  t.match(answer.body, { data: { restored: 0, emptied: 200 }, dry_run: { more: 3 }, message: /3 more levels were not compared/ })
  t.equal(new Set(answer.body.dry_run.levels.map(({ environment }: any) => environment)).size, 200)
})

t.test('projects whose names the server cannot read get no names, and nothing is recorded', async (t) => {
  const owner = await test.organization()
  const org = owner.organization
  const { registration, dataKey, proof } = await clientKey('correct horse battery staple')
  const at = await makeLevel(owner, { slug: 'of-client', ...registration })
  const sent = { content: sealBlob(dataKey, `A=${CANARY}\n`), key_proof: proof }
  const [{ now: early }] = await test.sql('SELECT clock_timestamp() AS now') as [{ now: string }]
  await new Promise((resolve) => { setTimeout(resolve, 5) })
  refused(t, await store(owner, { ...at, ...sent, key_proof: Buffer.alloc(32).toString('base64') }, DRY), 422, 'key_proof_mismatch')
  refused(t, await store(owner, { ...at, plaintext: 'A=1\n' }, DRY), 422, 'client_managed_encryption')
  const first = await dry(t, owner, () => store(owner, { ...at, ...sent }, DRY))
  t.match(first.body.dry_run.levels, [{ change: 'create', records_version: true, names: null }])
  const { body: { data: { version } } } = await store(owner, { ...at, ...sent })
  refused(t, await owner.call('PATCH', `/${org}/of-client/backend/live/secrets?dry_run=true`, { set: { A: '1' } }), 422, 'client_managed_encryption')
  for (const [path, body, change] of [
    ['/secrets/store', { ...at, ...sent }, 'update'], ['/secrets/delete', at, 'delete'],
    [`/secrets/versions/${version}/restore`, {}, 'update'],
    ['/of-client/restore-to', { at: new Date(early).toISOString(), confirmed: true }, 'delete']
  ] as const) {
    const answer = await dry(t, owner, () => owner.call('POST', `/${org}${path}?dry_run=true`, body))
    t.match(answer.body.dry_run.levels, [{ change, records_version: true, names: null }], path)
  }
  const text = await makeLevel(owner, { slug: 'of-text', secret_format: 'text' })
  await store(owner, { ...text, plaintext: `A=${CANARY}` })
  const answer = await dry(t, owner, () => store(owner, { ...text, plaintext: 'B' }, DRY))
  t.match(answer.body.dry_run.levels, [{ change: 'update', names: null }])
  t.strictSame(await eventsOf(owner), [])

  const torn = await makeLevel(owner, { slug: 'torn', secret_format: 'json' })
  await store(owner, { ...torn, plaintext: '{', unchecked: true })
  const fixed = await dry(t, owner, () => store(owner, { ...torn, plaintext: '{"A":"1"}' }, DRY))
  t.match(fixed.body.dry_run.levels, [{ change: 'update', names: null }], 'the present document does not parse')
  const unchecked = await dry(t, owner, () => store(owner, { ...torn, plaintext: '{', unchecked: true }, DRY))
  t.match(unchecked.body, { warning: 'does not parse', dry_run: { levels: [{ names: null }] } })
})

t.test('an Idempotency-Key has no effect on a dry run, which stores no response', async (t) => {
  const owner = await test.organization()
  const at = await makeLevel(owner, { slug: 'repeats' })
  await store(owner, { ...at, plaintext: 'A=1\n' })
  const key = { 'idempotency-key': 'one-key' }
  const body = { ...at, plaintext: 'B=1\n' }
  for (let i = 0; i < 2; i++) {
    const answer = await dry(t, owner, () => store(owner, body, DRY, key))
    t.notOk('idempotent-replayed' in answer.headers)
  }
  const real = await store(owner, body, {}, key)
  t.equal(real.status, 200, 'the same key is free for the change')
  const replayed = await store(owner, body, {}, key)
  t.equal(replayed.headers['idempotent-replayed'], 'true')
  const after = await dry(t, owner, () => store(owner, { ...at, plaintext: 'C=1\n' }, DRY, key))
  t.strictSame(after.body.dry_run.levels[0].names, { added: ['C'], changed: [], removed: ['B'] })
})

/** Sends a dry run. Asserts that it changes nothing, shows no value and returns no ETag. */
async function dry (t: Test, owner: Caller, send: () => Promise<Answer>): Promise<Answer> {
  let answer: Answer | undefined
  const logged = test.logs.length
  const others = () => test.sql(`SELECT (SELECT stored_bytes FROM organization_counters WHERE organization_id = '${owner.organization}') AS bytes,
    (SELECT count(*)::int FROM idempotency_keys WHERE organization_id = '${owner.organization}') AS kept,
    (SELECT count(*)::int FROM audit_events WHERE organization_id = '${owner.organization}'
      AND action NOT IN ('secret.names', 'secret.decrypt')) AS changes`)
  const before = await others()
  await isUnchanged(t, test, async () => { answer = await send() })
  t.same(await others(), before, 'no event of a change, no stored response')
  t.equal(answer!.status, 200, answer!.text)
  t.notOk('etag' in answer!.headers)
  t.notMatch(answer!.text, CANARY)
  t.notMatch(test.logs.slice(logged).join(''), CANARY)
  return answer!
}

function store (
  caller: Caller, body: object, query: string | Record<string, string> = {}, headers: Record<string, string> = {}
) {
  const text = typeof query === 'string' ? query : `?${new URLSearchParams(query).toString()}`
  return caller.call('POST', `/${caller.organization}/secrets/store${text === '?' ? '' : text}`, body, headers)
}

interface Event { action: string, resource_type: string, details: Record<string, string> }

const eventsOf = async ({ organization }: Caller) => [...await test.sql(`SELECT action, resource_type, ${DETAILS}
  FROM audit_events WHERE organization_id = '${organization}' AND action IN ('secret.names', 'secret.decrypt')
  ORDER BY seq`)] as unknown as Event[]

function refused (t: Test, answer: Answer, status: number, code: string, why = '') {
  t.equal(answer.status, status, `${why} ${code}: ${answer.text}`)
  t.equal(answer.body?.error, code)
}
