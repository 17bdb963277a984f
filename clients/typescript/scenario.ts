// The scenario of clients/README.md.
import createClient from 'openapi-fetch'
import type { paths } from './schema.ts'

const { STRONGROOM_URL = '', STRONGROOM_ORGANIZATION: organization = '', STRONGROOM_TOKEN = '' } = process.env
const clientOf = (token: string) =>
  createClient<paths, 'application/json'>({ baseUrl: STRONGROOM_URL, headers: { authorization: `Bearer ${token}` } })
const client = clientOf(STRONGROOM_TOKEN)

let steps = 0
function step (what: string) {
  steps += 1
  console.log(`${steps} ${what}`)
}
function expect (holds: boolean, seen?: unknown): asserts holds {
  if (!holds) throw new Error(`step ${steps}: ${JSON.stringify(seen)}`)
}
/** What was answered, which has to be good. */
function good<T> ({ data, error, response }: { data?: T, error?: unknown, response: Response }): T {
  expect(data !== undefined, [response.status, error])
  return data
}
function failed (answer: { error?: { error: string }, response: Response }, status: number, code: string) {
  expect(answer.response.status === status && answer.error?.error === code, [answer.response.status, answer.error])
}

const ofOrganization = { path: { organization } }
const ofProject = { path: { organization, project: 'orbit' } }
const ofTarget = { path: { ...ofProject.path, target: 'backend' } }
const ofEnvironment = { path: { ...ofTarget.path, environment: 'live' } }
const level = { project: 'orbit', target: 'backend', environment: 'live' }
const read = (merge: 'true' | 'false') => client.GET(
  '/api/v1/{organization}/{project}/{target}/{environment}/secrets',
  { params: { ...ofEnvironment, query: { decrypt: true, merge } } }
)
const content = async () => good(await read('false')).data.attributes.levels?.environment?.content

step('read who the token is')
const principal = good(await client.GET('/api/v1/user'))
expect(principal.data.type === 'api-tokens', principal)

step('read the organization')
const own = good(await client.GET('/api/v1/organizations/{organization}', { params: ofOrganization }))
expect(own.data.attributes.name === 'Nimbus', own)

step('create a project')
const createProject = () => client.POST('/api/v1/{organization}/projects', {
  params: { ...ofOrganization, header: { 'idempotency-key': 'scenario' } }, body: { name: 'Orbit', slug: 'orbit' }
})
const project = good(await createProject())

step('create it again with the same Idempotency-Key: the same project')
expect(good(await createProject()).data.id === project.data.id)

step('create a target')
good(await client.POST('/api/v1/{organization}/{project}/targets', { params: ofProject, body: { name: 'Backend' } }))

step('create an environment')
const environment = good(await client.POST('/api/v1/{organization}/{project}/{target}/environments', {
  params: ofTarget, body: { name: 'Live', status: 'production' }
}))
expect(environment.data.attributes.slug === 'live', environment)

step('list the environments of the target')
const environments = good(await client.GET(
  '/api/v1/{organization}/{project}/{target}/environments', { params: ofTarget }
))
expect(environments.data.length === 1 && environments.meta.total === 1, environments)

step('read the ETag of the project')
const tag = (await client.GET('/api/v1/{organization}/{project}', { params: ofProject })).response.headers.get('etag')
expect(tag !== null)

step('rename the project that it is of')
const rename = (name: string) => client.PATCH('/api/v1/{organization}/{project}', {
  params: { ...ofProject, header: { 'if-match': tag } }, body: { name }
})
const renamed = good(await rename('Orbiter'))
expect(renamed.data.attributes.name === 'Orbiter', renamed)

step('rename it by the ETag that it had: 412')
failed(await rename('Satellite'), 412, 'precondition_failed')

step('store a document at the project')
const store = (body: typeof level | { project: string }, plaintext: string) =>
  client.POST('/api/v1/{organization}/secrets/store', { params: ofOrganization, body: { ...body, plaintext } })
good(await store({ project: 'orbit' }, 'A=project\nB=project\n'))

step('store a document at the environment')
const stored = good(await store(level, 'A=first\n'))
expect(stored.data.version !== null, stored)

step('read it decrypted')
expect(await content() === 'A=first\n')

step('read it merged')
const merged = good(await read('true')).data.attributes.merged
expect(merged?.A === 'first' && merged.B === 'project', merged)

step('store another document there')
good(await store(level, 'A=second\n'))

step('list the versions, the newest first')
const listVersions = async () => good(await client.POST(
  '/api/v1/{organization}/secrets/versions', { params: ofOrganization, body: level }
))
const versions = await listVersions()
expect(versions.data.length === 2 && versions.data[1]?.id === stored.data.version, versions)

step('restore the first version')
const restored = good(await client.POST('/api/v1/{organization}/secrets/versions/{version}/restore', {
  params: { path: { organization, version: stored.data.version } }, body: {}
}))
expect(restored.data.restored_from === stored.data.version, restored)

step('read it decrypted: the first document')
expect(await content() === 'A=first\n')

