// runs: one database
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import t from 'tap'
import { renewLink } from '../../src/commands/people/users.ts'
import { hashToken, mintSecret } from '../../src/crypto/bearer.ts'
import { COSTS } from '../../src/crypto/costs.ts'
import { addressKey } from '../../src/http/routes/addresses.ts'
import { MAX_OF_ONE } from '../../src/mail/outbox.ts'
import { countKey } from '../../src/repositories/people/attempts.ts'
import { createPasswordReset } from '../../src/repositories/people/password-resets.ts'
import { createUser, setDisabled } from '../../src/repositories/people/users.ts'
import { transaction } from '../../src/changes/transaction.ts'
import { earlier, startIsolatedApp, type Answer } from '../helpers/app.ts'
import { QUICK } from '../helpers/costs.ts'
import { giveSecondFactor, makePerson, tokensFor, type Person } from '../helpers/people.ts'
import { startMailServer } from '../helpers/smtp.ts'
import { postAndLeave } from '../helpers/sockets.ts'
import { until } from '../helpers/until.ts'
import { formIn, visitor, type Seen, type Visitor } from '../helpers/visitor.ts'

// A mailed link replaces a forgotten password. No caller learns whether an address has an account, and the link alone
// starts no session.

const FORGOT = '/account/forgot-password'
const NEW = 'a new long password'

const mail = await startMailServer(t)
// This file has its own database, because it removes and looks at all sign-in attempts.
const service = await startIsolatedApp(t, { SMTP_URL: `smtp://127.0.0.1:${mail.port}` })
const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
const { db } = service.database

const FIREFOX = 'Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0'
const newVisitor = (agent = FIREFOX) => visitor(address, { 'sec-fetch-site': 'same-origin', 'user-agent': agent })

/** Waits until no mail is queued or being sent; a mail is queued after its response. */
async function untilSent () {
  const { outbox } = service.app
  await until(() => outbox.load().waiting === 0 && outbox.load().underWay === 0, { every: 5 })
}
const mailsTo = async (email: string) => {
  await untilSent()
  return mail.mails.filter(({ to }) => to.includes(email))
}

/** Sends the form of the page for a forgotten password. */
async function ask (email: string, browser: Visitor = newVisitor()): Promise<Seen> {
  return browser.send(formIn(await browser.open(FORGOT)), { email })
}

const linkIn = (text: string) => /^http:\S+(\/account\/reset-password\/[\w-]{43})$/m.exec(text)?.[1] ?? ''

/** The path of the newest mailed link of a person. */
async function linkFor ({ email }: Pick<Person, 'email'>): Promise<string> {
  await service.sql('DELETE FROM sign_in_failures')
  const { status, text } = await ask(email)
  if (status !== 200) throw new Error(text)
  return linkIn((await mailsTo(email)).at(-1)!.text)
}

const use = async (link: string, password = NEW, changes: Record<string, string | undefined> = {}) => {
  const browser = newVisitor()
  const page = await browser.open(link)
  return page.status === 200 ? browser.send(formIn(page), { password, ...changes }) : page
}

async function signIn ({ email }: Pick<Person, 'email'>, password: string, agent?: string) {
  const browser = newVisitor(agent)
  const page = await browser.signIn(await browser.open('/account'), email, password)
  return { browser, page, isIn: page.text.includes('Sign out everywhere') }
}
const isAlive = async (browser: Visitor) => (await browser.open('/account')).text.includes('Sign out everywhere')
const isAccepted = async (token: string) => (await fetch(`${address}/api/v1/user`, {
  headers: { authorization: `Bearer ${token}` }
})).status === 200

const eventsOf = async ({ id }: Pick<Person, 'id'>, organization: string) => (await service.sql(
  `SELECT action, details - 'late' AS details FROM audit_events
  WHERE organization_id = '${organization}' AND resource_type = 'user' AND resource_id = '${id}' AND action LIKE 'user.%'
  ORDER BY seq`
)).map(({ action, details }) => ({ action, details }))

