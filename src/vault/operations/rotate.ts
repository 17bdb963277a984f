import type { KeyObject } from 'node:crypto'
import type { HistoryPolicy, Managed } from '../../../schemas/projects.ts'
import type { VersionAction } from '../../../schemas/versions.ts'
import { openBlob, sealBlob } from '../../crypto/blob.ts'
import { IntegrityError } from '../../crypto/at-rest.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import { yieldToEventLoop } from '../../crypto/event-loop.ts'
import type { Counter } from '../../db/rows/counter.ts'
import type { Db } from '../../db/database.ts'
import { eventOf, placeDetails, type Actor, type AuditEvent } from '../../repositories/audit/audit.ts'
import { findStoredBytes } from '../../repositories/billing/plans.ts'
import {
  findActiveKeyOf, type KeyRow, type KeyState, type NewKey, replaceActiveKey
} from '../../repositories/keys/encryption-keys.ts'
import { countWaiting, findReEncryption, isAnyWaiting, startReEncryption } from '../../repositories/secrets/re-encryption.ts'
import {
  findDocuments, lockDocuments, recordVersions, replaceDocuments, takeVersionIds, type VersionIds
} from '../../repositories/secrets/rotations.ts'
import type { Organization } from '../../repositories/people/principals.ts'
import { fail } from '../../rules/api-error.ts'
import { requireBytes } from '../../rules/billing.ts'
import { contextOf, openCurrent, sealCurrent, sealVersion, sizeOf, type StoredDocument } from '../documents/documents.ts'
import { dataKeyOf, storageKeyOf } from '../keys/keys.ts'
import { leaveHalf } from './long-operations.ts'
import { lockCurrentCanary } from '../keys/master-keys.ts'

// Limits of a batch, because a batch is in memory and blocks the event loop. A larger document is a batch of its own.
const PIECE = { documents: 50, bytes: 1024 * 1024 }

/** The active key of a project when the request was checked. */
export interface SeenKey { id: string, version: number, managed: Managed }

/** A rotation: the expected active key, the new key, and the conversion of documents. */
export interface Rotation {
  seen: SeenKey
  /**
   * Returns the new key. Called once, in the transaction, after the look for the stored response of a
   * repeated request: so a key is derived once, however often the request is repeated.
   */
  makeKey: () => Promise<NewKey>
  policy: HistoryPolicy | undefined
  /** Validates the request against the locked project and the ids of all its current documents. */
  validate?: (db: Db, project: KeyState, ids: string[]) => Promise<void>
  /** Called before the first write. From then on, only a concurrent change can still reject the rotation. */
  beforeEffect: () => Promise<void>
  /** Returns a document's blob (encrypted content) re-encrypted under the new key. */
  convert: (document: StoredDocument, blob: string, oldKey: KeyRow, newKey: KeyRow) => string
  /** The size of a document after the rotation, if the size changes. */
  sizeOf?: (id: string) => number
  details?: Record<string, boolean>
}

export interface Rotated { key: KeyRow, documents: number, waiting: number, event: AuditEvent }

/**
 * Replaces a project's key and re-encrypts every current document: `prepare` and `write` of a long change. Records a
 * version of each document with the action `rotate`. A concurrent rotation gets 409. Unless the history policy is
 * `keep`, also starts the re-encryption of the versions under former keys.
 */
export function rotationOf (keyring: Keyring, organization: Organization, actor: Actor, rotation: Rotation) {
  const { seen, validate, convert } = rotation
  let made: NewKey | undefined
  // A transaction that is tried again keeps the key.
  const prepare = async () => { made ??= await rotation.makeKey() }
  return { prepare, write }

  async function write (db: Db, project: KeyState, lockCounter: () => Promise<Counter>): Promise<Rotated> {
    await requireSeen(db, keyring, project, seen)
    const key = made!
    const oldKey = await findActiveKeyOf(db, project)
    const found = await lockDocuments(db, project)
    const documents = found.map(({ id, size_bytes }) =>
      ({ id, size_bytes: Math.max(size_bytes, rotation.sizeOf?.(id) ?? 0) }))
    await validate?.(db, project, documents.map(({ id }) => id))
    // Each new document is stored twice: as the current document, in place of the former one, and as a version.
    const expected = found.reduce((sum, { id, size_bytes }) =>
      sum + 2 * (rotation.sizeOf?.(id) ?? size_bytes) - size_bytes, 0)
    // An early check against the plan at the authentication. The final check below uses the plan under the lock.
    requireBytes(organization.plan, await findStoredBytes(db, organization.id), expected)
    await rotation.beforeEffect()
    const retention = project.encryption_type === 'client' ? organization.plan.retention_days : null
    const policy = await underWay(db, project, retention) ? 're_encrypt' : rotation.policy ?? project.history_policy
    const newKey = await replaceActiveKey(db, project, key)
    const under = { ...project, key_version: key.version }
    const storageKey = storageKeyOf(keyring, organization)
    const state = { organization_id: organization.id, project }

    // The growth of the stored bytes, by documents and versions.
    let growth = 0
    await inBatches(documents, async (ids) => {
      const began = performance.now()
      const current = await findDocuments(db, organization.id, ids)
      // Reads, re-encrypts and writes a batch in separate turns of the event loop, between other requests.
      await yieldToEventLoop()
      const converted = current.map((document) => {
        const blob = convert(document, openCurrent(storageKey, state, document), oldKey, newKey)
        const size_bytes = sizeOf(blob)
        growth += 2 * size_bytes - document.size_bytes
        const sealed = sealCurrent(storageKey, contextOf(under, document), document.revision + 1, blob)
        return { document, sealed, size_bytes }
      })
      await yieldToEventLoop()
      await replaceDocuments(db, under, converted)
      await leaveHalf(began)
    })
    const waiting = policy === 'keep' ? 0 : await countWaiting(db, under, retention)
    if (waiting > 0) await startReEncryption(db, under, waiting)
    const counter = await lockCounter()
    requireBytes(counter.plan, counter.stored_bytes, growth)
    const ids = takeVersionIds(counter, documents.length)
    await recordDocuments({ db, actor, project: under, storageKey }, documents, ids, () => ({ action: 'rotate' }))
    const details = {
      ...placeDetails({ project }),
      managed: key.managed,
      from: project.key_version,
      to: key.version,
      documents: documents.length,
      first_version: ids.first_version,
      history_policy: policy,
      ...rotation.details
    }
    const event = { ...eventOf('key.rotate', project.id, details), resource_type: 'project', growth }
    return { key: newKey, documents: documents.length, waiting, event }
  }
}

