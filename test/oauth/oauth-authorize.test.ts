// runs: one database
import { createPasswordLink } from '../../src/repositories/people/users.ts'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import { LIFETIMES, MAX_GRANTS, STATE_LENGTH } from '../../schemas/oauth.ts'
import { isScopeOfProject, SCOPE_NAMES } from '../../schemas/scopes.ts'
import { hashToken } from '../../src/crypto/bearer.ts'
import { createClient, createGrant } from '../../src/repositories/people/oauth.ts'
import { makeLevel, startIsolatedApp } from '../helpers/app.ts'
import { byTurns, LONG, sample } from '../helpers/long.ts'
import {
  authorizationUrl, authorize, CALLBACK, issuePair, makePerson, makeTeam, pkce, post, tokensFor, type Person
} from '../helpers/people.ts'
import { formIn, visitor, type Seen, type Visitor } from '../helpers/visitor.ts'

// This file has its own database, because it counts all authorization codes of the service.
const service = await startIsolatedApp(t)
const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
const nimbus = await service.organization()
const rosa = await makePerson(service, { [nimbus.organization]: 'owner' })
const WEB = 'https://client.example.com/cb'
await createClient(service.database.db, { id: 'web', name: 'Web', redirect_uris: [WEB] })
await createClient(
  service.database.db, { id: 'tenant', name: 'Tenant', redirect_uris: ['https://client.example.com/cb?tenant=1'] }
)
await createClient(service.database.db, { id: 'app', name: 'App', redirect_uris: ['com.example.app:/cb'] })
await createClient(service.database.db, {
  id: 'native',
  name: 'Native',
  redirect_uris: ['http://127.0.0.1/callback', 'http://[::1]/callback', 'http://localhost/callback']
})

const { challenge: CHALLENGE, verifier: VERIFIER } = pkce()
const stranger = visitor(address)
const codes = async () => Number((await service.sql('SELECT count(*) AS n FROM oauth_codes'))[0]!.n)
const ask = (changes: Record<string, string | undefined> = {}, browser: Visitor = stranger, more = '') =>
  browser.open(authorizationUrl(CHALLENGE, changes) + more)
const isConsent = ({ status, text }: Seen) => status === 200 && text.includes('action="/oauth/authorize/decision"')
const isSignIn = ({ status, text }: Seen) => status === 200 && text.includes('action="/oauth/sign-in"')
const exchange = (code: string | null, verifier = VERIFIER, more: Record<string, string> = {}) =>
  post(address, '/api/oauth/token', {
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
    client_id: 'dotenv-cli',
    redirect_uri: CALLBACK,
    ...more
  })
const api = (path: string, headers: Record<string, string>) => fetch(`${address}/api/v1${path}`, { headers })

/** A browser in which a person is signed in. */
async function signedIn (person = rosa) {
  const browser = visitor(address)
  const page = await browser.signIn(await browser.open('/account'), person.email, person.password)
  if (!page.text.includes(person.email)) throw new Error(`signing in: ${page.status} ${page.text}`)
  return browser
}
const rosas = await signedIn()

/** Asserts that the page is an error page: it does not redirect and shows no value of the request. */
function isRefusal (t: Test, seen: Seen, sent: string[] = [], label = '') {
  t.match(
    { status: seen.status, location: seen.headers.get('location'), type: seen.headers.get('content-type') },
    { status: 400, location: null, type: 'text/html; charset=utf-8' }, label
  )
  // A nonce is random, and can spell `href`.
  t.notMatch(seen.text.replace(/ nonce="[\w-]+"/, ''), /<a |<form|<script|http-equiv|window|href/i, label)
  for (const one of sent) if (one.length > 3) t.notOk(seen.text.includes(one), `${label}: reflected`)
}

/** The error in a redirect to a client. Asserts that the redirect has all required parameters. */
function errorIn (
  t: Test, seen: Seen, { to = CALLBACK, state = 'state' }: { to?: string, state?: string | null } = {}
): string | null {
  t.equal(seen.status, 303)
  const location = seen.headers.get('location') ?? ''
  t.ok(location.startsWith(`${to}?`) || (to.includes('?') && location.startsWith(`${to}&`)), location.slice(0, 200))
  const { searchParams, hash } = new URL(location)
  t.equal(hash, '')
  t.equal(searchParams.get('code'), null)
  t.equal(searchParams.get('iss'), address)
  t.equal(searchParams.get('state'), state)
  t.match(searchParams.get('error_description'), /^[\x20\x21\x23-\x5b\x5d-\x7e]+$/)
  for (const name of searchParams.keys()) t.equal(searchParams.getAll(name).length, 1, name)
  return searchParams.get('error')
}

/** Sends a request whose path can contain any bytes. */
function raw (path: string, headers: Record<string, string> = {}): Promise<Seen> {
  return new Promise((resolve, reject) => {
    const { hostname, port } = new URL(address)
    http.get({ hostname, port, path: Buffer.from(path).toString('latin1'), headers, agent: false }, (response) => {
      let text = ''
      response.setEncoding('utf8').on('data', (chunk: string) => { text += chunk })
        .on('end', () => resolve({
          status: response.statusCode!,
          headers: new Headers(response.headers as Record<string, string>),
          text,
          url: path
        }))
    }).on('error', reject)
  })
}

t.test('OA-01: the client, then its address, are judged before anything can redirect', async (t) => {
  const before = await codes()
  await createClient(service.database.db, { id: 'shut', name: 'Shut', redirect_uris: [WEB] })
  await service.write("UPDATE oauth_clients SET disabled_at = now() WHERE id = 'shut'")
  const clients = [
    undefined, '', ' ', 'unknown', 'DOTENV-CLI', 'dotenv-cli ', 'dotenv-cli\0', '\0', "'; DROP TABLE users; --",
    '<script>alert(1)</script>', 'x'.repeat(64), 'x'.repeat(65), 'ü', '\ud83d\ude00', '%00', 'shut'
  ]
  for (const [which, browser] of [stranger, rosas].entries()) {
    for (const client_id of byTurns(clients, which, 2)) {
      isRefusal(
        t, await ask({ client_id }, browser), [client_id ?? '', CALLBACK], `client ${JSON.stringify(client_id)}`
      )
    }
    // The browser is not redirected, whatever other errors the request has.
    isRefusal(t, await ask({
      client_id: 'unknown', response_type: 'token', scope: 'nonsense', prompt: 'none', code_challenge: undefined
    }, browser))
    for (const redirect_uri of byTurns([
      undefined, '', ' ', 'https://evil.example/', '//evil.example', 'javascript:alert(1)',
      '"><script>alert(1)</script>', '\0', `${CALLBACK}\0`, `${CALLBACK}/`, WEB
    ], which, 2)) {
      isRefusal(
        t, await ask({ redirect_uri }, browser), [redirect_uri ?? ''], `address ${JSON.stringify(redirect_uri)}`
      )
      isRefusal(t, await ask({ redirect_uri, prompt: 'none', response_type: undefined }, browser))
    }
  }
  isRefusal(t, await stranger.open('/oauth/authorize'))
  isRefusal(t, await stranger.open('/oauth/authorize?'))
  isRefusal(t, await stranger.open('/oauth/authorize?%'))
  isRefusal(t, await stranger.open('/oauth/authorize?client_id=%ff%fe&redirect_uri=%c0%80'))
  t.equal(await codes(), before)
})

// A line separator in the name of a test would end the line of TAP output.
const label = (text: string) => encodeURIComponent(text).slice(0, 60)

const STATES = [
  'a b&c=d%2B"<>\r\n', 'žluťoučký kůň 🔑 '.repeat(100)
    .slice(0, 1300), '%', '%25', '%2525', '+', 'a+b', '=', '&x=y', '#', '?', "'()*!~", '\u202e\u2028', '\t', '\\', '日本語', '[]{}|^`',
  '&iss=https://evil.example&code=forged', 'x'.repeat(STATE_LENGTH)
]

t.test('OA-02, OA-20: errors go to the registered address, with the state byte for byte, and with iss', async (t) => {
  t.ok(Buffer.byteLength(STATES[1]!) > 1900)
  for (const state of STATES) {
    const seen = await ask({ state, prompt: 'none' })
    t.equal(errorIn(t, seen, { state }), 'consent_required', label(state))
    const [, bytes = ''] = /[?&]state=([^&]*)/.exec(seen.headers.get('location')!) ?? []
    t.equal(decodeURIComponent(bytes), state, 'whether it is read as a form or as a URL')
  }
  t.equal(errorIn(t, await ask({ state: undefined, prompt: 'none' }), { state: null }), 'consent_required')
  t.equal(errorIn(t, await ask({ state: '', prompt: 'none' }), { state: null }), 'consent_required')
  t.equal(
    errorIn(t, await ask({ client_id: 'web', redirect_uri: WEB, prompt: 'none' }), { to: WEB }), 'consent_required'
  )
  t.equal(errorIn(
    t, await ask({ client_id: 'app', redirect_uri: 'com.example.app:/cb', prompt: 'none' }),
    { to: 'com.example.app:/cb' }
  ), 'consent_required')
  const tenant = 'https://client.example.com/cb?tenant=1'
  t.equal(
    errorIn(t, await ask({ client_id: 'tenant', redirect_uri: tenant, prompt: 'none' }), { to: tenant }),
    'consent_required'
  )
})

