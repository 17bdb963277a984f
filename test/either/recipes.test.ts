import { execFileSync } from 'node:child_process'
import { chmodSync, copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import type { ServerResponse } from 'node:http'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { parse, parseAllDocuments } from 'yaml'
import { makeLevel, startApp } from '../helpers/app.ts'
import { readDoc } from '../helpers/docs.ts'
import { run, scratchDirectory, type Ended } from '../helpers/process.ts'

// Every block of the page, as it is but for the addresses and folders that a test can have.
const page = readDoc('docs/recipes.md')
const taken = new Set<string>()
function block (heading: string, language: string, which = 0) {
  const text = page.blocks(language, heading)[which]!
  taken.add(text)
  return text
}

const service = await startApp(t)
const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
const owner = await service.organization({ slug: 'nimbus' })
await makeLevel(owner, { name: 'Orbit' })

const lacks = (await Promise.all(['bash', 'curl', 'jq'].map(async (name) =>
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

// What stands for the machine of the page: a program that shows its arguments and its environment, the script beside
// it, and whatever else a recipe has in a folder.
const machine = scratchDirectory(t)
const at = (...names: string[]) => join(machine, ...names)
for (const name of ['bin', 'etc', 'run', 'home/.config/strongroom']) mkdirSync(at(name), { recursive: true })
copyFileSync('examples/with-secrets.sh', at('bin', 'with-secrets'))
writeFileSync(at('bin', 'server'), '#!/bin/sh\nprintf "%s\\0" "$*"\nexec env -0\n')
for (const name of ['with-secrets', 'server']) chmodSync(at('bin', name), 0o755)
writeFileSync(at('.env'), DOCUMENT)

const PLACES: Record<string, string> = {
  'https://strongroom.example': address,
  '/usr/local/bin': at('bin'),
  '/etc/strongroom': at('etc'),
  '/run/strongroom': at('run'),
  '/run/secrets': at('etc')
}
const here = (text: string) => text.replace(new RegExp(Object.keys(PLACES).join('|'), 'g'), (place) => PLACES[place]!)

const environment = (more: Record<string, string> = {}) =>
  ({ PATH: `${at('bin')}:${process.env.PATH}`, HOME: at('home'), ...more })
const inShell = (shell: string[], script: string, env: Record<string, string> = {}) =>
  run(shell[0]!, [...shell.slice(1), `cd ${machine}\n${here(script)}`], environment(env))
const sh = (script: string, env?: Record<string, string>) => inShell(['sh', '-euc'], script, env)
const bash = (script: string, env?: Record<string, string>) =>
  inShell(['bash', '--noprofile', '--norc', '-ec'], script, env)

/** The program in the place of the application has its arguments and every value; its environment. */
function hasAll (t: Test, { code, stdout, stderr }: Ended, args = '--port 8000', said = LEFT_OUT) {
  t.same([code, stderr], [0, said])
  const [given, ...variables] = stdout.split('\0').slice(0, -1)
  const env = Object.fromEntries(variables.map((text) => /^(.*?)=(.*)$/s.exec(text)!.slice(1) as [string, string]))
  t.equal(given, args)
  t.same(Object.fromEntries(Object.entries(env).filter(([name]) => Object.hasOwn(ALL, name))), VALUES)
  return env
}

// Whatever asks the service does so while its process waits for the answer: what is on command lines then.
const commandLines: string[] = []
service.app.server.prependListener('request', () => {
  commandLines.push(execFileSync('ps', ['-Awwo', 'args=']).toString())
})

// Made by the page's own recipe, for all that follow.
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
  const stored = await bash(block('Store a file', 'bash'), { STRONGROOM_TOKEN: owner.token })
  t.match(stored, { code: 0, stdout: '"level":"environment"', stderr: '' })
  const { body } = await owner.call('GET', `/${owner.organization}/orbit/backend/live/secrets?decrypt=true`)
  t.equal(body.data.attributes.levels.environment.content, DOCUMENT)
})

t.test('with-secrets gives a process every value as it is, and not the token', { skip }, async (t) => {
  t.equal(block('A process', 'sh', 1), readFileSync('examples/with-secrets.sh', 'utf8'), 'the page shows the script')
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
  'Store a file': (token) => bash(block('Store a file', 'bash'), { STRONGROOM_TOKEN: token }),
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

t.test('a rollout of 100 pods beyond the rate limit: each reads its secrets after Retry-After', { skip }, async (t) => {
  const { now } = Date
  t.teardown(() => { Date.now = now })
  const limited = await startApp(t, { RATE_LIMIT_API: '100' })
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
  // Uses up the window, which then ends soon.
  while ((await caller.call('GET', `/${caller.organization}/orbit`)).status !== 429);
  Date.now = () => now() + 45_000
  const script = block('A process', 'sh').replace(/ server .*/, '').replace('https://strongroom.example', url)
  // Half of them with the script, half with the init container.
  const ended = await Promise.all(Array.from({ length: 100 }, async (_, i) => {
    if (i % 2 === 0) return (await sh(script, { STRONGROOM_TOKEN: caller.token })).stdout
    const folder = scratchDirectory(t)
    const { code, stderr } = await initContainer(caller.token, (text) =>
      text.replace('https://strongroom.example', url).replace('/run/strongroom', folder))
    return code === 0 ? readFileSync(join(folder, 'secrets.json'), 'utf8') : stderr
  }))
  for (const [i, read] of ended.entries()) t.equal(read, i % 2 === 0 ? "export GREETING='hello'\n" : '{"GREETING":"hello"}')
  t.equal(statuses.get(200), 100)
  t.ok(statuses.get(429)! > 0, `some were beyond the limit: ${JSON.stringify([...statuses])}`)
})

t.test('a shell without jq evaluates a text with every value as it is', { skip }, async (t) => {
  await makeLevel(owner, { slug: 'shell', name: 'Shell', secret_format: 'json' })
  const store = (values: object) => owner.call('POST', `/${owner.organization}/secrets/store`, {
    project: 'shell', target: 'backend', environment: 'live', plaintext: JSON.stringify(values)
  })
  const script = `${block('Without jq', 'sh').replace('/orbit/', '/shell/')}\nserver --port 8000`
  const env = { STRONGROOM_URL: address, STRONGROOM_TOKEN: owner.token }
  await store(VALUES)
  hasAll(t, await sh(script, env), '--port 8000', '')
  await store(ALL)
  const refused = await sh(script, env)
  t.not(refused.code, 0, 'a name that is not valid for a variable')
  t.match([refused.stdout, refused.stderr], ['', '422'])
})

t.test('an env file for Docker has every value as it is, or the recipe shows the names that it cannot hold', { skip }, async (t) => {
  await makeLevel(owner, { slug: 'docker', name: 'Docker', secret_format: 'json' })
  const store = (values: object) => owner.call('POST', `/${owner.organization}/secrets/store`, {
    project: 'docker', target: 'backend', environment: 'live', plaintext: JSON.stringify(values)
  })
  writeFileSync(at('bin', 'docker'), '#!/bin/sh\nprintf "%s\\n" "$2 $4"; cat "$3"\n')
  chmodSync(at('bin', 'docker'), 0o755)
  const script = block('Env file for Docker', 'sh').replace('/orbit/', '/docker/')
  const env = { STRONGROOM_URL: address, STRONGROOM_TOKEN: owner.token }
  const { LINES, ...held } = ALL as Record<string, string>
  await store(held)
  const lines = Object.entries(held).map(([name, value]) => `${name}=${value}\n`).join('')
  t.same(await sh(script, env), { code: 0, stdout: `--env-file registry.example/orbit-backend\n${lines}`, stderr: '' })
  await store({ ...held, LINES })
  const refused = await sh(script, env)
  t.not(refused.code, 0)
  t.match(refused, { stdout: '', stderr: /names_not_in_docker.*"names":\["LINES"\]/ })
})

t.test('a name that is no variable runs nothing, and sets none', { skip }, async (t) => {
  await makeLevel(owner, { slug: 'odd', name: 'Odd', secret_format: 'json' })
  const odd = { PLAIN: 'odd', 'A;touch a;': '1', 'B\ntouch b\n': '2', '$(touch c)': '3', 'D\n': '4', '': '5', 'E<<F': '6' }
  const stored = await owner.call('POST', `/${owner.organization}/secrets/store`, {
    project: 'odd', target: 'backend', environment: 'live', plaintext: JSON.stringify(odd)
  })
  t.equal(stored.status, 200)
  const { stdout, stderr } = await sh(
    block('A process', 'sh').replace('/orbit/', '/odd/').replace(/ server .*/, ''), { STRONGROOM_TOKEN: owner.token }
  )
  t.equal(stdout, "export PLAIN='odd'\n")
  t.match(stderr, /^Left out, because a shell cannot set them: , \$\(touch c\), A;touch a;, /)
  const { file } = await github(owner.token, (script) => script.replace('/orbit/', '/odd/'))
  t.same(variablesIn(file), { PLAIN: 'odd' })
})

t.test('the GitHub Actions step sets every value for the steps after it, and masks each', { skip }, async (t) => {
  const { ended, file } = await github(token)
  t.same([ended.code, ended.stderr], [0, ''])
  t.same(variablesIn(file), { ...VALUES, RANDOM: ALL.RANDOM })
  // As the runner reads a command.
  const masks = ended.stdout.trimEnd().split('\n').map((line) => {
    const [, text] = /^::add-mask::(.+)$/.exec(line) ?? []
    return text?.replaceAll('%0A', '\n').replaceAll('%0D', '\r').replaceAll('%25', '%')
  })
  t.same(masks.sort(), Object.values(ALL).filter((value) => value !== '').sort())
  const refused = await github(`${token}x`)
  t.not(refused.ended.code, 0)
  t.same([refused.ended.stdout, refused.file], ['', ''])
})

t.test('the Kubernetes init container writes every value where the application has it', { skip }, async (t) => {
  const { spec } = parse(block('Kubernetes', 'yaml'))
  const [init] = spec.initContainers
  const [application] = spec.containers
  const [volume] = spec.volumes
  t.same(volume.emptyDir, { medium: 'Memory' })
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
  for (const [sent, said] of [[`${token}x`, INVALID_TOKEN], [token, '']] as const) {
    writeFileSync(at('etc', 'header'), template!.replace(/\{\{.*\}\}/, sent))
    writeFileSync(at('bin', 'kubectl'), `#!/bin/sh\ncat ${at('etc', 'header')}\n`)
    chmodSync(at('bin', 'kubectl'), 0o755)
    const { code, stdout, stderr } = await sh(script)
    t.same([code, stderr], [0, ''])
    t.ok(said === '' ? stdout === '' : stdout.startsWith(said), stdout)
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
  const unit = block('systemd', 'ini')
  t.match(unit, /^(?:(?:\[[A-Z]\w+\]|[A-Z]\w+=\S.*)?\n)+$/, 'sections and settings')
  const settings = (name: string) => [...unit.matchAll(new RegExp(`^${name}=(.*)$`, 'gm'))].map(([, value]) => value!)
  const [, credential, source] = /^([^:]+):(.+)$/.exec(settings('LoadCredential')[0]!)!
  mkdirSync(at('credentials'))
  copyFileSync(here(source!), at('credentials', credential!))
  const env = Object.fromEntries(settings('Environment').map((text) =>
    here(text.replaceAll('%d', at('credentials'))).split('=', 2)))
  const [file, ...args] = here(settings('ExecStart')[0]!).split(' ')
  hasAll(t, await run(file!, args, environment(env)))
})

t.test('the Compose service starts the application with every value', { skip }, async (t) => {
  const { services: { backend }, secrets } = parse(block('Docker', 'yaml'))
  t.same(backend.secrets, Object.keys(secrets))
  t.equal(secrets['strongroom-token'].file, './token')
  t.same(backend.volumes, ['./with-secrets.sh:/usr/local/bin/with-secrets:ro'])
  const env = Object.fromEntries(Object.entries<string>(backend.environment)
    .map(([name, value]) => [name, here(value)]))
  const [file, ...args] = [...backend.entrypoint, ...backend.command].map(here)
  hasAll(t, await run(file!, args, environment(env)))
})

t.test('direnv\'s file sets every value, and fails when the read is refused', { skip }, async (t) => {
  hasAll(t, await bash(`${block('direnv', 'bash')}\nserver`), '')
  t.match(await bash(block('direnv', 'bash'), { STRONGROOM_TOKEN: `${token}x` }), { code: 1, stdout: '', stderr: INVALID_TOKEN })
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

t.test('no recipe has a token or a value on a command line', { skip }, async (t) => {
  t.ok(commandLines.length > 15)
  t.ok(commandLines.every((lines) => lines.includes('curl -sS')), 'curl is seen while it waits')
  // Those of other programs of the machine are in there too: what is the recipes' own cannot be anywhere.
  for (const secret of [owner.token, token, VALUES.QUOTES!, VALUES.DOLLAR!]) {
    t.notOk(commandLines.some((lines) => lines.includes(secret)))
  }
})

t.test('every block of the page has run', { skip }, async (t) => {
  const all = page.blocks('\\w+')
  t.ok(all.length > 10)
  for (const text of all) t.ok(taken.has(text), text)
})

/** Runs the init container of the page; `changed` replaces the places of the page before `here`. */
async function initContainer (token: string, changed = (text: string) => text): Promise<Ended> {
  const [init] = parse(block('Kubernetes', 'yaml')).spec.initContainers
  const env = Object.fromEntries(init.env.map(({ name, value, valueFrom }: any) =>
    [name, valueFrom?.secretKeyRef.key === 'token' ? token : here(changed(value))]))
  const [shell, flags, script] = init.command
  return inShell([shell, flags], changed(script), env)
}

/** Runs the step of the page as the runner does; what it leaves in the file for the steps after it. */
async function github (token: string, changed = (script: string) => script) {
  const [step] = parse(block('GitHub Actions', 'yaml'))
  const file = at('github-env')
  writeFileSync(file, '')
  const env = Object.fromEntries(Object.entries<string>(step.env).map(([name, value]) =>
    [name, here(value.replace(/\$\{\{ secrets\.STRONGROOM_TOKEN \}\}/, token))]))
  const ended = await bash(changed(step.run), { ...env, GITHUB_ENV: file })
  return { ended, file: readFileSync(file, 'utf8') }
}

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
