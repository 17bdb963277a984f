import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { EventName } from '../../../schemas/events.ts'
import type { Db } from '../../db/database.ts'
import { endingOf, type EndedTokens } from '../../db/callers/grants.ts'
import { recordOfPerson } from '../../repositories/audit/audit.ts'
import { listOrganizationsOf } from '../../repositories/people/members.ts'
import { createPersonalEvent } from '../../repositories/people/personal-events.ts'
import { originOf, personOf, withoutOrigin } from '../routes/actor.ts'

// Events of a person: a sign-in, a password, a second factor, a grant. The person sees all of them on /account, with
// the address and browser that they came from. The organizations that the person has accepted see them in their audit
// log without address and browser. An organization that only invites the person sees none.

type Details = Record<string, string | number | boolean | null>

/** The user, with the name that audit logs show. */
export interface Person { id: number, name: string }

/**
 * Records an event of a user in the caller's transaction: for the user and in each organization of the user. A blocked
 * organization does not block the event. `ended`: API tokens that ended with it; each organization sees only its own.
 */
export async function recordForUser (
  db: Db, request: FastifyRequest, user: Person, action: EventName, details: Details = {},
  ended: readonly EndedTokens[] = []
): Promise<void> {
  if (ended.length > 0) request.hasEnded = true
  await recordForPersonAlone(db, request, user, action, details)
  const actors = (await listOrganizationsOf(db, user.id)).map((id) => withoutOrigin(personOf(request, id, user)))
  if (await recordOfPerson(db, actors, (organizationId) => ({
    action,
    resource_type: 'user',
    resource_id: String(user.id),
    details: { ...details, ...endingOf(ended, organizationId) }
  }))) request.hasLateEvents = true
}

/** Records an event only for its user, not in organizations. */
export async function recordForPersonAlone (
  db: Db, request: FastifyRequest, { id }: Pick<Person, 'id'>, action: EventName, details: Details = {}
): Promise<void> {
  const { ip, user_agent } = originOf(request)
  await createPersonalEvent(db, { user_id: id, action, actor_type: 'user', ip, user_agent, details })
}

/** Records that a user ended one of their API tokens, for the user and in the token's organization. */
export async function recordEndOfToken (
  db: Db, request: FastifyRequest, user: Person, organizationId: string, token: number
): Promise<void> {
  await recordForPersonAlone(db, request, user, 'api-token.delete', { organization: organizationId, token })
  const actors = [personOf(request, organizationId, user)]
  const event = { action: 'api-token.delete', resource_type: 'api-token', resource_id: String(token) } as const
  if (await recordOfPerson(db, actors, event)) request.hasLateEvents = true
}

/** Wrong attempts in a row: all are recorded up to this number, then every fifth. */
const EACH = 5

/**
 * Records a wrong password or code, for the user and in their organizations. It runs the same statements for an unknown
 * address, so that the duration does not reveal whether an account exists (CR-41). To bound the number of events, only
 * every fifth of many wrong attempts in a row is recorded, with its number.
 */
export async function recordRefusal (
  app: FastifyInstance, request: FastifyRequest, user: Person | undefined, action: EventName, attempts: number
): Promise<void> {
  const { id, name } = user ?? NO_ACCOUNT
  request.log.warn(
    { user: user?.id ?? null, attempts },
    action === 'second-factor.refuse' ? 'wrong code' : 'wrong password'
  )
  if (attempts > EACH && attempts % EACH !== 0) return
  const organizations = await listOrganizationsOf(app.db, id)
  const actors = organizations.map((organization) => withoutOrigin(personOf(request, organization, { id, name })))
  const { ip, user_agent } = originOf(request)
  const details = { attempts }
  if (await app.recordRefused(
    { user_id: id, action, actor_type: 'user', ip, user_agent, details }, actors,
    { action, resource_type: 'user', resource_id: String(id), details }
  )) {
    request.hasLateEvents = true
  }
}

// No account has this id.
const NO_ACCOUNT: Person = { id: 0, name: '' }
