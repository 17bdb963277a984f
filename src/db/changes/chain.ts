import { is, sql, type SQL } from 'drizzle-orm'
import { PgTransaction } from 'drizzle-orm/pg-core'
import type { OrganizationStatus, Plan } from '../../../schemas/organizations.ts'
import { authorityOf, macOf, tampered } from '../rows/authority.ts'
import { CallerEnded, OrganizationInactive, RowLocked, validateCallers, type Caller } from '../callers/caller.ts'
import {
  CLOCK, HAND_OVER, headOf, insertEvents, type ChainKeyRow, type EventChain, type EventRow, type Head, type HeadRow
} from '../events.ts'
import { DatabaseUnavailable } from '../postgres/errors.ts'
import type { Db } from '../postgres/handle.ts'
import { preparedChanges } from '../postgres/changes-together.ts'
import { andOwn, byOrganization, engineOf, findByOrganization, perEngine, rowsIn, type OfOrganization } from '../postgres/engine.ts'
import { makeId } from '../rows/ids.ts'
import { isKeyOf, lookUp } from '../rows/lists.ts'
import { preparedSql } from '../postgres/prepared.ts'
import { chain_keys } from '../tables.ts'
import { pauseFor, waitNow } from '../postgres/wait-clock.ts'

// Transactions that change an organization lock its row in `organization_counters`, the counter. Long operations and
// changes of a person lock the counter after all other rows; other changes lock the counter first.

// Milliseconds between two checks of a caller whose rows are locked.
const POLL_INTERVAL_MS = 20

/** `off` sets PostgreSQL's `synchronous_commit` to off; `on` keeps the setting of the server. */
export type SynchronousCommit = 'on' | 'off'

export const chainOf = (db: Db): EventChain => authorityOf(db).chain

/** The locked counter row of an organization. A change modifies this object, and `appendEvents` stores it. */
export interface Counter {
  readonly organization_id: string
  next_version: number
  stored_bytes: number
  head: Head
  /** The database's time when the counter was locked, or the time of the last change if that is up to an hour later. */
  readonly at: Date
  /** Whether the organization was deleted. */
  readonly is_closed: boolean
  readonly status: OrganizationStatus
  readonly plan: Plan
  /** Whether the chain key is loaded. Without the key, no event can be recorded. */
  readonly hasKey: boolean
  /** The end of the chain when the counter was locked. */
  readonly headAtLock: Head
  /** The callers that were validated under this lock, as JSON. */
  readonly live: Set<string>
}

const counters = new WeakMap<Db, Counter>()

/** The counter that the transaction has locked with `openChange`, if any. */
export const counterOf = (db: Db): Counter | undefined => counters.get(db)

/**
 * Options for a SELECT that locks accounts, grants or projects. A change of a person or a long operation can hold such
 * a row while it waits for a counter. So a transaction that has locked a counter does not wait for the row: the
 * statement fails, and `transaction` runs the change again (RowLocked). A wait for an API token is safe: a transaction
 * that holds a token waits for no account, grant or counter afterwards.
 */
export const waitUnlessCounter = (db: Db): { noWait: true } | Record<string, never> =>
  counterOf(db) === undefined ? {} : { noWait: true }

const isAmong = (ids: unknown) =>
  isKeyOf(sql`organization_id`, sql`SELECT value::char(26) FROM jsonb_array_elements_text(${ids}::jsonb)`)

// Citus can move the rows of an organization to another node. An UPDATE waits for the end of a move, and prevents moves
// until the transaction ends. A SELECT alone could lock the old row that the move leaves behind, so that two changes
// could run at once. So the SELECT contains an UPDATE, which changes no row.
const PINNED = perEngine({
  postgres: sql``,
  citus: sql`WITH pinned AS (
    UPDATE organization_counters SET status = status WHERE status = ''${andOwn(sql`organization_id`)}
  ) `
})

