import { Type, type Static } from '@sinclair/typebox'
import { OrganizationInPath } from './organizations.ts'
import { AbilityName, SCOPE_NAMES, type Scope } from './scopes.ts'
import {
  Answer, Body, Described, Example, exampleOf, Name, NEW_TEXT_PATTERN, NewDescription, NewName, Nullable,
  NullableDescription, OneOf, Patterned, PublishedAs, Resource, Timestamp
} from './shapes.ts'
import { InheritedWarning, NamesOfRestrictions, Restriction, Restrictions, TokenCreator } from './tokens.ts'

/** Maximum number of trust rules of an organization. */
export const MAX_WORKLOADS = 100

/** The platforms whose tokens have a preset. */
export const PRESETS = [
  'github-actions', 'gitlab', 'kubernetes', 'buildkite', 'circleci', 'hcp-terraform', 'aws', 'google', 'azure'
] as const
export type Preset = (typeof PRESETS)[number]

/**
 * The checks of an assertion, by which a refused one is explained to those who may read the rule. `disabled`: all
 * others succeed, but the rule is disabled.
 */
export const FAILED_CHECKS = [
  'format', 'type', 'algorithm', 'critical', 'issuer_address', 'issuer_unreachable', 'issuer_response', 'key',
  'signature', 'issuer', 'subject', 'audience', 'expiry', 'issued_at', 'not_before', 'age', 'claims', 'used',
  'restored', 'disabled'
] as const
export type FailedCheck = (typeof FAILED_CHECKS)[number]

// With these scopes, a workload could give access to itself or to others, change the organization, or replace keys.
const REFUSED = /^(?:api-token|member|team):|^organization:(?:create|update|delete)$|^(?:billing:write|key:rotate)$/

/** The scopes that a rule can allow. */
export const WORKLOAD_SCOPES: readonly Scope[] = SCOPE_NAMES.filter((scope) => !REFUSED.test(scope))

/** A rule in a path: its id. */
export const WorkloadParams = Type.Object({
  organization: OrganizationInPath, workload: Type.String({ maxLength: 128, examples: ['7'] })
})

const ClaimText = Type.String({ minLength: 1, maxLength: 1024 })
// Other numbers are not exact.
const ClaimNumber = Type.Integer({ minimum: Number.MIN_SAFE_INTEGER, maximum: Number.MAX_SAFE_INTEGER })
const ClaimValue = Type.Union([ClaimText, ClaimNumber, Type.Boolean()], { title: 'ClaimValue' })
export type ClaimValue = Static<typeof ClaimValue>

/** Maximum number of claims of a rule, of values of a claim, and of bytes of all claims as JSON. */
export const CLAIM_LIMITS = { claims: 20, values: 50, name: 128, bytes: 16 * 1024 } as const

/** What claims of a token must be: claim name → the exact value, or a list of values. */
const ClaimValues = Type.Union([ClaimValue, Type.Array(ClaimValue, { minItems: 1, maxItems: CLAIM_LIMITS.values })])
export type Claims = Record<string, Static<typeof ClaimValues>>
const CLAIMS = { repository_id: '4711', ref: 'refs/heads/main' }

// The examples trust a service account of a cluster. The key is that of RFC 7517, appendix A.1.
const CLUSTER = {
  preset: 'kubernetes' as const,
  issuer: 'https://kubernetes.default.svc',
  jwks: {
    keys: [{
      kty: 'EC',
      crv: 'P-256',
      kid: '1',
      x: 'MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4',
      y: '4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM'
    }]
  },
  claims: { sub: 'system:serviceaccount:orbit:backend' }
}

const Claims = Type.Unsafe<Claims>(Type.Object({}, {
  title: 'WorkloadClaims',
  description: 'claims at the top level of the token: the exact value, or a list of values; at most 16 KiB. A name has ' +
    `1 to ${CLAIM_LIMITS.name} characters, and no control characters. ` + '`true` and `"true"` differ. Only `ref` can end in `/*`, for all values that begin with the text before the `*`. ' +
    'With the preset `kubernetes`, `kubernetes.io/…` is a member of the nested claim `kubernetes.io`',
  additionalProperties: ClaimValues,
  minProperties: 1,
  maxProperties: CLAIM_LIMITS.claims,
  examples: [CLAIMS]
}))

