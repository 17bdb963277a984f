import type { FastifyReply, FastifyRequest } from 'fastify'
import { NAME_LENGTH } from '../../../schemas/shapes.ts'
import { hashToken } from '../../crypto/bearer.ts'
import { hashPassword } from '../../crypto/passwords.ts'
import { change } from '../../changes/change.ts'
import { NOTHING } from '../../changes/steps.ts'
import type { Counter } from '../../db/rows/counter.ts'
import type { Db } from '../../db/database.ts'
import type { EndedTokens } from '../../db/callers/grants.ts'
import { personOf } from '../../http/routes/actor.ts'
import { browserOf, setCookie, visible, type Form } from '../../http/pages/pages.ts'
import type { Domain } from '../../http/routes/types.ts'
import {
  findInvitationOfLink, findInvitingOrganization, listInvitationsTo, showOwnPlaces, type OwnInvitation, type Shown
} from '../../repositories/people/invitations.ts'
import { listGrants, revokeGrantOf } from '../../repositories/people/oauth.ts'
import { systemOf, type RecordedEvent } from '../../repositories/audit/audit.ts'
import { findOrganization } from '../../repositories/levels/organizations.ts'
import { listPersonalEvents } from '../../repositories/people/personal-events.ts'
import { countWrongCode, findSignInStep, takeSignInStep } from '../../repositories/people/second-factors.ts'
import { listSessions } from '../../repositories/people/sessions.ts'
import { deleteTokens, listTokensOfPerson, lockOwnToken } from '../../repositories/people/tokens.ts'
import {
  changePassword, createUser, endEverything, findPasswordLink, findUser, findUserByEmail, listMemberships, lockUser,
  takePasswordLink
} from '../../repositories/people/users.ts'
import { canonicalEmail } from '../../rules/formats/emails.ts'
import { parseId } from '../../rules/formats/ids.ts'
import { HELD_ON_PAGE, heldFrom, heldPage, type HeldPage } from '../../rules/pagination.ts'
import {
  acceptInvitation, declineInvitation, endMembership, findGiven, JOINING, type Invitee, type Refusal
} from '../../vault/memberships.ts'
import {
  authenticate, beginSession, codeIn, codeInSession, codeOfStranger, confirmPassword, enter, formCookie, inSession,
  inSessionOf, passwordIn, problemWith, refusal, setPasswordByLink, signedIn, stepHash, withSecondFactor,
  WRONG_CODE
} from './pages/browser.ts'
import { endSession } from './console.ts'
import { linkOf, pagesOf } from './pages/page-routes.ts'
import { recordForPersonAlone } from '../../http/guard/personal-events.ts'
import { recordEndOfToken, recordForUser } from './personal-events.ts'
import {
  accountPage, changePasswordPage, codePage, joinPage, leavePage, otherAccountPage, problemPage, setPasswordPage,
  signInPage, type Problem, type SignedIn
} from './pages/views.ts'

// The longest URL that this service accepts, in characters.
const MAX_LOCATION = 8192

const WRONG = 'Wrong e-mail address or password.'
const AGAIN = 'The sign-in has expired, or there were too many wrong codes. Sign in again.'
const LAST_OWNER = 'You are the last owner of this organization. Make another member an owner first.'

const REFUSALS: Record<Refusal, string> = {
  gone: 'This invitation is no longer valid. Ask for a new one.',
  memberships_full: 'You have reached the limit of organizations. Leave an organization, then accept the invitation.',
  organization_full: 'The organization has no free seat. Ask the person who invited you to free a seat.',
  organization_inactive: 'The organization is not active. Accept the invitation when the organization is active again.',
  tokens_left: 'Your earlier API tokens of this organization are still being deleted. Try again in a moment.'
}

