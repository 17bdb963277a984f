import type { KeyObject } from 'node:crypto'
import { BLOB_BYTES } from '../../../schemas/shapes.ts'
import type { Config } from '../../config.ts'
import { isBlobText, openBlob, sealBlob } from '../../crypto/blob.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import { activeKeyOf, type LevelState } from '../../repositories/levels/levels.ts'
import type { KeyState } from '../../repositories/keys/encryption-keys.ts'
import type { FullVersion } from '../../repositories/secrets/versions.ts'
import { fail, refuse } from '../../rules/errors.ts'
import { planRestore } from '../../rules/restore.ts'
import { openVersion } from './documents.ts'
import { dataKeyOf } from '../keys/keys.ts'
import { validateProof, refuseRevealing, revealsKey } from '../keys/proofs.ts'

interface Vault { keyring: Keyring, config: Pick<Config, 'allowRevealingKeyProof'> }

/** The content to store. `revealed`: the proof reveals the client's key, and the operator allows that. */
export interface Accepted { blob: string, revealed: boolean }

/** Validates the content of a write: by the proof in a client-managed project, else by decryption. Throws ApiError. */
export function acceptContent (
  vault: Vault, state: LevelState,
  sent: { content?: string | undefined, plaintext?: string | undefined, key_proof?: string | undefined }
): Accepted {
  return state.project.encryption_type === 'client'
    ? ofClient(vault, state, sent)
    : { blob: forServer(dataKeyOf(vault.keyring, activeKeyOf(state)), sent), revealed: false }
}

/** A project with its active key, from the state of a level. */
type ProjectState = Pick<LevelState, 'organization_id' | 'key'> & { project: KeyState }

/** The content that a restore stores (S-5.8): that of the version, or of the request, validated as for a write. */
export function acceptRestored (
  { keyring, config }: Vault, storageKey: KeyObject, state: ProjectState, found: FullVersion, { content, key_proof }: {
    content?: string | undefined
    key_proof?: string | undefined
  }
): Accepted {
  const key = activeKeyOf(state)
  const managed = state.project.encryption_type
  const plan = planRestore({
    managed,
    underActiveKey: found.version.key_version === state.project.key_version,
    heldBy: found.key.managed,
    content: content !== undefined,
    proof: managed === 'client' ? validateProof(keyring, key, key_proof) : 'absent'
  })
  if (plan === 'content_required_for_old_key' || plan === 'key_proof_mismatch') return fail(plan)
  if (plan === 'as_sent') {
    requireBlob(content!)
    if (managed === 'server') return { blob: readable(dataKeyOf(keyring, key), content!).blob, revealed: false }
    return { blob: content!, revealed: refuseRevealing(config, revealsKey(key_proof, content!)) }
  }
  const stored = openVersion(storageKey, state.organization_id, found)
  if (managed === 'client') return { blob: stored, revealed: false }
  // The version may not decrypt: while a client manages the key, any content can be stored.
  const { blob, plain } = readable(dataKeyOf(keyring, plan === 'as_stored' ? key : found.key), stored)
  return { blob: plan === 'as_stored' ? blob : sealBlob(dataKeyOf(keyring, key), plain), revealed: false }
}

function ofClient (
  { keyring, config }: Vault, state: LevelState, { content, key_proof }: Parameters<typeof acceptContent>[2]
): Accepted {
  if (content === undefined) return fail('client_managed_encryption')
  requireBlob(content)
  const key = activeKeyOf(state)
  if (key.key_check === null) return fail('key_proof_required')
  if (validateProof(keyring, key, key_proof) !== 'right') fail('key_proof_mismatch')
  return { blob: content, revealed: refuseRevealing(config, revealsKey(key_proof, content)) }
}

function forServer (dataKey: KeyObject, { content, plaintext }: Parameters<typeof acceptContent>[2]): string {
  if (plaintext === undefined) {
    requireBlob(content!, "This project's content has to be encrypted, or sent as `plaintext`")
    return readable(dataKey, content!).blob
  }
  if (Buffer.byteLength(plaintext) > BLOB_BYTES - 28) refuse('plaintext', 'Larger than 1 MiB when sealed')
  return sealBlob(dataKey, plaintext)
}

function requireBlob (text: string, sentence = 'Expected base64 of 28 bytes to 1 MiB') {
  if (!isBlobText(text)) refuse('content', sentence)
}

// Content that cannot be decrypted is not stored in a server-managed project.
function readable (dataKey: KeyObject, blob: string): { blob: string, plain: Buffer } {
  return { blob, plain: openBlob(dataKey, blob) ?? fail('content_not_decryptable') }
}
