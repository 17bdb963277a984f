import { char, customType, timestamp } from 'drizzle-orm/pg-core'

/** Raw bytes: a Buffer in code, `bytea` in the database. */
export const bytea = customType<{ data: Buffer, driverData: Buffer }>({ dataType: () => 'bytea' })

/** A moment in time: a Date in code. Milliseconds, so that what was written and what is read back are equal. */
export const moment = () => timestamp({ withTimezone: true, mode: 'date', precision: 3 })

/** An identifier that sorts by the time it was made. */
export const ulid = () => char({ length: 26 })
