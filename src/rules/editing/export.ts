import type { Entries } from '../documents/entries.ts'
import { pairText } from './yaml-scalars.ts'

const SHELL_NAME = /^[A-Za-z_]\w*$/
// Special variables of shells. An assignment to such a variable is evaluated as arithmetic, which can run code
// (`RANDOM`), fails, ends the script, or has no effect. A shell runs the code in a prompt when it shows the prompt.
const SPECIAL_NAME = new RegExp(`^(?:BASH\\w*|PS\\d|${[
  'COMP_WORDBREAKS', 'DIRSTACK', 'EPOCHREALTIME', 'EPOCHSECONDS', 'EUID', 'FUNCNAME', 'GROUPS', 'HISTCMD', 'LINENO',
  'OPTIND', 'PIPESTATUS', 'PPID', 'PROMPT_COMMAND', 'RANDOM', 'SECONDS', 'SHELLOPTS', 'SRANDOM', 'UID', '_'
].join('|')})$`)
// An environment variable ends at a NUL, and UTF-8 has no lone surrogates.
const NOT_IN_SHELL = /\0|\p{Surrogate}/u

/**
 * Writes values as an `.env` text that a POSIX shell can source. Refuses names that are no shell identifiers, because a
 * shell could run them as code, special variables of shells, and values that no variable can hold. `names` lists the
 * refused names.
 */
export function shellText (entries: Entries): { text: string } | { names: string[] } {
  const values = Object.entries(entries)
  const names = values.filter(([name, value]) => !SHELL_NAME.test(name) || SPECIAL_NAME.test(name) ||
    NOT_IN_SHELL.test(value))
  if (names.length > 0) return { names: names.map(([name]) => name).sort() }
  return { text: values.map(([name, value]) => `${name}='${value.replaceAll("'", "'\\''")}'\n`).join('') }
}

/** Writes values as a YAML mapping of strings. */
export function yamlText (entries: Entries): string {
  const pairs = Object.entries(entries).map(([name, value]) => `${pairText(name, value, 'plain', '\n')}\n`)
  return pairs.length === 0 ? '{}\n' : pairs.join('')
}
