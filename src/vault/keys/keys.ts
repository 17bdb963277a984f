import type { KeyObject } from 'node:crypto'
import { IntegrityError, openAtRest, sealAtRest } from '../../crypto/at-rest.ts'
import { COSTS } from '../../crypto/costs.ts'
import { Gate } from '../../gate.ts'
import { deriveDataKey, generateKeyString, generateSalt } from '../../crypto/key-proof.ts'
import { MasterKeyMissing, type Keyring } from '../../crypto/keyring.ts'
import { deriveKey, hmac, random, takeKey } from '../../crypto/primitives.ts'
import type { KeyRow, NewKey } from '../../repositories/keys/encryption-keys.ts'
import type { AnswerSeal } from '../../repositories/operations/idempotency.ts'
import { answerContext, checkContext, keyContext, storageKeyContext } from './contexts.ts'

interface KeyId { organization_id: string, project_id: string, version: number }

/** Creates a random key. Returns the key itself, and the key wrapped under the master key for a context. */
export function makeKey (keyring: Keyring, context: Buffer): { key: KeyObject, wrapped: Buffer } {
  const bytes = random(32)
  const wrapped = keyring.wrap(bytes, context)
  return { key: takeKey(bytes), wrapped }
}

/** Returns undefined if `open` throws because a value was manipulated or its master key is missing. */
export function unlessTampered<T> (open: () => T): T | undefined {
  try {
    return open()
  } catch (error) {
    if (error instanceof IntegrityError || error instanceof MasterKeyMissing) return undefined
    throw error
  }
}

export const makeStorageKey = (keyring: Keyring, organizationId: string): Buffer =>
  makeKey(keyring, storageKeyContext(organizationId)).wrapped

export function storageKeyOf (keyring: Keyring, organization: { id: string, storage_key: Buffer }): KeyObject {
  return keyring.unwrapKey(organization.storage_key, storageKeyContext(organization.id))
}

/** Encrypts stored responses under the storage key of their organization. */
export const createAnswerSeal = (keyring: Keyring): AnswerSeal => ({
  seal: (organization, answer, text) =>
    sealAtRest(storageKeyOf(keyring, organization), Buffer.from(text, 'utf8'), answerContext(answer)),
  open: (organization, answer) =>
    openAtRest(storageKeyOf(keyring, organization), answer.sealed, answerContext(answer)).toString('utf8')
})

/**
 * The gate of the derivations of keys, by organization: one at a time, so that other organizations wait for one of them
 * at most. A rotation does not need it, because an organization has one long operation at a time.
 */
export const derivations = new Gate([{}, { running: 1, waiting: 32 }], { work: 'key derivations' })

/**
 * Makes a server-managed key from the given key string, or from a new key string of 256 bits, and wraps it. The
 * derivation of the data key takes about 200 ms: do not call this while an organization or a project is locked. Throws
 * WorkOverloaded.
 */
export async function makeServerKey (
  keyring: Keyring, id: KeyId, given?: Partial<Record<'key' | 'hint', string | undefined>>,
  iterations = COSTS.keyIterations
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

export function serverKeyColumns (keyring: Keyring, id: KeyId, keyString: string, dataKey: KeyObject) {
  return {
    managed: 'server' as const,
    key_string: keyring.wrap(Buffer.from(keyString, 'utf8'), keyContext(id, 'key_string')),
    data_key: keyring.wrap(dataKey.export(), keyContext(id, 'data_key')),
    key_check: null,
    key_check_hash: null
  }
}

/** The columns of a client-managed key: its wrapped proof, never the key itself. */
export function clientKeyColumns (keyring: Keyring, storageKey: KeyObject, id: KeyId, check: Buffer) {
  return {
    managed: 'client' as const,
    key_string: null,
    data_key: null,
    key_check: keyring.wrap(check, keyContext(id, 'key_check')),
    key_check_hash: checkHashOf(storageKey, id, check)
  }
}

/** A hash that finds a proof among all keys of a project. The stored proofs need not be unwrapped for the search. */
export const checkHashOf = (storageKey: KeyObject, key: Omit<KeyId, 'version'>, check: Buffer): Buffer =>
  hmac(deriveKey(storageKey, Buffer.from('strongroom key checks'), 'hash'), checkContext(key, check))

/** A client's proof that it knows its key, with the parameters of the key derivation. */
export interface ProofTriple { check: Buffer, salt: Buffer, iterations: number }

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

/** Unwraps a data key. Never cached, so that no instance can decrypt after the key was deleted from the database. */
export function dataKeyOf (keyring: Keyring, key: KeyId & Pick<KeyRow, 'data_key'>): KeyObject {
  if (key.data_key === null) throw new Error('the key has no data key')
  return takeKey(keyring.unwrap(key.data_key, keyContext(key, 'data_key')))
}

export const saltOf = (keyring: Keyring, key: KeyRow): Buffer => keyring.unwrap(key.salt, keyContext(key, 'salt'))

export const keyStringOf = (keyring: Keyring, key: KeyRow): string | undefined =>
  key.key_string === null ? undefined : keyring.unwrap(key.key_string, keyContext(key, 'key_string')).toString('utf8')

export const keyCheckOf = (keyring: Keyring, key: KeyRow): Buffer | undefined =>
  key.key_check === null ? undefined : keyring.unwrap(key.key_check, keyContext(key, 'key_check'))
