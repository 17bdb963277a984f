import { Type, type Static, type TObject } from '@sinclair/typebox'
import { FIRST_ORGANIZATION } from './organizations.ts'
import { AbilityName } from './scopes.ts'
import { Nullable, OneOf, PublishedAs, Slug, Timestamp, ToldApart, Ulid } from './shapes.ts'

/** Roles of members of an organization. Requests may say `admin` for `administrator`. */
export const ROLES = [
  'owner', 'administrator', 'developer', 'member', 'auditor', 'billing_manager', 'api_user'
] as const
export type Role = (typeof ROLES)[number]
export const RoleName = OneOf(ROLES, { title: 'Role' })

/** Every member is active; before acceptance there is only an invitation (`schemas/invitations.ts`). */
export const MEMBER_STATUSES = ['active'] as const
export type MemberStatus = (typeof MEMBER_STATUSES)[number]

export const EMAIL_LENGTH = 320
/**
 * Exactly one `@`. The local part has no space and no special character of RFC 5322, 3.2.3. The domain has letters,
 * digits and hyphens of any script, separated by ASCII full stops (RFC 3490, 3.1 lists others). Default-ignorable
 * characters are excluded: a DNS look-up drops them (RFC 5892, 2.6). Thus each address has one spelling.
 */
export const EMAIL_PATTERN =
  /^(?!.*\p{DI})[^\s@\p{C}()<>[\]:;,\\"]+@(?:[\p{L}\p{M}\p{Nd}-]+\.)*[\p{L}\p{M}\p{Nd}-]+$/u

/** Minimum characters and maximum bytes of a password (NIST SP 800-63B, 5.1.1.2). */
export const PASSWORD = { minCharacters: 8, maxBytes: 128 } as const

const OrganizationLinkage = Type.Object({ type: Type.Literal('organizations'), id: Ulid })

const Included = Type.Object({
  type: Type.Literal('organizations'),
  id: Ulid,
  attributes: Type.Object({
    ulid: Ulid,
    name: Type.String(),
    slug: Slug,
    role: Type.Optional(RoleName),
    joined_at: Type.Optional(Timestamp)
  })
}, { title: 'IncludedOrganization' })

const relationships = Type.Object({
  organizations: Type.Object({ data: Type.Array(OrganizationLinkage) })
}, { title: 'PrincipalRelationships' })

const included = [{
  type: 'organizations',
  id: '01JQZ6V9T4M8N2K7R5W3X1Y0BC',
  attributes: {
    ulid: '01JQZ6V9T4M8N2K7R5W3X1Y0BC',
    ...FIRST_ORGANIZATION,
    role: 'owner',
    joined_at: '2026-03-01T12:00:00.000Z'
  }
}]
const linkage = { organizations: { data: [{ type: 'organizations', id: '01JQZ6V9T4M8N2K7R5W3X1Y0BC' }] } }

/** The principal of a user's access token. */
const User = Type.Object({
  type: Type.Literal('users'),
  id: Type.String(),
  attributes: Type.Object({
    name: Type.String(),
    email: Type.String(),
    is_verified: Type.Boolean(),
    has_second_factor: Type.Boolean(),
    created_at: Timestamp,
    updated_at: Timestamp
  }, { title: 'UserAttributes' }),
  relationships
}, { title: 'User' })
export const UserAnswer = Type.Object({ data: User, included: Type.Array(Included) }, {
  examples: [{
    data: {
      type: 'users',
      id: '17',
      attributes: {
        name: 'Rosa Quill',
        email: 'rosa@nimbus.example',
        is_verified: true,
        has_second_factor: true,
        created_at: '2026-03-01T12:00:00.000Z',
        updated_at: '2026-03-01T12:00:00.000Z'
      },
      relationships: linkage
    },
    included
  }]
})
export type UserAnswer = Static<typeof UserAnswer>

/** The principal of an organization API token. */
const TokenPrincipal = Type.Object({
  type: Type.Literal('api-tokens'),
  id: Type.String(),
  attributes: Type.Object({
    name: Type.String(), abilities: Type.Array(AbilityName), expires_at: Nullable(Timestamp)
  }, { title: 'TokenPrincipalAttributes' }),
  relationships
}, { title: 'TokenPrincipal' })
export const TokenPrincipalAnswer = Type.Object({ data: TokenPrincipal, included: Type.Array(Included) }, {
  examples: [{
    data: {
      type: 'api-tokens',
      id: '3',
      attributes: { name: 'First token', abilities: ['*'], expires_at: null },
      relationships: linkage
    },
    included: [{ ...included[0], attributes: { ulid: '01JQZ6V9T4M8N2K7R5W3X1Y0BC', ...FIRST_ORGANIZATION } }]
  }]
})
export type TokenPrincipalAnswer = Static<typeof TokenPrincipalAnswer>

/** The caller. The discriminator is `data.type`, so the published schema puts it on `data`. */
export const PrincipalAnswer = PublishedAs(
  Type.Union([UserAnswer, TokenPrincipalAnswer], { examples: TokenPrincipalAnswer.examples }),
  Type.Object({
    data: ToldApart<TObject>('type', [User, TokenPrincipal], { title: 'Principal' }), included: Type.Array(Included)
  }, { title: 'PrincipalAnswer' })
)
