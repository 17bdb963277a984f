import { SCOPES, SCOPE_NAMES, type Scope } from '../../../schemas/scopes.ts'
import { buildApp } from '../../app.ts'
import { loadConfig } from '../../config.ts'
import { createKeyring, generateMasterKey, parseMasterKey } from '../../crypto/keyring.ts'
import type { Database } from '../../db/database.ts'
import { renderYaml } from '../../http/contract/document.ts'

/** The files that `npm run openapi` writes. */
export interface Documents { 'openapi.yaml': string, 'docs/scopes.md': string }

/** Renders the OpenAPI document as YAML and the scopes page from the routes, without a database. */
export async function renderDocuments (): Promise<Documents> {
  const app = await buildApp({
    config: { ...loadConfig({}), logLevel: 'silent' },
    database: { } as Database,
    keyring: createKeyring([parseMasterKey(generateMasterKey().text)])
  })
  await app.ready()
  const document = app.swagger()
  await app.close()
  return { 'openapi.yaml': renderYaml(document), 'docs/scopes.md': renderScopes(document as unknown as Published) }
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

What each scope grants, and the operations that need it. A token holds those that were chosen when it was made, or \`*\` for all of them; a person holds what was granted to the application, as far as their role in the organization and the roles of their teams in a project give it. An operation that is listed under several needs all of them, or one by what is asked: its description in the document says which.

Written by \`npm run openapi\` from the routes.

${sections.join('\n')}
## No scope

${lines((scopes) => scopes.length === 0)}
`
}
