// runs: one database, embedded; 20 s
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, readdirSync, readFileSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { startApp } from '../helpers/app.ts'
import { run as runProgram } from '../helpers/process.ts'
import { asToken, CLIENT, clientHome, otherServer, PLACE, placeWith } from '../helpers/strongroom.ts'
import { until } from '../helpers/until.ts'

// The cached copy serves while the service is away, and at no other time.

const service = await startApp(t)
const show = ['--', 'sh', '-c', 'printf %s "$A"']

/** A client behind a server that can answer in place of the service. */
async function behind (t: Parameters<typeof clientHome>[0]) {
  const caller = await placeWith(service, 'A=1\n')
  const state: {
    status?: number,
    headers?: Record<string, string>,
    body?: string,
    silent?: boolean
    /** The responses of the service with documents wait for this. */
    held?: Promise<unknown>
  } = {}
  const address = await service.listen()
  const other = await otherServer(t, (request, response) => {
    if (state.silent === true) return
    if (state.status !== undefined) { response.writeHead(state.status, state.headers).end(state.body); return }
    const { held } = state
    fetch(`${address}${request.url}`, { headers: { authorization: request.headers.authorization! } }).then(async (found) => {
      if (request.url!.includes('/secrets')) await held
      response.writeHead(found.status, { 'x-api-version': '1', 'content-type': found.headers.get('content-type')! }).end(await found.text())
    }, () => response.destroy())
  })
  const home = clientHome(t, { ...await asToken(service, caller), STRONGROOM_URL: other.url })
  return { ...home, caller, state, other, files: () => readdirSync(join(home.folder, 'cache/strongroom')).map((name) => join(home.folder, 'cache/strongroom', name)) }
}

t.test('a service that is away is replaced by the cached copy, which says its age', async (t) => {
  const { run, state, other } = await behind(t)
  t.match(await run(['run', PLACE, ...show]), { code: 0, stdout: '1', stderr: '' })
  const ours = { 'x-api-version': '1', 'content-type': 'application/json' }
  for (const [name, trouble] of Object.entries({
    'a status of 500': { status: 500, headers: ours, body: '{"error":"internal_error"}' },
    'a status of 503': { status: 503, headers: ours, body: '{"error":"service_unavailable"}' },
    'a page of a proxy': { status: 200, body: '<html>sign in</html>' },
    'a page of a proxy with status 403': { status: 403, body: '<html>blocked</html>' },
    'a response that is no JSON': { status: 200, headers: ours, body: '{"A":' },
    'a long 429': { status: 429, headers: { ...ours, 'retry-after': '60' }, body: '{"error":"rate_limit_exceeded"}' },
    'no answer': { silent: true }
  })) {
    Object.assign(state, { status: undefined, headers: {}, body: '', silent: false }, trouble)
    const before = performance.now()
    t.match(await run(['run', PLACE, ...show]), { code: 0, stdout: '1', stderr: /cached copy, \d+ s old/ }, name)
    t.ok(performance.now() - before < 60_000, name)
    t.match(await run(['run', '--no-cache', PLACE, ...show]), { code: 125, stdout: '' }, `${name}: --no-cache`)
  }
  Object.assign(state, { status: undefined, silent: false })
  other.stop()
  t.match(await run(['run', PLACE, ...show]), { code: 0, stdout: '1', stderr: /ECONNREFUSED[^\n]*cached copy/ }, 'no connection')
  t.match(await run(['run', PLACE, ...show], { env: { STRONGROOM_URL: 'http://127.0.0.1:9' } }), { code: 125, stderr: /no cached copy/ }, 'bound to the service')
})

t.test('a refusal of the service is never replaced', async (t) => {
  const { run, state } = await behind(t)
  t.equal((await run(['run', PLACE, ...show])).code, 0)
  for (const status of [401, 403, 404, 422]) {
    Object.assign(state, { status, headers: { 'x-api-version': '1', 'content-type': 'application/json' }, body: '{"error":"refused","message":"No."}' })
    t.match(await run(['run', PLACE, ...show]), { code: 125, stdout: '', stderr: /No\./ }, String(status))
  }
})

