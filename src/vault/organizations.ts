import type { Keyring } from '../crypto/keyring.ts'
import type { Db } from '../db/database.ts'
import { systemOf } from '../repositories/audit.ts'
import { hasChainKeys } from '../repositories/chain-keys.ts'
import { createOrganization, type NewOrganization } from '../repositories/organizations.ts'
import { createMember } from '../repositories/users.ts'
import { handOverChain } from './chain.ts'
import { makeStorageKey } from './keys.ts'
import { holdCanary } from './master-keys.ts'

/**
 * Makes an organization with a storage key of its own, one for its chain where chains have such, and its owner where it
 * has one from the start: then the limit of what somebody can be in or own, where that is reached, and nothing may be
 * kept of it.
 */
export async function foundOrganization (
  db: Db, keyring: Keyring, organization: Omit<NewOrganization, 'storage_key'>, owner?: number
): Promise<number | undefined> {
  await holdCanary(db, keyring)
  await createOrganization(db, { ...organization, storage_key: makeStorageKey(keyring, organization.id) })
  // The key that all chains begin with may be why others were handed over.
  if (await hasChainKeys(db)) await handOverChain(db, keyring, systemOf(organization.id))
  if (owner === undefined) return undefined
  const made = await createMember(db, { organization_id: organization.id, user_id: owner, role: 'owner' }, 'oneself')
  return 'limit' in made ? made.limit : undefined
}
