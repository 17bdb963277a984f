import { and, desc, getTableName, inArray, notInArray, sql, type SQL } from 'drizzle-orm'
import type { PgColumn } from 'drizzle-orm/pg-core'
import { REFERENCE } from '../citus/placement.ts'
import { andRowsAlone, engineOf } from '../postgres/engine.ts'
import type { Db } from '../postgres/handle.ts'

const BATCH_SIZE = 200

/** Maximum rows for one DELETE, which must end long before the statement timeout. */
export const PIECE = 1_000

/** Deletes up to 200 expired, unlocked rows of the key's table. Called at each insert, instead of by a timer. */
export async function deleteExpired (db: Db, key: PgColumn, expired: SQL): Promise<void> {
  const isCopied = engineOf(db) === 'citus' && REFERENCE.includes(getTableName(key.table))
  const some = db.select({ key }).from(key.table).where(isCopied ? sql`(${expired})${andRowsAlone}` : expired)
    .limit(BATCH_SIZE).for('update', { skipLocked: true })
  if (!isCopied) {
    await db.delete(key.table).where(inArray(key, some))
    return
  }
  // If the DELETE contained the select, each node would select rows of its own copy, and could delete other rows.
  const keys = (await some).map((row) => row.key)
  if (keys.length > 0) await db.delete(key.table).where(inArray(key, keys))
}

/**
 * Deletes all matching rows but the `most` newest. Called at each insert, to limit the number of rows of a user.
 * Returns whether it deleted a row.
 */
export async function keepNewest (
  db: Db, key: PgColumn, which: SQL, { by, most }: { by: PgColumn, most: number }
): Promise<boolean> {
  const newest = db.select({ key }).from(key.table).where(which).orderBy(desc(by)).limit(most)
  return (await db.delete(key.table).where(and(which, notInArray(key, newest))).returning({ key })).length > 0
}

/** Deletes all rows that match a condition, in batches. */
export async function deleteInPieces (db: Db, key: PgColumn, which: SQL): Promise<void> {
  for (let taken = PIECE; taken === PIECE;) {
    const next = db.select({ key }).from(key.table).where(which).limit(PIECE).for('update')
    taken = (await db.delete(key.table).where(inArray(key, next)).returning({ key })).length
  }
}
