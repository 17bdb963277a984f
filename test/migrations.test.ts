import { execFile } from 'node:child_process'
import { cpSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { promisify } from 'node:util'
import { sql } from 'drizzle-orm'
import t from 'tap'
import { connect, type Database } from '../src/db/database.ts'
import { freshDatabase } from './helpers/app.ts'
import { hasPostgres, startPostgres } from './helpers/postgres.ts'

const PLANS = [
  { name: 'enterprise', retention_days: 365, api_per_minute: 100, max_projects: null, max_members: null },
  { name: 'free', retention_days: 7, api_per_minute: 100, max_projects: 5, max_members: 5 },
  { name: 'pro', retention_days: 30, api_per_minute: 100, max_projects: 50, max_members: 25 },
  { name: 'self-hosted', retention_days: null, api_per_minute: 100, max_projects: null, max_members: null },
  { name: 'team', retention_days: 90, api_per_minute: 100, max_projects: null, max_members: 100 }
]

const migrationsIn = (folder: string) => readdirSync(folder).filter((name) => name.endsWith('.sql')).sort()

/** What drizzle-kit would add to the migrations of `folder` (a copy) for what `tables.ts` says. */
async function generate (folder: string): Promise<string[]> {
  const before = migrationsIn(folder)
  const args = ['generate', '--dialect', 'postgresql', '--schema', './src/db/tables.ts', '--out', relative('.', folder)]
  const { stdout } = await promisify(execFile)(process.execPath, ['node_modules/.bin/drizzle-kit', ...args])
  if (!/nothing to migrate|Your SQL migration file/.test(stdout)) throw new Error(stdout)
  return migrationsIn(folder).filter((name) => !before.includes(name))
}

function copyOfMigrations (t: { teardown (fn: () => unknown): void }): string {
  const folder = mkdtempSync(join(tmpdir(), 'strongroom-migrations-'))
  t.teardown(() => { rmSync(folder, { recursive: true }) })
  cpSync('drizzle', folder, { recursive: true })
  return folder
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

t.test('the migrations give the same schema and plans on either database', { skip: !hasPostgres() && 'PostgreSQL is not installed' }, async (t) => {
  const server = await startPostgres({ durable: false })
  t.teardown(() => server.close())
  const real = await connect({ url: server.url, pool: 2 })
  t.teardown(() => real.close())
  await real.migrate()
  await real.migrate()
  const { database: embedded, drop } = await freshDatabase()
  t.teardown(async () => {
    await embedded.close()
    await drop()
  })
  const schema = await schemaOf(real)
  t.ok(schema.columns.length > 80, 'the schema was read')
  t.ok(schema.indexes.some(({ indexname }) => indexname === 'encryption_keys_one_active'))
  t.strictSame(await schemaOf(embedded), schema)
  for (const database of [real, embedded]) t.strictSame(await rowsOf(database, 'SELECT * FROM plans ORDER BY name'), PLANS, database.kind)
})

async function schemaOf (database: Database) {
  return {
    columns: await rowsOf(database, `
      SELECT table_name, column_name, data_type, character_maximum_length, is_nullable, column_default, identity_generation
      FROM information_schema.columns WHERE table_schema = 'public' ORDER BY table_name, column_name`),
    indexes: await rowsOf(database, "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY indexname"),
    constraints: await rowsOf(database, `
      SELECT conrelid::regclass::text AS of, conname, pg_get_constraintdef(oid) AS definition
      FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype IN ('p', 'u', 'f', 'c') ORDER BY 1, 2`)
  }
}

async function rowsOf (database: Database, query: string): Promise<Record<string, unknown>[]> {
  return [...await database.db.execute(sql.raw(query)) as unknown as Record<string, unknown>[]]
}
