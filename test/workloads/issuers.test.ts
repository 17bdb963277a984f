// runs: no database; 15 s
import type { ServerResponse } from 'node:http'
import { exportJWK } from 'jose'
import t from 'tap'
import { escapeUnprintable } from '../../schemas/unprintable.ts'
import { loadConfig } from '../../src/config.ts'
import { WorkOverloaded } from '../../src/gate.ts'
import { createLog } from '../../src/http/observability/log.ts'
import { createOutgoing, OutgoingError, type Outgoing } from '../../src/outgoing/client.ts'
import type { AssertionRule } from '../../src/rules/workloads.ts'
import { verifyAssertion } from '../../src/workloads/assertions.ts'
import { createIssuers, ISSUER_LIMITS } from '../../src/workloads/issuers.ts'
import { AUDIENCE, FAULTS, makeKey, startIssuer, type TestIssuer } from '../helpers/issuer.ts'
import { until } from '../helpers/until.ts'

const MINUTE = 60_000
/** The limits for a fault: a short time if it lasts until the timeout. */
const limitsFor = (fault: string) => ['slow', 'dripping'].includes(fault) ? { timeout: 2_000 } : {}

/** A service that has a clock of its own for its key sets. */
function serviceFor (own: TestIssuer, more: Partial<typeof ISSUER_LIMITS> = {}) {
  const clock = { now: 0 }
  const lines: string[] = []
  const outgoing = createOutgoing(loadConfig(own.env).outgoing, { ...ISSUER_LIMITS, ...more })
  const issuers = createIssuers(outgoing, (line) => lines.push(line), () => clock.now)
  const rule: AssertionRule = {
    organization_id: 'o', issuer: own.issuer, jwks: null, audience: AUDIENCE, claims: {}, preset: null, single_use: false, max_assertion_age: 3600
  }
  const check = async (assertion: string, changes: Partial<AssertionRule> = {}) => {
    const result = await verifyAssertion(issuers, { ...rule, ...changes }, assertion, new Date())
    return result.accepted ? 'accepted' : result.check
  }
  return { clock, lines, check }
}

t.test('the keys are found by discovery, once for all assertions and organizations', async (t) => {
  for (const path of ['', '/', '/group/instance', '/group/']) {
    const issuer = await startIssuer(t, { path })
    const { check } = serviceFor(issuer)
    const checks = await Promise.all(Array.from({ length: 20 }, async (_, i) =>
      check(await issuer.sign(), { organization_id: `o${i % 3}` })))
    t.same([...new Set(checks)], ['accepted'])
    const base = path.replace(/\/$/, '')
    t.same(issuer.requests, [`${base}/.well-known/openid-configuration`, `${base}/keys`], path)
  }
})

t.test('a new key is found at once, and unknown keys cause one load in 30 seconds', async (t) => {
  const issuer = await startIssuer(t)
  const { check, clock } = serviceFor(issuer)
  t.equal(await check(await issuer.sign()), 'accepted')
  const former = issuer.key
  clock.now = MINUTE
  await issuer.rotate()
  t.equal(await check(await issuer.sign()), 'accepted')
  t.equal(issuer.requests.length, 4)
  t.equal(await check(await issuer.sign({}, {}, former)), 'key', 'the former key is gone')
  const stranger = await makeKey()
  for (let i = 0; i < 5; i++) t.equal(await check(await issuer.sign({}, { kid: `unknown-${i}` }, stranger)), 'key')
  t.equal(issuer.requests.length, 4)
  clock.now += 30_000
  await Promise.all(Array.from({ length: 5 }, async () => t.equal(await check(await issuer.sign({}, {}, stranger)), 'key')))
  t.equal(issuer.requests.length, 6)
})

t.test('keys are loaded again after ten minutes, so a key that the issuer removed ends', async (t) => {
  const issuer = await startIssuer(t)
  const { check, clock } = serviceFor(issuer)
  const former = issuer.key
  t.equal(await check(await issuer.sign()), 'accepted')
  await issuer.rotate()
  clock.now = 10 * MINUTE - 1
  t.equal(await check(await issuer.sign({}, {}, former)), 'accepted')
  clock.now = 10 * MINUTE
  t.equal(await check(await issuer.sign({}, {}, former)), 'key')
})

