import { FIRST_ORGANIZATION } from '../../../schemas/organizations.ts'
import { httpAddress, type Config } from '../../config.ts'
import { initialize, type Initialized } from '../people/initialize.ts'
import type { Opened } from '../common/open.ts'

/** Initializes an empty database. Returns the text to print: the credentials of a new database, otherwise one line. */
export async function greet (opened: Opened, config: Config, port: number): Promise<string> {
  const first = await initialize(
    opened, { organization: FIRST_ORGANIZATION.name, email: 'owner@example.com', plan: config.defaultPlan }
  )
  const address = httpAddress(config.host, port)
  return first === undefined ? `Strongroom serves on ${address}\n` : greeting(address, config, first)
}

function greeting (address: string, { docsUi, publicUrl }: Config, { organization, user, token }: Initialized): string {
  const url = publicUrl ?? address
  const bearer = `-H 'Authorization: Bearer ${token}'`
  return `
Strongroom serves on ${address}

  Documentation   ${docsUi ? `${url}/docs` : `${url}/openapi.yaml`}
  Organization    ${organization.id}
  Token (*)       ${token}
  Owner           ${user.email}
  Password        ${user.password}

This is printed once. Keep the token and the password now; try:

  curl -s ${url}/api/v1/organization ${bearer}
  curl -s ${url}/api/v1/${organization.id}/projects ${bearer} -H 'Content-Type: application/json' -d '{"name":"Orbit"}'
  STRONGROOM_URL=${url} STRONGROOM_TOKEN=${token} sh examples/tour.sh

`
}
