import { OAUTH_ERRORS, type OAuthErrorCode } from '../../../schemas/oauth.ts'
import type { Scope } from '../../../schemas/scopes.ts'
import { hashToken, mintCredential, mintSecret } from '../../crypto/bearer.ts'
import type { Db } from '../../db/database.ts'
import { valuesOf } from '../../http/pages/pages.ts'
import type { Domain } from '../../http/routes/types.ts'
import {
  createCode, createRequest, findClient, findRequest, revokeExcessGrants, takeRequest, type Client, type PendingRequest
} from '../../repositories/people/oauth.ts'
import { listRolesInTeams } from '../../repositories/people/teams.ts'
import { listMemberships } from '../../repositories/people/users.ts'
import { CONSOLE_CLIENT } from '../../../schemas/console.ts'
import {
  continued, isRecent, validateAuthorization, namedClient, returnUrl, type Parameters, type ReturnAddress
} from '../../rules/authorization.ts'
import { destinationOf, formTarget } from '../../rules/redirects.ts'
import { grantableScopes, grantsEverything, readsOnly } from '../../rules/roles.ts'
import { codeIn, codeInSession, formCookie, inSession, refusal, signedIn, withSecondFactor, WRONG_CODE } from './pages/browser.ts'
import { enabledClient } from './client.ts'
import { codeForConsole, isForeign, outlastsToken } from './console.ts'
import { grantTo } from './personal-events.ts'
import { pagesOf } from './pages/page-routes.ts'
import { consentPage, problemPage, signInPage, type Problem, type SignedIn } from './pages/views.ts'

