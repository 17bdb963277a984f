import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { hashToken, mintSecret } from '../../../crypto/bearer.ts'
import { isOutdated, hashPassword, verifyNobody, verifyPassword } from '../../../crypto/passwords.ts'
import { change } from '../../../changes/change.ts'
import type { Counter } from '../../../db/rows/counter.ts'
import { transaction } from '../../../changes/transaction.ts'
import type { Db } from '../../../db/database.ts'
import { WorkOverloaded } from '../../../gate.ts'
import { addressKey, networkOf } from '../../../http/routes/addresses.ts'
import { personOf } from '../../../http/routes/actor.ts'
import { browserOf, readCookie, setCookie, type Form } from '../../../http/pages/pages.ts'
import type { RecordedEvent } from '../../../repositories/audit/audit.ts'
import {
  clearAttempts, findDevice, forgiveAttempts, rememberDevice, returnAttempts, takeAttempts, type Count
} from '../../../repositories/people/attempts.ts'
import {
  createSession, endSessionOfOther, findSession, lockSession, type SessionClient
} from '../../../repositories/people/sessions.ts'
import {
  changePassword, findUser, findUserByEmail, lockUser, updatePasswordHash, type User
} from '../../../repositories/people/users.ts'
import { createSignInStep } from '../../../repositories/people/second-factors.ts'
import { canonicalEmail } from '../../../rules/formats/emails.ts'
import { isNewName } from '../../../rules/formats/names.ts'
import { describeUserAgent } from '../../../rules/formats/user-agents.ts'
import { useCode } from '../../../vault/keys/second-factor.ts'
import { NAME_LENGTH } from '../../../../schemas/shapes.ts'
import { PASSWORD } from '../../../../schemas/users.ts'
import type { EventName } from '../../../../schemas/events.ts'
import { recordForUser, recordRefusal } from '../personal-events.ts'
import type { Problem, SignedIn } from './views.ts'

/** A user whose password was just verified, with the hash of the password and the id of the second factor. */
export type Verified = Pick<User, 'id' | 'name' | 'second_factor_id'> & { password_hash: string }

export async function signedIn (app: FastifyInstance, request: FastifyRequest): Promise<SignedIn | undefined> {
  const cookie = readCookie(app, request, 'session')
  if (cookie === undefined) return undefined
  const hash = hashToken(cookie)
  const found = await findSession(app.db, hash)
  return found && { cookie, hash, ...found }
}

/** Thrown if the session of the user ended while a change waited for its locks. `onOwnForm` catches this error. */
export class SessionEnded extends Error {}

/**
 * Runs a change of a signed-in user in a transaction, which locks the account. Throws `SessionEnded` and changes
 * nothing if the session has ended.
 */
export async function inSession<T> (
  app: FastifyInstance, request: FastifyRequest, { user, hash }: SignedIn, act: (db: Db) => Promise<T>
): Promise<T> {
  return transaction(app.db, async (db) => {
    await lockUser(db, user.id)
    if (!await lockSession(db, hash)) throw new SessionEnded()
    return act(db)
  }, request)
}

/** Like `inSession`, for a change of an organization, whose counter row is locked. Records the events of `act`. */
export async function inSessionOf<T extends { events: RecordedEvent[] }> (
  app: FastifyInstance, request: FastifyRequest, { user, hash }: SignedIn, organizationId: string,
  act: (db: Db, counter: Counter) => Promise<T>
): Promise<T> {
  const actor = { ...personOf(request, organizationId, user), waited: request.waited }
  const { written } = await change(app.db, actor, {
    async load (db, counter) {
      if (!await lockSession(db, hash)) throw new SessionEnded()
      return counter
    },
    decide: (counter) => ({ write: async (db) => act(db, counter), events: ({ events }) => events })
  })
  return written
}

/**
 * Begins a session under a new id and deletes the previous session, against session fixation (CR-44). Remembers the
 * browser as a known device. Returns `wrong` if the password or the second factor has changed since it was verified.
 */
