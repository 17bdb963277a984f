import { createGates, WorkOverloaded } from '../../crypto/bounded.ts'
import { isLockTimeout, isOnlyConnection, transaction, type Db } from '../../db/database.ts'
import { areWaitsPaused, atWaitTime, pauseFor, waitNow } from '../../db/postgres/wait-clock.ts'
import type { Actor } from '../../repositories/audit/audit.ts'
import type { KeyState } from '../../repositories/keys/encryption-keys.ts'
import { lockLongOperations } from '../../repositories/operations/long-operations.ts'
import { lockProject } from '../../repositories/levels/projects.ts'
import { fail } from '../../rules/errors.ts'

// Long operations may write every document of a project: key rotations, changes of custody, `restore-to`, deletions of
// many levels. An organization runs one at a time across all instances, so that it cannot occupy all connections.

/** A deletion of more levels than this, including the deleted level itself, is a long operation. */
export const MAX_LEVELS_OF_SHORT_DELETION = 1_000

class LongOperationOverloaded extends WorkOverloaded {
  override readonly name = 'LongOperationOverloaded'
}

// The operations of an organization wait in a queue in the process, without a database connection.
const gateOf = createGates(1, 8, () => new LongOperationOverloaded(), 8_000, (milliseconds, late) =>
  atWaitTime(waitNow() + milliseconds, late))

/** The code of the 409 response if another long operation uses the project or the organization. */
type InUse = 'rotation_in_progress' | 'conflict'

export interface LongOperation<T> {
  organization: { id: string }
  /** The project to lock exclusively until the end of the transaction. */
  projectId: string
  actor: Pick<Actor, 'answering'>
  inUse?: InUse
  /**
   * Expensive work without the database. Runs in the transaction, but before the project is locked, and only if the
   * request has no stored response. With a single connection, runs before the transaction.
   */
  prepare?: () => Promise<void>
  run: (db: Db, project: KeyState) => Promise<T>
}

/**
 * Runs a long operation in one transaction of up to a minute. Fails with 409 (`inUse`) if another request uses the
 * project, or if a long operation of the organization on another instance does not end within the lock timeout. Fails
 * with 503 (LongOperationOverloaded) if the queue of the organization is full, or if the wait in the queue is too long.
 *
 * With an `Idempotency-Key`, looks for the stored response after the lock, because the operation that had the lock may
 * be the first request with this key. If that operation does not end in time, the 409 is `conflict`.
 */
export async function runLongOperation<T> (
  { longTransactions }: { longTransactions: Db },
  { organization: { id }, projectId, actor: { answering }, inUse = 'rotation_in_progress', prepare, run }:
  LongOperation<T>
): Promise<T> {
  // All other requests would wait for the only connection. There is a single process then, in which a repeat is refused
  // (`oncePerProject`) until the response is stored.
  const isFirst = isOnlyConnection(longTransactions)
  const inTransaction = () => transaction(longTransactions, async (db) => {
    await lockLongOperations(db, id)
    await answering?.begin(db)
    if (!isFirst) await prepare?.()
    return run(db, await lockProject(db, id, { id: projectId }) ?? fail('not_found'))
  }, { answering })
  return oncePerProject(projectId, answering, inUse, () =>
    gateOf(id)(async () => {
      if (isFirst) await prepare?.()
      return conflictOnLockTimeout(inTransaction, answering == null ? inUse : 'conflict')
    }))
}

// Maximum pause. The pause is limited because the transaction stays open.
const MAX_REST_MS = 1_000

/**
 * Pauses after a batch that began at `began` (`performance.now`), so that other requests get half of the CPU and disk
 * time. The pause is as long as the batch took, at most `MAX_REST_MS`. If the database has only one connection, does
 * not pause, because all other requests wait for this connection.
 */
export async function leaveHalf (began: number): Promise<void> {
  if (areWaitsPaused()) return
  const took = Math.min(performance.now() - began, MAX_REST_MS)
  await pauseFor(took)
}

const projectsInUse = new Map<string, Actor['answering']>()

// Fails at once if this process already works on the project: `conflict` for a repeated request, otherwise `inUse`.
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
