// runs: one database; 30 s
import { createHash, randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { sql } from 'drizzle-orm'
import t from 'tap'
import { buildApp } from '../../src/app.ts'
import { loadConfig } from '../../src/config.ts'
import { connect } from '../../src/db/database.ts'
import { deleteExpiredAssertions, isSpent, spendAssertion } from '../../src/repositories/people/workloads.ts'
import { open } from '../../src/commands/common/open.ts'
import { isBeforeRestore } from '../../src/rules/workload-presets.ts'
import { QUICK } from '../helpers/costs.ts'
import { ON_CITUS, startIsolatedApp, type Caller } from '../helpers/app.ts'
import { AUDIENCE, makeKey, signFor, startIssuer } from '../helpers/issuer.ts'
import { command, emptyPlace, scratchDirectory } from '../helpers/process.ts'
import { until } from '../helpers/until.ts'

// The tokens of platforms against trust rules: the operation `test`, and tokens that can be used once.

t.setTimeout(120_000)

const issuer = await startIssuer(t)
// This file has its own database, because it makes a backup of the whole database.
const service = await startIsolatedApp(t, issuer.env)
const ISSUER = 'https://issuer.example'
const key = await makeKey('ES256', 'k1')

const BODY = {
  name: 'Deployment',
  issuer: ISSUER,
  jwks: { keys: [key.jwk] },
  audience: AUDIENCE,
  claims: { repository_id: '4711' },
  scopes: ['secret:read']
}
const CLAIMS = { repository_id: '4711' }
async function makeRule (caller: Caller, body: object = {}) {
  const path = `/organizations/${caller.organization}/workloads`
  const { status, body: { data }, text } = await caller.call('POST', path, { ...BODY, ...body })
  if (status !== 201) throw new Error(text)
  return { id: Number(data.id), path: `${path}/${data.id}` }
}
async function tested (caller: Caller, path: string, token: string) {
  const { status, body, text } = await caller.call('POST', `${path}/test`, { token })
  if (status !== 200) throw new Error(text)
  return body.data as { accepted: boolean, check: string | null }
}
const seconds = () => Math.floor(Date.now() / 1000)

t.test('a test says whether a token is accepted, or the check that failed', async (t) => {
  const owner = await service.organization()
  const { path } = await makeRule(owner)
  const check = async (claims: object, header = {}, signer = key, iss = ISSUER) =>
    tested(owner, path, await signFor(iss, signer, { ...CLAIMS, ...claims }, header))
  t.strictSame(await check({}), { accepted: true, check: null })
  const failing: [Parameters<typeof check>, string][] = [
    [[{ repository_id: '4712' }], 'claims'], [[{ repository_id: 4711 }], 'claims'],
    [[{ aud: 'https://other' }], 'audience'],
    [[{ exp: seconds() - 61 }], 'expiry'], [[{ iat: seconds() - 7200 }], 'age'], [[{ sub: undefined }], 'subject'],
    [[{ nbf: seconds() + 120 }], 'not_before'], [[{}, { typ: 'at+jwt' }], 'type'],
    [[{}, { crit: ['b64'], b64: true }], 'critical'],
    [[{}, {}, key, 'https://other.example'], 'issuer'], [[{}, {}, await makeKey('ES256', 'k1')], 'signature'],
    [[{}, {}, await makeKey('ES256', 'k2')], 'key']
  ]
  for (const [args, name] of failing) t.strictSame(await check(...args), { accepted: false, check: name }, name)
  for (const token of ['x', 'a.b.c', '..', 'eyJhbGciOiJub25lIn0.e30.']) {
    const { accepted, check: name } = await tested(owner, path, token)
    t.strictSame([accepted, ['format', 'algorithm'].includes(name!)], [false, true], token)
  }
})

t.test('a test says that the rule is disabled only if the token would be accepted otherwise', async (t) => {
  const owner = await service.organization()
  const { path } = await makeRule(owner, { enabled: false })
  t.strictSame(await tested(owner, path, await signFor(ISSUER, key, CLAIMS)), { accepted: false, check: 'disabled' })
  t.strictSame(await tested(owner, path, await signFor(ISSUER, key)), { accepted: false, check: 'claims' })
})

t.test('a test gets the keys of the issuer, and says why it cannot', async (t) => {
  const owner = await service.organization()
  const { path } = await makeRule(owner, { issuer: issuer.issuer, jwks: null })
  t.strictSame(await tested(owner, path, await issuer.sign(CLAIMS)), { accepted: true, check: null })
  const hidden = await makeRule(owner, { issuer: 'https://169.254.169.254', jwks: null })
  const token = await signFor('https://169.254.169.254', key, CLAIMS)
  t.strictSame(await tested(owner, hidden.path, token), { accepted: false, check: 'issuer_address' })
})

t.test('a test needs api-token:read, uses no token up, makes no event, and leaves nothing in the log', async (t) => {
  const owner = await service.organization()
  const { id, path } = await makeRule(owner, { single_use: true })
  const token = await signFor(ISSUER, key, { ...CLAIMS, jti: randomUUID() })
  const events = async () => (await service.sql(`SELECT count(*)::int AS events FROM audit_events
    WHERE organization_id = '${owner.organization}'`))[0]!.events
  const before = await events()
  const reader = await service.token(owner.organization, ['api-token:read'])
  for (let i = 0; i < 2; i++) t.strictSame(await tested(reader, path, token), { accepted: true, check: null })
  t.equal((await service.sql(`SELECT FROM spent_assertions WHERE rule_id = ${id}`)).length, 0)
  t.equal(await events(), before)
  const other = await service.token(owner.organization, ['api-token:create', 'api-token:update', 'api-token:delete'])
  t.match(await other.call('POST', `${path}/test`, { token }), {
    status: 403, body: { details: { required_scope: 'api-token:read' } }
  })
  for (const body of [{}, { token: '' }, { token: 7 }, { token: 'x'.repeat(16 * 1024 + 1) }, { token, more: 1 }]) {
    t.equal((await owner.call('POST', `${path}/test`, body)).status, 422)
  }
  const [head, payload, signature] = token.split('.') as [string, string, string]
  for (const part of [token, payload, signature]) t.notOk(service.logs.some((line) => line.includes(part)))
  t.ok(head.length > 0)
})

const spentOf = (caller: Caller, rule_id: number, spend = 'a') => ({
  organization_id: caller.organization, rule_id, spend: spend.repeat(64)
})
const inAnHour = () => new Date(Date.now() + 3_600_000)

t.test('WI-25 an assertion is used once for each rule, also by requests of two instances at the same time', async (t) => {
  const [owner, other] = [await service.organization(), await service.organization()]
  const { DATABASE_URL: url } = service.env
  const instances = [service.database]
  if (url !== undefined) {
    const second = await connect({ url, pool: 2 })
    t.teardown(() => second.close())
    instances.push(second)
  }
  const expires_at = inAnHour()
  for (const spend of ['a', 'b', 'c']) {
    const used = await Promise.all(Array.from({ length: 8 }, async (_, i) =>
      spendAssertion(instances[i % instances.length]!.db, { ...spentOf(owner, 1, spend), expires_at })))
    t.equal(used.filter(Boolean).length, 1, spend)
    t.ok(await isSpent(service.database.db, spentOf(owner, 1, spend)))
  }
  const { db } = service.database
  t.equal(await spendAssertion(db, { ...spentOf(owner, 2), expires_at }), true, 'for another rule')
  t.equal(await spendAssertion(db, { ...spentOf(other, 1), expires_at }), true, 'in another organization')
  t.equal(await isSpent(db, spentOf(owner, 1, 'd')), false)
})

t.test('a used token is refused as used, and by a rule without single_use it is not', async (t) => {
  const owner = await service.organization()
  const { id, path } = await makeRule(owner, { single_use: true })
  const token = await signFor(ISSUER, key, { ...CLAIMS, jti: 'j1' })
  const spend = createHash('sha256').update('jti:j1').digest('hex')
  await spendAssertion(service.database.db, {
    organization_id: owner.organization, rule_id: id, spend, expires_at: inAnHour()
  })
  t.strictSame(await tested(owner, path, token), { accepted: false, check: 'used' })
  t.equal((await owner.call('PATCH', path, { single_use: false })).status, 200)
  t.strictSame(await tested(owner, path, token), { accepted: true, check: null })
})

t.test('the background job deletes used assertions that have expired, and no others', async (t) => {
  const [owner, other] = [await service.organization(), await service.organization()]
  const { db } = service.database
  const left = async (caller: Caller) => (await service.sql(`SELECT spend FROM spent_assertions
    WHERE organization_id = '${caller.organization}' ORDER BY spend`)).map(({ spend }) => (spend as string)[0])
  for (const [caller, spend, expires_at] of [
    [owner, 'a', new Date(Date.now() - 1000)], [owner, 'b', new Date(Date.now() - 1000)], [owner, 'c', inAnHour()],
    [other, 'a', inAnHour()]
  ] as const) await spendAssertion(db, { ...spentOf(caller, 1, spend), expires_at })
  t.equal(await deleteExpiredAssertions(db, owner.organization, 1), 1, 'at most as many as asked for')
  service.app.removals.start()
  service.app.removals.wake()
  await until(async () => (await left(owner)).length === 1)
  t.strictSame([await left(owner), await left(other)], [['c'], ['a']])
})

t.test('an assertion may have been used before a restore up to a minute after it', async (t) => {
  const restored = new Date('2026-11-30T12:00:00Z')
  const at = (s: number) => new Date(restored.getTime() + s * 1000)
  t.equal(isBeforeRestore(null, at(-1)), false)
  for (const s of [-3600, 0, 59, 60]) t.equal(isBeforeRestore(restored, at(s)), true, String(s))
  for (const s of [61, 3600]) t.equal(isBeforeRestore(restored, at(s)), false, String(s))
})

t.test('WI-26 after a restore, rules with single_use refuse all tokens from before it', {
  skip: ON_CITUS && 'citus/backup restores on Citus'
}, async (t) => {
  const owner = await service.organization()
  const [once, often] = [await makeRule(owner, { single_use: true }), await makeRule(owner)]
  const used = { organization_id: owner.organization, rule_id: once.id, spend: 'e'.repeat(64), expires_at: inAnHour() }
  await spendAssertion(service.database.db, used)
  const file = join(scratchDirectory(t), 'backup')
  t.match(await command(['backup', file], service.env), { code: 0 })
  const env = { ...await emptyPlace(t), MASTER_KEY: service.env.MASTER_KEY ?? '' }
  t.match(await command(['restore', file], env), { code: 0 })

  const { database, keyring } = await open(loadConfig(env), { creates: true })
  const app = await buildApp({
    config: loadConfig({ RATE_LIMIT_API: '0', LOG_LEVEL: 'silent' }), database, keyring, costs: QUICK
  })
  t.teardown(async () => {
    await app.close()
    await database.close()
  })
  const ask = async (path: string, claims: object) => {
    const answer = await app.inject({
      method: 'POST',
      url: `/api/v1${path}/test`,
      headers: { authorization: `Bearer ${owner.token}` },
      payload: { token: await signFor(ISSUER, key, { ...CLAIMS, ...claims }) }
    })
    return answer.json().data
  }
  t.equal(await isSpent(database.db, used), false, 'used assertions are not in the backup')
  const now = seconds()
  const [row] = await database.db.execute(sql`SELECT extract(epoch FROM restored_at)::float8 AS time
    FROM organization_restores WHERE organization_id = ${owner.organization}`) as unknown as [{ time: number }]
  const restored = Math.floor(row.time)
  const refused = { accepted: false, check: 'restored' }
  for (const s of [-600, 0, 59]) {
    t.strictSame(await ask(once.path, { iat: restored + s, exp: now + 600 }), refused, String(s))
  }
  t.strictSame(await ask(often.path, { iat: now - 600 }), { accepted: true, check: null }, 'without single_use')
  const before = new Date(Date.now() - 120_000).toISOString()
  await database.db.execute(sql`UPDATE organization_restores SET restored_at = ${before}
    WHERE organization_id = ${owner.organization}`)
  t.strictSame(await ask(once.path, { iat: now - 600, exp: now + 600 }), refused)
  t.strictSame(await ask(once.path, {}), { accepted: true, check: null }, 'one that was made after it')
  t.match(await command(['drill', file], { MASTER_KEY: env.MASTER_KEY }), { code: 0 }, 'the drill opens the rules')
})
