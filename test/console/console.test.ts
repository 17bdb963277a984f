// runs: one database
import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { brotliDecompressSync, gunzipSync } from 'node:zlib'
import t from 'tap'
import { CONSOLE_CLIENT, DAILY_SCOPES, PRIVILEGED_SECONDS } from '../../schemas/console.ts'
import { LIFETIMES, MAX_GRANTS } from '../../schemas/oauth.ts'
import { SCOPE_NAMES, type Scope } from '../../schemas/scopes.ts'
import { noun } from '../../src/commands/people/clients.ts'
import { resetSecondFactor } from '../../src/commands/people/users.ts'
import { createClient } from '../../src/repositories/people/oauth.ts'
import { earlier, startIsolatedApp, type TestApp } from '../helpers/app.ts'
import {
  authorizationUrl, CALLBACK, giveSecondFactor, makePerson, pkce, post, tokensFor, type Person
} from '../helpers/people.ts'
import { formIn, visitor, type Seen, type Visitor } from '../helpers/visitor.ts'

// This file has its own database, because it adds an OAuth client, which all organizations have.
const service = await startIsolatedApp(t)
const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
const nimbus = await service.organization()
const HOME = `${address}/console/`
const DAILY = DAILY_SCOPES.join(' ')
const PRIVILEGED = SCOPE_NAMES.filter((scope) => !DAILY_SCOPES.includes(scope))

const newcomer = () => makePerson(service, { [nimbus.organization]: 'owner' })
const isSignIn = ({ status, text }: Seen) => status === 200 && text.includes('action="/oauth/sign-in"')
const { challenge, verifier } = pkce()
const ask = (browser: Visitor, changes: Record<string, string | undefined> = {}) => browser.open(
  authorizationUrl(challenge, { client_id: CONSOLE_CLIENT, redirect_uri: HOME, scope: DAILY, ...changes })
)

async function signedIn (person: Person, browser = visitor(address)) {
  await browser.signIn(await browser.open('/account'), person.email, person.password)
  if (!browser.jar.has('session')) throw new Error('no session')
  return browser
}

/** The parameters in the URL with which the browser returned to the console. */
function returned ({ status, headers, text }: Seen): Record<string, string> {
  const location = headers.get('location') ?? ''
  if (status !== 303 || !location.startsWith(`${HOME}?`)) throw new Error(`${status} ${location} ${text}`)
  return Object.fromEntries(new URL(location).searchParams)
}

const redeem = (code: string | undefined, changes: Record<string, string> = {}) => post(address, '/api/oauth/token', {
  grant_type: 'authorization_code', code, code_verifier: verifier, client_id: CONSOLE_CLIENT, redirect_uri: HOME, ...changes
})

async function tokenOf (browser: Visitor, changes: Record<string, string | undefined> = {}) {
  const { body, text } = await redeem(returned(await ask(browser, changes)).code)
  if (typeof body?.access_token !== 'string') throw new Error(text)
  return body as { access_token: string, expires_in: number, scope: string, refresh_token?: string }
}

const call = (token: string, path = '/user', method = 'GET', payload?: object) => service.inject({
  method: method as 'GET', url: `/api/v1${path}`, headers: { authorization: `Bearer ${token}` }, ...(payload && { payload })
})

/** Moves the sign-ins of a person into the past. */
const age = (person: Person, seconds: number) => service.write(
  `UPDATE sessions SET ${earlier('expires_at', `${seconds} seconds`)} WHERE user_id = ${person.id}`
)
const grantsOf = async (person: Person) => service.sql(
  `SELECT id, scopes, revoked_at, expires_at FROM oauth_grants WHERE user_id = ${person.id} ORDER BY id`
)

t.test('CO-01: the console gets tokens without a page during the session, and one grant for all sign-ins', async (t) => {
  const person = await newcomer()
  const browser = visitor(address)
  const page = await ask(browser, { state: 'a b&c' })
  t.ok(isSignIn(page))
  t.match(page.text, 'to continue to <strong>Console</strong>')
  const after = await browser.signIn(page, person.email, person.password)
  const answer = returned(after)
  t.match(answer, { state: 'a b&c', iss: address })
  const { status, body } = await redeem(answer.code)
  t.equal(status, 200)
  t.strictSame(
    { ...body, access_token: '' },
    {
      access_token: '',
      token_type: 'Bearer',
      expires_in: LIFETIMES.access,
      scope: SCOPE_NAMES.filter((scope) => DAILY_SCOPES.includes(scope)).join(' ')
    }
  )
  t.equal((await call(body.access_token)).status, 200)
  for (let i = 0; i < 3; i++) t.equal((await call((await tokenOf(browser)).access_token)).status, 200)
  t.equal((await call(body.access_token)).status, 200, 'each tab has its own token')
  t.equal((await grantsOf(person)).length, 1)
  const granted = await service.sql(`SELECT details FROM personal_events WHERE user_id = ${person.id} AND action = 'oauth.grant'`)
  t.equal(granted.length, 1)
  t.equal((await redeem(answer.code)).body.error, 'invalid_grant', 'a code is used once')
  t.equal((await call(body.access_token)).status, 401, 'and a second use ends the tokens')
  t.equal((await grantsOf(person))[0]!.revoked_at, null)
})

