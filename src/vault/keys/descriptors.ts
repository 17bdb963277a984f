import type { EncryptionKeyAnswer, KeyDescriptor } from '../../../schemas/encryption-keys.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import { placeDetails, type AuditEvent } from '../../repositories/audit/audit.ts'
import type { KeyRow } from '../../repositories/keys/encryption-keys.ts'
import { keyCheckOf, keyStringOf, saltOf } from './keys.ts'

/** The public attributes of a key. Omits `key_check` of the active key, because it would prove knowledge of the key. */
export function describeKey (keyring: Keyring, key: KeyRow): KeyDescriptor {
  const { version, managed, is_active, created_at, rotated_at, iterations } = key
  const check = is_active ? undefined : keyCheckOf(keyring, key)
  return {
    version: String(version),
    managed,
    is_active,
    created_at,
    rotated_at,
    ...(managed === 'client' &&
      { key_check_salt: saltOf(keyring, key).toString('base64'), key_check_iterations: iterations }),
    ...(managed === 'client' && check && { key_check: check.toString('base64') })
  }
}

/** The response for callers who may retrieve a key. Contains the key string of a server-managed key. */
export function revealKey (keyring: Keyring, key: KeyRow): EncryptionKeyAnswer {
  const { id, version, managed, iterations, is_active, created_at } = key
  const keyString = keyStringOf(keyring, key)
  const fields = {
    managed,
    ...(keyString !== undefined && { key: keyString }),
    version,
    key_check_salt: saltOf(keyring, key).toString('base64'),
    key_check_iterations: iterations,
    created_at
  }
  const content = JSON.stringify({ key: fields })
  return {
    data: {
      type: 'encryption-keys',
      id: String(id),
      attributes: { format: 'json', encrypted: false, content, ...fields, is_active }
    }
  }
}

/** The event of a key retrieval. It is recorded before the response is sent. */
export const retrievalOf = ({ id, version }: KeyRow, project: { id: string, slug: string }): AuditEvent => ({
  action: 'key.retrieve',
  resource_type: 'encryption-key',
  resource_id: String(id),
  details: { ...placeDetails({ project }), version }
})
