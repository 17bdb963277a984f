// runs: no database
import { readFileSync, readdirSync } from 'node:fs'
import { basename, dirname, join, normalize } from 'node:path'
import t from 'tap'
import ts from 'typescript'

interface Floor {
  /** Folders of this project that its files may import, in addition to their own folder. */
  house: readonly string[]
  /**
   * Packages that its files may import; after `type ` only their types. `node:` is all of Node.js except its
   * cryptography.
   */
  packages: readonly string[]
}

const UP_TO_DB = ['schemas', 'src/config.ts', 'src/gate.ts', 'src/telemetry', 'src/rules', 'src/crypto', 'src/db']
const UP_TO_REPOSITORIES = [...UP_TO_DB, 'src/repositories']
const UP_TO_HTTP = [
  ...UP_TO_REPOSITORIES, 'src/mail', 'src/outgoing', 'src/workloads', 'src/vault', 'src/changes', 'src/jobs', 'src/http',
  'src/billing'
]
const ALL = [...UP_TO_HTTP, 'src/plugins', 'src/app.ts', 'src/commands']

/** The allowed imports, from the lowest layer to the highest. Every source file must be in one of these places. */
const FLOORS: Record<string, Floor> = {
  schemas: { house: [], packages: ['@sinclair/typebox'] },
  'src/config.ts': {
    house: ['schemas', 'src/telemetry'], packages: ['@sinclair/typebox', 'fastest-levenshtein', 'node:']
  },
  'src/gate.ts': { house: [], packages: [] },
  'src/version.ts': { house: [], packages: ['node:'] },
  'src/telemetry': { house: [], packages: ['@opentelemetry', 'prom-client', 'node:'] },
  'src/rules': { house: ['schemas'], packages: ['@sinclair/typebox', 'dotenv', 'fastest-levenshtein', 'node:url', 'yaml'] },
  // What the console and the command line client share: only what a browser has too.
  'src/client': { house: [], packages: [] },
  'src/crypto': {
    house: ['src/gate.ts', 'src/telemetry'],
    packages: ['age-encryption', 'node:crypto', 'node:util', 'node:zlib', 'lru-cache', 'oslo']
  },
  'src/db': {
    house: ['schemas', 'src/gate.ts', 'src/telemetry'],
    packages: ['drizzle-orm', 'postgres', '@electric-sql/pglite', 'tar', 'node:']
  },
  'src/repositories': { house: ['schemas', 'src/rules', 'src/db'], packages: ['drizzle-orm', 'lru-cache'] },
  'src/vault': { house: UP_TO_REPOSITORIES, packages: ['lru-cache', 'ulidx', 'type node:crypto'] },
  // Begins the transactions that change data.
  'src/changes': { house: [...UP_TO_REPOSITORIES, 'src/vault'], packages: ['drizzle-orm', 'type node:crypto'] },
  'src/jobs': { house: [...UP_TO_REPOSITORIES, 'src/mail', 'src/outgoing', 'src/vault', 'src/changes'], packages: [] },
  'src/billing': { house: [...UP_TO_REPOSITORIES, 'src/vault', 'src/changes', 'src/jobs/background.ts'], packages: ['ulidx'] },
  'src/http': {
    house: [...UP_TO_REPOSITORIES, 'src/mail', 'src/workloads', 'src/version.ts'],
    packages: [
      'fastify', '@fastify', '@sinclair/typebox', 'ioredis', 'lru-cache', 'pino', 'uqr', 'yaml', 'node:'
    ]
  },
  'src/plugins': { house: UP_TO_HTTP, packages: ['type fastify', '@sinclair/typebox', 'ulidx', 'type node:crypto'] },
  'src/app.ts': { house: [...UP_TO_HTTP, 'src/plugins'], packages: ['fastify', '@fastify', 'ulidx', 'node:'] },
  'src/mail': { house: ['src/config.ts', 'src/gate.ts', 'src/rules'], packages: ['lru-cache', 'nodemailer'] },
  // The only requests to URLs that users choose.
  'src/outgoing': { house: ['src/config.ts', 'src/gate.ts'], packages: ['ipaddr.js', 'undici', 'node:'] },
  'src/workloads': {
    house: ['schemas', 'src/gate.ts', 'src/rules', 'src/crypto', 'src/outgoing'], packages: ['jose', 'lru-cache']
  },
  'src/commands': {
    house: [...UP_TO_HTTP, 'src/app.ts', 'src/version.ts'],
    packages: ['@sinclair/typebox', 'cli-progress', 'ulidx', 'type fastify', 'node:']
  },
  'src/cli.ts': { house: [...ALL, 'src/node-version.mjs'], packages: ['node:'] }
}

