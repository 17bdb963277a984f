// runs: one database
import { createPasswordLink } from '../../src/repositories/people/users.ts'
import { base32 } from 'oslo/encoding'
import t from 'tap'
import { hashToken, mintSecret } from '../../src/crypto/bearer.ts'
import { openBlob, sealBlob } from '../../src/crypto/blob.ts'
import { deriveDataKey, generateSalt, makeProof } from '../../src/crypto/key-proof.ts'
import { random, secretKey } from '../../src/crypto/primitives.ts'
import { codeAt, stepAt } from '../../src/crypto/second-factor.ts'
import { encryption_keys } from '../../src/db/tables.ts'
import { registerClientKey } from '../../src/vault/keys/keys.ts'
import { makeLevel, startIsolatedApp, type Answer, type Caller } from '../helpers/app.ts'
import { QUICK } from '../helpers/costs.ts'
import { authorizationUrl, CALLBACK, makePerson, pkce, post as postOAuth } from '../helpers/people.ts'
import { startReceiver } from '../helpers/receiver.ts'
import { formIn, visitor } from '../helpers/visitor.ts'

// A storage key of rows that the test inserts with SQL.
const storageKey = secretKey(random(32))

// A small form of RL-40. Secret values pass through every flow, including refusals. Then the test searches all logs,
// refusals, audit events and tables for them. Only the response that returns a value may contain it.

const METRICS_TOKEN = random(24).toString('hex')
const receiver = await startReceiver(t)
// This file has its own database, because it searches all tables.
const test = await startIsolatedApp(t, {
  LOG_LEVEL: 'trace', METRICS_TOKEN, OTEL_EXPORTER_OTLP_ENDPOINT: receiver.url
})
const owner = await test.organization()
const org = owner.organization

const unique = (name: string) => `canary-${name}-${random(12).toString('hex')}`
const given = unique('encryption-key')
const client = await clientKey(unique('key-string'))
const rotated = await clientKey(unique('rotated-key-string'))
const revealing = await clientKey(random(16).toString('hex'))
const plaintext = unique('plaintext')
const refusedPlaintext = unique('refused-plaintext')
const unknownToken = `dotenv_${org}_${unique('token')}`

/** Names and bytes of the canaries. */
const canaries = new Map<string, Buffer>()
const watch = (name: string, value: string | Buffer) => canaries.set(name, Buffer.from(value))
watch('plaintext', plaintext)
watch('refused plaintext', refusedPlaintext)
watch('given key string', given)
watch('token', owner.token)
watch('random part of the token', owner.token.slice(-46))
watch('unknown token', unknownToken)
for (const [name, key] of Object.entries({ client, rotated, revealing })) {
  watch(`${name} key string`, key.keyString)
  watch(`${name} proof`, Buffer.from(key.proof, 'base64'))
  watch(`${name} data key`, key.dataKey.export())
  watch(`${name} salt`, key.salt)
}

const answers: { name: string, answer: Answer, own: boolean }[] = []
/** Sends a request and keeps the response. With `own`, the response may contain a canary. */
async function send (name: string, expected: number, request: Promise<Answer>, own = false): Promise<Answer> {
  const answer = await request
  if (answer.status !== expected) throw new Error(`${name}: ${answer.status} instead of ${expected}`)
  answers.push({ name, answer, own: own && answer.status < 300 })
  return answer
}
const post = (path: string, body: unknown, headers?: Record<string, string>, caller: Caller = owner) =>
  caller.call('POST', `/${org}${path}`, body, headers)
const get = (path: string, caller: Caller = owner) => caller.call('GET', `/${org}${path}`)

