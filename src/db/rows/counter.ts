import type { OrganizationStatus, Plan } from '../../../schemas/organizations.ts'
import type { Head } from '../events.ts'
import type { Db } from '../postgres/handle.ts'

/** The locked counter row of an organization. A change modifies this object, and `appendEvents` stores it. */
export interface Counter {
  readonly organization_id: string
  next_version: number
  stored_bytes: number
  head: Head
  /** The database's time when the counter was locked, or the time of the last change if that is up to an hour later. */
  readonly at: Date
  /** Whether the organization was deleted. */
  readonly is_closed: boolean
  readonly status: OrganizationStatus
  readonly plan: Plan
  /** Whether the chain key is loaded. Without the key, no event can be recorded. */
  readonly hasKey: boolean
  /** The end of the chain when the counter was locked. */
  readonly headAtLock: Head
}

const counters = new WeakMap<Db, Counter[]>()

/** The counters that a transaction has locked, a list that grows with each lock. */
export function countersOf (db: Db): Counter[] {
  const locked = counters.get(db) ?? []
  counters.set(db, locked)
  return locked
}

/**
 * Options for a SELECT that locks accounts, grants or projects. A change of a person or a long operation can hold such
 * a row while it waits for a counter. So a transaction that has locked a counter does not wait for the row: the
 * statement fails, and `transaction` runs the change again (RowLocked). A wait for an API token is safe: a transaction
 * that holds a token waits for no account, grant or counter afterwards.
 */
export const waitUnlessCounter = (db: Db): { noWait: true } | Record<string, never> =>
  countersOf(db).length === 0 ? {} : { noWait: true }
