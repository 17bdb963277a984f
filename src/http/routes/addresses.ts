import { isIPv4, isIPv6 } from 'node:net'

/** How much of client addresses to log. */
export type Shown = 'off' | 'network' | 'full'

/**
 * Parses an IPv4 address (also IPv4-mapped), or the first four groups of an IPv6 address, because a subscriber usually
 * has a /64. Undefined for any other string: a proxy may forward any text as the address.
 */
function partsOf (address: string): { ipv4: string } | { groups: string[] } | undefined {
  const plain = address.replace(/^::ffff:/i, '')
  if (isIPv4(plain)) return { ipv4: plain }
  if (!isIPv6(address)) return undefined
  const [head = '', tail = ''] = address.replace(/%.*$/, '').split('::')
  const before = head === '' ? [] : head.split(':')
  const after = tail === '' ? [] : tail.split(':')
  const groups = [...before, ...Array<string>(Math.max(0, 8 - before.length - after.length)).fill('0'), ...after]
  return { groups: groups.slice(0, 4).map((group) => Number.parseInt(group, 16).toString(16)) }
}

/** The rate-limit key of an address: the IPv4 address, or the /64 of an IPv6 address. */
export function addressKey (address: string | undefined): string {
  if (address === undefined) return 'ip:unknown'
  const parts = partsOf(address)
  if (parts === undefined) return `ip:${address.replace(/^::ffff:/i, '')}`
  return 'ipv4' in parts ? `ip:${parts.ipv4}` : `ip:${parts.groups.join(':')}::/64`
}

/** The network of an address that a person recognizes: IPv4 /24, or IPv6 /48. Undefined for other strings. */
export function networkOf (address: string | undefined): string | undefined {
  const parts = address === undefined ? undefined : partsOf(address)
  if (parts === undefined) return undefined
  return 'ipv4' in parts ? ipv4Network(parts.ipv4) : `${parts.groups.slice(0, 3).join(':')}::/48`
}

const ipv4Network = (address: string) => `${address.replace(/\.\d+$/, '.0')}/24`

/** The client address for the log: full or its network (IPv4 /24, IPv6 /64); undefined for `off` or no address. */
export function shownAddress (address: string | undefined, shown: Shown): string | undefined {
  const parts = shown === 'off' || address === undefined ? undefined : partsOf(address)
  if (parts === undefined) return undefined
  if (shown === 'full') return 'ipv4' in parts ? parts.ipv4 : address
  return 'ipv4' in parts ? ipv4Network(parts.ipv4) : `${parts.groups.join(':')}::/64`
}
