import { STATUS_CODES } from 'node:http'
import { Document as YamlDocument, isCollection, isScalar, isSeq, Scalar, visit } from 'yaml'
import { COMMON_ERRORS_BY_STATUS, ERROR_BODIES } from '../../../schemas/errors.ts'
import type { Scope } from '../../../schemas/scopes.ts'
import { LEFT_OUT_HEADER } from '../responses/headers.ts'
import { oneOfWords } from '../responses/serialization.ts'
import { DEPRECATED } from '../routes/aliases.ts'

// @fastify/swagger repeats every schema inline. This module moves repeated parts to named components.

type Json = Record<string, unknown>
type Named<T = Json> = Record<string, T>

export interface Operation extends Json {
  tags?: string[]
  deprecated?: boolean
  operationId?: string
  description?: string
  security?: Named<Scope[]>[]
  parameters?: Json[]
  requestBody?: Json & { content: Named<{ schema: Json }> }
  responses: Named
}
type Paths = Named<Named<Operation>>

export interface Document extends Json {
  info: { title: string, version: string, description?: string }
  tags: { name: string }[]
  paths: Paths
  components: Json
}

/**
 * Arranges an OpenAPI document: schemas with a title, responses and parameters become named components, paths are
 * grouped by tag, and the example of a schema moves to its media type or parameter.
 */
export function arrange (document: Document): Document {
  const { value, schemas } = hoistTitled(describe(withExamples(document.paths) as Paths))
  const { paths, parameters, responses } = share(value as Paths)
  return {
    ...document,
    paths: grouped(paths, document.tags),
    components: {
      ...document.components,
      headers: Object.fromEntries(Object.entries(HEADERS).map(([name, header]) => [shortOf(name), header])),
      parameters: sorted(parameters),
      responses: sorted(responses),
      schemas: sorted(schemas)
    }
  }
}

// Sorts paths by tag, then by the number of parameters. Deprecated operations have the last tag, so a path is last only
// if all its operations are deprecated.
function grouped (paths: Paths, tags: Document['tags']): Paths {
  const group = (item: Named<Operation>) => Math.min(...Object.values(item).map((operation) =>
    tags.findIndex(({ name }) => operation.tags?.includes(name))))
  const depth = (path: string) => path.split('{').length
  return Object.fromEntries(Object.entries(paths).sort(([one, here], [other, there]) =>
    group(here) - group(there) || depth(one) - depth(other)))
}

const mapValues = <T, U>(named: Named<T>, change: (value: T, name: string) => U): Named<U> =>
  Object.fromEntries(Object.entries(named).map(([name, value]) => [name, change(value, name)]))

export const mapOperations = (paths: Paths, change: (operation: Operation) => Operation): Paths =>
  mapValues(paths, (item) => mapValues(item, (operation) => change(operation)))

/**
 * Moves the path parameters of paths with several operations to the path, where `openapi.yaml` and `openapi.json` list
 * them once. Inside of the service the operations keep them, so that the value of a path is a map of operations.
 */
export function withPathParameters (document: Document): Json {
  return {
    ...document,
    paths: mapValues(document.paths, (item, path) => {
      const [first, ...others] = Object.values(item).map(({ parameters }) => (parameters ?? []).filter(isOfPath))
      if (first === undefined || first.length === 0 || others.length === 0) return item
      if (others.some((other) => JSON.stringify(other) !== JSON.stringify(first))) {
        throw new Error(`the operations of ${path} have different path parameters`)
      }
      return { parameters: first, ...mapValues(item, withoutPathParameters) }
    })
  }
}

const isOfPath = ({ $ref }: Json) => String($ref).startsWith(`${PARAMETERS}path_`)

function withoutPathParameters ({ parameters = [], ...operation }: Operation): Json {
  const others = parameters.filter((parameter) => !isOfPath(parameter))
  return { ...operation, ...(others.length > 0 && { parameters: others }) }
}

// Replaces an object, or each object in an array.
function replaceObjects (value: unknown, change: (object: Json) => unknown): unknown {
  if (Array.isArray(value)) return value.map((one) => replaceObjects(one, change))
  return typeof value === 'object' && value !== null ? change(value as Json) : value
}

// The values of these keywords are data, not schemas.
const DATA = new Set(['example', 'examples', 'default'])
const mapMembers = (object: Json, change: (member: unknown) => unknown): Json =>
  mapValues(object, (member, name) => DATA.has(name) ? member : change(member))