export async function beginSession (
  app: FastifyInstance, request: FastifyRequest, reply: FastifyReply, user: Verified
): Promise<'wrong' | undefined> {
  const hashIn = (name: 'session' | 'device') => {
    const cookie = readCookie(app, request, name)
    return cookie === undefined ? undefined : hashToken(cookie)
  }
  const [replaced, known] = [hashIn('session'), hashIn('device')]
  // In a transaction of its own, because it locks another account.
  if (replaced !== undefined) {
    await transaction(app.db, async (db) => endSessionOfOther(db, replaced, user.id, lockUser), request)
  }
  const [session, device] = [mintSecret(), mintSecret()]
  const begun = await transaction(app.db, async (db) => {
    if (!await createSession(db, hashToken(session), user, clientOf(request), replaced)) return false
    await rememberDevice(db, { token_hash: hashToken(device), before: known, user_id: user.id })
    await recordForUser(db, request, user, 'session.create')
    return true
  }, request)
  if (!begun) return 'wrong'
  setCookie(app, reply, 'session', session)
  setCookie(app, reply, 'device', device)
  return undefined
}

/** The browser, system and network of a request, as the account page shows them. */
export const clientOf = (request: FastifyRequest): SessionClient => ({
  ...describeUserAgent(request.headers['user-agent']), network: networkOf(request.ip) ?? null
})

/**
 * Continues the sign-in after the password. Begins a session, or with a second factor creates a sign-in step, which
 * only this browser can complete with a code. Returns `wrong` under the same conditions as `beginSession`.
 */
export async function enter (
  app: FastifyInstance, request: FastifyRequest, reply: FastifyReply, user: Verified
): Promise<'in' | 'wrong' | { step: string, cookie: string }> {
  if (user.second_factor_id === null) return await beginSession(app, request, reply, user) ?? 'in'
  const [step, cookie] = [mintSecret(), formCookie(app, request, reply)]
  // This event is recorded even if no code follows, because the caller knows the password.
  const asked = await transaction(app.db, async (db) => {
    if (!await createSignInStep(db, stepHash(step, cookie), user)) return false
    await recordForUser(db, request, user, 'second-factor.ask')
    return true
  }, request)
  return asked ? { step, cookie } : 'wrong'
}

/** The hash that identifies a sign-in step. The hash depends on a cookie, so no other browser can complete the step. */
export const stepHash = (step: string, cookie: string) => hashToken(`${step} ${cookie}`)

/** The cookie to which the forms of this browser are bound: the session cookie, or else the browser cookie. */
export function formCookie (app: FastifyInstance, request: FastifyRequest, reply: FastifyReply): string {
  return readCookie(app, request, 'session') ?? browserOf(app, request, reply)
}

/**
 * Verifies an e-mail address and a password. Returns the seconds to wait if there were too many attempts. Attempts from
 * a known device of the account have their own counter, so that an attacker cannot lock out the owner. Neither the
 * result nor the duration reveals whether the account exists (CR-41, CR-42).
 */
export async function authenticate (
  app: FastifyInstance, request: FastifyRequest, reply: FastifyReply, {
    email, password
  }: { email: string, password: string }
): Promise<Verified | 'wrong' | number> {
  const found = await findUserByEmail(app.db, email)
  const account = found === undefined ? `email:${canonicalEmail(email)}` : `user:${found.id}`
  const counts = await countsOf(app, request, reply, account, found?.id)
  return checkPassword(app, request, { found, counts, refusal: 'session.refuse' }, password)
}

/**
 * After a password reset, clears two counters of wrong passwords for the account: from this network, and from all
 * networks. The counters of wrong codes stay.
 */
export async function forgetGuesses (app: FastifyInstance, request: FastifyRequest, userId: number): Promise<void> {
  const account = `user:${userId}`
  await clearAttempts(app.db, [account, `${account} ${addressKey(request.ip)}`])
}

// The counters of an attempt: per known device of the account, else per account and network, and per account.
async function countsOf (
  app: FastifyInstance, request: FastifyRequest, reply: FastifyReply, account: string, user_id = 0
): Promise<Count[]> {
  const device = readCookie(app, request, 'device')
  const known = device === undefined ? undefined : await findDevice(app.db, hashToken(device), user_id)
  if (known !== undefined) return [{ of: 'place', name: `${account} device:${known}` }]
  await app.countStranger(request, reply)
  return [
    { of: 'place', name: `${account} ${addressKey(request.ip)}` },
    { of: 'account', name: account }
  ]
}

