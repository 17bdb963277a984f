// runs: one database
import { createHash } from 'node:crypto'
import t from 'tap'
import * as oauth from 'oauth4webapi'
import { ACCESS_TOKEN_TYPE, ASSERTION_TYPES, JWT_BEARER, OAUTH_ERRORS, TOKEN_EXCHANGE } from '../../schemas/oauth.ts'
import { ASSERTION_LENGTH, WORKLOAD_SCOPES } from '../../schemas/workloads.ts'
import { earlier, makeLevel, startApp } from '../helpers/app.ts'
import { readDoc } from '../helpers/docs.ts'
import { post } from '../helpers/people.ts'
import { startBeside } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'
import { ISSUER, makeRule, makeSigner } from '../helpers/workloads.ts'

// Exchanges of assertions at the token endpoint, by RFC 8693 and RFC 7523. What a rule accepts is tested with
// `verifyAssertion`, and what a token can do in `access/workload-tokens`.

type Parameters = Record<string, string>

const service = await startApp(t)
const address = await service.listen()
const { jwks, sign } = await makeSigner()
const stranger = await makeSigner()
const nimbus = await service.organization()
const o = nimbus.organization
const rule = await makeRule(service, o, { jwks })

const bearer = (assertion: string, client_id = rule.client_id, more: Parameters = {}): Parameters =>
  ({ grant_type: JWT_BEARER, assertion, client_id, ...more })
const exchange = (subject_token: string, client_id = rule.client_id, more: Parameters = {}): Parameters =>
  ({ grant_type: TOKEN_EXCHANGE, subject_token, subject_token_type: ASSERTION_TYPES[0], client_id, ...more })
const FORMS = { [JWT_BEARER]: bearer, [TOKEN_EXCHANGE]: exchange }
const ask = async (parameters: Parameters, as: 'form' | 'json' = 'form', headers: Parameters = {}, at = address) =>
  post(at, '/api/oauth/token', parameters, as, headers)
const REFUSED = 'the assertion is not accepted for this client_id'
const CODES = { [JWT_BEARER]: 'invalid_grant', [TOKEN_EXCHANGE]: 'invalid_request' }

const eventsOf = async (action: string, organization = o) =>
  await service.sql(`SELECT actor_type, actor_id::float8, resource_type, resource_id, request_id, ip, user_agent, details
    FROM audit_events WHERE organization_id = '${organization}' AND action = '${action}' ORDER BY seq`) as
    (Record<string, unknown> & { details: Record<string, unknown> })[]
const user = async (token: string) => service.inject({
  method: 'GET', url: '/api/v1/user', headers: { authorization: `Bearer ${token}` }
})

t.test('both grants exchange an assertion for an access token, as a form and as JSON', async (t) => {
  for (const [grant, form] of Object.entries(FORMS)) {
    for (const as of ['form', 'json'] as const) {
      const { status, headers, body, text } = await ask(form(await sign()), as)
      t.equal(status, 200, text)
      t.strictSame(body, {
        access_token: body.access_token,
        token_type: 'Bearer',
        expires_in: body.expires_in,
        scope: WORKLOAD_SCOPES.join(' '),
        ...(grant === TOKEN_EXCHANGE && { issued_token_type: ACCESS_TOKEN_TYPE })
      }, 'and no refresh token')
      t.match(body.access_token, new RegExp(`^dotenv_wl_${o}_[\\w-]+$`))
      t.ok(body.expires_in > 590 && body.expires_in <= 600, `${body.expires_in} s: the assertion ends before the lifetime`)
      t.equal(headers.get('cache-control'), 'no-store')
      t.match(await user(body.access_token), { status: 200, body: { data: { type: 'workloads', id: String(rule.id) } } })
    }
  }
  const basic = Buffer.from(`${rule.client_id}:`).toString('base64')
  const { client_id: _, ...unnamed } = bearer(await sign())
  t.equal((await ask(unnamed, 'form', { authorization: `Basic ${basic}` })).status, 200, 'with HTTP Basic')
  const { status, body } = await ask(exchange(await sign(), rule.client_id, {
    subject_token_type: ASSERTION_TYPES[1],
    requested_token_type: ACCESS_TOKEN_TYPE,
    audience: service.app.issuer(),
    unknown: 'ignored'
  }))
  t.match({ status, body }, { status: 200, body: { issued_token_type: ACCESS_TOKEN_TYPE } })
})

