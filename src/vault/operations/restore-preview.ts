import { DRY_RUN_LIMITS, type PlannedLevel } from '../../../schemas/dry-run.ts'
import { findStoredBytes } from '../../repositories/billing/plans.ts'
import {
  comparePositions, findLevelsOfSecrets, ownSecret, positionOf, type LevelState, type SecretRow
} from '../../repositories/levels/levels.ts'
import type { Organization } from '../../repositories/people/principals.ts'
import { listChangedLevels, type ChangedLevel } from '../../repositories/secrets/point-in-time.ts'
import { findVersionsTogether, type FullVersion } from '../../repositories/secrets/versions.ts'
import { fail, refuse } from '../../rules/api-error.ts'
import { workOfDocument } from '../../rules/documents/work.ts'
import { requireKeptAt } from '../../rules/moments.ts'
import { requireBytes } from '../../rules/billing.ts'
import { sizeOf, type StoredDocument } from '../documents/documents.ts'
import { compareTexts, planChange, plannedLevel, type PlannedChange } from '../documents/dry-run.ts'
import { batchesOf, isSpent, type ReadContext } from '../documents/open-documents.ts'
import { restoredContent } from './restore-to.ts'

type Context = Omit<ReadContext, 'keyring'> & { vault: Parameters<typeof restoredContent>[0] }

/** A change of a level. `isUtf8`: whether the document to restore is valid UTF-8. */
type Planned = PlannedChange & { isUtf8?: boolean }

export interface RestorePreview {
  /** The levels that the restore would change, in the order of `listLevels`. */
  levels: PlannedLevel[]
  restored: number
  emptied: number
  unreadable: number
  /** The number of levels that were not compared, because of the limits (`isFull`, `DRY_RUN_LIMITS`). */
  more: number
  /** The current documents that were compared. */
  opened: SecretRow[]
}

/**
 * Computes what `restoreTo` would change. Takes no locks, so that writes do not wait. If a level changes meanwhile, the
 * preview has the level as it was when its batch was loaded. Throws the errors of the restore, except errors of levels
 * beyond the limits.
 */
export async function previewRestore (
  context: Context, organization: Organization, project: LevelState['project'], at: Date
): Promise<RestorePreview> {
  const { vault, db, storageKey, waitFor, work, pace } = context
  const { plan } = organization
  const listed = await waitFor(listChangedLevels(db, project, at, plan.retention_days, DRY_RUN_LIMITS.written))
  if (listed === undefined) return fail('not_found', { resource: 'project', at })
  if (listed === 'future') return refuse('at', 'Lies in the future')
  const { levels: changed, unread } = listed
  requireKeptAt(changed, plan)
  const preview: RestorePreview = { levels: [], restored: 0, emptied: 0, unreadable: 0, more: 0, opened: [] }
  const found: { state: LevelState, level: PlannedLevel }[] = []
  let [bytes, growth, compared] = [0, 0, 0]

  for (const batch of batchesOf(changed.map(withSize))) {
    if (isFull()) break
    const page = batch.slice(0, DRY_RUN_LIMITS.levels - compared)
    const [states, versions] = await waitFor(Promise.all([
      findLevelsOfSecrets(db, organization.id, page.map(({ id }) => id)), versionsOf(page)
    ]))
    for (const [i, { id, size_bytes }] of page.entries()) {
      if (isFull()) break
      const state = states[i]
      work.done += workOfDocument(size_bytes)
      // Undefined if the level was deleted after the list was loaded.
      if (state !== undefined) await add(state, versions.get(id))
      bytes += size_bytes
      compared++
    }
  }
  if (growth > 0) requireBytes(plan, await waitFor(findStoredBytes(db, organization.id)), growth)
  found.sort((one, other) => comparePositions(positionOf(one.state), positionOf(other.state)))
  return { ...preview, levels: found.map(({ level }) => level), more: changed.length - compared + unread }

  function isFull (): boolean {
    return compared >= DRY_RUN_LIMITS.levels || bytes >= DRY_RUN_LIMITS.bytes || (compared > 0 && isSpent(context))
  }

  async function add (state: LevelState, version: (() => FullVersion | undefined) | undefined) {
    const began = performance.now()
    const own = ownSecret(state)!
    const planned: Planned | undefined = version === undefined ? emptied(state) : restored(state, version() ?? fail('not_found'))
    preview.opened.push(own)
    if (planned !== undefined) {
      const { texts, isUtf8 = true } = planned
      const compared = texts && await compareTexts(state, texts, work)
      preview.unreadable += compared === undefined || (compared.isReadable && isUtf8) ? 0 : 1
      found.push({ state, level: await plannedLevel(planned, compared?.names) })
    }
    await pace(began)
  }

  function emptied (state: LevelState): PlannedChange | undefined {
    if (!ownSecret(state)!.is_stored) return undefined
    preview.emptied++
    // A deletion records the current document as a version.
    const change = { blob: null, record: { action: 'delete' as const, blob: '' } }
    return planChange(vault.keyring, storageKey, state, change, null)
  }

  function restored (state: LevelState, version: FullVersion): Planned | undefined {
    const own = ownSecret(state)!
    const document = own.is_stored ? own as StoredDocument : undefined
    const replacement = restoredContent(vault, storageKey, { ...state, key: state.key! }, document, version)
    if (replacement === undefined) return undefined
    const { accepted: { blob, plain }, before } = replacement
    preview.restored++
    growth += 2 * sizeOf(blob) - own.size_bytes
    const change = { blob, record: { action: 'restore' as const, blob, restored_from: version.version.id } }
    const text = plain?.toString()
    const isUtf8 = text === undefined || Buffer.from(text).equals(Buffer.from(plain!))
    return { ...planChange(vault.keyring, storageKey, state, change, text, before?.toString()), isUtf8 }
  }

  // The versions to restore, by the ids of their secrets.
  async function versionsOf (page: readonly ChangedLevel[]) {
    const toRestore = page.filter(({ held }) => held === 'version')
    const versions = await findVersionsTogether(db, toRestore.map(({ version }) =>
      ({ organization_id: organization.id, id: version! })))
    return new Map(toRestore.map(({ id }, i) => [id, versions[i]!]))
  }
}

// Adds the bytes of the version to restore to the bytes of the current document.
const withSize = (level: ChangedLevel) =>
  ({ ...level, size_bytes: level.size_bytes + (level.held === 'version' ? level.version_bytes! : 0) })
