import { and, asc, eq, gt, inArray, sql } from 'drizzle-orm'
import type { EventName } from '../../../schemas/events.ts'
import { authenticatedColumns } from '../../db/rows/authenticated.ts'
import type { Caller } from '../../db/rows/caller.ts'
import { isAuthentic, rowsOf, type Db } from '../../db/database.ts'
import type { EventRow } from '../../db/events.ts'
import { andOwn } from '../../db/postgres/engine.ts'
import { queryRows } from '../../db/rows/query.ts'
import { audit_events, late_events, organization_counters } from '../../db/tables.ts'
import type { Repeatable } from '../operations/idempotency.ts'

/** The caller of a change, and the origin of the request. */
export interface Actor {
  organization_id: string
  type: 'api_token' | 'user' | 'workload' | 'operator' | 'system'
  id: number | null
  name: string
  /** The name of the application through which a person acts. */
  application?: string
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

interface Named { id: string, slug: string }

/** The level of an event, with the levels above: details of each event about a level or a document. */
export const placeDetails = (
  { project, target, environment }: { project: Named, target?: Named | null, environment?: Named | null }
) => ({
  project_id: project.id,
  project: project.slug,
  ...(target != null && { target_id: target.id, target: target.slug }),
  ...(environment != null && { environment_id: environment.id, environment: environment.slug })
})

/** Records an event of a read. `bytes`: the size of the response, which stays in memory until the event is recorded. */
export type RecordRead = (actor: Actor, event: AuditEvent, bytes?: number) => Promise<void>

/** An event with its actor. */
export interface RecordedEvent { actor: Actor, event: AuditEvent }

/** A page of organizations with late events. */
export async function listLate (db: Db, after = '', limit = 100): Promise<string[]> {
  const { organization_id } = organization_counters
  const late = db.select({ id: late_events.organization_id }).from(late_events)
  return (await db.select({ organization_id }).from(organization_counters)
    .where(and(gt(organization_id, after), inArray(organization_id, late)))
    .orderBy(asc(organization_id)).limit(limit)).map((row) => row.organization_id)
}

type LateRow = Pick<typeof late_events.$inferSelect, 'organization_id' | 'id' | 'event' | 'occurred_at'>

/**
 * Deletes the earliest `limit` late events of an organization, and returns the authentic ones, in order, with the
 * number of deleted rows. Reports rows with a wrong MAC.
 */
export async function takeLateEvents (
  db: Db, organizationId: string, limit: number
): Promise<{ authentic: LateRow[], deleted: number }> {
  const { organization_id, id } = late_events
  const earliest = db.select({ organization_id, id }).from(late_events).where(eq(organization_id, organizationId))
    .orderBy(asc(id)).limit(limit)
  const rows = await db.delete(late_events)
    .where(sql`(${organization_id}, ${id}) IN ${earliest}${andOwn(sql`${organization_id}`, organizationId)}`)
    .returning(authenticatedColumns('late_events'))
  const authentic = rows.filter((row) => isAuthentic(db, 'late_events', row)).sort((a, b) => a.id - b.id)
  return { authentic, deleted: rows.length }
}

/**
 * Returns the ids of late events that are already in the chain (`details.late`), with the time of the event. Detects a
 * replay: if an attacker copies an appended row back into `late_events`, the copy has a valid MAC. The caller has
 * locked the counter row, so no other transaction appends events.
 */
export async function findAppended (
  db: Db, organizationId: string, rows: readonly Pick<LateRow, 'id' | 'occurred_at'>[]
): Promise<Set<number>> {
  if (rows.length === 0) return new Set()
  const appended = await queryRows<{ id: string }>(db, sql`
    SELECT late.id FROM ${rowsOf(organizationId, rows.map(({ id, occurred_at }) => ({ id, occurred_at })),
      sql`id bigint, occurred_at timestamptz`)} late
    JOIN ${audit_events} ON ${audit_events.organization_id} = late.organization_id
      AND ${audit_events.occurred_at} = late.occurred_at AND ${audit_events.details} -> 'late' = to_jsonb(late.id)
      ${andOwn(sql`${audit_events.organization_id}`, organizationId)}`)
  return new Set(appended.map(({ id }) => Number(id)))
}
