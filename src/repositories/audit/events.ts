import { and, asc, desc, eq, gt, isNull, lt, sql, type Placeholder, type SQL } from 'drizzle-orm'
import type { AnyPgColumn } from 'drizzle-orm/pg-core'
import { MAX_COUNTED, type AuditQuery } from '../../../schemas/audit.ts'
import { EVENTS } from '../../../schemas/events.ts'
import { LEVELS, type Level } from '../../../schemas/levels.ts'
import { isKeyOf, prepared, type Db } from '../../db/database.ts'
import { queryRows } from '../../db/rows/query.ts'
import { audit_events, organization_counters } from '../../db/tables.ts'
import { offsetOf, type PageRequest } from '../../rules/pagination.ts'

export type EventOfList = Omit<(typeof audit_events)['$inferSelect'], 'organization_id' | 'chain_kid' | 'mac'>

export interface EventFilter extends Pick<AuditQuery, 'actor' | 'action' | 'resource' | Level> {
  from?: Date | undefined
  to?: Date | undefined
}

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
  const wanted = { ...wantedBy(organizationId, filter), before }
  const total = await db.$count(sql`(${matching(wanted)({ limit: MAX_COUNTED })}) AS counted`)
  const offset = offsetOf(page)
  if (offset >= total) return { rows: [], total }
  return { rows: await readPage(db, wanted, 'newest', { limit: page.per_page, offset }), total }
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
  return readPage(db, { ...wantedBy(organizationId, filter), after }, 'oldest', { limit, offset: 0 })
}

type Order = keyof typeof ORDER

const makePage = ({ limit, offset, last, ...wanted }: Wanted & Required<Part>, order: Order) =>
  prepared<object, EventOfList[]>('events', (db) => db.select(columns).from(audit_events)
    .where(and(
      eq(organization_id, wanted.organization_id), isKeyOf(sql`${seq}`, matching(wanted, order)({ limit, offset, last }))
    )).orderBy(...ORDER[order]))
const pages = new Map<string, ReturnType<typeof makePage>>()

// A page of matching events. Its statement has a part for each action, so it is built once for each set of filters.
async function readPage (
  db: Db, wanted: Wanted, order: Order, { limit, offset }: { limit: number, offset: number }
): Promise<EventOfList[]> {
  const values = { ...wanted, limit, offset, last: limit + offset }
  const named = Object.entries(values).filter(([, value]) => value !== undefined)
    .map(([name, value]) => [name, value === null ? null : sql.placeholder(name)])
  const key = JSON.stringify([order, named.map(([name, value]) => [name, value === null])])
  const page = pages.get(key) ?? makePage(Object.fromEntries(named) as typeof values, order)
  pages.set(key, page)
  return page(db, values)
}

/** A day for `countEvents`. Only events from `from` until before `to` count. */
export interface CountedDay { date: string, from: Date, to: Date }

// Events that one request counts before it counts fewer of each day. With these filters, a million take a second.
const COUNTED_IN_ALL = 150_000
const LEAST_OF_DAY = 500

/**
 * The most events to count on each of these days, after `counted` events of days before: all together, 150,000 and 500
 * of each day. Without a filter for the actor, the resource or a level, always `MAX_COUNTED`, because only these
 * filters look at more than the time of each event.
 */
export function mostOfDay (filter: EventFilter, counted: number, days: number): number {
  const { actor, resource, project, target, environment } = filter
  if ([actor, resource, project, target, environment].every((value) => value === undefined)) return MAX_COUNTED
  return Math.max(LEAST_OF_DAY, Math.min(MAX_COUNTED, Math.floor((COUNTED_IN_ALL - counted) / days)))
}

/** The number of matching events on each day, in the order of `days`; at most `most` + 1 for each day. */
export async function countEvents (
  db: Db, organizationId: string, filter: Omit<EventFilter, 'from' | 'to'>, days: readonly CountedDay[],
  most = MAX_COUNTED
): Promise<number[]> {
  const found = matching({ ...wantedBy(organizationId, filter), from: sql`days.since`, to: sql`days.until` })
  const listed = days.map(({ from, to }, day) => ({ day, since: from, until: to }))
  const rows = await queryRows<{ count: number }>(db, sql`
    SELECT (SELECT count(*)::int FROM (${found({ limit: most + 1 })}) AS counted) AS count
    FROM jsonb_to_recordset(${JSON.stringify(listed)}::jsonb)
      AS days (day int, since timestamptz, until timestamptz) ORDER BY days.day`)
  return rows.map(({ count }) => count)
}

