import { ulid } from 'ulidx'
import { open } from '../src/commands/common/open.ts'
import { loadConfig } from '../src/config.ts'
import { mintApiToken, storedToken } from '../src/crypto/bearer.ts'
import { createOrganization } from '../src/repositories/levels/organizations.ts'
import { createToken } from '../src/repositories/people/tokens.ts'
import { makeStorageKey } from '../src/vault/keys/keys.ts'
import type { Request } from './load.ts'

export interface Tenant { id: string, token: string }

/** The level in which `fillTenants` stores a document. */
export const LEVEL = { project: 'orbit', target: 'backend', environment: 'live' }

/** A document in .env format whose blob has 4,096 characters in base64. */
export const DOCUMENT = Array.from({ length: 64 }, (_, i) =>
  `SETTING_${String(i).padStart(2, '0')}=${String(i * 7919).padStart(36, '0')}`)
  .join('\n').padEnd(3044, '#').slice(0, 3044)

/** Migrates the database and creates organizations, numbered from `first`, each with a token with all abilities. */
export async function makeTenants (env: Record<string, string>, count: number, first = 1): Promise<Tenant[]> {
  const { database, keyring } = await open(loadConfig(env), { creates: true })
  const tenants: Tenant[] = []
  for (let i = first; i < first + count; i++) {
    const id = ulid()
    const token = mintApiToken(id)
    await createOrganization(database.db, {
      id, name: `Tenant ${i}`, slug: `tenant-${i}`, plan: 'self-hosted', storage_key: makeStorageKey(keyring, id)
    })
    await createToken(database.db, {
      organization_id: id,
      name: 'Benchmark',
      ...storedToken(token),
      abilities: ['*'],
      slices: [],
      expires_at: null
    })
    tenants.push({ id, token })
  }
  await database.close()
  return tenants
}

/** Stores a document in `orbit/backend/live` of every tenant. Returns the version ids in the order of the tenants. */
export async function fillTenants (url: string, tenants: Tenant[]): Promise<string[]> {
  const created: string[] = []
  // Low concurrency, because each project creation derives a key, and a busy service refuses queued key derivations.
  await several(tenants.length, async (i) => {
    await makeLevel(url, tenants[i]!, 'orbit')
    const { data } = await send(url, storing(tenants[i]!)) as { data: { version: string } }
    created[i] = data.version
  }, 4)
  return created
}

/** Creates a project `layers` with a document at each of three levels. */
export async function fillLayers (url: string, tenant: Tenant): Promise<void> {
  await makeLevel(url, tenant, 'layers')
  for (const level of [
    { project: 'layers' }, { project: 'layers', target: 'backend' }, { ...LEVEL, project: 'layers' }
  ]) {
    await send(url, storing(tenant, level))
  }
}

/** Creates a project `history` with one document that has this number of versions. */
export async function fillHistory (url: string, tenant: Tenant, versions: number): Promise<void> {
  await makeLevel(url, tenant, 'history')
  const request = storing(tenant, { ...LEVEL, project: 'history' })
  await several(versions, () => send(url, request))
}

/** Creates a project with documents in different environments. Returns the slugs of the environments. */
export async function fillDocuments (
  url: string, tenant: Tenant, project: string, documents: number, versions: number
): Promise<string[]> {
  const { id, token } = tenant
  await makeTarget(url, tenant, project)
  const environments = Array.from({ length: documents }, (_, i) => `env-${i}`)
  await several(documents, (i) =>
    send(url, posting(token, `/api/v1/${id}/${project}/backend/environments`, { name: environments[i] })))
  await several(documents * versions, (i) =>
    send(url, storing(tenant, { project, target: 'backend', environment: environments[i % documents] })))
  return environments
}

/** Creates projects with one document each. Returns the slugs of the projects. */
export async function fillProjects (url: string, tenant: Tenant, name: string, count: number): Promise<string[]> {
  const projects = Array.from({ length: count }, (_, i) => `${name}-${i}`)
  await several(count, async (i) => {
    await send(url, posting(tenant.token, `/api/v1/${tenant.id}/projects`, { name: projects[i] }))
    await send(url, storing(tenant, { project: projects[i] }))
  // Low concurrency, because each creation derives a key.
  }, 4)
  return projects
}

export function storing ({ id, token }: Tenant, level: object = LEVEL): Request {
  return posting(token, `/api/v1/${id}/secrets/store`, { ...level, plaintext: DOCUMENT })
}

export function posting (token: string, path: string, body: object): Request {
  return {
    method: 'POST',
    path,
    headers: {
      authorization: `Bearer ${token}`, 'content-type': 'application/json'
    },
    body: JSON.stringify(body)
  }
}

export function getting (token: string, path: string, headers: Record<string, string> = {}): Request {
  return { method: 'GET', path, headers: { authorization: `Bearer ${token}`, ...headers } }
}

/** Sends a request and returns its body, or undefined without one; throws on an error status. */
export async function send (url: string, { method, path, headers, body }: Request): Promise<unknown> {
  const answer = await fetch(url + path, { method, ...headers && { headers }, ...body !== undefined && { body } })
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`)
  return answer.status === 204 ? undefined : answer.json()
}

async function makeTarget (url: string, { id, token }: Tenant, project: string): Promise<void> {
  await send(url, posting(token, `/api/v1/${id}/projects`, { name: project }))
  await send(url, posting(token, `/api/v1/${id}/${project}/targets`, { name: 'backend' }))
}

/** Creates a project with the target `backend` and the environment `live`. */
export async function makeLevel (url: string, tenant: Tenant, project: string): Promise<void> {
  const { id, token } = tenant
  await makeTarget(url, tenant, project)
  await send(url, posting(token, `/api/v1/${id}/${project}/backend/environments`, { name: 'live' }))
}

/** Runs the work `count` times, `atOnce` concurrently. */
export async function several (count: number, work: (i: number) => Promise<unknown>, atOnce = 25): Promise<void> {
  let next = 0
  await Promise.all(Array.from({ length: atOnce }, async () => {
    while (next < count) await work(next++)
  }))
}
