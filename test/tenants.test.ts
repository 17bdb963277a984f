import { spawnSync } from 'node:child_process'
import { join, resolve } from 'node:path'
import t from 'tap'
import { ulid } from 'ulidx'
import { makeLevel, startApp } from './helpers/app.ts'
import { makePerson } from './helpers/people.ts'
import { scratchDirectory } from './helpers/process.ts'
import { EXCEPTIONS, TENANT_TABLES, crossesTenants } from './helpers/statements.ts'

const service = await startApp(t)

t.test('every table of an organization has it in its key, and in every reference to its kind', async (t) => {
  const columns = await service.sql(
    "SELECT table_name AS name FROM information_schema.columns WHERE table_schema = 'public' AND column_name = 'organization_id' ORDER BY 1"
  )
  t.same(columns.map(({ name }) => name), [...TENANT_TABLES].sort(), 'the statements of all of them are watched')
  const constraints = await service.sql(`
    SELECT c.conrelid::regclass::text AS of, c.confrelid::regclass::text AS to, c.contype AS kind, c.conname AS name,
      ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.conrelid AND attnum = ANY (c.conkey)) AS columns
    FROM pg_constraint c WHERE c.connamespace = 'public'::regnamespace AND c.contype IN ('p', 'u', 'f')`) as {
    of: string
    to: string
    kind: 'p' | 'u' | 'f'
    name: string
    columns: string[]
  }[]
  for (const table of TENANT_TABLES) {
    const own = constraints.filter(({ of }) => of === table)
    t.ok(own.some(({ columns }) => columns.includes('organization_id')), `${table}: in its key or in a reference`)
    for (const { name, to, columns } of own.filter(({ kind, to }) => kind === 'f' && TENANT_TABLES.includes(to))) {
      t.ok(columns.includes('organization_id'), `${name}: refers to ${to} with the organization`)
    }
  }
  const indexes = await service.sql(
    "SELECT indexname AS name, indexdef AS definition FROM pg_indexes WHERE schemaname = 'public' AND indexdef LIKE 'CREATE UNIQUE%'"
  )
  const alone = indexes.filter(({ definition }) => TENANT_TABLES.some((table) =>
    (definition as string).includes(` ON public.${table} `)) && !(definition as string).includes('(organization_id'))
  t.same(
    alone.map(({ name }) => name).sort(), [
      'api_tokens_pkey', 'api_tokens_token_hash_unique', 'encryption_keys_pkey',
      'former_token_hashes_token_hash_unique'
    ],
    'numbers of the installation, and the hashes by which a token is found'
  )
})

t.test('a row cannot point at one of another organization, whoever writes it', async (t) => {
  const [a, b] = [await service.organization(), await service.organization()]
  for (const caller of [a, b]) {
    await caller.call('POST', `/${caller.organization}/secrets/store`, { ...await makeLevel(caller), plaintext: 'A=1' })
    const o = caller.organization
    const person = await makePerson(service, { [o]: 'member' })
    await service.sql(`INSERT INTO teams (id, organization_id, name, slug) VALUES ('${ulid()}', '${o}', 'Ops', 'ops')`)
    await service.sql(`INSERT INTO team_members (organization_id, team_id, user_id)
      SELECT '${o}', id, ${person.id} FROM teams WHERE organization_id = '${o}'`)
    await service.sql(`INSERT INTO team_projects (organization_id, team_id, project_id, role)
      SELECT '${o}', t.id, p.id, 'member' FROM teams t, projects p
      WHERE t.organization_id = '${o}' AND p.organization_id = '${o}'`)
  }
  const moves: [table: string, column: string, from: string][] = [
    ['targets', 'project_id', 'projects'], [
      'environments', 'project_id', 'projects'
    ], ['environments', 'target_id', 'targets'], ['encryption_keys', 'project_id', 'projects'],
    ['secrets', 'project_id', 'projects'], ['secrets', 'target_id', 'targets'], [
      'secrets', 'environment_id', 'environments'
    ], ['secrets', 'history_id', 'histories'], ['team_projects', 'project_id', 'projects'],
    ['team_projects', 'team_id', 'teams'], ['team_members', 'team_id', 'teams'],
    ['secret_versions', 'history_id', 'histories'], ['project_counts', 'project_id', 'projects']
  ]
  for (const [table, column, from] of moves) {
    const move =
      `UPDATE ${table} SET ${column} = (SELECT id FROM ${from} WHERE organization_id = '${b.organization}') WHERE organization_id = '${a.organization}'`
    await t.rejects(service.sql(move), { cause: { code: '23503' } }, `${table}.${column}`)
  }
  const stranger = await makePerson(service, { [b.organization]: 'member' })
  const strange = `UPDATE team_members SET user_id = ${stranger.id} WHERE organization_id = '${a.organization}'`
  await t.rejects(service.sql(strange), { cause: { code: '23503' } }, 'a team has members of its organization alone')
})

