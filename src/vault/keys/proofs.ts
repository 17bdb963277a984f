import type { KeyObject } from 'node:crypto'
import type { Config } from '../../config.ts'
import { decodeProof, proofMatches, proofOpens } from '../../crypto/key-proof.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import type { Db } from '../../db/database.ts'
import { hasCheckHash, type KeyRow, type KeyState } from '../../repositories/keys/encryption-keys.ts'
import { fail } from '../../rules/api-error.ts'
import { checkHashOf, keyCheckOf } from './keys.ts'

export type ProofState = 'absent' | 'right' | 'wrong'

/** Compares a key proof with that of the active key, in constant time. Detects a wrong key, but authorizes nothing. */
export function validateProof (keyring: Keyring, key: KeyRow, proof: string | undefined): ProofState {
  if (proof === undefined) return 'absent'
  const [sent, check] = [decodeProof(proof), keyCheckOf(keyring, key)]
  return sent !== undefined && check !== undefined && proofMatches(sent, check) ? 'right' : 'wrong'
}

/** Whether a proof is that of any current or former client-managed key of the locked project. Makes one look-up. */
export async function provesAnyKey (
  db: Db, storageKey: KeyObject, { organization_id, id }: KeyState, proof: string
): Promise<boolean> {
  const sent = decodeProof(proof)
  return sent !== undefined &&
    hasCheckHash(db, { organization_id, id }, checkHashOf(storageKey, { organization_id, project_id: id }, sent))
}

/** Whether the proof decrypts the content. If so, the client has sent its data key as the proof (S-8.7). */
export function revealsKey (proof: string | undefined, content: string): boolean {
  const sent = proof === undefined ? undefined : decodeProof(proof)
  return sent !== undefined && proofOpens(sent, content)
}

/** Throws `key_proof_reveals_key` (422) if a proof reveals the client's key and the operator does not allow this. */
export function refuseRevealing (
  { allowRevealingKeyProof }: Pick<Config, 'allowRevealingKeyProof'>, reveals: boolean
): boolean {
  if (reveals && !allowRevealingKeyProof) fail('key_proof_reveals_key')
  return reveals
}
