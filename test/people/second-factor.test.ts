// runs: one database
import { sql } from 'drizzle-orm'
import jsQR from 'jsqr'
import { base32 } from 'oslo/encoding'
import t from 'tap'
import { formToken, hashToken, mintCredential, mintSecret } from '../../src/crypto/bearer.ts'
import { codeAt, findStep, hashRecoveryCode, mintRecoveryCode, stepAt } from '../../src/crypto/second-factor.ts'
import { createKeyring, generateMasterKey, parseMasterKey } from '../../src/crypto/keyring.ts'
import { rewrap } from '../../src/commands/keys/rewrap.ts'
import { resetSecondFactor, switchUser } from '../../src/commands/people/users.ts'
import { transaction } from '../../src/changes/transaction.ts'
import { makeId } from '../../src/db/rows/ids.ts'
import { authenticateTable } from '../helpers/macs.ts'
import { countKey } from '../../src/repositories/people/attempts.ts'
import { findUser, createPasswordLink } from '../../src/repositories/people/users.ts'
import { createSession } from '../../src/repositories/people/sessions.ts'
import { createPair } from '../../src/repositories/people/oauth.ts'
import { useCode } from '../../src/vault/keys/second-factor.ts'
import { openRows } from '../../src/jobs/violations.ts'
import { SCOPE_NAMES } from '../../schemas/scopes.ts'
import { freshDatabase, startApp } from '../helpers/app.ts'
import {
  authorizationUrl, CALLBACK, giveSecondFactor, issuePair, makePerson, pkce, post, tokensFor, type Person
} from '../helpers/people.ts'
import { formIn, visitor, type Seen, type Visitor } from '../helpers/visitor.ts'

// A second factor: the sign-in requires it after the correct password, and an organization can require it from its
// members.

t.setTimeout(120_000)

const service = await startApp(t)
const address = await service.listen()
const { db } = service.database

/** The form of a page that is sent to this path. */
function formTo (page: Seen, action: string) {
  const [found] = new RegExp(`<form[^>]*action="${action}"[\\s\\S]*?</form>`).exec(page.text) ?? []
  return formIn({ ...page, text: found ?? '' })
}
const isSignedIn = (page: Seen) => page.text.includes('Sign out everywhere')
const asksForCode = (page: Seen) => page.text.includes('action="/oauth/sign-in/code"')
const forgetAttempts = () => service.sql('DELETE FROM sign_in_failures')
// Events by time, including late events, which another transaction's lock on the organization's counter has delayed.
const eventsOf = async ({ id }: Person) => (await service.sql(`SELECT action FROM (
    SELECT action, occurred_at, seq AS n, false AS is_apart FROM audit_events
    WHERE resource_type = 'user' AND resource_id = '${id}'
    UNION ALL
    SELECT event->>'action', occurred_at, id, true FROM late_events
    WHERE event->>'resource_type' = 'user' AND event->>'resource_id' = '${id}'
  ) AS its ORDER BY occurred_at, is_apart, n`
)).map(({ action }) => action as string)

/** The number of sessions of a person in the database. */
const sessionsOf = async ({ id }: Person) =>
  Number((await service.sql(`SELECT count(*) AS count FROM sessions WHERE user_id = ${id}`))[0]!.count)

async function password (person: Person, browser: Visitor = visitor(address)) {
  return { browser, page: await browser.signIn(await browser.open('/account'), person.email, person.password) }
}

/** Signs a person in with both factors. */
async function signIn (person: Person, code: string, browser?: Visitor) {
  const first = await password(person, browser)
  const answer = await first.browser.send(formIn(first.page), { code })
  return { ...first, answer }
}

async function someone (role: 'owner' | 'member' = 'member') {
  const owner = await service.organization()
  const person = await makePerson(service, { [owner.organization]: role })
  return { owner, organization: owner.organization, person, factor: await giveSecondFactor(service, person) }
}

// Codes belong to the current time step of 30 seconds. Waits until at most 15 seconds of the step have passed.
async function inOneStep () {
  const gone = Date.now() % 30_000
  if (gone > 15_000) await new Promise((resolve) => setTimeout(resolve, 30_000 - gone))
}

t.test('codes are those of RFC 6238, one step to either side counts, and spaces do not matter', async (t) => {
  const secret = Buffer.from('12345678901234567890')
  // RFC 6238, appendix B, has codes with eight digits; these are the last six digits.
  for (const [seconds, code] of [
    [59, '287082'], [1111111109, '081804'], [1111111111, '050471'], [1234567890, '005924'], [2000000000, '279037'],
    [20000000000, '353130']
  ] as const) {
    const step = stepAt(seconds * 1000)
    t.equal(await codeAt(secret, step), code)
    for (const offset of [-1, 0, 1]) t.equal(await findStep(secret, code, step + offset), step)
    for (const offset of [-2, 2, 1000]) t.equal(await findStep(secret, code, step + offset), undefined)
    t.equal(await findStep(secret, ` ${code.slice(0, 3)} ${code.slice(3)}\t`, step), step)
  }
  const step = stepAt(59_000)
  for (const wrong of ['', '28708', '2870820', '287083', '٢٨٧٠٨٢', 'x'.repeat(100)]) {
    t.equal(await findStep(secret, wrong, step), undefined, wrong)
  }
})

t.test('recovery codes have 80 bits, and are the same however they are written', async (t) => {
  const codes = Array.from({ length: 1000 }, mintRecoveryCode)
  t.equal(new Set(codes).size, 1000)
  for (const code of codes) t.match(code, /^[a-z2-7]{4}(-[a-z2-7]{4}){3}$/)
  const [code] = codes as [string]
  for (const written of [code.toUpperCase(), code.replaceAll('-', ''), code.replaceAll('-', ' '), ` ${code} `]) {
    t.same(hashRecoveryCode(written), hashRecoveryCode(code))
  }
  t.notSame(hashRecoveryCode(codes[1]!), hashRecoveryCode(code))
})

