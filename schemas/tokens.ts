import { Type, type Static } from '@sinclair/typebox'
import { OrganizationInPath } from './organizations.ts'
import { AbilityName } from './scopes.ts'
import {
  Answer, Body, Example, Flag, Moment, Name, NamedListQuery, NewName, Nullable, OneOf, PageMeta, Patterned, PublishedAs,
  Slug, Timestamp, exampleOf
} from './shapes.ts'

/** Maximum number of unexpired API tokens: per organization, and per user in an organization. */
export const TOKEN_LIMITS = { organization: 10_000, person: 1_000 } as const

/** Merged reads of the parts also use the levels above. Only `true` is stored and shown. */
export const Inherited = Type.Optional(Type.Boolean({
  description: 'merged reads also give the names and values that the part inherits from the levels above; default: false'
}))

/** The warning if `inherited` has no effect, because the server does not merge the documents of a project. */
export const InheritedWarning = Type.Optional(Type.String({
  description: '`inherited` has no effect in a project, because its documents are not merged'
}))

const StillInherited = Type.Optional(Type.String({
  description: 'tokens that this token made still have the `inherited` that was removed'
}))

/** A restriction of a token to a project, a target or an environment. */
export const Restriction = Type.Object({
  project: Slug, target: Type.Optional(Slug), environment: Type.Optional(Slug), inherited: Inherited
}, {
  title: 'Restriction',
  description: '`environment` and `inherited: true` go only with `target`',
  additionalProperties: false,
  examples: [{ project: 'orbit', target: 'backend' }]
})
export type Restriction = Static<typeof Restriction>

/** Maximum characters of the names of levels beside the restrictions in a response. */
export const MAX_SHOWN_NAMES = 1_000_000

/** The names of the levels that a restriction contains by slug. */
export const RestrictionNames = Type.Object({
  project: Nullable(Type.String()), target: Nullable(Type.String()), environment: Nullable(Type.String())
}, {
  title: 'RestrictionNames',
  description: 'the names of the levels; null: without such a level, and after ' +
    `${MAX_SHOWN_NAMES.toLocaleString('en')} characters of names in a response`
})
export type RestrictionNames = Static<typeof RestrictionNames>

/** The names of the levels of a list of restrictions. */
export const NamesOfRestrictions = Type.Array(RestrictionNames, {
  description: 'the names of the levels of `restrictions`, in the same order'
})

export const TokenParams = Type.Object({
  organization: OrganizationInPath, id: Type.String({ maxLength: 128, examples: ['7'] })
})

/** The creator of a token: a user or another token. Null: the operator. */
export const TokenCreator = Type.Unsafe<{ type: 'user' | 'api_token', id: number, name: string } | null>({
  type: ['object', 'null'],
  properties: {
    type: { type: 'string', enum: ['user', 'api_token'] },
    id: { type: 'integer' },
    name: { type: 'string' }
  },
  required: ['type', 'id', 'name'],
  title: 'TokenCreator',
  description:
    'the creator, or the user or token of the organization that rotated it last. A token created by a user, or by a token of that user, ends with the account, the membership and the grant that it was created with'
})

/** Days before its end from which a token counts as ending. */
export const ENDING_DAYS = 14

const OWNERS = ['organization', 'user'] as const
const OWNER_RULE = 'user:ID or api_token:ID, such as user:17'

export const ListTokensQuery = Type.Object({
  ...NamedListQuery.properties,
  owner: Type.Optional(OneOf(OWNERS, { description: 'only tokens that belong to the organization, or to a user' })),
  created_by: Type.Optional(Patterned('^(user|api_token):[1-9][0-9]{0,15}$', OWNER_RULE, {
    maxLength: 26,
    description: 'only tokens that this user or token created, or rotated last: `user:ID` or `api_token:ID`',
    examples: ['api_token:1']
  })),
  ending: Type.Optional(Flag({ description: `only valid tokens that end within ${ENDING_DAYS} days` }))
})
export type ListTokensQuery = Static<typeof ListTokensQuery>

// What a caller sets and may change: in a new token, in a change, and in responses.
const Description = Type.Optional(Type.Union([Type.String({ maxLength: 500 }), Type.Null()]))
const settable = {
  created: { name: NewName, description: Description },
  changed: { name: Type.Optional(Name), description: Description },
  shown: { name: Example(Type.String(), 'CI'), description: Example(Nullable(Type.String()), null) }
}

