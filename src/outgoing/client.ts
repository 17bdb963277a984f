import { lookup, Resolver } from 'node:dns/promises'
import { isIP, type LookupFunction } from 'node:net'
import { createSecureContext, rootCertificates } from 'node:tls'
import ipaddr from 'ipaddr.js'
import type { Config, Destination } from '../config.ts'
import { Gate, type Limit } from '../gate.ts'

/** Why a request failed: no allowed address; no connection, or a timeout; an unusable response. */
export type OutgoingFailure = 'address' | 'unreachable' | 'response'

/** An outgoing request failed. The message is for the operator's log. */
export class OutgoingError extends Error {
  override name = 'OutgoingError'
  readonly failure: OutgoingFailure

  constructor (failure: OutgoingFailure, message: string) {
    super(message)
    this.failure = failure
  }
}

export interface OutgoingLimits {
  /** Maximum bytes of a response. */
  bytes: number
  /** Milliseconds for a request; the same again for its wait in the queue. */
  timeout: number
  /** Concurrent and waiting requests: of all organizations, of one, and of one to the same host. */
  concurrency: readonly [all: Limit, organization: Limit, host: Limit]
}

export interface Outgoing {
  /**
   * Returns the text of a response with status 200. Throws an OutgoingError; or a WorkOverloaded, if the organization
   * has too many requests.
   */
  get (organization: string, url: string): Promise<string>
}

/** Returns the addresses of a name. `isListed`: the operator lists the name in OUTGOING_ALLOW. */
export type Resolve = (name: string, isListed: boolean, signal: AbortSignal) => Promise<string[]>

/**
 * The only way to URLs that users choose. It connects over https to public addresses, and to what the operator lists,
 * and follows no redirects. It resolves a name once and connects to the addresses that it checked: a second look-up
 * could give another address.
 */
export function createOutgoing (
  { allow, authorities }: Config['outgoing'], { bytes, timeout, concurrency }: OutgoingLimits,
  resolve: Resolve = resolveName
): Outgoing {
  const gate = new Gate(concurrency, { work: 'outgoing requests', timeout })
  const trust = authorities !== undefined &&
    { secureContext: createSecureContext({ ca: [...rootCertificates, authorities] }) }

  async function allowedAddresses ({ hostname, port }: URL, signal: AbortSignal) {
    const host = hostname.replace(/^\[(.*)\]$/, '$1')
    const listed = allow.filter((entry) => entry.port === undefined || entry.port === Number(port || 443))
    const isListed = listed.some((entry) => entry.bits === undefined && entry.host === host)
    const found = isIP(host) === 0 ? await unlessAborted(resolve(host, isListed, signal), signal) : [host]
    const allowed = found.filter((address) =>
      isListed || isPublic(address) || listed.some((entry) => contains(entry, address)))
    if (allowed.length === 0) throw new OutgoingError('address', `${host} has no allowed address`)
    return allowed.map((address) => ({ address, family: isIP(address) }))
  }

  async function send (url: URL): Promise<string> {
    const signal = AbortSignal.timeout(timeout)
    const addresses = await allowedAddresses(url, signal)
    const toChecked: LookupFunction = (_host, { all }, done) => {
      if (all) done(null, addresses)
      else done(null, addresses[0]!.address, addresses[0]!.family)
    }
    // Imports undici with the first request, to keep the start fast.
    const { Client } = await import('undici')
    // A client for each request: a pooled connection would outlive the check of its address.
    const client = new Client(url.origin, {
      connect: { lookup: toChecked, rejectUnauthorized: true, timeout, ...trust },
      maxResponseSize: bytes
    })
    try {
      const { statusCode, body } = await client.request({
        method: 'GET',
        path: url.pathname + url.search,
        headers: { accept: 'application/json', 'user-agent': 'strongroom' },
        signal
      })
      // Without a listener, the error of an unread body would end the process.
      body.on('error', () => {})
      if (statusCode !== 200) throw new OutgoingError('response', `status ${statusCode}`)
      return await body.text()
    } finally {
      client.destroy().catch(() => {})
    }
  }

  return {
    get: async (organization, text) => {
      const url = URL.canParse(text) ? new URL(text) : undefined
      if (url?.protocol !== 'https:' || url.username !== '' || url.password !== '') {
        throw new OutgoingError('address', 'only https URLs without a user are allowed')
      }
      return gate.run([organization, url.host], () => send(url).catch((error) => { throw failureOf(error) }))
    }
  }
}

// A look-up of the system cannot be aborted.
const unlessAborted = <T>(work: Promise<T>, signal: AbortSignal): Promise<T> => new Promise((resolve, reject) => {
  signal.addEventListener('abort', () => { reject(new OutgoingError('unreachable', 'the name was not resolved in time')) }, { once: true })
  work.then(resolve, reject)
})

// `lookup` reads /etc/hosts, but holds a thread of the pool until it has an answer. A slow server of names that a user
// chose must not hold these threads, so all other names are resolved without a thread.
const resolveName: Resolve = async (name, isListed, signal) => {
  if (isListed) return (await lookup(name, { all: true })).map(({ address }) => address)
  const resolver = new Resolver({ timeout: 2_000, tries: 2 })
  signal.addEventListener('abort', () => { resolver.cancel() }, { once: true })
  const found = await Promise.allSettled([resolver.resolve4(name), resolver.resolve6(name)])
  return found.flatMap((result) => result.status === 'fulfilled' ? result.value : [])
}

const GLOBAL_UNICAST = ipaddr.parseCIDR('2000::/3')
// The services of Azure for its virtual machines have a public address.
const METADATA = ['168.63.129.16']

/** Whether an address is a public one. IPv4 addresses inside of IPv6 addresses are none. */
export function isPublic (address: string): boolean {
  if (isIP(address) === 0 || METADATA.includes(address)) return false
  const parsed = ipaddr.parse(address)
  return parsed.range() === 'unicast' && (parsed.kind() === 'ipv4' || parsed.match(GLOBAL_UNICAST))
}

function contains ({ host, bits }: Destination, address: string): boolean {
  if (bits === undefined || isIP(address) === 0 || isIP(address) !== isIP(host)) return false
  return ipaddr.parse(address).match(ipaddr.parse(host), bits)
}

function failureOf (error: Error & { code?: string }): OutgoingError {
  if (error instanceof OutgoingError) return error
  const code = error.code ?? error.name
  const isResponse = /^(?:HPE_|UND_ERR_RES_|UND_ERR_HEADERS_OVERFLOW)/.test(code)
  return new OutgoingError(isResponse ? 'response' : 'unreachable', code)
}