const sorted = <T>(named: Named<T>): Named<T> =>
  Object.fromEntries(Object.entries(named).sort(([a], [b]) => a < b ? -1 : 1))

// A YAML collection of at most this many characters is on one line. Examples and lists of scalars always are.
const LINE = 1200

/** Renders YAML with the same meaning in YAML 1.1 and 1.2: strings that look like dates or booleans are quoted. */
export function renderYaml (document: object): string {
  const yaml = new YamlDocument(document, { aliasDuplicateObjects: false })
  visit(yaml, {
    Collection: (_key, node) => {
      node.flow ||= JSON.stringify(node).length <= LINE || (isSeq(node) && node.items.every(isScalar))
    },
    Pair: (_key, { key, value }) => {
      if (isScalar(key) && key.value === 'example' && isCollection(value)) value.flow = true
    },
    Scalar: (_key, node) => {
      if (typeof node.value === 'string' && /^\d{4}-\d\d?-\d|^[yn]$/i.test(node.value)) node.type = Scalar.QUOTE_DOUBLE
    }
  })
  return yaml.toString({ lineWidth: 0, indentSeq: false, indent: 1, flowCollectionPadding: false })
}

// Moves titled schemas to components.schemas and replaces them by a $ref.
function hoistTitled (value: unknown): { value: unknown, schemas: Named } {
  const schemas: Named = {}
  const hoist = (value: unknown): unknown => replaceObjects(value, (object) => {
    const copy = sized(simplify(mapMembers(object, hoist)))
    if (typeof copy.title !== 'string' || !['type', 'anyOf', 'oneOf'].some((key) => key in copy)) return copy
    const { title, 'x-here': description, ...schema } = copy as Json & { title: string }
    const ref = { $ref: `#/components/schemas/${title}`, ...(description !== undefined && { description }) }
    const isNullable = Array.isArray(schema.type)
    if (Array.isArray(schema.type)) schema.type = schema.type.find((type) => type !== 'null') as unknown
    if (schemas[title] !== undefined && JSON.stringify(schemas[title]) !== JSON.stringify(schema)) {
      throw new Error(`two schemas are called ${title}`)
    }
    schemas[title] = schema
    return isNullable ? { anyOf: [ref, { type: 'null' }] } : ref
  })
  return { value: hoist(value), schemas }
}

// Converts `anyOf` of constants to `enum`, and `anyOf` with null to two values of `type`.
function simplify (schema: Json): Json {
  const { anyOf, ...rest } = schema
  const words = oneOfWords(schema)
  if (words !== undefined) return { ...rest, ...words, ...namesOf(words.enum) }
  if (typeof rest.const === 'string') {
    const { const: word, ...text } = rest
    return { ...text, enum: [word] }
  }
  // Code generators do not support an enum of booleans. The validation error says which value is accepted.
  if (rest.type === 'boolean') {
    const { const: _const, enum: _enum, ...boolean } = rest
    return boolean
  }
  const [first, second, third] = Array.isArray(anyOf) ? anyOf as Json[] : []
  if (second?.type !== 'null' || third !== undefined || typeof first?.type !== 'string') return schema
  return { ...first, ...rest, type: [first.type, 'null'] }
}

// Code generators make a constant of each word. `*` gives no valid name, so its constant is called `ALL`.
const namesOf = (words: readonly string[]) => words.includes('*') && {
  'x-enum-varnames': words.map((word) => word === '*' ? 'ALL' : word.toUpperCase().replace(/\W/g, '_'))
}

const MAX_INT32 = 2 ** 31 - 1

// Without `format`, code generators use 32-bit integers.
function sized (schema: Json): Json {
  const { type, maximum = Infinity } = schema
  const isLarge = [type].flat().includes('integer') && Number(maximum) > MAX_INT32
  return isLarge ? { ...schema, format: 'int64' } : schema
}

// Moves the first example of a schema to its media type or parameter, and removes the other examples.
const withExamples = (value: unknown): unknown => replaceObjects(value, (object) => {
  const { schema, examples: _examples, 'x-published': published, ...rest } = object as Json & { schema?: Json }
  if (published !== undefined) return withExamples(published)
  const copy = mapMembers(rest, withExamples)
  if (schema === undefined) return copy
  if (rest.in === 'query' && rest.required !== true) {
    // Swagger UI sends the example of an optional parameter, although the user has not filled in the parameter.
    const { example: _example, ...optional } = copy
    return { ...optional, schema: withExamples(schema) }
  }
  const [example] = schema.examples as unknown[] | undefined ?? []
  return { ...(example !== undefined && { example }), ...copy, schema: withExamples(schema) }
})

