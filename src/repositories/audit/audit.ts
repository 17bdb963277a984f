import { and, asc, eq, gt, inArray, sql } from 'drizzle-orm'
import type { EventName } from '../../../schemas/events.ts'
import { authenticatedColumns } from '../../db/rows/authenticated.ts'
import type { Caller } from '../../db/callers/caller.ts'
import {
  appendEvents, appendToCounter, chainOf, keepLateEvents, lockCounters, openChange, type Counter, type SynchronousCommit
} from '../../db/changes/chain.ts'
import {
  authorityOf, isAuthentic, rowsOf, tampered, transaction, type Answering, type Db
} from '../../db/database.ts'
import { eventRow, type EventRow } from '../../db/events.ts'
import { queryRows } from '../../db/rows/query.ts'
import { audit_events, late_events, organization_counters } from '../../db/tables.ts'

/** The caller of a change, and where the request comes from. */
export interface Actor {
  organization_id: string
  type: 'api_token' | 'user' | 'operator' | 'system'
  id: number | null
  name: string
  request_id: string | null
  ip: string | null
  user_agent: string | null
  /** The credential, which must be valid when the change commits; null for the operator and the service. */
  caller: Caller | null
  /** Stores the response of a request with an `Idempotency-Key`. */
  answering?: Answering | null
  /** Milliseconds that the request has waited for the database before. */
  waited?: number
  /** The size of the body in bytes, which counts in the queue. */
  bytes?: number
}

const withoutRequest = (organization_id: string, type: 'operator' | 'system'): Actor =>
  ({ organization_id, type, id: null, name: type, request_id: null, ip: null, user_agent: null, caller: null })

/** The operator at the command line. */
export const operatorOf = (organizationId: string): Actor => withoutRequest(organizationId, 'operator')

/** The service in a background job. */
export const systemOf = (organizationId: string): Actor => withoutRequest(organizationId, 'system')

export type AuditEvent = Pick<EventRow, 'action' | 'resource_type' | 'resource_id'> & {
  details?: NonNullable<EventRow['details']>
  /** The change of the organization's stored bytes by the change that the event reports; default 0. */
  growth?: number
}

/** An event about a resource of the type in the event's name. */
export const eventOf = (action: EventName, id: string | number, details?: AuditEvent['details']): AuditEvent => ({
  action, resource_type: action.split('.')[0]!, resource_id: String(id), ...(details && { details })
})

// Milliseconds that a long operation waits for a transaction that may end the caller.
const CALLER_LOCK_TIMEOUT_MS = 1_000

/**
 * Locks the counter of the organization as the last lock of a long operation, and validates the caller under the lock.
 * Throws CallerEnded, or RowLocked as `openChange` does.
 */
export async function lockCounterLast (db: Db, actor: Actor): Promise<Counter | undefined> {
  return openChange(db, actor, CALLER_LOCK_TIMEOUT_MS)
}

/**
 * Records the events that every change must have (`audit` of its route names them), in their order. The transaction has
 * locked the organization's counter first (`transaction` with the actor), or locks it here as the last lock of a long
 * operation. Throws CallerEnded when the caller may not make the change any more.
 */
export async function recordEvent (db: Db, actor: Actor, ...events: AuditEvent[]): Promise<void> {
  if (actor.answering?.hasBegun === false) throw new Error('the transaction of a change does not store its response')
  // Without a counter the organization was deleted.
  const counter = await openChange(db, actor, CALLER_LOCK_TIMEOUT_MS)
  if (counter === undefined) return
  for (const { growth = 0 } of events) counter.stored_bytes += growth
  await appendToCounter(db, events.map((event) => eventRow(actor, event)))
}

/** Records an event of a request that only reads. `bytes`: the size of the response, which waits in memory. */
export type RecordRead = (actor: Actor, event: AuditEvent, bytes?: number) => Promise<void>

/** Records an event of a request that changes nothing, in a transaction of its own. */
export async function recordAlone (handle: Db, actor: Actor, event: AuditEvent): Promise<void> {
  await transaction(handle, (db) => recordEvent(db, actor, event), actor)
}

/**
 * Records an event of a person, or of an attempt to sign in as a person, in each organization of the person, at the end
 * of the transaction. If the counter of an organization is locked, or its chain key is missing, the event is stored in
 * `late_events` and numbered later. Returns whether there are such events. Without an actor the function takes the same
 * time, so that the duration of a refusal reveals nothing.
 *
 * @param synchronousCommit as in `createReadRecorder`, for events of requests that change nothing
 */
