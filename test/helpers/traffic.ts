import { createDecipheriv, pbkdf2Sync } from 'node:crypto'
import type { AddressInfo } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import { sql } from 'drizzle-orm'
import type { FastifyInstance } from 'fastify'
import type { Test } from 'tap'
import { buildApp } from '../../src/app.ts'
import type { Costs } from '../../src/crypto/costs.ts'
import { connect, databaseError, DatabaseUnavailable } from '../../src/db/database.ts'
import { queueOf } from '../../src/changes/queue.ts'
import { openRows } from '../../src/jobs/violations.ts'
import { startIsolatedApp, type TestApp } from './app.ts'
import { beside } from './statements.ts'

// The embedded database has only one session and one process, so fewer requests are enough.
export const ON_POSTGRES = process.env.TEST_DATABASE_URL !== undefined
export const scale = (onPostgres: number, embedded: number) => ON_POSTGRES ? onPostgres : embedded

export const statuses = (replies: (Reply | undefined)[]) => [...new Set(replies.map((reply) => reply?.status))].sort()
export const times = <T>(count: number, make: (index: number) => T) =>
  Array.from({ length: count }, (_, index) => make(index))

export interface Reply { status: number, body: any, headers: Headers }
export type Send = (method: string, path: string, body?: unknown, headers?: Record<string, string>) => Promise<Reply>

/** Sends HTTP requests to the addresses in turn. Paths are below `/api/v1/<organization>`, or absolute after `/`. */
export function client (
  addresses: string | string[], { organization, token }: { organization: string, token: string }
): Send {
  const all = [addresses].flat()
  let turn = 0
  return async (method, path, body, headers = {}) => {
    const address = all[turn++ % all.length]!
    const response = await fetch(`${address}${path.startsWith('//') ? path.slice(1) : `/api/v1/${organization}${path}`}`, {
      method,
      headers: {
        authorization: `Bearer ${token}`, ...(body !== undefined && { 'content-type': 'application/json' }), ...headers
      },
      ...(body !== undefined && { body: JSON.stringify(body) })
    })
    const text = await response.text()
    return { status: response.status, headers: response.headers, body: text === '' ? undefined : JSON.parse(text) }
  }
}

// The maximum number of attempts, and the milliseconds between two attempts. Together they allow a minute for a busy
// machine.
const TRIES = 240
const PAUSE = 250

/**
 * Repeats a request after 503, because tests must not depend on the load of the machine. If a request with 503 had an
 * effect, the repeat would record a second event with the same request id.
 */
export const patiently = async <T extends { status: number }>(ask: () => Promise<T>): Promise<T> => {
  for (let tries = 1; ; tries++) {
    const reply = await ask()
    if (reply.status !== 503 || tries === TRIES) return reply
    await pause(PAUSE)
  }
}

export const patient = (send: Send): Send => (...request) => patiently(() => send(...request))

/** Repeats work of a test on the database while the database is unavailable. */
export async function untilDone<T> (work: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await work()
    } catch (error) {
      if (!(databaseError(error) instanceof DatabaseUnavailable) || tries === TRIES) throw error
      await pause(PAUSE)
    }
  }
}

/** The error log lines of a service, except those about requests that were refused with 503. */
export const failedInside = ({ logs }: { logs: string[] }): string[] =>
  logs.filter((line) => /"level":[56]0/.test(line) && !line.includes('"error_code":"service_unavailable"'))

/**
 * Starts another instance on the database of a service; undefined with the embedded database.
 *
 * @param as maps the database URL to the URL that the instance connects to
 */
export async function startBeside (
  t: Test, service: TestApp, as?: (url: string) => Promise<string>
): Promise<FastifyInstance | undefined> {
  if (!ON_POSTGRES) return undefined
  const url = new URL(process.env.TEST_DATABASE_URL!)
  const [row] = await service.sql('SELECT current_database() AS name')
  url.pathname = `/${row!.name}`
  const database = await connect({ url: await as?.(url.href) ?? url.href, pool: 10 })
  await openRows(database, service.keyring)
  const app = await buildApp({
    config: service.config,
    database,
    keyring: service.keyring,
    costs: service.app.costs,
    logStream: { write: (line) => service.logs.push(line) }
  })
  t.teardown(async () => {
    await app.close()
    await database.close()
  })
  return app
}

/**
 * Starts the service with real sockets, and creates an organization. PostgreSQL gets two instances, the embedded
 * database one. `send` uses the instances in turn, `sends` has a client for each instance; both repeat requests after
 * 503. `sendOnce` does not repeat requests. `tenant` creates another organization, with the same kinds of clients.
 * `waiting` counts the changes in the queues of the instances.
 */
