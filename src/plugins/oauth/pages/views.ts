import type { EventName } from '../../../../schemas/events.ts'
import { SCOPE_RESOURCES, SCOPES, type Scope } from '../../../../schemas/scopes.ts'
import { NAME_LENGTH } from '../../../../schemas/shapes.ts'
import { PASSWORD, type Role } from '../../../../schemas/users.ts'
import { formField, qrCode, type Page } from '../../../http/pages/pages.ts'
import type { Application } from '../../../repositories/people/oauth.ts'
import type { OwnInvitation, Shown } from '../../../repositories/people/invitations.ts'
import type { PersonalEvent } from '../../../repositories/people/personal-events.ts'
import type { Session, SessionClient } from '../../../repositories/people/sessions.ts'
import type { OwnToken } from '../../../repositories/people/tokens.ts'
import type { Membership, User } from '../../../repositories/people/users.ts'
import { html, type Html } from '../../../rules/formats/html.ts'
import { counted, inviterOf } from '../../../rules/formats/phrases.ts'
import { describeUserAgent } from '../../../rules/formats/user-agents.ts'
import type { HeldPage } from '../../../rules/pagination.ts'
import { grantsEverything, readsOnly } from '../../../rules/roles.ts'

// Each function renders a page; the routes check access.

/**
 * The signed-in user of this browser, with the session cookie, the hash of the cookie, and the seconds since the
 * sign-in.
 */
export interface SignedIn { cookie: string, hash: Buffer, user: User, age: number }

/** A message above a rejected form, and the status of the page. */
export interface Problem { problem: string, status: number }

/** A page whose heading is its title. */
const titled = (title: string, body: Html, status = 200): Page =>
  ({ title, status, body: html`<h1>${title}</h1>\n${body}` })

/** A form, bound to a cookie. `buttons`: the label of the only one, or several. */
function formTo (action: string, cookie: string, fields: Html | undefined, buttons: Html | string): Html {
  const main = typeof buttons === 'string' ? html`<button class="main" type="submit">${buttons}</button>` : buttons
  return html`<form method="post" action="${action}">
${formField(cookie)}${fields && html`\n${fields}`}
<div class="actions">${main}</div>
</form>`
}

export interface SignIn {
  /** The cookie to which the form is bound. */
  cookie: string
  /** The query of the authorization request to continue. If it is empty, the account page follows. */
  query: string
  email?: string
  problem?: string
  client?: string | undefined
  status?: number
  /** Whether the service can mail a link to reset the password. */
  sendsMail: boolean
}

export function signInPage (
  { cookie, query, email = '', problem, client, status = 200, sendsMail }: SignIn
): Page {
  return titled('Sign in', html`${client === undefined ? '' : html`<p>to continue to <strong>${client}</strong></p>`}
${problemOf(problem)}
${formTo('/oauth/sign-in', cookie, html`<input type="hidden" name="query" value="${query}">
<label for="email">E-mail address</label>
<input id="email" name="email" type="email" autocomplete="username" required maxlength="320" value="${email}"${describedBy(problem)}${autofocus(email === '')}>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required maxlength="${PASSWORD.maxBytes}"${describedBy(problem)}${autofocus(email !== '')}>`, 'Sign in')}
${sendsMail
    ? html`<p><a href="/account/forgot-password">Forgot your password?</a></p>`
    : html`<p class="soft">Forgot your password? ${ASK_OPERATOR}</p>`}`, status)
}

const ASK_OPERATOR = 'Ask the operator of this service for a link to set a new one. The operator makes it with the command: npm run -s cli -- user password --email ADDRESS'

/** Shown if the service cannot mail a link to reset a password. */
export const noResetPage = (): Page => problemPage(404, 'This service sends no e-mail', ASK_OPERATOR)

