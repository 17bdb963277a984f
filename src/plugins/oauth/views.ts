import { SCOPES, type Scope } from '../../../schemas/scopes.ts'
import { NAME_LENGTH } from '../../../schemas/shapes.ts'
import { PASSWORD, type Role } from '../../../schemas/users.ts'
import { formField, html, type Html, type Page } from '../../http/pages.ts'
import type { OwnToken } from '../../repositories/tokens.ts'
import type { Membership, User } from '../../repositories/users.ts'

// What people see. Each view is a page; who may see it is decided elsewhere.

export interface SignIn {
  /** The cookie of the browser, which the form goes by. */
  cookie: string
  /** The authorization request to go on with; empty: the account page. */
  query: string
  email?: string
  problem?: string
  client?: string | undefined
  status?: number
}

export function signInPage ({ cookie, query, email = '', problem, client, status = 200 }: SignIn): Page {
  return {
    title: 'Sign in',
    status,
    body: html`<h1>Sign in</h1>
${client === undefined ? '' : html`<p>to go on to <strong>${client}</strong></p>`}
${problemOf(problem)}
<form method="post" action="/oauth/sign-in">
${formField(cookie)}
<input type="hidden" name="query" value="${query}">
<label for="email">E-mail address</label>
<input id="email" name="email" type="email" autocomplete="username" required maxlength="320" value="${email}"${describedBy(problem)}${autofocus(email === '')}>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required maxlength="${PASSWORD.maxBytes}"${describedBy(problem)}${autofocus(email !== '')}>
<div class="actions"><button class="main" type="submit">Sign in</button></div>
</form>`
  }
}

export interface Consent {
  /** The session's cookie, which the form goes by. */
  cookie: string
  request: string
  client: { name: string, isFirstParty: boolean }
  redirectHost: string
  user: User
  memberships: readonly Membership[]
  /** What the client asks for and the user has somewhere. */
  scopes: readonly Scope[]
  formTarget: string
}

export function consentPage ({
  cookie, request, client, redirectHost, user, memberships, scopes, formTarget
}: Consent): Page {
  return {
    title: 'Allow access',
    formTargets: [formTarget],
    body: html`<h1>Allow ${client.name} to act for you?</h1>
<p class="soft">Signed in as ${user.name}, ${user.email}.</p>
${client.isFirstParty
    ? ''
    : html`<p class="notice"><strong>This application is not part of Strongroom.</strong> Go on only if you know it and started this yourself.</p>`}
<dl>
<dt>Sends you back to</dt><dd>${redirectHost}</dd>
<dt>Can act in</dt>${organizationsOf(memberships, 'no organization yet')}
</dl>
<form method="post" action="/oauth/authorize/decision">
${NO_DEFAULT}
${formField(cookie)}
<input type="hidden" name="request" value="${request}">
${scopes.length === 0
    ? html`<p>It would be able to see who you are, and nothing else.</p>`
    : html`<h2>It asks for permission to</h2>
<p class="soft">Leave out what it does not need. In no organization it gets more than your role there allows.</p>
${RESOURCES.map(([resource, name]) => choicesOf(name, scopes.filter((scope) => scope.startsWith(`${resource}:`))))}`}
<div class="actions">
<button class="main" type="submit" name="decision" value="allow">Allow</button>
<button type="submit" name="decision" value="deny">Do not allow</button>
</div>
</form>`
  }
}

const RESOURCES = [
  ['secret', 'Secrets'], ['key', 'Encryption keys'], ['project', 'Projects'], ['target', 'Targets'], [
    'environment', 'Environments'
  ], ['team', 'Teams'],
  ['organization', 'Organizations'], ['api-token', 'API tokens'], ['member', 'Members'], ['billing', 'Billing']
] as const satisfies readonly (readonly [Scope extends `${infer Resource}:${string}` ? Resource : never, string])[]

const choicesOf = (name: string, scopes: readonly Scope[]): Html => scopes.length === 0
  ? html``
  : html`<fieldset>
<legend><h3>${name}</h3></legend>
<div class="choices">
${scopes.map((scope) => html`<label><input type="checkbox" name="scope" value="${scope}" checked> <span>${SCOPES[scope]} <code>${scope}</code></span></label>
`)}</div>
</fieldset>
`

// Enter in a box presses the first button of a form, which would allow everything. One that closes the dialog which the
// form is in stands before: there is none, so nothing happens. A disabled one does not do: Chromium passes over it.
const NO_DEFAULT = html`<button type="submit" formmethod="dialog" hidden></button>`