t.test('while the issuer is away its keys are used for an hour, and it is tried every 30 seconds', async (t) => {
  for (const fault of Object.keys(FAULTS) as (keyof typeof FAULTS)[]) {
    const issuer = await startIssuer(t)
    const { check, clock, lines } = serviceFor(issuer, limitsFor(fault))
    t.equal(await check(await issuer.sign()), 'accepted')
    const loaded = issuer.requests.length
    issuer.answers = FAULTS[fault]
    clock.now = 10 * MINUTE
    for (let i = 0; i < 3; i++) t.equal(await check(await issuer.sign()), 'accepted', fault)
    t.equal(issuer.requests.length, loaded + 1)
    t.equal(lines.length, 1)
    t.match(lines[0], `The keys of the issuer ${issuer.issuer} were not loaded: `)
    clock.now += 30_000
    t.equal(await check(await issuer.sign()), 'accepted')
    t.equal(issuer.requests.length, loaded + 2)
    clock.now = 60 * MINUTE - 1
    t.equal(await check(await issuer.sign()), 'accepted')
    clock.now = 60 * MINUTE
    const isUnreachable = ['slow', 'dripping', 'away'].includes(fault)
    t.equal(await check(await issuer.sign()), isUnreachable ? 'issuer_unreachable' : 'issuer_response', fault)
    issuer.answers = undefined
    t.not(await check(await issuer.sign()), 'accepted', 'the failure is remembered')
    clock.now += 30_000
    t.equal(await check(await issuer.sign()), 'accepted', 'the issuer is back')
  }
})

// What a terminal obeys, or what a reader would take for another line of the log.
const HOSTILE = [
  '\u001b[2J\u001b[1;1H', '\u009b31m', 'x\n[12:00:00] INFO: all is well', '\u202eevil', 'a\u2028b\u2029c', '\r\u0085'
]

t.test('the log has nothing of the responses of an issuer', async (t) => {
  for (const text of [...HOSTILE, 'Zebra']) {
    const lines: string[] = []
    for (const wrong of ['/.well-known/openid-configuration', '/keys']) {
      const discovered = JSON.stringify({ issuer: 'https://i.example', jwks_uri: 'https://i.example/keys' })
      const get = async (_organization: string, url: string) => url.endsWith(wrong) ? text : discovered
      const issuers = createIssuers({ get }, (line) => lines.push(line))
      await t.rejects(async () => issuers.keysOf('o', 'https://i.example')({ alg: 'RS256' }, {} as never))
    }
    t.strictSame(
      lines, Array(2).fill('The keys of the issuer https://i.example were not loaded: the response is not JSON')
    )
  }
})

t.test('no text in a line of the log controls a terminal or looks like another line', async (t) => {
  const lines: string[] = []
  const log = createLog('info', { write: (line) => lines.push(line) })
  for (const text of HOSTILE) {
    lines.length = 0
    log.warn(text)
    log.child({ reqId: 'r' }).info({ organization: 'o' }, text)
    log.error({ err: Object.assign(new Error(text), { path: text }) }, 'request failed')
    log.info({ arguments: ['add', text], reason: text, status: 1 }, 'operator command')
    const [line, ofChild, error, command] = lines.map((one) => JSON.parse(one))
    const shown = escapeUnprintable(text)
    t.strictSame([line.msg, ofChild.msg, error.err.message, error.err.path], Array(4).fill(shown))
    t.match(command, { arguments: ['add', shown], reason: shown, status: 1, msg: 'operator command' })
    t.equal(error.err.stack.split('\n')[0], `Error: ${escapeUnprintable(text)}`)
    t.match(error.err.stack, /\n {4}at /, 'a stack keeps its lines')
    t.equal(error.err.type, 'Error')
  }
  lines.length = 0
  log.info('Zoë: “café” – %s', 'text')
  t.equal(JSON.parse(lines[0]!).msg, 'Zoë: “café” – text', 'other texts stay')
})

