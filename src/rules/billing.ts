import { CURRENCIES, type Interval, type InvoiceStatus } from '../../schemas/billing.ts'
import type { Plan } from '../../schemas/organizations.ts'
import { fail, refuseEach } from './api-error.ts'

const MONTHS: Record<Interval, number> = { month: 1, year: 12 }

/** The end of the nth period. Adds all months to the anchor, so that a short month does not shift later periods. */
export function periodEnd (anchor: Date, interval: Interval, periods: number): Date {
  const day = anchor.getUTCDate()
  const end = new Date(anchor)
  end.setUTCDate(1)
  end.setUTCMonth(end.getUTCMonth() + MONTHS[interval] * periods)
  const daysOfMonth = new Date(Date.UTC(end.getUTCFullYear(), end.getUTCMonth() + 1, 0)).getUTCDate()
  end.setUTCDate(Math.min(day, daysOfMonth))
  return end
}

/** The unused part of a period's amount, rounded down to a minor unit; 0 after the period has ended. */
export function unusedOf (amount: number, start: Date, end: Date, now: Date): number {
  const left = Math.min(end.getTime() - now.getTime(), end.getTime() - start.getTime())
  // The product can exceed 2^53.
  return left <= 0 ? 0 : Number(BigInt(amount) * BigInt(left) / BigInt(end.getTime() - start.getTime()))
}

/**
 * The refundable part of a charge: the received amount minus refunds, minus the part that a plan change converted to
 * credit. A plan change converts the amount `unused` of the invoice. Credit that paid for the invoice counts as
 * converted first, so only the remainder of `unused` reduces the refund.
 */
export function refundableOf (
  { status, credit, unused }: { status: InvoiceStatus, credit: number, unused: number },
  { amount, refunded }: { amount: number, refunded: number }
): number {
  return amount - refunded - (status === 'paid' ? Math.max(0, unused - credit) : 0)
}

type Coupon = Record<'percent_off' | 'amount_off', number | null> & { currency: string | null, valid_until: Date | null }

/**
 * The discount on the amount of a period. The coupon must be valid at the period's start, even if the invoice is issued
 * later. A fixed discount applies only in the coupon's currency.
 */
export function discountOf (coupon: Coupon | undefined, amount: number, currency: string, start: Date): number {
  if (coupon === undefined || (coupon.valid_until !== null && coupon.valid_until <= start)) return 0
  if (coupon.percent_off !== null) return Math.floor(amount * coupon.percent_off / 100)
  return coupon.currency === currency ? Math.min(coupon.amount_off ?? 0, amount) : 0
}

/** The number of decimal digits of a currency (ISO 4217). */
function minorDigits (currency: string): number {
  const known = Object.entries(CURRENCIES).find(([, codes]) => (codes as readonly string[]).includes(currency))
  return Number(known?.[0] ?? 2)
}

/** Formats an amount in minor units: `1,290.00 EUR`, `1,290 JPY`. */
export function formatMoney (amount: number, currency: string): string {
  const digits = minorDigits(currency)
  const text = String(Math.abs(amount)).padStart(digits + 1, '0')
  const whole = text.slice(0, text.length - digits).replace(/\B(?=(?:\d{3})+$)/g, ',')
  const fraction = digits === 0 ? '' : `.${text.slice(-digits)}`
  return `${amount < 0 ? '−' : ''}${whole}${fraction} ${currency}`
}

/** The printed invoice number: the random end of the organization's id and a counter. */
export const invoiceNumber = (organizationId: string, number: number) =>
  `${organizationId.slice(-10)}-${String(number).padStart(6, '0')}`

// Groups of digits with separators.
const RUN = /\d+(?:[\s\-._/]+\d+)*/g
const IBAN_BEGINS = /(?<![A-Za-z0-9])(?=[A-Z]{2}\d{2})/gi
const LIKE_AN_IBAN = /^[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]){11,30}/i
const SHORTEST_IBAN = 15

// Card number prefixes and lengths: Visa; Mastercard and Mir; American Express; Diners Club; JCB; Maestro, Discover,
// RuPay and UnionPay.
const ISSUED =
  /^(?:4\d{12}(?:\d{3}|\d{6})?|(?:2[2-7]|5[1-5])\d{14}|3[47]\d{13}|3[0689]\d{12,17}|35\d{14,17}|(?:5[06-8]|6\d)\d{11,17})$/

