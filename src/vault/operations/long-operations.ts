import { createGates, WorkOverloaded } from '../../crypto/bounded.ts'
import { isLockTimeout, transaction, type Db } from '../../db/database.ts'
import { areWaitsPaused, atWaitTime, pauseFor, waitNow } from '../../db/postgres/wait-clock.ts'
import type { Actor } from '../../repositories/audit/audit.ts'
import type { KeyState } from '../../repositories/keys/encryption-keys.ts'
import { lockLongOperations } from '../../repositories/operations/long-operations.ts'
import { lockProject } from '../../repositories/levels/projects.ts'
import { fail } from '../../rules/errors.ts'

// Long operations may write every document of a project: rotations, changes of custody, `restore-to`, deletions of many
// levels. An organization runs one at a time across all instances, so that it cannot occupy all connections.

/** Maximum levels, including the project or target itself, of a deletion that is not a long operation. */
export const MAX_LEVELS_OF_SHORT_DELETION = 1_000

class LongOperationOverloaded extends WorkOverloaded {
  override readonly name = 'LongOperationOverloaded'
}

// Operations of an organization are queued in the process, without a connection.
const gateOf = createGates(1, 8, () => new LongOperationOverloaded(), 8_000, (milliseconds, late) =>
  atWaitTime(waitNow() + milliseconds, late))

/** The error code for 409, when the project or the organization is in use by another long operation. */
type InUse = 'rotation_in_progress' | 'conflict'

export interface LongOperation<T> {
  organization: { id: string }
  /** The project to lock exclusively until the end of the transaction. */
  projectId: string
  actor: Pick<Actor, 'answering'>
  inUse?: InUse
  run: (db: Db, project: KeyState) => Promise<T>
}

/**
 * Runs a long operation in one transaction of up to a minute. Fails with 409 (`inUse`) when another request works on
 * the project, or an operation on another instance does not end within the lock timeout; with 503
 * (LongOperationOverloaded) when the queue of the organization is full or takes too long.
 */
export async function runLongOperation<T> (
  { longTransactions }: { longTransactions: Db },
  { organization: { id }, projectId, actor: { answering }, inUse = 'rotation_in_progress', run }:
  LongOperation<T>
): Promise<T> {
  const inTransaction = () => transaction(longTransactions, async (db) => {
    await lockLongOperations(db, id)
    return run(db, await lockProject(db, id, { id: projectId }) ?? fail('not_found'))
  }, { answering })
  return oncePerProject(projectId, answering, inUse, () =>
    gateOf(id)(() => conflictOnLockTimeout(inTransaction, inUse)))
}

// The transaction stays open during a pause, so the pause is limited.
const MAX_REST_MS = 1_000

/**
 * After a batch that began at `began` (`performance.now`), pauses for as long as the batch took, at most `MAX_REST_MS`,
 * so that other requests get half of the CPU and disk time. Does not pause on the only connection, because all other
 * requests wait for that connection.
 */
export async function leaveHalf (began: number): Promise<void> {
  if (areWaitsPaused()) return
  const took = Math.min(performance.now() - began, MAX_REST_MS)
  await pauseFor(took)
}

const projectsInUse = new Map<string, Actor['answering']>()

// Fails at once when this process works on the same project: `conflict` for a repeated request, else `inUse`.
async function oncePerProject<T> (
  projectId: string, answering: Actor['answering'], inUse: InUse, work: () => Promise<T>
): Promise<T> {
  if (projectsInUse.has(projectId)) fail(answering?.repeats(projectsInUse.get(projectId)) ? 'conflict' : inUse)
  projectsInUse.set(projectId, answering)
  try {
    return await work()
  } finally {
    projectsInUse.delete(projectId)
  }
}

/** Converts a lock timeout of the transaction into 409 instead of 503: another request has the lock. */
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
