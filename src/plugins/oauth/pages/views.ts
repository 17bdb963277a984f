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
  return {
    title: 'Sign in',
    status,
    body: html`<h1>Sign in</h1>
${client === undefined ? '' : html`<p>to continue to <strong>${client}</strong></p>`}
${problemOf(problem)}
<form method="post" action="/oauth/sign-in">
${formField(cookie)}
<input type="hidden" name="query" value="${query}">
<label for="email">E-mail address</label>
<input id="email" name="email" type="email" autocomplete="username" required maxlength="320" value="${email}"${describedBy(problem)}${autofocus(email === '')}>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required maxlength="${PASSWORD.maxBytes}"${describedBy(problem)}${autofocus(email !== '')}>
<div class="actions"><button class="main" type="submit">Sign in</button></div>
</form>
${sendsMail
    ? html`<p><a href="/account/forgot-password">Forgot your password?</a></p>`
    : html`<p class="soft">Forgot your password? ${ASK_OPERATOR}</p>`}`
  }
}

const ASK_OPERATOR = 'Ask the operator of this service for a link to set a new one. The operator makes it with the command: npm run -s cli -- user password --email ADDRESS'

/** Shown if the service cannot mail a link to reset a password. */
export const noResetPage = (): Page => problemPage(404, 'This service sends no e-mail', ASK_OPERATOR)

/** Asks for the address to which a link to reset the password is mailed. */
export function forgotPasswordPage (
  { cookie, email = '', problem, status = 200 }: { cookie: string, email?: string } & Partial<Problem>
): Page {
  return {
    title: 'Forgot your password?',
    status,
    body: html`<h1>Forgot your password?</h1>
<p>Enter the e-mail address of your account. You get an e-mail with a link to set a new password.</p>
${problemOf(problem)}
<form method="post" action="/account/forgot-password">
${formField(cookie)}
<label for="email">E-mail address</label>
<input id="email" name="email" type="email" autocomplete="username" required maxlength="320" value="${email}"${describedBy(problem)} autofocus>
<div class="actions"><button class="main" type="submit">Send the link</button></div>
</form>
<p><a href="/account">Back to sign-in</a></p>`
  }
}

/** Shown for every address that requests a link, so the page does not reveal whether the address has an account. */
export function linkSentPage (email: string, minutes: number): Page {
  return {
    title: 'Look into your mailbox',
    body: html`<h1>Look into your mailbox</h1>
<p>If <strong>${email}</strong> is the address of an account, we have sent an e-mail with a link to it. The link works once, within ${minutes} minutes. Earlier links no longer work.</p>
<p class="soft">If no e-mail arrives, look for it in the spam folder, and check the address. Otherwise ask the operator of this service.</p>
<p><a href="/account">Back to sign-in</a></p>`
  }
}

/** The form of a mailed reset link. */
export function resetPasswordPage (cookie: string, link: string, user: User, problem?: string): Page {
  return {
    title: 'Set a new password',
    status: problem === undefined ? 200 : 422,
    body: html`<h1>Set a new password</h1>
<p>Applications lose their access until you allow them again. A second factor stays.</p>
${problemOf(problem)}
<form method="post" action="/account/reset-password/${link}">
${formField(cookie)}
${passwordOf(user, problem)}
<div class="choices"><label><input type="checkbox" name="end_sessions" value="yes" checked> <span>End all other sessions</span></label></div>
<div class="actions"><button class="main" type="submit">Set the password</button></div>
</form>`
  }
}

