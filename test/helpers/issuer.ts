// A stand-in for the issuer of a platform: https on loopback with an authority of its own, and its key sets.
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import type { ServerResponse } from 'node:http'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { CompactSign, exportJWK, generateKeyPair, type CryptoKey, type JWK } from 'jose'

export const AUDIENCE = 'https://strongroom.example.com'

export interface SigningKey { alg: string, kid: string, privateKey: CryptoKey, jwk: JWK }

/** How the issuer answers a path: a function that writes the response. Default: the document of the path. */
export type Answers = (path: string, response: ServerResponse, document: string) => void

export const FAULTS = {
  /** Never answers. */
  slow: () => {},
  /** Sends a byte at a time. */
  dripping: (_path, response) => {
    const timer = setInterval(() => response.write(' '), 20)
    response.once('close', () => clearInterval(timer))
  },
  large: (_path, response, document) => { response.end(document.padEnd(256 * 1024 + 1)) },
  redirecting: (path, response) => { response.writeHead(302, { location: `/elsewhere${path}` }).end() },
  'wrong issuer': (_path, response, document) => {
    response.end(JSON.stringify({ ...JSON.parse(document), issuer: 'https://other.example.com' }))
  },
  failing: (_path, response, document) => { response.writeHead(500).end(document) },
  'not JSON': (_path, response) => { response.end('<html>') },
  'other JSON': (_path, response) => { response.end('null') },
  away: (_path, response) => { response.destroy() }
} satisfies Record<string, Answers>

export interface TestIssuer {
  /** The `iss` of its tokens. */
  issuer: string
  host: string
  /** OUTGOING_ALLOW and OUTGOING_CA, with which a service reaches it. */
  env: { OUTGOING_ALLOW: string, OUTGOING_CA: string }
  /** The paths of the requests. */
  requests: string[]
  /** The members of the published key set. */
  keys: unknown[]
  /** The key that signs. */
  key: SigningKey
  /** The answers; undefined: the documents. */
  answers: Answers | undefined
  /** Makes a new key that signs, and publishes it alone. */
  rotate (alg?: string): Promise<SigningKey>
  /** Signs the claims. Those that are missing are valid; undefined removes one. */
  sign (claims?: Record<string, unknown>, header?: Record<string, unknown>, key?: SigningKey): Promise<string>
  stop (): Promise<void>
}

let made = 0

export async function makeKey (alg = 'ES256', kid = `key-${++made}`): Promise<SigningKey> {
  const { publicKey, privateKey } = await generateKeyPair(alg, { extractable: true })
  return { alg, kid, privateKey, jwk: { ...await exportJWK(publicKey), kid, alg, use: 'sig' } }
}

/** A token with any header and payload. */
export async function compact (header: Record<string, unknown>, payload: unknown, key: SigningKey): Promise<string> {
  const bytes = Buffer.from(typeof payload === 'string' ? payload : JSON.stringify(payload))
  const crit = Array.isArray(header.crit) ? header.crit.map((name) => [name, true]) : []
  return new CompactSign(bytes).setProtectedHeader({ alg: key.alg, ...header })
    .sign(key.privateKey, { crit: Object.fromEntries(crit) })
}

/** Signs the claims for an issuer. Those that are missing are valid; undefined removes one. */
export const signFor = async (
  issuer: string, key: SigningKey, claims: Record<string, unknown> = {}, header: Record<string, unknown> = {}
): Promise<string> => {
  const now = Math.floor(Date.now() / 1000)
  const payload = { iss: issuer, sub: 'job:7', aud: AUDIENCE, iat: now, exp: now + 300, ...claims }
  return compact({ kid: key.kid, typ: 'JWT', ...header }, payload, key)
}

/**
 * Starts an issuer at `https://localhost:<port><path>`, and stops it after the test. All issuers of the process have
 * one authority, except with `isApart`.
 */
