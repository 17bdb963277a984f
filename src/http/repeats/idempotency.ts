import { Type } from '@sinclair/typebox'
import { MERGE_PATCH_TYPE } from '../../../schemas/changes.ts'
import { Patterned } from '../../../schemas/shapes.ts'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { sameBytes, sha256 } from '../../crypto/primitives.ts'
import { yieldToEventLoop } from '../../crypto/event-loop.ts'
import { lookupHash, type Db } from '../../db/database.ts'
import type { AuditEvent } from '../../repositories/audit/audit.ts'
import {
  findAnswerOfPerson, findAnswers, MAX_RESPONSES, type Answer, type AnswerSeal, type KeptIn, type KeyOwner,
  type Repeatable, type StoredResponse
} from '../../repositories/operations/idempotency.ts'
import { findStorageKey } from '../../repositories/levels/organizations.ts'
import { changedNumbers, valuesAsSpelled } from '../../rules/documents/json-values.ts'
import { fail } from '../../rules/api-error.ts'
import { actorOf } from '../routes/actor.ts'
import { hooksOf, takeHeaders } from '../routes/routes.ts'
import { waitFor } from '../routes/request-deadline.ts'
import { isDryRun } from '../routes/params.ts'
import { tagOf } from './etags.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /**
     * Whether the route supports `Idempotency-Key` and replays the first response to repeated requests. Default: true
     * for every authenticated POST and every change of billing. Set `false` for a POST that only reads.
     */
    repeatable?: boolean
    /** How to store and replay the response, if it contains a secret, which must not be stored. */
    redactedReplay?: RedactedReplay
  }
  interface FastifyRequest {
    /** Stores the response of a request with an `Idempotency-Key`; null without this header. */
    answering: StoredOnce | null
  }
}

/** How to store and replay a response with a secret. */
export interface RedactedReplay {
  /** The response without the secret, to be stored. */
  keep: (answer: never) => object
  /** Rebuilds the response with the current secret; 409 if the secret is gone. Then `event` is recorded. */
  give: (app: FastifyInstance, request: FastifyRequest, kept: never) => Promise<{ answer: object, event: AuditEvent }>
}

const KEY_RULE = '1 to 255 visible ASCII characters, such as 01JQZ6V9T4M8N2K7R5W3X1Y0BC'
const HEADER = Type.Optional(Patterned('^[\\x21-\\x7e]+$', KEY_RULE, {
  minLength: 1,
  maxLength: 255,
  description: 'identifies this request for 24 hours: a repeated request gets the first response again, with ' +
    '`Idempotent-Replayed: true`; 1 to 255 visible ASCII characters. Limit per token, rule of workloads, or user in an organization: ' +
    `${MAX_RESPONSES.toLocaleString('en')} in this time, then 422 \`limit_reached\``
}))

/** The headers of a response that are stored with it. They belong to the response of a successful request only. */
export const STORED_HEADERS = ['etag', 'warning']

const headersOf = (reply: FastifyReply): Record<string, string> => Object.fromEntries(
  STORED_HEADERS.filter((name) => reply.hasHeader(name)).map((name) => [name, String(reply.getHeader(name))])
)

/**
 * Implements and documents `Idempotency-Key` on every `repeatable` route: a repeated request gets the first response
 * again; 422 for the same key with another request. A repeat while the first request is running waits for its response;
 * 409 if the first request is a long operation or creates a project.
 */
