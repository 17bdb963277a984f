import type { Document } from './document.ts'

// OpenAPI 3.0.3 for generators that read nothing newer, made from the document that is published. It says less: an
// error is one schema, whatever its code, because such generators take one type of error for an operation.

type Json = Record<string, unknown>

const ERROR = {
  title: 'Error',
  type: 'object',
  required: ['error', 'message'],
  properties: {
    error: { type: 'string', description: 'the code: the response’s description names those that it can be' },
    message: { type: 'string', description: 'for people' },
    details: { type: 'object', additionalProperties: true },
    errors: {
      type: 'object',
      description: 'by member of the request: what is wrong with it',
      additionalProperties: { type: 'array', items: { type: 'string' } }
    }
  }
}

const OAUTH_ERROR = {
  title: 'OAuthError',
  type: 'object',
  required: ['error', 'error_description', 'message'],
  properties: {
    error: { type: 'string' }, error_description: { type: 'string' }, message: { type: 'string' }
  }
}

const isError = (name: string) => /^(?:OAuth)?Error_/.test(name)

/** The same document in OpenAPI 3.0.3. */
export function asOpenApi30 (document: Document): object {
  const { info, components, paths, ...rest } = document
  const { title, version, description } = info as Json
  const { schemas = {}, ...others } = components as Record<string, Json>
  const kept = Object.entries(schemas).filter(([name]) => !isError(name))
  return {
    ...rest,
    openapi: '3.0.3',
    info: { title, version, description, license: { name: 'MIT' } },
    components: {
      ...convert(others) as Json,
      schemas: { ...convert(Object.fromEntries(kept)) as Json, Error: ERROR, OAuthError: OAUTH_ERROR }
    },
    paths: convert(paths)
  }
}

// Members whose values are data, not schemas.
const DATA = new Set(['example', 'default', 'enum', 'required', 'security', 'x-audit-events'])

function convert (value: unknown): unknown {
  if (Array.isArray(value)) return value.map(convert)
  if (typeof value !== 'object' || value === null) return value
  const object = value as Json
  const error = errorIn(object)
  if (error !== undefined) return { $ref: `#/components/schemas/${error}` }
  const { type, anyOf, const: only, examples, patternProperties, ...rest } = object
  const copy = Object.fromEntries(Object.entries(rest).map(([key, member]) =>
    [key, DATA.has(key) ? member : key === 'properties' ? convertEach(member as Json) : convert(member)]))
  const [example] = Array.isArray(examples) && copy.example === undefined ? examples as unknown[] : []
  return {
    ...copy,
    ...(type !== undefined && typeOf(type as string | string[])),
    ...(Array.isArray(anyOf) && choiceOf(anyOf)),
    ...(only !== undefined && { enum: [only] }),
    ...(example !== undefined && { example }),
    ...(patternProperties !== undefined && {
      additionalProperties: convert(Object.values(patternProperties as Json)[0])
    })
  }
}

// What members are called is no word of the document: one may be called `type`, or `default`.
const convertEach = (members: Json): Json =>
  Object.fromEntries(Object.entries(members).map(([name, member]) => [name, convert(member)]))

// The one schema that stands for a schema of an error, or for a choice of such.
function errorIn ({ $ref, anyOf }: Json): 'Error' | 'OAuthError' | undefined {
  const name = typeof $ref === 'string' ? /^#\/components\/schemas\/(.+)$/.exec($ref)?.[1] : undefined
  if (name !== undefined) return isError(name) ? name.startsWith('OAuth') ? 'OAuthError' : 'Error' : undefined
  if (!Array.isArray(anyOf) || anyOf.length === 0) return undefined
  const errors = new Set(anyOf.map((one) => errorIn(one as Json)))
  return errors.size === 1 ? [...errors][0] : undefined
}

function typeOf (type: string | string[]): Json {
  const types = [type].flat()
  const own = types.find((one) => one !== 'null')
  if (own === undefined) return { enum: [null], nullable: true }
  return { type: own, ...(types.includes('null') && { nullable: true }) }
}

function choiceOf (choices: readonly Json[]): Json {
  const some = choices.filter(({ type }) => type !== 'null').map(convert) as Json[]
  const nullable = some.length < choices.length
  const [first] = some
  if (some.length > 1 || first === undefined) return { anyOf: some, ...(nullable && { nullable }) }
  // Beside a $ref nothing counts.
  return '$ref' in first ? { allOf: [first], nullable } : { ...first, nullable }
}
