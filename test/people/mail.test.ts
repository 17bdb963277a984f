// runs: one database; 20 s
import { once } from 'node:events'
import { createServer } from 'node:net'
import t, { type Test } from 'tap'
import { addClient, switchClient } from '../../src/commands/people/clients.ts'
import { addUser, mailLink, renewLink, serviceAddress, switchUser } from '../../src/commands/people/users.ts'
import { loadConfig } from '../../src/config.ts'
import { hashToken } from '../../src/crypto/bearer.ts'
import { transaction } from '../../src/changes/transaction.ts'
import { deleteOrganization } from '../../src/repositories/levels/organizations.ts'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { createMailer } from '../../src/mail/mailer.ts'
import {
  createOutbox, MAX_OF_ONE, MAX_SENDERS, MAX_TO_ADDRESS, MAX_UNDER_WAY
} from '../../src/mail/outbox.ts'
import { ACTIVITY, startIsolatedApp, type Answer, type TestApp } from '../helpers/app.ts'
import { issuePair, makePerson, tokensFor } from '../helpers/people.ts'
import { freePort } from '../helpers/postgres.ts'
import { startMailServer, type Mood } from '../helpers/smtp.ts'
import { until } from '../helpers/until.ts'
import { formIn, visitor } from '../helpers/visitor.ts'

// This file has its own database, because its people have fixed addresses.
const service = await startIsolatedApp(t)
const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
const nimbus = await service.organization()
const PASSWORD = 'canary/of the mail'
const SECRET = `app:${encodeURIComponent(PASSWORD)}`

const me = (token: string) => fetch(`${address}/api/v1/user`, { headers: { authorization: `Bearer ${token}` } })
const linkIn = (text: string) => /^http:\/\/\S+\/account\/(?:set-password|invitation)\/\S+$/m.exec(text)?.[0] ?? ''
/** The events of a user, without the sign-ins of the test itself. */
const eventsOf = async (userId: number) => (await service.sql(
  `SELECT action, actor_type FROM audit_events WHERE organization_id = '${nimbus.organization}' AND resource_id = '${userId}' AND resource_type = 'user' AND action NOT LIKE 'session.%' ORDER BY seq`
)).map(({ action, actor_type }) => `${String(action)} by ${String(actor_type)}`)

async function signIn (email: string, password: string) {
  const browser = visitor(address)
  const page = await browser.signIn(await browser.open('/account'), email, password)
  return { browser, page, isIn: page.status === 200 && !page.text.includes('name="password"') }
}

async function mailWith (t: Test, env: Record<string, string>) {
  const lines: string[] = []
  const config = loadConfig(env)
  const made = await addUser(
    service.database, address, { email: `m-${Math.random().toString(36).slice(2)}@nimbus.example`, name: 'Rosa' }
  )
  const mailed = await mailLink(config, made, (line) => lines.push(line))
  t.match(lines.join('\n'), mailed ? /^$/ : new RegExp(`^The mail to user ${made.user.id} was not sent: [^\\n]+$`))
  for (const secret of [
    'canary', encodeURIComponent(PASSWORD), Buffer.from(`\0app\0${PASSWORD}`).toString('base64'),
    made.link.split('/').at(-1)!, made.user.email
  ]) {
    t.notMatch(lines.join('\n'), secret, 'neither a secret nor an address in the log')
  }
  return { mailed, line: lines.join('\n'), made }
}

