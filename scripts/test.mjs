// Runs the test files of dist/test; test/README.md explains the folders and the options. The last line of the output
// counts the tests on both databases.
import { spawn } from 'node:child_process'
import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, statfsSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { missingForCitus, startCitus } from '../dist/test/helpers/citus.js'
import { startPostgres, hasPostgres } from '../dist/test/helpers/postgres.js'

const args = process.argv.slice(2)
const OPTIONS = ['--long', '--faults', '--quick', '--citus']
const [long, faults, quick, citus] = OPTIONS.map((option) => args.includes(option))
const unknown = args.find((arg) => arg.startsWith('--') && !OPTIONS.includes(arg))
if (unknown !== undefined) {
  console.log(`Unknown option ${unknown}: see test/README.md`)
  process.exit(2)
}
const words = args.filter((arg) => !arg.startsWith('--')).map((arg) => arg.replace(/^test\/|\.test\.ts$/g, ''))

// Timeout of a file in milliseconds, long enough for a busy machine.
const TIMEOUT = long ? 2_240_000 : faults || citus ? 900_000 : 560_000
const timeoutOf = ({ duration }) => TIMEOUT + duration * 8_000
// More files per process would need more memory and save little time.
const FILES_PER_PROCESS = 12
// Checks that each SQL statement stays within one organization, also in the servers and commands that tests start.
const WATCH = `--import ${new URL('../dist/test/helpers/statements.js', import.meta.url).href}`
// Tests create hundreds of databases with hundreds of files each. A memory file system takes a quarter of the time, and
// keeps the files of a killed process.
const MEMORY = '/dev/shm'
const MEMORY_NEEDED = 4 * 2 ** 30

const FOLDERS = ['both', 'either', 'own', 'server', 'last', 'citus', 'faults', 'faults/alone']
// Lists the sources, because `tsc` leaves the output of deleted and moved files in dist.
const all = readdirSync('test', { recursive: true }).filter((name) => name.endsWith('.test.ts')).sort().map(fileOf)
const isQuick = ({ folder, duration }) => ['both', 'own'].includes(folder) && duration === 0
const isChosen = (file) => words.length > 0 ? words.some((word) => file.id.includes(word)) : !quick || isQuick(file)
const isOfRun = ({ folder }) => citus
  ? ['both', 'either', 'citus'].includes(folder)
  : folder !== 'citus' && folder.startsWith('faults') === faults
const files = all.filter((file) => isOfRun(file) && isChosen(file))
if (citus && missingForCitus() !== undefined) {
  console.log(`The tests on Citus need ${missingForCitus()}`)
  process.exit(1)
}

const inMemory = hasMemory() ? mkdtempSync(join(MEMORY, 'strongroom-')) : undefined
if (inMemory !== undefined) {
  // PostgreSQL runs as another user and has its data in a subdirectory.
  chmodSync(inMemory, 0o711)
  process.env.TMPDIR = inMemory
  process.once('exit', () => rmSync(inMemory, { recursive: true, force: true }))
  for (const name of ['SIGINT', 'SIGTERM']) process.once(name, () => process.exit(1))
}

const totals = { passed: 0, failed: 0, cpu: 0 }
const skipped = []
let broken = false
for (const { id } of all.filter(({ folder }) => !FOLDERS.includes(folder))) {
  console.log(`test/${id}.test.ts is in none of the folders that are run: ${FOLDERS.join(', ')}`)
  broken = true
}
const server = citus
  ? await startCitus()
  : hasPostgres() && !quick ? await startPostgres({ durable: false }) : undefined
if (server === undefined && !quick && process.env.CI === 'true') {
  console.log('PostgreSQL is missing: install its programs (Debian: postgresql)')
  broken = true
} else if (server === undefined && !quick) console.log('PostgreSQL is not installed: only the embedded database is tested.')

const statements = mkdtempSync(join(tmpdir(), 'strongroom-statements-'))
const outcomes = mkdtempSync(join(tmpdir(), 'strongroom-outcomes-'))
process.once('exit', () => {
  for (const directory of [statements, outcomes]) rmSync(directory, { recursive: true, force: true })
})

