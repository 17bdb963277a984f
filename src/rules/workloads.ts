import type { Claims, ClaimValue, FailedCheck, Preset, WorkloadAttributes } from '../../schemas/workloads.ts'

/** What an assertion, a token that the platform of a workload signed, must fulfil. */
export interface AssertionRule extends Pick<WorkloadAttributes,
  'issuer' | 'jwks' | 'audience' | 'claims' | 'preset' | 'single_use' | 'max_assertion_age'> {
  organization_id: string
}

/** The claims of an assertion by name. */
export type AssertionClaims = Readonly<Record<string, unknown>>

export interface AcceptedAssertion {
  accepted: true
  claims: AssertionClaims
  subject: string
  /** The run of the platform, such as a job or a pod; null: the claims name none. */
  run: string | null
  issuedAt: Date
  /** The `exp` of the assertion, but at most a day after its `iat`. */
  expires: Date
  /** Identifies the assertion: 64 hexadecimal digits. */
  spend: string
  /** From this time on, no request that accepts the assertion is still running. */
  spentUntil: Date
}

export interface RefusedAssertion {
  accepted: false
  check: FailedCheck
  /** The claims; null: the signature is not valid, or was not verified. */
  verified: AssertionClaims | null
}

export type AssertionResult = AcceptedAssertion | RefusedAssertion

/** Seconds by which the clocks of an issuer and of this service may differ. */
export const CLOCK_SKEW = 60

/** Seconds: no rule accepts an assertion that is older. */
export const MAX_ASSERTION_AGE = 86_400

// The claim that names the run.
const RUN_CLAIMS: Readonly<Record<Preset, string | null>> = {
  'github-actions': 'run_id',
  gitlab: 'job_id',
  kubernetes: 'kubernetes.io/pod/uid',
  buildkite: 'job_id',
  circleci: 'oidc.circleci.com/job-id',
  'hcp-terraform': 'terraform_run_id',
  aws: null,
  google: null,
  azure: null
}

const NESTED = 'kubernetes.io'

/**
 * The claims that a rule with this preset compares. Kubernetes nests its claims: `kubernetes.io/namespace` is the
 * member `namespace` of the claim `kubernetes.io`, never a claim of this name.
 */
export function claimsFor (preset: Preset | null, payload: AssertionClaims): AssertionClaims {
  if (preset !== 'kubernetes') return payload
  const topLevel = Object.entries(payload).filter(([name]) => !name.startsWith(`${NESTED}/`))
  const nested = membersOf(Object.hasOwn(payload, NESTED) ? payload[NESTED] : undefined).flatMap(([name, value]) =>
    isObject(value)
      ? membersOf(value).map(([inner, value]) => [`${NESTED}/${name}/${inner}`, value] as const)
      : [[`${NESTED}/${name}`, value] as const])
  return Object.fromEntries([...topLevel, ...nested])
}

/** Whether a value of a rule is a prefix: `refs/tags/*` of `ref`. The `*` is only allowed after a separator. */
export const isPrefix = (name: string, value: ClaimValue): value is string =>
  name === 'ref' && typeof value === 'string' && /^[^*]+\/\*$/.test(value)

/** Whether each claim that the rule names has one of the rule's values, of the same type. */
export function claimsMatch (demanded: Claims, claims: AssertionClaims): boolean {
  return Object.entries(demanded).every(([name, values]) =>
    Object.hasOwn(claims, name) && [values].flat().some((value) => valueMatches(name, value, claims[name])))
}

function valueMatches (name: string, value: ClaimValue, claim: unknown): boolean {
  if (!isPrefix(name, value)) return claim === value
  const prefix = value.slice(0, -1)
  return typeof claim === 'string' && claim.startsWith(prefix) && claim.length > prefix.length
}

/** The run of the platform, by the claim of the preset. */
export function runOf (preset: Preset | null, claims: AssertionClaims): string | null {
  const name = preset === null ? null : RUN_CLAIMS[preset]
  const run = name === null || !Object.hasOwn(claims, name) ? undefined : claims[name]
  return isText(run) ? run : typeof run === 'number' ? String(run) : null
}

/** Whether a value is a text that can be stored: not empty, well-formed, and without control characters. */
export const isText = (value: unknown): value is string =>
  typeof value === 'string' && /^[^\p{Cc}\p{Cs}]+$/u.test(value)

const isObject = (value: unknown): value is object =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
const membersOf = (value: unknown): [string, unknown][] => isObject(value) ? Object.entries(value) : []
