import { LRUCache } from 'lru-cache'
import type { KeyObject } from 'node:crypto'
import type { Keyring } from '../crypto/keyring.ts'
import { hmac } from '../crypto/primitives.ts'
import { createRowEncoder, encodeField } from '../crypto/row-mac.ts'
import { CHAINED_COLUMNS, type ChainedColumn } from '../db/chain.ts'
import type { EventChain, Head } from '../db/events.ts'
import { serviceKeyContext } from './contexts.ts'

// Milliseconds for which nobody guesses after a guess that was wrong.
const MISSED_FOR = 1_000

// Events of an organization that wait for an anchor at most, and milliseconds for which the first of them does.
const UNANCHORED = { events: 1_000, time: 10 * 60_000 }

// Organizations whose heads a process remembers. Of another one, it looks first.
const MOST_HEADS = 10_000

/** The name of the key of events among the keys of the service, and what events say which key made their MACs. */
export const FIRST_CHAIN_KEY = 'events'

const encode = createRowEncoder('audit_events', CHAINED_COLUMNS)

/** The MAC of an event behind the one with the MAC `previous`; null for the first one. */
export const eventMac = (
  key: KeyObject, event: Readonly<Record<ChainedColumn, unknown>>, previous: Buffer | null
): Buffer =>
  hmac(key, encode(event) + encodeField('previous', previous))

/** The key of events, from its wrapped form. Throws MasterKeyMissing or IntegrityError when it does not open. */
export const openChainKey = (keyring: Keyring, wrapped: Buffer): KeyObject =>
  keyring.unwrapKey(wrapped, serviceKeyContext(FIRST_CHAIN_KEY))

/**
 * Chains events under a key.
 *
 * @param clock milliseconds of a clock that nobody sets
 */
export function createChain (kid: string, key: KeyObject, clock = () => performance.now()): EventChain {
  const heads = new LRUCache<string, Head>({ max: MOST_HEADS })
  const waiting = new Map<string, { first: number, last: number, since: number }>()
  const missed = new LRUCache<string, true>({ max: MOST_HEADS, ttl: MISSED_FOR })
  // From the process's own clock, which nobody sets, to the database's.
  let offset: number | undefined
  return {
    kid,
    mac: (event, previous) => eventMac(key, event, previous),
    heads: { get: (id) => heads.get(id), set: (id, head) => { heads.set(id, head) } },
    recorded (id, head) {
      heads.set(id, head)
      const last = head.next_event - 1
      const { first, since } = waiting.get(id) ?? { first: last, since: clock() }
      waiting.set(id, { first, last, since })
    },
    due: (all = false) => [...waiting].flatMap(([id, { first, last, since }]) =>
      all || last - first >= UNANCHORED.events || clock() - since >= UNANCHORED.time ? [id] : []),
    anchored (id, sequence) {
      if ((waiting.get(id)?.last ?? 0) <= sequence) waiting.delete(id)
      else waiting.set(id, { ...waiting.get(id)!, first: sequence, since: clock() })
    },
    missed: (id) => { missed.set(id, true) },
    isMissedOften: (id) => missed.has(id),
    now: () => new Date(Math.floor(offset === undefined ? Date.now() : clock() + offset)),
    told (time, asked) {
      // The answer was made between the question and now, and what is known already is changed no more than that asks.
      const least = time - clock()
      offset = Math.min(Math.max(offset ?? least, least), time - asked)
    }
  }
}
