import { STATE_LENGTH, type OAuthErrorCode } from '../../schemas/oauth.ts'
import { SCOPE_NAMES, type Scope } from '../../schemas/scopes.ts'
import { redirectMatches } from './redirects.ts'

// The authorization request (RFC 6749 4.1.1, RFC 7636 4.3, RFC 9700).

/** Query parameters by name, each with all values that were sent. */
export type Parameters = ReadonlyMap<string, readonly string[]>

interface Client { id: string, redirect_uris: readonly string[] }

interface AuthorizationRequest {
  client_id: string
  redirect_uri: string
  state: string | undefined
  code_challenge: string
  /** The requested scopes; without a `scope` parameter, all scopes. */
  scopes: readonly Scope[]
}

/** The redirect target of a response: a URI that the client has registered. */
export interface ReturnAddress { redirect_uri: string, state: string | undefined }

export type Judged =
  | { request: AuthorizationRequest }
  | { error: OAuthErrorCode, to: ReturnAddress }
  /** The client or its redirect URI is invalid, so a redirect would be unsafe: show this message on a page. */
  | { page: string }

const CHALLENGE = /^[A-Za-z0-9_-]{43}$/
const SCOPE_SYNTAX = /^[\x21\x23-\x5b\x5d-\x7e]+(?: [\x21\x23-\x5b\x5d-\x7e]+)*$/

/** The first value of a parameter; undefined if there is none, or it is empty (RFC 6749, 3.1). */
export const single = (parameters: Parameters, name: string): string | undefined =>
  parameters.get(name)?.[0] || undefined

// The state is returned unchanged, so it must be valid UTF-8. U+FFFD stands for invalid bytes.
const canReturn = (state = '') => Buffer.byteLength(state) <= STATE_LENGTH && !state.includes('\ufffd')

const isRepeated = (parameters: Parameters, name: string) => (parameters.get(name)?.length ?? 0) > 1

/** The `client_id` of a request; undefined if it is missing or repeated. */
export const namedClient = (parameters: Parameters): string | undefined =>
  isRepeated(parameters, 'client_id') ? undefined : single(parameters, 'client_id')

/** Validates a request: the client and its redirect URI first, so that there is no open redirect (RFC 9700, 4.11). */
export function judgeAuthorization (parameters: Parameters, client: Client | undefined, issuer: string): Judged {
  if (client === undefined) return { page: 'There is no application with this client_id.' }
  const redirect_uri = single(parameters, 'redirect_uri')
  if (redirect_uri === undefined || isRepeated(parameters, 'redirect_uri') ||
    !client.redirect_uris.some((registered) => redirectMatches(registered, redirect_uri, issuer))) {
    return { page: 'The application requested a redirect to an address that it has not registered.' }
  }
  const state = single(parameters, 'state')
  const to = { redirect_uri, state: isRepeated(parameters, 'state') || !canReturn(state) ? undefined : state }
  const error = errorIn(parameters)
  if (error !== undefined) return { error, to }
  const scope = single(parameters, 'scope') ?? '*'
  const scopes = scope === '*' ? SCOPE_NAMES : [...new Set(scope.split(' '))] as Scope[]
  const code_challenge = single(parameters, 'code_challenge')!
  return { request: { client_id: client.id, redirect_uri, state, code_challenge, scopes } }
}

// The error of the first failed check.
function errorIn (parameters: Parameters): OAuthErrorCode | undefined {
  const of = (name: string) => single(parameters, name)
  if ([...parameters.values()].some((values) => values.length > 1)) return 'invalid_request'
  if (!canReturn(of('state'))) return 'invalid_request'
  if (of('request') !== undefined) return 'request_not_supported'
  if (of('request_uri') !== undefined) return 'request_uri_not_supported'
  if (of('response_type') === undefined) return 'invalid_request'
  if (of('response_type') !== 'code') return 'unsupported_response_type'
  if ((of('response_mode') ?? 'query') !== 'query') return 'invalid_request'
  if (of('code_challenge_method') !== 'S256' || !CHALLENGE.test(of('code_challenge') ?? '')) return 'invalid_request'
  if (!areKnown(of('scope') ?? '*')) return 'invalid_scope'
  // Consent always needs a page (RFC 8252, 8.6).
  if (of('prompt')?.split(' ').includes('none')) return 'consent_required'
  return undefined
}

const areKnown = (scope: string) => scope === '*' ||
  (SCOPE_SYNTAX.test(scope) && scope.split(' ').every((one) => (SCOPE_NAMES as readonly string[]).includes(one)))

/** The redirect URI with the response parameters; `iss` is in every response (RFC 9207). */
export function returnUrl (
  { redirect_uri, state }: ReturnAddress, issuer: string, answer: Record<string, string>
): string {
  const query = Object.entries({ ...answer, ...(state !== undefined && { state }), iss: issuer })
    .map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join('&')
  return `${redirect_uri}${redirect_uri.includes('?') ? '&' : '?'}${query}`
}