export async function startInstances (t: Test, costs?: Costs) {
  // This test has its own database, because it checks the counts of all organizations.
  const service = await startIsolatedApp(t, {}, costs)
  const addresses = [await service.app.listen({ host: '127.0.0.1', port: 0 })]
  const second = await startBeside(t, service)
  if (second !== undefined) {
    await second.listen({ host: '127.0.0.1', port: 0 })
    addresses.push(`http://127.0.0.1:${(second.server.address() as AddressInfo).port}`)
  }
  const apps = second === undefined ? [service.app] : [service.app, second]
  const tenant = async () => {
    const caller = await service.organization()
    return {
      send: patient(client(addresses, caller)),
      sends: addresses.map((address) => patient(client(address, caller))),
      sendOnce: client(addresses, caller),
      organization: caller.organization
    }
  }
  const waiting = () => apps.reduce((sum, { db }) => sum + queueOf(db).figures.waiting, 0)
  return { service, addresses, apps, waiting, tenant, ...await tenant() }
}

/** A generator of pseudorandom numbers from 0 to 1 (mulberry32). */
export function random (seed: number) {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296
  }
}

/** The data key that a client derives from a key in a response of `GET encryption-key` or of a rotation. */
export function dataKeyOf ({
  key, key_check_salt, key_check_iterations
}: { key: string, key_check_salt: string, key_check_iterations: number }): Buffer {
  return pbkdf2Sync(key, Buffer.from(key_check_salt, 'base64'), key_check_iterations, 32, 'sha256')
}

/** Decrypts a blob like a client; throws if another key encrypted the blob. */
export function openWith (key: Buffer, blob: string): string {
  const bytes = Buffer.from(blob, 'base64')
  const decipher = createDecipheriv('aes-256-gcm', key, bytes.subarray(0, 12))
  decipher.setAuthTag(bytes.subarray(-16))
  return Buffer.concat([decipher.update(bytes.subarray(12, -16)), decipher.final()]).toString()
}

/**
 * Returns a function that decrypts blobs like a client. The client has the project's active key and the keys in the
 * responses of its rotations. Uses only the key of the given version; default: the active key.
 */
export async function opener (
  send: Send, project: string, operations: Operation[] = []
): Promise<(blob: string, version?: string) => string> {
  const { attributes } = (await send('GET', `/${project}/encryption-key`)).body.data
  const active = String(attributes.version)
  const made = operations.flatMap(({ kind, level, reply }) =>
    kind === 'rotate' && level.project === project && reply?.status === 200 ? [reply.body.data.key.attributes] : [])
  const keys = new Map([attributes, ...made].map((key) => [String(key.version), key]))
  const derived = new Map<string, Buffer>()
  return (blob, version = active) => {
    const key = keys.get(version)
    if (key === undefined) throw new Error(`no client made key ${version}`)
    if (!derived.has(version)) derived.set(version, dataKeyOf(key))
    return openWith(derived.get(version)!, blob)
  }
}

export interface Level { project: string, target?: string, environment?: string }

/** A request that changes documents, keys or histories, with its response. */
export interface Operation {
  request: string
  level: Level
  kind: 'store' | 'restore' | 'delete' | 'purge' | 'version' | 'rotate'
  /** The plaintext of a store. */
  plaintext?: string
  /** Undefined without a response. */
  reply?: Reply
  sent: number
  answered: number
}

/** Creates a project with a target and environments. Returns the levels, deepest first. */
export async function makeLevels (
  send: Send, slug: string, environments: string[], more: object = {}
): Promise<Level[]> {
  const made = [
    await send('POST', '/projects', { name: 'Orbit', slug, ...more }),
    await send('POST', `/${slug}/targets`, { name: 'Backend' })
  ]
  for (const name of environments) made.push(await send('POST', `/${slug}/backend/environments`, { name }))
  for (const { status, body } of made) if (status !== 201) throw new Error(JSON.stringify(body))
  return [
    ...environments.map((name) => ({ project: slug, target: 'backend', environment: name })),
    { project: slug, target: 'backend' }, { project: slug }
  ]
}

let requests = 0

