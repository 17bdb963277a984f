// runs: one database; 25 s
import { spawnSync } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { execProvider, makeWrappedKey, masterKeyOf } from '../../src/commands/common/key-provider.ts'
import { loadKeyCommands } from '../../src/config.ts'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { freshDatabase } from '../helpers/app.ts'
import { LONG } from '../helpers/long.ts'
import { beginServer, command, scratchDirectory, startServer, type Ended } from '../helpers/process.ts'
import { client, makeLevels, patient, store } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

// A command wraps and unwraps master keys. The tests use their own small command, which behaves like those of a KMS
// (docs/operations/keys.md) and records its calls.

t.setTimeout(180_000)

const { database, url, drop } = await freshDatabase()
await database.close()
t.teardown(drop)
const onServer = { skip: url === undefined && 'runs on PostgreSQL' }

const PLAIN = generateMasterKey().text.replace(/^[^:]+/, 'k1')
const PLAIN_AGAIN = generateMasterKey().text.replace(/^[^:]+/, 'k4')
// No server listens at this address. A start that connects to the database before it gets the key would give another
// error.
const NOWHERE = 'postgres://app:hunter2hunter2@127.0.0.1:1/strongroom'

/** A fake KMS with its own key. It fails while the file `down` exists. */
function makeKms (directory: string) {
  mkdirSync(directory, { recursive: true })
  const file = join(directory, 'kms')
  writeFileSync(join(directory, 'pass'), generateMasterKey().text)
  writeFileSync(file, `#!/bin/sh
cd '${directory}'
tr '\\0' '\\n' < /proc/$$/environ >> environment
echo "$@" >> calls
test ! -e down || { cat >&2; exit 3; }
exec openssl enc -aes-256-cbc -pbkdf2 -iter 1 -pass file:pass $2
`)
  chmodSync(file, 0o700)
  const read = (name: string) => existsSync(join(directory, name)) ? readFileSync(join(directory, name), 'utf8') : ''
  return {
    directory,
    env: { MASTER_KEY_WRAP_COMMAND: `${file} wrap`, MASTER_KEY_UNWRAP_COMMAND: JSON.stringify([file, 'unwrap', '-d']) },
    calls: () => read('calls').split('\n').slice(0, -1),
    environment: () => read('environment'),
    /** Unwraps a wrapped key. */
    open: (key: string) =>
      spawnSync('openssl', 'enc -aes-256-cbc -pbkdf2 -iter 1 -pass file:pass -d'.split(' '), {
        cwd: directory, input: Buffer.from(key.split(':')[2]!, 'base64')
      }).stdout.toString(),
    down: () => writeFileSync(join(directory, 'down'), ''),
    up: () => rmSync(join(directory, 'down'))
  }
}

async function newKey (env: Record<string, string>, id: string): Promise<string> {
  const { code, stdout, stderr } = await command(['key', 'new', '--id', id], env)
  if (code !== 0) throw new Error(stderr)
  return stdout.trim()
}

/** Asserts one matching line on standard error, exit status 1, and an empty standard output. */
function refused (t: Test, { code, stdout, stderr }: Ended, line: RegExp) {
  t.match(stderr, line)
  t.match(stderr, /^[^\n]+\n$/, 'one line')
  t.same([code, stdout], [1, ''])
}

/** All text forms of a key. */
const formsOf = (key: string) => {
  const bytes = Buffer.from(key, 'base64')
  return [key.slice(0, 43), bytes.toString('hex'), bytes.toString('base64url'), bytes.toString('latin1')]
}

/** Waits until the process has ended. */
async function gone (pid: number) {
  const state = () => existsSync(`/proc/${pid}/stat`) ? readFileSync(`/proc/${pid}/stat`, 'utf8').split(' ')[2] : 'gone'
  await until(() => /gone|Z/.test(state()!), { every: 20 })
}

