import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { isScopeOfProject, SCOPE_NAMES } from '../../schemas/scopes.ts'
import type { Answer, Caller, TestApp } from './app.ts'
import { issuePair, makePerson, makeTeam, type Person } from './people.ts'

// One value, because an update to the stored value sends other statements than an update to a new value.
const IN_AN_HOUR = new Date(Date.now() + 3_600_000).toISOString()

// All operations of the API, and test data (`World`) on which each operation works, for tests of the whole route table.

export type Access = 'public' | 'authenticated' | (typeof SCOPE_NAMES)[number]
export type Depth = 'organization' | 'project' | 'target' | 'environment'

export interface Row {
  /** Method and path, as in the OpenAPI document. */
  at: string
  access: Access
  /** The level that the operation acts on. A token that is restricted to another level gets 404. */
  depth: Depth
  body?: object | ((ids: Record<string, string>) => object)
  /** The query with the parameters that the operation requires. */
  query?: string | undefined
  /** The status of a public operation for a request without input; default: 200. */
  public?: number
  /** The operation acts on the client-managed project. */
  client?: true
  /** Path parameter → name in `ids`, if the names differ. */
  named?: Record<string, string>
  /** The status for a restricted token, if it does not follow from `depth`. */
  narrowed?: number
  /** A token that is restricted to a part of the project gets only this part. */
  filtersLevels?: true
  /** The scope that this body requires, in addition to `access` or instead of it. */
  needs?: Access
  /** Further scopes that the operation always requires. */
  also?: (typeof SCOPE_NAMES)[number] | readonly (typeof SCOPE_NAMES)[number][]
  /** Scopes of which one is enough for a request that asks for less. */
  lessAccess?: readonly (typeof SCOPE_NAMES)[number][]
  /** Scopes that the caller needs because the granted, revoked or changed role or token includes them. */
  holding?: (typeof SCOPE_NAMES)[number] | readonly (typeof SCOPE_NAMES)[number][]
  /** Only users can call the operation, outside of organizations; an API token gets 422. */
  byPerson?: true
  whenInactive?: true
  /** SQL that prepares the test data, so that the operation has an effect. */
  before?: string
  /**
   * Further requests, each of which records one event. They differ from the request with `body` by a query, another
   * body, or headers, and some record another event.
   */
  reveals?: { query?: string, body?: object, headers?: Record<string, string> }[]
}

const BILLING = '/api/v1/organizations/{organization}/billing'
const SUBSCRIBED = `INSERT INTO subscriptions (organization_id, id, plan, interval, currency, amount, anchor, period_start,
  period_end, invoice_id) SELECT '{organization}', '01JQZ7D3K5M7P9R1T3V5X7Z9B0', 'pro', 'month', 'EUR', 2900, now(), now(),
  now() + interval '1 month', id FROM invoices WHERE organization_id = '{organization}' LIMIT 1
  ON CONFLICT DO NOTHING`
const UNSUBSCRIBED = "DELETE FROM subscriptions WHERE organization_id = '{organization}'"

const OLD = '/api/v1/organizations/{organization}/projects'
/** Operations on the whole organization; restricted tokens get 404. */
const WHOLE = { depth: 'organization', narrowed: 404 } as const
const LEVEL = { project: '{project}', target: '{target}', environment: '{environment}' }
const KEY = { project: '{project}', action: 'key:retrieve' }

const NAME_HISTORY: Pick<Row, 'access' | 'also' | 'query' | 'reveals'> = {
  access: 'secret:read',
  also: ['secret:decrypt', 'secret:history'],
  query: '?name=A',
  reveals: [{ query: '?name=A&values=true' }]
}

export const BLOB = Buffer.alloc(40).toString('base64')
/** The scopes of the weakest project role: a caller who grants the role needs them. */
const API_USER = ['secret:read', 'project:read', 'target:read', 'environment:read', 'organization:read'] as const
/** Reads that return decrypted or former documents. */
const HANDED_OUT = [{ query: '?decrypt=true' }, { query: '?at={moment}' }]
const DRY_RUN = [{ query: '?dry_run=true' }]
const TEAMS = '/api/v1/organizations/{organization}/teams'
const MEMBERS = '/api/v1/organizations/{organization}/members'
const INVITATIONS = '/api/v1/organizations/{organization}/invitations'

const WORKLOADS = '/api/v1/organizations/{organization}/workloads'

const proof = (key: number) => Buffer.alloc(32, key).toString('base64')
export const clientKey = (key: number) =>
  ({ key_check: proof(key), key_check_salt: Buffer.alloc(16).toString('base64'), key_check_iterations: 600_000 })

/** A trust rule whose keys need no request to the issuer. */
export const WORKLOAD = {
  name: 'Deployment',
  issuer: 'https://issuer.example',
  jwks: { keys: [{ kty: 'OKP', crv: 'Ed25519', kid: 'k1', x: '11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo' }] },
  claims: { sub: 'deployment' },
  scopes: ['secret:read']
}

