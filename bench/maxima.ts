/**
 * `node dist/bench/maxima.js [--only WORD] [--levels 100 --versions 1000 --projects 2000 --tokens 1000
 * --members 1000 --events 500000]`, after `npm run build`, on Linux: sends every operation of openapi.yaml that reads,
 * also dry runs, to one organization at the limits of its lists, names and documents, with each parameter at its
 * maximum and as several callers. Prints the CPU time of the service and of PostgreSQL for the most expensive requests
 * of each operation.
 */
import { randomBytes } from 'node:crypto'
import fs from 'node:fs'
import { parseArgs } from 'node:util'
import postgres from 'postgres'
import { EVENTS } from '../schemas/events.ts'
import { open } from '../src/commands/common/open.ts'
import { loadConfig } from '../src/config.ts'
import { OPERATIONS, READS, requestOf, type Row } from '../test/helpers/operations.ts'
import { startPostgres } from '../test/helpers/postgres.ts'
import { DOCUMENTS, OTHER_DOCUMENTS } from './documents.ts'
import { withServiceHere } from './event-loop.ts'
import { fillMaxima, longName, MANY, type Filled } from './maxima-fill.ts'
import { cpuWithChildren } from './processes.ts'
import { makeTenants, type Tenant } from './seed.ts'
import { median } from './table.ts'

const BAR = 300
/** Requests that take less are not repeated, and not in the table. */
const SHOWN = 100
const ROUNDS = 3

/** Operations that are not sent, with the reason. Others with a new path are sent. */
const EXCLUDED: Record<string, string> = {
  getHealth: 'reads no organization',
  getReadiness: 'reads no organization',
  getAuthorizationServer: 'reads no organization',
  getProtectedResource: 'reads no organization',
  listPlans: 'reads no organization',
  listPendingVersions: 'client-managed projects alone, at most 500 versions, which a list of versions reads too',
  getInvoice: 'an invoice has a bounded number of lines',
  downloadInvoice: 'an invoice has a bounded number of lines'
}
const isAlias = (operation: string) => operation.endsWith('LongPath')

interface Parameter { name: string, in: string, required?: boolean, schema: Record<string, any> }
interface Documented { operationId: string, parameters?: ({ $ref: string } | Parameter)[] }
const document = JSON.parse(fs.readFileSync(new URL('../openapi-3.0.json', import.meta.url), 'utf8')) as {
  paths: Record<string, Record<string, Documented>>
  components: { parameters: Record<string, Parameter>, schemas: Record<string, any> }
}

/** The parameters in the query of each operation. */
const PARAMETERS = Object.fromEntries(Object.values(document.paths).flatMap((methods) =>
  Object.values(methods).map(({ operationId, parameters = [] }) => [
    operationId,
    parameters.map((one) => '$ref' in one ? document.components.parameters[one.$ref.split('/').at(-1)!]! : one)
      .filter((one) => one.in === 'query')
  ])))
const hasDryRun = (operation: string) => PARAMETERS[operation]?.some(({ name }) => name === 'dry_run') === true

