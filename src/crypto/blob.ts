/**
 * The blob format of clients: base64 of IV (12) ‖ ciphertext ‖ tag (16), AES-256-GCM, without additional data. It
 * guarantees compatibility with every client, and that only authentic plaintext is returned (CR-08). The format has no
 * context: `at-rest.ts` adds it.
 */
import type { KeyObject } from 'node:crypto'
import { decodeBase64, open, seal, SEAL_OVERHEAD } from './primitives.ts'

/** The largest blob, in decoded bytes: 1 MiB. */
export const MAX_BLOB_BYTES = 1024 * 1024

const MAX_BLOB_CHARACTERS = Math.ceil(MAX_BLOB_BYTES / 3) * 4

/** A blob in standard, padded base64 (S-8.1); a string is sealed as UTF-8. */
export function sealBlob (dataKey: KeyObject, plaintext: Buffer | string): string {
  return seal(dataKey, Buffer.from(plaintext)).toString('base64')
}

/** The plaintext of a blob; undefined when it is not canonical base64, too short or not made with this key. */
export function openBlob (dataKey: KeyObject, blob: string): Buffer | undefined {
  const sealed = decodeBase64(blob)
  return sealed && open(dataKey, sealed)
}

/**
 * Whether a text may be a blob: base64 characters for 28 bytes to 1 MiB, padded or not. Accepts non-canonical base64,
 * which existing clients send (CR-07).
 */
export function isBlobText (text: string): boolean {
  if (text.length > MAX_BLOB_CHARACTERS || !/^[A-Za-z0-9+/]+={0,2}$/.test(text)) return false
  const characters = text.endsWith('==') ? text.length - 2 : text.endsWith('=') ? text.length - 1 : text.length
  const bytes = Math.floor(characters * 3 / 4)
  return bytes >= SEAL_OVERHEAD && bytes <= MAX_BLOB_BYTES
}
