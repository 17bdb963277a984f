// Every test on the embedded database, then the domain tests again on a real PostgreSQL, then one closing line.
// `npm test -- versions secrets` runs the files whose names contain one of the words.
import { spawn } from 'node:child_process'
import { readdirSync } from 'node:fs'
import { basename, join } from 'node:path'
import { startPostgres, hasPostgres } from '../dist/test/helpers/postgres.js'

// These bring their own databases, or none: once is enough.
const ONCE = new Set(['architecture', 'config', 'crypto', 'database', 'documents', 'openapi', 'crash', 'rotation-crash', 'outage', 'tour', 'cli', 'migrations', 'docs', 'rules', 'encryption-doc', 'oauth-race', 'oauth-doc', 'browser', 'redirects', 'mail', 'tls', 'oauth-authorize', 'oauth-clients'])

const words = process.argv.slice(2)
const files = readdirSync('dist/test', { recursive: true })
  .filter((name) => name.endsWith('.test.js') && (words.length === 0 || words.some((word) => name.includes(word))))
  .map((name) => join('dist/test', name)).sort()
const nameOf = (file) => basename(file, '.test.js')

const totals = { passed: 0, failed: 0 }
let broken = false
await run('embedded database', files, {})
if (hasPostgres()) {
  const server = await startPostgres()
  await run('PostgreSQL', files.filter((file) => !ONCE.has(nameOf(file))), { TEST_DATABASE_URL: server.url })
  await server.close()
} else if (process.env.CI === 'true') {
  console.log('PostgreSQL is missing: install its programs (Debian: postgresql)')
  broken = true
} else console.log('PostgreSQL is not installed: only the embedded database was tested.')
console.log(`${totals.passed} passed, ${totals.failed} failed`)
process.exit(broken || totals.failed > 0 ? 1 : 0)

async function run (title, some, env) {
  if (some.length === 0) return
  console.log(`# ${title}`)
  const child = spawn(process.execPath, ['node_modules/.bin/tap', 'run', '--reporter=tap', '--jobs=2', '--timeout=560', '--disable-coverage', ...some], {
    env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'inherit']
  })
  let rest = ''
  let failing = false
  child.stdout.on('data', (chunk) => {
    const lines = (rest + chunk).split('\n')
    rest = lines.pop()
    for (const line of lines) show(line)
  })
  const status = await new Promise((resolve) => child.on('close', resolve))
  if (status !== 0) broken = true

  // A file is a subtest, its tests are one level down: those are counted. What failed is shown with its diagnostics.
  function show (line) {
    const [, indent, not, text] = /^( *)(not )?ok \d+ - (.*)$/.exec(line) ?? []
    if (text !== undefined) {
      failing = not !== undefined
      if (indent.length === 4) totals[not ? 'failed' : 'passed']++
      if (indent.length === 0) console.log(`${not ? '✗' : '✓'} ${text.replace(' {', '')}`)
    }
    if (failing && (text === undefined ? !/^ *(#|1\.\.)/.test(line) : not)) console.log(line)
  }
}
