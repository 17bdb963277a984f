import { Type } from '@sinclair/typebox'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { EventName } from '../../../schemas/events.ts'
import { describeFactor } from '../../crypto/second-factor.ts'
import { tampered, transaction, type Db } from '../../db/database.ts'
import { formOf, readCookie, sendPage, seeOther, type Page } from '../../http/pages/pages.ts'
import type { Domain } from '../../http/routes/types.ts'
import { countRecoveryCodes, deleteFactor } from '../../repositories/people/second-factors.ts'
import { findUser, lockUser, type User } from '../../repositories/people/users.ts'
import { beginFactor, confirmFactor, renewRecoveryCodes } from '../../vault/keys/second-factor.ts'
import {
  beginSession, codeIn, codeInSession, confirmPassword, refusal, refusesForm, signedIn, withAttempt, withSecondFactor,
  WRONG_CODE
} from './browser.ts'
import { recordForUser } from '../../http/guard/personal-events.ts'
import { confirmFactorPage, factorPage, recoveryCodesPage, type Problem, type SignedIn } from './views.ts'

const PAGE = { access: 'public', speaks: 'html' } as const
const FORM = { schema: { hide: true, body: Type.Unknown() }, validatorCompiler: () => () => true }
const WRONG_PASSWORD = 'The password is wrong.'

/** The account pages of the second factor: set it up, create new recovery codes, turn it off. */
export const secondFactor: Domain = async (app) => {
  app.get('/account/second-factor', {
    schema: { hide: true },
    config: PAGE,
    handler: async (request, reply) => {
      const session = await signedIn(app, request)
      return session === undefined ? seeOther(reply, '/account') : sendPage(reply, await overview(session))
    }
  })

  handle('/account/second-factor', ['second-factor.prepare', 'password.refuse'], async (request, reply, session) => {
    const { user } = session
    const confirmed = await confirmPassword(app, request, session, formOf(request))
    if (typeof confirmed !== 'object') return overview(session, refusal(reply, confirmed, WRONG_PASSWORD))
    const secret = await transaction(app.db, async (db) => {
      await lockUser(db, user.id)
      // An active second factor can only be replaced after it was turned off with a code.
      if ((await findUser(db, user.id))?.second_factor_id !== null) return undefined
      const secret = await beginFactor(db, app.keyring, user.id)
      await recordForUser(db, request, user, 'second-factor.prepare')
      return secret
    }, request)
    return secret && confirmFactorPage(session, describeFactor(secret, user.email))
  })

  handle('/account/second-factor/confirm', ['second-factor.enroll', 'session.create', 'second-factor.refuse'],
    async (request, reply, session) => {
      const { user } = session
      const confirmed = await withAttempt(app, request, codeInSession(session, codeIn(formOf(request))),
        async (db, code) => {
          const codes = await confirmFactor(db, app.keyring, user.id, code)
          if (codes === undefined) return undefined
          await recordForUser(db, request, user, 'second-factor.enroll')
          return { codes, user: (await findUser(db, user.id))! }
        })
      // The secret is not shown again; a user who has lost it starts again with the password.
      if (typeof confirmed !== 'object') {
        return confirmFactorPage(session, undefined, refusal(reply, confirmed, WRONG_CODE))
      }
      const { codes, user: { id, name, second_factor_id, password_hash } } = confirmed.done
      await beginSession(app, request, reply, { id, name, second_factor_id, password_hash: password_hash! })
      return recoveryCodesPage(codes)
    })

  // Changing an active second factor requires a code and the password.
  handle('/account/second-factor/change', [
    'second-factor.renew_recovery_codes', 'second-factor.disable', 'second-factor.use_recovery_code',
    'password.refuse', 'second-factor.refuse'
  ], async (request, reply, session) => {
    const { user } = session
    const form = formOf(request)
    const change = form.get('change')
    if (user.second_factor_id === null || (change !== 'recovery-codes' && change !== 'disable')) return undefined
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
    return changed.done && recoveryCodesPage(changed.done)
  })

  // Handles a form of a signed-in user. If `act` returns no page, it redirects to the overview.
  function handle (
    url: string, audit: readonly EventName[],
    act: (request: FastifyRequest, reply: FastifyReply, session: SignedIn) => Promise<Page | undefined>
  ) {
    app.post(url, {
      ...FORM,
      config: { ...PAGE, limit: 'sign_in', audit },
      handler: async (request, reply) => {
        if (refusesForm(app, request, reply, formOf(request), readCookie(app, request, 'session'))) return reply
        const session = await signedIn(app, request)
        const page = session && await act(request, reply, session)
        return page === undefined ? seeOther(reply, '/account/second-factor') : sendPage(reply, page)
      }
    })
  }

  async function overview (session: SignedIn, problem?: Problem): Promise<Page> {
    return factorPage(session, await countRecoveryCodes(app.db, session.user.id), problem)
  }
}

const factorOf = ({ id: user_id, second_factor_id: id }: User) => ({ user_id, id: id! })

async function disable (db: Db, userId: number): Promise<undefined> {
  // The account's row was verified under its lock, so a missing factor means tampering.
  if (!await deleteFactor(db, userId)) tampered()
}
