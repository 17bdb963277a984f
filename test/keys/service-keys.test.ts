// runs: one database
import t from 'tap'
import { sql } from 'drizzle-orm'
import { initialize } from '../../src/commands/people/initialize.ts'
import { hashToken, mintApiToken } from '../../src/crypto/bearer.ts'
import { createKeyring, generateMasterKey, parseMasterKey } from '../../src/crypto/keyring.ts'
import { random } from '../../src/crypto/primitives.ts'
import { AUTHENTICATED } from '../../src/db/rows/authenticated.ts'
import { authorityOf, connect, type Database } from '../../src/db/database.ts'
import { findPrincipal } from '../../src/repositories/people/principals.ts'
import { serviceKeyContext } from '../../src/vault/keys/contexts.ts'
import { openRows } from '../../src/jobs/violations.ts'
import { RowKeyError } from '../../src/vault/audit/row-authentication.ts'
import { freshDatabase, startIsolatedApp } from '../helpers/app.ts'
import { beside } from '../helpers/statements.ts'

// The service creates the keys that authenticate rows and events only once, for an empty database. Only data
// that the master key encrypts names these keys.

t.setTimeout(120_000)

const KEY = generateMasterKey().text

const TABLES = Object.keys(AUTHENTICATED)
const run = async (database: Database, ...statements: string[]) => {
  for (const one of statements) {
    await beside(async () => await database.db.execute(sql.raw(one)))
  }
}

t.test('without the key that the canaries name nothing starts', async (t) => {
  // This test has its own database, because it changes the service keys.
  const service = await startIsolatedApp(t)
  const { database, keyring } = service
  const owner = await service.organization()
  await run(
    database, 'CREATE TABLE kept_keys AS SELECT * FROM service_keys',
    'CREATE TABLE kept_canaries AS SELECT * FROM master_key_canaries'
  )
  const back = () => run(
    database, 'DELETE FROM service_keys', 'INSERT INTO service_keys SELECT * FROM kept_keys',
    'DELETE FROM master_key_canaries', 'INSERT INTO master_key_canaries SELECT * FROM kept_canaries'
  )
  const hex = (bytes: Buffer) => `'\\x${bytes.toString('hex')}'`
  const stranger = createKeyring([{ ...parseMasterKey(generateMasterKey().text), id: keyring.currentId }])
  const manipulations: Record<string, [statements: string[], message: RegExp]> = {
    'the key deleted': [['DELETE FROM service_keys'], /^The key that authenticates rows is missing/],
    'another key, of an attacker without the master key': [
      [`UPDATE service_keys SET wrapped = ${hex(stranger.wrap(random(32), serviceKeyContext('rows')))}`],
      /is not the one that was used here/
    ],
    'a key of another database with the same master key': [
      [`UPDATE service_keys SET wrapped = ${hex(keyring.wrap(random(32), serviceKeyContext('rows')))}`],
      /is not the one that was used here/
    ],
    'a key of another name': [
      [`UPDATE service_keys SET wrapped = ${hex(keyring.wrap(random(32), serviceKeyContext('x')))}`],
      /is not the one that was used here/
    ],
    'the canaries deleted': [['DELETE FROM master_key_canaries'], /^The key of rows matches no canary/],
    'key and canaries deleted': [
      ['DELETE FROM master_key_canaries', 'DELETE FROM service_keys'], /^The database has rows, but no canary/
    ]
  }
  for (const [name, [statements, message]] of Object.entries(manipulations)) {
    await run(database, ...statements)
    const error = await openRows(database, keyring).then(() => undefined, (error: unknown) => error)
    t.ok(error instanceof RowKeyError, name)
    t.match((error as Error).message, message, name)
    t.notMatch((error as Error).message, '\n')
    await back()
  }
  await openRows(database, keyring)
  t.equal((await owner.call('GET', '/organization')).status, 200)
})

