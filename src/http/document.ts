import { Document as YamlDocument, Scalar, visit } from 'yaml'
import { codeOf, type ErrorCode } from '../../schemas/errors.ts'
import { mayBeLeftOut } from './body.ts'
import { oneOfWords } from './serialization.ts'

// The document as the routes give it says everything where it is used. Here it is brought into the form that people and
// generators want: what is said twice is a component with a name.

type Json = Record<string, unknown>
type Named<T = Json> = Record<string, T>

interface Operation extends Json {
  operationId?: string
  summary?: string
  parameters?: Json[]
  requestBody?: Json & { content: Named<{ schema: Json }> }
  responses: Named
}
type Paths = Named<Named<Operation>>

/** An OpenAPI 3.1 document as far as it is arranged. */
export interface Document extends Json { paths: Paths, components: Named<unknown> }

/**
 * Arranges a document: every titled schema, every error response and every parameter is a component with a name,
 * and examples stand where tools look for them.
 */
export function arrange (document: Document): Document {
  const { value, schemas } = hoistTitled(describe(withExamples(document.paths) as Paths))
  const { paths, parameters, responses } = share(value as Paths)
  const sorted = (named: Named) => Object.fromEntries(Object.entries(named).sort(([a], [b]) => a < b ? -1 : 1))
  return {
    ...document,
    paths,
    components: {
      ...document.components,
      headers: HEADERS,
      parameters: sorted(parameters),
      responses: sorted(responses),
      schemas: sorted(schemas)
    }
  }
}

/** A document as YAML that readers of 1.1 understand as those of 1.2 do: what looks like a date is quoted. */
export function renderYaml (document: object): string {
  const yaml = new YamlDocument(document, { aliasDuplicateObjects: false })
  visit(yaml, {
    Scalar: (_key, node) => {
      if (typeof node.value === 'string' && /^\d{4}-\d\d?-\d/.test(node.value)) node.type = Scalar.QUOTE_DOUBLE
    }
  })
  return yaml.toString({ lineWidth: 0 })
}

// Every titled schema moves to components.schemas, and a $ref stays.
function hoistTitled (value: unknown): { value: unknown, schemas: Named } {
  const schemas: Named = {}
  const hoist = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(hoist)
    if (typeof value !== 'object' || value === null) return value
    const object = value as Json
    const words = oneOfWords(object)
    if (words !== undefined) {
      const { description, default: byDefault } = object
      return {
        ...(description !== undefined && { description }),
        ...(byDefault !== undefined && { default: byDefault }),
        ...words
      }
    }
    const copy = Object.fromEntries(Object.entries(object).map(([key, member]) =>
      [key, key === 'examples' || key === 'default' ? member : hoist(member)]))
    if (typeof object.title !== 'string' || !('type' in object || 'anyOf' in object)) return copy
    schemas[object.title] = copy
    return { $ref: `#/components/schemas/${object.title}` }
  }
  return { value: hoist(value), schemas }
}

// The first example of a schema stands beside the media type or parameter, too.
function withExamples (value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withExamples)
  if (typeof value !== 'object' || value === null) return value
  const copy: Json = Object.fromEntries(Object.entries(value).map(([key, member]) => [key, withExamples(member)]))
  const schema = copy.schema as Json | undefined
  const example = (schema?.examples as unknown[] | undefined)?.[0]
  return example !== undefined && copy.example === undefined && !('in' in copy) ? { ...copy, example } : copy
}

const HEADERS = {
  'X-Request-Id': { description: 'Names the request in the log', schema: { type: 'string' } },
  'X-RateLimit-Limit': { description: 'Maximum requests in the window', schema: { type: 'integer' } },
  'X-RateLimit-Remaining': { description: 'Requests left in the current window', schema: { type: 'integer' } },
  'X-RateLimit-Reset': { description: 'Unix time at which the window resets', schema: { type: 'integer' } },
  'Retry-After': { description: 'Seconds to wait', schema: { type: 'integer' } },
  'WWW-Authenticate': { description: 'The challenge of RFC 6750', schema: { type: 'string' } },
  ETag: {
    description:
      'Of the whole answer, for If-None-Match and If-Match; of a document, for If-Match send the `etag` of its level, or the one that a store answered',
    schema: { type: 'string' }
  }
}
const LIMITS = ['X-RateLimit-Limit', 'X-RateLimit-Remaining', 'X-RateLimit-Reset'] as const
const WITH_ETAG = /^(?:read|store|retrieve)\w*Secrets/

