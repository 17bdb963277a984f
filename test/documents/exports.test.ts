// runs: no database; 20 s
import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import t from 'tap'
import { parse } from 'yaml'
import type { Entries } from '../../src/rules/documents/entries.ts'
import { readDocument } from '../../src/rules/documents/read.ts'
import { dockerText, shellText, SPECIAL_SHELL_NAMES, yamlText } from '../../src/rules/editing/export.ts'
import { LONG } from '../helpers/long.ts'
import { random } from '../helpers/traffic.ts'

const SEED = Number(process.env.TEST_SEED ?? Math.floor(Math.random() * 2 ** 32))
const next = random(SEED)
const below = (count: number) => Math.floor(next() * count)

const PIECES = [
  "'", "''", "'\\''", '"', '`', '\\', '\\n', '\n', '\r', '\r\n', '\t', ' ', '$X', '$(exit 1)', '`exit 1`', '${X}', '!', '!!', '#', ' #', '=', ';', '&', '|', '~', '*', '?', // eslint-disable-line no-template-curly-in-string
  '\u0001', '\u007f', '\u0085', '\u2028', '\ufeff', 'é', '😀', '-n', '-e', '%s', '\\0', '\\c', 'a', '\n\n', 'EOF'
]
const value = () => Array.from({ length: below(12) }, () => PIECES[below(PIECES.length)]).join('')
const values = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, index) => [`V_${index}`, value()]))

const directory = mkdtempSync(join(tmpdir(), 'strongroom-'))
t.teardown(() => { rmSync(directory, { recursive: true, force: true }) })

const PROGRAMS = ['/bin/sh', '/bin/dash', '/bin/bash', '/bin/busybox', '/bin/zsh']
const shells = PROGRAMS.filter((shell) => existsSync(shell))
const inShell = (shell: string, script: string, env?: NodeJS.ProcessEnv) => execFileSync(
  shell, [...(shell === '/bin/busybox' ? ['sh'] : []), '-c', script], { env, encoding: 'utf8', stdio: 'pipe' }
)
for (const shell of shells) {
  t.test(`${shell} sources exactly the values, whatever is in them (seed ${SEED})`, async (t) => {
    t.ok(shells.includes('/bin/sh'))
    for (let round = 0; round < (LONG ? 100 : 5); round++) {
      const entries = values(200)
      const written = shellText(entries)
      if (!('text' in written)) throw new Error('refused')
      const file = join(directory, 'values.env')
      writeFileSync(file, written.text)
      // The script must only set variables, and each value must arrive in the environment of a process.
      const script = `set -aeu; . '${file}'; exec '${process.execPath}' -e 'process.stdout.write(JSON.stringify(process.env))'`
      const output = inShell(shell, script, {})
      const found = Object.entries(JSON.parse(output) as Record<string, string>).filter(([name]) => name.startsWith('V_'))
      t.strictSame(Object.fromEntries(found), entries)
    }
  })
}

t.test('a name that would be code in a shell, and a value that no variable can hold, are refused', async (t) => {
  for (const name of ['', '1A', 'A-B', 'A.B', 'A B', 'A;B', 'Ä', 'A\n', '$(x)', "'"]) {
    t.strictSame(shellText({ OK: '1', [name]: 'x' }), { names: [name] }, JSON.stringify(name))
  }
  t.strictSame(shellText({ B: '\0', A: '\ud800', OK: '' }), { names: ['A', 'B'] })
  t.strictSame(shellText({ _a: 'x', A1: '' }), { text: "_a='x'\nA1=''\n" })
  t.strictSame(shellText({}), { text: '' })
})

t.test('a value with an apostrophe is in double quotes, unless it has a character that is special in them', async (t) => {
  const word = (value: string) => (shellText({ A: value }) as { text: string }).text.slice(2, -1)
  for (const value of ["it's", "'", "''", "'x'", "a'\nb", " '#", "é'\u2028"]) t.equal(word(value), `"${value}"`)
  for (const other of ['$', '`', '"', '\\', '!', '\r']) {
    t.equal(word(`it's${other}`), `'it'\\''s${other}'`)
    t.equal(word(`its${other}`), `'its${other}'`)
  }
})

