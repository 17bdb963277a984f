import type { KeyObject } from 'node:crypto'
import { ulid } from 'ulidx'
import type { VersionAction } from '../../../schemas/versions.ts'
import type { Counter } from '../../db/rows/counter.ts'
import { placeDetails, type AuditEvent } from '../../repositories/audit/audit.ts'
import { ownSecret, type LevelState, type SecretRow } from '../../repositories/levels/levels.ts'
import type { SecretWrite } from '../../repositories/secrets/secrets.ts'
import { requireBytes } from '../../rules/billing.ts'
import { sealCurrent, sealVersion, sizeOf } from './documents.ts'

/** The change of a level by a write. `blob` is the new document; null deletes the document. */
export interface Change {
  blob: string | null
  /** The version to record, with its content; null if the request has `no_backup`. */
  record: { action: VersionAction, blob: string, restored_from?: number } | null
  event: AuditEvent['action']
  /**
   * Whether the key proof reveals the client's key: only if the operator allows such proofs. The event records this.
   */
  revealed?: boolean
}

/** The result of a write: the level before the write, and the new document row. */
export interface Written { state: LevelState, secret: SecretRow }

/** A write with its encrypted rows and its event. */
export interface Planned extends SecretWrite, Written {
  event: AuditEvent
  /** The change of the organization's stored bytes. */
  growth: number
}

/**
 * The level with the document row of an earlier write in the transaction, if any. A write needs only the document that
 * it changes, so the result has no other documents.
 */
export function withDocument (state: LevelState, earlier: readonly Written[]): LevelState {
  const newest = earlier.findLast(({ secret }) => secret.level_id === state.level_id)
  return newest === undefined ? state : { ...state, secrets: [newest.secret] }
}

/** Prepares the rows of a write. `counter` includes earlier writes of the transaction. Throws `plan_limit_reached`. */
export function planOf (
  { actor, storageKey }: { actor: Planned['actor'], storageKey: KeyObject }, state: LevelState,
  { blob, record, event, revealed = false }: Change, counter: Pick<Counter, 'next_version' | 'stored_bytes' | 'plan' | 'at'>
): Planned {
  const { organization_id, project, target, environment, level, level_id } = state
  const before = ownSecret(state)
  const context = { organization_id, secret_id: before?.id ?? ulid(), level_id, key_version: project.key_version }
  const revision = (before?.revision ?? 0) + 1
  const size_bytes = blob === null ? 0 : sizeOf(blob)
  const version = record && {
    id: counter.next_version,
    action: record.action,
    sealed: sealVersion(storageKey, context, counter.next_version, revision, record.blob),
    size_bytes: sizeOf(record.blob),
    restored_from: record.restored_from ?? null
  }
  const growth = size_bytes - (before?.size_bytes ?? 0) + (version?.size_bytes ?? 0)
  requireBytes(counter.plan, counter.stored_bytes, growth)
  const secret: SecretRow = {
    id: context.secret_id,
    organization_id,
    project_id: project.id,
    target_id: target?.id ?? null,
    environment_id: environment?.id ?? null,
    level,
    level_id,
    revision,
    key_version: context.key_version,
    is_stored: blob !== null,
    sealed: blob === null ? null : sealCurrent(storageKey, context, revision, blob),
    size_bytes,
    mac: null,
    version: version?.id ?? null,
    history_id: before?.history_id ?? context.secret_id,
    version_count: (before?.version_count ?? 0) + (version === null ? 0 : 1),
    recorded_revision: version === null ? before?.recorded_revision ?? null : revision
  }
  const details = {
    ...placeDetails(state),
    level,
    revision,
    key_version: context.key_version,
    version: secret.version,
    bytes: size_bytes,
    restored_from: version?.restored_from ?? null,
    ...(revealed && { key_proof_reveals_key: true })
  }
  return {
    state,
    actor,
    at: counter.at,
    wasStored: before?.is_stored ?? false,
    secret,
    version,
    event: { action: event, resource_type: 'secret', resource_id: secret.id, details },
    growth
  }
}