/** The authorization endpoint (RFC 6749, 4.1.1): sign-in, consent, and redirect with a code. */
export const authorize: Domain = async (app) => {
  const { showPage, onOwnForm } = pagesOf(app, STALE)

  showPage('/authorize', async (request, reply) => {
    const query = request.raw.url?.split('?').slice(1).join('?') ?? ''
    const parameters = parametersOf(query)
    const id = namedClient(parameters)
    const client = id === undefined ? undefined : await enabledClient(app, id)
    const validated = validateAuthorization(parameters, client, app.issuer())
    if ('page' in validated) return problemPage(400, 'This request is not valid', validated.page)
    if ('error' in validated) return returnUrl(validated.to, app.issuer(), errorOf(validated.error, validated.description))
    const { client_id, redirect_uri, state, code_challenge, freshness } = validated.request
    // Another site opened this request: redirects without a code. The console then sends a request from its own page.
    if (client_id === CONSOLE_CLIENT && isForeign(request)) return redirect_uri
    const to = { redirect_uri, state }
    const session = await signedIn(app, request)
    const signIn = () => freshness.prompt === 'none'
      ? returnUrl(to, app.issuer(), errorOf('login_required'))
      : signInPage({
        cookie: formCookie(app, request, reply),
        query: continued(query, freshness),
        client: client!.name,
        sendsMail: app.outbox.isOpen,
        ...(session && { email: session.user.email })
      })
    if (session === undefined || !isRecent(session.age, freshness)) return signIn()
    if (client_id === CONSOLE_CLIENT) {
      const code = outlastsToken(session)
        ? await codeForConsole(app, request, session, validated.request)
        : undefined
      return code === undefined ? signIn() : returnUrl(to, app.issuer(), { code })
    }
    const memberships = await listMemberships(app.db, session.user.id)
    // Offers only scopes that the roles of the user include.
    const grantable = grantableScopes({
      organizations: memberships.map(({ role }) => role), teams: await listRolesInTeams(app.lists, session.user.id)
    })
    const scopes = validated.request.scopes.filter((scope) => grantable.has(scope))
    const pending = mintSecret()
    const isCreated = await createRequest(
      app.db, hashToken(pending), session.hash,
      { client_id, redirect_uri, state: state ?? null, code_challenge, scopes }
    )
    return isCreated
      ? consentPage({ ...consentOf(session, pending, client!, redirect_uri), memberships, scopes, chosen: scopes })
      : signIn()
  })

  onOwnForm('/authorize/decision', {
    audit: ['oauth.grant', 'oauth.revoke', 'second-factor.use_recovery_code', 'second-factor.refuse']
  }, async (request, reply, session, form) => {
    const pending = form.get('request') ?? ''
    const chosen = new Set(valuesOf(request, 'scope'))
    const code = mintCredential('ac')
    const shown = await findRequest(app.db, hashToken(pending), session.hash, session.user.id)
    if (shown === undefined) return STALE
    // Shows the consent page of the same request again.
    const showAgain = async (ticked: readonly Scope[], problem?: Problem) => {
      const client = await enabledClient(app, shown.client_id)
      return client === undefined
        ? STALE
        : consentPage({
          ...consentOf(session, pending, client, shown.redirect_uri),
          memberships: await listMemberships(app.db, session.user.id),
          scopes: shown.scopes as Scope[],
          chosen: ticked,
          ...(problem !== undefined && { problem })
        })
    }
    const select = form.get('select')
    if (select === 'reads' || select === 'none') {
      return showAgain((shown.scopes as Scope[]).filter((scope) => select === 'reads' && readsOnly(scope)))
    }
    const needsFactor = form.get('decision') === 'allow' && grantsEverything(allowedOf(shown, chosen))
    const decided = needsFactor
      ? await withSecondFactor(app, request, codeInSession(session, codeIn(form)), decide)
      : { done: await inSession(app, request, session, decide) }
    if (typeof decided !== 'object') {
      return showAgain(allowedOf(shown, chosen), refusal(reply, decided, WRONG_CODE))
    }
    if (decided.done === undefined) return STALE
    const { to, issued } = decided.done
    return returnUrl(to, app.issuer(), issued === undefined ? errorOf('access_denied') : { code: issued })

    async function decide (db: Db): Promise<{ to: ReturnAddress, issued?: string } | undefined> {
      const taken = await takeRequest(db, hashToken(pending), session.hash, session.user.id)
      // Never redirects to a client that was disabled after the consent page was shown.
      if (taken === undefined || await findClient(db, taken.client_id) === undefined) return undefined
      const to = { redirect_uri: taken.redirect_uri, state: taken.state ?? undefined }
      if (form.get('decision') !== 'allow') return { to }
      // Grants the ticked scopes that were offered; ignores other scopes in the form.
      const scopes = allowedOf(taken, chosen)
      const excess = await revokeExcessGrants(db, { user_id: session.user.id, client_id: taken.client_id })
      const grant_id = await grantTo(db, request, session.user, { client: taken.client_id, scopes }, excess)
      await createCode(db, {
        code_hash: hashToken(code), grant_id, redirect_uri: taken.redirect_uri, code_challenge: taken.code_challenge
      })
      return { to, issued: code }
    }
  })
}

const STALE = problemPage(
  400, 'This request is not valid',
  'It was already answered, or it is older than ten minutes. Start again from the application.'
)

const errorOf = (error: OAuthErrorCode, description: string = OAUTH_ERRORS[error].description) =>
  ({ error, error_description: description })

const allowedOf = ({ scopes }: PendingRequest, chosen: ReadonlySet<string>) =>
  scopes.filter((scope) => chosen.has(scope)) as Scope[]

/** The properties of a consent page that describe the user and the client. */
const consentOf = (session: SignedIn, request: string, client: Client, redirectUri: string) => ({
  session,
  request,
  client: { name: client.name, isFirstParty: client.is_first_party },
  redirectHost: destinationOf(redirectUri),
  formTarget: formTarget(redirectUri)
})

/** All values of all parameters. Invalid UTF-8 and NUL are replaced by U+FFFD, because PostgreSQL rejects them. */
function parametersOf (query: string): Parameters {
  const parameters = new Map<string, string[]>()
  for (const [name, value] of new URLSearchParams(query)) {
    parameters.set(name, [...parameters.get(name) ?? [], value.replaceAll('\0', '\ufffd')])
  }
  return parameters
}
