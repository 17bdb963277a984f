// runs: no database; 7 s
import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { promisify } from 'node:util'
import t from 'tap'
import { parse, parseDocument, visit } from 'yaml'
import { EXPORT_TYPES } from '../../schemas/audit.ts'
import { EVENTS } from '../../schemas/events.ts'
import { codeOf, COMMON_ERRORS, ERRORS, type ErrorCode } from '../../schemas/errors.ts'
import { SCOPE_NAMES, SCOPES, type Scope } from '../../schemas/scopes.ts'
import { YAML_TYPE } from '../../schemas/names.ts'
import { MERGES, RAW_TYPE, READ_TYPE } from '../../schemas/secrets.ts'
import { PROJECT_ROLES, ROLES } from '../../schemas/users.ts'
import { codesIn, describing, operationsIn, ownErrorsOf, statusesOf } from '../helpers/contract.ts'
import { LONG } from '../helpers/long.ts'
import { renderDocuments } from '../../src/commands/serve/openapi.ts'
import { scopesInProject } from '../../src/rules/roles.ts'

t.test('openapi.yaml, docs/scopes.md and the words of paths match the routes; otherwise: npm run openapi', async (t) => {
  const published = await renderDocuments()
  for (const [file, text] of Object.entries(published)) {
    t.ok(readFileSync(file, 'utf8') === text, `${file} is out of date: run npm run openapi and commit the file`)
  }
  if (LONG) t.strictSame(await renderDocuments(), published, 'it comes out the same every time')
  t.equal(parse(published['openapi.yaml']).openapi, '3.1.0')
})

/** The findings of redocly about a file. */
async function lint (file: string) {
  const { stdout } = await promisify(execFile)(process.execPath, [
    'node_modules/.bin/redocly', 'lint', file, '--format=json'
  ], {
    env: { ...process.env, REDOCLY_TELEMETRY: 'off', REDOCLY_SUPPRESS_UPDATE_NOTICE: 'true' }
  }).catch((error: { stdout: string }) => error)
  const { totals, problems } = JSON.parse(stdout.slice(stdout.indexOf('{')))
  // The specification requires both `/organizations/{organization}` and `/{organization}/projects`; static words take
  // precedence. `default` contains the errors of operations without other errors, such as `/healthz`.
  const accepted = ['no-ambiguous-paths', 'operation-4xx-response']
  const ruleIds = (problems as { ruleId: string }[]).map(({ ruleId }) => ruleId)
  return { errors: totals.errors as number, others: ruleIds.filter((rule) => !accepted.includes(rule)) }
}

t.test('the document lints without an error, and its examples match their schemas', async (t) => {
  t.strictSame(await lint('openapi.yaml'), { errors: 0, others: [] })
})

const text = readFileSync('openapi.yaml', 'utf8')
const { paths, components } = parse(text) as Published

interface Schema extends Record<string, unknown> {
  $ref?: string
  type?: string | string[]
  oneOf?: Schema[]
  anyOf?: Schema[]
  required?: string[]
  properties?: Record<string, Schema>
  discriminator?: { propertyName: string, mapping: Record<string, string> }
}
interface Body {
  content?: Record<string, { schema: Schema, example?: unknown }>
  required?: boolean
}
interface Media extends Body {
  description: string
  headers?: object
}
interface Operation {
  operationId: string
  summary: string
  description: string
  deprecated?: boolean
  tags: string[]
  security: Record<string, Scope[]>[]
  parameters?: { $ref: string }[]
  requestBody?: Body
  responses: Record<string, { $ref: string }>
}
interface Published {
  paths: Record<string, Record<string, Operation>>
  components: {
    securitySchemes: object
    parameters: Record<string, { in: string, required?: boolean }>
    responses: Record<string, Media>
    schemas: Record<string, Schema>
  }
}

const operations = Object.values(paths).flatMap((item) => Object.values(operationsIn(item)))
const described = operations.map((operation) => ({ ...operation, own: ownErrorsOf(operation) }))
const named = <T>(of: Record<string, T>, { $ref }: { $ref?: string }) => of[$ref!.split('/').at(-1)!]!
const follow = (schema: Schema): Schema => schema.$ref === undefined ? schema : named(components.schemas, schema)

