import type { KeyObject } from 'node:crypto'
import type { Config } from '../config.ts'
import { decodeProof, proofMatches, proofOpens } from '../crypto/key-proof.ts'
import type { Keyring } from '../crypto/keyring.ts'
import type { Db } from '../db/database.ts'
import { hasCheckHash, type KeyRow, type KeyState } from '../repositories/encryption-keys.ts'
import { fail } from '../rules/errors.ts'
import { checkHashOf, keyCheckOf } from './keys.ts'

export type ProofState = 'absent' | 'right' | 'wrong'

/** Compares a proof with the active key's, in constant time. A guard against the wrong key, never an authorization. */
export function judgeProof (keyring: Keyring, key: KeyRow, proof: string | undefined): ProofState {
  if (proof === undefined) return 'absent'
  const [sent, check] = [decodeProof(proof), keyCheckOf(keyring, key)]
  return sent !== undefined && check !== undefined && proofMatches(sent, check) ? 'right' : 'wrong'
}

/**
 * Whether a proof is that of a client's key which the locked project has or had: one look-up, however many there were.
 */
export async function provesAnyKey (
  db: Db, storageKey: KeyObject, { organization_id, id }: KeyState, proof: string
): Promise<boolean> {
  const sent = decodeProof(proof)
  return sent !== undefined &&
    hasCheckHash(db, { organization_id, id }, checkHashOf(storageKey, { organization_id, project_id: id }, sent))
}

/** Whether the proof itself opens the content, which means that the client has just sent its data key (S-8.7). */
export function revealsKey (proof: string | undefined, content: string): boolean {
  const sent = proof === undefined ? undefined : decodeProof(proof)
  return sent !== undefined && proofOpens(sent, content)
}

/**
 * What became of a look whether a proof gives its key away: `key_proof_reveals_key` (422) when it does, unless the
 * operator allows that, which the event of the change then says.
 */
export function refuseRevealing (
  { allowRevealingKeyProof }: Pick<Config, 'allowRevealingKeyProof'>, reveals: boolean
): boolean {
  if (reveals && !allowRevealingKeyProof) fail('key_proof_reveals_key')
  return reveals
}