/** Shown after a reset, which starts no session. */
export function passwordResetPage (keepsSessions: boolean): Page {
  return {
    title: 'Your password was changed',
    body: html`<h1>Your password was changed</h1>
<p>${keepsSessions ? 'Browsers that were signed in stay signed in.' : 'All browsers were signed out.'} Sign in with the new password and, if your account has a second factor, with a code.</p>
<p><a href="/account">Sign in</a></p>`
  }
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
  return {
    title: 'Enter a code',
    status,
    body: html`<h1>Enter a code</h1>
<p>Your account has a second factor. Open your authenticator app, and enter the code that it shows for Strongroom.</p>
${problemOf(problem)}
<form method="post" action="/oauth/sign-in/code">
${formField(cookie)}
<input type="hidden" name="step" value="${step}">
<input type="hidden" name="query" value="${query}">
${codeField(problem, { isFirst: true })}
<div class="actions"><button class="main" type="submit">Continue</button></div>
</form>
<p class="soft">If you have lost both, ask the operator of this service to remove your second factor.</p>`
  }
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
    status: problem === undefined ? 200 : 422,
    body: html`<h1>Join ${organization.name}?</h1>
<p>You are invited to the organization <strong>${organization.name}</strong>, as ${rolesOf(roles)}, by ${inviterOf(invited_by)}. To accept, enter your name and a password for a new account. To decline, close this page.</p>
<p class="soft">${seenAfterAcceptance('The organization')}</p>
${problemOf(problem)}
<form method="post" action="/account/invitation/${link}">
${formField(cookie)}
<label for="email">E-mail address</label>
<input id="email" name="username" type="email" autocomplete="username" readonly value="${email}">
${ownName('')}
${newPassword(problem)}
<div class="actions"><button class="main" type="submit">Create account and accept</button></div>
</form>`
  }
}

/** Shown to a user whose account has another address than the invitation. */
export function otherAccountPage ({ cookie, user }: SignedIn, { email, organization }: Pick<OwnInvitation, 'email' | 'organization'>): Page {
  return {
    title: 'This invitation is for another address',
    status: 403,
    body: html`<h1>This invitation is for another address</h1>
<p role="alert">You are signed in as ${user.email}, but ${organization.name} invited ${email}. Sign out, then open the link again.</p>
<form method="post" action="/account/sign-out">
${formField(cookie)}
<div class="actions"><button type="submit" name="where" value="here">Sign out</button></div>
</form>`
  }
}