t.test('OA-93: an invitation arrives, and its link sets a password through HTTP, once', async (t) => {
  const server = await startMailServer(t)
  const config = loadConfig({
    SMTP_URL: `smtp://${SECRET}@127.0.0.1:${server.port}`, MAIL_FROM: 'Söhne & Co <secrets@example.com>'
  })
  const email = 'Rosa.Quill@nimbus.example'
  const made = await addUser(service.database, address, {
    email, name: 'Rosa Quill', membership: { organization: nimbus.organization.toLowerCase(), role: 'billing_manager' }
  })
  t.equal(await mailLink(config, made, () => t.fail('nothing is logged')), true)
  t.equal(server.mails.length, 1)
  const [mail] = server.mails
  t.match(mail, { from: 'secrets@example.com', to: [email] })
  t.match(mail!.headers, /^Content-Type: text\/plain; charset=utf-8/m)
  t.match(mail!.headers, /^Auto-Submitted: auto-generated\r?$/m)
  t.match(mail!.text, /^Hello "Rosa Quill",$/m)
  t.match(mail!.text, /billing manager in the organization "Nimbus"\./)
  t.equal(linkIn(mail!.text), made.link)
  t.ok(made.link.startsWith(`${address}/account/set-password/`), 'the configured address, not one of a request')

  const [first, second] = [visitor(address), visitor(address)]
  const [page, other] = [await first.open(linkIn(mail!.text)), await second.open(linkIn(mail!.text))]
  t.equal(page.status, 200)
  const password = 'a password of her own'
  t.equal((await first.send(formIn(page), { password })).status, 303)
  t.equal((await second.send(formIn(other), { password: 'another one, later' })).status, 404)
  t.equal((await visitor(address).open(made.link)).status, 404)
  t.ok((await signIn(email, password)).isIn)
  t.notOk((await signIn(email, 'another one, later')).isIn)
  t.same(await eventsOf(made.user.id), ['user.create by operator', 'user.password by user'])
})

t.test('OA-63: a new link voids the one before, and ends the old password when it is used, not earlier', async (t) => {
  const rosa = await makePerson(service, { [nimbus.organization]: 'owner' })
  const before = await signIn(rosa.email, rosa.password)
  const first = await renewLink(service.database, address, rosa.email.toUpperCase())
  const second = await renewLink(service.database, address, rosa.email)
  t.match(second.message.text, second.link)
  t.equal((await visitor(address).open(first.link)).status, 404)
  t.ok((await signIn(rosa.email, rosa.password)).isIn, 'the old password still counts')
  const browser = visitor(address)
  t.equal((await browser.send(formIn(await browser.open(second.link)), { password: 'a new password' })).status, 303)
  t.notOk((await signIn(rosa.email, rosa.password)).isIn)
  t.ok((await signIn(rosa.email, 'a new password')).isIn)
  t.match((await before.browser.open('/account')).text, 'name="password"', 'other browsers are signed out')
  t.same(await eventsOf(rosa.id), ['user.password by operator', 'user.password by operator', 'user.password by user'])
})

t.test('OA-63: a disabled account has no session, token or link, and gets none back when it is enabled', async (t) => {
  const rosa = await makePerson(service, { [nimbus.organization]: 'owner' })
  const { access_token } = await tokensFor(address, rosa)
  const { browser, isIn } = await signIn(rosa.email, rosa.password)
  t.ok(isIn)
  const { link } = await renewLink(service.database, address, rosa.email)
  t.equal((await me(access_token)).status, 200)

  await switchUser(service.database, rosa.email, true)
  t.equal((await me(access_token)).status, 401)
  t.match((await browser.open('/account')).text, 'name="password"')
  t.notOk((await signIn(rosa.email, rosa.password)).isIn)
  t.equal((await visitor(address).open(link)).status, 404)
  await t.rejects(renewLink(service.database, address, rosa.email), /is disabled/)

  // A sign-in that was running while the account was closed.
  await service.write(
    `INSERT INTO sessions (token_hash, user_id, expires_at) VALUES ('\\x01', ${rosa.id}, now() + interval '1 day')`
  )
  await switchUser(service.database, rosa.email, false)
  t.same(await service.sql(`SELECT 1 FROM sessions WHERE user_id = ${rosa.id}`), [])
  t.equal((await me(access_token)).status, 401)
  t.match((await browser.open('/account')).text, 'name="password"')
  t.equal((await visitor(address).open(link)).status, 404)
  t.ok((await signIn(rosa.email, rosa.password)).isIn)
  t.match(
    await eventsOf(rosa.id),
    ['oauth.grant by user', 'user.password by operator', 'user.disable by operator', 'user.enable by operator']
  )
})

