import { appendEvents, openChange, requireOpen } from '../db/changes/chain.ts'
import { transaction, type Db } from '../db/database.ts'
import type { Actor } from '../repositories/audit/audit.ts'
import { createAnswers } from '../repositories/operations/idempotency.ts'
import { lockUser } from '../repositories/people/users.ts'
import { eventsOf, type Made, type RowChange } from './steps.ts'

/**
 * Like `change`, for a change of a person that creates the organization of `actor`, or that belongs to no organization
 * (`load` then throws). The counter row of the organization is locked last. Requests of the person with one
 * `Idempotency-Key` run one after the other.
 */
export async function changeOfPerson<Loaded, Written, Body extends object | null> (
  db: Db, actor: Actor, userId: number, { load, decide }: RowChange<Loaded, Written, Body>
): Promise<Made<Body> & { written: Written }> {
  const { answering, organization_id } = actor
  return transaction(db, async (db) => {
    if (answering != null) {
      await lockUser(db, userId)
      await answering.requireFirst(db)
    }
    const { write, events, answer } = decide(await load(db))
    const lockCounter = async () => {
      const counter = await openChange(db, actor, CALLER_LOCK_TIMEOUT_MS)
      requireOpen(counter)
      return counter
    }
    const written = await write(db, lockCounter)
    const counter = await lockCounter()
    await appendEvents(db, new Map([[organization_id, counter]]), eventsOf(actor, counter, events(written)))
    const made = answer(written)
    if (answering != null) {
      await answering.prepare(db, organization_id)
      await createAnswers(db, [{ ...answering.ownerIn(organization_id), ...answering.seal(made) }])
    }
    return { ...made, written }
  }, { waited: actor.waited })
}

// Maximum wait while another transaction, such as a revocation, locks the caller's rows.
const CALLER_LOCK_TIMEOUT_MS = 1_000
