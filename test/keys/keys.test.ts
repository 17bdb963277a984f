// runs: one database
import { readFileSync } from 'node:fs'
import t, { type Test } from 'tap'
import { openBlob, sealBlob } from '../../src/crypto/blob.ts'
import { deriveDataKey, makeProof } from '../../src/crypto/key-proof.ts'
import { random, secretKey } from '../../src/crypto/primitives.ts'
import { encryption_keys } from '../../src/db/tables.ts'
import { makeServerKey, registerClientKey } from '../../src/vault/keys/keys.ts'
import { DETAILS, makeLevel, startIsolatedApp, type Answer, type Caller } from '../helpers/app.ts'
import { QUICK } from '../helpers/costs.ts'
import { clientKey } from '../helpers/client.ts'

// A storage key of rows that the test inserts with SQL.
const storageKey = secretKey(random(32))

// This file has its own database, because it counts all projects, and all reports of manipulated rows.
const test = await startIsolatedApp(t)
const owner = await test.organization()
const org = owner.organization
const known = JSON.parse(readFileSync('test/vectors/client.json', 'utf8'))
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/

t.test('CR-28: the key of a server-managed project is told with its salt and iterations, and audited', async (t) => {
  await makeLevel(owner, { slug: 'server' })
  const { status, body, headers } = await owner.call('GET', `/${org}/server/encryption-key`)
  t.equal(status, 200)
  t.equal(headers['cache-control'], 'no-store')
  const { key, key_check_salt, created_at, content } = body.data.attributes
  t.match(key, /^[0-9a-f]{64}$/)
  t.equal(Buffer.from(key_check_salt, 'base64').length, 16)
  t.match(created_at, TIME)
  const fields = {
    managed: 'server', key, version: 1, key_check_salt, key_check_iterations: QUICK.keyIterations, created_at
  }
  t.strictSame(body, {
    data: {
      type: 'encryption-keys',
      id: body.data.id,
      attributes: { format: 'json', encrypted: false, content, ...fields, is_active: true }
    }
  })
  t.match(body.data.id, /^\d+$/)
  t.type(content, 'string')
  t.strictSame(JSON.parse(content), { key: fields }, 'the same members as JSON in a string; version is a number')

  const [event] = await test.sql(
    `SELECT resource_type, resource_id, ${DETAILS} FROM audit_events WHERE organization_id = '${org}' ORDER BY seq DESC LIMIT 1`
  )
  t.strictSame(event, { resource_type: 'encryption-key', resource_id: body.data.id, details: { version: 1 } })
})

t.test('a given key string is used as it is; both sides derive the same data key', async (t) => {
  for (const encryption_key of ['k'.repeat(32), 'é'.repeat(20)]) {
    const at = await makeLevel(owner, { encryption_key, key_hint: 'the one in the safe' })
    const { key, key_check_salt, key_check_iterations } = (await owner.call(
      'GET', `/${org}/${at.project}/encryption-key`
    )).body.data.attributes
    t.equal(key, encryption_key)
    const dataKey = await deriveDataKey(key, Buffer.from(key_check_salt, 'base64'), key_check_iterations)
    await store({ ...at, plaintext: 'A=1' })
    t.equal(
      openBlob(dataKey, (await current(at)).content)?.toString(), 'A=1', 'what the server made opens at the client'
    )
    await store({ ...at, content: sealBlob(dataKey, 'A=2') })
    t.equal((await current(at, '?decrypt=true')).content, 'A=2', 'what the client made opens at the server')
  }
  for (const encryption_key of ['too short', '', 'k'.repeat(1025), 1, null]) {
    const answer = await owner.call('POST', `/${org}/projects`, { name: 'Bad', encryption_key })
    t.match(answer, { status: 422, body: { error: 'validation_failed', errors: { encryption_key: [String] } } })
  }
})

