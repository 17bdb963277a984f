// runs: no database; 9 s
import { readFileSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import { COSTS } from '../../src/crypto/costs.ts'
import { generateSalt, makeProof } from '../../src/crypto/key-proof.ts'
import { makeLevel, startIsolatedApp, type Caller } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'
import { compiledExample, pythonLacks, readDoc } from '../helpers/docs.ts'
import { IN_PROOFS, LONG } from '../helpers/long.ts'
import { run } from '../helpers/process.ts'

const page = readDoc('docs/encryption.md')
const known = JSON.parse(readFileSync('test/vectors/client.json', 'utf8'))
const KEY_STRING = 'correct horse battery staple, and more'

// The test has its own database and the documented costs of key derivations. The examples refuse a key with fewer
// iterations than the page requires.
const test = await startIsolatedApp(t, {}, COSTS)
const owner = await test.organization()
await test.app.listen({ host: '127.0.0.1', port: 0 })
const { port } = test.app.server.address() as AddressInfo

type Example = (action: string, path: string, more?: {
  env?: Record<string, string>
  input?: string
}) => ReturnType<typeof run>

// A token with the fewest scopes that the page names.
const user = await test.token(owner.organization, ['key:retrieve', 'secret:read', 'secret:write'])
const example = (file: string, args: string[]): Example => (
  action, path, { env = {}, input } = {}
) => run(file, [...args, action, path], {
  STRONGROOM_URL: `http://127.0.0.1:${port}`,
  STRONGROOM_TOKEN: user.token,
  STRONGROOM_ORGANIZATION: owner.organization,
  ...env
}, input)
const typescript = example(process.execPath, [compiledExample('client')])
const python = example('python3', ['examples/client.py'])
const noPython = await pythonLacks('cryptography')

t.test('the page shows the examples as they are', async (t) => {
  t.equal(page.block('ts'), readFileSync('examples/client.ts', 'utf8'))
  t.equal(page.block('py'), readFileSync('examples/client.py', 'utf8'))
})

t.test('the known answers of the page are those that the clients\' contract is tested with', async (t) => {
  t.same(page.table('| Key string | Salt |'), known.keys.map((key: any) =>
    [key.key_string, key.salt, String(key.iterations), key.data_key ?? '', key.proof]))
  t.same(page.table('| Data key | IV (hex) |'), known.blobs.map((blob: any) =>
    [blob.data_key, blob.iv, blob.plaintext.replaceAll('\n', '\\n'), blob.blob]))
})

// Each example derives a key with 600,000 iterations in a separate process. One example writes and the other reads,
// which tests both.
for (const [storage_mode, above] of [['client', ''], ['server', '/backend']] as const) {
  t.test(`what one example writes into a ${storage_mode}-managed project, the other reads, and writes anew`, async (t) => {
    const { slug, path, env, versions } = await project(`both-${storage_mode}`, storage_mode)
    const other = noPython === false ? python : typescript
    for (const one of LONG ? new Set([typescript, other]) : []) {
      t.same(await one('read', path, { env }), { code: 0, stdout: '', stderr: '' }, 'a level without a document')
    }
    const ways = [[other, typescript, 'FROM=python ✓\n'], [typescript, other, 'FROM=typescript wörld ✓\n']] as const
    for (const [writer, reader, input] of LONG || storage_mode === 'client' ? ways : ways.slice(0, 1)) {
      t.match(await writer('write', path, { env, input }), { code: 0, stdout: /^version \d+\n$/, stderr: '' })
      t.same(await reader('read', path, { env }), { code: 0, stdout: input, stderr: '' })
    }
    if (!LONG && storage_mode === 'server') return
    t.same(await versions(), ['update', 'create'])
    if (!LONG) return
    // The examples also work for the documents of a project and of a target.
    const at = `${slug}${above}`
    t.equal((await other('write', at, { env, input: `AT=${at}\n` })).code, 0)
    t.equal((await typescript('read', at, { env })).stdout, `AT=${at}\n`)
  })
}

t.test('after a rotation, the TypeScript example reads under the new key', IN_PROOFS, async (t) => {
  const { slug, path, versions } = await project('rotated', 'server')
  t.equal((await typescript('write', path, { input: 'A=1\n' })).code, 0)
  t.equal((await owner.call('POST', `/${owner.organization}/${slug}/encryption-key/rotate`)).status, 200)
  t.same(await typescript('read', path), { code: 0, stdout: 'A=1\n', stderr: '' })
  t.same(await versions(), ['rotate', 'create'])
})

t.test(
  'the TypeScript example refuses what the page says a careful client refuses', (t) => refusals(t, typescript, 'ts')
)
t.test(
  'the Python example refuses what the page says a careful client refuses', { skip: noPython },
  (t) => refusals(t, python, 'py')
)

t.test('what the page says is refused is: swapped slugs, an added token', async (t) => {
  const { slug, path, versions } = await project('limits', 'server')
  await owner.call('POST', `/${owner.organization}/${slug}/backend/environments`, { name: 'Test' })
  const store = (environment: string) => owner.call(
    'POST', `/${owner.organization}/secrets/store`,
    { project: slug, target: 'backend', environment, plaintext: `AT=${environment}` }
  )
  t.equal((await store('live')).status, 200)
  t.equal((await store('test')).status, 200)
  t.same(await versions(), ['create'])
  const ofProject = `project_id = (SELECT id FROM projects WHERE slug = '${slug}')`
  for (const [from, to] of [['live', 'x'], ['test', 'live'], ['x', 'test']]) {
    await test.sql(`UPDATE environments SET slug = '${to}' WHERE slug = '${from}' AND ${ofProject}`)
  }
  const url = `/${owner.organization}/${path}/secrets?decrypt=true`
  t.match(await owner.call('GET', url), { status: 500, body: { error: 'integrity_error' } })
  const intruder = await test.token(owner.organization, ['secret:read', 'secret:decrypt'])
  await test.sql(
    'UPDATE api_tokens SET mac = (SELECT mac FROM api_tokens ORDER BY id LIMIT 1) WHERE id = (SELECT max(id) FROM api_tokens)'
  )
  t.equal((await intruder.call('GET', url)).status, 401)
})

async function refusals (t: Test, example: Example, name: string) {
  const { slug, path, env, versions } = await project(`refuses-${name}`, 'client')
  t.equal((await example('write', path, { env, input: 'A=1\n' })).code, 0)

  const without = await example('read', path)
  t.equal(without.code, 1)
  t.match(without.stderr, 'The project is client-managed: set STRONGROOM_KEY')

  // Both keys have the same first 32 bytes, so the server accepts the proof. Only decryption of the stored content can
  // detect the wrong key.
  const sameProof = { STRONGROOM_KEY: `${KEY_STRING.slice(0, 32)}!` }
  t.equal((await example('write', path, { env: sameProof, input: 'A=2\n' })).code, 1)
  const isWhole = LONG || example === typescript
  if (LONG) {
    t.equal((await example('write', path, { env: { STRONGROOM_KEY: 'another key' }, input: 'A=2\n' })).code, 1)
  }
  t.same(await versions(), ['create'], 'nothing is stored under a wrong key')
  if (!isWhole) return

  // Above, the client detects the wrong key by decryption. Here, the server detects the wrong key.
  const wrong = await example('write', slug, { env: { STRONGROOM_KEY: 'another key' }, input: 'A=2\n' })
  t.equal(wrong.code, 1)
  t.match(wrong.stderr, 'key_proof_mismatch', 'where nothing is stored yet, the server notices')

  const revealing = await example('write', path, { env: { STRONGROOM_KEY: KEY_STRING.slice(0, 32) }, input: 'A=2\n' })
  t.equal(revealing.code, 1)
  t.match(revealing.stderr, '32 bytes is its data key')

  const { registration } = await clientKey(KEY_STRING)
  const weak = await makeLevel(owner, { slug: `weak-${name}`, ...registration })
  const few = await example('write', weak.project, { env, input: 'A=2\n' })
  t.equal(few.code, 1)
  t.match(few.stderr, 'too few iterations')
}

/**
 * Creates a project with 600,000 iterations, as the page describes it. Returns the environment variables of its
 * clients, and a function for its versions.
 */
async function project (slug: string, storage_mode: 'client' | 'server') {
  const salt = generateSalt()
  const registration = storage_mode === 'client'
    ? {
        storage_mode,
        key_check: await makeProof(KEY_STRING, salt, 600_000),
        key_check_salt: salt.toString('base64'),
        key_check_iterations: 600_000
      }
    : {}
  const names = await makeLevel(owner, { slug, ...registration })
  const env: Record<string, string> = storage_mode === 'client' ? { STRONGROOM_KEY: KEY_STRING } : {}
  return { slug, path: Object.values(names).join('/'), env, versions: () => actions(owner, names) }
}

async function actions (caller: Caller, names: object): Promise<string[]> {
  const { body } = await caller.call('POST', `/${caller.organization}/secrets/versions`, names)
  return body.data.map(({ attributes }: any) => attributes.action)
}
