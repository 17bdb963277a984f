import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { fail } from '../../rules/api-error.ts'
import { fits, similarPatterns } from '../../rules/formats/similar-paths.ts'

const METHODS = new Set(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'])

/** A method as a label of metrics and traces: `other` for unknown methods, `none` for null. */
export const knownMethod = (method: string | null): string =>
  method === null ? 'none' : METHODS.has(method) ? method : 'other'

interface PathPattern { segments: string[], methods: Set<string>, isPublished: boolean }

declare module 'fastify' {
  interface FastifyInstance {
    /**
     * Ends a request without a route: 405 with `Allow` if the path exists (204 for OPTIONS), otherwise 404 with similar
     * paths of the document. The response never repeats a part of the path, which may be a misplaced secret.
     */
    refuseRoute (request: FastifyRequest, reply: FastifyReply): FastifyReply
  }
}

/** Collects the paths of all routes for 405 and OPTIONS. These responses never reveal whether a resource exists. */
export function installMethods (app: FastifyInstance) {
  const patterns = new Map<string, PathPattern>()
  app.addHook('onRoute', ({ url, method, schema }) => {
    const pattern = patterns.get(url) ?? { segments: url.split('/'), methods: new Set(['OPTIONS']), isPublished: false }
    for (const one of [method].flat()) pattern.methods.add(one)
    const { operationId, deprecated } = (schema ?? {}) as { operationId?: string, deprecated?: boolean }
    if (operationId !== undefined && !deprecated) pattern.isPublished = true
    patterns.set(url, pattern)
  })
  const similarTo = (path: readonly string[]) =>
    similarPatterns([...patterns.values()].flatMap(({ segments, isPublished }) => isPublished ? [segments] : []), path)
      .map((segments) => segments.join('/').replace(/:(\w+)/g, '{$1}'))

  app.decorate('refuseRoute', (request: FastifyRequest, reply: FastifyReply) => {
    const path = (request.url.split('?', 1)[0] ?? '').split('/')
    const allowed = [...new Set([...patterns.values()].filter((pattern) =>
      fits(pattern.segments, path)).flatMap(({ methods }) => [...methods]))].sort()
    if (allowed.length === 0) return fail('not_found', { resource: 'path', paths: similarTo(path) })
    reply.header('allow', allowed.join(', '))
    return request.method === 'OPTIONS' ? reply.code(204).send() : fail('method_not_allowed', { allowed })
  })
  // No route supports the method QUERY. Without this hook, Fastify first checks the content type.
  app.addHook('preParsing', (request, reply, payload, done) => {
    if (request.method === 'QUERY') app.refuseRoute(request, reply)
    else done(null, payload)
  })
  app.setNotFoundHandler(async (request, reply) => app.refuseRoute(request, reply))
}