t.test('CR-20 CR-21: of a client-managed key only what its holder needs to derive it is told', async (t) => {
  const key = await clientKey('correct horse battery staple')
  await makeLevel(owner, { slug: 'client', ...key.registration })
  const { body, text } = await owner.call('GET', `/${org}/client/encryption-key`)
  const { content, created_at } = body.data.attributes
  const fields = {
    managed: 'client',
    version: 1,
    key_check_salt: key.registration.key_check_salt,
    key_check_iterations: 1000,
    created_at
  }
  t.strictSame(body.data.attributes, { format: 'json', encrypted: false, content, ...fields, is_active: true })
  t.strictSame(JSON.parse(content), { key: fields }, 'no key member anywhere')
  t.notMatch(text, key.proof)
  const history = await owner.call('GET', `/${org}/client/encryption-key/history`)
  t.strictSame(history.body, {
    data: [{
      version: '1',
      managed: 'client',
      is_active: true,
      created_at,
      rotated_at: null,
      key_check_salt: fields.key_check_salt,
      key_check_iterations: 1000
    }],
    meta: { current_page: 1, per_page: 1000, total: 1, last_page: 1, from: 1, to: 1 },
    re_encryption: null
  })
})

t.test('CR-23: the history lists the active key first, then newest first; old client keys have key_check', async (t) => {
  const keys = await Promise.all(['first', 'second', 'third'].map((word) => clientKey(`the ${word} key string`)))
  await makeLevel(owner, { slug: 'rotated', ...keys[0]!.registration })
  const id = await projectId('rotated')
  for (const version of [2, 3]) await rotate(id, version, keys[version - 1]!)
  const { body } = await owner.call('GET', `/${org}/rotated/encryption-key/history`)
  t.equal(body.meta.total, 3)
  for (const [i, { created_at, rotated_at, ...row }] of body.data.entries()) {
    const version = 3 - i
    const { registration } = keys[version - 1]!
    t.match(created_at, TIME)
    t.match(rotated_at, version === 3 ? null : TIME)
    t.strictSame(row, {
      version: String(version),
      managed: 'client',
      is_active: version === 3,
      key_check_salt: registration.key_check_salt,
      key_check_iterations: 1000,
      ...(version < 3 && { key_check: registration.key_check })
    })
  }
  const page = (await owner.call('GET', `/${org}/rotated/encryption-key/history?per_page=1&page=2`)).body
  t.same(page.data, [body.data[1]])
  t.strictSame(page.meta, { current_page: 2, per_page: 1, total: 3, last_page: 3, from: 2, to: 2 })
  t.equal((await owner.call('GET', `/${org}/rotated/encryption-key`)).body.data.attributes.version, 3)
  const events = await test.sql(
    `SELECT ${DETAILS} FROM audit_events WHERE resource_id = '${id}' AND action = 'key.retrieve' ORDER BY seq`
  )
  t.strictSame(
    events.map(({ details }) => details), [{ keys: 3 }, { keys: 1 }], 'every answer with a key_check is audited'
  )

  await makeLevel(owner, { slug: 'rotated-server' })
  const server = await projectId('rotated-server')
  await rotate(server, 2)
  const listed = await owner.call('GET', `/${org}/rotated-server/encryption-key/history`)
  t.strictSame(listed.body.data.map(({ created_at: _, rotated_at: __, ...row }: any) => row), [
    { version: '2', managed: 'server', is_active: true }, { version: '1', managed: 'server', is_active: false }
  ], 'nothing of the keys of the server')
})

t.test('keys need key:retrieve; a project that is not there is 404', async (t) => {
  await makeLevel(owner, { slug: 'guarded' })
  const without = await test.token(
    org, ['secret:read', 'secret:write', 'secret:decrypt', 'secret:history', 'project:read', 'key:rotate']
  )
  const keeper = await test.token(org, ['key:retrieve'])
  for (const path of ['encryption-key', 'encryption-key/history']) {
    t.match(
      await without.call('GET', `/${org}/guarded/${path}`),
      { status: 403, body: { error: 'insufficient_permissions', details: { required_scope: 'key:retrieve' } } }
    )
    t.equal((await keeper.call('GET', `/${org}/guarded/${path}`)).status, 200)
    t.match(await keeper.call('GET', `/${org}/none/${path}`), { status: 404, body: { error: 'not_found' } })
    const stranger = await test.organization()
    t.match(await stranger.call('GET', `/${org}/guarded/${path}`), { status: 404, body: { error: 'not_found' } })
  }
})

