import { Type, type Static } from '@sinclair/typebox'
import { EVENTS } from './events.ts'
import {
  Answer, Example, Moment, Nullable, OneOf, Page, PagedMeta, Patterned, PerPage, Resource, Timestamp
} from './shapes.ts'

const EventWord = OneOf(EVENTS, { title: 'EventName' })

/** Maximum number of events that `page` can reach in a filtered list; use `before` for older events. */
export const MAX_COUNTED = 10_000

export const ACTOR_PATTERN = '^((api_token|user):[1-9][0-9]{0,15}|operator|system)$'
const ACTOR_RULE = 'operator, system, api_token:ID or user:ID, such as user:17'
const RESOURCE_RULE = 'TYPE:ID, such as secret:01JQZ6V9T4M8N2K7R5W3X1Y0BC'

export const AuditQuery = Type.Object({
  actor: Type.Optional(Patterned(ACTOR_PATTERN, ACTOR_RULE, {
    maxLength: 32,
    description: 'the actor: `user:ID`, `api_token:ID`, `operator` or `system`',
    examples: ['operator']
  })),
  action: Type.Optional(EventWord),
  resource: Type.Optional(Patterned('^[a-z_-]{1,32}:[A-Za-z0-9._-]{1,64}$', RESOURCE_RULE, {
    maxLength: 97,
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
  type: OneOf(['api_token', 'user', 'operator', 'system']),
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

const AuditEvent = Resource('audit-events', { title: 'AuditEvent', id: '42' }, {
  sequence: Example(Type.Integer({ description: 'the number of the event in its organization, without gaps' }), 42),
  occurred_at: Timestamp,
  action: Example(EventWord, 'organization.create'),
  actor: Example(ActorOfEvent, { type: 'operator', id: null }),
  resource: Example(ResourceOfEvent, { type: 'organization', id: '01JQZ6V9T4M8N2K7R5W3X1Y0BC' }),
  request_id: Example(Nullable(Type.String({ description: '`X-Request-Id` of the request' })), null),
  ip: Example(Nullable(Type.String({ description: 'the address of the client, as in the access log' })), null),
  user_agent: Example(Nullable(Type.String()), null),
  details: Example(Details, null)
})
export const AuditEventList = Answer('AuditEventList', { data: Type.Array(AuditEvent.item), meta: PagedMeta })
