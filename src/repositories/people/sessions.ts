import { and, desc, eq, gt, isNull, ne, sql } from 'drizzle-orm'
import { SESSION_IDLE_HOURS } from '../../../schemas/console.ts'
import { authenticatedColumns, shownColumns } from '../../db/rows/authenticated.ts'
import { STATEMENT_TIME } from '../../db/columns.ts'
import { waitUnlessCounter } from '../../db/rows/counter.ts'
import { isAuthentic, macOf, readNow, type Db } from '../../db/database.ts'
import { endConsole } from '../../db/callers/console-tokens.ts'
import { deleteExpired, deleteInPieces, keepNewest } from '../../db/callers/expired.ts'
import { andRowsAlone } from '../../db/postgres/engine.ts'
import { matching } from '../../db/rows/query.ts'
import { sessions, users } from '../../db/tables.ts'
import { heldFrom, heldPage, type HeldPage } from '../../rules/pagination.ts'
import type { User } from './users.ts'

const DAY = 24 * 60 * 60 * 1000
const LIFETIME = 7 * DAY
/** Seconds after the sign-in for which a session is valid. */
export const SESSION_SECONDS = LIFETIME / 1000
const IDLE = sql`${STATEMENT_TIME} - interval '${sql.raw(String(SESSION_IDLE_HOURS))} hours'`
const MINUTE = 60_000
/** The maximum number of sessions of a person. Keeps the sessions that were used last; the others end. */
const MAX_SESSIONS = 1_000

/** The browser, system and network of the sign-in; null if unknown. */
export type SessionClient = Pick<typeof sessions.$inferSelect, 'browser' | 'system' | 'network'>

const UNKNOWN: SessionClient = { browser: null, system: null, network: null }

/**
 * Creates a session. Returns false if the password or second factor was changed, or the account was closed, since the
 * password was verified. Locks the account, so that a concurrent password change waits, and then also ends this session
 * (OA-63).
 *
 * @param replaced the hash of the session that the browser has. The new session replaces a session of the same person,
 *   and the console goes on. If no session is created, the former one stays, so that a sign-out still ends the console
 */
export async function createSession (
  db: Db, token_hash: Buffer,
  { id, password_hash, second_factor_id = null }:
  { id: number, password_hash: string, second_factor_id?: number | null },
  { browser, system, network }: SessionClient = UNKNOWN, replaced?: Buffer
): Promise<boolean> {
  const now = await readNow(db)
  const client = { browser, system, network }
  const row = { token_hash, user_id: id, ...client, seen_at: new Date(now), expires_at: new Date(now + LIFETIME) }
  const unchanged = await db.select({ id: users.id }).from(users).where(and(
    matching(users, { id, password_hash }), isNull(users.disabled_at),
    sql`${users.second_factor_id} IS NOT DISTINCT FROM ${second_factor_id}::bigint${andRowsAlone}`
  )).for('share')
  if (unchanged.length > 0) {
    if (replaced !== undefined) {
      await db.delete(sessions).where(matching(sessions, { token_hash: replaced, user_id: id }))
    }
    await db.insert(sessions).values({ ...row, mac: macOf(db, 'sessions', row) })
  }
  // Must come after the lock of the user, because every transaction that ends sessions locks the user first.
  await deleteExpired(db, sessions.token_hash, sql`${sessions.expires_at} < ${STATEMENT_TIME} OR ${sessions.seen_at} < ${IDLE}`)
  const own = and(eq(sessions.user_id, id), live)!
  const isAnyEnded = await keepNewest(db, sessions.token_hash, own, { by: sessions.seen_at, most: MAX_SESSIONS })
  if (isAnyEnded) await endConsole(db, id)
  return unchanged.length > 0
}

const live = and(gt(sessions.expires_at, STATEMENT_TIME), gt(sessions.seen_at, IDLE))

/**
 * The user of a valid session. A session is valid if it was used within the last 12 hours, is at most 7 days old, and
 * its account is open. `age` is the number of seconds since the sign-in.
 */
