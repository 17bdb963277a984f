// runs: no database
import { createHash, createHmac, createPrivateKey, generateKeyPairSync, sign } from 'node:crypto'
import { exportJWK, exportPKCS8, exportSPKI, importJWK, type CryptoKey } from 'jose'
import t from 'tap'
import { PRESETS, type Claims } from '../../schemas/workloads.ts'
import { PRESET_RULES } from '../../src/rules/workload-presets.ts'
import { claimsFor, type AcceptedAssertion, type AssertionRule } from '../../src/rules/workloads.ts'
import { verifyAssertion, verifyInVain } from '../../src/workloads/assertions.ts'
import type { Issuers } from '../../src/workloads/issuers.ts'
import { AUDIENCE, compact, makeKey, PLATFORM_CLAIMS, signFor, type SigningKey } from '../helpers/issuer.ts'

const ISSUER = 'https://issuer.example.com'
const NONE: Issuers = { keysOf: () => { throw new Error('the rule has its keys') } }
const key = await makeKey()

const ruleOf = (changes: Partial<AssertionRule> = {}, { jwk }: Pick<SigningKey, 'jwk'> = key): AssertionRule => ({
  organization_id: 'o',
  issuer: ISSUER,
  jwks: { keys: [jwk as never] },
  audience: AUDIENCE,
  claims: {},
  preset: null,
  single_use: false,
  max_assertion_age: 3600,
  ...changes
})

const verify = (assertion: string, rule = ruleOf(), now = new Date()) => verifyAssertion(NONE, rule, assertion, now)
const check = async (assertion: string, rule?: AssertionRule, now?: Date) => {
  const result = await verify(assertion, rule, now)
  return result.accepted ? 'accepted' : result.check
}
const accepted = async (...args: Parameters<typeof verify>) => {
  const result = await verify(...args)
  if (!result.accepted) throw new Error(result.check)
  return result
}
const base64 = (value: unknown) => Buffer.from(typeof value === 'string' ? value : JSON.stringify(value)).toString('base64url')
const own = (claims?: Record<string, unknown>, header?: Record<string, unknown>) => signFor(ISSUER, key, claims, header)

t.test('RS, PS and ES 256 to 512, EdDSA and Ed25519 are accepted', async (t) => {
  const algorithms = [
    'RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES256', 'ES384', 'ES512', 'EdDSA', 'Ed25519'
  ]
  for (const alg of algorithms) {
    const key = await makeKey(alg)
    t.equal(await check(await signFor(ISSUER, key), ruleOf({}, key)), 'accepted', alg)
    const { alg: _, use: __, ...bare } = key.jwk
    t.equal(await check(await signFor(ISSUER, key), ruleOf({}, { jwk: bare })), 'accepted', `${alg}, a key without alg`)
  }
})

t.test('a verification in vain takes any text, and tells nothing', async (t) => {
  for (const alg of ['RS256', 'PS512', 'ES256', 'ES384', 'ES512', 'EdDSA', 'Ed25519']) {
    t.equal(await verifyInVain(await signFor(ISSUER, await makeKey(alg))), undefined, alg)
  }
  const [header, payload] = (await own()).split('.')
  for (const text of ['', 'x', 'a.b.c', `${header}.${payload}.`, `${header}.e30.AA`, await own({}, { kid: 7 })]) {
    t.equal(await verifyInVain(text), undefined, text)
  }
})

