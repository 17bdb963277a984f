import type { KeyObject } from 'node:crypto'
import type { Head } from '../db/events.ts'
import type { ChainRow } from '../repositories/chains.ts'
import { eventMac } from './chain.ts'

// Tells whether chains of events are what the service recorded, wherever the events come from: the database or a file.
// Nothing of them is trusted but their MACs, and the anchors that were kept elsewhere.

/** A chain whose events follow: what is said of it. */
export interface Chain extends Head {
  organization_id: string
  /** The event before the first that follows; null where that is the very first one. */
  after: { seq: number, mac: Buffer } | null
}

/** Where a chain was seen to end. */
export interface Anchor { organization: string, sequence: number, mac: Buffer }

/** Where a chain is broken first. */
export interface Broken {
  organization: string
  /** The first event that is not what the service recorded, or is not there. */
  sequence: number
  reason: string
  /** MACs in hexadecimal: of what should be there, as far as that can be told, and of what is. */
  expected: string | null
  actual: string | null
}

/** What of an organization was looked through: events up to one, behind one that was taken as it is if any. */
export interface Verified {
  organization: string
  after: number | null
  events: number
  last: number
  head: string | null
  broken: Broken | null
}

/** Keys by what events call them. */
export type ChainKeys = ReadonlyMap<string, KeyObject>

/** Anchors by organization and sequence: several of one event, where more than one was ever seen. */
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

  /** A MAC that was seen of this event and is not this one. */
  contradiction (organization: string, sequence: number, mac: Buffer): string | undefined {
    const other = this.#all.get(organization)?.get(sequence)?.find((text) => text !== mac.toString('latin1'))
    return other && Buffer.from(other, 'latin1').toString('hex')
  }

  /** The last event of the organization that was seen. */
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

/** Goes through the events of one chain, in the order of their numbers; of what is behind a break it says nothing. */
export class ChainVerifier {
  readonly #chain: Chain
  readonly #keys: ChainKeys
  readonly #anchors: Anchors
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

  /** The next event. Answers whether the chain holds so far. */
  add (event: ChainRow): boolean {
    if (this.#broken !== null) return false
    const { seq, mac, chain_kid } = event
    if (seq < 1) return this.#break(seq, 'is none of the numbers', null, hex(mac))
    const key = this.#keys.get(chain_kid ?? '')
    const expected = key && macOf(key, this.#own(event), this.#previous)
    const isRight = expected !== undefined && mac !== null && expected.equals(mac)
    // A number that was missing when events from before were chained is part of the next one's MAC.
    if (!isRight && seq !== this.#last + 1) return this.#break(this.#last + 1, 'is missing', null, null)
    if (mac === null) return this.#break(seq, 'has no MAC', hex(expected), null)
    if (key === undefined) return this.#break(seq, 'names a key that is not there', null, hex(mac))
    if (!isRight) return this.#break(seq, 'is not what was recorded', hex(expected), hex(mac))
    this.#previous = mac
    this.#last = seq
    this.#events++
    return this.#compare(seq, mac)
  }

  /** What should be the next event cannot be read. */
  addUnreadable (): void {
    if (this.#broken === null) this.#break(this.#last + 1, 'cannot be read', null, null)
  }

  end (): Verified {
    const { organization_id: organization, next_event, event_head } = this.#chain
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

  // Under another organization, the same event is another one.
  #own (event: ChainRow): ChainRow {
    const { organization_id } = this.#chain
    return event.organization_id === organization_id ? event : { ...event, organization_id }
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

// What has no encoding, the service has not recorded.
function macOf (key: KeyObject, event: ChainRow, previous: Buffer | null): Buffer | undefined {
  try {
    return eventMac(key, event, previous)
  } catch {
    return undefined
  }
}

const hex = (bytes: Buffer | null | undefined): string | null => bytes?.toString('hex') ?? null
