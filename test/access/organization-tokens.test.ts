// runs: one database
import t from 'tap'
import { CONSOLE_CLIENT } from '../../schemas/console.ts'
import { SCOPE_NAMES, type Scope } from '../../schemas/scopes.ts'
import type { Role } from '../../schemas/users.ts'
import { hashToken, mintCredential } from '../../src/crypto/bearer.ts'
import { createGrant, createPair } from '../../src/repositories/people/oauth.ts'
import { scopesOfRole } from '../../src/rules/roles.ts'
import { callWith, startApp, type Answer, type Caller } from '../helpers/app.ts'
import { callAs, makePerson, type Person } from '../helpers/people.ts'
import { startMailServer } from '../helpers/smtp.ts'
import { until } from '../helpers/until.ts'

// API tokens that belong to the organization, and tokens that end soon.

const mail = await startMailServer(t)
const service = await startApp(t, { SMTP_URL: `smtp://127.0.0.1:${mail.port}` })
await service.app.listen({ host: '127.0.0.1', port: 0 })

type Call = Caller['call']
const failing = ({ status, body }: Answer) => [status, body?.error]
const inDays = (days: number) => new Date(Date.now() + days * 24 * 60 * 60 * 1000)

/** Sends requests for a person with a token of the console. */
async function inConsole (person: Person, scopes: readonly Scope[] = SCOPE_NAMES): Promise<Call> {
  const [access, refresh] = [mintCredential('at'), mintCredential('rt')]
  const grant = await createGrant(service.database.db, {
    user_id: person.id, client_id: CONSOLE_CLIENT, scopes: [...scopes]
  })
  await createPair(service.database.db, {
    grant_id: grant, access_hash: hashToken(access), refresh_hash: hashToken(refresh), scopes: [...scopes]
  })
  return callWith(service, access)
}

async function nimbus (role: Role = 'administrator') {
  const { organization: o, call } = await service.organization()
  const [owner, maker] = [await makePerson(service, { [o]: 'owner' }), await makePerson(service, { [o]: role })]
  const path = `/organizations/${o}/api-keys`
  const make = async (by: Call, more: object = {}) =>
    by('POST', path, { name: 'CI', abilities: ['organization:read'], owner: 'organization', ...more })
  const made = async (by: Call, more: object = {}) => {
    const answer = await make(by, more)
    if (answer.status !== 201) throw new Error(answer.text)
    const { token, api_key } = answer.body as { token: string, api_key: { id: string, expires_at: string | null } }
    return { ...api_key, call: callWith(service, token) }
  }
  const list = async (query: string): Promise<string[]> => {
    const answer = await call('GET', `${path}?${query}`)
    if (answer.status !== 200) throw new Error(answer.text)
    return answer.body.data.map(({ id }: { id: string }) => id)
  }
  return { o, call, owner, maker, path, make, made, list, works: async (by: Call) => (await by('GET', `/organizations/${o}`)).status }
}

t.test('a token of the organization outlives the membership, the grant and the account of its maker', async (t) => {
  const { o, call, maker, made, path, works } = await nimbus()
  const byMaker = await inConsole(maker)
  const [its, own] = [await made(byMaker), await made(byMaker, { owner: undefined })]
  t.match((await call('GET', `${path}/${its.id}`)).body.data, {
    owner: 'organization', expires_at: null, created_by: { type: 'user', id: maker.id }
  })
  t.match((await call('GET', `${path}/${own.id}`)).body.data, { owner: 'user', created_by: { id: maker.id } })
  t.ok(own.expires_at, 'the token of a person ends with the grant')
  t.equal((await call('DELETE', `/organizations/${o}/members/${maker.id}`)).status, 204)
  t.strictSame([await works(its.call), await works(own.call)], [200, 401])
  const [{ details } = { details: {} }] = await service.sql(`SELECT details FROM audit_events
    WHERE organization_id = '${o}' AND action = 'api-token.create' AND resource_id = '${its.id}'`)
  t.match(details, { owner: 'organization' })
})