t.test('CR-48: a mailed link sets a new password once, starts no session, ends all sessions and grants', async (t) => {
  const nimbus = await service.organization()
  const rosa = await makePerson(service, { [nimbus.organization]: 'owner' })
  const elsewhere = await signIn(rosa, rosa.password)
  const { access_token } = await tokensFor(address, rosa)
  t.ok(elsewhere.isIn && await isAccepted(access_token))

  const visitorOfRosa = newVisitor()
  const signInPage = await visitorOfRosa.open('/account')
  t.match(signInPage.text, `<a href="${FORGOT}">Forgot your password?</a>`)
  const asked = await ask(` ${rosa.email.toUpperCase()}`, visitorOfRosa)
  t.equal(asked.status, 200)
  t.match(asked.text, /If <strong>.*<\/strong> is the address of an account/)
  const [letter, ...more] = await mailsTo(rosa.email)
  t.equal(more.length, 0)
  t.match(letter!.text, 'It works once, within 30 minutes')
  t.match(letter!.text, `http://${new URL(address).host}/account/reset-password/`, 'the address of the service')
  const link = linkIn(letter!.text)

  const page = await visitorOfRosa.open(link)
  t.equal(page.headers.get('referrer-policy'), 'no-referrer')
  t.equal(page.headers.get('cache-control'), 'no-store')
  t.match(page.text, /name="end_sessions" value="yes" checked/)
  t.match(page.text, rosa.email)
  const short = await visitorOfRosa.send(formIn(page), { password: 'short' })
  t.equal(short.status, 422)
  t.ok(await isAlive(elsewhere.browser), 'nothing happens before the password is set')
  const done = await visitorOfRosa.send(formIn(short), { password: NEW })
  t.equal(done.status, 200)
  t.match(done.text, 'Your password was changed')
  t.notMatch(done.headers.getSetCookie().join(), 'session=')
  t.notOk(await isAlive(visitorOfRosa), 'the link starts no session')

  t.notOk(await isAlive(elsewhere.browser))
  t.notOk(await isAccepted(access_token))
  t.notOk((await signIn(rosa, rosa.password)).isIn)
  t.equal((await nimbus.call('GET', `/${nimbus.organization}/projects`)).status, 200, 'API tokens of organizations stay')
  const after = await signIn(rosa, NEW)
  t.ok(after.isIn)
  t.match(after.page.text, /password set, or a link to set it created \(link: reset, other sessions: ended\), from 127\.0\.0\.1/)
  t.match(after.page.text, /link to reset the password requested, from 127\.0\.0\.1/)
  t.strictSame(await eventsOf(rosa, nimbus.organization), [
    { action: 'user.password', details: { link: 'reset', other_sessions: 'ended' } }
  ])

  t.equal((await use(link, 'another long password')).status, 404, 'once')
  t.equal((await visitorOfRosa.send(formIn(page), { password: 'another long password' })).status, 404)
  t.ok((await signIn(rosa, NEW)).isIn)
  const notice = (await mailsTo(rosa.email)).at(-1)!
  t.match(notice.headers, /^Subject: Your Strongroom password was changed/m)
  t.match(notice.text, 'from: Firefox on Linux, 127.0.0.0/24.')
  t.match(notice.text, 'All browsers were signed out.')

  const secret = link.split('/').at(-1)!
  t.notMatch(service.logs.join(''), secret)
  t.notMatch(service.logs.join('').toLowerCase(), rosa.email)
  t.match(service.logs.join(''), '/account/reset-password/:link')
  const stored = JSON.stringify([
    ...await service.sql('SELECT * FROM audit_events'), ...await service.sql('SELECT * FROM personal_events')
  ])
  t.notMatch(stored, secret)
  t.notMatch(stored, rosa.email)
})

