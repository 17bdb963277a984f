/**
 * The only file that names an algorithm. It guarantees:
 *
 * - AES-256-GCM with a fresh random 96-bit IV for every seal (CR-04) and a tag of exactly 16 bytes, also when opening:
 *   without `authTagLength` Node 20 accepts tags of 4 bytes (CR-03).
 * - Decrypted data is returned only after its tag is verified (CR-08). Lengths are checked before decryption.
 * - Keys are `KeyObject`s of exactly 32 bytes, so that they cannot be printed, serialized or logged (CR-15).
 * - Secrets of any lengths are compared in constant time (CR-17).
 * - A context (additional data) is an injective encoding: two different contexts never give the same bytes (CR-02).
 */
import {
  createCipheriv, createDecipheriv, createHmac, createSecretKey, hash, hkdfSync, pbkdf2, randomBytes, timingSafeEqual,
  type KeyObject
} from 'node:crypto'
import { promisify } from 'node:util'
import { beginPiece } from '../telemetry/spans.ts'

const KEY_BYTES = 32
const IV_BYTES = 12
const TAG_BYTES = 16

/** The bytes that sealing adds to a plaintext. */
export const SEAL_OVERHEAD = IV_BYTES + TAG_BYTES

/**
 * Encrypts and authenticates: IV (12) ‖ ciphertext ‖ tag (16), AES-256-GCM. The context is authenticated, not stored.
 * Seal at most 2^32 values under one key (SP 800-38D, CR-05). `at-rest.ts` derives a key for each value.
 */
export function seal (key: KeyObject, plaintext: Buffer, context?: Buffer): Buffer {
  const end = beginPiece('seal')
  const iv = nonce(IV_BYTES)
  const cipher = createCipheriv('aes-256-gcm', key, iv, { authTagLength: TAG_BYTES })
  if (context) cipher.setAAD(context)
  const sealed = Buffer.concat([iv, cipher.update(plaintext), cipher.final(), cipher.getAuthTag()])
  end()
  return sealed
}

/** Decrypts a value of `seal`. Undefined if the value is too short, or not authentic for this key and context. */
export function open (key: KeyObject, sealed: Buffer, context?: Buffer): Buffer | undefined {
  if (sealed.length < SEAL_OVERHEAD) return undefined
  const end = beginPiece('open')
  const iv = sealed.subarray(0, IV_BYTES)
  const decipher = createDecipheriv('aes-256-gcm', key, iv, { authTagLength: TAG_BYTES })
  decipher.setAuthTag(sealed.subarray(sealed.length - TAG_BYTES))
  if (context) decipher.setAAD(context)
  const plaintext = decipher.update(sealed.subarray(IV_BYTES, sealed.length - TAG_BYTES))
  try {
    // In GCM `final` gives no bytes: it only verifies the tag.
    decipher.final()
  } catch {
    plaintext.fill(0)
    return undefined
  } finally {
    end()
  }
  return plaintext
}

/** A copy of 32 bytes as a key object; throws for any other length. The caller may wipe the bytes afterwards. */
export function secretKey (bytes: Buffer): KeyObject {
  if (bytes.length !== KEY_BYTES) throw new Error(`a key must be ${KEY_BYTES} bytes long, not ${bytes.length}`)
  return createSecretKey(bytes)
}

/** SHA-256, 32 bytes; a string is hashed as UTF-8. */
export function sha256 (data: string | Buffer): Buffer {
  return hash('sha256', data, 'buffer')
}

/** HMAC-SHA256 over the concatenated parts, 32 bytes. The caller must make the boundaries of the parts unambiguous. */
export function hmac (key: KeyObject, ...parts: (Buffer | string)[]): Buffer {
  const mac = createHmac('sha256', key)
  for (const part of parts) mac.update(part)
  return mac.digest()
}

/** Verifies a MAC in constant time. */
export function hmacMatches (key: KeyObject, data: Buffer | string, mac: Buffer): boolean {
  return mac.length === KEY_BYTES && timingSafeEqual(hmac(key, data), mac)
}

