// runs: one database; 25 s
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import fs, {
  chmodSync, chownSync, existsSync, readdirSync, readFileSync, renameSync, rmSync, statSync, symlinkSync, writeFileSync
} from 'node:fs'
import { createServer, connect as connectSocket, type AddressInfo } from 'node:net'
import { syncBuiltinESMExports } from 'node:module'
import { join } from 'node:path'
import postgres from 'postgres'
import t, { type Test } from 'tap'
import { main } from '../../src/cli.ts'
import { open } from '../../src/commands/common/open.ts'
import { loadConfig } from '../../src/config.ts'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { authorizationUrl, pkce } from '../helpers/people.ts'
import { IN_PROOFS, LONG, sample } from '../helpers/long.ts'
import { freePort } from '../helpers/postgres.ts'
import { cli, CLI, command, emptyPlace, run, scratchDirectory, startServer, type Ended, type Server } from '../helpers/process.ts'
import { startMailServer } from '../helpers/smtp.ts'
import { client, makeLevels, store, type Level, type Operation } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'
import { formIn, visitor } from '../helpers/visitor.ts'

t.setTimeout(540_000)

const ULID = /^[0-9A-HJKMNP-TV-Z]{26}$/
const TOKEN = /^dotenv_[0-9A-HJKMNP-TV-Z]{26}_[0-9A-Za-z]{46}$/
const mode = (path: string) => statSync(path).mode & 0o777

/** Asserts one matching line on standard error, exit status 1, and an empty standard output. */
function refused (t: Test, ended: Ended, line: RegExp) {
  t.match(ended.stderr, line)
  t.match(ended.stderr, /^[^\n]+\n$/, 'one line')
  t.equal(ended.stdout, '')
  t.equal(ended.code, 1)
}

const commandsOf = (greeting: string) =>
  greeting.split('\n').filter((line) => /^ {2}(read|printf|STRONGROOM_URL)/.test(line)).map((line) => line.trim())
const notLogged = (stdout: string) => stdout.split('\n').filter((line) => line !== '' && !line.startsWith('{'))

