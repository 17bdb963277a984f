import { LRUCache } from 'lru-cache'
import type { KeyObject } from 'node:crypto'
import { ulid } from 'ulidx'
import type { Keyring } from '../../crypto/keyring.ts'
import { hmac, takeKey } from '../../crypto/primitives.ts'
import { createRowEncoder, encodeField, rowMac } from '../../crypto/row-mac.ts'
import type { Counter } from '../../db/rows/counter.ts'
import type { Db } from '../../db/database.ts'
import type { ChainKeyRow, EventChain, Head, KnownEnd } from '../../db/events.ts'
import type { audit_events } from '../../db/tables.ts'
import type { AuditEvent } from '../../repositories/audit/audit.ts'
import { handOver } from '../../repositories/audit/chains.ts'
import { chainKeyContext, serviceKeyContext } from '../keys/contexts.ts'
import { makeKey, unlessTampered } from '../keys/keys.ts'

// An organization needs an anchor (`createAnchorWorker`) after this many events or milliseconds without an anchor.
const UNANCHORED = { events: 1_000, time: 10 * 60_000 }

// Chain keys that the cache evicts are loaded again on demand.
const MAX_CACHED_KEYS = 10_000
// About 300 bytes each. Without a known end, the event of a read takes a transaction.
const MAX_KNOWN_ENDS = 10_000

/** The name of the first chain key in `service_keys`, and its id in events. */
export const FIRST_CHAIN_KEY = 'events'

/** A column that the MAC of an event covers. */
export type ChainedColumn = Exclude<keyof (typeof audit_events)['$inferSelect'], 'mac'>

// The MAC depends on the order of the columns. A new order would need a new chain key, so that `chain_kid` shows which
// order an event has.
const CHAINED = {
  organization_id: true,
  seq: true,
  occurred_at: true,
  action: true,
  actor_type: true,
  actor_id: true,
  resource_type: true,
  resource_id: true,
  request_id: true,
  ip: true,
  user_agent: true,
  details: true,
  chain_kid: true
} satisfies Record<ChainedColumn, true>

const encode = createRowEncoder('audit_events', { fields: Object.keys(CHAINED) })

/** The MAC of an event, which also covers the MAC of the previous event (null for the first event). */
export const eventMac = (
  key: KeyObject, event: Readonly<Record<ChainedColumn, unknown>>, previous: Buffer | null
): Buffer => hmac(key, encode(event) + encodeField('previous', previous))

/** Unwraps the first chain key, which all organizations share. Throws MasterKeyMissing or IntegrityError. */
export const openFirstKey = (keyring: Keyring, wrapped: Buffer): KeyObject =>
  keyring.unwrapKey(wrapped, serviceKeyContext(FIRST_CHAIN_KEY))

/** Unwraps a later chain key, which belongs to one organization. Throws MasterKeyMissing or IntegrityError. */
export const openChainKey = (keyring: Keyring, row: ChainKeyRow): KeyObject =>
  takeKey(keyring.unwrap(row.wrapped, chainKeyContext(row)))

/**
 * The proof in the event that ends the use of a chain key: a MAC under the next key. So an attacker who knows only the
 * former key cannot forge this event or the events before it.
 */
export const handOverProof = (
  key: KeyObject, { organization_id, kid, from_seq }: Omit<ChainKeyRow, 'wrapped'>, previous: Buffer | null
): Buffer => rowMac(key, 'chain_keys', Object.entries({ organization_id, kid, from_seq, previous }))

/** The exported part of a chain: its start, as a time (`since`) and as the event before (`after`), and its end. */
export interface ExportedChain extends Head {
  organization_id: string
  /** The organization if the export has only one organization; otherwise null. */
  only: string | null
  since: string | null
  after: { seq: number, mac: Buffer } | null
}

/** The MAC of an exported part under the last key, so that a partial export cannot pass for a complete export. */
export const exportMac = (key: KeyObject, chain: ExportedChain): Buffer => {
  const { organization_id, only, since, after, next_event, event_head, chain_kid } = chain
  return rowMac(key, 'audit_export', Object.entries({
    organization_id, only, since, seq: after?.seq ?? null, mac: after?.mac ?? null, next_event, event_head, chain_kid
  }))
}

/**
 * Replaces the chain key of an organization. Returns the event, which must be the first event of the transaction. The
 * caller has locked the canary.
 */
export async function handOverChain (
  db: Db, keyring: Keyring, { organization_id, head: { next_event, event_head } }: Counter
): Promise<{ key: ChainKeyRow, event: AuditEvent }> {
  const place = { organization_id, kid: ulid(), from_seq: next_event + 1 }
  const { key, wrapped } = makeKey(keyring, chainKeyContext(place))
  const row = { ...place, wrapped }
  return { key: row, event: await handOver(db, row, handOverProof(key, place, event_head)) }
}

/** Creates the EventChain of a database. `open` unwraps a chain key. `clock` is a monotonic clock in milliseconds. */
export function createChain (
  kid: string, first: KeyObject, open: (row: ChainKeyRow) => KeyObject, clock = () => performance.now()
): EventChain {
  const keys = new LRUCache<string, KeyObject>({ max: MAX_CACHED_KEYS })
  const nameOf = (organizationId: string, id: string) => `${organizationId} ${id}`
  const unanchored = new Map<string, { first: number, last: number, since: number }>()
  // The time of the database minus the time of `clock`.
  let offset: number | undefined
  let last: number | undefined
  return {
    kid,
    knownEnds: new LRUCache<string, KnownEnd>({ max: MAX_KNOWN_ENDS }),
    hasKey: (organizationId, id) => id === null || keys.has(nameOf(organizationId, id)),
    openKey (row) {
      const key = unlessTampered(() => open(row))
      if (key !== undefined) keys.set(nameOf(row.organization_id, row.kid), key)
    },
    mac (event, previous) {
      const key = event.chain_kid === kid ? first : keys.get(nameOf(event.organization_id, event.chain_kid))
      if (key === undefined) throw new Error('the chain key is not loaded')
      return eventMac(key, event, previous)
    },
    recorded (id, head) {
      last = Date.now()
      const end = head.next_event - 1
      const { first, since } = unanchored.get(id) ?? { first: end, since: clock() }
      unanchored.set(id, { first, last: end, since })
    },
    lag () {
      const oldest = [...unanchored.values()].reduce((least, { since }) => Math.min(least, since), clock())
      return {
        organizations: unanchored.size,
        seconds: (clock() - oldest) / 1000,
        last: last === undefined ? undefined : new Date(last)
      }
    },
    due: (all = false) => [...unanchored].flatMap(([id, { first, last, since }]) =>
      all || last - first >= UNANCHORED.events || clock() - since >= UNANCHORED.time ? [id] : []),
    anchored (id, sequence) {
      if ((unanchored.get(id)?.last ?? 0) <= sequence) unanchored.delete(id)
      else unanchored.set(id, { ...unanchored.get(id)!, first: sequence, since: clock() })
    },
    now: () => new Date(Math.floor(offset === undefined ? Date.now() : clock() + offset)),
    recordClockSample (time, sentAt) {
      // The database read its clock between `sentAt` and now, so the offset has a lower and an upper bound. The offset
      // changes only as far as these bounds require.
      const least = time - clock()
      offset = Math.min(Math.max(offset ?? least, least), time - sentAt)
    }
  }
}