t.test('the requests of docs/workloads.md are exchanges, and are answered as the page shows', async (t) => {
  const [, first = '', second = '', shown = ''] = readDoc('docs/workloads.md').allBlocks
  for (const [block, grant] of [[first, JWT_BEARER], [second, TOKEN_EXCHANGE]] as const) {
    const body = block.split('\n\n')[1]!.replaceAll(/\s/g, '')
      .replace(/wl_\w+/, rule.client_id).replace('eyJ…', await sign())
    t.equal(new URLSearchParams(body).get('grant_type'), grant)
    const { status, body: answer } = await ask(Object.fromEntries(new URLSearchParams(body)))
    t.equal(status, 200)
    const { issued_token_type: _, ...others } = answer
    t.strictSame(Object.keys(others), Object.keys(JSON.parse(shown)))
  }
})

t.test('an OAuth library finds the grants, and exchanges an assertion', async (t) => {
  const http = { [oauth.allowInsecureRequests]: true }
  const issuer = new URL(service.app.issuer())
  const server = await oauth.processDiscoveryResponse(
    issuer, await oauth.discoveryRequest(issuer, { algorithm: 'oauth2', ...http })
  )
  t.ok([JWT_BEARER, TOKEN_EXCHANGE].every((grant) => server.grant_types_supported?.includes(grant)))
  const client = { client_id: rule.client_id }
  for (const [grant, form] of Object.entries(FORMS)) {
    const { grant_type: _, client_id: __, ...parameters } = form(await sign())
    const response = await oauth.genericTokenEndpointRequest(server, client, oauth.None(), grant, parameters, http)
    const answer = await oauth.processGenericTokenEndpointResponse(server, client, response)
    t.equal((await user(answer.access_token)).status, 200, grant)
  }
})

t.test('a malformed exchange gets the error of its RFC, which names the parameter', async (t) => {
  const assertion = await sign()
  const without = (parameters: Parameters, name: string) =>
    Object.fromEntries(Object.entries(parameters).filter(([one]) => one !== name))
  const cases: [string, Parameters, code: string, text: RegExp][] = [
    ...['client_id', 'assertion'].map((name): [string, Parameters, string, RegExp] =>
      [`no ${name}`, without(bearer(assertion), name), 'invalid_request', new RegExp(`^${name} is missing`)]),
    ...['client_id', 'subject_token', 'subject_token_type'].map((name): [string, Parameters, string, RegExp] =>
      [`no ${name}`, without(exchange(assertion), name), 'invalid_request', new RegExp(`^${name} is missing`)]),
    ['an empty assertion', bearer(''), 'invalid_request', /^assertion is missing/],
    ['another type', exchange(assertion, rule.client_id, { subject_token_type: ACCESS_TOKEN_TYPE }), 'invalid_request',
      /^subject_token_type must be/],
    ['an actor', exchange(assertion, rule.client_id, { actor_token: assertion }), 'invalid_request', /^actor_token is/],
    ['the type of an actor', exchange(assertion, rule.client_id, { actor_token_type: ASSERTION_TYPES[0] }),
      'invalid_request', /^actor_token_type is/],
    ['a refresh token wanted', exchange(assertion, rule.client_id, {
      requested_token_type: 'urn:ietf:params:oauth:token-type:refresh_token'
    }), 'invalid_request', /^requested_token_type must be/],
    ['another grant', { ...bearer(assertion), grant_type: 'client_credentials' }, 'unsupported_grant_type', /^grant_type/]
  ]
  for (const form of Object.values(FORMS)) {
    cases.push(
      ['a resource', form(assertion, rule.client_id, { resource: service.app.issuer() }), 'invalid_target', /^resource/],
      ['another audience', form(assertion, rule.client_id, { audience: `${service.app.issuer()}/` }), 'invalid_target',
        /audience/],
      ['a secret', form(assertion, rule.client_id, { client_secret: 'x' }), 'invalid_client', /^client_secret/],
      ['an unknown scope', form(assertion, rule.client_id, { scope: 'secret:read none' }), 'invalid_scope', /^scope/],
      ['everything and more', form(assertion, rule.client_id, { scope: '* secret:read' }), 'invalid_scope', /^scope/]
    )
  }
  for (const [what, parameters, code, text] of cases) {
    for (const as of ['form', 'json'] as const) {
      const { status, body } = await ask(parameters, as)
      t.match({ status, body }, { status: 400, body: { error: code, error_description: text } }, `${what}, ${as}`)
    }
  }
  for (const [more, error, error_description] of [
    ['assertion=x', 'invalid_request', 'assertion is repeated'],
    ['resource=x&resource=y', 'invalid_target', /^resource/],
    [`audience=${service.app.issuer()}&audience=x`, 'invalid_target', /audience/]
  ] as const) {
    const twice = await fetch(`${address}/api/oauth/token`, {
      method: 'POST',
      body: `${new URLSearchParams(bearer(assertion))}&${more}`,
      headers: { 'content-type': 'application/x-www-form-urlencoded' }
    })
    t.match(await twice.json(), { error, error_description }, more)
  }
})