/** Operations with their scopes, in an order in which the test data of each operation still exists. */
const ROWS: Record<string, Row> = {
  getHealth: { at: 'GET /healthz', access: 'public', depth: 'organization' },
  getReadiness: { at: 'GET /readyz', access: 'public', depth: 'organization' },
  sendTelemetry: { at: 'POST /api/v1/cli/telemetry', access: 'public', depth: 'organization' },
  getAuthorizationServer: {
    at: 'GET /.well-known/oauth-authorization-server', access: 'public', depth: 'organization'
  },
  getProtectedResource: { at: 'GET /.well-known/oauth-protected-resource', access: 'public', depth: 'organization' },
  getAccessToken: { at: 'POST /api/oauth/token', access: 'public', depth: 'organization', body: {}, public: 400 },
  revokeToken: { at: 'POST /api/oauth/revoke', access: 'public', depth: 'organization', body: {} },
  getUser: { at: 'GET /api/v1/user', access: 'authenticated', depth: 'organization', whenInactive: true },
  listOrganizations: {
    at: 'GET /api/v1/organizations', access: 'authenticated', depth: 'organization', whenInactive: true
  },
  createOrganization: {
    at: 'POST /api/v1/organizations',
    access: 'organization:create',
    depth: 'organization',
    body: { name: 'New' },
    byPerson: true
  },
  updateOrganization: {
    at: 'PATCH /api/v1/organizations/{organization}',
    access: 'organization:update',
    depth: 'organization',
    body: { name: 'Other' },
    narrowed: 404
  },
  putOrganization: {
    at: 'PUT /api/v1/organizations/{organization}',
    access: 'organization:update',
    depth: 'organization',
    body: { name: 'Other' },
    narrowed: 404
  },
  getOrganization: {
    at: 'GET /api/v1/organizations/{organization}',
    access: 'organization:read',
    depth: 'organization',
    whenInactive: true
  },
  getOwnOrganization: {
    at: 'GET /api/v1/organization', access: 'authenticated', depth: 'organization', whenInactive: true
  },
  listProjects: { at: 'GET /api/v1/{organization}/projects', access: 'project:read', depth: 'organization' },
  listProjectsLongPath: { at: `GET ${OLD}`, access: 'project:read', depth: 'organization' },
  getProject: { at: 'GET /api/v1/{organization}/{project}', access: 'project:read', depth: 'project' },
  getProjectLongPath: { at: `GET ${OLD}/{project}`, access: 'project:read', depth: 'project' },
  listTargets: { at: 'GET /api/v1/{organization}/{project}/targets', access: 'target:read', depth: 'project' },
  listTargetsLongPath: { at: `GET ${OLD}/{project}/targets`, access: 'target:read', depth: 'project' },
  getTarget: { at: 'GET /api/v1/{organization}/{project}/{target}', access: 'target:read', depth: 'target' },
  getTargetLongPath: { at: `GET ${OLD}/{project}/targets/{target}`, access: 'target:read', depth: 'target' },
  listEnvironments: {
    at: 'GET /api/v1/{organization}/{project}/{target}/environments', access: 'environment:read', depth: 'target'
  },
  listEnvironmentsLongPath: {
    at: `GET ${OLD}/{project}/targets/{target}/environments`, access: 'environment:read', depth: 'target'
  },
  getEnvironment: {
    at: 'GET /api/v1/{organization}/{project}/{target}/{environment}', access: 'environment:read', depth: 'environment'
  },
  getEnvironmentLongPath: {
    at: `GET ${OLD}/{project}/targets/{target}/environments/{environment}`,
    access: 'environment:read',
    depth: 'environment'
  },
  readProjectSecrets: {
    at: 'GET /api/v1/{organization}/{project}/secrets',
    access: 'secret:read',
    depth: 'project',
    reveals: HANDED_OUT
  },
  readProjectSecretsLongPath: {
    at: `GET ${OLD}/{project}/secrets`, access: 'secret:read', depth: 'project', reveals: HANDED_OUT
  },
  readTargetSecrets: {
    at: 'GET /api/v1/{organization}/{project}/{target}/secrets',
    access: 'secret:read',
    depth: 'target',
    reveals: HANDED_OUT
  },
  readTargetSecretsLongPath: {
    at: `GET ${OLD}/{project}/targets/{target}/secrets`,
    access: 'secret:read',
    depth: 'target',
    reveals: HANDED_OUT
  },
  readEnvironmentSecrets: {
    at: 'GET /api/v1/{organization}/{project}/{target}/{environment}/secrets',
    access: 'secret:read',
    depth: 'environment',
    reveals: HANDED_OUT
  },
  readEnvironmentSecretsLongPath: {
    at: `GET ${OLD}/{project}/targets/{target}/environments/{environment}/secrets`,
    access: 'secret:read',
    depth: 'environment',
    reveals: HANDED_OUT
  },
  readProjectValues: {
    at: 'GET /api/v1/{organization}/{project}/secrets/values',
    access: 'secret:read',
    also: 'secret:decrypt',
    depth: 'project'
  },
  readTargetValues: {
    at: 'GET /api/v1/{organization}/{project}/{target}/secrets/values',
    access: 'secret:read',
    also: 'secret:decrypt',
    depth: 'target'
  },
  readEnvironmentValues: {
    at: 'GET /api/v1/{organization}/{project}/{target}/{environment}/secrets/values',
    access: 'secret:read',
    also: 'secret:decrypt',
    depth: 'environment'
  },
  readProjectNames: {
    at: 'GET /api/v1/{organization}/{project}/secrets/names',
    access: 'secret:read',
    also: 'secret:decrypt',
    depth: 'project'
  },
  readTargetNames: {
    at: 'GET /api/v1/{organization}/{project}/{target}/secrets/names',
    access: 'secret:read',
    also: 'secret:decrypt',
    depth: 'target'
  },
  readEnvironmentNames: {
    at: 'GET /api/v1/{organization}/{project}/{target}/{environment}/secrets/names',
    access: 'secret:read',
    also: 'secret:decrypt',
    depth: 'environment'
  },
  readProjectMatrix: {
    at: 'GET /api/v1/{organization}/{project}/secrets/matrix',
    access: 'secret:read',
    also: 'secret:decrypt',
    lessAccess: ['secret:read', 'secret:history'],
    depth: 'project',
    filtersLevels: true
  },
  compareProjectSecrets: {
    at: 'GET /api/v1/{organization}/{project}/secrets/diff',
    access: 'secret:read',
    also: 'secret:decrypt',
    depth: 'project',
    query: '?from=project&to=project',
    reveals: [{ query: '?from=project&to=project&values=true' }, { query: '?from={moment}&to={moment}' }]
  },
  compareTargetSecrets: {
    at: 'GET /api/v1/{organization}/{project}/{target}/secrets/diff',
    access: 'secret:read',
    also: 'secret:decrypt',
    depth: 'target',
    query: '?from=target&to=target',
    reveals: [{ query: '?from=target&to=target&values=true' }, { query: '?from={moment}&to={moment}' }]
  },
  compareEnvironmentSecrets: {
    at: 'GET /api/v1/{organization}/{project}/{target}/{environment}/secrets/diff',
    access: 'secret:read',
    also: 'secret:decrypt',
    depth: 'environment',
    query: '?from=environment&to=environment',
    reveals: [{ query: '?from=environment&to=environment&values=true' }, { query: '?from={moment}&to={moment}' }]
  },
  readProjectNameHistory: {
    at: 'GET /api/v1/{organization}/{project}/secrets/names/history', ...NAME_HISTORY, depth: 'project'
  },
  readTargetNameHistory: {
    at: 'GET /api/v1/{organization}/{project}/{target}/secrets/names/history', ...NAME_HISTORY, depth: 'target'
  },
  readEnvironmentNameHistory: {
    at: 'GET /api/v1/{organization}/{project}/{target}/{environment}/secrets/names/history',
    ...NAME_HISTORY,
    depth: 'environment'
  },
  searchNames: {
    at: 'GET /api/v1/{organization}/secrets/names',
    access: 'secret:read',
    also: 'secret:decrypt',
    depth: 'organization',
    query: '?search=a'
  },
  retrieveSecrets: {
    at: 'POST /api/v1/{organization}/secrets/retrieve',
    access: 'authenticated',
    needs: 'secret:decrypt',
    depth: 'environment',
    body: { ...LEVEL, action: 'decrypt' },
    reveals: [{ body: KEY }]
  },
  retrieveSecretsLongPath: {
    at: 'POST /api/v1/organizations/{organization}/secrets/retrieve',
    access: 'authenticated',
    needs: 'secret:read',
    depth: 'environment',
    body: LEVEL,
    reveals: [{ body: KEY }, { body: { ...LEVEL, action: 'decrypt' } }]
  },
  getEncryptionKey: {
    at: 'GET /api/v1/{organization}/{project}/encryption-key', access: 'key:retrieve', depth: 'project'
  },
  listEncryptionKeys: {
    at: 'GET /api/v1/{organization}/{project}/encryption-key/history', access: 'key:retrieve', depth: 'project'
  },
  rotateEncryptionKey: {
    at: 'POST /api/v1/{organization}/{project}/encryption-key/rotate',
    access: 'key:rotate',
    depth: 'project',
    body: {},
    // The second request repeats the first request.
    reveals: [{ headers: { 'idempotency-key': 'again' } }, { headers: { 'idempotency-key': 'again' } }]
  },
  listPendingVersions: {
    at: 'POST /api/v1/{organization}/{project}/secrets/re-encrypt-history/pending',
    access: 'key:rotate',
    depth: 'project',
    body: {},
    client: true
  },
  reEncryptHistory: {
    at: 'POST /api/v1/{organization}/{project}/secrets/re-encrypt-history',
    access: 'key:rotate',
    depth: 'project',
    body: ({ pending }) => ({ versions: [{ id: Number(pending), content: BLOB }], key_proof: proof(2) }),
    client: true
  },
  rotateClientKeys: {
    at: 'POST /api/v1/{organization}/{project}/secrets/rotate-client-keys',
    access: 'key:rotate',
    also: 'secret:write',
    depth: 'project',
    body: ({ secret }) => ({ secrets: [{ id: secret, content: BLOB }], ...clientKey(3) }),
    client: true
  },
  changeProjectSecrets: {
    at: 'PATCH /api/v1/{organization}/{project}/secrets',
    access: 'secret:write',
    also: 'secret:decrypt',
    depth: 'project',
    body: { set: { HELLO: 'again' } },
    // Changes nothing, but reveals that the document has this value.
    reveals: [{ body: { set: { HELLO: 'again' } } }]
  },
  changeTargetSecrets: {
    at: 'PATCH /api/v1/{organization}/{project}/{target}/secrets',
    access: 'secret:write',
    also: 'secret:decrypt',
    depth: 'target',
    body: { set: { HELLO: 'again' } },
    // Changes nothing, but reveals that the document has this value.
    reveals: [{ body: { set: { HELLO: 'again' } } }]
  },
  changeEnvironmentSecrets: {
    at: 'PATCH /api/v1/{organization}/{project}/{target}/{environment}/secrets',
    access: 'secret:write',
    also: 'secret:decrypt',
    depth: 'environment',
    body: { set: { HELLO: 'again' } },
    // Changes nothing, but reveals that the document has this value.
    reveals: [{ body: { set: { HELLO: 'again' } } }]
  },
  storeSecrets: {
    at: 'POST /api/v1/{organization}/secrets/store',
    access: 'secret:write',
    depth: 'environment',
    body: { ...LEVEL, plaintext: 'B=2' },
    reveals: DRY_RUN
  },
  listVersions: {
    at: 'POST /api/v1/{organization}/secrets/versions', access: 'secret:history', depth: 'environment', body: LEVEL
  },
  getVersion: {
    at: 'GET /api/v1/{organization}/secrets/versions/{version}', access: 'secret:history', depth: 'environment'
  },
  readVersionNames: {
    at: 'GET /api/v1/{organization}/secrets/versions/{version}/names',
    access: 'secret:history',
    also: 'secret:decrypt',
    depth: 'environment'
  },
  restoreVersion: {
    at: 'POST /api/v1/{organization}/secrets/versions/{version}/restore',
    access: 'secret:restore',
    depth: 'environment',
    body: {},
    reveals: [...DRY_RUN, { ...DRY_RUN[0], body: { content: Buffer.alloc(40).toString('base64') } }]
  },
  deleteSecrets: {
    at: 'POST /api/v1/{organization}/secrets/delete',
    access: 'secret:write',
    depth: 'environment',
    body: LEVEL,
    // Another document, because the first one is deleted.
    reveals: [{ ...DRY_RUN[0], body: { project: '{project}' } }]
  },
  restoreProject: {
    at: 'POST /api/v1/{organization}/{project}/restore-to',
    access: 'secret:restore',
    also: 'secret:write',
    depth: 'project',
    body: ({ moment }) => ({ at: moment, confirmed: true }),
    reveals: DRY_RUN
  },
  deleteVersion: {
    at: 'DELETE /api/v1/{organization}/secrets/versions/{version}', access: 'secret:purge', depth: 'environment'
  },
  purgeVersions: {
    at: 'POST /api/v1/{organization}/secrets/versions/purge',
    access: 'secret:purge',
    depth: 'environment',
    body: { ...LEVEL, confirmed: true }
  },
  listMembers: { at: `GET ${MEMBERS}`, access: 'member:read', ...WHOLE },
  getMember: { at: `GET ${MEMBERS}/{member}`, access: 'member:read', ...WHOLE },
  getMemberAccess: {
    at: `GET ${MEMBERS}/{member}/access`, access: 'organization:read', also: ['member:read', 'team:read'], ...WHOLE
  },
  inviteMember: {
    at: `POST ${MEMBERS}`,
    access: 'member:create',
    holding: API_USER,
    ...WHOLE,
    body: ({ newcomer }) => ({ email: newcomer, role: 'api_user' })
  },
  listInvitations: { at: `GET ${INVITATIONS}`, access: 'member:read', ...WHOLE },
  getInvitation: { at: `GET ${INVITATIONS}/{invitation}`, access: 'member:read', ...WHOLE },
  sendInvitation: {
    at: `POST ${INVITATIONS}/{invitation}/send`, access: 'member:create', holding: API_USER, ...WHOLE, body: {}
  },
  withdrawInvitation: {
    at: `DELETE ${INVITATIONS}/{invitation}`, access: 'member:delete', holding: API_USER, ...WHOLE
  },
  listOwnInvitations: {
    at: 'GET /api/v1/user/invitations',
    access: 'authenticated',
    depth: 'organization',
    byPerson: true,
    whenInactive: true
  },
  acceptInvitation: {
    at: 'POST /api/v1/user/invitations/{invitation}/accept',
    access: 'organization:create',
    depth: 'organization',
    body: {},
    named: { invitation: 'accepted' },
    byPerson: true
  },
  declineInvitation: {
    at: 'DELETE /api/v1/user/invitations/{invitation}',
    access: 'member:delete',
    depth: 'organization',
    named: { invitation: 'declined' },
    byPerson: true
  },
  updateMember: {
    at: `PATCH ${MEMBERS}/{member}`,
    access: 'member:update',
    holding: API_USER,
    ...WHOLE,
    body: { role: 'api_user' }
  },
  putMember: {
    at: `PUT ${MEMBERS}/{member}`,
    access: 'member:update',
    holding: API_USER,
    ...WHOLE,
    body: { role: 'api_user' }
  },
  listTeams: { at: `GET ${TEAMS}`, access: 'team:read', depth: 'organization', narrowed: 404 },
  getTeam: { at: `GET ${TEAMS}/{team}`, access: 'team:read', depth: 'organization', narrowed: 404 },
  createTeam: {
    at: `POST ${TEAMS}`, access: 'team:create', depth: 'organization', body: { name: 'New' }, narrowed: 404
  },
  updateTeam: {
    at: `PATCH ${TEAMS}/{team}`, access: 'team:update', depth: 'organization', body: { name: 'Other' }, narrowed: 404
  },
  putTeam: {
    at: `PUT ${TEAMS}/{team}`, access: 'team:update', depth: 'organization', body: { name: 'Other' }, narrowed: 404
  },
  setTeamProject: {
    at: `PUT ${TEAMS}/{team}/projects/{project}`,
    access: 'team:update',
    holding: API_USER,
    depth: 'project',
    body: { role: 'api_user' },
    narrowed: 404
  },
  patchTeamProject: {
    at: `PATCH ${TEAMS}/{team}/projects/{project}`,
    access: 'team:update',
    holding: API_USER,
    depth: 'project',
    body: { role: 'api_user' },
    narrowed: 404
  },
  addTeamMember: {
    at: `PUT ${TEAMS}/{team}/members/{member}`,
    access: 'team:update',
    holding: API_USER,
    depth: 'organization',
    body: {},
    narrowed: 404
  },
  removeTeamMember: {
    at: `DELETE ${TEAMS}/{team}/members/{member}`,
    access: 'team:update',
    holding: API_USER,
    depth: 'organization',
    narrowed: 404
  },
  removeTeamProject: {
    at: `DELETE ${TEAMS}/{team}/projects/{project}`,
    access: 'team:update',
    holding: API_USER,
    depth: 'project',
    narrowed: 404
  },
  deleteTeam: {
    at: `DELETE ${TEAMS}/{team}`, access: 'team:delete', holding: API_USER, depth: 'organization', narrowed: 404
  },
  listAuditEvents: {
    at: 'GET /api/v1/{organization}/audit-events', access: 'organization:read', depth: 'organization'
  },
  countAuditEvents: {
    at: 'GET /api/v1/{organization}/audit-events/counts', access: 'organization:read', depth: 'organization'
  },
  exportAuditEvents: {
    at: 'GET /api/v1/{organization}/audit-events/export', access: 'organization:read', depth: 'organization'
  },
  listApiTokens: {
    at: 'GET /api/v1/organizations/{organization}/api-keys', access: 'api-token:read', depth: 'organization'
  },
  createApiToken: {
    at: 'POST /api/v1/organizations/{organization}/api-keys',
    access: 'api-token:create',
    depth: 'organization',
    // A token must expire before the grant of the user who creates the token.
    body: { name: 'New', abilities: ['api-token:create'], expires_at: IN_AN_HOUR },
    narrowed: 403
  },
  getApiToken: {
    at: 'GET /api/v1/organizations/{organization}/api-keys/{id}',
    access: 'api-token:read',
    depth: 'organization',
    narrowed: 404
  },
  updateApiToken: {
    at: 'PUT /api/v1/organizations/{organization}/api-keys/{id}',
    access: 'api-token:update',
    holding: 'secret:read',
    depth: 'organization',
    // For the same reason as in `createApiToken`.
    body: { name: 'Other', expires_at: IN_AN_HOUR },
    narrowed: 404
  },
  patchApiToken: {
    at: 'PATCH /api/v1/organizations/{organization}/api-keys/{id}',
    access: 'api-token:update',
    holding: 'secret:read',
    depth: 'organization',
    // For the same reason as in `createApiToken`.
    body: { name: 'Other', expires_at: IN_AN_HOUR },
    narrowed: 404
  },
  rotateApiToken: {
    at: 'POST /api/v1/organizations/{organization}/api-keys/{id}/rotate',
    access: 'api-token:create',
    also: 'api-token:delete',
    holding: 'secret:read',
    depth: 'organization',
    body: { overlap_seconds: 0 },
    narrowed: 404
  },
  listWorkloads: { at: `GET ${WORKLOADS}`, access: 'api-token:read', depth: 'organization' },
  createWorkload: {
    at: `POST ${WORKLOADS}`,
    access: 'api-token:create',
    holding: 'secret:read',
    depth: 'organization',
    body: WORKLOAD,
    narrowed: 403
  },
  getWorkload: {
    at: `GET ${WORKLOADS}/{workload}`, access: 'api-token:read', depth: 'organization', narrowed: 404
  },
  updateWorkload: {
    at: `PATCH ${WORKLOADS}/{workload}`,
    access: 'api-token:update',
    holding: 'secret:read',
    depth: 'organization',
    body: { enabled: false },
    narrowed: 404
  },
  testWorkload: {
    at: `POST ${WORKLOADS}/{workload}/test`,
    access: 'api-token:read',
    depth: 'organization',
    body: { token: 'eyJhbGciOiJFUzI1NiJ9.e30.c2lnbmF0dXJl' },
    narrowed: 404
  },
  createProject: {
    at: 'POST /api/v1/{organization}/projects',
    access: 'project:create',
    depth: 'organization',
    body: { name: 'New' },
    narrowed: 404
  },
  createTarget: {
    at: 'POST /api/v1/{organization}/{project}/targets',
    access: 'target:create',
    depth: 'project',
    body: { name: 'New' }
  },
  createEnvironment: {
    at: 'POST /api/v1/{organization}/{project}/{target}/environments',
    access: 'environment:create',
    depth: 'target',
    body: { name: 'New' }
  },
  updateProject: {
    at: 'PATCH /api/v1/{organization}/{project}', access: 'project:update', depth: 'project', body: { name: 'Other' }
  },
  putProject: {
    at: 'PUT /api/v1/{organization}/{project}', access: 'project:update', depth: 'project', body: { name: 'Other' }
  },
  updateTarget: {
    at: 'PATCH /api/v1/{organization}/{project}/{target}',
    access: 'target:update',
    depth: 'target',
    body: { name: 'Other' }
  },
  putTarget: {
    at: 'PUT /api/v1/{organization}/{project}/{target}',
    access: 'target:update',
    depth: 'target',
    body: { name: 'Other' }
  },
  updateEnvironment: {
    at: 'PATCH /api/v1/{organization}/{project}/{target}/{environment}',
    access: 'environment:update',
    depth: 'environment',
    body: { name: 'Other' }
  },
  putEnvironment: {
    at: 'PUT /api/v1/{organization}/{project}/{target}/{environment}',
    access: 'environment:update',
    depth: 'environment',
    body: { name: 'Other' }
  },
  deleteEnvironment: {
    at: 'DELETE /api/v1/{organization}/{project}/{target}/{environment}',
    access: 'environment:delete',
    depth: 'environment'
  },
  deleteTarget: { at: 'DELETE /api/v1/{organization}/{project}/{target}', access: 'target:delete', depth: 'target' },
  deleteProject: { at: 'DELETE /api/v1/{organization}/{project}', access: 'project:delete', depth: 'project' },
  removeMember: {
    at: `DELETE ${MEMBERS}/{member}`,
    access: 'authenticated',
    needs: 'member:delete',
    holding: API_USER,
    ...WHOLE
  },
  listPlans: { at: 'GET /api/v1/plans', access: 'authenticated', depth: 'organization', whenInactive: true },
  getUsage: {
    at: 'GET /api/v1/organizations/{organization}/usage',
    access: 'billing:read',
    ...WHOLE,
    whenInactive: true
  },
  getSubscription: {
    at: `GET ${BILLING}/subscription`, access: 'billing:read', ...WHOLE, whenInactive: true
  },
  getSubscriptionShortPath: {
    at: 'GET /api/v1/organizations/{organization}/subscription',
    access: 'billing:read',
    ...WHOLE,
    whenInactive: true
  },
  createSubscription: {
    at: `POST ${BILLING}/subscription`,
    access: 'billing:write',
    ...WHOLE,
    body: { plan: 'pro' },
    before: UNSUBSCRIBED
  },
  createSubscriptionShortPath: {
    at: 'POST /api/v1/organizations/{organization}/subscription',
    access: 'billing:write',
    ...WHOLE,
    body: { plan: 'pro' },
    before: UNSUBSCRIBED
  },
  updateSubscription: {
    at: `PATCH ${BILLING}/subscription`,
    access: 'billing:write',
    ...WHOLE,
    body: { plan: 'team' },
    before: SUBSCRIBED
  },
  putSubscription: {
    at: `PUT ${BILLING}/subscription`,
    access: 'billing:write',
    ...WHOLE,
    body: { plan: 'team' },
    before: SUBSCRIBED
  },
  updateSubscriptionShortPath: {
    at: 'PATCH /api/v1/organizations/{organization}/subscription',
    access: 'billing:write',
    ...WHOLE,
    body: { interval: 'year' },
    before: SUBSCRIBED
  },
  putSubscriptionShortPath: {
    at: 'PUT /api/v1/organizations/{organization}/subscription',
    access: 'billing:write',
    ...WHOLE,
    body: { interval: 'year' },
    before: SUBSCRIBED
  },
  cancelSubscription: {
    at: `DELETE ${BILLING}/subscription`,
    access: 'billing:write',
    ...WHOLE,
    before: SUBSCRIBED
  },
  cancelSubscriptionShortPath: {
    at: 'DELETE /api/v1/organizations/{organization}/subscription',
    access: 'billing:write',
    ...WHOLE,
    before: SUBSCRIBED
  },
  resumeSubscription: {
    at: `POST ${BILLING}/subscription/resume`,
    access: 'billing:write',
    ...WHOLE,
    body: {},
    before: SUBSCRIBED
  },
  listPaymentMethods: {
    at: `GET ${BILLING}/payment-methods`, access: 'billing:read', ...WHOLE, whenInactive: true
  },
  createPaymentMethod: {
    at: `POST ${BILLING}/payment-methods`,
    access: 'billing:write',
    ...WHOLE,
    body: { kind: 'manual', label: 'Wire transfer' }
  },
  createPaymentMethodShortPath: {
    at: 'POST /api/v1/organizations/{organization}/payment-methods',
    access: 'billing:write',
    ...WHOLE,
    body: { kind: 'manual', label: 'Wire transfer' }
  },
  updateDefaultPaymentMethod: {
    at: `PATCH ${BILLING}/payment-methods/{payment_method}/default`,
    access: 'billing:write',
    ...WHOLE,
    body: {}
  },
  putDefaultPaymentMethod: {
    at: `PUT ${BILLING}/payment-methods/{payment_method}/default`,
    access: 'billing:write',
    ...WHOLE,
    body: {}
  },
  deletePaymentMethod: {
    at: `DELETE ${BILLING}/payment-methods/{payment_method}`,
    access: 'billing:write',
    ...WHOLE,
    before: "UPDATE payment_methods SET is_default = false WHERE organization_id = '{organization}'"
  },
  createCharge: {
    at: `POST ${BILLING}/charges`,
    access: 'billing:write',
    ...WHOLE,
    body: { amount: 12_000, currency: 'EUR', description: 'Onboarding' }
  },
  refundCharge: {
    at: `POST ${BILLING}/charges/{charge}/refund`,
    access: 'billing:write',
    ...WHOLE,
    body: { amount: 100 }
  },
  listInvoices: {
    at: `GET ${BILLING}/invoices`, access: 'billing:read', ...WHOLE, whenInactive: true
  },
  listLatestInvoices: {
    at: 'GET /api/v1/organizations/{organization}/invoices',
    access: 'billing:read',
    ...WHOLE,
    whenInactive: true
  },
  getInvoice: {
    at: `GET ${BILLING}/invoices/{invoice}`, access: 'billing:read', ...WHOLE, whenInactive: true
  },
  downloadInvoice: {
    at: `GET ${BILLING}/invoices/{invoice}/download`,
    access: 'billing:read',
    ...WHOLE,
    whenInactive: true
  },
  redeemCoupon: {
    at: `POST ${BILLING}/coupons`,
    access: 'billing:write',
    ...WHOLE,
    body: { code: 'WORLD' },
    before: `UPDATE billing_accounts SET coupon = NULL WHERE organization_id = '{organization}';
      DELETE FROM coupon_redemptions WHERE organization_id = '{organization}'`
  },
  removeCoupon: {
    at: `DELETE ${BILLING}/coupons`,
    access: 'billing:write',
    ...WHOLE,
    before: "UPDATE billing_accounts SET coupon = 'WORLD' WHERE organization_id = '{organization}'"
  },
  deleteWorkload: {
    at: `DELETE ${WORKLOADS}/{workload}`, access: 'api-token:delete', depth: 'organization', narrowed: 404
  },
  deleteApiToken: {
    at: 'DELETE /api/v1/organizations/{organization}/api-keys/{id}', access: 'api-token:delete', depth: 'organization'
  }
}
// The last operation, because it deletes the test data.
ROWS.deleteOrganization = {
  at: 'DELETE /api/v1/organizations/{organization}',
  access: 'organization:delete',
  depth: 'organization',
  body: { confirmed: true },
  narrowed: 404
}

