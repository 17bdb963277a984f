import { Ajv2020, type AnySchema, type ValidateFunction } from 'ajv/dist/2020.js'
import formats from 'ajv-formats'
import { codeOf, COMMON_STATUSES, ERRORS, type ErrorCode } from '../../schemas/errors.ts'

// The statuses, error codes and schemas in the OpenAPI document, for tests that compare responses with the document.

/** Error codes that every operation can return. */
const OF_ALL = [
  'malformed_json', 'malformed_request', 'unsupported_api_version', 'unauthenticated', 'insufficient_permissions',
  'organization_inactive', 'second_factor_required', 'not_found', 'payload_too_large', 'unsupported_media_type',
  'validation_failed', 'rate_limit_exceeded', 'internal_error', 'integrity_error', 'service_unavailable',
  'conflict', 'idempotency_key_reused'
]

/** The statuses of an error code; a code can have two statuses. */
export const statusesOf = (code: string) => new Set(
  (Object.keys(ERRORS) as ErrorCode[]).filter((row) => codeOf(row) === code).map((row) => ERRORS[row].status as number)
)

/** The operations of a path in the OpenAPI document by method, each with the parameters of the path. */
export function operationsIn<Operation> (item: Record<string, Operation>): Record<string, Operation> {
  const { parameters: ofPath = [], ...operations } = item as Record<string, any>
  return Object.fromEntries(Object.entries(operations).map(([method, operation]) =>
    [method, { ...operation, parameters: [...ofPath, ...operation.parameters ?? []] }]))
}

export interface Documented { description?: string, responses: Record<string, unknown> }

/** The errors that the description of an operation lists as specific to it. */
export function ownErrorsOf ({ description = '' }: { description?: string }): { status: number, code: string }[] {
  const [, errors = ''] = description.split('Own errors: ')
  return errors.split('; ').flatMap((row) => [...row.matchAll(/`(\w+)`/g)].map(([, code]) =>
    ({ status: Number(row.slice(0, 3)), code: code! })))
}

/** The documented statuses of an operation, each with its error codes. `default` documents the common statuses. */
export function answersOf (operation: Documented): Map<number, Set<string>> {
  const codes = [...OF_ALL, ...ownErrorsOf(operation).map(({ code }) => code)]
  const statuses = Object.keys(operation.responses)
    .flatMap((status) => status === 'default' ? COMMON_STATUSES : [Number(status)])
  return new Map(statuses.map((status) => [status, new Set(codes.filter((code) => statusesOf(code).has(status)))]))
}

/**
 * Returns a function that validates a value against a schema of the document. Fields that are not in the schema are
 * errors.
 */
export function createValidator (components: object): (schema: object, value: unknown) => string[] {
  const ajv = new Ajv2020({ strict: false, allErrors: true })
  formats.default(ajv)
  ajv.addSchema(closed({ components }) as AnySchema, 'document')
  const compiled = new WeakMap<object, ValidateFunction>()
  return (schema, value) => {
    let judge = compiled.get(schema)
    if (judge === undefined) {
      judge = ajv.compile(closed(JSON.parse(JSON.stringify(schema).replaceAll('"#/', '"document#/'))) as AnySchema)
      compiled.set(schema, judge)
    }
    judge(value)
    return (judge.errors ?? []).map(({ instancePath, message }) => `${instancePath} ${message}`)
  }
}

function closed (value: unknown): unknown {
  if (Array.isArray(value)) return value.map(closed)
  if (typeof value !== 'object' || value === null) return value
  const copy = Object.fromEntries(Object.entries(value).map(([key, member]) =>
    [key, key === 'example' ? member : closed(member)]))
  const isObject = [copy.type].flat().includes('object') && typeof copy.properties === 'object'
  return isObject ? { additionalProperties: false, ...copy } : copy
}