/** All objects in a value, with their paths. */
function * objectsIn (value: unknown, at = ''): Generator<[string, Record<string, unknown>]> {
  if (typeof value !== 'object' || value === null) return
  if (!Array.isArray(value)) yield [at, value as Record<string, unknown>]
  for (const [key, member] of Object.entries(value)) {
    if (key !== 'example') yield * objectsIn(member, `${at}/${key}`)
  }
}

t.test('the document is at most 360 KB, and has no aliases', async (t) => {
  t.ok(Buffer.byteLength(text) <= 360_000, `${Buffer.byteLength(text)} bytes`)
  let aliases = 0
  visit(parseDocument(text), { Alias: () => { aliases++ } })
  t.equal(aliases, 0)
})

t.test('readers of YAML 1.1 find the same in it: no word or moment becomes something else', async (t) => {
  t.strictSame(parse(text, { version: '1.1' }), parse(text))
})

t.test('a body has no default, and is required where it has fields', async (t) => {
  const bodies = operations.flatMap(({ operationId, requestBody }) => requestBody === undefined
    ? []
    : Object.values(requestBody.content!).map(({ schema }, i) =>
      ({ operationId, schema, requestBody, isFirst: i === 0 })))
  t.ok(bodies.length > 30)
  for (const { operationId, schema, requestBody, isFirst } of bodies) {
    t.match(schema.$ref, /^#\/components\/schemas\/\w+$/, `that of ${operationId} has a name`)
    const { properties = {}, oneOf, anyOf } = follow(schema)
    const hasFields = Object.keys(properties).length > 0 || oneOf !== undefined || anyOf !== undefined
    if (isFirst) t.equal(requestBody.required, hasFields, `that of ${operationId} is required if it has fields`)
  }
  const bodiesByName = new Map(bodies.map(({ schema }) => [schema.$ref!, follow(schema)]))
  t.strictSame([...objectsIn([...bodiesByName.values()])].filter(([at, object]) =>
    'default' in object && !at.endsWith('/properties')).map(([at]) => at), [])
})

t.test('parameters and responses are components, choices have names, and maps have their own media types', async (t) => {
  t.strictSame([...objectsIn(operations.map(({ parameters, responses }) => [parameters, Object.values(responses)]))]
    .filter(([, object]) => object.$ref === undefined).map(([at]) => at), [])
  const answers = Object.entries(components.responses).flatMap(([name, { content = {} }]) =>
    Object.entries(content).map(([type, { schema }]) => ({ name, type, schema })))
  // An invoice is an HTML page. Values for a shell and exported events are text. A client saves these files unchanged.
  const isFile = ({ type, schema }: { type: string, schema: Schema }) =>
    schema.format === 'binary' || ['text/html', 'text/plain', ...EXPORT_TYPES as readonly string[]].includes(type)
  t.strictSame(answers.filter((one) => !isFile(one) && one.schema.$ref === undefined), [])
  const isMap = ({ schema }: { schema: Schema }) => follow(schema).properties === undefined &&
    follow(schema).oneOf === undefined && follow(schema).anyOf === undefined
  t.strictSame(
    answers.filter((one) => !isFile(one) && isMap(one)).map(({ type }) => type),
    // The media types of values, which are maps and have no other schema.
    [RAW_TYPE, RAW_TYPE, READ_TYPE, YAML_TYPE]
  )
})

const errorResponses = Object.entries(components.responses).filter(([name]) => /Err(?:[45]\d\d|Common)$/.test(name))
const schemaOf = ({ content }: Media) => content!['application/json']!.schema
const wordsOf = (schema: Schema) => follow(follow(schema).properties!.error!).enum as string[]
const isOAuth = (name: string) => name.startsWith('OAuthErr')

t.test('all errors have one schema; the description of a status lists its codes, the fields name theirs', async (t) => {
  const codes = [...new Set((Object.keys(ERRORS) as ErrorCode[]).map(codeOf))]
  t.strictSame(Object.keys(components.schemas).filter((name) => /^Err/.test(name)), ['Error', 'ErrorCode', 'ErrorDetails'])
  t.strictSame(components.schemas.ErrorCode!.enum, codes)
  for (const [name, response] of errorResponses) {
    const schema = schemaOf(response)
    const status = Number(name.slice(-3))
    if (isOAuth(name)) t.strictSame(codesIn(response), wordsOf(schema), name)
    else {
      t.strictSame(schema, { $ref: '#/components/schemas/Error' }, name)
      const expected = name === 'ErrCommon' ? COMMON_ERRORS.map(codeOf) : codes.filter((code) => statusesOf(code).has(status))
      t.strictSame(codesIn(response).sort(), [...expected].sort(), name)
    }
  }
  for (const { operationId, responses, description } of operations) {
    for (const [status, { $ref }] of Object.entries(responses).filter(([status]) => !(Number(status) < 400))) {
      const name = status === 'default' ? 'ErrCommon' : `(?:OAuth)?Err${status}`
      t.match($ref, new RegExp(`/${name}$`), operationId)
    }
    for (const { status, code } of ownErrorsOf({ description })) {
      const listed = named(components.responses, responses[status]!)
      t.ok(codesIn(listed).includes(code), `${operationId} lists the status of ${code}`)
    }
  }
  const fields = Object.entries(components.schemas.ErrorDetails!.properties!) as [string, { description: string }][]
  for (const [name, { description }] of fields) {
    const having = description.split('. ').flatMap((part) => part.split(':')[0]!.split(', '))
    const expected = (Object.keys(ERRORS) as ErrorCode[]).filter((code) =>
      name in ((ERRORS[code] as { details?: { properties: object } }).details?.properties ?? {})).map(codeOf)
    t.strictSame(having.sort(), [...new Set(expected)].sort(), name)
  }
})

t.test('a duplicate of an operation refers to it, and takes and answers the same', async (t) => {
  const duplicates = operations.filter(({ deprecated }) => deprecated)
  t.equal(duplicates.length, 26)
  for (const duplicate of duplicates) {
    const original = describing(duplicate, operations)
    const { operationId } = duplicate
    t.notOk(original.deprecated, operationId)
    const successes = ({ responses }: Operation) =>
      Object.entries(responses).filter(([status]) => Number(status) < 400)
    t.strictSame(successes(duplicate), successes(original), operationId)
    t.strictSame(duplicate.security, original.security, operationId)
    t.strictSame(duplicate.requestBody, original.requestBody, operationId)
    t.strictSame(
      duplicate.parameters?.map(({ $ref }) => $ref), original.parameters?.map(({ $ref }) => $ref), operationId
    )
  }
})

t.test('a body has one media type, or is JSON first, which generators take', async (t) => {
  let bodies = 0
  for (const { operationId, requestBody } of operations) {
    if (requestBody === undefined) continue
    bodies++
    const types = Object.keys(requestBody.content!)
    if (/^change\w+Secrets$/.test(operationId)) {
      t.strictSame(types, ['application/json', 'application/merge-patch+json'], operationId)
    } else t.equal(types.length, 1, operationId)
  }
  t.ok(bodies > 0)
})

t.test('limits are listed for success and 429, Retry-After where 429 is, the request id for errors', async (t) => {
  for (const [name, { headers = {} }] of Object.entries(components.responses)) {
    const isError = /Err(?:[45]\d\d|Common)$/.test(name)
    t.equal('X-Request-Id' in headers, isError, name)
    if (isError && !name.endsWith('429')) t.notOk('X-RateLimit-Limit' in headers, name)
    t.equal('Retry-After' in headers, /(?:429|Common)$/.test(name), name)
  }
})

t.test('`default` has the errors of every operation; a status is listed if an error of it is the operation’s own', async (t) => {
  for (const { operationId, responses, own } of described) {
    t.equal(responses.default?.$ref, '#/components/responses/ErrCommon', operationId)
    const listed = Object.keys(responses).map(Number).filter((status) => status >= 400)
    // The OAuth endpoints use the errors of RFC 6749.
    if (listed.some((status) => isOAuth(responses[status]!.$ref.split('/').at(-1)!))) continue
    t.strictSame(listed, [...new Set(own.map(({ status }) => status))].sort(), operationId)
  }
})

/** The first part of a description in plain words, without its scopes and errors. */
const plainWordsOf = (description: string) =>
  description.split(/(?:^| )(?:Needs (?:`|no token|, depending)|Needs, depending|Any token is accepted|Own errors)/)[0]!.trim()

t.test('every operation says in plain words what it does, beyond its summary, scopes and errors', async (t) => {
  const scopeOnly = ['Needs no token.', 'Any token is accepted.', 'Needs `secret:read`. Own errors: 422 `limit_reached`.']
  t.strictSame(scopeOnly.map(plainWordsOf), ['', '', ''])
  t.equal(plainWordsOf('Reads all. Needs, depending on the request, `a` or `b`.'), 'Reads all.')
  for (const { operationId, summary, description, deprecated } of operations) {
    const words = plainWordsOf(description)
    t.match(words, /^[A-Z`].*\.$/, operationId)
    t.not(words, `${summary}.`, operationId)
    const [, original] = /^A duplicate of `(\w+)`\.$/.exec(words) ?? []
    t.equal(original !== undefined, deprecated === true, operationId)
    const named = operations.find((one) => one.operationId === original)
    if (deprecated) t.ok(named !== undefined && named.deprecated !== true, operationId)
    else t.ok(words.split(' ').length >= 5, `${operationId}: ${words}`)
  }
})

