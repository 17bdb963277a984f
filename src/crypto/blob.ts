/**
 * The blob format of clients: base64 of IV (12) ‖ ciphertext ‖ tag (16), AES-256-GCM, without additional data. Only
 * authentic plaintext is returned (CR-08). A blob is not bound to its row, so `at-rest.ts` seals the blob again.
 */
import type { KeyObject } from 'node:crypto'
import { decodeBase64, open, seal, SEAL_OVERHEAD } from './primitives.ts'

/** The largest blob, in decoded bytes: 1 MiB. */
export const MAX_BLOB_BYTES = 1024 * 1024

const MAX_BLOB_CHARACTERS = Math.ceil(MAX_BLOB_BYTES / 3) * 4

/** Encrypts to a blob in standard, padded base64 (S-8.1). A string is encrypted as UTF-8. */
export function sealBlob (dataKey: KeyObject, plaintext: Buffer | string): string {
  return seal(dataKey, Buffer.from(plaintext)).toString('base64')
}

/** Decrypts a blob. Undefined if it is not canonical base64, too short, or not authentic under this key. */
export function openBlob (dataKey: KeyObject, blob: string): Buffer | undefined {
  const sealed = decodeBase64(blob)
  return sealed && open(dataKey, sealed)
}

/**
 * Whether a text has the form of a blob: base64 of 28 bytes to 1 MiB, padded or not. Accepts non-canonical base64,
 * which existing clients send (CR-07).
 */
export function isBlobText (text: string): boolean {
  if (text.length > MAX_BLOB_CHARACTERS || !/^[A-Za-z0-9+/]+={0,2}$/.test(text)) return false
  const characters = text.endsWith('==') ? text.length - 2 : text.endsWith('=') ? text.length - 1 : text.length
  const bytes = Math.floor(characters * 3 / 4)
  return bytes >= SEAL_OVERHEAD && bytes <= MAX_BLOB_BYTES
}
