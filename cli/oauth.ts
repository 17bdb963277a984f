import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import * as oauth from 'oauth4webapi'
import { Away, awayOf, Ended, Failure } from './failure.ts'
import { CLIENT_ID, type Login } from './logins.ts'
import { plain, tell } from './output.ts'

// OAuth 2.0 authorization code with PKCE on a loopback port (RFC 7636, RFC 8252; docs/oauth.md).

/** What a login may do, unless `--scope` says less. */
export const LOGIN_SCOPES =
  'secret:read secret:decrypt secret:write secret:history project:read target:read environment:read organization:read'

const client: oauth.Client = { client_id: CLIENT_ID }
const LOGIN_MS = 5 * 60 * 1000
const REQUEST_MS = 30_000

/** Every request is bounded and follows no redirect, so a credential goes to no other address. */
const http = (signal: AbortSignal) => ({
  [oauth.allowInsecureRequests]: true,
  [oauth.customFetch]: (url: string, init: object) => fetch(url, { ...init, redirect: 'error' }),
  signal: () => signal
})

/** The endpoints of a service of this project, which its metadata name as well. */
const serverAt = (url: string): oauth.AuthorizationServer => ({
  issuer: url, token_endpoint: `${url}/api/oauth/token`, revocation_endpoint: `${url}/api/oauth/revoke`
})

export interface Tokens { access_token: string, refresh_token: string, expires_at: number, scope: string }

function tokensOf (response: oauth.TokenEndpointResponse, scope: string): Tokens {
  const { access_token, refresh_token, expires_in = 0 } = response
  if (refresh_token === undefined) throw new Failure('The service gave no refresh token.')
  return { access_token, refresh_token, expires_at: Date.now() + expires_in * 1000, scope: response.scope ?? scope }
}

/** Renews the tokens of a login. Throws `Away` if the service does not answer. */
export async function refresh (login: Login, signal: AbortSignal): Promise<Login> {
  const server = serverAt(login.url)
  let response: Response
  try {
    response = await oauth.refreshTokenGrantRequest(server, client, oauth.None(), login.refresh_token, http(signal))
  } catch (error) { throw awayOf(login.url, error) }
  if (response.status >= 500 || response.status === 429 || response.headers.get('x-api-version') === null) {
    throw new Away(`${login.url} did not renew the login: status ${response.status}.`)
  }
  try {
    return { ...login, ...tokensOf(await oauth.processRefreshTokenResponse(server, client, response), login.scope) }
  } catch (error) {
    if (!(error instanceof oauth.ResponseBodyError)) throw awayOf(login.url, error)
    throw new Ended(`The login for ${login.url} has ended. Run \`strongroom login ${login.url}\`.`)
  }
}

const EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange'
const JWT = 'urn:ietf:params:oauth:token-type:jwt'

/**
 * Exchanges the token of a platform for an access token (RFC 8693). Returns the response if it is a 429. Throws `Away`
 * if the service does not answer, and a `Failure` if it refuses.
 */
export async function exchange (
  url: string, client_id: string, subject_token: string, signal: AbortSignal
): Promise<string | Response> {
  const server = serverAt(url)
  let response: Response
  try {
    response = await oauth.genericTokenEndpointRequest(
      server, { client_id }, oauth.None(), EXCHANGE, { subject_token, subject_token_type: JWT }, http(signal)
    )
  } catch (error) { throw awayOf(url, error) }
  if (response.status >= 500 || response.headers.get('x-api-version') === null) {
    throw new Away(`${url} did not exchange the token of the platform: status ${response.status}.`)
  }
  if (response.status === 429) return response
  try {
    return (await oauth.processGenericTokenEndpointResponse(server, { client_id }, response)).access_token
  } catch (error) {
    if (!(error instanceof oauth.ResponseBodyError)) throw awayOf(url, error)
    throw new Failure(`${url} refused the token of the platform: ${plain(error.error_description ?? error.error)}. The audit of the organization has the check that failed.`)
  }
}

/** Ends a login at the service. Throws `Away` if the service does not answer. */
export async function revoke (login: Login): Promise<void> {
  const signal = AbortSignal.timeout(REQUEST_MS)
  try {
    const response = await oauth.revocationRequest(
      serverAt(login.url), client, oauth.None(), login.refresh_token, http(signal)
    )
    if (response.headers.get('x-api-version') === null) throw new Away(`${login.url} answered with a page that is not the service's.`)
    await oauth.processRevocationResponse(response)
  } catch (error) { throw awayOf(login.url, error) }
}

