import type { KeyObject } from 'node:crypto'
import {
  LEVELS, type Level, type LevelDocument, type Merge, type RetrieveBody, type SecretsAnswer
} from '../../../schemas/secrets.ts'
import { IntegrityError } from '../../crypto/at-rest.ts'
import { openBlob } from '../../crypto/blob.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import { rest } from '../../crypto/rest.ts'
import type { AuditEvent } from '../../repositories/audit/audit.ts'
import { activeKeyOf, placeOf, type LevelState, type SecretRow } from '../../repositories/levels/levels.ts'
import type { PastDocument } from '../../repositories/secrets/point-in-time.ts'
import type { FullVersion } from '../../repositories/secrets/versions.ts'
import { emptyEntries, type Entries } from '../../rules/documents/entries.ts'
import { readDocument } from '../../rules/documents/read.ts'
import { fail, refuse } from '../../rules/errors.ts'
import { isInside, type Slice } from '../../rules/slices.ts'
import { etagOf, openCurrent, openPast, openVersion } from './documents.ts'
import { dataKeyOf } from '../keys/keys.ts'

type StoredSecret = SecretRow & { sealed: Buffer }

export interface Reading {
  action: string
  decrypt: boolean
  merge: Merge
  raw: boolean
  filters?: RetrieveBody['filters'] | undefined
  /** Read the documents as of this moment. */
  at?: Date | undefined
  /** Whether this is a retrieve request (with a body), whose response may include the values. */
  isRetrieve: boolean
  /** The path of the request, without its query. */
  path: string
}

/** The documents of a level and its parents that a caller with these restrictions may see. */
export function visibleSecrets (state: LevelState, slices: readonly Slice[]): SecretRow[] {
  return state.secrets.filter((secret) => secret.is_stored && isInside(slices, placeOf(state, secret.level)))
}

/** Throws 422 for a project whose documents have no names that the server can read. */
export function requireNames ({ project }: LevelState): void {
  if (project.encryption_type === 'client') fail('client_managed_encryption')
  if (project.secret_format === 'text') {
    refuse('project', 'Documents of a text project have no names', 'invalid_parameter_combination')
  }
}

/** The columns of a document, without the content, that a response contains. */
type Shown = Pick<SecretRow, 'id' | 'level' | 'revision' | 'key_version' | 'version'>