t.test('from an empty directory: the first start, the next ones, and what is refused', async (t) => {
  const dir = join(scratchDirectory(t), 'data')
  const env = { DATA_DIR: dir }
  const keyFile = join(dir, 'master.key')
  let organization = ''
  let token = ''

  await t.test('the first start prints the block of the operating page, and its commands work when pasted', async (t) => {
    const server = await startServer(t, { ...env, LOG_LEVEL: 'info' })
    t.match(notLogged(server.stdout()), [
      /^Strongroom serves on http:\/\/127\.0\.0\.1:\d+$/,
      ` Database        embedded, in ${dir}`,
      /^ {2}Console +http:\/\/127\.0\.0\.1:\d+\/console\/$/,
      /^ {2}Documentation +http:\/\/127\.0\.0\.1:\d+\/docs$/,
      /^ {2}Command line +http:\/\/127\.0\.0\.1:\d+\/cli\/$/,
      /^ {2}Organization +\S+$/,
      /^ {2}API token +\S+$/,
      /^ {2}Owner +\S+@\S+$/,
      /^ {2}Password +\S{8,}$/,
      /^This is printed once/,
      /^ {2}read -r STRONGROOM_TOKEN/,
      /^Then try:$/,
      /^ {2}printf .* curl/,
      /^ {2}printf .* curl/,
      /^ {2}STRONGROOM_URL=/,
      /^An organization has 100 requests a minute, the default of the specification. To raise it, set RATE_LIMIT_API\.$/
    ])
    t.equal(notLogged(server.stdout()).length, 16, 'nothing else but log lines, which are JSON')
    for (const line of server.stdout().split('\n')) if (line.startsWith('{')) t.doesNotThrow(() => JSON.parse(line))
    t.equal(server.stderr(), '')
    ;({ organization, token } = server.first!)
    t.match(organization, ULID)
    t.match(token, TOKEN)
    t.equal(server.stdout().split(token).length, 2, 'the token is there once')
    t.equal(server.stdout().split(server.first!.password).length, 2, 'and so is the password')
    const [read, ...commands] = commandsOf(server.stdout())
    t.equal(commands.length, 3)
    // Runs the commands in one shell, as a person enters them. `read` reads the token from the input.
    for (const shell of ['sh', 'bash']) {
      const outputs: string[] = []
      // The last command is the tour, which `project/tour` also runs.
      for (const command of shell === 'bash' ? commands.slice(0, 1) : LONG ? commands : commands.slice(0, 2)) {
        const { code, stdout, stderr } = await run(shell, ['-c', `${read}\n${command}`], {}, `${token}\n`)
        t.equal(code, 0, stderr)
        t.notMatch(stdout, '"error"')
        outputs.push(stdout)
      }
      t.match(outputs[0], `"ulid":"${organization}"`)
      if (shell === 'bash') continue
      t.match(outputs[1], '"slug":"orbit"')
      if (LONG) t.match(outputs[2], 'All as it should be.')
    }
    t.equal((await fetch(`${server.address}/docs`)).status, 200)
    const { body } = await client(server.address, { organization, token })('GET', '/orbit/encryption-key')
    t.equal(body.data.attributes.key_check_iterations, 600_000, 'what is served derives at full cost')

    t.same([mode(dir), mode(join(dir, 'postgres')), mode(keyFile)], [0o700, 0o700, 0o600], 'for their owner only')
    refused(t, await command(['serve'], { ...env, PORT: '0' }), new RegExp(`in use by process ${server.child.pid}: stop the service first`))
    refused(t, await command(['migrate'], env), /in use by process/)
    const { code, stdout } = await server.stop()
    t.equal(code, 0)
    t.notMatch(stdout, new RegExp(`"[^\\n]*${token}[^\\n]*"level"`), 'the token is in no log line')
  })

  await t.test('init refuses a database that is not empty', IN_PROOFS, async (t) => {
    refused(
      t, await command(['init', '--organization', 'Nimbus', '--email', 'rosa@nimbus.example', '--json'], env),
      /not empty/
    )
  })

  await t.test('CR-11 CR-13: a wrong or missing master key is one line, no open port, and no new key', async (t) => {
    const taken = createServer().listen(0, '127.0.0.1')
    await once(taken, 'listening')
    t.teardown(() => taken.close())
    // If the start reached the port, it would report that the port is in use.
    const port = String((taken.address() as AddressInfo).port)
    const right = readFileSync(keyFile, 'utf8').trim()
    const other = generateMasterKey().text
    const sameId = `${right.split(':')[0]}:${other.split(':')[1]}`
    refused(t, await command(['serve'], { ...env, PORT: port, MASTER_KEY: sameId }), /^Master key \S+ is wrong: .* Set the key that/)
    refused(
      t, await command(['serve'], { ...env, PORT: port, MASTER_KEY: other.replace(/^[^:]+/, 'another') }),
      new RegExp(`^Master key ${right.split(':')[0]} is missing`)
    )
    refused(t, await command(
      ['init', '--organization', 'Nimbus', '--email', 'rosa@nimbus.example'], { ...env, MASTER_KEY: sameId }
    ), /is wrong/)

    renameSync(keyFile, `${keyFile}.away`)
    refused(t, await command(['serve'], { ...env, PORT: port }), /master\.key is missing/)
    t.notOk(existsSync(keyFile), 'no new key, which could open nothing')
    writeFileSync(keyFile, 'k1:short\n', { mode: 0o600 })
    refused(t, await command(['serve'], { ...env, PORT: port }), /does not hold a master key/)
    writeFileSync(keyFile, `${right}\n`)
    rmSync(`${keyFile}.away`)
    refused(
      t, await command(['serve'], { ...env, PORT: port }),
      new RegExp(`^Cannot listen on 127\\.0\\.0\\.1:${port} \\(EADDRINUSE\\): another program .* set PORT`)
    )
  })

  await t.test('CR-12: an embedded database that is open to other users, or belongs to one, is not opened', async (t) => {
    const inside = join(dir, 'postgres')
    for (const bits of [0o755, 0o750, 0o701]) {
      chmodSync(inside, bits)
      refused(t, await command(['serve'], { ...env, PORT: '0' }), /postgres is open to other users: chmod 700 it$/m)
    }
    chmodSync(inside, 0o700)
    if (process.getuid?.() === 0) {
      chownSync(inside, 65534, 65534)
      refused(t, await command(['serve'], { ...env, PORT: '0' }), /postgres belongs to another user$/m)
      chownSync(inside, 0, 0)
    }
  })

  await t.test('organization set takes effect; the second start finds everything and prints no block', IN_PROOFS, async (t) => {
    t.same(await command(
      ['organization', 'set', '--id', organization.toLowerCase(), '--plan', 'free', '--status', 'suspended',
        '--require-second-factor', 'yes'], env
    ), { code: 0, stdout: 'Changed.\n', stderr: '' })
    const server = await startServer(t, env)
    t.same(notLogged(server.stdout()), [
      `Strongroom serves on ${server.address}`,
      `  Database        embedded, in ${dir}`,
      `  Console         ${server.address}/console/`, `  Documentation   ${server.address}/docs`, `  Command line    ${server.address}/cli/`,
      `  Lost token      node ${CLI} token add --organization ID-OR-SLUG --name NAME`,
      `  Lost password   node ${CLI} user password --email ADDRESS`
    ])
    const send = client(server.address, { organization, token })
    const { body } = await send('GET', '//api/v1/organization')
    t.match(body.data.attributes, { plan_name: 'free', status: 'suspended', require_second_factor: true })
    t.equal((await send('GET', '/orbit')).body.error, 'organization_inactive')
    t.equal((await server.stop()).code, 0)
  })
})

