import type { FastifyInstance, FastifyRequest } from 'fastify'
import { readJsonBody } from '../../http/bodies/json.ts'
import { installForms } from '../../http/pages/pages.ts'
import { shownParameter } from '../../rules/authorization.ts'
import { failOAuth } from './oauth-errors.ts'

/**
 * The parameters of a token or revocation request, none of which is empty. Only targets may be repeated (RFC 6749, 3.2;
 * RFC 8693, 2.1): their values are then one text, with blanks between.
 */
export type Parameters = ReadonlyMap<string, string>

/**
 * The OpenAPI document lists only the media type of the RFCs. With two media types, one code generator omits the body,
 * and another generates code that does not load.
 */
export const FORM_BODY = {
  consumes: ['application/x-www-form-urlencoded'], description: 'The same parameters are accepted as `application/json`.'
}

// An assertion of 16 KiB, and the other parameters.
const MAX_BODY_BYTES = 20 * 1024
const FORM = /^\s*application\/x-www-form-urlencoded\s*(?:;\s*charset\s*=\s*"?utf-8"?\s*)?$/i
const JSON_TYPE = /^\s*application\/json\s*(?:;\s*charset\s*=\s*"?utf-8"?\s*)?$/i
// RFC 6749 requires servers to ignore unknown parameters; `members` limits the number of all parameters.
const BOUNDS = { members: 1000, depth: 20 }
// Decoders replace invalid UTF-8 by U+FFFD. A valid form is ASCII, so U+FFFD in its text shows invalid UTF-8.
const REPLACEMENT = '\uFFFD'

/** Accepts forms, as RFC 6749 requires, and JSON with the same parameters (S-10.4). `parametersIn` validates them. */
export async function installOAuthBodies (app: FastifyInstance) {
  await installForms(app, { bodyLimit: MAX_BODY_BYTES, parser: (text) => ({ text, form: new URLSearchParams(text) }) })
  app.addContentTypeParser(
    '*', { parseAs: 'buffer', bodyLimit: MAX_BODY_BYTES }, async (_request: FastifyRequest, bytes: Buffer) => bytes
  )
}

/** The parameters of the body; throws an `OAuthError` for a malformed body. */
export function parametersIn ({ body, headers }: FastifyRequest): Parameters {
  const { 'content-type': type, 'content-encoding': encoding = 'identity' } = headers
  if (body === undefined) type === undefined ? failOAuth('unsupported_media_type') : failOAuth('invalid_request', 'The body is empty')
  const isForm = !Buffer.isBuffer(body)
  if (encoding.toLowerCase() !== 'identity' || !(isForm ? FORM : JSON_TYPE).test(type ?? '')) {
    failOAuth('unsupported_media_type')
  }
  if (!isForm) return parametersOf(membersOf(body))
  const { text, form } = body as { text: string, form: URLSearchParams }
  return text.includes(REPLACEMENT) ? failOAuth('invalid_request', 'The body is not valid UTF-8') : parametersOf([...form])
}

function parametersOf (pairs: readonly (readonly [string, unknown])[]): Parameters {
  const parameters = new Map<string, string>()
  const seen = new Set<string>()
  for (const [name, value] of pairs) {
    if (seen.has(name) && !SEVERAL.has(name)) failOAuth('invalid_request', `${shownParameter(name)} is repeated`)
    seen.add(name)
    if (typeof value !== 'string') {
      if (KNOWN.has(name)) failOAuth('invalid_request', `${name} must be a string`)
      continue
    }
    if (/[\0\uFFFD]|\p{Surrogate}/u.test(value)) {
      failOAuth('invalid_request', `${shownParameter(name)} contains invalid characters`)
    }
    if (value !== '') parameters.set(name, [parameters.get(name), value].filter(Boolean).join(' '))
  }
  return parameters
}

// A token exchange may name several targets. The service has a single one, so it refuses their joined text.
const SEVERAL = new Set(['audience', 'resource'])

const KNOWN = new Set([
  'grant_type', 'client_id', 'client_secret', 'code', 'code_verifier', 'redirect_uri', 'refresh_token', 'scope',
  'token', 'token_type_hint', 'assertion', 'subject_token', 'subject_token_type', 'actor_token', 'actor_token_type',
  'requested_token_type', 'audience', 'resource'
])

function membersOf (bytes: Buffer): [string, unknown][] {
  const value = readJsonBody(bytes, BOUNDS)
  return typeof value === 'object' && value !== null && !Array.isArray(value)
    ? Object.entries(value)
    : failOAuth('invalid_request', 'The body must be a JSON object')
}

/** A parameter that a request must have; throws an `OAuthError` without it. */
export const required = (parameters: Parameters, name: string): string =>
  parameters.get(name) ?? failOAuth('invalid_request', `${name} is missing`)