t.test('a blob made with the documented data key is stored under its documented proof and read back', async (t) => {
  for (const [i, { key_string, salt, iterations, proof, data_key }] of known.keys.entries()) {
    const at = await makeLevel(owner, {
      slug: `known-${i}`,
      storage_mode: 'client',
      key_check: proof,
      key_check_salt: salt,
      key_check_iterations: iterations
    })
    const made = await makeProof(key_string, Buffer.from(salt, 'base64'), iterations)
    t.equal(made, proof)
    const key = data_key === undefined
      ? await deriveDataKey(key_string, Buffer.from(salt, 'base64'), iterations)
      : secretKey(Buffer.from(data_key, 'base64'))
    const content = data_key === known.blobs[0].data_key ? known.blobs[0].blob : sealBlob(key, known.blobs[0].plaintext)
    const stored = await store({ ...at, content, key_proof: made })
    t.equal(stored.status, 200)
    t.equal(stored.body.data.bytes, 19 + 28)
    const read = (await current(at)).content
    t.equal(read, content)
    t.equal(openBlob(key, read)?.toString(), 'HELLO=world\nFOO=bar')
    const version = (await owner.call('GET', `/${org}/secrets/versions/${stored.body.data.version}`)).body.data
    t.equal(version.content, content)
    t.match(version.key, { key_check_salt: salt, key_check_iterations: iterations })
  }
})

t.test('CR-25: what a client chooses for the derivation stays within bounds; weak iterations are warned of', async (t) => {
  const { registration } = await clientKey('correct horse battery staple')
  const create = (more: object) => owner.call('POST', `/${org}/projects`, { name: 'Bounds', ...registration, ...more })
  const base64 = (bytes: number) => random(bytes).toString('base64')
  const count = async () => (await test.sql('SELECT count(*)::int AS count FROM projects'))[0]?.count
  const before = await count()
  const bad = [
    ...[0, -1, 1, 999, 10_000_001, 2 ** 31, 1e9, 1000.5, '600000', null, true, undefined].map((key_check_iterations) =>
      ({ key_check_iterations })),
    ...[
      base64(15), base64(65), '', 'no base64!', 'AAECAwQFBgcICQoLDA0ODx==', base64(16).replace('==', ''), 1, null,
      undefined
    ].map((key_check_salt) => ({ key_check_salt })),
    ...[base64(31), base64(33), '', random(32).toString('hex'), 1, null, undefined].map((key_check) => ({ key_check })),
    { encryption_key: 'correct horse battery staple' }, { storage_mode: 'server' }, { storage_mode: 'other' }
  ]
  for (const more of bad) {
    const answer = await create(more)
    t.match(answer, { status: 422, body: { error: 'validation_failed', errors: Object } }, JSON.stringify(more))
  }
  t.equal(await count(), before, 'nothing was made')
  for (const iterations of [1000, 599_999, 600_000, 10_000_000]) {
    const answer = await create({
      key_check_iterations: iterations, key_check_salt: base64(iterations === 1000 ? 64 : 16)
    })
    t.equal(answer.status, 201)
    t.equal(answer.headers.warning !== undefined, iterations < 600_000, String(iterations))
  }
})

t.test('CR-07: blobs of a client-managed project are opaque, canonical base64 or not', async (t) => {
  const key = await clientKey('correct horse battery staple')
  const at = await makeLevel(owner, { slug: 'opaque', ...key.registration })
  const blobs = [
    random(40).toString('base64').replace(/=+$/, ''), random(31).toString('base64').replace(/=+$/, ''),
    // The last character has bits that do not belong to a byte.
    Buffer.alloc(31, 1).toString('base64').replace('AQ==', 'AR=='), 'A'.repeat(38), 'A'.repeat(41), `${'A'.repeat(40)}=`
  ]
  for (const content of blobs) {
    const answer = await store({ ...at, content, key_proof: key.proof })
    t.equal(answer.status, 200, content)
    t.equal((await current(at)).content, content, 'byte for byte')
    t.equal(
      (await owner.call('GET', `/${org}/secrets/versions/${answer.body.data.version}`)).body.data.content, content
    )
    t.equal(answer.body.data.bytes, Buffer.from(content, 'base64').length)
  }
  for (const content of [
    'A'.repeat(37), `${'A'.repeat(40)}*`, `${'A'.repeat(40)} `, `${'A'.repeat(40)}\n`, `${'A'.repeat(40)}===`,
    `${'A'.repeat(20)}=${'A'.repeat(20)}`, 'A-_'.repeat(20)
  ]) {
    t.match(
      await store({ ...at, content, key_proof: key.proof }), { status: 422, body: { error: 'validation_failed' } },
      content
    )
  }
})

