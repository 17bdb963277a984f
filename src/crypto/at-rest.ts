/**
 * The encryption of stored values (CR-01): version (1) ‖ salt (24) ‖ IV (12) ‖ ciphertext ‖ tag (16). It guarantees
 * that a value opens only with the key and the context it was sealed for: a moved, swapped, rolled back or changed row
 * is refused. Every value has its own subkey, so the number of encryptions under one key is not limited (CR-05).
 *
 * The version defines the derivation of the subkey. 2: only HKDF-Expand, because the keys are uniformly random (RFC
 * 5869, 3.3). No release wrote version 1.
 */
import type { KeyObject } from 'node:crypto'
import { expandKey, open, nonce, seal, SEAL_OVERHEAD } from './primitives.ts'

const VERSION = 2
const SALT_BYTES = 24
const HEADER_BYTES = 1 + SALT_BYTES

const subkeyOf = (key: KeyObject, salt: Buffer): KeyObject => expandKey(key, 'strongroom/at-rest/v2', salt)

/** A stored value was changed, moved or sealed with another key. Contains no data of the value. */
export class IntegrityError extends Error {
  override readonly name = 'IntegrityError'

  constructor () {
    super('a stored value is not what was sealed in this context')
  }
}

/** Seals a value for one context. Sealing the same value twice gives two different results. */
export function sealAtRest (storageKey: KeyObject, plaintext: Buffer, context: Buffer): Buffer {
  const salt = nonce(SALT_BYTES)
  return Buffer.concat([Buffer.of(VERSION), salt, seal(subkeyOf(storageKey, salt), plaintext, context)])
}

/** The value sealed for this context under this key; throws IntegrityError for everything else. */
export function openAtRest (storageKey: KeyObject, sealed: Buffer, context: Buffer): Buffer {
  if (sealed.length < HEADER_BYTES + SEAL_OVERHEAD || sealed[0] !== VERSION) throw new IntegrityError()
  const subkey = subkeyOf(storageKey, sealed.subarray(1, HEADER_BYTES))
  const plaintext = open(subkey, sealed.subarray(HEADER_BYTES), context)
  if (!plaintext) throw new IntegrityError()
  return plaintext
}