t.test('CR-48: the person can keep other sessions; applications end all the same', async (t) => {
  const nimbus = await service.organization()
  const rosa = await makePerson(service, { [nimbus.organization]: 'member' })
  const elsewhere = await signIn(rosa, rosa.password)
  const { access_token } = await tokensFor(address, rosa)
  const answer = await use(await linkFor(rosa), NEW, { end_sessions: undefined })
  t.match(answer.text, 'Browsers that were signed in stay signed in.')
  t.ok(await isAlive(elsewhere.browser))
  t.notOk(await isAccepted(access_token))
  t.strictSame(await eventsOf(rosa, nimbus.organization), [
    { action: 'user.password', details: { link: 'reset', other_sessions: 'kept' } }
  ])
  t.match((await mailsTo(rosa.email)).at(-1)!.text, 'Browsers that were signed in stay signed in.')
  t.same(await service.sql(`SELECT 1 FROM sign_in_devices WHERE user_id = ${rosa.id}`), [], 'no browser is known')
  t.ok((await signIn(rosa, NEW)).isIn)
})

t.test('CR-48: a newer link, 30 minutes, a new password, sign-out everywhere and a closed account end a link', async (t) => {
  const rosa = await makePerson(service)
  const older = await linkFor(rosa)
  const newer = await linkFor(rosa)
  t.equal((await use(older)).status, 404)
  t.equal((await newVisitor().open(newer)).status, 200)

  const [minutes] = await service.sql(`SELECT round(extract(epoch FROM expires_at - now()) / 60)::int AS left
    FROM password_resets WHERE user_id = ${rosa.id}`)
  t.equal(minutes!.left, 30)
  const form = formIn(await newVisitor().open(newer))
  await service.write(`UPDATE password_resets SET expires_at = now() - interval '1 second' WHERE user_id = ${rosa.id}`)
  t.equal((await use(newer)).status, 404, 'half an hour')
  const unknown = await newVisitor().open(`/account/reset-password/${mintSecret()}`)
  t.equal(unknown.status, 404)
  const plain = ({ text }: Seen) => text.replace(/nonce="[^"]+"/, '')
  t.equal(plain(await newVisitor().open(newer)), plain(unknown))
  for (const odd of ['%00', 'x', '%ff', 'x'.repeat(129), '..%2f..']) {
    t.equal((await newVisitor().open(`/account/reset-password/${odd}`)).status, 404, odd)
  }
  t.match(form.action, newer)

  const changed = await linkFor(rosa)
  const { browser } = await signIn(rosa, rosa.password)
  const current = formIn(await browser.open('/account/password'))
  t.equal((await browser.send(current, { current: rosa.password, password: 'changed by herself' })).status, 303)
  t.equal((await use(changed)).status, 404, 'a new password')

  const voided = await linkFor(rosa)
  await browser.send(formIn(await browser.open('/account')), { where: 'everywhere' })
  t.equal((await use(voided)).status, 404, 'signing out everywhere')

  const both = await linkFor(rosa)
  const { link } = await renewLink(service.database, address, rosa.email)
  t.equal((await use(link, 'by the link of the operator')).status, 303)
  t.equal((await use(both)).status, 404, 'a link of the operator that is used')

  const shut = await linkFor(rosa)
  await transaction(db, (db) => setDisabled(db, rosa.id, true))
  t.equal((await use(shut)).status, 404, 'a closed account')
  await transaction(db, (db) => setDisabled(db, rosa.id, false))
  t.equal((await use(shut)).status, 404, 'also when it is opened again')
})