/** Sends an operation with a new request id, and returns it with its response. */
export async function operate (
  send: Send, level: Level, kind: Operation['kind'], method: string, path: string, body: Record<string, unknown>, plaintext?: string
): Promise<Operation> {
  const request = `r-${process.pid}-${++requests}`
  const sent = performance.now()
  const reply = await send(method, path, body, { 'x-request-id': request }).catch(() => undefined)
  return {
    request,
    level,
    kind,
    ...(plaintext !== undefined && { plaintext }),
    ...(reply && { reply }),
    sent,
    answered: performance.now()
  }
}

export const store = (send: Send, level: Level, plaintext: string, more: Record<string, unknown> = {}) =>
  operate(send, level, 'store', 'POST', '/secrets/store', { ...level, plaintext, ...more }, plaintext)

export const rotate = (send: Send, level: Level, history_policy: 'keep' | 're_encrypt') =>
  operate(send, level, 'rotate', 'POST', `/${level.project}/encryption-key/rotate`, { history_policy })

/**
 * Sends a random operation: mostly stores and restores, sometimes a rotation or a deletion of versions.
 */
export function mix (send: Send, levels: Level[], next: () => number, seen: number[]): Promise<Operation> {
  const level = levels[Math.floor(next() * levels.length)]!
  const dice = next()
  const version = seen[Math.max(0, seen.length - 1 - Math.floor(next() * 12))]
  if (dice < 0.02) return rotate(send, level, next() < 0.5 ? 'keep' : 're_encrypt')
  if (dice < 0.40 || version === undefined) return store(send, level, `VALUE=${Math.floor(next() * 1e9)}`)
  if (dice < 0.48) return store(send, level, `VALUE=unrecorded-${Math.floor(next() * 1e9)}`, { no_backup: true })
  if (dice < 0.70) return operate(send, level, 'restore', 'POST', `/secrets/versions/${version}/restore`, {})
  if (dice < 0.82) return operate(send, level, 'delete', 'POST', '/secrets/delete', { ...level })
  if (dice < 0.86) {
    return operate(send, level, 'delete', 'POST', '/secrets/delete', { ...level, no_backup: true, confirmed: true })
  }
  if (dice < 0.93) {
    return operate(
      send, level, 'version', 'DELETE', `/secrets/versions/${version}`, next() < 0.3 ? { force: true } : {}
    )
  }
  if (dice < 0.98 && level.environment !== undefined) {
    return operate(
      send, level, 'purge', 'POST', '/secrets/versions/purge', { ...level, confirmed: true, force: next() < 0.3 }
    )
  }
  return operate(
    send, level, 'purge', 'POST', '/secrets/versions/purge',
    { project: level.project, scope: 'project', confirmed: true }
  )
}

export type Sql = (query: string) => Promise<Record<string, any>[]>

/** Opens a database for queries until the test ends. Only one process can open an embedded database at a time. */
export async function openQueries (t: Test, database: { dir: string } | { url: string }): Promise<Sql> {
  const { db, close } = await connect({ ...database, pool: 2 })
  t.teardown(close)
  return (text) => beside(async () => await db.execute(sql.raw(text)) as unknown as Record<string, unknown>[])
}

interface Recorded { plaintext: string | undefined, action: string }
interface Secret {
  id: string
  level: Level
  live: boolean
  plaintext: string | undefined
  revision: number
  versions: Map<number, Recorded>
}

export interface Replayed { problems: string[], secrets: Map<string, Secret>, gone: Set<number> }

/**
 * Replays the audit events of an organization, which are numbered in commit order, on a model in memory. Compares every
 * step with the rules, and the final state with the tables. `operations` are the requests with their responses, matched
 * by request id.
 */