/** Layers whose files must not import each other, or only types of each other. */
const APART: Record<string, 'types' | 'nothing'> = { 'src/repositories': 'types', 'src/plugins': 'nothing' }

/**
 * Files that may read the environment and end the process: the command line, `serve` if a close cannot wait, and a
 * worker, where `process.exit` ends only the thread.
 */
const PROCESS: Record<string, string[]> = {
  'process.env': ['src/cli.ts'],
  'process.exit': [
    'src/cli.ts', 'src/commands/common/scratch.ts', 'src/commands/serve/serve.ts', 'src/commands/serve/supervise.ts',
    'src/db/embedded/embedded-worker.ts'
  ]
}

/** Files that wait in real time. Every other wait for the database pauses during a long operation. */
const REAL_TIMERS = [
  'src/db/postgres/wait-clock.ts', 'src/db/postgres/guard.ts', 'src/db/database.ts', 'src/db/embedded/lock.ts',
  'src/db/embedded/embedded.ts', 'src/db/embedded/requests.ts', 'src/db/migrate.ts', 'src/jobs/background.ts',
  'src/jobs/round-robin.ts'
]

interface Import { from: string, typeOnly: boolean }

const floorOf = (path: string) => Object.keys(FLOORS).find((floor) => path === floor || path.startsWith(`${floor}/`))
const lies = (path: string, place: string) => path === place || path.startsWith(`${place}/`)

const parsed = new Map<string, ts.SourceFile>()
function parse (path: string, source: string): ts.SourceFile {
  const known = parsed.get(path)
  if (known?.text === source) return known
  const file = ts.createSourceFile(path, source, ts.ScriptTarget.ES2023, true)
  parsed.set(path, file)
  return file
}

function walk (node: ts.Node, visit: (node: ts.Node) => void): void {
  visit(node)
  node.forEachChild((child) => { walk(child, visit) })
}

function importsOf (file: ts.SourceFile): Import[] {
  const found: Import[] = []
  walk(file, (node) => {
    if (ts.isImportDeclaration(node) && ts.isStringLiteral(node.moduleSpecifier)) {
      const { importClause } = node
      const named = importClause?.namedBindings
      const onlyTypes = named !== undefined && ts.isNamedImports(named) && importClause?.name === undefined &&
        named.elements.every(({ isTypeOnly }) => isTypeOnly)
      found.push({ from: node.moduleSpecifier.text, typeOnly: (importClause?.isTypeOnly ?? false) || onlyTypes })
    } else if (ts.isExportDeclaration(node) && node.moduleSpecifier !== undefined &&
      ts.isStringLiteral(node.moduleSpecifier)) {
      found.push({ from: node.moduleSpecifier.text, typeOnly: node.isTypeOnly })
    } else if (ts.isCallExpression(node) && node.expression.kind === ts.SyntaxKind.ImportKeyword) {
      const [specifier] = node.arguments
      found.push({
        from: specifier !== undefined && ts.isStringLiteral(specifier) ? specifier.text : 'a computed name',
        typeOnly: false
      })
    } else if (ts.isImportTypeNode(node) && ts.isLiteralTypeNode(node.argument) &&
      ts.isStringLiteral(node.argument.literal)) {
      found.push({ from: node.argument.literal.text, typeOnly: true })
    }
  })
  return found
}

