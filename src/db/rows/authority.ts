import { and, eq, sql, type SQL } from 'drizzle-orm'
import type { PgColumn, PgTable } from 'drizzle-orm/pg-core'
import { AUTHENTICATED, authenticatedColumns, type AuthenticatedRow, type AuthenticatedTable } from './authenticated.ts'
import { CLOCK, type EventChain } from '../events.ts'
import type { Db } from '../postgres/handle.ts'

/** Makes and checks the MACs of rows and events. Whoever opens a database with its master key gives it one. */
export interface RowAuthority {
  /** What canaries name the keys of rows and events by. */
  readonly fingerprint: Buffer
  /** The chains of events. */
  readonly chain: EventChain
  mac (table: AuthenticatedTable, row: Readonly<Record<string, unknown>>): Buffer
  verifies (table: AuthenticatedTable, row: Readonly<Record<string, unknown>>, mac: Buffer | null): boolean
  /** An HMAC over a purpose and values, for `lookupHash`. */
  hash (purpose: LookupPurpose, values: readonly [name: string, value: unknown][]): Buffer
  /** Tells of a row that did not verify, and whom it is about. Never throws, and nobody waits for it. */
  report (violation: Violation): void
  /** How many were told of. */
  reports (): number
  /** Where reports are told of beside the audit. */
  logTo (log: ViolationLog): void
  /** Resolves when everything that was reported is written. */
  settled (): Promise<void>
}

export interface ViolationLog { warn (details: object, message: string): void }

/** A row that the service did not write as it is. */
export interface Violation { table: AuthenticatedTable, row: Readonly<Record<string, unknown>>, about: About }

/** Whom a row is about, where the row itself does not say it. */
export interface About { organization_id?: string, user_id?: number }

/** A row was changed, added or removed outside the service. The API answers `integrity_error`. */
export class TamperedRow extends Error {
  override readonly name = 'TamperedRow'

  constructor (what = 'a row') {
    super(`${what} is not what the service wrote`)
  }
}

/** Ends the request: a row that it needs was changed, added or removed outside the service. */
export function tampered (): never {
  throw new TamperedRow()
}

const authorities = new WeakMap<Db, RowAuthority>()

/** Gives a handle its authority; a transaction has that of the handle it began on. */
export function setAuthority (db: Db, authority: RowAuthority | undefined) {
  if (authority !== undefined) authorities.set(db, authority)
}

export const findAuthority = (db: Db): RowAuthority | undefined => authorities.get(db)

export function authorityOf (db: Db): RowAuthority {
  const authority = authorities.get(db)
  if (authority === undefined) throw new Error('the database was opened without the key of its rows')
  return authority
}

/** The MAC of a row that is about to be written. */
export const macOf = <N extends AuthenticatedTable>(db: Db, table: N, row: AuthenticatedRow<N>): Buffer =>
  authorityOf(db).mac(table, row)

/** What a stored hash finds. Hashes of two purposes are never equal. */
export type LookupPurpose = 'idempotency key' | 'idempotent request' | 'sign-in attempts'

/**
 * The hash under which a value is stored that could be guessed, as an `Idempotency-Key` or a mail address: an HMAC
 * under a key of the service. The database alone does not tell whether a guess is right, and two installations store
 * different hashes of equal values.
 */
export const lookupHash = (db: Db, purpose: LookupPurpose, values: Readonly<Record<string, unknown>>): Buffer =>
  authorityOf(db).hash(purpose, Object.entries(values))

export type Authenticated<N extends AuthenticatedTable> = AuthenticatedRow<N> & { mac: Buffer | null }

/** A row to be checked: in place of sealed content it is enough to know whether there is some. */
type Checked<N extends AuthenticatedTable> = { [K in keyof Authenticated<N>]:
  Authenticated<N>[K] | (K extends 'sealed' ? boolean : never) }

/** Whether the service wrote the row as it is. One that it did not is reported: to its reader it is not there. */
export function isAuthentic<N extends AuthenticatedTable> (
  db: Db, table: N, row: Checked<N>, about: About = {}
): boolean {
  if (verifies(db, table, row)) return true
  authorityOf(db).report({ table, row, about })
  return false
}

/**
 * Ends the request with `integrity_error` unless the service wrote the row as it is: for rows of levels, since a level
 * that silently disappears would be worse than an error. The error handler records it, and its log line names the row.
 */
export function requireAuthentic<N extends AuthenticatedTable> (db: Db, table: N, row: Checked<N>): void {
  if (!verifies(db, table, row)) throw new TamperedRow(`${table} ${String((row as { id?: unknown }).id)}`)
}

/** Whether the MAC of the row is right. */
export const verifies = <N extends AuthenticatedTable>(db: Db, table: N, row: Checked<N>): boolean =>
  authorityOf(db).verifies(table, row, row.mac)

/** The database's time in milliseconds, before an authenticated row is written that says one. */
export async function readNow (db: Db): Promise<number> {
  const [row] = await db.execute(
    sql`SELECT floor(extract(epoch FROM now()) * 1000)::bigint AS now`
  ) as unknown as { now: string }[]
  return Number(row!.now)
}

/** Reads the clock of the database, for `EventChain.now`. */
export async function readClock (db: Db): Promise<void> {
  const sentAt = performance.now()
  const [row] = await db.execute(sql`SELECT ${CLOCK} AS clock`) as unknown as { clock: number }[]
  authorityOf(db).chain.told(row!.clock, sentAt)
}

// Somebody else's change in between is seen by the MAC, which no two states share.
const ATTEMPTS = 3

/**
 * Changes one authenticated row: takes it, looks whether it is what the service wrote, and writes the change with the
 * MAC of the whole row. Undefined, and nothing changed, when there is none: what was tampered with does not become
 * authentic because something else of it changed. `more` are columns that are not authenticated.
 */
export async function updateAuthentic<N extends AuthenticatedTable> (
  db: Db, name: N, where: SQL | undefined, changes:
    Partial<AuthenticatedRow<N>> | ((now: Date) => Partial<AuthenticatedRow<N>>), more: Record<string, unknown> = {}
): Promise<AuthenticatedRow<N> | undefined> {
  const table = AUTHENTICATED[name].table as unknown as PgTable & Record<string, PgColumn>
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    const [row] = await db.select(
      authenticatedColumns(name) as unknown as Record<string, PgColumn>
    ).from(table).where(where).for('no key update') as unknown as Authenticated<N>[]
    if (row === undefined || !isAuthentic(db, name, row)) return undefined
    const wanted = typeof changes === 'function' ? changes(new Date(await readNow(db))) : changes
    const set = Object.fromEntries(Object.entries(wanted).filter(([, value]) => value !== undefined))
    const next = { ...row, ...set } as Authenticated<N>
    const key = AUTHENTICATED[name].key.map((column) => eq(table[column]!, (row as Record<string, unknown>)[column]))
    const done = await db.update(table).set({
      ...set, ...more, mac: macOf(db, name, next)
    } as never).where(and(...key, eq(table.mac!, row.mac))).returning({ mac: table.mac! })
    if (done.length === 1) return next
  }
  return undefined
}
