// runs: one database
import { sql } from 'drizzle-orm'
import t from 'tap'
import { MAX_OPEN_INVITATIONS } from '../../schemas/invitations.ts'
import { MAX_OWNED } from '../../schemas/organizations.ts'
import { SCOPE_NAMES, type Scope } from '../../schemas/scopes.ts'
import { verifyDatabase } from '../../src/commands/audit/audit.ts'
import { addUser } from '../../src/commands/people/users.ts'
import { createRemovalWorker } from '../../src/jobs/cleanup.ts'
import { deleteInvitation } from '../../src/repositories/people/invitations.ts'
import { Anchors } from '../../src/vault/audit/verification.ts'
import { ACTIVITY, startIsolatedApp, type Answer, type TestApp } from '../helpers/app.ts'
import { authorize, crowd, issuePair, makePerson, type Person } from '../helpers/people.ts'
import { startMailServer } from '../helpers/smtp.ts'
import { ON_POSTGRES } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'
import { formIn, visitor, type Visitor } from '../helpers/visitor.ts'

// A person becomes a member of an organization only by accepting its invitation. Before that, the organization learns
// nothing about the person.

const mail = await startMailServer(t)
// This file has its own database, because it runs the background workers and looks at all invitation mails.
const service = await startIsolatedApp(t, { SMTP_URL: `smtp://127.0.0.1:${mail.port}` })
const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
const failing = ({ status, body }: Answer) => [status, body?.error]

type Call = (method: string, path: string, body?: unknown) => Promise<Answer>
const bearer = (token: string, on: TestApp = service): Call => (method, path, payload) => on.inject({
  method: method as 'GET',
  url: `/api/v1${path}`,
  headers: { authorization: `Bearer ${token}` },
  ...(payload !== undefined && { payload: payload as object })
})
const as = async (person: Pick<Person, 'id'>, scopes: readonly Scope[] = SCOPE_NAMES): Promise<Call> =>
  bearer((await issuePair(service, person, scopes)).access)

let newcomers = 0
const newcomer = () => `newcomer-${++newcomers}@nimbus.example`

/** An organization with an owner, who sends the invitations. */
async function nimbus (plan?: string) {
  const caller = await service.organization(plan === undefined ? {} : { plan })
  const { organization: o } = caller
  const call = await as(await makePerson(service, { [o]: 'owner' }))
  const invite = async (email: string, role = 'developer') => {
    const answer = await call('POST', `/organizations/${o}/members`, { email, role })
    if (answer.status !== 201) throw new Error(answer.text)
    return answer.body.data.id as string
  }
  return { o, call, invite, members: `/organizations/${o}/members`, invitations: `/organizations/${o}/invitations` }
}

const eventsOf = async (o: string) => await service.sql(`SELECT action, actor_type, actor_id::text, resource_type,
  resource_id, ip, user_agent, details FROM audit_events WHERE organization_id = '${o}' ORDER BY seq`) as {
  action: string
  actor_id: string | null
  resource_id: string
  ip: string | null
  user_agent: string | null
  details: Record<string, unknown> | null
}[]
const isMember = async (o: string, { id }: Pick<Person, 'id'>) => (await service.sql(
  `SELECT 1 FROM members WHERE organization_id = '${o}' AND user_id = ${id}`
)).length === 1

async function signedIn ({ email, password }: Person): Promise<Visitor> {
  const browser = visitor(address)
  await browser.signIn(await browser.open('/account'), email, password)
  return browser
}
/** Sends a form of the account page for this id, no matter which form of the same kind comes first. */
async function press (browser: Visitor, path: string, id: string) {
  const page = await browser.open('/account')
  const at = page.text.indexOf('<form method="post" action="/account/sign-out"')
  return browser.send({ ...formIn({ ...page, text: page.text.slice(at) }), action: `/account/${path}` }, { id })
}
const mailsTo = async (email: string) => {
  await service.app.outbox.settled()
  return mail.mails.filter(({ to }) => to.some((one) => one.toLowerCase() === email.toLowerCase()))
}
const linkTo = async (email: string) =>
  /^http:\S+(\/account\/invitation\/\S+)$/m.exec((await mailsTo(email)).at(-1)!.text)![1]!

t.test('an address with or without an account gets the same answer, list and events, without id or name', async (t) => {
  const { o, call, members, invitations } = await nimbus()
  const rosa = await makePerson(service)
  const shown = []
  for (const email of [rosa.email, newcomer()]) {
    const invited = await call('POST', members, { email, role: 'developer' })
    const { id } = invited.body.data
    const answers = [
      invited, await call('GET', invitations), await call('GET', `${invitations}/${id}`), await call('GET', members),
      await call('POST', `${invitations}/${id}/send`)
    ]
    const events = (await eventsOf(o)).filter(({ resource_id }) => resource_id === id)
    t.equal((await call('DELETE', `${invitations}/${id}`)).status, 204)
    const text = JSON.stringify([answers.map(({ status, body }) => [status, body]), events])
    t.notMatch(text, rosa.name)
    t.notMatch(text, String(rosa.id))
    t.match(invited.body.data, { type: 'invitations', attributes: { email, status: 'invited', role: 'developer' } })
    t.match(events, [
      { action: 'invitation.create', details: { email, role: 'developer' } }, { action: 'invitation.send' }
    ])
    shown.push(text.replaceAll(email, 'EMAIL').replaceAll(id, 'ID').replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, 'TIME')
      .replace(/"etag":"[^"]*"/g, ''))
  }
  t.equal(shown[0], shown[1])
})

