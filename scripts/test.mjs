// The domain tests on the embedded database and on a real PostgreSQL, the others on one of them, then one closing line
// that counts both. `npm test -- versions secrets` runs the files whose names contain one of the words; `--long` runs
// those that have a long form, in that, and on the embedded database what otherwise runs on a server alone; `--faults`
// those in test/faults alone, which nothing else runs, and prints what came of each fault.
import { spawn } from 'node:child_process'
import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, statfsSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { startPostgres, hasPostgres } from '../dist/test/helpers/postgres.js'

// These bring their own databases, or none: once is enough.
const ONCE = new Set([
  'architecture', 'breaking', 'config', 'crypto', 'database', 'documents', 'openapi', 'crash', 'rotation-crash',
  'outage', 'write-queue', 'tour', 'cli', 'migrations', 'docs', 'rules', 'encryption-doc', 'redirects', 'tls', 'operator', 'recipe'
])
// What these prove is the service's, whatever the database: once, on the server where there is one, which is quicker.
// That every operation does what it is to do on the embedded database as well, round-trips shows; in the long form all
// of these run there too.
const ON_EITHER = new Set([
  'access', 'audit', 'audit-chain', 'backup', 'billing', 'billing-money', 'billing-periods', 'bodies', 'browser',
  'chain-keys', 'concurrency', 'contract', 'deployment', 'examples', 'explorer', 'former-slugs', 'hierarchy', 'http',
  'ids', 'key-provider', 'keys', 'leaks', 'limits', 'linearizability', 'lookups', 'lost-answers', 'mail',
  'manipulations', 'members', 'metrics', 'moments', 'oauth', 'oauth-authorize', 'oauth-clients', 'oauth-doc',
  'oauth-guard', 'oauth-race', 'oauth-token', 'organizations', 'people', 'preconditions', 'recipes', 'redis',
  'removals', 'repeats', 'request-format', 'revocation', 'rewrap', 'rotation', 'rotation-concurrency',
  'row-manipulations', 'sdk', 'second-factor', 'service-keys', 'stored-bytes', 'stored-requests', 'teams', 'tenants',
  'times', 'tokens', 'traces', 'unverified-rows'
])
// Plans of a server, under several sessions: nothing of it is there on the embedded database.
const ON_SERVER = new Set(['scale', 'upgrade', 'workers'])
// Looks at what all others made the service send, when they have ended.
const LAST = 'plans'
// These take longest: begun first, they are not what everybody waits for at the end.
const FIRST = [
  'rotation-crash', 'database', 'cli', 'outage', 'rewrap', 'rotation-concurrency', 'concurrency', 'crash',
  'revocation', 'encryption-doc', 'migrations'
]
// Of the faults, those that take longest.
const FIRST_FAULTS = ['database-away', 'migrations-under-load', 'starts-and-stops', 'clock']
// What measures how fast the service is, or how soon it is there again, has the machine for itself.
const ALONE = ['kills', 'overload']
// How long a file may take; a process, as long as its files.
const TIMEOUT = process.argv.includes('--long') ? 2_240_000 : process.argv.includes('--faults') ? 900_000 : 560_000
// Files that share a process, one after the other. More would keep more memory than they spare time.
const TOGETHER = 7
// In every process of a run, the servers and commands that they start too: each statement that it sends is one
// organization's.
const WATCH = `--import ${new URL('../dist/test/helpers/statements.js', import.meta.url).href}`
// Databases are made by the hundred, of hundreds of files each: in memory, where there is room for them, that takes a
// quarter of the time. What a killed process wrote is there after it as it is on a disk.
const MEMORY = '/dev/shm'
const ROOM = 4 * 2 ** 30

const args = process.argv.slice(2)
const long = args.includes('--long')
const faults = args.includes('--faults')
const words = args.filter((arg) => !arg.startsWith('--'))
const files = readdirSync('dist/test', { recursive: true })
  .filter((name) => name.endsWith('.test.js') && name.startsWith('faults/') === faults &&
    (words.length === 0 || words.some((word) => name.includes(word))))
  .map((name) => join('dist/test', name)).sort()
