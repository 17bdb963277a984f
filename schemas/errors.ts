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
    message: 'This service speaks version 1 of the API.',
    details: Type.Object({ supported: Type.Array(Type.String()) })
  },
  client_managed_key: {
    status: 400,
    as: 'client_managed_encryption',
    message: 'The project is client-managed: only a client can rotate its key.'
  },
  server_managed_encryption: { status: 400, message: 'The project is server-managed: the server does this by itself.' },
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
    message: 'This takes a second factor. Set one up on your account page.',
    details: Type.Object({ enroll_url: Type.String() })
  },
  version_locked: {
    status: 403,
    message: 'The version is outside the retention window of the plan.',
    details: Type.Object({ retention_days: Type.Integer(), version_created_at: Timestamp })
  },
  not_found: { status: 404, message: 'There is no such resource.' },
  method_not_allowed: { status: 405, message: 'This path does not take that method.' },
  conflict: { status: 409, message: 'Another request changed the same resource. Try again.' },
  idempotent_secret_unavailable: {
    status: 409,
    message: 'This was done by the first request with this Idempotency-Key. Its secret was in that answer alone.',
    details: Type.Object({ id: Type.String() })
  },
  rotation_in_progress: {
    status: 409,
    as: 'key_version_conflict',
    message: 'The key of the project is being changed by another request. Try again.'
  },
  precondition_failed: { status: 412, message: 'It has moved on since the given ETag.' },
  payload_too_large: { status: 413, message: 'The body is larger than the limit.' },
  uri_too_long: { status: 414, message: 'The request target is too long.' },
  unsupported_media_type: {
    status: 415, message: 'Send JSON: Content-Type application/json in UTF-8, not compressed.'
  },
  validation_failed: { status: 422, message: 'The request does not match its schema.' },
  slug_taken: { status: 422, message: 'The slug is taken.' },
  plan_limit_reached: {
    status: 422,
    message: 'The plan of the organization allows no more.',
    details: Type.Object({ limit: Type.Integer(), used: Type.Integer(), plan: Type.String() })
  },
  limit_reached: {
    status: 422, message: 'There can be no more of these.', details: Type.Object({ limit: Type.Integer() })
  },
  role_not_held: {
    status: 422,
    message: 'Nobody gives, changes or takes away a role that holds more than they do.',
    details: Type.Object({ role: Type.String() })
  },
  last_owner: { status: 422, message: 'An organization keeps an owner: make somebody else one first.' },
  already_member: {
    status: 422, message: 'This address belongs to a member, or has an open invitation.', details: Type.Object({ status: Type.String() })
  },
  plan_not_offered: { status: 422, message: 'There is no such plan to subscribe to, at this interval and currency.' },
  no_subscription: { status: 404, message: 'The organization has no subscription.' },
  subscription_exists: { status: 422, message: 'The organization has a subscription already: change that one.' },
  payment_method_in_use: {
    status: 422, message: 'This is the default payment method of a subscription: make another one the default first.'
  },
  card_number_refused: {
    status: 422, message: 'This looks like the number of a payment card, which is never stored here.'
  },
  charge_not_settled: { status: 422, message: 'What was not received cannot be paid back.' },
  refund_exceeds_charge: {
    status: 422,
    message: 'Refunds cannot exceed what is left of the charge.',
    details: Type.Object({ left: Type.Integer() })
  },
  coupon_unknown: { status: 422, message: 'There is no such coupon.' },
  coupon_expired: { status: 422, message: 'The coupon is over.' },
  coupon_used_up: { status: 422, message: 'The coupon was redeemed as often as it can be.' },
  coupon_redeemed: { status: 422, message: 'The organization has redeemed this coupon before.' },
  coupon_taken: { status: 422, message: 'The organization has a coupon: take that away first.' },
  idempotency_key_reused: { status: 422, message: 'This Idempotency-Key came with another request before.' },
  confirmation_required: { status: 422, message: 'This cannot be undone. Send "confirmed": true.' },
  invalid_parameter_combination: { status: 422, message: 'These parameters do not go together.' },
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
    message: 'What a level held then is not kept: its version was deleted or purged, or it was stored without one.',
    details: Type.Object({ level: Type.String() })
  },
  content_not_decryptable: { status: 422, message: 'The content does not open under the current key of the project.' },
  key_proof_required: { status: 422, message: 'The project has no key proof to compare with.' },
  key_proof_mismatch: { status: 422, message: 'The key proof is missing or does not match the current key.' },
  key_proof_reveals_key: {
    status: 422,
    message:
      'This proof opens the content: it is the data key. Use a key string that is not exactly 32 bytes long. Nothing was stored.'
  },
  content_required_for_old_key: {
    status: 422, message: 'The version is under an old key. Send its content re-encrypted under the current key.'
  },
  key_version_conflict: {
    status: 422,
    message:
      'The key was rotated meanwhile, or a version is not waiting to be re-encrypted. Nothing was changed; ask for the pending versions again.'
  },
  secrets_incomplete: {
    status: 422,
    message: 'A rotation takes every current document of the project and nothing else. Nothing was changed.',
    details: Type.Object({ missing: Type.Array(Type.String()), unknown: Type.Array(Type.String()) })
  },
  history_under_old_keys: {
    status: 422,
    message:
      'Versions are still under older keys of the server, which it would have to forget. Rotate with history_policy re_encrypt first, or purge them.',
    details: Type.Object({ remaining: Type.Integer() })
  },
  version_protected: {
    status: 422, message: 'This is the only restore snapshot of a deleted secret. Send force to remove it all the same.'
  },
  abilities_are_fixed: { status: 422, message: 'The abilities of a token are fixed when it is made.' },
  restrictions_are_fixed: { status: 422, message: 'The restrictions of a token are fixed when it is made.' },
  user_required: { status: 422, message: 'Only a person can do this, through an application that acts for them.' },
  memberships_full: {
    status: 422, message: 'The person is in, or owns, as many organizations as one person can.'
  },
  organization_full: {
    status: 422, message: 'The plan of the organization has no seat left. Ask the inviter to make room.'
  },
  organization_limit_reached: {
    status: 422,
    message: 'Nobody is in more organizations, or owns more of them, than this.',
    details: Type.Object({ limit: Type.Integer() })
  },
  organization_required: { status: 422, message: 'Name the organization in the path.' },
  rate_limit_exceeded: {
    status: 429, message: 'Too many requests.', details: Type.Object({ retry_after: Type.Integer() })
  },
  header_fields_too_large: { status: 431, message: 'The request headers are too large.' },
  internal_error: { status: 500, message: 'Something failed on our side.' },
  integrity_error: { status: 500, message: 'A stored record was changed outside the service and is refused.' },
  service_unavailable: { status: 503, message: 'The service cannot answer right now. Try again.' },
  invoicing_unavailable: {
    status: 503, message: 'No invoice can be made: the operator of this service has not said yet who sells.'
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
