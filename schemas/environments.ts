import { Type, type Static } from '@sinclair/typebox'
import { OrganizationInPath } from './organizations.ts'
import {
  Body, Description, EnvironmentInPath, Name, NewSlug, NullableDescription, ProjectInPath, Resource, SLUG_LENGTH,
  SLUG_PATTERN, Slug, TargetInPath, Timestamp, Ulid
} from './shapes.ts'

export const EnvironmentParams = Type.Object({
  organization: OrganizationInPath, project: ProjectInPath, target: TargetInPath, environment: EnvironmentInPath
})

const EnvironmentAttributes = Type.Object({
  project_id: Ulid,
  target_id: Ulid,
  name: Type.String(),
  slug: Slug,
  description: NullableDescription,
  status: Type.String(),
  is_production: Type.Boolean(),
  created_at: Timestamp,
  updated_at: Timestamp
}, { title: 'EnvironmentAttributes' })
export type EnvironmentAttributes = Static<typeof EnvironmentAttributes>

export const Environment = Resource('environments', EnvironmentAttributes, {
  title: 'Environment',
  id: '01JQZ6VD1Q4R7S0T3V6W9X2Y5Z',
  example: {
    project_id: '01JQZ6VB2N7Q4W8E1R5T9Y3K6H',
    target_id: '01JQZ6VC8D3F6G9H2J5K7M0N4P',
    name: 'Live',
    slug: 'live',
    description: null,
    status: 'production',
    is_production: true,
    created_at: '2026-03-01T12:00:00.000Z',
    updated_at: '2026-03-01T12:00:00.000Z'
  }
})

const status = (options: { default?: string } = {}) => Type.String({
  minLength: 1,
  maxLength: SLUG_LENGTH,
  pattern: SLUG_PATTERN,
  description: 'production, staging, development, local or another slug',
  examples: ['production'],
  ...options
})

const IsProduction = Type.Boolean({ description: 'a hint for tools that ask for confirmation before changes' })

export const CreateEnvironmentBody = Body({
  name: Name,
  slug: Type.Optional(NewSlug),
  status: Type.Optional(status({ default: 'development' })),
  is_production: Type.Optional(Type.Boolean({
    ...IsProduction, description: `${IsProduction.description!}; default: true if \`status\` is \`production\``
  })),
  description: Type.Optional(Type.Union([Description, Type.Null()]))
}, { title: 'CreateEnvironmentBody', examples: [{ name: 'Live', status: 'production' }] })
export type CreateEnvironmentBody = Static<typeof CreateEnvironmentBody>

export const UpdateEnvironmentBody = Body({
  name: Type.Optional(Name),
  slug: Type.Optional(Slug),
  status: Type.Optional(status()),
  is_production: Type.Optional(IsProduction),
  description: Type.Optional(Type.Union([Description, Type.Null()]))
}, { title: 'UpdateEnvironmentBody', examples: [{ is_production: true }] })
export type UpdateEnvironmentBody = Static<typeof UpdateEnvironmentBody>
