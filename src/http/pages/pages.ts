import { setTimeout as sleep } from 'node:timers/promises'
import cookies from '@fastify/cookie'
import formbody, { type FastifyFormbodyOptions } from '@fastify/formbody'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { encode } from 'uqr'
import { formToken, isFormToken, mintSecret } from '../../crypto/bearer.ts'
import { Html, html } from '../../rules/formats/html.ts'
import { LOGO, STYLE } from './style.ts'

// Server-rendered HTML pages without scripts. Each page has its own content security policy.

export interface Page {
  title: string
  body: Html
  status?: number
  /** Additional `form-action` sources, for redirects after the form: an origin, or the scheme of an app. */
  formTargets?: readonly string[]
}

/** Sends a page that cannot be cached or framed and cannot run scripts (OA-21, CR-45). */
export function sendPage (reply: FastifyReply, { title, body, status = 200, formTargets = [] }: Page) {
  const nonce = mintSecret()
  const policy = [
    "default-src 'none'", `style-src 'nonce-${nonce}'`, "img-src 'self'",
    `form-action ${["'self'", ...formTargets].join(' ')}`, "base-uri 'none'", "frame-ancestors 'none'"
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
<p class="brand">${new Html(LOGO)}Strongroom</p>
${body}
</main>
</body>
</html>
`
  // Paths in views lack the base path of the service, which is added here. User data cannot match the expression,
  // because quotes in data are escaped.
  const text = page.text.replace(/(<form method="post" action|<a href)="(?=\/)/g, `$1="${basePath(reply.server)}`)
  return reply.code(status).headers({
    'content-security-policy': policy, 'cache-control': 'no-store'
  }).type('text/html; charset=utf-8').serializer(String).send(text)
}

/** Redirects with 303, so that the browser sends GET without the form data (OA-19). Adds the base path to a path. */
export function seeOther (reply: FastifyReply, location: string) {
  return reply.code(303).headers({
    location: location.startsWith('/') ? basePath(reply.server) + location : location, 'cache-control': 'no-store'
  }).send()
}

/** Waits until a time of `performance.now()`, so that a response does not show how long its work took. */
export async function waitUntil (time: number): Promise<void> {
  const remaining = time - performance.now()
  if (remaining > 0) await sleep(remaining)
}

/** The path of the service's URL, without a trailing slash. */
export const basePath = (app: FastifyInstance) => new URL(app.issuer()).pathname.replace(/\/$/, '')

/** Whether the request is from a browser that opens a page. */
export const acceptsHtml = ({ headers: { accept = '' } }: FastifyRequest) => /\btext\/html\b/.test(accept)

// Cookies. With https, the prefix `__Host-` binds a cookie to exactly this host.

type CookieName = keyof typeof COOKIES

const DAY = 24 * 60 * 60
const COOKIES = {
  session: { maxAge: 7 * DAY, sameSite: 'lax' },
  browser: { maxAge: 7 * DAY, sameSite: 'lax' },
  /** Marks a browser that was used to sign in. `strict`, because only forms of this service need the cookie. */
  device: { maxAge: 90 * DAY, sameSite: 'strict' }
} as const
const isSecure = (app: FastifyInstance) => app.issuer().startsWith('https:')
const nameOf = (app: FastifyInstance, name: CookieName) => isSecure(app) ? `__Host-${name}` : name

export async function installCookies (app: FastifyInstance) {
  // The plugin's hook is not used, because the guard reads cookies before this hook runs.
  await app.register(cookies, { hook: false })
}

/**
 * The value of a cookie; undefined if it is missing or malformed. The names of cookies are not decoded: a subdomain can
 * set `%5F%5FHost-session`, which decodes to `__Host-session`.
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

/** Returns the cookie that binds forms to this browser before sign-in. Sets the cookie if it is missing. */
export function browserOf (app: FastifyInstance, request: FastifyRequest, reply: FastifyReply): string {
  const known = readCookie(app, request, 'browser')
  if (known !== undefined) return known
  const created = mintSecret()
  setCookie(app, reply, 'browser', created)
  return created
}

/** The hidden field with the CSRF token, which is bound to the cookie. */
export const formField = (cookie: string): Html =>
  html`<input type="hidden" name="form_token" value="${formToken(cookie)}">`

/** Whether a page of this service sent the request, according to headers that only the browser sets. */
export function isOwnPage (app: FastifyInstance, { headers }: FastifyRequest): boolean {
  const site = headers['sec-fetch-site']
  return site === undefined ? headers.origin === new URL(app.issuer()).origin : site === 'same-origin'
}

/**
 * Whether a page of this service sent the form from this browser (OA-18, CR-47). Checks the CSRF token and
 * `Sec-Fetch-Site`. Only older browsers, which send no `Sec-Fetch-Site`, are checked by `Origin`, because
 * `Referrer-Policy: no-referrer` sets `Origin` to `null`.
 */
export function isOwnForm (
  app: FastifyInstance, request: FastifyRequest, form: Form, cookie: string | undefined
): boolean {
  return isOwnPage(app, request) && cookie !== undefined && isFormToken(form.get('form_token') ?? '', cookie)
}

/** The form fields that were sent exactly once. */
export type Form = ReadonlyMap<string, string>

const MAX_FORM_BYTES = 64 * 1024

/** Makes a Fastify plugin accept only bodies of HTML forms. */
export async function installForms (app: FastifyInstance, options: FastifyFormbodyOptions = {}) {
  app.removeAllContentTypeParsers()
  await app.register(formbody, { bodyLimit: MAX_FORM_BYTES, ...options })
}

// The parser returns an array for a repeated field.
const fieldsOf = ({ body }: FastifyRequest) => (body ?? {}) as Record<string, string | string[]>

/** Parses a form. Ignores repeated fields (OA-12) and values with NUL characters, which browsers never send. */
export function formOf (request: FastifyRequest): Form {
  return new Map(Object.entries(fieldsOf(request)).filter((field): field is [string, string] =>
    typeof field[1] === 'string' && !field[1].includes('\0')))
}

/** All values of a field, such as a group of checkboxes. */
export const valuesOf = (request: FastifyRequest, name: string): string[] => [fieldsOf(request)[name] ?? []].flat()

/** Percent-encodes `#` and everything except visible ASCII, so that headers and hidden fields do not change a query. */
export const visible = (query: string): string => query.replace(/[^\x21\x22\x24-\x7e]/gu, encodeURIComponent)

/** The quiet zone in modules, which scanners need (ISO/IEC 18004). */
const QUIET_ZONE = 4

/** A QR code as inline SVG, without scripts or external resources. */
export function qrCode (text: string, label: string): Html {
  const { data, size } = encode(text, { ecc: 'M', border: QUIET_ZONE })
  // Draw adjacent dark modules of a row as one bar.
  const bars = data.flatMap((row, y) => row.flatMap((isDark, x) => {
    if (!isDark || row[x - 1] === true) return []
    const end = row.indexOf(false, x)
    return [`M${x} ${y}h${end - x}v1h${x - end}z`]
  }))
  return html`<svg class="qr" role="img" aria-label="${label}" viewBox="0 0 ${size} ${size}" shape-rendering="crispEdges">
<rect width="${size}" height="${size}" fill="#fff"/><path d="${bars.join('')}" fill="#000"/>
</svg>`
}
