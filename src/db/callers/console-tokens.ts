import { asc, sql, type SQL } from 'drizzle-orm'
import type { PgColumn } from 'drizzle-orm/pg-core'
import { CONSOLE_CLIENT } from '../../../schemas/console.ts'
import type { Db } from '../postgres/handle.ts'
import { isOneOf } from '../rows/lists.ts'
import { oauth_codes, oauth_tokens } from '../tables.ts'

/**
 * Marks a code or a token pair as used. The row loses its MAC, so that a reset of `used_at` in the database does not
 * make the row valid again.
 */
export const USED = { used_at: sql`now()`, mac: null }

/**
 * Ends the codes and tokens of the console for a person. Lock the account first. The grants stay, because API tokens
 * depend on them (decision 0070). The codes are deleted before the tokens end, so that a token from a code that is
 * redeemed meanwhile also ends.
 */
export async function endConsole (db: Db, user_id: number): Promise<void> {
  await db.delete(oauth_codes)
    .where(sql`${oauth_codes.used_at} IS NULL AND ${isOfConsole(oauth_codes.grant_id, user_id)}`)
  await retireTokensOfConsole(db, user_id)
}

/**
 * Ends the tokens of the console for all people, after a restore: a backup has no sessions and no codes. The database
 * can have the schema of an older release.
 */
export async function endAllConsoles (db: Db): Promise<void> {
  await db.update(oauth_tokens).set(USED).where(isLiveToken())
}

/** Makes all access tokens of a person for the console invalid. The grants and their API tokens stay valid. */
export async function retireTokensOfConsole (db: Db, user_id: number): Promise<void> {
  // Locks in the order of ids, so that concurrent calls do not deadlock.
  const live = await db.select({ id: oauth_tokens.id }).from(oauth_tokens).where(isLiveToken(user_id))
    .orderBy(asc(oauth_tokens.id)).for('no key update')
  if (live.length > 0) await db.update(oauth_tokens).set(USED).where(isOneOf(oauth_tokens.id, live.map(({ id }) => id)))
}

// The valid tokens of the console: of a person, or without `user_id` of all people.
const isLiveToken = (user_id?: number): SQL => sql`${oauth_tokens.used_at} IS NULL
    AND ${oauth_tokens.access_expires_at} > now() AND ${isOfConsole(oauth_tokens.grant_id, user_id)}`

const isOfConsole = (grantId: PgColumn, user_id?: number): SQL =>
  sql`${grantId} = ANY(ARRAY(SELECT g.id FROM oauth_grants g WHERE g.client_id = ${CONSOLE_CLIENT}${
    user_id === undefined ? sql`` : sql` AND g.user_id = ${user_id}`}))`
