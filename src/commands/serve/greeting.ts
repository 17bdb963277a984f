import { basename, resolve } from 'node:path'
import { FIRST_ORGANIZATION } from '../../../schemas/organizations.ts'
import { httpAddress, RATE_LIMITS, type Config } from '../../config.ts'
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
  Command line    ${url}/cli/
`
  return facts + (first === undefined ? replacements() : credentials(url, first) + limitOf(config))
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

// The commands read the token from a variable, which keeps it out of the history of the shell and the process list.
function credentials (url: string, { organization, user, token }: Initialized): string {
  const curl = 'printf \'Authorization: Bearer %s\' "$STRONGROOM_TOKEN" | curl -s -H @-'
  return `  Organization    ${organization.id}
  API token       ${token}
  Owner           ${user.email}
  Password        ${user.password}

This is printed once: keep the password, and the token, which has all scopes. Run this, and enter the token:

  read -r STRONGROOM_TOKEN && export STRONGROOM_TOKEN

Then try:

  ${curl} ${url}/api/v1/organization
  ${curl} ${url}/api/v1/${organization.id}/projects -H 'Content-Type: application/json' -d '{"name":"Orbit"}'
  STRONGROOM_URL=${url} sh examples/tour.sh

`
}

function limitOf ({ rateLimits }: Config): string {
  const { variable, byDefault } = RATE_LIMITS.api
  return rateLimits.api === byDefault
    ? `An organization has ${byDefault} requests a minute, the default of the specification. To raise it, set ${variable}.\n\n`
    : ''
}
