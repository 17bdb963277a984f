import { MATRIX_LIMITS, type MatrixCell, type MatrixName, type MatrixQuery } from '../../../schemas/matrix.ts'
import { LEVELS, type Level } from '../../../schemas/secrets.ts'
import { yieldToEventLoop } from '../../crypto/event-loop.ts'
import type { LevelState, SecretRow } from '../../repositories/levels/levels.ts'
import type { Entries } from '../../rules/documents/entries.ts'
import { readDocument } from '../../rules/documents/read.ts'
import type { Slice } from '../../rules/slices.ts'
import { openDocuments, type OpenedDocument, type ReadContext } from './open-documents.ts'
import { visibleSecrets } from './read.ts'

/** A decrypted document. `entries` is undefined if the document cannot be parsed. */
interface Document { level: Level, secret: SecretRow, entries: Entries | undefined }

/** A column of the matrix: a level, and the documents of the level (first) and of its ancestors. */
interface Column { state: LevelState, path: PathDocument[] }

/** A document of a level or of its ancestor. `index` is the index in `OpenedLevels.documents`. */
interface PathDocument { index: number, level: Level, isOwn: boolean, isReadable: boolean }

/** The documents of a page of levels. */
interface OpenedLevels {
  documents: Document[]
  columns: Column[]
  /** Whether levels were omitted because of the limits of a page. */
  isCut: boolean
}

/** The document of the level itself; undefined if the level has no document. */
export function ownDocument ({ documents }: OpenedLevels, { path: [nearest] }: Column): Document | undefined {
  return nearest?.isOwn ? documents[nearest.index] : undefined
}

/**
 * Decrypts the documents of levels and of their ancestors. Ends at the limits of a page. The limits depend only on the
 * documents, so each page of names has the same levels. Documents outside of the caller's restrictions are not
 * decrypted and do not count.
 */
export async function openLevels (
  context: ReadContext, organizationId: string, levels: readonly LevelState[], slices: readonly Slice[]
): Promise<OpenedLevels> {
  const paths = levels.map((state) => visibleSecrets(state, slices))
  const listed = [...new Map(paths.flat().map((secret) => [secret.id, secret])).values()]
  /** The decrypted documents by the id of their level; undefined if the document was deleted meanwhile. */
  const opened = new Map<string, OpenedDocument | undefined>()
  const documents: Document[] = []
  const indexes = new Map<string, number>()
  let [bytes, names] = [0, 0]
  for await (const { document, content } of openDocuments(context, organizationId, listed, () => slices)) {
    opened.set(document.level_id, content)
    if (content !== undefined) add(content)
    bytes += document.size_bytes
    if (bytes >= MATRIX_LIMITS.bytes || names >= MATRIX_LIMITS.names || context.isDisconnected()) break
  }
  const cut = paths.findIndex((path) => path.some(({ level_id }) => !opened.has(level_id)))
  const shown = cut === -1 ? levels : levels.slice(0, cut)
  return { documents, columns: shown.map(toColumn), isCut: cut !== -1 }

  function add ({ state: { level, project }, secret, text }: OpenedDocument) {
    const entries = readDocument(project.secret_format, text)
    indexes.set(secret.level_id, documents.push({ level, secret, entries }) - 1)
    names += entries === undefined ? 0 : Object.keys(entries).length
  }

  function toColumn (state: LevelState): Column {
    const { project, target, environment, level_id } = state
    const path = [environment, target, project].flatMap((one): PathDocument[] => {
      const index = one === null ? undefined : indexes.get(one.id)
      if (index === undefined) return []
      const { level, entries } = documents[index]!
      return [{ index, level, isOwn: one!.id === level_id, isReadable: entries !== undefined }]
    })
    return { state, path }
  }
}

/** The number of rows to compare between two yields to the event loop. */
const STEP = 200

/** A page of the names in the levels, sorted, with a cell for each name and level. */
export async function nameRows (
  { documents, columns }: OpenedLevels, isWanted: (name: string) => boolean, only: MatrixQuery['only'],
  { offset, limit }: { offset: number, limit: number }
): Promise<{ rows: MatrixName[], total: number }> {
  // Omits documents that belong only to levels that were omitted because of the limits.
  const used = new Set(columns.flatMap(({ path }) => path.map(({ index }) => index)))
  const names = await sortedNames(documents.filter((_, index) => used.has(index)), isWanted)
  const valuesOf = (name: string) => documents.map(({ entries }) => entries?.[name])
  const matching = only === undefined
    ? names
    : (await inSteps(names, (name) => isOnly(only, columns, valuesOf(name)) ? [name] : [])).flat()
  const page = matching.slice(offset, offset + limit)
  const rows = await inSteps(page, (name): MatrixName => ({ name, cells: cellsOf(columns, valuesOf(name)) }))
  return { rows, total: matching.length }
}

// Sorts the names of each document first, because the final sort of the whole list is fast for sorted parts.
async function sortedNames (documents: readonly Document[], isWanted: (name: string) => boolean): Promise<string[]> {
  const names = new Set<string>()
  for (const { entries } of documents) {
    if (entries === undefined) continue
    for (const name of Object.keys(entries).filter(isWanted).sort()) names.add(name)
    await yieldToEventLoop()
  }
  return [...names].sort()
}

async function inSteps<T, U> (all: readonly T[], work: (one: T) => U): Promise<U[]> {
  const done: U[] = []
  for (const [i, one] of all.entries()) {
    if (i % STEP === STEP - 1) await yieldToEventLoop()
    done.push(work(one))
  }
  return done
}

/** The value of one name in each document. */
type Values = readonly (string | undefined)[]

// The document with the effective value at a level. If a nearer document cannot be parsed, the result is `unknown`,
// because that document may have the name.
function sourceOf ({ path }: Column, values: Values): PathDocument | 'missing' | 'unknown' {
  for (const document of path) {
    if (!document.isReadable) return 'unknown'
    if (values[document.index] !== undefined) return document
  }
  return 'missing'
}

function isOnly (only: NonNullable<MatrixQuery['only']>, columns: readonly Column[], values: Values): boolean {
  const sources = columns.map((column) => sourceOf(column, values))
  if (only === 'missing') return sources.includes('missing')
  const found = sources.flatMap((source) => typeof source === 'string' ? [] : [values[source.index]])
  return found.some((value) => value !== found[0])
}

function cellsOf (columns: readonly Column[], values: Values): MatrixCell[] {
  const groups = new Map<string, number>()
  return columns.map((column): MatrixCell => {
    const source = sourceOf(column, values)
    if (typeof source === 'string') return { state: source }
    const value = values[source.index]!
    const value_group = groups.get(value) ?? groups.size + 1
    groups.set(value, value_group)
    if (!source.isOwn) return { state: 'inherited', from: source.level as 'project' | 'target', value_group }
    const above = column.path.filter(({ index, isOwn }) => !isOwn && values[index] !== undefined)
    if (above.length === 0) return { state: 'set', value_group }
    const levels = above.map(({ level }) => level).sort((one, other) => LEVELS.indexOf(one) - LEVELS.indexOf(other))
    return { state: 'overrides', overrides: levels, value_group }
  })
}
