// runs: both databases
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import t from 'tap'
import { ulid } from 'ulidx'
import { JWT_BEARER } from '../../schemas/oauth.ts'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { makeProof } from '../../src/crypto/key-proof.ts'
import type { Slice } from '../../src/rules/slices.ts'
import { makeLevel, ON_CITUS, startIsolatedApp } from '../helpers/app.ts'
import { OPERATIONS, OTHER_OPERATIONS, prepare, send, settle } from '../helpers/operations.ts'
import { issuePair, makePerson, makeTeam } from '../helpers/people.ts'
import { until } from '../helpers/until.ts'
import { makeRule, makeSigner, tokenOf } from '../helpers/workloads.ts'

// The number of statements of each operation, which is its cost. Looking up the caller and the level takes one
// statement each; concurrent requests share them. A commit is one statement. These numbers leave out the begin of a
// transaction, which is one more. A change locks and moves the end of the chain, and adds its event, in two statements.
// The event of a read is one statement, because the process knows the end of the chain from the request before.

const STATEMENTS: Record<string, number> = {
  getHealth: 0,
  getReadiness: 1,
  sendTelemetry: 0,
  getAuthorizationServer: 0,
  getProtectedResource: 0,
  getAccessToken: 0,
  revokeToken: 1,
  getUser: 1,
  listOrganizations: 1,
  getOrganization: 1,
  getOwnOrganization: 1,
  listProjects: 2,
  listProjectsLongPath: 2,
  getProject: 3,
  getProjectLongPath: 3,
  listTargets: 3,
  listTargetsLongPath: 3,
  getTarget: 3,
  getTargetLongPath: 3,
  listEnvironments: 3,
  listEnvironmentsLongPath: 3,
  getEnvironment: 3,
  getEnvironmentLongPath: 3,
  readProjectSecrets: 2,
  readProjectSecretsLongPath: 2,
  readTargetSecrets: 2,
  readTargetSecretsLongPath: 2,
  readEnvironmentSecrets: 2,
  readEnvironmentSecretsLongPath: 2,
  readProjectNames: 3,
  readTargetNames: 3,
  readEnvironmentNames: 3,
  changeProjectSecrets: 8,
  changeTargetSecrets: 8,
  changeEnvironmentSecrets: 8,
  compareProjectSecrets: 4,
  compareTargetSecrets: 4,
  compareEnvironmentSecrets: 4,
  // Without a document, no versions are read.
  readProjectNameHistory: 3,
  readTargetNameHistory: 3,
  readEnvironmentNameHistory: 4,
  readProjectValues: 3,
  readTargetValues: 3,
  readEnvironmentValues: 3,
  searchNames: 5,
  readProjectMatrix: 5,
  retrieveSecrets: 3,
  retrieveSecretsLongPath: 2,
  getEncryptionKey: 3,
  listEncryptionKeys: 5,
  rotateEncryptionKey: 3,
  listPendingVersions: 6,
  reEncryptHistory: 13,
  rotateClientKeys: 4,
  storeSecrets: 7,
  listVersions: 3,
  getVersion: 3,
  readVersionNames: 6,
  restoreVersion: 9,
  restoreProject: 3,
  deleteVersion: 11,
  purgeVersions: 13,
  deleteSecrets: 8,
  listTeams: 2,
  getTeam: 4,
  createTeam: 9,
  updateTeam: 9,
  putTeam: 9,
  setTeamProject: 16,
  patchTeamProject: 16,
  addTeamMember: 12,
  removeTeamMember: 8,
  removeTeamProject: 10,
  deleteTeam: 10,
  listMembers: 2,
  getMember: 2,
  getMemberAccess: 5,
  listAuditEvents: 4,
  // Its default is a month: ten days in a statement.
  countAuditEvents: 5,
  exportAuditEvents: 3,
  inviteMember: 15,
  listInvitations: 2,
  getInvitation: 2,
  sendInvitation: 12,
  withdrawInvitation: 7,
  listOwnInvitations: 4,
  acceptInvitation: 36,
  declineInvitation: 12,
  updateMember: 15,
  putMember: 15,
  removeMember: 15,
  listApiTokens: 3,
  // Each reads the present expiry of a calling token under the lock.
  createApiToken: 9,
  getApiToken: 2,
  updateApiToken: 12,
  patchApiToken: 11,
  rotateApiToken: 12,
  createProject: 11,
  createTarget: 12,
  createEnvironment: 13,
  updateProject: 10,
  putProject: 10,
  updateTarget: 11,
  putTarget: 11,
  updateEnvironment: 11,
  putEnvironment: 11,
  deleteEnvironment: 18,
  deleteTarget: 18,
  deleteProject: 14,
  createOrganization: 16,
  updateOrganization: 7,
  putOrganization: 7,
  deleteOrganization: 15,
  listPlans: 2,
  getUsage: 2,
  getSubscription: 3,
  getSubscriptionShortPath: 3,
  createSubscription: 21,
  createSubscriptionShortPath: 21,
  updateSubscription: 22,
  putSubscription: 9,
  updateSubscriptionShortPath: 22,
  putSubscriptionShortPath: 9,
  cancelSubscription: 9,
  cancelSubscriptionShortPath: 9,
  resumeSubscription: 9,
  listPaymentMethods: 2,
  createPaymentMethod: 9,
  createPaymentMethodShortPath: 9,
  updateDefaultPaymentMethod: 8,
  putDefaultPaymentMethod: 8,
  deletePaymentMethod: 8,
  createCharge: 11,
  refundCharge: 10,
  listInvoices: 2,
  listLatestInvoices: 2,
  getInvoice: 2,
  downloadInvoice: 2,
  redeemCoupon: 10,
  removeCoupon: 7,
  deleteApiToken: 10,
  // The first one reads the size of the rules, because a list of large rules takes its turn.
  listWorkloads: 3,
  createWorkload: 8,
  getWorkload: 2,
  updateWorkload: 9,
  testWorkload: 3,
  deleteWorkload: 7
}

