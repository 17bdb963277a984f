import { openBlob } from '../../crypto/blob.ts'
import { createGates } from '../../crypto/bounded.ts'
import { decodeProof, deriveDataKey, KeyWorkOverloaded, makeProof, proofMatches } from '../../crypto/key-proof.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import { sameBytes } from '../../crypto/primitives.ts'
import type { Db } from '../../db/database.ts'
import { changeCustody, forgetRotatedKeys, type KeyRow, type KeyState } from '../../repositories/keys/encryption-keys.ts'
import { countWaiting, finishReEncryption } from '../../repositories/secrets/re-encryption.ts'
import { findDocuments, lockDocuments } from '../../repositories/secrets/rotations.ts'
import type { Organization } from '../../repositories/people/principals.ts'
import { fail } from '../../rules/errors.ts'
import { openCurrent } from '../documents/documents.ts'
import {
  dataKeyOf, heldByClient, heldByServer, keyCheckOf, keyStringOf, saltOf, storageKeyOf, type ProofTriple
} from '../keys/keys.ts'
import { inPieces } from './rotate.ts'

// A change of custody derives keys as slowly as its client once chose: one at a time for an organization, so that it
// never holds all the places that there are for derivations.
const gateOf = createGates(1, 8, () => new KeyWorkOverloaded())

/** A change of custody that was judged and is ready to be made. */
export interface Handover {
  /** With the project locked: makes it, or ends with an error and nothing changed. */
  make: (db: Db, project: KeyState) => Promise<void>
  /** The proof is the data key itself. */
  revealed: boolean
}

/** What of a client's triple is not that of the key which the server holds. */
export function differenceOf (keyring: Keyring, key: KeyRow, triple: ProofTriple): 'salt' | 'iterations' | undefined {
  if (!sameBytes(triple.salt, saltOf(keyring, key))) return 'salt'
  return triple.iterations === key.iterations ? undefined : 'iterations'
}

/**
 * From server to client. The key stays, so the client's triple has to be that of the key which the server holds
 * (`differenceOf`), and the proof shows that the caller has it: else nobody could open the documents afterwards. The
 * server then forgets the key string and the data key, and those of its earlier keys, under which nothing may be left.
 */
export async function handToClient (
  keyring: Keyring, organization: Organization, key: KeyRow, triple: ProofTriple, proof: string | undefined
): Promise<Handover> {
  if (differenceOf(keyring, key, triple) !== undefined) throw new Error('the triple is that of another key')
  const expected = decodeProof(await gateOf(organization.id)(() =>
    makeProof(keyStringOf(keyring, key)!, triple.salt, triple.iterations)))!
  const sent = proof === undefined ? undefined : decodeProof(proof)
  if (sent === undefined || !proofMatches(sent, expected) || !proofMatches(triple.check, expected)) {
    fail('key_proof_mismatch')
  }
  const held = heldByClient(keyring, storageKeyOf(keyring, organization), key, triple.check)
  return {
    revealed: sameBytes(expected, dataKeyOf(keyring, key).export()),
    make: async (db, project) => {
      const remaining = await countWaiting(db, project, null)
      if (remaining > 0) fail('history_under_old_keys', { remaining })
      await finishReEncryption(db, project, 0)
      await forgetRotatedKeys(db, project)
      await changeCustody(db, project, held)
    }
  }
}

/**
 * From client to server. The key string has to match the stored proof and to open every current document: a proof alone
 * says nothing of what lies behind its first 32 bytes.
 */
export async function handToServer (
  keyring: Keyring, organization: Organization, key: KeyRow, keyString: string
): Promise<Handover> {
  const salt = saltOf(keyring, key)
  const dataKey = await gateOf(organization.id)(async () => {
    const proof = decodeProof(await makeProof(keyString, salt, key.iterations))!
    if (!proofMatches(proof, keyCheckOf(keyring, key)!)) fail('key_proof_mismatch')
    return deriveDataKey(keyString, salt, key.iterations)
  })
  const held = heldByServer(keyring, key, keyString, dataKey)
  return {
    revealed: false,
    make: async (db, project) => {
      const storageKey = storageKeyOf(keyring, organization)
      await inPieces(await lockDocuments(db, project), async (ids) => {
        for (const document of await findDocuments(db, organization.id, ids)) {
          const blob = openCurrent(storageKey, { organization_id: organization.id, project }, document)
          if (openBlob(dataKey, blob) === undefined) fail('content_not_decryptable')
        }
      })
      // What the client has not re-encrypted by now, the server cannot.
      await finishReEncryption(db, project, 0)
      await changeCustody(db, project, held)
    }
  }
}
