import { sql, type SQL } from 'drizzle-orm'
import type { EventName } from '../../schemas/events.ts'

// The events of an organization form a chain: each MAC covers the event and the MAC of the previous event. The database
// never gets the key, so the service must know the end of the chain before it sends the statement.

/** A row of `audit_events` without its number, which the organization's counter assigns. */
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
  /** The time of an event that is recorded later, as JSON. Default: the current time of the database. */
  occurred_at?: string
}

/** An event as a row. */
export const eventRow = (
  { organization_id, type, id, request_id, ip, user_agent }:
    Pick<EventRow, 'organization_id' | 'request_id' | 'ip' | 'user_agent'> & { type: string, id: number | null },
  { action, resource_type, resource_id, details = null }:
    Pick<EventRow, 'action' | 'resource_type' | 'resource_id'> & { details?: EventRow['details'] }
): EventRow => ({
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
})

/** The end of a chain: number and key of the next event (null: the first key of all chains), and the last MAC. */
export interface Head { next_event: number, event_head: Buffer | null, chain_kid: string | null }

/** The last event under a key. Its resource names the next key. */
export const HAND_OVER = 'chain-key.rotate' satisfies EventName

/** A wrapped chain key, and the number of its first event. */
export interface ChainKeyRow { organization_id: string, kid: string, from_seq: number, wrapped: Buffer }

/** An event with its number and chain key. */
export type ChainedEvent = Omit<EventRow, 'action' | 'occurred_at'> &
  { seq: number, action: string, occurred_at: Date, chain_kid: string }

/** Makes the MACs of events, and keeps the keys and clock for them. All handles of a database share one. */
export interface EventChain {
  /** The id of the first key of every chain. */
  readonly kid: string
  /** Whether the key of an organization's head is loaded. */
  hasKey (organizationId: string, kid: string | null): boolean
  /** Unwraps and loads a key. A key that cannot be unwrapped is not loaded. */
  openKey (row: ChainKeyRow): void
  /** The MAC of an event under the key that it names, which must be loaded. */
  mac (event: ChainedEvent, previous: Buffer | null): Buffer
  /** Marks the end of a chain after events were sent, so that the end gets an anchor. */
  recorded (organizationId: string, head: Head): void
  /** Organizations that need an anchor, by age or number of their events; with `all`, those with any new events. */
  due (all?: boolean): string[]
  /** The number of organizations with events without an anchor, the oldest one's age, and the last event's time. */
  lag (): { organizations: number, seconds: number, last: Date | undefined }
  /** Marks the events of an organization up to this one as anchored. */
  anchored (organizationId: string, sequence: number): void
  /** The database's time, estimated from the last clock sample. */
  now (): Date
  /** Records the database's time in milliseconds, from the response to a statement sent at `performance.now()`. */
  recordClockSample (time: number, sentAt: number): void
}

/** The database's time in milliseconds, selected as a sample for `EventChain.recordClockSample`. */
export const CLOCK = sql`(extract(epoch FROM clock_timestamp()) * 1000)::float8`

/** The columns of a counter as the driver returns them: bigint is text. */
export type HeadRow = Omit<Head, 'next_event'> & { next_event: string }

export const headOf = ({ next_event, event_head, chain_kid }: HeadRow): Head =>
  ({ next_event: Number(next_event), event_head, chain_kid })

/** Inserts events after a table expression `counter (organization_id)` that advances the counters past these events. */
export const insertEvents = (events: unknown): SQL => sql`
  INSERT INTO audit_events (organization_id, seq, occurred_at, action, actor_type, actor_id, resource_type, resource_id,
    request_id, ip, user_agent, details, chain_kid, mac)
  SELECT organization_id, seq, occurred_at, action, actor_type, actor_id, resource_type, resource_id, request_id, ip,
    user_agent, details, chain_kid, decode(mac, 'hex')
  FROM counter JOIN jsonb_to_recordset(${events}::jsonb) AS event (
    organization_id char(26), seq bigint, occurred_at timestamptz, action varchar, actor_type varchar,
    actor_id bigint, resource_type varchar, resource_id varchar, request_id varchar, ip varchar, user_agent varchar,
    details jsonb, chain_kid varchar, mac text
  ) USING (organization_id)`
