import type { Keyring } from '../crypto/keyring.ts'
import type { Db } from '../db/database.ts'
import { systemOf } from '../repositories/audit/audit.ts'
import { hasChainKeys } from '../repositories/audit/chain-keys.ts'
import { createOrganization, type NewOrganization } from '../repositories/levels/organizations.ts'
import { createMember } from '../repositories/people/users.ts'
import { handOverChain } from './audit/chain.ts'
import { makeStorageKey } from './keys/keys.ts'
import { lockCurrentCanary } from './keys/master-keys.ts'

/**
 * Creates an organization with its keys and, if given, its owner. Returns a limit if the owner has reached that limit
 * of memberships; the caller must then roll back.
 */
export async function foundOrganization (
  db: Db, keyring: Keyring, organization: Omit<NewOrganization, 'storage_key'>, owner?: number
): Promise<number | undefined> {
  await lockCurrentCanary(db, keyring)
  await createOrganization(db, { ...organization, storage_key: makeStorageKey(keyring, organization.id) })
  // If another chain has a key of its own, the first key, which all chains share, may be compromised.
  if (await hasChainKeys(db)) await handOverChain(db, keyring, systemOf(organization.id))
  if (owner === undefined) return undefined
  return (await createMember(db, { organization_id: organization.id, user_id: owner, role: 'owner' }))?.limit
}
