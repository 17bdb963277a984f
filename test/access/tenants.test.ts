// runs: one database
import { spawnSync } from 'node:child_process'
import { join, resolve } from 'node:path'
import { getTableName, is, sql } from 'drizzle-orm'
import { PgTable } from 'drizzle-orm/pg-core'
import t from 'tap'
import { ulid } from 'ulidx'
import { placementOf, type Placement } from '../../src/db/citus/placement.ts'
import { hasOrganization } from '../../src/db/postgres/engine.ts'
import * as tables from '../../src/db/tables.ts'
import { makeLevel, ON_CITUS, startIsolatedApp } from '../helpers/app.ts'
import { makePerson } from '../helpers/people.ts'
import { scratchDirectory } from '../helpers/process.ts'
import { beside, EXCEPTIONS, TENANT_TABLES, crossesTenants } from '../helpers/statements.ts'

// This file has its own database, because it changes the schema within a transaction.
const service = await startIsolatedApp(t)

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
  t.same(alone.map(({ name }) => name), ['former_slugs_slug_unique'], 'slugs of organizations')
})

t.test('the database refuses a row that refers to a row of another organization, from any writer', async (t) => {
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
    const [other] = await service.sql(`SELECT id FROM ${from} WHERE organization_id = '${b.organization}'`)
    const move =
      `UPDATE ${table} SET ${column} = '${String(other!.id)}' WHERE organization_id = '${a.organization}'`
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
    "SELECT id FROM projects WHERE slug = 'organization_id = $1'",
    'SELECT s.sealed FROM secrets s WHERE s.id = $1 AND EXISTS (SELECT FROM members WHERE members.user_id = $2)',
    'DELETE FROM secret_versions WHERE id = $1 AND (SELECT count(*) FROM members WHERE members.user_id = $2) > 0',
    'UPDATE projects SET name = $1 FROM members WHERE projects.id = $3 AND members.user_id = $2',
    'SELECT p.id FROM projects p JOIN targets t ON t.organization_id = p.organization_id WHERE p.id = $1 AND EXISTS (SELECT FROM members WHERE members.user_id = $2)',
    'UPDATE members SET role = $1 WHERE members.user_id = $2',
    'DELETE FROM members WHERE members.user_id = $1',
    'INSERT INTO members (user_id, role) VALUES ($1, $2)',
    'SELECT sealed FROM secrets WHERE id = $1 OR organization_id = $2',
    'SELECT sealed FROM secrets WHERE organization_id = $2 OR id = $1',
    'SELECT sealed FROM secrets WHERE (organization_id IN ($2) OR id = $1)',
    'SELECT id, organization_id, key_string FROM encryption_keys WHERE id = $1 AND hint IS NULL'
  ]
  for (const statement of caught) t.type(crossesTenants(statement), 'string', statement)
  const fine = [
    'SELECT id FROM secrets WHERE organization_id = $1 AND id = $2',
    'select "t"."id" from "targets" "t" inner join "projects" on ("projects"."organization_id" = "t"."organization_id" and "projects"."id" = "t"."project_id") where "projects"."organization_id" = $1',
    'insert into "projects" ("id", "organization_id") values ($1, $2)',
    'select "role" from "members" where "members"."user_id" = $1',
    'SELECT p.id FROM members m JOIN projects p ON p.organization_id = m.organization_id WHERE m.user_id = $1',
    'SELECT now()', 'select "id" from "users" where "users"."id" = $1'
  ]
  for (const statement of fine) t.equal(crossesTenants(statement), undefined, statement)
  for (const { why } of EXCEPTIONS) t.ok(why.length > 10)
  t.end()
})