/** Signs a person in, in the browser, and returns the tokens. */
export async function signIn (url: string, scope: string, opensBrowser: boolean): Promise<Tokens> {
  const options = http(AbortSignal.timeout(REQUEST_MS))
  const issuer = new URL(url)
  let server: oauth.AuthorizationServer
  try {
    const response = await oauth.discoveryRequest(issuer, { algorithm: 'oauth2', ...options })
    server = await oauth.processDiscoveryResponse(issuer, response)
  } catch (error) {
    const named = (error as { cause?: { body?: { issuer?: unknown } } }).cause?.body?.issuer
    if (typeof named === 'string') throw new Failure(`The service at ${url} calls itself ${plain(named)}. Run \`strongroom login ${plain(named)}\`.`)
    throw new Failure(`${url} is not the address of a Strongroom that answers: ${(error as Error).message}`)
  }
  // The tokens go only to the service itself, and the browser opens no other kind of address.
  const { authorization_endpoint: page = '' } = server
  if (!URL.canParse(page) || !new URL(page).href.startsWith(`${url}/`)) {
    throw new Failure(`The service at ${url} names another place for the sign-in, which is not opened.`)
  }
  server = { ...server, ...serverAt(url) }
  const listener = createServer().listen(0, '127.0.0.1')
  await once(listener, 'listening')
  const redirect_uri = `http://127.0.0.1:${(listener.address() as AddressInfo).port}/callback`
  const verifier = oauth.generateRandomCodeVerifier()
  const state = oauth.generateRandomState()
  const address = new URL(page)
  address.search = String(new URLSearchParams({
    response_type: 'code',
    client_id: CLIENT_ID,
    redirect_uri,
    scope,
    state,
    code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256'
  }))
  tell(`${opensBrowser ? 'Sign in in your browser, or open this address' : 'Open this address in a browser'}: ${address.href}`)
  if (opensBrowser) openBrowser(address.href)
  else if (process.stdin.isTTY) tell('If the browser is on another machine, paste the address to which it returns here.')
  const returned = await callback(listener, state, !opensBrowser)
  let parameters: URLSearchParams
  try {
    parameters = oauth.validateAuthResponse(server, client, returned, state)
  } catch (error) {
    if (error instanceof oauth.AuthorizationResponseError) {
      throw new Failure(`The sign-in was not allowed: ${plain(error.error)}.`)
    }
    throw new Failure('The address belongs to another sign-in. Run `strongroom login` again.')
  }
  try {
    const response = await oauth.authorizationCodeGrantRequest(
      server, client, oauth.None(), parameters, redirect_uri, verifier, http(AbortSignal.timeout(REQUEST_MS))
    )
    return tokensOf(await oauth.processAuthorizationCodeResponse(server, client, response), scope)
  } catch (error) {
    if (error instanceof oauth.ResponseBodyError) {
      throw new Failure(`The sign-in failed: ${plain(error.error_description ?? error.error)}`)
    }
    throw awayOf(url, error)
  }
}

/**
 * Waits for the address to which the browser returns: on the port, or pasted on standard input. A request of another
 * page or program, which does not know the state, does not end the wait.
 */
async function callback (listener: Server, state: string, readsInput: boolean): Promise<URL> {
  let stop = () => {}
  try {
    return await new Promise<URL>((resolve, reject) => {
      const timer = setTimeout(() => reject(new Failure('The browser did not return within five minutes. Run `strongroom login` again.')), LOGIN_MS)
      listener.on('request', ({ method, url = '' }, response) => {
        response.setHeader('connection', 'close').setHeader('referrer-policy', 'no-referrer').setHeader('cache-control', 'no-store')
        const returned = new URL(url.startsWith('/') ? `http://127.0.0.1${url}` : 'http://127.0.0.1')
        if (method !== 'GET' || returned.pathname !== '/callback' || returned.searchParams.get('state') !== state) {
          return response.writeHead(404).end()
        }
        response.on('close', () => resolve(returned))
        return response.end('Close this page and go back to the terminal.\n')
      })
      let text = ''
      const read = (part: Buffer) => {
        const lines = (text + part.toString()).split('\n')
        text = lines.pop()!.slice(-8192)
        for (const pasted of lines.map((line) => line.trim()).filter((line) => line !== '')) {
          if (URL.canParse(pasted) && new URL(pasted).pathname === '/callback') return resolve(new URL(pasted))
          tell('This is not the address to which the browser returns: it has /callback and a code.')
        }
      }
      if (readsInput) process.stdin.on('data', read)
      stop = () => {
        clearTimeout(timer)
        process.stdin.off('data', read).pause()
      }
    })
  } finally {
    stop()
    listener.close().closeAllConnections()
  }
}

/** Opens an address in the browser of the system. Does nothing if there is none: the address was printed. */
export function openBrowser (address: string): void {
  const program = process.env.BROWSER || (process.platform === 'darwin' ? 'open' : 'xdg-open')
  spawn(program, [address], { detached: true, stdio: 'ignore' }).on('error', () => {}).unref()
}
