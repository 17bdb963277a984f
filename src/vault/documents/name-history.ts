import type { KeyObject } from 'node:crypto'
import { MAX_OPENED_VERSIONS, type NameChangeWord } from '../../../schemas/names.ts'
import { openBlob } from '../../crypto/blob.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import { ownSecret, type LevelState } from '../../repositories/levels/levels.ts'
import type { PageLimit, VersionContent, VersionContents } from '../../repositories/secrets/version-contents.ts'
import { compareEntries, emptyEntries, type Comparison, type Entries } from '../../rules/documents/entries.ts'
import { readDocument } from '../../rules/documents/read.ts'
import { readValue, readValueAsJson } from '../../rules/documents/value.ts'
import { WORK, workOfDocument, type Work } from '../../rules/documents/work.ts'
import { dataKeyOf } from '../keys/keys.ts'
import { openVersion } from './documents.ts'
import { isSpent, type ReadContext } from './open-documents.ts'

// Maximum bytes that a request decrypts, so that a few requests do not occupy the process.
const MAX_BYTES = 8 * 1024 * 1024
/** The maximum page of one statement. The driver decodes all its rows without a yield to the event loop. */
const PAGE = { versions: 100, bytes: 1024 * 1024 }

/**
 * A version that changed the name. `value` is the new value; undefined if the version removed the name. `json` is the
 * value as JSON, if it was asked for and JSON can spell it.
 */
export interface Change { version: VersionContent, change: NameChangeWord, value: Value, json: string | undefined }

export interface NameHistory {
  /** The changes, newest first. */
  changes: Change[]
  /** The versions that were decrypted, newest first. */
  opened: VersionContent[]
  unreadable: number
  missing: number
  /** The id of a version. The next request continues with older versions. Null at the end of the history. */
  next: number | null
}

/** The value of a name; undefined if the document does not have the name. */
type Value = string | undefined

const UNREADABLE = Symbol('unreadable')

/**
 * Finds the versions older than `after` that changed a name. Compares each version with the next older version that can
 * be read. A version is compared with an empty document if no document existed before: after a `delete`, and for a
 * `create`.
 *
 * If the limits end the request, the oldest decrypted version is not compared yet. The next request begins with this
 * version. So a request decrypts at least two versions.
 */
export async function nameHistory (
  context: Pick<ReadContext, 'keyring' | 'storageKey' | 'work' | 'pace' | 'isDisconnected'>, state: LevelState,
  { name, after, withJson }: { name: string, after: number, withJson: boolean },
  load: (before: number, limit: PageLimit) => Promise<VersionContents>
): Promise<NameHistory> {
  const { keyring, storageKey, work, pace } = context
  const { valueIn, jsonIn } = createReader(keyring, storageKey, state, name, work)
  const opened: VersionContent[] = []
  const found = { changes: [] as Change[], unreadable: 0, missing: 0 }
  /** The version to compare with the next older version, with its index and the counts before it. */
  let newer: { version: VersionContent, index: number, value: Value, unreadable: number, missing: number } | undefined
  let isEnd = false
  let bytes = 0
  while (!isEnd && !isFull()) {
    const versions = Math.min(PAGE.versions, MAX_OPENED_VERSIONS - opened.length)
    const page = await load(opened.at(-1)?.id ?? after, { ...PAGE, versions })
    found.missing += page.lostAfter
    let isWhole = true
    for (const [i, version] of page.rows.entries()) {
      const began = performance.now()
      add(version)
      await pace(began)
      isWhole = i === page.rows.length - 1
      if (isFull()) break
    }
    isEnd = page.isEnd && isWhole
    if (isEnd) found.missing += page.lostBefore
  }
  if (isEnd) return { ...found, opened, next: null }
  // If all versions older than the first version are unreadable, skips the first version: otherwise the next request
  // would begin with the same version.
  if (newer === undefined || newer.index === 0) return { ...found, opened, next: opened.at(-1)!.id }
  const { unreadable, missing, index } = newer
  return { ...found, unreadable, missing, opened, next: opened[index - 1]!.id }

  function isFull (): boolean {
    return opened.length >= MAX_OPENED_VERSIONS || bytes >= MAX_BYTES || (opened.length > 1 && isSpent(context))
  }

  function add (version: VersionContent) {
    const { unreadable, missing } = found
    const { action, revision, older_revision, size_bytes } = version
    const index = opened.push(version) - 1
    bytes += size_bytes
    work.done += workOfDocument(size_bytes)
    found.missing += older_revision === null ? 0 : revision - older_revision - 1
    const value = valueIn(version)
    // No document existed after a `delete` or before a `create`, even if the version cannot be read.
    const isBorder = action === 'delete' || action === 'create'
    if (value === UNREADABLE) {
      found.unreadable++
      if (newer !== undefined && isBorder) compare(newer.version, undefined, newer.value)
      if (isBorder) newer = undefined
      return
    }
    if (newer !== undefined) compare(newer.version, action === 'delete' ? undefined : value, newer.value)
    newer = undefined
    if (action === 'delete') compare(version, value, undefined)
    else if (action === 'create') compare(version, undefined, value)
    else newer = { version, index, value, unreadable, missing }
  }

  function compare (version: VersionContent, before: Value, value: Value) {
    if (before === value) return
    const change = before === undefined ? 'added' : value === undefined ? 'removed' : 'changed'
    const json = withJson ? jsonIn(version, value) : undefined
    // The response has the value once, and its JSON within a text, where each escape is escaped again.
    if (withJson) work.done += 3 * (json ?? value ?? '').length / 1024 * WORK.writtenKilobyte
    found.changes.push({ version, change, value, json })
  }
}

