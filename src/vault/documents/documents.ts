import { LRUCache } from 'lru-cache'
import type { KeyObject } from 'node:crypto'
import { IntegrityError, openAtRest, sealAtRest } from '../../crypto/at-rest.ts'
import { deriveKey, makeEtag } from '../../crypto/primitives.ts'
import type { SecretRow } from '../../repositories/levels/levels.ts'
import type { KeyState } from '../../repositories/keys/encryption-keys.ts'
import type { PastDocument } from '../../repositories/secrets/point-in-time.ts'
import type { FullVersion } from '../../repositories/secrets/versions.ts'
import { currentContext, versionContext, type SecretContext } from '../keys/contexts.ts'

/** A current document, as `LevelState` or a rotation contains it. */
export type StoredDocument = Pick<SecretRow, 'id' | 'level_id' | 'revision' | 'key_version' | 'recorded_revision'> & {
  sealed: Buffer
}

/**
 * Decrypts a stored document with the storage key. Returns the blob, which is still encrypted with the project's key.
 * Throws IntegrityError, also if the document is not under the active key of the project (S-6.6).
 */
export function openCurrent (
  storageKey: KeyObject, state: { organization_id: string, project: { key_version: number } }, secret: StoredDocument
): string {
  const { id, level_id, key_version, revision, recorded_revision } = secret
  // If a version is newer than the document, the row was replaced by an older row.
  if (recorded_revision !== null && recorded_revision > revision) throw new IntegrityError()
  if (key_version !== state.project.key_version) throw new IntegrityError()
  const context = { organization_id: state.organization_id, secret_id: id, level_id, key_version }
  return openAtRest(storageKey, secret.sealed, currentContext(context, revision)).toString('utf8')
}

export function openVersion (storageKey: KeyObject, organizationId: string, {
  version, secret, sealed
}: Pick<FullVersion, 'sealed'> & {
  version: Pick<FullVersion['version'], 'id' | 'revision' | 'key_version'>,
  secret: Pick<FullVersion['secret'], 'id' | 'level_id'>
}): string {
  const context = {
    organization_id: organizationId, secret_id: secret.id, level_id: secret.level_id, key_version: version.key_version
  }
  return openAtRest(storageKey, sealed, versionContext(context, version.id, version.revision)).toString('utf8')
}

/** Decrypts the blob of a document at a moment, from the current row or from a version. */
export function openPast (storageKey: KeyObject, document: PastDocument): string {
  const { held, id, level_id, sealed, version, revision, key_version, key: { organization_id } } = document
  if (sealed === null) throw new Error('the document is not known')
  return held === 'current'
    ? openCurrent(storageKey, { organization_id, project: { key_version } }, { ...document, sealed })
    : openVersion(storageKey, organization_id, {
      version: { id: version!, revision, key_version }, secret: { id, level_id }, sealed
    })
}

/** The encryption context of a document under its project's key. */
export const contextOf = (
  { organization_id, key_version }: Pick<KeyState, 'organization_id' | 'key_version'>,
  { id, level_id }: Pick<StoredDocument, 'id' | 'level_id'>
): SecretContext => ({ organization_id, secret_id: id, level_id, key_version })

export const sealCurrent = (storageKey: KeyObject, context: SecretContext, revision: number, blob: string): Buffer =>
  sealAtRest(storageKey, Buffer.from(blob, 'utf8'), currentContext(context, revision))

export const sealVersion = (
  storageKey: KeyObject, context: SecretContext, version: number, revision: number, blob: string
): Buffer => sealAtRest(storageKey, Buffer.from(blob, 'utf8'), versionContext(context, version, revision))

const ETAG_SALT = Buffer.from('strongroom etag')

interface Etags { key: KeyObject, made: LRUCache<string, string> }

// Maximum characters in the ETag cache of one organization.
const MAX_CACHED_CHARACTERS = 64 * 1024
const etagsOf = new WeakMap<KeyObject, Etags>()

/** A strong ETag for document revisions and response parameters. A keyed hash, so that the ETag reveals neither. */
export function etagOf (
  storageKey: KeyObject, secrets: readonly { id: string, revision: number }[], ...shape: string[]
): string {
  let etags = etagsOf.get(storageKey)
  if (etags === undefined) {
    etags = {
      key: deriveKey(storageKey, ETAG_SALT, 'etag'),
      made: new LRUCache({ maxSize: MAX_CACHED_CHARACTERS, sizeCalculation: (_etag, name) => name.length + 200 })
    }
    etagsOf.set(storageKey, etags)
  }
  const fields = [...secrets.flatMap(({ id, revision }) => [id, revision]), ...shape]
  const name = JSON.stringify(fields)
  let etag = etags.made.get(name)
  if (etag === undefined) etags.made.set(name, etag = makeEtag(etags.key, ...fields))
  return etag
}

/** The decoded size of a blob in bytes. */
export function sizeOf (blob: string): number {
  const padding = blob.endsWith('==') ? 2 : blob.endsWith('=') ? 1 : 0
  return Math.floor((blob.length - padding) * 3 / 4)
}
