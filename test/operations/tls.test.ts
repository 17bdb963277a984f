// runs: no database
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { chownSync, statSync, writeFileSync } from 'node:fs'
import { createServer, type AddressInfo } from 'node:net'
import { join } from 'node:path'
import postgres from 'postgres'
import { sql } from 'drizzle-orm'
import t from 'tap'
import { connect, tlsOf, UrlError } from '../../src/db/database.ts'
import { hasPostgres, startPostgres } from '../helpers/postgres.ts'

t.test('a remote connection without verified TLS is reported; TLS options that are not possible are refused', async (t) => {
  const weaknessOf = (rest: string, host = 'db.example.com') => tlsOf(`postgres://u:p@${host}/d${rest}`).weakness
  for (const [rest, weakness] of [
    ['', /not encrypted/], ['?sslmode=disable', /not encrypted/], [
      '?sslmode=prefer', /only if the server supports it/
    ], ['?sslmode=allow', /only if the server supports it/],
    ['?sslmode=require', /but the server certificate is not verified/], ['?ssl=true', /but the server certificate is not verified/], [
      '?ssl=require', /but the server certificate is not verified/
    ], ['?connect_timeout=3', /not encrypted/]
  ] as const) t.match(weaknessOf(rest), weakness, rest)
  for (const rest of ['?sslmode=verify-full', '?sslrootcert=system', '?ssl=verify-full', '?x=1&sslmode=verify-full']) {
    t.equal(weaknessOf(rest), undefined, rest)
  }
  for (const host of ['127.0.0.1', 'localhost:5432', '[::1]:5432', '127.1.2.3:1', '127.0.0.1:1,localhost:2', '']) {
    t.equal(weaknessOf('', host), undefined, host)
  }
  for (const host of ['10.0.0.7', 'localhost,db.example.com', '[::2]:5432', 'postgres:5432', '127.0.0.1.example.com']) {
    t.match(weaknessOf('', host), /not encrypted/, host)
  }
  t.equal(
    tlsOf('postgres://h/d?a=1&sslmode=verify-full&sslrootcert=system&b=2').url, 'postgres://h/d?a=1&b=2',
    'nothing of it goes to the server'
  )
  t.match(
    tlsOf('postgres://h/d?a=1?b&sslmode=require'), { ssl: 'require', weakness: /but the server certificate is not verified/ },
    'a second question mark hides nothing'
  )
  for (const rest of ['?sslmode=verify', '?sslmode=VERIFY-FULL', '?sslmode=verify-ca', '?sslmode=verify-ca&sslrootcert=system', '?sslmode=verify-full&sslrootcert=/nowhere', '?sslmode=verify-full&sslrootcert=/dev/null',
    '?sslmode=verify-full&sslmode=disable', '?x=1&x=1', '?x=1?y&sslmode=verify', '?ssl=require&sslmode=disable',
    '?sslnegotiation=direct', '?sslnegotiation=direct&sslmode=prefer', '?sslmode=require&sslrootcert=system',
    '?sslmode=require&sslrootcert=/nowhere']) {
    t.throws(() => weaknessOf(rest), UrlError, rest)
  }
  t.match(weaknessOf('?ssl=true&sslmode=require&sslnegotiation=direct'), /certificate is not verified/, 'one meaning, twice')
})

t.test('an address without a host is this machine, so that the driver does not take the host from PGHOST', async (t) => {
  for (const [address, whole] of [
    ['postgres:///d', 'postgres://localhost/d'],
    ['postgres://u:p@/d', 'postgres://u:p@localhost/d'],
    ['postgres://u@:5433/d', 'postgres://u@localhost:5433/d'],
    ['postgres://u@:/d', 'postgres://u@localhost/d'],
    ['postgres://127.0.0.1,:1/d', 'postgres://127.0.0.1,localhost:1/d'],
    ['postgres://u@h:1,127.0.0.1/d', 'postgres://u@h:1,127.0.0.1/d']
  ] as const) t.equal(tlsOf(address).url, whole, address)
})

