import t, { type Test } from 'tap'
import { sql } from 'drizzle-orm'
import { join } from 'node:path'
import { initialize } from '../src/commands/initialize.ts'
import { hashToken, mintApiToken, mintSecret, tokenPrefix } from '../src/crypto/bearer.ts'
import { createKeyring, generateMasterKey, makeCanary, parseMasterKey, type Keyring } from '../src/crypto/keyring.ts'
import { encodeContext, random, takeKey } from '../src/crypto/primitives.ts'
import { rowKeyFingerprint } from '../src/crypto/row-mac.ts'
import { AUTHENTICATED } from '../src/db/authenticated.ts'
import { authorityOf, connect, type Database } from '../src/db/database.ts'
import { findPrincipal } from '../src/repositories/principals.ts'
import { eventRow } from '../src/db/events.ts'
import { operatorOf, recordAlone, recordLate } from '../src/repositories/audit.ts'
import { createSession } from '../src/repositories/sessions.ts'
import { findUser } from '../src/repositories/users.ts'
import type { Slice } from '../src/rules/slices.ts'
import { serviceKeyContext } from '../src/vault/contexts.ts'
import { openRows, RowKeyError } from '../src/vault/rows.ts'
import { freshDatabase, makeLevel, startApp } from './helpers/app.ts'
import { makePerson } from './helpers/people.ts'
import { command, scratchDirectory } from './helpers/process.ts'
import { beside } from './helpers/statements.ts'

// A database from before rows were authenticated is brought along once, and nobody but the holder of the master key can
// have that done again.

t.setTimeout(120_000)

const KEY = generateMasterKey().text

const TABLES = Object.keys(AUTHENTICATED)
const run = async (database: Database, ...statements: string[]) => {
  for (const one of statements) {
    await beside(async () => await database.db.execute(sql.raw(one)))
  }
}

/** Makes the database what it was before the migration that brought the MACs, with the canary of then. */
async function undo (database: Database, keyring: Keyring) {
  const canary = keyring.wrap(Buffer.from('strongroom canary'), encodeContext('canary'))
  await run(database,
    ...TABLES.map((table) => `ALTER TABLE ${table} DROP COLUMN mac`),
    'DROP TABLE service_keys',
    'DELETE FROM master_key_canaries',
    `INSERT INTO master_key_canaries (key_id, canary) VALUES ('${keyring.currentId}', '\\x${canary.toString('hex')}')`,
    // What came after it is undone as well.
    'DROP INDEX encryption_keys_of_clients',
    'ALTER TABLE encryption_keys DROP COLUMN key_check_hash',
    'DROP TABLE late_events, invitations, invitation_mails, personal_events, long_operations',
    'ALTER TABLE secrets DROP COLUMN version_bytes',
    'ALTER TABLE organization_counters DROP COLUMN stored_bytes',
    'DROP TABLE team_members, team_projects, teams',
    'DROP TABLE second_factors, recovery_codes, sign_in_steps',
    'ALTER TABLE users DROP COLUMN second_factor_id',
    'ALTER TABLE organizations DROP COLUMN require_second_factor',
    'DROP INDEX audit_events_by_time, audit_events_by_action, audit_events_by_actor, audit_events_by_resource',
    'DROP INDEX audit_events_by_resource_and_actor',
    'DROP TRIGGER keep_audit_event ON audit_events',
    'DROP TRIGGER keep_audit_events ON audit_events',
    'DROP FUNCTION keep_audit_event',
    'DROP TABLE chain_keys',
    'ALTER TABLE organization_counters DROP COLUMN chain_kid',
    'ALTER TABLE audit_events DROP COLUMN mac, DROP COLUMN chain_kid, DROP CONSTRAINT audit_events_numbers',
    'ALTER TABLE organization_counters DROP COLUMN event_head, ADD CONSTRAINT organization_counters_organization_id_organizations_id_fk FOREIGN KEY (organization_id) REFERENCES organizations (id) ON DELETE CASCADE',
    'DROP TABLE api_usage, billing_accounts, charges, coupon_redemptions, coupons, credits, idempotency_keys, invoices, payment_methods CASCADE',
    'DROP TABLE plan_prices, refunds, subscriptions',
    'ALTER TABLE plans DROP COLUMN max_bytes',
    'ALTER TABLE members DROP COLUMN invited_by',
    'DROP TABLE former_slugs, former_token_hashes, last_backup',
    'DROP TABLE organization_removals, token_removals',
    'ALTER TABLE api_tokens ADD CONSTRAINT api_tokens_organization_id_organizations_id_fk ' +
      'FOREIGN KEY (organization_id) REFERENCES organizations (id) ON DELETE CASCADE',
    'ALTER TABLE organization_counters DROP COLUMN is_closed',
    'DROP INDEX api_tokens_by_expiry',
    'ALTER TABLE api_tokens DROP CONSTRAINT api_tokens_of_organization',
    'CREATE INDEX api_tokens_organization_id_index ON api_tokens (organization_id)',
    ...['histories', 'projects'].map((table) =>
      `ALTER TABLE ${table} ADD CONSTRAINT ${table}_organization_id_organizations_id_fk
        FOREIGN KEY (organization_id) REFERENCES organizations (id) ON DELETE CASCADE`),
    'DELETE FROM drizzle.__drizzle_migrations WHERE id >= (SELECT id FROM drizzle.__drizzle_migrations ORDER BY id OFFSET 9 LIMIT 1)')
}

