import { signal } from '@preact/signals'
import { CONSOLE_CLIENT, DAILY_SCOPES, PRIVILEGED_SECONDS, SESSION_IDLE_HOURS } from '../schemas/console.ts'

// Sign-in: OAuth 2.0 authorization code with PKCE. Tokens, codes and verifiers are in memory only. While the session of
// the browser lasts, a token needs no page (`prompt=none`); else a person signs in, and the request is made again.

/** The address of the service, with a slash at its end. This module is served as `console/main-….js`. */
export const BASE = new URL('..', import.meta.url)
export const HOME = `${BASE.pathname}console`
const REDIRECT = new URL('console/', BASE).href
const CHANNEL = 'strongroom-console-sign-in'
const WINDOW = 'window:'

interface Token { access: string, scopes: readonly string[], since: number, until: number }
let daily: Token | undefined
let short: Token | undefined

/** The seconds until the next attempt after a 429; 0: no request waits. */
export const waiting = signal(0)
const MAX_ATTEMPTS = 5
const MAX_WAIT_SECONDS = 90
const MAX_REQUEST_MS = 5 * 60 * 1000

export const unreachable = (): never => { throw new Error('The service cannot be reached. Check the connection and try again.') }

/** Fetches. After a 429, waits as long as the service asks for, and says so. */
export async function patientFetch (url: string | URL, init: RequestInit): Promise<Response> {
  for (let attempt = 1; ; attempt++) {
    const response = await fetch(url, { ...init, signal: AbortSignal.timeout(MAX_REQUEST_MS) }).catch(unreachable)
    const seconds = Number(response.headers.get('retry-after') ?? 1)
    if (response.status !== 429 || attempt === MAX_ATTEMPTS || seconds > MAX_WAIT_SECONDS) return response
    for (let left = Math.max(1, Math.ceil(seconds)); left > 0; left--) {
      waiting.value = left
      await new Promise((resolve) => { setTimeout(resolve, 1000) })
    }
    waiting.value = 0
  }
}

/** The question to sign in again, as long as a request waits for the person. */
export const signInQuestion = signal<{ isDangerous: boolean, open: () => void, cancel: () => void } | null>(null)

const base64url = (bytes: Uint8Array) =>
  btoa(String.fromCharCode(...bytes)).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '')
const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)))

async function authorizationUrl (
  verifier: string, state: string, scopes: readonly string[], more: Record<string, string>
): Promise<URL> {
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier))
  const url = new URL('oauth/authorize', BASE)
  url.search = String(new URLSearchParams({
    response_type: 'code',
    client_id: CONSOLE_CLIENT,
    redirect_uri: REDIRECT,
    scope: scopes.join(' '),
    state,
    code_challenge: base64url(new Uint8Array(digest)),
    code_challenge_method: 'S256',
    ...more
  }))
  return url
}

/** A token through the session of the browser; undefined if a person has to sign in first. */
async function silentToken (scopes: readonly string[], more: Record<string, string> = {}): Promise<Token | undefined> {
  const [verifier, state] = [random(), random()]
  const url = await authorizationUrl(verifier, state, scopes, { ...more, prompt: 'none' })
  const response = await patientFetch(url, { headers: { accept: 'text/html' }, cache: 'no-store' })
  const answer = new URL(response.url)
  if (answer.origin + answer.pathname !== REDIRECT) throw new Error(`The sign-in failed with status ${response.status}. Try again.`)
  const { searchParams } = answer
  if (searchParams.get('state') !== state) throw new Error('The answer to the sign-in belongs to another request.')
  if (searchParams.get('error') === 'login_required') return undefined
  const code = searchParams.get('code')
  if (code === null) throw new Error(refusalIn(searchParams))
  const exchanged = await patientFetch(new URL('api/oauth/token', BASE), {
    method: 'POST',
    body: new URLSearchParams({
      grant_type: 'authorization_code', client_id: CONSOLE_CLIENT, code, code_verifier: verifier, redirect_uri: REDIRECT
    }),
    redirect: 'error',
    credentials: 'omit'
  })
  const body = await exchanged.json() as Record<string, string>
  if (!exchanged.ok) throw new Error(body.error_description ?? body.message)
  const since = Date.now()
  return { access: body.access_token!, scopes: (body.scope ?? '').split(' '), since, until: since + (Number(body.expires_in) - 5) * 1000 }
}

let signOuts: BroadcastChannel | undefined

/**
 * Signs in through the session. Without one, the browser leaves the page. `signed in`: in a window beside the page.
 * `signed out`: after a sign-out on the account page, of which this page tells the open tabs.
 */
