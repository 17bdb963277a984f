import { Type, type Static } from '@sinclair/typebox'
import type { FastifyInstance } from 'fastify'
import { LevelParams } from '../../../schemas/environments.ts'

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