t.test('the account page sets one up: QR code, first code, recovery codes once; other sessions end', async (t) => {
  const { organization } = await service.organization()
  const person = await makePerson(service, { [organization]: 'member' })
  const other = await password(person)
  t.ok(isSignedIn(other.page))
  const { browser } = await password(person)
  const setUp = formIn(await browser.open('/account/second-factor'))
  t.match(await browser.send(setUp, { current: 'not the password' }), { status: 422, text: /The password is wrong/ })
  const shown = await browser.send(setUp, { current: person.password })
  t.equal(shown.status, 200)
  t.notMatch(shown.text, /<script|<img|style=/)
  t.match(shown.headers.get('content-security-policy'), /^default-src 'none'/)
  t.equal(shown.headers.get('cache-control'), 'no-store')

  const [, written] = /<dt>Address<\/dt><dd><code>([^<]+)</.exec(shown.text)!
  const uri = written!.replaceAll('&#38;', '&')
  const { protocol, host, pathname, searchParams } = new URL(uri)
  t.strictSame([protocol, host, decodeURIComponent(pathname)], ['otpauth:', 'totp', `/Strongroom:${person.email}`])
  t.strictSame(
    ['issuer', 'digits', 'period'].map((name) => searchParams.get(name)), ['Strongroom', '6', '30']
  )
  t.equal(readQr(shown.text), uri, 'what a camera reads')
  const [, typed] = /<dt>Key<\/dt><dd><code>([^<]+)</.exec(shown.text)!
  t.equal(typed!.replaceAll(' ', ''), searchParams.get('secret'), 'what is typed by hand')
  const secret = Buffer.from(base32.decode(searchParams.get('secret')!, { strict: false }))
  t.equal(secret.length, 20)

  t.notOk(asksForCode((await password(person)).page), 'it does not count before it was confirmed')
  const wrong = await browser.send(formIn(shown), { code: await codeAt(secret, stepAt(Date.now()) + 9) })
  t.match(wrong, { status: 422, text: /The code is wrong/ })
  t.notMatch(wrong.text, /class="qr"|otpauth/, 'the key is shown once')
  const done = await browser.send(formIn(wrong), { code: await codeAt(secret, stepAt(Date.now())) })
  t.equal(done.status, 200)
  const codes = [...done.text.matchAll(/<li><code>([^<]+)</g)].map(([, code]) => code!)
  t.equal(codes.length, 10)
  t.ok(isSignedIn(await browser.open('/account')), 'this browser goes on')
  t.notOk(isSignedIn(await other.browser.open('/account')))
  t.match((await browser.open('/account/second-factor')).text, /10 of your recovery codes are left/)
  t.notMatch((await browser.open('/account/second-factor')).text, codes[0]!)
  t.ok(asksForCode((await password(person)).page))
  t.match(await eventsOf(person), [
    'session.create', 'session.create', 'password.refuse', 'second-factor.prepare', 'session.create',
    'second-factor.refuse', 'second-factor.enroll', 'session.create'
  ])
  const again = await browser.send(setUp, { current: person.password })
  t.equal(again.status, 403, 'a form of the session before')
  const [row] = await service.sql(`SELECT id FROM second_factors WHERE user_id = ${person.id}`)
  const fresh = { ...setUp, fields: formIn(await browser.open('/account/second-factor')).fields }
  t.equal((await browser.send(fresh, { current: person.password })).status, 303)
  t.same(
    await service.sql(`SELECT id FROM second_factors WHERE user_id = ${person.id}`), [row],
    'what is in use is not set up anew'
  )
})

t.test('signing in asks for the code after the password: before it there is no session, and nothing is told', async (t) => {
  const { person, factor, organization } = await someone()
  const before = await sessionsOf(person)
  const { browser, page } = await password(person)
  t.equal(page.status, 200)
  t.ok(asksForCode(page))
  t.equal((await eventsOf(person)).at(-1), 'second-factor.ask', 'but in the audit')
  t.notMatch(page.text, person.email)
  t.strictSame([...browser.jar.keys()], ['browser'], 'no session, and the browser is not known')
  t.equal(await sessionsOf(person), before)
  t.notOk(isSignedIn(await browser.open('/account')))
  const [, step] = formIn(page).fields.find(([name]) => name === 'step')!
  for (const cookie of [`session=${step}`, `browser=${step}; session=${step}`]) {
    t.notOk((await service.inject({ url: '/account', headers: { cookie } })).text.includes('Sign out everywhere'))
  }
  // A sign-in step is not valid in another browser.
  const thief = visitor(address)
  const stolen = formIn(await thief.open('/account'))
  const answer = await thief.send(
    { ...formIn(page), fields: stolen.fields }, { step, query: '', code: await factor.code() }
  )
  t.match(answer, { status: 422, text: /Sign in again/ })
  const done = await browser.send(formIn(page), { code: await factor.code() })
  t.strictSame([done.status, done.headers.get('location')], [303, '/account'])
  t.ok(isSignedIn(await browser.open('/account')))
  const session = await sessionsOf(person)
  const again = visitor(address)
  again.jar.set('browser', browser.jar.get('browser')!)
  t.match(await again.send(formIn(page), { code: factor.codes[0]! }), { status: 422, text: /Sign in again/ }, 'once')
  t.equal(await sessionsOf(person), session)
  t.match((await eventsOf(person)).slice(-1), ['session.create'])

  // If an application started the sign-in, the sign-in continues with the request of the application.
  await factor.reuse()
  const { challenge } = pkce()
  const client = visitor(address)
  const asked = await client.signIn(await client.open(authorizationUrl(challenge)), person.email, person.password)
  t.ok(asksForCode(asked))
  const back = await client.send(formIn(asked), { code: await factor.code() })
  t.match(back.headers.get('location'), /^\/oauth\/authorize\?.*code_challenge=/)
  t.match((await client.open(back.headers.get('location')!)).text, /Allow Command line to act for you/)
  t.ok(organization)
})

