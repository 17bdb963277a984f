import type { FastifyRequest } from 'fastify'
import type { MissingToken } from '../../../schemas/errors.ts'
import { ApiError } from '../../rules/api-error.ts'

/** All values of a header. For some headers, `request.headers` has only the first value. */
export const headerValues = ({ raw: { rawHeaders } }: FastifyRequest, name: string): string[] =>
  rawHeaders.filter((_value, i) => i % 2 === 1 && rawHeaders[i - 1]!.toLowerCase() === name)

const BEARER = /^Bearer +([\x21-\x7e]+)$/i

/** The token of an `Authorization` header (RFC 6750, 2.1; RFC 9110 allows several blanks); undefined without one. */
export const bearerIn = (authorization: string | undefined): string | undefined => BEARER.exec(authorization ?? '')?.[1]

// Headers in which clients of other services send a token.
const OTHER_HEADERS = ['x-api-key', 'x-auth-token', 'x-access-token']

// Schemes of other services, to tell a scheme without a token from a token without a scheme.
const OTHER_SCHEME = /^(?:ApiKey|Basic|Digest|DPoP|Negotiate|NTLM|Token)$/i

/**
 * Why a request has no token, for the `details` of 401; undefined if it has one, even a malformed one. The reason never
 * contains a part of a header, because a misplaced token is a secret.
 */
export function missingToken (request: FastifyRequest): { reason: MissingToken } | undefined {
  const [authorization, ...others] = headerValues(request, 'authorization').map((value) => value.trim())
  if (others.length > 0) return { reason: 'several_headers' }
  if (authorization === undefined || /^(?:Bearer)?$/i.test(authorization)) {
    if (OTHER_HEADERS.some((name) => name in request.headers)) return { reason: 'other_header' }
    // RFC 6750, 2.3: the query is logged and stored by proxies and browsers, so it must not have tokens.
    if (/[?&]access_token=/.test(request.url)) return { reason: 'in_query' }
    return { reason: authorization === undefined ? 'no_header' : 'no_token' }
  }
  if (/^Bearer\s/i.test(authorization)) return undefined
  // Such as `Bearer:TOKEN`.
  if (/^Bearer\b/i.test(authorization)) return { reason: 'no_scheme' }
  return { reason: /\s/.test(authorization) || OTHER_SCHEME.test(authorization) ? 'other_scheme' : 'no_scheme' }
}

const hasVersion = ({ headers: { 'x-api-version': version = '1' } }: FastifyRequest) => version === '1'

// RFC 9112, 3.2: a request of HTTP/1.1 has exactly one Host header, other requests at most one.
function hasHost (request: FastifyRequest): boolean {
  const hosts = headerValues(request, 'host').length
  return hosts === 1 || (hosts === 0 && request.raw.httpVersion !== '1.1')
}

// A path with a NUL character gets 404: no resource has NUL in its name, and PostgreSQL rejects NUL.
const hasNul = ({ url }: FastifyRequest) => url.split('?', 1)[0]!.includes('%00')

/** The error of a malformed request, independent of caller and route; undefined for a well-formed request. */
export function requestFormatError (request: FastifyRequest): ApiError | undefined {
  if (!hasHost(request)) return new ApiError('malformed_request')
  if (hasNul(request)) return new ApiError('not_found')
  if (!hasVersion(request)) return new ApiError('unsupported_api_version', { supported: ['1'] })
  return undefined
}
