/**
 * Strong entity tags. It guarantees that different fields give different tags, and that a tag tells nothing about the
 * fields to anybody without the key: a guessed content cannot be checked against it.
 */
import type { KeyObject } from 'node:crypto'
import { encodeContext, hmac } from './primitives.ts'

/** A strong ETag with its quotes: URL-safe base64 of 16 bytes of HMAC-SHA256 over the injective fields. */
export function makeEtag (key: KeyObject, ...fields: (string | number)[]): string {
  return `"${hmac(key, encodeContext(...fields)).subarray(0, 16).toString('base64url')}"`
}
