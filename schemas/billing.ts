import { Type, type Static } from '@sinclair/typebox'
import { OrganizationInPath, Plan } from './organizations.ts'
import { Body, Described, NAME_LENGTH, Nullable, OneOf, PageMeta, Resource, Timestamp } from './shapes.ts'

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

/** Currencies (ISO 4217) by the number of decimal digits. */
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
/** In minor units; a hundred times this is still a safe integer. */
export const MOST_AMOUNT = 999_999_999_999

const IntervalName = OneOf(INTERVALS, { title: 'Interval' })
const StatusOfPayment = OneOf(PAYMENT_STATUSES, { title: 'PaymentStatus' })
const StatusOfInvoice = OneOf(INVOICE_STATUSES, { title: 'InvoiceStatus' })
const Currency = OneOf(CURRENCY_CODES, { title: 'Currency', description: 'ISO 4217', examples: ['EUR'] })
/** In minor units: cents for euros, whole yen. */
const Amount = Type.Integer({
  minimum: 1, maximum: MOST_AMOUNT, title: 'Amount', description: 'in minor units of the currency', examples: [2900]
})
const Money = Type.Integer({ title: 'Money', description: 'in minor units of the currency' })
// Control characters are rejected, except for line feeds in `LINES`.
const LINE = '^[^\\u0000-\\u001f\\u007f]*$'
const LINES = '^[^\\u0000-\\u001f\\u007f]*(\\n[^\\u0000-\\u001f\\u007f]*){0,9}$'
const Label = Type.String({
  minLength: 1, maxLength: LABEL_LENGTH, pattern: '^[^\\S\\u0000-\\u001f]*[^\\s\\u0000-\\u001f\\u007f][^\\u0000-\\u001f\\u007f]*$'
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

const at = '2026-03-01T12:00:00.000Z'
const later = '2026-04-01T12:00:00.000Z'
const invoiceId = '01JQZ7D3K5M7P9R1T3V5X7Z9B1'
const chargeId = '01JQZ7D3K5M7P9R1T3V5X7Z9B2'
const methodId = '01JQZ7D3K5M7P9R1T3V5X7Z9B3'

export const PlanPrice = Type.Object({ interval: IntervalName, currency: Type.String(), amount: Money }, {
  title: 'PlanPrice'
})
export type PlanPrice = Static<typeof PlanPrice>

/** A plan of the catalogue. A plan without prices is free and needs no subscription. */
export const CataloguePlan = Resource('plans', Type.Object({
  ...Plan.properties, prices: Type.Array(PlanPrice)
}, { title: 'PlanAttributes' }), {
  title: 'CataloguePlan',
  id: 'pro',
  example: {
    name: 'pro',
    retention_days: 30,
    api_per_minute: 100,
    max_projects: 50,
    max_members: 25,
    max_bytes: 1_073_741_824,
    prices: [{ interval: 'month', currency: 'EUR', amount: 2900 }]
  }
})
export const PlanList = Type.Object({ data: Type.Array(CataloguePlan.item) }, {
  title: 'PlanList', examples: [{ data: CataloguePlan.one.examples.map(({ data }: { data: object }) => data) }]
})

const SubscriptionAttributes = Type.Object({
  plan: Type.String(),
  interval: IntervalName,
  currency: Type.String(),
  amount: Money,
  status: OneOf(['active', 'ending'], { description: '`ending`: cancelled, ends with the current period' }),
  cancel_at_period_end: Type.Boolean(),
  current_period_start: Timestamp,
  current_period_end: Timestamp,
  billing_details: Party,
  created_at: Timestamp,
  updated_at: Timestamp
}, { title: 'SubscriptionAttributes' })
export type SubscriptionAttributes = Static<typeof SubscriptionAttributes>

const buyer = { name: 'Nimbus GmbH', address: 'Ringstraße 1\n1010 Wien\nAustria', tax_id: 'ATU12345678' }
export const Subscription = Resource('subscriptions', SubscriptionAttributes, {
  title: 'Subscription',
  id: '01JQZ7D3K5M7P9R1T3V5X7Z9B0',
  example: {
    plan: 'pro',
    interval: 'month',
    currency: 'EUR',
    amount: 2900,
    status: 'active',
    cancel_at_period_end: false,
    current_period_start: at,
    current_period_end: later,
    billing_details: buyer,
    created_at: at,
    updated_at: at
  }
})

/** Whom invoices are for. What is left out stays; without a name it is that of the organization. */
const BillingDetails = Type.Object({
  name: Type.Optional(Type.String({ maxLength: NAME_LENGTH, pattern: LINE })),
  address: Type.Optional(Type.String({ maxLength: ADDRESS_LENGTH, pattern: LINES, description: 'at most ten lines' })),
  tax_id: Type.Optional(Type.String({ maxLength: TAX_ID_LENGTH, pattern: LINE }))
}, { additionalProperties: false, title: 'BillingDetails', examples: [buyer] })
export type BillingDetails = Static<typeof BillingDetails>

const PlanName = Type.String({ minLength: 1, maxLength: 64, pattern: LINE, examples: ['pro'] })
export const CreateSubscriptionBody = Body({
  plan: PlanName,
  interval: Type.Optional(Described(IntervalName, { description: 'default: `month`' })),
  currency: Type.Optional(Currency),
  billing_details: Type.Optional(BillingDetails)
}, { title: 'CreateSubscriptionBody', examples: [{ plan: 'pro', interval: 'month', currency: 'EUR', billing_details: buyer }] })

export const UpdateSubscriptionBody = Body({
  plan: Type.Optional(PlanName),
  interval: Type.Optional(IntervalName),
  billing_details: Type.Optional(BillingDetails)
}, { title: 'UpdateSubscriptionBody', examples: [{ plan: 'team' }] })

export const EmptyBody = Body({}, { title: 'EmptyBody', examples: [{}] })

const Used = Type.Object({ used: Type.Integer(), limit: Nullable(Type.Integer()) }, { title: 'Used' })
export const Usage = Resource('usage', Type.Object({
  plan: Type.String(),
  period_start: Timestamp,
  period_end: Timestamp,
  api_calls: Type.Object({
    used: Type.Integer({ description: 'may lag by up to ten seconds' }),
    limit_per_minute: Nullable(Type.Integer({ description: 'the effective limit; null: unlimited' }))
  }),
  projects: Used,
  members: Used,
  bytes: Described(Used, {
    description: 'stored bytes: the sum of `size_bytes` of all current documents and all versions'
  })
}, { title: 'UsageAttributes' }), {
  title: 'Usage',
  id: '2026-03',
  example: {
    plan: 'self-hosted',
    period_start: '2026-03-01T00:00:00.000Z',
    period_end: '2026-04-01T00:00:00.000Z',
    api_calls: { used: 1201, limit_per_minute: null },
    projects: { used: 1, limit: null },
    members: { used: 1, limit: null },
    bytes: { used: 0, limit: null }
  }
})

const PaymentMethodAttributes = Type.Object({
  kind: OneOf(PAYMENT_METHOD_KINDS),
  label: Type.String(),
  reference: Nullable(Type.String()),
  is_default: Type.Boolean(),
  created_at: Timestamp
}, { title: 'PaymentMethodAttributes' })
export type PaymentMethodAttributes = Static<typeof PaymentMethodAttributes>
export const PaymentMethod = Resource('payment-methods', PaymentMethodAttributes, {
  title: 'PaymentMethod',
  id: methodId,
  example: {
    kind: 'manual', label: 'Wire transfer', reference: 'PO 2026-114', is_default: true, created_at: at
  }
})

export const CreatePaymentMethodBody = Body({
  kind: OneOf(PAYMENT_METHOD_KINDS, { description: '`manual`: a wire transfer that the operator records' }),
  label: Label,
  reference: Type.Optional(Type.String({
    maxLength: LABEL_LENGTH, pattern: LINE, description: 'a reference of the buyer, printed on the invoice; never a card number'
  })),
  is_default: Type.Optional(Type.Boolean({ description: 'the first payment method is always the default' })),
  billing_details: Type.Optional(BillingDetails)
}, {
  title: 'CreatePaymentMethodBody', examples: [{ kind: 'manual', label: 'Wire transfer', reference: 'PO 2026-114' }]
})

const ChargeAttributes = Type.Object({
  amount: Money,
  currency: Type.String(),
  status: StatusOfPayment,
  refunded: Money,
  invoice_id: Type.String(),
  payment_method_id: Nullable(Type.String()),
  created_at: Timestamp
}, { title: 'ChargeAttributes' })
export type ChargeAttributes = Static<typeof ChargeAttributes>
export const Charge = Resource('charges', ChargeAttributes, {
  title: 'Charge',
  id: chargeId,
  example: {
    amount: 12000,
    currency: 'EUR',
    status: 'pending',
    refunded: 0,
    invoice_id: invoiceId,
    payment_method_id: methodId,
    created_at: at
  }
})

export const CreateChargeBody = Body({
  amount: Amount,
  currency: Currency,
  description: Label,
  payment_method_id: Type.Optional(Type.String({
    maxLength: 26, pattern: '^[0-9A-Za-z]*$', description: 'default: the default payment method'
  }))
}, { title: 'CreateChargeBody', examples: [{ amount: 12000, currency: 'EUR', description: 'Onboarding, one day' }] })

const RefundAttributes = Type.Object({
  charge_id: Type.String(),
  amount: Money,
  currency: Type.String(),
  status: StatusOfPayment,
  reason: Nullable(Type.String()),
  created_at: Timestamp
}, { title: 'RefundAttributes' })
export type RefundAttributes = Static<typeof RefundAttributes>
export const Refund = Resource('refunds', RefundAttributes, {
  title: 'Refund',
  id: '01JQZ7D3K5M7P9R1T3V5X7Z9B4',
  example: {
    charge_id: chargeId, amount: 6000, currency: 'EUR', status: 'pending', reason: 'Half a day', created_at: at
  }
})

export const CreateRefundBody = Body({
  amount: Type.Optional(Amount),
  reason: Type.Optional(Label)
}, { title: 'CreateRefundBody', examples: [{ amount: 6000, reason: 'Half a day' }] })

const CouponAttributes = Type.Object({
  percent_off: Nullable(Type.Integer()),
  amount_off: Nullable(Type.Integer()),
  currency: Nullable(Type.String()),
  valid_until: Nullable(Timestamp)
}, { title: 'CouponAttributes' })
export type CouponAttributes = Static<typeof CouponAttributes>
export const Coupon = Resource('coupons', CouponAttributes, {
  title: 'Coupon',
  id: 'WELCOME-10',
  example: { percent_off: 10, amount_off: null, currency: null, valid_until: null }
})

export const RedeemCouponBody = Body({
  code: Type.String({ minLength: 1, maxLength: COUPON_LENGTH, description: 'not case-sensitive' })
}, { title: 'RedeemCouponBody', examples: [{ code: 'WELCOME-10' }] })

const summary = {
  number: Type.String({ description: 'consecutive in the organization, without gaps' }),
  status: StatusOfInvoice,
  currency: Type.String(),
  subtotal: Money,
  discount: Money,
  credit: Money,
  total: Money,
  issued_at: Timestamp,
  due_at: Timestamp,
  paid_at: Nullable(Timestamp),
  charge_id: Nullable(Type.String()),
  refunded: Money
}
const detail = {
  lines: Type.Array(InvoiceLine),
  seller: Party,
  buyer: Party,
  reference: Nullable(Type.String({ description: 'the reference of the payment method when the invoice was created' })),
  note: Type.String({ description: 'the note of the operator when the invoice was created; may be empty' })
}
const InvoiceSummary = Type.Object(summary, { title: 'InvoiceSummary' })
export type InvoiceSummary = Static<typeof InvoiceSummary>
const InvoiceAttributes = Type.Object({ ...summary, ...detail }, { title: 'InvoiceAttributes' })
export type InvoiceAttributes = Static<typeof InvoiceAttributes>
const example = {
  number: 'R3W5X1Y0BC-000001',
  status: 'open',
  currency: 'EUR',
  subtotal: 2900,
  discount: 0,
  credit: 0,
  total: 2900,
  issued_at: at,
  due_at: '2026-03-15T12:00:00.000Z',
  paid_at: null,
  charge_id: chargeId,
  refunded: 0
}
export const Invoice = Resource('invoices', InvoiceAttributes, {
  title: 'Invoice',
  id: invoiceId,
  example: {
    ...example,
    subtotal: 12000,
    total: 12000,
    refunded: 6000,
    lines: [{ description: 'Onboarding, one day', amount: 12000, period_start: null, period_end: null }],
    seller: { name: 'Strongroom Ltd', address: '1 Harbour Road\nDublin', tax_id: 'IE1234567FA' },
    buyer,
    reference: 'PO 2026-114',
    note: 'Reverse charge: VAT is due by the recipient.'
  }
})
/** An invoice as a printable HTML page. */
export const InvoiceFile = { content: { 'text/html': { schema: Type.String() } } }
export const InvoiceItem = Resource('invoices', InvoiceSummary, { title: 'InvoiceItem', id: invoiceId, example })
export const LatestInvoices = Type.Object({ data: Type.Array(InvoiceItem.item), meta: PageMeta }, {
  title: 'LatestInvoices', examples: InvoiceItem.list.examples
})
