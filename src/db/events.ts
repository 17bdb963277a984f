import { sql, type SQL } from 'drizzle-orm'
import type { EventName } from '../../schemas/events.ts'

// The events of an organization are a chain: each carries a MAC over itself and the MAC of the one before. The key
// never goes to the database, so whoever records has to know where the chain ends before the statement is sent.

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

/**
 * Where the chain of an organization ends: the number of its next event, the MAC of the last one, and the key that the
 * next one gets its MAC from; null for the key that every chain begins with.
 */
export interface Head { next_event: number, event_head: Buffer | null, chain_kid: string | null }

/** The last event under a key: it names the one that the next event is under, as its resource. */
export const HAND_OVER = 'chain-key.rotate' satisfies EventName

/** A wrapped key of a chain, and the first event under it. */
export interface ChainKeyRow { organization_id: string, kid: string, from_seq: number, wrapped: Buffer }

/** An event as it stands in its chain. */
export type ChainedEvent = Omit<EventRow, 'action' | 'occurred_at'> &
  { seq: number, action: string, occurred_at: Date, chain_kid: string }

/** Makes the MACs of events, and knows what they need. A database's handles share one. */
export interface EventChain {
  /** Names the key that every chain begins with. */
  readonly kid: string
  /** Whether the key that an organization's head names is at hand. */
  hasKey (organizationId: string, kid: string | null): boolean
  /** Opens a key; one that cannot be opened is not at hand. */
  openKey (row: ChainKeyRow): void
  /** Under the key that the event names, which is at hand. */
  mac (event: ChainedEvent, previous: Buffer | null): Buffer
  /** Events were sent to the database, behind which the chain then ends: they want an anchor. */
  recorded (organizationId: string, head: Head): void
  /** Organizations whose events have waited long enough for an anchor, or are many; or all that have such. */
  due (all?: boolean): string[]
  /** How many organizations have events without an anchor, how long the first of these waits, and the last event. */
  lag (): { organizations: number, seconds: number, last: Date | undefined }
  /** The events of an organization up to this one have an anchor. */
  anchored (organizationId: string, sequence: number): void
  /** The database's time, as far as this process knows it. */
  now (): Date
  /** An answer to what was sent at `asked` (`performance.now`) brought the database's time, in milliseconds. */
  told (time: number, asked: number): void
}

/** The database's time in milliseconds, as `EventChain.told` takes it, in the answer of a statement. */
export const CLOCK = sql`(extract(epoch FROM clock_timestamp()) * 1000)::float8`

/** What a statement answers of a counter. */
export interface HeadRow { next_event: string, event_head: Buffer | null, chain_kid: string | null }

/** The driver hands out a bigint as text. */
export const headOf = ({ next_event, event_head, chain_kid }: HeadRow): Head =>
  ({ next_event: Number(next_event), event_head, chain_kid })

/**
 * The one statement part that writes events: whatever records something ends with it. Before it stands a common table
 * expression `counter (organization_id)` of the organizations whose counters have moved on to behind these events.
 */
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