t.test('CO-01: no other client is without a page, and none is the console', async (t) => {
  const person = await newcomer()
  const browser = await signedIn(person)
  await createClient(service.database.db, { id: 'console', name: 'Console', redirect_uris: ['/console/'] })
  for (const [client_id, redirect_uri] of [
    ['dotenv-cli', CALLBACK], ['swagger-ui', `${address}/docs/static/oauth2-redirect.html`], ['console', HOME]
  ] as const) {
    t.match((await ask(browser, { client_id, redirect_uri })).text, 'action="/oauth/authorize/decision"', client_id)
  }
  t.notOk(await createClient(service.database.db, { id: CONSOLE_CLIENT, name: 'C', redirect_uris: [CALLBACK] }), 'the id is taken')
  for (const redirect_uri of [
    HOME.slice(0, -1), `${HOME}?x=1`, `${HOME}#x`, `${HOME}a`, `${address}/console//`, `${address}/Console/`, `${address}/console/../`,
    `${address}/`, 'https://evil.example/console/', '/console/', undefined
  ]) {
    const { status, headers } = await ask(browser, { redirect_uri })
    t.strictSame([status, headers.get('location')], [400, null], redirect_uri ?? 'none')
  }
  const { code } = returned(await ask(browser))
  t.equal((await redeem(code, { client_id: 'console' })).body.error, 'invalid_grant')
  t.equal((await redeem(code, { redirect_uri: `${HOME}a` })).body.error, 'invalid_grant')
  t.equal((await redeem(code, { code_verifier: pkce().verifier })).body.error, 'invalid_grant')
  t.equal((await redeem(code)).status, 200)
})

t.test('CO-02: the console has no refresh token', async (t) => {
  const browser = await signedIn(await newcomer())
  const token = await tokenOf(browser)
  t.notOk('refresh_token' in token)
  const { body } = await post(address, '/api/oauth/token', {
    grant_type: 'refresh_token', refresh_token: token.access_token, client_id: CONSOLE_CLIENT
  })
  t.equal(body.error, 'invalid_grant')
})

t.test('CO-03: privileged scopes need max_age, a sign-in of the last five minutes, and live for five minutes', async (t) => {
  const person = await newcomer()
  const browser = await signedIn(person)
  for (const scope of PRIVILEGED) {
    for (const max_age of [undefined, '301', '3600']) {
      const answer = returned(await ask(browser, { scope: `${DAILY} ${scope}`, max_age }))
      t.match(answer, { error: 'invalid_request', error_description: /max_age must be at most 300/ }, scope)
    }
  }
  for (const scope of ['*', undefined]) t.equal(returned(await ask(browser, { scope })).error, 'invalid_request', 'all scopes')

  const scope = `${DAILY} secret:purge`
  const short = await tokenOf(browser, { scope, max_age: '300' })
  t.equal(short.expires_in, PRIVILEGED_SECONDS)
  const [{ left } = { left: 0 }] = await service.sql(`SELECT extract(epoch FROM access_expires_at - now())::int AS left
    FROM oauth_tokens WHERE grant_id = (SELECT max(id) FROM oauth_grants WHERE user_id = ${person.id})`)
  t.ok(Number(left) > 280 && Number(left) <= PRIVILEGED_SECONDS, String(left))
  t.match(short.scope, 'secret:purge')
  t.notMatch((await tokenOf(browser)).scope, 'secret:purge', 'the normal token does not get it')

  await age(person, 310)
  t.equal(returned(await ask(browser, { scope, max_age: '300', prompt: 'none' })).error, 'login_required')
  const again = await ask(browser, { scope, max_age: '300' })
  t.ok(isSignIn(again))
  t.match(again.text, `value="${person.email}"`)
  t.equal((await browser.signIn(again, person.email, 'a wrong password')).status, 422)
  t.equal(returned(await ask(browser, { scope, max_age: '300', prompt: 'none' })).error, 'login_required', 'a wrong password changes nothing')
  const { code } = returned(await browser.signIn(again, person.email, person.password))
  t.equal((await redeem(code)).body.expires_in, PRIVILEGED_SECONDS)
  t.equal((await call(short.access_token)).status, 200)
})

t.test('CO-03: an application that asks for fewer, but privileged, scopes gets nothing but these', async (t) => {
  const person = await newcomer()
  const browser = await signedIn(person)
  const { access_token } = await tokenOf(browser, { scope: 'member:create', max_age: '60' })
  const path = `/organizations/${nimbus.organization}/api-keys`
  t.equal((await call(access_token, path)).status, 403)
  const daily = (await tokenOf(browser)).access_token
  t.equal((await call(daily, path)).status, 200)
  t.equal((await call(daily, path, 'POST', { name: 'ci', abilities: ['secret:read'] })).status, 403)
})

