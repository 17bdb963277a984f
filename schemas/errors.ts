import { Type, type Static, type TObject, type TProperties, type TSchema } from '@sinclair/typebox'
import { UNREADABLE_REASONS, type UnreadableReason } from './documents.ts'
import { AbilityName } from './scopes.ts'
import { OneOf, Timestamp } from './shapes.ts'

interface ErrorSpec {
  status: number
  message: string
  details?: TSchema
  example?: object
  as?: string
  /** Makes the message from `details`. Without this function or without details, the message is `message`. */
  inWords?: (details: never) => string
  /** Responses may omit `details`. */
  mayLackDetails?: true
}

const UNREADABLE = 'A document does not parse in the format of the project.'
const MAX_QUOTED_NAME = 100

/** The message of `document_unreadable`, such as `Line 2: the quote is not closed.` */
function unreadableInWords (
  { line, reason, limit, name }: { line?: number, reason?: UnreadableReason, limit?: string, name?: string }
): string {
  if (limit !== undefined) return `A document has more than ${limit}, so its names cannot be read.`
  if (line === undefined || reason === undefined) return UNREADABLE
  const isQuoted = reason === 'duplicate_name' && name !== undefined && name.length <= MAX_QUOTED_NAME
  return `Line ${line}: ${isQuoted ? `the name ${JSON.stringify(name)} occurs twice.` : UNREADABLE_REASONS[reason]}`
}

/** Why a request has no token that the service reads: `reason` of `unauthenticated`. */
const MISSING_TOKEN = {
  no_header: 'The request has no `Authorization` header.',
  other_header: 'Headers such as `X-API-Key` are not read.',
  in_query: 'A token in the query is not read.',
  several_headers: 'The request has several `Authorization` headers.',
  no_token: 'The `Authorization` header has no token.',
  no_scheme: 'The `Authorization` header does not begin with `Bearer` and a blank.',
  other_scheme: 'The scheme of the `Authorization` header is not `Bearer`.'
}
export type MissingToken = keyof typeof MISSING_TOKEN

function error<S extends number> (status: S, message: string): { status: S, message: string }
/** An error with the schema fields of `details` and an example of `details`. */
function error<S extends number, D extends TProperties> (
  status: S, message: string, details: D, example: Partial<Record<keyof D, unknown>>
): { status: S, message: string, details: TObject<D>, example: object }
function error (status: number, message: string, details?: TProperties, example?: object): ErrorSpec {
  return { status, message, ...(details && { details: Type.Object(details), example }) }
}

const SIDE = Type.Optional(Type.String({
  description: 'the side of a comparison that has the error, `from` or `to`; absent elsewhere'
}))

/**
 * The error catalogue of the API: code, status, message and the schema of `details`. If an error has `as`, responses
 * contain the code `as` instead, so that one public code can have two statuses.
 */
