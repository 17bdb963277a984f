// runs: one database
import * as oauth from 'oauth4webapi'
import * as openid from 'openid-client'
import t from 'tap'
import { startApp } from '../helpers/app.ts'
import { LONG } from '../helpers/long.ts'
import { CALLBACK, makePerson } from '../helpers/people.ts'
import { visitor } from '../helpers/visitor.ts'

// Two certified client libraries use the unchanged service. Their options loosen no check, except that plain HTTP is
// allowed, because the tests listen on the loopback interface.

const RUNS = LONG ? 50 : 6
const SCOPE = 'project:read organization:read'

t.setTimeout(240_000)

const service = await startApp(t)
const address = await service.listen()
const nimbus = await service.organization()
const rosa = await makePerson(service, { [nimbus.organization]: 'owner' })
const browser = visitor(address)
const projects = new URL(`${address}/api/v1/${nimbus.organization}/projects`)

/** Opens the authorization URL as a person in a browser. Returns the URL of the redirect. */
async function allow (url: URL, decision: 'allow' | 'deny' = 'allow'): Promise<URL> {
  const page = await browser.open(url.href)
  return browser.decide(
    page.text.includes('name="password"') ? await browser.signIn(page, rosa.email, rosa.password) : page, decision
  )
}

t.test('OA-90 OA-20 OA-30: openid-client discovers, authorizes, calls, refreshes three times and revokes', async (t) => {
  const config = await discover()
  for (let run = 1; run <= RUNS; run++) {
    const { url, checks } = await start(config)
    let tokens = await openid.authorizationCodeGrant(config, await allow(url), checks)
    t.equal(tokens.scope, SCOPE)
    const seen = [tokens.access_token]
    t.equal(await call(config, tokens.access_token), 200)
    for (let i = 0; i < 3; i++) {
      const before = tokens.access_token
      // Every second refresh sends the scope, because some libraries always send it.
      tokens = await openid.refreshTokenGrant(config, tokens.refresh_token!, i % 2 === 0 ? {} : { scope: SCOPE })
      seen.push(tokens.access_token)
      t.equal(await call(config, before), 401)
      t.equal(await call(config, tokens.access_token), 200)
    }
    t.equal(new Set(seen).size, 4)
    await openid.tokenRevocation(config, tokens.refresh_token!)
    t.equal(await call(config, tokens.access_token), 401)
    t.strictSame(await refusal(openid.refreshTokenGrant(config, tokens.refresh_token!)), [400, 'invalid_grant'])
  }
})

t.test('OA-20: openid-client refuses a manipulated response, and recognizes the errors of the service', async (t) => {
  const config = await discover()
  const { url, checks } = await start(config)
  const back = await allow(url)
  for (const [name, value] of [
    ['iss', `${address}/`], ['iss', 'http://127.0.0.1:1'], ['iss', undefined], ['state', 'another'],
    ['state', undefined]
  ] as const) {
    await t.rejects(openid.authorizationCodeGrant(config, changed(back, name, value), checks), `${name} ${value}`)
  }
  const other = { ...checks, pkceCodeVerifier: openid.randomPKCECodeVerifier() }
  t.strictSame(await refusal(openid.authorizationCodeGrant(config, back, other)), [400, 'invalid_grant'])
  // The library refused all manipulated responses, so the code was not sent to the service and is still valid.
  const tokens = await openid.authorizationCodeGrant(config, back, checks)
  t.equal(tokens.token_type, 'bearer')

  const again = await start(config)
  const denied = await openid.authorizationCodeGrant(
    config, await allow(again.url, 'deny'), again.checks
  ).catch((error: unknown) => error)
  t.ok(denied instanceof openid.AuthorizationResponseError && denied.error === 'access_denied')
})

t.test('OA-90 OA-20 OA-30: oauth4webapi discovers, authorizes, calls, refreshes three times and revokes', async (t) => {
  const as = await server()
  for (let run = 1; run <= RUNS; run++) {
    const { url, verifier, state } = await begin(as)
    const parameters = oauth.validateAuthResponse(as, CLIENT, await allow(url), state)
    const answer = await oauth.authorizationCodeGrantRequest(
      as, CLIENT, oauth.None(), parameters, CALLBACK, verifier, PLAIN
    )
    let tokens = await oauth.processAuthorizationCodeResponse(as, CLIENT, answer)
    t.equal(await request(tokens.access_token), 200)
    for (let i = 0; i < 3; i++) {
      const before = tokens.access_token
      const refreshed = await oauth.refreshTokenGrantRequest(as, CLIENT, oauth.None(), tokens.refresh_token!, PLAIN)
      tokens = await oauth.processRefreshTokenResponse(as, CLIENT, refreshed)
      await t.rejects(request(before), oauth.WWWAuthenticateChallengeError)
      t.equal(await request(tokens.access_token), 200)
    }
    await oauth.processRevocationResponse(await oauth.revocationRequest(
      as, CLIENT, oauth.None(), tokens.refresh_token!, PLAIN
    ))
    await t.rejects(request(tokens.access_token), oauth.WWWAuthenticateChallengeError)
  }
})

