import { Type, type Static, type StringOptions } from '@sinclair/typebox'
import { OrganizationInPath, Plan } from './organizations.ts'
import {
  Answer, Body, Day, Described, Example, NAME_LENGTH, Nullable, OneOf, PageMeta, Patterned, Resource, Timestamp
} from './shapes.ts'

/** The length of a billing period. */
export const INTERVALS = ['month', 'year'] as const
export type Interval = (typeof INTERVALS)[number]

/** An invoice is open until it is paid. A void invoice is no longer payable. */
export const INVOICE_STATUSES = ['open', 'paid', 'void'] as const
export type InvoiceStatus = (typeof INVOICE_STATUSES)[number]

/** Statuses of charges and refunds. */
export const PAYMENT_STATUSES = ['pending', 'succeeded', 'failed'] as const
export type PaymentStatus = (typeof PAYMENT_STATUSES)[number]

/** Kinds of payment methods: `manual` is a wire transfer that the operator records. */
export const PAYMENT_METHOD_KINDS = ['manual'] as const

/** Currencies (ISO 4217), grouped by their number of decimal digits. */
export const CURRENCIES = {
  0: ['BIF', 'CLP', 'DJF', 'GNF', 'ISK', 'JPY', 'KMF', 'KRW', 'PYG', 'RWF', 'UGX', 'VND', 'VUV', 'XAF', 'XOF', 'XPF'],
  2: [
    'AED', 'AFN', 'ALL', 'AMD', 'AOA', 'ARS', 'AUD', 'AWG', 'AZN', 'BAM', 'BBD', 'BDT', 'BMD', 'BND', 'BOB', 'BRL',
    'BSD', 'BTN', 'BWP', 'BYN', 'BZD', 'CAD', 'CDF', 'CHF', 'CNY', 'COP', 'CRC', 'CUP', 'CVE', 'CZK', 'DKK', 'DOP',
    'DZD', 'EGP', 'ERN', 'ETB', 'EUR', 'FJD', 'FKP', 'GBP', 'GEL', 'GHS', 'GIP', 'GMD', 'GTQ', 'GYD', 'HKD', 'HNL',
    'HTG', 'HUF', 'IDR', 'ILS', 'INR', 'IRR', 'JMD', 'KES', 'KGS', 'KHR', 'KPW', 'KYD', 'KZT', 'LAK', 'LBP', 'LKR',
    'LRD', 'LSL', 'MAD', 'MDL', 'MGA', 'MKD', 'MMK', 'MNT', 'MOP', 'MRU', 'MUR', 'MVR', 'MWK', 'MXN', 'MYR', 'MZN',
    'NAD', 'NGN', 'NIO', 'NOK', 'NPR', 'NZD', 'PAB', 'PEN', 'PGK', 'PHP', 'PKR', 'PLN', 'QAR', 'RON', 'RSD', 'RUB',
    'SAR', 'SBD', 'SCR', 'SDG', 'SEK', 'SGD', 'SHP', 'SLE', 'SOS', 'SRD', 'SSP', 'STN', 'SVC', 'SYP', 'SZL', 'THB',
    'TJS', 'TMT', 'TOP', 'TRY', 'TTD', 'TWD', 'TZS', 'UAH', 'USD', 'UYU', 'UZS', 'VED', 'VES', 'WST', 'XCD', 'XCG',
    'YER', 'ZAR', 'ZMW', 'ZWG'
  ],
  3: ['BHD', 'IQD', 'JOD', 'KWD', 'LYD', 'OMR', 'TND']
} as const
export const CURRENCY_CODES = [...CURRENCIES[0], ...CURRENCIES[2], ...CURRENCIES[3]] as const

export const CURRENCY_LENGTH = 3
export const COUPON_LENGTH = 64
export const COUPON_PATTERN = '^[A-Za-z0-9_-]{1,64}$'
export const LABEL_LENGTH = 255
export const ADDRESS_LENGTH = 1000
export const TAX_ID_LENGTH = 64
export const NOTE_LENGTH = 1000
/** Maximum amount in minor units; 100 times this amount is still a safe integer. */
export const MAX_AMOUNT = 999_999_999_999

