// duration: 11 s
import t from 'tap'
import { command, scratchDirectory, startServer } from '../helpers/process.ts'

t.setTimeout(120_000)

t.test('an operator makes, lists and ends tokens and organizations, also whoever is locked out', async (t) => {
  const env = { DATA_DIR: scratchDirectory(t), PORT: '0' }
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
    [['token', 'add', '--organization', 'nimbus', '--name', 'X', '--ability', 'Secret:Read'], 2, /^--ability must be a scope/],
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
  const locked = await run('token', 'add', '--organization', 'nimbus', '--name', 'X')
  t.match(locked, { code: 1, stdout: '', stderr: /in use by process \d+/ })

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
