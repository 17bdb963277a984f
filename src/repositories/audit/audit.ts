import { and, asc, eq, gt, inArray, sql } from 'drizzle-orm'
import type { EventName } from '../../../schemas/events.ts'
import { authenticatedColumns } from '../../db/rows/authenticated.ts'
import type { Caller } from '../../db/callers/caller.ts'
import {
  appendEvents, appendToCounter, chainOf, keepLateEvents, lockCounters, openChange, type SynchronousCommit
} from '../../db/changes/chain.ts'
import {
  authorityOf, isAuthentic, rowsOf, tampered, transaction, type Db
} from '../../db/database.ts'
import { eventRow, type EventRow } from '../../db/events.ts'
import { andOwn, engineOf } from '../../db/postgres/engine.ts'
import { matching } from '../../db/rows/matching.ts'
import { queryRows } from '../../db/rows/query.ts'
import { audit_events, late_events, organization_counters } from '../../db/tables.ts'
import type { Repeatable } from '../operations/idempotency.ts'

/** The caller of a change, and the origin of the request. */
export interface Actor {
  organization_id: string
  type: 'api_token' | 'user' | 'operator' | 'system'
  id: number | null
  name: string
  request_id: string | null
  ip: string | null
  user_agent: string | null
  /** The credential, which must be valid when the change commits; null for the operator and for background jobs. */
  caller: Caller | null
  /** Stores the response of a request with an `Idempotency-Key`. */
  answering?: Repeatable | null
  /** Milliseconds that the request has already waited for the database. */
  waited?: number
  /** The size of the request body, which counts against the byte limits of the change queue. */
  bytes?: number
}

const withoutRequest = (organization_id: string, type: 'operator' | 'system'): Actor =>
  ({ organization_id, type, id: null, name: type, request_id: null, ip: null, user_agent: null, caller: null })

/** The actor for commands that the operator runs. */
export const operatorOf = (organizationId: string): Actor => withoutRequest(organizationId, 'operator')

/** The actor for background jobs of the service. */
export const systemOf = (organizationId: string): Actor => withoutRequest(organizationId, 'system')

export type AuditEvent = Pick<EventRow, 'action' | 'resource_type' | 'resource_id'> & {
  details?: NonNullable<EventRow['details']>
  /** The bytes that the change adds to the organization's stored bytes (default: 0). Negative if data is deleted. */
  growth?: number
}

/** An event about a resource. The resource type is the part of the action before the first dot. */
export const eventOf = (action: EventName, id: string | number, details?: AuditEvent['details']): AuditEvent => ({
  action, resource_type: action.split('.')[0]!, resource_id: String(id), ...(details && { details })
})

/**
 * Records the events of a change, in order. A route must declare its events in its `audit` option. Locks the
 * organization's counter row, unless `transaction` was called with the actor and has already locked the row. A long
 * operation must take all other locks first. Throws CallerEnded if the caller may no longer make the change,
 * OrganizationInactive or RowLocked.
 */
export async function recordEvent (db: Db, actor: Actor, ...events: AuditEvent[]): Promise<void> {
  if (actor.answering?.isFirst === false) throw new Error('the transaction of a change does not store its response')
  // The counter row is missing if the organization does not exist.
  const counter = await openChange(db, actor)
  if (counter === undefined) return
  for (const { growth = 0 } of events) counter.stored_bytes += growth
  await appendToCounter(db, events.map((event) => eventRow(actor, event)))
}

/** Records an event of a read. `bytes`: the size of the response, which stays in memory until the event is recorded. */
export type RecordRead = (actor: Actor, event: AuditEvent, bytes?: number) => Promise<void>

// On Citus, each organization needs its own statements. With more, a transaction could exceed its timeout.
const MAX_AT_ONCE_ON_CITUS = 50

interface OfPersonOptions {
  /** The event is a refused sign-in. On Citus always a late event: the duration must not reveal organizations. */
  isRefusal?: boolean
  synchronousCommit?: SynchronousCommit
  /** Events of other actors that follow from the person's event, such as ended invitations. */
  effects?: readonly RecordedEvent[]
}

/** An event with its actor. */
export interface RecordedEvent { actor: Actor, event: AuditEvent }

/**
 * The `organization_id` in `late_events` of a person whose organizations could not be listed, because a Citus node did
 * not respond. `findLateOrganizations` replaces such a row by a row for each organization.
 */
export const UNLISTED_ORGANIZATIONS = '0'.repeat(26)

/**
 * Records an event of a person, such as a refused sign-in, in each of the person's organizations. Call this at the end
 * of the transaction, because it locks the counter rows of the organizations. The event goes to `late_events` if the
 * counter row is locked or the chain key is missing; on Citus also for a refusal, for a person in more than 50
 * organizations, and for `UNLISTED_ORGANIZATIONS`. `recordLate` later appends late events to the chain. Returns whether
 * an event was stored as a late event. For an unknown account, `actors` is empty: the same statements run, so that the
 * duration of a refused sign-in does not reveal whether the account exists.
 */
