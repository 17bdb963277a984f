import { and, inArray, isNull, sql, type SQL } from 'drizzle-orm'
import type { Db } from './handle.ts'
import { api_tokens, oauth_grants } from './tables.ts'

/**
 * Revokes the grants that a condition names, as far as they are not, and with each of them what was made through it:
 * its pairs count for nothing any more, and its API tokens are deleted. It loses its MAC: to take the mark away revives
 * nothing. Answers the grants. In a transaction of the caller's, the last of what it does to the user or the client.
 */
export async function revokeGrants (db: Db, which: SQL): Promise<{ id: number, user_id: number }[]> {
  const grants = await db.update(oauth_grants).set({ revoked_at: sql`now()`, mac: null }).where(and(
    which, isNull(oauth_grants.revoked_at)
  ))
    .returning({ id: oauth_grants.id, user_id: oauth_grants.user_id })
  // Of those, too, that are marked as revoked already: whoever marked them may not have ended their tokens.
  await endTokens(db, inArray(api_tokens.grant_id, db.select({ id: oauth_grants.id }).from(oauth_grants).where(which)))
  return grants
}

/** Deletes the API tokens that a condition names, those that they make meanwhile included. */
export async function endTokens (db: Db, which: SQL): Promise<void> {
  // A delete waits for a token that is just making another one, but does not see what that makes: so, until there is
  // none.
  while ((await db.delete(api_tokens).where(which).returning({ id: api_tokens.id })).length > 0);
}
