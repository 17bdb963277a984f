import { LRUCache } from 'lru-cache'
import type { KeyObject } from 'node:crypto'
import { ulid } from 'ulidx'
import type { Keyring } from '../../crypto/keyring.ts'
import { hmac, takeKey } from '../../crypto/primitives.ts'
import { createRowEncoder, encodeField, rowMac } from '../../crypto/row-mac.ts'
import { transaction, type Db } from '../../db/database.ts'
import type { ChainKeyRow, EventChain, Head } from '../../db/events.ts'
import type { audit_events } from '../../db/tables.ts'
import { operatorOf, type Actor } from '../../repositories/audit/audit.ts'
import { handOver } from '../../repositories/audit/chain-keys.ts'
import { chainKeyContext, serviceKeyContext } from '../keys/contexts.ts'
import { makeKey, unlessTampered } from '../keys/keys.ts'
import { lockCurrentCanary } from '../keys/master-keys.ts'

// Maximum number of events of an organization without an anchor, and maximum age of the first one in milliseconds.
const UNANCHORED = { events: 1_000, time: 10 * 60_000 }

// Maximum chain keys in the cache. Others are loaded on demand.
const MAX_CACHED_KEYS = 10_000

/** The name of the first chain key among the service keys, and its id in events. */
export const FIRST_CHAIN_KEY = 'events'

/** A column that the MAC of an event covers. */
export type ChainedColumn = Exclude<keyof (typeof audit_events)['$inferSelect'], 'mac'>

// The order is part of the MAC: a new order needs a new chain key, whose id in an event then says which order applies.
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

/** The MAC of an event after the event with the MAC `previous`; null for the first event. */
export const eventMac = (
  key: KeyObject, event: Readonly<Record<ChainedColumn, unknown>>, previous: Buffer | null
): Buffer => hmac(key, encode(event) + encodeField('previous', previous))

/** Unwraps the first key of every chain. Throws MasterKeyMissing or IntegrityError. */
export const openFirstKey = (keyring: Keyring, wrapped: Buffer): KeyObject =>
  keyring.unwrapKey(wrapped, serviceKeyContext(FIRST_CHAIN_KEY))

/** Unwraps a later chain key. Throws MasterKeyMissing or IntegrityError. */
export const openChainKey = (keyring: Keyring, row: ChainKeyRow): KeyObject =>
  takeKey(keyring.unwrap(row.wrapped, chainKeyContext(row)))

/**
 * The proof in the event that hands a chain over: a MAC of the new key. So the former key alone cannot hand over to a
 * forged key, or from a forged past.
 */
export const handOverProof = (
  key: KeyObject, { organization_id, kid, from_seq }: Omit<ChainKeyRow, 'wrapped'>, previous: Buffer | null
): Buffer => rowMac(key, 'chain_keys', Object.entries({ organization_id, kid, from_seq, previous }))

/** The range of a chain in an export: since which moment, after which event, and up to which event. */
export interface ExportedChain extends Head {
  organization_id: string
  /** The organization of an export for one organization. */
  only: string | null
  since: string | null
  after: { seq: number, mac: Buffer } | null
}

/** The MAC of a range under the last key, so that a partial export cannot pass for a complete or a later export. */
export const exportMac = (key: KeyObject, chain: ExportedChain): Buffer => {
  const { organization_id, only, since, after, next_event, event_head, chain_kid } = chain
  return rowMac(key, 'audit_export', Object.entries({
    organization_id, only, since, seq: after?.seq ?? null, mac: after?.mac ?? null, next_event, event_head, chain_kid
  }))
}

/** Hands the chain of the actor's organization over to a new key. Undefined without a counter. The canary is locked. */
export async function handOverChain (db: Db, keyring: Keyring, actor: Actor): Promise<ChainKeyRow | undefined> {
  const { organization_id } = actor
  return handOver(db, actor, ({ next_event, event_head }) => {
    const place = { organization_id, kid: ulid(), from_seq: next_event + 1 }
    const { key, wrapped } = makeKey(keyring, chainKeyContext(place))
    return { key: { ...place, wrapped }, proof: handOverProof(key, place, event_head) }
  })
}

/** The same in a transaction of its own, for the operator. */
export async function rotateChainKey (
  handle: Db, keyring: Keyring, organizationId: string
): Promise<ChainKeyRow | undefined> {
  return transaction(handle, async (db) => {
    await lockCurrentCanary(db, keyring)
    return handOverChain(db, keyring, operatorOf(organizationId))
  }, operatorOf(organizationId))
}

/** Computes MACs under the first chain key and later ones. `clock` is a monotonic clock in milliseconds. */
export function createChain (
  kid: string, first: KeyObject, open: (row: ChainKeyRow) => KeyObject, clock = () => performance.now()
): EventChain {
  const keys = new LRUCache<string, KeyObject>({ max: MAX_CACHED_KEYS })
  const nameOf = (organizationId: string, id: string) => `${organizationId} ${id}`
  const waiting = new Map<string, { first: number, last: number, since: number }>()
  // The offset of the database's clock to the monotonic clock of the process.
  let offset: number | undefined
  let last: number | undefined
  return {
    kid,
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
      const { first, since } = waiting.get(id) ?? { first: end, since: clock() }
      waiting.set(id, { first, last: end, since })
    },
    lag () {
      const oldest = [...waiting.values()].reduce((least, { since }) => Math.min(least, since), clock())
      return {
        organizations: waiting.size,
        seconds: (clock() - oldest) / 1000,
        last: last === undefined ? undefined : new Date(last)
      }
    },
    due: (all = false) => [...waiting].flatMap(([id, { first, last, since }]) =>
      all || last - first >= UNANCHORED.events || clock() - since >= UNANCHORED.time ? [id] : []),
    anchored (id, sequence) {
      if ((waiting.get(id)?.last ?? 0) <= sequence) waiting.delete(id)
      else waiting.set(id, { ...waiting.get(id)!, first: sequence, since: clock() })
    },
    now: () => new Date(Math.floor(offset === undefined ? Date.now() : clock() + offset)),
    recordClockSample (time, sentAt) {
      // The response was created between sending and now. The offset changes only as far as these bounds require.
      const least = time - clock()
      offset = Math.min(Math.max(offset ?? least, least), time - sentAt)
    }
  }
}
