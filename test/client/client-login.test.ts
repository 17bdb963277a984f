// runs: one database, embedded; 15 s
import type { ChildProcess } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { join } from 'node:path'
import { once } from 'node:events'
import { buffer } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { startApp } from '../helpers/app.ts'
import { join as joinOrganization, makePerson, type Person } from '../helpers/people.ts'
import { CLIENT, clientHome, otherServer, PLACE, placeWith, type ClientHome } from '../helpers/strongroom.ts'
import { run as runProgram } from '../helpers/process.ts'
import { until } from '../helpers/until.ts'
import { visitor } from '../helpers/visitor.ts'

// `strongroom login` and what the client does with the tokens.

const service = await startApp(t)
const address = await service.listen()

/** A member of a new organization, who signs in with the client. */
async function signedIn (t: Test, options: readonly string[] = [], pastes = false) {
  const caller = await placeWith(service, 'A=1\n')
  const person = await makePerson(service)
  await joinOrganization(service, caller.call, caller.organization, person, 'developer')
  const home = clientHome(t)
  const said = await signIn(home, person, options, pastes)
  const folder = join(home.folder, 'config/strongroom/logins')
  const file = () => join(folder, readdirSync(folder).find((name) => name.endsWith('.json'))!)
  const read = () => JSON.parse(readFileSync(file(), 'utf8')) as Record<string, any>
  const change = (fields: object) => writeFileSync(file(), JSON.stringify({ ...read(), ...fields }))
  return { ...home, caller, person, said, logins: folder, file, read, change }
}

async function signIn (
  home: ClientHome, person: Person, options: readonly string[] = [], pastes = false,
  { env = {}, meanwhile = () => {} }: { env?: Record<string, string>, meanwhile?: (child: ChildProcess) => void } = {}
) {
  const child = home.start(['login', address, '--no-browser', ...options], { env })
  let text = ''
  child.stderr!.on('data', (part) => { text += part })
  const url = (await until(() => /http\S+\/oauth\/authorize\?\S+/.exec(text)))[0]
  const browser = visitor(address)
  const page = await browser.open(url)
  const consent = await browser.signIn(page, person.email, person.password)
  const back = await browser.decide(consent, 'allow')
  if (pastes) {
    child.stdin!.write('no address\n')
    child.stdin!.write(`${back.href}\n`)
  } else {
    for (const query of ['code=x&state=y', 'error=access_denied', '']) {
      if ((await fetch(`${back.origin}/callback?${query}`)).status !== 404) throw new Error(`${query} was taken`)
    }
    await fetch(back)
  }
  meanwhile(child)
  const [code] = await once(child, 'close')
  if (code !== 0) throw new Error(text)
  return text
}

const inMinute = () => Date.now() + 30_000

t.test('a login keeps both tokens in one file that only the person can read', async (t) => {
  const { run, said, file, read, person } = await signedIn(t)
  t.match(said, new RegExp(`Signed in at ${address} as ${person.name}`))
  t.equal(statSync(file()).mode & 0o777, 0o600)
  t.match(read(), { url: address, access_token: /./, refresh_token: /./, scope: /secret:write/ })
  t.match(await run(['get', 'A', PLACE]), { code: 0, stdout: '1' }, 'the only login, and its only organization')
  t.match(await run(['set', 'B', PLACE], { input: '2' }), { code: 0 })
  const who = await run(['whoami', '--json'])
  t.match(JSON.parse(who.stdout), { kind: 'user', email: person.email })
  for (const secret of [read().access_token, read().refresh_token]) t.notOk((who.stdout + said).includes(secret))
})

t.test('ten processes at once renew the tokens once, and none ends the login', async (t) => {
  const { run, read, change, person, logins } = await signedIn(t)
  const pairs = async () => Number((await service.sql(`SELECT count(*)::int AS n FROM oauth_tokens k
    JOIN oauth_grants g ON g.id = k.grant_id WHERE g.user_id = ${person.id}`))[0]!.n)
  const before = { pairs: await pairs(), token: read().refresh_token }
  change({ expires_at: inMinute() })
  const ended = await Promise.all(Array.from({ length: 10 }, () => run(['get', 'A', PLACE])))
  for (const { code, stdout, stderr } of ended) t.strictSame([code, stdout, stderr], [0, '1', ''])
  t.not(read().refresh_token, before.token)
  t.equal(await pairs() - before.pairs, 1, 'one new pair of tokens')
  t.strictSame(readdirSync(logins).length, 1, 'no lock is left')
})

