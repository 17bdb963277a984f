import type { KeyObject } from 'node:crypto'
import { IntegrityError, openAtRest, sealAtRest } from '../crypto/at-rest.ts'
import { makeEtag } from '../crypto/etag.ts'
import { deriveKey } from '../crypto/primitives.ts'
import type { LevelState, SecretRow } from '../repositories/secrets.ts'
import type { FullVersion } from '../repositories/versions.ts'
import { currentPlace, versionPlace, type SecretPlace } from './places.ts'

/** Refuses a row that was put back whole to an earlier state: it is older than the newest version of its secret. */
export function requireNewest ({ revision, recorded_revision }: SecretRow) {
  if (recorded_revision !== null && recorded_revision > revision) throw new IntegrityError()
}

/** The blob of a level's current document; throws IntegrityError when the row is not what the service wrote. */
export function openCurrent (storageKey: KeyObject, state: Pick<LevelState, 'organization_id'>, secret: SecretRow & { sealed: Buffer }): string {
  requireNewest(secret)
  return openAtRest(storageKey, secret.sealed, currentPlace(placeOf(state, secret), secret.revision)).toString('utf8')
}

/** The blob of a version. */
export function openVersion (storageKey: KeyObject, organizationId: string, { version, secret, sealed }: FullVersion): string {
  const place = { organization_id: organizationId, secret_id: secret.id, level_id: secret.level_id, key_version: version.key_version }
  return openAtRest(storageKey, sealed, versionPlace(place, version.id, version.revision)).toString('utf8')
}

export function sealCurrent (storageKey: KeyObject, place: SecretPlace, revision: number, blob: string): Buffer {
  return sealAtRest(storageKey, Buffer.from(blob, 'utf8'), currentPlace(place, revision))
}

export function sealVersion (storageKey: KeyObject, place: SecretPlace, version: number, revision: number, blob: string): Buffer {
  return sealAtRest(storageKey, Buffer.from(blob, 'utf8'), versionPlace(place, version, revision))
}

const ETAG_SALT = Buffer.from('strongroom etag')

/** A strong ETag over the writes of some levels and what else shapes the answer; keyed, so that it tells nothing of a document. */
export function etagOf (storageKey: KeyObject, secrets: readonly { id: string, revision: number }[], ...shape: string[]): string {
  return makeEtag(etagKey(storageKey), ...secrets.flatMap(({ id, revision }) => [id, revision]), ...shape)
}

const etagKeys = new WeakMap<KeyObject, KeyObject>()
function etagKey (storageKey: KeyObject): KeyObject {
  const known = etagKeys.get(storageKey) ?? deriveKey(storageKey, ETAG_SALT, 'etag')
  etagKeys.set(storageKey, known)
  return known
}

/** Size of a blob when decoded, in bytes. */
export function sizeOf (blob: string): number {
  return Math.floor(blob.replace(/=+$/, '').length * 3 / 4)
}

function placeOf ({ organization_id }: Pick<LevelState, 'organization_id'>, secret: SecretRow): SecretPlace {
  return { organization_id, secret_id: secret.id, level_id: secret.level_id, key_version: secret.key_version }
}
