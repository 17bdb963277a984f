import { FormatRegistry, type TSchema } from '@sinclair/typebox'
import { TypeCompiler, ValueErrorType } from '@sinclair/typebox/compiler'
import { Value } from '@sinclair/typebox/value'
import type { FastifySchemaCompiler, FastifySchemaValidationError } from 'fastify'

// RFC 3339 with an offset: what Date.parse takes besides is refused.
const RFC_3339 = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)$/i
FormatRegistry.Set('date-time', (value) => RFC_3339.test(value) && !Number.isNaN(Date.parse(value)))

const MOST_ERRORS = 20

/**
 * Judges requests by TypeBox's own compiler. A body is judged as sent ("true" and 1 are not true when the question is
 * whether to purge); paths and queries are text by nature and are converted first. An absent body is `{}`.
 */
export const validatorCompiler: FastifySchemaCompiler<TSchema> = ({ schema, httpPart }) => {
  const checker = TypeCompiler.Compile(schema)
  return (input: unknown) => {
    const sent = httpPart === 'body' ? input ?? {} : Value.Convert(schema, withoutEmpty(input))
    const value = Value.Default(schema, sent)
    if (checker.Check(value)) return { value }
    const error: FastifySchemaValidationError[] = []
    for (const { path, message, type } of checker.Errors(value)) {
      const instancePath = path.slice(0, 200)
      // A missing member is reported twice by the compiler: as missing, and as not being of its type.
      if (error.some((known) => known.instancePath === instancePath)) continue
      const text = type === ValueErrorType.ObjectAdditionalProperties ? 'Unknown member' : message
      error.push({ keyword: 'typebox', instancePath, schemaPath: '', params: {}, message: text })
      if (error.length === MOST_ERRORS) break
    }
    return { error }
  }
}

// `?force=` is as if it had not been sent.
function withoutEmpty (input: unknown): unknown {
  if (typeof input !== 'object' || input === null) return input
  return Object.fromEntries(Object.entries(input).filter(([, value]) => value !== ''))
}

/** `/secrets/0/id` → `secrets.0.id`, with what the validator says of it. */
export function errorsByMember (problems: readonly FastifySchemaValidationError[], context = 'body'): Record<string, string[]> {
  const members: Record<string, string[]> = Object.create(null)
  for (const { instancePath, message } of problems) {
    const member = instancePath.slice(1).replaceAll('/', '.') || context
    ;(members[member] ??= []).push(message ?? 'is invalid')
  }
  return members
}