export async function findSession (db: Db, token_hash: Buffer): Promise<{ user: User, age: number } | undefined> {
  const [found] = await db.select({
    user: shownColumns('users'),
    session: authenticatedColumns('sessions'),
    row: authenticatedColumns('users'),
    now: sql`now()`.mapWith(sessions.seen_at)
  })
    .from(sessions).innerJoin(users, eq(users.id, sessions.user_id))
    .where(and(eq(sessions.token_hash, token_hash), live, isNull(users.disabled_at)))
  if (found === undefined) return undefined
  const { user, session, row, now } = found
  if (!isAuthentic(db, 'sessions', session) || !isAuthentic(db, 'users', row)) return undefined
  if (now.getTime() - session.seen_at.getTime() > MINUTE) {
    const seen = { ...session, seen_at: now }
    await db.update(sessions).set({ seen_at: now, mac: macOf(db, 'sessions', seen) })
      .where(matching(sessions, { token_hash, seen_at: session.seen_at }))
  }
  // Computes the age from `expires_at`, because the MAC does not cover `created_at`.
  return { user, age: (now.getTime() - session.expires_at.getTime() + LIFETIME) / 1000 }
}

/**
 * Locks a session, so that it cannot end before the transaction ends. Returns false if the session has ended or the
 * account was closed. A transaction that has locked a counter row is retried instead of waiting (`waitUnlessCounter`).
 */
export async function lockSession (db: Db, token_hash: Buffer): Promise<boolean> {
  const rows = await db.select({ user_id: sessions.user_id }).from(sessions)
    .innerJoin(users, eq(users.id, sessions.user_id))
    .where(and(eq(sessions.token_hash, token_hash), live, isNull(users.disabled_at)))
    .for('share', { of: sessions, ...waitUnlessCounter(db) })
  return rows.length === 1
}

export interface Session extends SessionClient { token_hash: Buffer, seen_at: Date, expires_at: Date, created_at: Date }

/** A page of a person's valid sessions, most recently used first. */
export async function listSessions (db: Db, user_id: number, page = 1): Promise<HeldPage<Session>> {
  const { limit, offset } = heldFrom(page)
  const rows = await db.select({ ...authenticatedColumns('sessions'), created_at: sessions.created_at }).from(sessions)
    .where(and(eq(sessions.user_id, user_id), live)).orderBy(desc(sessions.seen_at), sessions.token_hash)
    .limit(limit).offset(offset)
  const held = heldPage(rows, page)
  return { ...held, rows: held.rows.filter((row) => isAuthentic(db, 'sessions', row)) }
}

/**
 * Deletes a session of a person, and ends the codes and tokens of the console. Lock the account first. False if there
 * is no such session.
 */
export async function deleteSession (db: Db, token_hash: Buffer, user_id: number): Promise<boolean> {
  const rows = await db.delete(sessions).where(matching(sessions, { token_hash, user_id }))
    .returning({ user_id: sessions.user_id })
  if (rows.length === 1) await endConsole(db, user_id)
  return rows.length === 1
}

/**
 * Ends the session of a browser in which `by` signs in, if the session belongs to another person, and the codes and
 * tokens of the console of that person. A session of `by` stays: `createSession` replaces it.
 *
 * @param lock locks the account of the other person
 */
export async function endSessionOfOther (
  db: Db, token_hash: Buffer, by: number, lock: (db: Db, user_id: number) => Promise<unknown>
): Promise<void> {
  const [found] = await db.select({ user_id: sessions.user_id }).from(sessions)
    .where(and(eq(sessions.token_hash, token_hash), ne(sessions.user_id, by)))
  if (found === undefined) return
  await lock(db, found.user_id)
  await deleteSession(db, token_hash, found.user_id)
}

/**
 * Deletes all sessions of a person, and ends the codes and tokens of the console. Lock the account first. Applications
 * and API tokens stay valid.
 */
export async function deleteSessions (db: Db, user_id: number): Promise<void> {
  await deleteInPieces(db, sessions.token_hash, eq(sessions.user_id, user_id))
  await endConsole(db, user_id)
}