export async function recordOfPerson (
  db: Db, actors: readonly Actor[], event: AuditEvent | ((organizationId: string) => AuditEvent),
  synchronousCommit: SynchronousCommit = 'on'
): Promise<boolean> {
  // All organizations record the same time.
  const occurred_at = chainOf(db).now().toISOString()
  const rows = actors.map((actor) => {
    const its = typeof event === 'function' ? event(actor.organization_id) : event
    return { ...eventRow(actor, its), occurred_at }
  })
  const ids = rows.map(({ organization_id }) => organization_id)
  const locked = await lockCounters(db, ids, 'free', synchronousCommit)
  const isFree = ({ organization_id }: EventRow) => locked.get(organization_id)?.hasKey === true
  const late = rows.filter((row) => !isFree(row))
  await keepLateEvents(db, late)
  await appendEvents(db, locked, rows.filter(isFree))
  return late.length > 0
}

/** A page of organizations with late events. */
export async function listLate (db: Db, after = '', limit = 100): Promise<string[]> {
  const { organization_id } = organization_counters
  const late = db.select({ id: late_events.organization_id }).from(late_events)
  return (await db.select({ organization_id }).from(organization_counters)
    .where(and(gt(organization_id, after), inArray(organization_id, late)))
    .orderBy(asc(organization_id)).limit(limit)).map((row) => row.organization_id)
}

/**
 * Numbers late events of an organization, oldest first, if its counter is free. An event whose MAC does not verify, or
 * that was numbered before, is reported and deleted. Returns the number of processed events; undefined when the counter
 * is locked. Throws TamperedRow when the chain key is missing, since a retry would not help.
 */
export async function recordLate (handle: Db, organizationId: string): Promise<number | undefined> {
  return transaction(handle, async (db) => {
    const locked = await lockCounters(db, [organizationId], 'free')
    if (locked.size === 0) return undefined
    // Before reporting, because a rollback would repeat the reports at each retry.
    if (!locked.get(organizationId)!.hasKey) tampered()
    const { organization_id, id } = late_events
    const earliest = db.select({ organization_id, id }).from(late_events).where(eq(organization_id, organizationId))
      .orderBy(asc(id)).limit(AT_ONCE)
    const rows = await db.delete(late_events).where(sql`(${organization_id}, ${id}) IN ${earliest}`)
      .returning(authenticatedColumns('late_events'))
    const written = rows.sort((a, b) => a.id - b.id).filter((row) => isAuthentic(db, 'late_events', row))
    const numbered = await findNumbered(db, organizationId, written)
    for (const row of written) if (numbered.has(row.id)) authorityOf(db).report({ table: 'late_events', row, about: {} })
    const events = written.filter(({ id }) => !numbered.has(id)).map(({ organization_id, id, event, occurred_at }) => ({
      ...event,
      details: { ...event.details, [LATE]: id },
      organization_id,
      occurred_at: occurred_at.toISOString()
    }))
    if (events.length > 0) await appendEvents(db, locked, events)
    return rows.length
  })
}

// The number of the late event, stored in the details of the numbered event. The MAC of the chain covers it.
const LATE = 'late'

// Maximum late events in one transaction.
const AT_ONCE = 200

/**
 * Ids of late events that were numbered already. A copy of such a row, put back into the table, still has a valid MAC.
 * The caller has locked the counter, so no other transaction numbers events.
 */
async function findNumbered (
  db: Db, organizationId: string, rows: readonly { id: number, occurred_at: Date }[]
): Promise<Set<number>> {
  if (rows.length === 0) return new Set()
  const found = await queryRows<{ id: string }>(db, sql`
    SELECT late.id FROM ${rowsOf(organizationId, rows.map(({ id, occurred_at }) => ({ id, occurred_at })),
      sql`id bigint, occurred_at timestamptz`)} late
    JOIN ${audit_events} ON ${audit_events.organization_id} = late.organization_id
      AND ${audit_events.occurred_at} = late.occurred_at AND ${audit_events.details} -> ${LATE} = to_jsonb(late.id)`)
  return new Set(found.map(({ id }) => Number(id)))
}
