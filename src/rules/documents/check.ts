import { MAX_WARNINGS, type DocumentWarning } from '../../../schemas/documents.ts'
import { emptyEntries, type DocumentFormat, type NamedFormat } from './entries.ts'
import { envDifferences, isRefused, type Difference } from './env-dialect.ts'
import { originalOffsets, readEnv, withLineFeeds, type EnvAssignment } from './env.ts'
import { positionAfter, withoutMark } from './positions.ts'
import { describeError, documentError, type DocumentError } from './read.ts'
import { tabAsIndentation, unclosedQuote, valueWithoutColon } from './yaml.ts'

/** The fields of a response that say where other readers give other values. */
export interface Warnings { warnings?: DocumentWarning[], warnings_more?: number }

/** What a document is to this service and to other readers of its format. */
export interface DocumentCheck {
  /** Why the document does not parse. */
  error?: DocumentError
  /** Why a whole document is not stored although it parses, unless the request says `unchecked`. */
  refusal?: DocumentError
  warnings: Warnings
}

/** Checks a document that is stored as a whole. JSON has no refusal, and no warnings without an error. */
export function checkDocument (format: DocumentFormat, text: string): DocumentCheck {
  if (format !== 'env') {
    const error = documentError(format, text)
    if (error !== undefined) return { error, warnings: unreadableWarning(error) }
    return format === 'yaml' ? checkYaml(text) : { warnings: {} }
  }
  try {
    const differences = differencesIn(text)
    const refused = differences.find(({ reason }) => isRefused(reason))
    const warnings = warningsOf(text, differences)
    if (refused === undefined) return { warnings }
    const [position] = positionsOf(text, [refused])
    return { refusal: { ...position!, reason: refused.reason as 'text_after_quote' }, warnings }
  } catch (thrown) {
    const error = describeError(text, thrown)
    return { error, warnings: unreadableWarning(error) }
  }
}

// What the package `yaml` reads and other readers refuse or read differently: a carriage return alone, which is a part
// of the line here and its end there, a quote that is not closed, a value without a colon, and a tab as indentation.
function checkYaml (text: string): DocumentCheck {
  const source = withoutMark(text)
  const found = ([
    [unclosedQuote(source), 'quote_not_closed'], [valueWithoutColon(source), 'syntax'],
    [tabAsIndentation(source), 'tab'], [indexOf(source, /\r(?!\n)/), 'carriage_return']
  ] as const).find(([offset]) => offset !== undefined)
  if (found === undefined) return { warnings: {} }
  const [offset, reason] = found
  const position = positionAfter(source.slice(0, offset))
  return { refusal: { ...position, reason }, warnings: { warnings: [{ ...position, name: null, reason }] } }
}

function indexOf (text: string, pattern: RegExp): number | undefined {
  const offset = text.search(pattern)
  return offset === -1 ? undefined : offset
}

/**
 * The warnings about the names that a change of a document wrote. `assignments`: those of an `.env` document, if known.
 */
export function warningsOfChange (
  format: NamedFormat, { text, assignments }: { text: string, assignments?: readonly EnvAssignment[] | undefined },
  written: ReadonlySet<string>
): Warnings {
  return format === 'env' ? warningsOf(text, differencesIn(text, written, assignments)) : {}
}

/** The only warning about a document that does not parse. */
export const unreadableWarning = ({ line, column }: Pick<DocumentError, 'line' | 'column'>): Warnings =>
  ({ warnings: [{ line, column, name: null, reason: 'unreadable' }] })

/** The differences of an `env` document. Throws UnreadableDocument. */
function differencesIn (
  text: string, written?: ReadonlySet<string>, assignments?: readonly EnvAssignment[]
): Difference[] {
  const source = withoutMark(text)
  // First, because this checks the limit of lines.
  const all = assignments ?? assignmentsIn(source)
  return envDifferences(withLineFeeds(source), all, written)
}

function assignmentsIn (source: string): EnvAssignment[] {
  const assignments: EnvAssignment[] = []
  readEnv(source, emptyEntries(), assignments)
  return assignments
}

function warningsOf (text: string, differences: readonly Difference[]): Warnings {
  if (differences.length === 0) return {}
  const listed = differences.slice(0, MAX_WARNINGS)
  const positions = positionsOf(text, listed)
  const more = differences.length - listed.length
  return {
    warnings: listed.map(({ name, reason }, index) => ({ ...positions[index]!, name, reason })),
    ...(more > 0 && { warnings_more: more })
  }
}

/** The positions of differences in ascending order, in one pass over the text. */
function positionsOf (text: string, differences: readonly Difference[]) {
  const source = withoutMark(text)
  const offsetOf = originalOffsets(source)
  let at = 0
  let position = { line: 1, column: 1 }
  return differences.map(({ offset }) => {
    const next = offsetOf(offset)
    position = positionAfter(source.slice(at, next), position)
    at = next
    return position
  })
}