t.test('a wrong variable is one line that names it, and exit 1; the key is never in it', async (t) => {
  const dir = join(scratchDirectory(t), 'data')
  const wrong: Record<string, string>[] = [
    { PORT: 'http' }, { HOST: 'a b' }, {
      DATABASE_URL: 'mysql://u:canary@h/d'
    }, { LOG_LEVEL: 'loud' }, { MASTER_KEY: 'k1:canary' },
    { DATABASE_URL: 'postgres://u:canary@127.0.0.1:1/d' }, { MASTER_KEY_FILE: '/nowhere/at/all' }
  ]
  await Promise.all(wrong.map(async (env) => {
    const ended = await command(['serve'], { DATA_DIR: dir, ...env })
    refused(t, ended, new RegExp(Object.keys(env)[0]!))
    t.notMatch(ended.stderr, 'canary')
  }))
  t.notOk(existsSync(dir), 'nothing was made')
  const away = await command(
    ['serve'],
    { DATABASE_URL: 'postgres://u:canary@127.0.0.1:1/d', DATABASE_WAIT: '0', MASTER_KEY: generateMasterKey().text }
  )
  refused(t, away, /database/i)
  t.notMatch(away.stderr, 'canary')
})

t.test('CR-10 CR-11: a malformed master key is refused, and none is made for an external database', async (t) => {
  const directory = scratchDirectory(t)
  const data = join(directory, 'data')
  const right = generateMasterKey().text
  const wrong: Record<string, [text: string, mode: number, line: RegExp]> = {
    open: [right, 0o644, /has mode 0644; mode 0400 or 0600 is allowed$/m],
    short: [`k1:${Buffer.alloc(31, 7).toString('base64')}`, 0o600, /does not hold a master key/],
    text: ['k1:this is no base64 of 32 bytes, is it?', 0o600, /does not hold a master key/],
    empty: ['', 0o600, /does not hold a master key/]
  }
  await Promise.all(Object.entries(wrong).map(async ([name, [text, mode, line]]) => {
    const file = join(directory, name)
    writeFileSync(file, text, { mode })
    const ended = await command(['serve'], { DATA_DIR: data, MASTER_KEY_FILE: file })
    refused(t, ended, /^MASTER_KEY_FILE: /)
    t.match(ended.stderr, line)
    if (text !== '') t.notMatch(ended.stderr, text.slice(3))
  }))
  refused(
    t, await command(['serve'], { DATA_DIR: data, DATABASE_URL: 'postgres://app@127.0.0.1:1/d' }),
    /^MASTER_KEY and MASTER_KEY_FILE are not set/
  )
  t.same(readdirSync(directory).sort(), Object.keys(wrong).sort(), 'nothing was made')
})

t.test('who asks for help is told every command, and no command runs', async (t) => {
  const dir = join(scratchDirectory(t), 'data')
  const { stderr: usage } = await command([])
  t.match(usage, /^Usage: strongroom-server COMMAND\n/)
  const told = { code: 0, stdout: usage, stderr: '' }
  for (const args of [
    ['help'], ['--help'], ['-h'], ['serve', '--help'], ['serve', '-h'], ['init', '--organization', 'Nimbus', '--help'],
    ['token', '--help'], ['token', 'add', '--help'], ['backup', 'file', '-h'], ['migrate', '--help']
  ]) t.same(await command(args, { DATA_DIR: dir, DATABSE_URL: 'x' }), told, args.join(' '))
  for (const option of sample(['--help', '-h'], 2)) {
    t.same(await run(process.execPath, ['scripts/start.mjs', '--no-build', option], { DATA_DIR: dir, PORT: '0' }), told, `npm start -- ${option}`)
  }
  t.equal((await command(['srve', '--help'], { DATA_DIR: dir })).code, 2, 'an unknown command is still unknown')
  t.notOk(existsSync(dir), 'nothing was made')
})

