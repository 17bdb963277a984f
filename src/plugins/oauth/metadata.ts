import type { Static, TSchema } from '@sinclair/typebox'
import { GRANT_TYPES, ResourceMetadata, ServerMetadata } from '../../../schemas/oauth.ts'
import { SCOPE_NAMES } from '../../../schemas/scopes.ts'
import type { Domain } from '../../http/routes/types.ts'

// Discovery documents: RFC 8414 for the authorization server, RFC 9728 for the API. Both documents are public and the
// same for every caller, so all origins may read them, and proxies may cache them for five minutes.
const SHARED = { 'access-control-allow-origin': '*', 'cross-origin-resource-policy': 'cross-origin' }

export const metadata: Domain = async (app) => {
  const basePath = app.config.publicUrl === undefined ? '' : new URL(app.config.publicUrl).pathname.replace(/\/$/, '')

  // The RFCs append the path of the issuer to the well-known path. The document is also published without that suffix.
  function publish<T extends TSchema> (
    name: string, operation: { operationId: string, summary: string, description: string }, answer: T,
    read: (issuer: string, documentation: string) => Static<T>
  ) {
    for (const suffix of new Set(['', basePath])) {
      app.get(`/.well-known/${name}${suffix}`, {
        config: { access: 'public', limit: 'none', cache: 'public, max-age=300', ignoresUnknownParameters: true },
        schema: { ...operation, tags: ['oauth'], hide: suffix !== '', response: { 200: answer as TSchema } },
        handler: async (_request, reply) => {
          const issuer = app.issuer()
          return reply.headers(SHARED).send(read(issuer, `${issuer}/${app.config.docsUi ? 'docs' : 'openapi.yaml'}`))
        }
      })
    }
  }

  publish('oauth-authorization-server', {
    operationId: 'getAuthorizationServer',
    summary: 'Describe the authorization server (RFC 8414)',
    description: 'OAuth libraries read the endpoints, the scopes and the methods of the service here.'
  }, ServerMetadata, (issuer, documentation) => ({
    issuer,
    authorization_endpoint: `${issuer}/oauth/authorize`,
    token_endpoint: `${issuer}/api/oauth/token`,
    revocation_endpoint: `${issuer}/api/oauth/revoke`,
    response_types_supported: ['code'],
    response_modes_supported: ['query'],
    grant_types_supported: [...GRANT_TYPES],
    code_challenge_methods_supported: ['S256'],
    token_endpoint_auth_methods_supported: ['none'],
    revocation_endpoint_auth_methods_supported: ['none'],
    authorization_response_iss_parameter_supported: true,
    scopes_supported: SCOPE_NAMES,
    service_documentation: documentation
  }))

  publish('oauth-protected-resource', {
    operationId: 'getProtectedResource',
    summary: 'Describe the API as a protected resource (RFC 9728)',
    description: 'Tells an application which server issues tokens for this API.'
  }, ResourceMetadata, (issuer, documentation) => ({
    resource: issuer,
    authorization_servers: [issuer],
    bearer_methods_supported: ['header'],
    scopes_supported: SCOPE_NAMES,
    resource_name: 'Strongroom',
    resource_documentation: documentation
  }))
}
