// runs: one database
import { sql } from 'drizzle-orm'
import t from 'tap'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import type { Role } from '../../schemas/users.ts'
import { addClient, switchClient } from '../../src/commands/people/clients.ts'
import { revokeToken } from '../../src/commands/people/tokens.ts'
import { switchUser } from '../../src/commands/people/users.ts'
import { MAX_ENDED } from '../../src/repositories/people/invitations.ts'
import { createGrant } from '../../src/repositories/people/oauth.ts'
import { scopesOfRole } from '../../src/rules/roles.ts'
import { ACTIVITY, callWith, startApp, type Answer, type Caller } from '../helpers/app.ts'
import { callAs, crowd, issuePair, makePerson, type Person } from '../helpers/people.ts'
import { startMailServer } from '../helpers/smtp.ts'
import { ON_POSTGRES } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'
import { formIn, visitor, type Visitor } from '../helpers/visitor.ts'

// An invitation ends when its inviter loses the right to invite.

const mail = await startMailServer(t)
const service = await startApp(t, { SMTP_URL: `smtp://127.0.0.1:${mail.port}` })
const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
const failing = ({ status, body }: Answer) => [status, body?.error]

type Call = Caller['call']
let guests = 0

/** An organization with an owner and an administrator. The administrator invites as a person, and with an API token. */
async function nimbus () {
  const { organization: o } = await service.organization()
  const [owner, iris] = [await makePerson(service, { [o]: 'owner' }), await makePerson(service, { [o]: 'administrator' })]
  const members = `/organizations/${o}/members`
  const [byOwner, byIris] = [await callAs(service, owner), await callAs(service, iris)]
  const invite = async (call: Call, role: Role = 'administrator') => {
    const guest = await makePerson(service)
    const answer = await call('POST', members, { email: guest.email, role })
    if (answer.status !== 201) throw new Error(answer.text)
    return { id: answer.body.data.id as string, email: guest.email, role, guest }
  }
  /** An API token that a person created with a grant for an application. */
  const makeToken = async (person: Person) => {
    const { access, grant } = await issuePair(service, person, SCOPE_NAMES)
    const made = await callWith(service, access)('POST', `/organizations/${o}/api-keys`, {
      name: 'Inviter', abilities: scopesOfRole('administrator')
    })
    if (made.status !== 201) throw new Error(made.text)
    return { grant, id: made.body.api_key.id as string, call: callWith(service, made.body.token) }
  }
  const open = async (): Promise<string[]> => (await byOwner('GET', `/organizations/${o}/invitations`)).body.data
    .map(({ id }: { id: string }) => id)
  return { o, owner, iris, byOwner, byIris, members, invite, makeToken, open }
}
type Invited = Awaited<ReturnType<Awaited<ReturnType<typeof nimbus>>['invite']>>

const accept = async ({ id, guest }: Pick<Invited, 'id' | 'guest'>) =>
  (await callAs(service, guest))('POST', `/user/invitations/${id}/accept`)

const withdrawals = async (o: string) => {
  const late = () => service.sql(`SELECT 1 FROM late_events WHERE organization_id = '${o}'`)
  await until(async () => (await late()).length === 0)
  return (await service.sql(`SELECT actor_type, actor_id, resource_id, details FROM audit_events
    WHERE organization_id = '${o}' AND action = 'invitation.withdraw' ORDER BY seq`))
}

async function signedIn ({ email, password }: Person) {
  const browser = visitor(address)
  await browser.signIn(await browser.open('/account'), email, password)
  return browser
}

/** Sends a form of a person's account page. */
async function press (person: Person, path: string, fields: Record<string, string> = {}, browser?: Visitor) {
  browser ??= await signedIn(person)
  const page = await browser.open('/account')
  const at = page.text.indexOf('<form method="post" action="/account/sign-out"')
  const sent = await browser.send(
    { ...formIn({ ...page, text: page.text.slice(at) }), action: `/account/${path}` }, fields
  )
  if (sent.status !== 303) throw new Error(sent.text)
}

