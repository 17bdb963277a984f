import type { FastifyReply } from 'fastify'
import { OAUTH_ERRORS, type OAuthErrorCode } from '../../../schemas/oauth.ts'

/** An error with a code of RFC 6749. */
export class OAuthError extends Error {
  override name = 'OAuthError'
  readonly code: OAuthErrorCode
  /** Whether the client used HTTP Basic. Only then is the status 401, with a challenge (RFC 6749, 5.2). */
  readonly basic: boolean

  constructor (code: OAuthErrorCode, basic = false) {
    super(OAUTH_ERRORS[code].description)
    this.code = code
    this.basic = basic
  }
}

export function failOAuth (code: OAuthErrorCode): never {
  throw new OAuthError(code)
}

/** Sends `error` and `error_description` of RFC 6749, and `message`, which all errors of this API have. */
export function sendOAuthError (reply: FastifyReply, { code, basic }: OAuthError) {
  const { status, description } = OAUTH_ERRORS[code]
  if (basic) reply.header('www-authenticate', 'Basic realm="strongroom"')
  return reply.code(basic ? 401 : status)
    .headers({ 'cache-control': 'no-store', pragma: 'no-cache' })
    .type('application/json').serializer(JSON.stringify)
    .send({ error: code, error_description: description, message: `${description}.` })
}

const OF_CATALOGUE: Record<string, OAuthErrorCode> = {
  payload_too_large: 'payload_too_large',
  unsupported_media_type: 'unsupported_media_type',
  method_not_allowed: 'method_not_allowed',
  rate_limit_exceeded: 'rate_limit_exceeded',
  service_unavailable: 'temporarily_unavailable',
  internal_error: 'server_error'
}

/** The OAuth error for an error code of the API. */
export function toOAuthError (code: string): OAuthError {
  return new OAuthError(OF_CATALOGUE[code] ?? 'invalid_request')
}