t.test('RL-40: canaries go through every flow', async (t) => {
  const server = await makeLevel(owner, { slug: 'server', encryption_key: given })
  const mine = await makeLevel(owner, { slug: 'client', ...client.registration })
  const open = await makeLevel(owner, { slug: 'open', ...revealing.registration })

  // Successful reads and writes.
  const { key_check_salt } = (await send('key', 200, get('/server/encryption-key'), true)).body.data.attributes
  const dataKey = await deriveDataKey(given, Buffer.from(key_check_salt, 'base64'), QUICK.keyIterations)
  watch('server data key', dataKey.export())
  watch('server salt', Buffer.from(key_check_salt, 'base64'))
  const document = `A=${plaintext}`
  const { version } = (await send('store', 200, post('/secrets/store', { ...server, plaintext: document }))).body.data
  const blob = sealBlob(dataKey, document)
  watch('blob for the server', Buffer.from(blob, 'base64'))
  await send('store a blob', 200, post('/secrets/store', { ...server, content: blob }))
  await send('read', 200, get('/server/backend/live/secrets'), true)
  for (const query of ['decrypt=true', 'decrypt=true&merge=both', 'decrypt=true&raw=true']) {
    await send(query, 200, get(`/server/backend/live/secrets?${query}`), true)
  }
  await send('retrieve', 200, post('/secrets/retrieve', { ...server, action: 'decrypt' }), true)
  await send('retrieve the key', 200, post('/secrets/retrieve', { project: 'server', action: 'key:retrieve' }), true)
  await send('versions', 200, post('/secrets/versions', server))
  await send('version', 200, get(`/secrets/versions/${version}`))
  await send('restore', 200, post(`/secrets/versions/${version}/restore`, {}))
  const sealed = sealBlob(client.dataKey, document)
  watch('blob of the client', Buffer.from(sealed, 'base64'))
  const own = (await send(
    'client store', 200, post('/secrets/store', { ...mine, content: sealed, key_proof: client.proof })
  )).body.data.version
  await send(
    'client restore', 200, post(`/secrets/versions/${own}/restore`, { content: sealed, key_proof: client.proof })
  )
  await send('client delete', 204, post('/secrets/delete', mine))
  await send(
    'client restore of the deleted', 200, post(`/secrets/versions/${own}/restore`, { key_proof: client.proof })
  )
  const { token } = (await send(
    'new token', 201,
    owner.call('POST', `/organizations/${org}/api-keys`, { name: 'Another', abilities: ['secret:read'] }), true
  )).body
  watch('new token', token)
  watch('random part of the new token', token.slice(-46))

  // Refusals of bodies that contain the canaries.
  const bad = `A=${refusedPlaintext}`
  const json = { 'content-type': 'application/json' }
  const wrongBodies: [string, unknown][] = [
    [
      'number', { ...server, plaintext: [bad], key_proof: { proof: client.proof } }
    ], ['both', { ...server, plaintext: bad, content: sealed }],
    ['as content', { ...server, content: bad }], ['as slug', { ...server, project: bad, plaintext: bad }], [
      'unknown member', { ...server, plaintext: bad, extra: bad }
    ],
    ['as flag', { ...server, plaintext: bad, no_backup: bad }], [
      'as proof', { ...server, plaintext: bad, key_proof: bad.repeat(10) }
    ],
    ['NUL', { ...server, plaintext: `${bad}\0` }], [
      'surrogate', `{"project":"server","plaintext":"${bad}\\ud800"}`
    ], ['list', [bad, client.proof]]
  ]
  for (const [name, body] of wrongBodies) await send(`store ${name}`, 422, post('/secrets/store', body, json))
  await send(
    'malformed JSON', 400, post('/secrets/store', `{"plaintext": "${bad}", "key_proof": "${client.proof}"`, json)
  )
  await send('malformed JSON token', 400, post('/secrets/store', bad, json))
  await send('invalid UTF-8', 400, post(
    '/secrets/store', Buffer.concat([Buffer.from(`{"plaintext":"${bad}`), Buffer.of(0xff), Buffer.from('"}')]), json
  ))
  await send('content type', 415, post('/secrets/store', bad, { 'content-type': `text/plain; x=${refusedPlaintext}` }))
  await send('too large', 413, post('/secrets/store', { ...server, plaintext: bad.repeat(400_000) }))
  await send('level not found', 404, post('/secrets/store', { ...server, environment: 'none', plaintext: bad }))
  await send('precondition', 412, post('/secrets/store', { ...server, plaintext: bad }, { 'if-none-match': '*' }))
  await send('not decryptable', 422, post('/secrets/store', { ...server, content: sealed }))
  await send(
    'plaintext for a client', 422, post('/secrets/store', { ...mine, plaintext: bad, key_proof: client.proof })
  )
  await send('wrong proof', 422, post('/secrets/store', { ...mine, content: sealed, key_proof: rotated.proof }))
  await send(
    'proof that is the key string', 422,
    post('/secrets/store', { ...mine, content: sealed, key_proof: client.keyString })
  )
  await send(
    'revealing proof', 422,
    post('/secrets/store', { ...open, content: sealBlob(revealing.dataKey, bad), key_proof: revealing.proof })
  )
  await send('decrypt of a client', 422, get('/client/backend/live/secrets?decrypt=true'))
  await send('filters', 422, post(
    '/secrets/retrieve', { ...server, action: 'decrypt', filters: { names: [1, bad], [bad.length]: bad } }
  ))
  await send(
    'restore body', 422,
    post(`/secrets/versions/${own}/restore`, { content: [sealed], key_proof: client.proof.repeat(4) })
  )
  await send(
    'restore wrong proof', 422, post(`/secrets/versions/${own}/restore`, { content: sealed, key_proof: rotated.proof })
  )
  await send('purge', 422, post('/secrets/versions/purge', { ...server, confirmed: plaintext }))
  await send('delete', 422, post('/secrets/delete', { ...server, no_backup: true, confirmed: plaintext }))
  await send('query', 422, get(`/server/backend/live/secrets?decrypt=${refusedPlaintext}&token=${owner.token}`))
  await send('path', 404, get(`/server/${refusedPlaintext}/live/secrets`))
  await send('version in the path', 404, get(`/secrets/versions/${refusedPlaintext}`))
  const projects: [string, object][] = [
    ['key as a list', { encryption_key: [given] }], [
      'key with a triple', { encryption_key: given, ...client.registration }
    ], ['short triple', { ...client.registration, key_check_salt: undefined }],
    [
      'long check', { ...client.registration, key_check: client.proof.repeat(2) }
    ], ['reserved', { encryption_key: given, slug: 'secrets' }], ['taken', { encryption_key: given, slug: 'server' }]
  ]
  for (const [name, more] of projects) await send(`project ${name}`, 422, post('/projects', { name: 'Bad', ...more }))

  // Tokens that are wrong, have too few scopes, or are in the wrong place.
  const weak = await test.token(org, ['organization:read'])
  watch('weak token', weak.token)
  await send('no scope', 403, post('/secrets/store', { ...server, plaintext: bad }, {}, weak))
  const headers = [
    `Bearer ${unknownToken}`, `Basic ${owner.token}`, `Bearer\t${owner.token}`, `Bearer ${owner.token}x`, owner.token,
    `Bearer ${owner.token.slice(0, -1)}`
  ]
  for (const authorization of headers) {
    await send('bad token', 401, owner.call('GET', `/${org}/projects`, undefined, { authorization }))
  }
  await send('foreign organization', 404, owner.call('GET', `/${(await test.organization()).organization}/projects`))
  await send(
    'version of the API', 400, owner.call('GET', `/${org}/projects`, undefined, { 'x-api-version': owner.token })
  )
  await send(
    'request id', 200,
    owner.call('GET', `/${org}/projects`, undefined, { 'x-request-id': `${owner.token} ${plaintext}` })
  )
  await send('method', 405, owner.call('PUT', `/${org}/secrets/store`, { plaintext: bad }))

  // A former key.
  const [project] = await test.sql("SELECT id FROM projects WHERE slug = 'client'")
  const id = { organization_id: org, project_id: project!.id as string, version: 2 }
  await test.sql(
    `UPDATE encryption_keys SET is_active = false, rotated_at = now() WHERE project_id = '${id.project_id}'`
  )
  const triple = { check: Buffer.from(rotated.proof, 'base64'), salt: rotated.salt, iterations: 1000, hint: undefined }
  const key = registerClientKey(test.keyring, storageKey, id, triple)
  await test.database.db.insert(encryption_keys).values({
    ...key, organization_id: org, project_id: id.project_id, is_active: true
  })
  await test.write(`UPDATE projects SET key_version = 2 WHERE id = '${id.project_id}'`)
  await send('history of keys', 200, get('/client/encryption-key/history'), true)
  await send('old proof', 422, post('/secrets/store', { ...mine, content: sealed, key_proof: client.proof }))
  await send('old key without content', 422, post(`/secrets/versions/${own}/restore`, { key_proof: rotated.proof }))
  const again = sealBlob(rotated.dataKey, document)
  watch('blob under the new key', Buffer.from(again, 'base64'))
  await send('old key', 200, post(`/secrets/versions/${own}/restore`, { content: again, key_proof: rotated.proof }))

  // Internal errors: a changed row, and a database that refuses the statement.
  await test.sql(
    `UPDATE secret_versions SET sealed = set_byte(sealed, 60, get_byte(sealed, 60) # 1) WHERE organization_id = '${org}' AND id = ${version}`
  )
  const changed = await send('integrity', 500, get(`/secrets/versions/${version}`))
  t.equal(changed.body.error, 'integrity_error')
  await test.sql('ALTER TABLE secrets ADD CONSTRAINT refuses_every_write CHECK (false) NOT VALID')
  await send('database error', 500, post('/secrets/store', { ...server, plaintext: bad }))
  await send(
    'database error with a proof', 500, post('/secrets/store', { ...mine, content: again, key_proof: rotated.proof })
  )
  await test.sql('ALTER TABLE secrets DROP CONSTRAINT refuses_every_write')
  await send('purge', 200, post('/secrets/versions/purge', { project: 'server', scope: 'project', confirmed: true }))
  t.ok(
    openBlob(dataKey, (await get('/server/backend/live/secrets')).body.data.attributes.levels.environment.content),
    'the service is well'
  )
})

