// runs: one database
import net from 'node:net'
import { once } from 'node:events'
import t, { type Test } from 'tap'
import { OAuthErrorBody } from '../../schemas/oauth.ts'
import type { Scope } from '../../schemas/scopes.ts'
import { switchClient } from '../../src/commands/people/clients.ts'
import { hashToken, mintCredential, mintSecret } from '../../src/crypto/bearer.ts'
import { hashPassword } from '../../src/crypto/passwords.ts'
import { createClient, createCode, createGrant, createRequest, setClientDisabled } from '../../src/repositories/people/oauth.ts'
import { countKey, rememberDevice, takeAttempts } from '../../src/repositories/people/attempts.ts'
import { createSession } from '../../src/repositories/people/sessions.ts'
import { createPasswordReset } from '../../src/repositories/people/password-resets.ts'
import { createPasswordLink, changePassword, endEverything, findUser, setDisabled } from '../../src/repositories/people/users.ts'
import { earlier, startApp, startIsolatedApp, type TestApp } from '../helpers/app.ts'
import { createValidator } from '../helpers/contract.ts'
import { byTurns, LONG } from '../helpers/long.ts'
import { authorizationUrl, authorize, CALLBACK, makePerson, pkce, post, type Person } from '../helpers/people.ts'
import { formIn, visitor } from '../helpers/visitor.ts'

// Tests the token and revocation endpoints over real HTTP. The tests create codes like the consent page, but without
// the page.

type Parameters = Record<string, string>
type Encoding = 'form' | 'json'
const ENCODINGS = ['form', 'json'] as const

const OTHER = 'orbit-app'
const WEB = 'https://orbit.example/callback'
const SCOPES: Scope[] = ['project:read', 'secret:read', 'secret:write']
const FORM = 'application/x-www-form-urlencoded'

t.setTimeout(240_000)

const service = await startApp(t)
const { db } = service.database
const address = await service.listen()
const nimbus = await service.organization()
const rosa = await makePerson(service, { [nimbus.organization]: 'owner' })
await createClient(db, { id: OTHER, name: 'Orbit', redirect_uris: [CALLBACK, WEB] })

const hex = (text: string) => `'\\x${hashToken(text).toString('hex')}'::bytea`
const countOf = async (table: string, where = 'true', app: TestApp = service) =>
  Number((await app.sql(`SELECT count(*) AS count FROM ${table} WHERE ${where}`))[0]!.count)
const without = (parameters: Parameters, name: string) =>
  Object.fromEntries(Object.entries(parameters).filter(([one]) => one !== name))

interface CodeOptions { client_id?: string, redirect_uri?: string, person?: Person, scopes?: Scope[], app?: TestApp }

/** An authorization code, and the request that redeems it. */
async function newCode ({
  client_id = 'dotenv-cli', redirect_uri = CALLBACK, person = rosa, scopes = SCOPES, app = service
}: CodeOptions = {}) {
  const [code, { verifier, challenge }] = [mintCredential('ac'), pkce()]
  const grant = await createGrant(app.database.db, { user_id: person.id, client_id, scopes })
  await createCode(
    app.database.db, { code_hash: hashToken(code), grant_id: grant, redirect_uri, code_challenge: challenge }
  )
  return {
    grant,
    code,
    verifier,
    exchange: { grant_type: 'authorization_code', code, code_verifier: verifier, client_id, redirect_uri } as Parameters
  }
}

const ask = (parameters: Parameters, as: Encoding = 'form', headers: Parameters = {}) =>
  post(address, '/api/oauth/token', parameters, as, headers)
const revoke = (parameters: Parameters, as: Encoding = 'form', headers: Parameters = {}) =>
  post(address, '/api/oauth/revoke', parameters, as, headers)
const refreshOf = (refresh_token: string, more: Parameters = {}) =>
  ({ grant_type: 'refresh_token', refresh_token, client_id: 'dotenv-cli', ...more })
const basic = (text: string) => ({ authorization: `Basic ${Buffer.from(text).toString('base64')}` })

async function newTokens (as: Encoding = 'form', options: CodeOptions = {}) {
  const { grant, exchange } = await newCode(options)
  const { status, body, text } = await ask(exchange, as)
  if (status !== 200) throw new Error(text)
  return {
    grant,
    exchange,
    access: body.access_token as string,
    refresh: body.refresh_token as string,
    scope: body.scope as string
  }
}

/** The status of an API call with this token. */
async function call (token: string): Promise<number> {
  const answer = await fetch(`${address}/api/v1/user`, { headers: { authorization: `Bearer ${token}` } })
  await answer.text()
  return answer.status
}

async function raw (path: string, body: string | Uint8Array, type: string | undefined, more: RequestInit = {}) {
  // fetch adds a text content type to a string, but none to bytes.
  const answer = await fetch(`${address}/api/oauth/${path}`, {
    method: 'POST',
    body: Buffer.from(body),
    ...more,
    headers: { ...(type !== undefined && { 'content-type': type }), ...more.headers }
  })
  const text = await answer.text()
  return {
    status: answer.status, headers: answer.headers, text, body: text.startsWith('{') ? JSON.parse(text) : undefined
  }
}

/** Counts the tests, so that `inBoth` can alternate the encodings. Both encodings mean the same (OA-30). */
let turn = 0

/** Runs a test in both encodings. `npm test` alternates between them, because OA-30 compares the two. */
function inBoth (name: string, test: (t: Test, as: Encoding) => Promise<unknown>) {
  for (const as of byTurns(ENCODINGS, turn++, 2)) t.test(`${name} (${as})`, async (t) => { await test(t, as) })
}

type Answered = Awaited<ReturnType<typeof post>>
/** Asserts a complete error response (RFC 6749, 5.2). */
// Fields that the document does not have are errors.
const validate = createValidator({})

function refused (t: Test, answer: Answered, error: string, what = error, status = 400) {
  t.strictSame([answer.status, answer.body?.error], [status, error], `${what}: ${answer.status} ${answer.text}`)
  t.strictSame(validate(OAuthErrorBody(status), answer.body), [], what)
  t.match(answer.body?.error_description, /^[\x20-\x21\x23-\x5b\x5d-\x7e]+$/)
  t.equal(answer.headers.get('content-type')?.split(';')[0], 'application/json')
  t.equal(answer.headers.get('cache-control'), 'no-store')
  t.equal(answer.headers.get('pragma'), 'no-cache')
  t.equal(answer.headers.has('www-authenticate'), status === 401)
}

inBoth('OA-40 OA-30: the answer of both grants is the one of RFC 6749, 5.1', async (t, as) => {
  const { exchange } = await newCode()
  const first = await ask(exchange, as)
  const second = await ask(refreshOf(first.body.refresh_token), as)
  for (const answer of [first, second]) {
    t.equal(answer.status, 200, answer.text)
    t.equal(answer.headers.get('content-type')?.split(';')[0], 'application/json')
    t.equal(answer.headers.get('cache-control'), 'no-store')
    t.equal(answer.headers.get('pragma'), 'no-cache')
    t.strictSame(
      Object.keys(answer.body).sort(), ['access_token', 'expires_in', 'refresh_token', 'scope', 'token_type']
    )
    t.equal(answer.body.token_type, 'Bearer')
    t.equal(answer.body.expires_in, 3600)
    t.match(answer.text, /"expires_in":3600[,}]/)
    t.equal(answer.body.scope, SCOPES.join(' '))
    t.match(answer.body.access_token, /^dotenv_at_/)
    t.match(answer.body.refresh_token, /^dotenv_rt_/)
  }
})