export function installIdempotency (app: FastifyInstance, seal: AnswerSeal) {
  app.decorateRequest('answering', null)
  app.addHook('onRoute', (route) => {
    const { access, responseFormat, redactedReplay, errors = [] } = route.config ?? {}
    const isOfCaller = route.method === 'POST' && access !== 'public' && responseFormat === undefined
    const repeatable = route.config?.repeatable ?? (isOfCaller || access === 'billing:write')
    route.config = { ...route.config, repeatable }
    if (!repeatable) return
    // A replay skips the handler, so a handler that checks access (`filtersInHandler`) does not protect the response.
    if (route.config.filtersInHandler) {
      throw new Error(`${route.method} ${route.url} cannot be repeatable and declare config.filtersInHandler`)
    }
    route.config.errors = [
      ...errors, 'conflict', 'idempotency_key_reused', 'validation_failed', 'limit_reached', 'integrity_error',
      ...(redactedReplay === undefined ? [] : ['idempotent_secret_unavailable' as const])
    ]
    takeHeaders(route, { 'idempotency-key': HEADER })
    // This is the last `preHandler` hook, so all access checks have passed.
    route.preHandler = [...hooksOf(route.preHandler), (request, reply, done) => {
      if (request.headers['idempotency-key'] === undefined || isDryRun(request)) done()
      else findOrBegin(request, reply).then((isAnswered) => { if (!isAnswered) done() }, done)
    }]
  })

  // True if the response was replayed.
  async function findOrBegin (request: FastifyRequest, reply: FastifyReply): Promise<boolean> {
    const answering = new StoredOnce(seal, request, reply, await askedBy(app.db, request))
    const known = await waitFor(request, answering.find(app.reads))
    if (known === undefined) request.answering = answering
    else await replay(app, request, reply, known)
    return known !== undefined
  }
}

/** Thrown if the request already has a stored response, which the error handler then sends. */
export class Repeated extends Error {
  override readonly name = 'Repeated'
  readonly known: Known

  constructor (known: Known) {
    super('the request was answered before')
    this.known = known
  }
}

/** A stored response. `headers` are those of `STORED_HEADERS`. */
interface Known { status: number, headers: Record<string, string>, body: string | null, kept?: object }
interface Asked { owner: Omit<KeyOwner, 'organization_id'>, organization: KeptIn | undefined, mac: Buffer }

/** A request with an `Idempotency-Key`, whose response is stored in the transaction of the change. */
export class StoredOnce implements Repeatable {
  isKeyChecked = false
  readonly #seal: AnswerSeal
  readonly #request: FastifyRequest
  readonly #reply: FastifyReply
  readonly #asked: Readonly<Asked>
  #keptIn: KeptIn | undefined

  constructor (seal: AnswerSeal, request: FastifyRequest, reply: FastifyReply, asked: Asked) {
    this.#seal = seal
    this.#request = request
    this.#reply = reply
    this.#asked = asked
  }

