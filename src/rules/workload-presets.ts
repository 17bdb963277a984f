import { Value } from '@sinclair/typebox/value'
import {
  CLAIM_LIMITS, Jwk, JWK_MEMBERS, JWKS_BYTES, PublishedJwkSet, type Claims, type ClaimValue, type JwkSet, type Preset
} from '../../schemas/workloads.ts'
import { refuse } from './api-error.ts'
import { CLOCK_SKEW, isPrefix } from './workloads.ts'

interface PresetRule {
  /** The claims that identify a project, a role or an account of the platform, also after a rename. */
  ids: readonly [string, ...string[]]
  /** The platform makes a token for each request, so that a rule can refuse a second use. */
  single_use: boolean
  max_assertion_age: number
}

const HOUR = 3600
const DAY = 86_400

/** The defaults of the presets. A rule with a preset binds at least one of its `ids`. */
export const PRESET_RULES: Readonly<Record<Preset, PresetRule>> = {
  'github-actions': { ids: ['repository_id', 'repository_owner_id'], single_use: true, max_assertion_age: HOUR },
  gitlab: { ids: ['project_id', 'namespace_id'], single_use: false, max_assertion_age: DAY },
  kubernetes: { ids: ['sub', 'kubernetes.io/serviceaccount/uid'], single_use: false, max_assertion_age: DAY },
  buildkite: { ids: ['pipeline_id', 'organization_id'], single_use: true, max_assertion_age: HOUR },
  circleci: { ids: ['oidc.circleci.com/project-id'], single_use: false, max_assertion_age: HOUR },
  'hcp-terraform': {
    ids: ['terraform_workspace_id', 'terraform_project_id', 'terraform_organization_id'],
    single_use: false,
    max_assertion_age: DAY
  },
  aws: { ids: ['sub'], single_use: true, max_assertion_age: HOUR },
  google: { ids: ['sub'], single_use: true, max_assertion_age: HOUR },
  azure: { ids: ['oid', 'sub'], single_use: false, max_assertion_age: HOUR }
}

/** The values of a new rule that the request omits. */
export const defaultsOf = (preset: Preset | null): Pick<PresetRule, 'single_use' | 'max_assertion_age'> =>
  preset === null ? { single_use: false, max_assertion_age: HOUR } : PRESET_RULES[preset]

/** Ends the request with 422 for an issuer whose keys cannot be found: OpenID Connect allows no query and fragment. */
export function requireIssuer (issuer: string) {
  const url = URL.canParse(issuer) ? new URL(issuer) : undefined
  if (url === undefined || url.username !== '' || url.password !== '' || /[?#]/.test(issuer)) {
    refuse('issuer', 'Expected an https URL without credentials, query and fragment')
  }
}

// The claims that the other fields of a rule, or the verification, decide about.
const VERIFIED = ['iss', 'aud', 'exp', 'iat', 'nbf', 'jti']
const NAME = new RegExp(`^[^\\p{Cc}\\p{Cs}]{1,${CLAIM_LIMITS.name}}$`, 'u')

// A list of rules, and each request of a workload, reads rules as a whole.
function requireBytes (at: string, value: object, most: number) {
  if (Buffer.byteLength(JSON.stringify(value)) > most) refuse(at, `Expected at most ${most / 1024} KiB as JSON`)
}

/** Ends the request with 422 for claims that a rule cannot bind. */
export function requireClaims (claims: Claims) {
  requireBytes('claims', claims, CLAIM_LIMITS.bytes)
  for (const [name, values] of Object.entries(claims)) {
    const at = `claims.${name}`
    if (!NAME.test(name)) {
      refuse('claims', `Expected names of 1 to ${CLAIM_LIMITS.name} characters, without control characters`)
    }
    if (VERIFIED.includes(name)) refuse(at, 'Not a claim of a rule: it is verified by itself')
    if ([values].flat().some((value) => isPattern(name, value))) {
      refuse(at, 'Expected an exact value. Only `ref` can end in `/*`, such as refs/tags/*')
    }
  }
}

// A text with `*` is probably meant as a pattern, which would never match.
const isPattern = (name: string, value: ClaimValue) =>
  typeof value === 'string' && value.includes('*') && !isPrefix(name, value)

/** Ends the request with 422 if the rule accepts tokens of every user of the platform. */
export function requireBound ({ preset, claims }: { preset: Preset | null, claims: Claims }) {
  const names = Object.keys(claims)
  if (names.length === 0) refuse('claims', 'Expected at least one claim')
  if (preset === null) return
  const { ids } = PRESET_RULES[preset]
  if (!ids.some((id) => names.includes(id))) {
    refuse('claims', `The preset needs ${ids.length === 1 ? ids[0] : `one of ${ids.join(', ')}`}`)
  }
}

const KINDS = ['RSA', 'EC', 'OKP']
// Members of private and symmetric keys.
const SECRET = ['d', 'p', 'q', 'dp', 'dq', 'qi', 'oth', 'k', 'priv']
const isPublic = (key: JwkSet['keys'][number]) =>
  key.kty !== 'oct' && !SECRET.some((member) => Object.hasOwn(key, member))

/** Ends the request with 422 if a key is not public, or if no key can verify a token. */
export function requirePublicKeys (jwks: JwkSet) {
  const { keys } = jwks
  for (const [i, key] of keys.entries()) {
    if (!isPublic(key)) refuse(`jwks.keys.${i}`, 'Expected a public key: this one is private or symmetric')
  }
  requireBytes('jwks', storedKeys(jwks), JWKS_BYTES)
  if (keys.some(({ kty }) => KINDS.includes(kty))) return
  refuse('jwks.keys', `Expected a key of the kind ${KINDS.join(' or ')}`)
}

/** The keys with the members that a rule stores. */
export const storedKeys = ({ keys }: JwkSet): JwkSet => ({
  keys: keys.map((key) => Object.fromEntries(JWK_MEMBERS.flatMap((member) =>
    key[member] === undefined ? [] : [[member, key[member]]])) as JwkSet['keys'][number])
})

/**
 * The keys of an issuer that a rule could have; undefined if this is no key set, or has too many keys. `jose` reads
 * all keys for each assertion: it needs seconds for thousands of keys, or of `key_ops`.
 */
export const publishedKeys = (set: unknown): JwkSet | undefined => Value.Check(PublishedJwkSet, set)
  ? storedKeys({ keys: set.keys.filter((key) => Value.Check(Jwk, key)).filter(isPublic) })
  : undefined

/**
 * Whether an assertion may have been used before the restore: a backup has no used assertions. The clock of an issuer
 * may be ahead, so that an assertion from before the restore has a later `iat`.
 */
export const isBeforeRestore = (restoredAt: Date | null, issuedAt: Date): boolean =>
  restoredAt !== null && issuedAt.getTime() <= restoredAt.getTime() + CLOCK_SKEW * 1000
