import { createHash } from 'node:crypto'
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { FastifyInstance, InjectOptions, LightMyRequestResponse } from 'fastify'
import { sql } from 'drizzle-orm'
import postgres, { type Sql } from 'postgres'
import type { Test } from 'tap'
import { ulid } from 'ulidx'
import { buildApp } from '../../src/app.ts'
import { loadConfig, type Config } from '../../src/config.ts'
import { hashToken, mintApiToken, parseApiToken, storedToken } from '../../src/crypto/bearer.ts'
import type { Costs } from '../../src/crypto/costs.ts'
import { createKeyring, generateMasterKey, parseMasterKey, type Keyring } from '../../src/crypto/keyring.ts'
import type { AuthenticatedTable } from '../../src/db/rows/authenticated.ts'
import { connect, findAuthority, type Database, type Db } from '../../src/db/database.ts'
import { transaction } from '../../src/changes/transaction.ts'
import { unpackCluster } from '../../src/db/embedded/cluster.ts'
import { TEMPLATE } from '../../src/db/embedded/embedded.ts'
import { copyOnCitus, createOnCitus, dropOnCitus, makeTemplateOnCitus, urlOf } from './citus.ts'
import { authenticateTable } from './macs.ts'
import { noteBackup, type Backup } from '../../src/repositories/operations/backlog.ts'
import { createOrganization } from '../../src/repositories/levels/organizations.ts'
import { findPrincipal } from '../../src/repositories/people/principals.ts'
import { createToken, lockToken, rotateToken } from '../../src/repositories/people/tokens.ts'
import type { Ability } from '../../schemas/scopes.ts'
import type { Slice } from '../../src/rules/slices.ts'
import { makeStorageKey } from '../../src/vault/keys/keys.ts'
import { openRows } from '../../src/jobs/violations.ts'
import { beside } from './statements.ts'
import { QUICK } from './costs.ts'

// Each service adds listeners for the end of its process, and a process of the tests starts many services. Without
// this, Node.js warns on standard error, where tests expect the lines of a command.
process.setMaxListeners(0)

/** Whether the tests run on a Citus cluster. */
export const ON_CITUS = process.env.TEST_CITUS_NODES !== undefined
/**
 * SQL that sets a time column back. Citus does not execute `column - interval` in an UPDATE, because it is not
 * immutable.
 */
export const earlier = (column: string, by: string): string =>
  `${column} = (${column} AT TIME ZONE 'UTC' - interval '${by}') AT TIME ZONE 'UTC'`
/** The view of the sessions on the server, or on all nodes of the cluster. */
export const ACTIVITY = ON_CITUS ? 'citus_stat_activity' : 'pg_stat_activity'

/** SQL: the details of an event without its levels, which test/audit/place-events.test.ts checks for all events. */
export const DETAILS =
  "details - '{project_id,project,target_id,target,environment_id,environment}'::text[] AS details"

export interface Caller {
  token: string
  organization: string
  /** Sends a request with the caller's token; paths start below `/api/v1` unless they start with `//`. */
  call (method: string, path: string, body?: unknown, headers?: Record<string, string>): Promise<Answer>
}

export interface Answer { status: number, headers: LightMyRequestResponse['headers'], body: any, text: string }

export interface TestApp {
  app: FastifyInstance
  database: Database
  keyring: Keyring
  config: Config
  /** Environment variables with which a command uses the same database. */
  env: Record<string, string>
  /** The log lines since the start of the test. */
  logs: string[]
  /** The organizations that the test created. */
  organizations: string[]
  /** Creates an organization and returns a caller with an API token that has the abilities. */
  organization (options?: { plan?: string, abilities?: Ability[], slug?: string }): Promise<Caller>
  /** Creates another API token of an organization. */
  token (organization: string, abilities: Ability[], more?: { expires_at?: Date, slices?: Slice[] }): Promise<Caller>
  /** Rotates an API token and returns its new value. The previous value stays valid for `overlapSeconds`. */
  rotate (token: string, overlapSeconds?: number): Promise<string>
  /** Runs SQL outside of the service, like a third party with access to the database. */
  sql (query: string): Promise<Record<string, unknown>[]>
  /** Runs SQL and then gives the written rows valid MACs, as if the service had written them. */
  write (query: string): Promise<void>
  inject (options: InjectOptions): Promise<Answer>
  /** Listens on a free port and returns the address. The shared service already listens. */
  listen (): Promise<string>
}