function wallBreaches (path: string, source: string): string[] {
  const floor = floorOf(path)
  if (floor === undefined) return [`${path} lies on no floor`]
  const { house, packages } = FLOORS[floor]!
  return importsOf(parse(path, source)).flatMap(({ from, typeOnly }) => {
    if (from.startsWith('.')) {
      const to = normalize(join(dirname(path), from))
      if (lies(to, floor)) {
        // A protocol with several endpoints has a folder, whose files together are one plugin.
        const apart = [path, to].every((file) => lies(file, 'src/plugins/oauth')) ? undefined : APART[floor]
        return apart === 'nothing' || (apart === 'types' && !typeOnly) ? [`${path} imports its neighbour ${to}`] : []
      }
      return house.some((place) => lies(to, place)) ? [] : [`${path} imports ${to}`]
    }
    const allowed = packages.some((one) => one === 'node:'
      ? from.startsWith('node:') && from !== 'node:crypto'
      : lies(from, one.replace(/^type /, '')) && (typeOnly || !one.startsWith('type ')))
    return allowed ? [] : [`${path} imports ${typeOnly ? 'types of ' : ''}the package ${from}`]
  })
}

// Commands have functions of these names for other purposes.
const ROAD = /^(?:change|changeLong|changeLongIf|changeThatCreates)$/

/** The functions that are members of object literals, by name. */
function functionsNamed (node: ts.Node, name: RegExp): (ts.MethodDeclaration | ts.ArrowFunction)[] {
  const found: (ts.MethodDeclaration | ts.ArrowFunction)[] = []
  walk(node, (inner) => {
    if (ts.isMethodDeclaration(inner) && name.test(inner.name.getText())) found.push(inner)
    if (ts.isPropertyAssignment(inner) && name.test(inner.name.getText()) && ts.isArrowFunction(inner.initializer)) {
      found.push(inner.initializer)
    }
  })
  return found
}

// `decide` returns everything: a variable of an outer scope would keep the value of a transaction that was undone.
function decideBreaches (path: string, source: string): string[] {
  return functionsNamed(parse(path, source), /^decide$/).flatMap((decide) => {
    const own = new Set<string>()
    const set: string[] = []
    walk(decide, (node) => {
      const isDeclared = ts.isVariableDeclaration(node) || ts.isParameter(node) || ts.isBindingElement(node)
      if (isDeclared && ts.isIdentifier(node.name)) own.add(node.name.text)
      const isAssignment = ts.isBinaryExpression(node) && node.operatorToken.kind >= ts.SyntaxKind.FirstAssignment &&
        node.operatorToken.kind <= ts.SyntaxKind.LastAssignment
      if (isAssignment && ts.isIdentifier(node.left)) set.push(node.left.text)
    })
    return set.filter((name) => !own.has(name)).map((name) => `${path} sets ${name}, which is outside of decide`)
  })
}

// Files that begin transactions: migrations, placement and read-only snapshots, and savepoints of a transaction. All
// others that change data begin in src/changes.
const BEGINS = [
  'src/changes/transaction.ts', 'src/db/database.ts', 'src/db/migrate.ts', 'src/db/rows/authority.ts'
]

