import { TIMESTAMP_LENGTH } from '../../../schemas/shapes.ts'
import { refuse } from '../api-error.ts'

export const TIMESTAMP_RULE =
  'Expected an RFC 3339 time between the years 0001 and 9999 in UTC, such as 2026-03-01T12:00:00Z'

const RFC_3339 = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(?:Z|([+-])(\d\d):(\d\d))$/

// PostgreSQL rejects the year 0000, and years of five digits in the text format that the driver sends.
/** The milliseconds of the first valid time. */
export const EARLIEST = Date.parse('0001-01-01T00:00:00.000Z')
const LATEST = Date.parse('9999-12-31T23:59:59.999Z')

const MINUTE = 60_000

/**
 * Parses an RFC 3339 timestamp with any offset, truncated to milliseconds. Undefined for dates and times that do not
 * exist, leap seconds, and times that the database cannot store.
 */
export function parseTimestamp (text: string): Date | undefined {
  if (text.length > TIMESTAMP_LENGTH) return undefined
  // RFC 3339, 5.6: `t` and `z` may be in lower case.
  const [, local, fraction = '', sign, hours = '00', minutes = '00'] = RFC_3339.exec(text.toUpperCase()) ?? []
  if (local === undefined || hours > '23' || minutes > '59') return undefined
  const asUtc = new Date(`${local}.${fraction.slice(0, 3).padEnd(3, '0')}Z`)
  // Date reads 31 February as 3 March and hour 24 as the next day.
  if (Number.isNaN(asUtc.getTime()) || !asUtc.toISOString().startsWith(local)) return undefined
  const offset = (Number(hours) * 60 + Number(minutes)) * MINUTE
  const time = asUtc.getTime() - (sign === '-' ? -offset : offset)
  return time < EARLIEST || time > LATEST ? undefined : new Date(time)
}

/** The message for a text that is no timestamp. */
export const timestampProblem = (text: unknown): string => TIMESTAMP_RULE + offsetHint(text)

/** The hint for a timestamp whose `+` was not encoded: in a query, `+` stands for a space. Otherwise empty. */
export const offsetHint = (text: unknown): string =>
  typeof text === 'string' && text.includes(' ') && parseTimestamp(text.replace(' ', '+')) !== undefined
    ? '; in a query, write the + of an offset as %2B'
    : ''

/** Parses the timestamp of a request's member; throws 422 for that member if it is invalid. */
export const requireTimestamp = (member: string, text: string): Date =>
  parseTimestamp(text) ?? refuse(member, timestampProblem(text))

/** Milliseconds of a day. */
export const DAY = 24 * 60 * MINUTE

/** The day of a time in UTC: YYYY-MM-DD. */
export const dayOf = (time: Date): string => time.toISOString().slice(0, 'YYYY-MM-DD'.length)

/** `count` consecutive days (YYYY-MM-DD) that end with the day `last`, oldest first. */
export const daysUntil = (last: string, count: number): string[] =>
  Array.from({ length: count }, (_, i) => dayOf(new Date(Date.parse(last) - (count - 1 - i) * DAY)))
