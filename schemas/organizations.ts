import { Type, type Static } from '@sinclair/typebox'
import {
  Answer, Body, Described, Example, Name, NewName, NewSlug, Nullable, OneOf, PageMeta, Slug, Timestamp, Ulid
} from './shapes.ts'

export const ORGANIZATION_STATUSES = ['active', 'suspended', 'locked', 'cancelled'] as const
export type OrganizationStatus = (typeof ORGANIZATION_STATUSES)[number]

export const PLANS = ['free', 'pro', 'team', 'enterprise', 'self-hosted'] as const
export type PlanName = (typeof PLANS)[number]

/** The organization that the first start creates. The examples use its slug, so they work on a new installation. */
export const FIRST_ORGANIZATION = { name: 'My organization', slug: 'my-organization' } as const

/** An organization in a path: its ULID in either letter case, or its slug. */
export const OrganizationInPath = Type.String({ maxLength: 128, examples: [FIRST_ORGANIZATION.slug] })

const StatusOfOrganization = OneOf(ORGANIZATION_STATUSES, { title: 'OrganizationStatus' })

/** Fields that responses repeat outside of `attributes`, where existing clients read them. */
const fields = {
  name: Example(Type.String(), FIRST_ORGANIZATION.name),
  slug: Example(Slug, FIRST_ORGANIZATION.slug),
  status: Example(StatusOfOrganization, 'active')
}
const OrganizationAttributes = Answer('OrganizationAttributes', {
  ulid: Ulid,
  ...fields,
  plan_name: Example(Type.String(), 'self-hosted'),
  require_second_factor: Example(Type.Boolean(), false),
  created_at: Timestamp,
  updated_at: Timestamp
})
const Organization = Type.Object({
  type: Type.Literal('organizations'), id: Ulid, ...fields, attributes: OrganizationAttributes
}, { title: 'Organization' })

export const OrganizationAnswer = Answer('OrganizationAnswer', { data: Organization })
export type OrganizationAnswer = Static<typeof OrganizationAnswer>
export const OrganizationList = Answer('OrganizationList', { data: Type.Array(Organization), meta: PageMeta })

/** Maximum number of organizations that one user may own. */
export const MAX_OWNED = 100

/** Days for which a former slug stays reserved for its organization. */
export const FORMER_SLUG_DAYS = 90

/** Maximum number of reserved former slugs of an organization. */
export const MAX_FORMER_SLUGS = 20

export const CreateOrganizationBody = Body({ name: NewName, slug: Type.Optional(NewSlug) }, {
  title: 'CreateOrganizationBody', examples: [{ name: 'Nimbus' }]
})
export type CreateOrganizationBody = Static<typeof CreateOrganizationBody>

export const UpdateOrganizationBody = Body({
  name: Type.Optional(Name),
  slug: Type.Optional(Described(Slug, {
    description: `the name in paths; the former slug is 404, and stays reserved for ${FORMER_SLUG_DAYS} days`
  })),
  require_second_factor: Type.Optional(Type.Boolean({
    description: 'members need a second factor to access the organization; changing this requires one, too'
  }))
}, {
  title: 'UpdateOrganizationBody', examples: [{ name: 'Nimbus Weather' }]
})
export type UpdateOrganizationBody = Static<typeof UpdateOrganizationBody>

export const DeleteOrganizationBody = Body({ confirmed: Type.Literal(true, { description: 'must be true' }) }, {
  title: 'DeleteOrganizationBody', examples: [{ confirmed: true }]
})
export type DeleteOrganizationBody = Static<typeof DeleteOrganizationBody>

/** The limits of a plan; null: unlimited. */
export const Plan = Type.Object({
  name: Type.String(),
  retention_days: Nullable(Type.Integer()),
  api_per_minute: Type.Integer(),
  max_projects: Nullable(Type.Integer()),
  max_members: Nullable(Type.Integer()),
  max_bytes: Nullable(Type.Integer())
}, { title: 'Plan' })
export type Plan = Static<typeof Plan>
