import { and, is, SQL } from 'drizzle-orm'
import type { AnyPgColumn } from 'drizzle-orm/pg-core'
import type { Db } from '../postgres/handle.ts'
import { matching } from '../rows/matching.ts'
import { token_removals } from '../tables.ts'

/** An entry of the work list: an ended membership, grant or level whose API tokens are not all deleted yet. */
export type TokenRemoval = typeof token_removals.$inferSelect

type OrColumn<T> = { [K in keyof T]: T[K] | AnyPgColumn }

/** A condition for one entry, by values or by columns of an outer query. */
export const isTokenRemoval = ({ organization_id, ended, ended_id }: OrColumn<TokenRemoval>): SQL =>
  matching(token_removals, { organization_id, ended, ended_id })

/** Adds entries for invalid API tokens, which a background job then deletes. */
export async function createTokenRemovals (db: Db, removals: TokenRemoval | SQL): Promise<void> {
  const insert = db.insert(token_removals)
  await (is(removals, SQL) ? insert.select(removals) : insert.values(removals)).onConflictDoNothing()
}

/** Deletes an entry whose tokens are all deleted; with `besides`, only if that condition holds. */
export async function deleteTokenRemoval (db: Db, removal: TokenRemoval, besides?: SQL): Promise<void> {
  await db.delete(token_removals).where(and(isTokenRemoval(removal), besides))
}
