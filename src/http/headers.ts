import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { Config } from '../config.ts'

const ALWAYS = {
  'x-api-version': '1',
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cross-origin-resource-policy': 'same-origin',
  'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
  vary: 'Authorization, Accept, Origin'
}

/** The headers that every answer carries, errors included. */
export function standingHeaders ({ publicUrl }: Config, requestId: string): Record<string, string> {
  return {
    'x-request-id': requestId,
    ...ALWAYS,
    ...(publicUrl?.startsWith('https:') && { 'strict-transport-security': 'max-age=31536000; includeSubDomains' })
  }
}

/** Sets them; an answer of the API is never kept by anybody on its way. */
export function setHeaders (config: Config, request: FastifyRequest, reply: FastifyReply) {
  reply.headers(standingHeaders(config, request.id))
  if (request.url.startsWith('/api')) reply.header('cache-control', 'no-store')
}

export function installHeaders (app: FastifyInstance) {
  app.addHook('onRequest', async (request, reply) => setHeaders(app.config, request, reply))
}