/** The ETag of a response, from its documents and the parameters of the request. */
export function readingEtag (
  storageKey: KeyObject, state: LevelState, visible: readonly Shown[], reading: Reading
): string {
  const { decrypt, merge, raw, filters, isRetrieve, at } = reading
  // A re-encrypted version has another key version at the same revision.
  const past = at === undefined ? [] : [at.toISOString(), ...visible.map(({ key_version }) => String(key_version))]
  return etagOf(
    storageKey, visible, isRetrieve ? 'retrieve' : 'read', String(decrypt), merge, String(raw),
    JSON.stringify(filters ?? null), state.project.secret_format, state.project.slug, state.target?.slug ?? '',
    state.environment?.slug ?? '', ...past
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

/** The contents of past documents, each decrypted with the key that encrypted it; 422 for a client's key. */
export async function pastContents (
  keyring: Keyring, storageKey: KeyObject, visible: readonly PastDocument[], decrypt: boolean
): Promise<Contents> {
  if (decrypt && visible.some(({ key }) => key.managed === 'client')) fail('client_managed_encryption')
  return contentsOf(visible, (document) =>
    contentOf(openPast(storageKey, document), decrypt ? dataKeyOf(keyring, document.key) : undefined))
}

/** The decrypted content of a version; 422 for a client's key. */
export async function versionContents (
  keyring: Keyring, storageKey: KeyObject, found: FullVersion
): Promise<Contents> {
  const { version, key } = found
  if (key.managed === 'client') fail('client_managed_encryption')
  return contentsOf([version], () =>
    contentOf(openVersion(storageKey, key.organization_id, found), dataKeyOf(keyring, key)))
}

/** The size of decrypted documents, and about the size of a response with them. */
export const charactersOf = (documents: Contents): number =>
  [...documents.values()].reduce((sum, { length }) => sum + length, 0)

/** The audit event of a read of documents, of a level or an organization, and the bytes of their content. */
export function eventOfReading (
  { level, level_id }: { level: Level | 'organization', level_id: string },
  visible: readonly Pick<SecretRow, 'id' | 'revision' | 'sealed'>[],
  action: 'secret.decrypt' | 'secret.names' | 'version.read', more: object = {}
): { event: AuditEvent, bytes: number } {
  const details = { ...documentDetails(visible), ...more }
  const bytes = visible.reduce((sum, { sealed }) => sum + (sealed?.length ?? 0), 0)
  return { event: { action, resource_type: level, resource_id: level_id, details }, bytes }
}

/** The documents that an audit event names. */
export const documentDetails = (documents: readonly Pick<SecretRow, 'id' | 'revision'>[]) => ({
  secrets: documents.map(({ id }) => id).join(' '),
  revisions: documents.map(({ revision }) => revision).join(' ')
})

/** Documents of this length or more take milliseconds to decrypt. */
const LARGE_DOCUMENT = 64 * 1024

// Yields to other requests between large documents.
async function contentsOf<D extends Pick<Shown, 'level'>> (
  documents: readonly D[], open: (document: D) => string
): Promise<Contents> {
  const contents = new Map<Level, string>()
  for (const document of documents) {
    const content = open(document)
    contents.set(document.level, content)
    if (content.length >= LARGE_DOCUMENT) await rest()
  }
  return contents
}

/** The response to a read: one object of values with `raw`, else the documents in the requested form. */
export async function answerReading (
  storageKey: KeyObject, state: LevelState, visible: readonly Shown[], documents: Contents, reading: Reading
): Promise<SecretsAnswer | Record<string, string>> {
  const { merge, raw, filters } = reading
  if (!raw) return toAnswer(state, reading, visible, documents, storageKey)
  const levels = merge === 'true' ? LEVELS : [state.level]
  return filterValues(await valuesOf(state, documents, levels, refuseUnreadable), filters)
}

/** The decrypted document; without a data key, the blob. */
export function contentOf (blob: string, dataKey: KeyObject | undefined): string {
  if (dataKey === undefined) return blob
  // Content was validated when it was stored, so a blob that does not decrypt was manipulated.
  const plain = openBlob(dataKey, blob)
  if (plain === undefined) throw new IntegrityError()
  return plain.toString('utf8')
}

/** The merged values of the levels of a state. 422 for an invalid document. */
export const mergedValues = async (state: LevelState, documents: Contents): Promise<Entries> =>
  valuesOf(state, documents, LEVELS, refuseUnreadable)

/** The levels that have a name, from the project down, for each name of the documents. 422 for an invalid document. */
export async function levelsByName ({ project }: LevelState, documents: Contents): Promise<Map<string, Level[]>> {
  const found = new Map<string, Level[]>()
  for (const [level, text] of documents) {
    const names = Object.keys(readDocument(project.secret_format, text) ?? refuseUnreadable(level))
    for (const name of names) {
      const levels = found.get(name)
      if (levels === undefined) found.set(name, [level])
      else levels.push(level)
    }
    await rest()
  }
  return found
}

const refuseUnreadable = (level: Level) => fail('document_unreadable', { level })

// Merges the values of levels in their order; the last one overrides. `unreadable` handles an invalid document.
async function valuesOf<Unreadable> (
  { project }: LevelState, documents: Contents, levels: readonly Level[], unreadable: (level: Level) => Unreadable
): Promise<Entries | Unreadable> {
  const values = emptyEntries()
  for (const level of levels) {
    const text = documents.get(level)
    if (text === undefined) continue
    if (readDocument(project.secret_format, text, values) === undefined) return unreadable(level)
    await rest()
  }
  return values
}

async function toAnswer (
  state: LevelState, reading: Reading, visible: readonly Shown[], documents: Contents, storageKey: KeyObject
): Promise<SecretsAnswer> {
  const { decrypt, merge, action, filters, isRetrieve, path, at } = reading
  const { project, target, environment } = state
  const levels = merge === 'true' ? undefined : levelsOf(state, decrypt, visible, documents, storageKey)
  const merged = merge === 'false' ? undefined : await valuesOf(state, documents, LEVELS, refuseUnreadable)
  // If a document cannot be parsed, the response has no values.
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
      action
    }
  }
}

function levelsOf (
  { project, target, environment }: LevelState, decrypt: boolean, visible: readonly Shown[],
  documents: Contents, storageKey: KeyObject
): Partial<Record<Level, LevelDocument>> {
  const slugs: Record<Level, string> = {
    project: project.slug, target: target?.slug ?? '', environment: environment?.slug ?? ''
  }
  const levels: Partial<Record<Level, LevelDocument>> = {}
  for (const secret of visible) {
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
  // The values have no prototype, so `in` sees only own properties.
  for (const name in values) {
    const isListed = listed.size === 0 || listed.has(name)
    if (isListed && (wanted === undefined || name.toLowerCase().includes(wanted))) kept[name] = values[name]!
  }
  return kept
}