t.test('OA-63: what cannot be done changes nothing', async (t) => {
  const add = async (membership: { organization: string, role: 'owner' } | undefined, email: string) =>
    addUser(service.database, address, { email, name: 'Iris', membership })
  await t.rejects(
    add({ organization: 'nowhere', role: 'owner' }, 'iris@nimbus.example'),
    { name: 'StartError', message: 'There is no organization nowhere' }
  )
  const { user } = await add({ organization: nimbus.organization, role: 'owner' }, 'iris@nimbus.example')
  await t.rejects(
    add(undefined, 'IRIS@nimbus.example'),
    { name: 'StartError', message: 'An account with IRIS@nimbus.example already exists' }
  )
  await t.rejects(
    renewLink(service.database, address, 'nobody@nimbus.example'),
    { name: 'StartError', message: 'There is no account with nobody@nimbus.example' }
  )
  await t.rejects(
    switchUser(service.database, 'nobody@nimbus.example', true),
    { name: 'StartError', message: 'There is no account with nobody@nimbus.example' }
  )
  const small = (await service.organization({ plan: 'free' })).organization
  const added = await Promise.allSettled(Array.from({ length: 8 }, (_, i) =>
    addUser(service.database, address, {
      email: `seat-${i}@nimbus.example`, name: 'Iris', membership: { organization: small, role: 'member' }
    })))
  t.strictSame(
    added.flatMap((one) => one.status === 'rejected' ? [String(one.reason)] : []),
    Array(3).fill(`StartError: The plan free of ${small} is limited to 5 members: change it with \`organization set --plan\``)
  )
  const [{ members, accounts }] = await service.sql(`SELECT
    (SELECT count(*)::int FROM members WHERE organization_id = '${small}') AS members,
    (SELECT count(*)::int FROM users WHERE email LIKE 'seat-%') AS accounts`) as [Record<string, number>]
  t.strictSame([members, accounts], [5, 5], 'who has no seat has no account either')
  // The organization is deleted while the command waits for it. With a single connection, it is deleted before the
  // command starts.
  const gone = await service.organization()
  let adding: Promise<unknown> | undefined
  await transaction(service.database.db, async (db) => {
    await deleteOrganization(db, gone.organization)
    adding = add({ organization: gone.organization, role: 'owner' }, 'late@nimbus.example').catch(String)
    const isWaiting = async () => (await service.sql(`SELECT FROM ${ACTIVITY}
      WHERE datname = current_database() AND wait_event_type = 'Lock'`)).length > 0
    if (process.env.TEST_DATABASE_URL !== undefined) await until(isWaiting, { every: 0 })
  })
  t.equal(await adding, `StartError: There is no organization ${gone.organization}`)
  t.same(await eventsOf(user.id), ['user.create by operator'])
  const links = await service.sql(
    `SELECT token_hash = decode('${hashToken((await renewLink(service.database, address, user.email)).link.split('/').at(-1)!).toString('hex')}', 'hex') AS hashed FROM password_links WHERE user_id = ${user.id}`
  )
  t.same(links, [{ hashed: true }], 'only the hash of the newest link is stored')

  t.equal(
    serviceAddress({ publicUrl: 'https://secrets.example.com', host: '::1', port: 0 }), 'https://secrets.example.com'
  )
  for (const [host, shown] of Object.entries({
    '::1': '[::1]',
    // For a wildcard address, an address that this machine can open.
    '0.0.0.0': '127.0.0.1',
    0: '127.0.0.1',
    '::': '[::1]',
    '0:0:0:0:0:0:0:0': '[::1]',
    '192.168.1.5': '192.168.1.5',
    'vault.example': 'vault.example'
  })) t.equal(serviceAddress({ publicUrl: undefined, host, port: 8080 }), `http://${shown}:8080`, host)
  t.throws(() => serviceAddress({ publicUrl: undefined, host: '127.0.0.1', port: 0 }), /^PORT is 0.*PUBLIC_URL$/)
})

