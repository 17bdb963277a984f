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

/** What a coupon takes off an amount, as far as it is of the currency and still good. */
export interface Reduction {
  percent_off: number | null
  amount_off: number | null
  currency: string | null
  valid_until: Date | null
}

export function discountOf (coupon: Reduction | undefined, amount: number, currency: string, now: Date): number {
  if (coupon === undefined || (coupon.valid_until !== null && coupon.valid_until <= now)) return 0
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

// 13 to 19 digits, in groups or not, that stand alone.
const LIKE_A_CARD = /(?<![A-Za-z0-9])\d(?:[ -]?\d){12,18}(?![A-Za-z0-9])/g
const LIKE_AN_IBAN = /(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]){11,30}(?![A-Za-z0-9])/gi

/**
 * Whether a text holds what looks like the number of a payment card, which is to be nowhere in this service. An account
 * number that checks (IBAN) is none.
 */
export function holdsCardNumber (text: string): boolean {
  const plain = text.normalize('NFKC').replace(/[\u2010-\u2015\u2212._/]/g, '-')
  const rest = plain.replace(LIKE_AN_IBAN, (number) => isIban(number) ? '' : number)
  return (rest.match(LIKE_A_CARD) ?? []).some((number) => passesLuhn(number.replace(/\D/g, '')))
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
      refuse(member, 'Looks like the number of a payment card', 'card_number_refused')
    }
    if (typeof value === 'object' && value !== null) refuseCardNumbers(value, member)
  }
}
