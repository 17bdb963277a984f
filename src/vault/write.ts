import type { KeyObject } from 'node:crypto'
import type { Plan } from '../../schemas/organizations.ts'
import type { Keyring } from '../crypto/keyring.ts'
import { CallerEnded, judgeCallers, RowHeld, type Verdict } from '../db/caller.ts'
import {
  appendEvents, counterOf, lockCounters, withKeys, type Counter, type SynchronousCommit
} from '../db/chain.ts'
import {
  codeOf, databaseError, DatabaseUnavailable, isAway, isAwayForAll, isUndone, tampered, transaction,
  type Db
} from '../db/database.ts'
import { eventRow, type EventRow } from '../db/events.ts'
import { DEADLINE, endOfWait } from '../db/guard.ts'
import { queueOf, type Entry } from '../db/queue.ts'
import { pauseUntil, transactionOnce } from '../db/transaction.ts'
import { waitNow } from '../db/wait-clock.ts'
import type { Actor, RecordRead } from '../repositories/audit.ts'
import { findLevelsToWrite, type LevelState, type SecretRow, type Target } from '../repositories/levels.ts'
import type { Organization } from '../repositories/principals.ts'
import { writeSecrets } from '../repositories/secrets.ts'
import { findVersionsTogether, type FullVersion } from '../repositories/versions.ts'
import { storageKeyOf } from './keys.ts'
import { bringForward, planOf, type Change, type Planned, type Written } from './plan-write.ts'

/**
 * A write of a document. `decide` gets the level as it is under the organization's lock, undefined when it does not
 * exist, and the version that is restored; it applies the rules, and an error that it throws refuses the write. It is
 * synchronous, because the organization waits for it.
 */
export interface Write {
  target: Target
  /** The bytes of the document that the write sends. */
  bytes: number
  decide: (state: LevelState | undefined, restored: FullVersion | undefined) => Change
}

interface WriteEntry extends Entry, Omit<Write, 'bytes'> {
  isRead: false
  actor: Actor
  plan: Plan
  storageKey: KeyObject
  resolve: (written: Written) => void
}

/** An event of a request that reads. */
interface ReadEntry extends Entry {
  isRead: true
  row: EventRow
  synchronousCommit: SynchronousCommit
  resolve: () => void
}

/**
 * Writes a document with its version and its event: in the queue of the organization, in one transaction with all other
 * writes that wait there. Each write is decided on the committed state and the effects of the writes before it.
 *
 * Throws what `decide` throws; `plan_limit_reached`; CallerEnded; DatabaseUnavailable after the deadline, also when the
 * project stays locked by a long operation until then.
 */
export async function writeLevel (
  { db, keyring }: { db: Db, keyring: Keyring }, { id, plan, storage_key }: Organization, actor: Actor, write: Write
): Promise<Written> {
  const entryOf = (resolve: WriteEntry['resolve'], reject: WriteEntry['reject']): WriteEntry => ({
    ...write,
    // The document, and the version.
    bytes: 2 * write.bytes,
    organizationId: id,
    isRead: false,
    until: endOfWait(actor.waited),
    actor,
    plan,
    storageKey: storageKeyOf(keyring, { id, storage_key }),
    resolve,
    reject
  })
  if (actor.answering) {
    return transaction(db, async (db) => writeAlone(db, entryOf), { ...actor, bytes: 2 * write.bytes })
  }
  return new Promise((resolve, reject) => { queueOf(db).join(entryOf(resolve, reject), writeTogether) })
}

/**
 * Records events of requests that only read, in the queues of their organizations.
 *
 * @param synchronousCommit `off` where the server writes its log within a second by itself: an event may then be lost
 *   with the machine, though its response was sent
 */
