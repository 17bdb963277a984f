import type { Schemas } from './api.ts'

// The platforms of trust rules, their claims, and the checks of their tokens in words.

type Rule = Schemas['WorkloadAttributes']
type Preset = NonNullable<Rule['preset']>
type Claims = Rule['claims']
type ClaimValue = Schemas['ClaimValue']

/** `ids`: a rule binds at least one of them, as the service demands. `more`: other claims that narrow the rule. */
interface Platform { name: string, issuer: string, ids: readonly string[], more: readonly string[] }

export const PLATFORMS: Record<Preset, Platform> = {
  'github-actions': {
    name: 'GitHub Actions',
    issuer: 'https://token.actions.githubusercontent.com for github.com',
    ids: ['repository_id', 'repository_owner_id'],
    more: ['ref', 'environment', 'event_name']
  },
  gitlab: {
    name: 'GitLab CI',
    issuer: 'https://gitlab.com, or the address of your GitLab',
    ids: ['project_id', 'namespace_id'],
    more: ['ref', 'ref_type', 'ref_protected']
  },
  kubernetes: {
    name: 'Kubernetes',
    issuer: 'that of kubectl get --raw /.well-known/openid-configuration',
    ids: ['sub', 'kubernetes.io/serviceaccount/uid'],
    more: ['kubernetes.io/namespace']
  },
  buildkite: { name: 'Buildkite', issuer: 'https://agent.buildkite.com', ids: ['pipeline_id', 'organization_id'], more: ['build_branch'] },
  circleci: {
    name: 'CircleCI',
    issuer: 'https://oidc.circleci.com/org/ followed by the id of your organization',
    ids: ['oidc.circleci.com/project-id'],
    more: ['oidc.circleci.com/vcs-ref']
  },
  'hcp-terraform': {
    name: 'HCP Terraform',
    issuer: 'https://app.terraform.io',
    ids: ['terraform_workspace_id', 'terraform_project_id', 'terraform_organization_id'],
    more: ['terraform_run_phase']
  },
  aws: { name: 'AWS', issuer: 'the issuer of your account', ids: ['sub'], more: [] },
  google: { name: 'Google Cloud', issuer: 'https://accounts.google.com', ids: ['sub'], more: [] },
  azure: { name: 'Azure', issuer: 'https://login.microsoftonline.com/ followed by the id of your tenant and /v2.0', ids: ['oid', 'sub'], more: [] }
}

export const CHECKS: Record<NonNullable<Schemas['TestedAssertion']['check']>, string> = {
  format: 'it is no signed token (JWT) with an issuer and a subject.',
  type: 'its header has another “typ” than JWT.',
  algorithm: 'its algorithm is not accepted: only RS, PS and ES with 256, 384 or 512, and EdDSA.',
  critical: 'its header demands an extension (“crit”) that the service does not know.',
  issuer_address: 'the address of the issuer is private or unknown. The operator can allow it with OUTGOING_ALLOW, or you give the rule its public keys.',
  issuer_unreachable: 'the service cannot connect to the issuer.',
  issuer_response: 'the issuer did not give its public keys: its answer is an error, too large, or names another issuer.',
  key: 'the issuer has no public key with the “kid” of the token.',
  signature: 'its signature is wrong.',
  issuer: 'its “iss” is not the issuer of the rule.',
  subject: 'it has no “sub”.',
  audience: 'its “aud” is not the audience of the rule.',
  expiry: 'it has expired, or has no “exp”.',
  issued_at: 'its “iat” is missing or in the future.',
  not_before: 'it is not valid yet (“nbf”).',
  age: 'it is older than the rule allows.',
  claims: 'a claim of the rule is missing, or has another value.',
  used: 'it was used before, and the rule accepts a token once.',
  restored: 'it was made before the restore of a backup.',
  disabled: 'the rule is disabled. Everything else is right.'
}

/** Whether a rule may allow a scope, as the service decides. A test compares both. */
export const isWorkloadScope = (scope: string): boolean =>
  !/^(?:api-token|member|team):|^organization:(?:create|update|delete)$|^(?:billing:write|key:rotate)$/.test(scope)

/** A value of a claim in the form. `isFixed`: the platform has named the claim. */
export interface Row { name: string, kind: 'text' | 'number' | 'boolean', value: string, isFixed?: true }

export const rowsOf = (claims: Claims): Row[] => Object.entries(claims).flatMap(([name, values]) =>
  [values].flat().map((value) => ({ name, kind: typeof value === 'string' ? 'text' : typeof value as 'number' | 'boolean', value: String(value) })))

/** The rows with a value, and an empty row for each other claim of the platform, whose claims are first. */
export function rowsOfPlatform (preset: Preset | '', rows: readonly Row[]): Row[] {
  const { ids, more } = preset === '' ? { ids: [], more: [] } : PLATFORMS[preset]
  const known = [...ids, ...more]
  const filled = rows.filter(({ value }) => value !== '')
  if (filled.length === 0 && known.length === 0) return [{ name: '', kind: 'text', value: '' }]
  return [
    ...known.flatMap((name): Row[] => {
      const own = filled.filter((row) => row.name === name)
      return own.length === 0 ? [{ name, kind: 'text', value: '', isFixed: true }] : own
    }),
    ...filled.filter(({ name }) => !known.includes(name))
  ].map(({ isFixed, ...row }) => isFixed === true && known.includes(row.name) ? { ...row, isFixed } : row)
}

/** Whether rows mean the same claims: the order, and rows without a value, do not matter. */
export const areSame = (rows: readonly Row[], others: readonly Row[]): boolean => textOf(rows) === textOf(others)
const textOf = (rows: readonly Row[]): string => JSON.stringify(rows
  .filter(({ value }) => value !== '').map(({ name, kind, value }) => JSON.stringify([name, kind, value])).sort())

export function claimsOf (rows: readonly Row[]): Claims {
  const found = new Map<string, ClaimValue[]>()
  for (const row of rows) {
    if (row.value === '') continue
    if (row.name === '') throw new Error(`The value ${row.value} needs the name of its claim.`)
    found.set(row.name, [...found.get(row.name) ?? [], valueOf(row)])
  }
  return Object.fromEntries([...found].map(([name, values]) => [name, values.length === 1 ? values[0]! : values]))
}

function valueOf ({ name, kind, value }: Row): ClaimValue {
  const text = value.trim()
  if (kind === 'text') return value
  if (kind === 'number' ? !/^-?\d+$/.test(text) : !/^(?:true|false)$/.test(text)) {
    throw new Error(`The value of ${name} is ${kind === 'number' ? 'no whole number' : 'neither true nor false'}.`)
  }
  return kind === 'number' ? Number(text) : text === 'true'
}

export function variablesOf ({ preset, public_id, audience }: Rule, url: string): string {
  const third = preset === 'github-actions'
    ? `STRONGROOM_AUDIENCE=${audience}`
    : preset === 'gitlab'
      ? `# of the job, under id_tokens\nSTRONGROOM_ID_TOKEN: { aud: ${audience} }`
      : 'STRONGROOM_ID_TOKEN_FILE=/var/run/strongroom/token'
  return `STRONGROOM_URL=${url}\nSTRONGROOM_WORKLOAD=${public_id}\n${third}`
}
