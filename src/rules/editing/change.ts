import { emptyEntries, type Entries, type NamedFormat } from '../documents/entries.ts'
import { LINES } from '../documents/env.ts'
import { describeError, documentError, readDocument, withoutMark, type DocumentError } from '../documents/read.ts'
import { compareEntries, type Comparison } from './compare.ts'
import { envEditor } from './env.ts'
import { jsonEditor } from './json.ts'
import { isRefusal, type Plan, type Refusal, type RefusalOfAll } from './plan.ts'
import { yamlEditor } from './yaml.ts'

/** The names to set and to remove. A name in `set` and `unset` is set. */
export interface NameChanges { set: ReadonlyMap<string, string>, unset: readonly string[] }

/** The changed document and the names that the change added, changed and removed. */
export interface ChangedDocument extends Comparison { text: string }

// Maximum characters that all attempts of a change may parse, because parsing blocks the event loop. The first two
// attempts are always made.
const MAX_READ = 1024 * 1024

const EDITORS = { env: envEditor, json: jsonEditor, yaml: yamlEditor }

/**
 * Changes single names of a document. Every byte that does not belong to a changed name stays.
 *
 * - Set: the value is replaced where it is written, in its style if the style can hold the new value. Of duplicate
 *   names, the last one is changed, because its value applies. A name that already has the value for every reader is
 *   not changed. New names are added at the end, in the order of `set`.
 * - Remove: the name is removed with its lines and with the comment after its value; a comment above the name stays.
 *   All duplicates are removed. A missing name changes nothing.
 * - An empty text is a missing document, in all formats.
 *
 * Parses each result with `readDocument`, and returns a result only if it has exactly the expected names and values.
 */
export function changeNames (
  format: NamedFormat, text: string, changes: NameChanges
): ChangedDocument | Refusal | RefusalOfAll | { refused: 'unreadable' } & DocumentError {
  const source = withoutMark(text)
  const mark = text.slice(0, text.length - source.length)
  const before = emptyEntries()
  let editor
  try {
    editor = EDITORS[format](source, before)
  } catch (error) {
    return { refused: 'unreadable', ...describeError(text, error) }
  }
  const plan = planOf(before, changes, editor.ambiguous)
  if (plan.set.size === 0 && plan.removed.size === 0) return { text, added: [], changed: [], removed: [] }
  const expected: Entries = Object.assign(emptyEntries(), before, Object.fromEntries(plan.set))
  for (const name of plan.removed) delete expected[name]

  let wrong: string | undefined
  let limit: string | undefined
  let length = 0
  let isCut = false
  const tried = new Set<string>()
  for (let attempt = 0; attempt < editor.attempts; attempt++) {
    const edited = editor.edit(plan, attempt)
    if (isRefusal(edited)) return edited
    if (tried.has(edited)) continue
    length += edited.length
    isCut = tried.size > 1 && length > MAX_READ
    if (isCut) break
    tried.add(edited)
    const after = readDocument(format, edited)
    if (after === undefined) limit ??= documentError(format, edited)?.limit
    // Another attempt cannot have fewer names or tokens, but it may have fewer lines.
    if (limit !== undefined && limit !== LINES) break
    if (after !== undefined && isSame(after, expected)) {
      return { text: mark + edited, ...comparisonOf(before, after, plan) }
    }
    wrong ??= [...plan.set.keys()].find((name) => after !== undefined && after[name] !== expected[name])
  }
  if (limit !== undefined) return { refused: 'limit', limit }
  if (isCut) return { refused: 'untried' }
  // No attempt had the expected values: the format cannot hold the changes next to the other lines of the document.
  const [first = '', ...others] = [...plan.set.keys(), ...plan.removed]
  return wrong === undefined && others.length > 0 ? { refused: 'together' } : { refused: 'unholdable', name: wrong ?? first }
}

function planOf (before: Entries, { set, unset }: NameChanges, ambiguous?: ReadonlySet<string>): Plan {
  return {
    set: new Map([...set].filter(([name, value]) => before[name] !== value || ambiguous?.has(name))),
    removed: new Set(unset.filter((name) => name in before && !set.has(name)))
  }
}

/** The names that the change added, changed and removed. A name whose line alone changed counts as changed. */
function comparisonOf (before: Entries, after: Entries, { set }: Plan): Comparison {
  const { added, removed } = compareEntries(before, after)
  return { added, removed, changed: [...set.keys()].filter((name) => name in before).sort() }
}

function isSame (a: Entries, b: Entries) {
  const names = Object.keys(a)
  return names.length === Object.keys(b).length && names.every((name) => a[name] === b[name])
}
