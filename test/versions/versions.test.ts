// runs: one database, embedded
import t, { type Test } from 'tap'
import { openBlob, sealBlob } from '../../src/crypto/blob.ts'
import { deriveDataKey } from '../../src/crypto/key-proof.ts'
import { random, secretKey } from '../../src/crypto/primitives.ts'
import { encryption_keys } from '../../src/db/tables.ts'
import type { NewKey } from '../../src/repositories/keys/encryption-keys.ts'
import { dataKeyOf, makeServerKey, registerClientKey } from '../../src/vault/keys/keys.ts'
import { DETAILS, isUnchanged, makeLevel, startApp, type Answer, type Caller } from '../helpers/app.ts'
import { clientKey, type ClientKey } from '../helpers/client.ts'
import { callAs, makePerson } from '../helpers/people.ts'
import { miscounted } from '../helpers/traffic.ts'

// A storage key of rows that the test inserts with SQL.
const storageKey = secretKey(random(32))

interface Place { project: string, target?: string, environment?: string }

const test = await startApp(t)
const owner = await test.organization()

t.test('each write records a version with its action, newest first, that holds what was written', async (t) => {
  const at = await makeLevel(owner, { slug: 'actions' })
  t.strictSame(
    (await list(at)).body,
    { data: [], meta: { current_page: 1, per_page: 25, total: 0, last_page: 1, from: null, to: null } }
  )
  await store({ ...at, plaintext: 'A=1' })
  await store({ ...at, plaintext: 'A=22' })
  await store({ ...at, plaintext: 'A=333', no_backup: true })
  const before = await history(at)
  t.same(before.map(({ attributes }) => attributes.action), ['update', 'create'], 'no_backup adds no version')
  await remove(at)
  const [first] = (await history(at)).map(({ id }) => id).slice(-1)
  const restored = await restore(first)
  t.equal(restored.status, 200)

  const { data, meta } = (await list(at)).body
  t.same(data.map((version: any) =>
    [version.attributes.action, version.attributes.metadata.restored_from, version.attributes.size_bytes]), [
    ['restore', first, 31], ['delete', null, 33], ['update', null, 32], ['create', null, 31]
  ])
  t.strictSame(meta, { current_page: 1, per_page: 25, total: 4, last_page: 1, from: 1, to: 4 })
  const ids = data.map((version: any) => Number(version.id))
  t.same(ids, [...ids].sort((a, b) => b - a), 'newest first')
  const { created_at, created_by, ...attributes } = data[0].attributes
  t.match(created_at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
  t.strictSame(created_by, { id: created_by.id, name: 'Test token' })
  t.ok(Number.isInteger(created_by.id))
  t.strictSame(attributes, {
    action: 'restore',
    size_bytes: 31,
    is_client_encrypted: false,
    encryption_key_version: '1',
    key_version: '1',
    created_through: { type: 'api_token', name: 'Test token' },
    metadata: { level: 'environment', restored_from: first },
    locked: false,
    locked_reason: null
  })
  t.type(data[0].id, 'string')
  t.equal(data[0].type, 'secret-versions')
  t.strictSame(data.slice(-2), before, 'what was recorded before is as it was')

  const dataKey = await serverKey('actions')
  const contents = []
  for (const { id } of data) contents.push(openBlob(dataKey, (await fetch(id)).body.data.content)?.toString())
  t.same(contents, ['A=1', 'A=333', 'A=22', 'A=1'], 'the snapshot of a delete is the document that was deleted')
})

t.test('a version names its author and what the author used, at each kind of write, also after a rename', async (t) => {
  const own = await test.organization()
  const at = await makeLevel(own)
  const person = await makePerson(test, { [own.organization]: 'owner' })
  const user = { ...own, call: await callAs(test, person) }
  await store({ ...at, plaintext: 'A=1' }, user)
  await store({ ...at, plaintext: 'A=2' }, own)
  await remove(at, user)
  const [{ id: former }] = (await history(at, own)).slice(-1)
  t.equal((await restore(former, {}, user)).status, 200)
  t.equal((await user.call('POST', `/${own.organization}/${at.project}/encryption-key/rotate`, {})).status, 200)
  await test.write(`UPDATE users SET name = 'New name' WHERE id = ${person.id}`)

  const byApplication = {
    created_by: { id: person.id, name: person.name }, created_through: { type: 'application', name: 'Command line' }
  }
  const [{ attributes: { created_by } }] = (await history(at, own)).slice(-2)
  const byToken = { created_by, created_through: { type: 'api_token', name: 'Test token' } }
  t.not(created_by.id, person.id)
  const expected = [byApplication, byApplication, byApplication, byToken, byApplication]
  const listed = (await history(at, own)).map(({ attributes }: any) => attributes)
  t.strictSame(listed.map(({ action }: any) => action), ['rotate', 'restore', 'delete', 'update', 'create'])
  t.strictSame(listed.map(({ created_by, created_through }: any) => ({ created_by, created_through })), expected)
  const { body: { data } } = await fetch(former, own)
  t.strictSame(data.attributes.created_through, byApplication.created_through)

  await test.sql(`UPDATE secret_versions SET created_through = NULL, application_name = NULL
    WHERE organization_id = '${own.organization}' AND id = ${former}`)
  const [{ attributes: of010 }] = (await history(at, own)).slice(-1)
  t.strictSame(
    [of010.created_by, of010.created_through], [byApplication.created_by, null], 'as in rows of release 0.1.0'
  )
})

t.test('a version is fetched with its content and the descriptor of its key', async (t) => {
  const at = await makeLevel(owner, { slug: 'fetches' })
  const { body: { data: { version } } } = await store({ ...at, plaintext: 'A=1' })
  const { status, body } = await fetch(version)
  t.equal(status, 200)
  t.same(Object.keys(body), ['data'])
  const { content, key, ...item } = body.data
  t.strictSame(item, (await history(at))[0])
  t.equal(content, (await current(at)).content)
  t.strictSame(
    key, { version: '1', managed: 'server', is_active: true, created_at: key.created_at, rotated_at: null },
    'no key material of the server'
  )

  const mine = await clientKey('correct horse battery staple')
  const client = await makeLevel(owner, { slug: 'fetches-client', ...mine.registration })
  const blob = sealBlob(mine.dataKey, 'A=1')
  const sent = await store({ ...client, content: blob, key_proof: mine.proof })
  const fetched = (await fetch(sent.body.data.version)).body.data
  t.equal(fetched.content, blob)
  t.equal(fetched.attributes.is_client_encrypted, true)
  t.strictSame(fetched.key, {
    version: '1',
    managed: 'client',
    is_active: true,
    created_at: fetched.key.created_at,
    rotated_at: null,
    key_check_salt: mine.salt.toString('base64'),
    key_check_iterations: 1000
  }, 'the active key check is not given out')
})

t.test('the list takes page and per_page in the body, within their bounds', async (t) => {
  const at = await makeLevel(owner, { slug: 'pages' })
  for (let i = 1; i <= 26; i++) await store({ ...at, plaintext: `A=${i}` })
  const all = await history({ ...at, per_page: 100 })
  t.equal(all.length, 26)
  const cases = [
    {
      sent: {}, ids: all.slice(0, 25), meta: { current_page: 1, per_page: 25, total: 26, last_page: 2, from: 1, to: 25 }
    },
    {
      sent: { page: 2 },
      ids: all.slice(25),
      meta: { current_page: 2, per_page: 25, total: 26, last_page: 2, from: 26, to: 26 }
    },
    {
      sent: { page: 3 }, ids: [], meta: { current_page: 3, per_page: 25, total: 26, last_page: 2, from: null, to: null }
    },
    {
      sent: { page: 26, per_page: 1 },
      ids: all.slice(25),
      meta: { current_page: 26, per_page: 1, total: 26, last_page: 26, from: 26, to: 26 }
    },
    {
      sent: { page: 2, per_page: 13 },
      ids: all.slice(13),
      meta: { current_page: 2, per_page: 13, total: 26, last_page: 2, from: 14, to: 26 }
    },
    {
      sent: { per_page: 100 },
      ids: all,
      meta: { current_page: 1, per_page: 100, total: 26, last_page: 1, from: 1, to: 26 }
    }
  ]
  for (const { sent, ids, meta } of cases) {
    const { body } = await list({ ...at, ...sent })
    t.strictSame(body.data.map(({ id }: any) => id), ids.map(({ id }) => id), JSON.stringify(sent))
    t.strictSame(body.meta, meta, JSON.stringify(sent))
  }
  const bad = [
    { page: 0 }, { page: -1 }, { page: 1.5 }, { page: '1' }, { page: null }, { page: 1e15 }, { per_page: 0 }, {
      per_page: 101
    }, { per_page: '10' },
    { per_page: true }, { limit: 5 }, { project: undefined }, { target: undefined }, {
      environment: undefined
    }, { target: null }, { environment: 'No Slug' }
  ]
  for (const more of bad) {
    const answer = await list({ ...at, ...more })
    refused(t, answer, 422, 'validation_failed', JSON.stringify(more))
    t.same(Object.keys(answer.body.errors), [Object.keys(more)[0]], 'names the member')
  }
  for (const more of [{ project: 'none' }, { target: 'none' }, { environment: 'none' }]) {
    refused(t, await list({ ...at, ...more }), 404, 'not_found')
  }
})

t.test('TI-14: version ids are counted per organization, and whatever is no id of its own is 404', async (t) => {
  const other = await test.organization()
  const at = await makeLevel(other)
  t.equal((await store({ ...at, plaintext: 'A=1' }, other)).body.data.version, '1')
  t.equal((await store({ ...at, plaintext: 'A=2' }, other)).body.data.version, '2')
  const unknown = (await fetch('999', other)).text
  const foreign = (await history({ project: 'pages', target: 'backend', environment: 'live' }))[0]?.id
  t.ok(Number(foreign) > 2)
  const forms = [
    foreign, '0', '-1', '+1', '00001', '01', '%201', '1%20', '1.0', '1e0', '0x1', '1n', '1_0', '١', '%EF%BC%91', 'one', 'null', '%00', '1%00', '1,2',
    '2147483648', '9007199254740991', '9007199254740992', '9223372036854775807', '9223372036854775808', '99999999999999999999999', '1'.repeat(128), '1'.repeat(129)
  ]
  for (const form of forms) {
    for (const answer of [await fetch(form, other), await restore(form, {}, other), await erase(form, {}, other)]) {
      t.equal(answer.status, 404, form.slice(0, 40))
      // A path with a NUL character or with a part that is too long is not a valid path.
      const isPath = !form.includes('%00') && form.length <= 128
      const expected = isPath ? unknown : '{"error":"not_found","message":"There is no such resource."}'
      t.equal(answer.text, expected, `${form.slice(0, 40)} is answered as what does not exist`)
    }
  }
  t.equal((await history(at, other)).length, 2)
  t.equal((await fetch('1', other)).status, 200)
})

t.test('a restore appends: the level has the old document, and history stays as it was', async (t) => {
  const at = await makeLevel(owner, { slug: 'restores' })
  const one = (await store({ ...at, plaintext: 'A=1' })).body.data
  await store({ ...at, plaintext: 'A=2' })
  const before = await contents(at)
  const { status, body } = await restore(one.version)
  t.equal(status, 200)
  const [newest] = await history(at)
  t.strictSame(body, {
    data: { type: 'secrets', secret_id: one.secret_id, restored_from: one.version },
    message: `Restored version ${one.version} as version ${newest.id}.`
  })
  t.match(newest.attributes, { action: 'restore', metadata: { restored_from: one.version } })
  t.equal(await plain(at), 'A=1')
  t.equal((await current(at)).version, newest.id, 'S-6.9: the newest version is the current document')
  t.equal((await fetch(newest.id)).body.data.content, (await current(at)).content)
  t.strictSame((await contents(at)).slice(1), before)

  // A restore of a restored version, and of the current version.
  t.equal((await restore(newest.id)).body.data.restored_from, newest.id)
  t.equal((await history(at)).length, 4)

  // Restores without a body, with an empty body, and with a content, which a server-managed project does not use.
  for (const send of [undefined, {}]) {
    t.equal(
      (await owner.call('POST', `/${owner.organization}/secrets/versions/${one.version}/restore`, send)).status, 200
    )
  }
  await unchanged(t, async () => {
    for (const bad of [
      { extra: 1 }, { content: 'no base64!' }, { content: 1 }, { key_proof: 1 }, { key_proof: '' }, [], 'x'
    ]) {
      refused(t, await restore(one.version, bad), 422, 'validation_failed', JSON.stringify(bad))
    }
  })

  for (const level of [{ project: at.project }, { project: at.project, target: at.target }]) {
    const first = (await store({ ...level, plaintext: 'L=1' })).body.data.version
    await store({ ...level, plaintext: 'L=2' })
    t.equal((await restore(first)).status, 200)
    const restored = (await fetch(String(Number(first) + 2))).body.data.attributes.metadata
    t.strictSame(restored, { level: level.target === undefined ? 'project' : 'target', restored_from: first })
  }
})

t.test('a deleted secret comes back by a restore of its snapshot', async (t) => {
  const at = await makeLevel(owner, { slug: 'comes-back' })
  await store({ ...at, plaintext: 'A=1' })
  await store({ ...at, plaintext: 'A=2', no_backup: true })
  await remove(at)
  const [snapshot] = await history(at)
  t.equal(snapshot.attributes.action, 'delete')
  t.equal((await restore(snapshot.id)).status, 200)
  t.equal(await plain(at), 'A=2', 'also what no version held before')
})

t.test('the retention lock goes by the plan, the clock of the database and nothing else', async (t) => {
  for (const [plan, days] of [
    ['free', 7], ['pro', 30], ['team', 90], ['enterprise', 365], ['self-hosted', null]
  ] as const) {
    const caller = await test.organization({ plan })
    const at = await makeLevel(caller)
    for (const i of [1, 2, 3, 4]) await store({ ...at, plaintext: `A=${i}` }, caller)
    await age(caller, '1', '20 years')
    await age(caller, '2', `${days ?? 0} days 1 minute`)
    await age(caller, '3', `${(days ?? 1) - 1} days 23 hours 59 minutes`)
    const locked = days === null ? [] : ['2', '1']
    const { data, meta } = (await list(at, caller)).body
    t.equal(meta.total, 4, 'locked versions are listed')
    for (const { id, attributes } of data) {
      t.equal(attributes.locked, locked.includes(id), `${plan} ${id}`)
      t.equal(attributes.locked_reason, locked.includes(id) ? 'retention' : null)
      await unchanged(t, async () => {
        const answers = locked.includes(id) ? [await fetch(id, caller), await restore(id, {}, caller)] : []
        for (const answer of answers) {
          refused(t, answer, 403, 'version_locked', `${plan} ${id}`)
          t.strictSame(answer.body.details, { retention_days: days, version_created_at: attributes.created_at })
          t.same(Object.keys(answer.body).sort(), ['details', 'error', 'message'])
        }
      })
      if (!locked.includes(id)) t.equal((await fetch(id, caller)).status, 200, `${plan} ${id}`)
    }
    t.equal(await plain(at, caller), 'A=4', 'the current document is never locked')
    if (days === null) continue

    await test.sql(`UPDATE organization_counters SET plan = 'self-hosted' WHERE organization_id = '${caller.organization}'`)
    t.equal((await fetch('1', caller)).status, 200, 'a longer window opens it again')
    t.equal((await restore('1', {}, caller)).status, 200)
    t.equal(await plain(at, caller), 'A=1')
    await test.sql(`UPDATE organization_counters SET plan = '${plan}' WHERE organization_id = '${caller.organization}'`)
    t.equal((await fetch('5', caller)).status, 200, 'what was restored is a new version')
    t.equal((await erase('1', {}, caller)).status, 204, 'a locked version can be deleted')
    t.same((await purge({ ...at, confirmed: true }, caller)).body.data, { purged_count: 4 }, 'and purged')
  }
})

t.test('HT-32: of two reasons to refuse, the earlier in the order of checks is told', async (t) => {
  const caller = await test.organization({ plan: 'free' })
  const foreigner = await test.organization()
  const scopeless = await test.token(caller.organization, ['secret:read', 'secret:write', 'secret:purge'])
  // The active key has 32 bytes, so its proof equals its data key.
  const [first, second] = [await clientKey('correct horse battery staple'), await clientKey('k'.repeat(32))]
  const at = await makeLevel(caller, first.registration)
  const write = async (key: ClientKey, dataKey = key.dataKey) =>
    (await store(
      { ...at, content: sealBlob(dataKey, 'A=1'), key_proof: key.proof }, caller
    )).body.data.version as string
  const old = { open: await write(first), locked: await write(first) }
  await rotateClient(caller, at.project, second)
  const now = { open: await write(second, secretKey(random(32))), locked: await write(second, secretKey(random(32))) }
  await age(caller, old.locked, '8 days')
  await age(caller, now.locked, '8 days')
  const opaque = sealBlob(secretKey(random(32)), 'A=2')
  const wrong = random(32).toString('base64')

  interface Draft {
    token: string | null
    organization: string
    unknown: boolean
    old: boolean
    locked: boolean
    body: Record<string, unknown>
  }
  const { token, organization } = caller
  const draft = (): Draft => ({
    token, organization, unknown: false, old: false, locked: false, body: { content: opaque, key_proof: second.proof }
  })
  const reasons: { name: string, status: number, code: string, fetch?: true, apply: (draft: Draft) => unknown }[] = [
    { name: 'no token', status: 401, code: 'unauthenticated', fetch: true, apply: (it) => { it.token = null } },
    {
      name: 'another organization',
      status: 404,
      code: 'not_found',
      fetch: true,
      apply: (it) => { it.organization = foreigner.organization }
    },
    {
      name: 'no scope',
      status: 403,
      code: 'insufficient_permissions',
      fetch: true,
      apply: (it) => { it.token &&= scopeless.token }
    },
    { name: 'bad body', status: 422, code: 'validation_failed', apply: (it) => { it.body.extra = 1 } },
    { name: 'unknown version', status: 404, code: 'not_found', fetch: true, apply: (it) => { it.unknown = true } },
    { name: 'locked', status: 403, code: 'version_locked', fetch: true, apply: (it) => { it.locked = true } },
    {
      name: 'old key, no content',
      status: 422,
      code: 'content_required_for_old_key',
      apply: (it) => {
        it.old = true
        delete it.body.content
      }
    },
    { name: 'wrong proof', status: 422, code: 'key_proof_mismatch', apply: (it) => { it.body.key_proof = wrong } },
    {
      name: 'revealing proof',
      status: 422,
      code: 'key_proof_reveals_key',
      apply: (it) => { it.body.content = sealBlob(second.dataKey, 'A=2') }
    }
  ]
  const send = ({ token, organization, unknown, old: isOld, locked, body }: Draft, isFetch: boolean) => {
    const version = unknown ? '99999' : (isOld ? old : now)[locked ? 'locked' : 'open']
    return test.inject({
      method: isFetch ? 'GET' : 'POST',
      url: `/api/v1/${organization}/secrets/versions/${version}${isFetch ? '' : '/restore'}`,
      headers: token === null ? {} : { authorization: `Bearer ${token}` },
      ...(!isFetch && { payload: body })
    })
  }
  await unchanged(t, async () => {
    for (const isFetch of [true, false]) {
      const possible = reasons.filter((reason) => !isFetch || reason.fetch)
      for (const [i, earlier] of possible.entries()) {
        for (const later of possible.slice(i)) {
          // One reason requires that the request has no content, the other requires a content.
          if (earlier.code === 'content_required_for_old_key' && later.code === 'key_proof_reveals_key') continue
          const request = draft()
          later.apply(request)
          earlier.apply(request)
          refused(
            t, await send(request, isFetch), earlier.status, earlier.code,
            `${isFetch ? 'fetch' : 'restore'}: ${earlier.name} before ${later.name}`
          )
        }
      }
    }
  })
  t.equal((await send(draft(), true)).status, 200, 'without any of them it is fetched')
  t.equal((await send(draft(), false)).status, 200, 'and restored')
})

t.test('a client-managed version under the current key is restored as is, or as a content with a valid proof', async (t) => {
  const key = await clientKey('correct horse battery staple')
  const at = await makeLevel(owner, { slug: 'client-restores', ...key.registration })
  const blob = sealBlob(key.dataKey, 'A=1')
  const { version } = (await store({ ...at, content: blob, key_proof: key.proof })).body.data
  await store({ ...at, content: sealBlob(key.dataKey, 'A=2'), key_proof: key.proof })

  t.equal((await restore(version)).status, 200)
  t.equal((await current(at)).content, blob)
  t.equal((await restore(version, { key_proof: key.proof })).status, 200)
  const replaced = sealBlob(key.dataKey, 'A=3')
  const wrong = random(32).toString('base64')
  await unchanged(t, async () => {
    for (const body of [
      { content: replaced }, { content: replaced, key_proof: wrong }, { content: replaced, key_proof: 'x' },
      { key_proof: wrong }
    ]) {
      refused(t, await restore(version, body), 422, 'key_proof_mismatch', Object.keys(body).join())
    }
  })
  t.equal((await restore(version, { content: replaced, key_proof: key.proof })).body.data.restored_from, version)
  t.equal((await current(at)).content, replaced)
  t.equal((await fetch(version)).body.data.content, blob, 'the version itself is as it was')
})

t.test('CR-22: a client-managed version under an old key needs its content and the proof of the current one', async (t) => {
  const [first, second] = [await clientKey('the first key string'), await clientKey('the second key string')]
  const at = await makeLevel(owner, { slug: 'old-client', ...first.registration })
  const blob = sealBlob(first.dataKey, 'A=1')
  const { version } = (await store({ ...at, content: blob, key_proof: first.proof })).body.data
  await rotateClient(owner, 'old-client', second)
  await unchanged(t, async () => {
    refused(t, await store({ ...at, content: blob, key_proof: first.proof }), 422, 'key_proof_mismatch')
  })
  await store({ ...at, content: sealBlob(second.dataKey, 'A=2'), key_proof: second.proof })

  const { key, attributes } = (await fetch(version)).body.data
  t.match(key, {
    version: '1',
    managed: 'client',
    is_active: false,
    rotated_at: /Z$/,
    key_check: first.proof,
    key_check_salt: first.salt.toString('base64')
  })
  t.match(attributes, { key_version: '1', encryption_key_version: '1', is_client_encrypted: true })
  const content = sealBlob(second.dataKey, 'A=1')
  await unchanged(t, async () => {
    for (const body of [{}, { key_proof: second.proof }, { key_proof: first.proof }]) {
      refused(t, await restore(version, body), 422, 'content_required_for_old_key', Object.keys(body).join())
    }
    for (const body of [
      { content }, { content, key_proof: first.proof }, { content, key_proof: random(32).toString('base64') }
    ]) {
      refused(t, await restore(version, body), 422, 'key_proof_mismatch', Object.keys(body).join())
    }
  })
  t.equal((await restore(version, { content, key_proof: second.proof })).body.data.restored_from, version)
  t.equal((await current(at)).content, content)
  const [newest] = await history(at)
  t.match(newest.attributes, { action: 'restore', key_version: '2', metadata: { restored_from: version } })
  t.equal((await fetch(version)).body.data.content, blob, 'history is as it was')
})

t.test('a server-managed version under an old key is re-encrypted under the current one', async (t) => {
  const at = await makeLevel(owner, { slug: 'old-server' })
  const { version } = (await store({ ...at, plaintext: 'A=1' })).body.data
  const id = await projectId(owner, 'old-server')
  const key = await makeServerKey(test.keyring, { organization_id: owner.organization, project_id: id, version: 2 })
  await rotate(owner, id, key)
  await store({ ...at, plaintext: 'A=2' })
  const before = (await fetch(version)).body.data
  t.match(before.key, { version: '1', is_active: false, rotated_at: /Z$/ })
  t.notOk('key_check' in before.key || 'key_check_salt' in before.key, 'nothing of a key of the server')

  t.equal((await restore(version)).status, 200)
  t.equal(await plain(at), 'A=1')
  const [newest] = await history(at)
  const { content } = (await fetch(newest.id)).body.data
  const dataKey = dataKeyOf(test.keyring, { ...key, organization_id: owner.organization, project_id: id })
  t.equal(openBlob(dataKey, content)?.toString(), 'A=1')
  t.match(newest.attributes, { key_version: '2', encryption_key_version: '2' })
  t.strictSame((await fetch(version)).body.data, before, 'history is as it was')
})

t.test('the only snapshot of a deleted secret is version_protected, unless forced in the query or the body', async (t) => {
  const yes = [
    { query: '?force=true' }, { query: '?force=1' }, { query: '?force=TRUE' }, { body: { force: true } }, { query: '?force=false', body: { force: true } },
    { query: '?force=true', body: { force: false } }
  ]
  const no = [
    {}, { body: {} }, { body: { force: false } }, { query: '?force=false' }, { query: '?force=0' }
  ]
  const bad = [
    { query: '?force=yes' }, { query: '?force=' }, { query: '?other=true' }, {
      query: '?force=true&force=true'
    }, { body: { force: 'true' } }, { body: { force: 1 } },
    { body: { force: [true] } }, { body: { force: null } }, { body: { forced: true } }
  ]
  const at = await makeLevel(owner, { slug: 'protected' })
  for (const [i, force] of yes.entries()) {
    await store({ ...at, plaintext: `A=${i}` })
    const { version } = (await store({ ...at, plaintext: 'A=1' })).body.data
    await remove(at)
    const snapshot = (await history(at))[0].id
    await unchanged(t, async () => {
      if (i > 0) return
      for (const more of no) refused(t, await erase(snapshot, more), 422, 'version_protected', JSON.stringify(more))
      for (const more of bad) refused(t, await erase(snapshot, more), 422, 'validation_failed', JSON.stringify(more))
    })
    const gone = await erase(version)
    t.equal(gone.status, 204, 'an older version of a deleted secret goes without force')
    t.equal(gone.text, '')
    t.equal((await erase(snapshot, force)).status, 204, JSON.stringify(force))
    refused(t, await fetch(snapshot), 404, 'not_found')
    refused(t, await erase(snapshot, force), 404, 'not_found')
    refused(t, await restore(snapshot), 404, 'not_found')
  }
  // All versions of a secret that is not deleted can be purged, including the newest. The document stays.
  const { version } = (await store({ ...at, plaintext: 'A=9' })).body.data
  t.equal((await erase(version)).status, 204)
  t.equal(await plain(at), 'A=9')
  const next = (await store({ ...at, plaintext: 'A=10' })).body.data.version
  t.equal(Number(next), Number(version) + 1, 'an id is never used again')
})

t.test('TI-38: a purge without confirmed true purges nothing', async (t) => {
  const at = await makeLevel(owner, { slug: 'unconfirmed' })
  await store({ ...at, plaintext: 'A=1' })
  await unchanged(t, async () => {
    for (const confirmed of [undefined, false, 'true', 1, [true], {}, null]) {
      for (const body of [at, { ...at, scope: 'level' }, { project: at.project, scope: 'project' }]) {
        refused(t, await purge({ ...body, confirmed }), 422, 'confirmation_required', JSON.stringify(confirmed))
      }
    }
    const bad = [
      { scope: 'all' }, { scope: null }, { scope: 'Level' }, { target: undefined }, { environment: undefined }, {
        target: undefined, environment: undefined
      },
      {
        scope: 'project', target: undefined
      }, { project: undefined }, { force: 'true' }, { force: 1 }, { extra: 1 }, { project: 'No Slug' }
    ]
    for (const more of bad) {
      refused(t, await purge({ ...at, confirmed: true, ...more }), 422, 'validation_failed', JSON.stringify(more))
    }
    for (const scope of ['level', 'project']) {
      for (const more of [{ project: 'none' }, { target: 'none' }, { environment: 'none' }]) {
        refused(
          t, await purge({ ...at, confirmed: true, scope, ...more }), 404, 'not_found',
          `${scope} ${JSON.stringify(more)}`
        )
      }
    }
  })
})

t.test('a purge removes the history of a level or of a whole project, and counts what it removed', async (t) => {
  const at = await makeLevel(owner, { slug: 'purges' })
  const other = await makeLevel(owner, { slug: 'purges-not' })
  await store({ ...other, plaintext: 'A=1' })
  for (const [level, writes] of [
    [at, 3], [{ project: at.project, target: at.target }, 2], [{ project: at.project }, 4]
  ] as const) {
    for (let i = 0; i < writes; i++) await store({ ...level, plaintext: `A=${i}` })
  }
  const level = await purge({ ...at, confirmed: true })
  t.equal(level.status, 200)
  t.strictSame(level.body, { data: { purged_count: 3 }, message: 'Purged 3 versions.' })
  t.same(await history(at), [])
  t.equal(await plain(at), 'A=2', 'the document stays')
  t.strictSame((await purge({ ...at, confirmed: true, scope: 'level' })).body.data, { purged_count: 0 })
  t.equal((await countVersions(at.project)), 6, 'the other levels keep theirs')
  await store({ ...at, plaintext: 'A=3' })
  t.strictSame(
    (await purge({ project: at.project, confirmed: true, scope: 'project' })).body,
    { data: { purged_count: 7 }, message: 'Purged 7 versions.' }
  )
  await store({ ...at, plaintext: 'A=4' })
  await store({ project: at.project, plaintext: 'A=4' })
  t.same(
    (await purge({ ...at, confirmed: true, scope: 'project' })).body.data, { purged_count: 2 },
    'the whole project, also when a level is named'
  )
  t.equal(await countVersions(at.project), 0)
  t.equal((await history(other)).length, 1, 'another project keeps its history')
  const events = await test.sql(`
    SELECT resource_type, ${DETAILS} FROM audit_events WHERE organization_id = '${owner.organization}' AND action = 'version.purge' ORDER BY seq DESC LIMIT 2`)
  t.same(events, [2, 7].map((purged_count) => ({ resource_type: 'project', details: { purged_count } })))
  t.same(
    await test.sql(`SELECT * FROM histories WHERE organization_id = '${owner.organization}' AND removed_at IS NOT NULL`), [],
    'what is little is gone with the answer'
  )
})

t.test('the list and the purge of a history name its level by `level`, and by no slug below it', async (t) => {
  const at = await makeLevel(owner, { slug: 'histories' })
  const { project, target } = at
  const levels = [
    { level: 'project', place: { project } }, { level: 'target', place: { project, target } },
    { level: 'environment', place: at }
  ]
  for (const [i, { place }] of levels.entries()) {
    for (let n = 0; n <= i; n++) await store({ ...place, plaintext: `A=${n}` })
  }
  for (const [i, { level, place }] of levels.entries()) {
    const { data, meta } = (await list({ ...place, level })).body
    t.equal(meta.total, i + 1)
    t.ok(data.every((version: any) => version.attributes.metadata.level === level))
    for (const other of [undefined, 'project', 'target', 'environment']) {
      if ((other ?? 'environment') === level) continue
      const body = { ...place, ...(other !== undefined && { level: other }) }
      for (const answer of [await list(body), await purge({ ...body, confirmed: true })]) {
        refused(t, answer, 422, 'validation_failed', `${Object.keys(place).join()} as ${other}`)
        t.notSame(Object.keys(answer.body.errors), [], 'it names the slug')
      }
    }
  }
  for (const level of ['organization', '', null, 'Project']) {
    refused(t, await list({ ...at, level }), 422, 'validation_failed', String(level))
  }
  refused(t, await purge({ project, scope: 'project', level: 'project', confirmed: true }), 422, 'validation_failed')
  refused(t, await list({ project: 'none', level: 'project' }), 404, 'not_found')
  for (const [i, { level, place }] of levels.entries()) {
    t.same((await purge({ ...place, level, confirmed: true })).body.data, { purged_count: i + 1 }, level)
    t.equal((await list({ ...place, level })).body.meta.total, 0)
  }
  const { target_id } = (await owner.call('GET', `/${owner.organization}/histories/backend/live`)).body.data.attributes
  const slice = { project_id: await projectId(owner, project), target_id, environment_id: null }
  const inside = await test.token(owner.organization, ['*'], { slices: [slice] })
  for (const { level, place } of levels) {
    t.equal((await list({ ...place, level }, inside)).status, level === 'project' ? 404 : 200, `narrowed to a target: ${level}`)
  }
})

t.test('a purge deletes all versions, also if the count in the database is wrong', async (t) => {
  const at = await makeLevel(owner, { slug: 'miscounted' })
  const { body: { data: { version } } } = await store({ ...at, plaintext: 'A=1' })
  await test.sql(
    `UPDATE secrets SET version_count = 0 WHERE organization_id = '${owner.organization}'
      AND project_id = (SELECT id FROM projects WHERE organization_id = '${owner.organization}' AND slug = 'miscounted')`
  )
  t.equal(
    (await owner.call('POST', `/${owner.organization}/secrets/versions/purge`, { ...at, confirmed: true })).status, 200
  )
  t.equal((await owner.call('GET', `/${owner.organization}/secrets/versions/${version}`)).status, 404)
})

t.test('S-5.10: a purge deletes the snapshot of a deleted secret too, at either scope, with or without force', async (t) => {
  for (const [i, more] of [{}, { force: false }, { force: true }, { scope: 'project' }].entries()) {
    const at = await makeLevel(owner, { slug: `purges-deleted-${i}` })
    await store({ ...at, plaintext: 'A=1' })
    const { body: { data: { version } } } = await store({ ...at, plaintext: 'A=2' })
    await remove(at)
    t.same((await purge({ ...at, confirmed: true, ...more })).body.data, { purged_count: 3 }, JSON.stringify(more))
    t.same(await history(at), [])
    refused(t, await restore(version), 404, 'not_found')
    await store({ ...at, plaintext: 'A=3' })
    t.equal((await history(at)).length, 1, 'the level goes on')
  }
})

t.test('what is purged or deleted is the version of nothing any more', async (t) => {
  const at = await makeLevel(owner, { slug: 'purges-version' })
  const current = async () => (await owner.call(
    'GET', `/${owner.organization}/${at.project}/backend/live/secrets`
  )).body.data.attributes.levels.environment.version
  const { body: { data: { version } } } = await store({ ...at, plaintext: 'A=1' })
  t.equal(await current(), version)
  await purge({ ...at, confirmed: true })
  t.equal(await current(), null)
  const { body: { data: { version: first } } } = await store({ ...at, plaintext: 'A=2' })
  const { body: { data: { version: second } } } = await store({ ...at, plaintext: 'A=3' })
  await erase(first)
  t.equal(await current(), second, 'another version is gone')
  await erase(second)
  t.equal(await current(), null)
  t.same(await miscounted(test.sql, test.organizations), [])
})

t.test('the pages of a long history are the whole of it, whichever versions were removed or not recorded', async (t) => {
  const caller = await test.organization()
  const at = await makeLevel(caller, { slug: 'long' })
  const { version, history_id } = await grow(caller, at, LONG_HISTORY)
  const whole = async () => (await test.sql(`SELECT id FROM secret_versions
    WHERE organization_id = '${caller.organization}' AND history_id = '${history_id}' ORDER BY id DESC`)).map(({ id }) => String(id))
  const isWhole = async (what: string) => {
    const all = await whole()
    for (const per_page of [30, 100]) {
      const listed = []
      for (let page = 1; page <= Math.ceil(all.length / per_page) + 1; page++) {
        const { data, meta } = (await list({ ...at, page, per_page }, caller)).body
        t.equal(meta.total, all.length)
        listed.push(...data.map(({ id }: { id: string }) => id))
      }
      t.strictSame(listed, all, `${what}, by ${per_page}`)
    }
    return all
  }
  const [newest, ...older] = await isWhole('nothing is missing')
  await erase(newest!, {}, caller)
  await erase(older.at(-1)!, {}, caller)
  await isWhole('the newest and the oldest are gone')
  await store({ ...at, plaintext: 'A=2' }, caller)
  await isWhole('behind the one that was the newest')
  await erase(version, {}, caller)
  await store({ ...at, plaintext: 'A=3', no_backup: true }, caller)
  await store({ ...at, plaintext: 'A=4' }, caller)
  const left = await isWhole('one in the middle is gone, and one was not recorded')
  await purge({ ...at, confirmed: true }, caller)
  t.strictSame((await list({ ...at, page: 5, per_page: 30 }, caller)).body.data, [])
  t.ok(left.length > LONG_HISTORY - 3)
})

t.test('versions below what was deleted are gone: 404', async (t) => {
  const removals = [
    {
      slug: 'gone-environment', path: '/gone-environment/backend/live'
    }, { slug: 'gone-target', path: '/gone-target/backend' }, { slug: 'gone-project', path: '/gone-project' }
  ]
  for (const { slug, path } of removals) {
    const at = await makeLevel(owner, { slug })
    const { version } = (await store({ ...at, plaintext: 'A=1' })).body.data
    t.equal((await owner.call('DELETE', `/${owner.organization}${path}`)).status, 204)
    await unchanged(t, async () => {
      const answers = [
        await list(at), await fetch(version), await restore(version), await erase(
          version, { body: { force: true } }
        ), await purge({ ...at, confirmed: true })
      ]
      for (const answer of answers) refused(t, answer, 404, 'not_found', path)
    })
    t.same(await test.sql(
      `SELECT id FROM secret_versions WHERE organization_id = '${owner.organization}' AND id = ${version}`
    ), [], 'nothing is left in the table')
  }
})

const LONG_HISTORY = 400

/**
 * Gives a level this number of versions, each with its own revision. Other levels have ids between them. Returns one of
 * the ids.
 */
async function grow (caller: Caller, at: Place, versions: number) {
  const { version } = (await store({ ...at, plaintext: 'A=1' }, caller)).body.data
  const its = `organization_id = '${caller.organization}'`
  await test.sql(`
    INSERT INTO secret_versions (organization_id, id, history_id, action, revision, key_version, sealed, size_bytes)
    SELECT organization_id, id + n * n, history_id, action, revision + n, key_version, sealed, size_bytes
    FROM secret_versions, generate_series(1, ${versions - 1}) n WHERE ${its} AND id = ${version}`)
  const last = Number(version) + (versions - 1) ** 2
  await test.sql(`UPDATE organization_counters SET next_version = ${last + 1},
    stored_bytes = stored_bytes + ${versions - 1} * (SELECT size_bytes FROM secrets WHERE ${its}) WHERE ${its}`)
  await test.write(`UPDATE secrets SET revision = ${versions}, version = ${last}, version_count = ${versions},
    version_bytes = ${versions} * version_bytes WHERE ${its}`)
  const [row] = await test.sql(`SELECT history_id FROM secrets WHERE ${its}`)
  return { version: String(Number(version) + Math.floor(versions / 3) ** 2), history_id: row!.history_id as string }
}

function call (caller: Caller, method: string, path: string, body?: unknown) {
  return caller.call(method, `/${caller.organization}/secrets${path}`, body)
}

function list (body: object, caller = owner) {
  return call(caller, 'POST', '/versions', body)
}

async function history (body: object, caller = owner): Promise<any[]> {
  return (await list(body, caller)).body.data
}

/** All versions of a level with their contents. */
async function contents (at: Place) {
  const versions = []
  for (const { id } of await history(at)) versions.push((await fetch(id)).body.data)
  return versions
}

function fetch (version: string, caller = owner) {
  return call(caller, 'GET', `/versions/${version}`)
}

function restore (version: string, body: unknown = {}, caller = owner) {
  const json = JSON.stringify(body)
  return caller.call(
    'POST', `/${caller.organization}/secrets/versions/${version}/restore`, json, { 'content-type': 'application/json' }
  )
}

function erase (version: string, { query = '', body }: { query?: string, body?: unknown } = {}, caller = owner) {
  return call(caller, 'DELETE', `/versions/${version}${query}`, body)
}

function purge (body: object, caller = owner) {
  return call(caller, 'POST', '/versions/purge', body)
}

function store (body: object, caller = owner) {
  return call(caller, 'POST', '/store', body)
}

async function remove (at: Place, caller = owner) {
  const { status, text } = await call(caller, 'POST', '/delete', at)
  if (status !== 204) throw new Error(text)
}

async function current ({ project, target, environment }: Place, caller = owner) {
  return (await caller.call(
    'GET', `/${caller.organization}/${project}/${target}/${environment}/secrets`
  )).body.data.attributes.levels.environment
}

async function plain ({ project, target, environment }: Place, caller = owner): Promise<string> {
  return (await caller.call(
    'GET', `/${caller.organization}/${project}/${target}/${environment}/secrets?decrypt=true`
  )).body.data.attributes.levels.environment.content
}

async function serverKey (project: string) {
  const { key, key_check_salt, key_check_iterations } = (await owner.call(
    'GET', `/${owner.organization}/${project}/encryption-key`
  )).body.data.attributes
  return deriveDataKey(key, Buffer.from(key_check_salt, 'base64'), key_check_iterations)
}

async function projectId (caller: Caller, slug: string): Promise<string> {
  return (await caller.call('GET', `/${caller.organization}/${slug}`)).body.data.id
}

async function rotateClient (caller: Caller, slug: string, { proof, salt }: ClientKey) {
  const id = await projectId(caller, slug)
  const triple = { check: Buffer.from(proof, 'base64'), salt, iterations: 1000, hint: undefined }
  await rotate(caller, id, registerClientKey(
    test.keyring, storageKey, { organization_id: caller.organization, project_id: id, version: 2 }, triple
  ))
}

/** Gives a project its second key. The test must store the current documents again. */
async function rotate (caller: Caller, project: string, key: NewKey) {
  await test.sql(`UPDATE encryption_keys SET is_active = false, rotated_at = now() WHERE project_id = '${project}'`)
  await test.database.db.insert(encryption_keys).values({
    ...key, organization_id: caller.organization, project_id: project, is_active: true
  })
  await test.write(`UPDATE projects SET key_version = ${key.version} WHERE id = '${project}'`)
}

async function age (caller: Caller, version: string, interval: string) {
  await test.sql(
    `UPDATE secret_versions SET created_at = now() - interval '${interval}' WHERE organization_id = '${caller.organization}' AND id = ${version}`
  )
}

async function countVersions (project: string): Promise<number> {
  const [row] = await test.sql(`
    SELECT count(*)::int AS count FROM secret_versions v
    JOIN secrets s ON s.organization_id = v.organization_id AND s.history_id = v.history_id
    JOIN projects p ON p.organization_id = s.organization_id AND p.id = s.project_id
    WHERE p.organization_id = '${owner.organization}' AND p.slug = '${project}'`)
  return row!.count as number
}

function refused (t: Test, answer: Answer, status: number, code: string, message = code) {
  t.equal(answer.status, status, `${message}: ${answer.text}`)
  t.equal(answer.body?.error, code, message)
  t.type(answer.body?.message, 'string', message)
}

const unchanged = (t: Test, work: () => Promise<unknown>) => isUnchanged(t, test, work)

t.test('no version and no event is older than an earlier one, also if the clock of the database goes back', async (t) => {
  const caller = await test.organization()
  const { organization, call } = caller
  const level = await makeLevel(caller)
  const path = `/${organization}/${level.project}/${level.target}/${level.environment}`
  const store = () => call('POST', `/${organization}/secrets/store`, { ...level, plaintext: 'CLOCK=back' })
  await store()
  // Simulates a move to a machine whose clock is an hour behind.
  const [{ ahead }] = await test.sql(`UPDATE organization_counters SET last_at = date_trunc('second', now()) + interval '1 hour'
    WHERE organization_id = '${organization}' RETURNING last_at AS ahead`) as [{ ahead: string }]
  const later = new Date(ahead).toISOString()
  t.equal((await store()).status, 200)
  t.equal((await call('GET', `${path}/secrets?decrypt=true`)).status, 200)
  t.equal((await call('POST', `/${organization}/${level.project}/encryption-key/rotate`, {})).status, 200)
  const versions = (await call('POST', `/${organization}/secrets/versions`, level)).body.data as { attributes: { created_at: string } }[]
  t.same(versions.slice(0, 2).map(({ attributes }) => attributes.created_at), [later, later])
  const events = (await test.sql(`SELECT occurred_at FROM audit_events WHERE organization_id = '${organization}' ORDER BY seq`))
    .map(({ occurred_at }) => new Date(String(occurred_at)).toISOString())
  t.same(events, events.toSorted(), 'times grow with numbers')
  t.ok(events.filter((time) => time === later).length >= 3)
})