t.test('RL-40: what people and applications prove themselves with goes through every flow', async (t) => {
  const address = await test.app.listen({ host: '127.0.0.1', port: 0 })
  // `own` as in `send`. With `own`, the cookies and URLs that a response sets may contain a canary, too.
  const keep = (
    name: string, { status, headers, text }: Awaited<ReturnType<typeof seen>>, expected: number, own = false
  ) => {
    if (status !== expected) throw new Error(`${name}: ${status} instead of ${expected}: ${text}`)
    const kept = Object.fromEntries([...headers].filter(([key]) => !own || !['location', 'set-cookie'].includes(key)))
    answers.push({ name, answer: { status, headers: kept, text, body: undefined }, own: own && text !== '' })
  }
  const fresh = unique('password')
  const [password, wrong, link, spare] = [unique('password'), unique('wrong-password'), mintSecret(), mintSecret()]
  for (const [name, value] of Object.entries({
    password, 'wrong password': wrong, 'new password': fresh, link, 'link that is not used': spare
  })) {
    watch(name, value)
  }
  const person = await makePerson(test, { [org]: 'owner' }, password)
  await createPasswordLink(test.database.db, hashToken(spare), person.id)

  // The account pages.
  const browser = visitor(address)
  const signIn = formIn(await browser.open('/account'))
  watch('browser cookie', browser.jar.get('browser')!)
  keep('wrong password', await browser.send(signIn, { email: person.email, password: wrong }), 422)
  keep('password as address', await browser.send(signIn, { email: wrong, password }), 422, true)
  keep('forged form', await browser.send(signIn, { email: person.email, password, form_token: wrong }), 403)
  keep(
    'other site', await browser.send(signIn, { email: person.email, password }, { 'sec-fetch-site': 'cross-site' }), 403
  )
  keep('wrong type', await browser.request('/oauth/sign-in', {
    method: 'POST', body: JSON.stringify({ password }), headers: { 'content-type': 'application/json' }
  }), 415)
  keep('too large', await browser.send(signIn, { email: person.email, password: password.repeat(2000) }), 413)
  await test.sql('ALTER TABLE sessions ADD CONSTRAINT refuses_every_session CHECK (false) NOT VALID')
  keep('database error at sign-in', await browser.send(signIn, { email: person.email, password }), 500)
  await test.sql('ALTER TABLE sessions DROP CONSTRAINT refuses_every_session')
  keep('sign-in', await browser.send(signIn, { email: person.email, password }), 303, true)
  const session = browser.jar.get('session')!
  watch('session cookie', session)
  keep('account', await browser.open('/account'), 200)
  keep('session as a token', await fetch(
    `${address}/api/v1/user?session=${session}`, { headers: { authorization: `Bearer ${session}` } }
  ).then(seen), 401)

  // The OAuth flow of an application, and its errors.
  const { verifier, challenge } = pkce()
  watch('verifier', verifier)
  const consent = await browser.open(authorizationUrl(challenge))
  keep('consent', consent, 200, true)
  watch('pending request', formIn(consent).fields.find(([name]) => name === 'request')![1])
  const back = await browser.decide(consent, 'allow')
  const code = back.searchParams.get('code')!
  watch('code', code)
  const exchange = {
    grant_type: 'authorization_code', code, code_verifier: verifier, client_id: 'dotenv-cli', redirect_uri: CALLBACK
  }
  const token = async (
    name: string, expected: number, parameters: Record<string, unknown>, as: 'form' | 'json' = 'form', own = false
  ) => {
    const answer = await postOAuth(address, '/api/oauth/token', parameters, as)
    keep(name, answer, expected, own)
    return answer.body
  }
  await token('wrong verifier', 400, { ...exchange, code_verifier: verifier.split('').reverse().join('') })
  await token('other redirect', 400, { ...exchange, redirect_uri: `${CALLBACK}?code=${code}` })
  await token('list', 400, { ...exchange, code: [code], code_verifier: { verifier } }, 'json')
  await token('unknown client', 400, { ...exchange, client_id: code })
  await token('with a secret', 400, { ...exchange, client_secret: password })
  keep('malformed', await fetch(`${address}/api/oauth/token`, {
    method: 'POST',
    body: `{"code":"${code}","code_verifier":"${verifier}"`,
    headers: { 'content-type': 'application/json' }
  }).then(seen), 400)
  keep(
    'query',
    await fetch(`${address}/api/oauth/token?code=${code}&code_verifier=${verifier}`, { method: 'POST' }).then(seen), 415
  )
  await test.sql('ALTER TABLE oauth_tokens ADD CONSTRAINT refuses_every_token CHECK (false) NOT VALID')
  await token('database error at the exchange', 500, exchange)
  await test.sql('ALTER TABLE oauth_tokens DROP CONSTRAINT refuses_every_token')
  const first = await token('exchange', 200, exchange, 'form', true)
  watch('access token', first.access_token)
  watch('refresh token', first.refresh_token)
  const second = await token(
    'refresh', 200, { grant_type: 'refresh_token', refresh_token: first.refresh_token, client_id: 'dotenv-cli' },
    'json', true
  )
  watch('next access token', second.access_token)
  watch('random part of the next access token', second.access_token.slice(-49))
  watch('next refresh token', second.refresh_token)
  const api = (path: string, bearer: string) =>
    fetch(`${address}/api/v1${path}`, { headers: { authorization: `Bearer ${bearer}` } }).then(seen)
  keep('user', await api('/user', second.access_token), 200)
  keep('write', await api(`/${org}/projects`, second.access_token), 200)
  keep('token in the query', await fetch(`${address}/api/v1/user?access_token=${second.access_token}`).then(seen), 401)
  keep('token in the path', await api(`/${org}/${second.access_token}`, second.access_token), 404)
  keep('used access token', await api('/user', first.access_token), 401)
  keep('refresh token as an access token', await api('/user', second.refresh_token), 401)
  await token('code again', 400, exchange)
  await token(
    'refresh token again', 400,
    { grant_type: 'refresh_token', refresh_token: first.refresh_token, client_id: 'dotenv-cli' }
  )
  for (const sent of [second.refresh_token, wrong]) {
    keep('revoke', await postOAuth(address, '/api/oauth/revoke', { token: sent, client_id: 'dotenv-cli' }), 200)
  }
  keep(
    'authorization that carries too much',
    await browser.open(`${authorizationUrl(challenge, { client_id: password })}&code=${code}`), 400
  )

  // A second factor.
  const setUp = formIn(await browser.open('/account/second-factor'))
  keep('second factor with a wrong password', await browser.send(setUp, { current: wrong }), 422)
  const shown = await browser.send(setUp, { current: password })
  keep('second factor', shown, 200, true)
  const key = /<dt>Key<\/dt><dd><code>([A-Z2-7 ]+)</.exec(shown.text)![1]!
  const secret = Buffer.from(base32.decode(key.replaceAll(' ', ''), { strict: false }))
  watch('key of a second factor', key)
  watch('key of a second factor, as applications read it', key.replaceAll(' ', ''))
  watch('secret of a second factor', secret)
  const codeNow = (offset = 0) => codeAt(secret, stepAt(Date.now()) + offset)
  keep('wrong code', await browser.send(formIn(shown), { code: await codeNow(9) }), 422)
  const turnedOn = await browser.send(formIn(shown), { code: await codeNow() })
  keep('recovery codes', turnedOn, 200, true)
  const recovery = [...turnedOn.text.matchAll(/<li><code>([a-z2-7-]+)</g)].map(([, one]) => one!)
  for (const [i, one] of recovery.entries()) watch(`recovery code ${i}`, one)
  watch('session after the second factor', browser.jar.get('session')!)
  const again = visitor(address)
  const asked = await again.send(formIn(await again.open('/account')), { email: person.email, password })
  keep('sign-in that waits', asked, 200, true)
  const step = formIn(asked)
  watch('name of the sign-in that waits', step.fields.find(([name]) => name === 'step')![1])
  keep('wrong recovery code', await again.send(step, { code: `${recovery[0]!}x` }), 422, true)
  keep('recovery code', await again.send(step, { code: recovery[0]! }), 303, true)
  watch('session of two factors', again.jar.get('session')!)
  const turnOff = formIn(await again.open('/account/second-factor'))
  keep('turning it off with a wrong code', await again.send(
    turnOff, { current: password, code: recovery[0]!, change: 'disable' }
  ), 422)
  keep('turning it off', await again.send(
    turnOff, { current: password, code: recovery[1]!, change: 'disable' }
  ), 303)

  // New passwords.
  const change = formIn(await browser.open('/account/password'))
  keep('wrong current password', await browser.send(change, { current: wrong, password: fresh }), 422)
  keep(
    'new password that is too long', await browser.send(change, { current: password, password: fresh.repeat(9) }), 422
  )
  keep('new password', await browser.send(change, { current: password, password: fresh }), 303, true)
  watch('session after the change', browser.jar.get('session')!)
  keep('link that is void', await browser.open(`/account/set-password/${spare}`), 404)
  await createPasswordLink(test.database.db, hashToken(link), person.id)
  const other = visitor(address)
  const set = formIn(await other.open(`/account/set-password/${link}`))
  keep('link with a password that is too short', await other.send(set, { password: 'short' }), 422, true)
  keep('link', await other.send(set, { password }), 303, true)
  watch('session of the link', other.jar.get('session')!)
  keep('link again', await other.send(set, { password }), 404)
  keep('link of another length', await other.open(`/account/set-password/${link}${link}${link}`), 404)
  keep('sign out', await other.send(formIn(await other.open('/account')), { where: 'everywhere' }), 303)
  t.ok(
    answers.some(({ answer }) => answer.text.includes(first.access_token)),
    'the tokens were in the answers that they belong to'
  )
})

