// runs: one database; 270 s
import { cpSync, mkdirSync, rmSync } from 'node:fs'
import type { KeyObject } from 'node:crypto'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import type { FastifyInstance } from 'fastify'
import { sql } from 'drizzle-orm'
import postgres from 'postgres'
import t, { type Test } from 'tap'
import { ulid } from 'ulidx'
import { buildApp } from '../../src/app.ts'
import { open, type Opened } from '../../src/commands/common/open.ts'
import { rewrap } from '../../src/commands/keys/rewrap.ts'
import { loadConfig } from '../../src/config.ts'
import { openBlob, sealBlob } from '../../src/crypto/blob.ts'
import { deriveDataKey, makeProof } from '../../src/crypto/key-proof.ts'
import { createKeyring, generateMasterKey, parseMasterKey } from '../../src/crypto/keyring.ts'
import { connect, type Database } from '../../src/db/database.ts'
import { createReadRecorder } from '../../src/changes/change.ts'
import { listReEncryptions } from '../../src/repositories/secrets/re-encryption.ts'
import { openCurrent, openVersion } from '../../src/vault/documents/documents.ts'
import {
  checkHashOf, dataKeyOf, keyCheckOf, keyStringOf, saltOf, storageKeyOf
} from '../../src/vault/keys/keys.ts'
import { openRows } from '../../src/jobs/violations.ts'
import { createHistoryWorker } from '../../src/jobs/history.ts'
import { makeOrganization, makeToken, ON_CITUS } from '../helpers/app.ts'
import { clientKey, type ClientKey } from '../helpers/client.ts'
import { QUICK } from '../helpers/costs.ts'
import { cutAt, killAgainAndAgain, runUntilKilled, type Kills } from '../helpers/crash.ts'
import { perform as performWork, type Work } from '../helpers/crash-process.ts'
import { IN_PROOFS, LONG, sample } from '../helpers/long.ts'
import { command, emptyPlace, scratchDirectory } from '../helpers/process.ts'
import { beside } from '../helpers/statements.ts'
import { ON_POSTGRES } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'
import { openWay, type Way } from '../helpers/way.ts'

// The first proof kills servers while clients write. After a restart, every acknowledged write must exist, however long
// the start takes. test/faults/kills kills servers hundreds of times, at random times.
//
// The second proof interrupts a key change at every point. It severs the connections or kills the process. Each point
// uses a copy of the database, and a copy serves again if the database has not changed. Afterwards the database must be
// unchanged to the last byte, or contain exactly the changes of the whole operation. Then the test repeats the
// operation.
//
// For PostgreSQL, a severed connection and a killed client are the same, and a severed connection is a second faster.
// The long form of this test also kills processes on the embedded database and servers on PostgreSQL.

t.setTimeout(LONG ? 2_160_000 : 540_000)

const KILLS = { postgres: 10, embedded: LONG ? 10 : 1 }
// A point between the first and the last statement of long operations.
const MIDDLE = 20
const MOVING = 30
const BATCH = 25

const [OLD, NEW] = ['k1', 'k2'].map((id) => generateMasterKey().text.replace(/^[^:]+/, id)) as [string, string]
const ringOf = (...keys: string[]) => createKeyring(keys.map(parseMasterKey))
const ring = ringOf(OLD, NEW)
const LIMITS = { RATE_LIMIT_API: '0', RATE_LIMIT_KEY_ROTATION: '0', RATE_LIMIT_LONG_OPERATIONS: '0', LOG_LEVEL: 'silent', DOCS_UI: 'off' }
const WITH_OLD = { ...LIMITS, MASTER_KEY: OLD }
const WITH_BOTH = { ...LIMITS, MASTER_KEY: NEW, MASTER_KEYS_PREVIOUS: OLD }

type Row = Record<string, any>
type Env = Record<string, string>

const TABLES = [
  'organizations', 'organization_counters', 'projects', 'encryption_keys', 'targets', 'environments', 'secrets',
  'secret_versions', 're_encryptions', 'audit_events',
  'master_key_canaries', 'service_keys'
] as const
type State = Record<typeof TABLES[number], Row[]>

/** All rows of all tables that an operation could change. */
async function stateOf ({ db }: Database): Promise<State> {
  const entries = []
  for (const table of TABLES) {
    const rows = await beside(async () =>
      await db.execute(sql.raw(`SELECT to_jsonb(t) AS row FROM ${table} t`))) as unknown as { row: Row }[]
    const idOf = ({ id, seq, key_id, project_id, name }: Row) => id ?? seq ?? key_id ?? project_id ?? name
    entries.push([table, rows.map(({ row }) => row).sort((a, b) => idOf(a) < idOf(b) ? -1 : 1)])
  }
  return Object.fromEntries(entries) as State
}

const bytes = (hex: string | null) => hex === null ? null : Buffer.from(hex.slice(2), 'hex')

/** Data keys that only clients have, by project and version. */
const held = new Map<string, KeyObject>()

/**
 * The decrypted state. Opens contents and wrapped values with the key that each names, and throws if one does not open.
 * Replaces a time after `since` by 'new'. Leaves out MACs, because the service verifies them when it continues.
 */
