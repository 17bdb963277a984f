// Compiles into dist/ and lays some packages, the migrations and the template of the embedded database beside the code.
// The driver's patch is applied here and not in an install hook, so that it is also there after
// `npm ci --ignore-scripts` and in the container.
import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

const STAMP = 'dist/.built'
const SOURCES = ['schemas', 'src', 'test', 'bench', 'examples', 'drizzle', 'patches']

export function build () {
  // What it says, it says on standard output, at length, and each time. A patch that was changed fits no package that
  // has the one before.
  run('node_modules/.bin/patch-package', ['--error-on-fail'], 'ignore', 'patches/ does not fit what is installed: run npm ci')
  // The compiler in Go takes a third of the time. What reads code as a library (the linter, `architecture.test`) still
  // needs the one in JavaScript beside it.
  run('node_modules/typescript-native/bin/tsc', ['-p', 'tsconfig.json'])
  run('scripts/packages.mjs')
  run('scripts/openapi-3.0.mjs')
  rmSync('dist/drizzle', { recursive: true, force: true })
  cpSync('drizzle', 'dist/drizzle', { recursive: true })
  // In a process of its own: what it takes in memory, this one would keep, and `npm start` serves in it.
  run('scripts/template.mjs')
  writeFileSync(STAMP, '')
}

/** Builds when a source is newer than the last build. */
export function buildIfNeeded () {
  if (!existsSync(STAMP)) return build()
  const built = statSync(STAMP).mtimeMs
  const files = SOURCES.filter((folder) => existsSync(folder)).flatMap((folder) =>
    readdirSync(folder, { recursive: true }).map((name) => join(folder, name)))
  const others = ['package-lock.json', 'tsconfig.json', 'openapi.yaml', 'scripts/packages.mjs', 'scripts/openapi-3.0.mjs']
  if ([...files, ...others].some((file) => statSync(file).mtimeMs > built)) build()
}

function run (script, args = [], stdout = 'inherit', advice = '') {
  const { status } = spawnSync(process.execPath, [script, ...args], { stdio: ['ignore', stdout, 'inherit'] })
  if (status === 0) return
  if (advice !== '') console.error(advice)
  process.exit(status ?? 1)
}

if (import.meta.filename === process.argv[1]) build()
