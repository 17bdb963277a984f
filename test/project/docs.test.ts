// runs: no database
import { readdirSync, readFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import t from 'tap'
import { parse } from 'yaml'
import { loadConfig } from '../../src/config.ts'
import { PAGES, readDoc, variablesOfService } from '../helpers/docs.ts'
import { command } from '../helpers/process.ts'
import { SEVERAL_NODES } from '../helpers/several-nodes.ts'

const variables = readDoc('docs/operations/variables.md').table('| Variable | Default |')
const requirements = [...readFileSync('docs/security-requirements.md', 'utf8').matchAll(
  /^\| (?<id>[A-Z]{2}-\d+[a-z]?) \| .+ \| `(?<file>.+)` \| `(?<title>.+)` \|$/gm
)].map(({ groups }) => groups as { id: string, file: string, title: string })

t.test('every file that a page links to is there, and so is every heading; no page has a heading twice', async (t) => {
  for (const path of PAGES) t.same(readDoc(path).brokenLinks(), [], path)
  t.ok(PAGES.flatMap((path) => readDoc(path).links).length > 500)
  for (const path of PAGES.filter((path) => path !== 'CHANGELOG.md')) {
    const headings = readDoc(path).headings
    t.same(headings.filter((heading, i) => headings.indexOf(heading) !== i), [], path)
  }
})

t.test('the page of variables has every variable that is read, and no other', async (t) => {
  const inTable = variables.flatMap(([names = '']) => names.split(/, | or /))
  t.same(inTable.sort(), [...variablesOfService()].sort())
})

t.test('the defaults of that page are those of the service', async (t) => {
  const unset = loadConfig({})
  let compared = 0
  for (const [names = '', defaults = ''] of variables) {
    const [values, row] = [defaults.split(', '), names.split(', ')]
    // A default that is text is not a value: there is no default, or it depends on another variable.
    if (values.length !== row.length || /^none$| (?:of|in) |^the /.test(defaults)) continue
    for (const [i, name] of row.entries()) {
      t.same(loadConfig({ [name]: values[i] }), unset, `${name} is ${values[i]}`)
      compared++
    }
  }
  t.ok(compared > 10)
})

/** The commands of the help text with their options. */
async function listCommands () {
  const { stderr } = await command([])
  return [...stderr.matchAll(/^ {2}([a-z]+(?: [a-z][a-z-]*)?)((?: .*)?)$/gm)]
    .map(([, name = '', rest]) => ({ name, options: optionsIn(rest!) }))
}

t.test('the page of commands has every command with every option, and no other', async (t) => {
  const usage = await listCommands()
  const shown = readDoc('docs/operations/commands.md').table('| Command | What it does |').flatMap(([calls = '']) =>
    calls.split(', ').filter((call) => !call.startsWith('npm start')).map((call) => {
      const said = call.replace('npm run -s cli -- ', '')
      return { name: /^[a-z]+(?: [a-z][a-z-]*)?/.exec(said)![0], options: optionsIn(said) }
    }))
  const byName = (a: { name: string }, b: { name: string }) => a.name < b.name ? -1 : 1
  // The page uses `npm start` instead of `serve`.
  t.same(shown.sort(byName), usage.filter(({ name }) => name !== 'serve').sort(byName))
  t.ok(usage.some(({ name }) => name === 'serve'))
})

t.test('every command that a page names is one, with these options', async (t) => {
  const usage = new Map((await listCommands()).map(({ name, options }) => [name, options]))
  const nouns = new Set([...usage.keys()].filter((name) => name.includes(' ')).map((name) => name.split(' ')[0]!))
  // Code on the page that is not a command: a log message, and a list of words.
  const others = ['`audit anchor`', '`user organization organizations plans cli`']
  let checked = 0
  const wrong = PAGES.filter((path) => !path.startsWith('docs/decisions/')).flatMap((path) =>
    [...readFileSync(path, 'utf8').matchAll(/`(?:npm run -s cli -- |node dist\/src\/cli\.js )?([a-z]+)((?: [^`\n]+)?)`/g)]
      .filter(([, noun, rest]) => nouns.has(noun!) ? /^ [a-z]/.test(rest!) : usage.has(noun!) && rest !== '')
      .flatMap(([span, noun, rest]) => {
        checked++
        const known = usage.get(nouns.has(noun!) ? `${noun}${/^ [a-z-]+/.exec(rest!)![0]}` : noun!)
        const isKnown = known !== undefined && optionsIn(rest!).every((option) => known.includes(option))
        return isKnown || others.includes(span) ? [] : [`${path}: ${span}`]
      }))
  t.same(wrong, [])
  t.ok(checked > 100, `${checked} checked`)
})

t.test('every log line that the page names is one of the service', async (t) => {
  const source = filesIn('src').map((path) => readFileSync(path, 'utf8')).join('\n')
  const messages = readDoc('docs/operations/monitor.md').table('| `msg` | Meaning |')
    .flatMap(([names = '']) => names.split(', ')).map((name) => name.replace(/:? ?…$/, ''))
  t.ok(messages.length > 5)
  t.same(messages.filter((message) => !source.includes(message)), [])
})

t.test('README has at most 900 words, CONTRIBUTING 2,000, and a page for operators takes five minutes', async (t) => {
  const words = (path: string) => readFileSync(path, 'utf8').split(/\s+/).filter(Boolean).length
  t.ok(words('README.md') <= 900)
  t.ok(words('CONTRIBUTING.md') <= 2000)
  t.same(PAGES.filter((path) => path.startsWith('docs/operations/') && words(path) > 1300), [])
})

t.test('the page about encryption names requests and fields of the API', async (t) => {
  const { paths, components: { schemas } } = parse(readFileSync('openapi.yaml', 'utf8'))
  const rows = readDoc('docs/encryption.md').table('| Request | The client sends | The client gets |')
  t.ok(rows.length >= 10)
  const fields = new Set<string>()
  JSON.stringify(schemas, (_key, value) => {
    for (const name of Object.keys(value?.properties ?? {})) fields.add(name)
    return value
  })
  const page = readFileSync('docs/encryption.md', 'utf8')
  for (const [request = ''] of rows) {
    const [method = '', path = ''] = request.split(' ')
    const known = paths[`/api/v1/{organization}${path}`]
    t.ok(known?.[method.toLowerCase()], request)
  }
  const [, table] = page.split('| Request | The client sends | The client gets |')
  const named = [...table!.split('\n\n', 1)[0]!.matchAll(/`([a-z_]+)(?:: "\w+")?`/g)].map(([, name]) => name!)
  t.same(named.filter((name) => !fields.has(name) && name !== 'client'), [])
})

t.test('the README says what a target is, and the glossary has eight words, each with a meaning', async (t) => {
  t.match(readFileSync('README.md', 'utf8'), 'A target is a part of a project that is deployed by itself: a service, an app or a job.')
  const glossary = readDoc('docs/concepts.md').table('| Word | Meaning |')
  t.strictSame(glossary.map(([word]) => word), [
    'Organization', 'Project', 'Target', 'Environment', 'Level', 'Document', 'Version', 'Key string'
  ])
  t.strictSame(glossary.filter(([, meaning = '']) => meaning.split(' ').length < 4), [])
})

t.test('the page about scaling names the operations that use several nodes, and no other', async (t) => {
  const rows = readDoc('docs/scaling.md').table('| Operation | What it changes on each node |')
  t.same(rows, Object.entries(SEVERAL_NODES))
})

t.test('every script that a page names is one of the package', async (t) => {
  const { scripts } = JSON.parse(readFileSync('package.json', 'utf8'))
  const text = PAGES.map((path) => readFileSync(path, 'utf8')).join('\n')
  const named = new Set([...text.matchAll(/npm run (?:-s )?([a-z:]+)/g)].map(([, name]) => name!))
  t.ok(named.size > 3)
  for (const name of named) t.ok(Object.hasOwn(scripts, name), name)
})

t.test('every id and decision that code, tests and pages name is in the repository', async (t) => {
  const statements = readFileSync('docs/specification.md', 'utf8').split(/^## (?=\d)/m).slice(1).flatMap((section) =>
    [...section.matchAll(/^- \*\*(S-\d+\.\d+)\*\* /gm)].map(([, id = '']) => ({ id, section: section.split('.')[0] })))
  t.same(statements.filter(({ id, section }) => !id.startsWith(`S-${section}.`)), [], 'each is in its section')
  const ids = [...statements, ...requirements].map(({ id }) => id)
  t.equal(new Set(ids).size, ids.length, 'no id is given twice')
  t.ok(ids.length > 300)

  const decisions = new Set(readdirSync('docs/decisions').map((name) => name.slice(0, 4)))
  const pageNames = new Set(PAGES.map((path) => basename(path)))
  const code = ['src', 'schemas', 'test', 'bench', 'drizzle', 'examples'].flatMap(filesIn)
  const unknown = [...code, ...PAGES].flatMap((path) => {
    const text = readFileSync(path, 'utf8')
    const named = text.match(/\b(?:(?:OA|CR|TI|AU|RL|HT)-\d+[a-z]?|S-\d+\.\d+)\b/g) ?? []
    return [
      ...named.filter((id) => !ids.includes(id)),
      ...[...text.matchAll(/(?:\(|\bdecisions?[ /])(0\d{3})\b/g)].map(([, number]) => number!)
        .filter((number) => !decisions.has(number)),
      ...code.includes(path) ? (text.match(/[\w-]+\.md\b/g) ?? []).filter((name) => !pageNames.has(name)) : []
    ].map((name) => `${path}: ${name}`)
  })
  t.same(unknown, [])
})

t.test('the list of decisions has every record once, in order, with its title', async (t) => {
  const records = readdirSync('docs/decisions').filter((name) => name !== 'README.md').sort().map((name) => {
    const title = /^# (\d{4}) (.+)\n/.exec(readFileSync(`docs/decisions/${name}`, 'utf8'))
    return [title?.[1], `[${title?.[2]?.replaceAll('`', '')}](${name})`]
  })
  t.ok(records.length > 50)
  t.strictSame(readDoc('docs/decisions/README.md').table('| Number |').map((cells) => cells.slice(0, 2)), records)
})

t.test('every security requirement names a test that exists', async (t) => {
  const sources = new Map(filesIn('test').map((path) =>
    [basename(path), readFileSync(path, 'utf8').replaceAll("\\'", "'")]))
  t.same(requirements.filter(({ file, title }) => !sources.get(file)?.includes(title)), [])
})

/** The text files below a folder. */
function filesIn (folder: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' }).map((name) => join(folder, name))
    .filter((path) => /\.(?:md|mjs|py|sh|sql|ts|ya?ml)$/.test(path))
}

// The options in a text, each once. A usage repeats an option to show that it may be repeated.
function optionsIn (text: string): string[] {
  return [...new Set(text.match(/--[a-z-]+/g) ?? [])].sort()
}
