/**
 * New server-managed keys. It guarantees 256 random bits in a key string and a length of 64 characters, which is never
 * the 32 whose proof would be the data key.
 */
import { random } from './primitives.ts'

/** A key string: 64 lower-case hex characters from 32 random bytes. It is used as text, never decoded. */
export function generateKeyString (): string {
  return random(32).toString('hex')
}

/** A salt for a key string: 16 random bytes. */
export function generateSalt (): Buffer {
  return random(16)
}
