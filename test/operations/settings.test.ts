// runs: PostgreSQL; 20 s
import { readFileSync } from 'node:fs'
import postgres from 'postgres'
import t from 'tap'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { MEANING } from '../../src/db/postgres/session.ts'
import { LONG } from '../helpers/long.ts'
import { command, startServer, type Server } from '../helpers/process.ts'
import { until } from '../helpers/until.ts'

t.setTimeout(180_000)

// Settings of a role or a database that change the meaning of a statement, the rows that it sees, or the form of a
// value.
const HOSTILE: Record<string, string> = {
  search_path: 'evil, pg_catalog, public',
  default_transaction_isolation: 'serializable',
  bytea_output: 'escape',
  extra_float_digits: '-5',
  DateStyle: 'SQL, DMY',
  IntervalStyle: 'sql_standard',
  TimeZone: 'Asia/Tokyo',
  timezone_abbreviations: 'India',
  lc_monetary: 'C.UTF-8',
  lc_numeric: 'C.UTF-8',
  lc_time: 'C.UTF-8',
  xmlbinary: 'hex',
  xmloption: 'document',
  quote_all_identifiers: 'on',
  array_nulls: 'off',
  backslash_quote: 'on',
  standard_conforming_strings: 'off',
  transform_null_equals: 'on',
  client_encoding: 'LATIN1'
}

// Settings of the same categories without such an effect.
const HARMLESS = [
  'check_function_bodies', 'client_min_messages', 'default_table_access_method', 'default_tablespace',
  'default_text_search_config', 'default_toast_compression', 'default_transaction_deferrable',
  // A read-only role gets errors when it writes.
  'default_transaction_read_only',
  'escape_string_warning', 'event_triggers', 'idle_in_transaction_session_timeout', 'idle_session_timeout',
  'lock_timeout', 'restrict_nonsystem_relation_kind', 'statement_timeout', 'synchronize_seqscans', 'temp_tablespaces',
  'transaction_timeout',
  // The service has no GIN index and no row security.
  'gin_fuzzy_search_limit', 'gin_pending_list_limit', 'row_security',
  'local_preload_libraries', 'createrole_self_grant', 'allow_alter_system'
]

const server = process.env.TEST_DATABASE_URL!
const admin = postgres(server, { max: 1, onnotice: () => {} })
t.teardown(() => admin.end())

const urlOf = (name: string, user = 'postgres') => {
  const url = new URL(server)
  url.pathname = `/${name}`
  url.username = user
  return url.href
}
const settingsOf = (of: string) => Object.entries(HOSTILE).map(([name, value]) =>
  `ALTER ${of} SET ${name} = ${name === 'search_path' ? value : `'${value}'`};`).join('\n')
const makeDatabase = async (name: string) => {
  await admin.unsafe(`CREATE ROLE ${name} LOGIN`)
  await admin.unsafe(`CREATE DATABASE ${name} OWNER ${name}`)
  t.teardown(async () => {
    await admin.unsafe(`DROP DATABASE ${name} WITH (FORCE)`)
    await admin.unsafe(`DROP ROLE ${name}`)
  })
}
// Replaces the connections of the service, so that they use the current settings.
const reconnect = (name: string) =>
  admin`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = ${name} AND application_name = 'strongroom'`

const asking = (address: string, { organization, token }: NonNullable<Server['first']>) =>
  (method: string, path: string, body?: object) => until(async () => {
    const answer = await fetch(`${address}/api/v1/${organization}${path}`, {
      method,
      headers: { authorization: `Bearer ${token}`, ...(body && { 'content-type': 'application/json' }) },
      ...(body && { body: JSON.stringify(body) })
    })
    // A 503 is possible while the service opens new connections.
    return answer.status !== 503 &&
      { status: answer.status, body: answer.status === 204 ? undefined : await answer.json() as any }
  })

const PLACE = { project: 'orbit', target: 'backend', environment: 'live' }
const VALUES = ['A=é\\n', 'A=\\x41', "B='2'\nC=1", 'A=4', 'A=5']

