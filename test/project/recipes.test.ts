// runs: one database; 120 s
import { equal } from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  chmodSync, copyFileSync, existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync
} from 'node:fs'
import { createServer, request as send, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { parse, parseAllDocuments } from 'yaml'
import { makeLevel, startIsolatedApp } from '../helpers/app.ts'
import { readDoc } from '../helpers/docs.ts'
import { LONG, sample } from '../helpers/long.ts'
import { run, scratchDirectory, type Ended } from '../helpers/process.ts'
import { until } from '../helpers/until.ts'

// Runs every code block of the page unchanged, except for the addresses and folders.
const page = readDoc('docs/recipes.md')
const taken = new Set<string>()
function block (heading: string, language: string, which = 0) {
  const text = page.blocks(language, heading)[which]!
  taken.add(text)
  return text
}

// This file has its own database, because the recipes have fixed slugs.
const service = await startIsolatedApp(t)
const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
const owner = await service.organization({ slug: 'nimbus' })
await makeLevel(owner, { name: 'Orbit' })

const lacks = (await Promise.all(['bash', 'dash', 'curl', 'jq'].map(async (name) =>
  (await run('sh', ['-c', `command -v ${name}`])).code === 0 ? [] : [name]))).flat()
const skip = lacks.length > 0 && `${lacks.join(', ')} not installed`

const DOCUMENT = `PLAIN=hello
EMPTY=
SPACES="  two  spaces "
QUOTES='say "it" \`now\`, 100 %'
APOSTROPHE="it's"
LINES="one
  two

"
DOLLAR='$HOME and $(id) and \\n'
HASH="a # b"
my.name=no variable
RANDOM=evaluated by shells
`
const VALUES: Record<string, string> = {
  PLAIN: 'hello',
  EMPTY: '',
  SPACES: '  two  spaces ',
  QUOTES: 'say "it" `now`, 100 %',
  APOSTROPHE: 'it\'s',
  LINES: 'one\n  two\n\n',
  DOLLAR: '$HOME and $(id) and \\n',
  HASH: 'a # b'
}
const ALL = { ...VALUES, 'my.name': 'no variable', RANDOM: 'evaluated by shells' }
const LEFT_OUT = 'Left out, because a shell cannot set them: RANDOM, my.name\n'

// Simulates the machine of the page. It has the script, a program that prints its arguments and its environment, and
// the other files that the recipes use.
const machine = scratchDirectory(t)
const at = (...names: string[]) => join(machine, ...names)
for (const name of ['bin', 'bash', 'etc', 'run', 'home/.config/strongroom']) mkdirSync(at(name), { recursive: true })
const withSecrets = readFileSync('examples/with-secrets.sh', 'utf8')
writeFileSync(at('bin', 'with-secrets'), withSecrets)
// Some systems use bash as `/bin/sh`, so the recipes also run the script in bash.
writeFileSync(at('bash', 'with-secrets'), withSecrets.replace('#!/bin/sh\n', '#!/usr/bin/env bash\n'))
writeFileSync(at('bin', 'server'), '#!/bin/sh\nprintf "%s\\0" "$*"\nexec env -0\n')
for (const name of ['bin/with-secrets', 'bash/with-secrets', 'bin/server']) chmodSync(at(name), 0o755)
writeFileSync(at('.env'), DOCUMENT)

/** Where a recipe runs: the shell with its arguments, the folder, and the URL of the service or of a proxy. */
interface Place { shell: readonly string[], folder: string, url: string }
const DASH = ['dash', '-euc']
const BASH = ['bash', '--noprofile', '--norc', '-euc']
const SHELLS = LONG ? [DASH, BASH] : [DASH]
const HERE: Place = { shell: DASH, folder: machine, url: address }
const binOf = ({ shell }: Place) => at(shell === BASH ? 'bash' : 'bin')

const placesOf = (place: Place): Record<string, string> => ({
  'https://strongroom.example': place.url,
  '/usr/local/bin/server': at('bin', 'server'),
  '/usr/local/bin': binOf(place),
  '/etc/strongroom': at('etc'),
  '/run/strongroom': place.folder === machine ? at('run') : place.folder,
  '/run/secrets': at('etc')
})
function here (text: string, place = HERE) {
  const places = placesOf(place)
  return text.replace(new RegExp(Object.keys(places).join('|'), 'g'), (name) => places[name]!)
}

const environment = (more: Record<string, string> = {}, place = HERE) =>
  ({ PATH: `${binOf(place)}:${at('bin')}:${process.env.PATH}`, HOME: at('home'), ...more })
const sh = (script: string, env: Record<string, string> = {}, place = HERE) =>
  run(place.shell[0]!, [...place.shell.slice(1), `cd ${place.folder}\n${here(script, place)}`], environment(env, place))
/** Asserts that the application got its arguments and every value. Returns its environment. */
function hasAll (t: Test, { code, stdout, stderr }: Ended, args = '--port 8000', said = LEFT_OUT) {
  t.same([code, withoutFaults(stderr)], [0, said])
  const [given, ...variables] = stdout.split('\0').slice(0, -1)
  const env = Object.fromEntries(variables.map((text) => /^(.*?)=(.*)$/s.exec(text)!.slice(1) as [string, string]))
  t.equal(given, args)
  t.same(Object.fromEntries(Object.entries(env).filter(([name]) => Object.hasOwn(ALL, name))), VALUES)
  return env
}

// Removes the messages of curl about a failed attempt, and those of jq about a page of a proxy.
const withoutFaults = (stderr: string) => stderr.replace(/^(?:curl: |parse error: |jq: error |Warning: ).*\n/gm, '')

// Records all command lines during each request, while the client process waits for the response.
const commandLines: string[] = []
service.app.server.prependListener('request', () => { commandLines.push(allCommandLines()) })

/**
 * The command lines of all processes. On Linux, reads them from the kernel, because a `ps` for each request would take
 * most of the time.
 */
function allCommandLines (): string {
  if (!existsSync('/proc/self/cmdline')) return execFileSync('ps', ['-Awwo', 'args=']).toString()
  return readdirSync('/proc').filter((name) => /^\d/.test(name)).map((pid) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'latin1').replaceAll('\0', ' ')
    } catch {
      return 'a process that has ended'
    }
  }).join('\n')
}

async function store (project: string, values: object, level: object = { target: 'backend', environment: 'live' }) {
  const { status } = await owner.call('POST', `/${owner.organization}/secrets/store`, {
    project, ...level, plaintext: JSON.stringify(values)
  })
  equal(status, 200)
}

// The recipe of the page creates this token; all later tests use it.
let token = ''

t.test('a recipe makes the narrowest token that the others need', { skip }, async (t) => {
  const made = await sh(block('A token that reads', 'sh'), { STRONGROOM_TOKEN: owner.token })
  t.same(made, { code: 0, stdout: '', stderr: '' })
  token = readFileSync(at('token'), 'utf8').trim()
  const { body } = await owner.call('GET', `/organizations/${owner.organization}/api-keys`)
  t.match(body.data.find(({ name }: { name: string }) => name === 'live'), {
    abilities: ['secret:read', 'secret:decrypt'], restrictions: [{ project: 'orbit' }]
  })
  for (const folder of ['etc', 'home/.config/strongroom']) copyFileSync(at('token'), at(folder, 'token'))
  copyFileSync(at('token'), at('etc/strongroom-token'))
})