t.test('a statement that names no organization is caught, whatever it does', (t) => {
  const caught = [
    'SELECT id FROM secrets WHERE id = $1',
    'select "id" from "projects" where "projects"."id" = $1',
    'select "v"."id" from "secret_versions" "v" inner join "secrets" on "secrets"."history_id" = "v"."history_id" where "v"."organization_id" = $1',
    'SELECT p.id, (SELECT count(*) FROM targets t WHERE t.project_id = p.id) FROM projects p WHERE p.organization_id = $1',
    'SELECT p.id FROM projects p JOIN targets t ON t.organization_id = p.organization_id AND t.project_id = p.id WHERE p.slug = $1',
    'update "environments" set "name" = $1 where "environments"."id" = $2',
    'UPDATE secrets s SET version = r.id FROM r WHERE s.id = r.id',
    'delete from "api_tokens" where "api_tokens"."id" = $1',
    'DELETE FROM secret_versions v USING secrets s WHERE v.organization_id = $1 AND v.history_id = s.history_id',
    'WITH gone AS (DELETE FROM histories WHERE id = $1 RETURNING id) SELECT * FROM gone',
    'SELECT o.id FROM organizations o, projects p WHERE p.id = $1',
    'INSERT INTO targets (id, name) VALUES ($1, $2)',
    "SELECT id FROM projects WHERE slug = 'organization_id = $1'"
  ]
  for (const statement of caught) t.type(crossesTenants(statement), 'string', statement)
  const fine = [
    'SELECT id FROM secrets WHERE organization_id = $1 AND id = $2',
    'select "t"."id" from "targets" "t" inner join "projects" on ("projects"."organization_id" = "t"."organization_id" and "projects"."id" = "t"."project_id") where "projects"."organization_id" = $1',
    'insert into "projects" ("id", "organization_id") values ($1, $2)',
    'SELECT now()', 'select "id" from "users" where "users"."id" = $1'
  ]
  for (const statement of fine) t.equal(crossesTenants(statement), undefined, statement)
  for (const { why } of EXCEPTIONS) t.ok(why.length > 10)
  t.end()
})

t.test('such a statement fails the test that sent it, and ends any other process, whoever catches its error', async (t) => {
  const planted = `
    const { connect } = await import('./dist/src/db/database.js')
    const { sql } = await import('drizzle-orm')
    const database = await connect({ dir: ${JSON.stringify(join(scratchDirectory(t), 'data'))}, pool: 1, durable: false })
    await database.db.execute(sql\`SELECT id FROM secrets WHERE id = '1'\`).catch(() => {})
    await database.close()`
  const inTest = `import t from 'tap'; import './dist/test/helpers/app.js'
    t.test('planted', async (t) => { ${planted} \n t.pass() })`
  const runs = {
    test: [inTest], process: [`${planted}\n process.exit(0)`, '--import', resolve('dist/test/helpers/statements.js')]
  }
  for (const [name, [program, ...watched]] of Object.entries(runs)) {
    const { status, stdout, stderr } = spawnSync(
      process.execPath, [...watched, '--input-type=module', '-e', program!], { encoding: 'utf8' }
    )
    t.ok(status !== 0, `${name}: it fails`)
    t.match(stdout + stderr, 'secrets without its organization', name)
  }
})