/** HKDF-SHA256 (RFC 5869): an independent 32-byte key for each salt and each purpose (`info`). */
export function deriveKey (key: KeyObject, salt: Buffer, info: string): KeyObject {
  return takeKey(Buffer.from(hkdfSync('sha256', key, salt, info, KEY_BYTES)))
}

/**
 * HKDF-Expand of one block (RFC 5869, 2.3; info is `purpose ‖ salt`): an independent 32-byte key for every salt. The
 * key must be uniformly random (3.3), and the salts of a purpose must have one length, so that no two infos are equal.
 */
export function expandKey (key: KeyObject, purpose: string, salt: Buffer): KeyObject {
  return takeKey(hmac(key, purpose, salt, FIRST_BLOCK))
}

const FIRST_BLOCK = Buffer.of(1)

const pbkdf2Async = promisify(pbkdf2)

/** PBKDF2-HMAC-SHA256, 32 bytes, outside the main thread. Expensive: call it only within the gate of `key-proof.ts`. */
export async function stretch (password: Buffer, salt: Buffer, iterations: number): Promise<Buffer> {
  const end = beginPiece('derive')
  return await pbkdf2Async(password, salt, iterations, KEY_BYTES, 'sha256').finally(end)
}

/** Like `secretKey`, but wipes the bytes, also when it throws. */
export function takeKey (bytes: Buffer): KeyObject {
  try {
    return secretKey(bytes)
  } finally {
    bytes.fill(0)
  }
}

/** Whether two secrets are equal, in constant time. Compares digests, because `timingSafeEqual` needs equal lengths. */
export function sameBytes (a: Buffer, b: Buffer): boolean {
  return timingSafeEqual(sha256(a), sha256(b))
}

/** Cryptographically secure random bytes, the source of all IVs, salts, keys and tokens. */
export function random (bytes: number): Buffer {
  return randomBytes(bytes)
}

// A call of the random generator costs as much as an encryption, whatever the length. So one call serves many nonces.
const POOL_BYTES = 4096
let pool: Buffer = Buffer.alloc(0)

/** Like `random`, for a few bytes that are not secret, such as IVs and salts. Each byte is returned once. */
export function nonce (bytes: number): Buffer {
  if (pool.length < bytes) pool = random(POOL_BYTES)
  const taken = pool.subarray(0, bytes)
  pool = pool.subarray(bytes)
  return taken
}

/**
 * The context of a sealed value, as additional data: `uint32 length ‖ UTF-8 bytes` for each field, so that no two lists
 * of fields give the same bytes (CR-02). A number is encoded as its decimal text, because database drivers return
 * numbers or text. Throws for an unsafe integer, and for a lone surrogate: UTF-8 would replace all lone surrogates by
 * U+FFFD, so that different texts would give the same bytes.
 */
export function encodeContext (...fields: (string | number)[]): Buffer {
  const texts = fields.map((field) => {
    if (typeof field === 'number' && !Number.isSafeInteger(field)) throw new Error('a context needs whole numbers')
    const text = String(field)
    if (!isWellFormed(text)) throw new Error('a context needs well-formed text')
    return text
  })
  const context = Buffer.allocUnsafe(texts.reduce((size, text) => size + 4 + Buffer.byteLength(text), 0))
  let at = 0
  for (const text of texts) {
    const end = at + 4 + context.write(text, at + 4)
    context.writeUInt32BE(end - at - 4, at)
    at = end
  }
  return context
}

// TypeScript's library has no type for String.prototype.isWellFormed yet.
export const isWellFormed = (text: string) => (text as unknown as { isWellFormed (): boolean }).isWellFormed()

/** Decodes canonical, padded, standard base64; undefined for any other text, which `Buffer.from` would accept. */
export function decodeBase64 (text: string): Buffer | undefined {
  const bytes = Buffer.from(text, 'base64')
  return bytes.toString('base64') === text ? bytes : undefined
}

/**
 * A strong ETag with quotes: URL-safe base64 of 16 bytes of HMAC-SHA256 over the fields. Different fields give
 * different tags. Without the key, guessed fields cannot be checked against a tag.
 */
export function makeEtag (key: KeyObject, ...fields: (string | number)[]): string {
  return `"${hmac(key, encodeContext(...fields)).subarray(0, 16).toString('base64url')}"`
}