const seen = async (response: Response) =>
  ({ status: response.status, headers: response.headers, text: await response.text() })

t.test('RL-40: no canary is in a log line, an answer that it does not belong to, the audit or the database', async (t) => {
  const audit = await rowsOf('audit_events')
  const metrics = await test.inject({
    method: 'GET', url: '/metrics', headers: { authorization: `Bearer ${METRICS_TOKEN}` }
  })
  // Closing the service sends the queued mails and traces.
  await test.app.close()
  const spans = new Set(receiver.spans().map(({ name }) => name))
  for (const name of ['guard', 'transaction', 'crypto seal', 'crypto open', 'crypto derive', 'crypto password']) {
    t.ok(spans.has(name), `${name} was traced`)
  }
  const searched = {
    logs: test.logs.join('\n'),
    audit,
    answers: answers.filter(({ own }) => !own).map(({ answer }) =>
      JSON.stringify(answer.headers) + answer.text).join('\n'),
    'headers of every answer': answers.map(({ answer }) => JSON.stringify(answer.headers)).join('\n'),
    database: await dumpTables(),
    metrics: metrics.text,
    traces: receiver.received.join('\n')
  }
  t.ok(receiver.spans().filter(({ kind }) => kind === 2).length >= answers.length, 'every request was traced')
  // Metrics and traces contain less than the log: not even the organization.
  for (const where of ['metrics', 'traces'] as const) {
    t.notMatch(searched[where], new RegExp(org), `the organization in ${where}`)
    t.notMatch(searched[where], /\w@\w/, `an address in ${where}`)
  }
  t.ok(
    test.logs.filter((line) => line.includes('"msg":"request"')).length >= answers.length, 'every request was logged'
  )
  t.ok(test.logs.some((line) => line.includes('request failed')), 'and what failed')
  t.match(audit, 'integrity.violation')
  t.ok(answers.filter(({ own }) => own).every(({ answer }) => [...canaries.values()].some((canary) =>
    appears(answer.text, canary))), 'the search finds a canary where it belongs')
  t.ok(answers.filter(({ answer }) => answer.status >= 400).length > 50)
  watch('token of the metrics', METRICS_TOKEN)
  for (const [name, canary] of canaries) {
    for (const [where, text] of Object.entries(searched)) t.notOk(appears(text, canary), `${name} in ${where}`)
  }
})

