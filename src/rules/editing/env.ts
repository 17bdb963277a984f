import type { Entries } from '../documents/entries.ts'
import { originalOffsets, readEnv, withLineFeeds, type EnvAssignment } from '../documents/env.ts'
import { mergedJson } from '../documents/json-tree.ts'
import { jsonValue } from '../documents/json.ts'
import { readDocument } from '../documents/read.ts'
import { envForms, type EnvForm } from './env-forms.ts'
import type { Editor, Plan, Refusal } from './plan.ts'
import { endOfMatch, lineEndOf, spliced, withLines, type Splice } from './splices.ts'

type Choose = (value: string) => EnvForm | undefined

/**
 * The form that each attempt tries first for a value. After a value that ends with a backslash, dotenv can pair the
 * closing quote with a quote in another line. So later attempts try one form for all values, and then one form for the
 * values that end with a backslash.
 */
const ATTEMPTS: readonly Choose[] = [
  () => undefined,
  () => undefined,
  ...(['escaped', 'double', 'single', 'backtick', 'unquoted'] as const).map((form) => () => form),
  ...(['escaped', 'single', 'backtick'] as const).map((form) => (value: string) =>
    value.endsWith('\\') ? form : undefined)
]

const NAME = /^[\w.-]+$/
// UTF-8 has no lone surrogates, and no environment variable can have a NUL.
const NOT_IN_ENV = /\0|\p{Surrogate}/u
// The rest of the line after a value: blanks, a comment and the line ending. Like dotenv's `$`, a comment ends at any
// line terminator of JavaScript.
const LINE_REST = /[^\S\n\u2028\u2029]*(?:#.*)?(?:[\n\u2028\u2029]|$)/y
// A comment without a blank before it, up to a blank and a `#`: some readers take it as a part of the value.
const GLUED = /#(?:(?![^\S\n\u2028\u2029]#).)*/y

export function envEditor (text: string, entries: Entries): Editor {
  const assignments: EnvAssignment[] = []
  readEnv(text, entries, assignments)
  const written = writer(lineEndOf(text))
  const source = withLineFeeds(text)
  const ambiguous = new Set(assignments.filter(({ valueTo }) => source[valueTo] === '#').map(({ name }) => name))
  return {
    attempts: ATTEMPTS.length, ambiguous, edit: (plan, attempt) => edit(text, assignments, plan, attempt, written)
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
    const assignment = inForce.get(name)
    const value = jsonValue(mergedJson(undefined, patch))
    const old = assignment && source.slice(assignment.valueFrom, assignment.valueTo)
    const written = NAME.test(name) ? write(value, formOf(old), ATTEMPTS[attempt]!(value)) : undefined
    if (written === undefined) return { refused: 'unholdable', name }
    if (assignment === undefined) added.push(`${name}=${written}`)
    else {
      const { separatorTo, valueFrom, valueTo, colon } = assignment
      // Most readers do not find a value in a later line than its name.
      const isBelow = source.slice(separatorTo, valueFrom).includes('\n')
      splices.push({
        from: isBelow ? separatorTo : valueFrom,
        to: endOfMatch(GLUED, source, valueTo),
        text: colon && (isBelow || old === '') ? ` ${written}` : written
      })
    }
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

/** The form of a written value. Undefined for a new value and for a value without quotes. */
function formOf (written = ''): EnvForm | undefined {
  const quote = written[0]
  if (quote === '"') return written.includes('\n') || !written.includes('\\n') ? 'double' : 'escaped'
  return quote === "'" ? 'single' : quote === '`' ? 'backtick' : undefined
}

/**
 * Writes a value. Returns undefined if no form can hold the value.
 *
 * @param old the form of the old value; kept if other readers read the new value in this form as well as in another one
 * @param first a form to try before all others
 */
type Writer = (value: string, old: EnvForm | undefined, first: EnvForm | undefined) => string | undefined

function writer (lineEnd: string): Writer {
  // Caches whether a form can hold a value, because each attempt tests the same forms and values again.
  const known = new Map<string, boolean>()
  return (value, old, first) => {
    if (NOT_IN_ENV.test(value)) return undefined
    const forms = envForms(value, lineEnd)
    const preferred = [first, isKept(value, old, lineEnd) ? old : undefined]
    const order = [...preferred.flatMap((wanted) => forms.find(({ form }) => form === wanted) ?? []), ...forms]
    return order.find(({ form, text }) => {
      const key = `${form} ${value}`
      const isHeld = known.get(key) ?? readDocument('env', `X=${text}`)?.['X'] === value
      known.set(key, isHeld)
      return isHeld
    })?.text
  }
}

/** Whether a new value keeps the quotes of the old value. Shells and other readers expand `$` in double quotes. */
function isKept (value: string, old: EnvForm | undefined, lineEnd: string): boolean {
  const quote = old === 'single' ? "'" : '"'
  if (old === undefined || old === 'backtick' || value.includes(quote)) return false
  if (old !== 'escaped' && lineEnd !== '\n' && value.includes('\n')) return false
  return old === 'single' || !/[$`\\]/.test(value)
}