t.test('OA-30: whatever is sent, a form and JSON get the same status and the same error', async (t) => {
  const client = { known: ['dotenv-cli', OTHER], other: ['', 'nobody', 'x'.repeat(200), 'ü', ' '] }
  const pools: Record<string, () => Promise<string[]>> = {
    grant_type: async () =>
      ['authorization_code', 'authorization_code', 'refresh_token', 'refresh_token', 'password', '', 'Refresh_Token'],
    client_id: async () => [...client.known, ...client.known, 'dotenv-cli', ...client.other],
    code: async () => [mintCredential('ac'), mintCredential('rt'), '', 'code', 'a+b c&d=e%20', '\u0000'],
    code_verifier: async () => [pkce().verifier, 'short', '', 'x'.repeat(129), `${'x'.repeat(43)}+`],
    redirect_uri: async () => [CALLBACK, CALLBACK, WEB, '', 'javascript:alert(1)'],
    refresh_token: async () => [mintCredential('rt'), mintCredential('at'), '', 'token', '\ud800'],
    scope: async () => ['', '*', 'project:read', 'project:read  secret:read', 'nonsense'],
    client_secret: async () => ['', '', 'secret'],
    resource: async () => ['', 'https://elsewhere.example'],
    '': async () => ['', 'nameless']
  }
  let next = 20261121
  const random = (below: number) => {
    next = (Math.imul(next, 1664525) + 1013904223) >>> 0
    return Math.floor(next / 2 ** 32 * below)
  }
  const statuses = new Set<string>()
  for (let i = 0; i < (LONG ? 400 : 60); i++) {
    const parameters: Parameters = {}
    for (const [name, values] of Object.entries(pools)) {
      if (random(5) === 0) continue
      const all = await values()
      parameters[name] = all[random(all.length)]!
    }
    // Every third request starts with a valid code, so that some requests reach the grant.
    const twins = i % 3 === 0 ? [await newCode(), await newCode()] : undefined
    const [form, json] = await Promise.all(ENCODINGS.map((as, j) => ask(twins === undefined
      ? parameters
      : {
          ...twins[j]!.exchange,
          ...Object.fromEntries(Object.entries(parameters).filter((_, k) => (i >> (k % 4)) % 4 === 0))
        }, as))) as [Answered, Answered]
    if (form.status !== json.status || form.body.error !== json.body.error) {
      t.fail(JSON.stringify(parameters), { form: form.text, json: json.text })
    }
    if (form.status !== 200) t.equal(form.status, 400, `${form.status} ${JSON.stringify(parameters)}`)
    statuses.add(`${form.status} ${form.body.error ?? ''}`)
  }
  t.ok(statuses.size >= 5, `too few of the outcomes were met: ${[...statuses]}`)
})

t.test('OA-30: charset=UTF-8 is taken in every spelling that clients use', async (t) => {
  for (const type of [
    `${FORM};charset=UTF-8`, `${FORM}; charset=utf-8`, `${FORM};charset="utf-8"`, FORM.toUpperCase()
  ]) {
    const { exchange } = await newCode()
    t.equal((await raw('token', new URLSearchParams(exchange).toString(), type)).status, 200, type)
  }
  for (const type of ['application/json;charset=UTF-8', 'application/json; charset="utf-8"', 'Application/JSON']) {
    const { exchange } = await newCode()
    t.equal((await raw('token', JSON.stringify(exchange), type)).status, 200, type)
  }
})

inBoth('OA-31: parameters in the query count for nothing', async (t, as) => {
  const { exchange } = await newCode()
  const query = `/api/oauth/token?${new URLSearchParams(exchange)}`
  refused(t, await post(address, query, {}, as), 'invalid_request', 'all of them')
  for (const name of Object.keys(exchange)) {
    refused(t, await post(
      address, `/api/oauth/token?${new URLSearchParams({ [name]: exchange[name]! })}`, without(exchange, name), as
    ), 'invalid_request', name)
  }
  // The query is neither merged with the body nor a second value of a parameter.
  t.equal(
    (await post(address, '/api/oauth/token?grant_type=password&code=x&client_id=nobody', exchange, as)).status, 200
  )
})

t.test('OA-32: any other content type is 415, and nothing is redeemed', async (t) => {
  const { exchange } = await newCode()
  const [form, json] = [new URLSearchParams(exchange).toString(), JSON.stringify(exchange)]
  const types = [
    'text/plain', 'application/json; charset=utf-16', `${FORM}; charset=iso-8859-1`, 'multipart/form-data; boundary=x', 'application/xml', 'application/problem+json',
    'application/jsonx', 'application/x-www-form-urlencodedx', '*/*', 'nonsense', undefined
  ]
  for (const path of ['token', 'revoke']) {
    for (const type of types) {
      for (const body of [form, json]) {
        refused(t, await raw(path, body, type), 'unsupported_media_type', `${path} ${type}`, 415)
      }
    }
    refused(
      t, await raw(path, json, 'application/json', { headers: { 'content-encoding': 'gzip' } }),
      'unsupported_media_type', 'gzip', 415
    )
  }
  t.equal((await ask(exchange)).status, 200)
})

t.test('OA-33: a parameter that is sent twice is refused in a form and in JSON, and redeems nothing', async (t) => {
  const { exchange } = await newCode()
  for (const name of Object.keys(exchange)) {
    for (const value of [exchange[name]!, 'another', '']) {
      const form = new URLSearchParams(exchange)
      form.append(name, value)
      refused(t, await raw('token', form.toString(), FORM), 'invalid_request', `form ${name}`)
      const first = new URLSearchParams([[name, value], ...Object.entries(exchange)])
      refused(t, await raw('token', first.toString(), FORM), 'invalid_request', `form ${name}, first`)
      const json = JSON.stringify(exchange)
      refused(
        t, await raw('token', `{${JSON.stringify(name)}:${JSON.stringify(value)},${json.slice(1)}`, 'application/json'),
        'invalid_request', `json ${name}`
      )
      const escaped = `"\\u${name.charCodeAt(0).toString(16).padStart(4, '0')}${name.slice(1)}"`
      refused(
        t, await raw('token', `{${escaped} :${JSON.stringify(value)},${json.slice(1)}`, 'application/json'),
        'invalid_request', `json ${name}, spelt otherwise`
      )
    }
  }
  refused(t, await raw('revoke', 'token=a&token=b&client_id=dotenv-cli', FORM), 'invalid_request')
  refused(t, await raw('token', '{"a":{},"a":[]}', 'application/json'), 'invalid_request')
  const nested = JSON.stringify({ ...exchange, more: { a: { code: 'x' }, code: 'y' }, list: ['code":', { code: 1 }] })
  t.equal((await raw('token', nested, 'application/json')).status, 200, 'members of members are not parameters')
})

inBoth('OA-34: unknown parameters are ignored, and an empty value is none', async (t, as) => {
  const { exchange } = await newCode()
  for (const name of Object.keys(exchange)) {
    refused(t, await ask({ ...exchange, [name]: '' }, as), 'invalid_request', name)
  }
  const more = {
    resource: '',
    audience: 'x',
    client_secret: '',
    scope: '',
    'code[]': 'x',
    nonce: '1',
    __proto__x: 'y',
    constructor: 'z'
  }
  const first = await ask({ ...exchange, ...more }, as)
  t.equal(first.status, 200, first.text)
  const second = await ask(
    refreshOf(first.body.refresh_token, { scope: '', resource: 'https://elsewhere.example', code: 'x' }), as
  )
  t.equal(second.status, 200, second.text)
  t.equal(second.body.scope, SCOPES.join(' '))
})