/** Operations whose statements grow with a project, so PostgreSQL plans them for each call. */
const GROWING = ['rotateEncryptionKey', 'rotateClientKeys', 'restoreProject']
/** Statements of a custody change that are planned for each call. */
const CUSTODY: Record<string, number> = { client: 15, server: 15 }
/** Statements of background jobs that an operation starts. */
const BACKGROUND = new RegExp([
  '^\\s*with recursive found', 'organization_removals', '^select distinct .* from "(?:idempotency_keys|spent_assertions)"',
  '^\\s*select distinct over', 'token_removals', 'union select organization_id from "invitation_mails"', '^select .* from "re_encryptions" inner join'
].join('|'), 'is')

/** Lists that need more than three statements, and the reasons. */
const MORE: Record<string, string> = {
  listEncryptionKeys: 'the keys, and how far a re-encryption is, sent together; then the event of who saw them',
  listPendingVersions: 'sizes before contents, so that no more is read than is handed out; then the event',
  listAuditEvents: 'the names of the actors, looked up together',
  listOwnInvitations: 'the slugs of each place, in the organization of the invitation'
}

interface Sent { text: string, prepared: boolean }

// The service updates the last use of a token once a minute, in the background.
const ASIDE = /^update "api_tokens" set "last_used_at"/

// This file has its own database, because it counts all statements, and background jobs of other organizations also
// send statements.
const service = await startIsolatedApp(t)

/**
 * The sent statements, and the number of waits for the database. Concurrent statements count as one wait. The begin of
 * a transaction counts as a wait.
 */
async function costOf (work: () => Promise<unknown>): Promise<{ sent: Sent[], waits: number }> {
  const sent: Sent[] = []
  let waits = 0
  let underWay = 0
  const look = (message: unknown) => {
    const { phase, text, prepared } = message as { phase: string } & Sent
    if (ASIDE.test(text)) return
    if (phase === 'before') sent.push({ text, prepared })
    if (!isOwn({ text, prepared })) return
    if (phase === 'after' || phase === 'begun') underWay--
    else if (underWay++ === 0) waits++
  }
  subscribe('strongroom:statement', look)
  try {
    await work()
  } finally {
    unsubscribe('strongroom:statement', look)
  }
  return { sent, waits }
}

/** Prepared statements, and those that begin or commit a transaction. PostgreSQL plans all others for each call. */
const isOwn = ({ prepared, text }: Sent) => prepared || text === 'commit' || text === 'begin'

function partition (sent: readonly Sent[]): [own: Sent[], planned: Sent[]] {
  return [sent.filter(isOwn), sent.filter((one) => !isOwn(one))]
}

const shown = (sent: readonly Sent[]) => sent.map(({ text }) => text.trim().slice(0, 60)).join('; ')

const skip = ON_CITUS && 'counts the statements on PostgreSQL; test/citus/tasks.test.ts counts those of the nodes'