t.test('CO-03: an API token that the short token creates stays when the person signs out', async (t) => {
  const person = await newcomer()
  const browser = await signedIn(person)
  const { access_token } = await tokenOf(browser, { scope: `${DAILY} api-token:create`, max_age: '300' })
  const path = `/organizations/${nimbus.organization}/api-keys`
  const { status, body } = await call(access_token, path, 'POST', { name: 'ci', abilities: ['organization:read'] })
  t.equal(status, 201)
  t.equal((await signOut(browser, access_token)).status, 204)
  t.equal((await call(access_token)).status, 401)
  t.equal((await call(body.token, `/organizations/${nimbus.organization}`)).status, 200)
  await post(address, '/api/oauth/revoke', { token: access_token, client_id: CONSOLE_CLIENT })
  t.equal((await call(body.token, `/organizations/${nimbus.organization}`)).status, 200, 'a revoked token of the console ends no API token')
  const account = await signedIn(person)
  const [, grant] = /name="id" value="(\d+)"[\s\S]*?/.exec((await account.open('/account')).text.split('Applications that act for you')[1]!)!
  await account.request('/account/applications/end', {
    method: 'POST', body: new URLSearchParams([...formIn(await account.open('/account')).fields, ['id', grant!]])
  })
  t.equal((await call(body.token, `/organizations/${nimbus.organization}`)).status, 401, 'the person can end it with the console')
})

t.test('CO-03: a token of daily work cannot give a person access', async (t) => {
  const person = await newcomer()
  const browser = await signedIn(person)
  const teams = `/organizations/${nimbus.organization}/teams`
  const refused = async (method: string, path: string, payload: object, scope: string) => {
    const { status, body } = await call((await tokenOf(browser)).access_token, path, method, payload)
    t.strictSame([status, body.details?.required_scope], [403, scope], `${method} ${path}`)
  }
  await refused('POST', teams, { name: 'Night' }, 'team:create')
  const short = (await tokenOf(browser, { scope: `${DAILY} team:create team:update`, max_age: '300' })).access_token
  const made = await call(short, teams, 'POST', { name: 'Night' })
  t.equal(made.status, 201)
  const team = `${teams}/${made.body.data.id}`
  await refused('PUT', `${team}/members/${person.id}`, {}, 'team:update')
  await refused('PATCH', team, { name: 'Day' }, 'team:update')
  t.equal((await call(short, `${team}/members/${person.id}`, 'PUT', {})).status, 200)
  await refused('DELETE', `${team}/members/${person.id}`, {}, 'team:update')
})

/**
 * The same browser on a page that another site opened. Without `site`, an old browser that does not send the header.
 */
function opened (browser: Visitor, site: string | undefined): Visitor {
  const same = visitor(address, site === undefined ? {} : { 'sec-fetch-site': site })
  for (const [name, value] of browser.jar) same.jar.set(name, value)
  return same
}

t.test('CO-13: a page of another site gets no code of the console, and adds no grant', async (t) => {
  const person = await newcomer()
  const browser = await signedIn(person)
  for (const site of ['cross-site', 'same-site', 'other']) {
    const foreign = opened(browser, site)
    for (const changes of [{}, { prompt: 'none' }, { prompt: 'login' }, { scope: 'secret:purge', max_age: '300' }]) {
      const { status, headers } = await ask(foreign, changes)
      t.strictSame([status, headers.get('location')], [303, HOME], `${site} ${JSON.stringify(changes)}`)
    }
    const { status, headers } = await ask(visitor(address, { 'sec-fetch-site': site }))
    t.strictSame([status, headers.get('location')], [303, HOME], `${site}, without a session`)
  }
  t.equal((await grantsOf(person)).length, 0)
  for (const site of ['same-origin', 'none', undefined]) t.ok(returned(await ask(opened(browser, site))).code, site ?? 'no header')
})

t.test('CO-13: sign-ins never end an API token: one grant is for daily work, and one for privileged scopes', async (t) => {
  const person = await newcomer()
  const browser = await signedIn(person)
  const { access_token } = await tokenOf(browser, { scope: 'api-token:create organization:read', max_age: '300' })
  const organization = `/organizations/${nimbus.organization}`
  const { status, body } = await call(access_token, `${organization}/api-keys`, 'POST', { name: 'ci', abilities: ['organization:read'] })
  t.equal(status, 201)
  for (let i = 1; i <= MAX_GRANTS + 5; i++) {
    const scope = DAILY_SCOPES.filter((_, j) => (i >> j) & 1).join(' ')
    t.ok(returned(await ask(browser, { scope })).code)
  }
  t.equal((await tokenOf(browser, { scope: 'secret:read' })).scope, 'secret:read', 'the token has the requested scopes')
  t.equal((await tokenOf(browser, { scope: 'secret:purge', max_age: '300' })).scope, 'secret:purge')
  const grants = await service.sql(
    `SELECT cardinality(scopes) AS count, revoked_at FROM oauth_grants WHERE user_id = ${person.id} ORDER BY id`
  )
  t.strictSame([...grants], [SCOPE_NAMES, DAILY_SCOPES].map(({ length }) => ({ count: length, revoked_at: null })))
  t.equal((await call(body.token, organization)).status, 200)
})