t.test('OA-35: what is no string, or no text, is invalid_request, in every field', async (t) => {
  const { exchange } = await newCode()
  const valid: [string, Parameters][] = [
    ['token', exchange], ['token', refreshOf(mintCredential('rt'), { scope: 'project:read' })],
    ['revoke', { token: mintCredential('rt'), client_id: 'dotenv-cli', token_type_hint: 'x' }]
  ]
  for (const [path, parameters] of valid) {
    for (const [which, name] of Object.keys(parameters).entries()) {
      for (const value of byTurns([
        1, 0, 1.5, [], ['x'], [parameters[name]], {}, { $ne: '' }, null, true, false, '\u0000',
        `${parameters[name]}\u0000`, '\ud800', '\udfff'
      ], which, 4)) {
        refused(
          t, await post(address, `/api/oauth/${path}`, { ...parameters, [name]: value }, 'json'), 'invalid_request',
          `${name} ${JSON.stringify(value)}`
        )
      }
      for (const value of byTurns(['%00', '%ED%A0%80', '%ff', '%c0%af'], which, 4)) {
        const form = `${new URLSearchParams(without(parameters, name))}&${name}=${value}`
        refused(t, await raw(path, form, FORM), 'invalid_request', `${name}=${value}`)
      }
      refused(t, await post(
        address, `/api/oauth/${path}`, { ...parameters, [name]: 'x'.repeat(2 ** 20) }, 'json'
      ).catch(() => tooLarge()), 'payload_too_large', name, 413)
      // The longest accepted value is checked like any other value.
      const long = await post(address, `/api/oauth/${path}`, { ...parameters, [name]: 'x'.repeat(15_000) })
      t.ok(path === 'revoke' ? long.status === 200 : long.status === 400, `${name}, 15 kB: ${long.text}`)
    }
  }
  for (const body of ['', '[]', '"x"', 'null', '1', '{', '{"a":}', 'grant_type=refresh_token', '\ufeff\ufeff{}']) {
    for (const path of ['token', 'revoke']) {
      refused(t, await raw(path, body, 'application/json'), 'invalid_request', body)
    }
  }
  for (const type of [FORM, 'application/json']) {
    refused(t, await raw('token', Uint8Array.of(0x7b, 0xff, 0x7d), type), 'invalid_request', 'no UTF-8')
  }
  t.equal((await ask(exchange)).status, 200, 'nothing was redeemed by any of it')

  // A server that responds before it has read everything may close the connection while the client still sends.
  async function tooLarge (): Promise<Answered> {
    return post(address, '/api/oauth/token', { code: 'x'.repeat(24_000) }, 'json')
  }
})

inBoth('OA-36: grant_type missing is invalid_request, and any other one is unsupported_grant_type', async (t, as) => {
  const { exchange } = await newCode()
  refused(t, await ask(without(exchange, 'grant_type'), as), 'invalid_request')
  const types = ['password', 'client_credentials', 'implicit', 'urn:ietf:params:oauth:grant-type:device_code', 'urn:ietf:params:oauth:grant-type:saml2-bearer',
    'Authorization_Code', 'authorization_code ', ' refresh_token', 'refresh', '__proto__']
  for (const grant_type of types) {
    refused(t, await ask({ ...exchange, grant_type }, as), 'unsupported_grant_type', grant_type)
  }
  t.equal((await ask(exchange, as)).status, 200)
})

inBoth('OA-37: a client that is missing, unknown or disabled', async (t, as) => {
  const { exchange } = await newCode()
  refused(t, await ask(without(exchange, 'client_id'), as), 'invalid_request')
  await createClient(db, { id: 'closed-app', name: 'Closed', redirect_uris: [WEB] })
  await setClientDisabled(db, 'closed-app', true)
  const answers = []
  for (const client_id of ['nobody', 'closed-app', 'DOTENV-CLI', 'x'.repeat(65), '%', "' OR 1=1 --"]) {
    const answer = await ask({ ...exchange, client_id }, as)
    refused(t, answer, 'invalid_client', client_id)
    answers.push(answer.text)
    const tried = await ask(without(exchange, 'client_id'), as, basic(`${encodeURIComponent(client_id)}:`))
    refused(t, tried, 'invalid_client', `Basic ${client_id}`, 401)
    t.match(tried.headers.get('www-authenticate'), /^Basic realm="[^"]+"$/)
    answers.push(tried.text)
  }
  t.equal(new Set(answers).size, 1, 'the body says the same of each')
  // The server asks for HTTP Basic only after a client has tried HTTP Basic.
  for (const authorization of ['Bearer x', 'Digest x', 'Basics x', '']) {
    const refusal = await ask({ ...exchange, client_id: 'nobody' }, as, { authorization })
    refused(t, refusal, 'invalid_client', authorization)
  }
  t.equal((await ask(exchange, as)).status, 200)
})

inBoth('OA-38: HTTP Basic with an empty password names a public client, as some libraries try first', async (t, as) => {
  // golang.org/x/oauth2 first sends the client in the header. After any error, it sends the client in the body.
  const { exchange } = await newCode()
  const first = await ask(without(exchange, 'client_id'), as, basic('dotenv-cli:'))
  t.equal(first.status, 200, first.text)
  const refreshed = await ask(without(refreshOf(first.body.refresh_token), 'client_id'), as, basic('dotenv-cli:'))
  t.equal(refreshed.status, 200, refreshed.text)
  t.equal((await ask(
    without(refreshOf(refreshed.body.refresh_token), 'client_id'), as,
    { authorization: basic('dotenv-cli:').authorization.replace('Basic', 'bASIC ') }
  )).status, 200)

  const next = await newCode()
  const wrong = ['dotenv-cli:secret', 'dotenv-cli:%', 'nobody:', ':', 'dotenv-cli\0:', '%00:', '\xff\xfe:', '']
  for (const text of wrong) {
    refused(
      t, await ask(without(next.exchange, 'client_id'), as, basic(text)), 'invalid_client', JSON.stringify(text), 401
    )
  }
  for (const header of ['Basic', 'Basic !!!', 'Basic a b', `Basic ${'='.repeat(8)}`]) {
    refused(t, await ask(next.exchange, as, { authorization: header }), 'invalid_client', header, 401)
  }
  refused(t, await ask({ ...next.exchange, client_secret: 'secret' }, as), 'invalid_client', 'a secret in the body')
  t.equal((await ask(next.exchange, as)).status, 200, 'no refusal used the code up')
})

inBoth('OA-39: a client in the header and another one in the body', async (t, as) => {
  const { exchange } = await newCode()
  refused(t, await ask({ ...exchange, client_id: OTHER }, as, basic('dotenv-cli:')), 'invalid_request')
  refused(t, await ask(exchange, as, basic(`${OTHER}:`)), 'invalid_request')
  t.equal((await ask(exchange, as, basic('dotenv-cli:'))).status, 200, 'the same one in both')
})

