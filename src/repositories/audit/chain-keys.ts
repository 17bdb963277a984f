import { eq } from 'drizzle-orm'
import { chainOf } from '../../db/rows/authority.ts'
import type { Db } from '../../db/database.ts'
import { HAND_OVER, type ChainKeyRow } from '../../db/events.ts'
import { chain_keys, organization_counters } from '../../db/tables.ts'
import type { AuditEvent } from './audit.ts'

/** Whether the chain key of any organization was ever rotated. */
export async function hasChainKeys (db: Db): Promise<boolean> {
  return (await db.select({ kid: chain_keys.kid }).from(chain_keys).limit(1)).length > 0
}

/**
 * Stores a new chain key of an organization. Returns the event of the rotation, which must be the next event of the
 * organization: `proof` covers the end of the chain. The id of the current key is in the counter row (`chain_kid`),
 * because a transaction that waits for the lock of the counter row sees new values only in this row.
 */
export async function handOver (db: Db, key: ChainKeyRow, proof: Buffer): Promise<AuditEvent> {
  await db.insert(chain_keys).values(key)
  await db.update(organization_counters).set({ chain_kid: key.kid })
    .where(eq(organization_counters.organization_id, key.organization_id))
  // Opens the new key before the rotation event is recorded, because the next event uses the new key.
  chainOf(db).openKey(key)
  return { action: HAND_OVER, resource_type: 'chain-key', resource_id: key.kid, details: { proof: proof.toString('hex') } }
}
