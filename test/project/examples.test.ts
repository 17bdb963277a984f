// runs: one database
import t from 'tap'
import { FIRST_ORGANIZATION } from '../../schemas/organizations.ts'
import { greet } from '../../src/commands/serve/greeting.ts'
import { challengeOf } from '../../src/crypto/bearer.ts'
import { startIsolatedApp, type Answer } from '../helpers/app.ts'
import { createValidator } from '../helpers/contract.ts'
import { OPERATIONS, OTHER_OPERATIONS, OTHER_RESOURCES, prepare, publishedPaths } from '../helpers/operations.ts'
import { authorize, issuePair, makePerson } from '../helpers/people.ts'

// Sends every example request of the OpenAPI document to a new service after its first start. Replaces only the values
// that the service generates, and compares the responses with the documented responses.

interface Media { schema: object, example?: unknown }
interface Operation {
  operationId: string
  security: object[]
  parameters?: { name: string, in: string, example?: string }[]
  requestBody?: { content: Record<string, Media> }
  responses: Record<string, { content?: Record<string, Media> }>
}
interface Example { id: string, method: string, path: string, operation: Operation, type?: string, body?: object }

const FORM_TYPE = 'application/x-www-form-urlencoded'

// This file has its own database, because the examples have fixed slugs, addresses and coupons.
const service = await startIsolatedApp(t)
const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
// No example shows results of background jobs. A fast job would end the re-encryption before the example of its
// progress.
await Promise.all([service.app.billing.stop(), service.app.histories.stop()])

const examples: Example[] = Object.entries(publishedPaths(service)).flatMap(([path, item]) =>
  Object.entries(item as Record<string, Operation>).flatMap(([method, operation]) => {
    const one = { id: operation.operationId, method: method.toUpperCase(), path, operation }
    const bodies = Object.entries(operation.requestBody?.content ?? {})
    return bodies.length === 0
      ? [one]
      : bodies.map(([type, { example }]) => ({ ...one, type, body: example as object }))
  }))

/** An order in which each example finds the resources that it names. */
const ORDER = [
  'getHealth', 'getReadiness', 'getAuthorizationServer', 'getProtectedResource', 'getAccessToken', 'revokeToken',
  'sendTelemetry', 'getUser', 'listOrganizations', 'createOrganization', 'getOwnOrganization', 'getOrganization',
  'updateOrganization', 'putOrganization',
  'createProject', 'listProjects', 'getProject', 'updateProject', 'putProject',
  'createTarget', 'listTargets', 'getTarget', 'updateTarget', 'putTarget',
  'createEnvironment', 'listEnvironments', 'getEnvironment', 'updateEnvironment', 'putEnvironment',
  'storeSecrets', 'retrieveSecrets', 'readProjectSecrets', 'readTargetSecrets', 'readEnvironmentSecrets',
  'listProjectsLongPath', 'getProjectLongPath', 'getTargetLongPath', 'listEnvironmentsLongPath',
  'getEnvironmentLongPath', 'readProjectSecretsLongPath', 'readTargetSecretsLongPath', 'readEnvironmentSecretsLongPath',
  'retrieveSecretsLongPath', 'readProjectValues', 'readTargetValues', 'readEnvironmentValues',
  'readProjectNames', 'readTargetNames', 'readEnvironmentNames', 'searchNames', 'readProjectMatrix',
  'compareProjectSecrets', 'compareTargetSecrets', 'compareEnvironmentSecrets',
  'readProjectNameHistory', 'readTargetNameHistory', 'readEnvironmentNameHistory',
  'listVersions', 'getVersion', 'readVersionNames', 'restoreVersion', 'restoreProject',
  'getEncryptionKey', 'rotateEncryptionKey', 'listEncryptionKeys',
  'changeEnvironmentSecrets', 'deleteSecrets', 'deleteVersion', 'purgeVersions',
  'createApiToken', 'listApiTokens', 'getApiToken', 'updateApiToken', 'patchApiToken', 'rotateApiToken', 'deleteApiToken',
  'createWorkload', 'listWorkloads', 'getWorkload', 'updateWorkload', 'testWorkload', 'deleteWorkload',
  'inviteMember', 'listInvitations', 'getInvitation', 'sendInvitation', 'listOwnInvitations', 'acceptInvitation',
  'declineInvitation', 'withdrawInvitation', 'listMembers', 'getMember', 'updateMember', 'putMember',
  'createTeam', 'listTeams', 'updateTeam', 'putTeam', 'addTeamMember', 'setTeamProject', 'patchTeamProject', 'getTeam', 'getMemberAccess', 'removeTeamMember',
  'removeTeamProject', 'deleteTeam', 'removeMember',
  'listPlans', 'getUsage', 'createPaymentMethod', 'createPaymentMethodShortPath', 'listPaymentMethods',
  'updateDefaultPaymentMethod', 'putDefaultPaymentMethod', 'createSubscription', 'getSubscription', 'updateSubscription', 'putSubscription', 'cancelSubscription',
  'resumeSubscription', 'createSubscriptionShortPath', 'getSubscriptionShortPath', 'updateSubscriptionShortPath',
  'putSubscriptionShortPath',
  'cancelSubscriptionShortPath', 'createCharge', 'refundCharge', 'redeemCoupon', 'removeCoupon', 'listInvoices',
  'listLatestInvoices', 'getInvoice', 'downloadInvoice', 'deletePaymentMethod',
  ...Object.keys(OTHER_OPERATIONS), 'changeTargetSecrets', 'listTargetsLongPath', 'changeProjectSecrets',
  'deleteEnvironment', 'deleteTarget', 'deleteProject',
  'rotateClientKeys', 'listPendingVersions', 'reEncryptHistory',
  'listAuditEvents', 'countAuditEvents', 'exportAuditEvents', 'deleteOrganization'
]