export const ERRORS = {
  malformed_json: {
    ...error(400, 'The body is not valid JSON in UTF-8.', {
      line: Type.Integer({ description: 'the line of the first error; the first line is 1' }),
      column: Type.Integer({ description: 'in characters; the first column is 1' }),
      name: Type.Optional(Type.String({ description: 'the name that occurs twice in an object, if that is the error' }))
    }, { line: 1, column: 18 }),
    inWords: ({ line, column, name }: { line: number, column: number, name?: string }) => name === undefined
      ? `The body is not valid JSON: the first error is at line ${line}, column ${column}.`
      : `The name ${JSON.stringify(name)} occurs twice in an object of the body, again at line ${line}, column ${column}.`,
    mayLackDetails: true
  },
  malformed_request: error(400, 'The request is not valid HTTP.'),
  unsupported_api_version: error(
    400, 'Only version 1 of the API is supported.', { supported: Type.Array(Type.String()) }, { supported: ['1'] }
  ),
  client_managed_key: {
    ...error(400, 'The project is client-managed: only a client can rotate its key.'), as: 'client_managed_encryption'
  },
  server_managed_encryption: error(400, 'The project is server-managed: only the server can do this.'),
  unauthenticated: {
    ...error(
      401, 'Send the header `Authorization: Bearer TOKEN` with a token that is complete, not expired and not revoked.',
      { reason: OneOf(Object.keys(MISSING_TOKEN) as MissingToken[]) }, { reason: 'no_header' }
    ),
    inWords: ({ reason }: { reason: MissingToken }) =>
      `${MISSING_TOKEN[reason]} Send one header \`Authorization: Bearer TOKEN\`.`,
    mayLackDetails: true
  },
  insufficient_permissions: error(
    403, 'The token lacks the required scope.',
    { required_scope: AbilityName, granted_scopes: Type.Array(AbilityName) },
    { required_scope: 'secret:purge', granted_scopes: ['secret:read'] }
  ),
  organization_inactive: error(
    403, 'The organization is not active.', { status: Type.String() }, { status: 'suspended' }
  ),
  second_factor_required: error(
    403, 'A second factor is required. Set it up on your account page.',
    { enroll_url: Type.String() }, { enroll_url: 'https://strongroom.example/account' }
  ),
  version_locked: error(
    403, 'The version is outside the retention window of the plan.',
    { retention_days: Type.Integer(), version_created_at: Timestamp, side: SIDE },
    { retention_days: 7, version_created_at: '2026-03-01T12:00:00.000Z' }
  ),
  not_found: {
    ...error(404, 'There is no such resource.', {
      resource: Type.Optional(Type.String({
        description: 'the first part of the path, or of the level in the body, that does not exist: `project`, ' +
          '`target`, `environment`, `secret`, `version`, `team`, `api-token`, …; `path` if the API has no such path'
      })),
      paths: Type.Optional(Type.Array(Type.String(), { description: 'with `path`: the most similar paths of the API' })),
      at: Type.Optional(Type.Unsafe<Date>({
        ...Timestamp, description: 'the time of the request, if the resource exists, but did not exist then'
      })),
      side: SIDE
    }, { resource: 'project' }),
    inWords: ({ resource = 'resource', at, paths }: { resource?: string, at?: Date | string, paths?: string[] }) => {
      if (paths !== undefined) {
        const hint = paths.length === 0 ? '' : ` Did you mean ${paths.join(' or ')}?`
        return `The API has no such path.${hint} /openapi.json lists all paths.`
      }
      const words = resource.replace(/^api-/, 'API ').replaceAll('-', ' ')
      return at === undefined
        ? `There is no such ${words}.`
        : `This ${words} did not exist yet at ${new Date(at).toISOString()}.`
    },
    mayLackDetails: true
  },
  method_not_allowed: {
    ...error(405, 'This path does not support the method.', { allowed: Type.Array(Type.String()) }, { allowed: ['GET'] }),
    inWords: ({ allowed }: { allowed: string[] }) => allowed.length === 0
      ? 'No path supports this method.'
      : `This path does not support the method. It supports ${allowed.join(', ')}.`
  },
  conflict: error(409, 'Another request changed the same resource. Try again.'),
  idempotent_secret_unavailable: error(
    409, 'The first request with this Idempotency-Key succeeded. The secret was returned only once, in its response.',
    { id: Type.String() }, { id: '3' }
  ),
  rotation_in_progress: {
    ...error(409, 'Another request is changing the key of the project. Try again.'), as: 'key_version_conflict'
  },
  precondition_failed: error(412, 'The resource has changed since this ETag. Read it again.'),
  payload_too_large: error(413, 'The body is larger than the limit.'),
  uri_too_long: error(414, 'The request target is too long.'),
  unsupported_media_type: {
    ...error(415, 'Send JSON: Content-Type application/json in UTF-8, not compressed.', {
      accepted: Type.Array(Type.String(), { description: 'the media types that the operation accepts' })
    }, { accepted: ['application/json'] }),
    inWords: ({ accepted }: { accepted: string[] }) =>
      `Send JSON: Content-Type ${accepted.join(' or ')} in UTF-8, not compressed.`,
    mayLackDetails: true
  },
  validation_failed: error(422, 'The request does not match its schema.'),
  slug_taken: error(422, 'The slug is taken.'),
  plan_limit_reached: error(
    422, 'The plan limit of the organization is reached.',
    { limit: Type.Integer(), used: Type.Integer(), plan: Type.String() }, { limit: 5, used: 5, plan: 'free' }
  ),
  limit_reached: error(422, 'Limit reached.', { limit: Type.Integer() }, { limit: 20 }),
  role_not_held: error(
    422, 'You cannot manage a role with more permissions than yours.', { role: Type.String() }, { role: 'owner' }
  ),
  last_owner: error(422, 'An organization needs an owner. Make another member owner first.'),
  already_member: error(
    422, 'This address belongs to a member or has an open invitation.', { status: Type.String() }, { status: 'invited' }
  ),
  plan_not_offered: error(422, 'No such plan is offered in this interval and currency.'),
  no_subscription: error(404, 'The organization has no subscription.'),
  subscription_exists: error(422, 'The organization already has a subscription. Change it instead.'),
  payment_method_in_use: error(422, 'This is the default payment method of a subscription. Set another default first.'),
  card_number_refused: error(422, 'This looks like a payment card number. Card numbers must not be stored here.'),
  charge_not_settled: error(422, 'The charge is not settled, so it cannot be refunded.'),
  refund_exceeds_charge: error(
    422, 'Refunds cannot exceed the remaining amount of the charge.', { left: Type.Integer() }, { left: 6000 }
  ),
  coupon_unknown: error(422, 'There is no such coupon.'),
  coupon_expired: error(422, 'The coupon has expired.'),
  coupon_used_up: error(422, 'The coupon has reached its redemption limit.'),
  coupon_redeemed: error(422, 'The organization has already redeemed this coupon.'),
  coupon_taken: error(422, 'The organization already has a coupon. Remove it first.'),
  idempotency_key_reused: error(422, 'This Idempotency-Key was already used for another request. Send a new key.'),
  confirmation_required: error(422, 'This cannot be undone. Send "confirmed": true.'),
  invalid_parameter_combination: error(422, 'The parameters do not fit together, or not to the project.'),
  client_managed_encryption: {
    ...error(422, 'The key is managed by the client: the server cannot read or encrypt these documents.'),
    details: Type.Object({ side: SIDE }),
    mayLackDetails: true
  },
  document_unreadable: {
    ...error(
      422, UNREADABLE,
      {
        level: Type.String(),
        line: Type.Optional(Type.Integer({ description: 'the first line that does not parse; the first line is 1' })),
        column: Type.Optional(Type.Integer({ description: 'in characters; the first column is 1' })),
        reason: Type.Optional(OneOf(Object.keys(UNREADABLE_REASONS) as UnreadableReason[])),
        name: Type.Optional(Type.String({ description: 'the name that the error is about, if an earlier line has it' })),
        limit: Type.Optional(Type.String({ description: 'the limit that the document exceeds, such as `10,000 names`' })),
        side: SIDE
      },
      { level: 'environment', line: 3, column: 1, reason: 'quote_not_closed' }
    ),
    inWords: unreadableInWords
  },
  names_not_in_shell: error(
    422, 'These names or their values cannot be shell variables. Rename them, or read JSON or YAML.',
    { names: Type.Array(Type.String()) }, { names: ['api.key'] }
  ),
  names_not_in_docker: error(
    422, 'An env file of Docker cannot hold these names with their values. Rename them, or read JSON or YAML.',
    { names: Type.Array(Type.String()) }, { names: ['PRIVATE_KEY'] }
  ),
  version_gone: error(
    422, 'The document of a level at that time is gone: its version was deleted, purged or never recorded. A level above that is only merged may also be outside the retention.',
    { level: Type.String(), side: SIDE }, { level: 'orbit/backend/live' }
  ),
  content_not_decryptable: error(422, 'The content cannot be decrypted with the current key of the project.'),
  key_proof_required: error(422, 'The project has no key proof to compare with.'),
  key_proof_mismatch: error(422, 'The key proof is missing or does not match the current key.'),
  key_proof_reveals_key: error(
    422, 'This proof decrypts the content, so it is the data key. Use a key string that is not exactly 32 bytes long. Nothing was stored.'
  ),
  content_required_for_old_key: error(
    422, 'The version is under an old key. Send its content re-encrypted under the current key.'
  ),
  key_version_conflict: error(
    422, 'The key was rotated meanwhile, or a version is not pending. Nothing was changed. List the pending versions again.'
  ),
  secrets_incomplete: error(
    422, 'Send every current document of the project and no others. Nothing was changed.',
    { missing: Type.Array(Type.String()), unknown: Type.Array(Type.String()) },
    { missing: ['01JQZ6VE6B9C2D5F8G1H4J7K0M'], unknown: [] }
  ),
  history_under_old_keys: error(
    422, 'Versions are still encrypted with older server keys, which would be lost. Rotate with history_policy re_encrypt or purge these versions first.',
    { remaining: Type.Integer() }, { remaining: 12 }
  ),
  version_protected: error(
    422, 'This is the only restore snapshot of a deleted secret. Send "force": true to delete it.'
  ),
  abilities_are_fixed: error(422, 'The abilities of a token cannot be changed. Create a new token.'),
  restrictions_are_fixed: error(422, 'The restrictions of a token cannot be changed. Create a new token.'),
  user_required: error(422, 'Only a user can do this. Use the access token of an application instead of an API token.'),
  memberships_full: error(422, 'The user has reached the limit of organizations they can belong to or own.'),
  organization_full: error(422, 'The plan of the organization has no free seat. Ask the inviter to free a seat.'),
  organization_limit_reached: error(
    422, 'You have reached the limit of organizations you can belong to or own.',
    { limit: Type.Integer() }, { limit: 100 }
  ),
  organization_required: error(422, 'Put the organization into the path.'),
  rate_limit_exceeded: {
    ...error(429, 'Too many requests.', {
      retry_after: Type.Integer(),
      group: Type.String(),
      limit: Type.Integer(),
      window: Type.Integer({ description: 'in seconds' }),
      variable: Type.Optional(Type.String({ description: 'sets the limit; absent if the plan does' }))
    }, { retry_after: 42, group: 'api', limit: 100, window: 60, variable: 'RATE_LIMIT_API' }),
    inWords: ({ retry_after, group, limit, window, variable }: {
      retry_after: number, group: string, limit: number, window: number, variable?: string
    }) => `Too many requests: the limit \`${group}\` is ${limit} ${window === 60 ? 'a minute' : 'an hour'}. ` +
      `Try again in ${retry_after} s. ` + (variable === undefined
        ? 'It is the limit of the plan.'
        : `The operator of the service can change it with ${variable}.`)
  },
  header_fields_too_large: error(431, 'The request headers are too large.'),
  internal_error: error(500, 'Internal error. Try again later.'),
  integrity_error: error(
    500, 'A stored record was changed outside the service and was rejected. Contact the operator.'
  ),
  service_unavailable: error(503, 'The service is temporarily unavailable. Try again.'),
  invoicing_unavailable: error(503, 'Invoices are unavailable: the operator must configure the seller first.')
} as const satisfies Record<string, ErrorSpec>

