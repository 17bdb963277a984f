import { parseArgs } from 'node:util'
import { CURRENCY_CODES } from '../../../schemas/billing.ts'
import { NAME_LENGTH } from '../../../schemas/shapes.ts'
import { parseTimestamp, TIMESTAMP_RULE } from '../../rules/formats/timestamps.ts'

/** Wrong usage: exit 2. */
export class UsageError extends Error {}

/** Throws a UsageError; usable as an expression. */
export function fail (line: string): never {
  throw new UsageError(line)
}

/** Kinds of options: a value, several values, a flag. */
export const TEXT = { type: 'string' } as const
export const TEXTS = { type: 'string', multiple: true } as const
export const FLAG = { type: 'boolean' } as const

type Options = Record<string, { type: 'string', multiple?: boolean } | { type: 'boolean' }>
type Parsing<O extends Options> = { args: string[], options: O, strict: true, allowPositionals: boolean }
type Parsed<O extends Options> = ReturnType<typeof parseArgs<Parsing<O>>>

/** Parses the options of a command. Throws a UsageError for anything else. */
export const parse = <const O extends Options>(args: string[], options: O): Parsed<O>['values'] =>
  parseAll({ args, options, strict: true, allowPositionals: false }).values

/** Parses options and exactly one file; `-` is standard input or output. */
export function parseFile<const O extends Options> (
  command: string, args: string[], options: O
): { file: string, values: Parsed<O>['values'] } {
  const { values, positionals: [file, ...others] } = parseAll({ args, options, strict: true, allowPositionals: true })
  return !file || others.length > 0 ? fail(`${command} needs one FILE`) : { file, values }
}

function parseAll<O extends Options> (parsing: Parsing<O>): Parsed<O> {
  try {
    return parseArgs(parsing)
  } catch (error) {
    throw new UsageError((error as Error).message)
  }
}

/** Whether the text is a valid name of an organization, a user, a token or a client. */
export const isName = (text: string | undefined): text is string =>
  text !== undefined && text.trim() !== '' && text.length <= NAME_LENGTH && !/\p{C}/u.test(text)

/** A whole number from 1 to `most`; null when the option is absent. */
export function numberOf (option: string, text: string | undefined, most: number): number | null {
  if (text === undefined) return null
  const number = /^\d{1,15}$/.test(text) ? Number(text) : 0
  if (number < 1 || number > most) throw new UsageError(`${option} must be a whole number from 1 to ${most}`)
  return number
}

/** A time; undefined when the option is absent. */
export const timeOf = (option: string, text: string | undefined): Date | undefined =>
  text === undefined ? undefined : parseTimestamp(text) ?? fail(`${option}: ${TIMESTAMP_RULE}`)

/** A currency code in upper case; the option accepts any case. */
export function currencyOf (text: string | undefined): string {
  const code = text?.toUpperCase() ?? ''
  return (CURRENCY_CODES as readonly string[]).includes(code)
    ? code
    : fail('--currency must be an ISO 4217 code such as EUR')
}