// Inside a transaction, `db` is the transaction. Code that uses the outer handle reads and writes outside of the
// transaction.
function transactionBreaches (path: string, source: string): string[] {
  const breaches: string[] = []
  walk(parse(path, source), (node) => {
    if (!ts.isCallExpression(node)) return
    const { expression } = node
    if (ts.isPropertyAccessExpression(expression) && expression.name.text === 'transaction' &&
      !BEGINS.includes(path)) {
      breaches.push(`${path} begins a transaction past transaction() of src/changes/transaction.ts`)
    }
    if (expression.getText() === 'transaction' && /^src\/(?:plugins|http)\//.test(path) && node.arguments.length < 3) {
      breaches.push(`${path} begins a transaction without its request, which has one deadline`)
    }
    if (expression.getText() === 'transaction' && path.startsWith('src/http/')) {
      breaches.push(`${path} begins a transaction, which is for src/changes`)
    }
    if (!ts.isIdentifier(expression)) return
    const isOfRoad = ROAD.test(expression.text) && path.startsWith('src/plugins/')
    if (expression.text !== 'transaction' && !isOfRoad) return
    const own = node.arguments.filter((argument) => ts.isArrowFunction(argument) || ts.isFunctionExpression(argument))
    for (const callback of [...own, ...functionsNamed(node, /^(?:load|write)$/)]) {
      const isWithoutHandle = callback.parameters.length === 0 && !own.includes(callback as never)
      if (callback.body === undefined || isWithoutHandle) continue
      if (callback.parameters[0]?.name.getText() !== 'db') {
        breaches.push(`${path} does not call the handle of its transaction db`)
      }
      walk(callback.body, (inner) => {
        if (ts.isPropertyAccessExpression(inner) &&
          /^(?:app|database|opened\.database)\.(?:db|reads|lists|pages|background|patient)$/.test(inner.getText())) {
          breaches.push(`${path} uses ${inner.getText()} inside a transaction`)
        }
      })
    }
  })
  return breaches
}

function processBreaches (path: string, source: string): string[] {
  const breaches: string[] = []
  walk(parse(path, source), (node) => {
    const word = ts.isPropertyAccessExpression(node) && /^process\.(?:env|exit)$/.test(node.getText())
      ? node.getText()
      : undefined
    if (word !== undefined && !PROCESS[word]!.includes(path)) breaches.push(`${path} uses ${word}`)
  })
  return breaches
}

