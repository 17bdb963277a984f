import { sql } from 'drizzle-orm'
import { codeOf, isAwayForAll, isUndone, type Db } from '../db/database.ts'
import { CLOCK, insertEvents, type EventRow, type Head } from '../db/events.ts'
import { engineOf } from '../db/postgres/engine.ts'
import { inTime, lateOf } from '../db/postgres/guard.ts'
import { preparedSql } from '../db/postgres/prepared.ts'
import { waitNow } from '../db/postgres/wait-clock.ts'
import { chainOf } from '../db/rows/authority.ts'
import type { Counter } from '../db/rows/counter.ts'
import { isKeyOf } from '../db/rows/lists.ts'
import type { SynchronousCommit } from './counter.ts'
import { linkEvents } from './events.ts'
import type { Request } from './steps.ts'

const AN_HOUR = 3_600_000

const isSame = (one: Head, other: Head) =>
  one.next_event === other.next_event && other.event_head !== null && one.event_head?.equals(other.event_head) === true

/** Remembers the ends of the chains to which a transaction has appended events. Call this after its commit. */
export function rememberEnds (db: Db, counters: Iterable<Counter>): void {
  const known = chainOf(db).knownEnds
  for (const { organization_id, headAtLock, head, at } of counters) {
    if (head.next_event === headAtLock.next_event) continue
    const before = known.get(organization_id)
    known.set(organization_id, { head, at, isOwn: before === undefined || isSame(before.head, headAtLock) })
  }
}

// Locks the counters that have the known ends and that no other transaction has locked, moves their ends, and inserts
// their events. Changes nothing if the service's estimate of the database's time is more than a second ahead or five
// seconds behind; the statement may have waited two of these for a connection. `set_config` is local to the transaction
// of this statement.
const append = preparedSql<{ organization_id: string, clock: number }, {
  ends: string, events: string, now: number, synchronous_commit: SynchronousCommit
}>('append_to_known_ends', ($) => sql`
  WITH ends AS (
    SELECT * FROM jsonb_to_recordset(${$('ends')}::jsonb) AS ends (organization_id char(26), known_event bigint,
      known_head text, next_event bigint, event_head text, last_at timestamptz)
  ), free AS (
    SELECT stored.organization_id,
      set_config('lock_timeout', '900', true),
      CASE WHEN ${$('synchronous_commit')}::text = 'off' THEN set_config('synchronous_commit', 'off', true) END
    FROM organization_counters AS stored JOIN ends USING (organization_id)
    WHERE ${isKeyOf(sql`stored.organization_id`, sql`SELECT organization_id FROM ends`)}
      AND stored.next_event = ends.known_event AND stored.event_head = decode(ends.known_head, 'hex')
      AND ${CLOCK} BETWEEN ${$('now')}::float8 - 1000 AND ${$('now')}::float8 + 5000
    ORDER BY stored.organization_id FOR NO KEY UPDATE OF stored SKIP LOCKED
  ), counter AS (
    UPDATE organization_counters SET next_event = ends.next_event, event_head = decode(ends.event_head, 'hex'),
      last_at = ends.last_at
    FROM ends JOIN free USING (organization_id)
    WHERE organization_counters.organization_id = ends.organization_id
      AND ${isKeyOf(sql`organization_counters.organization_id`, sql`SELECT organization_id FROM free`)}
    RETURNING organization_counters.organization_id
  ), inserted AS (${insertEvents($('events'))})
  SELECT organization_id, ${CLOCK} AS clock FROM counter`)

/**
 * Appends events of reads in one statement without a transaction, where this process knows the end of the chain. The
 * statement changes nothing of an organization whose chain has another end, or whose counter another transaction has
 * locked. Returns the organizations whose events are recorded. On Citus: none.
 */
async function appendToKnownEnds (
  db: Db, rows: readonly EventRow[], synchronous_commit: SynchronousCommit
): Promise<ReadonlySet<string>> {
  const chain = chainOf(db)
  const known = chain.knownEnds
  const now = chain.now().getTime()
  const ends = new Map([...new Set(rows.map(({ organization_id }) => organization_id))].flatMap((organization_id) => {
    const end = known.get(organization_id)
    // A chain without events has no MAC to compare.
    if (end?.isOwn !== true || end.head.event_head === null) return []
    if (!chain.hasKey(organization_id, end.head.chain_kid)) return []
    // As in `lockCounters`: the database's time, or the time of the last change if that is up to an hour later.
    const at = new Date(Math.max(now, Math.min(end.at.getTime(), now + AN_HOUR)))
    return [[organization_id, { organization_id, known: end, head: end.head, at, hasKey: true }] as const]
  }))
  if (ends.size === 0 || engineOf(db) === 'citus') return new Set()
  const { events, moved } = linkEvents(db, ends, rows.filter(({ organization_id }) => ends.has(organization_id)))
  const sentAt = performance.now()
  const recorded = await append(db, {
    synchronous_commit,
    now,
    events: JSON.stringify(events),
    ends: JSON.stringify(moved.map(({ organization_id, known, head, at }) => ({
      organization_id,
      known_event: known.head.next_event,
      known_head: known.head.event_head!.toString('hex'),
      next_event: head.next_event,
      event_head: head.event_head!.toString('hex'),
      last_at: at
    })))
  })
  const done = new Set(recorded.map(({ organization_id }) => organization_id))
  for (const { clock } of recorded.slice(0, 1)) chain.recordClockSample(clock, sentAt)
  for (const { organization_id, known: before, head, at } of moved) {
    known.set(organization_id, done.has(organization_id) ? { head, at, isOwn: true } : { ...before, isOwn: false })
  }
  return done
}

/**
 * Records events in one statement if all requests only read. Returns the organizations whose events are recorded; the
 * events of other organizations need a transaction. `timeLeft`: milliseconds until the deadline.
 */
export async function recordReads (
  db: Db, requests: readonly Request[], commit: SynchronousCommit, timeLeft: number
): Promise<ReadonlySet<string>> {
  const rows = requests.flatMap((request) => request.kind === 'read' ? [request.row] : [])
  if (rows.length < requests.length) return new Set()
  try {
    return await inTime(waitNow() + timeLeft, appendToKnownEnds(db, rows, commit), lateOf(timeLeft))
  } catch (error) {
    // After an error of the statement, the transaction tells which event is at fault.
    if (isUndone(error) && codeOf(error) !== undefined && !isAwayForAll(error)) return new Set()
    throw error
  }
}