t.test('wrong usage is exit 2', async (t) => {
  const dir = join(scratchDirectory(t), 'data')
  await Promise.all([
    [], ['unknown'], ['serve', 'now'], ['serve', '--port', '1'], ['init'], ['init', '--organization', 'Nimbus'],
    [
      'init', '--organization', 'Nimbus', '--email', 'nobody'
    ], ['init', '--organization', ' ', '--email', 'a@b'], ['migrate', '--force'], ['rewrap', 'k1'], ['rewrap', '--all'],
    ['organization'], ['organization', 'get'], [
      'organization', 'set', '--plan', 'free'
    ], ['organization', 'set', '--id', 'x'],
    ['organization', 'set', '--id', 'x', '--status', 'gone'],
    ['organization', 'set', '--id', 'x', '--require-second-factor', 'maybe'], ['toString']
  ].map(async (args) => {
    const { code, stdout, stderr } = await command(args, { DATA_DIR: dir })
    t.same([code, stdout], [2, ''], args.join(' '))
    t.notMatch(stderr, /\n +at /, 'no stack trace')
  }))
  t.notOk(existsSync(dir), 'nothing was made')
})

t.test('wrong usage of the commands for people and applications is exit 2, before anything is opened', async (t) => {
  const dir = join(scratchDirectory(t), 'data')
  const before = process.env.DATA_DIR
  process.env.DATA_DIR = dir
  t.teardown(() => before === undefined ? delete process.env.DATA_DIR : (process.env.DATA_DIR = before))
  const wrong = [
    ['user'], ['user', 'remove'], ['user', 'toString'], ['user', 'add'], ['user', 'add', '--email', 'nobody'], [
      'user', 'add', '--email', `${'x'.repeat(320)}@a`
    ],
    [
      'user', 'add', '--email', `${'\ufdfa'.repeat(100)}@a`
    ], ['user', 'add', '--email', 'a@b\u0000'], ['user', 'add', '--email', 'a@b', '--name', ' '],
    ['user', 'add', '--email', 'a@b', '--name', 'A\nB'], ['user', 'add', '--email', 'a@b', '--role', 'owner'], [
      'user', 'add', '--email', 'a@b', '--organization', 'x'
    ],
    [
      'user', 'add', '--email', 'a@b', '--organization', 'x', '--role', 'king'
    ], ['user', 'add', 'a@b'], ['user', 'password'], ['user', 'password', '--email', 'nobody'],
    ['user', 'disable'], ['user', 'enable', '--email', ''], ['user', 'list', '--json'],
    ['user', 'reset-second-factor'], ['user', 'reset-second-factor', '--email', 'nobody'],
    ['client'], ['client', 'set'], ['client', 'add'], ['client', 'disable'], [
      'client', 'enable', '--id', ''
    ], ['client', 'list', 'all'],
    ['client', 'add', '--id', 'Deploy', '--name', 'Deploy', '--redirect-uri', 'https://deploy.example/back'],
    ['client', 'add', '--id', 'x'.repeat(65), '--name', 'Deploy', '--redirect-uri', 'https://deploy.example/back'],
    [
      'client', 'add', '--id', 'deploy', '--redirect-uri', 'https://deploy.example/back'
    ], ['client', 'add', '--id', 'deploy', '--name', 'Deploy'],
    ...[
      'http://deploy.example/back', 'https://*.example/back', 'javascript:alert(1)', 'https://deploy.example/back#a', ''
    ].map((uri) =>
      [
        'client', 'add', '--id', 'deploy', '--name', 'Deploy', '--redirect-uri', 'https://deploy.example/back',
        '--redirect-uri', uri
      ])
  ]
  for (const args of wrong) {
    const said = t.capture(process.stderr, 'write', () => true)
    const code = await main(args)
    said.restore()
    t.equal(code, 2, args.join(' ').slice(0, 100))
    t.match(said().map(({ args: [text] }) => text).join(''), /^[^\n]+\n$/, 'one line')
  }
  t.notOk(existsSync(dir), 'nothing was made')
})

t.test('the installed command, which is a link, runs as the file does', async (t) => {
  const directory = scratchDirectory(t)
  const link = join(directory, 'strongroom')
  symlinkSync(CLI, link)
  const short = await run(
    process.execPath, [link, 'init', '--organization', 'Nimbus', '--email', 'rosa@nimbus.example', '--password-stdin'],
    { DATA_DIR: join(directory, 'data') }, 'short\n'
  )
  t.equal(short.code, 2, 'a password that is too short is wrong usage')
  t.same(readdirSync(directory), ['strongroom'], 'nothing was made')
})

