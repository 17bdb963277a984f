import { FormatRegistry, type TSchema } from '@sinclair/typebox'
import { TypeCompiler, ValueErrorType, type TypeCheck, type ValueError } from '@sinclair/typebox/compiler'
import type { FastifySchemaCompiler, FastifySchemaValidationError } from 'fastify'
import { parseTimestamp, TIMESTAMP_RULE } from '../../rules/formats/timestamps.ts'

FormatRegistry.Set('date-time', (value) => parseTimestamp(value) !== undefined)

const MAX_ERRORS = 20
const MAX_PATH = 200

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
    const { value, error } = httpPart === 'querystring'
      ? fromText(schema, input as Record<string, unknown>)
      : { value: input ?? {}, error: [] as FastifySchemaValidationError[] }
    if (error.length === 0 && checker.Check(value)) return { value }
    for (const problem of checker.Errors(value)) {
      const instancePath = (at + problem.path).slice(0, MAX_PATH)
      // TypeBox reports a missing field twice: as missing and as having the wrong type.
      if (error.some((known) => known.instancePath === instancePath)) continue
      if (error.length === MAX_ERRORS) break
      error.push(errorOf(instancePath, messageOf(problem)))
    }
    return { error }
  }
}

/** Maximum number of values that a message lists. */
const MAX_LISTED = 20

const errorOf = (instancePath: string, message: string): FastifySchemaValidationError =>
  ({ keyword: 'typebox', instancePath: instancePath.slice(0, MAX_PATH), schemaPath: '', params: {}, message })

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

const BOOLEANS: Readonly<Record<string, boolean>> = { true: true, 1: true, false: false, 0: false }

/**
 * Converts query parameters from text by schema type: digits to an integer; `true`, `false`, `1` and `0`, in any case,
 * to a boolean. Validation rejects other text. Unknown parameters are errors, because clients would not notice that a
 * parameter has no effect. So are empty parameters, unless the schema has `minLength: 0`: a script with an unset
 * variable (`?at=$TIME`) would otherwise read the current state.
 */
function fromText (schema: TSchema, query: Record<string, unknown>) {
  const types = schema.properties as Record<string, TSchema>
  const value: Record<string, unknown> = {}
  const error: FastifySchemaValidationError[] = []
  for (const [name, text] of Object.entries(query)) {
    const type = Object.hasOwn(types, name) ? types[name] : undefined
    if (type === undefined) error.push(errorOf(`/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`, 'Unknown parameter'))
    else if (text === '' && type.minLength !== 0) error.push(errorOf(`/${name}`, 'Must not be empty'))
    else value[name] = converted(type, text)
  }
  return { value, error: error.slice(0, MAX_ERRORS) }
}

function converted (schema: TSchema, text: unknown): unknown {
  if (typeof text !== 'string') return text
  if (schema.type === 'integer') {
    return /^\d{1,16}$/.test(text) && Number.isSafeInteger(Number(text)) ? Number(text) : text
  }
  const word = text.toLowerCase()
  const boolean = Object.hasOwn(BOOLEANS, word) ? BOOLEANS[word] : undefined
  if (schema.type === 'boolean') return boolean ?? text
  // Words of which some are booleans, as of `merge`.
  const words = (schema.anyOf as TSchema[] | undefined ?? []).map((one) => one.const as unknown)
  return boolean !== undefined && words.includes(String(boolean)) ? String(boolean) : text
}

/** Validation errors by field: `/secrets/0/id` → `secrets.0.id`. */
export function errorsByMember (
  problems: readonly FastifySchemaValidationError[], context = 'body'
): Record<string, string[]> {
  const members: Record<string, string[]> = Object.create(null)
  for (const { instancePath, message } of problems) {
    const member = instancePath.slice(1).replaceAll('/', '.').replaceAll('~1', '/').replaceAll('~0', '~') || context
    ;(members[member] ??= []).push(message ?? 'is invalid')
  }
  return members
}