export async function replay (sql: Sql, organization: string, operations: Operation[]): Promise<Replayed> {
  const problems: string[] = []
  const problem = (text: string) => { if (problems.length < 20) problems.push(text) }
  const of = new Map(operations.map((operation) => [operation.request, operation]))
  const secrets = new Map<string, Secret>()
  const gone = new Set<number>()
  const keyVersions = new Map<string, number>()
  const where = `organization_id = '${organization}'`
  const rows = await sql(`SELECT id, revision, sealed IS NOT NULL AS live FROM secrets WHERE ${where}`)
  const projects = new Map((await sql(`SELECT id, slug FROM projects WHERE ${where}`)).map(({ id, slug }) =>
    [id as string, slug as string]))
  // Reads the counters in the same statement, because a worker may record an event between two statements.
  const events = await sql(`SELECT seq, action, resource_type, resource_id, request_id, details,
      (SELECT next_event FROM organization_counters WHERE ${where}),
      (SELECT next_version FROM organization_counters WHERE ${where})
    FROM audit_events WHERE ${where} ORDER BY seq`)
  const seen = new Map<string, number>()
  let newest = 0
  let latest = -Infinity

  for (const [index, event] of events.entries()) {
    const details = event.details ?? {}
    if (Number(event.seq) !== index + 1) problem(`event ${event.seq} is at place ${index + 1}: the numbers have a gap`)
    seen.set(event.request_id, (seen.get(event.request_id) ?? 0) + 1)
    const operation = of.get(event.request_id)
    if (operation === undefined) continue
    if (operation.answered < latest) {
      problem(`event ${event.seq} was answered before another, of a lower number, was sent`)
    }
    latest = Math.max(latest, operation.sent)
    if (event.action === 'secret.store' || event.action === 'secret.restore' ||
      (event.action === 'secret.delete' && 'revision' in details)) {
      write(event, details, operation)
    } else if (event.action === 'key.rotate') rotated(event, details)
    else if (event.action === 'secret.delete') {
      const secret = secrets.get(event.resource_id)
      if (secret === undefined) { problem(`event ${event.seq} deletes what is not there`); continue }
      take(event, [secret], details.purged)
      Object.assign(secret, { live: false, plaintext: undefined, revision: secret.revision + 1 })
    } else if (event.action === 'version.delete') {
      const secret = secrets.get(event.resource_id)
      if (!secret?.versions.has(details.version)) {
        problem(`event ${event.seq} deletes version ${details.version}, which is not there`)
      }
      if (secret && !secret.live && details.version === Math.max(...secret.versions.keys()) && !details.force) {
        problem(`event ${event.seq} took a restore snapshot without force`)
      }
      secret?.versions.delete(details.version)
      gone.add(details.version)
    } else if (event.action === 'version.purge') {
      const level = event.resource_type === 'level'
      const taken = [...secrets.values()].filter((secret) =>
        level ? isSame(secret.level, operation.level) : secret.level.project === operation.level.project)
      take(event, taken, details.purged_count)
      const { reply } = operation
      if (reply && reply.body.data.purged_count !== details.purged_count) {
        problem(`event ${event.seq} and its answer disagree about purged_count`)
      }
    }
  }

  function write (event: Record<string, any>, details: Record<string, any>, operation: Operation) {
    const before = secrets.get(event.resource_id)
    const secret = before ?? {
      id: event.resource_id, level: operation.level, live: false, plaintext: undefined, revision: 0, versions: new Map()
    }
    secrets.set(secret.id, secret)
    if (details.revision !== secret.revision + 1) {
      problem(`event ${event.seq} writes revision ${details.revision} after ${secret.revision}`)
    }
    secret.revision = details.revision
    const active = keyVersions.get(secret.level.project) ?? 1
    if (details.key_version !== active) {
      problem(`event ${event.seq} writes under key ${details.key_version} while ${active} is the active one`)
    }
    let { plaintext } = operation
    let action = secret.live ? 'update' : 'create'
    if (event.action === 'secret.delete') {
      plaintext = secret.plaintext
      action = 'delete'
      if (!secret.live) problem(`event ${event.seq} deletes what has no document`)
    } else if (event.action === 'secret.restore') {
      action = 'restore'
      if (!secret.versions.has(details.restored_from)) {
        problem(`event ${event.seq} restores version ${details.restored_from}, which is not there`)
      }
      plaintext = secret.versions.get(details.restored_from)?.plaintext
    }
    secret.live = event.action !== 'secret.delete'
    secret.plaintext = secret.live ? plaintext : undefined
    if (details.version === null) return
    if (details.version <= newest) problem(`event ${event.seq} records version ${details.version} after ${newest}`)
    newest = details.version
    secret.versions.set(details.version, { plaintext, action })
    const answered = operation.kind === 'store' ? operation.reply?.body?.data?.version : undefined
    if (answered !== undefined && answered !== String(details.version)) {
      problem(`event ${event.seq} and its answer disagree about the version`)
    }
  }

  // Every live secret of the project gets its next revision and a version, in the order of secret ids.
  function rotated (event: Record<string, any>, details: Record<string, any>) {
    const project = projects.get(event.resource_id)
    if (project === undefined) { problem(`event ${event.seq} rotates a project that is not there`); return }
    const from = keyVersions.get(project) ?? 1
    if (details.from !== from || details.to !== from + 1) {
      problem(`event ${event.seq} rotates from ${details.from} to ${details.to} while ${from} is the active key`)
    }
    keyVersions.set(project, details.to)
    const live = [...secrets.values()].filter((secret) =>
      secret.live && secret.level.project === project).sort((a, b) => a.id < b.id ? -1 : 1)
    if (details.documents !== live.length) {
      problem(`event ${event.seq} re-encrypts ${details.documents} documents, there are ${live.length}`)
    }
    if (details.first_version !== newest + 1) {
      problem(`event ${event.seq} records versions from ${details.first_version} on after ${newest}`)
    }
    for (const [index, secret] of live.entries()) {
      newest = details.first_version + index
      secret.revision++
      secret.versions.set(newest, { plaintext: secret.plaintext, action: 'rotate' })
    }
  }

  function take (event: Record<string, any>, from: Secret[], count: number) {
    let taken = 0
    for (const secret of from) {
      for (const id of secret.versions.keys()) {
        secret.versions.delete(id)
        gone.add(id)
        taken++
      }
    }
    if (taken !== count) problem(`event ${event.seq} says that ${count} versions went, it were ${taken}`)
  }

  // Each acknowledged change has one event, and a refused change has none. A request without a response may have one.
  for (const { request, reply } of operations) {
    const count = seen.get(request) ?? 0
    if (reply && reply.status < 300 && count !== 1) problem(`${request} was acknowledged and has ${count} events`)
    if (reply && reply.status >= 300 && count !== 0) {
      problem(`${request} was answered with ${reply.status} and has ${count} events`)
    }
    if (count > 1) problem(`${request} has ${count} events`)
  }

  const [counter] = events
  if (Number(counter!.next_event) !== events.length + 1) {
    problem(`the next event is ${counter!.next_event} after ${events.length}`)
  }
  if (Number(counter!.next_version) !== newest + 1) {
    problem(`the next version is ${counter!.next_version} after ${newest}`)
  }
  compare(
    'secrets', rows.map((row) => [row.id, Number(row.revision), row.live]),
    [...secrets.values()].map((secret) => [secret.id, secret.revision, secret.live])
  )
  compare('versions', (await sql(
    `SELECT v.id, s.id AS secret_id, v.action FROM secret_versions v
      JOIN secrets s ON s.organization_id = v.organization_id AND s.history_id = v.history_id WHERE v.${where}`
  )).map((row) => [Number(row.id), row.secret_id, row.action]),
  [...secrets.values()].flatMap((secret) => [...secret.versions].map(([id, { action }]) => [id, secret.id, action])))
  // Each document must be encrypted with the active key of its project, and each secret must belong to an existing
  // level.
  const [astray] = await sql(`
    SELECT count(*)::int AS count FROM secrets s
    LEFT JOIN projects p ON p.organization_id = s.organization_id AND p.id = s.project_id
    LEFT JOIN targets t ON t.organization_id = s.organization_id AND t.id = s.target_id
    LEFT JOIN environments e ON e.organization_id = s.organization_id AND e.id = s.environment_id
    LEFT JOIN encryption_keys k ON k.organization_id = p.organization_id AND k.project_id = p.id AND k.is_active
    WHERE (s.sealed IS NOT NULL AND (s.key_version IS DISTINCT FROM p.key_version OR s.key_version IS DISTINCT FROM k.version))
      OR s.level_id IS DISTINCT FROM CASE s.level WHEN 'project' THEN p.id WHEN 'target' THEN t.id ELSE e.id END`)
  if (astray!.count !== 0) problem(`${astray!.count} documents are not where they belong`)
  const [orphans] = await sql(`
    SELECT count(*)::int AS count FROM secret_versions v
    JOIN histories h ON h.organization_id = v.organization_id AND h.id = v.history_id
    LEFT JOIN secrets s ON s.organization_id = h.organization_id AND s.history_id = h.id
    WHERE (s.id IS NULL) <> (h.removed_at IS NOT NULL)`)
  if (orphans!.count !== 0) problem(`${orphans!.count} versions have no secret`)
  for (const wrong of await miscounted(sql)) problem(wrong)

  function compare (what: string, found: unknown[][], expected: unknown[][]) {
    const [a, b] = [found, expected].map((list) => new Set(list.map((row) => JSON.stringify(row))))
    for (const row of a!) if (!b!.has(row)) problem(`${what}: ${row} is there and should not be`)
    for (const row of b!) if (!a!.has(row)) problem(`${what}: ${row} is missing`)
  }
  return { problems, secrets, gone }
}