t.test('OA-63: a client that is shut out has no token left', async (t) => {
  const rosa = await makePerson(service, { [nimbus.organization]: 'owner' })
  const uri = 'https://deploy.example/back'
  await addClient(service.database, { id: 'deploy', name: 'Deploy', redirect_uris: [uri] })
  const { access_token } = await tokensFor(address, rosa, { client_id: 'deploy', redirect_uri: uri })
  t.equal((await me(access_token)).status, 200)
  await switchClient(service.database, 'deploy', true)
  t.equal((await me(access_token)).status, 401)
  await t.rejects(tokensFor(address, rosa, { client_id: 'deploy', redirect_uri: uri }))
  await switchClient(service.database, 'deploy', false)
  t.equal((await me(access_token)).status, 401)
  t.equal(
    (await me((await tokensFor(address, rosa, { client_id: 'deploy', redirect_uri: uri })).access_token)).status, 200
  )
  await t.rejects(
    switchClient(service.database, 'nothing', true), { name: 'StartError', message: 'There is no client nothing' }
  )
})

t.test('OA-93: a mail that cannot be sent is one line without a secret, and the link works all the same', async (t) => {
  const nobody = await freePort()
  const failures: [env: Record<string, string>, mood: Mood | undefined, reason: RegExp][] = [
    [{}, undefined, /SMTP_URL is not set$/],
    [{ SMTP_URL: `smtp://${SECRET}@127.0.0.1:${nobody}` }, undefined, /cannot be reached \(ECONNREFUSED\)$/],
    [{ SMTP_URL: 'smtp://127.0.0.1' }, 'silent', /did not answer in time$/],
    [{ SMTP_URL: 'smtp://127.0.0.1' }, 'refuses-password', /rejected the user and password in SMTP_URL \(535\)$/],
    [{ SMTP_URL: 'smtp://127.0.0.1' }, 'refuses-recipient', /refused the sender or the recipient \(550\)$/],
    [{ SMTP_URL: 'smtp://127.0.0.1' }, 'hangs-up', /closed the connection$|cannot be reached/]
  ]
  for (const [env, mood, reason] of failures) {
    const url = mood === undefined
      ? env.SMTP_URL
      : `smtp://${SECRET}@127.0.0.1:${(await startMailServer(t, mood)).port}`
    const { mailed, line, made } = await mailWith(t, url === undefined ? {} : { SMTP_URL: url })
    t.equal(mailed, false)
    t.match(line, reason)
    t.equal((await visitor(address).open(made.link)).status, 200)
  }
})

t.test('OA-93: without TLS nothing is said to a mail server elsewhere, least of all the password', async (t) => {
  const server = await startMailServer(t)
  // The address leads to this machine, but is not a loopback address.
  const { mailed, line } = await mailWith(t, { SMTP_URL: `smtp://${SECRET}@0.0.0.0:${server.port}` })
  t.equal(mailed, false)
  t.match(line, /does not offer TLS with a trusted certificate/)
  t.same(server.commands.filter((command) => !/^(?:EHLO|HELO|STARTTLS|QUIT)/.test(command)), [])
  t.ok(server.commands.includes('STARTTLS'), 'it was asked for')
  t.same(server.mails, [])

  const plain = createServer((socket) => {
    socket.on('error', () => {}).end('220 no TLS here\r\n')
  }).listen(0, '127.0.0.1')
  await once(plain, 'listening')
  t.teardown(() => plain.close())
  t.equal((await mailWith(
    t, { SMTP_URL: `smtps://${SECRET}@127.0.0.1:${(plain.address() as { port: number }).port}` }
  )).mailed, false)
})

t.test('OA-93: an address or a name cannot add a recipient or a header', async (t) => {
  const server = await startMailServer(t)
  const config = loadConfig({
    SMTP_URL: `smtp://127.0.0.1:${server.port}`, PUBLIC_URL: 'https://secrets.example.com/base'
  })
  const name = 'Eve <eve@elsewhere.example>, Bcc: eve@elsewhere.example'
  // Addresses that the operator entered by mistake. The service sends no mail there.
  for (const email of [
    'rosa,eve@nimbus.example', 'rosa;eve@nimbus.example', '"rosa"@nimbus.example', 'rosa(eve)@nimbus.example',
    'group:eve@nimbus.example'
  ]) t.notOk(await mailLink(config, await addUser(service.database, address, { email, name }), () => {}), email)
  const own = "o'rosa+eve@nimbus.example"
  t.ok(await mailLink(config, await addUser(service.database, address, { email: own, name }), () => {}))
  const [mail, ...others] = server.mails
  t.match(mail, { from: 'no-reply@secrets.example.com', to: [own] })
  t.equal(mail!.to.length, 1)
  t.notMatch(mail!.headers, 'elsewhere')
  t.strictSame(others, [])
  const made = await addUser(
    service.database, address, { email: 'eve@nimbus.example\r\nRCPT TO:<eve@elsewhere.example>', name: 'Eve' }
  )
  await mailLink(config, made, () => {})
  t.notMatch(server.commands.join('\n'), 'RCPT TO:<eve@elsewhere.example>')
  await mailLink(config, {
    ...made,
    user: { id: 1, email: 'eve@nimbus.example' },
    message: { subject: 'A\r\nBcc: eve@elsewhere.example', text: '.\r\nQUIT\r\n' }
  }, () => {})
  t.notMatch(server.mails.at(-1)!.headers, /^Bcc/im)
})