t.test('migrate and init on an empty embedded database make what serve then serves', async (t) => {
  const dir = join(scratchDirectory(t), 'data')
  t.same(await command(['migrate'], { DATA_DIR: dir }), { code: 0, stdout: 'The schema is up to date.\n', stderr: '' })
  t.same(readdirSync(dir), ['postgres'], 'a migration wraps nothing, and so makes no key')

  // Creates the master key and its canary, which is the first value that the key encrypts.
  const events = await watchDisk(async () => {
    const { database } = await open(loadConfig({ DATA_DIR: dir }), { creates: true })
    await database.close()
  })
  const [named, wrapped] = [
    events.indexOf(`link ${join(dir, 'master.key')}`), events.indexOf('insert into "master_key_canaries"')
  ]
  t.ok(named > 0 && wrapped > named, events.join('; '))
  t.match(
    events.slice(0, named).filter((event) => event.startsWith('sync')),
    [`sync ${join(dir, 'master.key')}.`], 'the key is on disk before it has its name'
  )
  t.ok(events.slice(named, wrapped).includes(`sync ${dir}`), 'and its name before anything is wrapped by it')
  const again = await watchDisk(async () => {
    const { database } = await open(loadConfig({ DATA_DIR: dir }))
    await database.close()
  })
  t.same(
    again.slice(0, 2), [`sync ${join(dir, 'master.key')}`, `sync ${dir}`],
    'a key that was already there is on disk before it is used'
  )

  const made = await command(
    ['init', '--organization', 'Nimbus', '--email', 'rosa@nimbus.example', '--json'], { DATA_DIR: dir }
  )
  t.same([made.code, made.stderr], [0, ''])
  const { organization, user, token } = JSON.parse(made.stdout)
  t.match(user.password, /^\S{12,}$/)
  t.same(readdirSync(dir).sort(), ['master.key', 'postgres'])
  // The test of people and applications also serves the database that `init` created.
  if (!LONG) return
  const server = await startServer(t, { DATA_DIR: dir })
  t.equal(server.first, undefined)
  t.equal((await client(server.address, { organization: organization.id, token })('GET', '/projects')).status, 200)
  t.equal((await server.stop()).code, 0)
})

/** Records the order of disk and database operations: syncs, new file names, and the first words of statements. */
async function watchDisk (act: () => Promise<void>): Promise<string[]> {
  const events: string[] = []
  const paths = new Map<number, string>()
  const { openSync, fsyncSync, linkSync } = fs
  const onStatement = (message: unknown) => {
    const { phase, text } = message as { phase: string, text: string }
    if (phase === 'before') events.push(text.trim().split(' ').slice(0, 3).join(' '))
  }
  Object.assign(fs, {
    openSync: (...args: Parameters<typeof openSync>) => {
      const handle = openSync(...args)
      paths.set(handle, String(args[0]))
      return handle
    },
    fsyncSync: (handle: number) => {
      fsyncSync(handle)
      events.push(`sync ${paths.get(handle)}`)
    },
    linkSync: (from: string, to: string) => {
      linkSync(from, to)
      events.push(`link ${to}`)
    }
  })
  syncBuiltinESMExports()
  subscribe('strongroom:statement', onStatement)
  try {
    await act()
  } finally {
    Object.assign(fs, { openSync, fsyncSync, linkSync })
    syncBuiltinESMExports()
    unsubscribe('strongroom:statement', onStatement)
  }
  return events
}

const MASTER_KEY = generateMasterKey().text
const isOnPostgres = process.env.TEST_DATABASE_URL !== undefined

/** The configuration of a new, empty database on PostgreSQL. */
const empty = async (t: Test) =>
  ({ ...await emptyPlace(t), MASTER_KEY }) as { DATABASE_URL: string, MASTER_KEY: string }

