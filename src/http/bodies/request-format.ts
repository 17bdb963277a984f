import type { FastifyRequest } from 'fastify'
import { ApiError } from '../../rules/errors.ts'

/** All values of a header. For some headers, `request.headers` has only the first value. */
export const headerValues = ({ raw: { rawHeaders } }: FastifyRequest, name: string): string[] =>
  rawHeaders.filter((_value, i) => i % 2 === 1 && rawHeaders[i - 1]!.toLowerCase() === name)

const BEARER = /^Bearer +([\x21-\x7e]+)$/i

/** The token of an `Authorization` header (RFC 6750, 2.1; RFC 9110 allows several blanks); undefined without one. */
export const bearerIn = (authorization: string | undefined): string | undefined => BEARER.exec(authorization ?? '')?.[1]

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