t.test('an organization with many or large key sets does not push out those of others', async (t) => {
  const { jwk } = await makeKey('ES256', 'k1')
  const keys = (count: number) => Array.from({ length: count }, () => ({ ...jwk, x: jwk.x!, use: 'u'.repeat(2000) }))
  const requests: string[] = []
  const get = async (_organization: string, url: string) => {
    const { origin, pathname } = new URL(url)
    if (origin.startsWith('https://away')) throw new OutgoingError('address', 'no allowed address')
    requests.push(url)
    const set = { keys: [jwk, ...origin.startsWith('https://large') ? keys(99) : []] }
    return JSON.stringify(pathname === '/keys' ? set : { issuer: origin, jwks_uri: `${origin}/keys` })
  }
  const issuers = createIssuers({ get }, () => {}, () => 0)
  const find = async (organization: string, issuer: string) => {
    const before = requests.length
    const keysOf = issuers.keysOf(organization, `https://${issuer}`)
    await Promise.resolve(keysOf({ alg: 'ES256', kid: 'k1' }, {} as never)).catch(() => {})
    return requests.length - before
  }
  t.equal(await find('calm', 'calm.example'), 2)
  t.equal(await find('calm', 'away-calm.example'), 0)
  for (const [kind, count] of [['large', 60], ['away', 1_001]] as const) {
    for (let i = 0; i < count; i++) await find('loud', `${kind}-${i}.example`)
    t.equal(await find('calm', 'calm.example'), 0, `${count} ${kind} issuers of another organization`)
    t.equal(await find('other', 'calm.example'), 0, 'all organizations share a key set')
    t.equal(await find('loud', `${kind}-${count - 1}.example`), 0, 'its newest ones stay')
  }
  for (let i = 0; i < 100; i++) await find('usual', `usual-${i}.example`)
  let loaded = 0
  for (let i = 0; i < 100; i++) loaded += await find('usual', `usual-${i}.example`)
  t.equal(loaded, 0, 'a hundred rules can have issuers of their own')
})

t.test('WI-05 a failed load is remembered for 30 seconds, with and without earlier keys', async (t) => {
  const issuer = await startIssuer(t)
  const { check, clock } = serviceFor(issuer)
  issuer.answers = FAULTS.failing
  for (let i = 0; i < 5; i++) t.equal(await check(await issuer.sign()), 'issuer_response')
  t.equal(issuer.requests.length, 1)
  issuer.answers = undefined
  clock.now = 30_000
  t.equal(await check(await issuer.sign()), 'accepted')
  clock.now = MINUTE
  issuer.answers = FAULTS.failing
  const stranger = await makeKey()
  for (let i = 0; i < 5; i++) t.equal(await check(await issuer.sign({}, {}, stranger)), 'key')
  t.equal(issuer.requests.length, 4, 'an unknown key, too')
})

t.test('each fault of the key set alone is a refusal, and none of them gives keys', async (t) => {
  for (const fault of ['slow', 'dripping', 'large', 'redirecting', 'failing', 'not JSON', 'other JSON', 'away'] as const) {
    const issuer = await startIssuer(t)
    const { check } = serviceFor(issuer, limitsFor(fault))
    issuer.answers = (path, response, document) =>
      path === '/keys' ? FAULTS[fault](path, response, document) : response.end(document)
    t.match(await check(await issuer.sign()), /^issuer_(?:unreachable|response)$/, fault)
    t.same(issuer.requests, ['/.well-known/openid-configuration', '/keys'])
  }
})

t.test('a discovery document is refused that names another issuer, no keys, or keys elsewhere', async (t) => {
  const issuer = await startIssuer(t)
  const other = await startIssuer(t)
  const own = issuer.issuer
  for (const [document, expected] of [
    [{ issuer: other.issuer, jwks_uri: `${own}/keys` }, 'issuer_response'],
    [{ issuer: `${own}/`, jwks_uri: `${own}/keys` }, 'issuer_response'],
    [{ issuer: own.toUpperCase(), jwks_uri: `${own}/keys` }, 'issuer_response'],
    [{ issuer: [own], jwks_uri: `${own}/keys` }, 'issuer_response'],
    [{ jwks_uri: `${own}/keys` }, 'issuer_response'],
    [{ issuer: own }, 'issuer_address'],
    [{ issuer: own, jwks_uri: null }, 'issuer_address'],
    [{ issuer: own, jwks_uri: '/keys' }, 'issuer_address'],
    [{ issuer: own, jwks_uri: `http://${issuer.host}/keys` }, 'issuer_address'],
    [{ issuer: own, jwks_uri: `${other.issuer}/keys` }, 'issuer_address'],
    [{ issuer: own, jwks_uri: 'https://169.254.169.254/latest/meta-data' }, 'issuer_address'],
    [{ issuer: own, jwks_uri: `${own}/keys` }, 'accepted']
  ] as const) {
    const { check } = serviceFor(issuer)
    issuer.answers = (path, response, keys) =>
      response.end(path === '/keys' ? keys : JSON.stringify(document))
    t.equal(await check(await issuer.sign()), expected, JSON.stringify(document))
  }
  t.same(other.requests, [])
})

