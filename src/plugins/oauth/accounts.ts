import { Type } from '@sinclair/typebox'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { NAME_LENGTH } from '../../../schemas/shapes.ts'
import { hashToken } from '../../crypto/bearer.ts'
import { hashPassword } from '../../crypto/passwords.ts'
import { transaction, type Db } from '../../db/database.ts'
import { browserOf, formOf, readCookie, sendPage, seeOther, setCookie, visible, type Form } from '../../http/pages.ts'
import type { Domain } from '../../http/types.ts'
import { deleteInvitation, findMember, joinOrganizations } from '../../repositories/members.ts'
import { listGrants, revokeGrantOf } from '../../repositories/oauth.ts'
import { countWrongCode, findSignInStep, takeSignInStep } from '../../repositories/second-factors.ts'
import { deleteSession, listSessions } from '../../repositories/sessions.ts'
import { deleteTokens, listTokensOfPerson, lockOwnToken } from '../../repositories/tokens.ts'
import {
  changePassword, endEverything, findPasswordLink, findUser, listInvitations, listMemberships, lockUser,
  takePasswordLink, type User
} from '../../repositories/users.ts'
import { parseId } from '../../rules/ids.ts'
import {
  authenticate, beginSession, codeIn, codeInSession, codeOfStranger, confirmPassword, enter, formCookie, problemWith,
  refusal, refusesForm, signedIn, stepHash, withSecondFactor, WRONG_CODE
} from './browser.ts'
import { recordDeclining, recordForToken, recordForUser, recordJoining, recordRefusedJoining } from './events.ts'
import {
  accountPage, changePasswordPage, codePage, problemPage, setPasswordPage, signInPage, type Problem,
  type SignedIn
} from './views.ts'

const PAGE = { access: 'public', speaks: 'html' } as const
const FORM = { schema: { hide: true, body: Type.Unknown() }, validatorCompiler: () => () => true }
// The longest URL that this service takes.
const MOST_LOCATION = 8192

const WRONG = 'The e-mail address and the password do not belong together.'
const AGAIN = 'That took too long, or there were too many wrong codes. Sign in again.'
const NOT_INVITED = 'This invitation is not there any more. Ask whoever invited you for another one.'
const CANNOT_JOIN = 'You cannot join yet, and the invitation goes on waiting. If you made API tokens there before, they are being removed: try again in a moment. Otherwise you are in, or own, as many organizations as anybody can: leave one first.'