t.test('until a person accepts, the organization cannot act through them and records nothing about them', async (t) => {
  const { o, call, invite, members } = await nimbus()
  const rosa = await makePerson(service)
  await invite(rosa.email, 'owner')
  const before = JSON.stringify(await eventsOf(o))
  const theirs = await as(rosa)
  t.strictSame(failing(await theirs('GET', `/${o}/projects`)), [404, 'not_found'])
  t.strictSame((await theirs('GET', '/user')).body.included, [])
  t.strictSame((await call('GET', members)).body.data.length, 1)
  t.equal((await call('GET', `${members}/${rosa.id}`)).status, 404)
  t.equal((await call('PATCH', `${members}/${rosa.id}`, { role: 'member' })).status, 404)
  t.equal((await call('DELETE', `${members}/${rosa.id}`)).status, 404)
  const team = await call('POST', `/organizations/${o}/teams`, { name: 'Platform' })
  const added = await call('PUT', `/organizations/${o}/teams/${team.body.data.id}/members/${rosa.id}`, {})
  t.equal(added.status, 404)
  // Records a sign-in, a wrong password, a grant and a new password.
  await signedIn(rosa)
  const stranger = visitor(address)
  await stranger.signIn(await stranger.open('/account'), rosa.email, 'wrong password')
  const { browser } = await authorize(address, rosa)
  const page = await browser.open('/account/password')
  t.equal((await browser.send(formIn(page), { current: rosa.password, password: 'another battery' })).status, 303)
  const events = (await eventsOf(o)).filter(({ action }) => !action.startsWith('team.'))
  t.equal(JSON.stringify(events), before)
})

t.test('events of a person hide address and browser, except acts in the organization; /account shows all', async (t) => {
  const { o, invite } = await nimbus()
  const rosa = await makePerson(service)
  const browser = visitor(address, { 'sec-fetch-site': 'same-origin', 'user-agent': 'Rosas browser' })
  await browser.signIn(await browser.open('/account'), rosa.email, rosa.password)
  t.equal((await press(browser, 'invitations/accept', await invite(rosa.email))).status, 303)
  await authorize(address, rosa, {}, browser)
  const stranger = visitor(address, { 'sec-fetch-site': 'same-origin', 'user-agent': 'Stranger' })
  await stranger.signIn(await stranger.open('/account'), rosa.email, 'wrong password')
  // On Citus, a refusal gets its number after the response.
  const late = () => service.sql(`SELECT 1 FROM late_events WHERE organization_id = '${o}'`)
  await until(async () => (await late()).length === 0)
  const own = (await eventsOf(o)).filter(({ actor_id }) => actor_id === String(rosa.id))
  t.strictSame(own.map(({ action }) => action), ['member.join', 'oauth.grant', 'session.refuse'])
  t.match(own[0], { ip: '127.0.0.1', user_agent: /browser/ }, 'joining happened in the organization')
  for (const event of own.slice(1)) t.match(event, { ip: null, user_agent: null }, event.action)

  const { text } = await browser.open('/account')
  const lines = [...text.slice(text.indexOf('What happened to your account')).matchAll(/<span>([^<]*)<\/span>/g)]
    .map(([, line]) => line!)
  t.match(lines, [
    /sign-in failed: wrong password \(attempts: 1\), from 127\.0\.0\.1, Stranger$/, /application allowed/,
    /organization joined \(organization: Nimbus\)/, /signed in, from 127\.0\.0\.1, .*browser$/
  ])
})

t.test('a person without an account joins by the link, which accepts its own invitation and no other', async (t) => {
  const [one, other] = [await nimbus(), await nimbus()]
  const email = newcomer()
  const operators = await addUser(service.database, address, { email: newcomer(), name: 'Beside' })
  const id = await one.invite(email)
  const link = await linkTo(email)
  await other.invite(email, 'owner')
  const browser = visitor(address)
  const page = await browser.open(link)
  t.match(page.text, /Join Nimbus\?/)
  t.equal((await browser.send(formIn(page), { name: 'Rosa Quill', password: 'short' })).status, 422)
  const joined = await browser.send(formIn(page), { name: 'Rosa Quill', password: 'correct horse battery' })
  t.match([joined.status, joined.headers.get('location')], [303, /\/account$/])
  const account = await browser.open('/account')
  t.match(account.text, /Rosa Quill/)
  t.match(account.text, /action="\/account\/invitations\/accept"/, 'the other one still waits')
  const [member] = (await one.call('GET', one.members)).body.data.filter(({ attributes }: { attributes: { email: string } }) =>
    attributes.email === email)
  t.match(member, { type: 'members', attributes: { name: 'Rosa Quill', role: 'developer', status: 'active' } })
  t.match((await eventsOf(one.o)).find(({ actor_id }) => actor_id === member.id), {
    action: 'member.join', actor_id: member.id, details: { invitation: id, role: 'developer' }
  })
  t.notOk(await isMember(other.o, { id: Number(member.id) }))
  t.strictSame((await other.call('GET', other.invitations)).body.meta.total, 1)

  const again = visitor(address)
  t.equal((await again.open(link)).status, 404, 'a link works once')
  t.equal((await visitor(address).open(operators.link)).status, 200, 'a link of the operator stays valid')
  for (const wrong of ['x', `${one.o}.x`, link.replace(/.$/, (end) => end === 'A' ? 'B' : 'A').slice('/account/invitation/'.length)]) {
    t.equal((await again.open(`/account/invitation/${wrong}`)).status, 404, wrong)
  }
})

