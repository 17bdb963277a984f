import { CallerEnded } from '../db/callers/caller.ts'
import type { SynchronousCommit } from '../db/changes/chain.ts'
import { databaseError, DatabaseUnavailable, type Db } from '../db/database.ts'
import { eventRow } from '../db/events.ts'
import type { Actor, RecordRead } from '../repositories/audit/audit.ts'
import type { Answer } from '../repositories/operations/idempotency.ts'
import { inBatch } from './batch.ts'
import type { DocumentChange } from './steps.ts'

export type { Decision, DocumentChange } from './steps.ts'

/**
 * Changes a document, with its version and its event, in the steps of `takeSteps`. Queued changes share a transaction:
 * `decide` sees the committed state and the earlier changes of the transaction. Returns the response of `decide` after
 * the commit. With an `Idempotency-Key`, the response is stored in the same transaction, and a repeated request throws
 * the error that sends the stored response.
 *
 * Throws the errors of `decide`; `plan_limit_reached`; CallerEnded; OrganizationInactive; DatabaseUnavailable after the
 * deadline, for example while a long operation locks the project.
 */
export async function change<Body extends object | null> (
  db: Db, actor: Actor, asked: DocumentChange<Body>
): Promise<Answer<Body>> {
  // The document is stored twice: as the current document and as a version.
  const request = { ...asked, bytes: 2 * asked.bytes, organizationId: actor.organization_id, actor }
  return await inBatch(db, request, actor.waited, 'on') as Answer<Body>
}

/**
 * Records the events of requests that only read. A batch of such events takes one statement where the ends of the
 * chains are known; other batches are a transaction.
 *
 * @param commit with `off`, a crash of the database can lose the events of the last second, whose responses were sent
 */
export function createReadRecorder (db: Db, commit: SynchronousCommit): RecordRead {
  return async (actor, event, bytes = 0) => {
    const request = { organizationId: actor.organization_id, bytes, row: eventRow(actor, event) }
    await inBatch(db, request, actor.waited, commit).catch((error: unknown) => {
      if (error instanceof CallerEnded) throw error
      // If the event is not recorded, the request fails, because no response may be sent without a recorded event.
      const { message, code } = databaseError(error)
      throw new DatabaseUnavailable(`An event could not be recorded: ${message}`, code)
    })
  }
}
