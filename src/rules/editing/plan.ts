import type { PatchValue } from '../documents/json-values.ts'
import type { Comparison, Entries } from '../documents/entries.ts'

/** The changes that have an effect: names with another value than before, and existing names to remove. */
export interface Plan { set: ReadonlyMap<string, PatchValue>, removed: ReadonlySet<string> }

/**
 * Why a document is not changed. `unholdable`: the format cannot hold the name or its value. `anchored`: the YAML
 * document has an anchor at the name or in its value, and an alias elsewhere in the document would lose its value.
 * `not_text`: an `.env` document holds only texts. `structured`: a text would replace an object or a list.
 */
export interface Refusal { refused: 'unholdable' | 'anchored' | 'not_text' | 'structured', name: string }

/**
 * Why a document is not changed. `limit`: the result would exceed a limit, such as `10,000 names`. `together`: the
 * format cannot hold the changes together. `untried`: the document is too large to try all ways to write the changes.
 */
export type RefusalOfAll = { refused: 'limit', limit: string } | { refused: 'together' | 'untried' }

/** Changes a document that was parsed before. */
export interface Editor {
  /** The value of each name as compact JSON; undefined for `.env`, whose values are texts. */
  typed?: Entries
  /** Number of ways to write the changes. `changeNames` tries the next way if the parsed result is not as expected. */
  attempts: number
  /**
   * Those of the names that other readers of the format read with another value, so that a change to the same value is
   * made too. In YAML, other readers can read the last text within the value of a name with another line feed.
   */
  ambiguous?: (names: { has: (name: string) => boolean }) => ReadonlySet<string>
  edit: (plan: Plan, attempt: number) => string | Refusal
}

export const isRefusal = (edited: string | Refusal): edited is Refusal => typeof edited !== 'string'

/** The names that the change added, changed and removed. A name whose line alone changed counts as changed. */
export function comparisonOf (before: Entries, { set, removed }: Plan): Comparison {
  const names = [...set.keys()].sort()
  return {
    added: names.filter((name) => !(name in before)),
    changed: names.filter((name) => name in before),
    removed: [...removed].sort()
  }
}