t.test('the person sees the place of an invitation and the role there: by the API, the link and the account page', async (t) => {
  const { o, call, members } = await nimbus()
  const paths: [path: string, name: string][] = [
    [`/${o}/projects`, 'Shop'], [`/${o}/shop/targets`, 'Backend'], [`/${o}/shop/backend/environments`, 'Live']
  ]
  for (const [path, name] of paths) await call('POST', path, { name })
  const [person, email] = [await makePerson(service), newcomer()]
  const place = { project: 'shop', target: 'backend', environment: 'live' }
  for (const one of [person.email, email]) {
    const { status } = await call('POST', members, { email: one, role: 'guest', place, place_role: 'billing_manager' })
    t.equal(status, 422)
    t.equal((await call('POST', members, { email: one, role: 'guest', place, place_role: 'api_user' })).status, 201)
  }
  const own = async () => (await (await as(person))('GET', '/user/invitations')).body.data[0].attributes
  const browser = await signedIn(person)
  const shown = async () => [(await visitor(address).open(await linkTo(email))).text, (await browser.open('/account')).text]
  t.match(await own(), { role: 'guest', place, place_role: 'api_user' })
  for (const text of await shown()) t.match(text, 'as guest, with the role API user in Shop / Backend / Live, ')

  await call('PATCH', `/${o}/shop/backend/live`, { name: 'Production', slug: 'production' })
  t.match((await own()).place, { environment: 'production' })
  for (const text of await shown()) t.match(text, 'in Shop / Backend / Production, ')
  await call('DELETE', `/${o}/shop/backend/production`)
  t.match(await own(), { role: 'guest', place: null, place_role: 'api_user' })
  for (const text of await shown()) t.match(text, /as guest, (?:invited )?by /, 'a deleted place gives no role')

  const other = await nimbus()
  await other.invite(person.email)
  t.match(await own(), { role: 'developer', place: null, place_role: null }, 'an invitation without a place')
  t.match((await browser.open('/account')).text, /as developer, invited by /)
})

t.test('of two requests with one link, one makes the account', async (t) => {
  const { o, invite } = await nimbus()
  const email = newcomer()
  await invite(email)
  const link = await linkTo(email)
  const browsers = [visitor(address), visitor(address)]
  const pages = await Promise.all(browsers.map(async (browser) => formIn(await browser.open(link))))
  const answers = await Promise.all(browsers.map((browser, i) =>
    browser.send(pages[i]!, { name: `Rosa ${i}`, password: 'correct horse battery' })))
  t.strictSame(answers.filter(({ headers }) => headers.getSetCookie().some((one) => one.startsWith('session='))).length, 1)
  t.same(await service.sql(`SELECT count(*)::int AS n FROM members WHERE organization_id = '${o}'`), [{ n: 2 }])
  t.same(await service.sql(`SELECT count(*)::int AS n FROM users WHERE email = '${email}'`), [{ n: 1 }])
})

t.test('a link whose invitation is withdrawn while its form waits opens no account and sets no password', {
  skip: !ON_POSTGRES && 'one session: no request waits for another'
}, async (t) => {
  const { o, invite } = await nimbus()
  const { o: other } = await nimbus()
  const [unknown, alone, member] = [newcomer(), newcomer(), newcomer()]
  await addUser(service.database, address, { email: alone, name: 'Alone' })
  await addUser(service.database, address, {
    email: member, name: 'Member', membership: { organization: other, role: 'developer' }
  })
  const state = (email: string) => service.sql(`SELECT u.id, u.name, u.password_hash, u.is_verified,
      (SELECT count(*) FROM sessions WHERE user_id = u.id) AS sessions,
      (SELECT count(*) FROM personal_events WHERE user_id = u.id) AS events
    FROM users u WHERE email = '${email}'`)
  const waiting = async () => (await service.sql(
    `SELECT 1 FROM ${ACTIVITY} WHERE wait_event_type = 'Lock' AND query LIKE '%organization_counters%'`
  )).length > 0
  for (const email of [unknown, alone, member]) {
    const id = await invite(email)
    const link = await linkTo(email)
    const browser = visitor(address)
    const form = formIn(await browser.open(link))
    const before = [await state(email), await eventsOf(o), await eventsOf(other)]
    const { sent } = await service.database.longTransactions.transaction(async (db) => {
      await db.execute(sql`SELECT FROM organization_counters WHERE organization_id = ${o} FOR UPDATE`)
      const sent = browser.send(form, { name: 'Rosa Quill', password: 'correct horse battery' })
      await until(waiting)
      await deleteInvitation(db, o, id)
      return { sent }
    })
    const { status, headers } = await sent
    t.strictSame([status, headers.getSetCookie().filter((one) => one.startsWith('session='))], [404, []], email)
    t.strictSame([await state(email), await eventsOf(o), await eventsOf(other)], before, email)
  }
})

