// runs: one database
import t from 'tap'
import { hashPassword } from '../../src/crypto/passwords.ts'
import { changePassword, findUser, setDisabled } from '../../src/repositories/people/users.ts'
import { startApp } from '../helpers/app.ts'
import { authorizationUrl, CALLBACK, makePerson, pkce, post, tokensFor } from '../helpers/people.ts'
import { visitor } from '../helpers/visitor.ts'

const service = await startApp(t)
const address = await service.listen()
const nimbus = await service.organization()
const rosa = await makePerson(service, { [nimbus.organization]: 'owner' })

const api = (path: string, token: string) => fetch(
  `${address}/api/v1${path}`, { headers: { authorization: `Bearer ${token}` } }
).then(async (response) => ({ status: response.status, headers: response.headers, body: await response.json() as any }))

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
  const exchange = {
    grant_type: 'authorization_code',
    code: back.searchParams.get('code'),
    code_verifier: verifier,
    client_id: 'dotenv-cli',
    redirect_uri: CALLBACK
  }
  const tokens = await post(address, '/api/oauth/token', exchange)
  t.equal(tokens.status, 200, tokens.text)
  const { access_token, refresh_token } = tokens.body
  t.equal((await api('/user', access_token)).body.data.attributes.email, rosa.email)
  t.equal((await api(`/${nimbus.organization}/projects`, access_token)).status, 200)
  const fresh = await post(
    address, '/api/oauth/token', { grant_type: 'refresh_token', refresh_token, client_id: 'dotenv-cli' }, 'json'
  )
  t.equal(fresh.status, 200, fresh.text)
  t.equal((await api('/user', access_token)).status, 401)
  t.equal((await api('/user', fresh.body.access_token)).status, 200)
  t.equal(
    (await post(address, '/api/oauth/revoke', { token: fresh.body.refresh_token, client_id: 'dotenv-cli' })).status, 200
  )
  t.equal((await api('/user', fresh.body.access_token)).status, 401)
})

t.test('TI-30: a token that a user makes through an application does not outlive what was granted', async (t) => {
  const { access_token } = await tokensFor(address, rosa)
  const make = async (body: object) => {
    const response = await fetch(`${address}/api/v1/organizations/${nimbus.organization}/api-keys`, {
      method: 'POST',
      body: JSON.stringify({ name: 'CI', abilities: ['secret:read'], ...body }),
      headers: {
        authorization: `Bearer ${access_token}`, 'content-type': 'application/json'
      }
    })
    return { status: response.status, body: await response.json() as any }
  }
  const inDays = (days: number) => new Date(Date.now() + days * 24 * 60 * 60 * 1000).toISOString()
  for (const expires_at of [null, inDays(91)]) {
    t.match(await make({ expires_at }), { status: 403, body: { error: 'insufficient_permissions' } })
  }
  t.equal((await make({ expires_at: inDays(30) })).status, 201)
  const { status, body: { api_key } } = await make({})
  t.equal(status, 201)
  t.ok(api_key.expires_at > inDays(89) && api_key.expires_at <= inDays(90), `left out: ${api_key.expires_at}`)
})

t.test('OA-63: a verified old password changes no password any more, and no closed account gets a new one', async (t) => {
  const person = await makePerson(service, { [nimbus.organization]: 'member' })
  const { db } = service.database
  const { password_hash } = (await findUser(db, person.id))!
  t.ok(await changePassword(db, person.id, await hashPassword('set by a link'), password_hash!))
  t.equal(await changePassword(db, person.id, await hashPassword('of a thief'), password_hash!), undefined)
  await setDisabled(db, person.id, true)
  t.equal(await changePassword(db, person.id, await hashPassword('of a thief')), undefined)
  await setDisabled(db, person.id, false)
  const browser = visitor(address)
  t.equal((await browser.signIn(await browser.open('/account'), person.email, 'of a thief')).status, 422)
  t.match((await browser.signIn(await browser.open('/account'), person.email, 'set by a link')).text, /Your account/)
})
