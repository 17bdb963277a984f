import { and, eq, sql, type SQL } from 'drizzle-orm'
import type { PgColumn, PgTable } from 'drizzle-orm/pg-core'
import {
  AUTHENTICATED, authenticatedColumns, type AuthenticatedRow, type AuthenticatedTable, type RowChanges
} from './authenticated.ts'
import { CLOCK, type EventChain } from '../events.ts'
import { andRowsAlone, hasOrganization } from '../postgres/engine.ts'
import type { Db } from '../postgres/handle.ts'

/** Computes and verifies the MACs of rows and events. */
export interface RowAuthority {
  /** Fingerprint of the row key and of the first chain key. Stored in each canary. */
  readonly fingerprint: Buffer
  readonly chain: EventChain
  mac (table: AuthenticatedTable, row: Readonly<Record<string, unknown>>): Buffer
  verifies (table: AuthenticatedTable, row: Readonly<Record<string, unknown>>, mac: Buffer | null): boolean
  /** An HMAC over a purpose and values, for `lookupHash`. */
  hash (purpose: LookupPurpose, values: readonly [name: string, value: unknown][]): Buffer
  /** Makes the token of a workload, which contains the sealed text. */
  sealToken (organizationId: string, content: string): string
  /** Reads the token of a workload; undefined unless `sealToken` made it with the same row key. */
  openToken (token: string): { organizationId: string, content: string } | undefined
  /** Logs and audits a row whose MAC did not verify. Runs in the background and never throws. */
  report (violation: Violation): void
  reports (): number
  logTo (log: ViolationLog): void
  /** Resolves when all reports are in the audit log. */
  settled (): Promise<void>
}

export interface ViolationLog { warn (details: object, message: string): void }

/** A row whose MAC does not verify. */
export interface Violation { table: AuthenticatedTable, row: Readonly<Record<string, unknown>>, about: About }

/** The organization or user of a row, if the row does not contain the id itself. */
export interface About { organization_id?: string, user_id?: number }

/** A row was changed, added or removed outside the service. The API answers `integrity_error`. */
export class TamperedRow extends Error {
  override readonly name = 'TamperedRow'

  constructor (what = 'a row') {
    super(`${what} is not what the service wrote`)
  }
}

/** Throws TamperedRow for a missing or manipulated row. */
export function tampered (): never {
  throw new TamperedRow()
}

const authorities = new WeakMap<Db, RowAuthority>()

/** Sets the authority of a handle or a transaction. `transaction` passes the authority of the handle on. */
export function setAuthority (db: Db, authority: RowAuthority | undefined) {
  if (authority !== undefined) authorities.set(db, authority)
}

export const findAuthority = (db: Db): RowAuthority | undefined => authorities.get(db)

export function authorityOf (db: Db): RowAuthority {
  const authority = authorities.get(db)
  if (authority === undefined) throw new Error('the database was opened without its row key')
  return authority
}

/** The audit chains of a database. */
export const chainOf = (db: Db): EventChain => authorityOf(db).chain

export const macOf = <N extends AuthenticatedTable>(db: Db, table: N, row: AuthenticatedRow<N>): Buffer =>
  authorityOf(db).mac(table, row)

/** Two purposes give different hashes of the same value. */
type LookupPurpose = 'idempotency key' | 'idempotent request' | 'sign-in attempts' | 'password reset'

/** An HMAC of guessable values, so that a reader of the database cannot test guesses. */
export const lookupHash = (db: Db, purpose: LookupPurpose, values: Readonly<Record<string, unknown>>): Buffer =>
  authorityOf(db).hash(purpose, Object.entries(values))

export type Authenticated<N extends AuthenticatedTable> = AuthenticatedRow<N> & { mac: Buffer | null }

/** A row to verify. `sealed` may be the content, or a boolean: whether there is content. */
type Checked<N extends AuthenticatedTable> = { [K in keyof Authenticated<N>]:
  Authenticated<N>[K] | (K extends 'sealed' ? boolean : never) }

