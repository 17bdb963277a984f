// runs: no database
import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import t from 'tap'
import { loadConfig } from '../../src/config.ts'
import { WorkOverloaded } from '../../src/gate.ts'
import {
  createOutgoing, isPublic, OutgoingError, type OutgoingLimits, type Resolve
} from '../../src/outgoing/client.ts'
import { FAULTS, startIssuer } from '../helpers/issuer.ts'
import { until } from '../helpers/until.ts'

const LIMITS: OutgoingLimits = { bytes: 1024, timeout: 5_000, concurrency: [{}, {}, {}] }

const clientOf = (env: Record<string, string>, limits: Partial<OutgoingLimits> = {}, resolve?: Resolve) =>
  createOutgoing(loadConfig(env).outgoing, { ...LIMITS, ...limits }, resolve)

/** The failure of a request; the response if it succeeds. */
const failureOf = async (work: Promise<string>) => {
  try {
    return { text: await work }
  } catch (error) {
    if (error instanceof OutgoingError) return error.failure
    throw error
  }
}

t.test('only public addresses are allowed: no private, local, mapped, multicast or metadata address', async (t) => {
  for (const address of ['1.1.1.1', '8.8.8.8', '140.82.121.4', '172.32.0.1', '100.128.0.1', '2606:4700::1111', '2a00:1450:4001::64']) {
    t.ok(isPublic(address), address)
  }
  for (const address of [
    '0.0.0.0', '0.1.2.3', '10.0.0.1', '100.64.0.1', '100.100.100.200', '127.0.0.1', '127.8.9.1', '169.254.169.254',
    '168.63.129.16', '172.16.0.1', '172.31.255.255', '192.0.0.192', '192.168.1.1', '198.18.0.1', '224.0.0.1',
    '239.255.255.255', '240.0.0.1', '255.255.255.255', '::', '::1', 'fe80::1', 'fe80::1%eth0', 'fc00::1',
    'fd00:ec2::254', 'fec0::1', 'ff02::1', '::ffff:10.0.0.1', '::ffff:8.8.8.8', '::ffff:0:8.8.8.8', '::8.8.8.8',
    '64:ff9b::a9fe:a9fe', '64:ff9b:1::1', '2002:a00:1::', '2001::1', '2001:db8::1', '100::1', '5f00::1', '4000::1',
    'localhost', '', '1.1.1', '0x7f.1'
  ]) t.notOk(isPublic(address), address)
})

