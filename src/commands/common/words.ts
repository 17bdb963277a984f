import { CURRENCY_CODES } from '../../../schemas/billing.ts'
import { NAME_LENGTH } from '../../../schemas/shapes.ts'
import { mustBeOneOf } from '../../rules/formats/phrases.ts'
import { isEmail } from '../../rules/formats/emails.ts'
import { isNewName } from '../../rules/formats/names.ts'
import { parseTimestamp, TIMESTAMP_RULE } from '../../rules/formats/timestamps.ts'
import { UsageError } from './command-errors.ts'

/** Throws a UsageError; usable as an expression. */
export function fail (line: string): never {
  throw new UsageError(line)
}

export const TEXT = { type: 'string' } as const
export const TEXTS = { type: 'string', multiple: true } as const
export const FLAG = { type: 'boolean' } as const

/** Returns the trimmed name; throws a UsageError if the name is missing or invalid. */
export const nameOf = (option: string, text: string | undefined): string => isNewName(text)
  ? text.trim()
  : fail(`${option} NAME (at most ${NAME_LENGTH} characters, without control and direction characters)`)

/** Returns the e-mail address; throws a UsageError if the address is missing or invalid. */
export function emailOf (option: string, text: string | undefined): string {
  if (isEmail(text)) return text
  return fail(text === undefined || text === ''
    ? `${option} ADDRESS`
    : `${option} ADDRESS, an e-mail address as in rosa@example.com; the given one is not valid`)
}

/** Returns one of the choices; throws a UsageError that lists the choices and names the nearest choice. */
export const choiceOf = <T extends string>(option: string, choices: readonly T[], text: string | undefined): T =>
  choices.find((choice) => choice === text) ?? fail(`${option} ${mustBeOneOf(choices, text)}`)

/** A whole number from 1 to `most`; null when the option is absent. */
export function numberOf (option: string, text: string | undefined, most: number): number | null {
  if (text === undefined) return null
  const number = /^\d{1,15}$/.test(text) ? Number(text) : 0
  return number < 1 || number > most ? fail(`${option} must be a whole number from 1 to ${most}`) : number
}

/** A time; undefined when the option is absent. */
export const timeOf = (option: string, text: string | undefined): Date | undefined =>
  text === undefined ? undefined : parseTimestamp(text) ?? fail(`${option}: ${TIMESTAMP_RULE}`)

/** A currency code in upper case, from an option in any case. */
export function currencyOf (text: string | undefined): string {
  const code = text?.toUpperCase()
  return CURRENCY_CODES.find((known) => known === code) ?? fail('--currency must be an ISO 4217 code such as EUR')
}