t.test('a code counts once, one step to either side, and 20 of the same at once let one in', async (t) => {
  const { person, factor } = await someone()
  await inOneStep()
  for (const offset of [-2, 2, 20]) {
    t.equal((await signIn(person, await factor.code(offset))).answer.status, 422, `step ${offset}`)
  }
  for (const offset of [-1, 0, 1]) {
    const code = await factor.code(offset)
    t.equal((await signIn(person, code)).answer.status, 303, `step ${offset}`)
    await forgetAttempts()
    t.equal((await signIn(person, code)).answer.status, 422, `step ${offset} again`)
    t.equal((await signIn(person, `${code.slice(0, 3)} ${code.slice(3)}`)).answer.status, 422, 'with a space')
    await forgetAttempts()
  }
  t.equal((await signIn(person, await factor.code())).answer.status, 422, 'a newer one was taken')

  for (const code of [await factor.reuse().then(() => factor.code()), factor.codes[3]!]) {
    // Each attempt uses another network, so that only the count for codes applies.
    const tries = await Promise.all(Array.from({ length: 20 }, async (_, i) => {
      const browser = mintSecret()
      const send = (url: string, fields: Record<string, string>) => service.inject({
        method: 'POST',
        url,
        remoteAddress: `10.0.${i}.1`,
        headers: {
          cookie: `browser=${browser}`,
          'sec-fetch-site': 'same-origin',
          'content-type': 'application/x-www-form-urlencoded'
        },
        payload: new URLSearchParams({ form_token: formToken(browser), query: '', ...fields }).toString()
      })
      const { text } = await send('/oauth/sign-in', { email: person.email, password: person.password })
      const [, step] = /name="step" value="([^"]+)"/.exec(text)!
      return () => send('/oauth/sign-in/code', { step: step!, code })
    }))
    const answers = await Promise.all(tries.map((one) => one()))
    t.strictSame(answers.map(({ status }) => status).sort(), [303, ...Array.from({ length: 19 }, () => 422)])
    await forgetAttempts()
  }
})

t.test('a recovery code lets in once, and says so in the audit; new ones void the old', async (t) => {
  const { person, factor } = await someone()
  const [first, second, third] = factor.codes as [string, string, string]
  const { answer, browser } = await signIn(person, first.toUpperCase().replaceAll('-', ' '))
  t.equal(answer.status, 303)
  t.match((await eventsOf(person)).slice(-2), ['second-factor.use_recovery_code', 'session.create'])
  t.equal((await signIn(person, first)).answer.status, 422)
  const change = formIn(await browser.open('/account/second-factor'))
  const send = (fields: Record<string, string>) => browser.send(change, { change: 'recovery-codes', ...fields })
  t.match(await send({ current: 'not the password', code: second }), { status: 422, text: /The password is wrong/ })
  t.match(await send({ current: person.password, code: first }), { status: 422, text: /The code is wrong/ })
  t.match(await send({ current: person.password, code: '' }), { status: 422 })
  t.match(await send({ current: person.password, code: second, change: 'other' }), { status: 303 })
  const made = await send({ current: person.password, code: second })
  t.equal(made.status, 200)
  const codes = [...made.text.matchAll(/<li><code>([^<]+)</g)].map(([, code]) => code!)
  t.equal(codes.length, 10)
  await forgetAttempts()
  t.equal((await signIn(person, third)).answer.status, 422, 'of before')
  t.equal((await signIn(person, codes[0]!)).answer.status, 303)
  t.ok((await eventsOf(person)).includes('second-factor.renew_recovery_codes'))
})

t.test('turning it off asks for the password and a code; then the password alone lets in', async (t) => {
  const { person, factor } = await someone()
  const { browser } = await signIn(person, await factor.code())
  const change = formIn(await browser.open('/account/second-factor'))
  const code = factor.codes[0]!
  for (const fields of [{ current: '', code }, { current: person.password, code: '000 000 0' }]) {
    t.equal((await browser.send(change, { change: 'disable', ...fields })).status, 422)
  }
  t.ok(asksForCode((await password(person)).page))
  t.equal((await browser.send(change, { change: 'disable', current: person.password, code })).status, 303)
  t.ok(isSignedIn((await password(person)).page))
  t.match(
    (await eventsOf(person)).slice(-3),
    ['second-factor.disable', 'second-factor.use_recovery_code', 'session.create']
  )
  for (const table of ['second_factors', 'recovery_codes', 'sign_in_steps']) {
    t.same(await service.sql(`SELECT FROM ${table} WHERE user_id = ${person.id}`), [], table)
  }
})

t.test('while one is in use nothing is taken up in its place: it stays as it is', async (t) => {
  await inOneStep()
  const { person, factor } = await someone()
  const { browser } = await signIn(person, await factor.code())
  const kept = async () => [
    await service.sql(`SELECT id, secret, last_step, mac FROM second_factors WHERE user_id = ${person.id}`),
    await service.sql(`SELECT second_factor_id, mac FROM users WHERE id = ${person.id}`),
    await service.sql(`SELECT code_hash FROM recovery_codes WHERE user_id = ${person.id} ORDER BY code_hash`),
    await sessionsOf(person)
  ]
  const before = await kept()
  const form = formIn(await browser.open('/account/second-factor'))
  const confirm = (code: string) => browser.send({ ...form, action: '/account/second-factor/confirm' }, { code })
  for (const [what, code] of [['used', await factor.code()], ['good', await factor.code(1)]] as const) {
    t.match(await confirm(code), { status: 422, text: /The code is wrong/ }, what)
    t.same(await kept(), before, what)
  }
  const again = await signIn(person, await factor.code(1))
  t.equal(again.answer.status, 303, 'and lets its owner in')
})

