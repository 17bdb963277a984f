import { ResourceMetadata, ServerMetadata } from '../../../schemas/oauth.ts'
import { SCOPE_NAMES } from '../../../schemas/scopes.ts'
import type { Domain } from '../../http/routes/types.ts'

// Discovery documents: RFC 8414 for the authorization server, RFC 9728 for the API. Both are public and the same for
// every caller, so all origins may read them, and proxies may cache them for five minutes.
const SHARED = { 'access-control-allow-origin': '*', 'cross-origin-resource-policy': 'cross-origin' }
const CONFIG = { access: 'public', limit: 'none', cache: 'public, max-age=300' } as const

export const metadata: Domain = async (app) => {
  const path = app.config.publicUrl === undefined ? '' : new URL(app.config.publicUrl).pathname.replace(/\/$/, '')
  const at = (name: string) => [`/.well-known/${name}`, ...(path === '' ? [] : [`/.well-known/${name}${path}`])]

  for (const [i, url] of at('oauth-authorization-server').entries()) {
    app.get(url, {
      config: CONFIG,
      schema: {
        operationId: 'getAuthorizationServer',
        tags: ['oauth'],
        summary: 'Describe the authorization server (RFC 8414)',
        hide: i > 0,
        response: { 200: ServerMetadata }
      },
      handler: async (_request, reply) => {
        const issuer = app.issuer()
        return reply.headers(SHARED).send({
          issuer,
          authorization_endpoint: `${issuer}/oauth/authorize`,
          token_endpoint: `${issuer}/api/oauth/token`,
          revocation_endpoint: `${issuer}/api/oauth/revoke`,
          response_types_supported: ['code'],
          response_modes_supported: ['query'],
          grant_types_supported: ['authorization_code', 'refresh_token'],
          code_challenge_methods_supported: ['S256'],
          token_endpoint_auth_methods_supported: ['none'],
          revocation_endpoint_auth_methods_supported: ['none'],
          authorization_response_iss_parameter_supported: true,
          scopes_supported: [...SCOPE_NAMES],
          service_documentation: documentationOf(issuer, app.config.docsUi)
        })
      }
    })
  }

  for (const [i, url] of at('oauth-protected-resource').entries()) {
    app.get(url, {
      config: CONFIG,
      schema: {
        operationId: 'getProtectedResource',
        tags: ['oauth'],
        summary: 'Describe the API as a protected resource (RFC 9728)',
        hide: i > 0,
        response: { 200: ResourceMetadata }
      },
      handler: async (_request, reply) => {
        const issuer = app.issuer()
        return reply.headers(SHARED).send({
          resource: issuer,
          authorization_servers: [issuer],
          bearer_methods_supported: ['header'],
          scopes_supported: [...SCOPE_NAMES],
          resource_name: 'Strongroom',
          resource_documentation: documentationOf(issuer, app.config.docsUi)
        })
      }
    })
  }
}

const documentationOf = (issuer: string, ui: boolean) => ui ? `${issuer}/docs` : `${issuer}/openapi.yaml`
