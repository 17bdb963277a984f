import { and, asc, desc, eq, gt, gte, isNull, lt, sql, type SQL } from 'drizzle-orm'
import { MAX_COUNTED, type AuditQuery } from '../../../schemas/audit.ts'
import { EVENTS } from '../../../schemas/events.ts'
import { LEVELS, type Level } from '../../../schemas/levels.ts'
import { isKeyOf, type Db } from '../../db/database.ts'
import { queryRows } from '../../db/rows/query.ts'
import { audit_events, organization_counters } from '../../db/tables.ts'
import { offsetOf, type PageRequest } from '../../rules/pagination.ts'

export type EventOfList = Omit<(typeof audit_events)['$inferSelect'], 'organization_id' | 'chain_kid' | 'mac'>

export interface EventFilter extends Pick<AuditQuery, 'actor' | 'action' | 'resource' | Level> {
  from?: Date | undefined
  to?: Date | undefined
}

/** The filters in a statement. `from` and `to` can also be SQL columns. */
type FilterInSql = Omit<EventFilter, 'from' | 'to'> & { from?: Date | SQL | undefined, to?: Date | SQL | undefined }

const {
  organization_id, seq, occurred_at, action, actor_type, actor_id, resource_type, resource_id, request_id, ip,
  user_agent, details
} = audit_events
const columns = {
  seq, occurred_at, action, actor_type, actor_id, resource_type, resource_id, request_id, ip, user_agent, details
}
const ORDER = { newest: [desc(occurred_at), desc(seq)], oldest: [asc(occurred_at), asc(seq)] }
const BY = {
  newest: sql`matched.occurred_at DESC, matched.seq DESC`, oldest: sql`matched.occurred_at, matched.seq`
}

/**
 * A page of an organization's events, newest first. Without a filter, events are sorted by number. Event numbers have
 * no gaps, so the page is computed from the numbers. With a filter, events are sorted by time, and `total` is at most
 * `MAX_COUNTED`.
 *
 * @param before lists only events that are older than the event with this number
 */
export async function listEvents (
  db: Db, organizationId: string, filter: EventFilter, before: number | undefined, page: PageRequest
): Promise<{ rows: EventOfList[], total: number }> {
  if (Object.keys(filter).length === 0) return listAll(db, organizationId, before, page)
  return listSome(db, organizationId, filter, before, page)
}

async function listAll (db: Db, organizationId: string, before: number | undefined, page: PageRequest) {
  const [counter] = await db.select({ next: organization_counters.next_event }).from(organization_counters)
    .where(eq(organization_counters.organization_id, organizationId))
  const total = Math.max(0, Math.min(counter?.next ?? 1, before ?? Infinity) - 1)
  const first = total - offsetOf(page)
  if (first < 1) return { rows: [], total }
  const rows = await db.select(columns).from(audit_events)
    .where(and(eq(organization_id, organizationId), lt(seq, first + 1))).orderBy(desc(seq)).limit(page.per_page)
  return { rows, total }
}

async function listSome (
  db: Db, organizationId: string, filter: EventFilter, before: number | undefined, page: PageRequest
) {
  const found = matching(organizationId, filter, { before })
  const total = await db.$count(sql`(${found({ limit: MAX_COUNTED })}) AS counted`)
  const offset = offsetOf(page)
  if (offset >= total) return { rows: [], total }
  const rows = await db.select(columns).from(audit_events)
    .where(and(eq(organization_id, organizationId), isKeyOf(sql`${seq}`, found({ limit: page.per_page, offset }))))
    .orderBy(...ORDER.newest)
  return { rows, total }
}

/**
 * The next events for an export, oldest first. Events are sorted by number, or with a filter by time.
 *
 * @param after lists only events that follow the event with this number in this order
 */
export async function exportEvents (
  db: Db, organizationId: string, filter: EventFilter, after: number | undefined, limit: number
): Promise<EventOfList[]> {
  const its = eq(organization_id, organizationId)
  if (Object.keys(filter).length === 0) {
    return db.select(columns).from(audit_events).where(and(its, gt(seq, after ?? 0))).orderBy(asc(seq)).limit(limit)
  }
  const found = matching(organizationId, filter, { after }, 'oldest')
  return db.select(columns).from(audit_events).where(and(its, isKeyOf(sql`${seq}`, found({ limit, offset: 0 }))))
    .orderBy(...ORDER.oldest)
}