const first = await firstStart()
const world = { organization: first.organization }
const answers: Record<string, Answer['body']> = {}

/** State that an example needs and that no other example creates. The operator or another client creates it. */
const BEFORE: Record<string, () => Promise<unknown>> = {
  createSubscriptionShortPath: () => prepare(service, OPERATIONS.createSubscriptionShortPath!, world),
  refundCharge: () =>
    service.sql(`UPDATE charges SET status = 'succeeded' WHERE organization_id = '${first.organization}'`),
  redeemCoupon: () => service.sql("INSERT INTO coupons (code, percent_off) VALUES ('WELCOME-10', 10)"),
  getMemberAccess: async () => {
    const o = `/api/v1/organizations/${first.organization}`
    await ask(first.token, 'PATCH', `${o}/members/${answers.addTeamMember.data.attributes.members[0].id}`, {
      role: 'billing_manager'
    })
    await ask(first.token, 'PATCH', `${o}/teams/platform/projects/orbit`, {
      role: 'api_user', restrictions: [{ target: 'backend', environment: 'live' }]
    })
  },
  deletePaymentMethod: () => prepare(service, OPERATIONS.deletePaymentMethod!, world),
  rotateClientKeys: clientsProject,
  declineInvitation: async () => {
    const other = await service.organization()
    answers.declined = (await other.call('POST', `/organizations/${other.organization}/members`, {
      email: 'rosa@nimbus.example', role: 'member'
    })).body
  },
  withdrawInvitation: async () => {
    answers.withdrawn = (await ask(first.token, 'POST', `/api/v1/organizations/${first.organization}/members`, {
      email: 'ben@nimbus.example', role: 'member'
    })).body
  }
}

