import type { KeyObject } from 'node:crypto'
import { openBlob } from '../../crypto/blob.ts'
import { yieldToEventLoop } from '../../crypto/event-loop.ts'
import type { Counter } from '../../db/rows/counter.ts'
import type { Db } from '../../db/database.ts'
import { eventOf, placeDetails, type Actor, type AuditEvent } from '../../repositories/audit/audit.ts'
import { findActiveKeyOf, type KeyRow, type KeyState } from '../../repositories/keys/encryption-keys.ts'
import { listChangedLevels, type ChangedLevel } from '../../repositories/secrets/point-in-time.ts'
import { activeKeyOf } from '../../repositories/levels/levels.ts'
import type { Organization } from '../../repositories/people/principals.ts'
import {
  countDocuments, findSecrets, isDocument, replaceDocuments, takeVersionIds
} from '../../repositories/secrets/rotations.ts'
import { findVersionsTogether, type FullVersion } from '../../repositories/secrets/versions.ts'
import { fail, refuse } from '../../rules/api-error.ts'
import { requireKeptAt } from '../../rules/moments.ts'
import { requireBytes } from '../../rules/billing.ts'
import { acceptRestored, notesOf, type Accepted } from '../documents/accept.ts'
import { contextOf, openCurrent, sealCurrent, sizeOf, type StoredDocument } from '../documents/documents.ts'
import { dataKeyOf, storageKeyOf } from '../keys/keys.ts'
import { leaveHalf } from './long-operations.ts'
import { inBatches, recordDocuments } from './rotate.ts'

type Vault = Parameters<typeof acceptRestored>[0]

interface LockedProject {
  vault: Vault
  db: Db
  actor: Actor
  organization: Organization
  project: KeyState
  key: KeyRow
  storageKey: KeyObject
}

/** A level whose document is restored from a version. */
type Restored = ChangedLevel & { held: 'version', version: number }

export interface RestoredTo { restored: number, emptied: number, unreadable: number, event: AuditEvent }

/**
 * Restores all documents of a project to a moment: `write` of a long change. Replaces each document whose content was
 * different at that moment, and records the restored content as a new version. Deletes each document that did not exist
 * at that moment, and records its content as a version. Makes the checks of a single restore, in this order: retention,
 * missing versions, key. `unreadable` is the number of restored documents that do not parse in the project's format.
 */
export function restorationOf (
  vault: Vault, organization: Organization, actor: Actor, at: Date, beforeEffect: () => Promise<void>
) {
  return async (db: Db, project: KeyState, lockCounter: () => Promise<Counter>): Promise<RestoredTo> => {
    const key = await findActiveKeyOf(db, project)
    const storageKey = storageKeyOf(vault.keyring, organization)
    const held: LockedProject = { vault, db, actor, organization, project, key, storageKey }
    const found = await listChangedLevels(db, project, at, organization.plan.retention_days, null)
    if (found === undefined) return fail('not_found', { resource: 'project', at })
    if (found === 'future') return refuse('at', 'Lies in the future')
    const { levels } = found
    requireKeptAt(levels, organization.plan)
    const toRestore = levels.filter((level): level is Restored => level.held === 'version')
    const toEmpty = levels.filter(({ held }) => held === 'none')
    await beforeEffect()
    const { restored, growth, unreadable } = await replaceContents(held, toRestore)
    let first_version: number | null = null
    const changed = [...restored, ...toEmpty]
    if (changed.length > 0) {
      const counter = await lockCounter()
      // A deletion does not change the stored bytes, because the document becomes a version.
      requireBytes(counter.plan, counter.stored_bytes, growth)
      const ids = takeVersionIds(counter, changed.length)
      const versions = new Map(changed.map(({ id, version, held }) => [id, held === 'version' ? version : null]))
      await recordDocuments(held, changed, ids, ({ id }) => {
        const restored_from = versions.get(id)!
        return { action: restored_from === null ? 'delete' : 'restore', restored_from }
      })
      await countDocuments(db, project, gainedBy(changed))
      first_version = ids.first_version
    }
    const details = {
      ...placeDetails({ project }),
      at: at.toISOString(),
      restored: restored.length,
      emptied: toEmpty.length,
      first_version
    }
    const event = { ...eventOf('project.restore', project.id, details), growth }
    return { restored: restored.length, emptied: toEmpty.length, unreadable, event }
  }
}

