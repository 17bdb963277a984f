import { sql, type SQL } from 'drizzle-orm'
import type { EventName } from '../../schemas/events.ts'
import { perEngine, rowsIn } from './postgres/engine.ts'

// The events of an organization form a hash chain: each MAC covers the event and the MAC of the previous event. The
// database never gets the key, so the service must read the last MAC before it inserts the next event.

/** A row of `audit_events` without the columns that `appendEvents` sets: `seq`, `chain_kid` and `mac`. */
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
  /** ISO 8601, for an event that is recorded after it occurred. Default: the time of the change. */
  occurred_at?: string
}

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

/** The end of a chain: number and chain key of the next event (null: the first key), and the MAC of the last event. */
export interface Head { next_event: number, event_head: Buffer | null, chain_kid: string | null }

/** The end of a chain after a commit of this process. */
export interface KnownEnd {
  head: Head
  at: Date
  /** Whether the last commit found the end that was remembered here. */
  isOwn: boolean
}

/** The action of the event that ends the use of a chain key. Its `resource_id` is the id of the next key. */
export const HAND_OVER = 'chain-key.rotate' satisfies EventName

/** A wrapped chain key. `from_seq` is the number of the first event under the key. */
export interface ChainKeyRow { organization_id: string, kid: string, from_seq: number, wrapped: Buffer }

export type ChainedEvent = Omit<EventRow, 'action' | 'occurred_at'> &
  { seq: number, action: string, occurred_at: Date, chain_kid: string }

/**
 * Computes MACs of events, caches chain keys, estimates the database's time, and tracks events without an anchor. An
 * anchor is a log line with the end of a chain, by which a truncated chain is detected (jobs/anchors.ts).
 */
export interface EventChain {
  /** The ends of chains after the last commits of this process, of up to 10,000 organizations. */
  readonly knownEnds: {
    get (organizationId: string): KnownEnd | undefined
    set (organizationId: string, end: KnownEnd): unknown
  }
  /** The id of the first chain key, which all chains share. */
  readonly kid: string
  /** Whether a chain key is loaded. Always true for null, the first key. */
  hasKey (organizationId: string, kid: string | null): boolean
  /** Unwraps and caches a key. Does nothing if the key cannot be unwrapped. */
  openKey (row: ChainKeyRow): void
  /** The MAC of an event under the key `event.chain_kid`. Throws if that key is not loaded. */
  mac (event: ChainedEvent, previous: Buffer | null): Buffer
  /** Registers the new end of a chain, so that a background job writes an anchor for it. Called before the commit. */
  recorded (organizationId: string, head: Head): void
  /** Organizations that have old or many events without an anchor; with `all`, any events without an anchor. */
  due (all?: boolean): string[]
  /** The number of organizations with events without an anchor, the oldest such event's age, the last event's time. */
  lag (): { organizations: number, seconds: number, last: Date | undefined }
  /** Records that an anchor covers the organization's events up to this number. */
  anchored (organizationId: string, sequence: number): void
  /** The database's time, estimated from the last clock sample. */
  now (): Date
  /** Adds a sample: the database's time in milliseconds, from a statement sent at `sentAt` (`performance.now()`). */
  recordClockSample (time: number, sentAt: number): void
}

/** Selects the database's time in milliseconds, for `EventChain.recordClockSample`. */
export const CLOCK = sql`(extract(epoch FROM clock_timestamp()) * 1000)::float8`

/** A Head as the driver returns it: a bigint column is text. */
export type HeadRow = Omit<Head, 'next_event'> & { next_event: string }

export const headOf = ({ next_event, event_head, chain_kid }: HeadRow): Head =>
  ({ next_event: Number(next_event), event_head, chain_kid })

/**
 * Inserts events. On PostgreSQL, the statement must define a CTE `counter (organization_id)` with the organizations of
 * the events. On Citus, all events must belong to one organization, and the statement has its id as the parameter
 * `organization_id`.
 */
export const insertEvents = (events: unknown): SQL => sql`
  INSERT INTO audit_events (organization_id, seq, occurred_at, action, actor_type, actor_id, resource_type, resource_id,
    request_id, ip, user_agent, details, chain_kid, mac)
  SELECT organization_id, seq, occurred_at, action, actor_type, actor_id, resource_type, resource_id, request_id, ip,
    user_agent, details, chain_kid, decode(mac, 'hex')
  FROM ${perEngine({
    postgres: sql`counter JOIN jsonb_to_recordset(${events}::jsonb) AS event (organization_id char(26), ${COLUMNS})
      USING (organization_id)`,
    citus: sql`(${rowsIn(events, COLUMNS)}) AS event`
  })}`

const COLUMNS = sql`seq bigint, occurred_at timestamptz, action varchar, actor_type varchar, actor_id bigint,
    resource_type varchar, resource_id varchar, request_id varchar, ip varchar, user_agent varchar, details jsonb,
    chain_kid varchar, mac text`