t.test('WI-07 no other algorithm is accepted, and none with a key of another one', async (t) => {
  const rsa = await makeKey('RS256')
  const { alg: _, ...jwk } = rsa.jwk
  const rule = ruleOf({}, { jwk })
  const payload = base64({ iss: ISSUER, sub: 'a', aud: AUDIENCE, iat: Date.now() / 1000, exp: Date.now() / 1000 + 60 })
  const withHeader = (header: Record<string, unknown>, signature: (input: string) => string) => {
    const input = `${base64({ kid: rsa.kid, ...header })}.${payload}`
    return `${input}.${signature(input)}`
  }
  const publicKey = await importJWK(rsa.jwk, 'RS256') as CryptoKey
  const secrets = [await exportSPKI(publicKey), JSON.stringify(rsa.jwk), String(rsa.jwk.n), '']
  for (const secret of secrets) {
    for (const [alg, hash] of [['HS256', 'sha256'], ['HS384', 'sha384'], ['HS512', 'sha512']] as const) {
      const forged = withHeader({ alg }, (input) => createHmac(hash, secret).update(input).digest('base64url'))
      t.equal(await check(forged, rule), 'algorithm', alg)
    }
  }
  for (const alg of ['none', 'None', 'NONE', 'nOnE', '', 'RS1', 'ES256K', 'rs256', 'dir', 'ML-DSA-44', '__proto__', 'constructor']) {
    for (const signature of ['', 'AAAA']) t.equal(await check(withHeader({ alg }, () => signature), rule), 'algorithm', alg)
  }
  for (const alg of [undefined, null, 7, ['RS256'], { RS256: true }]) {
    t.equal(await check(withHeader({ alg }, () => 'AAAA'), rule), 'algorithm', JSON.stringify(alg))
  }
  // A key is of one kind and, if it says so, of one algorithm.
  const ofKey = createPrivateKey(await exportPKCS8(rsa.privateKey))
  const rs512 = withHeader({ alg: 'RS512' }, (input) => sign('sha512', Buffer.from(input), ofKey).toString('base64url'))
  t.equal(await check(rs512, rule), 'accepted')
  t.equal(await check(rs512, ruleOf({}, rsa)), 'key', 'the key says RS256')
  t.equal(await check(withHeader({ alg: 'ES256' }, () => 'A'.repeat(86)), rule), 'key')
  t.equal(await check(withHeader({ alg: 'PS256' }, (input) => sign('sha256', Buffer.from(input), ofKey).toString('base64url')), rule), 'signature')
})

t.test('keys of an assertion itself do not count', async (t) => {
  const stranger = await makeKey('ES256', key.kid)
  for (const header of [
    { jwk: stranger.jwk }, { jku: `${ISSUER}/keys` }, { x5u: `${ISSUER}/keys` }, { x5c: ['AAAA'] }, { kid: '../../dev/null' },
    { kid: undefined }
  ]) t.match(await check(await signFor(ISSUER, stranger, {}, header)), /^(?:signature|key)$/, JSON.stringify(header))
})

t.test('short, private and symmetric keys do not verify', async (t) => {
  const weak = generateKeyPairSync('rsa', { modulusLength: 1024 })
  const input = `${base64({ alg: 'RS256' })}.${base64({ iss: ISSUER })}`
  const assertion = `${input}.${sign('sha256', Buffer.from(input), weak.privateKey).toString('base64url')}`
  t.equal(await check(assertion, ruleOf({}, { jwk: weak.publicKey.export({ format: 'jwk' }) as never })), 'key')
  const secret = { ...await exportJWK(key.privateKey), kid: key.kid }
  t.equal(await check(await own(), ruleOf({}, { jwk: secret })), 'key')
  t.equal(await check(await own(), ruleOf({}, { jwk: { kty: 'oct', k: 'AAAA', kid: key.kid } })), 'key')
})

t.test('an assertion has three parts of base64url, JSON objects, and at most 16 KiB', async (t) => {
  const [header, payload, signature] = (await own()).split('.') as [string, string, string]
  for (const assertion of [
    '', '.', '..', 'a.b.c', `${header}.${payload}`, `${header}.${payload}.${signature}.`, `${header}..${signature}`,
    `.${payload}.${signature}`, `${header}.${payload}.${signature}.${signature}.${signature}`, ` ${header}.${payload}.${signature}`,
    `${header}.${payload}.${signature}\n`, `${header}.${payload}.${signature}=`, `${header}=.${payload}.${signature}`,
    `${base64('[]')}.${payload}.${signature}`, `${base64('null')}.${payload}.${signature}`, `${base64('{')}.${payload}.${signature}`,
    `${header}.${base64('7')}.${signature}`, `${header}.${base64('not JSON')}.${signature}`, `${'é'.repeat(3)}.${payload}.${signature}`
  ]) t.equal(await check(assertion), 'format', assertion.slice(0, 40))
  for (const text of ['[]', '"text"', 'null', '7', '{', '']) {
    t.equal(await check(await compact({ kid: key.kid }, text, key)), 'format', text)
  }
  const room = 16 * 1024 - (await own({ more: '' })).length
  const largest = await own({ more: 'x'.repeat(Math.floor(room * 3 / 4) - 2) })
  t.ok(largest.length <= 16 * 1024 && largest.length > 16 * 1024 - 8)
  t.equal(await check(largest), 'accepted')
  t.equal(await check(await own({ more: 'x'.repeat(room) })), 'format')
})

