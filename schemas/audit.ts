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
    description: 'who did it: `user:ID`, `api_token:ID`, `operator` or `system`',
    examples: ['operator']
  })),
  action: Type.Optional(EventWord),
  resource: Type.Optional(Type.String({
    maxLength: 97,
    pattern: '^[a-z_-]{1,32}:[A-Za-z0-9._-]{1,64}$',
    description: 'what it was done to, as `TYPE:ID`: `secret:01JQZ6V9T4M8N2K7R5W3X1Y0BC`'
  })),
  from: Type.Optional(Moment({ description: 'that moment, or later' })),
  to: Type.Optional(Moment({ description: 'before that moment' })),
  before: Type.Optional(Type.Integer({
    minimum: 1,
    maximum: Number.MAX_SAFE_INTEGER,
    description: 'behind the event with this number, in the order of the list'
  })),
  page: Type.Optional(Page),
  per_page: Type.Optional(PerPage)
})
export type AuditQuery = Static<typeof AuditQuery>

const ActorOfEvent = Type.Object({
  type: OneOf(ACTOR_TYPES),
  id: Nullable(Type.Integer())
}, { title: 'ActorOfEvent', description: 'who did it; an operator and the service itself have no id' })

const ResourceOfEvent = Type.Object({
  type: Type.String(),
  id: Nullable(Type.String())
}, { title: 'ResourceOfEvent', description: 'what it was done to' })

const Details = Type.Unsafe<Record<string, string | number | boolean | null> | null>({
  type: ['object', 'null'],
  additionalProperties: true,
  description: 'what else there is to say of it, by action; never a value, key, proof or token. ' +
    '`late` names an event that had to wait for its number, and is in one event of the organization'
})

export const AuditEvents = Resource('audit-events', Type.Object({
  sequence: Type.Integer({ description: 'the number of the event in its organization, without a gap' }),
  occurred_at: Timestamp,
  action: EventWord,
  actor: ActorOfEvent,
  resource: ResourceOfEvent,
  request_id: Nullable(Type.String({ description: '`X-Request-Id` of the request that did it' })),
  ip: Nullable(Type.String({ description: 'the address that it came from, as it is logged' })),
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
