import { databaseError, DatabaseUnavailable, type Db } from '../db/database.ts'
import { eventRow } from '../db/events.ts'
import { CallerEnded } from '../db/rows/caller.ts'
import type { Actor, RecordRead } from '../repositories/audit/audit.ts'
import type { Answer } from '../repositories/operations/idempotency.ts'
import { inBatch } from './batch.ts'
import type { SynchronousCommit } from './counter.ts'
import type { DocumentChange, Made, Request, RowChange } from './steps.ts'

/**
 * Changes rows of an organization, in the steps of `takeSteps`, in a transaction of its own. Returns the response of
 * `decide` after the commit, with what `write` returned. With an `Idempotency-Key`, the response is stored in the same
 * transaction, and a repeated request throws the error that sends the stored response.
 *
 * Throws the errors of `load` and `decide`; CallerEnded; OrganizationInactive; DatabaseUnavailable after the deadline.
 */
export async function change<Loaded, Written, Body extends object | null> (
  db: Db, actor: Actor, asked: RowChange<Loaded, Written, Body>
): Promise<Made<Body> & { written: Written }> {
  const { bytes = 0, organization_id: organizationId } = actor
  const request = { kind: 'rows', ...asked, bytes, organizationId, actor, isApart: true } as Request
  return await inBatch(db, request, actor.waited, 'on') as Made<Body> & { written: Written }
}

/**
 * Like `change`, for a document with its version and its event. Queued changes of documents share one transaction:
 * `decide` sees the committed state and the earlier changes of the transaction. Also throws `plan_limit_reached`, and
 * DatabaseUnavailable if a long operation locks the project until the deadline.
 */
export async function changeDocument<Body extends object | null> (
  db: Db, actor: Actor, asked: DocumentChange<Body>
): Promise<Answer<Body>> {
  // The document is stored twice: as the current document and as a version.
  const request = { kind: 'document', ...asked, bytes: 2 * asked.bytes, organizationId: actor.organization_id, actor } as const
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
    const request = { kind: 'read', organizationId: actor.organization_id, bytes, row: eventRow(actor, event) } as const
    await inBatch(db, request, actor.waited, commit).catch((error: unknown) => {
      if (error instanceof CallerEnded) throw error
      // If the event is not recorded, the request fails, because no response may be sent without a recorded event.
      const { message, code } = databaseError(error)
      throw new DatabaseUnavailable(`An event could not be recorded: ${message}`, code)
    })
  }
}
