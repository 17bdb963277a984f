import { Type, type Static } from '@sinclair/typebox'
import { Example, Nullable, OneOf } from './shapes.ts'

/** Why a document does not parse (`details.reason` of 422 `document_unreadable`), with the sentence of the message. */
export const UNREADABLE_REASONS = {
  syntax: 'The text does not parse.',
  no_assignment: 'The line is no assignment `NAME=value`.',
  quote_not_closed: 'The quote is not closed.',
  text_after_quote:
    'Text after a closing quote is read differently by other programs. Write a value such as it\'s as "it\'s".',
  value_on_next_line: 'The value is on the line after the name, where other programs do not find it.',
  not_a_mapping: 'The document is not a mapping of names to values.',
  duplicate_name: 'The name occurs twice.',
  no_scalar_name: 'A name must be a text, a number or a boolean.',
  merge_key: 'YAML merge keys (<<) are not supported.',
  tag: 'YAML tags outside of the core schema are not supported.',
  several_documents: 'The text has several YAML documents.',
  tab: 'YAML does not allow a tab for indentation.',
  unknown_alias: 'The YAML alias has no anchor before it.',
  limit: 'The document exceeds a limit.',
  not_utf8: 'The document is not valid UTF-8.'
} as const

export type UnreadableReason = keyof typeof UNREADABLE_REASONS

/**
 * Where common readers of `.env` files give another value than this service (docs/formats.md), or a document that
 * cannot be read at all (`unreadable`).
 */
export const WARNING_REASONS = [
  'comment_without_blank', 'escape_in_double_quotes', 'quote_in_single_quotes', 'expansion', 'backticks', 'unquoted',
  'duplicate_name', 'unreadable'
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