/** A database with the keys of a service. */
interface Installation {
  database: Database
  keyring: Keyring
  env: Record<string, string>
  end (): Promise<void>
}

interface Shared extends Installation {
  app: FastifyInstance
  config: Config
  address: string
  /** The log lines of each test that uses the service now. */
  readers: Set<string[]>
}

let shared: Promise<Shared> | undefined

/**
 * Returns the shared service of this process, which already listens, with limits off and cheap key derivations. All
 * files of the process share its database, so a test looks only at organizations and people that it created. With
 * settings or costs, starts a second service on that database until the end of the test.
 */
export async function startApp (
  t: { teardown (fn: () => unknown): void }, env: Record<string, string> = {}, costs: Costs = QUICK
): Promise<TestApp> {
  shared ??= startShared()
  const { app, address, readers, ...installation } = await shared
  const logs: string[] = []
  if (Object.keys(env).length === 0 && costs === QUICK) {
    readers.add(logs)
    t.teardown(() => { readers.delete(logs) })
    return asTestApp({ ...installation, app, logs, listen: async () => address })
  }
  const second = await serve(installation, env, costs, (line) => logs.push(line))
  t.teardown(async () => {
    await second.app.close()
    // Only the newest service of a database logs unverified rows.
    findAuthority(installation.database.db)?.logTo(app.log)
  })
  return asTestApp({ ...installation, ...second, logs })
}

/**
 * Starts a service on a new database, for a test that changes or reads data that all organizations share. Limits are
 * off unless `env` sets them; key derivations are cheap unless `costs` is given.
 *
 * @param as maps the database URL of the owner to the URL that the service connects to
 */
export async function startIsolatedApp (
  t: { teardown (fn: () => unknown): void }, env: Record<string, string> = {}, costs: Costs = QUICK,
  as?: (url: string) => Promise<string>
): Promise<TestApp> {
  return startOn(t, await install(await freshDatabase(as)), env, costs)
}

/** Starts a service on the database of another installation, with limits off and cheap key derivations. */
export async function startAppOn (
  t: { teardown (fn: () => unknown): void }, url: string, masterKey: string
): Promise<TestApp> {
  const database = await connect({ url, pool: 10 })
  return startOn(t, await install({ database, env: { DATABASE_URL: url }, drop: async () => {} }, masterKey), {}, QUICK)
}

async function startOn (
  t: { teardown (fn: () => unknown): void }, installation: Installation, env: Record<string, string>, costs: Costs
): Promise<TestApp> {
  const logs: string[] = []
  const service = await serve(installation, env, costs, (line) => logs.push(line))
  t.teardown(async () => {
    await service.app.close()
    await installation.end()
  })
  return asTestApp({ ...installation, ...service, logs })
}

async function startShared (): Promise<Shared> {
  const installation = await install(await freshDatabase())
  const readers: Shared['readers'] = new Set()
  const { listen, ...service } = await serve(installation, {}, QUICK, (line) => {
    for (const logs of readers) logs.push(line)
  })
  const end = async () => {
    service.app.server.closeAllConnections()
    await service.app.close()
    await installation.end()
  }
  // scripts/test.mjs disconnects after the last file of a process.
  if (process.connected) process.once('disconnect', end)
  else (await import('tap')).default.teardown(end)
  return { ...installation, ...service, address: await listen(), readers }
}

