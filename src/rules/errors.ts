import { ERRORS, type ErrorArgs, type ErrorCode } from '../../schemas/errors.ts'

export class ApiError extends Error {
  override name = 'ApiError'
  readonly code: ErrorCode
  readonly details: unknown
  /** Maps the name of each invalid member to its messages. */
  readonly errors: Record<string, string[]> | undefined

  constructor (code: ErrorCode, details?: unknown, errors?: Record<string, string[]>) {
    const { message, status } = ERRORS[code]
    // No stack trace for client errors: capturing it takes ten times as long as creating the error.
    const { stackTraceLimit } = Error
    if (status < 500) Error.stackTraceLimit = 0
    super(message)
    Error.stackTraceLimit = stackTraceLimit
    this.code = code
    this.details = details
    this.errors = errors
  }
}

/** Throws an error of the catalogue, which ends the request. */
export function fail<C extends ErrorCode> (code: C, ...args: ErrorArgs<C>): never {
  throw new ApiError(code, args[0])
}

/** Throws 422 `validation_failed` (or `code`) with a message for the invalid member. */
export function refuse (member: string, sentence: string, code: ErrorCode = 'validation_failed'): never {
  throw new ApiError(code, undefined, { [member]: [sentence] })
}