/** The ways in which an inviter loses the right to invite an administrator. */
const ENDS: Record<string, (at: Awaited<ReturnType<typeof nimbus>>) => Promise<unknown>> = {
  'is demoted': ({ byOwner, members, iris }) => byOwner('PATCH', `${members}/${iris.id}`, { role: 'developer' }),
  'demotes themselves': ({ byIris, members, iris }) => byIris('PATCH', `${members}/${iris.id}`, { role: 'member' }),
  'is removed': ({ byOwner, members, iris }) => byOwner('DELETE', `${members}/${iris.id}`),
  'leaves through the API': ({ byIris, members, iris }) => byIris('DELETE', `${members}/${iris.id}`),
  'leaves on /account': ({ o, iris }) => press(iris, 'organizations/leave', { id: o }),
  'is disabled': ({ iris }) => switchUser(service.database, iris.email, true)
}

for (const [way, end] of Object.entries(ENDS)) {
  t.test(`invitations of a person who ${way}, and of their tokens, end at once, and no others`, async (t) => {
    const at = await nimbus()
    const token = await at.makeToken(at.iris)
    const [byPerson, byToken, byOther] = [
      await at.invite(at.byIris), await at.invite(token.call), await at.invite(at.byOwner)
    ]
    await end(at)
    t.strictSame(await at.open(), [byOther.id])
    t.same(await withdrawals(at.o), [byPerson, byToken].map(({ id, email, role }) => ({
      actor_type: 'system', actor_id: null, resource_id: id, details: { email, role, with: 'inviter' }
    })))
    for (const ended of [byPerson, byToken]) {
      t.strictSame((await (await callAs(service, ended.guest))('GET', '/user/invitations')).body.data, [])
      t.strictSame(failing(await accept(ended)), [404, 'not_found'])
    }
    t.equal((await accept(byOther)).status, 200)
  })
}

t.test('a lower role keeps the invitations to roles that it may give', async (t) => {
  const { byOwner, owner, members, invite, open, o } = await nimbus()
  const second = await makePerson(service, { [o]: 'owner' })
  const bySecond = await callAs(service, second)
  const [above, held] = [await invite(bySecond, 'owner'), await invite(bySecond, 'administrator')]
  t.equal((await byOwner('PATCH', `${members}/${second.id}`, { role: 'administrator' })).status, 200)
  t.strictSame(await open(), [held.id])
  t.strictSame(failing(await accept(above)), [404, 'not_found'])
  t.equal((await accept(held)).status, 200)
  t.ok(owner)
})

/** The ways in which a person's API token ends, while the person remains. */
const TOKEN_ENDS: Record<string, (
  at: Awaited<ReturnType<typeof nimbus>>, token: { id: string, grant: number }
) => Promise<unknown>> = {
  'is revoked': ({ o, byOwner }, { id }) => byOwner('DELETE', `/organizations/${o}/api-keys/${id}`),
  'is revoked by the operator': (_at, { id }) => revokeToken(service.database, Number(id)),
  'is ended on /account': ({ iris }, { id }) => press(iris, 'tokens/end', { id }),
  'ends with its application': ({ iris }, { grant }) => press(iris, 'applications/end', { id: String(grant) }),
  'ends with a sign-out everywhere': ({ iris }) => press(iris, 'sign-out', { where: 'everywhere' }),
  'ends with a new password': async ({ iris }) => {
    const browser = await signedIn(iris)
    const page = await browser.open('/account/password')
    return browser.send(formIn(page), { current: iris.password, password: 'another battery staple' })
  }
}

for (const [way, end] of Object.entries(TOKEN_ENDS)) {
  t.test(`invitations of a token that ${way} end at once; those of its person stay`, async (t) => {
    const at = await nimbus()
    const token = await at.makeToken(at.iris)
    const [byToken, byPerson] = [await at.invite(token.call), await at.invite(at.byIris)]
    await end(at, token)
    t.strictSame(await at.open(), [byPerson.id])
    t.match(await withdrawals(at.o), [{ actor_type: 'system', resource_id: byToken.id, details: { with: 'inviter' } }])
    t.strictSame(failing(await accept(byToken)), [404, 'not_found'])
    t.equal((await accept(byPerson)).status, 200)
  })
}

t.test('the invitations of an API token end when its client is disabled', async (t) => {
  const { o, iris, invite, open } = await nimbus()
  const client = `client-${o.toLowerCase()}`
  await addClient(service.database, { id: client, name: 'Client', redirect_uris: ['http://127.0.0.1/callback'] })
  const grant = await createGrant(service.database.db, { user_id: iris.id, client_id: client, scopes: SCOPE_NAMES })
  const token = await service.token(o, ['*'])
  await service.write(`UPDATE api_tokens SET user_id = ${iris.id}, grant_id = ${grant} WHERE organization_id = '${o}'
    AND created_by_type IS NULL`)
  const invited = await invite(token.call)
  await switchClient(service.database, client, true)
  t.strictSame(await open(), [])
  t.match(await withdrawals(o), [{ resource_id: invited.id }])
  t.strictSame(failing(await accept(invited)), [404, 'not_found'])
})