/** Asks for the address to which a link to reset the password is mailed. */
export function forgotPasswordPage (
  { cookie, email = '', problem, status = 200 }: { cookie: string, email?: string } & Partial<Problem>
): Page {
  return titled('Forgot your password?', html`<p>Enter the e-mail address of your account. You get an e-mail with a link to set a new password.</p>
${problemOf(problem)}
${formTo('/account/forgot-password', cookie, html`<label for="email">E-mail address</label>
<input id="email" name="email" type="email" autocomplete="username" required maxlength="320" value="${email}"${describedBy(problem)} autofocus>`, 'Send the link')}
<p><a href="/account">Back to sign-in</a></p>`, status)
}

/** Shown for every address that requests a link, so the page does not reveal whether the address has an account. */
export function linkSentPage (email: string, minutes: number): Page {
  return titled('Look into your mailbox', html`<p>If <strong>${email}</strong> is the address of an account, we have sent an e-mail with a link to it. The link works once, within ${minutes} minutes. Earlier links no longer work.</p>
<p class="soft">If no e-mail arrives, look for it in the spam folder, and check the address. Otherwise ask the operator of this service.</p>
<p><a href="/account">Back to sign-in</a></p>`)
}

/** The form of a mailed reset link. */
export function resetPasswordPage (cookie: string, link: string, user: User, problem?: string): Page {
  return titled('Set a new password', html`<p>Applications lose their access until you allow them again. A second factor stays.</p>
${problemOf(problem)}
${formTo(`/account/reset-password/${link}`, cookie, html`${passwordOf(user, problem)}
<div class="choices"><label><input type="checkbox" name="end_sessions" value="yes" checked> <span>End all other sessions</span></label></div>`, 'Set the password')}`, statusOf(problem))
}

/** Shown after a reset, which starts no session. */
export function passwordResetPage (keepsSessions: boolean): Page {
  return titled('Your password was changed', html`<p>${keepsSessions ? 'Browsers that were signed in stay signed in.' : 'All browsers were signed out.'} Sign in with the new password and, if your account has a second factor, with a code.</p>
<p><a href="/account">Sign in</a></p>`)
}

export interface SecondStep {
  /** The cookie to which the form is bound. */
  cookie: string
  /** Identifies the sign-in that waits for the code. */
  step: string
  /** The query of the authorization request to continue. If it is empty, the account page follows. */
  query: string
  problem?: string
  status?: number
}

export function codePage ({ cookie, step, query, problem, status = 200 }: SecondStep): Page {
  return titled('Enter a code', html`<p>Your account has a second factor. Open your authenticator app, and enter the code that it shows for Strongroom.</p>
${problemOf(problem)}
${formTo('/oauth/sign-in/code', cookie, html`<input type="hidden" name="step" value="${step}">
<input type="hidden" name="query" value="${query}">
${codeField(problem, { isFirst: true })}`, 'Continue')}
<p class="soft">If you have lost both, ask the operator of this service to remove your second factor.</p>`, status)
}

export interface Consent {
  /** The user who decides. */
  session: SignedIn
  request: string
  client: { name: string, isFirstParty: boolean }
  redirectHost: string
  memberships: readonly Membership[]
  /** Scopes that the client requests and the user can grant. */
  scopes: readonly Scope[]
  /** Ticked scopes. */
  chosen: readonly Scope[]
  formTarget: string
  problem?: Problem
}