t.test('a new key is made, wrapped and tried, and nothing but the command ever sees it', async (t) => {
  const kms = makeKms(scratchDirectory(t))
  const env = { ...kms.env, DATABASE_URL: NOWHERE, PGPASSWORD: 'hunter2hunter2', VAULT_ADDR: 'https://vault.example' }
  const made = await command(['key', 'new', '--id', 'k2'], env)
  t.match(made, { code: 0, stdout: /^k2:exec:[A-Za-z0-9+/]+={0,2}\n$/, stderr: '' })
  t.same(kms.calls(), ['wrap', 'unwrap -d'])
  const key = kms.open(made.stdout.trim())
  t.match(key, /^[A-Za-z0-9+/]{43}=$/)
  const seen = made.stdout + kms.calls().join() + kms.environment()
  for (const form of formsOf(key)) t.notOk(seen.includes(form), 'the key is not in what can be seen')
  t.match(kms.environment(), /^VAULT_ADDR=https:\/\/vault\.example$/m, 'a command finds what tools of clouds look for')
  t.match(kms.environment(), /^MASTER_KEY_ID=k2$/m)
  t.notMatch(kms.environment(), /^DATABASE_URL=|_COMMAND=|^NODE_OPTIONS=|hunter2/m, 'and nothing of the service')
  t.not(await newKey(env, 'k2'), made.stdout.trim(), 'each is another one')
  t.match((await command(['key', 'new'], env)).stdout, /^mk-[0-9a-f]{8}:exec:/)

  const other = makeKms(join(kms.directory, 'other'))
  const { MASTER_KEY_WRAP_COMMAND, MASTER_KEY_UNWRAP_COMMAND } = kms.env
  for (const [reason, commands, line] of [
    ['the key itself', { MASTER_KEY_WRAP_COMMAND: 'cat', MASTER_KEY_UNWRAP_COMMAND: 'cat' }, /wrote the unwrapped key/],
    ...Object.entries({
      'in hex': 'base64 -d | od -An -v -tx1',
      'in capital hex': 'base64 -d | od -An -v -tx1 | tr a-f A-F',
      'without padding': 'tr -d =',
      'safe for addresses': 'tr +/ -_ | tr -d =',
      'in base64 twice': 'base64',
      'in base64 twice, without padding': 'tr -d = | base64',
      'in base64 of hex': 'base64 -d | od -An -v -tx1 | tr -d " \\n" | base64',
      'as bytes': 'base64 -d'
    }).map(([form, script]) => [
      `the key itself ${form}`,
      { MASTER_KEY_WRAP_COMMAND: JSON.stringify(['sh', '-c', script]), MASTER_KEY_UNWRAP_COMMAND }, /wrote the unwrapped key/
    ] as const),
    ['nothing', { MASTER_KEY_WRAP_COMMAND: 'true', MASTER_KEY_UNWRAP_COMMAND }, /WRAP_COMMAND wrote nothing, 4 times/],
    [
      'what is another key',
      { MASTER_KEY_WRAP_COMMAND, MASTER_KEY_UNWRAP_COMMAND: `echo ${PLAIN.slice(3)}` }, /returned a different key/
    ],
    ['what does not open', { ...other.env, MASTER_KEY_UNWRAP_COMMAND }, /k9 cannot be unwrapped: .* ended with 1, 4 times/],
    ['without a command that wraps', { MASTER_KEY_UNWRAP_COMMAND }, /^MASTER_KEY_WRAP_COMMAND is not set/],
    ['without one that unwraps', { MASTER_KEY_WRAP_COMMAND }, /MASTER_KEY_UNWRAP_COMMAND is not set/]
  ] as const) {
    await t.test(`refused: ${reason}`, async (t) => {
      refused(t, await command(['key', 'new', '--id', 'k9'], commands), line)
    })
  }
  t.equal((await command(['key', 'new', '--id', 'k 9'], env)).code, 2)
})