t.test('invitations of an expired token are invalid until its expiry moves; those of a rotated token stay', async (t) => {
  const { o, byOwner, owner, makeToken, invite, open } = await nimbus()
  const token = await makeToken(owner)
  const [first, second] = [await invite(token.call), await invite(token.call)]
  await service.write(`UPDATE api_tokens SET expires_at = now() - interval '1 second' WHERE organization_id = '${o}'
    AND id = ${token.id}`)
  t.strictSame(failing(await accept(first)), [404, 'not_found'])
  const path = `/organizations/${o}/api-keys/${token.id}`
  const later = new Date(Date.now() + 3_600_000).toISOString()
  t.equal((await byOwner('PUT', path, { expires_at: later })).status, 200)
  t.equal((await accept(first)).status, 200)
  t.equal((await byOwner('POST', `${path}/rotate`)).status, 200)
  t.strictSame(await open(), [second.id])
  t.equal((await accept(second)).status, 200)
})

/** Opens the mailed link of an invitation by an API token, for an address without an account. */
async function openLink ({ owner, makeToken, members }: Awaited<ReturnType<typeof nimbus>>) {
  const token = await makeToken(owner)
  const email = `guest-${++guests}@nimbus.example`
  t.equal((await token.call('POST', members, { email, role: 'developer' })).status, 201)
  await service.app.outbox.settled()
  const { text } = mail.mails.filter(({ to }) => to.includes(email)).at(-1)!
  const link = /^http:\S+(\/account\/invitation\/\S+)$/m.exec(text)![1]!
  const browser = visitor(address)
  return { token, email, link, browser, form: formIn(await browser.open(link)) }
}

t.test('a link does not open an account for an invitation that the inviter may no longer give', async (t) => {
  const at = await nimbus()
  const { o } = at
  const { token, email, link, browser, form } = await openLink(at)
  await service.write(`UPDATE api_tokens SET expires_at = now() - interval '1 second' WHERE organization_id = '${o}'
    AND id = ${token.id}`)
  t.equal((await browser.open(link)).status, 404)
  t.equal((await browser.send(form, { name: 'Guest', password: 'correct horse battery' })).status, 404)
  t.same(await service.sql(`SELECT id FROM users WHERE email = '${email}'`), [])
})

t.test('a link opens no account if the inviter\'s token ends while the form is sent', {
  skip: !ON_POSTGRES && 'one session: no request waits for another'
}, async (t) => {
  const at = await nimbus()
  const { o } = at
  const { token, email, browser, form } = await openLink(at)
  const { sent } = await service.database.longTransactions.transaction(async (db) => {
    await db.execute(sql`DELETE FROM api_tokens WHERE organization_id = ${o} AND id = ${token.id}::bigint`)
    const sent = browser.send(form, { name: 'Guest', password: 'correct horse battery' })
    await until(async () => (await service.sql(`SELECT 1 FROM ${ACTIVITY}
      WHERE datname = current_database() AND wait_event_type = 'Lock'`)).length > 0, { every: 5 })
    return { sent }
  })
  t.equal((await sent).status, 404)
  t.same(await service.sql(`SELECT id FROM users WHERE email = '${email}'`), [])
  t.equal((await browser.open('/account')).text.includes('Sign out'), false, 'no session')
})

t.test('a repeat of sending an invitation is refused to who may no longer give its role', async (t) => {
  const { o, owner, byOwner, members } = await nimbus()
  const other = await makePerson(service, { [o]: 'owner' })
  const byOther = await callAs(service, other)
  const guest = await makePerson(service)
  const { body } = await byOwner('POST', members, { email: guest.email, role: 'owner' })
  const send = (call: Call) => call(
    'POST', `/organizations/${o}/invitations/${body.data.id}/send`, {}, { 'idempotency-key': 'again' })
  t.equal((await send(byOther)).status, 200)
  t.equal((await send(byOther)).headers['idempotent-replayed'], 'true')
  t.equal((await byOwner('POST', `/organizations/${o}/invitations/${body.data.id}/send`, {})).status, 200)
  t.equal((await byOwner('PATCH', `${members}/${other.id}`, { role: 'administrator' })).status, 200)
  t.strictSame(failing(await send(byOther)), [422, 'role_not_held'])
  t.equal((await byOwner('GET', `/organizations/${o}/invitations`)).body.data.length, 1, `${owner.id} still gives it`)
})

