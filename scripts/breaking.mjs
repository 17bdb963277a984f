// `npm run breaking`: fails when `openapi.yaml` breaks clients and nobody said so. It compares with the document of the
// last release tag; when there is none, with that of the commit where this branch left main, and on main with what it
// was before its last change; `-- --base REF` names another. A break is said by a commit of the document with `!` that
// adds a line to CHANGELOG.md: for what breaks after it, that takes another one.
//
// Exits with 0 when nothing breaks, when it is said, and when there is nothing to compare with; with 1 when it is not
// said, and with 2 when it could not be compared.
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'

const DOCUMENT = 'openapi.yaml'
const CHANGES = 'CHANGELOG.md'
const OASDIFF = 'github.com/oasdiff/oasdiff@v1.35.0'
// Otherwise than oasdiff has it: lists of words in answers (events, codes of errors) grow without breaking anybody, and
// a member that is gone breaks whoever reads it, also where it could be left out.
const LEVELS = 'response-property-enum-value-added info\nresponse-optional-property-removed err\n'
const ERROR = 3
// Fetched and compiled the first time.
const PATIENCE = 300_000

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
// What is shared breaks at each operation that has it.
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
      'run', OASDIFF, 'breaking', then, resolve(DOCUMENT), '--format', 'json', '--severity-levels', levels
    ], { cwd: dir, encoding: 'utf8', timeout: PATIENCE, maxBuffer: 1 << 26 })
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

// On main itself that is where one is.
function leftMain () {
  const here = git('rev-parse', 'HEAD')?.trim()
  const there = ['origin/main', 'main'].map((main) => git('merge-base', 'HEAD', main)?.trim())
  return there.find((commit) => commit !== undefined && commit !== here)
}

function beforeLastChange () {
  const last = git('log', '-1', '--format=%H', '--', DOCUMENT)?.trim()
  return git('rev-parse', '--verify', `${last}^`)?.trim()
}

// The newest commit that says that the document breaks.
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