t.test('OA-27: max_age and prompt=login ask for the password and the second factor again, for every client', async (t) => {
  const person = await newcomer()
  const factor = await giveSecondFactor(service, person)
  const web = { client_id: 'dotenv-cli', redirect_uri: CALLBACK }
  const browser = visitor(address)
  const enter = async (page: Seen) => {
    t.ok(isSignIn(page))
    const code = await browser.send(formIn(page), { email: person.email, password: person.password })
    t.match(code.text, 'action="/oauth/sign-in/code"')
    await factor.reuse()
    const wrong = await browser.send(formIn(code), { code: '000000' })
    t.equal(wrong.status, 422)
    return browser.open((await browser.send(formIn(wrong), { code: await factor.code() })).headers.get('location')!)
  }
  t.match((await enter(await ask(browser, web))).text, 'action="/oauth/authorize/decision"')
  t.match((await ask(browser, { ...web, max_age: '300' })).text, 'action="/oauth/authorize/decision"')
  await age(person, 200)
  t.match((await ask(browser, { ...web, max_age: '300' })).text, 'action="/oauth/authorize/decision"')
  t.match((await enter(await ask(browser, { ...web, max_age: '100' }))).text, 'action="/oauth/authorize/decision"')
  for (const more of [{ max_age: '0' }, { prompt: 'login' }, { prompt: 'login consent', max_age: '9999' }]) {
    await age(person, 5)
    t.match((await enter(await ask(browser, { ...web, ...more }))).text, 'action="/oauth/authorize/decision"', JSON.stringify(more))
  }
  await age(person, 310)
  t.match(returned(await enter(await ask(browser, { scope: 'secret:purge', prompt: 'login' }))), { code: /^dotenv_ac_/ })
  const before = await browser.open('/account')
  t.match(before.text, person.email, 'the session goes on')
  for (const max_age of ['-1', '1.5', 'x', '1e3', '9999999999']) {
    for (const client of [web, {}]) {
      const back = new URL((await ask(browser, { ...client, max_age })).headers.get('location')!)
      t.match(back.searchParams.get('error_description'), /max_age must be/, max_age)
    }
  }
})

t.test('OA-27: the age of a sign-in does not come from a column without a MAC', async (t) => {
  const person = await newcomer()
  const browser = await signedIn(person)
  await age(person, 3600)
  await service.sql(`UPDATE sessions SET created_at = now(), seen_at = seen_at WHERE user_id = ${person.id}`)
  t.ok(isSignIn(await ask(browser, { max_age: '300' })))
})

t.test('OA-28: prompt=none shows no page', async (t) => {
  const person = await newcomer()
  const stranger = visitor(address)
  t.match(returned(await ask(stranger, { prompt: 'none' })), { error: 'login_required', state: 'state', iss: address })
  const browser = await signedIn(person)
  t.match(returned(await ask(browser, { prompt: 'none' })), { code: /^dotenv_ac_/ })
  t.match(returned(await ask(browser, { prompt: 'none login' })), { error: 'invalid_request' })
  for (const visitor of [stranger, browser]) {
    const back = new URL((await ask(visitor, { client_id: 'dotenv-cli', redirect_uri: CALLBACK, prompt: 'none' })).headers.get('location')!)
    t.equal(back.searchParams.get('error'), 'consent_required')
  }
})

const signOut = (browser: Visitor, token: string, headers: Record<string, string> = {}) =>
  browser.request('/oauth/sign-out', { method: 'POST', body: new URLSearchParams({ token }), headers })

t.test('CO-04: signing out ends the session and every token of the console', async (t) => {
  const person = await newcomer()
  const [browser, other] = [await signedIn(person), await signedIn(person)]
  const tokens = [(await tokenOf(browser)).access_token, (await tokenOf(other)).access_token]
  const application = await tokensFor(address, person, { scope: 'secret:read' })
  const cookie = browser.jar.get('session')!
  const out = await signOut(browser, tokens[0]!)
  t.equal(out.status, 204)
  t.equal(out.headers.get('clear-site-data'), '"cache", "storage"')
  t.match(out.headers.getSetCookie().join(), /session=; Max-Age=0/)
  t.notOk(browser.jar.has('session'))
  for (const token of tokens) t.equal((await call(token)).status, 401)
  const stale = visitor(address)
  stale.jar.set('session', cookie)
  t.ok(isSignIn(await ask(stale)), 'the session has ended, not only the cookie')
  t.equal((await call((await tokenOf(other)).access_token)).status, 200, 'another browser gets a new token')
  t.equal((await call(application.access_token)).status, 200, 'other applications go on')
  const events = await service.sql(`SELECT action FROM personal_events WHERE user_id = ${person.id} AND action = 'session.delete'`)
  t.equal(events.length, 1)
  t.equal((await signOut(browser, tokens[0]!)).status, 204, 'a second time changes nothing')

  const [theo, shared] = [await newcomer(), await signedIn(person)]
  const mine = (await tokenOf(shared)).access_token
  await shared.signIn(await ask(shared, { prompt: 'login' }), theo.email, theo.password)
  const theirs = (await tokenOf(shared)).access_token
  t.equal((await call(mine)).status, 401, 'the sign-in of another person ends the session of the first one')
  t.equal((await signOut(shared, mine)).status, 204)
  for (const token of [mine, theirs]) t.equal((await call(token)).status, 401, 'of both persons of this browser')

  const third = (await tokenOf(other)).access_token
  await other.send(formIn(await other.open('/account')), { where: 'here' })
  t.equal((await call(third)).status, 401, 'so does signing out on the account page')
})

