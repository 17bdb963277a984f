import { Type, type Static, type TProperties, type TSchema } from '@sinclair/typebox'
import { AbilityName } from './scopes.ts'
import { OneOf, Timestamp, ToldApart } from './shapes.ts'

interface ErrorSpec { status: number, message: string, details?: TSchema, as?: string }

/**
 * The error catalogue of the API: code, status, message and the schema of `details`. With `as`, responses carry that
 * code instead; this allows one public code with two statuses.
 */
export const ERRORS = {
  malformed_json: { status: 400, message: 'The body is not valid JSON in UTF-8.' },
  malformed_request: { status: 400, message: 'The request is not valid HTTP.' },
  unsupported_api_version: {
    status: 400,
    message: 'Only version 1 of the API is supported.',
    details: Type.Object({ supported: Type.Array(Type.String()) })
  },
  client_managed_key: {
    status: 400,
    as: 'client_managed_encryption',
    message: 'The project is client-managed: only a client can rotate its key.'
  },
  server_managed_encryption: { status: 400, message: 'The project is server-managed: only the server can do this.' },
  unauthenticated: { status: 401, message: 'The bearer token is missing, malformed, unknown, expired or revoked.' },
  insufficient_permissions: {
    status: 403,
    message: 'The token lacks the required scope.',
    details: Type.Object({ required_scope: AbilityName, granted_scopes: Type.Array(AbilityName) })
  },
  organization_inactive: {
    status: 403, message: 'The organization is not active.', details: Type.Object({ status: Type.String() })
  },
  second_factor_required: {
    status: 403,
    message: 'A second factor is required. Set it up on your account page.',
    details: Type.Object({ enroll_url: Type.String() })
  },
  version_locked: {
    status: 403,
    message: 'The version is outside the retention window of the plan.',
    details: Type.Object({ retention_days: Type.Integer(), version_created_at: Timestamp })
  },
  not_found: { status: 404, message: 'There is no such resource.' },
  method_not_allowed: { status: 405, message: 'This path does not support the method.' },
  conflict: { status: 409, message: 'Another request changed the same resource. Try again.' },
  idempotent_secret_unavailable: {
    status: 409,
    message: 'The first request with this Idempotency-Key succeeded. The secret was returned only once, in its response.',
    details: Type.Object({ id: Type.String() })
  },
  rotation_in_progress: {
    status: 409,
    as: 'key_version_conflict',
    message: 'Another request is changing the key of the project. Try again.'
  },
  precondition_failed: { status: 412, message: 'The resource has changed since this ETag. Read it again.' },
  payload_too_large: { status: 413, message: 'The body is larger than the limit.' },
  uri_too_long: { status: 414, message: 'The request target is too long.' },
  unsupported_media_type: {
    status: 415, message: 'Send JSON: Content-Type application/json in UTF-8, not compressed.'
  },
  validation_failed: { status: 422, message: 'The request does not match its schema.' },
  slug_taken: { status: 422, message: 'The slug is taken.' },
  plan_limit_reached: {
    status: 422,
    message: 'The plan limit of the organization is reached.',
    details: Type.Object({ limit: Type.Integer(), used: Type.Integer(), plan: Type.String() })
  },
  limit_reached: {
    status: 422, message: 'Limit reached.', details: Type.Object({ limit: Type.Integer() })
  },
  role_not_held: {
    status: 422,
    message: 'You cannot manage a role with more permissions than yours.',
    details: Type.Object({ role: Type.String() })
  },
  last_owner: { status: 422, message: 'An organization needs an owner. Make another member owner first.' },
  already_member: {
    status: 422, message: 'This address belongs to a member or has an open invitation.', details: Type.Object({ status: Type.String() })
  },
  plan_not_offered: { status: 422, message: 'No such plan is offered in this interval and currency.' },
  no_subscription: { status: 404, message: 'The organization has no subscription.' },
  subscription_exists: { status: 422, message: 'The organization already has a subscription. Change it instead.' },
  payment_method_in_use: {
    status: 422, message: 'This is the default payment method of a subscription. Set another default first.'
  },
  card_number_refused: {
    status: 422, message: 'This looks like a payment card number. Card numbers must not be stored here.'
  },
  charge_not_settled: { status: 422, message: 'The charge is not settled, so it cannot be refunded.' },
  refund_exceeds_charge: {
    status: 422,
    message: 'Refunds cannot exceed the remaining amount of the charge.',
    details: Type.Object({ left: Type.Integer() })
  },
  coupon_unknown: { status: 422, message: 'There is no such coupon.' },
  coupon_expired: { status: 422, message: 'The coupon has expired.' },
  coupon_used_up: { status: 422, message: 'The coupon has reached its redemption limit.' },
  coupon_redeemed: { status: 422, message: 'The organization has already redeemed this coupon.' },
  coupon_taken: { status: 422, message: 'The organization already has a coupon. Remove it first.' },
  idempotency_key_reused: { status: 422, message: 'This Idempotency-Key was already used for another request. Send a new key.' },
  confirmation_required: { status: 422, message: 'This cannot be undone. Send "confirmed": true.' },
  invalid_parameter_combination: { status: 422, message: 'These parameters cannot be combined.' },
  client_managed_encryption: {
    status: 422, message: 'The project is client-managed: the server cannot read or encrypt its documents.'
  },
  document_unreadable: {
    status: 422,
    message: 'A document does not parse in the format of the project.',
    details: Type.Object({ level: Type.String() })
  },
  version_gone: {
    status: 422,
    message: 'The document of a level at that time is gone: its version was deleted, purged or never recorded.',
    details: Type.Object({ level: Type.String() })
  },
  content_not_decryptable: { status: 422, message: 'The content cannot be decrypted with the current key of the project.' },
  key_proof_required: { status: 422, message: 'The project has no key proof to compare with.' },
  key_proof_mismatch: { status: 422, message: 'The key proof is missing or does not match the current key.' },
  key_proof_reveals_key: {
    status: 422,
    message:
      'This proof decrypts the content, so it is the data key. Use a key string that is not exactly 32 bytes long. Nothing was stored.'
  },
  content_required_for_old_key: {
    status: 422, message: 'The version is under an old key. Send its content re-encrypted under the current key.'
  },
  key_version_conflict: {
    status: 422,
    message:
      'The key was rotated meanwhile, or a version is not pending. Nothing was changed. List the pending versions again.'
  },
  secrets_incomplete: {
    status: 422,
    message: 'Send every current document of the project and no others. Nothing was changed.',
    details: Type.Object({ missing: Type.Array(Type.String()), unknown: Type.Array(Type.String()) })
  },
  history_under_old_keys: {
    status: 422,
    message:
      'Versions are still encrypted with older server keys, which would be lost. Rotate with history_policy re_encrypt or purge these versions first.',
    details: Type.Object({ remaining: Type.Integer() })
  },
  version_protected: {
    status: 422, message: 'This is the only restore snapshot of a deleted secret. Send "force": true to delete it.'
  },
  abilities_are_fixed: { status: 422, message: 'The abilities of a token cannot be changed. Create a new token.' },
  restrictions_are_fixed: { status: 422, message: 'The restrictions of a token cannot be changed. Create a new token.' },
  user_required: { status: 422, message: 'Only a user can do this. Use the access token of an application instead of an API token.' },
  memberships_full: {
    status: 422, message: 'The user has reached the limit of organizations they can belong to or own.'
  },
  organization_full: {
    status: 422, message: 'The plan of the organization has no free seat. Ask the inviter to free a seat.'
  },
  organization_limit_reached: {
    status: 422,
    message: 'You have reached the limit of organizations you can belong to or own.',
    details: Type.Object({ limit: Type.Integer() })
  },
  organization_required: { status: 422, message: 'Put the organization into the path.' },
  rate_limit_exceeded: {
    status: 429, message: 'Too many requests.', details: Type.Object({ retry_after: Type.Integer() })
  },
  header_fields_too_large: { status: 431, message: 'The request headers are too large.' },
  internal_error: { status: 500, message: 'Internal error. Try again later.' },
  integrity_error: { status: 500, message: 'A stored record was changed outside the service and was rejected. Contact the operator.' },
  service_unavailable: { status: 503, message: 'The service is temporarily unavailable. Try again.' },
  invoicing_unavailable: {
    status: 503, message: 'Invoices are unavailable: the operator must configure the seller first.'
  }
} as const satisfies Record<string, ErrorSpec>