export async function start (): Promise<'ready' | 'leaving' | 'signed in' | 'signed out'> {
  if (!isSecureContext) throw new Error('The console needs https, or http on localhost: browsers encrypt on such pages only.')
  const { searchParams } = new URL(location.href)
  const state = searchParams.get('state') ?? ''
  if (searchParams.has('code') || searchParams.has('error')) {
    // The code is useless, because its verifier is gone: nobody shall see it in the address or in the history.
    history.replaceState(null, '', ownPath(state))
    if (state.startsWith(WINDOW)) {
      new BroadcastChannel(CHANNEL).postMessage(state)
      window.close()
      return 'signed in'
    }
    if (searchParams.has('error')) throw new Error(refusalIn(searchParams))
  }
  // After a sign-out, or when another person signs in, this tab loses values, keys and tokens: it is told, or looks.
  signOuts = new BroadcastChannel('strongroom-console-sign-out')
  signOuts.onmessage = ({ data }) => { if (user !== undefined && data !== user) location.reload() }
  window.addEventListener('pageshow', ({ persisted }) => { if (persisted) location.reload() })
  for (const event of ['visibilitychange', 'focus']) window.addEventListener(event, () => { look().catch(() => {}) })
  daily = await silentToken(DAILY_SCOPES)
  if (daily !== undefined) return 'ready'
  if (searchParams.has('signed-out')) {
    signOuts.postMessage('signed out')
    return 'signed out'
  }
  location.replace(await authorizationUrl(random(), location.pathname, DAILY_SCOPES, {}))
  return 'leaving'
}

/** The sentence for an error in an address. A link of another site can have any text in the address. */
const refusalIn = (answer: URLSearchParams): string => answer.get('error') === 'temporarily_unavailable'
  ? 'The service cannot sign you in now. Try again later.'
  : 'The sign-in was not allowed. Load the page again.'

/** A path of this application: no answer of a sign-in leads elsewhere. */
function ownPath (path: string): string {
  const url = path.startsWith(`${HOME}/`) && URL.canParse(path, BASE) ? new URL(path, BASE) : BASE
  return url.origin === BASE.origin && url.pathname.startsWith(`${HOME}/`) ? url.pathname : HOME
}

/** Asks the person to sign in, in a window beside this page, so that the page keeps its state. */
async function signInBeside (scopes: readonly string[], more: Record<string, string>) {
  const state = WINDOW + random()
  const url = await authorizationUrl(random(), state, scopes, more)
  const channel = new BroadcastChannel(CHANNEL)
  try {
    await new Promise<void>((resolve, reject) => {
      channel.onmessage = ({ data }: MessageEvent<string>) => { if (data === state) resolve() }
      signInQuestion.value = {
        isDangerous: 'max_age' in more,
        open: () => { window.open(url, '_blank', 'popup,width=520,height=720') },
        cancel: () => reject(new Error('You did not sign in again, so nothing was done.'))
      }
    })
  } finally {
    signInQuestion.value = null
    channel.close()
  }
}

async function tokenFor (scopes: readonly string[], more: Record<string, string> = {}): Promise<Token> {
  const found = await silentToken(scopes, more) ??
    await signInBeside(scopes, more).then(() => silentToken(scopes, more))
  if (found === undefined) throw new Error('The sign-in was not complete. Try again.')
  if (await userOf(found) === user) return found
  location.reload()
  throw new Error('Another person has signed in with this browser.')
}

/** The id of the person for whom this page acts. */
let user: string | undefined
/** The id of the person of a token; undefined if the token has ended. */
async function userOf ({ access }: Token): Promise<string | undefined> {
  const response = await patientFetch(new URL('api/v1/user', BASE), { headers: { authorization: `Bearer ${access}` } })
  return response.status === 401 ? undefined : ((await response.json()) as { data: { id: string } }).data.id
}

/** Loads the page again if another person has signed in, or the session ended before its 12 hours without use. */
async function look () {
  if (document.hidden || user === undefined || daily === undefined || await userOf(daily) === user) return
  const found = await silentToken(DAILY_SCOPES)
  const idleUntil = daily.since + SESSION_IDLE_HOURS * 60 * 60 * 1000
  if (found === undefined ? Date.now() < idleUntil : await userOf(found) !== user) location.reload()
  else daily = found ?? daily
}

export function actFor (id: string) {
  user = id
  signOuts?.postMessage(id)
}

let renewal: Promise<Token> | undefined
/** The access token. `isRejected`: the service has refused the present one. */
export async function accessToken (isRejected = false): Promise<string> {
  if (isRejected || daily === undefined || daily.until < Date.now()) {
    renewal ??= tokenFor(DAILY_SCOPES).finally(() => { renewal = undefined })
    daily = await renewal
  }
  return daily.access
}

/**
 * A token for a dangerous action: it has more scopes, and ends after five minutes. The person signs in again if the
 * last sign-in is older than that. `isRejected`: the service has refused the present one.
 */
export async function shortToken (scopes: readonly string[], isRejected = false): Promise<string> {
  if (isRejected) short = undefined
  const held = short !== undefined && short.until > Date.now() ? short.scopes : []
  if (!scopes.every((scope) => held.includes(scope))) {
    const token = await tokenFor([...new Set([...DAILY_SCOPES, ...scopes])], { max_age: String(PRIVILEGED_SECONDS) })
    short = { ...token, until: Math.min(token.until, Date.now() + PRIVILEGED_SECONDS * 1000) }
  }
  return short!.access
}

/** Revokes the tokens, ends the session of the browser and forgets the tokens of this page. */
export async function signOut () {
  const token = await accessToken()
  const response = await fetch(new URL('oauth/sign-out', BASE), { method: 'POST', body: new URLSearchParams({ token }) })
  if (!response.ok) throw new Error(`Signing out failed with status ${response.status}. Try again.`)
  daily = short = undefined
  signOuts?.postMessage('signed out')
}
