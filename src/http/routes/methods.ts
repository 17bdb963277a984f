import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { isWordOfRoute } from '../../rules/formats/slugs.ts'
import { fail } from '../../rules/errors.ts'

const METHODS = new Set(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'])

/** A method as a label of metrics and traces: `other` for unknown methods, `none` for null. */
export const knownMethod = (method: string | null): string =>
  method === null ? 'none' : METHODS.has(method) ? method : 'other'

interface PathPattern { segments: string[], methods: Set<string> }

declare module 'fastify' {
  interface FastifyInstance {
    /** Ends a request without a route: 405 with `Allow` if the path exists (204 for OPTIONS), otherwise 404. */
    refuseRoute (request: FastifyRequest, reply: FastifyReply): FastifyReply
  }
}

/** Collects the paths of all routes for 405 and OPTIONS, which never reveal whether a resource exists. */
export function installMethods (app: FastifyInstance) {
  const patterns = new Map<string, PathPattern>()
  app.addHook('onRoute', ({ url, method }) => {
    const pattern = patterns.get(url) ?? { segments: url.split('/'), methods: new Set(['OPTIONS']) }
    for (const one of [method].flat()) pattern.methods.add(one)
    patterns.set(url, pattern)
  })

  app.decorate('refuseRoute', (request: FastifyRequest, reply: FastifyReply) => {
    const path = (request.url.split('?', 1)[0] ?? '').split('/')
    const allowed = [...new Set([...patterns.values()].filter((pattern) =>
      fits(pattern.segments, path)).flatMap(({ methods }) => [...methods]))].sort()
    if (allowed.length === 0) return fail('not_found')
    reply.header('allow', allowed.join(', '))
    return request.method === 'OPTIONS' ? reply.code(204).send() : fail('method_not_allowed', { allowed })
  })
  // No route supports QUERY; without this hook, Fastify would first check its content type.
  app.addHook('preParsing', (request, reply, payload, done) => {
    if (request.method === 'QUERY') app.refuseRoute(request, reply)
    else done(null, payload)
  })
  app.setNotFoundHandler(async (request, reply) => app.refuseRoute(request, reply))
}

// A parameter matches every segment except reserved words of static routes.
function fits (pattern: readonly string[], path: readonly string[]): boolean {
  return pattern.length === path.length && pattern.every((segment, i) => {
    const word = path[i] ?? ''
    if (!segment.startsWith(':')) return segment === word
    return word !== '' && !isWordOfRoute(segment.slice(1), word)
  })
}