interface Documented {
  operationId: string
  security: Record<string, (typeof SCOPE_NAMES)[number][]>[]
  requestBody?: { content: Record<string, { example: object }> }
}
// The JSON edition, which the build generates from openapi.yaml.
const { paths } = JSON.parse(readFileSync(new URL('../../openapi-3.0.json', import.meta.url), 'utf8')) as {
  paths: Record<string, Record<string, Documented>>
}
const METHODS = ['post', 'get', 'put', 'patch', 'delete']

/** The operations without a row, from the OpenAPI document, in the order create, read, change, delete. */
export const OTHER_OPERATIONS: Record<string, Row> = Object.fromEntries(METHODS.flatMap((method) =>
  Object.entries(paths).flatMap(([path, { [method]: operation }]) =>
    operation === undefined || operation.operationId in ROWS
      ? []
      : [[operation.operationId, rowOf(`${method.toUpperCase()} ${path}`, operation)]])))

/** Every operation, in an order in which the test data of each operation still exists. */
export const OPERATIONS: Record<string, Row> = { ...OTHER_OPERATIONS, ...ROWS }

/**
 * The operations that a long test calls. These are all operations; test/project/recipe.test.ts calls only the new ones.
 */
export const CALLED = process.env.TEST_RECIPE === undefined ? OPERATIONS : OTHER_OPERATIONS

