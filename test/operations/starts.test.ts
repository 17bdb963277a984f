// runs: no database; 15 s
import { spawn } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { unknownVariables } from '../../src/config.ts'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { connect } from '../../src/db/database.ts'
import { IN_PROOFS, LONG, sample } from '../helpers/long.ts'
import { CLI, command, run, scratchDirectory, startServer } from '../helpers/process.ts'
import { until } from '../helpers/until.ts'

t.setTimeout(120_000)

const SCRIPTS = ['start', 'cli', 'build', 'check'].map((name) => `scripts/${name}.mjs`)

/** Runs a file as if Node.js had this version. */
const runAs = (version: string, file: string, ...args: string[]) => run(process.execPath, [
  '--import', `data:text/javascript,${encodeURIComponent(
    `Object.defineProperty(process, 'versions', { value: { ...process.versions, node: '${version}' } })`
  )}`, file, ...args
])

t.test('on a Node.js that is too old, every command and script says which one is needed', async (t) => {
  for (const [version, needed] of sample([
    ['16.20.2', '20.19'], ['18.20.8', '20.19'], ['20.18.3', '20.19'], ['21.7.3', '22.2'], ['22.1.0', '22.2']
  ] as const, 4)) {
    const stderr = `Node.js ${needed} or newer is needed; this is ${version}\n`
    t.same(await runAs(version, CLI, 'user', 'list'), { code: 1, stdout: '', stderr }, version)
  }
  const stderr = 'Node.js 20.19 or newer is needed; this is 18.20.8\n'
  for (const file of [CLI, ...SCRIPTS]) t.same(await runAs('18.20.8', file), { code: 1, stdout: '', stderr }, file)
  for (const version of sample(['20.19.0', '24.0.0', '22.2.0', '26.1.0'], 2)) {
    t.match(await runAs(version, CLI, 'help'), { code: 0, stderr: '' }, version)
  }
  t.match(JSON.parse(readFileSync('package.json', 'utf8')), { engines: { node: '^20.19 || >=22.2' } })
  for (const page of ['README.md', 'CONTRIBUTING.md', 'docs/operations/install.md']) {
    const said = [...readFileSync(page, 'utf8').matchAll(/Node\.js 20[^;:\n]*/g)].map(([text]) => text)
    t.same(said, ['Node.js 20 from 20.19, or 22.2 or newer'], page)
  }
})

