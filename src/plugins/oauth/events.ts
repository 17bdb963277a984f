import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { EventName } from '../../../schemas/events.ts'
import { hashToken } from '../../crypto/bearer.ts'
import type { Db } from '../../db/database.ts'
import { endingOf, type EndedTokens } from '../../db/grants.ts'
import { personOf } from '../../http/actor.ts'
import { recordOfPerson } from '../../repositories/audit.ts'
import { takeAttempts } from '../../repositories/attempts.ts'
import { listOrganizationsOf, type JoinRefusal } from '../../repositories/members.ts'

/**
 * Records what a person, or an application for them, did, in every organization that it concerns: those they are in.
 * None of them can keep them from it. Each is told of the API tokens there that ended with it.
 */
export async function recordForUser (
  db: Db, request: FastifyRequest, user: {
    id: number
    name: string
  }, action: EventName, details: Record<string, string | number | boolean | null> = {},
  ended: readonly EndedTokens[] = []
): Promise<void> {
  const actors = (await listOrganizationsOf(db, user.id)).map((id) => personOf(request, id, user))
  if (ended.length > 0) request.hasEnded = true
  if (await recordOfPerson(db, actors, (organizationId) => ({
    action,
    resource_type: 'user',
    resource_id: String(user.id),
    details: { ...details, ...endingOf(ended, organizationId) }
  }))) request.hasLateEvents = true
}

/** Records that somebody accepted invitations, in each organization that they are a member of since. */
export async function recordJoining (
  db: Db, request: FastifyRequest, user: { id: number, name: string }, organizations: readonly string[]
): Promise<void> {
  if (organizations.length === 0) return
  const actors = organizations.map((id) => personOf(request, id, user))
  if (await recordOfPerson(db, actors, {
    action: 'member.join', resource_type: 'member', resource_id: String(user.id)
  })) {
    request.hasLateEvents = true
  }
}

/**
 * Records that somebody could not accept an invitation, in the organization that it is to: each time at first, and then
 * at intervals that grow, so that nobody fills its audit.
 */
export async function recordRefusedJoining (
  db: Db, request: FastifyRequest, user: { id: number, name: string }, organizationId: string, reason: JoinRefusal
): Promise<void> {
  const attempt = await takeAttempts(db, [{ of: 'place', hash: hashToken(`join ${organizationId} user:${user.id}`) }])
  if ('wait' in attempt) return
  if (await recordOfPerson(db, [personOf(request, organizationId, user)], {
    action: 'member.refuse',
    resource_type: 'member',
    resource_id: String(user.id),
    details: { reason, attempts: attempt.number }
  })) {
    request.hasLateEvents = true
  }
}

/** Records that somebody turned an invitation down, in the organization that it was to. */
export async function recordDeclining (
  db: Db, request: FastifyRequest, user: { id: number, name: string }, organizationId: string
): Promise<void> {
  if (await recordOfPerson(db, [personOf(request, organizationId, user)], {
    action: 'member.delete',
    resource_type: 'member',
    resource_id: String(user.id),
    details: { status: 'invited' }
  })) {
    request.hasLateEvents = true
  }
}

/** The same for what is one organization's alone: an API token. */
export async function recordForToken (
  db: Db, request: FastifyRequest, user: { id: number, name: string }, organizationId: string, token: number
): Promise<void> {
  const actors = [personOf(request, organizationId, user)]
  const event = { action: 'api-token.delete', resource_type: 'api-token', resource_id: String(token) } as const
  if (await recordOfPerson(db, actors, event)) request.hasLateEvents = true
}

/** A wrong password in a row is recorded each time up to here, and then each time this many more. */
const EACH = 5

/**
 * Records a password or a code that was refused, in every organization of the account that was tried; somebody without
 * an account is in none, and waits as long (CR-41). How many there can be is bounded by what is counted; of many in a
 * row the number is recorded, not each, so that nobody fills an organization's audit.
 */
export async function recordRefusal (
  app: FastifyInstance, request: FastifyRequest, user: {
    id: number
    name: string
  } | undefined, action: EventName, attempts: number
): Promise<void> {
  const { id, name } = user ?? NOBODY
  request.log.warn({ user: user?.id ?? null, attempts }, action === 'second-factor.refuse' ? 'a code was refused' : 'a password was refused')
  if (attempts > EACH && attempts % EACH !== 0) return
  const organizations = await listOrganizationsOf(app.db, id)
  const actors = organizations.map((organization) => personOf(request, organization, { id, name }))
  if (await app.recordRefused(
    actors, { action, resource_type: 'user', resource_id: String(id), details: { attempts } }
  )) {
    request.hasLateEvents = true
  }
}

// No account has this id.
const NOBODY = { id: 0, name: '' }
