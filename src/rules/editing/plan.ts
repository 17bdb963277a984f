/** The changes that have an effect: names with another value than before, and existing names to remove. */
export interface Plan { set: ReadonlyMap<string, string>, removed: ReadonlySet<string> }

/**
 * Why a document is not changed: the format cannot hold the name or the value, or an alias elsewhere in the YAML
 * document refers to an anchor in the value of the name, and would lose its value.
 */
export interface Refusal { refused: 'unholdable' | 'anchored', name: string }

/**
 * Why a document is not changed: the result would exceed a limit, such as `10,000 names`; or the format cannot hold the
 * changes together; or the document is too large to try all ways to write the changes.
 */
export type RefusalOfAll = { refused: 'limit', limit: string } | { refused: 'together' | 'untried' }

/** Changes a document that was read. */
export interface Editor {
  /** Number of ways to write the changes. `changeNames` tries the next one if the parsed result is not as expected. */
  attempts: number
  edit: (plan: Plan, attempt: number) => string | Refusal
}

export const isRefusal = (edited: string | Refusal): edited is Refusal => typeof edited !== 'string'
