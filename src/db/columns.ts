import { sql, type SQL } from 'drizzle-orm'
import { customType, timestamp, type PgColumn } from 'drizzle-orm/pg-core'

/** Raw bytes: a Buffer in code, `bytea` in the database. */
export const bytea = customType<{ data: Buffer, driverData: Buffer }>({ dataType: () => 'bytea' })

/** A timestamp with milliseconds, like a Date in code. So a stored Date is read back unchanged. */
export const moment = () => timestamp({ withTimezone: true, mode: 'date', precision: 3 })

/**
 * The start of the statement, for checks of an expiry. Not now(), which is the start of the transaction, because the
 * transaction may have waited for locks since then.
 */
export const STATEMENT_TIME = sql`statement_timestamp()`

/** Selects a count. Nested, because Drizzle removes table names from top-level columns if it selects from one table. */
export const counted = (subquery: SQL) => sql<number>`${subquery}`

/** The new `updated_at`: the current time, or the old value if no column changes, so that the ETag stays the same. */
export const changedAt = (column: PgColumn, changes: object): SQL =>
  Object.values(changes).some((value) => value !== undefined) ? sql`now()` : sql`${column}`