/** A day for `countEvents`. Only events from `from` until before `to` count. */
export interface CountedDay { date: string, from: Date, to: Date }

/** The number of matching events on each day, in the order of `days`; at most `MAX_COUNTED` + 1 for each day. */
export async function countEvents (
  db: Db, organizationId: string, filter: Omit<EventFilter, 'from' | 'to'>, days: readonly CountedDay[]
): Promise<number[]> {
  const found = matching(organizationId, { ...filter, from: sql`days.since`, to: sql`days.until` }, {})
  const listed = days.map(({ from, to }, day) => ({ day, since: from, until: to }))
  const rows = await queryRows<{ count: number }>(db, sql`
    SELECT (SELECT count(*)::int FROM (${found({ limit: MAX_COUNTED + 1 })}) AS counted) AS count
    FROM jsonb_to_recordset(${JSON.stringify(listed)}::jsonb)
      AS days (day int, since timestamptz, until timestamptz) ORDER BY days.day`)
  return rows.map(({ count }) => count)
}

/** The event number after which, or before which, a list begins. */
interface Bound { before?: number | undefined, after?: number | undefined }

/**
 * Returns a function that builds a query for the numbers of matching events. With `offset`, the query skips `offset`
 * events in the given order and returns the next `limit` numbers. Without `offset`, the query returns any `limit`
 * numbers. The query reads one index range, or one range for each action, so every row that it reads matches (decision
 * 0057).
 */
function matching (
  organizationId: string, filter: FilterInSql, { before, after }: Bound, order: keyof typeof ORDER = 'newest'
): (part: { limit: number, offset?: number }) => SQL {
  const [type, actor] = filter.actor?.split(':') ?? []
  const [kind, resource] = filter.resource?.split(':') ?? []
  const placeOf = (number: number) => sql`(
      SELECT b.occurred_at, b.seq FROM audit_events b WHERE b.organization_id = ${organizationId} AND b.seq = ${number})`
  const own = and(
    eq(organization_id, organizationId),
    type === undefined ? undefined : eq(actor_type, type),
    type === undefined ? undefined : actor === undefined ? isNull(actor_id) : eq(actor_id, Number(actor)),
    kind === undefined ? undefined : and(eq(resource_type, kind), eq(resource_id, resource!)),
    ...LEVELS.map((level) => {
      const id = filter[level]?.toUpperCase()
      return id === undefined ? undefined : sql`(${details} ->> ${sql.raw(`'${level}_id'`)}) = ${id}`
    }),
    filter.from === undefined ? undefined : gte(occurred_at, filter.from),
    filter.to === undefined ? undefined : lt(occurred_at, filter.to),
    before === undefined ? undefined : sql`(${occurred_at}, ${seq}) < ${placeOf(before)}`,
    after === undefined ? undefined : sql`(${occurred_at}, ${seq}) > ${placeOf(after)}`
  )
  const isOfLevel = LEVELS.some((level) => filter[level] !== undefined)
  const needsActions = filter.action === undefined && (type !== undefined || kind !== undefined || isOfLevel)
  return ({ limit, offset }) => {
    const isOrdered = offset !== undefined
    const last = limit + (offset ?? 0)
    const range = (condition: SQL | undefined) => sql`
      SELECT ${occurred_at}, ${seq} FROM ${audit_events} WHERE ${and(own, condition)}
      ${isOrdered ? sql`ORDER BY ${sql.join(ORDER[order], sql`, `)}` : sql``} LIMIT ${last}`
    const matched = needsActions
      ? sql`SELECT its.* FROM jsonb_array_elements_text(${JSON.stringify(EVENTS)}::jsonb) AS known (action)
        CROSS JOIN LATERAL (${range(sql`${action} = known.action`)}) AS its`
      : range(filter.action === undefined ? undefined : eq(action, filter.action))
    return sql`SELECT matched.seq FROM (${matched}) AS matched
      ${isOrdered ? sql`ORDER BY ${BY[order]}` : sql``}
      LIMIT ${limit} OFFSET ${offset ?? 0}`
  }
}