t.test('with an account, the link leads to the account page: it signs no person in and accepts nothing', async (t) => {
  const { o, invite } = await nimbus()
  const [rosa, theo] = [await makePerson(service), await makePerson(service)]
  await invite(rosa.email)
  const link = await linkTo(rosa.email)
  const fresh = visitor(address)
  const opened = await fresh.open(link)
  t.match([opened.status, opened.headers.get('location')], [303, /\/account$/])
  const sent = await fresh.send(
    { ...formIn(await fresh.open('/account')), action: link }, { name: 'Eve', password: 'correct horse battery' }
  )
  t.match([sent.status, sent.headers.get('location')], [303, /\/account$/])
  t.notOk(await isMember(o, rosa))
  const other = await (await signedIn(theo)).open(link)
  t.equal(other.status, 403)
  t.match(other.text, /This invitation is for another address/)
  const browser = await signedIn(rosa)
  t.match((await browser.open('/account')).text, /<strong>Nimbus<\/strong> <span>as developer, invited by Person \d+, valid until \d{4}/)
})

t.test('an account that the operator made gets its first password by the link of an invitation', async (t) => {
  const [{ o, invite }, { o: beside }] = [await nimbus(), await nimbus()]
  const { user: { id, email }, link: operators } = await addUser(
    service.database, address, { email: newcomer(), name: 'rosa', membership: { organization: beside, role: 'auditor' } }
  )
  await invite(email)
  t.equal((await visitor(address).open(operators)).status, 200, 'the link of the operator is valid as before')
  const browser = visitor(address)
  const page = await browser.open(await linkTo(email))
  t.equal((await browser.send(formIn(page), { name: 'Rosa Quill', password: 'correct horse battery' })).status, 303)
  t.ok(await isMember(o, { id }))
  t.equal((await visitor(address).open(operators)).status, 404, 'a new password ends every link of the account')
  const events = [{ action: 'user.password', ip: null }, { action: 'session.create', ip: null }]
  t.match((await eventsOf(o)).slice(-3), [{ action: 'member.join', ip: '127.0.0.1' }, ...events])
  t.match((await eventsOf(beside)).slice(-3), [{ action: 'user.create' }, ...events])
  for (const organization of [o, beside]) {
    for await (const { broken } of verifyDatabase(service, { organization }, new Anchors())) t.equal(broken, null)
  }
})

t.test('a person accepts, declines and leaves on /account', async (t) => {
  const [one, other] = [await nimbus(), await nimbus()]
  const rosa = await makePerson(service)
  const [accepted, declined] = [await one.invite(rosa.email), await other.invite(rosa.email)]
  const [browser, theo] = [await signedIn(rosa), await makePerson(service)]
  t.equal((await press(await signedIn(theo), 'invitations/accept', accepted)).status, 422, 'of another person')
  t.equal((await press(browser, 'invitations/accept', accepted)).status, 303)
  t.ok(await isMember(one.o, rosa))
  t.equal((await press(browser, 'invitations/accept', accepted)).status, 422, 'pressed twice')
  t.equal((await press(browser, 'invitations/decline', declined)).status, 303)
  t.notOk(await isMember(other.o, rosa))
  t.match((await eventsOf(other.o)).at(-1), {
    action: 'invitation.decline',
    actor_type: 'system',
    actor_id: null,
    ip: null,
    user_agent: null,
    resource_id: declined,
    details: { email: rosa.email }
  })
  t.notMatch(JSON.stringify(await eventsOf(other.o)), String(rosa.id))
  t.equal((await press(browser, 'organizations/leave', other.o)).status, 303, 'where they are not is nothing to leave')
  t.equal((await press(browser, 'organizations/leave', one.o)).status, 303)
  t.notOk(await isMember(one.o, rosa))
  t.match((await eventsOf(one.o)).at(-1), { action: 'member.delete', actor_id: String(rosa.id) })
  const alone = await service.organization()
  const owner = await makePerson(service, { [alone.organization]: 'owner' })
  const kept = await press(await signedIn(owner), 'organizations/leave', alone.organization)
  t.equal(kept.status, 422)
  t.match(kept.text, /You are the last owner/)
})

