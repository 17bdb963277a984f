import { CURRENCIES, type Interval, type InvoiceStatus } from '../../schemas/billing.ts'
import { refuse } from './errors.ts'

const MONTHS: Record<Interval, number> = { month: 1, year: 12 }

/** Where the nth period ends. They are counted from the first, so that the 31st comes again after a short month. */
export function periodEnd (anchor: Date, interval: Interval, periods: number): Date {
  const day = anchor.getUTCDate()
  const end = new Date(anchor)
  end.setUTCDate(1)
  end.setUTCMonth(end.getUTCMonth() + MONTHS[interval] * periods)
  const daysOfMonth = new Date(Date.UTC(end.getUTCFullYear(), end.getUTCMonth() + 1, 0)).getUTCDate()
  end.setUTCDate(Math.min(day, daysOfMonth))
  return end
}

/** What is left of an amount that was for a whole period, rounded down to a minor unit; nothing once it is over. */
export function unusedOf (amount: number, start: Date, end: Date, now: Date): number {
  const left = Math.min(end.getTime() - now.getTime(), end.getTime() - start.getTime())
  // The product of the two is more than a number holds exactly.
  return left <= 0 ? 0 : Number(BigInt(amount) * BigInt(left) / BigInt(end.getTime() - start.getTime()))
}

/**
 * What can still go back of a charge: what was received, less what went back, and less what a change of plan has made
 * credit of it. What the invoice had from credit itself becomes credit first.
 */
export function refundableOf (
  { status, credit, unused }: { status: InvoiceStatus, credit: number, unused: number },
  { amount, refunded }: { amount: number, refunded: number }
): number {
  return amount - refunded - (status === 'paid' ? Math.max(0, unused - credit) : 0)
}

/** What a coupon takes off an amount. */
export interface Reduction {
  percent_off: number | null
  amount_off: number | null
  currency: string | null
  valid_until: Date | null
}

/**
 * What a coupon takes off the amount of a period, as far as it is of the currency and was good when the period began,
 * however late that is invoiced.
 */
export function discountOf (coupon: Reduction | undefined, amount: number, currency: string, start: Date): number {
  if (coupon === undefined || (coupon.valid_until !== null && coupon.valid_until <= start)) return 0
  if (coupon.percent_off !== null) return Math.floor(amount * coupon.percent_off / 100)
  return coupon.currency === currency ? Math.min(coupon.amount_off ?? 0, amount) : 0
}

/** How many digits the minor unit of a currency has. */
export function minorDigits (currency: string): number {
  const known = Object.entries(CURRENCIES).find(([, codes]) => (codes as readonly string[]).includes(currency))
  return Number(known?.[0] ?? 2)
}

/** An amount in minor units as people write it: `1,290.00 EUR`, `1,290 JPY`. */
export function formatMoney (amount: number, currency: string): string {
  const digits = minorDigits(currency)
  const text = String(Math.abs(amount)).padStart(digits + 1, '0')
  const whole = text.slice(0, text.length - digits).replace(/\B(?=(?:\d{3})+$)/g, ',')
  const fraction = digits === 0 ? '' : `.${text.slice(-digits)}`
  return `${amount < 0 ? '−' : ''}${whole}${fraction} ${currency}`
}

/** The number of an invoice as it is printed: the end of the organization's id, which is random, and a count. */
export const invoiceNumber = (organizationId: string, number: number) =>
  `${organizationId.slice(-10)}-${String(number).padStart(6, '0')}`

// Digits, and what people write between their groups.
const RUN = /\d+(?:[\s\-._/]+\d+)*/g
const IBAN_BEGINS = /(?<![A-Za-z0-9])(?=[A-Z]{2}\d{2})/gi
const LIKE_AN_IBAN = /^[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]){11,30}/i
const SHORTEST_IBAN = 15

// How numbers of cards begin, and how long they are then: Visa; Mastercard and Mir; American Express; Diners Club; JCB;
// Maestro, Discover, RuPay and UnionPay.
const ISSUED =
  /^(?:4\d{12}(?:\d{3}|\d{6})?|(?:2[2-7]|5[1-5])\d{14}|3[47]\d{13}|3[0689]\d{12,17}|35\d{14,17}|(?:5[06-8]|6\d)\d{11,17})$/

/**
 * Whether a text holds what looks like the number of a payment card, which is to be nowhere in this service. An account
 * number that checks (IBAN) is none.
 */
export function holdsCardNumber (text: string): boolean {
  const plain = text.normalize('NFKC').replace(/\p{Cf}/gu, '').replace(/[\p{Pd}\u2212]/gu, '-')
  return [...withoutIbans(plain).matchAll(RUN)].some(({ 0: run, index, input }) => {
    const standsAlone = !/[A-Za-z]/.test(input.charAt(index - 1) + input.charAt(index + run.length))
    return isCardIn(run.split(/\D+/), standsAlone)
  })
}

// The groups that follow on each other may be a card with something before or behind it (its code, its end, a count).
// One in ten of whatever digits has the right check digit, so they have to be grouped like a card, and a part of a run
// to begin as one does: dates, orders and numbers of telephones do not.
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

// In groups of one length, of which the last may be shorter, or as some issuers print them.
function isGroupedLikeACard (lengths: number[]): boolean {
  const [first] = lengths as [number]
  const isEven = lengths.every((length, i) => i === lengths.length - 1 ? length <= first : length === first)
  return isEven || /^(?:4,6,[45]|6,10|6,13)$/.test(lengths.join())
}

// What follows on an account number may look like more of it.
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

// Of the account number that a text begins with, 0 where it begins with none.
function ibanLength (text: string): number {
  const most = LIKE_AN_IBAN.exec(text)?.[0].length ?? 0
  for (let length = most; length >= SHORTEST_IBAN; length--) {
    if (!/[A-Za-z0-9]/.test(text.charAt(length)) && isIban(text.slice(0, length))) return length
  }
  return 0
}

// ISO 13616: the check digits make the number, as digits with the first four behind, 1 modulo 97.
function isIban (number: string): boolean {
  const plain = number.replace(/[^A-Za-z0-9]/g, '').toUpperCase()
  const digits = (plain.slice(4) + plain.slice(0, 4)).replace(/[A-Z]/g, (letter) => String(letter.charCodeAt(0) - 55))
  return BigInt(digits) % 97n === 1n
}

// ISO/IEC 7812-1: every number of a card ends with this check digit.
function passesLuhn (digits: string): boolean {
  const sum = [...digits].reverse().reduce((total, digit, i) => {
    const value = Number(digit) * (i % 2 === 0 ? 1 : 2)
    return total + (value > 9 ? value - 9 : value)
  }, 0)
  return sum % 10 === 0
}

/** Ends the request with 422 where a member of its body holds what looks like the number of a payment card. */
export function refuseCardNumbers (body: unknown, at = ''): void {
  for (const [name, value] of Object.entries(body as object)) {
    const member = at === '' ? name : `${at}.${name}`
    if (typeof value === 'string' && holdsCardNumber(value)) {
      refuse(member, 'Looks like a payment card number; remove it', 'card_number_refused')
    }
    if (typeof value === 'object' && value !== null) refuseCardNumbers(value, member)
  }
}
