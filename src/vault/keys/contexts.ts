import { IntegrityError } from '../../crypto/at-rest.ts'
import { encodeContext, isWellFormed } from '../../crypto/primitives.ts'

// What each sealed or wrapped value is bound to, as the associated data of its encryption. A row that was moved,
// swapped or rolled back in the database does not open there. A context is never changed once released: it is part of
// the stored format.

export const storageKeyContext = (organizationId: string) => encodeContext('storage-key', organizationId)

/** A key of the service itself. */
export const serviceKeyContext = (name: string) => encodeContext('service-key', name)

/** What makes the codes of a second factor: that of an account, and of the time that it was set up. */
export const secondFactorContext = (factor: { user_id: number, id: number }) =>
  encodeContext('second-factor', factor.user_id, factor.id)

/**
 * A key of an organization's chain: it opens as the one of its name, from this event on. Throws IntegrityError where no
 * key can be: all three are what whoever writes to the database or to an export says.
 */
export function chainKeyContext (key: { organization_id: string, kid: string, from_seq: number }): Buffer {
  const { organization_id, kid, from_seq } = key
  const isPlace = Number.isSafeInteger(from_seq) && from_seq >= 1 && isWellFormed(organization_id) && isWellFormed(kid)
  if (!isPlace) throw new IntegrityError()
  return encodeContext('chain-key', organization_id, kid, from_seq)
}

/** An answer that is given again: to this key of its caller, for this request. */
export const answerContext = (
  answer: { organization_id: string, principal: string, key: string, request: Buffer, status: number }
) => {
  const { organization_id, principal, key, request, status } = answer
  return encodeContext('answer', organization_id, principal, key, request.toString('base64'), status)
}

/** The key that chains the frames of a backup. */
export const backupContext = (id: string) => encodeContext('backup', id)

export type KeyColumn = 'key_string' | 'data_key' | 'key_check' | 'salt'
export const keyContext = (key: { organization_id: string, project_id: string, version: number }, column: KeyColumn) =>
  encodeContext('project-key', key.organization_id, key.project_id, key.version, column)

/** What proves a client's key, wherever among the keys of its project. */
export const checkContext = (key: { organization_id: string, project_id: string }, check: Buffer) =>
  encodeContext('key-check', key.organization_id, key.project_id, check.toString('base64'))

export interface SecretContext { organization_id: string, secret_id: string, level_id: string, key_version: number }

/** The current document: an older content of the same level does not open beside the row's newer revision. */
export const currentContext = (secret: SecretContext, revision: number) =>
  encodeContext('current', secret.organization_id, secret.secret_id, secret.level_id, revision, secret.key_version)

/** A version: its number, and the level's revision that it was written at. */
export const versionContext = (secret: SecretContext, version: number, revision: number) =>
  encodeContext(
    'version', secret.organization_id, secret.secret_id, secret.level_id, version, revision, secret.key_version
  )