/** The members of public keys that a rule stores. */
export const JWK_MEMBERS = ['kty', 'kid', 'use', 'key_ops', 'alg', 'n', 'e', 'crv', 'x', 'y'] as const

const jwkText = Type.Optional(Type.String({ minLength: 1, maxLength: 2048 }))
/** A public key with the sizes that a rule accepts. */
export const Jwk = Type.Object({
  kty: Type.String({ minLength: 1, maxLength: 16 }),
  kid: jwkText,
  use: jwkText,
  key_ops: Type.Optional(Type.Array(Type.String({ maxLength: 32 }), { maxItems: 8 })),
  alg: jwkText,
  n: jwkText,
  e: jwkText,
  crv: jwkText,
  x: jwkText,
  y: jwkText
}, {
  title: 'JsonWebKey',
  description: 'a public key; other members are not stored',
  additionalProperties: Type.Unknown(),
  maxProperties: 24
})
/** Maximum bytes of the keys of a rule as JSON, as they are stored: more than 20 keys of 4,096 bits have. */
export const JWKS_BYTES = 32 * 1024

const JwkSet = Type.Object({ keys: Type.Array(Jwk, { minItems: 1, maxItems: 20 }) }, {
  title: 'JsonWebKeySet',
  additionalProperties: false,
  description: 'the public keys of an issuer that the service cannot reach, such as a cluster; at most 32 KiB. ' +
    'One is of the kind RSA, EC or OKP, and none is private or symmetric',
  examples: [{ keys: [{ kty: 'OKP', crv: 'Ed25519', kid: 'k1', x: '11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo' }] }]
})
export type JwkSet = Static<typeof JwkSet>

/** What an issuer publishes: objects, of which some may be no keys. */
export const PublishedJwkSet = Type.Object({ keys: Type.Array(Type.Object({}), { maxItems: 100 }) })

const someScopes = { minItems: 1, maxItems: 100 }
const Scopes = PublishedAs(
  Type.Array(Type.String({ minLength: 1, maxLength: 64 }), someScopes),
  Type.Array(OneOf(WORKLOAD_SCOPES, { title: 'WorkloadScope' }), someScopes)
)

const Issuer = Patterned('^https://[!-~]+$', 'an https URL, such as https://gitlab.example.com', {
  maxLength: 512, description: 'the `iss` of the tokens, compared exactly', examples: ['https://gitlab.example.com']
})
const AUDIENCE_RULE =
  'a text of 1 to 512 characters without control and direction characters, such as https://secrets.example.com'
// People copy an audience from the console into the settings of a job, where it must not make another line.
const audience = (more = '') => PublishedAs(
  Patterned(NEW_TEXT_PATTERN, AUDIENCE_RULE, { maxLength: 512 }),
  Patterned('\\S', AUDIENCE_RULE, {
    maxLength: 512,
    description: `must be an \`aud\` of the token; without control and direction characters${more}`,
    examples: ['https://secrets.example.com']
  })
)
const lifetime = (options = {}) => Type.Integer({
  minimum: 300, maximum: 3600, description: 'seconds for which an access token is valid', ...options
})
const SingleUse = Type.Boolean({ description: 'a token of the platform can be exchanged once' })
const MaxAge = Type.Integer({
  minimum: 60, maximum: 86_400, description: 'the greatest age of a token of the platform, in seconds since its `iat`'
})
const PresetName = OneOf(PRESETS, { title: 'WorkloadPreset' })
/** One of these words, or null, in a response. */
const WordOrNull = <const T extends readonly string[]>(words: T, options = {}) =>
  Type.Unsafe<T[number] | null>({ ...options, type: ['string', 'null'], enum: [...words, null] })

const byDefault = <T extends { description?: string }>(schema: T, text: string): T =>
  ({ ...schema, description: `${schema.description ?? ''}; default: ${text}` })

const Jwks = Type.Optional(Type.Union([JwkSet, Type.Null()]))
const PresetOrNone = Type.Optional(Type.Union([PresetName, Type.Null()]))

