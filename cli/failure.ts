/** An error of this command: one sentence that says what to do. `status`: the exit status, if not the usual one. */
export class Failure extends Error {
  status: number | undefined
  constructor (message: string, status?: number) {
    super(message)
    this.status = status
  }
}

/** Wrong usage of the command. */
export class Misuse extends Failure {
  constructor (message: string) { super(message, 2) }
}

/** The service does not answer now, so a cached response may replace its response. */
export class Away extends Failure {}

/** The credential of the caller has ended. */
export class Ended extends Failure {}

/** The service refused the request. */
export class Refusal extends Failure {
  httpStatus: number
  /** The code of the error, such as `not_found`. */
  code: string
  constructor (message: string, httpStatus: number, code: string) {
    super(message)
    this.httpStatus = httpStatus
    this.code = code
  }
}

/** What a refusal ends: all that the service gave the caller, or only what the request asked for. */
export function endedBy (error: unknown): 'caller' | 'place' | undefined {
  if (error instanceof Ended) return 'caller'
  if (!(error instanceof Refusal)) return undefined
  return error.httpStatus === 401 ? 'caller' : [403, 404].includes(error.httpStatus) ? 'place' : undefined
}

/** Whether the service cannot read the document, because the key of the project is with its clients. */
export const isClientManaged = (error: unknown): boolean =>
  error instanceof Refusal && error.code === 'client_managed_encryption'

/** The failure of a request that got no response. */
export function awayOf (url: string, error: unknown): Failure {
  if (error instanceof Failure) return error
  const { name, cause } = error as Error & { cause?: { code?: string, message?: string } }
  const reason = name === 'TimeoutError' ? 'no answer in time' : cause?.code ?? cause?.message ?? name
  return new Away(`${url} cannot be reached (${reason}).`)
}

/** The message of an error of Node.js, such as `EACCES: permission denied`, without the path and the stack. */
export const reasonOf = (error: unknown): string =>
  error instanceof Failure ? error.message : ((error as NodeJS.ErrnoException).code ?? (error as Error).message)