export type ErrorCode = keyof typeof ERRORS
type DetailsOf<C extends ErrorCode> = (typeof ERRORS)[C] extends {
  details: infer S extends TSchema
} ? Static<S> : never
/** The arguments of `fail` after the code: `details` if the catalogue defines a schema of details for this code. */
export type ErrorArgs<C extends ErrorCode> = [DetailsOf<C>] extends [never]
  ? []
  : (typeof ERRORS)[C] extends { mayLackDetails: true } ? [details?: DetailsOf<C>] : [details: DetailsOf<C>]

/** Whether the details of this error can name the side of a comparison. */
export function canNameSide (code: ErrorCode): boolean {
  const { details }: ErrorSpec = ERRORS[code]
  return details !== undefined && 'side' in (details.properties as TProperties)
}

/** The `message` of an error response. */
export function messageOf (code: ErrorCode, details?: unknown): string {
  const { message, inWords }: ErrorSpec = ERRORS[code]
  return details === undefined || inWords === undefined ? message : inWords(details as never)
}

/** The code in responses, which is `as` for some errors. */
export function codeOf (code: ErrorCode): string {
  const spec: ErrorSpec = ERRORS[code]
  return spec.as ?? code
}

/** Codes whose responses may have `errors`: field name → messages. */
export const WITH_ERRORS: readonly ErrorCode[] = [
  'validation_failed', 'slug_taken', 'abilities_are_fixed', 'restrictions_are_fixed', 'invalid_parameter_combination',
  'card_number_refused'
]

