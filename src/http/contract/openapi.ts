import { readFile } from 'node:fs/promises'
import swagger from '@fastify/swagger'
import swaggerUi from '@fastify/swagger-ui'
import type { FastifyInstance } from 'fastify'
import { SCOPES } from '../../../schemas/scopes.ts'
import { fail } from '../../rules/errors.ts'
import { DEPRECATED } from '../routes/aliases.ts'
import { arrange, renderYaml, type Document } from './document.ts'
import { CLOSED, explainer } from './explorer.ts'
import { keepPages } from './page-cache.ts'
import { ICON, LOOK } from '../pages/style.ts'

const DESCRIPTION = `Encrypted secrets in a hierarchy of organization, project, target and environment, with version history.

Every request carries \`Authorization: Bearer <token>\`: an organization API token, or an access token with which an
application acts for a user (OAuth 2.0, authorization code with PKCE). Each operation names the one scope that it needs;
\`*\` holds all of them, and a user never does more than their role in the organization allows. Times are RFC 3339.
Answers have them in UTC. Requests may have any offset, and fractions of a second are cut off to the millisecond; a date or a time
of day that does not exist, a leap second (\`:60\`), and a time before the year 0001 or after the year 9999 in UTC are 422.
A POST, or any change of billing, with an \`Idempotency-Key\` may be repeated: it takes effect once, and the first
answer is given again for 24 hours, with \`Idempotent-Replayed: true\`. \`If-Match\` and \`If-None-Match\` are honoured where an
operation has them, and refused with 422 on every other change. A trailing slash is never redirected.
Limits are counted per organization. An operation with \`x-limit-of-effect\` counts in that group, too, when it takes effect;
where it has \`x-limit-instead-of\`, it then counts in the group of its effect only. Every answer carries \`X-Request-Id\`, which
names it in the log, and of a limited operation \`X-RateLimit-Limit\`, \`X-RateLimit-Remaining\` and \`X-RateLimit-Reset\`,
errors too; \`Retry-After\` comes with 429 alone.

Errors are \`{error, message, details?, errors?}\`. Those of a status are one union, which \`error\` tells apart; the codes
that an operation has of its own are its \`x-error-codes\`, and any can answer the others: who calls, how often, what was
sent or repeated, and what failed here. 414 \`uri_too_long\` and 431 \`header_fields_too_large\` are answered before an operation is
looked for.`

// In the order in which a new user needs them.
const TAGS: Record<string, string> = {
  organizations: 'What everything else belongs to',
  projects: 'Projects of an organization, with a key each',
  targets: 'Targets of a project',
  environments: 'Environments of a target',
  secrets: 'Encrypted documents, one for each level',
  versions: 'Version history: list, fetch, restore, delete, purge',
  'encryption-keys': 'Keys of projects',
  'api-tokens': 'Organization API tokens',
  users: 'Whoever calls',
  members: 'People in an organization, with a role each',
  teams: 'People who share roles in projects',
  audit: 'What was done in an organization',
  billing: 'Plans, subscriptions, payments and invoices',
  oauth: 'OAuth 2.0: tokens for applications that act for users',
  operations: 'For operators',
  [DEPRECATED]: 'Former paths of other operations'
}

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
      return arrange(document.openapiObject as unknown as Document) as unknown as typeof document.openapiObject
    }
  })
}

/** Serves the document and, if enabled, Swagger UI at `/docs`, with a policy that forbids inline scripts. */
export async function installDocs (app: FastifyInstance) {
  const explain = explainer(app, basePath(app))
  await app.register(async (docs) => {
    // A page loads many files, so they have a separate rate-limit group per address. Browsers revalidate by ETag.
    docs.addHook('onRoute', (route) => {
      route.config = { ...route.config, access: 'public', limit: 'docs', cache: 'no-cache' }
    })
    keepPages(docs)
    docs.get('/openapi.json', { schema: { hide: true }, handler: async () => app.swagger() })
    docs.get('/openapi-3.0.json', { schema: { hide: true }, handler: async () => readOpenApi30(app) })
    docs.get('/openapi.yaml', {
      schema: { hide: true },
      handler: async (_request, reply) =>
        reply.type('application/yaml; charset=utf-8').send(renderYaml(app.swagger()))
    })
    if (!app.config.docsUi) return
    docs.get('/', {
      schema: { hide: true },
      // Redirects browsers to the documentation; other clients get 404.
      handler: async ({ headers: { accept = '' } }, reply) =>
        /\btext\/html\b/.test(accept) ? reply.redirect(`${basePath(app)}/docs`, 303) : fail('not_found')
    })
    await docs.register(swaggerUi, {
      routePrefix: '/docs',
      indexPrefix: basePath(app),
      uiConfig: {
        layout: 'BaseLayout',
        persistAuthorization: false,
        validatorUrl: null,
        displayRequestDuration: true,
        deepLinking: true,
        plugins: [CLOSED]
      },
      transformSpecification: (document) => explain(document as unknown as Document),
      transformSpecificationClone: false,
      initOAuth: {
        clientId: 'swagger-ui', appName: 'Strongroom API', usePkceWithAuthorizationCodeGrant: true, scopes: []
      },
      theme: {
        title: 'Strongroom API',
        css: [{ filename: 'strongroom.css', content: LOOK }],
        favicon: [{ filename: 'icon.svg', rel: 'icon', type: 'image/svg+xml', sizes: 'any', content: ICON }]
      },
      staticCSP: UI_CSP
    })
  })
}

// `scripts/openapi-3.0.mjs` generates the file from `openapi.yaml`. The URLs depend on the configuration.
const OPENAPI_30 = new URL('../../../openapi-3.0.json', import.meta.url)

async function readOpenApi30 (app: FastifyInstance): Promise<object> {
  const document = JSON.parse(await readFile(OPENAPI_30, 'utf8')) as Document
  const { servers, components } = app.swagger() as unknown as Document
  const { securitySchemes } = components
  return { ...document, servers, components: { ...document.components, securitySchemes } }
}

// The path of PUBLIC_URL. Without the host, so that the documentation also works under other host names of the service.
function basePath ({ config }: FastifyInstance): string {
  return config.publicUrl === undefined ? '' : new URL(config.publicUrl).pathname.replace(/\/$/, '')
}

// Swagger UI sets style attributes, but has no inline scripts.
const UI_CSP =
  "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