t.test('CO-04: only the console signs a person out', async (t) => {
  const person = await newcomer()
  const browser = await signedIn(person)
  const { access_token } = await tokenOf(browser)
  const application = await tokensFor(address, person, { scope: 'secret:read' })
  for (const [token, headers] of [
    ['', {}], ['dotenv_at_x', {}], [application.access_token, {}], [nimbus.token, {}],
    [access_token, { 'sec-fetch-site': 'cross-site' }], [access_token, { 'sec-fetch-site': 'same-site' }]
  ] as const) {
    const answer = await signOut(browser, token, headers)
    t.equal(answer.status, 403, token)
    t.equal(answer.headers.get('clear-site-data'), null)
  }
  const plain = await fetch(`${address}/oauth/sign-out`, {
    method: 'POST', body: new URLSearchParams({ token: access_token }), headers: { origin: 'https://evil.example' }
  })
  t.equal(plain.status, 403)
  t.equal((await call(access_token)).status, 200)
  t.ok(returned(await ask(browser)).code)
})

t.test('CO-04: codes of the console end with the session, and with each token that is revoked', async (t) => {
  const person = await newcomer()
  const isDead = async (code: string | undefined, message: string) =>
    t.equal((await redeem(code)).body.error, 'invalid_grant', message)
  const [browser, other] = [await signedIn(person), await signedIn(person)]
  const { code } = returned(await ask(browser))
  const { code: privileged } = returned(await ask(browser, { scope: 'secret:purge', max_age: '300' }))
  t.equal((await signOut(browser, (await tokenOf(browser)).access_token)).status, 204)
  await isDead(code, 'a sign-out')
  await isDead(privileged, 'a sign-out, for privileged scopes')

  const { access_token } = await tokenOf(other)
  t.equal((await call(access_token)).status, 200)
  await isDead(code, 'again')
  t.equal((await call(access_token)).status, 200, 'a code that ended ends no token')
  const { code: revoked } = returned(await ask(other))
  await post(address, '/api/oauth/revoke', { token: access_token, client_id: CONSOLE_CLIENT })
  await isDead(revoked, 'a revoked token')

  const { code: ended } = returned(await ask(other))
  await other.send(formIn(await other.open('/account')), { where: 'here' })
  await isDead(ended, 'a sign-out on the account page')
  const events = await service.sql(`SELECT action FROM personal_events WHERE user_id = ${person.id} AND action = 'oauth.reuse'`)
  t.equal(events.length, 0)
})

t.test('CO-04: an ended session ends the console’s tokens and codes; the person’s next sign-in ends none', async (t) => {
  const again = async (browser: Visitor, { email, password }: Person, code = async () => '') => {
    const seen = await browser.signIn(await ask(browser, { prompt: 'login' }), email, password)
    return seen.text.includes('name="code"') ? browser.send(formIn(seen), { code: await code() }) : seen
  }
  interface Ended { person: Person, browser: Visitor }
  const ends: Record<string, { hasFactor?: true, end: (ended: Ended) => Promise<unknown> }> = {
    'the operator removes a lost second factor': {
      hasFactor: true, end: async ({ person }) => resetSecondFactor(service.database, person.email)
    },
    'the person sets up a second factor': { end: async ({ person }) => giveSecondFactor(service, person) },
    'another person signs in, in the same browser': { end: async ({ browser }) => again(browser, await newcomer()) },
    'a sign-out on the account page': {
      end: async ({ browser }) => browser.send(formIn(await browser.open('/account')), { where: 'here' })
    },
    'so many later sessions that the limit ends it': {
      end: async ({ person }) => {
        await service.write(`INSERT INTO sessions (token_hash, user_id, seen_at, expires_at)
          SELECT sha256(convert_to('${person.id} ' || n, 'UTF8')), ${person.id}, now() + interval '1 second',
            now() + interval '7 days' FROM generate_series(1, 1000) n`)
        await again(visitor(address), person)
      }
    }
  }
  for (const [way, { hasFactor, end }] of Object.entries(ends)) {
    const person = await newcomer()
    const factor = hasFactor && await giveSecondFactor(service, person)
    const signIn = async (browser: Visitor) => {
      await factor?.reuse()
      return again(browser, person, factor?.code)
    }
    const browser = visitor(address)
    await signIn(browser)
    const { access_token } = await tokenOf(browser)
    const { code } = returned(await ask(browser))
    await signIn(browser)
    t.equal((await call(access_token)).status, 200, 'the same person signs in again')
    await end({ person, browser })
    t.equal((await call(access_token)).status, 401, way)
    t.equal((await redeem(code)).body.error, 'invalid_grant', way)
  }
})

