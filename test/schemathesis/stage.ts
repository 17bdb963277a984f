import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import type { TestApp } from '../helpers/app.ts'
import { OPERATIONS, prepare, requestOf, settle, WORKLOAD, type Row } from '../helpers/operations.ts'
import { authorize, CALLBACK, issuePair, makePerson, makeTeam } from '../helpers/people.ts'

// Provides the test data of every operation, even if earlier operations have changed or deleted them. Without this,
// almost all generated requests would only get 404.

/** The test data of an operation: values for its path and for the members of its body, and a valid body and query. */
export interface Setting { ids: Record<string, string>, body?: object, query?: object }

export interface Stage {
  /** A token with all scopes, and a token of a person for the operations that need a person. */
  token: string
  person: string
  /** Restores the test data of an operation. */
  set (operation: string): Promise<Setting>
}

const newAddress = () => `newcomer-${Math.random().toString(36).slice(2)}@nimbus.example`

/** Creates the test data in a service that listens on the address. */
export async function openStage (service: TestApp, address: string): Promise<Stage> {
  const { caller, ids } = await settle(service, 'stage')
  const o = caller.organization
  const owner = await makePerson(service, { [o]: 'owner' })
  const { access: person } = await issuePair(service, owner, SCOPE_NAMES)
  const { project, target, environment } = ids as { project: string, target: string, environment: string }
  const levels = [{ project }, { project, target }, { project, target, environment }]

  const made = async (path: string, body: object, token = caller.token) => {
    const headers = { authorization: `Bearer ${token}` }
    const answer = await service.inject({ method: 'POST', url: `/api/v1${path}`, headers, payload: body })
    if (answer.status >= 300) throw new Error(`${path}: ${answer.text}`)
    return answer.body
  }
  const isThere = async (path: string) => (await caller.call('GET', path)).status === 200

  /** Functions that restore the resource behind a name in a path or a body. */
  const mend: Record<string, (row: Row) => Promise<unknown>> = {
    project: async ({ client }) => {
      if (client) return mendClient()
      const readable = levels.map((level) => isThere(`/${o}/${Object.values(level).join('/')}/secrets?decrypt=true`))
      if ((await Promise.all(readable)).every(Boolean)) return
      await caller.call('DELETE', `/${o}/${project}`)
      await made(`/${o}/projects`, { name: 'Project', slug: project })
      await made(`/${o}/${project}/targets`, { name: 'Target', slug: target })
      await made(`/${o}/${project}/${target}/environments`, { name: 'Environment', slug: environment })
      for (const level of levels) await made(`/${o}/secrets/store`, { ...level, plaintext: 'A=1' })
    },
    version: async () => {
      const level = levels.at(-1)!
      for (const plaintext of ['A=2', 'A=3']) await made(`/${o}/secrets/store`, { ...level, plaintext })
      ids.version = (await made(`/${o}/secrets/versions`, level)).data[1].id
    },
    id: async () => {
      if (await isThere(`/organizations/${o}/api-keys/${ids.id}`)) return
      ids.id = (await made(`/organizations/${o}/api-keys`, { name: 'Second', abilities: ['secret:read'] })).api_key.id
    },
    member: async () => {
      if (await isThere(`/organizations/${o}/members/${ids.member}`)) return
      ids.member = String((await makePerson(service, { [o]: 'api_user' })).id)
    },
    invitation: async ({ byPerson }) => {
      // The person accepts or declines the invitation of another organization.
      if (!byPerson && await isThere(`/organizations/${o}/invitations/${ids.invitation}`)) return
      const by = byPerson ? await service.organization() : caller
      const email = byPerson ? owner.email : newAddress()
      const body = { email, role: 'api_user' }
      // Earlier invitations count as members, of whom a plan that a request chose can have few.
      await service.sql(`DELETE FROM invitations WHERE organization_id = '${o}'`)
      ids.invitation = (await made(`/organizations/${by.organization}/members`, body, by.token)).data.id
    },
    workload: async () => {
      if (await isThere(`/organizations/${o}/workloads/${ids.workload}`)) return
      ids.workload = (await made(`/organizations/${o}/workloads`, WORKLOAD)).data.id
    },
    team: async () => {
      // Those of the operation before, because an organization has a limit of both.
      await caller.call('DELETE', `/organizations/${o}/teams/${ids.team}`)
      await caller.call('DELETE', `/organizations/${o}/members/${ids.member}`)
      const member = await makePerson(service, { [o]: 'api_user' })
      ids.member = String(member.id)
      ids.team = await makeTeam(service, o, [member], { [project]: 'api_user' })
    },
    payment_method: async () => {
      // An organization has at most a hundred payment methods.
      await service.sql(`DELETE FROM payment_methods WHERE organization_id = '${o}' AND NOT is_default`)
      const body = { kind: 'manual', label: 'Wire transfer', is_default: false }
      ids.payment_method = (await made(`/organizations/${o}/billing/payment-methods`, body)).data.id
    },
    charge: async () => {
      const body = { amount: 10_000, currency: 'EUR', description: 'Onboarding' }
      ids.charge = (await made(`/organizations/${o}/billing/charges`, body)).data.id
      await service.sql(`UPDATE charges SET status = 'succeeded' WHERE organization_id = '${o}' AND id = '${ids.charge}'`)
    }
  }

  async function mendClient () {
    const slug = ids.client!
    await caller.call('DELETE', `/${o}/${slug}`)
    const key = (n: number) => ({
      key_check: Buffer.alloc(32, n).toString('base64'),
      key_check_salt: Buffer.alloc(16).toString('base64'),
      key_check_iterations: 600_000
    })
    const content = Buffer.alloc(40).toString('base64')
    await made(`/${o}/projects`, { name: 'Client', slug, storage_mode: 'client', ...key(1) })
    const { data } = await made(`/${o}/secrets/store`, { project: slug, content, key_proof: key(1).key_check })
    ids.secret = data.secret_id
    ids.pending = data.version
    await made(
      `/${o}/${slug}/secrets/rotate-client-keys`, { secrets: [{ id: data.secret_id, content }], ...key(2) }
    )
  }

  async function set (operation: string): Promise<Setting> {
    const row = OPERATIONS[operation]!
    if (operation === 'deleteOrganization') {
      // A person has a limit of organizations, and requests created some.
      await service.sql(`DELETE FROM members WHERE user_id = ${owner.id} AND organization_id <> '${o}'`)
      const spare = await made('/organizations', { name: 'Spare' }, person)
      return { ids: { organization: spare.data.id }, body: { confirmed: true } }
    }
    if (operation === 'getAccessToken') {
      const { code, verifier } = await authorize(address, owner)
      const body = { grant_type: 'authorization_code', code, code_verifier: verifier, client_id: 'dotenv-cli' }
      return { ids, body: { ...body, redirect_uri: CALLBACK } }
    }
    ids.newcomer = newAddress()
    const named = new Set(JSON.stringify([row.at, requestOf(row, {}).payload]).match(/\w+/g))
    if (named.has('version')) named.add('project')
    for (const [name, one] of Object.entries(mend)) if (named.has(name)) await one(row)
    // A time at which all test data existed.
    ids.moment = new Date().toISOString()
    await prepare(service, row, ids)
    const { payload, url } = requestOf(row, ids)
    const query = Object.fromEntries(new URLSearchParams(url.split('?')[1]))
    const its = row.client ? { ...ids, project: ids.client! } : { ...ids }
    return { ids: its, ...(payload !== undefined && { body: payload }), ...(row.query !== undefined && { query }) }
  }
  return { token: caller.token, person, set }
}
