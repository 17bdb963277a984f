import { describeFactor } from '../../crypto/second-factor.ts'
import { tampered, type Db } from '../../db/database.ts'
import type { Page } from '../../http/pages/pages.ts'
import type { Domain } from '../../http/routes/types.ts'
import { countRecoveryCodes, deleteFactor } from '../../repositories/people/second-factors.ts'
import { findUser, type User } from '../../repositories/people/users.ts'
import { beginFactor, confirmFactor, renewRecoveryCodes } from '../../vault/keys/second-factor.ts'
import {
  beginSession, codeIn, codeInSession, confirmPassword, inSession, refusal, withAttempt, withSecondFactor, WRONG_CODE
} from './pages/browser.ts'
import { pagesOf } from './pages/page-routes.ts'
import { recordForUser } from './personal-events.ts'
import { confirmFactorPage, factorPage, recoveryCodesPage, type Problem, type SignedIn } from './pages/views.ts'

const HOME = '/account/second-factor'
const WRONG_PASSWORD = 'The password is wrong.'

/** The account pages of the second factor: set up the factor, create new recovery codes, turn off the factor. */
export const secondFactor: Domain = async (app) => {
  pagesOf(app).showOwnPage(HOME, async (_request, _reply, session) => overview(session))
  const { onOwnForm } = pagesOf(app, HOME)

  onOwnForm(HOME, {
    limit: 'sign_in', audit: ['second-factor.prepare', 'password.refuse']
  }, async (request, reply, session, form) => {
    const { user } = session
    const confirmed = await confirmPassword(app, request, session, form)
    if (typeof confirmed !== 'object') return overview(session, refusal(reply, confirmed, WRONG_PASSWORD))
    const secret = await inSession(app, request, session, async (db) => {
      // An active second factor can only be replaced after it was turned off with a code.
      if ((await findUser(db, user.id))?.second_factor_id !== null) return undefined
      const secret = await beginFactor(db, app.keyring, user.id)
      await recordForUser(db, request, user, 'second-factor.prepare')
      return secret
    })
    return secret === undefined ? HOME : confirmFactorPage(session, describeFactor(secret, user.email))
  })

  onOwnForm(`${HOME}/confirm`, {
    limit: 'sign_in', audit: ['second-factor.enroll', 'session.create', 'second-factor.refuse']
  }, async (request, reply, session, form) => {
    const given = codeInSession(session, codeIn(form))
    const confirmed = await withAttempt(app, request, given, async (db, code) => {
      const codes = await confirmFactor(db, app.keyring, session.user.id, code)
      if (codes === undefined) return undefined
      await recordForUser(db, request, session.user, 'second-factor.enroll')
      return { codes, user: (await findUser(db, session.user.id))! }
    })
    // The secret is not shown again; a user who has lost the secret starts again with the password.
    if (typeof confirmed !== 'object') {
      return confirmFactorPage(session, undefined, refusal(reply, confirmed, WRONG_CODE))
    }
    const { codes, user: { id, name, second_factor_id, password_hash } } = confirmed.done
    await beginSession(app, request, reply, { id, name, second_factor_id, password_hash: password_hash! })
    return recoveryCodesPage(codes)
  })

  // Changing an active second factor requires a code and the password.
  onOwnForm(`${HOME}/change`, {
    limit: 'sign_in',
    audit: [
      'second-factor.renew_recovery_codes', 'second-factor.disable', 'second-factor.use_recovery_code',
      'password.refuse', 'second-factor.refuse'
    ]
  }, async (request, reply, session, form) => {
    const { user } = session
    const change = form.get('change')
    if (user.second_factor_id === null || (change !== 'recovery-codes' && change !== 'disable')) return HOME
    const confirmed = await confirmPassword(app, request, session, form)
    if (typeof confirmed !== 'object') return overview(session, refusal(reply, confirmed, WRONG_PASSWORD))
    const changed = await withSecondFactor(app, request, codeInSession(session, codeIn(form)), async (db) => {
      const codes = change === 'disable' ? await disable(db, user.id) : await renewRecoveryCodes(db, factorOf(user))
      await recordForUser(
        db, request, user, change === 'disable' ? 'second-factor.disable' : 'second-factor.renew_recovery_codes'
      )
      return codes
    })
    if (typeof changed !== 'object') return overview(session, refusal(reply, changed, WRONG_CODE))
    return changed.done === undefined ? HOME : recoveryCodesPage(changed.done)
  })

  async function overview (session: SignedIn, problem?: Problem): Promise<Page> {
    return factorPage(session, await countRecoveryCodes(app.db, session.user.id), problem)
  }
}

const factorOf = ({ id: user_id, second_factor_id: id }: User) => ({ user_id, id: id! })

async function disable (db: Db, userId: number): Promise<undefined> {
  // The locked and authentic row of the account names a factor, so a missing factor was deleted outside the service.
  if (!await deleteFactor(db, userId)) tampered()
}
