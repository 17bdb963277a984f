import { execFile } from 'node:child_process'
import { createSecretKey } from 'node:crypto'
import { readFileSync, readdirSync, writeFileSync } from 'node:fs'
import { join, relative } from 'node:path'
import { promisify } from 'node:util'
import { sql } from 'drizzle-orm'
import type { PostgresJsDatabase } from 'drizzle-orm/postgres-js'
import { migrate } from 'drizzle-orm/postgres-js/migrator'
import t, { type Test } from 'tap'
import { buildApp } from '../src/app.ts'
import { loadConfig } from '../src/config.ts'
import { openBlob } from '../src/crypto/blob.ts'
import { createKeyring, parseMasterKey } from '../src/crypto/keyring.ts'
import { AUTHENTICATED } from '../src/db/authenticated.ts'
import { connect, type Database } from '../src/db/database.ts'
import { openRows } from '../src/vault/rows.ts'
import { freshDatabase } from './helpers/app.ts'
import { QUICK } from './helpers/costs.ts'
import { contractionsIn, copyOfMigrations } from './helpers/migrations.ts'
import { beside } from './helpers/statements.ts'
import { miscounted } from './helpers/traffic.ts'
import { hasPostgres, startPostgres } from './helpers/postgres.ts'

const KEYS = ['name', 'retention_days', 'api_per_minute', 'max_projects', 'max_members', 'max_bytes']
const PLANS = [
  ['enterprise', 365, 100, null, null, null],
  ['free', 7, 100, 5, 5, '10485760'],
  ['pro', 30, 100, 50, 25, '1073741824'],
  ['self-hosted', null, 100, null, null, null],
  ['team', 90, 100, null, 100, '10737418240']
].map((values) => Object.fromEntries(values.map((value, i) => [KEYS[i], value])))

const migrationsIn = (folder: string) => readdirSync(folder).filter((name) => name.endsWith('.sql')).sort()

/** What drizzle-kit would add to the migrations of `folder` (a copy) for what `tables.ts` says. */
async function generate (folder: string): Promise<string[]> {
  const before = migrationsIn(folder)
  const args = ['generate', '--dialect', 'postgresql', '--schema', './src/db/tables.ts', '--out', relative('.', folder)]
  const { stdout } = await promisify(execFile)(process.execPath, ['node_modules/.bin/drizzle-kit', ...args])
  if (!/nothing to migrate|Your SQL migration file/.test(stdout)) throw new Error(stdout)
  return migrationsIn(folder).filter((name) => !before.includes(name))
}

t.test('drizzle/ says what src/db/tables.ts says', async (t) => {
  t.strictSame(await generate(copyOfMigrations(t)), [], 'otherwise: npm run db:generate')
})

t.test('a column that no migration makes is noticed', async (t) => {
  const folder = copyOfMigrations(t)
  const last = readdirSync(join(folder, 'meta')).filter((name) => name.endsWith('_snapshot.json')).sort().at(-1)!
  const snapshot = JSON.parse(readFileSync(join(folder, 'meta', last), 'utf8'))
  delete snapshot.tables['public.secrets'].columns.revision
  writeFileSync(join(folder, 'meta', last), JSON.stringify(snapshot))
  const [added] = await generate(folder)
  t.match(readFileSync(join(folder, added!), 'utf8'), 'ADD COLUMN "revision"')
})

