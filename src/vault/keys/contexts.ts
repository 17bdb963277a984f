import { IntegrityError } from '../../crypto/at-rest.ts'
import { encodeContext, isWellFormed } from '../../crypto/primitives.ts'

// The encryption contexts (associated data) of encrypted values. If a value was moved to another row, swapped, or
// replaced by an older value, its context differs, so the value does not decrypt. Contexts are part of the stored
// format and never change after a release.

export const storageKeyContext = (organizationId: string) => encodeContext('storage-key', organizationId)

export const serviceKeyContext = (name: string) => encodeContext('service-key', name)

/** The context of a TOTP secret: the account and the id of the factor, which is new in each setup. */
export const secondFactorContext = (factor: { user_id: number, id: number }) =>
  encodeContext('second-factor', factor.user_id, factor.id)

/** The context of a chain key: its id and first event. Throws IntegrityError if the database was manipulated. */
export function chainKeyContext (key: { organization_id: string, kid: string, from_seq: number }): Buffer {
  const { organization_id, kid, from_seq } = key
  const isPlace = Number.isSafeInteger(from_seq) && from_seq >= 1 && isWellFormed(organization_id) && isWellFormed(kid)
  if (!isPlace) throw new IntegrityError()
  return encodeContext('chain-key', organization_id, kid, from_seq)
}

/** The context of a stored response: the caller's idempotency key and the request. */
export const answerContext = (
  answer: { organization_id: string, principal: string, key: string, request: Buffer, status: number }
) => {
  const { organization_id, principal, key, request, status } = answer
  return encodeContext('answer', organization_id, principal, key, request.toString('base64'), status)
}

/** The context of the key for the MACs of a backup. */
export const backupContext = (id: string) => encodeContext('backup', id)

export type KeyColumn = 'key_string' | 'data_key' | 'key_check' | 'salt'
export const keyContext = (key: { organization_id: string, project_id: string, version: number }, column: KeyColumn) =>
  encodeContext('project-key', key.organization_id, key.project_id, key.version, column)

/** The context for the hash of a client's key proof: the project and the proof. */
export const checkContext = (key: { organization_id: string, project_id: string }, check: Buffer) =>
  encodeContext('key-check', key.organization_id, key.project_id, check.toString('base64'))

export interface SecretContext { organization_id: string, secret_id: string, level_id: string, key_version: number }

/** The context of a current document. Contains the revision: an older document does not decrypt in a newer row. */
export const currentContext = (secret: SecretContext, revision: number) =>
  encodeContext('current', secret.organization_id, secret.secret_id, secret.level_id, revision, secret.key_version)

/** The context of a version: the id of the version, and the revision of the write that recorded the version. */
export const versionContext = (secret: SecretContext, version: number, revision: number) =>
  encodeContext(
    'version', secret.organization_id, secret.secret_id, secret.level_id, version, revision, secret.key_version
  )
