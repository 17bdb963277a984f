import { createGates, WorkOverloaded } from '../../crypto/bounded.ts'
import { isLockTimeout, transaction, type Db } from '../../db/database.ts'
import { areWaitsPaused, atWaitTime, pauseFor, waitNow } from '../../db/postgres/wait-clock.ts'
import type { Actor } from '../../repositories/audit/audit.ts'
import type { KeyState } from '../../repositories/keys/encryption-keys.ts'
import { lockLongOperations } from '../../repositories/operations/long-operations.ts'
import { lockProject } from '../../repositories/levels/projects.ts'
import { fail } from '../../rules/errors.ts'

// Long operations may write every document of a project: rotations, changes of custody, `restore-to`, deletions of many
// levels. An organization runs one at a time across all instances, so organizations share the connections in FIFO
// order.

/** Levels below a project or target beyond which its deletion is a long operation. */
export const MAX_LEVELS_OF_SHORT_DELETION = 1_000

class LongOperationOverloaded extends WorkOverloaded {
  override readonly name = 'LongOperationOverloaded'
}

// Operations of an organization queue here in the process, without using a connection.
const gateOf = createGates(1, 8, () => new LongOperationOverloaded(), 8_000, (milliseconds, late) =>
  atWaitTime(waitNow() + milliseconds, late))

/** The error code for 409 when the project or the organization's slot is not available in time. */
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
 * Runs a long operation in one transaction of up to a minute. 409 (`inUse`) when another request works on the project,
 * or an operation on another instance does not end within the lock timeout. Throws LongOperationOverloaded (503) when
 * the organization's queue in this process takes too long.
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

// Maximum pause in milliseconds between two batches, while the transaction is open.
const LONGEST_REST = 1_000

/**
 * Pauses for as long as the batch since `began` (`performance.now`) took, so that requests get half of the process and
 * the disk. Does not pause on the only connection, since that would delay all other requests.
 */
export async function leaveHalf (began: number): Promise<void> {
  if (areWaitsPaused()) return
  const took = Math.min(performance.now() - began, LONGEST_REST)
  await pauseFor(took)
}

const projectsInUse = new Map<string, Actor['answering']>()

// 409 at once when this process already works on the same project, for a repeated request or another operation.
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