t.test('WI-40 all refusals of an assertion have one text, also for a rule that does not exist', async (t) => {
  const other = await service.organization()
  const suspended = await service.organization()
  const closed = await makeRule(service, suspended.organization, { jwks })
  await service.sql(`UPDATE organization_counters SET status = 'suspended' WHERE organization_id = '${suspended.organization}'`)
  const disabled = await makeRule(service, o, { jwks, enabled: false })
  const away = await makeRule(service, o, { issuer: 'https://issuer.invalid' })
  const tampered = await makeRule(service, o, { jwks })
  await service.sql(`UPDATE workload_rules SET lifetime = 3600 WHERE organization_id = '${o}' AND id = ${tampered.id}`)
  const good = await sign()
  const refused: Record<string, [assertion: string, client_id?: string]> = {
    'an unknown rule': [good, `wl_${o}_1`],
    'a rule of another organization': [good, `wl_${other.organization}_${rule.id}`],
    'an unknown organization': [good, 'wl_01JQZ6V9T4M8N2K7R5W3X1Y0BC_7'],
    'an application': [good, 'dotenv-cli'],
    'lower case': [good, rule.client_id.toLowerCase()],
    'a number with a leading zero': [good, `wl_${o}_0${rule.id}`],
    'a number that is too long': [good, `${rule.client_id}0000000000`],
    'a rule of a suspended organization': [good, closed.client_id],
    'a disabled rule': [good, disabled.client_id],
    'a rule that was changed in the database': [good, tampered.client_id],
    'an issuer that is away': [await sign({ iss: 'https://issuer.invalid' }), away.client_id],
    'no assertion': ['not an assertion'],
    'a key of a stranger': [await stranger.sign()],
    'other claims': [await sign({ project: 'apollo' })],
    'another audience': [await sign({ aud: 'https://other.example' })],
    'an expired assertion': [await sign({}, 7200)],
    'more than 16 KiB': [await sign({ padding: 'x'.repeat(ASSERTION_LENGTH) })]
  }
  for (const [grant, form] of Object.entries(FORMS)) {
    const code = CODES[grant as keyof typeof CODES]
    for (const [what, [assertion, client_id]] of Object.entries(refused)) {
      const { status, text } = await ask(form(assertion, client_id))
      if (what === 'more than 16 KiB' && status === 413) continue
      t.strictSame([status, text], [400, JSON.stringify({
        error: code, error_description: REFUSED, message: `${REFUSED}.`
      })], `${what}: ${grant}`)
    }
  }
})

t.test('an assertion may have 16 KiB', async (t) => {
  const size = async (padding: number) => (await sign({ padding: 'x'.repeat(padding) })).length
  const base = await size(0)
  let padding = Math.floor((ASSERTION_LENGTH - base) * 3 / 4)
  while (await size(padding) > ASSERTION_LENGTH) padding--
  const assertion = await sign({ padding: 'x'.repeat(padding) })
  t.ok(assertion.length > ASSERTION_LENGTH - 4, `${assertion.length} characters`)
  for (const form of Object.values(FORMS)) {
    for (const as of ['form', 'json'] as const) {
      t.equal((await ask(form(assertion, rule.client_id, { scope: WORKLOAD_SCOPES.join(' ') }), as)).status, 200)
    }
  }
})

t.test('WI-41 strangers do not see by the duration whether a rule exists', async (t) => {
  const wrong = await stranger.sign()
  const disabled = await makeRule(service, o, { jwks, enabled: false })
  const [other, elsewhere] = [await sign({ project: 'apollo' }), await sign({ iss: 'https://other.example' })]
  const kinds: Record<string, () => Parameters> = {
    unknown: () => bearer(wrong, `wl_${o}_1`),
    signature: () => bearer(wrong),
    claims: () => bearer(other),
    issuer: () => bearer(elsewhere),
    disabled: () => bearer(other, disabled.client_id)
  }
  const times: Record<string, number[]> = {}
  for (let round = 0; round < 60; round++) {
    for (const [kind, parameters] of Object.entries(kinds)) {
      const began = performance.now()
      await service.inject({ method: 'POST', url: '/api/oauth/token', payload: parameters() })
      ;(times[kind] ??= []).push(performance.now() - began)
    }
  }
  const medians = Object.values(times).map((all) => all.sort((a, b) => a - b)[all.length / 2]!)
  t.ok(Math.max(...medians) < 2 * Math.min(...medians), medians.map((one) => one.toFixed(2)).join(', '))
})

