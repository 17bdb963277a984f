import { eq, sql } from 'drizzle-orm'
import { isKeyOf, preparedSql, type Db } from '../../db/database.ts'
import { andOwn, byOrganization, perEngine, type OfOrganization } from '../../db/postgres/engine.ts'
import { chainOf } from '../../db/rows/authority.ts'
import { queryRow, queryRows } from '../../db/rows/query.ts'
import { HAND_OVER, headOf, type ChainedEvent, type ChainKeyRow, type Head, type HeadRow } from '../../db/events.ts'
import { chain_keys, organization_counters } from '../../db/tables.ts'
import type { AuditEvent } from './audit.ts'

// Reads the audit chains for verification and export. The stored data is not trusted.

/** An audit event as the database stores it. */
export type ChainRow = Omit<ChainedEvent, 'chain_kid'> & { chain_kid: string | null, mac: Buffer | null }

/** The ids of all organizations, including deleted ones: from `organizations`, counter rows and audit events. */
export async function listChains (db: Db): Promise<string[]> {
  // On PostgreSQL, the recursion makes one index look-up for each organization. Citus does not execute a recursion over
  // several machines.
  const recorded = perEngine({
    postgres: sql`
    WITH RECURSIVE recorded AS (
      SELECT min(organization_id) AS id FROM audit_events
      UNION ALL
      SELECT (SELECT min(organization_id) FROM audit_events WHERE organization_id > recorded.id) FROM recorded
      WHERE recorded.id IS NOT NULL
    )
    SELECT id FROM recorded WHERE id IS NOT NULL`,
    citus: sql`SELECT DISTINCT organization_id AS id FROM audit_events`
  })
  const rows = await queryRows<{ id: string }>(db, sql`
    ${recorded} UNION SELECT organization_id FROM organization_counters
      UNION SELECT id FROM organizations
    ORDER BY id`)
  return rows.map(({ id }) => id)
}

/** The last event number of a chain, as text: an attacker with write access could store a number above 2^53. */
type Last = string

const durableHeads = preparedSql<
  HeadRow & { organization_id: string }, OfOrganization & { ids: string }
>('durable_heads', ($) => sql`
  SELECT organization_id, next_event, event_head, chain_kid FROM organization_counters
  WHERE ${isKeyOf(
    sql`organization_id`, sql`SELECT value::char(26) FROM jsonb_array_elements_text(${$('ids')}::jsonb)`)}${andOwn(sql`organization_id`)}
  ORDER BY organization_id FOR KEY SHARE`)

/**
 * Makes the ends of chains durable and returns them. FOR KEY SHARE writes to the WAL, so its commit also flushes
 * earlier commits that had `synchronous_commit` off. The lock does not wait for changes of the counter rows. On Citus,
 * omits organizations whose node does not respond; throws if no node responds.
 */
export async function findDurableHeads (db: Db, ids: readonly string[]): Promise<Map<string, Head>> {
  const parts = byOrganization(db, ids.map((organization_id) => ({ organization_id })))
  const results = await Promise.allSettled(parts.map((part) => durableHeads(db, {
    organization_id: part[0]!.organization_id,
    ids: JSON.stringify(part.map(({ organization_id }) => organization_id))
  })))
  const failed = results.filter((result) => result.status === 'rejected')
  if (failed.length > 0 && failed.length === results.length) throw failed[0]!.reason
  const rows = results.flatMap((result) => result.status === 'fulfilled' ? result.value : [])
  return new Map(rows.map((row) => [row.organization_id, headOf(row)]))
}

const eventCount = preparedSql<{ events: number }, OfOrganization & { ids: string }>('event_count', ($) => sql`
  SELECT coalesce(sum(next_event - 1), 0)::float8 AS events FROM organization_counters
  WHERE ${isKeyOf(
    sql`organization_id`, sql`SELECT value::char(26) FROM jsonb_array_elements_text(${$('ids')}::jsonb)`)}${andOwn(sql`organization_id`)}`)

/** The total number of events of organizations, computed from their counter rows. */
export async function countEvents (db: Db, ids: readonly string[]): Promise<number> {
  let events = 0
  for (const part of byOrganization(db, ids.map((organization_id) => ({ organization_id })))) {
    const [row] = await eventCount(db, {
      organization_id: part[0]!.organization_id,
      ids: JSON.stringify(part.map(({ organization_id }) => organization_id))
    })
    events += row!.events
  }
  return events
}

