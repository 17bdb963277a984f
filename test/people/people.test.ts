// runs: one database; 15 s
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { Argon2id } from 'oslo/password'
import { sql } from 'drizzle-orm'
import t, { type Test } from 'tap'
import { SCOPE_NAMES, type Scope } from '../../schemas/scopes.ts'
import { ROLES, type Role } from '../../schemas/users.ts'
import { formToken, hashToken, mintCredential, mintSecret } from '../../src/crypto/bearer.ts'
import { COSTS } from '../../src/crypto/costs.ts'
import { hashPassword } from '../../src/crypto/passwords.ts'
import { WorkOverloaded } from '../../src/gate.ts'
import { createGrant, createPair } from '../../src/repositories/people/oauth.ts'
import { countKey, rememberDevice, returnAttempts, takeAttempts, type Count } from '../../src/repositories/people/attempts.ts'
import { recordOfPerson, UNLISTED_ORGANIZATIONS } from '../../src/changes/late.ts'
import { systemOf } from '../../src/repositories/audit/audit.ts'
import { switchUser } from '../../src/commands/people/users.ts'
import { transaction } from '../../src/changes/transaction.ts'
import { createPersonalEvent } from '../../src/repositories/people/personal-events.ts'
import { createSession } from '../../src/repositories/people/sessions.ts'
import {
  createPasswordLink, changePassword, createMember, createUser, findUser, setDisabled, updatePasswordHash
} from '../../src/repositories/people/users.ts'
import { effectiveScopes, scopesOfRole } from '../../src/rules/roles.ts'
import { makeLevel, ON_CITUS, startIsolatedApp, type Answer, type Caller, type TestApp } from '../helpers/app.ts'
import { QUICK } from '../helpers/costs.ts'
import { IN_PROOFS, LONG, sample } from '../helpers/long.ts'
import { authorize, CALLBACK, makePerson, post, tokensFor, type Person } from '../helpers/people.ts'
import { until } from '../helpers/until.ts'
import { formIn, visitor } from '../helpers/visitor.ts'

// The permissions of people in their organizations through an application, and how people authenticate.

// This file has its own database, because it looks at all people and sign-in attempts.
const service = await startIsolatedApp(t)
const address = await service.app.listen({ host: '127.0.0.1', port: 0 })
const { db } = service.database

/** An access token of a person, as the token endpoint would issue it. */
async function callerFor (
  person: Person, organization: string, scopes: readonly Scope[] = SCOPE_NAMES, on: TestApp = service
): Promise<Caller> {
  const token = mintCredential('at')
  const grant_id = await createGrant(
    on.database.db, { user_id: person.id, client_id: 'dotenv-cli', scopes: [...scopes] }
  )
  await createPair(on.database.db, {
    grant_id, access_hash: hashToken(token), refresh_hash: hashToken(mintCredential('rt')), scopes: [...scopes]
  })
  return {
    token,
    organization,
    call: (method, path, body, headers = {}) => on.inject({
      method: method as 'GET',
      url: `/api/v1${path}`,
      headers: {
        authorization: `Bearer ${token}`, ...headers
      },
      ...(body !== undefined && { payload: body as object })
    })
  }
}

const browser = mintSecret()
/** Sends the sign-in form like a browser. The browser is known by `device`, or new. */
const signIn = (
  email: string, password: string, on: TestApp = service, remoteAddress = '127.0.0.1', device?: string
): Promise<Answer> => on.inject({
  method: 'POST',
  url: '/oauth/sign-in',
  remoteAddress,
  headers: {
    cookie: `browser=${browser}${device === undefined ? '' : `; device=${device}`}`,
    'sec-fetch-site': 'same-origin',
    'content-type': 'application/x-www-form-urlencoded'
  },
  payload: new URLSearchParams({ form_token: formToken(browser), query: '', email, password }).toString()
})
const cookieOf = (name: string, { headers }: Answer) =>
  new RegExp(`${name}=([^;]+)`).exec(String(headers['set-cookie']))?.[1]
const sessionOf = (answer: Answer) => cookieOf('session', answer)
/** The row that counts the attempts. */
const countOf = async (
  name: string
) => (await service.sql(`SELECT failures, locked_until > now() AS locked, round(extract(epoch FROM locked_until - last_at))::int AS seconds
  FROM sign_in_failures WHERE key = '\\x${countKey(db, { name }).toString('hex')}'`))[0]
const isAlive = async (cookie: string | undefined) => (await service.inject({
  url: '/account', headers: { cookie: `session=${cookie}` }
})).text.includes('Sign out everywhere')
/** Removes the nonce, which differs in each page. */
const plain = ({ text }: Answer) => text.replace(/nonce="[^"]+"/, '')
const quiet = ({ headers: { 'x-request-id': _, date: __, 'content-length': ___, ...headers } }: Answer) =>
  JSON.stringify(headers).replace(/nonce-[A-Za-z0-9_-]+/, '').replace(/("x-ratelimit-\w+":)[^,}]+/g, '$1')

/**
 * Occupies all slots for password hashing after the service has counted an attempt and before it hashes the password.
 */
async function whileHashingIsFull (t: Test, work: () => Promise<void>) {
  const hashes: Promise<unknown>[] = []
  const fill = (message: unknown) => {
    const { phase, text } = message as { phase: string, text: unknown }
    // Waits for the last counter of the attempt, which counts attempts from all networks.
    if (phase !== 'after' || !/^insert into "sign_in_failures".*30 minutes/s.test(String(text))) return
    for (let i = 0; i < 40; i++) hashes.push(hashPassword('busy with this').catch(() => {}))
  }
  subscribe('strongroom:statement', fill)
  await work()
  unsubscribe('strongroom:statement', fill)
  t.ok(hashes.length > 0)
  await Promise.all(hashes)
}

// Passwords

t.test('CR-40 CR-41: when hashing is full everybody waits alike, with an account and without, and it passes', async (t) => {
  const [rosa, shut] = [await makePerson(service), await makePerson(service)]
  await setDisabled(db, shut.id, true)
  const invited = 'invited@nimbus.example'
  await createUser(db, { email: invited, name: 'Invited', password_hash: null })
  // This is the first attempt with an address without an account, and the service is busy.
  await whileHashingIsFull(t, async () => {
    for (const email of sample(['nobody@nimbus.example', shut.email, rosa.email, invited], 2)) {
      const answer = await signIn(email, 'wrong password')
      t.equal(answer.status, 503, `a hash is needed for ${email}`)
      t.match(answer.headers['content-type'], 'text/html')
      t.equal(answer.headers['retry-after'], undefined, 'Retry-After is for 429 alone')
      t.notMatch(answer.text, /Overloaded|hash/)
    }
  })
  t.strictSame(
    [...await service.sql('SELECT DISTINCT failures FROM sign_in_failures')], [{ failures: 0 }],
    'what was not judged does not count'
  )
  for (const email of ['nobody@nimbus.example', rosa.email, shut.email, invited]) {
    t.equal((await signIn(email, 'wrong password')).status, 422, `${email} afterwards`)
  }
  t.equal((await signIn(rosa.email, rosa.password)).status, 303)
})

t.test('CR-40: four hashes run, 32 wait, and the rest is refused at once', async (t) => {
  const outcomes = await Promise.allSettled(Array.from({ length: 40 }, () => hashPassword('one of many', QUICK.password)))
  const refused = outcomes.filter(({ status }) => status === 'rejected') as PromiseRejectedResult[]
  t.equal(refused.length, 4)
  t.ok(refused.every(({ reason }) => reason instanceof WorkOverloaded && /password hashes/.test(reason.message)))
})

t.test('CR-40: a crowd at the door gets an answer or a 503 page, and the service stays well', IN_PROOFS, async (t) => {
  service.app.costs = COSTS
  t.teardown(() => { service.app.costs = QUICK })
  const rosa = await makePerson(service)
  const answers = await Promise.all(Array.from({ length: 80 }, (_, i) =>
    signIn(`crowd-${i}@nimbus.example`, 'wrong password')))
  t.strictSame([...new Set(answers.map(({ status }) => status))].sort(), [422, 503])
  t.equal((await signIn(rosa.email, rosa.password)).status, 303)
})

t.test('CR-40: passwords are stored as Argon2id with today’s parameters, each with a salt of its own', async (t) => {
  const hashes = await Promise.all(['first', 'second'].map(async (name) => {
    const id = (await createUser(
      db, { email: `${name}@nimbus.example`, name, password_hash: await hashPassword('correct horse battery') }
    ))!
    return (await findUser(db, id))!.password_hash!
  }))
  for (const hash of hashes) t.match(hash, /^\$argon2id\$v=19\$m=19456,t=2,p=1\$[A-Za-z0-9+/]{22,}\$[A-Za-z0-9+/]{43}$/)
  t.not(hashes[0], hashes[1])
})

t.test('CR-40: one password typed in two Unicode forms is one password', async (t) => {
  const person = await makePerson(service, {}, 'ﬁne Ångström １２３')
  for (const typed of ['ﬁne Ångström １２３', 'fine Ångström 123', 'fine A\u030angstro\u0308m 123']) {
    t.equal((await signIn(person.email, typed)).status, 303, typed)
  }
  for (const typed of ['Fine Ångström 123', 'fine Angstrom 123', 'fine Ångström 123 ']) {
    t.equal((await signIn(person.email, typed)).status, 422, typed)
  }
})

/** A link with which a person can set a password. */
async function linkFor ({ id }: { id: number }): Promise<string> {
  const link = mintSecret()
  await createPasswordLink(db, hashToken(link), id)
  return link
}