t.test('every operation has a description with its scopes, and its own errors by status', async (t) => {
  const { oauth } = components.securitySchemes as { oauth: { flows: { authorizationCode: { scopes: object } } } }
  t.strictSame(oauth.flows.authorizationCode.scopes, SCOPES, 'the purpose of each scope is listed once')
  for (const operation of operations) {
    const { operationId, summary, security } = operation
    const { description } = describing(operation, operations)
    t.ok(summary.length > 0 && operation.description.length > 0, operationId)
    const scopes = new Set(security.flatMap((way) => Object.values(way).flat()))
    for (const scope of scopes) {
      t.match(description, `\`${scope}\``, operationId)
    }
    if (security.length === 0) t.match(description, /Needs no token\./, operationId)
    else if (scopes.size === 0) t.match(description, /Any token is accepted\./, operationId)
    for (const { status, code } of ownErrorsOf({ description })) {
      t.ok(Object.keys(ERRORS).some((name) => codeOf(name as ErrorCode) === code &&
        ERRORS[name as ErrorCode].status === status), `${operationId} ${status} ${code}`)
    }
  }
})

t.test('generators get no enum of booleans, a name for each `*`, and no security scheme named as a schema', async (t) => {
  const all = [...objectsIn({ paths, components })]
  t.strictSame(all.filter(([at, { enum: words }]) => !at.endsWith('/properties') && Array.isArray(words) &&
    words.some((word) => typeof word === 'boolean')).map(([at]) => at), [])
  const wild = all.filter(([at, { enum: words }]) =>
    !at.endsWith('/properties') && Array.isArray(words) && words.includes('*')).map(([, schema]) => schema)
  t.ok(wild.length > 0)
  for (const { enum: words, 'x-enum-varnames': names } of wild as Record<string, string[]>[]) {
    t.equal(names!.length, words!.length)
    t.equal(new Set(names).size, names!.length)
    for (const name of names!) t.match(name, /^[A-Z][A-Z0-9_]*$/)
  }
  const schemas = Object.keys(components.schemas).map((name) => name.toLowerCase())
  const schemes = Object.keys(components.securitySchemes)
  t.strictSame(schemes, ['bearerToken', 'oauth'])
  t.strictSame(schemes.filter((name) => schemas.includes(name.toLowerCase())), [])
})