t.test('a database with rows gets no new keys, whatever is hidden while it starts', async (t) => {
  const service = await startIsolatedApp(t)
  const { database, keyring } = service
  const { organization } = await service.organization()
  const forged = mintApiToken(organization)
  const noKeys = ['DELETE FROM service_keys', 'DELETE FROM master_key_canaries']
  const insertForged = `INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, token_suffix, abilities)
    VALUES ('${organization}', 'forged', '\\x${hashToken(forged).toString('hex')}', 'dotenv_', '', '{*}')`
  const others = [...TABLES.filter((table) => table !== 'oauth_clients'), 'organizations']
  await run(database, 'CREATE SCHEMA aside', ...[
    ...others, 'oauth_clients', 'service_keys', 'master_key_canaries'
  ].map((table) => `CREATE TABLE aside.${table} AS SELECT * FROM ${table}`))
  const empty = (tables: readonly string[]) => tables.map((table) => `DELETE FROM ${table}`)
  const back = (tables: readonly string[]) =>
    tables.map((table) => `INSERT INTO ${table} OVERRIDING SYSTEM VALUE SELECT * FROM aside.${table}`)
  const change = (...statements: string[]) => beside(() => database.db.transaction(async (tx) => {
    for (const one of ["SET LOCAL session_replication_role = 'replica'", ...statements]) await tx.execute(sql.raw(one))
  }))
  const manipulations: Record<string, string[]> = {
    'organizations out of sight': [insertForged, ...empty(['organizations'])],
    'nothing in sight but a forged token': [...empty(others), insertForged],
    'an organization alone': empty(TABLES.filter((table) => table !== 'oauth_clients')),
    'a seeded client with another address': [
      ...empty(others),
      "UPDATE oauth_clients SET redirect_uris = array_append(redirect_uris, 'https://evil.example/') WHERE id = 'swagger-ui'"
    ],
    'a client that was not seeded': [
      ...empty(others),
      "INSERT INTO oauth_clients (id, name, redirect_uris, is_first_party) VALUES ('evil', 'Evil', '{https://evil.example/}', true)"
    ],
    'a seeded client fewer': [...empty(others), "DELETE FROM oauth_clients WHERE id = 'dotenv-cli'"]
  }
  const all = [...others, 'oauth_clients', 'service_keys', 'master_key_canaries']
  for (const [name, statements] of Object.entries(manipulations)) {
    await change(...noKeys, ...statements)
    const error = await openRows(database, keyring).then(() => undefined, (error: unknown) => error)
    t.ok(error instanceof RowKeyError, name)
    t.match(String(error), /The database has rows, but no canary/, name)
    t.equal((await service.sql('SELECT FROM service_keys')).length +
      (await service.sql('SELECT FROM master_key_canaries')).length, 0, `${name}: nothing is left of it`)
    await change(...empty(all), ...back(all))
  }
  // With all rows moved away, the database counts as empty. The rows that return later have no MAC of the new key.
  await change(...noKeys, insertForged, ...others.flatMap((table) =>
    [`CREATE TABLE aside.all_${table} AS SELECT * FROM ${table}`, `DELETE FROM ${table}`]))
  await openRows(database, keyring)
  await change(...others.map((table) =>
    `INSERT INTO ${table} OVERRIDING SYSTEM VALUE SELECT * FROM aside.all_${table}`))
  t.equal(
    (await service.inject({ url: '/api/v1/organization', headers: { authorization: `Bearer ${forged}` } })).status, 401
  )
})

t.test('rows that row security hides from a start get no MAC', {
  skip: process.env.TEST_DATABASE_URL === undefined && 'runs on PostgreSQL'
}, async (t) => {
  const keyring = createKeyring([parseMasterKey(KEY)])
  const { database: admin, url, drop } = await freshDatabase()
  const role = `svc_${new URL(url!).pathname.slice(1)}`
  await run(
    admin, `CREATE ROLE ${role} LOGIN`, `GRANT ${role} TO CURRENT_USER`,
    ...['public', 'drizzle'].map((schema) => `GRANT ALL ON SCHEMA ${schema} TO ${role}`)
  )
  const tables = await admin.db.execute(
    sql`SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname IN ('public', 'drizzle')`
  ) as unknown as { name: string }[]
  await run(admin, ...tables.map(({ name }) => `ALTER TABLE ${name} OWNER TO ${role}`))
  const own = new URL(url!)
  own.username = role
  const database = await connect({ url: own.href, pool: 2 })
  t.teardown(async () => {
    await database.close()
    await run(admin, `DROP OWNED BY ${role} CASCADE`, `DROP ROLE ${role}`)
    await admin.close()
    await drop()
  })
  await openRows(database, keyring)
  const { organization } = (await initialize(
    { database, keyring }, { organization: 'Nimbus', email: 'owner@example.com', plan: 'self-hosted' }
  ))!
  const forged = mintApiToken(organization.id)
  await run(database, `INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, token_suffix, abilities)
    VALUES ('${organization.id}', 'forged', '\\x${hashToken(forged).toString('hex')}', 'dotenv_', '', '{*}')`, 'DELETE FROM service_keys', 'DELETE FROM master_key_canaries')
  const hide = (names: string[]) =>
    run(database, ...names.map((name) => `ALTER TABLE ${name} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY`))
  const others = [...TABLES.filter((table) => table !== 'oauth_clients'), 'organizations']
  await hide(['organizations'])
  t.same(await database.db.execute(sql`SELECT id FROM organizations`), [], 'hidden')
  await t.rejects(openRows(database, keyring), { name: 'RowKeyError' })
  await hide(others)
  // The start finds no rows, so it treats the database as empty.
  await openRows(database, keyring)
  await run(database, ...others.map((name) =>
    `ALTER TABLE ${name} NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY`))
  t.equal(await findPrincipal(database.db, { organizationId: organization.id, hash: hashToken(forged) }), undefined)
})

t.test('each database has a key of its own, and two that start at once on an empty one share it', async (t) => {
  const keyring = createKeyring([parseMasterKey(generateMasterKey().text)])
  const fingerprints = new Set<string>()
  for (let i = 0; i < 2; i++) {
    const { database, url, drop } = await freshDatabase()
    const other = url === undefined ? database : await connect({ url, pool: 2 })
    t.teardown(async () => {
      await Promise.all(new Set([database, other].map((one) => one.close())))
      await drop()
    })
    await Promise.all([openRows(database, keyring), openRows(other, keyring)])
    t.same(authorityOf(other.db).fingerprint, authorityOf(database.db).fingerprint)
    fingerprints.add(authorityOf(database.db).fingerprint.toString('hex'))
  }
  t.equal(fingerprints.size, 2)
})