t.test('CR-40: a new password has 8 characters to 128 bytes, all of which count', async (t) => {
  const person = await makePerson(service)
  const link = await linkFor(person)
  const visit = visitor(address)
  const page = await visit.open(`/account/set-password/${link}`)
  const refused = ['', 'seven77', '🗝🗝🗝🗝🗝🗝🗝', 'x'.repeat(129), 'é'.repeat(65), 'x'.repeat(5000)]
  for (const password of refused) {
    const answer = await visit.send(formIn(page), { password })
    t.equal(answer.status, 422, `${password.length} characters`)
    t.notMatch(answer.text, password === '' ? /\0/ : password)
  }
  const long = 'x'.repeat(127)
  for (const password of ['eight888', '🗝🗝🗝🗝🗝🗝🗝🗝', `${long}a`, 'é'.repeat(64)]) {
    const next = visitor(address)
    const form = formIn(await next.open(`/account/set-password/${await linkFor(person)}`))
    t.equal((await next.send(form, { password })).status, 303, `${password.length} characters`)
    t.equal((await signIn(person.email, password)).status, 303)
    t.equal((await signIn(person.email, password.slice(0, -1))).status, 422, 'the last one counts')
    t.equal((await signIn(person.email, `${password}x`)).status, 422, 'nothing is cut off')
    await service.sql('DELETE FROM sign_in_failures')
  }
})

t.test('CR-40: a hash of older parameters is made anew at sign-in, and ends nothing', async (t) => {
  service.app.costs = COSTS
  t.teardown(() => { service.app.costs = QUICK })
  const nimbus = await service.organization()
  const person = await makePerson(service, { [nimbus.organization]: 'member' })
  const before = sessionOf(await signIn(person.email, person.password))
  const caller = await callerFor(person, nimbus.organization)
  const old = await new Argon2id({ memorySize: 8192, iterations: 1, parallelism: 1 }).hash(person.password)
  await service.write(`UPDATE users SET password_hash = '${old}' WHERE id = ${person.id}`)
  t.equal((await signIn(person.email, 'wrong password')).status, 422)
  t.equal((await findUser(db, person.id))!.password_hash, old, 'a wrong password changes nothing')
  const both = await Promise.all([signIn(person.email, person.password), signIn(person.email, person.password)])
  t.strictSame(both.map(({ status }) => status), [303, 303], 'two at once')
  t.match((await findUser(db, person.id))!.password_hash, '$m=19456,t=2,p=1$')
  for (const cookie of [before, ...both.map(sessionOf)]) t.ok(await isAlive(cookie))
  t.equal((await caller.call('GET', '/user')).status, 200)
})

t.test('CR-40 OA-63: a hash made anew never brings a password back that was changed meanwhile', async (t) => {
  const person = await makePerson(service)
  const old = (await findUser(db, person.id))!.password_hash!
  const changed = await hashPassword('another password')
  await changePassword(db, person.id, changed)
  t.equal(await updatePasswordHash(db, person.id, old, await hashPassword(person.password)), false)
  t.equal((await findUser(db, person.id))!.password_hash, changed)
  t.equal(
    await createSession(db, hashToken(mintSecret()), { id: person.id, password_hash: old }), false,
    'nor does a session begin'
  )
  await setDisabled(db, person.id, true)
  t.equal(
    await createSession(db, hashToken(mintSecret()), { id: person.id, password_hash: changed }), false,
    'nor one of a closed account'
  )
})

t.test('OA-63: a sign-in under way does not outlive the password that it was made with', async (t) => {
  const next = await hashPassword('another password')
  for (let round = 0; round < (LONG ? 8 : 4); round++) {
    const person = await makePerson(service)
    const under = Array.from({ length: 4 }, () => signIn(person.email, person.password))
    await new Promise((resolve) => setTimeout(resolve, 20 * round))
    await transaction(db, (db) => changePassword(db, person.id, next))
    for (const answer of await Promise.all(under)) {
      const cookie = sessionOf(answer)
      if (cookie !== undefined && await isAlive(cookie)) t.fail(`round ${round}: a session of the old password lives`)
    }
    t.equal(
      (await service.sql(`SELECT count(*)::int AS n FROM sessions WHERE user_id = ${person.id}`))[0]!.n, 0,
      `round ${round}`
    )
  }
})

// Guessing

t.test('CR-41: who has no account, a wrong password or a closed account get the same answer', async (t) => {
  const [rosa, shut] = [await makePerson(service), await makePerson(service)]
  await setDisabled(db, shut.id, true)
  const pending = 'pending@nimbus.example'
  await createUser(db, { email: pending, name: 'Pending', password_hash: null })
  const rows: [who: string, email: string, password: string][] = [
    ['a wrong password', rosa.email, 'wrong password'], [
      'nobody', 'nobody-2@nimbus.example', rosa.password
    ], ['a closed account', shut.email, shut.password],
    [
      'a closed account and a wrong password', shut.email, 'wrong password'
    ], ['no password yet', pending, 'wrong password']
  ]
  await service.sql('DELETE FROM sign_in_failures')
  const answers = []
  for (const [who, email, password] of rows) {
    const answer = await signIn(email, password)
    t.equal(answer.status, 422, who)
    t.match(answer.text, `value="${email}"`, 'the address is still in the form')
    answers.push({ who, text: plain(answer).replaceAll(email, '…'), headers: quiet(answer) })
  }
  for (const { who, text, headers } of answers) {
    t.strictSame([text, headers], [answers[0]!.text, answers[0]!.headers], who)
  }
  t.equal(
    (await service.sql('SELECT count(*)::int AS n FROM sign_in_failures'))[0]!.n, 4 * 2,
    'each address is counted, here and everywhere'
  )

  // Repeats the measurement while the account is locked.
  const locked = []
  const began = performance.now()
  for (const [who, email] of rows) {
    let answer = await signIn(email, 'wrong password')
    for (let i = 0; i < 6; i++) answer = await signIn(email, 'wrong password')
    t.equal(answer.status, 429, who)
    const { 'retry-after': wait, ...headers } = answer.headers
    t.ok(Number(wait) <= 30 && Number(wait) >= 29 - (performance.now() - began) / 1000, `${who}: ${wait} s`)
    locked.push({ who, text: plain(answer).replaceAll(email, '…'), headers: quiet({ ...answer, headers }) })
  }
  for (const { who, text, headers } of locked) t.strictSame([text, headers], [locked[0]!.text, locked[0]!.headers], who)
})

t.test('CR-42: after five wrong passwords no password counts, not even the right one, until the lock is over', async (t) => {
  const person = await makePerson(service)
  for (let i = 1; i <= 5; i++) t.equal((await signIn(person.email, `wrong password ${i}`)).status, 422, `guess ${i}`)
  for (const password of ['wrong password', person.password, '']) {
    const answer = await signIn(person.email, password)
    t.equal(answer.status, 429)
    t.match(answer.text, /too many attempts/)
    t.notOk(sessionOf(answer))
  }
  const here = `user:${person.id} ip:127.0.0.1`
  t.strictSame(
    await countOf(here), { failures: 5, locked: true, seconds: 30 }, 'what was typed meanwhile made it no longer'
  )
  const over =
    `UPDATE sign_in_failures SET locked_until = now() - interval '1 second' WHERE key = '\\x${countKey(db, { name: here }).toString('hex')}'`
  for (const [i, seconds] of [60, 120, 240, 480, 900, 900].entries()) {
    await service.sql(over)
    t.equal((await signIn(person.email, 'wrong password')).status, 422)
    t.equal((await signIn(person.email, person.password)).status, 429)
    t.strictSame(await countOf(here), { failures: 6 + i, locked: true, seconds })
  }
  await service.sql(over)
  t.equal((await signIn(person.email, person.password)).status, 303, 'the right one after the lock')
  t.equal(await countOf(here), undefined, 'forgets')
  t.strictSame(
    await countOf(`user:${person.id}`), { failures: 11, locked: null, seconds: null },
    'but not what was tried from everywhere'
  )
  await service.sql('DELETE FROM sign_in_failures')
  for (let round = 0; round < 2; round++) {
    for (let i = 0; i < 4; i++) t.equal((await signIn(person.email, 'wrong password')).status, 422)
    t.equal((await signIn(person.email, person.password)).status, 303, 'four wrong ones are free each time')
  }
  for (let i = 0; i < 4; i++) await signIn(person.email, 'wrong password')
  await service.sql("UPDATE sign_in_failures SET last_at = now() - interval '16 minutes'")
  for (let i = 0; i < 4; i++) {
    t.equal((await signIn(person.email, 'wrong password')).status, 422, 'after 15 minutes it begins anew')
  }
  t.equal((await signIn(person.email, person.password)).status, 303)
})

t.test('CR-42: all spellings of one address share one count', async (t) => {
  const spellings = (email: string) => [
    email.toUpperCase(), ` ${email}`, `${email}  `, `\t${email}\u00a0`, email.replace(/[!-~]/g, (letter) =>
      String.fromCharCode(letter.charCodeAt(0) + 0xfee0)), email.replace('@', '＠'),
    email.replace('n', 'ⓝ'), `\u3000${email[0]!.toUpperCase()}${email.slice(1)}`
  ]
  const person = await makePerson(service)
  for (const email of spellings(person.email)) {
    t.equal((await signIn(email, person.password)).status, 303, `${email} is the same account`)
  }
  for (const email of [person.email, 'nobody-3@nimbus.example']) {
    const statuses = []
    for (const spelling of spellings(email)) statuses.push((await signIn(spelling, 'wrong password')).status)
    t.strictSame(statuses, [422, 422, 422, 422, 422, 429, 429, 429], email)
    t.equal((await signIn(email, person.password)).status, 429)
  }
})

