import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** A deprecated path of the route. Its responses have Deprecation, Sunset and Link headers. */
    formerly?: string
    /** Another path of the route, which is not deprecated. */
    also?: string
    /** For PATCH routes: registers the same route for PUT. */
    put?: true
    /** The path that replaces a deprecated path; set by `formerly`. */
    successor?: string
  }
}

/** The OpenAPI tag of deprecated operations. */
export const DEPRECATED = 'deprecated'

const DEPRECATED_SINCE = '@1767225600' // 2026-01-01, RFC 9745
const SUNSET = 'Fri, 31 Dec 2027 23:59:59 GMT' // RFC 8594

/** Registers the alias routes that a route declares with `formerly`, `also` and `put`. */
export function installAliases (app: FastifyInstance) {
  app.addHook('onRoute', function (route) {
    const { formerly, also, put, ...config } = route.config ?? {}
    // Fastify registers HEAD routes itself.
    if (route.method === 'HEAD' || (formerly === undefined && also === undefined && !put)) return
    const { schema } = route
    const { operationId = '' } = schema as { operationId?: string }
    if (formerly !== undefined) {
      const alias = { ...schema, operationId: `${operationId}LongPath`, tags: [DEPRECATED], deprecated: true }
      this.route({ ...route, url: formerly, config: { ...config, successor: route.url }, schema: alias })
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
