import { Type, type Static } from '@sinclair/typebox'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { LevelParams } from '../../../schemas/environments.ts'

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

const isLevelParam = (name: string): name is keyof Static<typeof LevelParams> => name in LevelParams.properties

/** Adds `schema.params` if all path parameters name levels. Throws for other parameters without a schema. */
export function installPathParams (app: FastifyInstance) {
  app.addHook('onRoute', (route) => {
    const { operationId, params } = (route.schema ?? {}) as { operationId?: string, params?: object }
    const names = [...route.url.matchAll(/:(\w+)/g)].map(([, name]) => name!)
    if (operationId === undefined || params !== undefined || names.length === 0) return
    const known = names.filter(isLevelParam)
    if (known.length < names.length) throw new Error(`${route.url} does not declare schema.params`)
    route.schema = { ...route.schema, params: Type.Pick(LevelParams, known) }
  })
}
