import { and, eq, gt, isNull, sql } from 'drizzle-orm'
import { authenticatedColumns } from '../db/authenticated.ts'
import { isAuthentic, macOf, readNow, type Db } from '../db/database.ts'
import { deleteExpired } from '../db/expired.ts'
import { sessions, userColumns, users } from '../db/tables.ts'
import type { User } from './users.ts'

const DAY = 24 * 60 * 60 * 1000
const IDLE = sql`now() - interval '12 hours'`
const MINUTE = 60_000

/**
 * A session of an open account whose password is still the one that was verified: false when it was changed meanwhile,
 * or the account closed. The row is held, so that whoever changes the password waits and then ends this session too
 * (OA-63).
 */
export async function createSession (
  db: Db, token_hash: Buffer, { id, password_hash }: { id: number, password_hash: string }
): Promise<boolean> {
  const now = await readNow(db)
  const row = { token_hash, user_id: id, seen_at: new Date(now), expires_at: new Date(now + 7 * DAY) }
  const rows = await db.execute(sql`
    INSERT INTO sessions (token_hash, user_id, seen_at, expires_at, mac)
    SELECT ${token_hash}::bytea, id, ${row.seen_at.toISOString()}::timestamptz,
      ${row.expires_at.toISOString()}::timestamptz, ${macOf(db, 'sessions', row)}::bytea
    FROM users WHERE id = ${id} AND password_hash = ${password_hash} AND disabled_at IS NULL FOR SHARE
    RETURNING user_id`) as unknown as unknown[]
  // After the user's lock, which everything takes first that ends sessions.
  await deleteExpired(
    db, sessions, sessions.token_hash, sql`${sessions.expires_at} < now() OR ${sessions.seen_at} < ${IDLE}`
  )
  return rows.length === 1
}

/** The user of a session that lives: used within 12 hours, at most 7 days old, of an account that is open. */
export async function findSession (db: Db, token_hash: Buffer): Promise<User | undefined> {
  const [found] = await db.select({
    user: userColumns,
    session: authenticatedColumns('sessions'),
    row: authenticatedColumns('users'),
    now: sql`now()`.mapWith(sessions.seen_at)
  })
    .from(sessions).innerJoin(users, eq(users.id, sessions.user_id))
    .where(and(
      eq(sessions.token_hash, token_hash), gt(sessions.expires_at, sql`now()`), gt(sessions.seen_at, IDLE),
      isNull(users.disabled_at)
    ))
  if (found === undefined) return undefined
  const { user, session, row, now } = found
  if (!isAuthentic(db, 'sessions', session) || !isAuthentic(db, 'users', row)) return undefined
  if (now.getTime() - session.seen_at.getTime() > MINUTE) {
    const seen = { ...session, seen_at: now }
    await db.update(sessions).set({ seen_at: now, mac: macOf(db, 'sessions', seen) }).where(and(
      eq(sessions.token_hash, token_hash), eq(sessions.seen_at, session.seen_at)
    ))
  }
  return user
}

export async function deleteSession (db: Db, token_hash: Buffer): Promise<void> {
  await db.delete(sessions).where(eq(sessions.token_hash, token_hash))
}