t.test('each operation sends the listed number of statements, all prepared: a read two, a list three', { skip }, async (t) => {
  const { caller, ids, person } = await settle(service, 'counted')
  for (const [id, row] of Object.entries(OPERATIONS)) {
    await prepare(service, row, ids)
    const { sent, waits } = await costOf(async () => {
      const bearer = row.byPerson ? person.access : caller.token
      const { status, text } = await send(service, row, ids, row.access === 'public' ? undefined : bearer)
      t.ok(status < 300 || status === row.public, `${id}: ${status} ${text.slice(0, 200)}`)
    })
    const [own, planned] = partition(sent)
    if (id in OTHER_OPERATIONS) t.ok(own.length <= (row.at.startsWith('GET ') ? 3 : 15), `${id}: ${shown(own)}`)
    else t.equal(own.length, STATEMENTS[id], `${id}: ${shown(own)}`)
    const begins = own.some(({ text }) => text === 'commit') ? 1 : 0
    t.ok(waits <= own.length + begins, `${id}: waits ${waits} times`)
    if (/^read\w*Secrets/.test(id)) t.equal(own.length, 2, `${id}: a read`)
    if (id.startsWith('list') && MORE[id] === undefined) t.ok(own.length <= 3, `${id}: a list`)
    // One wait each for the caller, BEGIN, the reads, the writes and COMMIT.
    if (id === 'storeSecrets') t.ok(waits <= 5, `${id}: ${waits} waits`)
    if (!GROWING.includes(id)) {
      t.strictSame(planned.filter(({ text }) => !BACKGROUND.test(text)), [], `${id} sends nothing that is not prepared`)
    }
  }
  // Waits for background jobs of the previous operation, because their statements would be counted.
  await until(async () => (await service.sql('SELECT 1 FROM organization_removals')).length === 0, { within: 120_000 })
})

t.test('a repeat waits once for a level in a path, twice in a body, +1 for a list, +1 to decrypt', { skip }, async (t) => {
  const caller = await service.organization()
  const level = await makeLevel(caller)
  const path = `/${caller.organization}/${level.project}/${level.target}/${level.environment}/secrets`
  const store = ['POST', `/${caller.organization}/secrets/store`, { ...level, plaintext: 'A=1' }] as const
  const asked = {
    store: { request: store, statements: 7, waits: 5 },
    read: { request: ['GET', path], statements: 2, waits: 1 },
    decrypt: { request: ['GET', `${path}?decrypt=true`], statements: 3, waits: 2 },
    versions: { request: ['POST', `/${caller.organization}/secrets/versions`, level], statements: 3, waits: 3 },
    environments: {
      request: ['GET', `/${caller.organization}/${level.project}/${level.target}/environments`], statements: 3, waits: 2
    }
  } as const
  for (const [name, { request: [method, at, body], statements, waits }] of Object.entries(asked)) {
    t.equal((await caller.call(method, at, body)).status, 200, name)
    const again = await costOf(() => caller.call(method, at, body))
    t.match({ statements: again.sent.length, waits: again.waits }, { statements, waits }, name)
  }
  // With a key, the level and the stored response are looked up before the handler.
  const [method, at, body] = store
  const keyed = await costOf(() => caller.call(method, at, body, { 'idempotency-key': ulid() }))
  t.match({ statements: keyed.sent.length, waits: keyed.waits }, { statements: 12, waits: 7 }, 'a store with a key')
})

t.test('with access by a team, a level in a path takes two statements, and one in a body no more waits', { skip }, async (t) => {
  const owner = await service.organization()
  const o = owner.organization
  const level = await makeLevel(owner)
  await owner.call('POST', `/${o}/secrets/store`, { ...level, plaintext: 'A=1' })
  const [environment] = await service.sql(`SELECT project_id, target_id, id AS environment_id FROM environments
    WHERE organization_id = '${o}'`) as unknown as Slice[]
  const restrictions: Record<string, Slice[] | null> = {
    'no restriction': null,
    'an environment': [environment!],
    'a status': [{ ...environment!, target_id: null, environment_id: null, except_status: 'production' }]
  }
  const path = `/${o}/${level.project}/${level.target}/${level.environment}/secrets`
  const asked = {
    read: { request: ['GET', path], statements: 2, waits: 1 },
    retrieve: { request: ['POST', `/${o}/secrets/retrieve`, level], statements: 3, waits: 2 },
    store: { request: ['POST', `/${o}/secrets/store`, { ...level, plaintext: 'A=2' }], statements: 9, waits: 6 },
    versions: { request: ['POST', `/${o}/secrets/versions`, level], statements: 4, waits: 3 },
    // Includes the statement for the roles that allow the last changes. A member with far apart projects needs two
    // statements.
    projects: { request: ['GET', `/${o}/projects`], statements: 3, waits: 3 }
  } as const
  for (const [restriction, slices] of Object.entries(restrictions)) {
    const person = await makePerson(service, { [o]: 'billing_manager' })
    await makeTeam(service, o, [person], { [level.project]: 'administrator' }, slices)
    const { access } = await issuePair(service, person, SCOPE_NAMES)
    for (const [name, { request: [method, at, body], statements, waits }] of Object.entries(asked)) {
      const ask = () => owner.call(method, at, body, { authorization: `Bearer ${access}` })
      t.equal((await ask()).status, 200, name)
      const again = await costOf(ask)
      t.match(
        { statements: again.sent.length, waits: again.waits }, { statements, waits },
        `${name} with ${restriction}: ${shown(again.sent)}`
      )
    }
  }
})

