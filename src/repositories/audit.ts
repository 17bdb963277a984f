import { sql, type SQL } from 'drizzle-orm'
import type { EventName } from '../../schemas/events.ts'
import { CallerEnded, callerCtes, callerLives, callerValues, type Caller } from '../db/caller.ts'
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
  /** Has to live when what it does commits; null for whoever was not let in by a token. */
  caller: Caller | null
}

const withoutRequest = (organization_id: string, type: 'operator' | 'system'): Actor =>
  ({ organization_id, type, id: null, name: type, request_id: null, ip: null, user_agent: null, caller: null })

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
 * (project, level, caller, counter), and gives the event the next number without a gap.
 *
 * It is the gate of every change, too: the caller is held here, in the same statement, and the change fails with
 * CallerEnded when there is none any more. A change that records nothing is none (`audit` of its route says so).
 */
export async function recordEvent (db: Db, actor: Actor, event: AuditEvent): Promise<void> {
  const caller = { organization_id: actor.organization_id, ...callerValues(actor.caller) }
  const rows = await db.execute(sql`
    WITH ${callerCtes(caller)}, counter AS (
      UPDATE organization_counters SET next_event = next_event + 1
      WHERE organization_id = ${actor.organization_id} AND ${callerLives(caller)} RETURNING next_event - 1 AS seq
    )
    INSERT INTO audit_events (organization_id, seq, action, actor_type, actor_id, resource_type, resource_id, request_id, ip, user_agent, details)
    SELECT ${actor.organization_id}, seq, ${event.action}, ${actor.type}, ${actor.id}::bigint, ${event.resource_type}, ${event.resource_id},
           ${actor.request_id}, ${actor.ip}, ${actor.user_agent}, ${detailsOf(event)}
    FROM counter RETURNING seq`) as unknown as unknown[]
  if (rows.length === 0 && actor.caller !== null) throw new CallerEnded()
}

/** Records an event in several organizations, in one order for everybody: each takes its organization's counter. */
export async function recordInEach (db: Db, organizationIds: readonly string[], actorIn: (organizationId: string) => Actor, event: AuditEvent): Promise<void> {
  for (const id of [...organizationIds].sort()) await recordEvent(db, actorIn(id), event)
}

function detailsOf ({ details }: AuditEvent): SQL {
  return details === undefined ? sql`NULL` : sql`${JSON.stringify(details)}::jsonb`
}
