import { and, asc, eq, gt, inArray, sql } from 'drizzle-orm'
import { authenticatedColumns } from '../db/authenticated.ts'
import { CallerEnded, callerCtes, callersJson, callersLive, orAgain, type Caller } from '../db/caller.ts'
import {
  authorityOf, databaseError, DatabaseUnavailable, isAuthentic, rowsOf, tampered, transaction, type Answering, type Db
} from '../db/database.ts'
import {
  appendEvents, chainOf, findHeads, recordGuessed, takeHead, takeHeads, withKeys, type SynchronousCommit
} from '../db/chain.ts'
import { eventRow, type EventRow } from '../db/events.ts'
import { endOfWait, inTime } from '../db/guard.ts'
import { createLine, type Line, type Waiter } from '../db/line.ts'
import { audit_events, late_events, organization_counters } from '../db/tables.ts'

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
  /** The answer that is kept with what they do, where they may ask for it again. */
  answering?: Answering | null
  /** Milliseconds that their request has waited for the database before. */
  waited?: number
}

const withoutRequest = (organization_id: string, type: 'operator' | 'system'): Actor =>
  ({ organization_id, type, id: null, name: type, request_id: null, ip: null, user_agent: null, caller: null })

/** The operator at the command line. */
export const operatorOf = (organizationId: string): Actor => withoutRequest(organizationId, 'operator')

/** The service itself, at work in the background. */
export const systemOf = (organizationId: string): Actor => withoutRequest(organizationId, 'system')

export type AuditEvent = Pick<EventRow, 'action' | 'resource_type' | 'resource_id'> & {
  details?: NonNullable<EventRow['details']>
  /** By how many bytes the organization stores more, or less, with what it tells of: none, where it is left out. */
  growth?: number
}

/**
 * Records an event, or several in their order, as the last of its transaction: the counter row it takes is the last
 * lock in the order (project, level, caller, counter), and says behind which event they stand.
 *
 * It is the gate of every change, too: the caller is held here, in the same statement, and the change fails with
 * CallerEnded when there is none any more. A change that records nothing is none (`audit` of its route says so).
 * Whoever may ask for the answer again has it kept in this transaction.
 */
export async function recordEvent (db: Db, actor: Actor, ...events: AuditEvent[]): Promise<void> {
  const { organization_id, answering } = actor
  if (answering?.hasBegun === false) throw new Error('the transaction of a change does not keep its answer')
  const take = async () => takeHead(db, organization_id, callersJson([actor]))
  const head = await orAgain(take, (found) => found !== undefined || actor.caller === null)
  if (head !== undefined) {
    const growth = events.reduce((sum, event) => sum + (event.growth ?? 0), 0)
    const rows = events.map((event) => eventRow(actor, event))
    await appendEvents(db, new Map([[organization_id, head]]), rows, { growth })
  } else if (actor.caller !== null) throw new CallerEnded()
}

/** Records an event of what is no change: in a transaction of its own. */
export async function recordAlone (handle: Db, actor: Actor, event: AuditEvent): Promise<void> {
  await transaction(handle, (db) => recordEvent(db, actor, event))
}

/**
 * Holds the caller of a change until the end of the transaction, for one that takes the counter before its event:
 * whoever revokes that caller holds it, and waits for the counter. Throws CallerEnded when there is none any more.
 */
export async function holdCaller (db: Db, actor: Actor): Promise<void> {
  const hold = async () => await db.execute(sql`
    WITH ${callerCtes(callersJson([actor]))} SELECT ${callersLive} AS live
  `) as unknown as { live: boolean }[]
  const [row] = await orAgain(hold, ([row]) => row!.live)
  if (!row!.live) throw new CallerEnded()
}