t.test('wrong codes count by account and network, those of a known browser apart, and five end the step', async (t) => {
  const { person, factor } = await someone()
  const known = (await signIn(person, await factor.code())).browser
  await factor.reuse()
  await forgetAttempts()
  const { browser, page } = await password(person)
  const wrong = await factor.code(50)
  for (let i = 0; i < 4; i++) {
    t.match(await browser.send(formIn(page), { code: wrong }), { status: 422, text: /The code is wrong/ })
  }
  t.match(await browser.send(formIn(page), { code: wrong }), { status: 422, text: /Sign in again/ }, 'the step is over')
  t.match(await browser.send(formIn(page), { code: await factor.code() }), { status: 422, text: /Sign in again/ })
  const next = await password(person)
  const locked = await next.browser.send(formIn(next.page), { code: await factor.code() })
  t.match(locked, { status: 429, text: /too many attempts/ })
  t.ok(Number(locked.headers.get('retry-after')) > 0)
  t.equal((await service.sql(`SELECT failures, encode(key, 'hex') AS key FROM sign_in_failures WHERE key = '\\x${
    countKey(db, { name: `code user:${person.id}` }).toString('hex')}'`))[0]!.failures, 5, 'and for the account')

  // An attacker without the password cannot lock out the owner. An attacker with the password cannot lock out the
  // owner's known browser.
  await known.send(formIn(await known.open('/account')), { where: 'here' })
  const own = await signIn(person, await factor.code(), known)
  t.equal(own.answer.status, 303, 'a known browser')
  t.ok((await eventsOf(person)).filter((action) => action === 'second-factor.refuse').length === 5)

  // Of twenty concurrent guesses, the service checks only five.
  await forgetAttempts()
  await factor.reuse()
  const many: Awaited<ReturnType<typeof password>>[] = []
  for (let i = 0; i < 20; i++) many.push(await password(person))
  await forgetAttempts()
  const answers = await Promise.all(many.map(({ browser, page }) => browser.send(formIn(page), { code: wrong })))
  t.equal(answers.filter(({ status }) => status === 422).length, 5)
  t.equal(answers.filter(({ status }) => status === 429).length, 15)
  await forgetAttempts()
})

