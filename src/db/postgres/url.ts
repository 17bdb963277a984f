import { isFixed } from './session.ts'

/** A DATABASE_URL has a part that cannot be used. The message is one line for the operator, without credentials. */
export class UrlError extends Error {
  override name = 'UrlError'
}

/** Throws a UrlError; usable as an expression. */
export function refuse (sentence: string): never {
  throw new UrlError(`DATABASE_URL: ${sentence}`)
}

const IN_ADDRESS = 'write it as postgres://USER:PASSWORD@HOST:PORT/DATABASE, and remove the parameter'
const PASSWORD_ONLY = 'only passwords are supported: use a user with a password, and remove the parameter'
const BY_SERVICE = 'the service decides this itself: remove the parameter'
const BY_SYSTEM = 'the system decides this (TCP keep-alive, OpenSSL): remove the parameter'

// The parameters of libpq that the driver does not know, with what to change. The driver would send them to the server,
// which refuses the connection because they are no settings of the server; `replication` would start another protocol.
const OF_LIBPQ: Record<string, string> = {
  channel_binding: 'the driver has no channel binding: remove the parameter; sslmode=verify-full verifies the server',
  gssencmode: 'the driver has no GSSAPI: remove the parameter; sslmode=verify-full encrypts the connection',
  sslcrl: 'the driver reads no revocation list: remove the parameter',
  sslcrldir: 'the driver reads no revocation list: remove the parameter',
  requiressl: 'write sslmode=require or, better, sslmode=verify-full instead',
  load_balance_hosts: 'the hosts are tried in their order: remove the parameter',
  ...of(IN_ADDRESS, 'host', 'hostaddr', 'port', 'dbname', 'database', 'user', 'password', 'passfile', 'service', 'servicefile'),
  ...of(PASSWORD_ONLY, 'require_auth', 'requirepeer', 'sslcert', 'sslkey', 'sslpassword', 'sslcertmode', 'krbsrvname',
    'gsslib', 'gssdelegation', 'scram_client_key', 'scram_server_key', 'oauth_issuer', 'oauth_client_id',
    'oauth_client_secret', 'oauth_scope'),
  ...of(BY_SERVICE, 'fallback_application_name', 'replication', 'min_protocol_version', 'max_protocol_version'),
  ...of(BY_SYSTEM, 'keepalives', 'keepalives_idle', 'keepalives_interval', 'keepalives_count', 'tcp_user_timeout',
    'sslcompression', 'sslsni', 'ssl_min_protocol_version', 'ssl_max_protocol_version', 'sslkeylogfile')
}

function of (advice: string, ...names: string[]) {
  return Object.fromEntries(names.map((name) => [name, advice]))
}

// The parameters that the service or the driver reads; others are settings of the server, which has no such names.
const READ = ['sslmode', 'ssl', 'sslrootcert', 'sslnegotiation', 'target_session_attrs', 'connect_timeout']

// The values of `target_session_attrs` that the driver knows. The other one of libpq, `any`, is the default.
const SESSION_ATTRS = ['read-write', 'read-only', 'primary', 'standby', 'prefer-standby']

/**
 * Splits a DATABASE_URL into the address and the parameters, without the settings that the service sets on each
 * connection. Throws a UrlError for a Unix socket, a repeated parameter, and a parameter of libpq, or a value of one,
 * that the driver does not know.
 */
export function splitUrl (databaseUrl: string): { address: string, parameters: URLSearchParams } {
  // The query begins at the first question mark; later question marks belong to values.
  const [, written = '', query = ''] = /^([^?]*)\??([^]*)$/.exec(databaseUrl) ?? []
  const address = withHosts(written)
  const parameters = new URLSearchParams(query)
  const names = [...parameters.keys()]
  const twice = names.find((name, i) => names.indexOf(name) < i)
  if (twice !== undefined) refuse(`${JSON.stringify(twice)} is there twice`)
  if (isSocket(parameters.get('host') ?? '') || hostsOf(address).some(isSocket)) {
    refuse('Unix sockets are not supported: let PostgreSQL listen on 127.0.0.1 (listen_addresses), and write 127.0.0.1:5432 as the host')
  }
  for (const name of names) {
    const known = name.toLowerCase()
    const advice = Object.hasOwn(OF_LIBPQ, known) ? OF_LIBPQ[known] : undefined
    if (advice !== undefined) refuse(`the parameter ${name} is not supported; ${advice}`)
    // Without a word, the connection would be made without encryption, and the server would refuse it later.
    if (name !== known && READ.includes(known)) refuse(`write the parameter ${name} as ${known}`)
    if (isFixed(name)) parameters.delete(name)
  }
  const attrs = parameters.get('target_session_attrs')
  if (attrs === 'any') parameters.delete('target_session_attrs')
  else if (attrs !== null && !SESSION_ATTRS.includes(attrs)) {
    refuse(`target_session_attrs is not any, ${SESSION_ATTRS.join(', ')}`)
  }
  return { address, parameters }
}

/**
 * An address without the colon of an empty port, which the driver would take as a part of the host. An empty host is
 * `localhost`; the driver would take it from PGHOST.
 */
const withHosts = (address: string) =>
  address.replace(/^([^:]+:\/\/(?:[^/@]*@)?)([^/]*)/, (_, before: string, hosts: string) =>
    before + hosts.replace(/:(?=,|$)/g, '').replace(/(?<=^|,)(?=:|,|$)/g, 'localhost'))

/** The name of the database in an address, which the driver would not decode; undefined for the default. */
export function databaseOf (address: string): string | undefined {
  const [, path = ''] = /^[^:]+:\/\/[^/]*\/(.*)$/.exec(address) ?? []
  return path === '' ? undefined : decodeURIComponent(path)
}

// A path, or an abstract socket of Linux.
const isSocket = (host: string) => /^(?:\/|%2f|@|%40)/i.test(host)

const PORT = 5432

const partsOf = (address: string): { host: string, port: number }[] => {
  const [, hosts = ''] = /^[^:]+:\/\/(?:[^/@]*@)?([^/]*)/.exec(address) ?? []
  return hosts.split(',').map((host) => ({
    host: host.replace(/:\d+$/, '').replace(/^\[(.*)\]$/, '$1').toLowerCase(),
    port: Number(/:(\d+)$/.exec(host)?.[1] ?? PORT)
  }))
}

/** The hosts of an address, in lower case, without ports and brackets. */
export const hostsOf = (address: string): string[] => partsOf(address).map(({ host }) => host)

/**
 * The hosts and ports of an address with an IPv6 address, as options of the driver, which would split the address at
 * its colons; undefined for other addresses.
 */
export function ipv6HostsOf (address: string): { host: string[], port: number[] } | undefined {
  const parts = partsOf(address)
  if (!parts.some(({ host }) => host.includes(':'))) return undefined
  return { host: parts.map(({ host }) => host), port: parts.map(({ port }) => port) }
}