function view (state: State, since: number): State {
  const [organization] = state.organizations.map((row) =>
    ({ ...row, id: row.id as string, storage_key: bytes(row.storage_key)! }))
  const storageKey = storageKeyOf(ring, organization!)
  const projects = new Map(state.projects.map((project) => [project.id, project as { key_version: number }]))
  const keys = new Map(state.encryption_keys.map((row) => {
    const kept = Object.fromEntries(([
      'key_string', 'data_key', 'key_check', 'key_check_hash', 'salt'
    ] as const).map((column) => [column, bytes(row[column])]))
    const key = { ...row, ...kept } as any
    return [`${row.project_id}/${row.version}`, key]
  }))
  const plain = (project: string, version: number, blob: string) => {
    const key = keys.get(`${project}/${version}`)
    const dataKey = key?.data_key ? dataKeyOf(ring, key) : held.get(`${project}/${version}`)
    const content = dataKey && openBlob(dataKey, blob)?.toString()
    if (key === undefined || content === undefined) throw new Error(`what is under key ${version} does not open`)
    return content
  }
  const secrets = new Map(state.secrets.map((secret) => [secret.id, secret as any]))
  const newest = new Map<string, number>()
  for (const { history_id, revision } of state.secret_versions) {
    newest.set(history_id, Math.max(revision, newest.get(history_id) ?? 0))
  }
  const seen: State = {
    ...state,
    organizations: state.organizations.map((row) =>
      ({ ...row, storage_key: storageKey.export().toString('hex'), master: ring.idOf(bytes(row.storage_key)!) })),
    encryption_keys: [...keys.values()].map((key) => ({
      ...key,
      key_string: keyStringOf(ring, key),
      data_key: key.data_key && dataKeyOf(ring, key).export().toString('hex'),
      key_check: keyCheckOf(ring, key)?.toString('base64'),
      key_check_hash: key.key_check_hash && (checkHashOf(
        storageKey, key, keyCheckOf(ring, key)!
      ).equals(key.key_check_hash)
        ? 'its own'
        : 'of another proof'),
      salt: saltOf(ring, key).toString('base64'),
      masters: [...new Set([key.key_string, key.data_key, key.key_check, key.salt].flatMap((value) =>
        value === null ? [] : ring.idOf(value)))]
    })),
    secrets: state.secrets.map((secret: any) => {
      if (secret.sealed === null) return secret
      const document = { ...secret, sealed: bytes(secret.sealed)!, recorded_revision: newest.get(secret.id) ?? null }
      const blob = openCurrent(
        storageKey, { organization_id: organization!.id, project: projects.get(secret.project_id)! }, document
      )
      return { ...secret, sealed: plain(secret.project_id, secret.key_version, blob) }
    }),
    secret_versions: state.secret_versions.map((version: any) => {
      const secret = secrets.get(version.history_id)
      const blob = openVersion(storageKey, organization!.id, { version, secret, sealed: bytes(version.sealed)! })
      return { ...version, sealed: plain(secret.project_id, version.key_version, blob) }
    }),
    audit_events: state.audit_events.map(({ request_id: _, ...event }) => event),
    master_key_canaries: canariesOf(state),
    service_keys: state.service_keys.map(({ name, wrapped }) => ({ name, master: ring.idOf(bytes(wrapped)!) }))
  }
  for (const table of TABLES) {
    // The seal covers the previous rows, so it differs each time.
    seen[table] = seen[table].map(({ mac: _, event_head: __, ...row }) =>
      Object.fromEntries(Object.entries(row).map(([name, value]) => [name, time(name, value) > since ? 'new' : value])))
  }
  return seen
}

const canariesOf = (state: State) => state.master_key_canaries.map(({ key_id }) => ({ key_id }))

const time = (name: string, value: unknown) => name.endsWith('_at') && typeof value === 'string' ? Date.parse(value) : 0

const change = (rows: Row[], which: (row: Row) => boolean, to: (row: Row) => Row) =>
  rows.map((row) => which(row) ? { ...row, ...to(row) } : row)
const ofProject = (id: string) => (row: Row) => row.project_id === id

/** The details of an event that name its project. */
function placeOf ({ projects }: State, id: string): Row {
  return { project_id: id, project: projects!.find((project) => project.id === id)!.slug }
}

/** Adds one audit event to a state. */
function withEvent (state: State, event: Row): State {
  const [{ next_event: seq, organization_id }] = state.organization_counters as [Row]
  const { actor_type, actor_id, ip, user_agent, chain_kid } = state.audit_events[0]!
  return {
    ...state,
    organization_counters: change(state.organization_counters, () => true, () =>
      ({ next_event: seq + 1, last_at: 'new' })),
    audit_events: [...state.audit_events, {
      organization_id,
      seq,
      occurred_at: 'new',
      actor_type,
      actor_id,
      resource_type: 'project',
      ip,
      user_agent,
      chain_kid,
      ...event,
      details: { ...event.details, ...placeOf(state, event.resource_id) }
    }]
  }
}

