// runs: one database
import t from 'tap'
import { sealBlob } from '../../src/crypto/blob.ts'
import { makeLevel, startIsolatedApp, type Answer, type Caller } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'
import { makeLevels, miscounted, startInstances, times, type Level } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

// This file has its own database, because it compares the counts of all organizations with their rows.
const service = await startIsolatedApp(t)

/** The stored bytes of an empty plaintext: initialization vector and tag. */
const OVERHEAD = 28

const bytesOf = async ({ organization, call }: Caller) => {
  const { status, body } = await call('GET', `/organizations/${organization}/usage`)
  if (status !== 200) throw new Error(`${status}`)
  return body.data.attributes.bytes as { used: number, limit: number | null }
}
const usedBy = async (caller: Caller) => (await bytesOf(caller)).used

/** Gives an organization a new plan with this limit. */
async function limit ({ organization }: Caller, max_bytes: number | null) {
  await service.sql(`INSERT INTO plans (name, api_per_minute, max_bytes) VALUES ('${organization}', 100, ${max_bytes})
    ON CONFLICT (name) DO UPDATE SET max_bytes = excluded.max_bytes`)
  await service.sql(`UPDATE organization_counters SET plan = '${organization}' WHERE organization_id = '${organization}'`)
}

const store = (caller: Caller, at: object, plaintext: string, more: object = {}) =>
  caller.call('POST', `/${caller.organization}/secrets/store`, { ...at, plaintext, unchecked: true, ...more })
const full = ({ status, body }: Answer) => [status, body.error, body.details]

t.test('what is stored is what documents and versions hold, after each kind of change', async (t) => {
  const caller = await service.organization()
  const { organization, call } = caller
  const at = await makeLevel(caller)
  t.strictSame(await bytesOf(caller), { used: 0, limit: null })
  let stored = 0
  const holds = async (growth: number, what: string, answer?: Promise<Answer>) => {
    const made = await answer
    t.ok(made === undefined || made.status < 300, `${what}: ${made?.text}`)
    stored += growth
    t.equal(await usedBy(caller), stored, what)
    t.same(await miscounted(service.sql), [], what)
  }
  const size = (characters: number) => characters + OVERHEAD
  await holds(2 * size(10), 'a first document', store(caller, at, 'a'.repeat(10)))
  await holds(size(30) - size(10) + size(30), 'another one', store(caller, at, 'a'.repeat(30)))
  await holds(size(20) - size(30), 'one without a version', store(caller, at, 'a'.repeat(20), { no_backup: true }))
  await holds(0, 'a delete', call('POST', `/${organization}/secrets/delete`, at))
  const versions = (await call('POST', `/${organization}/secrets/versions`, at)).body.data as { id: string }[]
  await holds(
    2 * size(30), 'a restore', call('POST', `/${organization}/secrets/versions/${versions[1]!.id}/restore`, {})
  )
  await holds(-size(10), 'a version less', call('DELETE', `/${organization}/secrets/versions/${versions[2]!.id}`))
  const project = { project: at.project }
  await holds(2 * size(50), 'a document of the project', store(caller, project, 'b'.repeat(50)))
  const rotate = (body: object) => call('POST', `/${organization}/${at.project}/encryption-key/rotate`, body)
  await holds(size(30) + size(50), 'a rotation', rotate({}))
  await holds(size(30) + size(50), 'a rotation with its history', rotate({ history_policy: 're_encrypt' }))
  const isMoving = async () => {
    const { body } = await call('GET', `/${organization}/${at.project}/encryption-key/history`)
    return body.re_encryption?.state === 'running'
  }
  await until(async () => !await isMoving(), { within: 120_000 })
  await holds(0, 'its history moved')
  const kept = 2 * size(50) + 2 * size(50) + size(30)
  await holds(
    kept - stored, 'a purge of one history',
    call('POST', `/${organization}/secrets/versions/purge`, { ...at, confirmed: true })
  )
  await holds(
    -3 * size(50), 'a purge of the project',
    call('POST', `/${organization}/secrets/versions/purge`, { ...project, scope: 'project', confirmed: true })
  )
  await holds(2 * size(40), 'and on', store(caller, { ...project, target: at.target }, 'c'.repeat(40)))
  await holds(
    -size(30), 'a delete for good',
    call('POST', `/${organization}/secrets/delete`, { ...at, no_backup: true, confirmed: true })
  )
  await holds(2 * size(5), 'one again', store(caller, at, 'd'.repeat(5)))
  await holds(-2 * size(5) - 2 * size(40), 'a target deleted', call('DELETE', `/${organization}/${at.project}/backend`, {
    confirmed: true
  }))
  await holds(-size(50), 'a project deleted', call('DELETE', `/${organization}/${at.project}`, { confirmed: true }))
  t.equal(stored, 0)
})