t.test('only a token of the console, or of the organization, makes tokens of the organization', async (t) => {
  const { o, call, maker, make, made, path } = await nimbus()
  const byApplication = await callAs(service, maker)
  const refused = await make(byApplication)
  t.strictSame([...failing(refused), Object.keys(refused.body.errors)], [422, 'validation_failed', ['owner']])
  const own = (await byApplication('POST', path, { name: 'Own', abilities: ['api-token:create', 'organization:read'] })).body
  t.strictSame(failing(await make(callWith(service, own.token))), [422, 'validation_failed'], 'a token of a person')
  t.equal((await made(call)).expires_at, null, 'a token of the organization')
  t.strictSame(failing(await make(await inConsole(maker), { owner: 'user' })), [422, 'validation_failed'])
  t.strictSame(failing(await make(await inConsole(maker, ['organization:read']))), [403, 'insufficient_permissions'])
  t.ok(o)
})

t.test('a token of the organization has at most what its maker has, and ends when it is said to', async (t) => {
  const { o, maker, make, made } = await nimbus()
  const byMaker = await inConsole(maker)
  t.strictSame(failing(await make(byMaker, { abilities: ['*'] })), [403, 'insufficient_permissions'])
  t.strictSame(failing(await make(byMaker, { abilities: ['billing:read'] })), [403, 'insufficient_permissions'])
  t.ok(await made(byMaker, { abilities: scopesOfRole('administrator') }))
  const end = inDays(400).toISOString()
  t.equal((await made(byMaker, { expires_at: end })).expires_at, end, 'also later than the grant of the console')

  const limited = await service.token(o, ['api-token:create', 'organization:read'], { expires_at: inDays(1) })
  t.strictSame(failing(await make(limited.call, { expires_at: null })), [403, 'insufficient_permissions'])
  t.ok((await made(limited.call)).expires_at! <= inDays(1).toISOString(), 'a token does not outlive the token that makes it')
})

t.test('a token of the organization stays one through a rotation in the console', async (t) => {
  const { o, call, owner, maker, made, path, works } = await nimbus()
  const its = await made(await inConsole(maker))
  const byOwner = await inConsole(owner)
  const rotate = `${path}/${its.id}/rotate`
  t.strictSame(failing(await (await callAs(service, owner))('POST', rotate, {})), [403, 'insufficient_permissions'],
    'an application with an end does not get a token without one')
  const rotated = await byOwner('POST', rotate, { overlap_seconds: 60 })
  t.equal(rotated.status, 200)
  t.match(rotated.body.api_key, { owner: 'organization', expires_at: null, created_by: { type: 'user', id: owner.id } })
  t.equal(await works(its.call), 200, 'the former value stays valid')
  t.equal((await byOwner('PUT', `${path}/${its.id}`, { expires_at: inDays(500).toISOString() })).status, 200)
  t.equal((await call('DELETE', `/organizations/${o}/members/${maker.id}`)).status, 204)
  t.equal(await works(callWith(service, rotated.body.token)), 200)

  const limited = await made(await inConsole(owner), { expires_at: inDays(1).toISOString() })
  const moved = await (await callAs(service, owner))('POST', `${path}/${limited.id}/rotate`, {})
  t.match(moved.body.api_key, { owner: 'user', created_by: { id: owner.id } }, 'an application takes the token over')
})

t.test('a token that another token rotated is listed as made by that token, and keeps its owner', async (t) => {
  const { o, call, owner, maker, made, list, path, works } = await nimbus()
  const byMaker = await inConsole(maker)
  const abilities = ['api-token:create', 'api-token:delete', 'organization:read']
  const root = await made(byMaker, { name: 'Root', abilities })
  const rotate = async (by: Call, { id }: { id: string }, body = {}) => {
    const { status, body: { api_key, token } } = await by('POST', `${path}/${id}/rotate`, body)
    t.equal(status, 200)
    return { ...api_key, call: callWith(service, token) }
  }
  const [shared, own] = [await made(call), await made(await inConsole(owner), { owner: undefined })]
  const known = [await rotate(root.call, shared), await rotate(root.call, own, { overlap_seconds: 60 })]
  t.match(known, [
    { owner: 'organization', created_by: { type: 'api_token', name: 'Root' } },
    { owner: 'user', created_by: { type: 'api_token', name: 'Root' } }
  ])
  // A rotation of itself, of its own tokens by a person, and in the console: as before.
  const itself = await rotate(root.call, root)
  t.match(itself.created_by, { type: 'user', id: maker.id })
  const byApplication = await callAs(service, maker)
  const [one, two] = [
    await made(byApplication, { owner: undefined, abilities }), await made(byApplication, { owner: undefined })
  ]
  t.match((await rotate(one.call, two)).created_by, { type: 'user', id: maker.id })
  t.match((await rotate(await inConsole(owner), two)).created_by, { type: 'user', id: owner.id })

  // After the removal, the lists have all that the person knows.
  t.equal((await call('DELETE', `/organizations/${o}/members/${maker.id}`)).status, 204)
  t.strictSame(await list(`created_by=user:${maker.id}&owner=organization`), [root.id])
  t.strictSame(await list(`created_by=api_token:${root.id}`), [own.id, shared.id])
  t.strictSame(await Promise.all(known.map(({ call }) => works(call))), [200, 200], 'each still belongs to its owner')
})