/** Verifies the password of a signed-in user again. Attempts are counted per session. */
export async function confirmPassword (
  app: FastifyInstance, request: FastifyRequest, { user, hash }: SignedIn, form: Form
): Promise<Verified | 'wrong' | number> {
  const password = (form.get('current') ?? '').slice(0, 1024)
  const counts: Count[] = [{ of: 'place', name: `session:${hash.toString('hex')}` }]
  return checkPassword(app, request, { found: await findUser(app.db, user.id), counts, refusal: 'password.refuse' }, password)
}

type Holder = Pick<User, 'id' | 'name' | 'second_factor_id'>

/** A code to validate, its user, the counters of wrong codes, and the hash of the session (none during sign-in). */
export interface CodeGiven { user: Holder, code: string, counts: readonly Count[], session?: Buffer }

// Maximum characters of a code in a form; valid codes are shorter.
const MAX_CODE = 100
export const codeIn = (form: Form) => (form.get('code') ?? '').slice(0, MAX_CODE)

// The name of a new account; undefined if the field is empty.
const nameIn = (form: Form): string | undefined => form.get('name')?.trim().slice(0, NAME_LENGTH) || undefined

// Why a person cannot have this name; undefined if there is no problem. The stored name is none.
const problemWithName = (name: string | undefined, stored: string | undefined): string | undefined =>
  name === undefined || name === stored || isNewName(name)
    ? undefined
    : 'Your name must not have control characters or characters that change the direction of text.'

/**
 * The new password in a form of a link, and the name, which only a person without a verified account chooses. `problem`
 * says why they cannot be stored.
 */
export function passwordIn (
  form: Form, user: Pick<User, 'is_verified' | 'name'> | undefined
): { password: string, name: string | undefined, problem: string | undefined } {
  const password = form.get('password') ?? ''
  const name = user?.is_verified ? undefined : nameIn(form)
  return { password, name, problem: problemWithName(name, user?.name) ?? problemWith(password) }
}

/** A code that is entered during sign-in. Wrong codes are counted like wrong passwords, in counters of their own. */
export async function codeOfStranger (
  app: FastifyInstance, request: FastifyRequest, reply: FastifyReply, user: Holder, code: string
): Promise<CodeGiven> {
  return { user, code, counts: await countsOf(app, request, reply, `code user:${user.id}`, user.id) }
}

/** A code of a signed-in user; attempts are counted per session. */
export function codeInSession ({ user, hash }: SignedIn, code: string): CodeGiven {
  return { user, code, counts: [{ of: 'place', name: `code session:${hash.toString('hex')}` }], session: hash }
}

/**
 * Runs `act` if the code is right, in the transaction that consumes the code and locks the account. A user without a
 * second factor needs no code. Returns `wrong` for a wrong code, and the seconds to wait after too many attempts.
 */
export async function withSecondFactor<T> (
  app: FastifyInstance, request: FastifyRequest, given: CodeGiven, act: (db: Db) => Promise<T>
): Promise<{ done: T } | 'wrong' | number> {
  const { user } = given
  const counts = user.second_factor_id === null ? [] : given.counts
  return withAttempt(app, request, { ...given, counts }, async (db, code) => {
    const used = user.second_factor_id === null ? 'none' : await useCode(db, app.keyring, user, code)
    if (used === undefined) return undefined
    const done = await act(db)
    if (used === 'recovery_code') await recordForUser(db, request, user, 'second-factor.use_recovery_code')
    return { done }
  }).then((result) => typeof result === 'object' ? result.done : result)
}

/**
 * Counts an attempt and runs `verify` in a transaction that locks the account. If `verify` returns undefined, the code
 * is wrong, and the refusal is recorded. Returns `wrong` or the seconds to wait, as `withSecondFactor` does. Throws
 * `SessionEnded` and changes nothing if the session has ended.
 */