t.test('scope narrows what a token can do, and a wrong scope does not use up an assertion', async (t) => {
  const once = await makeRule(service, o, { jwks, single_use: true, scopes: ['secret:read', 'project:read', 'key:retrieve'] })
  const assertion = await sign()
  t.match(await ask(bearer(assertion, once.client_id, { scope: 'secret:read secret:write' })), {
    status: 400, body: { error: 'invalid_scope' }
  })
  const { status, body } = await ask(bearer(assertion, once.client_id, { scope: 'project:read secret:read project:read' }))
  t.match({ status, body }, { status: 200, body: { scope: 'project:read secret:read' } })
  t.match(await user(body.access_token), { body: { data: { attributes: { abilities: ['project:read', 'secret:read'] } } } })
  const all = await ask(bearer(await sign(), once.client_id, { scope: '*' }))
  t.equal(all.body.scope, 'secret:read project:read key:retrieve')
  const refused = await service.inject({
    method: 'POST',
    url: `/api/v1/${o}/secrets/retrieve`,
    headers: { authorization: `Bearer ${body.access_token}` },
    payload: { ...await makeLevel(nimbus), action: 'key:retrieve' }
  })
  t.match(refused, { status: 403, body: { details: { granted_scopes: ['project:read', 'secret:read'] } } })
})

t.test('WI-44 a rule with single_use accepts an assertion once, on all instances', async (t) => {
  const once = await makeRule(service, o, { jwks, single_use: true })
  const second = await startBeside(t, service)
  const other = second === undefined ? address : await second.listen({ host: '127.0.0.1', port: 0 })
  const first = await sign()
  t.equal((await ask(bearer(first, once.client_id))).status, 200)
  for (const at of [address, other]) {
    t.match(await ask(exchange(first, once.client_id), 'form', {}, at), {
      status: 400, body: { error: 'invalid_request', error_description: REFUSED }
    })
  }
  t.equal((await ask(bearer(first, (await makeRule(service, o, { jwks, single_use: true })).client_id))).status, 200,
    'another rule accepts it once, too')
  const contested = await sign()
  const answers = await Promise.all(Array.from({ length: 8 }, (_, i) =>
    ask(bearer(contested, once.client_id), 'form', {}, i % 2 === 0 ? address : other)))
  t.strictSame(answers.map(({ status }) => status).sort(), [200, ...Array<number>(7).fill(400)])
  const repeated = await sign()
  for (let i = 0; i < 2; i++) t.equal((await ask(bearer(repeated))).status, 200, 'others accept it again and again')
})

t.test('after a restore, a rule with single_use refuses the assertions from before', async (t) => {
  const { organization } = await service.organization()
  const [once, often] = await Promise.all([true, false].map((single_use) =>
    makeRule(service, organization, { jwks, single_use })))
  const before = await sign()
  await service.sql(`INSERT INTO organization_restores (organization_id, restored_at) VALUES ('${organization}', now())`)
  t.equal((await ask(bearer(before, once!.client_id))).status, 400)
  t.equal((await ask(bearer(before, often!.client_id))).status, 200)
  await until(async () => (await eventsOf('workload.refuse', organization)).length === 1)
  t.match(await eventsOf('workload.refuse', organization), [{ details: { check: 'restored' } }])
  await service.sql(`UPDATE organization_restores SET ${earlier('restored_at', '1 hour')} WHERE organization_id = '${organization}'`)
  t.equal((await ask(bearer(await sign(), once!.client_id))).status, 200)
})

t.test('a token ends after the lifetime of its rule, and without single_use not after its assertion', async (t) => {
  const ends = async (single_use: boolean, seconds: number) => {
    const { client_id } = await makeRule(service, o, { jwks, single_use, lifetime: 300 })
    const { body } = await ask(bearer(await sign({ exp: Math.floor(Date.now() / 1000) + seconds }), client_id))
    const { body: { data } } = await user(body.access_token)
    const left = (Date.parse(data.attributes.expires_at) - Date.now()) / 1000
    t.ok(Math.abs(left - body.expires_in) < 5, `${left} s, and expires_in is ${body.expires_in}`)
    return body.expires_in as number
  }
  t.ok(Math.abs(await ends(false, 600) - 300) <= 2)
  t.ok(Math.abs(await ends(false, 100) - 100) <= 2)
  t.ok(Math.abs(await ends(true, 100) - 300) <= 2)
})

