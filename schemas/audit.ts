import { Type, type Static } from '@sinclair/typebox'
import { EVENTS } from './events.ts'
import type { Level } from './levels.ts'
import {
  Answer, Day, Example, exampleOf, Moment, Nullable, OneOf, Page, PagedMeta, Patterned, PerPage, Resource, ruleOf,
  Timestamp, Ulid
} from './shapes.ts'

const EventWord = OneOf(EVENTS, { title: 'EventName' })

/** Maximum number of events that `page` can reach in a filtered list; use `before` for older events. */
export const MAX_COUNTED = 10_000

export const ACTOR_PATTERN = '^((api_token|user|workload):[1-9][0-9]{0,15}|operator|system)$'
const ACTOR_RULE = 'operator, system, api_token:ID, user:ID or workload:ID, such as user:17'
const RESOURCE_RULE = 'TYPE:ID, such as secret:01JQZ6V9T4M8N2K7R5W3X1Y0BC'

// An id in either letter case.
const PLACE_PATTERN = '^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$'
const Place = (level: Level) => Type.Optional(Patterned(PLACE_PATTERN, ruleOf(Ulid)!, {
  maxLength: 26,
  description: `the id of the ${level}, also of a deleted one: events with this \`details.${level}_id\`, which ` +
    'events of levels and documents that release 0.1.0 recorded do not have',
  examples: Ulid.examples,
  'x-named': `${level}_of_event`
}))

const FILTERS = {
  actor: Type.Optional(Patterned(ACTOR_PATTERN, ACTOR_RULE, {
    maxLength: 32,
    description: 'the actor: `user:ID`, `api_token:ID`, `workload:ID`, `operator` or `system`',
    examples: ['operator']
  })),
  action: Type.Optional(EventWord),
  resource: Type.Optional(Patterned('^[a-z_-]{1,32}:[A-Za-z0-9._-]{1,64}$', RESOURCE_RULE, {
    maxLength: 97,
    description: 'the affected resource as `TYPE:ID`: `secret:01JQZ6V9T4M8N2K7R5W3X1Y0BC`'
  })),
  project: Place('project'),
  target: Place('target'),
  environment: Place('environment'),
  from: Type.Optional(Moment({ description: 'events at or after this time' })),
  to: Type.Optional(Moment({ description: 'events before this time' }))
}

export const AuditQuery = Type.Object({
  ...FILTERS,
  before: Type.Optional(Type.Integer({
    minimum: 1,
    maximum: Number.MAX_SAFE_INTEGER,
    description: 'only events after the event with this `sequence`, in list order'
  })),
  page: Type.Optional(Page),
  per_page: Type.Optional(PerPage)
})
export type AuditQuery = Static<typeof AuditQuery>

const ActorOfEvent = Type.Object({
  type: OneOf(['api_token', 'user', 'workload', 'operator', 'system']),
  id: Nullable(Type.Integer())
}, { title: 'ActorOfEvent', description: 'the actor; `id` is null for `operator` and `system`' })

const ResourceOfEvent = Type.Object({
  type: Type.String(),
  id: Nullable(Type.String())
}, { title: 'ResourceOfEvent', description: 'the affected resource' })

const Details = Type.Unsafe<Record<string, string | number | boolean | null> | null>({
  type: ['object', 'null'],
  additionalProperties: true,
  description: 'details of the action; never a secret value, key, proof or token. Events of levels and documents have ' +
    'the ids of the level and of those above (`project_id`, `target_id`, `environment_id`), and their slugs at that ' +
    'time (`project`, `target`, `environment`). ' +
    '`late` identifies an event whose number was assigned later; it is unique in the organization'
})

const AuditEvent = Resource('audit-events', { title: 'AuditEvent', id: '42' }, {
  sequence: Example(Type.Integer({ description: 'the number of the event in its organization, without gaps' }), 42),
  occurred_at: Timestamp,
  action: Example(EventWord, 'organization.create'),
  actor: Example(ActorOfEvent, { type: 'operator', id: null }),
  actor_name: Example(Nullable(Type.String({
    description: 'the present name of a member, an API token or a rule of workloads; null for others, after a deletion, and for callers ' +
      'without `member:read` or `api-token:read`'
  })), null),
  resource: Example(ResourceOfEvent, { type: 'organization', id: '01JQZ6V9T4M8N2K7R5W3X1Y0BC' }),
  request_id: Example(Nullable(Type.String({ description: '`X-Request-Id` of the request' })), null),
  ip: Example(Nullable(Type.String({ description: 'the address of the client, as in the access log' })), null),
  user_agent: Example(Nullable(Type.String()), null),
  details: Example(Details, null)
})
export const AuditEventList = Answer('AuditEventList', { data: Type.Array(AuditEvent.item), meta: PagedMeta })

/** The most days that the counts of events include. */
export const MAX_DAYS = 92
/** The days that the counts include by default. */
export const DEFAULT_DAYS = 31

export const AuditCountsQuery = Type.Object({
  ...FILTERS,
  from: Type.Optional(Moment({
    description: `events at or after this time, at most ${MAX_DAYS} days before \`to\`; default: the last ${DEFAULT_DAYS} days until \`to\``,
    'x-named': 'from_of_counts'
  })),
  to: Type.Optional(Moment({ description: 'events before this time; default: the end of today', 'x-named': 'to_of_counts' }))
})

const AuditCount = Resource('audit-event-counts', { title: 'AuditEventCount', id: '2026-03-01' }, {
  date: Day,
  count: Example(Type.Integer({ description: `at most ${MAX_COUNTED}` }), 42),
  is_capped: Example(Type.Boolean({ description: 'true: the day has more events than `count`' }), false)
})
export const AuditCounts = Answer('AuditEventCountList', {
  data: Type.Array(AuditCount.item, { description: 'each day in UTC, also without events, oldest first' })
})

/** Maximum number of events in one response of the export. */
export const MAX_EXPORTED = 1000

export const AuditExportQuery = Type.Object({
  ...FILTERS,
  after: Type.Optional(Type.Integer({
    minimum: 1,
    maximum: Number.MAX_SAFE_INTEGER,
    description: 'only events after the event with this `sequence`, in the order of the export',
    'x-named': 'after_event'
  }))
})

export const NDJSON_TYPE = 'application/x-ndjson'
export const CSV_TYPE = 'text/csv'
/** The media types of an export. The first one is the default. */
export const EXPORT_TYPES = [NDJSON_TYPE, CSV_TYPE] as const

/** The columns of an export in CSV. */
export const EXPORT_COLUMNS = [
  'sequence', 'occurred_at', 'action', 'actor_type', 'actor_id', 'actor_name', 'resource_type', 'resource_id',
  'request_id', 'ip', 'user_agent', 'details'
] as const

const LINE = JSON.stringify(exampleOf(AuditEvent.item.properties))
export const AuditExport = {
  description: 'A line for each event. The header `Link` has the address of the next part, if there is one.',
  content: {
    [NDJSON_TYPE]: {
      schema: Type.String({
        title: 'AuditEventLines',
        description: 'each line is an event in JSON, as in the list',
        examples: [`${LINE}\n`]
      })
    },
    [CSV_TYPE]: {
      schema: Type.String({
        title: 'AuditEventTable',
        description: 'RFC 4180, with a header. `details` is JSON. A cell that a spreadsheet would take for a formula ' +
          "begins with `'`",
        examples: [`${EXPORT_COLUMNS.join()}\r\n42,2026-03-01T12:00:00.000Z,organization.create,operator,,,organization,01JQZ6V9T4M8N2K7R5W3X1Y0BC,,,,\r\n`]
      })
    }
  }
}