t.test('CR-01: a sealed value that was changed, moved, swapped or rolled back in the database is refused', async (t) => {
  const other = await test.organization()
  const a = await makeLevel(owner, { slug: 'sealed-a' })
  const b = await makeLevel(owner, { slug: 'sealed-b' })
  const c = await makeLevel(other, { slug: 'sealed-c' })
  const canary = 'A=sealed-canary'
  const write = async (at: object, caller: Caller) => (await store(
    { ...at, plaintext: canary.padEnd(200, '.') }, caller
  )).body.data as { secret_id: string, version: string }
  const level = {
    a: [await write(a, owner), await write(a, owner)],
    b: [await write(b, owner), await write(b, owner)],
    c: [await write(c, other), await write(c, other)]
  } as const
  // Both organizations have the same version id, so only the organization differs.
  const [oldA, newA] = level.a
  const currentA = { table: 'secrets', where: `id = '${newA.secret_id}'`, reads: readsOf(a) }
  const versionA = (version: string) => ({
    table: 'secret_versions', where: `organization_id = '${org}' AND id = ${version}`, reads: versionReads(version)
  })

  const original = (await test.sql(
    `SELECT encode(sealed, 'hex') AS hex FROM secrets WHERE ${currentA.where}`
  ))[0]!.hex as string
  const size = original.length / 2
  t.equal(size, 1 + 24 + 12 + Math.ceil(228 / 3) * 4 + 16)
  const offsets = [0, 1, 12, 24, 25, 36, 37, 38, Math.floor(size / 2), size - 17, size - 16, size - 2, size - 1]
  for (const { table, where, reads } of [currentA, versionA(oldA.version)]) {
    for (const offset of offsets) {
      for (const mask of [1, 128]) {
        await tampered(
          t, table, where, `set_byte(sealed, ${offset}, get_byte(sealed, ${offset}) # ${mask})`, reads.slice(0, 1),
          owner
        )
      }
    }
    for (const value of [
      "''::bytea", "'\\x01'::bytea", 'substring(sealed FROM 2)', `substring(sealed FOR ${size - 1})`,
      'sealed || sealed', "sealed || '\\x00'::bytea"
    ]) {
      await tampered(t, table, where, value, reads, owner)
    }
  }

  const sources = {
    'another level': `(SELECT sealed FROM secrets WHERE id = '${level.b[1].secret_id}')`,
    'another organization': `(SELECT sealed FROM secrets WHERE id = '${level.c[1].secret_id}')`,
    'its newest version':
      `(SELECT sealed FROM secret_versions WHERE organization_id = '${org}' AND id = ${newA.version})`,
    'an old version': `(SELECT sealed FROM secret_versions WHERE organization_id = '${org}' AND id = ${oldA.version})`
  }
  for (const [name, value] of Object.entries(sources)) {
    await tampered(t, currentA.table, currentA.where, value, currentA.reads, owner, name)
  }
  const versionSources = {
    'another version': `(SELECT sealed FROM secret_versions WHERE organization_id = '${org}' AND id = ${newA.version})`,
    'a version of another level':
      `(SELECT sealed FROM secret_versions WHERE organization_id = '${org}' AND id = ${level.b[0].version})`,
    'a version of another organization':
      `(SELECT sealed FROM secret_versions WHERE organization_id = '${other.organization}' AND id = ${level.c[0].version})`,
    'the current document': `(SELECT sealed FROM secrets WHERE id = '${newA.secret_id}')`
  }
  for (const [name, value] of Object.entries(versionSources)) {
    const { table, where, reads } = versionA(oldA.version)
    await tampered(t, table, where, value, reads, owner, name)
  }

  // A rollback: the sealed column of an earlier write of the same level.
  await write(a, owner)
  await tampered(
    t, 'secrets', currentA.where, `'\\x${original}'::bytea`, currentA.reads, owner, 'an earlier write of the level'
  )
})

