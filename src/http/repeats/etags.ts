import { Type } from '@sinclair/typebox'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { PRECONDITION, ReadHeaders, WriteHeaders } from '../../../schemas/shapes.ts'
import { sha256 } from '../../crypto/primitives.ts'
import type { Db } from '../../db/database.ts'
import { fail, refuse } from '../../rules/errors.ts'
import { principalOf } from '../routes/actor.ts'
import { hooksOf, takeHeaders } from '../routes/routes.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Answers a resource as it is, in `data`, with an ETag of it; who reads it with `If-None-Match` gets 304. */
    tagged?: true
    /**
     * The resource that it changes, as a GET answers it: the change depends on `If-Match` and `If-None-Match`. Whoever
     * holds it for the change asks `requireCurrent`.
     */
    changes?: (db: Db, organizationId: string, id: string) => Promise<object | undefined>
    /** Of a change that depends on nothing: what would be a condition is refused. Set where the route is declared. */
    isUnconditional?: boolean
  }
  interface FastifyRequest {
    /** The ETag of what is answered. */
    etag: string | null
  }
}

const CONDITION = new RegExp(PRECONDITION)
const ETAGS = /(?:W\/)?"[^"]*"/g

/**
 * Publishes ETags and preconditions of routes that declare them, and tags what they answer. A change that declares no
 * precondition refuses one (422): who sends it relies on it. Not 412, which says to look again and come back.
 */
export function installEtags (app: FastifyInstance) {
  app.decorateRequest('etag', null)
  app.addHook('onRoute', (route) => {
    const { access, tagged, changes, repeatable, errors = [] } = route.config ?? {}
    if (changes !== undefined) {
      route.config = { ...route.config, errors: [...errors, 'precondition_failed', 'validation_failed'] }
      takeHeaders(route, WriteHeaders.properties)
    }
    const isReader = [route.method].flat().every((method) => method === 'GET' || method === 'HEAD')
    const { headers } = (route.schema ?? {}) as { headers?: { properties: object } }
    if (!isReader && access !== 'public' && repeatable !== false && !('if-match' in (headers?.properties ?? {}))) {
      route.config = { ...route.config, isUnconditional: true, errors: [...errors, 'validation_failed'] }
    }
    if (!tagged) return
    route.schema = { ...route.schema, 'x-tagged': true } as object
    route.preSerialization = [...hooksOf(route.preSerialization), async (request, reply, payload) => {
      if (reply.statusCode >= 300) return
      request.etag = tagOf((payload as { data: object }).data)
      reply.header('etag', request.etag)
    }]
    if (route.method !== 'GET' && route.method !== 'HEAD') return
    takeHeaders(route, ReadHeaders.properties)
    const { response } = route.schema as { response: object }
    const unchanged = Type.Null({ description: 'Not modified since the ETag in If-None-Match' })
    route.schema = { ...route.schema, response: { ...response, 304: unchanged } }
    route.onSend = [...hooksOf(route.onSend), async (request, reply) => {
      if (request.etag === null || !listsEtag(request.headers['if-none-match'], request.etag)) return
      reply.code(304).removeHeader('content-type')
      return null
    }]
  })
  app.addHook('preHandler', ({ routeOptions: { config }, headers }, _reply, done) => {
    if (config.isUnconditional) {
      for (const name of ['if-match', 'if-none-match'] as const) {
        if (headers[name] !== undefined) refuse(name, 'This operation depends on no precondition: send none')
      }
    }
    done()
  })
  // Fastify's own routes for HEAD say how long an answer is, also that of a 304, which is none.
  app.addHook('onRoute', (route) => {
    if (route.method !== 'HEAD') return
    route.onSend = [...hooksOf(route.onSend), async (_request, reply) => {
      if (reply.statusCode === 304) reply.removeHeader('content-length')
    }]
  })
}

// Whoever has it has the resource: no key is needed.
const tagOf = (item: object) => `"${sha256(JSON.stringify(item)).subarray(0, 16).toString('base64url')}"`

/**
 * Ends a change with 412 that depends on what its resource was, where that is something else now. Ask it with the
 * resource held, so that of many with one ETag one succeeds. Without such headers it asks the database nothing.
 */
export async function requireCurrent (db: Db, request: FastifyRequest, id: string): Promise<void> {
  const { changes } = request.routeOptions.config
  const { 'if-match': match, 'if-none-match': noneMatch } = request.headers
  if (changes === undefined || (match === undefined && noneMatch === undefined)) return
  const item = await changes(db, principalOf(request).organization.id, id) ?? fail('not_found')
  requirePrecondition(request.headers, tagOf(item))
}

/**
 * Whether an If-None-Match or If-Match header lists the ETag, or is `*` (RFC 9110, 13.1). What is no such header lists
 * nothing.
 */
export function listsEtag (header: string | undefined, etag: string | undefined, isStrong = false): boolean {
  if (header === undefined || etag === undefined || !CONDITION.test(header)) return false
  return header === '*' ||
    header.match(ETAGS)!.some((listed) => listed === etag || (!isStrong && listed === `W/${etag}`))
}

/**
 * Ends with 412 when the resource has moved on since `If-Match`, or exists against `If-None-Match: *`. `etag` is
 * undefined where there is none.
 */
export function requirePrecondition (
  headers: { 'if-match'?: string | undefined, 'if-none-match'?: string | undefined }, etag: string | undefined
) {
  const { 'if-match': match, 'if-none-match': noneMatch } = headers
  // If-Match compares strongly: a weak ETag matches nothing.
  if (match !== undefined && !listsEtag(match, etag, true)) fail('precondition_failed')
  if (noneMatch !== undefined && listsEtag(noneMatch, etag)) fail('precondition_failed')
}
