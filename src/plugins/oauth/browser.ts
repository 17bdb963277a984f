import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { hashToken, mintSecret } from '../../crypto/bearer.ts'
import { WorkOverloaded } from '../../crypto/bounded.ts'
import { isOutdated, hashPassword, verifyNobody, verifyPassword } from '../../crypto/passwords.ts'
import { transaction } from '../../db/database.ts'
import { addressKey } from '../../http/addresses.ts'
import { browserOf, isOwnForm, readCookie, sendPage, setCookie, type Form } from '../../http/pages.ts'
import {
  findDevice, forgiveAttempts, rememberDevice, returnAttempts, takeAttempts, type Count
} from '../../repositories/attempts.ts'
import { createSession, deleteSession, findSession } from '../../repositories/sessions.ts'
import { findUser, findUserByEmail, normalizedEmail, updatePasswordHash, type User } from '../../repositories/users.ts'
import { PASSWORD } from '../../../schemas/users.ts'
import type { EventName } from '../../../schemas/events.ts'
import { recordForUser, recordRefusal } from './events.ts'
import { problemPage } from './views.ts'

/** Somebody who is signed in with this browser. */
export interface SignedIn { cookie: string, hash: Buffer, user: User }

/** Somebody whose password was just verified, with the hash that it was verified against. */
export type Verified = Pick<User, 'id' | 'name'> & { password_hash: string }

export async function signedIn (app: FastifyInstance, request: FastifyRequest): Promise<SignedIn | undefined> {
  const cookie = readCookie(app, request, 'session')
  if (cookie === undefined) return undefined
  const hash = hashToken(cookie)
  const user = await findSession(app.db, hash)
  return user && { cookie, hash, user }
}

/**
 * Begins a session under a new id, and ends the one before: one that somebody else may have planted is worth nothing
 * (CR-44). The browser is known from now on. `wrong` when the password that was verified is not the account's any more.
 */
export async function beginSession (
  app: FastifyInstance, request: FastifyRequest, reply: FastifyReply, user: Verified
): Promise<'wrong' | undefined> {
  const before = { session: readCookie(app, request, 'session'), device: readCookie(app, request, 'device') }
  if (before.session !== undefined) await deleteSession(app.db, hashToken(before.session))
  const [session, device] = [mintSecret(), mintSecret()]
  const begun = await transaction(app.db, async (db) => {
    if (!await createSession(db, hashToken(session), user)) return false
    await rememberDevice(db, {
      token_hash: hashToken(device),
      before: before.device === undefined ? undefined : hashToken(before.device),
      user_id: user.id
    })
    await recordForUser(db, request, user, 'session.create')
    return true
  })
  if (!begun) return 'wrong'
  setCookie(app, reply, 'session', session)
  setCookie(app, reply, 'device', device)
  return undefined
}

/** The cookie that forms of this browser go by: the session's, or one from before. */
export function formCookie (app: FastifyInstance, request: FastifyRequest, reply: FastifyReply): string {
  return readCookie(app, request, 'session') ?? browserOf(app, request, reply)
}

/** Sends the page that refuses a form which is not ours; true when it did. */
export function refusesForm (
  app: FastifyInstance, request: FastifyRequest, reply: FastifyReply, form: Form, cookie: string | undefined
): boolean {
  if (isOwnForm(app, request, form, cookie)) return false
  sendPage(reply, problemPage(
    403, 'This form cannot be used', 'It is too old, or it was not sent by this site in this browser.'
  ))
  return true
}

/**
 * Who has this address and password; while no more attempts are taken, the seconds until they are. A browser that has
 * signed in to the account before has attempts of its own, so that nobody's guesses keep its owner out; at any other
 * account it is a stranger. Whether there is such an account does not show: not in the answer, and not in the time that
 * it takes (CR-41, CR-42).
 */
export async function authenticate (
  app: FastifyInstance, request: FastifyRequest, reply: FastifyReply, {
    email, password
  }: { email: string, password: string }
): Promise<Verified | 'wrong' | number> {
  const found = await findUserByEmail(app.db, email)
  const account = found === undefined ? `email:${normalizedEmail(email)}` : `user:${found.id}`
  const device = readCookie(app, request, 'device')
  const known = device === undefined ? undefined : await findDevice(app.db, hashToken(device), found?.id ?? 0)
  if (known === undefined) await app.countStranger(request, reply)
  const counts: Count[] = known !== undefined
    ? [{ of: 'place', hash: hashToken(`${account} device:${known}`) }]
    : [
        { of: 'place', hash: hashToken(`${account} ${addressKey(request.ip)}`) },
        { of: 'account', hash: hashToken(account) }
      ]
  return judge(app, request, { found, counts, refusal: 'session.refuse' }, password)
}

/**
 * The same for somebody who is signed in and gives the password again: counted by the session, which no stranger has.
 */
export async function confirmPassword (
  app: FastifyInstance, request: FastifyRequest, { user, hash }: SignedIn, password: string
): Promise<Verified | 'wrong' | number> {
  const counts: Count[] = [{ of: 'place', hash: hashToken(`session:${hash.toString('hex')}`) }]
  return judge(app, request, { found: await findUser(app.db, user.id), counts, refusal: 'password.refuse' }, password)
}

interface Judged {
  found: Awaited<ReturnType<typeof findUser>>
  counts: readonly Count[]
  /** What is recorded when the password is wrong. */
  refusal: EventName
}

async function judge (
  app: FastifyInstance, request: FastifyRequest, judged: Judged, password: string
): Promise<Verified | 'wrong' | number> {
  const { found, counts, refusal } = judged
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
    return { id: found.id, name: found.name, password_hash: found.password_hash }
  }
  const password_hash = await hashPassword(password, app.costs.password)
  // Whoever was faster may have changed the password: then it is judged by the new one.
  return await updatePasswordHash(app.db, found.id, found.password_hash, password_hash)
    ? { id: found.id, name: found.name, password_hash }
    : judge(app, request, { ...judged, found: await findUser(app.db, found.id) }, password)
}

/** Why a new password cannot be taken; undefined when it can. */
export function problemWith (password: string): string | undefined {
  if ([...password].length < PASSWORD.minCharacters) {
    return `The new password has to have at least ${PASSWORD.minCharacters} characters.`
  }
  return Buffer.byteLength(password) > PASSWORD.maxBytes
    ? `The new password has to have at most ${PASSWORD.maxBytes} bytes.`
    : undefined
}
