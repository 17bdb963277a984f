import { Type } from '@sinclair/typebox'
import { Described, Example, Nullable, OneOf } from './shapes.ts'

/** The author of a version: a user or an API token. */
const Creator = Type.Unsafe<{ id: number, name: string } | null>({
  type: ['object', 'null'],
  properties: { id: { type: 'integer' }, name: { type: 'string' } },
  required: ['id', 'name']
})

export const CREATED_BY = Example(Creator, { id: 1, name: 'First token' })

/** What a caller can write a version with. */
export const CREDENTIALS = ['api_token', 'application', 'workload'] as const

export const CREATED_THROUGH = Example(Described(Nullable(Type.Object({
  type: OneOf(CREDENTIALS, {
    description: '`application`: a person who signed in to an application, such as the console, wrote the version'
  }),
  name: Type.String({ description: 'the name of the API token, application or rule at that time' })
}, { title: 'CreatedThrough' })), {
  description: 'what the author used; null for an operator, and for versions that release 0.1.0 wrote'
}), { type: 'api_token', name: 'First token' })

/** The newest version of a level, or of all levels of a project, in a list. */
export interface LastChange { version: string, created_at: Date, created_by: { id: number, name: string } | null }

const Change = Type.Unsafe<LastChange | null>({
  title: 'LastChange',
  type: ['object', 'null'],
  properties: { version: { type: 'string' }, created_at: { type: 'string', format: 'date-time' }, created_by: Creator },
  required: ['version', 'created_at', 'created_by'],
  description: 'the newest version of the document of the level; of a project, of all its levels. Null without ' +
    'versions, and without `secret:history` there'
})

/** The field `last_change` of a project, target or environment in a list. */
export const LastChangeOfList = Example(Change, {
  version: '1', created_at: '2026-03-01T12:00:00.000Z', created_by: { id: 1, name: 'First token' }
})
