import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'

declare module 'fastify' {
  interface FastifyContextConfig {
    /**
     * Also registers a deprecated path, with a noun before each name: `/organizations/:organization/projects/:project`.
     * Responses to requests on the deprecated path have Deprecation, Sunset and Link headers.
     */
    hasLongPath?: true
    /** Also registers this path. The duplicate stays supported, but is marked as deprecated in the document. */
    also?: string
    /**
     * The route is registered only with its own method. Without `onlyMethod`, a PATCH route is also registered as PUT,
     * and a PUT route as PATCH; the document marks this duplicate as deprecated.
     */
    onlyMethod?: true
    /** The path that replaces a deprecated path; set by `hasLongPath`. */
    successor?: string
  }
}

/** The OpenAPI tag of deprecated operations. */
export const DEPRECATED = 'deprecated'

const DEPRECATED_SINCE = '@1767225600' // 2026-01-01, RFC 9745
const SUNSET = 'Fri, 31 Dec 2027 23:59:59 GMT' // RFC 8594

// The methods of routes that get a duplicate, each with the method of the duplicate.
const TWINS: Record<string, 'PUT' | 'PATCH'> = { PATCH: 'PUT', PUT: 'PATCH' }

export function installAliases (app: FastifyInstance) {
  app.addHook('onRoute', function (route) {
    const { hasLongPath, also, onlyMethod, ...config } = route.config ?? {}
    const { operationId, deprecated } = (route.schema ?? {}) as { operationId?: string, deprecated?: true }
    // Only routes of the API get duplicates: not forms and files, and not the HEAD routes that Fastify adds.
    if (route.method === 'HEAD' || operationId === undefined) return
    // A duplicate of a duplicate keeps the description, which names the original operation.
    const named = deprecated ? {} : { description: `A duplicate of \`${operationId}\`.` }
    const schema = { ...route.schema, ...named, deprecated: true, tags: [DEPRECATED] }
    if (hasLongPath) {
      const url = route.routePath.replace(/\/:(\w+)/g, '/$1s/:$1')
      const alias = { ...schema, operationId: `${operationId}LongPath` }
      this.route({ ...route, url, config: { ...config, successor: route.url }, schema: alias })
    }
    if (also !== undefined) {
      const alias = { ...schema, operationId: `${operationId}ShortPath` }
      this.route({ ...route, url: also, config: { ...config, ...(onlyMethod && { onlyMethod }) }, schema: alias })
    }
    const method = TWINS[String(route.method)]
    if (method !== undefined && !onlyMethod) {
      const alias = { ...schema, operationId: operationId.replace(/^[a-z]+/, method.toLowerCase()) }
      this.route({ ...route, method, url: route.routePath, config: { ...config, onlyMethod: true }, schema: alias })
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
