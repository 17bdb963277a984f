// Prints who is signed in; first signs a person in with their browser if necessary. Prints no token: tokens are in a
// file that only its owner can read.
//   login             signs in if necessary
//   login --logout    revokes the tokens and removes the file
// Environment: STRONGROOM_URL; STRONGROOM_CLIENT (dotenv-cli), STRONGROOM_LOGIN (the file: ~/.strongroom-login.json)
// and STRONGROOM_WAIT (seconds to wait for the browser: 300) have these defaults.
import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { once } from 'node:events'
import { homedir } from 'node:os'
import { join } from 'node:path'
import * as oauth from 'oauth4webapi'

const {
  STRONGROOM_URL: url = '', STRONGROOM_CLIENT: client_id = 'dotenv-cli', STRONGROOM_WAIT: wait = '300'
} = process.env
const file = process.env.STRONGROOM_LOGIN ?? join(homedir(), '.strongroom-login.json')
const client: oauth.Client = { client_id }
const http = { [oauth.allowInsecureRequests]: isLoopback(url), signal: () => AbortSignal.timeout(30_000) }

interface Login { issuer: string, client_id: string, access_token: string, refresh_token: string }

async function main () {
  lock()
  const issuer = new URL(url)
  const server = await oauth.processDiscoveryResponse(
    issuer, await oauth.discoveryRequest(issuer, { algorithm: 'oauth2', ...http })
  )
  const held = read()
  // Tokens go to the service that issued them, and to no other.
  if (held && (held.issuer !== server.issuer || held.client_id !== client_id)) {
    throw new Error(`${file} is of ${held.client_id} at ${held.issuer}`)
  }

  if (process.argv[2] === '--logout') {
    if (held) {
      await oauth.processRevocationResponse(await oauth.revocationRequest(
        server, client, oauth.None(), held.refresh_token, http
      ))
    }
    rmSync(file, { force: true })
    return console.log('Nobody is signed in')
  }
  const user = (held && await whoIs(server, held)) ?? await whoIs(server, await signIn(server))
  if (user === undefined) throw new Error('the new tokens are not accepted')
  console.log(`Signed in as ${user.data.attributes.name} <${user.data.attributes.email}>`)
  for (const { attributes: { name, role } } of user.included) console.log(`  ${name}: ${role}`)
}

/** GET /api/v1/user, with new tokens if the old ones are not valid; undefined when a sign-in is necessary. */
async function whoIs (server: oauth.AuthorizationServer, login: Login): Promise<any> {
  let response = await call('user', login)
  if (response.status === 401) {
    const fresh = await refresh(server, login)
    if (fresh === undefined) return undefined
    response = await call('user', fresh)
  }
  const answer: any = await response.json()
  if (!response.ok) throw new Error(`${response.status} ${answer.error}: ${answer.message}`)
  return answer
}

async function call (path: string, { issuer, access_token }: Login): Promise<Response> {
  return fetch(
    `${issuer}/api/v1/${path}`,
    { headers: { authorization: `Bearer ${access_token}` }, redirect: 'error', signal: http.signal() }
  )
}

async function refresh (server: oauth.AuthorizationServer, login: Login): Promise<Login | undefined> {
  const response = await oauth.refreshTokenGrantRequest(server, client, oauth.None(), login.refresh_token, http)
  try {
    return write(server, await oauth.processRefreshTokenResponse(server, client, response))
  } catch (error) {
    // Expired or revoked. Other errors may be temporary, so the tokens are kept.
    if (error instanceof oauth.ResponseBodyError && error.error === 'invalid_grant') return undefined
    throw error
  }
}

async function signIn (server: oauth.AuthorizationServer): Promise<Login> {
  const listener = createServer().listen(0, '127.0.0.1')
  await once(listener, 'listening')
  const redirect_uri = `http://127.0.0.1:${(listener.address() as AddressInfo).port}/callback`
  const verifier = oauth.generateRandomCodeVerifier()
  const state = oauth.generateRandomState()
  const address = new URL(server.authorization_endpoint!)
  address.search = String(new URLSearchParams({
    response_type: 'code',
    client_id,
    redirect_uri,
    state,
    code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256'
  }))
  console.log(`Open this address in your browser:\n${address}`)
  // Checks state and iss before it reads anything else, an error included.
  const answer = oauth.validateAuthResponse(server, client, await callback(listener), state)
  const response = await oauth.authorizationCodeGrantRequest(
    server, client, oauth.None(), answer, redirect_uri, verifier, http
  )
  return write(server, await oauth.processAuthorizationCodeResponse(server, client, response))
}

/** The address to which the browser returns. */
async function callback (listener: Server): Promise<URL> {
  try {
    return await new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error(`nobody came back within ${wait} seconds`)), Number(wait) * 1000).unref()
      listener.on('request', ({ method, url = '' }, response) => {
        response.setHeader('connection', 'close').setHeader('referrer-policy', 'no-referrer')
        if (method !== 'GET' || !url.startsWith('/callback?')) return response.writeHead(404).end()
        response.on('close', () => resolve(new URL(`http://127.0.0.1${url}`)))
        return response.end('Close this page and go back to the terminal.')
      })
    })
  } finally {
    listener.close().closeAllConnections()
  }
}

function read (): Login | undefined {
  try {
    return JSON.parse(readFileSync(file, 'utf8'))
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}

/** Stores the newest tokens. A rename replaces the file, so that it is never half written. */
function write (
  { issuer }: oauth.AuthorizationServer, { access_token, refresh_token }: oauth.TokenEndpointResponse
): Login {
  const login = { issuer, client_id, access_token, refresh_token: refresh_token! }
  rmSync(`${file}.new`, { force: true })
  writeFileSync(`${file}.new`, JSON.stringify(login), { mode: 0o600, flag: 'wx' })
  renameSync(`${file}.new`, file)
  return login
}

/** One process at a time: two refreshes with one token end the login. */
function lock () {
  try {
    writeFileSync(`${file}.lock`, '', { flag: 'wx' })
  } catch (error) {
    throw (error as NodeJS.ErrnoException).code === 'EEXIST'
      ? new Error(`another one is at it; if not, remove ${file}.lock`)
      : error
  }
  process.on('exit', () => rmSync(`${file}.lock`, { force: true }))
  for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => process.exit(1))
}

/** Only a service on this machine may use plain http. */
function isLoopback (url: string): boolean {
  return URL.canParse(url) && ['127.0.0.1', '[::1]', 'localhost'].includes(new URL(url).hostname)
}

main().catch((error) => {
  const isAnswer = error instanceof oauth.AuthorizationResponseError || error instanceof oauth.ResponseBodyError
  console.error(`login: ${isAnswer ? `${error.error}: ${error.error_description}` : error.message}`)
  process.exitCode = 1
})