t.test('after a refusal, the cached copy is not used while the service is away, nor with --offline', async (t) => {
  const { run, state } = await behind(t)
  const ours = { 'x-api-version': '1', 'content-type': 'application/json' }
  const other = PLACE.split('/')[0]!
  const away = { status: 503, headers: ours, body: '{"error":"service_unavailable"}' }
  const answerWith = (status: number | undefined) =>
    Object.assign(state, { status, headers: ours, body: '{"error":"refused","message":"No."}' })
  const load = async () => {
    answerWith(undefined)
    for (const place of [PLACE, other]) t.equal((await run(['run', place, '--', 'true'])).code, 0)
  }
  const isKept = async (place: string) => {
    Object.assign(state, away)
    const later = await run(['run', place, '--', 'true'])
    const offline = await run(['run', '--offline', place, '--', 'true'])
    t.equal(later.code, offline.code)
    if (later.code !== 0) for (const { stderr } of [later, offline]) t.match(stderr, /no cached copy/)
    return later.code === 0
  }
  const [none, others, all] = [[false, false], [false, true], [true, true]]
  for (const [status, kept] of [[401, none], [403, others], [404, others], [422, all]] as const) {
    await load()
    answerWith(status)
    t.equal((await run(['run', PLACE, '--', 'true'])).code, 125)
    t.strictSame([await isKept(PLACE), await isKept(other)], kept, String(status))
  }
  // Every command learns that the caller has ended, and the next success makes no copy of before valid again.
  for (const command of ['whoami', `get A ${PLACE}`]) {
    await load()
    answerWith(401)
    t.equal((await run(command.split(' '))).code, 1)
    t.strictSame([await isKept(PLACE), await isKept(other)], none, command)
    answerWith(undefined)
    t.equal((await run(['run', other, '--', 'true'])).code, 0)
    t.strictSame([await isKept(PLACE), await isKept(other)], others, command)
  }
})

t.test('values that were asked for before a refusal are not used as a copy after it', async (t) => {
  const { run, state, other } = await behind(t)
  const hold = new AbortController()
  state.held = once(hold.signal, 'abort')
  const slow = run(['run', PLACE, ...show])
  await until(() => other.requests.some(({ url }) => url!.includes('/secrets')))
  Object.assign(state, { status: 401, headers: { 'x-api-version': '1', 'content-type': 'application/json' }, body: '{"error":"refused","message":"No."}' })
  t.equal((await run(['run', PLACE, ...show])).code, 125)
  hold.abort()
  t.match(await slow, { code: 0, stdout: '1' })
  t.match(await run(['run', '--offline', PLACE, ...show]), { code: 125, stdout: '', stderr: /no cached copy/ })
})

t.test('a short 429 is waited for, and the values are new', async (t) => {
  const { run, state, other } = await behind(t)
  Object.assign(state, { status: 429, headers: { 'x-api-version': '1', 'retry-after': '1', 'content-type': 'application/json' }, body: '{"error":"rate_limit_exceeded"}' })
  const running = run(['run', PLACE, ...show])
  await until(() => other.requests.length > 0)
  state.status = undefined
  t.match(await running, { code: 0, stdout: '1', stderr: '' })
})

const mayUnshare = process.platform === 'linux' && spawnSync('unshare', ['-m', '-n', 'true']).status === 0

