import type { FastifyReply, FastifyRequest } from 'fastify'
import { mintSecret } from '../../crypto/bearer.ts'
import { hashPassword } from '../../crypto/passwords.ts'
import { transaction } from '../../changes/transaction.ts'
import { recordForPersonAlone } from '../../http/guard/personal-events.ts'
import { browserOf, waitUntil } from '../../http/pages/pages.ts'
import { onceClosed } from '../../http/responses/closed.ts'
import { addressKey } from '../../http/routes/addresses.ts'
import type { Domain } from '../../http/routes/types.ts'
import { passwordChanged, passwordReset as resetMail } from '../../mail/messages.ts'
import type { PostedMail, MailReservation } from '../../mail/outbox.ts'
import { returnAttempts, takeAttempts, type Count } from '../../repositories/people/attempts.ts'
import {
  createPasswordReset, findPasswordReset, RESET_MINUTES, takePasswordReset
} from '../../repositories/people/password-resets.ts'
import { findUserByEmail, type User } from '../../repositories/people/users.ts'
import { canonicalEmail, isEmail } from '../../rules/formats/emails.ts'
import { clientOf, forgetGuesses, formCookie, passwordIn, setPasswordByLink } from './pages/browser.ts'
import { linkOf, pagesOf } from './pages/page-routes.ts'
import {
  describeClient, forgotPasswordPage, linkSentPage, noResetPage, passwordResetPage, problemPage, resetPasswordPage,
  type Problem
} from './pages/views.ts'

const FORGOT = '/account/forgot-password'
const RESET = '/account/reset-password'

const NO_ADDRESS: Problem = { problem: 'Enter a valid e-mail address.', status: 422 }
const TOO_MANY: Problem = {
  problem: 'There were too many requests for this address, or from your network. The newest link in an e-mail still works for 30 minutes. Otherwise try again in half an hour.',
  status: 429
}
const QUEUE_FULL: Problem = {
  problem: 'The service cannot send more e-mail at the moment. Try again in a few minutes.', status: 503
}

const GONE = problemPage(
  404, 'This link is not valid',
  `It was already used, or it is older than ${RESET_MINUTES} minutes, or you asked for a newer link, or your password was changed. Choose "Forgot your password?" on the sign-in page to get a new link.`
)

/** The account pages for a forgotten password: a mailed link sets a new password (decision 0067). */
export const passwordReset: Domain = async (app) => {
  const { showPage, onForm } = pagesOf(app)

  showPage(FORGOT, async (request, reply) =>
    app.outbox.isOpen ? forgotPasswordPage({ cookie: formCookie(app, request, reply) }) : noResetPage())

  // Response, duration, statements and mail queue are the same for an address without an account (CR-49).
  onForm(FORGOT, {
    cookie: 'either', limit: 'sign_in', audit: 'user.request_reset'
  }, async (request, reply, form, cookie) => {
    const responseAt = performance.now() + app.costs.resetResponseMs
    if (!app.outbox.isOpen) return noResetPage()
    const email = (form.get('email') ?? '').slice(0, 320).trim()
    const refuse = (problem: Problem) => forgotPasswordPage({ cookie, email, ...problem })
    if (!isEmail(email)) return refuse(NO_ADDRESS)
    await app.countStranger(request, reply)
    const [network, address] = [addressKey(request.ip), canonicalEmail(email)]
    const counts: Count[] = [
      { of: 'account', name: `reset ${network}` }, { of: 'reset', name: `reset email:${address}` }
    ]
    const attempt = await takeAttempts(app.db, counts)
    if ('wait' in attempt) {
      reply.header('retry-after', attempt.wait)
      return refuse(TOO_MANY)
    }
    const reservation = app.outbox.reserve({ network }, address)
    if (reservation === undefined) {
      await returnAttempts(app.db, counts)
      return refuse(QUEUE_FULL)
    }
    const secret = mintSecret()
    try {
      const user = await transaction(app.db, async (db) => {
        const found = await findUserByEmail(db, email)
        const user = found?.disabled_at === null ? found : undefined
        // For an address without an account, the id 0: no account has this id.
        const id = user?.id ?? 0
        await createPasswordReset(db, email, secret, id)
        await recordForPersonAlone(db, request, { id }, 'user.request_reset')
        return user
      }, request)
      postAfterResponse(reply, reservation, () => user && mailTo(user, resetMail({
        ...recipient(user), link: `${app.issuer()}${RESET}/${secret}`, minutes: RESET_MINUTES
      })))
    } catch (error) {
      reservation.release()
      await returnAttempts(app.db, counts)
      throw error
    }
    await waitUntil(responseAt)
    return linkSentPage(email, RESET_MINUTES)
  })

  showPage(`${RESET}/:link`, async (request, reply) => {
    const link = linkOf(request)
    const user = await findPasswordReset(app.db, link)
    return user === undefined ? GONE : resetPasswordPage(browserOf(app, request, reply), link, user)
  })

  // This form starts no session, because the link proves only that the user reads the mailbox. The user then signs in
  // with the new password and, if required, a code.
  onForm(`${RESET}/:link`, {
    cookie: 'browser', limit: 'sign_in', audit: 'user.password'
  }, async (request, reply, form, cookie) => {
    const link = linkOf(request)
    const user = await findPasswordReset(app.db, link)
    if (user === undefined) return GONE
    const { password, name, problem } = passwordIn(form, user)
    if (problem !== undefined) return resetPasswordPage(cookie, link, user, problem)
    const password_hash = await hashPassword(password, app.costs.password)
    const keepsSessions = form.get('end_sessions') !== 'yes'
    const isDone = await setPasswordByLink(app, request, user, {
      take: (db) => takePasswordReset(db, link),
      password_hash,
      name,
      keepsSessions,
      details: { link: 'reset', other_sessions: keepsSessions ? 'kept' : 'ended' }
    })
    if (!isDone) return GONE
    await forgetGuesses(app, request, user.id)
    tellOfChange(request, reply, user, keepsSessions)
    return passwordResetPage(keepsSessions)
  })

  const recipient = ({ name, email }: User) => ({ name, email, service: app.issuer() })

  function tellOfChange (request: FastifyRequest, reply: FastifyReply, user: User, keepsSessions: boolean) {
    const reservation = app.outbox.reserve({ network: addressKey(request.ip) }, canonicalEmail(user.email))
    if (reservation === undefined) return
    postAfterResponse(reply, reservation, () => mailTo(user, passwordChanged({
      ...recipient(user), from: describeClient(clientOf(request)), at: new Date(), keepsSessions
    })))
  }
}

const mailTo = ({ id, email }: User, message: { subject: string, text: string }): PostedMail =>
  ({ about: `user ${id}`, to: email, ...message })

// Sends the mail after the response, so that an address with an account does not have a slower response.
function postAfterResponse (reply: FastifyReply, reservation: MailReservation, mailOf: () => PostedMail | undefined) {
  onceClosed(reply, () => { reservation.post(mailOf()) })
}