t.test('a workload sends as many as an API token, and an exchange two, or three with single_use', { skip }, async (t) => {
  const owner = await service.organization()
  const o = owner.organization
  const level = await makeLevel(owner)
  await owner.call('POST', `/${o}/secrets/store`, { ...level, plaintext: 'A=1' })
  const { jwks, sign } = await makeSigner()
  const [often, once] = [await makeRule(service, o, { jwks }), await makeRule(service, o, { jwks, single_use: true })]
  const path = `/${o}/${level.project}/${level.target}/${level.environment}/secrets`
  const token = tokenOf(service, often)
  const by = (method: string, path: string, body?: object) => async () =>
    owner.call(method, path, body, { authorization: `Bearer ${token}` })
  const exchange = (client_id: string) => async () => {
    const payload = { grant_type: JWT_BEARER, client_id, assertion: await sign() }
    return service.inject({ method: 'POST', url: '/api/oauth/token', payload })
  }
  const asked = {
    read: { ask: by('GET', path), statements: 2, waits: 1 },
    decrypt: { ask: by('GET', `${path}?decrypt=true`), statements: 3, waits: 2 },
    store: { ask: by('POST', `/${o}/secrets/store`, { ...level, plaintext: 'A=2' }), statements: 7, waits: 5 },
    exchange: { ask: exchange(often.client_id), statements: 2, waits: 2 },
    'exchange with single_use': { ask: exchange(once.client_id), statements: 3, waits: 3 }
  }
  for (const [name, { ask, statements, waits }] of Object.entries(asked)) {
    t.equal((await ask()).status, 200, name)
    const again = await costOf(ask)
    t.match({ statements: again.sent.length, waits: again.waits }, { statements, waits }, `${name}: ${shown(again.sent)}`)
    t.strictSame(again.sent.filter((one) => !isOwn(one)), [], `${name} sends nothing that is not prepared`)
  }
})

t.test('a change of custody sends as many, whatever the project holds', { skip }, async (t) => {
  const caller = await service.organization()
  const ask = async (method: string, path: string, body?: object) => {
    const { status, body: answer, text } = await caller.call(method, `/${caller.organization}/${path}`, body)
    t.ok(status < 300, `${method} ${path}: ${status} ${text.slice(0, 200)}`)
    return answer
  }
  const encryption_key = 'a key string that has more than 32 bytes'
  for (const documents of [1, 3]) {
    const slug = `custody-${documents}`
    await ask('POST', 'projects', { name: slug, encryption_key })
    for (let i = 0; i < documents; i++) {
      const target = i === 0 ? {} : { target: `target-${i}` }
      if (i > 0) await ask('POST', `${slug}/targets`, { name: target.target })
      await ask('POST', 'secrets/store', { project: slug, ...target, plaintext: 'A=1' })
    }
    const key = await ask('GET', `${slug}/encryption-key`)
    const { key_check_salt, key_check_iterations } = key.data.attributes
    const key_proof = await makeProof(encryption_key, Buffer.from(key_check_salt, 'base64'), key_check_iterations)
    const ways = {
      client: { storage_mode: 'client', key_check: key_proof, key_check_salt, key_check_iterations, key_proof },
      server: { storage_mode: 'server', encryption_key }
    }
    for (const [holder, body] of Object.entries(ways)) {
      const [own, planned] = partition((await costOf(() => ask('PATCH', slug, body))).sent)
      t.equal(own.length, 3, `${documents} to the ${holder}: ${shown(own)}`)
      // A custody change runs these statements in its transaction, like a rotation.
      t.equal(planned.length, CUSTODY[holder], `${documents} to the ${holder}: ${shown(planned)}`)
    }
  }
})
