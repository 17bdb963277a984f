import { sql } from 'drizzle-orm'
import { CallerEnded, callerCtes, callerLives, callerValues, type Caller } from '../db/caller.ts'
import { databaseError, DatabaseUnavailable, preparedSql, type Db } from '../db/database.ts'
import { eventRow, eventsJson, insertEvents, type EventRow } from '../db/events.ts'

/** Who did it, from where. */
export interface Actor {
  organization_id: string
  type: 'api_token' | 'user' | 'operator' | 'system'
  id: number | null
  name: string
  request_id: string | null
  ip: string | null
  user_agent: string | null
  /** Has to live when what it does commits; null for whoever was not let in by a token. */
  caller: Caller | null
}

const withoutRequest = (organization_id: string, type: 'operator' | 'system'): Actor =>
  ({ organization_id, type, id: null, name: type, request_id: null, ip: null, user_agent: null, caller: null })

/** The operator at the command line. */
export const operatorOf = (organizationId: string): Actor => withoutRequest(organizationId, 'operator')

/** The service itself, at work in the background. */
export const systemOf = (organizationId: string): Actor => withoutRequest(organizationId, 'system')

export type AuditEvent = Pick<EventRow, 'action' | 'resource_type' | 'resource_id'> & { details?: NonNullable<EventRow['details']> }

/**
 * Records an event, or several in their order, as the last statement of its transaction: the counter row it takes is the last lock in the order
 * (project, level, caller, counter), and gives the event the next number without a gap.
 *
 * It is the gate of every change, too: the caller is held here, in the same statement, and the change fails with
 * CallerEnded when there is none any more. A change that records nothing is none (`audit` of its route says so).
 */
export async function recordEvent (db: Db, actor: Actor, ...events: AuditEvent[]): Promise<void> {
  const caller = { organization_id: actor.organization_id, ...callerValues(actor.caller) }
  const rows = await db.execute(sql`
    WITH ${callerCtes(caller)}, counter AS (
      UPDATE organization_counters SET next_event = next_event + ${events.length}::int
      WHERE organization_id = ${actor.organization_id} AND ${callerLives(caller)} RETURNING organization_id, next_event - ${events.length}::int AS first
    )
    ${insertEvents(eventsJson(events.map((event) => eventRow(actor, event))))} RETURNING seq`) as unknown as unknown[]
  if (rows.length === 0 && actor.caller !== null) throw new CallerEnded()
}

/** Records an event in several organizations, in one order for everybody: each takes its organization's counter. */
export async function recordInEach (db: Db, organizationIds: readonly string[], actorIn: (organizationId: string) => Actor, event: AuditEvent): Promise<void> {
  for (const id of [...organizationIds].sort()) await recordEvent(db, actorIn(id), event)
}

/**
 * Records what was only read, or refused, in the organizations of the actors; answers when it is recorded. With no actor
 * it takes as long as with one, so that how long a refusal takes tells nothing.
 */
export type RecordRead = (actors: Actor | readonly Actor[], event: AuditEvent) => Promise<void>

interface Waiting { rows: readonly EventRow[], done: () => void, failed: (error: unknown) => void }

const AT_ONCE = 200

/**
 * Gathers what is recorded in one tick, and what comes while a statement is under way, into one statement of all
 * organizations. That one waits for nobody: an organization whose counter somebody holds is recorded by itself, one
 * statement at a time, and only those who read in it wait, or fail with it.
 *
 * @param synchronousCommit `off` where the server writes its log within a second by itself: an event may then be lost
 *   with the machine, though its answer was sent
 */
export function gatherReads (db: Db, synchronousCommit: 'on' | 'off'): RecordRead {
  const waiting: Waiting[] = []
  let isUnderWay = false
  // By organization: the statement that waits for its counter, and the next one, which still gathers.
  const current = new Map<string, Promise<void>>()
  const next = new Map<string, { rows: EventRow[], recorded: Promise<void> }>()

  return (actors, event) => new Promise((resolve, reject) => {
    waiting.push({ rows: [actors].flat().map((actor) => eventRow(actor, event)), done: resolve, failed: reject })
    if (isUnderWay) return
    isUnderWay = true
    setImmediate(async () => {
      while (waiting.length > 0) await recordTogether(waiting.splice(0, AT_ONCE))
      isUnderWay = false
    })
  })

  async function recordTogether (all: readonly Waiting[]) {
    const together = all.flatMap(({ rows }) => rows)
    try {
      const recorded = new Set((await recordFree(db, valuesOf(together))).map(({ organization_id }) => organization_id))
      for (const { rows, done, failed } of all) {
        Promise.all(rows.filter(({ organization_id }) => !recorded.has(organization_id)).map(recordAlone)).then(() => done(), failed)
      }
    } catch (error) {
      // Of a database that answers, one event can be at fault: its organization's, then.
      const mayBeOne = !(error instanceof DatabaseUnavailable) && new Set(together.map(({ organization_id }) => organization_id)).size > 1
      for (const { rows, done, failed } of all) {
        if (mayBeOne) Promise.all(rows.map(recordAlone)).then(() => done(), failed)
        else failed(notRecorded(error))
      }
    }
  }

  function recordAlone (row: EventRow): Promise<void> {
    const { organization_id: id } = row
    const gathering = next.get(id)
    if (gathering !== undefined) {
      gathering.rows.push(row)
      return gathering.recorded
    }
    const rows = [row]
    const recorded = (current.get(id) ?? Promise.resolve()).catch(() => {}).then(async () => {
      next.delete(id)
      current.set(id, recorded)
      try {
        // Without a counter there is no organization any more, and nobody who may read in it.
        if ((await recordWaiting(db, valuesOf(rows)).catch((error) => { throw notRecorded(error) })).length === 0) throw new CallerEnded()
      } finally {
        if (current.get(id) === recorded) current.delete(id)
      }
    })
    next.set(id, { rows, recorded })
    return recorded
  }

  function valuesOf (rows: readonly EventRow[]) {
    return { events: eventsJson(rows), synchronous_commit: synchronousCommit }
  }
}

// Whatever the reason: what cannot be recorded is not answered, and may be asked again.
function notRecorded (error: unknown): DatabaseUnavailable {
  const { message, code } = databaseError(error)
  return new DatabaseUnavailable(`An event could not be recorded: ${message}`, code)
}

// Counters are taken in one order, and not waited for where they are skipped. The setting lasts until this statement commits.
const recordReads = (name: string, held: 'SKIP LOCKED' | '') => preparedSql<{ organization_id: string }, { events: string, synchronous_commit: string }>(name, ($) => sql`
  WITH asked AS MATERIALIZED (
    SELECT organization_id, count(*)::int AS count, set_config('synchronous_commit', ${$('synchronous_commit')}::text, true)
    FROM jsonb_to_recordset(${$('events')}::jsonb) AS event (organization_id char(26)) GROUP BY organization_id
  ), free AS (
    SELECT organization_id FROM organization_counters WHERE organization_id IN (SELECT organization_id FROM asked)
    ORDER BY organization_id FOR NO KEY UPDATE ${sql.raw(held)}
  ), counter AS (
    UPDATE organization_counters SET next_event = next_event + asked.count
    FROM asked JOIN free USING (organization_id) WHERE organization_counters.organization_id = asked.organization_id
    RETURNING organization_counters.organization_id, next_event - asked.count AS first
  )
  ${insertEvents($('events'))} RETURNING organization_id`)
const recordFree = recordReads('record_reads', 'SKIP LOCKED')
const recordWaiting = recordReads('record_reads_of_one', '')
