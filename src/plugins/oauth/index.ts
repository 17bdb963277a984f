import type { FastifyError } from 'fastify'
import { ERRORS, messageOf } from '../../../schemas/errors.ts'
import { sendError, toApiError } from '../../http/responses/error-responses.ts'
import { installCookies, installForms, sendPage } from '../../http/pages/pages.ts'
import type { Domain } from '../../http/routes/types.ts'
import { databaseError } from '../../db/database.ts'
import { accounts } from './accounts.ts'
import { authorize } from './authorize.ts'
import { installOAuthBodies } from './body.ts'
import { signOut } from './console.ts'
import { OAuthError, sendOAuthError, toOAuthError } from './oauth-errors.ts'
import { metadata } from './metadata.ts'
import { passwordReset } from './password-reset.ts'
import { revoke } from './revoke.ts'
import { secondFactor } from './second-factor.ts'
import { token } from './token.ts'
import { problemPage } from './pages/views.ts'

/** OAuth 2.0 with PKCE, and the account pages. The endpoints send OAuth errors, the pages send HTML. */
export const oauth: Domain = async (app) => {
  app.decorateRequest('hasLateEvents', false)
  app.decorateRequest('hasEnded', false)
  // At `onResponse` the transaction has committed, so the background jobs see its rows.
  app.addHook('onResponse', async (request) => {
    if (request.hasLateEvents) app.lateEvents.wake()
    if (request.hasEnded) app.removals.wake()
  })

  await app.register(async (endpoints) => {
    await installOAuthBodies(endpoints)
    endpoints.setErrorHandler(async (error: FastifyError | OAuthError, request, reply) => {
      if (error instanceof OAuthError) return sendOAuthError(reply, error)
      const known = toApiError(error)
      const { code } = known
      // An unknown path is not an OAuth endpoint, so its error has the API's format.
      if (code === 'not_found') return sendError(request, reply, known)
      request.errorCode = code
      if (ERRORS[code].status >= 500) {
        request.log.error({ err: databaseError(error), error_code: code }, 'request failed')
      }
      return sendOAuthError(reply, toOAuthError(known))
    })
    endpoints.setNotFoundHandler(async (request, reply) => app.refuseRoute(request, reply))
    await endpoints.register(token)
    await endpoints.register(revoke)
  }, { prefix: '/api/oauth' })

  await app.register(async (pages) => {
    await installCookies(pages)
    await installForms(pages)
    // Pages never allow CORS, not even for the origins that may call the API (OA-22): preflights get 405.
    pages.addHook('onRoute', (route) => { Object.assign(route.config ??= {}, { cors: false }) })
    for (const url of ['/oauth/*', '/account', '/account/*']) {
      pages.options(url, {
        config: { access: 'public', audit: 'none', responseFormat: 'html' },
        schema: { hide: true },
        handler: async (request, reply) => app.refuseRoute(request, reply)
      })
    }
    pages.setErrorHandler(async (error: FastifyError, request, reply) => {
      const { code, details } = toApiError(error)
      request.errorCode = code
      const { status } = ERRORS[code]
      if (status >= 500) request.log.error({ err: databaseError(error), error_code: code }, 'request failed')
      return sendPage(reply, problemPage(status, status === 429 ? 'Too many requests' : 'The request failed', messageOf(code, details)))
    })
    await pages.register(authorize, { prefix: '/oauth' })
    if (app.config.console) await pages.register(signOut, { prefix: '/oauth' })
    await pages.register(accounts)
    await pages.register(secondFactor)
    await pages.register(passwordReset)
  })

  await app.register(metadata)
}