async function install (
  { database, drop, env }: Awaited<ReturnType<typeof freshDatabase>>, MASTER_KEY = generateMasterKey().text
): Promise<Installation> {
  const keyring = createKeyring([parseMasterKey(MASTER_KEY)])
  await openRows(database, keyring)
  const end = async () => {
    await database.close()
    await drop()
  }
  return { database, keyring, env: { MASTER_KEY, ...env }, end }
}

async function serve (
  { database, keyring }: Installation, env: Record<string, string>, costs: Costs, write: (line: string) => unknown
) {
  const config = loadConfig({
    RATE_LIMIT_API: '0',
    RATE_LIMIT_OAUTH: '0',
    RATE_LIMIT_KEY_ROTATION: '0',
    RATE_LIMIT_LONG_OPERATIONS: '0',
    RATE_LIMIT_BILLING: '0',
    INVOICE_SELLER_NAME: 'Strongroom Ltd',
    ...env
  })
  // The tests of the second check of a caller start an instance of their own: on a busy machine, this check would add
  // statements to any request.
  const app = await buildApp({ config, database, keyring, costs, logStream: { write }, recheckAfter: Infinity })
  await app.ready()
  return { app, config, listen: () => app.listen({ host: '127.0.0.1', port: 0 }) }
}

type Started = Pick<TestApp, 'app' | 'database' | 'keyring' | 'config' | 'env' | 'logs' | 'listen'>

function asTestApp ({ database, keyring, app, config, env, logs, listen }: Started): TestApp {
  const inject = async (options: InjectOptions): Promise<Answer> => {
    const response = await app.inject(options)
    const text = response.payload
    // All tests check this for every response.
    if (('retry-after' in response.headers) !== (response.statusCode === 429)) {
      throw new Error(`Retry-After goes with 429: ${response.statusCode} ${options.method} ${String(options.url)}`)
    }
    // scripts/test.mjs prints this line if a test of the process fails, because only the log has the reason of a 503.
    if (response.statusCode === 503) console.error(`503 ${String(options.url)}`, logs.findLast((line) => line.includes('"err"')))
    const json = /^application\/(?:[\w.]+\+)?json/.test(String(response.headers['content-type'] ?? ''))
    return {
      status: response.statusCode,
      headers: response.headers,
      text,
      body: json && text !== '' ? JSON.parse(text) : undefined
    }
  }
  const organizations: string[] = []
  const callerOf = (organization: string, token: string): Caller =>
    ({ token, organization, call: callWith({ inject }, token) })
  const token: TestApp['token'] = async (organization, abilities, more = {}) => {
    return callerOf(organization, await makeToken(database.db, organization, abilities, more))
  }
  return {
    app,
    database,
    keyring,
    config,
    env,
    logs,
    listen,
    inject,
    token,
    organizations,
    organization: async ({ plan = 'self-hosted', abilities = ['*' as const], slug } = {}) => {
      const id = await makeOrganization(database.db, keyring, { slug, plan })
      organizations.push(id)
      return token(id, abilities)
    },
    rotate: async (text, overlapSeconds = 0) => {
      const { organizationId } = parseApiToken(text)!
      const value = mintApiToken(organizationId)
      await transaction(database.db, async (db) => {
        const { id, organization } = (await findPrincipal(db, { organizationId, hash: hashToken(text) }))!
        const token = (await lockToken(db, organization.id, id))!
        await rotateToken(db, token, storedToken(value), overlapSeconds)
      })
      return value
    },
    write: (query) => beside(() => transaction(database.db, async (db) => {
      await db.execute(sql.raw(query))
      await authenticateTable(
        db, /^(?:UPDATE|INSERT INTO) (\w+)/.exec(query)![1] as AuthenticatedTable, sql`xmin = pg_current_xact_id()::xid`
      )
    })),
    sql: (query) =>
      beside(async () => await database.db.execute(sql.raw(query)) as unknown as Record<string, unknown>[])
  }
}

