import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The path that the route had once. It is answered there too, and every answer says that it is deprecated. */
    formerly?: string
    /** Another path that is answered in the same way, and stays. */
    also?: string
    /** On a PATCH: PUT does the same. */
    put?: true
    /** The path that replaces a deprecated one, with its parameters; set by `formerly`. */
    successor?: string
  }
}

/** The group of what is deprecated. */
export const DEPRECATED = 'deprecated'

const DEPRECATED_SINCE = '@1767225600' // 2026-01-01, RFC 9745
const SUNSET = 'Fri, 31 Dec 2027 23:59:59 GMT' // RFC 8594

/**
 * Makes the routes that another one declares: a former path (`formerly`), another one (`also`), and PUT beside PATCH
 * (`put`).
 */
export function installAliases (app: FastifyInstance) {
  app.addHook('onRoute', function (route) {
    const { formerly, also, put, ...config } = route.config ?? {}
    // Fastify makes one for HEAD itself, of each for GET.
    if (route.method === 'HEAD' || (formerly === undefined && also === undefined && !put)) return
    const { schema } = route
    const { operationId = '' } = schema as { operationId?: string }
    if (formerly !== undefined) {
      const alias = { ...schema, operationId: `${operationId}LongPath`, tags: [DEPRECATED], deprecated: true }
      this.route({ ...route, url: formerly, config: { ...config, successor: route.url }, schema: alias })
    }
    if (also !== undefined) {
      this.route({
        ...route, url: also, config, schema: { ...schema, operationId: `${operationId}ShortPath` } as object
      })
    }
    if (put) {
      this.route({
        ...route,
        method: 'PUT',
        url: route.routePath,
        config,
        schema: { ...schema, operationId: operationId.replace(/^update/, 'put') } as object
      })
    }
  })
  app.addHook('preHandler', (request, reply, done) => {
    const { successor } = request.routeOptions.config
    if (successor !== undefined) deprecate(request, reply, successor)
    done()
  })
}

// Marks an answer and names the path that replaces it.
function deprecate (request: FastifyRequest, reply: FastifyReply, successor: string) {
  const params = request.params as Record<string, string>
  const path = successor.replace(/:(\w+)/g, (_, name: string) => encodeURIComponent(params[name] ?? ''))
  reply.headers({ deprecation: DEPRECATED_SINCE, sunset: SUNSET, link: `<${path}>; rel="successor-version"` })
}