t.test('Leave asks once, on a page that says what ends; only then does the person leave', async (t) => {
  const { o, invite } = await nimbus()
  const rosa = await makePerson(service)
  const browser = await signedIn(rosa)
  t.equal((await press(browser, 'invitations/accept', await invite(rosa.email))).status, 303)
  const { text } = await browser.open('/account')
  const [, form] = /(<form method="get" action="\/account\/organizations\/leave">[^]*?<\/form>)/.exec(text)!
  t.match(form, /<button type="submit">Leave<\/button>/)
  t.match(/name="id" value="(\w+)"/.exec(form!), { 1: o })
  t.notMatch(form, /name="(?!id)/, 'nothing else is in the URL')
  const page = await browser.open(`/account/organizations/leave?id=${o}`)
  t.equal(page.status, 200)
  t.match(page.text, /Leave Nimbus\?.*Your API tokens of this organization end/s)
  t.ok(await isMember(o, rosa))
  t.equal((await browser.send(formIn(page), {})).status, 303)
  t.notOk(await isMember(o, rosa))
  for (const path of [`?id=${o}`, '', '?id=x&id=y']) {
    const gone = await browser.open(`/account/organizations/leave${path}`)
    t.match([gone.status, gone.headers.get('location')], [303, /\/account$/], path)
  }
  t.equal((await visitor(address).open(`/account/organizations/leave?id=${o}`)).status, 303, 'signed out')
})

t.test('a person who leaves, on the page or by API, has one own event of that; a removed person has none', async (t) => {
  const rosa = await makePerson(service)
  const [browser, theirs] = [await signedIn(rosa), await as(rosa)]
  const leavings = async () => [...(await browser.open('/account')).text.matchAll(/<span>organization left \(([^)]*)\), ([^<]*)</g)]
    .map(([, details, from]) => [details, from])
  const [one, other, third] = [await nimbus(), await nimbus(), await nimbus()]
  for (const { invite } of [one, other, third]) await press(browser, 'invitations/accept', await invite(rosa.email))
  t.equal((await press(browser, 'organizations/leave', one.o)).status, 303)
  t.strictSame(await leavings(), [['organization: Nimbus', 'from 127.0.0.1, node']])
  t.equal((await theirs('DELETE', `${other.members}/${rosa.id}`)).status, 204)
  t.match(await leavings(), [['organization: Nimbus', 'from 127.0.0.1, lightMyRequest'], ['organization: Nimbus', 'from 127.0.0.1, node']])
  t.equal((await third.call('DELETE', `${third.members}/${rosa.id}`)).status, 204)
  t.equal((await leavings()).length, 2)
  t.equal((await theirs('DELETE', `${other.members}/${rosa.id}`)).status, 404)
  t.equal((await leavings()).length, 2)
})

t.test('the pages say before acceptance what the organization will see, and later what each one sees', async (t) => {
  const { o, invite } = await nimbus()
  const [rosa, email] = [await makePerson(service), newcomer()]
  const browser = await signedIn(rosa)
  await invite(rosa.email)
  await invite(email)
  const seen = 'sign-ins and sign-outs, wrong passwords and codes, changes of your password and second factor, applications that you allow or end, and changes of your account by the operator, all without address and browser'
  const account = (await browser.open('/account')).text
  for (const [text, who] of [[account, 'An organization'], [(await visitor(address).open(await linkTo(email))).text, 'The organization']]) {
    t.ok(text!.includes(`${who} learns nothing about you until you accept. Then it sees your name, your e-mail address, and your acceptance with address and browser. While you are a member, it also sees your ${seen}.`))
  }
  t.ok(account.includes(`While you are a member, each organization sees: ${seen}. An organization sees address and browser only for its own events: you joined or left it, or ended one of its API tokens.`))
  t.ok(o)
})

t.test('the page and the mail name the inviter in the same words, in lower case inside a sentence', async (t) => {
  const { token, organization } = await service.organization()
  const rosa = await makePerson(service)
  const [browser, email] = [await signedIn(rosa), newcomer()]
  for (const to of [rosa.email, email]) {
    await bearer(token)('POST', `/organizations/${organization}/members`, { email: to, role: 'developer' })
  }
  const joining = (await visitor(address).open(await linkTo(email))).text
  t.match((await browser.open('/account')).text, /<strong>Nimbus<\/strong> <span>as developer, invited by the API token Test token, valid until /)
  t.match(joining, /<strong>Nimbus<\/strong>, as developer, by the API token Test token\./)
  t.match((await mailsTo(email)).at(-1)!.text, /^the API token "Test token" invites you to the organization "Nimbus" at /m)
  // Invitations of the operator have no inviter.
  await service.write(`UPDATE invitations SET invited_by_type = NULL, invited_by_id = NULL, invited_by_name = NULL
    WHERE organization_id = '${organization}'`)
  t.match((await browser.open('/account')).text, /, invited by the operator, valid until /)
})

t.test('an access token lists, accepts and declines invitations within its scopes; an API token does not', async (t) => {
  const [one, other] = [await nimbus(), await nimbus()]
  const rosa = await makePerson(service)
  const [accepted, declined] = [await one.invite(rosa.email), await other.invite(rosa.email)]
  const call = await as(rosa)
  const list = (await call('GET', '/user/invitations')).body
  t.strictSame(list.data.map(({ id }: { id: string }) => id), [declined, accepted])
  t.match(list.data[1], { attributes: { organization: { id: one.o, name: 'Nimbus' }, role: 'developer', invited_by: /^Person/ } })
  t.match((await call('GET', '/user/invitations?page=2&per_page=1')).body, { data: [{ id: accepted }], meta: { total: 2 } })
  const narrow = await as(rosa, ['member:create'])
  const requests = [
    ['GET', '/user/invitations'], ['POST', `/user/invitations/${accepted}/accept`],
    ['DELETE', `/user/invitations/${accepted}`]
  ] as const
  const token = bearer((await service.organization()).token)
  for (const [method, path] of requests) {
    const answer = await narrow(method, path)
    t.strictSame(failing(answer), method === 'GET' ? [200, undefined] : [403, 'insufficient_permissions'], path)
    t.strictSame(failing(await token(method, path)), [422, 'user_required'], path)
  }
  const stranger = await as(await makePerson(service))
  t.strictSame(failing(await stranger('POST', `/user/invitations/${accepted}/accept`)), [404, 'not_found'])
  t.strictSame(failing(await stranger('DELETE', `/user/invitations/${accepted}`)), [404, 'not_found'])
  t.match(await call('POST', `/user/invitations/${accepted}/accept`), {
    status: 200, body: { data: { type: 'organizations', id: one.o, attributes: { name: 'Nimbus', role: 'developer' } } }
  })
  t.equal((await call('GET', `/${one.o}/projects`)).status, 200)
  t.strictSame(failing(await call('POST', `/user/invitations/${accepted}/accept`)), [404, 'not_found'])
  t.equal((await call('DELETE', `/user/invitations/${declined}`)).status, 204)
  t.strictSame((await call('GET', '/user/invitations')).body.data, [])
  t.equal((await call('DELETE', `/organizations/${one.o}/members/${rosa.id}`)).status, 204, 'and leaves')
})