/** Sends requests with a token; see `Caller`. */
export const callWith = ({ inject }: Pick<TestApp, 'inject'>, token: string): Caller['call'] =>
  (method, path, body, headers = {}) => inject({
    method: method as 'GET',
    url: path.startsWith('//') ? path.slice(1) : `/api/v1${path}`,
    headers: { authorization: `Bearer ${token}`, ...headers },
    ...(body !== undefined && { payload: body as object })
  })

/** A slug that no other test uses. */
export const uniqueSlug = (word: string): string => `${word}-${ulid().slice(-10).toLowerCase()}`

/** Creates an organization and returns its id. */
export async function makeOrganization (
  db: Db, keyring: Keyring, { slug, plan = 'self-hosted' }: { slug?: string | undefined, plan?: string } = {}
): Promise<string> {
  const id = ulid()
  await createOrganization(db, {
    id,
    name: 'Nimbus',
    slug: slug ?? uniqueSlug('nimbus'),
    plan,
    storage_key: makeStorageKey(keyring, id)
  })
  return id
}

/** Creates an API token of an organization and returns its value. */
export async function makeToken (
  db: Db, organization: string, abilities: Ability[], { slices = [], expires_at }: Parameters<TestApp['token']>[2] = {}
): Promise<string> {
  const text = mintApiToken(organization)
  await createToken(db, {
    organization_id: organization,
    name: 'Test token',
    ...storedToken(text),
    abilities,
    slices,
    expires_at: expires_at ?? null
  })
  return text
}

/** Asserts that `work` does not change documents, versions and version counters of the test's organizations. */
export async function isUnchanged (
  t: Test, { sql, organizations }: Pick<TestApp, 'sql' | 'organizations'>, work: () => Promise<unknown>
) {
  if (organizations.length === 0) throw new Error('the test made no organization')
  const its = `organization_id IN ('${organizations.join("', '")}')`
  const stored = () => sql(`
    SELECT s::text AS row FROM secrets s WHERE ${its} UNION ALL SELECT v::text FROM secret_versions v WHERE ${its}
    UNION ALL SELECT organization_id || ' ' || next_version FROM organization_counters WHERE ${its} ORDER BY 1`)
  const before = await stored()
  await work()
  t.same(await stored(), before, 'nothing was stored or removed')
}

/** Creates a project, a target and an environment, and returns their slugs. */
export async function makeLevel (caller: Caller, project: Record<string, unknown> = {}) {
  const made = await caller.call('POST', `/${caller.organization}/projects`, { name: 'Orbit', ...project })
  if (made.status !== 201) throw new Error(made.text)
  const { slug } = made.body.data.attributes
  await caller.call('POST', `/${caller.organization}/${slug}/targets`, { name: 'Backend' })
  await caller.call('POST', `/${caller.organization}/${slug}/backend/environments`, { name: 'Live' })
  return { project: slug as string, target: 'backend', environment: 'live' }
}

