import type { KeyObject } from 'node:crypto'
import { COSTS } from '../../crypto/costs.ts'
import { deriveDataKey, generateKeyString, generateSalt } from '../../crypto/key-proof.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import { deriveKey, hmac, random, takeKey } from '../../crypto/primitives.ts'
import { type KeyRow, type NewKey } from '../../repositories/keys/encryption-keys.ts'
import { checkContext, keyContext, storageKeyContext } from './contexts.ts'

interface KeyId { organization_id: string, project_id: string, version: number }

/** A new wrapped storage key for an organization. */
export function makeStorageKey (keyring: Keyring, organizationId: string): Buffer {
  return keyring.wrap(random(32), storageKeyContext(organizationId))
}

/** Unwraps the storage key of an organization. */
export function storageKeyOf (keyring: Keyring, organization: { id: string, storage_key: Buffer }): KeyObject {
  return keyring.unwrapKey(organization.storage_key, storageKeyContext(organization.id))
}

/**
 * A server-managed key, wrapped: the given key string or a new one of 256 bits. The data key is derived once here, so
 * that reads need no derivation. Derivation is slow, so call this before a transaction begins.
 */
export async function makeServerKey (
  keyring: Keyring, id: KeyId, given?: {
    key: string | undefined
    hint: string | undefined
  }, iterations = COSTS.keyIterations
): Promise<NewKey> {
  const keyString = given?.key ?? generateKeyString()
  const salt = generateSalt()
  const dataKey = await deriveDataKey(keyString, salt, iterations)
  return {
    version: id.version,
    ...serverKeyColumns(keyring, id, keyString, dataKey),
    salt: keyring.wrap(salt, keyContext(id, 'salt')),
    iterations,
    hint: given?.hint ?? null
  }
}

/** The stored columns of a server-managed key. */
export function serverKeyColumns (keyring: Keyring, id: KeyId, keyString: string, dataKey: KeyObject) {
  return {
    managed: 'server' as const,
    key_string: keyring.wrap(Buffer.from(keyString, 'utf8'), keyContext(id, 'key_string')),
    data_key: keyring.wrap(dataKey.export(), keyContext(id, 'data_key')),
    key_check: null,
    key_check_hash: null
  }
}

/** The stored columns of a client-managed key: only its proof. */
export function clientKeyColumns (keyring: Keyring, storageKey: KeyObject, id: KeyId, check: Buffer) {
  return {
    managed: 'client' as const,
    key_string: null,
    data_key: null,
    key_check: keyring.wrap(check, keyContext(id, 'key_check')),
    key_check_hash: checkHashOf(storageKey, id, check)
  }
}

/**
 * The hash that finds a proof among all keys of its project with one lookup. Without it, each stored proof would have
 * to be unwrapped.
 */
export function checkHashOf (
  storageKey: KeyObject, key: Pick<KeyId, 'organization_id' | 'project_id'>, check: Buffer
): Buffer {
  return hmac(deriveKey(storageKey, Buffer.from('strongroom key checks'), 'hash'), checkContext(key, check))
}

/** A client's proof of its key, with the derivation parameters. */
export interface ProofTriple { check: Buffer, salt: Buffer, iterations: number }

/** The columns of a new client-managed key: its wrapped proof, never the key. */
export function registerClientKey (
  keyring: Keyring, storageKey: KeyObject, id: KeyId, triple: ProofTriple & { hint?: string | undefined }
): NewKey {
  return {
    version: id.version,
    ...clientKeyColumns(keyring, storageKey, id, triple.check),
    salt: keyring.wrap(triple.salt, keyContext(id, 'salt')),
    iterations: triple.iterations,
    hint: triple.hint ?? null
  }
}

/**
 * Unwraps the data key of a server-managed key. It was derived once and is stored with the key, so no process caches
 * it: after the key material is deleted from the row, no instance can decrypt with it.
 */
export function dataKeyOf (
  keyring: Keyring, key: Pick<KeyRow, 'organization_id' | 'project_id' | 'version' | 'data_key'>
): KeyObject {
  if (key.data_key === null) throw new Error('the key has no data key')
  return takeKey(keyring.unwrap(key.data_key, keyContext(key, 'data_key')))
}

export function saltOf (keyring: Keyring, key: KeyRow): Buffer {
  return keyring.unwrap(key.salt, keyContext(key, 'salt'))
}

export function keyStringOf (keyring: Keyring, key: KeyRow): string | undefined {
  return key.key_string === null
    ? undefined
    : keyring.unwrap(key.key_string, keyContext(key, 'key_string')).toString('utf8')
}

export function keyCheckOf (keyring: Keyring, key: KeyRow): Buffer | undefined {
  return key.key_check === null ? undefined : keyring.unwrap(key.key_check, keyContext(key, 'key_check'))
}