inBoth('OA-43: a missing code, verifier or redirect address is invalid_request and uses nothing up', async (t, as) => {
  const { exchange } = await newCode()
  for (const name of ['code', 'code_verifier', 'redirect_uri']) {
    refused(t, await ask(without(exchange, name), as), 'invalid_request', name)
  }
  refused(
    t, await ask({ grant_type: 'refresh_token', client_id: 'dotenv-cli' }, as), 'invalid_request', 'refresh_token'
  )
  t.equal((await ask(exchange, as)).status, 200)
})

inBoth('OA-44: a code is redeemed once', async (t, as) => {
  const { exchange, grant } = await newCode()
  const answers = await Promise.all(Array.from({ length: 10 }, () => ask(exchange, as)))
  t.equal(answers.filter(({ status }) => status === 200).length, 1)
  for (const answer of answers) if (answer.status !== 200) refused(t, answer, 'invalid_grant')
  t.equal(await countOf('oauth_tokens', `grant_id = ${grant}`), 1)
})

inBoth('OA-45: the verifier has the form of RFC 7636 and is the one behind the challenge', async (t, as) => {
  const { exchange } = await newCode()
  const wrong = [
    exchange.code_verifier!.slice(0, 42), 'x'.repeat(42), 'x'.repeat(129), `${'x'.repeat(42)}+`, `${'x'.repeat(43)} `,
    `ü${'x'.repeat(43)}`, `${exchange.code_verifier}\n`, `${exchange.code_verifier}=`
  ]
  for (const code_verifier of wrong) {
    refused(t, await ask({ ...exchange, code_verifier }, as), 'invalid_grant', code_verifier)
  }
  refused(t, await ask({ ...exchange, code_verifier: pkce().verifier }, as), 'invalid_grant', 'another one')
  t.equal((await ask(exchange, as)).status, 200)

  const good = ['dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk', 'x'.repeat(43), 'y'.repeat(128), `-._~${'z'.repeat(39)}`]
  t.equal(pkce(good[0]).challenge, 'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM', 'RFC 7636, appendix B')
  for (const verifier of good) {
    const { code, exchange } = await newCode()
    await service.write(
      `UPDATE oauth_codes SET code_challenge = '${pkce(verifier).challenge}' WHERE code_hash = ${hex(code)}`
    )
    // The challenge is not the verifier. Accepting it would be the method "plain".
    refused(t, await ask({ ...exchange, code_verifier: pkce(verifier).challenge }, as), 'invalid_grant', 'plain')
    t.equal((await ask({ ...exchange, code_verifier: verifier }, as)).status, 200, verifier)
  }
})

inBoth('OA-46: the redirect address is, byte by byte, the one of the authorization request', async (t, as) => {
  const { exchange } = await newCode({ client_id: OTHER })
  for (const redirect_uri of [
    WEB, 'http://127.0.0.1:5556/callback', 'http://localhost:5555/callback', `${CALLBACK}/`, `${CALLBACK}?`,
    'HTTP://127.0.0.1:5555/callback', 'http://127.0.0.1:5555/%63allback'
  ]) {
    refused(t, await ask({ ...exchange, redirect_uri }, as), 'invalid_grant', redirect_uri)
  }
  t.equal((await ask(exchange, as)).status, 200)
})

inBoth('OA-47: a code of another client is refused and not used up', async (t, as) => {
  const { exchange } = await newCode()
  for (let i = 0; i < 6; i++) refused(t, await ask({ ...exchange, client_id: OTHER }, as), 'invalid_grant')
  t.equal((await ask(exchange, as)).status, 200)
})

inBoth('OA-48: unknown, expired, used and foreign codes get one and the same answer', async (t, as) => {
  const [expired, used, foreign, justInTime] = [
    await newCode(), await newCode(), await newCode({ client_id: OTHER }), await newCode()
  ]
  const [{ left }] = await service.sql(
    `SELECT extract(epoch FROM expires_at - now())::int AS left FROM oauth_codes WHERE code_hash = ${hex(expired.code)}`
  ) as [{ left: number }]
  t.ok(left > 0 && left <= 60, `a code lives for a minute: ${left}`)
  for (const [{ code }, seconds] of [[expired, 61], [justInTime, 30]] as const) {
    await service.write(
      `UPDATE oauth_codes SET ${earlier('expires_at', `${seconds} seconds`)} WHERE code_hash = ${hex(code)}`
    )
  }
  await ask(used.exchange)
  const answers = await Promise.all([
    ask(expired.exchange, as), ask(used.exchange, as), ask({ ...foreign.exchange, client_id: 'dotenv-cli' }, as),
    ask({ ...expired.exchange, code: mintCredential('ac') }, as), ask(
      { ...expired.exchange, code: 'garbage' }, as
    ), ask({ ...justInTime.exchange, code_verifier: pkce().verifier }, as)
  ])
  for (const answer of answers) refused(t, answer, 'invalid_grant')
  t.equal(new Set(answers.map(({ text }) => text)).size, 1)
  t.equal((await ask(justInTime.exchange, as)).status, 200, 'after half a minute it is good')
})

inBoth('OA-49: a code that is redeemed again ends everything that was issued for it', async (t, as) => {
  const { exchange, grant } = await newCode()
  const { body: first } = await ask(exchange, as)
  const { body: second } = await ask(refreshOf(first.refresh_token), as)
  const untouched = await newTokens(as)
  t.equal(await call(second.access_token), 200)
  const replayed = await ask(exchange, as)
  refused(t, replayed, 'invalid_grant')
  t.equal(await call(second.access_token), 401)
  refused(t, await ask(refreshOf(second.refresh_token), as), 'invalid_grant')
  t.equal(await call(untouched.access), 200, 'other grants of the same person are not concerned')
  t.strictSame(await reuses(grant), [{ credential: 'code' }])
  refused(t, await ask(exchange, as), 'invalid_grant')
  t.equal((await reuses(grant)).length, 1, 'it is reported once')
})

inBoth('OA-50: a wrong second use of a code revokes nothing; five wrong verifiers end a code', async (t, as) => {
  const { exchange, grant } = await newCode()
  const { body } = await ask(exchange, as)
  const attempts: Parameters[] = [
    { code_verifier: pkce().verifier }, { client_id: OTHER }, { redirect_uri: 'http://127.0.0.1:1/callback' },
    { code_verifier: 'short' }
  ]
  for (const change of attempts) {
    refused(t, await ask({ ...exchange, ...change }, as), 'invalid_grant', JSON.stringify(change))
  }
  t.equal(await call(body.access_token), 200)
  t.strictSame(await reuses(grant), [])

  const burnt = await newCode()
  const four = await newCode()
  for (let i = 0; i < 4; i++) {
    for (const { exchange } of [burnt, four]) {
      refused(t, await ask({ ...exchange, code_verifier: pkce().verifier }, as), 'invalid_grant')
    }
  }
  refused(t, await ask({ ...burnt.exchange, code_verifier: pkce().verifier }, as), 'invalid_grant')
  refused(t, await ask(burnt.exchange, as), 'invalid_grant', 'the fifth one burnt it')
  t.equal((await ask(four.exchange, as)).status, 200, 'four did not')
})

