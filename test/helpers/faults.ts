import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { setTimeout as pause } from 'node:timers/promises'
import type { Test } from 'tap'
import { parse } from 'yaml'
import { answersOf, createValidator, errorFaults, operationsIn, type Documented } from './contract.ts'
import { startServer, type cli } from './process.ts'
import {
  client, dataKeyOf, look, openQueries, openWith, patient, replay, type Level, type Operation, type Reply,
  type Replayed, type Send, type Sql
} from './traffic.ts'

// The criteria for every fault test: no acknowledged change is lost, no process ends, every response conforms to the
// OpenAPI document, and the service recovers quickly.

/** Maximum milliseconds for the recovery of the service, and for a response. */
export const RECOVERED = 5_000

const SCALE = Number(process.env.TEST_CYCLES ?? 1)

/** Multiplies the number of cycles by the factor `TEST_CYCLES` (such as 0.05); at least 1. */
export const cycles = (count: number): number => Math.max(1, Math.round(count * SCALE))

interface Answered { content?: Record<string, { schema: object }>, headers?: object }
interface Operated extends Documented { responses: Record<string, Answered & { $ref?: string }> }

const document = parse(readFileSync(new URL('../../../openapi.yaml', import.meta.url), 'utf8')) as {
  paths: Record<string, Record<string, Operated>>
  components: { responses: Record<string, Answered> }
}
const validate = createValidator(document.components)

// Sorted so that fixed path segments come before parameters from left to right, like in the router.
const published = Object.entries(document.paths).map(([path, item]) => ({ parts: path.split('/'), operations: operationsIn(item) }))
  .sort((a, b) => {
    const [one, other] = [a, b].map(({ parts }) => parts.map((part) => part.startsWith('{') ? '~' : '!').join(''))
    return one! < other! ? -1 : 1
  })
const allOperations = published.flatMap(({ operations }) => Object.values(operations))
const documented = new Map(published.flatMap(({ parts, operations }) => Object.values(operations).map((operation) =>
  [operation, answersOf(parts.join('/'), operation, allOperations)] as const)))

/** Expected error codes by status, for errors before routing and for paths without an operation. */
const BESIDE: Record<number, string[]> = {
  400: ['malformed_request'],
  404: ['not_found'],
  405: ['method_not_allowed'],
  413: ['payload_too_large'],
  414: ['uri_too_long'],
  431: ['header_fields_too_large'],
  503: ['service_unavailable']
}
const OF_ANY = [400, 414, 431]
const ERROR = { $ref: '#/components/schemas/Error' }

/**
 * The deviations of a response from `openapi.yaml`, as text. Checks that the operation documents the status, the error
 * code and the media type, that the body is valid, that every response has an `X-Request-Id`, and that exactly 429 has
 * `Retry-After`. A 500 is documented, but always reported, because no fault may cause a 500.
 *
 * @param path below `/api/v1/<organization>`, or absolute after `/`, like for `Send`
 */
export function outsideContract (method: string, path: string, { status, body, headers }: Reply): string[] {
  const operation = operationOf(method, path)
  const answers = operation && documented.get(operation)
  const wrong: string[] = []
  const type = (headers.get('content-type') ?? '').split(';')[0]!
  if (status === 500) wrong.push('something failed')
  if (headers.get('x-request-id') === null) wrong.push('no X-Request-Id')
  if ((status === 429) !== /^[1-9]\d*$/.test(headers.get('retry-after') ?? '')) {
    wrong.push(`Retry-After is ${headers.get('retry-after')}`)
  }
  const isBeside = (answers === undefined || OF_ANY.includes(status)) && BESIDE[status]?.includes(body?.error)
  if (isBeside) wrong.push(...validate(ERROR, body))
  else if (answers?.has(status) !== true) wrong.push('no such status is documented')
  else {
    const { responses } = operation!
    const { $ref, ...own } = (responses[status] ?? responses.default)!
    const { content } = $ref === undefined ? own : document.components.responses[$ref.split('/').at(-1)!]!
    if (content === undefined || method === 'HEAD') {
      if (body !== undefined) wrong.push('there is a body')
    } else if (content[type] === undefined) wrong.push(`${type || 'no'} content`)
    else wrong.push(...validate(content[type].schema, body))
    // OAuth endpoints have other error codes, which are in their schemas.
    if (status >= 400 && body?.error_description === undefined && !answers.get(status)!.has(body?.error)) {
      wrong.push(`${body?.error} is not documented`)
    }
  }
  if (status >= 400 && body?.error_description === undefined) wrong.push(...errorFaults(status, body ?? {}))
  return wrong.map((what) => `${method} ${path} ${status}: ${what}: ${JSON.stringify(body)?.slice(0, 300)}`)
}

