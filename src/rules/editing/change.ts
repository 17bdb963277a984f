import { emptyEntries, type Comparison, type Entries, type NamedFormat } from '../documents/entries.ts'
import { effectOf, isSameJson, mergedJson, type PatchValue } from '../documents/json-values.ts'
import { jsonValue } from '../documents/json.ts'
import { LINES, type EnvAssignment } from '../documents/env.ts'
import { withoutMark } from '../documents/positions.ts'
import { describeError, documentError, readClosely, type DocumentError } from '../documents/read.ts'
import { envEditor } from './env.ts'
import { jsonEditor } from './json.ts'
import { comparisonOf, isRefusal, type Editor, type Plan, type Refusal, type RefusalOfAll } from './plan.ts'
import { yamlEditor } from './yaml.ts'

/** The names to set and to remove. A name in `set` and `unset` is set. */
export interface NameChanges {
  /** A text replaces the value. Members are merged into an object (RFC 7396). */
  set: ReadonlyMap<string, PatchValue>
  unset: readonly string[]
  /**
   * The names whose value a string may replace whatever the value is; null for all names. The string of another name
   * changes nothing if the value already reads so (such as the number 1 for "1"), and does not replace an object or a
   * list.
   */
  replace: ReadonlySet<string> | null
}

/** The changed document and the names that the change added, changed and removed. */
export interface ChangedDocument extends Comparison {
  text: string
  /** The assignments of a changed `.env` document. */
  assignments?: readonly EnvAssignment[] | undefined
}

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
  const plan = planOf(before, editor, changes)
  if ('refused' in plan) return plan
  if (plan.set.size === 0 && plan.removed.size === 0) return { text, added: [], changed: [], removed: [] }
  const outcome = outcomeOf(editor, plan)

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
    const typed = editor.typed && emptyEntries()
    const assignments: EnvAssignment[] | undefined = format === 'env' ? [] : undefined
    // With the mark, as it is stored: a document with two has the second one in `edited`.
    const after = readClosely(format, mark + edited, { typed, assignments })
    if (after === undefined) limit ??= documentError(format, edited)?.limit
    // Another attempt cannot have fewer names or tokens, but it may have fewer lines.
    if (limit !== undefined && limit !== LINES) break
    const isTyped = typed === undefined || isChanged(editor.typed!, typed, plan.removed, outcome.typed, isSameJson)
    if (after !== undefined && isTyped && isChanged(before, after, plan.removed, outcome.read, isRead)) {
      return { text: mark + edited, assignments, ...comparisonOf(before, plan) }
    }
    wrong ??= [...outcome.read].find(([name, value]) => after !== undefined && !isRead(after[name], value))?.[0]
  }
  if (limit !== undefined) return { refused: 'limit', limit }
  if (isCut) return { refused: 'untried' }
  // No attempt had the expected values: the format cannot hold the changes next to the other lines of the document.
  const [first = '', ...others] = [...plan.set.keys(), ...plan.removed]
  return wrong === undefined && others.length > 0 ? { refused: 'together' } : { refused: 'unholdable', name: wrong ?? first }
}

function planOf (
  before: Entries, { typed, ...editor }: Editor, { set, unset, replace }: NameChanges
): Plan | Refusal {
  const ambiguous = editor.ambiguous?.(set)
  const planned = new Map<string, PatchValue>()
  for (const [name, patch] of set) {
    const json = mergedJson(typed?.[name], patch)
    if (typed === undefined && !json.startsWith('"')) return { refused: 'not_text', name }
    const isText = replace?.has(name) === false && json.startsWith('"')
    const isAsRead = name in before && before[name] === jsonValue(json)
    const isNested = /^[[{]/.test(typed?.[name] ?? '')
    // A text over an object or a list needs no such care: it replaces the last text, too.
    const isOpen = ambiguous?.has(name) === true && !(isNested && 'text' in patch)
    if (!isOpen && (typed === undefined || isText ? isAsRead : isSameJson(typed[name], json))) continue
    if (isText && isNested) return { refused: 'structured', name }
    const effect = effectOf(typed?.[name], patch, isOpen)
    if (effect !== undefined) planned.set(name, effect)
  }
  return { set: planned, removed: new Set(unset.filter((name) => name in before && !set.has(name))) }
}

/**
 * The values that the changed names must have: as compact JSON, and as they are read, where null stands for an object
 * or a list that may be written in several ways.
 */
function outcomeOf ({ typed: before = emptyEntries() }: Editor, { set }: Plan) {
  const typed = new Map<string, string>()
  const read = new Map<string, string | null>()
  for (const [name, patch] of set) {
    const json = mergedJson(before[name], patch)
    typed.set(name, json)
    read.set(name, /^[[{]/.test(json) ? null : jsonValue(json))
  }
  return { typed, read }
}

/** Whether a value is read as expected; null: the type decides, because the value may be written in several ways. */
const isRead = (read: string | undefined, expected: string | null) => expected === null || read === expected

/** Whether exactly these names were removed and changed. `isEqual` compares a value with that of a changed name. */
function isChanged<T> (
  before: Entries, after: Entries, removed: ReadonlySet<string>, changed: ReadonlyMap<string, T>,
  isEqual: (found: string | undefined, expected: T) => boolean
): boolean {
  const names = Object.keys(after)
  let added = 0
  for (const name of changed.keys()) if (!(name in before)) added++
  return names.length === Object.keys(before).length + added - removed.size && names.every((name) => {
    const expected = changed.get(name)
    return expected === undefined ? before[name] === after[name] : isEqual(after[name], expected)
  })
}
