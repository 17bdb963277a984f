import { COUPON_PATTERN, MAX_AMOUNT, type Interval } from '../../../schemas/billing.ts'
import { manual } from '../../billing/provider.ts'
import { addRefund, checkRefund, closeInvoiceByOperator, concernOf, settleRefundByOperator, type Note } from '../../billing/settlement.ts'
import { readNow, type Database, type Db } from '../../db/database.ts'
import { operatorOf, type Actor } from '../../repositories/audit/audit.ts'
import { createCoupon, endCoupon, listCoupons, type NewCoupon } from '../../repositories/billing/billing.ts'
import { findOwner, listAllInvoices, listOpenRefunds } from '../../repositories/billing/invoices.ts'
import { updatePrice } from '../../repositories/billing/plans.ts'
import { formatMoney, invoiceNumber } from '../../rules/billing.ts'
import { ApiError } from '../../rules/api-error.ts'
import { changeOn, command, listing, verbs, type Noun } from '../common/noun.ts'
import { refuse, StartError } from '../common/command-errors.ts'
import { allRows, rowOf } from '../common/stdio.ts'
import { currencyOf, fail, numberOf, TEXT, timeOf } from '../common/words.ts'

export const coupon: Noun = {
  isOfInstallation: true,
  help: `  coupon add --code CODE [--percent N] [--amount N --currency CODE] [--valid-until TIME] [--redemptions N]
                                          create a coupon; amounts are in minor units
  coupon end --code CODE                  end a coupon, also for organizations that redeemed it
  coupon list                             list every coupon: code, discount, redemptions, end
`,

  run: verbs('coupon', {
    add: command({
      code: TEXT, percent: TEXT, amount: TEXT, currency: TEXT, 'valid-until': TEXT, redemptions: TEXT
    }, async (given, env) => {
      const percent_off = numberOf('--percent', given.percent, 100)
      const amount_off = numberOf('--amount', given.amount, MAX_AMOUNT)
      if ((percent_off === null) === (amount_off === null)) {
        fail('coupon add needs --percent, or --amount with --currency')
      }
      const currency = amount_off === null ? null : currencyOf(given.currency)
      if (amount_off === null && given.currency !== undefined) fail('--currency requires --amount')
      const valid_until = timeOf('--valid-until', given['valid-until']) ?? null
      const max_redemptions = numberOf('--redemptions', given.redemptions, 1_000_000_000)
      const code = couponOf(given.code)
      return changeOn(env, (database) =>
        addCoupon(database, { code, percent_off, amount_off, currency, valid_until, max_redemptions }), 'Added.')
    }),

    end: command({ code: TEXT }, async ({ code: text }, env) => {
      const code = couponOf(text)
      return changeOn(env, async ({ db }) => {
        if (!await endCoupon(db, code)) refuse(`There is no coupon ${code}`)
      })
    }),

    list: listing(describeCoupons)
  })
}

export const invoice: Noun = {
  help: `  invoice paid --id ID                    record that a wire transfer was received
  invoice void --id ID                    void an invoice: it is no longer due
  invoice export                          print all invoices and refunds as JSON Lines, also of deleted organizations
`,

  run: verbs('invoice', {
    paid: noting('invoice', 'paid'),
    void: noting('invoice', 'void'),
    export: listing(exportInvoices)
  })
}

export const refund: Noun = {
  help: `  refund add --charge ID [--amount N]     refund a charge, or a part of it
  refund paid --id ID                     record that a refund was paid
  refund failed --id ID                   record that a refund failed: the amount is refundable again
  refund list                             list refunds that are pending or need review
  refund checked --id ID                  mark a refund as reviewed: it is no longer listed
`,

  run: verbs('refund', {
    add: command({ charge: TEXT, amount: TEXT }, async ({ charge, amount: text }, env) => {
      if (!charge) fail('refund add needs --charge ID')
      const amount = numberOf('--amount', text, MAX_AMOUNT) ?? undefined
      return changeOn(env, async (database) => `Refund ${await refundCharge(database, charge.toUpperCase(), amount)}`)
    }),

    paid: noting('refund', 'paid'),
    failed: noting('refund', 'failed'),
    checked: noting('refund', 'checked'),
    list: listing(describeRefunds)
  })
}

export const plan: Noun = {
  isOfInstallation: true,
  help: `  plan price --plan NAME --interval month|year --currency CODE --amount N
                                          set the price of a plan, in minor units; 0 removes the price
`,

  run: verbs('plan', {
    price: command({ plan: TEXT, interval: TEXT, currency: TEXT, amount: TEXT }, async (given, env) => {
      const { plan, interval, amount: text } = given
      if (!plan) fail('plan price needs --plan NAME')
      if (interval !== 'month' && interval !== 'year') fail('--interval must be month or year')
      const currency = currencyOf(given.currency)
      if (text === undefined) fail('plan price needs --amount N')
      const amount = text === '0' ? null : numberOf('--amount', text, MAX_AMOUNT)
      return changeOn(env, (database) => setPrice(database, { plan, interval, currency, amount }))
    })
  })
}

