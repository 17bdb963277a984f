import { authorityOf, tampered, type Db } from '../db/database.ts'
import { eventRow, type EventRow } from '../db/events.ts'
import { engineOf } from '../db/postgres/engine.ts'
import { chainOf } from '../db/rows/authority.ts'
import {
  findAppended, takeLateEvents, type Actor, type AuditEvent, type RecordedEvent
} from '../repositories/audit/audit.ts'
import { listOrganizationsOf } from '../repositories/people/members.ts'
import { lockCounters, type SynchronousCommit } from './counter.ts'
import { appendEvents, keepLateEvents } from './events.ts'
import { transaction } from './transaction.ts'

// On Citus, each organization needs its own statements. With more, a transaction could exceed its timeout.
const MAX_AT_ONCE_ON_CITUS = 50

interface OfPersonOptions {
  /** The event is a refused sign-in. On Citus always a late event: the duration must not reveal organizations. */
  isRefusal?: boolean
  synchronousCommit?: SynchronousCommit
  /** Events of other actors that follow from the person's event, such as ended invitations. */
  effects?: readonly RecordedEvent[]
}

/**
 * The `organization_id` in `late_events` of a person whose organizations could not be listed, because a Citus node did
 * not respond. `replaceUnlisted` replaces such a row by a row for each organization.
 */
export const UNLISTED_ORGANIZATIONS = '0'.repeat(26)

/**
 * Records an event of a person, such as a refused sign-in, in each of the person's organizations. Call this at the end
 * of the transaction, because it locks the counter rows of the organizations. The event goes to `late_events` if the
 * counter row is locked or the chain key is missing; on Citus also for a refusal, for a person in more than 50
 * organizations, and for `UNLISTED_ORGANIZATIONS`. `recordLate` later appends late events to the chain. Returns whether
 * an event was stored as a late event. For an unknown account, `actors` is empty: the same statements run, so that the
 * duration of a refused sign-in does not reveal whether the account exists.
 */
export async function recordOfPerson (
  db: Db, actors: readonly Actor[], event: AuditEvent | ((organizationId: string) => AuditEvent),
  { isRefusal = false, synchronousCommit = 'on', effects = [] }: OfPersonOptions = {}
): Promise<boolean> {
  const events = actors.map((actor): RecordedEvent =>
    ({ actor, event: typeof event === 'function' ? event(actor.organization_id) : event })).concat(effects)
  // The event has the same time in all organizations.
  const occurred_at = chainOf(db).now().toISOString()
  const rows = events.map(({ actor, event }) => ({ ...eventRow(actor, event), occurred_at }))
  const ids = rows.map(({ organization_id }) => organization_id)
  const areLate = engineOf(db) === 'citus' &&
    (isRefusal || new Set(ids).size > MAX_AT_ONCE_ON_CITUS || ids.includes(UNLISTED_ORGANIZATIONS))
  const locked = await lockCounters(db, areLate ? [] : ids, 'free', synchronousCommit)
  const isFree = ({ organization_id }: EventRow) => locked.get(organization_id)?.hasKey === true
  const late = rows.filter((row) => !isFree(row))
  await keepLateEvents(db, late)
  await appendEvents(db, locked, rows.filter(isFree))
  return late.length > 0
}

// Maximum number of late events in a transaction. Each person of an unlisted event needs a query of all Citus nodes,
// and a transaction must end within four seconds.
const AT_ONCE = { unlisted: 20, listed: 200 }

/**
 * Replaces each late event of `UNLISTED_ORGANIZATIONS` by a late event for each organization in which the person is a
 * member now. A new row keeps the id of the old row. So if an attacker puts a copy of the old row back later, the
 * replay is detected (`findAppended`).
 */
export async function replaceUnlisted (handle: Db): Promise<void> {
  for (let deleted = AT_ONCE.unlisted; deleted === AT_ONCE.unlisted;) {
    deleted = await transaction(handle, async (db) => {
      const late = await takeLateEvents(db, UNLISTED_ORGANIZATIONS, AT_ONCE.unlisted)
      const events = []
      for (const { id: late_id, event, occurred_at } of late.authentic) {
        for (const organization_id of await listOrganizationsOf(db, event.actor_id!)) {
          events.push({ ...event, organization_id, occurred_at: occurred_at.toISOString(), late_id })
        }
      }
      if (events.length > 0) await keepLateEvents(db, events)
      return late.deleted
    })
  }
}

/**
 * Appends an organization's late events to its chain, oldest first. Reports and deletes an event if its MAC is wrong or
 * if the event is already in the chain. Returns the number of processed events; undefined if another transaction has
 * locked the counter row. Throws TamperedRow if the chain key is missing.
 */
export async function recordLate (handle: Db, organizationId: string): Promise<number | undefined> {
  return transaction(handle, async (db) => {
    const locked = await lockCounters(db, [organizationId], 'free')
    if (locked.size === 0) return undefined
    // Checks the chain key before any row is reported. A later error would roll back the deletion of the reported rows,
    // so each retry would report the same rows again.
    if (!locked.get(organizationId)!.hasKey) tampered()
    const { authentic, deleted } = await takeLateEvents(db, organizationId, AT_ONCE.listed)
    const appended = await findAppended(db, organizationId, authentic)
    for (const row of authentic) {
      if (appended.has(row.id)) authorityOf(db).report({ table: 'late_events', row, about: {} })
    }
    const events = authentic.filter(({ id }) => !appended.has(id)).map(({ organization_id, id, event, occurred_at }) =>
      ({ ...event, details: { ...event.details, late: id }, organization_id, occurred_at: occurred_at.toISOString() }))
    if (events.length > 0) await appendEvents(db, locked, events)
    return deleted
  })
}
