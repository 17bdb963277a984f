import type { KeyObject } from 'node:crypto'
import {
  LEVELS, type Level, type LevelDocument, type Merge, type RetrieveBody, type SecretsAnswer
} from '../../../schemas/secrets.ts'
import { IntegrityError } from '../../crypto/at-rest.ts'
import { openBlob } from '../../crypto/blob.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import { inStep, yieldToEventLoop } from '../../crypto/event-loop.ts'
import { placeDetails, type AuditEvent } from '../../repositories/audit/audit.ts'
import { activeKeyOf, placeOf, type LevelState, type SecretRow } from '../../repositories/levels/levels.ts'
import type { PastDocument } from '../../repositories/secrets/point-in-time.ts'
import type { FullVersion } from '../../repositories/secrets/versions.ts'
import { emptyEntries, type DocumentFormat, type Entries, type NamedFormat } from '../../rules/documents/entries.ts'
import { documentError, readDocument } from '../../rules/documents/read.ts'
import { fail, refuse } from '../../rules/api-error.ts'
import { inherits, isInside, type Slice } from '../../rules/slices.ts'
import { etagOf, openCurrent, openPast, openVersion } from './documents.ts'
import { dataKeyOf } from '../keys/keys.ts'

type StoredSecret = SecretRow & { sealed: Buffer }

export interface Reading {
  action: string
  decrypt: boolean
  merge: Merge
  raw: boolean
  filters?: RetrieveBody['filters'] | undefined
  /** Reads the documents that existed at this moment. */
  at?: Date | undefined
  /** Whether the request is a retrieve request (with a body), whose response may include the values. */
  isRetrieve: boolean
  /** The path of the request, without its query. */
  path: string
}

/** The documents of a level and of its ancestors that a caller with these restrictions may read. */
export const visibleSecrets = (state: LevelState, slices: readonly Slice[]): SecretRow[] =>
  viewOf(state, storedSecrets(state), slices, false).documents

/** What a caller with restrictions may read of the documents of a level and of the levels above. */
export interface View<D = SecretRow> {
  /** The documents of the read, project first. */
  documents: D[]
  /** The levels above of which only the merged values and names may be shown. */
  onlyMerged: readonly Level[]
  /** The levels above, with or without a document, that the restrictions exclude from a merged read. */
  leftOut: readonly Level[]
}

/**
 * Selects the documents of a level and of its ancestors for a merged read, or only its visible documents. A merged read
 * also uses the levels above if the restrictions include what the level inherits.
 */
export function viewOf<D extends { level: Level }> (
  state: LevelState, documents: readonly D[], slices: readonly Slice[], isMerged: boolean
): View<D> {
  const isVisible = (level: Level) => isInside(slices, placeOf(state, level))
  const above = LEVELS.slice(0, LEVELS.indexOf(state.level))
  const hidden = isMerged ? above.filter((level) => !isVisible(level)) : []
  const isInheriting = hidden.length > 0 && inherits(slices, placeOf(state))
  const onlyMerged = isInheriting ? hidden : []
  return {
    documents: documents.filter(({ level }) => onlyMerged.includes(level) || isVisible(level)),
    onlyMerged,
    leftOut: isInheriting ? [] : hidden
  }
}

/** The stored documents of a level and of its ancestors. */
export const storedSecrets = ({ secrets }: LevelState): SecretRow[] => secrets.filter(({ is_stored }) => is_stored)

/** The part of an ETag that depends on the restrictions: the response names or hides levels because of them. */
export const restrictionsInEtag = ({ onlyMerged, leftOut }: View<unknown>): string[] =>
  onlyMerged.length + leftOut.length === 0 ? [] : [`merged ${onlyMerged.join()}`, `left out ${leftOut.join()}`]

/** The format of a project's documents. Throws 422 if the server cannot read names in the documents. */
export function requireNames ({ project: { encryption_type, secret_format } }: LevelState): NamedFormat {
  if (encryption_type === 'client') fail('client_managed_encryption')
  return secret_format === 'text'
    ? refuse('project', 'A `text` project has no names: read and store whole documents', 'invalid_parameter_combination')
    : secret_format
}

/** The columns of a document that a response contains besides the content. */
type Shown = Pick<SecretRow, 'id' | 'level' | 'revision' | 'key_version' | 'version'>

/**
 * A part of the ETag of each response with names or values of documents. Raise this number with each change of the
 * values that the same documents give, so that no client gets 304 for the earlier values. Release 0.1.0 had no number.
 */
export const VALUES_EDITION = '2'

/** The ETag of a response, from its documents and the parameters of the request. */
export function readingEtag (
  storageKey: KeyObject, state: LevelState, view: View<Shown>, reading: Reading
): string {
  const { documents: visible } = view
  const { decrypt, merge, raw, filters, isRetrieve, at } = reading
  // Re-encryption changes the key version of a version, but not its revision.
  const past = at === undefined ? [] : [at.toISOString(), ...visible.map(({ key_version }) => String(key_version))]
  return etagOf(
    storageKey, visible, isRetrieve ? 'retrieve' : 'read', String(decrypt), merge, String(raw),
    JSON.stringify(filters ?? null), state.project.secret_format, state.project.slug, state.target?.slug ?? '',
    state.environment?.slug ?? '', ...decrypt ? [VALUES_EDITION] : [], ...past, ...restrictionsInEtag(view)
  )
}

