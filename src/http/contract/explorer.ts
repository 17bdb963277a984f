import type { FastifyInstance, RouteOptions } from 'fastify'
import type { FastifySwaggerUiOptions } from '@fastify/swagger-ui'
import { codeOf, ERRORS, type ErrorCode } from '../../../schemas/errors.ts'
import { FIRST_ORGANIZATION } from '../../../schemas/organizations.ts'
import { OWN_ERRORS } from '../guard/access-document.ts'
import { DEPRECATED } from '../routes/aliases.ts'
import { mapOperations, type Document, type Operation } from './document.ts'

// Swagger UI shows more than the document: how to begin, the messages of errors, sign-in, and a filter.

type Plugin = NonNullable<NonNullable<FastifySwaggerUiOptions['uiConfig']>['plugins']>[number]

const begin = (base: string) => `**To begin**, authorize with an API token, or sign in. The examples are placeholders, such as
\`${FIRST_ORGANIZATION.slug}\`, until then; afterwards they name your organization, and a project, a target and an environment of it.

Generate clients from [openapi.yaml](${base}/openapi.yaml), [openapi.json](${base}/openapi.json), or, for older
generators, [openapi-3.0.json](${base}/openapi-3.0.json).`

/**
 * Returns a function that adds to the OpenAPI 3.0 edition what Swagger UI shows beside it: the messages of an
 * operation's errors, and the security scheme `oauth`, with which people sign in. Call this before the routes are
 * registered, because an `onRoute` hook collects what they declare.
 */
export function explainer (app: FastifyInstance, base: string): (document: Document) => object {
  const routes = new Map<string, RouteOptions>()
  app.addHook('onRoute', (route) => {
    const { operationId } = (route.schema ?? {}) as Partial<Operation>
    if (operationId !== undefined) routes.set(operationId, route)
  })
  const explain = (operation: Operation) => {
    const { operationId = '', description = '' } = operation
    // Other `onRoute` hooks add security and errors later, so the route is complete here, but not in the hook above.
    const route = routes.get(operationId)
    const secured = { ...operation, security: (route?.schema as Operation | undefined)?.security }
    const [purpose = '', own] = description.split(OWN_ERRORS)
    if (own === undefined) return secured
    const errors = new Set(route?.config?.errors?.filter((code) => own.includes(`\`${codeOf(code)}\``)))
    return { ...secured, description: `${purpose.trim()}\n\n${OWN_ERRORS}\n\n${messagesOf([...errors])}` }
  }
  return (document) => ({
    ...document,
    info: { ...document.info, description: `${document.info.description}\n\n${begin(base)}` },
    components: { ...document.components, securitySchemes: securitySchemesOf(app) },
    paths: mapOperations(document.paths, explain)
  })
}

const securitySchemesOf = (app: FastifyInstance) => (app.swagger() as unknown as Document).components.securitySchemes

const messagesOf = (errors: readonly ErrorCode[]) =>
  errors.map((code) => `- ${ERRORS[code].status} \`${codeOf(code)}\`: ${ERRORS[code].message}`).join('\n')

/** The tags that come last in the document, and so the last groups of Swagger UI. */
export const LAST = ['billing', DEPRECATED]

interface Immutable<T> {
  get (name: string): any
  filter (test: (one: T) => boolean): Immutable<T>
  map (change: (one: T) => unknown): Immutable<T>
  update (name: string, change: (value: any) => unknown): T
}
type Group = Immutable<any>

/**
 * Swagger UI plugin: folds all groups but the first, because drawing all groups delays the first view. Filters
 * operations by words in the path, name, summary or group. While a filter is set, all groups are open. The functions
 * are sent to the browser as source text, so they cannot use variables of this module.
 */
export const EXPLORER = {
  fn: {
    opsFilter: (groups: Immutable<Group>, phrase: string) => {
      const words = phrase.toLowerCase().split(/\s+/)
      const isFound = (one: Immutable<any>) => {
        const operation = one.get('operation')
        const text = [
          one.get('method'), one.get('path'), operation.get('operationId'), operation.get('summary'),
          ...operation.get('tags')
        ].join(' ').toLowerCase()
        return words.every((word) => text.includes(word))
      }
      return groups.map((group) => group.update('operations', (operations) => operations.filter(isFound)))
        .filter((group) => group.get('operations').size > 0)
    }
  },
  wrapComponents: {
    FilterContainer: (_original: unknown, { React }: any) => ({ layoutSelectors, layoutActions }: any) => {
      const phrase = layoutSelectors.currentFilter()
      const label = React.createElement('label', { htmlFor: 'operation-filter' }, 'Filter operations')
      return React.createElement('div', { className: 'filter wrapper' }, label, React.createElement('input', {
        id: 'operation-filter',
        className: 'operation-filter-input',
        type: 'search',
        placeholder: 'secrets, rotate, PATCH …',
        value: typeof phrase === 'string' ? phrase : '',
        onChange: ({ target }: any) => layoutActions.updateFilter(target.value)
      }))
    }
  },
  statePlugins: {
    layout: {
      wrapSelectors: {
        isShown: (original: (thing: string[], byDefault: boolean) => boolean) =>
          (state: Immutable<any>, thing: string[], byDefault: boolean) => {
            const isFolded = thing[0] === 'operations-tag' && thing[1] !== 'organizations'
            // The filter is `true` before the first input.
            const isFiltered = !['', true].includes(state.get('filter'))
            return original(thing, byDefault && (isFiltered || !isFolded))
          }
      }
    }
  }
} as unknown as Plugin
