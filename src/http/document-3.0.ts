import type { Document } from './document.ts'

// OpenAPI 3.0.3 for generators that read nothing newer, made from the document that is published. It says less: an
// error is one schema, whatever its code, because such generators take one type of error for an operation.

type Json = Record<string, unknown>

/** How the errors of a status are published: what the introduction says of it. */
export const UNIONS = 'Those of a status are one union, which `error` tells apart'
const ONE_ERROR = 'All have one schema, and the description of a status names the codes that `error` can be there'

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

interface Response extends Json { description: string, content?: Record<string, { schema: Json }> }

// An error's words of the status, and the codes that it can have.
function withCodes (response: Response, schemas: Record<string, Json>): Response {
  const codesOf = (schema: Json): string[] => {
    const { oneOf = [], properties } = schemas[nameIn(schema) ?? ''] ?? {}
    const { error } = (properties ?? {}) as { error?: { enum?: string[] } }
    return [...error?.enum ?? [], ...(oneOf as Json[]).flatMap(codesOf)]
  }
  const isOfError = ({ schema }: { schema: Json }) => errorIn(schema) !== undefined
  const codes = Object.values(response.content ?? {}).filter(isOfError).flatMap(({ schema }) => codesOf(schema))
  return codes.length === 0 ? response : { ...response, description: `${response.description}: ${codes.join(', ')}` }
}

const isError = (name: string) => /^(?:OAuth)?Errors?_/.test(name)

/** The same document in OpenAPI 3.0.3. */
export function asOpenApi30 (document: Document): object {
  const { info, components, paths, ...rest } = document
  const { title, version, description } = info as Json
  const { schemas = {}, ...others } = components as Record<string, Json>
  const kept = Object.entries(schemas).filter(([name]) => !isError(name))
  const convert = converter(schemas as Record<string, Json>)
  const { responses = {}, ...parts } = others as Record<string, Json>
  return {
    ...rest,
    openapi: '3.0.3',
    info: { title, version, description: String(description).replace(UNIONS, ONE_ERROR), license: { name: 'MIT' } },
    components: {
      ...convert(parts) as Json,
      responses: convert(Object.fromEntries(Object.entries(responses).map(([name, response]) =>
        [name, withCodes(response as Response, schemas as Record<string, Json>)]))),
      schemas: { ...convert(Object.fromEntries(kept)) as Json, Error: ERROR, OAuthError: OAUTH_ERROR }
    },
    paths: convert(paths)
  }
}

// Members whose values are data, not schemas.
const DATA = new Set(['example', 'default', 'enum', 'required', 'security', 'x-audit-events', 'x-error-codes'])

function converter (schemas: Record<string, Json>) {
  return convert

  function convert (value: unknown): unknown {
    if (Array.isArray(value)) return value.map(convert)
    if (typeof value !== 'object' || value === null) return value
    const object = value as Json
    const error = errorIn(object)
    if (error !== undefined) return { $ref: `#/components/schemas/${error}` }
    if (nameIn(object) !== undefined && object.description !== undefined) {
      return { allOf: [{ $ref: object.$ref }], description: object.description }
    }
    const { type, anyOf, const: only, patternProperties, ...rest } = object
    const copy = Object.fromEntries(Object.entries(rest).map(([key, member]) =>
      [key, DATA.has(key) ? member : key === 'properties' ? convertEach(member as Json) : convert(member)]))
    return {
      ...copy,
      ...(type !== undefined && typeOf(type as string | string[])),
      ...(Array.isArray(anyOf) && choiceOf(anyOf)),
      ...(only !== undefined && { enum: [only] }),
      ...(patternProperties !== undefined && {
        additionalProperties: convert(Object.values(patternProperties as Json)[0])
      })
    }
  }

  // What members are called is no word of the document: one may be called `type`, or `default`.
  function convertEach (members: Json): Json {
    return Object.fromEntries(Object.entries(members).map(([name, member]) => [name, convert(member)]))
  }

  function choiceOf (choices: readonly Json[]): Json {
    const some = choices.filter(({ type }) => type !== 'null')
    const [first] = some
    const nullable = some.length < choices.length && { nullable: true }
    // `data.type` tells them apart: of `anyOf` such generators make what is several at once, and in fact none.
    if (some.length > 1 || first === undefined) return { oneOf: some.map(convert), ...nullable }
    // Beside a $ref nothing counts, and what may be null has to say its type.
    const name = nameIn(first)
    return name === undefined
      ? { ...convert(first) as Json, ...nullable }
      : { ...typeOf(schemas[name]!.type as string), allOf: [first], ...nullable }
  }
}

const nameIn = ({ $ref }: Json) =>
  typeof $ref === 'string' ? /^#\/components\/schemas\/(.+)$/.exec($ref)?.[1] : undefined

// The one schema that stands for a schema of an error.
function errorIn (value: Json): 'Error' | 'OAuthError' | undefined {
  const name = nameIn(value)
  return name === undefined || !isError(name) ? undefined : name.startsWith('OAuth') ? 'OAuthError' : 'Error'
}

function typeOf (type: string | string[]): Json {
  const types = [type].flat()
  const own = types.find((one) => one !== 'null')
  if (own === undefined) return { enum: [null], nullable: true }
  return { type: own, ...(types.includes('null') && { nullable: true }) }
}
