// runs: one database; 20 s
import type { TSchema } from '@sinclair/typebox'
import { getTableColumns, is } from 'drizzle-orm'
import { PgTable } from 'drizzle-orm/pg-core'
import type { FastifyInstance, RouteOptions } from 'fastify'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import t from 'tap'
import { EXPORT_TYPES } from '../../schemas/audit.ts'
import { EVENTS } from '../../schemas/events.ts'
import { SCOPE_NAMES, type Ability, type Scope } from '../../schemas/scopes.ts'
import { buildApp } from '../../src/app.ts'
import { mintApiToken } from '../../src/crypto/bearer.ts'
import * as tables from '../../src/db/tables.ts'
import { serializerOf } from '../../src/http/responses/serialization.ts'
import { validatorOf } from '../../src/http/bodies/validation.ts'
import { scopesOfRole } from '../../src/rules/roles.ts'
import { JOINING } from '../../src/vault/memberships.ts'
import { RESERVED } from '../../src/rules/formats/slugs.ts'
import { startIsolatedApp, type Answer } from '../helpers/app.ts'
import { answersOf, codesIn, type Documented } from '../helpers/contract.ts'
import { byTurns, LONG } from '../helpers/long.ts'
import {
  CALLED, fingerprint, furtherScopes, isGivenByTeams, makeOthers, OPERATIONS, OTHER_RESOURCES, publishedPaths, READS,
  prepare, requestOf, send, settle, type Access, type Depth
} from '../helpers/operations.ts'
import { issuePair, makePerson, makeTeam, type Person } from '../helpers/people.ts'
import { until } from '../helpers/until.ts'
import { makeRule } from '../helpers/workloads.ts'

interface Schema {
  enum?: string[]
  anyOf?: Schema[]
  oneOf?: Schema[]
  properties?: Record<string, Schema>
  $ref?: string
}
interface Operation {
  operationId?: string
  tags?: string[]
  summary?: string
  deprecated?: boolean
  'x-audit-events'?: string[]
  security?: Record<string, string[]>[]
  parameters?: { name: string, in: string }[]
  requestBody?: { content: Record<string, { schema: Schema, example?: unknown }> }
  responses: Record<string, {
    description: string
    content?: Record<string, { schema: Schema, example?: { error?: string } }>
  }>
}

/** A response in the declaration of a route: one schema, or one schema for each media type. */
type Answered = TSchema & { content?: Record<string, { schema: TSchema }> }

// This file has its own database, because it compares fingerprints of all tables.
const service = await startIsolatedApp(t)
const document = service.app.swagger() as unknown as {
  tags: { name: string }[]
  components: { schemas: Record<string, Schema>, securitySchemes: Record<string, unknown> }
}
const published = Object.entries(publishedPaths(service)).flatMap(([path, methods]) =>
  Object.entries(methods as Record<string, Operation>).map(([method, operation]) =>
    ({ at: `${method.toUpperCase()} ${path}`, path, method: method.toUpperCase(), operation })))
const operations = published.map(({ operation }) => operation as Documented)
const rowOf = (operation: Operation) => OPERATIONS[operation.operationId ?? ''] ?? (() => {
  throw new Error(`${operation.operationId} has no row`)
})()
const resolve = (schema: Schema): Schema =>
  schema.$ref === undefined ? schema : document.components.schemas[schema.$ref.replace('#/components/schemas/', '')]!
const codesOf = (schema: Schema): string[] => resolve(resolve(schema).properties?.error ?? {}).enum ?? ['']

/** Operations that need no token, or a token without a certain scope. */
const WITHOUT_SCOPE = [
  'getAccessToken', 'getAuthorizationServer', 'getHealth', 'getOwnOrganization', 'getProtectedResource',
  'getReadiness', 'getUser', 'listOrganizations', 'listOwnInvitations', 'listPlans', 'revokeToken', 'sendTelemetry'
]

// The required scope of a retrieve depends on its action, so the document lists alternatives.
const securityOf = (id: string, row: (typeof OPERATIONS)[string]) => row.access === 'public'
  ? []
  : (id.startsWith('retrieveSecrets')
      ? [['secret:read'], ['secret:decrypt'], ['key:retrieve']]
      // Members can read their own access without a further scope.
      : id === 'getMemberAccess'
        ? [[row.access]]
        : [[row.needs ?? row.access, ...furtherScopes(row)], ...(row.lessAccess ?? []).map((scope) => [scope])])
      .flatMap((scopes) =>
        ['bearerToken', 'oauth'].map((scheme) => ({ [scheme]: scopes.filter((scope) => scope !== 'authenticated') })))

t.test('TI-36: the published operations and their scopes are exactly those that the tests list', async (t) => {
  const shown = published.map(({ at, operation }) => [operation.operationId, at, operation.security])
  const expected = Object.entries(OPERATIONS).map(([id, row]) => [id, row.at, securityOf(id, row)])
  const byId = (a: unknown[], b: unknown[]) => String(a[0]) < String(b[0]) ? -1 : 1
  t.strictSame(shown.sort(byId), expected.sort(byId))
  t.equal(new Set(shown.map(([id]) => id)).size, shown.length, 'every operation has an id of its own')
})

