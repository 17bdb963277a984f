import type { FastifyInstance } from 'fastify'
import { within } from '../../telemetry/spans.ts'
import type { RequestTrace, Tracer } from '../../telemetry/traces.ts'
import type { ObserveRequest } from './log.ts'
import { knownMethod } from '../routes/methods.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** The trace of the request, if it is sampled. */
    trace?: RequestTrace | undefined
  }
}

/**
 * Traces every request except public requests without a rate limit, such as health checks. The trace is the async
 * context of the request; Fastify keeps this context while it parses the body.
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

/** Ends the trace of a request with the data of its log line. */
export const endTrace: ObserveRequest = (request, route, method, status, _ms, code) => {
  request?.trace?.end({ method: knownMethod(method), route, status, code, requestId: request.id })
}