t.test('a process that is killed between the answer and the write ends the login, and leaves no lock', async (t) => {
  const { run, change, folder } = await signedIn(t)
  change({ expires_at: inMinute() })
  const preload = join(folder, 'kill.mjs')
  writeFileSync(preload, `import fs from 'node:fs'
    import { syncBuiltinESMExports } from 'node:module'
    const { openSync } = fs
    fs.openSync = (path, ...more) => {
      if (/[.]json[.]\\d/.test(String(path))) process.kill(process.pid, 'SIGKILL')
      return openSync(path, ...more)
    }
    syncBuiltinESMExports()`)
  t.match(await run(['get', 'A', PLACE], { env: { NODE_OPTIONS: `--import ${preload}` } }), { signal: 'SIGKILL' })
  const before = performance.now()
  t.match(await run(['run', PLACE, '--', 'true']), { code: 125, stderr: /has ended[^\n]*strongroom login/ })
  t.ok(performance.now() - before < 60_000)
})

t.test('on a full disk no token is renewed: the present one works to its end, and the login is kept', async (t) => {
  const { run, env, folder, change, logins } = await signedIn(t)
  change({ expires_at: inMinute() })
  const script = `cd '${folder}'; ulimit -f 0; exec "$0" "$1" get A ${PLACE}`
  t.match(await runProgram('sh', ['-c', script, process.execPath, CLIENT], env), { code: 0, stdout: '1' })
  change({ expires_at: Date.now() - 1000 })
  const ended = await runProgram('sh', ['-c', script, process.execPath, CLIENT], env)
  t.match(ended, { code: 1, stdout: '', stderr: /cannot be [^\n]*EFBIG/ })
  t.strictSame(readdirSync(logins).filter((name) => !name.endsWith('.json')), [], 'nothing half written, and no lock')
  t.match(await run(['get', 'A', PLACE]), { code: 0, stdout: '1' }, 'with room again, the login is renewed')
})

t.test('while the service is away, a login in its last minute still starts programs', async (t) => {
  const { run, change, read } = await signedIn(t)
  t.equal((await run(['run', PLACE, '--', 'true'])).code, 0)
  // The file names a service that is not there, which is the same for the client.
  change({ expires_at: Date.now() - 1000 })
  t.match(await run(['run', '--offline', PLACE, '--', 'sh', '-c', 'printf %s "$A"']), { code: 0, stdout: '1' })
  t.ok(read().expires_at < Date.now(), '--offline renews nothing')
  t.match(await run(['run', PLACE, '--', 'true']), { code: 0 }, 'an ended access token is renewed')
})

/** Sends a request on to the service, and the response back. */
async function forward (request: IncomingMessage, response: ServerResponse) {
  const { authorization = '', 'content-type': type = '' } = request.headers
  const found = await fetch(`${address}${request.url}`, {
    method: request.method!,
    headers: { ...authorization !== '' && { authorization }, ...type !== '' && { 'content-type': type } },
    ...request.method === 'POST' && { body: await buffer(request) }
  })
  const body = await found.text()
  const headers = { 'x-api-version': '1', 'content-type': found.headers.get('content-type')! }
  return () => { response.writeHead(found.status, headers).end(body) }
}

t.test('a renewal that the service answers late does not end the login', async (t) => {
  const { run, file, read, logins, change } = await signedIn(t)
  const slow = await otherServer(t, (request, response) => {
    forward(request, response).then(async (answer) => {
      if (request.url === '/api/oauth/token') await sleep(5_000)
      answer()
    }, () => response.destroy())
  })
  const login = { ...read(), url: slow.url }
  rmSync(file())
  writeFileSync(join(logins, `${createHash('sha256').update(slow.url).digest('hex').slice(0, 32)}.json`), JSON.stringify(login))
  t.match(await run(['run', PLACE, '--', 'true']), { code: 0, stderr: '' })
  for (const [name, expires_at] of [['in its last minute', inMinute()], ['after its end', Date.now() - 1000]] as const) {
    const before = read().refresh_token
    change({ expires_at })
    t.match(await run(['run', PLACE, '--', 'sh', '-c', 'printf %s "$A"']), { code: 0, stdout: '1', stderr: /cached copy/ }, name)
    t.not(read().refresh_token, before, `${name}: the new tokens are kept`)
    t.match(await run(['run', PLACE, '--', 'true']), { code: 0, stderr: '' }, `${name}: the login goes on`)
  }
})