t.test('CR-48: of several uses at once one counts, and of several requests at once one link', async (t) => {
  const rosa = await makePerson(service)
  const raced = await linkFor(rosa)
  const pages = await Promise.all(Array.from({ length: 5 }, async () => {
    const browser = newVisitor()
    return { browser, form: formIn(await browser.open(raced)) }
  }))
  const answers = await Promise.all(pages.map(({ browser, form }, i) =>
    browser.send(form, { password: `password number ${i}` })))
  t.strictSame(answers.map(({ status }) => status).sort(), [200, 404, 404, 404, 404])
  const winner = answers.findIndex(({ status }) => status === 200)
  t.ok((await signIn(rosa, `password number ${winner}`)).isIn)

  await service.sql('DELETE FROM sign_in_failures')
  const before = (await mailsTo(rosa.email)).length
  const asked = await Promise.all([1, 2, 3].map(() => ask(rosa.email)))
  t.strictSame(asked.map(({ status }) => status), [200, 200, 200])
  const links = (await mailsTo(rosa.email)).slice(before).map(({ text }) => linkIn(text))
  t.equal(new Set(links).size, 3)
  const opened = await Promise.all(links.map(async (link) => (await newVisitor().open(link)).status))
  t.strictSame(opened.sort(), [200, 404, 404])
})

t.test('requests at once for addresses whose links have expired all succeed', async (t) => {
  const emails = Array.from({ length: 12 }, (_, i) => `expired-${i}@nimbus.example`)
  for (let round = 0; round < 4; round++) {
    await Promise.all(emails.map((email) =>
      transaction(db, (db) => createPasswordReset(db, email, mintSecret(), 0))))
    await service.write("UPDATE password_resets SET expires_at = now() - interval '1 second' WHERE user_id = 0")
  }
  await transaction(db, (db) => createPasswordReset(db, 'last@nimbus.example', mintSecret(), 0))
  t.same(await service.sql('SELECT 1 FROM password_resets WHERE expires_at < now()'), [], 'what has expired is deleted')
})

t.test('CR-48: the second factor stays: after a reset the person signs in with a code', async (t) => {
  const rosa = await makePerson(service)
  const factor = await giveSecondFactor(service, rosa)
  t.match((await use(await linkFor(rosa))).text, 'with a code')
  const { browser, page } = await signIn(rosa, NEW)
  t.match(page.text, 'Enter a code')
  t.notOk(await isAlive(browser))
  t.equal((await browser.send(formIn(page), { code: '000000' })).status, 422)
  t.equal((await browser.send(formIn(page), { code: await factor.code() })).status, 303)
  t.ok(await isAlive(browser))
  const [factors] = await service.sql(`SELECT count(*)::int AS codes FROM recovery_codes WHERE user_id = ${rosa.id}`)
  t.equal(factors!.codes, 10)
})

t.test('CR-48: a reset restarts the counts of wrong passwords, but not of wrong codes', async (t) => {
  const rosa = await makePerson(service)
  await service.sql('DELETE FROM sign_in_failures')
  let status = 0
  for (let i = 0; i < 6; i++) status = (await signIn(rosa, 'wrong password')).page.status
  t.equal(status, 429)
  const code = `code user:${rosa.id} ${addressKey('127.0.0.1')}`
  await service.sql(`INSERT INTO sign_in_failures (key, failures) VALUES ('\\x${countKey(db, { name: code }).toString('hex')}', 4)`)
  await ask(rosa.email)
  t.equal((await signIn(rosa, rosa.password)).page.status, 429, 'a request alone changes nothing')
  t.equal((await use(linkIn((await mailsTo(rosa.email)).at(-1)!.text))).status, 200)
  t.ok((await signIn(rosa, NEW)).isIn)
  const [kept] = await service.sql(
    `SELECT failures FROM sign_in_failures WHERE key = '\\x${countKey(db, { name: code }).toString('hex')}'`
  )
  t.equal(kept!.failures, 4)
})

t.test('CR-48: an account without a password gets its first one, and the person chooses the name', async (t) => {
  const email = 'first@nimbus.example'
  const id = (await createUser(db, { email, name: 'first', password_hash: null }))!
  const done = await use(await linkFor({ email }), NEW, { name: 'Rosa Quill' })
  t.equal(done.status, 200)
  const { page, isIn } = await signIn({ email }, NEW)
  t.ok(isIn)
  t.match(page.text, 'Rosa Quill')
  t.match(await service.sql(`SELECT is_verified, name FROM users WHERE id = ${id}`), [{ is_verified: true, name: 'Rosa Quill' }])
})

