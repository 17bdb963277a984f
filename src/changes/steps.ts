import type { KeyObject } from 'node:crypto'
import { CallerEnded, RowLocked, validateCallers, type Verdict } from '../db/callers/caller.ts'
import { appendEvents, lockCounters, requireOpen, type Counter, type SynchronousCommit } from '../db/changes/chain.ts'
import { tampered, type Db } from '../db/database.ts'
import { eventRow, type EventRow } from '../db/events.ts'
import type { Actor, AuditEvent } from '../repositories/audit/audit.ts'
import type { Answer } from '../repositories/operations/idempotency.ts'
import { findLevelsToWrite, type LevelState, type Target } from '../repositories/levels/levels.ts'
import { writeSecrets } from '../repositories/secrets/secrets.ts'
import { findVersionsTogether, type FullVersion } from '../repositories/secrets/versions.ts'
import type { ApiError } from '../rules/errors.ts'
import { planOf, withDocument, type Change, type Planned, type Written } from '../vault/documents/plan-write.ts'
import { createStoredResponses, type StoredResponses } from './repeats.ts'

/** What `decide` returns. `read` is the event if no document is written: what the response reveals. */
export type Decision<Body = object | null> = { read?: AuditEvent | undefined } & ({
  /** The change of the document. */
  change: Change
  /** The response, from the written document. */
  answer: (written: Written) => Answer<Body>
} | {
  /** Nothing changes. */
  change?: undefined
  answer: () => Answer<Body>
} | {
  /** The planned change of a dry run, which is checked against the limits of the plan and not written. */
  change: Change | undefined
  /** Makes the response of a dry run after the transaction. */
  dryRun: () => Promise<Answer<Body>>
} | {
  /** The error of a change that the content of the document refuses. */
  refused: ApiError
})

/**
 * A change of a document. `decide` is called while the organization's counter row is locked, with the level (undefined
 * if the level does not exist) and the version to restore. `decide` throws an error to refuse the change without an
 * event. `decide` is synchronous, so that other changes of the organization do not wait for I/O.
 */
export interface DocumentChange<Body = object | null> {
  storageKey: KeyObject
  /** The level, and the version to restore: read under the lock. */
  load: Target
  /** The bytes of the document in the request. */
  bytes: number
  decide: (state: LevelState | undefined, restored: FullVersion | undefined) => Decision<Body>
}

export interface ChangeRequest extends DocumentChange { organizationId: string, actor: Actor }

/** An event of a request that only reads. */
export interface ReadRequest { organizationId: string, bytes: number, row: EventRow }

export type Request = (ChangeRequest | ReadRequest) & {
  /** Whether the transaction has changes of one organization only. It may then wait for locks. */
  isApart?: boolean
}

/** The result of a request. After the error RowLocked, the request runs again in another transaction. */
export type Outcome = { answer: Answer | undefined } | { dryRun: () => Promise<Answer> } | { error: unknown }

/** What was read for a change under the lock. `level` and `restored` throw TamperedRow. */
interface Loaded {
  verdict: Verdict
  level: () => { state: LevelState, isFree: boolean } | undefined
  restored: (() => FullVersion | undefined) | undefined
}

/** What the changes of a transaction write. */
interface Rows { documents: Planned[], events: EventRow[], responses: StoredResponses }

/**
 * The steps of all requests of one transaction. Locks the counter rows, reads what the changes need, decides each
 * request in order, and writes all rows. If another transaction has locked a counter row, requests with `isApart` wait
 * for the lock; other requests get RowLocked.
 */
export async function takeSteps (db: Db, requests: readonly Request[], commit: SynchronousCommit) {
  const changes = requests.filter((request) => 'decide' in request)
  const isApart = requests.every(({ isApart }) => isApart)
  const ids = new Set(requests.map(({ organizationId }) => organizationId))
  const responses = createStoredResponses(db, changes.map(({ actor }) => actor))
  // The statements are pipelined and run in this order, so all but the first see the state under the lock.
  const [counters, loaded] = await Promise.all([
    lockCounters(db, ids, isApart ? 'all' : 'free', commit),
    load(db, changes),
    responses.load()
  ])
  const rows: Rows = { documents: [], events: [], responses }
  const outcomes = requests.map((request): Outcome => {
    try {
      const counter = counters.get(request.organizationId)
      if (counter === undefined) throw isApart ? new CallerEnded() : new RowLocked()
      if (!counter.hasKey) tampered()
      if ('decide' in request) return decide(request, loaded.get(request)!, counter, rows)
      rows.events.push(request.row)
      return { answer: undefined }
    } catch (error) {
      return { error }
    }
  })
  await Promise.all([
    rows.documents.length > 0 && writeSecrets(db, rows.documents),
    responses.write(),
    rows.events.length > 0 && appendEvents(db, counters, rows.events)
  ])
  return { outcomes, counters: counters.values() }
}

async function load (db: Db, changes: readonly ChangeRequest[]): Promise<Map<ChangeRequest, Loaded>> {
  const restores = changes.flatMap((change) => 'version' in change.load ? [{ change, id: change.load.version }] : [])
  const [verdicts, levels, versions] = await Promise.all([
    validateCallers(db, changes.map(({ organizationId, actor }) =>
      actor.caller && { ...actor.caller, organization_id: organizationId })),
    findLevelsToWrite(db, changes.map(({ organizationId, load }) => ({ organizationId, target: load }))),
    restores.length === 0
      ? []
      : findVersionsTogether(db, restores.map(({ change, id }) => ({ organization_id: change.organizationId, id })))
  ])
  const restored = new Map(restores.map(({ change }, i) => [change, versions[i]!]))
  return new Map(changes.map((change, i) =>
    [change, { verdict: verdicts[i]!, level: levels[i]!, restored: restored.get(change) }]))
}

/** The steps of one change. Adds its rows and its event, and moves the counter for the next change. */
function decide (request: ChangeRequest, loaded: Loaded, counter: Counter, rows: Rows): Outcome {
  const { actor } = request
  if (loaded.verdict === 'ended') throw new CallerEnded()
  if (actor.caller != null) requireOpen(counter)
  // A stored response is only for a caller that is certainly valid.
  if (loaded.verdict === 'locked' && actor.answering != null) throw new RowLocked()
  rows.responses.requireFirst(actor)
  const level = loaded.level()
  const state = level && withDocument(level.state, rows.documents)
  // Calls `decide` before the check of the locks, so that a refusal does not depend on locks.
  const decision = request.decide(state, loaded.restored?.())
  if (loaded.verdict === 'locked' || level?.isFree === false) throw new RowLocked()
  const change = 'change' in decision ? decision.change : undefined
  const planned = change && planOf(request, state!, change, counter)
  const event = 'answer' in decision && planned ? planned.event : decision.read
  if (event !== undefined) rows.events.push(eventRow(actor, event))
  if ('refused' in decision) return { error: decision.refused }
  if ('dryRun' in decision) return decision
  if (planned !== undefined) {
    counter.next_version += planned.version === null ? 0 : 1
    counter.stored_bytes += planned.growth
    rows.documents.push(planned)
  }
  const answer = decision.answer(planned!)
  rows.responses.keep(actor, answer)
  return { answer }
}