/**
 * Records what somebody did, or somebody tried to be, in each of their organizations, as the last of its transaction.
 * No organization keeps them from it: where somebody holds the counter, or its key is gone, the event is kept in
 * `late_events`, with the transaction, and numbered later. Answers whether there are such. With no actor it takes as
 * long as with one, so that how long a refusal takes tells nothing.
 *
 * @param event the same everywhere, or as it is in an organization
 * @param synchronousCommit as in `gatherReads`, of what changes nothing
 */
export async function recordOfPerson (
  db: Db, actors: readonly Actor[], event: AuditEvent | ((organizationId: string) => AuditEvent),
  synchronousCommit: SynchronousCommit = 'on'
): Promise<boolean> {
  // Of one moment, wherever it is recorded.
  const occurred_at = chainOf(db).now().toISOString()
  const rows = actors.map((actor) => {
    const its = typeof event === 'function' ? event(actor.organization_id) : event
    return { ...eventRow(actor, its), occurred_at }
  })
  const free = await takeHeads(db, rows.map(({ organization_id }) => organization_id), 'free', synchronousCommit)
  const heads = await withKeys(db, free)
  const isFree = ({ organization_id }: EventRow) => heads.has(organization_id)
  const late = rows.filter((row) => !isFree(row))
  await appendEvents(db, heads, rows.filter(isFree), { late })
  return late.length > 0
}

/** The next organizations that have late events, behind one of them: the system's own list. */
export async function listLate (db: Db, after = '', limit = 100): Promise<string[]> {
  const { organization_id } = organization_counters
  const late = db.select({ id: late_events.organization_id }).from(late_events)
  return (await db.select({ organization_id }).from(organization_counters)
    .where(and(gt(organization_id, after), inArray(organization_id, late)))
    .orderBy(asc(organization_id)).limit(limit)).map((row) => row.organization_id)
}

/**
 * Numbers late events of an organization, the earliest first, if its counter is free. One that the service did not
 * write as it is, or that has its number already, becomes none: it is reported, and gone. Answers how many there were;
 * undefined while somebody holds the counter. Throws TamperedRow where its key is gone, which no waiting mends.
 */
export async function recordLate (handle: Db, organizationId: string): Promise<number | undefined> {
  return transaction(handle, async (db) => {
    const heads = await takeHeads(db, [organizationId], 'free')
    if (heads.size === 0) return undefined
    // Before anything is reported, which is undone with the rest and would be again at each look.
    if ((await withKeys(db, heads)).size === 0) tampered()
    const { organization_id, id } = late_events
    const earliest = db.select({ organization_id, id }).from(late_events).where(eq(organization_id, organizationId))
      .orderBy(asc(id)).limit(AT_ONCE)
    const rows = await db.delete(late_events).where(sql`(${organization_id}, ${id}) IN ${earliest}`)
      .returning(authenticatedColumns('late_events'))
    const written = rows.sort((a, b) => a.id - b.id).filter((row) => isAuthentic(db, 'late_events', row))
    const numbered = await findNumbered(db, organizationId, written)
    for (const row of written) if (numbered.has(row.id)) authorityOf(db).report({ table: 'late_events', row, about: {} })
    const events = written.filter(({ id }) => !numbered.has(id)).map(({ organization_id, id, event, occurred_at }) => ({
      ...event,
      details: { ...event.details, [LATE]: id },
      organization_id,
      occurred_at: occurred_at.toISOString()
    }))
    if (events.length > 0) await appendEvents(db, heads, events)
    return rows.length
  })
}

// Among the details of a numbered event, so that its place in the chain says it too: which late event it was.
const LATE = 'late'

/**
 * Ids of late events that have their number: whoever keeps a copy of the row can put it back, and the row's MAC is
 * right. The counter is held, so that nobody numbers one meanwhile.
 */
