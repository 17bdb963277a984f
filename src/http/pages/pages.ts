import cookies from '@fastify/cookie'
import formbody, { type FastifyFormbodyOptions } from '@fastify/formbody'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { formToken, isFormToken, mintSecret } from '../../crypto/bearer.ts'
import { Html, html } from '../../rules/formats/html.ts'
import { STYLE } from './style.ts'

// Pages for people: server-rendered HTML without script, each under a policy of its own.

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
  // Views name paths from the root; the service may live below one. No text of anybody's can look like this markup.
  const text = page.text.replace(/(<form method="post" action|<a href)="(?=\/)/g, `$1="${basePath(reply)}`)
  return reply.code(status).headers({
    'content-security-policy': policy, 'cache-control': 'no-store'
  }).type('text/html; charset=utf-8').serializer(String).send(text)
}

/**
 * 303: whatever came before, the browser asks for the next page with GET and without the form (OA-19). A path is one of
 * this service.
 */
export function seeOther (reply: FastifyReply, location: string) {
  return reply.code(303).headers({
    location: location.startsWith('/') ? basePath(reply) + location : location, 'cache-control': 'no-store'
  }).send()
}

const basePath = ({ server }: FastifyReply) => new URL(server.issuer()).pathname.replace(/\/$/, '')

// Cookies. `__Host-` ties one to this very host and to https, where there is https.

export type CookieName = keyof typeof COOKIES

const DAY = 24 * 60 * 60
const COOKIES = {
  session: { maxAge: 7 * DAY, sameSite: 'lax' },
  browser: { maxAge: 7 * DAY, sameSite: 'lax' },
  /** A browser that somebody has signed in with; only forms of this service need it. */
  device: { maxAge: 90 * DAY, sameSite: 'strict' }
} as const
const isSecure = (app: FastifyInstance) => app.issuer().startsWith('https:')
const nameOf = (app: FastifyInstance, name: CookieName) => isSecure(app) ? `__Host-${name}` : name

/** Reads and sets cookies in the plugin that it is called in. */
export async function installCookies (app: FastifyInstance) {
  // The guard reads cookies before a hook of this plugin could parse them.
  await app.register(cookies, { hook: false })
}

/**
 * The value of a cookie of this service; undefined if it is missing or malformed. Names are not decoded, because a
 * subdomain can set a cookie named `%5F%5FHost-session`.
 */
export function readCookie (app: FastifyInstance, request: FastifyRequest, name: CookieName): string | undefined {
  const value = request.server.parseCookie(request.headers.cookie ?? '')[nameOf(app, name)] ?? ''
  return /^[A-Za-z0-9_-]{43}$/.test(value) ? value : undefined
}

/** Sets a cookie, or deletes it if `value` is undefined. */
export function setCookie (app: FastifyInstance, reply: FastifyReply, name: CookieName, value: string | undefined) {
  const { maxAge, sameSite } = COOKIES[name]
  reply.setCookie(nameOf(app, name), value ?? '', {
    path: '/', httpOnly: true, secure: isSecure(app), sameSite, maxAge: value === undefined ? 0 : maxAge
  })
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
export function isOwnForm (
  app: FastifyInstance, request: FastifyRequest, form: Form, cookie: string | undefined
): boolean {
  const site = request.headers['sec-fetch-site']
  const own = site === undefined ? request.headers.origin === new URL(app.issuer()).origin : site === 'same-origin'
  return own && cookie !== undefined && isFormToken(form.get('form_token') ?? '', cookie)
}

/** The fields of a form that were sent once. */
export type Form = ReadonlyMap<string, string>

const MAX_FORM_BYTES = 64 * 1024

/** Accepts forms, and no other bodies, in the plugin that it is called in. */
export async function installForms (app: FastifyInstance, options: FastifyFormbodyOptions = {}) {
  app.removeAllContentTypeParsers()
  await app.register(formbody, { bodyLimit: MAX_FORM_BYTES, ...options })
}

// The parser makes a list of a field that was sent more than once.
const fieldsOf = ({ body }: FastifyRequest) => (body ?? {}) as Record<string, string | string[]>

/** A field that was sent twice has no value (OA-12), nor has one with a NUL, which browsers do not send. */
export function formOf (request: FastifyRequest): Form {
  return new Map(Object.entries(fieldsOf(request)).filter((field): field is [string, string] =>
    typeof field[1] === 'string' && !field[1].includes('\0')))
}

/** Every value of a field, such as the checked boxes of a list. */
export function valuesOf (request: FastifyRequest, name: string): string[] {
  return [fieldsOf(request)[name] ?? []].flat()
}

/**
 * A query in visible ASCII, so that a header and a hidden field carry it unchanged: what else is in it is
 * percent-encoded.
 */
export function visible (query: string): string {
  return query.replace(/[^\x21\x22\x24-\x7e]/gu, encodeURIComponent)
}
