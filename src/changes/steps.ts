import type { KeyObject } from 'node:crypto'
import { yieldToEventLoop } from '../crypto/event-loop.ts'
import { tampered, type Db } from '../db/database.ts'
import { eventRow, type EventRow } from '../db/events.ts'
import { CallerEnded } from '../db/rows/caller.ts'
import type { Counter } from '../db/rows/counter.ts'
import type { Actor, AuditEvent, RecordedEvent } from '../repositories/audit/audit.ts'
import { lockLevelsToWrite, type LevelState, type Target } from '../repositories/levels/levels.ts'
import type { Answer } from '../repositories/operations/idempotency.ts'
import { writeSecrets } from '../repositories/secrets/secrets.ts'
import { findVersionsTogether, type FullVersion } from '../repositories/secrets/versions.ts'
import type { ApiError } from '../rules/api-error.ts'
import { planOf, withDocument, type Change, type Planned, type Written } from '../vault/documents/plan-write.ts'
import { RowLocked, lockCallers, type Verdict } from './callers.ts'
import { lockCounters, requireOpen, type SynchronousCommit } from './counter.ts'
import { appendEvents } from './events.ts'
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

/** What `decide` of a change of rows returns. */
export interface RowDecision<Written, Body = object | null> {
  /**
   * Writes the rows. Returns what the events and the response need from the database. A long operation locks the
   * counter row last, with `lockCounter`.
   */
  write: (db: Db, lockCounter: () => Promise<Counter>) => Promise<Written>
  /** The events, each of the caller or with its own actor. */
  events: Event[] | ((written: Written) => Event[])
  /** The response. Default: 204 without a body. */
  answer?: (written: Written) => Answer<Body>
}

/** The decision to change nothing, without an event. */
export const NOTHING = { write: async () => undefined, events: [] as [] }

type Event = AuditEvent | RecordedEvent

/**
 * A change of other rows than documents, in a transaction of its own. `load` and `write` run while the organization's
 * counter row is locked, so `load` may read in several steps; `counter` has the plan and the status of the
 * organization. Both can run again in another transaction (RowLocked).
 * `load` and `decide` throw an error to refuse the change.
 */
export interface RowChange<Loaded, Written, Body = object | null> {
  /** Counts the limit of the effect: after the check for a repeated request, once for all transactions. */
  count?: (() => Promise<unknown>) | undefined
  load?: (db: Db, counter: Counter) => Promise<Loaded>
  decide: (loaded: Loaded) => RowDecision<Written, Body>
}

interface Asked { organizationId: string, bytes: number, actor: Actor }
interface DocumentRequest extends DocumentChange, Asked { kind: 'document', isApart?: boolean }
interface RowRequest extends RowChange<unknown, unknown>, Asked { kind: 'rows', isApart: true }
export type ChangeRequest = DocumentRequest | RowRequest

/** An event of a request that only reads. */
export interface ReadRequest { kind: 'read', organizationId: string, bytes: number, row: EventRow, isApart?: boolean }

/** A request. With `isApart`, its transaction has requests of one organization only, and may wait for locks. */
export type Request = ChangeRequest | ReadRequest

/**
 * The result of a request. After the error RowLocked, the request runs again in another transaction. `isLeft`: there
 * was no time to decide the request, which runs in a later transaction.
 */
export type Outcome = { answer: Made | undefined } | { dryRun: () => Promise<Answer> } | { error: unknown } |
  { isLeft: true }

/** A response, with what `write` returned. */
export interface Made<Body = object | null, Written = unknown> extends Answer<Body> { written?: Written }

/** What was read for a change of a document under the lock. `level` and `restored` throw TamperedRow. */
interface Loaded {
  level: () => { state: LevelState, isFree: boolean } | undefined
  restored: (() => FullVersion | undefined) | undefined
}

/** What the requests of a transaction write in the end. */
interface Rows { documents: Planned[], events: EventRow[], responses: StoredResponses }

// Milliseconds after which the decisions of a transaction yield to the event loop, and after which the other changes
// are left to a later transaction: less than the idle timeout of a transaction with a locked counter (1 s).
const DECIDING_MS = { step: 10, transaction: 150 }

/**
 * The steps of all requests of one transaction: locks the counter rows, validates the callers, finds stored responses
 * of repeated requests, reads what the changes need, decides each request in order, and writes all rows, events and
 * responses. If another transaction has locked a counter row, requests with `isApart` wait for the lock; other requests
 * get RowLocked. Throws the error of a change of rows, which is alone in its transaction.
 */