t.test('a server of names that is silent is waited for at most 3 s', { skip: !mayUnshare && 'needs namespaces' }, async (t) => {
  const { folder, env } = clientHome(t, { STRONGROOM_URL: 'https://strongroom.example', STRONGROOM_TOKEN: 'dotenv_x' })
  writeFileSync(join(folder, 'resolv.conf'), 'nameserver 127.0.0.1\n')
  writeFileSync(join(folder, 'silent.mjs'), `import { createSocket } from 'node:dgram'
    createSocket('udp4').bind(53, '127.0.0.1', () => console.log('bound'))`)
  const script = `ip link set lo up && mount --bind resolv.conf /etc/resolv.conf || exit 9
    "$0" silent.mjs >bound & until [ -s bound ]; do sleep 0.1; done
    "$0" -e 'console.log(Date.now())'
    "$0" "$1" run ${PLACE} -- true; echo $?
    "$0" -e 'console.log(Date.now())'
    kill $!`
  const { stdout, stderr } = await runProgram('unshare', ['-m', '-n', 'sh', '-c', `cd '${folder}'; ${script}`, process.execPath, CLIENT], env)
  const [before = 0, status, after = 0] = stdout.trim().split('\n').map(Number)
  t.equal(status, 125, stderr)
  t.match(stderr, /no cached copy/)
  t.ok(after - before < 9_000, `${after - before} ms, of which the starts of programs are some`)
})

t.test('all requests of a command together wait for one short 429', async (t) => {
  const limits = new Map<string, string>()
  const ours = { 'x-api-version': '1', 'content-type': 'application/json' }
  const other = await otherServer(t, ({ url = '' }, response) => {
    const wait = limits.get(url)
    if (wait === '1') limits.delete(url)
    if (wait !== undefined) return response.writeHead(429, { ...ours, 'retry-after': wait }).end('{"error":"rate_limit_exceeded"}')
    return response.writeHead(200, ours).end(url.endsWith('/values') ? '{"A":"1"}' : '{"data":{"attributes":{"slug":"nimbus"}}}')
  })
  const { run } = clientHome(t, { STRONGROOM_URL: other.url, STRONGROOM_TOKEN: 'dotenv_x' })
  const [organization, values] = ['/api/v1/organization', `/api/v1/nimbus/${PLACE}/secrets/values`]
  t.match(await run(['run', PLACE, ...show]), { code: 0, stdout: '1', stderr: '' })
  limits.set(organization, '1')
  t.match(await run(['run', PLACE, ...show]), { code: 0, stdout: '1', stderr: '' }, 'the first is waited for')
  limits.set(organization, '1').set(values, '1')
  t.match(await run(['run', PLACE, ...show]), { code: 0, stdout: '1', stderr: /status 429[^\n]*cached copy/ }, 'the second is not')
  for (const text of ['Thu, 01 Jan 2099 00:00:00 GMT', '6']) {
    limits.set(organization, text)
    t.match(await run(['run', PLACE, ...show]), { code: 0, stdout: '1', stderr: `Retry-After: ${text}` }, text)
  }
})

t.test('--offline asks nobody, and a copy that is too old, changed or of another caller is not used', async (t) => {
  const { run, other, files, caller } = await behind(t)
  t.match(await run(['run', '--offline', PLACE, ...show]), { code: 125, stderr: /no cached copy/ })
  await run(['run', PLACE, ...show])
  const asked = other.requests.length
  t.match(await run(['run', '--offline', PLACE, ...show]), { code: 0, stdout: '1', stderr: /cached copy/ })
  t.equal(other.requests.length, asked)
  t.match(await run(['run', '--offline', '--no-cache', PLACE, ...show]), { code: 125, stdout: '', stderr: /not both/ })
  t.match(await run(['run', '--offline', '--max-stale', '0', PLACE, ...show]), { code: 125, stderr: /--max-stale/ })
  for (const time of ['30m', '48h', '7d', '3600']) t.match(await run(['run', '--offline', '--max-stale', time, PLACE, ...show]), { code: 0 }, time)
  t.match(await run(['run', '--offline', '--max-stale', 'soon', PLACE, ...show]), { code: 125, stderr: /no time/ })
  t.match(await run(['run', '--offline', 'orbit/backend', ...show]), { code: 125 }, 'another place')
  const another = await service.token(caller.organization, ['secret:read', 'secret:decrypt'])
  t.match(await run(['run', '--offline', PLACE, ...show], { env: { STRONGROOM_TOKEN: another.token } }), { code: 125 }, 'another token')

  const [file] = files()
  const text = readFileSync(file!, 'utf8')
  t.notMatch(Buffer.from(text, 'base64').toString('latin1'), /"A"/, 'the copy is sealed')
  writeFileSync(file!, text.replace(/.(?=.{20}$)/, (character) => character === 'A' ? 'B' : 'A'))
  t.match(await run(['run', '--offline', PLACE, ...show]), { code: 125, stderr: /was changed/ })
})