export async function recordOfPerson (
  db: Db, actors: readonly Actor[], event: AuditEvent | ((organizationId: string) => AuditEvent),
  { isRefusal = false, synchronousCommit = 'on', effects = [] }: OfPersonOptions = {}
): Promise<boolean> {
  const events = actors.map((actor): RecordedEvent =>
    ({ actor, event: typeof event === 'function' ? event(actor.organization_id) : event })).concat(effects)
  // The event has the same time in all organizations.
  const occurred_at = chainOf(db).now().toISOString()
  const rows = events.map(({ actor, event }) => ({ ...eventRow(actor, event), occurred_at }))
  const ids = rows.map(({ organization_id }) => organization_id)
  const areLate = engineOf(db) === 'citus' &&
    (isRefusal || new Set(ids).size > MAX_AT_ONCE_ON_CITUS || ids.includes(UNLISTED_ORGANIZATIONS))
  const locked = await lockCounters(db, areLate ? [] : ids, 'free', synchronousCommit)
  const isFree = ({ organization_id }: EventRow) => locked.get(organization_id)?.hasKey === true
  const late = rows.filter((row) => !isFree(row))
  await keepLateEvents(db, late)
  await appendEvents(db, locked, rows.filter(isFree))
  return late.length > 0
}

// Maximum number of late events in a transaction. Each person needs a query of all Citus nodes, and a transaction must
// end within four seconds.
const UNLISTED_AT_ONCE = 20

/**
 * Replaces each late event of `UNLISTED_ORGANIZATIONS` by a late event for each organization in which the person is a
 * member now. A new row keeps the id of the old row. So if an attacker puts a copy of the old row back later, the
 * replay is detected (`findNumbered`). `listOrganizations` returns the organizations of a user.
 */
export async function findLateOrganizations (
  handle: Db, listOrganizations: (db: Db, userId: number) => Promise<string[]>
): Promise<void> {
  for (let found = UNLISTED_AT_ONCE; found === UNLISTED_AT_ONCE;) {
    found = await transaction(handle, async (db) => {
      const { id } = late_events
      const its = matching(late_events, { organization_id: UNLISTED_ORGANIZATIONS })
      const earliest = db.select({ id }).from(late_events).where(its).orderBy(asc(id)).limit(UNLISTED_AT_ONCE)
      const rows = await db.delete(late_events).where(and(its, inArray(id, earliest)))
        .returning(authenticatedColumns('late_events'))
      const events = []
      for (const row of rows.filter((row) => isAuthentic(db, 'late_events', row))) {
        for (const organization of await listOrganizations(db, row.event.actor_id!)) {
          events.push({
            ...row.event, organization_id: organization, occurred_at: row.occurred_at.toISOString(), late_id: row.id
          })
        }
      }
      if (events.length > 0) await keepLateEvents(db, events)
      return rows.length
    })
  }
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
 * Appends an organization's late events to its chain, oldest first. Reports and deletes an event if its MAC is wrong or
 * if the event is already in the chain. Returns the number of processed events; undefined if another transaction has
 * locked the counter row. Throws TamperedRow if the chain key is missing.
 */
export async function recordLate (handle: Db, organizationId: string): Promise<number | undefined> {
  return transaction(handle, async (db) => {
    const locked = await lockCounters(db, [organizationId], 'free')
    if (locked.size === 0) return undefined
    // Checks the chain key before any row is reported. A later error would roll back the deletion of the reported rows,
    // so each retry would report the same rows again.
    if (!locked.get(organizationId)!.hasKey) tampered()
    const { organization_id, id } = late_events
    const earliest = db.select({ organization_id, id }).from(late_events).where(eq(organization_id, organizationId))
      .orderBy(asc(id)).limit(AT_ONCE)
    const rows = await db.delete(late_events)
      .where(sql`(${organization_id}, ${id}) IN ${earliest}${andOwn(sql`${organization_id}`, organizationId)}`)
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

// The property of an appended event's `details` that holds the id of the row in `late_events`. The MAC of the chain
// covers `details`.
const LATE = 'late'

// Maximum number of late events in one transaction.
const AT_ONCE = 200

/**
 * Returns the ids of late events that are already in the chain. Detects a replay: if an attacker copies an appended row
 * back into `late_events`, the copy has a valid MAC. The caller has locked the counter row, so no other transaction
 * appends events.
 */
async function findNumbered (
  db: Db, organizationId: string, rows: readonly { id: number, occurred_at: Date }[]
): Promise<Set<number>> {
  if (rows.length === 0) return new Set()
  const found = await queryRows<{ id: string }>(db, sql`
    SELECT late.id FROM ${rowsOf(organizationId, rows.map(({ id, occurred_at }) => ({ id, occurred_at })),
      sql`id bigint, occurred_at timestamptz`)} late
    JOIN ${audit_events} ON ${audit_events.organization_id} = late.organization_id
      AND ${audit_events.occurred_at} = late.occurred_at AND ${audit_events.details} -> ${LATE} = to_jsonb(late.id)
      ${andOwn(sql`${audit_events.organization_id}`, organizationId)}`)
  return new Set(found.map(({ id }) => Number(id)))
}