const IntervalName = OneOf(INTERVALS, { title: 'Interval' })
const StatusOfPayment = OneOf(PAYMENT_STATUSES, { title: 'PaymentStatus' })
const StatusOfInvoice = OneOf(INVOICE_STATUSES, { title: 'InvoiceStatus' })
const Currency = OneOf(CURRENCY_CODES, { title: 'Currency', description: 'ISO 4217', examples: ['EUR'] })
/** An amount in minor units of the currency: cents for EUR, whole yen for JPY. */
const Amount = Type.Integer({
  minimum: 1, maximum: MAX_AMOUNT, title: 'Amount', description: 'in minor units of the currency', examples: [2900]
})
const Money = Type.Integer({ title: 'Money', description: 'in minor units of the currency' })
// Control characters are rejected, except for line feeds in `LINES`.
const LINE = '^[^\\u0000-\\u001f\\u007f]*$'
const LINES = '^[^\\u0000-\\u001f\\u007f]*(\\n[^\\u0000-\\u001f\\u007f]*){0,9}$'
const NO_CONTROLS = 'without control characters, such as'
const Line = (maxLength: number, example: string, options: StringOptions = {}) =>
  Patterned(LINE, `a line of at most ${maxLength} characters ${NO_CONTROLS} ${example}`, { maxLength, ...options })
const LABEL = '^[^\\S\\u0000-\\u001f]*[^\\s\\u0000-\\u001f\\u007f][^\\u0000-\\u001f\\u007f]*$'
const Label = Patterned(LABEL, `a line of 1 to ${LABEL_LENGTH} characters ${NO_CONTROLS} Invoice`, {
  minLength: 1, maxLength: LABEL_LENGTH
})

/** The seller or the buyer of an invoice. */
export const Party = Type.Object(
  { name: Type.String(), address: Type.String(), tax_id: Type.String() }, { title: 'Party' }
)
export type Party = Static<typeof Party>

/** A line of an invoice. Negative amounts are discounts or credits. */
export const InvoiceLine = Type.Object({
  description: Type.String(),
  amount: Money,
  period_start: Nullable(Type.String({ format: 'date-time' })),
  period_end: Nullable(Type.String({ format: 'date-time' }))
}, { title: 'InvoiceLine' })
export type InvoiceLine = Static<typeof InvoiceLine>

const ORGANIZATION = { organization: OrganizationInPath }
const IdInPath = Type.String({ maxLength: 128, examples: ['01JQZ7D3K5M7P9R1T3V5X7Z9B1'] })
export const PaymentMethodParams = Type.Object({ ...ORGANIZATION, payment_method: IdInPath })
export const ChargeParams = Type.Object({ ...ORGANIZATION, charge: IdInPath })
export const InvoiceParams = Type.Object({ ...ORGANIZATION, invoice: IdInPath })

const INVOICE_ID = '01JQZ7D3K5M7P9R1T3V5X7Z9B1'
const CHARGE_ID = '01JQZ7D3K5M7P9R1T3V5X7Z9B2'
const METHOD_ID = '01JQZ7D3K5M7P9R1T3V5X7Z9B3'
const BUYER = { name: 'Nimbus GmbH', address: 'Ringstraße 1\n1010 Wien\nAustria', tax_id: 'ATU12345678' }
const InEuros = Example(Type.String(), 'EUR')

export const PlanPrice = Type.Object({ interval: IntervalName, currency: Type.String(), amount: Money }, {
  title: 'PlanPrice'
})
export type PlanPrice = Static<typeof PlanPrice>

/** A plan that customers can choose. A plan without prices is free and needs no subscription. */
const CataloguePlan = Resource('plans', { title: 'CataloguePlan', id: 'pro', attributesTitle: 'PlanAttributes' }, {
  name: Example(Plan.properties.name, 'pro'),
  retention_days: Example(Plan.properties.retention_days, 30),
  api_per_minute: Example(Plan.properties.api_per_minute, 100),
  max_projects: Example(Plan.properties.max_projects, 50),
  max_members: Example(Plan.properties.max_members, 25),
  max_bytes: Example(Plan.properties.max_bytes, 1_073_741_824),
  prices: Example(Type.Array(PlanPrice), [{ interval: 'month', currency: 'EUR', amount: 2900 }])
})
export const PlanList = Answer('PlanList', { data: Type.Array(CataloguePlan.item) })

