import swagger from '@fastify/swagger'
import swaggerUi from '@fastify/swagger-ui'
import type { FastifyInstance } from 'fastify'
import { codeOf, type ErrorCode } from '../../schemas/errors.ts'
import { SCOPES } from '../../schemas/scopes.ts'
import { keepPages } from './kept.ts'
import { oneOfWords } from './serialization.ts'

const DESCRIPTION = `Encrypted secrets in a hierarchy of organization, project, target and environment, with version history.

Every request carries \`Authorization: Bearer <token>\`: an organization API token, or an access token with which an
application acts for a user (OAuth 2.0, authorization code with PKCE). Each operation names the one scope that it needs;
\`*\` holds all of them, and a user never does more than their role in the organization allows. Times are RFC 3339 in UTC. Errors are \`{error, message, details?, errors?}\`.
A trailing slash is never redirected. Limits are counted per organization; \`X-RateLimit-*\` says where you stand.`

const TAGS: Record<string, string> = {
  organizations: 'The organization of the token',
  projects: 'Projects',
  targets: 'Targets of a project',
  environments: 'Environments of a target',
  secrets: 'Encrypted documents, one for each level',
  versions: 'Version history: list, fetch, restore, delete, purge',
  'encryption-keys': 'Keys of projects',
  'api-tokens': 'Organization API tokens',
  users: 'Whoever calls',
  oauth: 'OAuth 2.0: tokens for applications that act for users',
  operations: 'For operators'
}

type Json = Record<string, unknown>

/** Publishes OpenAPI 3.1 from the routes' schemas. A schema's title is the name of its component. */
export async function installOpenApi (app: FastifyInstance) {
  const base = basePath(app)
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'Strongroom', version: '1', description: DESCRIPTION, license: { name: 'MIT', identifier: 'MIT' }
      },
      servers: [{ url: base === '' ? '/' : base, description: 'This service' }],
      tags: Object.entries(TAGS).map(([name, description]) => ({ name, description })),
      components: {
        securitySchemes: {
          apiToken: {
            type: 'http',
            scheme: 'bearer',
            bearerFormat: 'dotenv_<organization>_<random>',
            description: 'An organization API token. Its scopes are named as those of `oauth` are.'
          },
          oauth: {
            type: 'oauth2',
            description: 'An application that acts for a user. PKCE with S256 is required; clients are public.',
            flows: {
              authorizationCode: {
                authorizationUrl: `${base}/oauth/authorize`,
                tokenUrl: `${base}/api/oauth/token`,
                refreshUrl: `${base}/api/oauth/token`,
                scopes: { ...SCOPES }
              }
            }
          }
        }
      }
    },
    transformObject: (document) => {
      if (!('openapiObject' in document)) throw new Error('the document is OpenAPI 3.1')
      return hoistTitled(document.openapiObject as unknown as Json) as typeof document.openapiObject
    }
  })
}

/** Serves the document and, unless it is switched off, Swagger UI at `/docs` under a policy without inline script. */
export async function installDocs (app: FastifyInstance) {
  await app.register(async (docs) => {
    // A page loads many files: they count by address, in a group of their own. Asking again costs nothing, but it is
    // asked.
    docs.addHook('onRoute', (route) => {
      route.config = { ...route.config, access: 'public', limit: 'docs', cache: 'no-cache' }
    })
    keepPages(docs)
    docs.get('/openapi.json', { schema: { hide: true }, handler: async () => app.swagger() })
    docs.get('/openapi.yaml', {
      schema: { hide: true },
      handler: async (_request, reply) =>
        reply.type('application/yaml; charset=utf-8').send(app.swagger({ yaml: true }))
    })
    if (!app.config.docsUi) return
    await docs.register(swaggerUi, {
      routePrefix: '/docs',
      indexPrefix: basePath(app),
      uiConfig: {
        layout: 'BaseLayout',
        persistAuthorization: false,
        validatorUrl: null,
        displayRequestDuration: true,
        deepLinking: true
      },
      initOAuth: {
        clientId: 'swagger-ui', appName: 'Strongroom API', usePkceWithAuthorizationCodeGrant: true, scopes: []
      },
      theme: { title: 'Strongroom API' },
      staticCSP: UI_CSP
    })
  })
}

// Where the service is, as a browser sees it. The path alone: whoever opens the documentation under another name of the
// same service has it call that one.
function basePath ({ config }: FastifyInstance): string {
  return config.publicUrl === undefined ? '' : new URL(config.publicUrl).pathname.replace(/\/$/, '')
}

