import { Type, type Static } from '@sinclair/typebox'
import { LastChangeOfList } from './last-change.ts'
import { OrganizationInPath } from './organizations.ts'
import {
  Body, EnvironmentInPath, Example, ListOf, Name, NewName, NewSlug, NewDescription, NullableDescription, Patterned,
  ProjectInPath, Resource, SLUG_LENGTH, SLUG_PATTERN, Slug, TargetInPath, Timestamp, Ulid
} from './shapes.ts'

/** The names of an organization and of a level in paths. */
export const LevelParams = Type.Object({
  organization: OrganizationInPath, project: ProjectInPath, target: TargetInPath, environment: EnvironmentInPath
})

const attributes = {
  project_id: Example(Ulid, '01JQZ6VB2N7Q4W8E1R5T9Y3K6H'),
  target_id: Example(Ulid, '01JQZ6VC8D3F6G9H2J5K7M0N4P'),
  name: Example(Type.String(), 'Live'),
  slug: Example(Slug, 'live'),
  description: NullableDescription,
  status: Example(Type.String(), 'production'),
  is_production: Example(Type.Boolean(), true),
  created_at: Timestamp,
  updated_at: Timestamp
}
const ID = '01JQZ6VD1Q4R7S0T3V6W9X2Y5Z'
export const Environment = Resource('environments', { title: 'Environment', id: ID }, attributes)
export type EnvironmentAttributes = Static<typeof Environment.attributes>

const EnvironmentItem = Resource('environments', { title: 'EnvironmentItem', id: ID }, {
  ...attributes, last_change: LastChangeOfList
})
export type ListedEnvironment = Static<typeof EnvironmentItem.attributes>
export const EnvironmentList = ListOf('EnvironmentList', EnvironmentItem.item)

const status = (options: { default?: string } = {}) => Patterned(SLUG_PATTERN, 'production, staging, development, local or another slug, such as acceptance', {
  minLength: 1,
  maxLength: SLUG_LENGTH,
  description: 'production, staging, development, local or another slug',
  examples: ['production'],
  ...options
})

const IsProduction = Type.Boolean({ description: 'a hint for tools that ask for confirmation before changes' })

export const CreateEnvironmentBody = Body({
  name: NewName,
  slug: Type.Optional(NewSlug),
  status: Type.Optional(status({ default: 'development' })),
  is_production: Type.Optional(Type.Boolean({
    ...IsProduction, description: `${IsProduction.description!}; default: true if \`status\` is \`production\``
  })),
  description: NewDescription
}, { title: 'CreateEnvironmentBody', examples: [{ name: 'Live', status: 'production' }] })
export type CreateEnvironmentBody = Static<typeof CreateEnvironmentBody>

export const UpdateEnvironmentBody = Body({
  name: Type.Optional(Name),
  slug: Type.Optional(Slug),
  status: Type.Optional(status()),
  is_production: Type.Optional(IsProduction),
  description: NewDescription
}, { title: 'UpdateEnvironmentBody', examples: [{ is_production: true }] })
export type UpdateEnvironmentBody = Static<typeof UpdateEnvironmentBody>
