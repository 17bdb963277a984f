import type { PgDatabase, PgQueryResultHKT } from 'drizzle-orm/pg-core'

/** What a repository gets as its first argument: a handle of the database, or a transaction. */
export type Db = PgDatabase<PgQueryResultHKT>
