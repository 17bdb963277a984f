import type { Entries } from '../documents/entries.ts'
import { SPECIAL_SHELL_NAMES } from '../formats/shell-names.ts'
import { flowScalar, pairText } from './yaml-scalars.ts'

/** A text with values, or the names that the format cannot hold with their values. */
export type ExportedText = { text: string } | { names: string[] }

const SHELL_NAME = /^[A-Za-z_]\w*$/
const SPECIAL_NAME = new RegExp(`^(?:${SPECIAL_SHELL_NAMES})$`)
// An environment variable ends at a NUL, and UTF-8 has no lone surrogates.
const NOT_IN_VARIABLE = /\0|\p{Surrogate}/u
// Characters that a shell or a reader of `.env` files changes in double quotes.
const EXPANDED_IN_QUOTES = /[$`"\\!]/

/**
 * Writes values as a text that a POSIX shell can source. Refuses names that are no shell identifiers, because a shell
 * could run them as code, special variables of shells, and values that no variable can hold. The text is not for
 * storing: readers of `.env` files do not know `'\''`, which a value with `'` and one of `` $ ` " \ ! `` needs.
 */
export function shellText (entries: Entries): ExportedText {
  return textOf(entries, (name, value) => SHELL_NAME.test(name) && !SPECIAL_NAME.test(name) &&
    !NOT_IN_VARIABLE.test(value), (name, value) => `${name}=${shellValue(value)}\n`)
}

function shellValue (value: string): string {
  if (value.includes("'") && !EXPANDED_IN_QUOTES.test(value)) return `"${value}"`
  return `'${value.replaceAll("'", "'\\''")}'`
}

// Docker and kubectl read lines of less than 64 KiB, and skip blanks, comments and a byte order mark before a name.
const MAX_DOCKER_LINE = 64 * 1024
const DOCKER_NAME = /^(?![#\ufeff])[^\s\p{Cc}\p{Surrogate}=]+$/u
const NOT_IN_DOCKER = /[\0\r\n]|\p{Surrogate}/u

/**
 * Writes values as lines `NAME=value` without quotes, for `docker run --env-file` and `kubectl --from-env-file`.
 * Refuses names and values that these programs cannot read, or would read as others.
 */
export function dockerText (entries: Entries): ExportedText {
  return textOf(entries, (name, value) => DOCKER_NAME.test(name) && !NOT_IN_DOCKER.test(value) &&
    Buffer.byteLength(`${name}=${value}`) < MAX_DOCKER_LINE, (name, value) => `${name}=${value}\n`)
}

/** Writes values as a YAML mapping of strings. */
export function yamlText (entries: Entries): { text: string } {
  const pairs = Object.entries(entries).map(([name, value]) => `${pairText(name, flowScalar(value, 'plain'), 'plain', '\n')}\n`)
  return { text: pairs.length === 0 ? '{}\n' : pairs.join('') }
}

function textOf (
  entries: Entries, isHeld: (name: string, value: string) => boolean, write: (name: string, value: string) => string
): ExportedText {
  const values = Object.entries(entries)
  const names = values.filter(([name, value]) => !isHeld(name, value)).map(([name]) => name)
  return names.length > 0 ? { names: names.sort() } : { text: values.map(([name, value]) => write(name, value)).join('') }
}