export async function takeSteps (db: Db, requests: readonly Request[], commit: SynchronousCommit) {
  const changes = requests.filter((request) => request.kind !== 'read')
  const isApart = requests.every(({ isApart }) => isApart)
  const responses = createStoredResponses(db, changes.map(({ actor }) => actor))
  // The statements are pipelined and run in this order, so all but the first see the state under the lock.
  const [counters, verdicts, loaded] = await Promise.all([
    lockCounters(db, requests.map(({ organizationId }) => organizationId), isApart ? 'all' : 'free', commit),
    lockCallers(db, changes.map(({ organizationId, actor }) =>
      actor.caller && { ...actor.caller, organization_id: organizationId })),
    load(db, changes.flatMap((change) => change.kind === 'document' ? [change] : [])),
    responses.load()
  ])
  const verdictOf = new Map(changes.map((change, i) => [change, verdicts[i]!]))
  const rows: Rows = { documents: [], events: [], responses }

  function counterFor ({ organizationId }: Request): Counter {
    const counter = counters.get(organizationId)
    if (counter === undefined) throw isApart ? new CallerEnded() : new RowLocked()
    return counter.hasKey ? counter : tampered()
  }

  /** Throws if the caller is no longer valid, or if the request was answered before. Returns the verdict. */
  function admit (request: ChangeRequest, counter: Counter): Verdict {
    const { actor } = request
    const verdict = verdictOf.get(request)!
    if (verdict === 'ended') throw new CallerEnded()
    if (actor.caller != null) requireOpen(counter)
    // A document without a key is decided all the same, so that its refusal does not depend on locks.
    if (verdict === 'locked' && (request.kind === 'rows' || actor.answering != null)) throw new RowLocked()
    responses.refuseRepeat(actor)
    return verdict
  }

  async function takeAlone (request: RowRequest): Promise<Outcome> {
    const counter = counterFor(request)
    admit(request, counter)
    return changeRows(db, request, counter, rows)
  }

  function take (request: DocumentRequest | ReadRequest): Outcome {
    try {
      const counter = counterFor(request)
      if (request.kind === 'document') {
        const verdict = admit(request, counter)
        return changeDocument(request, loaded.get(request)!, verdict, counter, rows)
      }
      rows.events.push(request.row)
      return { answer: undefined }
    } catch (error) {
      return { error }
    }
  }

  // A document can take many milliseconds to parse.
  async function takeAll (requests: readonly (DocumentRequest | ReadRequest)[]): Promise<Outcome[]> {
    const began = performance.now()
    const outcomes: Outcome[] = []
    let yieldedAt = began
    for (const i of inTurns(requests)) {
      const isLeft = requests[i]!.kind === 'document' && performance.now() - began > DECIDING_MS.transaction
      outcomes[i] = isLeft ? { isLeft } : take(requests[i]!)
      if (performance.now() - yieldedAt < DECIDING_MS.step) continue
      await yieldToEventLoop()
      yieldedAt = performance.now()
    }
    return outcomes
  }

  const [first] = requests
  const outcomes = first?.kind === 'rows'
    ? [await takeAlone(first)]
    : await takeAll(requests.flatMap((request) => request.kind === 'rows' ? [] : [request]))
  await Promise.all([
    rows.documents.length > 0 && writeSecrets(db, rows.documents),
    responses.write(),
    rows.events.length > 0 && appendEvents(db, counters, rows.events)
  ])
  return outcomes
}

/** The indexes of the first request of each organization, then of the second of each, and so on. */
function inTurns (requests: readonly Request[]): number[] {
  const counts = new Map<string, number>()
  const turns = requests.map(({ organizationId }) => {
    const turn = counts.get(organizationId) ?? 0
    counts.set(organizationId, turn + 1)
    return turn
  })
  return [...turns.keys()].sort((one, other) => turns[one]! - turns[other]! || one - other)
}

async function load (db: Db, changes: readonly DocumentRequest[]): Promise<Map<DocumentRequest, Loaded>> {
  const restores = changes.flatMap((change) => 'version' in change.load ? [{ change, id: change.load.version }] : [])
  const [levels, versions] = await Promise.all([
    lockLevelsToWrite(db, changes.map(({ organizationId, load }) => ({ organizationId, target: load }))),
    restores.length === 0
      ? []
      : findVersionsTogether(db, restores.map(({ change, id }) => ({ organization_id: change.organizationId, id })))
  ])
  const restored = new Map(restores.map(({ change }, i) => [change, versions[i]!]))
  return new Map(changes.map((change, i) => [change, { level: levels[i]!, restored: restored.get(change) }]))
}

/** Decides a change of a document. Adds its rows and its event, and moves the counter for the next change. */
function changeDocument (
  request: DocumentRequest, loaded: Loaded, verdict: Verdict, counter: Counter, rows: Rows
): Outcome {
  const { actor } = request
  const level = loaded.level()
  const state = level && withDocument(level.state, rows.documents)
  // Calls `decide` before the check of the locks, so that a refusal does not depend on locks.
  const decision = request.decide(state, loaded.restored?.())
  if (verdict === 'locked' || level?.isFree === false) throw new RowLocked()
  const change = 'change' in decision ? decision.change : undefined
  const planned = change && planOf(request, state!, change, counter)
  const event = 'answer' in decision && planned ? planned.event : decision.read
  const answer = 'answer' in decision ? decision.answer(planned!) : undefined
  if (answer !== undefined) rows.responses.keep(actor, answer)
  // Adds the rows after all that can fail, because an error refuses only this request and the others commit.
  if (event !== undefined) rows.events.push(eventRow(actor, event))
  if ('refused' in decision) return { error: decision.refused }
  if ('dryRun' in decision) return decision
  if (planned !== undefined) {
    counter.next_version += planned.version === null ? 0 : 1
    counter.stored_bytes += planned.growth
    rows.documents.push(planned)
  }
  return { answer }
}

/** Reads, decides and writes a change of rows. Adds its events. */
async function changeRows (db: Db, request: RowRequest, counter: Counter, rows: Rows): Promise<Outcome> {
  const { actor } = request
  await request.count?.()
  const decision = request.decide(await request.load?.(db, counter))
  const written = await decision.write(db, async () => counter)
  const { events, answer } = resultOf(decision, actor, counter, written)
  rows.events.push(...events)
  rows.responses.keep(actor, answer)
  return { answer: { ...answer, written } }
}

/** The rows of the events, and the response. Adds the growth of the events to the counter. */
export function resultOf<Written, Body> (
  { events, answer }: RowDecision<Written, Body>, caller: Actor, counter: Counter, written: Written
): { events: EventRow[], answer: Answer<Body> } {
  const made = typeof events === 'function' ? events(written) : events
  return {
    events: made.map((one) => {
      const { actor, event } = 'event' in one ? one : { actor: caller, event: one }
      counter.stored_bytes += event.growth ?? 0
      return eventRow(actor, event)
    }),
    answer: answer?.(written) ?? { status: 204, body: null as Body }
  }
}
