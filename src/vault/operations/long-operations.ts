import { createGates, WorkOverloaded } from '../../crypto/bounded.ts'
import { isLockTimeout, transaction, type Db } from '../../db/database.ts'
import { areWaitsPaused, atWaitTime, pauseFor, waitNow } from '../../db/postgres/wait-clock.ts'
import type { Actor } from '../../repositories/audit/audit.ts'
import type { KeyState } from '../../repositories/keys/encryption-keys.ts'
import { lockLongOperations } from '../../repositories/operations/long-operations.ts'
import { lockProject } from '../../repositories/levels/projects.ts'
import { fail } from '../../rules/errors.ts'

// Long operations may write every document of a project: a rotation by the server or by the client, a change of
// custody, `restore-to`, and a deletion of many levels. An organization runs one at a time, over all instances, so the
// connections for long transactions are shared by organizations in the order in which they ask.

/** Levels below a project or target beyond which its deletion is a long operation. */
export const MAX_LEVELS_OF_SHORT_DELETION = 1_000

/** Too many long operations of one organization are waiting. */
class LongOperationOverloaded extends WorkOverloaded {
  override readonly name = 'LongOperationOverloaded'
}

// In this process the operations of an organization wait here, and take no connection while they wait.
const gateOf = createGates(1, 8, () => new LongOperationOverloaded(), 8_000, (milliseconds, late) =>
  atWaitTime(waitNow() + milliseconds, late))

/** What 409 says when the project, or the organization's turn, cannot be had in time. */
type InUse = 'rotation_in_progress' | 'conflict'

export interface LongOperation<T> {
  organization: { id: string }
  /** The project, which is locked exclusively until the transaction ends. */
  projectId: string
  actor: Pick<Actor, 'answering'>
  inUse?: InUse
  run: (db: Db, project: KeyState) => Promise<T>
}

/**
 * Runs a long operation in one transaction of up to a minute. 409 (`inUse`) when another request works at the project,
 * or an operation of the organization on another instance does not end within the lock timeout. Throws
 * LongOperationOverloaded (503) when the organization's own operations before this one take too long.
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

// Milliseconds that an operation waits at most between two pieces, with its transaction open.
const LONGEST_REST = 1_000

/**
 * Waits as long as a piece of a long operation took that began then (`performance.now`), so that the operation uses
 * half of the process and of the disk. With the only connection it does not wait, since that would hold up all others.
 */
export async function leaveHalf (began: number): Promise<void> {
  if (areWaitsPaused()) return
  const took = Math.min(performance.now() - began, LONGEST_REST)
  await pauseFor(took)
}

const projectsInUse = new Map<string, Actor['answering']>()

// 409 at once when this process works at the same project already: for a repeated request, or for another operation.
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

/** Answers 409 instead of 503 when a lock of the transaction cannot be had in time: another request has it. */
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