t.test('CR-42: of 50 guesses at once five are looked at', async (t) => {
  const person = await makePerson(service)
  for (const email of [person.email, 'nobody-4@nimbus.example']) {
    const answers = await Promise.all(Array.from({ length: 50 }, (_, i) => signIn(email, `guess number ${i}`)))
    const of = (status: number) => answers.filter((answer) => answer.status === status).length
    t.strictSame([of(422), of(429)], [5, 45], email)
  }
  t.equal((await countOf(`user:${person.id} ip:127.0.0.1`))!.failures, 5)
  t.equal((await countOf(`user:${person.id}`))!.failures, 5, 'what was refused here does not count everywhere')
})

t.test('CR-42: guesses of one network lock no other network out; an IPv6 subscriber is one network', async (t) => {
  const person = await makePerson(service)
  const statuses = async (address: string, password: string, times = 1) => {
    const seen = []
    for (let i = 0; i < times; i++) seen.push((await signIn(person.email, password, service, address)).status)
    return seen
  }
  t.strictSame(await statuses('192.0.2.1', 'wrong password', 7), [422, 422, 422, 422, 422, 429, 429])
  t.strictSame(await statuses('192.0.2.2', person.password), [303])
  t.strictSame(await statuses('::ffff:192.0.2.1', person.password), [429], 'another spelling of the same address')
  const six = []
  for (let i = 1; i <= 7; i++) six.push(...await statuses(`2001:db8:0:1::${i}`, 'wrong password'))
  t.strictSame(six, [422, 422, 422, 422, 422, 429, 429])
  t.strictSame(await statuses('2001:db8:0:2::1', person.password), [303])
})

/**
 * Guesses from several networks until the service refuses attempts from all unknown networks. Returns the number of
 * guesses that the service checked.
 */
async function guessFromEverywhere (email: string): Promise<number> {
  const answers = []
  for (let network = 1; network <= 6; network++) {
    answers.push(...await Promise.all(Array.from({ length: 6 }, (_, i) =>
      signIn(email, `guess number ${i}`, service, `198.51.100.${network}`))))
  }
  return answers.filter(({ status }) => status === 422).length
}

t.test('CR-42: strangers, however many, never lock out a device that has signed in before', async (t) => {
  const person = await makePerson(service)
  let device = cookieOf('device', await signIn(person.email, person.password))!
  t.equal(await guessFromEverywhere(person.email), 25, 'of 36 guesses from 6 networks at once, 25 are looked at')
  t.strictSame(await countOf(`user:${person.id}`), { failures: 25, locked: true, seconds: 1800 })
  const strange = await signIn(person.email, person.password, service, '203.0.113.9')
  t.strictSame(
    [strange.status, sessionOf(strange)], [429, undefined], 'no unknown device, not even with the right password'
  )
  t.ok(Number(strange.headers['retry-after']) <= 1800)
  for (const address of ['127.0.0.1', '198.51.100.1', '203.0.113.9']) {
    const answer = await signIn(person.email, person.password, service, address, device)
    t.equal(answer.status, 303, `the known device, from ${address}`)
    t.not(cookieOf('device', answer), device, 'goes by a new name each time')
    t.equal(
      (await signIn(person.email, person.password, service, address, device)).status, 429,
      'the name before is worth nothing'
    )
    device = cookieOf('device', answer)!
  }
  // The device has the same small allowance as a network, and its guesses do not count for other devices.
  const own = []
  for (let i = 0; i < 6; i++) {
    own.push((await signIn(person.email, 'wrong password', service, '127.0.0.1', device)).status)
  }
  t.strictSame(own, [422, 422, 422, 422, 422, 429])
  t.equal((await signIn(person.email, person.password, service, '127.0.0.1', device)).status, 429)
  t.equal((await countOf(`user:${person.id}`))!.failures, 25)

  // With a new device, the person can sign in after the window, or at any time with a mailed link.
  await service.sql(
    "UPDATE sign_in_failures SET last_at = now() - interval '31 minutes', locked_until = now() - interval '16 minutes'"
  )
  t.equal((await signIn(person.email, person.password, service, '203.0.113.9')).status, 303)
  await guessFromEverywhere(person.email)
  t.equal((await signIn(person.email, person.password, service, '203.0.113.9')).status, 429)
  const visit = visitor(address)
  t.equal((await visit.send(
    formIn(await visit.open(`/account/set-password/${await linkFor(person)}`)), { password: 'another password' }
  )).status, 303)
  t.equal(
    (await signIn(person.email, 'another password', service, '203.0.113.9', visit.jar.get('device'))).status, 303,
    'the device that used the link is known'
  )
})

t.test('CR-42: strangers at the same address use up nothing of a device that has signed in before', async (t) => {
  const limited = await startIsolatedApp(t, { RATE_LIMIT_OAUTH: '2' })
  const person = await makePerson(limited)
  const first = await signIn(person.email, person.password, limited)
  const device = cookieOf('device', first)!
  const strangers = []
  for (let i = 0; i < 8; i++) {
    strangers.push((await signIn(`nobody-${i}@nimbus.example`, 'wrong password', limited)).status)
  }
  t.strictSame(strangers, [422, 422, 422, 429, 429, 429, 429, 429], 'the address has four a minute')
  t.equal(
    (await signIn(person.email, person.password, limited, '127.0.0.1', mintSecret())).status, 429,
    'a made-up device is not known'
  )
  t.equal(
    (await signIn(person.email, person.password, limited, '127.0.0.1', device)).status, 303, 'the owner’s is let in'
  )
})

t.test('CR-42: a person with an account is a stranger to other accounts: their guesses count by address', IN_PROOFS, async (t) => {
  const limited = await startIsolatedApp(t, { RATE_LIMIT_OAUTH: '10' })
  const [mallory, trudy, rosa] = [await makePerson(limited), await makePerson(limited), await makePerson(limited)]
  const devices = new Map<Person, string>()
  const begin = async (person: Person) => {
    const answer = await signIn(person.email, person.password, limited, '127.0.0.1', devices.get(person))
    if (answer.status === 303) devices.set(person, cookieOf('device', answer)!)
    return answer.status
  }
  for (const person of [mallory, trudy, rosa]) t.equal(await begin(person), 303, 'three of the twenty of the address')
  let victim = 0
  const guess = async (on: Person) =>
    (await signIn(`victim-${++victim}@nimbus.example`, 'wrong password', limited, '127.0.0.1', devices.get(on))).status
  const own = []
  const seen: Record<number, number> = {}
  for (let i = 0; i < 60; i++) {
    if (i % 5 === 0) own.push(await begin(mallory))
    const status = await guess(i < 30 ? mallory : trudy)
    seen[status] = (seen[status] ?? 0) + 1
  }
  t.strictSame(seen, { 422: 17, 429: 43 }, 'with both of their browsers together: what was left to the address')
  t.strictSame(
    own.filter((status) => status === 303).length, 4,
    'and a browser has no more than twenty in all, whatever it goes by'
  )
  t.equal(await begin(rosa), 303, 'a browser that is known for the account is let in')
})

t.test('CR-42: a browser that several people have signed in with has five guesses at each account', async (t) => {
  const [mallory, rosa] = [await makePerson(service), await makePerson(service)]
  let device = cookieOf('device', await signIn(rosa.email, rosa.password))
  const statuses = []
  for (let i = 0; i < 8; i++) {
    device = cookieOf('device', await signIn(mallory.email, mallory.password, service, '127.0.0.1', device))
    statuses.push((await signIn(rosa.email, 'wrong password', service, '127.0.0.1', device)).status)
  }
  t.strictSame(statuses, [422, 422, 422, 422, 422, 429, 429, 429])
})

t.test('CR-42: an attempt that is given back beside a lock of others neither lifts nor shortens it', async (t) => {
  const lockOf = async (name: string) => (await service.sql(
    `SELECT failures, locked_until::text FROM sign_in_failures WHERE key = '\\x${countKey(db, { name }).toString('hex')}'`
  ))[0]
  const person = await makePerson(service)
  const account = `user:${person.id}`
  for (let i = 0; i < 25; i++) await signIn(person.email, 'wrong password', service, `203.0.113.${i}`)
  const lock = await lockOf(account)
  t.match(lock, { failures: 25, locked_until: String })
  // The attempt counts for its network. The account lock refuses it, and the service then gives back the count.
  for (let i = 0; i < 3; i++) {
    t.equal((await signIn(person.email, person.password, service, '203.0.113.99')).status, 429)
  }
  t.strictSame(await lockOf(`${account} ip:203.0.113.99`), { failures: 0, locked_until: null })
  t.strictSame(await lockOf(account), lock)

  // One attempt waits for its hash while other attempts fail. Their lock ends, and they cause a new lock.
  const [place, another]: Count[] = [
    { of: 'place', name: 'a place' }, { of: 'account', name: 'an account' }
  ]
  const others = async (count: Count, times: number) => {
    for (let i = 0; i < times; i++) {
      t.match(await takeAttempts(db, [count]), { number: Number })
    }
  }
  await takeAttempts(db, [place!])
  await others(place!, 4)
  await service.sql(
    `UPDATE sign_in_failures SET locked_until = now() - interval '1 second' WHERE key = '\\x${countKey(db, { name: 'a place' }).toString('hex')}'`
  )
  await others(place!, 1)
  const fresh = await lockOf('a place')
  t.match(fresh, { failures: 6, locked_until: String })
  await returnAttempts(db, [place!])
  t.strictSame(await lockOf('a place'), { ...fresh, failures: 5 })
  // Without the waiting attempt, the other attempts are too few for a lock.
  await takeAttempts(db, [another!])
  await others(another!, 24)
  t.match(await takeAttempts(db, [another!]), { wait: Number })
  await returnAttempts(db, [another!])
  t.strictSame(await lockOf('an account'), { failures: 24, locked_until: null })
  await service.sql('DELETE FROM sign_in_failures')
})