t.test('deprecated operations are in a group of their own', async (t) => {
  for (const { operationId, tags, deprecated = false } of operations) {
    t.strictSame(tags.includes('deprecated') && tags.length === 1, deprecated, operationId)
  }
})

t.test('words that are one of a list are published as that list', async (t) => {
  const wordsAt = (schema: string, ...members: string[]) =>
    members.reduce((at, member) => follow(follow(at).properties?.[member] ?? follow(at).items as Schema), {
      $ref: `#/components/schemas/${schema}`
    } as Schema).enum
  t.strictSame(wordsAt('CreateTokenBody', 'abilities', 'items'), ['*', ...SCOPE_NAMES])
  t.strictSame(wordsAt('ApiToken', 'abilities', 'items'), ['*', ...SCOPE_NAMES])
  t.strictSame(wordsAt('AuditEventAttributes', 'action'), [...EVENTS])
  t.strictSame(wordsAt('InviteMemberBody', 'role'), [...ROLES])
  t.strictSame(wordsAt('RetrieveBody', 'merge'), [...MERGES])
})

t.test('a number that may be larger than 32 bits hold is of 64', async (t) => {
  const numbers = [...objectsIn({ paths, components })].filter(([, { type }]) => [type].flat().includes('integer'))
  t.ok(numbers.length > 50)
  const isSmall = ({ minimum = -Infinity, maximum = Infinity }: { minimum?: number, maximum?: number }) =>
    minimum >= -(2 ** 31) && maximum < 2 ** 31
  t.strictSame(numbers.filter(([, one]) => one.format !== 'int64' && !isSmall(one)).map(([at]) => at), [])
})