t.test('WI-01 an address that is not allowed is never connected to, whatever its spelling or name', async (t) => {
  let connections = 0
  const server = createServer((socket) => {
    connections++
    socket.destroy()
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => server.close())
  const { port } = server.address() as AddressInfo
  const addresses = ['127.0.0.1', '::1', '::ffff:127.0.0.1', '10.0.0.1', '169.254.169.254', 'fd00:ec2::254', '0.0.0.0', '::']
  const client = clientOf({}, {}, async () => addresses)
  for (const host of [
    '127.0.0.1', '127.1', '2130706433', '0x7f000001', '0177.0.0.1', '127.0.0.1.', '[::1]', '[::ffff:127.0.0.1]', '[::ffff:7f00:1]',
    '0.0.0.0', '[::]', '169.254.169.254', '%31%32%37.0.0.1', '①②⑦.0.0.1', 'issuer.test', 'localhost', 'a.localhost.'
  ]) t.equal(await failureOf(client.get('o', `https://${host}:${port}/`)), 'address', host)
  t.equal(await failureOf(clientOf({}).get('o', `https://localhost:${port}/`)), 'address', 'with the real resolver')
  t.equal(connections, 0)
})

t.test('only https URLs without a user are requested', async (t) => {
  const client = clientOf({ OUTGOING_ALLOW: '127.0.0.1' })
  for (const url of [
    'http://127.0.0.1/', 'HTTP://127.0.0.1/', 'file:///etc/passwd', 'data:,{}', 'ftp://127.0.0.1/', 'https://user@127.0.0.1/',
    'https://:password@127.0.0.1/', '//127.0.0.1/', '/keys', 'undefined', 'https://', ''
  ]) t.equal(await failureOf(client.get('o', url)), 'address', url)
})

t.test('the operator lists a host, a network, or one port of them', async (t) => {
  const { host, env, issuer } = await startIssuer(t)
  const port = host.split(':')[1]!
  const { OUTGOING_CA } = env
  const url = `${issuer}/keys`
  const local: Resolve = async () => ['127.0.0.1']
  for (const [allow, resolve] of [
    ['localhost'], [`LOCALHOST:${port}`], [`git.example.com, localhost:${port}`], ['127.0.0.0/8', local],
    [`127.0.0.1:${port}`, local], [`127.0.0.1/32:${port}`, local], ['localhost', async () => ['10.255.255.1', '127.0.0.1']]
  ] as [string, Resolve?][]) {
    t.match(await failureOf(clientOf({ OUTGOING_ALLOW: allow, OUTGOING_CA }, {}, resolve).get('o', url)), { text: /"keys"/ }, allow)
  }
  for (const allow of [
    'localhost:443', '127.0.0.1:443', 'localhost.example.com', 'example.com', '10.0.0.0/8', '127.0.0.2', '::/1', '::1',
    '[::ffff:127.0.0.0/104]'
  ]) {
    t.equal(await failureOf(clientOf({ OUTGOING_ALLOW: allow, OUTGOING_CA }, {}, local).get('o', url)), 'address', allow)
  }
})

t.test('WI-02 a name is resolved once for a request, and the connection goes to an address that was checked', async (t) => {
  const { host, env: { OUTGOING_CA }, requests } = await startIssuer(t)
  const asked: string[] = []
  // The first address is allowed, later ones are not.
  const client = clientOf({ OUTGOING_ALLOW: '127.0.0.1', OUTGOING_CA }, {}, async (name) => {
    asked.push(name)
    return asked.length === 1 ? ['10.0.0.1', '127.0.0.1'] : ['127.0.0.2']
  })
  // The system does not know this name: a second look-up would fail. The certificate is checked for the name.
  const url = `https://issuer.test:${host.split(':')[1]}/keys`
  t.match(await failureOf(client.get('o', url)), { text: /"keys"/ })
  t.same(asked, ['issuer.test'])
  t.equal(await failureOf(client.get('o', url)), 'address', 'no connection is left over from the first request')
  t.equal(requests.length, 1)
})

t.test('WI-03 a certificate of another authority or name is refused', async (t) => {
  const { host, issuer, env } = await startIssuer(t)
  const other = await startIssuer(t, { isApart: true })
  const get = (env: Record<string, string>, url: string) => failureOf(clientOf(env, {}, async () => ['127.0.0.1']).get('o', url))
  t.match(await get(env, `${issuer}/keys`), { text: /"keys"/ })
  t.equal(await get({ OUTGOING_ALLOW: env.OUTGOING_ALLOW }, `${issuer}/keys`), 'unreachable', 'a public authority')
  t.equal(await get({ ...env, OUTGOING_CA: other.env.OUTGOING_CA }, `${issuer}/keys`), 'unreachable')
  t.equal(await get({ ...env, OUTGOING_ALLOW: '127.0.0.0/8' }, `https://other.test:${host.split(':')[1]}/keys`), 'unreachable')
})

t.test('WI-04 a redirect is not followed, and every status but 200 fails', async (t) => {
  const issuer = await startIssuer(t)
  const client = clientOf(issuer.env)
  issuer.answers = FAULTS.redirecting
  t.equal(await failureOf(client.get('o', `${issuer.issuer}/keys`)), 'response')
  t.same(issuer.requests, ['/keys'])
  for (const status of [201, 204, 206, 301, 304, 401, 404, 500, 503]) {
    issuer.answers = (_path, response) => { response.writeHead(status, { location: '/' }).end() }
    t.equal(await failureOf(client.get('o', `${issuer.issuer}/keys`)), 'response', String(status))
  }
})

t.test('a response has a maximum size, with and without its length', async (t) => {
  const issuer = await startIssuer(t)
  const client = clientOf(issuer.env)
  const sizes: [number, 'text' | 'response'][] = [[1024, 'text'], [1025, 'response'], [500_000, 'response']]
  for (const [size, expected] of sizes) {
    issuer.answers = (_path, response) => { response.setHeader('content-length', size).end('x'.repeat(size)) }
    const told = await failureOf(client.get('o', issuer.issuer))
    t.equal(typeof told === 'string' ? told : 'text', expected, `${size} bytes with their length`)
    issuer.answers = (_path, response) => {
      response.write('x'.repeat(size - 1))
      response.end('x')
    }
    const chunked = await failureOf(client.get('o', issuer.issuer))
    t.equal(typeof chunked === 'string' ? chunked : 'text', expected, `${size} bytes in chunks`)
  }
  issuer.answers = (_path, response) => { response.writeHead(200, { 'x-large': 'x'.repeat(64 * 1024) }).end() }
  t.equal(await failureOf(client.get('o', issuer.issuer)), 'response', 'headers')
})

t.test('a request has a maximum time: with no answer, with a slow one, with no TLS, and while it resolves', async (t) => {
  const issuer = await startIssuer(t)
  const client = clientOf(issuer.env, { timeout: 200 })
  for (const fault of ['slow', 'dripping', 'away'] as const) {
    issuer.answers = FAULTS[fault]
    t.equal(await failureOf(client.get('o', issuer.issuer)), 'unreachable', fault)
  }
  const silent = createServer(() => {}).listen(0, '127.0.0.1')
  await once(silent, 'listening')
  t.teardown(() => silent.close())
  const { port } = silent.address() as AddressInfo
  t.equal(await failureOf(clientOf({ OUTGOING_ALLOW: '127.0.0.1' }, { timeout: 200 }).get('o', `https://127.0.0.1:${port}/`)), 'unreachable')
  const resolving = clientOf(issuer.env, { timeout: 200 }, async (_name, _isListed, signal) => {
    await once(signal, 'abort')
    return ['127.0.0.1']
  })
  t.equal(await failureOf(resolving.get('o', issuer.issuer)), 'unreachable')
  const endless = clientOf(issuer.env, { timeout: 200 }, () => new Promise(() => {}))
  t.equal(await failureOf(endless.get('o', issuer.issuer)), 'unreachable', 'the look-up does not end')
  await issuer.stop()
  t.equal(await failureOf(client.get('o', issuer.issuer)), 'unreachable', 'nothing listens')
})

t.test('an organization has a number of requests at a time, and others do not wait for it', async (t) => {
  const issuer = await startIssuer(t)
  const waiting: (() => void)[] = []
  issuer.answers = (_path, response) => { waiting.push(() => response.end('done')) }
  const client = clientOf(issuer.env, { concurrency: [{}, { running: 2, waiting: 1 }, {}] })
  const first = [client.get('one', issuer.issuer), client.get('one', issuer.issuer)]
  await until(() => waiting.length === 2)
  const queued = client.get('one', issuer.issuer)
  await t.rejects(client.get('one', issuer.issuer), WorkOverloaded)
  const other = client.get('other', issuer.issuer)
  await until(() => waiting.length === 3)
  await pause(20)
  t.equal(waiting.length, 3, 'the queued one waits')
  waiting.splice(0).forEach((answer) => answer())
  t.same(await Promise.all([...first, other]), ['done', 'done', 'done'])
  await until(() => waiting.length === 1)
  waiting[0]!()
  t.equal(await queued, 'done')
})

t.test('a host gets a number of requests of an organization at a time, and other hosts do not wait for it', async (t) => {
  const [slow, other] = [await startIssuer(t), await startIssuer(t)]
  const waiting: (() => void)[] = []
  slow.answers = (_path, response) => { waiting.push(() => response.end('done')) }
  other.answers = (_path, response) => { response.end('done') }
  const env = { ...slow.env, OUTGOING_ALLOW: `${slow.host},${other.host}` }
  const client = clientOf(env, { concurrency: [{}, {}, { running: 1, waiting: 0 }] })
  const first = client.get('one', slow.issuer)
  await until(() => waiting.length === 1)
  await t.rejects(client.get('one', slow.issuer), WorkOverloaded)
  t.equal(await client.get('one', other.issuer), 'done', 'another host')
  const second = client.get('two', slow.issuer)
  await until(() => waiting.length === 2)
  waiting.forEach((answer) => answer())
  t.same(await Promise.all([first, second]), ['done', 'done'], 'another organization')
})