t.test('a recipe stores a file as it is', { skip }, async (t) => {
  const stored = await sh(block('Store a file', 'sh'), { STRONGROOM_TOKEN: owner.token })
  t.match(stored, { code: 0, stdout: '"level":"environment"', stderr: '' })
  const { body } = await owner.call('GET', `/${owner.organization}/orbit/backend/live/secrets?decrypt=true`)
  t.equal(body.data.attributes.levels.environment.content, DOCUMENT)
})

t.test('with-secrets gives a process every value as it is, and not the token', { skip }, async (t) => {
  t.equal(block('A process', 'sh', 1), withSecrets, 'the page shows the script')
  const script = block('A process', 'sh')
  for (const ended of [
    await sh(script), await sh(script.replace('strongroom/token', 'strongroom/none'), { STRONGROOM_TOKEN: token })
  ]) {
    const env = hasAll(t, ended)
    t.notOk(Object.values(env).some((value) => value.includes(token)))
  }
})

t.test('with-secrets does not run the command when the read is refused', { skip }, async (t) => {
  const script = block('A process', 'sh')
  for (const [changed, said, env] of [
    [script.replace('backend/live', 'backend/none'), '404'],
    [script, '401', { STRONGROOM_TOKEN: `${token}x` }],
    [script.replace('strongroom/token', 'strongroom/none'), 'No such file'],
    ['with-secrets nimbus/orbit/backend/live server', 'STRONGROOM_URL'],
    [script.replace(/ nimbus.*/, ''), 'which level']
  ] as const) {
    const { code, stdout, stderr } = await sh(changed, env)
    t.not(code, 0, said)
    t.equal(stdout, '')
    t.match(stderr, said)
  }
})

const INVALID_TOKEN = 'Send the header `Authorization: Bearer TOKEN` with a token that is complete'

const REFUSALS: Record<string, (token: string) => Promise<Ended>> = {
  'Store a file': (token) => sh(block('Store a file', 'sh'), { STRONGROOM_TOKEN: token }),
  'A process': (token) => sh(block('A process', 'sh'), { STRONGROOM_TOKEN: token }),
  'Without jq': (token) =>
    sh(block('Without jq', 'sh'), { STRONGROOM_URL: address, STRONGROOM_TOKEN: token }),
  'GitHub Actions': async (token) => (await github(token)).ended,
  Kubernetes: (token) => initContainer(token),
  'A command line tool': (token) => sh(block('A command line tool', 'sh'), { STRONGROOM_TOKEN: token })
}
for (const [name, run] of Object.entries(REFUSALS)) {
  t.test(`${name}: a refused recipe fails and shows the message of the response`, { skip }, async (t) => {
    const { code, stdout, stderr } = await run(`${owner.token}x`)
    t.not(code, 0)
    t.match(stdout + stderr, INVALID_TOKEN)
  })
}

t.test('a recipe that makes a token fails and shows the message of the response', { skip }, async (t) => {
  const { code, stderr } = await sh(
    `cd run\n${block('A token that reads', 'sh')}`, { STRONGROOM_TOKEN: `${owner.token}x` }
  )
  t.not(code, 0)
  t.match(stderr, INVALID_TOKEN)
})

const PODS = LONG ? 100 : 4
t.test(`a rollout of ${PODS} pods beyond the rate limit: each reads its secrets after Retry-After`, { skip }, async (t) => {
  const { now } = Date
  t.teardown(() => { Date.now = now })
  const limited = await startIsolatedApp(t, { RATE_LIMIT_API: '100' })
  const url = await limited.app.listen({ host: '127.0.0.1', port: 0 })
  const caller = await limited.organization({ slug: 'nimbus' })
  await makeLevel(caller, { name: 'Orbit' })
  await caller.call('POST', `/${caller.organization}/secrets/store`, {
    project: 'orbit', target: 'backend', environment: 'live', plaintext: 'GREETING=hello'
  })
  const statuses = new Map<number, number>()
  limited.app.server.on('request', (_request, response: ServerResponse) => {
    response.once('finish', () => statuses.set(response.statusCode, (statuses.get(response.statusCode) ?? 0) + 1))
  })
  // Uses up the rate limit; its window then ends soon.
  await until(async () => (await caller.call('GET', `/${caller.organization}/orbit`)).status === 429, { every: 0 })
  Date.now = () => now() + 45_000
  const script = block('A process', 'sh').replace(/ server .*/, '').replace('https://strongroom.example', url)
  // Half of the pods use the script, the other half the init container.
  const ended = await Promise.all(Array.from({ length: PODS }, async (_, i) => {
    if (i % 2 === 0) return (await sh(script, { STRONGROOM_TOKEN: caller.token })).stdout
    const folder = scratchDirectory(t)
    const { code, stderr } = await initContainer(caller.token, { shell: DASH, folder, url })
    return code === 0 ? readFileSync(join(folder, 'secrets.json'), 'utf8') : stderr
  }))
  for (const [i, read] of ended.entries()) t.equal(read, i % 2 === 0 ? "export GREETING='hello'\n" : '{"GREETING":"hello"}')
  t.equal(statuses.get(200), PODS)
  t.ok(statuses.get(429)! > 0, `some were beyond the limit: ${JSON.stringify([...statuses])}`)
})

t.test('a shell without jq evaluates a text with every value as it is', { skip }, async (t) => {
  await makeLevel(owner, { slug: 'shell', name: 'Shell', secret_format: 'json' })
  const script = `${block('Without jq', 'sh').replace('/orbit/', '/shell/')}\nserver --port 8000`
  const env = { STRONGROOM_URL: address, STRONGROOM_TOKEN: owner.token }
  await store('shell', VALUES)
  hasAll(t, await sh(script, env), '--port 8000', '')
  await store('shell', ALL)
  const refused = await sh(script, env)
  t.not(refused.code, 0, 'a name that is not valid for a variable')
  t.match([refused.stdout, refused.stderr], ['', '422'])
  for (const shell of SHELLS) {
    await store('shell', { SMALL: 'x', LARGE: `it's\nSMALLER=${'x'.repeat(131_071)}`, name: 'y' })
    const tooLarge = await sh(script, env, { ...HERE, shell })
    t.same([tooLarge.code, tooLarge.stdout], [1, ''], shell[0]!)
    t.match(tooLarge.stderr, /^Too large for the environment of a program; the largest:\nLARGE 13\d{4}\n/)
  }
  await store('shell', VALUES)
})

