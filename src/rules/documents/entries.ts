import type { UnreadableReason } from '../../../schemas/documents.ts'

/** The values of `secret_format`. */
export type DocumentFormat = 'env' | 'json' | 'yaml' | 'text'

/** The formats whose documents have names. */
export type NamedFormat = Exclude<DocumentFormat, 'text'>

/** Names and values. Has no prototype, so `__proto__` is an ordinary name, and no document can change a prototype. */
export type Entries = Record<string, string>

/** What no variable of an environment can hold: NUL, and lone surrogates, which UTF-8 cannot write. */
export const IN_NO_VARIABLE = /\0|\p{Surrogate}/u

export const emptyEntries = (): Entries => Object.create(null) as Entries

/** Thrown by the readers: an invalid document, or a document that exceeds a limit. */
export class UnreadableDocument extends Error {
  /** The position of the error in the document, in UTF-16 code units. */
  offset: number
  /** The limit that the document exceeds, such as `10,000 names`; undefined for an invalid document. */
  limit: string | undefined
  reason: UnreadableReason
  /** The name that the error is about, and the position where it was read as a name before. */
  known: { name: string, offset: number } | undefined

  constructor (
    offset: number, reason: UnreadableReason, more: { limit?: string | undefined, known?: UnreadableDocument['known'] } = {}
  ) {
    super('The document cannot be parsed')
    this.offset = offset
    this.reason = reason
    this.limit = more.limit
    this.known = more.known
  }

  /** An error for a document that exceeds a limit, such as `10,000 names`. */
  static ofLimit (offset: number, limit: string) {
    return new UnreadableDocument(offset, 'limit', { limit })
  }
}

/** Returns whether a name begins with `prefix` and contains `search`, in upper or lower case. */
export function nameFilter (prefix: string, search: string): (name: string) => boolean {
  const lower = search.toLowerCase()
  return (name) => name.startsWith(prefix) && name.toLowerCase().includes(lower)
}

/** Names that differ between two documents, each list sorted by UTF-16 code units. */
export interface Comparison { added: string[], removed: string[], changed: string[] }

/** Compares the names and values of two documents. */
export function compareEntries (from: Entries, to: Entries): Comparison {
  const added: string[] = []
  const changed: string[] = []
  for (const name of Object.keys(to)) {
    const before = from[name]
    if (before === undefined) added.push(name)
    else if (before !== to[name]) changed.push(name)
  }
  const removed = Object.keys(from).filter((name) => !(name in to))
  return { added: added.sort(), removed: removed.sort(), changed: changed.sort() }
}
