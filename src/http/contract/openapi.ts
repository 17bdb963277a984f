import { readFileSync } from 'node:fs'
import swagger from '@fastify/swagger'
import swaggerUi from '@fastify/swagger-ui'
import type { FastifyInstance } from 'fastify'
import { SCOPES } from '../../../schemas/scopes.ts'
import { fail } from '../../rules/api-error.ts'
import { VERSION } from '../../version.ts'
import { DEPRECATED } from '../routes/aliases.ts'
import { arrange, renderYaml, withOwnErrors, withPathParameters, type Document } from './document.ts'
import { EXAMPLES } from './examples.ts'
import { explainer, EXPLORER, LAST } from './explorer.ts'
import { cachePages } from './page-cache.ts'
import { ICON, LOOK } from '../pages/style.ts'
import { preferredType } from '../responses/negotiation.ts'

const DESCRIPTION = `Encrypted secrets in a hierarchy of organization, project, target and environment, with version history.

Send \`Authorization: Bearer <token>\` with each request: an API token of the organization, or an access token of an
application (OAuth 2.0). Each operation names the scopes that it needs; \`*\` stands for all.

An error has a code, \`error\`, and a \`message\`. Under \`default\` are the errors that every operation can have.
\`docs/requests.md\` explains times, ETags, repeated requests and rate limits.`

// Tags of the operations that belong to no domain (`DOMAINS` in `app.ts`).
const OTHER_TAGS: Tags = {
  oauth: 'OAuth 2.0: tokens for applications that act for users',
  operations: 'For operators',
  [DEPRECATED]: 'Duplicates of other operations, and former paths'
}

/** Tags with their descriptions, in the order of the document. */
export type Tags = Readonly<Record<string, string>>

/** Publishes OpenAPI 3.1 from the schemas of the routes. The title of a schema is the name of its component. */
export async function installOpenApi (app: FastifyInstance, tagsOfDomains: Tags) {
  const base = basePath(app)
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'Strongroom', version: VERSION, description: DESCRIPTION, license: { name: 'MIT', identifier: 'MIT' }
      },
      servers: [{ url: base === '' ? '/' : base, description: 'This service' }],
      tags: Object.entries({ ...tagsOfDomains, ...OTHER_TAGS }).map(([name, description]) => ({ name, description }))
        .sort((one, other) => LAST.indexOf(one.name) - LAST.indexOf(other.name)),
      components: {
        securitySchemes: {
          bearerToken: {
            type: 'http',
            scheme: 'bearer',
            bearerFormat: 'dotenv_<organization>_<random>',
            description: 'An organization API token, or the access token of a workload, `dotenv_wl_…`. Same scopes as `oauth`.'
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
    transform: ({ schema, url }) => ({ schema: withOwnErrors(schema as Record<string, unknown>), url }),
    transformObject: (document) => {
      if (!('openapiObject' in document)) throw new Error('the document is OpenAPI 3.1')
      return arrange(document.openapiObject as unknown as Document) as unknown as typeof document.openapiObject
    }
  })
}

/** Serves the document and, if enabled, Swagger UI at `/docs`. The content security policy forbids inline scripts. */
export async function installDocs (app: FastifyInstance) {
  const explain = explainer(app, basePath(app))
  installRoot(app)
  await app.register(async (docs) => {
    // A page loads many files, so these routes have their own rate-limit group. Browsers revalidate the files by ETag.
    docs.addHook('onRoute', (route) => { route.config = { ...route.config, ...OF_DOCS } })
    cachePages(docs)
    docs.get('/openapi.json', hidden, async () => publishedDocument(app))
    docs.get('/openapi-3.0.json', hidden, async () => readOpenApi30(app))
    docs.get('/openapi.yaml', hidden, async (_request, reply) =>
      reply.type('application/yaml; charset=utf-8').send(renderYaml(publishedDocument(app))))
    if (!app.config.docsUi) return
    await docs.register(swaggerUi, {
      routePrefix: '/docs',
      indexPrefix: basePath(app),
      uiConfig: {
        layout: 'BaseLayout',
        persistAuthorization: false,
        validatorUrl: null,
        displayRequestDuration: true,
        deepLinking: true,
        filter: true,
        plugins: [EXAMPLES, EXPLORER]
      },
      // Swagger UI gets OpenAPI 3.0, because in OpenAPI 3.1 a document of this size takes Swagger UI seconds to read.
      transformSpecification: (document) => explain({ ...readOpenApi30(app), info: document.info }),
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

// Redirects browsers to the console or the documentation, and names the addresses to other clients. This route is not
// cached by `cachePages`, because its response depends on `Accept`.
function installRoot (app: FastifyInstance) {
  const { console, docsUi } = app.config
  const base = basePath(app)
  const pages = { ...(console && { console: `${base}/console/` }), ...(docsUi && { docs: `${base}/docs` }) }
  const home = pages.console ?? pages.docs
  app.get('/', { ...hidden, config: OF_DOCS }, async ({ headers: { accept } }, reply) => {
    if (preferredType(accept, ['application/json', 'text/html']) === 'application/json') {
      return { ...pages, openapi: `${base}/openapi.json` }
    }
    return home === undefined ? fail('not_found') : reply.redirect(home, 303)
  })
}

/** Documentation files: public, with a limit of their own, and checked again by browsers at each use. */
export const OF_DOCS = { access: 'public', limit: 'docs', cache: 'no-cache' } as const
const hidden = { schema: { hide: true } }

/** The document as `openapi.yaml` and `openapi.json` have it. */
export const publishedDocument = (app: FastifyInstance): object =>
  withPathParameters(app.swagger() as unknown as Document)

// Generated by `scripts/openapi-3.0.mjs` from `openapi.yaml`. `readOpenApi30` replaces the URL in the file.
const OPENAPI_30 = new URL('../../../openapi-3.0.json', import.meta.url)

function readOpenApi30 (app: FastifyInstance): Document {
  const document = JSON.parse(readFileSync(OPENAPI_30, 'utf8')) as Document
  const { servers } = app.swagger() as unknown as Document
  return { ...document, servers }
}

// The path of PUBLIC_URL. Without the host, the documentation works under every host name of the service.
const basePath = ({ config: { publicUrl } }: FastifyInstance): string =>
  publicUrl === undefined ? '' : new URL(publicUrl).pathname.replace(/\/$/, '')

// Swagger UI sets style attributes, but has no inline scripts.
const UI_CSP = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; " +
  "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
