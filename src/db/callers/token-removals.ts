import { and, is, SQL } from 'drizzle-orm'
import type { AnyPgColumn } from 'drizzle-orm/pg-core'
import type { Db } from '../postgres/handle.ts'
import { matching } from '../rows/matching.ts'
import { token_removals } from '../tables.ts'

/** What ended with many API tokens of an organization, some of which are still there: an entry of the work list. */
export type TokenRemoval = typeof token_removals.$inferSelect

type OrColumn<T> = { [K in keyof T]: T[K] | AnyPgColumn }

/** A condition for one entry, by its values or by columns of a query around it. */
export const isTokenRemoval = ({ organization_id, ended, ended_id }: OrColumn<TokenRemoval>): SQL =>
  matching(token_removals, { organization_id, ended, ended_id })

/** Leaves API tokens to the background that count for nothing any more: an entry, or those that a query selects. */
export async function createTokenRemovals (db: Db, removals: TokenRemoval | SQL): Promise<void> {
  const insert = db.insert(token_removals)
  await (is(removals, SQL) ? insert.select(removals) : insert.values(removals)).onConflictDoNothing()
}

/** Takes an entry away, with nothing left of them; or if a condition holds besides. */
export async function deleteTokenRemoval (db: Db, removal: TokenRemoval, besides?: SQL): Promise<void> {
  await db.delete(token_removals).where(and(isTokenRemoval(removal), besides))
}
