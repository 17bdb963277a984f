// runs: no database; 5 s
import { spawnSync } from 'node:child_process'
import {
  chmodSync, chownSync, existsSync, mkdirSync, readdirSync, readFileSync, statSync, symlinkSync, writeFileSync
} from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { writeStreamDurably } from '../../src/commands/common/durable.ts'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { LONG, sample } from '../helpers/long.ts'
import { CLI, command, run, scratchDirectory } from '../helpers/process.ts'

t.setTimeout(120_000)

const INIT = ['init', '--organization', 'Nimbus', '--email', 'rosa@nimbus.example']
const isRoot = process.getuid?.() === 0
const cannotMount = spawnSync('unshare', ['-m', 'true']).status === 0 ? false : 'mounts need privileges'

t.test('CR-62: a DATA_DIR that every user can write, without the sticky bit, holds no database and no key', async (t) => {
  const dir = join(scratchDirectory(t), 'data')
  const env = { DATA_DIR: dir }
  const refused = (mode: string) => ({
    code: 1, stdout: '', stderr: `DATA_DIR: every user can replace files in ${dir} (mode ${mode}): chmod 700 it\n`
  })
  mkdirSync(dir)
  for (const [mode, shown] of [[0o777, '0777'], [0o702, '0702'], [0o733, '0733']] as const) {
    chmodSync(dir, mode)
    t.same(await command(INIT, env), refused(shown), `${shown}, empty`)
    t.same(readdirSync(dir), [], 'nothing is made')
  }
  chmodSync(dir, 0o700)
  t.match(await command(INIT, env), { code: 0, stderr: '' })
  chmodSync(dir, 0o777)
  const files = readdirSync(dir).toSorted()
  for (const args of [['organization', 'list'], ['migrate'], ['backup', join(dir, 'file')], ['audit', 'verify']] as const) {
    const { code, ...said } = await command([...args], env)
    t.ok(code! > 0, args[0])
    const { code: _one, ...wanted } = refused('0777')
    t.same(said, wanted, args[0])
  }
  t.same(readdirSync(dir).toSorted(), files)
  // `audit verify --file` needs only the key file, and no database.
  t.match(await command(['audit', 'verify', '--file', join(dir, 'export')], env), { stderr: refused('0777').stderr })
  for (const mode of sample([0o700, 0o770, 0o775, 0o755, 0o1777], 4)) {
    chmodSync(dir, mode)
    t.match(await command(['organization', 'list'], env), { code: 0, stdout: /Nimbus/ }, mode.toString(8))
  }
})

t.test('CR-62: a directory that every user can write holds no MASTER_KEY_FILE, wherever it is', async (t) => {
  const parent = scratchDirectory(t)
  const [keys, links] = [join(parent, 'keys'), join(parent, 'links')]
  for (const directory of [keys, links]) mkdirSync(directory)
  const [file, link] = [join(keys, 'key'), join(links, 'key')]
  writeFileSync(file, `${generateMasterKey().text}\n`, { mode: 0o600 })
  symlinkSync(file, link)
  const verify = (MASTER_KEY_FILE: string) => command(
    ['audit', 'verify', '--file', join(parent, 'export')], { DATA_DIR: join(parent, 'data'), MASTER_KEY_FILE }
  )
  const accepted = { code: 2, stdout: '', stderr: /export cannot be read \(ENOENT\)\n$/ }
  const refused = (open: string) => ({
    code: 2, stdout: '', stderr: `MASTER_KEY_FILE: every user can replace files in ${open} (mode 0777): chmod 700 it\n`
  })
  for (const mode of [0o700, 0o755, 0o770, 0o1777]) {
    chmodSync(keys, mode)
    t.match(await verify(file), accepted, mode.toString(8))
  }
  t.match(await verify(link), accepted)
  chmodSync(keys, 0o777)
  t.same(await verify(file), refused(keys))
  t.same(await verify(link), refused(keys), 'the directory of the file')
  chmodSync(keys, 0o700)
  chmodSync(links, 0o777)
  t.same(await verify(link), refused(links), 'the directory of the link')
  t.match(await verify(file), accepted)
})