async function fill (ask: ReturnType<typeof asking>) {
  await ask('POST', '/projects', { name: 'Orbit' })
  await ask('POST', '/orbit/targets', { name: 'Backend' })
  await ask('POST', '/orbit/backend/environments', { name: 'Live', status: 'production' })
  for (const plaintext of VALUES) {
    const { status } = await ask('POST', '/secrets/store', { ...PLACE, plaintext })
    if (status !== 200) throw new Error(`a store answered ${status}`)
  }
}

// The data in responses of the service and in the output of its commands.
async function look (ask: ReturnType<typeof asking>, env: Record<string, string>) {
  const { body: { data } } = await ask('POST', '/secrets/versions', PLACE)
  const versions = data.map(({ id, attributes }: any) => [id, attributes.created_at])
  const contents: unknown[] = []
  for (const [, at] of versions) {
    const { status, body } = await ask('GET', `/orbit/backend/live/secrets?decrypt=true&at=${at}`)
    contents.push([status, body.data?.attributes?.levels?.environment?.content ?? body])
  }
  const verified = await command(['audit', 'verify'], env)
  return { versions, contents, verified: verified.code, said: verified.stdout.replace(/\d+/g, '') + verified.stderr }
}

const contentsOf = ({ contents }: Awaited<ReturnType<typeof look>>) => contents.toReversed()

t.test('CR-61: each connection sets every setting that changes how statements or values are read', async (t) => {
  const listed = await admin<{ name: string }[]>`
    SELECT name FROM pg_settings WHERE context = 'user' AND name NOT LIKE 'vacuum%' AND name NOT LIKE 'transaction_%'
      AND (category LIKE 'Client Connection Defaults%' OR category LIKE 'Version and Platform Compatibility%')`
  const known = [...Object.keys(MEANING), 'client_encoding', ...HARMLESS]
  t.same(listed.map(({ name }) => name).filter((name) => !known.includes(name)), [])
  t.same(Object.keys(HOSTILE).toSorted(), [...Object.keys(MEANING), 'client_encoding'].toSorted())
  const shown = await admin<{ name: string }[]>`SELECT name FROM pg_settings WHERE name IN ${admin(Object.keys(MEANING))}`
  t.equal(shown.length, Object.keys(MEANING).length, 'as the view pg_settings spells them')
  const page = readFileSync('docs/operations/database.md', 'utf8')
  // PgBouncer forwards these settings.
  const passed = ['DateStyle', 'TimeZone', 'standard_conforming_strings']
  t.same(Object.keys(MEANING).filter((name) => !passed.includes(name) && !page.includes(`\`${name}\``)), [])
})

// A filled database, its key, and the responses of the service about its data.
let filled: { env: Record<string, string>, running: Server, first: Awaited<ReturnType<typeof look>> }

for (const [of, where] of [['role', 'ROLE'], ['database', 'DATABASE']] as const) {
  t.test(`settings of the ${of}, set before the first start or at runtime, change no value that is read`, async (t) => {
    const [before, during] = [`${of}_before`, `${of}_during`]
    // Without LONG, the role gets the settings before the first start, and the database gets them at runtime.
    const names = LONG ? [before, during] : [of === 'role' ? before : during]
    for (const name of names) await makeDatabase(name)
    if (names.includes(before)) await admin.unsafe(settingsOf(`${where} ${before}`))
    for (const name of names) {
      const env = { DATABASE_URL: urlOf(name, name), MASTER_KEY: generateMasterKey().text, DATABASE_POOL: '4' }
      const running = await startServer(t, env)
      const ask = asking(running.address, running.first!)
      await fill(ask)
      const first = await look(ask, env)
      t.equal(first.verified, 0, first.said)
      t.same(contentsOf(first), VALUES.map((value) => [200, value]), name)
      await admin.unsafe(settingsOf(`${where} ${name}`))
      await reconnect(name)
      const second = await look(ask, env)
      t.strictSame(second, first, `${name}, on new connections`)
      await running.stop()
      filled = { env, running, first }
      // Without LONG, the first start with these settings or the test of the URL has already read the same data.
      if (!LONG) continue
      // A start reads the keys, the canaries and the MACs.
      const again = await startServer(t, env)
      t.strictSame(await look(asking(again.address, running.first!), env), first, `${name}, after a start`)
      await again.stop()
    }
  })
}