t.test('a client’s contents are counted as it sends them, larger or smaller than before', async (t) => {
  const caller = await service.organization()
  const { organization, call } = caller
  const [first, second] = [await clientKey('correct horse'), await clientKey('battery staple')]
  const at = await makeLevel(caller, first.registration)
  const blob = (key: typeof first, length: number) => sealBlob(key.dataKey, Buffer.alloc(length, 'x'))
  const base = `/${organization}/${at.project}/secrets`
  const storeBlob = (length: number) => call('POST', `/${organization}/secrets/store`, {
    ...at, content: blob(first, length), key_proof: first.proof
  })
  t.equal((await storeBlob(10)).status, 200)
  const { secret_id } = (await storeBlob(20)).body.data
  const { storage_mode: _, ...triple } = second.registration
  const rotateTo = (length: number) => call('POST', `${base}/rotate-client-keys`, {
    secrets: [{ id: secret_id, content: blob(second, length) }],
    ...triple,
    key_proof: first.proof,
    history_policy: 're_encrypt'
  })
  const sizes = (...lengths: number[]) => lengths.reduce((sum, length) => sum + length + OVERHEAD, 0)
  const before = sizes(10, 20, 20)
  t.equal(await usedBy(caller), before)
  const after = sizes(10, 20, 25, 25)
  await limit(caller, after - 1)
  t.strictSame(
    full(await rotateTo(25)),
    [422, 'plan_limit_reached', { limit: after - 1, used: before, plan: organization }], 'a rotation keeps a version'
  )
  t.equal(await usedBy(caller), before)
  await limit(caller, after)
  t.equal((await rotateTo(25)).status, 200)
  t.equal(await usedBy(caller), after)

  const { data } = (await call('POST', `${base}/re-encrypt-history/pending`)).body as { data: { id: number }[] }
  t.equal(data.length, 2)
  const submit = (lengths: number[]) => call('POST', `${base}/re-encrypt-history`, {
    versions: data.map(({ id }, i) => ({ id, content: blob(second, lengths[i]!) })), key_proof: second.proof
  })
  t.equal((await submit([11, 20])).body.error, 'plan_limit_reached')
  t.equal(await usedBy(caller), after)
  t.equal((await submit([12, 15])).status, 200)
  t.equal(await usedBy(caller), after - 3)
  t.same(await miscounted(service.sql), [])
})