/** The state after a complete rotation. `key` contains the new values of the new key. */
function rotated (before: State, id: string, key: Row, details: Row, re_encryption: Row[]): State {
  const project = before.projects.find((row) => row.id === id)!
  const version = project.key_version + 1
  const documents = before.secrets.filter((row) => row.project_id === id && row.sealed !== null)
  const [{ next_version: first, organization_id, stored_bytes }] = before.organization_counters as [Row]
  const idOf = new Map(documents.map((row, i) => [row.id, first + i]))
  const rotatedKeys = change(before.encryption_keys, (row) => row.project_id === id && row.is_active, () =>
    ({ is_active: false, rotated_at: 'new' }))
  const active = before.encryption_keys.find((row) => row.project_id === id && row.is_active)!
  const versions = documents.map((row) => ({
    ...before.secret_versions[0],
    id: idOf.get(row.id),
    history_id: row.history_id,
    action: 'rotate',
    revision: row.revision + 1,
    key_version: version,
    sealed: row.sealed,
    size_bytes: row.size_bytes,
    restored_from: null,
    created_at: 'new'
  }))
  const made: State = {
    ...before,
    projects: change(before.projects, (row) => row.id === id, () => ({ key_version: version, updated_at: 'new' })),
    encryption_keys: [
      ...rotatedKeys, { ...active, ...key, version, created_at: 'new', hint: null, is_active: true, rotated_at: null }
    ],
    secrets: change(before.secrets, (row) => idOf.has(row.id), (row) => ({
      revision: row.revision + 1,
      key_version: version,
      version: idOf.get(row.id),
      version_count: row.version_count + 1,
      version_bytes: row.version_bytes + row.size_bytes,
      updated_at: 'new'
    })),
    secret_versions: [...before.secret_versions, ...versions],
    re_encryptions: [...before.re_encryptions, ...re_encryption.map((row) =>
      ({ organization_id, project_id: id, moved: 0, started_at: 'new', finished_at: null, unreadable: 0, ...row }))]
      .sort((a, b) => a.project_id < b.project_id ? -1 : 1),
    organization_counters: change(before.organization_counters, () => true, () =>
      ({
        next_version: first + documents.length,
        stored_bytes: documents.reduce((sum, { size_bytes }) => sum + size_bytes, stored_bytes)
      }))
  }
  return withEvent(made, {
    action: 'key.rotate',
    resource_id: id,
    details: {
      managed: active.managed,
      from: version - 1,
      to: version,
      documents: documents.length,
      first_version: first,
      ...details
    }
  })
}

interface Service {
  app: FastifyInstance
  database: Database
  call (method: string, path: string, body?: unknown): Promise<{ status: number, body: any }>
}

interface Operation {
  name: string
  env: Env
  work: Work
  /** The expected state after this number of commits. Unpredictable values come from `after`. */
  expected (before: State, commits: number, after: State): State
  /** The number of commits of the whole operation. */
  commits: number
  /** Runs the whole operation, or the remaining part. */
  repeat (service: Service): Promise<void>
  /** Checks that the project works after the operation. */
  goOn (service: Service): Promise<void>
}

const at = (project: string) => ({ project, target: 'backend', environment: 'live' })
const sealedFor = (key: ClientKey, plaintext: string) =>
  ({ content: sealBlob(key.dataKey, plaintext), key_proof: key.proof })
const triple = ({ registration: { storage_mode: _, ...rest } }: ClientKey) => rest

