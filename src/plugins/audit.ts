import type { FastifyRequest } from 'fastify'
import type { Static } from '@sinclair/typebox'
import {
  AuditCounts, AuditCountsQuery, AuditEventList, AuditExport, AuditExportQuery, AuditQuery, CSV_TYPE, DEFAULT_DAYS,
  EXPORT_COLUMNS, EXPORT_TYPES, MAX_DAYS, MAX_EXPORTED
} from '../../schemas/audit.ts'
import type { EventName } from '../../schemas/events.ts'
import { LEVELS } from '../../schemas/levels.ts'
import { PAGE_SIZE } from '../../schemas/shapes.ts'
import { yieldToEventLoop } from '../crypto/event-loop.ts'
import { inTurn, type Turn } from '../http/guard/turns.ts'
import { preferredType } from '../http/responses/negotiation.ts'
import { principalOf } from '../http/routes/actor.ts'
import { waitFor } from '../http/routes/request-deadline.ts'
import type { Domain } from '../http/routes/types.ts'
import {
  countEvents, exportEvents, listEvents, mostOfDay, type CountedDay, type EventFilter, type EventOfList
} from '../repositories/audit/events.ts'
import { findMemberNames } from '../repositories/people/members.ts'
import { findRuleNames, type Principal } from '../repositories/people/principals.ts'
import { findTokenNames } from '../repositories/people/tokens.ts'
import { refuse } from '../rules/api-error.ts'
import { DAY, dayOf, daysUntil, EARLIEST, requireTimestamp } from '../rules/formats/timestamps.ts'
import { pageMeta } from '../rules/pagination.ts'
import { holds, scopesOfRole } from '../rules/roles.ts'

// Days whose events are counted in one statement.
const DAYS_OF_STEP = 10

