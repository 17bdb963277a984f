// runs: one database; 15 s
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { LIFETIMES, OAUTH_ERRORS, type OAuthErrorCode } from '../../schemas/oauth.ts'
import { ROLES } from '../../schemas/users.ts'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { isRegistrable, redirectMatches } from '../../src/rules/redirects.ts'
import { scopesOfRole } from '../../src/rules/roles.ts'
import { startApp } from '../helpers/app.ts'
import { compiledExample, pythonLacks, readDoc } from '../helpers/docs.ts'
import { IN_PROOFS, sample } from '../helpers/long.ts'
import { authorizationUrl, authorize, CALLBACK, makePerson, pkce, post, tokensFor } from '../helpers/people.ts'
import { run, scratchDirectory, type Ended } from '../helpers/process.ts'
import { visitor } from '../helpers/visitor.ts'

const page = readDoc('docs/oauth.md')
const service = await startApp(t)
const address = await service.listen()
const nimbus = await service.organization()
const other = await service.organization()
const rosa = await makePerson(service, { [nimbus.organization]: 'owner', [other.organization]: 'auditor' })

const api = (path: string, token: string) =>
  fetch(`${address}/api/v1${path}`, { headers: { authorization: `Bearer ${token}` } })
const compiled = compiledExample('login')
const noPython = await pythonLacks()

t.test('the page shows the examples as they are', async (t) => {
  t.equal(page.block('ts'), readFileSync('examples/login.ts', 'utf8'))
  t.equal(page.block('py'), readFileSync('examples/login.py', 'utf8'))
})

t.test('OA-91 what the page shows of discovery is what the service answers', async (t) => {
  const shown = JSON.parse(page.block('json')!.replace(', "…"', ''))
  const public_ = await startApp(t, { PUBLIC_URL: shown.issuer })
  const { body } = await public_.inject({ method: 'GET', url: '/.well-known/oauth-authorization-server' })
  t.same(body, { ...shown, scopes_supported: SCOPE_NAMES })
})

t.test('OA-09 OA-10 what the page says can be registered can be, and what it says cannot, cannot', async (t) => {
  const rows = page.table('| Redirect URI | Can be registered |')
  t.same([...new Set(rows.map(([, answer]) => answer))].sort(), ['no', 'yes'])
  for (const [uri = '', answer] of rows) t.equal(isRegistrable(uri), answer === 'yes', uri)
})

t.test('OA-08 only the port of a loopback address is free', async (t) => {
  for (const [registered = '', sent = '', answer] of page.table('| Registered | Sent |')) {
    t.equal(redirectMatches(registered, sent, address), answer === 'yes', sent)
  }
})

t.test('OA-14 the page says what each role may do', async (t) => {
  const rows = page.table('| Role | Scopes |')
  t.same(rows.map(([role]) => role), ROLES)
  for (const [role = '', text = ''] of rows) {
    const names: string[] = text.match(/[a-z-]+:(?:[a-z]+|\*)/g) ?? []
    const matches = SCOPE_NAMES.filter((scope) => names.includes(scope) || names.includes(scope.replace(/:.*/, ':*')))
    const said = text.startsWith('all') ? SCOPE_NAMES.filter((scope) => !matches.includes(scope)) : matches
    t.same([...said].sort(), [...scopesOfRole(role as 'owner')].sort(), role)
  }
})

t.test('the page has every error code, with the status that it has', async (t) => {
  const sent = page.table('| Code | Status |').map(([code = '', status = '']) =>
    [code, Number.parseInt(status)] as const)
  for (const [code, status] of sent) t.equal(status, OAUTH_ERRORS[code as OAuthErrorCode].status, code)
  const returned = page.table('| Error | Cause |').flatMap(([codes]) => codes!.split(', '))
  t.same([...new Set([...returned, ...sent.map(([code]) => code)])].sort(), Object.keys(OAUTH_ERRORS).sort())
})

t.test('OA-62 the page has the lifetimes', async (t) => {
  t.same(
    page.table('| What | Lives |').map(([, lives]) => Number.parseInt(lives!)),
    [10, LIFETIMES.code, LIFETIMES.access / 3600, LIFETIMES.refreshIdleDays, LIFETIMES.grantDays]
  )
})

t.test('the page has every parameter of an authorization request, and each that must be there must', async (t) => {
  const rows = page.table('| Parameter | Needed |')
  const full: Record<string, string> = { scope: 'secret:read', response_mode: 'query', max_age: '300', prompt: 'login' }
  for (const [name = '', needed = ''] of rows) {
    const answer = await visitor(address).open(authorizationUrl(pkce().challenge, { ...full, [name]: undefined }))
    t.equal(answer.status === 200 ? 'optional' : 'required', needed.split(':')[0], name)
  }
  t.same(rows.map(([name]) => name).sort(), [
    'response_type', 'client_id', 'redirect_uri', 'state', 'code_challenge', 'code_challenge_method',
    ...Object.keys(full)
  ].sort())
})