t.test('a connection to an IPv6 address goes to this address, and messages name it', async (t) => {
  const { hosts } = tlsOf('postgres://u:p%40@[::1]:5433,db.example,[FE80::2]/d')
  t.strictSame(hosts, { host: ['::1', 'db.example', 'fe80::2'], port: [5433, 5432, 5432] })
  t.equal(tlsOf('postgres://u@127.0.0.1:1,h/d').hosts, undefined, 'the driver reads other addresses in the URL')
  const server = createServer((socket) => { socket.once('data', (data) => socket.end(data)) })
  const failure = await new Promise<Error | undefined>((resolve) => {
    server.once('error', resolve).listen(0, '::1', () => resolve(undefined))
  })
  if (failure !== undefined) return t.comment(`no IPv6 here: ${failure.message}`)
  t.teardown(() => server.close())
  const { port } = server.address() as AddressInfo
  const arrived = once(server, 'connection')
  const database = await connect({ url: `postgres://u@[::1]:${port}/d`, pool: 2 })
  t.teardown(() => database.close())
  t.equal(database.where, `[::1]:${port}/d`)
  await Promise.all([t.rejects(database.ping()), arrived])
})

t.test('each sslmode checks what its name says, against a PostgreSQL with a certificate of its own', {
  skip: hasPostgres() ? false : 'PostgreSQL is not installed'
}, async (t) => {
  const server = await startPostgres()
  t.teardown(() => server.close())
  const { uid, gid } = statSync(join(server.dir, 'data'))
  const at = (name: string) => join(server.dir, name)
  const openssl = (...args: string[]) => {
    const made = spawnSync('openssl', args, { cwd: server.dir })
    if (made.status !== 0) throw new Error(String(made.stderr))
  }
  const authority = (name: string) => openssl(
    'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2', '-subj',
    `/CN=${name}`, '-keyout', `${name}.key`, '-out', `${name}.crt`
  )
  authority('authority')
  authority('stranger')
  const use = async (names: string) => {
    openssl(
      'req', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-subj', '/CN=database', '-keyout',
      'server.key', '-out', 'server.csr'
    )
    writeFileSync(at('names'), `subjectAltName=${names}`)
    openssl(
      'x509', '-req', '-in', 'server.csr', '-CA', 'authority.crt', '-CAkey', 'authority.key', '-CAcreateserial',
      '-days', '2', '-extfile', 'names', '-out', 'server.crt'
    )
    for (const file of ['server.key', 'server.crt']) chownSync(at(file), uid, gid)
    const admin = postgres(server.url, { max: 1, onnotice: () => {} })
    for (const [name, value] of [
      ['ssl_cert_file', at('server.crt')], ['ssl_key_file', at('server.key')], ['ssl', 'on']
    ]) {
      await admin.unsafe(`ALTER SYSTEM SET ${name} = '${value}'`)
    }
    await admin.end()
    await server.stop('fast')
    await server.start()
  }
  /** Whether the connection is encrypted. Without a connection, the error. */
  const reached = async (host: string, rest: string): Promise<string> => {
    const database = await connect({ url: server.url.replace('127.0.0.1', host) + rest, pool: 2 })
    try {
      const [row] = await database.db.execute(
        sql`SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()`
      ) as unknown as { ssl: boolean }[]
      return row!.ssl ? 'encrypted' : 'plain'
    } catch {
      return 'refused'
    } finally {
      await database.close()
    }
  }
  const [own, other] = [`&sslrootcert=${at('authority.crt')}`, `&sslrootcert=${at('stranger.crt')}`]

  await use('DNS:localhost')
  for (const [host, rest, outcome] of [
    ['127.0.0.1', '', 'plain'],
    ['127.0.0.1', '?sslmode=disable', 'plain'],
    ['127.0.0.1', '?sslmode=prefer', 'encrypted'],
    ['127.0.0.1', '?sslmode=require', 'encrypted'],
    ['127.0.0.1', `?sslmode=verify-ca${own}`, 'encrypted'],
    ['127.0.0.1', `?sslmode=require${own}`, 'encrypted'],
    ['127.0.0.1', `?sslmode=require${other}`, 'refused'],
    ['127.0.0.1', `?sslmode=verify-ca${other}`, 'refused'],
    ['localhost', `?sslmode=verify-full${own}`, 'encrypted'],
    ['127.0.0.1', `?sslmode=verify-full${own}`, 'refused'],
    ['localhost', `?sslmode=verify-full${other}`, 'refused'],
    ['localhost', '?sslmode=verify-full', 'refused']
  ] as const) t.equal(await reached(host, rest), outcome, `${host}${rest.replace(/&.*\//, ' ')}`)
  await use('IP:127.0.0.1')
  t.equal(
    await reached('127.0.0.1', `?sslmode=verify-full${own}`), 'encrypted',
    'an IP address is looked for in the certificate'
  )
  t.equal(await reached('localhost', `?sslmode=verify-full${own}`), 'refused')
})