export const Subscription = Resource('subscriptions', { title: 'Subscription', id: '01JQZ7D3K5M7P9R1T3V5X7Z9B0' }, {
  plan: Example(Type.String(), 'pro'),
  interval: Example(IntervalName, 'month'),
  currency: InEuros,
  amount: Example(Money, 2900),
  status: Example(OneOf(['active', 'ending'], {
    description: '`ending`: cancelled, ends with the current period'
  }), 'active'),
  cancel_at_period_end: Example(Type.Boolean(), false),
  current_period_start: Timestamp,
  current_period_end: Example(Timestamp, '2026-04-01T12:00:00.000Z'),
  billing_details: Example(Party, BUYER),
  created_at: Timestamp,
  updated_at: Timestamp
})
export type SubscriptionAttributes = Static<typeof Subscription.attributes>

/** The buyer on invoices. Omitted fields stay unchanged. Without a name, invoices show the organization's name. */
const BillingDetails = Type.Object({
  name: Type.Optional(Line(NAME_LENGTH, 'Nimbus')),
  address: Type.Optional(Patterned(LINES, `at most ten lines ${NO_CONTROLS} Ringstrasse`, {
    maxLength: ADDRESS_LENGTH, description: 'at most ten lines'
  })),
  tax_id: Type.Optional(Line(TAX_ID_LENGTH, 'DE123456789'))
}, { additionalProperties: false, title: 'BillingDetails', examples: [BUYER] })
export type BillingDetails = Static<typeof BillingDetails>

const PlanName = Line(64, 'pro', { minLength: 1, examples: ['pro'] })
export const CreateSubscriptionBody = Body({
  plan: PlanName,
  interval: Type.Optional(Described(IntervalName, { description: 'default: `month`' })),
  currency: Type.Optional(Currency),
  billing_details: Type.Optional(BillingDetails)
}, { title: 'CreateSubscriptionBody', examples: [{ plan: 'pro', interval: 'month', currency: 'EUR', billing_details: BUYER }] })

export const UpdateSubscriptionBody = Body({
  plan: Type.Optional(PlanName),
  interval: Type.Optional(IntervalName),
  billing_details: Type.Optional(BillingDetails)
}, { title: 'UpdateSubscriptionBody', examples: [{ plan: 'team' }] })

export const EmptyBody = Body({}, { title: 'EmptyBody', examples: [{}] })

/** The days for which the service keeps the number of requests. */
export const DAYS_OF_USAGE = 31

const UsageOfDay = Type.Object({
  date: Day, api_calls: Type.Integer({ description: 'may lag by up to ten seconds' })
}, { title: 'UsageOfDay' })

const Used = Type.Object({ used: Type.Integer(), limit: Nullable(Type.Integer()) }, { title: 'Used' })
export const Usage = Resource('usage', { title: 'Usage', id: '2026-03' }, {
  plan: Example(Type.String(), 'self-hosted'),
  period_start: Example(Timestamp, '2026-03-01T00:00:00.000Z'),
  period_end: Example(Timestamp, '2026-04-01T00:00:00.000Z'),
  api_calls: Example(Type.Object({
    used: Type.Integer({ description: 'may lag by up to ten seconds' }),
    limit_per_minute: Nullable(Type.Integer({ description: 'the effective limit; null: unlimited' }))
  }), { used: 1201, limit_per_minute: null }),
  projects: Example(Used, { used: 1, limit: null }),
  members: Example(Used, { used: 1, limit: null }),
  open_invitations: Example(Type.Integer({ description: 'each takes a place of the limit of members' }), 0),
  bytes: Example(Described(Used, {
    description: 'stored bytes: the sum of `size_bytes` of all current documents and all versions'
  }), { used: 0, limit: null }),
  days: Example(Type.Array(UsageOfDay, {
    description: `requests on each of the last ${DAYS_OF_USAGE} days (UTC), oldest first; the last one is today`
  }), [{ date: '2026-03-01', api_calls: 1201 }])
})

export const PaymentMethod = Resource('payment-methods', { title: 'PaymentMethod', id: METHOD_ID }, {
  kind: Example(OneOf(PAYMENT_METHOD_KINDS), 'manual'),
  label: Example(Type.String(), 'Wire transfer'),
  reference: Example(Nullable(Type.String()), 'PO 2026-114'),
  is_default: Example(Type.Boolean(), true),
  created_at: Timestamp
})
export type PaymentMethodAttributes = Static<typeof PaymentMethod.attributes>

export const CreatePaymentMethodBody = Body({
  kind: OneOf(PAYMENT_METHOD_KINDS, { description: '`manual`: a wire transfer that the operator records' }),
  label: Label,
  reference: Type.Optional(Line(LABEL_LENGTH, 'PO-2026-114', {
    description: 'a reference of the buyer, printed on the invoice; never a card number'
  })),
  is_default: Type.Optional(Type.Boolean({ description: 'the first payment method is always the default' })),
  billing_details: Type.Optional(BillingDetails)
}, {
  title: 'CreatePaymentMethodBody', examples: [{ kind: 'manual', label: 'Wire transfer', reference: 'PO 2026-114' }]
})