inBoth('OA-51: a code without a challenge cannot be redeemed, with a verifier or without one', async (t, as) => {
  const { code, exchange, grant } = await newCode()
  await service.write(`UPDATE oauth_codes SET code_challenge = NULL WHERE code_hash = ${hex(code)}`)
  refused(t, await ask(exchange, as), 'invalid_grant')
  refused(t, await ask(without(exchange, 'code_verifier'), as), 'invalid_request')
  refused(t, await ask({ ...exchange, code_verifier: '' }, as), 'invalid_request')
  t.equal(await countOf('oauth_tokens', `grant_id = ${grant}`), 0)
  const bound = await newCode()
  refused(t, await ask(without(bound.exchange, 'code_verifier'), as), 'invalid_request')
})

/** Operations that end everything that a person has granted. */
const ENDS: Record<string, (person: Person) => Promise<unknown>> = {
  'a new password': async ({ id }) => changePassword(db, id, await hashPassword('another battery staple')),
  'a disabled user': async ({ id }) => setDisabled(db, id, true),
  'signing out everywhere': async ({ id }) => endEverything(db, id),
  'a withdrawn consent': async ({ id }) =>
    service.write(`UPDATE oauth_grants SET revoked_at = now() WHERE user_id = ${id}`),
  'a deleted user': async ({ id }) => service.sql(`DELETE FROM users WHERE id = ${id}`)
}

for (const [name, end] of Object.entries(ENDS)) {
  inBoth(`OA-52 OA-63: ${name} ends codes, access tokens and refresh tokens at once`, async (t, as) => {
    const person = await makePerson(service, { [nimbus.organization]: 'developer' })
    const { exchange } = await newCode({ person })
    const tokens = [await newTokens(as, { person }), await newTokens(as, { person, client_id: OTHER })]
    for (const { access } of tokens) t.equal(await call(access), 200)
    const neighbour = await newTokens(as)
    await end(person)
    for (const { access } of tokens) t.equal(await call(access), 401)
    refused(t, await ask(exchange, as), 'invalid_grant', 'the code')
    refused(t, await ask(refreshOf(tokens[0]!.refresh), as), 'invalid_grant', 'the refresh token')
    refused(
      t, await ask(refreshOf(tokens[1]!.refresh, { client_id: OTHER }), as), 'invalid_grant',
      'the refresh token of another client'
    )
    t.equal(await call(neighbour.access), 200, 'no other person is concerned')
  })
}

inBoth('OA-63: a disabled client has nothing left', async (t, as) => {
  await createClient(db, { id: `closing-${as}`, name: 'Closing', redirect_uris: [CALLBACK] })
  const client_id = `closing-${as}`
  const { exchange } = await newCode({ client_id })
  const { access, refresh } = await newTokens(as, { client_id })
  const other = await newTokens(as)
  await switchClient(service.database, client_id, true)
  t.equal(await call(access), 401)
  refused(t, await ask(exchange, as), 'invalid_client')
  refused(t, await ask(refreshOf(refresh, { client_id }), as), 'invalid_client')
  t.equal(await call(other.access), 200)
})

inBoth('OA-64: what was ended stays ended when user and client are enabled again, in either order', async (t, as) => {
  for (const order of ['user first', 'client first'] as const) {
    const person = await makePerson(service, { [nimbus.organization]: 'developer' })
    const client_id = `reopened-${as}-${order[0]}`
    await createClient(db, { id: client_id, name: 'Reopened', redirect_uris: [CALLBACK] })
    const before = await newTokens(as, { person, client_id })
    const { exchange } = await newCode({ person, client_id })
    const elsewhere = await newTokens(as, { client_id })
    const steps = [
      async (closed: boolean) => setDisabled(db, person.id, closed),
      async (closed: boolean) => switchClient(service.database, client_id, closed)
    ]
    if (order === 'client first') steps.reverse()
    for (const step of steps) {
      await step(true)
      t.equal(await call(before.access), 401, order)
    }
    for (const step of steps) {
      await step(false)
      t.equal(await call(before.access), 401, order)
    }
    refused(t, await ask(refreshOf(before.refresh, { client_id }), as), 'invalid_grant')
    refused(t, await ask(exchange, as), 'invalid_grant')
    t.equal(await call(elsewhere.access), 401, 'another person had granted it to the same client')
    const after = await newTokens(as, { person, client_id })
    t.equal(await call(after.access), 200, 'what is granted afterwards counts')
  }
})

t.test('OA-53: no credential passes for one of another kind, anywhere', async (t) => {
  const { code, browser, verifier } = await authorize(address, rosa, { scope: 'project:read' })
  const exchange = {
    grant_type: 'authorization_code', code, code_verifier: verifier, client_id: 'dotenv-cli', redirect_uri: CALLBACK
  }
  const page = await browser.open(authorizationUrl(pkce().challenge))
  const fields = Object.fromEntries(formIn(page).fields)
  const [session] = [...browser.jar].filter(([name]) => name.includes('session')).map(([, value]) => value)
  const tokens = await newTokens()
  const link = mintSecret()
  await createPasswordLink(db, hashToken(link), rosa.id)
  t.ok(session !== undefined && fields.request !== undefined && fields.form_token !== undefined)
  const credentials: Parameters = {
    code,
    session: session!,
    request: fields.request!,
    form_token: fields.form_token!,
    access: tokens.access,
    refresh: tokens.refresh,
    link,
    api: nimbus.token
  }
  for (const [kind, value] of Object.entries(credentials)) {
    for (const as of ENCODINGS) {
      if (kind !== 'code') refused(t, await ask({ ...exchange, code: value }, as), 'invalid_grant', `${kind} as a code`)
      if (kind !== 'refresh') refused(t, await ask(refreshOf(value), as), 'invalid_grant', `${kind} as a refresh token`)
      if (!['access', 'refresh'].includes(kind)) {
        t.equal((await revoke({ token: value, client_id: 'dotenv-cli' }, as)).status, 200)
      }
    }
    if (!['access', 'api'].includes(kind)) t.equal(await call(value), 401, `${kind} as an access token`)
    if (kind !== 'session') {
      const visit = await fetch(`${address}/account`, { headers: { cookie: `session=${encodeURIComponent(value)}` } })
      t.match(await visit.text(), /name="password"/, `${kind} as a session`)
    }
    if (kind !== 'link') {
      t.equal(
        (await fetch(`${address}/account/set-password/${encodeURIComponent(value)}`)).status, 404, `${kind} as a link`
      )
    }
  }
  t.equal(await call(tokens.access), 200, 'none of it did anything')
  t.equal(await call(nimbus.token), 200)
  t.equal((await ask(exchange)).status, 200)
  t.ok(await visitorSees(session!), 'the session is still there')

  async function visitorSees (cookie: string): Promise<boolean> {
    const one = visitor(address)
    one.jar.set('session', cookie)
    return (await one.open('/account')).text.includes(rosa.email.split('@')[0]!)
  }
})

inBoth('OA-55: every refresh gives a new pair, and the old one is worth nothing from then on', async (t, as) => {
  let { access, refresh, grant } = await newTokens(as)
  const seen = new Set([access, refresh])
  for (let i = 0; i < 3; i++) {
    const { status, body } = await ask(refreshOf(refresh), as)
    t.equal(status, 200)
    t.equal(await call(access), 401)
    t.equal(await call(body.access_token), 200)
    access = body.access_token
    refresh = body.refresh_token
    seen.add(access).add(refresh)
  }
  t.equal(seen.size, 8)
  t.equal(await countOf('oauth_tokens', `grant_id = ${grant} AND used_at IS NULL`), 1)
})

