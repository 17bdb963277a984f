// runs: one database
import { createHash, createHmac } from 'node:crypto'
import { join } from 'node:path'
import t from 'tap'
import { ulid } from 'ulidx'
import { buildApp } from '../../src/app.ts'
import { open } from '../../src/commands/common/open.ts'
import { rewrap } from '../../src/commands/keys/rewrap.ts'
import { loadConfig } from '../../src/config.ts'
import { formToken, hashToken, mintApiToken, mintSecret, storedToken } from '../../src/crypto/bearer.ts'
import { createKeyring, generateMasterKey, parseMasterKey } from '../../src/crypto/keyring.ts'
import type { Database } from '../../src/db/database.ts'
import { countWrapped } from '../../src/repositories/keys/master-keys.ts'
import { createOrganization } from '../../src/repositories/levels/organizations.ts'
import { createToken } from '../../src/repositories/people/tokens.ts'
import { makeStorageKey } from '../../src/vault/keys/keys.ts'
import { openRows } from '../../src/jobs/violations.ts'
import { startIsolatedApp, type TestApp } from '../helpers/app.ts'
import { QUICK } from '../helpers/costs.ts'
import { command, scratchDirectory } from '../helpers/process.ts'

// An attacker has the database or a backup. The attacker must not be able to test guesses of a request against the
// stored values.

t.setTimeout(120_000)

// This file has its own database, because it gives organizations fixed slugs, changes the master key, and makes a
// backup.
const first = await startIsolatedApp(t)
const second = await startIsolatedApp(t)

interface Stored { principal: string, key: string, request: string }

const storedFor = async ({ sql }: TestApp, organization: string) => await sql(`
  SELECT principal, key, encode(request, 'hex') AS request FROM idempotency_keys
  WHERE organization_id = '${organization}' ORDER BY created_at`) as unknown as Stored[]

const BODY = { name: 'Orbit', description: 'PIN=4711' }
const KEY = 'order-17'

const send = (app: { inject: TestApp['inject'] }, organization: string, token: string, key = KEY, body = BODY) =>
  app.inject({
    method: 'POST',
    url: `/api/v1/${organization}/projects`,
    headers: { authorization: `Bearer ${token}`, 'idempotency-key': key },
    payload: body
  })

/** An organization with one token. The caller chooses both ids. */
async function sameCaller ({ database: { db }, keyring, sql, write }: TestApp, id: string, tokenId: number) {
  const token = mintApiToken(id)
  await createOrganization(
    db, { id, name: 'Nimbus', slug: 'nimbus', plan: 'self-hosted', storage_key: makeStorageKey(keyring, id) }
  )
  await createToken(db, {
    organization_id: id,
    name: 'Same',
    ...storedToken(token),
    abilities: ['*'],
    slices: [],
    expires_at: null
  })
  const own = `organization_id = '${id}'`
  for (const one of [
    `CREATE TABLE kept AS SELECT * FROM api_tokens WHERE ${own}`, `UPDATE kept SET id = ${tokenId}`,
    `DELETE FROM api_tokens WHERE ${own}`
  ]) await sql(one)
  await write('INSERT INTO api_tokens OVERRIDING SYSTEM VALUE SELECT * FROM kept')
  await sql('DROP TABLE kept')
  return token
}

t.test('two installations store different values for the same request, caller and Idempotency-Key', async (t) => {
  const organization = ulid()
  const rows: Stored[] = []
  for (const service of [first, second]) {
    const token = await sameCaller(service, organization, 17)
    t.equal((await send(service, organization, token)).status, 201)
    rows.push(...await storedFor(service, organization))
  }
  t.equal(rows.length, 2)
  const [one, other] = rows as [Stored, Stored]
  t.strictSame([one.principal, other.principal], ['api_token:17', 'api_token:17'], 'the same caller')
  t.not(one.key, other.key)
  t.not(one.request, other.request)
})

t.test('a request is stored as another value for another organization, caller or Idempotency-Key', async (t) => {
  const [nimbus, cumulus] = [await first.organization(), await first.organization()]
  const colleague = await first.token(nimbus.organization, ['*'])
  for (const { organization, token } of [nimbus, cumulus, colleague]) {
    t.equal((await send(first, organization, token)).status, 201)
  }
  t.equal((await send(first, nimbus.organization, nimbus.token, 'order-18')).status, 201)
  const rows = [
    ...await storedFor(first, nimbus.organization), ...await storedFor(first, cumulus.organization)
  ]
  t.equal(rows.length, 4)
  t.equal(new Set(rows.map(({ key }) => key)).size, 4, 'keys')
  t.equal(new Set(rows.map(({ request }) => request)).size, 4, 'requests')
})