// Swagger UI sets style attributes; no script of its pages is inline.
const UI_CSP =
  "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Every titled schema moves to components.schemas, and a $ref stays; its first example also stands beside the media
// type, where every tool looks.
function hoistTitled (document: Json): Json {
  const schemas: Json = {}
  const hoist = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(hoist)
    if (typeof value !== 'object' || value === null) return value
    const object = value as Json
    const words = oneOfWords(object)
    if (words !== undefined) {
      const { description, default: byDefault } = object
      return {
        ...(description !== undefined && { description }),
        ...(byDefault !== undefined && { default: byDefault }),
        ...words
      }
    }
    const copy = Object.fromEntries(Object.entries(object).map(([key, member]) =>
      [key, key === 'examples' || key === 'default' ? member : hoist(member)]))
    if (typeof object.title !== 'string' || !('type' in object || 'anyOf' in object)) return copy
    schemas[object.title] = copy
    return { $ref: `#/components/schemas/${object.title}` }
  }
  const withExamples = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(withExamples)
    if (typeof value !== 'object' || value === null) return value
    const copy: Json = Object.fromEntries(Object.entries(value).map(([key, member]) => [key, withExamples(member)]))
    const schema = copy.schema as Json | undefined
    const example = (schema?.examples as unknown[] | undefined)?.[0]
    return example !== undefined && copy.example === undefined && !('in' in copy) ? { ...copy, example } : copy
  }
  const paths = hoist(describe(withExamples(document.paths) as Paths))
  const components = document.components as Json
  return {
    ...document,
    paths,
    components: {
      ...components,
      headers: HEADERS,
      schemas: Object.fromEntries(Object.entries(schemas).sort(([a], [b]) => a < b ? -1 : 1))
    }
  }
}

const whole = { type: 'integer' }
const text = { type: 'string' }
const HEADERS = {
  'X-Request-Id': { description: 'Names the request in the log', schema: text },
  'X-RateLimit-Limit': { description: 'Maximum requests in the window', schema: whole },
  'X-RateLimit-Remaining': { description: 'Requests left in the current window', schema: whole },
  'X-RateLimit-Reset': { description: 'Unix time at which the window resets', schema: whole },
  'Retry-After': { description: 'Seconds to wait', schema: whole },
  'WWW-Authenticate': { description: 'The challenge of RFC 6750', schema: text },
  ETag: {
    description:
      'Of the whole answer, for If-None-Match; for If-Match send the `etag` of a level, or the one that a store answered',
    schema: text
  }
}
const WITH_ETAG = /^(?:read|store|retrieve)\w*Secrets/

type Operation = Json & {
  operationId?: string
  summary?: string
  requestBody?: Json & { content: Record<string, { schema: Json }> }
  responses: Record<string, Json>
}
type Paths = Record<string, Record<string, Operation>>

// What the routes' schemas cannot say: the headers of an answer, what an answer is in words, and that a body may be
// left out.
function describe (paths: Paths): Paths {
  for (const operation of Object.values(paths).flatMap((path) => Object.values(path))) {
    const limited = '429' in operation.responses
    for (const [status, response] of Object.entries(operation.responses)) {
      const names = [
        'X-Request-Id', ...(limited ? ['X-RateLimit-Limit', 'X-RateLimit-Remaining', 'X-RateLimit-Reset'] : [])
      ]
      if (status === '429') names.push('Retry-After')
      if (status === '401' || status === '403') names.push('WWW-Authenticate')
      if (/^(?:200|304)$/.test(status) && WITH_ETAG.test(operation.operationId ?? '')) names.push('ETag')
      response.headers = Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }]))
      if (response.description === 'Default Response') {
        response.description = status.startsWith('2') ? operation.summary : codesOf(response)
      }
    }
    const [media] = Object.values(operation.requestBody?.content ?? {})
    const required = media?.schema.required
    if (operation.requestBody !== undefined && !(Array.isArray(required) && required.length > 0)) {
      operation.requestBody.required = false
    }
  }
  return paths
}

function codesOf (response: Json): string {
  const [media] = Object.values(response.content as Record<string, { schema: Json }>)
  const bodies = (media?.schema.anyOf ?? [media?.schema]) as { title?: string }[]
  return bodies.map(({ title = '' }) =>
    title.startsWith('Error_') ? `\`${codeOf(title.slice(6) as ErrorCode)}\`` : 'An error of RFC 6749').join(', ')
}
