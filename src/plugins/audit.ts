import { AuditEventList, AuditQuery } from '../../schemas/audit.ts'
import type { EventName } from '../../schemas/events.ts'
import { PAGE_SIZE } from '../../schemas/shapes.ts'
import { principalOf } from '../http/routes/actor.ts'
import type { Domain } from '../http/routes/types.ts'
import { listEvents, type EventOfList } from '../repositories/audit/events.ts'
import type { Principal } from '../repositories/people/principals.ts'
import { pageMeta } from '../rules/pagination.ts'
import { scopesOfRole } from '../rules/roles.ts'
import { requireTimestamp } from '../rules/formats/timestamps.ts'

export const audit: Domain = async (app) => {
  app.get('/:organization/audit-events', {
    config: { access: 'organization:read' },
    schema: {
      operationId: 'listAuditEvents',
      summary: 'List audit events, newest first; empty for restricted tokens and roles without projects',
      description: 'An event has the time, the caller, the action and the resource. No event is ever changed.',
      querystring: AuditQuery,
      response: { 200: AuditEventList }
    },
    handler: async (request) => {
      const principal = principalOf(request)
      const { organization } = principal
      const { page = 1, per_page = PAGE_SIZE.default, before, from, to, ...rest } = request.query
      const pageRequest = { page, per_page }
      const filter = {
        ...rest,
        ...(from !== undefined && { from: requireTimestamp('from', from) }),
        ...(to !== undefined && { to: requireTimestamp('to', to) })
      }
      const { rows, total } = seesEvents(principal)
        ? await listEvents(app.lists, organization.id, filter, before, pageRequest)
        : { rows: [], total: 0 }
      return { data: rows.map(toItem), meta: pageMeta(pageRequest, total, rows.length) }
    }
  })
}

// The resource of an event may be deleted or outside of the hierarchy, so restrictions cannot be checked. A person can
// have restricted roles through teams if the role in the organization includes no projects.
function seesEvents ({ slices, caller }: Principal): boolean {
  return slices.length === 0 && (caller.role === undefined || scopesOfRole(caller.role).includes('project:read'))
}

function toItem ({
  seq, action, actor_type, actor_id, resource_type, resource_id, ...event
}: EventOfList) {
  const attributes = {
    sequence: seq,
    action: action as EventName,
    actor: { type: actor_type as 'user', id: actor_id },
    resource: { type: resource_type, id: resource_id },
    ...event
  }
  return { type: 'audit-events' as const, id: String(seq), attributes }
}
