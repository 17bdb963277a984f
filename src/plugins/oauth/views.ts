import { SCOPES, type Scope } from '../../../schemas/scopes.ts'
import { PASSWORD } from '../../../schemas/users.ts'
import { formField, html, type Html, type Page } from '../../http/pages.ts'
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
<input id="email" name="email" type="email" autocomplete="username" required maxlength="320" value="${email}"${autofocus(email === '')}>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required maxlength="${PASSWORD.maxBytes}"${autofocus(email !== '')}>
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

export function consentPage ({ cookie, request, client, redirectHost, user, memberships, scopes, formTarget }: Consent): Page {
  return {
    title: 'Allow access',
    formTargets: [formTarget],
    body: html`<h1>Allow ${client.name} to act for you?</h1>
<p class="soft">Signed in as ${user.name}, ${user.email}.</p>
${client.isFirstParty
    ? ''
    : html`<p class="notice"><strong>This application is not part of Strongroom.</strong> Go on only if you know it and started this yourself.</p>`}
<dl>
<dt>Application</dt><dd>${client.name}</dd>
<dt>Sends you back to</dt><dd>${redirectHost}</dd>
<dt>Can act in</dt><dd>${memberships.length === 0 ? 'no organization yet' : memberships.map(({ name, role }, i) => html`${i > 0 ? ', ' : ''}${name} (${role.replace('_', ' ')})`)}</dd>
</dl>
<form method="post" action="/oauth/authorize/decision">
${formField(cookie)}
<input type="hidden" name="request" value="${request}">
${scopes.length === 0
    ? html`<p>It would be able to see who you are, and nothing else.</p>`
    : html`<fieldset>
<legend>It asks for permission to</legend>
<p class="soft">Leave out what it does not need. It never gets more than your own role allows.</p>
${scopes.map((scope) => html`<label class="choice"><input type="checkbox" name="scope" value="${scope}" checked> <span>${SCOPES[scope]}<br><code>${scope}</code></span></label>
`)}</fieldset>`}
<div class="actions">
<button class="main" type="submit" name="decision" value="allow">Allow</button>
<button type="submit" name="decision" value="deny">Do not allow</button>
</div>
</form>`
  }
}

/** What went wrong, for a person: with nothing to press that would lead anywhere. */
export function problemPage (status: number, title: string, sentence: string): Page {
  return {
    title,
    status,
    body: html`<h1>${title}</h1>
<p>${sentence}</p>
<p class="soft">You can close this page, or go back and try again.</p>`
  }
}

export function accountPage (cookie: string, user: User, memberships: readonly Membership[], notice?: string): Page {
  return {
    title: 'Your account',
    body: html`<h1>Your account</h1>
${notice === undefined ? '' : html`<p role="status"><strong>${notice}</strong></p>`}
<dl>
<dt>Name</dt><dd>${user.name}</dd>
<dt>E-mail address</dt><dd>${user.email}</dd>
<dt>Organizations</dt><dd>${memberships.length === 0 ? 'none' : memberships.map(({ name, role }, i) => html`${i > 0 ? ', ' : ''}${name} (${role.replace('_', ' ')})`)}</dd>
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

export function changePasswordPage (cookie: string, problem?: string): Page {
  return {
    title: 'Change the password',
    status: problem === undefined ? 200 : 422,
    body: html`<h1>Change the password</h1>
<p>You will be signed out everywhere, and applications that act for you have to ask again.</p>
${problemOf(problem)}
<form method="post" action="/account/password">
${formField(cookie)}
<label for="current">Current password</label>
<input id="current" name="current" type="password" autocomplete="current-password" required maxlength="${PASSWORD.maxBytes}">
${newPassword()}
<div class="actions"><button class="main" type="submit">Change</button></div>
</form>`
  }
}

export function setPasswordPage (cookie: string, link: string, user: User, problem?: string): Page {
  return {
    title: 'Set your password',
    status: problem === undefined ? 200 : 422,
    body: html`<h1>Set your password</h1>
<p>for ${user.email}</p>
${problemOf(problem)}
<form method="post" action="/account/set-password/${link}">
${formField(cookie)}
<input type="hidden" autocomplete="username" name="username" value="${user.email}">
${newPassword()}
<div class="actions"><button class="main" type="submit">Set the password</button></div>
</form>`
  }
}

const newPassword = () => html`<label for="password">New password</label>
<input id="password" name="password" type="password" autocomplete="new-password" required minlength="${PASSWORD.minCharacters}" maxlength="${PASSWORD.maxBytes}" aria-describedby="rule">
<p id="rule" class="soft">At least ${PASSWORD.minCharacters} characters. Length counts more than signs and digits.</p>`

const problemOf = (problem: string | undefined): Html => problem === undefined ? html`` : html`<p class="notice" role="alert">${problem}</p>`
const autofocus = (yes: boolean): Html => yes ? html` autofocus` : html``