function operationOf (method: string, path: string): Operated | undefined {
  const parts = (path.startsWith('//') ? path.slice(1) : `/api/v1/organization${path}`).split('?', 1)[0]!.split('/')
  const found = published.find((one) => one.parts.length === parts.length && one.parts.every((part, i) =>
    part.startsWith('{') ? parts[i] !== '' : part === parts[i]))
  return found?.operations[method === 'HEAD' ? 'get' : method.toLowerCase()]
}

/** One row of the table that the run prints at its end. */
export interface Outcome {
  fault: string
  cycles: number
  /** The number of changes with a 2xx response; the test has looked for all of them. */
  acknowledged: number
  /** The number of acknowledged changes that are missing or differ. */
  lost: number
  /** Deviations of responses from the OpenAPI document. */
  outside: string[]
  /** The number of processes that ended unexpectedly. */
  exits: number
  /** The longest recovery of the service in milliseconds. */
  recovery: number
  /** An additional figure for the table. */
  note?: string
}

/** The criteria that an outcome does not meet. */
export function shortcomings ({ acknowledged, lost, outside, exits, recovery }: Outcome): string[] {
  return [
    ...acknowledged > 0 ? [] : ['nothing was acknowledged'],
    ...lost === 0 ? [] : [`${lost} of ${acknowledged} acknowledged are lost`],
    ...outside,
    ...exits === 0 ? [] : [`${exits} processes ended`],
    ...recovery < RECOVERED ? [] : [`it took ${Math.round(recovery)} ms to be there again`]
  ]
}

/** Asserts that the outcome meets all criteria, and prints the outcome. Called once per test. */
export function report (t: Test, outcome: Outcome): void {
  t.same(shortcomings(outcome), [], `${outcome.fault}: nothing lost, ended, outside of the contract or late`)
  t.comment(JSON.stringify({ ...outcome, outside: outcome.outside.length, recovery: Math.round(outcome.recovery) }))
}

export interface Watched {
  /** Sends a request once, without retries. */
  send: Send
  /** The number of operations with a 2xx response. */
  acknowledged (): number
  /** The first deviations of responses from the OpenAPI document. */
  outside: string[]
  /** Requests that change documents, keys or histories, for `replay`. */
  operations: Operation[]
}

// Further deviations would not help to find the cause.
const MAX_OUTSIDE = 30

/**
 * A client that compares each response with the OpenAPI document and records all changes with their responses.
 *
 * @param before the client whose records are continued, for the same organization
 */
