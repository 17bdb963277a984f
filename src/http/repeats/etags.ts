import { Type } from '@sinclair/typebox'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { PRECONDITION, ReadHeaders, WriteHeaders } from '../../../schemas/shapes.ts'
import { sha256 } from '../../crypto/primitives.ts'
import type { Db } from '../../db/database.ts'
import { fail, refuseEach } from '../../rules/api-error.ts'
import { principalOf } from '../routes/actor.ts'
import { hooksOf, isReader, takeHeaders } from '../routes/routes.ts'
import type { Rule } from '../routes/types.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Adds the ETag of `data` to successful responses. GET routes support `If-None-Match` (304). */
    etag?: true
    /**
     * Loads the resource that the route changes, in the form of its GET response, to check `If-Match` and
     * `If-None-Match`. The handler must call `requireCurrent` while it holds the lock on the resource.
     */
    changes?: (db: Db, organizationId: string, id: string) => Promise<object | undefined>
  }
  interface FastifyRequest {
    etag: string | null
  }
}

const CONDITION = new RegExp(PRECONDITION)
const ETAGS = /(?:W\/)?"[^"]*"/g

/**
 * Implements and documents ETags and preconditions. Changes without support for preconditions reject requests that have
 * one with 422. If the precondition were ignored, the request could overwrite a concurrent change, and after 412
 * clients try again.
 */
export function installEtags (app: FastifyInstance) {
  app.decorateRequest('etag', null)
  app.addHook('onRoute', (route) => {
    const { access, etag, changes, repeatable, errors = [] } = route.config ?? {}
    if (changes !== undefined) {
      route.config = { ...route.config, errors: [...errors, 'precondition_failed', 'validation_failed'] }
      takeHeaders(route, WriteHeaders.properties)
    }
    const { headers } = (route.schema ?? {}) as { headers?: { properties: object } }
    if (!isReader(route) && access !== 'public' && repeatable !== false && !('if-match' in (headers?.properties ?? {}))) {
      const { rules = [] } = route.config ?? {}
      route.config = { ...route.config, rules: [UNCONDITIONAL, ...rules], errors: [...errors, 'validation_failed'] }
    }
    if (!etag) return
    route.schema = { ...route.schema, 'x-etag': true } as object
    route.preSerialization = [...hooksOf(route.preSerialization), async (request, reply, payload) => {
      if (reply.statusCode >= 300) return
      request.etag = tagOf((payload as { data: object }).data)
      reply.header('etag', request.etag)
    }]
    if (!isReader(route)) return
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
  // Fastify's HEAD routes set Content-Length, also for 304, which has no body.
  app.addHook('onRoute', (route) => {
    if (route.method !== 'HEAD') return
    route.onSend = [...hooksOf(route.onSend), async (_request, reply) => {
      if (reply.statusCode === 304) reply.removeHeader('content-length')
    }]
  })
}

// Changes without support for preconditions have this rule.
const UNCONDITIONAL: Rule = {
  reads: [],
  check: ({ headers }) => {
    const sent = (['if-match', 'if-none-match'] as const).filter((name) => headers[name] !== undefined)
    refuseEach(sent, 'This operation does not support preconditions; remove this header')
  }
}

/** The ETag of the `data` of a response. The hash needs no key, because the ETag is sent only with the resource. */
export const tagOf = (item: object) => `"${sha256(JSON.stringify(item)).subarray(0, 16).toString('base64url')}"`

/**
 * Ends the request with 412 if a precondition fails. Call this function while the resource is locked, so that of
 * several requests with the same ETag only one succeeds. Runs no query if the request has no preconditions.
 */
export async function requireCurrent (db: Db, request: FastifyRequest, id: string): Promise<void> {
  const { changes } = request.routeOptions.config
  const { headers } = request
  if (changes === undefined || (headers['if-match'] ?? headers['if-none-match']) === undefined) return
  const item = await changes(db, principalOf(request).organization.id, id) ?? fail('not_found')
  requirePrecondition(headers, () => tagOf(item))
}

/** Whether If-None-Match or If-Match lists the ETag or is `*` (RFC 9110, 13.1). False for an invalid header. */
export function listsEtag (header: string | undefined, etag: string | undefined, isStrong = false): boolean {
  if (header === undefined || etag === undefined || !CONDITION.test(header)) return false
  return header === '*' ||
    header.match(ETAGS)!.some((listed) => listed === etag || (!isStrong && listed === `W/${etag}`))
}

/**
 * Ends the request with 412 if `If-Match` does not list the ETag, or `If-None-Match` lists it. `etagNow` returns the
 * present ETag, or undefined if the resource does not exist.
 */
export function requirePrecondition (
  headers: { 'if-match'?: string | undefined, 'if-none-match'?: string | undefined }, etagNow: () => string | undefined
) {
  const { 'if-match': match, 'if-none-match': noneMatch } = headers
  if ((match ?? noneMatch) === undefined) return
  const etag = etagNow()
  // If-Match compares strongly: a weak ETag matches nothing.
  if (match !== undefined && !listsEtag(match, etag, true)) fail('precondition_failed')
  if (noneMatch !== undefined && listsEtag(noneMatch, etag)) fail('precondition_failed')
}