t.test('CR-01: a whole row that was put back to an earlier state is refused, by reads and by writes', async (t) => {
  const at = await makeLevel(owner, { slug: 'rolled-back' })
  const { secret_id } = (await store({ ...at, plaintext: 'A=old' })).body.data
  await test.sql(`CREATE TABLE kept AS SELECT * FROM secrets WHERE id = '${secret_id}'`)
  await store({ ...at, plaintext: 'A=new' })
  await test.sql(`UPDATE secrets SET revision = kept.revision, key_version = kept.key_version, sealed = kept.sealed, size_bytes = kept.size_bytes,
    version = kept.version, updated_at = kept.updated_at FROM kept WHERE secrets.id = kept.id`)
  await test.sql('DROP TABLE kept')
  for (const read of readsOf(at)) isRefused(t, await read(owner), 'the whole row of an earlier write')
  isRefused(t, await store({ ...at, plaintext: 'A=newer' }), 'a write upon it')
})

t.test('CR-01: a whole row that was moved or swapped is refused too', async (t) => {
  const other = await test.organization()
  const [a, b, c] = [
    await makeLevel(owner, { slug: 'rows-a' }), await makeLevel(owner, { slug: 'rows-b' }),
    await makeLevel(other, { slug: 'rows-c' })
  ]
  const [x, y, z] = [
    (await store({ ...a, plaintext: 'A=1' })).body.data, (await store({ ...b, plaintext: 'A=2' })).body.data,
    (await store({ ...c, plaintext: 'A=3' }, other)).body.data
  ]
  // Reads the rows before the updates, which can be on two nodes of a cluster.
  const swap = async (table: string, columns: string[], one: string, two: string) => {
    const rows = []
    for (const where of [one, two]) rows.push((await test.sql(`SELECT to_jsonb(t) AS row FROM ${table} t WHERE ${where}`))[0]!.row)
    for (const [row, where] of [[rows[0], two], [rows[1], one]] as [Record<string, unknown>, string][]) {
      const set = columns.map((column) => `${column} = ${row[column] === null ? 'NULL' : `'${String(row[column])}'`}`)
      await test.sql(`UPDATE ${table} SET ${set.join(', ')} WHERE ${where}`)
    }
  }
  const violations = async (caller: Caller) => (await test.sql(`
    SELECT count(*)::int AS count FROM audit_events WHERE organization_id = '${caller.organization}' AND action = 'integrity.violation'`))[0]!.count as number
  const expectRefusal = async (name: string, reads: Read[], caller = owner) => {
    for (const read of reads) {
      const before = await violations(caller)
      isRefused(t, await read(caller), name)
      t.equal(await violations(caller), before + 1, `${name}: one audit event`)
    }
  }

  const everything = ['revision', 'key_version', 'sealed', 'size_bytes', 'version']
  await swap('secrets', everything, `id = '${x.secret_id}'`, `id = '${y.secret_id}'`)
  await expectRefusal('documents of two levels', [...readsOf(a), ...readsOf(b)])
  await swap('secrets', everything, `id = '${x.secret_id}'`, `id = '${y.secret_id}'`)
  await swap('secrets', everything, `id = '${x.secret_id}'`, `id = '${z.secret_id}'`)
  await expectRefusal('documents of two organizations', readsOf(a))
  await expectRefusal('documents of two organizations', readsOf(c), other)
  await swap('secrets', everything, `id = '${x.secret_id}'`, `id = '${z.secret_id}'`)

  // A row under another level, and a row under another id.
  const environments = await test.sql(`SELECT id, project_id FROM environments WHERE organization_id = '${org}'`)
  const levelOf = async (slug: string) => {
    const [project] = await test.sql(`SELECT id FROM projects WHERE organization_id = '${org}' AND slug = '${slug}'`)
    return environments.find(({ project_id }) => project_id === project!.id)!.id
  }
  await test.sql(`UPDATE secrets SET level_id = 'x' WHERE id = '${x.secret_id}'`)
  await test.sql(
    `UPDATE secrets SET level_id = '${await levelOf('rows-a')}' WHERE id = '${y.secret_id}'`
  )
  await expectRefusal('a row under another level', [readsOf(a)[0]!, ...versionReads(y.version)])
  await test.sql(
    `UPDATE secrets SET level_id = '${await levelOf('rows-b')}' WHERE id = '${y.secret_id}'`
  )
  await test.sql(
    `UPDATE secrets SET level_id = '${await levelOf('rows-a')}' WHERE id = '${x.secret_id}'`
  )
  t.equal((await current(a, '?decrypt=true')).content, 'A=1', 'back in its place it opens')

  await test.sql(`UPDATE secrets SET revision = revision + 1 WHERE id = '${x.secret_id}'`)
  await expectRefusal('another revision', readsOf(a))
  await test.sql(`UPDATE secrets SET revision = revision - 1 WHERE id = '${x.secret_id}'`)

  const one = `organization_id = '${org}' AND id = ${x.version}`
  await swap(
    'secret_versions', ['sealed', 'size_bytes', 'action', 'key_version', 'created_at'], one,
    `organization_id = '${org}' AND id = ${y.version}`
  )
  await expectRefusal('versions of two levels', [...versionReads(x.version), ...versionReads(y.version)])
  await swap(
    'secret_versions', ['sealed', 'size_bytes', 'action', 'key_version', 'created_at'], one,
    `organization_id = '${org}' AND id = ${y.version}`
  )
  await test.sql(`UPDATE secret_versions SET history_id = '${y.secret_id}' WHERE ${one}`)
  await expectRefusal('a version in the history of another level', versionReads(x.version))
  await test.sql(`UPDATE secret_versions SET history_id = '${x.secret_id}' WHERE ${one}`)
  await test.sql(`UPDATE secret_versions SET id = 999 WHERE ${one}`)
  await expectRefusal('a version under another number', versionReads('999'))
  await test.sql(`UPDATE secret_versions SET id = ${x.version} WHERE organization_id = '${org}' AND id = 999`)
  t.equal(
    (await owner.call('POST', `/${org}/secrets/versions/${x.version}/restore`)).status, 200,
    'back in its place it opens'
  )
})

