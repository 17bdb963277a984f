import { Type } from '@sinclair/typebox'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { NAME_LENGTH } from '../../../schemas/shapes.ts'
import { hashToken } from '../../crypto/bearer.ts'
import { hashPassword } from '../../crypto/passwords.ts'
import { transaction } from '../../db/database.ts'
import { browserOf, formOf, readCookie, sendPage, seeOther, setCookie, visible, type Form } from '../../http/pages.ts'
import type { Domain } from '../../http/types.ts'
import { listTokensOfPerson } from '../../repositories/tokens.ts'
import { joinOrganizations } from '../../repositories/members.ts'
import { deleteSession } from '../../repositories/sessions.ts'
import {
  findPasswordLink, takePasswordLink, changePassword, endEverything, listMemberships, lockUser, type User
} from '../../repositories/users.ts'
import {
  authenticate, beginSession, confirmPassword, formCookie, problemWith, refusesForm, signedIn
} from './browser.ts'
import { recordForUser, recordJoining } from './events.ts'
import { accountPage, changePasswordPage, problemPage, setPasswordPage, signInPage } from './views.ts'

const PAGE = { access: 'public', speaks: 'html' } as const
const FORM = { schema: { hide: true, body: Type.Unknown() }, validatorCompiler: () => () => true }
// The longest URL that this service takes.
const MOST_LOCATION = 8192

const WRONG = 'The e-mail address and the password do not belong together.'
const LOCKED = 'There were too many attempts. Wait a few minutes and try again.'

/** People and their browsers: signing in and out, and passwords. */
export const accounts: Domain = async (app) => {
  app.post('/oauth/sign-in', {
    ...FORM,
    config: { ...PAGE, limit: 'sign_in', audit: ['session.create', 'session.refuse'] },
    handler: async (request, reply) => {
      const form = formOf(request)
      const cookie = formCookie(app, request, reply)
      if (refusesForm(app, request, reply, form, cookie)) return reply
      const [email, password, query] = [form.get('email') ?? '', form.get('password') ?? '', form.get('query') ?? '']
      const user = await authenticate(
        app, request, reply, { email: email.slice(0, 320), password: password.slice(0, 1024) }
      )
      if (typeof user === 'number') {
        reply.header('retry-after', user)
        return sendPage(reply, signInPage({ cookie, query, email, problem: LOCKED, status: 429 }))
      }
      if (user === 'wrong' || await beginSession(app, request, reply, user) === 'wrong') {
        return sendPage(reply, signInPage({ cookie, query, email, problem: WRONG, status: 422 }))
      }
      // Always a path of this service: what the form carries can only be its query (OA-26).
      const location = `/oauth/authorize?${visible(query)}`
      return seeOther(reply, query === '' || location.length > MOST_LOCATION ? '/account' : location)
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
      const { cookie, user } = session
      return sendPage(reply, accountPage(
        cookie, user, await listMemberships(app.db, user.id), await listTokensOfPerson(app.db, user.id)
      ))
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
            await endEverything(db, session.user.id)
            await recordForUser(db, request, session.user, 'oauth.revoke', { everything: true })
          })
        } else {
          await transaction(app.db, async (db) => {
            await deleteSession(db, session.hash)
            await recordForUser(db, request, session.user, 'session.delete')
          })
        }
      }
      setCookie(app, reply, 'session', undefined)
      return seeOther(reply, '/account')
    }
  })

  app.get('/account/password', {
    schema: { hide: true },
    config: PAGE,
    handler: async (request, reply) => {
      const session = await signedIn(app, request)
      return session === undefined ? seeOther(reply, '/account') : sendPage(reply, changePasswordPage(session.cookie))
    }
  })

  app.post('/account/password', {
    ...FORM,
    config: { ...PAGE, limit: 'sign_in', audit: ['user.password', 'session.create', 'password.refuse'] },
    handler: async (request, reply) => {
      const form = formOf(request)
      if (refusesForm(app, request, reply, form, readCookie(app, request, 'session'))) return reply
      const session = await signedIn(app, request)
      if (session === undefined) return seeOther(reply, '/account')
      const password = form.get('password') ?? ''
      const problem = problemWith(password)
      if (problem !== undefined) return sendPage(reply, changePasswordPage(session.cookie, problem))
      const confirmed = await confirmPassword(app, request, session, (form.get('current') ?? '').slice(0, 1024))
      if (typeof confirmed === 'number') {
        reply.header('retry-after', confirmed)
        return sendPage(reply, changePasswordPage(session.cookie, LOCKED, 429))
      }
      if (confirmed === 'wrong') {
        return sendPage(reply, changePasswordPage(session.cookie, 'The current password is not right.'))
      }
      await replacePassword(request, reply, session.user, password, { from: confirmed.password_hash })
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
    config: { ...PAGE, limit: 'sign_in', audit: ['user.password', 'member.join', 'session.create'] },
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
      return await replacePassword(request, reply, user, password, { link, name: nameIn(form, user) })
        ? seeOther(reply, '/account')
        : sendPage(reply, expired())
    }
  })

  // Everything of the user ends; this browser begins anew. With a link, only if nobody used it first: it shows that the
  // address is theirs, so that invitations to it are accepted. Else only if the password that was given is still the
  // right one.
  async function replacePassword (
    request: FastifyRequest, reply: FastifyReply, user: User, password: string,
    by: { link: string, name: string | undefined } | { from: string }
  ): Promise<boolean> {
    const hash = await hashPassword(password, app.costs.password)
    const done = await transaction(app.db, async (db) => {
      await lockUser(db, user.id)
      if ('link' in by && await takePasswordLink(db, hashToken(by.link)) === undefined) return false
      const [from, name] = 'from' in by ? [by.from] : [undefined, by.name]
      if (!await changePassword(db, user.id, hash, from, name)) return false
      const joined = 'link' in by ? await joinOrganizations(db, user.id) : []
      await recordForUser(db, request, user, 'user.password')
      await recordJoining(db, request, { ...user, name: name ?? user.name }, joined)
      return true
    })
    if (done) await beginSession(app, request, reply, { id: user.id, name: user.name, password_hash: hash })
    return done
  }
}

// Who was invited says how they are called, and nobody else here.
const nameIn = (form: Form, { is_verified }: User): string | undefined =>
  is_verified ? undefined : form.get('name')?.trim().slice(0, NAME_LENGTH) || undefined

const expired = () => problemPage(
  404, 'This link cannot be used', 'It was used already, or it is older than three days. Ask for a new one.'
)