t.test('every scope guards an operation, and every operation names its scope or is one of a few', async (t) => {
  const named = published.flatMap(({ operation }) =>
    (operation.security ?? []).flatMap((way) => Object.values(way).flat()))
  t.strictSame(SCOPE_NAMES.filter((scope) => !named.includes(scope)), [], 'each guards something')
  const without = published.filter(({ operation }) =>
    (operation.security ?? []).every((way) => Object.values(way).flat().length === 0))
  t.strictSame(without.map(({ operation }) => operation.operationId).sort(), WITHOUT_SCOPE)
})

const build = async () => buildApp({
  config: service.config,
  database: service.database,
  keyring: service.keyring,
  costs: service.app.costs,
  logStream: { write: () => {} }
})

t.test('TI-36: a route without declared access, or a change without a declared event, does not boot', async (t) => {
  const app = await build()
  t.teardown(() => app.close())
  t.throws(() => app.get('/x', async () => 'x'), /does not declare config.access/)
  t.throws(() =>
    app.post('/x', { config: { access: 'secret:read' } }, async () => 'x'), /does not declare config.audit/)
})

t.test('every schema can be compiled, which a service does when it needs it first', async (t) => {
  const routes: RouteOptions[] = []
  const listen = (message: unknown) =>
    (message as { fastify: FastifyInstance }).fastify.addHook('onRoute', (route) => { routes.push(route) })
  subscribe('fastify.initialization', listen)
  const app = await build()
  unsubscribe('fastify.initialization', listen)
  t.teardown(() => app.close())
  const at = ({ method, url }: RouteOptions) => `${String(method)} ${url}`
  const schemasOf = (of: Answered) =>
    Object.values(of.content ?? { schema: { schema: of } }).map(({ schema }) => schema)
  const requests = routes.flatMap((route) => (['params', 'querystring', 'headers', 'body'] as const)
    .flatMap((part) => route.schema?.[part] ? schemasOf(route.schema[part] as Answered) : [])
    .map((schema) => ({ at: at(route), schema })))
  const answers = routes.flatMap((route) => Object.entries((route.schema?.response ?? {}) as Record<string, Answered>)
    .flatMap(([status, schema]) => schemasOf(schema).map((schema) => ({ at: `${at(route)} ${status}`, schema }))))
  t.ok(requests.length > published.length && answers.length > 5 * published.length, 'those of all routes were found')
  // Most responses have the schemas of the same errors.
  const failing = (schemas: { at: string, schema: unknown }[], compile: (schema: TSchema) => unknown) =>
    [...new Map(schemas.map((one) => [JSON.stringify(one.schema), one])).values()].filter(({ schema }) => {
      try {
        compile(schema as TSchema)
        return false
      } catch {
        return true
      }
    }).map(({ at }) => at)
  t.strictSame(failing(requests, (schema) => validatorOf(schema)({})), [])
  t.strictSame(failing(answers, serializerOf), [])
  const none = [{ at: 'none', schema: { type: 'none' } }]
  t.strictSame([failing(none, (schema) => validatorOf(schema)({})), failing(none, serializerOf)], [['none'], ['none']])
})

// OAuth endpoints use the formats of RFC 6749.
const isOAuth = (path: string) => path.startsWith('/api/oauth/')

t.test('every operation says what it is, what it takes and what it answers, with an example of each', async (t) => {
  const tags = document.tags.map(({ name }) => name)
  for (const { at, path, method, operation } of published) {
    t.ok(operation.summary !== undefined && operation.summary.length > 5, `${at} has a summary`)
    t.ok(operation.tags?.length === 1 && tags.includes(operation.tags[0]!), `${at} has a tag that is described`)
    t.equal(
      operation.deprecated === true, /^(?:put|patch)[A-Z]|(?:Long|Short)Path$/.test(operation.operationId!),
      `${at} is marked deprecated when it is`
    )
    const inPath = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name)
    t.strictSame(
      operation.parameters?.filter((parameter) => parameter.in === 'path').map(({ name }) => name) ?? [], inPath,
      `${at} describes its parameters`
    )
    if (operation.requestBody !== undefined) {
      const types = Object.keys(operation.requestBody.content)
      const isMerge = /^change\w+Secrets$/.test(operation.operationId!)
      t.strictSame(types, isOAuth(path)
        ? ['application/x-www-form-urlencoded']
        : ['application/json', ...isMerge ? ['application/merge-patch+json'] : []], at)
      for (const { schema, example } of Object.values(operation.requestBody.content)) {
        t.ok(schema?.$ref !== undefined && example !== undefined, `${at} has a named body and an example of it`)
      }
      const { schema } = operation.requestBody.content[types[0]!]!
      // RFC 6749, 3.2: the token endpoint ignores unknown parameters.
      if (!isOAuth(path)) {
        t.equal(
          (resolve(schema!) as { additionalProperties?: boolean }).additionalProperties, false,
          `${at} refuses unknown members`
        )
      }
    }
    // Telemetry may contain any data, because the service ignores its content.
    if (['POST', 'PUT', 'PATCH'].includes(method) && operation.operationId !== 'sendTelemetry') {
      t.ok(operation.requestBody !== undefined, `${at} describes its body`)
    }
    const good = Object.entries(operation.responses).filter(([status]) => status.startsWith('2'))
    // A dry run has a response body even if the operation itself has none.
    const isDeletion = operation.operationId === 'deleteSecrets'
    t.strictSame(isDeletion ? good.map(([status]) => status) : good.length, isDeletion ? ['200', '204'] : 1, `${at} has one good answer`)
    for (const [status, { content }] of good) {
      if (status === '204') t.notOk(content?.['application/json']?.example, `${at} 204 has no body`)
      else if (content?.['text/html']?.schema !== undefined) t.same(Object.keys(content), ['text/html'], at)
      else if (operation.operationId === 'exportAuditEvents') {
        t.strictSame(Object.keys(content!), EXPORT_TYPES)
        for (const { example } of Object.values(content!)) t.ok(example !== undefined, `${at} has an example`)
      } else t.ok(content?.['application/json']?.example !== undefined, `${at} ${status} has an example`)
    }
  }
})

