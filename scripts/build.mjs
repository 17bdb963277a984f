// Compiles into dist/ and adds bundled packages, the migrations and the template of the embedded database. Patches the
// database driver here and not in an install hook, so that `npm ci --ignore-scripts` and the container have the patch.
import '../src/node-version.mjs'
import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

const STAMP = 'dist/.built'
const SOURCES = ['schemas', 'src', 'test', 'bench', 'examples', 'drizzle', 'patches', 'console', 'cli']

export function build () {
  // Hides the long standard output. A changed patch does not apply to a package that has the old patch: see the advice.
  run('node_modules/.bin/patch-package', ['--error-on-fail'], 'ignore', 'patches/ does not fit what is installed: run npm ci')
  // The Go compiler takes a third of the time. The linter and `architecture.test` still need the JavaScript compiler.
  run('node_modules/typescript-native/bin/tsc', ['-p', 'tsconfig.json'])
  run('scripts/packages.mjs')
  run('scripts/openapi-3.0.mjs')
  // The console and the client are checked against openapi.yaml, so `npm run openapi` first builds without them.
  if (!process.argv.includes('--server')) {
    run('scripts/console-types.mjs')
    run('node_modules/typescript-native/bin/tsc', ['-p', 'console/tsconfig.json'])
    run('scripts/console.mjs')
    run('node_modules/typescript-native/bin/tsc', ['-p', 'cli/tsconfig.json'])
  }
  run('scripts/client.mjs')
  rmSync('dist/drizzle', { recursive: true, force: true })
  cpSync('drizzle', 'dist/drizzle', { recursive: true })
  // In a child process, because this process would keep the memory, and `npm start` serves in this process.
  run('scripts/template.mjs')
  writeFileSync(STAMP, '')
}

/** Builds if a source is newer than the last build. */
export function buildIfNeeded () {
  if (!existsSync(STAMP)) return buildWithMessage()
  const built = statSync(STAMP).mtimeMs
  const files = SOURCES.filter((folder) => existsSync(folder)).flatMap((folder) =>
    readdirSync(folder, { recursive: true }).map((name) => join(folder, name)))
  const others = ['package-lock.json', 'tsconfig.json', 'openapi.yaml', 'scripts/packages.mjs', 'scripts/openapi-3.0.mjs', 'scripts/console.mjs', 'scripts/console-types.mjs', 'scripts/client.mjs']
  if ([...files, ...others].some((file) => statSync(file).mtimeMs > built)) buildWithMessage()
}

// A build takes half a minute or more and prints nothing by itself.
function buildWithMessage () {
  console.error('Building the service. This takes about a minute.')
  build()
}

function run (script, args = [], stdout = 'inherit', advice = '') {
  const { status } = spawnSync(process.execPath, [script, ...args], { stdio: ['ignore', stdout, 'inherit'] })
  if (status === 0) return
  if (advice !== '') console.error(advice)
  process.exit(status ?? 1)
}

if (import.meta.filename === process.argv[1]) build()
