import { FormatRegistry, type TSchema } from '@sinclair/typebox'
import { TypeCompiler, ValueErrorType, type TypeCheck, type ValueError } from '@sinclair/typebox/compiler'
import type { FastifySchemaCompiler, FastifySchemaValidationError } from 'fastify'
import { parseTimestamp, TIMESTAMP_RULE } from '../../rules/formats/timestamps.ts'

FormatRegistry.Set('date-time', (value) => parseTimestamp(value) !== undefined)

const MOST_ERRORS = 20

/**
 * Judges requests by TypeBox's own compiler. A body is judged as sent ("true" and 1 are not true when the question is
 * whether to purge); queries are text by nature and are converted first. An absent body is `{}`.
 */
export const validatorCompiler: FastifySchemaCompiler<TSchema> = ({ schema, httpPart }) => judging(schema, httpPart)

/**
 * Says what is wrong with a value, and where, below the path that it is at. A schema is compiled when it is needed
 * first: to compile those of all routes takes longer than any request would wait for its own.
 */
export function judging (schema: TSchema, httpPart = 'body') {
  let compiled: TypeCheck<TSchema> | undefined
  return (input: unknown, at = ''): { value?: unknown, error?: FastifySchemaValidationError[] } => {
    const checker = compiled ??= TypeCompiler.Compile(schema)
    const value = httpPart === 'querystring' ? fromText(schema, input as Record<string, unknown>) : input ?? {}
    if (checker.Check(value)) return { value }
    const error: FastifySchemaValidationError[] = []
    for (const problem of checker.Errors(value)) {
      const instancePath = (at + problem.path).slice(0, 200)
      // A missing member is reported twice by the compiler: as missing, and as not being of its type.
      if (error.some((known) => known.instancePath === instancePath)) continue
      error.push({ keyword: 'typebox', instancePath, schemaPath: '', params: {}, message: messageOf(problem) })
      if (error.length === MOST_ERRORS) break
    }
    return { error }
  }
}

function messageOf (problem: ValueError): string {
  if (problem.type === ValueErrorType.ObjectAdditionalProperties) return 'Unknown member'
  // A time that may also be null is a union, and each alternative has errors of its own.
  const all = [problem, ...problem.errors.flatMap((alternative) => [...alternative])]
  const isTimestamp = all.some(({ type, schema }) =>
    type === ValueErrorType.StringFormat && schema.format === 'date-time')
  return isTimestamp ? TIMESTAMP_RULE : problem.message
}

// Converts a query parameter by the type of its schema: digits to an integer, `true`, `false` and `0` to a boolean. Any
// other text stays a string and is refused by the validation. A parameter without a value, as in `?force=`, counts as
// left out. A time without a value is refused: a script with an empty variable would read the present.
function fromText (schema: TSchema, query: Record<string, unknown>): Record<string, unknown> {
  const types = schema.properties as Record<string, TSchema>
  const typeOf = (name: string) => Object.hasOwn(types, name) ? types[name] : undefined
  const sent = Object.entries(query).filter(([name, text]) => text !== '' || typeOf(name)?.format === 'date-time')
  return Object.fromEntries(sent.map(([name, text]) => {
    const type = typeOf(name)?.type
    if (type === 'integer' && typeof text === 'string' && /^\d{1,16}$/.test(text) && Number.isSafeInteger(Number(text))) {
      return [name, Number(text)]
    }
    if (type === 'boolean' && (text === 'true' || text === 'false' || text === '0')) return [name, text === 'true']
    return [name, text]
  }))
}

/** `/secrets/0/id` → `secrets.0.id`, with what the validator says of it. */
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