t.test('WI-08 `typ` is absent or JWT, and any `crit` is refused', async (t) => {
  for (const typ of [undefined, 'JWT']) t.equal(await check(await own({}, { typ })), 'accepted', String(typ))
  for (const typ of ['jwt', 'at+jwt', 'application/jwt', 'JWS', 'dpop+jwt', 'secevent+jwt', 'id_token', '', null, 7, ['JWT']]) {
    t.equal(await check(await own({}, { typ })), 'type', JSON.stringify(typ))
  }
  t.equal(await check(await own({}, { crit: ['exp'], exp: 1 })), 'critical')
  t.equal(await check(await own({}, { crit: ['b64'], b64: true })), 'critical')
  const [, payload, signature] = (await own()).split('.')
  for (const crit of [[], null, 'exp', {}]) {
    const header = base64({ alg: 'ES256', kid: key.kid, crit })
    t.equal(await check(`${header}.${payload}.${signature}`), 'critical', JSON.stringify(crit))
  }
})

t.test('a changed header, payload or signature is refused', async (t) => {
  const [header, payload, signature] = (await own()).split('.') as [string, string, string]
  const bytes = Buffer.from(signature, 'base64url')
  bytes[5]! ^= 1
  t.equal(await check(`${header}.${payload}.${bytes.toString('base64url')}`), 'signature')
  const changed = { ...JSON.parse(Buffer.from(payload, 'base64url').toString()), sub: 'other' }
  t.equal(await check(`${header}.${base64(changed)}.${signature}`), 'signature')
  t.equal(await check(`${base64({ alg: 'ES256', kid: key.kid })}.${payload}.${signature}`), 'signature')
  for (const text of ['', 'AAAA', 'A'.repeat(86)]) t.equal(await check(`${header}.${payload}.${text}`), 'signature')
})

t.test('WI-09 `iss`, `sub`, `aud`, `exp` and `iat` are required, and of their types', async (t) => {
  const now = Math.floor(Date.now() / 1000)
  const cases: [string, string, unknown[]][] = [
    ['iss', 'issuer', [undefined, null, '', 7, [ISSUER], `${ISSUER}/`, ISSUER.toUpperCase(), `${ISSUER}.evil.com`, 'https://other.example.com']],
    ['sub', 'subject', [undefined, null, '', 7, ['a'], {}, true, 'a\u0000b', 'a\nb', '\ud800']],
    ['aud', 'audience', [
      undefined, null, '', 7, [], {}, [7], [[AUDIENCE]], AUDIENCE.slice(0, -1), `${AUDIENCE}/`, `${AUDIENCE}x`, `${AUDIENCE} `, AUDIENCE.toUpperCase(),
      [`${AUDIENCE}/`], 'https://strongroom', `x ${AUDIENCE}`, { [AUDIENCE]: true }
    ]],
    ['exp', 'expiry', [undefined, null, '', String(now + 60), [now + 60], {}, true, now - 3600, 0, -1]],
    ['iat', 'issued_at', [undefined, null, '', String(now), [now], {}, true, now + 3600, 1e12]],
    ['iat', 'age', [now - 3700, 0, -1e300]],
    ['nbf', 'not_before', [null, '', String(now), [now], now + 3600]]
  ]
  for (const [claim, expected, values] of cases) {
    for (const value of values) {
      for (const single_use of [false, true]) {
        const told = await check(await own({ [claim]: value }), ruleOf({ single_use }))
        t.equal(told, expected, `${claim} = ${JSON.stringify(value)}`)
      }
    }
  }
  for (const aud of [AUDIENCE, [AUDIENCE], ['https://kubernetes.default.svc', AUDIENCE]]) t.equal(await check(await own({ aud })), 'accepted')
  for (const nbf of [undefined, now, 0, now - 0.5]) t.equal(await check(await own({ nbf })), 'accepted')
})