t.test('every operation publishes every error that it can answer, each with its body and an example', async (t) => {
  for (const { at, path, operation } of published) {
    const { access, whenInactive } = rowOf(operation)
    const statuses = new Set(['400', '500', '503'])
    const codes = new Set(isOAuth(path)
      ? ['server_error', 'temporarily_unavailable']
      : ['internal_error', 'service_unavailable', 'unsupported_api_version'])
    const expect = (status: string, ...more: string[]) => {
      statuses.add(status)
      for (const code of more) codes.add(code)
    }
    if (access !== 'public') expect('401', 'unauthenticated')
    if (access !== 'public') expect('429', 'rate_limit_exceeded')
    if (access !== 'public' && access !== 'authenticated') expect('403', 'insufficient_permissions')
    if (access !== 'public' && whenInactive === undefined) expect('403', 'organization_inactive')
    if (path.includes('{organization}')) expect('404', 'not_found')
    if (operation.requestBody !== undefined) {
      expect('413', 'payload_too_large')
      expect('415', 'unsupported_media_type')
      if (isOAuth(path)) expect('400', 'invalid_request')
      else expect('422', 'validation_failed', 'malformed_json')
    }
    const errors = Object.entries(operation.responses).filter(([status]) => !(Number(status) < 400))
    const documented = answersOf(path, operation as Documented, operations)
    t.strictSame([...statuses].filter((status) => !documented.has(Number(status))), [], `${at} names its statuses`)
    const given = new Set<string>()
    for (const [status, { content, description }] of errors) {
      const { schema, example } = content?.['application/json'] ?? {}
      const named = codesIn({ description })
      t.ok(named.length > 0, `${at} ${status} has a body whose error is one of a list`)
      t.strictSame(named.filter((code) => !codesOf(schema ?? {}).includes(code)), [], `${at} ${status} lists codes`)
      t.ok(named.includes(example?.error ?? ''), `${at} ${status} has an example`)
      t.ok(description.length > 0)
      for (const code of named) given.add(code)
    }
    t.strictSame([...codes].filter((code) => !given.has(code)), [], `${at} names its errors`)
  }
})

t.test('D17: every static word that shares a place with a parameter is reserved', async (t) => {
  const paths = published.map(({ path }) => path.split('/'))
  const parameterOf = (segment: string | undefined) => /^\{(\w+)\}$/.exec(segment ?? '')?.[1]
  const reserved = (kind: string, word: string) =>
    (RESERVED as Record<string, readonly string[]>)[kind]?.includes(word) ?? false
  const shared: string[] = []
  for (const one of paths) {
    for (const other of paths) {
      for (const [i, segment] of one.entries()) {
        const [mine, theirs] = [parameterOf(segment), parameterOf(other[i])]
        // An id is a number, so a word cannot be an id.
        if (mine !== undefined && mine in RESERVED && theirs === undefined && other[i] !== undefined) {
          shared.push(`${mine} ${other[i]}`)
        }
        // The two paths differ where a parameter cannot have the value of the fixed word.
        if (mine === undefined && theirs === undefined
          ? segment !== other[i]
          : (mine === undefined) !== (theirs === undefined)) {
          break
        }
      }
    }
  }
  const needed = [...new Set(shared)].map((pair) => pair.split(' ') as [string, string])
  t.ok(needed.length >= 6, `${needed.length} words share a place`)
  t.strictSame(needed.filter(([kind, word]) => !reserved(kind, word)), [])
  const ofThePage = {
    organization: ['user', 'organization', 'organizations', 'plans', 'cli'],
    project: ['projects', 'secrets'],
    target: ['targets', 'secrets', 'encryption-key'],
    environment: ['environments', 'secrets', 'history', 'rotate']
  }
  for (const [kind, words] of Object.entries(ofThePage)) {
    t.strictSame(words.filter((word) => !reserved(kind, word)), [], kind)
  }
})