t.test('OA-02: a state that could not go back as it came is refused, and not sent back', async (t) => {
  const start = authorizationUrl(CHALLENGE, { state: undefined })
  for (const state of [
    'x'.repeat(STATE_LENGTH + 1), 'x'.repeat(6000), `${'x'.repeat(3000)}${'%C3%A9'.repeat(600)}`, '%00', 'a%00b', '%FF',
    '%C3', '%ED%A0%80', '%F5%80%80%80', 'x%C3%28'
  ]) {
    for (const cookie of ['', [...rosas.jar].map((pair) => pair.join('=')).join('; ')]) {
      t.equal(
        errorIn(t, await raw(`${start}&state=${state}`, { cookie }), { state: null }), 'invalid_request',
        state.slice(0, 20)
      )
    }
  }
})

t.test('OA-02: the state survives the way through sign-in, consent and both decisions', async (t) => {
  for (const [which, state] of STATES.entries()) {
    for (const decision of byTurns(['allow', 'deny'] as const, which, 2)) {
      const back = await rosas.decide(await ask({ state }, rosas), decision)
      t.equal(back.searchParams.get('state'), state, `${decision} ${label(state)}`)
      t.equal(decodeURIComponent(/[?&]state=([^&]*)/.exec(back.href)![1]!), state)
      t.strictSame(
        [...back.searchParams.keys()].sort(),
        decision === 'allow' ? ['code', 'iss', 'state'] : ['error', 'error_description', 'iss', 'state']
      )
    }
  }
  // The client gets `state` exactly as in the query. No step may make it longer or interpret it.
  const plain = authorizationUrl(CHALLENGE, { state: undefined })
  for (const [written, state] of sample([
    [encodeURIComponent(STATES[0]!), STATES[0]!], [encodeURIComponent(STATES[1]!), STATES[1]!], [
      encodeURIComponent(STATES[1]!).replaceAll('%20', '+'), STATES[1]!
    ],
    ["~'()*!".repeat(682), "~'()*!".repeat(682)], ['a+b%20c', 'a b c'], ['"<>\\^`{|}', '"<>\\^`{|}'], ['%e6%97%a5', '日']
  ] as const, 2)) {
    const browser = visitor(address)
    const page = await raw(`${plain}&state=${written}`)
    const [cookie] = page.headers.get('set-cookie')!.split(';')
    browser.jar.set('browser', cookie!.split('=')[1]!)
    const back = await browser.decide(await browser.signIn(page, rosa.email, rosa.password), 'allow')
    t.equal(back.searchParams.get('state'), state, label(state))
  }
})

/** Asserts that the service refuses each request by a redirect with the given error. */
async function refuses (t: Test, table: [changes: Record<string, string | undefined>, error: string][]) {
  const before = await codes()
  for (const [changes, error] of table) {
    for (const browser of [stranger, rosas]) {
      t.equal(errorIn(t, await ask(changes, browser)), error, JSON.stringify(changes).slice(0, 120))
    }
  }
  t.equal(await codes(), before)
}

t.test('OA-03: the response type is code', async (t) => {
  await refuses(t, [
    [{ response_type: undefined }, 'invalid_request'], [{ response_type: '' }, 'invalid_request'],
    ...[
      'token', 'id_token', 'code token', 'code id_token', 'none', 'CODE', 'code ', ' code', 'code\0', 'code code',
      'password'
    ].map((response_type): [Record<string, string>, string] => [{ response_type }, 'unsupported_response_type'])
  ])
})

t.test('OA-04, OA-05, OA-06: every client sends an S256 challenge of 43 characters', async (t) => {
  const challenges = [
    undefined, '', 'A'.repeat(42), 'A'.repeat(44), 'A'.repeat(128), 'A'.repeat(129), `${'A'.repeat(42)}+`, `${'A'.repeat(42)}/`, `${'A'.repeat(42)}=`, `${'A'.repeat(43)}=`, `${'A'.repeat(42)}\0`,
    `${'A'.repeat(43)}\0`, `${'A'.repeat(43)}\n`, `\n${'A'.repeat(43)}`, ` ${'A'.repeat(42)}`, `${'A'.repeat(42)}é`, `${'A'.repeat(42)}.`, `${'A'.repeat(42)}~`, `${'Ａ'.repeat(43)}`
  ]
  await refuses(t, [
    ...challenges.map((code_challenge): [Record<string, string | undefined>, string] =>
      [{ code_challenge }, 'invalid_request']),
    ...[undefined, '', 'plain', 's256', 'S512', 'S256 ', 'S256\0', 'none', 'S256,plain'].map((code_challenge_method): [
      Record<string, string | undefined>, string
    ] => [{ code_challenge_method }, 'invalid_request']),
    [{ code_challenge: undefined, code_challenge_method: undefined }, 'invalid_request']
  ])
  for (const [client_id, redirect_uri] of [['web', WEB], ['app', 'com.example.app:/cb']] as const) {
    t.equal(errorIn(
      t, await ask({ client_id, redirect_uri, code_challenge: undefined, code_challenge_method: undefined }, rosas),
      { to: redirect_uri }
    ), 'invalid_request')
  }
})

t.test('OA-07, OA-08: an address that is only like the registered one is no address', async (t) => {
  const misses = [
    'https://client.example.com:443/cb', 'https://CLIENT.example.com/cb', 'HTTPS://client.example.com/cb', `${WEB}/`, `${WEB}?x`, `${WEB}#f`, 'https://client.example.com/cb/../cb', 'https://client.example.com/%63b',
    'https://client.example.com//cb', `${WEB};a`, 'https://client.example.com@evil.example/cb', 'https://client.example.com.evil.example/cb', 'https://client.example.com\\cb', 'https://client.example.com/c\tb',
    'https://client.example.com/c\nb', 'https://user:password@client.example.com/cb', 'https://clіent.example.com/cb', `${WEB}${'x'.repeat(3000)}`, 'http://127.0.0.1:5555/cb', 'http://localhost/cb', `${WEB}\r\nx: y`
  ]
  for (const redirect_uri of misses) {
    isRefusal(t, await ask({ client_id: 'web', redirect_uri }, rosas), [redirect_uri], redirect_uri.slice(0, 80))
  }
  // Longer than any URL that the service accepts.
  const huge = await ask({ client_id: 'web', redirect_uri: WEB + 'x'.repeat(8192) }, rosas)
  t.strictSame(
    [huge.status, huge.headers.get('location'), huge.text.includes('client.example.com')], [414, null, false]
  )
  for (const [client_id, redirect_uri] of [
    ['dotenv-cli', 'http://[::1]:5555/callback'], ['dotenv-cli', 'http://127.0.0.1:5555/cb'],
    ['app', 'com.example.app://cb'], ['app', 'http://localhost/cb']
  ] as const) {
    isRefusal(t, await ask({ client_id, redirect_uri }, rosas))
  }
  for (const redirect_uri of [
    'http://127.1:5555/callback', 'http://127.000.000.001:5555/callback', 'http://0x7f000001:5555/callback', 'http://LOCALHOST:5555/callback', 'http://localhost.evil.com:5555/callback', 'http://localhost:80@evil.com/callback',
    'http://localhost:5555/callback?bar=foo', 'http://localhost:0/callback', 'http://localhost:65536/callback', 'http://localhost:/callback', 'https://localhost:5555/callback'
  ]) isRefusal(t, await ask({ client_id: 'native', redirect_uri }, rosas), [redirect_uri], redirect_uri)
  for (const host of ['127.0.0.1', '[::1]', 'localhost']) {
    for (const port of byTurns(['', ':1', ':80', ':443', ':5555', ':51004', ':65535'], host.length, 2)) {
      t.ok(
        isConsent(await ask({ client_id: 'native', redirect_uri: `http://${host}${port}/callback` }, rosas)),
        host + port
      )
    }
  }
  t.ok(
    isConsent(await ask({ redirect_uri: 'http://localhost:43893/callback' }, rosas)),
    'the command line tool of the field'
  )
  const back = await rosas.decide(
    await ask({ client_id: 'native', redirect_uri: 'http://[::1]:51004/callback' }, rosas), 'allow'
  )
  t.equal(back.origin + back.pathname, 'http://[::1]:51004/callback', 'goes back to the port that was asked for')
})

t.test('OA-09: an address that no client may have is refused even where it stands in the database', async (t) => {
  const redirect_uris = [
    'javascript:alert(1)', 'data:text/html,x', 'http://client.example.com/cb', 'myapp:/cb', 'https://*.example.com/cb',
    'https://client.example.com/cb#a', 'file:///etc/passwd'
  ]
  await createClient(service.database.db, { id: 'odd', name: 'Odd', redirect_uris })
  for (const redirect_uri of redirect_uris) {
    isRefusal(t, await ask({ client_id: 'odd', redirect_uri }, rosas), [redirect_uri], redirect_uri)
  }
})