const ON_ITS_WAY = /^The person can accept the invitation on \S+\/account or with the link in the e-mail\./
const inviter = (on: TestApp, token: string, organization: string) => {
  const send = (method: 'POST' | 'DELETE', path: string, payload?: object): Promise<Answer> => on.inject({
    method,
    url: `/api/v1/organizations/${organization}${path}`,
    headers: { authorization: `Bearer ${token}` },
    ...(payload !== undefined && { payload })
  })
  return {
    organization,
    send,
    /** Sends an invitation, returns its message, and withdraws the invitation. */
    async tells (email: string) {
      const { status, body, text } = await send('POST', '/members', { email, role: 'member' })
      if (status !== 201) throw new Error(text)
      await send('DELETE', `/invitations/${body.data.id}`)
      return body.message as string
    }
  }
}
const isCutOff = (t: Test, message: string) =>
  t.match(message, /^The e-mail queue is full, so no e-mail is sent\. .*user add --email ADDRESS$/)

t.test('mails take turns; a sender over the share, in two organizations, is told, and delays no other', async (t) => {
  const server = await startMailServer(t)
  const on = await startIsolatedApp(t, { SMTP_URL: `smtp://127.0.0.1:${server.port}` })
  const places = [await on.organization(), await on.organization()]
  const sender = await makePerson(on, Object.fromEntries(places.map(({ organization }) => [organization, 'owner'])))
  const { access } = await issuePair(on, sender, SCOPE_NAMES)
  const busy = places.map(({ organization }) => inviter(on, access, organization))
  const { token, organization } = await on.organization()
  const other = inviter(on, token, organization)
  const rosa = await makePerson(on)
  let last = 0
  const newcomer = () => `newcomer-${++last}@nimbus.example`
  let turns = 0
  const invite = async (by: typeof other | typeof busy, email: string) =>
    (await (Array.isArray(by) ? by[++turns % 2]! : by).send('POST', '/members', { email, role: 'owner' })).body.message as string

  server.hold()
  for (let i = 1; i <= MAX_UNDER_WAY; i++) {
    t.match(await invite(busy, newcomer()), ON_ITS_WAY)
    await until(() => server.mails.length === i)
  }
  for (let i = 1; i < MAX_OF_ONE; i++) t.match(await invite(busy, newcomer()), ON_ITS_WAY)
  for (let i = 1; i <= 3; i++) {
    const again = { email: `newcomer-${i}@nimbus.example`, role: 'owner' }
    t.equal((await busy[i % 2]!.send('POST', '/members', again)).status, 422)
  }
  t.match(await invite(busy, newcomer()), ON_ITS_WAY, 'what was refused took no room')

  const [known, unknown] = [await invite(busy, rosa.email), await invite(busy, newcomer())]
  isCutOff(t, unknown)
  t.equal(known, unknown, 'nothing tells who has an account')
  t.same(
    await on.sql(`SELECT token_hash FROM invitations WHERE organization_id = '${busy[0]!.organization}' AND email = '${rosa.email}'
      UNION ALL SELECT token_hash FROM invitations WHERE organization_id = '${busy[1]!.organization}' AND email = '${rosa.email}'`),
    [{ token_hash: null }], 'an invitation without a mail has no link'
  )
  const lines = on.logs.filter((line) => line.includes('is not sent'))
  t.equal(lines.length, 2)
  for (const line of lines) {
    t.match(line, /A mail of the organization \w+ is not sent: the mail queue is full/)
    t.ok(busy.some(({ organization }) => line.includes(organization)))
    t.notMatch(line, 'nimbus.example', 'no address in the log')
  }

  const turn = newcomer()
  t.match(await invite(other, turn), ON_ITS_WAY)
  for (const many of [1, 2]) {
    server.release(1)
    await until(() => server.mails.length === MAX_UNDER_WAY + many)
  }
  t.ok(server.mails.some(({ to }) => to.includes(turn)), 'the other one was next')
  const again = newcomer()
  t.match(await invite(busy, again), ON_ITS_WAY, 'there is room again')
  server.release()
  await until(() => server.mails.length === MAX_UNDER_WAY + MAX_OF_ONE + 2)
  t.equal(new Set(server.mails.flatMap(({ to }) => to)).size, server.mails.length, 'each mail arrived once')
})

