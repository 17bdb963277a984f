import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { hashToken, mintSecret } from '../../crypto/bearer.ts'
import { isOutdated, hashPassword, verifyNobody, verifyPassword } from '../../crypto/passwords.ts'
import { browserOf, isOwnForm, readCookie, sendPage, setCookie, type Form } from '../../http/pages.ts'
import { createSession, findSession, findUser, findUserByEmail, forgiveAttempts, normalizedEmail, takeAttempt, updatePasswordHash, type User } from '../../repositories/users.ts'
import { PASSWORD } from '../../../schemas/users.ts'
import { problemPage } from './views.ts'

/** Somebody who is signed in with this browser. */
export interface SignedIn { cookie: string, hash: Buffer, user: User }

export async function signedIn (app: FastifyInstance, request: FastifyRequest): Promise<SignedIn | undefined> {
  const cookie = readCookie(app, request, 'session')
  if (cookie === undefined) return undefined
  const hash = hashToken(cookie)
  const user = await findSession(app.db, hash)
  return user && { cookie, hash, user }
}

/** Begins a session under a new id: one that somebody else may have planted is worth nothing (CR-44). */
export async function beginSession (app: FastifyInstance, reply: FastifyReply, userId: number): Promise<void> {
  const cookie = mintSecret()
  await createSession(app.db, hashToken(cookie), userId)
  setCookie(app, reply, 'session', cookie)
}

/** The cookie that forms of this browser go by: the session's, or one from before. */
export function formCookie (app: FastifyInstance, request: FastifyRequest, reply: FastifyReply): string {
  return readCookie(app, request, 'session') ?? browserOf(app, request, reply)
}

/** Sends the page that refuses a form which is not ours; true when it did. */
export function refusesForm (app: FastifyInstance, request: FastifyRequest, reply: FastifyReply, form: Form, cookie: string | undefined): boolean {
  if (isOwnForm(app, request, form, cookie)) return false
  sendPage(reply, problemPage(403, 'This form cannot be used', 'It is too old, or it was not sent by this site in this browser.'))
  return true
}

/**
 * Who has this address and password. Whether there is such an account does not show: not in the answer, and not in the
 * time that it takes (CR-41, CR-42).
 */
export async function authenticate (app: FastifyInstance, email: string, password: string): Promise<User | 'wrong' | 'locked'> {
  const found = await findUserByEmail(app.db, email)
  return judge(app, found, `email:${normalizedEmail(email)}`, password)
}

/** The same for somebody who is signed in and gives the password again. */
export async function confirmPassword (app: FastifyInstance, userId: number, password: string): Promise<User | 'wrong' | 'locked'> {
  return judge(app, await findUser(app.db, userId), '', password)
}

async function judge (app: FastifyInstance, found: (User & { password_hash: string | null }) | undefined, otherwise: string, password: string): Promise<User | 'wrong' | 'locked'> {
  const key = hashToken(found === undefined ? otherwise : `user:${found.id}`)
  if (!await takeAttempt(app.db, key)) return 'locked'
  if (found?.password_hash == null || found.disabled_at !== null) {
    await verifyNobody(password)
    return 'wrong'
  }
  if (!await verifyPassword(found.password_hash, password)) return 'wrong'
  await forgiveAttempts(app.db, key)
  if (isOutdated(found.password_hash)) await updatePasswordHash(app.db, found.id, await hashPassword(password))
  const { password_hash: _, ...user } = found
  return user
}

/** Why a new password cannot be taken; undefined when it can. */
export function problemWith (password: string): string | undefined {
  if ([...password].length < PASSWORD.minCharacters) return `The new password has to have at least ${PASSWORD.minCharacters} characters.`
  return Buffer.byteLength(password) > PASSWORD.maxBytes ? `The new password has to have at most ${PASSWORD.maxBytes} bytes.` : undefined
}