export function createReadRecorder (db: Db, synchronousCommit: SynchronousCommit): RecordRead {
  return async (actor, event) => new Promise((resolve, reject) => {
    const entry: ReadEntry = {
      organizationId: actor.organization_id,
      isRead: true,
      until: endOfWait(actor.waited),
      bytes: 0,
      row: eventRow(actor, event),
      synchronousCommit,
      resolve,
      reject: (error) => { reject(notRecorded(error)) }
    }
    queueOf(db).join(entry, writeTogether)
  })
}

// A response whose event cannot be recorded is not sent, whatever the reason.
function notRecorded (error: unknown): Error {
  if (error instanceof CallerEnded) return error
  const { message, code } = databaseError(error)
  return new DatabaseUnavailable(`An event could not be recorded: ${message}`, code)
}

/** What a transaction has decided for an entry: how to answer it after the commit, or to try it again. */
type Outcome = { entry: WriteEntry | ReadEntry, tell: (() => void) | 'again' }

async function writeTogether (db: Db, entries: readonly (WriteEntry | ReadEntry)[]): Promise<void> {
  const commit = entries.every(({ isRead }) => isRead) ? (entries[0] as ReadEntry).synchronousCommit : 'on'
  const left = Math.max(LEAST_TIME, Math.min(...entries.map(({ until }) => until)) - waitNow())
  let outcomes: Outcome[]
  try {
    outcomes = await transactionOnce(db, async (db) => apply(db, entries, commit), DEADLINE - left)
  } catch (error) {
    if (HELD.test(codeOf(error) ?? '')) outcomes = entries.map((entry) => ({ entry, tell: 'again' }))
    else if (entries.length > 1 && isUndone(error) && !isAwayForAll(error)) return writeOneByOne(db, entries)
    else throw error
  }
  for (const { entry, tell } of outcomes) {
    if (tell === 'again') joinAgain(db, entry)
    else tell()
  }
}

// Milliseconds that a transaction has at least, when a request has waited nearly as long as it may: more than the wait
// for a lock, after which the database says that the counter is locked.
const LEAST_TIME = 1_500

// After a transaction that failed as a whole: one of the entries is at fault, and fails alone.
async function writeOneByOne (db: Db, entries: readonly (WriteEntry | ReadEntry)[]) {
  let away: Error | undefined
  for (const entry of entries) {
    if (away !== undefined || waitNow() >= entry.until) entry.reject(away ?? new DatabaseUnavailable('Time is over'))
    else {
      await writeTogether(db, [entry]).catch((error: unknown) => {
        entry.reject(error)
        if (isAway(error)) away = databaseError(error)
      })
    }
  }
}

// The database gave up waiting for a lock, such as that of a counter which another instance has.
const HELD = /^(55P03|40P01|40001)$/

// A write whose counter, project or person is locked lets others go first.
function joinAgain (db: Db, entry: WriteEntry | ReadEntry) {
  if (entry.isApart) pauseUntil(entry.until).then(() => { queueOf(db).join(entry, writeTogether) }, entry.reject)
  else queueOf(db).join(Object.assign(entry, { isApart: true }), writeTogether)
}

// The transaction stores the response too, so it is the write's own.
async function writeAlone (
  db: Db, entryOf: (resolve: WriteEntry['resolve'], reject: WriteEntry['reject']) => WriteEntry
): Promise<Written> {
  return new Promise<Written>((resolve, reject) => {
    apply(db, [entryOf(resolve, reject)]).then(([outcome]) => {
      if (outcome!.tell === 'again') reject(new RowHeld())
      else outcome!.tell()
    }, reject)
  })
}

/**
 * Locks the counters, decides the entries in their order, and writes what they make. An organization whose counter is
 * locked is left out: its entries try again apart from those of other organizations, and wait for the counter.
 */
