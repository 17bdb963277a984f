// runs: no database; 7 s
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join, resolve } from 'node:path'
import t from 'tap'
import { LONG } from '../helpers/long.ts'

// Tests the gate for breaking changes in temporary repositories. The long form downloads and compiles oasdiff. The
// short form has no time for that, so it uses oasdiff from the Go module cache.

const GATE = resolve('scripts/breaking.mjs')
const [OASDIFF = ''] = /github\.com\/oasdiff\/oasdiff@v[\d.]+/.exec(readFileSync(GATE, 'utf8'))!
const kept = (spawnSync('go', ['env', 'GOMODCACHE'], { encoding: 'utf8' }).stdout ?? '').trim()
const env = { ...process.env, ...(!LONG && { GOPROXY: `file://${kept}/cache/download` }) }
const isThere = spawnSync('go', ['run', OASDIFF, '--version'], {
  cwd: tmpdir(), env, ...(!LONG && { timeout: 10_000 })
}).status === 0
const skip = isThere ? false : `oasdiff is not there: \`go run ${OASDIFF} --version\` fetches it`

const MEMBERS = { id: { type: 'string' }, name: { type: 'string' } }
const WORDS = { type: 'string', enum: ['one', 'two'] }

/** A document with one operation, whose response has these members. */
const answering = (properties: object) => JSON.stringify({
  openapi: '3.1.0',
  info: { title: 'Small', version: '1' },
  paths: {
    '/things': {
      get: {
        operationId: 'getThing',
        responses: {
          200: {
            description: 'Done',
            content: { 'application/json': { schema: { type: 'object', required: ['id'], properties } } }
          }
        }
      }
    }
  }
})

/** A repository whose first commit has this document, and a function `then` for the second commit. */
function repository (t: { teardown (fn: () => unknown): void }, members: object = MEMBERS) {
  const dir = mkdtempSync(join(tmpdir(), 'strongroom-breaking-'))
  t.teardown(() => rmSync(dir, { recursive: true }))
  const git = (...args: string[]) => {
    const { status, stderr } = spawnSync('git', ['-c', 'user.name=Rosa', '-c', 'user.email=rosa@nimbus.example', ...args], {
      cwd: dir, encoding: 'utf8'
    })
    if (status !== 0) throw new Error(stderr)
  }
  const write = (file: string, text: string) => writeFileSync(join(dir, file), text)
  const commit = (subject: string) => {
    git('add', '.')
    git('commit', '--quiet', '--message', subject)
  }
  git('init', '--quiet', '--initial-branch', 'main')
  write('openapi.yaml', answering(members))
  write('CHANGELOG.md', '# Changelog\n')
  commit('feat: the first')
  return {
    dir,
    git,
    write,
    commit,
    gate: (args: string[] = [], more: Record<string, string> = {}, cwd = dir) => {
      const { status, stdout, stderr } = spawnSync(process.execPath, [GATE, ...args], {
        cwd, encoding: 'utf8', env: { ...env, ...more }
      })
      return { status, said: stdout + stderr }
    }
  }
}

t.test('a member that is gone is found, unless a commit with ! and a line of the change log say so', { skip }, async (t) => {
  const { git, write, commit, gate } = repository(t)
  git('tag', 'v1.0.0')
  write('openapi.yaml', answering({ id: MEMBERS.id }))
  commit('feat(things): fewer members')
  t.match(gate(), {
    status: 1, said: /GET \/things: removed the optional property `name`.*\n.*takes a commit.*and a line in CHANGELOG/s
  })
  write('CHANGELOG.md', '# Changelog\n\n- Things have no `name`.\n')
  commit('docs: say it')
  t.match(gate(), { status: 1, said: /it takes a commit of openapi\.yaml with "!" in its subject/ })
  write('openapi.yaml', answering({ id: { ...MEMBERS.id, description: 'who it is' } }))
  commit('feat(things)!: no name')
  t.match(gate(), { status: 1, said: /and a line in CHANGELOG\.md\.$/m }, 'the line is of the commit that says it')
  write('CHANGELOG.md', '# Changelog\n\n- Things have no `name` any more.\n')
  git('add', '.')
  git('commit', '--quiet', '--amend', '--no-edit')
  t.match(gate(), { status: 0, said: /removed the optional property `name`.*and it is said/s })
})