/** A consistent snapshot of a chain: its end according to the counter row, its keys, and its last event number. */
export async function findChain (
  db: Db, organizationId: string
): Promise<{ head: Head, keys: ChainKeyRow[], last: Last }> {
  const row = await queryRow<Partial<HeadRow> & {
    last: string | null, keys: (Pick<ChainKeyRow, 'kid' | 'from_seq'> & { wrapped: string })[] | null
  }>(db, sql`
    SELECT next_event, event_head, chain_kid, last, keys FROM (
      SELECT max(seq) AS last FROM audit_events WHERE organization_id = ${organizationId}
    ) AS events CROSS JOIN (
      SELECT jsonb_agg(jsonb_build_object('kid', kid, 'from_seq', from_seq, 'wrapped', encode(wrapped, 'hex'))
        ORDER BY from_seq) AS keys
      FROM chain_keys WHERE organization_id = ${organizationId}
    ) AS its LEFT JOIN organization_counters ON organization_id = ${organizationId}`)
  const { next_event = null, event_head = null, chain_kid = null, keys, last } = row
  return {
    // The counter row is missing if the organization does not exist. The chain then counts as empty.
    head: headOf({ next_event: next_event ?? '1', event_head, chain_kid }),
    keys: (keys ?? []).map((key) =>
      ({ ...key, organization_id: organizationId, wrapped: Buffer.from(key.wrapped, 'hex') })),
    last: last ?? '0'
  }
}

type Raw = Omit<ChainRow, 'seq' | 'occurred_at' | 'actor_id'> &
  { seq: string | number, occurred_at: number | Date, actor_id: string | number | null }

const page = preparedSql<Raw, { organization_id: string, first: string, last: Last, limit: number }>(
  'chain_page', ($) => sql`
  SELECT organization_id, seq, (extract(epoch FROM occurred_at) * 1000)::float8 AS occurred_at, action, actor_type,
    actor_id, resource_type, resource_id, request_id, ip, user_agent, details, chain_kid, mac
  FROM audit_events
  WHERE organization_id = ${$('organization_id')}::char(26) AND seq >= ${$('first')}::bigint
    AND seq <= ${$('last')}::bigint
  ORDER BY seq LIMIT ${$('limit')}::int`)

// The service numbers events from 1. `readChain` also reads lower numbers, which only an attacker can have inserted.
const LOWEST = String(-(2n ** 63n))

// Rows in a page. A small page lets the garbage collector free verified rows early.
const PAGE = 500

// Converts the row in place: copying a row would cost as much as computing its MAC.
function toEvent (row: Raw): ChainRow {
  row.seq = Number(row.seq)
  row.occurred_at = new Date(row.occurred_at)
  if (row.actor_id !== null) row.actor_id = Number(row.actor_id)
  return row as ChainRow
}

/**
 * Reads the events of a chain in order, from the event after number `after` (null: from the first event) up to number
 * `last`. Prefetches the next page.
 */
export async function * readChain (
  db: Db, organizationId: string, after: number | null, last: Last
): AsyncGenerator<ChainRow[]> {
  const read = (first: string) => page(db, { organization_id: organizationId, first, last, limit: PAGE })
  const behind = (seq: string | number) => String(BigInt(seq) + 1n)
  for (let next = read(after === null ? LOWEST : behind(after)); ;) {
    const rows = await next
    const end = rows.at(-1)?.seq
    const isEnd = rows.length < PAGE || String(end) === last
    if (!isEnd) {
      next = read(behind(end!))
      // Avoids an unhandled rejection when the consumer stops early.
      next.catch(() => {})
    }
    yield rows.map(toEvent)
    if (isEnd) return
  }
}

/** The last event before a moment. Verification of a part of the chain starts from this event. */
export async function findBefore (
  db: Db, organizationId: string, since: Date
): Promise<{ seq: number, mac: Buffer } | undefined> {
  const [row] = await queryRows<{ seq: string, mac: Buffer }>(db, sql`
    SELECT seq, mac FROM audit_events WHERE organization_id = ${organizationId} AND mac IS NOT NULL AND seq < coalesce((
      SELECT min(seq) FROM audit_events
      WHERE organization_id = ${organizationId} AND occurred_at >= ${since.toISOString()}::timestamptz
    ), 9007199254740991) ORDER BY seq DESC LIMIT 1`)
  return row && { seq: Number(row.seq), mac: row.mac }
}

/** Whether the chain key of any organization was ever rotated. */
export async function hasChainKeys (db: Db): Promise<boolean> {
  return (await db.select({ kid: chain_keys.kid }).from(chain_keys).limit(1)).length > 0
}

/**
 * Stores a new chain key of an organization. Returns the event of the rotation, which must be the next event of the
 * organization: `proof` covers the end of the chain. The id of the current key is in the counter row (`chain_kid`),
 * because a transaction that waits for the lock of the counter row sees new values only in this row.
 */
export async function handOver (db: Db, key: ChainKeyRow, proof: Buffer): Promise<AuditEvent> {
  await db.insert(chain_keys).values(key)
  await db.update(organization_counters).set({ chain_kid: key.kid })
    .where(eq(organization_counters.organization_id, key.organization_id))
  // Opens the new key before the rotation event is recorded, because the next event uses the new key.
  chainOf(db).openKey(key)
  return { action: HAND_OVER, resource_type: 'chain-key', resource_id: key.kid, details: { proof: proof.toString('hex') } }
}
