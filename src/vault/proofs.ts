import { decodeProof, proofMatches, proofOpens } from '../crypto/key-proof.ts'
import type { Keyring } from '../crypto/keyring.ts'
import type { KeyRow } from '../repositories/encryption-keys.ts'
import { keyCheckOf } from './keys.ts'

export type ProofState = 'absent' | 'right' | 'wrong'

/** Compares a proof with the active key's, in constant time. A guard against the wrong key, never an authorization. */
export function judgeProof (keyring: Keyring, key: KeyRow, proof: string | undefined): ProofState {
  if (proof === undefined) return 'absent'
  return provesOneOf(keyring, [key], proof) ? 'right' : 'wrong'
}

/** Whether a proof is that of one of the keys, active or not. */
export function provesOneOf (keyring: Keyring, keys: readonly KeyRow[], proof: string): boolean {
  const sent = decodeProof(proof)
  return sent !== undefined && keys.some((key) => {
    const check = keyCheckOf(keyring, key)
    return check !== undefined && proofMatches(sent, check)
  })
}

/** Whether the proof itself opens the content, which means that the client has just sent its data key (`domain.md`). */
export function revealsKey (proof: string | undefined, content: string): boolean {
  const sent = proof === undefined ? undefined : decodeProof(proof)
  return sent !== undefined && proofOpens(sent, content)
}