t.test('a command that fails in whatever way is bounded, and gives nothing away', async (t) => {
  const directory = scratchDirectory(t)
  const secret = PLAIN.slice(3)
  const file = (name: string, text: string, mode = 0o700) => {
    writeFileSync(join(directory, name), `#!/bin/sh\n${text}\n`, { mode })
    return join(directory, name)
  }
  const unwrap = (run: string, env: Record<string, string> = {}) =>
    execProvider(loadKeyCommands({
      PATH: process.env.PATH, MASTER_KEY_UNWRAP_COMMAND: run, MASTER_KEY_COMMAND_TIMEOUT: '1', ...env
    })).unwrap('k1', Buffer.from('wrapped'))
  const lines = [
    ['exit status', file('fails', `echo ${secret}; echo ${secret} >&2; exit 7`), /ended with 7, 4 times in a row/],
    ['signal', file('dies', 'kill -9 $$'), /ended with SIGKILL, 4 times in a row/],
    ['no program', join(directory, 'nothing'), /cannot be run \(ENOENT\)$/],
    ['no right to run it', file('locked', 'true', 0o600), /cannot be run \(EACCES\)$/],
    ['nothing', 'true', /wrote nothing, 4 times in a row/],
    ['no directory', `${file('plain', 'true')}/program`, /cannot be run \(ENOTDIR\)$/],
    ['no base64', `echo ${secret.slice(0, -2)}`, /wrote 43 bytes/],
    ['another length', `echo ${Buffer.alloc(31, 7).toString('base64')}`, /wrote 45 bytes/],
    ['two keys', file('twice', `echo ${secret}; echo ${secret}`), /wrote 90 bytes/],
    ['without an end', 'yes', /wrote more than 3000 bytes$/],
    ['too much, and is gone', 'head -c 4000 /dev/zero', /wrote more than 3000 bytes$/],
    ['hangs', file('hangs', `echo ${secret}; sleep 600`), /timed out after 1 s, 4 times in a row/],
    [
      'hangs, with what it started', file('lingers', `sleep 600 & echo $! > ${join(directory, 'lingers.pid')}`),
      /timed out after 1 s, 4 times in a row/
    ]
  ] as const
  const ended = await Promise.all(lines.map(([, run]) => unwrap(run).then(() => '', (error: Error) => error.message)))
  for (const [i, [name,, line]] of lines.entries()) {
    t.match(ended[i], line, name)
    t.match(ended[i], /^Master key k1 cannot be unwrapped: MASTER_KEY_UNWRAP_COMMAND [^\n]+$/)
    for (const form of formsOf(secret)) t.notOk(ended[i]!.includes(form.slice(0, 20)), 'nothing of the key')
  }
  const pid = Number(readFileSync(join(directory, 'lingers.pid'), 'utf8'))
  await gone(pid)
  t.pass('what a command started is gone with it')

  const twice = file('flaps', `cd ${directory}; echo >> tries; test $(wc -l < tries) -gt 2 && echo ${secret}`)
  t.equal((await unwrap(twice)).toString('base64'), secret, 'what passes is waited for')
  t.equal((await unwrap(file('windows', `printf '${secret}\\r\\n'`))).toString('base64'), secret)
  t.equal(
    (await unwrap(JSON.stringify(['printf', '%s', secret]))).toString('base64'), secret,
    'without reading what it was given'
  )
})

