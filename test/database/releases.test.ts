// runs: PostgreSQL; 10 s
import { readdirSync } from 'node:fs'
import postgres from 'postgres'
import t from 'tap'
import { codeAt, stepAt } from '../../src/crypto/second-factor.ts'
import { VERSION } from '../../src/version.ts'
import { callWith, startAppOn, type TestApp } from '../helpers/app.ts'
import { tableNames } from '../helpers/migrations.ts'
import { BLOB, clientKey, makeOthers, OPERATIONS, prepare, send as sendRow, WORKLOAD } from '../helpers/operations.ts'
import { issuePair } from '../helpers/people.ts'
import { command, emptyPlace, scratchDirectory, startServer } from '../helpers/process.ts'
import { client } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'
import { formIn, visitor } from '../helpers/visitor.ts'
import { keptReleases, readContents, readDump, readTotpSecret, type Contents } from '../releases/contents.ts'

// This build upgrades the databases of former releases (0047). `npm run release:database` creates the database of this
// release.

const skip = process.env.TEST_DATABASE_URL === undefined && 'runs on PostgreSQL'
/** Tables with the work of background jobs. */
const WORK_LISTS = ['late_events', 'organization_removals', 'token_removals']
/** The project is deleted later than in `OPERATIONS`, because a token that is restricted to it ends with it. */
const LAST = ['deleteProject', 'deleteOrganization']

t.setTimeout(240_000)

const releases = keptReleases()
t.ok(releases.length > 0)

for (const release of releases) {
  t.test(`RL-30: a database of ${release} with each kind of row is upgraded, read, written and verified`, {
    skip
  }, async (t) => {
    const contents = readContents(release)
    const { master_key: MASTER_KEY, organization, token, person } = contents
    const env: Record<string, string> = { ...await emptyPlace(t), MASTER_KEY }
    const sql = postgres(env.DATABASE_URL!, { max: 1, onnotice: () => {} })
    t.teardown(() => sql.end({ timeout: 1 }))
    const loading = postgres(env.DATABASE_URL!, { max: 1, onnotice: () => {} })
    await loading.unsafe(readDump(release))
    await loading.end()

    const countRows = async (table: string) =>
      (await sql`SELECT count(*)::int AS rows FROM ${sql(table)}`)[0]!.rows as number
    const tables = (await sql`SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1`)
      .map(({ tablename }) => tablename as string)
    const empty: string[] = []
    for (const table of tables) if (await countRows(table) === 0) empty.push(table)
    t.same(empty, [], 'each table has a row')
    const [{ migrations }] = await sql`SELECT count(*)::int AS migrations FROM drizzle.__drizzle_migrations` as unknown as
      [{ migrations: number }]
    // The next release has further migrations, perhaps with tables, before its version changes.
    const isNewest = migrations === readdirSync('drizzle').filter((name) => name.endsWith('.sql')).length
    if (release === VERSION && isNewest) t.same(tables, tableNames(), 'otherwise: npm run release:database')

    t.match(
      await command(['migrate'], env), { code: 0, stderr: '' },
      'if the baseline changed before its release: npm run release:database'
    )
    const server = await startServer(t, env)
    const send = client(server.address, { organization, token })
    const read = async (path: string) => {
      const { status, body } = await send('GET', path)
      t.equal(status, 200, path)
      return Object.values(body.data.attributes.levels as object).map(({ content }) => content)
    }
    for (const [path, documents] of Object.entries(contents.documents)) t.same(await read(path), documents, path)
    const asCi = client(server.address, { organization, token: contents.ci_token })
    t.equal((await asCi('GET', '/atlas/secrets?decrypt=true')).status, 200)
    t.equal((await asCi('GET', '/sealed/secrets')).status, 404)

    const browser = visitor(server.address)
    const asked = await browser.signIn(await browser.open('/account'), person.email, person.password)
    // `npm run release:database` may have used the code of the current step. The code of the next step is always
    // unused.
    const code = await codeAt(readTotpSecret(person.second_factor), stepAt(Date.now()) + 1)
    t.equal((await browser.send(formIn(asked), { code })).status, 303, 'the owner signs in with the second factor')
    t.match((await browser.open('/account')).text, 'Sign out everywhere')

    const { id, path, documents } = contents.former_version
    t.match(await send('POST', `/secrets/versions/${id}/restore`, {}), { status: 200 })
    t.same(await read(path), documents, 'a former version is restored')
    for (const table of WORK_LISTS) {
      await until(async () => await countRows(table) === 0, { every: 100, within: 120_000 })
    }
    t.equal((await server.stop()).code, 0)

    t.match(await command(['audit', 'verify'], env), { code: 0 })
    t.equal((await sql`SELECT FROM audit_events WHERE action = 'integrity.violation'`).length, 0)
    const file = `${scratchDirectory(t)}/backup`
    t.match(await command(['backup', file], env), { code: 0 })
    t.match(await command(['drill', file], { MASTER_KEY }), { code: 0 }, 'the drill decrypts every version')
    t.match(await command(['rewrap'], env), { code: 0 }, 'the master key unwraps every key')

    await t.test('every operation of the API works on its rows', async (t) => {
      const service = await startAppOn(t, env.DATABASE_URL!, MASTER_KEY)
      const tokenOf = async (slug: string) => {
        const { stdout } = await command(['token', 'add', '--organization', slug, '--name', 'Upgraded'], env)
        return /dotenv_\S+/.exec(stdout)![0]
      }
      const billing = { token: await tokenOf('stratus'), ids: await idsOfStratus(service) }
      const own = { token, ids: await idsOfNimbus(service, contents, billing.token, await tokenOf('nebula')) }
      const { access } = await issuePair(service, { id: Number(own.ids.member) }, ['organization:create', 'member:delete'])
      for (const operation of [...Object.keys(OPERATIONS).filter((name) => !LAST.includes(name)), ...LAST]) {
        const row = OPERATIONS[operation]!
        const { token, ids } = row.access.startsWith('billing:') ? billing : own
        await prepare(service, row, ids)
        for (const { headers, ...variant } of [{ headers: {} }, ...row.reveals ?? []]) {
          const bearer = row.access === 'public' ? undefined : row.byPerson ? access : token
          const { status, text } = await sendRow(service, { ...row, ...variant }, ids, bearer, headers)
          t.ok(status < 300 || status === row.public, `${operation}: ${status} ${text.slice(0, 200)}`)
        }
      }
    })
    t.match(await command(['audit', 'verify'], env), { code: 0 })
    t.equal((await sql`SELECT FROM audit_events WHERE action = 'integrity.violation'`).length, 0)
  })
}

