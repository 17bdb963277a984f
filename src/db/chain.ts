import { is, sql, type SQL } from 'drizzle-orm'
import { PgTransaction } from 'drizzle-orm/pg-core'
import { authorityOf, macOf, tampered } from './authority.ts'
import { CallerEnded, judgeCallers, RowHeld, type Caller } from './caller.ts'
import {
  CLOCK, HAND_OVER, headOf, insertEvents, type ChainKeyRow, type EventChain, type EventRow, type Head, type HeadRow
} from './events.ts'
import type { Db } from './handle.ts'
import { makeId } from './ids.ts'
import { isKeyOf, lookUp } from './lists.ts'
import { preparedSql } from './prepared.ts'
import { chain_keys, type audit_events } from './tables.ts'
import { pauseFor, waitNow } from './wait-clock.ts'

// Everything that changes an organization locks the organization's counter row: first in its transaction, or last where
// the transaction is a long operation or is about a person. The row says the next version id, the bytes that are stored
// and where the chain of events ends.

// Milliseconds between two looks at a caller whose rows are locked.
const LOOK_AGAIN = 20

/** What a commit waits for: with `off`, not for the disk; else, for what the server is set to. */
export type SynchronousCommit = 'on' | 'off'

/** What a MAC goes over. */
export type ChainedColumn = Exclude<keyof (typeof audit_events)['$inferSelect'], 'mac'>

// Every column but the MAC itself. Their order is part of the MAC: a change of it needs a new key, by whose id an event
// says which order it has.
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
/** What a MAC goes over, in this order, before the MAC of the event before. */
export const CHAINED_COLUMNS = Object.keys(CHAINED) as ChainedColumn[]

export const chainOf = (db: Db): EventChain => authorityOf(db).chain

// Numbers events behind the heads of their organizations, in this order, makes their MACs, and moves the heads. Returns
// the events as the parameter of `insertEvents`.
function sealEvents (db: Db, locked: ReadonlyMap<string, Counter>, rows: readonly EventRow[]): string {
  if (withKeys(db, locked).size < locked.size) tampered()
  const chain = chainOf(db)
  const now = chain.now()
  return JSON.stringify(rows.map((row) => {
    const counter = locked.get(row.organization_id)!
    const { next_event: seq, event_head, chain_kid } = counter.head
    const occurred_at = row.occurred_at === undefined ? now : new Date(row.occurred_at)
    const event = { ...row, seq, occurred_at, chain_kid: chain_kid ?? chain.kid }
    const mac = chain.mac(event, event_head)
    counter.head = {
      next_event: seq + 1, event_head: mac, chain_kid: row.action === HAND_OVER ? row.resource_id : chain_kid
    }
    return { ...event, mac: mac.toString('hex') }
  }))
}

const hexOf = (bytes: Buffer | null) => bytes === null ? null : bytes.toString('hex')

type Ids = Iterable<string>

const idsJson = (ids: Ids) => JSON.stringify([...new Set(ids)])
const isAmong = (ids: unknown) =>
  isKeyOf(sql`organization_id`, sql`SELECT value::char(26) FROM jsonb_array_elements_text(${ids}::jsonb)`)

// Outside of one, a counter would be free again before the events are there.
function requireTransaction (db: Db) {
  if (!is(db, PgTransaction)) throw new Error('a counter is held in a transaction')
}

interface Told extends HeadRow { organization_id: string, clock: number }

/** The counter row of an organization, as the transaction that has locked it knows it. */
export interface Counter {
  readonly organization_id: string
  /** The id of the next version. */
  next_version: number
  /** The bytes that the organization stores. */
  stored_bytes: number
  /** Where the chain of events ends. */
  head: Head
  /** Whether the organization was deleted. */
  readonly is_closed: boolean
  /** The callers that were judged to be live under the lock, as JSON. */
  readonly live: Set<string>
}

const counters = new WeakMap<Db, Counter>()

/** The counter that a transaction has locked; undefined before that. */
export const counterOf = (db: Db): Counter | undefined => counters.get(db)

// What holds while the transaction has the counter. A process that stops then holds up the organization for a second at
// most. A wait for another lock ends before PostgreSQL looks for a deadlock (deadlock_timeout, 1 s), so there is none.
// Rows are locked in one order.
const locking = (name: string, held: SQL) => preparedSql<
  Told & { next_version: string, stored_bytes: string, is_closed: boolean }, { ids: string, synchronous_commit: string }
