import { CONSOLE_CLIENT, isPrivileged, PRIVILEGED_SECONDS } from '../../schemas/console.ts'
import { STATE_LENGTH, type OAuthErrorCode } from '../../schemas/oauth.ts'
import { SCOPE_NAMES, type Scope } from '../../schemas/scopes.ts'
import { didYouMean } from './formats/phrases.ts'
import { redirectMatches } from './redirects.ts'

// The authorization request (RFC 6749 4.1.1, RFC 7636 4.3, RFC 9700). `prompt` and `max_age` are from OpenID Connect
// Core, 3.1.2.1.

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
  freshness: Freshness
}

/** How recent the sign-in must be. */
export interface Freshness {
  /** Maximum seconds since the sign-in; undefined: no limit. */
  max_age: number | undefined
  /** `login`: the person signs in again in any case. `none`: no page is shown. */
  prompt: 'none' | 'login' | undefined
}

/** The redirect target of a response: a URI that the client has registered. */
export interface ReturnAddress { redirect_uri: string, state: string | undefined }

interface Problem {
  error: OAuthErrorCode
  /** A message that names the invalid parameter. Default: the description of the error code. */
  description?: string
}

export type Judged =
  | { request: AuthorizationRequest }
  | Problem & { to: ReturnAddress }
  /** The client or its redirect URI is invalid, so a redirect would be unsafe: show this message on a page. */
  | { page: string }

const CHALLENGE = /^[A-Za-z0-9_-]{43}$/

/** The first value of a parameter; undefined if there is none, or it is empty (RFC 6749, 3.1). */
export const single = (parameters: Parameters, name: string): string | undefined =>
  parameters.get(name)?.[0] || undefined

// The redirect returns the state unchanged, so the state must be valid UTF-8. Invalid bytes were decoded as U+FFFD.
const canReturn = (state = '') => Buffer.byteLength(state) <= STATE_LENGTH && !state.includes('\ufffd')

const isRepeated = (parameters: Parameters, name: string) => (parameters.get(name)?.length ?? 0) > 1

/** The `client_id` of a request; undefined if missing or repeated. `validateAuthorization` then returns the message. */
export const namedClient = (parameters: Parameters): string | undefined =>
  isRepeated(parameters, 'client_id') ? undefined : single(parameters, 'client_id')

/**
 * Validates a request. Checks the client and its redirect URI first: other errors are sent to that URI, and sending
 * them to a URI that is not registered would be an open redirect (RFC 9700, 4.11).
 */
export function validateAuthorization (parameters: Parameters, client: Client | undefined, issuer: string): Judged {
  if (client === undefined) return { page: clientProblem(parameters) }
  const redirect_uri = single(parameters, 'redirect_uri')
  if (redirect_uri === undefined || isRepeated(parameters, 'redirect_uri') ||
    !client.redirect_uris.some((registered) => redirectMatches(registered, redirect_uri, issuer))) {
    return { page: 'The application requested a redirect to an address (redirect_uri) that it has not registered.' }
  }
  const state = single(parameters, 'state')
  const to = { redirect_uri, state: isRepeated(parameters, 'state') || !canReturn(state) ? undefined : state }
  const problem = problemIn(parameters, client)
  if (problem !== undefined) return { ...problem, to }
  const code_challenge = single(parameters, 'code_challenge')!
  const freshness = freshnessOf(parameters)
  return {
    request: { client_id: client.id, redirect_uri, state, code_challenge, scopes: scopesOf(parameters), freshness }
  }
}

function scopesOf (parameters: Parameters): readonly Scope[] {
  const scope = single(parameters, 'scope') ?? '*'
  return scope === '*' ? SCOPE_NAMES : [...new Set(scope.split(' '))] as Scope[]
}

function freshnessOf (parameters: Parameters): Freshness {
  const max_age = single(parameters, 'max_age')
  const prompts = promptsOf(parameters)
  return {
    max_age: max_age === undefined ? undefined : Number(max_age),
    prompt: (['none', 'login'] as const).find((prompt) => prompts.includes(prompt))
  }
}

const promptsOf = (parameters: Parameters): string[] => (single(parameters, 'prompt') ?? '').split(' ')

/** Whether a sign-in of this age, in seconds, is recent enough for the request. */
export const isRecent = (age: number, { max_age = Infinity, prompt }: Freshness): boolean =>
  prompt !== 'login' && age <= max_age

// Maximum seconds from a new sign-in to the redirect with which the authorization request continues.
const GRACE_SECONDS = 60

