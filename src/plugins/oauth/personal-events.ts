import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { EventName } from '../../../schemas/events.ts'
import { LIFETIMES } from '../../../schemas/oauth.ts'
import type { Scope } from '../../../schemas/scopes.ts'
import { recordOfPerson, UNLISTED_ORGANIZATIONS } from '../../changes/late.ts'
import { endingOf, namesOf, type EndedTokens } from '../../db/callers/grants.ts'
import type { Db } from '../../db/database.ts'
import { personalEventOf, recordForPersonAlone, type Details, type Person } from '../../http/guard/personal-events.ts'
import { personOf } from '../../http/routes/actor.ts'
import type { Actor, AuditEvent, RecordedEvent } from '../../repositories/audit/audit.ts'
import { listOrganizationsIfAvailable, listOrganizationsOf } from '../../repositories/people/members.ts'
import { createGrant, type RevokedGrants } from '../../repositories/people/oauth.ts'
import { endInvitationsEverywhere } from '../../vault/memberships.ts'

/**
 * Records an event of a user in the caller's transaction: for the user and in each organization of the user. If an
 * organization cannot record the event now, or a node of Citus does not answer, the event is recorded later. `ended`
 * has the API tokens that the recorded action ended; the event of an organization lists only its own tokens. `changed`
 * is the organization of a change (`change`): its events are returned instead, because the change records them.
 */
export async function recordForUser (
  db: Db, request: FastifyRequest, user: Person, action: EventName, details: Details = {},
  ended: readonly EndedTokens[] = [], changed?: string
): Promise<RecordedEvent[]> {
  if (ended.length > 0) request.hasEnded = true
  await recordForPersonAlone(db, request, user, action, details)
  // Ending API tokens changes rows on all nodes of Citus, so this transaction needs all nodes anyway.
  const organizations = await (ended.length > 0 ? listOrganizationsOf : listOrganizationsIfAvailable)(db, user.id)
  const effects = await endInvitationsEverywhere(db, ended.map(({ organization_id }) => organization_id))
  const actors = actorsOf(request, user, organizations)
  const eventIn = (organizationId: string): AuditEvent => ({
    action,
    resource_type: 'user',
    resource_id: String(user.id),
    details: { ...details, ...endingOf(ended, organizationId) }
  })
  const isOther = ({ organization_id }: Actor) => organization_id !== changed
  const others = effects.filter(({ actor }) => isOther(actor))
  if (await recordOfPerson(db, actors.filter(isOther), eventIn, { effects: others })) request.hasLateEvents = true
  return actors.map((actor) => ({ actor, event: eventIn(actor.organization_id) })).concat(effects)
    .filter(({ actor }) => !isOther(actor))
}

// The user as the actor of an event in each of the user's organizations, without address and browser.
const actorsOf = (
  request: FastifyRequest, user: Person, organizations: string[] | undefined
): Actor[] => (organizations ?? [UNLISTED_ORGANIZATIONS])
  .map((id) => ({ ...personOf(request, id, user), ip: null, user_agent: null }))

/** Records that a user ended an own API token: for the user and in the organization of the token. */
export async function recordEndOfToken (
  db: Db, request: FastifyRequest, user: Person, organizationId: string, token: number
): Promise<void> {
  await recordForPersonAlone(db, request, user, 'api-token.delete', { organization: organizationId, token })
  const effects = await endInvitationsEverywhere(db, [organizationId])
  const actors = [personOf(request, organizationId, user)]
  const event = { action: 'api-token.delete', resource_type: 'api-token', resource_id: String(token) } as const
  if (await recordOfPerson(db, actors, event, { effects })) request.hasLateEvents = true
}

/** Of consecutive wrong attempts, the first five and then every fifth are recorded, to limit the number of events. */
const EACH = 5

/**
 * Records a wrong password or code, for the user and in their organizations. Runs the same statements for an unknown
 * e-mail address, so that the duration does not reveal whether an account exists (CR-41).
 */
export async function recordRefusal (
  app: FastifyInstance, request: FastifyRequest, user: Person | undefined, action: EventName, attempts: number
): Promise<void> {
  const details = { attempts }
  const message = action === 'second-factor.refuse' ? 'wrong code' : 'wrong password'
  request.log.warn({ user: user?.id ?? null, ...details }, message)
  if (attempts > EACH && attempts % EACH !== 0) return
  // For an unknown address, the id 0: no account has this id.
  const person = user ?? { id: 0, name: '' }
  const own = personalEventOf(request, person.id, action, details)
  const event = { action, resource_type: 'user', resource_id: String(person.id), details } as const
  const organizations = await listOrganizationsIfAvailable(app.db, person.id)
  if (await app.recordRefused(own, actorsOf(request, person, organizations), event)) request.hasLateEvents = true
}

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