for (const [which, index] of [['first', 0], ['second', 1]] as const) {
  inBoth(`OA-56: the ${which} of three refresh tokens, used again, ends the family`, async (t, as) => {
    const first = await newTokens(as)
    const refreshes = [first.refresh]
    let access = first.access
    for (let i = 0; i < 2; i++) {
      const { body } = await ask(refreshOf(refreshes.at(-1)!), as)
      refreshes.push(body.refresh_token)
      access = body.access_token
    }
    t.equal(await call(access), 200)
    refused(t, await ask(refreshOf(refreshes[index]!), as), 'invalid_grant')
    t.equal(await call(access), 401)
    for (const refresh of refreshes) refused(t, await ask(refreshOf(refresh), as), 'invalid_grant')
    t.strictSame(await reuses(first.grant), [{ credential: 'refresh_token' }])
  })
}

inBoth('OA-57: of several uses at once one succeeds, and then the family is over', async (t, as) => {
  const { refresh, grant } = await newTokens(as)
  const answers = await Promise.all(Array.from({ length: 10 }, () => ask(refreshOf(refresh), as)))
  t.equal(answers.filter(({ status }) => status === 200).length, 1)
  t.equal(await countOf('oauth_tokens', `grant_id = ${grant}`), 2)
  for (const { status, body } of answers) if (status === 200) t.equal(await call(body.access_token), 401)
})

inBoth('OA-60: a refresh token of another client is refused, and nothing is revoked', async (t, as) => {
  const { access, refresh } = await newTokens(as)
  for (let i = 0; i < 3; i++) refused(t, await ask(refreshOf(refresh, { client_id: OTHER }), as), 'invalid_grant')
  const { body } = await ask(refreshOf(refresh), as)
  t.equal(await call(access), 401)
  // Refuses even a used refresh token of another client, because only its own client can have lost it.
  refused(t, await ask(refreshOf(refresh, { client_id: OTHER }), as), 'invalid_grant')
  t.equal(await call(body.access_token), 200)
})

inBoth('OA-61: a refresh may ask for the same scopes or for fewer, and fewer now are not fewer later', async (t, as) => {
  const { access, refresh, scope } = await newTokens(as)
  t.equal(scope, SCOPES.join(' '))
  for (const wider of [
    `${scope} secret:purge`, 'secret:purge', 'nonsense', 'project:read  secret:read', ' project:read', 'project:read *',
    'PROJECT:READ', 'project:read\tsecret:read'
  ]) {
    refused(t, await ask(refreshOf(refresh, { scope: wider }), as), 'invalid_scope', wider)
  }
  t.equal(await call(access), 200, 'a refusal uses nothing up')
  const projects = async (token: string) => (await fetch(
    `${address}/api/v1/${nimbus.organization}/projects`, { headers: { authorization: `Bearer ${token}` } }
  )).status
  const same = await ask(refreshOf(refresh, { scope }), as)
  t.equal(same.body.scope, scope)
  const fewer = await ask(refreshOf(same.body.refresh_token, { scope: 'secret:read secret:read' }), as)
  t.equal(fewer.body.scope, 'secret:read')
  t.equal(await projects(fewer.body.access_token), 403)
  const all = await ask(refreshOf(fewer.body.refresh_token), as)
  t.equal(all.body.scope, scope)
  t.equal(await projects(all.body.access_token), 200)
  const star = await ask(refreshOf(all.body.refresh_token, { scope: '*' }), as)
  t.strictSame([star.status, star.body.scope], [200, scope], '* asks for what there is to have')
})

inBoth('OA-62: a refresh token ends after 30 days, its family after 90, by the clock of the database', async (t, as) => {
  const { access, refresh, grant } = await newTokens(as)
  const days = async () => (await service.sql(`
    SELECT round(extract(epoch FROM t.refresh_expires_at - now()) / 8640) / 10 AS idle, round(extract(epoch FROM g.expires_at - now()) / 8640) / 10 AS family
    FROM oauth_tokens t JOIN oauth_grants g ON g.id = t.grant_id WHERE g.id = ${grant} AND t.used_at IS NULL`))[0]!
  t.same(await days(), { idle: 30, family: 90 })
  // Moves the tokens into the past, as if this time had passed.
  const wait = async (time: string) => {
    await service.write(
      `UPDATE oauth_tokens SET ${earlier('refresh_expires_at', time)}, ${earlier('access_expires_at', time)} WHERE grant_id = ${grant}`
    )
    await service.write(`UPDATE oauth_grants SET ${earlier('expires_at', time)} WHERE id = ${grant}`)
  }
  await wait('29 days')
  t.equal(await call(access), 401)
  const second = await ask(refreshOf(refresh), as)
  t.equal(second.status, 200, second.text)
  t.same(await days(), { idle: 30, family: 61 }, 'a refresh begins the 30 days again, not the 90')
  await wait('29 days')
  const third = await ask(refreshOf(second.body.refresh_token), as)
  await wait('29 days')
  const fourth = await ask(refreshOf(third.body.refresh_token), as)
  t.equal(fourth.status, 200, fourth.text)
  await service.write(`UPDATE oauth_grants SET expires_at = now() - interval '1 second' WHERE id = ${grant}`)
  t.equal(await call(fourth.body.access_token), 401, 'no access token outlives the family')
  refused(t, await ask(refreshOf(fourth.body.refresh_token), as), 'invalid_grant', '90 days')

  const idle = await newTokens(as)
  await service.write(
    `UPDATE oauth_tokens SET ${earlier('refresh_expires_at', '30 days 1 second')} WHERE grant_id = ${idle.grant}`
  )
  refused(t, await ask(refreshOf(idle.refresh), as), 'invalid_grant', '30 days')
  t.strictSame(await reuses(idle.grant), [], 'late is not twice')
})

for (const which of ['refresh', 'access'] as const) {
  inBoth(`OA-70 OA-73 OA-74: a public client revokes by the ${which} token, and both are dead`, async (t, as) => {
    const tokens = await newTokens(as)
    const answer = await revoke({ token: tokens[which], client_id: 'dotenv-cli' }, as)
    t.strictSame([answer.status, answer.text], [200, '{}'])
    t.equal(answer.headers.get('cache-control'), 'no-store')
    t.equal(await call(tokens.access), 401)
    refused(t, await ask(refreshOf(tokens.refresh), as), 'invalid_grant')
    t.equal(await countOf('audit_events', `action = 'oauth.revoke' AND details->>'grant' = '${tokens.grant}'`), 1)
    const again = await revoke({ token: tokens[which], client_id: 'dotenv-cli' }, as)
    t.strictSame([again.status, again.text], [200, '{}'])
    t.equal(await countOf('audit_events', `action = 'oauth.revoke' AND details->>'grant' = '${tokens.grant}'`), 1)
  })
}

inBoth('OA-73 OA-38: HTTP Basic with an empty password can revoke; other Basic headers revoke nothing', async (t, as) => {
  const tokens = await newTokens(as)
  for (const headers of [basic('dotenv-cli:secret'), basic('nobody:'), { authorization: 'Basic %%' }]) {
    t.equal((await revoke({ token: tokens.refresh }, as, headers)).status, 200)
    t.equal(await call(tokens.access), 200)
  }
  t.equal((await revoke({ token: tokens.refresh }, as, basic('dotenv-cli:'))).status, 200)
  t.equal(await call(tokens.access), 401)
})