t.test('who sends an invitation again gives it from then on', async (t) => {
  const { o, byOwner, byIris, iris, owner, members, invite, open } = await nimbus()
  const invited = await invite(byIris)
  const sent = await byOwner('POST', `/organizations/${o}/invitations/${invited.id}/send`)
  t.match(sent.body.data.attributes, { invited_by: { type: 'user', id: String(owner.id), name: owner.name } })
  t.equal((await byOwner('DELETE', `${members}/${iris.id}`)).status, 204)
  t.strictSame(await open(), [invited.id])
  t.equal((await accept(invited)).status, 200)
})

t.test('an invitation of the operator stays, whichever member leaves', async (t) => {
  const { o, byOwner, byIris, iris, members, invite, open } = await nimbus()
  const invited = await invite(byIris)
  await service.write(`UPDATE invitations SET invited_by_type = NULL, invited_by_id = NULL, invited_by_name = NULL
    WHERE organization_id = '${o}'`)
  t.equal((await byOwner('DELETE', `${members}/${iris.id}`)).status, 204)
  t.strictSame(await open(), [invited.id])
  t.equal((await accept(invited)).status, 200)
})

t.test('an inviter with a wrong MAC gives nothing', async (t) => {
  const { o, byIris, iris, invite } = await nimbus()
  const invited = await invite(byIris)
  await service.sql(`UPDATE members SET role = 'owner' WHERE organization_id = '${o}' AND user_id = ${iris.id}`)
  t.strictSame(failing(await accept(invited)), [404, 'not_found'])
})

t.test('an ended invitation frees its seat and its address', async (t) => {
  const { byOwner, byIris, iris, members, invite } = await nimbus()
  const { email } = await invite(byIris)
  t.equal((await byOwner('PATCH', `${members}/${iris.id}`, { role: 'member' })).status, 200)
  t.equal((await byOwner('POST', members, { email, role: 'member' })).status, 201)
})

t.test('a disabled account loses all its invitations, also more than one transaction ends', async (t) => {
  const [iris, other] = [await makePerson(service), await makePerson(service)]
  const remove = await crowd(service, iris, 'administrator', 150)
  const each = MAX_ENDED / 100
  await service.write(`INSERT INTO invitations
      (organization_id, id, email, email_normalized, role, invited_by_type, invited_by_id, invited_by_name, expires_at)
    SELECT organization_id, lpad(n || 'X' || person || right(organization_id, 8), 26, '0'),
      n || '-' || person || '@nimbus.example', n || '-' || person || '@nimbus.example', 'member', 'user', person, 'Inviter', date_trunc('second', now() + interval '1 day')
    FROM members, generate_series(1, ${each}) n, unnest(ARRAY[${iris.id}, ${other.id}]::bigint[]) person
    WHERE user_id = ${iris.id}`)
  const open = async () => await service.sql(`SELECT invited_by_id::text AS by, count(*)::int AS count FROM invitations
    WHERE invited_by_id IN (${iris.id}, ${other.id}) GROUP BY 1`)
  t.equal((await open()).length, 2)
  await switchUser(service.database, iris.email, true)
  t.same(await open(), [{ by: String(other.id), count: 150 * each }])
  const ofIris = `details->>'email' LIKE '%-${iris.id}@nimbus.example'`
  const recorded = await service.sql(`
    SELECT 1 FROM late_events WHERE event->>'action' = 'invitation.withdraw' AND event->'details'->>'email' LIKE '%-${iris.id}@nimbus.example'
    UNION ALL SELECT 1 FROM audit_events WHERE action = 'invitation.withdraw' AND ${ofIris}`)
  t.equal(recorded.length, 150 * each, 'each is recorded')
  await remove()
})

