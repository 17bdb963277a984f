import type { FastifyReply } from 'fastify'
import { messageOf } from '../../../schemas/errors.ts'
import { OAUTH_ERRORS, type OAuthErrorCode } from '../../../schemas/oauth.ts'
import type { ApiError } from '../../rules/api-error.ts'

interface OAuthErrorOptions {
  /** Names the wrong parameter, but never a value of the request. Default: the description of the code. */
  description?: string | undefined
  /** Whether the client used HTTP Basic. Only then is the status 401, with a challenge (RFC 6749, 5.2). */
  basic?: boolean
  /** The `details` of the API error from which this error was made. */
  details?: unknown
}

/** An error with a code of RFC 6749. */
export class OAuthError extends Error {
  override name = 'OAuthError'
  readonly code: OAuthErrorCode
  readonly basic: boolean
  readonly details: unknown

  constructor (code: OAuthErrorCode, { description, basic = false, details }: OAuthErrorOptions = {}) {
    super(description ?? OAUTH_ERRORS[code].description)
    this.code = code
    this.basic = basic
    this.details = details
  }
}

export function failOAuth (code: OAuthErrorCode, description?: string): never {
  throw new OAuthError(code, { description })
}

/** Sends `error` and `error_description` of RFC 6749, and the `message` and `details` that errors of this API have. */
export function sendOAuthError (reply: FastifyReply, { code, basic, details, message: description }: OAuthError) {
  const { status } = OAUTH_ERRORS[code]
  if (basic) reply.header('www-authenticate', 'Basic realm="strongroom"')
  return reply.code(basic ? 401 : status)
    .headers({ 'cache-control': 'no-store', pragma: 'no-cache' })
    .type('application/json').serializer(JSON.stringify)
    .send({ error: code, error_description: description, message: `${description}.`, details })
}

const OF_CATALOGUE: Record<string, OAuthErrorCode> = {
  payload_too_large: 'payload_too_large',
  unsupported_media_type: 'unsupported_media_type',
  method_not_allowed: 'method_not_allowed',
  rate_limit_exceeded: 'rate_limit_exceeded',
  service_unavailable: 'temporarily_unavailable',
  internal_error: 'server_error'
}

// Errors of which the description says more than the one of the code.
const SPECIFIC = new Set(['method_not_allowed', 'rate_limit_exceeded'])

/** The OAuth error for an error of the API. */
export function toOAuthError ({ code, details }: ApiError): OAuthError {
  const known = OF_CATALOGUE[code]
  if (known !== undefined && !SPECIFIC.has(code)) return new OAuthError(known)
  // RFC 6749, 5.2, forbids `"` and `\` in `error_description`.
  const description = messageOf(code, details).replace(/["\\]/g, "'").replace(/\.$/, '')
  // S-14.1: a 429 of the OAuth endpoints has no `details`.
  return new OAuthError(known ?? 'invalid_request', { description, ...(code !== 'rate_limit_exceeded' && { details }) })
}