t.test('CR-60: the first name has no control or direction characters, unless it is the stored one', async (t) => {
  const email = 'old@nimbus.example'
  const stored = 'Old\u009bname'
  const id = (await createUser(db, { email, name: stored, password_hash: null }))!
  const link = await linkFor({ email })
  for (const name of ['Ro\u202esa', 'Ro\nsa', '\x1b[2J', `${stored}!`]) {
    const refused = await use(link, NEW, { name })
    t.equal(refused.status, 422, JSON.stringify(name))
    t.match(refused.text, 'Your name must not have control characters')
  }
  t.match(await service.sql(`SELECT is_verified, name FROM users WHERE id = ${id}`), [{ is_verified: false, name: stored }])
  t.equal((await use(link, NEW, { name: stored })).status, 200)
  const verified = await makePerson(service)
  t.equal((await use(await linkFor(verified), NEW, { name: 'Ro\u202esa' })).status, 200, 'a field that the form does not have')
  t.match(await service.sql(`SELECT name FROM users WHERE id = ${verified.id}`), [{ name: verified.name }])
})

t.test('CR-49: an address without an account gets the same response, statements and place in the mail queue', async (t) => {
  const [nimbus, cirrus] = [await service.organization(), await service.organization()]
  const member = await makePerson(service, { [nimbus.organization]: 'owner', [cirrus.organization]: 'member' })
  const shut = await makePerson(service, { [nimbus.organization]: 'member' })
  await transaction(db, (db) => setDisabled(db, shut.id, true))
  const invited = 'invited@nimbus.example'
  await createUser(db, { email: invited, name: 'Invited', password_hash: null })
  const emails = [member.email, (await makePerson(service)).email, 'nobody@nimbus.example', shut.email, invited]
  await untilSent()
  // The first request prepares caches and connections.
  await ask('first-of-all@nimbus.example')
  mail.hold()
  t.teardown(() => mail.release())
  // Four mails are being sent, so that further ones wait.
  for (let i = 0; i < 4; i++) {
    const room = service.app.outbox.reserve({ network: `filler ${i}` }, `filler-${i}@nimbus.example`)!
    room.post({ about: 'a test', to: `filler-${i}@nimbus.example`, subject: 'x', text: 'x' })
  }
  const rows: { email: string, statements: string[], answer: string, places: number }[] = []
  let waiting: number | undefined
  for (const email of emails) {
    await service.sql('DELETE FROM sign_in_failures')
    const browser = newVisitor()
    const form = formIn(await browser.open(FORGOT))
    const statements: string[] = []
    const listen = (message: unknown) => {
      const { phase, text, prepared } = message as { phase: string, text: unknown, prepared: boolean }
      // Background jobs send statements that are not prepared.
      if (phase === 'before' && prepared) statements.push(String(text))
    }
    const before = service.app.outbox.load()
    waiting ??= before.waiting
    subscribe('strongroom:statement', listen)
    const seen = await browser.send(form, { email })
    unsubscribe('strongroom:statement', listen)
    // The mail is queued after the response.
    await until(() => service.app.outbox.load().waiting > before.waiting)
    const after = service.app.outbox.load()
    const headers = [...seen.headers].filter(([name]) => !/^(?:date|x-request-id|content-length)$/.test(name))
    rows.push({
      email,
      statements,
      answer: `${seen.status} ${JSON.stringify(headers)} ${seen.text}`.replaceAll(email, 'EMAIL')
        .replace(/nonce(?:="|-)[A-Za-z0-9_-]+/g, ''),
      places: after.waiting - before.waiting
    })
  }
  t.equal(service.app.outbox.load().waiting - waiting!, emails.length, 'one mail for each')
  const [first, ...others] = rows
  t.ok(first!.statements.some((text) => /insert into "password_resets"/.test(text)))
  t.ok(first!.statements.some((text) => /INSERT INTO personal_events/.test(text)))
  t.equal(first!.places, 1)
  for (const { email, ...other } of others) {
    t.strictSame(other, { statements: first!.statements, answer: first!.answer, places: 1 }, email)
  }
  const [stored] = await service.sql('SELECT count(*)::int AS all, count(nullif(user_id, 0))::int AS accounts FROM password_resets WHERE expires_at > now()')
  t.ok((stored!.all as number) > (stored!.accounts as number), 'an address without an account has a row as well')
  mail.release()
  const mailed = (await Promise.all(emails.map(async (email) => (await mailsTo(email)).length > 0)))
  t.strictSame(mailed, [true, true, false, false, true])
  t.notMatch(service.logs.join(''), 'nobody@nimbus')
  t.same(await service.sql('SELECT 1 FROM personal_events WHERE user_id = 0'), [])
})

t.test('CR-49: a response takes as long as the service chooses, whatever it does for an address', async (t) => {
  await service.sql('DELETE FROM sign_in_failures')
  const rosa = await makePerson(service)
  service.app.costs = { ...QUICK, resetResponseMs: COSTS.resetResponseMs }
  t.teardown(() => { service.app.costs = QUICK })
  for (const email of [rosa.email, 'nobody-4@nimbus.example']) {
    const browser = newVisitor()
    const form = formIn(await browser.open(FORGOT))
    const began = performance.now()
    t.equal((await browser.send(form, { email })).status, 200)
    // A timer of Node.js can fire a millisecond early.
    t.ok(performance.now() - began >= COSTS.resetResponseMs - 1, email)
  }
})

t.test('CR-49: an address gets at most three links in half an hour, account or not; the last stays valid', async (t) => {
  await service.sql('DELETE FROM sign_in_failures')
  const rosa = await makePerson(service)
  const refused: string[] = []
  for (const email of [rosa.email, 'nobody-2@nimbus.example']) {
    for (let i = 0; i < 3; i++) t.equal((await ask(i === 1 ? email.toUpperCase() : email)).status, 200)
    const fourth = await ask(email)
    t.equal(fourth.status, 429)
    t.ok(Number(fourth.headers.get('retry-after')) > 1700)
    refused.push(fourth.text.replaceAll(email, 'EMAIL').replace(/nonce="[^"]+"|value="[A-Za-z0-9_-]{43}"/g, ''))
  }
  t.equal(refused[0], refused[1])
  const mails = await mailsTo(rosa.email)
  t.equal(mails.length, 3)
  t.equal((await newVisitor().open(linkIn(mails[2]!.text))).status, 200)
  const key = countKey(db, { name: `reset email:${rosa.email}` }).toString('hex')
  const [lasts] = await service.sql(`SELECT expires_at >= (SELECT locked_until FROM sign_in_failures WHERE key = '\\x${key}') AS lasts
    FROM password_resets WHERE user_id = ${rosa.id}`)
  t.equal(lasts!.lasts, true, 'so others cannot leave a person without a link')
  await service.sql(`UPDATE sign_in_failures SET ${earlier('last_at', '31 minutes')}, ${earlier('locked_until', '31 minutes')}
    WHERE key = '\\x${key}'`)
  t.equal((await ask(rosa.email)).status, 200, 'half an hour later')
})

t.test('CR-49: a network asks for at most 25 links in half an hour, and for 20 a minute whatever its cookies', async (t) => {
  await service.sql('DELETE FROM sign_in_failures')
  const browser = newVisitor()
  const form = formIn(await browser.open(FORGOT))
  const cookie = [...browser.jar].map((pair) => pair.join('=')).join('; ')
  const send = (email: string, remoteAddress: string, on = service, more = ''): Promise<Answer> => on.inject({
    method: 'POST',
    url: FORGOT,
    remoteAddress,
    headers: {
      cookie: cookie + more, 'sec-fetch-site': 'same-origin', 'content-type': 'application/x-www-form-urlencoded'
    },
    payload: new URLSearchParams([...form.fields.filter(([name]) => name !== 'email'), ['email', email]]).toString()
  })
  const statuses: number[] = []
  for (let i = 0; i < 26; i++) statuses.push((await send(`many-${i}@nimbus.example`, '192.0.2.7')).status)
  t.strictSame([...new Set(statuses.slice(0, 25))], [200])
  t.equal(statuses[25], 429)
  t.equal((await send('many-26@nimbus.example', '192.0.2.8')).status, 200, 'another network may')

  const limited = await startIsolatedApp(t, { SMTP_URL: `smtp://127.0.0.1:${mail.port}`, RATE_LIMIT_OAUTH: '2' })
  const rosa = await makePerson(limited)
  const device = mintSecret()
  await limited.sql(`INSERT INTO sign_in_devices (token_hash, user_id, expires_at)
    VALUES ('\\x${hashToken(device).toString('hex')}', ${rosa.id}, now() + interval '1 day')`)
  const answers = []
  for (let i = 0; i < 5; i++) answers.push(await send(`few-${i}@nimbus.example`, '192.0.2.7', limited, i < 3 ? '' : `; device=${device}`))
  t.strictSame(answers.map(({ status }) => status), [200, 200, 200, 200, 429])
})

t.test('CR-49: with a full mail queue every address gets 503, and nothing is counted or changed', async (t) => {
  await service.sql('DELETE FROM sign_in_failures')
  const rosa = await makePerson(service)
  const network = addressKey('127.0.0.1')
  const rooms = Array.from({ length: MAX_OF_ONE }, (_, i) =>
    service.app.outbox.reserve({ network }, `filler-${i}@nimbus.example`))
  t.notOk(rooms.includes(undefined))
  for (const email of [rosa.email, 'nobody-3@nimbus.example']) {
    const seen = await ask(email)
    t.equal(seen.status, 503)
    t.match(seen.text, 'cannot send more e-mail')
  }
  t.match(service.logs.join(''), 'A mail of an account page is not sent: the mail queue is full')
  t.notMatch(service.logs.join(''), /A mail of .*(?:127\.0\.0\.1|nimbus\.example)/)
  t.strictSame([...await service.sql('SELECT DISTINCT failures FROM sign_in_failures')], [{ failures: 0 }])
  t.same(await service.sql(`SELECT 1 FROM password_resets WHERE user_id = ${rosa.id}`), [])
  for (const room of rooms) room!.release()
  t.equal((await ask(rosa.email)).status, 200)
})

t.test('CR-49: clients that leave without the response keep no place in the mail queue, and no mail back', async (t) => {
  const people = [await makePerson(service), await makePerson(service), await makePerson(service)]
  // Node.js tells only the first request of a connection that the connection is closed.
  for (const some of [people.slice(0, 1), people]) {
    await service.sql('DELETE FROM sign_in_failures')
    const before = await Promise.all(some.map(async ({ email }) => (await mailsTo(email)).length))
    const browser = newVisitor()
    const { action, fields } = formIn(await browser.open(FORGOT))
    const cookie = [...browser.jar].map(([name, value]) => `${name}=${value}`).join('; ')
    await postAndLeave(address, some.map(({ email }) => ({
      path: action,
      headers: { cookie, 'sec-fetch-site': 'same-origin', 'content-type': 'application/x-www-form-urlencoded' },
      body: String(new URLSearchParams([...fields.filter(([name]) => name !== 'email'), ['email', email]]))
    })))
    for (const [i, { email }] of some.entries()) {
      await until(() => mail.mails.filter(({ to }) => to.includes(email)).length > before[i]!)
    }
    await untilSent()
    t.equal(service.app.outbox.load().waiting, 0, `${some.length} in a connection`)
  }
})

t.test('CR-49: what is no e-mail address is refused before anything is counted', async (t) => {
  await service.sql('DELETE FROM sign_in_failures')
  for (const email of ['', 'rosa', 'rosa@', '@nimbus.example', 'a@b@c', `${'x'.repeat(400)}@nimbus.example`]) {
    const seen = await ask(email)
    t.equal(seen.status, 422, email)
    t.match(seen.text, 'Enter a valid e-mail address.')
  }
  t.same(await service.sql('SELECT 1 FROM sign_in_failures'), [])
})

t.test('CR-48: a link leads to the address of the service, whatever the request calls it', async (t) => {
  const rosa = await makePerson(service)
  await service.sql('DELETE FROM sign_in_failures')
  const browser = newVisitor()
  const form = formIn(await browser.open(FORGOT))
  const cookie = [...browser.jar].map((pair) => pair.join('=')).join('; ')
  const body = new URLSearchParams([...form.fields.filter(([name]) => name !== 'email'), ['email', rosa.email]])
  const answer = await service.inject({
    method: 'POST',
    url: FORGOT,
    headers: {
      host: 'evil.example',
      'x-forwarded-host': 'evil.example',
      cookie,
      'sec-fetch-site': 'same-origin',
      'content-type': 'application/x-www-form-urlencoded'
    },
    payload: body.toString()
  })
  t.equal(answer.status, 200)
  const letter = (await mailsTo(rosa.email)).at(-1)!
  t.notMatch(letter.text, 'evil.example')
  t.match(letter.text, address)
})

t.test('CR-48: without a mail server there is no link on the sign-in page, and the pages say what to do', async (t) => {
  const silent = await startIsolatedApp(t)
  const browser = visitor(await silent.app.listen({ host: '127.0.0.1', port: 0 }))
  const rosa = await makePerson(silent)
  const page = await browser.open('/account')
  t.notMatch(page.text, FORGOT)
  t.match(page.text, /Ask the operator of this service for a link to set a new one.*user password --email ADDRESS/)
  const forgot = await browser.open(FORGOT)
  t.equal(forgot.status, 404)
  t.match(forgot.text, 'user password --email ADDRESS')
  const sent = await browser.send({ ...formIn(page), action: FORGOT }, { email: rosa.email })
  t.equal(sent.status, 404)
  t.same(await silent.sql('SELECT 1 FROM password_resets'), [])
})

t.test('the account page shows browser, system and network of each session, which can be ended by itself', async (t) => {
  await service.sql('DELETE FROM sign_in_failures')
  const rosa = await makePerson(service)
  const phone = 'Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.5 Mobile/15E148 Safari/604.1'
  const other = await signIn(rosa, rosa.password, phone)
  const odd = await signIn(rosa, rosa.password, '<b>Mallory</b>')
  const own = await signIn(rosa, rosa.password)
  t.match(own.page.text, /<strong>Firefox on Linux<\/strong> <span>127\.0\.0\.0\/24, since [^<]* UTC, last used [^<]* UTC \(this browser\)<\/span>/)
  t.match(own.page.text, /<strong>Safari on iOS<\/strong> <span>127\.0\.0\.0\/24, since [^<(]*<\/span>/)
  t.match(own.page.text, /<strong>Unknown browser<\/strong> <span>127\.0\.0\.0\/24, since/)
  t.match(await service.sql(`SELECT browser, system, network FROM sessions WHERE user_id = ${rosa.id} ORDER BY browser`), [
    { browser: 'Firefox', system: 'Linux', network: '127.0.0.0/24' },
    { browser: 'Safari', system: 'iOS', network: '127.0.0.0/24' },
    { browser: null, system: null, network: '127.0.0.0/24' }
  ])
  const [, id] = /Safari on iOS[\s\S]*?name="id" value="([^"]+)"/.exec(own.page.text)!
  const page = await own.browser.open('/account')
  t.equal((await own.browser.send({ ...formIn(page), action: '/account/sessions/end' }, { id: id! })).status, 303)
  t.notOk(await isAlive(other.browser))
  t.ok(await isAlive(odd.browser) && await isAlive(own.browser))
})
