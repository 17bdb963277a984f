import type { UnreadableReason } from '../../../schemas/documents.ts'
import { emptyEntries, UnreadableDocument, type DocumentFormat, type Entries, type NamedFormat } from './entries.ts'
import { readEnv, type EnvAssignment } from './env.ts'
import { readTypedJson } from './json-values.ts'
import { readJsonDocument } from './json.ts'
import { positionAfter, withoutMark, type Position } from './positions.ts'
import type { Work } from './work.ts'
import { readYaml } from './yaml.ts'

/**
 * The first error of a document. `limit`: the limit that the document exceeds, such as `10,000 names`. `name`: the name
 * that the error is about, if an earlier line has it as a name; all other text may be a piece of a secret.
 */
export interface DocumentError extends Position { reason: UnreadableReason, limit?: string, name?: string }

/** What a reader finds besides the entries. */
interface Found {
  /** Of JSON and YAML: receives the value of each name as compact JSON. */
  typed?: Entries | undefined
  /** Of `.env`: receives the assignments. */
  assignments?: EnvAssignment[] | undefined
}

type Reader = (text: string, entries: Entries, found?: Found, work?: Work) => void
const READERS: Record<NamedFormat, Reader> = {
  env: (text, entries, found, work) => readEnv(text, entries, found?.assignments, work),
  json: (text, entries, { typed } = {}, work) =>
    typed === undefined ? readJsonDocument(text, entries, work) : readTypedJson(text, entries, typed),
  yaml: (text, entries, { typed } = {}, work) => readYaml(text, entries, undefined, typed, work)
}

/**
 * Parses a document into names and values. Undefined if the document is invalid, exceeds a limit of its reader, or is
 * `text`, which has no names. Never throws. Blocks the event loop for some tens of milliseconds at most.
 *
 * All values are strings: a number keeps its spelling (digits and leading zeros), an object or array becomes compact
 * JSON. `null` becomes the empty string: if the name were left out, the value of an outer level (project or target)
 * would apply.
 *
 * @param entries the entries of earlier documents; this document's values overwrite them. May be partly changed when
 *   the result is undefined.
 * @param work counts the work of the reader, also for an invalid document
 */
export function readDocument (
  format: DocumentFormat, text: string, entries = emptyEntries(), work?: Work
): Entries | undefined {
  return format === 'text' ? undefined : readClosely(format, text, {}, entries, work)
}

/** Like `readDocument`, and fills the members of `found`. */
export function readClosely (
  format: NamedFormat, text: string, found: Found, entries = emptyEntries(), work?: Work
): Entries | undefined {
  try {
    READERS[format](withoutMark(text), entries, found, work)
    return entries
  } catch {
    // Invalid document, or a stack overflow from deep nesting.
    return undefined
  }
}

/**
 * The first error of a document that `readDocument` cannot parse; undefined for other documents and for `text`. If the
 * top level of the document is not a mapping, the error is at line 1, column 1. If the document exceeds a limit, the
 * error is where the limit is exceeded.
 */
export function documentError (format: DocumentFormat, text: string): DocumentError | undefined {
  if (format === 'text') return undefined
  try {
    READERS[format](withoutMark(text), emptyEntries())
    return undefined
  } catch (error) {
    return describeError(text, error)
  }
}

/** Converts an error of a reader to a line, a column and a limit. */
export function describeError (text: string, error: unknown): DocumentError {
  const source = withoutMark(text)
  // A stack overflow has no position.
  if (!(error instanceof UnreadableDocument)) return { line: 1, column: 1, reason: 'nesting' }
  const { offset, reason, limit, known } = error
  const isEarlier = known !== undefined && /[\r\n]/.test(source.slice(known.offset, offset))
  return {
    ...positionAfter(source.slice(0, offset)),
    reason,
    ...(limit !== undefined && { limit }),
    ...(isEarlier && { name: known.name })
  }
}

/** The position of the first bytes that are not UTF-8; undefined without such bytes. `text` is the decoded document. */
export function encodingError (document: Buffer, text: string): DocumentError | undefined {
  const written = Buffer.from(text)
  if (written.equals(document)) return undefined
  // The first U+FFFD can be one of the document.
  let at = 0
  while (document[at] === written[at]) at++
  const before = new TextDecoder('utf-8', { ignoreBOM: true }).decode(document.subarray(0, at), { stream: true })
  return describeError(text, new UnreadableDocument(before.length, 'not_utf8'))
}