/** Creates an organization with projects for every operation. Returns the operations. */
async function seed (
  database: Database, documents: number
): Promise<{ token: string, organization: string, operations: Operation[] }> {
  const keyring = ringOf(OLD)
  await openRows(database, keyring)
  const app = await buildApp({ config: loadConfig(WITH_OLD), database, keyring, costs: QUICK })
  const organization = await makeOrganization(database.db, keyring, { slug: 'nimbus' })
  const token = await makeToken(database.db, organization, ['*'])
  const service = serviceOf(app, database, organization, token)
  const call = async (method: string, path: string, body?: unknown) => {
    const answer = await service.call(method, path, body)
    if (answer.status >= 300) throw new Error(`${method} ${path}: ${JSON.stringify(answer.body)}`)
    return answer.body
  }
  const request = (method: 'POST' | 'PATCH', path: string, payload: object): Work =>
    ({
      request: {
        method, url: `/api/v1/${organization}${path}`, headers: { authorization: `Bearer ${token}` }, payload
      }
    })
  const again = async ({ call }: Service, method: string, path: string, body: object) => {
    // A process runs one key custody change of an organization at a time, and the parallel runs share the organization.
    let { status, body: answer } = await call(method, path, body)
    for (let more = 0; status === 409 && more < 20; more++) {
      await new Promise((resolve) => { setTimeout(resolve, 250) })
      ;({ status, body: answer } = await call(method, path, body))
    }
    if (status !== 200) throw new Error(`${method} ${path} again: ${JSON.stringify(answer)}`)
  }
  const isDone = async ({ call }: Service, slug: string) => {
    const { re_encryption } = (await call('GET', `/${slug}/encryption-key/history`)).body
    const { state, moved, total, remaining } = re_encryption
    if (state !== 'done' || moved !== total || remaining !== 0) throw new Error(JSON.stringify(re_encryption))
  }
  const project = async (slug: string, more: object = {}, environments = ['Live']): Promise<string> => {
    const { data } = await call('POST', '/projects', { name: slug, slug, ...more })
    await call('POST', `/${slug}/targets`, { name: 'Backend' })
    for (const name of environments) await call('POST', `/${slug}/backend/environments`, { name })
    return data.attributes.ulid
  }
  const clientProject = async (slug: string, text: string) => {
    const key = await clientKey(text)
    const id = await project(slug, key.registration)
    held.set(`${id}/1`, key.dataKey)
    for (let i = 0; i < 5; i++) await call('POST', '/secrets/store', { ...at(slug), ...sealedFor(key, `N=${i}`) })
    await call('POST', '/secrets/store', { project: slug, ...sealedFor(key, 'LEVEL=project') })
    return { id, key }
  }
  /** The request body of a rotation by the client. */
  const rotation = async (slug: string, old: ClientKey, fresh: ClientKey, through: Service['call'] = service.call) => {
    const { body } = await through('GET', `/${slug}/backend/live/secrets`)
    const convert = (content: string) => sealBlob(fresh.dataKey, openBlob(old.dataKey, content)!)
    const secrets = Object.values<any>(body.data.attributes.levels).map(({ id, content, etag }) =>
      ({ id, content: convert(content), etag }))
    return { secrets, ...triple(fresh), history_policy: 're_encrypt' }
  }
  const keyOf = (state: State, id: string, version: number) =>
    state.encryption_keys.find((row) => row.project_id === id && row.version === version)!
  const waiting = (state: State, id: string) => {
    const ids = new Set(state.secrets.filter(ofProject(id)).map((row) => row.id))
    return state.secret_versions.filter((row) => ids.has(row.history_id)).length
  }

  const environments = Array.from({ length: documents - 2 }, (_, i) => i === 0 ? 'Live' : `Env ${i}`)
  const turned = await project('turned', {}, environments)
  const levels = [
    { project: 'turned' }, { project: 'turned', target: 'backend' },
    ...environments.map((name) => ({ ...at('turned'), environment: name.toLowerCase().replace(' ', '-') }))
  ]
  for (const [i, level] of levels.entries()) await call('POST', '/secrets/store', { ...level, plaintext: `LEVEL=${i}` })
  for (let i = 0; i < 5; i++) await call('POST', '/secrets/store', { ...at('turned'), plaintext: `N=${i}` })
  await call('POST', '/secrets/delete', { ...levels.at(-1) })

  const ours = await clientProject('ours', 'first battery staple')
  const second = await clientKey('second battery staple')
  const third = await clientKey('third battery staple')
  held.set(`${ours.id}/2`, second.dataKey).set(`${ours.id}/3`, third.dataKey)
  const body = await rotation('ours', ours.key, second)

  const moving = await project('moving')
  for (let i = 0; i < MOVING; i++) await call('POST', '/secrets/store', { ...at('moving'), plaintext: `N=${i}` })
  // Requests the work with SQL, because the worker of this app would start at once.
  await call('POST', '/moving/encryption-key/rotate', { history_policy: 'keep' })
  await database.db.execute(sql.raw(
    `INSERT INTO re_encryptions (project_id, organization_id, total) VALUES ('${moving}', '${organization}', ${MOVING})`
  ))

  const handing = await clientProject('handing', 'first of another client')
  const theirs = await clientKey('second of another client')
  held.set(`${handing.id}/2`, theirs.dataKey)
  await call('POST', '/handing/secrets/rotate-client-keys', await rotation('handing', handing.key, theirs))
  const pending = async (through: Service['call'], limit: number) => {
    const { data } = (await through('POST', '/handing/secrets/re-encrypt-history/pending', { limit })).body
    const versions = data.map(({ id, content }: any) =>
      ({ id, content: sealBlob(theirs.dataKey, openBlob(handing.key.dataKey, content)!) }))
    return { versions, key_proof: theirs.proof }
  }
  const batch = await pending(service.call, 4)
  const batchIds = new Set(batch.versions.map(({ id }: any) => id))

  const kept = await project('kept')
  await call('POST', '/kept/encryption-key/rotate')
  for (let i = 0; i < 3; i++) await call('POST', '/secrets/store', { ...at('kept'), plaintext: `N=${i}` })
  const {
    key: keyString, key_check_salt, key_check_iterations
  } = (await call('GET', '/kept/encryption-key')).data.attributes
  const keptSalt = Buffer.from(key_check_salt, 'base64')
  held.set(`${kept}/2`, await deriveDataKey(keyString, keptSalt, key_check_iterations))
  const key_check = await makeProof(keyString, keptSalt, key_check_iterations)
  const toClient = { storage_mode: 'client', key_check, key_check_salt, key_check_iterations, key_proof: key_check }
  const toServer = { storage_mode: 'server', encryption_key: keyString }

  const given = await clientProject('given', 'a key for the server')
  const givenToServer = { storage_mode: 'server', encryption_key: 'a key for the server' }

  await app.close()
  const custody = (before: State, id: string, managed: string, body: object, key: Row, details: Row): State => {
    const keys = change(
      before.encryption_keys, (row) => row.project_id === id && row.is_active, () => ({ managed, ...key })
    )
    return withEvent({
      ...before,
      projects: change(before.projects, (row) => row.id === id, () =>
        ({ encryption_type: managed, updated_at: 'new' })),
      encryption_keys: managed === 'server'
        ? keys
        : change(
          keys, (row) => row.project_id === id && !row.is_active, () => ({ key_string: undefined, data_key: null })
        )
    }, {
      action: 'key.change_custody',
      resource_id: id,
      details: { members: Object.keys(body).join(' '), to: managed, server_knew_key: true, ...details }
    })
  }
  // The order matters: no operation finishes work that an earlier one has left.
  const operations: Operation[] = [{
    name: 'the re-encryption of a history in the background',
    env: WITH_OLD,
    work: { run: 'worker' },
    // Two batches, one batch without rows, and the end.
    commits: 4,
    expected: (before, commits) => {
      const moved = Math.min(commits * BATCH, MOVING)
      const secrets = new Set(before.secrets.filter(ofProject(moving)).map((row) => row.id))
      const ids = new Set(before.secret_versions.filter((row) =>
        secrets.has(row.history_id) && row.key_version === 1).map((row) => row.id).slice(0, moved))
      const state = {
        ...before,
        secret_versions: change(before.secret_versions, (row) => ids.has(row.id), () => ({ key_version: 2 })),
        re_encryptions: change(before.re_encryptions, ofProject(moving), () =>
          ({ total: MOVING, moved, finished_at: commits === 4 ? 'new' : null }))
      }
      if (commits < 4) return state
      const event = {
        actor_type: 'system',
        actor_id: null,
        ip: null,
        user_agent: null,
        resource_id: moving,
        details: { key_version: 2, versions: MOVING, unreadable: 0 }
      }
      return withEvent(state, { action: 'history.re_encrypt', ...event })
    },
    repeat: ({ database }) => moveAll(database),
    goOn: (service) => isDone(service, 'moving')
  }, {
    name: 'a rotation by the server',
    env: WITH_OLD,
    work: request('POST', '/turned/encryption-key/rotate', { history_policy: 're_encrypt' }),
    commits: 1,
    expected: (before, commits, after) => {
      if (commits === 0) return before
      const { id, key_string, data_key, salt } = keyOf(after, turned, 2) ?? {}
      return rotated(
        before, turned, { id, key_string, data_key, salt }, { history_policy: 're_encrypt' },
        [{ total: waiting(before, turned) }]
      )
    },
    repeat: (service) => again(service, 'POST', '/turned/encryption-key/rotate', { history_policy: 're_encrypt' }),
    goOn: async (service) => {
      await moveAll(service.database)
      await isDone(service, 'turned')
      await again(service, 'POST', '/secrets/store', { ...at('turned'), plaintext: 'N=later' })
      await again(service, 'POST', '/turned/encryption-key/rotate', { history_policy: 'keep' })
    }
  }, {
    name: 'a rotation by the client',
    env: WITH_OLD,
    work: request('POST', '/ours/secrets/rotate-client-keys', body),
    commits: 1,
    expected: (before, commits, after) => {
      if (commits === 0) return before
      const key = { id: keyOf(after, ours.id, 2)?.id, key_check: second.proof, salt: second.salt.toString('base64') }
      return rotated(before, ours.id, key, { history_policy: 're_encrypt' }, [{ total: waiting(before, ours.id) }])
    },
    repeat: (service) => again(service, 'POST', '/ours/secrets/rotate-client-keys', body),
    goOn: async (service) =>
      again(service, 'POST', '/ours/secrets/rotate-client-keys', await rotation('ours', second, third, service.call))
  }, {
    name: 'the re-encryption of a history by the client',
    env: WITH_OLD,
    work: request('POST', '/handing/secrets/re-encrypt-history', batch),
    commits: 1,
    expected: (before, commits) => {
      if (commits === 0) return before
      const state = {
        ...before,
        secret_versions: change(before.secret_versions, (row) => batchIds.has(row.id), () => ({ key_version: 2 })),
        re_encryptions: change(before.re_encryptions, ofProject(handing.id), () => ({ moved: batchIds.size }))
      }
      return withEvent(state, {
        action: 'history.re_encrypt', resource_id: handing.id, details: { key_version: 2, versions: 4, remaining: 2 }
      })
    },
    repeat: (service) => again(service, 'POST', '/handing/secrets/re-encrypt-history', batch),
    goOn: async (service) => {
      await again(service, 'POST', '/handing/secrets/re-encrypt-history', await pending(service.call, 10))
      await isDone(service, 'handing')
    }
  }, {
    name: 'a change of custody to the client',
    env: WITH_OLD,
    work: request('PATCH', '/kept', toClient),
    commits: 1,
    expected: (before, commits) => commits === 0
      ? before
      : custody(
        before, kept, 'client', toClient,
        { key_string: undefined, data_key: null, key_check, key_check_hash: 'its own' },
        { from: 'server', key_version: 2 }
      ),
    repeat: (service) => again(service, 'PATCH', '/kept', toClient),
    goOn: (service) => again(service, 'PATCH', '/kept', toServer)
  }, {
    name: 'a change of custody to the server',
    env: WITH_OLD,
    work: request('PATCH', '/given', givenToServer),
    commits: 1,
    expected: (before, commits) => {
      const key = {
        key_string: givenToServer.encryption_key,
        data_key: given.key.dataKey.export().toString('hex'),
        key_check: undefined,
        key_check_hash: null
      }
      return commits === 0
        ? before
        : custody(before, given.id, 'server', givenToServer, key, { from: 'client', key_version: 1 })
    },
    repeat: (service) => again(service, 'PATCH', '/given', givenToServer),
    goOn: (service) =>
      again(service, 'PATCH', '/given', { storage_mode: 'client', ...triple(given.key), key_proof: given.key.proof })
  }, {
    name: 'a re-wrap of the master key',
    env: WITH_BOTH,
    work: { run: 'rewrap' },
    // The service's keys, the chain keys, the organizations, the project keys and the second factors. Then a second
    // pass that finds no rows, and the removal of the old key.
    commits: 11,
    expected: (before, commits) => ({
      ...before,
      service_keys: change(before.service_keys, () => true, () => ({ master: commits < 1 ? 'k1' : 'k2' })),
      organizations: change(before.organizations, () => true, () => ({ master: commits < 3 ? 'k1' : 'k2' })),
      encryption_keys: change(before.encryption_keys, () => true, () => ({ masters: [commits < 4 ? 'k1' : 'k2'] })),
      master_key_canaries: [...commits < 11 ? [{ key_id: 'k1' }] : [], { key_id: 'k2' }]
    }),
    repeat: async ({ database }) => {
      const { failures, older } = await rewrap({ database, keyring: ringOf(NEW, OLD) })
      if (!isDeepStrictEqual([failures, older], [[], [{ id: 'k1', values: 0 }]])) {
        throw new Error(JSON.stringify({ failures, older }))
      }
    },
    goOn: async (service) => {
      service.app.keyring = ringOf(NEW)
      const { body } = await service.call('GET', '/turned/backend/live/secrets?decrypt=true')
      service.app.keyring = ring
      if (body.data.attributes.levels.environment.content !== 'N=4') throw new Error(JSON.stringify(body))
    }
  }]
  return { token, organization, operations }
}

