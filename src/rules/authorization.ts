import { STATE_LENGTH, type OAuthErrorCode } from '../../schemas/oauth.ts'
import { SCOPE_NAMES, type Scope } from '../../schemas/scopes.ts'
import { redirectMatches } from './redirects.ts'

// The authorization request (RFC 6749 4.1.1, RFC 7636 4.3, RFC 9700) as a list of named checks.

/** Query parameters: every value that was sent of each. */
export type Parameters = ReadonlyMap<string, readonly string[]>

/** A client as far as a request is judged by it. */
export interface KnownClient { id: string, redirect_uris: readonly string[] }

export interface AuthorizationRequest {
  client_id: string
  redirect_uri: string
  state: string | undefined
  code_challenge: string
  /** The requested scopes; without a `scope` parameter, all scopes. */
  scopes: readonly Scope[]
}

/** Where an error may be sent: only to an address that the client has registered. */
export interface ReturnAddress { redirect_uri: string, state: string | undefined }

export type Judged =
  | { request: AuthorizationRequest }
  | { error: OAuthErrorCode, to: ReturnAddress }
  /** No redirect is safe, because the client or its redirect URI is invalid: show this message on a page. */
  | { page: string }

const CHALLENGE = /^[A-Za-z0-9_-]{43}$/
const SCOPE_SYNTAX = /^[\x21\x23-\x5b\x5d-\x7e]+(?: [\x21\x23-\x5b\x5d-\x7e]+)*$/

/** The single value of a parameter; undefined without one, or with an empty one (RFC 6749, 3.1). */
export const single = (parameters: Parameters, name: string): string | undefined =>
  parameters.get(name)?.[0] || undefined

// The state must be returned unchanged. U+FFFD shows that it was not valid UTF-8, so it cannot be.
const canReturn = (state = '') => Buffer.byteLength(state) <= STATE_LENGTH && !state.includes('\ufffd')

const isRepeated = (parameters: Parameters, name: string) => (parameters.get(name)?.length ?? 0) > 1

/** The client that a request names, so that it can be looked up; undefined when it names none or several. */
export function namedClient (parameters: Parameters): string | undefined {
  return isRepeated(parameters, 'client_id') ? undefined : single(parameters, 'client_id')
}

/** Validates a request: the client and its redirect URI first, so that there is no open redirect (RFC 9700, 4.11). */
export function judgeAuthorization (parameters: Parameters, client: KnownClient | undefined, issuer: string): Judged {
  if (client === undefined) return { page: 'This application is unknown. Check its client_id.' }
  const redirect_uri = single(parameters, 'redirect_uri')
  if (redirect_uri === undefined || isRepeated(parameters, 'redirect_uri') ||
    !client.redirect_uris.some((registered) => redirectMatches(registered, redirect_uri, issuer))) {
    return { page: 'The application requested a redirect to an address that it has not registered.' }
  }
  const state = single(parameters, 'state')
  const to = { redirect_uri, state: isRepeated(parameters, 'state') || !canReturn(state) ? undefined : state }
  for (const check of CHECKS) {
    const error = check(parameters)
    if (error !== undefined) return { error, to }
  }
  const scope = single(parameters, 'scope')
  const scopes = scope === undefined || scope === '*' ? SCOPE_NAMES : [...new Set(scope.split(' '))] as Scope[]
  return {
    request: {
      client_id: client.id, redirect_uri, state, code_challenge: single(parameters, 'code_challenge')!, scopes
    }
  }
}

type Check = (parameters: Parameters) => OAuthErrorCode | undefined

const nothingIsRepeated: Check = (parameters) =>
  [...parameters.values()].some((values) => values.length > 1) ? 'invalid_request' : undefined
const stateCanReturn: Check = (parameters) => canReturn(single(parameters, 'state')) ? undefined : 'invalid_request'
const noRequestObject: Check = (parameters) =>
  single(parameters, 'request') !== undefined
    ? 'request_not_supported'
    : single(parameters, 'request_uri') !== undefined ? 'request_uri_not_supported' : undefined
const responseTypeIsCode: Check = (parameters) => {
  const type = single(parameters, 'response_type')
  return type === undefined ? 'invalid_request' : type === 'code' ? undefined : 'unsupported_response_type'
}
const responseModeIsQuery: Check = (parameters) =>
  (single(parameters, 'response_mode') ?? 'query') === 'query' ? undefined : 'invalid_request'
const challengeIsS256: Check = (parameters) =>
  single(parameters, 'code_challenge_method') === 'S256' && CHALLENGE.test(single(parameters, 'code_challenge') ?? '')
    ? undefined
    : 'invalid_request'
const scopesAreKnown: Check = (parameters) => {
  const scope = single(parameters, 'scope')
  if (scope === undefined || scope === '*') return undefined
  return SCOPE_SYNTAX.test(scope) && scope.split(' ').every((one) => (SCOPE_NAMES as readonly string[]).includes(one))
    ? undefined
    : 'invalid_scope'
}
/** Consent always needs a page (RFC 8252, 8.6). */
const someoneMayBeAsked: Check = (parameters) =>
  single(parameters, 'prompt')?.split(' ').includes('none') ? 'consent_required' : undefined

const CHECKS: readonly Check[] = [
  nothingIsRepeated, stateCanReturn, noRequestObject, responseTypeIsCode, responseModeIsQuery, challengeIsS256,
  scopesAreKnown, someoneMayBeAsked
]

/** The redirect URI with the response parameters; `iss` is in every response (RFC 9207). */
export function returnUrl (
  { redirect_uri, state }: ReturnAddress, issuer: string, answer: Record<string, string>
): string {
  const query = Object.entries({ ...answer, ...(state !== undefined && { state }), iss: issuer })
    .map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join('&')
  return `${redirect_uri}${redirect_uri.includes('?') ? '&' : '?'}${query}`
}
