import { DrizzleQueryError } from 'drizzle-orm/errors'

/** The database cannot serve this now: it is down, busy, read-only or full. Trying again later may help. */
export class DatabaseUnavailable extends Error {
  override name = 'DatabaseUnavailable'
  readonly code: string | undefined
  /** Whether what was asked for certainly did not happen: it was never sent, or the server said that it failed. */
  readonly isUndone: boolean
  constructor (message: string, code?: string, isUndone = false) {
    super(message)
    this.code = code
    this.isUndone = isUndone
  }
}

/** A request has waited for the database as long as it may: the database itself may be well. */
export class OutOfTime extends DatabaseUnavailable {
  override name = 'OutOfTime'
}

/** Of what waited for the database in vain, and was never sent to it. */
export const neverSent = (message: string) => new DatabaseUnavailable(message, undefined, true)

/** What the database itself said, without a single value that the statement carried. */
export class DatabaseError extends Error {
  override name = 'DatabaseError'
  readonly code: string | undefined
  readonly constraint: string | undefined
  /** As of `DatabaseUnavailable`. */
  readonly isUndone: boolean
  constructor (message: string, code?: string, constraint?: string, isUndone = false) {
    super(message)
    this.code = code
    this.constraint = constraint
    this.isUndone = isUndone
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

interface DriverError extends Error {
  code?: string
  constraint_name?: string
  severity?: string
}

/**
 * The error to pass on: errors of the database come out as DatabaseUnavailable or DatabaseError, others as they are.
 * What Drizzle throws carries every parameter in its message, and what the driver throws carries them in hidden
 * members, in its detail and sometimes in its message. None of that may reach a log.
 */
export function databaseError (error: unknown): Error & { code?: string | undefined } {
  const cause = inner(error)
  // The driver hangs the statement on whatever error a connection ends with
  if (cause instanceof DatabaseUnavailable && 'parameters' in cause) {
    return new DatabaseUnavailable(cause.message, cause.code, cause.isUndone)
  }
  if (cause instanceof DatabaseUnavailable || cause instanceof DatabaseError) return cause
  const { code, severity, constraint_name: constraint } = cause
  // An error ends the statement and what it did; a fatal one ends the connection, whatever was done.
  const isUndone = severity === 'ERROR'
  if (code && UNAVAILABLE.some(pattern => pattern.test(code))) {
    return new DatabaseUnavailable(severity ? `${severity}: ${cause.message}` : code, code, isUndone)
  }
  // Class 22 quotes the value that it did not like
  if (severity) {
    const message = code?.startsWith('22') ? 'The database refused a value' : cause.message
    return new DatabaseError(message, code, constraint, isUndone)
  }
  if (cause !== error || 'parameters' in cause) {
    return new DatabaseError(`A statement could not be sent: ${code ?? cause.name}`, code)
  }
  return cause
}

/** Whether a row with this key is already there. */
export const isUniqueViolation = (error: unknown) => codeOf(error) === '23505'

/** Whether a row refers to one that is not there, or one is removed that others refer to. */
export const isForeignKeyViolation = (error: unknown) => codeOf(error) === '23503'

/** Whether a lock could not be had in time: somebody has held the row for too long. */
export const isLockTimeout = (error: unknown) => codeOf(error) === LOCK_TIMEOUT
export const LOCK_TIMEOUT = '55P03'

/**
 * Whether the database is not there for anybody just now: whoever asks next would wait as long. A lock that was held
 * too long says nothing about what others need.
 */
export const isAway = (error: unknown): boolean =>
  databaseError(error) instanceof DatabaseUnavailable && !isLockTimeout(error) && !(error instanceof OutOfTime)

/** Whether a transaction lost to another one, by a deadlock or a serialization failure: it can run again. */
export const isLostTransaction = (error: unknown) => /^(40P01|40001)$/.test(codeOf(error) ?? '')

// A cancelled statement and a timeout inside a transaction say nothing about the database either.
const OF_ONE = /^(57014|25P0[34])$/

/** Whether the database is away for all that wait, who need not find that out by a deadline of their own. */
export const isAwayForAll = (error: unknown): boolean => {
  const code = codeOf(error)
  const wasNeverSent = code === undefined && isUndone(error)
  return isAway(error) && !wasNeverSent && !isLostTransaction(error) && !OF_ONE.test(code ?? '')
}

/** Whether what was asked for certainly did not happen, so that asking again does not do it twice. */
export const isUndone = (error: unknown): boolean => {
  const known = databaseError(error)
  return (known instanceof DatabaseUnavailable || known instanceof DatabaseError) && known.isUndone
}

/** The database's code of an error, through whatever it is wrapped in. */
export const codeOf = (error: unknown) => inner(error).code

function inner (error: unknown): DriverError {
  let cause = error
  while (cause instanceof DrizzleQueryError && cause.cause) cause = cause.cause
  return cause instanceof Error ? cause : new Error('Something else than an error was thrown')
}
