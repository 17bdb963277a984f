import type { Keyring } from '../crypto/keyring.ts'
import type { Counter } from '../db/rows/counter.ts'
import type { Db } from '../db/database.ts'
import { systemOf, type RecordedEvent } from '../repositories/audit/audit.ts'
import { hasChainKeys } from '../repositories/audit/chains.ts'
import { createOrganization, type NewOrganization } from '../repositories/levels/organizations.ts'
import { createMember } from '../repositories/people/users.ts'
import { handOverChain } from './audit/chain.ts'
import { makeStorageKey } from './keys/keys.ts'
import { lockCurrentCanary } from './keys/master-keys.ts'

/**
 * Creates an organization with its keys. With `owner`, also makes this user the owner. Returns the events, which come
 * before all others of the organization. If the user has reached a limit of memberships, returns this limit; the caller
 * must then roll back.
 */
export async function foundOrganization (
  db: Db, keyring: Keyring, organization: Omit<NewOrganization, 'storage_key'>, lockCounter: () => Promise<Counter>,
  owner?: number
): Promise<RecordedEvent[] | number> {
  await lockCurrentCanary(db, keyring)
  await createOrganization(db, { ...organization, storage_key: makeStorageKey(keyring, organization.id) })
  if (owner !== undefined) {
    const full = await createMember(db, { organization_id: organization.id, user_id: owner, role: 'owner' })
    if (full !== undefined) return full.limit
  }
  // If any audit chain has a new key, the first key, which all chains share at first, may be compromised.
  if (!await hasChainKeys(db)) return []
  const { event } = await handOverChain(db, keyring, await lockCounter())
  return [{ actor: systemOf(organization.id), event }]
}
