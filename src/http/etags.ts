import { Type } from '@sinclair/typebox'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { ReadHeaders, WriteHeaders } from '../../schemas/shapes.ts'
import { sha256 } from '../crypto/primitives.ts'
import type { Db } from '../db/database.ts'
import { fail } from '../rules/errors.ts'
import { principalOf } from './actor.ts'
import { hooksOf, takeHeaders } from './routes.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Answers a resource as it is, in `data`, with an ETag of it; who reads it with `If-None-Match` gets 304. */
    tagged?: true
    /**
     * The resource that it changes, as a GET answers it: the change depends on `If-Match` and `If-None-Match`. Whoever
     * holds it for the change asks `requireCurrent`.
     */
    changes?: (db: Db, organizationId: string, id: string) => Promise<object | undefined>
  }
  interface FastifyRequest {
    /** The ETag of what is answered. */
    etag: string | null
  }
}

const ETAGS = /\*|(?:W\/)?"[^"]*"/g

/** Publishes ETags and preconditions of routes that declare them, and tags what they answer. */
export function installEtags (app: FastifyInstance) {
  app.decorateRequest('etag', null)
  app.addHook('onRoute', (route) => {
    const { tagged, changes, errors = [] } = route.config ?? {}
    if (changes !== undefined) {
      route.config = { ...route.config, errors: [...errors, 'precondition_failed'] }
      takeHeaders(route, WriteHeaders.properties)
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

/** Whether an If-None-Match or If-Match header lists the ETag, or any with `*` (RFC 9110, 13.1). */
export function listsEtag (header: string | undefined, etag: string | undefined): boolean {
  if (header === undefined || etag === undefined) return false
  return (header.match(ETAGS) ?? []).some((listed) => listed === '*' || listed.replace(/^W\//, '') === etag)
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
  if (match !== undefined && !listsEtag(match.replace(/W\/"[^"]*"/g, ''), etag)) fail('precondition_failed')
  if (noneMatch !== undefined && listsEtag(noneMatch, etag)) fail('precondition_failed')
}