  /** Finds the stored response. Ends the request with 422 if the key was used for another request. */
  async find (db: Db): Promise<Known | undefined> {
    const { organization, owner } = this.#asked
    if (organization === undefined) {
      const found = await findAnswerOfPerson(db, this.#request.user!.user.id, owner)
      return found && this.#open(found.organization, found.kept)
    }
    const [stored] = await findAnswers(db, [this.ownerIn(organization.id)])
    return stored && this.#open(organization, stored)
  }

  async refuseRepeat (db: Db) {
    // Another request with this key may have committed since `findOrBegin`.
    const known = await this.find(db)
    if (known !== undefined) throw new Repeated(known)
    this.isKeyChecked = true
  }

  ownerIn (organization_id: string): KeyOwner {
    return { organization_id, ...this.#asked.owner }
  }

  async prepare (db: Db, id: string) {
    // Each attempt loads the key again, because an earlier one, which was undone, may have created the organization.
    this.#keptIn = this.#asked.organization ?? { id, storage_key: (await findStorageKey(db, id))! }
  }

  repeated (stored: StoredResponse): Repeated {
    return new Repeated(this.#open(this.#organization, stored))
  }

  seal ({ status = 200, headers = {}, body }: Answer): StoredResponse {
    const { mac, owner } = this.#asked
    const { redactedReplay, etag } = this.#request.routeOptions.config
    const organization = this.#organization
    const text = body === null
      ? null
      : this.#reply.serializeInput(body as Record<string, unknown>, String(status)) as string
    const sent = { ...headersOf(this.#reply), ...etag && { etag: tagOf((body as { data: object }).data) }, ...headers }
    const kept = JSON.stringify(redactedReplay === undefined
      ? { headers: sent, body: text }
      : { headers: sent, body: null, kept: redactedReplay.keep(JSON.parse(text!) as never) })
    const row = { request: mac, status }
    const sealed = this.#seal.seal(organization, { organization_id: organization.id, ...owner, ...row }, kept)
    return { ...row, sealed }
  }

  repeats (other: Repeatable | null | undefined): boolean {
    if (!(other instanceof StoredOnce)) return false
    const [own, others] = [this.#asked, other.#asked]
    return own.organization?.id === others.organization?.id && own.owner.principal === others.owner.principal &&
      own.owner.key === others.owner.key
  }

  get #organization (): KeptIn {
    if (this.#keptIn === undefined) throw new Error('the organization of the response is unknown')
    return this.#keptIn
  }

  #open (organization: KeptIn, stored: StoredResponse): Known {
    const { owner, mac } = this.#asked
    if (!sameBytes(mac, stored.request)) fail('idempotency_key_reused')
    const text = this.#seal.open(organization, { organization_id: organization.id, ...owner, ...stored })
    return { status: stored.status, ...JSON.parse(text) as Omit<Known, 'status'> }
  }
}

// The key and the request are stored as keyed hashes, so that guesses cannot be verified with the database alone.
async function askedBy (db: Db, request: FastifyRequest): Promise<Asked> {
  const header = request.headers['idempotency-key'] as string
  const { principal } = request
  const organization = principal?.organization
  const { type, id } = principal ?? { type: 'user', id: request.user!.user.id }
  const caller = { organization_id: organization?.id ?? null, principal: `${type}:${id}`, header }
  const digest = await digestOfRequest(request)
  return {
    owner: { principal: caller.principal, key: lookupHash(db, 'idempotency key', caller).toString('hex') },
    organization,
    mac: lookupHash(db, 'idempotent request', { ...caller, digest })
  }
}

// Characters to hash before yielding to the event loop.
const STEP = 1024 * 1024

// Sorts the members of an object by name: the same object must give the same hash in any order of its members.
const inOrder = (_name: string, value: unknown) => typeof value === 'object' && value !== null && !Array.isArray(value)
  ? Object.fromEntries(Object.entries(value).sort(([one], [other]) => one < other ? -1 : 1))
  : value

// Hashes the parts of a request one after the other, each together with the previous hash, so that no step is long. The
// parts are the request line, each field and each list element. To keep different requests apart, each kind of part is
// an array of another length: three items for the request line and for the head of a list, two for any other field, one
// for a list element, four for the numbers that the parsed body does not have as they were sent.
async function digestOfRequest ({ method, mediaType, url, query, body, bodyText }: FastifyRequest): Promise<Buffer> {
  const members = Object.entries(inOrder('', body ?? {}) as object).flatMap(([name, value]: [string, unknown]) =>
    Array.isArray(value) ? [[name, 'list', value.length], ...value.map((one: unknown) => [one])] : [[name, value]])
  if (bodyText !== null && changedNumbers(bodyText).length > 0) {
    members.push(['numbers', 'as', 'sent', valuesAsSpelled(bodyText)])
  }
  // The same body means another change as a merge patch.
  const start = mediaType === MERGE_PATCH_TYPE ? `${method} ${mediaType}` : method
  let digest: Buffer = Buffer.alloc(0)
  let length = 0
  for (const part of [[start, url.split('?', 1)[0], query], ...members]) {
    const text = JSON.stringify(part, inOrder)
    digest = sha256(Buffer.concat([digest, Buffer.from(text)]))
    length += text.length
    if (length < STEP) continue
    length = 0
    await yieldToEventLoop()
  }
  return digest
}

/** Sends a stored response again. Adds a secret that was left out and records this read; 409 if it is gone. */
export async function replay (
  app: FastifyInstance, request: FastifyRequest, reply: FastifyReply, { status, headers, body, kept }: Known
): Promise<FastifyReply> {
  const text = kept === undefined ? body : await withSecret(app, request, kept)
  reply.code(status).headers(headers).header('idempotent-replayed', 'true')
  return text === null ? reply.send(null) : reply.type('application/json; charset=utf-8').send(text)
}

async function withSecret (app: FastifyInstance, request: FastifyRequest, kept: object): Promise<string> {
  const { answer, event } = await request.routeOptions.config.redactedReplay!.give(app, request, kept as never)
  await app.recordRead(actorOf(request), event)
  return JSON.stringify(answer)
}
