import { ERRORS, type ErrorArgs, type ErrorCode } from '../../schemas/errors.ts'

/** An error of the catalogue. */
export class ApiError extends Error {
  override name = 'ApiError'
  readonly code: ErrorCode
  readonly details: unknown
  /** Member name → sentences, for errors that say which member is wrong. */
  readonly errors: Record<string, string[]> | undefined

  constructor (code: ErrorCode, details?: unknown, errors?: Record<string, string[]>) {
    const { message, status } = ERRORS[code]
    // No stack trace for client errors: creating it takes ten times as long as the rest.
    const { stackTraceLimit } = Error
    if (status < 500) Error.stackTraceLimit = 0
    super(message)
    Error.stackTraceLimit = stackTraceLimit
    this.code = code
    this.details = details
    this.errors = errors
  }
}

/** Ends the request with a catalogue error. It never returns, so a guard is one line. */
export function fail<C extends ErrorCode> (code: C, ...args: ErrorArgs<C>): never {
  throw new ApiError(code, args[0])
}

/**
 * Ends the request with 422 `validation_failed` (or a code of its kind) that names the member and says what is wrong.
 */
export function refuse (member: string, sentence: string, code: ErrorCode = 'validation_failed'): never {
  throw new ApiError(code, undefined, { [member]: [sentence] })
}
