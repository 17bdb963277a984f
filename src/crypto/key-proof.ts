/**
 * Data keys and proofs of key strings (S-8.2, S-8.5). It guarantees the same bytes as existing
 * clients, a comparison in constant time (CR-17), and that a proof which is its own data key is noticed (CR-24).
 * A proof guards against typing the wrong key and authorizes nothing (CR-20). At most two derivations run at once, so
 * that PBKDF2 leaves threads for everybody else (CR-16).
 */
import type { KeyObject } from 'node:crypto'
import { createGate, WorkOverloaded } from './bounded.ts'
import { decodeBase64, open, sameBytes, secretKey, stretch, takeKey } from './primitives.ts'

const PROOF_BYTES = 32

/** More than 64 key derivations are waiting. */
export class KeyWorkOverloaded extends WorkOverloaded {
  override readonly name = 'KeyWorkOverloaded'

  constructor () {
    super('too many key derivations are waiting')
  }
}

const gate = createGate(2, 64, () => new KeyWorkOverloaded())

/** The AES key behind a key string, which is used as its UTF-8 bytes and never decoded. Throws KeyWorkOverloaded. */
export async function deriveDataKey (keyString: string, salt: Buffer, iterations: number): Promise<KeyObject> {
  return takeKey(await gate(() => stretch(Buffer.from(keyString), salt, iterations)))
}

/** What a client sends to show that it knows the key string: base64 of 32 bytes. Throws KeyWorkOverloaded. */
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
 * Whether a proof opens the blob that came with it: then it is the data key (CR-24). The blob is decoded as loosely as
 * any client may decode it, because another spelling of the same bytes must not slip past the probe.
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