t.test('a sign-in opens only a page of the service, and its code goes only there', async (t) => {
  for (const [name, endpoints] of Object.entries({
    'another scheme': { authorization_endpoint: 'file:///etc/passwd' },
    'another host': { authorization_endpoint: 'https://elsewhere.example/oauth/authorize' },
    none: {}
  })) {
    const odd = await otherServer(t, (_request, response) => {
      response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ issuer: odd.url, ...endpoints }))
    })
    t.match(await clientHome(t).run(['login', odd.url, '--no-browser']), { code: 1, stderr: /another place for the sign-in/ }, name)
    t.equal(odd.requests.length, 1, name)
  }
})

t.test('a login that cannot be stored is ended at the service', async (t) => {
  const person = await makePerson(service)
  const caller = await placeWith(service, 'A=1\n')
  await joinOrganization(service, caller.call, caller.organization, person, 'developer')
  const home = clientHome(t)
  writeFileSync(join(home.folder, 'config'), 'a file in the way')
  await t.rejects(signIn(home, person), /strongroom: [^\n]*(ENOTDIR|EEXIST)/)
  const [open] = await service.sql(`SELECT count(*)::int AS n FROM oauth_grants WHERE user_id = ${person.id}
    AND 'secret:read' = ANY (scopes) AND revoked_at IS NULL`)
  t.equal(open!.n, 0)
})

/** A script that the client loads first. It replaces `fetch` for URLs with these words. */
function replacing (home: ClientHome, words: string, answer: string): Record<string, string> {
  const preload = join(home.folder, `${words.replaceAll('/', '-')}.mjs`)
  writeFileSync(preload, `import fs from 'node:fs'
    const { fetch } = globalThis
    globalThis.fetch = (request, options) =>
      new URL(request.url ?? request).pathname === '${words}' ? ${answer} : fetch(request, options)`)
  return { NODE_OPTIONS: `--import ${preload}` }
}

const grantsOf = async ({ id }: Person) => Number((await service.sql(`SELECT count(*)::int AS n FROM oauth_grants
  WHERE user_id = ${id} AND 'secret:read' = ANY (scopes) AND revoked_at IS NULL`))[0]!.n)

t.test('a login that a signal ends before its file is written is ended at the service', async (t) => {
  for (const [signal, status] of [['SIGINT', 130], ['SIGTERM', 143], ['SIGHUP', 129]] as const) {
    const person = await makePerson(service)
    const home = clientHome(t)
    const reached = join(home.folder, 'reached')
    const env = replacing(home, '/api/v1/user', `(fs.writeFileSync('${reached}', ''), new Promise((resolve) => setTimeout(resolve, 60_000)))`)
    let ended: number | null = null
    await t.rejects(signIn(home, person, [], false, {
      env,
      meanwhile (child) {
        child.once('close', (code) => { ended = code })
        until(() => existsSync(reached)).then(() => child.kill(signal)).catch(t.fail)
      }
    }), /Interrupted: you are not signed in/)
    t.equal(ended, status, signal)
    t.equal(await grantsOf(person), 0, signal)
    t.notOk(existsSync(join(home.folder, 'config/strongroom/logins')))
  }
})

t.test('a second login says so if the first one could not be revoked', async (t) => {
  const home = await signedIn(t)
  const { person, read, run } = home
  const { refresh_token } = read()
  const env = replacing(home, '/api/oauth/revoke', "Promise.reject(new TypeError('fetch failed'))")
  const said = await signIn(home, person, [], false, { env })
  t.match(said, /The former login is removed from this machine, but not revoked: [^\n]*\/account/)
  t.not(read().refresh_token, refresh_token)
  t.match(await run(['get', 'A', PLACE]), { code: 0, stdout: '1' })
})

