import type { Entries } from '../documents/entries.ts'
import { originalOffsets, readEnv, withLineFeeds, type EnvAssignment } from '../documents/env.ts'
import { readDocument } from '../documents/read.ts'
import type { Editor, Plan, Refusal } from './plan.ts'
import { endOfMatch, lineEndOf, spliced, withLines, type Splice } from './splices.ts'

/**
 * The forms in which a value can be written. dotenv expands `\n` and `\r` in double quotes only. dotenv keeps a
 * backslash before a quote, so no quote can be escaped.
 */
const FORMS = {
  escaped: (value: string) => `"${value.replaceAll('\n', '\\n').replaceAll('\r', '\\r')}"`,
  double: (value: string, lineEnd: string) => `"${value.replaceAll('\n', lineEnd)}"`,
  single: (value: string, lineEnd: string) => `'${value.replaceAll('\n', lineEnd)}'`,
  backtick: (value: string, lineEnd: string) => `\`${value.replaceAll('\n', lineEnd)}\``,
  plain: (value: string) => value
}

type Form = keyof typeof FORMS

/** The order in which forms are tried. Single quotes are first: a shell and Docker Compose expand nothing in them. */
const NEW_VALUE: readonly Form[] = ['single', 'double', 'escaped', 'backtick', 'plain']

type Choose = (value: string) => Form | undefined

/**
 * The form that each attempt tries first for a value. After a value that ends with a backslash, dotenv can pair the
 * closing quote with a quote in another line. So later attempts try one form for all values, and then one form for the
 * values that end with a backslash.
 */
const ATTEMPTS: readonly Choose[] = [
  () => undefined,
  () => undefined,
  ...(Object.keys(FORMS) as Form[]).map((form) => () => form),
  ...(['escaped', 'single', 'backtick'] as const).map((form) => (value: string) =>
    value.endsWith('\\') ? form : undefined)
]

/** The character that ends a value in each form. */
const QUOTES: Record<Form, string> = { escaped: '"', double: '"', single: "'", backtick: '`', plain: '\n' }

/** Values that mean the same without quotes in dotenv, Docker Compose and a shell. */
const SIMPLE = /^[\w.,:/@%+-]+$/

const NAME = /^[\w.-]+$/
// UTF-8 has no lone surrogates, and no environment variable can have a NUL.
const NOT_IN_ENV = /\0|\p{Surrogate}/u
// The rest of the line after a value: blanks, a comment and the line ending. Like dotenv's `$`, a comment ends at any
// line terminator of JavaScript.
const LINE_REST = /[^\S\n\u2028\u2029]*(?:#.*)?(?:[\n\u2028\u2029]|$)/y

export function envEditor (text: string, entries: Entries): Editor {
  const assignments: EnvAssignment[] = []
  readEnv(text, entries, assignments)
  const written = writer(lineEndOf(text))
  return { attempts: ATTEMPTS.length, edit: (plan, attempt) => edit(text, assignments, plan, attempt, written) }
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
  for (const [name, value] of set) {
    const assignment = inForce.get(name)
    const old = assignment && source.slice(assignment.valueFrom, assignment.valueTo)
    const written = NAME.test(name) ? write(value, formOf(old), ATTEMPTS[attempt]!(value)) : undefined
    if (written === undefined) return { refused: 'unholdable', name }
    if (assignment === undefined) added.push(`${name}=${written}`)
    else {
      const { valueFrom, valueTo, colon } = assignment
      splices.push({ from: valueFrom, to: valueTo, text: colon && old === '' ? ` ${written}` : written })
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

/** The form of a written value. Undefined for a new value and for an empty value. */
function formOf (written = ''): Form | undefined {
  const quote = written[0]
  if (quote === '"') return written.includes('\n') || !written.includes('\\n') ? 'double' : 'escaped'
  return quote === undefined ? undefined : quote === "'" ? 'single' : quote === '`' ? 'backtick' : 'plain'
}

/**
 * Writes a value. Returns undefined if no form can hold the value.
 *
 * @param old the form of the old value; kept if it can hold the new value, and the new value does not contain its quote
 * @param first a form to try before all others
 */
type Writer = (value: string, old: Form | undefined, first: Form | undefined) => string | undefined

function writer (lineEnd: string): Writer {
  // Caches whether a form can hold a value, because each attempt tests the same forms and values again.
  const known = new Map<string, boolean>()
  return (value, old, first) => {
    const isPlain = old === undefined || old === 'plain'
    if (first === undefined && isPlain && (value === '' || SIMPLE.test(value))) return value
    if (NOT_IN_ENV.test(value)) return undefined
    // A shell runs or splits a plain value that is not `SIMPLE`, and expands these characters in double quotes. So the
    // old form is not kept.
    const isExpanded = isPlain || (old !== 'single' && /[$`\\]/.test(value))
    const forms = isExpanded ? NEW_VALUE : [old, ...NEW_VALUE]
    // Tries first the forms whose quote is not in the value: some parsers, unlike dotenv, cannot read the others.
    const clear = forms.filter((form) => !value.includes(QUOTES[form]))
    const form = [...first === undefined ? [] : [first], ...clear, ...forms].find((form) => {
      const key = `${form} ${value}`
      const isHeld = known.get(key) ?? readDocument('env', `X=${FORMS[form](value, lineEnd)}`)?.['X'] === value
      known.set(key, isHeld)
      return isHeld
    })
    return form && FORMS[form](value, lineEnd)
  }
}
