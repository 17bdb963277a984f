import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { generateMasterKey } from '../src/crypto/keyring.ts'
import { hasPostgres, startPostgres } from './helpers/postgres.ts'
import { run, scratchDirectory, startServer } from './helpers/process.ts'

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

t.test('the tour goes through on the embedded database', async (t) => {
  await tour(t, { DATA_DIR: join(scratchDirectory(t), 'data') })
})

t.test('the tour goes through on PostgreSQL', { skip: !hasPostgres() && 'PostgreSQL is not installed' }, async (t) => {
  const postgres = await startPostgres({ durable: false })
  t.teardown(postgres.close)
  await tour(t, { DATABASE_URL: postgres.url, MASTER_KEY: generateMasterKey().text })
})

t.test('every example of the README, one after the other, answers what it says', async (t) => {
  const server = await startServer(t, { DATA_DIR: join(scratchDirectory(t), 'data') })
  const { token, organization } = server.first!
  const examples = [...readFileSync('README.md', 'utf8').matchAll(/```sh\n(.*?)```/gs)].map(([, text]) => text)
  // The first ones are the two commands, and what this process stands for.
  const script = examples.slice(1).join('').replace(
    'URL=http://127.0.0.1:8080 TOKEN=dotenv_… ORG=01…', `URL=${server.address} TOKEN=${token} ORG=${organization}`
  )
  t.match(script, token, 'the values of the first start stand where the README has them')
  const { code, stdout, stderr } = await run('sh', ['-euc', script], {})
  t.same([code, stderr], [0, ''])
  t.same(
    [...stdout.matchAll(/^\{"error":"(\w+)"/gm)].map(([, error]) => error), ['version_protected'],
    'the one refusal is the one that it speaks of'
  )
  t.equal((await server.stop()).code, 0)
})