function rowOf (at: string, { security, requestBody }: Documented): Row {
  const [way] = security.map((one) => Object.values(one).flat())
  const depth = (['environment', 'target', 'project'] as const).find((level) => at.includes(`{${level}}`))
  const [media] = Object.values(requestBody?.content ?? {})
  return {
    at,
    access: way === undefined ? 'public' : way[0] ?? 'authenticated',
    ...(way !== undefined && { also: way.slice(1) }),
    // Restricted tokens get 404 for operations on the whole organization.
    ...(depth === undefined ? WHOLE : { depth }),
    ...(media !== undefined && { body: media.example })
  }
}

/**
 * The resources that these operations create. Each has the name of its path parameter, and the ids of the operations
 * that create and delete it.
 */
export const OTHER_RESOURCES = Object.entries(OTHER_OPERATIONS).flatMap(([remove, { at }]) => {
  const [, collection, parameter] = /^DELETE (.+)\/\{(\w+)\}$/.exec(at) ?? []
  const [create] = Object.entries(OTHER_OPERATIONS).find(([, row]) => row.at === `POST ${collection}`) ?? []
  return create === undefined ? [] : [{ parameter: parameter!, create, remove }]
})

/** Creates one of each of these resources. Returns the ids by the names of the path parameters. */
export async function makeOthers (caller: Caller, ids: Record<string, string>): Promise<Record<string, string>> {
  const made: Record<string, string> = {}
  for (const { parameter, create } of OTHER_RESOURCES) {
    const { method, url, payload } = requestOf(OPERATIONS[create]!, { ...ids, ...made })
    const { status, body, text } = await caller.call(method, url.replace('/api/v1', ''), payload)
    if (status !== 201) throw new Error(`${create}: ${text}`)
    made[parameter] = body.data.id
  }
  return made
}

