import type { KeyObject } from 'node:crypto'
import { HAND_OVER, type Head } from '../../db/events.ts'
import type { ChainRow } from '../../repositories/audit/chains.ts'
import { eventMac, handOverProof } from './chain.ts'

// Verifies audit chains from the database or an export file. Both may be forged: only MACs and anchors are trusted.

/** A chain to verify, without its events. */
interface Chain extends Head {
  organization_id: string
  /** The event before the first event to verify. Null: the whole chain is verified. */
  after: { seq: number, mac: Buffer } | null
  /** Whether the export has a wrong MAC. */
  isForged?: boolean
}

/** An anchor: the end of a chain at some time, from an archived log. */
interface Anchor { organization: string, sequence: number, mac: Buffer }

/** The first error in a chain. */
interface Broken {
  organization: string
  /** The number of the first event that is missing or has a wrong MAC. */
  sequence: number
  reason: string
  /** MACs in hexadecimal: the expected MAC, if it can be computed, and the stored MAC. */
  expected: string | null
  actual: string | null
}

/** The result for an organization: the number of valid events after number `after` (null: from the first) to `last`. */
export interface Verified {
  organization: string
  after: number | null
  events: number
  last: number
  head: string | null
  broken: Broken | null
}

/** A chain key, and the number of its first event. */
export interface ChainKey { kid: string, from_seq: number, key: KeyObject }

/** The unwrapped keys of a chain, in order. All chains share the first key. */
export type ChainKeys = readonly [ChainKey, ...ChainKey[]]

/** Archived anchors. If anchors for the same event have different MACs, keeps all of them. */
export class Anchors {
  readonly #all = new Map<string, Map<number, string[]>>()

  add ({ organization, sequence, mac }: Anchor): void {
    const own = this.#all.get(organization) ?? new Map<number, string[]>()
    this.#all.set(organization, own)
    const known = own.get(sequence)
    const text = mac.toString('latin1')
    if (known === undefined) own.set(sequence, [text])
    else if (!known.includes(text)) known.push(text)
  }

  organizations (): string[] {
    return [...this.#all.keys()]
  }

  /** A MAC from an anchor for this event that differs from `mac`, in hexadecimal; undefined if all are equal. */
  contradiction (organization: string, sequence: number, mac: Buffer): string | undefined {
    const other = this.#all.get(organization)?.get(sequence)?.find((text) => text !== mac.toString('latin1'))
    return other && Buffer.from(other, 'latin1').toString('hex')
  }

  /** The last event of the organization for which there is an anchor. */
  last (organization: string): { sequence: number, mac: string } | undefined {
    let last: { sequence: number, mac: string } | undefined
    for (const [sequence, [mac]] of this.#all.get(organization) ?? []) {
      if (last === undefined || sequence > last.sequence) {
        last = { sequence, mac: Buffer.from(mac!, 'latin1').toString('hex') }
      }
    }
    return last
  }
}

/** Verifies the events of one chain in order, up to the first error. */
export class ChainVerifier {
  readonly #chain: Chain
  readonly #keys: ChainKeys
  readonly #anchors: Anchors
  #at = 0
  #previous: Buffer | null
  #last: number
  #events = 0
  #broken: Broken | null = null

  constructor (chain: Chain, keys: ChainKeys, anchors: Anchors) {
    this.#chain = chain
    this.#keys = keys
    this.#anchors = anchors
    this.#previous = chain.after?.mac ?? null
    this.#last = chain.after?.seq ?? 0
    if (chain.after !== null) this.#compare(chain.after.seq, chain.after.mac)
  }

  get isBroken (): boolean {
    return this.#broken !== null
  }

