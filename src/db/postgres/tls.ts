import { readFileSync } from 'node:fs'
import { isIP } from 'node:net'
import { checkServerIdentity, type ConnectionOptions } from 'node:tls'
import { databaseOf, hostsOf, ipv6HostsOf, refuse, splitUrl } from './url.ts'

const TLS_MODES = ['disable', 'allow', 'prefer', 'require', 'verify-ca', 'verify-full'] as const
type Mode = (typeof TLS_MODES)[number]

interface Tls {
  /** The URL for the driver: without TLS parameters and without settings that the service sets. */
  url: string
  /** Hosts and ports, if the driver cannot read them in the URL. */
  hosts: { host: string[], port: number[] } | undefined
  /** The database, if the URL names one. The driver would not percent-decode the name in the URL. */
  database: string | undefined
  /** The `ssl` option of the driver: a string for encryption without verification, options with verification. */
  ssl: false | 'prefer' | 'require' | ConnectionOptions
  /** Why the connection can be read or intercepted; undefined if it is secure. */
  weakness: string | undefined
}

/**
 * Reads `sslmode` and `sslrootcert` of a URL as libpq does. The driver alone would send `sslrootcert` to the server,
 * and verify the certificate of an IP address against `localhost`. Throws a UrlError for a URL that cannot be used.
 */
export function tlsOf (databaseUrl: string): Tls {
  const { address, parameters } = splitUrl(databaseUrl)
  const root = parameters.get('sslrootcert')
  const mode = modeOf(parameters, root)
  if (parameters.get('sslnegotiation') === 'direct' && !/^(?:require|verify-)/.test(mode)) {
    refuse('sslnegotiation=direct needs sslmode=require or, better, sslmode=verify-full')
  }
  for (const name of ['sslmode', 'ssl', 'sslrootcert']) parameters.delete(name)
  const rest = parameters.toString()
  const hosts = hostsOf(address)
  const isLocal = hosts.every((host) =>
    host === 'localhost' || host === '::1' || /^127(?:\.\d+){3}$/.test(host))
  const weakness = isLocal ? undefined : WEAKNESSES[mode]
  return {
    url: rest === '' ? address : `${address}?${rest}`,
    hosts: ipv6HostsOf(address),
    database: databaseOf(address),
    ssl: optionsFor(mode, root, hosts),
    weakness: weakness && `The connection to the database is ${weakness}: use sslmode=verify-full in DATABASE_URL`
  }
}

const OPPORTUNISTIC = 'encrypted only if the server supports it, and the server certificate is not verified'
const WEAKNESSES: Partial<Record<Mode, string>> = {
  disable: 'not encrypted',
  allow: OPPORTUNISTIC,
  prefer: OPPORTUNISTIC,
  require: 'encrypted, but the server certificate is not verified'
}

function modeOf (parameters: URLSearchParams, root: string | null): Mode {
  const [mode, ssl] = [parameters.get('sslmode'), parameters.get('ssl')].map((word) => word === null ? null : modeIn(word))
  if (mode && ssl && mode !== ssl) refuse('ssl and sslmode contradict each other: remove the parameter ssl')
  const written = mode ?? ssl ?? (root === 'system' ? 'verify-full' : 'disable')
  if (written !== 'require' || root === null) return written
  // As in libpq, an authority is used.
  return root === 'system' ? refuse('sslrootcert=system needs sslmode=verify-full') : 'verify-ca'
}

function modeIn (word: string): Mode {
  const known = word === 'true' ? 'require' : word === 'false' ? 'disable' : word
  return TLS_MODES.find((mode) => mode === known) ?? refuse(`sslmode is not ${TLS_MODES.join(', ')}`)
}

function optionsFor (mode: Mode, root: string | null, hosts: readonly string[]): Tls['ssl'] {
  if (mode === 'disable') return false
  if (mode === 'allow' || mode === 'prefer') return 'prefer'
  if (mode === 'require') return 'require'
  if (mode === 'verify-ca' && (root === null || root === 'system')) {
    refuse('sslmode=verify-ca needs sslrootcert with a file: with public authorities, any server with a certificate would be accepted')
  }
  const identity: ConnectionOptions['checkServerIdentity'] = mode === 'verify-ca'
    ? () => undefined
    : (name, certificate) => {
        if (hosts.includes(name) && isIP(name) === 0) return checkServerIdentity(name, certificate)
        // The driver passes no name for an IP address, so Node.js would verify the name `localhost`.
        const refusals = hosts.filter((host) => isIP(host) !== 0).map((host) => checkServerIdentity(host, certificate))
        return refusals.includes(undefined) ? undefined : refusals[0] ?? checkServerIdentity(name, certificate)
      }
  return {
    rejectUnauthorized: true,
    checkServerIdentity: identity,
    ...(root !== null && root !== 'system' && { ca: readAuthority(root) })
  }
}

function readAuthority (file: string): string {
  let text: string
  try {
    text = readFileSync(file, 'utf8')
  } catch (error) {
    return refuse(`sslrootcert cannot be read (${(error as NodeJS.ErrnoException).code})`)
  }
  return text.includes('-----BEGIN CERTIFICATE-----') ? text : refuse('sslrootcert contains no PEM certificate')
}
