/**
 * The blob that clients make and open: base64 of IV (12) ‖ ciphertext ‖ tag (16), AES-256-GCM, no additional data.
 * It guarantees that a blob of this server opens in every client and the other way round, that nothing unauthentic is
 * ever returned (CR-08), and that blobs which the server does not open stay opaque (CR-07). The format has no room for
 * a context: `at-rest.ts` binds it to one.
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
 * Whether a text may be a blob: base64 characters for 28 bytes to 1 MiB, padded or not. It deliberately asks for no
 * canonical form (CR-07): published samples of existing clients have none, and the server keeps what it is given.
 */
export function isBlobText (text: string): boolean {
  if (text.length > MAX_BLOB_CHARACTERS || !/^[A-Za-z0-9+/]+={0,2}$/.test(text)) return false
  const characters = text.endsWith('==') ? text.length - 2 : text.endsWith('=') ? text.length - 1 : text.length
  const bytes = Math.floor(characters * 3 / 4)
  return bytes >= SEAL_OVERHEAD && bytes <= MAX_BLOB_BYTES
}