t.test('people and applications, from the command line to the browser', async (t) => {
  const port = await freePort()
  const address = `http://127.0.0.1:${port}`
  // Each command opens the database. This takes almost no time on PostgreSQL, so uses PostgreSQL if it is available.
  const env = {
    PORT: String(port),
    ...isOnPostgres ? await empty(t) : { DATA_DIR: join(scratchDirectory(t), 'data') }
  }
  const made = JSON.parse((await command(
    ['init', '--organization', 'Nimbus', '--email', 'rosa@nimbus.example', '--json'], env
  )).stdout)
  const done = async (t: Test, ...args: string[]) =>
    t.same(await command(args, env), { code: 0, stdout: args[1] === 'add' ? 'Added.\n' : 'Changed.\n', stderr: '' })
  let link = ''

  await t.test('user add makes an account, and a link that is nowhere else', async (t) => {
    const added = await command([
      'user', 'add', '--email', 'Finn@nimbus.example', '--name', 'Finn Ash', '--organization', made.organization.slug,
      '--role', 'admin', '--json'
    ], env)
    t.equal(added.code, 0)
    t.equal(added.stderr, '', 'without SMTP_URL, no mail has failed')
    const { user, link: first } = JSON.parse(added.stdout)
    t.equal(added.stdout, `${JSON.stringify({ user, link: first })}\n`, 'exactly one object')
    t.match(user, { id: /^\d+$/, email: 'Finn@nimbus.example' })
    t.ok(first.startsWith(`${address}/account/set-password/`))
    refused(
      t, await command(['user', 'add', '--email', 'finn@NIMBUS.example'], env),
      /^An account with finn@NIMBUS\.example already exists$/m
    )
  })

  await t.test('what was disabled is listed as that, and can be enabled', async (t) => {
    await done(t, 'user', 'disable', '--email', 'FINN@nimbus.example')
    t.equal(
      (await command(['user', 'list'], env)).stdout.replace(/^\d+/gm, 'N'),
      'N\trosa@nimbus.example\tactive\tnimbus:owner\nN\tFinn@nimbus.example\tdisabled\tnimbus:administrator\n'
    )
    await done(t, 'user', 'enable', '--email', 'finn@nimbus.example')
    refused(
      t, await command(['user', 'reset-second-factor', '--email', 'finn@nimbus.example'], env),
      /^The account with Finn@nimbus\.example has no second factor$/m
    )
    const again = await command(
      ['user', 'password', '--email', 'finn@nimbus.example'], { ...env, PUBLIC_URL: 'https://secrets.example.com/base' }
    )
    t.equal(again.code, 0)
    t.equal(again.stderr, '')
    t.match(
      again.stdout,
      /^User \d+ \(Finn@nimbus\.example\)\nLink https:\/\/secrets\.example\.com\/base\/account\/set-password\/[\w-]{43}\nMail is not configured \(SMTP_URL\): give the link to the person yourself\. It works once, within three days\.\n$/
    )
    link = address + /\/account\/\S+/.exec(again.stdout)![0]
  })

  await t.test('a client is added once, with every redirect URI', async (t) => {
    const deploy = [
      'client', 'add', '--id', 'deploy', '--name', 'Deploy', '--redirect-uri', 'https://deploy.example/back',
      '--redirect-uri', 'http://127.0.0.1/back'
    ]
    await done(t, ...deploy)
    refused(t, await command(deploy, env), /^The client deploy already exists$/m)
    await done(t, 'client', 'disable', '--id', 'swagger-ui')
    await done(t, 'client', 'disable', '--id', 'dotenv-cli')
    await done(t, 'client', 'enable', '--id', 'dotenv-cli')
    const { stdout } = await command(['client', 'list'], env)
    t.match(stdout, 'deploy\tactive\tDeploy\thttps://deploy.example/back http://127.0.0.1/back\n')
    t.match(stdout, /^dotenv-cli\tactive\t/m)
    t.match(stdout, /^swagger-ui\tdisabled\t/m)
  })

  await t.test('organization set refuses an organization and a plan that do not exist', async (t) => {
    refused(
      t, await command(['organization', 'set', '--id', '01ARZ3NDEKTSV4RRFFQ69G5FAV', '--plan', 'free'], env),
      /There is no organization/
    )
    refused(
      t, await command(['organization', 'set', '--id', made.organization.id, '--plan', 'gold'], env),
      /There is no plan gold/
    )
  })

  await t.test('OA-10 OA-63: the first owner signs in, the link works once, a client gets in unless it is shut out', async (t) => {
    const server = await startServer(t, env)
    t.equal(server.first, undefined, 'the second start prints no block')
    t.equal(server.address, address)
    const rosa = visitor(address)
    const account = await rosa.signIn(await rosa.open('/account'), 'rosa@nimbus.example', made.user.password)
    t.match(account.text, 'rosa@nimbus.example')
    t.notMatch(account.text, 'name="password"')
    const finn = visitor(address)
    const form = formIn(await finn.open(link))
    t.equal((await finn.send(form, { password: 'a password of his own' })).status, 303)
    t.equal((await finn.send(form, { password: 'another, with the same link' })).status, 404)
    t.match((await finn.open('/account')).text, 'Finn@nimbus.example')
    const ask = (client_id: string, redirect_uri: string) =>
      rosa.open(authorizationUrl(pkce().challenge, { client_id, redirect_uri }))
    t.match((await ask('deploy', 'https://deploy.example/back')).text, 'Deploy')
    t.match((await ask('deploy', 'http://127.0.0.1:4711/back')).text, 'Deploy')
    t.match((await ask('dotenv-cli', 'http://127.0.0.1:4711/callback')).text, 'Command line')
    t.equal((await ask('deploy', 'https://deploy.example/back/')).status, 400)
    t.equal((await ask('swagger-ui', `${address}/docs/static/oauth2-redirect.html`)).status, 400)
    t.notMatch(server.stdout() + server.stderr(), link.split('/').at(-1)!)
    t.equal((await server.stop()).code, 0)
  })

  await t.test('OA-93: with SMTP_URL the link is mailed as well; a server that never greets does not hold it up', async (t) => {
    const [good, silent] = [await startMailServer(t), await startMailServer(t, 'silent')]
    const url = (port: number) =>
      ({ ...env, SMTP_URL: `smtp://app:canary@127.0.0.1:${port}`, PUBLIC_URL: 'https://secrets.example.com' })
    const mailed = await command(['user', 'add', '--email', 'noor@nimbus.example'], url(good.port))
    t.same([mailed.code, mailed.stderr], [0, ''])
    const [, printed = 'none'] = /^Link (\S+)$/m.exec(mailed.stdout) ?? []
    t.match(mailed.stdout, /\nThe link was sent by e-mail\.\n$/)
    t.match(good.mails, [{ from: 'no-reply@secrets.example.com', to: ['noor@nimbus.example'] }])
    t.match(good.mails[0]!.text, `\n${printed}\r\n`)

    const waited = await command(['user', 'password', '--email', 'noor@nimbus.example'], url(silent.port))
    t.equal(waited.code, 0)
    t.match(waited.stdout, /^User \d+ \(noor@nimbus\.example\)\nLink https:\S+\n$/)
    t.match(waited.stderr, /^The mail to user \d+ was not sent: the mail server did not answer in time\n$/)
    t.notMatch([mailed, waited].map(({ stdout, stderr }) => stdout + stderr).join(''), 'canary')
  })
})

