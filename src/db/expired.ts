import { inArray, type SQL } from 'drizzle-orm'
import type { PgColumn, PgTable } from 'drizzle-orm/pg-core'
import type { Db } from './handle.ts'

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

/** Deletes all rows that a condition names, however many: a piece in a statement. */
export async function deleteInPieces (db: Db, table: PgTable, key: PgColumn, which: SQL): Promise<void> {
  for (let taken = PIECE; taken === PIECE;) {
    const next = db.select({ key }).from(table).where(which).limit(PIECE).for('update')
    taken = (await db.delete(table).where(inArray(key, next)).returning({ key })).length
  }
}