const CODES = Object.keys(ERRORS) as ErrorCode[]
const unique = <T>(values: readonly T[]) => [...new Set(values)]

/**
 * Errors that every operation can have, if it takes a token, has parameters or can be repeated. The OpenAPI document
 * lists them once, as `default`; the description of an operation lists its other errors.
 */
export const COMMON_ERRORS: readonly ErrorCode[] = [
  'malformed_request', 'malformed_json', 'unsupported_api_version', 'unauthenticated', 'insufficient_permissions',
  'organization_inactive', 'second_factor_required', 'not_found', 'conflict', 'payload_too_large',
  'unsupported_media_type', 'validation_failed', 'idempotency_key_reused', 'rate_limit_exceeded', 'internal_error',
  'integrity_error', 'service_unavailable'
]

// All fields of `details`, for one schema of all errors. Their descriptions name the errors that have them.
function detailsOfAll (): TProperties {
  const fields = new Map<string, { schemas: TSchema[], codes: Map<string, string[]> }>()
  for (const code of CODES) {
    const { details }: ErrorSpec = ERRORS[code]
    for (const [name, { description = '', ...schema }] of Object.entries((details?.properties ?? {}) as TProperties)) {
      const { schemas, codes } = fields.get(name) ?? { schemas: [], codes: new Map<string, string[]>() }
      const isNew = schemas.every((other) => JSON.stringify(other) !== JSON.stringify(schema))
      fields.set(name, {
        schemas: isNew ? [...schemas, schema as TSchema] : schemas,
        codes: codes.set(description, unique([...codes.get(description) ?? [], codeOf(code)]))
      })
    }
  }
  return Object.fromEntries([...fields].map(([name, { schemas, codes }]) => {
    const [first, ...others] = schemas
    const schema = others.length === 0 ? first! : Type.Union(schemas.flatMap(({ anyOf, ...one }) => anyOf ?? [one]))
    const description = [...codes].map(([words, all]) => [all.join(', '), words].filter(Boolean).join(': ')).join('. ')
    return [name, Type.Optional({ ...schema, [schema.title === undefined ? 'description' : 'x-here']: description })]
  }))
}

