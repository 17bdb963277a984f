import type { UnreadableReason, WarningReason } from '../../../schemas/documents.ts'
import type { EnvAssignment } from './env.ts'

/** A place where other readers of `.env` files give another value. Offsets refer to the text with line feeds alone. */
export interface Difference { offset: number, name: string, reason: WarningReason }

/** The reasons for which a whole document is not stored, unless the request says `unchecked`. */
const REFUSED = ['text_after_quote', 'value_on_next_line'] as const satisfies UnreadableReason[]
export type RefusedReason = (typeof REFUSED)[number]

export const isRefused = (reason: WarningReason): reason is RefusedReason =>
  (REFUSED as readonly WarningReason[]).includes(reason)

// Without one of these characters, only names that occur twice are read differently, and values in a later line.
const MAY_DIFFER = /[#\\$"'`]/
// A name, a number or a special parameter of a shell.
const EXPANSION = /\$[\w{($#?@*!-]/
const UNESCAPED_EXPANSION = new RegExp(`(?<!\\\\)${EXPANSION.source}`)
const UNESCAPED_BACKTICK = /(?<!\\)`/
const COMMENT = /[^\S\n]+#/y
// A quoted value as dotenv matches the value. A quote without an end was refused before.
const QUOTED = /^(?:'(?:\\'|[^'])*'|"(?:\\"|[^"])*"|`(?:\\`|[^`])*`)$/
const SIMPLE = /^[\w.,:/@%+-]*$/

/**
 * Finds where common readers of `.env` files read another value than dotenv (docs/formats.md), sorted by position: at
 * most one difference of each reason for an assignment, and one for a name that occurs twice, at its last line.
 *
 * @param source the text with line feeds alone
 * @param assignments all assignments of the text, in their order
 * @param written the names that a change wrote: only their differences, also `unquoted`; undefined for a whole document
 */
export function envDifferences (
  source: string, assignments: readonly EnvAssignment[], written?: { has: (name: string) => boolean }
): Difference[] {
  const found: Difference[] = []
  const seen = new Set<string>()
  const repeated = new Map<string, Difference>()
  const isPlain = written === undefined && !MAY_DIFFER.test(source)
  for (const assignment of assignments) {
    const { name } = assignment
    if (written !== undefined && !written.has(name)) continue
    if (seen.has(name)) repeated.set(name, { offset: nameOffset(source, assignment), name, reason: 'duplicate_name' })
    seen.add(name)
    if (isPlain && isOnOneLine(source, assignment)) continue
    for (const [reason, offset] of differencesOf(source, assignment)) {
      if (reason !== 'unquoted' || written !== undefined) found.push({ offset, name, reason })
    }
  }
  return [...found, ...repeated.values()].sort((a, b) => a.offset - b.offset)
}

/** Whether the value directly follows the separator, and the separator the name. */
const isOnOneLine = (source: string, { from, name, separatorTo, valueFrom }: EnvAssignment): boolean =>
  separatorTo === valueFrom &&
  (separatorTo - from === name.length + '='.length || !source.slice(from, separatorTo).includes('\n'))

// Before the separator and the blanks above it. A search for the name would take quadratic time for a long name.
const nameOffset = (source: string, { from, name, separatorTo }: EnvAssignment): number =>
  from + source.slice(from, separatorTo - 1).trimEnd().length - name.length

function differencesOf (
  source: string, assignment: EnvAssignment
): [reason: WarningReason, offset: number][] {
  const { valueFrom, valueTo } = assignment
  const value = source.slice(valueFrom, valueTo)
  const found: [WarningReason, number][] = []
  const add = (reason: WarningReason, index: number) => { if (index !== -1) found.push([reason, valueFrom + index]) }
  const isLater = source.slice(nameOffset(source, assignment), valueFrom).includes('\n')
  if (value !== '' && isLater) add('value_on_next_line', 0)
  if (source[valueTo] === '#') add('comment_without_blank', valueTo - valueFrom)
  const quote = /^["'`]/.exec(value)?.[0]
  if (quote !== undefined && !QUOTED.test(value)) add('text_after_quote', endOfQuote(value, quote))
  else if (quote === "'") add('quote_in_single_quotes', value.indexOf("\\'"))
  else if (quote === '`') add('backticks', 0)
  else if (quote === '"') {
    add('escape_in_double_quotes', keptEscape(value))
    add('expansion', value.search(UNESCAPED_EXPANSION))
    add('backticks', value.search(UNESCAPED_BACKTICK))
  } else {
    if (value === '' && isBeforeComment(source, valueTo)) add('empty_before_comment', 0)
    add('expansion', value.search(EXPANSION))
    add('backticks', value.indexOf('`'))
    if (found.length === 0 && !SIMPLE.test(value)) add('unquoted', 0)
  }
  return found
}

function isBeforeComment (source: string, at: number): boolean {
  COMMENT.lastIndex = at
  return COMMENT.test(source)
}

/** The first escape in double quotes that dotenv keeps: all but `\n` and `\r`; -1 without one. */
function keptEscape (value: string): number {
  let at = value.indexOf('\\')
  while (at !== -1 && /[nr]/.test(value[at + 1]!)) at = value.indexOf('\\', at + 2)
  return at
}

/** The position after the first quote that may end a quoted value. */
const endOfQuote = (value: string, quote: string): number => value.indexOf(quote, 1) + 1
