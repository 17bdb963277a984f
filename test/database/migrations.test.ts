// runs: one database
import { existsSync, readFileSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { generateDrizzleJson, generateMigration } from 'drizzle-kit/api'
import { sql } from 'drizzle-orm'
import postgres from 'postgres'
import t, { type Test } from 'tap'
import { ulid } from 'ulidx'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { AUTHENTICATED } from '../../src/db/rows/authenticated.ts'
import { connect, type Database } from '../../src/db/database.ts'
import { listMigrations } from '../../src/db/migrate.ts'
import * as tables from '../../src/db/tables.ts'
import { ON_CITUS } from '../helpers/app.ts'
import { contractionsIn } from '../helpers/migrations.ts'
import { command, scratchDirectory } from '../helpers/process.ts'
import { beside } from '../helpers/statements.ts'
import { LONG, sample } from '../helpers/long.ts'

const KEYS = ['name', 'retention_days', 'api_per_minute', 'max_projects', 'max_members', 'max_bytes']
const PLANS = [
  ['enterprise', 365, 100, null, null, null],
  ['free', 7, 100, 5, 5, '10485760'],
  ['pro', 30, 100, 50, 25, '1073741824'],
  ['self-hosted', null, 100, null, null, null],
  ['team', 90, 100, null, 100, '10737418240']
].map((values) => Object.fromEntries(values.map((value, i) => [KEYS[i], value])))

const migrationsIn = (folder: string) => readdirSync(folder).filter((name) => name.endsWith('.sql')).sort()

type Snapshot = ReturnType<typeof generateDrizzleJson>
/** The statements that drizzle-kit generates between a snapshot and `tables.ts`. */
const additionsTo = (snapshot: Snapshot) => generateMigration(snapshot, generateDrizzleJson(tables, snapshot.id))

function lastSnapshot (): Snapshot {
  const folder = join('drizzle', 'meta')
  const last = readdirSync(folder).filter((name) => name.endsWith('_snapshot.json')).sort().at(-1)!
  return JSON.parse(readFileSync(join(folder, last), 'utf8'))
}

t.test('the snapshot in drizzle/ says what src/db/tables.ts says', async (t) => {
  t.strictSame(await additionsTo(lastSnapshot()), [], 'otherwise: npm run db:generate')
})

t.test('a column that no migration makes is noticed', async (t) => {
  const snapshot = lastSnapshot()
  delete snapshot.tables['public.secrets']!.columns.revision
  t.match((await additionsTo(snapshot)).join('\n'), 'ADD COLUMN "revision"')
})

const RELEASES = [...readFileSync('CHANGELOG.md', 'utf8').matchAll(/^## \[(\d+\.\d+\.\d+)\]/gm)].map(([, name]) => name!)

t.test('RL-30: a migration after the baseline does nothing that breaks an instance of the previous release', async (t) => {
  const [baseline, ...later] = migrationsIn('drizzle')
  t.equal(baseline, '0000_baseline.sql')
  t.ok(RELEASES.length > 0)
  for (const name of later) t.strictSame(contractionsIn(readFileSync(join('drizzle', name), 'utf8'), RELEASES), [], name)

  const both = (...statements: string[]) => statements.join(';--> statement-breakpoint\n')
  for (const good of [
    'ALTER TABLE "secrets" ADD COLUMN "note" varchar(64)',
    'ALTER TABLE "refunds" ADD COLUMN "checked_at" timestamp (3) with time zone',
    'ALTER TABLE "secrets" ADD COLUMN "note" varchar(64) DEFAULT \'none\' NOT NULL;',
    both('CREATE TABLE "notes" (\n"id" bigint NOT NULL\n)', 'CREATE UNIQUE INDEX "notes_id" ON "notes" USING btree ("id")'),
    both('CREATE TABLE "notes" ("id" bigint)', 'INSERT INTO "notes" ("id") VALUES (1), (2)'),
    both('CREATE TABLE "notes" ("id" bigint)', 'ALTER TABLE "notes" ADD CONSTRAINT "a" FOREIGN KEY ("id") REFERENCES "b" ("id")'),
    both('DROP INDEX CONCURRENTLY IF EXISTS "a"', 'CREATE INDEX CONCURRENTLY "a" ON "secrets" ("note")'),
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
    'DROP INDEX "secrets_note"',
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
  const index = ['DROP INDEX CONCURRENTLY IF EXISTS "a"', 'CREATE INDEX CONCURRENTLY "a" ON "secrets" ("note")'] as const
  const column = 'ALTER TABLE "secrets" ADD COLUMN "note" varchar(64)'
  t.equal(contractionsIn(both(...index, column), []).length, 2, 'such an index needs a migration of its own')
})

t.test('the MAC of a row goes over these fields, in this order', async (t) => {
  const fields = Object.entries(AUTHENTICATED).map(([table, { fields }]) => [table, fields])
  t.strictSame(
    Object.fromEntries(fields), JSON.parse(readFileSync('test/vectors/authenticated-fields.json', 'utf8')),
    'a column that is added after a release comes last, is nullable and is named in `later` (0047)'
  )
})

const server = ON_CITUS ? undefined : process.env.TEST_DATABASE_URL
const skip = server === undefined && 'runs on PostgreSQL'

/** The URL of a new, empty database on the server, which is deleted after the test. */
async function emptyOnServer (t: Test): Promise<string> {
  const admin = postgres(server!, { max: 1, onnotice: () => {} })
  const name = `migrations_${ulid().toLowerCase()}`
  await admin.unsafe(`CREATE DATABASE ${name}`)
  t.teardown(async () => {
    await admin.unsafe(`DROP DATABASE ${name} WITH (FORCE)`)
    await admin.end({ timeout: 2 })
  })
  const url = new URL(server!)
  url.pathname = `/${name}`
  return url.href
}

/** A new, migrated database for a test. */
async function databaseFor (t: Test, on: 'PostgreSQL' | 'the embedded database'): Promise<Database> {
  const database = await connect(on === 'PostgreSQL'
    ? { url: await emptyOnServer(t), pool: 4 }
    : { dir: join(scratchDirectory(t), 'postgres'), pool: 1, durable: false })
  t.teardown(() => database.close())
  await database.migrate()
  return database
}

const run = async (database: Database, ...statements: string[]) => {
  for (const one of statements) {
    await beside(async () => await database.db.execute(sql.raw(one)))
  }
}

t.test('the migrations make what src/db/tables.ts says', { skip }, async (t) => {
  const database = await connect({ url: await emptyOnServer(t), pool: 1 })
  t.teardown(() => database.close())
  await run(database, ...await additionsTo(generateDrizzleJson({})))
  t.strictSame(await schemaOf(await databaseFor(t, 'PostgreSQL')), await schemaOf(database))
})

t.test('the migrations give the same schema and plans on either database', { skip }, async (t) => {
  const [onServer, embedded] = [await databaseFor(t, 'PostgreSQL'), await databaseFor(t, 'the embedded database')]
  await onServer.migrate()
  const schema = await schemaOf(onServer)
  t.ok(schema.columns.length > 80, 'the schema was read')
  t.ok(schema.indexes.some(({ indexname }) => indexname === 'encryption_keys_one_active'))
  t.strictSame(await schemaOf(embedded), schema)
  for (const database of [onServer, embedded]) {
    t.strictSame(await rowsOf(database, 'SELECT * FROM plans ORDER BY name'), PLANS, database.kind)
  }
})

const UNRELEASED = 'This database was made by an unreleased build of Strongroom and cannot be upgraded. ' +
  'Start with an empty database.\n'
const NEWER =
  'The database has migrations that this build does not know: start the newer build, or restore a backup\n'

/** Every command that opens the database; `file` is a backup. */
const commandsOn = (file: string, out: string): string[][] => [
  ['serve'], ['migrate'], ['init', '--organization', 'Nimbus', '--email', 'rosa@nimbus.example'], ['backup', out],
  ['restore', file], ['rewrap'], ['audit', 'verify'], ['audit', 'export'], ['audit', 'rotate-key', '--all'],
  ['organization', 'list'], ['user', 'list'], ['token', 'list'], ['client', 'list'], ['coupon', 'list'],
  ['invoice', 'export'], ['refund', 'list'],
  ['plan', 'price', '--plan', 'pro', '--interval', 'month', '--currency', 'EUR', '--amount', '1']
]

const AS_UNRELEASED: Record<string, string[]> = {
  'a journal of other migrations': [
    'DELETE FROM drizzle.__drizzle_migrations',
    "INSERT INTO drizzle.__drizzle_migrations (hash, created_at) VALUES ('first', 1), ('second', 2)"
  ],
  'a journal without entries': ['DELETE FROM drizzle.__drizzle_migrations'],
  'no journal': ['DROP SCHEMA drizzle CASCADE']
}

/**
 * An empty database: the environment variables of a command, and a function that opens the database without the checks
 * of a command.
 */
async function placeFor (t: Test, on: 'PostgreSQL' | 'the embedded database'): Promise<{
  env: Record<string, string>
  folder: string
  open: () => Promise<Database>
}> {
  const folder = scratchDirectory(t)
  if (on === 'the embedded database') {
    return {
      env: { DATA_DIR: folder },
      folder,
      open: () => connect({ dir: join(folder, 'postgres'), pool: 1, durable: false })
    }
  }
  const url = await emptyOnServer(t)
  return { env: { DATABASE_URL: url }, folder, open: () => connect({ url, pool: 2 }) }
}

for (const on of ['PostgreSQL', 'the embedded database'] as const) {
  t.test(`RL-32: every command refuses a database of an unreleased build, and changes nothing, on ${on}`, {
    skip: on === 'PostgreSQL' && skip
  }, async (t) => {
    const { env, folder, open } = await placeFor(t, on)
    const within = async <T> (work: (database: Database) => Promise<T>) => {
      const database = await open()
      return work(database).finally(() => database.close())
    }
    const MASTER_KEY = generateMasterKey().text
    const withKey = { ...env, MASTER_KEY }
    const init = ['init', '--organization', 'Nimbus', '--email', 'rosa@nimbus.example']
    t.equal((await command(init, withKey)).code, 0)
    const elsewhere = scratchDirectory(t)
    const [file, out] = [join(elsewhere, 'made'), join(elsewhere, 'never-made')]
    t.equal((await command(['backup', file], withKey)).code, 0)

    const baseline = await within(({ db }) => listMigrations(db))
    const back = [
      'CREATE SCHEMA IF NOT EXISTS drizzle',
      'CREATE TABLE IF NOT EXISTS drizzle.__drizzle_migrations (id serial PRIMARY KEY, hash text NOT NULL, created_at bigint)',
      'DELETE FROM drizzle.__drizzle_migrations',
      `INSERT INTO drizzle.__drizzle_migrations (hash, created_at) VALUES ${baseline.map((hash, i) => `('${hash}', ${i})`).join()}`
    ]
    // Opening an embedded database takes most of the time, so the test does as much as possible in each opening.
    const refuses = async (
      statements: readonly string[], commands: readonly string[][], message: string, more = async () => {}
    ) => {
      const before = await within(async (database) => {
        await run(database, ...statements)
        return contentOf(database)
      })
      for (const args of commands) {
        // For `audit verify`, exit status 1 means an invalid audit log, so this error has status 2.
        const code = args.join(' ') === 'audit verify' ? 2 : 1
        t.same(await command(args, { ...withKey, PORT: '0' }), { code, stdout: '', stderr: message }, args.join(' '))
      }
      await more()
      const after = await within(async (database) => {
        const content = await contentOf(database)
        await run(database, ...back)
        return content
      })
      t.strictSame(after, before, 'the database is as it was')
      t.notOk(existsSync(out))
    }

    const isFast = on === 'PostgreSQL'
    let commands = commandsOn(file, out).slice(0, isFast ? undefined : LONG ? 5 : 1)
    for (const [what, statements] of sample(Object.entries(AS_UNRELEASED), isFast ? 1 : 3)) {
      t.comment(what)
      await refuses(statements, commands, UNRELEASED, async () => {
        if (on === 'PostgreSQL') return
        t.match(await command(['serve'], { ...env, PORT: '0' }), { code: 1, stderr: UNRELEASED })
        t.notOk(existsSync(join(folder, 'master.key')), 'without a key, none is made')
      })
      // The other commands open the database in the same way.
      commands = [['migrate']]
    }
    const newer = "INSERT INTO drizzle.__drizzle_migrations (hash, created_at) VALUES ('newer', 9)"
    await refuses([newer], sample([['migrate'], ['serve']], isFast ? 1 : 2), NEWER)
    t.equal((await command(['user', 'list'], withKey)).code, 0, 'the same database is served with its journal')
  })
}

/** The content of a database: its schema, and the rows of each table. */
async function contentOf (database: Database) {
  const tables = await rowsOf(database, `
    SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables
    WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1`) as { name: string }[]
  const rows: Record<string, unknown> = {}
  for (const { name } of tables) rows[name] = await rowsOf(database, `SELECT to_jsonb(t) AS row FROM ${name} t ORDER BY 1`)
  const others = await rowsOf(database, `
    SELECT n.nspname, c.relname, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' ORDER BY 1, 2`)
  return { schema: await schemaOf(database), others, rows }
}

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
