// Runs the test files of dist/test. test/README.md explains the words at the head of a file, and the options.
import { fork } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { missingForCitus, startCitus } from '../dist/test/helpers/citus.js'
import { startPostgres, hasPostgres } from '../dist/test/helpers/postgres.js'
import { printFaults } from './test-faults.mjs'
import { useMemory } from './test-memory.mjs'

const OPTIONS = ['--proofs', '--faults', '--quick', '--citus']
const HEAD = /^\/\/ runs: (no database|one database|both databases|PostgreSQL|Citus)((?:; (?:proof|fault|alone|after all others))*)(?:; (\d+) s)?\n/
// More files in a process would need more memory and save little time.
const FILES_OF_PROCESS = 12

const args = process.argv.slice(2)
const [proofs, faults, quick, citus] = OPTIONS.map((option) => args.includes(option))
const unknown = args.find((arg) => arg.startsWith('--') && !OPTIONS.includes(arg))
if (unknown !== undefined) end(`Unknown option ${unknown}: see test/README.md`)
if (citus && missingForCitus() !== undefined) end(`The tests on Citus need ${missingForCitus()}`)
const wanted = args.filter((arg) => !arg.startsWith('--')).map((arg) => arg.replace(/^test\/|\.test\.ts$/g, ''))
// The time limit of a file in seconds, long enough for a busy machine. The head of a file can lengthen it.
const timeLimit = proofs ? 2_240 : faults || citus ? 900 : 560

useMemory()
// Lists the sources, because `tsc` leaves the output of deleted and moved files in dist.
const files = readdirSync('test', { recursive: true }).filter((name) => name.endsWith('.test.ts')).sort().map(readHead)
  .filter(isOfRun).filter(({ id }) => wanted.length === 0 || wanted.some((word) => id.includes(word)))
const isWithServer = !quick && hasPostgres()
const server = citus ? await startCitus() : isWithServer ? await startPostgres({ durable: false }) : undefined
const totals = { pass: 0, fail: 0, cpu: 0, isGood: server !== undefined || quick || process.env.CI !== 'true' }
if (server === undefined && !quick) console.log('PostgreSQL is not installed: only the embedded database is tested.')
const [statements, outcomes] = ['statements', 'outcomes'].map((name) => mkdtempSync(join(tmpdir(), `strongroom-${name}-`)))
process.once('exit', () => {
  for (const directory of [statements, outcomes]) rmSync(directory, { recursive: true, force: true })
})
const onServer = {
  name: citus ? 'Citus' : 'PostgreSQL',
  env: { TEST_DATABASE_URL: server?.url, ...citus && { TEST_CITUS_NODES: server.nodes.map(({ url }) => url).join() } }
}
const embedded = { name: 'embedded database', env: {} }

const jobs = files.flatMap((file) => placesOf(file).map((on) => ({ file, on })))
  .sort((one, other) => other.file.seconds - one.file.seconds)
const others = jobs.filter(({ file }) => !file.isLast)
// Fault tests measure recovery times, so at most two processes run at once.
const lanes = Array.from({ length: faults ? 2 : Math.max(2, availableParallelism()) + 1 }, () => runLane(others))
const ends = await Promise.all(lanes)
for (const job of jobs.filter(({ file }) => file.isLast)) await runLane([job])
await server?.close()
if (faults) printFaults(outcomes)
// Large differences show a bad distribution of the files.
console.log(`The lanes ended after ${ends.join(', ')} s; the files took ${totals.cpu.toFixed(0)} s of CPU time`)
end(`${totals.pass} passed, ${totals.fail} failed`, totals.isGood && totals.fail === 0 ? 0 : 1)

