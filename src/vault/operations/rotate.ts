import type { KeyObject } from 'node:crypto'
import type { HistoryPolicy, Managed } from '../../../schemas/projects.ts'
import { openBlob, sealBlob } from '../../crypto/blob.ts'
import { IntegrityError } from '../../crypto/at-rest.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import { rest } from '../../crypto/rest.ts'
import type { Db } from '../../db/database.ts'
import { lockCounterLast, recordEvent, type Actor } from '../../repositories/audit/audit.ts'
import { findStoredBytes } from '../../repositories/billing/plans.ts'
import {
  findActiveKeyOf, type KeyRow, type KeyState, type NewKey, replaceActiveKey
} from '../../repositories/keys/encryption-keys.ts'
import { countWaiting, findReEncryption, isAnyWaiting, startReEncryption } from '../../repositories/secrets/re-encryption.ts'
import {
  findDocuments, lockDocuments, recordVersions, replaceDocuments, takeVersionIds
} from '../../repositories/secrets/rotations.ts'
import type { Organization } from '../../repositories/people/principals.ts'
import { fail } from '../../rules/errors.ts'
import { requireBytes } from '../../rules/plan-bytes.ts'
import { openCurrent, sealCurrent, sealVersion, sizeOf, type StoredDocument } from '../documents/documents.ts'
import { dataKeyOf, storageKeyOf } from '../keys/keys.ts'
import { leaveHalf, runLongOperation } from './long-operations.ts'
import { lockCurrentCanary } from '../keys/master-keys.ts'

interface Vault { longTransactions: Db, keyring: Keyring }

// A batch of documents in memory. It blocks the event loop, so it is limited to one large document or the equivalent in
// small ones.
const PIECE = { documents: 50, bytes: 1024 * 1024 }

/** The active key of a project as the caller saw it. */
export interface SeenKey { id: string, version: number, managed: Managed }

/** A rotation: the project as the caller saw it, the new key, and the conversion of documents. */
export interface Rotation {
  seen: SeenKey
  key: NewKey
  policy: HistoryPolicy | undefined
  /** Validates the request against the locked project and the ids of all its current documents. */
  judge?: (db: Db, project: KeyState, ids: string[]) => Promise<void>
  /** Called before the first write, when only a concurrent change can still reject the rotation. */
  beforeEffect: () => Promise<void>
  /** Re-encrypts a document's blob from the old to the new key. */
  convert: (document: StoredDocument, blob: string, oldKey: KeyRow) => string
  /** The new size of a document, if it changes. */
  sizeOf?: (id: string) => number
  details?: Record<string, boolean>
}

export interface Rotated { key: KeyRow, documents: number, waiting: number }

/**
 * Replaces a project's key and re-encrypts every current document, with one `rotate` version each, in one transaction.
 * A concurrent rotation gets 409. With `re_encrypt`, the history is queued for re-encryption.
 */
