import { Type, type Static } from '@sinclair/typebox'
import { EVENTS } from './events.ts'
import { Moment, Nullable, OneOf, Page, PerPage, Resource, Timestamp } from './shapes.ts'

const EventWord = OneOf(EVENTS, { title: 'EventName' })

export const ACTOR_TYPES = ['api_token', 'user', 'operator', 'system'] as const

/** With a filter, `page` reaches this number of the newest events; use `before` for older events. */
export const MOST_COUNTED = 10_000

export const AuditQuery = Type.Object({
  actor: Type.Optional(Type.String({
    maxLength: 32,
    pattern: '^((api_token|user):[1-9][0-9]{0,15}|operator|system)$',
    description: 'the actor: `user:ID`, `api_token:ID`, `operator` or `system`',
    examples: ['operator']
  })),
  action: Type.Optional(EventWord),
  resource: Type.Optional(Type.String({
    maxLength: 97,
    pattern: '^[a-z_-]{1,32}:[A-Za-z0-9._-]{1,64}$',
    description: 'the affected resource as `TYPE:ID`: `secret:01JQZ6V9T4M8N2K7R5W3X1Y0BC`'
  })),
  from: Type.Optional(Moment({ description: 'events at or after this time' })),
  to: Type.Optional(Moment({ description: 'events before this time' })),
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
  type: OneOf(ACTOR_TYPES),
  id: Nullable(Type.Integer())
}, { title: 'ActorOfEvent', description: 'the actor; `id` is null for `operator` and `system`' })

const ResourceOfEvent = Type.Object({
  type: Type.String(),
  id: Nullable(Type.String())
}, { title: 'ResourceOfEvent', description: 'the affected resource' })

const Details = Type.Unsafe<Record<string, string | number | boolean | null> | null>({
  type: ['object', 'null'],
  additionalProperties: true,
  description: 'details of the action; never a secret value, key, proof or token. ' +
    '`late` identifies an event whose number was assigned later; it is unique in the organization'
})

export const AuditEvents = Resource('audit-events', Type.Object({
  sequence: Type.Integer({ description: 'the number of the event in its organization, without gaps' }),
  occurred_at: Timestamp,
  action: EventWord,
  actor: ActorOfEvent,
  resource: ResourceOfEvent,
  request_id: Nullable(Type.String({ description: '`X-Request-Id` of the request' })),
  ip: Nullable(Type.String({ description: 'the address of the client, as in the access log' })),
  user_agent: Nullable(Type.String()),
  details: Details
}, { title: 'AuditEventAttributes' }), {
  title: 'AuditEvent',
  id: '42',
  isPaged: true,
  example: {
    sequence: 42,
    occurred_at: '2026-03-01T12:00:00.000Z',
    action: 'organization.create',
    actor: { type: 'operator', id: null },
    resource: { type: 'organization', id: '01JQZ6V9T4M8N2K7R5W3X1Y0BC' },
    request_id: null,
    ip: null,
    user_agent: null,
    details: null
  }
})