const isOn = {
  server: ({ folder, hasLongForm }) =>
    ['both', 'either', 'server', 'citus'].includes(folder) && (!long || hasLongForm),
  embedded: ({ folder, hasLongForm }) =>
    folder === 'either' ? long || server === undefined : !citus && ['both', 'own'].includes(folder) && (!long || hasLongForm)
}
const onServer = (files) => ({
  files,
  on: citus ? 'Citus' : 'PostgreSQL',
  env: {
    TEST_DATABASE_URL: server.url, ...(citus && { TEST_CITUS_NODES: server.nodes.map(({ url }) => url).join() })
  }
})
const onEmbedded = (files) => ({ files, on: 'embedded database', env: {} })
const onOne = server === undefined ? onEmbedded : onServer
// These files run one after the other, after all other files.
const atTheEnd = files.filter(({ folder }) => folder === 'faults/alone' || (folder === 'last' && server !== undefined))
const work = (faults
  ? files.filter((file) => !atTheEnd.includes(file)).map((file) => onOne([file]))
  : [
      ...server === undefined ? [] : processes(files.filter(isOn.server)).map(onServer),
      ...processes(files.filter(isOn.embedded)).map(onEmbedded)
    ]
).sort((a, b) => b.files[0].duration - a.files[0].duration)
// Fault tests measure recovery times, so at most two processes run at once.
const lanes = faults ? 2 : Math.max(2, availableParallelism()) + 1
const ended = await Promise.all(Array.from({ length: lanes }, async () => {
  for (let next = work.shift(); next !== undefined; next = work.shift()) await run(next)
  return process.uptime().toFixed(0)
}))
for (const file of atTheEnd) await run(onOne([file]))
await server?.close()
if (faults) printOutcomes()
// Large differences show a bad distribution of the files.
console.log(`The lanes ended after ${ended.join(', ')} s; the files took ${totals.cpu.toFixed(0)} s of CPU time`)
console.log(`${totals.passed} passed, ${totals.failed} failed`)
process.exit(broken || totals.failed > 0 ? 1 : 0)

// A file whose first line is `// duration: 60 s` (of CPU time) is not part of a quick run. A file of 15 s or more runs
// alone in a process, and starts before shorter files.
function fileOf (name) {
  const id = name.slice(0, -'.test.ts'.length)
  const source = readFileSync(join('test', name), 'utf8')
  const [, seconds = '0'] = /^\/\/ duration: (\d+) s\n/.exec(source) ?? []
  return {
    id,
    folder: dirname(name),
    path: `dist/test/${id}.test.js`,
    duration: Number(seconds),
    hasLongForm: source.includes('helpers/long.ts')
  }
}

function processes (files) {
  const isAlone = ({ duration, hasLongForm }) => duration >= 15 || (long && hasLongForm)
  const others = files.filter((file) => !isAlone(file))
  // At least two processes, so that a few files use two cores.
  const count = Math.min(others.length, Math.max(2, Math.ceil(others.length / FILES_PER_PROCESS)))
  return [
    ...files.filter(isAlone).map((file) => [file]),
    // Files with similar names take similar times, so distributes neighbours to different processes.
    ...Array.from({ length: count }, (_, i) => others.filter((_, place) => place % count === i))
  ]
}

function hasMemory () {
  try {
    const { bavail, bsize } = statfsSync(MEMORY)
    return bavail * bsize >= MEMORY_NEEDED
  } catch {
    return false
  }
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

// Runs files in one process, which prints a TAP test for each file. Prints failures with their diagnostics.
async function run ({ files, on, env }) {
  const timeout = Math.max(...files.map(timeoutOf))
  const child = spawn(process.execPath, ['dist/test/helpers/files.js', ...files.map(({ path }) => path)], {
    env: {
      ...process.env,
      NODE_OPTIONS: WATCH,
      TEST_STATEMENTS: statements,
      ...(faults && { TEST_FAULTS: outcomes }),
      TAP_TIMEOUT: String(timeout / 1000 - 20),
      ...(long && { TEST_LONG: '1' }),
      ...env
    },
    stdio: ['ignore', 'pipe', 'pipe']
  })
  const late = setTimeout(() => child.kill('SIGKILL'), timeout * files.length)
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
      const [, path, time] = /^(\S+) # time=([\d.]+)ms$/.exec(text) ?? []
      const file = indent === '' && files.find((file) => file.path === path)
      if (file) {
        ended.add(file)
        console.log(`${not ? '✗' : '✓'} ${file.id} (${
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
    ...unended.map(({ id }) => `✗ ${id} (${on}): it ended with ${status}`), ...shown,
    ...unended.length > 0 ? output.split('\n').slice(-20) : [], errors
  ].join('\n'))
}
