import { basename, resolve } from 'node:path'
import { FIRST_ORGANIZATION } from '../../../schemas/organizations.ts'
import { httpAddress, type Config } from '../../config.ts'
import { initialize, type Initialized } from '../people/initialize.ts'
import type { Opened } from '../common/open.ts'

/**
 * Initializes an empty database. Returns the text to print: the credentials of a new database, or how to replace lost
 * credentials.
 */
export async function greet (opened: Opened, config: Config, port: number): Promise<string> {
  const first = await initialize(
    opened, { organization: FIRST_ORGANIZATION.name, email: 'owner@example.com', plan: config.defaultPlan }
  )
  const address = httpAddress(config.host, port)
  const url = config.publicUrl ?? address
  const facts = `
Strongroom serves on ${address}

  Database        ${describeDatabase(opened, config)}
${config.console ? `  Console         ${url}/console/\n` : ''}  Documentation   ${config.docsUi ? `${url}/docs` : `${url}/openapi.yaml`}
`
  return facts + (first === undefined ? replacements() : credentials(url, first))
}

const describeDatabase = ({ database: { kind, where, engine } }: Opened, { dataDir }: Config) =>
  kind === 'embedded' ? `embedded, in ${resolve(dataDir)}` : `${engine === 'citus' ? 'Citus' : 'PostgreSQL'} at ${where}`

// `npm start` runs a script; the container and the installed command run the command line itself.
function commandLine (): string {
  const [, started = ''] = process.argv
  return basename(started) === 'start.mjs' ? 'npm run -s cli --' : `node ${started}`
}

const replacements = () => `  Lost token      ${commandLine()} token add --organization ID-OR-SLUG --name NAME
  Lost password   ${commandLine()} user password --email ADDRESS

`

function credentials (url: string, { organization, user, token }: Initialized): string {
  const bearer = `-H 'Authorization: Bearer ${token}'`
  return `  Organization    ${organization.id}
  API token       ${token}
  Owner           ${user.email}
  Password        ${user.password}

This is printed once: keep the password, and the token, which has all scopes. Try:

  curl -s ${url}/api/v1/organization ${bearer}
  curl -s ${url}/api/v1/${organization.id}/projects ${bearer} -H 'Content-Type: application/json' -d '{"name":"Orbit"}'
  STRONGROOM_URL=${url} STRONGROOM_TOKEN=${token} sh examples/tour.sh

`
}
