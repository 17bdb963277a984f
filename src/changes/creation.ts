import type { Db } from '../db/database.ts'
import type { Counter } from '../db/rows/counter.ts'
import type { Actor } from '../repositories/audit/audit.ts'
import { createAnswers } from '../repositories/operations/idempotency.ts'
import { lockUser } from '../repositories/people/users.ts'
import { appendEvents } from './events.ts'
import { lockCounterLast } from './long.ts'
import { resultOf, type Made, type RowChange } from './steps.ts'
import { transaction } from './transaction.ts'

interface CreatingChange<Loaded, Written, Body> extends RowChange<Loaded, Written, Body> {
  count?: undefined
  load: (db: Db) => Promise<Loaded>
}

/**
 * Like `change`, for a change that creates the organization of `actor`, or that belongs to no organization (`load` then
 * throws). The counter row of the organization is locked last. Requests of a person with one `Idempotency-Key` run one
 * after the other.
 */
export async function changeThatCreates<Loaded, Written, Body extends object | null> (
  db: Db, actor: Actor, { load, decide }: CreatingChange<Loaded, Written, Body>
): Promise<Made<Body> & { written: Written }> {
  const { answering, organization_id } = actor
  return transaction(db, async (db) => {
    if (answering != null) {
      await lockUser(db, actor.id!)
      await answering.refuseRepeat(db)
    }
    let locked: Counter | undefined
    const lockCounter = async () => (locked ??= await lockCounterLast(db, actor))
    const decision = decide(await load(db))
    const written = await decision.write(db, lockCounter)
    const counter = await lockCounter()
    const { events, answer } = resultOf(decision, actor, counter, written)
    await appendEvents(db, new Map([[organization_id, counter]]), events)
    if (answering != null) {
      await answering.prepare(db, organization_id)
      await createAnswers(db, [{ ...answering.ownerIn(organization_id), ...answering.seal(answer) }])
    }
    return { ...answer, written }
  }, { waited: actor.waited })
}