/** Values of parameters that their schemas do not tell. */
const VALUES: Record<string, (ids: Record<string, string>) => string[]> = {
  page: () => ['2', '10', '100', '1000000000'],
  per_page: () => [],
  sort: () => ['name', '-name', 'created_at', '-created_at'],
  'filter[name]': () => [longName(7)],
  search: () => [longName(7), 'ж', 'nothing', 'ж%_\\'.repeat(63)],
  prefix: () => ['P', 'N'.repeat(255)],
  name: () => ['A', 'N'.repeat(512)],
  after: () => [],
  before: () => ['90000'],
  at: ({ moment }) => [moment!],
  from: ({ moment }) => [moment!],
  to: ({ now }) => [now!],
  actor: () => ['user:1', 'system'],
  action: () => ['secret.store'],
  resource: () => ['secret:FIRST'],
  created_by: () => ['user:1'],
  owner: () => ['user', 'service'],
  levels_after: () => ['target:target-0']
}
/** Queries that no single parameter makes. */
const MORE: Record<string, (ids: Record<string, string>) => string[]> = {
  listAuditEvents: (ids) => {
    const filters = auditFilters(ids)
    return filters.flatMap((filter) => [
      `${filter}&page=100&per_page=100`, `${filter}&before=90000&page=100&per_page=100`, `${filter}&page=1000`
    ])
  },
  exportAuditEvents: (ids) => auditFilters(ids).flatMap((filter) => [filter, `${filter}&after=5000`]),
  countAuditEvents: (ids) => auditFilters(ids).map((filter) =>
    `${filter}&from=${new Date(Date.now() - 91.5 * 86_400_000).toISOString()}&to=${ids.now!}`),
  readProjectMatrix: () => ['per_page=100&only=missing', 'per_page=100&only=different', 'per_page=100&page=100'],
  ...Object.fromEntries(['Project', 'Target', 'Environment'].map((level) => [`compare${level}Secrets`, ({ moment, now }) =>
    [`from=${moment}&to=${now}&values=true`, `from=${moment}&to=${now}&merge=true&values=true`,
      `from=project&to=${level.toLowerCase()}&values=true`]]))
}
const auditFilters = ({ projectId, targetId, environmentId }: Record<string, string>) => {
  const single = [
    'actor=user:1', 'resource=secret:FIRST', `project=${projectId}`, `target=${targetId}`, `environment=${environmentId}`,
    `from=${new Date(Date.now() - 80 * 86_400_000).toISOString()}`
  ]
  return ['', ...single, single.slice(0, 2).join('&'), single.slice(0, 3).join('&'), single.join('&'),
    ...EVENTS.slice(0, 1).map((action) => `action=${action}&${single[0]}`)]
}

interface Sent { method: string, path: string, body?: string }

/** The requests of an operation on one project: with the required parameters, with each other one, and all flags. */
function requestsOf (operation: string, row: Row, ids: Record<string, string>): Sent[] {
  const { method, url, payload } = requestOf({ ...row, query: undefined }, ids)
  const parameters = PARAMETERS[operation] ?? []
  const one = (name: string, value: string) => `${name}=${encodeURIComponent(value)}`
  const valuesOf = ({ name, schema }: Parameter) => VALUES[name]?.(ids) ??
    (schema.enum as string[] | undefined ?? (schema.type === 'boolean' ? ['true', 'false'] : []))
  const required = parameters.filter((parameter) => parameter.required).map((parameter) =>
    one(parameter.name, valuesOf(parameter)[0] ?? String(parameter.schema.example ?? '')))
  const isDry = hasDryRun(operation)
  const base = [...required, ...isDry ? ['dry_run=true'] : []]
  const pages = parameters.filter(({ name }) => name === 'per_page')
    .map(({ name, schema }) => one(name, String(schema.maximum)))
  const others = parameters.filter(({ name }) => name !== 'dry_run').flatMap((parameter) =>
    valuesOf(parameter).map((value) => [...base.filter((text) => !text.startsWith(`${parameter.name}=`)), ...pages,
      one(parameter.name, value)].join('&')))
  const flags = parameters.filter(({ name, schema }) => schema.type === 'boolean' || name === 'merge')
    .map(({ name }) => one(name, 'true'))
  const queries = [base.join('&'), [...base, ...pages].join('&'), ...others, [...base, ...pages, ...flags].join('&'),
    ...MORE[operation]?.(ids).map((query) => query) ?? []]
  const bodies = BODIES[operation]?.(ids) ?? [payload]
  return [...new Set(queries)].flatMap((query) => bodies.map((body) => ({
    method,
    path: query === '' ? url : `${url}?${query}`,
    ...(body !== undefined && { body: JSON.stringify(body) })
  })))
}

const levelOf = ({ project, target, environment }: Record<string, string>) =>
  ({ project, ...(target && { target }), ...(environment && { environment }) })