t.test('a write that the plan has no room for is refused, and nothing is stored; what frees room is not', async (t) => {
  const caller = await service.organization()
  const { organization, call } = caller
  const at = await makeLevel(caller)
  await store(caller, at, 'a'.repeat(100))
  const used = 2 * (100 + OVERHEAD)
  await limit(caller, used + 50)
  t.strictSame(await bytesOf(caller), { used, limit: used + 50 })
  const recorded = () => service.sql(`SELECT count(*)::int AS events,
      (SELECT count(*)::int FROM secret_versions WHERE organization_id = '${organization}') AS versions
    FROM audit_events WHERE organization_id = '${organization}'`)
  const before = await recorded()
  const details = { limit: used + 50, used, plan: organization }
  const [{ id }] = (await call('POST', `/${organization}/secrets/versions`, at)).body.data
  for (const [what, refused] of [
    ['store', await store(caller, at, 'a'.repeat(100))],
    ['store without a version', await store(caller, at, 'a'.repeat(200), { no_backup: true })],
    ['store elsewhere', await store(caller, { project: at.project }, 'b')],
    ['restore', await call('POST', `/${organization}/secrets/versions/${id}/restore`, {})],
    ['rotate', await call('POST', `/${organization}/${at.project}/encryption-key/rotate`, {})]
  ] as const) t.strictSame(full(refused), [422, 'plan_limit_reached', details], what)
  t.same(await recorded(), before)

  await limit(caller, 0)
  t.equal((await store(caller, at, 'a'.repeat(99), { no_backup: true })).status, 200, 'what is smaller than before')
  t.equal((await store(caller, at, 'a'.repeat(99), { no_backup: true })).status, 200, 'or as large')
  t.equal((await call('POST', `/${organization}/secrets/delete`, at)).status, 204, 'a delete keeps what was there')
  const purge = { ...at, confirmed: true }
  t.equal((await call('POST', `/${organization}/secrets/versions/purge`, purge)).status, 200)
  t.equal(await usedBy(caller), 0)
  t.equal((await store(caller, at, '')).body.error, 'plan_limit_reached')
  await limit(caller, 2 * OVERHEAD)
  t.equal((await store(caller, at, '')).status, 200, 'exactly what there is room for')
  t.same(await miscounted(service.sql), [])
})

t.test('of forty who write at once, exactly as many succeed as the plan has room for', async (t) => {
  const { service: { sql }, send, organization } = await startInstances(t)
  const levels = await makeLevels(send, 'orbit', times(40, (i) => `e${i}`))
  const deepest = levels.filter(({ environment }) => environment !== undefined)
  t.equal(deepest.length, 40)
  const size = 64 + OVERHEAD
  const bytes = async () => (await send('GET', `//api/v1/organizations/${organization}/usage`)).body.data.attributes.bytes
  await sql(`INSERT INTO plans (name, api_per_minute) VALUES ('${organization}', 100)`)
  await sql(`UPDATE organization_counters SET plan = '${organization}' WHERE organization_id = '${organization}'`)
  const race = async (at: readonly Level[], room: number) => {
    const limit = (await bytes()).used + room
    await sql(`UPDATE plans SET max_bytes = ${limit} WHERE name = '${organization}'`)
    const answers = await Promise.all(at.map((level) =>
      send('POST', '/secrets/store', { ...level, plaintext: 'A='.padEnd(64, 'x') })))
    t.ok(answers.every(({ status, body }) => status === 200 || body.error === 'plan_limit_reached'))
    t.same(await miscounted(sql), [])
    return at.filter((_, i) => answers[i]!.status === 200)
  }
  // Ten documents fit, each with its version. The remaining space of `size` bytes is too small for another document
  // with its version.
  const stored = await race(deepest, 10 * 2 * size + size)
  t.equal(stored.length, 10)
  // A store over an existing document adds only a version.
  t.equal((await race(deepest.map(() => stored[0]!), 10 * size)).length, 10)
  t.strictSame(await bytes(), { used: 30 * size, limit: 30 * size })
})

t.test('a plan that what is stored does not fit is refused', async (t) => {
  const caller = await service.organization()
  const { organization, call } = caller
  const at = await makeLevel(caller)
  await store(caller, at, 'a'.repeat(100))
  const bound = 1_073_741_824
  await service.sql(`UPDATE organization_counters SET stored_bytes = stored_bytes + ${bound}
    WHERE organization_id = '${organization}'`)
  const refused = await call('POST', `/organizations/${organization}/subscription`, { plan: 'pro' })
  t.strictSame(full(refused), [
    422, 'plan_limit_reached', { limit: bound, used: bound + 2 * (100 + OVERHEAD), plan: 'pro' }
  ])
  await service.sql(`UPDATE organization_counters SET stored_bytes = stored_bytes - ${bound}
    WHERE organization_id = '${organization}'`)
  t.equal((await call('POST', `/organizations/${organization}/subscription`, { plan: 'pro' })).status, 201)
})
