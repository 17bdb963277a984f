import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import postgres from 'postgres'
import { codeAt, stepAt } from '../../src/crypto/second-factor.ts'
import { VERSION } from '../../src/version.ts'
import { authorizationUrl, authorize, pkce, tokensFor, type Person } from '../helpers/people.ts'
import { programs, startPostgres } from '../helpers/postgres.ts'
import { WORKLOAD } from '../helpers/operations.ts'
import { cli, scratchDirectory, startServer } from '../helpers/process.ts'
import { startMailServer } from '../helpers/smtp.ts'
import { client, times, type Send } from '../helpers/traffic.ts'
import { formIn, visitor } from '../helpers/visitor.ts'
import { portable, readTotpSecret, type Contents } from './contents.ts'

// `npm run release:database`: creates the database of a release with at least one row in each table, by requests and
// commands of the service. Writes its dump, its backup and its contents to test/releases/. `database/releases` upgrades
// this database, and `backup/releases` restores the backup.

const MASTER_KEY = `k1:${Buffer.alloc(32, 'key of the tests of releases').toString('base64')}`
const PASSWORD = 'correct horse battery'
const fileOf = (end: string) => `test/releases/${VERSION}.${end}`
/** The number of tokens that `user disable` deletes itself. A background job deletes the others. */
const TOKENS_AT_ONCE = 1_000

// The heading is `[Unreleased]` until the version is raised. Until then, the version is that of the last release.
if (readFileSync('CHANGELOG.md', 'utf8').includes('\n## [Unreleased]\n') && existsSync(fileOf('sql.gz'))) {
  console.error(`${fileOf('sql.gz')} is of a release: raise the version and rename [Unreleased] in CHANGELOG.md first`)
  process.exit(1)
}
const ended: (() => unknown)[] = []
const t = { teardown: (fn: () => unknown) => { ended.unshift(fn) } }
try {
  await make()
} finally {
  for (const end of ended) await end()
}

