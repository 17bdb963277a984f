import type { Entries } from '../documents/entries.ts'

/** Names that differ between two documents, each list sorted by UTF-16 code units. */
export interface Comparison { added: string[], removed: string[], changed: string[] }

/** Compares the names and values of two documents. */
export function compareEntries (from: Entries, to: Entries): Comparison {
  return {
    added: Object.keys(to).filter((name) => !(name in from)).sort(),
    removed: Object.keys(from).filter((name) => !(name in to)).sort(),
    changed: Object.keys(to).filter((name) => name in from && from[name] !== to[name]).sort()
  }
}