  /** Verifies the next event. Returns whether the chain is intact so far. */
  add (event: ChainRow): boolean {
    if (this.#broken !== null) return false
    const { seq, mac, chain_kid } = event
    if (seq < 1) return this.#break(seq, 'is none of the numbers', null, hex(mac))
    const { organization_id } = this.#chain
    const { kid, key } = this.#keyOf(seq)
    // The MAC covers the organization, so the MAC of an event that was copied from another organization is wrong.
    const expected = chain_kid === kid ? macOf(key, { ...event, organization_id }, this.#previous) : undefined
    if (seq !== this.#last + 1) return this.#break(this.#last + 1, 'is missing', null, null)
    if (mac === null) return this.#break(seq, 'has no MAC', hex(expected), null)
    if (chain_kid !== kid) {
      const isOther = this.#keys.some((other) => other.kid === chain_kid)
      const what = isOther ? 'names a key that is not in force there' : 'names a key that is not there'
      return this.#break(seq, what, null, hex(mac))
    }
    if (expected?.equals(mac) !== true) return this.#break(seq, 'is not what was recorded', hex(expected), hex(mac))
    const follows = this.#keys[this.#at + 1]
    if (follows?.from_seq === seq + 1) {
      if (!this.#handsOver(event, follows)) {
        return this.#break(seq, 'does not hand over to the key that follows', null, hex(mac))
      }
    } else if (event.action === HAND_OVER) {
      return this.#break(seq, 'hands over to a key that is not there', null, hex(mac))
    }
    this.#previous = mac
    this.#last = seq
    this.#events++
    return this.#compare(seq, mac)
  }

  /** Records an event that cannot be parsed as the first error. */
  addUnreadable (): void {
    if (this.#broken === null) this.#break(this.#last + 1, 'cannot be read', null, null)
  }

  end (): Verified {
    const { organization_id: organization, next_event, event_head, chain_kid, isForged } = this.#chain
    if (this.#broken === null) {
      const anchor = this.#anchors.last(organization)
      if (this.#last + 1 < next_event) {
        this.#break(this.#last + 1, 'is missing', hex(event_head), null)
      } else if (anchor !== undefined && anchor.sequence > this.#last) {
        this.#break(this.#last + 1, 'is missing: an anchor names a later one', anchor.mac, null)
      } else if (next_event <= this.#last) {
        this.#break(next_event, 'is behind the end that the counter says', null, null)
      } else if (hex(event_head) !== hex(this.#previous)) {
        this.#break(this.#last, 'is not the one that the counter ends with', hex(this.#previous), hex(event_head))
      } else if (this.#keys.at(-1)!.from_seq - 1 > this.#last) {
        this.#break(this.#last + 1, 'is missing: a key of the chain follows a later one', null, null)
      } else if ((chain_kid ?? this.#keys[0].kid) !== this.#keyOf(next_event).kid) {
        this.#break(next_event, 'would be under a key that is not in force there', null, null)
      } else if (isForged) {
        this.#break(1, 'may not be the first: the export says of itself what the service did not write', null, null)
      }
    }
    return {
      organization,
      after: this.#chain.after?.seq ?? null,
      events: this.#events,
      last: this.#last,
      head: hex(this.#previous),
      broken: this.#broken
    }
  }

  #handsOver ({ action, resource_id, details }: ChainRow, { kid, from_seq, key }: ChainKey): boolean {
    const { organization_id } = this.#chain
    const proof = hex(handOverProof(key, { organization_id, kid, from_seq }, this.#previous))
    return action === HAND_OVER && resource_id === kid && details?.proof === proof
  }

  // The key for an event number. Call this with ascending numbers.
  #keyOf (seq: number): ChainKey {
    while (this.#at + 1 < this.#keys.length && this.#keys[this.#at + 1]!.from_seq <= seq) this.#at++
    return this.#keys[this.#at]!
  }

  #compare (sequence: number, mac: Buffer): boolean {
    const other = this.#anchors.contradiction(this.#chain.organization_id, sequence, mac)
    return other === undefined || this.#break(sequence, 'is another one than an anchor says', other, hex(mac))
  }

  #break (sequence: number, reason: string, expected: string | null, actual: string | null): false {
    this.#broken = { organization: this.#chain.organization_id, sequence, reason, expected, actual }
    return false
  }
}

// Undefined if the event has values that cannot be encoded. The service never records such events.
function macOf (key: KeyObject, event: ChainRow, previous: Buffer | null): Buffer | undefined {
  try {
    return eventMac(key, event, previous)
  } catch {
    return undefined
  }
}

const hex = (bytes: Buffer | null | undefined): string | null => bytes?.toString('hex') ?? null
