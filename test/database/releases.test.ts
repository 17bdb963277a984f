// runs: PostgreSQL; 6 s
import postgres from 'postgres'
import t from 'tap'
import { codeAt, stepAt } from '../../src/crypto/second-factor.ts'
import { VERSION } from '../../src/version.ts'
import { tableNames } from '../helpers/migrations.ts'
import { command, emptyPlace, scratchDirectory, startServer } from '../helpers/process.ts'
import { client } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'
import { formIn, visitor } from '../helpers/visitor.ts'
import { keptReleases, readContents, readDump, readTotpSecret } from '../releases/contents.ts'

// This build upgrades the databases of former releases (0047). `npm run release:database` creates the database of this
// release.

const skip = process.env.TEST_DATABASE_URL === undefined && 'runs on PostgreSQL'
/** Tables with the work of background jobs. */
const WORK_LISTS = ['late_events', 'organization_removals', 'token_removals']

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
    if (release === VERSION) t.same(tables, tableNames(), 'otherwise: npm run release:database')

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
  })
}