/** The account pages: sign-in, sign-out, passwords, invitations, sessions, tokens and applications of a user. */
export const accounts: Domain = async (app) => {
  const { showPage, showOwnPage, onForm, onOwnForm } = pagesOf(app)
  const sendsMail = app.outbox.isOpen

  onForm('/oauth/sign-in', {
    cookie: 'either', limit: 'sign_in', audit: ['session.create', 'session.refuse', 'second-factor.ask']
  }, async (request, reply, form, cookie) => {
    const [email, password, query] = [form.get('email') ?? '', form.get('password') ?? '', form.get('query') ?? '']
    const user = await authenticate(
      app, request, reply, { email: email.slice(0, 320), password: password.slice(0, 1024) }
    )
    const entered = typeof user === 'object' ? await enter(app, request, reply, user) : user
    if (entered === 'wrong' || typeof entered === 'number') {
      return signInPage({ cookie, query, email, sendsMail, ...refusal(reply, entered, WRONG) })
    }
    return entered === 'in' ? locationOf(query) : codePage({ ...entered, query })
  })

  onForm('/oauth/sign-in/code', {
    cookie: 'either',
    limit: 'sign_in',
    audit: ['session.create', 'second-factor.use_recovery_code', 'second-factor.refuse']
  }, async (request, reply, form, cookie) => {
    const [step, query] = [form.get('step') ?? '', form.get('query') ?? '']
    const hash = stepHash(step, cookie)
    const again = signInPage({ cookie, query, sendsMail, problem: AGAIN, status: 422 })
    const id = await findSignInStep(app.db, hash)
    const user = id === undefined ? undefined : await findUser(app.db, id)
    if (user?.password_hash == null) return again
    const given = await codeOfStranger(app, request, reply, user, codeIn(form))
    const factor = await withSecondFactor(app, request, given, (db) => takeSignInStep(db, hash))
    if (factor === 'wrong' && !await countWrongCode(app.db, hash)) return again
    if (typeof factor !== 'object') return codePage({ cookie, step, query, ...refusal(reply, factor, WRONG_CODE) })
    const verified = { ...user, password_hash: user.password_hash }
    const isIn = factor.done && await beginSession(app, request, reply, verified) !== 'wrong'
    return isIn ? locationOf(query) : again
  })

  showPage('/account', async (request, reply) => {
    const session = await signedIn(app, request)
    return session === undefined
      ? signInPage({ cookie: formCookie(app, request, reply), query: '', sendsMail })
      : showAccount(request, session)
  })

  onOwnForm('/account/sign-out', {
    audit: ['session.delete', 'oauth.revoke']
  }, async (request, reply, session, form) => {
    const { user, hash } = session
    await inSession(app, request, session, async (db) => {
      if (form.get('where') === 'everywhere') {
        const ended = await endEverything(db, user.id)
        await recordForUser(db, request, user, 'oauth.revoke', { everything: true }, ended)
      } else {
        await endSession(db, request, user, hash)
      }
    })
    return afterSignOut(reply)
  })

  // The form has the hash of a session of the signed-in user. Sessions of other users are not found.
  onOwnForm('/account/sessions/end', { audit: 'session.delete' }, async (request, reply, session, form) => {
    const hash = Buffer.from(idIn(form), 'base64url')
    await inSession(app, request, session, (db) => endSession(db, request, session.user, hash))
    return hash.equals(session.hash) ? afterSignOut(reply) : '/account'
  })

  function afterSignOut (reply: FastifyReply) {
    setCookie(app, reply, 'session', undefined)
    // The page of the console tells the open tabs of the console that they shall forget values, names and keys.
    return app.config.console ? '/console/?signed-out' : '/account'
  }

  // Each form has the id of a token or grant of the signed-in user. Ids of other users have no effect.
  for (const [path, { event, act }] of Object.entries({
    'tokens/end': { event: 'api-token.delete', act: endToken },
    'applications/end': { event: 'oauth.revoke', act: endApplication }
  } as const)) {
    onOwnForm(`/account/${path}`, { audit: event }, async (request, _reply, session, form) => {
      await inSession(app, request, session, (db) => act(db, request, session, idIn(form)))
      // The background cleanup deletes the tokens of a revoked grant.
      app.removals.wake()
      return '/account'
    })
  }

  const findInviter = async ({ email }: SignedIn['user'], id: string) =>
    findInvitingOrganization(app.db, email, id)

  // Each form changes the organization that `find` returns, which has invited the user or has the user as a member.
  for (const [path, { event, find, act, missing }] of Object.entries({
    'invitations/accept': {
      event: JOINING, find: findInviter, act: accept, missing: { problem: REFUSALS.gone, status: 422 }
    },
    'invitations/decline': { event: 'invitation.decline', find: findInviter, act: decline, missing: undefined },
    'organizations/leave': {
      event: 'member.delete',
      find: async ({ id: userId }: SignedIn['user'], id: string) => (await findMembership(userId, id))?.id,
      act: leave,
      missing: undefined
    }
  } as const)) {
    onOwnForm(`/account/${path}`, { audit: event }, async (request, _reply, session, form) => {
      const id = idIn(form)
      const organization = await find(session.user, id)
      const { problem } = organization === undefined
        ? { problem: missing }
        : await inSessionOf(app, request, session, organization, (db, counter) =>
          act(db, request, session, counter, id))
      // The background cleanup deletes the tokens of an ended membership.
      app.removals.wake()
      return problem === undefined ? '/account' : showAccount(request, session, problem)
    })
  }

  const findMembership = async (userId: number, id: unknown) =>
    (await listMemberships(app.db, userId)).find((one) => one.id === id)

  showOwnPage('/account/organizations/leave', async (request, _reply, session) => {
    const { id } = request.query as Record<string, unknown>
    const membership = await findMembership(session.user.id, id)
    return membership === undefined ? '/account' : leavePage(session, membership)
  })

  showOwnPage('/account/password', async (_request, _reply, session) => changePasswordPage(session))

  onOwnForm('/account/password', {
    limit: 'sign_in',
    audit: [
      'user.password', 'session.create', 'password.refuse', 'second-factor.use_recovery_code', 'second-factor.refuse'
    ]
  }, async (request, reply, session, form) => {
    const { user } = session
    const password = form.get('password') ?? ''
    const problem = problemWith(password)
    if (problem !== undefined) return changePasswordPage(session, { problem, status: 422 })
    const confirmed = await confirmPassword(app, request, session, form)
    if (typeof confirmed !== 'object') {
      return changePasswordPage(session, refusal(reply, confirmed, 'The current password is wrong.'))
    }
    const hash = await hashPassword(password, app.costs.password)
    const changed = await withSecondFactor(app, request, codeInSession(session, codeIn(form)), async (db) => {
      const ended = await changePassword(db, user.id, hash, confirmed.password_hash)
      if (ended === undefined) return false
      await recordForUser(db, request, user, 'user.password', {}, ended)
      return true
    })
    if (typeof changed !== 'object') return changePasswordPage(session, refusal(reply, changed, WRONG_CODE))
    if (changed.done) await beginSession(app, request, reply, { ...confirmed, password_hash: hash })
    return '/account'
  })

  showPage('/account/set-password/:link', async (request, reply) => {
    const link = linkOf(request)
    const user = await findPasswordLink(app.db, hashToken(link))
    return user === undefined ? EXPIRED : setPasswordPage(browserOf(app, request, reply), link, user)
  })

  onForm('/account/set-password/:link', {
    cookie: 'browser', limit: 'sign_in', audit: ['user.password', 'session.create', 'second-factor.ask']
  }, async (request, reply, form, cookie) => {
    const link = linkOf(request)
    const user = await findPasswordLink(app.db, hashToken(link))
    if (user === undefined) return EXPIRED
    // An operator chose the name of an unverified account, so the user can change the name here.
    const { password, name, problem } = passwordIn(form, user)
    if (problem !== undefined) return setPasswordPage(cookie, link, user, problem)
    const password_hash = await hashPassword(password, app.costs.password)
    const isDone = await setPasswordByLink(app, request, user, {
      take: (db) => takePasswordLink(db, hashToken(link)), password_hash, name
    })
    if (!isDone) return EXPIRED
    // The link proves only one factor. A user with a second factor must also enter a code.
    const entered = await enter(app, request, reply, { ...user, password_hash })
    return typeof entered === 'object' ? codePage({ ...entered, query: '' }) : '/account'
  })

  showPage('/account/invitation/:link', async (request, reply) => {
    const found = await findLinked(request)
    if (found === undefined) return INVITATION_GONE
    const { invitation, user } = found
    const session = await signedIn(app, request)
    const isOther = session !== undefined && canonicalEmail(session.user.email) !== canonicalEmail(invitation.email)
    if (isOther) return otherAccountPage(session, invitation)
    // A user with a password signs in and accepts on the account page: the link must not replace the sign-in.
    return hasPassword(user) ? '/account' : joinPage(browserOf(app, request, reply), linkOf(request), invitation)
  })

  onForm('/account/invitation/:link', {
    cookie: 'browser', limit: 'sign_in', audit: ['user.password', ...JOINING, 'session.create']
  }, async (request, reply, form, cookie) => {
    const found = await findLinked(request)
    if (found === undefined) return INVITATION_GONE
    const { invitation, user } = found
    if (hasPassword(user)) return '/account'
    const { password, problem, name = invitation.email.split('@')[0]!.slice(0, NAME_LENGTH) } = passwordIn(form, undefined)
    if (problem !== undefined) return joinPage(cookie, linkOf(request), invitation, problem)
    const password_hash = await hashPassword(password, app.costs.password)
    // The account may not exist yet, so the actor of the change is not the person. Each event has its own actor.
    const actor = { ...systemOf(invitation.organization_id), waited: request.waited }
    const { written: joined } = await change(app.db, actor, {
      // The invitation may have been withdrawn since the first look. Then no account may be opened.
      load: async (db, counter) => await findLinked(request, db) && counter,
      decide (counter) {
        if (counter === undefined) return NOTHING
        return {
          async write (db) {
            const opened = await openAccount(db, invitation.email, name, password_hash)
            if (opened === undefined) return undefined
            const person = { id: opened.id, name, email: invitation.email }
            // If `accept` is refused otherwise, the invitation stays open and is listed on /account.
            const { events, refusal } = await accept(db, request, { user: person }, counter, invitation.id)
            if (refusal === 'gone') throw new InvitationGone()
            const ofPassword = await recordForUser(
              db, request, person, 'user.password', {}, opened.ended, invitation.organization_id
            )
            return {
              user: { id: opened.id, name, second_factor_id: null, password_hash }, events: [...events, ...ofPassword]
            }
          },
          events: (joined) => joined?.events ?? []
        }
      }
    }).catch((error: unknown) => {
      if (error instanceof InvitationGone) return { written: undefined }
      throw error
    })
    // The invitation was withdrawn, or another request used it.
    if (joined === undefined) return INVITATION_GONE
    await beginSession(app, request, reply, joined.user)
    return '/account'
  })

  /** The open invitation of a link, and the account of the invited address. Undefined if that account is disabled. */
  async function findLinked (request: FastifyRequest, db: Db = app.db) {
    const [, organization, secret] = /^([0-9A-Z]{26})\.([A-Za-z0-9_-]{43})$/.exec(linkOf(request)) ?? []
    if (organization === undefined || secret === undefined) return undefined
    const found = await findInvitationOfLink(db, organization, hashToken(secret))
    if (found === undefined) return undefined
    if ((await findGiven(db, organization, [found])).length === 0) return undefined
    const [invitation] = await showOwnPlaces(db, [found])
    const user = await findUserByEmail(db, found.email)
    return user?.disabled_at ? undefined : { invitation: invitation!, user }
  }

  async function showAccount (request: FastifyRequest, session: SignedIn, problem?: Problem) {
    const { cookie, user, hash } = session
    const hasConsole = app.config.console
    const [memberships, invitations, sessions, tokens, applications, events] = await Promise.all([
      listMemberships(app.db, user.id), listOwnInvitations(user.email, pageIn(request, 'invitations')),
      listSessions(app.db, user.id, pageIn(request, 'sessions')),
      listTokensOfPerson(app.db, user.id, pageIn(request, 'tokens')),
      listGrants(app.db, user.id, pageIn(request, 'applications')),
      listPersonalEvents(app.db, user.id, pageIn(request, 'events'))
    ])
    return accountPage({
      cookie, user, session: hash, memberships, invitations, sessions, tokens, applications, events, problem, hasConsole
    })
  }

  async function listOwnInvitations (email: string, page: number): Promise<HeldPage<Shown<OwnInvitation>>> {
    const { rows, found } = await listInvitationsTo(app.db, email, heldFrom(page))
    const held = heldPage(await showOwnPlaces(app.db, rows), page)
    return { ...held, isLast: found <= HELD_ON_PAGE }
  }
}