t.test('OA-30 the token requests of the page work as forms and as JSON', async (t) => {
  for (const as of ['form', 'json'] as const) {
    const { code, verifier } = await authorize(address, rosa)
    const filled = (body: string) => Object.fromEntries([...new URLSearchParams(body.replaceAll('\n', ''))].map(([
      name, value
    ]) => [name, { code, code_verifier: verifier, redirect_uri: CALLBACK }[name] ?? value]))
    const [exchange, refresh] = [
      ...page.text.matchAll(/^```http\nPOST \/api\/oauth\/token\n[^\n]*\n\n(.*?)^```$/gms)
    ].map(([, body]) => filled(body!))
    const first = await post(address, '/api/oauth/token', exchange!, as)
    t.equal(first.status, 200, first.text)
    t.equal(
      (await post(address, '/api/oauth/token', { ...refresh, refresh_token: first.body.refresh_token }, as)).status, 200
    )
  }
})

t.test('OA-61 a narrower scope is of one pair; the next may have all again, and never more', async (t) => {
  const pair = await tokensFor(address, rosa, { scope: 'secret:read project:read' })
  const refresh = (refresh_token: string, scope?: string) => post(
    address, '/api/oauth/token',
    { grant_type: 'refresh_token', client_id: 'dotenv-cli', refresh_token, ...(scope && { scope }) }
  )
  t.equal((await refresh(pair.refresh_token, 'secret:read key:retrieve')).body.error, 'invalid_scope')
  const narrow = await refresh(pair.refresh_token, 'secret:read')
  t.equal(narrow.body.scope, 'secret:read')
  t.equal((await refresh(narrow.body.refresh_token)).body.scope, 'secret:read project:read')
})

examplesOf('TypeScript', process.execPath, [compiled], false)
examplesOf('Python', 'python3', ['examples/login.py'], noPython)

function examplesOf (name: string, program: string, args: string[], skip: string | false) {
  // `npm test` tests the token file with only one of the two examples.
  const inOne = { skip: skip === false && name === 'Python' ? IN_PROOFS.skip : skip }
  t.test(`the ${name} example signs a person in, keeps the tokens, refreshes and revokes`, { skip }, async (t) => {
    const login = example(t, program, args)
    const { url, ended } = await login.start()
    const back = await decide(url, 'allow')
    t.equal((await fetch(new URL('/favicon.ico', back))).status, 404, 'another path is no answer')
    t.match(await (await fetch(back)).text(), /go back to the terminal/)
    const first = await ended
    const saying = `Signed in as ${rosa.name} <${rosa.email}>\n  Nimbus: owner\n  Nimbus: auditor\n`
    t.same(
      { ...first, stdout: first.stdout.split('\n').slice(2).sort() },
      { code: 0, stdout: saying.split('\n').sort(), stderr: '' }
    )
    t.equal(statSync(login.file).mode & 0o777, 0o600)
    t.same(login.left(), [], 'nothing else is left')

    const tokens = login.tokens()
    t.equal((await api('/user', tokens.access_token)).status, 200)
    for (const secret of [tokens.access_token, tokens.refresh_token, back.searchParams.get('code')!]) {
      t.notOk(`${first.stdout}${first.stderr}`.includes(secret), 'nothing secret is printed')
    }

    const again = await login.run()
    t.equal(again.code, 0)
    t.notMatch(again.stdout, 'Open this address', 'the person is not asked again')
    t.same(login.tokens(), tokens, 'and nothing is refreshed without need')

    await service.write(
      `UPDATE oauth_tokens SET access_expires_at = now() WHERE grant_id IN (SELECT id FROM oauth_grants WHERE user_id = ${rosa.id})`
    )
    const refreshed = await login.run()
    t.match(refreshed, { code: 0, stdout: /^Signed in as/, stderr: '' })
    const newest = login.tokens()
    t.not(newest.refresh_token, tokens.refresh_token)
    t.equal(statSync(login.file).mode & 0o777, 0o600)

    t.same(await login.run(['--logout']), { code: 0, stdout: 'Nobody is signed in\n', stderr: '' })
    t.notOk(existsSync(login.file))
    t.equal((await api('/user', newest.access_token)).status, 401)
    t.equal((await login.run(['--logout'])).code, 0)
  })

  t.test(`the ${name} example asks again when what it holds was revoked`, inOne, async (t) => {
    const login = example(t, program, args)
    const pair = await tokensFor(address, rosa)
    writeFileSync(login.file, JSON.stringify({ issuer: address, client_id: 'dotenv-cli', ...pair }))
    t.match(await login.run(), { code: 0, stdout: /^Signed in as/ })
    await post(address, '/api/oauth/revoke', { token: pair.refresh_token, client_id: 'dotenv-cli' })
    const { url, ended } = await login.start()
    await fetch(await decide(url, 'allow'))
    t.equal((await ended).code, 0)
    t.not(login.tokens().refresh_token, pair.refresh_token)
  })

  t.test(`the ${name} example sends its tokens to no other server`, { skip }, async (t) => {
    const login = example(t, program, args)
    writeFileSync(
      login.file,
      JSON.stringify({ issuer: 'http://127.0.0.1:1', client_id: 'dotenv-cli', access_token: 'a', refresh_token: 'r' })
    )
    failed(t, await login.run(), 'dotenv-cli at http://127.0.0.1:1')
    failed(t, await login.run([], { STRONGROOM_URL: 'http://nimbus.example' }), /./)
  })

  t.test(`the ${name} example ends with one line when it goes wrong`, { skip }, async (t) => {
    const cases: [what: string, change: (back: URL) => void, said: string | RegExp][] = [
      ['wrong state', (back) => back.searchParams.set('state', 'another'), /state/],
      ['no state', (back) => back.searchParams.delete('state'), /state/],
      ['wrong iss', (back) => back.searchParams.set('iss', `${address}/`), /iss/],
      ['no iss', (back) => back.searchParams.delete('iss'), /iss/],
      ['another code', (back) => back.searchParams.set('code', 'dotenv_ac_0'), 'invalid_grant']
    ]
    for (const [what, change, said] of sample(cases, name === 'Python' ? 4 : 2)) {
      const login = example(t, program, args)
      const { url, ended } = await login.start()
      const back = await decide(url, 'allow')
      change(back)
      await fetch(back)
      failed(t, await ended, said, what)
      t.notOk(existsSync(login.file), what)
    }
    const login = example(t, program, args)
    const denied = await login.start()
    await fetch(await decide(denied.url, 'deny'))
    failed(t, await denied.ended, /^login: access_denied/, 'denied')

    failed(t, await login.run([], { STRONGROOM_WAIT: '0.2' }), 'nobody came back', 'no browser comes back')
    t.same(login.left(), [])
  })

  t.test(`of two ${name} examples, one is at it`, inOne, async (t) => {
    const login = example(t, program, args)
    const { url, ended } = await login.start()
    failed(t, await login.run(), 'another one is at it')
    await fetch(await decide(url, 'allow'))
    t.equal((await ended).code, 0, 'and the other goes on')
  })
}