/** Lets a worker of this process finish all pending work. */
async function moveAll ({ db }: Database): Promise<void> {
  let { length: left } = await listReEncryptions(db)
  if (left === 0) return
  await new Promise<void>((resolve, reject) => {
    const warn = (details: object, message: string) => reject(new Error(`${message}: ${JSON.stringify(details)}`))
    const info = (_details: object, message: string) => {
      if (message === 'history re-encrypted' && --left === 0) {
        resolve()
      }
    }
    createHistoryWorker({ db, keyring: ring, log: { info, warn } }).wake()
  })
}

function serviceOf (app: FastifyInstance, database: Database, organization: string, token: string): Service {
  return {
    app,
    database,
    call: async (method, path, body) => {
      const headers = { authorization: `Bearer ${token}` }
      const response = await app.inject({
        method: method as 'GET',
        url: `/api/v1/${organization}${path}`,
        headers,
        ...(body !== undefined && { payload: body as object })
      })
      return { status: response.statusCode, body: response.payload === '' ? undefined : response.json() }
    }
  }
}

/** Connects the app to another database with all its handles. */
function serving (app: FastifyInstance, database: Database): FastifyInstance {
  const handles = Object.entries(database).filter(([name, handle]) =>
    app.hasDecorator(name) && typeof handle === 'object')
  return Object.assign(
    app, Object.fromEntries(handles),
    { recordRead: createReadRecorder(database.db, database.kind === 'embedded' ? 'on' : 'off') }
  )
}