export function consentPage ({
  session: { cookie, user }, request, client, redirectHost, memberships, scopes, chosen, formTarget, problem
}: Consent): Page {
  return {
    title: 'Allow access',
    ...(problem && { status: problem.status }),
    formTargets: [formTarget],
    body: html`<h1>Allow ${client.name} to act for you?</h1>
<p class="soft">Signed in as ${user.name}, ${user.email}.</p>
${client.isFirstParty
    ? ''
    : html`<p class="notice"><strong>This application is not part of Strongroom.</strong> Continue only if you know it and started this yourself.</p>`}
<dl>
<dt>Redirects to</dt><dd>${redirectHost}</dd>
<dt>Can act in</dt>${organizationsOf(memberships, 'no organization yet')}
</dl>
${problemOf(problem?.problem)}
<form method="post" action="/oauth/authorize/decision">
${NO_DEFAULT}
${formField(cookie)}
<input type="hidden" name="request" value="${request}">
${scopes.length === 0
    ? html`<p>It requests no permissions. It can see only your account, your organizations and the invitations to you.</p>`
    : html`<h2>It requests permission to</h2>
<p class="soft">Deselect permissions that it does not need. Without permissions it can see only your account, your organizations and the invitations to you. It never gets more permissions than your role in an organization, or your team's role in a project, has.</p>
${scopes.some(readsOnly) && !scopes.every(readsOnly)
    ? html`<div class="actions">
<button type="submit" name="select" value="reads">Read only</button>
<button type="submit" name="select" value="none">Deselect all</button>
</div>
`
    : ''}${Object.entries(SCOPE_RESOURCES).map(([resource, { heading }]) => choicesOf(heading, scopes.filter((scope) => scope.startsWith(`${resource}:`)), chosen))}`}
${user.second_factor_id !== null && grantsEverything(scopes)
    ? html`<p>To allow all permissions, enter a code, too.</p>
${codeField(problem?.problem, { isOptional: true })}`
    : ''}
<div class="actions">
<button class="main" type="submit" name="decision" value="allow">Allow</button>
<button type="submit" name="decision" value="deny">Deny</button>
</div>
</form>`
  }
}

const choicesOf = (name: string, scopes: readonly Scope[], chosen: readonly Scope[]): Html => scopes.length === 0
  ? html``
  : html`<fieldset>
<legend><h3>${name}</h3></legend>
<div class="choices">
${scopes.map((scope) => html`<label><input type="checkbox" name="scope" value="${scope}"${chosen.includes(scope) ? ' checked' : ''}> <span>${SCOPES[scope]} <code>${scope}</code></span></label>
`)}</div>
</fieldset>
`

// Enter in an input activates the first submit button of a form (implicit submission). This hidden button comes first,
// so that Enter does not activate "Allow". The button has no effect outside of a dialog. It is not `disabled`, because
// Chromium skips disabled buttons.
const NO_DEFAULT = html`<button type="submit" formmethod="dialog" hidden></button>`

/** Shown to an invited person without an account: the form creates the account and accepts the invitation. */
export function joinPage (
  cookie: string, link: string, { email, invited_by, organization, ...roles }: Shown<OwnInvitation>, problem?: string
): Page {
  return {
    title: 'Accept an invitation',
    status: statusOf(problem),
    body: html`<h1>Join ${organization.name}?</h1>
<p>You are invited to the organization <strong>${organization.name}</strong>, as ${rolesOf(roles)}, by ${inviterOf(invited_by)}. To accept, enter your name and a password for a new account. To decline, close this page.</p>
<p class="soft">${seenAfterAcceptance('The organization')}</p>
${problemOf(problem)}
${formTo(`/account/invitation/${link}`, cookie, html`${addressOf(email)}
${ownName('')}
${newPassword(problem)}`, 'Create account and accept')}`
  }
}

/** Shown to a user whose account has another address than the invitation. */
export function otherAccountPage ({ cookie, user }: SignedIn, { email, organization }: Pick<OwnInvitation, 'email' | 'organization'>): Page {
  return titled('This invitation is for another address', html`<p role="alert">You are signed in as ${user.email}, but ${organization.name} invited ${email}. Sign out, then open the link again.</p>
${formTo('/account/sign-out', cookie, undefined, SIGN_OUT)}`, 403)
}

const SIGN_OUT = html`<button type="submit" name="where" value="here">Sign out</button>`

/** An error page without links or buttons. */
export function problemPage (status: number, title: string, sentence: string): Page {
  return titled(title, html`<p role="alert">${sentence}</p>
<p class="soft">You can close this page, or go back and try again.</p>`, status)
}

export interface Account {
  /** The session cookie, to which the forms are bound. */
  cookie: string
  user: User
  hasConsole: boolean
  /** The hash of the current session. */
  session: Buffer
  memberships: readonly Membership[]
  invitations: HeldPage<Shown<OwnInvitation>>
  sessions: HeldPage<Session>
  tokens: HeldPage<OwnToken>
  applications: HeldPage<Application>
  events: HeldPage<PersonalEvent & { occurred_at: Date }>
  problem?: Problem | undefined
}