/** What went wrong, for a person: with nothing to press that would lead anywhere. */
export function problemPage (status: number, title: string, sentence: string): Page {
  return {
    title,
    status,
    body: html`<h1>${title}</h1>
<p role="alert">${sentence}</p>
<p class="soft">You can close this page, or go back and try again.</p>`
  }
}

export function accountPage (
  cookie: string, user: User, memberships: readonly Membership[], tokens: readonly OwnToken[], notice?: string
): Page {
  return {
    title: 'Your account',
    body: html`<h1>Your account</h1>
${notice === undefined ? '' : html`<p role="status"><strong>${notice}</strong></p>`}
<dl>
<dt>Name</dt><dd>${user.name}</dd>
<dt>E-mail address</dt><dd>${user.email}</dd>
<dt>Organizations</dt>${organizationsOf(memberships, 'none')}
<dt>API tokens that you made</dt>${tokensOf(tokens)}
</dl>
<form method="post" action="/account/sign-out">
${formField(cookie)}
<div class="actions">
<button type="submit" name="where" value="here">Sign out</button>
<button type="submit" name="where" value="everywhere">Sign out everywhere</button>
</div>
</form>
<p><a href="/account/password">Change the password</a></p>`
  }
}

export function changePasswordPage (
  cookie: string, problem?: string, status = problem === undefined ? 200 : 422
): Page {
  return {
    title: 'Change the password',
    status,
    body: html`<h1>Change the password</h1>
<p>You will be signed out everywhere, and applications that act for you have to ask again.</p>
${problemOf(problem)}
<form method="post" action="/account/password">
${formField(cookie)}
<label for="current">Current password</label>
<input id="current" name="current" type="password" autocomplete="current-password" required maxlength="${PASSWORD.maxBytes}"${describedBy(problem)} autofocus>
${newPassword(problem)}
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
<label for="email">E-mail address</label>
<input id="email" name="username" type="email" autocomplete="username" readonly value="${user.email}">
${user.is_verified ? undefined : ownName(user.name)}
${newPassword(problem)}
<div class="actions"><button class="main" type="submit">Set the password</button></div>
</form>`
  }
}

// Whoever was invited was called by their address until then.
const ownName = (name: string) => html`<label for="name">Your name, as others see it</label>
<input id="name" name="name" autocomplete="name" required maxlength="${NAME_LENGTH}" value="${name}">`

const newPassword = (problem: string | undefined) => html`<label for="password">New password</label>
<input id="password" name="password" type="password" autocomplete="new-password" required
  minlength="${PASSWORD.minCharacters}" maxlength="${PASSWORD.maxBytes}"${describedBy(problem, 'rule')}>
<p id="rule" class="soft">At least ${PASSWORD.minCharacters} characters. Length counts more than signs and digits.</p>`

const ROLE_NAMES: Record<Role, string> = {
  owner: 'owner',
  administrator: 'administrator',
  developer: 'developer',
  member: 'member',
  auditor: 'auditor',
  billing_manager: 'billing manager',
  api_user: 'API user'
}

const organizationsOf = (memberships: readonly Membership[], none: string): Html => memberships.length === 0
  ? html`<dd>${none}</dd>`
  : html`${memberships.map(({ name, role }) => html`<dd>${name} (${ROLE_NAMES[role]})</dd>`)}`

// They end with the grant that they were made through: who signs out everywhere ends them, too.
const tokensOf = (tokens: readonly OwnToken[]): Html => tokens.length === 0
  ? html`<dd>none</dd>`
  : html`${tokens.map(({ name, organization, created_at, expires_at }) => html`<dd>${name} (${organization.name}), made on ${dayOf(created_at)}, ${
    expires_at === null ? 'for ever' : `until ${dayOf(expires_at)}`}</dd>`)}`

const dayOf = (moment: Date) => moment.toISOString().slice(0, 10)

const problemOf = (problem: string | undefined): Html =>
  problem === undefined ? html`` : html`<p id="problem" class="notice" role="alert">${problem}</p>`

// The problem, where there is one, and what else is to be read with a field.
function describedBy (problem: string | undefined, rule?: string): Html {
  const ids = [...(problem === undefined ? [] : ['problem']), ...(rule === undefined ? [] : [rule])]
  return ids.length === 0 ? html`` : html` aria-describedby="${ids.join(' ')}"`
}

const autofocus = (yes: boolean): Html => yes ? html` autofocus` : html``