const TEXT = { type: 'string' }
const NUMBER = sized({ type: 'integer' })
const HEADERS = {
  'X-Request-Id': { description: 'Names the request in the log; every response has this header', schema: TEXT },
  'X-RateLimit-Limit': { description: 'Maximum requests in the window', schema: NUMBER },
  'X-RateLimit-Remaining': { description: 'Requests left in the current window', schema: NUMBER },
  'X-RateLimit-Reset': { description: 'Unix time at which the window resets', schema: NUMBER },
  'Retry-After': { description: 'Seconds to wait', schema: NUMBER },
  'WWW-Authenticate': { description: 'The challenge of RFC 6750', schema: TEXT },
  ETag: {
    description: 'The ETag of the response, for If-None-Match and If-Match. For If-Match on a document, send the ' +
      '`etag` of its level or the ETag of the response to a store or a restore',
    schema: TEXT
  },
  [LEFT_OUT_HEADER]: {
    description: 'Merged values without `meta`: the levels above that the restrictions exclude, such as `project, target`',
    schema: TEXT
  },
  Link: { description: 'The address of the next part, with `rel="next"` (RFC 8288); missing with the last part', schema: TEXT }
}
// The component name of a header: `Remaining`, `Request-Id`.
const shortOf = (name: string) => name.replace(/^X-(?:RateLimit-)?/, '')
const LIMITS = ['X-RateLimit-Limit', 'X-RateLimit-Remaining', 'X-RateLimit-Reset'] as const
const WITH_ETAG = /^restoreVersion$|^(?:read|store|retrieve|change)\w*(?:Secrets|Values|Names)/

const WITHOUT_META = /^(?:read|retrieve)\w*(?:Secrets|Values)/

const isGood = (status: string) => Number(status) < 400

