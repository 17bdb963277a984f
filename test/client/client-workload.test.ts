// runs: one database, embedded; 5 s
import { randomUUID } from 'node:crypto'
import { existsSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { parse } from 'yaml'
import { startApp } from '../helpers/app.ts'
import { readDoc } from '../helpers/docs.ts'
import { makeKey, signFor } from '../helpers/issuer.ts'
import { run as runProgram } from '../helpers/process.ts'
import { clientHome, CLIENT, otherServer, PLACE, placeWith, variablesIn } from '../helpers/strongroom.ts'

// A workload starts programs with the token of its platform, and without a stored secret.

const service = await startApp(t)
const address = await service.listen()
const page = readDoc('docs/workloads.md')
const ISSUER = 'https://platform.example.com'
const key = await makeKey()

interface Options { audience?: string, claims?: Record<string, unknown>, single_use?: boolean }

/** A place with a value, a trust rule for it, and a home of the client that uses the rule. */
async function workload (t: Test, { audience = address, claims = {}, ...more }: Options = {}) {
  const { call, organization } = await placeWith(service, 'A=live\n')
  const rule = await call('POST', `/organizations/${organization}/workloads`, {
    name: 'Job',
    issuer: ISSUER,
    jwks: { keys: [key.jwk] },
    audience,
    claims: { sub: 'job:7', ...claims },
    scopes: ['secret:read', 'secret:decrypt'],
    ...more
  })
  t.equal(rule.status, 201, rule.text)
  const { id, attributes: { public_id } } = rule.body.data
  const home = clientHome(t, { STRONGROOM_URL: address, STRONGROOM_WORKLOAD: public_id })
  const sign = (claims: Record<string, unknown> = {}) => signFor(ISSUER, key, { aud: audience, ...claims })
  return { ...home, call, organization, id, public_id, sign }
}

t.test('a program starts with the token of the platform in a variable, in a variable of any name, or in a file', async (t) => {
  const { run, sign, folder } = await workload(t)
  const path = join(folder, 'token')
  writeFileSync(path, `${await sign()}\n`)
  const token = await sign()
  const forms: Record<string, string>[] = [
    { STRONGROOM_ID_TOKEN: token }, { STRONGROOM_ID_TOKEN: 'MY_TOKEN', MY_TOKEN: token }, { STRONGROOM_ID_TOKEN_FILE: path }
  ]
  for (const env of forms) {
    const shown = await run(['run', PLACE, '--', 'env', '-0'], { env: { ...env, OTHER: 'here' } })
    t.equal(shown.code, 0, shown.stderr)
    const variables = variablesIn(shown.bytes)
    t.strictSame([variables.get('A'), variables.get('OTHER')], ['live', 'here'])
    t.notOk([...variables].some(([name, value]) => name.startsWith('STRONGROOM_') || value === token), 'the token stays with the client')
  }
  writeFileSync(path, await sign({ sub: 'job:8' }))
  const changed = await run(['run', PLACE, '--', 'true'], { env: { STRONGROOM_ID_TOKEN_FILE: path } })
  t.match(changed, { code: 125 }, 'the file is read anew')
  const kept = await run(['run', '--keep-token', PLACE, '--', 'env', '-0'], { env: { STRONGROOM_ID_TOKEN: 'MY_TOKEN', MY_TOKEN: token } })
  t.equal(variablesIn(kept.bytes).get('MY_TOKEN'), token)
})

/** The service of GitHub Actions that gives tokens to a job. */
const gitHub = (t: Test, sign: (claims: Record<string, unknown>) => Promise<string>) =>
  otherServer(t, async ({ url = '' }, response) => {
    const aud = new URL(url, address).searchParams.get('audience')
    response.setHeader('content-type', 'application/json').end(JSON.stringify({ value: await sign({ aud, jti: randomUUID() }) }))
  })

t.test('in GitHub Actions the client asks for a token with the address of the service as its audience', async (t) => {
  const { run, sign } = await workload(t, { single_use: true })
  const { url, requests } = await gitHub(t, sign)
  const env = { ACTIONS_ID_TOKEN_REQUEST_URL: `${url}/token?api-version=2.0`, ACTIONS_ID_TOKEN_REQUEST_TOKEN: 'of-the-job' }
  t.match(await run(['run', PLACE, '--', 'sh', '-c', 'echo $A'], { env }), { code: 0, stdout: 'live\n' })
  t.match(await run(['get', 'A', PLACE], { env }), { code: 0, stdout: 'live' }, 'each command gets a token of its own')
  const variables = variablesIn((await run(['run', PLACE, '--', 'env', '-0'], { env })).bytes)
  t.match(Object.fromEntries(variables), env, 'other tools need these')
  t.notOk(variables.has('STRONGROOM_WORKLOAD'))
  t.strictSame(requests.map(({ url, headers }) => [url, headers.authorization]), Array(3).fill(
    [`/token?api-version=2.0&audience=${encodeURIComponent(address)}`, 'Bearer of-the-job']))
  t.match(await run(['run', PLACE, '--', 'true'], { env: { ...env, STRONGROOM_AUDIENCE: 'other' } }), { code: 125 })
  t.match(requests[3]!.url, /audience=other$/)
})

t.test('the token of the job goes only to an https address or to this machine, and to no other address', async (t) => {
  const { run } = await workload(t)
  const elsewhere = await otherServer(t, (_request, response) => { response.end('{}') })
  const { url } = await otherServer(t, (_request, response) => {
    response.writeHead(302, { location: elsewhere.url }).end()
  })
  const asked = (address: string) => run(['run', PLACE, '--', 'true'], {
    env: { ACTIONS_ID_TOKEN_REQUEST_URL: address, ACTIONS_ID_TOKEN_REQUEST_TOKEN: 'of-the-job' }
  })
  t.match(await asked('http://github.example/token'), { code: 125, stderr: /is no https address/ })
  t.match(await asked(url), { code: 125, stderr: /token service of GitHub Actions cannot be reached/ })
  t.match(await asked(elsewhere.url), { code: 125, stderr: /has no token of a platform/ })
  t.notOk(elsewhere.requests.some(({ headers, url }) => headers.authorization !== undefined && url === '/'), 'no redirect is followed')
})

t.test('a refused token ends the command before the program starts, and is not shown', async (t) => {
  const { run, sign, call, organization, id } = await workload(t, { single_use: true })
  const token = await sign()
  const started = () => run(['run', PLACE, '--', 'echo', 'started'], { env: { STRONGROOM_ID_TOKEN: token } })
  t.match(await started(), { code: 0 })
  const again = await started()
  t.match(again, { code: 125, stdout: '', stderr: /^strongroom: [^\n]*refused the token of the platform: the assertion is not accepted for this client_id\. The audit[^\n]*\.\n$/ }, 'it was used')
  t.notOk(again.stderr.includes(token))
  await call('PATCH', `/organizations/${organization}/workloads/${id}`, { enabled: false })
  const other = await sign()
  t.match(await run(['get', 'A', PLACE], { env: { STRONGROOM_ID_TOKEN: other } }), { code: 1, stdout: '' })
})

t.test('a workload keeps no cached copy, and --offline says so', async (t) => {
  const { run, sign, env } = await workload(t)
  t.match(await run(['run', PLACE, '--', 'true'], { env: { STRONGROOM_ID_TOKEN: await sign() } }), { code: 0 })
  const cache = join(env.XDG_CACHE_HOME!, 'strongroom')
  t.strictSame(existsSync(cache) ? readdirSync(cache) : [], [])
  t.match(await run(['run', '--offline', PLACE, '--', 'true'], { env: { STRONGROOM_ID_TOKEN: await sign() } }), { code: 125, stderr: /keeps no cached copy/ })
  const { url } = await otherServer(t, (_request, response) => { response.writeHead(503).end() })
  t.match(await run(['run', PLACE, '--', 'true'], { env: { STRONGROOM_URL: url, STRONGROOM_ID_TOKEN: await sign() } }), {
    code: 125, stderr: /did not exchange the token of the platform: status 503/
  })
})

t.test('a short 429 of the exchange is waited for once', async (t) => {
  const { run, sign } = await workload(t)
  const { url, requests } = await otherServer(t, (_request, response) => {
    response.writeHead(429, { 'x-api-version': '1', 'retry-after': '0', 'content-type': 'application/json' }).end('{}')
  })
  const ended = await run(['run', PLACE, '--', 'true'], { env: { STRONGROOM_URL: url, STRONGROOM_ID_TOKEN: await sign() } })
  t.match(ended, { code: 125, stderr: /asks to wait/ })
  t.strictSame(requests.map(({ url }) => url), Array(2).fill('/api/oauth/token'))
})

t.test('what is missing or contradicts is said, and the token goes to no address of a file', async (t) => {
  const { run, sign, folder, public_id } = await workload(t)
  const STRONGROOM_ID_TOKEN = await sign()
  const failing: [env: Record<string, string>, line: RegExp][] = [
    [{}, /there is no token of a platform/],
    [{ STRONGROOM_ID_TOKEN: 'not.a token' }, /The variable STRONGROOM_ID_TOKEN has no token/],
    [{ STRONGROOM_ID_TOKEN: 'EMPTY' }, /The variable EMPTY has no token/],
    [{ STRONGROOM_ID_TOKEN_FILE: join(folder, 'none') }, /cannot be read: ENOENT/],
    [{ STRONGROOM_ID_TOKEN, STRONGROOM_ID_TOKEN_FILE: '/dev/null' }, /not both/],
    [{ STRONGROOM_ID_TOKEN, STRONGROOM_TOKEN: 'dotenv_1' }, /STRONGROOM_WORKLOAD or STRONGROOM_TOKEN, not both/],
    [{ STRONGROOM_ID_TOKEN, STRONGROOM_WORKLOAD: '7' }, /is no public id of a trust rule/]
  ]
  for (const [env, line] of failing) t.match(await run(['run', PLACE, '--', 'true'], { env }), { code: 125, stderr: line })
  const trap = await otherServer(t, (_request, response) => { response.end() })
  writeFileSync(join(folder, '.strongroom.yaml'), `url: ${trap.url}\n`)
  const { code, stderr } = await run(['run', PLACE, '--', 'true'], { env: { STRONGROOM_URL: '', STRONGROOM_WORKLOAD: public_id, STRONGROOM_ID_TOKEN } })
  t.match([code, stderr], [125, /is sent only to the address/])
  t.strictSame(trap.requests, [])
})

t.test('whoami and doctor name the rule and its end', async (t) => {
  const { run, sign } = await workload(t)
  const env = { STRONGROOM_ID_TOKEN: await sign() }
  const who = JSON.parse((await run(['whoami', '--json'], { env })).stdout)
  t.match(who, { kind: 'workload', name: 'Job', organizations: [{ slug: String }], expires_at: /^\d{4}-/ })
  t.match(await run(['doctor', PLACE], { env }), { code: 0, stdout: /yes, as a workload named Job/ })
})

/** The text with this address instead of that of the page. */
const here = (text: string) => text.replaceAll('https://strongroom.example', address)

t.test('the recipe of GitHub Actions starts its program', async (t) => {
  const { claims } = JSON.parse(page.allBlocks[0]!)
  const { public_id, sign, env: home, folder } = await workload(t, { claims })
  const job = parse(here(page.blocks('yaml', 'Use a rule')[0]!))
  t.equal(job.permissions['id-token'], 'write')
  const { url } = await gitHub(t, ({ aud }) => sign({ aud, repository_id: '4711', environment: job.environment }))
  const gives = { ACTIONS_ID_TOKEN_REQUEST_URL: url, ACTIONS_ID_TOKEN_REQUEST_TOKEN: 'x' }
  const env = { ...home, ...job.env, STRONGROOM_WORKLOAD: public_id, ...gives }
  await runSteps(t, job.steps.flatMap(({ run }: { run?: string }) => run ?? []), env, folder)
})

t.test('the recipe of GitLab CI starts its program', async (t) => {
  const { public_id, sign, env: home, folder } = await workload(t, { claims: { project_id: '22' } })
  const { test } = parse(here(page.blocks('yaml', 'Use a rule')[1]!))
  const { STRONGROOM_ID_TOKEN: { aud } } = test.id_tokens
  const STRONGROOM_ID_TOKEN = await sign({ aud, project_id: '22' })
  const env = { ...home, ...test.variables, STRONGROOM_WORKLOAD: public_id, STRONGROOM_ID_TOKEN }
  await runSteps(t, test.script, env, folder)
})

t.test('the recipe of Kubernetes starts its program', async (t) => {
  const sub = 'system:serviceaccount:live:orbit-backend'
  const { public_id, sign, env: home, folder } = await workload(t, { claims: { sub } })
  const { spec: { containers: [{ env, command, volumeMounts: [{ mountPath }] }], volumes: [volume] } } =
    parse(here(page.blocks('yaml', 'Use a rule')[2]!))
  const { path, audience } = volume.projected.sources[0].serviceAccountToken
  const variables = Object.fromEntries(env.map(({ name, value }: { name: string, value: string }) => [name, value]))
  t.equal(variables.STRONGROOM_ID_TOKEN_FILE, `${mountPath}/${path}`)
  const file = join(folder, path)
  writeFileSync(file, await sign({ aud: [audience], sub }))
  writeFileSync(join(folder, 'strongroom.mjs'), `import(${JSON.stringify(CLIENT)})`)
  await runSteps(t, [command.join(' ')], { ...home, ...variables, STRONGROOM_WORKLOAD: public_id, STRONGROOM_ID_TOKEN_FILE: file }, folder)
})

/** Runs the lines of a job in the folder, whose program prints a value. */
async function runSteps (t: Test, lines: string[], env: Record<string, string>, folder: string) {
  t.ok(lines.length > 0)
  writeFileSync(join(folder, 'package.json'), '{"scripts":{"test":"echo value=$A","start":"echo value=$A"}}')
  for (const line of lines) {
    const ended = await runProgram('sh', ['-c', `cd "$HOME" && ${line}`], env)
    t.equal(ended.code, 0, ended.stderr)
    if (line.includes(' run ')) t.match(ended.stdout, /^value=live$/m)
  }
}