// Those up to here are from before the rule: a build of then is stopped before one of now starts.
const BEFORE = 30
const RELEASES = [...readFileSync('CHANGELOG.md', 'utf8').matchAll(/^## \[(\d+\.\d+\.\d+)\]/gm)].map(([, name]) => name!)

t.test('RL-30: a migration does nothing that an instance of the release before does not outlive', async (t) => {
  for (const name of migrationsIn('drizzle').filter((name) => Number(name.slice(0, 4)) > BEFORE)) {
    t.strictSame(contractionsIn(readFileSync(join('drizzle', name), 'utf8'), RELEASES), [], name)
  }

  const both = (...statements: string[]) => statements.join(';--> statement-breakpoint\n')
  for (const good of [
    'ALTER TABLE "secrets" ADD COLUMN "note" varchar(64)',
    'ALTER TABLE "refunds" ADD COLUMN "checked_at" timestamp (3) with time zone',
    'ALTER TABLE "secrets" ADD COLUMN "note" varchar(64) DEFAULT \'none\' NOT NULL;',
    both('CREATE TABLE "notes" (\n"id" bigint NOT NULL\n)', 'CREATE UNIQUE INDEX "notes_id" ON "notes" USING btree ("id")'),
    both('CREATE TABLE "notes" ("id" bigint)', 'INSERT INTO "notes" ("id") VALUES (1), (2)'),
    both('CREATE TABLE "notes" ("id" bigint)', 'ALTER TABLE "notes" ADD CONSTRAINT "a" FOREIGN KEY ("id") REFERENCES "b" ("id")'),
    both('DROP INDEX CONCURRENTLY IF EXISTS "secrets_note"', 'CREATE INDEX CONCURRENTLY "secrets_note" ON "secrets" ("note")'),
    '-- contracts 0.1.0: nothing reads it since\nALTER TABLE "secrets" DROP COLUMN "note"'
  ]) t.strictSame(contractionsIn(good, ['0.1.0']), [], good)
  for (const bad of [
    'DROP TABLE "notes"', 'ALTER TABLE "secrets" DROP COLUMN "note"',
    'ALTER TABLE "secrets" RENAME COLUMN "note" TO "text"',
    'ALTER TABLE "secrets" ADD COLUMN "note" varchar(64) NOT NULL',
    'ALTER TABLE "secrets" ADD COLUMN "note" bigint DEFAULT nextval(\'notes\')',
    'ALTER TABLE "secrets" ADD COLUMN "note" bigint REFERENCES "notes" ("id")',
    'ALTER TABLE "secrets" ALTER COLUMN "note" SET NOT NULL', 'ALTER TABLE "secrets" ALTER COLUMN "note" TYPE text',
    'ALTER TABLE "secrets" ADD CONSTRAINT "a" CHECK ("note" > 1)', 'UPDATE "secrets" SET "note" = 1',
    'DELETE FROM "secrets"', 'CREATE INDEX "secrets_note" ON "secrets" ("note")',
    'CREATE INDEX CONCURRENTLY "secrets_note" ON "secrets" ("note")',
    'DROP INDEX CONCURRENTLY IF EXISTS "secrets_note"',
    'CREATE TABLE "a" ("id" bigint); DROP TABLE "notes"',
    'CREATE TRIGGER "a" BEFORE INSERT ON "secrets" EXECUTE FUNCTION b()', 'DO $$ BEGIN DROP TABLE "notes"; END $$',
    '-- contracts 0.2.0: not released yet\nDROP TABLE "notes"', '-- contracts 0.1.0:\nDROP TABLE "notes"',
    '-- another line\nDROP TABLE "notes"', 'CREATE TABLE IF NOT EXISTS "secrets" ("id" bigint)',
    'CREATE TABLE "notes" AS SELECT * FROM "secrets"', 'CREATE TABLE "notes" ("id") AS SELECT "id" FROM "secrets"',
    'ALTER TABLE "secrets" ADD COLUMN "note" bigserial',
    both('CREATE TABLE "notes" ("id" bigint)', 'INSERT INTO "notes" SELECT "id" FROM "secrets"'),
    both('CREATE TABLE "notes" ("id" bigint)',
      'INSERT INTO "notes" WITH gone AS (DELETE FROM "secrets" RETURNING "id") SELECT "id" FROM gone'),
    both('CREATE TABLE "notes" ("id" bigint)', 'INSERT INTO "notes" ("id") VALUES ((SELECT max("id") FROM "secrets"))')
  ]) t.equal(contractionsIn(bad, ['0.1.0']).length, 1, bad)
  t.strictSame(contractionsIn(both(
    'ALTER TABLE "secrets" ADD COLUMN "note" varchar(64)', 'DROP INDEX CONCURRENTLY IF EXISTS "a"',
    'CREATE INDEX CONCURRENTLY "a" ON "secrets" ("note")'
  ), []).length, 2, 'what no transaction can be in, is a migration by itself')
})

t.test('RL-30: a row without a value in newer columns has the MAC that the release before gives it', async (t) => {
  const before = JSON.parse(readFileSync('test/vectors/authenticated-fields.json', 'utf8')) as Record<string, string[]>
  t.strictSame(Object.keys(before).sort(), Object.keys(AUTHENTICATED).sort())
  for (const [table, fields] of Object.entries(before)) {
    const now = AUTHENTICATED[table as keyof typeof AUTHENTICATED]
    t.strictSame(now.fields.slice(0, fields.length), fields, table)
    t.strictSame(
      now.fields.slice(fields.length).filter((field) => !(now.later as readonly string[]).includes(field)), [],
      `${table}: what is new at its end is later`
    )
  }
})

const real = hasPostgres() ? await startPostgres({ durable: false }) : undefined
t.teardown(() => real?.close())
const skip = real === undefined && 'PostgreSQL is not installed'

/** A migrated database of its own; `name` is that of one on the server. */
async function databaseFor (t: Test, name?: string): Promise<Database> {
  if (name === undefined) {
    const { database, drop } = await freshDatabase()
    t.teardown(async () => {
      await database.close()
      await drop()
    })
    return database
  }
  const admin = await connect({ url: real!.url, pool: 1 })
  await run(admin, `CREATE DATABASE ${name}`)
  await admin.close()
  const url = new URL(real!.url)
  url.pathname = `/${name}`
  const database = await connect({ url: url.href, pool: 4 })
  t.teardown(() => database.close())
  await database.migrate()
  return database
}

const run = async (database: Database, ...statements: string[]) => {
  for (const one of statements) {
    await beside(async () => await database.db.execute(sql.raw(one)))
  }
}

t.test('the migrations give the same schema and plans on either database', { skip }, async (t) => {
  const [onServer, embedded] = [await databaseFor(t, 'fresh'), await databaseFor(t)]
  await onServer.migrate()
  const schema = await schemaOf(onServer)
  t.ok(schema.columns.length > 80, 'the schema was read')
  t.ok(schema.indexes.some(({ indexname }) => indexname === 'encryption_keys_one_active'))
  t.strictSame(await schemaOf(embedded), schema)
  for (const database of [onServer, embedded]) {
    t.strictSame(await rowsOf(database, 'SELECT * FROM plans ORDER BY name'), PLANS, database.kind)
  }
})

// What the build with migrations 0 to 5 left behind, with its keys: the last one before versions hung on histories,
// rows were authenticated, and proofs had hashes.
const OLD = JSON.parse(readFileSync('test/vectors/database-5.json', 'utf8'))

/** Makes a database what the first so many migrations make, empty. */
async function migrateAsBefore (t: Test, database: Database, migrations: number) {
  const folder = copyOfMigrations(t)
  const journal = join(folder, 'meta', '_journal.json')
  const all = JSON.parse(readFileSync(journal, 'utf8')) as { entries: unknown[] }
  writeFileSync(journal, JSON.stringify({ ...all, entries: all.entries.slice(0, migrations) }))
  await run(database, 'DROP SCHEMA public CASCADE', 'DROP SCHEMA IF EXISTS drizzle CASCADE', 'CREATE SCHEMA public')
  await beside(() => migrate(database.db as unknown as PostgresJsDatabase, { migrationsFolder: folder }))
}

/** Makes a database what that build left. */
async function fillAsBefore (t: Test, database: Database) {
  await migrateAsBefore(t, database, OLD.migrations)
  await run(
    database, readFileSync('test/vectors/database-5.sql', 'utf8'),
    "UPDATE oauth_tokens SET refresh_expires_at = now() + interval '1 day'",
    "UPDATE oauth_grants SET expires_at = now() + interval '1 day'"
  )
}

for (const on of ['the embedded database', 'PostgreSQL']) {
  t.test(`a filled database of an earlier build is brought along whole, on ${on}`, {
    skip: on === 'PostgreSQL' &&
    skip
  }, async (t) => {
    const database = await databaseFor(t, on === 'PostgreSQL' ? 'earlier' : undefined)
    const schema = await schemaOf(database)
    await fillAsBefore(t, database)
    await database.migrate()
    const keyring = createKeyring([parseMasterKey(OLD.master_key)])
    t.ok(await openRows(database, keyring) > 0)
    t.strictSame(await schemaOf(database), schema, 'its schema is that of a new one')
    t.same(await miscounted((query) => rowsOf(database, query)), [], 'what is there was counted')
    t.match(await rowsOf(database, 'SELECT stored_bytes::int > 0 AS counted FROM organization_counters'), [{ counted: true }])

    const app = await buildApp({
      config: loadConfig({ LOG_LEVEL: 'silent', RATE_LIMIT_API: '0' }), database, keyring, costs: QUICK
    })
    t.teardown(() => app.close())
    const callerOf = (token: string) => async (method: 'GET' | 'POST' | 'DELETE', path: string, payload?: object) => {
      const answer = await app.inject({
        method, url: `/api/v1${path}`, headers: { authorization: `Bearer ${token}` }, ...(payload && { payload })
      })
      return { status: answer.statusCode, body: answer.payload === '' ? undefined : answer.json() }
    }
    const call = callerOf(OLD.owner)
    const levelsOf = async (path: string) =>
      (await call('GET', `/nimbus/${path}/secrets?decrypt=true`)).body.data.attributes.levels
    const { project, target, environment } = await levelsOf('orbit/backend/live')
    t.strictSame(
      [project, target, environment].map(({ content }: { content: string }) => content),
      ['LEVEL=project\nA=1\n', 'LEVEL=target\n', 'N=3\n']
    )
    t.equal((await levelsOf('turned')).project.content, 'T=3\n')
    const held = (await call('GET', '/nimbus/held/secrets')).body.data.attributes.levels.project.content
    t.equal(openBlob(createSecretKey(Buffer.from(OLD.client_key.data_key, 'base64')), held)?.toString(), 'HELD=1\n')

    const live = { project: 'orbit', target: 'backend', environment: 'live' }
    const versionsOf = async (environment: string) =>
      (await call('POST', '/nimbus/secrets/versions', { ...live, environment })).body.data as { id: string }[]
    const restore = async (id: unknown) => (await call('POST', `/nimbus/secrets/versions/${String(id)}/restore`)).status
    for (const [i, { id }] of (await versionsOf('live')).entries()) {
      t.equal((await call('GET', `/nimbus/secrets/versions/${id}`)).status, 200)
      t.equal(await restore(id), 200)
      t.equal((await levelsOf('orbit/backend/live')).environment.content, `N=${3 - i}\n`, `version ${id}`)
    }
    t.equal((await versionsOf('live')).length, 6)
    t.equal((await versionsOf('purged')).length, 0, 'a purged history stays empty')
    const oldest = async (slug: string) => (await rowsOf(database, `
      SELECT v.id FROM secret_versions v JOIN secrets s ON s.history_id = v.history_id
      WHERE s.level_id IN (SELECT id FROM targets WHERE slug = '${slug}' UNION SELECT id FROM projects WHERE slug = '${slug}') ORDER BY v.id LIMIT 1`))[0]!.id
    t.equal(await restore(await oldest('emptied')), 200)
    t.equal((await levelsOf('orbit/emptied')).target.content, 'DELETED=1\n')
    t.equal(await restore(await oldest('turned')), 200)
    t.equal((await levelsOf('turned')).project.content, 'T=1\n', 'a version that was re-encrypted')
    const { target_count, environment_count, secret_count } = (await call('GET', '/nimbus/orbit')).body.data.attributes
    t.strictSame(
      { target_count, environment_count, secret_count }, { target_count: 2, environment_count: 2, secret_count: 5 }
    )

    t.equal((await callerOf(OLD.narrowed)('GET', '/nimbus/orbit/backend/secrets')).status, 200)
    t.equal((await callerOf(OLD.narrowed)('GET', '/nimbus/turned/secrets')).status, 404)
    t.equal((await callerOf(OLD.of_what_is_gone)('GET', '/organization')).status, 401)
    const refreshed = await app.inject({
      method: 'POST',
      url: '/api/oauth/token',
      payload: { grant_type: 'refresh_token', refresh_token: OLD.refresh_token, client_id: 'dotenv-cli' }
    })
    t.equal(refreshed.statusCode, 200, refreshed.payload)
    t.equal((await callerOf(refreshed.json().access_token)('GET', '/nimbus/orbit/secrets')).status, 200)
    // A key's proof has no hash yet: it is known all the same.
    const { proof, salt, iterations } = OLD.client_key
    const again = await call(
      'POST', '/nimbus/held/secrets/rotate-client-keys',
      { key_check: proof, key_check_salt: salt, key_check_iterations: iterations, secrets: [] }
    )
    t.match(again, { status: 422, body: { errors: { key_check: [/has or had/] } } })
    for (const slug of ['orbit', 'held', 'turned']) {
      t.equal((await call('DELETE', `/nimbus/${slug}`, { confirmed: true })).status, 204, slug)
    }
  })
}

t.test('the books of a build before know what was received, who has it, and which coupon was redeemed', async (t) => {
  const database = await databaseFor(t)
  await migrateAsBefore(t, database, 19)
  const [first, second] = ['01BOOKS0000000000000000001', '01BOOKS0000000000000000002']
  const invoice = (organization: string, id: string, number: number, start: string) =>
    `('${organization}', '${id}', ${number}, 'paid', 'EUR', '[{"period_start": ${start}}]', 2900, 0, 0, 2900, '{}', '{}', now())`
  await run(
    database,
    `INSERT INTO organizations (id, name, slug, plan, storage_key)
      SELECT id, id, lower(id), 'pro', '' FROM (VALUES ('${first}'), ('${second}')) AS made (id)`,
    "INSERT INTO coupons (code, percent_off, redemptions) VALUES ('TENTH', 10, 1)",
    `INSERT INTO billing_accounts (organization_id, credit, credit_currency, coupon) VALUES
      ('${first}', 500, 'EUR', 'TENTH'), ('${second}', 0, NULL, NULL)`,
    `INSERT INTO invoices (organization_id, id, number, status, currency, lines, subtotal, discount, credit, total,
      seller, buyer, due_at) VALUES ${[
        invoice(first, '01PERIOD000000000000000001', 1, '"2026-03-01T12:00:00.000Z"'), invoice(first, '01CHARGE', 2, 'null'),
        invoice(second, '01CHARGE', 1, 'null')
      ].join()}`,
    `INSERT INTO subscriptions (organization_id, id, plan, interval, currency, amount, anchor, period_start, period_end,
      invoiced) SELECT organization_id, organization_id, 'pro', 'month', 'EUR', 2900, now(), '2026-03-01T12:00:00.000Z',
      '2026-04-01T12:00:00.000Z', 2900 FROM billing_accounts`,
    `INSERT INTO charges (organization_id, id, invoice_id, provider, provider_reference, status, currency, amount) VALUES
      ('${first}', '01TOLD', '01CHARGE', 'processor', 'ch_1', 'succeeded', 'EUR', 2900),
      ('${second}', '01NOTED', '01CHARGE', 'manual', NULL, 'succeeded', 'EUR', 2900)`,
    `INSERT INTO refunds (organization_id, id, charge_id, amount) VALUES
      ('${first}', '01BACK', '01TOLD', 100), ('${first}', '01SENT', '01TOLD', 100), ('${second}', '01BACK', '01NOTED', 100)`,
    `INSERT INTO audit_events (organization_id, seq, action, actor_type, resource_type, resource_id) VALUES
      ('${first}', 1, 'refund.pay', 'operator', 'refund', '01BACK'),
      ('${first}', 2, 'refund.pay', 'system', 'refund', '01SENT'),
      ('${second}', 1, 'refund.fail', 'operator', 'refund', '01BACK')`
  )
  await database.migrate()
  const trimmed = async (query: string) => (await rowsOf(database, query)).map((row) =>
    Object.values(row).map((value) => typeof value === 'string' ? value.trim() : value))
  t.strictSame(await trimmed('SELECT invoice_id FROM subscriptions ORDER BY organization_id'), [
    ['01PERIOD000000000000000001'], ['01CHARGE']
  ])
  t.strictSame(await trimmed('SELECT organization_id, currency, amount::int FROM credits'), [[first, 'EUR', 500]])
  t.strictSame(await trimmed('SELECT organization_id, coupon FROM coupon_redemptions'), [[first, 'TENTH']])
  t.strictSame(await trimmed('SELECT provider_status FROM charges ORDER BY organization_id'), [['succeeded'], [null]])
  t.strictSame(await trimmed('SELECT id, provider, noted_status FROM refunds ORDER BY organization_id, id'), [
    ['01BACK', 'processor', 'succeeded'], ['01SENT', 'processor', null], ['01BACK', 'manual', 'failed']
  ])
})

async function schemaOf (database: Database) {
  return {
    columns: await rowsOf(database, `
      SELECT table_name, column_name, data_type, character_maximum_length, is_nullable, column_default,
      identity_generation
      FROM information_schema.columns WHERE table_schema = 'public' ORDER BY table_name, column_name`),
    indexes: await rowsOf(
      database, "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY indexname"
    ),
    constraints: await rowsOf(database, `
      SELECT conrelid::regclass::text AS of, conname, pg_get_constraintdef(oid) AS definition
      FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype IN ('p', 'u', 'f', 'c') ORDER BY 1, 2`)
  }
}

async function rowsOf (database: Database, query: string): Promise<Record<string, unknown>[]> {
  return beside(async () => [...await database.db.execute(sql.raw(query)) as unknown as Record<string, unknown>[]])
}
