// runs: one database; 10 s
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { ON_CITUS } from '../helpers/app.ts'
import { createOnCitus, dropOnCitus } from '../helpers/citus.ts'
import { command, emptyPlace, scratchDirectory, startServer } from '../helpers/process.ts'
import { client } from '../helpers/traffic.ts'
import { keptReleases, readBackup, readContents } from '../releases/contents.ts'

// This build restores the backups of former releases. `npm run release:database` makes the backup of this release.

t.setTimeout(240_000)

const digestOf = (text: string) => /digest ([0-9a-f]{64})\n/.exec(text)?.[1]

/** An empty database of the kind that this run tests. */
async function emptyHere (t: Test): Promise<Record<string, string>> {
  if (!ON_CITUS) return emptyPlace(t)
  const nodes = process.env.TEST_CITUS_NODES!.split(',')
  t.teardown(() => dropOnCitus(nodes, 'of_release'))
  return { DATABASE_URL: await createOnCitus(nodes, 'of_release') }
}

for (const release of keptReleases()) {
  t.test(`RL-30: a backup of ${release} is tried and restored; its rows are read, written and verified`, async (t) => {
    const { master_key: MASTER_KEY, organization, token, ci_token, documents } = readContents(release)
    const directory = scratchDirectory(t)
    const file = join(directory, 'backup')
    writeFileSync(file, readBackup(release), { mode: 0o600 })

    const tried = await command(['drill', file], { MASTER_KEY })
    t.match(tried, { code: 0, stdout: /^The drill found nothing wrong\.$/m }, tried.stderr)
    const env: Record<string, string> = { ...await emptyHere(t), MASTER_KEY }
    const restored = await command(['restore', file], env)
    t.match(restored, { code: 0 }, restored.stderr)
    t.match(digestOf(tried.stdout), /./)
    t.equal(digestOf(restored.stdout), digestOf(tried.stdout))

    const server = await startServer(t, env)
    const send = client(server.address, { organization, token })
    for (const [path, contents] of Object.entries(documents)) {
      const { status, body } = await send('GET', path)
      t.equal(status, 200, path)
      t.same(Object.values(body.data.attributes.levels as object).map(({ content }) => content), contents, path)
    }
    const asCi = client(server.address, { organization, token: ci_token })
    t.equal((await asCi('GET', '/atlas/secrets?decrypt=true')).status, 200)
    t.match(await send('PATCH', '/atlas/secrets', { set: { NEW: '1' } }), { status: 200 })
    const members = `//api/v1/organizations/${organization}/members`
    const guest = { email: 'guest@nimbus.example', role: 'guest', place: { project: 'atlas' }, place_role: 'developer' }
    t.match(await send('POST', members, guest), { status: 201 }, 'a feature of this release works on the old rows')
    t.equal((await server.stop()).code, 0)

    t.match(await command(['audit', 'verify'], env), { code: 0 })
    t.match(await command(['backup', `${file}-again`], env), { code: 0 })
    t.match(await command(['drill', `${file}-again`], { MASTER_KEY }), { code: 0 })
  })
}
