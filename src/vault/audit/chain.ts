import { LRUCache } from 'lru-cache'
import type { KeyObject } from 'node:crypto'
import { ulid } from 'ulidx'
import { IntegrityError } from '../../crypto/at-rest.ts'
import { MasterKeyMissing, type Keyring } from '../../crypto/keyring.ts'
import { hmac, random, takeKey } from '../../crypto/primitives.ts'
import { createRowEncoder, encodeField, rowMac } from '../../crypto/row-mac.ts'
import { transaction, type Db } from '../../db/database.ts'
import type { ChainKeyRow, EventChain, Head } from '../../db/events.ts'
import type { audit_events } from '../../db/tables.ts'
import { operatorOf, type Actor } from '../../repositories/audit/audit.ts'
import { handOver } from '../../repositories/audit/chain-keys.ts'
import { chainKeyContext, serviceKeyContext } from '../keys/contexts.ts'
import { holdCanary } from '../keys/master-keys.ts'

// Events of an organization that wait for an anchor at most, and milliseconds for which the first of them does.
const UNANCHORED = { events: 1_000, time: 10 * 60_000 }

// Keys of chains that a process remembers. Any other is looked up first.
const MOST_KEYS = 10_000

/** The name of the key of events among the keys of the service, and what events say which key made their MACs. */
export const FIRST_CHAIN_KEY = 'events'

/** A column that the MAC of an event covers. */
export type ChainedColumn = Exclude<keyof (typeof audit_events)['$inferSelect'], 'mac'>

// Every column but the MAC itself. Their order is part of the MAC. A new order needs a new chain key; the key id of an
// event then says which order applies.
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
/** The columns that the MAC of an event covers, in this order; the MAC of the event before follows. */
export const CHAINED_COLUMNS = Object.keys(CHAINED) as ChainedColumn[]

const encode = createRowEncoder('audit_events', { fields: CHAINED_COLUMNS })

/** The MAC of an event behind the one with the MAC `previous`; null for the first one. */
export const eventMac = (
  key: KeyObject, event: Readonly<Record<ChainedColumn, unknown>>, previous: Buffer | null
): Buffer =>
  hmac(key, encode(event) + encodeField('previous', previous))

/** The key that chains begin with, from its wrapped form. Throws MasterKeyMissing or IntegrityError. */
export const openFirstKey = (keyring: Keyring, wrapped: Buffer): KeyObject =>
  keyring.unwrapKey(wrapped, serviceKeyContext(FIRST_CHAIN_KEY))

/** A key that a chain was handed over to. Throws MasterKeyMissing or IntegrityError when it does not open. */
export const openChainKey = (keyring: Keyring, row: ChainKeyRow): KeyObject =>
  takeKey(keyring.unwrap(row.wrapped, chainKeyContext(row)))

/**
 * What the event that hands over says of the key: its MAC over its place, and over the MAC of the event before. With
 * the former key alone nobody makes it for a key of their own, or for another past.
 */
export const handOverProof = (
  key: KeyObject, { organization_id, kid, from_seq }: Omit<ChainKeyRow, 'wrapped'>, previous: Buffer | null
): Buffer => rowMac(key, 'chain_keys', Object.entries({ organization_id, kid, from_seq, previous }))

/** What the line of an export says of a chain: from which moment on, behind which event, and up to where. */
export interface ExportedChain extends Head {
  organization_id: string
  /** The one organization that was asked for. */
  only: string | null
  since: string | null
  after: { seq: number, mac: Buffer } | null
}

/** The MAC of that under the key in force at its end: a part is none of a whole, and of no other moment. */
export const exportMac = (key: KeyObject, chain: ExportedChain): Buffer => {
  const { organization_id, only, since, after, next_event, event_head, chain_kid } = chain
  return rowMac(key, 'audit_export', Object.entries({
    organization_id, only, since, seq: after?.seq ?? null, mac: after?.mac ?? null, next_event, event_head, chain_kid
  }))
}

/**
 * Hands the chain of the actor's organization over to a new key, in a transaction that holds the canary. Undefined
 * where there is no counter: nothing was ever recorded.
 */
export async function handOverChain (db: Db, keyring: Keyring, actor: Actor): Promise<ChainKeyRow | undefined> {
  const { organization_id } = actor
  return handOver(db, actor, ({ next_event, event_head }) => {
    const place = { organization_id, kid: ulid(), from_seq: next_event + 1 }
    const bytes = random(32)
    const wrapped = keyring.wrap(bytes, chainKeyContext(place))
    return { key: { ...place, wrapped }, proof: handOverProof(takeKey(bytes), place, event_head) }
  })
}

/** The same in a transaction of its own, for the operator. */
export async function rotateChainKey (
  handle: Db, keyring: Keyring, organizationId: string
): Promise<ChainKeyRow | undefined> {
  return transaction(handle, async (db) => {
    await holdCanary(db, keyring)
    return handOverChain(db, keyring, operatorOf(organizationId))
  }, operatorOf(organizationId))
}

/**
 * Chains events under the key that every chain begins with, and those that were handed over to.
 *
 * @param open a key that a chain was handed over to, as `openChainKey` does
 * @param clock milliseconds of a clock that nobody sets
 */
export function createChain (
  kid: string, first: KeyObject, open: (row: ChainKeyRow) => KeyObject, clock = () => performance.now()
): EventChain {
  const keys = new LRUCache<string, KeyObject>({ max: MOST_KEYS })
  const nameOf = (organizationId: string, id: string) => `${organizationId} ${id}`
  const waiting = new Map<string, { first: number, last: number, since: number }>()
  // From the process's own clock, which nobody sets, to the database's.
  let offset: number | undefined
  let last: number | undefined
  return {
    kid,
    hasKey: (organizationId, id) => id === null || keys.has(nameOf(organizationId, id)),
    openKey (row) {
      try {
        keys.set(nameOf(row.organization_id, row.kid), open(row))
      } catch (error) {
        if (!(error instanceof IntegrityError || error instanceof MasterKeyMissing)) throw error
      }
    },
    mac (event, previous) {
      const key = event.chain_kid === kid ? first : keys.get(nameOf(event.organization_id, event.chain_kid))
      if (key === undefined) throw new Error('the key of the chain is not at hand')
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
    told (time, asked) {
      // The answer was made between the question and now, and what is known already is changed no more than that asks.
      const least = time - clock()
      offset = Math.min(Math.max(offset ?? least, least), time - asked)
    }
  }
}