const largest = ({ kind }: Record<string, string>) =>
  ({ ...DOCUMENTS, ...OTHER_DOCUMENTS })[kind as 'json' | 'deep']?.(5) ?? DOCUMENTS.value()

const FILTERS = { names: Array.from({ length: 1_000 }, (_, i) => longName(i)), search: longName(7) }
const retrieving = (ids: Record<string, string>) => ['read', 'decrypt'].flatMap((action) =>
  [{}, { filters: FILTERS }, { merge: 'true' }].map((more) => ({ ...levelOf(ids), action, ...more })))
const changing = () => [
  { set: Object.fromEntries(Array.from({ length: 1_000 }, (_, i) => [`NEW_${i}`, 'x'.repeat(230)])) },
  { set: Object.fromEntries(Array.from({ length: 500 }, (_, i) => [`P1_${i}`, 'x'.repeat(500)])), unset: ['A'] }
]

/** The bodies of operations that need another than their row has. */
const BODIES: Record<string, (ids: Record<string, string>) => object[]> = {
  retrieveSecrets: retrieving,
  listVersions: (ids) => ['project', 'environment'].flatMap((level) => level === 'environment' && !ids.environment
    ? []
    : [{}, { page: 1, per_page: 100 }, { page: 10, per_page: 100 }].map((page) =>
        ({ ...level === 'project' ? { project: ids.project } : levelOf(ids), level, ...page }))),
  storeSecrets: (ids) => [{ ...levelOf(ids), plaintext: largest(ids) }, { ...levelOf(ids), plaintext: 'A=1' }],
  deleteSecrets: (ids) => [levelOf(ids)],
  restoreProject: ({ moment }) => [{ at: moment, confirmed: true }],
  restoreVersion: () => [{}],
  changeProjectSecrets: changing,
  changeTargetSecrets: changing,
  changeEnvironmentSecrets: changing,
  testWorkload: () => [{ token: `${'x'.repeat(4_000)}.${'y'.repeat(8_000)}.${'z'.repeat(4_000)}` }]
}

interface Measured { caller: string, kind: string, request: Sent, status: number, service: number, postgres: number }

const { values } = parseArgs({
  options: Object.fromEntries(Object.entries({
    only: '', levels: '100', versions: '1000', projects: '2000', tokens: '1000', members: '1000', events: '500000'
  }).map(([name, value]) => [name, { type: 'string' as const, default: value }]))
}) as { values: Record<string, string> }
const size = (name: string) => Number(values[name])

// Without parallel workers, all work of a statement is in one process.
const server = await startPostgres({ durable: false, settings: ['max_parallel_workers_per_gather=0', 'strongroom.idle_timeout=600000'] })
const sql = postgres(server.url, { max: 1, onnotice: () => {} })
try {
  const env = {
    DATABASE_URL: server.url, DATABASE_POOL: '10', MASTER_KEY: `bench:${randomBytes(32).toString('base64')}`, LOG_LEVEL: 'error'
  }
  const [tenant] = await makeTenants(env, 1) as [Tenant]
  const opened = await open(loadConfig(env), { creates: true })
  const filled = await fillMaxima(opened, sql, tenant, {
    levels: size('levels'),
    versions: size('versions'),
    projects: size('projects'),
    tokens: size('tokens'),
    members: size('members'),
    events: size('events')
  }).finally(() => opened.database.close())
  await sql`VACUUM ANALYZE`
  const [event] = await sql`SELECT details FROM audit_events WHERE details ? 'environment_id' AND chain_kid = 'none' LIMIT 1`
  const { project_id: projectId, target_id: targetId, environment_id: environmentId } = event!.details
  Object.assign(filled.ids, { projectId, targetId, environmentId, now: new Date().toISOString() })
  await withServiceHere(env, (url) => measureAll(url, filled))
} finally {
  await sql.end()
  await server.close()
}