export const CreateWorkloadBody = Body({
  name: NewName,
  description: NewDescription,
  enabled: Type.Optional(Type.Boolean({ default: true })),
  preset: PresetOrNone,
  issuer: Issuer,
  jwks: Jwks,
  audience: Type.Optional(audience('; default: the URL of this service')),
  claims: Claims,
  scopes: Scopes,
  restrictions: Type.Optional(Restrictions),
  lifetime: Type.Optional(lifetime({ default: 900 })),
  single_use: Type.Optional(byDefault(
    SingleUse, 'true with a preset of a platform that makes a token for each request, otherwise false'
  )),
  max_assertion_age: Type.Optional(byDefault(
    MaxAge, '3600; with the presets of platforms whose tokens live longer, 86400'
  ))
}, {
  title: 'CreateWorkloadBody',
  examples: [{
    name: 'Deployment',
    ...CLUSTER,
    scopes: ['secret:read', 'secret:decrypt']
  }]
})
export type CreateWorkloadBody = Static<typeof CreateWorkloadBody>

export const UpdateWorkloadBody = Body({
  name: Type.Optional(Name),
  description: NewDescription,
  enabled: Type.Optional(Type.Boolean()),
  preset: PresetOrNone,
  issuer: Type.Optional(Issuer),
  jwks: Jwks,
  audience: Type.Optional(audience()),
  claims: Type.Optional(Claims),
  scopes: Type.Optional(Scopes),
  restrictions: Type.Optional(Restrictions),
  lifetime: Type.Optional(lifetime()),
  single_use: Type.Optional(SingleUse),
  max_assertion_age: Type.Optional(MaxAge)
}, { title: 'UpdateWorkloadBody', examples: [{ enabled: false }] })
export type UpdateWorkloadBody = Static<typeof UpdateWorkloadBody>

const attributes = {
  public_id: Example(Type.String({
    description: 'the `client_id` with which a workload exchanges its token'
  }), 'wl_01JQZ6V9T4M8N2K7R5W3X1Y0BC_7'),
  name: Example(Type.String(), 'Deployment'),
  description: NullableDescription,
  enabled: Example(Type.Boolean(), true),
  preset: Example(WordOrNull(PRESETS), CLUSTER.preset),
  issuer: Example(Type.String(), CLUSTER.issuer),
  jwks: Example(Nullable(JwkSet), CLUSTER.jwks),
  audience: Example(Type.String(), 'https://secrets.example.com'),
  claims: Example(Claims, CLUSTER.claims),
  scopes: Example(Type.Array(AbilityName), ['secret:read', 'secret:decrypt']),
  restrictions: Example(Type.Array(Restriction, { description: 'empty: the whole organization' }), []),
  lifetime: Example(Type.Integer(), 900),
  single_use: Example(Type.Boolean(), false),
  max_assertion_age: Example(Type.Integer(), 86_400),
  created_by: Example(Described(TokenCreator, {
    description: 'the creator. The rule belongs to the organization, and stays if the creator leaves'
  }), { type: 'api_token', id: 1, name: 'First token' }),
  created_at: Timestamp,
  updated_at: Timestamp,
  restriction_names: Example(NamesOfRestrictions, [])
}

export const Workload = Resource('workloads', { title: 'Workload', id: '7' }, attributes)
export type WorkloadAttributes = Static<typeof Workload.attributes>

/** A rule that was created or changed. */
export const WorkloadAnswer = Answer('WrittenWorkloadAnswer', { data: Workload.item, warning: InheritedWarning })

/** Maximum length of an assertion. */
export const ASSERTION_LENGTH = 16 * 1024

export const TestWorkloadBody = Body({
  token: Type.String({ minLength: 1, maxLength: ASSERTION_LENGTH, description: 'a token of the platform' })
}, { title: 'TestWorkloadBody', examples: [{ token: 'eyJhbGciOiJFUzI1NiJ9.e30.c2lnbmF0dXJl' }] })

const tested = {
  accepted: Example(Type.Boolean(), false),
  check: Example(WordOrNull(FAILED_CHECKS, {
    description: 'the check that failed; null if the token is accepted'
  }), 'issuer')
}
export const TestedWorkload = Answer('TestedWorkload', {
  data: Example(Type.Object(tested, { title: 'TestedAssertion' }), exampleOf(tested))
})
