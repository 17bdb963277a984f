import { SCOPES, SCOPE_NAMES, type Scope } from '../../../schemas/scopes.ts'
import { buildApp } from '../../app.ts'
import { loadConfig } from '../../config.ts'
import { createKeyring, generateMasterKey, parseMasterKey } from '../../crypto/keyring.ts'
import type { Database } from '../../db/database.ts'
import { AUTHENTICATED } from '../../db/rows/authenticated.ts'
import { UNAUTHENTICATED } from '../../db/tables.ts'
import { renderYaml } from '../../http/contract/document.ts'
import { publishedDocument } from '../../http/contract/openapi.ts'

const WORDS_FILE = 'src/rules/formats/route-words.ts'

/** The files that are generated from the routes. */
export type Documents = Record<'openapi.yaml' | 'docs/scopes.md' | typeof WORDS_FILE, string>

/** Renders the OpenAPI document, the scopes page and the words of paths from the routes, without a database. */
export async function renderDocuments (): Promise<Documents> {
  const app = await buildApp({
    // The console has no operations, and may not be built yet.
    config: { ...loadConfig({ CONSOLE: 'off' }), logLevel: 'silent' },
    database: { } as Database,
    keyring: createKeyring([parseMasterKey(generateMasterKey().text)])
  })
  await app.ready()
  const document = app.swagger() as unknown as Published
  const published = publishedDocument(app)
  await app.close()
  return {
    'openapi.yaml': renderYaml(published),
    'docs/scopes.md': renderScopes(document),
    [WORDS_FILE]: renderWords(Object.keys(document.paths))
  }
}

interface Operation { summary: string, deprecated?: boolean, security?: Record<string, Scope[]>[] }
interface Published { paths: Record<string, Record<string, Operation>> }

// Omits deprecated paths, because they repeat other operations.
function renderScopes ({ paths }: Published): string {
  const operations = Object.entries(paths).flatMap(([path, item]) =>
    Object.entries(item).map(([method, { security = [], ...operation }]) => ({
      ...operation, at: `${method.toUpperCase()} ${path}`, needs: security.flatMap((way) => Object.values(way).flat())
    }))).filter(({ deprecated }) => !deprecated)
  const lines = (needs: (scopes: Scope[]) => boolean) => operations.filter((one) => needs(one.needs))
    .map(({ at, summary }) => `- \`${at}\`: ${summary}`).join('\n')
  const sections = SCOPE_NAMES.map((scope) =>
    `## ${scope}\n\n${SCOPES[scope]}.\n\n${lines((scopes) => scopes.includes(scope))}\n`)
  return `# Scopes

What each scope grants, and the operations that need it. A token holds those that were chosen when it was made, or \`*\` for all of them; a person holds what was granted to the application, as far as their role in the organization and the roles of their teams in a project give it. An operation that is listed under several needs all of them, or one of them, depending on the request: its description in the document says which.

Written by \`npm run openapi\` from the routes.

${sections.join('\n')}
## No scope

${lines((scopes) => scopes.length === 0)}
`
}

function renderWords (paths: readonly string[]): string {
  const words = Object.entries(wordsOf(paths)).sort(([a], [b]) => a < b ? -1 : 1)
    .map(([parameter, found]) => `  ${parameter}: [${[...found].sort().map((word) => `'${word}'`).join(', ')}]`)
  return `// Written by \`npm run openapi\` from the routes.

/** The static segments of paths where another path has this parameter. */
export const ROUTE_WORDS: Readonly<Record<string, readonly string[]>> = {
${words.join(',\n')}
}
`
}

// Compares every two paths at their first different segment. If it is a parameter in one path and static in the other,
// the static segment is a word of this parameter.
function wordsOf (paths: readonly string[]): Record<string, Set<string>> {
  const words: Record<string, Set<string>> = {}
  const segments = paths.map((path) => path.split('/'))
  for (const path of segments) {
    for (const other of segments) {
      const i = path.findIndex((segment, i) =>
        segment !== other[i] && (!isParameter(segment) || !isParameter(other[i])))
      const [segment, word] = [path[i], other[i]]
      if (isParameter(segment) && word !== undefined) (words[segment!.slice(1, -1)] ??= new Set()).add(word)
    }
  }
  return words
}

const isParameter = (segment: string | undefined) => segment?.startsWith('{') === true

const HEAD = '| Column or table | What a change does |\n|---|---|\n'

/** SECURITY.md with the current table of columns and tables without a MAC. Entries with the same effect share a row. */
export function renderSecurityPage (page: string): string {
  const names = new Map<string, string[]>()
  const add = (name: string, effect: string) => names.set(effect, [...names.get(effect) ?? [], `\`${name}\``])
  for (const [table, { exempt }] of Object.entries(AUTHENTICATED)) {
    for (const [column, effect] of Object.entries(exempt)) add(`${table}.${column}`, effect)
  }
  for (const [table, effect] of Object.entries(UNAUTHENTICATED)) add(table, effect)
  const [before, after] = page.split(HEAD)
  if (after === undefined) throw new Error('SECURITY.md has no table of what is not authenticated')
  const rows = [...names].map(([effect, those]) => `| ${those.join(', ')} | ${effect} |\n`)
  return `${before}${HEAD}${rows.join('')}${after.slice(after.indexOf('\n\n') + 1)}`
}
