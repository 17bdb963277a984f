// Runs the test files of dist/test. test/README.md explains the words at the head of a file, and the options.
import { fork } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statfsSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { startCitus } from '../dist/test/helpers/citus.js'
import { hasPostgres, startPostgres } from '../dist/test/helpers/postgres.js'

const HEAD = /^\/\/ runs: (no database|one database(?:, embedded)?|both databases|PostgreSQL|Citus)((?:; (?:proof|fault|alone|after all others))*)(?:; (\d+) s)?\n/

const { values: { proofs, faults, quick, citus }, positionals } = parseArgs({
  allowPositionals: true,
  options: Object.fromEntries(['proofs', 'faults', 'quick', 'citus'].map((name) => [name, { type: 'boolean' }]))
})
const wanted = positionals.map((word) => word.replace(/^test\/|\.test\.ts$/g, ''))
// The time limit of a file in seconds, long enough for a busy machine. The head of a file can lengthen it.
const timeLimit = proofs ? 2_240 : faults || citus ? 900 : 560

// Lists the sources, because `tsc` leaves the output of deleted and moved files in dist.
const files = readdirSync('test', { recursive: true }).filter((name) => name.endsWith('.test.ts')).sort().map(readHead)
  .filter(isOfRun).filter(({ id }) => wanted.length === 0 || wanted.some((word) => id.includes(word)))
makeTemporaryDirectory()
const server = citus
  ? await startCitus()
  : !quick && hasPostgres() ? await startPostgres({ durable: false }) : undefined
if (server === undefined && !quick) console.log('PostgreSQL is not installed: only the embedded database is tested.')
const onServer = server && {
  name: citus ? 'Citus' : 'PostgreSQL',
  env: { TEST_DATABASE_URL: server.url, ...citus && { TEST_CITUS_NODES: server.nodes.map(({ url }) => url).join() } }
}
const places = [onServer, { name: 'embedded database', env: {} }]
const failures = []
const totals = { pass: 0, fail: 0, cpu: 0, isWhole: server !== undefined || quick || process.env.CI !== 'true' }
// Many files wait, so there are more processes than cores. Fault tests measure recovery times: two processes at most.
const processes = faults ? 2 : Math.max(2, availableParallelism()) + 2
const isAlone = ({ words }) => words.includes('alone')
const isLast = (file) => file.words.includes('after all others') || (faults && isAlone(file))
const jobsOn = (on) => files.filter((file) => runsOn(file, on) && !isLast(file)).sort((a, b) => b.seconds - a.seconds)
const together = places.map((on) => ({ on, jobs: jobsOn(on).filter((file) => !isAlone(file)) }))
const alone = places.flatMap((on) => jobsOn(on).filter(isAlone).map((file) => [{ on, jobs: [file] }]))
await Promise.all([...alone, ...Array(processes).fill(together)].map(async (lists) => {
  for (const { jobs, on } of lists) if (jobs.length > 0) await runFiles(jobs, on)
}))
for (const file of files.filter(isLast)) for (const on of places) if (runsOn(file, on)) await runFiles([file], on)
await server?.close()
console.log(['', ...failures, `The files took ${totals.cpu.toFixed(0)} s of CPU time`].join('\n'))
console.log(`${totals.pass} passed, ${totals.fail} failed`)
process.exit(totals.isWhole && totals.fail === 0 ? 0 : 1)

function readHead (name) {
  const source = readFileSync(join('test', name), 'utf8')
  const head = HEAD.exec(source)
  if (head === null) throw new Error(`test/${name} does not begin with a line such as "// runs: one database; 20 s"`)
  const [, database, words, seconds = '0'] = head
  const hasLongForm = source.includes('helpers/long.ts')
  return { id: name.slice(0, -'.test.ts'.length), database, words, seconds: Number(seconds), hasLongForm }
}

function isOfRun ({ database, words, seconds, hasLongForm }) {
  const [isFault, isProof] = ['fault', 'proof'].map((word) => words.includes(word))
  if (faults || isFault) return faults && isFault
  if (citus) return !isProof && !['no database', 'PostgreSQL'].includes(database)
  if (database === 'Citus') return false
  if (proofs || isProof) return proofs && (isProof || hasLongForm)
  return !quick || (seconds === 0 && !['one database', 'PostgreSQL'].includes(database))
}

function runsOn ({ database }, on) {
  const needsNone = database === 'no database' || (database === 'one database, embedded' && !citus)
  if (on === onServer) return server !== undefined && !needsNone
  return needsNone || (database !== 'PostgreSQL' && !citus && (database === 'both databases' || server === undefined))
}

function makeTemporaryDirectory () {
  const { bavail, bsize } = existsSync('/dev/shm') ? statfsSync('/dev/shm') : { bavail: 0, bsize: 0 }
  const directory = mkdtempSync(join(bavail * bsize < 4 * 2 ** 30 ? tmpdir() : '/dev/shm', 'strongroom-'))
  // PostgreSQL runs as another user and has its data in a subdirectory.
  chmodSync(directory, 0o711)
  mkdirSync(join(directory, 'statements'))
  process.env.TMPDIR = directory
  process.once('exit', () => rmSync(directory, { recursive: true, force: true }))
  for (const name of ['SIGINT', 'SIGTERM']) process.once(name, () => process.exit(1))
}

// Starts a process and gives it the files one by one. Other processes take files from the same list.
async function runFiles (files, on) {
  const child = fork('dist/test/helpers/files.js', {
    env: {
      ...process.env,
      // Checks that each SQL statement stays within one organization, also in servers and commands of tests.
      NODE_OPTIONS: `--import ${new URL('../dist/test/helpers/statements.js', import.meta.url).href}`,
      TEST_STATEMENTS: join(process.env.TMPDIR, 'statements'),
      ...proofs && { TEST_LONG: '1' },
      ...on.env
    },
    timeout: 3_000_000,
    killSignal: 'SIGKILL',
    stdio: ['ignore', 'inherit', 'inherit', 'ipc']
  })
  const ended = new Promise((resolve) => child.once('exit', (code, signal) => resolve(signal ?? code)))
  while (child.connected && files.length > 0) await runFile(child, ended, files.shift(), on)
  if (child.connected) child.disconnect()
  if (await ended !== 0 || files.length > 0) totals.isWhole = false
}

async function runFile (child, ended, { id, seconds }, on) {
  const received = new Promise((resolve) => {
    // tap sends messages too.
    child.removeAllListeners('message').on('message', (result) => { if (result.path === id) resolve(result) })
  })
  // If the process has ended, that is the result.
  child.send({ path: id, timeout: (timeLimit + 8 * seconds) * 1000 }, () => {})
  const result = await Promise.race([received, ended.then((code) =>
    ({ pass: 0, fail: 1, seconds: 0, cpu: 0, notes: [], failures: [`${id}: the process ended with ${code}`] }))])
  for (const figure of ['pass', 'fail', 'cpu']) totals[figure] += result[figure]
  failures.push(...result.failures)
  const times = `${result.seconds.toFixed(1)} s, CPU ${result.cpu.toFixed(1)} s`
  const head = `${result.fail === 0 ? '✓' : '✗'} ${id} (${on.name}, ${times})`
  console.log([head, ...faults ? result.notes : [], ...result.failures].join('\n'))
}