export type ErrorCode = keyof typeof ERRORS
type DetailsOf<C extends ErrorCode> = (typeof ERRORS)[C] extends {
  details: infer S extends TSchema
} ? Static<S> : never
/** The arguments after the code: `details` if the catalogue defines a schema for them. */
export type ErrorArgs<C extends ErrorCode> = [DetailsOf<C>] extends [never] ? [] : [details: DetailsOf<C>]

const DETAIL_EXAMPLES: Partial<Record<ErrorCode, object>> = {
  unsupported_api_version: { supported: ['1'] },
  insufficient_permissions: { required_scope: 'secret:purge', granted_scopes: ['secret:read'] },
  organization_inactive: { status: 'suspended' },
  second_factor_required: { enroll_url: 'https://strongroom.example/account' },
  version_locked: { retention_days: 7, version_created_at: '2026-03-01T12:00:00.000Z' },
  version_gone: { level: 'orbit/backend/live' },
  limit_reached: { limit: 20 },
  idempotent_secret_unavailable: { id: '3' },
  role_not_held: { role: 'owner' },
  already_member: { status: 'invited' },
  plan_limit_reached: { limit: 5, used: 5, plan: 'free' },
  organization_limit_reached: { limit: 100 },
  refund_exceeds_charge: { left: 6000 },
  secrets_incomplete: { missing: ['01JQZ6VE6B9C2D5F8G1H4J7K0M'], unknown: [] },
  history_under_old_keys: { remaining: 12 },
  document_unreadable: { level: 'environment' },
  rate_limit_exceeded: { retry_after: 42 }
}