/** `t.same` serializes both values before it compares them, which takes too long for a whole database. */
const same = (t: Test, found: unknown, wanted: unknown, name: string) =>
  isDeepStrictEqual(found, wanted) ? t.pass(name) : t.strictSame(found, wanted, name)

interface Copy { env: Env, connect (): Promise<Database>, drop (): Promise<void> }

interface Databases {
  seeded: Copy
  copy (): Promise<Copy>
  /** The number of documents that the server rotates. */
  documents: number
  /** A proxy to a copy whose connections the test can sever. Without a proxy, the test kills processes. */
  wayTo? (copy: Copy): Promise<Way>
}

/** Seeds a database and interrupts every operation on copies of it, at the points that `choose` selects. */
async function killEverywhere (t: Test, databases: Databases, choose: (points: string[]) => number[]) {
  const { seeded, copy, documents, wayTo } = databases
  await (await open(loadConfig({ ...WITH_OLD, ...seeded.env }), { creates: true })).database.close()
  const first = await seeded.connect()
  const { token, organization, operations } = await seed(first, documents)
  const before = await stateOf(first)
  const since = Date.parse((await first.db.execute(
    sql.raw('SELECT to_jsonb(clock_timestamp()) AS now')
  ) as unknown as { now: string }[])[0]!.now)
  await first.close()
  const seen = view(before, since)

  // Building an app takes longer than all other steps of a point, so one app serves all databases in turn. Its own
  // history worker has no database.
  const unused = { db: undefined, reads: undefined, patient: undefined } as unknown as Database
  const app = await buildApp({ config: loadConfig(WITH_BOTH), database: unused, keyring: ring, costs: QUICK })
  await app.ready()
  t.teardown(() => app.close())

  const learned = await learn()
  for (const operation of operations) {
    await t.test(operation.name, (t) => killAtEach(t, operation, learned.get(operation)!))
  }

  async function killAtEach (t: Test, operation: Operation, points: string[]) {
    const queue = choose(points)
    t.ok(queue.length > 0, `${queue.length} of ${points.length} points`)
    const continued = new Set<number>()
    let made: Copy | undefined
    for (const index of queue) {
      made ??= await copy()
      const untouched = await cutOff(t, operation, points, index, made, continued)
      if (untouched) continue
      await made.drop()
      made = undefined
    }
    await made?.drop()
  }

  /**
   * Runs an operation in this process, to its end or to its nth point. Returns the points that the operation reached.
   */
  function perform ({ work }: Operation, { database, keyring }: Opened, n?: number, cut = () => {}): Promise<string[]> {
    return cutAt(n, cut, work, () =>
      performWork(work, { database, keyring }, async () => Object.assign(serving(app, database), { keyring })))
      .finally(() => { app.keyring = ring })
  }

  /** Runs all operations to their ends on one copy, and returns the points of each. */
  async function learn (): Promise<Map<Operation, string[]>> {
    const { env, drop } = await copy()
    const points = new Map<Operation, string[]>()
    let state = seen
    for (const named of new Set(operations.map(({ env }) => env))) {
      const opened = await open(loadConfig({ ...named, ...env }), { creates: true })
      for (const operation of operations.filter(({ env }) => env === named)) {
        points.set(operation, await perform(operation, opened))
        const after = view(await stateOf(opened.database), since)
        same(t, after, operation.expected(state, operation.commits, after), `${operation.name} does what it should`)
        state = after
      }
      await opened.database.close()
    }
    await drop()
    return points
  }

  /**
   * Interrupts an operation on a copy, and then continues it. The short form continues only once after each number of
   * commits, because an equal state continues in the same way. Returns whether the copy is unchanged.
   */
  async function cutOff (
    t: Test, operation: Operation, points: string[], index: number, made: Copy, continued: Set<number>
  ): Promise<boolean> {
    const name = `${index + 1} ${points[index]}`
    const { env, connect } = made
    const way = await wayTo?.(made)
    if (way === undefined) {
      const command = { work: operation.work, at: index + 1 }
      const { code, stdout, stderr } = await runUntilKilled({ ...operation.env, ...env }, command)
      t.same(
        { code, stderr, points: stdout.trim().split('\n').slice(0, index + 1) },
        { code: null, stderr: '', points: points.slice(0, index + 1) }, `${name}: killed`
      )
    } else {
      const opened = await open(loadConfig({ ...operation.env, DATABASE_URL: way.url }))
      const reached = await perform(operation, opened, index + 1, way.cut).finally(() => opened.database.close())
      t.same(reached.slice(0, index + 1), points.slice(0, index + 1), `${name}: severed`)
      await way.close()
    }
    const database = await connect()
    try {
      const state = await stateOf(database)
      const untouched = isDeepStrictEqual({ ...state, master_key_canaries: [] }, { ...before, master_key_canaries: [] })
      let commits = points.slice(0, index + 1).filter((point) => point === 'after commit').length
      // A state with equal bytes also decrypts to equal values, so the test does not decrypt it again.
      let after = untouched ? { ...seen, master_key_canaries: canariesOf(state) } : view(state, since)
      if (points[index] === 'during commit' && isDeepStrictEqual(after, operation.expected(seen, commits + 1, after))) {
        commits++
      }
      same(
        t, after, operation.expected(seen, commits, after),
        `${name}: ${commits} of ${operation.commits} transactions, each of them whole`
      )
      if (commits === 0) {
        same(
          t, { ...state, master_key_canaries: [] }, { ...before, master_key_canaries: [] },
          `${name}: not a byte is different`
        )
      }
      if (continued.has(commits) && !LONG) return untouched
      continued.add(commits)
      // Uses the newest key of this operation, so that the service does not create a canary of another key.
      await openRows(database, operation.env === WITH_BOTH ? ringOf(NEW, OLD) : ring)
      const service = serviceOf(serving(app, database), database, organization, token)
      if (commits < operation.commits) {
        await operation.repeat(service)
        after = view(await stateOf(database), since)
        same(t, after, operation.expected(seen, operation.commits, after), `${name}: done again, it is whole`)
      }
      await operation.goOn(service)
      view(await stateOf(database), since)
    } catch (error) {
      t.error(error, name)
    } finally {
      await database.close()
    }
    return false
  }
}

