import type { KeyObject } from 'node:crypto'
import { CallerEnded, RowLocked, validateCallers } from '../../db/callers/caller.ts'
import { appendEvents, counterOf, lockCounters, requireOpen, type Counter, type SynchronousCommit } from '../../db/changes/chain.ts'
import {
  codeOf, databaseError, DatabaseUnavailable, isAwayForAll, isLockTimeout, isUndone, tampered, transaction, type Db
} from '../../db/database.ts'
import { eventRow, type EventRow } from '../../db/events.ts'
import { isLostTransaction } from '../../db/postgres/errors.ts'
import { DEADLINE, endOfWait, inTime, lateOf } from '../../db/postgres/guard.ts'
import { appendToKnownEnds, rememberEnds } from '../../db/changes/known-ends.ts'
import { queueOf, type Entry } from '../../db/changes/queue.ts'
import { pauseUntil, transactionOnce } from '../../db/changes/transaction.ts'
import { waitNow } from '../../db/postgres/wait-clock.ts'
import type { Actor, RecordRead } from '../../repositories/audit/audit.ts'
import { findLevelsToWrite, type LevelState, type SecretRow, type Target } from '../../repositories/levels/levels.ts'
import type { Organization } from '../../repositories/people/principals.ts'
import { writeSecrets } from '../../repositories/secrets/secrets.ts'
import { findVersionsTogether, type FullVersion } from '../../repositories/secrets/versions.ts'
import { planOf, withDocument, type Change, type NoChange, type Planned, type Written } from './plan-write.ts'

/**
 * A write of a document. `decide` is called while the organization's counter row is locked. `decide` gets the level
 * (undefined if the level does not exist) and the version to restore. `decide` returns the change, or throws an error
 * that refuses the write. `decide` is synchronous, so that other changes of the organization do not wait for I/O.
 */
export interface Write<C extends Change | NoChange = Change | NoChange> {
  storageKey: KeyObject
  target: Target
  /** The bytes of the document in the request. */
  bytes: number
  decide: (state: LevelState | undefined, restored: FullVersion | undefined) => C
}

interface WriteRequest extends Write { organizationId: string, actor: Actor }

/** An event of a request that only reads. */
interface ReadRequest { organizationId: string, bytes: number, row: EventRow }

type Request = (WriteRequest | ReadRequest) & { isApart?: boolean }
type Queued = Entry & Request & { commit: SynchronousCommit, resolve: (written: Written | undefined) => void }

/** The result of a request. After the error RowLocked, the request is queued again. */
type Outcome = { written: Written | undefined } | { error: unknown }

/**
 * Writes a document with its version and its event. Queued changes share one transaction. `decide` sees the committed
 * state and the earlier writes of the transaction. Returns undefined after a NoChange. Throws the errors of `decide`;
 * `plan_limit_reached`; CallerEnded; OrganizationInactive; DatabaseUnavailable after the deadline, for example while a
 * long operation locks the project.
 */
export async function writeLevel<C extends Change | NoChange> (
  db: Db, { id }: Organization, actor: Actor, write: Write<C>
): Promise<C extends Change ? Written : undefined>
export async function writeLevel (
  db: Db, { id }: Organization, actor: Actor, write: Write
): Promise<Written | undefined> {
  const request: WriteRequest = {
    ...write,
    // The document is stored twice: as the current document and as a version.
    bytes: 2 * write.bytes,
    organizationId: id,
    actor
  }
  if (!actor.answering) return enqueue(db, request, actor, 'on')
  return transaction(db, async (db) => {
    const { outcomes: [outcome] } = await apply(db, [request], 'on')
    if ('error' in outcome!) throw outcome.error
    return outcome!.written
  }, { ...actor, bytes: request.bytes })
}

/**
 * Records the events of requests that only read. A batch of such events takes one statement where the ends of the
 * chains are known; other batches are a transaction.
 *
 * @param commit with `off`, a crash of the database can lose the events of the last second, whose responses were sent
 */
export function createReadRecorder (db: Db, commit: SynchronousCommit): RecordRead {
  return async (actor, event, bytes = 0) => {
    const request: ReadRequest = { organizationId: actor.organization_id, bytes, row: eventRow(actor, event) }
    await enqueue(db, request, actor, commit).catch((error: unknown) => {
      if (error instanceof CallerEnded) throw error
      // If the event is not recorded, the request fails, because no response may be sent without a recorded event.
      const { message, code } = databaseError(error)
      throw new DatabaseUnavailable(`An event could not be recorded: ${message}`, code)
    })
  }
}

const enqueue = (db: Db, request: Request, { waited }: Actor, commit: SynchronousCommit) =>
  new Promise<Written | undefined>((resolve, reject) => {
    queueOf(db).join({ ...request, until: endOfWait(waited), commit, run: writeTogether, resolve, reject } as Queued)
  })

// Minimum timeout of a transaction: longer than `lock_timeout`, so that a locked counter row gives a lock timeout.
const MIN_TIMEOUT_MS = 1_500

