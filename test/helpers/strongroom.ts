import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { fileURLToPath } from 'node:url'
import type { Caller, TestApp } from './app.ts'
import { scratchDirectory, type Ended } from './process.ts'

// The command line client as a person has it: the built file, with a home of its own.

/** The path of the built client. */
export const CLIENT = fileURLToPath(new URL('../../cli/strongroom.mjs', import.meta.url))

type Teardown = { teardown (fn: () => unknown): void }
type Env = Record<string, string>
interface More { env?: Env, cwd?: string, input?: string | Buffer }

export interface ClientHome {
  /** The folder that is home, configuration, cache and working directory. */
  folder: string
  env: Env
  /** Runs the client to its end. */
  run (args: readonly string[], more?: More): Promise<Ended & { signal: NodeJS.Signals | null, bytes: Buffer }>
  /** Starts the client, in a group of processes of its own. */
  start (args: readonly string[], more?: More): ChildProcess
}

/** A new home for the client, with these variables. */
export function clientHome (t: Teardown, variables: Env = {}): ClientHome {
  const folder = scratchDirectory(t)
  const { PATH = '' } = process.env
  const env = { PATH, HOME: folder, XDG_CONFIG_HOME: `${folder}/config`, XDG_CACHE_HOME: `${folder}/cache`, ...variables }
  const start = (args: readonly string[], { env: more = {}, cwd = folder }: More = {}) => {
    const child = spawn(process.execPath, [CLIENT, ...args], {
      env: { ...env, ...more }, cwd, stdio: ['pipe', 'pipe', 'pipe'], detached: true
    })
    t.teardown(() => { try { process.kill(-child.pid!, 'SIGKILL') } catch { /* It has ended. */ } })
    return child
  }
  return {
    folder,
    env,
    start,
    async run (args, more = {}) {
      const child = start(args, more)
      child.stdin!.on('error', () => {})
      child.stdin!.end(more.input ?? '')
      const out: Buffer[] = []
      const err: Buffer[] = []
      child.stdout!.on('data', (part: Buffer) => out.push(part))
      child.stderr!.on('data', (part: Buffer) => err.push(part))
      const [code, signal] = await once(child, 'close') as [number | null, NodeJS.Signals | null]
      const bytes = Buffer.concat(out)
      return { code, signal, bytes, stdout: bytes.toString(), stderr: Buffer.concat(err).toString() }
    }
  }
}

/** The variables with which the client calls a service as an API token. */
export const asToken = async (service: TestApp, { token }: Pick<Caller, 'token'>): Promise<Env> =>
  ({ STRONGROOM_URL: await service.listen(), STRONGROOM_TOKEN: token })

/** The names and values of an environment, as `env -0` prints it. */
export function variablesIn (bytes: Buffer): Map<string, string> {
  const pairs = bytes.toString().split('\0').filter((pair) => pair !== '')
  return new Map(pairs.map((pair) => [pair.slice(0, pair.indexOf('=')), pair.slice(pair.indexOf('=') + 1)]))
}

/** A place `orbit/backend/live` of a new organization, with a document. Returns a caller with all scopes. */
export async function placeWith (service: TestApp, document: string, format = 'env'): Promise<Caller> {
  const caller = await service.organization()
  const { call, organization: o } = caller
  await call('POST', `/${o}/projects`, { name: 'Orbit', slug: 'orbit', secret_format: format })
  await call('POST', `/${o}/orbit/targets`, { name: 'Backend', slug: 'backend' })
  await call('POST', `/${o}/orbit/backend/environments`, { name: 'Live', slug: 'live' })
  const stored = await store(caller, document)
  if (stored.status !== 200) throw new Error(stored.text)
  return caller
}

/** Stores the document of `orbit/backend/live`. */
export const store = ({ call, organization }: Caller, plaintext: string) =>
  call('POST', `/${organization}/secrets/store`, { ...LIVE, plaintext, unchecked: true })

export const LIVE = { project: 'orbit', target: 'backend', environment: 'live' }
export const PLACE = 'orbit/backend/live'

type Handler = (request: IncomingMessage, response: ServerResponse) => void

/** A server that is not the service. Returns its address and the requests so far. */
export async function otherServer (t: Teardown, answer: Handler) {
  const requests: IncomingMessage[] = []
  const server = createServer((request, response) => {
    requests.push(request)
    answer(request, response)
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const stop = () => { server.close().closeAllConnections() }
  t.teardown(stop)
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, requests, stop }
}