/** Returns a `convert` that re-encrypts a document of a server-managed project under the new key. */
export function reencrypt (keyring: Keyring): Rotation['convert'] {
  let keys: { old: KeyObject, new: KeyObject } | undefined
  return (_document, blob, oldKey, newKey) => {
    keys ??= { old: dataKeyOf(keyring, oldKey), new: dataKeyOf(keyring, newKey) }
    const plain = openBlob(keys.old, blob)
    if (plain === undefined) throw new IntegrityError()
    const sealed = sealBlob(keys.new, plain)
    plain.fill(0)
    return sealed
  }
}

/** 409 if the active key of the locked project or its custody is no longer `seen`. Also locks the master key. */
export async function requireSeen (db: Db, keyring: Keyring, project: KeyState, seen: SeenKey): Promise<void> {
  if (project.key_version !== seen.version || project.encryption_type !== seen.managed) fail('rotation_in_progress')
  await lockCurrentCanary(db, keyring)
}

/** Calls `work` with the ids of each batch of documents. */
export async function inBatches (
  documents: readonly { id: string, size_bytes: number }[], work: (ids: string[]) => Promise<void>
): Promise<void> {
  let piece: string[] = []
  let bytes = 0
  for (const { id, size_bytes } of documents) {
    if (piece.length === PIECE.documents || (piece.length > 0 && bytes + size_bytes > PIECE.bytes)) {
      await work(piece)
      piece = []
      bytes = 0
    }
    piece.push(id)
    bytes += size_bytes
  }
  if (piece.length > 0) await work(piece)
}

/**
 * Records a version of each document, with the ids and the time of `takeVersionIds`. If `versionOf` returns the action
 * `delete`, deletes the document, and its version gets the next revision.
 */
export async function recordDocuments (
  { db, actor, project, storageKey }: { db: Db, actor: Actor, project: KeyState, storageKey: KeyObject },
  documents: readonly { id: string, size_bytes: number }[], { first_version, taken_at }: VersionIds,
  versionOf: (document: StoredDocument) => { action: VersionAction, restored_from?: number | null }
): Promise<void> {
  const { organization_id } = project
  let next = first_version
  await inBatches(documents, async (ids) => {
    const found = await findDocuments(db, organization_id, ids)
    await yieldToEventLoop()
    const versions = found.map((document) => {
      const id = next++
      const version = versionOf(document)
      const revision = document.revision + (version.action === 'delete' ? 1 : 0)
      const blob = openCurrent(storageKey, { organization_id, project }, document)
      const sealed = sealVersion(storageKey, contextOf(project, document), id, revision, blob)
      return { id, document, revision, sealed, size_bytes: sizeOf(blob), ...version }
    })
    await yieldToEventLoop()
    const deleted = versions.filter(({ action }) => action === 'delete')
      .map(({ document }) => ({ document, sealed: null, size_bytes: 0 }))
    if (deleted.length > 0) await replaceDocuments(db, project, deleted)
    await recordVersions(db, actor, project, taken_at, versions)
  })
}

// Whether an unfinished re-encryption under the current active key has versions left.
async function underWay (db: Db, project: KeyState, retentionDays: number | null): Promise<boolean> {
  const progress = await findReEncryption(db, project)
  return progress?.finished_at === null && await isAnyWaiting(db, project, retentionDays)
}
