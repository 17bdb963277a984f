import type { KeyObject } from 'node:crypto'
import type { Plan } from '../../../schemas/organizations.ts'
import { openBlob, sealBlob } from '../../crypto/blob.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import type { Counter } from '../../db/rows/counter.ts'
import type { Db } from '../../db/database.ts'
import { placeDetails, type AuditEvent } from '../../repositories/audit/audit.ts'
import { findActiveKeyOf, type KeyState } from '../../repositories/keys/encryption-keys.ts'
import {
  countWaiting, findLeft, findWaiting, finishReEncryption, growHistories, listOldestWaiting, listWaiting, moveVersions,
  type Cursor, type MovedVersion, type OldVersion
} from '../../repositories/secrets/re-encryption.ts'
import { lockProject } from '../../repositories/levels/projects.ts'
import type { Organization } from '../../repositories/people/principals.ts'
import { fail } from '../../rules/api-error.ts'
import { requireBytes } from '../../rules/billing.ts'
import { contextOf, openVersion, sealVersion, sizeOf } from '../documents/documents.ts'
import { dataKeyOf, storageKeyOf, unlessTampered } from '../keys/keys.ts'
import { validateProof, provesAnyKey, refuseRevealing, revealsKey } from '../keys/proofs.ts'

type Owner = Pick<Organization, 'id' | 'storage_key'>

// Maximum size of a batch. A small batch blocks other requests for milliseconds only.
const BATCH = { versions: 25, bytes: 256 * 1024 }

// Maximum bytes of versions in a response. The client can send all these versions back in one request.
const MAX_PENDING_BYTES = 1024 * 1024

/**
 * `last` is the cursor. `moved` and `locked` count re-encrypted and locked versions. `end`: the batch was empty. Then
 * `left` is what is left of the whole project, unless this is more than the unreadable versions of the pass.
 */
interface Batch { last: Cursor, moved: number, locked: number, unreadable: number[], end: boolean, left?: Left }

/** The number of versions under former keys, and the key version of the project. */
export interface Left { versions: number, key_version: number }

/**
 * Re-encrypts the next versions of a server-managed project, in the short transaction of the caller. Two instances
 * never re-encrypt the same version: the first one locks the row, and then the version is no longer under a former key.
 */
export async function moveBatch (
  db: Db, keyring: Keyring, organization: Owner, projectId: string, { after, unreadable: known }: {
    after: Cursor
    unreadable: number
  }
): Promise<Batch> {
  const end = { last: after, moved: 0, locked: 0, unreadable: [], end: true }
  const project = await lockProject(db, organization.id, { id: projectId }, 'share')
  if (project === undefined || project.encryption_type !== 'server') return end
  const batch = fitting(await listWaiting(db, project, after, BATCH.versions), BATCH.bytes)
  const last = batch.at(-1)
  if (last === undefined) {
    const remaining = await findLeft(db, project, known)
    return remaining === 'more' ? end : { ...end, left: { versions: remaining.left, key_version: project.key_version } }
  }
  const storageKey = storageKeyOf(keyring, organization)
  const dataKey = dataKeyOf(keyring, await findActiveKeyOf(db, project))
  const unreadable: number[] = []
  const unlocked = await findWaiting(db, project, batch.map(({ id }) => id), null, 'skip')
  const moved = unlocked.flatMap((version) => {
    const plain = unlessTampered(() =>
      openBlob(dataKeyOf(keyring, version.key), blobOf(storageKey, project, version)))
    // The version was manipulated, or a client stored invalid content. The version stays unchanged.
    if (plain === undefined) {
      unreadable.push(version.id)
      return []
    }
    // The size does not change, because the plaintext and the format are the same.
    const blob = sealBlob(dataKey, plain)
    plain.fill(0)
    return sealed(storageKey, project, version, blob)
  })
  if (moved.length > 0) await moveVersions(db, project, moved)
  return { last, moved: moved.length, locked: batch.length - unlocked.length, unreadable, end: false }
}

/**
 * Ends a re-encryption that has left only unreadable versions, in the transaction of the caller. Does not look for them
 * again, because that takes a look-up for each document while other changes of the organization wait. Without another
 * key, no version is added under a former key. Returns the event of the re-encryption and the number of re-encrypted
 * versions. Undefined if the project has another key meanwhile, or if the re-encryption has ended.
 */
export async function endReEncryption (
  db: Db, organizationId: string, projectId: string, left: Left, unreadable: number
): Promise<{ moved: number, event: AuditEvent } | undefined> {
  const project = await lockProject(db, organizationId, { id: projectId }, 'share')
  if (project?.key_version !== left.key_version) return undefined
  const done = await finishReEncryption(db, project, left.versions)
  if (done === undefined) return undefined
  const { moved } = done
  return { moved, event: reEncryptionOf(project, { key_version: project.key_version, versions: moved, unreadable }) }
}