export function watched (
  addresses: string | string[], caller: { organization: string, token: string }, before?: Watched
): Watched {
  const plain = client(addresses, caller)
  const outside = before?.outside ?? []
  const operations = before?.operations ?? []
  const notice = (...wrong: string[]) => { outside.push(...wrong.slice(0, MAX_OUTSIDE - outside.length)) }
  // A retry has the same request id and is the same operation.
  const known = new Map<string, Operation>()
  const noted = (operation: Operation) => {
    const again = known.get(operation.request)
    if (again !== undefined) return again
    known.set(operation.request, operation)
    operations.push(operation)
    return operation
  }
  return {
    async send (method, path, body, headers = {}) {
      const request = headers['x-request-id'] ?? randomUUID()
      const changed = changedBy(method, path, body as Record<string, any>)
      const operation = changed && noted({ ...changed, request, sent: performance.now(), answered: Infinity })
      try {
        const reply = await plain(method, path, body, { ...headers, 'x-request-id': request })
        notice(...outsideContract(method, path, reply))
        if (operation !== undefined) operation.reply = reply
        return reply
      } catch (error) {
        // Ignores a response that was cut off. A complete response that is not JSON is a deviation.
        if (error instanceof SyntaxError) notice(`${method} ${path}: ${error.message}`)
        throw error
      } finally {
        if (operation !== undefined) operation.answered = performance.now()
      }
    },
    acknowledged: () => operations.filter(({ reply }) => reply !== undefined && reply.status < 300).length,
    outside,
    operations
  }
}

function changedBy (
  method: string, path: string, body: Record<string, any> = {}
): Pick<Operation, 'kind' | 'level' | 'plaintext'> | undefined {
  const { project, target, environment, plaintext = body.content } = body
  const level: Level = {
    project, ...(target !== undefined && { target }), ...(environment !== undefined && { environment })
  }
  const [, rotated] = /^\/([^/]+)\/encryption-key\/rotate$/.exec(path) ?? []
  if (rotated !== undefined) return { kind: 'rotate', level: { project: rotated } }
  const [, what = ''] = /^\/secrets\/(store$|delete$|versions\/.+)/.exec(path) ?? []
  if (what === 'store') return { kind: 'store', level, plaintext }
  if (what === 'delete') return { kind: 'delete', level }
  if (what === 'versions/purge') return { kind: 'purge', level }
  if (what.endsWith('/restore')) return { kind: 'restore', level }
  return method === 'DELETE' && what !== '' ? { kind: 'version', level } : undefined
}

/**
 * The acknowledged changes that are missing or differ, as text. Compares the audit events with the responses, the
 * tables with the events, and the responses to readers with both. Requires that no request is running.
 */
export async function lost (
  query: Sql, organization: string, { send, operations }: Pick<Watched, 'send' | 'operations'>
): Promise<string[]> {
  const replayed = await replay(query, organization, operations)
  return [...replayed.problems, ...await misread(send, replayed)]
}

/** A stopped service, and the records of its clients. */
export interface AtRest {
  env: Record<string, string>
  /** The database, for queries outside of the service. */
  database: { dir: string } | { url: string }
  /** Runs a command of the command line; must use another process if several tests run at once. */
  command: typeof cli
  tenants: { caller: { organization: string, token: string }, watch: Watched }[]
}

/**
 * Like `lost`, for a stopped service, because only one process can open an embedded database. Also verifies the audit
 * log, and starts the service again to check what readers get.
 */
export async function lostAtRest (t: Test, { env, database, command, tenants }: AtRest): Promise<string[]> {
  const wrong: string[] = []
  const replays: Replayed[] = []
  await t.test('the events are a chain, and what they tell is what was answered', async (t) => {
    t.match(await command(['audit', 'verify'], env), { code: 0 })
    const query = await openQueries(t, database)
    for (const { caller: { organization }, watch: { operations } } of tenants) {
      replays.push(await replay(query, organization, operations))
      wrong.push(...replays.at(-1)!.problems, ...await miscounted(query, organization, operations))
    }
    t.same(wrong, [])
  })
  const server = await startServer(t, { ...env, RATE_LIMIT_API: '0' })
  for (const [i, { caller, watch }] of tenants.entries()) {
    wrong.push(...await misread(patient(watched(server.address, caller, watch).send), replays[i]!))
  }
  t.same(wrong, [], 'the database is what its audit events tell, and readers get that')
  t.equal((await server.stop()).code, 0)
  return wrong
}

/** The audit action of each kind of change. */
const ACTIONS: Record<Operation['kind'], string> = {
  store: 'secret.store',
  restore: 'secret.restore',
  delete: 'secret.delete',
  purge: 'version.purge',
  version: 'version.delete',
  rotate: 'key.rotate'
}