/** Contents by level: blobs, or decrypted documents. */
export type Contents = ReadonlyMap<Level, string>

export async function currentContents (
  keyring: Keyring, storageKey: KeyObject, state: LevelState, visible: readonly SecretRow[], decrypt: boolean
): Promise<Contents> {
  const dataKey = decrypt && visible.length > 0 ? dataKeyOf(keyring, activeKeyOf(state)) : undefined
  return contentsOf(visible, (secret) => contentOf(openCurrent(storageKey, state, secret as StoredSecret), dataKey))
}

/** The contents of past documents, each decrypted with its own key. 422 if a client manages one of the keys. */
export async function pastContents (
  keyring: Keyring, storageKey: KeyObject, visible: readonly PastDocument[], decrypt: boolean
): Promise<Contents> {
  if (decrypt && visible.some(({ key }) => key.managed === 'client')) fail('client_managed_encryption')
  return contentsOf(visible, (document) =>
    contentOf(openPast(storageKey, document), decrypt ? dataKeyOf(keyring, document.key) : undefined))
}

/** The decrypted content of a version. 422 if a client manages the key. */
export async function versionContents (
  keyring: Keyring, storageKey: KeyObject, found: FullVersion
): Promise<Contents> {
  const { version, key } = found
  if (key.managed === 'client') fail('client_managed_encryption')
  return contentsOf([version], () =>
    contentOf(openVersion(storageKey, key.organization_id, found), dataKeyOf(keyring, key)))
}

/** The total length of decrypted documents, which is about the size of a response with these documents. */
export const charactersOf = (documents: Contents): number =>
  [...documents.values()].reduce((sum, { length }) => sum + length, 0)

/** What an audit event of a read is about. */
export type Subject = Pick<LevelState, 'level' | 'level_id' | 'project' | 'target' | 'environment'> |
  { level: 'organization', level_id: string }

/** The audit event for a read of documents of a level or an organization, and the bytes of their content. */
export function eventOfReading (
  subject: Subject, visible: readonly Pick<SecretRow, 'id' | 'revision' | 'sealed'>[],
  action: 'secret.decrypt' | 'secret.names' | 'version.read', more: object = {}
): { event: AuditEvent, bytes: number } {
  const { level, level_id } = subject
  const details = { ...('project' in subject && placeDetails(subject)), ...documentDetails(visible), ...more }
  const bytes = visible.reduce((sum, { sealed }) => sum + (sealed?.length ?? 0), 0)
  return { event: { action, resource_type: level, resource_id: level_id, details }, bytes }
}

/** The documents that an audit event names. */
export const documentDetails = (documents: readonly Pick<SecretRow, 'id' | 'revision'>[]) => ({
  secrets: documents.map(({ id }) => id).join(' '),
  revisions: documents.map(({ revision }) => revision).join(' ')
})

/** The decryption of a document with at least this length takes milliseconds. */
const LARGE_DOCUMENT = 64 * 1024

// Decrypts documents. Yields to the event loop after each large document.
async function contentsOf<D extends Pick<Shown, 'level'>> (
  documents: readonly D[], open: (document: D) => string
): Promise<Contents> {
  const contents = new Map<Level, string>()
  for (const document of documents) {
    const content = open(document)
    contents.set(document.level, content)
    if (content.length >= LARGE_DOCUMENT) await yieldToEventLoop()
  }
  return contents
}

/** The response to a read: with `raw` an object of names and values, otherwise the documents in the requested form. */
export async function answerReading (
  storageKey: KeyObject, state: LevelState, view: View<Shown>, documents: Contents, reading: Reading
): Promise<SecretsAnswer | Record<string, string>> {
  const { merge, raw, filters } = reading
  if (!raw) return toAnswer(state, reading, view, documents, storageKey)
  const levels = merge === 'true' ? LEVELS : [state.level]
  return filterValues(await valuesOf(state, documents, levels, refuseUnreadable(view)), filters)
}

/** The decrypted document; without a data key, the encrypted blob. */
export function contentOf (blob: string, dataKey: KeyObject | undefined): string {
  if (dataKey === undefined) return blob
  // The content was validated when it was stored. So if it does not decrypt, the blob was manipulated.
  const plain = openBlob(dataKey, blob)
  if (plain === undefined) throw new IntegrityError()
  return plain.toString('utf8')
}

/**
 * The merged values of a level and its ancestors. 422 for an invalid document. Calls `pace` after each document;
 * without `pace`, parses each document in a step (`inStep`).
 */
export const mergedValues = async (
  state: LevelState, documents: Contents, view: Pick<View<unknown>, 'onlyMerged'>, pace?: Pace
): Promise<Entries> => valuesOf(state, documents, LEVELS, refuseUnreadable(view), pace)