// With the idle timeout, PostgreSQL ends the transaction after a second if the process hangs; the embedded database has
// no such timeout (ONLY_SESSION). With the lock timeout, a wait for another lock ends before deadlock_timeout (1 s).
// Counters are locked in the order of ids, to avoid deadlocks.
const locking = (name: string, skip: SQL) => preparedSql<
  HeadRow & Pick<Counter, 'organization_id' | 'is_closed' | 'status'> &
    { next_version: string, stored_bytes: string, plan: Plan | null, clock: number, at: number },
  OfOrganization & { ids: string, synchronous_commit: string }
>(name, ($) => sql`
  ${PINNED}SELECT locked.*, (SELECT to_jsonb(p) FROM plans p WHERE p.name = locked.plan_name) AS plan, ${CLOCK} AS clock,
    (extract(epoch FROM greatest(clock_timestamp(), least(locked.last_at, clock_timestamp() + interval '1 hour'))) * 1000)
      ::float8 AS at,
    set_config('idle_in_transaction_session_timeout',
      coalesce(current_setting('strongroom.idle_timeout', true), '1000'), true),
    set_config('lock_timeout', '900', true),
    CASE WHEN ${$('synchronous_commit')}::text = 'off' THEN set_config('synchronous_commit', 'off', true) END AS setting
  FROM (
    SELECT organization_id, next_version, stored_bytes, next_event, event_head, chain_kid, last_at, is_closed,
      status, plan AS plan_name
    FROM organization_counters WHERE ${isAmong($('ids'))}${andOwn(sql`organization_id`)} ORDER BY organization_id FOR NO KEY UPDATE ${skip}
  ) AS locked`)
const LOCK = { all: locking('lock_counters', sql``), free: locking('lock_free_counters', sql`SKIP LOCKED`) }

/** Locks counter rows. `all` waits until other transactions release the rows; `free` omits locked rows. */
export async function lockCounters (
  db: Db, ids: Iterable<string>, which: keyof typeof LOCK, synchronous_commit: SynchronousCommit = 'on'
): Promise<Map<string, Counter>> {
  // Without a transaction the lock would end with the statement.
  if (!is(db, PgTransaction)) throw new Error('a counter can only be locked in a transaction')
  const sentAt = performance.now()
  const parts = byOrganization(db, [...new Set(ids)].sort().map((organization_id) => ({ organization_id })))
  // Sends the statement also without ids, so that a refused sign-in takes the same time with and without an account.
  // Not on Citus, where a refused sign-in never locks counters.
  const withoutIds = engineOf(db) === 'citus' ? [] : [[{ organization_id: '' }]]
  const rows = (await Promise.all((parts.length === 0 ? withoutIds : parts).map((part) => LOCK[which](db, {
    organization_id: part[0]!.organization_id,
    ids: JSON.stringify(part.map(({ organization_id }) => organization_id)),
    synchronous_commit
  })))).flat()
  const chain = chainOf(db)
  for (const { clock } of rows) chain.recordClockSample(clock, sentAt)
  await openKeys(db, rows)
  return new Map(rows.map((row) => [row.organization_id, {
    organization_id: row.organization_id,
    next_version: Number(row.next_version),
    stored_bytes: Number(row.stored_bytes),
    head: headOf(row),
    headAtLock: headOf(row),
    at: new Date(row.at),
    is_closed: row.is_closed,
    status: row.status,
    plan: row.plan ?? failForNewPlan(),
    hasKey: chain.hasKey(row.organization_id, row.chain_kid),
    live: new Set<string>()
  }]))
}

/** Throws CallerEnded if the organization was deleted, and OrganizationInactive if it is not active. */
export function requireOpen (counter: Counter | undefined): asserts counter is Counter {
  if (counter === undefined || counter.is_closed) throw new CallerEnded()
  if (counter.status !== 'active') throw new OrganizationInactive(counter.status)
}

/**
 * Locks the organization's counter row, unless the transaction has locked it, and validates the caller under the lock.
 * The service and the operator have no caller. Throws CallerEnded if the credential is invalid or the organization was
 * deleted; OrganizationInactive; RowLocked if another transaction locks the caller's rows for longer than `patience`.
 *
 * @param patience milliseconds to wait for these rows: long operations wait, since a retry would repeat all their work
 */
