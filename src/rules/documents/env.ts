import { UnreadableDocument, type Entries } from './entries.ts'
import { WORK, type Work } from './work.ts'

/** Limits: lines and names. */
export const MAX_LINES = 20_000
export const MAX_NAMES = 10_000
/** The limit of lines as text, for messages. */
export const LINES = `${MAX_LINES.toLocaleString('en')} lines`

/** An assignment. Its offsets refer to the text that `withLineFeeds` returns. */
export interface EnvAssignment {
  name: string
  from: number
  /** The position after the separator. */
  separatorTo: number
  /** The value as written, with quotes, without blanks around it. Without a value: the position after the separator. */
  valueFrom: number
  valueTo: number
  /** Whether the separator is a colon, which needs a blank before the value. */
  colon: boolean
}

const ENV_LINE_END = /\r\n?|\n/g
const ENV_NOTHING = /[^\S\n]*(?:#[^\n]*)?(?:\n|$)/y
// dotenv's pattern for an assignment, but sticky, so that invalid lines are detected. dotenv itself searches for the
// next match, and so silently skips invalid lines.
const ENV_ASSIGNMENT =
  /[^\S\n]*(?:export\s+)?([\w.-]+)((?:\s*=\s*?|:\s+?)(\s*'(?:\\'|[^'])*'|\s*"(?:\\"|[^"])*"|\s*`(?:\\`|[^`])*`|[^#\n]+)?\s*(?:#.*)?$)/my

// The quotes that dotenv removes, as with the pattern /^(['"`])([\s\S]*)\1$/mg: from a quote at the start of a line to
// the last such quote at the end of a line. The pattern itself takes quadratic time.
const OPENING_QUOTE = /^['"`]/mg
const LINE_SEPARATORS = '\n\r\u2028\u2029'

// Fast path for nearly all lines: a value without quotes, escapes or comments.
const ENV_PLAIN = /([\w.-]+)=([^\s'"`#][^\n'"`#]*)(?:\n|$)/y

// Fast path for a value in quotes in one line. Does not match a value with a quote inside or a backslash at its end,
// because dotenv may continue it.
const ENV_QUOTED = /[ \t]*(?:export[ \t]+)?([\w.-]+)(?:[ \t]*=|:[ \t])[ \t]*(?:"((?:[^"\n\u2028\u2029]*[^"\\\n\u2028\u2029])?)"|'((?:[^'\n\u2028\u2029]*[^'\\\n\u2028\u2029])?)')[ \t]*(?:#[^\n\u2028\u2029]*)?(?:\n|$)/y

/** Replaces all line ends by line feeds, as dotenv does. */
export const withLineFeeds = (text: string) => text.includes('\r') ? text.replace(ENV_LINE_END, '\n') : text

/**
 * Converts offsets into the text that `withLineFeeds` returns to offsets into the original text. The returned function
 * must be called with ascending offsets, so that all conversions together read the text once.
 */
export function originalOffsets (text: string) {
  let pairs = 0
  let next = text.indexOf('\r\n')
  return (offset: number) => {
    while (next !== -1 && next - pairs < offset) {
      pairs++
      next = text.indexOf('\r\n', next + 2)
    }
    return offset + pairs
  }
}

/** Throws UnreadableDocument if a text has too many lines. `indexOf` takes a seventh of the time of an expression. */
function requireLines (text: string) {
  if (text.length <= MAX_LINES) return
  let [lf, cr] = [text.indexOf('\n'), text.indexOf('\r')]
  for (let lines = 1; lf !== -1 || cr !== -1; lines++) {
    const at = lf === -1 || (cr !== -1 && cr < lf) ? cr : lf
    const next = text.startsWith('\r\n', at) ? at + 2 : at + 1
    if (lines > MAX_LINES) throw UnreadableDocument.ofLimit(next, LINES)
    if (lf !== -1 && lf < next) lf = text.indexOf('\n', next)
    if (cr !== -1 && cr < next) cr = text.indexOf('\r', next)
  }
}

/**
 * Reads a document by dotenv's rules, without variable expansion. Any invalid line makes the whole document invalid.
 *
 * @param found receives all assignments, in their order
 * @param work counts the assignments, and the lines without one
 */
export function readEnv (text: string, entries: Entries, found?: EnvAssignment[], work: Work = { done: 0 }) {
  // Before parsing: blank lines and comments cost time, too, and so does each line end that is replaced.
  requireLines(text)
  const source = withLineFeeds(text)
  const count = (units: number) => {
    work.done += units
    if (++names > MAX_NAMES) {
      throw UnreadableDocument.ofLimit(originalOffsets(text)(at), `${MAX_NAMES.toLocaleString('en')} names`)
    }
  }
  let at = 0
  let names = 0
  // dotenv ends a comment also at these line separators, which the fast path does not know.
  const isFast = found === undefined && !/[\u2028\u2029]/.test(source)
  // A line is mostly like the line before it, so the pattern of that line is tried first.
  let isAfterQuoted = false
  while (at < source.length) {
    ENV_PLAIN.lastIndex = at
    const plain = isAfterQuoted ? null : ENV_PLAIN.exec(source)
    if (plain) {
      count(WORK.plainName)
      const name = plain[1]!
      const value = plain[2]!.trim()
      entries[name] = value
      if (found) {
        const valueFrom = at + name.length + 1
        found.push({
          name, from: at, separatorTo: valueFrom, valueFrom, valueTo: valueFrom + value.length, colon: false
        })
      }
      at = ENV_PLAIN.lastIndex
      continue
    }
    ENV_QUOTED.lastIndex = at
    // The caller of `found` needs positions, which the fast path does not have.
    const quoted = isFast ? ENV_QUOTED.exec(source) : null
    if (quoted) {
      count(WORK.otherName)
      const [, name = '', double, single = ''] = quoted
      entries[name] = double === undefined ? single : withEscapes(double)
      at = ENV_QUOTED.lastIndex
      isAfterQuoted = true
      continue
    }
    if (isAfterQuoted) {
      isAfterQuoted = false
      continue
    }
    ENV_NOTHING.lastIndex = at
    if (ENV_NOTHING.test(source)) {
      work.done += WORK.emptyLine
      at = ENV_NOTHING.lastIndex
      continue
    }
    ENV_ASSIGNMENT.lastIndex = at
    const match = ENV_ASSIGNMENT.exec(source)
    if (!match) throw new UnreadableDocument(originalOffsets(text)(at), 'no_assignment')
    count(WORK.otherName)
    const [, name = '', rest = '', written = ''] = match
    const trimmed = written.trim()
    if (isUnterminated(trimmed)) throw new UnreadableDocument(originalOffsets(text)(at), 'quote_not_closed')
    entries[name] = valueOf(trimmed)
    found?.push({ name, from: at, ...valueRange(rest, ENV_ASSIGNMENT.lastIndex - rest.length, trimmed) })
    at = ENV_ASSIGNMENT.lastIndex
  }
}

// The value as dotenv reads it. Faster than a call of dotenv for each assignment, and dotenv's run time for a whole
// document is quadratic in the number of blank lines.
function valueOf (written: string): string {
  const value = withoutQuotes(written)
  return written.startsWith('"') ? withEscapes(value) : value
}

function withoutQuotes (written: string): string {
  const ends = new Map<string, number>()
  let value = ''
  let at = 0
  for (const { 0: quote, index } of written.matchAll(OPENING_QUOTE)) {
    const end = ends.get(quote) ?? closingQuote(written, quote)
    ends.set(quote, end)
    if (index < at || end <= index) continue
    value += written.slice(at, index) + written.slice(index + 1, end)
    at = end + 1
  }
  return value + written.slice(at)
}

/** The position of the last quote at the end of a line; -1 without one. */
function closingQuote (written: string, quote: string): number {
  let at = written.lastIndexOf(quote)
  while (at > 0 && at + 1 < written.length && !LINE_SEPARATORS.includes(written[at + 1]!)) {
    at = written.lastIndexOf(quote, at - 1)
  }
  return at
}

const withEscapes = (value: string) =>
  value.includes('\\') ? value.replace(/\\n/g, '\n').replace(/\\r/g, '\r') : value

function valueRange (rest: string, restFrom: number, trimmed: string) {
  const separator = rest.search(/[=:]/)
  const after = separator + 1
  const from = restFrom + (trimmed === '' ? after : after + rest.slice(after).search(/\S/))
  return {
    separatorTo: restFrom + after, valueFrom: from, valueTo: from + trimmed.length, colon: rest[separator] === ':'
  }
}

/** Whether the closing quote is missing: dotenv would read the opening quote as a part of the value. */
function isUnterminated (written: string) {
  const quote = written[0]
  return quote !== undefined && '"\'`'.includes(quote) && written.indexOf(quote, 1) === -1
}
