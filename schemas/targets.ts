import { Type, type Static } from '@sinclair/typebox'
import { OrganizationInPath } from './organizations.ts'
import {
  Body, Description, Name, NewSlug, NullableDescription, ProjectInPath, Resource, Slug, TargetInPath, Timestamp, Ulid
} from './shapes.ts'

export const TargetParams = Type.Object({
  organization: OrganizationInPath, project: ProjectInPath, target: TargetInPath
})

const TargetAttributes = Type.Object({
  project_id: Ulid,
  name: Type.String(),
  slug: Slug,
  description: NullableDescription,
  environment_count: Type.Integer(),
  secret_count: Type.Integer(),
  created_at: Timestamp,
  updated_at: Timestamp
}, { title: 'TargetAttributes' })
export type TargetAttributes = Static<typeof TargetAttributes>

export const Target = Resource('targets', TargetAttributes, {
  title: 'Target',
  id: '01JQZ6VC8D3F6G9H2J5K7M0N4P',
  example: {
    project_id: '01JQZ6VB2N7Q4W8E1R5T9Y3K6H',
    name: 'Backend services',
    slug: 'backend',
    description: null,
    environment_count: 1,
    secret_count: 1,
    created_at: '2026-03-01T12:00:00.000Z',
    updated_at: '2026-03-01T12:00:00.000Z'
  }
})

export const CreateTargetBody = Body({
  name: Name,
  slug: Type.Optional(NewSlug),
  description: Type.Optional(Type.Union([Description, Type.Null()]))
}, { title: 'CreateTargetBody', examples: [{ name: 'Backend' }] })
export type CreateTargetBody = Static<typeof CreateTargetBody>

export const UpdateTargetBody = Body({
  name: Type.Optional(Name),
  slug: Type.Optional(Slug),
  description: Type.Optional(Type.Union([Description, Type.Null()]))
}, { title: 'UpdateTargetBody', examples: [{ name: 'Backend services' }] })
export type UpdateTargetBody = Static<typeof UpdateTargetBody>