t.test('an env file for Docker has every value as it is, or the recipe shows the names that it cannot hold', { skip }, async (t) => {
  await makeLevel(owner, { slug: 'docker', name: 'Docker', secret_format: 'json' })
  writeFileSync(at('bin', 'docker'), '#!/bin/sh\nprintf "%s\\n" "$2 $4"; cat "$3"\n')
  chmodSync(at('bin', 'docker'), 0o755)
  const script = block('Env file for Docker', 'sh').replace('/orbit/', '/docker/')
  const env = { STRONGROOM_URL: address, STRONGROOM_TOKEN: owner.token }
  const { LINES, ...held } = ALL as Record<string, string>
  await store('docker', held)
  const lines = Object.entries(held).map(([name, value]) => `${name}=${value}\n`).join('')
  t.same(await sh(script, env), { code: 0, stdout: `--env-file registry.example/orbit-backend\n${lines}`, stderr: '' })
  await store('docker', { ...held, LINES })
  const refused = await sh(script, env)
  t.not(refused.code, 0)
  t.match(refused, { stdout: '', stderr: /names_not_in_docker.*"names":\["LINES"\]/ })

  await makeLevel(owner, { slug: 'large', name: 'Large', secret_format: 'json' })
  for (const [i, level] of [{}, { target: 'backend' }, { target: 'backend', environment: 'live' }].entries()) {
    await store('large', Object.fromEntries(Array.from({ length: 15 }, (_, j) => [`N${i}_${j}`, 'x'.repeat(60_000)])), level)
  }
  const tooLarge = await sh(script.replace('/docker/', '/large/'), env)
  t.not(tooLarge.code, 0)
  t.match(tooLarge, { stdout: '', stderr: /^Too large for the environment of a program; the largest:\n(?:N\d_\d+ 6000\d\n){5}$/ })
  const step = await github(owner.token, (script) => script.replace('/orbit/', '/large/'))
  t.match([step.file, step.ended.stderr], ['', /^Too large for the environment of a step; the largest: N\d_/])
})

t.test('a name that is no variable runs nothing, and sets none', { skip }, async (t) => {
  await makeLevel(owner, { slug: 'odd', name: 'Odd', secret_format: 'json' })
  const odd = { PLAIN: 'odd', 'A;touch a;': '1', 'B\ntouch b\n': '2', '$(touch c)': '3', 'D\n': '4', '': '5', 'E<<F': '6' }
  await store('odd', odd)
  const { stdout, stderr } = await sh(
    block('A process', 'sh').replace('/orbit/', '/odd/').replace(/ server .*/, ''), { STRONGROOM_TOKEN: owner.token }
  )
  t.equal(stdout, "export PLAIN='odd'\n")
  t.match(stderr, /^Left out, because a shell cannot set them: , \$\(touch c\), A;touch a;, /)
  const { file } = await github(owner.token, (script) => script.replace('/orbit/', '/odd/'))
  t.same(variablesIn(file), { PLAIN: 'odd' })
})

t.test('the GitHub Actions step sets every value for the steps after it, and masks each line', { skip }, async (t) => {
  const { ended, file } = await github(token)
  t.same([ended.code, ended.stderr], [0, 'Left out, because a step cannot set them: RANDOM, my.name\n'])
  t.same(variablesIn(file), VALUES)
  const ofOneLine = Object.values(ALL).filter((value) => value !== '' && !value.includes('\n'))
  t.strictSame(masksIn(ended).sort(), ofOneLine.sort())
  const refused = await github(`${token}x`)
  t.not(refused.ended.code, 0)
  t.same([refused.ended.stdout, refused.file], ['', ''])

  await makeLevel(owner, { slug: 'masks', name: 'Masks', secret_format: 'json' })
  const stored = {
    KEY: '-----BEGIN KEY-----\nMIIEvQIBADANBgkq\r\n1234567\n12345678\r100 % of\n\n-----END KEY-----\n',
    JSON: '{\n  "password": "hunter2"\n}\n',
    PIN: '1234',
    UID: '0',
    SECONDS: '1',
    NODE_OPTIONS: '--x',
    GITHUB_TOKEN: 'abc',
    'a\n::add-path::/tmp': 'odd'
  }
  await store('masks', stored)
  const masked = await github(owner.token, (script) => script.replace('/orbit/', '/masks/'))
  t.same([masked.ended.code, masked.ended.stderr], [
    0, 'Left out, because a step cannot set them: GITHUB_TOKEN, NODE_OPTIONS, SECONDS, UID, a\\n::add-path::/tmp\n'
  ])
  t.strictSame(masksIn(masked.ended).sort(), [
    '-----BEGIN KEY-----', 'MIIEvQIBADANBgkq', '12345678', '100 % of', '-----END KEY-----', '  "password": "hunter2"',
    '1234', '0', '1', '--x', 'abc', 'odd'
  ].sort())
  t.same(variablesIn(masked.file), { KEY: stored.KEY, JSON: stored.JSON, PIN: stored.PIN })

  await store('masks', { SMALL: 'x', LARGE: 'x'.repeat(131_071) })
  const tooLarge = await github(owner.token, (script) => script.replace('/orbit/', '/masks/'))
  t.not(tooLarge.ended.code, 0)
  t.same([tooLarge.ended.stderr, tooLarge.file], [
    'Too large for the environment of a step; the largest: LARGE 131077, SMALL 7\n', ''
  ])
})

t.test('the Kubernetes init container writes every value where the application has it', { skip }, async (t) => {
  const { spec } = parse(block('Kubernetes', 'yaml'))
  const [init] = spec.initContainers
  const [application] = spec.containers
  const [volume] = spec.volumes
  t.same(volume.emptyDir, { medium: 'Memory' })
  t.same(init.command.slice(0, 2), ['sh', '-euc'])
  t.same(
    [init, application].map(({ volumeMounts: [{ name, mountPath }] }) => [name, mountPath]),
    [[volume.name, '/run/strongroom'], [volume.name, '/run/strongroom']]
  )
  t.same(await initContainer(token), { code: 0, stdout: '', stderr: '' })
  t.same(JSON.parse(readFileSync(at('run', 'secrets.json'), 'utf8')), ALL)
})

t.test('the External Secrets Operator reads one value for each name', { skip }, async (t) => {
  const [store, secret, external] = parseAllDocuments(block('External Secrets Operator', 'yaml'))
    .map((document) => document.toJS())
  const { webhook } = store.spec.provider
  t.equal(secret.metadata.name, webhook.secrets[0].secretRef.name)
  t.equal(external.spec.secretStoreRef.name, store.metadata.name)
  t.equal(webhook.headers.Authorization, `Bearer {{ .${webhook.secrets[0].name}.${Object.keys(secret.stringData)[0]} }}`)
  t.equal(webhook.result.jsonPath, '$', 'the whole response')
  const config = `header = "Authorization: Bearer ${token}"`
  const { stdout } = await run('curl', ['-sSK', '-', here(webhook.url)], environment(), config)
  t.same(JSON.parse(stdout), ALL)
})