export function accountPage ({
  cookie, user, hasConsole, session, memberships, invitations, sessions, tokens, applications, events, problem
}: Account): Page {
  return titled('Your account', html`${problemOf(problem?.problem)}
${invitations.page === 1 && invitations.isLast && invitations.rows.length === 0
    ? ''
    : html`<h2>Invitations</h2>
<details><summary>What does an organization see of you?</summary>
<p class="soft">${seenAfterAcceptance('An organization')} If you decline, the organization sees that the invited address declined.</p>
</details>
${heldOf(cookie, 'invitations', invitations.rows.map(({ id, organization, invited_by, expires_at, ...roles }) => ({
    id,
    title: organization.name,
    text: html`as ${rolesOf(roles)}, invited by ${inviterOf(invited_by)}, valid until ${dayOf(expires_at)}`
  })), { accept: 'Accept', decline: 'Decline' })}
${pagesOf('invitations', invitations)}`}
${hasConsole ? html`<p><a href="/console/">Open the console</a></p>` : ''}
<dl>
<dt>Name</dt><dd>${user.name}</dd>
<dt>E-mail address</dt><dd>${user.email}</dd>
<dt>Second factor</dt><dd>${user.second_factor_id === null ? 'off: the password alone signs you in' : 'on: each sign-in needs a code, too'}</dd>
</dl>
<p class="soft">${IN_UTC}</p>
<p><a href="/account/password">Change the password</a><br>
<a href="/account/second-factor">${user.second_factor_id === null ? 'Set up a second factor' : 'Change the second factor'}</a></p>
${formTo('/account/sign-out', cookie, undefined, html`
${SIGN_OUT}
<button type="submit" name="where" value="everywhere">Sign out everywhere</button>
`)}
<h2>Organizations</h2>
${heldOf(cookie, 'organizations', memberships.map(({ id, name, slug, role }) => ({
    id,
    title: name,
    text: html`Your role: ${ROLE_NAMES[role]}${hasConsole ? html`, <a href="/console/${slug}">open in the console</a>` : ''}`
  })), { leave: 'Leave' }, 'get')}
<h2>Where you are signed in</h2>
${heldOf(cookie, 'sessions', sessions.rows.map(({ token_hash, created_at, seen_at, network, ...program }) => ({
    id: token_hash.toString('base64url'),
    title: describeProgram(program),
    text: html`${networkOf(network)}, since ${momentOf(created_at)}, last used ${momentOf(seen_at)}${token_hash.equals(session) ? ' (this browser)' : ''}`
  })))}
${pagesOf('sessions', sessions)}
<h2>Applications that act for you</h2>
${heldOf(cookie, 'applications', applications.rows.map(({ id, client, scopes, created_at, expires_at }) => ({
    id: String(id),
    title: client,
    text: html`since ${dayOf(created_at)}, until ${dayOf(expires_at)}: ${grantsEverything(scopes as Scope[]) ? 'may do everything that you may' : counted(scopes.length, 'permission')}`
  })))}
${pagesOf('applications', applications)}
<h2>API tokens that you created</h2>
${heldOf(cookie, 'tokens', tokens.rows.map(({ id, name, token_suffix, organization, created_at, last_used_at, expires_at }) => ({
    id: String(id),
    title: name,
    text: html`${organization.name}, ends in ${token_suffix}, created on ${dayOf(created_at)}, ${
      expires_at === null ? 'never expires' : `expires on ${dayOf(expires_at)}`}, ${
      last_used_at === null ? 'never used' : `last used ${momentOf(last_used_at)}`}`
  })))}
${pagesOf('tokens', tokens)}
<h2>What happened to your account</h2>
<p class="soft">Events of the last year.</p>
<details><summary>Who else sees these events?</summary>
<p class="soft">While you are a member, each organization sees: ${PERSONAL_EVENTS}, all without address and browser. An organization sees address and browser only for its own events: you joined or left it, or ended one of its API tokens. Other organizations do not see these events. An organization whose invitation you decline sees that the invited address declined.</p>
</details>
<ul class="held">
${events.rows.map((event) => html`<li class="held">${timeOf(event.occurred_at)}<span>${describe(event)}</span></li>
`)}</ul>
${pagesOf('events', events)}`, problem?.status)
}

