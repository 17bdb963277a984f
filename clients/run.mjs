// `npm run clients [-- LANGUAGE ...]`: generates a client of each language from the document, compiles it, and has it
// run one scenario against a server of its own. Says which languages it left out for want of their tools.
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { buildIfNeeded } from '../scripts/build.mjs'

// The programs that each needs beside Node.js.
const LANGUAGES = {
  typescript: [['npm', '--version']],
  python: [['python3', '-c', 'import sys, venv; sys.exit(sys.version_info < (3, 11))']],
  go: [['go', 'version']],
  java: [['mvn', '--version'], ['javac', '--version']],
  rust: [['cargo', '--version']]
}
const FEWEST_STEPS = 25

const asked = process.argv.slice(2)
const unknown = asked.filter((language) => !Object.hasOwn(LANGUAGES, language))
if (unknown.length > 0) {
  console.error(`${unknown.join(', ')}: not among ${Object.keys(LANGUAGES).join(', ')}`)
  process.exit(2)
}

buildIfNeeded()
const results = []
for (const language of asked.length > 0 ? asked : Object.keys(LANGUAGES)) {
  const lacking = LANGUAGES[language].find(([program, ...args]) => spawnSync(program, args).status !== 0)
  if (lacking !== undefined) {
    results.push({ language, outcome: `left out: there is no fitting ${lacking[0]}`, failed: asked.includes(language) })
    continue
  }
  const begun = Date.now()
  const steps = await run(language).catch((error) => { console.error(error) })
  const failed = steps === undefined || steps < FEWEST_STEPS
  const outcome = failed ? 'failed' : `${steps} steps`
  results.push({ language, outcome: `${outcome}, ${Math.round((Date.now() - begun) / 1000)} s`, failed })
}
console.log()
for (const { language, outcome } of results) console.log(`${language.padEnd(10)} ${outcome}`)
process.exit(results.some(({ failed }) => failed) ? 1 : 0)

/** The number of steps that the scenario took; undefined when it failed. */
async function run (language) {
  console.log(`# ${language}`)
  // What is generated and compiled; the tools and dependencies in it are found again the next time.
  const scratch = resolve('dist/clients', language)
  mkdirSync(scratch, { recursive: true })
  const server = await serve()
  try {
    const older = join(scratch, 'openapi-3.0.json')
    writeFileSync(older, await (await fetch(`${server.address}/openapi-3.0.json`)).text())
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
      stdio: ['ignore', 'pipe', 'inherit']
    })
    let output = ''
    child.stdout.setEncoding('utf8').on('data', (text) => {
      output += text
      process.stdout.write(text)
    })
    const [status] = await once(child, 'close')
    const said = /^(\d+) steps$/m.exec(output)
    return status === 0 && said !== null ? Number(said[1]) : undefined
  } finally {
    await server.stop()
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