export async function rotate (
  { longTransactions, keyring }: Vault, organization: Organization, actor: Actor, rotation: Rotation
): Promise<Rotated> {
  const { seen, key, judge, convert } = rotation
  return changeKey({ longTransactions, keyring }, organization, actor, seen, async (db, project) => {
    const oldKey = await findActiveKeyOf(db, project)
    const found = await lockDocuments(db, project)
    const documents = found.map(({ id, size_bytes }) =>
      ({ id, size_bytes: Math.max(size_bytes, rotation.sizeOf?.(id) ?? 0) }))
    await judge?.(db, project, documents.map(({ id }) => id))
    // Each document is stored twice: as the current document, replacing the former one, and as a version.
    const expected = found.reduce((sum, { id, size_bytes }) =>
      sum + 2 * (rotation.sizeOf?.(id) ?? size_bytes) - size_bytes, 0)
    requireBytes(organization.plan, await findStoredBytes(db, organization.id), expected)
    await rotation.beforeEffect()
    const retention = project.encryption_type === 'client' ? organization.plan.retention_days : null
    const policy = await underWay(db, project, retention) ? 're_encrypt' : rotation.policy ?? project.history_policy
    const newKey = await replaceActiveKey(db, project, key)
    const under = { ...project, key_version: key.version }
    const storageKey = storageKeyOf(keyring, organization)
    const state = { organization_id: organization.id, project }
    // A batch is read, re-encrypted and written in separate turns of the event loop.
    const read = async (ids: string[]) => {
      const found = await findDocuments(db, organization.id, ids)
      await rest()
      return found
    }

    // Growth of the stored bytes, by documents and versions.
    let growth = 0
    await inPieces(documents, async (ids) => {
      const began = performance.now()
      const converted = (await read(ids)).map((document) => {
        const blob = convert(document, openCurrent(storageKey, state, document), oldKey)
        const size_bytes = sizeOf(blob)
        growth += 2 * size_bytes - document.size_bytes
        return {
          document,
          sealed: sealCurrent(storageKey, contextOf(under, document), document.revision + 1, blob),
          size_bytes
        }
      })
      await rest()
      await replaceDocuments(db, under, converted)
      await leaveHalf(began)
    })
    const waiting = policy === 'keep' ? 0 : await countWaiting(db, under, retention)
    if (waiting > 0) await startReEncryption(db, under, waiting)
    // The counter is the last lock: all other writes of the organization wait from here until the commit.
    const counter = (await lockCounterLast(db, actor))!
    requireBytes(organization.plan, counter.stored_bytes, growth)
    const { first_version, taken_at } = await takeVersionIds(db, counter, documents.length)
    let next = first_version
    await inPieces(documents, async (ids) => {
      const versions = (await read(ids)).map((document) => {
        // The revision that the version is about to record.
        const blob = openCurrent(storageKey, { ...state, project: under }, document)
        const id = next++
        return {
          id,
          document,
          revision: document.revision,
          sealed: sealVersion(storageKey, contextOf(under, document), id, document.revision, blob),
          size_bytes: sizeOf(blob),
          action: 'rotate' as const
        }
      })
      await rest()
      await recordVersions(db, actor, under, taken_at, versions)
    })

    await recordEvent(db, actor, {
      action: 'key.rotate',
      resource_type: 'project',
      resource_id: project.id,
      details: {
        managed: key.managed,
        from: project.key_version,
        to: key.version,
        documents: documents.length,
        first_version,
        history_policy: policy,
        ...rotation.details
      },
      growth
    })
    return { key: newKey, documents: documents.length, waiting }
  })
}

/** Re-encrypts a server-managed document under the new key. */
export function reencrypt (keyring: Keyring, newKey: KeyObject): Rotation['convert'] {
  let old: KeyObject | undefined
  return (_document, blob, oldKey) => {
    old ??= dataKeyOf(keyring, oldKey)
    const plain = openBlob(old, blob)
    if (plain === undefined) throw new IntegrityError()
    const sealed = sealBlob(newKey, plain)
    plain.fill(0)
    return sealed
  }
}

/**
 * Runs a change of a project's key as a long operation, with the master key's canary locked. 409 when the project's key
 * or custody is not the one that the caller saw.
 */
export async function changeKey<T> (
  { longTransactions, keyring }: Vault, organization: Organization, actor: Pick<Actor, 'answering'>, seen: SeenKey,
  change: (db: Db, project: KeyState) => Promise<T>
): Promise<T> {
  const run = async (db: Db, project: KeyState) => {
    if (project.key_version !== seen.version || project.encryption_type !== seen.managed) fail('rotation_in_progress')
    await lockCurrentCanary(db, keyring)
    return change(db, project)
  }
  return runLongOperation({ longTransactions }, { organization, projectId: seen.id, actor, run })
}

/** Calls `work` with the ids of a project's documents in batches that fit into memory. */
export async function inPieces (
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

// Whether a re-encryption is unfinished and has versions left, relative to the key that is being replaced.
async function underWay (db: Db, project: KeyState, retentionDays: number | null): Promise<boolean> {
  const progress = await findReEncryption(db, project)
  return progress?.finished_at === null && await isAnyWaiting(db, project, retentionDays)
}

/** The encryption context of a document, under its project's key. */
export const contextOf = (project: KeyState, { id, level_id }: Pick<StoredDocument, 'id' | 'level_id'>) =>
  ({ organization_id: project.organization_id, secret_id: id, level_id, key_version: project.key_version })