t.test('a mount point that every user can write is accepted if it is empty or all in it is closed to others', {
  skip: cannotMount
}, async (t) => {
  const dir = join(scratchDirectory(t), 'data')
  mkdirSync(dir)
  const inMount = (...steps: string[]) => run('unshare', ['-m', 'sh', '-c',
    ['set -e', 'mount -t tmpfs -o mode=0777 tmpfs "$1"', ...steps].join('\n'),
    'sh', dir, process.execPath, CLI], { DATA_DIR: dir })
  const list = '"$2" "$3" organization list'
  const known = join(scratchDirectory(t), 'known')
  t.match(await command(INIT, { DATA_DIR: known }), { code: 0 })
  const init = `cp -a '${known}/.' "$1"; chmod 777 "$1"`
  t.match(await inMount(`"$2" "$3" ${INIT.join(' ')} >/dev/null`, list, 'stat -c %a "$1"'), { code: 0, stdout: /Nimbus\n777\n$/, stderr: '' })
  t.match(await inMount(init, 'mkdir -m 700 "$1/lost+found"', list), { code: 0, stdout: /Nimbus/ })
  for (const [step, entry] of [
    ['touch "$1/notes"; chmod 644 "$1/notes"', 'notes'],
    ...LONG ? [['chmod 711 "$1/postgres"', 'postgres']] as const : [],
    ...LONG ? [['ln -s /tmp "$1/copy-1"', 'copy-1']] as const : [], ...isRoot ? [['chown 65534 "$1/master.key"', 'master.key']] as const : []
  ] as const) {
    t.same(await inMount(init, step, list), {
      code: 1,
      stdout: '',
      stderr: `DATA_DIR: every user can replace files in ${dir} (mode 0777): chmod 700 it, or make "${entry}" belong to this user only\n`
    }, entry)
  }
})

t.test('a directory that was there keeps its mode, and one that is made is for this user only', async (t) => {
  const parent = scratchDirectory(t)
  const [known, made] = [join(parent, 'known'), join(parent, 'deep', 'made')]
  mkdirSync(known, { mode: 0o750 })
  for (const DATA_DIR of [known, made]) t.match(await command(INIT, { DATA_DIR }), { code: 0 })
  t.same([known, made].map((dir) => statSync(dir).mode & 0o777), [0o750, 0o700])
})

t.test('a file that cannot be completed leaves nothing, and nothing else is removed', async (t) => {
  const dir = scratchDirectory(t)
  const file = join(dir, 'backup')
  async function * fails () {
    yield Buffer.from('one')
    throw new Error('no more')
  }
  async function * ends () { yield Buffer.from('one') }
  writeFileSync(`${file}.other`, 'stays')
  await t.rejects(writeStreamDurably(file, fails(), 0o600), { message: 'no more' })
  t.same(readdirSync(dir), ['backup.other'])
  writeFileSync(file, 'was there')
  await t.rejects(writeStreamDurably(file, ends(), 0o600), { code: 'EEXIST' })
  t.equal(readFileSync(file, 'utf8'), 'was there')
  t.same(readdirSync(dir).toSorted(), ['backup', 'backup.other'])
  mkdirSync(join(dir, 'folder'))
  await t.rejects(writeStreamDurably(join(dir, 'folder'), ends(), 0o600), { code: 'EEXIST' })
  t.ok(existsSync(join(dir, 'folder')))
  await t.rejects(writeStreamDurably(join(dir, 'nowhere', 'file'), ends(), 0o600), { code: 'ENOENT' })
  await writeStreamDurably(join(dir, 'whole'), ends(), 0o600)
  t.equal(readFileSync(join(dir, 'whole'), 'utf8'), 'one')
  t.equal(statSync(join(dir, 'whole')).mode & 0o777, 0o600)
})

t.test('a key file of another user in a directory with the sticky bit is not used', { skip: !isRoot && 'needs root' }, async (t) => {
  const dir = scratchDirectory(t)
  chmodSync(dir, 0o1777)
  writeFileSync(join(dir, 'master.key'), `${generateMasterKey().text}\n`, { mode: 0o600 })
  chownSync(join(dir, 'master.key'), 65534, 65534)
  t.match(await command(INIT, { DATA_DIR: dir }), { code: 1, stderr: /belongs to user 65534/ })
})