t.test('CR-41: guesses from everywhere are bounded alike for an address without an account', async (t) => {
  t.equal(await guessFromEverywhere('nobody-5@nimbus.example'), 25)
  const person = await makePerson(service)
  const device = cookieOf('device', await signIn(person.email, person.password))!
  t.equal(
    (await signIn('nobody-5@nimbus.example', 'wrong password', service, '203.0.113.9', device)).status, 429,
    'a device that is not known for an account'
  )
})

t.test('CR-42: a device is known for the accounts that signed in with it, for 90 days unless that is ended', async (t) => {
  const [rosa, omar] = [await makePerson(service), await makePerson(service)]
  const known = async (person: Person, device: string | undefined) => (await service.sql(`SELECT 1 FROM sign_in_devices
    WHERE user_id = ${person.id} AND token_hash = '\\x${hashToken(device ?? '').toString('hex')}' AND expires_at > now()`)).length === 1
  const begin = async (person: Person, device?: string) =>
    cookieOf('device', await signIn(person.email, person.password, service, '127.0.0.1', device))!
  const one = await begin(rosa)
  await guessFromEverywhere(omar.email)
  t.equal(
    (await signIn(omar.email, omar.password, service, '203.0.113.9', one)).status, 429,
    'that of another account is a stranger'
  )
  await service.sql('DELETE FROM sign_in_failures')
  const both = await begin(omar, one)
  t.strictSame(
    [await known(rosa, both), await known(omar, both), await known(rosa, one)], [true, true, false],
    'two people at one browser'
  )
  const [days] = await service.sql(
    `SELECT round(extract(epoch FROM expires_at - now()) / 86400)::int AS days FROM sign_in_devices WHERE user_id = ${omar.id}`
  )
  t.equal(days!.days, 90)
  await service.sql(`UPDATE sign_in_devices SET expires_at = now() - interval '1 second' WHERE user_id = ${rosa.id}`)
  await guessFromEverywhere(rosa.email)
  t.equal((await signIn(rosa.email, rosa.password, service, '203.0.113.9', both)).status, 429, 'not beyond its days')
  await service.sql('DELETE FROM sign_in_failures')

  const ends: Record<string, () => Promise<unknown>> = {
    'a new password': async () => { await changePassword(db, rosa.id, await hashPassword(rosa.password)) },
    'a closed account, also when it opens again': async () => {
      for (const shut of [true, false]) {
        await setDisabled(db, rosa.id, shut)
      }
    },
    'signing out everywhere': async () => {
      const visit = visitor(address)
      await visit.send(
        formIn(await visit.signIn(await visit.open('/account'), rosa.email, rosa.password)), { where: 'everywhere' }
      )
    }
  }
  for (const [what, end] of Object.entries(ends)) {
    const device = await begin(rosa)
    t.ok(await known(rosa, device))
    await end()
    t.notOk(await known(rosa, device), what)
  }
  const visit = visitor(address)
  await visit.send(
    formIn(await visit.signIn(await visit.open('/account'), rosa.email, rosa.password)), { where: 'here' }
  )
  t.ok(await known(rosa, visit.jar.get('device')), 'signing out here leaves it known')

  for (let i = 0; i < 25; i++) {
    await rememberDevice(db, { token_hash: hashToken(`device ${i}`), before: undefined, user_id: rosa.id })
  }
  const kept = await Promise.all(Array.from({ length: 25 }, (_, i) => known(rosa, `device ${i}`)))
  t.strictSame(kept, Array.from({ length: 25 }, (_, i) => i >= 5), 'the 20 newest of an account')
})

t.test('CR-42: the password that a change asks for is counted by the session alone', async (t) => {
  const person = await makePerson(service)
  const visit = visitor(address)
  await visit.signIn(await visit.open('/account'), person.email, person.password)
  await guessFromEverywhere(person.email)
  const form = formIn(await visit.open('/account/password'))
  for (let i = 0; i < 5; i++) {
    t.match(
      (await visit.send(form, { current: 'wrong password', password: 'another password' })).text,
      /current password is wrong/
    )
  }
  const locked = await visit.send(form, { current: person.password, password: 'another password' })
  t.equal(locked.status, 429)
  t.ok(Number(locked.headers.get('retry-after')) >= 1)
  t.match(locked.text, /too many attempts/)
  t.match((await visit.open('/account')).text, 'Sign out', 'who is signed in stays so')
  const other = visitor(address)
  other.jar.set('device', visit.jar.get('device')!)
  const opened = await other.signIn(await other.open('/account'), person.email, person.password)
  t.match(opened.text, 'Sign out', 'and can sign in elsewhere')
  t.equal((await other.send(
    formIn(await other.open('/account/password')), { current: person.password, password: 'another password' }
  )).status, 303, 'another session is not concerned')
})

/** Waits until every event of an organization has a number. Some concurrent requests do not wait for the counter. */
async function untilNumbered ({ organization }: Pick<Caller, 'organization'>) {
  const late = () => service.sql(`SELECT 1 FROM late_events WHERE organization_id = '${organization}' LIMIT 1`)
  await until(async () => (await late()).length === 0)
}

// On Citus, a refusal gets its number after the response, so a later event can have an earlier number.
const IN_ORDER = ON_CITUS ? 'occurred_at, seq' : 'seq'

/** Events about a person in an organization, newest last. */
async function eventsAbout (person: Person, caller: Caller) {
  await untilNumbered(caller)
  return (await service.sql(`SELECT action, actor_type, actor_id::float8 AS actor, details FROM audit_events
    WHERE organization_id = '${caller.organization}' AND resource_type = 'user' AND resource_id = '${person.id}'
    ORDER BY ${IN_ORDER}`))
    .map(({ action, actor_type, actor, details }) => {
      const { late: _, ...more } = details as Record<string, unknown> ?? {}
      return [action, actor_type, actor, ...Object.keys(more).length === 0 ? [] : [more]]
    })
}

t.test('AU-01: sign-in, refusal, sign-out, confirmation and consent are events in every own organization', async (t) => {
  const [nimbus, cirrus, other] = [
    await service.organization(), await service.organization(), await service.organization()
  ]
  const person = await makePerson(service, { [nimbus.organization]: 'owner', [cirrus.organization]: 'member' })
  const visit = visitor(address)
  await visit.signIn(await visit.open('/account'), person.email, 'planted password')
  await visit.signIn(await visit.open('/account'), person.email, person.password)
  const consent = await authorize(address, person, {}, visit)
  t.ok(consent.code)
  const form = formIn(await visit.open('/account/password'))
  await visit.send(form, { current: 'planted password', password: 'another password' })
  await visit.send(form, { current: person.password, password: 'another password' })
  await visit.send(formIn(await visit.open('/account')), { where: 'here' })
  await visit.signIn(await visit.open('/account'), person.email, 'another password')
  await visit.send(formIn(await visit.open('/account')), { where: 'everywhere' })
  await visit.send(
    formIn(await visit.open(`/account/set-password/${await linkFor(person)}`)), { password: 'third password' }
  )
  const who = ['user', person.id]
  for (const organization of [nimbus, cirrus]) {
    t.match(await eventsAbout(person, organization), [
      ['session.refuse', ...who, { attempts: 1 }], ['session.create', ...who], [
        'oauth.grant', ...who, { client: 'dotenv-cli' }
      ],
      ['password.refuse', ...who, { attempts: 1 }], ['user.password', ...who], ['session.create', ...who],
      ['session.delete', ...who], ['session.create', ...who], ['oauth.revoke', ...who, { everything: true }],
      ['user.password', ...who], ['session.create', ...who]
    ])
    t.equal((await eventsAbout(person, organization)).length, 11)
  }
  t.strictSame(await eventsAbout(person, other), [])
  const all = JSON.stringify(await service.sql('SELECT * FROM audit_events'))
  t.notMatch(all, /planted|another password|third password|correct horse/)
  t.notMatch(all, person.email)
})

t.test('AU-01: a flood of bad sign-ins leaves few events, and an address without an account leaves none', async (t) => {
  const nimbus = await service.organization()
  const person = await makePerson(service, { [nimbus.organization]: 'member' })
  await guessFromEverywhere(person.email)
  await untilNumbered(nimbus)
  const attempts = (await eventsAbout(person, nimbus)).map(([, , , details]) =>
    (details as { attempts: number }).attempts)
  t.strictSame(
    attempts.sort((a, b) => a - b), [1, 2, 3, 4, 5, 10, 15, 20, 25],
    'each of the first, then every fifth; what was not looked at is none'
  )
  const [before] = await service.sql('SELECT count(*)::int AS n FROM audit_events')
  await signIn('nobody-6@nimbus.example', 'wrong password')
  t.strictSame((await service.sql('SELECT count(*)::int AS n FROM audit_events'))[0], before)
  const refused = service.logs.filter((line) => line.includes('wrong password')).map((line) => JSON.parse(line))
  t.match(refused.at(-1), { user: null, attempts: 1 })
  t.notMatch(service.logs.join(''), 'nobody-6')
})