const read = (caller: { organization: string, call: (method: string, path: string) => Promise<{ status: number }> }) =>
  caller.call('GET', `/${caller.organization}/orbit/backend/live/secrets?decrypt=true`)

/** The service as an older build left it, with somebody signed in and a document. */
async function before (t: Test) {
  const service = await startApp(t)
  const owner = await service.organization()
  const person = await makePerson(service, { [owner.organization]: 'owner' })
  const cookie = mintSecret()
  await createSession(
    service.database.db, hashToken(cookie),
    { id: person.id, password_hash: (await findUser(service.database.db, person.id))!.password_hash! }
  )
  const level = await makeLevel(owner)
  await owner.call('POST', `/${owner.organization}/secrets/store`, { ...level, plaintext: 'A=1' })
  await undo(service.database, service.keyring)
  await service.database.migrate()
  const isSignedIn = async () => (await service.inject({
    url: '/account', headers: { cookie: `session=${cookie}` }
  })).text.includes('Sign out everywhere')
  return { service, owner, isSignedIn }
}

t.test('rows of every kind are brought along once, whoever starts at the same time, and that is recorded', async (t) => {
  const { service, owner, isSignedIn } = await before(t)
  const { database, keyring } = service
  t.equal((await owner.call('GET', '/organization')).status, 401, 'without a MAC nobody is known')
  // Which this build has recorded with a MAC.
  await authorityOf(database.db).settled()
  await run(database, 'ALTER TABLE audit_events DISABLE TRIGGER USER', 'UPDATE audit_events SET mac = NULL, chain_kid = NULL',
    'ALTER TABLE audit_events ENABLE TRIGGER USER')
  const counts = await Promise.all([1, 2, 3].map(() => openRows(database, keyring)))
  t.equal(counts.filter((rows) => rows > 0).length, 1, `one of them did it: ${counts}`)
  t.equal((await owner.call('GET', '/organization')).status, 200)
  t.equal((await read(owner)).status, 200)
  t.ok(await isSignedIn())
  for (const table of TABLES) t.equal((await service.sql(`SELECT FROM ${table} WHERE mac IS NULL`)).length, 0, table)
  t.equal((await service.sql('SELECT FROM audit_events WHERE mac IS NULL')).length, 0)
  t.match(
    await service.sql("SELECT details->>'rows' AS rows, actor_type FROM audit_events WHERE action = 'integrity.adopt'"),
    [{ rows: String(Math.max(...counts)), actor_type: 'system' }]
  )

  t.equal(await openRows(database, keyring), 0, 'a later start changes nothing')
  await service.sql('UPDATE sessions SET mac = NULL')
  t.notOk(await isSignedIn(), 'from then on a row without a MAC is no old one')
  await service.sql('UPDATE secrets SET mac = NULL')
  t.match(await read(owner), { status: 500, body: { error: 'integrity_error' } })
  t.equal(await openRows(database, keyring), 0)
  t.notOk(await isSignedIn(), 'and no start makes it one')
})