t.test('CO-04: a sign-in that fails leaves the session of the browser, with which the console still ends', async (t) => {
  for (const table of ['sessions', 'sign_in_devices', 'personal_events']) {
    const person = await newcomer()
    const browser = await signedIn(person)
    const { access_token } = await tokenOf(browser)
    const [page, session] = [await ask(browser, { prompt: 'login' }), browser.jar.get('session')]
    await service.sql(`ALTER TABLE ${table} ADD CONSTRAINT refused CHECK (user_id <> ${person.id}) NOT VALID`)
    const failed = await browser.signIn(page, person.email, person.password)
    await service.sql(`ALTER TABLE ${table} DROP CONSTRAINT refused`)
    t.strictSame([failed.status, browser.jar.get('session')], [500, session], table)
    t.equal((await call(access_token)).status, 200)
    t.ok(returned(await ask(browser, { prompt: 'none' })).code, 'the session goes on')
    await browser.send(formIn(await browser.open('/account')), { where: 'here' })
    t.equal((await call(access_token)).status, 401, 'and ends the token')
    await signedIn(person, browser)
    const before = browser.jar.get('session')!
    await browser.signIn(await ask(browser, { prompt: 'login' }), person.email, person.password)
    t.not(browser.jar.get('session'), before)
    browser.jar.set('session', before)
    t.ok(isSignIn(await browser.open('/account')), 'a sign-in that succeeds replaces the session')
  }
})

t.test('CO-04: no token of the console is valid for longer than the session', async (t) => {
  const person = await newcomer()
  const browser = await signedIn(person)
  const day = 24 * 60 * 60
  await age(person, 7 * day - LIFETIMES.access - 300)
  const { expires_in } = await tokenOf(browser)
  t.ok(expires_in <= LIFETIMES.access)
  await age(person, 300)
  t.equal(returned(await ask(browser, { prompt: 'none' })).error, 'login_required')
  const page = await ask(browser)
  t.ok(isSignIn(page), 'the person signs in again')
  t.ok(returned(await browser.signIn(page, person.email, person.password)).code)
})

t.test('CO-04: a sign-out on the account page leads to the page that tells the open tabs of the console', async (t) => {
  const browser = await signedIn(await newcomer())
  const answer = await browser.send(formIn(await browser.open('/account')), { where: 'here' })
  t.match([answer.status, answer.headers.get('location')], [303, /\/console\/\?signed-out$/])
  t.equal((await browser.request(answer.headers.get('location')!, { headers: { accept: 'text/html' } })).status, 200)
  const person = await newcomer()
  const [one, two] = [await signedIn(person), await signedIn(person)]
  const sessions = (await one.open('/account')).text.split('<li class="held">')
  const endOf = (isOwn: boolean) => formIn({
    text: sessions.find((row) => row.includes('/account/sessions/end') && row.includes('(this browser)') === isOwn)!
  } as Seen)
  const { access_token } = await tokenOf(one)
  const ofOther = await one.send(endOf(false))
  t.match([ofOther.headers.get('location'), one.jar.has('session')], [/\/account$/, true], 'the session of another browser')
  t.ok(isSignIn(await two.open('/account')))
  const ofOwn = await one.send(endOf(true))
  t.match([ofOwn.headers.get('location'), one.jar.has('session')], [/\/console\/\?signed-out$/, false], 'the own one in the list')
  t.equal((await call(access_token)).status, 401)
  service.config.console = false
  t.teardown(() => { service.config.console = true })
  const other = await signedIn(await newcomer())
  const without = await other.send(formIn(await other.open('/account')), { where: 'here' })
  t.match(without.headers.get('location'), /\/account$/)
})

t.test('CO-05: what ends the access of a person ends the console', async (t) => {
  const person = await newcomer()
  const browser = await signedIn(person)
  const first = (await tokenOf(browser)).access_token
  await browser.send(formIn(await browser.open('/account')), { where: 'everywhere' })
  t.equal((await call(first)).status, 401)
  const again = await signedIn(person)
  const second = (await tokenOf(again)).access_token
  await service.write(`UPDATE users SET disabled_at = now() WHERE id = ${person.id}`)
  t.equal((await call(second)).status, 401)
  t.ok(isSignIn(await ask(again)))
})

