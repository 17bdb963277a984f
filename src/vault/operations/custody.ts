import { openBlob } from '../../crypto/blob.ts'
import { decodeProof, deriveDataKey, makeProof, proofMatches } from '../../crypto/key-proof.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import { sameBytes } from '../../crypto/primitives.ts'
import type { Db } from '../../db/database.ts'
import { changeCustody, forgetRotatedKeys, type KeyRow, type KeyState } from '../../repositories/keys/encryption-keys.ts'
import { countWaiting, finishReEncryption } from '../../repositories/secrets/re-encryption.ts'
import { findDocuments, lockDocuments } from '../../repositories/secrets/rotations.ts'
import type { Organization } from '../../repositories/people/principals.ts'
import { fail } from '../../rules/api-error.ts'
import { openCurrent } from '../documents/documents.ts'
import {
  clientKeyColumns, dataKeyOf, derivations, keyCheckOf, keyStringOf, saltOf, serverKeyColumns, storageKeyOf,
  type ProofTriple
} from '../keys/keys.ts'
import { inBatches } from './rotate.ts'

/** A validated change of custody (whether server or client manages the key). */
interface Handover {
  /** Applies the change to the locked project. If it throws, it has changed nothing. */
  make: (db: Db, project: KeyState) => Promise<void>
  /** Whether the client's key proof equals the data key. */
  revealed: boolean
}

/** The first parameter of a client's proof that differs from the parameters of the server-managed key. */
export function differenceOf (keyring: Keyring, key: KeyRow, triple: ProofTriple): 'salt' | 'iterations' | undefined {
  if (!sameBytes(triple.salt, saltOf(keyring, key))) return 'salt'
  return triple.iterations === key.iterations ? undefined : 'iterations'
}

/**
 * Hands a server-managed key over to the client. The key stays the same: the salt and iterations of `triple` must be
 * those of the key (`differenceOf`). Both proofs must be right, because otherwise the client could not decrypt the
 * documents. Then deletes the key strings and data keys of this key and of the former server-managed keys. No version
 * may be left under a former key.
 */
export async function handToClient (
  keyring: Keyring, organization: Organization, key: KeyRow, triple: ProofTriple, proof: string | undefined
): Promise<Handover> {
  if (differenceOf(keyring, key, triple) !== undefined) throw new Error('the proof belongs to another key')
  const expected = decodeProof(await derivations.run([organization.id], () =>
    makeProof(keyStringOf(keyring, key)!, triple.salt, triple.iterations)))!
  const sent = proof === undefined ? undefined : decodeProof(proof)
  if (sent === undefined || !proofMatches(sent, expected) || !proofMatches(triple.check, expected)) {
    fail('key_proof_mismatch')
  }
  const columns = clientKeyColumns(keyring, storageKeyOf(keyring, organization), key, triple.check)
  return {
    revealed: sameBytes(expected, dataKeyOf(keyring, key).export()),
    make: async (db, project) => {
      const remaining = await countWaiting(db, project, null)
      if (remaining > 0) fail('history_under_old_keys', { remaining })
      await finishReEncryption(db, project, 0)
      await forgetRotatedKeys(db, project)
      await changeCustody(db, project, columns)
    }
  }
}

/** Hands a client-managed key over to the server. The key string must match the proof and decrypt all documents. */
export async function handToServer (
  keyring: Keyring, organization: Organization, key: KeyRow, keyString: string
): Promise<Handover> {
  const salt = saltOf(keyring, key)
  const dataKey = await derivations.run([organization.id], async () => {
    const proof = decodeProof(await makeProof(keyString, salt, key.iterations))!
    if (!proofMatches(proof, keyCheckOf(keyring, key)!)) fail('key_proof_mismatch')
    return deriveDataKey(keyString, salt, key.iterations)
  })
  const columns = serverKeyColumns(keyring, key, keyString, dataKey)
  return {
    revealed: false,
    make: async (db, project) => {
      const storageKey = storageKeyOf(keyring, organization)
      await inBatches(await lockDocuments(db, project), async (ids) => {
        for (const document of await findDocuments(db, organization.id, ids)) {
          const blob = openCurrent(storageKey, { organization_id: organization.id, project }, document)
          if (openBlob(dataKey, blob) === undefined) fail('content_not_decryptable')
        }
      })
      // Ends the re-encryption, because the server cannot re-encrypt versions under former keys of the client.
      await finishReEncryption(db, project, 0)
      await changeCustody(db, project, columns)
    }
  }
}