const nameOf = (file) => basename(file, '.test.js')
const hasLongForm = (file) => readFileSync(file, 'utf8').includes('helpers/long.js')
const first = faults ? FIRST_FAULTS : FIRST
const rank = (file) => first.includes(nameOf(file)) ? first.indexOf(nameOf(file)) : first.length

const inMemory = hasRoom() ? mkdtempSync(join(MEMORY, 'strongroom-')) : undefined
if (inMemory !== undefined) {
  // A PostgreSQL of a user of its own has its directory in here.
  chmodSync(inMemory, 0o711)
  process.env.TMPDIR = inMemory
  process.once('exit', () => rmSync(inMemory, { recursive: true, force: true }))
  for (const name of ['SIGINT', 'SIGTERM']) process.once(name, () => process.exit(1))
}

const totals = { passed: 0, failed: 0, cpu: 0 }
const skipped = []
let broken = false
const server = hasPostgres() ? await startPostgres({ durable: false }) : undefined
if (server === undefined && process.env.CI === 'true') {
  console.log('PostgreSQL is missing: install its programs (Debian: postgresql)')
  broken = true
} else if (server === undefined) console.log('PostgreSQL is not installed: only the embedded database is tested.')

const isLast = (file) => nameOf(file) === LAST
const last = server === undefined ? [] : files.filter(isLast)
const statements = mkdtempSync(join(tmpdir(), 'strongroom-statements-'))
const outcomes = mkdtempSync(join(tmpdir(), 'strongroom-outcomes-'))
process.once('exit', () => {
  for (const directory of [statements, outcomes]) rmSync(directory, { recursive: true, force: true })
})

const alone = (file) => (long && hasLongForm(file)) || FIRST.includes(nameOf(file))
const together = (files) => [
  ...files.filter(alone).map((file) => [file]),
  ...chunks(files.filter((file) => !alone(file)))
]
const onEmbedded = (file) => !isLast(file) && (ON_EITHER.has(nameOf(file))
  ? long || server === undefined
  : !ON_SERVER.has(nameOf(file)) && (!long || hasLongForm(file)))
const onServer = (file) => !isLast(file) && !ONCE.has(nameOf(file)) && (!long || hasLongForm(file))
const onServerAlone = (files) => ({ files, on: 'PostgreSQL', env: { TEST_DATABASE_URL: server.url } })
const onEmbeddedAlone = (files) => ({ files, on: 'embedded database', env: {} })
// Faults bring their own databases; those that do not are on the server.
const onOne = server === undefined ? onEmbeddedAlone : onServerAlone
const byThemselves = faults ? files.filter((file) => ALONE.includes(nameOf(file))) : last
const work = (faults
  ? files.filter((file) => !byThemselves.includes(file)).map((file) => onOne([file]))
  : [
      ...server === undefined ? [] : together(files.filter(onServer)).map(onServerAlone),
      ...together(files.filter(onEmbedded)).map(onEmbeddedAlone)
    ]
).sort((a, b) => rank(a.files[0]) - rank(b.files[0]))
// What comes after a fault is timed: it shares the machine with one other.
const lanes = faults ? 2 : Math.max(2, availableParallelism()) + 1
const ended = await Promise.all(Array.from({ length: lanes }, async () => {
  for (let next = work.shift(); next !== undefined; next = work.shift()) await run(next)
  return process.uptime().toFixed(0)
}))
for (const file of byThemselves) await run(onOne([file]))
await server?.close()
if (faults) printOutcomes()
// Lanes that end far apart are work that was dealt badly.
console.log(`The lanes ended after ${ended.join(', ')} s; the files took ${totals.cpu.toFixed(0)} s of CPU time`)
console.log(`${totals.passed} passed, ${totals.failed} failed`)
process.exit(broken || totals.failed > 0 ? 1 : 0)

