import type { Schemas } from './api.ts'

// The platforms of trust rules, their claims, and the checks of their tokens in words.

type Rule = Schemas['WorkloadAttributes']
type Preset = NonNullable<Rule['preset']>
type Claims = Rule['claims']
type ClaimValue = Schemas['ClaimValue']

/** `ids`: a rule binds at least one of them, as the service demands. `more`: other claims that narrow the rule. */
interface Platform { name: string, issuer: string, ids: readonly string[], more: readonly string[] }

const platform = (name: string, issuer: string, ids: readonly string[], more: readonly string[] = []): Platform =>
  ({ name, issuer, ids, more })

export const PLATFORMS: Record<Preset, Platform> = {
  'github-actions': platform(
    'GitHub Actions', 'https://token.actions.githubusercontent.com for github.com',
    ['repository_id', 'repository_owner_id'], ['ref', 'environment', 'event_name']
  ),
  gitlab: platform(
    'GitLab CI', 'https://gitlab.com, or the address of your GitLab',
    ['project_id', 'namespace_id'], ['ref', 'ref_type', 'ref_protected']
  ),
  kubernetes: platform(
    'Kubernetes', 'that of kubectl get --raw /.well-known/openid-configuration',
    ['sub', 'kubernetes.io/serviceaccount/uid'], ['kubernetes.io/namespace']
  ),
  buildkite: platform('Buildkite', 'https://agent.buildkite.com', ['pipeline_id', 'organization_id'], ['build_branch']),
  circleci: platform(
    'CircleCI', 'https://oidc.circleci.com/org/ followed by the id of your organization',
    ['oidc.circleci.com/project-id'], ['oidc.circleci.com/vcs-ref']
  ),
  'hcp-terraform': platform(
    'HCP Terraform', 'https://app.terraform.io',
    ['terraform_workspace_id', 'terraform_project_id', 'terraform_organization_id'], ['terraform_run_phase']
  ),
  aws: platform('AWS', 'the issuer of your account', ['sub']),
  google: platform('Google Cloud', 'https://accounts.google.com', ['sub']),
  azure: platform('Azure', 'https://login.microsoftonline.com/ followed by the id of your tenant and /v2.0', ['oid', 'sub'])
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
  const isSimple = /^[\w.,:/@%+-]*$/.test(audience)
  const third = preset === 'github-actions'
    ? `STRONGROOM_AUDIENCE=${isSimple ? audience : `'${audience.replaceAll("'", "'\\''")}'`}`
    : preset === 'gitlab'
      ? `# of the job, under id_tokens\nSTRONGROOM_ID_TOKEN: { aud: ${JSON.stringify(audience)} }`
      : 'STRONGROOM_ID_TOKEN_FILE=/var/run/strongroom/token'
  return `STRONGROOM_URL=${url}\nSTRONGROOM_WORKLOAD=${public_id}\n${third}`
}
