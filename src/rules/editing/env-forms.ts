import type { EnvAssignment } from '../documents/env.ts'

/** How a value can be written in an `.env` document. `escaped`: in double quotes on one line, with `\n` and `\r`. */
export type EnvForm = 'plain' | 'single' | 'double' | 'escaped' | 'backtick'

export interface WrittenValue { form: EnvForm, text: string }

/** Values that every reader reads alike without quotes. */
const SIMPLE = /^[\w.,:/@%+-]*$/
/** Other values that most readers read without quotes, except shells. */
const READ_PLAIN = /^(?![\s'"])[^#`$\\;&|<>()\r\n]+(?<!\s)$/
/** Characters that readers expand in double quotes. */
const EXPANDED = /[$`\\]/

/** Where the value of a name is written. */
export interface EnvPlace {
  /** The part to replace: all that a common reader takes as the value, and the lines before a value on a later line. */
  from: number
  to: number
  /** Whether other readers than dotenv read another value there. */
  isAmbiguous: boolean
  /** The form that stays if readers expand nothing of the new value in it. */
  kept: (value: string) => EnvForm | undefined
  /** The text between the separator and a value: a blank if the separator needs one. */
  blank: string
}

// To dotenv, a line also ends at U+2028 and U+2029; other readers read on. So what follows there belongs to the line,
// unless dotenv finds an assignment in it.
const NO_ASSIGNMENT = String.raw`(?:[\u2028\u2029][^\S\n\u2028\u2029]*(?:#.*)?)*(?=\n|$)`
const REST_OF_LINE = new RegExp(`.*${NO_ASSIGNMENT}|.*`, 'y')
/** What a removal of a name removes after its value: blanks, a comment and the line ending. */
export const LINE_REST = new RegExp(
  String.raw`[^\S\n\u2028\u2029]*(?:#.*)?(?:${NO_ASSIGNMENT}(?:\n|$)|[\n\u2028\u2029]|$)`, 'y'
)
// The rest of a line if it is no part of the value for any common reader: blanks, or a comment after a blank.
const NO_VALUE = /^[ \t]*(?:[ \t]#|$)/
// A comment that all common readers find after a value without quotes: Compose needs a space before its `#`, and
// godotenv takes the last `#` after a blank.
const COMMENT_OF_PLAIN = /^\s* #(?![^]*\s#)/

/** The place of an assignment in a text with line feeds alone. */
export function placeOf (source: string, { separatorTo, valueFrom, valueTo, colon }: EnvAssignment): EnvPlace {
  const old = source.slice(valueFrom, valueTo)
  const isBelow = /[^ \t]/.test(source.slice(separatorTo, valueFrom))
  REST_OF_LINE.lastIndex = valueTo
  const [rest = ''] = REST_OF_LINE.exec(source) ?? []
  const comment = NO_VALUE.test(rest) ? 0 : rest.search(/[ \t]#/)
  const glued = comment === -1 ? rest.length : comment
  return {
    from: isBelow ? separatorTo : valueFrom,
    to: valueTo + glued,
    isAmbiguous: isBelow || glued > 0,
    kept: (value) => keptForm(old, rest.slice(glued), value),
    blank: colon && (isBelow || valueFrom === separatorTo) ? ' ' : ''
  }
}

/**
 * The old quotes, unless they are backticks. Single quotes if some readers would take the comment as a part of a value
 * without quotes.
 */
function keptForm (old: string, comment: string, value: string): EnvForm | undefined {
  if (old.startsWith('"')) return !old.includes('\n') && old.includes('\\n') ? 'escaped' : 'double'
  const isInValue = comment.includes('#') && (value === '' || !COMMENT_OF_PLAIN.test(comment))
  return old.startsWith("'") || isInValue ? 'single' : undefined
}

/**
 * The ways to write a value. The order follows the number of common readers that read them alike: in single quotes most
 * expand nothing; other readers than dotenv do not know backticks, and a shell runs what is in them. In a document with
 * CRLF, many readers do not read line feeds as such, so that an escape comes first, if nothing else is expanded there.
 * The last ways contain their own quote, which dotenv cannot escape: only dotenv reads them, and not every value.
 *
 * @param lineEnd the line ending of the document
 * @param kept a form to keep, if readers expand nothing of the value in it
 */
export function envForms (value: string, lineEnd: string, kept?: EnvForm): WrittenValue[] {
  const lines = value.replaceAll('\n', lineEnd)
  const single: WrittenValue = { form: 'single', text: `'${lines}'` }
  const double: WrittenValue = { form: 'double', text: `"${lines}"` }
  const escaped: WrittenValue = {
    form: 'escaped', text: `"${value.replaceAll('\n', '\\n').replaceAll('\r', '\\r')}"`
  }
  const plain: WrittenValue = { form: 'plain', text: value }
  const backtick: WrittenValue = { form: 'backtick', text: `\`${lines}\`` }
  const escapesFirst = lineEnd !== '\n' && value.includes('\n') && !/[$\\]/.test(value)
  const quoted = escapesFirst ? [escaped, single, double] : [single, double, escaped]
  const isKept = !escapesFirst && (kept === 'single' || !EXPANDED.test(value))
  const clear = [...quoted.filter(({ form }) => isKept && form === kept), ...quoted]
    .filter(({ text }) => !value.includes(text[0]!))
  return [
    ...kept === undefined && SIMPLE.test(value) ? [plain] : [],
    ...clear,
    ...READ_PLAIN.test(value) ? [plain] : [],
    ...value.includes('`') ? [] : [backtick],
    plain, ...quoted, backtick
  ]
}
