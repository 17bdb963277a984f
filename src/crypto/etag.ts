import type { KeyObject } from 'node:crypto'
import { encodeContext, hmac } from './primitives.ts'

/**
 * A strong ETag with quotes: URL-safe base64 of 16 bytes of HMAC-SHA256 over the fields. Different fields give
 * different tags. Without the key, guessed fields cannot be checked against a tag.
 */
export function makeEtag (key: KeyObject, ...fields: (string | number)[]): string {
  return `"${hmac(key, encodeContext(...fields)).subarray(0, 16).toString('base64url')}"`
}
