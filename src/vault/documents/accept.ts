import type { KeyObject } from 'node:crypto'
import { BLOB_BYTES } from '../../../schemas/shapes.ts'
import type { Config } from '../../config.ts'
import { isBlobText, openBlob, sealBlob } from '../../crypto/blob.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import { activeKeyOf, type LevelState } from '../../repositories/levels/levels.ts'
import type { KeyState } from '../../repositories/keys/encryption-keys.ts'
import type { FullVersion } from '../../repositories/secrets/versions.ts'
import { checkDocument, unreadableWarning, type DocumentCheck, type Warnings } from '../../rules/documents/check.ts'
import { encodingError } from '../../rules/documents/read.ts'
import { fail, refuse } from '../../rules/api-error.ts'
import { planRestore } from '../../rules/restore.ts'
import { openVersion } from './documents.ts'
import { dataKeyOf } from '../keys/keys.ts'
import { validateProof, refuseRevealing, revealsKey } from '../keys/proofs.ts'

interface Vault { keyring: Keyring, config: Pick<Config, 'allowRevealingKeyProof'> }

/**
 * The content to store, encrypted under the project's key (`blob`). `revealed`: the key proof reveals the client's key,
 * which the operator allows. `plain`: the decrypted document, if the server has the document. `check`: of `plain`, if
 * the document was checked.
 */
export interface Accepted { blob: string, revealed: boolean, plain?: string | Buffer, check?: DocumentCheck }

interface SentContent {
  content?: string | undefined
  plaintext?: string | undefined
  key_proof?: string | undefined
  unchecked?: boolean | undefined
}

/**
 * Validates the content of a write: in a client-managed project by the key proof, otherwise by decryption. Throws
 * ApiError, also if `plaintext` does not parse in the project's format and is not `unchecked`.
 */
export function acceptContent (vault: Vault, state: LevelState, sent: SentContent): Accepted {
  return state.project.encryption_type === 'client' ? ofClient(vault, state, sent) : ofServer(vault, state, sent)
}

/** The fields of a response about a document that does not parse, or that other readers read differently. */
export interface Notes extends Warnings { warning?: string }

/** The notes for the response to a store. */
export function notesOf (
  { project }: { project: Pick<KeyState, 'secret_format'> }, { plain, check }: Accepted
): Notes {
  if (plain === undefined) return {}
  const text = plain.toString()
  const notUtf8 = typeof plain === 'string' ? undefined : encodingError(plain, text)
  if (notUtf8 !== undefined) {
    const { line, column } = notUtf8
    // Also of a text: JSON, and so each decrypted read, cannot hold the bytes.
    const warning = `The document is not valid UTF-8 at line ${line}, column ${column}. ` +
      'Decrypted reads give U+FFFD in the place of its other bytes, and its names cannot be changed one by one.'
    return { warning, ...unreadableWarning(notUtf8) }
  }
  if (project.secret_format === 'text') return {}
  const { error, warnings } = check ?? checkDocument(project.secret_format, text)
  const warning = error && (error.limit === undefined
    ? `The document does not parse as ${project.secret_format} at line ${error.line}, column ${error.column}. `
    : `The document has more than ${error.limit}. `) + 'It cannot be merged with other levels.'
  return { ...(warning !== undefined && { warning }), ...warnings }
}

/** The notes for the response to a restore: only that the document does not parse. */
export function notesOfRestore (...restored: Parameters<typeof notesOf>): Notes {
  const notes = notesOf(...restored)
  return notes.warning === undefined ? {} : notes
}

/** A project with its active key, as `LevelState` contains them. */
type ProjectState = Pick<LevelState, 'organization_id' | 'key'> & { project: KeyState }

/** The content that a restore stores (S-5.8): that of the version, or that of the request, validated as in a write. */
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
    if (managed === 'server') return opened(dataKeyOf(keyring, key), content!)
    return { blob: content!, revealed: refuseRevealing(config, revealsKey(key_proof, content!)) }
  }
  const stored = openVersion(storageKey, state.organization_id, found)
  if (managed === 'client') return { blob: stored, revealed: false }
  // The version may not decrypt: if a client managed the key at that time, the client could store any content.
  const accepted = opened(dataKeyOf(keyring, plan === 'as_stored' ? key : found.key), stored)
  return plan === 'as_stored' ? accepted : { ...accepted, blob: sealBlob(dataKeyOf(keyring, key), accepted.plain) }
}

function ofClient ({ keyring, config }: Vault, state: LevelState, { content, key_proof }: SentContent): Accepted {
  if (content === undefined) return fail('client_managed_encryption')
  requireBlob(content)
  const key = activeKeyOf(state)
  if (key.key_check === null) return fail('key_proof_required')
  if (validateProof(keyring, key, key_proof) !== 'right') fail('key_proof_mismatch')
  return { blob: content, revealed: refuseRevealing(config, revealsKey(key_proof, content)) }
}

function ofServer (
  { keyring }: Vault, state: LevelState, { content, plaintext, unchecked = false }: SentContent
): Accepted {
  const dataKey = dataKeyOf(keyring, activeKeyOf(state))
  if (plaintext === undefined) {
    requireBlob(content!, "This project's content has to be encrypted, or sent as `plaintext`")
    return opened(dataKey, content!)
  }
  const blob = sealText(dataKey, plaintext, 'plaintext')
  const { level, project } = state
  const check = checkDocument(project.secret_format, plaintext)
  const problem = check.error ?? check.refusal
  if (problem !== undefined && !unchecked) fail('document_unreadable', { level, ...problem })
  return { blob, revealed: false, plain: plaintext, check }
}

/** Encrypts a document. If the document is too large, fails with 422 for the property `member` of the request. */
export function sealText (dataKey: KeyObject, text: string, member: string): string {
  if (Buffer.byteLength(text) > BLOB_BYTES - 28) refuse(member, 'Larger than 1 MiB when sealed')
  return sealBlob(dataKey, text)
}

function requireBlob (text: string, sentence = 'Expected base64 of 28 bytes to 1 MiB') {
  if (!isBlobText(text)) refuse('content', sentence)
}

// Fails if content does not decrypt, because a server-managed project stores no such content.
function opened (dataKey: KeyObject, blob: string): Accepted & { plain: Buffer } {
  const plain = openBlob(dataKey, blob) ?? fail('content_not_decryptable')
  return { blob, revealed: false, plain }
}
