/**
 * Encrypts stored values (CR-01): version (1) ‖ salt (24) ‖ IV (12) ‖ ciphertext ‖ tag (16). A value can be decrypted
 * only with the key and the context with which it was sealed. The context is additional data, such as the ids and the
 * revision of the row. So a value that was changed, moved to another row or rolled back is refused. Each value has its
 * own subkey, so the number of values under one key is not limited (CR-05).
 *
 * Version 2 derives the subkey with HKDF-Expand without HKDF-Extract, because the keys are uniformly random (RFC 5869,
 * 3.3). No release wrote values of version 1.
 */
import type { KeyObject } from 'node:crypto'
import { expandKey, open, nonce, seal, SEAL_OVERHEAD } from './primitives.ts'

const VERSION = 2
const SALT_BYTES = 24
const HEADER_BYTES = 1 + SALT_BYTES

const subkeyOf = (key: KeyObject, salt: Buffer): KeyObject => expandKey(key, 'strongroom/at-rest/v2', salt)

/** A stored value was changed, moved or sealed with another key. The message contains no data of the value. */
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

/** Decrypts a value. Throws IntegrityError unless `sealAtRest` made it with this key and context. */
export function openAtRest (storageKey: KeyObject, sealed: Buffer, context: Buffer): Buffer {
  if (sealed.length < HEADER_BYTES + SEAL_OVERHEAD || sealed[0] !== VERSION) throw new IntegrityError()
  const subkey = subkeyOf(storageKey, sealed.subarray(1, HEADER_BYTES))
  const plaintext = open(subkey, sealed.subarray(HEADER_BYTES), context)
  if (!plaintext) throw new IntegrityError()
  return plaintext
}