const fields = {
  id: Example(Type.String(), '7'),
  ...settable.shown,
  token_prefix: Example(Type.String(), 'dotenv_01JQZ'),
  token_suffix: Example(Type.String({ description: 'the last four characters of the latest value' }), '0000'),
  abilities: Example(Type.Array(AbilityName), ['secret:read', 'secret:decrypt']),
  restrictions: Example(Type.Array(Restriction, { description: 'empty: the whole organization' }), []),
  expires_at: Example(Nullable(Timestamp), null),
  last_used_at: Example(Nullable(Timestamp), null),
  created_by: Example(TokenCreator, { type: 'api_token', id: 1, name: 'First token' }),
  owner: Example(OneOf(OWNERS, {
    description: '`user`: the token ends with the user, the membership and the grant behind it; `organization`: it does not'
  }), 'organization'),
  created_at: Timestamp,
  updated_at: Timestamp,
  restriction_names: Example(NamesOfRestrictions, [])
}
export const ApiToken = Type.Object(fields, { title: 'ApiToken' })
export type ApiToken = Static<typeof ApiToken>

export const ApiTokenList = Answer('ApiTokenList', { data: Type.Array(ApiToken), meta: PageMeta })
export const ApiTokenAnswer = Answer('ApiTokenAnswer', { data: ApiToken, warning: StillInherited })

const someAbilities = { minItems: 1, maxItems: 100, description: 'scopes, or "*" alone for all' }
const Abilities = PublishedAs(
  Type.Array(Type.String({ minLength: 1, maxLength: 64 }), someAbilities), Type.Array(AbilityName, someAbilities)
)
const expiry = (whenLeftOut: string, atMost = '') => Type.Optional(Type.Union(
  [Moment(), Type.Null()],
  { description: `RFC 3339, in the future; null: never; default: ${whenLeftOut}${atMost}` }
))
export const Restrictions = Type.Array(Restriction, {
  maxItems: 100, description: 'access is limited to these parts of the hierarchy; default: the whole organization'
})
const FIXED = 'cannot be changed; if sent, it must equal the current value'
const FIXED_RESTRICTIONS = `${FIXED}; but \`inherited: false\` removes it, and a restriction without it keeps it`

export const CreateTokenBody = Body({
  ...settable.created,
  abilities: Abilities,
  expires_at: expiry('the latest time that the caller may set'),
  restrictions: Type.Optional(Restrictions),
  owner: Type.Optional(Type.Literal('organization', {
    description: 'the token belongs to the organization, so that it outlives its creator; then `expires_at` is null by ' +
      'default. Only with a token of the console that has api-token:create, or with a token of the organization'
  }))
}, { title: 'CreateTokenBody', examples: [{ name: 'CI', abilities: ['secret:read', 'secret:decrypt'] }] })
export type CreateTokenBody = Static<typeof CreateTokenBody>

/**
 * Abilities and restrictions cannot be changed; if sent, they must equal the current values. Only `inherited` of a
 * restriction can be removed, with false.
 */
export const UpdateTokenBody = Body({
  ...settable.changed,
  expires_at: expiry('unchanged', '; at most the expiry of the grant that the token was created with'),
  abilities: Type.Optional(PublishedAs(Abilities, Type.Array(AbilityName, { ...someAbilities, description: FIXED }))),
  restrictions: Type.Optional(Type.Array(Restriction, { maxItems: 100, description: FIXED_RESTRICTIONS }))
}, { title: 'UpdateTokenBody', examples: [{ name: 'CI of the website', expires_at: '2099-03-01T12:00:00Z' }] })
export type UpdateTokenBody = Static<typeof UpdateTokenBody>

const WEEK = 7 * 24 * 60 * 60

export const RotateTokenBody = Body({
  overlap_seconds: Type.Optional(Type.Integer({
    minimum: 0,
    maximum: WEEK,
    default: 0,
    description: 'how long the previous value stays valid; older values end. If the caller uses an older value, with ' +
      'an `Idempotency-Key`, this older value keeps its expiry, and the value in between ends'
  }))
}, { title: 'RotateTokenBody', examples: [{ overlap_seconds: 3600 }] })
export type RotateTokenBody = Static<typeof RotateTokenBody>

export const NOT_AGAIN = 'Save the token now. It is not shown again.'

const success = Example(Type.Boolean(), true)
const message = Example(Type.String(), NOT_AGAIN)
const VALUE = 'dotenv_01JQZ6V9T4M8N2K7R5W3X1Y0BC_x0x0x0x0x0x0x0x0x0x0x0x0x0x0x0x0x0x0x0000000'
const token = Example(Type.String(), VALUE)
const api_key = Example(ApiToken, {
  ...exampleOf(fields), name: 'CI of the website', expires_at: '2099-03-01T12:00:00.000Z'
})

/**
 * A token and its new value. Both are at the top level and in `data`, because existing clients read one or the other.
 */
export const RotatedToken = Answer('RotatedToken', {
  success, message, token, api_key, data: Type.Object({ token, api_key })
})

/** A new token with its value. Later responses never contain the value. */
export const CreatedToken = Answer('CreatedToken', {
  success,
  message,
  token: Example(Type.String({
    description:
      'the value; for a `User-Agent` that starts with `dotenv-go-sdk/` an object: `name`, `token`, `abilities`, `expires_at`'
  }), VALUE),
  api_key: ApiToken,
  warning: InheritedWarning
})