t.test('CR-01: keys that were changed or moved in the database are refused', async (t) => {
  const other = await test.organization()
  const client = await clientKey('correct horse battery staple')
  const [a, b, c] = [
    await makeLevel(owner, { slug: 'keys-a' }), await makeLevel(owner, { slug: 'keys-b' }),
    await makeLevel(other, { slug: 'keys-c' })
  ]
  const d = await makeLevel(owner, { slug: 'keys-d', ...client.registration })
  await makeLevel(owner, { slug: 'keys-e', ...client.registration })
  for (const [at, caller] of [[a, owner], [b, owner], [c, other]] as const) {
    await store({ ...at, plaintext: 'A=1' }, caller)
  }
  await store({ ...d, content: sealBlob(client.dataKey, 'A=1'), key_proof: client.proof })

  const project = (slug: string) => `(SELECT id FROM projects WHERE slug = '${slug}')`
  const whereOf = async (slug: string) => `project_id = '${(await test.sql(project(slug)))[0]!.id}'`
  const getKey = (slug: string): Read =>
    (caller) => caller.call('GET', `/${caller.organization}/${slug}/encryption-key`)
  const decrypt: Read = (caller) => caller.call('GET', `/${org}/keys-a/backend/live/secrets?decrypt=true`)
  const write: Read = (caller) => caller.call('POST', `/${org}/secrets/store`, { ...a, plaintext: 'A=2' })
  const prove: Read = (caller) => caller.call(
    'POST', `/${org}/secrets/store`, { ...d, content: sealBlob(client.dataKey, 'A=2'), key_proof: client.proof }
  )
  const history: Read = (caller) => caller.call('GET', `/${org}/keys-d/encryption-key/history`)
  const columns: { column: string, slug: string, from: string[], reads: Read[] }[] = [
    { column: 'data_key', slug: 'keys-a', from: ['keys-b', 'keys-c'], reads: [decrypt, write] },
    { column: 'key_string', slug: 'keys-a', from: ['keys-b', 'keys-c'], reads: [getKey('keys-a')] },
    { column: 'salt', slug: 'keys-a', from: ['keys-b', 'keys-c'], reads: [getKey('keys-a')] },
    { column: 'salt', slug: 'keys-d', from: ['keys-e'], reads: [getKey('keys-d'), history] },
    { column: 'key_check', slug: 'keys-d', from: ['keys-e'], reads: [prove] }
  ]
  for (const { column, slug, from, reads } of columns) {
    const where = await whereOf(slug)
    const length = (await test.sql(
      `SELECT length(${column}) AS length FROM encryption_keys WHERE ${where}`
    ))[0]!.length as number
    const label = 1 + test.keyring.currentId.length
    const values = [
      ...[label, label + 1, label + 30, length - 1].map((i) =>
        `set_byte(${column}, ${i}, get_byte(${column}, ${i}) # 1)`),
      ...from.map((source) => `(SELECT k.${column} FROM encryption_keys k WHERE k.project_id = ${project(source)})`),
      `substring(${column} FOR ${length - 1})`, "''::bytea"
    ]
    for (const value of values) {
      await tampered(t, 'encryption_keys', where, value, reads, owner, `${column} of ${slug}`, column)
    }
  }
  // A column in the place of another column, and the storage key of another organization.
  await tampered(
    t, 'encryption_keys', await whereOf('keys-a'), 'key_string', [decrypt], owner, 'key_string as data_key',
    'data_key'
  )
  const reads = [...readsOf(a), write]
  await tampered(
    t, 'organizations', `id = '${org}'`, `(SELECT storage_key FROM organizations WHERE id = '${other.organization}')`,
    reads, owner, 'storage key', 'storage_key'
  )
  t.equal(
    (await decrypt(owner)).body.data.attributes.levels.environment.content, 'A=1', 'nothing was changed by all that'
  )
})

