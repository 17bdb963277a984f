// runs: one database
import { once } from 'node:events'
import { statSync } from 'node:fs'
import net from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { connect } from '../../src/db/database.ts'
import { command, emptyPlace, scratchDirectory, startServer } from '../helpers/process.ts'
import { until } from '../helpers/until.ts'

t.setTimeout(120_000)

t.test('an operator creates, lists and ends tokens and organizations, also when locked out of the API', async (t) => {
  const env = { ...await emptyPlace(t), MASTER_KEY: generateMasterKey().text, PORT: '0' }
  const run = async (...args: string[]) => command(args, env)
  const { organization, user, token: first } = JSON.parse(
    (await run('init', '--organization', 'Nimbus', '--email', 'rosa@nimbus.example', '--json')).stdout
  )
  const made = await run('token', 'add', '--organization', 'nimbus', '--name', 'Way back')
  const narrow = await run(
    'token', 'add', '--organization', organization.id, '--name', 'Reader', '--ability', 'secrets:read', '--ability',
    'project:read'
  )
  for (const { code, stdout } of [made, narrow]) {
    t.equal(code, 0)
    t.match(stdout, /^dotenv_[0-9A-HJKMNP-TV-Z]{26}_[0-9A-Za-z]{46}\n$/, 'its value, once')
  }
  const { stdout: list } = await run('token', 'list')
  const lines = list.trim().split('\n').map((line) => line.split('\t'))
  t.strictSame(
    lines.map(([, slug, , name, abilities]) => [slug, name, abilities]),
    [['nimbus', 'Reader', 'secret:read,project:read'], ['nimbus', 'Way back', '*'], ['nimbus', 'First token', '*']]
  )
  for (const { stdout } of [made, narrow]) t.notOk(list.includes(stdout.trim().slice(-46)), 'and never again')

  const added = await run(
    'organization', 'add', '--name', 'Stratus', '--owner', 'rosa@nimbus.example', '--plan', 'team'
  )
  t.match(added.stdout, /^Organization [0-9A-Z]{26} \(stratus\)\n$/)
  const organizations = (await run('organization', 'list')).stdout.trim().split('\n').map((line) => line.split('\t'))
  t.strictSame(
    organizations.map(([, ...shown]) => shown),
    [['nimbus', 'active', 'self-hosted', 'Nimbus'], ['stratus', 'active', 'team', 'Stratus']]
  )
  t.match((await run('user', 'list')).stdout, `${user.id}\trosa@nimbus.example\tactive\t`)
  t.match((await run('user', 'list')).stdout, /stratus:owner/)

  t.equal((await run('token', 'revoke', '--id', lines[2]![0]!)).stdout, 'Revoked.\n')
  const wrong: [args: string[], code: number, line: RegExp][] = [
    [['token', 'revoke', '--id', lines[2]![0]!], 1, /^There is no token \d+\n$/],
    [['token', 'revoke', '--id', 'x'], 2, /^token revoke needs --id ID\n$/],
    [['token', 'add', '--organization', 'nimbus', '--name', 'X', '--ability', 'Secret:Read'], 2, /^--ability must be one of \*, secret:read, .*\(did you mean secret:read\?\)$/m],
    [['token', 'add', '--organization', 'nimbus', '--name', 'X', '--ability', 'secret:rea'], 2, /\(did you mean secret:read\?\)$/m],
    [['user', 'add', '--email', 'omar@nimbus.example', '--organization', 'nimbus', '--role', 'ower'], 2, /^--role must be one of owner, administrator, .*\(did you mean owner\?\)\n$/],
    [['organization', 'set', '--id', 'nimbus', '--status', 'suspend'], 2, /^--status must be one of active, .*\(did you mean suspended\?\)\n$/],
    [['token', 'add', '--organization', 'none', '--name', 'X'], 1, /^There is no organization none\n$/],
    [['token', 'add', '--organization', 'nimbus'], 2, /^token add needs --name/],
    [['organization', 'add', '--name', 'X', '--owner', 'nobody@nimbus.example'], 1, /^There is no account with/],
    [['organization', 'add', '--name', 'X', '--plan', 'none'], 1, /^There is no plan none\n$/],
    [['organization', 'add'], 2, /^organization add needs --name/],
    [['organization', 'release-slug'], 2, /^organization release-slug needs --slug SLUG\n$/],
    [['organization', 'release-slug', '--slug', 'nimbus'], 1, /^The slug nimbus is not reserved\n$/]
  ]
  for (const [args, code, line] of wrong) {
    const ended = await run(...args)
    t.strictSame([ended.code, ended.stdout], [code, ''], args.join(' '))
    t.match(ended.stderr, line)
  }
  t.equal((await run('organization', 'list')).stdout.trim().split('\n').length, 2)

  const server = await startServer(t, env)
  const alive = async (token: string) =>
    (await fetch(`${server.address}/api/v1/user`, { headers: { authorization: `Bearer ${token.trim()}` } })).status
  t.strictSame(await Promise.all([made.stdout, narrow.stdout, first].map(alive)), [200, 200, 401])

  const renamed = await fetch(`${server.address}/api/v1/organizations/nimbus`, {
    method: 'PATCH',
    headers: { authorization: `Bearer ${made.stdout.trim()}`, 'content-type': 'application/json' },
    body: JSON.stringify({ slug: 'nimbus-weather' })
  })
  t.equal(renamed.status, 200)
  t.equal((await server.stop()).code, 0)
  t.match((await run('organization', 'add', '--name', 'Nimbus')).stdout, /\(nimbus-2\)\n$/)
  t.match(await run('organization', 'release-slug', '--slug', 'nimbus'), { code: 0, stdout: 'Released.\n' })
  t.match((await run('organization', 'add', '--name', 'Nimbus')).stdout, /\(nimbus\)\n$/)
})

