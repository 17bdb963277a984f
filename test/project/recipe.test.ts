// runs: no database; 35 s
import { execFile } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { promisify } from 'node:util'
import t, { type Test } from 'tap'
import { readDoc } from '../helpers/docs.ts'
import { LONG } from '../helpers/long.ts'

// Adds an endpoint with a new noun, following "Add an endpoint" of CONTRIBUTING.md. The example is labels of a project,
// with a table, three scopes and two events. The new files are in test/recipe/, with the extension `.txt`.

const COMMANDS = ['db:generate', 'openapi', 'build']
const TESTS = ['project/architecture', 'contract/contract', 'project/examples', 'levels/labels', 'access/tenants']
/** Folders that do not belong to the source. */
const ELSEWHERE = ['node_modules', 'dist', 'data', '.git']

const NEW = readdirSync('test/recipe', { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.txt'))
  .map((name) => name.replace(/\.txt$/, ''))

/** The insertions into existing files. Inserts `text` before or after the only line that matches. */
const INSERTIONS: Record<string, { before?: RegExp, after?: RegExp, text: string }[]> = {
  'schemas/scopes.ts': [
    {
      after: /^ {2}'environment:delete': /,
      text: "  'label:create': 'Create labels',\n  'label:read': 'View labels',\n  'label:delete': 'Delete labels',"
    },
    { after: /^ {2}environment: \{ heading: /, text: "  label: { heading: 'Labels', isInProject: true }," }
  ],
  'src/db/tables.ts': [{
    before: /^\/\*\* Groups of members with roles in projects/,
    text: `/** Labels of a project. */
export const labels = unauthenticated('Only shown')('labels', {
  ...ofOrganization,
  project_id: ulid().notNull(),
  name: name(),
  ...created
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.project_id, table.id] }), inProject('labels', table)
])
`
  }],
  'src/app.ts': [
    { after: /^import \{ invitations \} from /, text: "import { labels } from './plugins/labels.ts'" },
    { after: /^ {2}environments: \[/, text: "  labels: ['Labels of a project', labels]," }
  ],
  'CHANGELOG.md': [{
    after: /^## \[Unreleased\]/, text: '\n- Labels of a project: create, list and delete.'
  }]
}

// The folder must be below the project, because the compiler resolves the types of packages only from a folder above.
const tree = mkdtempSync(join('dist', 'recipe-'))
t.teardown(() => { rmSync(tree, { recursive: true, force: true }) })

function insert (file: string, { before, after, text }: { before?: RegExp, after?: RegExp, text: string }) {
  const path = join(tree, file)
  const lines = readFileSync(path, 'utf8').split('\n')
  const anchor = (before ?? after)!
  const found = lines.flatMap((line, i) => anchor.test(line) ? [i] : [])
  if (found.length !== 1) {
    throw new Error(`${file}: ${found.length} lines match ${anchor}. Correct INSERTIONS in test/project/recipe.test.ts`)
  }
  writeFileSync(path, lines.toSpliced(found[0]! + (before === undefined ? 1 : 0), 0, text).join('\n'))
}

// Removes the variables that a test run sets for its own processes.
const { NODE_OPTIONS: _, TEST_STATEMENTS: __, TEST_DATABASE_URL: ___, ...env } = process.env
const ENV = { ...env, TEST_RECIPE: 'true' }

/** Runs a program in the tree. If the program fails, the error contains the end of its output. */
async function succeeds (t: Test, program: string, ...args: string[]) {
  const { code, stdout, stderr } = await promisify(execFile)(program, args, { cwd: tree, env: ENV, maxBuffer: 2 ** 26 })
    .then((ended) => ({ ...ended, code: 0 }), (error: { code: unknown, stdout: string, stderr: string }) => error)
  t.equal(code, 0, `${program} ${args.join(' ')}: ${(stdout + stderr).slice(-8000)}`)
}

t.test('a new endpoint touches at most eight files, and CONTRIBUTING lists exactly these', async (t) => {
  const { text } = readDoc('CONTRIBUTING.md')
  const [, section = ''] = /^## Add an endpoint\n(.*?)^## /ms.exec(text) ?? []
  const listed = [...section.matchAll(/^\d+\. `([^`]+)`/gm)].map(([, file]) =>
    file!.replace('<subject>', 'levels').replace('<noun>', 'labels'))
  t.strictSame(listed.sort(), [...NEW, ...Object.keys(INSERTIONS)].sort())
  t.ok(listed.length > 0 && listed.length <= 8)
  for (const command of COMMANDS) t.match(section, `npm run ${command}`)
})

// Takes two minutes, so it runs only in the long form.
t.test('it then builds, and the tests over all routes and tables hold for it', {
  skip: !LONG && 'npm run test:proofs -- project/recipe builds and tests it'
}, async (t) => {
  for (const name of readdirSync('.').filter((name) => !ELSEWHERE.includes(name))) {
    cpSync(name, join(tree, name), { recursive: true })
  }
  symlinkSync(resolve('node_modules'), join(tree, 'node_modules'))
  // Copies the output of the last build, so that the compiler checks only the changes of the recipe.
  for (const name of readdirSync('dist').filter((name) => !/^(?:recipe|generated|image)-/.test(name))) {
    cpSync(join('dist', name), join(tree, 'dist', name), { recursive: true, preserveTimestamps: true })
  }
  for (const file of NEW) {
    mkdirSync(dirname(join(tree, file)), { recursive: true })
    cpSync(`test/recipe/${file}.txt`, join(tree, file))
  }
  for (const [file, insertions] of Object.entries(INSERTIONS)) {
    for (const insertion of insertions) insert(file, insertion)
  }
  for (const command of COMMANDS) await succeeds(t, 'npm', 'run', '-s', command)
  await succeeds(t, process.execPath, 'scripts/test.mjs', ...TESTS)
})