t.test('AU-01: a locked counter of an organization blocks no person: the event follows after the lock', {
  skip: service.database.kind === 'embedded' && 'one connection: a transaction with a lock has the whole database'
}, async (t) => {
  const [nimbus, cirrus] = [await service.organization(), await service.organization()]
  const person = await makePerson(service, { [nimbus.organization]: 'owner', [cirrus.organization]: 'member' })
  let release = () => {}
  const released = new Promise<void>((resolve) => { release = resolve })
  let isHeld = () => {}
  const ready = new Promise<void>((resolve) => { isHeld = resolve })
  const holding = service.database.maintain(async (tx) => {
    await tx.execute(`SELECT 1 FROM organization_counters WHERE organization_id = '${nimbus.organization}' FOR UPDATE`)
    isHeld()
    await released
  })
  await ready

  const rows = async (
    { organization }: Caller
  ) => [...await service.sql(`SELECT action, actor_type, request_id, occurred_at::text,
      nullif(details - 'late', '{}') AS details
    FROM audit_events WHERE organization_id = '${organization}' AND resource_id = '${person.id}' ORDER BY seq`)]
  const visit = visitor(address)
  const steps: [event: string, step: () => Promise<unknown>][] = [
    ['session.refuse', async () => t.match(
      (await visit.signIn(await visit.open('/account'), person.email, 'planted password')).text,
      /Wrong e-mail address or password/
    )],
    ['session.create', async () =>
      t.match((await visit.signIn(await visit.open('/account'), person.email, person.password)).text, 'Sign out')],
    ['oauth.grant', async () => t.ok((await authorize(address, person, {}, visit)).code)],
    ['user.password session.create', async () => t.equal((await visit.send(
      formIn(await visit.open('/account/password')), { current: person.password, password: 'another password' }
    )).status, 303)],
    ['session.delete', async () =>
      t.equal((await visit.send(formIn(await visit.open('/account')), { where: 'here' })).status, 303)],
    ['user.disable', async () => switchUser(service.database, person.email, true)]
  ]
  const expected: string[] = []
  for (const [event, step] of steps) {
    await step()
    if (ON_CITUS) await untilNumbered(cirrus)
    expected.push(...event.split(' '))
    t.strictSame(
      (await rows(cirrus)).map(({ action }) => action), expected, `${event}: the other organization has it at once`
    )
  }
  t.strictSame(await rows(nimbus), [], 'while this one is held')
  await t.rejects(transaction(db, async (db) => {
    t.equal(await recordOfPerson(
      db, [systemOf(nimbus.organization)],
      { action: 'user.enable', resource_type: 'user', resource_id: String(person.id) }
    ), true)
    throw new Error('planted')
  }), { message: 'planted' }, 'what is rolled back')
  release()
  await holding
  service.app.lateEvents.wake()
  await untilNumbered(nimbus)
  t.strictSame(
    await rows(nimbus), await rows(cirrus), 'the same events, with who, what and when; none of what was rolled back'
  )
  const numbers = await service.sql(`SELECT json_agg(seq ORDER BY seq) AS all, max(next_event)::int AS next FROM audit_events
    JOIN organization_counters USING (organization_id) WHERE organization_id = '${nimbus.organization}'`)
  t.strictSame([...numbers], [{ all: Array.from({ length: 7 }, (_, i) => i + 1), next: 8 }], 'without a gap')
})

