import type { KeyObject } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { ulid } from 'ulidx'
import type { Plan } from '../../schemas/organizations.ts'
import type { VersionAction } from '../../schemas/versions.ts'
import type { Keyring } from '../crypto/keyring.ts'
import { DatabaseError, DatabaseUnavailable, isAway, isLockTimeout, LOCK_TIMEOUT, type Db } from '../db/database.ts'
import { endOfWait, inTime, waitedUntil } from '../db/guard.ts'
import type { Actor, AuditEvent } from '../repositories/audit.ts'
import { ownSecret, type LevelState, type SecretRow } from '../repositories/levels.ts'
import type { Organization } from '../repositories/principals.ts'
import type { SecretWrite } from '../repositories/secrets.ts'
import { fail } from '../rules/errors.ts'
import { requireBytes } from '../rules/plan-bytes.ts'
import { bytesOfWrite, TOGETHER, writeSecrets, type Outcome } from './batches.ts'
import { sealCurrent, sealVersion, sizeOf } from './documents.ts'
import { storageKeyOf } from './keys.ts'
import { createLine, isLate, type Line, type Waiter } from '../db/line.ts'

/** What a write does to a level: the blob becomes its document (null: it has none any more). */
export interface Change {
  blob: string | null
  /** The version to record and what it holds; null with `no_backup`. */
  record: { action: VersionAction, blob: string, restored_from?: number } | null
  event: AuditEvent['action']
  /** The proof gave the client's key away, and the operator allows that: the event says so. */
  revealed?: boolean
}

export interface Written {
  state: LevelState
  secret: { id: string, revision: number }
  version: number | null
  bytes: number
}

// Writes of several instances into one organization can take turns in losing; each loss is another's success.
const MOST_ATTEMPTS = 100

// After so many losses together, each goes by itself: one of them may be what makes the others lose.
const MOST_TOGETHER_LOST = 5

// Whoever lost against another instance has to look, and one that always knew what comes next would be sooner each
// time. So it looks as well, now and then.
const TURNS_UNSEEN = 4

// What is remembered of the levels that a line has written, while somebody is in it.
const REMEMBERED_BYTES = 4 * 1024 * 1024

interface Writer extends Waiter {
  until: number
  actor: Actor
  storageKey: KeyObject
  plan: Plan
  find: () => Promise<LevelState | undefined>
  decide: (state: LevelState, secret: SecretRow | undefined) => Promise<Change> | Change
  resolve: (written: Written) => void
  seen: Seen
  goesAlone: boolean
  attempts: number
}

/** A level as it was seen last, and how many statements of the line were answered by then for certain. */
interface Seen { state: LevelState, after: number }

/** A write that was decided and sealed. */
interface Planned { writer: Writer, write: SecretWrite, secret: SecretRow, written: Written }

/** The writes of an organization within a process, and what they made of its levels. */
interface Writes {
  line: Line<Writer>
  /** Requests that are in here, or still look. */
  users: number
  turns: number
  /** Statements that wrote something. */
  done: number
  next_version: number
  levels: LRUCache<string, { secret: SecretRow, done: number }>
}

const organizations = new WeakMap<Db, Map<string, Writes>>()

/**
 * Writes a level: looks (`find`), decides (`decide`, which applies the rules to what was seen), seals, and swaps if
 * nothing moved meanwhile; else looks again. Writes of one organization stand in line within a process, because each
 * would otherwise spoil the version id that the others sealed for; those that wait together are one statement and one
 * commit, each decided by what those before it make of its level.
 *
 * A write looks before it stands in line, and what the line has written since is brought forward. Whoever wins by that
 * is right, as the swap compares it with the database; whoever would be refused by it looks again first.
 *
 * What `find` finds beside the level's state reaches `decide` as it was found in that look.
 */
export async function writeLevel<S extends LevelState> (
  { db, keyring }: { db: Db, keyring: Keyring },
  organization: Organization,
  actor: Actor,
  find: () => Promise<S | undefined>,
  decide: (state: S, secret: SecretRow | undefined) => Promise<Change> | Change
): Promise<Written> {
  const storageKey = storageKeyOf(keyring, organization)
  const until = endOfWait(actor.waited)
  const all = organizations.get(db) ?? new Map<string, Writes>()
  organizations.set(db, all)
  const writes = all.get(organization.id) ?? createWrites(db)
  all.set(organization.id, writes)
  writes.users++
  const write = async (): Promise<Written> => {
    // It may have been seen before it came here.
    const seen = { state: await find() ?? fail('not_found'), after: 0 }
    return new Promise((resolve, reject) => {
      writes.line.join({
        until,
        actor,
        storageKey,
        plan: organization.plan,
        find,
        // What it is given is what `find` found, brought forward.
        decide: decide as Writer['decide'],
        resolve,
        reject,
        seen,
        // Its answer is kept in its own transaction.
        goesAlone: Boolean(actor.answering),
        attempts: 0
      })
    })
  }
  return inTime(until, write().finally(() => {
    if (--writes.users === 0) all.delete(organization.id)
  }))
}

