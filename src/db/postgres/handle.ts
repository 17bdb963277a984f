import type { PgDatabase, PgQueryResultHKT } from 'drizzle-orm/pg-core'

/** What a repository gets as its first argument: a handle of the database, or a transaction. */
export type Db = PgDatabase<PgQueryResultHKT>

/**
 * How many statements of one kind are under way at most, when each of them carries all that wait: two, of which one can
 * be slow without the other, or as many as there are connections, since a second statement on the same connection waits
 * for the first one anyway.
 */
export const slotsOf = (db: Db): number => Math.min(2, connectionsOf(db))

/** How many connections a handle has. */
export const connectionsOf = (db: Db): number =>
  (db as unknown as { $client: { options: { max: number } } }).$client.options.max