t.test('keys that cannot verify are skipped: of an unknown kind, for encryption, malformed, without a kid', async (t) => {
  const issuer = await startIssuer(t)
  const { jwk } = issuer.key
  const others = [
    { kty: 'LMS', kid: 'a', x: 'AA' }, { kty: 'oct', k: 'AAAA', kid: jwk.kid }, { kid: jwk.kid }, {}, { kty: 7 },
    { kty: 'EC', crv: 'P-999', x: 'AA', y: 'AA', kid: jwk.kid }, { ...jwk, use: 'enc' }, { ...jwk, key_ops: ['sign'] },
    { ...jwk, key_ops: 'verify' }, { ...jwk, alg: 'ES384' }
  ]
  issuer.keys = [...others, jwk, ...others]
  t.equal(await serviceFor(issuer).check(await issuer.sign()), 'accepted')
  for (const other of others) {
    issuer.keys = [other]
    t.equal(await serviceFor(issuer).check(await issuer.sign()), 'key', JSON.stringify(other))
  }
  const { kid: _, ...nameless } = jwk
  issuer.keys = [nameless]
  t.equal(await serviceFor(issuer).check(await issuer.sign()), 'key', 'the assertion names a key')
  t.equal(await serviceFor(issuer).check(await issuer.sign({}, { kid: undefined })), 'accepted')
  issuer.keys = [null, jwk]
  t.equal(await serviceFor(issuer).check(await issuer.sign()), 'issuer_response', 'no JWK Set')
  issuer.keys = []
  t.equal(await serviceFor(issuer).check(await issuer.sign()), 'key')
})

t.test('WI-12 a key set of thousands of keys, or of a key with thousands of members, takes no time', async (t) => {
  const issuer = await startIssuer(t)
  const { jwk } = issuer.key
  const many = (length: number) => Array.from({ length }, (_, i) => i.toString(36).padStart(4, '0'))
  const timed = async () => {
    const { check } = serviceFor(issuer)
    const assertion = await issuer.sign()
    await check(assertion)
    const began = performance.now()
    const result = await check(assertion)
    return { result, ms: performance.now() - began }
  }
  const sets: [string, unknown[], string][] = [
    ['key_ops', [{ ...jwk, key_ops: [...many(30_000), 'verify'] }], 'key'],
    ['key_ops of another key', [{ ...jwk, key_ops: [...many(30_000), 'verify'] }, jwk], 'accepted'],
    ['members', [{ ...jwk, ...Object.fromEntries(many(15_000).map((name) => [name, 1])) }, jwk], 'accepted'],
    ['a long member', [{ ...jwk, x: 'A'.repeat(200_000) }, jwk], 'accepted'],
    ['nested', [{ ...jwk, crv: JSON.parse(`${'['.repeat(4_000)}${']'.repeat(4_000)}`) as unknown }, jwk], 'accepted'],
    ['keys', Array.from({ length: 60_000 }, () => ({})), 'issuer_response'],
    ['101 keys', [jwk, ...Array.from({ length: 100 }, () => ({}))], 'issuer_response'],
    ['100 keys', [jwk, ...Array.from({ length: 99 }, () => ({}))], 'accepted'],
    ['a certificate, and other members', [{ ...jwk, x5c: ['A'.repeat(3_000)], x5t: 'A', ext: true, more: {} }], 'accepted']
  ]
  for (const [what, keys, expected] of sets) {
    issuer.keys = keys
    const { result, ms } = await timed()
    t.equal(result, expected, what)
    t.ok(ms < 500, `${what}: ${ms.toFixed()} ms`)
  }
})