t.test('a sender without a queued mail has room and is next, however many senders and organizations queue', async (t) => {
  const server = await startMailServer(t)
  const lines: string[] = []
  const log = (line: string) => lines.push(line)
  const outbox = createOutbox(
    createMailer(loadConfig({ SMTP_URL: `smtp://127.0.0.1:${server.port}` }), log), true, log
  )
  let last = 0
  const post = (person: number | null, organization: string) => {
    const to = `newcomer-${++last}@nimbus.example`
    const room = outbox.reserve({ person, organization }, to)
    room?.post({ about: `user ${last}`, to, subject: String(person), text: organization })
    return room === undefined ? undefined : to
  }
  const fill = (count: number, one: (n: number) => string | undefined) => {
    let posted = 0
    for (let n = 0; n < count; n++) for (let i = 0; i < 2 * MAX_OF_ONE && one(n) !== undefined; i++) posted++
    return posted
  }
  server.hold()
  for (let n = 1; n <= MAX_UNDER_WAY; n++) post(null, `under way ${n}`)
  await until(() => server.mails.length === MAX_UNDER_WAY)

  t.equal(fill(75, (n) => post(1, `of one person ${n}`)), MAX_OF_ONE, 'one person, through 75 organizations')
  t.ok(post(2, 'of one person 0'), 'another person there')
  t.equal(fill(3, (n) => post(3 + n, 'of many people')), MAX_OF_ONE + 2, 'one organization, but for a first of each')
  const all = fill(100, (n) => post(100 + n, `of their own ${n}`)) + server.mails.length
  t.ok(all < 100 * MAX_OF_ONE, 'not everybody found room for all of theirs')
  t.notOk(post(101, 'of their own 1'), 'nor for more')
  const newcomers = Array.from({ length: 200 }, (_, n) => post(1_000 + n, `new ${n}`))
  t.notOk(newcomers.includes(undefined), 'a first one has room')
  t.notOk(post(1_000, 'new 0'), 'a second one has none')
  const nobodys = post(null, 'of no person')
  t.ok(nobodys)

  server.release()
  await until(() => server.mails.some(({ to }) => to.includes(nobodys!)))
  const order = server.mails.map(({ headers }) => /^Subject: (\d+)/m.exec(headers)?.[1])
  t.ok(order.filter((person) => person === '1').length <= 2, 'a sender with many queued mails waits for each')
  // Thousands of mails are queued. The test does not wait for all of them; fewer mails suffice to show that each
  // arrives.
  server.close()
  await outbox.settled()
  t.ok(post(1, 'of one person 0'), 'there is room again')
  await outbox.settled()
})

t.test('MAX_SENDERS senders have room for a first mail, whatever is queued; one more once a mail is done', (t) => {
  const lines: string[] = []
  const log = (line: string) => lines.push(line)
  const outbox = createOutbox(createMailer(loadConfig({}), log), true, log)
  let last = 0
  const reserve = (person: number) =>
    outbox.reserve({ person, organization: `of ${person}` }, `newcomer-${++last}@nimbus.example`)
  let taken = 0
  for (let person = 0; person < MAX_OF_ONE; person++) while (reserve(person) !== undefined) taken++
  t.ok(taken < MAX_OF_ONE * MAX_OF_ONE, 'what is left besides is full')
  const firsts = Array.from({ length: MAX_SENDERS - MAX_OF_ONE }, (_, n) => reserve(MAX_OF_ONE + n))
  t.notOk(firsts.includes(undefined), 'a first one has room')
  lines.length = 0
  t.notOk(reserve(MAX_SENDERS), 'of so many, and no more')
  t.match(lines, [`A mail of the organization of ${MAX_SENDERS} is not sent: the mail queue is full`])
  firsts[0]!.release()
  t.ok(reserve(MAX_SENDERS), 'there is room again')
  t.notOk(reserve(MAX_OF_ONE), 'for as many')
  t.end()
})

