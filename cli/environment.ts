import { IN_NO_VARIABLE } from '../src/rules/documents/entries.ts'
import { Failure } from './failure.ts'
import { readIfThere } from './files.ts'
import type { Value } from './values.ts'
import { idTokenVariable } from './workload.ts'

// Which values become variables of the child.

/** Variables that decide which code a program runs. They are set only if `--allow` lists them. */
const HELD_BACK = [
  'PATH', 'LD_.*', 'DYLD_.*', 'NODE_OPTIONS', 'NODE_EXTRA_CA_CERTS', 'BASH_ENV', 'ENV', 'IFS', 'PS4', 'PROMPT_COMMAND',
  'SHELLOPTS', 'BASHOPTS', 'PYTHONSTARTUP', 'PYTHONPATH', 'PYTHONHOME', 'PERL5OPT', 'PERL5LIB', 'RUBYOPT', 'RUBYLIB',
  'JAVA_TOOL_OPTIONS', 'GIT_SSH', 'GIT_SSH_COMMAND', 'GIT_EXTERNAL_DIFF', 'EDITOR', 'VISUAL', 'PAGER', 'BROWSER',
  'STRONGROOM_.*'
]
const HELD_BACK_NAME = new RegExp(`^(?:${HELD_BACK.join('|')})$`, 's')
const VARIABLE = /^[A-Za-z_][A-Za-z0-9_]*$/

/** The kernel of Linux refuses a longer `NAME=VALUE` with its NUL (MAX_ARG_STRLEN). */
const MAX_VARIABLE_BYTES = 131_072

export interface Choice {
  only: string[], except: string[], allow: string[], keepExisting?: boolean, keepToken?: boolean
}

export interface Chosen {
  environment: Record<string, string>
  /** Why names are left out, in sentences. */
  warnings: string[]
}

/** The values that `--only` and `--except` choose. Throws if a name of `--only` has no value. */
export function chosen (values: ReadonlyMap<string, Value>, { only, except }: Pick<Choice, 'only' | 'except'>): Map<string, string> {
  const missing = only.filter((name) => !values.has(name))
  if (missing.length > 0) throw new Failure(`There is no value for ${missing.join(', ')} (--only).`)
  return new Map([...values].filter(([name]) => (only.length === 0 || only.includes(name)) && !except.includes(name))
    .map(([name, { value }]) => [name, value]))
}

/** The environment of the child: the inherited variables and the values. */
export function environmentOf (
  inherited: NodeJS.ProcessEnv, values: ReadonlyMap<string, string>, { allow, keepExisting, keepToken }: Choice
): Chosen {
  const idToken = idTokenVariable(inherited)
  const kept = Object.entries(inherited).filter((pair): pair is [string, string] => pair[1] !== undefined)
    .filter(([name]) => keepToken === true || !(name.startsWith('STRONGROOM_') || name === idToken))
  // Without a prototype, `__proto__` is a name like any other.
  const environment: Record<string, string> = Object.assign(Object.create(null), Object.fromEntries(kept))
  const [dangerous, unusable]: [string[], string[]] = [[], []]
  for (const [name, value] of values) {
    if (!VARIABLE.test(name) || IN_NO_VARIABLE.test(value)) unusable.push(name)
    else if (HELD_BACK_NAME.test(name) && !allow.includes(name)) dangerous.push(name)
    else if (keepExisting !== true || inherited[name] === undefined) environment[name] = value
  }
  const warnings = [
    dangerous.length > 0 ? `Left out, because they decide which code a program runs (--allow NAME sets one): ${listed(dangerous)}.` : '',
    unusable.length > 0 ? `Left out, because they cannot be variables: ${listed(unusable)}.` : ''
  ].filter((one) => one !== '')
  return { environment, warnings }
}

/** Throws with the names of values if the kernel would refuse them or all variables and arguments together. */
export function requireFits (
  names: readonly string[], environment: Record<string, string>, command: readonly string[]
): void {
  const bytesOf = (name: string) => Buffer.byteLength(`${name}=${environment[name] ?? ''}`) + 1
  const tooLong = process.platform === 'linux' ? names.filter((name) => bytesOf(name) > MAX_VARIABLE_BYTES) : []
  if (tooLong.length > 0) {
    throw new Failure(`Too large for a variable, which has at most 131,072 bytes with its name: ${listed(tooLong)}. ${ADVICE}`)
  }
  const texts = [...Object.keys(environment).map(bytesOf), ...command.map((word) => Buffer.byteLength(word) + 1)]
  const total = texts.reduce((sum, bytes) => sum + bytes + POINTER_BYTES, 0)
  if (total <= maxTotalBytes()) return
  const largest = [...names].sort((one, other) => bytesOf(other) - bytesOf(one)).slice(0, 5)
  throw new Failure(`All variables and arguments together have ${total} bytes, and the system takes ${maxTotalBytes()}. The largest values are ${listed(largest)}. ${ADVICE}`)
}

const ADVICE = 'Give them to the program as files with --mount and --except.'
const POINTER_BYTES = 8
const MIB = 1024 * 1024

/** The bytes of arguments and variables that the system takes: on Linux a quarter of the stack, at most 6 MiB. */
function maxTotalBytes (): number {
  if (process.platform !== 'linux') return MIB
  const [, stack = 'unlimited'] = /^Max stack size\s+(\S+)/m.exec(readIfThere('/proc/self/limits') ?? '') ?? []
  return stack === 'unlimited' ? 6 * MIB : Math.min(6 * MIB, Math.max(MAX_VARIABLE_BYTES, Number(stack) / 4))
}

const LISTED = 20
/** Names in a sentence: the first twenty. */
export const listed = (names: readonly string[]): string => names.slice(0, LISTED).map((name) => name.slice(0, 100)).join(', ') +
  (names.length > LISTED ? ` and ${names.length - LISTED} more` : '')
