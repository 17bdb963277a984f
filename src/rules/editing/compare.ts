import type { Entries } from '../documents/entries.ts'

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
