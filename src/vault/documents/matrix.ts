import { MATRIX_LIMITS, type MatrixCell, type MatrixName, type MatrixQuery } from '../../../schemas/matrix.ts'
import { LEVELS, type Level } from '../../../schemas/secrets.ts'
import type { LevelState, SecretRow } from '../../repositories/levels/levels.ts'
import { readDocument } from '../../rules/documents/read.ts'
import { WORK } from '../../rules/documents/work.ts'
import type { Slice } from '../../rules/slices.ts'
import { isSpent, openDocuments, type OpenedDocument, type ReadContext } from './open-documents.ts'
import { visibleSecrets } from './read.ts'

/** A decrypted document. */
interface Document { level: Level, secret: SecretRow, isReadable: boolean }

/** A column of the matrix: a level, and the documents of the level (first) and of its ancestors. */
interface Column { state: LevelState, path: PathDocument[] }

/** A document of a level or of its ancestor. `index` is the index in `OpenedLevels.documents`. */
interface PathDocument { index: number, level: Level, isOwn: boolean, isReadable: boolean }

/** The documents that have a name, by their index, and the values there. */
interface Row { indexes: number[], values: string[] }

/** The documents of a page of levels. */
interface OpenedLevels {
  documents: Document[]
  columns: Column[]
  /** The names of all documents. */
  names: ReadonlyMap<string, Row>
  /** Whether levels were omitted because of the limits of a page. */
  isCut: boolean
}

/** The document of the level itself; undefined if the level has no document. */
export function ownDocument ({ documents }: OpenedLevels, { path: [nearest] }: Column): Document | undefined {
  return nearest?.isOwn ? documents[nearest.index] : undefined
}

/** The document of a column cannot be parsed. */
export const isUnreadable = (document: Document | undefined): boolean => document?.isReadable === false

/**
 * Decrypts the documents of levels and of their ancestors. Ends at the limits of a page, but not before the first level
 * is complete. The limits depend only on the documents, so each page of names has the same levels. Documents outside of
 * the caller's restrictions are not decrypted and do not count.
 */
export async function openLevels (
  context: ReadContext, organizationId: string, levels: readonly LevelState[], slices: readonly Slice[]
): Promise<OpenedLevels> {
  const paths = levels.map((state) => visibleSecrets(state, slices))
  const listed = [...new Map(paths.flat().map((secret) => [secret.id, secret])).values()]
  // The documents of the first level that has documents come first in the list.
  const needed = paths.find(({ length }) => length > 0)?.length ?? 0
  /** The decrypted documents by the id of their level; undefined if the document was deleted meanwhile. */
  const opened = new Map<string, OpenedDocument | undefined>()
  const documents: Document[] = []
  const rows = new Map<string, Row>()
  const indexes = new Map<string, number>()
  let [bytes, names] = [0, 0]
  for await (const { document, content } of openDocuments(context, organizationId, listed, () => slices)) {
    opened.set(document.level_id, content)
    if (content !== undefined) add(content)
    bytes += document.size_bytes
    const work = { done: context.work.done + rows.size * levels.length * WORK.cell }
    const isFull = bytes >= MATRIX_LIMITS.bytes || names >= MATRIX_LIMITS.names || isSpent({ ...context, work })
    if (isFull && opened.size >= needed) break
  }
  const cut = paths.findIndex((path) => path.some(({ level_id }) => !opened.has(level_id)))
  const shown = cut === -1 ? levels : levels.slice(0, cut)
  return { documents, names: rows, columns: shown.map(toColumn), isCut: cut !== -1 }

  function add ({ state: { level, project }, secret, text }: OpenedDocument) {
    const entries = readDocument(project.secret_format, text, undefined, context.work)
    const index = documents.push({ level, secret, isReadable: entries !== undefined }) - 1
    indexes.set(secret.level_id, index)
    if (entries === undefined) return
    // Sorts the names of each document, because the sort of the whole list is fast for sorted parts.
    const own = Object.keys(entries).sort()
    names += own.length
    context.work.done += own.length * WORK.sortedName
    for (const name of own) {
      const row = rows.get(name)
      if (row === undefined) {
        rows.set(name, { indexes: [index], values: [entries[name]!] })
      } else {
        row.indexes.push(index)
        row.values.push(entries[name]!)
      }
    }
  }

  function toColumn (state: LevelState): Column {
    const { project, target, environment, level_id } = state
    const path = [environment, target, project].flatMap((one): PathDocument[] => {
      const index = one === null ? undefined : indexes.get(one.id)
      if (index === undefined) return []
      const { level, isReadable } = documents[index]!
      return [{ index, level, isOwn: one!.id === level_id, isReadable }]
    })
    return { state, path }
  }
}