async function findNumbered (
  db: Db, organizationId: string, rows: readonly { id: number, occurred_at: Date }[]
): Promise<Set<number>> {
  if (rows.length === 0) return new Set()
  const found = await db.execute(sql`
    SELECT late.id FROM ${rowsOf(organizationId, rows.map(({ id, occurred_at }) => ({ id, occurred_at })),
      sql`id bigint, occurred_at timestamptz`)} late
    JOIN ${audit_events} ON ${audit_events.organization_id} = late.organization_id
      AND ${audit_events.occurred_at} = late.occurred_at AND ${audit_events.details} -> ${LATE} = to_jsonb(late.id)
  `) as unknown as { id: string }[]
  return new Set(found.map(({ id }) => Number(id)))
}

/** Records what was only read; answers when it is recorded. */
export type RecordRead = (actor: Actor, event: AuditEvent) => Promise<void>

interface Waiting extends Waiter { row: EventRow, done: () => void }

const AT_ONCE = 200

/**
 * Gathers what is recorded in one tick, and what comes while a statement is under way, into one statement of all
 * organizations; nobody waits for it longer than in any line. That one waits for nobody, and goes by where each chain
 * was last seen to end: an organization whose counter somebody holds or has moved is recorded by itself, one
 * transaction at a time, and only those who read in it wait, or fail with it.
 *
 * @param synchronousCommit `off` where the server writes its log within a second by itself: an event may then be lost
 *   with the machine, though its answer was sent
 */
export function gatherReads (handle: Db, synchronousCommit: SynchronousCommit): RecordRead {
  const line = createLine<Waiting>(async ({ take }) => recordTogether(take(AT_ONCE, () => true)))
  // By organization: those who wait for its counter.
  const alone = new Map<string, { line: Line<Waiting>, users: number }>()

  return (actor, event) => {
    const until = endOfWait(actor.waited)
    return inTime(until, new Promise((resolve, reject) => {
      line.join({ row: eventRow(actor, event), done: resolve, reject, until })
    }))
  }

  async function recordTogether (all: readonly Waiting[]) {
    const together = all.map(({ row }) => row)
    try {
      const heads = await findHeads(handle, together.map(({ organization_id }) => organization_id))
      const recorded = await recordGuessed(handle, heads, together, synchronousCommit)
      for (const one of all) {
        if (recorded.has(one.row.organization_id)) one.done()
        else recordAlone(one)
      }
    } catch (error) {
      // Of a database that answers, one event can be at fault: its organization's, then.
      const mayBeOne = !(error instanceof DatabaseUnavailable) &&
        new Set(together.map(({ organization_id }) => organization_id)).size > 1
      for (const one of all) {
        if (mayBeOne) recordAlone(one)
        else one.reject(notRecorded(error))
      }
      throw error
    }
  }

  function recordAlone ({ done, reject, ...waiting }: Waiting) {
    const { organization_id: id } = waiting.row
    const own = alone.get(id) ??
      { line: createLine<Waiting>(({ take }) => recordInTurn(id, take(AT_ONCE, () => true))), users: 0 }
    alone.set(id, own)
    own.users++
    const leave = () => { if (--own.users === 0) alone.delete(id) }
    own.line.join({
      ...waiting,
      done () {
        leave()
        done()
      },
      reject (error) {
        leave()
        reject(error)
      }
    })
  }

  async function recordInTurn (organizationId: string, all: readonly Waiting[]) {
    try {
      const isRecorded = await transaction(handle, async (db) => {
        const heads = await takeHeads(db, [organizationId], 'in turn', synchronousCommit)
        if (heads.size === 0) return false
        await appendEvents(db, heads, all.map(({ row }) => row))
        return true
      })
      // Without a counter there is no organization any more, and nobody who may read in it.
      for (const { done, reject } of all) isRecorded ? done() : reject(new CallerEnded())
    } catch (error) {
      for (const { reject } of all) reject(notRecorded(error))
      throw error
    }
  }
}

// Whatever the reason: what cannot be recorded is not answered, and may be asked again.
function notRecorded (error: unknown): DatabaseUnavailable {
  const { message, code } = databaseError(error)
  return new DatabaseUnavailable(`An event could not be recorded: ${message}`, code)
}