export async function startIssuer (
  t: { teardown (fn: () => unknown): void }, { path = '', isApart = false } = {}
): Promise<TestIssuer> {
  if (!isApart) shared ??= makeCertificate()
  const { authority, key, certificate } = isApart ? makeCertificate() : shared!
  const requests: string[] = []
  const server = createServer({ key: readFileSync(key), cert: readFileSync(certificate) }, (request, response) => {
    const asked = request.url ?? ''
    requests.push(asked)
    const document = documentOf(asked)
    response.on('error', () => {})
    response.setHeader('content-type', 'application/json')
    if (made.answers !== undefined) made.answers(asked, response, document ?? '')
    else response.writeHead(document === undefined ? 404 : 200).end(document)
  }).listen(0, 'localhost')
  await once(server, 'listening')
  const host = `localhost:${(server.address() as AddressInfo).port}`
  const issuer = `https://${host}${path}`
  const base = path.replace(/\/$/, '')

  function documentOf (asked: string) {
    if (asked === `${base}/.well-known/openid-configuration`) {
      return JSON.stringify({ issuer, jwks_uri: `https://${host}${base}/keys` })
    }
    return asked.replace(/^\/elsewhere/, '') === `${base}/keys` ? JSON.stringify({ keys: made.keys }) : undefined
  }

  const first = await makeKey()
  const made: TestIssuer = {
    issuer,
    host,
    env: { OUTGOING_ALLOW: host, OUTGOING_CA: authority },
    requests,
    keys: [first.jwk],
    key: first,
    answers: undefined,
    rotate: async (alg) => {
      made.key = await makeKey(alg)
      made.keys = [made.key.jwk]
      return made.key
    },
    sign: (claims, header, key = made.key) => signFor(issuer, key, claims, header),
    stop: async () => {
      if (!server.listening) return
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    }
  }
  t.teardown(made.stop)
  return made
}

let shared: ReturnType<typeof makeCertificate> | undefined

/** A certificate for `localhost`, `issuer.test` and the addresses of loopback. */
function makeCertificate () {
  const dir = mkdtempSync(join(tmpdir(), 'strongroom-issuer-'))
  process.once('exit', () => rmSync(dir, { recursive: true, force: true }))
  const at = (name: string) => join(dir, name)
  const openssl = (...args: string[]) => {
    const { status, stderr } = spawnSync('openssl', args, { cwd: dir })
    if (status !== 0) throw new Error(String(stderr))
  }
  const newKey = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-subj', '/CN=issuer']
  openssl('req', '-x509', ...newKey, '-days', '2', '-keyout', 'authority.key', '-out', 'authority.crt')
  openssl('req', ...newKey, '-keyout', 'key', '-out', 'request')
  writeFileSync(at('names'), 'subjectAltName=DNS:localhost,DNS:issuer.test,IP:127.0.0.1,IP:::1')
  openssl(
    'x509', '-req', '-in', 'request', '-CA', 'authority.crt', '-CAkey', 'authority.key', '-CAcreateserial', '-days', '2',
    '-extfile', 'names', '-out', 'certificate'
  )
  return { authority: at('authority.crt'), key: at('key'), certificate: at('certificate') }
}

/**
 * The claims of each platform beside `iss`, `aud` and times, in the shapes of their documentation.
 *
 * - github-actions: docs.github.com, "OpenID Connect reference"; the `sub` with ids is of repositories since 2026-07-15
 * - gitlab: docs.gitlab.com, "OpenID Connect (OIDC) Authentication Using ID Tokens"
 * - kubernetes: kubernetes.io, "Managing Service Accounts", bound service account tokens
 * - buildkite: buildkite.com, "OIDC in Buildkite Pipelines", with the optional claims
 * - circleci: circleci.com, "Use OpenID Connect tokens in jobs"
 * - hcp-terraform: developer.hashicorp.com, "Workload identity tokens"
 * - aws: docs.aws.amazon.com, "Understanding token claims" of GetWebIdentityToken
 * - google: cloud.google.com, "Verify the identity of instances"
 * - azure: learn.microsoft.com, "Access token claims reference"
 */