t.test('clocks may differ by 60 seconds, and not by a second more', async (t) => {
  const now = 1_800_000_000
  const at = (seconds: number) => new Date(seconds * 1000)
  const once = ruleOf({ single_use: true })
  const assertion = await own({ iat: now, nbf: now, exp: now + 300 })
  for (const [seconds, expected] of [
    [-61, 'issued_at'], [-60, 'accepted'], [0, 'accepted'], [300, 'accepted'], [359, 'accepted'], [360, 'expiry']
  ] as const) t.match(await check(assertion, once, at(now + seconds)), expected === 'issued_at' ? /issued_at|not_before/ : expected, `${seconds} s`)
  const early = await own({ iat: now - 90, nbf: now, exp: now + 300 })
  const long = await own({ iat: now, exp: now + 90_000 })
  t.equal(await check(early, once, at(now - 61)), 'not_before')
  t.equal(await check(early, once, at(now - 60)), 'accepted')
  for (const max_assertion_age of [60, 3600, 86_400]) {
    const rule = ruleOf({ max_assertion_age })
    t.equal(await check(long, rule, at(now + max_assertion_age + 60)), 'accepted')
    t.equal(await check(long, rule, at(now + max_assertion_age + 61)), 'age')
  }
  for (const fraction of [0.001, 0.999]) {
    t.equal(await check(assertion, once, at(now + 359 + fraction)), 'accepted', 'whole seconds')
    t.equal(await check(assertion, once, at(now + 360 + fraction)), 'expiry')
  }
})

t.test('an assertion that can be used again ends without skew', async (t) => {
  const now = 1_800_000_000
  const assertion = await own({ iat: now, exp: now + 300 })
  const at = (milliseconds: number) => new Date(now * 1000 + milliseconds)
  t.equal(await check(assertion, ruleOf(), at(299_999)), 'accepted')
  t.equal(await check(assertion, ruleOf(), at(300_000)), 'expiry')
  t.equal(await check(assertion, ruleOf({ single_use: true }), at(300_000)), 'accepted')
})

t.test('an accepted assertion tells its end, and until when it is spent', async (t) => {
  const now = Math.floor(Date.now() / 1000)
  const times = ({ issuedAt, expires, spentUntil }: AcceptedAssertion) =>
    [issuedAt, expires, spentUntil].map((time) => time.getTime() / 1000 - now)
  // It is accepted until 360. A request that begins then may wait for the keys of the issuer before it is spent.
  t.same(times(await accepted(await own({ iat: now - 10, exp: now + 300 }))), [-10, 300, 960])
  // Without a bound, the row of a spent assertion would stay for ever.
  for (const exp of ['1e999', '1e300', String(now + 1e9)]) {
    const text = `{"iss":"${ISSUER}","sub":"a","aud":"${AUDIENCE}","iat":${now},"exp":${exp}}`
    t.same(times(await accepted(await compact({ kid: key.kid }, text, key))), [0, 86_400, 87_060], exp)
  }
})

t.test('WI-11 an assertion is identified by its jti, otherwise by header and payload: never by its signature', async (t) => {
  const spend = async (assertion: string) => (await accepted(assertion)).spend
  const sha256 = (text: string) => createHash('sha256').update(text).digest('hex')
  const [one, other] = [await own({ jti: 'x' }), await own({ jti: 'x', more: 1 })]
  t.equal(await spend(one), sha256('jti:x'))
  t.equal(await spend(other), sha256('jti:x'))
  t.not(await spend(await own({ jti: 'y' })), sha256('jti:x'))
  for (const jti of [undefined, '', 7, null, ['x']]) {
    const assertion = await own({ jti })
    const [header, payload, signature] = assertion.split('.') as [string, string, string]
    const expected = sha256(`${header}.${payload}`)
    t.equal(await spend(assertion), expected, JSON.stringify(jti))
    // The twin: s is replaced by n - s.
    const bytes = Buffer.from(signature, 'base64url')
    const order = BigInt('0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551')
    const twin = (order - BigInt(`0x${bytes.subarray(32).toString('hex')}`)).toString(16).padStart(64, '0')
    const second = `${header}.${payload}.${Buffer.concat([bytes.subarray(0, 32), Buffer.from(twin, 'hex')]).toString('base64url')}`
    t.not(second, assertion)
    t.equal(await spend(second), expected, 'the twin of the signature')
  }
  t.match(await spend(await own({ jti: 'a\u0000'.repeat(1000) })), /^[0-9a-f]{64}$/, 'it can be stored')
})