const isGood = (status: string) => Number(status) < 400

// What the routes' schemas cannot say: the headers of an answer, what an answer is in words, and that a body may be
// left out. Headers that every answer has stand on the good ones and on 429; the introduction says the rest.
function describe (paths: Paths): Paths {
  for (const operation of Object.values(paths).flatMap((path) => Object.values(path))) {
    const isTagged = operation['x-tagged'] === true || WITH_ETAG.test(operation.operationId ?? '')
    delete operation['x-tagged']
    const limits = '429' in operation.responses ? LIMITS : []
    for (const [status, response] of Object.entries(operation.responses)) {
      const names: (keyof typeof HEADERS)[] = isGood(status) || status === '429' ? ['X-Request-Id', ...limits] : []
      if (status === '429') names.push('Retry-After')
      if (status === '401' || status === '403') names.push('WWW-Authenticate')
      if (/^(?:200|201|304)$/.test(status) && isTagged) names.push('ETag')
      if (names.length > 0) {
        response.headers = Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }]))
      }
      if (response.description === 'Default Response') {
        response.description = isGood(status)
          ? operation.summary
          : codesOf(response)?.map((code) => `\`${code}\``).join(', ') ?? 'An error of RFC 6749'
      }
    }
    const [media] = Object.values(operation.requestBody?.content ?? {})
    if (operation.requestBody !== undefined && mayBeLeftOut(media?.schema ?? {})) operation.requestBody.required = false
    if (media !== undefined) media.schema = sayDefaults(media.schema) as Json
    const ways = (operation.security as Named<string[]>[] | undefined ?? []).map((way) =>
      Object.values(way).join(' '))
    // What an operation needs whatever is asked; by what is asked, `security` has the alternatives.
    if (ways[0] && ways.every((way) => way === ways[0])) operation['x-required-scope'] = ways[0].split(',').join(' ')
  }
  return paths
}

// Of a body that is sent, generators take a member with a default for one that is always there.
function sayDefaults (value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sayDefaults)
  if (typeof value !== 'object' || value === null) return value
  const { default: byDefault, ...object } = value as Json
  const copy: Json = Object.fromEntries(Object.entries(object).map(([key, member]) =>
    [key, key === 'examples' || key === 'example' ? member : sayDefaults(member)]))
  if (byDefault === undefined || typeof byDefault === 'object') return copy
  const words = `\`${String(byDefault)}\` when left out`
  return { ...copy, description: copy.description === undefined ? words : `${String(copy.description)}; ${words}` }
}

// The codes of an error response; undefined where they are not those of the catalogue.
function codesOf (response: Json): string[] | undefined {
  const [media] = Object.values(response.content as Named<{ schema: Json }>)
  const bodies = (media?.schema.anyOf ?? [media?.schema]) as { title?: string }[]
  const rows = bodies.flatMap(({ title = '' }) => title.startsWith('Error_') ? [title.slice('Error_'.length)] : [])
  return rows.length === 0 ? undefined : rows.map((row) => codeOf(row as ErrorCode))
}

// Error responses and parameters are few, and stand at nearly every operation.
function share (paths: Paths): { paths: Paths, parameters: Named, responses: Named } {
  const responses = collect('responses')
  const parameters = collect('parameters')
  const shared = Object.fromEntries(Object.entries(paths).map(([path, item]) =>
    [path, Object.fromEntries(Object.entries(item).map(([method, operation]) => [method, {
      ...operation,
      ...(operation.parameters !== undefined && {
        parameters: operation.parameters.map((parameter) =>
          parameters.refer(`${String(parameter.in)}_${String(parameter.name)}`, parameter))
      }),
      responses: Object.fromEntries(Object.entries(operation.responses).map(([status, response]) =>
        [status, isGood(status) ? response : responses.refer(nameOf(status, response), response)]))
    }]))]))
  return { paths: shared, parameters: parameters.all, responses: responses.all }
}

// By what it says: `404_not_found`, or `422_slug_taken.validation_failed`.
const nameOf = (status: string, { description }: Json) =>
  `${status}_${[...String(description).matchAll(/`(\w+)`/g)].map(([, code]) => code).join('.') || 'oauth'}`

// Components of one kind. What another has the name of stays where it is used.
function collect (kind: 'parameters' | 'responses') {
  const all: Named = {}
  return {
    all,
    refer (name: string, value: Json): Json {
      all[name] ??= value
      return JSON.stringify(all[name]) === JSON.stringify(value) ? { $ref: `#/components/${kind}/${name}` } : value
    }
  }
}