t.test('a wrong code is told alike, whatever is wrong with it', async (t) => {
  const { person, factor } = await someone()
  const { browser, page } = await password(person)
  const texts = new Set<string>()
  for (const code of ['', await factor.code(50), 'aaaa-bbbb-cccc-dddd', 'x'.repeat(5000), '\u0000']) {
    await forgetAttempts()
    await service.sql('UPDATE sign_in_steps SET wrong_codes = 0')
    const { status, text } = await browser.send(formIn(page), { code })
    t.equal(status, 422)
    texts.add(text.replace(/nonce="[^"]+"/, ''))
  }
  t.equal(texts.size, 1)
})

t.test('changing the password asks for the code, and a link does not switch it off', async (t) => {
  const { person, factor } = await someone()
  const { browser } = await signIn(person, await factor.code())
  const form = formIn(await browser.open('/account/password'))
  const fresh = 'another horse battery'
  const [first, second] = factor.codes as [string, string]
  t.match(await browser.send(form, { current: person.password, password: fresh }), { status: 422 })
  t.match(
    await browser.send(form, { current: person.password, password: fresh, code: await factor.code() }),
    { status: 422, text: /The code is wrong or was already used/ }
  )
  t.equal((await browser.send(form, { current: 'wrong password', password: fresh, code: first })).status, 422)
  t.ok(asksForCode((await password(person)).page), 'nothing changed')
  t.equal((await browser.send(form, { current: person.password, password: fresh, code: first })).status, 303)
  t.ok(isSignedIn(await browser.open('/account')))
  const changed = { ...person, password: fresh }
  t.ok(asksForCode((await password(changed)).page))

  const link = mintSecret()
  await createPasswordLink(db, hashToken(link), person.id)
  const other = visitor(address)
  const linked = await other.send(formIn(await other.open(`/account/set-password/${link}`)), { password: person.password })
  t.equal(linked.status, 200)
  t.ok(asksForCode(linked))
  t.notOk(other.jar.has('session'))
  t.notOk(isSignedIn(await browser.open('/account')), 'the password is the new one')
  t.equal((await other.send(formIn(linked), { code: second })).status, 303)
  t.ok(isSignedIn(await other.open('/account')))
})

t.test('a new password, a closed account or a removed factor ends a sign-in that waits for its code', async (t) => {
  for (const end of [
    async (person: Person) => {
      const link = mintSecret()
      await createPasswordLink(db, hashToken(link), person.id)
      const other = visitor(address)
      await other.send(formIn(await other.open(`/account/set-password/${link}`)), { password: 'quite another one' })
    },
    ({ id }: Person) => service.write(`UPDATE users SET disabled_at = now() WHERE id = ${id}`),
    ({ email }: Person) => resetSecondFactor(service.database, email)
  ]) {
    const { person, factor } = await someone()
    const { browser, page } = await password(person)
    await end(person)
    const { status } = await browser.send(formIn(page), { code: factor.codes[0]! })
    t.equal(status, 422)
    t.notOk(isSignedIn(await browser.open('/account')))
  }
})

t.test('a new password, signing out everywhere and a closed account end a setup that began before', async (t) => {
  const NEW = 'quite another one'
  const byLink = async (person: Person) => {
    const link = mintSecret()
    await createPasswordLink(db, hashToken(link), person.id)
    const other = visitor(address)
    await other.send(formIn(await other.open(`/account/set-password/${link}`)), { password: NEW })
    person.password = NEW
  }
  const signOut = (where: string) => async (person: Person) => {
    const { browser, page } = await password(person)
    await browser.send(formTo(page, '/account/sign-out'), { where })
  }
  for (const [way, isEnded, end] of [
    ['a new password', true, byLink],
    ['signing out everywhere', true, signOut('everywhere')],
    ['a closed account', true, async ({ email }: Person) => {
      await switchUser(service.database, email, true)
      await switchUser(service.database, email, false)
    }],
    ['signing out in another browser', false, signOut('here')],
    ['signing in again', false, async (person: Person) => password(person)]
  ] as const) {
    const person = await makePerson(service)
    const { browser } = await password(person)
    const shown = await browser.send(formIn(await browser.open('/account/second-factor')), { current: person.password })
    const [, typed] = /<dt>Key<\/dt><dd><code>([^<]+)</.exec(shown.text)!
    const secret = Buffer.from(base32.decode(typed!.replaceAll(' ', ''), { strict: false }))
    await end(person)
    const { browser: later } = await password(person)
    const { fields } = formIn(await later.open('/account/second-factor'))
    const confirmed = await later.send(
      { action: '/account/second-factor/confirm', fields, buttons: [] }, { code: await codeAt(secret, stepAt(Date.now())) }
    )
    t.equal(confirmed.status, isEnded ? 422 : 200, way)
    t.equal((await findUser(db, person.id))!.second_factor_id === null, isEnded, way)
  }
  const { person, factor } = await someone()
  const { browser, page } = await password(person)
  await byLink(person)
  t.ok(asksForCode((await password(person)).page), 'one that is in use stays')
  t.equal((await browser.send(formIn(page), { code: factor.codes[0]! })).status, 422)
})

t.test('an application gets all permissions only with a code; a used code and a wrong code allow nothing', async (t) => {
  const { person, factor, organization } = await someone('owner')
  const { browser } = await signIn(person, await factor.code())
  const { verifier, challenge } = pkce()
  const consent = await browser.open(authorizationUrl(challenge))
  t.match(consent.text, /To allow all permissions, enter a code, too/)
  const allow = (page: Seen, more: Record<string, string>) =>
    browser.send(formIn(page), { decision: 'allow', ...more })
  for (const code of ['', await factor.code()]) {
    const again = await allow(consent, { code })
    t.match(again, { status: 422, text: /The code is wrong/ })
    t.match(again.headers.get('content-security-policy'), /form-action 'self' http:\/\/127\.0\.0\.1:/)
  }
  t.same(await service.sql(`SELECT FROM oauth_grants WHERE user_id = ${person.id}`), [])
  const allowed = await allow(consent, { code: factor.codes[0]! })
  t.equal(allowed.status, 303)
  const code = new URL(allowed.headers.get('location')!).searchParams.get('code')!
  const { body } = await post(address, '/api/oauth/token', {
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
    client_id: 'dotenv-cli',
    redirect_uri: 'http://127.0.0.1:5555/callback'
  })
  t.equal((await makeStar(organization, body.access_token)).status, 201)

  // A grant of fewer scopes requires no code. A denial requires no code either.
  const narrow = await browser.open(authorizationUrl(pkce().challenge, { scope: 'secret:read project:read' }))
  t.notMatch(narrow.text, /enter a code/)
  t.equal((await allow(narrow, {})).status, 303)
  const less = await browser.open(authorizationUrl(pkce().challenge))
  t.equal((await browser.send(formIn(less), { decision: 'allow', scope: ['secret:read', 'project:read'] })).status, 303)
  t.match(
    (await browser.decide(await browser.open(authorizationUrl(pkce().challenge)), 'deny')).search, /access_denied/
  )
  // A person without a second factor needs no code.
  const plain = await makePerson(service, { [organization]: 'owner' })
  t.equal((await makeStar(organization, (await tokensFor(address, plain)).access_token)).status, 201)
})

// A token must not expire after its grant.
const expires_at = new Date(Date.now() + 3_000_000)
const makeToken = (organization: string, bearer: string, abilities: readonly string[]) => service.inject({
  method: 'POST',
  url: `/api/v1/organizations/${organization}/api-keys`,
  headers: { authorization: `Bearer ${bearer}` },
  payload: { name: 'Made', abilities: [...abilities], expires_at }
})

const makeStar = (organization: string, bearer: string) => makeToken(organization, bearer, ['*'])

t.test('what was granted before there was a second factor makes no token of everything any more', async (t) => {
  const { organization } = await service.organization()
  const person = await makePerson(service, { [organization]: 'owner' })
  const before = await issuePair(service, person, SCOPE_NAMES)
  const star = await makeStar(organization, before.access)
  t.equal(star.status, 201)
  await giveSecondFactor(service, person)
  t.match(
    await makeStar(organization, before.access),
    { status: 403, body: { error: 'insufficient_permissions', details: { required_scope: '*' } } }
  )
  t.equal((await service.inject({
    url: `/api/v1/${organization}/projects`, headers: { authorization: `Bearer ${before.access}` }
  })).status, 200, 'it goes on otherwise')
  // A token that was made through this grant cannot make such a token either, even if it has every scope by name.
  const named = await makeToken(organization, before.access, SCOPE_NAMES)
  t.equal(named.status, 201)
  for (const { body: { token } } of [star, named]) {
    t.match(await makeStar(organization, token), { status: 403, body: { details: { required_scope: '*' } } })
    t.equal((await makeToken(organization, token, ['secret:read'])).status, 201, 'it goes on otherwise')
  }
  const after = await issuePair(service, person, SCOPE_NAMES)
  const made = await makeStar(organization, after.access)
  t.equal(made.status, 201)
  t.equal((await makeStar(organization, made.body.token)).status, 201)
  const all = await makeToken(organization, after.access, SCOPE_NAMES)
  t.equal((await makeStar(organization, all.body.token)).status, 403, 'every scope by name is not `*`')
})

t.test('which came first, second factor or grant, goes by what was committed, not by the clocks of instances', async (t) => {
  const { organization } = await service.organization()
  const person = await makePerson(service, { [organization]: 'owner' })
  // The clock of the instance that created the grant is an hour ahead.
  const [access, grant] = [mintCredential('at'), makeId() + 3_600_000 * 2 ** 12]
  await service.write(`INSERT INTO oauth_grants (id, user_id, client_id, scopes, expires_at) OVERRIDING SYSTEM VALUE
    VALUES (${grant}, ${person.id}, 'dotenv-cli', '{${SCOPE_NAMES.join(',')}}', now() + interval '1 day')`)
  await createPair(service.database.db, {
    grant_id: grant, access_hash: hashToken(access), refresh_hash: hashToken(mintCredential('rt')), scopes: [...SCOPE_NAMES]
  })
  t.equal((await makeStar(organization, access)).status, 201)
  const factor = await giveSecondFactor(service, person)
  t.equal((await makeStar(organization, access)).status, 403, 'from before the second factor')

  const { browser } = await signIn(person, await factor.code())
  const { verifier, challenge } = pkce()
  const consent = await browser.open(authorizationUrl(challenge))
  const allowed = await browser.send(formIn(consent), { decision: 'allow', code: factor.codes[0]! })
  const code = new URL(allowed.headers.get('location')!).searchParams.get('code')!
  const { body } = await post(address, '/api/oauth/token', {
    grant_type: 'authorization_code', code, code_verifier: verifier, client_id: 'dotenv-cli', redirect_uri: CALLBACK
  })
  t.equal((await makeStar(organization, body.access_token)).status, 201, 'with it')
})

t.test('an organization that requires it refuses members without one, with any credential, and no other', async (t) => {
  const { organization, call } = await service.organization()
  const person = await makePerson(service, { [organization]: 'owner' })
  const elsewhere = (await service.organization()).organization
  await service.sql(`INSERT INTO members (organization_id, user_id, role) VALUES ('${elsewhere}', ${person.id}, 'owner')`)
  await service.write(`UPDATE members SET role = 'owner' WHERE user_id = ${person.id}`)
  const { access } = await issuePair(service, person, SCOPE_NAMES)
  const made = await makeStar(organization, access)
  const ask = (bearer: string, url: string) => service.inject({ url, headers: { authorization: `Bearer ${bearer}` } })
  const own = `/api/v1/${organization}/projects`
  await service.sql(`UPDATE organization_counters SET require_second_factor = true WHERE organization_id = '${organization}'`)
  for (const bearer of [access, made.body.token as string]) {
    const refused = await ask(bearer, own)
    t.strictSame([refused.status, refused.body], [403, {
      error: 'second_factor_required',
      message: 'A second factor is required. Set it up on your account page.',
      details: { enroll_url: `${address}/account` }
    }])
  }
  t.equal((await ask(access, '/api/v1/user')).status, 200, 'what is no organization’s')
  t.equal((await ask(access, `/api/v1/${elsewhere}/projects`)).status, 200, 'another organization')
  t.equal((await call('GET', `/${organization}/projects`)).status, 200, 'a token without a person')
  t.equal((await makeStar(organization, access)).status, 403, 'nor does it change anything')

  const factor = await giveSecondFactor(service, person)
  for (const bearer of [access, made.body.token as string]) t.equal((await ask(bearer, own)).status, 200)
  t.equal((await ask(access, '/api/v1/user')).body.data.attributes.has_second_factor, true)
  await resetSecondFactor(service.database, person.email)
  for (const bearer of [access, made.body.token as string]) t.equal((await ask(bearer, own)).status, 403)
  t.ok(factor)

  const other = await makePerson(service, { [organization]: 'owner' })
  const remove = (bearer: string, { id }: { id: number }) => service.inject({
    method: 'DELETE',
    url: `/api/v1/organizations/${organization}/members/${id}`,
    headers: { authorization: `Bearer ${bearer}` }
  })
  const token = made.body.token as string
  for (const [bearer, whom] of [[access, other], [token, other], [token, person]] as const) {
    t.match(await remove(bearer, whom), { status: 403, body: { error: 'second_factor_required' } })
  }
  t.equal((await remove(access, person)).status, 204, 'but to leave takes none')
  t.equal((await ask(access, own)).status, 404)
})

t.test('only a person with a second factor, or the operator, sets whether the organization requires it', async (t) => {
  const { organization, call } = await service.organization()
  const person = await makePerson(service, { [organization]: 'owner' })
  const { access } = await issuePair(service, person, SCOPE_NAMES)
  const change = (body: object, bearer = access) => service.inject({
    method: 'PATCH',
    url: `/api/v1/organizations/${organization}`,
    headers: { authorization: `Bearer ${bearer}` },
    payload: body
  })
  const isRequired = async () =>
    (await call('GET', `/organizations/${organization}`)).body.data.attributes.require_second_factor as boolean
  for (const require_second_factor of [true, false]) {
    t.match(await change({ require_second_factor }), { status: 403, body: { error: 'second_factor_required' } })
  }
  t.equal(await isRequired(), false)
  t.equal((await change({ name: 'Nimbus' })).status, 200, 'what else it is called needs none')
  for (const wrong of ['yes', 1, null, []]) {
    t.match(
      await change({ require_second_factor: wrong }),
      { status: 422, body: { error: 'validation_failed', errors: { require_second_factor: [String] } } }
    )
  }
  await giveSecondFactor(service, person)
  const changed = await change({ require_second_factor: true })
  t.match(changed, { status: 200, body: { data: { attributes: { require_second_factor: true } } } })
  const other = await makePerson(service, { [organization]: 'administrator' })
  const theirs = await issuePair(service, other, SCOPE_NAMES)
  t.equal((await change({ require_second_factor: false }, theirs.access)).status, 403)
  t.equal(await isRequired(), true)
  t.equal((await change({ require_second_factor: false })).status, 200)
  t.equal((await change({ name: 'Nimbus' }, theirs.access)).status, 200)
  // The operator created this token; it has no person.
  t.equal((await call('PATCH', `/organizations/${organization}`, { require_second_factor: true })).status, 200)
  t.equal(await isRequired(), true)
})

t.test('the operator takes a lost one away, which ends the sessions', async (t) => {
  const { person, factor } = await someone()
  const { browser } = await signIn(person, await factor.code())
  await t.rejects(resetSecondFactor(service.database, 'nobody@nimbus.example'), /no account/)
  await resetSecondFactor(service.database, person.email.toUpperCase())
  t.notOk(isSignedIn(await browser.open('/account')))
  t.ok(isSignedIn((await password(person)).page))
  t.match((await service.sql(
    `SELECT actor_type FROM audit_events WHERE action = 'second-factor.disable' AND resource_id = '${person.id}'`
  )), [{ actor_type: 'operator' }])
  await t.rejects(resetSecondFactor(service.database, person.email), /has no second factor/)
})

t.test('to take its rows away in the database does not switch it off', async (t) => {
  const { person, factor } = await someone()
  for (const statement of [
    `DELETE FROM second_factors WHERE user_id = ${person.id}`, `UPDATE second_factors SET secret = secret || '\\x00' WHERE user_id = ${person.id}`
  ]) {
    await service.sql('CREATE TABLE kept AS SELECT * FROM second_factors')
    await service.sql(statement)
    const { page, browser } = await password(person)
    t.ok(asksForCode(page))
    for (const code of [await factor.code(), factor.codes[0]!]) {
      t.equal((await browser.send(formIn(page), { code })).status, 500)
    }
    t.notOk(isSignedIn(await browser.open('/account')))
    await service.sql(`DELETE FROM second_factors WHERE user_id = ${person.id}`)
    await service.sql(`INSERT INTO second_factors SELECT * FROM kept WHERE user_id = ${person.id}`)
    await service.sql('DROP TABLE kept')
  }
  await service.sql(`UPDATE users SET second_factor_id = NULL WHERE id = ${person.id}`)
  t.match((await password(person)).page, { status: 422 }, 'the account is none')
})

t.test('CR-14: rewrap puts its secret under the newest master key, and the codes stay the same', async (t) => {
  const { database, drop } = await freshDatabase()
  t.teardown(async () => {
    await database.close()
    await drop()
  })
  const [old, fresh] = ['k1', 'k2'].map((id) => parseMasterKey(generateMasterKey().text.replace(/^[^:]+/, id)))
  const before = createKeyring([old!])
  await openRows(database, before)
  const write = async (query: string) => {
    await database.db.execute(sql.raw(query))
    await authenticateTable(database.db, 'second_factors')
  }
  const person = await makePerson({ database })
  const factor = await giveSecondFactor({ database, keyring: before, write }, person)
  const outcome = await rewrap({ database, keyring: createKeyring([fresh!, old!]) })
  t.match(outcome, { failures: [], older: [{ id: 'k1', values: 0 }] })
  const user = (await findUser(database.db, person.id))!
  const judge = (code: string) => transaction(database.db, (db) => useCode(db, createKeyring([fresh!]), user, code))
  t.equal(await judge(await factor.code()), 'code')
  t.equal(await judge(factor.codes[0]!), 'recovery_code')
  await database.db.execute(sql`UPDATE second_factors SET secret = secret || '\\x00'`)
  t.match(
    (await rewrap({ database, keyring: createKeyring([old!, fresh!]) })).failures,
    [new RegExp(`^second_factors ${person.id}: the wrapped value fails authentication`)]
  )
})

t.test('CR-47: each form is this browser’s and this session’s alone', async (t) => {
  const { person, factor } = await someone()
  const { browser } = await signIn(person, await factor.code())
  const stranger = (await password(await makePerson(service))).browser
  const forms = [
    ...['/account/sessions/end', '/account/second-factor', '/account/second-factor/confirm',
      '/account/second-factor/change', '/account/tokens/end', '/account/applications/end'],
    '/oauth/sign-in/code'
  ]
  const change = formIn(await browser.open('/account/second-factor'))
  for (const action of forms) {
    const form = { ...change, action }
    const fields = { current: person.password, code: factor.codes[0]!, change: 'disable', id: '1' }
    t.equal((await browser.send(form, fields, { 'sec-fetch-site': 'cross-site' })).status, 403, action)
    t.equal((await browser.send(form, { ...fields, form_token: formToken('x') })).status, 403, action)
    t.equal((await stranger.send(form, fields)).status, 403, `${action} in another session`)
    t.equal((await visitor(address).send(form, fields)).status, 403, `${action} in no session`)
  }
  t.ok(asksForCode((await password(person)).page))
  t.ok(isSignedIn(await browser.open('/account')))
})

t.test('the account page shows and ends sessions, applications and tokens, and no other person’s', async (t) => {
  const { organization } = await service.organization()
  const [rosa, mallory] = [
    await makePerson(service, { [organization]: 'owner' }), await makePerson(service, { [organization]: 'owner' })
  ]
  const [first, second, other] = [
    (await password(rosa)).browser, (await password(rosa)).browser, (await password(mallory)).browser
  ]
  const { access, grant } = await issuePair(service, rosa, ['project:read'])
  const made = await makeStar(organization, (await issuePair(service, rosa, SCOPE_NAMES)).access)
  const theirs = await issuePair(service, mallory, ['project:read'])
  const user = (bearer: string) =>
    service.inject({ url: `/api/v1/${organization}/projects`, headers: { authorization: `Bearer ${bearer}` } })
  const page = await first.open('/account')
  t.match(page.text, /\(this browser\)/)
  t.equal(page.text.match(/sessions\/end/g)!.length, 2)
  t.equal(page.text.match(/applications\/end/g)!.length, 2)
  t.equal(page.text.match(/tokens\/end/g)!.length, 1)
  t.match(page.text, /<strong>Command line<\/strong> <span>since \d{4}-\d\d-\d\d, until \d{4}-\d\d-\d\d: 1 permission</)
  t.match(page.text, /<strong>Command line<\/strong> <span>[^:<]+: may do everything that you may</)

  // Sessions, applications and tokens of other people stay valid.
  const foreign = await other.open('/account')
  const formFor = (page: Seen, noun: string) => formTo(page, `/account/${noun}/end`)
  const idOf = (page: Seen, noun: string) => formFor(page, noun).fields.find(([name]) => name === 'id')![1]
  const own = formFor(foreign, 'sessions')
  for (const [noun, id] of [
    ['sessions', idOf(page, 'sessions')], ['applications', String(grant)], ['tokens', made.body.api_key.id as string]
  ] as const) {
    for (const one of [id, '', '0', 'x', '9'.repeat(40), "' OR 1=1 --"]) {
      const form = { ...own, action: `/account/${noun}/end` }
      t.equal((await other.send(form, { id: one })).status, 303)
    }
  }
  t.ok(isSignedIn(await first.open('/account')) && isSignedIn(await second.open('/account')))
  t.strictSame([(await user(access)).status, (await user(made.body.token)).status], [200, 200])

  // Ends the tokens one by one.
  t.equal((await first.send(formFor(page, 'tokens'))).status, 303)
  t.equal((await user(made.body.token)).status, 401)
  const narrow = { ...formFor(page, 'applications') }
  t.equal((await first.send(narrow, { id: String(grant) })).status, 303)
  t.equal((await user(access)).status, 401)
  t.equal((await user(theirs.access)).status, 200)
  const hash = hashToken(second.jar.get('session')!).toString('base64url')
  t.equal((await first.send(formFor(page, 'sessions'), { id: hash })).status, 303)
  t.notOk(isSignedIn(await second.open('/account')))
  t.ok(isSignedIn(await first.open('/account')))
  t.match(
    (await service.sql(`SELECT action, resource_type FROM audit_events WHERE organization_id = '${organization}'
      AND action IN ('session.delete', 'api-token.delete', 'oauth.revoke') ORDER BY seq`)),
    [
      { action: 'api-token.delete', resource_type: 'api-token' }, { action: 'oauth.revoke' },
      { action: 'session.delete' }
    ]
  )
})

t.test('each list of the account page is bounded and has pages, and whatever is on them can be ended', async (t) => {
  const { organization } = await service.organization()
  const person = await makePerson(service, { [organization]: 'owner' })
  const { browser } = await password(person)
  const { access, grant } = await issuePair(service, person, SCOPE_NAMES)
  const made = await makeStar(organization, access)
  // These grants are newer and were used later than the grant of the test, so the grant is not on the first page.
  await service.sql(`INSERT INTO oauth_grants (id, user_id, client_id, scopes, expires_at, mac) OVERRIDING SYSTEM VALUE
    SELECT id + 1000 * n, user_id, client_id, scopes, expires_at, mac FROM oauth_grants, generate_series(1, 1005) n
    WHERE id = ${grant}`)
  await service.sql(`INSERT INTO api_tokens
    (id, organization_id, name, token_hash, token_prefix, token_suffix, abilities, user_id, grant_id, mac) OVERRIDING SYSTEM VALUE
    SELECT id + 1000 * n, organization_id, name, sha256((id || '/' || n)::bytea), token_prefix, token_suffix, abilities, user_id, grant_id,
      mac FROM api_tokens, generate_series(1, 1005) n
    WHERE organization_id = '${organization}' AND id = ${made.body.api_key.id}`)
  const first = await browser.open('/account')
  for (const noun of ['tokens', 'applications']) {
    t.notMatch(first.text, new RegExp(`/account/${noun}/end`), 'what the service did not write is not shown')
    t.match(first.text, `href="/account?${noun}=2"`)
    const last = await browser.open(`/account?${noun}=11`)
    t.equal(last.text.match(new RegExp(`/account/${noun}/end`, 'g'))!.length, 1, `the oldest of the ${noun}`)
    t.match(last.text, `href="/account?${noun}=10"`)
    t.notMatch(last.text, `${noun}=12`)
  }
  for (const page of ['0', '-1', '1.5', 'x', '1001', '1e9', "' OR 1=1", '']) {
    const { status, text } = await browser.open(`/account?tokens=${encodeURIComponent(page)}`)
    t.strictSame([status, text.includes('?tokens=2'), text.includes('Previous')], [200, true, false], page)
  }
  const statusOf = async (token: string) => (await service.inject({
    url: `/api/v1/${organization}/projects`, headers: { authorization: `Bearer ${token}` }
  })).status
  const form = (noun: string) => ({ ...formIn(first), action: `/account/${noun}/end` })
  t.equal(await statusOf(made.body.token), 200)
  t.equal((await browser.send(form('tokens'), { id: made.body.api_key.id })).status, 303)
  t.equal(await statusOf(made.body.token), 401)
  t.equal(await statusOf(access), 200)
  t.equal((await browser.send(form('applications'), { id: String(grant) })).status, 303)
  t.equal(await statusOf(access), 401)

  const verified = (await findUser(db, person.id))!
  for (let i = 0; i < 101; i++) {
    await createSession(db, hashToken(mintSecret()), { id: person.id, password_hash: verified.password_hash! })
  }
  const sessions = async (page: number) =>
    (await browser.open(`/account?sessions=${page}`)).text.match(/sessions\/end/g)?.length
  t.strictSame([await sessions(1), await sessions(2), await sessions(3)], [100, 2, undefined])
})

/** Reads the QR code of a page from its drawn bars, like a camera. */
function readQr (text: string): string | undefined {
  const size = Number(/<svg class="qr"[^>]* viewBox="0 0 (\d+) \1"/.exec(text)![1])
  const SCALE = 4
  const width = size * SCALE
  const pixels = new Uint8ClampedArray(width * width * 4).fill(255)
  for (const [, x, y, length] of text.matchAll(/M(\d+) (\d+)h(\d+)v1h-\d+z/g)) {
    for (let row = Number(y) * SCALE; row < (Number(y) + 1) * SCALE; row++) {
      for (let column = Number(x) * SCALE; column < (Number(x) + Number(length)) * SCALE; column++) {
        pixels.fill(0, (row * width + column) * 4, (row * width + column) * 4 + 3)
      }
    }
  }
  const read = jsQR as unknown as typeof jsQR.default
  return read(pixels, width, width)?.data
}
