import type { KeyObject } from 'node:crypto'
import { CallerEnded, RowLocked, validateCallers } from '../../db/callers/caller.ts'
import { appendEvents, counterOf, lockCounters, requireOpen, type Counter, type SynchronousCommit } from '../../db/changes/chain.ts'
import {
  codeOf, databaseError, DatabaseUnavailable, isAwayForAll, isLockTimeout, isUndone, tampered, transaction, type Db
} from '../../db/database.ts'
import { eventRow, type EventRow } from '../../db/events.ts'
import { isLostTransaction } from '../../db/postgres/errors.ts'
import { DEADLINE, endOfWait } from '../../db/postgres/guard.ts'
import { queueOf, type Entry } from '../../db/changes/queue.ts'
import { pauseUntil, transactionOnce } from '../../db/changes/transaction.ts'
import { waitNow } from '../../db/postgres/wait-clock.ts'
import type { Actor, RecordRead } from '../../repositories/audit/audit.ts'
import { findLevelsToWrite, type LevelState, type SecretRow, type Target } from '../../repositories/levels/levels.ts'
import type { Organization } from '../../repositories/people/principals.ts'
import { writeSecrets } from '../../repositories/secrets/secrets.ts'
import { findVersionsTogether, type FullVersion } from '../../repositories/secrets/versions.ts'
import { planOf, withDocument, type Change, type Planned, type Written } from './plan-write.ts'

/**
 * A write of a document. `decide` applies the rules to the level under the organization's lock (undefined when it does
 * not exist) and the version to restore; an error that it throws refuses the write. It is synchronous, because all
 * other changes of the organization wait for it.
 */
export interface Write {
  /** The key that seals what the organization stores. */
  storageKey: KeyObject
  target: Target
  /** The bytes of the document that the write sends. */
  bytes: number
  decide: (state: LevelState | undefined, restored: FullVersion | undefined) => Change
}

interface WriteRequest extends Write { organizationId: string, actor: Actor }

/** The event of a request that reads. */
interface ReadRequest { organizationId: string, bytes: number, row: EventRow }

type Request = (WriteRequest | ReadRequest) & { isApart?: boolean }
type Queued = Entry & Request & { commit: SynchronousCommit, resolve: (written: Written | undefined) => void }

/** The decision about a request. RowLocked: a row was locked, so the request runs again. */
type Outcome = { written: Written | undefined } | { error: unknown }

/**
 * Writes a document with its version and its event, in one transaction with other queued changes. Each write is decided
 * on the committed state and the effects of the writes before it. Throws what `decide` throws; `plan_limit_reached`;
 * CallerEnded; DatabaseUnavailable after the deadline, also when a long operation has locked the project.
 */
export async function writeLevel (db: Db, { id }: Organization, actor: Actor, write: Write): Promise<Written> {
  const request: WriteRequest = {
    ...write,
    // The document and its version.
    bytes: 2 * write.bytes,
    organizationId: id,
    actor
  }
  if (!actor.answering) return await enqueue(db, request, actor, 'on') as Written
  return transaction(db, async (db) => {
    const [outcome] = await apply(db, [request], 'on')
    if ('error' in outcome!) throw outcome.error
    return outcome!.written!
  }, { ...actor, bytes: request.bytes })
}

/**
 * Records events of requests that only read, in the queues of their organizations.
 *
 * @param commit with `off`, a crash of the machine can lose the events of the last second, whose responses were sent
 */
export function createReadRecorder (db: Db, commit: SynchronousCommit): RecordRead {
  return async (actor, event, bytes = 0) => {
    const request: ReadRequest = { organizationId: actor.organization_id, bytes, row: eventRow(actor, event) }
    await enqueue(db, request, actor, commit).catch((error: unknown) => {
      if (error instanceof CallerEnded) throw error
      // The response is not sent, whatever the reason.
      const { message, code } = databaseError(error)
      throw new DatabaseUnavailable(`An event could not be recorded: ${message}`, code)
    })
  }
}

const enqueue = (db: Db, request: Request, { waited }: Actor, commit: SynchronousCommit) =>
  new Promise<Written | undefined>((resolve, reject) => {
    queueOf(db).join({ ...request, until: endOfWait(waited), commit, run: writeTogether, resolve, reject } as Queued)
  })

// Milliseconds that a transaction has at least: longer than `lock_timeout`, so that a locked counter is reported.
const MIN_TIMEOUT_MS = 1_500

async function writeTogether (db: Db, entries: readonly Queued[]): Promise<void> {
  const commit = entries.some(({ commit }) => commit === 'on') ? 'on' : 'off'
  const left = Math.max(MIN_TIMEOUT_MS, Math.min(...entries.map(({ until }) => until)) - waitNow())
  try {
    const outcomes = await transactionOnce(db, async (db) => apply(db, entries, commit), DEADLINE - left)
    for (const [i, entry] of entries.entries()) {
      const outcome = outcomes[i]!
      if ('written' in outcome) entry.resolve(outcome.written)
      else if (outcome.error instanceof RowLocked) joinAgain(db, entry)
      else entry.reject(outcome.error)
    }
  } catch (error) {
    const isLocked = isLockTimeout(error) || isLostTransaction(error)
    // Without a code the transaction got no connection: more transactions would not get one either.
    const isOfOne = entries.length > 1 && codeOf(error) !== undefined && isUndone(error) && !isAwayForAll(error)
    if (!isLocked && !isOfOne) throw error
    for (const entry of entries) {
      // One of the changes made the transaction fail. A `run` of its own gives each a transaction of its own.
      if (!isLocked) entry.run = (db, entries) => writeTogether(db, entries)
      joinAgain(db, entry)
    }
  }
}

// The first time at once, behind the changes that wait by then; after that with a pause.
function joinAgain (db: Db, entry: Queued) {
  const join = () => { queueOf(db).join(entry) }
  if (entry.isApart) pauseUntil(entry.until).then(join, entry.reject)
  else {
    entry.isApart = true
    join()
  }
}

/**
 * Locks the counters, decides the requests in their order, and writes the rows and events. When another instance has
 * locked its counter, a request that is apart waits, and any other runs again (an outcome of RowLocked).
 */
async function apply (db: Db, requests: readonly Request[], commit: SynchronousCommit): Promise<Outcome[]> {
  const writes = requests.filter((request) => 'decide' in request)
  const ids = new Set(requests.map(({ organizationId }) => organizationId))
  const isApart = requests.every(({ isApart }) => isApart)
  const own = counterOf(db)
  // Sent together. Each statement runs after the one before, so the last three see what the lock protects.
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

  function decide (write: WriteRequest, counter: Counter): Written {
    const { verdict, levelOf } = found.get(write)!
    if (verdict === 'ended') throw new CallerEnded()
    if (write.actor.caller != null) requireOpen(counter)
    const level = levelOf()
    const state = level && withDocument(level.state, documents)
    // Before the locks are checked, so that a refusal does not depend on them.
    const change = write.decide(state, versions.get(write)?.())
    if (verdict === 'locked' || level?.isFree === false) throw new RowLocked()
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
  return outcomes
}

async function versionsOf (db: Db, writes: readonly WriteRequest[]) {
  const restores = writes.flatMap((write) => 'version' in write.target ? [{ write, id: write.target.version }] : [])
  const found = restores.length === 0
    ? []
    : await findVersionsTogether(db, restores.map(({ write, id }) => ({ organization_id: write.organizationId, id })))
  return new Map(restores.map(({ write }, i) => [write, found[i]!]))
}
