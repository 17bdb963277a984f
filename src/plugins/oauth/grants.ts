import type { FastifyRequest } from 'fastify'
import { CONSOLE_CLIENT } from '../../../schemas/console.ts'
import { LIFETIMES } from '../../../schemas/oauth.ts'
import type { Scope } from '../../../schemas/scopes.ts'
import { namesOf } from '../../db/callers/grants.ts'
import type { Db } from '../../db/database.ts'
import { recordForUser, type Person } from '../../http/guard/personal-events.ts'
import { createGrant, revokeExcessGrants } from '../../repositories/people/oauth.ts'

/**
 * Creates a grant of a user, revokes the oldest grants beyond the limit, and records both. The account is locked. The
 * console has no limit, because `codeForConsole` uses its grants again.
 */
export async function grantTo (
  db: Db, request: FastifyRequest, user: Person, { client, scopes }: { client: string, scopes: Scope[] }
): Promise<number> {
  const owner = { user_id: user.id, client_id: client }
  const { revoked, ended } = client === CONSOLE_CLIENT
    ? { revoked: [], ended: [] }
    : await revokeExcessGrants(db, owner)
  const grant = await createGrant(db, { ...owner, scopes })
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