/** Values that the service generates: members of a path or a body that cannot be as in the example. */
const MADE_UP: Record<string, (example: any) => Promise<object> | object> = {
  ...each(Object.keys(OTHER_OPERATIONS), () => Object.fromEntries(OTHER_RESOURCES.map(({ parameter, create }) =>
    [parameter, answers[create]?.data.id]))),
  ...each(['getApiToken', 'updateApiToken', 'patchApiToken', 'rotateApiToken', 'deleteApiToken'], () => ({
    id: answers.createApiToken.api_key.id
  })),
  ...each(['getWorkload', 'updateWorkload', 'testWorkload', 'deleteWorkload'], () => ({
    workload: answers.createWorkload.data.id
  })),
  ...each(['getInvitation', 'sendInvitation', 'acceptInvitation'], () => ({ invitation: answers.inviteMember.data.id })),
  declineInvitation: () => ({ invitation: answers.declined.data.id }),
  withdrawInvitation: () => ({ invitation: answers.withdrawn.data.id }),
  ...each(['getMember', 'getMemberAccess', 'updateMember', 'putMember', 'addTeamMember', 'removeTeamMember', 'removeMember'], () => ({
    member: answers.listMembers.data.find(({ attributes }: { attributes: { email: string } }) =>
      attributes.email === 'rosa@nimbus.example').id
  })),
  ...each(['getInvoice', 'downloadInvoice'], () => ({ invoice: answers.createCharge.data.attributes.invoice_id })),
  ...each(['updateDefaultPaymentMethod', 'putDefaultPaymentMethod'], () => ({
    payment_method: answers.createPaymentMethod.data.id
  })),
  deletePaymentMethod: () => ({ payment_method: answers.createPaymentMethodShortPath.data.id }),
  getAccessToken: async ({ code_verifier }) => {
    const { code } = await authorize(address, first, { code_challenge: challengeOf(code_verifier) })
    return { code }
  },
  // Optional parameters of a query have no example in the document. The example shows an event of the operator.
  listAuditEvents: () => ({ actor: 'operator' }),
  restoreProject: () => ({ at: answers.listVersions.data[0].attributes.created_at }),
  revokeToken: () => ({ token: answers.getAccessToken.refresh_token }),
  refundCharge: () => ({ charge: answers.createCharge.data.id }),
  rotateClientKeys: ({ secrets: [{ content }] }) => ({ secrets: [{ id: answers.clientsProject.secret_id, content }] }),
  reEncryptHistory: ({ versions: [{ content }] }) => ({
    versions: [{ id: answers.listPendingVersions.data[0].id, content }]
  })
}

t.test('the example organization is the one that the first start makes', async (t) => {
  const { body } = await ask(first.token, 'GET', '/api/v1/organization')
  t.match(body.data, { id: first.organization, ...FIRST_ORGANIZATION })
})

t.test('every example of a request works after a first start, and is answered as documented', async (t) => {
  t.strictSame([...ORDER].sort(), [...new Set(examples.map(({ id }) => id))].sort(), 'every operation has its place in the order')
  const { access: owner } = await issuePair(service, first, ['organization:create'])
  const rosa = await makePerson(service)
  await service.write(`UPDATE users SET name = 'Rosa Quill', email = 'rosa@nimbus.example',
    email_normalized = 'rosa@nimbus.example' WHERE id = ${rosa.id}`)
  const { access: invitee } = await issuePair(service, rosa, ['organization:create', 'member:delete'])
  const validate = validator()
  let [run, dryRuns] = [0, 0]
  // Operations with the same resource in the response share one example. At least one operation must return exactly
  // this example.
  const apart = new Map<string, { name: string, found: string[] }>()
  for (const id of ORDER) {
    await BEFORE[id]?.()
    for (const example of examples.filter((one) => one.id === id)) {
      const name = `${id}${example.type === undefined ? '' : ` with ${example.type}`}`
      const { byPerson, at } = OPERATIONS[id]!
      const bearer = !byPerson ? first.token : at.includes('/user/') ? invitee : owner
      const token = example.operation.security.length === 0 ? undefined : bearer
      const { responses } = example.operation
      if (example.operation.parameters?.some(({ name }) => name === 'dry_run')) {
        const { status, body, text } = await send(example, token, 'dry_run=true')
        t.equal(status, 200, `${name}, dry run: ${text.slice(0, 300)}`)
        t.ok(body.dry_run.levels.length > 0 || id === 'restoreProject', `${name} shows what would change`)
        t.strictSame(validate(responses[200]!.content!['application/json']!.schema!, body), [], `${name}: the shape of a dry run`)
        dryRuns++
      }
      const answer = await send(example, token)
      // If the operation documents two successful responses, the first is the response to a dry run.
      const [status, { content = {} }] =
        Object.entries(responses).filter(([status]) => status.startsWith('2')).at(-1)!
      t.equal(String(answer.status), status, `${name}: ${answer.text.slice(0, 300)}`)
      const types = Object.keys(content)
      const [type] = String(answer.headers['content-type'] ?? '').split(';')
      if (types.length === 0) t.equal(answer.text, '', `${name} answers no body`)
      else t.ok(types.includes(type!), `${name} answers ${type}`)
      const { schema } = content[type!] ?? {}
      if (answer.body !== undefined) {
        t.strictSame(validate(schema ?? {}, answer.body), [], `${name}: its shape`)
        const shown = content[type!]?.example
        const known = apart.get(JSON.stringify(shown))
        const found = differences(shown, JSON.parse(answer.text.replaceAll(address, 'https://secrets.example.com')))
        if (known === undefined || found.length < known.found.length) apart.set(JSON.stringify(shown), { name, found })
      }
      if (id.startsWith('list')) t.not(answer.body?.data?.length, 0, `${name} has something to show`)
      answers[id] = answer.body
      run++
    }
  }
  t.equal(run, examples.length, 'that were all of them')
  t.equal(dryRuns, 10, 'and the dry runs')
  for (const { name, found } of apart.values()) t.strictSame(found, [], `${name} answers what its example says`)
})

