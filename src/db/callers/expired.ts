import { and, desc, inArray, notInArray, type SQL } from 'drizzle-orm'
import type { PgColumn, PgTable } from 'drizzle-orm/pg-core'
import type { Db } from '../postgres/handle.ts'

const AT_ONCE = 200

/** Rows that one statement takes away at most: it ends long before its time-out. */
export const PIECE = 1_000

/**
 * Deletes rows that count for nothing any more, 200 at most and none that somebody else has locked. Called where a row
 * of the kind is made, so that more of them go than come, without a clock of its own.
 */
export async function deleteExpired (db: Db, table: PgTable, key: PgColumn, expired: SQL): Promise<void> {
  await db.delete(table).where(inArray(
    key, db.select({ key }).from(table).where(expired).limit(AT_ONCE).for('update', { skipLocked: true })
  ))
}

/**
 * Deletes of the rows that a condition names all but the newest, by a column, so many at most. Called where one more of
 * somebody's is made, so that whatever ends them takes few along.
 */
export async function keepNewest (
  db: Db, table: PgTable, key: PgColumn, own: SQL, { by, most }: { by: PgColumn, most: number }
): Promise<void> {
  const newest = db.select({ key }).from(table).where(own).orderBy(desc(by)).limit(most)
  await db.delete(table).where(and(own, notInArray(key, newest)))
}

/** Deletes all rows that a condition names, however many: a piece in a statement. */
export async function deleteInPieces (db: Db, table: PgTable, key: PgColumn, which: SQL): Promise<void> {
  for (let taken = PIECE; taken === PIECE;) {
    const next = db.select({ key }).from(table).where(which).limit(PIECE).for('update')
    taken = (await db.delete(table).where(inArray(key, next)).returning({ key })).length
  }
}
