import type { FastifyInstance } from 'fastify'

const JSON_CSP = "default-src 'none'; frame-ancestors 'none'"

/** The headers that every answer carries, errors included. */
export function installHeaders (app: FastifyInstance) {
  const https = app.config.publicUrl?.startsWith('https:') ?? false
  app.addHook('onRequest', async (request, reply) => {
    reply.headers({
      'x-request-id': request.id,
      'x-api-version': '1',
      'x-content-type-options': 'nosniff',
      'x-frame-options': 'DENY',
      'referrer-policy': 'no-referrer',
      'cross-origin-resource-policy': 'same-origin',
      'content-security-policy': JSON_CSP,
      vary: 'Authorization, Accept, Origin'
    })
    if (https) reply.header('strict-transport-security', 'max-age=31536000; includeSubDomains')
    if (request.url.startsWith('/api')) reply.header('cache-control', 'no-store')
  })
}