const MAX_PAGES = 1_000

function pageIn ({ query }: FastifyRequest, list: string): number {
  const page = Number((query as Record<string, unknown>)[list])
  return Number.isInteger(page) && page >= 1 && page <= MAX_PAGES ? page : 1
}

const hasPassword = (user: { password_hash: string | null } | undefined): boolean => user?.password_hash != null

// Creates the account of an address, or sets the first password of an account that the operator created. Undefined if
// the account already has a password.
async function openAccount (
  db: Db, email: string, name: string, password_hash: string
): Promise<{ id: number, ended: EndedTokens[] } | undefined> {
  const made = await createUser(db, { email, name, password_hash })
  if (made !== undefined) return { id: made, ended: [] }
  const known = await findUserByEmail(db, email)
  if (known === undefined || hasPassword(known)) return undefined
  await lockUser(db, known.id)
  if (hasPassword(await findUserByEmail(db, email))) return undefined
  const ended = await changePassword(db, known.id, password_hash, undefined, name)
  return ended && { id: known.id, ended }
}

// Maximum characters of an id in a form; valid ids are shorter.
const MAX_ID_LENGTH = 64
const idIn = (form: Form) => (form.get('id') ?? '').slice(0, MAX_ID_LENGTH)

async function endToken (db: Db, request: FastifyRequest, { user }: SignedIn, id: string): Promise<undefined> {
  const token = parseId(id)
  if (token === undefined) return
  const organization = await lockOwnToken(db, user.id, token)
  if (organization === undefined) return
  await deleteTokens(db, organization, [token])
  await recordEndOfToken(db, request, user, organization, token)
}