export const Charge = Resource('charges', { title: 'Charge', id: CHARGE_ID }, {
  amount: Example(Money, 12000),
  currency: InEuros,
  status: Example(StatusOfPayment, 'pending'),
  refunded: Example(Money, 0),
  invoice_id: Example(Type.String(), INVOICE_ID),
  payment_method_id: Example(Nullable(Type.String()), METHOD_ID),
  created_at: Timestamp
})

export const CreateChargeBody = Body({
  amount: Amount,
  currency: Currency,
  description: Label,
  payment_method_id: Type.Optional(Patterned('^[0-9A-Za-z]*$', `the id of a payment method, such as ${METHOD_ID}`, {
    maxLength: 26, description: 'default: the default payment method'
  }))
}, { title: 'CreateChargeBody', examples: [{ amount: 12000, currency: 'EUR', description: 'Onboarding, one day' }] })

export const Refund = Resource('refunds', { title: 'Refund', id: '01JQZ7D3K5M7P9R1T3V5X7Z9B4' }, {
  charge_id: Example(Type.String(), CHARGE_ID),
  amount: Example(Money, 6000),
  currency: InEuros,
  status: Example(StatusOfPayment, 'pending'),
  reason: Example(Nullable(Type.String()), 'Half a day'),
  created_at: Timestamp
})

export const CreateRefundBody = Body({
  amount: Type.Optional(Amount),
  reason: Type.Optional(Label)
}, { title: 'CreateRefundBody', examples: [{ amount: 6000, reason: 'Half a day' }] })

export const Coupon = Resource('coupons', { title: 'Coupon', id: 'WELCOME-10' }, {
  percent_off: Example(Nullable(Type.Integer()), 10),
  amount_off: Example(Nullable(Type.Integer()), null),
  currency: Example(Nullable(Type.String()), null),
  valid_until: Example(Nullable(Timestamp), null)
})

export const RedeemCouponBody = Body({
  code: Type.String({ minLength: 1, maxLength: COUPON_LENGTH, description: 'not case-sensitive' })
}, { title: 'RedeemCouponBody', examples: [{ code: 'WELCOME-10' }] })

const summary = {
  number: Example(Type.String({ description: 'consecutive in the organization, without gaps' }), 'R3W5X1Y0BC-000001'),
  status: Example(StatusOfInvoice, 'open'),
  currency: InEuros,
  subtotal: Example(Money, 2900),
  discount: Example(Money, 0),
  credit: Example(Money, 0),
  total: Example(Money, 2900),
  issued_at: Timestamp,
  due_at: Example(Timestamp, '2026-03-15T12:00:00.000Z'),
  paid_at: Example(Nullable(Timestamp), null),
  charge_id: Example(Nullable(Type.String()), CHARGE_ID),
  refunded: Example(Money, 0)
}
export const InvoiceItem = Resource(
  'invoices', { title: 'InvoiceItem', id: INVOICE_ID, attributesTitle: 'InvoiceSummary' }, summary
)
export const Invoice = Resource('invoices', { title: 'Invoice', id: INVOICE_ID }, {
  ...summary,
  subtotal: Example(Money, 12000),
  total: Example(Money, 12000),
  refunded: Example(Money, 6000),
  lines: Example(Type.Array(InvoiceLine), [
    { description: 'Onboarding, one day', amount: 12000, period_start: null, period_end: null }
  ]),
  seller: Example(Party, { name: 'Strongroom Ltd', address: '1 Harbour Road\nDublin', tax_id: 'IE1234567FA' }),
  buyer: Example(Party, BUYER),
  reference: Example(Nullable(Type.String({
    description: 'the reference of the payment method when the invoice was created'
  })), 'PO 2026-114'),
  note: Example(Type.String({
    description: 'the note of the operator when the invoice was created; may be empty'
  }), 'Reverse charge: VAT is due by the recipient.')
})
/** An invoice as a printable HTML page. */
export const InvoiceFile = { content: { 'text/html': { schema: Type.String() } } }
export const LatestInvoices = Answer('LatestInvoices', { data: Type.Array(InvoiceItem.item), meta: PageMeta })
