import type { FastifyInstance, RouteOptions } from 'fastify'
import type { FastifySwaggerUiOptions } from '@fastify/swagger-ui'
import { codeOf, ERRORS, type ErrorCode } from '../../../schemas/errors.ts'
import { FIRST_ORGANIZATION } from '../../../schemas/organizations.ts'
import { SCOPES, type Scope } from '../../../schemas/scopes.ts'
import { mapOperations, type Document, type Operation } from './document.ts'

// Additional texts of operations in Swagger UI, which code generators do not need.

type Plugin = NonNullable<NonNullable<FastifySwaggerUiOptions['uiConfig']>['plugins']>[number]

const begin = (base: string) => `**To begin**, authorize with the token that the first start printed, or sign in as its owner. The examples use the
organization of the first start, \`${FIRST_ORGANIZATION.slug}\`. Create a project, a target and an environment, in this order; then the
other examples work. Generated ids are in the responses of the operations that create resources.

Generate clients from [openapi.yaml](${base}/openapi.yaml) or [openapi.json](${base}/openapi.json). Generators that
support only OpenAPI 3.0 can use [openapi-3.0.json](${base}/openapi-3.0.json).`

/**
 * Returns a function that adds the scopes and the errors of each operation to its description, for Swagger UI. Call
 * this before the routes are registered, because an `onRoute` hook collects their declarations.
 */
export function explainer (app: FastifyInstance, base: string): (document: Document) => object {
  const routes = new Map<string, RouteOptions>()
  app.addHook('onRoute', (route) => {
    const { operationId } = (route.schema ?? {}) as Partial<Operation>
    if (operationId !== undefined) routes.set(operationId, route)
  })
  const explain = (operation: Operation) => {
    const { operationId = '', 'x-error-codes': own = [] } = operation
    // Other `onRoute` hooks add errors, so the config is complete only now.
    const errors = new Set(routes.get(operationId)?.config?.errors?.filter((code) => own.includes(codeOf(code))))
    const said = [needsOf(operation), withPurpose(operation.description), failuresOf([...errors])]
    return { ...operation, description: said.filter(Boolean).join('\n\n') }
  }
  return (document) => ({
    ...document,
    info: { ...document.info, description: `${begin(base)}\n\n${document.info.description}` },
    paths: mapOperations(document.paths, explain)
  })
}

function needsOf ({ security = [] }: Operation): string {
  if (security.length === 0) return 'Needs no token.'
  const ways = [...new Set(security.map((way) =>
    Object.values(way).flat().map((scope) => `\`${scope}\``).join(', and ')))]
  if (ways[0] === '') return 'Any token is accepted.'
  return withPurpose(`Needs${ways.length > 1 ? ', depending on the request,' : ''} ${ways.join('; or ')}.`)
}

// Adds the description of each scope to a text.
const withPurpose = (text = '') => text.replace(/`(\w[\w-]*:\w+)`/g, (named, scope: Scope) =>
  SCOPES[scope] === undefined ? named : `${named} to ${SCOPES[scope].charAt(0).toLowerCase()}${SCOPES[scope].slice(1)}`)

function failuresOf (errors: readonly ErrorCode[]): string {
  const lines = errors.map((code) => `- ${ERRORS[code].status} \`${codeOf(code)}\`: ${ERRORS[code].message}`)
  return lines.length === 0 ? '' : `Errors of this operation:\n\n${lines.join('\n')}`
}

/**
 * Swagger UI plugin: collapses the group of deprecated operations by default. The functions are sent to the browser as
 * source text, so they cannot use variables of this module.
 */
export const CLOSED = {
  statePlugins: {
    layout: {
      wrapSelectors: {
        isShown: (original: (thing: string[], byDefault: boolean) => boolean) =>
          (_state: unknown, thing: string[], byDefault: boolean) =>
            original(thing, byDefault && thing.join(' ') !== 'operations-tag deprecated')
      }
    }
  }
} as unknown as Plugin