t.test('OA-11: an address that is left out is refused, however many the client has', async (t) => {
  for (const client_id of ['web', 'dotenv-cli', 'app', 'native']) {
    for (const redirect_uri of [undefined, '']) isRefusal(t, await ask({ client_id, redirect_uri }, rosas))
  }
})

t.test('OA-12: no parameter counts twice', async (t) => {
  const before = await codes()
  for (const [which, browser] of [stranger, rosas].entries()) {
    for (const [name, values] of Object.entries({
      client_id: ['dotenv-cli', 'web', ''], redirect_uri: [CALLBACK, 'https://evil.example/', '']
    })) {
      for (const value of byTurns(values, which, 2)) {
        isRefusal(t, await ask({}, browser, `&${name}=${encodeURIComponent(value)}`), [value], `${name}=${value}`)
      }
    }
    for (const [name, values] of Object.entries({
      response_type: ['code', 'token', ''],
      code_challenge: [CHALLENGE, 'A'.repeat(43), ''],
      code_challenge_method: ['S256', 'plain', ''],
      scope: ['secret:read', ''],
      nonce: ['1', '2'],
      prompt: ['login', ''],
      anything: ['1', '2']
    })) {
      for (const value of byTurns(values, which, 2)) {
        t.equal(errorIn(t, await ask(
          { scope: 'secret:read', nonce: '1', prompt: 'login', anything: '1' }, browser,
          `&${name}=${encodeURIComponent(value)}`
        )), 'invalid_request', `${name}=${value}`)
      }
    }
    for (const value of ['state', 'other', '']) {
      t.equal(
        errorIn(t, await ask({}, browser, `&state=${value}`), { state: null }), 'invalid_request',
        'which state would be the right one?'
      )
    }
    t.equal(errorIn(t, await ask({}, browser, '&a[]=1&a[]=2')), 'invalid_request')
  }
  // Brackets do not make arrays; they are part of another parameter name.
  isRefusal(t, await ask({ client_id: undefined }, rosas, '&client_id[]=dotenv-cli'))
  isRefusal(t, await ask({ redirect_uri: undefined }, rosas, `&redirect_uri[0]=${encodeURIComponent(CALLBACK)}`))
  t.ok(isConsent(await ask({}, rosas, '&state[]=x&__proto__=1&constructor=2')))
  // The form does not accept arrays either.
  for (const [name, status] of [['form_token', 403], ['request', 400]] as const) {
    const form = formIn(await ask({}, rosas))
    const value = form.fields.find(([one]) => one === name)![1]
    t.equal((await rosas.send(form, { decision: 'allow', [name]: [value, value] })).status, status, name)
  }
  const undecided = await rosas.send(formIn(await ask({}, rosas)), { decision: ['allow', 'deny'] })
  t.equal(errorIn(t, undecided), 'access_denied')
  t.equal(await codes(), before)
})

t.test('OA-13: scopes are those of S-2.6, in the grammar of RFC 6749', async (t) => {
  await refuses(t, [
    'unknown', 'secret:read unknown', 'secret:read  secret:write', ' secret:read', 'secret:read ', 'secret:read\tsecret:write', 'secret:read\nsecret:write', 'secret:read,secret:write', 'secret:read\u00a0secret:write',
    '"secret:read"', 'secret:read\\', 'SECRET:READ', 'secret:*', 'secret', 'secret:', '* secret:read', 'secret:read *', '**', 'openid', 'offline_access', 'secret:read\0', 'secrét:read', '__proto__', 'constructor', 'toString', ' ',
    Array.from({ length: 900 }, (_, i) => `s:${i}`).join(' ')
  ].map((scope) => [{ scope }, 'invalid_scope']))
  const tooMany = await ask({ scope: Array.from({ length: 600 }, () => 'secret:read').join(' ') }, rosas)
  t.strictSame([tooMany.status, tooMany.headers.get('location')], [414, null])
  for (const scope of [undefined, '', '*']) {
    t.strictSame(offered(await ask({ scope }, rosas)), SCOPE_NAMES, 'an owner is asked for everything')
  }
  t.strictSame(
    offered(await ask({ scope: 'secret:write secret:read secret:write' }, rosas)), ['secret:write', 'secret:read'],
    'each once'
  )
})

/** The scopes that a consent page offers, all of them ticked. */
const offered = (page: Seen) => formIn(page).fields.filter(([name]) => name === 'scope').map(([, value]) => value)

t.test('OA-14: granted is what was asked for, was left ticked and the role has, at every call again', async (t) => {
  const member = await makePerson(service, { [nimbus.organization]: 'member' })
  const browser = await signedIn(member)
  const scope = 'secret:read secret:purge project:read billing:write'
  const page = await ask({ scope }, browser)
  t.strictSame(offered(page), ['secret:read', 'project:read'])
  t.notMatch(page.text, /secret:purge|billing:write/)
  const granted = async (changes: Record<string, string | string[] | undefined>) => {
    const back = await browser.decide(await ask({ scope }, browser), 'allow', changes)
    const answer = await exchange(back.searchParams.get('code'))
    t.equal(answer.status, 200, answer.text)
    return answer.body as { access_token: string, scope: string }
  }
  t.equal((await granted({})).scope, 'secret:read project:read')
  t.equal((await granted({ scope: 'project:read' })).scope, 'project:read')
  t.equal(
    (await granted({ scope: ['secret:purge', 'project:read', 'billing:write', '*', 'organization:delete'] })).scope,
    'project:read', 'what the form names beside the offer does not count'
  )
  t.equal((await granted({ scope: undefined })).scope, '', 'nothing ticked, nothing granted')
  t.equal((await granted({ scope: '*' })).scope, '')

  const { access_token } = await granted({})
  const headers = { authorization: `Bearer ${access_token}` }
  t.equal((await api(`/${nimbus.organization}/projects`, headers)).status, 200)
  await service.write(`UPDATE members SET role = 'billing_manager' WHERE user_id = ${member.id}`)
  const demoted = await api(`/${nimbus.organization}/projects`, headers)
  t.strictSame([demoted.status, (await demoted.json() as { error: string }).error], [403, 'insufficient_permissions'])
  await service.sql(`DELETE FROM members WHERE user_id = ${member.id}`)
  t.equal((await api(`/${nimbus.organization}/projects`, headers)).status, 404)
  // A person without an organization can still identify themselves to an application.
  t.equal((await granted({})).scope, '')
  t.strictSame(offered(await ask({}, browser)), ['organization:create', 'member:delete'], 'and begin one')
})

t.test('OA-15: "Read only" and "Deselect all" change the ticks, and decide nothing', async (t) => {
  const owner = await makePerson(service, { [nimbus.organization]: 'owner' })
  const browser = await signedIn(owner)
  const ticked = ({ text }: Seen) => [...text.matchAll(/name="scope" value="([^"]+)" checked/g)].map(([, scope]) => scope!)
  const listed = ({ text }: Seen) => [...text.matchAll(/name="scope" value="([^"]+)"/g)].map(([, scope]) => scope!)
  const page = await ask({ scope: SCOPE_NAMES.join(' ') }, browser)
  t.strictSame(ticked(page), listed(page))
  t.strictSame(listed(page).sort(), [...SCOPE_NAMES].sort(), 'all permissions are requested')
  const select = async (from: Seen, choice: string) => {
    const before = await codes()
    const next = await browser.send(formIn(from), { select: choice })
    t.equal(next.status, 200, next.text)
    t.strictSame(listed(next), listed(page), 'all permissions can still be ticked')
    t.equal(await codes(), before)
    return next
  }
  const reads = await select(page, 'reads')
  const read = ticked(reads)
  t.ok(read.includes('secret:read') && read.includes('billing:read') && read.includes('secret:history'))
  t.strictSame(read.filter((scope) => !/:(read|history)$/.test(scope)), [], 'nothing that changes, decrypts or gives a key')
  t.strictSame(ticked(await select(reads, 'none')), [])
  const again = await select(page, 'reads')
  const back = await browser.decide(again, 'allow')
  const { body } = await exchange(back.searchParams.get('code'))
  t.strictSame((body as { scope: string }).scope.split(' ').sort(), [...read].sort())

  t.notMatch((await ask({ scope: 'secret:read project:read' }, browser)).text, /name="select"/, 'where there is a choice')
  const stale = await browser.send(formIn(page), { select: 'reads' })
  t.equal(stale.status, 400, 'a decided request is not shown again')
})

t.test('the consent page says what an application can do with invitations, and what it sees without a scope', async (t) => {
  const browser = await signedIn(await makePerson(service))
  const { text } = await ask({ scope: 'organization:create member:delete' }, browser)
  t.match(text, /Create organizations, and accept invitations <code>organization:create</)
  t.match(text, /Remove members, leave, and decline invitations <code>member:delete</)
  t.match(text, /Without permissions it can see only your account, your organizations and the invitations to you\./)
  t.match((await ask({ scope: 'team:create' }, browser)).text,
    /It can see only your account, your organizations and the invitations to you\./)
})

/**
 * Sends requests of a person through an application. The application requested all scopes and got those that
 * the page offers.
 */