function createWrites (db: Db): Writes {
  const writes: Writes = {
    line: createLine((line) => serve(db, writes, line)),
    users: 0,
    turns: 0,
    done: 0,
    next_version: 0,
    levels: new LRUCache({
      maxSize: REMEMBERED_BYTES, sizeCalculation: ({ secret }) => 1_000 + (secret.sealed?.length ?? 0)
    })
  }
  return writes
}

/** Writes those whose turn it is, by one statement. */
async function serve (db: Db, writes: Writes, line: Line<Writer>) {
  const first = line.take(TOGETHER.writes, ({ goesAlone }) => !goesAlone)
  const taken = ++writes.turns % TURNS_UNSEEN === 0 ? await lookAgain(writes, line, first) : first
  const { planned, refused, left } = await planAll(writes, taken)
  line.rejoin(left)
  let again = refused
  try {
    const lost = planned.length > 0 && !await swap(db, writes, planned) ? planned.map(({ writer }) => writer) : []
    again = taken.filter((writer) => refused.includes(writer) || lost.includes(writer))
  } catch (error) {
    // Without an answer, nobody knows whether it was written. A counter that could not be had is every write's.
    for (const { writer } of planned) writer.reject(error)
    // Nor does anybody who would look again have an answer before a deadline of their own.
    line.rejoin(isAway(error) ? again : await lookAgain(writes, line, again))
    throw error
  }
  line.rejoin(await lookAgain(writes, line, again))
}

/** Decides in order, each by what those before it make of its level. */
async function planAll (writes: Writes, taken: readonly Writer[]) {
  const planned: Planned[] = []
  const refused: Writer[] = []
  const levels = new Map<string, SecretRow>()
  let bytes = 0
  // What those before add to what the organization stores.
  let growth = 0
  let next = Math.max(writes.next_version, ...taken.map(({ seen }) => seen.state.next_version))
  for (const [i, writer] of taken.entries()) {
    if (bytes >= TOGETHER.bytes) return { planned, refused, left: taken.slice(i) }
    if (isLate(writer)) continue
    try {
      const state = bringForward(writes, writer.seen, levels)
      const plan = await decide(writer, state, next, growth)
      if (plan === 'refused') {
        refused.push(writer)
        continue
      }
      planned.push(plan)
      growth += plan.write.growth
      levels.set(state.level_id, plan.secret)
      if (plan.write.version !== null) next++
      bytes += bytesOfWrite(plan.write)
    } catch (error) {
      writer.reject(error)
    }
  }
  return { planned, refused, left: [] }
}

/** The level as the line has made it since it was seen. The swap finds out what was deleted for good meanwhile. */
function bringForward (writes: Writes, { state, after }: Seen, planned: ReadonlyMap<string, SecretRow>): LevelState {
  const own = ownSecret(state)
  const remembered = writes.levels.get(state.level_id)
  // A look that began after the line's last statement of this level is right, whatever the line remembers.
  const isNewer = remembered !== undefined && remembered.done > after &&
    (own?.id !== remembered.secret.id || remembered.secret.revision > own.revision)
  const known = planned.get(state.level_id) ?? (isNewer ? remembered.secret : undefined)
  if (known === undefined) return state
  return { ...state, secrets: [...state.secrets.filter((secret) => secret !== own), known] }
}

// A refusal counts only by what was seen itself: what others make of the level, or add to what is stored, may not come
// to be, or be undone.
async function decide (
  writer: Writer, state: LevelState, next_version: number, growthBefore: number
): Promise<Planned | 'refused'> {
  const held = heldProjects.get(state.project.id)
  if (held !== undefined && held > performance.now()) {
    throw new DatabaseUnavailable('The project is held by a change of its key', LOCK_TIMEOUT)
  }
  const added = writer.plan.max_bytes === null ? 0 : growthBefore
  try {
    const planned = planOf(writer, { ...state, next_version }, await writer.decide(state, ownSecret(state)))
    requireBytes(writer.plan, state.stored_bytes + added, planned.write.growth)
    return planned
  } catch (error) {
    if (state === writer.seen.state && added === 0) throw error
    writer.attempts++
    return 'refused'
  }
}