async function measureAll (url: string, { callers, ids, kinds }: Filled): Promise<void> {
  const read = Object.entries(OPERATIONS).filter(([operation, { at }]) =>
    (at.startsWith('GET ') || READS.includes(operation) || hasDryRun(operation)) && !isAlias(operation) &&
    !(operation in EXCLUDED) && operation.toLowerCase().includes(values.only!.toLowerCase()))
  console.error(`filled: ${Math.round(performance.now() / 1000)} s`)
  console.log('| Operation | Service | PostgreSQL | Bar | Caller | Kind | Status | Request |\n|---|---|---|---|---|---|---|---|')
  for (const [operation, row] of read) {
    const isOfDocuments = row.at.includes('{project}') || row.at.includes('/secrets')
    const all: Measured[] = []
    for (const [caller, token] of Object.entries(callers)) {
      const some = Object.entries(kinds).filter(([kind]) => isOfDocuments && (caller === 'owner' || kind === 'json') &&
        (kind !== MANY || operation === 'restoreProject'))
      const lists = ['wide', 'tall'].map((project) => [project, { project, target: 'target-0', environment: 'env-0' }] as const)
      const on = row.at.includes('/secrets') || row.at.includes('restore-to') ? some : isOfDocuments ? lists : [['', {}] as const]
      for (const [kind, slugs] of on) {
        const its = { ...ids, target: undefined, environment: undefined, ...slugs, kind }
        const known = Object.fromEntries(Object.entries({ ...its, ...kind === '' && ids })
          .filter(([, value]) => value !== undefined)) as Record<string, string>
        for (const request of requestsOf(operation, row, known)) {
          // A level that this project does not have stays the name of the parameter.
          if (/\/(target|environment)(\/|$|\?)/.test(request.path)) continue
          all.push({ caller, kind, request, ...await measure(url, token, request) })
        }
      }
    }
    const worst = all.sort((a, b) => b.service + b.postgres - a.service - a.postgres).slice(0, 3)
    for (const one of worst.filter((each) => each.service + each.postgres >= SHOWN)) {
      const again: Awaited<ReturnType<typeof measure>>[] = []
      for (let i = 0; i < ROUNDS; i++) again.push(await measure(url, callers[one.caller as 'owner'], one.request))
      one.service = median(again.map((each) => each.service))
      one.postgres = median(again.map((each) => each.postgres))
    }
    for (const one of worst) print(operation, one)
    if (!all.some(({ status }) => status === 200)) console.log(`| ${operation} | no response 200 of ${all.length} | | | | | | |`)
  }
}

function print (operation: string, { caller, kind, request, status, service, postgres: database }: Measured): void {
  if (service + database < SHOWN && values.only === '') return
  const [ms, dbMs] = [service, database].map((time) => `${time.toFixed(0)} ms`)
  const bar = Math.max(service, database) > BAR ? '**missed**' : 'met'
  const shown = request.path.replace(/%D0%B6/g, 'ж').slice(0, 160)
  console.log(`| ${operation} | ${ms} | ${dbMs} | ${bar} | ${caller} | ${kind} | ${status} | \`${shown}\` ${request.body?.slice(0, 80) ?? ''} |`)
}

/** The service and this client run in this process. Linux counts CPU time of others in hundredths of a second. */
async function measure (
  url: string, token: string, { method, path: at, body }: Sent
): Promise<Pick<Measured, 'status' | 'service' | 'postgres'>> {
  const before = cpuWithChildren(server.pid)
  const began = process.cpuUsage()
  const answer = await fetch(url + at, {
    method,
    headers: { authorization: `Bearer ${token}`, ...(body !== undefined && { 'content-type': 'application/json' }) },
    ...(body !== undefined && { body })
  })
  await answer.arrayBuffer()
  const { user, system } = process.cpuUsage(began)
  return { status: answer.status, service: (user + system) / 1000, postgres: cpuWithChildren(server.pid) - before }
}
