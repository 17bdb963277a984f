import { REDIRECT_LENGTH } from '../../schemas/oauth.ts'

// Redirect URIs are compared byte by byte (RFC 6749 3.1.2.3, RFC 9700 2.1). The one exception is the port of a loopback
// address (RFC 8252, 7.3): a command line tool listens on whichever is free.

const LOOPBACK =
  /^http:\/\/(127\.0\.0\.1|\[::1\]|localhost)(?::(\d{1,5}))?(\/[\x21\x24-\x3b\x3d\x3f-\x5b\x5d\x5f\x61-\x7a\x7e]*)$/
const PRIVATE_USE = /^[a-z][a-z0-9+-]*(?:\.[a-z0-9+-]+)+:\/[\x21\x24-\x3b\x3d\x3f-\x5b\x5d\x5f\x61-\x7a\x7e]*$/
// A URL's host may have a semicolon in it, which would end a directive of the policy that the host is named in.
const HOST = /^(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])$/
const OWN_PATH = /^\/[A-Za-z0-9._~/-]*$/

/**
 * Whether a client may register the URI: https, http on a loopback address, a private-use scheme in reverse domain
 * form, or a path of this service (for a page of its own). No wildcard, fragment, user, or spelling that a parser would
 * change.
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

/** Whether the URI of a request is the registered one; `issuer` is this service's own address. */
export function redirectMatches (registered: string, sent: string, issuer: string): boolean {
  if (sent.length > REDIRECT_LENGTH) return false
  // On a laptop, the service's own pages are at localhost as well as at 127.0.0.1.
  if (registered.startsWith('/')) {
    return sent === issuer + registered || (isLoopback(issuer) &&
      sent.replace('//localhost:', '//127.0.0.1:') === issuer.replace('//localhost:', '//127.0.0.1:') + registered)
  }
  if (registered === sent) return isRegistrable(sent)
  const [one, other] = [loopbackOf(registered), loopbackOf(sent)]
  return one !== undefined && other !== undefined && one.host === other.host && one.rest === other.rest
}

/** What a form may be sent on to, for the page's content security policy: the origin, or the scheme of an app. */
export function formTarget (redirectUri: string): string {
  const { origin, protocol, hostname, port } = new URL(redirectUri)
  if (origin === 'null') return protocol
  // The policy's grammar has no IPv6 address: only the port can be named.
  return hostname.startsWith('[') ? `${protocol}//*${port && `:${port}`}` : origin
}

/** Where a redirect leads, for people to read: a host, or the app that has the scheme. */
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
