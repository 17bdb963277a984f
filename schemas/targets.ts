import { Type, type Static } from '@sinclair/typebox'
import { LastChangeOfList } from './last-change.ts'
import {
  Body, CREATE_NAMED, Example, ListOf, NullableDescription, Resource, Slug, Timestamp, Ulid, UPDATE_NAMED
} from './shapes.ts'

const attributes = {
  project_id: Example(Ulid, '01JQZ6VB2N7Q4W8E1R5T9Y3K6H'),
  name: Example(Type.String(), 'Backend services'),
  slug: Example(Slug, 'backend'),
  description: NullableDescription,
  environment_count: Example(Type.Integer(), 1),
  secret_count: Example(Type.Integer(), 1),
  created_at: Timestamp,
  updated_at: Timestamp
}
const ID = '01JQZ6VC8D3F6G9H2J5K7M0N4P'
export const Target = Resource('targets', { title: 'Target', id: ID }, attributes)
export type TargetAttributes = Static<typeof Target.attributes>

const TargetItem = Resource('targets', { title: 'TargetItem', id: ID }, {
  ...attributes, last_change: LastChangeOfList
})
export type ListedTarget = Static<typeof TargetItem.attributes>
export const TargetList = ListOf('TargetList', TargetItem.item)

export const CreateTargetBody = Body(CREATE_NAMED, { title: 'CreateTargetBody', examples: [{ name: 'Backend' }] })
export type CreateTargetBody = Static<typeof CreateTargetBody>

export const UpdateTargetBody = Body(
  UPDATE_NAMED, { title: 'UpdateTargetBody', examples: [{ name: 'Backend services' }] }
)
export type UpdateTargetBody = Static<typeof UpdateTargetBody>