t.test('each recipe of the operating guide wraps and unwraps, and hands on the failure of its tool', async (t) => {
  const directory = scratchDirectory(t)
  const file = join(directory, 'tool')
  // The fake tools return their input or a file unchanged, without encryption.
  writeFileSync(file, `#!/bin/sh
test ! -e '${directory}/down' || exit 3
turn() { tr A-Za-z N-ZA-Mn-za-m; }
case "$(basename "$0") $*" in
  'vault write -field=ciphertext '*' plaintext=-') printf vault:v1:; turn;;
  'vault write -field=plaintext '*' ciphertext=-') sed 's/^vault:v1://' | turn;;
  'aws kms '*' fileb:///dev/stdin '*) turn < /dev/stdin | base64 -w0; echo;;
  'az keyvault key decrypt '*) while [ "$1" != --value ]; do shift; done; printf %s "$2" | base64 -d | turn; echo;;
  *) turn;;
esac
`, { mode: 0o700 })
  for (const tool of ['vault', 'aws', 'gcloud', 'az', 'openssl', 'pkcs11-tool', 'systemd-creds', 'age']) {
    symlinkSync(file, join(directory, tool))
  }
  const guide = readFileSync(new URL('../../../docs/operations/keys.md', import.meta.url), 'utf8')
  const [, rows] = /\n\| Tool \| Wrap \| Unwrap \|\n\|[-|]+\n((?:\|.*\n)+)/.exec(guide)!
  const recipes = rows!.trim().split('\n').map((row) => {
    const [, name, ...cells] = row.split(/(?<!\\)\|/)
    const [wrap, unwrap] = cells.map((cell) => /`([^`]+)`/.exec(cell)?.[1]!.replaceAll('\\|', '|'))
    return [name!.trim(), execProvider(loadKeyCommands({
      PATH: `${directory}:${process.env.PATH}`, MASTER_KEY_WRAP_COMMAND: wrap, MASTER_KEY_UNWRAP_COMMAND: unwrap
    }))] as const
  })
  t.equal(recipes.length, 7)
  const keys = await Promise.all(recipes.map(async ([, provider]) => makeWrappedKey(provider, 'k1')))
  writeFileSync(join(directory, 'down'), '')
  const failures = await Promise.all(recipes.map(([, provider], i) =>
    masterKeyOf(keys[i]!, provider).then(() => 'it opened', (error: Error) => error.message)))
  for (const [i, [name]] of recipes.entries()) {
    t.match(failures[i], /^Master key k1 cannot be unwrapped: MASTER_KEY_UNWRAP_COMMAND ended with 3, 4 times in a row/, name)
  }
})

t.test('a signal ends a start that waits for its command, with all that this started: exit 0', async (t) => {
  const directory = scratchDirectory(t)
  const file = join(directory, 'hangs')
  await Promise.all(['1', '2'].map(async (workers) => {
    const pid = join(directory, `pid-${workers}`)
    writeFileSync(`${file}-${workers}`, `#!/bin/sh\nsleep 600 & echo $! > ${pid}.new; mv ${pid}.new ${pid}; wait\n`, { mode: 0o700 })
    const server = beginServer(t, {
      DATABASE_URL: NOWHERE,
      MASTER_KEY: 'k2:exec:AAAA',
      MASTER_KEY_COMMAND_TIMEOUT: '120',
      MASTER_KEY_UNWRAP_COMMAND: `${file}-${workers}`,
      WORKERS: workers
    })
    await until(() => existsSync(pid), { every: 20, within: 120_000 })
    t.match(await server.stop(), { code: 0, stderr: '' }, `${workers} workers`)
    await gone(Number(readFileSync(pid, 'utf8')))
  }))
})

t.test('CR-10: without its key nothing starts, in one line, and the database is not even asked', async (t) => {
  const kms = makeKms(scratchDirectory(t))
  const key = await newKey(kms.env, 'k2')
  const start = (env: Record<string, string>) => command(['serve'], { DATABASE_URL: NOWHERE, DATABASE_WAIT: '0', ...env })
  const { MASTER_KEY_UNWRAP_COMMAND } = kms.env
  refused(t, await start({ MASTER_KEY: key }), /^Master key k2 is wrapped, but MASTER_KEY_UNWRAP_COMMAND is not set$/m)
  refused(
    t, await start({ MASTER_KEY: PLAIN, MASTER_KEY_UNWRAP_COMMAND }),
    /^MASTER_KEY_UNWRAP_COMMAND is set, but no master key is wrapped; allowed: /
  )
  refused(
    t, await command(['serve'], { DATA_DIR: join(kms.directory, 'data'), MASTER_KEY_UNWRAP_COMMAND }),
    /master\.key is missing\. Run `key new` /
  )
  t.notOk(existsSync(join(kms.directory, 'data', 'master.key')))
  refused(t, await start({ MASTER_KEY: key, MASTER_KEY_FILE: '/key', ...kms.env }), /are both set/)

  const file = join(kms.directory, 'master.key')
  writeFileSync(file, `${key}\n`, { mode: 0o600 })
  kms.down()
  refused(t, await start({ MASTER_KEY_FILE: file, ...kms.env }), /^Master key k2 cannot be unwrapped: .* ended with 3, 4 times/)
  kms.up()
  refused(t, await start({ MASTER_KEY_FILE: file, ...kms.env }), /^The database at \S+ cannot be used/)
  t.match(
    await start({ MASTER_KEY: PLAIN, MASTER_KEYS_PREVIOUS: key, MASTER_KEY_UNWRAP_COMMAND }),
    { stderr: /^The database at \S+ cannot be used/ }, 'previous keys are unwrapped, too'
  )
})

