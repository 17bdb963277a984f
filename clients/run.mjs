// `npm run clients [-- [--within SECONDS] LANGUAGE ...]`: generates a client of each language from the document,
// compiles it, and has the first five run one scenario against a server of its own. Says which languages it left out,
// for want of their tools, of what they fetch, or of time: that is a failure only of one that was asked for by name.
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { buildIfNeeded } from '../scripts/build.mjs'

// openapi-generator is a plugin for Maven.
const GENERATOR = [['mvn', '--version'], ['javac', '--version']]

// The programs that each needs beside Node.js; what takes longest comes last.
const LANGUAGES = {
  typescript: [['npm', '--version']],
  go: [['go', 'version']],
  python: [['python3', '-c', 'import sys, venv; sys.exit(sys.version_info < (3, 11))']],
  java: GENERATOR,
  rust: [['cargo', '--version']],
  ogen: [['go', 'version']],
  php: [['php', '--version'], ...GENERATOR],
  ruby: [['ruby', '-rtyphoeus', '-e', ''], ...GENERATOR],
  kotlin: [...GENERATOR],
  csharp: [['dotnet', '--version'], ...GENERATOR]
}
// Generated and compiled only: no scenario.
const WITHOUT_SCENARIO = ['ogen', 'php', 'ruby', 'kotlin', 'csharp']
const FEWEST_STEPS = 25

// A script's status when it could not fetch what it needs (EX_TEMPFAIL of sysexits.h).
const OUT_OF_REACH = 75

const { values, positionals: asked } = parseArgs({ allowPositionals: true, options: { within: { type: 'string' } } })
const unknown = asked.filter((language) => !Object.hasOwn(LANGUAGES, language))
const deadline = values.within === undefined ? Infinity : performance.now() + Number(values.within) * 1000
if (unknown.length > 0 || Number.isNaN(deadline)) {
  console.error(`npm run clients [-- [--within SECONDS] ${Object.keys(LANGUAGES).map((one) => `[${one}]`).join(' ')}]`)
  process.exit(2)
}

// Whoever interrupts leaves no server, no folder and no compiler behind.
const interruption = new AbortController()
const { signal: stopped } = interruption
for (const name of ['SIGINT', 'SIGTERM']) process.once(name, () => interruption.abort())

buildIfNeeded()
const results = []
for (const language of asked.length > 0 ? asked : Object.keys(LANGUAGES)) {
  const begun = performance.now()
  const { steps, isCompiled, leftOut } = await run(language).catch((error) => {
    console.error(error)
    return {}
  })
  const worked = isCompiled || steps >= FEWEST_STEPS
  const isLeftOut = leftOut !== undefined
  const outcome = isLeftOut
    ? `left out: ${leftOut}`
    : `${worked ? isCompiled ? 'compiled' : `${steps} steps` : 'failed'}, ${Math.round((performance.now() - begun) / 1000)} s`
  results.push({ language, outcome, isLeftOut, failed: !worked && (!isLeftOut || asked.includes(language)) })
}
console.log()
for (const { language, outcome } of results) console.log(`${language.padEnd(10)} ${outcome}`)
// Where all were left out, nothing was shown.
process.exit(results.some(({ failed }) => failed) || results.every(({ isLeftOut }) => isLeftOut) ? 1 : 0)

/** The number of steps of the scenario, or that the client compiled, or why it was left out; none if it failed. */
async function run (language) {
  const lacking = LANGUAGES[language].find(([program, ...args]) => spawnSync(program, args).status !== 0)
  if (lacking !== undefined) return { leftOut: `there is no fitting ${lacking[0]}` }
  const left = deadline - performance.now()
  if (left <= 0) return { leftOut: 'the time was over' }
  console.log(`# ${language}`)
  // What is generated and compiled; the tools and dependencies in it are found again the next time.
  const scratch = resolve('dist/clients', language)
  mkdirSync(scratch, { recursive: true })
  const server = await serve()
  try {
    const older = join(scratch, 'openapi-3.0.json')
    writeFileSync(older, await (await fetch(`${server.address}/openapi-3.0.json`)).text())
    if (stopped.aborted) return {}
    const child = spawn('sh', ['-eu', resolve('clients', language, 'run.sh')], {
      cwd: scratch,
      env: {
        ...process.env,
        SOURCE: resolve('clients', language),
        OPENAPI: resolve('openapi.yaml'),
        OPENAPI_30: older,
        STRONGROOM_URL: server.address,
        STRONGROOM_ORGANIZATION: server.organization,
        STRONGROOM_TOKEN: server.token
      },
      stdio: ['ignore', 'pipe', 'inherit'],
      // A group of its own, so that what it started ends with it.
      detached: true
    })
    const end = () => process.kill(-child.pid, 'SIGTERM')
    let late = false
    const timer = left === Infinity ? undefined : setTimeout(() => end(late = true), left)
    stopped.addEventListener('abort', end)
    let output = ''
    child.stdout.setEncoding('utf8').on('data', (text) => {
      output += text
      process.stdout.write(text)
    })
    const [status] = await once(child, 'close')
    clearTimeout(timer)
    stopped.removeEventListener('abort', end)
    if (late) return { leftOut: 'the time was over' }
    if (status === OUT_OF_REACH) return { leftOut: 'what it needs is out of reach' }
    if (WITHOUT_SCENARIO.includes(language)) return { isCompiled: status === 0 && /compiled$/m.test(output) }
    const said = /^(\d+) steps$/m.exec(output)
    return { steps: status === 0 && said !== null ? Number(said[1]) : undefined }
  } finally {
    await server.stop()
    if (stopped.aborted) process.exit(1)
  }
}

// A server with an organization and a token of everything, that lets a key be rotated once an hour.
async function serve () {
  const folder = mkdtempSync(join(tmpdir(), 'clients-'))
  const { PATH, HOME } = process.env
  const env = { PATH, HOME, DATA_DIR: join(folder, 'data'), PORT: '0', RATE_LIMIT_KEY_ROTATION: '1', LOG_LEVEL: 'warn' }
  const remove = () => rmSync(folder, { recursive: true, force: true })
  const program = resolve('dist/src/cli.js')
  const made = spawnSync(
    process.execPath, [program, 'init', '--organization', 'Nimbus', '--email', 'rosa@nimbus.example', '--json'],
    { env, encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] }
  )
  if (made.status !== 0) {
    remove()
    throw new Error('init failed')
  }
  const { organization, token } = JSON.parse(made.stdout)
  const child = spawn(process.execPath, [program, 'serve'], { env, stdio: ['ignore', 'pipe', 'inherit'] })
  const closed = once(child, 'close')
  const stop = async () => {
    child.kill('SIGTERM')
    await closed
    remove()
  }
  const address = await new Promise((resolve, reject) => {
    let output = ''
    child.stdout.setEncoding('utf8').on('data', (text) => {
      output += text
      const [found] = /http:\/\/127\.0\.0\.1:\d+/.exec(output) ?? []
      if (found !== undefined) resolve(found)
    })
    child.once('close', () => reject(new Error(`the server ended: ${output}`)))
  })
  return { address, organization: organization.slug, token, stop }
}