t.test('an invitation is sent again, withdrawn and expires after seven days, and each is recorded', async (t) => {
  const { o, call, invite, invitations } = await nimbus()
  const email = newcomer()
  const id = await invite(email)
  await service.write(`UPDATE invitations SET expires_at = now() + interval '1 minute' WHERE organization_id = '${o}'`)
  const sent = await call('POST', `${invitations}/${id}/send`)
  t.equal(sent.status, 200)
  const days = (new Date(sent.body.data.attributes.expires_at).getTime() - Date.now()) / 86_400_000
  t.ok(days > 6.9 && days <= 7, `${days} days`)
  t.equal((await call('DELETE', `${invitations}/${id}`)).status, 204)
  const rosa = await makePerson(service)
  const late = await invite(rosa.email)
  await service.write(`UPDATE invitations SET expires_at = now() - interval '1 second' WHERE organization_id = '${o}'`)
  const theirs = await as(rosa)
  t.strictSame(failing(await call('GET', `${invitations}/${late}`)), [404, 'not_found'])
  t.strictSame((await call('GET', invitations)).body.data, [])
  t.strictSame(failing(await call('POST', `${invitations}/${late}/send`)), [404, 'not_found'])
  t.strictSame(failing(await theirs('POST', `/user/invitations/${late}/accept`)), [404, 'not_found'])
  t.equal((await visitor(address).open(await linkTo(rosa.email))).status, 404)
  const worker = createRemovalWorker({ db: service.database.background, log: service.app.log })
  worker.wake()
  await until(async () => (await eventsOf(o)).at(-1)!.action === 'invitation.expire', { again: () => { worker.wake() } })
  await worker.stop()
  t.match((await eventsOf(o)).slice(-5).map(({ action, resource_id, details }) => [action, resource_id, details]), [
    ['invitation.create', id, { email, role: 'developer' }],
    ['invitation.send', id, { email, role: 'developer' }],
    ['invitation.withdraw', id, { email, role: 'developer' }],
    ['invitation.create', late, { email: rosa.email }],
    ['invitation.expire', late, { email: rosa.email }]
  ])
  t.same(await service.sql(`SELECT 1 FROM invitations WHERE organization_id = '${o}'`), [])
})

t.test('an expired invitation is recorded before its address is invited again; one changed by SQL is not', async (t) => {
  const { o, call, invite } = await nimbus()
  const [email, other] = [newcomer(), newcomer()]
  const [first, changed] = [await invite(email), await invite(other)]
  await service.write(`UPDATE invitations SET expires_at = now() - interval '1 second' WHERE organization_id = '${o}'`)
  await service.sql(`UPDATE invitations SET email = 'changed@nimbus.example' WHERE id = '${changed}'`)
  const second = await invite(email)
  const events = (await eventsOf(o)).filter(({ action }) => action.startsWith('invitation.'))
  t.match(events.slice(2).map(({ action, resource_id, details }) => [action, resource_id, details]), [
    ['invitation.expire', first, { email }],
    ['invitation.create', second, { email }]
  ])
  t.same(await service.sql(`SELECT id FROM invitations WHERE organization_id = '${o}'`), [{ id: second }])
  t.notMatch((await call('GET', `/organizations/${o}/audit`)).text, 'changed@nimbus.example')
})

t.test('an address gets one mail per organization and day, and the answer is the same without a mail', async (t) => {
  const [one, other] = [await nimbus(), await nimbus()]
  const email = newcomer()
  const answers = [await one.call('POST', one.members, { email, role: 'member' })]
  const { id } = answers[0]!.body.data
  const link = await linkTo(email)
  const again = await one.call('POST', `${one.invitations}/${id}/send`)
  t.equal(again.body.message, answers[0]!.body.message)
  t.match(again.body.message, /one e-mail from an organization in 24 hours\. If no e-mail was sent, the invitation is still listed on \S+\/account;/)
  t.equal((await visitor(address).open(link)).status, 200, 'the link that was mailed stays valid')
  await one.call('DELETE', `${one.invitations}/${id}`)
  t.equal((await visitor(address).open(link)).status, 404, 'until the invitation is withdrawn')
  answers.push(await one.call('POST', one.members, { email: email.toUpperCase(), role: 'member' }))
  t.equal(answers[1]!.body.message, answers[0]!.body.message)
  t.equal((await mailsTo(email)).length, 1)
  t.equal((await other.call('POST', other.members, { email, role: 'member' })).status, 201)
  t.equal((await mailsTo(email)).length, 2, 'another organization is not kept from it')
  await service.sql(`UPDATE invitation_mails SET sent_at = now() - interval '25 hours' WHERE organization_id = '${one.o}'`)
  await one.call('POST', `${one.invitations}/${answers[1]!.body.data.id}/send`)
  const mails = await mailsTo(email)
  t.equal(mails.length, 3)
  t.equal(mails[0]!.text.replace(/account\/\S+/, ''), mails[1]!.text.replace(/account\/\S+/, '')
    .replace(/Person \d+/, /Person \d+/.exec(mails[0]!.text)![0]))
})