t.test('tokens from before learn who made them, and those of nothing end', async (t) => {
  const service = await startApp(t)
  const { database, keyring } = service
  const owner = await service.organization()
  const { organization } = owner
  const person = await makePerson(service, { [organization]: 'owner' })
  await makeLevel(owner)
  const [project] = await service.sql('SELECT id FROM projects')
  const [there, gone] = [project!.id as string, '01ARZ3NDEKTSV4RRFFQ69G5FAV'].map((project_id) =>
    ({ project_id, target_id: null, environment_id: null }))
  const make = async (slices: Slice[] = []) => {
    const caller = await service.token(organization, ['api-token:read'], { slices })
    const [row] = await service.sql(
      `SELECT id FROM api_tokens WHERE token_hash = '\\x${hashToken(caller.token).toString('hex')}'`
    )
    return { id: Number(row!.id), status: async () => (await caller.call('GET', '/organization')).status }
  }
  const [theirs, ofTheirs, grandchild, operators, nothing, half] = [
    await make(), await make(), await make(), await make(), await make([gone!]), await make([gone!, there!])
  ]
  const made = (type: 'user' | 'api_token', by: number, id: number) => recordAlone(database.db,
    { ...operatorOf(organization), type, id: by }, {
      action: 'api-token.create', resource_type: 'api-token', resource_id: String(id)
    })
  await made('user', person.id, theirs.id)
  await made('api_token', theirs.id, ofTheirs.id)
  // Through one that is gone.
  await made('api_token', ofTheirs.id, 999_999)
  await made('api_token', 999_999, grandchild.id)
  await undo(database, keyring)
  await database.migrate()
  t.ok(await openRows(database, keyring) > 0)
  const { name } = (await findUser(database.db, person.id))!
  const rows = await service.sql(
    'SELECT id::float8 AS id, created_by_type AS type, created_by_id::float8 AS by, created_by_name AS name, user_id::float8 AS person FROM api_tokens WHERE created_by_type IS NOT NULL ORDER BY id'
  )
  t.strictSame([...rows], [
    { id: theirs.id, type: 'user', by: person.id, name, person: person.id },
    { id: ofTheirs.id, type: 'api_token', by: theirs.id, name: 'Test token', person: person.id },
    { id: grandchild.id, type: 'api_token', by: 999_999, name: null, person: person.id }
  ])
  for (const one of [theirs, ofTheirs, grandchild, operators, half]) t.equal(await one.status(), 200)
  t.equal(await nothing.status(), 401)
  t.strictSame(
    [...await service.sql("SELECT resource_id, actor_type FROM audit_events WHERE action = 'api-token.delete'")],
    [{ resource_id: String(nothing.id), actor_type: 'system' }]
  )
})

t.test('an adoption that fails in the middle leaves nothing behind', async (t) => {
  const { service, owner } = await before(t)
  const { database, keyring } = service
  await run(database, 'ALTER TABLE secrets ADD CONSTRAINT broken CHECK (mac IS NULL)')
  await t.rejects(openRows(database, keyring))
  t.equal((await service.sql('SELECT name FROM service_keys')).length, 0)
  t.equal((await service.sql('SELECT id FROM api_tokens WHERE mac IS NOT NULL')).length, 0)
  await run(database, 'ALTER TABLE secrets DROP CONSTRAINT broken')
  t.ok(await openRows(database, keyring) > 0)
  t.equal((await read(owner)).status, 200)
})

t.test('late events from before events were chained get their number after that upgrade, and after no later start', async (t) => {
  const service = await startApp(t)
  const { database, keyring } = service
  const { organization } = await service.organization()
  const [{ wrapped }] = await service.sql("SELECT wrapped FROM service_keys WHERE name = 'rows'") as [{ wrapped: Buffer }]
  const named = rowKeyFingerprint(takeKey(keyring.unwrap(wrapped, serviceKeyContext('rows'))))
  const canary = makeCanary(keyring, named).toString('hex')
  await run(database, "DELETE FROM service_keys WHERE name <> 'rows'", `UPDATE master_key_canaries SET canary = '\\x${canary}'`,
    'ALTER TABLE audit_events DISABLE TRIGGER USER', 'UPDATE audit_events SET mac = NULL, chain_kid = NULL',
    'ALTER TABLE audit_events ENABLE TRIGGER USER')
  const event = eventRow(
    operatorOf(organization), { action: 'user.disable', resource_type: 'user', resource_id: 'late' }
  )
  const addLate = () => run(database, `INSERT INTO late_events (organization_id, occurred_at, event)
    VALUES ('${organization}', '2026-03-01T12:00:00Z', '${JSON.stringify(event)}')`)
  const number = async () => {
    t.equal(await recordLate(database.db, organization), 1)
    await authorityOf(database.db).settled()
    return (await service.sql(`SELECT action FROM audit_events
      WHERE organization_id = '${organization}' AND action IN ('user.disable', 'integrity.violation')
      ORDER BY seq`))
      .map(({ action }) => action)
  }
  await addLate()
  t.ok(await openRows(database, keyring) > 0)
  t.same(await number(), ['user.disable'])
  await addLate()
  t.equal(await openRows(database, keyring), 0)
  t.same(await number(), ['user.disable', 'integrity.violation'])
})