t.test('such a statement fails the test that sent it, and ends any other process even if its error is caught', async (t) => {
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

// The placement of tables on several nodes (src/db/citus/placement.ts). PostgreSQL uses the same schema.
const placed = (placement: Placement) => Object.values(tables).filter((table) => is(table, PgTable))
  .filter((table) => placementOf({ name: getTableName(table), has_organization: hasOrganization(table) }) === placement)
  .map((table): string => getTableName(table))
const DISTRIBUTED = placed('distributed')
const REFERENCE = placed('reference')
const LOCAL = placed('local')
const OWN_SCHEMA = { skip: ON_CITUS && 'the schema also has what Citus made: the parts of the tables, and its own views' }

interface Constraint {
  of: string
  to: string | null
  kind: string
  name: string
  columns: string[]
  foreign: string[]
  deletes: string
  deferrable: boolean
}

interface Column {
  of: string
  name: string
  type: string
  required: boolean
  computed: boolean
  identity: string
  collated: boolean
  kind: string
  preset: string
}

const EVENTS_BY_LEVEL = ['audit_events_by_project', 'audit_events_by_target', 'audit_events_by_environment']

/** The parts of the schema that Citus would refuse, with the placement of the service. */
async function refusals (query: (text: string) => Promise<Record<string, unknown>[]>): Promise<string[]> {
  const constraints = await query(`
    SELECT c.conrelid::regclass::text AS of, nullif(c.confrelid, 0)::regclass::text AS to, c.contype AS kind,
      c.conname AS name, c.confdeltype AS deletes, c.condeferrable AS deferrable,
      ARRAY(SELECT attname::text FROM unnest(c.conkey) WITH ORDINALITY k (num, place) JOIN pg_attribute
        ON attrelid = c.conrelid AND attnum = num ORDER BY place) AS columns,
      ARRAY(SELECT attname::text FROM unnest(c.confkey) WITH ORDINALITY k (num, place) JOIN pg_attribute
        ON attrelid = c.confrelid AND attnum = num ORDER BY place) AS foreign
    FROM pg_constraint c WHERE c.connamespace = 'public'::regnamespace`) as unknown as Constraint[]
  const indexes = await query(`
    SELECT i.indrelid::regclass::text AS of, i.indexrelid::regclass::text AS name, am.amname AS method,
      i.indisunique AS is_unique, i.indexprs IS NOT NULL AS computes,
      ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = i.indrelid AND attnum = ANY (i.indkey)) AS columns
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am am ON am.oid = c.relam
    WHERE c.relnamespace = 'public'::regnamespace`) as unknown as
    { of: string, name: string, method: string, is_unique: boolean, computes: boolean, columns: string[] }[]
  const columns = await query(`
    SELECT c.relname AS of, a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS required,
      a.attgenerated <> '' AS computed, a.attidentity AS identity, t.typcollation <> 0 AND t.typcollation <> a.attcollation
        AS collated, t.typtype AS kind, coalesce(pg_get_expr(d.adbin, d.adrelid), '') AS preset
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped`) as unknown as
    Column[]
  const found: string[] = []
  const wrong = (bad: boolean, what: string) => { if (bad) found.push(what) }
  const hasOrganization = (table: string) => DISTRIBUTED.includes(table)

  const tables = [...new Set(columns.map(({ of }) => of))]
  const everywhere = [...DISTRIBUTED, ...REFERENCE, ...LOCAL]
  for (const table of tables) {
    wrong(everywhere.filter((one) => one === table).length !== 1, `${table}: has no place, or several`)
    wrong(!constraints.some(({ of, kind }) => of === table && kind === 'p'), `${table}: has no primary key`)
  }
  for (const table of everywhere) wrong(!tables.includes(table), `${table}: is no table`)
  for (const table of DISTRIBUTED) {
    const own = columns.find(({ of, name }) => of === table && name === 'organization_id')
    wrong(own?.type !== 'character(26)' || !own.required, `${table}: organization_id is what rows are placed by`)
  }
  for (const { of, name, is_unique, columns, method, computes } of indexes) {
    wrong(hasOrganization(of) && is_unique && !columns.includes('organization_id'), `${name}: unique beyond one machine`)
    // Citus builds indexes of immutable expressions, too. Other indexes have no reason to compute.
    wrong(method !== 'btree' || (computes && !EVENTS_BY_LEVEL.includes(name)), `${name}: no plain index`)
  }
  for (const { of, to, kind, name, columns, foreign, deletes, deferrable } of constraints) {
    // `n` is a NOT NULL constraint, which newer PostgreSQL versions list, too.
    wrong(!['p', 'u', 'f', 'c', 'n'].includes(kind) || deferrable, `${name}: a constraint of another kind`)
    if (kind !== 'f' || to === null) continue
    const together = hasOrganization(of) && hasOrganization(to) &&
      columns.indexOf('organization_id') === foreign.indexOf('organization_id') && columns.includes('organization_id')
    const toSmall = REFERENCE.includes(to)
    const onOne = LOCAL.includes(of) && LOCAL.includes(to)
    wrong(!together && !toSmall && !onOne, `${name}: refers to what may be on another machine`)
    wrong(!['a', 'c'].includes(deletes), `${name}: changes rows`)
  }
  for (const { of, name, computed, identity, collated, kind, preset } of columns) {
    const isPlain = !computed && !collated && kind === 'b' && !/nextval/.test(preset) && ['', 'a'].includes(identity)
    wrong(!isPlain, `${of}.${name}: more than a plain column`)
  }
  return found
}

t.test('each table is placed so that several machines can hold its keys and references, as Citus requires', OWN_SCHEMA, async (t) => {
  t.ok(DISTRIBUTED.length > 20)
  t.same([...DISTRIBUTED, 'former_slugs', 'late_events'].sort(), [...TENANT_TABLES].sort(), 'all but reserved slugs and late events')
  t.same(await refusals(service.sql), [])
  await beside(() => service.database.db.transaction(async (tx) => {
    const inside = async (text: string) => await tx.execute(sql.raw(text)) as unknown as Record<string, unknown>[]
    for (const [planted, what] of [
      ['ALTER TABLE targets ADD UNIQUE (slug)', 'targets_slug_key: unique beyond one machine'],
      ['CREATE TABLE strays (id bigint)', 'strays: has no place, or several'],
      ['ALTER TABLE users ADD FOREIGN KEY (id) REFERENCES second_factors', 'users_id_fkey: refers to what may be on another machine'],
      ['ALTER TABLE teams ADD COLUMN twice bigint GENERATED ALWAYS AS (1) STORED', 'teams.twice: more than a plain column'],
      ['CREATE INDEX computed ON teams (organization_id, lower(name))', 'computed: no plain index']
    ] as const) {
      await tx.transaction(async (nested) => {
        await nested.execute(sql.raw(planted))
        t.ok((await refusals(inside)).includes(what), planted)
        nested.rollback()
      }).catch(() => {})
    }
    tx.rollback()
  })).catch((error) => { if (!/rollback/i.test(String(error))) throw error })
})

t.test('nothing is in the schema that other engines lack', OWN_SCHEMA, async (t) => {
  const functions = await service.sql(
    "SELECT proname AS name, prosrc AS source FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1"
  ) as { name: string, source: string }[]
  t.same(functions.map(({ name }) => name), ['keep_audit_event', 'keep_rotated_key'])
  for (const { name, source } of functions) {
    t.notMatch(source.replace(/'[^']*'/g, ''), /\b(select|insert|update|delete|perform|execute)\b/i, `${name} looks at its own row alone`)
  }
  const triggers = await service.sql(`
    SELECT tgrelid::regclass::text AS of, tgname AS name FROM pg_trigger WHERE NOT tgisinternal ORDER BY 2`)
  t.same(triggers.map(({ of, name }) => `${of} ${name}`), [
    'audit_events keep_audit_event', 'audit_events keep_audit_events', 'encryption_keys keep_rotated_key'
  ])
  const [others] = await service.sql(`
    SELECT (SELECT count(*)::int FROM pg_class WHERE relnamespace = 'public'::regnamespace
        AND relkind NOT IN ('r', 'i', 'S')) AS relations,
      (SELECT count(*)::int FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
        WHERE c.relnamespace = 'public'::regnamespace) AS rules,
      (SELECT count(*)::int FROM pg_inherits) AS children,
      (SELECT count(*)::int FROM pg_extension WHERE extname <> 'plpgsql') AS extensions,
      (SELECT count(*)::int FROM pg_type WHERE typnamespace = 'public'::regnamespace AND typtype IN ('e', 'd', 'r')) AS types`)
  t.same(others, { relations: 0, rules: 0, children: 0, extensions: 0, types: 0 }, 'views, rules, partitions, extensions, own types')
})