export const audit: Domain = async (app) => {
  app.get('/:organization/audit-events', {
    config: { access: 'organization:read' },
    schema: {
      operationId: 'listAuditEvents',
      summary: 'List audit events, newest first; empty for restricted tokens and roles without projects',
      description: 'An event has the time, the caller, the action and the resource. No event is ever changed.',
      querystring: AuditQuery,
      response: { 200: AuditEventList }
    },
    handler: async (request) => {
      const { page = 1, per_page = PAGE_SIZE.default, before, ...filter } = request.query
      const pageRequest = { page, per_page }
      const { rows, total } = await readEvents(request, filter, { rows: [], total: 0 }, (id, wanted) =>
        listEvents(app.lists, id, wanted, before, pageRequest))
      return { data: await toItems(request, rows), meta: pageMeta(pageRequest, total, rows.length) }
    }
  })

  app.get('/:organization/audit-events/counts', {
    config: {
      access: 'organization:read',
      rules: [{
        reads: ['from', 'to'],
        check: ({ query }) => {
          const { from, to } = query as Filter
          daysOf(filterOf({ from, to }))
        }
      }]
    },
    schema: {
      operationId: 'countAuditEvents',
      summary: 'Count audit events per day; empty for restricted tokens and roles without projects',
      description: 'Takes the filters of the list of events, for at most 92 days.',
      querystring: AuditCountsQuery,
      response: { 200: AuditCounts }
    },
    handler: async (request) => {
      const { from, to, ...filter } = request.query
      const days = daysOf(filterOf({ from, to }))
      const counts = await inTurn(request, async (turn) => {
        // After the wait, because the role may have ended meanwhile.
        const principal = principalOf(request)
        return seesEvents(principal) ? countInSteps(principal.organization.id, filter, days, turn) : undefined
      })
      if (counts === undefined) return { data: [] }
      const data = days.map(({ date }, i) => {
        return { type: 'audit-event-counts' as const, id: date, attributes: { date, ...counts[i]! } }
      })
      return { data }
    }
  })

  app.get('/:organization/audit-events/export', {
    config: { access: 'organization:read' },
    schema: {
      operationId: 'exportAuditEvents',
      summary: `Export audit events, oldest first, ${MAX_EXPORTED} at a time: lines of JSON or CSV, by Accept`,
      description: 'The header Link has the URL of the next page; the last page has none.',
      'x-next-page': true,
      querystring: AuditExportQuery,
      response: { 200: AuditExport }
    },
    handler: async (request, reply) => {
      const { after, ...filter } = request.query
      // Reads one event more than a page has, to know whether another page follows.
      const rows = await readEvents(request, filter, [], (id, wanted) =>
        exportEvents(app.lists, id, wanted, after, MAX_EXPORTED + 1))
      const items = await toItems(request, rows.slice(0, MAX_EXPORTED))
      if (rows.length > MAX_EXPORTED) {
        const next = new URLSearchParams({ ...filter, after: items.at(-1)!.id })
        const [path] = request.url.split('?')
        reply.header('link', `<${app.issuer()}${path}?${next}>; rel="next"`)
      }
      const type = preferredType(request.headers.accept, EXPORT_TYPES)
      const text = await textOf(items, type === CSV_TYPE ? toRecord : (item) => `${JSON.stringify(item)}\n`)
      return reply.type(`${type}; charset=utf-8`).serializer(String)
        .send(type === CSV_TYPE ? csvRecord(EXPORT_COLUMNS) + text : text)
    }
  })

  // Counting the most events of 92 days takes the database some tenths of a second. In steps and turns, other
  // organizations do not wait for it.
  async function countInSteps (
    organizationId: string, filter: Omit<EventFilter, 'from' | 'to'>, days: readonly CountedDay[],
    { waitFor, pace }: Turn
  ): Promise<{ count: number, is_capped: boolean }[]> {
    const counts: { count: number, is_capped: boolean }[] = []
    let counted = 0
    for (let at = 0; at < days.length; at += DAYS_OF_STEP) {
      const began = performance.now()
      const some = days.slice(at, at + DAYS_OF_STEP)
      const most = mostOfDay(filter, counted, some.length)
      for (const found of await waitFor(countEvents(app.lists, organizationId, filter, some, most))) {
        const count = Math.min(found, most)
        counted += count
        counts.push({ count, is_capped: found > most })
      }
      await pace(began)
    }
    return counts
  }

  // Looks up the names of all actors at once. Shows only names from lists that the caller may read.
  async function toItems (request: FastifyRequest, rows: readonly EventOfList[]) {
    const principal = principalOf(request)
    const { id } = principal.organization
    const idsOf = (type: string) =>
      [...new Set(rows.flatMap(({ actor_type, actor_id }) => actor_type === type && actor_id !== null ? actor_id : []))]
    const [users, tokens, rules] = await waitFor(request, Promise.all([
      holds(principal, 'member:read') ? findMemberNames(app.lists, id, idsOf('user')) : undefined,
      holds(principal, 'api-token:read') ? findTokenNames(app.lists, id, idsOf('api_token')) : undefined,
      holds(principal, 'api-token:read') ? findRuleNames(app.lists, id, idsOf('workload')) : undefined
    ]))
    const names: Record<string, ReadonlyMap<number, string> | undefined> =
      { user: users, api_token: tokens, workload: rules }
    return rows.map((row) => toItem(row, names[row.actor_type]?.get(row.actor_id ?? 0) ?? null))
  }
}

type Filter = Omit<Static<typeof AuditExportQuery>, 'after'>

const filterOf = ({ from, to, ...filter }: Filter): EventFilter => ({
  ...filter,
  ...(from !== undefined && { from: requireTimestamp('from', from) }),
  ...(to !== undefined && { to: requireTimestamp('to', to) })
})

// Of these filters, each can match very many events while no event matches two: the database then reads all events of
// one for nothing.
const EXCLUSIVE = ['resource', ...LEVELS] as const