t.test('OA-20: oauth4webapi refuses an answer that was tampered with', async (t) => {
  const as = await server()
  const { url, state } = await begin(as)
  const back = await allow(url)
  t.ok(oauth.validateAuthResponse(as, CLIENT, back, state))
  for (const [name, value] of [
    ['iss', `${address}/`], ['iss', undefined], ['state', 'another'], ['state', undefined]
  ] as const) {
    t.throws(
      () => oauth.validateAuthResponse(as, CLIENT, changed(back, name, value), state), oauth.OperationProcessingError,
      `${name} ${value}`
    )
  }
  const denied = await begin(as)
  t.throws(
    () => oauth.validateAuthResponse(as, CLIENT, changed(back, 'error', 'access_denied'), state),
    oauth.AuthorizationResponseError
  )
  const refusal = await allow(denied.url, 'deny')
  t.throws(() => oauth.validateAuthResponse(as, CLIENT, refusal, denied.state), oauth.AuthorizationResponseError)
})

t.test('OA-80 OA-85: the 401 of the API leads a client to the resource, its server, and a token', async (t) => {
  const challenged = await oauth.protectedResourceRequest(
    'dotenv_at_unknown', 'GET', projects, undefined, undefined, PLAIN
  ).catch((error: unknown) => error)
  if (!(challenged instanceof oauth.WWWAuthenticateChallengeError)) throw challenged
  const [challenge] = challenged.cause
  t.equal(challenge!.scheme, 'bearer')
  t.equal(challenge!.parameters.error, 'invalid_token')
  const url = new URL(challenge!.parameters.resource_metadata!)
  // The library derives the URL from the resource identifier. It must equal the URL in the challenge.
  const identifier = new URL(url.href.replace('/.well-known/oauth-protected-resource', ''))
  const answer = await oauth.resourceDiscoveryRequest(identifier, PLAIN)
  t.equal(answer.url, url.href)
  const resource = await oauth.processResourceDiscoveryResponse(identifier, answer)
  t.equal(resource.resource, address)
  t.strictSame(resource.authorization_servers, [address])
  t.strictSame(resource.bearer_methods_supported, ['header'])
  t.equal((await server(resource.authorization_servers![0])).issuer, address)
})

// openid-client

async function discover () {
  return openid.discovery(
    new URL(address), 'dotenv-cli', undefined, openid.None(),
    { algorithm: 'oauth2', execute: [openid.allowInsecureRequests] }
  )
}

async function start (config: openid.Configuration) {
  const checks = { pkceCodeVerifier: openid.randomPKCECodeVerifier(), expectedState: openid.randomState() }
  const url = openid.buildAuthorizationUrl(config, {
    redirect_uri: CALLBACK,
    scope: SCOPE,
    state: checks.expectedState,
    code_challenge: await openid.calculatePKCECodeChallenge(checks.pkceCodeVerifier),
    code_challenge_method: 'S256'
  })
  return { url, checks }
}

/** The status and the error code of a response of the token endpoint. */
async function refusal (grant: Promise<unknown>): Promise<unknown> {
  const error = await grant.catch((error: unknown) => error)
  return error instanceof openid.ResponseBodyError ? [error.status, error.error] : error
}

async function call (config: openid.Configuration, token: string): Promise<number> {
  try {
    const response = await openid.fetchProtectedResource(config, token, projects, 'GET')
    await response.text()
    return response.status
  } catch (error) {
    if (!(error instanceof openid.WWWAuthenticateChallengeError)) throw error
    await error.response.text()
    return error.status
  }
}

// oauth4webapi

const CLIENT: oauth.Client = { client_id: 'dotenv-cli' }
const PLAIN = { [oauth.allowInsecureRequests]: true }

async function server (issuer = address): Promise<oauth.AuthorizationServer> {
  return oauth.processDiscoveryResponse(
    new URL(issuer), await oauth.discoveryRequest(new URL(issuer), { algorithm: 'oauth2', ...PLAIN })
  )
}

async function begin (as: oauth.AuthorizationServer) {
  const [verifier, state] = [oauth.generateRandomCodeVerifier(), oauth.generateRandomState()]
  const url = new URL(as.authorization_endpoint!)
  const parameters = {
    client_id: CLIENT.client_id,
    redirect_uri: CALLBACK,
    response_type: 'code',
    state,
    code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256'
  }
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value)
  return { url, verifier, state }
}

async function request (token: string): Promise<number> {
  const response = await oauth.protectedResourceRequest(token, 'GET', projects, undefined, undefined, PLAIN)
  await response.text()
  return response.status
}

function changed (back: URL, name: string, value: string | undefined): URL {
  const url = new URL(back)
  if (value === undefined) url.searchParams.delete(name)
  else url.searchParams.set(name, value)
  return url
}
