// `npm run breaking`: fails if `openapi.yaml` has unannounced breaking changes. Compares with the document at the last
// release tag; without a release, at the commit where this branch left main; on main, before the document's last
// change. `-- --base REF` sets another base. A commit announces the breaking changes up to itself if it changes the
// document, has `!` in its subject and adds a line to CHANGELOG.md.
//
// Exit code 0: no breaking change, all are announced, or there is no base. 1: unannounced breaking changes. 2: the
// documents could not be compared.
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'

const DOCUMENT = 'openapi.yaml'
const CHANGES = 'CHANGELOG.md'
const OASDIFF = 'github.com/oasdiff/oasdiff@v1.35.0'
// Differs from oasdiff's defaults: a new enum value in a response (an event, an error code) does not break clients, but
// a removed field of a response does, even an optional field.
const LEVELS = 'response-property-enum-value-added info\nresponse-optional-property-removed err\n'
const ERROR = 3
// Go downloads and compiles oasdiff the first time.
const OASDIFF_TIMEOUT_MS = 300_000

const { values } = parseArgs({ options: { base: { type: 'string' } } })
const now = readFileSync(DOCUMENT, 'utf8')
const base = values.base ?? lastRelease() ?? leftMain() ?? beforeLastChange()
if (base === undefined && git('rev-parse', '--is-shallow-repository')?.trim() === 'true') {
  end(2, 'Not compared: this clone has no history.')
}
if (base === undefined) end(0, `Nothing to compare with: no release tag, and no former ${DOCUMENT}.`)
const before = git('show', `${base}:${DOCUMENT}`)
if (before === undefined) {
  if (values.base === undefined) end(0, `Nothing to compare with: ${base} has no ${DOCUMENT}.`)
  end(2, `There is no ${DOCUMENT} in ${base}.`)
}
if (before === now) end(0, `${DOCUMENT} is as it was in ${base}.`)

const broken = compare(before)
if (broken.length === 0) end(0, `Nothing in ${DOCUMENT} breaks a client of ${base}.`)
const said = lastSaid()
const unsaid = said === undefined ? broken : compare(git('show', `${said}:${DOCUMENT}`))
// A change of a shared schema breaks each operation that uses the schema, so prints each text once.
for (const [what, places] of byWhat(unsaid.length === 0 ? broken : unsaid)) {
  console.log(`${places[0]}${places.length > 1 ? ` and ${places.length - 1} more` : ''}: ${what}`)
}
if (unsaid.length === 0) end(0, `${broken.length} that break clients of ${base}, and it is said.`)
end(1, `${unsaid.length} that break clients of ${base}, and nobody said so: it takes a commit of ${DOCUMENT} with "!" in ` +
  `its subject and a line in ${CHANGES}.`)

function compare (text) {
  if (text === now) return []
  const dir = mkdtempSync(join(tmpdir(), 'strongroom-breaking-'))
  try {
    const [then, levels] = [join(dir, DOCUMENT), join(dir, 'levels')]
    writeFileSync(then, text)
    writeFileSync(levels, LEVELS)
    const { error, status, stdout, stderr } = spawnSync('go', [
      'run', OASDIFF, 'breaking', then, resolve(DOCUMENT), '--format', 'json', '--severity-levels', levels,
      // Compares the parameters of paths as parameters of their operations.
      '--flatten-params'
    ], { cwd: dir, encoding: 'utf8', timeout: OASDIFF_TIMEOUT_MS, maxBuffer: 1 << 26 })
    if (error?.code === 'ENOENT') end(2, `Not compared: ${OASDIFF} does that, and takes Go, which is not installed.`)
    if (error !== undefined || status !== 0) {
      end(2, `Not compared: ${OASDIFF} did not run. ${error?.message ?? ''}${stderr}`)
    }
    return JSON.parse(stdout).filter(({ level }) => level === ERROR)
  } finally {
    rmSync(dir, { recursive: true })
  }
}

function byWhat (changes) {
  const places = new Map()
  for (const { operation, path, text, id } of changes) {
    const what = `${text} (${id})`
    places.set(what, [...places.get(what) ?? [], `${operation} ${path}`])
  }
  return places
}

function lastRelease () {
  return git('describe', '--tags', '--abbrev=0', '--match', 'v[0-9]*')?.trim()
}

// On main, the merge base is HEAD itself, which is skipped.
function leftMain () {
  const here = git('rev-parse', 'HEAD')?.trim()
  const there = ['origin/main', 'main'].map((main) => git('merge-base', 'HEAD', main)?.trim())
  return there.find((commit) => commit !== undefined && commit !== here)
}

function beforeLastChange () {
  const last = git('log', '-1', '--format=%H', '--', DOCUMENT)?.trim()
  return git('rev-parse', '--verify', `${last}^`)?.trim()
}

// The newest commit that announces breaking changes.
function lastSaid () {
  const commits = git('log', '--format=%H %s', `${base}..HEAD`, '--', DOCUMENT)?.split('\n') ?? []
  return commits
    .filter((line) => /^\w+ [a-z]+(?:\([^)]*\))?!: /.test(line)).map((line) => line.split(' ')[0])
    .find((commit) => /^\+- /m.test(git('show', '--format=', commit, '--', CHANGES) ?? ''))
}

function git (...args) {
  const { status, stdout } = spawnSync('git', args, {
    encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'], maxBuffer: 1 << 26
  })
  return status === 0 ? stdout : undefined
}

function end (code, text) {
  console[code === 0 ? 'log' : 'error'](text)
  process.exit(code)
}
