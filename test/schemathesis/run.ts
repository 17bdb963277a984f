// `npm run schemathesis [-- --long] [-- --seed N]`: sends the requests that Schemathesis generates from the OpenAPI
// document to a new service. One search uses a token with all scopes, the other no token. The run fails if a response
// differs from the document. With the token, every operation must succeed at least once, because a 404 tests little of
// an operation.
//
// Exits with 0 without findings, with 1 with findings, and with 2 if the search could not run.
import { spawn, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { startIsolatedApp } from '../helpers/app.ts'
import { OPERATIONS } from '../helpers/operations.ts'
import { openStage, type Stage } from './stage.ts'

const SOURCE = resolve('test/schemathesis')
const SCRATCH = resolve('dist/schemathesis')
const OLDEST = [3, 10]
const WITH_NONE = 'with no token'

/**
 * The number of requests. `share`: one of this number of the 5,800 cases at the limits of schemas runs (phase
 * `coverage`). `examples`: the number of generated cases for each operation, and of generated sequences of operations.
 */
const FORMS = { short: { share: 8, examples: 4 }, long: { share: 1, examples: 100 } }

/** The number of cases of a phase that used the operation's own method, by status. */
type Count = [phase: string, operation: string, status: number, cases: number]
type Dropped = [why: string, many: number]
interface Found { name: string, status: number, output: string, counts: Count[], dropped: Dropped[] }

const { values } = parseArgs({ options: { long: { type: 'boolean' }, seed: { type: 'string', default: '7' } } })
const form = FORMS[values.long ? 'long' : 'short']
const tool = install()

const ends: (() => unknown)[] = []
// A database of its own: the generated requests change and delete whatever they find.
const service = await startIsolatedApp({ teardown: (end) => ends.unshift(end) })
const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
const stage = await openStage(service, address)
const server = await serve(stage)
ends.unshift(() => { server.close() })
const begun = Date.now()
// Runs both searches at the same time, because the search without a token changes nothing.
const found = await Promise.all([
  search('with a token of everything', ['--header', `Authorization: Bearer ${stage.token}`], {
    STAGE: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, PERSON: `Bearer ${stage.person}`
  }),
  search(WITH_NONE, [], {})
])
for (const end of ends) await end()
const faults = found.flatMap(report)
for (const fault of faults) console.error(fault)
console.log(`\nSchemathesis, ${values.long ? 'long' : 'short'} form, seed ${values.seed}: ${
  faults.length === 0 ? 'nothing found' : 'something found'}, ${Math.round((Date.now() - begun) / 1000)} s.`)
process.exit(faults.length === 0 ? 0 : 1)

/** Installs the program in its own virtual environment, once for each list of packages. */
function install (): string {
  const list = join(SOURCE, 'requirements.txt')
  const venv = join(SCRATCH, createHash('sha256').update(readFileSync(list)).digest('hex').slice(0, 16))
  const program = join(venv, 'bin/st')
  if (existsSync(program)) return program
  const python = spawnSync('python3', ['-c', `import sys, venv, ensurepip; sys.exit(sys.version_info < (${OLDEST}))`])
  if (python.status !== 0) unable(`it takes Python ${OLDEST.join('.')} with venv, which is not installed`)
  mkdirSync(SCRATCH, { recursive: true })
  const pip = ['-m', 'pip', '--quiet', '--disable-pip-version-check', 'install', '--requirement', list]
  for (const [command, args] of [['python3', ['-m', 'venv', venv]], [join(venv, 'bin/python'), pip]] as const) {
    const { status, stderr } = spawnSync(command, args, { encoding: 'utf8' })
    if (status === 0) continue
    rmSync(venv, { recursive: true, force: true })
    unable(`its packages could not be installed. ${stderr}`)
  }
  return program
}

function unable (why: string): never {
  console.error(`Schemathesis was not run: ${why}`)
  process.exit(2)
}

/** Starts a server for the hooks of the run, which are another process. They request the test data of an operation. */
async function serve (stage: Stage): Promise<Server> {
  const server = createServer((request, response) => {
    stage.set(request.url!.slice(1)).then(
      (setting) => response.end(JSON.stringify(setting)),
      (error: unknown) => {
        console.error(error)
        response.writeHead(500).end()
      }
    )
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  return server
}

async function search (name: string, args: string[], env: Record<string, string>): Promise<Found> {
  // Uses a new folder, because Schemathesis would reuse the results of an earlier run.
  const folder = mkdtempSync(join(SCRATCH, 'run-'))
  ends.push(() => { rmSync(folder, { recursive: true }) })
  const counts = join(folder, 'counts.json')
  const child = spawn(tool, [
    '--config-file', join(SOURCE, 'schemathesis.toml'), '--no-color', 'run', `${address}/openapi.json`,
    '--seed', values.seed, '--max-examples', String(form.examples), '--checks', 'all', '--continue-on-failure', ...args
  ], {
    cwd: folder,
    env: {
      ...process.env,
      SCHEMATHESIS_HOOKS: join(SOURCE, 'hooks.py'),
      COUNTS: counts,
      PERSON: 'Bearer nobody',
      SHARE: String(form.share),
      ...env
    },
    stdio: ['ignore', 'pipe', 'pipe']
  })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text) => { output += text })
  }
  const [status] = await once(child, 'close')
  return { name, status, output, ...JSON.parse(readFileSync(counts, 'utf8')) }
}

/** Prints the requests and responses. Returns the faults. */
function report ({ name, status, output, counts, dropped }: Found): string[] {
  const total = (rows: Count[]) => rows.reduce((sum, [, , , cases]) => sum + cases, 0)
  const phases = [...new Set(counts.map(([phase]) => phase))]
  console.log(`\n# ${name}: ${total(counts)} requests (${
    phases.map((phase) => `${phase} ${total(counts.filter((row) => row[0] === phase))}`).join(', ')})`)
  for (const [why, many] of dropped) console.log(`  by decision, ${many}: ${why}`)
  const faults = status === 0 ? [] : [output, `${name}: Schemathesis ended with ${status}`]
  const own = counts.filter(([phase]) => phase !== 'other methods')
  for (const [operation, row] of Object.entries(OPERATIONS)) {
    const rows = own.filter(([, its]) => its === operation)
    const taken = total(rows.filter(([, , status]) => status < 300))
    console.log(`  ${operation.padEnd(34)} ${String(total(rows)).padStart(5)} requests, ${taken} with success`)
    const expected = name === WITH_NONE ? row.access === 'public' ? row.public ?? 200 : 401 : 200
    const isThere = rows.some(([, , status]) => expected === 200 ? status < 300 : status === expected)
    if (!isThere || (expected === 401 && taken > 0)) faults.push(`${name}: ${operation} was to answer ${expected}`)
  }
  return faults
}
