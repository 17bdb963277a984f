import type { TSchema } from '@sinclair/typebox'
import { ValueErrorType, type ValueError } from '@sinclair/typebox/compiler'
import { ACTOR_PATTERN } from '../../../schemas/audit.ts'
import { ruleOf } from '../../../schemas/shapes.ts'
import { didYouMean, mustBeOneOf } from '../../rules/formats/phrases.ts'
import { timestampProblem } from '../../rules/formats/timestamps.ts'

/** The message for an invalid value: says which values are valid, and never contains the value. */
export function messageOf ({ type, schema, value, message, errors }: ValueError): string {
  if (type === ValueErrorType.ObjectAdditionalProperties) return 'Unknown field'
  if (type === ValueErrorType.ObjectRequiredProperty) return message
  const choices = choicesOf(schema)
  if (choices !== undefined) return mustBeOneOf(choices, value)
  const rule = ruleOf(schema)
  if (rule !== undefined) return `must be ${rule}${schema.pattern === ACTOR_PATTERN ? suggestActor(value) : ''}`
  if (schema.format === 'date-time') return timestampProblem(value)
  if (type !== ValueErrorType.Union) return message
  // A nullable value has a union of `null` and one other schema. The message is about the other schema.
  const alternatives = schema.anyOf as TSchema[]
  const problem = firstOf(errors)
  if (problem === undefined) return message
  return messageOf(problem) + (alternatives.some((one) => one.type === 'null') ? ', or null' : '')
}

// Stops at the first error: a value may have as many errors as the body has members.
function firstOf (branches: readonly Iterable<ValueError>[]): ValueError | undefined {
  for (const branch of branches) for (const one of branch) if (one.schema.type !== 'null') return one
  return undefined
}

/** The values of an enumeration. `x-published` is the schema that the OpenAPI document shows instead of this one. */
function choicesOf (schema: TSchema): unknown[] | undefined {
  const { anyOf = [schema] } = (schema['x-published'] ?? schema) as { anyOf?: TSchema[] }
  return anyOf.every((one) => 'const' in one) ? anyOf.map((one) => one.const as unknown) : undefined
}

// Suggests the form of an actor, such as `user:ID`. The id is left out, because a message never repeats the value.
function suggestActor (value: unknown): string {
  const form = typeof value === 'string' ? value.replace(/:\d{1,16}$/, ':ID') : value
  return didYouMean(['operator', 'system', 'api_token:ID', 'user:ID', 'workload:ID'], form)
}
