// runs: no database; 8 s
import { spawnSync } from 'node:child_process'
import { chmodSync } from 'node:fs'
import { join } from 'node:path'
import postgres from 'postgres'
import t from 'tap'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { UrlError, tlsOf } from '../../src/db/database.ts'
import { cli, command, scratchDirectory, startServer } from '../helpers/process.ts'
import { hasPostgres, programs, startPostgres } from '../helpers/postgres.ts'

t.setTimeout(180_000)
if (!hasPostgres()) t.bailout('PostgreSQL is not installed')

const server = await startPostgres({ durable: false })
const admin = postgres(server.url, { max: 1, onnotice: () => {} })
t.teardown(async () => {
  await admin.end()
  await server.close()
})
const urlOf = (name: string, query = '') => {
  const url = new URL(server.url)
  url.pathname = `/${name}`
  return `${url.href}${query}`
}
const makeDatabase = (name: string, encoding = 'UTF8') =>
  admin.unsafe(`CREATE DATABASE ${name} ENCODING '${encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)

const ADDRESS = 'rosa@nimbus.example'
const NAME = 'Café Würfel'

t.test('a database that is not UTF8 is refused with its encoding, unchanged, and its backup can be restored', async (t) => {
  const MASTER_KEY = generateMasterKey().text
  const envOf = (name: string) => ({ DATABASE_URL: urlOf(name), MASTER_KEY })
  await makeDatabase('utf8')
  t.match(await command(['init', '--organization', NAME, '--email', ADDRESS], envOf('utf8')), { code: 0, stderr: '' })
  const whole = join(scratchDirectory(t), 'backup')
  t.match(await command(['backup', whole], envOf('utf8')), { code: 0 })

  for (const encoding of ['LATIN1', 'SQL_ASCII', 'EUC_JP']) {
    const name = encoding.toLowerCase()
    const line = `The database at ${new URL(server.url).host}/${name} has the encoding ${encoding}, but has to have UTF8: ` +
      "make one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0. To keep the data, run `backup` first, and `restore` into the new one\n"
    await makeDatabase(name, encoding)
    for (const args of [
      ['init', '--organization', NAME, '--email', ADDRESS], ['migrate'], ['restore', whole], ['organization', 'list']
    ]) t.same(await command(args, envOf(name)), { code: 1, stdout: '', stderr: line }, `${encoding}: ${args[0]}`)
    const started = await cli(['serve'], { PORT: '0', ...envOf(name) })
    t.equal(started.code, 1)
    t.match(started.stderr, line.trim(), `${encoding}: serve`)
    const there = postgres(urlOf(name), { max: 1, onnotice: () => {} })
    t.same(await there`SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace`, [], 'nothing was made')

    // Simulates an installation of 0.1.0, which accepted this encoding.
    await there.end()
    if (encoding === 'EUC_JP') continue
    const text = spawnSync(join(programs(), 'pg_dump'), ['--no-owner', urlOf('utf8')]).stdout
    const loaded = spawnSync(join(programs(), 'psql'), ['-v', 'ON_ERROR_STOP=1', '-q', urlOf(name)], { input: text })
    t.equal(loaded.status, 0, String(loaded.stderr))
    const file = join(scratchDirectory(t), 'backup')
    t.match(await command(['backup', file], envOf(name)), { code: 0, stderr: '' }, `${encoding}: backup`)
    await makeDatabase(`${name}_restored`)
    t.match(await command(['restore', file], envOf(`${name}_restored`)), { code: 0, stderr: '' }, `${encoding}: restore`)
    t.match(await command(['organization', 'list'], envOf(`${name}_restored`)), { code: 0, stdout: NAME })
    t.match(await command(['audit', 'verify'], envOf(`${name}_restored`)), { code: 0 })
    t.match(await command(['organization', 'list'], envOf(name)), { code: 1, stderr: line })
  }
})

t.test('an unknown driver or server parameter, or a Unix socket, gets an error that says what to change', async (t) => {
  await makeDatabase('parameters')
  const MASTER_KEY = generateMasterKey().text
  const ended = (DATABASE_URL: string) => command(['migrate'], { DATABASE_URL, MASTER_KEY })
  for (const [query, said] of [
    ['?channel_binding=require', /^DATABASE_URL: the parameter channel_binding is not supported; .*remove the parameter.*verify-full/],
    ['?sslmode=disable&gssencmode=prefer', /gssencmode is not supported; .*remove the parameter/],
    ['?sslcert=client.crt', /sslcert is not supported; only passwords are supported/],
    ['?hostaddr=127.0.0.1', /hostaddr is not supported; write it as postgres:\/\/USER:PASSWORD@HOST:PORT\/DATABASE/],
    ['?user=postgres', /user is not supported; write it as/],
    ['?keepalives_idle=10', /keepalives_idle is not supported; the system decides/],
    ['?replication=database', /replication is not supported; the service decides/],
    ['?Channel_Binding=require', /the parameter Channel_Binding is not supported; the driver has no channel binding/],
    ['?SSLMODE=verify-full', /^DATABASE_URL: write the parameter SSLMODE as sslmode/],
    ['?host=/var/run/postgresql', /Unix sockets are not supported: .*127\.0\.0\.1:5432/],
    ['?host=%2Fvar%2Frun%2Fpostgresql', /Unix sockets are not supported/],
    ['?target_session_attrs=writable', /^DATABASE_URL: target_session_attrs is not any, read-write, /],
    ['?pgbouncer=true', /unrecognized configuration parameter "pgbouncer"; remove the parameter from DATABASE_URL/]
  ] as const) {
    const { code, stdout, stderr } = await ended(urlOf('parameters', query))
    t.same([code, stdout, stderr.split('\n').length], [1, '', 2], query)
    t.match(stderr, said, query)
  }
  for (const url of [
    'postgres://%2Fvar%2Frun%2Fpostgresql/d', 'postgres://u:p@%2fvar%2frun/d', 'postgres:///d?host=/var/run/postgresql',
    'postgres://u@/d?sslmode=disable&host=/run', 'postgres:///d?host=@abstract', 'postgres://localhost,%2Fvar%2Frun/d'
  ]) t.match(await ended(url), { code: 1, stderr: /^DATABASE_URL: Unix sockets are not supported: [^\n]+\n$/ }, url)
  const secret = await ended('postgres://u:hidden-word@db.example/d?password=hidden-word')
  t.match(secret.stderr, /password is not supported/)
  t.notMatch(secret.stderr, 'hidden-word')

  for (const query of [
    '', '?sslmode=disable', '?application_name=strongroom-1', '?connect_timeout=5', '?options=-c%20jit%3Doff',
    '?target_session_attrs=read-write', '?target_session_attrs=any', '?client_encoding=UTF8&statement_timeout=2000'
  ]) t.match(await ended(urlOf('parameters', query)), { code: 0, stderr: '' }, query)
  t.throws(() => tlsOf('postgres://h/d?sslmode=require&channel_binding=prefer'), UrlError)
})

t.test('the name of the database may be percent-encoded, and a port may be empty', async (t) => {
  const MASTER_KEY = generateMasterKey().text
  const base = urlOf('').replace(/\/$/, '')
  for (const name of ['my db', 'a?b', '100%', 'ÄÖ', 'a/b', 'a+b', '%41', 'UPPER']) {
    await makeDatabase(`"${name}"`)
    const line = `${name}: `
    for (const url of [`${base}/${encodeURIComponent(name)}`, `${base}/${encodeURIComponent(name)}?sslmode=disable`]) {
      t.match(await command(['migrate'], { DATABASE_URL: url, MASTER_KEY }), { code: 0, stderr: '' }, line + url)
    }
  }
  t.match(await command(['migrate'], { DATABASE_URL: `${base}/no%20such`, MASTER_KEY }), {
    code: 1, stderr: /^[^\n]*database "no such" does not exist; create this database[^\n]*\n$/
  })
  t.match(await command(['migrate'], { DATABASE_URL: `${base}/100%`, MASTER_KEY }), { code: 1, stderr: /percent-encode/ })
  for (const [address, read] of [
    ['postgres://u@h:/d', 'postgres://u@h/d'], ['postgres://u:@h:/d', 'postgres://u:@h/d'], ['postgres://h:', 'postgres://h'],
    ['postgres://u:p@a:,b:1/d', 'postgres://u:p@a,b:1/d'], ['postgres://h:5433/d', 'postgres://h:5433/d']
  ] as const) t.equal(tlsOf(address).url, read)
  t.strictSame(tlsOf('postgres://[::1]:/d').hosts, { host: ['::1'], port: [5432] })
  t.strictSame(['postgres://h', 'postgres://h/', 'postgres://h/d', 'postgres://a,b/d%2Fe?sslmode=disable'].map((url) => tlsOf(url).database),
    [undefined, undefined, 'd', 'd/e'])
})

t.test('a start on UTF8 serves, with a name in any script', async (t) => {
  await makeDatabase('served')
  const env = { DATABASE_URL: urlOf('served'), MASTER_KEY: generateMasterKey().text }
  await (await startServer(t, env)).stop()
  // With DATABASE_URL, the service stores nothing in DATA_DIR, so every user may write there.
  const DATA_DIR = scratchDirectory(t)
  chmodSync(DATA_DIR, 0o777)
  t.match(await command(['organization', 'add', '--name', '日本 😀'], { ...env, DATA_DIR }), { code: 0 })
  t.match(await command(['organization', 'list'], env), { code: 0, stdout: /日本 😀/ })
})
