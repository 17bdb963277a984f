import t from 'tap'
import { startApp } from './helpers/app.ts'
import { authorizationUrl, CALLBACK, makePerson, pkce, post } from './helpers/people.ts'
import { visitor } from './helpers/visitor.ts'

const service = await startApp(t)
const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
const nimbus = await service.organization()
const rosa = await makePerson(service, { [nimbus.organization]: 'owner' })

const api = (path: string, token: string) => fetch(`${address}/api/v1${path}`, { headers: { authorization: `Bearer ${token}` } }).then(async (response) => ({ status: response.status, headers: response.headers, body: await response.json() as any }))

t.test('the whole way: sign in, agree, exchange, call, refresh, revoke', async (t) => {
  const browser = visitor(address)
  const { verifier, challenge } = pkce()
  const signIn = await browser.open(authorizationUrl(challenge))
  t.equal(signIn.status, 200)
  t.match(signIn.text, /Sign in/)
  const consent = await browser.signIn(signIn, rosa.email, rosa.password)
  t.equal(consent.status, 200)
  t.match(consent.text, /Allow Command line to act for you/)
  const back = await browser.decide(consent, 'allow')
  t.equal(`${back.origin}${back.pathname}`, CALLBACK)
  t.equal(back.searchParams.get('state'), 'state')
  t.equal(back.searchParams.get('iss'), address)
  const exchange = { grant_type: 'authorization_code', code: back.searchParams.get('code'), code_verifier: verifier, client_id: 'dotenv-cli', redirect_uri: CALLBACK }
  const tokens = await post(address, '/api/oauth/token', exchange)
  t.equal(tokens.status, 200, tokens.text)
  const { access_token, refresh_token } = tokens.body
  t.equal((await api('/user', access_token)).body.data.attributes.email, rosa.email)
  t.equal((await api(`/${nimbus.organization}/projects`, access_token)).status, 200)
  const fresh = await post(address, '/api/oauth/token', { grant_type: 'refresh_token', refresh_token, client_id: 'dotenv-cli' }, 'json')
  t.equal(fresh.status, 200, fresh.text)
  t.equal((await api('/user', access_token)).status, 401)
  t.equal((await api('/user', fresh.body.access_token)).status, 200)
  t.equal((await post(address, '/api/oauth/revoke', { token: fresh.body.refresh_token, client_id: 'dotenv-cli' })).status, 200)
  t.equal((await api('/user', fresh.body.access_token)).status, 401)
})
