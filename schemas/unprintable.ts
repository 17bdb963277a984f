/**
 * The members of a character class: control characters (C0, DEL, C1), the separators of lines and paragraphs, and
 * characters that change the direction of text. In a terminal, a mail or a page, a name with them could look like text
 * of the service. The invisible characters U+200C and U+200D stay allowed, because Persian and emoji need them.
 */
export const UNPRINTABLE = '\\u0000-\\u001f\\u007f-\\u009f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069'

/** Finds the characters of `UNPRINTABLE`. */
export const unprintable = () => new RegExp(`[${UNPRINTABLE}]`, 'g')

/** Escapes the characters of `UNPRINTABLE` as `\u001b`: also valid in a string of JSON. Keeps those in `except`. */
export const escapeUnprintable = (text: string, except = ''): string =>
  text.replace(unprintable(), (character) => except.includes(character)
    ? character
    : `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`)
