import { encodePlace } from '../crypto/primitives.ts'

// What each sealed or wrapped value is bound to. A row that was moved, swapped or rolled back in the database does not
// open in its new place. A place is never changed once released: it is part of the stored format.

export const storageKeyPlace = (organizationId: string) => encodePlace('storage-key', organizationId)

/** A key of the service itself. */
export const serviceKeyPlace = (name: string) => encodePlace('service-key', name)

export type KeyColumn = 'key_string' | 'data_key' | 'key_check' | 'salt'
export const keyPlace = (key: { organization_id: string, project_id: string, version: number }, column: KeyColumn) =>
  encodePlace('project-key', key.organization_id, key.project_id, key.version, column)

/** What proves a client's key, wherever among the keys of its project. */
export const checkPlace = (key: { organization_id: string, project_id: string }, check: Buffer) =>
  encodePlace('key-check', key.organization_id, key.project_id, check.toString('base64'))

export interface SecretPlace { organization_id: string, secret_id: string, level_id: string, key_version: number }

/** The current document: an older content of the same level does not open beside the row's newer revision. */
export const currentPlace = (secret: SecretPlace, revision: number) =>
  encodePlace('current', secret.organization_id, secret.secret_id, secret.level_id, revision, secret.key_version)

/** A version: its number, and the level's revision that it was written at. */
export const versionPlace = (secret: SecretPlace, version: number, revision: number) =>
  encodePlace('version', secret.organization_id, secret.secret_id, secret.level_id, version, revision, secret.key_version)