function hasRoom () {
  try {
    const { bavail, bsize } = statfsSync(MEMORY)
    return bavail * bsize >= ROOM
  } catch {
    return false
  }
}

// Dealt out, so that neighbours, which take as long as each other, are in different ones.
function chunks (files) {
  const length = Math.ceil(files.length / TOGETHER)
  return Array.from({ length }, (_, i) => files.filter((_, place) => place % length === i))
}

function printOutcomes () {
  const rows = readdirSync(outcomes).map((name) => JSON.parse(readFileSync(join(outcomes, name), 'utf8')))
    .sort((a, b) => a.fault < b.fault ? -1 : 1)
  const columns = {
    fault: 'Fault', cycles: 'Cycles', acknowledged: 'Acknowledged', lost: 'Lost', outside: 'Outside the contract', exits: 'Exits', recovery: 'Recovery, ms', note: ''
  }
  const table = [columns, ...rows].map((row) => Object.keys(columns).map((name) => String(row[name] ?? '')))
  const widths = Object.keys(columns).map((_, i) => Math.max(...table.map((row) => row[i].length)))
  const isWord = (i) => i === 0 || i === widths.length - 1
  console.log(table.map((row) =>
    row.map((text, i) => isWord(i) ? text.padEnd(widths[i]) : text.padStart(widths[i])).join('  ').trimEnd()).join('\n'))
  for (const text of skipped) console.log(`Left out: ${text.replace(/ # SKIP/, ':')}`)
}

// A test file is a program that prints TAP; several in one process are as many tests of it. What failed is shown with
// its diagnostics.
async function run ({ files, on, env }) {
  const child = spawn(process.execPath, ['dist/test/helpers/files.js', ...files], {
    env: {
      ...process.env,
      NODE_OPTIONS: WATCH,
      TEST_STATEMENTS: statements,
      ...(faults && { TEST_FAULTS: outcomes }),
      TAP_TIMEOUT: String(TIMEOUT / 1000 - 20),
      ...(long &&
      { TEST_LONG: '1' }),
      ...env
    },
    stdio: ['ignore', 'pipe', 'pipe']
  })
  const late = setTimeout(() => child.kill('SIGKILL'), TIMEOUT * files.length)
  let output = ''
  let errors = ''
  child.stdout.setEncoding('utf8').on('data', (text) => { output += text })
  child.stderr.setEncoding('utf8').on('data', (text) => { errors += text })
  const status = await new Promise((resolve) => child.on('close', (code, signal) => resolve(signal ?? code)))
  clearTimeout(late)

  const shown = []
  const ended = new Set()
  let failing = false
  let spent = []
  for (const line of output.split('\n')) {
    if (/^# CPU [\d.]+ s$/.test(line)) {
      spent = [line.slice(2)]
      totals.cpu += Number(line.split(' ')[2])
    }
    const [, indent, not, text] = /^( *)(not )?ok \d+ - (.*)$/.exec(line) ?? []
    if (text !== undefined) {
      failing = not !== undefined
      if (indent.length === 4) totals[not ? 'failed' : 'passed']++
      if (faults && / # SKIP/.test(text)) skipped.push(text)
      const [, file, time] = /^(\S+) # time=([\d.]+)ms$/.exec(text) ?? []
      if (indent === '' && files.includes(file)) {
        ended.add(file)
        console.log(`${not ? '✗' : '✓'} ${file.replace('dist/test/', '')} (${
          [on, `${(time / 1000).toFixed(1)} s`, ...spent].join(', ')})`)
        spent = []
      }
    }
    if (failing && (text !== undefined || !/^ *(#|1\.\.)/.test(line))) shown.push(line)
  }
  if (status === 0 && shown.length === 0 && ended.size === files.length) return
  broken = true
  const unended = files.filter((file) => !ended.has(file))
  console.log([
    ...unended.map((file) => `✗ ${file} (${on}): it ended with ${status}`), ...shown,
    ...unended.length > 0 ? output.split('\n').slice(-20) : [], errors
  ].join('\n'))
}