async function through (person: Person) {
  const { access_token, scope } = await tokensFor(address, person)
  const call = async (method: string, path: string, body?: object) => (await fetch(`${address}/api/v1${path}`, {
    method,
    headers: { authorization: `Bearer ${access_token}`, 'content-type': 'application/json' },
    ...(body !== undefined && { body: JSON.stringify(body) })
  })).status
  return { call, scopes: scope.split(' ') }
}

t.test('OA-14: what the role of a team gives in its projects is offered, and can be done there', async (t) => {
  const o = nimbus.organization
  const [orbit, comet] = [await makeLevel(nimbus, { name: 'Orbit' }), await makeLevel(nimbus, { name: 'Comet' })]
  const person = await makePerson(service, { [o]: 'billing_manager' })
  const own = ['organization:read', 'organization:create', 'member:delete', 'billing:read', 'billing:write']
  t.strictSame((await through(person)).scopes.sort(), own.sort(), 'their role alone gives nothing in a project')
  const team = await makeTeam(service, o, [person], { [orbit.project]: 'administrator', [comet.project]: 'api_user' })
  const { call, scopes } = await through(person)
  const inProjects = SCOPE_NAMES.filter(isScopeOfProject)
  t.strictSame([...scopes].sort(), [...own, ...inProjects].sort())
  const store = (level: object) => call('POST', `/${o}/secrets/store`, { ...level, plaintext: 'A=1' })
  t.equal(await store(orbit), 200)
  t.equal(await call('GET', `/${o}/${orbit.project}/backend/live/secrets?decrypt=true`), 200)
  t.equal(await store(comet), 403, 'another role in another project')
  t.equal(await call('GET', `/${o}/${comet.project}/backend/live/secrets`), 200)

  // Rows from outside the service add no scopes. A team of an organization that the person has left adds none either.
  const offeredTo = async () => {
    const browser = await signedIn(person)
    return offered(await ask({ scope: 'secret:read secret:purge' }, browser))
  }
  await service.sql(`UPDATE team_projects SET role = 'owner' WHERE organization_id = '${o}' AND team_id = '${team}'`)
  t.strictSame(await offeredTo(), [], 'changed outside the service')
  await service.write(`UPDATE team_projects SET role = 'owner' WHERE organization_id = '${o}' AND team_id = '${team}'`)
  t.strictSame(await offeredTo(), ['secret:read', 'secret:purge'])
  await service.write(`UPDATE members SET status = 'invited' WHERE organization_id = '${o}' AND user_id = ${person.id}`)
  t.strictSame(await offeredTo(), [], 'invited, no member')
})

t.test('a person without an organization can create one, and a member of any role can leave', async (t) => {
  const alone = await makePerson(service)
  const own = await through(alone)
  t.strictSame(own.scopes.sort(), ['member:delete', 'organization:create'])
  t.equal(await own.call('POST', '/organizations', { name: 'Of their own' }), 201)

  const o = (await service.organization()).organization
  const members = `/organizations/${o}/members`
  const owner = await makePerson(service, { [o]: 'owner' })
  for (const role of ['developer', 'auditor', 'api_user'] as const) {
    const person = await makePerson(service, { [o]: role })
    const { call } = await through(person)
    t.equal(await call('DELETE', `${members}/${owner.id}`), 403, `${role}: no other member`)
    if (role === 'auditor') {
      await service.sql(`UPDATE organization_counters SET require_second_factor = true WHERE organization_id = '${o}'`)
      t.equal(await call('GET', `/organizations/${o}`), 403, 'without the second factor that is required')
    }
    t.equal(await call('DELETE', `${members}/${person.id}`), 204, role)
    t.equal(await call('GET', `/organizations/${o}`), 404, `${role} has left`)
  }
})

t.test('OA-15: every authorization shows the consent page: also the second time, also on request', async (t) => {
  const browser = await signedIn()
  for (let i = 0; i < 3; i++) {
    const page = await ask({}, browser)
    t.ok(isConsent(page))
    t.ok((await browser.decide(page, 'allow')).searchParams.has('code'))
  }
  t.equal(errorIn(t, await ask({ prompt: 'none' }, browser)), 'consent_required')
  for (const prompt of ['consent', 'select_account']) t.ok(isConsent(await ask({ prompt }, browser)), prompt)
  for (const more of ['&approval_prompt=auto', '&decision=allow', '&consent=1']) {
    t.ok(isConsent(await ask({}, browser, more)), more)
  }
  t.ok(isSignIn(await ask()))
})