// Adds response headers and response descriptions, and says whether a body is required. Moves deprecated operations to
// a tag of their own. To keep the document short, X-Request-Id, which every response has, is listed only for errors.
// The rate-limit headers, which nearly every response has, are listed only for success and 429.
function describe (paths: Paths): Paths {
  return mapOperations(paths, (operation) => {
    const isTagged = operation['x-etag'] === true || WITH_ETAG.test(operation.operationId ?? '')
    const isInParts = operation['x-next-page'] === true
    delete operation['x-etag']
    delete operation['x-next-page']
    if (operation.deprecated) operation.tags = [DEPRECATED]
    const limits = operation['x-limited'] === true ? LIMITS : []
    operation.responses = { ...operation.responses, [COMMON]: commonErrors() }
    delete operation['x-limited']
    for (const [status, response] of Object.entries(operation.responses)) {
      const names: (keyof typeof HEADERS)[] = isGood(status) ? [...limits] : ['X-Request-Id']
      if (status === '429') names.push(...limits)
      if (['429', COMMON].includes(status)) names.push('Retry-After')
      if (['401', '403', COMMON].includes(status)) names.push('WWW-Authenticate')
      if (/^(?:200|201|304)$/.test(status) && isTagged) names.push('ETag')
      if (status === '200' && isInParts) names.push('Link')
      if (status === '200' && WITHOUT_META.test(operation.operationId ?? '')) names.push(LEFT_OUT_HEADER)
      if (names.length > 0) {
        response.headers = Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${shortOf(name)}` }]))
      }
      if (response.description === 'Default Response' && isGood(status)) response.description = 'Done'
      if (status in STATUS_CODES && !isGood(status)) response.description = `${STATUS_CODES[status]}: ${response.description}`
    }
    const [media] = Object.values(operation.requestBody?.content ?? {})
    // Documents each body with fields as required, because code generators leave out optional bodies or declare them in
    // different ways. If no field is required, the service also accepts a request without a body.
    if (operation.requestBody !== undefined) operation.requestBody.required = hasFields(media?.schema ?? {})
    if (media !== undefined) media.schema = sayDefaults(media.schema) as Json
    for (const parameter of operation.parameters ?? []) sayDefaultOfWords(parameter as Json & { schema: Json })
    return operation
  })
}

const hasFields = ({ properties = {}, anyOf, oneOf }: Json) =>
  anyOf !== undefined || oneOf !== undefined || Object.keys(properties as Json).length > 0

/**
 * The schema of a route without the errors that `default` documents, because each schema of a response is converted for
 * each operation. Keeps a status with an error that only this operation has (`x-own-statuses`).
 */
export function withOwnErrors (schema: Json = {}): Json {
  const { response = {}, 'x-own-statuses': own = [], ...rest } = schema as { response?: Json, 'x-own-statuses'?: number[] }
  const isOwn = (status: string, body: unknown) => body !== ERROR_BODIES[Number(status)] || own.includes(Number(status))
  const kept = Object.fromEntries(Object.entries(response).filter(([status, body]) => isOwn(status, body)))
  return { ...rest, ...(Object.keys(response).length > 0 && { response: kept }), 'x-limited': 429 in response }
}

function commonErrors (): Json {
  const { 'x-response-description': _, ...schema } = ERROR_BODIES[400]!
  return withExamples({
    description: `Errors that most operations have: ${COMMON_ERRORS_BY_STATUS}`,
    content: { 'application/json': { schema } }
  }) as Json
}

// The key of the common response. `share` renames the key to `default` at the end, because `mapMembers` takes a member
// `default` for the keyword of schemas.
const COMMON = 'common'
// Moves defaults of request bodies into the descriptions, because code generators make fields with defaults required.
// `x-here` is the description for one use of a named schema.
const sayDefaults = (value: unknown): unknown => replaceObjects(value, ({ default: byDefault, ...object }) => {
  const copy = mapMembers(object, sayDefaults)
  if (byDefault === undefined || typeof byDefault === 'object') return copy
  const words = `default: \`${String(byDefault)}\``
  const where = copy.title === undefined ? 'description' : 'x-here'
  return { ...copy, [where]: copy[where] === undefined ? words : `${String(copy[where])}; ${words}` }
})

// Moves the default of an enumeration parameter to its description: the Kotlin code for this default does not compile.
function sayDefaultOfWords (parameter: Json & { schema: Json }) {
  const { default: word, ...schema } = parameter.schema
  if (typeof word !== 'string' || oneOfWords(schema) === undefined) return
  parameter.schema = schema
  parameter.description = [parameter.description, `default: \`${word}\``].filter(Boolean).join('; ')
}

// Replaces responses and parameters by references to components.
function share (paths: Paths): { paths: Paths, parameters: Named, responses: Named } {
  const responses = collect('responses')
  const parameters = collect('parameters')
  const shared = mapOperations(paths, (operation) => ({
    ...operation,
    ...(operation.parameters !== undefined && {
      parameters: operation.parameters.map(namedParameter).sort(byPlace).map(({ component, parameter }) =>
        parameters.refer(component, parameter))
    }),
    responses: Object.fromEntries(Object.entries(operation.responses).map(([status, response]) =>
      [status === COMMON ? 'default' : status, responses.refer(nameOf(status, response), response)]))
  }))
  return { paths: shared, parameters: parameters.all, responses: responses.all }
}

const PARAMETERS = '#/components/parameters/'

// The component name of a parameter: its name, or `x-named` if different parameters have the same name. Parameters of
// paths and queries get a prefix, because in Go clients they share a namespace with schemas such as `Charge`.
function namedParameter ({ schema, required, ...rest }: Json) {
  const { 'x-named': named = rest.name, ...own } = schema as Json
  const prefix = rest.in === 'header' ? '' : `${String(rest.in)}_`
  return { component: `${prefix}${String(named)}`, parameter: { ...rest, ...(required === true && { required }), schema: own } as Json }
}

const PLACES = ['path', 'query', 'header']
const byPlace = (...[one, other]: ReturnType<typeof namedParameter>[]) =>
  PLACES.indexOf(String(one!.parameter.in)) - PLACES.indexOf(String(other!.parameter.in))

// The component name of a response: the name of its schema (`ProjectAnswer`), or a word with its status (`Err404`). The
// words are short, because the document contains each name about a hundred times.
function nameOf (status: string, { content }: Json): string {
  const [media] = Object.values(content as Named<{ schema: { $ref?: string } }> | undefined ?? {})
  const schema = media?.schema.$ref?.split('/').at(-1)
  if (status === COMMON) return 'ErrCommon'
  if (!isGood(status)) return schema?.startsWith('OAuth') ? `OAuthErr${status}` : `Err${status}`
  return schema === undefined ? `Answer${status}` : schema
}

// Collects components of one kind. Throws if two different components have the same name.
function collect (kind: 'parameters' | 'responses') {
  const all: Named = {}
  return {
    all,
    refer (name: string, value: Json): Json {
      all[name] ??= value
      if (JSON.stringify(all[name]) !== JSON.stringify(value)) throw new Error(`two ${kind} are called ${name}`)
      return { $ref: `#/components/${kind}/${name}` }
    }
  }
}