>(name, ($) => sql`
  SELECT locked.*, ${CLOCK} AS clock,
    set_config('idle_in_transaction_session_timeout', '1000', true), set_config('lock_timeout', '900', true),
    CASE WHEN ${$('synchronous_commit')}::text = 'off' THEN set_config('synchronous_commit', 'off', true) END AS setting
  FROM (
    SELECT organization_id, next_version, stored_bytes, next_event, event_head, chain_kid, is_closed
    FROM organization_counters WHERE ${isAmong($('ids'))} ORDER BY organization_id FOR NO KEY UPDATE ${held}
  ) AS locked`)
const LOCK = { all: locking('lock_counters', sql``), free: locking('lock_free_counters', sql`SKIP LOCKED`) }

/**
 * Locks the counter rows of organizations until the end of the transaction: all of them, or those that are free. There
 * is none of an organization that was deleted and removed.
 */
export async function lockCounters (
  db: Db, ids: Ids, which: keyof typeof LOCK, synchronous_commit: SynchronousCommit = 'on'
): Promise<Map<string, Counter>> {
  requireTransaction(db)
  const asked = performance.now()
  const rows = await LOCK[which](db, { ids: idsJson(ids), synchronous_commit })
  const found = new Map<string, Counter>()
  for (const row of rows) {
    chainOf(db).told(row.clock, asked)
    found.set(row.organization_id, {
      organization_id: row.organization_id,
      next_version: Number(row.next_version),
      stored_bytes: Number(row.stored_bytes),
      head: headOf(row),
      is_closed: row.is_closed,
      live: new Set<string>()
    })
  }
  await openKeys(db, found)
  return found
}

// The same of one organization, whose counter is that of the transaction from then on.
async function lockCounter (db: Db, organization_id: string): Promise<Counter | undefined> {
  const counter = (await lockCounters(db, [organization_id], 'all')).get(organization_id)
  if (counter !== undefined) counters.set(db, counter)
  return counter
}

/**
 * Locks the counter row of the organization of a change, unless the transaction has locked it, and judges the caller
 * under the lock. A change without a caller is the service's or the operator's own.
 *
 * Throws CallerEnded when the caller has ended, or the organization was deleted; RowHeld when a transaction that is
 * under way may end the caller, and does not end within the patience.
 *
 * @param patience milliseconds to wait for such a transaction, in a long operation, which should not run again
 */
export async function openChange (
  db: Db, { organization_id, caller }: Readonly<{ organization_id: string, caller?: Caller | null | undefined }>,
  patience = 0
): Promise<Counter | undefined> {
  const known = counterOf(db)
  const counter = known?.organization_id === organization_id ? known : await lockCounter(db, organization_id)
  if (caller == null) return counter
  if (counter === undefined || counter.is_closed) throw new CallerEnded()
  const key = JSON.stringify(caller)
  if (counter.live.has(key)) return counter
  const late = waitNow() + patience
  for (;;) {
    const [verdict] = await judgeCallers(db, [{ ...caller, organization_id }])
    if (verdict === 'ended') throw new CallerEnded()
    if (verdict === 'live') break
    if (waitNow() >= late) throw new RowHeld()
    await pauseFor(LOOK_AGAIN)
  }
  counter.live.add(key)
  return counter
}

/** Of counters that were locked, those whose events can be recorded: the key of the chain is there and opens. */
export function withKeys (db: Db, locked: ReadonlyMap<string, Counter>): Map<string, Counter> {
  return new Map([...locked].filter(([, counter]) => hasKey(db, counter)))
}

const findKeys = preparedSql<Omit<ChainKeyRow, 'from_seq'> & { from_seq: string }, { wanted: string }>(
  'chain_keys', ($) => sql`
  SELECT chain_keys.organization_id, chain_keys.kid, from_seq, wrapped
  FROM jsonb_to_recordset(${$('wanted')}::jsonb) AS wanted (organization_id char(26), kid char(26))
  CROSS JOIN ${lookUp('chain_keys', chain_keys,
    sql`organization_id = wanted.organization_id AND kid = wanted.kid`)}`)

// Opens the keys that counters name, once in a process. A key that is not there or does not open stays closed: no event
// can be recorded of its organization, and all other organizations go on.
async function openKeys (db: Db, locked: ReadonlyMap<string, Counter>): Promise<void> {
  const wanted = [...locked.values()].filter((counter) => !hasKey(db, counter))
    .map(({ organization_id, head }) => ({ organization_id, kid: head.chain_kid }))
  if (wanted.length === 0) return
  for (const row of await findKeys(db, { wanted: JSON.stringify(wanted) })) {
    chainOf(db).openKey({ ...row, from_seq: Number(row.from_seq) })
  }
}

const hasKey = (db: Db, { organization_id, head }: Counter) => chainOf(db).hasKey(organization_id, head.chain_kid)