t.test('the list tells tokens by owner, creator and end', async (t) => {
  const { o, call, owner, maker, made, list, path } = await nimbus()
  const [byOwner, byMaker] = [await inConsole(owner), await inConsole(maker)]
  const first = (await list(''))[0]!
  const one = await made(byMaker, { name: 'One' })
  const two = await made(byMaker, { name: 'Two', owner: undefined, expires_at: inDays(3).toISOString() })
  const three = await made(byOwner, { name: 'Three', expires_at: inDays(13).toISOString() })
  const four = await made(call, { name: 'Four', expires_at: inDays(15).toISOString() })
  t.strictSame(await list('owner=organization'), [four.id, three.id, one.id, first])
  t.strictSame(await list('owner=user'), [two.id])
  t.strictSame(await list(`created_by=user:${maker.id}`), [two.id, one.id])
  t.strictSame(await list(`created_by=user:${maker.id}&owner=organization`), [one.id])
  t.strictSame(await list(`created_by=api_token:${first}`), [four.id])
  t.strictSame(await list('ending=true'), [three.id, two.id])
  t.strictSame(await list('ending=false&sort=name&search=t'), [first, three.id, two.id])
  t.equal((await call('GET', `${path}?ending=1&per_page=1`)).body.meta.total, 2)
  for (const query of ['owner=me', 'created_by=17', 'created_by=operator', 'ending=soon', 'owner=']) {
    t.strictSame(failing(await call('GET', `${path}?${query}`)), [422, 'validation_failed'], query)
  }

  // Who is demoted or removed: the event lists the tokens that stay.
  const details = async (action: string) => (await service.sql(`SELECT details FROM audit_events
    WHERE organization_id = '${o}' AND action = '${action}' ORDER BY seq DESC LIMIT 1`))[0]!.details
  t.equal((await call('PATCH', `/organizations/${o}/members/${maker.id}`, { role: 'member' })).status, 200)
  t.strictSame(await details('member.update'), {
    from: 'administrator', to: 'member', organization_tokens: 1, organization_token_ids: one.id
  })
  t.equal((await call('DELETE', `/organizations/${o}/members/${maker.id}`)).status, 204)
  t.match(await details('member.delete'), { role: 'member', organization_tokens: 1, organization_token_ids: one.id })
  t.strictSame(await list(`created_by=user:${maker.id}&owner=organization`), [one.id], 'the list still has them')
})

/** An organization with two owners who get mails. Returns also the mails that each owner got about each token. */
async function mailed () {
  const its = await nimbus()
  const { o, owner, maker, made } = its
  const second = await makePerson(service, { [o]: 'owner' })
  await service.write(`UPDATE users SET is_verified = true WHERE id IN (${owner.id}, ${second.id})`)
  const make = async (name: string, days: number, age = 30) => {
    const { id } = await made(await inConsole(maker), { name, expires_at: inDays(days).toISOString() })
    await service.sql(`UPDATE api_tokens SET created_at = now() - interval '${age} days' WHERE id = ${id}`)
    return id
  }
  const about = () => mail.mails.filter(({ to }) => [owner.email, second.email].includes(to[0]!))
    .map(({ to, text }) => `${to[0]!} ${/API token "(.*?)"/.exec(text)?.[1] ?? ''}`).sort()
  return { ...its, second, make, about }
}