// The maximum number of members that one refusal names, so that the test sees each refused member.
const AT_ONCE = 20
// The number of members that fit into a body of an OAuth endpoint.
const IGNORED_AT_ONCE = 150

t.test('TI-37: no member of a body reaches a column that the operation does not name', async (t) => {
  const [mine, theirs] = [await settle(service, 'mine'), await settle(service, 'others')]
  const o = mine.ids.organization!
  const [rosa, otto] = [await makePerson(service), await makePerson(service)]
  await issuePair(service, otto, ['secret:write'])
  const members = await columnsAndValuesOf(theirs.ids.organization!)
  t.ok(members.length > 250, `${members.length} names of columns`)
  // The undeclared members for an operation, in groups of this size.
  const undeclared = (operation: Operation, atOnce: number) => {
    const declared = namesIn(operation.requestBody?.content['application/json']?.schema ?? {})
    const names = members.filter(([name]) => !declared.includes(name))
    return Array.from({ length: Math.ceil(names.length / atOnce) }, (_, i) =>
      names.slice(i * atOnce, (i + 1) * atOnce))
  }

  const before = await fingerprint(service)
  for (const [which, { path, operation }] of published.entries()) {
    const id = operation.operationId!
    if (operation.requestBody === undefined || isOAuth(path)) continue
    const { method, url, payload } = requestOf(OPERATIONS[id]!, mine.ids)
    const taken: string[] = []
    const all = undeclared(operation, AT_ONCE)
    // Without LONG, each operation gets one group of the names.
    for (const some of LONG ? all : [all[which % all.length]!]) {
      const { status, body } = await service.inject({
        method: method as 'GET',
        url,
        headers: { authorization: `Bearer ${mine.caller.token}` },
        payload: { ...payload, ...Object.fromEntries(some) }
      })
      const refused = status === 422 && body.error === 'validation_failed' ? Object.keys(body.errors) : []
      taken.push(...some.map(([name]) => name).filter((name) => !refused.includes(name)))
    }
    t.strictSame(taken, [], `${id} refuses each by its name`)
  }
  for (const more of ['"__proto__":{"id":"y"}', '"constructor":{"prototype":{"id":"y"}}']) {
    const { status } = await service.inject({
      method: 'POST',
      url: `/api/v1/${o}/projects`,
      payload: `{"name":"x",${more}}`,
      headers: { authorization: `Bearer ${mine.caller.token}`, 'content-type': 'application/json' }
    })
    t.equal(status, 422, more)
  }
  t.equal(({} as { id?: unknown }).id, undefined)
  t.equal(await fingerprint(service), before, 'nothing was changed, in any table')

  // Endpoints that ignore unknown members (RFC 6749, 3.2) must behave as without these members.
  const ignoring = (id: string) => undeclared(
    published.find(({ operation }) => operation.operationId === id)!.operation, IGNORED_AT_ONCE
  ).map((some) => Object.fromEntries(some.map(([name, value]) => [name, String(value)])))
  for (const more of ignoring('sendTelemetry')) {
    t.equal((await service.inject({ method: 'POST', url: '/api/v1/cli/telemetry', payload: more })).status, 200)
  }
  t.equal(await fingerprint(service), before)
  const pair = await issuePair(service, rosa, ['secret:read'])
  const but = async (...changing: string[]) => JSON.stringify((JSON.parse(await fingerprint(service)) as
    { name: string }[]).filter(({ name }) => !changing.includes(name)))
  const others = await but('oauth_tokens')
  const beside = await but('oauth_tokens', 'oauth_grants', 'personal_events')
  const grants = async () => JSON.stringify(await service.sql(`SELECT to_jsonb(g) - 'revoked_at' - 'mac',
    (SELECT jsonb_agg(DISTINCT to_jsonb(p.scopes)) FROM oauth_tokens p WHERE p.grant_id = g.id)
    FROM oauth_grants g ORDER BY g.id`))
  const granted = await grants()
  let newest = pair.refresh
  for (const more of ignoring('getAccessToken')) {
    const answer = await service.inject({
      method: 'POST',
      url: '/api/oauth/token',
      payload: { ...more, grant_type: 'refresh_token', client_id: 'dotenv-cli', refresh_token: newest }
    })
    t.match(answer, { status: 200, body: { scope: 'secret:read', expires_in: 3600 } })
    newest = answer.body.refresh_token
  }
  t.equal(await but('oauth_tokens'), others, 'nothing but pairs of tokens was made')
  t.equal(await grants(), granted, 'as the grants say')
  const live = async () => (await service.sql('SELECT id FROM oauth_grants WHERE revoked_at IS NULL')).length
  const lived = await live()
  for (const more of ignoring('revokeToken')) {
    const answer = await service.inject({
      method: 'POST', url: '/api/oauth/revoke', payload: { ...more, token: newest, client_id: 'dotenv-cli' }
    })
    t.equal(answer.status, 200)
  }
  t.equal(await live(), lived - 1, 'one grant is revoked')
  t.equal(await grants(), granted)
  t.equal(await but('oauth_tokens', 'oauth_grants', 'personal_events'), beside)
})