t.test('what breaks after a break that was said has to be said, too', { skip }, async (t) => {
  const { git, write, commit, gate } = repository(t, { ...MEMBERS, word: WORDS })
  git('tag', 'v1.0.0')
  write('openapi.yaml', answering({ id: MEMBERS.id, word: WORDS }))
  write('CHANGELOG.md', '# Changelog\n\n- Things have no `name`.\n')
  commit('feat(things)!: no name')
  t.match(gate(), { status: 0 })
  write('openapi.yaml', answering({ id: MEMBERS.id }))
  write('CHANGELOG.md', '# Changelog\n\n- Things have no `name`.\n- Quicker.\n')
  commit('feat(things): no word')
  t.match(gate(), { status: 1, said: /^GET \/things: removed the optional property `word`[^\n]*\n1 that break/ })
})

t.test('an operation that takes another scope breaks whose token has the former one', { skip }, async (t) => {
  const { write, commit, gate } = repository(t)
  const secured = (scope: string) => {
    const { paths, ...rest } = JSON.parse(answering(MEMBERS))
    paths['/things'].get.security = [{ oauth: [scope] }]
    const flow = { tokenUrl: '/token', authorizationUrl: '/authorize', scopes: { 'thing:read': '', 'thing:write': '' } }
    const securitySchemes = { oauth: { type: 'oauth2', flows: { authorizationCode: flow } } }
    return JSON.stringify({ ...rest, paths, components: { securitySchemes } })
  }
  write('openapi.yaml', secured('thing:read'))
  commit('feat(things): a scope')
  write('openapi.yaml', secured('thing:write'))
  commit('feat(things): another scope')
  t.match(gate(), { status: 1, said: /GET \/things: .*scope/ })
})

t.test('what is added breaks nothing: a member, or a word of an answer', { skip }, async (t) => {
  const { write, commit, gate } = repository(t, { ...MEMBERS, word: WORDS })
  write('openapi.yaml', answering({ ...MEMBERS, color: MEMBERS.name, word: { ...WORDS, enum: [...WORDS.enum, 'three'] } }))
  commit('feat(things): colors')
  t.match(gate(['--base', 'HEAD~1']), { status: 0, said: /^Nothing in openapi\.yaml breaks a client/ })
  write('openapi.yaml', answering({ ...MEMBERS, word: { type: 'integer' } }))
  t.match(gate(['--base', 'HEAD~1']), { status: 1, said: /word/ }, 'what is not committed yet counts')
})

t.test('without a release tag a branch is compared with where it left main', { skip }, async (t) => {
  const { git, write, commit, gate } = repository(t)
  git('switch', '--quiet', '--create', 'branch')
  write('openapi.yaml', answering({}))
  commit('feat(things): none')
  t.match(gate(), { status: 1, said: /GET \/things: removed the required property `id`/ })
})

t.test('without a release tag main is compared with what it was before its last change', { skip }, async (t) => {
  const { write, commit, gate } = repository(t)
  write('openapi.yaml', answering({}))
  commit('feat(things): none')
  write('README.md', 'Things\n')
  commit('docs: things')
  t.match(gate(), { status: 1, said: /GET \/things: removed the required property `id`/ })
})

t.test('where there is nothing to compare with, that is what it says, and it passes', async (t) => {
  const { gate } = repository(t)
  t.match(gate(), { status: 0, said: /^Nothing to compare with: no release tag/ })
  t.match(gate(['--base', 'HEAD']), { status: 0, said: /^openapi\.yaml is as it was in HEAD\./ })
  t.match(gate(['--base', 'nothing']), { status: 2, said: /^There is no openapi\.yaml in nothing\./ })
})

t.test('without history it says that nothing was compared, and does not pass', async (t) => {
  const { dir, write, commit, gate } = repository(t)
  write('openapi.yaml', answering({}))
  commit('feat(things): none')
  const shallow = mkdtempSync(join(tmpdir(), 'strongroom-breaking-'))
  t.teardown(() => rmSync(shallow, { recursive: true }))
  spawnSync('git', ['clone', '--quiet', '--depth', '1', `file://${dir}`, shallow])
  t.match(gate([], {}, shallow), { status: 2, said: /^Not compared: this clone has no history/ })
})

t.test('without Go it says that nothing was compared, and does not pass', async (t) => {
  const { write, commit, gate } = repository(t)
  write('openapi.yaml', answering({}))
  commit('feat(things): none')
  const bin = mkdtempSync(join(tmpdir(), 'strongroom-bin-'))
  t.teardown(() => rmSync(bin, { recursive: true }))
  const path = (process.env.PATH ?? '').split(delimiter)
  const gitAt = path.map((dir) => join(dir, 'git')).find((file) => spawnSync(file, ['--version']).status === 0)!
  symlinkSync(gitAt, join(bin, 'git'))
  t.match(gate(['--base', 'HEAD~1'], { PATH: bin }), { status: 2, said: /^Not compared: .*takes Go, which is not installed/ })
})
