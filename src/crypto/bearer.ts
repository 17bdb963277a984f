/**
 * API tokens (CR-30 to CR-32): `dotenv_<ULID of the organization>_<40 base62 random><6 base62 checksum>`. A token has
 * 238 unbiased random bits and a form that secret scanners recognize. The checksum detects mistyped tokens without a
 * database query. A token is authenticated only by the look-up of its hash in the database.
 */
import type { KeyObject } from 'node:crypto'
import { crc32 } from 'node:zlib'
import { IntegrityError, openAtRest, sealAtRest } from './at-rest.ts'
import { deriveKey, encodeContext, random, sameBytes, sha256 } from './primitives.ts'

const BASE62 = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
const RANDOM_CHARACTERS = 40
const CHECKSUM_CHARACTERS = 6

/** The form of an API token; published for secret scanners. */
export const TOKEN_PATTERN = /^dotenv_[0-9A-HJKMNP-TV-Z]{26}_[0-9A-Za-z]{46}$/

/** Makes an API token. Throws if the id is not a ULID. Show the token once, store its hash. */
export function mintApiToken (organizationId: string): string {
  const body = `dotenv_${organizationId.toUpperCase()}_${randomBase62(RANDOM_CHARACTERS)}`
  const token = body + checksum(body)
  if (!TOKEN_PATTERN.test(token)) throw new Error('an API token needs the ULID of its organization')
  return token
}

/** Reads the organization's id in a token; undefined if form or checksum are wrong. Does not look up the token. */
export function parseApiToken (text: string): { organizationId: string } | undefined {
  if (!TOKEN_PATTERN.test(text)) return undefined
  const end = text.length - CHECKSUM_CHARACTERS
  // The checksum is not secret, so it needs no constant-time comparison.
  if (checksum(text.slice(0, end)) !== text.slice(end)) return undefined
  return { organizationId: text.slice('dotenv_'.length, 'dotenv_'.length + 26) }
}

/** The kind of an OAuth credential: access token, refresh token or authorization code. */
export type Credential = 'at' | 'rt' | 'ac'

const CREDENTIAL_PATTERN = /^dotenv_(at|rt|ac)_[0-9A-Za-z]{49}$/

/** Makes an OAuth credential: 43 random base62 characters (256 bits) and a checksum. Show it once, store its hash. */
export function mintCredential (kind: Credential): string {
  const body = `dotenv_${kind}_${randomBase62(43)}`
  return body + checksum(body)
}

/** Whether the text has the form and the checksum of a credential of this kind. Does not look up the credential. */
export function isCredential (kind: Credential, text: string): boolean {
  const [, found] = CREDENTIAL_PATTERN.exec(text) ?? []
  return found === kind && checksum(text.slice(0, -CHECKSUM_CHARACTERS)) === text.slice(-CHECKSUM_CHARACTERS)
}

/** The maximum length of a token of any kind. */
export const MAX_TOKEN_LENGTH = 512

const WORKLOAD_PATTERN = /^dotenv_wl_([0-9A-HJKMNP-TV-Z]{26})_([0-9A-Za-z_-]+)$/

/** The key that seals the tokens of workloads, derived from the row key, so that it need not be stored. */
export const deriveWorkloadKey = (rowKey: KeyObject): KeyObject =>
  deriveKey(rowKey, Buffer.from('strongroom workloads'), 'token')

/**
 * Makes the token of a workload, `dotenv_wl_<ULID of the organization>_<sealed content>`. No row stores the token: its
 * content is sealed for the organization and read back from the token.
 */
export function sealWorkloadToken (key: KeyObject, organizationId: string, content: string): string {
  const sealed = sealAtRest(key, Buffer.from(content), workloadContext(organizationId))
  const token = `dotenv_wl_${organizationId}_${sealed.toString('base64url')}`
  if (!WORKLOAD_PATTERN.test(token) || token.length > MAX_TOKEN_LENGTH) throw new Error('a workload token is too long')
  return token
}

/** Whether the text has the form of a workload's token. */
export const isWorkloadToken = (text: string): boolean => WORKLOAD_PATTERN.test(text)

/** The organization and the content of a workload's token; undefined unless it was sealed with this key. */
export function openWorkloadToken (
  key: KeyObject, text: string
): { organizationId: string, content: string } | undefined {
  const [, organizationId = '', encoded = ''] = WORKLOAD_PATTERN.exec(text) ?? []
  const sealed = Buffer.from(encoded, 'base64url')
  // A token has one spelling: other last characters can decode to the same bytes.
  if (encoded === '' || sealed.toString('base64url') !== encoded) return undefined
  try {
    return { organizationId, content: openAtRest(key, sealed, workloadContext(organizationId)).toString() }
  } catch (error) {
    if (error instanceof IntegrityError) return undefined
    throw error
  }
}

const workloadContext = (organizationId: string) => encodeContext('workload-token', organizationId)

/** A random value for a cookie, a link or the id of a pending request: 256 bits. */
export function mintSecret (): string {
  return random(32).toString('base64url')
}

/** The CSRF token of a form: a hash of the cookie, which other sites and sessions do not know. */
export function formToken (cookie: string): string {
  return sha256(`form ${cookie}`).toString('base64url')
}

/** Whether the form token was derived from the cookie, in constant time. */
export function isFormToken (token: string, cookie: string): boolean {
  return sameBytes(Buffer.from(token), Buffer.from(formToken(cookie)))
}

/** The S256 challenge of a code verifier (RFC 7636, 4.2). */
export function challengeOf (verifier: string): string {
  return sha256(verifier).toString('base64url')
}

/** Whether the verifier matches a challenge (RFC 7636, 4.6), in constant time. */
export function verifierMatches (verifier: string, challenge: string): boolean {
  return sameBytes(Buffer.from(challengeOf(verifier)), Buffer.from(challenge))
}

/** The stored hash of a token: SHA-256, because 238 random bits need no slow hash (CR-31). */
export function hashToken (text: string): Buffer {
  return sha256(text)
}

/**
 * The columns of a token: its hash, and its first 12 and last 4 characters, which lists show. The first 12 characters
 * are `dotenv_` and the start of the organization's id. The last 4 characters are a part of the checksum, so they
 * reveal at most 24 of the 238 random bits.
 */
export function storedToken (text: string): { token_hash: Buffer, token_prefix: string, token_suffix: string } {
  return { token_hash: hashToken(text), token_prefix: text.slice(0, 12), token_suffix: text.slice(-4) }
}

// Discards bytes above 247, because 248 is the largest multiple of 62: larger bytes would favour 8 characters.
function randomBase62 (length: number): string {
  let text = ''
  while (text.length < length) {
    for (const byte of random(length)) {
      if (byte < 248 && text.length < length) text += BASE62[byte % 62]
    }
  }
  return text
}

function checksum (body: string): string {
  let rest = crc32(body)
  let text = ''
  for (let i = 0; i < CHECKSUM_CHARACTERS; i++) {
    text = BASE62[rest % 62] + text
    rest = Math.floor(rest / 62)
  }
  return text
}