const append = preparedSql<{ seq: string }, { moved: string, events: string }>('append_events', ($) => sql`
  WITH moved AS (
    SELECT organization_id, events, decode(event_head, 'hex') AS event_head, versions, growth
    FROM jsonb_to_recordset(${$('moved')}::jsonb) AS moved (
      organization_id char(26), events int, event_head text, versions int, growth bigint
    )
  ), counter AS (
    UPDATE organization_counters SET next_event = next_event + moved.events, event_head = moved.event_head,
      next_version = next_version + moved.versions, stored_bytes = stored_bytes + moved.growth
    FROM moved WHERE organization_counters.organization_id = moved.organization_id
      AND ${isKeyOf(sql`organization_counters.organization_id`, sql`SELECT organization_id FROM moved`)}
    RETURNING organization_counters.organization_id
  )
  ${insertEvents($('events'))} RETURNING seq`)

/** By how much a change moves the counter of its organization, beside the events. */
export interface Moves { versions?: number, growth?: number }

/**
 * Records events in organizations whose counters the transaction has locked, and moves these counters. Sent before the
 * function returns.
 *
 * @param moves by organization
 */
export async function appendEvents (
  db: Db, locked: ReadonlyMap<string, Counter>, rows: readonly EventRow[], moves: ReadonlyMap<string, Moves> = new Map()
): Promise<void> {
  const chain = chainOf(db)
  const before = new Map([...locked].map(([id, { head }]) => [id, head]))
  const events = sealEvents(db, locked, rows)
  const moved = [...locked.values()].flatMap((counter) => {
    const { organization_id, head: { next_event, event_head } } = counter
    const { versions = 0, growth = 0 } = moves.get(organization_id) ?? {}
    const events = next_event - before.get(organization_id)!.next_event
    if (events === 0 && versions === 0 && growth === 0) return []
    counter.next_version += versions
    counter.stored_bytes += growth
    // Before the commit: an anchor that comes early tells where the chain ended before.
    chain.recorded(organization_id, counter.head)
    return [{ organization_id, events, event_head: hexOf(event_head), versions, growth }]
  })
  const recorded = await append(db, { events, moved: JSON.stringify(moved) })
  if (recorded.length !== rows.length) throw new Error('an event has no counter')
}

/** Records events in the organization whose counter the transaction has locked. */
export async function appendToCounter (db: Db, rows: readonly EventRow[], moves: Moves = {}): Promise<void> {
  const counter = counterOf(db)
  if (counter === undefined) throw new Error('the transaction has locked no counter')
  const { organization_id } = counter
  await appendEvents(db, new Map([[organization_id, counter]]), rows, new Map([[organization_id, moves]]))
}

const keepLate = preparedSql<object, { late: string }>('late_events', ($) => sql`
  INSERT INTO late_events (organization_id, id, occurred_at, event, mac) OVERRIDING SYSTEM VALUE
  SELECT organization_id, id, occurred_at, event, decode(mac, 'hex') FROM jsonb_to_recordset(${$('late')}::jsonb)
    AS late (organization_id char(26), id bigint, occurred_at timestamptz, event jsonb, mac text)`)

/** Keeps events, each with when it happened, to be numbered later (`recordLate`). */
export async function keepLateEvents (db: Db, events: readonly (EventRow & { occurred_at: string })[]): Promise<void> {
  await keepLate(db, { late: JSON.stringify(events.map((event) => lateRow(db, event))) })
}

// No part of the chain yet: a MAC of its own says until then that the service wrote it.
function lateRow (db: Db, event: EventRow & { occurred_at: string }) {
  const { organization_id } = event
  const row = { organization_id, id: makeId(), occurred_at: new Date(event.occurred_at), event }
  return { ...row, mac: macOf(db, 'late_events', row).toString('hex') }
}

const firmHeads = preparedSql<HeadRow & { organization_id: string }, { ids: string }>('firm_heads', ($) => sql`
  SELECT organization_id, next_event, event_head, chain_kid FROM organization_counters
  WHERE ${isAmong($('ids'))} ORDER BY organization_id FOR KEY SHARE`)

/**
 * Where chains end for good: what this tells outlives a crash of the machine. A row lock is written to the log, and its
 * commit waits for the disk with everything before it, also with what did not wait itself. It waits for nobody.
 */
export async function findFirmHeads (db: Db, ids: Ids): Promise<Map<string, Head>> {
  const rows = await firmHeads(db, { ids: idsJson(ids) })
  return new Map(rows.map((row) => [row.organization_id, headOf(row)]))
}

/** Asks for the database's time. */
export async function readClock (db: Db): Promise<void> {
  const asked = performance.now()
  const [row] = await db.execute(sql`SELECT ${CLOCK} AS clock`) as unknown as { clock: number }[]
  chainOf(db).told(row!.clock, asked)
}
