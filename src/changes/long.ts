import { sql } from 'drizzle-orm'
import { isLockTimeout, isOnlyConnection, type Db } from '../db/database.ts'
import { afterWait, pauseFor, waitNow } from '../db/postgres/wait-clock.ts'
import { CallerEnded } from '../db/rows/caller.ts'
import type { Counter } from '../db/rows/counter.ts'
import type { Actor } from '../repositories/audit/audit.ts'
import { Gate } from '../gate.ts'
import { fail } from '../rules/api-error.ts'
import { RowLocked, lockCallers } from './callers.ts'
import { change } from './change.ts'
import { lockCounters, requireOpen } from './counter.ts'
import { appendEvents } from './events.ts'
import { createStoredResponses } from './repeats.ts'
import { resultOf, type Made, type RowChange } from './steps.ts'
import { transaction } from './transaction.ts'

// Long operations may write every document of a project: key rotations, changes of custody, `restore-to`, deletions of
// many levels. An organization runs one at a time across all instances, so that it cannot occupy all connections.

// The operations of an organization wait in a queue in the process, without a database connection.
const gate = new Gate([{}, { running: 1, waiting: 8 }], { work: 'long operations', after: afterWait })

/** The code of the 409 response if another long operation uses the project or the organization. */
type InUse = 'rotation_in_progress' | 'conflict'

/** A change that takes up to a minute. `load` locks the project until the end of the transaction. */
export interface LongChange<Loaded, Written, Body = object | null> extends RowChange<Loaded, Written, Body> {
  projectId: string
  load: (db: Db) => Promise<Loaded>
  inUse?: InUse
  /**
   * Expensive work without the database. Runs in the transaction, but before the project is locked, and only if the
   * request has no stored response. With a single connection, runs before the transaction.
   */
  prepare?: (() => Promise<void>) | undefined
}

/**
 * Like `change`, for a change that takes longer than four seconds: runs in one transaction of up to a minute, which
 * locks the organization's counter row last. Fails with 409 (`inUse`) if another request uses the project, or if a long
 * operation of the organization on another instance does not end within the lock timeout. Fails with 503
 * (WorkOverloaded) if the queue of the organization is full, or if the wait in the queue is too long.
 *
 * With an `Idempotency-Key`, looks for the stored response after the lock, because the operation that had the lock may
 * be the first request with this key. If that operation does not end in time, the 409 is `conflict`.
 */
export async function changeLong<Loaded, Written, Body extends object | null> (
  longTransactions: Db, actor: Actor, asked: LongChange<Loaded, Written, Body>
): Promise<Made<Body> & { written: Written }> {
  const { projectId, inUse = 'rotation_in_progress', prepare } = asked
  // All other requests would wait for the only connection. There is a single process then, in which a repeat is refused
  // (`oncePerProject`) until the response is stored.
  const preparesFirst = isOnlyConnection(longTransactions)
  const inTransaction = () => transaction(longTransactions, async (db) =>
    takeLongSteps(db, actor, preparesFirst ? { ...asked, prepare: undefined } : asked))
  return oncePerProject(projectId, actor, inUse, () =>
    gate.run([actor.organization_id], async () => {
      if (preparesFirst) await prepare?.()
      return conflictOnLockTimeout(inTransaction, actor.answering == null ? inUse : 'conflict')
    }))
}

/** `changeLong` if `isLong`, otherwise `change`: for changes whose duration depends on their size. */
export const changeLongIf = async <Loaded, Written, Body extends object | null>(
  isLong: boolean, { db, longTransactions }: { db: Db, longTransactions: Db }, actor: Actor,
  asked: LongChange<Loaded, Written, Body>
): Promise<Made<Body> & { written: Written }> =>
  isLong ? changeLong(longTransactions, actor, asked) : change(db, actor, asked)

async function takeLongSteps<Loaded, Written, Body extends object | null> (
  db: Db, actor: Actor, { count, prepare, load, decide }: LongChange<Loaded, Written, Body>
): Promise<Made<Body> & { written: Written }> {
  const responses = createStoredResponses(db, [actor])
  const refuseRepeat = async () => {
    await responses.load()
    responses.refuseRepeat(actor)
  }
  let counter: Counter | undefined
  // Other writes of the organization wait from here until the commit.
  const lockCounter = async () => {
    if (counter !== undefined) return counter
    counter = await lockCounterLast(db, actor)
    // Another request with this key may have committed since the first look.
    await refuseRepeat()
    return counter
  }
  await lockLongOperations(db, actor.organization_id)
  await refuseRepeat()
  await count?.()
  await prepare?.()
  const decision = decide(await load(db))
  const written = await decision.write(db, lockCounter)
  const locked = await lockCounter()
  const { events, answer } = resultOf(decision, actor, locked, written)
  responses.keep(actor, answer)
  await responses.write()
  if (events.length > 0) await appendEvents(db, new Map([[actor.organization_id, locked]]), events)
  return { ...answer, written }
}

// Milliseconds: the maximum wait while another transaction, such as a revocation, locks the caller's rows, and between
// two checks. A retry would repeat all work.
const CALLER_LOCK = { timeout: 1_000, interval: 20 }

/**
 * Locks the counter row of the actor's organization after all other rows, and validates the caller. Throws CallerEnded,
 * OrganizationInactive or RowLocked.
 */
export async function lockCounterLast (db: Db, { organization_id, caller }: Actor): Promise<Counter> {
  const counter = (await lockCounters(db, [organization_id], 'all')).get(organization_id)
  requireOpen(counter)
  if (caller === null) return counter
  for (const late = waitNow() + CALLER_LOCK.timeout; ;) {
    const [verdict] = await lockCallers(db, [{ ...caller, organization_id }])
    if (verdict === 'live') return counter
    if (verdict === 'ended') throw new CallerEnded()
    if (waitNow() >= late) throw new RowLocked()
    await pauseFor(CALLER_LOCK.interval)
  }
}

const projectsInUse = new Map<string, Actor>()

// Fails at once if this process already works on the project: `conflict` for a repeated request, otherwise `inUse`.
async function oncePerProject<T> (projectId: string, actor: Actor, inUse: InUse, work: () => Promise<T>): Promise<T> {
  const other = projectsInUse.get(projectId)
  if (other !== undefined) fail(actor.answering?.repeats(other.answering) ? 'conflict' : inUse)
  projectsInUse.set(projectId, actor)
  try {
    return await work()
  } finally {
    projectsInUse.delete(projectId)
  }
}

/** Runs `work`. After a lock timeout, fails with 409 instead of 503, because another request has the lock. */
export async function conflictOnLockTimeout<T> (
  work: () => Promise<T>, inUse: InUse = 'rotation_in_progress'
): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (isLockTimeout(error)) fail(inUse)
    throw error
  }
}

/**
 * Locks the long operations of an organization until the end of the transaction, so that only one runs at a time. This
 * must be the first lock of the transaction, so that a waiting transaction holds no other locks. Waits up to the lock
 * timeout.
 */
async function lockLongOperations (db: Db, organizationId: string): Promise<void> {
  await db.execute(sql`
    INSERT INTO long_operations (organization_id) VALUES (${organizationId})
    ON CONFLICT (organization_id) DO UPDATE SET began_at = excluded.began_at`)
}