// Reads events, `nothing` for a caller who sees none. With filters that can exclude each other, reads in turn, so that
// an organization cannot occupy the connections for lists.
async function readEvents<T> (
  request: FastifyRequest, filter: Filter, nothing: T, read: (id: string, wanted: EventFilter) => Promise<T>
): Promise<T> {
  const wanted = filterOf(filter)
  const find = async () => {
    const principal = principalOf(request)
    return seesEvents(principal) ? read(principal.organization.id, wanted) : nothing
  }
  return EXCLUSIVE.filter((name) => filter[name] !== undefined).length < 2
    ? find()
    : inTurn(request, async (turn) => turn.waitFor(find()))
}

// The days to count, in UTC; the first and the last day can be partial. The default of `to` is the end of today instead
// of now, because the clock of the database, which dates the events, can be ahead.
function daysOf ({ to = startOf(new Date(Date.now() + DAY)), from: given }: EventFilter): CountedDay[] {
  // If `to` is at midnight, the day that ends then is the last day.
  const last = startOf(new Date(to.getTime() - 1))
  const from = given ?? new Date(last.getTime() - (DEFAULT_DAYS - 1) * DAY)
  if (from >= to) refuse('from', 'Expected a time before `to`')
  if (to.getTime() - from.getTime() > MAX_DAYS * DAY) refuse('from', `At most ${MAX_DAYS} days before \`to\``)
  const count = (last.getTime() - startOf(from).getTime()) / DAY + 1
  return daysUntil(dayOf(last), count).flatMap((date) => {
    const start = new Date(date)
    const end = new Date(start.getTime() + DAY)
    // Leaves out days before the first valid time: with `to` in January of the year 1, the default `from` is earlier.
    return start.getTime() < EARLIEST ? [] : [{ date, from: from > start ? from : start, to: to < end ? to : end }]
  })
}

const startOf = (time: Date) => new Date(dayOf(time))

// Restricted callers see no events: the resource of an event may be deleted or outside of the hierarchy, so
// restrictions cannot be checked. A person whose own role includes no projects counts as restricted, because team roles
// may have restrictions.
function seesEvents ({ slices, caller }: Principal): boolean {
  return slices.length === 0 && (caller.role === undefined || scopesOfRole(caller.role).includes('project:read'))
}

function toItem ({
  seq, action, actor_type, actor_id, resource_type, resource_id, occurred_at, ...event
}: EventOfList, actor_name: string | null) {
  const attributes = {
    sequence: seq,
    occurred_at,
    action: action as EventName,
    actor: { type: actor_type as 'user', id: actor_id },
    actor_name,
    resource: { type: resource_type, id: resource_id },
    ...event
  }
  return { type: 'audit-events' as const, id: String(seq), attributes }
}

type Item = ReturnType<typeof toItem>

function toRecord ({ attributes }: Item): string {
  const { sequence, occurred_at, action, actor, actor_name, resource, request_id, ip, user_agent, details } = attributes
  return csvRecord([
    sequence, occurred_at.toISOString(), action, actor.type, actor.id, actor_name, resource.type, resource.id,
    request_id, ip, user_agent, details === null ? null : JSON.stringify(details)
  ])
}

// Events to write before the export yields to the event loop.
const STEP = 250

async function textOf (items: readonly Item[], write: (item: Item) => string): Promise<string> {
  let text = ''
  for (let at = 0; at < items.length; at += STEP) {
    text += items.slice(at, at + STEP).map(write).join('')
    await yieldToEventLoop()
  }
  return text
}

// Some spreadsheets also read the fullwidth forms of these characters.
const FORMULA = /^[=+\-@\uff1d\uff0b\uff0d\uff20\t\r\n]/

/**
 * A record of CSV (RFC 4180). A spreadsheet takes a cell that begins with `=`, `+`, `-`, `@`, a tab or a line break for
 * a formula, so such a cell gets a leading apostrophe.
 */
const csvRecord = (cells: readonly (string | number | null)[]): string => `${cells.map(cellOf).join()}\r\n`

function cellOf (value: string | number | null): string {
  const text = String(value ?? '')
  const shown = FORMULA.test(text) ? `'${text}` : text
  return /[",\r\n]/.test(shown) ? `"${shown.replaceAll('"', '""')}"` : shown
}
