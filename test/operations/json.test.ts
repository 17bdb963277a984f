// runs: one database; 25 s
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { cli, command, emptyPlace, scratchDirectory } from '../helpers/process.ts'

t.setTimeout(600_000)

const keys = ['k1', 'k2'].map((id) => generateMasterKey().text.replace(/^[^:]+/, id)) as [string, string]
const env = { ...await emptyPlace(t), MASTER_KEY: keys[0] }
const file = join(scratchDirectory(t), 'backup')

/** Runs a command with `--json`, which must print one object and nothing on standard error. One is a real process. */
async function objectOf (args: string[], place: Record<string, string> = env, status = 0) {
  const { code, stdout, stderr } = await (args[0] === 'init' ? cli : command)([...args, '--json'], place)
  t.equal(code, status, `${args.join(' ')}: ${stderr}`)
  if (status === 0) t.equal(stderr, '')
  t.match(stdout, /^\{[^\n]*\}\n$/, `${args.join(' ')} prints one line`)
  return { ...JSON.parse(stdout), stderr }
}

t.test('each long command prints one object with --json', async (t) => {
  const { migrations } = await objectOf(['migrate'])
  t.ok(Number.isSafeInteger(migrations))
  t.same(await objectOf(['migrate']), { migrations: 0, citus: null, stderr: '' }, 'nothing is left to do')
  const { organization } = await objectOf(['init', '--organization', 'Nimbus', '--email', 'rosa@nimbus.example'])

  const made = await objectOf(['backup', file])
  t.match(made, { digest: /^\w+$/, tables: { organizations: 1, audit_events: Number }, is_recorded: true })
  t.equal(made.bytes, readFileSync(file).length)
  t.ok(Date.parse(made.made_at) > 0)
  const { made_at, bytes, digest, tables } = made
  const contents = { made_at, bytes, digest, tables }

  const drilled = await objectOf(['drill', file])
  t.strictSame(drilled.backup, contents)
  t.match(drilled, { opened: { versions: 0, documents: 0, keys: Number, rows: Number }, faults: [] })
  t.match(drilled.audit, [{ organization: organization.id, broken: null }])
  const { stderr: _, ...restored } = await objectOf(['restore', file], { ...await emptyPlace(t), MASTER_KEY: keys[0] })
  t.strictSame(restored, contents)

  const both = { ...env, MASTER_KEY: keys[1], MASTER_KEYS_PREVIOUS: keys[0] }
  const wrapped = await objectOf(['rewrap'], both)
  t.match(wrapped, { master_key: 'k2', rewrapped: Number, failures: [], older: [{ id: 'k1', values: 0 }] })
  t.ok(wrapped.rewrapped > 0)
  t.match(await objectOf(['rewrap', '--onto', 'k2'], both), { master_key: 'k2', rewrapped: 0 })
  t.match(await objectOf(['audit', 'verify'], both), { organization: organization.id, after: null, broken: null })
  t.strictSame(await command(['audit', 'export', '--json'], both), await command(['audit', 'export'], both))
})

t.test('with --json errors and faults are on standard error, with the exit status of before', async (t) => {
  const place = { ...env, MASTER_KEY: keys[1] }
  const damaged = `${file}.damaged`
  const bytes = readFileSync(file)
  bytes[bytes.length - 100]! ^= 1
  writeFileSync(damaged, bytes)
  const drilled = await objectOf(['drill', damaged], env, 1)
  t.match(drilled, { backup: null, opened: null, audit: [], faults: [/damaged/] })
  t.equal(drilled.stderr, `${drilled.faults[0]}\n`)

  const missing = `${file}.missing`
  const failing: [args: string[], code: number, line: RegExp, place?: Record<string, string>][] = [
    [['backup', file], 1, /already exists/],
    [['backup', '-'], 2, /^--json needs a file/],
    [['restore', file], 1, /not empty/, { ...env, MASTER_KEY: keys[1], MASTER_KEYS_PREVIOUS: keys[0] }],
    [['drill', missing], 2, /cannot be read/],
    [['rewrap', '--onto', 'k9'], 1, /^The newest master key is k2, not k9: set MASTER_KEY/],
    [['rewrap'], 1, /^Master key k2 is missing/, { ...env, MASTER_KEY: generateMasterKey().text }],
    [['project', 're-encryption', '--organization', 'none', '--project', 'orbit'], 1, /^There is no organization none/]
  ]
  for (const [args, code, line, other = place] of failing) {
    const ended = await command([...args, '--json'], other)
    t.same([ended.code, ended.stdout], [code, ''], args.join(' '))
    t.match(ended.stderr, line)
    t.match(ended.stderr, /^[^\n]+\n$/, 'one line')
  }
  t.notOk(existsSync('-'))
})
