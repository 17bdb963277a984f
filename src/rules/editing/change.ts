import { emptyEntries, type Entries, type NamedFormat } from '../documents/entries.ts'
import { errorPosition, readDocument, withoutMark, type Position } from '../documents/read.ts'
import { compareEntries, type Comparison } from './compare.ts'
import { envEditor } from './env.ts'
import { jsonEditor } from './json.ts'
import { isRefusal, type Plan, type Refusal } from './plan.ts'
import { yamlEditor } from './yaml.ts'

/** The names to set and to remove. A name in both is set. */
export interface NameChanges { set: ReadonlyMap<string, string>, unset: readonly string[] }

/** The changed document and the names that the change added, changed and removed. */
export interface ChangedDocument extends Comparison { text: string }

// Each attempt reads the whole document. For a larger text, more than two would block the event loop for too long.
const LARGE = 64 * 1024

const EDITORS = { env: envEditor, json: jsonEditor, yaml: yamlEditor }

/**
 * Changes single names of a document. Every byte that does not belong to a changed name stays.
 *
 * - Set: the value is replaced where it is written, in its style if the style can hold the new value. Of duplicate
 *   names, the last one, which is in force, is changed. A name that already has the value is not changed. A new name
 *   goes to the end, in the order of `set`.
 * - Remove: the name is removed with its lines and with the comment behind its value; a comment above it stays. All
 *   duplicates are removed. A missing name changes nothing.
 * - An empty text is a missing document, in all formats.
 *
 * The values of the result are exactly those of the document with the changes applied: `readDocument` checks it.
 */
export function changeNames (
  format: NamedFormat, text: string, changes: NameChanges
): ChangedDocument | Refusal | { refused: 'unreadable' } & Position {
  const source = withoutMark(text)
  const mark = text.slice(0, text.length - source.length)
  const before = emptyEntries()
  let editor
  try {
    editor = EDITORS[format](source, before)
  } catch (error) {
    return { refused: 'unreadable', ...errorPosition(text, error) }
  }
  const plan = planOf(before, changes)
  if (plan.set.size === 0 && plan.removed.size === 0) return { text, added: [], changed: [], removed: [] }
  const expected: Entries = Object.assign(emptyEntries(), before, Object.fromEntries(plan.set))
  for (const name of plan.removed) delete expected[name]

  let wrong: string | undefined
  const tried = new Set<string>()
  for (let attempt = 0; attempt < editor.attempts; attempt++) {
    const edited = editor.edit(plan, attempt)
    if (isRefusal(edited)) return edited
    if (tried.has(edited)) continue
    if (tried.size > 1 && edited.length > LARGE) break
    tried.add(edited)
    const after = readDocument(format, edited)
    if (after !== undefined && isSame(after, expected)) {
      return { text: mark + edited, ...compareEntries(before, after) }
    }
    wrong ??= [...plan.set.keys()].find((name) => after !== undefined && after[name] !== expected[name])
  }
  // The whole document exceeds a limit, or the format cannot hold the change beside the other lines.
  return { refused: 'unholdable', name: wrong ?? [...plan.set.keys(), ...plan.removed][0] ?? '' }
}

function planOf (before: Entries, { set, unset }: NameChanges): Plan {
  return {
    set: new Map([...set].filter(([name, value]) => before[name] !== value)),
    removed: new Set(unset.filter((name) => name in before && !set.has(name)))
  }
}

function isSame (a: Entries, b: Entries) {
  const names = Object.keys(a)
  return names.length === Object.keys(b).length && names.every((name) => a[name] === b[name])
}
