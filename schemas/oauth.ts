import { Type, type Static } from '@sinclair/typebox'
import { Answer, Example, OneOf } from './shapes.ts'

// Names and lengths come from RFC 6749, 7523, 7636, 8414, 8693, 9207 and 9728.

/** The grant types by which a workload exchanges an assertion of its platform for an access token. */
export const TOKEN_EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange'
export const JWT_BEARER = 'urn:ietf:params:oauth:grant-type:jwt-bearer'
export const GRANT_TYPES = ['authorization_code', 'refresh_token', TOKEN_EXCHANGE, JWT_BEARER] as const

/** Types of tokens (RFC 8693, 3). */
export const ACCESS_TOKEN_TYPE = 'urn:ietf:params:oauth:token-type:access_token'
export const ASSERTION_TYPES = ['urn:ietf:params:oauth:token-type:jwt', 'urn:ietf:params:oauth:token-type:id_token'] as const

/** The error codes of RFC 6749 (4.1.2.1, 5.2) and RFC 8693 (2.2.2) with their status and description. */
export const OAUTH_ERRORS = {
  invalid_request: { status: 400, description: 'A parameter is missing, repeated or malformed' },
  invalid_client: { status: 400, description: 'client_id is not the id of a client that may be used' },
  invalid_grant: {
    status: 400,
    description: 'The code or refresh_token is invalid, expired or used, or client_id, redirect_uri or code_verifier ' +
      'are not those that it was issued for'
  },
  unsupported_grant_type: { status: 400, description: `grant_type must be one of ${GRANT_TYPES.join(', ')}` },
  invalid_scope: { status: 400, description: 'scope contains an unknown scope, or one that was not granted' },
  invalid_target: {
    status: 400, description: 'resource must be omitted, and audience must be omitted or the URL of this service'
  },
  unsupported_response_type: { status: 400, description: 'response_type must be code' },
  access_denied: { status: 403, description: 'The request was denied' },
  login_required: { status: 400, description: 'prompt must not be none: the user must sign in' },
  consent_required: { status: 400, description: 'prompt must not be none: the user must consent' },
  request_not_supported: { status: 400, description: 'request is not supported: send each parameter by itself' },
  request_uri_not_supported: { status: 400, description: 'request_uri is not supported: send each parameter by itself' },
  unsupported_media_type: {
    status: 415, description: 'Send application/x-www-form-urlencoded or application/json in UTF-8'
  },
  payload_too_large: { status: 413, description: 'The body is larger than the limit' },
  method_not_allowed: { status: 405, description: 'This path does not support the method' },
  rate_limit_exceeded: { status: 429, description: 'Too many requests' },
  server_error: { status: 500, description: 'Internal error. Try again later' },
  temporarily_unavailable: { status: 503, description: 'The service is temporarily unavailable' }
} as const
export type OAuthErrorCode = keyof typeof OAUTH_ERRORS

/** Lifetimes: codes and access tokens in seconds, refresh tokens and grants in days. */
export const LIFETIMES = { code: 60, access: 3600, refreshIdleDays: 30, grantDays: 90 } as const

/** Maximum number of live grants per user and application. A further grant revokes the oldest grant. */
export const MAX_GRANTS = 100

export const STATE_LENGTH = 4096
export const REDIRECT_LENGTH = 2048

/**
 * The schema of OAuth errors with a status: RFC 6749, 5.2, and `message`, which all errors of this API have. Errors of
 * a request that the API cannot read also have its `details`.
 */
export function OAuthErrorBody (status: number) {
  // 401 is only for clients that use HTTP Basic authentication.
  const codes = status === 401
    ? ['invalid_client' as const]
    : (Object.keys(OAUTH_ERRORS) as OAuthErrorCode[]).filter((one) => OAUTH_ERRORS[one].status === status)
  const [first] = codes
  if (first === undefined) throw new Error(`no OAuth error has the status ${status}`)
  const { description } = OAUTH_ERRORS[first]
  const details = Type.Optional(Type.Object({}, {
    additionalProperties: true, description: 'what is wrong in a body or query that cannot be read: `line`, `column`, `fields`'
  }))
  return Type.Object({
    error: OneOf(codes), error_description: Type.String(), message: Type.String(), ...status === 400 && { details }
  }, {
    title: `OAuthError_${status}`,
    'x-response-description': codes.join(', '),
    examples: [{ error: first, error_description: description, message: `${description}.` }]
  })
}

