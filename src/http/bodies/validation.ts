import { FormatRegistry, type TSchema } from '@sinclair/typebox'
import { TypeCompiler, ValueErrorType, type TypeCheck, type ValueError } from '@sinclair/typebox/compiler'
import type { FastifySchemaCompiler, FastifySchemaValidationError } from 'fastify'
import { parseTimestamp, TIMESTAMP_RULE } from '../../rules/formats/timestamps.ts'

FormatRegistry.Set('date-time', (value) => parseTimestamp(value) !== undefined)

const MAX_ERRORS = 20

/**
 * Validates requests with TypeBox. Bodies are not coerced ("true" and 1 must not confirm a purge); query parameters
 * are converted from text first. An absent body counts as `{}`.
 */
export const validatorCompiler: FastifySchemaCompiler<TSchema> = ({ schema, httpPart }) => judging(schema, httpPart)

/** A validator; `at` is the path of the value in the body. Compiles the schema on first use, for a fast start. */
export function judging (schema: TSchema, httpPart = 'body') {
  let compiled: TypeCheck<TSchema> | undefined
  return (input: unknown, at = ''): { value?: unknown, error?: FastifySchemaValidationError[] } => {
    const checker = compiled ??= TypeCompiler.Compile(schema)
    const value = httpPart === 'querystring' ? fromText(schema, input as Record<string, unknown>) : input ?? {}
    if (checker.Check(value)) return { value }
    const error: FastifySchemaValidationError[] = []
    for (const problem of checker.Errors(value)) {
      const instancePath = (at + problem.path).slice(0, 200)
      // TypeBox reports a missing field twice: as missing and as having the wrong type.
      if (error.some((known) => known.instancePath === instancePath)) continue
      error.push({ keyword: 'typebox', instancePath, schemaPath: '', params: {}, message: messageOf(problem) })
      if (error.length === MAX_ERRORS) break
    }
    return { error }
  }
}

/** Maximum number of values that a message lists. */
const MAX_LISTED = 20

function messageOf (problem: ValueError): string {
  const { type, schema } = problem
  // The pattern itself would explain nothing.
  if (type === ValueErrorType.StringPattern) return wrongFormat(schema)
  if (problem.type === ValueErrorType.ObjectAdditionalProperties) return 'Unknown field'
  // A nullable time is a union; each alternative has its own errors.
  const all = [problem, ...problem.errors.flatMap((alternative) => [...alternative])]
  const isTimestamp = all.some(({ type, schema }) =>
    type === ValueErrorType.StringFormat && schema.format === 'date-time')
  if (isTimestamp) return TIMESTAMP_RULE
  return type === ValueErrorType.Union ? noAlternative(problem, all) : problem.message
}

function wrongFormat ({ description, examples }: TSchema) {
  const [example] = examples as string[] | undefined ?? []
  return `Wrong format${description ? `: ${description}` : ''}${example ? `; for example \`${example}\`` : ''}`
}

/** What is wrong in the alternative of the value's type; without one, the types or values that are accepted. */
function noAlternative ({ schema, value, message }: ValueError, all: readonly ValueError[]): string {
  const alternatives = (schema.anyOf as TSchema[]).flatMap((one) => one.anyOf as TSchema[] | undefined ?? [one])
  const values = alternatives.filter((one) => 'const' in one)
  if (values.length > MAX_LISTED) return message
  const own = typeof value === 'string' && all.find(({ schema }) => !('const' in schema) && schema.type === 'string')
  if (own) return messageOf(own)
  const words = alternatives.map((one) => 'const' in one ? `\`${String(one.const)}\`` : one.type as string | undefined)
  return words.includes(undefined) ? message : `Expected ${words.join(' or ')}`
}

// Converts query parameters by schema type: digits to an integer; `true`, `false` and `0` to a boolean. The validation
// rejects other text. An empty optional parameter, as in `?force=`, counts as absent. An empty time is rejected: a
// script with an empty variable would otherwise read the current state.
function fromText (schema: TSchema, query: Record<string, unknown>): Record<string, unknown> {
  const types = schema.properties as Record<string, TSchema>
  const typeOf = (name: string) => Object.hasOwn(types, name) ? types[name] : undefined
  const required = schema.required as string[] | undefined ?? []
  const sent = Object.entries(query).filter(([name, text]) =>
    text !== '' || typeOf(name)?.format === 'date-time' || required.includes(name))
  return Object.fromEntries(sent.map(([name, text]) => {
    const type = typeOf(name)?.type
    if (type === 'integer' && typeof text === 'string' && /^\d{1,16}$/.test(text) && Number.isSafeInteger(Number(text))) {
      return [name, Number(text)]
    }
    if (type === 'boolean' && (text === 'true' || text === 'false' || text === '0')) return [name, text === 'true']
    return [name, text]
  }))
}

/** Validation errors by field: `/secrets/0/id` → `secrets.0.id`. */
export function errorsByMember (
  problems: readonly FastifySchemaValidationError[], context = 'body'
): Record<string, string[]> {
  const members: Record<string, string[]> = Object.create(null)
  for (const { instancePath, message } of problems) {
    const member = instancePath.slice(1).replaceAll('/', '.') || context
    ;(members[member] ??= []).push(message ?? 'is invalid')
  }
  return members
}