/** Creates a migrated, empty database: on the server of TEST_DATABASE_URL, or else embedded. */
export async function freshDatabase (
  as?: (url: string) => Promise<string>
): Promise<{ database: Database, env: Record<string, string>, url?: string, drop: () => Promise<void> }> {
  const server = process.env.TEST_DATABASE_URL
  if (server === undefined) {
    const dir = mkdtempSync(join(tmpdir(), 'strongroom-test-'))
    copyCluster(join(dir, 'postgres'))
    const database: Database = await connect({
      dir: join(dir, 'postgres'),
      pool: 1,
      durable: false,
      onRequest: ({ backup }) => noteBackup(database.db, backup as Backup).then(() => true)
    })
    return {
      database,
      env: { DATA_DIR: dir },
      drop: async () =>
        rmSync(dir, { recursive: true, force: true })
    }
  }
  const name = `t_${ulid().toLowerCase()}`
  const nodes = process.env.TEST_CITUS_NODES
  if (nodes !== undefined) return freshOnCitus(nodes.split(','), name, as)
  const admin = postgres(server, { max: 1, onnotice: () => {} })
  const template = await migratedTemplate(server, admin)
  // `file_copy` takes half of the CPU time of `wal_log`, which is the default since PostgreSQL 15.
  const [version] = await admin`SELECT current_setting('server_version_num')::int >= 150000 AS has_strategies`
  await admin.unsafe(`CREATE DATABASE ${name} TEMPLATE ${template}${version!.has_strategies ? ' STRATEGY file_copy' : ''}`)
  const url = urlOf(server, name)
  const database = await connect({ url: await as?.(url) ?? url, pool: 10 })
  return {
    database,
    env: { DATABASE_URL: url },
    url,
    drop: async () => {
      await admin.unsafe(`DROP DATABASE ${name} WITH (FORCE)`)
      await admin.end({ timeout: 2 })
    }
  }
}

// A database on each node of the Citus cluster, with the tables placed.
async function freshOnCitus (nodes: readonly string[], name: string, as?: (url: string) => Promise<string>) {
  const admin = postgres(nodes[0]!, { max: 1, onnotice: () => {} })
  const template = await templateOf(admin, async (making, name) => {
    const url = await createOnCitus(nodes, making)
    const database = await connect({ url, pool: 1 })
    await database.migrate()
    await database.close()
    await makeTemplateOnCitus(nodes, making, name)
  })
  await admin.end({ timeout: 2 })
  const coordinator = await copyOnCitus(nodes, name, template)
  const url = await as?.(coordinator) ?? coordinator
  const database = await connect({ url, pool: 10 })
  return { database, env: { DATABASE_URL: url }, url, drop: () => dropOnCitus(nodes, name) }
}

let unpacked: string | undefined

// The first start of an embedded database unpacks the template. A test process unpacks it only once and then copies the
// files, which takes a third of the time.
function copyCluster (to: string) {
  if (unpacked === undefined) {
    const folder = mkdtempSync(join(tmpdir(), 'strongroom-template-'))
    process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
    unpacked = join(folder, 'cluster')
    unpackCluster(TEMPLATE, unpacked, { durable: false })
  }
  mkdirSync(to, { mode: 0o700 })
  cpSync(unpacked, join(to, 'cluster'), { recursive: true })
}

// The first process creates a template database, named after the hash of the migrations. Tests copy the template.
async function migratedTemplate (server: string, admin: Sql): Promise<string> {
  return templateOf(admin, async (making, name) => {
    await admin.unsafe(`DROP DATABASE IF EXISTS ${making}`)
    await admin.unsafe(`CREATE DATABASE ${making}`)
    const database = await connect({ url: urlOf(server, making), pool: 1 })
    await database.migrate()
    await database.close()
    await admin.unsafe(`ALTER DATABASE ${making} RENAME TO ${name}`)
  })
}

// The name of the database for this build's migrations. The first test process makes the database.
async function templateOf (admin: Sql, make: (making: string, name: string) => Promise<void>): Promise<string> {
  const hash = createHash('sha256')
  const migrations = readdirSync('drizzle').filter((name) => name.endsWith('.sql')).sort()
  for (const file of [...migrations.map((name) => join('drizzle', name)), 'src/db/citus/placement.ts']) {
    hash.update(readFileSync(file))
  }
  const name = `template_${hash.digest('hex').slice(0, 16)}`
  const isThere = async () => (await admin`SELECT FROM pg_database WHERE datname = ${name}`).length > 0
  if (await isThere()) return name
  await admin`SELECT pg_advisory_lock(1)`
  try {
    if (!await isThere()) await make(`${name}_making`, name)
    return name
  } finally {
    await admin`SELECT pg_advisory_unlock(1)`
  }
}