/** The public code, as in responses. */
export function codeOf (code: ErrorCode): string {
  const spec: ErrorSpec = ERRORS[code]
  return spec.as ?? code
}

/** Codes whose responses may have `errors`: field name → messages. */
const WITH_ERRORS = new Set<ErrorCode>([
  'validation_failed', 'slug_taken', 'abilities_are_fixed', 'restrictions_are_fixed', 'invalid_parameter_combination',
  'card_number_refused'
])

// Fields of an error body in addition to `error` and `message`.
function moreOf (code: ErrorCode): TProperties {
  const { details }: ErrorSpec = ERRORS[code]
  return {
    ...(details && { details }),
    ...(WITH_ERRORS.has(code) && { errors: Type.Optional(Type.Record(Type.String(), Type.Array(Type.String()))) })
  }
}

const exampleOf = (code: ErrorCode) => ({
  error: codeOf(code),
  message: ERRORS[code].message,
  ...(DETAIL_EXAMPLES[code] && { details: DETAIL_EXAMPLES[code] }),
  ...(WITH_ERRORS.has(code) && { errors: { name: ['Expected string'] } })
})

/**
 * The schema of all errors with a status: a union with the discriminator `error`. Codes with the same body share one
 * schema, named after the status or after the first code.
 */
export function ErrorBodies (status: number): TSchema {
  const shapes = new Map<string, ErrorCode[]>()
  for (const code of Object.keys(ERRORS) as ErrorCode[]) {
    if (ERRORS[code].status !== status) continue
    const shape = JSON.stringify(moreOf(code))
    shapes.set(shape, [...shapes.get(shape) ?? [], code])
  }
  const bodies = [...shapes.values()].map((codes) => {
    const more = moreOf(codes[0]!)
    const title = Object.keys(more).length === 0 ? `Error_${status}` : `Error_${codes[0]!}`
    const schema = Type.Object({ error: OneOf(codes.map(codeOf)), message: Type.String(), ...more }, { title })
    return { codes, schema }
  })
  const examples = [exampleOf(bodies[0]!.codes[0]!)]
  if (bodies.length === 1) return { ...bodies[0]!.schema, examples }
  return ToldApart('error', bodies.map(({ schema }) => schema), { title: `Errors_${status}`, examples })
}
