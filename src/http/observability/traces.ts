import type { FastifyInstance } from 'fastify'
import { within } from '../../telemetry/spans.ts'
import type { RequestTrace, Tracer } from '../../telemetry/traces.ts'
import type { ObserveRequest } from './log.ts'
import { knownMethod } from '../routes/methods.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** Where its pieces go, where it is traced. */
    trace?: RequestTrace | undefined
  }
}

/**
 * Traces every request from its headers on, but those of who only watches the service. What comes with the body is of
 * the trace as well: Fastify takes the context along (`AsyncResource` in its content type parser).
 */
export function installTraces (app: FastifyInstance, tracer: Tracer): void {
  app.decorateRequest('trace', undefined)
  app.addHook('onRequest', (request, _reply, done) => {
    const { access, limit } = request.routeOptions.config
    if (access === 'public' && limit === 'none') return done()
    request.trace = tracer.start(request.headers.traceparent)
    if (request.trace === undefined) done()
    else within(request.trace, done)
  })
  app.addHook('onClose', async () => { await tracer.stop() })
}

/** The trace of a request ends with what its log line says. */
export const endTrace: ObserveRequest = (request, route, method, status, _ms, code) => {
  request?.trace?.end({ method: knownMethod(method), route, status, code, requestId: request.id })
}
