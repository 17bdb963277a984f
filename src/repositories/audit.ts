import { sql, type SQL } from 'drizzle-orm'
import type { EventName } from '../../schemas/events.ts'
import type { Db } from '../db/database.ts'

/** Who did it, from where. */
export interface Actor {
  organization_id: string
  type: 'api_token' | 'user' | 'operator' | 'system'
  id: number | null
  name: string
  request_id: string | null
  ip: string | null
  user_agent: string | null
}

const withoutRequest = (organization_id: string, type: 'operator' | 'system'): Actor =>
  ({ organization_id, type, id: null, name: type, request_id: null, ip: null, user_agent: null })

/** The operator at the command line. */
export const operatorOf = (organizationId: string): Actor => withoutRequest(organizationId, 'operator')

/** The service itself, at work in the background. */
export const systemOf = (organizationId: string): Actor => withoutRequest(organizationId, 'system')

export interface AuditEvent {
  action: EventName
  resource_type: string
  resource_id: string | null
  details?: Record<string, string | number | boolean | null>
}

/**
 * Records an event as the last statement of its transaction: the counter row it takes is the last lock in the order
 * (project, level, counter), and gives the event the next number without a gap.
 */
export async function recordEvent (db: Db, actor: Actor, event: AuditEvent): Promise<void> {
  await db.execute(sql`
    WITH counter AS (
      UPDATE organization_counters SET next_event = next_event + 1
      WHERE organization_id = ${actor.organization_id} RETURNING next_event - 1 AS seq
    )
    INSERT INTO audit_events (organization_id, seq, action, actor_type, actor_id, resource_type, resource_id, request_id, ip, user_agent, details)
    SELECT ${actor.organization_id}, seq, ${event.action}, ${actor.type}, ${actor.id}::bigint, ${event.resource_type}, ${event.resource_id},
           ${actor.request_id}, ${actor.ip}, ${actor.user_agent}, ${detailsOf(event)}
    FROM counter`)
}

/** Records an event in several organizations, in one order for everybody: each takes its organization's counter. */
export async function recordInEach (db: Db, organizationIds: readonly string[], actorIn: (organizationId: string) => Actor, event: AuditEvent): Promise<void> {
  for (const id of [...organizationIds].sort()) await recordEvent(db, actorIn(id), event)
}

function detailsOf ({ details }: AuditEvent): SQL {
  return details === undefined ? sql`NULL` : sql`${JSON.stringify(details)}::jsonb`
}
