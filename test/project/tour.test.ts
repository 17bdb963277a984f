// runs: one database
import t, { type Test } from 'tap'
import { ULID_PATTERN } from '../../schemas/shapes.ts'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { readDoc } from '../helpers/docs.ts'
import { IN_PROOFS } from '../helpers/long.ts'
import { emptyPlace, run, scratchDirectory, startServer } from '../helpers/process.ts'

t.setTimeout(90_000)

async function tour (t: Test, env: Record<string, string>) {
  const server = await startServer(t, env)
  const { code, stdout, stderr } = await run(
    'sh', ['examples/tour.sh'], { STRONGROOM_URL: server.address, STRONGROOM_TOKEN: server.first!.token }
  )
  t.equal(stderr, '')
  t.equal(stdout.trimEnd().split('\n').at(-1), 'All as it should be.')
  t.equal(code, 0)

  const stopped = await run(
    'sh', ['examples/tour.sh'], { STRONGROOM_URL: server.address, STRONGROOM_TOKEN: `${server.first!.token}x` }
  )
  t.equal(stopped.code, 1, 'it stops at the first answer that is not what it should be')
  t.match(stopped.stderr, 'expected 200, got 401')
  t.notMatch(stopped.stdout, 'All as it should be.')
  t.equal((await server.stop()).code, 0)
}

const placeFor = async (t: Test, kind?: string) =>
  ({ ...await emptyPlace(t, kind), MASTER_KEY: generateMasterKey().text })

t.test('the tour goes through on the database of the run', async (t) => {
  await tour(t, await placeFor(t))
})

// The test of the first start in `operations/cli` also runs the tour.
t.test('the tour goes through on the embedded database', IN_PROOFS, async (t) => {
  await tour(t, await placeFor(t, 'embedded'))
})

t.test('the examples of the README, the pages of encryption and access, and the tour run one after the other', async (t) => {
  const server = await startServer(t, await placeFor(t))
  const { token, organization } = server.first!
  const examples = ['README.md', 'docs/encryption.md', 'docs/tour.md', 'docs/access.md']
    .map((path) => readDoc(path).blocks('sh'))
  t.notOk(examples.some((blocks) => blocks.length === 0))
  // Leaves out the first block, because this process replaces its two commands.
  const script = examples.flat().slice(1).join('').replace(
    'URL=http://127.0.0.1:8080 TOKEN=dotenv_… ORG=01…', `URL=${server.address} TOKEN=${token} ORG=${organization}`
  )
  t.match(script, token, 'the values of the first start replace those of the README')
  t.equal(examples[0]!.join('').match(/^call /gm)!.length, 8, 'the README has a tour of eight calls')
  const home = scratchDirectory(t)
  const { code, stdout, stderr } = await run('sh', ['-euc', script], { HOME: home })
  t.same([code, stderr], [0, ''])
  t.match(stdout, '\nhello\n', 'the README starts a program with its values')
  t.same(
    [...stdout.matchAll(/^\{"error":"(\w+)"/gm)].map(([, error]) => error), ['version_protected'],
    'the one refusal is the one that the tour names'
  )
  t.match(stdout, '"restored_from":"1"', 'the README restores the first version')
  const shown = JSON.parse(readDoc('README.md').block('json')!.replace('http://127.0.0.1:8080', server.address))
  const [invited] = stdout.split('\n').filter((line) => line.includes('rosa@nimbus.example')).map((line) => JSON.parse(line))
  t.match(shown.data.id, new RegExp(ULID_PATTERN))
  t.match(invited, { ...shown, data: { ...shown.data, id: new RegExp(ULID_PATTERN) } }, 'the README shows the invitation without mail')
  t.match(stdout, /"token":"dotenv_[^"]+".*"name":"CI"/, 'and makes a token for CI')
  t.match(stdout, '"content":"GREETING=hello"', 'and reads it')
  t.equal((await server.stop()).code, 0)
})