t.test('RL-01b RL-34 CR-14 S-6.6 S-6.7: cut off anywhere on PostgreSQL, a key change is whole or not begun', {
  skip: (!ON_POSTGRES || ON_CITUS) && 'needs PostgreSQL, whose databases can be copied'
}, async (t) => {
  const admin = postgres(process.env.TEST_DATABASE_URL!, { max: 1, onnotice: () => {} })
  t.teardown(() => admin.end({ timeout: 2 }))
  const run = ulid().toLowerCase()
  const make = async (name: string, template: string): Promise<Copy> => {
    await admin.unsafe(`CREATE DATABASE ${name} TEMPLATE ${template}`)
    const url = new URL(process.env.TEST_DATABASE_URL!)
    url.pathname = `/${name}`
    return {
      env: { DATABASE_URL: url.href },
      connect: () => connect({ url: url.href, pool: 3 }),
      drop: async () => { await admin.unsafe(`DROP DATABASE ${name} WITH (FORCE)`) }
    }
  }
  const wayTo = async ({ env }: Copy): Promise<Way> => {
    const way = await openWay(env.DATABASE_URL!)
    // PostgreSQL has discarded uncommitted changes when the backend has ended.
    const gone = async () =>
      (await admin`SELECT FROM pg_stat_activity WHERE datname = ${new URL(way.url).pathname.slice(1)}`).length === 0
    return {
      ...way,
      close: async () => {
        await way.close()
        await until(gone, { every: 0 })
      }
    }
  }
  let copies = 0
  const databases = {
    seeded: await make(`seeded_${run}`, 'template1'),
    copy: () => make(`copy_${run}_${++copies}`, `seeded_${run}`),
    // The long form has more documents than a rotation holds in memory at once.
    documents: LONG ? 104 : 12,
    ...!LONG && { wayTo }
  }
  t.teardown(databases.seeded.drop)
  await killEverywhere(t, databases, (points) => {
    const last = points.lastIndexOf('before commit')
    const commits = points.flatMap((point, i) => point === 'after commit' ? i : [])
    // Before a statement, after some of the commits, and at the last commit.
    const few = [MIDDLE, ...sample(commits, 5), last, last + 1, commits.at(-1)!]
    return [...points.keys()].filter((i) => LONG || few.includes(i))
  })
})