export async function withAttempt<T extends object> (
  app: FastifyInstance, request: FastifyRequest, { user, code, counts, session }: CodeGiven,
  verify: (db: Db, code: string) => Promise<T | undefined>
): Promise<{ done: T } | 'wrong' | number> {
  const attempt = await takeAttempts(app.db, counts)
  if ('wait' in attempt) return attempt.wait
  let done: T | undefined
  try {
    done = await transaction(app.db, async (db) => {
      await lockUser(db, user.id)
      if (session !== undefined && !await lockSession(db, session)) throw new SessionEnded()
      const found = await findUser(db, user.id)
      // Another request may have changed the second factor or disabled the account.
      const isSame = found?.second_factor_id === user.second_factor_id && found.disabled_at === null
      return isSame ? verify(db, code) : undefined
    }, request)
  } catch (error) {
    await returnAttempts(app.db, counts)
    throw error
  }
  if (done === undefined) {
    await recordRefusal(app, request, user, 'second-factor.refuse', attempt.number)
    return 'wrong'
  }
  await forgiveAttempts(app.db, counts)
  return { done }
}

interface PasswordCheck {
  found: Awaited<ReturnType<typeof findUser>>
  counts: readonly Count[]
  /** The event to record if the password is wrong. */
  refusal: EventName
}

async function checkPassword (
  app: FastifyInstance, request: FastifyRequest, check: PasswordCheck, password: string
): Promise<Verified | 'wrong' | number> {
  const { found, counts, refusal } = check
  const attempt = await takeAttempts(app.db, counts)
  if ('wait' in attempt) return attempt.wait
  const refuse = async () => {
    await recordRefusal(app, request, found, refusal, attempt.number)
    return 'wrong' as const
  }
  try {
    if (found?.password_hash == null || found.disabled_at !== null) {
      await verifyNobody(password, app.costs.password)
      return await refuse()
    }
    if (!await verifyPassword(found.password_hash, password)) return await refuse()
  } catch (error) {
    if (error instanceof WorkOverloaded) await returnAttempts(app.db, counts)
    throw error
  }
  await forgiveAttempts(app.db, counts)
  if (!isOutdated(found.password_hash, app.costs.password)) {
    return verifiedOf(found, found.password_hash)
  }
  const password_hash = await hashPassword(password, app.costs.password)
  // Another request may have changed the password: then verify against the new hash.
  return await updatePasswordHash(app.db, found.id, found.password_hash, password_hash)
    ? verifiedOf(found, password_hash)
    : checkPassword(app, request, { ...check, found: await findUser(app.db, found.id) }, password)
}

const verifiedOf = ({ id, name, second_factor_id }: User, password_hash: string): Verified =>
  ({ id, name, second_factor_id, password_hash })

const LOCKED = 'There have been too many attempts. Wait a few minutes, then try again.'
export const WRONG_CODE = 'The code is wrong or was already used. Enter the current code of your authenticator app.'

/** The problem to show after a wrong entry or too many attempts. Sets Retry-After to the seconds to wait. */
export function refusal (reply: FastifyReply, refused: 'wrong' | number, wrong: string): Problem {
  if (refused === 'wrong') return { problem: wrong, status: 422 }
  reply.header('retry-after', refused)
  return { problem: LOCKED, status: 429 }
}

/** The problem with a new password; undefined if the password is acceptable. */
export function problemWith (password: string): string | undefined {
  if ([...password].length < PASSWORD.minCharacters) {
    return `The new password must have at least ${PASSWORD.minCharacters} characters.`
  }
  return Buffer.byteLength(password) > PASSWORD.maxBytes
    ? `The new password must have at most ${PASSWORD.maxBytes} bytes.`
    : undefined
}

/** The parameters of `setPasswordByLink`. */
export interface PasswordByLink {
  /** Consumes the link, and returns the id of its user. */
  take: (db: Db) => Promise<number | undefined>
  password_hash: string
  /** The name that an invited user chooses. */
  name: string | undefined
  keepsSessions?: boolean
  /** Details of the event `user.password`. */
  details?: Record<string, string>
}

/** Sets the password of a user by a link. Returns false if another request has used the link. */
export async function setPasswordByLink (
  app: FastifyInstance, request: FastifyRequest, user: User,
  { take, password_hash, name, keepsSessions = false, details = {} }: PasswordByLink
): Promise<boolean> {
  return transaction(app.db, async (db) => {
    await lockUser(db, user.id)
    if (await take(db) !== user.id) return false
    const ended = await changePassword(db, user.id, password_hash, undefined, name, { keepsSessions })
    if (ended === undefined) return false
    await recordForUser(db, request, { ...user, name: name ?? user.name }, 'user.password', details, ended)
    return true
  }, request)
}
