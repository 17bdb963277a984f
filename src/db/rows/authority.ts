import { and, eq, sql, type SQL } from 'drizzle-orm'
import type { PgColumn, PgTable } from 'drizzle-orm/pg-core'
import { AUTHENTICATED, authenticatedColumns, type AuthenticatedRow, type AuthenticatedTable } from './authenticated.ts'
import { CLOCK, type EventChain } from '../events.ts'
import type { Db } from '../postgres/handle.ts'

/** Makes and verifies the MACs of rows and events, with the keys that the master key unwraps. */
export interface RowAuthority {
  /** Identifies the keys of rows and events in canaries. */
  readonly fingerprint: Buffer
  readonly chain: EventChain
  mac (table: AuthenticatedTable, row: Readonly<Record<string, unknown>>): Buffer
  verifies (table: AuthenticatedTable, row: Readonly<Record<string, unknown>>, mac: Buffer | null): boolean
  /** An HMAC over a purpose and values, for `lookupHash`. */
  hash (purpose: LookupPurpose, values: readonly [name: string, value: unknown][]): Buffer
  /** Reports a row whose MAC did not verify, and its organization or user. Runs in the background and never throws. */
  report (violation: Violation): void
  reports (): number
  /** Sets the log for reports, which are recorded in the audit as well. */
  logTo (log: ViolationLog): void
  /** Resolves when all reports are written. */
  settled (): Promise<void>
}

export interface ViolationLog { warn (details: object, message: string): void }

/** A row whose MAC does not verify. */
export interface Violation { table: AuthenticatedTable, row: Readonly<Record<string, unknown>>, about: About }

/** The organization or user of a row that does not contain these ids itself. */
export interface About { organization_id?: string, user_id?: number }

/** A row was changed, added or removed outside the service. The API answers `integrity_error`. */
export class TamperedRow extends Error {
  override readonly name = 'TamperedRow'

  constructor (what = 'a row') {
    super(`${what} is not what the service wrote`)
  }
}

/** Ends the request because the MAC of a required row does not verify. */
export function tampered (): never {
  throw new TamperedRow()
}

const authorities = new WeakMap<Db, RowAuthority>()

/** Sets the authority of a handle; a transaction inherits it from its handle. */
export function setAuthority (db: Db, authority: RowAuthority | undefined) {
  if (authority !== undefined) authorities.set(db, authority)
}

export const findAuthority = (db: Db): RowAuthority | undefined => authorities.get(db)

export function authorityOf (db: Db): RowAuthority {
  const authority = authorities.get(db)
  if (authority === undefined) throw new Error('the database was opened without its row key')
  return authority
}

/** The MAC for a row to be written. */
export const macOf = <N extends AuthenticatedTable>(db: Db, table: N, row: AuthenticatedRow<N>): Buffer =>
  authorityOf(db).mac(table, row)

/** The purpose of a stored hash. Hashes of two purposes are never equal. */
type LookupPurpose = 'idempotency key' | 'idempotent request' | 'sign-in attempts'

/** An HMAC of a guessable value, so that the database alone does not reveal whether a guess is right. */
export const lookupHash = (db: Db, purpose: LookupPurpose, values: Readonly<Record<string, unknown>>): Buffer =>
  authorityOf(db).hash(purpose, Object.entries(values))

export type Authenticated<N extends AuthenticatedTable> = AuthenticatedRow<N> & { mac: Buffer | null }

/** A row for verification. Sealed content may be replaced by whether it exists. */
type Checked<N extends AuthenticatedTable> = { [K in keyof Authenticated<N>]:
  Authenticated<N>[K] | (K extends 'sealed' ? boolean : never) }

/** Whether the MAC of a row verifies. A row that does not verify is reported, and must be treated as missing. */
export function isAuthentic<N extends AuthenticatedTable> (
  db: Db, table: N, row: Checked<N>, about: About = {}
): boolean {
  if (verifies(db, table, row)) return true
  authorityOf(db).report({ table, row, about })
  return false
}

/** Throws TamperedRow unless the MAC of the row verifies, for levels: one that silently disappears would be worse. */
export function requireAuthentic<N extends AuthenticatedTable> (db: Db, table: N, row: Checked<N>): void {
  if (!verifies(db, table, row)) throw new TamperedRow(`${table} ${String((row as { id?: unknown }).id)}`)
}

/** Whether the MAC of the row is correct. */
export const verifies = <N extends AuthenticatedTable>(db: Db, table: N, row: Checked<N>): boolean =>
  authorityOf(db).verifies(table, row, row.mac)

/** The database's time in milliseconds, for an authenticated row that contains a time. */
export async function readNow (db: Db): Promise<number> {
  const rows = await db.execute(sql`SELECT floor(extract(epoch FROM now()) * 1000)::bigint AS now`)
  const [row] = rows as unknown as { now: string }[]
  return Number(row!.now)
}

/** Takes a clock sample of the database for `EventChain.now`. */
export async function readClock (db: Db): Promise<void> {
  const sentAt = performance.now()
  const [row] = await db.execute(sql`SELECT ${CLOCK} AS clock`) as unknown as { clock: number }[]
  authorityOf(db).chain.recordClockSample(row!.clock, sentAt)
}

// Retries after a concurrent change, which shows in the MAC: no two states of a row have the same MAC.
const ATTEMPTS = 3

/**
 * Changes one authenticated row, and `more` columns that are not authenticated. Returns undefined without changes when
 * there is no such row or its MAC does not verify, so that a change never makes a manipulated row authentic.
 */
export async function updateAuthentic<N extends AuthenticatedTable> (
  db: Db, name: N, where: SQL | undefined,
  changes: Partial<AuthenticatedRow<N>> | ((now: Date) => Partial<AuthenticatedRow<N>>),
  more: Record<string, unknown> = {}
): Promise<AuthenticatedRow<N> | undefined> {
  const table = AUTHENTICATED[name].table as unknown as PgTable & Record<string, PgColumn>
  const columns = authenticatedColumns(name) as unknown as Record<string, PgColumn>
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    const [row] = await db.select(columns).from(table).where(where).for('no key update') as unknown as Authenticated<N>[]
    if (row === undefined || !isAuthentic(db, name, row)) return undefined
    const wanted = typeof changes === 'function' ? changes(new Date(await readNow(db))) : changes
    const set = Object.fromEntries(Object.entries(wanted).filter(([, value]) => value !== undefined))
    const next = { ...row, ...set } as Authenticated<N>
    const key = AUTHENTICATED[name].key.map((column) => eq(table[column]!, (row as Record<string, unknown>)[column]))
    const done = await db.update(table).set({ ...set, ...more, mac: macOf(db, name, next) } as never)
      .where(and(...key, eq(table.mac!, row.mac))).returning({ mac: table.mac! })
    if (done.length === 1) return next
  }
  return undefined
}
