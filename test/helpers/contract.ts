import { Ajv2020, type AnySchema, type ValidateFunction } from 'ajv/dist/2020.js'
import formats from 'ajv-formats'
import { codeOf, ERRORS, WITH_ERRORS, type ErrorCode } from '../../schemas/errors.ts'

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

export interface Documented {
  operationId: string
  description?: string
  security?: object[]
  parameters?: object[]
  responses: Record<string, unknown>
}

/** The errors that the description of an operation lists as specific to it. */
export function ownErrorsOf ({ description = '' }: { description?: string }): { status: number, code: string }[] {
  const [, errors = ''] = description.split('Own errors: ')
  return errors.split('; ').flatMap((row) => [...row.matchAll(/`(\w+)`/g)].map(([, code]) =>
    ({ status: Number(row.slice(0, 3)), code: code! })))
}

/** The codes in the description of an error response, such as `Not Found: not_found, no_subscription`. */
export const codesIn = ({ description }: { description: string }): string[] =>
  [...description.slice(description.indexOf(':')).matchAll(/[a-z_]{2,}/g)].map(String)

/** The operation that describes an operation: the original of a duplicate, or the operation itself. */
export function describing<T extends { operationId: string, description?: string }> (
  operation: T, all: readonly T[]
): T {
  const [, original] = /^A duplicate of `(\w+)`\.$/.exec(operation.description ?? '') ?? []
  return original === undefined ? operation : all.find(({ operationId }) => operationId === original)!
}

/** Statuses that `default` documents in all operations. */
const OF_DEFAULT = [400, 401, 413, 415, 500, 503]

/**
 * The documented statuses of an operation, each with its error codes. `default` documents the errors that an operation
 * can have because it takes a token, has a path with parameters, can be repeated, or belongs to the API.
 */
export function answersOf (path: string, operation: Documented, all: readonly Documented[]): Map<number, Set<string>> {
  const own = ownErrorsOf(describing(operation, all))
  const has = (part: unknown, word: string) => JSON.stringify(part ?? []).includes(word)
  const ofDefault = path.startsWith('/api/oauth/')
    ? []
    : [
        ...OF_DEFAULT,
        ...has(operation.security, 'bearerToken') ? [403] : [],
        ...path.includes('{') ? [404] : [],
        ...has(operation.parameters, 'idempotency-key') ? [409] : [],
        ...path.startsWith('/api/') ? [422, 429] : []
      ]
  const listed = Object.keys(operation.responses).filter((status) => status !== 'default').map(Number)
  const codes = [...OF_ALL, ...own.map(({ code }) => code)]
  const statuses = [...listed, ...ofDefault, ...own.map(({ status }) => status)]
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

const CODES = Object.keys(ERRORS) as ErrorCode[]
const validateStrictly = createValidator({})
const bodies = new Map<ErrorCode, object>(CODES.map((row) => {
  const { details, mayLackDetails } = ERRORS[row] as { details?: object, mayLackDetails?: true }
  return [row, {
    type: 'object',
    required: ['error', 'message', ...details === undefined || mayLackDetails ? [] : ['details']],
    properties: {
      error: { type: 'string', enum: [codeOf(row)] },
      message: { type: 'string' },
      ...(details && { details: JSON.parse(JSON.stringify(details)) }),
      ...(WITH_ERRORS.includes(row) && { errors: { type: 'object', additionalProperties: { type: 'array' } } })
    }
  }]
}))

/** Validates an error as the catalogue declares its code. In the document, all errors have one schema. */
export function errorFaults (status: number, body: { error?: string }): string[] {
  const faults = CODES.filter((row) => codeOf(row) === body.error && ERRORS[row].status === status)
    .map((row) => validateStrictly(bodies.get(row)!, body))
  return faults.find((one) => one.length === 0) ?? faults[0] ?? [`${body.error} does not go with ${status}`]
}