/** What a query for events selects: values, SQL or placeholders. Without an actor's id, `actor_id` is null. */
type Wanted = { organization_id: string } & {
  [K in 'actor_type' | 'actor_id' | 'resource_type' | 'resource_id' | Level | 'action' | 'from' | 'to' | 'before' |
    'after']?: string | number | SQL | null | undefined
}

function wantedBy (organization_id: string, { actor, resource, from, to, ...filter }: EventFilter): Wanted {
  const [actor_type, id] = actor?.split(':') ?? []
  const [resource_type, resource_id] = resource?.split(':') ?? []
  const levels = LEVELS.map((level) => [level, filter[level]?.toUpperCase()])
  return {
    organization_id,
    ...(actor_type !== undefined && { actor_type, actor_id: id === undefined ? null : Number(id) }),
    ...(resource_type !== undefined && { resource_type, resource_id }),
    ...Object.fromEntries(levels) as Record<Level, string | undefined>,
    action: filter.action,
    from: from?.toISOString(),
    to: to?.toISOString()
  }
}

/** A part of the matching events. `last` is the sum of `limit` and `offset`. */
type Part = { limit: number | Placeholder } & { [K in 'offset' | 'last']?: number | Placeholder }

/**
 * Returns a function that builds a query for the numbers of matching events. With `offset`, the query skips `offset`
 * events in the given order and returns the next `limit` numbers. Without `offset`, the query returns any `limit`
 * numbers. The query reads one index range, or one range for each action, so every row that it reads matches (decision
 * 0057).
 */
function matching (wanted: Wanted, order: Order = 'newest'): (part: Part) => SQL {
  const { organization_id: id, before, after } = wanted
  const isEqual = (column: AnyPgColumn | SQL, value: unknown) => value === undefined
    ? undefined
    : value === null ? isNull(column) : sql`${column} = ${value}`
  const placeOf = (number: unknown) => sql`(
      SELECT b.occurred_at, b.seq FROM audit_events b WHERE b.organization_id = ${id} AND b.seq = ${number})`
  const own = and(
    eq(organization_id, id),
    ...Object.entries({ actor_type, actor_id, resource_type, resource_id }).map(([name, column]) =>
      isEqual(column, wanted[name as 'actor_id'])),
    ...LEVELS.map((level) => isEqual(sql`(${details} ->> ${sql.raw(`'${level}_id'`)})`, wanted[level])),
    wanted.from === undefined ? undefined : sql`${occurred_at} >= ${wanted.from}`,
    wanted.to === undefined ? undefined : sql`${occurred_at} < ${wanted.to}`,
    before === undefined ? undefined : sql`(${occurred_at}, ${seq}) < ${placeOf(before)}`,
    after === undefined ? undefined : sql`(${occurred_at}, ${seq}) > ${placeOf(after)}`
  )
  const isOfOther = [wanted.actor_type, wanted.resource_type, ...LEVELS.map((level) => wanted[level])]
    .some((value) => value !== undefined)
  const needsActions = wanted.action === undefined && isOfOther
  return ({ limit, offset, last = limit }) => {
    const isOrdered = offset !== undefined
    const range = (condition: SQL | undefined) => sql`
      SELECT ${occurred_at}, ${seq} FROM ${audit_events} WHERE ${and(own, condition)}
      ${isOrdered ? sql`ORDER BY ${sql.join(ORDER[order], sql`, `)}` : sql``} LIMIT ${last}`
    const matched = !needsActions
      ? range(isEqual(action, wanted.action))
      // PostgreSQL merges the sorted parts of a UNION, and reads of each only what the page needs. Of a LATERAL join it
      // would sort all rows: for the last page, `MAX_COUNTED` events of each action.
      : isOrdered
        ? sql.join(EVENTS.map((known) => sql`(${range(sql`${action} = ${sql.raw(`'${known}'`)}`)})`), sql` UNION ALL `)
        : sql`SELECT its.* FROM jsonb_array_elements_text(${JSON.stringify(EVENTS)}::jsonb) AS known (action)
          CROSS JOIN LATERAL (${range(sql`${action} = known.action`)}) AS its`
    return sql`SELECT matched.seq FROM (${matched}) AS matched
      ${isOrdered ? sql`ORDER BY ${BY[order]} LIMIT ${limit} OFFSET ${offset}` : sql`LIMIT ${limit}`}`
  }
}