const code = Type.String({ description: 'authorization_code: the code' })
const verifier = Type.String({ description: 'authorization_code: 43 to 128 characters (RFC 7636)' })

/** Only for the OpenAPI document. The handler validates the body, because RFC 6749 defines the errors. */
export const TokenBody = Type.Object({
  grant_type: OneOf(GRANT_TYPES),
  client_id: Type.Optional(Type.String({
    description: 'the application; of a workload, the `public_id` of its rule'
  })),
  code: Type.Optional(code),
  code_verifier: Type.Optional(verifier),
  redirect_uri: Type.Optional(Type.String({ description: 'authorization_code: the `redirect_uri` of the authorization request' })),
  refresh_token: Type.Optional(Type.String({ description: 'refresh_token: the newest one' })),
  subject_token: Type.Optional(Type.String({ description: 'token-exchange: the assertion, a JWT of the platform' })),
  subject_token_type: Type.Optional(Type.String({ description: `token-exchange: ${ASSERTION_TYPES.join(' or ')}` })),
  requested_token_type: Type.Optional(Type.String({ description: `token-exchange: ${ACCESS_TOKEN_TYPE}` })),
  assertion: Type.Optional(Type.String({ description: 'jwt-bearer: the assertion, a JWT of the platform' })),
  audience: Type.Optional(Type.String({ description: 'token-exchange and jwt-bearer: the URL of this service' })),
  scope: Type.Optional(Type.String({
    description: 'refresh_token, token-exchange and jwt-bearer: the same scopes or fewer'
  }))
}, {
  title: 'TokenBody',
  examples: [{
    grant_type: 'authorization_code',
    client_id: 'dotenv-cli',
    code: 'dotenv_ac_…',
    code_verifier: 'dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk',
    redirect_uri: 'http://127.0.0.1:5555/callback'
  }]
})

/** RFC 6749, 5.1, and RFC 8693, 2.2.1. */
export const TokenAnswer = Answer('TokenAnswer', {
  access_token: Example(Type.String(), 'dotenv_at_…'),
  issued_token_type: Type.Optional(Type.Literal(ACCESS_TOKEN_TYPE, { description: 'only of token-exchange' })),
  token_type: Type.Literal('Bearer'),
  expires_in: Example(Type.Integer(), LIFETIMES.access),
  refresh_token: Type.Optional(Example(Type.String({ description: 'absent for the console and for workloads' }), 'dotenv_rt_…')),
  scope: Example(Type.String(), 'secret:read project:read')
})
export type TokenAnswer = Static<typeof TokenAnswer>

/** RFC 7009, 2.1. */
export const RevokeBody = Type.Object({
  token: Type.String({ description: 'the refresh token, or the access token' }),
  client_id: Type.Optional(Type.String({ description: 'required, here or as the user name of HTTP Basic' })),
  token_type_hint: Type.Optional(Type.String())
}, { title: 'RevokeBody', examples: [{ token: 'dotenv_rt_…', client_id: 'dotenv-cli' }] })

export const RevokeAnswer = Answer('RevokeAnswer', {})

const ISSUER = 'https://secrets.example.com'
const Url = (path = '') => Example(Type.String(), `${ISSUER}${path}`)
const Words = (...words: string[]) => Example(Type.Array(Type.String()), words)

/** RFC 8414, 2. */
export const ServerMetadata = Answer('AuthorizationServerMetadata', {
  issuer: Url(),
  authorization_endpoint: Url('/oauth/authorize'),
  token_endpoint: Url('/api/oauth/token'),
  revocation_endpoint: Url('/api/oauth/revoke'),
  response_types_supported: Words('code'),
  response_modes_supported: Words('query'),
  grant_types_supported: Words(...GRANT_TYPES),
  code_challenge_methods_supported: Words('S256'),
  token_endpoint_auth_methods_supported: Words('none'),
  revocation_endpoint_auth_methods_supported: Words('none'),
  authorization_response_iss_parameter_supported: Example(Type.Boolean(), true),
  scopes_supported: Words('secret:read'),
  service_documentation: Url('/docs')
})

/** RFC 9728, 2. */
export const ResourceMetadata = Answer('ProtectedResourceMetadata', {
  resource: Url(),
  authorization_servers: Words(ISSUER),
  bearer_methods_supported: Words('header'),
  scopes_supported: Words('secret:read'),
  resource_name: Example(Type.String(), 'Strongroom'),
  resource_documentation: Url('/docs')
})
