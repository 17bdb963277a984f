import { sql } from 'drizzle-orm'
import { HAND_OVER, insertEvents, type EventRow } from '../db/events.ts'
import { preparedChanges } from '../db/postgres/changes-together.ts'
import { andOwn, engineOf, perEngine, rowsIn } from '../db/postgres/engine.ts'
import type { Db } from '../db/postgres/handle.ts'
import { preparedSql } from '../db/postgres/prepared.ts'
import { chainOf, macOf, tampered } from '../db/rows/authority.ts'
import { countersOf, type Counter } from '../db/rows/counter.ts'
import { makeId } from '../db/rows/ids.ts'
import { isKeyOf } from '../db/rows/lists.ts'

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
  // An older copy of a counter that was locked twice has a former end of the chain.
  const newest = new Map(countersOf(db).map((counter) => [counter.organization_id, counter]))
  if (moved.some((counter) => newest.get(counter.organization_id) !== counter)) {
    throw new Error('the transaction has locked the counter again since')
  }
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
