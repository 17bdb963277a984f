import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { Level } from '../../../schemas/secrets.ts'
import type { Config } from '../../config.ts'

const ALWAYS = {
  'x-api-version': '1',
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cross-origin-resource-policy': 'same-origin',
  'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
  vary: 'Authorization, Accept, Origin',
  'cache-control': 'no-store'
}

const OVER_TLS = { ...ALWAYS, 'strict-transport-security': 'max-age=31536000; includeSubDomains' }
const always = ({ publicUrl }: Config) => publicUrl?.startsWith('https:') ? OVER_TLS : ALWAYS

/** The headers of every response, including errors. */
export function standingHeaders (config: Config, requestId: string): Record<string, string> {
  return { 'x-request-id': requestId, ...always(config) }
}

export function setHeaders (config: Config, request: FastifyRequest, reply: FastifyReply) {
  reply.header('x-request-id', request.id).headers(always(config))
}

/** Sets the common headers. Responses are not cacheable, except successful responses of routes with `config.cache`. */
export function installHeaders (app: FastifyInstance) {
  app.addHook('onRequest', (request, reply, done) => {
    setHeaders(app.config, request, reply)
    done()
  })
  app.addHook('onSend', (request, reply, _payload, done) => {
    const { cache } = request.routeOptions.config
    const isGood = reply.statusCode === 200 || reply.statusCode === 304
    reply.header('cache-control', cache !== undefined && isGood ? cache : 'no-store')
    done()
  })
}

/** The header that names the levels which the caller's restrictions exclude from merged values without `meta`. */
export const LEFT_OUT_HEADER = 'Strongroom-Left-Out'

/** Sets the header if the restrictions exclude a level above: `project`, `target` or `project, target`. */
export function sayLeftOut (reply: FastifyReply, { leftOut }: { leftOut: readonly Level[] }) {
  if (leftOut.length > 0) reply.header(LEFT_OUT_HEADER, leftOut.join(', '))
}
