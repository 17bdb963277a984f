/**
 * Key strings. Data keys and proofs are derived from a key string, as in existing clients (S-8.2, S-8.5). A wrong proof
 * shows that a client has a wrong key; a right proof authorizes nothing (CR-20). Proofs are compared in constant time
 * (CR-17). At most two derivations run at once, so that PBKDF2 leaves threads for other work (CR-16).
 */
import type { KeyObject } from 'node:crypto'
import { Gate } from '../gate.ts'
import { decodeBase64, open, random, sameBytes, secretKey, stretch, takeKey } from './primitives.ts'

const PROOF_BYTES = 32

const gate = new Gate([{ running: 2, waiting: 64 }], { work: 'key derivations' })

/**
 * A new key string: 32 random bytes as 64 hex characters. PBKDF2 gets the characters, not the decoded bytes. A key
 * string of 32 characters would need no padding in `padKey`, so its proof and its data key would be equal.
 */
export function generateKeyString (): string {
  return random(32).toString('hex')
}

export function generateSalt (): Buffer {
  return random(16)
}

/** Derives the AES key from the UTF-8 bytes of a key string. Throws WorkOverloaded. */
export async function deriveDataKey (keyString: string, salt: Buffer, iterations: number): Promise<KeyObject> {
  return takeKey(await gate.run([], () => stretch(Buffer.from(keyString), salt, iterations)))
}

/** The proof by which a client shows that it knows the key string: base64 of 32 bytes. Throws WorkOverloaded. */
export async function makeProof (keyString: string, salt: Buffer, iterations: number): Promise<string> {
  const proof = await gate.run([], () => stretch(padKey(keyString), salt, iterations))
  return proof.toString('base64')
}

/** The bytes of a proof; undefined unless the text is canonical base64 of exactly 32 bytes. */
export function decodeProof (text: string): Buffer | undefined {
  const proof = decodeBase64(text)
  return proof?.length === PROOF_BYTES ? proof : undefined
}

/** Whether a received proof equals the stored one, in constant time. */
export function proofMatches (proof: Buffer, keyCheck: Buffer): boolean {
  return sameBytes(proof, keyCheck)
}

/**
 * Whether a proof decrypts the blob of the same request. Then the client sent its data key instead of a proof (CR-24).
 * Accepts a blob in non-canonical base64, because existing clients send such blobs.
 */
export function proofOpens (proof: Buffer, blob: string): boolean {
  if (proof.length !== PROOF_BYTES) return false
  const plaintext = open(secretKey(proof), Buffer.from(blob, 'base64'))
  plaintext?.fill(0)
  return plaintext !== undefined
}

/** Truncates or pads the text to 32 bytes, with ASCII zeros, as existing clients do. */
function padKey (keyString: string): Buffer {
  const padded = Buffer.alloc(PROOF_BYTES, '0')
  Buffer.from(keyString).copy(padded)
  return padded
}
