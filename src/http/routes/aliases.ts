import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'

declare module 'fastify' {
  interface FastifyContextConfig {
    /**
     * Also registers a deprecated path, with a noun before each name: `/organizations/:organization/projects/:project`.
     * Responses on that path have Deprecation, Sunset and Link headers.
     */
    hasLongPath?: true
    /** Also registers this path, which is not deprecated. */
    also?: string
    /** For PATCH routes: registers the same route for PUT. */
    put?: true
    /** The path that replaces a deprecated path; set by `hasLongPath`. */
    successor?: string
  }
}

/** The OpenAPI tag of deprecated operations. */
export const DEPRECATED = 'deprecated'

const DEPRECATED_SINCE = '@1767225600' // 2026-01-01, RFC 9745
const SUNSET = 'Fri, 31 Dec 2027 23:59:59 GMT' // RFC 8594

export function installAliases (app: FastifyInstance) {
  app.addHook('onRoute', function (route) {
    const { hasLongPath, also, put, ...config } = route.config ?? {}
    // Fastify registers HEAD routes itself.
    if (route.method === 'HEAD' || (!hasLongPath && also === undefined && !put)) return
    const { schema } = route
    const { operationId = '' } = schema as { operationId?: string }
    if (hasLongPath) {
      const url = route.routePath.replace(/\/:(\w+)/g, '/$1s/:$1')
      const alias = { ...schema, operationId: `${operationId}LongPath`, tags: [DEPRECATED], deprecated: true }
      this.route({ ...route, url, config: { ...config, successor: route.url }, schema: alias })
    }
    if (also !== undefined) {
      const alias = { ...schema, operationId: `${operationId}ShortPath` }
      this.route({ ...route, url: also, config, schema: alias })
    }
    if (put) {
      const alias = { ...schema, operationId: operationId.replace(/^update/, 'put') }
      this.route({ ...route, method: 'PUT', url: route.routePath, config, schema: alias })
    }
  })
  app.addHook('preHandler', (request, reply, done) => {
    const { successor } = request.routeOptions.config
    if (successor !== undefined) deprecate(request, reply, successor)
    done()
  })
}

function deprecate (request: FastifyRequest, reply: FastifyReply, successor: string) {
  const params = request.params as Record<string, string>
  const path = successor.replace(/:(\w+)/g, (_, name: string) => encodeURIComponent(params[name] ?? ''))
  reply.headers({ deprecation: DEPRECATED_SINCE, sunset: SUNSET, link: `<${path}>; rel="successor-version"` })
}
