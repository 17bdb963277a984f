import { Type } from '@sinclair/typebox'
import type { FastifyContextConfig, FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { isLoopback, isOpenInsecurely } from '../../../config.ts'
import { formOf, isOwnForm, readCookie, seeOther, sendPage, type Form, type Page } from '../../../http/pages/pages.ts'
import { formCookie, SessionEnded, signedIn } from './browser.ts'
import { problemPage, type SignedIn } from './views.ts'

/** The page to show, or the path or URL of the page to redirect to. */
export type Next = Page | string

type Show<More extends unknown[]> = (request: FastifyRequest, reply: FastifyReply, ...more: More) => Promise<Next>
type FormConfig = Pick<FastifyContextConfig, 'audit' | 'limit'>

const CONFIG = { access: 'public', responseFormat: 'html' } as const

const NOT_OWN_FORM = problemPage(
  403, 'This form is not valid', 'It is too old, or it was not sent by this site in this browser. Reload the page and try again.'
)

const INSECURE = problemPage(
  403, 'Sign in over https, or from this machine',
  'Your browser uses this address without encryption, so others on the network could read your password. ' +
  'Use the https address of this service. On the machine that runs the service, http://127.0.0.1 or localhost works too.'
)

// Whether a browser on another machine uses http, which sends passwords unencrypted. Browsers send `Sec-Fetch-Site`
// only over https and to their own machine. Without this header, `isOwnForm` refuses a form, but the password was
// already sent.
function isInsecure (app: FastifyInstance, { headers, protocol, hostname }: FastifyRequest): boolean {
  return isOpenInsecurely(app.config) && headers['sec-fetch-site'] === undefined && protocol === 'http' &&
    !isLoopback(hostname)
}

/** Functions that add pages and forms. Without a session, `showOwnPage` and `onOwnForm` respond with `signedOut`. */
export function pagesOf (app: FastifyInstance, signedOut: Next = '/account') {
  function showPage (url: string, show: Show<[]>) {
    app.get(url, {
      schema: { hide: true },
      config: CONFIG,
      handler: async (request, reply) => answer(reply, isInsecure(app, request) ? INSECURE : await show(request, reply))
    })
  }

  // A form is bound to a cookie of the browser, so that other sites cannot send the form.
  function onForm (
    url: string, { cookie: name, ...config }: FormConfig & { cookie: 'session' | 'browser' | 'either' },
    act: Show<[Form, string]>
  ) {
    app.post(url, {
      schema: { hide: true, body: Type.Unknown() },
      validatorCompiler: () => () => true,
      config: { ...CONFIG, ...config },
      handler: async (request, reply) => {
        if (isInsecure(app, request)) return answer(reply, INSECURE)
        const cookie = name === 'either' ? formCookie(app, request, reply) : readCookie(app, request, name)
        const form = formOf(request)
        const isOwn = cookie !== undefined && isOwnForm(app, request, form, cookie)
        return answer(reply, isOwn ? await act(request, reply, form, cookie) : NOT_OWN_FORM)
      }
    })
  }

  return {
    showPage,
    onForm,
    /** A page of the signed-in user. */
    showOwnPage (url: string, show: Show<[SignedIn]>) {
      showPage(url, async (request, reply) => {
        const session = await signedIn(app, request)
        return session === undefined ? signedOut : show(request, reply, session)
      })
    },
    /** A form of the signed-in user. Also responds with `signedOut` if the session ends during the request. */
    onOwnForm (url: string, config: FormConfig, act: Show<[SignedIn, Form]>) {
      onForm(url, { ...config, cookie: 'session' }, async (request, reply, form) => {
        const session = await signedIn(app, request)
        if (session === undefined) return signedOut
        return act(request, reply, session, form).catch((error: unknown) => {
          if (error instanceof SessionEnded) return signedOut
          throw error
        })
      })
    }
  }
}

/** The secret of a mailed link. The request log contains only the pattern of the path (`:link`). */
export const linkOf = ({ params }: FastifyRequest): string => (params as { link: string }).link

const answer = (reply: FastifyReply, next: Next) =>
  typeof next === 'string' ? seeOther(reply, next) : sendPage(reply, next)
