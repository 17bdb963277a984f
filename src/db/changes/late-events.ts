import { sql } from 'drizzle-orm'
import { macOf } from '../rows/authority.ts'
import type { EventRow } from '../events.ts'
import type { Db } from '../postgres/handle.ts'
import { makeId } from '../rows/ids.ts'
import { preparedSql } from '../postgres/prepared.ts'

const keepLate = preparedSql<object, { late: string }>('late_events', ($) => sql`
  INSERT INTO late_events (organization_id, id, occurred_at, event, mac) OVERRIDING SYSTEM VALUE
  SELECT organization_id, id, occurred_at, event, decode(mac, 'hex') FROM jsonb_to_recordset(${$('late')}::jsonb)
    AS late (organization_id char(26), id bigint, occurred_at timestamptz, event jsonb, mac text)`)

/** Stores events with their times; `recordLate` numbers them later. */
export async function keepLateEvents (db: Db, events: readonly (EventRow & { occurred_at: string })[]): Promise<void> {
  await keepLate(db, { late: JSON.stringify(events.map((event) => lateRow(db, event))) })
}

// Not in the chain yet, so the row has a MAC of its own.
function lateRow (db: Db, event: EventRow & { occurred_at: string }) {
  const { organization_id } = event
  const row = { organization_id, id: makeId(), occurred_at: new Date(event.occurred_at), event }
  return { ...row, mac: macOf(db, 'late_events', row).toString('hex') }
}