t.test('WI-10 claims have exactly the values of the rule, of the same type', async (t) => {
  const matches = async (claims: Claims, token: Record<string, unknown>) =>
    (await check(await own(token), ruleOf({ claims }))) === 'accepted'
  t.ok(await matches({ project_id: '20' }, { project_id: '20' }))
  t.ok(await matches({ project_id: ['7', '20'] }, { project_id: '20' }))
  t.ok(await matches({ protected: true, runner: 1 }, { protected: true, runner: 1 }))
  t.ok(await matches({ sub: 'job:7' }, {}))
  for (const [claims, token] of [
    [{ project_id: '20' }, {}], [{ project_id: '20' }, { project_id: 20 }], [{ project_id: 20 }, { project_id: '20' }],
    [{ project_id: '20' }, { project_id: ['20'] }], [{ project_id: ['7', '20'] }, { project_id: ['7', '20'] }],
    [{ project_id: '20' }, { project_id: '20 ' }], [{ project_id: '20' }, { project_id: '200' }], [{ project_id: '20' }, { PROJECT_ID: '20' }],
    [{ protected: true }, { protected: 'true' }], [{ protected: 'true' }, { protected: true }], [{ protected: false }, {}],
    [{ protected: 1 }, { protected: true }], [{ a: '1', b: '2' }, { a: '1' }], [{ a: '1', b: '2' }, { a: '1', b: '1' }],
    [{ a: 'null' }, { a: null }], [{ toString: 'x' }, {}], [{ constructor: 'Object' }, {}], [{ a: [] }, { a: '' }],
    [{ 'a.b': 'x' }, { a: { b: 'x' } }], [{ 'a/b': 'x' }, { a: { b: 'x' } }], [{ a: '[object Object]' }, { a: {} }]
  ] as [Claims, Record<string, unknown>][]) {
    t.notOk(await matches(claims, token), `${JSON.stringify(claims)} ${JSON.stringify(token)}`)
  }
  for (const name of [
    'oidc.circleci.com/project-id', 'https://sts.amazonaws.com/', 'a.b', 'a"b', "a'b", 'a\\b', '$.a', 'a[0]', ' ', '', 'ä', '__proto__', 'constructor'
  ]) {
    const token = JSON.parse(`{${JSON.stringify(name)}:"x"}`)
    const claims = JSON.parse(`{${JSON.stringify(name)}:"x"}`)
    const text = JSON.stringify({ iss: ISSUER, sub: 'a', aud: AUDIENCE, iat: Math.floor(Date.now() / 1000), exp: 4e9 })
    const sent = await compact({ kid: key.kid }, `${text.slice(0, -1)},${JSON.stringify(token).slice(1)}`, key)
    t.equal(await check(sent, ruleOf({ claims })), 'accepted', name)
    t.equal(await check(await own(), ruleOf({ claims })), 'claims', name)
  }
})

t.test('a prefix is for `ref` alone, after a separator, and is not the whole value', async (t) => {
  const matches = async (claims: Claims, token: Record<string, unknown>) =>
    (await check(await own(token), ruleOf({ claims }))) === 'accepted'
  for (const ref of ['refs/tags/v1', 'refs/tags/a/b', 'refs/tags/*']) t.ok(await matches({ ref: 'refs/tags/*' }, { ref }), ref)
  t.ok(await matches({ ref: ['refs/heads/main', 'refs/tags/*'] }, { ref: 'refs/heads/main' }))
  for (const ref of [
    'refs/tags/', 'refs/tags', 'refs/tagsx', 'refs/heads/main', 'x/refs/tags/v1', 'Refs/tags/v1', ['refs/tags/v1'], 7, null
  ]) t.notOk(await matches({ ref: 'refs/tags/*' }, { ref }), JSON.stringify(ref))
  t.notOk(await matches({ ref: 'refs/heads/ma*' }, { ref: 'refs/heads/main' }), 'not after a separator')
  t.notOk(await matches({ ref: 'refs/*/main' }, { ref: 'refs/heads/main' }))
  t.notOk(await matches({ ref: '*' }, { ref: 'refs/heads/main' }))
  t.notOk(await matches({ sub: 'repo:acme/*' }, { sub: 'repo:acme/app' }), 'another claim')
  t.notOk(await matches({ ref_path: 'refs/tags/*' }, { ref_path: 'refs/tags/v1' }))
})

t.test('booleans of GitLab are texts', async (t) => {
  const assertion = await own(PLATFORM_CLAIMS.gitlab)
  const rule = (ref_protected: string | boolean) => ruleOf({ preset: 'gitlab', claims: { project_id: '20', ref_protected } })
  t.equal(await check(assertion, rule('true')), 'accepted')
  t.equal(await check(assertion, rule(true)), 'claims')
})