function readHead (name) {
  const source = readFileSync(join('test', name), 'utf8')
  const [, database, words, seconds = '0'] = HEAD.exec(source) ??
    end(`test/${name} does not begin with a line such as "// runs: one database; 20 s": see test/README.md`)
  const has = (word) => words.includes(word)
  return {
    id: name.slice(0, -'.test.ts'.length),
    database,
    seconds: Number(seconds),
    isFault: has('fault'),
    isProof: has('proof'),
    isLast: has('alone') || has('after all others'),
    hasLongForm: source.includes('helpers/long.ts')
  }
}

function isOfRun ({ database, seconds, isFault, isProof, hasLongForm }) {
  if (faults || isFault) return faults && isFault
  if (citus) return !isProof && ['one database', 'both databases', 'Citus'].includes(database)
  if (database === 'Citus') return false
  if (proofs || isProof) return proofs && (isProof || hasLongForm)
  return !quick || (seconds === 0 && ['no database', 'both databases'].includes(database))
}

// The databases of a file: the server, the embedded database, or both.
function placesOf ({ database }) {
  if (database === 'no database' || server === undefined) return database === 'PostgreSQL' ? [] : [embedded]
  return database === 'both databases' && !citus ? [onServer, embedded] : [onServer]
}

// Starts processes one after the other, and gives each its files one by one, until no job is left.
async function runLane (jobs) {
  while (jobs.length > 0) {
    const { on } = jobs[0]
    const child = fork('dist/test/helpers/files.js', {
      env: {
        ...process.env,
        // Checks that each SQL statement stays within one organization, also in servers and commands of tests.
        NODE_OPTIONS: `--import ${new URL('../dist/test/helpers/statements.js', import.meta.url).href}`,
        TEST_STATEMENTS: statements,
        ...faults && { TEST_FAULTS: outcomes },
        ...proofs && { TEST_LONG: '1' },
        ...on.env
      },
      stdio: ['ignore', 'pipe', 'pipe', 'ipc']
    })
    const ended = new Promise((resolve) => child.once('exit', (code, signal) => resolve(signal ?? code)))
    for (let n = 0; n < FILES_OF_PROCESS && child.connected; n++) {
      const next = jobs.findIndex((job) => job.on === on)
      if (next === -1) break
      await runFile(child, ended, jobs.splice(next, 1)[0].file, on)
    }
    if (child.connected) child.disconnect()
    if (await ended !== 0) totals.isGood = false
  }
  return process.uptime().toFixed(0)
}

async function runFile (child, ended, { id, seconds }, on) {
  const output = []
  const streams = [child.stdout, child.stderr]
  const keep = (chunk) => { output.push(chunk) }
  for (const stream of streams) stream.on('data', keep)
  const timeout = (timeLimit + 8 * seconds) * 1000
  const late = setTimeout(() => child.kill('SIGKILL'), timeout + 20_000)
  // The end of the process is the result of a file that cannot be sent.
  child.send({ path: id, timeout }, () => {})
  const received = new Promise((resolve) => {
    // tap sends messages too.
    child.on('message', function take (message) {
      if (message.path !== id) return
      child.off('message', take)
      resolve(message)
    })
  })
  const result = await Promise.race([received, ended.then((code) => (
    { pass: 0, fail: 1, seconds: 0, cpu: 0, skipped: [], failures: [`The process of the file ended with ${code}`] }
  ))])
  clearTimeout(late)
  for (const stream of streams) stream.off('data', keep).resume()
  for (const figure of ['pass', 'fail', 'cpu']) totals[figure] += result[figure]
  const isGood = result.fail === 0 && result.failures.length === 0
  totals.isGood &&= isGood
  console.log(`${isGood ? '✓' : '✗'} ${id} (${on.name}, ${result.seconds.toFixed(1)} s, CPU ${result.cpu.toFixed(1)} s)`)
  if (faults) for (const name of result.skipped) console.log(`  left out: ${name}`)
  if (!isGood) console.log([...result.failures, Buffer.concat(output)].join('\n'))
}

function end (text, code = 2) {
  console.log(text)
  process.exit(code)
}
