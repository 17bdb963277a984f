import type { Db } from '../db/database.ts'
import type { Actor } from '../repositories/audit/audit.ts'
import {
  countAnswers, createAnswers, findAnswers, MAX_RESPONSES, type Answer, type KeyOwner, type StoredResponse
} from '../repositories/operations/idempotency.ts'
import { fail } from '../rules/api-error.ts'
import { RowLocked } from './callers.ts'

/** The stored responses of the requests with an `Idempotency-Key` in one transaction. */
export interface StoredResponses {
  /** Reads the stored responses. The counter rows of the organizations are locked. */
  load (): Promise<unknown>
  /**
   * Throws an error that sends the stored response again; `idempotency_key_reused`; `limit_reached`; RowLocked if an
   * earlier request of the transaction has the same key.
   */
  refuseRepeat (actor: Actor): void
  /** Stores the response with `write`. */
  keep (actor: Actor, answer: Answer): void
  write (): Promise<unknown>
}

const keyOf = ({ organization_id, principal, key }: KeyOwner) => `${organization_id} ${principal} ${key}`
const principalOf = ({ organization_id, principal }: Pick<KeyOwner, 'organization_id' | 'principal'>) =>
  `${organization_id} ${principal}`

export function createStoredResponses (db: Db, actors: readonly Actor[]): StoredResponses {
  const keyed = actors.flatMap(({ answering, organization_id }) =>
    answering == null ? [] : [{ answering, organization_id, owner: answering.ownerIn(organization_id) }])
  const owners = keyed.map(({ owner }) => owner)
  const answers = new Map<string, StoredResponse>()
  const counts = new Map<string, number>()
  const newAnswers = new Map<string, KeyOwner & StoredResponse>()
  return {
    async load () {
      if (owners.length === 0) return
      const principals = [...new Map(owners.map((owner) => [principalOf(owner), owner])).values()]
      const [stored, counted] = await Promise.all([
        findAnswers(db, owners), countAnswers(db, principals),
        ...keyed.map(({ answering, organization_id }) => answering.prepare(db, organization_id))
      ])
      for (const [i, answer] of stored.entries()) if (answer !== undefined) answers.set(keyOf(owners[i]!), answer)
      for (const { stored, ...principal } of counted) counts.set(principalOf(principal), stored)
    },
    refuseRepeat ({ answering, organization_id }) {
      if (answering == null) return
      answering.isKeyChecked = true
      const owner = answering.ownerIn(organization_id)
      const stored = answers.get(keyOf(owner))
      if (stored !== undefined) throw answering.repeated(stored)
      if (newAnswers.has(keyOf(owner))) throw new RowLocked()
      if (counts.get(principalOf(owner))! >= MAX_RESPONSES) fail('limit_reached', { limit: MAX_RESPONSES })
    },
    keep ({ answering, organization_id }, answer) {
      if (answering == null) return
      const owner = answering.ownerIn(organization_id)
      newAnswers.set(keyOf(owner), { ...owner, ...answering.seal(answer) })
      counts.set(principalOf(owner), counts.get(principalOf(owner))! + 1)
    },
    write: async () => newAnswers.size > 0 && createAnswers(db, [...newAnswers.values()])
  }
}