t.test('an operator manages a running service with the embedded database, as a stopped one', async (t) => {
  const env = { DATA_DIR: scratchDirectory(t), PORT: '0' }
  const run = async (...args: string[]) => command(args, env)
  const server = await startServer(t, env)
  const { organization = '' } = server.first!
  /** All commands that change the database. Each command gets the output of the previous command. */
  const commands: ((before: string) => string[])[] = [
    () => ['organization', 'add', '--name', 'Stratus', '--owner', 'owner@example.com'],
    () => ['organization', 'set', '--id', 'stratus', '--plan', 'team'],
    () => ['user', 'add', '--email', 'omar@stratus.example', '--organization', 'stratus', '--role', 'developer', '--json'],
    () => ['user', 'password', '--email', 'omar@stratus.example', '--json'],
    () => ['user', 'disable', '--email', 'omar@stratus.example'],
    () => ['user', 'enable', '--email', 'omar@stratus.example'],
    () => ['token', 'add', '--organization', 'stratus', '--name', 'CI', '--ability', 'secret:read'],
    () => ['token', 'list'],
    (list) => ['token', 'revoke', '--id', list.split('\n').find((line) => line.includes('\tCI\t'))!.split('\t')[0]!],
    () => ['client', 'add', '--id', 'app', '--name', 'App', '--redirect-uri', 'https://app.example/callback'],
    () => ['client', 'disable', '--id', 'app'],
    () => ['plan', 'price', '--plan', 'team', '--interval', 'month', '--currency', 'EUR', '--amount', '900'],
    () => ['coupon', 'add', '--code', 'SPRING', '--percent', '10']
  ]
  const secrets: string[] = []
  let before = ''
  for (const args of commands) {
    const words = args(before)
    const { code, stdout, stderr } = await run(...words)
    t.equal(code, 0, words.join(' '))
    t.equal(stderr, '')
    if (/^(token add|user (add|password))/.test(words.join(' '))) secrets.push(stdout.trim())
    before = stdout
  }
  const [link, other, token] = secrets
  for (const one of [link!, other!]) {
    t.match(JSON.parse(one).link, new RegExp(`^${server.address}/account/set-password/`), 'the port of the service')
  }
  const { link: last } = JSON.parse((await run('user', 'password', '--email', 'omar@stratus.example', '--json')).stdout)
  t.equal((await fetch(last)).status, 200)
  t.match(token, /^dotenv_/)
  t.match((await run('user', 'list')).stdout, /omar@stratus\.example\tinvited\tstratus:developer\n/)
  t.equal(statSync(join(env.DATA_DIR, 'postgres', 'requests')).mode & 0o777, 0o600)

  const wrong: [args: string[], code: number, line: RegExp][] = [
    [['token', 'add', '--organization', 'nimbus', '--name', 'X', '--ability', 'secret:rea'], 2, /\(did you mean secret:read\?\)$/m],
    [['user', 'add', '--email', 'omar@nimbus.example', '--organization', 'nimbus', '--role', 'ower'], 2, /^--role must be one of owner, administrator, .*\(did you mean owner\?\)\n$/],
    [['organization', 'set', '--id', 'nimbus', '--status', 'suspend'], 2, /^--status must be one of active, .*\(did you mean suspended\?\)\n$/],
    [['token', 'add', '--organization', 'none', '--name', 'X'], 1, /^There is no organization none\n$/],
    [['user', 'add', '--email', 'omar@stratus.example'], 1, /^An account with omar@stratus\.example already exists\n$/],
    [['user', 'add'], 2, /^user add needs --email/],
    [
      [
        'client', 'add', '--id', 'long', '--name', 'Long',
        ...Array.from({ length: 400 }, (_, i) => ['--redirect-uri', `https://a.example/${i}${'x'.repeat(200)}`]).flat()
      ], 1,
      /^The command did not complete in the service, which has the database open: a request has at most 65536 characters\n$/
    ]
  ]
  for (const [args, code, line] of wrong) {
    const ended = await run(...args)
    t.strictSame([ended.code, ended.stdout], [code, ''], args.slice(0, 2).join(' '))
    t.match(ended.stderr, line)
  }

  const locked = await run('migrate')
  t.match(locked, { code: 1, stdout: '', stderr: /in use by process \d+/ })

  await run('client', 'list')
  await run('plan', 'price', '--plan', 'none', '--interval', 'month', '--currency', 'EUR', '--amount', '900')

  const { code, stdout, stderr } = await server.stop()
  t.equal(code, 0)
  // Commands without an organization, with LOG_LEVEL=warn.
  const logged = stdout.split('\n').filter((line) => line.includes('"operator command"')).map((line) => JSON.parse(line))
    .map(({ level, command, arguments: [verb], status }) => [level, command, verb, status])
  t.strictSame(logged, [
    [30, 'client', 'add', 0], [30, 'client', 'disable', 0], [30, 'plan', 'price', 0], [30, 'coupon', 'add', 0],
    [30, 'client', 'list', 0], [30, 'plan', 'price', 1]
  ])
  t.match(stdout, '"arguments":["add","--code","SPRING","--percent","10"]')
  // The last part of a link and of a token is secret.
  for (const one of secrets) t.notOk((stdout + stderr).includes(one.replace(/"?\}?$/, '').slice(-30)), 'only the terminal')
  const recorded = (await run('audit', 'export')).stdout.trim().split('\n').map((line) => JSON.parse(line))
    .filter(({ actor_type: actor }) => actor === 'operator').map(({ action, organization_id: id }) => [action, id !== organization])
  t.strictSame(recorded, [
    ['organization.create', false], ['organization.create', true], ['organization.update', true], ['member.create', true],
    ['user.create', true], ['user.password', true], ['user.disable', true], ['user.enable', true],
    ['api-token.create', true], ['api-token.delete', true], ['user.password', true]
  ])
})

const env = { DATA_DIR: scratchDirectory(t), PORT: '0' }
const server = await startServer(t, env)
const { organization, token } = server.first!
const place = ['--organization', organization, '--project', 'orbit']
const reEncryption = async (...args: string[]) => command(['project', 're-encryption', ...args], env)

t.test('an operator can wait for a re-encryption in a running service with the embedded database', async (t) => {
  const run = reEncryption
  const call = async (path: string, body: object) => {
    const answer = await fetch(`${server.address}/api/v1/${organization}${path}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      body: JSON.stringify(body)
    })
    t.ok(answer.ok, `${path}: ${answer.status}`)
  }
  await call('/projects', { name: 'Orbit' })
  for (let i = 0; i < 30; i++) await call('/secrets/store', { project: 'orbit', plaintext: `A=${i}` })
  t.match(await run(...place), { code: 1, stdout: '', stderr: /^No rotation of this project asked for a re-encryption\n$/ })
  await call('/orbit/encryption-key/rotate', { history_policy: 're_encrypt' })
  const now = JSON.parse((await run(...place, '--json')).stdout)
  t.match(now, { state: /^(running|done)$/, total: 30, unreadable: 0 })
  t.match(await run(...place), { code: 0, stdout: '30 versions re-encrypted\n', stderr: '' })
  t.match(JSON.parse((await run(...place, '--json')).stdout), { state: 'done', total: 30, moved: 30 })
  for (const [args, code, line] of [
    [['--organization', organization], 2, /^project re-encryption needs --organization ID and --project SLUG\n$/],
    [['--organization', 'none', '--project', 'orbit'], 1, /^There is no organization none\n$/],
    [['--organization', organization, '--project', 'none'], 1, /^The organization has no project none\n$/]
  ] as const) t.match(await run(...args), { code, stdout: '', stderr: line })
})

t.test('requests to a running service are bounded, and only a service runs commands', async (t) => {
  const socket = join(env.DATA_DIR, 'postgres', 'requests')
  const run = async (...args: string[]) => command(args, env)
  const open = async () => {
    const one = net.connect({ path: socket, allowHalfOpen: true })
    await once(one, 'connect')
    return one
  }
  const ask = async (text: string) => {
    const one = (await open()).setEncoding('utf8')
    one.end(text)
    let all = ''
    for await (const chunk of one as AsyncIterable<string>) all += chunk
    return all.trim()
  }
  t.equal(await ask('/tmp/a-path'), '{"error":"the request is unreadable"}')
  t.equal(await ask('[]'), '{}', 'other requests have no effect')
  for (const words of [['serve'], ['restore', 'x'], ['constructor'], [7], 'user list']) {
    t.equal(await ask(JSON.stringify({ command: words })), '{}', 'only commands of operators')
  }
  const long = await open()
  const closed = Promise.race([once(long, 'end'), once(long, 'close')])
  long.on('error', () => {}).resume().write('x'.repeat(70_000))
  await closed
  long.destroy()

  const idle = await Promise.all(Array.from({ length: 16 }, open))
  t.match(await run('user', 'list'), { code: 1, stderr: /it already serves 16 other commands: run the command again\n$/ })
  idle.forEach((one) => one.destroy())
  await until(async () => (await run('user', 'list')).code === 0, { every: 0 })
  t.equal((await server.stop()).code, 0)

  const database = await connect({ dir: join(env.DATA_DIR, 'postgres'), pool: 1 })
  t.match(await run('user', 'list'), { code: 1, stdout: '', stderr: /in use by process \d+: stop the service first/ })
  await database.close()
})

t.test('the result of a re-encryption can also be read without the service', async (t) => {
  const run = reEncryption
  t.match(await run(...place), { code: 0, stdout: '30 versions re-encrypted\n' }, 'a finished one also without the service')
})