t.test('the entries import nothing before this check that an old Node.js could fail to link', async (t) => {
  const importsOf = (file: string) => [...readFileSync(file, 'utf8').matchAll(/^import (?:[^'"]+ from )?['"]([^'"]+)['"]/gm)]
    .map(([, from]) => from)
  t.same(importsOf(CLI), ['./node-version.mjs', 'node:fs', 'node:url'])
  t.same(importsOf('src/node-version.mjs'), [])
  for (const file of ['scripts/start.mjs', 'scripts/cli.mjs']) t.same(importsOf(file), ['../src/node-version.mjs'])
})

t.test('one Ctrl-C, or one SIGTERM to npm, ends the service of `npm start`, and ends it in order', async (t) => {
  // npm uses `sh`, which replaces itself by the script where it is bash, and does not where it is dash.
  const shells = ['/bin/dash', '/bin/bash'].filter((shell) => existsSync(shell))
  const start = (shell: string) => {
    const child = spawn('npm', ['start', '--', '--no-build'], {
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
      // With the delay, the signal that npm passes on arrives while the service stops.
      env: { ...process.env, npm_config_script_shell: shell, DATA_DIR: scratchDirectory(t), PORT: '0', SHUTDOWN_DELAY: '1' }
    })
    let said = ''
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text: string) => { said += text })
    let isClosed = false
    child.once('close', () => { isClosed = true })
    t.teardown(() => {
      // The group has the processes that npm left.
      try { process.kill(-child.pid!, 'SIGKILL') } catch {}
    })
    const untilSaid = (text: string) => until(() => said.includes(text) || child.exitCode !== null, { within: 60_000 })
    return { child, untilSaid, untilClosed: () => until(() => isClosed, { within: 30_000 }), said: () => said }
  }
  const { scripts } = JSON.parse(readFileSync('package.json', 'utf8')) as { scripts: Record<string, string> }
  t.match(scripts, { start: /^exec /, cli: /^exec / })
  const rows = shells.flatMap((shell) => (['terminal', 'npm'] as const).map((to) => [shell, to] as const))
  for (const [shell, to] of sample(rows, 2)) {
    const { child, untilSaid, untilClosed, said } = start(shell)
    await untilSaid('Strongroom serves on')
    if (to === 'terminal') process.kill(-child.pid!, 'SIGINT')
    else child.kill('SIGTERM')
    // Both streams are closed when the service has ended, too.
    await untilClosed()
    t.match(said(), /"msg":"stopping"[^]*"msg":"audit anchor"/, `${shell}, ${to}`)
  }
})

t.test('a folder that this user may not read is named as such, not as missing', async (t) => {
  const scratch = scratchDirectory(t)
  chmodSync(scratch, 0o711)
  const dir = join(scratch, 'data')
  mkdirSync(join(dir, 'postgres'), { recursive: true })
  // Root can read all files, so the commands drop the root privileges.
  const other = 65534
  const asOther = process.getuid?.() === 0
    ? ['--import', `data:text/javascript,${encodeURIComponent(`process.setgid(${other}); process.setuid(${other})`)}`]
    : []
  const lineOf = (folder: string) =>
    `DATA_DIR: this user may not read ${folder} (EACCES): run the command as the user of the service\n`
  for (const folder of [dir, join(dir, 'postgres')]) {
    chmodSync(folder, asOther.length > 0 ? 0o700 : 0)
    if (folder !== dir) chmodSync(dir, 0o755)
    // Without LONG, one command for each folder.
    const commands = [['user', 'list'], ['backup', join(dir, 'file')]]
    for (const args of LONG ? commands : [commands[folder === dir ? 0 : 1]!]) {
      const ended = await run(process.execPath, [...asOther, CLI, ...args], { DATA_DIR: dir })
      t.same(ended, { code: 1, stdout: '', stderr: lineOf(folder) }, args.join(' '))
    }
    chmodSync(folder, 0o700)
  }
})

/** Runs commands on an empty database: after an interrupted restore, or without a schema. */
async function onEmptyDatabase (t: Test, isRestored: boolean) {
  const full = { DATA_DIR: scratchDirectory(t) }
  const file = join(scratchDirectory(t), 'backup')
  const place = { DATA_DIR: join(scratchDirectory(t), 'data'), MASTER_KEY: generateMasterKey().text }
  if (isRestored) {
    t.equal((await command(['init', '--organization', 'Nimbus', '--email', 'rosa@nimbus.example'], full)).code, 0)
    t.equal((await command(['backup', file], full)).code, 0)
    place.MASTER_KEY = readFileSync(join(full.DATA_DIR, 'master.key'), 'utf8').trim()
    const interrupted = await run('sh', ['-c', `head -c -500 '${file}' | '${process.execPath}' '${CLI}' restore -`], place)
    t.match(interrupted, { code: 1, stdout: '', stderr: /is truncated/ })
  } else {
    mkdirSync(place.DATA_DIR, { mode: 0o700 })
    await (await connect({ dir: join(place.DATA_DIR, 'postgres'), pool: 1 })).close()
  }
  t.ok(existsSync(join(place.DATA_DIR, 'postgres')))
  const stderr = `The database at ${join(place.DATA_DIR, 'postgres')} is empty: start the service, or run \`init\` or \`restore\`\n`
  for (const args of sample([['user', 'list'], ['organization', 'add', '--name', 'Nimbus'], ['rewrap'], ['audit', 'export']], 3)) {
    if (isRestored || args[0] === 'user') t.same(await command(args, place), { code: 1, stdout: '', stderr }, args.join(' '))
    if (!isRestored && args[0] === 'user') continue
    t.same(await command(args, { DATA_DIR: place.DATA_DIR }), { code: 1, stdout: '', stderr }, `${args.join(' ')} without a key`)
  }
  t.notOk(existsSync(join(place.DATA_DIR, 'master.key')), 'and no key')
  t.same(await command(['audit', 'verify'], place), { code: 2, stdout: '', stderr })
  if (!isRestored) return
  t.match(await command(['restore', file], place), { code: 0, stdout: /^Restored 1 organization,/ })
  t.match(await command(['user', 'list'], place), { code: 0, stdout: /rosa@nimbus\.example/ })
}

t.test('a command on data creates no schema in an empty database', (t) => onEmptyDatabase(t, false))
t.test('a restore still accepts an empty database after commands on data', IN_PROOFS, (t) => onEmptyDatabase(t, true))

t.test('only serve, init, migrate and restore create DATA_DIR; the other commands name the missing folder', async (t) => {
  const scratch = scratchDirectory(t)
  const missing = join(scratch, 'missing')
  const empty = join(scratch, 'empty')
  mkdirSync(empty)
  const email = ['--email', 'rosa@nimbus.example']
  const commands = [
    ['organization', 'list'], ['organization', 'add', '--name', 'Nimbus'], ['user', 'list'], ['user', 'add', ...email],
    ['user', 'password', ...email], ['token', 'list'], ['token', 'revoke', '--id', '1'], ['client', 'list'],
    ['coupon', 'list'], ['invoice', 'export'], ['refund', 'list'], ['audit', 'export'], ['audit', 'rotate-key', '--all'],
    ['plan', 'price', '--plan', 'team', '--interval', 'month', '--currency', 'EUR', '--amount', '100'],
    ['rewrap'], ['backup', join(scratch, 'file')],
    ['project', 're-encryption', '--organization', 'nimbus', '--project', 'orbit']
  ]
  for (const args of commands) {
    const said = (dir: string) => command(args, { DATA_DIR: dir })
    t.same(await said(missing), {
      code: 1,
      stdout: '',
      stderr: `There is no folder ${missing} (DATA_DIR): set DATA_DIR or DATABASE_URL as for the service\n`
    }, args.join(' '))
    t.same(await said(empty), {
      code: 1, stdout: '', stderr: `No database in ${empty} (DATA_DIR): set DATA_DIR or DATABASE_URL as for the service\n`
    }, args.join(' '))
  }
  t.match(await command(['audit', 'verify'], { DATA_DIR: missing }), { code: 1, stderr: /^There is no folder/ })
  t.match(await command(['audit', 'verify'], { DATA_DIR: empty }), { code: 2, stderr: /^No database in/ })
  // These commands need no database, but they read the key file in the folder.
  for (const args of [['drill', join(scratch, 'file')], ['audit', 'verify', '--file', join(scratch, 'file')]]) {
    t.same(await command(args, { DATA_DIR: missing }), {
      code: 1,
      stdout: '',
      stderr: `There is no folder ${missing} (DATA_DIR): set DATA_DIR, MASTER_KEY or MASTER_KEY_FILE as for the service\n`
    }, args.join(' '))
    const withKey = { DATA_DIR: missing, MASTER_KEY: generateMasterKey().text }
    t.match(await command(args, withKey), { code: 2, stderr: /file cannot be read \(ENOENT\)/ }, `${args.join(' ')} with a key`)
  }
  t.same([readdirSync(scratch), readdirSync(empty)], [['empty'], []], 'nothing was made')

  const { stdout } = await command(['help'])
  const nouns = new Set([...stdout.matchAll(/^ {2}([a-z]+)/gm)].map(([, noun]) => noun!))
  // `drill` and `key` need no database. `openapi` writes files of the repository.
  const others = ['serve', 'init', 'migrate', 'restore', 'audit', 'drill', 'key', 'openapi']
  t.same([...nouns].sort(), [...new Set([...others, ...commands.map(([noun]) => noun!)])].sort(), 'every command')
})

t.test('a DATA_DIR that cannot be used is one line that says what to do, and exit 1', async (t) => {
  const scratch = scratchDirectory(t)
  const file = join(scratch, 'file')
  writeFileSync(file, '')
  for (const dir of [file, join(file, 'below')]) {
    for (const name of ['serve', 'migrate']) {
      t.same(await command([name], { DATA_DIR: dir, PORT: '0' }), {
        code: 1,
        stdout: '',
        stderr: `DATA_DIR: ${dir} is a file or below a file: set DATA_DIR to a directory that this user can write\n`
      })
    }
  }
  const inKernel = { skip: !existsSync('/proc/self') && 'no /proc' }
  await t.test('a directory that the kernel does not make', inKernel, async (t) => {
    for (const dir of ['/proc/strongroom', '/proc']) {
      t.match(await command(['serve'], { DATA_DIR: dir, PORT: '0' }), {
        code: 1, stdout: '', stderr: /^DATA_DIR: \/proc\S* cannot [^\n]+: [^\n]*set DATA_DIR to a directory that this user can write\n$/
      })
    }
    t.match(await command(['serve'], { DATA_DIR: '/sys/strongroom', PORT: '0' }), {
      code: 1, stderr: /^DATA_DIR: \/sys\/strongroom cannot be written \(E\w+\): make the directory writable for this user/
    })
  })
})

t.test('an address of another machine, a database out of reach, a missing key file: one line, exit 1', async (t) => {
  const DATA_DIR = join(scratchDirectory(t), 'data')
  const MASTER_KEY = generateMasterKey().text
  const elsewhere = await command(['serve'], { DATA_DIR, HOST: '192.0.2.1', PORT: '0', PUBLIC_URL: 'https://a.example' })
  t.match(elsewhere, {
    code: 1,
    stdout: '',
    stderr: /^Cannot listen on 192\.0\.2\.1:0 \(EADDRNOTAVAIL\): this machine does not have the address; set HOST to [^\n]+\n$/
  })
  const away = { DATABASE_URL: 'postgres://app:canary@127.0.0.1:1/vault', DATABASE_WAIT: '0', MASTER_KEY }
  for (const args of [['serve'], ['user', 'list'], ['migrate']]) {
    t.same(await command(args, away), {
      code: 1,
      stdout: '',
      stderr: 'The database at 127.0.0.1:1/vault cannot be used: ECONNREFUSED; ' +
        'start PostgreSQL there, or correct the host and port in DATABASE_URL\n'
    })
  }
  t.same(await command(['serve'], { DATA_DIR, MASTER_KEY_FILE: '/nowhere/key' }), {
    code: 1,
    stdout: '',
    stderr: 'MASTER_KEY_FILE: "/nowhere/key" does not exist. Correct the path, or restore the file from where you keep it\n'
  })
})

t.test('an invalid e-mail address is wrong usage, and the line says so', async (t) => {
  const DATA_DIR = join(scratchDirectory(t), 'data')
  for (const args of [
    ['init', '--organization', 'Nimbus', '--email', 'rosa'], ['user', 'add', '--email', 'rosa@'],
    ['user', 'disable', '--email', 'a b@nimbus.example'], ['organization', 'add', '--name', 'Nimbus', '--owner', 'rosa']
  ]) {
    t.match(await command(args, { DATA_DIR }), {
      code: 2, stdout: '', stderr: /^[^\n]+ ADDRESS, an e-mail address as in rosa@example\.com; the given one is not valid\n$/
    })
  }
  t.notOk(existsSync(DATA_DIR))
})

t.test('an unknown variable that resembles one of ours gives a warning without its value', async (t) => {
  const known = {
    DATABSE_URL: 'DATABASE_URL',
    DATABASE_URI: 'DATABASE_URL',
    database_url: 'DATABASE_URL',
    MASTER_KEYS: 'MASTER_KEY',
    PUBLIC_URLS: 'PUBLIC_URL',
    HOSTS: 'HOST',
    METRIC_TOKEN: 'METRICS_TOKEN',
    RATE_LIMIT_OUATH: 'RATE_LIMIT_OAUTH'
  }
  for (const [name, nearest] of Object.entries(known)) {
    t.same(unknownVariables({ [name]: 'canary' }), [`"${name}" is not a variable of Strongroom: did you mean ${nearest}?`])
  }
  t.same(unknownVariables(Object.fromEntries([
    'PATH', 'HOME', 'HOSTNAME', 'LOGNAME', 'SHELL', 'TERM', 'PWD', 'USER', 'LANG', 'TZ', 'NODE_OPTIONS', 'NODE_ENV', 'PGHOST',
    'PGPORT', 'POSTGRES_PASSWORD', 'KUBERNETES_SERVICE_HOST', 'KUBERNETES_PORT', 'STRONGROOM_PORT', 'STRONGROOM_URL',
    'OTEL_TRACES_SAMPLER', 'OTEL_EXPORTER_OTLP_PROTOCOL', 'XDG_DATA_DIRS', 'LOG_LEVEL', 'PORT', 'DATABASE_URL'
  ].map((name) => [name, 'x']))), [])
  t.same(unknownVariables({ DATABSE_URL: '' }), [], 'an empty variable is not set')
  t.match(await command(['user', 'list'], { DATABSE_URL: 'postgres://u:canary@h/d', DATA_DIR: '/nowhere' }), {
    code: 1, stderr: /^"DATABSE_URL" is not a variable of Strongroom: did you mean DATABASE_URL\?\nThere is no folder \/nowhere /
  })
})

t.test('beyond this machine without PUBLIC_URL: the start warns, and pages ask for https before a password', async (t) => {
  const env = { DATA_DIR: join(scratchDirectory(t), 'data'), HOST: '0.0.0.0', PORT: '0' }
  const server = await startServer(t, env)
  t.match(server.stderr(), /^HOST is 0\.0\.0\.0, but PUBLIC_URL is not set: [^\n]+ Set PUBLIC_URL to the https address [^\n]+\n$/)
  const port = new URL(server.address).port
  const ask = (path: string, headers: Record<string, string>, method = 'GET') =>
    new Promise<{ status: number | undefined, cookie: unknown, text: string }>((resolve, reject) => {
      request({ host: '127.0.0.1', port, path, method, headers }, (response) => {
        let text = ''
        response.setEncoding('utf8').on('data', (more: string) => { text += more }).on('end', () =>
          resolve({ status: response.statusCode, cookie: response.headers['set-cookie'], text }))
      }).on('error', reject).end()
    })
  const authorize = '/oauth/authorize?response_type=code&client_id=dotenv-cli&redirect_uri=http%3A%2F%2F127.0.0.1%3A4711%2Fcallback' +
    `&code_challenge=${'a'.repeat(43)}&code_challenge_method=S256&scope=secret%3Aread&state=1`
  for (const host of [`192.168.1.5:${port}`, 'vault.example', `0.0.0.0:${port}`]) {
    for (const path of ['/account', authorize, '/account/set-password/x', '/account/invitation/x']) {
      const { status, cookie, text } = await ask(path, { host })
      t.same([status, cookie], [403, undefined], `${host} ${path}`)
      t.match(text, '<h1>Sign in over https, or from this machine</h1>')
      t.notMatch(text, 'password"')
    }
    const type = { 'content-type': 'application/x-www-form-urlencoded' }
    t.match(await ask('/oauth/sign-in', { host, ...type }, 'POST'), { status: 403, text: /Sign in over https/ })
  }
  // All URLs that the service prints or mails can be opened on this machine.
  t.equal(server.address, `http://127.0.0.1:${port}`)
  t.match(server.stdout(), `Documentation   http://127.0.0.1:${port}/docs`)
  const metadata = await (await fetch(`${server.address}/.well-known/oauth-authorization-server`)).json() as { issuer: string }
  t.equal(metadata.issuer, server.address)
  const { link } = JSON.parse((await command(['user', 'password', '--email', 'owner@example.com', '--json'], env)).stdout)
  t.ok(link.startsWith(`${server.address}/account/set-password/`), link)
  const opened = await ask(new URL(link).pathname, { host: new URL(link).host })
  t.match(opened, { status: 200, text: /name="password"/ })
  const safe: Record<string, string>[] = [
    { host: `127.0.0.1:${port}` }, { host: `localhost:${port}` }, { host: `[::1]:${port}` },
    // Requests behind a proxy with TLS.
    { host: 'vault.example', 'sec-fetch-site': 'none' }
  ]
  for (const headers of safe) {
    t.match(await ask('/account', headers), { status: 200, text: /name="password"/ }, String(headers.host))
  }
  t.equal((await server.stop()).code, 0)
})

t.test('a misspelt command or option names the nearest one and the valid ones, without the whole help', async (t) => {
  const rows: [args: string[], line: string][] = [
    [['usr'], 'Unknown command usr (did you mean user?). `help` lists the commands.'],
    [['users', 'list'], 'Unknown command users (did you mean user?). `help` lists the commands.'],
    [['constructor'], 'Unknown command constructor. `help` lists the commands.'],
    [['client', 'lst'], 'Unknown command client lst (did you mean list?); client has: add, disable, enable, list'],
    [['client', 'toString'], 'Unknown command client toString; client has: add, disable, enable, list'],
    [['client'], 'client needs a command, one of: add, disable, enable, list'],
    [['client', '--id', 'x'], 'client needs a command, one of: add, disable, enable, list'],
    [
      ['token', 'add', '--organizaton', 'nimbus'],
      "Unknown option '--organizaton' (did you mean --organization?); allowed: --organization, --name, --ability"
    ],
    [['client', 'enable', '--idx=canary'], "Unknown option '--idx' (did you mean --id?); allowed: --id"],
    [['client', 'list', '-v'], "Unknown option '-v'; the command has no options"],
    [['restore', 'file', '--identiy', 'x'], "Unknown option '--identiy' (did you mean --identity?); allowed: --identity, --json"]
  ]
  for (const [args, line] of rows) {
    t.same(await command(args), { code: 2, stdout: '', stderr: `${line}\n` }, args.join(' '))
  }
  t.match(await command([]), { code: 2, stdout: '', stderr: /^Usage: strongroom-server COMMAND\n/ })
  t.match(await command(['help']), { code: 0, stdout: /^Usage: strongroom-server COMMAND\n/, stderr: '' })
})
