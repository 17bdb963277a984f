import { IN_NO_VARIABLE, type Entries } from '../documents/entries.ts'
import { flowScalar, pairText } from './yaml-scalars.ts'

/** A text of all values, or the names for which the text has no form, in order. */
export type ExportedText = { text: string } | { names: string[] }

// Between double quotes, shells and readers of `.env` change these characters.
const CHANGED_IN_DOUBLE_QUOTES = /[$`"\\!\r]/
// The readers skip white space before a name, lines that begin with `#`, and a byte order mark in the first line.
const NO_DOCKER_NAME = /^$|^[#\ufeff]|[=\p{White_Space}\p{Cc}\p{Surrogate}]/u
const NO_DOCKER_VALUE = /[\n\r\0\p{Surrogate}]/u
// The longest line that Go's `bufio.Scanner` reads by default, in bytes without the line feed.
const MAX_DOCKER_LINE = 64 * 1024 - 1

/**
 * Writes values as a text that a POSIX shell can source. Refuses names that are no shell identifiers, because a shell
 * could run them as code, special variables of shells, and values that no variable can hold. The text is not for
 * storing: only shells read `'\''`, which a value with `'` and one of `` $ ` " \ ! `` or a CR needs.
 */
export function shellText (entries: Entries): ExportedText {
  return linesOf(entries, (name, value) => isShellName(name) && !IN_NO_VARIABLE.test(value), shellWord)
}

/**
 * Writes values as `NAME=value` lines without quotes, for `docker run --env-file` and `kubectl create secret
 * --from-env-file`. Refuses names and values that these programs would read differently.
 */
export function dockerText (entries: Entries): ExportedText {
  return linesOf(entries, (name, value) => !NO_DOCKER_NAME.test(name) && !NO_DOCKER_VALUE.test(value) &&
    Buffer.byteLength(`${name}=${value}`) <= MAX_DOCKER_LINE, (value) => value)
}

/** Writes values as a YAML mapping of strings. */
export function yamlText (entries: Entries): { text: string } {
  const pairs = Object.entries(entries).map(([name, value]) => `${pairText(name, flowScalar(value, 'plain'), 'plain', '\n')}\n`)
  return { text: pairs.length === 0 ? '{}\n' : pairs.join('') }
}

function linesOf (
  entries: Entries, fits: (name: string, value: string) => boolean, write: (value: string) => string
): ExportedText {
  const values = Object.entries(entries)
  const names = values.filter(([name, value]) => !fits(name, value)).map(([name]) => name)
  if (names.length > 0) return { names: names.sort() }
  return { text: values.map(([name, value]) => `${name}=${write(value)}\n`).join('') }
}

// With an apostrophe, readers of `.env` only read the form in double quotes as a shell does.
function shellWord (value: string): string {
  return value.includes("'") && !CHANGED_IN_DOUBLE_QUOTES.test(value)
    ? `"${value}"`
    : `'${value.replaceAll("'", "'\\''")}'`
}

/**
 * Variables that a POSIX shell does not simply set when it sources `NAME='value'`: the shell evaluates the value as
 * arithmetic, which can run code (`RANDOM`), runs the value at a prompt (`PROMPT_COMMAND`) or at new mail (`MAILPATH`),
 * ends the script (`UID`), or changes the value (`SECONDS`). Measured in bash, dash and BusyBox. Special variables that
 * only zsh has, such as `path` and `USERNAME`, are not listed.
 *
 * A regular expression without anchors, in the common syntax of JavaScript and jq: the recipes contain it too.
 */
export const SPECIAL_SHELL_NAMES = [
  'BASH[A-Za-z0-9_]*', 'PS[0-9]', 'COMP_WORDBREAKS', 'DIRSTACK', 'EPOCHREALTIME', 'EPOCHSECONDS', 'EUID', 'FUNCNAME',
  'GROUPS', 'HISTCMD', 'LINENO', 'MAILCHECK', 'MAILPATH', 'OPTIND', 'PIPESTATUS', 'PPID', 'PROMPT_COMMAND', 'RANDOM',
  'SECONDS', 'SHELLOPTS', 'SHLVL', 'SRANDOM', 'UID', '_'
].join('|')

const SHELL_NAME = new RegExp(`^(?!(?:${SPECIAL_SHELL_NAMES})$)[A-Za-z_][A-Za-z0-9_]*$`)

/** Whether each POSIX shell sets a variable of this name to any value, and does nothing else. */
const isShellName = (name: string): boolean => SHELL_NAME.test(name)