t.test(`the service can read a shell export back, except the documented values (seed ${SEED})`, async (t) => {
  const isNamed = (value: string) => /\r|\\$/.test(value) || (value.includes("'") && /[$`"\\!]/.test(value))
  let read = 0
  for (let round = 0; round < (LONG ? 500 : 50); round++) {
    const entries = Object.fromEntries(Object.entries(values(200)).filter(([, value]) => !isNamed(value)))
    const written = shellText(entries)
    t.same({ ...readDocument('env', (written as { text: string }).text) }, entries)
    read += Object.values(entries).filter((value) => value.includes("'")).length
  }
  t.ok(read > 100, 'values with an apostrophe are among them')
})

t.test('a special variable of a shell is refused, because the shell could run its value or lose it', async (t) => {
  for (const name of ['RANDOM', 'OPTIND', 'PIPESTATUS', 'SRANDOM', 'HISTCMD', 'UID', 'PPID', 'BASH_ENV', 'PS4', '_', 'SECONDS', 'MAILPATH',
    'MAILCHECK', 'SHLVL', 'PS0', 'PROMPT_COMMAND', 'BASHOPTS']) {
    t.strictSame(shellText({ [name]: 'a[$(exit 1)]' }), { names: [name] }, name)
  }
  for (const name of ['PSX', 'PS', 'UIDS', 'A_', '__', 'MAIL', 'ENV', 'IFS', 'PATH', 'GID', 'random']) {
    t.match(shellText({ [name]: 'x' }), { text: `${name}='x'\n` }, name)
  }
  // All other variables of a shell at its start accept any value; zsh has further variables.
  for (const shell of shells.filter((shell) => shell !== '/bin/zsh')) {
    const own = inShell(shell, shell === '/bin/bash' ? 'compgen -v' : "set | sed -n 's/=.*//p'")
    for (const name of own.split('\n').filter((name) => /^[A-Za-z_]\w*$/.test(name))) {
      const written = shellText({ [name]: 'a[$(exit 1)]' })
      if (!('text' in written)) continue
      const file = join(directory, 'special.env')
      writeFileSync(file, written.text)
      const script = `set -aeu; . '${file}'; printf %s "$${name}"`
      t.equal(inShell(shell, script), 'a[$(exit 1)]', `${shell}: ${name}`)
    }
  }
})

t.test('an interactive bash, which shows prompts and looks for mail, runs none of the values', { skip: !existsSync('/bin/bash') }, async (t) => {
  const run = (name: string, value: string) => {
    const hit = join(directory, 'hit')
    const box = join(directory, 'box')
    rmSync(hit, { force: true })
    writeFileSync(box, '')
    utimesSync(box, 1, 1)
    const assignment = `${name}='${value.replace('BOX', box).replace('HIT', hit)}'`
    const more = name === 'MAILPATH' ? `MAILCHECK=0\n:\necho new >>'${box}'; touch -m -t 210001010000 '${box}'\n` : ''
    const input = `${assignment}\n${more}:\n:\nexit 0\n`
    spawnSync('/bin/bash', ['--norc', '-i'], { input, env: { PATH: process.env.PATH, TERM: 'dumb' } })
    return existsSync(hit)
  }
  const special = new RegExp(`^(?:${SPECIAL_SHELL_NAMES})$`)
  for (const name of ['PS0', 'PS1', 'PROMPT_COMMAND', 'MAILCHECK']) {
    t.match([special.test(name), run(name, 'a[$(touch HIT)]')], [true, true], name)
  }
  t.match([special.test('MAILPATH'), run('MAILPATH', 'BOX?$(touch HIT)')], [true, true], 'MAILPATH')
  for (const name of ['MAIL', 'ENV', 'IFS', 'PROMPT_DIRTRIM', 'TMOUT', 'HISTSIZE', 'COLUMNS', 'FUNCNEST']) {
    t.match([special.test(name), run(name, 'a[$(touch HIT)]')], [false, false], name)
  }
})

t.test('docker and kubectl get lines without quotes', async (t) => {
  const kept = {
    A: '', 'my.name': '1', 'a-b': ' x ', Ä: '\t"q" \'s\' # $HOME \\', 'ab#': '#', "'": '=a=b', x: '\v\f\u0085\u00a0\u2028\ufeff😀', 'b\ufeff': '\u0001', LONG: 'é'.repeat(32765)
  }
  t.strictSame(dockerText(kept), { text: Object.entries(kept).map(([name, value]) => `${name}=${value}\n`).join('') })
  t.strictSame(dockerText({}), { text: '' })
  for (const name of ['', '#', '#A', '\ufeffA', ' ', ' A', 'A ', 'A B', 'A\tB', 'A\u00a0', 'A\u2028B', 'A\u3000', 'A\nB', 'A\r', 'A\u0000', 'A\u0085', 'A\u007f', 'A=B', '=', 'A\ud800']) {
    t.strictSame(dockerText({ OK: '1', [name]: 'x' }), { names: [name] }, Buffer.from(name).toString('hex'))
  }
  for (const value of ['\n', 'a\nb', 'a\n', '\r', 'a\rb', 'a\r\n', '\0', '\udfff', 'x'.repeat(65534), 'é'.repeat(32767)]) {
    t.strictSame(dockerText({ B: value, OK: '1', A: value }), { names: ['A', 'B'] }, Buffer.from(value.slice(0, 9)).toString('hex'))
  }
  t.match(dockerText({ A: 'x'.repeat(65533) }), { text: /^A=x+\n$/ }, 'the longest line')
})

const DOCKER = resolve('dist/readers/docker-readers')
const skip = !existsSync(DOCKER) && 'not installed: `npm run readers` installs it'
t.test(`docker and kubectl read exactly the values (seed ${SEED})`, { skip }, async (t) => {
  const pieces = [...PIECES, '\v', '\f', '\u00a0', '\u3000', '\u2003', '\u200b', '\ufffd', '.', '_', 'B']
  const any = (count: number) => Array.from({ length: below(count) }, () => pieces[below(pieces.length)]).join('')
  const pairs = Array.from({ length: LONG ? 50_000 : 3000 }, (): [string, string] => [any(4), any(8)])
  for (const size of [65532, 65533, 65534, 65535, 65536, 70000]) pairs.push(['A', 'x'.repeat(size)])
  const cases = pairs.map(([name, value]) => {
    const entries = { [name]: value }
    return { entries, written: dockerText(entries) }
  })
  const allowed = cases.flatMap(({ entries, written }) => 'text' in written ? [{ entries, text: written.text }] : [])
  // Each document stands alone, and once between two other lines. A byte order mark counts only in the first line.
  const files = allowed.flatMap(({ text }) => [text, `FIRST=1\n${text}LAST=2\n`])
  const output = execFileSync(DOCKER, { input: JSON.stringify(files), encoding: 'utf8', maxBuffer: 2 ** 28 })
  const { docker, kubectl } = JSON.parse(output) as Record<string, (Entries | null)[]>
  // kubectl refuses these names as invalid.
  const isOfKubectl = (name: string) => /^[-._a-zA-Z][-._a-zA-Z0-9]*$/.test(name) && !/^\.(?:$|\.)/.test(name)
  const wrong = allowed.filter(({ entries }, index) => {
    const expected = [entries, { FIRST: '1', ...entries, LAST: '2' }]
    const isRead = (readings: (Entries | null)[] | undefined, expected: (Entries | null)[]) =>
      isDeepStrictEqual(readings?.slice(2 * index, 2 * index + 2), expected)
    const ofKubectl = isOfKubectl(Object.keys(entries)[0]!) ? expected : [null, null]
    return !isRead(docker, expected) || !isRead(kubectl, ofKubectl)
  })
  t.strictSame(wrong.map(({ entries }) => entries), [])
  t.ok(allowed.length > 500 && allowed.length < cases.length)
})

t.test('the recipes have the list of names that shells treat specially', async (t) => {
  for (const file of ['examples/with-secrets.sh', 'docs/recipes.md']) {
    const lists = [...readFileSync(file, 'utf8').matchAll(/special='(.*)'$/gm)].map(([, list]) => list)
    t.same([...new Set(lists)], [SPECIAL_SHELL_NAMES], file)
  }
})

t.test(`yaml holds all names and values as strings (seed ${SEED})`, async (t) => {
  for (let round = 0; round < (LONG ? 2000 : 100); round++) {
    const entries = Object.fromEntries([
      ...Array.from({ length: 10 }, () => [value(), value()]), ['\0', '\ud800'], ['k'.repeat(2000), '12'], ['<<', 'null'], ['~', 'yes'], ['7', '007']
    ]) as Record<string, string>
    const { text } = yamlText(entries)
    t.same(parse(text), entries)
    t.same({ ...readDocument('yaml', text) }, entries)
  }
  t.equal(yamlText({}).text, '{}\n')
  t.equal(yamlText({ A: 'x', B: '1', C: 'a\nb' }).text, 'A: x\nB: \'1\'\nC: "a\\nb"\n')
})