/** Operations that only read, although their HTTP method is not GET. */
export const READS = [
  'retrieveSecrets', 'retrieveSecretsLongPath', 'listVersions', 'listPendingVersions', 'testWorkload'
]

type Paths = Record<string, Record<string, any>>
const publications = new WeakMap<TestApp['app'], Paths>()

/** The paths of the OpenAPI document, with references to parameters and responses resolved. */
export function publishedPaths ({ app }: Pick<TestApp, 'app'>): Paths {
  const known = publications.get(app)
  if (known !== undefined) return known
  const { paths, components } = app.swagger() as { paths: object, components: Record<string, Record<string, object>> }
  const resolve = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(resolve)
    if (typeof value !== 'object' || value === null) return value
    const [, kind, name] = /^#\/components\/(parameters|responses)\/(.+)$/.exec((value as { $ref?: string }).$ref ?? '') ?? []
    if (kind !== undefined) return resolve(components[kind]![name!])
    return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, resolve(member)]))
  }
  const resolved = resolve(paths) as Paths
  publications.set(app, resolved)
  return resolved
}

export interface World {
  caller: Caller
  /** A user whom two other organizations have invited, with an access token. */
  person: Person & { access: string }
  ids: Record<string, string>
  sliceOf: (...depth: Depth[]) => { project_id: string, target_id: string | null, environment_id: string | null }
}

