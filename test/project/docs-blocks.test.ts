// runs: one database
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { generateX25519Identity, identityToRecipient } from 'age-encryption'
import t from 'tap'
import { generateMasterKey, parseMasterKey } from '../../src/crypto/keyring.ts'
import { UnreleasedDatabase } from '../../src/db/migrate.ts'
import { PAGES, readDoc } from '../helpers/docs.ts'
import { LONG } from '../helpers/long.ts'
import { CLI, emptyPlace, run, scratchDirectory, startServer } from '../helpers/process.ts'

// The code blocks of the pages. A test runs each of them, or the list gives the reason why no test does.

const HERE = 'project/docs-blocks'
const DOCKER = 'needs Docker; `operations/deployment` checks the files'
const CITUS = 'needs several machines; `operations/deployment` checks the files, and `npm run test:citus` the commands'
const RELEASE = 'changes the repository; `npm run release:check` checks the result'

/**
 * For each block of a page, in order: the test that runs or compares the block (`project/tour`). Any other text is the
 * reason why no test runs the block.
 */
const BLOCKS: Record<string, readonly string[]> = {
  'README.md': [
    'the commands that start the service and the tests, which this test is a part of', ...Array(5).fill('project/tour'),
    'project/tour', 'a picture'
  ],
  'CONTRIBUTING.md': ['the commands of README.md', 'project/recipe'],
  'docs/access.md': Array(6).fill('project/tour'),
  'docs/cli.md': ['client/client-doc', 'client/client-doc'],
  'docs/encryption.md': ['project/tour', 'keys/encryption-doc', 'keys/encryption-doc'],
  'docs/oauth.md': [
    HERE, 'oauth/oauth-doc', 'oauth/oauth-doc', 'oauth/oauth-doc', 'the answer to the block above, shortened',
    'oauth/oauth-doc', 'oauth/oauth-doc', 'an answer, shortened', 'oauth/oauth-doc', 'oauth/oauth-doc'
  ],
  'docs/operations/audit.md': ['audit/append-only'],
  'docs/operations/backup.md': [HERE, HERE],
  'docs/operations/install.md': [
    'the command of README.md', HERE, 'needs systemd as the first process', DOCKER, 'needs Kubernetes; `operations/deployment` checks the manifests'
  ],
  'docs/operations/keys.md': [HERE, 'needs Vault; `keys/key-provider` runs such commands'],
  'docs/operations/people.md': [HERE],
  'docs/operations/upgrade.md': [DOCKER, HERE],
  'docs/recipes.md': Array(15).fill('project/recipes'),
  'docs/releasing.md': Array(4).fill(RELEASE),
  'docs/scaling.md': [CITUS, CITUS],
  'docs/tour.md': Array(7).fill('project/tour'),
  'docs/workloads.md': [
    'access/workloads', ...Array(3).fill('oauth/workload-exchange'), ...Array(3).fill('client/client-workload')
  ],
  'examples/citus/README.md': Array(5).fill(CITUS),
  'test/README.md': ['the commands that run tests, which this test is a part of']
}

t.test('each block is run by a test that names its page, or has a reason why no test runs it', async (t) => {
  const found = PAGES.map((path) => [path, readDoc(path).allBlocks.length] as const).filter(([, count]) => count > 0)
  t.same(Object.fromEntries(found), Object.fromEntries(Object.entries(BLOCKS).map(([path, all]) => [path, all.length])))
  for (const [path, all] of Object.entries(BLOCKS)) {
    for (const name of new Set(all.filter((text) => /^[a-z]+\/[\w-]+$/.test(text)))) {
      const file = `test/${name}.test.ts`
      t.ok(existsSync(file) && readFileSync(file, 'utf8').includes(path), `${file} names ${path}`)
    }
  }
})

/** A directory with a fake `npm` that runs `npm run -s cli -- COMMAND`, and a fake `ssh` that runs its command here. */
function workplace (t: { teardown (fn: () => unknown): void }) {
  const dir = scratchDirectory(t)
  const program = (name: string, line: string) => {
    mkdirSync(join(dir, 'bin'), { recursive: true })
    writeFileSync(join(dir, 'bin', name), `#!/bin/sh\n${line}\n`)
    chmodSync(join(dir, 'bin', name), 0o755)
  }
  program('npm', `test "$1 $2 $3 $4" = 'run -s cli --' && shift 4 && exec '${process.execPath}' '${CLI}' "$@"`)
  program('ssh', 'exec sh -c "$2"')
  return {
    dir,
    sh: (script: string, env: Record<string, string> = {}) =>
      run('sh', ['-euc', `cd '${dir}'\nPATH="$PWD/bin:$PATH"\n${script}`], env)
  }
}

const block = (path: string, which: number) => readDoc(path).allBlocks[which]!

t.test('the commands for operators run one after the other', async (t) => {
  const { dir, sh } = workplace(t)
  // The proofs use the embedded database, because some commands are about its directory.
  const empty = LONG ? {} : { ...await emptyPlace(t), MASTER_KEY: generateMasterKey().text }
  const succeeds = async (script: string, env: Record<string, string> = empty) => {
    const ended = await sh(script, env)
    t.equal(ended.code, 0, `${script}${ended.stderr}`)
    return ended.stdout
  }
  t.match(await succeeds(block('docs/operations/install.md', 1)), /^Organization .+ \(nimbus\)\nOwner rosa@nimbus\.example\n/)
  // Rosa already has an account.
  t.match(await succeeds(block('docs/operations/people.md', 0).replace('rosa@', 'omar@')), '/account/set-password/')
  mkdirSync(join(dir, 'backups'))
  t.match(await succeeds(block('docs/operations/backup.md', 0).replaceAll('/backups/', 'backups/')), /^Backed up 1 organization,/)
  if (!LONG) return
  await succeeds(block('docs/oauth.md', 0))
  t.match(await succeeds('npm run -s cli -- client list'), 'orbit-desk')
  const identity = await generateX25519Identity()
  writeFileSync(join(dir, 'identity.txt'), `${identity}\n`, { mode: 0o600 })
  const [backup = '', restore = ''] = block('docs/operations/backup.md', 1).split('\n')
  await succeeds(backup.replace('age1…', await identityToRecipient(identity)))
  const place = { DATA_DIR: 'restored', MASTER_KEY_FILE: 'data/master.key' }
  t.match(await succeeds(restore, place), /^Restored 1 organization,/)

  const [first, start] = block('docs/operations/keys.md', 0).split('\nnpm start')
  t.equal(start, '\n', 'the last command starts the service')
  await succeeds(first!)
  t.match(readFileSync(join(dir, 'data', 'master.key'), 'utf8'), /^k2:/)
  const server = await startServer(t, { DATA_DIR: join(dir, 'data') })
  t.equal((await fetch(`${server.address}/readyz`)).status, 200)
  t.equal((await server.stop()).code, 0)
})

t.test('the message about a database of an unreleased build is the one that the service prints', async (t) => {
  t.equal(block('docs/operations/upgrade.md', 1), `${new UnreleasedDatabase().message}\n`)
})

t.test('the commands that make a key make one that the service accepts', async (t) => {
  const { sh } = workplace(t)
  const line = block('docs/operations/install.md', 3).split('\n')[0]!
  const { stdout } = await sh(`${line}\nprintf '%s' "$MASTER_KEY"`)
  t.equal(parseMasterKey(stdout).id, 'k1')
})