t.test('with the stored record alone, a guess at the Idempotency-Key or at the request cannot be checked', async (t) => {
  const { organization, token } = await first.organization()
  t.equal((await send(first, organization, token)).status, 201)
  const [{ key, request, principal }] = await storedFor(first, organization) as [Stored]

  // All known parts of the request and of the record, hashed in each order and with each part as a key.
  const known = [
    KEY, `name ${KEY}`, `request ${KEY}`, JSON.stringify(BODY), principal, organization,
    JSON.stringify(['POST', `/api/v1/${organization}/projects`, {}])
  ]
  const joined = known.flatMap((one) => [one, ...known.flatMap((two) => ['', ' ', '\n', '\0'].map((by) => one + by + two))])
  const hashes = new Set<string>()
  for (const text of joined) {
    const hash = createHash('sha256').update(text).digest()
    hashes.add(hash.toString('hex'))
    for (const data of known) {
      hashes.add(createHmac('sha256', text).update(data).digest('hex'))
      hashes.add(createHmac('sha256', hash).update(data).digest('hex'))
    }
  }
  // The same parts in a chain: each part with the parts before it, and with a key derived from the header.
  const secret = createHash('sha256').update(`request ${KEY}`).digest()
  let mac: Buffer = Buffer.alloc(0)
  const members = Object.entries(BODY).sort(([one], [other]) => one < other ? -1 : 1)
  for (const part of [['POST', `/api/v1/${organization}/projects`, {}], ...members]) {
    mac = createHmac('sha256', secret).update(Buffer.concat([mac, Buffer.from(JSON.stringify(part))])).digest()
  }
  hashes.add(mac.toString('hex'))

  t.match(key, /^[0-9a-f]{64}$/)
  t.match(request, /^[0-9a-f]{64}$/)
  t.notOk(hashes.has(key), 'the key')
  t.notOk(hashes.has(request), 'the request')
})

t.test('a repeat takes effect once after a change of the master key, and after a backup and its restore', async (t) => {
  const service = await startIsolatedApp(t)
  const { organization, token } = await service.organization()
  const made = await send(service, organization, token)
  t.equal(made.status, 201, made.text)

  const repeats = async (database: Database, keyring: TestApp['keyring'], when: string) => {
    const config = loadConfig({ RATE_LIMIT_API: '0', LOG_LEVEL: 'silent' })
    const app = await buildApp({ config, database, keyring, costs: QUICK })
    const call = async (method: 'GET' | 'POST', headers: Record<string, string> = {}, payload?: object) => {
      const { statusCode, payload: text, headers: its } = await app.inject({
        method,
        url: `/api/v1/${organization}/projects`,
        headers: { authorization: `Bearer ${token}`, ...headers },
        ...(payload && { payload })
      })
      return { status: statusCode, text, isReplay: its['idempotent-replayed'] === 'true' }
    }
    const key = { 'idempotency-key': KEY }
    t.strictSame(await call('POST', key, BODY), { status: 201, text: made.text, isReplay: true }, when)
    t.equal((await call('POST', key, { ...BODY, name: 'Comet' })).status, 422, `${when}: of another request`)
    t.equal(JSON.parse((await call('GET')).text).data.length, 1, `${when}: nothing is done twice`)
    await app.close()
  }

  const { text } = generateMasterKey()
  const [before, after] = [parseMasterKey(service.env.MASTER_KEY!), parseMasterKey(text)]
  const both = createKeyring([after, before])
  await openRows(service.database, both)
  t.ok((await rewrap({ database: service.database, keyring: both })).rewrapped > 0)
  t.equal(await countWrapped(service.database.db, before.id), 0)
  const alone = createKeyring([after])
  await openRows(service.database, alone)
  await repeats(service.database, alone, 'under the new master key')

  const file = join(scratchDirectory(t), 'one.backup')
  const saved = await command(['backup', file], { ...service.env, MASTER_KEY: text })
  t.equal(saved.code, 0, saved.stderr)
  const place = { DATA_DIR: scratchDirectory(t), MASTER_KEY: text }
  const restored = await command(['restore', file], place)
  t.equal(restored.code, 0, restored.stderr)
  const elsewhere = await open(loadConfig(place), { creates: true })
  t.teardown(() => elsewhere.database.close())
  await repeats(elsewhere.database, elsewhere.keyring, 'after a restore')
})

t.test('the database alone does not show which addresses were tried, or from where', async (t) => {
  const browser = mintSecret()
  const email = 'nobody@nimbus.example'
  const failures = async (service: TestApp) => {
    const answer = await service.inject({
      method: 'POST',
      url: '/oauth/sign-in',
      remoteAddress: '203.0.113.7',
      headers: {
        cookie: `browser=${browser}`,
        'sec-fetch-site': 'same-origin',
        'content-type': 'application/x-www-form-urlencoded'
      },
      payload: new URLSearchParams({ form_token: formToken(browser), query: '', email, password: 'wrong' }).toString()
    })
    t.equal(answer.status, 422)
    return (await service.sql("SELECT encode(key, 'hex') AS key FROM sign_in_failures ORDER BY key")).map(({ key }) => key)
  }
  const [one, other] = [await failures(first), await failures(second)]
  t.equal(one.length, 2, 'the address from its network, and from anywhere')
  t.equal(new Set([...one, ...other]).size, 4, 'two installations store different values')
  const names = [`email:${email}`, `email:${email} ip:203.0.113.7`]
  for (const name of names) t.notOk(one.includes(hashToken(name).toString('hex')), name)
})