async function endApplication (db: Db, request: FastifyRequest, { user }: SignedIn, id: string): Promise<undefined> {
  const grant = parseId(id)
  if (grant === undefined) return
  const revoked = await revokeGrantOf(db, user.id, grant)
  if (revoked === undefined) return
  await recordForUser(db, request, user, 'oauth.revoke', { grant, client: revoked.client_id }, revoked.ended)
}

/** The events of a change of an organization, or why nothing was changed. */
interface FormResult { problem?: Problem, refusal?: Refusal, events: RecordedEvent[] }

/** The invitation of a link ended in the transaction that opened the account, so that the account is undone. */
class InvitationGone extends Error {}

const refused = (problem: string): FormResult => ({ problem: { problem, status: 422 }, events: [] })

async function accept (
  db: Db, request: FastifyRequest, { user: person }: { user: Invitee }, counter: Counter, id: string
): Promise<FormResult> {
  const accepted = await acceptInvitation(db, counter, id, person)
  if (typeof accepted === 'string') return { ...refused(REFUSALS[accepted]), refusal: accepted }
  const { organization_id } = counter
  await recordForPersonAlone(db, request, person, 'member.join', await nameOfOrganization(db, organization_id))
  const actor = personOf(request, organization_id, person)
  return { events: accepted.events.map((event) => ({ actor, event })) }
}