t.test('a choice of objects has a discriminator', async (t) => {
  const choices = [...objectsIn(components.schemas)].map(([at, one]) => [at, one as Schema] as const)
    .filter(([, { oneOf, anyOf }]) => (oneOf ?? anyOf ?? []).filter(({ $ref }) => $ref !== undefined).length > 1)
  t.equal(choices.length, 2)
  t.strictSame(choices.filter(([, { discriminator }]) => discriminator === undefined).map(([at]) => at), [])
})

t.test('no parameter has the name of a schema, also not as a type in Go, where both have one namespace', async (t) => {
  const typeOf = (name: string) => name.replace(/[^a-z0-9]/gi, '').toLowerCase()
  const schemas = new Set(Object.keys(components.schemas).map(typeOf))
  t.strictSame(Object.keys(components.parameters).filter((name) => schemas.has(typeOf(name))), [])
})

t.test('parameters are named by what they are: first those of the path, then of the query, then headers', async (t) => {
  for (const { operationId, parameters = [] } of operations) {
    const kinds = parameters.map((parameter) => named(components.parameters, parameter).in)
    const ordered = ['path', 'query', 'header'].flatMap((kind) => kinds.filter((one) => one === kind))
    t.strictSame(kinds, ordered, operationId)
  }
  t.strictSame(Object.keys(components.parameters).filter((name) => /_\d+$/.test(name)), [], 'no name is a number')
})

t.test('operations of a path list its parameters once, at the path; in OpenAPI 3.0 each operation has them', async (t) => {
  const older = JSON.parse(readFileSync('dist/openapi-3.0.json', 'utf8')) as Published
  const inPath = (parameters: { $ref: string }[] = []) =>
    parameters.map((parameter) => named(components.parameters, parameter) as { in: string, name: string })
      .filter((parameter) => parameter.in === 'path').map(({ name }) => name)
  for (const [path, { parameters, ...item }] of Object.entries(paths as Record<string, any>)) {
    const names = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name)
    const hasOne = Object.keys(item).length === 1
    t.strictSame(inPath(parameters), hasOne ? [] : names, path)
    for (const [method, operation] of Object.entries(item as Record<string, Operation>)) {
      t.strictSame(inPath(operation.parameters), hasOne ? names : [], `${method} ${path}`)
      // A client of openapi-generator would have these parameters before the path parameters.
      const required = (operation.parameters ?? []).filter((one) => named(components.parameters, one).required)
      t.ok(hasOne || required.length === 0, `${method} ${path} requires no other parameter`)
      const all = [...parameters ?? [], ...operation.parameters ?? []]
      t.strictSame(older.paths[path]![method]!.parameters ?? [], all, `${method} ${path} in OpenAPI 3.0`)
    }
  }
})