/**
 * Creates an organization with a level, a sibling at each depth, two versions and a second token. All slugs start with
 * `prefix`.
 */
export async function settle (service: TestApp, prefix: string): Promise<World> {
  const caller = await service.organization()
  const o = caller.organization
  const create = async (path: string, name: string, more: object = {}): Promise<string> => {
    const { status, body, text } = await caller.call(
      'POST', `/${o}/${path}`, { name, slug: `${prefix}-${name}`, ...more }
    )
    if (status !== 201) throw new Error(text)
    return body.data.id
  }
  const rows: Record<string, string> = {
    project: await create('projects', 'project'),
    otherProject: await create('projects', 'other', { storage_mode: 'client', ...clientKey(0) }),
    client: await create('projects', 'client', { storage_mode: 'client', ...clientKey(1) }),
    target: await create(`${prefix}-project/targets`, 'target'),
    otherTarget: await create(`${prefix}-project/targets`, 'other'),
    environment: await create(`${prefix}-project/${prefix}-target/environments`, 'environment'),
    otherEnvironment: await create(`${prefix}-project/${prefix}-target/environments`, 'other')
  }
  const names = { project: `${prefix}-project`, target: `${prefix}-target`, environment: `${prefix}-environment` }
  let version = ''
  for (const plaintext of ['A=1', 'A=2', 'A=3']) {
    version = (await caller.call('POST', `/${o}/secrets/store`, { ...names, plaintext })).body.data.version
  }
  // One version of the client-managed project is still under the first key.
  const stored = (await caller.call(
    'POST', `/${o}/secrets/store`, { project: `${prefix}-client`, content: BLOB, key_proof: proof(1) }
  )).body.data
  await caller.call(
    'POST', `/${o}/${prefix}-client/secrets/rotate-client-keys`,
    { secrets: [{ id: stored.secret_id, content: BLOB }], ...clientKey(2) }
  )
  // Otherwise the worker would record events that belong to no operation.
  await service.app.billing.stop()
  // Test data of the billing operations: a subscription, a second payment method, a paid charge, and a coupon.
  const bill = async (path: string, body: object) => {
    const { status, body: { data }, text } = await caller.call('POST', `/organizations/${o}/billing/${path}`, body)
    if (status !== 201) throw new Error(text)
    return data
  }
  await bill('payment-methods', { kind: 'manual', label: 'First' })
  const method = await bill('payment-methods', { kind: 'manual', label: 'Second' })
  await bill('subscription', { plan: 'enterprise' })
  const charge = await bill('charges', { amount: 10_000, currency: 'EUR', description: 'Onboarding' })
  await service.sql(`UPDATE charges SET status = 'succeeded' WHERE id = '${charge.id}'`)
  await service.sql("INSERT INTO coupons (code, percent_off) VALUES ('WORLD', 10) ON CONFLICT DO NOTHING")
  const { api_key } = (await caller.call(
    'POST', `/organizations/${o}/api-keys`,
    { name: 'Second', abilities: ['secret:read'], expires_at: new Date(Date.now() + 1_800_000).toISOString() }
  )).body
  const workload = await caller.call('POST', `/organizations/${o}/workloads`, WORKLOAD)
  const member = await makePerson(service, { [o]: 'api_user' })
  const team = await makeTeam(service, o, [member], { [names.project]: 'api_user' })
  const person = await makePerson(service)
  const [accepted, declined] = [await service.organization(), await service.organization()]
  await accepted.call('POST', `/${accepted.organization}/projects`, { name: 'Orbit', slug: 'orbit' })
  const invite = async (by: Caller, email: string, more: object = { role: 'api_user' }): Promise<string> => {
    const invited = await by.call('POST', `/organizations/${by.organization}/members`, { email, ...more })
    if (invited.status !== 201) throw new Error(invited.text)
    return invited.body.data.id
  }
  const others = await makeOthers(caller, { organization: o, ...names })
  return {
    caller,
    person: {
      ...person,
      access: (await issuePair(
        service, person, ['organization:create', 'member:delete']
      )).access
    },
    ids: {
      organization: o,
      member: String(member.id),
      invitation: await invite(caller, `invited-${randomBytes(4).toString('hex')}@nimbus.example`),
      accepted: await invite(accepted, person.email, {
        role: 'guest', place: { project: 'orbit' }, place_role: 'member'
      }),
      declined: await invite(declined, person.email),
      inviter: declined.organization,
      team,
      ...others,
      newcomer: `newcomer-${randomBytes(4).toString('hex')}@nimbus.example`,
      ...names,
      version: String(Number(version) - 1),
      id: api_key.id,
      workload: workload.body.data.id,
      payment_method: method.id,
      charge: charge.id,
      invoice: charge.attributes.invoice_id,
      client: `${prefix}-client`,
      otherProject: `${prefix}-other`,
      secret: stored.secret_id,
      pending: stored.version,
      moment: new Date().toISOString()
    },
    sliceOf: (...depth) => ({
      project_id: rows[depth.includes('project') ? 'otherProject' : 'project']!,
      target_id: depth.includes('target')
        ? rows.otherTarget!
        : depth.includes('environment') || depth.length === 0 ? rows.target! : null,
      environment_id: depth.includes('environment')
        ? rows.otherEnvironment!
        : depth.length === 0 ? rows.environment! : null
    })
  }
}

