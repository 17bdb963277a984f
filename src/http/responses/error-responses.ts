import type { FastifyError, FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { codeOf, ERRORS, messageOf, type ErrorCode } from '../../../schemas/errors.ts'
import { IntegrityError } from '../../crypto/at-rest.ts'
import { MasterKeyMissing } from '../../crypto/keyring.ts'
import { CallerEnded, OrganizationInactive } from '../../db/rows/caller.ts'
import { DatabaseUnavailable, databaseError, TamperedRow } from '../../db/database.ts'
import { WorkOverloaded } from '../../gate.ts'
import { ApiError } from '../../rules/api-error.ts'
import { HiddenResource } from '../guard/level-lookup.ts'
import { missingPart } from '../guard/missing-part.ts'
import { witnessOf } from '../routes/actor.ts'
import { Repeated, replay, STORED_HEADERS } from '../repeats/idempotency.ts'
import { BodyRefused, withLaterFaults } from '../bodies/faults.ts'
import { errorsByMember } from '../bodies/validation.ts'

/** The realm of every challenge (RFC 9110, 11.5). */
export const REALM = 'Bearer realm="strongroom"'

const OF_FASTIFY: Record<string, ErrorCode> = {
  FST_ERR_CTP_BODY_TOO_LARGE: 'payload_too_large',
  FST_ERR_CTP_INVALID_MEDIA_TYPE: 'unsupported_media_type',
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: 'malformed_request',
  FST_ERR_BAD_URL: 'not_found',
  FST_ERR_MAX_PARAM_LENGTH: 'not_found'
}

/** Converts every error to an error of the catalogue (`ERRORS`). The cause of an unknown error is only logged. */
export function installErrors (app: FastifyInstance) {
  app.setErrorHandler(async (thrown: FastifyError | Repeated, request, reply) => {
    let error = thrown
    if (error instanceof Repeated) {
      try {
        return await replay(app, request, reply, error.known)
      } catch (refused) {
        error = refused as FastifyError
      }
    }
    const answer = await withAllFaults(request, error as FastifyError)
    if (answer.code === 'integrity_error') await recordViolation(app, request)
    if (answer.code === 'unauthenticated') reply.header('www-authenticate', challengeOf(app, answer))
    if (answer.code === 'insufficient_permissions') {
      const { required_scope } = answer.details as { required_scope: string }
      reply.header('www-authenticate', `${REALM}, error="insufficient_scope", scope="${required_scope}"`)
    }
    if (answer.code === 'unsupported_media_type' && request.method === 'PATCH' && answer.details !== undefined) {
      // RFC 5789, 2.2
      reply.header('accept-patch', (answer.details as { accepted: string[] }).accepted.join(', '))
    }
    if (ERRORS[answer.code].status >= 500) {
      request.log.error({ err: databaseError(error), error_code: answer.code }, 'request failed')
    }
    const isUnnamed = answer.code === 'not_found' && answer.details === undefined
    const resource = isUnnamed ? await missingPart(app, request) : undefined
    // `missingPart` also runs for a hidden resource, so that the duration is the same as for a missing resource.
    const isNamed = resource !== undefined && !(answer instanceof HiddenResource)
    return sendError(request, reply, isNamed ? new ApiError('not_found', { resource }) : answer)
  })
}

// RFC 6750, 3.1: the challenge has an error code only if the request has a token (then the error has no `details`).
// `resource_metadata` says where to get a token (RFC 9728, 5.1).
function challengeOf (app: FastifyInstance, { details }: ApiError): string {
  const realm = `${REALM}, resource_metadata="${app.issuer()}/.well-known/oauth-protected-resource"`
  return details === undefined
    ? `${realm}, error="invalid_token", error_description="The token is not valid"`
    : realm
}

// Converts an error. If it is about an invalid part of the request, adds the faults of the other parts.
async function withAllFaults (request: FastifyRequest, thrown: FastifyError): Promise<ApiError> {
  const error = toApiError(thrown)
  const part = error instanceof BodyRefused ? 'body' : thrown.validationContext
  return part === undefined || error.errors === undefined ? error : withLaterFaults(request, error, part)
}

export function sendError (request: FastifyRequest, reply: FastifyReply, { code, details, errors, first }: ApiError) {
  request.errorCode = code
  // A failed handler may have set headers and the serializer of its response. A later request with the ETag of an error
  // gets 304.
  for (const name of STORED_HEADERS) reply.removeHeader(name)
  return reply
    .code(ERRORS[code].status)
    .type('application/json; charset=utf-8')
    .serializer(String)
    .send(details === undefined && errors === undefined
      ? PLAIN[code]
      : JSON.stringify({
        ...bodyOf(code, details), ...(WITH_FIELD.has(code) && inWords(code, errors, first)), details, errors
      }))
}

const WITH_FIELD = new Set<ErrorCode>(['validation_failed', 'invalid_parameter_combination'])

// Adds the first field error to the message, because many clients show only the message.
function inWords (code: ErrorCode, errors: Record<string, string[]> = {}, first?: string): { message?: string } {
  return first === undefined ? {} : { message: `${ERRORS[code].message} ${first}: ${errors[first]![0]}.` }
}

const bodyOf = (code: ErrorCode, details?: unknown) => ({ error: codeOf(code), message: messageOf(code, details) })
const PLAIN = Object.fromEntries(Object.keys(ERRORS).map((code) =>
  [code, JSON.stringify(bodyOf(code as ErrorCode))])) as Record<ErrorCode, string>

export function toApiError (thrown: FastifyError): ApiError {
  if (thrown instanceof ApiError) return thrown
  if (thrown instanceof CallerEnded) return new ApiError('unauthenticated')
  if (thrown instanceof OrganizationInactive) return new ApiError('organization_inactive', { status: thrown.status })
  if (thrown.validation) {
    return new ApiError('validation_failed', undefined, errorsByMember(thrown.validation, thrown.validationContext))
  }
  // The client disconnected while it sent its body, so this is not an error of the service.
  if (thrown.code === 'ECONNRESET' && thrown.statusCode === 400) return new ApiError('malformed_request')
  const isOfFastify = thrown.code?.startsWith('FST_') && Number(thrown.statusCode) < 500
  const code = OF_FASTIFY[thrown.code] ?? (isOfFastify ? 'malformed_request' : undefined)
  if (code !== undefined) return new ApiError(code)
  // An unknown master key is an integrity error too: the service never writes the id of an unknown key to a row.
  if (thrown instanceof TamperedRow || thrown instanceof IntegrityError || thrown instanceof MasterKeyMissing) {
    return new ApiError('integrity_error')
  }
  if (thrown instanceof WorkOverloaded || databaseError(thrown) instanceof DatabaseUnavailable) {
    return new ApiError('service_unavailable')
  }
  return new ApiError('internal_error')
}

// Never throws: the error response must be sent even if the event cannot be recorded.
async function recordViolation (app: FastifyInstance, request: FastifyRequest) {
  if (request.principal === null) return
  try {
    const event = { action: 'integrity.violation', resource_type: 'request', resource_id: null } as const
    await app.recordAlone(witnessOf(request), event)
  } catch (error) {
    request.log.error({ err: databaseError(error) }, 'recording the integrity violation failed')
  }
}

declare module 'fastify' {
  interface FastifyRequest {
    /** The code of the error response, for the log line. */
    errorCode?: ErrorCode
  }
}