inBoth('OA-71: 200 and one body, whatever the token and the client are', async (t, as) => {
  const { access, refresh } = await newTokens(as)
  const dead = await newTokens(as)
  const expired = await newTokens(as)
  await service.write(
    `UPDATE oauth_tokens SET refresh_expires_at = now() - interval '1 day', access_expires_at = now() - interval '1 day' WHERE grant_id = ${expired.grant}`
  )
  const client_id = 'dotenv-cli'
  const requests: Parameters[] = [
    { token: dead.refresh, client_id }, { token: dead.refresh, client_id }, {
      token: expired.refresh, client_id
    }, { token: expired.access, client_id },
    { token: mintCredential('rt'), client_id }, { token: 'garbage', client_id }, {
      token: mintCredential('ac'), client_id
    }, { token: '', client_id }, { client_id }, { token: nimbus.token, client_id },
    { token: refresh }, { token: refresh, client_id: '' }, { token: refresh, client_id: 'nobody' }, {
      token: refresh, client_id: 'x'.repeat(500)
    }, { token: access, client_id: 'DOTENV-CLI' }, {}
  ]
  for (const parameters of requests) {
    const answer = await revoke(parameters, as)
    t.strictSame([answer.status, answer.text], [200, '{}'], JSON.stringify(parameters))
  }
  t.equal(await call(access), 200, 'without the right client nothing was revoked')
  t.equal(await call(nimbus.token), 200)
})

inBoth('OA-72: a client cannot revoke the tokens of another one', async (t, as) => {
  const tokens = await newTokens(as)
  for (const token of [tokens.refresh, tokens.access]) {
    const answer = await revoke({ token, client_id: OTHER }, as)
    t.strictSame([answer.status, answer.text], [200, '{}'])
  }
  t.equal(await call(tokens.access), 200)
  t.equal((await ask(refreshOf(tokens.refresh), as)).status, 200)
})

inBoth('OA-75: token_type_hint changes nothing, right, wrong or unknown', async (t, as) => {
  for (const token_type_hint of ['refresh_token', 'access_token', 'id_token', '', 'x'.repeat(1000)]) {
    for (const which of ['refresh', 'access'] as const) {
      const tokens = await newTokens(as)
      t.equal((await revoke({ token: tokens[which], client_id: 'dotenv-cli', token_type_hint }, as)).status, 200)
      t.equal(await call(tokens.access), 401, `${which} as ${token_type_hint}`)
    }
  }
})

t.test('OA-76: only POST is taken, and what is no request is not called a success', async (t) => {
  const { access, refresh } = await newTokens()
  for (const path of ['token', 'revoke']) {
    for (const method of ['GET', 'PUT', 'DELETE', 'PATCH', 'HEAD']) {
      const body = method === 'GET' || method === 'HEAD' ? null : `token=${refresh}&client_id=dotenv-cli`
      const answer = await fetch(`${address}/api/oauth/${path}?token=${refresh}&client_id=dotenv-cli`, { method, body })
      const text = await answer.text()
      t.equal(answer.status, 405, `${method} ${path}`)
      t.match(answer.headers.get('allow'), /\bPOST\b/)
      if (method !== 'HEAD') {
        t.strictSame(Object.keys(JSON.parse(text)).sort(), ['details', 'error', 'error_description', 'message'])
      }
    }
    t.equal((await fetch(`${address}/api/oauth/${path}/x`, { method: 'POST', body: 'x' })).status, 404)
    refused(t, await raw(path, '{"token":', 'application/json'), 'invalid_request')
    refused(t, await raw(path, '', undefined), 'unsupported_media_type', 'nothing at all', 415)
  }
  t.equal(await call(access), 200)
})

t.test('OA-41 OA-76: ten requests a minute and address, counted before a body is read or a grant is touched', async (t) => {
  const limited = await startApp(t, { RATE_LIMIT_OAUTH: '10' })
  const at = await limited.app.listen({ host: '127.0.0.1', port: 0 })
  const organization = await limited.organization()
  const person = await makePerson(limited, { [organization.organization]: 'owner' })
  const { exchange } = await newCode({ app: limited, person })
  const from = (remoteAddress: string, path = 'token', parameters: Parameters = {}, headers: Parameters = {}) =>
    limited.inject({
      method: 'POST',
      url: `/api/oauth/${path}`,
      remoteAddress,
      headers: { 'content-type': FORM, ...headers },
      payload: new URLSearchParams(parameters).toString()
    })

  for (let i = 0; i < 10; i++) {
    const answer = await post(at, '/api/oauth/token', { grant_type: 'x' }, ENCODINGS[i % 2])
    refused(t, answer, 'unsupported_grant_type')
    t.strictSame(
      [answer.headers.get('x-ratelimit-limit'), answer.headers.get('x-ratelimit-remaining')], ['10', String(9 - i)]
    )
    t.equal(answer.headers.has('retry-after'), false)
  }
  for (const as of ENCODINGS) {
    const answer = await post(
      at, '/api/oauth/token', exchange, as, { 'x-forwarded-for': '203.0.113.9', forwarded: 'for=203.0.113.9' }
    )
    refused(t, answer, 'rate_limit_exceeded', as, 429)
    t.match(answer.body.error_description, /the limit `oauth_token` is 10 a minute.* RATE_LIMIT_OAUTH$/)
    t.strictSame(Object.keys(answer.body), ['error', 'error_description', 'message'])
    t.match(answer.headers.get('retry-after'), /^[1-9]\d?$/)
    t.equal(answer.headers.get('x-ratelimit-remaining'), '0')
  }
  for (const [type, body] of [['application/json', '{'], ['text/plain', 'x'], [FORM, 'x'.repeat(100_000)]] as const) {
    const answer = await limited.inject({
      method: 'POST', url: '/api/oauth/token', headers: { 'content-type': type }, payload: body
    })
    t.equal(answer.status, 429, 'whatever the body is')
  }
  t.match(await headersAlone(), /^HTTP\/1\.1 429 /, 'before the body is there')

  // The other endpoint and all other addresses have separate counts.
  for (let i = 0; i < 10; i++) {
    t.equal((await from('127.0.0.1', 'revoke', { token: 'x', client_id: 'dotenv-cli' })).status, 200)
  }
  t.equal((await from('127.0.0.1', 'revoke', { token: 'x', client_id: 'dotenv-cli' })).status, 429)
  for (let i = 0; i < 10; i++) t.equal((await from(`2001:db8:1:2::${i + 1}`)).status, 400)
  t.equal((await from('2001:db8:1:2:ffff::1')).status, 429, 'a /64 is one address')
  t.equal((await from('2001:db8:1:3::1')).status, 400)
  t.equal((await from('::ffff:127.0.0.1')).status, 429, 'so is IPv4, mapped or not')

  const redeemed = await from('198.51.100.7', 'token', exchange)
  t.equal(redeemed.status, 200, 'the refusal did not touch the code')
  t.equal((await limited.inject({
    url: '/api/v1/user', headers: { authorization: `Bearer ${redeemed.body.access_token}` }
  })).status, 200)

  async function headersAlone (): Promise<string> {
    const socket = net.connect(Number(new URL(at).port), '127.0.0.1')
    socket.write(`POST /api/oauth/token HTTP/1.1\r\nHost: x\r\nContent-Type: ${FORM}\r\nContent-Length: 1000\r\n\r\n`)
    const [answer] = await once(socket, 'data')
    socket.destroy()
    return String(answer)
  }
})