/** A page of versions that the client must re-encrypt, oldest first. `unreadable` counts manipulated versions. */
export async function listPending (
  { db, keyring }: { db: Db, keyring: Keyring }, organization: Organization, project: KeyState,
  { limit, after }: { limit: number, after: number }
) {
  const { retention_days: retentionDays } = organization.plan
  const storageKey = storageKeyOf(keyring, organization)
  const batch = fitting(await listOldestWaiting(db, project, { limit, after, retentionDays }), MAX_PENDING_BYTES)
  const found = await findWaiting(db, project, batch.map(({ id }) => id), retentionDays)
  const versions = found.flatMap((version) => {
    const content = unlessTampered(() => blobOf(storageKey, project, version))
    return content === undefined ? [] : { id: version.id, content, key_version: version.key_version }
  })
  const remaining = await countWaiting(db, project, retentionDays)
  return { versions, unreadable: found.length - versions.length, remaining }
}

interface Sent { versions: readonly { id: number, content: string }[], key_proof: string }

/** Versions that a client has re-encrypted, encrypted for the database. `growth`: of the stored bytes. */
export interface Submission {
  project: KeyState
  moved: MovedVersion[]
  grown: { secret_id: string, growth: number }[]
  growth: number
  revealed: boolean
}

/** Validates versions that a client has re-encrypted. `key_version_conflict` for a proof of a former key. */
export async function loadSubmission (
  db: Db, { keyring, config }: { keyring: Keyring, config: Parameters<typeof refuseRevealing>[0] },
  organization: Organization, projectId: string, sent: Sent
): Promise<Submission> {
  const storageKey = storageKeyOf(keyring, organization)
  const contents = new Map(sent.versions.map(({ id, content }) => [id, content]))
  const project = await lockProject(db, organization.id, { id: projectId }, 'share') ?? fail('not_found')
  if (project.encryption_type !== 'client') fail('server_managed_encryption')
  if (validateProof(keyring, await findActiveKeyOf(db, project), sent.key_proof) !== 'right') {
    const isFormer = await provesAnyKey(db, storageKey, project, sent.key_proof)
    fail(isFormer ? 'key_version_conflict' : 'key_proof_mismatch')
  }
  const revealed = refuseRevealing(config, sent.versions.some(({ content }) => revealsKey(sent.key_proof, content)))
  const waiting = await findWaiting(db, project, [...contents.keys()], organization.plan.retention_days, 'wait')
  if (waiting.length !== sent.versions.length) fail('key_version_conflict')
  const moved = waiting.map((version) => sealed(storageKey, project, version, contents.get(version.id)!))
  const grown = waiting.map(({ secret_id, size_bytes }, i) =>
    ({ secret_id, growth: moved[i]!.size_bytes - size_bytes })).filter(({ growth }) => growth !== 0)
  return { project, moved, grown, growth: grown.reduce((sum, { growth }) => sum + growth, 0), revealed }
}

/** Stores versions that a client has re-encrypted, all or none. Throws `plan_limit_reached`. */
export async function writeSubmission (
  db: Db, { project, moved, grown, growth, revealed }: Submission, { retention_days: retentionDays }: Plan,
  counter: Pick<Counter, 'plan' | 'stored_bytes'>
): Promise<{ updated: number, remaining: number, event: AuditEvent }> {
  if (growth > 0) requireBytes(counter.plan, counter.stored_bytes, growth)
  await moveVersions(db, project, moved)
  if (grown.length > 0) await growHistories(db, project, grown)
  const remaining = await countWaiting(db, project, retentionDays)
  if (remaining === 0) await finishReEncryption(db, project, 0)
  const details = {
    key_version: project.key_version,
    versions: moved.length,
    remaining,
    ...(revealed && { key_proof_reveals_key: true })
  }
  return { updated: moved.length, remaining, event: { ...reEncryptionOf(project, details), growth } }
}

function blobOf (storageKey: KeyObject, project: KeyState, version: OldVersion): string {
  const { secret_id: id, level_id, sealed } = version
  return openVersion(storageKey, project.organization_id, { version, secret: { id, level_id }, sealed })
}

function sealed (
  storageKey: KeyObject, project: KeyState, { id, secret_id, level_id, revision }: OldVersion, blob: string
): MovedVersion {
  const context = contextOf(project, { id: secret_id, level_id })
  return { id, sealed: sealVersion(storageKey, context, id, revision, blob), size_bytes: sizeOf(blob) }
}

const reEncryptionOf = (project: KeyState, details: AuditEvent['details']): AuditEvent => ({
  action: 'history.re_encrypt',
  resource_type: 'project',
  resource_id: project.id,
  details: { ...placeDetails({ project }), ...details }
})

// The first versions whose total size is at most `most` bytes, but at least one version.
function fitting<V extends { size_bytes: number }> (versions: readonly V[], most: number): V[] {
  let bytes = 0
  for (const [i, { size_bytes }] of versions.entries()) {
    bytes += size_bytes
    if (bytes > most && i > 0) return versions.slice(0, i)
  }
  return [...versions]
}
