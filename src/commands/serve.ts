import type { FastifyInstance } from 'fastify'
import type { AddressInfo } from 'node:net'
import { buildApp } from '../app.ts'
import { httpAddress, type Config } from '../config.ts'
import { databaseError, tlsOf } from '../db/database.ts'
import { initialize, type Initialized } from './initialize.ts'
import { open, StartError } from './open.ts'

const SWEEP = 200
const GRACE = 8_000
const PATIENCE = 9_500

/** Serves until SIGTERM or SIGINT. Resolves with the exit status once everything is closed. */
export async function serve (config: Config): Promise<number> {
  let stopping = false
  let app: FastifyInstance | undefined
  // A signal that comes during the start ends the service in good order, too.
  const signal = new Promise<string>((resolve) => {
    for (const name of ['SIGTERM', 'SIGINT'] as const) process.once(name, () => resolve(name))
  })
  const opened = await open(config, (error) => die('the database cannot go on', error))
  try {
    app = await buildApp({ ...opened, config, isStopping: () => stopping })
    const weakness = config.databaseUrl && tlsOf(config.databaseUrl).weakness
    if (weakness) app.log.warn(weakness)
    // To go on after one of these would be to guess what state we are in.
    for (const event of ['uncaughtException', 'unhandledRejection'] as const) process.on(event, (error) => die(event, error))

    // Before anything is made: what the first start prints would be lost if the port were taken.
    const address = await listen(app, config)
    const first = await initialize(opened, { organization: 'My organization', email: 'owner@example.com', plan: config.defaultPlan })
    app.histories.start()
    app.removals.start()
    app.lateEvents.start()
    process.stdout.write(first === undefined ? `Strongroom serves on ${address}\n` : greeting(address, config, first))

    app.log.info({ signal: await signal }, 'stopping')
    stopping = true
    for (const name of ['SIGTERM', 'SIGINT'] as const) process.once(name, () => process.exit(1))
    // A database that does not answer any more must not hold up the end.
    setTimeout(() => process.exit(0), PATIENCE).unref()
    await close(app)
    return 0
  } finally {
    await opened.database.close()
  }

  function die (reason: string, error: unknown): never {
    app?.log.fatal({ err: databaseError(error) }, reason)
    process.exit(1)
  }
}

async function listen (app: FastifyInstance, { host, port }: Config): Promise<string> {
  try {
    await app.listen({ host, port })
  } catch (error) {
    await app.close()
    throw new StartError(`Cannot listen on ${host}:${port}: ${(error as NodeJS.ErrnoException).code ?? 'unknown error'}`)
  }
  const { port: actual } = app.server.address() as AddressInfo
  return httpAddress(host, actual)
}

// Connections that fall idle while we wait for the others would hold a close open for as long as their clients like.
async function close (app: FastifyInstance): Promise<void> {
  const sweep = setInterval(() => app.server.closeIdleConnections(), SWEEP)
  const hard = setTimeout(() => app.server.closeAllConnections(), GRACE)
  await app.close()
  clearInterval(sweep)
  clearTimeout(hard)
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