t.test('a private key that an issuer publishes is not used', async (t) => {
  const issuer = await startIssuer(t)
  issuer.keys = [await exportJWK(issuer.key.privateKey)]
  t.equal(await serviceFor(issuer).check(await issuer.sign()), 'key')
})

t.test('each key is tried if several have the kid of an assertion, or if it has none', async (t) => {
  const issuer = await startIssuer(t)
  const kid = issuer.key.kid
  const [second, third] = [await makeKey('ES256', kid), await makeKey('ES256', kid)]
  const malformed = { ...second.jwk, x: 'AA' }
  issuer.keys = [second.jwk, malformed, issuer.key.jwk]
  const { check } = serviceFor(issuer)
  for (const key of [issuer.key, second]) {
    t.equal(await check(await issuer.sign({}, {}, key)), 'accepted')
    t.equal(await check(await issuer.sign({}, { kid: undefined }, key)), 'accepted')
    t.equal(await check(await issuer.sign({ aud: 'other' }, {}, key)), 'audience')
  }
  t.equal(await check(await issuer.sign({}, {}, third)), 'signature')
  issuer.keys = [...Array.from({ length: 10 }, () => second.jwk), issuer.key.jwk]
  t.equal(await serviceFor(issuer).check(await issuer.sign()), 'signature', 'at most ten')
})

t.test('WI-06 the key of another issuer does not verify, although its kid is the same', async (t) => {
  const issuer = await startIssuer(t)
  const other = await startIssuer(t)
  const stranger = await makeKey('ES256', issuer.key.kid)
  other.keys = [stranger.jwk]
  const { check } = serviceFor(issuer)
  t.equal(await check(await issuer.sign({}, {}, stranger)), 'signature')
  t.equal(await check(await other.sign({}, {}, stranger)), 'issuer', 'without a load of its keys')
  t.same(other.requests, [])
})

t.test('an organization with too many loads does not make another one fail, and is not remembered', async (t) => {
  const [slow, issuer] = [await startIssuer(t), await startIssuer(t)]
  const env = { ...issuer.env, OUTGOING_ALLOW: `${slow.host},${issuer.host}` }
  const { check } = serviceFor({ ...issuer, env }, { concurrency: [{}, { running: 1, waiting: 0 }, {}] })
  const held: ServerResponse[] = []
  slow.answers = (_path, response) => { held.push(response) }
  const away = check(await slow.sign(), { issuer: slow.issuer })
  await until(() => held.length === 1)
  const assertion = await issuer.sign()
  t.same(
    await Promise.all([check(assertion), check(assertion, { organization_id: 'other' })]), ['issuer_unreachable', 'accepted']
  )
  t.equal(await check(assertion), 'accepted')
  held[0]!.destroy()
  t.equal(await away, 'issuer_unreachable')
})

t.test('an organization waits at most once for the load of another one', async (t) => {
  const { jwk } = await makeKey()
  const issuer = 'https://issuer.example'
  const waiting: (() => void)[] = []
  // The requests of other organizations wait until they are too many.
  const outgoing: Outgoing = {
    get: async (organization, url) => organization === 'own'
      ? JSON.stringify(url.endsWith('/keys') ? { keys: [jwk] } : { issuer, jwks_uri: `${issuer}/keys` })
      : new Promise((_resolve, reject) => { waiting.push(() => reject(new WorkOverloaded())) })
  }
  const issuers = createIssuers(outgoing, () => {}, () => 0)
  const keyOf = async (organization: string) =>
    issuers.keysOf(organization, issuer)({ alg: jwk.alg!, kid: jwk.kid! }, { payload: '', signature: '' })
  const others = ['first', 'second', 'third'].map((organization) => keyOf(organization).catch(({ check }) => check))
  const own = [keyOf('own'), keyOf('own')]
  await until(() => waiting.length === 1)
  waiting[0]!()
  t.match(await Promise.all(own), [{ type: 'public' }, { type: 'public' }])
  t.equal(await others[0], 'issuer_unreachable')
  waiting.slice(1).forEach((end) => end())
  t.match(await Promise.all(others.slice(1)), [{ type: 'public' }, { type: 'public' }], 'they have the keys, too')
})
