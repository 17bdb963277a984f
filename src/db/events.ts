import { sql, type SQL } from 'drizzle-orm'
import type { EventName } from '../../schemas/events.ts'

/** A row of `audit_events`, but for its number, which its organization's counter gives. */
export interface EventRow {
  organization_id: string
  action: EventName
  actor_type: string
  actor_id: number | null
  resource_type: string
  resource_id: string | null
  request_id: string | null
  ip: string | null
  user_agent: string | null
  details: Record<string, string | number | boolean | null> | null
  /** When it happened, as JSON has it, of what is recorded later; else it is now, by the database. */
  occurred_at?: string
}

/** Who did something, and what it was, as a row. */
export function eventRow (
  {
    organization_id, type, id, request_id, ip, user_agent
  }: { organization_id: string, type: string, id: number | null } & Pick<EventRow, 'request_id' | 'ip' | 'user_agent'>,
  {
    action, resource_type, resource_id, details = null
  }: Pick<EventRow, 'action' | 'resource_type' | 'resource_id'> & { details?: EventRow['details'] }
): EventRow {
  return {
    organization_id,
    action,
    actor_type: type,
    actor_id: id,
    resource_type,
    resource_id,
    request_id,
    ip,
    user_agent,
    details
  }
}

/** Events as the parameter of `insertEvents`. Those of one organization are numbered in this order. */
export function eventsJson (rows: readonly EventRow[]): string {
  const places = new Map<string, number>()
  return JSON.stringify(rows.map((row) => {
    const place = places.get(row.organization_id) ?? 0
    places.set(row.organization_id, place + 1)
    return { ...row, place }
  }))
}

/**
 * The one statement part that writes events: whatever records something ends with it. Before it stands a common table
 * expression `counter (organization_id, first)`, which has taken as many numbers of each organization as there are
 * events.
 */
export const insertEvents = (events: unknown): SQL => sql`
  INSERT INTO audit_events (organization_id, seq, occurred_at, action, actor_type, actor_id, resource_type, resource_id,
    request_id, ip, user_agent, details)
  SELECT organization_id, first + place, coalesce(occurred_at, now()), action, actor_type, actor_id, resource_type,
    resource_id, request_id, ip, user_agent, details
  FROM counter JOIN jsonb_to_recordset(${events}::jsonb) AS event (
    organization_id char(26), place int, occurred_at timestamptz, action varchar, actor_type varchar, actor_id bigint,
      resource_type varchar, resource_id varchar,
    request_id varchar, ip varchar, user_agent varchar, details jsonb
  ) USING (organization_id)`
