import type { FastifyReply, FastifyRequest } from 'fastify'

const DEPRECATED_SINCE = '@1767225600' // 2026-01-01, RFC 9745
const SUNSET = 'Fri, 31 Dec 2027 23:59:59 GMT' // RFC 8594

/** Marks the answers of an old path and names the one that replaces it, such as `/api/v1/:organization/projects`. */
export function deprecatedFor (successor: string) {
  return async (request: FastifyRequest, reply: FastifyReply) => {
    const params = request.params as Record<string, string>
    const path = successor.replace(/:(\w+)/g, (_, name: string) => encodeURIComponent(params[name] ?? ''))
    reply.headers({ deprecation: DEPRECATED_SINCE, sunset: SUNSET, link: `<${path}>; rel="successor-version"` })
  }
}