function planOf (writer: Writer, state: LevelState, { blob, record, event, revealed = false }: Change): Planned {
  const { actor, storageKey, plan: { max_bytes } } = writer
  const { organization_id, project, target, environment, level, level_id, next_version } = state
  const before = ownSecret(state)
  const context = { organization_id, secret_id: before?.id ?? ulid(), level_id, key_version: project.key_version }
  const revision = (before?.revision ?? 0) + 1
  const size_bytes = blob === null ? 0 : sizeOf(blob)
  const version = record && {
    id: next_version,
    action: record.action,
    sealed: sealVersion(storageKey, context, next_version, revision, record.blob),
    size_bytes: sizeOf(record.blob),
    restored_from: record.restored_from ?? null
  }
  const sealed = blob === null ? null : sealCurrent(storageKey, context, revision, blob)
  const secret = {
    id: context.secret_id,
    organization_id,
    project_id: project.id,
    target_id: target?.id ?? null,
    environment_id: environment?.id ?? null,
    level,
    level_id,
    revision,
    key_version: context.key_version,
    is_stored: blob !== null,
    sealed,
    size_bytes,
    mac: null,
    version: version?.id ?? null,
    history_id: before?.history_id ?? context.secret_id,
    version_count: (before?.version_count ?? 0) + (version === null ? 0 : 1),
    recorded_revision: version === null ? before?.recorded_revision ?? null : revision
  }
  const growth = size_bytes - (before?.size_bytes ?? 0) + (version?.size_bytes ?? 0)
  const details = {
    level,
    revision,
    key_version: context.key_version,
    version: secret.version,
    bytes: size_bytes,
    restored_from: version?.restored_from ?? null,
    ...(revealed && { key_proof_reveals_key: true })
  }
  return {
    writer,
    secret,
    write: {
      state,
      secret,
      version,
      actor: { ...actor, waited: waitedUntil(writer.until) },
      event: { action: event, resource_type: 'secret', resource_id: secret.id, details },
      growth,
      max_bytes
    },
    written: { state, secret: { id: secret.id, revision }, version: secret.version, bytes: size_bytes }
  }
}

/** True when it was written. Else nothing was, and those whose last attempt it was know. */
async function swap (db: Db, writes: Writes, planned: readonly Planned[]): Promise<boolean> {
  const [first] = planned as [Planned]
  const isOne = planned.length === 1
  let outcome: Outcome
  try {
    const statement = writeSecrets(db, first.write.state.next_version, planned.map(({ write }) => write))
    outcome = await (isOne ? hold(first.write.state.project.id, statement) : statement)
  } catch (error) {
    // One of them may be at fault.
    if (isOne || !(error instanceof DatabaseError && error.isUndone)) throw error
    outcome = { outcome: 'held' }
  }
  if (outcome.outcome !== 'written') {
    // The database knows better than what this line has made of it.
    writes.next_version = 0
    for (const { writer } of planned) {
      writer.attempts++
      writer.goesAlone ||= !isOne && (outcome.outcome === 'held' || writer.attempts === MOST_TOGETHER_LOST)
    }
    return false
  }
  writes.done++
  writes.next_version = outcome.next_version
  for (const { writer, secret, written } of planned) {
    writes.levels.set(secret.level_id, { secret, done: writes.done })
    writer.resolve(written)
  }
  return true
}

/**
 * Looks for all of them at once, and answers who is to be served again. Throws where the database is not there, to
 * those who are back in line, too.
 */
async function lookAgain (writes: Writes, line: Line<Writer>, writers: readonly Writer[]): Promise<Writer[]> {
  let away: unknown
  const looked = await Promise.all(writers.map(async (writer) => {
    try {
      if (writer.attempts === MOST_ATTEMPTS) fail('service_unavailable')
      const after = writes.done
      writer.seen = { state: await writer.find() ?? fail('not_found'), after }
      return [writer]
    } catch (error) {
      writer.reject(error)
      if (isAway(error)) away = error
      return []
    }
  }))
  if (away === undefined) return looked.flat()
  line.rejoin(looked.flat())
  throw away
}

const HELD_FOR = 2_000
const heldProjects = new LRUCache<string, number>({ max: 1_000 })

// Whoever waited in vain for a project that is being rotated has held up the line for a second. Those behind who want
// the same project need not find out the same way.
async function hold<T> (projectId: string, work: Promise<T>): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (isLockTimeout(error)) heldProjects.set(projectId, performance.now() + HELD_FOR)
    throw error
  }
}