/** The number of cells to compare between two yields to the event loop. */
const STEP = 100_000

/** A page of the names in the levels, sorted, with a cell for each name and level. */
export async function nameRows (
  { documents, columns, names: rows }: OpenedLevels, { pace }: Pick<ReadContext, 'pace'>,
  isWanted: (name: string) => boolean, only: MatrixQuery['only'], { offset, limit }: { offset: number, limit: number }
): Promise<{ rows: MatrixName[], total: number }> {
  // Omits documents that belong only to levels that were omitted because of the limits.
  const used = new Set(columns.flatMap(({ path }) => path.map(({ index }) => index)))
  const isUsed = (name: string) => rows.get(name)!.indexes.some((index) => used.has(index))
  const valuesOf = createLookup(documents.length, rows)
  let began = performance.now()
  const names = [...rows.keys()].filter((name) => isWanted(name) && isUsed(name)).sort()
  await pace(began)
  const matching = only === undefined ? names : await filter(names, only)
  const page = matching.slice(offset, offset + limit)
  began = performance.now()
  const found = page.map((name): MatrixName => ({ name, cells: cellsOf(columns, valuesOf(name)) }))
  await pace(began)
  return { rows: found, total: matching.length }

  async function filter (names: readonly string[], only: NonNullable<MatrixQuery['only']>): Promise<string[]> {
    const step = Math.ceil(STEP / Math.max(1, columns.length))
    const matching: string[] = []
    for (let at = 0; at < names.length; at += step) {
      const began = performance.now()
      for (const name of names.slice(at, at + step)) {
        if (isOnly(only, columns, valuesOf(name), rows.get(name)!)) matching.push(name)
      }
      await pace(began)
    }
    return matching
  }
}

/** The value of one name in each document. */
type Values = readonly (string | undefined)[]

/** Returns a function that finds the values of a name. Each call overwrites the result of the one before. */
function createLookup (documents: number, rows: ReadonlyMap<string, Row>): (name: string) => Values {
  const values = Array.from({ length: documents }, (): string | undefined => undefined)
  let last: Row | undefined
  return (name) => {
    for (const index of last?.indexes ?? []) values[index] = undefined
    last = rows.get(name)!
    for (const [i, index] of last.indexes.entries()) values[index] = last.values[i]
    return values
  }
}

// The document with the effective value at a level. If a nearer document cannot be parsed, the result is `unknown`,
// because that document may have the name.
function sourceOf ({ path }: Column, values: Values): PathDocument | 'missing' | 'unknown' {
  for (const document of path) {
    if (!document.isReadable) return 'unknown'
    if (values[document.index] !== undefined) return document
  }
  return 'missing'
}

function isOnly (
  only: NonNullable<MatrixQuery['only']>, columns: readonly Column[], values: Values, { indexes }: Row
): boolean {
  if (only === 'missing') return columns.some((column) => sourceOf(column, values) === 'missing')
  if (indexes.length < 2) return false
  let first: string | undefined
  return columns.some((column) => {
    const source = sourceOf(column, values)
    if (typeof source === 'string') return false
    const value = values[source.index]!
    first ??= value
    return value !== first
  })
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
