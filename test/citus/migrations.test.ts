// runs: Citus; 20 s
import postgres from 'postgres'
import t, { type Test } from 'tap'
import { connect } from '../../src/db/database.ts'
import { migrateSchema } from '../../src/db/migrate.ts'
import { MEANING } from '../../src/db/postgres/session.ts'
import { makeLevel, startIsolatedApp } from '../helpers/app.ts'
import { createOnCitus, dropOnCitus, urlOf, useOwnCitus } from '../helpers/citus.ts'
import { copyOfMigrations } from '../helpers/migrations.ts'
import { callAs, makePerson } from '../helpers/people.ts'
import { command } from '../helpers/process.ts'
import { until } from '../helpers/until.ts'

t.setTimeout(300_000)

const { nodes } = await useOwnCitus(t)

const NEXT = {
  '9000_next': [
    `CREATE TABLE notes (organization_id char(26) NOT NULL, id char(26) NOT NULL, project_id char(26) NOT NULL,
      text varchar(64) NOT NULL, CONSTRAINT notes_pk PRIMARY KEY (organization_id, id))`,
    `ALTER TABLE notes ADD CONSTRAINT notes_in_project FOREIGN KEY (organization_id, project_id)
      REFERENCES projects (organization_id, id) ON DELETE CASCADE`,
    'CREATE INDEX notes_of_project ON notes (organization_id, project_id)',
    "ALTER TABLE secrets ADD COLUMN note varchar(64) DEFAULT 'none' NOT NULL",
    'CREATE INDEX secrets_by_note ON secrets (organization_id, note)',
    'CREATE TABLE announcements (id integer PRIMARY KEY, text varchar(64) NOT NULL)'
  ]
}

function clientOf (t: Test, url: string) {
  const client = postgres(url, { max: 1, fetch_types: false, onnotice: () => {} })
  t.teardown(() => client.end({ timeout: 1 }))
  return client
}

t.test('a later migration adds a table, a column and an index to a placed database, while the service runs', async (t) => {
  // This test has its own database, because it changes the schema.
  const service = await startIsolatedApp(t)
  const caller = await service.organization()
  const level = await makeLevel(caller)
  const store = () => caller.call('POST', `/${caller.organization}/secrets/store`, { ...level, plaintext: 'A=1' })
  t.equal((await store()).status, 200)

  const folder = copyOfMigrations(t, NEXT)
  const url = service.env.DATABASE_URL!
  await migrateSchema(clientOf(t, url), { folder })
  const [placed] = await service.sql(`
    SELECT p.colocationid = c.colocationid AS is_beside FROM pg_dist_partition p, pg_dist_partition c
    WHERE p.logicalrelid = 'notes'::regclass AND c.logicalrelid = 'organization_counters'::regclass`)
  t.ok(placed?.is_beside, 'the new table is distributed like the others')
  const at = `'${caller.organization}'`
  await service.sql(`INSERT INTO notes SELECT organization_id, id, id, 'a note' FROM projects
    WHERE organization_id = ${at}`)
  t.match(await service.sql(`SELECT note FROM secrets WHERE organization_id = ${at}`), [{ note: 'none' }])
  t.match(await service.sql(`SELECT count(*)::int AS n FROM run_command_on_shards('secrets',
    $$SELECT indexdef FROM pg_indexes WHERE tablename = '%s' AND indexname LIKE 'secrets_by_note%%'$$) WHERE result <> ''`),
  [{ n: 4 }])
  await t.rejects(
    service.sql(`INSERT INTO notes VALUES (${at}, 'x', 'x', 'no project')`), { cause: { code: '23503' } }, 'the foreign key holds'
  )
  t.equal((await store()).status, 200)

  await migrateSchema(clientOf(t, url), { folder })
  const worker = urlOf(nodes[1]!.url, new URL(url).pathname.slice(1))
  await migrateSchema(clientOf(t, worker), { folder })
  t.match(await clientOf(t, worker)`SELECT text FROM notes`, [{ text: 'a note' }], 'a start on a worker finds the schema')
})

t.test('migrate checks the nodes before it places tables, and says what is missing', async (t) => {
  const urls = nodes.map(({ url }) => url)
  const migrate = async (url: string) => {
    const database = await connect({ url, pool: 1 })
    try {
      return await database.migrate()
    } finally {
      await database.close()
    }
  }
  const alone = await createOnCitus(urls.slice(0, 1), 'alone')
  t.teardown(() => dropOnCitus(urls, 'alone'))
  await t.rejects(migrate(alone), { name: 'CitusError', message: /has no worker: run citus_add_node/ })

  const url = await createOnCitus(urls, 'unset')
  t.teardown(() => dropOnCitus(urls, 'unset'))
  await clientOf(t, urls[2]!)`ALTER DATABASE unset SET citus.enable_unsafe_triggers = off`
  await t.rejects(migrate(url), {
    name: 'CitusError', message: /set citus\.enable_unsafe_triggers = on in postgresql\.conf: triggers .* \(now: off\)/
  })
  await t.rejects(migrate(urlOf(urls[1]!, 'unset')), { name: 'CitusError', message: /DATABASE_URL of the coordinator/ })
  await clientOf(t, urls[2]!)`ALTER DATABASE unset RESET citus.enable_unsafe_triggers`
  t.ok((await migrate(url))!.tables > 40, 'places the tables')
  t.same(await migrate(url), { tables: 0, nodes: [], isChecked: false }, 'places nothing again')
})