t.test('CO-05: grants of the console are extended and not deleted, and old codes and tokens are deleted', async (t) => {
  const person = await newcomer()
  const browser = await signedIn(person)
  await tokenOf(browser)
  t.ok(returned(await ask(browser)).code, 'a code that is never redeemed')
  const [{ id } = { id: 0 }] = await grantsOf(person)
  await service.write(`UPDATE oauth_codes SET expires_at = now() - interval '2 days' WHERE grant_id = ${id}`)
  await service.write(`UPDATE oauth_tokens SET access_expires_at = now() - interval '2 days', refresh_expires_at = now() - interval '2 days' WHERE grant_id = ${id}`)
  await service.write(`UPDATE oauth_grants SET expires_at = now() + interval '3 days' WHERE id = ${id}`)
  await tokensFor(address, await newcomer(), { scope: 'secret:read' })
  await tokenOf(browser)
  const [grant, ...others] = await grantsOf(person)
  t.strictSame([Number(grant!.id), others.length], [Number(id), 0])
  t.ok(new Date(String(grant!.expires_at)).getTime() > Date.now() + 89 * 24 * 3600 * 1000)
  const rows = await service.sql(`SELECT (SELECT count(*)::int FROM oauth_codes WHERE grant_id = ${id}) AS codes,
    (SELECT count(*)::int FROM oauth_tokens WHERE grant_id = ${id}) AS tokens`)
  t.match(rows[0], { codes: 1, tokens: 1 })
  const factor = await giveSecondFactor(service, person)
  const code = await browser.send(formIn(await ask(browser)), { email: person.email, password: person.password })
  t.ok(returned(await browser.open((await browser.send(formIn(code), { code: await factor.code() })).headers.get('location')!)).code)
  t.equal((await grantsOf(person)).length, 2, 'a grant from before the second factor is not used any more')
})

t.test('CO-06: no command changes the client of the console', async (t) => {
  for (const verb of ['disable', 'enable']) {
    await t.rejects(
      async () => noun.run([verb, '--id', CONSOLE_CLIENT], service.env), { message: /set CONSOLE=off/ }, verb
    )
  }
  t.ok(returned(await ask(await signedIn(await newcomer()))).code)
})

const html = { accept: 'text/html,application/xhtml+xml,*/*;q=0.8' }
const built = readdirSync('dist/console')
const assets = built.filter((name) => /\.(?:js|css)$/.test(name))
const get = ({ inject }: TestApp, url: string, headers: Record<string, string> = html) => inject({ url, headers })

t.test('CO-07: the page runs exactly the script of the build, and is never cached', async (t) => {
  const page = await get(service, '/console/')
  t.equal(page.status, 200)
  const policy = String(page.headers['content-security-policy'])
  const script = assets.find((name) => name.endsWith('.js'))!
  const hash = createHash('sha256').update(readFileSync(`dist/console/${script}`)).digest('base64')
  t.strictSame(policy.split('; '), [
    "default-src 'none'", `script-src 'sha256-${hash}'`, "style-src 'self'", "img-src 'self' data:", "connect-src 'self'",
    "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'"
  ])
  t.match(page.headers, {
    'content-type': 'text/html; charset=utf-8',
    'cache-control': 'no-store',
    'x-content-type-options': 'nosniff',
    'referrer-policy': 'no-referrer',
    'cross-origin-opener-policy': 'same-origin',
    'x-frame-options': 'DENY',
    'permissions-policy': /^clipboard-write=\(self\), /
  })
  t.notMatch(page.text, /<script(?![^>]*\bsrc=)|<style|\son\w+=|style=/, 'nothing inline')
  for (const [, name, integrity] of page.text.matchAll(/(?:src|href)="\/console\/([^"]+)" integrity="([^"]+)"/g)) {
    t.equal(integrity, `sha256-${createHash('sha256').update(readFileSync(`dist/console/${name}`)).digest('base64')}`)
  }
  t.equal((await get(service, '/console')).headers.location, '/console/')
  const source = readFileSync('dist/console/index.html', 'utf8')
  for (const url of ['/console/acme', '/console/acme/api?at=x', '/console/index.html']) {
    const { status, text } = await get(service, url)
    t.strictSame([status, text], [200, source], url)
  }
})