async function make () {
  const server = await startPostgres({ durable: false })
  t.teardown(server.close)
  const mail = await startMailServer(t)
  const env = {
    DATABASE_URL: server.url,
    MASTER_KEY,
    SMTP_URL: `smtp://127.0.0.1:${mail.port}`,
    MAIL_FROM: 'strongroom@nimbus.example',
    INVOICE_SELLER_NAME: 'Strongroom Ltd',
    RATE_LIMIT_API: '0'
  }
  const run = async (...args: string[]) => {
    const { code, stdout, stderr } = await cli(args, env)
    if (code !== 0) throw new Error(`${args.join(' ')}: ${stderr}`)
    return stdout
  }
  const rosa: Person = { id: 1, name: 'rosa', email: 'rosa@nimbus.example', password: '' }
  const first = JSON.parse(await run('init', '--organization', 'Nimbus', '--email', rosa.email, '--json'))
  rosa.password = first.user.password
  const { organization: { id: organization }, token } = first
  const service = await startServer(t, env)
  const { address } = service
  const sql = postgres(server.url, { max: 1, onnotice: () => {} })
  t.teardown(() => sql.end({ timeout: 2 }))

  /** Sends a request for a token; fails if it is refused. Returns the body. */
  const sender = (of: { organization: string, token: string }) => {
    const send = client(address, of)
    return async (...[method, path, body, headers]: Parameters<Send>) => {
      const reply = await send(method, path, body, headers)
      if (reply.status >= 300) throw new Error(`${method} ${path}: ${reply.status} ${JSON.stringify(reply.body)}`)
      return reply.body
    }
  }
  const call = sender({ organization, token })
  const ofOrganization = (path: string) => `//api/v1/organizations/${organization}${path}`

  // Levels, documents and versions.
  await call('POST', '/projects', { name: 'Atlas' })
  await call('POST', '/atlas/targets', { name: 'API', slug: 'api' })
  await call('POST', '/atlas/api/environments', { name: 'Live', slug: 'live' })
  const atlas = { project: 'atlas' }
  const live = { ...atlas, target: 'api', environment: 'live' }
  for (const plaintext of ['GREETING=hello\n', 'GREETING=good evening\n']) {
    await call('POST', '/secrets/store', { ...atlas, plaintext })
  }
  await call('POST', '/secrets/store', { ...live, plaintext: 'DATABASE=first\n' })
  await call('POST', '/atlas/encryption-key/rotate', { history_policy: 're_encrypt' }, { 'idempotency-key': 'rotation' })
  await call('PATCH', '/atlas/api/live/secrets', { set: { DATABASE: 'second' } })
  await call('POST', '/secrets/store', { ...atlas, target: 'api', plaintext: 'GONE=1\n' })
  await call('POST', '/secrets/delete', { ...atlas, target: 'api' })
  const blob = Buffer.alloc(40, 'blob').toString('base64')
  const proof = Buffer.alloc(32, 'proof').toString('base64')
  await call('POST', '/projects', {
    name: 'Sealed',
    storage_mode: 'client',
    key_check: proof,
    key_check_salt: Buffer.alloc(16, 'salt').toString('base64'),
    key_check_iterations: 600_000
  })
  await call('POST', '/secrets/store', { project: 'sealed', content: blob, key_proof: proof })

  // Tokens, people and teams.
  const ci = await call('POST', ofOrganization('/api-keys'), {
    name: 'CI', abilities: ['secret:read', 'secret:decrypt'], restrictions: [atlas]
  })
  const rotated = await call('POST', ofOrganization(`/api-keys/${ci.api_key.id}/rotate`), { overlap_seconds: 3600 })
  const { data: rule } = await call('POST', ofOrganization('/workloads'), WORKLOAD)
  // The platform of a workload uses up its token, and a restore stores its time.
  await sql`INSERT INTO spent_assertions (organization_id, rule_id, spend, expires_at)
    VALUES (${organization}, ${rule.id}, ${'0'.repeat(64)}, now() + interval '1 day')`
  await sql`INSERT INTO organization_restores VALUES (${organization}, now())`
  const linkOf = (text: string) => new URL(JSON.parse(text).link).pathname
  const account = async (email: string, ...more: string[]): Promise<Person> => {
    const link = linkOf(await run('user', 'add', '--email', email, '--json', ...more))
    const browser = visitor(address)
    const { status, text } = await browser.send(formIn(await browser.open(link)), { password: PASSWORD })
    if (status !== 303) throw new Error(text)
    return { id: 0, name: '', email, password: PASSWORD }
  }
  const kim = await account('kim@nimbus.example', '--organization', organization, '--role', 'administrator')
  const noor = await account('noor@nimbus.example', '--organization', organization, '--role', 'developer')
  await run('user', 'password', '--email', noor.email, '--json')
  await call('POST', ofOrganization('/members'), { email: 'invited@nimbus.example', role: 'developer' })
  const { data: members } = await call('GET', ofOrganization('/members'))
  const idOf = (email: string) => members.find(({ attributes }: { attributes: { email: string } }) =>
    attributes.email === email).id as string
  const { data: team } = await call('POST', ofOrganization('/teams'), { name: 'Platform' })
  await call('PUT', ofOrganization(`/teams/${team.id}/members/${idOf(noor.email)}`), {})
  await call('PUT', ofOrganization(`/teams/${team.id}/projects/atlas`), { role: 'developer' })
  await call('PATCH', ofOrganization(''), { slug: 'nimbus-works' })
  await run('audit', 'rotate-key', '--organization', organization)

  // Sign-ins of Rosa, who has a second factor.
  const signIn = async ({ email, password }: Person, browser = visitor(address)) =>
    ({ browser, page: await browser.signIn(await browser.open('/account'), email, password) })
  await signIn({ ...rosa, password: 'not the password' })
  const { browser } = await signIn(rosa)
  const shown = await browser.send(formIn(await browser.open('/account/second-factor')), { current: rosa.password })
  const [, typed = ''] = /<dt>Key<\/dt><dd><code>([^<]+)</.exec(shown.text) ?? []
  const secret = typed.replaceAll(' ', '')
  const code = await codeAt(readTotpSecret(secret), stepAt(Date.now()))
  const { status } = await browser.send(formIn(shown), { code })
  if (status !== 200) throw new Error(`second factor: ${status}`)
  await signIn(rosa)
  const forgetful = visitor(address)
  await forgetful.send(formIn(await forgetful.open('/account/forgot-password')), { email: noor.email })

  // The application codes: a redeemed code, a code that was not redeemed, and a request that waits for a decision.
  const granted = await tokensFor(address, kim, { scope: 'api-token:create secret:read' })
  const { browser: allowed } = await authorize(address, noor)
  await allowed.open(authorizationUrl(pkce().challenge, { scope: 'secret:read', prompt: 'consent' }))

  // Billing of a separate organization.
  await run('coupon', 'add', '--code', 'WELCOME', '--percent', '10')
  await run('organization', 'add', '--name', 'Stratus', '--owner', rosa.email)
  const addToken = async (of: string) => {
    const added = await run('token', 'add', '--organization', of, '--name', 'Made by the operator')
    return /dotenv_\S+/.exec(added)![0]
  }
  const bill = sender({ organization: 'stratus', token: await addToken('stratus') })
  const billing = (path: string) => `//api/v1/organizations/stratus/billing/${path}`
  await bill('POST', billing('payment-methods'), { kind: 'manual', label: 'Wire transfer' })
  await bill('POST', billing('coupons'), { code: 'WELCOME' })
  await bill('POST', billing('subscription'), { plan: 'team' })
  const { data: [invoice] } = await bill('GET', billing('invoices'))
  await run('invoice', 'paid', '--id', invoice.id)
  await bill('PATCH', billing('subscription'), { plan: 'pro' })
  const { data: charge } = await bill('POST', billing('charges'), {
    amount: 12_000, currency: 'EUR', description: 'Onboarding'
  })
  await run('invoice', 'paid', '--id', charge.attributes.invoice_id)
  await run('refund', 'add', '--charge', charge.id, '--amount', '500')

  await run('backup', join(scratchDirectory(t), 'backup'))

  // Work lists of background jobs. Another session locks rows so that the jobs cannot empty the lists. The locked rows
  // are the project of a deleted organization, and the counter of the organization of a person who signs in.
  await run('organization', 'add', '--name', 'Cirrus', '--owner', rosa.email)
  const ofCirrus = sender({ organization: 'cirrus', token: await addToken('cirrus') })
  await ofCirrus('POST', '/projects', { name: 'Left behind' })
  await sql`BEGIN`
  await sql`SELECT FROM projects WHERE slug = 'left-behind' FOR UPDATE`
  await ofCirrus('DELETE', '//api/v1/organizations/cirrus', { confirmed: true })
  // A person has at most a thousand tokens in an organization.
  await run('organization', 'add', '--name', 'Nebula', '--owner', kim.email)
  const ofKim = sender({ organization, token: granted.access_token })
  const addTokenOfKim = (of: string, name: string) =>
    ofKim('POST', `//api/v1/organizations/${of}/api-keys`, { name, abilities: ['secret:read'] })
  for (let made = 0; made < TOKENS_AT_ONCE; made += 50) {
    await Promise.all(times(50, (n) => addTokenOfKim(organization, `Token ${made + n}`)))
  }
  await addTokenOfKim('nebula', 'Last token')
  await sql`SELECT FROM organization_counters WHERE organization_id = ${organization} FOR UPDATE`
  await signIn(noor)
  await service.stop()
  await sql`ROLLBACK`
  await run('user', 'disable', '--email', kim.email)

  const contents: Contents = {
    master_key: MASTER_KEY,
    organization,
    token,
    ci_token: rotated.token,
    person: { email: rosa.email, password: rosa.password, second_factor: secret },
    documents: {
      '/atlas/secrets?decrypt=true': ['GREETING=good evening\n'],
      '/atlas/api/live/secrets?decrypt=true': ['GREETING=good evening\n', 'DATABASE=second\n'],
      '/sealed/secrets': [blob]
    },
    former_version: { id: 1, path: '/atlas/secrets?decrypt=true', documents: ['GREETING=hello\n'] }
  }
  const dump = spawnSync(join(programs(), 'pg_dump'), [
    server.url, '--no-owner', '--no-privileges', '--inserts', '--rows-per-insert=100'
  ], { encoding: 'utf8', maxBuffer: 2 ** 28 })
  if (dump.status !== 0) throw new Error(dump.stderr)
  const backup = join(scratchDirectory(t), 'last-backup')
  await run('backup', backup)
  writeFileSync(fileOf('json'), `${JSON.stringify(contents, null, 2)}\n`)
  writeFileSync(fileOf('sql.gz'), gzipSync(portable(dump.stdout), { level: 9 }))
  writeFileSync(fileOf('backup.gz'), gzipSync(readFileSync(backup), { level: 9 }))
  console.log(`Wrote test/releases/${VERSION}.json, ${VERSION}.sql.gz and ${VERSION}.backup.gz`)
}
