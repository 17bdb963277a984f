import { FormatRegistry, type TSchema } from '@sinclair/typebox'
import { TypeCompiler, type TypeCheck } from '@sinclair/typebox/compiler'
import type { FastifySchemaCompiler, FastifySchemaValidationError } from 'fastify'
import { MAX_FAULTS } from '../../rules/api-error.ts'
import { parseTimestamp } from '../../rules/formats/timestamps.ts'
import { messageOf } from './messages.ts'

FormatRegistry.Set('date-time', (value) => parseTimestamp(value) !== undefined)

const MAX_PATH = 200

/**
 * Validates requests with TypeBox. Types in bodies are not coerced: the text "true" or the number 1 must not confirm a
 * purge. Query parameters are converted from text first. An absent body counts as `{}`.
 */
export const validatorCompiler: FastifySchemaCompiler<TSchema> = ({ schema, httpPart }) => validatorOf(schema, httpPart)

/**
 * A validator; `at` is the path of the value in the body. The schema is compiled on first use, for a fast start. The
 * compiled check stops at the first error, and only an invalid value is searched for more errors, until `MAX_FAULTS`.
 */
export function validatorOf (schema: TSchema, httpPart = 'body') {
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
      if (error.length === MAX_FAULTS) break
      error.push(errorOf(instancePath, messageOf(problem)))
    }
    return { value, error }
  }
}

const errorOf = (instancePath: string, message: string): FastifySchemaValidationError =>
  ({ keyword: 'typebox', instancePath: instancePath.slice(0, MAX_PATH), schemaPath: '', params: {}, message })

const BOOLEANS: Readonly<Record<string, boolean>> = { true: true, 1: true, false: false, 0: false }

/**
 * Converts query parameters from text by schema type: digits to an integer; `true`, `false`, `1` and `0`, in upper or
 * lower case, to a boolean. Validation rejects other text. Unknown parameters are errors, because otherwise clients do
 * not notice that a parameter has no effect. Empty parameters are errors too, unless the schema has `minLength: 0`: a
 * script with an unset variable sends `?at=` instead of `?at=$TIME`, and must not get the current state.
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
  return { value, error: error.slice(0, MAX_FAULTS) }
}

function converted (schema: TSchema, text: unknown): unknown {
  if (typeof text !== 'string') return text
  if (schema.type === 'integer') {
    return /^\d{1,16}$/.test(text) && Number.isSafeInteger(Number(text)) ? Number(text) : text
  }
  const boolean = booleanIn(text)
  if (schema.type === 'boolean') return boolean ?? text
  // An enumeration with the words `true` or `false`, such as the parameter `merge`, also accepts `1` and `0`.
  const words = (schema.anyOf as TSchema[] | undefined ?? []).map((one) => one.const as unknown)
  return boolean !== undefined && words.includes(String(boolean)) ? String(boolean) : text
}

/** The value of a boolean query parameter before validation; undefined for text that is no boolean. */
export function booleanIn (text: unknown): boolean | undefined {
  if (typeof text !== 'string') return undefined
  const word = text.toLowerCase()
  return Object.hasOwn(BOOLEANS, word) ? BOOLEANS[word] : undefined
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