function timerBreaches (path: string, source: string): string[] {
  if (!/^src\/(?:db|vault|repositories|changes|jobs)\//.test(path) || REAL_TIMERS.includes(path)) return []
  const breaches: string[] = []
  walk(parse(path, source), (node) => {
    if (ts.isIdentifier(node) && /^set(?:Timeout|Interval)$/.test(node.text)) breaches.push(`${path} uses ${node.text}`)
  })
  return breaches
}

const files = ['schemas', 'src']
  .flatMap((folder) => readdirSync(folder, { recursive: true }).map((name) => join(folder, String(name))))
  .filter((path) => path.endsWith('.ts'))
  .map((path) => ({ path, source: readFileSync(path, 'utf8') }))
const breachesOf = (check: (path: string, source: string) => string[]) =>
  files.flatMap(({ path, source }) => check(path, source))

t.test('imports go down only, never sideways, and each package stays on its floors', async (t) => {
  t.ok(files.length > 50, 'the whole tree was read')
  t.strictSame(breachesOf(wallBreaches), [])
})

// Cyclic imports between files, including types. A reader of one file of a cycle must first read the whole cycle.
function circles (imports: ReadonlyMap<string, readonly string[]>): string[] {
  const found: string[] = []
  const ended = new Set<string>()
  const visit = (path: string, way: string[]) => {
    if (way.includes(path)) found.push([...way.slice(way.indexOf(path)), path].join(' > '))
    else if (!ended.has(path)) for (const next of imports.get(path) ?? []) visit(next, [...way, path])
    ended.add(path)
  }
  for (const path of imports.keys()) visit(path, [])
  return found
}

t.test('no file imports itself in a circle, not even a type', async (t) => {
  const own = files.map(({ path, source }) => [path, importsOf(parse(path, source))
    .flatMap(({ from }) => from.startsWith('.') ? normalize(join(dirname(path), from)) : [])] as const)
  t.strictSame(circles(new Map(own)), [])
  t.same(circles(new Map([['a', ['b']], ['b', ['c']], ['c', ['b']]])), ['b > c > b'])
})

/** The maximum number of files in one folder, so that a newcomer can read all their names. */
const MAX_FILES = 15

t.test('no folder of src has more than fifteen files', async (t) => {
  const counts = new Map<string, number>()
  for (const { path } of files) counts.set(dirname(path), (counts.get(dirname(path)) ?? 0) + 1)
  t.strictSame([...counts].filter(([folder, count]) => folder.startsWith('src') && count > MAX_FILES), [])
})

const SHORT = 30
const MAX_SHORT_FILES = 25
// Short files that stay by themselves although one file imports them: generated, a plugin, or imported on demand.
const ALONE = [
  'src/rules/formats/route-words.ts', 'src/plugins/cli.ts', 'src/commands/keys/key.ts',
  'src/commands/serve/openapi-command.ts'
]

t.test('short files are few, and one that a single file imports is a part of that file', async (t) => {
  const importers = new Map<string, number>()
  for (const { path, source } of files) {
    const imported = importsOf(parse(path, source)).map(({ from }) => normalize(join(dirname(path), from)))
    for (const one of new Set(imported)) importers.set(one, (importers.get(one) ?? 0) + 1)
  }
  const short = files.filter(({ path, source }) => path.startsWith('src/') && source.split('\n').length <= SHORT)
    .map(({ path }) => path)
  t.ok(short.length <= MAX_SHORT_FILES, `${short.length} files have fewer than ${SHORT} lines`)
  t.strictSame(short.filter((path) => importers.get(path) === 1).sort(), ALONE.toSorted())
  t.ok(files.filter(({ path }) => basename(path) === 'errors.ts').length <= 1, 'file names say which errors')
})

// These pronouns mean people. Comments, names and messages must name the process, row or caller.
const VAGUE = /\b(?:nobody|whoever|somebody|anybody)\b/i

t.test('comments, names and messages of src and schemas name the thing instead of an indefinite person', async (t) => {
  const files = ['src', 'schemas'].flatMap((folder) => readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.ts')).map((name) => `${folder}/${name}`))
  t.ok(files.length > 200)
  t.strictSame(files.filter((file) => VAGUE.test(readFileSync(file, 'utf8'))), [])
})

t.test('the folders of a layer do not import each other in a circle', async (t) => {
  // The unit of a file: its folder in a layer, or the file itself if it is beside the folders.
  const unitOf = (path: string) => path.split('/').slice(0, 3).join('/')
  const layerOf = (path: string) => path.split('/').slice(0, 2).join('/')
  const imports = new Map<string, string[]>()
  for (const { path, source } of files.filter(({ path }) => path.startsWith('src/'))) {
    const others = importsOf(parse(path, source)).flatMap(({ from }) => {
      const to = from.startsWith('.') ? normalize(join(dirname(path), from)) : ''
      return layerOf(to) === layerOf(path) && unitOf(to) !== unitOf(path) ? [unitOf(to)] : []
    })
    imports.set(unitOf(path), [...imports.get(unitOf(path)) ?? [], ...others])
  }
  t.strictSame(circles(imports), [])
})

t.test('inside a transaction the outer handle is not used, and decide sets no outer variable', async (t) => {
  t.strictSame(breachesOf(transactionBreaches), [])
  t.strictSame(breachesOf(decideBreaches), [])
})

t.test('only the command line reads the environment, and ends the process', async (t) => {
  t.strictSame(breachesOf(processBreaches), [])
})

t.test('a wait for the database is timed by the clock that stands still during long operations', async (t) => {
  t.strictSame(breachesOf(timerBreaches), [])
  t.strictSame(timerBreaches('src/vault/other.ts', 'setTimeout(() => {}, 1)'), ['src/vault/other.ts uses setTimeout'])
})

t.test('the section about caches in CONTRIBUTING names each file with an LRUCache', async (t) => {
  const [, caches = ''] = /^## Caches\n(.*?)^## /ms.exec(readFileSync('CONTRIBUTING.md', 'utf8')) ?? []
  const holders = files.filter(({ source }) => source.includes('new LRUCache')).map(({ path }) => path.slice('src/'.length))
  t.strictSame(holders.filter((path) => !caches.includes(`\`${path}\``)), [])
})

t.test('no file only hands on what others export', async (t) => {
  const barrels = files.filter(({ path, source }) => {
    const { statements } = parse(path, source)
    return statements.length > 0 && statements.every((statement) => ts.isExportDeclaration(statement))
  })
  t.strictSame(barrels.map(({ path }) => path), [])
})

t.test('the checker reports a breach of each kind', async (t) => {
  const walls: [path: string, source: string][] = [
    ['src/utils/strings.ts', ''],
    ['schemas/projects.ts', "import { fail } from '../../src/rules/api-error.ts'"],
    ['src/rules/formats/slugs.ts', "import { hashToken } from '../../crypto/bearer.ts'"],
    ['src/crypto/bearer.ts', "import type { Scope } from '../../schemas/scopes.ts'"],
    ['src/db/tables.ts', "export { fail } from '../rules/api-error.ts'"],
    ['src/repositories/people/tokens.ts', "import { hashToken } from '../../crypto/bearer.ts'"],
    ['src/repositories/people/tokens.ts', "import { storageKeyOf } from '../../vault/keys/keys.ts'"],
    ['src/repositories/people/tokens.ts', "import { findProject } from './projects.ts'"],
    ['src/repositories/people/tokens.ts', "const late = await import('./projects.ts')"],
    ['src/vault/keys/keys.ts', "import { principalOf } from '../../http/routes/actor.ts'"],
    ['src/vault/keys/keys.ts', "import { randomBytes } from 'node:crypto'"],
    ['src/http/guard/access.ts', "import { dataKeyOf } from '../../vault/keys/keys.ts'"],
    ['src/plugins/people/tokens.ts', "import type { x } from './members.ts'"],
    ['src/plugins/people/tokens.ts', "import Fastify from 'fastify'"],
    ['src/plugins/people/tokens.ts', "import { sql } from 'drizzle-orm'"],
    ['src/http/observability/log.ts', "import { createHmac } from 'node:crypto'"],
    ['src/repositories/people/tokens.ts', "import { readFileSync } from 'node:fs'"],
    ['src/plugins/people/members.ts', "import { createTransport } from 'nodemailer'"],
    ['src/mail/messages.ts', "import type { User } from '../repositories/users.ts'"],
    ['src/commands/serve/serve.ts', "import { main } from '../../cli.ts'"]
  ]
  for (const [path, source] of walls) t.equal(wallBreaches(path, source).length, 1, `${path}: ${source}`)
  t.strictSame(wallBreaches(
    'src/repositories/people/tokens.ts', "import type { Row } from './projects.ts'\nimport { type Other } from './places.ts'"
  ), [])

  const transactions = [
    'transaction(app.db, async (db) => { await find(app.db) }, request)',
    'transaction(app.db, async (db) => { await find(app.reads) }, request)',
    'transaction(app.db, async (tx) => { await find(tx) }, request)',
    'transaction(app.db, async (db) => { await find(db) })',
    'change(app.db, actor, { load: async (db) => find(app.reads) })',
    'change(app.db, actor, { decide: () => ({ async write (tx) { await create(tx) } }) })',
    'app.db.transaction(async (db) => find(db))'
  ]
  for (const source of transactions) t.equal(transactionBreaches('src/plugins/x.ts', source).length, 1, source)
  t.strictSame(
    transactionBreaches('src/plugins/x.ts', 'await transaction(app.db, async (db) => find(db), request); await find(app.db)'), []
  )

  t.strictSame(transactionBreaches('src/http/x.ts', 'await transaction(app.db, async (db) => find(db), request)').length, 1)
  t.equal(decideBreaches('src/plugins/x.ts', 'let a; change(db, actor, { decide () { a = 1; return a } })').length, 1)
  t.strictSame(decideBreaches('src/plugins/x.ts', 'change(db, actor, { decide () { let a; a = 1; return a } })'), [])

  t.equal(processBreaches('src/http/observability/log.ts', 'process.exit(1)').length, 1)
  t.equal(processBreaches('src/http/observability/log.ts', 'const { env } = process; const home = process.env.HOME').length, 1)
})