/** The request for an operation on the test data. */
export function requestOf (row: Row, ids: Record<string, string>): { method: string, url: string, payload?: object } {
  const [method, path] = row.at.split(' ') as [string, string]
  const body = typeof row.body === 'function' ? row.body(ids) : row.body
  return {
    method,
    url: filled(path + (row.query ?? ''), {
      ...ids,
      ...(row.client && { project: ids.client! }),
      ...Object.fromEntries(Object.entries(row.named ?? {}).map(([name, id]) => [name, ids[id]!]))
    }),
    ...(body !== undefined && { payload: JSON.parse(filled(JSON.stringify(body), ids)) as object })
  }
}

const filled = (text: string, ids: Record<string, string>) =>
  text.replace(/\{(\w+)\}/g, (_, name: string) => ids[name] ?? name)

/** The scopes that the operation always requires in addition to `access`. */
export const furtherScopes = ({ also = [] }: Row) => [also].flat()

/** Whether roles through teams can include the scope of the operation. */
export const isGivenByTeams = ({ access, needs = access }: Row) =>
  needs !== 'public' && needs !== 'authenticated' && isScopeOfProject(needs)

/** Prepares the test data, so that the operation has an effect. */
export async function prepare (service: TestApp, row: Row, ids: Record<string, string>): Promise<void> {
  if (row.before !== undefined) await service.sql(filled(row.before, ids))
}

export async function send (
  service: TestApp, row: Row, ids: Record<string, string>, token: string | undefined, more: Record<string, string> = {}
): Promise<Answer> {
  const { method, ...request } = requestOf(row, ids)
  const headers = { ...(token !== undefined && { authorization: `Bearer ${token}` }), ...more }
  return service.inject({ ...request, method: method as 'GET', headers })
}

/**
 * A fingerprint of all rows, which stays equal if no row is changed. Ignores the times of last use of tokens. An update
 * to the same values changes the fingerprint too, because it sets another `xmin`.
 */
export async function fingerprint (service: TestApp): Promise<string> {
  const tables = await service.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
  const sums = tables.map(({ tablename }) => {
    const row = tablename === 'api_tokens' ? "(to_jsonb(x) - 'last_used_at')::text" : 'concat(x.ctid, x.xmin)'
    return `SELECT '${tablename}' AS name, count(*) AS rows, sum(hashtextextended(${row}, 0)) AS sum FROM ${tablename} x`
  })
  return JSON.stringify(await service.sql(`${sums.join(' UNION ALL ')} ORDER BY name`))
}
