import { Type, type Static, type TObject } from '@sinclair/typebox'
import { FIRST_ORGANIZATION } from './organizations.ts'
import { AbilityName } from './scopes.ts'
import { Restriction } from './tokens.ts'
import { Example, Nullable, OneOf, PublishedAs, Slug, Timestamp, ToldApart, Ulid, exampleOf } from './shapes.ts'

/** Roles of members of an organization. Requests may say `admin` for `administrator`. */
export const ROLES = [
  'owner', 'administrator', 'developer', 'member', 'auditor', 'billing_manager', 'api_user', 'guest'
] as const
export type Role = (typeof ROLES)[number]
export const RoleName = OneOf(ROLES, { title: 'Role' })

/** Roles that grant scopes in a project (see `scopesInProject`). */
export const PROJECT_ROLES = ROLES.filter((role) => role !== 'billing_manager' && role !== 'guest')
export const ProjectRole = OneOf(PROJECT_ROLES, { title: 'ProjectRole' })

/** Every member is active: before a user accepts, there is only an invitation (`schemas/invitations.ts`). */
export const MEMBER_STATUSES = ['active'] as const

export const EMAIL_LENGTH = 320
/**
 * Exactly one `@`. The local part has no space and no special character of RFC 5322, 3.2.3. The domain has letters,
 * digits and hyphens of any script. Only the ASCII full stop separates labels, not the other dots of RFC 3490, 3.1.
 * Default-ignorable characters are excluded, because a DNS look-up drops them (RFC 5892, 2.6). So each address has only
 * one spelling.
 */
export const EMAIL_PATTERN =
  /^(?!.*\p{DI})[^\s@\p{C}()<>[\]:;,\\"]+@(?:[\p{L}\p{M}\p{Nd}-]+\.)*[\p{L}\p{M}\p{Nd}-]+$/u

/** Minimum characters and maximum bytes of a password (NIST SP 800-63B, 5.1.1.2). */
export const PASSWORD = { minCharacters: 8, maxBytes: 128 } as const

const Included = Type.Object({
  type: Type.Literal('organizations'),
  id: Ulid,
  attributes: Type.Object({
    ulid: Ulid,
    name: Example(Type.String(), FIRST_ORGANIZATION.name),
    slug: Example(Slug, FIRST_ORGANIZATION.slug),
    role: Type.Optional(RoleName),
    joined_at: Type.Optional(Timestamp)
  })
}, { title: 'IncludedOrganization' })

const relationships = Type.Object({
  organizations: Type.Object({ data: Type.Array(Type.Object({ type: Type.Literal('organizations'), id: Ulid })) })
}, { title: 'PrincipalRelationships' })

/** The principal of a user's access token. */
const User = Type.Object({
  type: Type.Literal('users'),
  id: Example(Type.String(), '17'),
  attributes: Type.Object({
    name: Example(Type.String(), 'Rosa Quill'),
    email: Example(Type.String(), 'rosa@nimbus.example'),
    is_verified: Example(Type.Boolean(), true),
    has_second_factor: Example(Type.Boolean(), true),
    created_at: Timestamp,
    updated_at: Timestamp
  }, { title: 'UserAttributes' }),
  relationships
}, { title: 'User' })
export const UserAnswer = Type.Object({ data: User, included: Type.Array(Included) })
export type UserAnswer = Static<typeof UserAnswer>

/** The principal of an organization API token, or of the token of a workload: its rule. */
const TokenPrincipal = Type.Object({
  type: Example(OneOf(['api-tokens', 'workloads']), 'api-tokens'),
  id: Example(Type.String({ description: 'of the API token, or of the rule of the workload' }), '3'),
  attributes: Type.Object({
    name: Example(Type.String(), 'First token'),
    abilities: Example(Type.Array(AbilityName), ['*']),
    restrictions: Example(Type.Array(Restriction), []),
    expires_at: Example(Nullable(Timestamp), null)
  }, { title: 'TokenPrincipalAttributes' }),
  relationships
}, { title: 'TokenPrincipal' })
export const TokenPrincipalAnswer = Type.Object({ data: TokenPrincipal, included: Type.Array(Included) })
export type TokenPrincipalAnswer = Static<typeof TokenPrincipalAnswer>

/** The caller. The discriminator is `data.type`, so in the published schema the union is the type of `data`. */
export const PrincipalAnswer = PublishedAs(
  Type.Union([UserAnswer, TokenPrincipalAnswer], { examples: [exampleOf(TokenPrincipalAnswer.properties)] }),
  Type.Object({
    data: ToldApart<TObject>('type', [User, TokenPrincipal], { title: 'Principal' }), included: Type.Array(Included)
  }, { title: 'PrincipalAnswer' })
)