const IN_UTC = 'All dates and times on this page are in UTC.'

// A text for users: which events of a user are recorded in each of their organizations.
const PERSONAL_EVENTS = 'sign-ins and sign-outs, wrong passwords and codes, changes of your password and second factor, applications that you allow or end, and changes of your account by the operator'

const seenAfterAcceptance = (organization: string) =>
  `${organization} learns nothing about you until you accept. Then it sees your name, your e-mail address, and your acceptance with address and browser. While you are a member, it also sees your ${PERSONAL_EVENTS}, all without address and browser.`

const EVENT_TEXTS: Partial<Record<EventName, string>> = {
  'api-token.delete': 'API token ended',
  'invitation.decline': 'invitation declined',
  'member.delete': 'organization left',
  'member.join': 'organization joined',
  'oauth.grant': 'application allowed',
  'oauth.reuse': 'application ended, because a used code or refresh token was sent again',
  'oauth.revoke': 'application ended',
  'password.refuse': 'wrong password while signed in',
  'second-factor.ask': 'correct password, code requested',
  'second-factor.disable': 'second factor removed',
  'second-factor.enroll': 'second factor set up',
  'second-factor.prepare': 'set-up of a second factor started',
  'second-factor.refuse': 'wrong code',
  'second-factor.renew_recovery_codes': 'new recovery codes created',
  'second-factor.use_recovery_code': 'recovery code used',
  'session.create': 'signed in',
  'session.delete': 'signed out',
  'session.refuse': 'sign-in failed: wrong password',
  'user.create': 'account created',
  'user.disable': 'account disabled',
  'user.enable': 'account enabled',
  'user.password': 'password set, or a link to set it created',
  'user.request_reset': 'link to reset the password requested'
}

function describe ({ action, actor_type, details, ip, user_agent }: PersonalEvent): Html {
  const more = Object.entries(details ?? {}).map(([name, value]) => `${name.replaceAll('_', ' ')}: ${value}`)
  const from = actor_type === 'operator' ? 'by the operator' : `from ${ip ?? 'an unknown address'}`
  const program = describeUserAgent(user_agent ?? undefined)
  return html`${EVENT_TEXTS[action] ?? action}${more.length === 0 ? '' : ` (${more.join(', ')})`}, ${from}${
    user_agent === null ? '' : `, ${program.browser === null ? user_agent : describeProgram(program)}`}`
}

/** Text such as "Firefox on Linux, 192.0.2.0/24". */
export const describeClient = ({ network, ...program }: SessionClient): string =>
  `${describeProgram(program)}, ${networkOf(network)}`

function describeProgram ({ browser, system }: Omit<SessionClient, 'network'>): string {
  const program = browser ?? 'Unknown browser'
  return system === null ? program : `${program} on ${system}`
}

const networkOf = (network: string | null): string => network ?? 'unknown network'

// A list of objects of the user. `buttons` maps the last segment of a form's path to the label of the button in each
// row. With `get`, a button opens a confirmation page.
const heldOf = (
  cookie: string, noun: 'sessions' | 'applications' | 'tokens' | 'invitations' | 'organizations',
  held: readonly { id: string, title: string, text: Html }[], buttons: Record<string, string> = { end: 'End' },
  method: 'get' | 'post' = 'post'
): Html => held.length === 0
  ? html`<p class="soft">none</p>`
  : html`<ul class="held">
${held.map(({ id, title, text }) => html`<li class="held"><div><strong>${title}</strong> <span>${text}</span></div>
${Object.entries(buttons).map(([verb, label]) => html`<form method="${method}" action="/account/${noun}/${verb}">${method === 'post' ? formField(cookie) : ''}${idField(id)}
<button type="submit">${label}</button></form>
`)}</li>
`)}</ul>`

const idField = (id: string) => html`<input type="hidden" name="id" value="${id}">`