t.test('of too many copies the oldest are removed, and no other file', async (t) => {
  const { run, folder, files } = await behind(t)
  const cache = join(folder, 'cache/strongroom')
  await run(['run', PLACE, ...show])
  const nameOf = (n: number) => String(n).padStart(40, '0')
  for (let n = 0; n < 600; n++) writeFileSync(join(cache, `${nameOf(n)}.sealed`), '')
  const others = ['notes.txt', 'x.sealed', nameOf(1), `${nameOf(2)}.backup`]
  for (const name of others) writeFileSync(join(cache, name), 'mine')
  for (const path of files()) utimesSync(path, 1, 1)
  t.match(await run(['run', PLACE, ...show]), { code: 0, stdout: '1' })
  t.ok(files().length < 300, `${files().length} files`)
  for (const name of others) t.equal(readFileSync(join(cache, name), 'utf8'), 'mine', name)
  t.match(await run(['run', '--offline', PLACE, ...show]), { code: 0, stdout: '1' }, 'the newest stays')
})

t.test('a response without an end is not read to fill the memory', async (t) => {
  let sent = 0
  const part = Buffer.alloc(1024 * 1024, 'x')
  const other = await otherServer(t, (_request, response) => {
    response.writeHead(200, { 'content-type': 'application/json', 'x-api-version': '1' })
    response.write('{"data":"')
    const more = () => {
      sent++
      if (!response.destroyed && sent < 500) response.write(part, more)
    }
    more()
  })
  const env = { STRONGROOM_URL: other.url, STRONGROOM_TOKEN: 'any' }
  const { code, stderr } = await clientHome(t, env).run(['get', 'A', PLACE, '--organization', 'nimbus'])
  t.strictSame([code, stderr], [1, `strongroom: ${other.url} answered with more than 64 MiB.\n`])
  t.ok(sent < 200, `${sent} MiB were sent`)
})

t.test('a cache that cannot be written does not stop a program', async (t) => {
  const { run, folder, env } = await behind(t)
  writeFileSync(join(folder, 'cache'), 'a file in the way')
  t.match(await run(['run', PLACE, ...show]), { code: 0, stdout: '1', stderr: '' })
  t.match(await run(['run', PLACE, ...show], { env: { XDG_CACHE_HOME: '/proc/self/none' } }), { code: 0, stdout: '1' })
  // With no room for a file, a write fails as on a full disk.
  const { code, stdout, stderr } = await runProgram('sh', ['-c', `ulimit -f 0; exec "$0" "$1" run ${PLACE} -- sh -c 'printf %s "$A"'`, process.execPath, CLIENT], { ...env, XDG_CACHE_HOME: join(folder, 'full') })
  t.strictSame([code, stdout, stderr], [0, '1', ''])
  t.strictSame(readdirSync(join(folder, 'full/strongroom')), [], 'nothing half written is left')
  chmodSync(folder, 0o500)
  t.match(await run(['run', PLACE, ...show], { env: { XDG_CACHE_HOME: '', HOME: folder } }), { code: 0, stdout: '1' })
  chmodSync(folder, 0o700)
})