t.test('without the key that the canaries name nothing starts, and nothing is brought along again', async (t) => {
  const service = await startApp(t)
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
  const plain = keyring.wrap(Buffer.from('strongroom canary'), encodeContext('canary'))
  const manipulations: Record<string, [statements: string[], message: RegExp]> = {
    'the key deleted': [['DELETE FROM service_keys'], /^The key that authenticates rows is missing/],
    'another key, of somebody without the master key': [
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
    'the canaries deleted': [['DELETE FROM master_key_canaries'], /^There is a key of rows that no canary knows/],
    'a canary from before, beside the key': [
      [`UPDATE master_key_canaries SET canary = ${hex(plain)}`], /^There is a key of rows that no canary knows/
    ],
    'key and canaries deleted': [
      ['DELETE FROM master_key_canaries', 'DELETE FROM service_keys'], /^The database holds rows and no canary/
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
  t.equal(await openRows(database, keyring), 0)
  t.equal((await owner.call('GET', '/organization')).status, 200)
})

t.test('a database that this version made is never brought along, whatever is hidden while it starts', async (t) => {
  const service = await startApp(t)
  const { database, keyring } = service
  const { organization } = await service.organization()
  const forged = mintApiToken(organization)
  const noKeys = ['DELETE FROM service_keys', 'DELETE FROM master_key_canaries']
  const insertForged = `INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, abilities)
    VALUES ('${organization}', 'forged', '\\x${hashToken(forged).toString('hex')}', '${tokenPrefix(forged)}', '{*}')`
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
    'a client that nobody seeded': [
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
    t.match(String(error), /The database holds rows and no canary/, name)
    t.equal((await service.sql('SELECT FROM service_keys')).length +
      (await service.sql('SELECT FROM master_key_canaries')).length, 0, `${name}: nothing is left of it`)
    await change(...empty(all), ...back(all))
  }
  // All of it out of sight: that is an empty database, and what comes back afterwards has no MAC under its key.
  await change(...noKeys, insertForged, ...others.flatMap((table) =>
    [`CREATE TABLE aside.all_${table} AS SELECT * FROM ${table}`, `DELETE FROM ${table}`]))
  t.equal(await openRows(database, keyring), 0)
  await change(...others.map((table) =>
    `INSERT INTO ${table} OVERRIDING SYSTEM VALUE SELECT * FROM aside.all_${table}`))
  t.equal(
    (await service.inject({ url: '/api/v1/organization', headers: { authorization: `Bearer ${forged}` } })).status, 401
  )
})

t.test('row security hides nothing that a start would bring along', {
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
  await run(database, `INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, abilities)
    VALUES ('${organization.id}', 'forged', '\\x${hashToken(forged).toString('hex')}', '${tokenPrefix(forged)}', '{*}')`, 'DELETE FROM service_keys', 'DELETE FROM master_key_canaries')
  const hide = (names: string[]) =>
    run(database, ...names.map((name) => `ALTER TABLE ${name} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY`))
  const others = [...TABLES.filter((table) => table !== 'oauth_clients'), 'organizations']
  await hide(['organizations'])
  t.same(await database.db.execute(sql`SELECT id FROM organizations`), [], 'hidden')
  await t.rejects(openRows(database, keyring), { name: 'RowKeyError' })
  await hide(others)
  t.equal(await openRows(database, keyring), 0, 'for all that the start can see, the database is empty')
  await run(database, ...others.map((name) =>
    `ALTER TABLE ${name} NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY`))
  t.equal(await findPrincipal(database.db, hashToken(forged)), undefined)
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

t.test('`migrate` brings rows along where the master key is at hand', async (t) => {
  const directory = scratchDirectory(t)
  const env = { DATA_DIR: directory }
  t.match(await command(['migrate'], env), { code: 0, stderr: '' }, 'an empty database needs none')
  const made = await command(
    ['init', '--organization', 'Nimbus', '--email', 'owner@example.com', '--json'], { ...env, MASTER_KEY: KEY }
  )
  t.equal(made.code, 0, made.stderr)
  const database = await connect({ dir: join(directory, 'postgres'), pool: 1 })
  await undo(database, createKeyring([parseMasterKey(KEY)]))
  await database.close()
  t.match(
    await command(['migrate'], env), { code: 0, stdout: 'The schema is up to date.\n', stderr: '' },
    'without the key it is left to the first start'
  )
  const migrated = await command(['migrate'], { ...env, MASTER_KEY: KEY })
  t.match(migrated, { code: 0, stdout: 'The schema is up to date.\n' })
  t.match(migrated.stderr, /^\d+ rows are authenticated from now on: .*\n$/)
  t.match(await command(['migrate'], { ...env, MASTER_KEY: KEY }), { code: 0, stderr: '' })
})