/** Stored counts that differ from the number of rows, for these organizations; default: all. */
export async function miscounted (sql: Sql, organizations?: string[]): Promise<string[]> {
  const of = organizations === undefined ? 'IS NOT NULL' : `IN ('${organizations.join("', '")}')`
  const versions = 'FROM secret_versions v WHERE v.organization_id = s.organization_id AND v.history_id = s.history_id'
  const rows = await sql(`
    SELECT 'versions of ' || s.id AS what, s.version_count AS kept, (SELECT count(*)::int ${versions}) AS there FROM secrets s WHERE s.organization_id ${of}
    UNION ALL
    SELECT 'bytes of the versions of ' || s.id, s.version_bytes, (SELECT coalesce(sum(v.size_bytes), 0) ${versions}) FROM secrets s WHERE s.organization_id ${of}
    UNION ALL
    SELECT 'bytes of ' || c.organization_id, c.stored_bytes, (SELECT coalesce(sum(s.size_bytes), 0) FROM secrets s WHERE s.organization_id = c.organization_id AND s.sealed IS NOT NULL)
      + (SELECT coalesce(sum(v.size_bytes), 0) FROM secret_versions v JOIN secrets s ON s.organization_id = v.organization_id AND s.history_id = v.history_id WHERE v.organization_id = c.organization_id)
      FROM organization_counters c JOIN organizations o ON o.id = c.organization_id WHERE c.organization_id ${of}
    UNION ALL
    SELECT 'the version of ' || s.id, s.version, (SELECT v.id ${versions} AND v.id = s.version) FROM secrets s WHERE s.organization_id ${of} AND s.version IS NOT NULL
    UNION ALL
    SELECT 'documents of ' || c.project_id, c.secret_count, (SELECT count(*)::int FROM secrets s WHERE s.organization_id = c.organization_id AND s.project_id = c.project_id AND s.sealed IS NOT NULL) FROM project_counts c WHERE c.organization_id ${of}
    UNION ALL
    SELECT 'the newest version of ' || c.project_id, coalesce(c.last_version, 0), (SELECT coalesce(max(v.id), 0) FROM secrets s JOIN secret_versions v ON v.organization_id = s.organization_id AND v.history_id = s.history_id WHERE s.organization_id = c.organization_id AND s.project_id = c.project_id) FROM project_counts c WHERE c.organization_id ${of}
    UNION ALL
    SELECT 'targets of ' || c.project_id, c.target_count, (SELECT count(*)::int FROM targets t WHERE t.organization_id = c.organization_id AND t.project_id = c.project_id) FROM project_counts c WHERE c.organization_id ${of}
    UNION ALL
    SELECT 'environments of ' || c.project_id, c.environment_count, (SELECT count(*)::int FROM environments e WHERE e.organization_id = c.organization_id AND e.project_id = c.project_id) FROM project_counts c WHERE c.organization_id ${of}
    UNION ALL
    SELECT 'documents of ' || t.id, t.secret_count, (SELECT count(*)::int FROM secrets s WHERE s.organization_id = t.organization_id AND s.target_id = t.id AND s.sealed IS NOT NULL) FROM targets t WHERE t.organization_id ${of}
    UNION ALL
    SELECT 'environments of ' || t.id, t.environment_count, (SELECT count(*)::int FROM environments e WHERE e.organization_id = t.organization_id AND e.target_id = t.id) FROM targets t WHERE t.organization_id ${of}`)
  return rows.filter(({ kept, there }) => Number(kept) !== Number(there ?? -1)).map(({ what, kept, there }) =>
    `${what}: ${kept} are kept, there are ${there}`)
}

const isSame = (one: Level, other: Level) =>
  one.project === other.project && one.target === other.target && one.environment === other.environment

/** Reads the document of a level and, for an environment, all pages of its history. */
export async function look (send: Send, level: Level, decrypt = true) {
  const path = ['', level.project, level.target, level.environment].filter((part) => part !== undefined).join('/')
  const kind = level.environment !== undefined ? 'environment' : level.target !== undefined ? 'target' : 'project'
  const read = await send('GET', `${path}/secrets${decrypt ? '?decrypt=true' : ''}`)
  const current = read.body.data.attributes.levels[kind] as {
    id: string
    content: string
    version: string | null
  } | undefined
  const history: { id: string, attributes: { action: string, key_version: string } }[] = []
  if (level.environment === undefined) return { current, history }
  for (let page = 1, last = 1; page <= last; page++) {
    const listed = await send('POST', '/secrets/versions', { ...level, page, per_page: 100 })
    history.push(...listed.body.data)
    last = listed.body.meta.last_page
  }
  return { current, history }
}
