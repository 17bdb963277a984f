import { ERRORS, type ErrorArgs, type ErrorCode } from '../../schemas/errors.ts'

/** The maximum number of faults that an error names. */
export const MAX_FAULTS = 20

export class ApiError extends Error {
  override name = 'ApiError'
  readonly code: ErrorCode
  readonly details: unknown
  /** Maps the name of each invalid member to its messages. */
  readonly errors: Record<string, string[]> | undefined
  /** The member for the message. It may not be the first of `errors`: objects list names of digits first. */
  readonly first: string | undefined

  constructor (
    code: ErrorCode, details?: unknown, errors?: Record<string, string[]>, first = Object.keys(errors ?? {})[0]
  ) {
    const { message, status } = ERRORS[code]
    // No stack trace for client errors: capturing it takes ten times as long as creating the error.
    const { stackTraceLimit } = Error
    if (status < 500) Error.stackTraceLimit = 0
    super(message)
    Error.stackTraceLimit = stackTraceLimit
    this.code = code
    this.details = details
    this.errors = errors
    this.first = first
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

/** Throws 422 `validation_failed` (or `code`) with a message for each invalid member, unless there is none. */
export function refuseEach (members: Iterable<string>, sentence: string, code: ErrorCode = 'validation_failed') {
  const errors: Record<string, string[]> = Object.create(null)
  let count = 0
  for (const member of members) {
    errors[member] = [sentence]
    if (++count === MAX_FAULTS) break
  }
  if (count > 0) throw new ApiError(code, undefined, errors)
}