// Maximum number of older versions to which a version is compared, of which all but the last cannot be read.
const MAX_OLDER = 20

/**
 * The names that a version changed, by a comparison with the next older version that can be read. A version is compared
 * with an empty document if no document existed before: after a `delete`, and for a `create`. `names` is null if no
 * older version can be read, or none of those that the work of a page opens. `entries` is the document of the version.
 */
export async function namesChangedBy (
  context: Pick<ReadContext, 'keyring' | 'storageKey' | 'work' | 'pace' | 'isDisconnected'>, state: LevelState,
  { id, action }: Pick<VersionContent, 'id' | 'action'>, entries: Entries,
  load: (before: number, limit: PageLimit) => Promise<VersionContents>
): Promise<{ older: VersionContent | null, names: Comparison | null }> {
  const { keyring, storageKey, work, pace } = context
  const nothing = emptyEntries()
  if (action === 'delete') return { older: null, names: compareEntries(entries, nothing) }
  if (action === 'create') return { older: null, names: compareEntries(nothing, entries) }
  const open = createOpener(keyring, storageKey, state)
  for (let before = id, count = 0, isEnd = false; !isEnd && count < MAX_OLDER;) {
    const page = await load(before, { versions: 2, bytes: PAGE.bytes })
    isEnd = page.isEnd
    for (const older of page.rows) {
      const began = performance.now()
      count++
      before = older.id
      if (older.action === 'delete') return { older: null, names: compareEntries(nothing, entries) }
      work.done += workOfDocument(older.size_bytes)
      const text = open(older)
      const found = text === undefined ? undefined : readDocument(state.project.secret_format, text, undefined, work)
      await pace(began)
      if (found !== undefined) return { older, names: compareEntries(found, entries) }
      // The document that the version changed began with a version that cannot be read.
      if (older.action === 'create' || isSpent(context)) return { older: null, names: null }
    }
  }
  return { older: null, names: null }
}

/** Returns a function that decrypts versions; undefined for one under a key of the client. */
function createOpener (keyring: Keyring, storageKey: KeyObject, state: LevelState) {
  const { organization_id } = state
  // A level with versions has a document row, so `ownSecret` is defined.
  const secret = ownSecret(state)!
  const keys = new Map<number, KeyObject>()
  return (version: VersionContent): string | undefined => {
    const { sealed, key } = version
    if (sealed === null) return undefined
    let dataKey = keys.get(key.version)
    if (dataKey === undefined) keys.set(key.version, dataKey = dataKeyOf(keyring, key))
    // If a client managed the key before, the client may have stored any content under this key.
    return openBlob(dataKey, openVersion(storageKey, organization_id, { version, secret, sealed }))?.toString('utf8')
  }
}

function createReader (keyring: Keyring, storageKey: KeyObject, state: LevelState, name: string, work: Work) {
  const open = createOpener(keyring, storageKey, state)
  const { secret_format: format } = state.project
  // Caches the last value, because consecutive versions often have the same content, for example after a key rotation.
  let last: { text: string, value: Value | typeof UNREADABLE } | undefined
  return { valueIn, jsonIn }

  function valueIn (version: VersionContent): Value | typeof UNREADABLE {
    const text = open(version)
    if (text === undefined) return UNREADABLE
    if (last?.text === text) return last.value
    const read = readValue(format, text, name, work)
    last = { text, value: read === undefined ? UNREADABLE : read.value }
    return last.value
  }

  /** The value of a version as JSON. Opens the version of a JSON or YAML document again, for the type of the value. */
  function jsonIn (version: VersionContent, value: Value): string | undefined {
    if (value === undefined || format === 'text') return undefined
    if (format === 'env') return JSON.stringify(value)
    work.done += workOfDocument(version.size_bytes)
    return readValueAsJson(format, open(version)!, name, work)
  }
}