async function apply (
  db: Db, entries: readonly (WriteEntry | ReadEntry)[], commit: SynchronousCommit = 'on'
): Promise<Outcome[]> {
  const writes = entries.filter((entry) => !entry.isRead)
  const ids = new Set(entries.map(({ organizationId }) => organizationId))
  const waits = entries.every(({ isApart }) => isApart)
  const own = counterOf(db)
  // Sent together: each statement runs when the one before is done, so all of them see what the locks protect.
  const [locked, verdicts, levels, versions] = await Promise.all([
    own === undefined ? lockCounters(db, ids, waits ? 'all' : 'free', commit) : new Map([[own.organization_id, own]]),
    verdictsOf(db, writes),
    levelsOf(db, writes),
    versionsOf(db, writes)
  ])
  const counters = withKeys(db, locked)
  const moves = new Map([...counters.keys()].map((id) => [id, { versions: 0, growth: 0 }]))
  const made = new Map<string, SecretRow>()
  const planned: Planned[] = []
  const rows: EventRow[] = []

  /** `again` when a lock is missing. */
  function decide (entry: WriteEntry, counter: Counter): Written | 'again' {
    const verdict = entry.actor.caller === null ? 'live' : verdicts.get(callerKey(entry)) ?? 'ended'
    if (verdict === 'ended' || counter.is_closed) throw new CallerEnded()
    const level = levels.get(entry)!()
    const state = level && bringForward(level.state, made)
    // Before the lock of the project is looked at: a refusal rests on committed state and tells nothing of the lock.
    const change = entry.decide(state, versions.get(entry)?.())
    if (verdict === 'held' || level?.isFree === false) return 'again'
    const moved = moves.get(entry.organizationId)!
    const plan = planOf(entry, state!, change, {
      next_version: counter.next_version + moved.versions, stored_bytes: counter.stored_bytes + moved.growth
    })
    rows.push(eventRow(entry.actor, plan.event))
    planned.push(plan)
    made.set(plan.secret.level_id, plan.secret)
    moved.versions += plan.version === null ? 0 : 1
    moved.growth += plan.growth
    return plan.written
  }

  const outcomes = entries.map((entry): Outcome => {
    const { organizationId } = entry
    if (!waits && !locked.has(organizationId)) return { entry, tell: 'again' }
    try {
      if (!locked.has(organizationId)) throw new CallerEnded()
      const counter = counters.get(organizationId) ?? tampered()
      if (entry.isRead) {
        rows.push(entry.row)
        return { entry, tell: entry.resolve }
      }
      const written = decide(entry, counter)
      return { entry, tell: written === 'again' ? written : () => { entry.resolve(written) } }
    } catch (error) {
      return { entry, tell: () => { entry.reject(error) } }
    }
  })
  if (rows.length > 0) {
    await Promise.all([
      ...planned.length === 0 ? [] : [writeSecrets(db, planned)],
      appendEvents(db, counters, rows, moves)
    ])
  }
  return outcomes
}

const callerKey = ({ organizationId, actor: { caller } }: WriteEntry) => organizationId + JSON.stringify(caller)

async function verdictsOf (db: Db, writes: readonly WriteEntry[]): Promise<ReadonlyMap<string, Verdict>> {
  const callers = new Map(writes.flatMap((write) => write.actor.caller === null
    ? []
    : [[callerKey(write), { ...write.actor.caller, organization_id: write.organizationId }] as const]))
  const verdicts = await judgeCallers(db, [...callers.values()])
  return new Map([...callers.keys()].map((key, i) => [key, verdicts[i]!]))
}

async function levelsOf (db: Db, writes: readonly WriteEntry[]) {
  const found = await findLevelsToWrite(db, writes)
  return new Map(writes.map((write, i) => [write, found[i]!]))
}

async function versionsOf (
  db: Db, writes: readonly WriteEntry[]
): Promise<ReadonlyMap<WriteEntry, () => FullVersion | undefined>> {
  const restores = writes.flatMap((write) => 'version' in write.target ? [{ write, id: write.target.version }] : [])
  if (restores.length === 0) return new Map()
  const found = await findVersionsTogether(db, restores.map(({ write: { organizationId, plan }, id }) =>
    ({ organization_id: organizationId, id, retention_days: plan.retention_days })))
  return new Map(restores.map(({ write }, i) => [write, found[i]!]))
}
