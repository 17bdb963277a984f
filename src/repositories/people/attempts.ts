import { and, asc, eq, gt, isNull, lt, or, sql, type SQL } from 'drizzle-orm'
import { STATEMENT_TIME } from '../../db/columns.ts'
import { lookupHash, type Db } from '../../db/database.ts'
import { deleteExpired, keepNewest } from '../../db/callers/expired.ts'
import { sign_in_devices, sign_in_failures } from '../../db/tables.ts'

// Limits password guessing, and recognizes browsers in which a person has signed in before.

/** A counter of attempts. `name` identifies the counter, and is stored as a keyed hash. */
export interface Count {
  name: string
  /**
   * `place` counts the attempts from one device, network or session. From the fifth attempt on, each attempt locks the
   * counter: first for 30 seconds, then twice as long each time, up to 15 minutes. The counter restarts after 15
   * minutes without attempts or lock. `account` counts the attempts from all unknown devices at an account. The limit
   * is 25 attempts in half an hour; a single place cannot make so many. `reset` counts the reset links for an address.
   * The limit is 3 in half an hour. A link is valid for half an hour, so an address that has reached the limit has a
   * valid link.
   */
  of: 'place' | 'account' | 'reset'
}

/** The key of a counter in `sign_in_failures`. */
export const countKey = (db: Db, { name }: Pick<Count, 'name'>): Buffer => lookupHash(db, 'sign-in attempts', { name })

const { failures, locked_until, last_at } = sign_in_failures
const counted = (fresh: ReturnType<typeof sql>) => sql`CASE WHEN ${fresh} THEN 1 ELSE ${failures} + 1 END`

// The time of this attempt. Citus demands immutable expressions below, and `timestamptz + interval` is not immutable.
const NOW = sql`excluded.last_at`
const after = (time: SQL, pause: SQL) => sql`(${time} AT TIME ZONE 'UTC' + ${pause}) AT TIME ZONE 'UTC'`

const QUIET = sql`(${NOW} - coalesce(${locked_until}, ${last_at}) > interval '15 minutes')`
const OVER = sql`(${NOW} - ${last_at} > interval '30 minutes')`
const BEGIN = sql`CASE WHEN ${OVER} THEN ${NOW} ELSE ${last_at} END`

/** The number of attempts at which a counter becomes locked. */
const FROM = { place: 5, account: 25, reset: 3 }

// Counts attempts for half an hour from the first attempt, and locks the counter for the rest of this time.
const halfHour = (from: number) => ({
  failures: counted(OVER),
  last_at: BEGIN,
  locked_until: sql`CASE WHEN ${counted(OVER)} >= ${from} THEN ${after(BEGIN, sql`interval '30 minutes'`)} END`
})

const BOUNDS = {
  place: {
    failures: counted(QUIET),
    last_at: NOW,
    locked_until: sql`CASE WHEN ${counted(QUIET)} >= ${FROM.place} THEN ${after(NOW, sql`least(
      interval '15 minutes', interval '30 seconds' * power(2, least(${counted(QUIET)} - ${FROM.place}, 10)))`)} END`
  },
  account: halfHour(FROM.account),
  reset: halfHour(FROM.reset)
}

/**
 * Counts an attempt in each counter, or in no counter if one of them is locked. Call this before the password is
 * verified, so that concurrent guesses are counted one by one. Returns the number of attempts in the last counter, or
 * the seconds until the lock ends.
 */
export async function takeAttempts (
  db: Db, counts: readonly Count[]
): Promise<{ number: number } | { wait: number }> {
  // One hour is longer than every counting period and every lock.
  await deleteExpired(db, sign_in_failures.key, sql`${last_at} < now() - interval '1 hour'`)
  let number = 0
  for (const [i, count] of counts.entries()) {
    const key = countKey(db, count)
    const rows = await db.insert(sign_in_failures).values({ key, failures: 1 }).onConflictDoUpdate({
      target: sign_in_failures.key, set: BOUNDS[count.of], setWhere: or(isNull(locked_until), lt(locked_until, NOW))
    }).returning({ number: failures })
    number = rows[0]?.number ?? 0
    if (number > 0) continue
    await returnAttempts(db, counts.slice(0, i))
    const seconds = sql<number>`greatest(1, ceil(extract(epoch FROM ${locked_until} - now())))::int`
    const [locked] = await db.select({ seconds }).from(sign_in_failures).where(eq(sign_in_failures.key, key))
    return { wait: locked?.seconds ?? 1 }
  }
  return { number }
}

/** Subtracts an attempt that was not verified. The counter stays locked if the other attempts reach the limit. */
export async function returnAttempts (db: Db, counts: readonly Count[]): Promise<void> {
  for (const count of counts) {
    await db.update(sign_in_failures).set({
      failures: sql`greatest(${failures} - 1, 0)`,
      locked_until: sql`CASE WHEN ${failures} - 1 >= ${FROM[count.of]} THEN ${locked_until} END`
    }).where(eq(sign_in_failures.key, countKey(db, count)))
  }
}

/** After a correct password, deletes the counters of places, and subtracts this attempt from other counters. */
export async function forgiveAttempts (db: Db, counts: readonly Count[]): Promise<void> {
  for (const count of counts) {
    if (count.of === 'place') await db.delete(sign_in_failures).where(eq(sign_in_failures.key, countKey(db, count)))
    else await returnAttempts(db, [count])
  }
}

/** Deletes counters after a reset of the password, because they count guesses at the former password. */
export async function clearAttempts (db: Db, names: readonly string[]): Promise<void> {
  for (const name of names) await db.delete(sign_in_failures).where(eq(sign_in_failures.key, countKey(db, { name })))
}

const MAX_DEVICES = 20

/**
 * The id of a browser in which someone signed in within the last 90 days: with `user_id` to this account, otherwise to
 * any account. The id stays when the browser gets a new cookie, so a sign-in does not restart the browser's counter.
 */
export async function findDevice (db: Db, token_hash: Buffer, user_id?: number): Promise<number | undefined> {
  const own = user_id === undefined ? undefined : eq(sign_in_devices.user_id, user_id)
  const [row] = await db.select({ id: sign_in_devices.id }).from(sign_in_devices)
    .where(and(own, eq(sign_in_devices.token_hash, token_hash), gt(sign_in_devices.expires_at, STATEMENT_TIME)))
    .orderBy(asc(sign_in_devices.id)).limit(1)
  return row?.id
}

/**
 * Remembers the browser of a sign-in under a new cookie. A copy of the former cookie (`before`) becomes useless,
 * because the browser's rows for other accounts get the new cookie, too. Keeps the 20 newest browsers of the account.
 */
export async function rememberDevice (
  db: Db, { token_hash, before, user_id }: { token_hash: Buffer, before: Buffer | undefined, user_id: number }
): Promise<void> {
  await deleteExpired(db, sign_in_devices.id, sql`${sign_in_devices.expires_at} < now()`)
  if (before !== undefined) {
    await db.update(sign_in_devices).set({ token_hash }).where(eq(sign_in_devices.token_hash, before))
  }
  const expires_at = sql`now() + interval '90 days'`
  await db.insert(sign_in_devices).values({ token_hash, user_id, expires_at })
    .onConflictDoUpdate({
      target: [sign_in_devices.user_id, sign_in_devices.token_hash], set: { expires_at: sql`excluded.expires_at` }
    })
  await keepNewest(
    db, sign_in_devices.id, eq(sign_in_devices.user_id, user_id),
    { by: sign_in_devices.expires_at, most: MAX_DEVICES }
  )
}
