import { Type } from '@sinclair/typebox'
import type { FastifyInstance, FastifyRequest } from 'fastify'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Unknown query parameters have no effect. The default for OAuth endpoints (RFC 6749, 3.1, 3.2) and pages. */
    ignoresUnknownParameters?: true
  }
}

const NO_PARAMETERS = Type.Object({})

/** Adds an empty `schema.querystring` to routes without parameters, so that validation rejects all parameters. */
export function installQueryParams (app: FastifyInstance) {
  app.addHook('onRoute', (route) => {
    const { responseFormat, ignoresUnknownParameters } = route.config ?? {}
    if (responseFormat !== undefined || ignoresUnknownParameters) return
    route.schema = { querystring: NO_PARAMETERS, ...route.schema }
  })
}

/** Whether a validated request is a dry run, which changes nothing and ignores its `Idempotency-Key`. */
export const isDryRun = ({ query }: FastifyRequest): boolean => (query as { dry_run?: boolean }).dry_run === true