t.test('CR-61: settings of the role have no effect on the connections between the nodes', async (t) => {
  const service = await startIsolatedApp(t)
  const { organization: o } = await service.organization()
  const person = await makePerson(service, { [o]: 'owner' })
  const call = await callAs(service, person)
  const url = service.env.DATABASE_URL!
  const hostile: Record<string, string> = {
    bytea_output: 'escape',
    extra_float_digits: '-5',
    DateStyle: 'SQL, DMY',
    IntervalStyle: 'sql_standard',
    TimeZone: 'Asia/Tokyo',
    xmlbinary: 'hex',
    array_nulls: 'off',
    default_transaction_isolation: 'serializable'
  }
  const shown = async () => (await clientOf(t, url).unsafe(`SELECT result FROM run_command_on_all_nodes(
    $$SELECT json_object_agg(name, setting) FROM pg_settings WHERE name IN ('${Object.keys(hostile).join("', '")}')$$,
    parallel => false)`)).map(({ result }) => JSON.parse(result))
  const right = Object.fromEntries(Object.keys(hostile).map((name) => [name, MEANING[name as keyof typeof MEANING]]))
  t.strictSame(await shown(), [right, right, right])
  const onNodes = (change: (name: string) => string) => Promise.all(nodes.map((node) =>
    clientOf(t, node.url).unsafe(['SET citus.enable_ddl_propagation = off', ...Object.keys(hostile).map(change)].join(';'))))
  await onNodes((name) => `ALTER ROLE postgres SET ${name} = '${hostile[name]}'`)
  t.strictSame(await shown(), [right, right, right])
  for (const node of nodes.slice(1)) {
    await clientOf(t, node.url)`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
      WHERE datname = ${new URL(url).pathname.slice(1)} AND pid <> pg_backend_pid() AND backend_type = 'client backend'`
  }
  t.ok(await until(async () => (await call('GET', `/organizations/${o}`)).status === 200))
  t.match(await command(['migrate'], service.env), { code: 0, stdout: /No setting had to be changed/ })
  await onNodes((name) => `ALTER ROLE postgres RESET ${name}`)
})

t.test('CR-61: a node whose role has other settings in the database is refused by a start, and migrate sets them', async (t) => {
  const service = await startIsolatedApp(t)
  const database = new URL(service.env.DATABASE_URL!).pathname.slice(1)
  const node = nodes[1]!.url.replace(/.*@(.*)\/.*/, '$1')
  const onNode = (change: string) => clientOf(t, nodes[1]!.url).unsafe(`SET citus.enable_ddl_propagation = off;
    ALTER ROLE postgres IN DATABASE ${database} ${change}`)
  const list = () => command(['organization', 'list'], service.env)
  for (const [name, value] of Object.entries({ bytea_output: 'escape', TimeZone: 'Asia/Tokyo', extra_float_digits: '-5' })) {
    await onNode(`SET ${name} = '${value}'`)
    t.match(await list(), {
      code: 1, stdout: '', stderr: new RegExp(`^.*${node}: ${name} is ${value}, but has to be .*: run \`migrate\`.*\n$`)
    }, name)
    t.match(await command(['migrate'], service.env), { code: 0, stdout: new RegExp(`Settings were set on ${node}\\.`) })
    t.match(await list(), { code: 0 }, `${name}, set again`)
  }
  await onNode('SET session_replication_role = replica')
  for (const args of [['organization', 'list'], ['migrate']]) {
    t.match(await command(args, service.env), {
      code: 1, stdout: '', stderr: new RegExp(`^.*${node}: session_replication_role is replica.* ALTER ROLE .*\n$`)
    }, args.join(' '))
  }
  await onNode('RESET session_replication_role')
  t.match(await list(), { code: 0 })
})

t.test('migrate sets the settings of a copied database and of each node that lacks them, and says on which', async (t) => {
  const service = await startIsolatedApp(t)
  const url = service.env.DATABASE_URL!
  const database = new URL(url).pathname.slice(1)
  const [coordinator, , second] = nodes.map((node) => node.url.replace(/.*@(.*)\/.*/, '$1'))
  const migrate = () => command(['migrate'], service.env)
  const right = 'The schema is up to date. 0 tables were placed on the nodes of the Citus cluster. No setting had to be changed.\n'
  t.match(await migrate(), { code: 0, stdout: right })

  const settings = () => clientOf(t, nodes[2]!.url)`SELECT unnest(setconfig) AS setting FROM pg_db_role_setting
    JOIN pg_database ON oid = setdatabase WHERE datname = ${database} ORDER BY 1`
  const before = await settings()
  await clientOf(t, nodes[2]!.url).unsafe(`ALTER DATABASE ${database} RESET ALL`)
  await clientOf(t, nodes[0]!.url).unsafe(`SET citus.enable_ddl_propagation = off;
    ALTER DATABASE ${database} SET lock_timeout = '7s'`)
  t.match(await migrate(), { code: 0, stdout: new RegExp(`Settings were set on ${coordinator}, ${second}\\.`) })
  const names = (rows: readonly Record<string, unknown>[]) => rows.map(({ setting }) => String(setting).split('=')[0])
  t.strictSame(names(await settings()), names(before).filter((name) => name !== 'citus.shard_count'))
  t.match(await migrate(), { code: 0, stdout: right })

  await nodes[2]!.stop('immediate')
  t.match(await migrate(), { code: 1, stderr: new RegExp(`${second} does not respond: .*connect`) }, 'a node that does not respond')
  const started = await connect({ url, pool: 2 })
  t.same(await started.migrate(), { tables: 0, nodes: [], isChecked: false }, 'a start of the service does not need the node')
  await started.close()
  await nodes[2]!.start()
})