t.test('CO-07: files are immutable and compressed, and nothing else of the folder or machine is served', async (t) => {
  t.equal(assets.length, 2)
  for (const name of assets) {
    const plain = readFileSync(`dist/console/${name}`)
    for (const [encoding, expected, unpack] of [
      ['br, gzip', 'br', brotliDecompressSync], ['gzip', 'gzip', gunzipSync], ['gzip;q=1, br;q=0', 'gzip', gunzipSync],
      ['identity', undefined, (bytes: Buffer) => bytes]
    ] as const) {
      const response = await fetch(`${address}/console/${name}`, { headers: { 'accept-encoding': encoding } })
      const raw = await service.app.inject({ url: `/console/${name}`, headers: { 'accept-encoding': encoding } })
      t.strictSame(
        [response.status, response.headers.get('cache-control'), response.headers.get('content-encoding') ?? undefined],
        [200, 'public, max-age=31536000, immutable', expected], `${name} ${encoding}`
      )
      t.match(response.headers.get('vary'), /accept-encoding/i)
      t.match(response.headers.get('content-type'), name.endsWith('.js') ? /javascript/ : /text\/css/)
      t.equal(response.headers.get('x-content-type-options'), 'nosniff')
      t.ok(unpack(raw.rawPayload).equals(plain), `${name} ${encoding}`)
      await response.arrayBuffer()
    }
    for (const other of [`${name}.br`, `${name}.gz`]) t.equal((await get(service, `/console/${other}`, {})).status, 404, other)
  }
  for (const path of [
    '../package.json', '..%2fsrc%2fcli.js', '%2e%2e/src/cli.js', '..\\src\\cli.js', 'x/../../src/cli.js', '%00', 'main.js', 'index.html',
    '..;/src/cli.js', '/etc/passwd', '%252e%252e%252fsrc%252fcli.js'
  ]) {
    for (const headers of [html, {}] as Record<string, string>[]) {
      const { status, text } = await get(service, `/console/${path}`, headers)
      t.ok([200, 400, 404].includes(status), `${path} ${status}`)
      t.ok(status !== 200 || text === readFileSync('dist/console/index.html', 'utf8'), path)
    }
  }
  t.equal((await service.inject({ method: 'POST', url: '/console/', payload: {} })).status, 404)
})

t.test('CO-07: a malformed address leads a browser to the application, and a program gets an API error', async (t) => {
  const below = await startIsolatedApp(t, { PUBLIC_URL: 'https://example.com/secrets' })
  for (const path of ['%', 'nimbus/%E0%A4%A', '%zz/x?y=%']) {
    const page = await get(service, `/console/${path}`)
    t.strictSame([page.status, page.headers.location, page.headers['cache-control']], [303, '/console/', 'no-store'], path)
    t.equal((await get(below, `/secrets/console/${path}`)).headers.location, '/secrets/console/')
    t.equal((await get(service, `/console/${path}`, {})).status, 404, path)
    t.equal((await get(service, `/consoles/${path}`)).status, 404, path)
  }
})

t.test('CO-07: below a path, the page names its files below the path', async (t) => {
  const below = await startIsolatedApp(t, { PUBLIC_URL: 'https://example.com/secrets' })
  const page = await get(below, '/secrets/console/x/y')
  for (const name of assets) t.match(page.text, `"/secrets/console/${name}"`)
  t.notMatch(page.text, '"/console/')
  t.equal((await get(below, `/secrets/console/${assets[0]}`, {})).status, 200)
  t.equal((await get(below, '/secrets/console')).headers.location, '/secrets/console/')
  t.equal((await get(below, '/secrets/')).headers.location, '/secrets/console/')
})

t.test('CO-08: CONSOLE=off removes the console, its client and its tokens', async (t) => {
  const person = await newcomer()
  const { access_token } = await tokenOf(await signedIn(person))
  const off = await startIsolatedApp(t, { CONSOLE: 'off' })
  for (const url of ['/console', '/console/', '/console/x', '/console/%', `/console/${assets[0]}`]) t.equal((await get(off, url)).status, 404, url)
  t.equal((await get(off, '/')).headers.location, '/docs')
  const at = await off.app.listen({ host: '127.0.0.1', port: 0 })
  const asked = await visitor(at).open(
    authorizationUrl(challenge, { client_id: CONSOLE_CLIENT, redirect_uri: `${at}/console/`, prompt: 'none' })
  )
  t.equal(asked.status, 400)
  t.match(asked.text, 'No application is registered with this client_id')
  const refused = await post(at, '/api/oauth/token', {
    grant_type: 'authorization_code', code: 'x', code_verifier: verifier, client_id: CONSOLE_CLIENT, redirect_uri: `${at}/console/`
  })
  t.equal(refused.body.error, 'invalid_client')
  t.equal((await fetch(`${at}/oauth/sign-out`, { method: 'POST', body: new URLSearchParams() })).status, 404)
  t.equal((await call(access_token)).status, 200)
  // A service with other settings on the same database.
  service.config.console = false
  t.teardown(() => { service.config.console = true })
  t.equal((await call(access_token)).status, 401)
  service.config.console = true
  t.equal((await call(access_token)).status, 200)
})

t.test('the scopes of daily work are scopes, once each', async (t) => {
  t.strictSame([...new Set(DAILY_SCOPES)], [...DAILY_SCOPES])
  t.ok(DAILY_SCOPES.every((scope: Scope) => SCOPE_NAMES.includes(scope)))
  t.strictSame(PRIVILEGED, [
    'secret:purge', 'key:rotate', 'project:delete', 'team:create', 'team:update', 'organization:update', 'organization:delete', 'api-token:create', 'api-token:update',
    'member:create', 'member:update', 'member:delete', 'billing:write'
  ])
})