/** Each column of each table, in both spellings, with its value in a row of the organization, or else in any row. */
async function columnsAndValuesOf (organization: string): Promise<[name: string, value: unknown][]> {
  const values = new Map<string, unknown>()
  for (const [name, table] of Object.entries(tables)) {
    if (!is(table, PgTable)) continue
    const columns = Object.keys(getTableColumns(table))
    const [row] = await service.sql(`SELECT to_jsonb(x) AS row FROM ${name} x
      ${columns.includes('organization_id') ? `WHERE organization_id = '${organization}'` : ''} LIMIT 1`)
    for (const column of columns) {
      values.set(column, values.get(column) ?? (row?.row as Record<string, unknown> | undefined)?.[column] ?? true)
    }
  }
  return [...values].flatMap(([column, value]) =>
    [...new Set([column, column.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase())])].map((name) =>
      [name, value] as [string, unknown]))
}

/** The members that a body may have in any of its forms. */
function namesIn (schema: Schema): string[] {
  const { anyOf = [], properties = {} } = resolve(schema)
  return [...Object.keys(properties), ...anyOf.flatMap(namesIn)]
}

/** Deleted resources of a world: the name of each path parameter, and the deleted resource's id. */
async function deletedIn ({ caller, ids }: Awaited<ReturnType<typeof settle>>) {
  const o = caller.organization
  const done = async (method: string, path: string, body?: object) => {
    const { status, body: answer, text } = await caller.call(method, path, body)
    if (status >= 300) throw new Error(`${method} ${path}: ${text}`)
    return answer
  }
  const named = { name: 'Gone', slug: 'gone' }
  await done('POST', `/${o}/projects`, named)
  const { data: { version } } = await done('POST', `/${o}/secrets/store`, { project: 'gone', plaintext: 'A=1' })
  await done('POST', `/${o}/${ids.project}/targets`, named)
  await done('POST', `/${o}/${ids.project}/${ids.target}/environments`, named)
  const { api_key } = await done(
    'POST', `/organizations/${o}/api-keys`, { name: 'Gone', abilities: ['secret:read'] }
  )
  const team = (await done('POST', `/organizations/${o}/teams`, named)).data.id as string
  const { id: member } = await makePerson(service, { [o]: 'api_user' })
  for (const path of [
    `/${o}/gone`, `/${o}/${ids.project}/gone`, `/${o}/${ids.project}/${ids.target}/gone`,
    `/organizations/${o}/api-keys/${api_key.id}`, `/organizations/${o}/teams/gone`, `/organizations/${o}/members/${member}`
  ]) await done('DELETE', path)
  const others = await makeOthers(caller, ids)
  for (const { remove } of OTHER_RESOURCES) {
    const { method, url } = requestOf(OPERATIONS[remove]!, { ...ids, ...others })
    await done(method, url.replace('/api/v1', ''))
  }
  // Events of background jobs belong to no operation, so waits for the jobs.
  const removed = () => service.sql('SELECT FROM histories WHERE removed_at IS NOT NULL')
  await until(async () => (await removed()).length === 0, { within: 120_000 })
  return {
    project: { project: 'gone', client: 'gone' },
    target: { target: 'gone' },
    environment: { environment: 'gone' },
    version: { version: String(version) },
    id: { id: String(api_key.id) },
    team: { team },
    member: { member: String(member) },
    ...Object.fromEntries(Object.entries(others).map(([name, id]) => [name, { [name]: id }]))
  }
}

/** A person who was removed from a world, with an API token that the person created there. */
async function removedFrom ({ caller: { organization: o, call } }: Awaited<ReturnType<typeof settle>>) {
  const person = await makePerson(service, { [o]: 'administrator' })
  const { access } = await issuePair(service, person, SCOPE_NAMES)
  const made = await call(
    'POST', `/organizations/${o}/api-keys`,
    { name: 'Theirs', abilities: ['secret:read'], expires_at: new Date(Date.now() + 3_600_000) },
    { authorization: `Bearer ${access}` }
  )
  const { status, text } = await call('DELETE', `/organizations/${o}/members/${person.id}`)
  if (made.status !== 201 || status !== 204) throw new Error(made.text + text)
  return [person, made.body.token as string] as const
}