/** Whether the MAC of a row verifies. If not, the row is reported, and the caller must treat it as missing. */
export function isAuthentic<N extends AuthenticatedTable> (
  db: Db, table: N, row: Checked<N>, about: About = {}
): boolean {
  if (verifies(db, table, row)) return true
  authorityOf(db).report({ table, row, about })
  return false
}

/**
 * Throws TamperedRow unless the MAC verifies. Used for projects, targets, environments and their documents: a request
 * must fail for a manipulated row, instead of treating it as missing.
 */
export function requireAuthentic<N extends AuthenticatedTable> (db: Db, table: N, row: Checked<N>): void {
  if (!verifies(db, table, row)) throw new TamperedRow(`${table} ${String((row as { id?: unknown }).id)}`)
}

/** Like `isAuthentic`, but reports nothing. */
export const verifies = <N extends AuthenticatedTable>(db: Db, table: N, row: Checked<N>): boolean =>
  authorityOf(db).verifies(table, row, row.mac)

/** The database's time in milliseconds, for an authenticated row that contains a time. */
export async function readNow (db: Db): Promise<number> {
  const rows = await db.execute(sql`SELECT floor(extract(epoch FROM now()) * 1000)::bigint AS now`)
  const [row] = rows as unknown as { now: string }[]
  return Number(row!.now)
}

/** Reads the database's clock, so that `EventChain.now` can estimate the time of the database. */
export async function readClock (db: Db): Promise<void> {
  const sentAt = performance.now()
  const [row] = await db.execute(sql`SELECT ${CLOCK} AS clock`) as unknown as { clock: number }[]
  authorityOf(db).chain.recordClockSample(row!.clock, sentAt)
}

// Maximum attempts. The UPDATE compares the old MAC, so an attempt fails if another transaction has changed the row
// since it was read.
const ATTEMPTS = 3

/**
 * Changes one authenticated row. Only a verified row gets a new MAC. Returns undefined if the row does not exist, does
 * not verify, or was changed concurrently in each attempt.
 */
export async function updateAuthentic<N extends AuthenticatedTable> (
  db: Db, name: N, where: SQL | undefined, changes: RowChanges<N> | ((now: Date) => RowChanges<N>)
): Promise<AuthenticatedRow<N> | undefined> {
  const table = AUTHENTICATED[name].table as unknown as PgTable & Record<string, PgColumn>
  const columns = authenticatedColumns(name) as unknown as Record<string, PgColumn>
  const locked = sql`${where!}${hasOrganization(table) ? sql`` : andRowsAlone}`
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    const [row] = await db.select(columns).from(table).where(locked).for('no key update') as unknown as Authenticated<N>[]
    if (row === undefined || !isAuthentic(db, name, row)) return undefined
    const wanted = typeof changes === 'function' ? changes(new Date(await readNow(db))) : changes
    const set = Object.fromEntries(Object.entries(wanted).filter(([, value]) => value !== undefined))
    const next = { ...row, ...set } as Authenticated<N>
    const key = AUTHENTICATED[name].key.map((column) => eq(table[column]!, (row as Record<string, unknown>)[column]))
    const done = await db.update(table).set({ ...set, mac: macOf(db, name, next) } as never)
      .where(and(...key, eq(table.mac!, row.mac))).returning({ mac: table.mac! })
    if (done.length === 1) return next
  }
  return undefined
}

/**
 * Runs `fn` in a savepoint of the caller's transaction, which can continue after an error of `fn`. Without a
 * transaction, runs `fn` in a transaction of its own.
 */
export const savepoint = async <T>(db: Db, fn: (db: Db) => Promise<T>): Promise<T> =>
  db.transaction(async (nested) => {
    setAuthority(nested, findAuthority(db))
    return fn(nested)
  })
