import { DrizzleQueryError } from 'drizzle-orm/errors'

class Failure extends Error {
  readonly code: string | undefined
  /** Whether the operation certainly had no effect: it was never sent, or the server reported its failure. */
  readonly isUndone: boolean
  constructor (message: string, code?: string, isUndone = false) {
    super(message)
    this.code = code
    this.isUndone = isUndone
  }
}

/** The database is down, busy, read-only or full. A later retry may help. */
export class DatabaseUnavailable extends Failure {
  override name = 'DatabaseUnavailable'
}

/** The deadline of a request has passed. The database itself may be available. */
export class OutOfTime extends DatabaseUnavailable {
  override name = 'OutOfTime'
}

/** The error of an operation that was not sent to the database. */
export const neverSent = (message: string) => new DatabaseUnavailable(message, undefined, true)

/** An error of the database, without the values of the statement. */
export class DatabaseError extends Failure {
  override name = 'DatabaseError'
  readonly constraint: string | undefined
  constructor (message: string, code?: string, constraint?: string, isUndone = false) {
    super(message, code, isUndone)
    this.constraint = constraint
  }
}

const UNAVAILABLE = [
  /^CONNECT/, // the driver's CONNECTION_CLOSED, CONNECTION_DESTROYED, CONNECTION_ENDED, CONNECT_TIMEOUT
  /^E(CONN|PIPE|HOST|NET|TIMEDOUT|NOTFOUND|AI_AGAIN|NOENT|PROTO)/,
  /^ERR_(SSL|TLS|STREAM)/,
  /^08/, // connection exceptions
  /^53/, // out of disk, memory, connections
  /^57(014|P0[1-5])$/, // cancelled, shutting down, crashed, starting up
  /^(55P03|40P01|40001|25006|25P0[34]|58030)$/ // lock time-out, deadlock, read-only, idle in transaction, I/O error
]

// Errors of Citus about another node, which have only the SQLSTATE of an internal error.
const INTERNAL = 'XX000'
const IS_NODE_AWAY =
  /^(failure on connection marked as essential|failed to prepare transaction|could not commit transaction)\b/
// The node may have committed before the connection to it was lost.
const IS_COMMIT_UNKNOWN = /^could not commit transaction\b/

interface DriverError extends Error {
  code?: string
  constraint_name?: string
  severity?: string
}

/**
 * Converts errors of the database to DatabaseUnavailable or DatabaseError; returns other errors unchanged. Errors of
 * Drizzle and the driver contain parameters, which must not reach a log.
 */
export function databaseError (error: unknown): Error & { code?: string | undefined } {
  const cause = inner(error)
  // The driver attaches the statement with its parameters to every error that ends a connection. Omit them.
  if (cause instanceof DatabaseUnavailable && 'parameters' in cause) {
    return new DatabaseUnavailable(cause.message, cause.code, cause.isUndone)
  }
  if (cause instanceof Failure) return cause
  const { code, severity, constraint_name: constraint } = cause
  // After ERROR, the statement had no effect. FATAL ends the connection, and the outcome is unknown.
  const isUndone = severity === 'ERROR' && !(code === INTERNAL && IS_COMMIT_UNKNOWN.test(cause.message))
  const isNodeAway = code === INTERNAL && IS_NODE_AWAY.test(cause.message)
  if (isNodeAway || (code && UNAVAILABLE.some(pattern => pattern.test(code)))) {
    return new DatabaseUnavailable(severity ? `${severity}: ${cause.message}` : code, code, isUndone)
  }
  // Messages of class 22 quote the invalid value.
  if (severity) {
    const message = code?.startsWith('22') ? 'The database refused a value' : cause.message
    return new DatabaseError(message, code, constraint, isUndone)
  }
  if (cause !== error || 'parameters' in cause) {
    return new DatabaseError(`A statement could not be sent: ${code ?? cause.name}`, code)
  }
  return cause
}

/** Whether a row with this key already exists. */
export const isUniqueViolation = (error: unknown) => codeOf(error) === '23505'

/** Whether a referenced row is missing, or a removed row is still referenced. */
export const isForeignKeyViolation = (error: unknown) => codeOf(error) === '23503'

export const isLockTimeout = (error: unknown) => codeOf(error) === LOCK_TIMEOUT
export const LOCK_TIMEOUT = '55P03'

/** Whether the database is unavailable for all requests, not just one row (lock timeout) or one request (deadline). */
export const isAway = (error: unknown): boolean =>
  databaseError(error) instanceof DatabaseUnavailable && !isLockTimeout(error) && !(error instanceof OutOfTime)

/** Whether a deadlock or a serialization failure ended the transaction, which can be retried. */
export const isLostTransaction = (error: unknown) => /^(40P01|40001)$/.test(codeOf(error) ?? '')

// A cancelled statement and a timeout inside a transaction concern one request only.
const OF_ONE = /^(57014|25P0[34])$/

/** Whether the database is unavailable for all queued requests, so that they can fail before their deadlines. */
export const isAwayForAll = (error: unknown): boolean => {
  const code = codeOf(error)
  const wasNeverSent = code === undefined && isUndone(error)
  return isAway(error) && !wasNeverSent && !isLostTransaction(error) && !OF_ONE.test(code ?? '')
}

/** Whether the operation certainly had no effect, so that a retry does not repeat it. */
export const isUndone = (error: unknown): boolean => {
  const known = databaseError(error)
  return known instanceof Failure && known.isUndone
}

/** The SQLSTATE or driver code of an error, through all wrappers. */
export const codeOf = (error: unknown) => inner(error).code

function inner (error: unknown): DriverError {
  let cause = error
  while (cause instanceof DrizzleQueryError && cause.cause) cause = cause.cause
  return cause instanceof Error ? cause : new Error('Something else than an error was thrown')
}