async function writeTogether (db: Db, queued: readonly Queued[]): Promise<void> {
  const commit = queued.some(({ commit }) => commit === 'on') ? 'on' : 'off'
  const until = Math.min(...queued.map(({ until }) => until))
  const left = () => Math.max(MIN_TIMEOUT_MS, until - waitNow())
  const entries = await recordReads(db, queued, commit, left())
  if (entries.length === 0) return
  try {
    const { outcomes, counters } =
      await transactionOnce(db, async (db) => apply(db, entries, commit), DEADLINE - left())
    rememberEnds(db, counters)
    for (const [i, entry] of entries.entries()) {
      const outcome = outcomes[i]!
      if ('written' in outcome) entry.resolve(outcome.written)
      else if (outcome.error instanceof RowLocked) requeue(db, entry)
      else entry.reject(outcome.error)
    }
  } catch (error) {
    const isLocked = isLockTimeout(error) || isLostTransaction(error)
    // An error without a code means that no connection was available, so a retry of each change would fail, too.
    const isOfOne = entries.length > 1 && codeOf(error) !== undefined && isUndone(error) && !isAwayForAll(error)
    if (!isLocked && !isOfOne) throw error
    for (const entry of entries) {
      // One of the changes made the transaction fail. Each change gets its own `run` function, because changes with
      // different `run` functions do not share a transaction.
      if (!isLocked) entry.run = (db, entries) => writeTogether(db, entries)
      requeue(db, entry)
    }
  }
}

// Records events in one statement if all requests only read, and returns the requests that need a transaction.
async function recordReads (db: Db, queued: readonly Queued[], commit: SynchronousCommit, left: number) {
  const rows = queued.flatMap((request) => 'row' in request ? [request.row] : [])
  if (rows.length < queued.length) return queued
  try {
    const recorded = await inTime(waitNow() + left, appendToKnownEnds(db, rows, commit), lateOf(left))
    for (const { organizationId, resolve } of queued) if (recorded.has(organizationId)) resolve(undefined)
    return queued.filter(({ organizationId }) => !recorded.has(organizationId))
  } catch (error) {
    // After an error of the statement, the transaction tells which event is at fault.
    if (isUndone(error) && codeOf(error) !== undefined && !isAwayForAll(error)) return queued
    throw error
  }
}

// Queues a change again: the first time immediately, later after a pause.
function requeue (db: Db, entry: Queued) {
  const join = () => { queueOf(db).join(entry) }
  if (entry.isApart) pauseUntil(entry.until).then(join, entry.reject)
  else {
    entry.isApart = true
    join()
  }
}

/**
 * Locks the counter rows, calls `decide` of the requests in order, and writes the rows and events. If another
 * transaction has locked a counter row, requests with `isApart` wait for the lock. Other requests get RowLocked.
 */
async function apply (db: Db, requests: readonly Request[], commit: SynchronousCommit) {
  const writes = requests.filter((request) => 'decide' in request)
  const ids = new Set(requests.map(({ organizationId }) => organizationId))
  const isApart = requests.every(({ isApart }) => isApart)
  const own = counterOf(db)
  // The statements are pipelined and run in this order, so the last three see the state under the lock.
  const [locked, verdicts, levels, versions] = await Promise.all([
    own === undefined ? lockCounters(db, ids, isApart ? 'all' : 'free', commit) : new Map([[own.organization_id, own]]),
    validateCallers(db, writes.map(({ organizationId, actor }) =>
      actor.caller && { ...actor.caller, organization_id: organizationId })),
    findLevelsToWrite(db, writes),
    versionsOf(db, writes)
  ])
  const found = new Map(writes.map((write, i) => [write, { verdict: verdicts[i]!, levelOf: levels[i]! }]))
  const documents = new Map<string, SecretRow>()
  const planned: Planned[] = []
  const rows: EventRow[] = []

  function decide (write: WriteRequest, counter: Counter): Written | undefined {
    const { verdict, levelOf } = found.get(write)!
    if (verdict === 'ended') throw new CallerEnded()
    if (write.actor.caller != null) requireOpen(counter)
    const level = levelOf()
    const state = level && withDocument(level.state, documents)
    // Calls `decide` before the check of the locks, so that a refusal does not depend on locks.
    const change = write.decide(state, versions.get(write)?.())
    if (verdict === 'locked' || level?.isFree === false) throw new RowLocked()
    if ('read' in change) {
      if (change.planned !== undefined) planOf(write, state!, change.planned, counter)
      if (change.read !== undefined) rows.push(eventRow(write.actor, change.read))
      return undefined
    }
    const plan = planOf(write, state!, change, counter)
    counter.next_version += plan.version === null ? 0 : 1
    counter.stored_bytes += plan.growth
    documents.set(plan.secret.level_id, plan.secret)
    planned.push(plan)
    rows.push(eventRow(write.actor, plan.event))
    return plan
  }

  const outcomes = requests.map((request): Outcome => {
    try {
      const counter = locked.get(request.organizationId)
      if (counter === undefined) throw isApart ? new CallerEnded() : new RowLocked()
      if (!counter.hasKey) tampered()
      if ('decide' in request) return { written: decide(request, counter) }
      rows.push(request.row)
      return { written: undefined }
    } catch (error) {
      return { error }
    }
  })
  if (planned.length > 0) await Promise.all([writeSecrets(db, planned), appendEvents(db, locked, rows)])
  else if (rows.length > 0) await appendEvents(db, locked, rows)
  return { outcomes, counters: locked.values() }
}

async function versionsOf (db: Db, writes: readonly WriteRequest[]) {
  const restores = writes.flatMap((write) => 'version' in write.target ? [{ write, id: write.target.version }] : [])
  const found = restores.length === 0
    ? []
    : await findVersionsTogether(db, restores.map(({ write, id }) => ({ organization_id: write.organizationId, id })))
  return new Map(restores.map(({ write }, i) => [write, found[i]!]))
}