// Replaces documents whose content differs. Returns their levels, the growth of the stored bytes, and the number of
// documents that do not parse. New content counts twice in the growth: as the document and as its version.
async function replaceContents (held: LockedProject, levels: readonly Restored[]) {
  const { db, vault, organization, project, key, storageKey } = held
  const state = { organization_id: organization.id, project, key }
  const byId = new Map(levels.map((level) => [level.id, level]))
  const restored: Restored[] = []
  let growth = 0
  let unreadable = 0
  const sizes = levels.map(({ id, size_bytes, version_bytes }) => ({ id, size_bytes: size_bytes + version_bytes! }))
  await inBatches(sizes, async (ids) => {
    const began = performance.now()
    const found = await findSecrets(db, organization.id, ids)
    const versions = await findVersionsTogether(db, found.map(({ id }) =>
      ({ organization_id: organization.id, id: byId.get(id)!.version })))
    const replaced: Parameters<typeof replaceDocuments>[2][number][] = []
    for (const [i, document] of found.entries()) {
      // A document can take tens of milliseconds to parse, so each has a turn of the event loop of its own.
      await yieldToEventLoop()
      const replacement = restoredContent(
        vault, storageKey, state, isDocument(document) ? document : undefined, versions[i]!() ?? fail('not_found')
      )
      if (replacement === undefined) continue
      const { accepted } = replacement
      const { blob } = accepted
      if (notesOf(held, accepted).warning !== undefined) unreadable++
      const size_bytes = sizeOf(blob)
      growth += 2 * size_bytes - document.size_bytes
      restored.push({ ...byId.get(document.id)!, size_bytes })
      const sealed = sealCurrent(storageKey, contextOf(project, document), document.revision + 1, blob)
      replaced.push({ document, sealed, size_bytes })
    }
    await yieldToEventLoop()
    await replaceDocuments(db, project, replaced)
    await leaveHalf(began)
  })
  return { restored, growth, unreadable }
}

/**
 * The content to restore, and the decrypted current document if it was compared. Undefined if the level has this
 * content already. `document` is undefined if it was deleted.
 */
export function restoredContent (
  vault: Parameters<typeof acceptRestored>[0], storageKey: KeyObject, state: Parameters<typeof acceptRestored>[2],
  document: StoredDocument | undefined, version: FullVersion
): { accepted: Accepted, before?: Buffer | undefined } | undefined {
  const accepted = acceptRestored(vault, storageKey, state, version, {})
  const { blob, plain } = accepted
  if (document === undefined) return { accepted }
  const current = openCurrent(storageKey, state, document)
  if (current === blob) return undefined
  if (state.project.encryption_type === 'client') return { accepted }
  const before = openBlob(dataKeyOf(vault.keyring, activeKeyOf(state)), current)
  const isSame = before !== undefined && plain !== undefined && before.equals(Buffer.from(plain))
  return isSame ? undefined : { accepted, before }
}

// For each target, the number of added documents minus the number of removed documents. `target_id` is null for the
// document of the project itself.
function gainedBy (changed: readonly ChangedLevel[]) {
  const gained = new Map<string | null, number>()
  for (const { target_id, held, is_stored } of changed) {
    const documents = Number(held === 'version') - Number(is_stored)
    gained.set(target_id, (gained.get(target_id) ?? 0) + documents)
  }
  return [...gained].filter(([, documents]) => documents !== 0)
    .map(([target_id, documents]) => ({ target_id, documents }))
}