// The names in the paths and bodies of `OPERATIONS`, for rows that `npm run release:database` made. Invitations expire,
// so these are new.
async function idsOfNimbus (
  service: TestApp, { organization, token }: Contents, stratus: string, nebula: string
): Promise<Record<string, string>> {
  const call = async (of: string, path: string, body?: object, method = body === undefined ? 'GET' : 'POST') => {
    const answer = await callWith(service, of)(method, path, body)
    if (answer.status >= 300) throw new Error(`${path}: ${answer.status} ${answer.text}`)
    return answer.body
  }
  const idOf = async (query: string) => String((await service.sql(query))[0]!.id)
  const invite = async (of: string, to: string, email: string): Promise<string> =>
    (await call(of, `/organizations/${to}/members`, { email, role: 'api_user' })).data.id
  const email = 'noor@nimbus.example'
  const names = { project: 'atlas', target: 'api', environment: 'live' }
  const { data: versions } = await call(token, `/${organization}/secrets/versions`, names)
  const secret = await idOf("SELECT s.id FROM secrets s JOIN projects p ON p.id = s.project_id WHERE p.slug = 'sealed'")
  const pending = await idOf(`SELECT version AS id FROM secrets WHERE id = '${secret}'`)
  await call(token, `/${organization}/sealed/secrets/rotate-client-keys`, {
    secrets: [{ id: secret, content: BLOB }], ...clientKey(2)
  })
  return {
    ...await makeOthers({ token, organization, call: callWith(service, token) }, { organization, ...names }),
    organization,
    ...names,
    client: 'sealed',
    secret,
    pending,
    version: String(versions.at(-1).id),
    member: await idOf(`SELECT id FROM users WHERE email = '${email}'`),
    team: await idOf(`SELECT id FROM teams WHERE organization_id = '${organization}'`),
    id: await idOf("SELECT id FROM api_tokens WHERE name = 'CI'"),
    workload: (await call(token, `/organizations/${organization}/workloads`, WORKLOAD)).data.id,
    invitation: await invite(token, organization, 'again@nimbus.example'),
    accepted: await invite(stratus, 'stratus', email),
    declined: await invite(nebula, 'nebula', email),
    inviter: await idOf("SELECT id FROM organizations WHERE slug = 'nebula'"),
    newcomer: 'newcomer@nimbus.example',
    moment: new Date().toISOString()
  }
}

async function idsOfStratus (service: TestApp): Promise<Record<string, string>> {
  const [organization] = await service.sql("SELECT id FROM organizations WHERE slug = 'stratus'")
  const its = `organization_id = '${organization!.id}'`
  // The renewals of this release are due.
  await service.sql(`UPDATE organization_counters SET status = 'active' WHERE ${its}`)
  await service.sql("INSERT INTO coupons (code, percent_off) VALUES ('WORLD', 10)")
  const [charge] = await service.sql(`SELECT id, invoice_id FROM charges WHERE ${its} ORDER BY amount DESC`)
  const [method] = await service.sql(`SELECT id FROM payment_methods WHERE ${its}`)
  return Object.fromEntries(Object.entries({
    organization: organization!.id, charge: charge!.id, invoice: charge!.invoice_id, payment_method: method!.id
  }).map(([name, id]) => [name, String(id)]))
}