t.test('a database goes from a key that is kept as it is to wrapped ones, from one to the next, and back', async (t) => {
  const kms = makeKms(scratchDirectory(t))
  const place: Record<string, string> = url === undefined
    ? { DATA_DIR: join(kms.directory, 'data') }
    : { DATABASE_URL: url }
  const [second, third] = [await newKey(kms.env, 'k2'), await newKey(kms.env, 'k3')]
  const run = (word: string, newest: string, previous?: string, env: Record<string, string> = kms.env) => command(
    word.split(' '),
    { ...place, ...env, MASTER_KEY: newest, ...(previous !== undefined && { MASTER_KEYS_PREVIOUS: previous }) }
  )
  const founding = 'init --organization Nimbus --email rosa@nimbus.example'
  t.match(await run(founding, PLAIN, undefined, {}), { code: 0, stderr: '' })
  refused(t, await run('rewrap', second), /^Master key k1 is missing/)
  for (const [newest, previous] of [[second, PLAIN], [third, second], [PLAIN_AGAIN, third]] as const) {
    const [from] = previous.split(':')
    const { stdout } = await run('rewrap', newest, previous)
    t.match(stdout, `Master key ${from} wraps nothing any more: remove it from MASTER_KEYS_PREVIOUS\n`)
    refused(t, await run('rewrap', previous, undefined, previous === PLAIN ? {} : kms.env), / is missing: /)
    if (newest === second) {
      refused(t, await run('rewrap', third.replace('k3', 'k2')), /^Master key k2 is wrong/)
    }
  }
  t.match(await run('organization list', PLAIN_AGAIN, undefined, {}), { code: 0, stdout: /Nimbus/, stderr: '' })
  t.equal((await run('audit verify', PLAIN_AGAIN, undefined, {})).code, 0)
})

t.test('RL-27: the command is called once for all workers, and after that its KMS may be away', onServer, async (t) => {
  const own = await freshDatabase()
  await own.database.close()
  t.teardown(own.drop)
  const kms = makeKms(scratchDirectory(t))
  const key = await newKey(kms.env, 'k2')
  const env = {
    ...kms.env,
    DATABASE_URL: own.url!,
    DATABASE_POOL: '2',
    MASTER_KEY: key,
    RATE_LIMIT_API: '0',
    WORKERS: '2',
    LOG_LEVEL: 'trace'
  }
  const before = kms.calls().length
  const server = await startServer(t, env)
  const workers = () => spawnSync('ps', ['-o', 'pid=', '--ppid', String(server.child.pid)])
    .stdout.toString().split('\n').map(Number).filter(Boolean)
  t.same(kms.calls().slice(before), ['unwrap -d'])
  kms.down()

  const listening = () => server.stdout().split('Server listening').length - 1
  await until(() => listening() >= 2, { every: 20, within: 120_000 })
  // Without LONG, the test replaces no worker.
  if (LONG) {
    const [killed] = workers() as [number]
    process.kill(killed, 'SIGKILL')
    await until(() => listening() >= 3, { every: 20, within: 120_000 })
  }
  const send = patient(client(server.address, server.first!))
  const [level] = await makeLevels(send, 'orbit', ['live'])
  t.equal((await store(send, level!, 'A=1')).reply?.status, 200, 'a new project has its key, and takes a document')
  for (let i = 0; i < 4; i++) {
    const { body } = await send('GET', '/orbit/backend/live/secrets?decrypt=true')
    t.equal(body.data.attributes.levels.environment.content, 'A=1')
  }
  t.equal(kms.calls().length, before + 1, 'no process called it again')

  const processes = [server.child.pid!, ...workers()]
  t.equal(processes.length, 3)
  const seen = processes.flatMap((pid) =>
    ['environ', 'cmdline'].map((name) => readFileSync(`/proc/${pid}/${name}`, 'latin1')))
  const shown = seen.join() + server.stdout() + server.stderr()
  for (const form of formsOf(kms.open(key))) t.notOk(shown.includes(form), 'the key is in nothing that can be seen')

  t.equal((await server.stop()).code, 0)
  refused(t, await command(['serve'], env), /^Master key k2 cannot be unwrapped: /)
})
