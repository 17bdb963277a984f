import type { FastifyRequest } from 'fastify'
import type { Caller } from '../../db/rows/caller.ts'
import type { Maker } from '../../db/rows/creator.ts'
import type { Actor } from '../../repositories/audit/audit.ts'
import type { Principal } from '../../repositories/people/principals.ts'

/** The caller of a guarded route. */
export function principalOf (request: FastifyRequest): Principal {
  if (request.principal === null) throw new Error('the route is not guarded')
  return request.principal
}

/** The actor that audit events and versions record, with the caller whose rows a change checks before the commit. */
export function actorOf (request: FastifyRequest): Actor {
  return {
    ...witnessOf(request),
    caller: callerOf(request),
    answering: request.answering,
    waited: request.waited,
    bytes: Number(request.headers['content-length'] ?? 0)
  }
}

/** The actor of an event that belongs to no change, so no rows of the caller are locked. */
export function witnessOf (request: FastifyRequest): Actor {
  const { type, id, name, application, organization } = principalOf(request)
  return { organization_id: organization.id, type, id, name, application, ...originOf(request), caller: null }
}

// The caller to lock, with the team roles in the project of the request if the request needs them.
function callerOf (request: FastifyRequest): Caller {
  const { caller } = principalOf(request)
  if (request.byTeams === null) return caller
  const { teams } = request.byTeams
  if (teams === null) throw new Error('the roles through teams were not checked')
  const roles = teams.map(({ team_id, project_id, role, slices }) => ({ team_id, project_id, role, slices }))
  return { ...caller, teams: roles }
}

/** The actor in one organization: the user of an account page, or of an application at the token endpoint. */
export function personOf (request: FastifyRequest, organizationId: string, user: { id: number, name: string }): Actor {
  return {
    organization_id: organizationId, type: 'user', id: user.id, name: user.name, ...originOf(request), caller: null
  }
}

/** The workloads of a rule as the actor, at the token endpoint. */
export const workloadOf = (
  request: FastifyRequest, { organization_id, id, name }: { organization_id: string, id: number, name: string }
): Actor => ({ organization_id, type: 'workload', id, name, ...originOf(request), caller: null })

/**
 * The caller as the maker of tokens, invitations and rules. Never a workload: what it made would outlive its rule, so
 * no rule has the scopes for these (`WORKLOAD_SCOPES`).
 */
export function makerOf ({ type, id, name, person }: Principal): NonNullable<Maker> {
  if (type === 'workload') throw new Error('a workload makes no tokens, invitations or rules')
  return { type, id, name, person }
}

/** The origin of a request that events record: request id, address and browser. */
export function originOf (request: FastifyRequest) {
  return {
    request_id: request.id,
    // A proxy may forward any string as the address. After a disconnect the address may be undefined.
    ip: (request.ip as string | undefined)?.slice(0, 64) ?? null,
    user_agent: request.headers['user-agent']?.slice(0, 256) ?? null
  }
}