/** Asserts one line on standard error and exit status 1. */
function failed (t: Test, { code, stderr }: Ended, said: string | RegExp, what = '') {
  t.equal(code, 1, what)
  t.match(stderr, said, what)
  t.equal(stderr.split('\n').length, 2, stderr)
}

/** Runs an example with a separate login. */
function example (t: Test, program: string, args: string[]) {
  const directory = scratchDirectory(t)
  const file = join(directory, 'login.json')
  const env = { STRONGROOM_URL: address, STRONGROOM_LOGIN: file }
  return {
    file,
    tokens: () => JSON.parse(readFileSync(file, 'utf8')) as Record<'access_token' | 'refresh_token', string>,
    left: () => ['.new', '.lock'].filter((suffix) => existsSync(file + suffix)),
    run: (more: string[] = [], changes: Record<string, string> = {}) =>
      run(program, [...args, ...more], { ...env, ...changes }),
    /** Runs the example until it waits for the browser. */
    async start (): Promise<{ url: string, ended: Promise<Ended> }> {
      const child = spawn(program, args, { env: { PATH: process.env.PATH, ...env }, stdio: ['ignore', 'pipe', 'pipe'] })
      t.teardown(() => child.kill('SIGKILL'))
      const said = { stdout: '', stderr: '' }
      for (const stream of ['stdout', 'stderr'] as const) {
        child[stream].setEncoding('utf8').on('data', (text: string) => { said[stream] += text })
      }
      const ended = once(child, 'close').then(([code]) => ({ code: code as number | null, ...said }))
      for (;;) {
        const [, url] = /^Open this address in your browser:\n(\S+)\n/.exec(said.stdout) ?? []
        if (url !== undefined) return { url, ended }
        const more = await Promise.race([once(child.stdout, 'data'), ended])
        if (!Array.isArray(more)) throw new Error(`it ended with ${more.code}: ${more.stderr}`)
      }
    }
  }
}

/** Opens the URL that the example prints and decides as Rosa. Returns the URL of the redirect. */
async function decide (url: string, decision: 'allow' | 'deny'): Promise<URL> {
  const browser = visitor(address)
  return browser.decide(await browser.signIn(await browser.open(url), rosa.email, rosa.password), decision)
}