/** People and their browsers: signing in and out, passwords, and what is theirs. */
export const accounts: Domain = async (app) => {
  app.post('/oauth/sign-in', {
    ...FORM,
    config: { ...PAGE, limit: 'sign_in', audit: ['session.create', 'session.refuse', 'second-factor.ask'] },
    handler: async (request, reply) => {
      const form = formOf(request)
      const cookie = formCookie(app, request, reply)
      if (refusesForm(app, request, reply, form, cookie)) return reply
      const [email, password, query] = [form.get('email') ?? '', form.get('password') ?? '', form.get('query') ?? '']
      const user = await authenticate(
        app, request, reply, { email: email.slice(0, 320), password: password.slice(0, 1024) }
      )
      const entered = typeof user === 'object' ? await enter(app, request, reply, user) : user
      if (entered === 'wrong' || typeof entered === 'number') {
        return sendPage(reply, signInPage({ cookie, query, email, ...refusal(reply, entered, WRONG) }))
      }
      return entered === 'in' ? seeOther(reply, locationOf(query)) : sendPage(reply, codePage({ ...entered, query }))
    }
  })

  app.post('/oauth/sign-in/code', {
    ...FORM,
    config: {
      ...PAGE, limit: 'sign_in', audit: ['session.create', 'second-factor.use_recovery_code', 'second-factor.refuse']
    },
    handler: async (request, reply) => {
      const form = formOf(request)
      const cookie = formCookie(app, request, reply)
      if (refusesForm(app, request, reply, form, cookie)) return reply
      const [step, query] = [form.get('step') ?? '', form.get('query') ?? '']
      const hash = stepHash(step, cookie)
      const again = () => sendPage(reply, signInPage({ cookie, query, problem: AGAIN, status: 422 }))
      const id = await findSignInStep(app.db, hash)
      const user = id === undefined ? undefined : await findUser(app.db, id)
      if (user?.password_hash == null) return again()
      const given = await codeOfStranger(app, request, reply, user, codeIn(form))
      const judged = await withSecondFactor(app, request, given, (db) => takeSignInStep(db, hash))
      if (judged === 'wrong' && !await countWrongCode(app.db, hash)) return again()
      if (typeof judged !== 'object') {
        return sendPage(reply, codePage({ cookie, step, query, ...refusal(reply, judged, WRONG_CODE) }))
      }
      const verified = { ...user, password_hash: user.password_hash }
      if (!judged.done || await beginSession(app, request, reply, verified) === 'wrong') return again()
      return seeOther(reply, locationOf(query))
    }
  })

  app.get('/account', {
    schema: { hide: true },
    config: PAGE,
    handler: async (request, reply) => {
      const session = await signedIn(app, request)
      if (session === undefined) {
        return sendPage(reply, signInPage({ cookie: formCookie(app, request, reply), query: '' }))
      }
      return showAccount(request, reply, session)
    }
  })

  app.post('/account/sign-out', {
    ...FORM,
    config: { ...PAGE, audit: ['session.delete', 'oauth.revoke'] },
    handler: async (request, reply) => {
      const form = formOf(request)
      if (refusesForm(app, request, reply, form, readCookie(app, request, 'session'))) return reply
      const session = await signedIn(app, request)
      if (session !== undefined) {
        if (form.get('where') === 'everywhere') {
          await transaction(app.db, async (db) => {
            const ended = await endEverything(db, session.user.id)
            await recordForUser(db, request, session.user, 'oauth.revoke', { everything: true }, ended)
          }, request)
        } else {
          await transaction(app.db, async (db) => {
            await deleteSession(db, session.hash)
            await recordForUser(db, request, session.user, 'session.delete')
          }, request)
        }
      }
      setCookie(app, reply, 'session', undefined)
      return seeOther(reply, '/account')
    }
  })

  // Each is about one thing of the person who is signed in, and nobody else's: what is not theirs is not there.
  for (const [path, { event, act }] of Object.entries({
    'sessions/end': { event: 'session.delete', act: endSession },
    'tokens/end': { event: 'api-token.delete', act: endToken },
    'applications/end': { event: 'oauth.revoke', act: endApplication },
    'invitations/accept': { event: ['member.join', 'member.refuse'], act: acceptInvitation },
    'invitations/end': { event: 'member.delete', act: declineInvitation }
  } as const)) {
    app.post(`/account/${path}`, {
      ...FORM,
      config: { ...PAGE, audit: event },
      handler: async (request, reply) => {
        const form = formOf(request)
        if (refusesForm(app, request, reply, form, readCookie(app, request, 'session'))) return reply
        const session = await signedIn(app, request)
        if (session === undefined) return seeOther(reply, '/account')
        const problem = await transaction(app.db, async (db) => {
          await lockUser(db, session.user.id)
          return await act(db, request, session, (form.get('id') ?? '').slice(0, MOST_ID))
        }, request)
        if (problem === undefined) return seeOther(reply, '/account')
        // What was in the way may be in the background's hands.
        app.removals.wake()
        return showAccount(request, reply, session, problem)
      }
    })
  }

  app.get('/account/password', {
    schema: { hide: true },
    config: PAGE,
    handler: async (request, reply) => {
      const session = await signedIn(app, request)
      return session === undefined ? seeOther(reply, '/account') : sendPage(reply, changePasswordPage(session))
    }
  })

  app.post('/account/password', {
    ...FORM,
    config: {
      ...PAGE,
      limit: 'sign_in',
      audit: [
        'user.password', 'session.create', 'password.refuse', 'second-factor.use_recovery_code', 'second-factor.refuse'
      ]
    },
    handler: async (request, reply) => {
      const form = formOf(request)
      if (refusesForm(app, request, reply, form, readCookie(app, request, 'session'))) return reply
      const session = await signedIn(app, request)
      if (session === undefined) return seeOther(reply, '/account')
      const { user } = session
      const password = form.get('password') ?? ''
      const problem = problemWith(password)
      if (problem !== undefined) return sendPage(reply, changePasswordPage(session, { problem, status: 422 }))
      const confirmed = await confirmPassword(app, request, session, form)
      if (typeof confirmed !== 'object') {
        return sendPage(reply, changePasswordPage(
          session, refusal(reply, confirmed, 'The current password is not right.')
        ))
      }
      const hash = await hashPassword(password, app.costs.password)
      const changed = await withSecondFactor(app, request, codeInSession(session, codeIn(form)), async (db) => {
        const ended = await changePassword(db, user.id, hash, confirmed.password_hash)
        if (ended === undefined) return false
        await recordForUser(db, request, user, 'user.password', {}, ended)
        return true
      })
      if (typeof changed !== 'object') {
        return sendPage(reply, changePasswordPage(session, refusal(reply, changed, WRONG_CODE)))
      }
      if (changed.done) await beginSession(app, request, reply, { ...confirmed, password_hash: hash })
      return seeOther(reply, '/account')
    }
  })

  app.get('/account/set-password/:link', {
    schema: { hide: true },
    config: PAGE,
    handler: async (request, reply) => {
      const { link } = request.params as { link: string }
      const user = await findPasswordLink(app.db, hashToken(link))
      return user === undefined
        ? sendPage(reply, expired())
        : sendPage(reply, setPasswordPage(browserOf(app, request, reply), link, user))
    }
  })

  app.post('/account/set-password/:link', {
    ...FORM,
    config: {
      ...PAGE, limit: 'sign_in', audit: ['user.password', 'member.join', 'session.create', 'second-factor.ask']
    },
    handler: async (request, reply) => {
      const { link } = request.params as { link: string }
      const form = formOf(request)
      const cookie = readCookie(app, request, 'browser')
      if (refusesForm(app, request, reply, form, cookie)) return reply
      const user = await findPasswordLink(app.db, hashToken(link))
      if (user === undefined) return sendPage(reply, expired())
      const password = form.get('password') ?? ''
      const problem = problemWith(password)
      if (problem !== undefined) return sendPage(reply, setPasswordPage(cookie!, link, user, problem))
      const password_hash = await hashPassword(password, app.costs.password)
      const name = nameIn(form, user)
      // Only if nobody used the link first. The first one shows whose the address is: what it was invited to before is
      // accepted. Invitations that wait since then are for its person to take or not.
      const done = await transaction(app.db, async (db) => {
        await lockUser(db, user.id)
        if (await takePasswordLink(db, hashToken(link)) === undefined) return false
        const ended = await changePassword(db, user.id, password_hash, undefined, name)
        if (ended === undefined) return false
        const { joined } = user.is_verified ? { joined: [] } : await joinOrganizations(db, user.id)
        await recordForUser(db, request, user, 'user.password', {}, ended)
        await recordJoining(db, request, { ...user, name: name ?? user.name }, joined)
        return true
      }, request)
      if (!done) return sendPage(reply, expired())
      // Whoever can read somebody's mail has one factor, not two.
      const entered = await enter(app, request, reply, { ...user, password_hash })
      return typeof entered === 'object'
        ? sendPage(reply, codePage({ ...entered, query: '' }))
        : seeOther(reply, '/account')
    }
  })

  async function showAccount (request: FastifyRequest, reply: FastifyReply, session: SignedIn, problem?: Problem) {
    const { cookie, user, hash } = session
    const [memberships, invitations, sessions, tokens, applications] = await Promise.all([
      listMemberships(app.db, user.id), listInvitations(app.db, user.id),
      listSessions(app.db, user.id, pageIn(request, 'sessions')),
      listTokensOfPerson(app.db, user.id, pageIn(request, 'tokens')),
      listGrants(app.db, user.id, pageIn(request, 'applications'))
    ])
    return sendPage(reply, accountPage({
      cookie, user, session: hash, memberships, invitations, sessions, tokens, applications, problem
    }))
  }
}

