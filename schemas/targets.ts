import { Type, type Static } from '@sinclair/typebox'
import {
  Body, CREATE_NAMED, Example, NullableDescription, Resource, Slug, Timestamp, Ulid, UPDATE_NAMED
} from './shapes.ts'

/** Path segments of the API, which targets cannot have as their slug. */
export const RESERVED_TARGET_SLUGS = ['targets', 'secrets', 'encryption-key', 'restore-to'] as const

export const Target = Resource('targets', { title: 'Target', id: '01JQZ6VC8D3F6G9H2J5K7M0N4P' }, {
  project_id: Example(Ulid, '01JQZ6VB2N7Q4W8E1R5T9Y3K6H'),
  name: Example(Type.String(), 'Backend services'),
  slug: Example(Slug, 'backend'),
  description: NullableDescription,
  environment_count: Example(Type.Integer(), 1),
  secret_count: Example(Type.Integer(), 1),
  created_at: Timestamp,
  updated_at: Timestamp
})
export type TargetAttributes = Static<typeof Target.attributes>

export const CreateTargetBody = Body(CREATE_NAMED, { title: 'CreateTargetBody', examples: [{ name: 'Backend' }] })
export type CreateTargetBody = Static<typeof CreateTargetBody>

export const UpdateTargetBody = Body(
  UPDATE_NAMED, { title: 'UpdateTargetBody', examples: [{ name: 'Backend services' }] }
)
export type UpdateTargetBody = Static<typeof UpdateTargetBody>
