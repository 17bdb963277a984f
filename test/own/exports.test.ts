import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { parse } from 'yaml'
import { readDocument } from '../../src/rules/documents/read.ts'
import { dockerText, shellText, yamlText } from '../../src/rules/editing/export.ts'
import { SPECIAL_SHELL_NAMES } from '../../src/rules/formats/shell-names.ts'
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

const shells = ['sh', 'dash', 'bash'].filter((shell) => existsSync(`/bin/${shell}`))
for (const shell of shells) {
  t.test(`${shell} sources exactly the values, whatever is in them (seed ${SEED})`, async (t) => {
    t.ok(shells.includes('sh'))
    for (let round = 0; round < (LONG ? 100 : 5); round++) {
      const entries = values(200)
      const written = shellText(entries)
      if (!('text' in written)) throw new Error('refused')
      const file = join(directory, 'values.env')
      writeFileSync(file, written.text)
      // Nothing but the assignments is done, and each value arrives in the environment of a process.
      const script = `set -aeu; . '${file}'; exec '${process.execPath}' -e 'process.stdout.write(JSON.stringify(process.env))'`
      const output = execFileSync(`/bin/${shell}`, ['-c', script], { env: {}, encoding: 'utf8' })
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
  t.strictSame(shellText({ _a: "it's", A1: '', B: "it's $1" }), { text: "_a=\"it's\"\nA1=''\nB='it'\\''s $1'\n" })
  t.strictSame(shellText({}), { text: '' })
})

t.test('a special variable of a shell is refused, because the shell could run its value or lose it', async (t) => {
  for (const name of ['RANDOM', 'OPTIND', 'PIPESTATUS', 'SRANDOM', 'HISTCMD', 'UID', 'PPID', 'BASH_ENV', 'PS4', '_', 'SECONDS', 'MAILPATH']) {
    t.strictSame(shellText({ [name]: 'a[$(exit 1)]' }), { names: [name] }, name)
  }
  // Each other variable that a shell has at its start takes any value.
  for (const shell of shells) {
    const own = execFileSync(`/bin/${shell}`, ['-c', shell === 'bash' ? 'compgen -v' : "set | sed -n 's/=.*//p'"], { encoding: 'utf8' })
    for (const name of own.split('\n').filter((name) => /^[A-Za-z_]\w*$/.test(name))) {
      const written = shellText({ [name]: 'a[$(exit 1)]' })
      if (!('text' in written)) continue
      const file = join(directory, 'special.env')
      writeFileSync(file, written.text)
      const script = `set -aeu; . '${file}'; printf %s "$${name}"`
      t.equal(execFileSync(`/bin/${shell}`, ['-c', script], { encoding: 'utf8', stdio: 'pipe' }), 'a[$(exit 1)]', `${shell}: ${name}`)
    }
  }
})

t.test('a text for a shell is read alike from a stored document, unless a value needs an escape', async (t) => {
  for (const value of ["it's", "'", "'wrapped'", "a 'b' # c", "it's\nb", 'plain', '$HOME', 'say "x"', 'a\\b']) {
    const written = shellText({ A: value })
    t.equal('text' in written && readDocument('env', written.text)?.['A'], value, JSON.stringify(value))
  }
  for (const value of ["it's $1", "it's `x`", 'it\'s "x"', "it's \\", "it's!"]) {
    const written = shellText({ A: value })
    t.match('text' in written && written.text, /'\\''/, JSON.stringify(value))
  }
})

t.test('an env file of Docker has each value without quotes, or is refused with the names', async (t) => {
  const held = { A: ' x # "y" \'z\' $X \\ ', 'B-c.d': '', C: 'a\tb\u0085\u2028\ufeff', 1: '=', é: 'x'.repeat(64 * 1024 - 4) }
  const written = dockerText(held)
  const lines = 'text' in written ? written.text.split('\n') : []
  t.equal(lines.pop(), '')
  t.strictSame(Object.fromEntries(lines.map((line) => line.split(/=(.*)/s).slice(0, 2))), held)
  t.strictSame(dockerText({}), { text: '' })
  for (const value of ['a\nb', 'a\rb', 'a\r\n', '\n', '\0', '\ud800', 'x'.repeat(64 * 1024 - 2), 'é'.repeat(32 * 1024)]) {
    t.strictSame(dockerText({ OK: '1', A: value }), { names: ['A'] }, JSON.stringify(value.slice(0, 9)))
  }
  for (const name of ['', ' ', 'a b', 'a\tb', 'a\u0085b', 'a\u00a0', '\u3000a', 'a=b', '#a', '\ufeffa', 'a\u0007', 'a\u009f', '\0', 'a\n', '\ud800']) {
    t.strictSame(dockerText({ OK: '1', [name]: 'x' }), { names: [name] }, JSON.stringify(name))
  }
})

t.test('the recipes have the list of names that shells treat specially', async (t) => {
  for (const file of ['examples/with-secrets.sh', 'docs/recipes.md']) {
    t.ok(readFileSync(file, 'utf8').includes(`special='${SPECIAL_SHELL_NAMES}'`), file)
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