export async function openChange (
  db: Db, { organization_id, caller }: Readonly<{ organization_id: string, caller?: Caller | null | undefined }>,
  patience = 0
): Promise<Counter | undefined> {
  const known = counterOf(db)
  const counter = known?.organization_id === organization_id
    ? known
    : (await lockCounters(db, [organization_id], 'all')).get(organization_id)
  if (counter !== undefined) counters.set(db, counter)
  if (caller == null) return counter
  requireOpen(counter)
  const key = JSON.stringify(caller)
  if (counter.live.has(key)) return counter
  // Does not wait if the counter was locked before this call, because other changes wait for the counter.
  const late = waitNow() + (known === undefined ? patience : 0)
  for (;;) {
    const [verdict] = await validateCallers(db, [{ ...caller, organization_id }])
    if (verdict === 'ended') throw new CallerEnded()
    if (verdict === 'live') break
    if (waitNow() >= late) throw new RowLocked()
    await pauseFor(POLL_INTERVAL_MS)
  }
  counter.live.add(key)
  return counter
}

const findKeys = preparedSql<Omit<ChainKeyRow, 'from_seq'> & { from_seq: string }, OfOrganization & { wanted: string }>(
  'chain_keys', ($) => sql`
  SELECT chain_keys.organization_id, chain_keys.kid, from_seq, wrapped
  FROM jsonb_to_recordset(${$('wanted')}::jsonb) AS wanted (organization_id char(26), kid char(26))
  CROSS JOIN ${lookUp('chain_keys', chain_keys,
    sql`organization_id = wanted.organization_id AND kid = wanted.kid`)}`)

// Loads the chain keys of the counters, unless they are loaded. Omits a key that is missing or cannot be unwrapped.
async function openKeys (db: Db, rows: readonly { organization_id: string, chain_kid: string | null }[]) {
  const chain = chainOf(db)
  const wanted = rows.filter(({ organization_id, chain_kid }) => !chain.hasKey(organization_id, chain_kid))
    .map(({ organization_id, chain_kid }) => ({ organization_id, kid: chain_kid }))
  const keys = await findByOrganization(db, wanted, (organization_id, wanted) =>
    findKeys(db, { organization_id, wanted }))
  for (const row of keys) chain.openKey({ ...row, from_seq: Number(row.from_seq) })
}

// While the statement waited for the lock, the organization got a plan that was added after the statement's snapshot.
function failForNewPlan (): never {
  throw new DatabaseUnavailable('The plan of the organization was added a moment ago')
}

const append = preparedChanges<{ counters: string, events: string }>('append_events', ($) => ({
  lists: {
    moved: rowsIn($('counters'),
      sql`next_event bigint, event_head text, next_version bigint, stored_bytes bigint, last_at timestamptz`)
  },
  changes: (from) => [
    ['counter', sql`
      UPDATE organization_counters SET next_event = moved.next_event, event_head = decode(moved.event_head, 'hex'),
        next_version = moved.next_version, stored_bytes = moved.stored_bytes, last_at = moved.last_at
      FROM ${from.moved} WHERE organization_counters.organization_id = moved.organization_id
        ${perEngine({
          postgres: sql`AND ${isKeyOf(sql`organization_counters.organization_id`, sql`SELECT organization_id FROM moved`)}`,
          citus: andOwn(sql`organization_counters.organization_id`)
        })}
      RETURNING organization_counters.organization_id`],
    ['events', insertEvents($('events'))]
  ]
}))

/** The end of a chain to which events are appended. `linkEvents` moves the head. */
export type ChainEnd = Pick<Counter, 'organization_id' | 'head' | 'at' | 'hasKey'>

/**
 * Gives events their numbers and MACs, moves the ends of their chains, and returns the events for `insertEvents` with
 * the moved ends. Throws TamperedRow if a chain key is not loaded.
 */