/** Whether a text seems to contain a payment card number, which must never be stored. Valid IBANs are ignored. */
export function holdsCardNumber (text: string): boolean {
  const plain = text.normalize('NFKC').replace(/\p{Cf}/gu, '').replace(/[\p{Pd}\u2212]/gu, '-')
  return [...withoutIbans(plain).matchAll(RUN)].some(({ 0: run, index, input }) => {
    const standsAlone = !/[A-Za-z]/.test(input.charAt(index - 1) + input.charAt(index + run.length))
    return isCardIn(run.split(/\D+/), standsAlone)
  })
}

// Tries each sequence of adjacent groups, because a security code or an expiry date may be next to the number. One in
// ten random numbers passes the Luhn check. So the digits must also be grouped as on a card, and a number next to other
// digits or letters must have a known prefix. These rules exclude dates, order numbers and telephone numbers.
function isCardIn (groups: string[], standsAlone: boolean): boolean {
  for (let from = 0; from < groups.length; from++) {
    let number = ''
    for (let to = from; to < groups.length && number.length < 19; to++) {
      number += groups[to]
      const isWhole = standsAlone && from === 0 && to === groups.length - 1
      if (
        /^\d{13,19}$/.test(number) && (isWhole || ISSUED.test(number)) && passesLuhn(number) &&
        isGroupedLikeACard(groups.slice(from, to + 1).map(({ length }) => length))
      ) return true
    }
  }
  return false
}

// Groups of equal length, of which the last may be shorter, or the grouping of Amex, Diners Club and others.
function isGroupedLikeACard (lengths: number[]): boolean {
  const [first] = lengths as [number]
  const isEven = lengths.every((length, i) => i === lengths.length - 1 ? length <= first : length === first)
  return isEven || /^(?:4,6,[45]|6,10|6,13)$/.test(lengths.join())
}

// Replaces each IBAN by a semicolon, so that the digits before and after it stay separate.
function withoutIbans (text: string): string {
  let rest = ''
  let end = 0
  for (const { index } of text.matchAll(IBAN_BEGINS)) {
    if (index < end) continue
    const length = ibanLength(text.slice(index))
    if (length === 0) continue
    rest += `${text.slice(end, index)};`
    end = index + length
  }
  return rest + text.slice(end)
}

// The length of the IBAN at the start of the text; 0 without an IBAN. The pattern can also match text after the IBAN,
// so the function tries shorter and shorter candidates.
function ibanLength (text: string): number {
  const most = LIKE_AN_IBAN.exec(text)?.[0].length ?? 0
  for (let length = most; length >= SHORTEST_IBAN; length--) {
    if (!/[A-Za-z0-9]/.test(text.charAt(length)) && isIban(text.slice(0, length))) return length
  }
  return 0
}

// ISO 13616: move the first four characters to the end and convert letters to digits; the result modulo 97 is 1.
function isIban (number: string): boolean {
  const plain = number.replace(/[^A-Za-z0-9]/g, '').toUpperCase()
  const digits = (plain.slice(4) + plain.slice(0, 4)).replace(/[A-Z]/g, (letter) => String(letter.charCodeAt(0) - 55))
  return BigInt(digits) % 97n === 1n
}

// ISO/IEC 7812-1: the last digit of a card number is its Luhn check digit.
function passesLuhn (digits: string): boolean {
  const sum = [...digits].reverse().reduce((total, digit, i) => {
    const value = Number(digit) * (i % 2 === 0 ? 1 : 2)
    return total + (value > 9 ? value - 9 : value)
  }, 0)
  return sum % 10 === 0
}

/** Ends the request with 422 if fields of its body look like payment card numbers. */
export const refuseCardNumbers = ({ body }: { body: unknown }) =>
  refuseEach(membersWithCards(body as object), 'Looks like a payment card number; remove it', 'card_number_refused')

function * membersWithCards (body: object, at = ''): Generator<string> {
  for (const [name, value] of Object.entries(body)) {
    if (typeof value === 'string' && holdsCardNumber(value)) yield at + name
    if (typeof value === 'object' && value !== null) yield * membersWithCards(value as object, `${at}${name}.`)
  }
}

/**
 * Throws 422 `plan_limit_reached` if `growth` more bytes would exceed the plan's storage quota. Always allows changes
 * that do not grow the storage, even above the quota.
 */
export function requireBytes ({ name, max_bytes }: Plan, stored: number, growth: number): void {
  if (growth <= 0 || max_bytes === null || stored + growth <= max_bytes) return
  fail('plan_limit_reached', { limit: max_bytes, used: stored, plan: name })
}