t.test('parameters of DATABASE_URL change nothing that is read either', async (t) => {
  if (LONG) {
    await makeDatabase('by_url')
    const env = { DATABASE_URL: urlOf('by_url', 'by_url'), MASTER_KEY: generateMasterKey().text, DATABASE_POOL: '4' }
    const running = await startServer(t, env)
    const ask = asking(running.address, running.first!)
    await fill(ask)
    filled = { env, running, first: await look(ask, env) }
    await running.stop()
  }
  const { env, running, first } = filled
  const names = Object.entries(HOSTILE).filter(([name]) => name !== 'search_path')
  type Names = typeof names
  const spellings = {
    parameters: (names: Names) => new URLSearchParams(names).toString(),
    'in upper case': (names: Names) =>
      new URLSearchParams(names.map(([name, value]): [string, string] => [name.toUpperCase(), value])).toString(),
    options: (names: Names) => new URLSearchParams({
      options: names.map(([name, value]) => `-c ${name}=${value.replace(/[ \\]/g, '\\$&')}`).join(' ')
    }).toString()
  }
  // Without LONG, a single URL has all parameters, each in one of the spellings.
  const mixed = () => Object.values(spellings)
    .map((spell, which) => spell(names.filter((_, i) => i % 3 === which))).join('&')
  for (const [name, spell] of Object.entries(LONG ? spellings : { mixed })) {
    const query = spell(names)
    const fooled = { ...env, DATABASE_URL: `${env.DATABASE_URL}?${query}` }
    const again = await startServer(t, fooled)
    t.strictSame(await look(asking(again.address, running.first!), fooled), first, name)
    await again.stop()
  }
})

t.test('a running service changes nothing while new sessions of its role run no triggers', async (t) => {
  await makeDatabase('untriggered')
  const env = { DATABASE_URL: urlOf('untriggered', 'untriggered'), MASTER_KEY: generateMasterKey().text, DATABASE_POOL: '4' }
  const { address, first, stop } = await startServer(t, env)
  const ask = asking(address, first!)
  await fill(ask)
  const store = async () => (await fetch(`${address}/api/v1/${first!.organization}/secrets/store`, {
    method: 'POST',
    headers: { authorization: `Bearer ${first!.token}`, 'content-type': 'application/json' },
    body: JSON.stringify({ ...PLACE, plaintext: 'A=6' })
  })).status
  await admin.unsafe('ALTER ROLE untriggered SET session_replication_role = replica')
  await reconnect('untriggered')
  t.equal((await ask('GET', '/orbit/backend/live/secrets')).status, 200, 'an encrypted read')
  for (let time = 0; time < 8; time++) t.equal(await store(), 503, 'a store')
  await admin.unsafe('ALTER ROLE untriggered RESET session_replication_role')
  await reconnect('untriggered')
  t.equal((await ask('POST', '/secrets/store', { ...PLACE, plaintext: 'A=6' })).status, 200)
  await stop()
})

t.test('a database or a role whose sessions run no triggers is refused; a backup still reads it', async (t) => {
  await makeDatabase('triggers')
  const env = { DATABASE_URL: urlOf('triggers', 'triggers'), MASTER_KEY: generateMasterKey().text }
  t.match(await command(['init', '--organization', 'Nimbus', '--email', 'rosa@nimbus.example'], env), { code: 0 })
  for (const where of ['ROLE', 'DATABASE']) {
    const set = (value: string) => admin.unsafe(`ALTER ${where} triggers SET session_replication_role = ${value}`)
    await set('replica')
    const refused = { code: 1, stdout: '', stderr: /^The database at .* has session_replication_role = replica.* ALTER ROLE .*\n$/ }
    for (const args of [['migrate'], ['organization', 'list'], ['serve']]) {
      t.match(await command(args, { PORT: '0', ...env }), refused, `${where}: ${args[0]}`)
    }
    t.match(await command(['backup', '-'], env), { code: 0 }, `${where}: backup`)
    // These two values run the triggers of the schema.
    for (const value of ['local', 'origin']) {
      await set(value)
      t.match(await command(['organization', 'list'], env), { code: 0, stdout: 'Nimbus' }, `${where}: ${value}`)
    }
    await admin.unsafe(`ALTER ${where} triggers RESET session_replication_role`)
  }
})