t.test('CR-21: a dump of all tables holds no key, proof, salt, client ciphertext or plaintext', async (t) => {
  const plaintext = 'CANARY=plaintext-in-the-dump'
  const keyString = 'a key string that is in no dump at all'
  const server = await makeLevel(owner, { slug: 'dump-server', encryption_key: keyString })
  await store({ ...server, plaintext })
  const { key_check_salt: serverSalt } = (await owner.call(
    'GET', `/${org}/dump-server/encryption-key`
  )).body.data.attributes
  const serverBlob = (await current(server)).content
  const key = await clientKey('another key string that is in no dump')
  const client = await makeLevel(owner, { slug: 'dump-client', ...key.registration })
  const blob = sealBlob(key.dataKey, plaintext)
  const { version } = (await store({ ...client, content: blob, key_proof: key.proof })).body.data
  await owner.call('POST', `/${org}/secrets/delete`, client)
  await owner.call('POST', `/${org}/secrets/versions/${version}/restore`, { content: blob, key_proof: key.proof })

  const dump = await dumpTables()
  t.match(dump, 'dump-client', 'it is a dump')
  const derived = (await deriveDataKey(keyString, Buffer.from(serverSalt, 'base64'), QUICK.keyIterations)).export()
  const absent: Record<string, Buffer> = {
    plaintext: Buffer.from(plaintext),
    'key string': Buffer.from(keyString),
    'data key of the server': derived,
    'salt of the server': Buffer.from(serverSalt, 'base64'),
    'blob of the server': Buffer.from(serverBlob, 'base64'),
    proof: Buffer.from(key.proof, 'base64'),
    salt: key.salt,
    blob: Buffer.from(blob, 'base64'),
    'data key': key.dataKey.export()
  }
  for (const [name, bytes] of Object.entries(absent)) {
    const base64 = bytes.toString('base64')
    const forms = [
      bytes.toString('utf8'), bytes.toString('hex'), base64, base64.replace(/=+$/, ''),
      Buffer.from(base64).toString('hex')
    ]
    t.notOk(forms.some((form) => dump.includes(form)), name)
  }
  t.equal((await current(client)).content, blob, 'and yet it is all there')
})