t.test('WI-43 an exchange is recorded with issuer, subject and run in clear, a refusal with its check alone', async (t) => {
  const { organization } = await service.organization()
  const own = await makeRule(service, organization, {
    jwks, preset: 'github-actions', claims: { repository_id: '42', ref: 'refs/heads/main' }, single_use: true
  })
  const claims = { sub: 'repo:nimbus/orbit:ref:refs/heads/main', repository_id: '42', ref: 'refs/heads/main', run_id: '7' }
  const headers = { 'user-agent': 'runner/1', 'x-request-id': 'of-a-stranger' }
  const send = async (assertion: string) => (await ask(bearer(assertion, own.client_id), 'form', headers)).status
  const assertion = await sign(claims)
  t.equal(await send(assertion), 200)
  const actor = { actor_type: 'workload', actor_id: own.id, resource_type: 'workload', resource_id: String(own.id) }
  const [login, ...more] = await eventsOf('workload.login', organization)
  t.match(login, {
    ...actor, request_id: 'of-a-stranger', user_agent: 'runner/1', details: { issuer: ISSUER, subject: claims.sub, run: '7' }
  })
  t.equal(more.length, 0)
  const refusals: [string, string, Record<string, unknown> | undefined][] = [
    [assertion, 'used', { repository_id: '42', ref: 'refs/heads/main' }],
    [await sign({ ...claims, repository_id: '43', ref: '\0' }), 'claims', { repository_id: '43' }],
    [await sign({ ...claims, ref: `refs/${'x'.repeat(300)}` }), 'claims', { repository_id: '42', ref: `refs/${'x'.repeat(251)}` }],
    [await sign({ ...claims, ref: `${'x'.repeat(255)}\u{1F512}` }), 'claims', { repository_id: '42', ref: 'x'.repeat(255) }],
    [await sign({ ...claims, ref: { nested: 'refs/heads/main' } }), 'claims', { repository_id: '42' }],
    [await stranger.sign(claims), 'signature', undefined],
    ['a stranger wrote this', 'format', undefined]
  ]
  for (const [i, [assertion, check, shown]] of refusals.entries()) {
    t.equal(await send(assertion), 400)
    await until(async () => (await eventsOf('workload.refuse', organization)).length === i + 1)
    const event = (await eventsOf('workload.refuse', organization)).at(-1)!
    t.match(event, { ...actor, request_id: null, user_agent: null }, check)
    const { claims, ...others } = event.details
    t.strictSame(others, { check })
    t.strictSame(claims === undefined ? undefined : JSON.parse(claims as string), shown, check)
  }
  const text = JSON.stringify(await service.sql(`SELECT * FROM audit_events WHERE organization_id = '${organization}'`))
  t.notMatch(text, /a stranger wrote this/)
  for (const part of assertion.split('.')) t.notOk(service.logs.some((line) => line.includes(part)), 'no log has it')
})

t.test('WI-42 at most 60 refusals a minute are recorded for an organization; logins always are', async (t) => {
  const { organization } = await service.organization()
  const own = await makeRule(service, organization, { jwks })
  const statuses = await Promise.all(Array.from({ length: 70 }, async () =>
    (await ask(bearer('not an assertion', own.client_id))).status))
  t.ok(statuses.every((status) => status === 400))
  await until(async () => (await eventsOf('workload.refuse', organization)).length === 60)
  t.equal((await ask(bearer(await sign(), own.client_id))).status, 200)
  t.equal((await eventsOf('workload.login', organization)).length, 1)
  t.equal((await eventsOf('workload.refuse', organization)).length, 60)
})

t.test('no event, no token: an exchange that cannot be recorded is 503', async (t) => {
  const { organization } = await service.organization()
  const own = await makeRule(service, organization, { jwks })
  await service.sql(`UPDATE organization_counters SET chain_kid = '01JQZ6V9T4M8N2K7R5W3X1Y0BC'
    WHERE organization_id = '${organization}'`)
  const { status, body } = await ask(bearer(await sign(), own.client_id))
  t.match({ status, body }, { status: 503, body: { error: 'temporarily_unavailable' } })
})

t.test('the token names subject and run by digests, and contains nothing in clear', async (t) => {
  const { body } = await ask(bearer(await sign({ sub: 'orbit:live' })))
  const sealed = Buffer.from((body.access_token as string).split('_').slice(3).join('_'), 'base64url')
  for (const part of ['orbit', String(rule.id), createHash('sha256').update('orbit:live').digest('base64url')]) {
    t.notOk(sealed.includes(part))
  }
  t.equal(Object.keys(OAUTH_ERRORS).includes('invalid_target'), true)
})