t.test('when the inviter is removed during an acceptance, the person joins before that or not at all', async (t) => {
  for (let round = 0; round < 12; round++) {
    const { o, byOwner, byIris, iris, members, invite } = await nimbus()
    const invited = await invite(byIris)
    const [accepted, removed] = await Promise.all([accept(invited), byOwner('DELETE', `${members}/${iris.id}`)])
    t.equal(removed.status, 204)
    const order = (await service.sql(`SELECT action FROM audit_events WHERE organization_id = '${o}'
      AND action IN ('member.join', 'member.delete', 'invitation.withdraw') ORDER BY seq`)).map(({ action }) => action)
    t.strictSame(order, accepted.status === 200
      ? ['member.join', 'member.delete']
      : ['member.delete', 'invitation.withdraw'], `round ${round}`)
  }
})

for (const [what, table] of [['the invitation', 'invitations'], ['the token of the inviter', 'api_tokens']] as const) {
  t.test(`an acceptance that waited is refused if ${what} expired meanwhile`, {
    skip: !ON_POSTGRES && 'one session: no request waits for another'
  }, async (t) => {
    const { o, iris, makeToken, members } = await nimbus()
    const token = await makeToken(iris)
    const guest = await makePerson(service)
    const invited = await token.call('POST', members, { email: guest.email, role: 'developer' })
    const id = { invitations: invited.body.data.id as string, api_tokens: token.id }[table]
    const accepted = await service.database.longTransactions.transaction(async (db) => {
      await db.execute(sql`SELECT FROM organization_counters WHERE organization_id = ${o} FOR UPDATE`)
      const accepted = accept({ id: invited.body.data.id, guest })
      await until(async () => (await service.sql(`SELECT 1 FROM ${ACTIVITY}
        WHERE datname = current_database() AND wait_event_type = 'Lock'`)).length > 0, { every: 5 })
      await service.write(`UPDATE ${table} SET expires_at = clock_timestamp() WHERE organization_id = '${o}' AND id = '${id}'`)
      // Not awaited here, because the acceptance waits for the end of this transaction.
      return { accepted }
    })
    t.equal((await accepted.accepted).status, 404)
  })
}

/** Ends of an inviter that do not wait for the lock of the organization. */
const FREE_ENDS: Record<string, (
  iris: Person, token: { id: string, grant: number }, browser: Visitor
) => Promise<unknown>> = {
  'the account is disabled': (iris) => switchUser(service.database, iris.email, true),
  'the token is ended on /account': (iris, { id }, browser) => press(iris, 'tokens/end', { id }, browser),
  'the application is ended': (iris, { grant }, browser) => press(iris, 'applications/end', { id: String(grant) }, browser),
  'all is signed out': (iris, _, browser) => press(iris, 'sign-out', { where: 'everywhere' }, browser)
}

for (const [way, end] of Object.entries(FREE_ENDS)) {
  for (const by of way === 'the account is disabled' ? ['person', 'token'] as const : ['token'] as const) {
    t.test(`during an acceptance ${way} after it or the person stays out (by a ${by})`, {
      skip: !ON_POSTGRES && 'one session: no request waits for another'
    }, async (t) => {
      const waiting = async () => (await service.sql(`SELECT 1 FROM ${ACTIVITY}
        WHERE datname = current_database() AND wait_event_type = 'Lock'`)).length
      // An acceptance that waits too long is judged again. Then the race did not take place.
      await until(async () => {
        const { o, iris, byIris, makeToken, members } = await nimbus()
        const token = await makeToken(iris)
        const project = await (by === 'token' ? token.call : byIris)('POST', `/${o}/projects`, { name: 'Atlas' })
        t.equal(project.status, 201)
        const guest = await makePerson(service)
        const invited = await (by === 'token' ? token.call : byIris)('POST', members, {
          email: guest.email, role: 'guest', place: { project: 'atlas' }, place_role: 'developer'
        })
        t.equal(invited.status, 201)
        const browser = await signedIn(iris)
        let isOver = false
        const { accepted, ended, wasOver } = await service.database.longTransactions.transaction(async (db) => {
          await db.execute(sql`SELECT FROM projects WHERE organization_id = ${o} FOR UPDATE`)
          const accepted = accept({ id: invited.body.data.id, guest })
          await until(async () => await waiting() > 0, { every: 5 })
          const ended = end(iris, token, browser).then(() => { isOver = true })
          await until(async () => isOver || await waiting() > 1, { every: 5 })
          return { accepted, ended, wasOver: isOver }
        })
        const { status } = await accepted
        await ended
        if (status === 200) t.notOk(wasOver, 'the end waited for the acceptance')
        else t.ok([404, 503].includes(status), String(status))
        return status === 200
      })
    })
  }
}