t.test('External Secrets Operator: a request with the token of the operator shows the message of a refusal', { skip }, async (t) => {
  // `kubectl` renders the template with the Secret of the page.
  const [, secret] = parseAllDocuments(block('External Secrets Operator', 'yaml')).map((document) => document.toJS())
  const script = block('External Secrets Operator', 'sh')
  const [, name, template] = /kubectl get secret (\S+) -o 'go-template=(.+?)'/.exec(script)!
  t.equal(name, secret.metadata.name)
  t.match(template, /\{\{ \.data\.token \| base64decode \}\}$/)
  t.ok('token' in secret.stringData)
  for (const [sent, said] of [[`${token}x`, INVALID_TOKEN], [token, 'The token reads 10 values.']] as const) {
    installKubectl(sent)
    const { code, stdout, stderr } = await sh(script)
    t.same([code, stderr], [0, ''])
    t.ok(stdout.startsWith(said), stdout)
  }
})

t.test('the table of the page has every recipe, and says of each what retries', async (t) => {
  const rows = page.table('| Recipe | Retries |')
  const listed = rows.flatMap(([names = '', retries = '']) => names.split(', ').map((name) => [name, retries] as const))
  const headings = [...page.text.matchAll(/^## (.+)$/gm)].map(([, heading]) => heading!).filter((heading) => heading !== 'Many readers at once')
  t.strictSame(listed.map(([name]) => name).sort(), headings.sort())
  for (const [name, retries] of listed) {
    const text = page.text.split(`\n## ${name}\n`)[1]!.split('\n## ')[0]!
    if (retries.startsWith('curl')) t.match(text, /--retry 5|with-secrets/, name)
    else if (retries === 'the provider') t.match(text, /retry \{\n +attempts = 5/, name)
    else t.match([retries, text], ['the operator', /tries again by itself/], name)
  }
})

t.test('the systemd unit starts the application with every value, by the credential that it loads', { skip }, async (t) => {
  t.match(block('systemd', 'ini'), /^(?:(?:\[[A-Z]\w+\]|[A-Z]\w+=\S.*)?\n)+$/, 'sections and settings')
  hasAll(t, await startUnit())
})

t.test('the Compose service starts the application with every value', { skip }, async (t) => {
  const { services: { backend }, secrets } = parse(block('Docker', 'yaml'))
  t.same(backend.secrets, Object.keys(secrets))
  t.equal(secrets['strongroom-token'].file, './token')
  t.same(backend.volumes, ['./with-secrets.sh:/usr/local/bin/with-secrets:ro'])
  t.equal(backend.entrypoint[0], 'sh')
  hasAll(t, await startService())
})

t.test('direnv\'s file sets every value, and fails when the read is refused', { skip }, async (t) => {
  hasAll(t, await sh(`${block('direnv', 'bash')}\nserver`), '')
  t.match(await sh(block('direnv', 'bash'), { STRONGROOM_TOKEN: `${token}x` }), { code: 1, stdout: '', stderr: INVALID_TOKEN })
})

t.test('what Terraform is told to ask, sent with curl, is answered with what it is told to take', { skip }, async (t) => {
  const text = here(block('Terraform', 'hcl')).replace(/\$\{var\.strongroom_token\}/, token)
  const [, url] = /\burl += "(.+)"/.exec(text)!
  const [, headers] = /request_headers = \{\n(.*?)\n {2}\}/s.exec(text)!
  const config = [...headers!.matchAll(/(\S+) += "(.+)"/g)]
    .map(([, name, value]) => `header = "${name}: ${value}"\n`).join('')
  const { code, stdout } = await run('curl', ['-sSfK', '-', '-w', '\n%{content_type}', url!], environment(), config)
  t.equal(code, 0)
  const [body, type] = stdout.split('\n')
  t.match(type, /^application\/json(;|$)/)
  t.match(text, /secrets = sensitive\(jsondecode\(data\.http\.secrets\.response_body\)\)/)
  t.same(JSON.parse(body!), ALL)
})

t.test('what a command line tool sends to fetch the values is answered with them', { skip }, async (t) => {
  const { code, stdout, stderr } = await sh(block('A command line tool', 'sh'), { STRONGROOM_TOKEN: token })
  t.same([code, stderr], [0, ''])
  t.same(JSON.parse(stdout), ALL)
})

const answers = (status: number, type: string, body: string): Fault => (response) => {
  response.writeHead(status, { 'content-type': type, 'content-length': Buffer.byteLength(body) }).end(body)
}
const HTML = '<html>\n\n<h1>Warming up</h1></html>'
const TEXT = 'PLAIN=$(touch hit)\ntouch hit\n'
const FAULTS: Record<string, Fault> = {
  'HTML of status 502': answers(502, 'text/html', HTML),
  'HTML of status 404': answers(404, 'text/html', HTML),
  'HTML of status 200': answers(200, 'text/html', HTML),
  'text of status 503': answers(503, 'text/plain', TEXT),
  'text of status 200': answers(200, 'text/plain', TEXT),
  'JSON of status 200': answers(200, 'application/json', '{}'),
  'an empty response': answers(200, 'text/plain', ''),
  nothing: (response) => { response.socket!.destroy() },
  'a part of the response': (response) => {
    response.writeHead(200, { 'content-type': 'text/plain', 'x-api-version': '1', 'content-length': '1000' })
    response.write("PLAIN='")
    setImmediate(() => response.socket!.destroy())
  }
}
type Fault = (response: ServerResponse) => void

/** A proxy before the service that fails for some requests; with `loses`, the service still gets these. */
async function proxy (
  t: Test, fault: Fault, { loses = false, failing = (which: number): boolean => which === 1 } = {}
): Promise<string> {
  let count = 0
  const server = createServer((request, response) => {
    const fails = failing(++count)
    if (fails && !loses) {
      request.resume().once('end', () => fault(response))
      return
    }
    const { method, headers } = request
    request.pipe(send(new URL(request.url!, address), { method, headers }, (given: IncomingMessage) => {
      if (fails) given.resume().once('end', () => fault(response))
      else given.pipe(response.writeHead(given.statusCode!, given.headers))
    }))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => server.close())
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

/** What each recipe of the page must do behind a proxy that fails once. */
const SURVIVES: Record<string, (t: Test, place: Place) => Promise<void>> = {
  'A token that reads': async (t, place) => {
    t.match(await sh(block('A token that reads', 'sh'), { STRONGROOM_TOKEN: owner.token }, place), { code: 0, stdout: '' })
    t.match(readFileSync(join(place.folder, 'token'), 'utf8'), /^dotenv_\S+\n$/)
  },
  'Store a file': async (t, place) => {
    writeFileSync(join(place.folder, '.env'), DOCUMENT)
    const stored = await sh(block('Store a file', 'sh'), { STRONGROOM_TOKEN: owner.token }, place)
    t.equal(stored.code, 0, stored.stderr)
    t.match(stored.stdout, '"level":"environment"')
  },
  'A process': async (t, place) => { hasAll(t, await sh(block('A process', 'sh'), {}, place)) },
  'Without jq': async (t, place) => {
    const script = `${block('Without jq', 'sh').replace('/orbit/', '/shell/')}\nserver --port 8000`
    hasAll(t, await sh(script, { STRONGROOM_URL: place.url, STRONGROOM_TOKEN: owner.token }, place), '--port 8000', '')
  },
  'GitHub Actions': async (t, place) => {
    const { ended, file } = await github(token, undefined, place)
    t.equal(ended.code, 0, ended.stderr)
    t.same(variablesIn(file), VALUES)
  },
  Kubernetes: async (t, place) => {
    t.match(await initContainer(token, place), { code: 0, stdout: '' })
    t.same(JSON.parse(readFileSync(join(place.folder, 'secrets.json'), 'utf8')), ALL)
  },
  'External Secrets Operator': async (t, place) => {
    const { stdout } = await sh(block('External Secrets Operator', 'sh'), {}, place)
    t.equal(stdout, 'The token reads 10 values.\n')
  },
  systemd: async (t, place) => { hasAll(t, await startUnit(place)) },
  Docker: async (t, place) => {
    writeFileSync(join(place.folder, 'with-secrets.sh'), withSecrets)
    hasAll(t, await startService(place))
  },
  'Env file for Docker': async (t, place) => {
    const script = block('Env file for Docker', 'sh').replace('/orbit/', '/docker/')
    const { code, stdout } = await sh(script, { STRONGROOM_URL: place.url, STRONGROOM_TOKEN: owner.token }, place)
    t.equal(code, 0)
    t.match(stdout, /^--env-file registry\.example\/orbit-backend\nPLAIN=hello\n/)
  },
  direnv: async (t, place) => { hasAll(t, await sh(`${block('direnv', 'bash')}\nserver`, {}, place), '') },
  'A command line tool': async (t, place) => {
    const { code, stdout } = await sh(block('A command line tool', 'sh'), { STRONGROOM_TOKEN: token }, place)
    t.equal(code, 0)
    t.same(JSON.parse(stdout), ALL)
  }
}

for (const shell of SHELLS) {
  t.test(`in ${shell[0]}, every recipe works behind a proxy that fails once`, { skip, timeout: 120_000 }, async (t) => {
    installKubectl(token)
    const { LINES, ...held } = ALL as Record<string, string>
    await store('docker', held)
    const names = Object.keys(FAULTS)
    // The recipes that run with-secrets differ only in how they start it. The diagnosis of the External Secrets
    // Operator prints any JSON.
    const runs = Object.entries(SURVIVES).flatMap(([name, survives], i) => Object.entries(FAULTS)
      .filter(([fault]) => !['systemd', 'Docker', 'direnv'].includes(name) || fault === 'HTML of status 200')
      .filter(([fault]) => name !== 'External Secrets Operator' || fault !== 'JSON of status 200')
      .filter(([fault]) => shell === DASH || ['HTML of status 200', 'text of status 503', 'nothing'].includes(fault))
      // Without LONG, each recipe has one fault, and each fault has one recipe.
      .filter(([fault], _, all) => LONG || all.length === 1 || names.indexOf(fault) === i % names.length)
      .map(([fault, fails]) => ({ name: `${name}: ${fault}`, survives, fails })))
    // The tests mostly wait, so many can run at once.
    t.jobs = 24
    for (const { name, survives, fails } of runs) {
      t.test(name, async (t) => {
        const place = { shell, folder: scratchDirectory(t), url: await proxy(t, fails) }
        await survives(t, place)
        t.notOk(existsSync(join(place.folder, 'hit')), 'runs no text of the proxy')
      })
    }
  })
}

t.test('a recipe behind a proxy that always sends pages fails, and runs nothing', { skip }, async (t) => {
  const env = { STRONGROOM_TOKEN: owner.token }
  // At once, because each recipe waits some seconds between its attempts.
  await Promise.all(([
    ['HTML of status 200', 'A process'], ['HTML of status 200', 'Kubernetes'],
    ['text of status 200', 'Without jq'], ['text of status 200', 'A token that reads']
  ] as const).map(async ([fault, name]) => {
    const url = await proxy(t, FAULTS[fault]!, { failing: () => true })
    const place = { ...HERE, folder: scratchDirectory(t), url }
    const { code, stdout } = await (name === 'Kubernetes'
      ? initContainer(token, place)
      : sh(`${block(name, 'sh')}\nserver`, { ...env, STRONGROOM_URL: url }, place))
    t.not(code, 0, name)
    t.equal(stdout, '')
    for (const file of ['hit', 'token', 'secrets.json']) t.notOk(existsSync(join(place.folder, file)), file)
  }))
})

for (const shell of SHELLS) {
  t.test(`in ${shell[0]}, a recipe that makes a token makes one, although responses are lost`, { skip }, async (t) => {
    const tokens = async () => {
      const { body } = await owner.call('GET', `/organizations/${owner.organization}/api-keys?per_page=100`)
      return body.data as { id: string, name: string }[]
    }
    const first = (which: number): boolean => which === 1
    for (const [fault, failing] of sample([
      ['HTML of status 502', first], ['HTML of status 200', first], ['nothing', (which: number) => which <= 2],
      ['nothing', first],
      // The responses to the first request and to the rotation.
      ['text of status 200', (which: number) => which === 1 || which === 3]
    ] as const, 2)) {
      const before = new Set((await tokens()).map(({ id }) => id))
      const url = await proxy(t, FAULTS[fault]!, { loses: true, failing })
      const place = { shell, folder: scratchDirectory(t), url }
      const { code, stdout, stderr } = await sh(block('A token that reads', 'sh'), { STRONGROOM_TOKEN: owner.token }, place)
      t.same([code, stdout, withoutFaults(stderr)], [0, '', ''], fault)
      const made = (await tokens()).filter(({ id }) => !before.has(id))
      t.match(made, [{ name: 'live' }])
      t.equal(made.length, 1)
      const value = readFileSync(join(place.folder, 'token'), 'utf8').trim()
      t.equal((await initContainer(value, { ...place, url: address })).code, 0, 'the value is the one of that token')
    }
  })
}

t.test('recipes name the levels that the restrictions of the token leave out', { skip }, async (t) => {
  const made = async (more = {}) => {
    const { body } = await owner.call('POST', `/organizations/${owner.organization}/api-keys`, {
      name: 'Narrow',
      abilities: ['secret:read', 'secret:decrypt'],
      restrictions: ['orbit', 'shell', 'docker'].map((project) =>
        ({ project, target: 'backend', environment: 'live', ...more }))
    })
    return body.token as string
  }
  for (const [narrow, said] of [
    [await made(), 'Left out by the restrictions of the token: project, target\n'], [await made({ inherited: true }), '']
  ] as const) {
    for (const shell of SHELLS) {
      const place = { ...HERE, shell, folder: scratchDirectory(t) }
      const env = { STRONGROOM_URL: address, STRONGROOM_TOKEN: narrow }
      t.equal((await sh(block('A process', 'sh'), env, place)).stderr, said + LEFT_OUT)
      for (const [name, project] of [
        ['Without jq', 'shell'], ['Env file for Docker', 'docker'], ['A command line tool', 'orbit']
      ] as const) {
        t.equal((await sh(block(name, 'sh').replace('/orbit/', `/${project}/`), env, place)).stderr, said, name)
      }
      const leftOut = 'Left out, because a step cannot set them: RANDOM, my.name\n'
      t.equal((await github(narrow, undefined, place)).ended.stderr, said + leftOut)
      t.equal((await initContainer(narrow, place)).stderr, said)
    }
  }
})

t.test('a recipe stores every file of UTF-8 as it is, and no other', { skip }, async (t) => {
  await makeLevel(owner, { slug: 'files', name: 'Files', secret_format: 'text' })
  const script = block('Store a file', 'sh').replace('"orbit"', '"files"')
  // A program that reads a file in pieces must not divide a character.
  const long = ['', 'x', 'xx', 'xxx'].map((start) => `${start}${'é€😀'.repeat(20_000)}\n`)
  for (const shell of SHELLS) {
    const place = { ...HERE, shell, folder: scratchDirectory(t) }
    for (const text of [...sample(long, 4), '\ufeffA=1\r\n', 'A=\ufffd', '"\\\t\u0001', ' \n\n']) {
      writeFileSync(join(place.folder, '.env'), text)
      const stored = await sh(script, { STRONGROOM_TOKEN: owner.token }, place)
      t.same([stored.code, stored.stderr], [0, ''])
      const { body } = await owner.call('GET', `/${owner.organization}/files/backend/live/secrets?decrypt=true`)
      t.ok(body.data.attributes.levels.environment.content === text, JSON.stringify(text.slice(0, 20)))
    }
    for (const bytes of sample([[0xff], [0x41, 0xc3], [0xed, 0xa0, 0x80], [0xc0, 0x80], [0xf4, 0x90, 0x80, 0x80]], 2)) {
      writeFileSync(join(place.folder, '.env'), Buffer.from([0x41, 0x3d, ...bytes]))
      const refused = await sh(script, { STRONGROOM_TOKEN: owner.token }, place)
      t.same(refused, { code: 1, stdout: '', stderr: '.env is not UTF-8\n' })
    }
  }
})

t.test('with-secrets keeps long values, names what a shell cannot set, and refuses what the kernel refuses', { skip }, async (t) => {
  await makeLevel(owner, { slug: 'names', name: 'Names', secret_format: 'json' })
  const env = { STRONGROOM_URL: address, STRONGROOM_TOKEN: owner.token }
  for (const shell of SHELLS) {
    const start = (command: string, limit = '') =>
      sh(`${limit}with-secrets nimbus/names/backend/live ${command}`, env, { ...HERE, shell })
    const long = `x${'é€😀'.repeat(14_000)}`
    await store('names', {
      LONG: long, UID: '1', RANDOM: '2', SECONDS: '3', BASH_ENV: '4', PS4: '$(touch hit)', 'a b': '5', 'C\u001b[1m\n': '6', NUL: 'a\0b'
    })
    const { code, stdout, stderr } = await start('printenv LONG')
    t.equal(code, 0)
    t.ok(stdout === `${long}\n`)
    t.equal(stderr, 'Left out, because a shell cannot set them: BASH_ENV, C\\u001b[1m\\n, NUL, PS4, RANDOM, SECONDS, UID, a b\n')
    // With a smaller stack, the kernel accepts fewer bytes for arguments and environment.
    for (const [values, limit, said] of [
      [{ A: 'x', LARGE: 'x'.repeat(131_072 - 'LARGE='.length) }, '', 'LARGE 131066, A 1'],
      [
        Object.fromEntries([...'FEDCBA'].map((name, i) => [name, 'x'.repeat(70_000 + i)])), 'ulimit -s 1024\n',
        'A 70005, B 70004, C 70003, D 70002, E 70001'
      ]
    ] as const) {
      await store('names', values)
      for (const command of sample(['server', ''], 2)) {
        const refused = await start(command, limit)
        t.same([refused.code, refused.stdout], [1, ''])
        t.equal(refused.stderr, `Too large for the environment of a program; the largest, in bytes: ${said}\n`)
      }
    }
    await store('names', { LARGE: 'x'.repeat(131_071 - 'LARGE='.length) })
    t.equal((await start('printenv LARGE')).stdout.length, 131_066, 'the largest that the kernel passes')
  }
})

for (const shell of SHELLS) {
  t.test(`in ${shell[0]}, a recipe that a signal ends leaves no file`, { skip }, async (t) => {
    const [step] = parse(block('GitHub Actions', 'yaml'))
    const scripts = ['A token that reads', 'Store a file', 'Without jq', 'Env file for Docker', 'A command line tool']
      .map((name): [string, string] => [name, block(name, 'sh')])
    scripts.push(['GitHub Actions', step.run], ['the tour', readFileSync('examples/tour.sh', 'utf8')])
    const signals = { SIGHUP: 129, SIGINT: 130, SIGTERM: 143 } as const
    for (const [name, script] of scripts) {
      for (const signal of Object.keys(signals) as (keyof typeof signals)[]) {
        if (signal !== 'SIGTERM' && name !== 'Without jq') continue
        const silent = createServer()
        silent.listen(0, '127.0.0.1')
        await once(silent, 'listening')
        t.teardown(() => silent.close())
        const url = `http://127.0.0.1:${(silent.address() as AddressInfo).port}`
        const place = { shell, folder: scratchDirectory(t), url }
        writeFileSync(join(place.folder, '.env'), DOCUMENT)
        const TMPDIR = scratchDirectory(t)
        const env = environment({ TMPDIR, STRONGROOM_URL: url, STRONGROOM_TOKEN: owner.token }, place)
        const child = spawn(shell[0]!, [...shell.slice(1), `cd ${place.folder}\n${here(script, place)}`], { env, stdio: 'ignore' })
        const ended = once(child, 'exit')
        await once(silent, 'request')
        t.not(readdirSync(TMPDIR).length, 0, 'there are files')
        child.kill(signal)
        // A shell runs its trap only after curl has ended.
        silent.closeAllConnections()
        t.equal((await ended)[0], signals[signal], `${name}: ${signal}`)
        t.same([readdirSync(TMPDIR), readdirSync(place.folder)], [[], ['.env']])
      }
    }
  })

  t.test(`in ${shell[0]}, a recipe without jq leaves no file while the program runs`, { skip }, async (t) => {
    const TMPDIR = scratchDirectory(t)
    const script = `${block('Without jq', 'sh').replace('/orbit/', '/shell/')}\nls -A "$TMPDIR"\nexec printenv PLAIN`
    await store('shell', VALUES)
    const ended = await sh(
      script, { TMPDIR, STRONGROOM_URL: address, STRONGROOM_TOKEN: owner.token, text: 'mine' }, { ...HERE, shell }
    )
    t.same(ended, { code: 0, stdout: 'hello\n', stderr: '' })
    t.same(readdirSync(TMPDIR), [])
  })

  t.test(`in ${shell[0]}, a recipe without jq shows no part of a value`, { skip }, async (t) => {
    const env = { STRONGROOM_URL: address, STRONGROOM_TOKEN: owner.token }
    const script = block('Without jq', 'sh').replace('/orbit/', '/shell/')
    await store('shell', {
      KEY: '-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nc2VjcmV0=',
      CONFIGURATION: 'user=rosa\npassword=hunter2\nLARGE=in a value\n',
      LARGE: `it's\nSMALLER=${'x'.repeat(140_000)}`,
      SECOND: 'x'.repeat(2000)
    })
    const { code, stdout, stderr } = await sh(script, env, { ...HERE, shell })
    t.same([code, stdout], [1, ''])
    t.equal(stderr, 'Too large for the environment of a program; the largest:\nLARGE 140013\nSECOND 2000\n')
    await store('shell', VALUES)
  })

  t.test(`in ${shell[0]}, the file of a token is new and only its user can read it`, { skip }, async (t) => {
    const made = async (folder: string) => {
      const place = { ...HERE, shell, folder }
      const ended = await sh(block('A token that reads', 'sh'), { STRONGROOM_TOKEN: owner.token }, place)
      t.same(ended, { code: 0, stdout: '', stderr: '' })
      const status = lstatSync(join(folder, 'token'))
      t.same([status.isFile(), status.mode & 0o777], [true, 0o600])
      t.match(readFileSync(join(folder, 'token'), 'utf8'), /^dotenv_\S+\n$/)
    }
    const [none, file, link] = [scratchDirectory(t), scratchDirectory(t), scratchDirectory(t)]
    await made(none)
    writeFileSync(join(file, 'token'), 'old\n')
    chmodSync(join(file, 'token'), 0o644)
    await made(file)
    for (const folder of [none, file]) t.same(readdirSync(folder), ['token'])
    writeFileSync(join(link, 'public'), 'public\n')
    symlinkSync('public', join(link, 'token'))
    await made(link)
    t.equal(readFileSync(join(link, 'public'), 'utf8'), 'public\n')
  })

  t.test(`in ${shell[0]}, a recipe shows names and messages as printable ASCII`, { skip }, async (t) => {
    const env = { STRONGROOM_TOKEN: owner.token }
    const place = { ...HERE, shell, folder: scratchDirectory(t) }
    await makeLevel(owner, { slug: `ascii-${shell[0]}`, name: 'ASCII', secret_format: 'json' })
    const project = `ascii-${shell[0]}`
    const changed = (script: string) => script.replace('/orbit/', `/${project}/`)
    const names = ['A\u009b2J', 'B\u202eb', 'C\u007f\u001b[1m', 'D##[add-path]/tmp', 'E###[x', 'F\u00e9']
    await store(project, Object.fromEntries(names.map((name) => [name, 'value'])))
    const script = changed(block('A process', 'sh')).replace(/ server .*/, '')
    t.equal((await sh(script, env, place)).stderr,
      'Left out, because a shell cannot set them: A?2J, B?b, C\\u007f\\u001b[1m, D##[add-path]/tmp, E###[x, F?\n')
    t.equal((await github(owner.token, changed, place)).ended.stderr,
      'Left out, because a step cannot set them: A?2J, B?b, C\\u007f\\u001b[1m, D##?[add-path]/tmp, E###?[x, F?\n')
    for (const name of ['Without jq', 'Env file for Docker']) {
      await store(project, { 'A\u009b2J \u202e': 'x\ny' })
      const refused = await sh(changed(block(name, 'sh')), { ...env, STRONGROOM_URL: address }, place)
      t.match([refused.code === 0, refused.stderr], [false, /names_not_in_(?:shell|docker)/])
      t.match(refused.stderr, /^[\n -~]*$/, name)
    }
    const large = 'x'.repeat(131_072)
    await store(project, { LARGE: large, 'B\u202eb': `${large}x`, '##[a': 'x' })
    t.match((await sh(script, env, place)).stderr, /^Too large .*: B\?b 131073, LARGE 131072, ##\[a 1\n$/m)
    t.match((await github(owner.token, changed, place)).ended.stderr, /^Too large .*: B\?b \d+, LARGE \d+, ##\?\[a 6\n$/m)
    if (LONG) {
      for (const level of [{}, { target: 'backend' }, { target: 'backend', environment: 'live' }]) {
        const which = Object.keys(level).length
        await store(project, Object.fromEntries(
          Array.from({ length: 15 }, (_, i) => [`A\u202e${which}_${i}`, 'x'.repeat(60_000)])
        ), level)
      }
      t.match((await sh(changed(block('Env file for Docker', 'sh')), { ...env, STRONGROOM_URL: address }, place)).stderr,
        /^Too large .*\n(?:A\?{3}\d_\d+ 6\d{4}\n){5}$/)
    }

    const message = 'No \u009b2J \u202e \u001b[31m \u007f\n::add-path::/tmp ##[add-path]/tmp'
    const url = await proxy(t, (response) => {
      response.writeHead(422, { 'content-type': 'application/json', 'x-api-version': '1' })
        .end(JSON.stringify({ error: 'validation_failed', message }))
    }, { failing: () => true })
    writeFileSync(join(place.folder, '.env'), DOCUMENT)
    installKubectl(owner.token)
    const there = { ...place, url }
    const here = { ...env, STRONGROOM_URL: url }
    for (const [name, { code, stdout, stderr }] of [
      ...await Promise.all([
        'A token that reads', 'Store a file', 'A process', 'Without jq', 'Env file for Docker', 'A command line tool',
        'External Secrets Operator'
      ].map(async (name) => [name, await sh(block(name, 'sh'), here, there)] as const)),
      ['Kubernetes', await initContainer(token, there)] as const,
      ['GitHub Actions', (await github(token, undefined, there)).ended] as const,
      ['the tour', await sh(readFileSync('examples/tour.sh', 'utf8'), here, there)] as const
    ]) {
      t.equal(code === 0, name === 'External Secrets Operator', name)
      t.match(stdout + stderr, /^[\n -~]*No [?2]/m, name)
      t.match(stdout + stderr, /^[\n -~]*$/, name)
      if (name === 'GitHub Actions') t.notMatch(stdout + stderr, /##\[|^::/m)
    }
  })

  t.test(`in ${shell[0]}, with-secrets does not use variables of the caller, and passes them on`, { skip }, async (t) => {
    const place = { ...HERE, shell }
    const folder = scratchDirectory(t)
    // Wrappers that record the environments of curl and jq.
    for (const name of ['curl', 'jq']) {
      const { stdout } = await run('sh', ['-c', `command -v ${name}`])
      writeFileSync(join(folder, name), `#!/bin/sh\nenv >>${folder}/environment\nexec ${stdout.trim()} "$@"\n`)
      chmodSync(join(folder, name), 0o755)
    }
    const PATH = `${folder}:${environment({}, place).PATH}`
    const names = [...new Set([...withSecrets.matchAll(/\bsr_(\w+)/g)].map(([, name]) => name!))]
    t.ok(names.includes('lines'))
    const exported = { special: 'mine', functions: 'x', values: '1', token: 'x', responses: '2', lines: 'y', PAUSE: 'z' }
    const own = Object.fromEntries(names.map((name) => [`sr_${name}`, 'mine']))
    for (const env of [exported, own, { ...exported, ...own, SHELLOPTS: 'allexport' }]) {
      const given = hasAll(t, await sh(block('A process', 'sh'), { ...env, PATH }, place))
      t.match(given, Object.fromEntries(Object.entries(exported).filter(([name]) => name in env)))
      t.notOk(names.some((name) => `sr_${name}` in given), 'no variable of the script')
    }
    const seen = readFileSync(join(folder, 'environment'), 'utf8')
    t.match(seen, /^PAUSE=z$/m)
    for (const secret of [token, VALUES.QUOTES!, VALUES.DOLLAR!]) t.notOk(seen.includes(secret))
  })

  t.test(`in ${shell[0]}, a recipe that makes a token says which one has no known value`, { skip }, async (t) => {
    const { body } = await owner.call('POST', `/organizations/${owner.organization}/api-keys`, {
      name: 'Creator', abilities: ['api-token:create', 'secret:read', 'secret:decrypt']
    })
    const lost = 'No response of Strongroom; a token may have been made\n'
    const made = /Token (\w+) was made, but its value is not known: rotate or delete it\n$/
    await Promise.all(([
      ['HTML of status 200', (which: number) => which !== 2, owner.token, lost, true],
      ...LONG ? [['nothing', (which: number) => which !== 2, owner.token, lost, true]] as const : [],
      ['nothing', () => true, owner.token, lost, false],
      // The service refuses the rotation.
      ['nothing', (which: number) => which === 1, body.token, /lacks the required scope/, true]
    ] as const).map(async ([fault, failing, sent, said, known]) => {
      const url = await proxy(t, FAULTS[fault]!, { loses: true, failing })
      const place = { shell, folder: scratchDirectory(t), url }
      writeFileSync(join(place.folder, 'token'), 'old\n')
      const ended = await sh(block('A token that reads', 'sh'), { STRONGROOM_TOKEN: sent }, place)
      const stderr = withoutFaults(ended.stderr)
      t.same([ended.code, ended.stdout], [1, ''])
      t.match(stderr.replace(made, ''), said)
      const [, id] = made.exec(stderr) ?? []
      t.equal(id !== undefined, known, stderr)
      if (known) t.equal((await owner.call('DELETE', `/organizations/${owner.organization}/api-keys/${id}`)).status, 204)
      t.same(readdirSync(place.folder), ['token'])
      t.equal(readFileSync(join(place.folder, 'token'), 'utf8'), 'old\n')
    }))
  })
}

t.test('no recipe has a token or a value on a command line', { skip }, async (t) => {
  t.ok(commandLines.length > 15)
  t.ok(commandLines.every((lines) => lines.includes('curl -sS')), 'curl is seen while it waits')
  // The command lines include those of other programs on the machine. No line may contain a secret of the recipes.
  for (const secret of [owner.token, token, VALUES.QUOTES!, VALUES.DOLLAR!]) {
    t.notOk(commandLines.some((lines) => lines.includes(secret)))
  }
})

t.test('every block of the page has run', { skip }, async (t) => {
  const all = page.blocks('\\w+')
  t.ok(all.length > 10)
  for (const text of all) t.ok(taken.has(text), text)
})

/** Starts the systemd unit of the page. */
async function startUnit (place = HERE): Promise<Ended> {
  const unit = block('systemd', 'ini')
  const settings = (name: string) => [...unit.matchAll(new RegExp(`^${name}=(.*)$`, 'gm'))].map(([, value]) => value!)
  const [, credential, source] = /^([^:]+):(.+)$/.exec(settings('LoadCredential')[0]!)!
  copyFileSync(here(source!), join(place.folder, credential!))
  const env = Object.fromEntries(settings('Environment').map((text) =>
    here(text.replaceAll('%d', place.folder), place).split('=', 2)))
  const [file, ...args] = here(settings('ExecStart')[0]!, place).split(' ')
  return run(file!, args, environment(env, place))
}

/** Starts the service of the page's Compose file. */
async function startService (place = HERE): Promise<Ended> {
  const { services: { backend } } = parse(block('Docker', 'yaml'))
  const env = Object.fromEntries(Object.entries<string>(backend.environment)
    .map(([name, value]) => [name, here(value, place)]))
  const [, ...args] = [...backend.entrypoint, ...backend.command].map((text) => here(text, place))
  return run(place.shell[0]!, args, environment(env, place))
}

/** Renders the template of the page with a token, like `kubectl`. */
function installKubectl (token: string) {
  const [, , template] = /kubectl get secret (\S+) -o 'go-template=(.+?)'/.exec(block('External Secrets Operator', 'sh'))!
  writeFileSync(at('etc', 'header'), template!.replace(/\{\{.*\}\}/, token))
  writeFileSync(at('bin', 'kubectl'), `#!/bin/sh\ncat ${at('etc', 'header')}\n`)
  chmodSync(at('bin', 'kubectl'), 0o755)
}

/** Runs the init container of the page. */
async function initContainer (token: string, place = HERE): Promise<Ended> {
  const [init] = parse(block('Kubernetes', 'yaml')).spec.initContainers
  const env = Object.fromEntries(init.env.map(({ name, value, valueFrom }: any) =>
    [name, valueFrom?.secretKeyRef.key === 'token' ? token : here(value, place)]))
  return sh(init.command[2], env, place)
}

/** Runs the step of the page like the runner. Returns the variables file for the later steps. */
async function github (token: string, changed = (script: string) => script, place = HERE) {
  const [step] = parse(block('GitHub Actions', 'yaml'))
  const file = join(place.folder, 'github-env')
  writeFileSync(file, '')
  const env = Object.fromEntries(Object.entries<string>(step.env).map(([name, value]) =>
    [name, here(value.replace(/\$\{\{ secrets\.STRONGROOM_TOKEN \}\}/, token), place)]))
  const ended = await sh(changed(step.run), { ...env, GITHUB_ENV: file }, place)
  return { ended, file: readFileSync(file, 'utf8') }
}

/** The values that the runner hides in the log. The runner reads these commands from standard output. */
const masksIn = ({ stdout }: Ended) => stdout.trimEnd().split('\n').map((line) =>
  /^::add-mask::(.+)$/.exec(line)?.[1]?.replaceAll('%0A', '\n').replaceAll('%0D', '\r').replaceAll('%25', '%'))

/** Reads the file as GitHub's runner does. */
function variablesIn (file: string): Record<string, string> {
  const lines = file.split('\n')
  const values: Record<string, string> = {}
  while (lines.length > 1) {
    const [, name, end] = /^([^=]+)<<(.+)$/.exec(lines.shift()!)!
    values[name!] = lines.splice(0, lines.indexOf(end!)).join('\n')
    lines.shift()
  }
  return values
}
