import { sql, type SQL } from 'drizzle-orm'
import { customType, timestamp, type PgColumn } from 'drizzle-orm/pg-core'

/** Raw bytes: a Buffer in code, `bytea` in the database. */
export const bytea = customType<{ data: Buffer, driverData: Buffer }>({ dataType: () => 'bytea' })

/** A timestamp: a Date in code, with milliseconds, so that a value survives a round trip. */
export const moment = () => timestamp({ withTimezone: true, mode: 'date', precision: 3 })

/** A count as a column. Nested, because in a select of one table Drizzle removes table names from other expressions. */
export const counted = (subquery: SQL) => sql<number>`${subquery}`

/** The new `updated_at`: now. Without changed columns the row keeps its time, and therefore its ETag. */
export const changedAt = (column: PgColumn, changes: object): SQL =>
  Object.values(changes).some((value) => value !== undefined) ? sql`now()` : sql`${column}`