export const PLATFORM_CLAIMS = {
  'github-actions': {
    jti: '0ab1c2d3-example',
    sub: 'repo:octo-org@65/octo-repo@74:environment:prod',
    environment: 'prod',
    ref: 'refs/heads/main',
    sha: '7ac1b5f0e1f3d7b0b9a7c5f6a1e2d3c4b5a69788',
    repository: 'octo-org/octo-repo',
    repository_owner: 'octo-org',
    actor_id: '12',
    repository_visibility: 'private',
    repository_id: '74',
    repository_owner_id: '65',
    run_id: '8912345678',
    run_number: '10',
    run_attempt: '2',
    runner_environment: 'github-hosted',
    actor: 'octocat',
    workflow: 'deploy',
    head_ref: '',
    base_ref: '',
    event_name: 'workflow_dispatch',
    ref_type: 'branch',
    job_workflow_ref: 'octo-org/octo-automation/.github/workflows/oidc.yml@refs/heads/main'
  },
  gitlab: {
    jti: 'c82eeb0c-5c6f-4a33-abf5-4c474b92b558',
    sub: 'project_path:my-group/my-project:ref_type:branch:ref:feature-branch-1',
    namespace_id: '72',
    namespace_path: 'my-group',
    project_id: '20',
    project_path: 'my-group/my-project',
    user_id: '1',
    user_login: 'sample-user',
    user_email: 'sample-user@example.com',
    user_access_level: 'developer',
    pipeline_id: '574',
    pipeline_source: 'push',
    job_id: '302',
    ref: 'feature-branch-1',
    ref_type: 'branch',
    ref_path: 'refs/heads/feature-branch-1',
    ref_protected: 'true',
    groups_direct: ['my-group'],
    environment: 'test-environment2',
    environment_protected: 'false',
    deployment_tier: 'testing',
    runner_id: 1,
    runner_environment: 'self-hosted',
    sha: '714a629c0b401fdce83e847fc9589983fc6f46bc',
    project_visibility: 'public'
  },
  kubernetes: {
    jti: 'aed34954-b33a-4142-b1ec-389d6bbb4936',
    sub: 'system:serviceaccount:my-namespace:my-serviceaccount',
    'kubernetes.io': {
      namespace: 'my-namespace',
      node: { name: 'my-node', uid: '646e7c5e-32d6-4d42-9dbd-e504e6cbe6b1' },
      pod: { name: 'my-pod', uid: '5e0bd49b-f040-43b0-99b7-22765a53f7f3' },
      serviceaccount: { name: 'my-serviceaccount', uid: '14ee3fa4-a7e2-420f-9f9a-dbc4507c3798' },
      warnafter: 1_700_003_607
    }
  },
  buildkite: {
    sub: 'organization:acme-inc:pipeline:super-duper-app:ref:refs/heads/main:commit:9f3182061f1e2cca4702c368cbc039b7dc9d4485:step:build',
    organization_slug: 'acme-inc',
    organization_id: '01890000-0000-7000-8000-000000000001',
    pipeline_slug: 'super-duper-app',
    pipeline_id: '01890000-0000-7000-8000-000000000002',
    build_number: 1,
    build_branch: 'main',
    build_commit: '9f3182061f1e2cca4702c368cbc039b7dc9d4485',
    step_key: 'build',
    job_id: '0184990a-477b-4fa8-9968-496074483cee',
    agent_id: '0184990a-4782-42b5-afc1-16715b10b8ff'
  },
  circleci: {
    sub: 'org/6a1f7f4c-0000-4000-8000-000000000001/project/6a1f7f4c-0000-4000-8000-000000000002/user/6a1f7f4c-0000-4000-8000-000000000003',
    'oidc.circleci.com/project-id': '6a1f7f4c-0000-4000-8000-000000000002',
    'oidc.circleci.com/context-ids': ['6a1f7f4c-0000-4000-8000-000000000004'],
    'oidc.circleci.com/org-id': '6a1f7f4c-0000-4000-8000-000000000001',
    'oidc.circleci.com/workflow-id': '6a1f7f4c-0000-4000-8000-000000000005',
    'oidc.circleci.com/job-id': '6a1f7f4c-0000-4000-8000-000000000006',
    'oidc.circleci.com/ssh-rerun': false,
    'oidc.circleci.com/vcs-origin': 'github.com/acme/app',
    'oidc.circleci.com/vcs-ref': 'refs/heads/main'
  },
  'hcp-terraform': {
    jti: '1192426d-b525-4fde-9d61-f238be437bbd',
    sub: 'organization:my-org:project:Default Project:workspace:my-workspace:run_phase:apply',
    terraform_run_phase: 'apply',
    terraform_workspace_id: 'ws-mbsd5E3Ktt5Rg2Xm',
    terraform_workspace_name: 'my-workspace',
    terraform_organization_id: 'org-GRNbCjYNpBB6NEBH',
    terraform_organization_name: 'my-org',
    terraform_project_id: 'prj-vegSA59s1XPwMr2t',
    terraform_project_name: 'Default Project',
    terraform_full_workspace: 'organization:my-org:project:Default Project:workspace:my-workspace',
    terraform_run_id: 'run-X3n1AUXNGWbfECsJ'
  },
  aws: {
    jti: '1a2b3c4d-5e6f-4a7b-8c9d-0e1f2a3b4c5d',
    sub: 'arn:aws:iam::123456789012:role/DataProcessingRole',
    'https://sts.amazonaws.com/': {
      aws_account: '123456789012',
      source_region: 'us-east-1',
      org_id: 'o-a1b2c3d4e5',
      principal_id: 'arn:aws:iam::123456789012:role/DataProcessingRole'
    }
  },
  google: {
    sub: '113774264463038321964',
    azp: '113774264463038321964',
    email: 'deploy@my-project.iam.gserviceaccount.com',
    email_verified: true
  },
  azure: {
    sub: 'b9b7f0b4-0000-4000-8000-000000000001',
    oid: 'b9b7f0b4-0000-4000-8000-000000000001',
    tid: 'b9b7f0b4-0000-4000-8000-000000000002',
    appid: 'b9b7f0b4-0000-4000-8000-000000000003',
    appidacr: '2',
    idp: 'https://sts.windows.net/b9b7f0b4-0000-4000-8000-000000000002/',
    ver: '1.0'
  }
} as const
