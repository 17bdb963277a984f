import type { KeyObject } from 'node:crypto'
import type { DryRun, PlannedLevel } from '../../../schemas/dry-run.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import { inStep } from '../../crypto/event-loop.ts'
import type { AuditEvent } from '../../repositories/audit/audit.ts'
import { activeKeyOf, ownSecret, type LevelState, type SecretRow } from '../../repositories/levels/levels.ts'
import { compareEntries, emptyEntries, type Entries } from '../../rules/documents/entries.ts'
import { readDocument } from '../../rules/documents/read.ts'
import type { Work } from '../../rules/documents/work.ts'
import { counted } from '../../rules/formats/phrases.ts'
import { dataKeyOf } from '../keys/keys.ts'
import { etagOf, openCurrent, type StoredDocument } from './documents.ts'
import { hasNames } from './open-documents.ts'
import type { Change } from './plan-write.ts'
import { contentOf, eventOfReading } from './read.ts'

/** The document of a level before and after a planned change. */
export interface PlannedChange {
  state: LevelState
  /** The planned change; undefined if nothing changes. A `blob` of null deletes the document. */
  change: Pick<Change, 'blob' | 'record'> | undefined
  etag: string | null
  /** The decrypted documents. Undefined if the server cannot read names, or does not have the new document. */
  texts: { before: string | null, after: string | null } | undefined
}

/**
 * Decrypts the current document of a level, so that `plannedLevel` can compare the document with the planned document.
 * The level must be loaded with `readable`.
 *
 * @param after the decrypted document after the change; undefined if the server does not have this document
 * @param current the decrypted current document, if it is known
 */
export function planChange (
  keyring: Keyring, storageKey: KeyObject, state: LevelState, change: PlannedChange['change'],
  after: string | null | undefined, current?: string
): PlannedChange {
  const own = storedSecret(state)
  const etag = own === undefined ? null : etagOf(storageKey, [own])
  if (!hasNames(state.project) || after === undefined) return { state, change, etag, texts: undefined }
  const before = own === undefined
    ? null
    : current ?? contentOf(openCurrent(storageKey, state, own), dataKeyOf(keyring, activeKeyOf(state)))
  return { state, change, etag, texts: { before, after } }
}

/**
 * The event of a dry run, which has read the document. Undefined if no document was read.
 *
 * @param more further details of the event
 */
export function eventOfDryRun (
  { event }: Pick<Change, 'event'>, { state, texts }: PlannedChange, action: 'secret.decrypt' | 'secret.names',
  more: object = {}
): AuditEvent | undefined {
  const own = ownSecret(state)
  // The request reads no document if the texts are not compared, or if the level never had a document.
  if (texts === undefined || own === undefined) return undefined
  return eventOfReading(state, [own], action, { dry_run: event, ...more }).event
}

const storedSecret = (state: LevelState): SecretRow & StoredDocument | undefined => {
  const own = ownSecret(state)
  return own?.is_stored ? own as SecretRow & StoredDocument : undefined
}

/**
 * Describes a planned change of a level for the response. Parses each document in a step (`inStep`).
 *
 * @param known the names that differ, if they are known
 */
export async function plannedLevel (
  { state, change, etag, texts }: PlannedChange, known?: PlannedLevel['names']
): Promise<PlannedLevel> {
  const { level, target, environment } = state
  return {
    level,
    target: target?.slug ?? null,
    environment: environment?.slug ?? null,
    change: change === undefined ? 'none' : change.blob === null ? 'delete' : etag === null ? 'create' : 'update',
    records_version: change !== undefined && change.record !== null,
    etag,
    names: known !== undefined ? known : texts === undefined ? null : (await compareTexts(state, texts)).names
  }
}

/**
 * Compares the names of a document before and after a change. `names` is null if one of them cannot be parsed, and
 * `isReadable` tells whether the document after the change can. Parses each document in a step (`inStep`).
 */
export async function compareTexts (
  { project }: LevelState, { before, after }: NonNullable<PlannedChange['texts']>, work?: Work
): Promise<{ names: PlannedLevel['names'], isReadable: boolean }> {
  const read = async (text: string | null): Promise<Entries | undefined> => {
    if (text === null) return emptyEntries()
    return inStep(() => readDocument(project.secret_format, text, undefined, work))
  }
  const [from, to] = [await read(before), await read(after)]
  if (from === undefined || to === undefined) return { names: null, isReadable: to !== undefined }
  const { added, changed, removed } = compareEntries(from, to)
  return { names: { added, changed, removed }, isReadable: true }
}

/** The common fields of all responses to a dry run of one level. */
export function dryRunAnswer (planned: PlannedLevel): { message: string, dry_run: DryRun } {
  return { message: `${DRY_RUN_MESSAGE} ${sentenceOf(planned)}`, dry_run: { levels: [planned], more: 0 } }
}

/** The beginning of the message of each dry run. */
export const DRY_RUN_MESSAGE = 'Dry run: nothing was changed.'

function sentenceOf ({ change, names }: PlannedLevel): string {
  if (change === 'none') return 'The document already is as requested.'
  const what = `The request would ${change} the document`
  if (names === null) return `${what}, whose names the server cannot compare.`
  const { added, changed, removed } = names
  return `${what}: ${counted(added.length, 'name')} added, ${changed.length} changed, ${removed.length} removed.`
}