function couponOf (text: string | undefined): string {
  return text !== undefined && new RegExp(COUPON_PATTERN).test(text)
    ? text.toUpperCase()
    : fail('--code has 1 to 64 letters, digits, "-" and "_"')
}

function noting<T extends keyof typeof NOTES> (of: T, as: NoteOf<T>) {
  return command({ id: TEXT }, async ({ id }, env) => {
    if (!id) fail(`${of} ${as} needs --id ID`)
    return changeOn(env, (database) => settle(database, of, as, id.toUpperCase()))
  })
}

async function addCoupon ({ db }: Database, coupon: NewCoupon): Promise<void> {
  if (coupon.valid_until !== null && coupon.valid_until.getTime() <= await readNow(db)) {
    refuse('--valid-until is in the past; give a later time')
  }
  if (!await createCoupon(db, coupon)) refuse(`The coupon ${coupon.code} already exists`)
}

async function * describeCoupons ({ db }: Database): AsyncGenerator<string> {
  for await (const coupon of allRows((after) => listCoupons(db, after), '', ({ code }) => code)) {
    const { code, percent_off, amount_off, currency, redemptions, max_redemptions, valid_until } = coupon
    yield rowOf(
      code, percent_off === null ? formatMoney(amount_off!, currency!) : `${percent_off} %`,
      `${redemptions}/${max_redemptions ?? 'any'}`, valid_until?.toISOString() ?? 'no end'
    )
  }
}

/** Yields each invoice of all organizations, including deleted ones, as a line of JSON. */
export async function * exportInvoices ({ db }: Database): AsyncGenerator<string> {
  const all = allRows((after) => listAllInvoices(db, after), { organization_id: '', number: 0 }, (invoice) => invoice)
  for await (const { number, ...invoice } of all) {
    yield JSON.stringify({ ...invoice, number: invoiceNumber(invoice.organization_id, number) })
  }
}

/**
 * Yields a line for each refund that is pending or needs review: id, organization, amount, charge, creation, provider,
 * and `pending` or the reason for the review.
 */
export async function * describeRefunds ({ db }: Database): AsyncGenerator<string> {
  const all = allRows((after) => listOpenRefunds(db, manual.name, after), '', ({ refund }) => refund.id)
  for await (const { refund, charge } of all) {
    const { id, organization_id, amount, created_at, provider, status } = refund
    const state = status === 'pending' ? status : concernOf(refund)
    if (state === undefined) continue
    yield rowOf(
      id, organization_id, formatMoney(amount, charge.currency), charge.id, created_at.toISOString(), provider, state
    )
  }
}

/**
 * Refunds a charge, by default its whole refundable amount, also for a deleted organization. Returns the refund's id.
 * Throws a StartError if the charge does not exist or has not succeeded, or if the amount is more than refundable.
 */
export async function refundCharge (
  { db }: Database, charge: string, amount: number | undefined
): Promise<string> {
  try {
    const organization = await findOwner(db, 'charge', charge) ?? refuse(`There is no charge ${charge}`)
    return (await addRefund(db, operatorOf(organization), charge, amount === undefined ? {} : { amount })).id
  } catch (error) {
    throw error instanceof ApiError ? new StartError(error.message) : error
  }
}

const NOTES = {
  invoice: {
    paid: (db: Db, actor: Actor, id: string) => closeInvoiceByOperator(db, actor, id, 'paid'),
    void: (db: Db, actor: Actor, id: string) => closeInvoiceByOperator(db, actor, id, 'void')
  },
  refund: {
    paid: (db: Db, actor: Actor, id: string) => settleRefundByOperator(db, actor, id, 'succeeded'),
    failed: (db: Db, actor: Actor, id: string) => settleRefundByOperator(db, actor, id, 'failed'),
    checked: checkRefund
  }
}
type NoteOf<T extends keyof typeof NOTES> = keyof (typeof NOTES)[T] & string

/**
 * Records the outcome of an invoice or refund, or the review of a refund. Returns a message for the operator. Throws a
 * StartError if the invoice or refund does not exist, is already settled, or needs no review.
 */
export async function settle<T extends keyof typeof NOTES> (
  { db }: Database, of: T, as: NoteOf<T>, id: string
): Promise<string> {
  const note = NOTES[of][as] as (db: Db, actor: Actor, id: string) => Promise<Note | undefined>
  const organization = await findOwner(db, of, id) ?? refuse(`There is no ${of} ${id}`)
  const noted = await note(db, operatorOf(organization), id) ??
    refuse(`The ${of} ${id} ${as === 'checked' ? 'needs no review' : 'is already settled'}`)
  if (noted.unanswered === null) return 'Changed.'
  return `Changed. Warning: ${noted.unanswered} was also requested to move this money and has not reported a result. ` +
    `The request is retried, so the money may move ${as === 'paid' ? 'twice' : 'anyway'}: check with the provider.`
}

/** Sets or removes (null) the price of a plan. Throws a StartError if the plan or the price to remove is unknown. */
export async function setPrice (
  { db }: Database, price: { plan: string, interval: Interval, currency: string, amount: number | null }
): Promise<void> {
  if (await updatePrice(db, price)) return
  refuse(price.amount === null ? 'There is no such price' : `There is no plan ${price.plan}`)
}