// Links to the previous and the next page of a list. A link shows all other lists from their first page.
const pagesOf = (noun: 'sessions' | 'applications' | 'tokens' | 'invitations' | 'events', { page, isLast }: HeldPage<unknown>): Html => {
  const link = (to: number, text: string) => html`<a href="/account?${noun}=${String(to)}">${text}</a> `
  return page === 1 && isLast
    ? html``
    : html`<p>${page > 1 ? link(page - 1, 'Previous') : ''}${isLast ? '' : link(page + 1, 'Next')}</p>`
}

/** Asks members to confirm that they leave an organization. */
export function leavePage ({ cookie }: SignedIn, { id, name }: Membership): Page {
  return {
    title: 'Leave an organization',
    body: html`<h1>Leave ${name}?</h1>
<p>You lose your access to the organization <strong>${name}</strong>. Your API tokens of this organization end. To come back, you need a new invitation.</p>
${formTo('/account/organizations/leave', cookie, idField(id), 'Leave the organization')}
<p><a href="/account">Back to your account</a></p>`
  }
}

export function factorPage (
  { cookie, user }: SignedIn, recoveryCodes: number, { problem, status }: Partial<Problem> = {}
): Page {
  const back = html`<p><a href="/account">Back to your account</a></p>`
  return user.second_factor_id === null
    ? titled('Set up a second factor', html`<p>Each sign-in then requires a code of an authenticator app on your phone in addition to your password. You will be signed out in other browsers.</p>
${problemOf(problem)}
${formTo('/account/second-factor', cookie, currentPassword(problem), 'Continue')}
${back}`, status)
    : titled('Your second factor', html`<p>Each sign-in requires a code in addition to your password. ${recoveryCodes} of your recovery codes are left.</p>
${problemOf(problem)}
${formTo('/account/second-factor/change', cookie, html`${currentPassword(problem)}
${codeField(problem)}`, html`
<button class="main" type="submit" name="change" value="recovery-codes">Create new recovery codes</button>
<button type="submit" name="change" value="disable">Turn off</button>
`)}
${back}`, status)
}

export function confirmFactorPage (
  { cookie }: SignedIn, factor?: { address: string, secret: string }, { problem, status }: Partial<Problem> = {}
): Page {
  return titled('Set up a second factor', html`${factor === undefined
    ? html`<p>Enter the current code of your authenticator app. If you have not added this account to the app, <a href="/account/second-factor">start again</a>.</p>`
    : html`<p>Scan this QR code with an authenticator app, or enter the key in the app. The key is shown only once.</p>
${qrCode(factor.address, 'QR code for an authenticator app')}
<dl>
<dt>Key</dt><dd><code>${factor.secret.match(/.{1,4}/g)!.join(' ')}</code></dd>
<dt>Address</dt><dd><code>${factor.address}</code></dd>
</dl>`}
${problemOf(problem)}
${formTo('/account/second-factor/confirm', cookie, html`<label for="code">Code of the authenticator app</label>
<input id="code" name="code" autocomplete="one-time-code" inputmode="numeric" required maxlength="${MAX_CODE_LENGTH}"${describedBy(problem)} autofocus>`, 'Turn on')}`, status)
}

export function recoveryCodesPage (codes: readonly string[]): Page {
  return {
    title: 'Recovery codes',
    body: html`<h1>Save these recovery codes</h1>
<p>With each code you can sign in once without your phone. They are not shown again. Print this page, or copy the codes: a click on the list selects all of them.</p>
<ol class="codes">
${codes.map((code) => html`<li><code>${code}</code></li>
`)}</ol>
<p><a href="/account">Continue to your account</a></p>`
  }
}

export function changePasswordPage ({ cookie, user }: SignedIn, { problem, status }: Partial<Problem> = {}): Page {
  return titled('Change the password', html`<p>You will be signed out everywhere, and applications lose their access until you allow them again.</p>
${problemOf(problem)}
${formTo('/account/password', cookie, html`${currentPassword(problem)}
${newPassword(problem)}
${user.second_factor_id === null ? '' : codeField(problem)}`, 'Change')}`, status)
}