t.test('the OpenAPI 3.0 edition lints: all operations, one error schema, one scheme, one media type per body', async (t) => {
  const { paths } = parse(readFileSync('openapi.yaml', 'utf8'))
  const file = 'dist/openapi-3.0.json'
  const older = JSON.parse(readFileSync(file, 'utf8'))
  // The license has no SPDX identifier in this version of OpenAPI.
  if (LONG) t.strictSame(await lint(file), { errors: 0, others: ['info-license-strict'] })
  const allOf = (of: Published['paths']) => Object.values(of).flatMap((item) => Object.values(operationsIn(item)))
  const idsOf = (of: Published['paths']) => allOf(of).map(({ operationId }) => operationId)
  t.strictSame(idsOf(older.paths), idsOf(paths))
  t.strictSame(
    Object.keys(older.components.schemas).filter((name) => /Error/.test(name)), ['Error', 'OAuthError']
  )
  t.match(older.info.description, /one media type/)
  const firstMediaType = ({ requestBody }: Operation) => requestBody && Object.keys(requestBody.content!).slice(0, 1)
  const mediaTypes = ({ requestBody }: Operation) => requestBody && Object.keys(requestBody.content!)
  t.strictSame(allOf(older.paths).map(mediaTypes), allOf(paths).map(firstMediaType))
  for (const [name, response] of errorResponses) {
    t.strictSame(codesIn(older.components.responses[name]), codesIn(response), `${name} says in words which codes there are`)
  }
  const bodies = allOf(older.paths).flatMap(({ responses }) => Object.entries(responses)
    .filter(([status, response]) => /^2/.test(status) && '$ref' in response).map(([, { $ref }]) => $ref))
  t.strictSame([...new Set(bodies)], ['#/components/responses/Answer204'], 'media types of successes are at the operations')
  t.strictSame(Object.keys(older.components.securitySchemes), ['bearerToken'])
  const withName = [...objectsIn(older)].filter(([at, { enum: words }]) =>
    !at.endsWith('/properties') && Array.isArray(words) && words.includes('name'))
  t.ok(withName.length > 0)
  for (const [at, schema] of withName) {
    t.strictSame((schema['x-enum-varnames'] as string[]).filter((word) => !/^[A-Z][A-Z0-9_]*$/.test(word)), [], at)
  }
  for (const { operationId, security } of allOf(older.paths)) {
    const { security: both } = allOf(paths).find((operation) => operation.operationId === operationId)!
    t.strictSame(security, both.filter((way) => 'bearerToken' in way), `${operationId} has one security scheme`)
  }
  t.notMatch(JSON.stringify(older), /"anyOf"|"const"|"type":\[|"null"|patternProperties/)
})

t.test('no pattern of the document looks around, which the expressions of Go and Rust cannot', async (t) => {
  const patterns = [...JSON.stringify(parse(text)).matchAll(/"pattern":"((?:[^"\\]|\\.)*)"/g)].map(([, pattern]) => pattern!)
  t.ok(patterns.length > 20)
  t.strictSame(patterns.filter((pattern) => /\(\?[=!<]/.test(pattern)), [])
})

t.test('a team is offered the roles that give something in a project, and no other', async (t) => {
  t.strictSame(PROJECT_ROLES, ROLES.filter((role) => scopesInProject(role).size > 0))
  const { components: { schemas } } = parse(readFileSync('openapi.yaml', 'utf8'))
  t.strictSame(schemas.SetTeamProjectBody.properties.role, { $ref: '#/components/schemas/ProjectRole' })
  t.strictSame(schemas.ProjectRole.enum, PROJECT_ROLES)
})