type Read = (caller: Caller) => Promise<Answer>

/** The requests that read the document of a level. */
function readsOf ({ project }: { project: string }): Read[] {
  return ['', '?decrypt=true', '?decrypt=true&merge=true', '?decrypt=true&raw=true'].map((query) => (caller: Caller) =>
    caller.call('GET', `/${caller.organization}/${project}/backend/live/secrets${query}`))
}

/** The requests that read the content of a version. */
function versionReads (version: string): Read[] {
  return [
    (caller) => caller.call('GET', `/${caller.organization}/secrets/versions/${version}`),
    (caller) => caller.call('POST', `/${caller.organization}/secrets/versions/${version}/restore`)
  ]
}

/**
 * Sets a sealed column, and expects that the service refuses every read and records one event. Then restores the
 * column.
 */
async function tampered (
  t: Test, table: string, where: string, value: string, reads: Read[], caller: Caller, name = value, column = 'sealed'
) {
  const events = async () => (await test.sql(
    "SELECT count(*)::int AS count FROM audit_events WHERE action = 'integrity.violation'"
  ))[0]!.count as number
  const [row] = await test.sql(`SELECT encode(${column}, 'hex') AS hex FROM ${table} WHERE ${where}`)
  const [source] = value.startsWith('(SELECT') ? await test.sql(value) : []
  const bytes = source && `decode('${(Object.values(source)[0] as Buffer).toString('hex')}', 'hex')`
  await test.sql(`UPDATE ${table} SET ${column} = ${bytes ?? value} WHERE ${where}`)
  const before = await events()
  for (const read of reads) isRefused(t, await read(caller), `${table}: ${name}`)
  t.equal(await events(), before + reads.length, `${table}: ${name}: one audit event each`)
  await test.sql(`UPDATE ${table} SET ${column} = decode('${row!.hex}', 'hex') WHERE ${where}`)
}

function isRefused (t: Test, answer: Answer, name: string) {
  t.equal(answer.status, 500, `${name}: ${answer.text}`)
  t.strictSame(answer.body, {
    error: 'integrity_error', message: 'A stored record was changed outside the service and was rejected. Contact the operator.'
  }, name)
}

function store (body: object, caller = owner) {
  return caller.call('POST', `/${caller.organization}/secrets/store`, body)
}

async function current ({ project }: { project: string }, query = '') {
  return (await owner.call(
    'GET', `/${org}/${project}/backend/live/secrets${query}`
  )).body.data.attributes.levels.environment
}

async function projectId (slug: string): Promise<string> {
  return (await owner.call('GET', `/${org}/${slug}`)).body.data.id
}

/** Gives a project its next key, from the client or from the server. */
async function rotate (project: string, version: number, client?: Awaited<ReturnType<typeof clientKey>>) {
  const id = { organization_id: org, project_id: project, version }
  const key = client === undefined
    ? await makeServerKey(test.keyring, id)
    : registerClientKey(
      test.keyring, storageKey, id,
      { check: Buffer.from(client.proof, 'base64'), salt: client.salt, iterations: 1000, hint: undefined }
    )
  await test.sql(
    `UPDATE encryption_keys SET is_active = false, rotated_at = now() WHERE project_id = '${project}' AND is_active`
  )
  await test.database.db.insert(encryption_keys).values({
    ...key, organization_id: org, project_id: project, is_active: true
  })
  await test.write(`UPDATE projects SET key_version = ${version} WHERE id = '${project}'`)
}

/** All rows of all tables as text. */
async function dumpTables (): Promise<string> {
  const tables = await test.sql(
    "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
  )
  const rows = []
  for (const { table_name } of tables) rows.push(...await test.sql(`SELECT t::text AS row FROM "${table_name}" t`))
  return rows.map(({ row }) => row).join('\n')
}
