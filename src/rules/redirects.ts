import { REDIRECT_LENGTH } from '../../schemas/oauth.ts'

// Redirect URIs are compared byte by byte (RFC 6749 3.1.2.3, RFC 9700 2.1). The port of a loopback address may differ
// (RFC 8252, 7.3), because a command line tool listens on any free port.

const LOOPBACK =
  /^http:\/\/(127\.0\.0\.1|\[::1\]|localhost)(?::(\d{1,5}))?(\/[\x21\x24-\x3b\x3d\x3f-\x5b\x5d\x5f\x61-\x7a\x7e]*)$/
const PRIVATE_USE = /^[a-z][a-z0-9+-]*(?:\.[a-z0-9+-]+)+:\/[\x21\x24-\x3b\x3d\x3f-\x5b\x5d\x5f\x61-\x7a\x7e]*$/
// Excludes `;`, which is valid in a URL's host but would end the directive of the content security policy.
const HOST = /^(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])$/
const OWN_PATH = /^\/[A-Za-z0-9._~/-]*$/

/**
 * Whether a client may register the URI: https, http on a loopback address, a private-use scheme in reverse domain
 * form, or a path of this service. Rejects wildcards, fragments, user names, and URIs that the URL parser would
 * normalize.
 */
export function isRegistrable (uri: string): boolean {
  if (uri.length > REDIRECT_LENGTH || uri.includes('*')) return false
  if (OWN_PATH.test(uri)) {
    return !uri.includes('//') && !uri.split('/').some((segment) => segment === '.' || segment === '..')
  }
  const loopback = loopbackOf(uri)
  if (loopback !== undefined) {
    const { pathname, search } = new URL(uri)
    return pathname + search === loopback.rest
  }
  if (uri.includes('#') || !URL.canParse(uri)) return false
  const { href, protocol, username, password, hostname } = new URL(uri)
  if (href !== uri || username !== '' || password !== '') return false
  return protocol === 'https:' ? HOST.test(hostname) : PRIVATE_USE.test(uri)
}

/** Whether the `redirect_uri` of a request matches the registered URI; `issuer` is the URL of this service. */
export function redirectMatches (registered: string, sent: string, issuer: string): boolean {
  if (sent.length > REDIRECT_LENGTH) return false
  // In local development, localhost and 127.0.0.1 are the same service.
  if (registered.startsWith('/')) {
    return sent === issuer + registered || (isLoopback(issuer) &&
      sent.replace('//localhost:', '//127.0.0.1:') === issuer.replace('//localhost:', '//127.0.0.1:') + registered)
  }
  if (registered === sent) return isRegistrable(sent)
  const [one, other] = [loopbackOf(registered), loopbackOf(sent)]
  return one !== undefined && other !== undefined && one.host === other.host && one.rest === other.rest
}

/** The source for `form-action` in the content security policy: the URI's origin, or the scheme of an app. */
export function formTarget (redirectUri: string): string {
  const { origin, protocol, hostname, port } = new URL(redirectUri)
  if (origin === 'null') return protocol
  // CSP host sources cannot be IPv6 addresses, so allow any host with this port.
  return hostname.startsWith('[') ? `${protocol}//*${port && `:${port}`}` : origin
}

/** The target of a redirect for display: a host, or the app that handles the scheme. */
export function destinationOf (redirectUri: string): string {
  const { origin, host, protocol } = new URL(redirectUri)
  return origin === 'null' ? `the app behind ${protocol}` : host
}

const isLoopback = (issuer: string) => /^http:\/\/(?:127\.0\.0\.1|localhost):\d+(?:\/|$)/.test(issuer)

function loopbackOf (uri: string): { host: string, rest: string } | undefined {
  const [, host, port, rest] = LOOPBACK.exec(uri) ?? []
  if (host === undefined || rest === undefined) return undefined
  if (port !== undefined && (port.startsWith('0') || Number(port) < 1 || Number(port) > 65535)) return undefined
  return { host, rest }
}