async function decline (
  db: Db, request: FastifyRequest, { user }: SignedIn, { organization_id }: Counter, id: string
): Promise<FormResult> {
  const declined = await declineInvitation(db, organization_id, id, user)
  if (declined === undefined) return { events: [] }
  await recordForPersonAlone(db, request, user, 'invitation.decline', await nameOfOrganization(db, organization_id))
  return { events: [declined] }
}

async function leave (
  db: Db, request: FastifyRequest, { user }: SignedIn, { organization_id }: Counter
): Promise<FormResult> {
  const ended = await endMembership(db, personOf(request, organization_id, user), user.id)
  if (ended === 'none') return { events: [] }
  return ended === 'last_owner' ? refused(LAST_OWNER) : ended
}

async function nameOfOrganization (db: Db, id: string): Promise<{ organization: string }> {
  return { organization: (await findOrganization(db, id))?.name ?? id }
}

// The path is fixed and the form provides only the query (OA-26), which prevents open redirects.
function locationOf (query: string): string {
  const location = `/oauth/authorize?${visible(query)}`
  return query === '' || location.length > MAX_LOCATION ? '/account' : location
}

const INVITATION_GONE = problemPage(404, 'This invitation is not valid', REFUSALS.gone)

const EXPIRED = problemPage(
  404, 'This link is not valid', 'It was already used, or it is older than three days. Ask for a new link.'
)
