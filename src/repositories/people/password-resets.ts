import { and, eq, gt, isNull, sql } from 'drizzle-orm'
import { STATEMENT_TIME } from '../../db/columns.ts'
import { authenticatedColumns, shownColumns } from '../../db/rows/authenticated.ts'
import { lookupHash, macOf, readNow, type Db } from '../../db/database.ts'
import { deleteExpired } from '../../db/callers/expired.ts'
import { authenticRow } from '../../db/rows/query.ts'
import { password_resets, users } from '../../db/tables.ts'
import { canonicalEmail } from '../../rules/formats/emails.ts'
import type { User } from './users.ts'

/** Minutes for which a reset link is valid. */
export const RESET_MINUTES = 30
const MINUTE = 60_000

const tokenHash = (db: Db, secret: string): Buffer => lookupHash(db, 'password reset', { secret })

/**
 * Stores the reset link of an address. The link replaces the earlier link. `user_id` is 0 if the address has no open
 * account. The same statements run, so that the duration does not reveal whether there is an account (CR-49).
 */
export async function createPasswordReset (
  db: Db, email: string, secret: string, user_id: number
): Promise<void> {
  const row = {
    address_hash: lookupHash(db, 'password reset', { address: canonicalEmail(email) }),
    token_hash: tokenHash(db, secret),
    user_id,
    expires_at: new Date(await readNow(db) + RESET_MINUTES * MINUTE)
  }
  const values = { ...row, mac: macOf(db, 'password_resets', row) }
  await db.insert(password_resets).values(values)
    .onConflictDoUpdate({ target: password_resets.address_hash, set: values })
  // Must come after the insertion, to avoid a deadlock: a transaction that has deleted the expired row of another
  // address must not wait for a third transaction that has deleted the row of this address.
  await deleteExpired(db, password_resets.address_hash, sql`${password_resets.expires_at} < now()`)
}

/** The user of a valid reset link; undefined if the account is closed. */
export async function findPasswordReset (db: Db, secret: string): Promise<User | undefined> {
  const [found] = await db.select({
    user: shownColumns('users'), reset: authenticatedColumns('password_resets'), row: authenticatedColumns('users')
  })
    .from(password_resets).innerJoin(users, eq(users.id, password_resets.user_id))
    .where(and(isValid(db, secret), isNull(users.disabled_at)))
  return authenticRow(db, 'password_resets', found?.reset) && authenticRow(db, 'users', found?.row) && found?.user
}

/** Deletes a reset link and returns the id of its user. Of two concurrent calls, only one gets the id. */
export async function takePasswordReset (db: Db, secret: string): Promise<number | undefined> {
  const [row] = await db.delete(password_resets).where(isValid(db, secret))
    .returning(authenticatedColumns('password_resets'))
  return authenticRow(db, 'password_resets', row)?.user_id
}

const isValid = (db: Db, secret: string) =>
  and(eq(password_resets.token_hash, tokenHash(db, secret)), gt(password_resets.expires_at, STATEMENT_TIME))
