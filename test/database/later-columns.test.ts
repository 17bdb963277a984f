// runs: PostgreSQL; alone
import '../helpers/later-column.ts'
import postgres from 'postgres'
import t from 'tap'
import { createKeyring, parseMasterKey } from '../../src/crypto/keyring.ts'
import { connect } from '../../src/db/database.ts'
import { verifyTable } from '../../src/repositories/keys/authenticated-rows.ts'
import { openRows } from '../../src/jobs/violations.ts'
import { authenticateTable } from '../helpers/macs.ts'
import { command, emptyPlace, startServer } from '../helpers/process.ts'
import { beside } from '../helpers/statements.ts'
import { keptReleases, readContents, readDump } from '../releases/contents.ts'

for (const release of keptReleases()) {
  t.test(`an authenticated column that is added after ${release} keeps the MACs of rows without a value`, {
    skip: process.env.TEST_DATABASE_URL === undefined && 'runs on PostgreSQL'
  }, async (t) => {
    const { master_key: MASTER_KEY, organization, token } = readContents(release)
    const env: Record<string, string> = { ...await emptyPlace(t), MASTER_KEY }
    const loading = postgres(env.DATABASE_URL!, { max: 1, onnotice: () => {} })
    await loading.unsafe(readDump(release))
    await loading.end()
    t.match(await command(['migrate'], env), { code: 0 })
    // A build that does not know the column.
    const server = await startServer(t, env)
    const countListed = async () => {
      const response = await fetch(`${server.address}/api/v1/organizations/${organization}/teams`, {
        headers: { authorization: `Bearer ${token}` }
      })
      return (await response.json() as { data: unknown[] }).data.length
    }
    const outside = postgres(env.DATABASE_URL!, { max: 1 })
    t.teardown(() => outside.end())
    await outside`ALTER TABLE teams ADD COLUMN seats bigint`

    const { db, ...database } = await connect({ url: env.DATABASE_URL!, pool: 2 })
    t.teardown(() => database.close())
    await openRows({ db, ...database }, createKeyring([parseMasterKey(MASTER_KEY)]))
    const count = async () => {
      let forged = 0
      const authentic = await beside(() => verifyTable(db, 'teams', () => { forged++ }, () => {}))
      return { authentic, forged }
    }

    const { authentic: all, forged } = await count()
    t.ok(all > 0, 'the release has a team')
    t.equal(forged, 0, 'its rows verify')
    t.equal(await countListed(), all, 'a build that does not know the column reads rows without a value')

    await outside`UPDATE teams SET seats = 3`
    t.strictSame(await count(), { authentic: 0, forged: all }, 'a value that was added by SQL does not verify')
    await beside(() => authenticateTable(db, 'teams'))
    t.strictSame(await count(), { authentic: all, forged: 0 }, 'a row with a value verifies')
    t.equal(await countListed(), 0, 'a build that does not know the column treats a row with a value as forged')
    for (const value of [null, 4]) {
      await outside`UPDATE teams SET seats = ${value}`
      t.strictSame(await count(), { authentic: 0, forged: all }, `a value that was set to ${value} by SQL does not`)
    }
  })
}