t.test('Kubernetes: the nested claim is read by its path, and no claim at the top level replaces it', async (t) => {
  const uid = PLATFORM_CLAIMS.kubernetes['kubernetes.io'].serviceaccount.uid
  const names: Claims = {
    'kubernetes.io/namespace': 'my-namespace',
    'kubernetes.io/serviceaccount/name': 'my-serviceaccount',
    'kubernetes.io/serviceaccount/uid': uid,
    'kubernetes.io/pod/name': 'my-pod'
  }
  const assertion = await own({ ...PLATFORM_CLAIMS.kubernetes, aud: [AUDIENCE] })
  t.equal(await check(assertion, ruleOf({ preset: 'kubernetes', claims: names })), 'accepted')
  t.equal(await check(assertion, ruleOf({ preset: null, claims: names })), 'claims', 'without the preset')
  const claims = { 'kubernetes.io/serviceaccount/uid': uid }
  for (const token of [
    claims, { ...claims, 'kubernetes.io': null }, { ...claims, 'kubernetes.io': { namespace: 'x' } },
    { 'kubernetes.io': { serviceaccount: { uid: [uid] } } }, { 'kubernetes.io': [{ serviceaccount: { uid } }] },
    { 'kubernetes.io': JSON.stringify({ serviceaccount: { uid } }) }, { 'kubernetes.io': { serviceaccount: [uid] } }
  ]) t.equal(await check(await own(token), ruleOf({ preset: 'kubernetes', claims })), 'claims', JSON.stringify(token))
})

t.test('a token of each platform has the ids that its preset demands, its subject and its run', async (t) => {
  const runs: Record<string, string | null> = {
    'github-actions': '8912345678',
    gitlab: '302',
    kubernetes: PLATFORM_CLAIMS.kubernetes['kubernetes.io'].pod.uid,
    buildkite: '0184990a-477b-4fa8-9968-496074483cee',
    circleci: '6a1f7f4c-0000-4000-8000-000000000006',
    'hcp-terraform': 'run-X3n1AUXNGWbfECsJ',
    aws: null,
    google: null,
    azure: null
  }
  for (const preset of PRESETS) {
    const claims = PLATFORM_CLAIMS[preset]
    const result = await accepted(await own(claims), ruleOf({ preset, claims: { sub: claims.sub } }))
    t.same([result.subject, result.run], [claims.sub, runs[preset]], preset)
    for (const id of PRESET_RULES[preset].ids) {
      const value = claimsFor(preset, claims)[id] as string
      t.ok(value, `${preset} has ${id}`)
      t.equal(await check(await own(claims), ruleOf({ preset, claims: { [id]: value } })), 'accepted', `${preset} ${id}`)
      t.equal(await check(await own(claims), ruleOf({ preset, claims: { [id]: `${value}0` } })), 'claims', `${preset} ${id}`)
    }
    t.equal((await accepted(await own(claims))).run, null, 'without a preset')
    t.equal((await accepted(await own(), ruleOf({ preset }))).run, null, 'without the claim')
  }
})

t.test('claims are told of a refused assertion only after its signature was verified', async (t) => {
  const claimsOf = async (assertion: string, rule?: AssertionRule, now?: Date) => {
    const result = await verify(assertion, rule, now)
    return result.accepted ? undefined : result.verified
  }
  const stranger = await makeKey('ES256', key.kid)
  t.equal(await claimsOf(await signFor(ISSUER, stranger)), null)
  t.equal(await claimsOf(await signFor(ISSUER, stranger, { aud: 'x', exp: 1, sub: 7 })), null)
  t.equal(await claimsOf(await own({ iss: 'https://other.example.com' })), null, 'another issuer')
  t.equal(await claimsOf(await own({}, { typ: 'x' })), null)
  t.equal(await claimsOf(await own({}, { kid: 'x' })), null)
  for (const claims of [{ aud: 'x' }, { exp: 1 }, { iat: 1 }, { sub: 7 }, { nbf: 4e9 }]) {
    t.match(await claimsOf(await own({ ...claims, run: 'r' })), { run: 'r' }, JSON.stringify(claims))
  }
  t.match(await claimsOf(await own({ run: 'r' }), ruleOf({ claims: { run: 's' } })), { run: 'r' })
  const kubernetes = ruleOf({ preset: 'kubernetes', audience: 'other' })
  t.match(await claimsOf(await own(PLATFORM_CLAIMS.kubernetes), kubernetes), { 'kubernetes.io/namespace': 'my-namespace' })
})
