import { eq } from 'drizzle-orm'
import { appendToCounter, chainOf, openChange } from '../../db/changes/chain.ts'
import type { Db } from '../../db/database.ts'
import { eventRow, HAND_OVER, type ChainKeyRow, type Head } from '../../db/events.ts'
import { chain_keys, organization_counters } from '../../db/tables.ts'
import type { Actor } from './audit.ts'

/** Whether the chain key of any organization was ever rotated. */
export async function hasChainKeys (db: Db): Promise<boolean> {
  return (await db.select({ kid: chain_keys.kid }).from(chain_keys).limit(1)).length > 0
}

/**
 * Rotates the chain key of an organization as the last step of the transaction: `make` creates the new key for the end
 * of the chain. The id of the current key is in the counter row (`chain_kid`), because a transaction that waits for the
 * lock of the counter row sees new values only in this row. Undefined if the organization has no counter row.
 */
export async function handOver (
  db: Db, actor: Actor, make: (head: Head) => { key: ChainKeyRow, proof: Buffer }
): Promise<ChainKeyRow | undefined> {
  const { organization_id } = actor
  const counter = await openChange(db, actor)
  if (counter === undefined) return undefined
  const { key, proof } = make(counter.head)
  await db.insert(chain_keys).values(key)
  await db.update(organization_counters).set({ chain_kid: key.kid })
    .where(eq(organization_counters.organization_id, organization_id))
  // Opens the new key before the rotation event is recorded, because the next event uses the new key.
  chainOf(db).openKey(key)
  await appendToCounter(db, [eventRow(actor, {
    action: HAND_OVER,
    resource_type: 'chain-key',
    resource_id: key.kid,
    details: { proof: proof.toString('hex') }
  })])
  return key
}
