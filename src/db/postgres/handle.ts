import type { PgDatabase, PgQueryResultHKT } from 'drizzle-orm/pg-core'

/** The first argument of a repository function: a handle of the database, or a transaction. */
export type Db = PgDatabase<PgQueryResultHKT>

/** Maximum number of concurrent batches: two, so that a slow batch does not block the others. */
export const slotsOf = (db: Db): number => Math.min(2, connectionsOf(db))

export const connectionsOf = (db: Db): number =>
  (db as unknown as { $client: { options: { max: number } } }).$client.options.max
