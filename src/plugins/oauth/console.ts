import { Type } from '@sinclair/typebox'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { CONSOLE_CLIENT, isPrivileged, PRIVILEGED_SECONDS } from '../../../schemas/console.ts'
import { LIFETIMES } from '../../../schemas/oauth.ts'
import { SCOPE_NAMES, type Scope } from '../../../schemas/scopes.ts'
import { hashToken, isCredential, mintCredential } from '../../crypto/bearer.ts'
import { endConsole } from '../../db/callers/console-tokens.ts'
import { transaction } from '../../changes/transaction.ts'
import type { Db } from '../../db/database.ts'
import type { Person } from '../../http/guard/personal-events.ts'
import { grantTo, recordForUser } from './personal-events.ts'
import { formOf, isOwnPage, sendPage, setCookie } from '../../http/pages/pages.ts'
import type { Domain } from '../../http/routes/types.ts'
import { createCode, findUserOfToken, renewGrant } from '../../repositories/people/oauth.ts'
import { deleteSession, SESSION_SECONDS } from '../../repositories/people/sessions.ts'
import { lockUser } from '../../repositories/people/users.ts'
import { inSession, SessionEnded, signedIn } from './pages/browser.ts'
import { problemPage, type SignedIn } from './pages/views.ts'

// The OAuth client of the console has no consent page and no refresh tokens. Tokens with privileged scopes expire
// sooner than other access tokens (decision 0070).

/** The lifetime of an access token. The console gets no refresh token, but a new code through the browser session. */
export const lifetimeOf = (client: string, scopes: readonly string[]) => client === CONSOLE_CLIENT
  ? { seconds: scopes.some(isPrivileged) ? PRIVILEGED_SECONDS : LIFETIMES.access, isRefreshable: false }
  : { seconds: LIFETIMES.access, isRefreshable: true }

interface RequestOfConsole { redirect_uri: string, code_challenge: string, scopes: readonly Scope[] }

/**
 * Whether a page of another site opened the authorization request in this browser. Such a request gets no code, because
 * the console has no consent page to refuse it. Over http to another machine, browsers do not send `Sec-Fetch-Site`, so
 * the request is accepted.
 */
export const isForeign = ({ headers }: FastifyRequest): boolean =>
  !['same-origin', 'none', undefined].includes(headers['sec-fetch-site'] as string | undefined)

/** Whether a session lasts as long as a token that the console gets now. `age`: the seconds since the sign-in. */
export const outlastsToken = ({ age }: SignedIn): boolean => age + LIFETIMES.code + LIFETIMES.access < SESSION_SECONDS

/**
 * Creates a code for the console; undefined if the session has ended. All sign-ins of a person use the same two grants,
 * for daily work and for privileged scopes: a new grant adds a row to the account page, and revoking an old grant ends
 * the API tokens that were created with it.
 */
export async function codeForConsole (
  app: FastifyInstance, request: FastifyRequest, session: SignedIn,
  { redirect_uri, code_challenge, scopes: requested }: RequestOfConsole
): Promise<string | undefined> {
  const code = mintCredential('ac')
  const scopes = SCOPE_NAMES.filter((scope) => requested.includes(scope))
  const isDaily = !scopes.some(isPrivileged)
  const granted = SCOPE_NAMES.filter((scope) => !isDaily || !isPrivileged(scope))
  try {
    await inSession(app, request, session, async (db) => {
      const grant_id = await renewGrant(db, { ...ownerOf(session.user.id), scopes: granted }) ??
        await grantTo(db, request, session.user, { client: CONSOLE_CLIENT, scopes: granted })
      await createCode(db, { code_hash: hashToken(code), grant_id, redirect_uri, code_challenge, scopes })
    })
    return code
  } catch (error) {
    if (error instanceof SessionEnded) return undefined
    throw error
  }
}

const ownerOf = (user_id: number) => ({ user_id, client_id: CONSOLE_CLIENT })

/** Ends a session of a user. Consoles in other browsers get new tokens. */
export async function endSession (db: Db, request: FastifyRequest, user: Person, hash: Buffer): Promise<void> {
  if (!await deleteSession(db, hash, user.id)) return
  await recordForUser(db, request, user, 'session.delete')
}

const FORBIDDEN = problemPage(403, 'This request is not valid', 'The console in this browser did not send it.')

/** Signs a person out of the console. The token in the form proves that the console sent the form. */
export const signOut: Domain = async (app) => {
  app.post('/sign-out', {
    config: { access: 'public', audit: 'session.delete', responseFormat: 'html' },
    schema: { hide: true, body: Type.Unknown() },
    validatorCompiler: () => () => true,
    handler: async (request, reply) => {
      const token = formOf(request).get('token') ?? ''
      const user_id = isOwnPage(app, request) && isCredential('at', token)
        ? await findUserOfToken(app.db, hashToken(token), CONSOLE_CLIENT)
        : undefined
      if (user_id === undefined) return sendPage(reply, FORBIDDEN)
      const session = await signedIn(app, request)
      // The person's session has ended: this browser has no session, or another person has signed in meanwhile.
      if (session?.user.id !== user_id) {
        await transaction(app.db, async (db) => {
          await lockUser(db, user_id)
          await endConsole(db, user_id)
        }, request)
      }
      if (session !== undefined) {
        await transaction(app.db, async (db) => {
          await lockUser(db, session.user.id)
          await endSession(db, request, session.user, session.hash)
        }, request)
      }
      setCookie(app, reply, 'session', undefined)
      // Does not list "cookies": this deletes the cookies of all services of the domain, and the `device` cookie.
      return reply.code(204).header('clear-site-data', '"cache", "storage"').send()
    }
  })
}
