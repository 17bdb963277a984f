import type { FastifyRequest } from 'fastify'
import type { Caller } from '../../db/callers/caller.ts'
import type { Actor } from '../../repositories/audit/audit.ts'
import type { Principal } from '../../repositories/people/principals.ts'

/** The caller of a guarded route. */
export function principalOf (request: FastifyRequest): Principal {
  if (request.principal === null) throw new Error('the route is not guarded')
  return request.principal
}

/**
 * Who did it, from where: what an audit event and a version remember of the caller; with what a change of theirs holds
 * until it commits.
 */
export function actorOf (request: FastifyRequest): Actor {
  return {
    ...witnessOf(request),
    caller: callerOf(request),
    answering: request.answering,
    waited: request.waited,
    bytes: Number(request.headers['content-length'] ?? 0)
  }
}

/** Who it is, where nothing is changed by them. */
export function witnessOf (request: FastifyRequest): Actor {
  const { type, id, name, organization } = principalOf(request)
  return { organization_id: organization.id, type, id, name, ...originOf(request), caller: null }
}

// Whoever was let in by teams, with those that hold the project that the request is about.
function callerOf (request: FastifyRequest): Caller {
  const { caller } = principalOf(request)
  if (request.byTeams === null) return caller
  const { teams } = request.byTeams
  if (teams === null) throw new Error('what the request is about was not judged')
  return { ...caller, teams: teams.map(({ team_id, project_id, role }) => ({ team_id, project_id, role })) }
}

/** A person at one of our pages, or an application of theirs at the token endpoint; as seen by one organization. */
export function personOf (request: FastifyRequest, organizationId: string, user: { id: number, name: string }): Actor {
  return {
    organization_id: organizationId, type: 'user', id: user.id, name: user.name, ...originOf(request), caller: null
  }
}

/** The same without address and browser: for what a person does outside of the organization. */
export const withoutOrigin = (actor: Actor): Actor => ({ ...actor, ip: null, user_agent: null })

/** Where a request comes from, as events record it. */
export function originOf (request: FastifyRequest) {
  return {
    request_id: request.id,
    // What a proxy passes on as an address may be anything; of a client that has gone there may be none.
    ip: (request.ip as string | undefined)?.slice(0, 64) ?? null,
    user_agent: request.headers['user-agent']?.slice(0, 256) ?? null
  }
}