type Pace = (began: number) => Promise<void>

/** For each name in the documents, the levels that have the name, project first. 422 for an invalid document. */
export async function levelsByName (
  { project }: LevelState, documents: Contents, view: View<unknown>
): Promise<Map<string, Level[]>> {
  const found = new Map<string, Level[]>()
  const refuseDocument = refuseUnreadable(view)
  for (const [level, text] of documents) {
    const { secret_format } = project
    const entries = await inStep(() => readDocument(secret_format, text)) ?? refuseDocument(level, secret_format, text)
    for (const name of Object.keys(entries)) {
      const levels = found.get(name)
      if (levels === undefined) found.set(name, [level])
      else levels.push(level)
    }
  }
  return found
}

// Makes the function that refuses a document which does not parse. The error says why, unless the caller may see only
// the merged values of the document.
const refuseUnreadable = ({ onlyMerged }: Pick<View<unknown>, 'onlyMerged'>) =>
  (level: Level, format: DocumentFormat, text: string) =>
    fail('document_unreadable', { level, ...!onlyMerged.includes(level) && documentError(format, text) })

// Merges the values of levels in their order. The value of a later level replaces that of an earlier level.
// `unreadable` handles a document that does not parse.
async function valuesOf<Unreadable> (
  { project: { secret_format } }: LevelState, documents: Contents, levels: readonly Level[],
  unreadable: (level: Level, format: DocumentFormat, text: string) => Unreadable, pace?: Pace
): Promise<Entries | Unreadable> {
  const values = emptyEntries()
  for (const level of levels) {
    const text = documents.get(level)
    if (text === undefined) continue
    const began = performance.now()
    const read = () => readDocument(secret_format, text, values)
    const result = pace === undefined ? await inStep(read) : read()
    if (result === undefined) return unreadable(level, secret_format, text)
    await pace?.(began)
  }
  return values
}

async function toAnswer (
  state: LevelState, reading: Reading, view: View<Shown>, documents: Contents, storageKey: KeyObject
): Promise<SecretsAnswer> {
  const { decrypt, merge, action, filters, isRetrieve, path, at } = reading
  const { project, target, environment } = state
  const levels = merge === 'true' ? undefined : levelsOf(state, decrypt, view, documents, storageKey)
  const merged = merge === 'false' ? undefined : await mergedValues(state, documents, view)
  // If a document does not parse, the response has no values.
  const readable = () => valuesOf(state, documents, LEVELS, () => undefined)
  const values = action === 'decrypt' && isRetrieve ? merged ?? await readable() : undefined
  const format = project.secret_format === 'json' ? 'json' : 'env'
  return {
    data: {
      type: 'secrets',
      attributes: { encrypted: !decrypt, format, ...(levels && { levels }), ...(merged && { merged }) },
      ...(values && { secrets: filterValues(values, filters) })
    },
    meta: {
      api_path: path,
      format: 'hierarchical',
      merged: merge,
      timestamp: new Date().toISOString(),
      ...(at && { at }),
      hierarchy: { project: project.slug, target: target?.slug ?? null, environment: environment?.slug ?? null },
      action,
      ...leftOutOf(view)
    }
  }
}

/** The field of `meta` that names the levels which the restrictions exclude from a merged read. */
export const leftOutOf = ({ leftOut }: View<unknown>): { left_out?: Level[] } =>
  leftOut.length === 0 ? {} : { left_out: [...leftOut] }

// The documents of the levels that the caller may read as such. Inherited documents are only merged.
function levelsOf (
  { project, target, environment }: LevelState, decrypt: boolean, view: View<Shown>, documents: Contents,
  storageKey: KeyObject
): Partial<Record<Level, LevelDocument>> {
  const slugs: Record<Level, string> = {
    project: project.slug, target: target?.slug ?? '', environment: environment?.slug ?? ''
  }
  const levels: Partial<Record<Level, LevelDocument>> = {}
  for (const secret of view.documents) {
    if (view.onlyMerged.includes(secret.level)) continue
    levels[secret.level] = {
      id: secret.id,
      encrypted: !decrypt,
      content: documents.get(secret.level)!,
      source: slugs[secret.level],
      version: secret.version === null ? null : String(secret.version),
      key_version: String(secret.key_version),
      etag: etagOf(storageKey, [secret])
    }
  }
  return levels
}

function filterValues (values: Entries, filters: Reading['filters']): Entries {
  const { names = [], tags = [], search } = filters ?? {}
  if (names.length === 0 && tags.length === 0 && search === undefined) return values
  const kept = emptyEntries()
  // A document has no tags, so a filter by tag matches nothing.
  if (tags.length > 0) return kept
  const wanted = search?.toLowerCase()
  const listed = new Set(names)
  // The object of values has no prototype, so `in` sees only its own properties.
  for (const name in values) {
    const isListed = listed.size === 0 || listed.has(name)
    if (isListed && (wanted === undefined || name.toLowerCase().includes(wanted))) kept[name] = values[name]!
  }
  return kept
}
