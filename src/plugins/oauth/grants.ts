import type { FastifyRequest } from 'fastify'
import { LIFETIMES } from '../../../schemas/oauth.ts'
import type { Scope } from '../../../schemas/scopes.ts'
import { namesOf } from '../../db/callers/grants.ts'
import type { Db } from '../../db/database.ts'
import type { Person } from '../../http/guard/personal-events.ts'
import { recordForUser } from './personal-events.ts'
import { createGrant, type RevokedGrants } from '../../repositories/people/oauth.ts'

/**
 * Creates a grant of a user and records this. Also records the grants that `revokeExcessGrants` has revoked. The caller
 * of this function has locked the account.
 */
export async function grantTo (
  db: Db, request: FastifyRequest, user: Person, { client, scopes }: { client: string, scopes: Scope[] },
  { revoked, ended }: RevokedGrants = { revoked: [], ended: [] }
): Promise<number> {
  const grant = await createGrant(db, { user_id: user.id, client_id: client, scopes })
  if (revoked.length > 0) {
    await recordForUser(
      db, request, user, 'oauth.revoke', { client, grants: revoked.length, grant_ids: namesOf(revoked) }, ended
    )
  }
  await recordForUser(
    db, request, user, 'oauth.grant', { grant, client, scopes: scopes.join(' '), seconds: LIFETIMES.code }
  )
  return grant
}