// As many pages of a list as anybody looks through.
const MOST_PAGES = 1_000

function pageIn ({ query }: FastifyRequest, list: string): number {
  const page = Number((query as Record<string, unknown>)[list])
  return Number.isInteger(page) && page >= 1 && page <= MOST_PAGES ? page : 1
}

// Longer than the name of anything that can be ended.
const MOST_ID = 64

async function endSession (db: Db, request: FastifyRequest, { user }: SignedIn, id: string): Promise<void> {
  if (!await deleteSession(db, Buffer.from(id, 'base64url'), user.id)) return
  await recordForUser(db, request, user, 'session.delete')
}

async function endToken (db: Db, request: FastifyRequest, { user }: SignedIn, id: string): Promise<void> {
  const token = parseId(id)
  if (token === undefined) return
  const organization = await lockOwnToken(db, user.id, token)
  if (organization === undefined) return
  await deleteTokens(db, organization, [token])
  await recordForToken(db, request, user, organization, token)
}

async function endApplication (db: Db, request: FastifyRequest, { user }: SignedIn, id: string): Promise<void> {
  const grant = parseId(id)
  if (grant === undefined) return
  const revoked = await revokeGrantOf(db, user.id, grant)
  if (revoked === undefined) return
  await recordForUser(db, request, user, 'oauth.revoke', { grant, client: revoked.client_id }, revoked.ended)
}

async function acceptInvitation (
  db: Db, request: FastifyRequest, { user }: SignedIn, id: string
): Promise<Problem | undefined> {
  const { joined, refused } = await joinOrganizations(db, user.id, id)
  await recordJoining(db, request, user, joined)
  if (joined.length > 0) return undefined
  const reason = refused.get(id)
  if (reason !== undefined) await recordRefusedJoining(db, request, user, id, reason)
  const found = await findMember(db, id, user.id)
  // Pressed twice.
  if (found?.status === 'active') return undefined
  return { problem: found === undefined ? NOT_INVITED : CANNOT_JOIN, status: 422 }
}

async function declineInvitation (db: Db, request: FastifyRequest, { user }: SignedIn, id: string): Promise<void> {
  if (await deleteInvitation(db, id, user.id)) await recordDeclining(db, request, user, id)
}

// Always a path of this service: what the form carries can only be its query (OA-26).
function locationOf (query: string): string {
  const location = `/oauth/authorize?${visible(query)}`
  return query === '' || location.length > MOST_LOCATION ? '/account' : location
}

// Who was invited says how they are called, and nobody else here.
const nameIn = (form: Form, { is_verified }: User): string | undefined =>
  is_verified ? undefined : form.get('name')?.trim().slice(0, NAME_LENGTH) || undefined

const expired = () => problemPage(
  404, 'This link cannot be used', 'It was used already, or it is older than three days. Ask for a new one.'
)
