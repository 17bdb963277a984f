import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { parseCookies, serializeCookie } from 'oslo/cookie'
import { formToken, isFormToken, mintSecret } from '../crypto/bearer.ts'
import { STYLE } from './style.ts'

// Pages for people: server-rendered HTML without script, each under a policy of its own.

/** Text that is markup already. */
export class Html {
  readonly text: string
  constructor (text: string) { this.text = text }
}

type Piece = Html | string | number | undefined | readonly Piece[]

/** Markup in which every value is escaped, unless it is markup itself. */
export function html (strings: TemplateStringsArray, ...values: Piece[]): Html {
  return new Html(strings.map((text, i) => text + (i < values.length ? render(values[i]) : '')).join(''))
}

function render (value: Piece): string {
  if (value === undefined) return ''
  if (value instanceof Html) return value.text
  if (Array.isArray(value)) return value.map(render).join('')
  return String(value).replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`)
}

export interface Page {
  title: string
  body: Html
  status?: number
  /** Where else than here the page's form may lead, by a redirect: an origin, or the scheme of an app. */
  formTargets?: readonly string[]
}

/** Sends a page that nobody keeps, frames or adds script to (OA-21, CR-45). */
export function sendPage (reply: FastifyReply, { title, body, status = 200, formTargets = [] }: Page) {
  const nonce = mintSecret()
  const policy = [
    "default-src 'none'", `style-src 'nonce-${nonce}'`, "img-src 'self'", `form-action ${["'self'", ...formTargets].join(' ')}`, "base-uri 'none'", "frame-ancestors 'none'"
  ].join('; ')
  const page = html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${title} · Strongroom</title>
<style nonce="${nonce}">${new Html(STYLE)}</style>
</head>
<body>
<main>
<p class="brand">Strongroom</p>
${body}
</main>
</body>
</html>
`
  return reply.code(status).headers({ 'content-security-policy': policy, 'cache-control': 'no-store' }).type('text/html; charset=utf-8').serializer(String).send(page.text)
}

/** 303: whatever came before, the browser asks for the next page with GET and without the form (OA-19). */
export function seeOther (reply: FastifyReply, location: string) {
  return reply.code(303).headers({ location, 'cache-control': 'no-store' }).send()
}

// Cookies. `__Host-` ties one to this very host and to https, where there is https.

export type CookieName = 'session' | 'browser'

const DAY = 24 * 60 * 60
const isSecure = (app: FastifyInstance) => app.issuer().startsWith('https:')
const nameOf = (app: FastifyInstance, name: CookieName) => isSecure(app) ? `__Host-${name}` : name

export function readCookie (app: FastifyInstance, request: FastifyRequest, name: CookieName): string | undefined {
  const value = parseCookies(request.headers.cookie ?? '').get(nameOf(app, name))
  return value !== undefined && /^[A-Za-z0-9_-]{43}$/.test(value) ? value : undefined
}

/** Sets a cookie, or takes it away. */
export function setCookie (app: FastifyInstance, reply: FastifyReply, name: CookieName, value: string | undefined) {
  const attributes = { path: '/', httpOnly: true, secure: isSecure(app), sameSite: 'lax' as const, maxAge: value === undefined ? 0 : 7 * DAY }
  reply.header('set-cookie', serializeCookie(nameOf(app, name), value ?? '', attributes))
}

/** The value that a form of this browser goes by before anybody has signed in; made when there is none. */
export function browserOf (app: FastifyInstance, request: FastifyRequest, reply: FastifyReply): string {
  const known = readCookie(app, request, 'browser')
  if (known !== undefined) return known
  const made = mintSecret()
  setCookie(app, reply, 'browser', made)
  return made
}

/** The hidden field that proves a form to be ours, and this browser's. */
export function formField (cookie: string): Html {
  return html`<input type="hidden" name="form_token" value="${formToken(cookie)}">`
}

/**
 * Whether a form was sent by a page of ours in this browser (OA-18, CR-47). The browser says so itself; a page without
 * referrer sends no origin, so where it tells the site, that counts.
 */
export function isOwnForm (app: FastifyInstance, request: FastifyRequest, form: Form, cookie: string | undefined): boolean {
  const site = request.headers['sec-fetch-site']
  const own = site === undefined ? request.headers.origin === new URL(app.issuer()).origin : site === 'same-origin'
  return own && cookie !== undefined && isFormToken(form.get('form_token') ?? '', cookie)
}

/** A form's fields, each at most once. */
export type Form = ReadonlyMap<string, string>

const MOST_FORM = 64 * 1024

/** Takes forms, and nothing else, in the plugin that it is called in. A field given twice keeps every value under `name[]`. */
export function installForms (app: FastifyInstance) {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('application/x-www-form-urlencoded', { parseAs: 'string', bodyLimit: MOST_FORM }, async (_request: FastifyRequest, text: string) => new URLSearchParams(text))
}

/** The first value of each field. */
export function formOf (request: FastifyRequest): Form {
  const sent = request.body instanceof URLSearchParams ? request.body : new URLSearchParams()
  const form = new Map<string, string>()
  for (const [name, value] of sent) if (!form.has(name)) form.set(name, value)
  return form
}

/** Every value of a field, as of boxes that were ticked. */
export function valuesOf (request: FastifyRequest, name: string): string[] {
  return request.body instanceof URLSearchParams ? request.body.getAll(name) : []
}