t.test('RL-01b RL-34 CR-14 S-6.6 S-6.7: a key change killed on the embedded database is whole or not begun', {
  // keys/rewrap kills a key change on the embedded database in `npm test`.
  ...IN_PROOFS
}, async (t) => {
  const scratch = scratchDirectory(t)
  const at = (name: string): Copy => ({
    env: { DATA_DIR: join(scratch, name) },
    connect: () => connect({ dir: join(scratch, name, 'postgres'), pool: 1 }),
    drop: async () => rmSync(join(scratch, name), { recursive: true })
  })
  let copies = 0
  const copy = async () => {
    const name = `copy-${++copies}`
    mkdirSync(join(scratch, name, 'postgres'), { recursive: true, mode: 0o700 })
    cpSync(
      join(scratch, 'seeded', 'postgres', 'cluster'), join(scratch, name, 'postgres', 'cluster'), { recursive: true }
    )
    return at(name)
  }
  // A start takes seconds here, so this test uses few points: in the middle, and during and after the last commit.
  // Another database could differ there.
  await killEverywhere(t, { seeded: at('seeded'), copy, documents: 12 }, (points) => {
    const last = points.lastIndexOf('before commit')
    return [Math.floor(last / 2), last + 1, last + 2]
  })
})

async function loseNothing (t: Test, kills: Pick<Kills, 'kills' | 'env' | 'database'>) {
  const { outside, exits } = await killAgainAndAgain(t, {
    clients: 4,
    organizations: 1,
    seed: 42,
    command,
    moment: (next) => ({ answers: 3 + Math.floor(next() * 25) }),
    ...kills
  })
  t.same({ outside, exits }, { outside: [], exits: 0 })
}

t.test(`RL-01 RL-02 S-6.1 S-6.2 S-6.9 AU-12 kills (${KILLS.embedded}) of the embedded database lose nothing`, async (t) => {
  const dir = join(scratchDirectory(t), 'data')
  await loseNothing(t, { kills: KILLS.embedded, env: { DATA_DIR: dir }, database: { dir: join(dir, 'postgres') } })
})

t.test(`RL-01 S-6.1 S-6.2 S-6.9 AU-12 kills (${KILLS.postgres}) during writes on PostgreSQL lose nothing`, {
  skip: !ON_POSTGRES ? 'PostgreSQL is not installed' : !LONG && 'runs in npm run test:proofs'
}, async (t) => {
  const place = await emptyPlace(t) as { DATABASE_URL: string }
  const env = { ...place, MASTER_KEY: generateMasterKey().text }
  await loseNothing(t, { kills: KILLS.postgres, env, database: { url: place.DATABASE_URL } })
})
