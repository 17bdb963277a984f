import { and, desc, inArray, notInArray, type SQL } from 'drizzle-orm'
import type { PgColumn } from 'drizzle-orm/pg-core'
import type { Db } from '../postgres/handle.ts'

const AT_ONCE = 200

/** Maximum rows for one DELETE, so that it ends long before the statement timeout. */
export const PIECE = 1_000

/**
 * Deletes up to 200 expired rows of the key's table that no other transaction has locked. Called with each insert into
 * the table, so that deletions keep pace without a timer.
 */
export async function deleteExpired (db: Db, key: PgColumn, expired: SQL): Promise<void> {
  const some = db.select({ key }).from(key.table).where(expired).limit(AT_ONCE).for('update', { skipLocked: true })
  await db.delete(key.table).where(inArray(key, some))
}

/** Deletes all matching rows but the newest. Called with each insert, so that a user never has too many rows. */
export async function keepNewest (
  db: Db, key: PgColumn, own: SQL, { by, most }: { by: PgColumn, most: number }
): Promise<void> {
  const newest = db.select({ key }).from(key.table).where(own).orderBy(desc(by)).limit(most)
  await db.delete(key.table).where(and(own, notInArray(key, newest)))
}

/** Deletes all rows that match a condition, in batches. */
export async function deleteInPieces (db: Db, key: PgColumn, which: SQL): Promise<void> {
  for (let taken = PIECE; taken === PIECE;) {
    const next = db.select({ key }).from(key.table).where(which).limit(PIECE).for('update')
    taken = (await db.delete(key.table).where(inArray(key, next)).returning({ key })).length
  }
}