step('rotate the key')
const rotate = () => client.POST(
  '/api/v1/{organization}/{project}/encryption-key/rotate', { params: ofProject, body: { history_policy: 'keep' } }
)
const rotated = good(await rotate())
expect(rotated.data.key.attributes.version === '2', rotated)

step('rotate it once more: 429')
const limited = await rotate()
failed(limited, 429, 'rate_limit_exceeded')
expect(Number(limited.response.headers.get('retry-after')) > 0)

step('list the keys')
const keys = good(await client.GET('/api/v1/{organization}/{project}/encryption-key/history', { params: ofProject }))
expect(keys.data.length === 2, keys)

step('read it decrypted under the new key')
expect(await content() === 'A=first\n')

step('retrieve the document decrypted')
const retrieve = async (action: 'decrypt' | 'key:retrieve') => good(await client.POST(
  '/api/v1/{organization}/secrets/retrieve', { params: ofOrganization, body: { ...level, action } }
)).data
const retrieved = await retrieve('decrypt')
expect(retrieved.type === 'secrets' && retrieved.attributes.levels?.environment?.content === 'A=first\n', retrieved)

step('retrieve the key')
const key = await retrieve('key:retrieve')
expect(key.type === 'encryption-keys' && key.attributes.version === 2)

step('change two names of the document')
const change = async (body: { set?: Record<string, string>, unset?: string[] }) => good(await client.PATCH(
  '/api/v1/{organization}/{project}/{target}/{environment}/secrets', { params: ofEnvironment, body }
)).data
const changed = await change({ set: { A: 'third', C: 'new' } })
expect(changed.changed[0] === 'A' && changed.added[0] === 'C' && changed.version !== null, changed)

step('remove one of them')
const removed = await change({ unset: ['C'] })
expect(removed.removed[0] === 'C' && removed.version !== changed.version, removed)

step('list the names, merged, without values')
const names = good(await client.GET('/api/v1/{organization}/{project}/{target}/{environment}/secrets/names', {
  params: { ...ofEnvironment, query: { merge: true } }
}))
const [overriding, inherited] = names.data.map(({ attributes }) => attributes)
expect(overriding?.name === 'A' && overriding.level === 'environment' && overriding.overrides[0] === 'project', names)
expect(inherited?.name === 'B' && inherited.level === 'project' && names.meta.total === 2, names)

step('find the levels that have a name')
const found = good(await client.GET('/api/v1/{organization}/secrets/names', {
  params: { ...ofOrganization, query: { search: 'a' } }
}))
expect(found.data.length === 2 && found.meta.next === null, found)
expect(found.data.some(({ attributes }) => attributes.target === null), found)
expect(found.data.some(({ attributes }) => attributes.environment === 'live'), found)

step('compare the project with the environment')
const { attributes: differences } = good(await client.GET(
  '/api/v1/{organization}/{project}/{target}/{environment}/secrets/diff',
  { params: { ...ofEnvironment, query: { from: 'project', to: 'environment', values: true } } }
)).data
expect(differences.changed[0] === 'A' && differences.removed[0] === 'B', differences)
expect(differences.values?.[0]?.from === 'project' && differences.values[0].to === 'third', differences)
expect(differences.values[1]?.from === 'project' && differences.values[1].to === undefined, differences)

step('read the history of the removed name, the newest version first')
const changes = good(await client.GET(
  '/api/v1/{organization}/{project}/{target}/{environment}/secrets/names/history',
  { params: { ...ofEnvironment, query: { name: 'C', values: true } } }
))
expect(changes.data[0]?.id === removed.version && changes.data[0].attributes.value === null, changes)
expect(changes.data[1]?.id === changed.version && changes.data[1].attributes.value === 'new', changes)
expect(changes.meta.next === null, changes)

step('read the values')
const values = good(await client.GET(
  '/api/v1/{organization}/{project}/{target}/{environment}/secrets/values', { params: ofEnvironment }
))
expect(values.A === 'third' && values.B === 'project', values)

step('list the names of all levels')
const matrix = good(await client.GET('/api/v1/{organization}/{project}/secrets/matrix', { params: ofProject }))
const { levels, names: rows } = matrix.data.attributes
expect(levels.length === 3 && matrix.meta.total === 2 && matrix.meta.next_levels === null, matrix)
const [, above, lowest] = rows?.[0]?.cells ?? []
expect(above?.state === 'inherited' && lowest?.state === 'overrides' && above.value_group !== lowest.value_group, matrix)

step('plan a change without making it')
const planned = good(await client.PATCH('/api/v1/{organization}/{project}/{target}/{environment}/secrets', {
  params: { ...ofEnvironment, query: { dry_run: true } }, body: { set: { A: 'fourth' } }
}))
expect(planned.data.version === null && !planned.data.unchanged, planned)
expect(planned.dry_run?.levels[0]?.names?.changed[0] === 'A', planned)

step('list the projects: the last change')
const listed = good(await client.GET('/api/v1/{organization}/projects', { params: ofOrganization }))
const last = listed.data[0]?.attributes.last_change
expect(last?.version === removed.version && last?.created_by !== null, listed)