t.test('one organization’s invitations leave those of others as they are, however many an address has', async (t) => {
  const email = newcomer()
  const first = await nimbus()
  await first.invite(email)
  const link = await linkTo(email)
  for (let i = 0; i < 12; i++) await (await nimbus()).invite(email)
  t.equal((await visitor(address).open(link)).status, 200)
  t.equal((await first.call('GET', first.invitations)).body.meta.total, 1)
})

t.test('usage counts open invitations beside members, so that both add up to what the limit counts', async (t) => {
  const { o, call, members, invite, invitations } = await nimbus('free')
  const seats = async () => {
    const { members: { used, limit }, open_invitations } = (await call('GET', `/organizations/${o}/usage`)).body.data.attributes
    return { used, limit, open_invitations }
  }
  t.strictSame(await seats(), { used: 1, limit: 5, open_invitations: 0 })
  const ids = [await invite(newcomer()), await invite(newcomer()), await invite(newcomer()), await invite(newcomer())]
  t.strictSame(await seats(), { used: 1, limit: 5, open_invitations: 4 })
  t.match((await call('POST', members, { email: newcomer(), role: 'member' })).body.details, { limit: 5, used: 5 })
  t.equal((await call('DELETE', `${invitations}/${ids[0]!}`)).status, 204)
  await service.write(`UPDATE invitations SET expires_at = now() - interval '1 second' WHERE id = '${ids[1]!}'`)
  t.strictSame(await seats(), { used: 1, limit: 5, open_invitations: 2 })
})

t.test('the seats of the plan and 100 limit open invitations; of two for the last seat, one succeeds', async (t) => {
  const { o, call, members, invite, invitations } = await nimbus('free')
  for (let n = 0; n < 3; n++) await invite(newcomer())
  for (let round = 0; round < 5; round++) {
    const answers = await Promise.all([newcomer(), newcomer()].map((email) =>
      call('POST', members, { email, role: 'member' })))
    t.strictSame(answers.map(({ status }) => status).sort(), [201, 422])
    t.match(answers.find(({ status }) => status === 422)!.body, {
      error: 'plan_limit_reached', details: { limit: 5, used: 5, plan: 'free' }
    })
    const { id } = answers.find(({ status }) => status === 201)!.body.data
    t.equal((await call('DELETE', `${invitations}/${id}`)).status, 204)
  }
  const wide = await nimbus()
  await service.write(`INSERT INTO invitations (organization_id, id, email, email_normalized, role, expires_at)
    SELECT '${wide.o}', lpad(n::text, 26, '0'), n || '@nimbus.example', n || '@nimbus.example', 'member',
      now() + interval '1 day' FROM generate_series(1, ${MAX_OPEN_INVITATIONS}) n`)
  const refused = await wide.call('POST', wide.members, { email: newcomer(), role: 'member' })
  t.match(refused, { status: 422, body: { error: 'limit_reached', details: { limit: MAX_OPEN_INVITATIONS } } })
  t.equal(o.length, 26)
})

t.test('a member or invited address is refused; no caller invites, sends or withdraws above their own role', async (t) => {
  const { o, call, invite, members, invitations } = await nimbus()
  const rosa = await makePerson(service, { [o]: 'member' })
  t.match(await call('POST', members, { email: rosa.email, role: 'member' }), {
    status: 422, body: { error: 'already_member', details: { status: 'active' } }
  })
  const email = newcomer()
  const id = await invite(email, 'owner')
  t.match(await call('POST', members, { email: email.toUpperCase(), role: 'member' }), {
    status: 422, body: { error: 'already_member', details: { status: 'invited' } }
  })
  const administrator = await as(await makePerson(service, { [o]: 'administrator' }))
  for (const [method, path, body] of [
    ['POST', members, { email: newcomer(), role: 'owner' }], ['POST', `${invitations}/${id}/send`],
    ['DELETE', `${invitations}/${id}`]
  ] as const) t.strictSame(failing(await administrator(method, path, body)), [422, 'role_not_held'], path)
  for (const wrong of ['0', 'x', id.replace(/.$/, (end) => end === '0' ? '1' : '0'), '%00']) {
    t.strictSame(failing(await call('GET', `${invitations}/${wrong}`)), [404, 'not_found'], wrong)
  }
  t.equal((await call('GET', `${invitations}/${id.toLowerCase()}`)).status, 200)
  const { headers } = await call('GET', `${invitations}/${id}`)
  await call('POST', `${invitations}/${id}/send`)
  const stale = await service.inject({
    method: 'DELETE',
    url: `/api/v1${invitations}/${id}`,
    headers: {
      authorization: `Bearer ${(await service.token(o, ['*'])).token}`, 'if-match': String(headers.etag)
    }
  })
  t.strictSame(failing(stale), [412, 'precondition_failed'])
})

