import { desc, eq, sql } from 'drizzle-orm'
import type { EventName } from '../../../schemas/events.ts'
import { authenticatedColumns, type AuthenticatedRow } from '../../db/rows/authenticated.ts'
import { isAuthentic, macOf, readNow, type Db } from '../../db/database.ts'
import { deleteExpired } from '../../db/callers/expired.ts'
import { makeId } from '../../db/rows/ids.ts'
import { personal_events } from '../../db/tables.ts'
import { heldFrom, heldPage, type HeldPage } from '../../rules/pagination.ts'

/** An event of a person's account. `ip` and `user_agent` are null for an operator. */
export type PersonalEvent = Pick<AuthenticatedRow<'personal_events'>,
  'user_id' | 'actor_type' | 'ip' | 'user_agent' | 'details'> & { action: EventName }

// Approximate WAL bytes of an event with its index entries.
const LOGGED_BYTES = 500

/**
 * Records an event that only the person sees. For an unknown address, the same statements run and write a WAL message
 * of the same size. So the commit flushes the WAL in both cases, and its duration does not reveal whether an address
 * has an account. Also deletes some events that are older than a year.
 */
export async function createPersonalEvent (db: Db, event: PersonalEvent): Promise<void> {
  const row = { ...event, id: makeId(), occurred_at: new Date(await readNow(db)) }
  const { id, user_id, occurred_at, action, actor_type, ip, user_agent, details } = row
  await deleteExpired(db, personal_events.id, sql`${personal_events.occurred_at} < now() - interval '1 year'`)
  await db.execute(sql`
    WITH account AS MATERIALIZED (SELECT id FROM users WHERE id = ${user_id}::bigint), message AS MATERIALIZED (
      SELECT pg_logical_emit_message(true, 'no account', repeat('0', ${LOGGED_BYTES}::int))
      WHERE NOT EXISTS (SELECT FROM account)
    )
    INSERT INTO personal_events (id, user_id, occurred_at, action, actor_type, ip, user_agent, details, mac)
    SELECT ${id}::bigint, id, ${occurred_at.toISOString()}::timestamptz, ${action}, ${actor_type}, ${ip}, ${user_agent},
      ${details === null ? null : JSON.stringify(details)}::jsonb, ${macOf(db, 'personal_events', row)}
    FROM account WHERE (SELECT count(*) FROM message) >= 0`)
}

/** A page of the events of a person, newest first. Omits events with a wrong MAC. */
export async function listPersonalEvents (
  db: Db, user_id: number, page = 1
): Promise<HeldPage<PersonalEvent & { occurred_at: Date }>> {
  const { limit, offset } = heldFrom(page)
  const rows = await db.select(authenticatedColumns('personal_events')).from(personal_events)
    .where(eq(personal_events.user_id, user_id))
    .orderBy(desc(personal_events.occurred_at), desc(personal_events.id)).limit(limit).offset(offset)
  const held = heldPage(rows, page)
  const genuine = held.rows.filter((row) => isAuthentic(db, 'personal_events', row))
  return { ...held, rows: genuine.map((row) => ({ ...row, action: row.action as EventName })) }
}