t.test('on PostgreSQL', { skip: !isOnPostgres && 'runs on PostgreSQL' }, async (t) => {
  // The servers of two tests stop only after the later tests.
  const all = t
  let leaving: Server
  let stopping: Server
  let made: Record<'DATABASE_URL' | 'MASTER_KEY', string>

  await t.test('init --json prints exactly one object; migrate may come before it, and again', async (t) => {
    const env = await empty(t)
    t.same(await command(['migrate'], env), { code: 0, stdout: 'The schema is up to date.\n', stderr: '' })
    t.same(await command(['migrate'], env), { code: 0, stdout: 'The schema is up to date.\n', stderr: '' })
    const args = ['init', '--organization', 'Nimbus & Söhne', '--email', 'rosa@nimbus.example', '--json']
    const { code, stdout, stderr } = await cli([...args, '--password-stdin'], env, 'a long password\n')
    t.same([code, stderr], [0, ''])
    const made = JSON.parse(stdout)
    t.same(stdout, `${JSON.stringify(made)}\n`)
    t.match(made, {
      organization: { id: ULID, slug: /^nimbus/ }, user: { id: /^\d+$/, email: 'rosa@nimbus.example' }, token: TOKEN
    })
    t.same(
      [Object.keys(made), Object.keys(made.organization), Object.keys(made.user)],
      [['organization', 'user', 'token'], ['id', 'slug'], ['id', 'email']]
    )
    refused(t, await command(args, env), /not empty/)
  })

  await t.test('two servers started at once on one empty database migrate once and make one organization', async (t) => {
    const env = { ...await empty(all), RATE_LIMIT_API: '500' }
    const servers = await Promise.all([
      startServer(all, { ...env, LOG_LEVEL: 'info', SHUTDOWN_DELAY: '300' }), startServer(t, env)
    ])
    t.equal(servers.filter(({ first }) => first !== undefined).length, 1)
    for (const { stdout } of servers) t.notMatch(stdout(), /requests a minute/, 'the limit is not the default')
    const { first } = servers.find(({ first }) => first !== undefined)!
    leaving = { ...servers[0]!, first }
    for (const { address } of servers) t.equal((await client(address, first!)('GET', '/projects')).status, 200)
    const sql = postgres(env.DATABASE_URL, { max: 1 })
    const [counts] = await sql`SELECT (SELECT count(*) FROM organizations)::int AS organizations, (SELECT count(*) FROM users)::int AS users,
      (SELECT count(*) FROM api_tokens)::int AS tokens, (SELECT count(DISTINCT hash) = count(*) FROM drizzle.__drizzle_migrations) AS once`
    await sql.end()
    t.same(counts, { organizations: 1, users: 1, tokens: 1, once: true })
    const [, server] = servers
    server.child.kill('SIGINT')
    t.equal((await server.ended).code, 0)
  })

  await t.test('a used port and an open key file are refused before anything is made; the next start is the first', async (t) => {
    const env = await empty(all)
    const taken = createServer().listen(0, '127.0.0.1')
    await once(taken, 'listening')
    refused(
      t, await command(['serve'], { ...env, LOG_LEVEL: 'error', PORT: String((taken.address() as AddressInfo).port) }),
      /^Cannot listen on .*EADDRINUSE/
    )
    taken.close()

    // The start that succeeds uses a key file and prints the block of a first start.
    const { MASTER_KEY, DATABASE_URL } = env
    const file = join(scratchDirectory(t), 'master')
    writeFileSync(file, MASTER_KEY, { mode: 0o644 })
    refused(t, await command(['serve'], { DATABASE_URL, MASTER_KEY_FILE: file }), /^MASTER_KEY_FILE: .*0644/)
    chmodSync(file, 0o400)
    const server = await startServer(all, { DATABASE_URL, MASTER_KEY_FILE: file, LOG_LEVEL: 'info', RATE_LIMIT_API: '0' })
    ;[stopping, made] = [server, env]
    t.match(server.first?.token, TOKEN)
  })

  await t.test('for as long as SHUTDOWN_DELAY says it is not ready, and answers; a second signal ends it', async (t) => {
    const server = leaving
    const ask = async (path: string) => {
      const { status, headers } = await fetch(`${server.address}${path}`, {
        headers: { authorization: `Bearer ${server.first!.token}` }
      })
      return [status, headers.get('connection')]
    }
    t.same(await ask('/readyz'), [200, 'keep-alive'])
    server.child.kill('SIGTERM')
    await server.said('"msg":"stopping"')
    await until(async () => (await ask('/readyz'))[0] !== 200, { every: 0 })
    t.same(await ask('/readyz'), [503, 'close'])
    t.same(await ask('/api/v1/organization'), [200, 'close'], 'a request that arrives all the same is answered')
    t.equal((await server.stop()).code, 1)
  })

  await t.test('RL-10 SIGTERM under load: what is under way completes, not ready at once, exit 0 within 10 s', async (t) => {
    const server = stopping
    const send = client(server.address, server.first!)
    const [level] = await makeLevels(send, 'orbit', ['live']) as [Level]
    const { port, hostname } = new URL(server.address)
    const socket = () => {
      const one = connectSocket(Number(port), hostname)
      let said = ''
      one.setEncoding('utf8').on('data', (text: string) => { said += text })
      const untilSaid = (text: string) => until(() => said.includes(text), { every: 1 })
      return { one, untilSaid, said: () => said }
    }

    const body = JSON.stringify({ ...level, plaintext: 'HALF=way' })
    const halfway = socket()
    halfway.one.write(`POST /api/v1/${server.first!.organization}/secrets/store HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${server.first!.token}\r\n` +
      `Content-Type: application/json\r\nContent-Length: ${body.length}\r\nExpect: 100-continue\r\n\r\n`)
    await halfway.untilSaid('100 Continue')
    const asking = socket()
    asking.one.write('GET /readyz HTTP/1.1\r\nHost: x\r\n')
    const idle = socket()
    idle.one.write('GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n')
    await idle.untilSaid('"ok"')

    const operations: Operation[] = []
    const load = Promise.all(Array.from({ length: 8 }, async (_, writer) => {
      for (;;) {
        const operation = await store(send, level, `WRITER=${writer}`)
        if (operation.reply?.status !== 200) return
        operations.push(operation)
      }
    }))
    while (operations.length < 20) await store(send, level, 'ONE=more')
    const started = performance.now()
    server.child.kill('SIGTERM')
    await server.said('"msg":"stopping"')
    asking.one.write('\r\n')
    await asking.untilSaid('service_unavailable')
    t.match(asking.said(), /^HTTP\/1\.1 503 /)
    t.match(asking.said(), /^connection: close\r$/im)
    halfway.one.write(body)
    await halfway.untilSaid('"secret_id"')
    t.match(halfway.said(), 'HTTP/1.1 200 OK')
    const { code } = await server.ended
    t.equal(code, 0)
    t.ok(performance.now() - started < 10_000, 'within the ten seconds of the contract')
    await load
    const sql = postgres(made.DATABASE_URL, { max: 1 })
    const stored = new Set((await sql`SELECT id FROM secret_versions`).map(({ id }) => String(id)))
    await sql.end()
    t.same(
      operations.map(({ reply }) => reply!.body.data.version).filter((id) => !stored.has(id)), [],
      'nothing acknowledged is lost'
    )
  })
})
