import { Type, type Static } from '@sinclair/typebox'
import { Example, Nullable, OneOf } from './shapes.ts'

/**
 * Why a document does not parse: `details.reason` of 422 `document_unreadable`, with the sentence that follows the line
 * in the message. A sentence never quotes the document, because a line of an unreadable document may be a piece of a
 * secret.
 */
export const UNREADABLE_REASONS = {
  syntax: 'the text does not parse.',
  no_assignment: 'this is no assignment NAME=value.',
  quote_not_closed: 'the quote is not closed.',
  text_after_quote:
    'there is text after the closing quote, which other programs read differently. Write it\'s as "it\'s".',
  value_on_next_line: 'the value is on the line after its name, where other programs do not find it.',
  carriage_return: 'a carriage return without a line feed, which other YAML readers take as the end of a line.',
  not_a_mapping: 'the document is not a mapping of names to values.',
  duplicate_name: 'a name occurs twice.',
  no_scalar_name: 'a name is not a text, a number or a boolean.',
  merge_key: 'YAML merge keys (<<) are not supported.',
  tag: 'YAML tags outside of the core schema are not supported.',
  several_documents: 'a second YAML document begins.',
  tab: 'YAML does not allow tabs as indentation.',
  unknown_alias: 'the YAML alias refers to no anchor before it.',
  nesting: 'the document is nested too deeply.',
  limit: 'the document exceeds a limit.',
  not_utf8: 'the document is not valid UTF-8.'
} as const

export type UnreadableReason = keyof typeof UNREADABLE_REASONS

/**
 * Where common readers of `.env` files, or of YAML (`carriage_return` to `syntax`), give another value than this
 * service (docs/formats.md), or a document that cannot be read at all (`unreadable`).
 */
export const WARNING_REASONS = [
  'comment_without_blank', 'empty_before_comment', 'escape_in_double_quotes', 'quote_in_single_quotes', 'expansion',
  'backticks', 'unquoted', 'text_after_quote', 'value_on_next_line', 'duplicate_name', 'carriage_return',
  'quote_not_closed', 'tab', 'syntax', 'unreadable'
] as const

export type WarningReason = (typeof WARNING_REASONS)[number]

/** Maximum number of warnings in a response; `warnings_more` counts the others. */
export const MAX_WARNINGS = 20

const DocumentWarning = Type.Object({
  line: Example(Nullable(Type.Integer({ description: 'the first line is 1; null if no line has the reason' })), 1),
  column: Example(Nullable(Type.Integer({ description: 'in characters; the first column is 1' })), 1),
  name: Example(Nullable(Type.String()), 'HELLO'),
  reason: Example(OneOf(WARNING_REASONS), 'comment_without_blank')
}, { title: 'DocumentWarning' })
export type DocumentWarning = Static<typeof DocumentWarning>

/** The fields of a response to a change of a document that other readers may read differently. */
export const WARNINGS = {
  warnings: Type.Optional(Type.Array(DocumentWarning, {
    maxItems: MAX_WARNINGS, description: 'where common readers of the format give other values; see docs/formats.md'
  })),
  warnings_more: Type.Optional(Type.Integer({ description: 'further warnings, which are not listed' }))
}