t.test('the owners get one mail about each token that ends within 14 days, and one more for another end', async (t) => {
  const { call, owner, second, maker, path, make, about } = await mailed()
  const soon = await make('Deploy', 10)
  await make('Later', 20)
  await make('Made for a week', 7, 0)
  const both = [owner, second].map(({ email }) => `${email} Deploy`).sort()
  service.app.endingTokens.wake()
  await until(async () => about().length >= 2)
  await service.app.endingTokens.stop()
  t.strictSame(about(), both)
  t.match(mail.mails.find(({ to }) => to[0] === owner.email)!.text, /ends on \d{4}-\d\d-\d\d at \d\d:\d\d UTC/)
  t.match(mail.mails.find(({ to }) => to[0] === owner.email)!.text, 'Change its end, or make another one: a rotation leaves')
  t.notOk(mail.mails.some(({ to }) => to[0] === maker.email), 'the maker is no owner')

  const again = await startApp(t, { SMTP_URL: `smtp://127.0.0.1:${mail.port}` })
  await again.app.listen({ host: '127.0.0.1', port: 0 })
  await call('PUT', `${path}/${soon}`, { expires_at: inDays(11).toISOString() })
  again.app.endingTokens.wake()
  await until(async () => about().length >= 4)
  again.app.endingTokens.wake()
  await again.app.endingTokens.stop()
  t.strictSame(about(), [...both, ...both].sort())
})

t.test('an owner whose mail was sent gets no second one, if the mail to another owner is refused', async (t) => {
  const { o, owner, second, make, about } = await mailed()
  const [one, all] = [await make('One', 10), await make('All', 11)]
  const { app } = await startApp(t, { SMTP_URL: `smtp://127.0.0.1:${mail.port}` })
  await app.listen({ host: '127.0.0.1', port: 0 })
  const announced = async () => (await service.sql(`SELECT id::float8 FROM api_tokens
    WHERE organization_id = '${o}' AND announced_end IS NOT NULL ORDER BY id`)).map(({ id }) => String(id))
  const run = async () => {
    app.endingTokens.wake()
    await app.outbox.settled()
  }
  t.teardown(() => mail.refused.clear())
  await service.sql(`UPDATE api_tokens SET announced_end = expires_at WHERE id = ${all}`)
  mail.refused.add(second.email)
  app.endingTokens.wake()
  await until(async () => about().length > 0)
  await run()
  await run()
  t.strictSame(about(), [`${owner.email} One`])
  t.strictSame(await announced(), [one, all])

  // If all are refused, the next run sends them.
  mail.refused.add(owner.email)
  await service.sql(`UPDATE api_tokens SET announced_end = NULL WHERE id = ${all}`)
  const tries = () => mail.commands.filter((line) => line === `RCPT TO:<${owner.email}>`).length
  const before = tries()
  app.endingTokens.wake()
  await until(async () => tries() > before && !(await announced()).includes(String(all)))
  mail.refused.clear()
  app.endingTokens.wake()
  await until(async () => about().length >= 3)
  t.strictSame(about(), [`${owner.email} All`, `${owner.email} One`, `${second.email} All`].sort())
})

t.test('a run that fails leaves no place of the mail queue in use, and the next run sends the mails', async (t) => {
  const { owner, second, make, about } = await mailed()
  const id = await make('Deploy', 10)
  const { app, logs } = await startApp(t, { SMTP_URL: `smtp://127.0.0.1:${mail.port}` })
  await app.listen({ host: '127.0.0.1', port: 0 })
  const failures = () => logs.filter((line) => line.includes('mails about ending tokens failed')).length
  await service.sql(`ALTER TABLE api_tokens ADD CONSTRAINT refused CHECK (id <> ${id} OR announced_end IS NULL)`)
  const allow = () => service.sql('ALTER TABLE api_tokens DROP CONSTRAINT IF EXISTS refused')
  t.teardown(allow)
  for (const failed of [1, 2]) {
    app.endingTokens.wake()
    await until(async () => failures() >= failed)
    t.equal(app.outbox.load().waiting, 0)
  }
  t.strictSame(about(), [])
  await allow()
  app.endingTokens.wake()
  await until(async () => about().length >= 2)
  t.strictSame(about(), [owner, second].map(({ email }) => `${email} Deploy`).sort())
})
