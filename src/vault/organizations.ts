import type { Keyring } from '../crypto/keyring.ts'
import type { Db } from '../db/database.ts'
import { systemOf } from '../repositories/audit/audit.ts'
import { hasChainKeys } from '../repositories/audit/chain-keys.ts'
import { createOrganization, type NewOrganization } from '../repositories/levels/organizations.ts'
import { createMember } from '../repositories/people/users.ts'
import { handOverChain } from './audit/chain.ts'
import { makeStorageKey } from './keys/keys.ts'
import { holdCanary } from './keys/master-keys.ts'

/**
 * Makes an organization with a storage key of its own, a key for its audit chain where chains have such, and its owner
 * if one is given. Returns the limit when the owner is in, or owns, as many organizations as one person can: the caller
 * then rolls back.
 */
export async function foundOrganization (
  db: Db, keyring: Keyring, organization: Omit<NewOrganization, 'storage_key'>, owner?: number
): Promise<number | undefined> {
  await holdCanary(db, keyring)
  await createOrganization(db, { ...organization, storage_key: makeStorageKey(keyring, organization.id) })
  // The key that all chains begin with may be why others were handed over.
  if (await hasChainKeys(db)) await handOverChain(db, keyring, systemOf(organization.id))
  if (owner === undefined) return undefined
  return (await createMember(db, { organization_id: organization.id, user_id: owner, role: 'owner' }))?.limit
}