step('create a token that reads')
const created = good(await client.POST('/api/v1/organizations/{organization}/api-keys', {
  params: ofOrganization, body: { name: 'Reader', abilities: ['secret:read'] }
}))
const ofToken = { path: { organization, id: created.api_key.id } }
const reader = clientOf(created.token)

step('read with it: the document is encrypted')
const readEncrypted = () => reader.GET(
  '/api/v1/{organization}/{project}/{target}/{environment}/secrets', { params: ofEnvironment }
)
expect(good(await readEncrypted()).data.attributes.levels?.environment?.encrypted === true)

step('store with it: 403')
failed(await reader.POST('/api/v1/{organization}/secrets/store', {
  params: ofOrganization, body: { ...level, plaintext: 'A=third\n' }
}), 403, 'insufficient_permissions')

step('give it another value')
const value = good(await client.POST('/api/v1/organizations/{organization}/api-keys/{id}/rotate', {
  params: ofToken, body: {}
}))
expect(value.token !== created.token)

step('read with the value that it had: 401')
failed(await readEncrypted(), 401, 'unauthenticated')

step('delete the token')
const deleted = await client.DELETE('/api/v1/organizations/{organization}/api-keys/{id}', { params: ofToken })
expect(deleted.response.status === 204, deleted.error)

step('invite a person')
const invited = good(await client.POST('/api/v1/organizations/{organization}/members', {
  params: ofOrganization, body: { email: 'ada@nimbus.example', role: 'developer' }
}))
const ofInvitation = { path: { organization, invitation: invited.data.id } }

step('list the invitations')
const invitations = good(await client.GET('/api/v1/organizations/{organization}/invitations', { params: ofOrganization }))
expect(invitations.data.some(({ attributes }) => attributes.email === 'ada@nimbus.example'), invitations)

step('send the invitation again')
const sent = good(await client.POST('/api/v1/organizations/{organization}/invitations/{invitation}/send', {
  params: ofInvitation, body: {}
}))
expect(sent.data.id === invited.data.id, sent)

step('withdraw the invitation')
const withdrawn = await client.DELETE('/api/v1/organizations/{organization}/invitations/{invitation}', {
  params: ofInvitation
})
expect(withdrawn.response.status === 204, withdrawn.error)

step('list the plans: one allows more bytes than 32 bits count')
const plans = good(await client.GET('/api/v1/plans'))
expect(plans.data.some(({ attributes }) => Number(attributes.max_bytes) > 2 ** 32), plans)

step('read what is used')
const usage = good(await client.GET('/api/v1/organizations/{organization}/usage', { params: ofOrganization }))
expect(usage.data.attributes.bytes.used > 0, usage)
expect(usage.data.attributes.days.length === 31, usage)

step('read what the owner may do')
const [member] = good(await client.GET('/api/v1/organizations/{organization}/members', { params: ofOrganization })).data
const access = good(await client.GET('/api/v1/organizations/{organization}/members/{member}/access', {
  params: { path: { organization, member: member?.id ?? '' } }
})).data.attributes
expect(access.role === 'owner' && access.scopes.includes('secret:decrypt') && access.projects.length === 0, access)

step('read a target that is not there: 404')
failed(await client.GET('/api/v1/{organization}/{project}/{target}', {
  params: { path: { ...ofProject.path, target: 'nowhere' } }
}), 404, 'not_found')

step('store a document that does not parse: 422')
failed(await store(level, 'what'), 422, 'document_unreadable')

step('delete the document')
const emptied = await client.POST('/api/v1/{organization}/secrets/delete', { params: ofOrganization, body: level })
expect(emptied.response.status === 204, emptied.error)

step('purge its history')
const purged = good(await client.POST('/api/v1/{organization}/secrets/versions/purge', {
  params: ofOrganization, body: { ...level, confirmed: true }
}))
expect(purged.data.purged_count > 0, purged)

step('list the versions: none')
expect((await listVersions()).data.length === 0)

step('list the audit events of what was stored')
const events = good(await client.GET('/api/v1/{organization}/audit-events', {
  params: { ...ofOrganization, query: { action: 'secret.store' } }
}))
expect(events.data.length === 5, events)

step('count the audit events of each day')
const counts = good(await client.GET('/api/v1/{organization}/audit-events/counts', { params: ofOrganization }))
expect(counts.data.length === 31 && counts.data.some(({ attributes }) => attributes.count > 5), counts)

step('export the audit events of what was stored')
const lines = good(await client.GET('/api/v1/{organization}/audit-events/export', {
  params: { ...ofOrganization, query: { action: 'secret.store' } }, parseAs: 'text'
}))
// The client types the text as one of its media types.
expect(String(lines).split('\n').length === 6, lines)

step('delete the project')
const gone = await client.DELETE('/api/v1/{organization}/{project}', { params: ofProject })
expect(gone.response.status === 204, gone.error)

console.log(`${steps} steps`)