export function setPasswordPage (cookie: string, link: string, user: User, problem?: string): Page {
  return titled('Set your password', html`${problemOf(problem)}
${formTo(`/account/set-password/${link}`, cookie, passwordOf(user, problem), 'Set the password')}`, statusOf(problem))
}

// The fields of a form that sets the password of a user. An invited user also chooses a name.
const passwordOf = (user: User, problem: string | undefined) => html`${addressOf(user.email)}
${user.is_verified ? undefined : ownName(user.name)}
${newPassword(problem)}`

// For password managers, which store the password with it.
const addressOf = (email: string) => html`<label for="email">E-mail address</label>
<input id="email" name="username" type="email" autocomplete="username" readonly value="${email}">`

const ownName = (name: string) => html`<label for="name">Your name, as others see it</label>
<input id="name" name="name" autocomplete="name" required maxlength="${NAME_LENGTH}" value="${name}">`

const currentPassword = (problem: string | undefined) => html`<label for="current">Current password</label>
<input id="current" name="current" type="password" autocomplete="current-password" required maxlength="${PASSWORD.maxBytes}"${describedBy(problem)} autofocus>`

const MAX_CODE_LENGTH = 40

const codeField = (
  problem: string | undefined, { isFirst = false, isOptional = false }: { isFirst?: boolean, isOptional?: boolean } = {}
) => html`<label for="code">Code of your authenticator app, or a recovery code</label>
<input id="code" name="code" autocomplete="one-time-code" maxlength="${MAX_CODE_LENGTH}"${isOptional ? '' : html` required`}${describedBy(problem)}${autofocus(isFirst)}>`

const newPassword = (problem: string | undefined) => html`<label for="password">New password</label>
<input id="password" name="password" type="password" autocomplete="new-password" required
  minlength="${PASSWORD.minCharacters}" maxlength="${PASSWORD.maxBytes}"${describedBy(problem, 'rule')}>
<p id="rule" class="soft">At least ${PASSWORD.minCharacters} characters. A long password is better than one with special characters and digits.</p>`

const ROLE_NAMES: Record<Role, string> = {
  owner: 'owner',
  administrator: 'administrator',
  developer: 'developer',
  member: 'member',
  auditor: 'auditor',
  billing_manager: 'billing manager',
  api_user: 'API user',
  guest: 'guest'
}

/** The role that an invitation gives in the organization, and the one in its place. */
const rolesOf = (
  { role, place_names: names, place_role }: Pick<Shown<OwnInvitation>, 'role' | 'place_names' | 'place_role'>
): string => ROLE_NAMES[role] + (names === null || place_role === null
  ? ''
  : `, with the role ${ROLE_NAMES[place_role]} in ${
    [names.project, names.target, names.environment].filter((name) => name !== null).join(' / ')}`)

const organizationsOf = (memberships: readonly Membership[], none: string): Html => memberships.length === 0
  ? html`<dd>${none}</dd>`
  : html`${memberships.map(({ name, role }) => html`<dd>${name} (${ROLE_NAMES[role]})</dd>`)}`

const dayOf = (moment: Date) => moment.toISOString().slice(0, 10)
const momentOf = (moment: Date) => `${dayOf(moment)} ${moment.toISOString().slice(11, 16)} UTC`
const timeOf = (moment: Date) => html`<time datetime="${moment.toISOString()}">${momentOf(moment)}</time>`

const statusOf = (problem: string | undefined) => problem === undefined ? 200 : 422

const problemOf = (problem: string | undefined): Html =>
  problem === undefined ? html`` : html`<p id="problem" class="notice" role="alert">${problem}</p>`

// References the elements that describe a field to screen readers: the problem and the rule.
function describedBy (problem: string | undefined, rule?: string): Html {
  const ids = [...(problem === undefined ? [] : ['problem']), ...(rule === undefined ? [] : [rule])]
  return ids.length === 0 ? html`` : html` aria-describedby="${ids.join(' ')}"`
}

const autofocus = (yes: boolean): Html => yes ? html` autofocus` : html``
