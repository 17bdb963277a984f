/** How long a period of a subscription is. */
export const INTERVALS = ['month', 'year'] as const
export type Interval = (typeof INTERVALS)[number]

/** An invoice is open until what it asks for was received; a void one asks for nothing any more. */
export const INVOICE_STATUSES = ['open', 'paid', 'void'] as const
export type InvoiceStatus = (typeof INVOICE_STATUSES)[number]

/** What became of money that was asked for, or is to go back. */
export const PAYMENT_STATUSES = ['pending', 'succeeded', 'failed'] as const
export type PaymentStatus = (typeof PAYMENT_STATUSES)[number]

/** Kinds of payment methods: `manual` is a wire transfer that the operator notes down. */
export const PAYMENT_METHOD_KINDS = ['manual'] as const

export const CURRENCY_LENGTH = 3
export const COUPON_LENGTH = 64
export const LABEL_LENGTH = 255
export const ADDRESS_LENGTH = 1000
export const TAX_ID_LENGTH = 64

/** Who sells, or who buys, as an invoice names them. */
export interface Party { name: string, address: string, tax_id: string }

/** A line of an invoice. What is negative is taken off. */
export interface InvoiceLine {
  description: string
  amount: number
  period_start: string | null
  period_end: string | null
}