/** An error page without links or buttons. */
export function problemPage (status: number, title: string, sentence: string): Page {
  return {
    title,
    status,
    body: html`<h1>${title}</h1>
<p role="alert">${sentence}</p>
<p class="soft">You can close this page, or go back and try again.</p>`
  }
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
  return {
    title: 'Your account',
    ...(problem && { status: problem.status }),
    body: html`<h1>Your account</h1>
${problemOf(problem?.problem)}
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
<form method="post" action="/account/sign-out">
${formField(cookie)}
<div class="actions">
<button type="submit" name="where" value="here">Sign out</button>
<button type="submit" name="where" value="everywhere">Sign out everywhere</button>
</div>
</form>
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
${pagesOf('events', events)}`
  }
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
${Object.entries(buttons).map(([verb, label]) => html`<form method="${method}" action="/account/${noun}/${verb}">${method === 'post' ? formField(cookie) : ''}<input type="hidden" name="id" value="${id}">
<button type="submit">${label}</button></form>
`)}</li>
`)}</ul>`

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
<form method="post" action="/account/organizations/leave">
${formField(cookie)}
<input type="hidden" name="id" value="${id}">
<div class="actions"><button class="main" type="submit">Leave the organization</button></div>
</form>
<p><a href="/account">Back to your account</a></p>`
  }
}

export function factorPage ({ cookie, user }: SignedIn, recoveryCodes: number, problem?: Problem): Page {
  const isOn = user.second_factor_id !== null
  const of = { title: isOn ? 'Your second factor' : 'Set up a second factor', status: problem?.status ?? 200 }
  const back = html`<p><a href="/account">Back to your account</a></p>`
  if (!isOn) {
    return {
      ...of,
      body: html`<h1>${of.title}</h1>
<p>Each sign-in then requires a code of an authenticator app on your phone in addition to your password. You will be signed out in other browsers.</p>
${problemOf(problem?.problem)}
<form method="post" action="/account/second-factor">
${formField(cookie)}
${currentPassword(problem?.problem)}
<div class="actions"><button class="main" type="submit">Continue</button></div>
</form>
${back}`
    }
  }
  return {
    ...of,
    body: html`<h1>${of.title}</h1>
<p>Each sign-in requires a code in addition to your password. ${recoveryCodes} of your recovery codes are left.</p>
${problemOf(problem?.problem)}
<form method="post" action="/account/second-factor/change">
${formField(cookie)}
${currentPassword(problem?.problem)}
${codeField(problem?.problem)}
<div class="actions">
<button class="main" type="submit" name="change" value="recovery-codes">Create new recovery codes</button>
<button type="submit" name="change" value="disable">Turn off</button>
</div>
</form>
${back}`
  }
}

export function confirmFactorPage (
  { cookie }: SignedIn, factor?: { address: string, secret: string }, problem?: Problem
): Page {
  return {
    title: 'Set up a second factor',
    status: problem?.status ?? 200,
    body: html`<h1>Set up a second factor</h1>
${factor === undefined
    ? html`<p>Enter the current code of your authenticator app. If you have not added this account to the app, <a href="/account/second-factor">start again</a>.</p>`
    : html`<p>Scan this QR code with an authenticator app, or enter the key in the app. The key is shown only once.</p>
${qrCode(factor.address, 'QR code for an authenticator app')}
<dl>
<dt>Key</dt><dd><code>${factor.secret.match(/.{1,4}/g)!.join(' ')}</code></dd>
<dt>Address</dt><dd><code>${factor.address}</code></dd>
</dl>`}
${problemOf(problem?.problem)}
<form method="post" action="/account/second-factor/confirm">
${formField(cookie)}
<label for="code">Code of the authenticator app</label>
<input id="code" name="code" autocomplete="one-time-code" inputmode="numeric" required maxlength="${MAX_CODE_LENGTH}"${describedBy(problem?.problem)} autofocus>
<div class="actions"><button class="main" type="submit">Turn on</button></div>
</form>`
  }
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

export function changePasswordPage (
  { cookie, user }: SignedIn, { problem, status }: { problem?: string, status: number } = { status: 200 }
): Page {
  return {
    title: 'Change the password',
    status,
    body: html`<h1>Change the password</h1>
<p>You will be signed out everywhere, and applications lose their access until you allow them again.</p>
${problemOf(problem)}
<form method="post" action="/account/password">
${formField(cookie)}
${currentPassword(problem)}
${newPassword(problem)}
${user.second_factor_id === null ? '' : codeField(problem)}
<div class="actions"><button class="main" type="submit">Change</button></div>
</form>`
  }
}

export function setPasswordPage (cookie: string, link: string, user: User, problem?: string): Page {
  return {
    title: 'Set your password',
    status: problem === undefined ? 200 : 422,
    body: html`<h1>Set your password</h1>
${problemOf(problem)}
<form method="post" action="/account/set-password/${link}">
${formField(cookie)}
${passwordOf(user, problem)}
<div class="actions"><button class="main" type="submit">Set the password</button></div>
</form>`
  }
}

// The fields of a form that sets the password of a user. An invited user also chooses a name.
const passwordOf = (user: User, problem: string | undefined) => html`<label for="email">E-mail address</label>
<input id="email" name="username" type="email" autocomplete="username" readonly value="${user.email}">
${user.is_verified ? undefined : ownName(user.name)}
${newPassword(problem)}`

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

const problemOf = (problem: string | undefined): Html =>
  problem === undefined ? html`` : html`<p id="problem" class="notice" role="alert">${problem}</p>`

// References the elements that describe a field to screen readers: the problem and the rule.
function describedBy (problem: string | undefined, rule?: string): Html {
  const ids = [...(problem === undefined ? [] : ['problem']), ...(rule === undefined ? [] : [rule])]
  return ids.length === 0 ? html`` : html` aria-describedby="${ids.join(' ')}"`
}

const autofocus = (yes: boolean): Html => yes ? html` autofocus` : html``
