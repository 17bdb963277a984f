import type { FastifyInstance, FastifyServerOptions } from 'fastify'

const SANE_ID = /^[A-Za-z0-9._-]{1,64}$/

/** JSON lines, pretty on a terminal. What goes in is chosen field by field: no header, body, query or raw path ever does. */
export function loggerOptions (level: string): FastifyServerOptions['logger'] {
  return {
    level,
    base: null,
    redact: ['authorization', 'cookie', '*.authorization', '*.cookie', '*.password', '*.token'],
    serializers: { req: () => ({}), res: () => ({}) },
    ...(process.stdout.isTTY && { transport: { target: 'pino-pretty', options: { ignore: 'hostname' } } })
  }
}

/** A request's id is the caller's when it is sane, else a new one. */
export function requestId (header: string | string[] | undefined, make: () => string): string {
  return typeof header === 'string' && SANE_ID.test(header) ? header : make()
}

/** One line a request: id, route, status, milliseconds, principal, organization, error code. */
export function installRequestLog (app: FastifyInstance) {
  app.addHook('onResponse', async (request, reply) => {
    request.log.info({
      method: request.method,
      route: request.routeOptions.url ?? null,
      status: reply.statusCode,
      ms: Math.round(reply.elapsedTime * 10) / 10,
      ...(request.principal && { principal: `${request.principal.type}:${request.principal.id}`, organization: request.principal.organization.id }),
      ...(request.principal === null && request.user && { principal: `user:${request.user.user.id}` }),
      ...(request.errorCode && { error_code: request.errorCode })
    }, 'request')
  })
}
