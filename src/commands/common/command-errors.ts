import { databaseError, DatabaseError, DatabaseUnavailable } from '../../db/database.ts'

/** Wrong usage of a command; exit status 2. */
export class UsageError extends Error {}

/** An error that the operator can fix; printed as one line, exit status 1. */
export class StartError extends Error {
  override name = 'StartError'
}

/** A signal interrupted the start. */
export class StartEnded extends Error {
  override name = 'StartEnded'
}

/** SIGINT or SIGTERM ended a command. The message says in which state the data is. */
export class Interrupted extends Error {
  override name = 'Interrupted'
  readonly status: number

  constructor (message: string, status: number) {
    super(message)
    this.status = status
  }
}

/** Throws a StartError; usable as an expression. */
export function refuse (line: string): never {
  throw new StartError(line)
}

/** The first line of the error message, for the operator. */
export function lineOf (error: unknown): string {
  const shown = databaseError(error)
  const isDatabase = shown instanceof DatabaseUnavailable || shown instanceof DatabaseError
  return `${isDatabase ? 'The database cannot be used: ' : ''}${shown.message.split('\n', 1)[0]}`
}