// The number of events of each kind is at least the number of successful responses, and at most that number plus the
// number of requests without a response.
async function miscounted (query: Sql, organization: string, operations: Operation[]): Promise<string[]> {
  const recorded = new Map((await query(`SELECT action, count(*)::int FROM audit_events
    WHERE organization_id = '${organization}' GROUP BY 1`)).map(({ action, count }) => [action, Number(count)]))
  return Object.entries(ACTIONS).flatMap(([kind, action]) => {
    const sent = operations.filter((operation) => operation.kind === kind)
    const changed = sent.filter(({ reply }) => reply !== undefined && reply.status < 300).length
    const unknown = sent.filter(({ reply }) => reply === undefined).length
    const events = recorded.get(action) ?? 0
    return events >= changed && events <= changed + unknown
      ? []
      : [`there are ${events} of ${action}: ${changed} answered, ${unknown} not`]
  })
}

// The number of versions of a level that are decrypted.
const OPENED = 20

/** Differences between what readers get (documents, histories, newest versions) and the replayed events. */
export async function misread (send: Send, { secrets }: Replayed): Promise<string[]> {
  const wrong: string[] = []
  const projects = new Map<string, Promise<{ key?: string, open: (blob: string) => string }>>()
  for (const { level, plaintext, versions } of secrets.values()) {
    if (!projects.has(level.project)) projects.set(level.project, readerOf(send, level.project))
    const { key, open } = await projects.get(level.project)!
    const name = Object.values(level).join('/')
    const { current, history } = await look(send, level, key !== undefined)
    if (current?.content !== plaintext) wrong.push(`${name}: the document is not what was stored last`)
    if (level.environment === undefined) continue
    const listed = new Set(history.map(({ id }) => Number(id)))
    for (const id of versions.keys()) if (!listed.has(id)) wrong.push(`${name}: version ${id} is not listed`)
    const readable = history.filter(({ attributes }) => key === undefined || attributes.key_version === key)
    for (const { id } of readable.slice(0, OPENED)) {
      const { body } = await send('GET', `/secrets/versions/${id}`)
      if (versions.get(Number(id))?.plaintext !== open(body.data.content)) {
        wrong.push(`${name}: version ${id} does not hold what was written`)
      }
    }
  }
  return wrong
}

/** A function that decrypts blobs, and the active key version. With a client-managed key, returns the blob itself. */
async function readerOf (send: Send, project: string): Promise<{ key?: string, open: (blob: string) => string }> {
  const { body } = await send('GET', `/${project}`)
  if (body.data.attributes.encryption_type === 'client') return { open: (blob) => blob }
  const key = (await send('GET', `/${project}/encryption-key`)).body.data.attributes
  const derived = dataKeyOf(key)
  return { key: String(key.version), open: (blob) => openWith(derived, blob) }
}

// Maximum wait for a recovery, in milliseconds.
const GIVEN_UP = 60_000

/**
 * The milliseconds from `since` until each client got 2xx for a write to the level and a read of the level. Repeats
 * requests that are not answered in time.
 */
export async function recovers (sends: Send | Send[], level: Level, since = performance.now()): Promise<number> {
  const path = Object.values(level).join('/')
  await Promise.all([sends].flat().map(async (send) => {
    const isAnswered = async (ask: () => Promise<Reply>) => {
      const reply = ask().then(({ status }) => status < 300, () => false)
      return Promise.race([reply, pause(RECOVERED, false, { ref: false })])
    }
    while (performance.now() - since < GIVEN_UP) {
      const isThere = await isAnswered(() => send('POST', '/secrets/store', { ...level, plaintext: 'RECOVERED=1' })) &&
        await isAnswered(() => send('GET', `/${path}/secrets`))
      if (isThere) return
      await pause(20)
    }
  }))
  return performance.now() - since
}
