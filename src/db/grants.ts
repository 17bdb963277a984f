import { and, asc, inArray, isNull, sql, type SQL } from 'drizzle-orm'
import type { Db } from './handle.ts'
import { api_tokens, oauth_grants } from './tables.ts'

/** An API token that ends because something ends that it hangs on. */
export interface EndedToken { organization_id: string, id: number }

/**
 * Revokes the grants that a condition names, as far as they are not, and with each of them what was made through it:
 * its pairs count for nothing any more, and its API tokens are deleted. It loses its MAC: to take the mark away revives
 * nothing. Answers the grants, and the tokens for the event of what revoked them (`endingOf`). In a transaction of the
 * caller's, the last of what it does to the user or the client.
 */
export async function revokeGrants (
  db: Db, which: SQL
): Promise<{ grants: { id: number, user_id: number }[], ended: EndedToken[] }> {
  const live = and(which, isNull(oauth_grants.revoked_at))
  // By their ids, so that of two who revoke some of the same one comes second.
  await db.select({ id: oauth_grants.id }).from(oauth_grants).where(live).orderBy(asc(oauth_grants.id))
    .for('no key update')
  const grants = await db.update(oauth_grants).set({ revoked_at: sql`now()`, mac: null }).where(live)
    .returning({ id: oauth_grants.id, user_id: oauth_grants.user_id })
  // Of those, too, that are marked as revoked already: whoever marked them may not have ended their tokens.
  const made = db.select({ id: oauth_grants.id }).from(oauth_grants).where(which)
  return { grants, ended: await endTokens(db, inArray(api_tokens.grant_id, made)) }
}

/**
 * Takes the API tokens that a condition names, by their ids, until the end of the transaction; those that they make
 * meanwhile included. Who changes something through an API token besides is held before (`holdCaller`).
 */
export async function lockTokens (db: Db, which: SQL): Promise<EndedToken[]> {
  const { organization_id, id } = api_tokens
  // Whoever waits for a token that is just making another one does not see what that makes: so, until there is none.
  for (let known = 0; ;) {
    const held = await db.select({ organization_id, id }).from(api_tokens).where(which).orderBy(asc(id)).for('update')
    if (held.length === known) return held
    known = held.length
  }
}

/** Deletes the API tokens that a condition names, and answers them. */
export async function endTokens (db: Db, which: SQL): Promise<EndedToken[]> {
  const ended = await lockTokens(db, which)
  if (ended.length > 0) await db.delete(api_tokens).where(which)
  return ended
}

const MOST_NAMED = 50

/**
 * What the event of an ending says, in one organization, of the API tokens there that end with it: how many, and which
 * of them, 50 at most. Nothing where there are none.
 */
export function endingOf (
  ended: readonly EndedToken[], organizationId: string
): { tokens?: number, token_ids?: string } {
  const own = ended.filter(({ organization_id }) => organization_id === organizationId)
  if (own.length === 0) return {}
  return { tokens: own.length, token_ids: own.slice(0, MOST_NAMED).map(({ id }) => id).join(' ') }
}