/** Whether a text contains the bytes: as they are, in hex, URL-encoded, or in base64 at any of the three offsets. */
function appears (text: string, canary: Buffer): boolean {
  const base64 = [0, 1, 2].flatMap((offset) => {
    const encoded = Buffer.concat([Buffer.alloc(offset), canary]).toString('base64')
    // Only the characters that depend on no neighbouring byte.
    const inner = encoded.slice(Math.ceil(offset * 8 / 6), Math.floor((offset + canary.length) * 8 / 6))
    return [inner, inner.replaceAll('+', '-').replaceAll('/', '_'), Buffer.from(inner).toString('hex')]
  })
  const plain = canary.toString('utf8')
  return [
    plain, encodeURIComponent(plain), canary.toString('hex'), canary.toString('hex').toUpperCase(), ...base64
  ].some((form) => text.includes(form))
}

/** Every row of a table as text. */
async function rowsOf (table: unknown): Promise<string> {
  return (await test.sql(`SELECT t::text AS row FROM "${table}" t`)).map(({ row }) => row).join('\n')
}

async function dumpTables (): Promise<string> {
  const tables = await test.sql(
    "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
  )
  const dumps = []
  for (const { table_name } of tables) dumps.push(await rowsOf(table_name))
  return dumps.join('\n')
}

async function clientKey (keyString: string) {
  const salt = generateSalt()
  const proof = await makeProof(keyString, salt, 1000)
  return {
    keyString,
    dataKey: await deriveDataKey(keyString, salt, 1000),
    proof,
    salt,
    registration: {
      storage_mode: 'client', key_check: proof, key_check_salt: salt.toString('base64'), key_check_iterations: 1000
    }
  }
}