t.test('OA-25 OA-62: what is over is removed when more is made, and what a second use is noticed by stays', async (t) => {
  // This test has its own database, because it counts the rows of all people.
  const app = await startIsolatedApp(t)
  const { db } = app.database
  const at = await app.app.listen({ host: '127.0.0.1', port: 0 })
  const organization = await app.organization()
  const person = await makePerson(app, { [organization.organization]: 'owner' })
  const exchanged = async () => {
    const { grant, exchange } = await newCode({ app, person })
    const { body } = await post(at, '/api/oauth/token', exchange)
    const next = await post(at, '/api/oauth/token', refreshOf(body.refresh_token))
    return {
      grant,
      exchange,
      first: body.refresh_token as string,
      refresh: next.body.refresh_token as string,
      access: next.body.access_token as string
    }
  }

  const [old, revoked, lately, living] = [await exchanged(), await exchanged(), await exchanged(), await exchanged()]
  const unredeemed = await newCode({ app, person })
  await app.write(`UPDATE oauth_grants SET expires_at = now() - interval '25 hours' WHERE id = ${old.grant}`)
  await app.write(`UPDATE oauth_grants SET revoked_at = now() - interval '25 hours' WHERE id = ${revoked.grant}`)
  await app.write(`UPDATE oauth_grants SET revoked_at = now() - interval '23 hours' WHERE id = ${lately.grant}`)
  await app.write(
    `UPDATE oauth_codes SET expires_at = now() - interval '25 hours' WHERE grant_id IN (${unredeemed.grant}, ${living.grant})`
  )
  await app.write(
    `UPDATE oauth_tokens SET access_expires_at = now() - interval '80 days', refresh_expires_at = now() - interval '50 days' WHERE used_at IS NOT NULL AND grant_id = ${living.grant}`
  )
  const after = await exchanged()
  const last = await newCode({ app, person })
  const left = async (table: string, column = 'grant_id') =>
    (await app.sql(`SELECT DISTINCT ${column} AS id FROM ${table} ORDER BY 1`)).map(({ id }) => Number(id))
  t.strictSame(await left('oauth_grants', 'id'), [lately.grant, living.grant, after.grant, last.grant])
  t.strictSame(await left('oauth_codes'), [lately.grant, living.grant, after.grant, last.grant])
  t.strictSame(await left('oauth_tokens'), [lately.grant, living.grant, after.grant])
  t.equal(
    await countOf('oauth_tokens', `grant_id = ${living.grant}`, app), 2, 'the used pair of a living grant is kept'
  )
  refused(t, await post(at, '/api/oauth/token', refreshOf(living.first)), 'invalid_grant')
  t.equal(
    (await fetch(`${at}/api/v1/user`, { headers: { authorization: `Bearer ${living.access}` } })).status, 401,
    'and ends the family, however old it is'
  )
  for (const { refresh, exchange } of [old, revoked]) {
    refused(t, await post(at, '/api/oauth/token', refreshOf(refresh)), 'invalid_grant')
    refused(t, await post(at, '/api/oauth/token', exchange), 'invalid_grant')
  }

  // Expired and live sessions, pending requests, links and failure counts; one of each is live.
  const [session, request] = [mintSecret(), mintSecret()]
  const password_hash = (await findUser(db, person.id))!.password_hash!
  await createSession(db, hashToken(session), { id: person.id, password_hash })
  const pending = {
    client_id: 'dotenv-cli', redirect_uri: CALLBACK, state: null, code_challenge: pkce().challenge, scopes: []
  }
  await createRequest(db, hashToken(request), hashToken(session), pending)
  await createPasswordLink(db, hashToken('link'), person.id)
  const attempt = (who: string) => takeAttempts(db, [{ name: who, of: 'account' }])
  await attempt('somebody')
  const device = (who: string) =>
    rememberDevice(db, { token_hash: hashToken(who), before: undefined, user_id: person.id })
  await device('browser')
  const bytes = (name: string) => `sha256((i || '${name}')::bytea)`
  const many = 'FROM generate_series(1, 250) AS i'
  await app.write(
    `INSERT INTO sessions (token_hash, user_id, expires_at) SELECT ${bytes('expired')}, ${person.id}, now() - interval '1 second' ${many}`
  )
  await app.write(`INSERT INTO oauth_requests (id_hash, session_hash, client_id, redirect_uri, code_challenge, scopes, expires_at)
    SELECT ${bytes('request')}, ${bytes('expired')}, 'dotenv-cli', '${CALLBACK}', '${pkce().challenge}', '{}', now() - interval '1 second' ${many}`)
  await app.write(
    `INSERT INTO password_links (token_hash, user_id, expires_at) SELECT ${bytes('link')}, ${person.id}, now() - interval '1 second' ${many}`
  )
  await createPasswordReset(db, person.email, 'reset', person.id)
  await app.write(
    `INSERT INTO password_resets (address_hash, token_hash, user_id, expires_at) SELECT ${bytes('address')}, ${bytes('reset')}, 0, now() - interval '1 second' ${many}`
  )
  await app.sql(
    `INSERT INTO sign_in_failures (key, failures, last_at) SELECT ${bytes('failure')}, 9, now() - interval '61 minutes' ${many}`
  )
  // A new link would revoke an earlier link of the same person, so each link has another person.
  const others = [await makePerson(app), await makePerson(app)]
  await app.sql(
    `INSERT INTO sign_in_devices (token_hash, user_id, expires_at) SELECT ${bytes('device')}, ${others[0]!.id}, now() - interval '1 second' ${many}`
  )
  const make: Record<string, () => Promise<unknown>> = {
    // Creates requests before the sessions end, because the requests end with their session. A session has at most 20
    // requests.
    oauth_requests: () => createRequest(db, hashToken(mintSecret()), hashToken(session), pending),
    sessions: () => createSession(db, hashToken(mintSecret()), { id: person.id, password_hash }),
    password_links: () => createPasswordLink(db, hashToken(mintSecret()), others.pop()!.id),
    password_resets: () => createPasswordReset(db, `${mintSecret()}@nimbus.example`, mintSecret(), 0),
    sign_in_failures: () => attempt(mintSecret()),
    sign_in_devices: () => device(mintSecret())
  }
  for (const [table, one] of Object.entries(make)) {
    const before = await countOf(table, 'true', app)
    await one()
    t.equal(await countOf(table, 'true', app), before + 1 - 200, `${table}: a bounded number at a time`)
    await one()
    t.equal(await countOf(table, 'true', app), before + 2 - 250, `${table}: all that are over`)
  }
  t.equal(await countOf('sessions', `token_hash = ${hex(session)}`, app), 1)
  t.equal(await countOf('oauth_requests', `id_hash = ${hex(request)}`, app), 1)
  t.equal(await countOf('password_links', `token_hash = ${hex('link')}`, app), 1)
  t.equal(await countOf('password_resets', `user_id = ${person.id}`, app), 1)
  t.equal(await countOf('sign_in_failures', `key = '\\x${countKey(db, { name: 'somebody' }).toString('hex')}'`, app), 1)
  t.equal(await countOf('sign_in_devices', `token_hash = ${hex('browser')}`, app), 1)
})

/** The recorded reuse events of a grant. */
async function reuses (grant: number): Promise<unknown[]> {
  return (await service.sql(
    `SELECT details->>'credential' AS credential FROM audit_events WHERE action = 'oauth.reuse' AND details->>'grant' = '${grant}' ORDER BY seq`
  )).map(({ credential }) => ({ credential }))
}