export function linkEvents<E extends ChainEnd> (db: Db, ends: ReadonlyMap<string, E>, rows: readonly EventRow[]) {
  const chain = chainOf(db)
  const moved = new Set<E>()
  const events = rows.map((row) => {
    const end = ends.get(row.organization_id)
    if (end?.hasKey !== true) return tampered()
    const { next_event: seq, event_head, chain_kid } = end.head
    const occurred_at = row.occurred_at === undefined ? end.at : new Date(row.occurred_at)
    const event = { ...row, seq, occurred_at, chain_kid: chain_kid ?? chain.kid }
    const mac = chain.mac(event, event_head)
    end.head = {
      next_event: seq + 1, event_head: mac, chain_kid: row.action === HAND_OVER ? row.resource_id : chain_kid
    }
    moved.add(end)
    return Object.assign(event, { mac: mac.toString('hex') })
  })
  // Harmless before the commit: an anchor that is written too early covers the chain only up to its previous end.
  for (const { organization_id, head } of moved) chain.recorded(organization_id, head)
  return { events, moved: [...moved] }
}

/**
 * Inserts events and updates the locked counters: on PostgreSQL in one statement, which is sent synchronously. Throws
 * TamperedRow if a chain key is not loaded.
 */
export async function appendEvents (
  db: Db, locked: ReadonlyMap<string, Counter>, rows: readonly EventRow[]
): Promise<void> {
  const { events, moved } = linkEvents(db, locked, rows)
  const ends = moved.map(({ organization_id, next_version, stored_bytes, head, at: last_at }) => {
    const { next_event, event_head } = head
    return { organization_id, next_event, event_head: event_head!.toString('hex'), next_version, stored_bytes, last_at }
  })
  // Sends the statements also without events, so that a refused sign-in takes the same time (see `lockCounters`).
  const parts = engineOf(db) === 'citus'
    ? ends.map((end) =>
      ({ ends: [end], events: events.filter(({ organization_id }) => organization_id === end.organization_id) }))
    : [{ ends, events }]
  const counts = await Promise.all(parts.map(async ({ ends, events }) => {
    const organization_id = ends[0]?.organization_id ?? ''
    const { count } = await append(db, {
      organization_id, events: JSON.stringify(events), counters: JSON.stringify(ends)
    })
    return count
  }))
  if (counts.reduce((sum, count) => sum + count, 0) !== rows.length) throw new Error('an event has no counter')
}

/** Records events in the organization whose counter the transaction has locked. */
export async function appendToCounter (db: Db, rows: readonly EventRow[]): Promise<void> {
  const counter = counterOf(db)
  if (counter === undefined) throw new Error('the transaction has locked no counter')
  await appendEvents(db, new Map([[counter.organization_id, counter]]), rows)
}

// One statement for all organizations, also on Citus, because a person can be in a thousand organizations.
const insertLate = preparedSql<object, { late: string }>('late_events', ($) => sql`
  INSERT INTO late_events (organization_id, id, occurred_at, event, mac) OVERRIDING SYSTEM VALUE
  SELECT organization_id, id, occurred_at, event, decode(mac, 'hex')
  FROM jsonb_to_recordset(${$('late')}::jsonb) AS late
    (organization_id char(26), id bigint, occurred_at timestamptz, event jsonb, mac text)
  ON CONFLICT DO NOTHING`)

/**
 * Stores events with their times, until `recordLate` appends them to the chain. Each row has its own MAC. An event with
 * `late_id` keeps this id; if the organization has a row with this id, the event is not stored again.
 */
export async function keepLateEvents (
  db: Db, events: readonly (EventRow & { occurred_at: string, late_id?: number })[]
): Promise<void> {
  const late = events.map(({ late_id: id = makeId(), ...event }) => {
    const { organization_id } = event
    const row = { organization_id, id, occurred_at: new Date(event.occurred_at), event }
    return { ...row, mac: macOf(db, 'late_events', row).toString('hex') }
  })
  await insertLate(db, { late: JSON.stringify(late) })
}
