import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { IncomingMessage } from 'node:http'
import type { TSchema } from '@sinclair/typebox'
import { ApiError, fail } from '../../rules/api-error.ts'
import { MERGE_PATCH_TYPE } from '../../../schemas/changes.ts'
import { withoutMark } from '../../rules/documents/positions.ts'
import { refuseBody } from './faults.ts'
import { boundsOf, readJsonBody, type Bounds } from './json.ts'

const JSON_TYPE = /^\s*(application\/(?:merge-patch\+)?json)\s*(?:;\s*charset\s*=\s*(?:utf-8|"utf-8")\s*)?$/i

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Values of any JSON in the body, with these limits. Sets `request.bodyText`. */
    freeJson?: { members: number, depth: number }
  }
  interface FastifyRequest {
    /** The body as text, for numbers as they are spelled; null without `config.freeJson` or without a body. */
    bodyText: string | null
  }
}

type Contents = Record<string, { schema: TSchema }>

// The schemas of a body by media type. Most routes accept only `application/json`.
function contentsOf (body: object): Contents {
  const { content } = body as { content?: Contents }
  return content ?? { 'application/json': { schema: body as TSchema } }
}

/**
 * Accepts only JSON in UTF-8, within the limits of the route's schema. Routes without a body schema ignore the body. An
 * empty body counts as absent, with any content type.
 */
export function installBodyParser (app: FastifyInstance) {
  const known = new WeakMap<object, Bounds>()
  app.addHook('onRoute', ({ schema, config }) => {
    if (schema?.body !== undefined && config?.responseFormat === undefined) {
      const schemas = Object.values(contentsOf(schema.body as object)).map(({ schema }) => schema)
      known.set(schema.body as object, { ...boundsOf(...schemas), ...config?.freeJson, nul: config?.allowsNul })
    }
  })
  app.decorateRequest('bodyText', null)
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', { parseAs: 'buffer' }, async (request: FastifyRequest, bytes: Buffer) => {
    const schema = request.routeOptions.schema?.body
    if (schema === undefined || bytes.length === 0) return undefined
    requireJson(request)
    const value = readJsonBody(bytes, known.get(schema as object)!)
    if (request.routeOptions.config.freeJson !== undefined) request.bodyText = withoutMark(bytes.toString('utf8'))
    return bodyIn(request, value)
  })

  // With `Expect: 100-continue`, a client waits for status 100 before it sends its body. `preParsing` sends 100 only
  // after the access checks (`onRequest`).
  const asking = new WeakSet<IncomingMessage>()
  app.server.on('checkContinue', (raw, response) => {
    asking.add(raw)
    app.server.emit('request', raw, response)
  })
  // Other values of `Expect` are ignored (RFC 9110, 10.1.1).
  app.server.on('checkExpectation', (raw, response) => app.server.emit('request', raw, response))
  // Chunks also come while the access checks run.
  const chunked = new WeakMap<IncomingMessage, Chunked>()
  app.server.prependListener('request', (raw: IncomingMessage) => {
    if (raw.headers['transfer-encoding'] !== undefined) chunked.set(raw, limitChunks(raw, app.config.bodyLimit))
  })
  app.addHook('preParsing', (request, reply, payload, done) => {
    if (asking.delete(request.raw)) reply.raw.writeContinue()
    // A route without a body schema ignores the body, so Fastify must not check the content type.
    if (request.routeOptions.schema?.body === undefined) delete request.headers['content-type']
    const body = chunked.get(request.raw)
    if (body?.isRefused === true) {
      reply.header('connection', 'close')
      return done(new ApiError('payload_too_large'))
    }
    if (body !== undefined) body.refuse = () => refuseChunks(request, reply)
    done(null, payload)
  })
}

// Each chunk of a body takes microseconds, however small it is. So a body may have `free` chunks. Further chunks need
// `bytes` bytes on average in the first MiB of a body (or up to `BODY_LIMIT`, if that is less), and `later` after it.
const CHUNKS = { free: 2_000, bytes: 32, later: 256, first: 1024 * 1024 }

function mostChunks (bytes: number, bodyLimit: number): number {
  const first = Math.min(bytes, bodyLimit, CHUNKS.first)
  return CHUNKS.free + first / CHUNKS.bytes + (bytes - first) / CHUNKS.later
}

interface Chunked { isRefused: boolean, refuse?: () => void }

/** Calls `refuse` if the body comes in very many small chunks, and drops the rest of the body. */
function limitChunks (raw: IncomingMessage, bodyLimit: number): Chunked {
  const push = raw.push.bind(raw)
  const body: Chunked = { isRefused: false }
  let [chunks, bytes] = [0, 0]
  raw.push = (chunk: Buffer | null) => {
    chunks++
    bytes += chunk?.length ?? 0
    if (!body.isRefused) {
      if (chunks <= mostChunks(bytes, bodyLimit)) return push(chunk)
      body.isRefused = true
      body.refuse?.()
    }
    // `false`: the connection is read no further while the access checks run.
    return body.refuse !== undefined
  }
  return body
}

/** Ends the request with 413, and closes the connection. */
function refuseChunks ({ raw }: FastifyRequest, reply: FastifyReply) {
  if (raw.listenerCount('error') === 0) raw.destroy()
  else {
    reply.header('connection', 'close')
    raw.emit('error', new ApiError('payload_too_large'))
  }
}

/** Ends the request with 415 if its headers do not declare uncompressed JSON in UTF-8. */
export function requireJson ({ headers, routeOptions: { schema } }: FastifyRequest) {
  const accepted = Object.keys(contentsOf(schema?.body as object))
  const { 'content-encoding': encoding = 'identity', 'content-type': declared = '' } = headers
  const [, type = ''] = JSON_TYPE.exec(declared) ?? []
  if (encoding.toLowerCase() !== 'identity' || !accepted.includes(type.toLowerCase())) {
    fail('unsupported_media_type', { accepted })
  }
}

/** A body is optional if its schema has no required field. */
export const mayBeLeftOut = ({ required }: Readonly<Record<string, unknown>>) =>
  !(Array.isArray(required) && required.length > 0)

/**
 * The parsed body. `null`, which some clients send instead of no body, counts as absent if the body is optional. `null`
 * for a required body is rejected here, because the validator replaces `null` by `{}`. A merge patch `null` is also
 * rejected, because it replaces the whole resource (RFC 7396).
 */
export function bodyIn ({ routeOptions: { schema }, mediaType }: FastifyRequest, value: unknown): unknown {
  if (value === null && mediaType !== MERGE_PATCH_TYPE && mayBeLeftOut(schema?.body as TSchema)) return undefined
  return value === null || Array.isArray(value) ? refuseBody('body', 'Expected object') : value
}
