import { emptyEntries, IN_NO_VARIABLE, type Entries } from '../documents/entries.ts'
import { originalOffsets, readEnv, withLineFeeds, type EnvAssignment } from '../documents/env.ts'
import { mergedJson } from '../documents/json-values.ts'
import { jsonValue } from '../documents/json.ts'
import { envForms, LINE_REST, placeOf, type EnvForm } from './env-forms.ts'
import type { Editor, Plan, Refusal } from './plan.ts'
import { endOfMatch, lineEndOf, spliced, withLines, type Splice } from './splices.ts'

type Choose = (value: string) => EnvForm | undefined

/**
 * The form that each attempt tries first for a value. After a value that ends with a backslash, dotenv can pair the
 * closing quote with a quote in another line. So later attempts try one form for the values that end with a backslash,
 * and then one form for all values.
 */
const ATTEMPTS: readonly Choose[] = [
  () => undefined,
  () => undefined,
  ...(['escaped', 'single', 'backtick'] as const).map((form) => (value: string) =>
    value.endsWith('\\') ? form : undefined),
  ...(['escaped', 'double', 'single', 'backtick', 'plain'] as const).map((form) => () => form)
]

const NAME = /^[\w.-]+$/

/**
 * Changes names of an `.env` document. Of a changed value no character is left, also not those that only other readers
 * than dotenv take as a part of the value. The new value is written in the quotes of the old value if most readers read
 * the value alike in these, else in the first form of `envForms` that can hold the value.
 */
export function envEditor (text: string, entries: Entries): Editor {
  const assignments: EnvAssignment[] = []
  readEnv(text, entries, assignments)
  const source = withLineFeeds(text)
  // A change writes only the last assignment of a name.
  const inForce = new Map(assignments.map((assignment) => [assignment.name, assignment]))
  const ambiguous: Editor['ambiguous'] = (names) => new Set([...inForce]
    .filter(([name, assignment]) => names.has(name) && placeOf(source, assignment).isAmbiguous).map(([name]) => name))
  const write = writer(lineEndOf(text))
  return {
    attempts: ATTEMPTS.length, ambiguous, edit: (plan, attempt) => edit(text, assignments, plan, attempt, write)
  }
}

function edit (
  text: string, assignments: readonly EnvAssignment[], { set, removed }: Plan, attempt: number, write: Writer
): string | Refusal {
  const source = withLineFeeds(text)

  const inForce = new Map<string, EnvAssignment>()
  const splices: Splice[] = []
  for (const assignment of assignments) {
    const { name, from, valueTo } = assignment
    if (set.has(name)) inForce.set(name, assignment)
    if (removed.has(name)) splices.push({ from, to: endOfMatch(LINE_REST, source, valueTo), text: '' })
  }
  const added: string[] = []
  for (const [name, patch] of set) {
    const value = jsonValue(mergedJson(undefined, patch))
    const assignment = inForce.get(name)
    const place = assignment && placeOf(source, assignment)
    const written = NAME.test(name) ? write(value, place?.kept(value), ATTEMPTS[attempt]!(value)) : undefined
    if (written === undefined) return { refused: 'unholdable', name }
    if (place === undefined) added.push(`${name}=${written}`)
    else splices.push({ from: place.from, to: place.to, text: place.blank + written })
  }
  const offsetOf = originalOffsets(text)
  const inText = splices.sort((a, b) => a.from - b.from).map(({ from, to, text }) => {
    // If two splices overlap, an offset is lower than the previous offset. `offsetOf` is still right for this offset,
    // because an overlap contains no line ending.
    return { from: offsetOf(from), to: offsetOf(to), text }
  })
  // dotenv reads the line after a line `NAME:` as the value of that name, unless the line is blank.
  if (attempt > 0 && added.length > 0) added.unshift('')
  return withLines(spliced(text, inText), text, added, lineEndOf(text))
}

/**
 * Writes a value. Returns undefined if no form can hold the value.
 *
 * @param kept as in `envForms`
 * @param first a form to try before all others
 */
type Writer = (value: string, kept: EnvForm | undefined, first: EnvForm | undefined) => string | undefined

function writer (lineEnd: string): Writer {
  // Caches whether a form can hold a value, because each attempt tests the same forms and values again.
  const known = new Map<string, boolean>()
  return (value, kept, first) => {
    if (IN_NO_VARIABLE.test(value)) return undefined
    const forms = envForms(value, lineEnd, kept)
    return [...forms.filter(({ form }) => form === first), ...forms].find(({ form, text }) => {
      const key = `${form} ${value}`
      const isHeld = known.get(key) ?? readsAs(text, value)
      known.set(key, isHeld)
      return isHeld
    })?.text
  }
}

function readsAs (text: string, value: string): boolean {
  const entries = emptyEntries()
  try {
    readEnv(`X=${text}`, entries)
  } catch { return false }
  return entries['X'] === value
}