t.test('an answer is of another shape with a member more, one less, or one of another type', async (t) => {
  const [schema, validate] = [{ $ref: '#/components/schemas/PlanList' }, validator()]
  const { data } = answers.listPlans
  const changed = (attributes: object) => [{ ...data[0], attributes: { ...data[0].attributes, ...attributes } }]
  t.strictSame(validate(schema, { data }), [])
  t.not(validate(schema, { data: changed({ color: 'red' }) }).length, 0)
  t.not(validate(schema, { data: changed({ name: 7 }) }).length, 0)
  t.not(validate(schema, { data: [{ ...data[0], attributes: undefined }] }).length, 0)
})

/** Values that differ each time, recognized by their format: ids, times, ETags, tokens, keys and encrypted content. */
const KINDS = {
  ulid: /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/,
  moment: /^\d{4}-\d\d-\d\dT[\d:.]+Z$/,
  month: /^\d{4}-\d\d$/,
  day: /^\d{4}-\d\d-\d\d$/,
  etag: /^"[\w-]{22}"$/,
  token: /^dotenv_\S+$/,
  workload: /^wl_[0-7][0-9A-HJKMNP-TV-Z]{25}_\d+$/,
  bytes: /^(?:[0-9a-f]{64}|[A-Za-z0-9+/]{22,}={0,2})$/,
  invoice: /^\w{10}-\d{6}$/
}
const kindOf = (text: string) => Object.entries(KINDS).find(([, pattern]) => pattern.test(text))?.[0]
// Numbers that depend on earlier requests or on the speed of the machine.
const OWN_NUMBERS =
  /\/(?:id|user_id|sequence|api_calls|api_calls\/used|attributes\/count|last_change\/version|meta\/total|meta\/to|re_encryption\/\w+|key_check_iterations)$/
// The person chooses the scopes. The operator chooses the seller and its texts. Tokens end with random characters.
const OF_OTHERS = /^\/scope$|\/seller\/|\/note$|\/token_suffix$/

