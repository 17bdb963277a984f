/**
 * Key strings, their data keys and proofs (S-8.2, S-8.5). It guarantees the same bytes as existing clients, a
 * comparison in constant time (CR-17), and that a proof which equals the data key is detected (CR-24). A proof only
 * detects a mistyped key and authorizes nothing (CR-20). At most two derivations run at once, so that PBKDF2 leaves
 * threads for other work (CR-16).
 */
import type { KeyObject } from 'node:crypto'
import { createGate, WorkOverloaded } from './bounded.ts'
import { decodeBase64, open, random, sameBytes, secretKey, stretch, takeKey } from './primitives.ts'

const PROOF_BYTES = 32

/** More than 64 key derivations are waiting. */
export class KeyWorkOverloaded extends WorkOverloaded {
  constructor () {
    super('too many key derivations are waiting')
  }
}

const gate = createGate(2, 64, () => new KeyWorkOverloaded())

/**
 * A key string: 64 lower-case hex characters from 32 random bytes, used as text and never decoded. With 32 characters,
 * the proof would be the data key.
 */
export function generateKeyString (): string {
  return random(32).toString('hex')
}

/** A salt for a key string: 16 random bytes. */
export function generateSalt (): Buffer {
  return random(16)
}

/** The AES key of a key string, from its UTF-8 bytes. Throws KeyWorkOverloaded. */
export async function deriveDataKey (keyString: string, salt: Buffer, iterations: number): Promise<KeyObject> {
  return takeKey(await gate(() => stretch(Buffer.from(keyString), salt, iterations)))
}

/** The proof by which a client shows that it knows the key string: base64 of 32 bytes. Throws KeyWorkOverloaded. */
export async function makeProof (keyString: string, salt: Buffer, iterations: number): Promise<string> {
  const proof = await gate(() => stretch(padKey(keyString), salt, iterations))
  return proof.toString('base64')
}

/** The bytes of a proof; undefined unless it is canonical base64 of exactly 32 bytes. */
export function decodeProof (text: string): Buffer | undefined {
  const proof = decodeBase64(text)
  return proof?.length === PROOF_BYTES ? proof : undefined
}

/** Whether a received proof is the stored key check, in constant time. */
export function proofMatches (proof: Buffer, keyCheck: Buffer): boolean {
  return sameBytes(proof, keyCheck)
}

/**
 * Whether a proof opens the blob sent with it: then it is the data key (CR-24). Decodes the blob as leniently as any
 * client, so that another base64 spelling is detected too.
 */
export function proofOpens (proof: Buffer, blob: string): boolean {
  if (proof.length !== PROOF_BYTES) return false
  const plaintext = open(secretKey(proof), Buffer.from(blob, 'base64'))
  plaintext?.fill(0)
  return plaintext !== undefined
}

/** The first 32 bytes, or all of them and ASCII zeros up to 32: existing clients pad this way. */
function padKey (keyString: string): Buffer {
  const padded = Buffer.alloc(PROOF_BYTES, '0')
  Buffer.from(keyString).copy(padded)
  return padded
}