const ErrorBody = Type.Object({
  error: OneOf(unique(CODES.map(codeOf)), { title: 'ErrorCode' }),
  message: Type.String(),
  details: Type.Optional(Type.Object(detailsOfAll(), {
    title: 'ErrorDetails', description: 'The description of a field names the errors that can have it'
  })),
  errors: Type.Optional(Type.Object({}, {
    description: `${WITH_ERRORS.join(', ')}: the messages about each field of the request`,
    additionalProperties: Type.Array(Type.String())
  }))
}, { title: 'Error' })

function exampleOf (code: ErrorCode) {
  const { example }: ErrorSpec = ERRORS[code]
  return {
    error: codeOf(code),
    message: messageOf(code, example),
    ...(example && { details: example }),
    ...(WITH_ERRORS.includes(code) && { errors: { name: ['Expected string'] } })
  }
}

const listed = (codes: readonly ErrorCode[]) => unique(codes.map(codeOf)).join(', ')
const byStatus = (codes: readonly ErrorCode[]) => unique(codes.map((code) => ERRORS[code].status)).map((status) =>
  [status, codes.filter((code) => ERRORS[code].status === status)] as const)

/** The schema of errors by status. It is the same for all statuses, but for its description and its example. */
export const ERROR_BODIES: Readonly<Record<number, TSchema>> = Object.fromEntries(byStatus(CODES).map(
  ([status, codes]) =>
    [status, { ...ErrorBody, 'x-response-description': listed(codes), examples: [exampleOf(codes[0]!)] }]
))

/** The errors that every operation can have, for the description of `default`. */
export const COMMON_ERRORS_BY_STATUS =
  byStatus(COMMON_ERRORS).map(([status, codes]) => `${status} ${listed(codes)}`).join('; ')