t.test('an event whose organizations could not be listed reaches each of them later, and only once', async (t) => {
  const [nimbus, cirrus] = [await service.organization(), await service.organization()]
  const person = await makePerson(service, { [nimbus.organization]: 'owner', [cirrus.organization]: 'member' })
  const actor = { ...systemOf(UNLISTED_ORGANIZATIONS), type: 'user', id: person.id } as const
  const event = { action: 'session.create', resource_type: 'user', resource_id: String(person.id) } as const
  t.equal(await transaction(db, (db) => recordOfPerson(db, [actor], event)), true)
  const rows = `FROM late_events WHERE organization_id = '${UNLISTED_ORGANIZATIONS}'`
  const [{ copy }] = await service.sql(`SELECT row_to_json(late_events)::text AS copy ${rows}`) as [{ copy: string }]
  const untilListed = async () => {
    service.app.lateEvents.wake()
    await until(async () => (await service.sql(`SELECT 1 ${rows}`)).length === 0)
    await untilNumbered(nimbus)
    await untilNumbered(cirrus)
  }
  const put = (row: string) => service.sql(`INSERT INTO late_events OVERRIDING SYSTEM VALUE
    SELECT * FROM json_populate_record(NULL::late_events, '${row}')`)
  const expected = [['session.create', 'user', person.id]]
  await untilListed()
  for (const caller of [nimbus, cirrus]) t.strictSame(await eventsAbout(person, caller), expected)

  await put(copy)
  await put(copy.replace(/"mac":"[^"]*"/, '"mac":null').replace(/"id":\d+/, '"id":1'))
  await untilListed()
  for (const caller of [nimbus, cirrus]) {
    t.strictSame(await eventsAbout(person, caller), expected, 'a copy and a row without a MAC are not recorded')
  }
})

t.test('CR-41 AU-01: the same statements are sent for a refusal, whether there is an account or not', async (t) => {
  const [nimbus, cirrus] = [await service.organization(), await service.organization()]
  const member = await makePerson(service, { [nimbus.organization]: 'owner', [cirrus.organization]: 'member' })
  const rows: Record<string, string[]> = {}
  for (const email of [member.email, (await makePerson(service)).email, 'nobody-7@nimbus.example']) {
    const sent: string[] = rows[email] = []
    const listen = (message: unknown) => {
      const { phase, text, prepared } = message as { phase: string, text: unknown, prepared: boolean }
      // Ignores background jobs, whose statements are not prepared.
      if (phase === 'before' && prepared) sent.push(String(text))
    }
    subscribe('strongroom:statement', listen)
    t.equal((await signIn(email, 'wrong password')).status, 422)
    unsubscribe('strongroom:statement', listen)
  }
  const [one, ...others] = Object.values(rows)
  const inserted = ON_CITUS ? /INSERT INTO late_events/ : /INSERT INTO audit_events/
  t.ok(one!.some((text) => inserted.test(text)))
  for (const other of others) t.strictSame(other, one)
})

t.test('CR-41: recording a refusal writes to the database, whether there is an account or not', async (t) => {
  for (const user_id of [(await makePerson(service)).id, 0]) {
    const [written] = await transaction(db, async (db) => {
      await createPersonalEvent(
        db, { user_id, action: 'session.refuse', actor_type: 'user', ip: null, user_agent: null, details: null }
      )
      return await db.execute(sql`SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS written`) as unknown as { written: boolean }[]
    })
    t.strictSame(written, { written: true }, `user ${user_id}`)
  }
  t.same(await service.sql('SELECT 1 FROM personal_events WHERE user_id = 0'), [])
})

t.test('CR-42: an IP address may try twice as many sign-ins as token requests, for all accounts together', async (t) => {
  const limited = await startIsolatedApp(t, { RATE_LIMIT_OAUTH: '3' })
  const person = await makePerson(limited)
  const statuses = []
  for (let i = 0; i < 6; i++) {
    statuses.push((await signIn(`somebody-${i}@nimbus.example`, 'wrong password', limited)).status)
  }
  t.strictSame(statuses, [422, 422, 422, 422, 422, 422])
  for (const password of [person.password, 'wrong password']) {
    const answer = await signIn(person.email, password, limited)
    t.equal(answer.status, 429)
    t.match(answer.headers['content-type'], 'text/html')
    t.match(answer.text, /Too many requests/)
    t.ok(Number(answer.headers['retry-after']) >= 1)
    t.strictSame([answer.headers['x-ratelimit-limit'], answer.headers['x-ratelimit-remaining']], ['6', '0'])
    t.match(answer.headers['content-security-policy'], "default-src 'none'")
  }
  t.equal((await signIn(person.email, person.password, limited, '192.0.2.7')).status, 303, 'another address may')
  t.equal((await limited.inject({ url: '/account' })).status, 200, 'and the page is still there')
  t.equal(
    (await limited.inject({ method: 'POST', url: '/api/oauth/token', payload: {} })).status, 400,
    'tokens are counted by themselves'
  )
})

// Sessions

t.test('CR-44: a session ends after 12 hours without use, after seven days, and with the account', async (t) => {
  const person = await makePerson(service)
  const begin = async () => sessionOf(await signIn(person.email, person.password))!
  const age = (cookie: string, change: string) =>
    service.write(`UPDATE sessions SET ${change} WHERE token_hash = '\\x${hashToken(cookie).toString('hex')}'`)
  const [idle, used, old, spare] = [await begin(), await begin(), await begin(), await begin()]
  for (const cookie of [idle, used, old, spare]) t.ok(await isAlive(cookie))
  const [life] = await service.sql(
    `SELECT round(extract(epoch FROM expires_at - created_at) / 3600)::int AS hours FROM sessions WHERE token_hash = '\\x${hashToken(spare).toString('hex')}'`
  )
  t.equal(life!.hours, 7 * 24)
  await age(idle, "seen_at = now() - interval '12 hours 1 second'")
  t.notOk(await isAlive(idle))
  await age(used, "seen_at = now() - interval '11 hours 59 minutes'")
  t.ok(await isAlive(used))
  t.equal((await service.sql(
    `SELECT seen_at > now() - interval '1 minute' AS fresh FROM sessions WHERE token_hash = '\\x${hashToken(used).toString('hex')}'`
  ))[0]!.fresh, true, 'use keeps it')
  await age(old, "expires_at = now() - interval '1 second'")
  t.notOk(await isAlive(old), 'use does not keep it beyond its days')
  await setDisabled(db, person.id, true)
  t.notOk(await isAlive(spare))
  await setDisabled(db, person.id, false)
  t.notOk(await isAlive(spare), 'an account that opens again begins anew')
  t.equal((await signIn(person.email, person.password)).status, 303)
})

/** Creates everything that a person can have: two browsers, an application, a code and a link. */
async function everythingOf (person: Person) {
  const [here, there] = [visitor(address), visitor(address)]
  for (const one of [here, there]) await one.signIn(await one.open('/account'), person.email, person.password)
  const pair = await tokensFor(address, person)
  const { code, verifier } = await authorize(address, person)
  return { here, there, pair, code, verifier }
}
type Everything = Awaited<ReturnType<typeof everythingOf>>

async function livesOf ({ there, pair, code, verifier }: Everything, link?: string) {
  const user = await fetch(`${address}/api/v1/user`, { headers: { authorization: `Bearer ${pair.access_token}` } })
  const redeemed = await post(
    address, '/api/oauth/token',
    { grant_type: 'authorization_code', code, code_verifier: verifier, client_id: 'dotenv-cli', redirect_uri: CALLBACK }
  )
  const refreshed = await post(
    address, '/api/oauth/token',
    { grant_type: 'refresh_token', refresh_token: pair.refresh_token, client_id: 'dotenv-cli' }
  )
  const page = link === undefined ? undefined : (await there.open(`/account/set-password/${link}`)).status
  return {
    there: (await there.open('/account')).text.includes('Sign out everywhere'),
    access: user.status,
    code: redeemed.status,
    refresh: refreshed.status,
    ...(page !== undefined && { link: page })
  }
}
const DEAD = { there: false, access: 401, code: 400, refresh: 400 }
const ALIVE = { there: true, access: 200, code: 200, refresh: 200 }

t.test('OA-63: a new password ends every other session, every grant, code and link, and is recorded', async (t) => {
  const [nimbus, cirrus] = [await service.organization(), await service.organization()]
  const person = await makePerson(service, { [nimbus.organization]: 'owner', [cirrus.organization]: 'member' })
  const all = await everythingOf(person)
  const link = await linkFor(person)
  const before = all.here.jar.get('session')
  const consent = await all.there.open(new URL(
    `/oauth/authorize?response_type=code&client_id=dotenv-cli&redirect_uri=${encodeURIComponent(CALLBACK)}&code_challenge=${'c'.repeat(43)}&code_challenge_method=S256`,
    address
  ).href)
  const changed = await all.here.send(
    formIn(await all.here.open('/account/password')), { current: person.password, password: 'another password' }
  )
  t.equal(changed.status, 303, changed.text)
  t.strictSame(await livesOf(all, link), { ...DEAD, link: 404 })
  t.ok((await all.here.open('/account')).text.includes('Sign out everywhere'), 'this browser goes on')
  t.not(all.here.jar.get('session'), before, 'under a new session')
  t.notOk(await isAlive(before))
  t.ok(
    (await all.there.send(formIn(consent), { decision: 'allow' })).status >= 400,
    'a request that waited for consent is over'
  )
  t.equal((await signIn(person.email, person.password)).status, 422)
  t.equal((await signIn(person.email, 'another password')).status, 303)
  for (const { organization } of [nimbus, cirrus]) {
    const events = await service.sql(
      `SELECT actor_type, actor_id::float8, resource_type, resource_id FROM audit_events WHERE organization_id = '${organization}' AND action = 'user.password'`
    )
    t.strictSame(
      [...events], [{ actor_type: 'user', actor_id: person.id, resource_type: 'user', resource_id: String(person.id) }]
    )
  }
})

t.test('OA-63: closing an account ends everything of it', async (t) => {
  const person = await makePerson(service)
  const all = await everythingOf(person)
  const link = await linkFor(person)
  await setDisabled(db, person.id, true)
  t.strictSame(await livesOf(all, link), { ...DEAD, link: 404 })
  await setDisabled(db, person.id, false)
  t.strictSame(await livesOf(all, link), { ...DEAD, link: 404 }, 'and opening it brings nothing back')
})

t.test('OA-63: signing out here ends this session alone; everywhere, all of them and what applications hold', async (t) => {
  const person = await makePerson(service)
  const one = await everythingOf(person)
  const cookie = one.here.jar.get('session')
  const out = await one.here.send(formIn(await one.here.open('/account')), { where: 'here' })
  t.strictSame([out.status, out.headers.get('location'), one.here.jar.has('session')], [303, '/console/?signed-out', false])
  t.notOk(await isAlive(cookie))
  t.strictSame(await livesOf(one), ALIVE)
  const two = await everythingOf(person)
  const everywhere = two.here.jar.get('session')
  await two.here.send(formIn(await two.here.open('/account')), { where: 'everywhere' })
  t.notOk(await isAlive(everywhere))
  t.strictSame(await livesOf(two), DEAD)
  t.equal((await signIn(person.email, person.password)).status, 303, 'the password is as it was')
})

t.test('CR-41: a link sets a password once, within three days, and not after a newer one', async (t) => {
  const person = await makePerson(service)
  const open = (link: string) => visitor(address).open(`/account/set-password/${link}`)
  const use = async (link: string, password: string, from = link) => {
    const visit = visitor(address)
    const form = formIn(await visit.open(`/account/set-password/${from}`))
    return visit.send({ ...form, action: `/account/set-password/${link}` }, { password })
  }
  const older = await linkFor(person)
  const newer = await linkFor(person)
  t.equal((await open(older)).status, 404, 'a newer one voids it')
  t.match((await open(newer)).text, person.email)
  t.equal((await use(older, 'first password', newer)).status, 404)
  const [days] = await service.sql(
    `SELECT round(extract(epoch FROM expires_at - created_at) / 3600)::int AS hours FROM password_links WHERE user_id = ${person.id}`
  )
  t.equal(days!.hours, 72)
  const visit = visitor(address)
  const form = formIn(await visit.open(`/account/set-password/${newer}`))
  t.equal(
    (await visit.send(form, { password: 'short' })).status, 422, 'a password that cannot be taken does not use it up'
  )
  t.equal((await visit.send(form, { password: 'first password' })).status, 303)
  t.match((await visit.open('/account')).text, 'Sign out', 'the browser that sets it is signed in')
  t.equal((await signIn(person.email, 'first password')).status, 303)
  t.equal((await open(newer)).status, 404, 'once')
  const again = await linkFor(person)
  t.equal((await use(newer, 'second password', again)).status, 404, 'not by its form either')
  t.equal((await signIn(person.email, 'second password')).status, 422)

  const late = await linkFor(person)
  await service.write(`UPDATE password_links SET expires_at = now() - interval '1 second' WHERE user_id = ${person.id}`)
  const unknown = await open(mintSecret())
  const gone = await open(late)
  t.equal(gone.status, 404)
  t.equal(
    gone.text.replace(/nonce="[^"]+"/, ''), unknown.text.replace(/nonce="[^"]+"/, ''),
    'a link that is over is told from none in no way'
  )
  for (const odd of ['%00', 'x', '%ff', 'x'.repeat(129), '..%2f..']) t.equal((await open(odd)).status, 404, odd)

  const raced = await linkFor(person)
  const answers = await Promise.all(Array.from({ length: 6 }, (_, i) =>
    use(raced, `password number ${i}`).catch(() => ({ status: 404 }))))
  t.strictSame(answers.map(({ status }) => status).sort(), [303, 404, 404, 404, 404, 404], 'of several at once, one')
  const voided = await linkFor(person)
  await changePassword(db, person.id, await hashPassword('third password'))
  t.equal((await open(voided)).status, 404, 'a changed password voids it')
  const shut = await linkFor(person)
  await setDisabled(db, person.id, true)
  t.equal((await open(shut)).status, 404)
})

t.test('CR-41: a link verifies an account that had no password', async (t) => {
  const email = 'new@nimbus.example'
  const id = (await createUser(db, { email, name: 'New', password_hash: null }))!
  t.equal((await findUser(db, id))!.is_verified, false)
  const visit = visitor(address)
  const answer = await visit.send(
    formIn(await visit.open(`/account/set-password/${await linkFor({ id })}`)), { password: 'first password' }
  )
  t.equal(answer.status, 303)
  t.equal((await findUser(db, id))!.is_verified, true)
  for (const spelling of [email, ' NEW@nimbus.example', 'ｎew@nimbus.example']) {
    t.equal(
      await createUser(db, { email: spelling, name: 'Again', password_hash: null }), undefined,
      `${spelling} has an account`
    )
  }
})

// In organizations

t.test('GET /api/v1/user answers the exact shapes, for a user and for an API token', async (t) => {
  const nimbus = await service.organization({ slug: 'user-nimbus' })
  const [ulid, other] = [nimbus.organization, (await service.organization({ slug: 'user-aero' })).organization]
  await service.sql(`UPDATE organization_counters SET name = 'Aero' WHERE organization_id = '${other}'`)
  const invited = (await service.organization()).organization
  const person = await makePerson(service, { [ulid]: 'owner', [other]: 'billing_manager', [invited]: 'owner' })
  await service.write(
    `UPDATE members SET status = 'invited' WHERE organization_id = '${invited}' AND user_id = ${person.id}`
  )
  const caller = await callerFor(person, ulid, [])
  const { status, body, headers } = await caller.call('GET', '/user')
  t.equal(status, 200)
  t.equal(headers['content-type'], 'application/json; charset=utf-8')
  const { created_at, updated_at } = body.data.attributes
  const [one, two] = body.included.map(
    ({ attributes }: { attributes: { joined_at: string } }) => attributes.joined_at
  ) as [string, string]
  for (const time of [created_at, updated_at, one, two]) t.match(time, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
  t.strictSame(body, {
    data: {
      type: 'users',
      id: String(person.id),
      attributes: {
        name: person.name, email: person.email, is_verified: true, has_second_factor: false, created_at, updated_at
      },
      relationships: {
        organizations: { data: [{ type: 'organizations', id: other }, { type: 'organizations', id: ulid }] }
      }
    },
    included: [
      {
        type: 'organizations',
        id: other,
        attributes: { ulid: other, name: 'Aero', slug: 'user-aero', role: 'billing_manager', joined_at: one }
      },
      {
        type: 'organizations',
        id: ulid,
        attributes: { ulid, name: 'Nimbus', slug: 'user-nimbus', role: 'owner', joined_at: two }
      }
    ]
  }, 'an invitation does not count')
  const token = await service.token(
    ulid, ['secret:read', 'project:read'], { expires_at: new Date('2090-01-01T00:00:00.000Z') }
  )
  const answer = (await token.call('GET', '/user')).body
  t.match(answer.data.id, /^\d+$/)
  t.strictSame(answer, {
    data: {
      type: 'api-tokens',
      id: answer.data.id,
      attributes: {
        name: 'Test token',
        abilities: ['secret:read', 'project:read'],
        restrictions: [],
        expires_at: '2090-01-01T00:00:00.000Z'
      },
      relationships: { organizations: { data: [{ type: 'organizations', id: ulid }] } }
    },
    included: [{ type: 'organizations', id: ulid, attributes: { ulid, name: 'Nimbus', slug: 'user-nimbus' } }]
  })
  t.strictSame((await nimbus.call('GET', '/user')).body.data.attributes, {
    name: 'Test token', abilities: ['*'], restrictions: [], expires_at: null
  })
  await nimbus.call('POST', `/${ulid}/projects`, { name: 'Part' })
  await nimbus.call('POST', `/${ulid}/part/targets`, { name: 'Web' })
  for (const restrictions of [[{ project: 'part' }], [{ project: 'part', target: 'web' }]]) {
    const { body } = await nimbus.call('POST', `/organizations/${ulid}/api-keys`, {
      name: 'Part', abilities: ['secret:read'], restrictions
    })
    const { data } = (await service.inject({ url: '/api/v1/user', headers: { authorization: `Bearer ${body.token}` } })).body
    t.strictSame(data.attributes.restrictions, restrictions, 'a token sees its own restrictions')
  }
  const alone = await callerFor(await makePerson(service), ulid)
  const nowhere = (await alone.call('GET', '/user')).body
  t.strictSame([nowhere.included, nowhere.data.relationships], [[], { organizations: { data: [] } }])
})

t.test('GET /api/v1/organizations and /organization: what the caller can see', async (t) => {
  const [one, two, invited] = [
    await service.organization({ slug: 'list-b' }), await service.organization({ slug: 'list-a' }),
    await service.organization()
  ]
  const [a, b] = [two.organization, one.organization]
  await service.sql(`UPDATE organization_counters SET name = 'A' WHERE organization_id = '${a}'`)
  await service.sql(`UPDATE organization_counters SET name = 'B' WHERE organization_id = '${b}'`)
  await service.sql(`UPDATE organization_counters SET status = 'suspended' WHERE organization_id = '${b}'`)
  const person = await makePerson(service, { [b]: 'member', [a]: 'api_user', [invited.organization]: 'owner' })
  await service.write(`UPDATE members SET status = 'invited' WHERE organization_id = '${invited.organization}'`)
  const caller = await callerFor(person, a, [])
  const { status, body } = await caller.call('GET', '/organizations')
  t.equal(status, 200)
  const shape = (id: string, name: string, slug: string, state: string, i: number) => {
    const { created_at, updated_at } = body.data[i].attributes
    return {
      type: 'organizations',
      id,
      name,
      slug,
      status: state,
      attributes: {
        ulid: id,
        name,
        slug,
        status: state,
        plan_name: 'self-hosted',
        require_second_factor: false,
        created_at,
        updated_at
      }
    }
  }
  t.strictSame(body.data, [shape(a, 'A', 'list-a', 'active', 0), shape(b, 'B', 'list-b', 'suspended', 1)])
  t.match(body.meta, { current_page: 1, total: 2, last_page: 1, from: 1, to: 2 })
  const second = (await caller.call('GET', '/organizations?per_page=1&page=2')).body
  t.strictSame(
    [second.data.map(({ id }: { id: string }) => id), second.meta],
    [[b], { current_page: 2, per_page: 1, total: 2, last_page: 2, from: 2, to: 2 }]
  )
  t.strictSame((await caller.call('GET', '/organizations?page=9')).body.data, [])
  const required = await caller.call('GET', '/organization')
  t.strictSame([required.status, required.body.error], [422, 'organization_required'])
  const ofToken = (await two.call('GET', '/organizations')).body
  t.strictSame([ofToken.data, ofToken.meta.total], [[shape(a, 'A', 'list-a', 'active', 0)], 1])
  t.strictSame((await two.call('GET', '/organizations?page=2')).body.data, [])
  t.strictSame((await two.call('GET', '/organization')).body.data, ofToken.data[0])
})

/** The scopes of each role, written out from the decision page. */
const READS = ['project:read', 'target:read', 'environment:read', 'organization:read', 'member:read', 'team:read']
const EXPECTED: Record<Role, (scope: Scope) => boolean> = {
  owner: () => true,
  administrator: (scope) => !['billing:read', 'billing:write', 'organization:delete'].includes(scope),
  developer: (scope) => [
    'secret:read', 'secret:write', 'secret:decrypt', 'secret:history', 'secret:restore', 'key:retrieve',
    'project:read', 'project:update', 'target:create', 'target:read', 'target:update',
    'environment:create', 'environment:read', 'environment:update', 'organization:read', 'member:read', 'team:read'
  ].includes(scope),
  member: (scope) =>
    ['secret:read', 'secret:write', 'secret:decrypt', 'secret:history', 'key:retrieve', ...READS].includes(scope),
  auditor: (scope) => ['secret:history', 'api-token:read', 'billing:read', ...READS].includes(scope),
  billing_manager: (scope) => ['billing:read', 'billing:write', 'organization:read'].includes(scope),
  api_user: (scope) =>
    ['secret:read', 'project:read', 'target:read', 'environment:read', 'organization:read'].includes(scope),
  guest: (scope) => scope === 'organization:read'
}

t.test('OA-14: each role holds what the table says, and a grant never adds to it', async (t) => {
  let cells = 0
  for (const role of ROLES) {
    t.strictSame([...scopesOfRole(role)].sort(), SCOPE_NAMES.filter(EXPECTED[role]).sort(), role)
    for (const scope of SCOPE_NAMES) {
      cells++
      t.strictSame([...effectiveScopes([scope], role)], EXPECTED[role](scope) ? [scope] : [], `${scope} for ${role}`)
      const without = effectiveScopes(SCOPE_NAMES.filter((one) => one !== scope), role)
      t.strictSame([without.has(scope), without.has('*')], [false, false], `all but ${scope} for ${role}`)
    }
    for (const all of [SCOPE_NAMES, ['*'] as const]) {
      t.strictSame(
        [...effectiveScopes(all, role)].sort(),
        [...SCOPE_NAMES.filter(EXPECTED[role]), ...role === 'owner' ? ['*'] : []].sort()
      )
    }
    t.strictSame([...effectiveScopes([], role)], [])
  }
  t.equal(cells, 8 * 38)
})

const SAMPLE: [scope: Scope, method: string, path: string, body?: object][] = [
  ['project:read', 'GET', '/{o}/projects'], ['target:read', 'GET', '/{o}/orbit/targets'], [
    'environment:read', 'GET', '/{o}/orbit/backend/live'
  ], ['organization:read', 'GET', '/organizations/{o}'],
  ['api-token:read', 'GET', '/organizations/{o}/api-keys'], ['secret:read', 'GET', '/{o}/orbit/backend/live/secrets'], [
    'secret:decrypt', 'GET', '/{o}/orbit/backend/live/secrets?decrypt=true'
  ],
  ['key:retrieve', 'GET', '/{o}/orbit/encryption-key'], [
    'secret:write', 'POST', '/{o}/secrets/store',
    { project: 'orbit', target: 'backend', environment: 'live', plaintext: 'A=1' }
  ],
  [
    'secret:history', 'POST', '/{o}/secrets/versions', { project: 'orbit', target: 'backend', environment: 'live' }
  ], ['secret:restore', 'POST', '/{o}/secrets/versions/999/restore', {}],
  ['secret:purge', 'POST', '/{o}/secrets/versions/purge', {}], [
    'project:create', 'POST', '/{o}/projects', {}
  ], ['project:delete', 'DELETE', '/{o}/none'], ['target:create', 'POST', '/{o}/orbit/targets', {}],
  ['target:delete', 'DELETE', '/{o}/orbit/none'], [
    'api-token:create', 'POST', '/organizations/{o}/api-keys', {}
  ], ['key:rotate', 'POST', '/{o}/none/encryption-key/rotate', {}]
]

/**
 * The sampled scopes that a caller has. Every refusal must be about the scope, and every other request must succeed.
 */
async function allowedFor (t: Test, caller: Caller, organization: string): Promise<Scope[]> {
  const allowed: Scope[] = []
  for (const [scope, method, path, body] of SAMPLE) {
    const answer = await caller.call(method, path.replace('{o}', organization), body)
    if (answer.status !== 403) {
      t.ok([200, 201, 404, 422].includes(answer.status), `${method} ${path}: ${answer.status}`)
      allowed.push(scope)
    } else if (answer.body.details.required_scope !== scope) {
      // Decryption also requires the scope for reading.
      t.match([scope, answer.body.details.required_scope], ['secret:decrypt', 'secret:read'])
    }
  }
  return allowed
}

t.test('OA-14: a user acts in each organization within the role there and what was granted', async (t) => {
  const caller = await service.organization()
  const second = await service.organization()
  for (const one of [caller, second]) {
    await makeLevel(one, { slug: 'orbit' })
    await one.call(
      'POST', `/${one.organization}/secrets/store`,
      { project: 'orbit', target: 'backend', environment: 'live', plaintext: 'A=1' }
    )
  }
  const sampled = SAMPLE.map(([scope]) => scope)
  for (const [i, role] of ROLES.entries()) {
    const other = ROLES[(i + 3) % ROLES.length]!
    const person = await makePerson(service, { [caller.organization]: role, [second.organization]: other })
    const all = await callerFor(person, caller.organization)
    t.strictSame(
      await allowedFor(t, all, caller.organization), sampled.filter(EXPECTED[role]), `${role} with everything`
    )
    // Without LONG, every third role.
    if (!LONG && i % 3 !== 0) continue
    t.strictSame(
      await allowedFor(t, all, second.organization), sampled.filter(EXPECTED[other]), `${other} in the other one`
    )
    const granted: Scope[] = ['project:read', 'secret:read', 'secret:write', 'key:rotate', 'api-token:read']
    const some = await callerFor(person, caller.organization, granted)
    t.strictSame(
      await allowedFor(t, some, caller.organization),
      sampled.filter((scope) => EXPECTED[role](scope) && granted.includes(scope)), `${role} with some`
    )
  }
})

t.test('OA-14: a demotion or removal counts at the next call; only invited, or never a member, is 404', async (t) => {
  const [nimbus, foreign] = [await service.organization(), await service.organization()]
  const o = nimbus.organization
  const person = await makePerson(service, { [o]: 'owner' })
  const caller = await callerFor(person, o)
  const status = async (path: string) => (await caller.call('GET', path)).status
  const keys = `/organizations/${o}/api-keys`
  const set = (change: string) =>
    service.write(`UPDATE members SET ${change} WHERE organization_id = '${o}' AND user_id = ${person.id}`)
  t.equal(await status(keys), 200)
  await set("role = 'member'")
  t.equal(await status(keys), 403)
  await set("role = 'auditor'")
  t.equal(await status(keys), 200)
  await set("status = 'invited'")
  const invited = await caller.call('GET', keys)
  t.equal(invited.status, 404)
  t.equal(invited.text, (await caller.call('GET', `/organizations/${foreign.organization}/api-keys`)).text)
  t.equal(
    invited.text, (await caller.call('GET', '/organizations/nowhere/api-keys')).text,
    'what one is not in and what is not there are told apart in no way'
  )
  await set("status = 'active'")
  t.equal(await status(keys), 200)
  await service.sql(`DELETE FROM members WHERE user_id = ${person.id}`)
  t.equal(await status(keys), 404)
  t.strictSame((await caller.call('GET', '/organizations')).body.data, [])
  t.equal(await status('/user'), 200, 'the user still exists')
  await createMember(db, { organization_id: o, user_id: person.id, role: 'owner' })
  t.equal(await status(keys), 200)
})

t.test('OA-14: an id in either case or a slug names an organization; a slug like another id changes nothing', async (t) => {
  const nimbus = await service.organization({ slug: 'named-nimbus' })
  const id = nimbus.organization
  const trap = await service.organization({ slug: id.toLowerCase() })
  const [inBoth, inTrap] = [
    await makePerson(service, { [trap.organization]: 'owner', [id]: 'owner' }),
    await makePerson(service, { [trap.organization]: 'owner' })
  ]
  const both = await callerFor(inBoth, id)
  for (const spelling of [id, id.toLowerCase(), 'named-nimbus']) {
    t.equal((await both.call('GET', `/organizations/${spelling}`)).body.data?.id, id, spelling)
  }
  const only = await callerFor(inTrap, trap.organization)
  t.equal((await only.call('GET', `/organizations/${id}`)).status, 404, 'the id in upper case is no slug')
  t.equal((await only.call('GET', `/organizations/${trap.organization}`)).body.data.id, trap.organization)
})

t.test('what a user writes names the user, in the audit and in the history', async (t) => {
  const nimbus = await service.organization()
  const o = nimbus.organization
  const level = await makeLevel(nimbus, { slug: 'orbit' })
  const person = await makePerson(service, { [o]: 'developer' })
  const caller = await callerFor(person, o)
  const { version } = (await caller.call(
    'POST', `/${o}/secrets/store`, { ...level, plaintext: 'A=1' }, { 'user-agent': 'cli/1.0' }
  )).body.data
  const [event] = await service.sql(
    `SELECT action, actor_type, actor_id::float8, user_agent FROM audit_events WHERE organization_id = '${o}' ORDER BY seq DESC LIMIT 1`
  )
  t.strictSame(event, { action: 'secret.store', actor_type: 'user', actor_id: person.id, user_agent: 'cli/1.0' })
  const created = JSON.stringify((await caller.call('POST', `/${o}/secrets/versions`, level)).body)
  t.match(created, `"created_by":{"id":${person.id},"name":"${person.name}"}`)
  const one = await caller.call('GET', `/${o}/secrets/versions/${version}`)
  t.match(JSON.stringify(one.body), `"created_by":{"id":${person.id},"name":"${person.name}"}`)
})

t.test('OA-14: what a user hands on as an API token is no more than the user has there', async (t) => {
  const nimbus = await service.organization()
  const o = nimbus.organization
  const make = (caller: Caller, abilities: string[]) => caller.call(
    'POST', `/organizations/${o}/api-keys`,
    { name: 'Handed on', abilities, expires_at: new Date(Date.now() + 3_600_000) }
  )
  const admin = await callerFor(await makePerson(service, { [o]: 'administrator' }), o)
  t.equal((await make(admin, ['secret:read', 'organization:update'])).status, 201)
  for (const more of ['*', 'billing:read', 'organization:delete']) {
    t.strictSame([(await make(admin, [more])).status, more], [403, more])
  }
  const owner = await makePerson(service, { [o]: 'owner' })
  t.equal((await make(await callerFor(owner, o), ['*'])).status, 201, 'an owner who granted everything')
  const narrowed = await callerFor(owner, o, SCOPE_NAMES.filter((scope) => scope !== 'secret:purge'))
  t.equal((await make(narrowed, ['*'])).status, 403)
  t.equal((await make(narrowed, ['secret:purge'])).status, 403)
})

t.test('the calls of users count in their organization’s window; those about none in the user’s own', async (t) => {
  const limited = await startIsolatedApp(t, { RATE_LIMIT_API: '5' })
  const nimbus = await limited.organization()
  const other = await limited.organization()
  const o = nimbus.organization
  const [rosa, omar] = [
    await makePerson(limited, { [o]: 'owner', [other.organization]: 'owner' }),
    await makePerson(limited, { [o]: 'member' })
  ]
  const [one, two] = [await callerFor(rosa, o, SCOPE_NAMES, limited), await callerFor(omar, o, SCOPE_NAMES, limited)]
  const left = async (caller: Caller, path: string) => {
    const { status, headers } = await caller.call('GET', path)
    return [status, Number(headers['x-ratelimit-remaining'])]
  }
  t.strictSame(
    [await left(one, `/${o}/projects`), await left(two, `/${o}/projects`), await left(nimbus, `/${o}/projects`)],
    [[200, 4], [200, 3], [200, 2]]
  )
  t.strictSame(
    [await left(one, '/user'), await left(one, '/organizations'), await left(two, '/user')],
    [[200, 4], [200, 3], [200, 4]], 'each user has a count of their own'
  )
  t.strictSame(await left(one, `/${other.organization}/projects`), [200, 4], 'and each organization')
  t.strictSame(
    [await left(one, `/organizations/${o}`), await left(two, `/${o}/projects`), await left(two, `/${o}/projects`)],
    [[200, 1], [200, 0], [429, 0]]
  )
  t.strictSame(await left(nimbus, `/${o}/projects`), [429, 0])
  t.strictSame(await left(one, `/${other.organization}/projects`), [200, 3])
  const stranger = await callerFor(await makePerson(limited), o, SCOPE_NAMES, limited)
  t.strictSame(
    [await left(stranger, `/${o}/projects`), await left(stranger, `/${other.organization}/projects`)],
    [[404, 4], [404, 3]], 'what one cannot see counts against the address'
  )
  t.strictSame(await left(one, `/${other.organization}/projects`), [200, 2])
})

t.test('in a suspended organization a user can look at it and nothing else, and goes on in the others', async (t) => {
  const [nimbus, other] = [await service.organization(), await service.organization()]
  const o = nimbus.organization
  const caller = await callerFor(await makePerson(service, { [o]: 'owner', [other.organization]: 'owner' }), o)
  for (const status of ['suspended', 'locked', 'cancelled']) {
    await service.sql(`UPDATE organization_counters SET status = '${status}' WHERE organization_id = '${o}'`)
    const refused = await caller.call('GET', `/${o}/projects`)
    t.strictSame([refused.status, refused.body.error, refused.body.details], [403, 'organization_inactive', { status }])
    t.equal((await caller.call('GET', `/organizations/${o}`)).body.data.status, status)
    t.equal((await caller.call('GET', `/${other.organization}/projects`)).status, 200)
    t.equal((await caller.call('GET', '/user')).body.included.length, 2)
  }
  await service.sql(`UPDATE organization_counters SET status = 'active' WHERE organization_id = '${o}'`)
  t.equal((await caller.call('GET', `/${o}/projects`)).status, 200)
})