t.test('TI-10, TI-11, OA-82, AU-01: each operation treats each caller correctly; refusals change nothing', async (t) => {
  const [mine, theirs] = [await settle(service, 'ours'), await settle(service, 'theirs')]
  const o = mine.ids.organization!
  for (const plaintext of ['B=1', 'B=2', 'B=3', 'B=4']) {
    const { project, target, environment } = theirs.ids
    await theirs.caller.call(
      'POST', `/${theirs.ids.organization}/secrets/store`, { project, target, environment, plaintext }
    )
  }
  const foreign = {
    ...mine.ids,
    project: theirs.ids.project!,
    target: theirs.ids.target!,
    environment: theirs.ids.environment!,
    version: '7',
    id: theirs.ids.id!,
    member: theirs.ids.member!,
    team: theirs.ids.team!,
    payment_method: theirs.ids.payment_method!,
    charge: theirs.ids.charge!,
    invoice: theirs.ids.invoice!,
    client: theirs.ids.client!,
    ...Object.fromEntries(OTHER_RESOURCES.map(({ parameter }) => [parameter, theirs.ids[parameter]!]))
  }
  const never = {
    ...mine.ids,
    project: 'never',
    target: 'never',
    environment: 'never',
    version: '9007199254740991',
    id: '9007199254740991',
    member: '9007199254740991',
    team: 'never',
    payment_method: 'never',
    charge: 'never',
    invoice: 'never',
    client: 'never',
    ...Object.fromEntries(OTHER_RESOURCES.map(({ parameter }) => [parameter, 'never']))
  }
  const nowhere = { ...mine.ids, organization: theirs.ids.organization!.replace(/..$/, 'ZZ') }

  const deletedOrganization = await service.organization()
  await service.sql(
    `DELETE FROM api_tokens WHERE organization_id = '${deletedOrganization.organization}'; DELETE FROM organizations WHERE id = '${deletedOrganization.organization}'`
  )
  const revoked = await service.token(o, ['*'])
  await service.sql(`DELETE FROM api_tokens WHERE id = (SELECT max(id) FROM api_tokens WHERE organization_id = '${o}')`)
  const gone = await deletedIn(mine)
  const accessOf = async (person: Person) => (await issuePair(service, person, SCOPE_NAMES)).access
  const [removed, removedToken] = await removedFrom(mine)
  const nobody: [name: string, token: string | undefined][] = [
    ['no token', undefined],
    ['garbage', 'garbage'],
    ['an unknown token', mintApiToken(o)],
    ['a revoked token', revoked.token],
    ['an expired token', (await service.token(o, ['*'], { expires_at: new Date(0) })).token],
    ['a token of a deleted organization', deletedOrganization.token],
    ['a token of a member who was removed', removedToken]
  ]
  const strangers: [name: string, token: string][] = [
    ['another organization’s *', theirs.caller.token],
    [
      'a person of another organization',
      await accessOf(await makePerson(service, { [theirs.ids.organization!]: 'owner' }))
    ],
    ['a person who was removed', await accessOf(removed)]
  ]
  const own: [name: string, token: string][] = [
    ['*', mine.caller.token],
    [
      'a person of both organizations',
      await accessOf(await makePerson(service, { [o]: 'owner', [theirs.ids.organization!]: 'owner' }))
    ]
  ]
  // The roles of these people include no scope in a project. They have access only through a team, which has the
  // projects of the world or another project.
  const letIn: [name: string, isThere: boolean, token: string][] = []
  for (const [name, isThere, projects] of [
    ['a person let in by a team', true, [mine.ids.project!, mine.ids.client!]],
    ['a person let in elsewhere by a team', false, [mine.ids.otherProject!]]
  ] as const) {
    const person = await makePerson(service, { [o]: 'billing_manager' })
    await makeTeam(service, o, [person], Object.fromEntries(projects.map((slug) => [slug, 'owner'])))
    letIn.push([name, isThere, await accessOf(person)])
  }
  const perScope: [scope: Access, token: string][] = []
  for (const scope of SCOPE_NAMES) perScope.push([scope, (await service.token(o, [scope])).token])
  const rosa = await makePerson(service, { [o]: 'owner' })
  const lacking = new Map<Access, [who: string, token: string][]>()
  for (const scope of SCOPE_NAMES) {
    const others = SCOPE_NAMES.filter((one) => one !== scope)
    lacking.set(scope, [
      ['an API token with all other scopes', (await service.token(o, others)).token],
      ['an access token with all other scopes', (await issuePair(service, rosa, others)).access]
    ])
  }
  const narrowed: [name: string, at: Depth | 'sibling', token: string][] = []
  for (const [name, at, slice] of [
    ['a token for another project', 'organization', mine.sliceOf('project')],
    ['a token for a sibling target', 'sibling', mine.sliceOf('target')],
    ['a token for a sibling environment', 'sibling', mine.sliceOf('environment')]
  ] as const) narrowed.push([name, at, (await service.token(o, ['*'], { slices: [slice] })).token])
  const place = mine.sliceOf()
  narrowed.push([
    'a token for the target', 'target',
    (await service.token(o, ['*'], { slices: [{ ...place, environment_id: null }] })).token
  ])
  narrowed.push([
    'a token for the environment', 'environment', (await service.token(o, ['*'], { slices: [place] })).token
  ])
  const DEPTHS: Depth[] = ['organization', 'project', 'target', 'environment']
  // Roles that end together with the environment or the target.
  for (const slice of [place, { ...place, environment_id: null }]) {
    await makeTeam(service, o, [], { [mine.ids.project!]: 'api_user' }, [slice])
  }

  let cells = 0
  const before = await fingerprint(service)
  for (const [which, [id, row]] of Object.entries(CALLED).entries()) {
    const wrong: string[] = []
    const check = (who: string, answer: Answer, status: number, error?: string) => {
      cells++
      if (answer.status !== status || (error !== undefined && answer.body?.error !== error)) {
        wrong.push(`${who}: ${answer.status} ${answer.text.slice(0, 200)}, not ${status} ${error ?? ''}`)
      }
      return answer
    }
    if (row.access === 'public') {
      for (const [who, token] of byTurns(nobody, which, 3)) {
        check(who, await send(service, row, mine.ids, token), row.public ?? 200)
      }
      t.strictSame(wrong, [], id)
      continue
    }
    for (const [who, token] of byTurns(nobody, which, 3)) {
      check(who, await send(service, row, mine.ids, token), 401, 'unauthenticated')
    }

    const needed = row.needs ?? row.access
    // One token with each other scope, and one token with all other scopes.
    const refused: [who: string, token: string][] = needed === 'authenticated'
      ? []
      : [
          ...byTurns(perScope.filter(([scope]) => scope !== needed), which, 20),
          ...byTurns(lacking.get(needed)!, which, 2)
        ]
    for (const [who, token] of refused) {
      const { body, headers } = check(who, await send(service, row, mine.ids, token), 403, 'insufficient_permissions')
      const challenge = `Bearer realm="strongroom", error="insufficient_scope", scope="${needed}"`
      const { required_scope, granted_scopes = [] } = body?.details ?? {}
      if (required_scope !== needed || granted_scopes.includes(needed) || headers['www-authenticate'] !== challenge) {
        wrong.push(`${who}: does not name ${needed}`)
      }
      if (lacking.get(needed)!.some(([, one]) => one === token) && granted_scopes.length !== SCOPE_NAMES.length - 1) {
        wrong.push(`${who}: does not name what is held`)
      }
    }
    if (row.at.includes('{organization}')) {
      const missing = check(
        'no such organization', await send(service, row, nowhere, mine.caller.token), 404, 'not_found'
      )
      for (const [who, token] of byTurns(strangers, which, 3)) {
        const stranger = check(who, await send(service, row, mine.ids, token), 404, 'not_found')
        if (stranger.text !== missing.text) wrong.push(`${who}: foreign and missing differ`)
      }
    }
    const names = row.depth !== 'organization' || /\{(?:id|member|team|payment_method|charge|invoice)\}/.test(row.at) ||
      OTHER_RESOURCES.some(({ parameter }) => row.at.includes(`{${parameter}}`))
    if (names) {
      const nothing = check('what never was', await send(service, row, never, mine.caller.token), 404, 'not_found')
      for (const [who, token] of byTurns(own, which, 2)) {
        const there = check(
          `${who}, another organization’s things`, await send(service, row, foreign, token), 404, 'not_found'
        )
        if (there.text !== nothing.text) wrong.push(`${who}: another’s things and what never was differ`)
      }
      const named = row.at + JSON.stringify(typeof row.body === 'function' ? row.body(mine.ids) : row.body ?? '')
      const deletions = Object.entries(gone).filter(([name]) => named.includes(`{${name}}`))
      for (const [name, ids] of byTurns(deletions, which, Math.max(1, deletions.length))) {
        const deleted = check(
          `a deleted ${name}`, await send(service, row, { ...mine.ids, ...ids }, mine.caller.token), 404, 'not_found'
        )
        const unknown = { ...mine.ids, ...ids, [name]: never[name as keyof typeof never]! }
        const absent = await send(service, row, unknown, mine.caller.token)
        if (deleted.text !== absent.text) wrong.push(`a deleted ${name} and what never was differ`)
      }
    }
    for (const [who, isThere, token] of byTurns(letIn, which, 2)) {
      if (row.byPerson || needed === 'authenticated' || scopesOfRole('billing_manager').includes(needed as Scope)) continue
      const isGiven = isGivenByTeams(row)
      if (isGiven && (isThere || row.depth === 'organization')) {
        if (row.at.startsWith('GET ') || READS.includes(id)) check(who, await send(service, row, mine.ids, token), 200)
      } else {
        // The service does not know the level of a version before it looks the version up.
        const isFound = isGiven && row.at.includes('{version}')
        const answer = await send(service, row, mine.ids, token)
        check(who, answer, isFound ? 404 : 403, isFound ? 'not_found' : 'insufficient_permissions')
        if (!isFound && ![needed, ...furtherScopes(row)].includes(answer.body?.details?.required_scope)) {
          wrong.push(`${who}: does not name ${needed}`)
        }
      }
    }
    for (const [who, at, token] of byTurns(narrowed, which, 3)) {
      const isAbove = at !== 'sibling' && DEPTHS.indexOf(row.depth) < DEPTHS.indexOf(at)
      const outside = at === 'organization' || (!row.filtersLevels && (at === 'sibling' || isAbove))
      if (row.narrowed !== undefined) check(who, await send(service, row, mine.ids, token), row.narrowed)
      else if (row.depth !== 'organization' && outside) {
        check(who, await send(service, row, mine.ids, token), 404, 'not_found')
      } else if (row.at.startsWith('GET ') || READS.includes(id)) {
        check(who, await send(service, row, mine.ids, token), row.byPerson ? 422 : 200)
      }
    }
    t.strictSame(wrong, [], id)
  }
  const quiet = (text: string) => text.replace(/\{"name":"(?:audit_events|organization_counters)"[^}]*\}/g, '')
  t.equal(
    quiet(await fingerprint(service)), quiet(before), 'nothing was changed by what was refused, nor by what only reads'
  )
  t.ok(cells >= (LONG ? 20 : 6) * Object.keys(CALLED).length, `${cells} cells`)

  // Each deletion of a level ends a rule.
  const target = { ...place, environment_id: null }
  for (const slice of [place, target, { ...target, target_id: null }]) {
    await makeRule(service, o, { slices: [slice] })
  }
  // Conversely, for each row the required scope alone is enough, and a change records its event.
  for (const [id, row] of Object.entries(CALLED)) {
    if (row.access === 'public') continue
    const needed = row.needs ?? row.access
    const alone = needed === 'authenticated' ? perScope[0]![1] : perScope.find(([scope]) => scope === needed)![1]
    const [also] = furtherScopes(row)
    if (also !== undefined) {
      t.match(
        await send(service, row, mine.ids, alone), { status: 403, body: { details: { required_scope: also } } },
        `${id} with ${needed} alone`
      )
    }
    const more = [furtherScopes(row), row.holding ?? []].flat()
    const token = row.byPerson
      ? (await issuePair(service, mine.person, [needed as Scope])).access
      : more.length === 0 ? alone : (await service.token(o, [needed as Ability, ...more])).token
    if (row.byPerson) {
      t.match(await send(service, row, mine.ids, alone), { status: 422, body: { error: 'user_required' } }, id)
    }
    await prepare(service, row, mine.ids)
    const [{ seq }] = await service.sql(`SELECT coalesce(max(seq), 0)::int AS seq FROM audit_events
      WHERE organization_id = '${row.byPerson ? mine.ids.inviter : o}'`) as [{ seq: number }]
    const answer = await send(service, row, mine.ids, token)
    t.ok(
      answer.status >= 200 && answer.status < 300,
      `${id} with ${needed}: ${answer.status} ${answer.status < 300 ? '' : answer.text}`
    )
    // The event belongs to the organization that a person created or joined, or else to the inviting organization.
    const own = row.byPerson ? answer.body?.data?.id ?? mine.ids.inviter : o
    const where = own === o || own === mine.ids.inviter
      ? `organization_id = '${own}' AND seq > ${seq}`
      : `organization_id = '${own}' AND action NOT IN ('invitation.create', 'project.create')`
    const since = async () => (await service.sql(
      `SELECT action FROM audit_events WHERE ${where} ORDER BY seq`
    )).map(({ action }) => action)
    const events = await since()
    const changes = !row.at.startsWith('GET ') && !READS.includes(id)
    const plain = row.reveals !== undefined && needed === 'secret:read' && also === undefined
    const declared = published.find(({ operation }) => operation.operationId === id)!.operation['x-audit-events'] ?? []
    // Deleting a level also ends tokens, rules and roles that are restricted to it. Each records an event in addition
    // to the level's event. Accepting an invitation to a place also makes a team.
    const further: unknown[] = id === 'acceptInvitation'
      ? JOINING.slice(1)
      : ['api-token.delete', 'workload.delete', 'team-project.delete']
    const isEnding = ['deleteApiToken', 'deleteWorkload', 'removeTeamProject'].includes(id)
    const counted = changes && !isEnding ? events.filter((event) => !further.includes(event)) : events
    t.equal(counted.length, declared.length > 0 && !plain ? 1 : 0, `${id} leaves ${events.join()}`)
    if (changes) t.equal(counted.length, 1, `${id} changes something`)
    for (const { query = row.query, body, headers } of row.reveals ?? []) {
      const answer = await send(
        service, { ...row, query, ...(body && { body }) }, mine.ids, mine.caller.token, headers
      )
      t.equal(answer.status, 200, `${id} ${query}: ${answer.text}`)
    }
    const all = await since()
    t.equal(all.length, events.length + (row.reveals?.length ?? 0), `${id}: each leaves one`)
    t.strictSame(
      [...new Set(all)].sort(), [...declared].sort(), `${id} leaves each event that it declares, and no other`
    )
    t.ok(all.every((event) => (EVENTS as readonly unknown[]).includes(event)))
  }

  // The rows say which operations an inactive organization may still use.
  await service.sql(`UPDATE organization_counters SET status = 'suspended' WHERE organization_id = '${theirs.ids.organization}'`)
  for (const [which, [id, row]] of Object.entries(CALLED).entries()) {
    if (row.access === 'public') continue
    // Without LONG, each exception and every third of the other operations.
    if (!LONG && !row.whenInactive && which % 3 !== 0) continue
    const answer = await send(service, row, theirs.ids, theirs.caller.token)
    t.strictSame(
      [answer.status, answer.body?.error],
      !row.whenInactive ? [403, 'organization_inactive'] : row.byPerson ? [422, 'user_required'] : [200, undefined],
      `${id} when suspended`
    )
  }
})