/** The query with which a request continues after a new sign-in. Its `max_age` is at least a minute. */
export function continued (query: string, { max_age, prompt }: Freshness): string {
  if (max_age === undefined && prompt === undefined) return query
  const parameters = new URLSearchParams(query)
  parameters.delete('prompt')
  const wanted = prompt === 'login' ? undefined : max_age
  parameters.set('max_age', String(Math.max(wanted ?? GRACE_SECONDS, GRACE_SECONDS)))
  return parameters.toString()
}

function clientProblem (parameters: Parameters): string {
  if (isRepeated(parameters, 'client_id')) return 'The address has client_id more than once. The application must send it once.'
  return single(parameters, 'client_id') === undefined
    ? 'client_id is missing in the address. The application must send the id with which it is registered.'
    : 'No application is registered with this client_id, or it was disabled.'
}

// Returns the problem of the first failed check.
function problemIn (parameters: Parameters, { id }: Client): Problem | undefined {
  const of = (name: string) => single(parameters, name)
  const invalid = (description: string) => ({ error: 'invalid_request' as const, description })
  const repeated = [...parameters].find(([, values]) => values.length > 1)
  if (repeated !== undefined) return invalid(`${shownParameter(repeated[0])} is repeated`)
  if (!canReturn(of('state'))) return invalid(`state must be valid UTF-8 of at most ${STATE_LENGTH} bytes`)
  if (of('request') !== undefined) return { error: 'request_not_supported' }
  if (of('request_uri') !== undefined) return { error: 'request_uri_not_supported' }
  if (of('response_type') === undefined) return invalid('response_type is missing')
  if (of('response_type') !== 'code') return { error: 'unsupported_response_type' }
  if ((of('response_mode') ?? 'query') !== 'query') return invalid('response_mode must be query')
  if (of('code_challenge') === undefined) return invalid('code_challenge is missing')
  if (of('code_challenge_method') !== 'S256') return invalid('code_challenge_method must be S256')
  if (!CHALLENGE.test(of('code_challenge')!)) {
    return invalid('code_challenge must have 43 characters: base64url of the SHA-256 of the code_verifier')
  }
  const unknown = unknownScope(of('scope') ?? '*')
  if (unknown !== undefined) {
    return {
      error: 'invalid_scope',
      description: `${shownScope(unknown)} is not a scope${didYouMean(SCOPE_NAMES, unknown)}: ` +
        'scopes_supported in /.well-known/oauth-authorization-server lists all scopes'
    }
  }
  const prompts = promptsOf(parameters)
  if (prompts.includes('none') && prompts.length > 1) return invalid('prompt=none must not have other values')
  if (!/^\d{0,9}$/.test(of('max_age') ?? '')) return invalid('max_age must be a whole number of seconds')
  if (id === CONSOLE_CLIENT) return problemOfConsole(parameters)
  // Clients other than the console always need consent, and consent needs a page (RFC 8252, 8.6).
  return prompts.includes('none') ? { error: 'consent_required' } : undefined
}

// The console must request privileged scopes together with a recent sign-in. The service checks this, so that a faulty
// console cannot omit it.
function problemOfConsole (parameters: Parameters): Problem | undefined {
  const { max_age = Infinity, prompt } = freshnessOf(parameters)
  const privileged = scopesOf(parameters).find(isPrivileged)
  return privileged === undefined || max_age <= PRIVILEGED_SECONDS || prompt === 'login'
    ? undefined
    : { error: 'invalid_request', description: `max_age must be at most ${PRIVILEGED_SECONDS} for ${privileged}` }
}

/** The name of a parameter for an error message, unless it could be a misplaced secret. */
export const shownParameter = (name: string): string => /^[a-z_]{1,32}$/.test(name) ? name : 'A parameter'

// The name of a scope for an error message, unless it could be a misplaced secret. RFC 6749 allows these characters.
const shownScope = (scope: string): string =>
  scope.length <= 40 && /^[a-z-]+(?::[a-z-]+)?$/.test(scope) ? scope : 'A part of scope'

const unknownScope = (scope: string): string | undefined => scope === '*'
  ? undefined
  : scope.split(' ').find((one) => !(SCOPE_NAMES as readonly string[]).includes(one))

/** The redirect URI with the response parameters; `iss` is in every response (RFC 9207). */
export function returnUrl (
  { redirect_uri, state }: ReturnAddress, issuer: string, answer: Record<string, string>
): string {
  const query = Object.entries({ ...answer, ...(state !== undefined && { state }), iss: issuer })
    .map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join('&')
  return `${redirect_uri}${redirect_uri.includes('?') ? '&' : '?'}${query}`
}