/** A person with new organizations, and a function that invites in each of them. */
async function sender (on: TestApp, many: number) {
  const places: string[] = []
  for (let n = 0; n < many; n++) places.push((await on.organization()).organization)
  const person = await makePerson(on, Object.fromEntries(places.map((id) => [id, 'owner' as const])))
  const { access } = await issuePair(on, person, SCOPE_NAMES)
  return { access, places, by: places.map((id) => inviter(on, access, id)) }
}

t.test('an address is bounded by its mailbox, however its domain is spelled', async (t) => {
  const server = await startMailServer(t)
  const on = await startIsolatedApp(t, { SMTP_URL: `smtp://127.0.0.1:${server.port}` })
  const { by } = await sender(on, MAX_TO_ADDRESS + 3)
  const spellings = ['rosa@münchen.example', 'rosa@xn--mnchen-3ya.example', 'Rosa@XN--MNCHEN-3YA.example']
  for (let i = 0; i < MAX_TO_ADDRESS; i++) t.match(await by[i]!.tells(spellings[i % 3]!), ON_ITS_WAY)
  for (const [i, spelling] of spellings.entries()) isCutOff(t, await by[MAX_TO_ADDRESS + i]!.tells(spelling))
  t.match(await by[0]!.tells('iris@münchen.example'), ON_ITS_WAY, 'another address')
})

t.test('no sender floods an address through many organizations, or keeps the mails of others from it', async (t) => {
  const server = await startMailServer(t)
  const on = await startIsolatedApp(t, { SMTP_URL: `smtp://127.0.0.1:${server.port}` })
  const address = await on.app.listen({ host: '127.0.0.1', port: 0 })
  const email = 'Rosa.Quill@nimbus.example'
  const arrive = (many: number) => until(() => server.mails.length === many)
  const most = MAX_TO_ADDRESS

  const flood = await sender(on, most + 2)
  for (let i = 0; i < most; i++) {
    const one = i % 3 ? email : email.toLowerCase()
    t.match((await flood.by[i]!.send('POST', '/members', { email: one, role: 'member' })).body.message, ON_ITS_WAY)
    await arrive(i + 1)
  }
  const token = await on.inject({
    method: 'POST',
    url: `/api/v1/organizations/${flood.places[most]}/api-keys`,
    headers: { authorization: `Bearer ${flood.access}` },
    payload: { name: 'Theirs', abilities: ['*'], expires_at: new Date(Date.now() + 3_600_000).toISOString() }
  })
  isCutOff(t, await inviter(on, token.body.token, flood.places[most]!).tells(email))
  isCutOff(t, await flood.by[most + 1]!.tells(email))
  const link = linkIn(server.mails.at(-1)!.text)
  t.equal((await visitor(address).open(link)).status, 200, 'the link of the last mail stays valid')
  t.match(await flood.by[0]!.tells('iris@nimbus.example'), ON_ITS_WAY, 'another address')
  await arrive(most + 1)

  for (let round = 0; round < 3; round++) {
    const { by } = await sender(on, most + 1)
    for (let i = 0; i < most; i++) t.match(await by[i]!.tells(email), ON_ITS_WAY)
    isCutOff(t, await by[most]!.tells(email))
  }
  t.match(await (await sender(on, 1)).by[0]!.tells(email), ON_ITS_WAY, 'whatever strangers sent to the address before')
  await arrive(4 * most + 2)
  t.notMatch(on.logs.join(''), /quill/i)
  t.match(
    on.logs.join(''),
    `A mail of the organization ${flood.places[most]} is not sent: too many mails to this address in an hour`
  )
})