/** The paths where a response differs from the example: other words, numbers or members. */
function differences (example: unknown, answer: unknown, at = ''): string[] {
  if (Array.isArray(example) && Array.isArray(answer)) {
    // A list may have more elements than the example.
    return example.flatMap((one, i) => {
      const all = answer.map((other) => differences(one, other, `${at}/${i}`))
      return all.sort((a, b) => a.length - b.length)[0] ?? [`${at}/${i} is not there`]
    })
  }
  if (isObject(example) && isObject(answer)) {
    return [...new Set([...Object.keys(example), ...Object.keys(answer)])].flatMap((name) =>
      differences(example[name], answer[name], `${at}/${name}`))
  }
  if (typeof example === 'string' && typeof answer === 'string' && at.endsWith('/content') && example.startsWith('{')) {
    return differences(JSON.parse(example), JSON.parse(answer), at)
  }
  const isSame = example === answer || OF_OTHERS.test(at) ||
    (typeof example === typeof answer && OWN_NUMBERS.test(at)) ||
    (typeof example === 'string' && typeof answer === 'string' && kindOf(example) !== undefined &&
      kindOf(example) === kindOf(answer))
  return isSame ? [] : [`${at}: ${JSON.stringify(example)} is ${JSON.stringify(answer)}`]
}

function isObject (value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function each<T> (ids: string[], one: T): Record<string, T> {
  return Object.fromEntries(ids.map((id) => [id, one]))
}

/** Starts like `npm start` on an empty database. Returns the printed values and an owner's token. */
async function firstStart () {
  const printed = await greet(service, service.config, 0)
  const [, organization = ''] = /Organization +(\S+)/.exec(printed)!
  const [, token = ''] = /API token +(\S+)/.exec(printed)!
  const [, email = ''] = /Owner +(\S+)/.exec(printed)!
  const [, password = ''] = /Password +(\S+)/.exec(printed)!
  const { body } = await ask(token, 'GET', `/api/v1/organizations/${organization}/members`)
  return { organization, token, id: Number(body.data[0].id), name: 'owner', email, password }
}

/** A client-managed project with the name in the example, and a document with its first key. */
async function clientsProject () {
  const key_check = Buffer.alloc(32, 1).toString('base64')
  const o = `/api/v1/${FIRST_ORGANIZATION.slug}`
  const made = await ask(first.token, 'POST', `${o}/projects`, {
    name: 'Orbit',
    storage_mode: 'client',
    key_check,
    key_check_salt: Buffer.alloc(16).toString('base64'),
    key_check_iterations: 600_000
  })
  if (made.status !== 201) throw new Error(made.text)
  const stored = await ask(first.token, 'POST', `${o}/secrets/store`, {
    project: 'orbit', content: Buffer.alloc(40).toString('base64'), key_proof: key_check
  })
  answers.clientsProject = stored.body.data
}

function ask (token: string, method: 'GET' | 'POST' | 'PATCH', url: string, payload?: object) {
  return service.inject({
    method, url, headers: { authorization: `Bearer ${token}` }, ...(payload !== undefined && { payload })
  })
}

async function send (
  { id, method, path, operation, type, body }: Example, token: string | undefined, more?: string
): Promise<Answer> {
  const made: Record<string, unknown> = { ...await MADE_UP[id]?.(body) }
  const valueOf = ({ name, example }: { name: string, example?: string }) =>
    encodeURIComponent(String(made[name] ?? example))
  const parameters = operation.parameters ?? []
  const url = parameters.filter((parameter) => parameter.in === 'path').reduce(
    (url, parameter) => url.replace(`{${parameter.name}}`, valueOf(parameter)), path
  )
  const query = parameters
    .filter((parameter) => parameter.in === 'query' && (made[parameter.name] ?? parameter.example) !== undefined)
    .map((parameter) => `${parameter.name}=${valueOf(parameter)}`).concat(more ?? []).join('&')
  const sent = body && { ...body, ...Object.fromEntries(Object.entries(made).filter(([name]) => name in body)) }
  return service.inject({
    method: method as 'GET',
    url: query === '' ? url : `${url}?${query}`,
    headers: {
      ...(token !== undefined && { authorization: `Bearer ${token}` }),
      ...(type !== undefined && { 'content-type': type })
    },
    ...(sent !== undefined && {
      payload: type === FORM_TYPE
        ? new URLSearchParams(sent as Record<string, string>).toString()
        : JSON.stringify(sent)
    })
  })
}

function validator () {
  return createValidator((service.app.swagger() as unknown as { components: object }).components)
}
