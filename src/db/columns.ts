import { sql, type SQL } from 'drizzle-orm'
import { customType, timestamp, type PgColumn } from 'drizzle-orm/pg-core'

/** Raw bytes: a Buffer in code, `bytea` in the database. */
export const bytea = customType<{ data: Buffer, driverData: Buffer }>({ dataType: () => 'bytea' })

/** A moment in time: a Date in code. Milliseconds, so that what was written and what is read back are equal. */
export const moment = () => timestamp({ withTimezone: true, mode: 'date', precision: 3 })

/**
 * A count of other rows, as a column of a select. In a select of one table Drizzle drops the tables' names from the
 * columns of an expression, but not from nested ones: so the subquery is nested.
 */
export const counted = (subquery: SQL) => sql<number>`${subquery}`

/** When a row was changed last: now. A change without a member changes nothing, and leaves the row its ETag. */
export const changedAt = (column: PgColumn, changes: object): SQL =>
  Object.values(changes).some((value) => value !== undefined) ? sql`now()` : sql`${column}`