t.test('OA-16: the page names client, redirect target, scopes and organizations, and no name can change it', async (t) => {
  const page = await ask({ scope: 'secret:read secret:purge' }, rosas)
  for (const text of [
    'Command line', '127.0.0.1:5555', 'Read encrypted secrets', 'secret:purge', 'Nimbus', rosa.email
  ]) {
    t.ok(page.text.includes(text), text)
  }
  t.notMatch(page.text, /not part of Strongroom/)
  const names = [
    '<img src=x onerror=alert(1)>', '"><script>alert(1)</script>', "'onmouseover='alert(1)", '&lt;b&gt;',
    'x'.repeat(255), 'Strongroom\u202e!tseuqer a si siht', 'a\u2066b\u2069c\u200f',
    'a\r\nb\u2028c\u0000'.replace('\0', ''), '\u{e0041}\u00ad\ufeffz'
  ]
  for (const [i, name] of names.entries()) {
    await createClient(service.database.db, { id: `named-${i}`, name, redirect_uris: [WEB] })
    for (const browser of [stranger, rosas]) {
      const { text, status } = await ask({ client_id: `named-${i}`, redirect_uri: WEB }, browser)
      t.equal(status, 200)
      t.notMatch(text, /<img|<script|onmouseover='|<b>/)
      t.notMatch(text.replace(/[\n]/g, ''), /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u, `name ${i}`)
      if (browser === rosas) t.match(text, /not part of Strongroom/, 'a registered client is marked')
    }
  }
  t.match(
    (await ask({ client_id: 'named-0', redirect_uri: WEB }, rosas)).text, /&#60;img src=x onerror=alert\(1\)&#62;/
  )
  await t.rejects(
    createClient(service.database.db, { id: 'long', name: 'x'.repeat(10_240), redirect_uris: [WEB] }),
    'a name has an end'
  )
  const nasty = await service.organization()
  await service.sql(`UPDATE organization_counters SET name = '<b>\u202eorg</b>' WHERE organization_id = '${nasty.organization}'`)
  const person = await makePerson(service, { [nasty.organization]: 'owner' })
  await service.write(`UPDATE users SET name = '<i>\u202ename</i>' WHERE id = ${person.id}`)
  const theirs = (await ask({}, await signedIn(person))).text
  t.notMatch(theirs, /<b>|<i>|\u202e/)
  t.match((await ask({ client_id: 'app', redirect_uri: 'com.example.app:/cb' }, rosas)).text, /com\.example\.app:/)
})

t.test('OA-17: a request is decided once, in its own session, within ten minutes, as it was asked', async (t) => {
  const decide = async (browser: Visitor, form: ReturnType<typeof formIn>, changes: Record<string, string> = {}) =>
    browser.send(form, { decision: 'allow', ...changes })
  let before = await codes()
  const page = await ask({ scope: 'project:read' }, rosas)
  t.equal((await decide(rosas, formIn(page))).status, 303)
  t.equal(await codes(), ++before)
  for (const decision of ['allow', 'deny']) isRefusal(t, await decide(rosas, formIn(page), { decision }))

  const others = await signedIn()
  const tokenOf = async (browser: Visitor) =>
    formIn(await browser.open('/account')).fields.find(([name]) => name === 'form_token')![1]
  isRefusal(t, await decide(others, formIn(await ask({}, rosas)), { form_token: await tokenOf(others) }))
  const eve = await signedIn(await makePerson(service, { [nimbus.organization]: 'owner' }))
  isRefusal(t, await decide(eve, formIn(await ask({}, rosas)), { form_token: await tokenOf(eve) }))
  for (const request of ['', 'x', 'A'.repeat(43), '\0', "' OR 1=1 --"]) {
    isRefusal(t, await decide(rosas, formIn(await ask({}, rosas)), { request }), [request])
  }

  const late = formIn(await ask({}, rosas))
  await service.write("UPDATE oauth_requests SET expires_at = now() - interval '1 second'")
  isRefusal(t, await decide(rosas, late))
  const [life] = await service.sql('SELECT 1').then(async () => {
    await ask({}, rosas)
    return service.sql(
      "SELECT bool_and(expires_at BETWEEN now() + interval '9 minutes' AND now() + interval '10 minutes') AS ok FROM oauth_requests WHERE expires_at > now()"
    )
  })
  t.equal(life!.ok, true)

  // The next person who signs in with this browser cannot decide the previous person's request.
  const shared = await signedIn()
  const left = formIn(await ask({}, shared))
  shared.jar.delete('session')
  await shared.signIn(await shared.open('/account'), rosa.email, rosa.password)
  isRefusal(t, await decide(shared, left, { form_token: await tokenOf(shared) }))
  // A browser that is signed out cannot decide a request.
  const gone = await signedIn()
  const form = formIn(await ask({}, gone))
  await service.write(
    `UPDATE sessions SET expires_at = now() WHERE token_hash = sha256('${gone.jar.get('session')}'::bytea)`
  )
  isRefusal(t, await decide(gone, form))
  t.equal(await codes(), before)

  const answers = await Promise.all(Array.from({ length: 2 }).fill(formIn(await ask({}, rosas))).map((one) =>
    decide(rosas, one as ReturnType<typeof formIn>)))
  t.strictSame(answers.map(({ status }) => status).sort(), [303, 400], 'of two at once, one')
  t.equal(await codes(), ++before)

  const tampered = await decide(rosas, formIn(await ask({ scope: 'project:read' }, rosas)), {
    scope: '*',
    redirect_uri: 'https://evil.example/',
    client_id: 'web',
    state: 'forged',
    code_challenge: 'A'.repeat(43),
    code_challenge_method: 'plain',
    user_id: '1'
  })
  const back = new URL(tampered.headers.get('location')!)
  t.strictSame([back.origin + back.pathname, back.searchParams.get('state')], [CALLBACK, 'state'])
  t.equal((await exchange(back.searchParams.get('code'))).body.scope, '')
  before++

  // No browser is redirected to a client that was disabled while the page was open.
  await createClient(service.database.db, { id: 'closing', name: 'Closing', redirect_uris: [WEB] })
  const open = await ask({ client_id: 'closing', redirect_uri: WEB }, rosas)
  await service.write("UPDATE oauth_clients SET disabled_at = now() WHERE id = 'closing'")
  isRefusal(t, await decide(rosas, formIn(open)))
  t.equal(await codes(), before)
})

/** Headers that a page of the service in this browser would not send. */
const FOREIGN: [label: string, headers: Record<string, string>][] = [
  ['says nothing of where it comes from', {}], ['null', { origin: 'null' }], [
    'another origin', { origin: 'https://evil.example' }
  ], ['another port', { origin: 'http://127.0.0.1:1' }],
  [
    'https', { origin: address.replace('http:', 'https:') }
  ], ['a prefix', { origin: `${address}.evil.example` }], ['cross-site', { 'sec-fetch-site': 'cross-site' }],
  ['cross-site, with our origin', { 'sec-fetch-site': 'cross-site', origin: address }], [
    'same-site', { 'sec-fetch-site': 'same-site', origin: address }
  ], ['none', { 'sec-fetch-site': 'none', origin: address }],
  [
    'two answers', { 'sec-fetch-site': 'same-origin, cross-site' }
  ], ['referrer alone', { referer: `${address}/oauth/authorize` }]
]

t.test('an application has 100 grants of a person: one more ends its oldest, with what was made through that', async (t) => {
  const { organization: o } = await service.organization()
  const [person, other] = [await makePerson(service, { [o]: 'owner' }), await makePerson(service, { [o]: 'owner' })]
  const web = await createGrant(service.database.db, { user_id: person.id, client_id: 'web', scopes: ['project:read'] })
  const oldest = await issuePair(service, person, ['api-token:create', 'project:read'])
  const others = await issuePair(service, other, ['project:read'])
  const made = await service.inject({
    method: 'POST',
    url: `/api/v1/organizations/${o}/api-keys`,
    headers: { authorization: `Bearer ${oldest.access}` },
    payload: { name: 'CI', abilities: ['project:read'], expires_at: new Date(Date.now() + 3_600_000).toISOString() }
  })
  t.equal(made.status, 201)
  const copies = (many: number) => service.write(`INSERT INTO oauth_grants
    (id, user_id, client_id, scopes, expires_at) OVERRIDING SYSTEM VALUE
    SELECT id + 1000 * n, user_id, client_id, scopes, expires_at FROM oauth_grants, generate_series(1, ${many}) n
    WHERE id = ${oldest.grant}`)
  const live = async () => (await service.sql(`SELECT FROM oauth_grants
    WHERE user_id = ${person.id} AND client_id = 'dotenv-cli' AND revoked_at IS NULL`)).length
  const alive = () => Promise.all([oldest.access, made.body.token as string, others.access].map(async (token) =>
    (await api(`/${o}/projects`, { authorization: `Bearer ${token}` })).status))
  const lastEvents = async () => service.sql(`SELECT action, details FROM audit_events WHERE organization_id = '${o}'
    ORDER BY seq DESC LIMIT 2`)

  await copies(MAX_GRANTS - 2)
  const one = await signedIn(person)
  await authorize(address, person, {}, one)
  t.strictSame([await live(), await alive()], [MAX_GRANTS, [200, 200, 200]])
  await authorize(address, person, {}, one)
  t.strictSame([await live(), await alive()], [MAX_GRANTS, [401, 401, 200]])
  const client = 'dotenv-cli'
  const ended = { client, grants: 1, grant_ids: String(oldest.grant), tokens: 1, token_ids: made.body.api_key.id }
  t.match(await lastEvents(), [{ action: 'oauth.grant' }, { action: 'oauth.revoke', details: ended }])
  const pages: Seen[] = []
  for (let i = 0; i < (LONG ? 10 : 4); i++) pages.push(await ask({}, one))
  const agreed = await Promise.all(pages.map((page) => one.send(formIn(page), { decision: 'allow' })))
  // On a busy machine, a decision may wait too long for the others.
  t.strictSame([...new Set(agreed.map(({ status }) => status))].filter((status) => status !== 503), [303])
  t.equal(await live(), MAX_GRANTS, 'of those who agree at once, each counts the ones before')

  // Older grants, from before the limit existed.
  await service.sql(`DELETE FROM oauth_grants WHERE user_id = ${person.id} AND id > ${oldest.grant}
    AND id <= ${oldest.grant} + ${1000 * MAX_GRANTS}`)
  await copies(3 * MAX_GRANTS)
  const before = await live()
  await authorize(address, person, {}, one)
  t.equal(await live(), MAX_GRANTS)
  const [, revoke] = await lastEvents() as { details: { grants: number, grant_ids: string } }[]
  t.strictSame([revoke!.details.grants, revoke!.details.grant_ids.split(' ').length], [before + 1 - MAX_GRANTS, 50])
  t.same(
    await service.sql(`SELECT revoked_at FROM oauth_grants WHERE id = ${web}`), [{ revoked_at: null }],
    'another application keeps what it was granted'
  )
})

t.test('a session keeps its 20 newest requests, so that what ends it takes few along', async (t) => {
  const browser = await signedIn()
  const first = await ask({}, browser)
  const second = await ask({}, browser)
  for (let i = 0; i < 19; i++) await ask({}, browser)
  t.equal((await browser.send(formIn(first), { decision: 'deny' })).status, 400)
  t.equal((await browser.send(formIn(second), { decision: 'deny' })).status, 303)
})

t.test('OA-18, CR-47: a decision, and every other form, comes from our page in this browser', async (t) => {
  const before = await codes()
  const send = async (
    path: string, fields: Record<string, string>, headers: Record<string, string>, jar = rosas.jar
  ) => fetch(address + path, {
    method: 'POST',
    redirect: 'manual',
    body: new URLSearchParams(fields),
    headers: { cookie: [...jar].map((pair) => pair.join('=')).join('; '), ...headers }
  })
  const sent = (page: Seen, more: Record<string, string> = {}) =>
    ({ ...Object.fromEntries(formIn(page).fields), ...more })
  const outside = visitor(address)
  const signIn = await outside.open('/account')
  const decision = await ask({}, rosas)
  const forms: [path: string, fields: Record<string, string>, jar: Map<string, string>][] = [
    ['/oauth/authorize/decision', sent(decision, { decision: 'allow' }), rosas.jar],
    ['/oauth/sign-in', sent(signIn, { email: rosa.email, password: rosa.password }), outside.jar],
    ['/account/sign-out', sent(await rosas.open('/account'), { where: 'everywhere' }), rosas.jar],
    ['/account/password', sent(
      await rosas.open('/account/password'), { current: rosa.password, password: 'another long password' }
    ), rosas.jar],
    ['/account/set-password/x', sent(signIn, { password: 'another long password' }), outside.jar],
    ['/account/forgot-password', sent(signIn, { email: rosa.email }), outside.jar],
    ['/account/reset-password/x', sent(signIn, { password: 'another long password' }), outside.jar]
  ]
  const ours = { 'sec-fetch-site': 'same-origin' }
  const strangersToken =
    formIn(await visitor(address).open('/account')).fields.find(([name]) => name === 'form_token')![1]
  for (const [which, [path, fields, jar]] of forms.entries()) {
    const refused = async (
      label: string, ...[some, headers, cookies]: [Record<string, string>, Record<string, string>, Map<string, string>?]
    ) => {
      const answer = await send(path, some, headers, cookies ?? jar)
      t.strictSame([
        answer.status, answer.headers.get('location'),
        answer.headers.getSetCookie().filter((one) => one.startsWith('session'))
      ], [403, null, []], `${path}: ${label}`)
    }
    for (const [label, headers] of byTurns(FOREIGN, which, 3)) await refused(label, fields, headers)
    const { form_token, ...rest } = fields
    await refused('no token', rest, ours)
    for (const [label, wrong] of byTurns([
      ['empty', ''], ['wrong', 'A'.repeat(43)], ['shorter', form_token!.slice(1)], ['longer', `${form_token}A`],
      ['of another browser', strangersToken], ['the cookie itself', [...jar.values()].at(-1)!]
    ] as const, which, 3)) {
      await refused(`token ${label}`, { ...fields, form_token: wrong }, ours)
    }
    await refused('no cookie', fields, ours, new Map())
    await refused('token in the query', rest, ours)
    t.equal(
      (await send(`${path}?form_token=${form_token}`, rest, ours, jar)).status, 403, `${path}: token in the query`
    )
    // The service reads only forms. It does not read other types that a page of another site can send with fetch, or
    // JSON.
    const cookie = [...jar].map((pair) => pair.join('=')).join('; ')
    const text = new URLSearchParams(fields).toString()
    for (const type of byTurns([
      'application/json', 'text/plain', 'multipart/form-data; boundary=x', 'application/xml',
      'application/x-www-form-urlencoded-not'
    ], which, 3)) {
      const answer = await fetch(address + path, {
        method: 'POST',
        body: type === 'application/json' ? JSON.stringify(fields) : text,
        headers: { cookie, ...ours, 'content-type': type }
      })
      t.equal(answer.status, 415, `${path}: ${type}`)
    }
    t.equal(
      (await fetch(address + path, { method: 'POST', headers: { cookie, ...ours } })).status, 403, `${path}: empty`
    )
    t.not(
      (await fetch(`${address}${path}?${text}`, { headers: { cookie, ...ours }, redirect: 'manual' })).status, 303,
      `${path}: GET changes nothing`
    )
  }
  t.ok((await rosas.open('/account')).text.includes(rosa.email), 'still signed in')
  t.equal(await codes(), before)
  // The same forms with correct headers succeed. A browser may send only the origin.
  t.equal((await send('/oauth/authorize/decision', forms[0]![1], { origin: address })).status, 303)
  t.equal((await send('/oauth/sign-in', forms[1]![1], { origin: 'null', ...ours }, outside.jar)).status, 303)
  t.equal(await codes(), before + 1)
})

t.test('CR-47: what takes JSON takes no forms', async (t) => {
  for (const type of ['application/x-www-form-urlencoded', 'text/plain', 'multipart/form-data; boundary=x']) {
    const answer = await fetch(
      `${address}/api/v1/${nimbus.organization}/projects`,
      { method: 'POST', body: 'name=x', headers: { authorization: `Bearer ${nimbus.token}`, 'content-type': type } }
    )
    t.equal(answer.status, 415, type)
  }
})

t.test('OA-19: after every form the browser goes on with 303', async (t) => {
  const person = await makePerson(service, { [nimbus.organization]: 'owner' })
  const browser = visitor(address)
  const statuses: [number, string | null][] = []
  const note = (seen: Seen) => statuses.push([seen.status, seen.headers.get('location')?.split('?')[0] ?? null])
  note(await browser.send(formIn(await ask({}, browser)), { email: person.email, password: person.password }))
  note(await browser.send(formIn(await ask({}, browser)), { decision: 'allow' }))
  note(await browser.send(formIn(await ask({}, browser)), { decision: 'deny' }))
  note(await browser.send(
    formIn(await browser.open('/account/password')), { current: person.password, password: 'another long password' }
  ))
  note(await browser.send(formIn(await browser.open('/account')), { where: 'here' }))
  t.strictSame(
    statuses, [[303, '/oauth/authorize'], [303, CALLBACK], [303, CALLBACK], [303, '/account'], [303, '/console/']]
  )
})

t.test('OA-20: iss is the issuer of the metadata, byte for byte, in success and in error', async (t) => {
  const metadata = await (await fetch(`${address}/.well-known/oauth-authorization-server`)).json() as { issuer: string }
  for (const decision of ['allow', 'deny'] as const) {
    t.equal((await rosas.decide(await ask({}, rosas), decision)).searchParams.get('iss'), metadata.issuer)
  }
  t.equal(new URL((await ask({ scope: 'nonsense' })).headers.get('location')!).searchParams.get('iss'), metadata.issuer)
  // The address in the Host header makes no difference.
  const spoofed = await raw(authorizationUrl(CHALLENGE, { prompt: 'none' }), {
    host: 'evil.example',
    'x-forwarded-host': 'evil.example',
    'x-forwarded-proto': 'https',
    forwarded: 'host=evil.example'
  })
  t.equal(new URL(spoofed.headers.get('location')!).searchParams.get('iss'), metadata.issuer)
})

t.test('OA-21, CR-45: no page can be framed, kept, or given script', async (t) => {
  const consent = await ask({ client_id: 'web', redirect_uri: WEB }, rosas)
  const used = formIn(await ask({}, rosas))
  await rosas.send(used, { decision: 'deny' })
  const outside = visitor(address)
  const pages: Record<string, [Seen, number, string]> = {
    'sign-in': [await ask(), 200, "'self'"],
    'sign-in with a wrong password': [
      await outside.send(formIn(await outside.open('/account')), { email: 'x@nimbus.example', password: 'wrong' }), 422,
      "'self'"
    ],
    'sign-in with what no database takes': [
      await outside.send(formIn(await outside.open('/account')), { email: 'x\0@nimbus.example', password: 'x\0' }), 422,
      "'self'"
    ],
    consent: [consent, 200, "'self' https://client.example.com"],
    'consent, loopback': [await ask({}, rosas), 200, "'self' http://127.0.0.1:5555"],
    'consent, loopback in IPv6': [
      await ask({ client_id: 'native', redirect_uri: 'http://[::1]:5555/callback' }, rosas), 200, "'self' http://*:5555"
    ],
    'consent, app': [
      await ask({ client_id: 'app', redirect_uri: 'com.example.app:/cb' }, rosas), 200, "'self' com.example.app:"
    ],
    'refused request': [await ask({ client_id: 'x' }), 400, "'self'"],
    'used request': [await rosas.send(used, { decision: 'allow' }), 400, "'self'"],
    'foreign form': [await stranger.send({ ...used, fields: [] }), 403, "'self'"],
    'no form': [await stranger.request(
      '/oauth/sign-in', { method: 'POST', body: '{}', headers: { 'content-type': 'application/json' } }
    ), 415, "'self'"],
    'long form': [await stranger.request(
      '/oauth/sign-in', { method: 'POST', body: new URLSearchParams({ x: 'x'.repeat(70_000) }) }
    ), 413, "'self'"],
    'long address': [await stranger.open(`/oauth/authorize?${'x'.repeat(8200)}`), 414, "'self'"],
    account: [await rosas.open('/account'), 200, "'self'"],
    password: [await rosas.open('/account/password'), 200, "'self'"],
    'unknown link': [await stranger.open('/account/set-password/unknown'), 404, "'self'"]
  }
  const nonces = new Set<string>()
  for (const [name, [{ status, headers, text }, expected, formAction]] of Object.entries(pages)) {
    t.equal(status, expected, name)
    t.match(Object.fromEntries(headers), {
      'content-type':
        'text/html; charset=utf-8',
      'x-frame-options': 'DENY',
      'cache-control': 'no-store',
      'referrer-policy':
        'no-referrer',
      'x-content-type-options': 'nosniff',
      'cross-origin-resource-policy': 'same-origin'
    }, name)
    const policy = headers.get('content-security-policy')!
    const [, nonce = ''] = /'nonce-([A-Za-z0-9_-]{43})'/.exec(policy) ?? []
    nonces.add(nonce)
    t.equal(
      policy,
      `default-src 'none'; style-src 'nonce-${nonce}'; img-src 'self'; form-action ${formAction}; base-uri 'none'; frame-ancestors 'none'`,
      name
    )
    t.equal(text.split(`nonce="${nonce}"`).length, 2, `${name}: one style, by its nonce`)
    t.notMatch(text, /<script| style=| on[a-z]+="|javascript:|http-equiv|https?:\/\/(?!client\.example)/i, name)
  }
  t.equal(nonces.size, Object.keys(pages).length, 'a nonce for every page')
  for (const redirect of [
    await ask({ prompt: 'none' }), await rosas.send(formIn(await ask({}, rosas)), { decision: 'allow' })
  ]) {
    t.match(
      Object.fromEntries(redirect.headers),
      { 'cache-control': 'no-store', 'x-frame-options': 'DENY', 'referrer-policy': 'no-referrer' }
    )
    t.match(redirect.headers.get('content-security-policy'), /frame-ancestors 'none'/)
  }
})

t.test('OA-22: no other origin reads a page, even one that may call the API', async (t) => {
  const origin = 'https://console.example.com'
  const sharing = await startIsolatedApp(t, { CORS_ORIGINS: origin })
  const at = await sharing.app.listen({ host: '127.0.0.1', port: 0 })
  t.equal(
    (await fetch(`${at}/api/v1/user`, { headers: { origin } })).headers.get('access-control-allow-origin'), origin,
    'the API is shared'
  )
  for (const [which, base] of [address, at].entries()) {
    for (const [path, methods] of byTurns(Object.entries({
      [authorizationUrl(CHALLENGE)]: ['GET', 'HEAD'],
      [authorizationUrl(CHALLENGE, { prompt: 'none' })]: ['GET'],
      '/oauth/authorize': ['GET'],
      '/oauth/authorize/decision': ['POST'],
      '/oauth/sign-in': ['POST'],
      '/account': ['GET'],
      '/account/password': ['GET', 'POST'],
      '/account/sign-out': ['POST'],
      '/account/set-password/x': ['GET', 'POST']
    }), which, 2)) {
      for (const method of [...methods, 'OPTIONS']) {
        const headers = {
          origin,
          'access-control-request-method': 'POST',
          'access-control-request-headers': 'content-type',
          'access-control-request-private-network': 'true'
        }
        const answer = await fetch(base + path, { method, headers, redirect: 'manual' })
        t.strictSame(
          [...answer.headers.keys()].filter((name) => name.startsWith('access-control')), [],
          `${method} ${path.slice(0, 40)}`
        )
        t.ok(answer.status < 500, `${method} ${path.slice(0, 40)}: ${answer.status}`)
      }
    }
  }
})

t.test('OA-23: request objects are refused, and no address in a parameter is ever asked', async (t) => {
  let connections = 0
  const canary = http.createServer((_request, response) => response.end('{}')).on(
    'connection', () => connections++
  ).listen(0, '127.0.0.1')
  t.teardown(() => canary.close())
  await new Promise((resolve) => canary.once('listening', resolve))
  const trap = `http://127.0.0.1:${(canary.address() as AddressInfo).port}/x`
  await refuses(t, [
    [
      { request: 'eyJhbGciOiJub25lIn0.e30.' }, 'request_not_supported'
    ], [{ request: trap }, 'request_not_supported'], [{ request_uri: trap }, 'request_uri_not_supported'],
    [{ request_uri: 'urn:ietf:params:oauth:request_uri:x' }, 'request_uri_not_supported'], [
      { request: 'x', request_uri: trap }, 'request_not_supported'
    ], [{ request_uri: 'file:///etc/passwd' }, 'request_uri_not_supported']
  ])
  const more = {
    registration: trap,
    claims: trap,
    resource: trap,
    logo_uri: trap,
    jwks_uri: trap,
    sector_identifier_uri: trap,
    client_uri: trap,
    initiate_login_uri: trap
  }
  const page = await ask(more, rosas)
  t.ok(isConsent(page))
  await rosas.decide(page, 'allow')
  isRefusal(t, await ask({ client_id: trap, redirect_uri: trap }, rosas), [trap])
  t.equal(connections, 0)
  await fetch(trap)
  t.equal(connections, 1, 'the canary sings')
})

t.test('OA-24: answers are in the query, never anywhere else', async (t) => {
  await refuses(t, [
    'fragment', 'form_post', 'jwt', 'query.jwt', 'fragment.jwt', 'web_message', 'QUERY', 'query '
  ].map((response_mode) => [{ response_mode }, 'invalid_request']))
  t.ok(isConsent(await ask({ response_mode: 'query' }, rosas)))
  t.ok(isConsent(await ask({ response_mode: '' }, rosas)))
})

t.test('OA-25: a code is 256 random bits, stands nowhere in plain, lives a minute, is bound to its request', async (t) => {
  const { code, verifier } = await authorize(address, rosa, { scope: 'project:read' }, rosas)
  t.match(code, /^dotenv_ac_[0-9A-Za-z]{43}[0-9A-Za-z]{6}$/)
  const tables = await service.sql(
    "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
  )
  t.ok(tables.length > 10)
  const holding = async (text: string) => {
    const found: string[] = []
    for (const { table_name } of tables) {
      if ((await service.sql(
        `SELECT 1 FROM "${String(table_name)}" AS x WHERE x::text LIKE '%${text}%' LIMIT 1`
      )).length > 0) {
        found.push(String(table_name))
      }
    }
    return found
  }
  t.strictSame(await holding(code), [])
  t.strictSame(await holding(code.slice(10, 40)), [])
  t.strictSame(await holding(Buffer.from(code).toString('hex')), [])
  t.strictSame(await holding(VERIFIER), [])
  t.strictSame(await holding(rosas.jar.get('session')!), [], 'nor does the session')
  t.ok((await holding(rosa.email)).includes('users'), 'the search finds what is there')
  t.notOk(service.logs.some((line) =>
    line.includes(code) || line.includes(rosas.jar.get('session')!)), 'nor in the log')

  const [row] = await service.sql(
    'SELECT encode(code_hash, \'hex\') AS hex, encode(code_hash, \'base64\') AS base64, expires_at - now() AS left, extract(epoch FROM expires_at - now()) AS seconds FROM oauth_codes ORDER BY expires_at DESC LIMIT 1'
  )
  t.ok(Number(row!.seconds) > LIFETIMES.code - 20 && Number(row!.seconds) <= LIFETIMES.code && LIFETIMES.code === 60)
  for (const dumped of [row!.hex, row!.base64, `\\x${row!.hex}`, `dotenv_ac_${String(row!.hex).slice(0, 49)}`]) {
    t.equal(
      (await exchange(String(dumped), verifier)).body.error, 'invalid_grant',
      'what is in a dump of the database is worth nothing'
    )
  }

  for (const [other, changes] of Object.entries<Record<string, string>>({
    'another client': { client_id: 'native' },
    'another address': {
      redirect_uri: 'http://127.0.0.1:5556/callback'
    },
    'another verifier': { code_verifier: pkce().verifier }
  })) t.equal((await exchange(code, verifier, changes)).body.error, 'invalid_grant', other)
  t.equal((await exchange(code, verifier)).body.scope, 'project:read', 'and is still good for the one who asked')

  const late = await authorize(address, rosa, {}, rosas)
  await service.write('UPDATE oauth_codes SET expires_at = now() WHERE used_at IS NULL')
  t.equal((await exchange(late.code, late.verifier)).body.error, 'invalid_grant')
  const many = await Promise.all(Array.from({ length: 8 }, async () =>
    (await authorize(address, rosa, {}, rosas)).code))
  t.equal(new Set(many).size, 8)
})

t.test('OA-26: signing in and out never redirects to another origin', async (t) => {
  const { hostname } = new URL(address)
  const heads = ['//evil.example', '/\\evil.example', '\\\\evil.example', 'https:evil.example', 'https://evil.example', '/%09/evil.example', '/\t/evil.example', '///evil.example', '@evil.example', `${hostname}@evil.example`,
    '.evil.example', ':80@evil.example', '/..//evil.example', '?/../../evil.example', '#@evil.example', 'javascript:alert(1)', '%2f%2fevil.example', '\r\nLocation: https://evil.example', '/@evil.example', '\u2028//evil.example']
  const forms = [
    (x: string) => x, (x: string) => `client_id=x&next=${x}`, (x: string) => `redirect_uri=${x}`,
    (x: string) => ` ${x}`, (x: string) => encodeURIComponent(x), (x: string) => `&${x}`, (x: string) => `?${x}`,
    (x: string) => `/../..${x}`, (x: string) => `\n${x}`, (x: string) => x.toUpperCase()
  ]
  const variants = forms.flatMap((make) => heads.map(make))
  t.ok(variants.length >= 200)
  // Every head with every form in the long form, otherwise a tenth of the pairs.
  const tried = variants.filter((_, i) => LONG || (i + Math.floor(i / heads.length)) % 10 === 0)
  // The attempts are independent, so four browsers share the work.
  await Promise.all(Array.from({ length: 4 }, async (_, i) => {
    const browser = visitor(address)
    const page = await browser.open('/account')
    for (const query of tried.filter((_, j) => j % 4 === i)) {
      browser.jar.delete('session')
      const fields: Record<string, string> = {
        email: rosa.email,
        password: rosa.password,
        query,
        next: query,
        return_to: query,
        continue: query,
        redirect: query
      }
      const answer = await browser.send(formIn(page), fields)
      const location = answer.headers.get('location') ?? ''
      const url = new URL(location, address)
      if (answer.status !== 303 || !/^\/(account|oauth\/authorize\?[\x21-\x7e]*)$/.test(location) ||
        location.includes('#') || url.origin !== address || url.pathname !== location.split('?')[0]) {
        t.fail(`${JSON.stringify(query)}: ${answer.status} ${location}`)
      }
      const landed = await browser.open(location)
      if (landed.headers.get('location') !== null || landed.status >= 500) {
        t.fail(`${JSON.stringify(query)}: on to ${landed.status} ${landed.headers.get('location')}`)
      }
    }
  }))
  for (const name of sample(['next', 'return_to', 'continue', 'redirect_uri', 'url'], 2)) {
    const more = `?${name}=${encodeURIComponent('https://evil.example/')}`
    const browser = await signedIn()
    const page = await browser.open(`/account${more}`)
    // A nonce is random, so it can contain any word.
    t.notMatch(page.text.replaceAll(/nonce="[^"]*"/g, ''), /evil/)
    const out = await browser.send(
      { ...formIn(page), action: `/account/sign-out${more}` }, { where: 'here', [name]: 'https://evil.example/' }
    )
    t.strictSame([out.status, out.headers.get('location')], [303, '/console/?signed-out'])
  }
  const long = visitor(address)
  const answer = await long.send(
    formIn(await long.open('/account')), { email: rosa.email, password: rosa.password, query: 'x'.repeat(9000) }
  )
  t.equal(answer.headers.get('location'), '/account', 'what this service would not take is not tried')
})

t.test('OA-86: a bearer token opens no page, and a session no part of the API', async (t) => {
  const { access_token } = await tokensFor(address, rosa)
  for (const token of [access_token, nimbus.token]) {
    const bearer = visitor(address, { authorization: `Bearer ${token}`, 'sec-fetch-site': 'same-origin' })
    t.ok(isSignIn(await bearer.open('/account')))
    t.ok(isSignIn(await ask({}, bearer)))
    t.equal((await bearer.open('/account/password')).headers.get('location'), '/account')
    t.equal((await bearer.send(
      { action: '/oauth/authorize/decision', fields: [], buttons: [] }, { decision: 'allow' }
    )).status, 403)
  }
  const session = rosas.jar.get('session')!
  t.ok((await rosas.open('/account')).text.includes(rosa.email))
  for (const path of [
    '/user', '/organization', `/${nimbus.organization}/projects`, `/organizations/${nimbus.organization}/api-keys`
  ]) {
    for (const headers of [
      { cookie: `session=${session}` }, { cookie: `session=${access_token}` }, { authorization: `Bearer ${session}` },
      { authorization: `Cookie ${session}` }, { cookie: `authorization=Bearer ${access_token}` }
    ] as Record<string, string>[]) {
      const answer = await api(path, headers)
      t.strictSame([answer.status, answer.headers.getSetCookie()], [401, []], `${path} ${Object.keys(headers).join()}`)
    }
  }
  t.equal((await fetch(`${address}/api/oauth/token`, {
    method: 'POST',
    headers: { cookie: `session=${session}` },
    body: new URLSearchParams({ grant_type: 'authorization_code', client_id: 'dotenv-cli' })
  })).status, 400)
})

t.test('CR-44: a session is a new 256-bit name at every sign-in, kept as a hash, for this host alone', async (t) => {
  const secure = await startIsolatedApp(t, { PUBLIC_URL: 'https://secrets.example.com' })
  const at = await secure.app.listen({ host: '127.0.0.1', port: 0 })
  const person = await makePerson(secure)
  const browser = visitor(at)
  const page = await browser.open('/account')
  const flags = (seen: Seen) =>
    seen.headers.getSetCookie().map((one) => one.replace(/=[A-Za-z0-9_-]{43};/, '=…;').split('; ').sort().join('; '))
  const expected = (name: string, age = 7 * 24 * 3600, site = 'Lax') =>
    `HttpOnly; Max-Age=${age}; Path=/; SameSite=${site}; Secure; __Host-${name}=…`
  t.strictSame(flags(page), [expected('browser')])
  const signIn = () => browser.send(formIn(page), { email: person.email, password: person.password })
  t.strictSame(flags(await signIn()), [expected('session'), expected('device', 90 * 24 * 3600, 'Strict')])
  const first = browser.jar.get('__Host-session')!
  t.equal(first.length, 43)
  t.equal((await secure.sql(`SELECT 1 FROM sessions WHERE token_hash = sha256('${first}'::bytea)`)).length, 1)

  // A new sign-in sets another session cookie, and the old one is no longer valid.
  const again = await browser.send({
    ...formIn(page), fields: formIn(await browser.open('/account')).fields.filter(([name]) => name === 'form_token')
  }, { email: person.email, password: person.password })
  t.equal(again.status, 303)
  const second = browser.jar.get('__Host-session')!
  t.not(second, first)
  const opens = async (cookie: string) =>
    (await (await fetch(`${at}/account`, { headers: { cookie } })).text()).includes(person.email)
  t.ok(await opens(`__Host-session=${second}`))
  t.notOk(await opens(`__Host-session=${first}`))

  // The service does not adopt a session cookie that an attacker has planted.
  const planted = 'A'.repeat(43)
  const victim = visitor(at)
  victim.jar.set('__Host-session', planted)
  await victim.signIn(await victim.open('/account'), person.email, person.password)
  t.not(victim.jar.get('__Host-session'), planted)
  t.notOk(await opens(`__Host-session=${planted}`))

  // Only the exact name counts. Another host could set a cookie with another spelling of the prefix.
  for (const name of [
    'session', '%5F%5FHost-session', '__Host%2Dsession', '__host-session', '__Secure-session', '__Host-session[]'
  ]) {
    t.notOk(await opens(`${name}=${second}`), name)
  }
  for (const around of [
    `x=%; __Host-session=${second}`, `%=%; __Host-session=${second}`, `=; ;a;__Host-session=${second};b=c=d`
  ]) {
    t.ok(await opens(around), 'what others keep here, however it is written, does no harm')
  }
  for (const cookie of [
    '%', '%ff=%ff', '__Host-session', '__Host-session=', `__Host-session=${second}A`, `__Host-session="${second}"`,
    `__Host-session=${encodeURIComponent(`${second.slice(0, 42)}é`)}`
  ]) {
    const answer = await fetch(`${at}/account`, { headers: { cookie } })
    t.equal(answer.status, 200, cookie)
    t.notOk((await answer.text()).includes(person.email), cookie)
  }

  for (const [label, change] of [
    ['idle for 12 hours', "seen_at = now() - interval '12 hours 1 second'"], ['7 days old', 'expires_at = now()']
  ] as const) {
    victim.jar.clear()
    await victim.signIn(await victim.open('/account'), person.email, person.password)
    t.ok(await opens(`__Host-session=${victim.jar.get('__Host-session')}`))
    await secure.write(`UPDATE sessions SET ${change}`)
    t.notOk(await opens(`__Host-session=${victim.jar.get('__Host-session')}`), label)
  }
  victim.jar.clear()
  await victim.signIn(await victim.open('/account'), person.email, person.password)
  const [left] = await secure.sql(
    "SELECT max(expires_at) BETWEEN now() + interval '6 days 23 hours' AND now() + interval '7 days' AS ok FROM sessions"
  )
  t.equal(left!.ok, true)
  // A new password is a change of privilege, so the service sets a new session cookie.
  const used = victim.jar.get('__Host-session')!
  const changed = await victim.send(
    formIn(await victim.open('/account/password')), { current: person.password, password: 'another long password' }
  )
  t.strictSame(
    [changed.status, flags(changed)], [303, [expected('session'), expected('device', 90 * 24 * 3600, 'Strict')]]
  )
  t.notOk(await opens(`__Host-session=${used}`))
  const last = victim.jar.get('__Host-session')!
  const out = await victim.send(formIn(await victim.open('/account')), { where: 'here' })
  t.strictSame(
    out.headers.getSetCookie().map((one) => one.split('; ').sort().join('; ')),
    ['HttpOnly; Max-Age=0; Path=/; SameSite=Lax; Secure; __Host-session=']
  )
  t.notOk(await opens(`__Host-session=${last}`))
})

t.test('CR-44: a link to set a password ends the session that this browser had', async (t) => {
  const other = await makePerson(service)
  await createPasswordLink(service.database.db, hashToken('a-link'), other.id)
  const browser = await signedIn()
  const before = browser.jar.get('session')!
  t.equal((await browser.send(
    formIn(await browser.open('/account/set-password/a-link')), { password: 'another long password' }
  )).status, 303)
  t.ok((await browser.open('/account')).text.includes(other.email))
  t.notOk((await (await fetch(
    `${address}/account`, { headers: { cookie: `session=${before}` } }
  )).text()).includes(rosa.email))
})

t.test('OA-19, OA-20: below a path, forms, links and redirects stay below it', async (t) => {
  const base = 'https://example.com/secrets'
  const below = await startIsolatedApp(t, { PUBLIC_URL: base })
  const at = await below.app.listen({ host: '127.0.0.1', port: 0 })
  const person = await makePerson(below)
  const browser = visitor(at)
  const page = await browser.open(`/secrets${authorizationUrl(CHALLENGE)}`)
  t.equal(formIn(page).action, '/secrets/oauth/sign-in')
  const signedInAnswer = await browser.send(formIn(page), { email: person.email, password: person.password })
  t.match(signedInAnswer.headers.get('location'), /^\/secrets\/oauth\/authorize\?/)
  const consent = await browser.open(signedInAnswer.headers.get('location')!)
  t.equal(formIn(consent).action, '/secrets/oauth/authorize/decision')
  const back = await browser.decide(consent, 'allow')
  t.strictSame([back.origin + back.pathname, back.searchParams.get('iss')], [CALLBACK, base])
  const account = await browser.open('/secrets/account')
  t.match(account.text, /<a href="\/secrets\/account\/password"/)
  t.equal((await browser.send(formIn(account), { where: 'here' })).headers.get('location'), '/secrets/console/?signed-out')
})