t.test('the copy of a person who was removed from the only organization is not used any more', async (t) => {
  const { run, person, caller } = await signedIn(t)
  t.equal((await run(['run', PLACE, '--', 'true'])).code, 0)
  t.equal((await run(['run', '--offline', PLACE, '--', 'true'])).code, 0)
  t.equal((await caller.call('DELETE', `/organizations/${caller.organization}/members/${person.id}`)).status, 204)
  t.match(await run(['run', PLACE, '--', 'true']), { code: 125, stderr: /You belong to no organization/ })
  t.match(await run(['run', '--offline', PLACE, '--', 'true']), { code: 125, stderr: /no cached copy/ })
})

t.test('logout says so if a page of a proxy answers, or if plain http was not allowed', async (t) => {
  const proxy = await otherServer(t, (_request, response) => { response.end('<html>sign in</html>') })
  for (const [url, problem] of [[proxy.url, /not revoked: [^\n]*page/], ['http://strongroom.invalid', /not revoked: [^\n]*plain http/]] as const) {
    const { run, file, read, logins } = await signedIn(t)
    const login = { ...read(), url }
    rmSync(file())
    writeFileSync(join(logins, `${createHash('sha256').update(url).digest('hex').slice(0, 32)}.json`), JSON.stringify(login))
    t.match(await run(['logout']), { code: 1, stderr: problem }, url)
    t.strictSame(readdirSync(logins), [])
  }
})

t.test('a revoked login says that the person must sign in, and its cached copies are not used any more', async (t) => {
  const { run, person, read } = await signedIn(t)
  for (const place of [PLACE, 'orbit']) t.equal((await run(['run', place, '--', 'true'])).code, 0)
  await service.sql(`UPDATE oauth_grants SET revoked_at = now() WHERE user_id = ${person.id}`).catch(() => undefined)
  await fetch(`${address}/api/oauth/revoke`, { method: 'POST', body: new URLSearchParams({ token: read().refresh_token, client_id: 'dotenv-cli' }) })
  t.match(await run(['run', PLACE, '--', 'true']), { code: 125, stderr: /strongroom login/ })
  for (const place of [PLACE, 'orbit']) {
    t.match(await run(['run', '--offline', place, '--', 'true']), { code: 125, stderr: /no cached copy/ }, place)
  }
})

t.test('logout revokes the tokens and removes them, also when the service is away', async (t) => {
  const { run, read, file, logins } = await signedIn(t)
  const { refresh_token } = read()
  t.ok(existsSync(file()))
  t.match(await run(['logout']), { code: 0, stderr: /Signed out/ })
  t.strictSame(readdirSync(logins), [])
  const refreshed = await fetch(`${address}/api/oauth/token`, { method: 'POST', body: new URLSearchParams({ grant_type: 'refresh_token', refresh_token, client_id: 'dotenv-cli' }) })
  t.equal(refreshed.status, 400)
  t.match(await run(['logout']), { code: 1, stderr: /no login/ })
  t.match(await run(['run', PLACE, '--', 'true']), { code: 125, stderr: /strongroom login URL/ })
})

t.test('a person asks for fewer permissions with --scope, and may paste the address of the redirect', async (t) => {
  const { run, read, said } = await signedIn(t, ['--scope', 'secret:read secret:decrypt organization:read'], true)
  t.match(said, /This is not the address/)
  t.equal(read().scope.split(' ').sort().join(' '), 'organization:read secret:decrypt secret:read')
  t.match(await run(['set', 'B', PLACE], { input: '2' }), { code: 1, stderr: /secret:write/ })
})

t.test('several organizations need a choice, and the list is named', async (t) => {
  const { run, person, caller } = await signedIn(t)
  const other = await placeWith(service, 'A=2\n')
  await joinOrganization(service, other.call, other.organization, person, 'developer')
  t.match(await run(['run', PLACE, '--', 'true']), { code: 125, stderr: /--organization/ })
  t.match(await run(['get', 'A', PLACE, '--organization', other.organization]), { stdout: '2' })
  t.match(await run(['get', 'A', PLACE], { env: { STRONGROOM_ORGANIZATION: caller.organization } }), { stdout: '1' })
})