t.test('who cannot join is told why, and the invitation stays open', async (t) => {
  const [owned, full, left] = [await nimbus(), await nimbus('free'), await nimbus()]
  const rosa = await makePerson(service)
  const ids = [await owned.invite(rosa.email, 'owner'), await full.invite(rosa.email), await left.invite(rosa.email)]
  const [browser, call] = [await signedIn(rosa), await as(rosa)]
  const told = ({ status, text }: { status: number, text: string }) =>
    [status, /<p[^>]*role="alert"[^>]*>([^<]*)</.exec(text)?.[1]]
  const accept = (id: string) => call('POST', `/user/invitations/${id}/accept`)

  const leave = await crowd(service, rosa, 'owner', MAX_OWNED)
  t.match(told(await press(browser, 'invitations/accept', ids[0]!)), [422, /the limit of organizations/])
  t.strictSame(failing(await accept(ids[0]!)), [422, 'memberships_full'])
  await leave()
  t.equal((await accept(ids[0]!)).status, 200)

  // The operator moved the organization to a smaller plan, or added members.
  for (let n = 0; n < 4; n++) {
    const { id } = await makePerson(service)
    await service.write(`INSERT INTO members (organization_id, user_id, role) VALUES ('${full.o}', ${id}, 'member')`)
  }
  t.match(told(await press(browser, 'invitations/accept', ids[1]!)), [422, /no free seat/])
  const setStatus = (status: string) =>
    service.sql(`UPDATE organization_counters SET status = '${status}' WHERE organization_id = '${full.o}'`)
  await setStatus('suspended')
  t.match(told(await press(browser, 'invitations/accept', ids[1]!)), [422, /is not active/])
  t.strictSame(failing(await accept(ids[1]!)), [403, 'organization_inactive'])
  await setStatus('active')
  t.strictSame(failing(await accept(ids[1]!)), [422, 'organization_full'])

  await service.write(`INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, token_suffix, abilities, user_id)
    SELECT '${left.o}', 'Before', sha256(('${left.o}/' || n)::bytea), 'dotenv_', '', '{}', ${rosa.id}
    FROM generate_series(1, 1500) n`)
  t.strictSame(failing(await accept(ids[2]!)), [409, 'conflict'])
  t.match(told(await press(browser, 'invitations/accept', ids[2]!)), [422, /are still being deleted/])
  for (const { o } of [full, left]) t.notOk(await isMember(o, rosa))
  t.notMatch(JSON.stringify(await eventsOf(full.o)), String(rosa.id), 'the organization learns nothing of it')
  t.equal((await call('GET', '/user/invitations')).body.meta.total, 2)
})

t.test('a member whom the operator adds needs no invitation, and the organization has the event', async (t) => {
  const { o } = await nimbus()
  const { user: { id } } = await addUser(
    service.database, address, { email: newcomer(), name: 'Rosa', membership: { organization: o, role: 'auditor' } }
  )
  t.ok(await isMember(o, { id }))
  t.match((await eventsOf(o)).slice(-2), [
    { action: 'member.create', actor_type: 'operator', resource_id: String(id), details: { role: 'auditor' } },
    { action: 'user.create', actor_type: 'operator' }
  ])
})

t.test('without a mail server the inviter is told how an invitation is accepted, the same for every address', async (t) => {
  const silent = await startIsolatedApp(t)
  const { organization: o, call } = await silent.organization()
  const rosa = await makePerson(silent)
  const texts = []
  for (const email of [rosa.email, newcomer()]) {
    const { body } = await call('POST', `/organizations/${o}/members`, { email, role: 'member' })
    texts.push(body.message)
  }
  t.equal(texts[0], texts[1])
  t.equal(texts[0].replace(/http\S+\/account/, 'PAGE'), 'This service sends no e-mail. Tell the person to accept the invitation on PAGE. ' +
    'If the person has no account, ask the operator to create one: npm run -s cli -- user add --email ADDRESS')
})

t.test('a mail that the mail server refuses does not count: the invitation can be sent again at once', async (t) => {
  const refusing = await startMailServer(t, 'refuses-recipient')
  const on = await startIsolatedApp(t, { SMTP_URL: `smtp://127.0.0.1:${refusing.port}` })
  const { organization: o, call } = await on.organization()
  const attempts = async () => {
    await on.app.outbox.settled()
    return refusing.commands.filter((one) => one.startsWith('RCPT')).length
  }
  const email = newcomer()
  const invited = await call('POST', `/organizations/${o}/members`, { email, role: 'member' })
  t.equal(await attempts(), 1)
  const again = await call('POST', `/organizations/${o}/invitations/${invited.body.data.id}/send`)
  t.equal(again.body.message, invited.body.message, 'the response does not say whether there was a mail')
  t.equal(await attempts(), 2)
  t.same(await on.sql('SELECT 1 FROM invitation_mails'), [])
})
